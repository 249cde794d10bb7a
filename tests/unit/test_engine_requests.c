/* needs: engine cache sampling model backend_cpu tokenizer checkpoint tensor base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>
#include <pthread.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/text.h"
#include "engine/engine.h"
#include "tokenizer/tokenizer.h"

#define NANO DI_TEST_DATA "/nano"
enum { VOCABULARY = 704, MOST = 512 };

/* Everything one sample produced. */
typedef struct sample_result {
    int32_t ids[MOST];
    float logprobs[MOST];
    size_t count;
    di_text text;
    di_finish_reason reason;
    int32_t stop_token;
    char stop_string[64];
    uint64_t hash;
} sample_result;

typedef struct result {
    sample_result samples[8];
    int32_t prompt_ids[MOST];
    float prompt_logprobs[MOST];
    size_t prompt_count, top_count;
    di_status status;
    di_error error;
    uint64_t seed;
    di_usage usage;
} result;

static void result_free(result *r) {
    for (size_t i = 0; i < 8; i++) di_text_free(&r->samples[i].text);
}

static di_engine *open_nano(const di_option *options, size_t count) {
    di_engine *engine = NULL;
    di_error error = {0};
    if (di_open(NANO, options, count, &engine, &error) != DI_OK) fail_msg("di_open: %s", error.message);
    return engine;
}

/* Ids that look like text but are not: a fixed walk through the vocabulary without control ids. Filled by main. */
static int32_t walk_ids[MOST];

static const int32_t *walk(size_t count) {
    assert_true(count <= MOST);
    return walk_ids;
}

static void take(result *r, const di_event *event) {
    sample_result *s = &r->samples[event->sample];
    if (event->kind == DI_EVENT_TOKEN) {
        assert_true(s->count < MOST);
        s->ids[s->count] = event->token_id;
        s->logprobs[s->count++] = event->logprob;
        r->top_count = event->top_count;
    }
    if (event->kind == DI_EVENT_PROMPT_TOKEN) {
        assert_int_equal(event->position, r->prompt_count);
        r->prompt_ids[r->prompt_count] = event->token_id;
        r->prompt_logprobs[r->prompt_count++] = event->logprob;
    }
    if (event->kind == DI_EVENT_FINISH) {
        assert_int_equal(s->reason, DI_FINISH_NONE);
        s->reason = event->finish_reason;
        s->stop_token = event->stop_token_id;
        if (event->stop_string) strncpy(s->stop_string, event->stop_string, sizeof s->stop_string - 1);
        s->hash = event->logits_hash;
    }
    if (event->text_length) di_text_append(&s->text, event->text, event->text_length);
}

static void collect(di_request *request, result *r) {
    di_event event;
    bool done = false;
    while (di_request_next(request, -1, &event)) {
        assert_false(done);
        take(r, &event);
        done = event.kind == DI_EVENT_DONE;
        if (!done) continue;
        r->status = event.status;
        r->error = event.error;
        r->seed = event.seed;
        r->usage = event.usage;
    }
    assert_true(done);
    assert_false(di_request_next(request, -1, &event));
}

static void run(di_engine *engine, const int32_t *ids, size_t count, const di_sampling *sampling, result *r) {
    di_segment segment = {.token_ids = ids, .token_count = count};
    di_request_params params;
    di_request *request = NULL;
    di_error error = {0};
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling = *sampling;
    memset(r, 0, sizeof *r);
    if (di_submit(engine, &params, &request, &error) != DI_OK) fail_msg("di_submit: %s", error.message);
    collect(request, r);
    di_request_free(request);
}

static di_sampling greedy(int64_t tokens) {
    di_sampling sampling;
    di_sampling_default(&sampling);
    sampling.temperature = 0;
    sampling.max_tokens = tokens;
    sampling.ignore_eos = true;
    sampling.logits_hash = true;
    return sampling;
}

typedef struct score_rows {
    float *rows; /* [count][VOCABULARY] */
} score_rows;

static bool keep_row(void *arg, size_t row, const float *logits) {
    memcpy(((score_rows *)arg)->rows + row * VOCABULARY, logits, VOCABULARY * sizeof *logits);
    return true;
}

