/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Golden tests of the draft head: speculative greedy runs of nano and tiny with reference sums, bit for bit. */
#include "support/golden.h"
#include "support/harness.h"
#include "support/refsums.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NANO        DI_TEST_DATA "/nano"
#define TINY        DI_SOURCE_DIR "/models/tiny"
#define TINY_GOLDEN DI_TEST_DATA "/tiny_golden"

enum { MAX_IDS = 1024, MAX_BLOCK = 8, MAX_DIM = 64, NANO_KEEP = 16, TINY_CYCLES = 6, TINY_LONGEST = 400 };

typedef struct run {
    di_harness *h;
    di_golden *golden;
    di_draft *draft;
    di_state *state;
    const char *name;     /* of the arrays: "129c" */
    uint32_t block, most; /* rows of a block; cycles to run */
    size_t arrays;        /* compared */
    char cycle[80];
    bool loose; /* compare `base` within the loose figures instead of bits */
    double squares, worst;
    size_t values;
} run;

static int64_t integer(const di_json *object, const char *key) {
    int64_t value = 0;
    assert_true(di_json_int64(di_json_get(object, key), &value));
    return value;
}

/* Errors of rows in units of the row's standard deviation. */
static void compare_loosely(run *r, const float *got, const float *want, size_t rows, size_t width) {
    for (size_t i = 0; i < rows; i++, got += width, want += width) {
        double mean = 0, variance = 0;
        for (size_t v = 0; v < width; v++) mean += (double)want[v] / (double)width;
        for (size_t v = 0; v < width; v++) variance += (want[v] - mean) * (want[v] - mean) / (double)width;
        for (size_t v = 0; v < width; v++) {
            double error = fabs((double)got[v] - (double)want[v]) / sqrt(variance);
            r->squares += error * error;
            if (error > r->worst) r->worst = error;
        }
    }
    r->values += rows * width;
}

static void compare(run *r, const char *what, const float *got, size_t n) {
    char name[128];
    snprintf(name, sizeof name, "%s.%s", r->cycle, what);
    if (!di_golden_has(r->golden, name)) return;
    size_t count;
    const float *want = di_golden_f32(r->golden, name, &count);
    assert_int_equal(count, n);
    r->arrays++;
    if (r->loose) {
        if (strcmp(what, "base") == 0) compare_loosely(r, got, want, r->block, n / r->block);
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s, element %zu: got %.9g, golden %.9g", name, i, (double)got[i], (double)want[i]);
}

static void look(void *arg, const char *name, di_buffer data, di_dtype dtype, uint32_t rows, uint32_t width) {
    run *r = arg;
    if (strncmp(name, "draft.", 6) != 0) return;
    size_t n = (size_t)rows * width;
    float *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++)
        values[i] = dtype == DI_DTYPE_BF16 ? di_bf16_decode(((const uint16_t *)di_cpu_at(data))[i])
                                           : ((const float *)di_cpu_at(data))[i];
    compare(r, name + 6, values, n);
    free(values);
}

static const di_state_part *draft_part(const di_harness *h, uint32_t stage) {
    const di_state_layout *layout = di_model_layout(h->model);
    char name[32];
    snprintf(name, sizeof name, "draft.%u", stage);
    for (uint32_t i = 0; i < layout->part_count; i++)
        if (strcmp(layout->parts[i].name, name) == 0) return &layout->parts[i];
    fail_msg("no part %s", name);
    return NULL;
}

/* The rings after the prompt. */
static void compare_rings(run *r) {
    const di_state_view *view = di_state_get_view(r->state);
    int32_t n = view->committed;
    uint32_t d = r->h->config.head_dim;
    for (uint32_t stage = 0; stage < r->h->config.draft_stages; stage++) {
        const di_state_part *part = draft_part(r->h, stage);
        assert_false(part->required);
        assert_true(d <= MAX_DIM);
        int32_t low = n > (int32_t)part->slots ? n - (int32_t)part->slots : 0;
        float *values = malloc((size_t)(n - low) * d * sizeof *values);
        for (int32_t p = low; p < n; p++) {
            uint8_t entry[2 * MAX_DIM];
            di_buffer from = di_buffer_at(view->rolling, part->offset + (uint64_t)p % part->slots * part->entry_bytes);
            r->h->backend->ops->read(r->h->backend, entry, from, part->entry_bytes);
            di_dequantise_q8_32(entry, entry + d, d, values + (size_t)(p - low) * d);
        }
        char what[16];
        snprintf(what, sizeof what, "ring.%u", stage);
        snprintf(r->cycle, sizeof r->cycle, "%s", r->name);
        compare(r, what, values, (size_t)(n - low) * d);
        free(values);
    }
}

