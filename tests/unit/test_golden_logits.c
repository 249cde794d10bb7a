/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Whole-model golden tests of nano: reference sums bit-equal, production arithmetic within the loose figures. */
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

#define NANO DI_TEST_DATA "/nano"

static const char *const LENGTHS[] = {"1", "2", "15", "16", "17", "40", "129", "300"};
enum { LENGTH_COUNT = sizeof LENGTHS / sizeof LENGTHS[0], STEPS = 64, MAX_PROMPT = 512 };

static di_golden *golden;
static const di_json *prompts;

static int setup(void **state) {
    (void)state;
    golden = di_golden_open(NANO "/golden");
    prompts = di_golden_json(golden, "prompts.json");
    return 0;
}

static int teardown(void **state) {
    (void)state;
    di_golden_close(golden);
    return 0;
}

static void assert_equal_bits(const float *got, const float *want, size_t n, const char *what, size_t row) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], 4) != 0)
            fail_msg("%s, row %zu, element %zu: got %.9g, golden %.9g", what, row, i, (double)got[i], (double)want[i]);
}

static void reference_sums_are_bit_equal(void **state) {
    (void)state;
    di_harness *h = di_harness_open(NANO, &(di_harness_options){.kernels = &di_refsums, .threads = 2});
    size_t v = h->config.vocab_size;
    float *logits = malloc(v * sizeof *logits);
    int32_t ids[MAX_PROMPT], greedy[STEPS];
    for (size_t p = 0; p < LENGTH_COUNT; p++) {
        const di_json *prompt = di_json_get(prompts, LENGTHS[p]);
        size_t count = di_golden_ids(di_json_get(prompt, "ids"), ids, MAX_PROMPT);
        assert_int_equal(di_golden_ids(di_json_get(di_json_get(prompt, "ref"), "greedy"), greedy, STEPS), STEPS);
        char name[64];
        snprintf(name, sizeof name, "ref.%s.last", LENGTHS[p]);
        di_state *s = di_harness_state(h, 512);
        di_harness_feed(h, s, ids, count, p % 2 ? 7 : 0, false, logits);
        assert_equal_bits(logits, di_golden_f32(golden, name, NULL), v, name, 0);
        snprintf(name, sizeof name, "ref.%s.greedy", LENGTHS[p]);
        const float *rows = di_golden_f32(golden, name, NULL);
        for (size_t i = 0; i < STEPS; i++) {
            assert_equal_bits(logits, rows + i * v, v, name, i);
            assert_int_equal(di_harness_argmax(logits, v), greedy[i]);
            if (i + 1 < STEPS) di_harness_feed(h, s, &greedy[i], 1, 0, false, logits);
        }
        di_state_free(s);
    }
    free(logits);
    di_harness_close(h);
}

static void compact_prefill_is_bit_equal(void **state) {
    (void)state;
    static const size_t chunks[] = {0, 1, 7, 64};
    for (size_t c = 0; c < 4; c++) {
        di_harness *h = di_harness_open(
            NANO, &(di_harness_options){.kernels = &di_refsums, .compact = true, .keep = 16, .max_rows = 320});
        size_t v = h->config.vocab_size;
        float *logits = malloc(v * sizeof *logits);
        int32_t ids[MAX_PROMPT];
        for (size_t p = 0; p < LENGTH_COUNT; p++) {
            size_t count = di_golden_ids(di_json_get(di_json_get(prompts, LENGTHS[p]), "ids"), ids, MAX_PROMPT);
            char name[64];
            snprintf(name, sizeof name, "compact_a.%s.last", LENGTHS[p]);
            di_state *s = di_harness_state(h, 512);
            di_harness_feed(h, s, ids, count, chunks[c], false, logits);
            assert_equal_bits(logits, di_golden_f32(golden, name, NULL), v, name, chunks[c]);
            di_state_free(s);
        }
        free(logits);
        di_harness_close(h);
    }
}

/* Teacher-forced on the golden ids: rms error within 3 % of the row's std, single logits within 25 %, the same argmax
 * wherever the gap exceeds 0.15 std. */
static void production_is_within_the_loose_figures(void **state) {
    (void)state;
    di_harness *h = di_harness_open(NANO, &(di_harness_options){.threads = 2});
    size_t v = h->config.vocab_size;
    float *logits = malloc(v * sizeof *logits);
    int32_t ids[MAX_PROMPT], greedy[STEPS];
    double worst_rms = 0, worst_single = 0;
    for (size_t p = 0; p < LENGTH_COUNT; p++) {
        const di_json *prompt = di_json_get(prompts, LENGTHS[p]), *ref = di_json_get(prompt, "ref");
        size_t count = di_golden_ids(di_json_get(prompt, "ids"), ids, MAX_PROMPT);
        di_golden_ids(di_json_get(ref, "greedy"), greedy, STEPS);
        char name[64];
        snprintf(name, sizeof name, "ref.%s.greedy", LENGTHS[p]);
        const float *rows = di_golden_f32(golden, name, NULL);
        const di_json *std = di_json_get(ref, "std")->first, *gap = di_json_get(ref, "gap")->first;
        double squares = 0;
        di_state *s = di_harness_state(h, 512);
        di_harness_feed(h, s, ids, count, 0, false, logits);
        for (size_t i = 0; i < STEPS; i++, std = std->next, gap = gap->next) {
            double sigma, distance;
            assert_true(di_json_double(std, &sigma) && di_json_double(gap, &distance));
            for (size_t j = 0; j < v; j++) {
                double error = (logits[j] - rows[i * v + j]) / sigma;
                squares += error * error;
                if (fabs(error) > worst_single) worst_single = fabs(error);
            }
            if (distance / sigma > 0.15) assert_int_equal(di_harness_argmax(logits, v), greedy[i]);
            if (i + 1 < STEPS) di_harness_feed(h, s, &greedy[i], 1, 0, false, logits);
        }
        double rms = sqrt(squares / (double)(v * STEPS));
        if (rms > worst_rms) worst_rms = rms;
        di_state_free(s);
    }
    print_message("production against reference sums: rms %.4f, largest single logit %.4f of the row's std\n",
                  worst_rms, worst_single);
    assert_true(worst_rms <= 0.03);
    assert_true(worst_single <= 0.25);
    free(logits);
    di_harness_close(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_sums_are_bit_equal),
        cmocka_unit_test(compact_prefill_is_bit_equal),
        cmocka_unit_test(production_is_within_the_loose_figures),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