static float *score(di_engine *engine, const int32_t *ids, size_t count, uint64_t *hash) {
    di_error error = {0};
    score_rows rows = {calloc(count * VOCABULARY, sizeof(float))};
    if (di_score(engine, ids, count, keep_row, &rows, hash, &error) != DI_OK) fail_msg("di_score: %s", error.message);
    return rows.rows;
}

/* ---------------------------------------------------------------- what is produced */

/* Rule 14, computed here from the rows of di_score: prompt end .. last token but one. */
static void hash_is_that_of_the_rows_that_gave_the_tokens(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(20);
    result r;
    run(engine, walk(45), 45, &sampling, &r);
    assert_int_equal(r.status, DI_OK);
    assert_int_equal(r.samples[0].count, 20);
    assert_int_equal(r.samples[0].reason, DI_FINISH_LENGTH);
    assert_int_equal(r.usage.prompt_tokens, 45);
    assert_int_equal(r.usage.completion_tokens, 20);
    int32_t all[65];
    memcpy(all, walk(45), 45 * sizeof *all);
    memcpy(all + 45, r.samples[0].ids, 20 * sizeof *all);
    uint64_t whole = 0, hash = 0, tail = 0;
    float *rows = score(engine, all, 65, &whole);
    for (size_t i = 0; i < 65; i++) hash = XXH64(rows + i * VOCABULARY, VOCABULARY * sizeof *rows, hash);
    for (size_t i = 44; i < 64; i++) tail = XXH64(rows + i * VOCABULARY, VOCABULARY * sizeof *rows, tail);
    assert_true(whole == hash);
    assert_true(r.samples[0].hash == tail);
    free(rows);
    result_free(&r);
    di_close(engine);
}

static void chunks_rows_and_threads_change_nothing(void **state) {
    (void)state;
    static const di_option settings[][3] = {
        {{"chunk", "1"}, {"threads", "1"}, {"max-rows", "256"}},
        {{"chunk", "7"}, {"threads", "2"}, {"max-rows", "64"}},
        {{"chunk", "64"}, {"threads", "3"}, {"max-rows", "16"}},
        {{"chunk", "0"}, {"threads", "1"}, {"max-rows", "3"}},
        {{"chunk", "128"}, {"threads", "5"}, {"max-rows", "128"}},
    };
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        di_engine *engine = open_nano(settings[i], 3);
        di_sampling sampling = greedy(12);
        sampling.temperature = 1;
        sampling.has_seed = true;
        sampling.seq_seed = 77;
        result r;
        run(engine, walk(150), 150, &sampling, &r);
        if (i == 0) hash = r.samples[0].hash;
        assert_int_equal(r.samples[0].count, 12);
        assert_true(r.samples[0].hash == hash);
        result_free(&r);
        di_close(engine);
    }
}

static void samples_share_the_prompt_and_differ_in_noise(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(16);
    result one, many;
    run(engine, walk(33), 33, &sampling, &one);
    sampling.n = 4;
    run(engine, walk(33), 33, &sampling, &many);
    assert_int_equal(many.usage.completion_tokens, 64);
    for (size_t i = 0; i < 4; i++) { /* greedy: all as the one */
        assert_int_equal(many.samples[i].count, 16);
        assert_memory_equal(many.samples[i].ids, one.samples[0].ids, 16 * sizeof(int32_t));
        assert_true(many.samples[i].hash == one.samples[0].hash);
    }
    result_free(&one);
    result_free(&many);

    sampling.temperature = 1;
    sampling.has_seed = true;
    sampling.seq_seed = 5;
    run(engine, walk(33), 33, &sampling, &many);
    sampling.n = 1;
    run(engine, walk(33), 33, &sampling, &one);
    assert_true(many.seed == 5 && one.seed == 5);
    assert_memory_equal(many.samples[0].ids, one.samples[0].ids, 16 * sizeof(int32_t));
    assert_true(many.samples[0].hash == one.samples[0].hash);
    assert_memory_not_equal(many.samples[1].ids, many.samples[0].ids, 16 * sizeof(int32_t));
    assert_memory_not_equal(many.samples[2].ids, many.samples[1].ids, 16 * sizeof(int32_t));
    result_free(&one);
    result_free(&many);
    di_close(engine);
}

