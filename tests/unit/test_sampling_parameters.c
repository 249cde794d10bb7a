/* needs: sampling backend_cpu tensor base */
/* Ranges and their messages, the JSON form, copies, seeds, the stop rule, and a sampler against the arithmetic. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sampling/sampling.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const di_sampling defaults = {.temperature = 1,
                                     .top_p = 1,
                                     .max_tokens = -1,
                                     .n = 1,
                                     .logprobs = -1,
                                     .prompt_logprobs = -1,
                                     .repetition_penalty = 1,
                                     .so_args = {.bound_token_id = -1}};
static const di_sampling_limits limits = {100, 2};

static void refused(const di_sampling *sampling, const char *param) {
    di_error error = {0};
    assert_int_not_equal(di_sampling_check(sampling, &limits, &error), DI_OK);
    assert_string_equal(error.param, param);
    assert_non_null(strstr(error.message, param));
}

static void test_ranges(void **state) {
    (void)state;
    assert_int_equal(di_sampling_check(&defaults, &limits, NULL), DI_OK);
#define EDGE(member, good, bad)                                                                                        \
    do {                                                                                                               \
        di_sampling edge = defaults;                                                                                   \
        edge.member = (good);                                                                                          \
        assert_int_equal(di_sampling_check(&edge, &limits, NULL), DI_OK);                                              \
        edge.member = (bad);                                                                                           \
        refused(&edge, #member);                                                                                       \
    } while (0)
    EDGE(temperature, 0, -1e-30f);
    EDGE(temperature, 1e6f, INFINITY);
    EDGE(temperature, 1e-45f, NAN);
    EDGE(top_p, 1e-45f, 0);
    EDGE(top_p, 1, 1.0000002f);
    EDGE(top_p, 0.5f, NAN);
    EDGE(top_k, -1, -2);
    EDGE(min_p, 1, 1.0000002f);
    EDGE(min_p, 0, -0.1f);
    EDGE(max_tokens, 0, -2);
    EDGE(min_tokens, 0, -1);
    EDGE(n, 4096, 4097);
    EDGE(n, 2, 0);
    EDGE(logprobs, 1000, 1001);
    EDGE(logprobs, 0, -2);
    EDGE(prompt_logprobs, 1000, 1001);
    EDGE(repetition_penalty, 0.1f, 0);
    EDGE(repetition_penalty, 2, NAN);
    EDGE(presence_penalty, -2, -2.1f);
    EDGE(frequency_penalty, 2, 2.1f);
    EDGE(first_n_token_no_eos, 3, -1);
    di_sampling s = defaults;
    s.so_args.schema_type = "json";
    s.ignore_eos = true;
    refused(&s, "so_args");
}

static void test_lists(void **state) {
    (void)state;
    di_sampling s = defaults;
    int32_t ids[] = {0, 99, -1};
    s.stop_token_ids = ids;
    s.stop_token_count = 2;
    assert_int_equal(di_sampling_check(&s, &limits, NULL), DI_OK);
    s.stop_token_count = 3;
    refused(&s, "stop_token_ids");
    s = defaults;
    s.golden_token_ids = ids;
    s.golden_token_count = 3;
    assert_int_equal(di_sampling_check(&s, &limits, NULL), DI_OK);
    ids[1] = 100;
    refused(&s, "golden_token_ids");
    s.golden_token_ids = NULL;
    refused(&s, "golden_token_ids");
    s = defaults;
    di_logit_bias bias[] = {{7, 100}, {3, -100}, {7, 1}};
    s.logit_bias = bias;
    s.logit_bias_count = 2;
    assert_int_equal(di_sampling_check(&s, &limits, NULL), DI_OK);
    bias[0].bias = 1000;
    refused(&s, "logit_bias");
    bias[0].bias = NAN;
    refused(&s, "logit_bias");
    bias[0] = (di_logit_bias){100, 1};
    refused(&s, "logit_bias");
    s = defaults;
    const char *stop[] = {"a", "", "\xff"};
    s.stop = stop;
    s.stop_count = 1;
    assert_int_equal(di_sampling_check(&s, &limits, NULL), DI_OK);
    s.stop_count = 2;
    refused(&s, "stop");
    stop[1] = stop[2];
    refused(&s, "stop");
    s.stop_count = 3;
    di_error error;
    assert_int_equal(di_sampling_check(&s, &limits, &error), DI_ERR_LIMIT);
    s = defaults;
    s.max_tokens = 4;
    s.min_tokens = 5;
    refused(&s, "min_tokens");
}

static void test_copy(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    char text[] = "stop";
    const char *stop[] = {text};
    int32_t ids[] = {4, 5};
    di_logit_bias bias[] = {{7, 1}, {3, 2}};
    di_sampling s = defaults, copy;
    s.stop = stop;
    s.stop_count = 1;
    s.stop_token_ids = s.golden_token_ids = ids;
    s.stop_token_count = s.golden_token_count = 2;
    s.logit_bias = bias;
    s.logit_bias_count = 2;
    assert_int_equal(di_sampling_copy(arena, &s, &copy, NULL), DI_OK);
    text[0] = 'X';
    stop[0] = NULL;
    ids[0] = 9;
    bias[0].token_id = bias[1].token_id = 8;
    assert_string_equal(copy.stop[0], "stop");
    assert_int_equal(copy.stop_token_ids[0], 4);
    assert_int_equal(copy.golden_token_ids[1], 5);
    assert_int_equal(copy.logit_bias[0].token_id, 3);
    assert_int_equal(copy.logit_bias[1].token_id, 7);
    stop[0] = text;
    di_error error;
    assert_int_equal(di_sampling_copy(arena, &s, &copy, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "logit_bias");
    di_arena_free(arena);
}

/* ---------------------------------------------------------------------------------------------- JSON */

