/* needs: engine base */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <math.h>

#include "engine/schedule.h"

/* A machine whose steps cost what the model can express, with a little noise that repeats. */
static double machine(const di_step_load *load, uint32_t step) {
    double seconds = 0.002 + 0.0004 * load->decode_rows + 0.0001 * load->prompt_rows +
                     0.00005 * load->prompt_rows * load->prompt_context / 4096;
    return seconds * (1 + 0.02 * ((step * 37 % 11) / 5.0 - 1));
}

static di_step_load varied(uint32_t step) {
    return (di_step_load){.decode_rows = step * 7 % 33,
                          .prompt_rows = step % 3 ? 0 : step * 13 % 200,
                          .prompt_context = step * 101 % 8000};
}

static void the_fit_converges(void **state) {
    (void)state;
    di_step_model model = {0};
    for (uint32_t step = 0; step < 600; step++) {
        di_step_load load = varied(step);
        di_step_model_observe(&model, &load, machine(&load, step));
    }
    for (uint32_t step = 0; step < 50; step++) {
        di_step_load load = varied(step * 3 + 1);
        double expected = machine(&load, 5), predicted = di_step_model_predict(&model, &load);
        assert_true(fabs(predicted - expected) < 0.1 * expected);
    }
}

/* A machine that becomes three times slower is known as such in the end. */
static void the_fit_follows(void **state) {
    (void)state;
    di_step_model model = {0};
    for (uint32_t step = 0; step < 4500; step++) {
        di_step_load load = varied(step);
        di_step_model_observe(&model, &load, machine(&load, step) * (step < 1500 ? 1 : 3));
    }
    di_step_load load = {.decode_rows = 8, .prompt_rows = 64, .prompt_context = 1000};
    assert_true(fabs(di_step_model_predict(&model, &load) - 3 * machine(&load, 5)) < 0.3 * machine(&load, 5));
}

static void the_budget_is_at_least_one_row_and_monotone(void **state) {
    (void)state;
    di_step_model model = {0};
    for (uint32_t step = 0; step <= 600; step++) {
        for (uint32_t most = 1; most < 4000; most = most * 3 + 1) {
            uint32_t before = 0;
            for (double target = 0; target < 1; target = target * 1.7 + 0.001) { /* more time, not fewer rows */
                uint32_t budget = di_step_model_budget(&model, 8, 2000, target, most);
                assert_true(budget >= 1 && budget <= most && budget >= before);
                before = budget;
            }
            before = most;
            for (uint32_t rows = 0; rows < 300; rows += 29) { /* more company, not more rows, while there is time */
                uint32_t budget = di_step_model_budget(&model, rows, 2000, 0.3, most);
                assert_true(budget >= 1 && budget <= before);
                before = budget;
            }
            before = most;
            for (double context = 0; context < 1e6; context = context * 4 + 100) { /* longer context, not more */
                uint32_t budget = di_step_model_budget(&model, 8, context, 0.05, most);
                assert_true(budget >= 1 && budget <= before);
                before = budget;
            }
        }
        di_step_load load = varied(step);
        di_step_model_observe(&model, &load, machine(&load, step));
    }
}

static void a_budget_keeps_a_step_within_the_gap(void **state) {
    (void)state;
    di_step_model model = {0};
    for (uint32_t step = 0; step < 600; step++) {
        di_step_load load = varied(step);
        di_step_model_observe(&model, &load, machine(&load, step));
    }
    for (uint32_t decode = 0; decode < 60; decode += 6) {
        di_step_load load = {.decode_rows = decode, .prompt_context = 4000};
        load.prompt_rows = di_step_model_budget(&model, decode, 4000, 0.08, 65536);
        assert_true(load.prompt_rows > 1);
        assert_true(machine(&load, 5) < 0.08);
    }
    /* Nothing fits: prompts go on all the same, for a small part of the step. */
    di_step_load late = {.decode_rows = 1000, .prompt_context = 4000};
    double base = machine(&late, 5);
    late.prompt_rows = di_step_model_budget(&model, 1000, 4000, 0.01, 65536);
    assert_true(late.prompt_rows >= 1 && machine(&late, 5) < 1.25 * base);
}

/* Observations that no machine makes do not leave a model that never plans anything, or everything for ever. */
static void strange_observations_do_no_harm(void **state) {
    (void)state;
    static const double seconds[] = {3600, 0, 1e6, 1e-9, 3600, 0.01}; /* a laptop sleeps during a step */
    di_step_model model = {0};
    for (uint32_t step = 0; step < 300; step++) {
        di_step_load load = step % 5 ? varied(step) : (di_step_load){0};
        bool strange = step % 25 == 24;
        di_step_model_observe(&model, &load, strange ? seconds[step / 25 % 6] : machine(&load, step));
        uint32_t budget = di_step_model_budget(&model, 4, 100, 0.1, 256);
        assert_true(budget >= 1 && budget <= 256);
        di_step_load some = {.decode_rows = 4, .prompt_rows = 10, .prompt_context = 100};
        double predicted = di_step_model_predict(&model, &some);
        assert_true(isfinite(predicted) && predicted >= 0);
    }
    for (uint32_t step = 0; step < 1500; step++) {
        di_step_load load = varied(step);
        di_step_model_observe(&model, &load, machine(&load, step));
    }
    di_step_load load = {.decode_rows = 8, .prompt_rows = 64, .prompt_context = 1000};
    assert_true(fabs(di_step_model_predict(&model, &load) - machine(&load, 5)) < 0.3 * machine(&load, 5));
}

static void the_gap_is_what_was_asked_for(void **state) {
    (void)state;
    di_step_model model = {0};
    assert_true(di_step_model_gap(&model, 4, 250) == 0.25);
    assert_true(di_step_model_gap(&model, 4, 0) == 0.1);
    for (uint32_t i = 0; i < 400; i++) {
        di_step_load load = {.decode_rows = 1 + i % 8, .prompt_rows = i % 3 ? 0 : 50};
        di_step_model_observe(&model, &load, 0.04 * load.decode_rows + 0.02 * load.prompt_rows);
    }
    assert_true(di_step_model_gap(&model, 1, 0) == 0.1);
    assert_true(fabs(di_step_model_gap(&model, 4, 0) - 0.32) < 0.02);
    assert_true(fabs(di_step_model_gap(&model, 8, 0) - 0.64) < 0.04);
    assert_true(di_step_model_gap(&model, 8, 7) == 0.007);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fit_converges),
        cmocka_unit_test(the_fit_follows),
        cmocka_unit_test(the_budget_is_at_least_one_row_and_monotone),
        cmocka_unit_test(a_budget_keeps_a_step_within_the_gap),
        cmocka_unit_test(strange_observations_do_no_harm),
        cmocka_unit_test(the_gap_is_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