static void a_drawn_seed_makes_the_answer_again(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(24);
    sampling.temperature = 1;
    result first, second, other;
    run(engine, walk(9), 9, &sampling, &first);
    run(engine, walk(9), 9, &sampling, &other);
    sampling.has_seed = true;
    sampling.seq_seed = first.seed;
    run(engine, walk(9), 9, &sampling, &second);
    assert_true(second.seed == first.seed && other.seed != first.seed);
    assert_memory_equal(first.samples[0].ids, second.samples[0].ids, 24 * sizeof(int32_t));
    assert_true(first.samples[0].hash == second.samples[0].hash);
    result_free(&first);
    result_free(&second);
    result_free(&other);
    di_close(engine);
}

static void log_probabilities_are_those_of_the_raw_logits(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(5);
    sampling.logprobs = 7;
    sampling.prompt_logprobs = 0;
    result r;
    run(engine, walk(70), 70, &sampling, &r);
    assert_int_equal(r.prompt_count, 70);
    assert_int_equal(r.top_count, 7);
    int32_t all[75];
    memcpy(all, walk(70), 70 * sizeof *all);
    memcpy(all + 70, r.samples[0].ids, 5 * sizeof *all);
    assert_memory_equal(r.prompt_ids, all, 70 * sizeof *all);
    assert_true(isnan(r.prompt_logprobs[0]));
    float *rows = score(engine, all, 75, NULL);
    for (size_t i = 1; i < 75; i++) {
        const float *row = rows + (i - 1) * VOCABULARY;
        double most = row[0], sum = 0;
        for (size_t v = 1; v < VOCABULARY; v++) most = row[v] > most ? row[v] : most;
        for (size_t v = 0; v < VOCABULARY; v++) sum += exp(row[v] - most);
        double expected = row[all[i]] - most - log(sum);
        double got = i < 70 ? r.prompt_logprobs[i] : r.samples[0].logprobs[i - 70];
        assert_true(fabs(got - expected) < 1e-5 * (1 + fabs(expected)));
    }
    free(rows);
    result_free(&r);

    /* Only the prompt is wanted. */
    sampling.max_tokens = 0;
    run(engine, walk(70), 70, &sampling, &r);
    assert_int_equal(r.status, DI_OK);
    assert_int_equal(r.prompt_count, 70);
    assert_int_equal(r.samples[0].count, 0);
    assert_int_equal(r.samples[0].reason, DI_FINISH_LENGTH);
    result_free(&r);
    di_close(engine);
}

/* ---------------------------------------------------------------- where it ends */

static void forced(di_engine *engine, const char *text, di_sampling *sampling, di_ids *ids) {
    assert_int_equal(di_tokenizer_encode(di_engine_tokenizer(engine), text, strlen(text), true, ids, NULL), DI_OK);
    sampling->golden_token_ids = ids->data;
    sampling->golden_token_count = ids->count;
    sampling->max_tokens = (int64_t)ids->count;
}

static void stop_strings_end_an_answer_across_tokens(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(0);
    di_ids ids = {0};
    const char *stops[] = {"zebra", "quick br"};
    forced(engine, "The quick brown fox", &sampling, &ids);
    assert_true(ids.count > 6);
    sampling.stop = stops;
    sampling.stop_count = 2;
    result r;
    run(engine, walk(3), 3, &sampling, &r);
    assert_int_equal(r.samples[0].reason, DI_FINISH_STOP);
    assert_string_equal(r.samples[0].stop_string, "quick br");
    assert_string_equal(r.samples[0].text.data, "The ");
    assert_true(r.samples[0].count < ids.count);
    assert_memory_equal(r.samples[0].ids, ids.data, r.samples[0].count * sizeof *ids.data);
    result_free(&r);

    stops[1] = "foxes"; /* begins, but does not come */
    run(engine, walk(3), 3, &sampling, &r);
    assert_int_equal(r.samples[0].reason, DI_FINISH_LENGTH);
    assert_string_equal(r.samples[0].text.data, "The quick brown fox");
    result_free(&r);
    di_ids_free(&ids);
    di_close(engine);
}

