/* needs: engine */
/* Who gets which rows of which step. Nothing here looks at a clock to decide: steps are counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine_internal.h"
#include "support/gate.h"
#include "support/requests.h"
#include "support/slow.h"

#define NANO DI_TEST_DATA "/nano"

static uint32_t drain_now(di_request *request, di_outcome *outcome, int64_t wait_ms) {
    di_event event;
    while (!outcome->done && di_request_next(request, wait_ms, &event)) di_take_event(outcome, &event);
    return outcome->tokens[0];
}

/* Lets one step through and waits for the next one, or for the requests to be over. */
static bool one_step(di_engine *engine, uint64_t finished) {
    di_gate_pass();
    while (!di_gate_wait(5, NULL))
        if (di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) >= finished) return false;
    return true;
}

static void stop(di_engine *engine, di_request **requests, int count) {
    for (int i = 0; i < count; i++) di_request_free(requests[i]);
    di_gate_open(true);
    di_assert_idle(engine);
    di_gate_close(engine);
}

/* ---------------------------------------------------------------- long prompts beside running requests */

enum { STREAMS = 4, STREAM_PROMPT = 12, STREAM_TOKENS = 6000, LONG_PROMPT = 16384, LONG_PROMPT_SLOW = 800 };

typedef struct observed {
    di_engine *engine;
    uint32_t steps, mixed, late, above, most, prompt_rows;
    int64_t pause_us;
} observed;

/* On the compute thread, while nothing is planned or committed. Each row takes a while, as with a larger model. */
static void observe(void *arg, const di_gate_step *step) {
    observed *o = arg;
    uint32_t decode = 0, prompt = 0;
    int32_t context = 0;
    for (uint32_t i = 0; i < step->sequences; i++) {
        if (step->count[i] == 1 && step->first[i] >= STREAM_PROMPT && step->first[i] < STREAM_TOKENS)
            decode++;
        else
            prompt += step->count[i], context = step->first[i];
    }
    usleep((useconds_t)(o->pause_us * step->rows));
    o->steps++;
    if (!prompt) return;
    o->mixed++;
    o->prompt_rows += prompt;
    if (decode < STREAMS) o->late++;
    if (prompt > o->most) o->most = prompt;
    const di_step_model *m = &o->engine->step_model;
    uint32_t budget = di_step_model_budget(m, decode, context, di_step_model_gap(m, decode, o->engine->max_gap_ms),
                                           o->engine->max_rows);
    if (prompt > budget) o->above++;
}

