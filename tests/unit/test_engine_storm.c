/* needs: engine */
/* labels: long
 * Storms of submissions, cancels, deadlines and dropped handles: nothing is left behind, and nobody else notices. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine_internal.h"
#include "support/gate.h"
#include "support/requests.h"

#define NANO DI_TEST_DATA "/nano"

/* ---------------------------------------------------------------- storms */

enum { THREADS = 4, HELD = 12 };

typedef struct storm {
    di_engine *engine;
    uint32_t seed, events;
    uint64_t submitted, refused, finished, failed;
} storm;

static di_job random_job(di_dice *dice) {
    uint32_t length = 1 + di_roll(dice, di_roll(dice, 8) ? 30 : 260);
    di_job job = di_greedy_job(di_walk(1 + di_roll(dice, 9), length), length, di_roll(dice, 12));
    static const char *const tenants[] = {NULL, "a", "b", "c"};
    job.priority = (int32_t)di_roll(dice, 5) - 2;
    job.tenant = tenants[di_roll(dice, 4)];
    job.sampling.temperature = di_roll(dice, 2) ? 1 : 0;
    if (!di_roll(dice, 4)) job.sampling.n = 1 + (int32_t)di_roll(dice, 4);
    if (!di_roll(dice, 6)) job.deadline_ms = 1 + di_roll(dice, 30);
    if (!di_roll(dice, 8)) job.sampling.logprobs = (int32_t)di_roll(dice, 100);
    if (!di_roll(dice, 12)) job.sampling.prompt_logprobs = 2;
    return job;
}

static void check_end(storm *s, const di_event *event) {
    if (event->kind != DI_EVENT_DONE) return;
    s->finished++;
    if (event->status != DI_OK && event->status != DI_ERR_CANCELLED && event->status != DI_ERR_DEADLINE) s->failed++;
}

static void one_event(storm *s, di_dice *dice, di_request **held) {
    di_request **place = &held[di_roll(dice, HELD)];
    di_event event;
    uint32_t kind = di_roll(dice, 16);
    if (!*place) {
        di_job job = random_job(dice);
        di_status status;
        *place = di_submit_job(s->engine, &job, &status, NULL);
        s->submitted += status == DI_OK;
        s->refused += status != DI_OK;
        if (status != DI_OK && status != DI_ERR_QUEUE_FULL && status != DI_ERR_LIMIT) s->failed++;
    } else if (kind < 9) {
        bool last = false;
        for (int i = 0; i < 30 && !last && di_request_next(*place, kind < 2 ? 2 : 0, &event); i++) {
            check_end(s, &event);
            last = event.kind == DI_EVENT_DONE;
        }
        if (!last) return;
        di_request_free(*place);
        *place = NULL;
    } else if (kind < 11) {
        di_request_cancel(*place);
    } else if (kind < 12) {
        di_request_free(*place);
        *place = NULL;
    } else if (kind == 12 && !di_roll(dice, 4)) {
        uint32_t count = 1 + di_roll(dice, 80);
        di_status status = di_score(s->engine, di_walk(3, count), count, NULL, NULL, NULL, NULL);
        if (status != DI_OK && status != DI_ERR_QUEUE_FULL) s->failed++;
    } else if (kind == 13) {
        usleep(di_roll(dice, 2000));
    }
}

static void *run_storm(void *arg) {
    storm *s = arg;
    di_dice dice = {s->seed};
    di_request *held[HELD] = {0};
    for (uint32_t i = 0; i < s->events; i++) one_event(s, &dice, held);
    for (int i = 0; i < HELD; i++) di_request_free(held[i]);
    return NULL;
}

static void storm_over(di_engine *engine, uint32_t seed, uint32_t events) {
    storm storms[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        storms[i] = (storm){.engine = engine, .seed = seed * 100 + i, .events = events / THREADS};
        assert_int_equal(pthread_create(&threads[i], NULL, run_storm, &storms[i]), 0);
    }
    uint64_t submitted = 0, refused = 0;
    for (uint32_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(storms[i].failed, 0);
        submitted += storms[i].submitted;
        refused += storms[i].refused;
    }
    di_assert_idle(engine);
    print_message("%u events: %llu requests, %llu refused, %llu preemptions\n", events, (unsigned long long)submitted,
                  (unsigned long long)refused, (unsigned long long)di_engine_counter(engine, DI_COUNT_PREEMPTIONS));
}