static void stop_strings_count_only_while_armed(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(0);
    di_ids ids = {0}, mark = {0};
    assert_int_equal(di_tokenizer_encode(di_engine_tokenizer(engine), "X", 1, false, &mark, NULL), DI_OK);
    assert_int_equal(mark.count, 1);
    int32_t list[16] = {0};
    const char *parts[] = {"a", "X", "b", "a"};
    size_t count = 0;
    for (size_t i = 0; i < 4; i++) {
        ids.count = 0;
        assert_int_equal(di_tokenizer_encode(di_engine_tokenizer(engine), parts[i], 1, false, &ids, NULL), DI_OK);
        list[count++] = ids.data[0];
    }
    const char *stops[] = {"a"};
    sampling.golden_token_ids = list;
    sampling.golden_token_count = count;
    sampling.max_tokens = (int64_t)count;
    sampling.stop = stops;
    sampling.stop_count = 1;
    di_segment segment = {.token_ids = walk(3), .token_count = 3};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling = sampling;
    params.stop_arm_token_id = mark.data[0];
    di_request *request = NULL;
    result r = {0};
    assert_int_equal(di_submit(engine, &params, &request, NULL), DI_OK);
    collect(request, &r);
    di_request_free(request);
    assert_int_equal(r.samples[0].reason, DI_FINISH_STOP);
    assert_string_equal(r.samples[0].text.data, "aXb"); /* the first a came before the mark */
    result_free(&r);
    di_ids_free(&ids);
    di_ids_free(&mark);
    di_close(engine);
}

static void stop_ids_and_eos_end_an_answer_without_text(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_sampling sampling = greedy(0);
    di_ids ids = {0};
    forced(engine, "one two three", &sampling, &ids);
    int32_t stop = ids.data[2];
    sampling.stop_token_ids = &stop;
    sampling.stop_token_count = 1;
    result r;
    run(engine, walk(3), 3, &sampling, &r);
    assert_int_equal(r.samples[0].reason, DI_FINISH_STOP);
    assert_int_equal(r.samples[0].stop_token, stop);
    assert_int_equal(r.samples[0].count, 3);
    di_text two = {0};
    assert_int_equal(di_tokenizer_decode(di_engine_tokenizer(engine), ids.data, 2, false, &two, NULL), DI_OK);
    assert_string_equal(r.samples[0].text.data, two.data);
    result_free(&r);

    int32_t eos = di_engine_model_config(engine)->eos_token_ids[0];
    int32_t list[3] = {ids.data[0], eos, ids.data[1]};
    sampling.golden_token_ids = list;
    sampling.golden_token_count = 3;
    sampling.max_tokens = 3;
    sampling.stop_token_count = 0;
    sampling.ignore_eos = false;
    run(engine, walk(3), 3, &sampling, &r);
    assert_int_equal(r.samples[0].reason, DI_FINISH_STOP);
    assert_int_equal(r.samples[0].stop_token, eos);
    assert_int_equal(r.samples[0].count, 2);
    result_free(&r);
    sampling.ignore_eos = true;
    run(engine, walk(3), 3, &sampling, &r);
    assert_int_equal(r.samples[0].reason, DI_FINISH_LENGTH);
    assert_int_equal(r.samples[0].count, 3);
    assert_string_equal(r.samples[0].text.data, two.data); /* EOS never becomes text */
    result_free(&r);
    di_text_free(&two);
    di_ids_free(&ids);
    di_close(engine);
}

static void the_context_is_a_limit(void **state) {
    (void)state;
    di_option option = {"context", "64"};
    di_engine *engine = open_nano(&option, 1);
    assert_int_equal(di_engine_info(engine)->context, 64);
    di_sampling sampling = greedy(1000);
    result r;
    run(engine, walk(60), 60, &sampling, &r);
    assert_int_equal(r.samples[0].count, 4);
    assert_int_equal(r.samples[0].reason, DI_FINISH_LENGTH);
    result_free(&r);
    for (size_t count = 64; count <= 65; count++) {
        di_segment segment = {.token_ids = walk(count), .token_count = count};
        di_request_params params;
        di_request_params_default(&params);
        params.segments = &segment;
        params.segment_count = 1;
        di_request *request = NULL;
        di_error error = {0};
        assert_int_equal(di_submit(engine, &params, &request, &error), DI_ERR_CONTEXT_LENGTH);
        assert_null(request);
        assert_non_null(strstr(error.message, "64"));
        if (count == 65) assert_non_null(strstr(error.message, "65"));
    }
    assert_int_equal(di_score(engine, walk(65), 65, NULL, NULL, NULL, NULL), DI_ERR_CONTEXT_LENGTH);
    uint64_t hash = 0;
    assert_int_equal(di_score(engine, walk(64), 64, NULL, NULL, &hash, NULL), DI_OK);
    assert_true(hash != 0);
    di_close(engine);
}

