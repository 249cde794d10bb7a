/* needs: engine */
/* labels: long
 * What runs beside a request, from which cached state it starts and when it is moved out of the way changes no byte of
 * what it produces. */
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

/* ---------------------------------------------------------------- the watched requests */

enum { WATCHED = 8 };

static const char *const stops[] = {"e", "th", "\xc3\xa9"};
static const di_logit_bias bias[] = {{17, 3.5f}, {44, -2}};
static const int32_t golden[] = {5, -1, 600, -1, -1, 7};

/* One of each kind of request, all short enough to be run many times. */
static di_job watched(int kind, bool compact) {
    static const uint32_t lengths[WATCHED] = {1, 64, 97, 131, 200, 40, 77, 128};
    di_job job = di_greedy_job(di_walk(1 + (uint32_t)kind / 2, lengths[kind]), lengths[kind], 14);
    di_sampling *s = &job.sampling;
    s->has_seed = true;
    s->seq_seed = 1234 + (uint64_t)kind;
    if (kind > 0) s->temperature = 0.8f;
    switch (kind) {
    case 2:
        s->n = 3;
        s->logprobs = 4;
        break;
    case 3:
        s->repetition_penalty = 1.2f;
        s->presence_penalty = 0.5f;
        s->frequency_penalty = 0.3f;
        s->logit_bias = bias;
        s->logit_bias_count = 2;
        break;
    case 4:
        if (!compact) s->prompt_logprobs = 2;
        s->top_k = 40;
        s->top_p = 0.9f;
        break;
    case 5:
        s->stop = stops;
        s->stop_count = 3;
        s->max_tokens = 40;
        s->ignore_eos = false;
        break;
    case 6:
        s->golden_token_ids = golden;
        s->golden_token_count = 6;
        s->n = 2;
        break;
    case 7:
        job.score = true;
        break;
    default:
        break;
    }
    return job;
}

static di_outcome alone[2][WATCHED]; /* [compact] */

static void run_alone(void) {
    static const di_option options[] = {{"cache-ram", "0"}, {"prefill", "off"}};
    static const di_option compact[] = {{"cache-ram", "0"}, {"prefill", "compact"}};
    for (int c = 0; c < 2; c++) {
        di_engine *engine = di_open_with(NANO, c ? compact : options, 2);
        for (int k = 0; k < WATCHED; k++) {
            di_job job = watched(k, c);
            di_run_job(engine, &job, &alone[c][k]);
            assert_int_equal(alone[c][k].status, DI_OK);
            assert_true(job.score || alone[c][k].tokens[0] > 0);
        }
        di_close(engine);
    }
}

/* ---------------------------------------------------------------- crowds */

enum { MEMBERS = 14 };

typedef struct score_task {
    di_engine *engine;
    di_job job;
    di_outcome outcome;
    pthread_t thread;
} score_task;

static void *run_score(void *arg) {
    score_task *task = arg;
    di_run_job(task->engine, &task->job, &task->outcome);
    return NULL;
}

typedef struct member {
    di_request *request;
    int watched; /* -1: part of the crowd only */
    uint32_t until;
    di_outcome outcome;
} member;

static di_job stranger(di_dice *dice, uint32_t longest, bool compact) {
    uint32_t length = 1 + di_roll(dice, di_roll(dice, 6) ? longest / 8 : longest);
    di_job job = di_greedy_job(di_walk(1 + di_roll(dice, 6), length), length, 1 + di_roll(dice, 24));
    job.priority = (int32_t)di_roll(dice, 5) - 2;
    job.tenant = di_roll(dice, 3) ? NULL : "other";
    job.sampling.temperature = di_roll(dice, 2) ? 1 : 0;
    job.sampling.n = di_roll(dice, 5) ? 1 : 1 + (int32_t)di_roll(dice, 4);
    if (!di_roll(dice, 6)) job.sampling.logprobs = (int32_t)di_roll(dice, 30);
    if (!di_roll(dice, 9) && !compact) job.sampling.prompt_logprobs = 1;
    if (!di_roll(dice, 8)) job.deadline_ms = 1 + di_roll(dice, 200);
    return job;
}