static void compare_confidence(const run *r, const di_json *cycle, const float *got) {
    const di_json *item = di_json_get(cycle, "confidence_logit")->first;
    for (uint32_t j = 0; j < r->block; j++, item = item->next) {
        double want = 0;
        assert_true(item && di_json_double(item, &want));
        if (got[j] != (float)want)
            fail_msg("%s: confidence %u is %.9g, golden %.9g", r->cycle, j, (double)got[j], want);
    }
}

/* Anchor and drafts as rows; accepts drafts while they are what the target chooses. */
static void verify(run *r, const di_json *cycle, int32_t anchor, const int32_t *drafts) {
    di_harness *h = r->h;
    di_error error = {0};
    size_t v = h->config.vocab_size;
    int32_t ids[MAX_BLOCK + 1] = {anchor}, expected[MAX_BLOCK + 1], committed[MAX_BLOCK + 1];
    memcpy(ids + 1, drafts, r->block * sizeof *ids);
    di_step_entry entry = {
        .state = *di_state_get_view(r->state), .tokens = ids, .count = r->block + 1, .replay_from = -1, .taps = true};
    uint32_t index, first, accepted = 0;
    di_must(di_state_reserve(r->state, (uint32_t)di_state_length(r->state) + entry.count, &error), &error);
    di_step_clear(h->step);
    di_step_poison(h->step);
    di_must(di_step_add(h->step, &entry, &index, &first, &error), &error);
    di_harness_run_step(h);
    const float *logits = di_cpu_at(di_step_logits(h->step));
    compare(r, "verify", logits, entry.count * v);
    for (uint32_t i = 0; i <= r->block; i++) {
        committed[i] = di_harness_argmax(logits + i * v, v);
        if (i == r->block || committed[i] != drafts[i]) break;
        accepted++;
    }
    assert_int_equal(accepted, integer(cycle, "accepted"));
    /* The last run of a file may be cut at its 64th token. */
    size_t count = di_golden_ids(di_json_get(cycle, "committed"), expected, MAX_BLOCK + 1);
    assert_in_range(count, 1, accepted + 1);
    assert_memory_equal(committed, expected, count * sizeof *expected);
    di_model_commit(h->model, h->step, index, accepted + 1, di_state_get_view(r->state));
}

static void run_cycles(run *r, const di_json *cycles) {
    uint32_t number = 0;
    for (const di_json *cycle = cycles->first; cycle && number < r->most; cycle = cycle->next, number++) {
        int32_t anchor = (int32_t)integer(cycle, "anchor"), want[MAX_BLOCK], drafts[MAX_BLOCK];
        float confidence[MAX_BLOCK];
        di_error error = {0};
        snprintf(r->cycle, sizeof r->cycle, "%s.%u", r->name, number);
        assert_int_equal(di_state_length(r->state), integer(cycle, "n"));
        di_draft_entry entry = {.state = di_state_get_view(r->state), .anchor = anchor};
        di_draft_poison(r->draft);
        di_must(di_model_draft(r->h->model, r->draft, &entry, 1, r->block, drafts, confidence, &error), &error);
        assert_int_equal(di_golden_ids(di_json_get(cycle, "drafts"), want, MAX_BLOCK), r->block);
        for (uint32_t j = 0; j < r->block; j++)
            if (drafts[j] != want[j]) fail_msg("%s: draft %u is %d, golden %d", r->cycle, j, drafts[j], want[j]);
        compare_confidence(r, cycle, confidence);
        verify(r, cycle, anchor, drafts);
    }
}

static size_t run_prompt(di_harness *h, di_golden *golden, const char *name, const di_json *ids, const di_json *one,
                         size_t chunk, uint32_t most) {
    int32_t prompt[MAX_IDS];
    di_error error = {0};
    size_t count = di_golden_ids(ids, prompt, MAX_IDS);
    run r = {.h = h, .golden = golden, .name = name, .block = h->config.draft_block_size, .most = most};
    assert_true(r.block <= MAX_BLOCK);
    assert_int_equal(di_draft_length(h->model), r.block);
    di_must(di_draft_new(h->model, 1, &r.draft, &error), &error);
    r.state = di_harness_state(h, (uint32_t)count + 64 + MAX_BLOCK);
    di_harness_feed(h, r.state, prompt, count, chunk, false, NULL);
    di_model_set_trace(h->model, look, &r);
    compare_rings(&r);
    run_cycles(&r, di_json_get(one, "cycles"));
    di_model_set_trace(h->model, NULL, NULL);
    di_state_free(r.state);
    di_draft_free(r.draft);
    return r.arrays;
}

