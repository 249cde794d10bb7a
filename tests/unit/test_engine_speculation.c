/* needs: engine cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* Speculation never changes a byte: ids, text and where it is cut, log-probabilities, hashes of logits, reasons of the
 * end are those of plain decoding, for every length and drafter, alone and in crowds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "engine/engine_internal.h"
#include "support/folder.h"
#include "support/gate.h"
#include "support/requests.h"

#define NANO DI_TEST_DATA "/nano"
#define TINY DI_SOURCE_DIR "/models/tiny"
enum { JOBS = 12 };

static const char *const stops[] = {"an", "e "};
static const int32_t golden[] = {-1, 40, -1, 41, -1, -1, 42};
static const di_logit_bias bias = {.token_id = 50, .bias = 3};

/* Every feature that looks at what was chosen before. */
static di_job job_of(uint32_t i) {
    uint32_t count = 5 + i * 23 % 170;
    di_job job = {.ids = di_walk(i % 5 + 1, count), .count = count, .priority = (int32_t)(i % 3)};
    di_sampling_default(&job.sampling);
    job.sampling.has_seed = true;
    job.sampling.seq_seed = i;
    job.sampling.temperature = i % 4 == 0 ? 0 : i % 4 == 1 ? 0.6f : 1.0f;
    job.sampling.max_tokens = 1 + i * 7 % 60;
    job.sampling.logits_hash = true;
    if (i % 3 == 0) job.sampling.logprobs = (int32_t)(i % 5);
    if (i % 4 == 2) job.sampling.n = 3;
    if (i % 5 == 1) job.sampling.repetition_penalty = 1.3f;
    if (i % 5 == 2) job.sampling.frequency_penalty = 0.5f;
    if (i % 6 == 3) job.sampling.top_k = 5;
    if (i % 6 == 4) job.sampling.top_p = 0.9f;
    if (i % 7 == 5) job.sampling.min_tokens = job.sampling.max_tokens;
    if (i % 7 == 6) job.sampling.prompt_logprobs = 1;
    if (i % 8 == 1) {
        job.sampling.stop = stops;
        job.sampling.stop_count = 2;
    }
    if (i % 8 == 3) {
        job.sampling.golden_token_ids = golden;
        job.sampling.golden_token_count = 7;
    }
    if (i % 8 == 5) {
        job.sampling.logit_bias = &bias;
        job.sampling.logit_bias_count = 1;
    }
    if (i % 8 == 7) job.sampling.ignore_eos = true;
    if (i % 6 == 5 && !job.sampling.ignore_eos) {
        job.sampling.so_args.schema_type = "json_object";
        job.sampling.min_tokens = 0;
        job.sampling.golden_token_count = 0;
    }
    return job;
}

static uint64_t compare(const char *folder, const di_option *options, size_t count, const di_outcome *expected,
                        bool crowd) {
    di_engine *engine = di_open_with(folder, options, count);
    di_request *requests[JOBS];
    for (uint32_t i = 0; i < JOBS; i++) {
        di_job job = job_of(i);
        di_outcome got = {0};
        if (crowd) {
            requests[i] = di_submit_job(engine, &job, NULL, NULL);
            continue;
        }
        di_run_job(engine, &job, &got);
        di_assert_same(&expected[i], &got, options[0].value);
    }
    for (uint32_t i = 0; crowd && i < JOBS; i++) {
        di_outcome got = {0};
        di_drain(requests[i], &got);
        di_assert_same(&expected[i], &got, "crowd");
    }
    di_assert_idle(engine);
    uint64_t drafted = di_engine_counter(engine, DI_COUNT_DRAFTED),
             right = di_engine_counter(engine, DI_COUNT_ACCEPTED);
    assert_true(right <= drafted);
    di_close(engine);
    return drafted;
}

static void run_plain(const char *folder, const di_option *options, size_t count, di_outcome *expected) {
    di_engine *engine = di_open_with(folder, options, count);
    for (uint32_t i = 0; i < JOBS; i++) {
        di_job job = job_of(i);
        di_run_job(engine, &job, &expected[i]);
        assert_int_equal(expected[i].status, DI_OK);
    }
    assert_int_equal(di_engine_counter(engine, DI_COUNT_DRAFTED), 0);
    di_close(engine);
}

