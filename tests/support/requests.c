/* requests.c - see requests.h. */
#include "support/requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "support/slow.h"

/* "kv-ram" in bytes, from the engine of the same context and drafts. */
static void write_bytes(const char *folder, const char *least, const char *context, const char *spec, char bytes[24]) {
    const di_option options[] = {{"context", context}, {"spec", spec}};
    assert_non_null(context);
    di_engine *engine = di_open_with(folder, options, 2);
    uint32_t positions = (uint32_t)strtoul(context, NULL, 10);
    uint64_t more = least[5] == '+' ? strtoull(least + 6, NULL, 10) : 0;
    more *= di_model_layout(engine->model)->page_bytes;
    snprintf(bytes, 24, "%llu", (unsigned long long)(di_engine_least_kv_ram(engine, positions) + more));
    di_close(engine);
}

di_engine *di_open_with(const char *folder, const di_option *options, size_t count) {
    enum { MOST = 32 };
    di_engine *engine = NULL;
    di_error error = {0};
    di_option given[MOST];
    char bytes[24];
    const char *context = NULL, *spec = NULL;
    assert_true(count < MOST);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(options[i].name, "context") == 0) context = options[i].value;
        if (strcmp(options[i].name, "spec") == 0) spec = options[i].value;
    }
    for (size_t i = 0; i < count; i++) {
        given[i] = options[i];
        if (strcmp(options[i].name, "kv-ram") != 0 || strncmp(options[i].value, "least", 5) != 0) continue;
        write_bytes(folder, options[i].value, context, spec ? spec : "off", bytes);
        given[i].value = bytes;
    }
    if (!spec) given[count++] = (di_option){"spec", "off"};
    if (di_open(folder, given, count, &engine, &error) != DI_OK) fail_msg("di_open: %s", error.message);
    return engine;
}

enum { WALKS = 64, LONGEST_WALK = 1 << 15 };

static int32_t *walks[WALKS];

static void fill_walks(void) {
    for (uint32_t w = 0; w < WALKS; w++) {
        walks[w] = malloc(LONGEST_WALK * sizeof *walks[w]);
        di_dice dice = {w + 1};
        for (uint32_t i = 0; walks[w] && i < LONGEST_WALK; i++) walks[w][i] = 3 + (int32_t)di_roll(&dice, 600);
    }
}

const int32_t *di_walk(uint32_t seed, uint32_t count) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    assert_true(count <= LONGEST_WALK);
    pthread_once(&once, fill_walks);
    assert_non_null(walks[seed % WALKS]);
    return walks[seed % WALKS];
}

di_job di_greedy_job(const int32_t *ids, uint32_t count, int64_t tokens) {
    di_job job = {.ids = ids, .count = count};
    di_sampling_default(&job.sampling);
    job.sampling.temperature = 0;
    job.sampling.max_tokens = tokens;
    job.sampling.ignore_eos = true;
    job.sampling.logits_hash = true;
    return job;
}

di_request *di_submit_job(di_engine *engine, const di_job *job, di_status *status, di_error *error) {
    di_segment segment = {.token_ids = job->ids, .token_count = job->count};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling = job->sampling;
    params.id = job->id;
    params.priority = job->priority;
    params.owner = job->owner;
    params.tenant = job->tenant;
    params.deadline_ms = job->deadline_ms;
    params.draft_records = true; /* they change nothing else */
    di_request *request = NULL;
    di_error unused;
    if (!error) error = &unused;
    di_status result = di_submit(engine, &params, &request, error);
    if (result == DI_OK)
        assert_non_null(request);
    else
        assert_null(request);
    if (status)
        *status = result;
    else if (result != DI_OK)
        fail_msg("di_submit: %s", error->message);
    return request;
}

static uint64_t fold(uint64_t hash, const void *bytes, size_t length) {
    return XXH64(bytes, length, hash);
}

static uint64_t fold_logprobs(uint64_t hash, const di_event *event) {
    hash = fold(hash, &event->logprob, sizeof event->logprob);
    for (size_t i = 0; i < event->top_count; i++) {
        hash = fold(hash, &event->top[i].token_id, sizeof event->top[i].token_id);
        hash = fold(hash, &event->top[i].logprob, sizeof event->top[i].logprob);
    }
    return hash;
}

static void take_token(di_outcome *o, const di_event *e) {
    uint64_t *digest = &o->samples[e->sample];
    assert_false(o->finished[e->sample]);
    if (e->sample == 0 && o->tokens[0] < DI_JOB_OUTPUT) o->ids[o->tokens[0]] = e->token_id;
    o->tokens[e->sample]++;
    *digest = fold(*digest, &e->token_id, sizeof e->token_id);
    *digest = fold(*digest, &e->position, sizeof e->position);
    *digest = fold_logprobs(*digest, e);
    *digest = fold(*digest, &e->text_length, sizeof e->text_length);
    if (e->text_length) *digest = fold(*digest, e->text, e->text_length);
}

static void take_finish(di_outcome *o, const di_event *e) {
    uint64_t *digest = &o->samples[e->sample];
    assert_false(o->finished[e->sample]);
    o->finished[e->sample] = true;
    if (e->sample == 0) o->reason = e->finish_reason;
    *digest = fold(*digest, &e->finish_reason, sizeof e->finish_reason);
    *digest = fold(*digest, &e->stop_token_id, sizeof e->stop_token_id);
    *digest = fold(*digest, &e->logits_hash, sizeof e->logits_hash);
    if (e->stop_string) *digest = fold(*digest, e->stop_string, strlen(e->stop_string));
    if (e->text_length) *digest = fold(*digest, e->text, e->text_length);
}

