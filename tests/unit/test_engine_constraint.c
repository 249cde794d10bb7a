/* needs: engine cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* Structured output in the engine: valid whatever the weights say, and the same bytes whatever runs beside it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "support/requests.h"

#define TINY DI_SOURCE_DIR "/models/tiny"
enum { MOST = 64 };

static const char person[] = "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},"
                             "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},"
                             "\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\"]},\"maxItems\":3}},"
                             "\"required\":[\"name\",\"age\",\"tags\"],\"additionalProperties\":false}";

static di_job job_of(uint32_t seed, const char *type, const char *schema) {
    di_job job = {.ids = di_walk(seed, 20), .count = 20};
    di_sampling_default(&job.sampling);
    job.sampling.has_seed = true;
    job.sampling.seq_seed = seed;
    job.sampling.max_tokens = MOST;
    job.sampling.logits_hash = true;
    job.sampling.so_args.schema_type = type;
    job.sampling.so_args.schema = schema;
    return job;
}

/* Text of the ids of sample 0 from `from` on, malloc'ed. */
static char *text_of(di_engine *engine, const di_outcome *outcome, uint32_t from) {
    char *text = NULL;
    size_t length = 0;
    uint32_t count = outcome->tokens[0];
    if (count && outcome->ids[count - 1] == 1) count--; /* EOS */
    assert_int_equal(di_detokenize(engine, outcome->ids + from, count - from, &text, &length, NULL), DI_OK);
    return text;
}

static void check_person(const char *text) {
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL;
    di_error error = {0};
    if (di_json_parse(arena, text, strlen(text), 0, &root, &error) != DI_OK) fail_msg("%s: %s", text, error.message);
    int64_t age = -1;
    assert_int_equal(root->count, 3);
    assert_int_equal(di_json_get(root, "name")->type, DI_JSON_STRING);
    assert_true(di_json_int64(di_json_get(root, "age"), &age) && age >= 0 && age <= 150);
    assert_true(di_json_get(root, "tags")->count <= 3);
    di_arena_free(arena);
}

/* Also under penalties, and with n > 1; and what is cut says so. */
static void follows_a_schema_at_temperature_one(void **state) {
    (void)state;
    di_engine *engine = di_open_with(TINY, NULL, 0);
    uint32_t complete = 0, rounds = di_test_slow() ? 6 : 30;
    for (uint32_t seed = 1; seed <= rounds; seed++) {
        di_job job = job_of(seed, "json", person);
        job.sampling.temperature = seed % 3 ? 1.0f : 1.7f;
        job.sampling.presence_penalty = seed % 2 ? 1.0f : 0.0f;
        job.sampling.n = seed % 4 ? 1 : 3;
        di_outcome outcome;
        di_run_job(engine, &job, &outcome);
        assert_int_equal(outcome.status, DI_OK);
        if (outcome.reason == DI_FINISH_LENGTH) continue;
        assert_int_equal(outcome.reason, DI_FINISH_STOP);
        char *text = text_of(engine, &outcome, 0);
        check_person(text);
        free(text);
        complete++;
    }
    assert_true(complete >= rounds / 2);
    di_assert_idle(engine);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_GRAMMARS_COMPILED), 1);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_GRAMMARS_REUSED), rounds - 1);
    di_close(engine);
}

/* Alone = in a crowd that shares and does not share the grammar, with too few pages for all, and with room for one
 * compiled grammar only, and when almost every mask is late. */
