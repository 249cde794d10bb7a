/* needs: engine */
/* What other threads see of the engine at work: a step that hangs, readers that are behind, live requests, cancels. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "support/gate.h"
#include "support/requests.h"

#define NANO DI_TEST_DATA "/nano"

typedef struct listed {
    uint32_t count;
    struct {
        char id[16], state[16];
        di_live_request request;
    } items[8];
} listed;

static void keep(void *arg, const di_live_request *request) {
    listed *list = arg;
    assert_true(list->count < 8);
    strncpy(list->items[list->count].id, request->id, 15);
    strncpy(list->items[list->count].state, request->state, 15);
    list->items[list->count++].request = *request;
}

static listed list_of(di_engine *engine) {
    listed list = {0};
    assert_int_equal(di_engine_each_request(engine, keep, &list, NULL), DI_OK);
    return list;
}

static di_request *submit(di_engine *engine, const char *id, uint32_t walk, int64_t tokens) {
    di_job job = di_greedy_job(di_walk(walk, 40), 40, tokens);
    job.id = id;
    return di_submit_job(engine, &job, NULL, NULL);
}

static void finish(di_request *request) {
    di_outcome outcome = {0};
    di_drain(request, &outcome);
    assert_int_equal(outcome.status, DI_OK);
}

static void assert_nothing_to_see(di_engine *engine) {
    di_assert_idle(engine);
    di_engine_progress p = di_engine_get_progress(engine);
    assert_int_equal(p.waiting + p.running + p.swapped + p.sequences, 0);
    assert_true(p.stuck_ms == 0 && p.step_ms == 0 && p.oldest_waiting_ms == 0);
    assert_int_equal(list_of(engine).count, 0);
}

static void a_step_that_hangs_shows_and_passes(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "2"}, {"max-gap", "50"}};
    di_engine *engine = di_open_with(NANO, options, 2);
    assert_int_equal(di_engine_get_progress(engine).since_step_ms, -1);
    di_gate_on(engine, false);
    finish(submit(engine, "first", 1, 20));
    assert_nothing_to_see(engine);
    usleep(120000);
    assert_int_equal(di_engine_get_progress(engine).stuck_ms, 0); /* nothing to do is no fault */
    assert_true(di_engine_get_progress(engine).since_step_ms >= 100);

    di_request *requests[4];
    static const char *const ids[] = {"a", "b", "c", "d"};
    di_gate_open(false);
    for (int i = 0; i < 2; i++) requests[i] = submit(engine, ids[i], (uint32_t)i + 2, 20);
    assert_true(di_gate_wait(20000, NULL));
    for (int i = 2; i < 4; i++) requests[i] = submit(engine, ids[i], (uint32_t)i + 2, 20);
    int64_t start = di_now_ns();
    di_engine_progress p;
    do {
        usleep(1000);
        p = di_engine_get_progress(engine);
    } while (p.stuck_ms <= 2 * p.step_budget_ms && di_now_ns() - start < 20000000000);
    int64_t took = (di_now_ns() - start) / 1000000;
    assert_true(p.stuck_ms > 2 * p.step_budget_ms);
    assert_true(p.step_budget_ms >= 50 && p.step_ms >= p.step_budget_ms);
    assert_true(took >= p.step_budget_ms);
    assert_int_equal(p.waiting + p.running, 4);
    assert_int_equal(p.swapped, 0);
    uint64_t steps = p.steps;
    /* The list waits for no step. */
    listed list = list_of(engine);
    assert_int_equal(list.count, 4);
    for (uint32_t i = 0; i < 4; i++) {
        const di_live_request *r = &list.items[i].request;
        assert_string_equal(list.items[i].id, ids[i]);
        assert_int_equal(r->prompt_tokens, 40);
        assert_int_equal(r->max_tokens, 20);
        assert_int_equal(r->completion_tokens, 0);
        assert_true(r->age_ms > 0 && r->samples == 1 && r->preemptions == 0);
        assert_string_equal(list.items[i].state, i ? list.items[i].state : "prefill");
    }
    assert_string_equal(list.items[3].state, "queued");
    assert_true(di_engine_get_progress(engine).oldest_waiting_ms > 0);

    di_gate_open(true);
    while (di_engine_get_progress(engine).steps == steps) usleep(500);
    for (int i = 0; i < 4; i++) finish(requests[i]);
    assert_nothing_to_see(engine);
    di_gate_close(engine);
}

