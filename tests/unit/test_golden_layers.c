/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Level 1 of the golden tests: everything that happens to the 40-token prompt, layer by layer, bit for bit with
 * reference sums - the whole prompt at once and in chunks. */
#include "base/json.h"
#include "model/deepseek_v41/v41.h"
#include "support/golden.h"
#include "support/harness.h"
#include "support/op_memory.h"
#include "support/refsums.h"

#include <math.h>

#define NANO DI_TEST_DATA "/nano"

enum { PROMPT = 40, MAX_SEEN = 256 };

static di_golden *golden;
static di_arena *arena;
static di_harness *h;
static int32_t ids[PROMPT];

/* What the trace has compared. */
static size_t first_row; /* position of the chunk's first row */
static char seen[MAX_SEEN][64];
static size_t seen_count;

static const di_json *parse(const char *path) {
    const di_json *root = NULL;
    di_error error = {0};
    if (di_json_parse_file(arena, path, 1 << 24, 0, &root, &error)) fail_msg("%s", error.message);
    return root;
}

static int setup(void **state) {
    (void)state;
    golden = di_golden_open(NANO "/golden");
    arena = di_arena_new(0);
    h = di_harness_open(NANO, &(di_harness_options){.kernels = &di_refsums, .threads = 2, .max_rows = PROMPT});
    size_t n = 0;
    int64_t value;
    const di_json *list = di_json_get(di_json_get(parse(NANO "/golden/prompts.json"), "40"), "ids");
    for (const di_json *id = list->first; id && n < PROMPT; id = id->next)
        if (di_json_int64(id, &value)) ids[n++] = (int32_t)value;
    return n != PROMPT;
}

static int teardown(void **state) {
    (void)state;
    di_harness_close(h);
    di_golden_close(golden);
    di_arena_free(arena);
    return 0;
}

static void remember(const char *name) {
    for (size_t i = 0; i < seen_count; i++)
        if (strcmp(seen[i], name) == 0) return;
    assert_true(seen_count < MAX_SEEN);
    snprintf(seen[seen_count++], sizeof seen[0], "%s", name);
}

/* Golden array of this name and the first element of the chunk's rows in it; `width` elements a row. */
static size_t find(const char *name, size_t width, di_golden_array *array) {
    *array = di_golden_get(golden, name);
    if (array->shape[0] != PROMPT || array->count != PROMPT * width)
        fail_msg("%s has %zu elements, wanted %d rows of %zu", name, array->count, PROMPT, width);
    remember(name);
    return first_row * width;
}

/* ---------------------------------------------------------------- comparisons */

static void check_floats(const char *name, const void *data, di_dtype dtype, size_t rows, size_t width) {
    di_golden_array want;
    size_t at = find(name, width, &want);
    const float *from = (const float *)want.data + at;
    if (dtype == DI_DTYPE_BF16)
        expect_bf16(name, data, from, rows * width);
    else
        expect_f32(name, data, from, rows * width);
}

static void check_integers(const char *name, const int32_t *got, size_t rows, size_t width) {
    di_golden_array want;
    size_t at = find(name, width, &want);
    bool wide = strcmp(want.dtype, "int64") == 0;
    for (size_t i = 0; i < rows * width; i++) {
        int64_t value = wide ? ((const int64_t *)want.data)[at + i] : ((const int32_t *)want.data)[at + i];
        if (got[i] != value) fail_msg("%s, element %zu: got %d, golden %lld", name, i, got[i], (long long)value);
    }
}

static void check_window(const char *name, const uint8_t *entries, size_t rows) {
    size_t d = h->config.head_dim;
    float value[64];
    di_golden_array want;
    size_t at = find(name, d, &want);
    assert_int_equal(d, 64);
    for (size_t t = 0; t < rows; t++) {
        decode_window(entries + t * (d + d / 32), d, value);
        expect_f32(name, value, (const float *)want.data + at + t * d, d);
    }
}

/* Scores are golden for every pair; an engine scores the visible groups, and of those the candidates only. */
static void check_scores(uint32_t layer, const char *name, const float *got, size_t rows, size_t groups) {
    di_golden_array want = di_golden_get(golden, name);
    size_t all = want.shape[1], ratio = h->config.layers[layer].ratio, block = h->config.candidate_block_size;
    bool user = h->config.candidate_source_layer >= 0 && (int32_t)layer > h->config.candidate_source_layer;
    char blocks_name[64];
    snprintf(blocks_name, sizeof blocks_name, "ref.%d.candidate_blocks", h->config.candidate_source_layer);
    di_golden_array blocks = di_golden_get(golden, blocks_name);
    remember(name);
    for (size_t t = 0; t < rows; t++) {
        size_t row = first_row + t, visible = (row + 1) / ratio;
        for (size_t g = 0; g < groups; g++) {
            bool member = g < visible;
            if (user) member = member && ((const uint8_t *)blocks.data)[row * blocks.shape[1] + g / block];
            float score = got[t * groups + g];
            if (member)
                expect_f32(name, &score, (const float *)want.data + row * all + g, 1);
            else
                assert_true(score == -INFINITY);
        }
    }
}

