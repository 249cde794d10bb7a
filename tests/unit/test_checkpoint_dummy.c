/* needs: model tokenizer backend_cpu checkpoint tensor base */
/* Made-up weights: the same bytes everywhere, sane values, and a model that computes with them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "backend/cpu/cpu.h"
#include "checkpoint/dummy.h"
#include "model/model.h"
#include "tensor/codec.h"

static const char *const nano = DI_TEST_DATA "/nano";

static void must(di_status status, const di_error *error) {
    if (status) fail_msg("%s: %s", di_status_name(status), error->message);
}

static di_pool *new_pool(int threads) {
    di_pool *pool;
    di_error error = {0};
    must(di_pool_new(threads, &pool, &error), &error);
    return pool;
}

static di_checkpoint *make(const di_model_config *config, uint64_t seed, int threads) {
    di_checkpoint *checkpoint;
    di_error error = {0};
    di_pool *pool = new_pool(threads);
    must(di_checkpoint_dummy(config, seed, pool, &checkpoint, &error), &error);
    di_pool_free(pool);
    return checkpoint;
}

static di_model_config *load_config(const char *path) {
    di_model_config *config = malloc(sizeof *config);
    di_error error = {0};
    assert_non_null(config);
    must(di_model_config_load(path, config, &error), &error);
    return config;
}

static uint64_t hash_all(const di_checkpoint *checkpoint) {
    XXH64_state_t *state = XXH64_createState();
    XXH64_reset(state, 0);
    for (size_t i = 0; i < di_checkpoint_count(checkpoint); i++) {
        const di_tensor *tensor = di_checkpoint_at(checkpoint, i);
        XXH64_update(state, tensor->name, strlen(tensor->name));
        XXH64_update(state, tensor->data, tensor->bytes);
    }
    uint64_t hash = XXH64_digest(state);
    XXH64_freeState(state);
    return hash;
}

static uint64_t digest_of(const di_checkpoint *checkpoint) {
    uint64_t digest = 0;
    di_error error = {0};
    must(di_checkpoint_digest(checkpoint, &digest, &error), &error);
    return digest;
}

/* The numbers tie machines and compilers together. */
static void same_bytes(void **state) {
    (void)state;
    di_model_config *config = load_config(DI_TEST_DATA "/nano");
    static const uint64_t golden_data = 0xe81ccf2e8bcb60dcu, golden_digest = 0x194f276db2f72305u;
    for (int threads = 1; threads <= 3; threads++) {
        di_checkpoint *checkpoint = make(config, 0, threads);
        assert_int_equal(hash_all(checkpoint), golden_data);
        assert_int_equal(digest_of(checkpoint), golden_digest);
        assert_int_equal(hash_all(checkpoint), golden_data); /* taking the digest changes nothing */
        di_checkpoint_close(checkpoint);
    }
    di_checkpoint *other = make(config, 1, 1);
    assert_int_not_equal(hash_all(other), golden_data);
    assert_int_not_equal(digest_of(other), golden_digest);
    di_checkpoint_close(other);
    free(config);
}

/* Names, dtypes and shapes are those the config implies, and no value is NaN or infinite. */
static void whole_and_finite(void **state) {
    (void)state;
    di_model_config *config = load_config(nano);
    di_checkpoint *checkpoint = make(config, 0, 1);
    di_error error = {0};
    di_pool *pool = new_pool(2);
    must(di_checkpoint_verify(checkpoint, config, &error), &error);
    uint64_t digest = digest_of(checkpoint);
    must(di_checkpoint_scan(checkpoint, pool, &error), &error);
    assert_int_equal(digest_of(checkpoint), digest);
    assert_int_equal(di_checkpoint_missing_data(checkpoint, NULL), 0);
    assert_string_equal(di_checkpoint_shard(checkpoint, 0), "dummy");
    di_pool_free(pool);
    di_checkpoint_close(checkpoint);
    free(config);
}

static double rms_of(const di_checkpoint *checkpoint, const char *base) {
    char name[96];
    snprintf(name, sizeof name, "%s.weight", base);
    const di_tensor *tensor = di_checkpoint_find(checkpoint, name);
    assert_non_null(tensor);
    snprintf(name, sizeof name, "%s.scale", base);
    const di_tensor *scale = di_checkpoint_find(checkpoint, name);
    const uint8_t *bytes = tensor->data, *scales = scale ? scale->data : NULL;
    bool packed = tensor->dtype == DI_DTYPE_I8;
    uint64_t rows = tensor->rank > 1 ? tensor->shape[0] : 1, in = tensor->shape[tensor->rank - 1] * (packed ? 2 : 1);
    bool by_row = scale && scale->shape[0] == rows;
    double sum = 0;
    for (uint64_t n = 0; n < rows; n++)
        for (uint64_t k = 0; k < in; k++) {
            uint64_t at = n * in + k;
            double v;
            uint16_t code;
            if (packed)
                v = di_e2m1_decode(bytes[at / 2] >> at % 2 * 4 & 15);
            else if (tensor->dtype == DI_DTYPE_F8_E4M3)
                v = di_e4m3_decode(bytes[at]);
            else
                v = (memcpy(&code, bytes + 2 * at, 2), di_bf16_decode(code));
            if (scale) v *= di_e8m0_decode(scales[(by_row ? n : n / 32) * (in / 32) + k / 32]);
            sum += v * v;
        }
    return sqrt(sum / (double)(rows * in));
}