/* Resident pages of this process. */
static long resident(void) {
    long size = 0, pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return 0;
    if (fscanf(file, "%ld %ld", &size, &pages) != 2) pages = 0;
    fclose(file);
    return pages;
}

static void storms_leave_nothing_behind(void **state) {
    (void)state;
    static const di_option settings[][7] = {
        {{"kv-ram", "least"},
         {"swap-ram", "200K"},
         {"context", "600"},
         {"cache-ram", "500K"},
         {"max-seqs", "8"},
         {"max-queue", "38"},
         {"spec", "auto"}},
        {{"kv-ram", "least"},
         {"swap-ram", "0"},
         {"context", "400"},
         {"cache-ram", "0"},
         {"max-seqs", "16"},
         {"max-queue", "64"},
         {"spec", "off"}},
        {{"kv-ram", "0"},
         {"swap-ram", "1G"},
         {"context", "600"},
         {"cache-ram", "8M"},
         {"max-seqs", "4"},
         {"max-rows", "16"},
         {"spec", "5"}},
    };
    uint32_t events = di_test_long() ? 100000 : di_test_slow() ? 150 : 100000 / 9 + 1; /* of one of nine storms */
    for (uint32_t i = 0; i < 3; i++) {
        di_engine *engine = di_open_with(NANO, settings[i], 7);
        storm_over(engine, 7 * i + 1, events);
        long before = resident();
        storm_over(engine, 7 * i + 2, events);
        storm_over(engine, 7 * i + 3, events);
        long grown = resident() - before;
        print_message("resident pages grew by %ld\n", grown);
        if (!di_test_slow())
            assert_true(grown <
                        4096); /* 16 MiB: what arenas of four threads and caches of the library may still take */
        /* Memory is one of a kind: a request after the storm is as one before it. */
        di_job job = di_greedy_job(di_walk(1, 90), 90, 8);
        di_outcome first, second;
        di_run_job(engine, &job, &first);
        di_run_job(engine, &job, &second);
        di_assert_same(&first, &second, "after the storm");
        di_close(engine);
    }
}

/* ---------------------------------------------------------------- closing */

typedef struct listener {
    di_engine *engine;
    di_request *request;
    di_outcome outcome;
    di_status status;
    atomic_bool begun;
} listener;

static void *listen(void *arg) {
    listener *l = arg;
    di_drain(l->request, &l->outcome);
    return NULL;
}

static bool begin(void *arg, size_t row, const float *logits) {
    listener *l = arg;
    (void)row;
    (void)logits;
    atomic_store(&l->begun, true);
    return true;
}

static void *listen_to_score(void *arg) {
    listener *l = arg;
    l->status = di_score(l->engine, di_walk(4, 4000), 4000, begin, l, NULL, NULL);
    return NULL;
}

static void closing_in_a_storm_wakes_every_reader(void **state) {
    (void)state;
    static const di_option few[] = {{"kv-ram", "least"}, {"max-seqs", "6"}, {"context", "4096"}};
    static const di_option many[] = {{"kv-ram", "0"}, {"max-seqs", "16"}, {"context", "4096"}};
    for (uint32_t round = 0; round < (di_test_slow() ? 4 : 12); round++) {
        di_engine *engine = di_open_with(NANO, round % 2 ? many : few, 3);
        listener listeners[10] = {0}, score = {.engine = engine};
        pthread_t threads[10], scorer;
        di_dice dice = {round + 1};
        for (int i = 0; i < 10; i++) {
            di_job job = random_job(&dice);
            job.sampling.max_tokens = 3000;
            job.sampling.n = 1;
            job.deadline_ms = 0;
            listeners[i].request = di_submit_job(engine, &job, NULL, NULL);
            assert_int_equal(pthread_create(&threads[i], NULL, listen, &listeners[i]), 0);
        }
        assert_int_equal(pthread_create(&scorer, NULL, listen_to_score, &score), 0);
        while (round % 2 && !atomic_load(&score.begun)) usleep(200);
        /* A score that is not under way must not be sent to an engine that is gone. */
        while (di_engine_counter(engine, DI_COUNT_REQUESTS_SUBMITTED) < 11) usleep(200);
        usleep(di_roll(&dice, 4000));
        di_close(engine);
        pthread_join(scorer, NULL);
        assert_int_equal(score.status, DI_ERR_CANCELLED);
        for (int i = 0; i < 10; i++) {
            pthread_join(threads[i], NULL);
            assert_int_equal(listeners[i].outcome.status, DI_ERR_CANCELLED);
            assert_int_equal(listeners[i].outcome.reason, DI_FINISH_CANCELLED);
        }
    }
}