static void every_length_gives_the_same(const char *folder) {
    static di_outcome expected[JOBS];
    di_option off[] = {{"spec", "off"}, {"context", "512"}};
    run_plain(folder, off, 2, expected);
    static const char *const lengths[] = {"1", "2", "3", "4", "5", "8", "auto"};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        if (di_test_slow() && lengths[i][0] != '5') continue;
        di_option alone[] = {{"spec", lengths[i]}, {"context", "512"}};
        uint64_t drafted = compare(folder, alone, 2, expected, false);
        if (strcmp(lengths[i], "auto") != 0) assert_true(drafted > 0);
        /* Few pages: preempted and swapped in the middle of it; few rows: drafts do not fit; no room to swap to. */
        di_option crowd[] = {{"spec", lengths[i]},
                             {"context", "512"},
                             {"kv-ram", "least+4"},
                             {"max-rows", "24"},
                             {"swap-ram", i % 2 ? "0" : "1G"}};
        compare(folder, crowd, 5, expected, true);
    }
}

/* Requests that fail on their way, each of its samples somewhere else: no token may follow (the text of the grammar is
 * complete and min_tokens forbids the end), also behind a stop string, or a forced id breaks the grammar. */
static di_job faulty_job(uint32_t i) {
    static const char *const texts[] = {"[a-z ]{6,20}", "[A-Za-z ,.]{4,9}", "( ?[a-z]{1,7}){1,4}"};
    static const char *const ends[] = {"o", "er"};
    static const int32_t forced[] = {-1, -1, -1, -1, 1}; /* EOS */
    di_job job = {.ids = di_walk(i + 1, 20 + i), .count = 20 + i};
    di_sampling_default(&job.sampling);
    job.sampling.has_seed = true;
    job.sampling.seq_seed = i;
    job.sampling.temperature = i % 3 ? 1 : 0;
    job.sampling.max_tokens = 60;
    job.sampling.min_tokens = 50;
    job.sampling.logits_hash = true;
    job.sampling.n = i % 2 ? 4 : 1;
    job.sampling.so_args.schema_type = "regex";
    job.sampling.so_args.schema = texts[i % 3];
    if (i % 4 >= 2) {
        job.sampling.stop = ends;
        job.sampling.stop_count = 2;
    }
    if (i % 6 == 4) {
        job.sampling.min_tokens = 0;
        job.sampling.golden_token_ids = forced;
        job.sampling.golden_token_count = 5;
    }
    return job;
}

static void faults_stand_where_plain_decoding_meets_them(void **state) {
    (void)state;
    enum { FAULTY = 18 };
    static di_outcome expected[FAULTY];
    static const di_option engines[][2] = {
        {{"spec", "off"}, {"max-rows", "256"}},  {{"spec", "1"}, {"max-rows", "256"}},
        {{"spec", "3"}, {"max-rows", "24"}},     {{"spec", "5"}, {"max-rows", "256"}},
        {{"spec", "auto"}, {"max-rows", "256"}}, {{"spec", "off"}, {"max-rows", "4"}},
    };
    uint32_t failed = 0, stopped = 0, drafted = 0;
    for (size_t e = 0; e < sizeof engines / sizeof *engines; e++) {
        if (di_test_slow() && e && e != 3 && e != 5) continue;
        di_engine *engine = di_open_with(TINY, engines[e], 2);
        di_request *requests[FAULTY];
        for (uint32_t i = 0; i < FAULTY; i++) {
            di_job job = faulty_job(i);
            requests[i] = di_submit_job(engine, &job, NULL, NULL);
            if (e) continue;
            di_drain(requests[i], &expected[i]);
            failed += expected[i].status == DI_ERR_INVALID_ARGUMENT;
            stopped += expected[i].reason == DI_FINISH_STOP;
        }
        for (uint32_t i = 0; e && i < FAULTY; i++) {
            di_outcome got = {0};
            di_drain(requests[i], &got);
            di_assert_same(&expected[i], &got, engines[e][0].value);
            assert_string_equal(got.error.message, expected[i].error.message);
        }
        di_assert_idle(engine);
        drafted += di_engine_counter(engine, DI_COUNT_DRAFTED) > 0;
        di_close(engine);
    }
    assert_true(failed > FAULTY / 2 && stopped > 1 && drafted >= (di_test_slow() ? 1 : 3));
}

static void nano_with_its_random_head(void **state) {
    (void)state;
    every_length_gives_the_same(NANO);
}

static void tiny_with_its_trained_head(void **state) {
    (void)state;
    if (di_test_slow()) {
        print_message("not run: too slow under this sanitizer\n");
        skip();
    }
    every_length_gives_the_same(TINY);
}

/* Compact prefill goes without the head: prompt look-up, deeper than a block. The text is made to repeat itself, so
 * that there is something to find. */
