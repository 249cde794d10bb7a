/* needs: engine cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* The determinism matrix, short: nano with every row, the embedded model, nano with an indexer that scores everything
 * zero, compact prefill; and a planted fault, which must be found. `make matrix` is the long run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/json.h"
#include "engine/matrix.h"
#include "support/folder.h"
#include "support/slow.h"

#define NANO DI_TEST_DATA "/nano"
#define TINY DI_SOURCE_DIR "/models/tiny"

#if defined(__SANITIZE_ADDRESS__)
#define SOME_ROWS "T4,T5,T6,T14"
#else
#define SOME_ROWS "T14" /* no fork under ThreadSanitizer */
#endif

typedef struct outcome {
    unsigned cases, skipped, differing, reports;
    uint64_t tokens;
    char differing_rows[128], not_run[1024];
} outcome;

static void take(void *arg, const di_matrix_result *r) {
    outcome *o = arg;
    o->reports++;
    if (r->differing_bytes) {
        o->differing++;
        strncat(o->differing_rows, r->row, sizeof o->differing_rows - strlen(o->differing_rows) - 1);
        assert_non_null(r->first_difference);
        print_message("%s %s: %llu bytes differ: %s\n", r->row, r->name, (unsigned long long)r->differing_bytes,
                      r->first_difference);
    }
    o->tokens += r->tokens;
    o->cases += !r->skipped;
    if (!r->skipped || !r->name[0]) return;
    o->skipped++;
    if (strstr(r->skipped, "this processor")) {
        print_message("%s %s: skipped: %s\n", r->row, r->name, r->skipped);
        return;
    }
    strncat(o->not_run, r->name, sizeof o->not_run - strlen(o->not_run) - 1);
}

static bool run(const char *model, const char *rows, bool plant, const di_option *options, size_t count, outcome *o) {
    di_matrix_options matrix = {.model = model,
                                .options = options,
                                .option_count = count,
                                .tokens = 100,
                                .rows = rows,
                                .plant_fault = plant,
                                .arg = o,
                                .report = take};
    di_error error = {0};
    bool passed = false;
    memset(o, 0, sizeof *o);
    if (di_matrix_run(&matrix, &passed, &error) != DI_OK) fail_msg("%s: %s", error.param, error.message);
    return passed;
}

/* ---------------------------------------------------------------- equal bytes */

static void nano_passes_every_row(void **state) {
    (void)state;
    outcome o;
    assert_true(run(NANO, DI_TEST_SLOW ? SOME_ROWS : NULL, false, NULL, 0, &o));
    assert_int_equal(o.differing, 0);
    assert_string_equal(o.not_run, ""); /* hits and preemptions did happen */
    print_message("nano: %llu tokens in %u cases\n", (unsigned long long)o.tokens, o.cases);
    if (DI_TEST_SLOW) return;
    assert_true(o.cases >= 48);
    assert_true(o.tokens >= 5000);
    assert_int_equal(o.reports - o.cases - o.skipped, 2); /* rows of later versions */
}

static void skip_slow(void) {
    print_message("not run: too slow under this sanitizer\n");
    skip();
}

static void the_embedded_model_passes(void **state) {
    (void)state;
    if (DI_TEST_SLOW) skip_slow();
    outcome o;
    assert_true(run(TINY, "T1,T4,T7,T9,T15", false, NULL, 0, &o));
    assert_int_equal(o.differing, 0);
    assert_string_equal(o.not_run, "");
    print_message("tiny: %llu tokens in %u cases\n", (unsigned long long)o.tokens, o.cases);
}

static void compact_prefill_passes(void **state) {
    (void)state;
    if (DI_TEST_SLOW) skip_slow();
    outcome o;
    const di_option compact[] = {{"prefill", "compact"}};
    assert_true(run(NANO, "T1,T4,T5,T6", false, compact, 1, &o));
    assert_int_equal(o.differing, 0);
    assert_true(o.tokens > 400);
}

/* ---------------------------------------------------------------- T12: all scores of the indexer are zero */