static di_status parse(di_arena *arena, const char *text, di_sampling *s, di_error *error) {
    const di_json *root;
    assert_int_equal(di_json_parse(arena, text, strlen(text), 0, &root, error), DI_OK);
    *s = defaults;
    return di_sampling_parse(arena, root, s, error);
}

static void test_json(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_sampling s;
    di_error error;
    assert_int_equal(parse(arena, "{}", &s, &error), DI_OK);
    assert_memory_equal(&s, &defaults, sizeof s);
    const char *all =
        "{\"temperature\":0.7,\"top_p\":0.9,\"top_k\":-1,\"min_p\":0.1,\"max_tokens\":16,\"min_tokens\":2,"
        "\"stop\":[\"a\",\"b\"],\"stop_token_ids\":[1,2,3],\"ignore_eos\":true,\"n\":4,"
        "\"seq_seed\":18446744073709551615,\"logprobs\":5,\"prompt_logprobs\":0,\"repetition_penalty\":1.1,"
        "\"presence_penalty\":-2,\"frequency_penalty\":2.0,\"logit_bias\":{\"0\":-100,\"17\":1e0},"
        "\"golden_token_ids\":[-1,5],\"first_n_token_no_eos\":1,\"so_args\":null,\"logits_hash\":true}";
    if (parse(arena, all, &s, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_sampling_check(&s, &limits, NULL), DI_OK);
    assert_true(s.temperature == 0.7f && s.top_p == 0.9f && s.top_k == -1 && s.min_p == 0.1f);
    assert_true(s.max_tokens == 16 && s.min_tokens == 2 && s.stop_count == 2 && s.stop_token_count == 3);
    assert_string_equal(s.stop[1], "b");
    assert_true(s.ignore_eos && s.n == 4 && s.has_seed && s.seq_seed == UINT64_MAX && s.logprobs == 5);
    assert_true(s.prompt_logprobs == 0 && s.repetition_penalty == 1.1f && s.presence_penalty == -2);
    assert_true(s.frequency_penalty == 2 && s.logit_bias_count == 2 && s.logit_bias[1].token_id == 17);
    assert_true(s.golden_token_count == 2 && s.golden_token_ids[0] == -1 && s.first_n_token_no_eos == 1);
    assert_true(s.logits_hash);
    assert_int_equal(parse(arena, "{\"seed\":1.0e1,\"stop\":\"x\",\"temperature\":null}", &s, &error), DI_OK);
    assert_true(s.has_seed && s.seq_seed == 10 && s.stop_count == 1 && s.temperature == 1);
    di_arena_free(arena);
}

static void test_json_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *param, *says;
    } cases[] = {
        {"[]", "sampling_params", "object"},
        {"{\"temperatur\":1}", "temperatur", "temperature"},
        {"{\"zzzzzzzzzz\":1}", "zzzzzzzzzz", "unknown"},
        {"{\"temperature\":\"1\"}", "temperature", "a number"},
        {"{\"temperature\":-0.5}", "temperature", "-0.5"},
        {"{\"temperature\":1e-60}", "temperature", "1e-60"},
        {"{\"temperature\":1e400}", "temperature", "1e400"},
        {"{\"temperature\":1,\"temperature\":1}", "temperature", "twice"},
        {"{\"top_p\":0}", "top_p", "above 0"},
        {"{\"top_p\":1.00000000001}", "top_p", "1.00000000001"},
        {"{\"top_k\":1.5}", "top_k", "integer"},
        {"{\"top_k\":2147483648}", "top_k", "2147483648"},
        {"{\"max_tokens\":-2}", "max_tokens", "-2"},
        {"{\"max_tokens\":true}", "max_tokens", "an integer"},
        {"{\"n\":0}", "n", "1 .. 4096"},
        {"{\"logprobs\":1001}", "logprobs", "1000"},
        {"{\"ignore_eos\":1}", "ignore_eos", "true or false"},
        {"{\"logits_hash\":\"yes\"}", "logits_hash", "true or false"},
        {"{\"seed\":-1}", "seed", "-1"},
        {"{\"seq_seed\":18446744073709551616}", "seq_seed", "18446744073709551615"},
        {"{\"seq_seed\":1,\"seed\":1}", "seed", "give one"},
        {"{\"seed\":1,\"seed\":1}", "seed", "twice"},
        {"{\"stop\":1}", "stop", "strings"},
        {"{\"stop\":[\"a\",1]}", "stop", "stop[1]"},
        {"{\"stop\":[\"\"]}", "stop", "empty"},
        {"{\"stop\":\"a\\u0000b\"}", "stop", "zero"},
        {"{\"stop_token_ids\":[-1]}", "stop_token_ids", "stop_token_ids[0]"},
        {"{\"stop_token_ids\":1}", "stop_token_ids", "list"},
        {"{\"golden_token_ids\":[0,-2]}", "golden_token_ids", "golden_token_ids[1]"},
        {"{\"logit_bias\":{\"5\":1000}}", "logit_bias", "1000"},
        {"{\"logit_bias\":{\"5\":null}}", "logit_bias", "null"},
        {"{\"logit_bias\":{\"05\":1}}", "logit_bias", "05"},
        {"{\"logit_bias\":{\"-5\":1}}", "logit_bias", "-5"},
        {"{\"logit_bias\":{\"4294967297\":1}}", "logit_bias", "4294967297"},
        {"{\"logit_bias\":[]}", "logit_bias", "object"},
        {"{\"so_args\":[]}", "so_args", "object"},
        {"{\"so_args\":{}}", "so_args.schema_type", "missing"},
        {"{\"so_args\":{\"schema_type\":5}}", "so_args.schema_type", "string"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"schema\":5}}", "so_args.schema", "schema"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"schema\":\"\\u0000\"}}", "so_args.schema", "zero"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"scheme\":\"{}\"}}", "so_args", "scheme"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"schema_type\":\"regex\"}}", "so_args", "twice"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"bound_token_id\":-1}}", "so_args.bound_token_id", "id"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"trigger_token_ids\":5}}", "so_args.trigger_token_ids", "list"},
        {"{\"so_args\":{\"schema_type\":\"json\",\"trigger_required\":1}}", "so_args.trigger_required", "true"},
    };
    di_arena *arena = di_arena_new(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_sampling s;
        di_error error = {0};
        if (parse(arena, cases[i].text, &s, &error) == DI_OK) fail_msg("%s was accepted", cases[i].text);
        assert_string_equal(error.param, cases[i].param);
        if (!strstr(error.message, cases[i].says)) fail_msg("%s: \"%s\"", cases[i].text, error.message);
    }
    di_arena_free(arena);
}