static void nano_is_bit_equal(void **state) {
    (void)state;
    di_golden *golden = di_golden_open(NANO "/golden");
    const di_json *prompts = di_golden_json(golden, "prompts.json");
    const di_json *runs = di_golden_json(golden, "dspark.json");
    size_t arrays = 0, number = 0;
    for (int compact = 0; compact < 2; compact++) {
        di_harness *h = di_harness_open(NANO, &(di_harness_options){.kernels = &di_refsums,
                                                                    .threads = 2,
                                                                    .max_rows = 320,
                                                                    .compact = compact,
                                                                    .keep = compact ? NANO_KEEP : 0,
                                                                    .draft = true});
        for (const di_json *one = runs->first; one; one = one->next) {
            if (di_json_get(one, "compact")->type != (compact ? DI_JSON_TRUE : DI_JSON_FALSE)) continue;
            const char *prompt = di_json_get(one, "prompt")->text;
            char name[32];
            snprintf(name, sizeof name, "%s%s", prompt, compact ? "c" : "");
            static const size_t chunks[] = {0, 1, 7, 64};
            arrays += run_prompt(h, golden, name, di_json_get(di_json_get(prompts, prompt), "ids"), one,
                                 chunks[number++ % 4], UINT32_MAX);
        }
        di_harness_close(h);
    }
    assert_int_equal(number, 6);
    assert_int_equal(arrays, 78);
    di_golden_close(golden);
}

static void tiny_is_bit_equal(void **state) {
    (void)state;
    di_golden *golden = di_golden_open(TINY_GOLDEN);
    const di_json *prompts = di_golden_json(golden, "prompts.json");
    const di_json *runs = di_golden_json(golden, "dspark.json");
    di_harness *h = di_harness_open(TINY, &(di_harness_options){.kernels = &di_refsums, .threads = 2, .draft = true});
    size_t arrays = 0, number = 0;
    for (const di_json *one = runs->first; one; one = one->next) {
        const char *prompt = di_json_get(one, "prompt")->text;
        const di_json *ids = di_json_get(di_json_get(prompts, prompt), "ids");
        if (integer(di_json_get(one, "cycles")->first, "n") > TINY_LONGEST) continue; /* reference sums are slow */
        arrays += run_prompt(h, golden, prompt, ids, one, 0, TINY_CYCLES);
        number++;
    }
    assert_int_equal(number, 8);
    assert_int_equal(arrays, 8);
    di_harness_close(h);
    di_golden_close(golden);
}

/* One block after every golden prompt of nano. */
static void production_is_within_the_loose_figures(void **state) {
    (void)state;
    di_golden *golden = di_golden_open(NANO "/golden");
    const di_json *prompts = di_golden_json(golden, "prompts.json");
    const di_json *runs = di_golden_json(golden, "dspark.json");
    di_harness *h = di_harness_open(
        NANO, &(di_harness_options){.kernels = di_harness_best_kernels(), .max_rows = 320, .draft = true});
    di_error error = {0};
    run r = {.h = h, .golden = golden, .block = h->config.draft_block_size, .loose = true};
    di_must(di_draft_new(h->model, 1, &r.draft, &error), &error);
    di_model_set_trace(h->model, look, &r);
    for (const di_json *one = runs->first; one; one = one->next) {
        if (di_json_is_true(di_json_get(one, "compact"))) continue;
        const di_json *cycle = di_json_get(one, "cycles")->first;
        int32_t prompt[MAX_IDS], want[MAX_BLOCK], drafts[MAX_BLOCK];
        float confidence[MAX_BLOCK];
        snprintf(r.cycle, sizeof r.cycle, "%s.0", di_json_get(one, "prompt")->text);
        size_t count =
            di_golden_ids(di_json_get(di_json_get(prompts, di_json_get(one, "prompt")->text), "ids"), prompt, MAX_IDS);
        di_state *s = di_harness_state(h, (uint32_t)count);
        di_harness_feed(h, s, prompt, count, 0, false, NULL);
        di_draft_entry entry = {.state = di_state_get_view(s), .anchor = (int32_t)integer(cycle, "anchor")};
        di_must(di_model_draft(h->model, r.draft, &entry, 1, r.block, drafts, confidence, &error), &error);
        di_golden_ids(di_json_get(cycle, "drafts"), want, MAX_BLOCK);
        assert_int_equal(drafts[0], want[0]);
        di_state_free(s);
    }
    double rms = sqrt(r.squares / (double)r.values);
    print_message("production against reference sums: rms %.4f, largest %.4f of the row's std\n", rms, r.worst);
    assert_true(r.values > 0);
    assert_true(rms <= 0.03);
    assert_true(r.worst <= 0.25);
    di_model_set_trace(h->model, NULL, NULL);
    di_draft_free(r.draft);
    di_harness_close(h);
    di_golden_close(golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_is_bit_equal),
        cmocka_unit_test(tiny_is_bit_equal),
        cmocka_unit_test(production_is_within_the_loose_figures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
