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
#include "model/model_internal.h"

static di_memory_plan plan_of(const di_model_config *config, const di_checkpoint *checkpoint, bool compact, bool draft,
                              uint32_t rows) {
    const di_plan_options options = {.context = 1000,
                                     .max_seqs = 3,
                                     .max_rows = rows,
                                     .compact = compact,
                                     .draft = draft,
                                     .available = (uint64_t)1 << 40};
    di_memory_plan plan;
    di_memory_plan_make(config, checkpoint, &options, &plan);
    return plan;
}

/* The head's buffers, and its weights: all of the budget's part, moved out of what is not loaded. */
static void check_draft(di_harness *h, const di_memory_plan *plan) {
    di_memory_plan off = plan_of(&h->config, h->checkpoint, false, false, 64);
    di_plan_budget budget;
    di_budget_make(&h->config, &budget);
    assert_int_equal(off.unused - plan->unused, budget.part_bytes[DI_PART_DRAFT]);
    assert_true(plan->rolling > off.rolling && plan->owned > off.owned && plan->tables > off.tables &&
                plan->step > off.step);
    di_draft *draft = NULL;
    di_error error = {0};
    assert_int_equal(di_draft_new(h->model, plan->max_seqs, &draft, &error), DI_OK);
    assert_int_equal(plan->draft, draft->memory_bytes);
    di_draft_free(draft);
}

static void check_model(const char *folder, bool compact, bool draft) {
    di_harness *h = di_harness_open(folder, &(di_harness_options){.max_rows = 64, .compact = compact, .draft = draft});
    di_memory_plan plan = plan_of(&h->config, h->checkpoint, compact, draft, 64);
    if (draft) check_draft(h, &plan);
    assert_int_equal(plan.draft != 0, draft);
    const di_state_layout *layout = di_model_layout(h->model);
    assert_int_equal(plan.rolling, layout->rolling_bytes);
    assert_int_equal(plan.page, layout->page_bytes);
    assert_int_equal(plan.page_tokens, layout->page_tokens);
    assert_int_equal(plan.sequence, layout->rolling_bytes + (1000 + 63) / 64 * layout->page_bytes);
    assert_int_equal(plan.sequences, 3 * plan.sequence);
    assert_int_equal(plan.total, plan.mapped + plan.tables + plan.owned + plan.sequences + plan.step + plan.draft +
                                     plan.workspace + plan.program);
    assert_true(plan.fits && plan.sequences_that_fit > 3);
    /* every stored byte is mapped, a table, repacked or not loaded */
    uint64_t repacked_from = di_checkpoint_bytes(h->checkpoint) - plan.mapped - plan.tables - plan.unused;
    assert_true(plan.owned >= repacked_from && plan.owned < repacked_from + repacked_from / 10);
    di_harness_close(h);
}

static void layout_is_the_models(void **state) {
    (void)state;
    for (int mode = 0; mode < 3; mode++) { /* plain, compact, with the draft head */
        check_model(DI_TEST_DATA "/nano", mode == 1, mode == 2);
        check_model(DI_SOURCE_DIR "/models/tiny", mode == 1, mode == 2);
    }
}

/* The kernels' workspace after the largest steps, against the plan. */
/* All blocks at once; the experts of the head take from the same workspace. */
static void draft_blocks(di_harness *h, di_state *state, uint32_t blocks) {
    di_draft *draft = NULL;
    di_error error = {0};
    assert_int_equal(di_draft_new(h->model, blocks, &draft, &error), DI_OK);
    uint32_t length = di_draft_length(h->model);
    di_draft_entry *entries = calloc(blocks, sizeof *entries);
    int32_t *tokens = calloc((size_t)blocks * length, sizeof *tokens);
    float *confidences = calloc((size_t)blocks * length, sizeof *confidences);
    assert_true(entries && tokens && confidences);
    for (uint32_t i = 0; i < blocks; i++) entries[i] = (di_draft_entry){.state = di_state_get_view(state), .anchor = 9};
    assert_int_equal(di_model_draft(h->model, draft, entries, blocks, length, tokens, confidences, &error), DI_OK);
    free(entries);
    free(tokens);
    free(confidences);
    di_draft_free(draft);
}

static void check_workspace(const char *folder, uint32_t rows, uint32_t blocks) {
    enum { CONTEXT = 1000 };
    di_harness *h = di_harness_open(
        folder, &(di_harness_options){
                    .kernels = di_harness_best_kernels(), .threads = 2, .max_rows = rows, .draft = blocks != 0});
    int32_t ids[CONTEXT];
    for (int i = 0; i < CONTEXT; i++) ids[i] = 8 + i * 7 % 600;
    di_state *state = di_harness_state(h, CONTEXT);
    float *logits = calloc(h->config.vocab_size, sizeof *logits);
    assert_non_null(logits);
    di_harness_feed(h, state, ids, CONTEXT, rows, false, logits);
    if (blocks) draft_blocks(h, state, blocks);
    const di_cpu *cpu = (const di_cpu *)h->backend;
    uint64_t held = 0;
    for (const di_cpu_chunk *chunk = cpu->workspace; chunk; chunk = chunk->next) held += chunk->bytes;
    const di_plan_options options = {.context = CONTEXT,
                                     .max_seqs = blocks ? blocks : 1,
                                     .max_rows = rows,
                                     .draft = blocks != 0,
                                     .available = (uint64_t)1 << 40};
    di_memory_plan plan;
    di_memory_plan_make(&h->config, h->checkpoint, &options, &plan);
    print_message("%s, %u rows, %u blocks: %.2f MB held, %.2f MB planned\n", strrchr(folder, '/') + 1, rows, blocks,
                  (double)held / 1e6, (double)plan.workspace / 1e6);
    assert_true(plan.workspace >= held - held / 10 && plan.workspace <= held + held / 10 + ((uint64_t)1 << 20));
    free(logits);
    di_state_free(state);
    di_harness_close(h);
}

static void workspace_is_the_kernels(void **state) {
    (void)state;
    check_workspace(DI_TEST_DATA "/nano", 64, 0);
    check_workspace(DI_TEST_DATA "/nano", 256, 0);
    check_workspace(DI_SOURCE_DIR "/models/tiny", 256, 0);
    check_workspace(DI_SOURCE_DIR "/models/tiny", 500, 0);
    check_workspace(DI_TEST_DATA "/nano", 64, 3);
    check_workspace(DI_SOURCE_DIR "/models/tiny", 32, 32); /* drafts are more rows than a step */
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