/* ---------------------------------------------------------------- every state, every event */

typedef enum life { QUEUED, PREFILL, DECODE, SWAPPED, FINISHED, LIVES } life;
typedef enum event_kind { CANCEL, DEADLINE, DROP, CLOSE, FAILURE, PREEMPT, NOTHING, EVENTS } event_kind;
enum { POISON = 650 };

static bool over(di_engine *engine, uint64_t finished) {
    return di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) >= finished;
}

/* Lets steps through until the next one stands or `finished` requests are over. */
static void next_step(di_engine *engine, uint64_t finished) {
    while (!di_gate_wait(5, NULL))
        if (over(engine, finished)) return;
    di_gate_pass();
}

static void pass_until_token(di_engine *engine, di_request *request, di_outcome *outcome, uint64_t finished) {
    di_event event;
    while (!outcome->tokens[0] && !over(engine, finished)) {
        next_step(engine, finished);
        while (di_request_next(request, 1, &event)) di_take_event(outcome, &event);
    }
    while (!di_gate_wait(5, NULL) && !over(engine, finished)) {
    }
}

/* Brings a request into a state, with the next step of the engine standing at the gate. *other runs beside it. */
static di_request *bring_to(di_engine *engine, life state, di_job *job, di_request **other, di_outcome *outcome,
                            di_outcome *others) {
    di_job blocker = di_greedy_job(di_walk(9, 20), 20, 40);
    *other = NULL;
    di_gate_open(false);
    if (state == QUEUED) {
        blocker.priority = 3;
        *other = di_submit_job(engine, &blocker, NULL, NULL);
        assert_true(di_gate_wait(20000, NULL));
    }
    di_request *request = di_submit_job(engine, job, NULL, NULL);
    if (state == PREFILL) {
        for (int i = 0; i < 2; i++) next_step(engine, 1);
        while (!di_gate_wait(5, NULL) && !over(engine, 1)) {
        } /* over: its deadline was faster */
    }
    if (state >= DECODE) pass_until_token(engine, request, outcome, 1);
    if (state == SWAPPED) {
        blocker.priority = 3;
        *other = di_submit_job(engine, &blocker, NULL, NULL);
        pass_until_token(engine, *other, others, 1);
        if (!over(engine, 1)) assert_true(di_engine_counter(engine, DI_COUNT_PREEMPTIONS) > 0);
    }
    if (state == FINISHED) {
        di_gate_open(true);
        while (!over(engine, 1)) usleep(200);
    }
    return request;
}