static unsigned zero_indexers(const di_folder *folder, const char *shard) {
    size_t length;
    char *bytes = di_folder_read(folder, shard, &length);
    uint64_t header;
    memcpy(&header, bytes, sizeof header);
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL;
    di_error error = {0};
    if (di_json_parse(arena, bytes + 8, header, 0, &root, &error) != DI_OK) fail_msg("%s", error.message);
    unsigned count = 0;
    for (const di_json *tensor = root->first; tensor; tensor = tensor->next) {
        if (!strstr(tensor->key, "indexer.weights_proj")) continue;
        const di_json *offsets = di_json_get(tensor, "data_offsets");
        uint64_t from = 0, to = 0;
        assert_true(offsets && di_json_uint64(offsets->first, &from) && di_json_uint64(offsets->first->next, &to));
        char *zeros = calloc(1, to - from);
        di_folder_poke(folder, shard, 8 + header + from, zeros, to - from);
        free(zeros);
        count++;
    }
    di_arena_free(arena);
    free(bytes);
    return count;
}

static void equal_index_scores_pass(void **state) {
    (void)state;
    if (DI_TEST_SLOW) skip_slow();
    di_folder folder = di_folder_new(NANO);
    unsigned zeroed = 0;
    static const char *const shards[] = {"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                         "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors"};
    for (size_t i = 0; i < 4; i++) zeroed += zero_indexers(&folder, shards[i]);
    assert_true(zeroed >= 3);
    outcome o;
    assert_true(run(folder.path, "T1,T3,T4,T11", false, NULL, 0, &o));
    assert_int_equal(o.differing, 0);
    assert_string_equal(o.not_run, "");
    di_folder_delete(&folder);
}

/* ---------------------------------------------------------------- faults are found */

static void a_planted_bit_is_found(void **state) {
    (void)state;
    static const char *const rows[] = {"T14", "T1", "T5", "T6", "T11", "T15"};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i += DI_TEST_SLOW ? 6 : 1) {
        outcome o;
        assert_false(run(NANO, rows[i], true, NULL, 0, &o));
        assert_int_equal(o.differing, 1); /* in one case */
        assert_string_equal(o.differing_rows, rows[i]);
    }
}

/* ---------------------------------------------------------------- what goes wrong */

static di_status fail_with(const di_matrix_options *matrix, di_error *error) {
    bool passed = true;
    *error = (di_error){0};
    di_status status = di_matrix_run(matrix, &passed, error);
    assert_int_equal(status, error->status);
    assert_false(passed);
    return status;
}

static bool stop_at_third(void *arg) {
    return ++*(int *)arg > 2;
}

static void wrong_use_is_refused(void **state) {
    (void)state;
    di_error error;
    static const char *const lists[] = {"T0", "T16", "T", "T1,", "t1", "T1 ,T2", "T1,T11,T111"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_int_equal(fail_with(&(di_matrix_options){.model = NANO, .rows = lists[i]}, &error),
                         DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, "rows");
    }
    assert_int_equal(fail_with(&(di_matrix_options){.model = "/nowhere", .rows = "T15"}, &error), DI_ERR_NOT_FOUND);
    const di_option bad[] = {{"threads", "many"}};
    assert_int_equal(fail_with(&(di_matrix_options){.model = NANO, .options = bad, .option_count = 1}, &error),
                     DI_ERR_CONFIG);
    const di_option narrow[] = {{"context", "20"}};
    assert_int_equal(fail_with(&(di_matrix_options){.model = NANO, .options = narrow, .option_count = 1}, &error),
                     DI_ERR_CONFIG);
    /* a fault cannot be planted where no logits are compared */
    assert_int_equal(fail_with(&(di_matrix_options){.model = NANO, .rows = "T13", .plant_fault = true}, &error),
                     DI_ERR_INVALID_ARGUMENT);
    int asked = 0;
    assert_int_equal(
        fail_with(&(di_matrix_options){.model = NANO, .tokens = 100, .arg = &asked, .stop = stop_at_third}, &error),
        DI_ERR_CANCELLED);
}

/* When the time is over, what is left is skipped, and that is said. */
static void the_time_limit_is_kept(void **state) {
    (void)state;
    outcome o = {0};
    bool passed = false;
    di_error error = {0};
    di_matrix_options matrix = {.model = NANO, .limit_ms = 300, .rows = "T1,T3,T4,T9", .arg = &o, .report = take};
    assert_int_equal(di_matrix_run(&matrix, &passed, &error), DI_OK);
    assert_int_equal(passed, o.cases > 0);
    assert_true(o.skipped > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_passes_every_row),  cmocka_unit_test(the_embedded_model_passes),
        cmocka_unit_test(compact_prefill_passes), cmocka_unit_test(equal_index_scores_pass),
        cmocka_unit_test(a_planted_bit_is_found), cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(the_time_limit_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