static void join(di_engine *engine, di_dice *dice, member *m, uint32_t longest, bool compact) {
    *m = (member){.watched = di_roll(dice, 3) ? (int)di_roll(dice, WATCHED - 1) : -1, .until = UINT32_MAX};
    di_job job = m->watched < 0 ? stranger(dice, longest, compact) : watched(m->watched, compact);
    if (m->watched >= 0) job.priority = (int32_t)di_roll(dice, 3) - 1;
    if (m->watched < 0 && !di_roll(dice, 4)) m->until = di_roll(dice, 20);
    di_error error = {0};
    di_status status;
    m->request = di_submit_job(engine, &job, &status, &error);
    if (status != DI_OK && (m->watched >= 0 || status != DI_ERR_LIMIT)) fail_msg("di_submit: %s", error.message);
}

/* Reads what there is; true when the member has left. */
static bool listen(member *m, bool compact, const char *what) {
    di_event event;
    if (!m->request) return true;
    while (!m->outcome.done && di_request_next(m->request, 0, &event)) {
        di_take_event(&m->outcome, &event);
        if (m->outcome.tokens[0] >= m->until) di_request_cancel(m->request);
    }
    if (!m->outcome.done) return false;
    di_request_free(m->request);
    m->request = NULL;
    if (m->watched >= 0) di_assert_same(&alone[compact][m->watched], &m->outcome, what);
    if (m->watched < 0 && m->outcome.status != DI_OK && m->outcome.status != DI_ERR_CANCELLED &&
        m->outcome.status != DI_ERR_DEADLINE)
        fail_msg("%s: %s", what, m->outcome.error.message);
    return true;
}

typedef struct crowd_totals {
    uint64_t preemptions, swapped, recomputes, cached, watched;
} crowd_totals;

static const char *one_of(di_dice *dice, const char *const *values, uint32_t count) {
    return values[di_roll(dice, count)];
}

static void run_crowd(uint32_t seed, uint32_t arrivals, uint32_t longest, crowd_totals *totals) {
    static const char *const kv[] = {"0", "least", "least+75", "least+300"}, *const swap[] = {"1G", "300K", "0"};
    static const char *const cache[] = {"0", "400K", "2M", "256M"}, *const rows[] = {"256", "33", "7", "1"};
    static const char *const chunk[] = {"0", "64", "5"}, *const seqs[] = {"4", "9", "64"};
    static const char *const interval[] = {"0", "17", "64", "101"};
    di_dice dice = {seed};
    bool compact = seed % 3 == 2;
    di_option options[] = {
        {"kv-ram", one_of(&dice, kv, 4)},
        {"swap-ram", one_of(&dice, swap, 3)},
        {"cache-ram", one_of(&dice, cache, 4)},
        {"max-rows", one_of(&dice, rows, di_roll(&dice, 4) ? 2 : 4)},
        {"chunk", one_of(&dice, chunk, 3)},
        {"max-seqs", one_of(&dice, seqs, 3)},
        {"snapshot-interval", one_of(&dice, interval, 4)},
        {"prefill", compact ? "compact" : "off"},
        {"context", "2600"},
        {"ageing-ms", di_roll(&dice, 2) ? "10000" : "30"},
        {"threads", di_roll(&dice, 2) ? "1" : "2"},
    };
    if (atoi(options[3].value) < 4) options[3].value = "7"; /* n = 4 */
    char what[256];
    snprintf(what, sizeof what, "crowd %u (kv %s swap %s cache %s rows %s chunk %s seqs %s interval %s %s)", seed,
             options[0].value, options[1].value, options[2].value, options[3].value, options[4].value, options[5].value,
             options[6].value, options[7].value);
    di_engine *engine = di_open_with(NANO, options, sizeof options / sizeof *options);
    member members[MEMBERS] = {0};
    score_task score = {.engine = engine, .job = watched(WATCHED - 1, compact)};
    assert_int_equal(pthread_create(&score.thread, NULL, run_score, &score), 0);
    uint32_t joined = 0, left;
    do {
        left = 0;
        for (int i = 0; i < MEMBERS; i++) {
            bool free_place = listen(&members[i], compact, what);
            if (!free_place) continue;
            left++;
            if (joined == arrivals || di_roll(&dice, 3)) continue;
            join(engine, &dice, &members[i], longest, compact);
            if (members[i].watched >= 0) totals->watched++;
            joined++;
            left--;
        }
        usleep(300);
    } while (left < MEMBERS || joined < arrivals);
    pthread_join(score.thread, NULL);
    di_assert_same(&alone[compact][WATCHED - 1], &score.outcome, what);
    di_assert_idle(engine);
    totals->preemptions += di_engine_counter(engine, DI_COUNT_PREEMPTIONS);
    totals->swapped += di_engine_counter(engine, DI_COUNT_SWAPPED_BYTES);
    totals->recomputes += di_engine_counter(engine, DI_COUNT_RECOMPUTES);
    totals->cached += di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_RAM);
    di_close(engine);
}