static void drive(life state, event_kind event, const di_outcome *expected) {
    static const di_option options[] = {{"max-seqs", "1"}, {"chunk", "24"}, {"cache-ram", "0"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_gate_on(engine, true);
    int32_t ids[150], forced[] = {-1, -1, -1, POISON};
    memcpy(ids, di_walk(8, 150), sizeof ids);
    if (event == FAILURE) ids[149] = POISON;
    di_job job = di_greedy_job(ids, 150, 12);
    if (event == FAILURE && state >= DECODE) {
        ids[149] = di_walk(8, 150)[149];
        job.sampling.golden_token_ids = forced;
        job.sampling.golden_token_count = 4;
    }
    if (event == FAILURE) di_gate_poison(POISON);
    if (event == DEADLINE) job.deadline_ms = 60;
    di_outcome outcome = {0}, others = {0};
    di_request *other, *request = bring_to(engine, state, &job, &other, &outcome, &others), *high = NULL;
    if (event == CANCEL) di_request_cancel(request);
    if (event == DEADLINE) usleep(70000);
    if (event == PREEMPT) {
        di_job intruder = di_greedy_job(di_walk(10, 25), 25, 3);
        intruder.priority = 9;
        high = di_submit_job(engine, &intruder, NULL, NULL);
    }
    if (event == DROP) di_request_free(request);
    di_gate_open(true);
    if (event == CLOSE) {
        di_gate_close(engine);
        engine = NULL;
    }
    if (event != DROP) di_drain(request, &outcome);
    static const di_status statuses[EVENTS] = {DI_ERR_CANCELLED, DI_ERR_DEADLINE, DI_OK, DI_ERR_CANCELLED,
                                               DI_ERR_NUMERIC};
    di_status wanted = statuses[event];
    bool ended = outcome.status == wanted;
    /* Closing lets what is already computed go out; a finished one has ended well unless its deadline was first. */
    if (state == FINISHED && event != FAILURE) ended |= outcome.status == DI_OK;
    if (event != DROP && !ended)
        fail_msg("state %d, event %d: status %s, expected %s", state, event, di_status_name(outcome.status),
                 di_status_name(wanted));
    if (event != DROP && outcome.status == DI_OK) di_assert_same(expected, &outcome, "not ended from outside");
    if (event != DROP && outcome.status != DI_OK) assert_true(outcome.finished[0]);
    if (other) di_drain(other, &others);
    if (other && event != CLOSE) assert_int_equal(others.status, DI_OK);
    di_outcome highs = {0};
    if (high) di_drain(high, &highs);
    if (high) assert_int_equal(highs.status, DI_OK);
    if (!engine) return;
    di_assert_idle(engine);
    assert_int_equal(di_engine_gauge(engine, DI_GAUGE_PAGES_USED), 0);
    di_gate_close(engine);
}

static void every_event_in_every_state(void **state) {
    (void)state;
    di_outcome expected;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_job job = di_greedy_job(di_walk(8, 150), 150, 12);
    di_run_job(engine, &job, &expected);
    di_close(engine);
    for (int s = 0; s < LIVES; s++)
        for (int e = 0; e < EVENTS; e++) drive((life)s, (event_kind)e, &expected);
}

/* ---------------------------------------------------------------- limits */

static void a_full_queue_refuses_and_counts(void **state) {
    (void)state;
    static const di_option options[] = {{"max-queue", "3"}, {"max-seqs", "1"}, {"context", "300"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_gate_on(engine, true);
    di_job job = di_greedy_job(di_walk(1, 20), 20, 4);
    di_request *requests[4];
    requests[0] = di_submit_job(engine, &job, NULL, NULL);
    assert_true(di_gate_wait(20000, NULL)); /* it has left the queue */
    for (int i = 1; i < 4; i++) requests[i] = di_submit_job(engine, &job, NULL, NULL);
    di_status status;
    di_error error;
    for (uint64_t i = 1; i <= 5; i++) {
        assert_null(di_submit_job(engine, &job, &status, &error));
        assert_int_equal(status, DI_ERR_QUEUE_FULL);
        assert_string_equal(error.param, "max-queue");
        assert_int_equal(di_engine_counter(engine, DI_COUNT_REQUESTS_REFUSED), i);
    }
    assert_int_equal(di_score(engine, di_walk(1, 20), 20, NULL, NULL, NULL, &error), DI_ERR_QUEUE_FULL);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_REQUESTS_REFUSED), 6);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_LIMITS), 0);
    job.count = 301;
    assert_null(di_submit_job(engine, &job, &status, &error));
    assert_int_equal(status, DI_ERR_CONTEXT_LENGTH);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_LIMITS), 1);
    /* A cancelled one makes room as soon as the engine looks at it. */
    di_request_free(requests[3]);
    di_gate_open(true);
    for (int i = 0; i < 3; i++) {
        di_outcome outcome = {0};
        di_drain(requests[i], &outcome);
        assert_int_equal(outcome.status, DI_OK);
    }
    di_assert_idle(engine);
    di_gate_close(engine);
}