static void prompt_look_up(void **state) {
    (void)state;
    static const char *const depths[] = {"6", "7", "8"};
    static const float temperatures[] = {0, 0.6f, 1};
    di_option plain[] = {{"spec", "off"}, {"prefill", "compact"}};
    di_engine *expected_by = di_open_with(TINY, plain, 2);
    for (uint32_t i = 0; i < 9; i++) {
        di_option drafts[] = {{"spec", depths[i / 3]}, {"prefill", "compact"}};
        di_engine *got_by = di_open_with(TINY, drafts, 2);
        di_job job = di_greedy_job(di_walk(1 + i, 60), 60, 60);
        job.sampling.temperature = temperatures[i % 3];
        job.sampling.has_seed = true;
        int32_t again[60];
        for (int j = 0; j < 60; j++) again[j] = j % 20 == 19 ? -1 : job.ids[j % 7];
        job.sampling.golden_token_ids = again;
        job.sampling.golden_token_count = 60;
        job.sampling.ignore_eos = true;
        di_outcome expected, got;
        di_run_job(expected_by, &job, &expected);
        di_run_job(got_by, &job, &got);
        di_assert_same(&expected, &got, "look-up");
        assert_true(di_engine_counter(got_by, DI_COUNT_ACCEPTED) > 5);
        assert_true(di_engine_counter(got_by, DI_COUNT_DRAFT_CYCLES) > 0);
        di_close(got_by);
    }
    di_close(expected_by);
}

/* Tokens of one request, and what its records said of them. */
typedef struct told {
    int32_t ids[256];
    uint32_t count;
    uint64_t records, drafted, accepted, judged;
    float first[4]; /* confidences of the first record */
} told;

static void check_record(const di_draft_record *r, const int32_t *ids, uint32_t count, uint32_t prompt) {
    assert_true(r->accepted <= r->count && r->position >= prompt);
    for (size_t j = 0; j < r->count; j++) {
        uint32_t at = (uint32_t)r->position - prompt + (uint32_t)j;
        if (j < r->accepted) assert_int_equal(r->token_ids[j], ids[at]);
        if (j == r->accepted && at < count) assert_int_not_equal(r->token_ids[j], ids[at]);
        if (r->confidence) assert_true(r->confidence[j] >= 0 && r->confidence[j] <= 1);
    }
}

/* The tokens are known from a run before, so that a record can be checked as it comes. */
static void ask_for_records(di_engine *engine, const di_job *job, const told *known, bool records, told *got) {
    di_segment segment = {.token_ids = job->ids, .token_count = job->count};
    di_request_params params;
    di_request_params_default(&params);
    assert_false(params.draft_records);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling = job->sampling;
    params.draft_records = records;
    di_request *request = NULL;
    di_event event;
    memset(got, 0, sizeof *got);
    assert_int_equal(di_submit(engine, &params, &request, NULL), DI_OK);
    while (di_request_next(request, -1, &event)) {
        if (event.kind == DI_EVENT_TOKEN) got->ids[got->count++] = event.token_id;
        if (event.drafts.count) {
            assert_int_equal(event.kind, DI_EVENT_TOKEN);
            assert_true(event.drafts.position == event.position);
            check_record(&event.drafts, known->ids, known->count, job->count);
            if (!got->records++ && event.drafts.confidence)
                memcpy(got->first, event.drafts.confidence, event.drafts.count * sizeof *got->first);
            got->drafted += event.drafts.count;
            got->accepted += event.drafts.accepted;
            got->judged += event.drafts.confidence != NULL;
        }
        if (event.kind == DI_EVENT_DONE && records) {
            assert_int_equal(got->drafted, event.usage.draft_tokens);
            assert_int_equal(got->accepted, event.usage.accepted_draft_tokens);
        }
    }
    di_request_free(request);
}

static void records_tell_what_became_of_drafts(void **state) {
    (void)state;
    static told known, got;
    for (int32_t head = 0; head < 2; head++) {
        di_option options[] = {{"spec", "4"}, {"prefill", head ? "off" : "compact"}};
        di_engine *engine = di_open_with(TINY, options, 2);
        di_job job = di_greedy_job(di_walk(3, 40), 40, 120);
        ask_for_records(engine, &job, &known, false, &known);
        assert_int_equal(known.records, 0);
        ask_for_records(engine, &job, &known, true, &got);
        assert_memory_equal(known.ids, got.ids, sizeof got.ids);
        assert_true(got.records > 0 && got.accepted > 0 && got.drafted > got.accepted);
        assert_int_equal(got.judged, head ? got.records : 0);
        di_close(engine);
    }
}