/* ---------------------------------------------------------------- compact prefill */

static void compact_equals_off_up_to_what_it_keeps(void **state) {
    (void)state;
    static const char *const keeps[] = {"16", "28"}; /* nano's window is 16 */
    di_engine *off = open_nano(NULL, 0);
    di_sampling sampling = greedy(10);
    for (size_t k = 0; k < 2; k++) {
        uint64_t long_hash = 0;
        static const char *const chunks[] = {"0", "1", "7"};
        for (size_t c = 0; c < 3; c++) {
            di_option options[] = {{"prefill", "compact"}, {"prefill-keep", keeps[k]}, {"chunk", chunks[c]}};
            di_engine *compact = open_nano(options, 3);
            size_t keep = (size_t)atoi(keeps[k]);
            result a, b;
            run(off, walk(keep), keep, &sampling, &a);
            run(compact, walk(keep), keep, &sampling, &b);
            assert_int_equal(b.status, DI_OK);
            assert_true(a.samples[0].hash == b.samples[0].hash);
            result_free(&a);
            result_free(&b);
            run(off, walk(100), 100, &sampling, &a);
            run(compact, walk(100), 100, &sampling, &b);
            assert_true(a.samples[0].hash != b.samples[0].hash);
            if (c == 0) long_hash = b.samples[0].hash;
            assert_true(b.samples[0].hash == long_hash);
            result_free(&a);
            result_free(&b);
            uint64_t x = 0, y = 0;
            free(score(off, walk(100), 100, &x));
            free(score(compact, walk(100), 100, &y));
            assert_true(x == y);
            assert_string_not_equal(di_engine_info(off)->fingerprint, di_engine_info(compact)->fingerprint);
            di_close(compact);
        }
    }
    di_close(off);
}

/* ---------------------------------------------------------------- refusals */

static di_status try_submit(di_engine *engine, const di_request_params *params, di_error *error) {
    di_request *request = NULL;
    memset(error, 0, sizeof *error);
    di_status status = di_submit(engine, params, &request, error);
    if (status != DI_OK) assert_null(request);
    di_request_free(request);
    return status;
}

static void bad_requests_are_refused_by_name(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_segment segment = {.token_ids = walk(5), .token_count = 5};
    di_request_params good, params;
    di_error error;
    di_request_params_default(&good);
    good.segments = &segment;
    good.segment_count = 1;
    params = good;
    params.segment_count = 0;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "prompt");
    static const int32_t outside[] = {5, VOCABULARY}, negative[] = {-1};
    di_segment bad[] = {{.token_ids = outside, .token_count = 2}, {.token_ids = negative, .token_count = 1}};
    for (size_t i = 0; i < 2; i++) {
        params = good;
        params.segments = &bad[i];
        assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, "token_ids");
    }
    di_segment unclear[] = {{.token_count = 5},
                            {.token_ids = walk(5), .token_count = 5, .text = "a", .text_length = 1}};
    for (size_t i = 0; i < 2; i++) {
        di_segment two[] = {segment, unclear[i]};
        params = good;
        params.segments = two;
        params.segment_count = 2;
        assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, "segments[1]");
    }
    params = good;
    params.sampling.so_args.trigger_token_count = 2;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "so_args.trigger_token_ids");
    di_segment broken = {.text = "a\xff", .text_length = 2};
    params = good;
    params.segments = &broken;
    assert_int_not_equal(try_submit(engine, &params, &error), DI_OK);
    params = good;
    params.sampling.temperature = -1;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "temperature");
    params = good;
    params.sampling.temperature = NAN;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
    params = good;
    params.sampling.n = 65;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_LIMIT);
    assert_string_equal(error.param, "n");
    params = good;
    params.sampling.so_args.schema_type = "xml";
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
    params = good;
    params.deadline_ms = -5;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "deadline_ms");
    assert_int_equal(try_submit(engine, &good, &error), DI_OK);
    di_close(engine);

    di_option option = {"prefill", "compact"};
    engine = open_nano(&option, 1);
    params = good;
    params.sampling.prompt_logprobs = 1;
    assert_int_equal(try_submit(engine, &params, &error), DI_ERR_UNSUPPORTED);
    assert_string_equal(error.param, "prompt_logprobs");
    di_close(engine);
}