/* The reader of one request never reads: it gives its place up, everybody else goes on, and it loses nothing. */
static void a_reader_that_does_not_read_stops_nobody(void **state) {
    (void)state;
    static const di_option options[][3] = {{{"max-seqs", "1"}, {"swap-ram", "1G"}, {"cache-ram", "0"}},
                                           {{"max-seqs", "8"}, {"kv-ram", "least"}, {"context", "400"}}};
    for (int i = 0; i < 2; i++) {
        di_engine *engine = di_open_with(NANO, options[i], 3);
        engine->event_limit = 30000;
        di_job job = di_greedy_job(di_walk(1, 100), 100, 60), other = di_greedy_job(di_walk(2, 250), 250, 20);
        job.sampling.logprobs = 200;
        job.priority = 2;
        di_outcome expected, got = {0}, others;
        di_run_job(engine, &job, &expected);
        di_request *mute = di_submit_job(engine, &job, NULL, NULL);
        for (int k = 0; k < 5; k++) {
            di_run_job(engine, &other, &others);
            assert_int_equal(others.status, DI_OK);
        }
        uint64_t waiting = di_events_waiting(&mute->events);
        assert_true(waiting >= 30000 && waiting < 30000 + 8000);
        di_drain(mute, &got);
        di_assert_same(&expected, &got, "read late");
        di_assert_idle(engine);
        di_close(engine);
    }
}

/* Two texts that fill the pool together are scored one after the other, not never. */
typedef struct score_job {
    di_engine *engine;
    uint32_t seed, count;
    uint64_t hash;
    di_status status;
} score_job;

static void *run_score(void *arg) {
    score_job *job = arg;
    job->status = di_score(job->engine, di_walk(job->seed, job->count), job->count, NULL, NULL, &job->hash, NULL);
    return NULL;
}

static void scores_that_do_not_fit_together_take_turns(void **state) {
    (void)state;
    static const di_option options[][4] = {
        {{"kv-ram", "least"}, {"context", "700"}, {"swap-ram", "0"}, {"cache-ram", "0"}},
        {{"kv-ram", "least"}, {"context", "700"}, {"swap-ram", "1G"}, {"cache-ram", "1M"}}};
    for (int i = 0; i < 2; i++) {
        di_engine *engine = di_open_with(NANO, options[i], 4);
        uint64_t expected[5];
        for (uint32_t k = 0; k < 5; k++)
            assert_int_equal(di_score(engine, di_walk(k, 640), 640, NULL, NULL, &expected[k], NULL), DI_OK);
        score_job jobs[5];
        pthread_t threads[5];
        for (uint32_t k = 0; k < 5; k++) {
            jobs[k] = (score_job){.engine = engine, .seed = k, .count = 640};
            assert_int_equal(pthread_create(&threads[k], NULL, run_score, &jobs[k]), 0);
        }
        di_job job = di_greedy_job(di_walk(6, 300), 300, 5);
        job.priority = 1; /* moves scores out of its way */
        di_outcome outcome;
        di_run_job(engine, &job, &outcome);
        assert_int_equal(outcome.status, DI_OK);
        for (int k = 0; k < 5; k++) {
            pthread_join(threads[k], NULL);
            assert_int_equal(jobs[k].status, DI_OK);
            assert_true(jobs[k].hash == expected[k]);
        }
        di_assert_idle(engine);
        di_close(engine);
    }
}