static void is_the_same_in_a_crowd(void **state) {
    (void)state;
    enum { JOBS = 12 };
    static const struct {
        const char *type, *schema;
    } kinds[] = {{"json", person},
                 {"regex", "[0-9]{3}-(foo|bar){1,5}"},
                 {"regex", "(ab|c)*d"},
                 {"json_object", NULL},
                 {NULL, NULL}};
    di_option options[] = {{"kv-ram", "least+2"}, {"context", "128"}, {"grammar-cache", "1"}, {"mask-ms", "0"}};
    di_engine *alone = di_open_with(TINY, options + 1, 1), *crowd = di_open_with(TINY, options, 4);
    di_outcome expected[JOBS], got[JOBS] = {0};
    di_request *requests[JOBS];
    di_job jobs[JOBS];
    for (uint32_t i = 0; i < JOBS; i++) {
        jobs[i] = job_of(100 + i, kinds[i % 5].type, kinds[i % 5].schema);
        di_run_job(alone, &jobs[i], &expected[i]);
        assert_int_equal(expected[i].status, DI_OK);
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        jobs[i].priority = (int32_t)(i % 3);
        requests[i] = di_submit_job(crowd, &jobs[i], NULL, NULL);
        assert_non_null(requests[i]);
    }
    for (uint32_t i = 0; i < JOBS; i++) {
        di_drain(requests[i], &got[i]);
        di_assert_same(&expected[i], &got[i], kinds[i % 5].type ? kinds[i % 5].type : "free");
    }
    di_assert_idle(crowd);
    assert_true(di_engine_gauge(crowd, DI_GAUGE_GRAMMARS) <= 1);
    assert_true(di_engine_counter(crowd, DI_COUNT_LATE_MASKS) > 0);
    di_close(crowd);
    di_close(alone);
}

/* A matcher that may hold very little forgets on the way, and nobody can tell; with too little the request says so. */
static void forgets_without_a_trace(void **state) {
    (void)state;
    static const char *const sizes[] = {"64K", "80K", "96K", "112K", "128K", "160K", "192K", "256K"};
    di_engine *roomy = di_open_with(TINY, NULL, 0);
    static const char many_states[] = "{\"type\":\"array\",\"minItems\":9,\"items\":{\"anyOf\":[{\"type\":\"string\","
                                      "\"pattern\":\"^(ab|cd|efg)+[0-9]{2,9}$\","
                                      "\"maxLength\":30},{\"type\":\"number\",\"multipleOf\":0.07,\"maximum\":900},{"
                                      "\"type\":\"object\",\"properties\":{\"alpha\":{"
                                      "\"enum\":[\"one\",\"two\",\"three\"]},\"beta\":{\"format\":\"date\"}}}]}}";
    di_job job = job_of(1, "json", many_states);
    job.sampling.temperature = 1.5f;
    di_outcome expected, got;
    di_run_job(roomy, &job, &expected);
    assert_int_equal(expected.status, DI_OK);
    uint64_t resets = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        di_option least = {"limit-grammar-memory", sizes[i]};
        di_engine *narrow = di_open_with(TINY, &least, 1);
        di_run_job(narrow, &job, &got);
        di_assert_idle(narrow);
        if (got.status == DI_OK) {
            di_assert_same(&expected, &got, sizes[i]);
            resets += di_engine_counter(narrow, DI_COUNT_GRAMMAR_RESETS);
        } else {
            assert_int_equal(got.status, DI_ERR_LIMIT);
            assert_string_equal(got.error.param, "so_args");
            assert_non_null(strstr(got.error.message, "--limit-grammar-memory"));
        }
        di_close(narrow);
    }
    assert_true(resets > 0);
    di_close(roomy);
}

/* A token that takes too many steps is told apart from states that take too much memory. */
static void names_the_limit_of_work(void **state) {
    (void)state;
    static const di_option little = {"limit-mask-work", "1000"};
    di_engine *engine = di_open_with(TINY, &little, 1);
    di_job job = job_of(1, "regex", "((a|b)*a(a|b){9}c|[A-Za-z ,.!?]{3,60}z)[0-9]{4,80}(x|y)*");
    di_outcome outcome;
    for (int again = 0; again < 2; again++) {
        di_run_job(engine, &job, &outcome);
        assert_int_equal(outcome.status, DI_ERR_LIMIT);
        assert_string_equal(outcome.error.param, "so_args");
        assert_non_null(strstr(outcome.error.message, "--limit-mask-work"));
        di_assert_idle(engine);
    }
    di_close(engine);
}