static void a_crowd_changes_no_byte(void **state) {
    (void)state;
    crowd_totals totals = {0};
    uint32_t crowds = di_test_slow() ? 6 : 50, arrivals = di_test_long() ? 60 : 12;
    uint32_t longest = di_test_slow() ? 300 : 2000;
    for (uint32_t seed = 1; seed <= crowds; seed++) run_crowd(seed, arrivals, longest, &totals);
    print_message("%llu watched requests, %llu preemptions, %llu bytes swapped, %llu computed again, %llu cached\n",
                  (unsigned long long)totals.watched, (unsigned long long)totals.preemptions,
                  (unsigned long long)totals.swapped, (unsigned long long)totals.recomputes,
                  (unsigned long long)totals.cached);
    assert_true(totals.preemptions && totals.swapped && totals.recomputes && totals.cached);
}

/* ---------------------------------------------------------------- preemption at every state */

static uint64_t finished_when_over;

/* False when the requests sent so far are over instead. */
static bool stands_at_gate(di_engine *engine) {
    while (!di_gate_wait(5, NULL))
        if (di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) == finished_when_over) return false;
    return true;
}

/* Holds the engine after `cut` steps of the watched request, lets a request that needs every place come, and goes on.
 * False when the watched one was over before. */
static bool preempt_after(di_engine *engine, int kind, bool compact, uint32_t cut, const char *what) {
    di_outcome outcome = {0}, intruder = {0};
    di_job job = watched(kind, compact), other = di_greedy_job(di_walk(40, 30), 30, 2);
    score_task score = {.engine = engine, .job = job};
    other.sampling.n = 3;
    other.priority = 5;
    di_gate_open(false);
    finished_when_over = di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) + 1;
    uint64_t before = di_engine_counter(engine, DI_COUNT_PREEMPTIONS);
    di_request *request = job.score ? NULL : di_submit_job(engine, &job, NULL, NULL);
    if (job.score) assert_int_equal(pthread_create(&score.thread, NULL, run_score, &score), 0);
    bool stands = true;
    for (uint32_t i = 0; i < cut && stands; i++) {
        stands = stands_at_gate(engine);
        if (stands) di_gate_pass();
    }
    stands = stands && stands_at_gate(engine);
    if (stands) {
        di_request *high = di_submit_job(engine, &other, NULL, NULL);
        di_gate_open(true);
        di_drain(high, &intruder);
        assert_int_equal(intruder.status, DI_OK);
    }
    di_gate_open(true);
    if (job.score) {
        pthread_join(score.thread, NULL);
        outcome = score.outcome;
    } else {
        di_drain(request, &outcome);
    }
    di_assert_same(&alone[compact][kind], &outcome, what);
    /* In the last step it may end before it can be moved out. */
    return stands && di_engine_counter(engine, DI_COUNT_PREEMPTIONS) > before;
}

static void clear_cache(di_engine *engine) {
    di_assert_idle(engine);
    pthread_mutex_lock(&engine->hub->mutex); /* the engine thread sleeps on it */
    di_prefix_clear(engine->cache);
    pthread_mutex_unlock(&engine->hub->mutex);
}