/* ---------------------------------------------------------------------------------------------- seeds, stops */

static void test_seed_and_key(void **state) {
    (void)state;
    di_sampling s = defaults;
    uint64_t a, b;
    assert_int_equal(di_sampling_seed(&s, &a, NULL), DI_OK);
    assert_int_equal(di_sampling_seed(&s, &b, NULL), DI_OK);
    assert_true(a != b);
    s.has_seed = true;
    s.seq_seed = 5;
    assert_int_equal(di_sampling_seed(&s, &a, NULL), DI_OK);
    assert_true(a == 5);

    char path[512], *text;
    size_t length;
    unsigned checked = 0;
    snprintf(path, sizeof path, "%s/sampling/noise.jsonl", DI_TEST_DATA);
    assert_int_equal(di_read_file(path, 1u << 24, &text, &length, NULL), DI_OK);
    di_arena *arena = di_arena_new(0);
    for (char *at = text, *end; at < text + length; at = end + 1) {
        const di_json *line;
        end = memchr(at, '\n', (size_t)(text + length - at));
        assert_non_null(end);
        assert_int_equal(di_json_parse(arena, at, (size_t)(end - at), 0, &line, NULL), DI_OK);
        int32_t prompt[128];
        size_t count = 0;
        for (const di_json *id = di_json_get(line, "prompt")->first; id; id = id->next) {
            int64_t value;
            assert_true(di_json_int64(id, &value));
            prompt[count++] = (int32_t)value;
        }
        uint64_t seed, sample, key;
        assert_true(di_json_uint64(di_json_get(line, "seed"), &seed));
        assert_true(di_json_uint64(di_json_get(line, "sample"), &sample));
        assert_true(di_json_uint64(di_json_get(line, "key"), &key));
        assert_true(di_sampling_key(seed, (uint32_t)sample, di_sampling_prompt_hash(prompt, count)) == key);
        checked++;
    }
    assert_int_equal(checked, 28);
    di_arena_free(arena);
    free(text);
}

