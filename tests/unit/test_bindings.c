/* What bindings of other languages use: names of options, conversations as prompts, log-probabilities of a row. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <deepinfer.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static di_engine *engine;

static int set_up(void **state) {
    (void)state;
    const di_option options[] = {{"context", "64"}, {"threads", "1"}};
    return di_open(DI_TEST_DATA "/nano", options, 2, &engine, NULL) == DI_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    di_close(engine);
    return 0;
}

static bool has_option(const char *name) {
    for (size_t i = 0; di_option_name(i); i++)
        if (strcmp(di_option_name(i), name) == 0) return true;
    return false;
}

static void options_of_an_engine(void **state) {
    (void)state;
    assert_true(has_option("threads"));
    assert_true(has_option("max-queue"));
    assert_false(has_option("temperature"));
    assert_false(has_option("output"));
    assert_null(di_option_name(SIZE_MAX));
}

static void check_value(const di_option *options, size_t count, const char *name, const char *wanted) {
    char *value = NULL;
    di_error error = {0};
    if (di_option_value(options, count, name, &value, &error) != DI_OK) fail_msg("%s", error.message);
    assert_string_equal(value, wanted);
    di_free(value);
}

static void refuse_value(const di_option *options, size_t count, const char *name, const char *says) {
    char *value = (char *)"untouched";
    di_error error = {0};
    assert_int_not_equal(di_option_value(options, count, name, &value, &error), DI_OK);
    assert_null(value);
    assert_non_null(strstr(error.message, says));
}

static void values_of_options(void **state) {
    (void)state;
    char path[] = "/tmp/deepinfer-bindings-XXXXXX";
    int file = mkstemp(path);
    static const char text[] = "seed = 7\nthinking = off\nmax-seqs = 3\n";
    assert_int_equal(write(file, text, sizeof text - 1), sizeof text - 1);
    close(file);
    const di_option options[] = {{"config", path}, {"thinking", "on"}};
    check_value(NULL, 0, "max-seqs", "64");
    check_value(NULL, 0, "seed", "");
    check_value(options, 2, "seed", "7");
    check_value(options, 2, "max-seqs", "3");
    check_value(options, 2, "thinking", "on");
    setenv("DEEPINFER_MAX_SEQS", "5", 1);
    check_value(options, 2, "max-seqs", "5");
    setenv("DEEPINFER_MAX_SEQS", "many", 1);
    refuse_value(options, 2, "seed", "max-seqs");
    unsetenv("DEEPINFER_MAX_SEQS");
    refuse_value(options, 2, "sed", "did you mean \"seed\"?");
    refuse_value(options, 2, NULL, "name");
    refuse_value(NULL, 1, "seed", "options");
    unlink(path);
    refuse_value(options, 2, "seed", path);
    assert_int_equal(di_option_value(NULL, 0, "seed", NULL, NULL), DI_ERR_INVALID_ARGUMENT);
}

static void refuse(const char *json, size_t length, di_status status, const char *param) {
    di_chat_prompt prompt;
    di_error error = {0};
    assert_int_equal(di_render_chat(engine, json, length, &prompt, &error), status);
    assert_string_equal(error.param, param);
    assert_null(prompt.token_ids);
}

static void conversations(void **state) {
    (void)state;
    static const char talk[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"</think>\"}], \"thinking\": true}";
    di_chat_prompt prompt;
    assert_int_equal(di_render_chat(engine, talk, DI_ZSTRING, &prompt, NULL), DI_OK);
    assert_true(prompt.in_reasoning);
    assert_false(prompt.continued);
    for (size_t i = 0; i < prompt.token_count; i++) /* client text is no control token */
        assert_int_not_equal(prompt.token_ids[i], prompt.reasoning_end_token_id);
    di_free(prompt.token_ids);

    static const char open[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
                               "\"content\": \"b\", \"prefix\": true}], \"thinking\": false}";
    assert_int_equal(di_render_chat(engine, open, strlen(open), &prompt, NULL), DI_OK);
    assert_false(prompt.in_reasoning);
    assert_true(prompt.continued);
    di_free(prompt.token_ids);

    for (size_t length = 0; length < sizeof talk - 1; length++) refuse(talk, length, DI_ERR_FORMAT, "");
    refuse("[]", DI_ZSTRING, DI_ERR_INVALID_ARGUMENT, "json");
    refuse("{}", DI_ZSTRING, DI_ERR_INVALID_ARGUMENT, "messages");
    refuse("{\"messages\": [], \"thinkin\": true}", DI_ZSTRING, DI_ERR_INVALID_ARGUMENT, "thinkin");
    refuse("{\"messages\": [{\"role\": \"tool\", \"content\": \"a\"}]}", DI_ZSTRING, DI_ERR_INVALID_ARGUMENT,
           "messages[0].tool_call_id");
    refuse(NULL, 0, DI_ERR_INVALID_ARGUMENT, "json");
    assert_int_equal(di_render_chat(NULL, talk, DI_ZSTRING, &prompt, NULL), DI_ERR_INVALID_ARGUMENT);
    assert_int_equal(di_render_chat(engine, talk, DI_ZSTRING, NULL, NULL), DI_ERR_INVALID_ARGUMENT);
}

static void log_probabilities(void **state) {
    (void)state;
    const float row[4] = {1, 3, 3, -2};
    const int32_t ids[3] = {1, 2, 0}, wrong[2] = {0, 4}, negative[1] = {-1};
    float logprobs[3] = {5, 5, 5};
    int32_t best = -1;
    assert_true(di_logprobs(row, 4, ids, 3, logprobs, &best));
    assert_int_equal(best, 1); /* the lower of the two best */
    assert_true(logprobs[0] == logprobs[1]);
    assert_true(fabsf(logprobs[0] - logprobs[2] - 2) < 1e-6F);
    assert_true(di_logprobs(row, 4, NULL, 0, NULL, NULL));

    float kept[3] = {5, 5, 5};
    const float damaged[4] = {1, NAN, 3, 4};
    assert_false(di_logprobs(row, 4, wrong, 2, kept, NULL));
    assert_false(di_logprobs(row, 4, negative, 1, kept, NULL));
    assert_false(di_logprobs(damaged, 4, ids, 3, kept, NULL));
    assert_false(di_logprobs(NULL, 4, ids, 3, kept, NULL));
    assert_false(di_logprobs(row, 0, ids, 3, kept, NULL));
    assert_false(di_logprobs(row, 4, ids, 3, NULL, NULL));
    assert_true(kept[0] == 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_an_engine),
        cmocka_unit_test(values_of_options),
        cmocka_unit_test(conversations),
        cmocka_unit_test(log_probabilities),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