static void preemption_at_every_state_changes_no_byte(void **state) {
    (void)state;
    static const char *const swap[] = {"1G", "150K", "0"}, *const cache[] = {"0", "0", "256M"};
    uint32_t total = 0;
    for (uint32_t mode = 0; mode < 6; mode++) {
        bool compact = mode >= 3;
        di_option options[] = {
            {"swap-ram", swap[mode % 3]}, {"cache-ram", cache[mode % 3]},          {"max-seqs", "3"}, {"chunk", "24"},
            {"snapshot-interval", "37"},  {"prefill", compact ? "compact" : "off"}};
        di_engine *engine = di_open_with(NANO, options, 6);
        di_gate_on(engine, true);
        for (int kind = 1; kind < WATCHED; kind++) {
            if (!di_test_long() && (kind + (int)mode) % (di_test_slow() ? 6 : 2)) continue;
            uint32_t cut = 0;
            for (bool again = true; again; cut += di_test_long() ? 1 : 1 + 3 * di_test_slow() + cut % 2) {
                char what[96];
                snprintf(what, sizeof what, "kind %d, swap %s, cache %s, %s, preempted after step %u", kind,
                         swap[mode % 3], cache[mode % 3], compact ? "compact" : "off", cut);
                again = preempt_after(engine, kind, compact, cut, what);
                total += again;
                clear_cache(engine);
            }
            assert_true(cut > 2);
        }
        assert_true(mode % 3 != 0 || di_engine_counter(engine, DI_COUNT_RECOMPUTES) == 0);
        assert_true(mode % 3 != 2 || di_engine_counter(engine, DI_COUNT_SWAPPED_BYTES) == 0);
        di_gate_close(engine);
    }
    print_message("%u preemptions\n", total);
}