static void test_stop_rule(void **state) {
    (void)state;
    di_sampling s = defaults;
    int32_t eos[] = {1, 2}, stops[] = {7}, id;
    s.stop_token_ids = stops;
    s.stop_token_count = 1;
    di_stop_rule rule = {&s, eos, 2, 10};
    assert_int_equal(di_stop_after(&rule, 0, 5, &id), DI_FINISH_NONE);
    assert_int_equal(id, -1);
    assert_int_equal(di_stop_after(&rule, 8, 5, &id), DI_FINISH_NONE);
    assert_int_equal(di_stop_after(&rule, 9, 5, &id), DI_FINISH_LENGTH);
    assert_int_equal(di_stop_after(&rule, 9, 2, &id), DI_FINISH_STOP);
    assert_int_equal(id, 2);
    assert_int_equal(di_stop_after(&rule, 0, 7, &id), DI_FINISH_STOP);
    assert_int_equal(id, 7);
    s.ignore_eos = true;
    assert_int_equal(di_stop_after(&rule, 0, 1, &id), DI_FINISH_NONE);
    assert_int_equal(di_stop_after(&rule, 0, 7, &id), DI_FINISH_STOP);
    s.ignore_eos = false;
    s.min_tokens = 3;
    assert_int_equal(di_stop_after(&rule, 2, 1, &id), DI_FINISH_NONE);
    assert_int_equal(di_stop_after(&rule, 2, 7, &id), DI_FINISH_NONE);
    assert_int_equal(di_stop_after(&rule, 3, 1, &id), DI_FINISH_STOP);
    s.min_tokens = 0;
    s.first_n_token_no_eos = 1;
    assert_int_equal(di_stop_after(&rule, 0, 1, &id), DI_FINISH_NONE);
    assert_int_equal(di_stop_after(&rule, 0, 7, &id), DI_FINISH_STOP);
    assert_int_equal(di_stop_after(&rule, 1, 1, &id), DI_FINISH_STOP);
}

/* ---------------------------------------------------------------------------------------------- sampler */

enum { V = 40 };

static void test_sampler(void **state) {
    (void)state;
    int32_t prompt[] = {3, 3, 5}, eos[] = {0}, golden[] = {-1, -1, 9}, stops[] = {1}, id;
    di_logit_bias bias[] = {{2, 1.5f}};
    di_sampling s = defaults;
    s.golden_token_ids = golden;
    s.golden_token_count = 3;
    s.stop_token_ids = stops;
    s.stop_token_count = 1;
    s.min_tokens = 1;
    s.first_n_token_no_eos = 2;
    s.frequency_penalty = 0.5f;
    s.logit_bias = bias;
    s.logit_bias_count = 1;
    s.logits_hash = true;
    di_sampler_params params = {&s, 11, 2, prompt, 3, eos, 1, V, 4};
    di_sampler *sampler;
    assert_int_equal(di_sampler_new(&params, &sampler, NULL), DI_OK);
    di_sample_item item;
    di_sampler_next(sampler, 6, 3, &item);
    assert_true(item.key == di_sampling_key(11, 2, di_sampling_prompt_hash(prompt, 3)));
    assert_true(item.logits_row == 6 && item.position == 3 && item.forced == -1 && item.hash && item.hash_seed == 0);
    assert_true(item.bias_count == 1 && item.bias[0].token_id == 2 && item.bias[0].bias == 1.5f);
    assert_true(item.banned_count == 2 && item.banned[0] == 0 && item.banned[1] == 1);
    assert_true(item.count_count == 2 && item.counts[0].token_id == 3 && item.counts[0].prompt == 2);
    di_sample_result result = {.token_id = 5, .hash = 77};
    assert_int_equal(di_sampler_commit(sampler, &result, &id), DI_FINISH_NONE);
    di_sampler_next(sampler, 6, 4, &item);
    assert_true(item.banned_count == 1 && item.hash_seed == 77);
    assert_true(item.counts[1].token_id == 5 && item.counts[1].prompt == 1 && item.counts[1].output == 1);
    result.token_id = 8;
    assert_int_equal(di_sampler_commit(sampler, &result, &id), DI_FINISH_NONE);
    di_sampler_next(sampler, 6, 5, &item);
    assert_true(item.banned_count == 0 && item.forced == 9 && item.count_count == 3 && item.counts[2].output == 1);
    result.token_id = 9;
    assert_int_equal(di_sampler_commit(sampler, &result, &id), DI_FINISH_NONE);
    di_sampler_next(sampler, 6, 6, &item);
    assert_int_equal(item.forced, -1);
    result.token_id = 10;
    assert_int_equal(di_sampler_commit(sampler, &result, &id), DI_FINISH_LENGTH);
    assert_int_equal(di_sampler_produced(sampler), 4);
    di_sampler_free(sampler);
    di_sampler_free(NULL);
}