/* ---------------------------------------------------------------- a reader between two looks */

enum { FALLS_BEHIND = 30000, POSITIONS = 256 };

/* On the engine's thread, between the look at who may run and the rows: reads what the slow request has. */
typedef struct catching_up {
    di_engine *engine;
    _Atomic(di_request *) slow;
    bool drafted[POSITIONS]; /* positions behind the prompt at which it was drafted for */
    uint32_t times, records, prompt;
    bool over, wrong; /* wrong: a record of drafts that nobody made, or a failure */
} catching_up;

static void take_slow(catching_up *c, const di_event *event) {
    c->over |= event->kind == DI_EVENT_DONE;
    c->wrong |= event->kind == DI_EVENT_DONE && event->status != DI_OK;
    if (!event->drafts.count) return;
    c->records++;
    c->wrong |= !c->drafted[event->drafts.position - c->prompt];
}

static void on_drafts(void *arg, const char *request, int32_t sample, uint32_t at, int32_t *tokens, uint32_t count) {
    catching_up *c = arg;
    di_event event;
    (void)sample;
    (void)tokens;
    (void)count;
    if (strcmp(request, "slow") == 0) {
        if (at < POSITIONS) c->drafted[at] = true;
        return;
    }
    di_request *slow = c->slow;
    if (!slow || di_events_waiting(&slow->events) < FALLS_BEHIND) return;
    while (!c->over && di_request_next(slow, 0, &event)) take_slow(c, &event);
    c->times++;
}

static di_request *submit_drafted(di_engine *engine, const char *id, uint32_t walk, int32_t logprobs) {
    di_job job = di_greedy_job(di_walk(walk, 40), 40, 200);
    job.id = id;
    job.sampling.logprobs = logprobs;
    return di_submit_job(engine, &job, NULL, NULL);
}

static void drafts_are_of_the_step_they_stand_in(void **state) {
    (void)state;
    di_option options[] = {{"spec", "4"}, {"context", "512"}};
    static catching_up c;
    c.engine = di_open_with(NANO, options, 2);
    c.prompt = 40;
    c.engine->event_limit = FALLS_BEHIND;
    di_engine_watch_drafts(c.engine, &(di_draft_watch){.drafts = on_drafts, .arg = &c});
    di_request *other = submit_drafted(c.engine, "other", 1, -1);
    di_event event;
    do assert_true(di_request_next(other, 60000, &event));
    while (event.kind != DI_EVENT_TOKEN);
    di_request *slow = submit_drafted(c.engine, "slow", 2, 200);
    c.slow = slow; /* the engine's thread looks when it drafts */
    while (di_request_next(other, 60000, &event)) {
    }
    while (!c.over && di_request_next(slow, 60000, &event)) take_slow(&c, &event);
    assert_false(c.wrong);
    assert_true(c.records > 0);
    di_request_free(other);
    di_request_free(slow);
    di_close(c.engine);
    print_message("caught up %u times, %u records\n", c.times, c.records);
    assert_true(c.times > 0);
}

/* ---------------------------------------------------------------- costs */

static void *measure_costs(void *arg) {
    di_spec_costs costs;
    di_error error = {0};
    return di_engine_measure_spec(arg, 8, 1, &costs, &error) == DI_OK ? arg : NULL;
}

/* The reader knows that nobody runs; the engine's list does not yet. */
static void costs_are_measured_when_all_are_told_their_end(void **state) {
    (void)state;
    di_option options[] = {{"spec", "4"}, {"context", "512"}};
    di_engine *engine = di_open_with(NANO, options, 2);
    di_gate_on(engine, true);
    di_request *request = submit_drafted(engine, "a", 1, -1);
    assert_true(di_gate_wait(60000, NULL));
    di_request_cancel(request);
    di_event event;
    while (di_request_next(request, 60000, &event)) {
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, measure_costs, engine), 0);
    bool queued = false;
    while (!queued) {
        pthread_mutex_lock(&engine->hub->mutex);
        queued = engine->hub->calls != NULL;
        pthread_mutex_unlock(&engine->hub->mutex);
    }
    di_gate_open(true);
    void *result = NULL;
    pthread_join(thread, &result);
    assert_ptr_equal(result, engine);
    di_request_free(request);
    di_gate_close(engine);
}

/* ---------------------------------------------------------------- calibration */