static void sane_magnitudes(void **state) {
    (void)state;
    di_model_config *config = load_config(nano);
    di_checkpoint *checkpoint = make(config, 0, 1);
    static const struct {
        const char *name;
        double in; /* 1 for tables and norms */
    } matrices[] = {{"layers.0.attn.wq_a", 128},
                    {"layers.3.attn.wq_b", 64},
                    {"layers.9.ffn.shared_experts.w2", 64},
                    {"layers.2.ffn.experts.3.w1", 128},
                    {"layers.2.ffn.experts.3.w2", 64},
                    {"layers.0.ffn.gate", 128},
                    {"head", 128},
                    {"embed", 1},
                    {"layers.1.engram.embed", 1},
                    {"norm", 1},
                    {"layers.4.attn_norm", 1}};
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        double rms = rms_of(checkpoint, matrices[i].name) * sqrt(matrices[i].in);
        if (rms < 0.4 || rms > 1.8) fail_msg("%s: rms %g of 1 / sqrt(in)", matrices[i].name, rms);
    }
    di_checkpoint_close(checkpoint);
    free(config);
}

/* A table of 98 GB takes 64 MB; draft head and vision take nothing. */
static void tables_repeat(void **state) {
    (void)state;
    di_model_config *config = load_config(DI_TEST_DATA "/release/config.json");
    config->num_hidden_layers = 2; /* the first Engram layer is in, 40 layers of experts are not */
    config->n_routed_experts = 8;
    config->cut = 2;
    config->engram_layer_count = 1;
    config->draft_stages = 0;
    uint64_t bytes = di_dummy_bytes(config);
    assert_in_range(bytes, (uint64_t)3 << 30, (uint64_t)5 << 30);
    config->vocab_size = 64;
    config->hidden_size = 64;
    config->moe_intermediate_size = 64;
    config->num_attention_heads = 8;
    assert_in_range(di_dummy_bytes(config), 0, (uint64_t)200 << 20);
    di_checkpoint *checkpoint = make(config, 0, 2);
    const di_tensor *table = di_checkpoint_find(checkpoint, "layers.1.engram.embed.weight");
    assert_non_null(table);
    assert_int_equal(table->bytes, config->engram_rows[0] * 256);
    const uint8_t *data = table->data;
    uint64_t period = (uint64_t)64 << 20, last = table->bytes - 1;
    assert_memory_equal(data, data + 700 * period, 4096);
    assert_int_equal(data[last], data[last % period]);
    int differing = 0;
    for (int i = 0; i < 4096; i++) differing += data[i] != data[i + 4096];
    assert_in_range(differing, 3500, 4096);
    const uint8_t *vision = di_checkpoint_find(checkpoint, "vision.norm.weight")->data;
    assert_int_equal(vision[0], 0);
    di_checkpoint_close(checkpoint);
    free(config);
}

/* From the config alone: no folder, no tokenizer, no engram.json. */
static void model_computes(void **state) {
    (void)state;
    di_error error = {0};
    di_model_config *config = load_config(DI_TEST_DATA "/nano/config.json");
    di_pool *pool = new_pool(2);
    di_checkpoint *checkpoint;
    must(di_checkpoint_dummy(config, 0, pool, &checkpoint, &error), &error);
    di_backend *backend;
    must(di_cpu_backend_new("auto", pool, NULL, &backend, &error), &error);
    di_model_options options = {.context = 256};
    di_model *model;
    assert_int_equal(di_model_open("none", config, checkpoint, NULL, backend, &options, &model, &error),
                     DI_ERR_NOT_FOUND);
    options.dummy = true;
    must(di_model_open("none", config, checkpoint, NULL, backend, &options, &model, &error), &error);
    enum { ROWS = 40 };
    di_step *step;
    must(di_step_new(model, ROWS, 1, ROWS, &step, &error), &error);
    const di_state_layout *layout = di_model_layout(model);
    di_block *rolling, *page;
    must(backend->ops->allocate(backend, layout->rolling_bytes, &rolling, &error), &error);
    must(backend->ops->allocate(backend, layout->page_bytes, &page, &error), &error);
    di_buffer pages[] = {{page, 0}};
    int32_t tokens[ROWS];
    for (int i = 0; i < ROWS; i++) tokens[i] = i * 17 % (int32_t)config->vocab_size;
    di_step_entry entry = {.state = {.rolling = {rolling, 0}, .pages = pages, .page_count = 1},
                           .tokens = tokens,
                           .count = ROWS,
                           .replay_from = -1};
    uint32_t index, first;
    must(di_step_add(step, &entry, &index, &first, &error), &error);
    must(di_model_submit(model, step, &error), &error);
    di_status status;
    assert_true(di_model_poll(model, step, true, &status, &error));
    must(status, &error);
    size_t count = (size_t)ROWS * config->vocab_size;
    float *logits = malloc(count * sizeof *logits);
    assert_non_null(logits);
    backend->ops->read(backend, logits, di_step_logits(step), count * sizeof *logits);
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        assert_true(isfinite(logits[i]));
        sum += (double)logits[i] * logits[i];
    }
    double rms = sqrt(sum / (double)count);
    if (rms < 0.3 || rms > 3) fail_msg("rms of the logits is %g", rms);
    int same = 0;
    for (uint32_t i = 0; i < config->vocab_size; i++) same += logits[i] == logits[count - 1 - i];
    assert_in_range(same, 0, 10);
    free(logits);
    backend->ops->release(backend, rolling);
    backend->ops->release(backend, page);
    di_step_free(step);
    di_model_close(model);
    backend->free(backend);
    di_checkpoint_close(checkpoint);
    di_pool_free(pool);
    free(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bytes),    cmocka_unit_test(whole_and_finite), cmocka_unit_test(sane_magnitudes),
        cmocka_unit_test(tables_repeat), cmocka_unit_test(model_computes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