/* With so few pages that a preempted request comes back only when it is alone, the prefix cache gives way to it. */
static void the_cache_gives_its_pages_to_a_request_that_comes_back(void **state) {
    (void)state;
    static const di_option options[] = {{"context", "200"}, {"kv-ram", "least"}, {"max-seqs", "2"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_job job = di_greedy_job(di_walk(30, 100), 100, 28), other = di_greedy_job(di_walk(31, 190), 190, 5);
    di_outcome expected;
    job.sampling.n = 2;
    other.priority = 5;
    di_gate_on(engine, false);
    di_gate_open(true);
    di_run_job(engine, &job, &expected);
    clear_cache(engine);
    for (uint32_t cut = 1; cut < 20; cut += 6) {
        di_outcome got = {0}, intruder = {0};
        uint64_t before = di_engine_counter(engine, DI_COUNT_SWAPPED_BYTES);
        di_gate_open(false);
        finished_when_over = di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) + 1;
        di_request *request = di_submit_job(engine, &job, NULL, NULL);
        for (uint32_t i = 0; i < cut; i++) {
            assert_true(stands_at_gate(engine));
            di_gate_pass();
        }
        assert_true(stands_at_gate(engine));
        di_request *high = di_submit_job(engine, &other, NULL, NULL);
        di_gate_open(true);
        di_drain(high, &intruder);
        assert_int_equal(intruder.status, DI_OK);
        di_drain(request, &got);
        di_assert_same(&expected, &got, "preempted with few pages");
        assert_true(di_engine_counter(engine, DI_COUNT_SWAPPED_BYTES) > before);
        clear_cache(engine);
    }
    di_gate_close(engine);
}

/* A compact answer leaves a snapshot behind its prompt's end, without decoder windows: of use for the next turn, but
 * not for a sequence that had those windows and is computed again. */
static void recomputation_does_not_start_behind_the_end_of_a_compact_prompt(void **state) {
    (void)state;
    static const di_option options[] = {{"swap-ram", "0"}, {"max-seqs", "3"}, {"prefill", "compact"}};
    di_engine *engine = di_open_with(NANO, options, 3);
    di_job job = watched(3, true);
    di_outcome before = {0};
    di_run_job(engine, &job, &before);
    di_assert_same(&alone[1][3], &before, "before");
    di_gate_on(engine, true);
    for (uint32_t cut = 1; cut < 12; cut++) preempt_after(engine, 3, true, cut, "answer in the cache");
    di_gate_close(engine);
}

/* ---------------------------------------------------------------- hits */

/* The first `shared` ids of one text, then others. */
static const int32_t *branch(uint32_t shared, uint32_t count) {
    static int32_t ids[1024];
    memcpy(ids, di_walk(20, count), shared * sizeof *ids);
    memcpy(ids + shared, di_walk(21, count) + shared, (count - shared) * sizeof *ids);
    return ids;
}

static void hits_change_no_byte(void **state) {
    (void)state;
    static const char *const intervals[] = {"0", "31", "64"};
    static const uint32_t lengths[] = {130, 129, 128, 191, 193};
    uint64_t hits = 0;
    for (uint32_t mode = 0; mode < 6; mode += di_test_slow() ? 2 : 1) {
        bool compact = mode >= 3;
        di_option warm[] = {{"snapshot-interval", intervals[mode % 3]},
                            {"prefill", compact ? "compact" : "off"},
                            {"cache-ram", "64M"},
                            {"chunk", mode % 2 ? "0" : "50"}};
        di_option cold[] = {{"cache-ram", "0"}, {"prefill", compact ? "compact" : "off"}};
        di_engine *engine = di_open_with(NANO, warm, 4), *reference = di_open_with(NANO, cold, 2);
        for (uint32_t l = 0; l < 5; l++) {
            if (!di_test_long() && (l + mode) % (di_test_slow() ? 5 : 3)) continue;
            uint32_t count = lengths[l];
            /* Once cold, once as a hit, once from an empty cache; then branches around every kind of border. */
            static const int offsets[] = {0, 0, 0, 1, 2, 3, 63, 64, 65, 66};
            for (uint32_t i = 0; i < 10; i += di_test_slow() && i > 2 ? 2 : 1) {
                uint32_t shared = count - (uint32_t)offsets[i];
                di_job job = di_greedy_job(branch(shared, count), count, 5);
                di_outcome expected, got;
                char what[96];
                snprintf(what, sizeof what, "%s, interval %s, %u ids, %u shared, run %u", compact ? "compact" : "off",
                         intervals[mode % 3], count, shared, i);
                if (i == 2) clear_cache(engine);
                di_run_job(reference, &job, &expected);
                di_run_job(engine, &job, &got);
                di_assert_same(&expected, &got, what);
                if (i == 1) assert_int_equal(got.usage.cached_tokens, count - 1);
                if (i == 2) assert_int_equal(got.usage.cached_tokens, 0);
                /* The text goes on: a hit where the prompt or its answer ended. */
                int32_t longer[300];
                memcpy(longer, job.ids, count * sizeof *longer);
                memcpy(longer + count, got.ids, 5 * sizeof *longer);
                memcpy(longer + count + 5, di_walk(22, 20), 20 * sizeof *longer);
                job.ids = longer;
                for (job.count = count + 1 + i; job.count < count + 25; job.count += di_test_slow() ? 24 : 9) {
                    di_run_job(reference, &job, &expected);
                    di_run_job(engine, &job, &got);
                    di_assert_same(&expected, &got, what);
                    hits += got.usage.cached_tokens > 0;
                }
            }
        }
        di_close(engine);
        di_close(reference);
    }
    print_message("%llu hits\n", (unsigned long long)hits);
    assert_true(hits > (di_test_slow() ? 8 : 50));
}

/* With `off`, prompt_logprobs take no hit, and see every row after a cached prompt. */
static void prompt_log_probabilities_take_no_hit(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    for (int i = 0; i < 3; i++) {
        di_job job = watched(4, false);
        di_outcome got;
        di_run_job(engine, &job, &got);
        di_assert_same(&alone[0][4], &got, "prompt_logprobs");
        assert_int_equal(got.usage.cached_tokens, 0);
        assert_int_equal(got.prompt_tokens, job.count);
        job.sampling.prompt_logprobs = -1;
        di_run_job(engine, &job, &got);
        assert_int_equal(got.usage.cached_tokens, job.count - 1);
        assert_true(got.samples[0] == alone[0][4].samples[0]);
    }
    di_close(engine);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    run_alone();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(preemption_at_every_state_changes_no_byte),
        cmocka_unit_test(the_cache_gives_its_pages_to_a_request_that_comes_back),
        cmocka_unit_test(recomputation_does_not_start_behind_the_end_of_a_compact_prompt),
        cmocka_unit_test(hits_change_no_byte),
        cmocka_unit_test(prompt_log_probabilities_take_no_hit),
        cmocka_unit_test(a_crowd_changes_no_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