/* Samples for which there is no page when the prompt ends are made later. */
static void samples_without_a_page_are_made_later(void **state) {
    (void)state;
    di_outcome expected, got[3] = {0};
    di_job job = di_greedy_job(di_walk(1, 65), 65, 60);
    job.sampling.n = 6;
    job.sampling.temperature = 1;
    job.sampling.has_seed = true;
    job.sampling.seq_seed = 3;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_run_job(engine, &job, &expected);
    di_close(engine);
    static const di_option options[] = {{"kv-ram", "least"}, {"context", "800"}, {"swap-ram", "0"}, {"cache-ram", "0"}};
    engine = di_open_with(NANO, options, 4); /* 14 pages; six samples take 12 at their ends */
    di_request *requests[3];
    for (int i = 0; i < 3; i++) requests[i] = di_submit_job(engine, &job, NULL, NULL);
    for (int i = 0; i < 3; i++) {
        di_drain(requests[i], &got[i]);
        di_assert_same(&expected, &got[i], "few pages");
    }
    di_assert_idle(engine);
    di_close(engine);
}

/* ---------------------------------------------------------------- damage */

static void nan_fails_only_its_own_request(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_gate_on(engine, false);
    di_job job = di_greedy_job(di_walk(1, 70), 70, 10);
    di_outcome expected, got[4] = {0}, bad = {0};
    di_run_job(engine, &job, &expected);
    di_gate_poison(POISON);
    int32_t ids[70], forced[] = {-1, -1, POISON};
    memcpy(ids, job.ids, sizeof ids);
    for (uint32_t at = 0; at < 3; at++) {
        /* In the last row of the prompt; as a token of the answer; in every sample. */
        static const uint32_t places[] = {69, 70, 70};
        memcpy(ids, job.ids, sizeof ids);
        di_job damaged = di_greedy_job(ids, 70, 10);
        if (places[at] < 70)
            ids[places[at]] = POISON;
        else
            damaged.sampling.golden_token_ids = forced, damaged.sampling.golden_token_count = 3;
        damaged.sampling.n = at == 2 ? 3 : 1;
        di_request *requests[4], *wrong;
        di_gate_open(false);
        for (int i = 0; i < 2; i++) requests[i] = di_submit_job(engine, &job, NULL, NULL);
        wrong = di_submit_job(engine, &damaged, NULL, NULL);
        for (int i = 2; i < 4; i++) requests[i] = di_submit_job(engine, &job, NULL, NULL);
        di_gate_open(true);
        bad = (di_outcome){0};
        di_drain(wrong, &bad);
        assert_int_equal(bad.status, DI_ERR_NUMERIC);
        assert_int_equal(bad.reason, DI_FINISH_ERROR);
        assert_string_equal(bad.error.param, "logits");
        assert_int_equal(bad.tokens[0], places[at] < 70 ? 0 : 3);
        assert_int_equal(di_engine_counter(engine, DI_COUNT_NUMERIC_FAULTS), at + 1);
        for (int i = 0; i < 4; i++) {
            got[i] = (di_outcome){0};
            di_drain(requests[i], &got[i]);
            di_assert_same(&expected, &got[i], "beside NaN");
        }
    }
    ids[33] = POISON;
    assert_int_equal(di_score(engine, ids, 70, NULL, NULL, NULL, NULL), DI_ERR_NUMERIC);
    /* The weights are whole again: nothing of the damage stayed. */
    di_gate_poison(-1);
    di_run_job(engine, &job, &got[0]);
    di_assert_same(&expected, &got[0], "after NaN");
    di_assert_idle(engine);
    di_gate_close(engine);
}

