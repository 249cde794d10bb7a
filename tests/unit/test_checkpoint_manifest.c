/* needs: checkpoint tensor base */
/* The manifest of the release, against the inventory of its published shard headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "checkpoint/checkpoint.h"

typedef struct totals {
    size_t tensors, by_dtype[DI_DTYPE_COUNT], layer_tensors[48], top_tensors;
    uint64_t parameters, bytes, dtype_bytes[DI_DTYPE_COUNT], layer_bytes[48], top_bytes;
    uint64_t engram_bytes[2];
    size_t limit;
} totals;

static uint64_t bytes_of(const di_expected_tensor *tensor) {
    uint64_t bytes = di_dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++) bytes *= tensor->shape[i];
    return bytes;
}

static bool count(void *arg, const di_expected_tensor *tensor) {
    totals *t = arg;
    uint64_t bytes = bytes_of(tensor);
    t->tensors++;
    t->parameters += tensor->parameters;
    t->bytes += bytes;
    t->by_dtype[tensor->dtype]++;
    t->dtype_bytes[tensor->dtype] += bytes;
    if (strncmp(tensor->part, "engram", 6) == 0) {
        t->engram_bytes[tensor->layer == 14] += bytes;
    } else if (tensor->layer >= 0) {
        t->layer_tensors[tensor->layer]++;
        t->layer_bytes[tensor->layer] += bytes;
    } else {
        t->top_tensors++;
        t->top_bytes += bytes;
    }
    return t->tensors != t->limit;
}

static di_model_config *release(void) {
    static di_model_config config;
    di_error error = {0};
    if (di_model_config_load(DI_TEST_DATA "/release/config.json", &config, &error) != DI_OK)
        fail_msg("%s", error.message);
    return &config;
}

static void release_totals(void **state) {
    (void)state;
    totals t = {0};
    di_expected_tensors(release(), count, &t);
    assert_int_equal(t.tensors, 96085);
    assert_int_equal(t.parameters, 763205315794);
    assert_int_equal(t.bytes, 510286023000);
    static const struct {
        di_dtype dtype;
        size_t count;
        uint64_t bytes;
    } dtypes[] = {{DI_DTYPE_I8, 47232, 278585671680},
                  {DI_DTYPE_F8_E4M3, 357, 204015223296},
                  {DI_DTYPE_F8_E8M0, 47589, 23563015184},
                  {DI_DTYPE_BF16, 520, 3952883712},
                  {DI_DTYPE_F32, 387, 169229128}};
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(t.by_dtype[dtypes[i].dtype], dtypes[i].count);
        assert_int_equal(t.dtype_bytes[dtypes[i].dtype], dtypes[i].bytes);
    }
}

/* The release has one shard a layer; so every layer's sum is known from its header. */
static void release_layers(void **state) {
    (void)state;
    totals t = {0};
    di_expected_tensors(release(), count, &t);
    for (uint32_t i = 0; i < 40; i++) {
        bool full2 = i == 2 || i == 8 || i == 14, reindex = i == 24 || i == 28 || i == 32 || i == 36;
        assert_int_equal(t.layer_tensors[i], 2334 + (full2 ? 8 : i == 20 ? 7 : reindex ? 3 : 0));
        assert_int_equal(t.layer_bytes[i], full2     ? 7405694680
                                           : i == 20 ? 7400451800
                                           : reindex ? 7395076568
                                                     : 7389500888);
    }
    static const size_t draft_tensors[3] = {801, 798, 802};
    static const uint64_t draft_bytes[3] = {2652643800, 2573913560, 2706317272};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t.layer_tensors[40 + i], draft_tensors[i]);
        assert_int_equal(t.layer_bytes[40 + i], draft_bytes[i]);
    }
    assert_int_equal(t.engram_bytes[0], 101535150272);
    assert_int_equal(t.engram_bytes[1], 101537925968);
    assert_int_equal(t.top_tensors, 263 + 4 + 2);
    assert_int_equal(t.top_bytes, 970506240ull + 1323857920ull + 1323837440ull);
}

static void visit_stops(void **state) {
    (void)state;
    totals t = {.limit = 5000};
    di_expected_tensors(release(), count, &t);
    assert_int_equal(t.tensors, 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(release_totals),
        cmocka_unit_test(release_layers),
        cmocka_unit_test(visit_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