static void bad_options_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        di_option option;
        di_status status;
    } bad[] = {
        {{"thread", "2"}, DI_ERR_CONFIG},         {{"threads", "-1"}, DI_ERR_CONFIG},
        {{"context", "1048577"}, DI_ERR_CONFIG},  {{"spec", "many"}, DI_ERR_CONFIG},
        {{"cache-ram", "-1"}, DI_ERR_CONFIG},     {{"accelerator", "nvidia"}, DI_ERR_UNSUPPORTED},
        {{"load-format", "gguf"}, DI_ERR_CONFIG}, {{"kv-ram", "1"}, DI_ERR_CONFIG},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        di_engine *engine = NULL;
        di_error error = {0};
        assert_int_equal(di_open(NANO, &bad[i].option, 1, &engine, &error), bad[i].status);
        assert_null(engine);
        assert_string_equal(error.param, bad[i].option.name);
        assert_true(error.message[0] != 0);
    }
    di_engine *engine = NULL;
    di_error error = {0};
    di_option beyond = {"context", "16385"}; /* one above what tiny's positions go to */
    assert_int_equal(di_open(DI_SOURCE_DIR "/models/tiny", &beyond, 1, &engine, &error), DI_ERR_CONFIG);
    assert_non_null(strstr(error.message, "16384"));
    assert_int_equal(di_open("/nonexistent/model", NULL, 0, &engine, &error), DI_ERR_NOT_FOUND);
    assert_int_equal(di_open(DI_TEST_DATA, NULL, 0, &engine, &error), error.status);
    assert_int_not_equal(error.status, DI_OK);
    di_close(NULL);
}

/* Too few pages for the context are refused; a context that nobody asked for is what fits the pages. */
static void pages_and_context_fit_each_other(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    uint64_t bytes = di_engine_least_kv_ram(engine, 640);
    assert_int_equal(di_engine_info(engine)->context, 1048576);
    di_close(engine);
    char size[24];
    snprintf(size, sizeof size, "%llu", (unsigned long long)bytes);
    di_option options[] = {{"kv-ram", size}, {"context", "704"}};
    di_error error = {0};
    engine = open_nano(options, 1);
    assert_int_equal(di_engine_info(engine)->context, 703);
    assert_int_equal(di_engine_least_kv_ram(engine, 703), bytes);
    di_close(engine);
    assert_int_equal(di_open(NANO, options, 2, &engine, &error), DI_ERR_CONFIG);
    assert_string_equal(error.param, "kv-ram");
    assert_non_null(strstr(error.message, size));
    assert_non_null(strstr(error.message, "704"));
    options[1].value = "703";
    engine = open_nano(options, 2);
    di_close(engine);
}

/* ---------------------------------------------------------------- life cycle */

static di_request *submit_long(di_engine *engine, int64_t deadline_ms, int32_t priority) {
    static di_segment segment;
    segment = (di_segment){.token_ids = walk(20), .token_count = 20};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling = greedy(4000);
    params.deadline_ms = deadline_ms;
    params.priority = priority;
    di_request *request = NULL;
    di_error error = {0};
    if (di_submit(engine, &params, &request, &error) != DI_OK) fail_msg("di_submit: %s", error.message);
    return request;
}

static void wait_for_token(di_request *request) {
    di_event event;
    do assert_true(di_request_next(request, -1, &event));
    while (event.kind != DI_EVENT_TOKEN);
}