static void a_hanging_engine_stays_so_when_more_comes(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_gate_on(engine, true);
    di_request *one = submit(engine, "one", 1, 3);
    assert_true(di_gate_wait(20000, NULL));
    usleep(100000);
    int64_t stuck = di_engine_get_progress(engine).stuck_ms;
    assert_true(stuck >= 90);
    di_request *two = submit(engine, "two", 2, 3);
    assert_true(di_engine_get_progress(engine).stuck_ms >= stuck);
    di_gate_open(true);
    finish(one);
    finish(two);
    di_gate_close(engine);
}

static void readers_that_are_behind_are_no_fault(void **state) {
    (void)state;
    static const di_option options[] = {{"limit-event-bytes", "65536"}};
    di_engine *engine = di_open_with(NANO, options, 1);
    di_request *request = submit(engine, "slow", 1, 1500);
    int64_t worst = 0;
    uint64_t steps;
    do { /* until it runs no more */
        steps = di_engine_get_progress(engine).steps;
        usleep(di_test_slow() ? 1500000 : 300000);
    } while (di_engine_get_progress(engine).steps != steps);
    for (int i = 0; i < 3000; i++) {
        di_engine_progress p = di_engine_get_progress(engine);
        assert_int_equal(p.running + p.waiting + p.swapped, 1);
        if (p.stuck_ms > worst) worst = p.stuck_ms;
        usleep(1000);
    }
    /* It looks again every 50 ms; on a machine that is busy with other work, less often. */
    assert_true(worst < 2000);
    di_live_request seen = list_of(engine).items[0].request;
    assert_true(seen.completion_tokens > 50 && seen.completion_tokens < 1500);
    finish(request);
    assert_nothing_to_see(engine);
    di_close(engine);
}

static di_request *volatile cancelled_by_signal;

static void on_signal(int number) {
    (void)number;
    di_request_cancel(cancelled_by_signal);
}

static void *sleep_as_engine(void *arg) {
    bool stopping = false;
    int64_t start = di_now_ns();
    assert_null(di_hub_take(arg, true, 60000, &stopping));
    return di_now_ns() - start < 30000000000 ? arg : NULL;
}

/* Not at the next of its regular looks: at once, also from a signal handler. */
static void a_cancel_wakes_a_sleeping_engine(void **state) {
    (void)state;
    signal(SIGUSR1, on_signal);
    for (int i = 0; i < 2; i++) {
        di_hub *hub = di_hub_new(NULL);
        assert_non_null(hub);
        di_request request = {.hub = hub};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, sleep_as_engine, hub), 0);
        usleep(50000); /* asleep by now, most likely; a cancel that comes first must not be lost either */
        cancelled_by_signal = &request;
        if (i)
            di_request_cancel(&request);
        else
            raise(SIGUSR1);
        void *woken = NULL;
        pthread_join(thread, &woken);
        assert_ptr_equal(woken, hub);
        assert_true(request.cancelled);
        di_hub_release(hub);
    }
    signal(SIGUSR1, SIG_DFL);
}

/* Nobody waits for a step to end: who comes is let in beside it, who is cancelled is told. */
static void what_comes_during_a_step_is_heard_in_it(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_gate_on(engine, true);
    di_job first = di_greedy_job(di_walk(1, 20), 20, 8), second = di_greedy_job(di_walk(2, 30), 30, 8);
    di_request *one = di_submit_job(engine, &first, NULL, NULL);
    assert_true(di_gate_wait(60000, NULL));
    di_request *two = di_submit_job(engine, &second, NULL, NULL);
    di_event event;
    assert_true(di_request_next(two, 60000, &event));
    assert_int_equal(event.kind, DI_EVENT_PROMPT);
    di_request *const both[] = {two, one}; /* the step holds rows of the second one */
    for (int i = 0; i < 2; i++) {
        di_request_cancel(both[i]);
        do assert_true(di_request_next(both[i], 60000, &event));
        while (event.kind != DI_EVENT_DONE);
        assert_int_equal(event.status, DI_ERR_CANCELLED);
    }
    assert_int_equal(di_gate_steps(), 1);
    assert_true(di_gate_wait(0, NULL)); /* it still stands */
    di_request_free(one);
    di_request_free(two);
    di_gate_open(true);
    di_assert_idle(engine);
    di_gate_close(engine);
}