/* Confidences of a first record with this file, NULL: none is named; the tokens are the same whatever it holds. */
static void run_calibrated(const char *folder, const char *file, const di_job *job, told *known, told *got) {
    di_option options[] = {{"spec", "4"}, {"log-level", "error"}, {"draft-calibration", file}};
    di_engine *engine = di_open_with(folder, options, file ? 3 : 2);
    ask_for_records(engine, job, known->count ? known : got, known->count > 0, got);
    if (known->count) assert_memory_equal(known->ids, got->ids, sizeof got->ids);
    di_close(engine);
}

static void expect_temperature(const told *plain, const told *got, double temperature) {
    for (int j = 0; j < 4; j++) {
        double z = log((double)plain->first[j]) - log1p(-(double)plain->first[j]);
        double wanted = 1 / (1 + exp(-z / temperature));
        assert_true(fabs(wanted - (double)got->first[j]) < 1e-4);
    }
}

static void write_calibration(di_folder *folder, const char *name, const char *format, uint64_t digest) {
    char text[256];
    snprintf(text, sizeof text, format, (unsigned long long)digest);
    di_folder_write(folder, name, text, strlen(text));
}

#define CALIBRATION "{\"draft_calibration\": 1, \"weights\": \"%016llx\", \"temperatures\": "

/* A file that was named is used or refused by its name. */
static void refuse_calibration(const char *file) {
    di_option options[] = {{"spec", "4"}, {"draft-calibration", file}, {"log-level", "error"}};
    di_engine *engine = NULL;
    di_error error = {0};
    assert_int_not_equal(di_open(TINY, options, 3, &engine, &error), DI_OK);
    assert_null(engine);
    if (!strstr(error.message, file)) fail_msg("'%s' does not name %s", error.message, file);
}

/* A file beside the weights that cannot be used is left alone: drafts go on without. */
static void calibration_is_read(void **state) {
    (void)state;
    static told known, plain, got;
    static const char *const broken[] = {CALIBRATION "[2, 2, 2, 2, 0]}",
                                         CALIBRATION "[]}",
                                         CALIBRATION "\"2\"}",
                                         CALIBRATION "[1e999, 2, 2, 2]}",
                                         CALIBRATION "[2, 2",
                                         "%llu",
                                         "\xff\x00%llu"};
    di_job job = di_greedy_job(di_walk(3, 40), 40, 40);
    memset(&known, 0, sizeof known);
    run_calibrated(TINY, "off", &job, &known, &plain);
    known = plain;
    run_calibrated(TINY, "off", &job, &known, &plain);
    assert_int_equal(plain.judged, plain.records);
    di_option none[] = {{"spec", "off"}};
    di_engine *engine = di_open_with(TINY, none, 1);
    uint64_t digest = di_model_digest(engine->model);
    di_close(engine);

    di_folder folder = di_folder_new(TINY);
    char path[300];
    snprintf(path, sizeof path, "%s/temperatures", folder.path);
    write_calibration(&folder, "temperatures", CALIBRATION "[2, 2, 2, 2, 2]}", digest);
    run_calibrated(TINY, path, &job, &known, &got);
    expect_temperature(&plain, &got, 2);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_calibration(&folder, "temperatures", broken[i], digest);
        refuse_calibration(path);
        write_calibration(&folder, "draft_calibration.json", broken[i], digest);
        run_calibrated(folder.path, NULL, &job, &known, &got); /* it was not asked for */
        expect_temperature(&plain, &got, 1);
    }
    write_calibration(&folder, "temperatures", CALIBRATION "[2, 2, 2, 2, 2]}", digest + 1); /* other weights */
    refuse_calibration(path);
    refuse_calibration(folder.path);
    refuse_calibration("/nonexistent");

    write_calibration(&folder, "draft_calibration.json", CALIBRATION "[0.5, 0.5, 0.5, 0.5, 0.5]}", digest);
    run_calibrated(folder.path, NULL, &job, &known, &got); /* found beside the weights */
    expect_temperature(&plain, &got, 0.5);
    run_calibrated(folder.path, "off", &job, &known, &got);
    expect_temperature(&plain, &got, 1);
    di_folder_delete(&folder);
}

int main(int argc, char **argv) {
    di_test_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nano_with_its_random_head),
        cmocka_unit_test(tiny_with_its_trained_head),
        cmocka_unit_test(faults_stand_where_plain_decoding_meets_them),
        cmocka_unit_test(prompt_look_up),
        cmocka_unit_test(records_tell_what_became_of_drafts),
        cmocka_unit_test(drafts_are_of_the_step_they_stand_in),
        cmocka_unit_test(costs_are_measured_when_all_are_told_their_end),
        cmocka_unit_test(calibration_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