static void cancel_ends_a_request_at_the_next_step(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_request *running = submit_long(engine, 0, 0), *waiting = submit_long(engine, 0, 0);
    wait_for_token(running);
    di_request_cancel(waiting);
    result r = {0};
    collect(waiting, &r); /* while the other still runs */
    assert_int_equal(r.status, DI_ERR_CANCELLED);
    assert_int_equal(r.samples[0].reason, DI_FINISH_CANCELLED);
    result_free(&r);
    di_request_cancel(running);
    di_event event, last = {0};
    while (di_request_next(running, -1, &event)) last = event;
    assert_int_equal(last.kind, DI_EVENT_DONE);
    assert_int_equal(last.status, DI_ERR_CANCELLED);
    assert_true(last.usage.completion_tokens >= 1 && last.usage.completion_tokens < 4000);
    di_request_free(running);
    di_request_free(waiting);
    di_close(engine);
}

static void a_deadline_ends_a_request(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_request *running = submit_long(engine, 30, 0), *waiting = submit_long(engine, 1, 0);
    for (int i = 0; i < 2; i++) {
        di_event event, last = {0}, finish = {0};
        while (di_request_next(i ? waiting : running, -1, &event)) {
            if (event.kind == DI_EVENT_FINISH) finish = event;
            last = event;
        }
        assert_int_equal(last.status, DI_ERR_DEADLINE);
        assert_int_equal(finish.finish_reason, DI_FINISH_ERROR);
        assert_int_equal(finish.status, DI_ERR_DEADLINE);
        assert_int_equal(finish.error.status, DI_ERR_DEADLINE);
    }
    di_request_free(running);
    di_request_free(waiting);
    di_close(engine);
}

static void a_full_queue_refuses(void **state) {
    (void)state;
    di_option options[] = {{"max-queue", "2"}, {"max-seqs", "1"}};
    di_engine *engine = open_nano(options, 2);
    di_request *running = submit_long(engine, 0, 0);
    wait_for_token(running);
    di_request *first = submit_long(engine, 0, 0), *second = submit_long(engine, 0, 0), *third = NULL;
    di_segment segment = {.token_ids = walk(3), .token_count = 3};
    di_request_params params;
    di_error error = {0};
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    assert_int_equal(di_submit(engine, &params, &third, &error), DI_ERR_QUEUE_FULL);
    assert_string_equal(error.param, "max-queue");
    di_request_free(running);
    wait_for_token(first); /* has left the queue */
    assert_int_equal(di_submit(engine, &params, &third, &error), DI_OK);
    di_request_free(first);
    di_request_free(second);
    di_request_free(third);
    di_close(engine);
}

static void a_higher_priority_goes_first(void **state) {
    (void)state;
    di_option one = {"max-seqs", "1"};
    di_engine *engine = open_nano(&one, 1);
    di_request *running = submit_long(engine, 0, 10);
    wait_for_token(running);
    di_request *low = submit_long(engine, 0, -1), *high = submit_long(engine, 0, 9);
    di_request_free(running);
    wait_for_token(high);
    di_event event;
    assert_false(di_request_next(low, 0, &event));
    di_request_free(high);
    wait_for_token(low);
    di_request_free(low);
    di_close(engine);
}

static void closing_ends_everything_and_leaves_handles_valid(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    di_request *running = submit_long(engine, 0, 0), *waiting = submit_long(engine, 0, 0);
    wait_for_token(running);
    di_close(engine);
    result r = {0};
    collect(waiting, &r);
    assert_int_equal(r.status, DI_ERR_CANCELLED);
    di_event event, last = {0};
    while (di_request_next(running, -1, &event)) last = event;
    assert_int_equal(last.status, DI_ERR_CANCELLED);
    result_free(&r);
    di_request_cancel(running);
    di_request_free(running);
    di_request_free(waiting);
}

static void requests_may_be_dropped_at_any_time(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    for (int i = 0; i < 20; i++) {
        di_request *requests[4];
        for (int k = 0; k < 4; k++) requests[k] = submit_long(engine, k == 3 ? 2 : 0, k);
        usleep((useconds_t)(i * 37 % 900));
        for (int k = 0; k < 4; k++) {
            di_event event;
            if (k == i % 4) di_request_next(requests[k], 1, &event);
            di_request_free(requests[k]);
        }
    }
    di_close(engine);
}

static void *submit_many(void *engine) {
    uint64_t hash = 0;
    for (int i = 0; i < 6; i++) {
        di_sampling sampling = greedy(6);
        result r;
        run(engine, walk(30), 30, &sampling, &r);
        if (i == 0) hash = r.samples[0].hash;
        if (r.samples[0].hash != hash || r.status != DI_OK) hash = 1;
        result_free(&r);
        if (i == 3 && di_score(engine, walk(40), 40, NULL, NULL, NULL, NULL) != DI_OK) hash = 1;
    }
    return (void *)(uintptr_t)hash;
}