/* Many ids, more than were planned for at the end: the counts stay right and nothing is written outside. */
static void test_sampler_counts(void **state) {
    (void)state;
    di_sampling s = defaults;
    s.presence_penalty = 1;
    int32_t prompt[500], id;
    for (int i = 0; i < 500; i++) prompt[i] = i * 997 % 20000;
    di_sampler_params params = {&s, 1, 0, prompt, 500, NULL, 0, 20000, 300};
    di_sampler *sampler;
    assert_int_equal(di_sampler_new(&params, &sampler, NULL), DI_OK);
    static uint32_t seen[20000];
    di_sample_result result = {0};
    for (int i = 0; i < 300; i++) {
        result.token_id = i * i % 20000;
        seen[result.token_id]++;
        assert_int_equal(di_sampler_commit(sampler, &result, &id), i == 299 ? DI_FINISH_LENGTH : DI_FINISH_NONE);
    }
    di_sample_item item;
    di_sampler_next(sampler, 0, 0, &item);
    unsigned prompts = 0, outputs = 0;
    for (uint32_t i = 0; i < item.count_count; i++) {
        assert_int_equal(item.counts[i].output, seen[item.counts[i].token_id]);
        prompts += item.counts[i].prompt;
        outputs += item.counts[i].output;
    }
    assert_int_equal(prompts, 500);
    assert_int_equal(outputs, 300);
    for (int i = 0; i < 2000; i++) {
        result.token_id = 19999 - i;
        assert_int_equal(di_sampler_commit(sampler, &result, &id), DI_FINISH_LENGTH);
    }
    di_sampler_free(sampler);
}

/* Two samples of a request differ, the same seed repeats, and the frequency penalty works through the loop. */
static void test_generation_loop(void **state) {
    (void)state;
    float logits[V];
    for (int i = 0; i < V; i++) logits[i] = (float)(i % 7);
    void *scratch = di_aligned_alloc(1, di_sample_scratch(V));
    int32_t out[3][30], prompt[] = {1, 2}, id;
    for (int run = 0; run < 3; run++) {
        di_sampling s = defaults;
        s.repetition_penalty = 1.2f;
        di_sampler_params params = {&s, 42, run == 2, prompt, 2, NULL, 0, V, 30};
        di_sampler *sampler;
        assert_int_equal(di_sampler_new(&params, &sampler, NULL), DI_OK);
        for (int i = 0; i < 30; i++) {
            di_sample_item item;
            di_sample_result result;
            di_sampler_next(sampler, 0, 2 + i, &item);
            di_sample_row(logits, V, &item, &result, NULL, scratch);
            out[run][i] = result.token_id;
            assert_in_range(result.token_id, 0, V - 1);
            di_sampler_commit(sampler, &result, &id);
        }
        di_sampler_free(sampler);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    assert_memory_not_equal(out[0], out[2], sizeof out[0]);
    di_aligned_free(scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),         cmocka_unit_test(test_lists),
        cmocka_unit_test(test_copy),           cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_refused),   cmocka_unit_test(test_seed_and_key),
        cmocka_unit_test(test_stop_rule),      cmocka_unit_test(test_sampler),
        cmocka_unit_test(test_sampler_counts), cmocka_unit_test(test_generation_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