static void a_long_prompt_leaves_every_step_to_running_requests(void **state) {
    (void)state;
    static const di_option options[] = {{"max-gap", "40"}, {"cache-ram", "0"}};
    di_engine *engine = di_open_with(NANO, options, 2);
    di_gate_on(engine, true);
    observed seen = {.engine = engine, .pause_us = di_test_slow() ? 20 : 100};
    di_request *streams[STREAMS + 1];
    di_outcome outcomes[STREAMS + 1] = {0};
    for (uint32_t i = 0; i < STREAMS; i++) {
        di_job job = di_greedy_job(di_walk(i, STREAM_PROMPT), STREAM_PROMPT, STREAM_TOKENS);
        streams[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    assert_true(di_gate_wait(20000, NULL));
    for (int i = 0; i < 12; i++)
        assert_true(one_step(engine, UINT64_MAX)); /* all four decode, and the model is fitted */
    for (int i = 0; i < STREAMS; i++) assert_true(drain_now(streams[i], &outcomes[i], 20) > 0);
    uint32_t prompt = di_test_slow() ? LONG_PROMPT_SLOW : LONG_PROMPT;
    di_job job = di_greedy_job(di_walk(9, prompt), prompt, 2);
    streams[STREAMS] = di_submit_job(engine, &job, NULL, NULL);
    assert_true(one_step(engine, UINT64_MAX));
    di_gate_watch(observe, &seen);
    di_gate_open(true);
    di_event event;
    do assert_true(di_request_next(streams[STREAMS], -1, &event));
    while (event.kind != DI_EVENT_TOKEN);
    di_gate_watch(NULL, NULL);
    print_message("%u steps with prompt rows, %u rows a step in the middle, %u at most\n", seen.mixed,
                  seen.prompt_rows / seen.mixed, seen.most);
    assert_int_equal(seen.late, 0); /* no running request missed a step */
    assert_int_equal(seen.above, 0);
    assert_true(seen.mixed > 5); /* and the prompt was not done at one go */
    stop(engine, streams, STREAMS + 1);
}

static void a_short_prompt_overtakes_a_long_one(void **state) {
    (void)state;
    static const di_option options[] = {{"cache-ram", "0"}, {"chunk", "32"}};
    di_engine *engine = di_open_with(NANO, options, 2);
    di_gate_on(engine, true);
    di_request *requests[2];
    di_outcome outcomes[2] = {0};
    di_job job = di_greedy_job(di_walk(1, 4000), 4000, 3);
    requests[0] = di_submit_job(engine, &job, NULL, NULL);
    assert_true(di_gate_wait(20000, NULL));
    for (int i = 0; i < 8; i++) assert_true(one_step(engine, UINT64_MAX));
    job = di_greedy_job(di_walk(2, 20), 20, 3);
    requests[1] = di_submit_job(engine, &job, NULL, NULL);
    uint32_t steps = 0;
    while (!drain_now(requests[1], &outcomes[1], 20)) {
        assert_true(one_step(engine, UINT64_MAX));
        assert_true(steps++ < 6);
    }
    assert_int_equal(drain_now(requests[0], &outcomes[0], 0), 0);
    stop(engine, requests, 2);
}

/* Fifty come at once: all get on, and those with little to compute first. */
static void fifty_at_once(void **state) {
    (void)state;
    enum { FIFTY = 50 };
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_gate_on(engine, true);
    di_request *requests[FIFTY];
    di_outcome outcomes[FIFTY] = {0};
    uint32_t order[FIFTY], done = 0;
    for (uint32_t i = 0; i < FIFTY; i++) {
        uint32_t length = i % 10 ? 30 : 900;
        di_job job = di_greedy_job(di_walk(i, length), length, 4);
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    assert_true(di_gate_wait(20000, NULL));
    bool seen[FIFTY] = {false};
    while (done < FIFTY && one_step(engine, FIFTY)) {
        for (uint32_t i = 0; i < FIFTY; i++) {
            if (!drain_now(requests[i], &outcomes[i], 0) || seen[i]) continue;
            seen[i] = true;
            order[done++] = i;
        }
    }
    di_gate_open(true);
    for (uint32_t i = 0; i < FIFTY; i++) drain_now(requests[i], &outcomes[i], -1);
    for (uint32_t i = 0; i < FIFTY; i++) assert_int_equal(outcomes[i].status, DI_OK);
    /* The first forty-five first tokens are those of the short ones, but for the long one that came first. */
    uint32_t early = 0;
    for (uint32_t i = 0; i < done && i < 40; i++) early += order[i] % 10 != 0;
    assert_true(done < 40 || early >= 36);
    stop(engine, requests, FIFTY);
}

/* ---------------------------------------------------------------- full steps */

/* More sequences decode than a step has rows: each gets its turn, and prompts get a row as well. */
static void full_steps_leave_rows_to_all(void **state) {
    (void)state;
    static const char *const rows[] = {"1", "2", "4"};
    enum { RUNNING = 6, STEPS = DI_TEST_SLOW ? 60 : 200 };
    for (int r = 0; r < 3; r++) {
        di_option options[] = {{"max-rows", rows[r]}, {"max-seqs", "16"}, {"cache-ram", "0"}};
        di_engine *engine = di_open_with(NANO, options, 3);
        di_gate_on(engine, true);
        di_request *requests[RUNNING + 1];
        di_outcome outcomes[RUNNING + 1] = {0};
        for (uint32_t i = 0; i < RUNNING; i++) {
            di_job job = di_greedy_job(di_walk(i, 2), 2, 1000);
            requests[i] = di_submit_job(engine, &job, NULL, NULL);
        }
        assert_true(di_gate_wait(20000, NULL));
        for (int i = 0; i < 30; i++) assert_true(one_step(engine, UINT64_MAX));
        uint32_t before[RUNNING];
        for (int i = 0; i < RUNNING; i++) before[i] = drain_now(requests[i], &outcomes[i], 20);
        di_job job = di_greedy_job(di_walk(8, 20), 20, 2);
        requests[RUNNING] = di_submit_job(engine, &job, NULL, NULL);
        for (int i = 0; i < STEPS; i++) assert_true(one_step(engine, UINT64_MAX));
        assert_true(drain_now(requests[RUNNING], &outcomes[RUNNING], 20) > 0);
        for (int i = 0; i < RUNNING; i++) {
            uint32_t got = drain_now(requests[i], &outcomes[i], 20) - before[i];
            if (got < (uint32_t)(STEPS * atoi(rows[r]) / RUNNING / 3))
                fail_msg("max-rows %s: stream %d got %u tokens in %d steps", rows[r], i, got, STEPS);
        }
        stop(engine, requests, RUNNING + 1);
    }
}

/* ---------------------------------------------------------------- admission */

/* Pages that running requests were promised count: those let in together do not fight for them later. */
static void what_is_let_in_together_fits_together(void **state) {
    (void)state;
    static const di_option options[] = {{"kv-ram", "least"}, {"context", "640"}, {"cache-ram", "0"}, {"chunk", "16"}};
    di_engine *engine = di_open_with(NANO, options, 4); /* 12 pages of 64 positions */
    di_gate_on(engine, true);
    enum { COUNT = 8 };
    di_request *requests[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        di_job job = di_greedy_job(di_walk(i, 250), 250, 5); /* 4 pages, and one for what is to come */
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    di_gate_open(true);
    for (int i = 0; i < COUNT; i++) {
        di_outcome outcome = {0};
        di_drain(requests[i], &outcome);
        assert_int_equal(outcome.status, DI_OK);
    }
    assert_int_equal(di_engine_counter(engine, DI_COUNT_PREEMPTIONS), 0);
    stop(engine, requests, 0);
}

/* Who asks for pages moves out only who is less important: the one that came first is never the victim of later ones.
 */
static void the_first_of_equals_is_not_moved_out(void **state) {
    (void)state;
    static const di_option options[] = {{"kv-ram", "least"}, {"context", "640"}, {"cache-ram", "0"}, {"swap-ram", "0"}};
    di_engine *engine = di_open_with(NANO, options, 4);
    di_gate_on(engine, true);
    enum { COUNT = 6 };
    di_request *requests[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        di_job job = di_greedy_job(di_walk(i, 60), 60, 400);
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    di_gate_open(true);
    for (int i = 0; i < COUNT; i++) {
        di_outcome outcome = {0};
        di_event event;
        while (!outcome.done) {
            assert_true(di_request_next(requests[i], -1, &event));
            di_take_event(&outcome, &event);
        }
        assert_int_equal(outcome.status, DI_OK);
        assert_int_equal(outcome.tokens[0], 400);
        if (i == 0) assert_int_equal(requests[0]->preemptions, 0); /* over: nobody writes it any more */
    }
    assert_true(di_engine_counter(engine, DI_COUNT_PREEMPTIONS) > 0);
    stop(engine, requests, COUNT);
}

/* Who wants to start moves nobody out when that would not give it the pages it needs. */
static void nobody_is_moved_out_in_vain(void **state) {
    (void)state;
    static const di_option options[] = {{"kv-ram", "least"}, {"context", "640"}, {"cache-ram", "0"}};
    di_engine *engine = di_open_with(NANO, options, 3); /* 12 pages of 64 positions */
    di_gate_on(engine, true);
    static const struct {
        uint32_t prompt;
        int32_t priority;
    } asked[] = {{250, 1}, {60, 0}, {500, 1}}; /* 4 pages, 1, 8; and one each for what is to come */
    di_request *requests[3];
    di_outcome outcomes[3] = {0};
    for (uint32_t i = 0; i < 3; i++) {
        di_job job = di_greedy_job(di_walk(i, asked[i].prompt), asked[i].prompt, 100);
        job.priority = asked[i].priority;
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
        for (int steps = 0; i < 2 && steps < 12; steps++) {
            assert_true(di_gate_wait(20000, NULL));
            di_gate_pass();
        }
    }
    for (int steps = 0; steps < 12; steps++) {
        assert_true(di_gate_wait(20000, NULL));
        di_gate_pass();
    }
    assert_true(di_gate_wait(20000, NULL));
    assert_int_equal(di_engine_counter(engine, DI_COUNT_PREEMPTIONS), 0);
    assert_true(drain_now(requests[0], &outcomes[0], 0) && drain_now(requests[1], &outcomes[1], 0));
    assert_int_equal(drain_now(requests[2], &outcomes[2], 0), 0);
    di_gate_open(true);
    for (int i = 0; i < 3; i++) {
        drain_now(requests[i], &outcomes[i], -1);
        assert_int_equal(outcomes[i].status, DI_OK);
    }
    stop(engine, requests, 3);
}

/* ---------------------------------------------------------------- tenants */

static void a_flood_of_one_tenant_leaves_the_other_its_share(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "4"}, {"cache-ram", "0"}, {"ageing-ms", "3600000"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_gate_on(engine, true);
    enum { FLOOD = 40, GUESTS = 10, ROWS = 300 };
    di_request *flood[FLOOD], *guests[GUESTS];
    di_outcome floods[FLOOD] = {0}, outcome;
    for (uint32_t i = 0; i < FLOOD; i++) {
        di_job job = di_greedy_job(di_walk(i, ROWS), ROWS, 8);
        job.tenant = "flood";
        flood[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    assert_true(di_gate_wait(20000, NULL));
    for (int i = 0; i < 12; i++) assert_true(one_step(engine, UINT64_MAX));
    for (uint32_t i = 0; i < GUESTS; i++) {
        di_job job = di_greedy_job(di_walk(30 + i, ROWS), ROWS, 8);
        job.tenant = "guest";
        guests[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    di_gate_open(true);
    for (int i = 0; i < GUESTS; i++) {
        outcome = (di_outcome){0};
        di_drain(guests[i], &outcome);
        assert_int_equal(outcome.status, DI_OK);
    }
    /* The gate holds what comes after the last guest; the reader may have been slow to see it by a few. */
    di_gate_open(false);
    uint32_t done = 0;
    for (int i = 0; i < FLOOD; i++) {
        drain_now(flood[i], &floods[i], 0);
        done += floods[i].done;
    }
    print_message("when %d guests were through, %u of the flood's %d were\n", GUESTS, done, FLOOD);
    assert_true(done <= 4 + GUESTS + 8);
    stop(engine, flood, FLOOD);
}

/* Who was let in when, as letters in the order of admission. One place, so that they run one after the other; each
 * request is more than a portion of service. */
enum { SHARERS = 12, SHARE_ROWS = 600 };

typedef struct sharer {
    const char *owner, *tenant; /* "*" = another name each time */
    uint32_t count;
    char letter;
} sharer;

static int by_admission(const void *a, const void *b) {
    const di_request *x = *(di_request *const *)a, *y = *(di_request *const *)b;
    return (x->admitted_ns > y->admitted_ns) - (x->admitted_ns < y->admitted_ns);
}

static void admissions(di_engine *engine, const sharer *sharers, uint32_t sharer_count, char order[SHARERS + 1]) {
    di_request *requests[SHARERS];
    uint32_t count = 0;
    di_gate_open(false);
    for (uint32_t i = 0; i < sharer_count; i++)
        for (uint32_t j = 0; j < sharers[i].count; j++) {
            char id[2] = {sharers[i].letter}, name[16];
            snprintf(name, sizeof name, "%u", count);
            di_job job = di_greedy_job(di_walk(count, SHARE_ROWS), SHARE_ROWS, 1);
            job.id = id;
            job.owner = sharers[i].owner;
            job.tenant = sharers[i].tenant && strcmp(sharers[i].tenant, "*") == 0 ? name : sharers[i].tenant;
            assert_true(count < SHARERS);
            requests[count++] = di_submit_job(engine, &job, NULL, NULL);
        }
    assert_true(di_gate_wait(20000, NULL));
    di_gate_open(true);
    for (uint32_t i = 0; i < count; i++) {
        di_outcome outcome = {0};
        di_event event;
        while (!outcome.done) {
            assert_true(di_request_next(requests[i], -1, &event));
            di_take_event(&outcome, &event);
        }
        assert_int_equal(outcome.status, DI_OK);
    }
    qsort(requests, count, sizeof *requests, by_admission);
    for (uint32_t i = 0; i < count; i++) order[i] = requests[i]->id[0];
    order[count] = 0;
    for (uint32_t i = 0; i < count; i++) di_request_free(requests[i]);
    print_message("%s\n", order);
}

static uint32_t letters(const char *order, char letter, uint32_t first) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < first; i++) count += order[i] == letter;
    return count;
}

/* Owners get equal parts, however many names one of them gives its users; and so do the users of an owner. */
static void names_add_nothing_to_a_share(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "1"}, {"cache-ram", "0"}, {"ageing-ms", "3600000"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_gate_on(engine, true);
    char order[SHARERS + 1];
    static const sharer names[] = {{"alice", "*", 8, 'a'}, {"bob", NULL, 4, 'b'}};
    admissions(engine, names, 2, order);
    assert_in_range(letters(order, 'b', 8), 3, 4);
    static const sharer keys[] = {{"alice", "busy", 6, 'a'}, {"alice", "calm", 2, 'c'}, {"bob", "busy", 4, 'b'}};
    admissions(engine, keys, 3, order);
    assert_in_range(letters(order, 'b', 8), 3, 4);
    assert_in_range(letters(order, 'c', 8), 1, 2);
    di_assert_idle(engine);
    di_gate_close(engine);
}

/* What was computed for somebody while nobody else was there is not held against him. */
static void a_new_name_does_not_overtake_old_ones(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "1"}, {"cache-ram", "0"}, {"ageing-ms", "3600000"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_gate_on(engine, true);
    char order[SHARERS + 1];
    for (int owners = 0; owners < 2; owners++) {
        const char *owner = owners ? "alice" : NULL;
        const sharer old[] = {{owner, "old", 6, 'o'}}, both[] = {{owner, "new", 4, 'n'}, {owner, "old", 3, 'o'}};
        admissions(engine, old, 1, order);
        di_assert_idle(engine);
        admissions(engine, both, 2, order);
        assert_in_range(letters(order, 'o', 4), 1, 3);
    }
    di_assert_idle(engine);
    di_gate_close(engine);
}

/* No names of one owner lead to what another owns, however they are cut; the common namespace is nobody's. */
static void names_stay_apart(void **state) {
    (void)state;
    const struct {
        const char *owner, *tenant;
    } names[] = {{NULL, NULL},        {"alice", NULL}, {"alice", "bob"}, {"alice/bob", NULL}, {NULL, "alice"},
                 {NULL, "alice/bob"}, {"alic", "e"},   {NULL, "/bob"},   {"a", "lice"},       {"bob", "alice"}};
    enum { NAMES = sizeof names / sizeof *names };
    for (int i = 0; i < NAMES; i++)
        for (int j = 0; j < NAMES; j++)
            assert_int_equal(
                di_namespace(names[i].owner, names[i].tenant) == di_namespace(names[j].owner, names[j].tenant), i == j);
    assert_int_equal(di_namespace(NULL, NULL), 0);
    assert_int_equal(di_namespace("alice", "bob"), UINT64_C(0xad3ab309782acd85));
}

/* More tenants than there are places for, at once and one after the other: none is lost, none stays counted. */
static void many_tenants(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "2"}, {"max-queue", "400"}, {"cache-ram", "0"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    enum { TENANTS = 150 };
    di_request *requests[TENANTS];
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < TENANTS; i++) {
            char tenant[16];
            snprintf(tenant, sizeof tenant, "t%d", i + round * 100);
            di_job job = di_greedy_job(di_walk(1, 4), 4, 2);
            job.tenant = tenant;
            if (round) job.owner = i % 2 ? "alice" : "bob";
            job.priority = i % 3;
            requests[i] = di_submit_job(engine, &job, NULL, NULL);
        }
        for (int i = 0; i < TENANTS; i++) {
            di_outcome outcome = {0};
            if (i % 5)
                di_drain(requests[i], &outcome);
            else
                di_request_free(requests[i]);
        }
        di_assert_idle(engine);
        pthread_mutex_lock(&engine->hub->mutex); /* the engine thread sleeps on it */
        for (uint32_t i = 0; i < engine->tenant_count; i++) assert_int_equal(engine->tenants[i].requests, 0);
        /* Kept are those that were there at once, and two owners. */
        assert_true(engine->tenant_capacity <= 2 * (TENANTS + 2) + 16);
        pthread_mutex_unlock(&engine->hub->mutex);
    }
    di_close(engine);
}

/* ---------------------------------------------------------------- ageing */

typedef struct stream {
    di_engine *engine;
    atomic_bool over;
    uint32_t served;
} stream;

/* Two requests of high priority are always there, until `over`. */
static void *high_priorities(void *arg) {
    stream *s = arg;
    di_request *two[2] = {NULL, NULL};
    for (uint32_t i = 0; !atomic_load(&s->over); i++) {
        di_outcome outcome = {0};
        if (two[i % 2]) di_drain(two[i % 2], &outcome);
        s->served += outcome.status == DI_OK && outcome.done;
        di_job job = di_greedy_job(di_walk(i, 40), 40, 10);
        job.priority = 3;
        two[i % 2] = di_submit_job(s->engine, &job, NULL, NULL);
    }
    di_request_free(two[0]);
    di_request_free(two[1]);
    return NULL;
}

static void a_low_priority_is_served_in_the_end(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "1"}, {"ageing-ms", "25"}, {"cache-ram", "0"}};
    for (int started = 0; started < 2; started++) { /* it comes into the stream, or was running when the stream came */
        di_engine *engine = di_open_with(NANO, options, 3);
        stream s = {.engine = engine};
        pthread_t thread;
        di_outcome outcome = {0};
        di_job job = di_greedy_job(di_walk(50, 300), 300, 200);
        di_request *low = NULL;
        di_event event;
        if (started) {
            low = di_submit_job(engine, &job, NULL, NULL);
            do assert_true(di_request_next(low, -1, &event));
            while (di_take_event(&outcome, &event), event.kind != DI_EVENT_TOKEN);
        }
        assert_int_equal(pthread_create(&thread, NULL, high_priorities, &s), 0);
        if (!started) {
            while (di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) < 3) usleep(500);
            low = di_submit_job(engine, &job, NULL, NULL);
        }
        di_drain(low, &outcome); /* for ever, if the stream always went first */
        assert_int_equal(outcome.status, DI_OK);
        assert_int_equal(outcome.tokens[0], 200);
        atomic_store(&s.over, true);
        pthread_join(thread, NULL);
        assert_true(started || s.served >= 3);
        di_assert_idle(engine);
        di_close(engine);
    }
}

/* Those that wait age past those that run, but do not push them out: all would lose what they have computed, in turns,
 * for ever. */
static void ageing_pushes_nobody_out(void **state) {
    (void)state;
    static const di_option options[] = {
        {"max-seqs", "2"}, {"ageing-ms", "1"}, {"cache-ram", "0"}, {"swap-ram", "0"}, {"chunk", "8"}};
    di_engine *engine = di_open_with(NANO, options, 5);
    enum { COUNT = 10 };
    di_request *requests[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        di_job job = di_greedy_job(di_walk(i, 150), 150, 20);
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    for (int i = 0; i < COUNT; i++) {
        di_outcome outcome = {0};
        di_drain(requests[i], &outcome);
        assert_int_equal(outcome.status, DI_OK);
    }
    assert_int_equal(di_engine_counter(engine, DI_COUNT_PREEMPTIONS), 0);
    di_assert_idle(engine);
    di_close(engine);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_prompt_leaves_every_step_to_running_requests),
        cmocka_unit_test(a_short_prompt_overtakes_a_long_one),
        cmocka_unit_test(fifty_at_once),
        cmocka_unit_test(full_steps_leave_rows_to_all),
        cmocka_unit_test(what_is_let_in_together_fits_together),
        cmocka_unit_test(the_first_of_equals_is_not_moved_out),
        cmocka_unit_test(nobody_is_moved_out_in_vain),
        cmocka_unit_test(a_flood_of_one_tenant_leaves_the_other_its_share),
        cmocka_unit_test(names_add_nothing_to_a_share),
        cmocka_unit_test(a_new_name_does_not_overtake_old_ones),
        cmocka_unit_test(many_tenants),
        cmocka_unit_test(names_stay_apart),
        cmocka_unit_test(a_low_priority_is_served_in_the_end),
        cmocka_unit_test(ageing_pushes_nobody_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
