/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Golden tests of the embedded model: reference sums bit-equal by row hashes, production arithmetic teacher-forced
 * against the reference-sums run. */
#include "support/golden.h"
#include "support/harness.h"
#include "support/refsums.h"
#include "support/sha256.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TINY   DI_SOURCE_DIR "/models/tiny"
#define GOLDEN DI_TEST_DATA "/tiny_golden"

enum { STEPS = 64, MAX_PROMPT = 1024, COMPACT_STEPS = 8, WINDOW = 64 };

static di_golden *golden;
static const di_json *prompts;

static int setup(void **state) {
    (void)state;
    golden = di_golden_open(GOLDEN);
    prompts = di_golden_json(golden, "prompts.json");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    di_golden_close(golden);
    return 0;
}

/* Logits that the 64 golden tokens are chosen from: rows [STEPS][V]. */
static void run_teacher_forced(di_harness *h, const di_json *prompt, float *rows) {
    int32_t ids[MAX_PROMPT], greedy[STEPS];
    size_t count = di_golden_ids(di_json_get(prompt, "ids"), ids, MAX_PROMPT), v = h->config.vocab_size;
    di_golden_ids(di_json_get(di_json_get(prompt, "ref"), "greedy"), greedy, STEPS);
    di_state *s = di_harness_state(h, (uint32_t)count + STEPS);
    di_harness_feed(h, s, ids, count, 0, false, rows);
    for (size_t i = 0; i + 1 < STEPS; i++) di_harness_feed(h, s, &greedy[i], 1, 0, false, rows + (i + 1) * v);
    di_state_free(s);
}

static void check_hashes(const di_json *prompt, const float *rows, size_t v) {
    const di_json *ref = di_json_get(prompt, "ref"), *hash = di_json_get(ref, "row_sha256")->first;
    int32_t greedy[STEPS];
    di_golden_ids(di_json_get(ref, "greedy"), greedy, STEPS);
    for (size_t i = 0; i < STEPS; i++, hash = hash->next) {
        char hex[17];
        di_sha256_hex(rows + i * v, v * sizeof(float), hex, 16);
        if (strcmp(hex, hash->text) != 0)
            fail_msg("%s: row %zu hashes to %s, golden %s", prompt->key, i, hex, hash->text);
        assert_int_equal(di_harness_argmax(rows + i * v, v), greedy[i]);
    }
}

static double compare(const di_json *prompt, const float *got, const float *want, size_t v) {
    const di_json *ref = di_json_get(prompt, "ref");
    const di_json *std = di_json_get(ref, "std")->first, *gap = di_json_get(ref, "gap")->first;
    double squares = 0;
    for (size_t i = 0; i < STEPS; i++, std = std->next, gap = gap->next) {
        double sigma, distance;
        assert_true(di_json_double(std, &sigma) && di_json_double(gap, &distance));
        for (size_t j = 0; j < v; j++) {
            double error = (got[i * v + j] - want[i * v + j]) / sigma;
            squares += error * error;
        }
        if (distance / sigma > 0.25)
            assert_int_equal(di_harness_argmax(got + i * v, v), di_harness_argmax(want + i * v, v));
    }
    return sqrt(squares / (double)(v * STEPS));
}

static void reference_hashes_and_production_error(void **state) {
    (void)state;
    di_harness *reference = di_harness_open(TINY, &(di_harness_options){.kernels = &di_refsums, .threads = 2});
    di_harness *production =
        di_harness_open(TINY, &(di_harness_options){.kernels = di_harness_best_kernels(), .threads = 2});
    size_t v = reference->config.vocab_size;
    float *want = malloc(STEPS * v * sizeof *want), *got = malloc(STEPS * v * sizeof *got);
    for (const di_json *prompt = prompts->first; prompt; prompt = prompt->next) {
        run_teacher_forced(reference, prompt, want);
        check_hashes(prompt, want, v);
        run_teacher_forced(production, prompt, got);
        double rms = compare(prompt, got, want, v);
        print_message("%-16s rms error %.4f of the row's std\n", prompt->key, rms);
        assert_true(rms <= 0.15);
    }
    free(want);
    free(got);
    di_harness_close(reference);
    di_harness_close(production);
}

static void compact_prefill_is_bit_equal(void **state) {
    (void)state;
    di_harness *h = di_harness_open(
        TINY, &(di_harness_options){.kernels = &di_refsums, .threads = 2, .compact = true, .keep = WINDOW});
    size_t v = h->config.vocab_size, seen = 0;
    float *logits = malloc(v * sizeof *logits);
    for (const di_json *prompt = prompts->first; prompt; prompt = prompt->next) {
        const di_json *expected = di_json_get(prompt, "compact_a_greedy");
        if (!expected) continue;
        seen++;
        int32_t ids[MAX_PROMPT], greedy[COMPACT_STEPS];
        size_t count = di_golden_ids(di_json_get(prompt, "ids"), ids, MAX_PROMPT);
        assert_int_equal(di_golden_ids(expected, greedy, COMPACT_STEPS), COMPACT_STEPS);
        char name[64];
        snprintf(name, sizeof name, "compact_a.%s.last", prompt->key);
        di_state *s = di_harness_state(h, (uint32_t)count + STEPS);
        di_harness_feed(h, s, ids, count, 100, false, logits);
        assert_memory_equal(logits, di_golden_f32(golden, name, NULL), v * sizeof *logits);
        for (size_t i = 0; i < COMPACT_STEPS; i++) {
            assert_int_equal(di_harness_argmax(logits, v), greedy[i]);
            di_harness_feed(h, s, &greedy[i], 1, 0, false, logits);
        }
        di_state_free(s);
    }
    assert_int_equal(seen, 7);
    free(logits);
    di_harness_close(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_hashes_and_production_error),
        cmocka_unit_test(compact_prefill_is_bit_equal),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
