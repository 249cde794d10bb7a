/* needs: engine */
/* The model of step time: what it learns, and how many prompt rows it lets beside running requests. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/schedule.h"

/* A machine that takes 5 ms for a step, 1 ms for a decode row, 0.5 ms for a prompt row and 0.2 ms more for each 4096
 * positions before it. */
static double truth(const di_step_load *load) {
    return 0.005 + 0.001 * load->decode_rows + load->prompt_rows * (0.0005 + 0.0002 * load->prompt_context / 4096);
}

static void learn(di_step_model *model, int steps) {
    for (int i = 0; i < steps; i++) {
        di_step_load load = {.decode_rows = (uint32_t)(i * 7 % 60), .prompt_rows = (uint32_t)(i * 13 % 90)};
        load.prompt_context = load.prompt_rows ? i * 311 % 16000 : 0;
        double noise = 1 + (i * 29 % 11 - 5) * 0.004;
        di_step_model_observe(model, &load, truth(&load) * noise);
    }
}

static void learns(void **state) {
    (void)state;
    di_step_model model = {0};
    learn(&model, 400);
    const di_step_load loads[] = {{1, 0, 0}, {50, 0, 0}, {4, 64, 8000}, {0, 90, 100}};
    for (int i = 0; i < 4; i++) {
        double predicted = di_step_model_predict(&model, &loads[i]), is = truth(&loads[i]);
        if (fabs(predicted / is - 1) > 0.1) fail_msg("load %d: %g seconds, learned %g", i, is, predicted);
    }
}

static void first_steps_are_careful(void **state) {
    (void)state;
    di_step_model model = {0};
    assert_int_equal(di_step_model_budget(&model, 0, 0, 0.1, 256), 16);
    assert_int_equal(di_step_model_budget(&model, 0, 0, 0.1, 5), 5);
}

static void steps_stay_within_the_gap(void **state) {
    (void)state;
    di_step_model model = {0};
    learn(&model, 400);
    for (uint32_t decode = 0; decode < 80; decode += 7) {
        for (int context = 0; context < 16000; context += 4000) {
            uint32_t rows = di_step_model_budget(&model, decode, context, 0.1, 256);
            const di_step_load load = {decode, rows, context};
            assert_true(rows >= 1 && truth(&load) < 0.1);
            /* and prompts use what is left */
            assert_true(rows == 256 || truth(&load) > 0.05);
        }
    }
    assert_int_equal(di_step_model_budget(&model, 0, 0, 100, 256), 256);
}

/* With more running requests than the gap holds, twice their step is allowed, and prompts still end. */
static void prompts_are_not_starved(void **state) {
    (void)state;
    di_step_model model = {0};
    learn(&model, 400);
    assert_true(di_step_model_gap(&model, 4, 0) == 0.1);
    assert_true(di_step_model_gap(&model, 4, 250) == 0.25);
    double gap = di_step_model_gap(&model, 200, 0);
    assert_true(gap > 0.38 && gap < 0.45);
    uint32_t rows = di_step_model_budget(&model, 200, 0, gap, 256);
    assert_true(rows > 150);
    rows = di_step_model_budget(&model, 200, 0, 0.1, 256); /* --max-gap 100 cannot be kept */
    assert_true(rows > 20 && rows < 60);
}

/* Long prompts alone say nothing about short ones: what was known of them stays. */
static void long_prompts_do_not_unlearn(void **state) {
    (void)state;
    di_step_model model = {0};
    learn(&model, 200);
    for (int i = 0; i < 2000; i++) {
        di_step_load load = {
            .decode_rows = 4, .prompt_rows = (uint32_t)(20 + i % 30), .prompt_context = 14000 + i % 1000};
        di_step_model_observe(&model, &load, truth(&load) * (1 + (i * 29 % 11 - 5) * 0.04));
    }
    const di_step_load load = {4, 200, 85};
    double predicted = di_step_model_predict(&model, &load), is = truth(&load);
    if (fabs(predicted / is - 1) > 0.3) fail_msg("%g seconds, learned %g", is, predicted);
}

/* Where steps sometimes take four times as long as they should, they are planned shorter; later that is forgotten. */
static void noise_is_planned_for(void **state) {
    (void)state;
    di_step_model model = {0};
    learn(&model, 400);
    uint32_t quiet = di_step_model_budget(&model, 4, 0, 0.1, 256);
    const di_step_load load = {4, 60, 0};
    di_step_model_observe(&model, &load, 4 * truth(&load));
    uint32_t noisy = di_step_model_budget(&model, 4, 0, 0.1, 256);
    const di_step_load next = {4, noisy, 0};
    assert_true(noisy < quiet && 4 * truth(&next) < 0.12);
    learn(&model, 400);
    assert_in_range(di_step_model_budget(&model, 4, 0, 0.1, 256), quiet - 5, quiet + 5);
}

/* The gap follows the number of running requests at once, also when every step holds prompt rows. */
static void decode_steps_beside_prompts(void **state) {
    (void)state;
    di_step_model model = {0};
    for (uint32_t i = 0; i < 100; i++) {
        di_step_load load = {.decode_rows = i * 2, .prompt_rows = 1 + i % 5};
        di_step_model_observe(&model, &load, truth(&load));
    }
    assert_true(di_step_model_gap(&model, 200, 0) > 0.3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(learns),
        cmocka_unit_test(first_steps_are_careful),
        cmocka_unit_test(steps_stay_within_the_gap),
        cmocka_unit_test(prompts_are_not_starved),
        cmocka_unit_test(long_prompts_do_not_unlearn),
        cmocka_unit_test(noise_is_planned_for),
        cmocka_unit_test(decode_steps_beside_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