/* Pages are taken from the device 64 at a time. When it has no more, who needs one fails, and nobody else. */
static void no_memory_for_pages_fails_who_needs_one(void **state) {
    (void)state;
    enum { JOBS = 2 };
    static const di_option options[] = {
        {"context", "4096"}, {"cache-ram", "0"}, {"max-rows", "128"}, {"max-gap", "60000"}};
    di_engine *engine = di_open_with(NANO, options, 4);
    di_outcome alone[JOBS], got[JOBS] = {0};
    di_job jobs[JOBS];
    di_gate_on(engine, false);
    di_gate_open(true);
    for (uint32_t i = 0; i < JOBS; i++) {
        uint32_t count = i ? 1700 : 2500; /* 27 pages beside 40, which go on for long */
        jobs[i] = di_greedy_job(di_walk(i, count), count, i ? 5 : 400);
        jobs[i].priority = 1 - (int32_t)i;
        di_run_job(engine, &jobs[i], &alone[i]);
    }
    di_assert_idle(engine);
    di_request *requests[JOBS];
    di_gate_open(false);
    for (int i = 0; i < JOBS; i++) requests[i] = di_submit_job(engine, &jobs[i], NULL, NULL);
    for (int i = 0; i < 4; i++) { /* both are let in */
        assert_true(di_gate_wait(20000, NULL));
        di_gate_pass();
    }
    di_gate_deny(true);
    di_gate_open(true);
    for (int i = 0; i < JOBS; i++) di_drain(requests[i], &got[i]);
    di_assert_same(&alone[0], &got[0], "beside one that got no memory");
    assert_int_equal(got[1].status, DI_ERR_MEMORY);
    assert_string_equal(got[1].error.param, "kv-ram");
    got[0] = (di_outcome){0};
    di_run_job(engine, &jobs[0], &got[0]); /* not even a state for it */
    assert_int_equal(got[0].status, DI_ERR_MEMORY);
    di_gate_deny(false);
    got[0] = (di_outcome){0};
    di_run_job(engine, &jobs[0], &got[0]);
    di_assert_same(&alone[0], &got[0], "when there is memory again");
    di_assert_idle(engine);
    di_gate_close(engine);
}

typedef struct lines {
    pthread_mutex_t mutex;
    uint32_t stalls;
} lines;

static void count_line(void *arg, di_log_level level, const char *line) {
    lines *l = arg;
    pthread_mutex_lock(&l->mutex);
    l->stalls += level == DI_LOG_ERROR && strstr(line, "--stall-ms") != NULL;
    pthread_mutex_unlock(&l->mutex);
}

static void a_step_that_does_not_end_is_noticed(void **state) {
    (void)state;
    lines seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    di_log *log = di_log_new(DI_LOG_WARN, count_line, &seen);
    di_config *config = di_config_new();
    di_engine *engine = NULL;
    di_error error = {0};
    assert_int_equal(di_config_set(config, "stall-ms", "40", DI_CONFIG_FLAG, &error), DI_OK);
    assert_int_equal(di_config_set(config, "spec", "off", DI_CONFIG_FLAG, &error), DI_OK);
    assert_int_equal(di_engine_open(NANO, config, log, &engine, &error), DI_OK);
    di_job job = di_greedy_job(di_walk(1, 30), 30, 6);
    di_outcome expected, got = {0};
    di_gate_on(engine, false);
    di_run_job(engine, &job, &expected);
    uint64_t before = di_engine_counter(engine, DI_COUNT_STALLS);
    di_gate_open(false);
    di_request *request = di_submit_job(engine, &job, NULL, NULL);
    for (uint32_t round = 1; round <= 2; round++) {
        assert_true(di_gate_wait(20000, NULL));
        for (int i = 0; i < 2000 && di_engine_counter(engine, DI_COUNT_STALLS) < before + round; i++) usleep(5000);
        assert_int_equal(di_engine_counter(engine, DI_COUNT_STALLS), before + round);
        usleep(60000); /* once a step */
        assert_int_equal(di_engine_counter(engine, DI_COUNT_STALLS), before + round);
        di_gate_pass();
    }
    di_gate_open(true);
    di_drain(request, &got);
    di_assert_same(&expected, &got, "after a stall");
    pthread_mutex_lock(&seen.mutex);
    assert_true(seen.stalls >= 2);
    pthread_mutex_unlock(&seen.mutex);
    di_gate_close(engine);
    di_config_free(config);
    di_log_free(log);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_event_in_every_state),
        cmocka_unit_test(a_full_queue_refuses_and_counts),
        cmocka_unit_test(a_reader_that_does_not_read_stops_nobody),
        cmocka_unit_test(scores_that_do_not_fit_together_take_turns),
        cmocka_unit_test(samples_without_a_page_are_made_later),
        cmocka_unit_test(nan_fails_only_its_own_request),
        cmocka_unit_test(no_memory_for_pages_fails_who_needs_one),
        cmocka_unit_test(a_step_that_does_not_end_is_noticed),
        cmocka_unit_test(closing_in_a_storm_wakes_every_reader),
        cmocka_unit_test(storms_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