/* The step that ends a prompt chooses for every sample, of bias, counts and masks that belong to each. */
static void samples_of_a_cancelled_prompt_stay_while_a_step_reads_them(void **state) {
    (void)state;
    static const di_logit_bias bias = {.token_id = 50, .bias = 3};
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_gate_on(engine, true);
    di_job job = di_greedy_job(di_walk(1, 4), 4, 8);
    job.sampling.n = 3;
    job.sampling.min_tokens = 2;
    job.sampling.repetition_penalty = 1.5f;
    job.sampling.logit_bias = &bias;
    job.sampling.logit_bias_count = 1;
    job.sampling.ignore_eos = false;
    for (int grammar = 0; grammar < 2; grammar++) {
        if (grammar) {
            job.sampling.min_tokens = 0;
            job.sampling.so_args.schema_type = "json_object";
        }
        di_request *request = di_submit_job(engine, &job, NULL, NULL);
        di_gate_step step;
        di_event event;
        assert_true(di_gate_wait(60000, &step));
        assert_int_equal(step.rows, 4);
        di_request_cancel(request);
        do assert_true(di_request_next(request, 60000, &event));
        while (event.kind != DI_EVENT_DONE);
        for (int i = 0; i < 3; i++) assert_non_null(request->sequences[i].sampler);
        for (int i = 0; i < 3; i++) assert_int_equal(request->sequences[i].constraint.mask != NULL, grammar);
        di_gate_pass();
        di_assert_idle(engine);
        for (int i = 0; i < 3; i++) assert_null(request->sequences[i].sampler);
        di_request_free(request);
    }
    di_gate_close(engine);
}

/* ---------------------------------------------------------------- closing */

typedef struct late_wake {
    di_hub *hub;
    atomic_bool called;
    unsigned references; /* when it was over */
} late_wake;

static void wake_late(void *arg) {
    late_wake *wake = arg;
    atomic_store(&wake->called, true);
    for (int i = 0; i < 60000 && atomic_load(&wake->hub->references) > 2; i++) usleep(1000); /* the request's goes */
    usleep(100000); /* an engine that does not wait is closed by now */
    wake->references = atomic_load(&wake->hub->references);
    di_hub_wake(wake->hub);
}

/* The step is known to be done before the compute thread has said so: it may still be at it when the engine closes. */
static void the_hub_outlives_who_wakes_it(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    late_wake wake = {.hub = engine->hub};
    atomic_fetch_add(&engine->hub->references, 1);
    di_compute_on_done(engine->compute, wake_late, &wake);
    di_request *request = submit(engine, "a", 1, 1); /* one step: a second would wait for this one's thread */
    while (!atomic_load(&wake.called)) usleep(1000);
    di_request_free(request);
    di_close(engine);
    assert_int_equal(wake.references, 2); /* the engine's, and the one of this test */
    di_hub_release(wake.hub);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_that_hangs_shows_and_passes),
        cmocka_unit_test(a_hanging_engine_stays_so_when_more_comes),
        cmocka_unit_test(readers_that_are_behind_are_no_fault),
        cmocka_unit_test(a_cancel_wakes_a_sleeping_engine),
        cmocka_unit_test(what_comes_during_a_step_is_heard_in_it),
        cmocka_unit_test(samples_of_a_cancelled_prompt_stay_while_a_step_reads_them),
        cmocka_unit_test(the_hub_outlives_who_wakes_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