static void any_thread_may_submit(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    pthread_t threads[4];
    void *hashes[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, submit_many, engine), 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], &hashes[i]);
    for (int i = 0; i < 4; i++) assert_true((uintptr_t)hashes[i] > 1 && hashes[i] == hashes[0]);
    di_close(engine);
}

static bool stop_at_three(void *arg, size_t row, const float *logits) {
    (void)logits;
    *(size_t *)arg = row;
    return row < 3;
}

static void scoring_stops_when_asked(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    size_t last = 0;
    di_error error = {0};
    assert_int_equal(di_score(engine, walk(300), 300, stop_at_three, &last, NULL, &error), DI_ERR_CANCELLED);
    assert_int_equal(last, 3);
    assert_int_equal(di_score(engine, NULL, 0, NULL, NULL, NULL, &error), DI_ERR_INVALID_ARGUMENT);
    int32_t outside = VOCABULARY;
    assert_int_equal(di_score(engine, &outside, 1, NULL, NULL, NULL, &error), DI_ERR_INVALID_ARGUMENT);
    di_close(engine);
}

static void text_goes_there_and_back(void **state) {
    (void)state;
    di_engine *engine = open_nano(NULL, 0);
    const char *text = "caf\xc3\xa9 <\xef\xbd\x9cUser\xef\xbd\x9c> 12";
    int32_t *ids = NULL, *control = NULL;
    size_t count = 0, control_count = 0, length = 0;
    char *back = NULL;
    assert_int_equal(di_tokenize(engine, text, DI_ZSTRING, false, &ids, &count, NULL), DI_OK);
    assert_int_equal(di_tokenize(engine, text, DI_ZSTRING, true, &control, &control_count, NULL), DI_OK);
    assert_true(control_count < count);
    assert_int_equal(di_detokenize(engine, ids, count, &back, &length, NULL), DI_OK);
    assert_string_equal(back, text);
    assert_int_equal(length, strlen(text));
    di_free(back);
    di_free(ids);
    di_free(control);
    assert_int_equal(di_tokenize(engine, "", 0, false, &ids, &count, NULL), DI_OK);
    assert_int_equal(count, 0);
    di_free(ids);
    assert_int_equal(di_detokenize(engine, NULL, 0, &back, &length, NULL), DI_OK);
    assert_string_equal(back, "");
    di_free(back);
    di_close(engine);
}

int main(void) {
    for (size_t i = 0; i < MOST; i++) walk_ids[i] = (int32_t)(3 + (i * 37 + i * i % 11) % 600);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hash_is_that_of_the_rows_that_gave_the_tokens),
        cmocka_unit_test(chunks_rows_and_threads_change_nothing),
        cmocka_unit_test(samples_share_the_prompt_and_differ_in_noise),
        cmocka_unit_test(a_drawn_seed_makes_the_answer_again),
        cmocka_unit_test(log_probabilities_are_those_of_the_raw_logits),
        cmocka_unit_test(stop_strings_end_an_answer_across_tokens),
        cmocka_unit_test(stop_strings_count_only_while_armed),
        cmocka_unit_test(stop_ids_and_eos_end_an_answer_without_text),
        cmocka_unit_test(the_context_is_a_limit),
        cmocka_unit_test(compact_equals_off_up_to_what_it_keeps),
        cmocka_unit_test(bad_requests_are_refused_by_name),
        cmocka_unit_test(bad_options_are_refused_by_name),
        cmocka_unit_test(pages_and_context_fit_each_other),
        cmocka_unit_test(cancel_ends_a_request_at_the_next_step),
        cmocka_unit_test(a_deadline_ends_a_request),
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(a_higher_priority_goes_first),
        cmocka_unit_test(closing_ends_everything_and_leaves_handles_valid),
        cmocka_unit_test(requests_may_be_dropped_at_any_time),
        cmocka_unit_test(any_thread_may_submit),
        cmocka_unit_test(scoring_stops_when_asked),
        cmocka_unit_test(text_goes_there_and_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