/* Free text up to the trigger; after the bound id the trigger is forced. */
static void starts_at_its_trigger(void **state) {
    (void)state;
    di_engine *engine = di_open_with(TINY, NULL, 0);
    static const int32_t trigger[] = {300, 301}, golden[] = {-1, 400, -1, -1, -1, -1}, other[] = {-1, 300, 301, -1};
    di_job job = job_of(7, "regex", "yes|no");
    job.sampling.so_args.trigger_token_ids = trigger;
    job.sampling.so_args.trigger_token_count = 2;
    job.sampling.so_args.bound_token_id = 400;
    job.sampling.so_args.trigger_required = true;
    job.sampling.golden_token_ids = golden;
    job.sampling.golden_token_count = 6;
    di_outcome outcome;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.status, DI_OK);
    assert_int_equal(outcome.reason, DI_FINISH_STOP);
    assert_int_equal(outcome.ids[2], 300);
    assert_int_equal(outcome.ids[3], 301);
    char *text = text_of(engine, &outcome, 4);
    assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    free(text);

    job.sampling.golden_token_ids = other;
    job.sampling.golden_token_count = 4;
    di_run_job(engine, &job, &outcome);
    text = text_of(engine, &outcome, 3);
    assert_true(strcmp(text, "yes") == 0 || strcmp(text, "no") == 0);
    free(text);

    /* EOS wins at temperature 0 with this bias; it may not come before the trigger. */
    di_logit_bias bias = {.token_id = 1, .bias = 100};
    job.sampling.golden_token_count = 0;
    job.sampling.golden_token_ids = NULL;
    job.sampling.logit_bias = &bias;
    job.sampling.logit_bias_count = 1;
    job.sampling.temperature = 0;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.reason, DI_FINISH_LENGTH);
    job.sampling.so_args.trigger_required = false;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.tokens[0], 1);
    assert_int_equal(outcome.reason, DI_FINISH_STOP);
    di_close(engine);
}

static void check_refused(di_engine *engine, const di_job *job, const char *param, const char *says) {
    di_error error = {0};
    di_status status = DI_OK;
    assert_null(di_submit_job(engine, job, &status, &error));
    assert_int_equal(di_status_http(status), 400);
    assert_string_equal(error.param, param);
    if (!strstr(error.message, says)) fail_msg("%s", error.message);
}

static void refuses_what_cannot_hold(void **state) {
    (void)state;
    di_engine *engine = di_open_with(TINY, NULL, 0);
    di_job job = job_of(1, "xml", "");
    check_refused(engine, &job, "so_args.schema_type", "xml");
    job = job_of(1, "json", NULL);
    check_refused(engine, &job, "so_args.schema", "missing");
    job = job_of(1, "json", "{\"properties\":{\"a\":{\"type\":\"strin\"}}}");
    check_refused(engine, &job, "so_args.schema", "/properties/a/type");
    job = job_of(1, "regex", "a(");
    check_refused(engine, &job, "so_args.schema", "syntax");
    job = job_of(1, "json", "false");
    check_refused(engine, &job, "so_args.schema", "unsatisfiable");
    job = job_of(1, "regex", "a");
    job.sampling.so_args.bound_token_id = 5;
    check_refused(engine, &job, "so_args.bound_token_id", "trigger_token_ids");
    static const int32_t beyond[] = {1000000};
    job.sampling.so_args.bound_token_id = -1;
    job.sampling.so_args.trigger_token_ids = beyond;
    job.sampling.so_args.trigger_token_count = 1;
    check_refused(engine, &job, "so_args.trigger_token_ids", "1000000");

    /* What only shows on the way ends that request, with the reason. */
    static const int32_t wrong[] = {300};
    job = job_of(1, "regex", "[0-9]+");
    job.sampling.golden_token_ids = wrong;
    job.sampling.golden_token_count = 1;
    di_outcome outcome;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.status, DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(outcome.error.param, "golden_token_ids");
    job = job_of(1, "regex", "a");
    job.sampling.min_tokens = 10;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.status, DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(outcome.error.param, "so_args");
    di_assert_idle(engine);
    di_close(engine);
}

/* ---------------------------------------------------------------- schemas that are made to cost */

/* `times` times `open`, `middle`, as often `close`; malloc'ed. */
static char *nested(const char *open, const char *middle, const char *close, int times) {
    di_text out = {0};
    for (int i = 0; i < times; i++) di_text_puts(&out, open);
    di_text_puts(&out, middle);
    for (int i = 0; i < times; i++) di_text_puts(&out, close);
    assert_false(out.failed);
    return out.data;
}

static char *huge_enum(int count) {
    di_text out = {0};
    di_text_puts(&out, "{\"enum\":[");
    for (int i = 0; i < count; i++) di_text_printf(&out, "%s\"v%d %x\"", i ? "," : "", i, (unsigned)i * 2654435761u);
    di_text_puts(&out, "]}");
    assert_false(out.failed);
    return out.data;
}