static void check_candidates(const char *name, const int32_t *got, size_t rows, size_t width) {
    di_golden_array want = di_golden_get(golden, name);
    size_t blocks = want.shape[1];
    remember(name);
    for (size_t t = 0; t < rows; t++) {
        const uint8_t *row = (const uint8_t *)want.data + (first_row + t) * blocks;
        size_t at = 0;
        for (size_t b = 0; b < blocks; b++)
            if (row[b]) assert_int_equal(got[t * width + at++], b);
        while (at < width) assert_int_equal(got[t * width + at++], -1);
    }
}

static void on_trace(void *arg, const char *what, di_buffer data, di_dtype dtype, uint32_t rows, uint32_t width) {
    (void)arg;
    char name[64];
    const void *memory = di_cpu_at(data);
    uint32_t layer = (uint32_t)strtoul(what, NULL, 10);
    const char *field = strchr(what, '.') + 1;
    snprintf(name, sizeof name, "ref.%s", what);
    if (strcmp(field, "window") == 0) {
        check_window(name, memory, rows);
    } else if (strcmp(field, "index_score") == 0) {
        check_scores(layer, name, memory, rows, width);
    } else if (strcmp(field, "candidates") == 0) {
        snprintf(name, sizeof name, "ref.%u.candidate_blocks", layer);
        check_candidates(name, memory, rows, width);
    } else if (strcmp(field, "tap") == 0) {
        /* columns fill up layer by layer */
        if (layer == h->config.tap_layers[h->config.tap_count - 1])
            check_floats("ref.taps", memory, dtype, rows, width);
    } else if (dtype == DI_DTYPE_I32) {
        check_integers(name, memory, rows, width);
    } else {
        check_floats(name, memory, dtype, rows, width);
    }
}

/* ---------------------------------------------------------------- what is not traced */

static void check_pages(di_state *s) {
    const v41_model *m = (const v41_model *)h->model;
    const di_state_layout *layout = di_model_layout(h->model);
    const di_state_view *view = di_state_get_view(s);
    float value[64];
    for (uint32_t l = 0; l < h->config.num_hidden_layers; l++) {
        const int parts[2] = {m->layers[l].global_part, m->layers[l].keys_part};
        for (int p = 0; p < 2 && parts[p] >= 0; p++) {
            const di_state_part *part = &layout->parts[parts[p]];
            size_t n = p ? h->config.index_head_dim : h->config.head_dim, count = PROMPT / part->tokens_per_entry;
            char name[64];
            snprintf(name, sizeof name, "ref.%u.%s", l, p ? "ikey" : "global");
            di_golden_array want = di_golden_get(golden, name);
            assert_int_equal(want.count, count * n);
            remember(name);
            for (size_t i = 0; i < count; i++) { /* 40 positions lie in the first page */
                const uint8_t *entry = di_cpu_at(di_buffer_at(view->pages[0], part->offset + i * part->entry_bytes));
                decode_packed(entry, n, p == 0, value);
                expect_f32(name, value, (const float *)want.data + i * n, n);
            }
        }
    }
}

static void check_engram_rows(void) {
    const v41_model *m = (const v41_model *)h->model;
    int32_t compressed[PROMPT];
    for (size_t t = 0; t < PROMPT; t++) compressed[t] = m->engram.token_map[ids[t]];
    for (uint32_t i = 0; i < h->config.engram_layer_count; i++) {
        int64_t rows[PROMPT * 8];
        char name[64];
        snprintf(name, sizeof name, "ref.%u.engram_rows", h->config.engram_layers[i]);
        v41_engram_rows(&m->engram, i, compressed, 0, PROMPT, rows);
        di_golden_array want = di_golden_get(golden, name);
        assert_int_equal(want.count, PROMPT * m->engram.columns);
        remember(name);
        assert_memory_equal(rows, want.data, want.bytes);
    }
}

static void run(size_t chunk) {
    size_t v = h->config.vocab_size;
    float *logits = calloc(PROMPT * v, sizeof *logits);
    assert_non_null(logits);
    di_state *s = di_harness_state(h, PROMPT);
    di_model_set_trace(h->model, on_trace, NULL);
    for (first_row = 0; first_row < PROMPT; first_row += chunk) {
        size_t count = PROMPT - first_row < chunk ? PROMPT - first_row : chunk;
        di_harness_feed(h, s, ids + first_row, count, 0, true, logits + first_row * v);
    }
    first_row = 0;
    di_model_set_trace(h->model, NULL, NULL);
    check_floats("ref.logits", logits, DI_DTYPE_F32, PROMPT, v);
    check_pages(s);
    check_engram_rows();
    di_state_free(s);
    free(logits);
}

static void whole_prompt(void **state) {
    (void)state;
    seen_count = 0;
    run(PROMPT);
    /* nothing of the file was left out */
    size_t arrays = 0;
    const di_json *all = di_json_get(parse(NANO "/golden/manifest.json"), "arrays");
    for (const di_json *array = all->first; array; array = array->next) {
        if (!di_json_string_is(di_json_get(array, "file"), "layers_ref.bin")) continue;
        bool found = false;
        for (size_t i = 0; i < seen_count; i++) found = found || strcmp(seen[i], array->key) == 0;
        if (!found) fail_msg("%s was not compared", array->key);
        arrays++;
    }
    assert_int_equal(arrays, seen_count);
    print_message("%zu arrays\n", arrays);
}

static void chunks_of_seven(void **state) {
    (void)state;
    run(7);
}

static void token_by_token(void **state) {
    (void)state;
    run(1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_prompt),
        cmocka_unit_test(chunks_of_seven),
        cmocka_unit_test(token_by_token),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
