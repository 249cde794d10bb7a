/* The memory plan of `inspect` against what a loaded model really takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/harness.h"

#include "cli/inspect_plan.c"

static di_memory_plan plan_of(const di_model_config *config, const di_checkpoint *checkpoint, bool compact,
                              uint32_t rows) {
    const di_plan_options options = {
        .context = 1000, .max_seqs = 3, .max_rows = rows, .compact = compact, .available = (uint64_t)1 << 40};
    di_memory_plan plan;
    di_memory_plan_make(config, checkpoint, &options, &plan);
    return plan;
}

static void check_model(const char *folder, bool compact) {
    di_harness *h = di_harness_open(folder, &(di_harness_options){.max_rows = 64, .compact = compact});
    di_memory_plan plan = plan_of(&h->config, h->checkpoint, compact, 64);
    const di_state_layout *layout = di_model_layout(h->model);
    assert_int_equal(plan.rolling, layout->rolling_bytes);
    assert_int_equal(plan.page, layout->page_bytes);
    assert_int_equal(plan.page_tokens, layout->page_tokens);
    assert_int_equal(plan.sequence, layout->rolling_bytes + (1000 + 63) / 64 * layout->page_bytes);
    assert_int_equal(plan.sequences, 3 * plan.sequence);
    assert_int_equal(plan.total, plan.mapped + plan.tables + plan.owned + plan.sequences + plan.step + plan.workspace +
                                     plan.program);
    assert_true(plan.fits && plan.sequences_that_fit > 3);
    /* every stored byte is mapped, a table, repacked or not loaded */
    uint64_t repacked_from = di_checkpoint_bytes(h->checkpoint) - plan.mapped - plan.tables - plan.unused;
    assert_true(plan.owned >= repacked_from && plan.owned < repacked_from + repacked_from / 10);
    di_harness_close(h);
}

static void layout_is_the_models(void **state) {
    (void)state;
    check_model(DI_TEST_DATA "/nano", false);
    check_model(DI_TEST_DATA "/nano", true);
    check_model(DI_SOURCE_DIR "/models/tiny", false);
    check_model(DI_SOURCE_DIR "/models/tiny", true);
}

/* The kernels' workspace after the largest steps, against the plan. */
static void check_workspace(const char *folder, uint32_t rows) {
    enum { CONTEXT = 1000 };
    di_harness *h = di_harness_open(
        folder, &(di_harness_options){.kernels = di_harness_best_kernels(), .threads = 2, .max_rows = rows});
    int32_t ids[CONTEXT];
    for (int i = 0; i < CONTEXT; i++) ids[i] = 8 + i * 7 % 600;
    di_state *state = di_harness_state(h, CONTEXT);
    float *logits = calloc(h->config.vocab_size, sizeof *logits);
    assert_non_null(logits);
    di_harness_feed(h, state, ids, CONTEXT, rows, false, logits);
    const di_cpu *cpu = (const di_cpu *)h->backend;
    uint64_t held = 0;
    for (const di_cpu_chunk *chunk = cpu->workspace; chunk; chunk = chunk->next) held += chunk->bytes;
    const di_plan_options options = {
        .context = CONTEXT, .max_seqs = 1, .max_rows = rows, .available = (uint64_t)1 << 40};
    di_memory_plan plan;
    di_memory_plan_make(&h->config, h->checkpoint, &options, &plan);
    print_message("%s, %u rows: %.2f MB held, %.2f MB planned\n", strrchr(folder, '/') + 1, rows, (double)held / 1e6,
                  (double)plan.workspace / 1e6);
    assert_true(plan.workspace >= held - held / 10 && plan.workspace <= held + held / 10 + ((uint64_t)1 << 20));
    free(logits);
    di_state_free(state);
    di_harness_close(h);
}

static void workspace_is_the_kernels(void **state) {
    (void)state;
    check_workspace(DI_TEST_DATA "/nano", 64);
    check_workspace(DI_TEST_DATA "/nano", 256);
    check_workspace(DI_SOURCE_DIR "/models/tiny", 256);
    check_workspace(DI_SOURCE_DIR "/models/tiny", 500);
}

static void context_follows_memory(void **state) {
    (void)state;
    di_model_config config;
    di_error error = {0};
    assert_int_equal(di_model_config_load(DI_SOURCE_DIR "/models/tiny", &config, &error), DI_OK);
    di_plan_options options = {.max_seqs = 1, .max_rows = 64};
    di_memory_plan plan;
    di_memory_plan_make(&config, NULL, &options, &plan); /* memory unknown: the model's maximum */
    assert_int_equal(plan.context, 16384);
    assert_false(plan.fits);
    options.available = (uint64_t)1 << 40;
    di_memory_plan_make(&config, NULL, &options, &plan);
    assert_int_equal(plan.context, 16384);
    options.available = plan.mapped + plan.tables + plan.owned + 1000000;
    di_memory_plan_make(&config, NULL, &options, &plan);
    assert_true(plan.context > 0 && plan.context < 16384);
    assert_int_equal(plan.sequences_that_fit, 0);
    options.available = 1000; /* hopeless: what the maximum would need */
    di_memory_plan_make(&config, NULL, &options, &plan);
    assert_int_equal(plan.context, 16384);
    assert_int_equal(plan.sequences_that_fit, 0);
}

static void looks_at_the_machine(void **state) {
    (void)state;
    di_machine machine;
    di_machine_look(DI_TEST_DATA, &machine);
    assert_true(machine.cores >= 1);
    assert_true(machine.memory > 0 && machine.available > 0 && machine.available <= machine.memory);
    assert_true(machine.disk_free > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_is_the_models),
        cmocka_unit_test(workspace_is_the_kernels),
        cmocka_unit_test(context_follows_memory),
        cmocka_unit_test(looks_at_the_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