typedef struct bomb {
    const char *name, *type;
    char *text;
    bool refused; /* else it must be followed */
} bomb;

/* While a stream runs, each is refused by name or followed within the budget; the stream has the bytes that it has
 * alone, and takes part in every step: what the others cost it is their masks' share of a step, which is bounded. */
static void bombs_beside_a_stream(void **state) {
    (void)state;
    enum { BOMBS = 8, TOKENS = 3000 };
    bomb bombs[BOMBS] = {
        {"nested oneOf", "json",
         nested("{\"oneOf\":[{\"type\":\"string\",\"maxLength\":3},{\"required\":[\"a\"],\"properties\":{\"a\":",
                "{\"type\":\"integer\"}", "}},{\"not\":{\"type\":\"object\"}}]}", 60),
         false},
        {"huge enum", "json", huge_enum(di_test_slow() ? 500 : 4000), false},
        {"repetition", "regex", nested("", "(?:[ab]c?){1,100000}", "", 1), false},
        {"repetition of repetitions", "regex", nested("(?:", "a{1,999}", "){1,999}b?", 3), true},
        {"recursive references", "json",
         nested("",
                "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"$ref\":\"#/$defs/b\"},\"b\":{\"allOf\":[{\"$ref\":\"#/"
                "$defs/a\"}]}}}",
                "", 1),
         true},
        {"expression that others backtrack in", "regex", nested("", "(?:(?:a+)+)+(?:a|aa|a?)*b?(?:a|b|ab)+c", "", 1),
         false},
        {"deep arrays", "json",
         nested("{\"type\":\"array\",\"minItems\":1,\"items\":", "{\"type\":\"null\"}", "}", 240), false},
        {"any nesting", "json",
         nested("",
                "{\"$ref\":\"#/$defs/t\",\"$defs\":{\"t\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/t\"}}}}",
                "", 1),
         false},
    };
    static const di_option options[] = {{"context", "4096"}};
    di_engine *engine = di_open_with(DI_TEST_DATA "/nano", options, 1);
    di_job stream = di_greedy_job(di_walk(1, 12), 12, di_test_slow() ? TOKENS / 10 : TOKENS);
    stream.sampling.ignore_eos = true;
    stream.sampling.logits_hash = true;
    di_outcome alone, beside = {0};
    di_run_job(engine, &stream, &alone);
    uint64_t before = di_engine_counter(engine, DI_COUNT_STEPS);
    di_request *running = di_submit_job(engine, &stream, NULL, NULL), *requests[BOMBS] = {0};
    for (int i = 0; i < BOMBS; i++) {
        di_job job = job_of((uint32_t)i + 1, bombs[i].type, bombs[i].text);
        di_error error = {0};
        di_status status = DI_OK;
        requests[i] = di_submit_job(engine, &job, &status, &error);
        if (bombs[i].refused != (status != DI_OK)) fail_msg("%s: %s", bombs[i].name, error.message);
        if (status != DI_OK) assert_int_equal(di_status_http(status), 400);
        if (status != DI_OK) assert_string_equal(error.param, "so_args.schema");
    }
    di_drain(running, &beside);
    uint64_t steps = di_engine_counter(engine, DI_COUNT_STEPS) - before;
    di_assert_same(&alone, &beside, "the stream");
    for (int i = 0; i < BOMBS; i++) {
        di_outcome outcome = {0};
        if (requests[i]) di_drain(requests[i], &outcome);
        if (requests[i] && outcome.status != DI_OK) fail_msg("%s: %s", bombs[i].name, outcome.error.message);
        free(bombs[i].text);
    }
    /* One token a step; the others' steps behind its end are few. */
    print_message("%u tokens in %u steps\n", beside.tokens[0], (unsigned)steps);
    assert_true(steps <= beside.tokens[0] + 2 * MOST + 16);
    di_assert_idle(engine);
    di_close(engine);
}

int main(int argc, char **argv) {
    di_test_arguments(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_a_schema_at_temperature_one),
        cmocka_unit_test(is_the_same_in_a_crowd),
        cmocka_unit_test(forgets_without_a_trace),
        cmocka_unit_test(names_the_limit_of_work),
        cmocka_unit_test(starts_at_its_trigger),
        cmocka_unit_test(refuses_what_cannot_hold),
        cmocka_unit_test(bombs_beside_a_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