void di_take_event(di_outcome *o, const di_event *e) {
    assert_false(o->done);
    assert_true(e->sample >= 0 && e->sample < DI_JOB_SAMPLES);
    switch (e->kind) {
    case DI_EVENT_PROMPT:
        assert_int_equal(o->prompt_tokens + o->tokens[0], 0);
        break;
    case DI_EVENT_PROMPT_TOKEN:
        assert_int_equal(e->position, o->prompt_tokens);
        assert_int_equal(o->tokens[0], 0);
        o->prompt_tokens++;
        o->prompt = fold(o->prompt, &e->token_id, sizeof e->token_id);
        if (e->position) o->prompt = fold_logprobs(o->prompt, e);
        break;
    case DI_EVENT_TOKEN:
        take_token(o, e);
        break;
    case DI_EVENT_FINISH:
        take_finish(o, e);
        break;
    case DI_EVENT_DONE:
        o->done = true;
        o->status = e->status;
        o->error = e->error;
        o->usage = e->usage;
        o->timings = e->timings;
        o->seed = e->seed;
        break;
    default:
        fail_msg("event of kind %d", e->kind);
    }
}

void di_drain(di_request *request, di_outcome *outcome) {
    di_event event;
    while (di_request_next(request, -1, &event)) di_take_event(outcome, &event);
    assert_true(outcome->done);
    assert_false(di_request_next(request, 0, &event));
    di_request_free(request);
}

void di_run_job(di_engine *engine, const di_job *job, di_outcome *outcome) {
    memset(outcome, 0, sizeof *outcome);
    if (job->score) {
        outcome->status = di_score(engine, job->ids, job->count, NULL, NULL, &outcome->prompt, &outcome->error);
        outcome->done = true;
    } else {
        di_drain(di_submit_job(engine, job, NULL, NULL), outcome);
    }
}

void di_assert_same(const di_outcome *expected, const di_outcome *got, const char *what) {
    if (expected->status != got->status)
        fail_msg("%s: status %s, expected %s (%s)", what, di_status_name(got->status), di_status_name(expected->status),
                 got->error.message);
    if (expected->prompt_tokens != got->prompt_tokens || expected->prompt != got->prompt)
        fail_msg("%s: prompt rows differ (%u and %u of them)", what, got->prompt_tokens, expected->prompt_tokens);
    for (int i = 0; i < DI_JOB_SAMPLES; i++) {
        uint32_t at = 0;
        while (i == 0 && at < DI_JOB_OUTPUT && expected->ids[at] == got->ids[at]) at++;
        if (expected->tokens[i] != got->tokens[i] || expected->samples[i] != got->samples[i])
            fail_msg("%s: sample %d differs: %u tokens, expected %u; ids are equal up to output %u", what, i,
                     got->tokens[i], expected->tokens[i], at);
    }
}

uint64_t di_engine_counter(di_engine *engine, di_counter_id id) {
    return di_counter(&engine->metrics, id);
}

int64_t di_engine_gauge(di_engine *engine, di_gauge_id id) {
    return atomic_load(&engine->metrics.gauges[id]);
}

static bool is_idle(di_engine *engine) {
    static const di_gauge_id zero[] = {DI_GAUGE_QUEUE, DI_GAUGE_RUNNING, DI_GAUGE_SWAPPED, DI_GAUGE_SWAP_BYTES};
    for (size_t i = 0; i < sizeof zero / sizeof *zero; i++)
        if (di_engine_gauge(engine, zero[i]) != 0) return false;
    return !engine->hub->waiting &&
           di_engine_counter(engine, DI_COUNT_REQUESTS_SUBMITTED) ==
               di_engine_counter(engine, DI_COUNT_REQUESTS_FINISHED) &&
           di_engine_gauge(engine, DI_GAUGE_PAGES_SEQUENCES) == 0 &&
           di_engine_gauge(engine, DI_GAUGE_PAGES_USED) == di_engine_gauge(engine, DI_GAUGE_PAGES_CACHE);
}

void di_assert_idle(di_engine *engine) {
    for (int i = 0; i < 6000 && !is_idle(engine); i++) usleep(10000);
    if (is_idle(engine)) return;
    di_text metrics = {0};
    di_metrics_write_prometheus(&engine->metrics, &metrics);
    fprintf(stderr, "%s", metrics.data);
    di_text_free(&metrics);
    fail_msg("the engine did not come to rest");
}

/* ---------------------------------------------------------------- how much */

static bool long_run;

void di_test_arguments(int count, char **values) {
    const char *wanted = getenv("DI_TEST_LONG");
    long_run = wanted && *wanted && *wanted != '0';
    for (int i = 1; i < count; i++) {
        if (strcmp(values[i], "long") == 0)
            long_run = true;
        else
            cmocka_set_test_filter(values[i]);
    }
}

bool di_test_long(void) {
    return long_run;
}

bool di_test_slow(void) {
    return DI_TEST_SLOW;
}

uint32_t di_roll(di_dice *dice, uint32_t below) {
    dice->state = dice->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((dice->state >> 33) % below);
}
