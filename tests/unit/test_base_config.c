/* needs: base */
/* Configuration: precedence, every kind of value, errors that say what would be right, files, environment, help. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static di_config *fresh(void) {
    di_config *config = di_config_new();
    assert_non_null(config);
    return config;
}

static void set(di_config *config, const char *name, const char *value) {
    di_error error = {0};
    if (di_config_set(config, name, value, DI_CONFIG_FLAG, &error) != DI_OK) fail_msg("%s", error.message);
}

static void refuse(di_config *config, const char *name, const char *value, di_status expected, const char *message) {
    di_error error = {0};
    di_status status = di_config_set(config, name, value, DI_CONFIG_FLAG, &error);
    if (status != expected) fail_msg("%s = %s gave %d", name, value, status);
    if (!strstr(error.message, message)) fail_msg("%s = %s: %s", name, value, error.message);
    assert_string_equal(error.param, name);
}

/* Every default is a value that the row itself admits. */
static void test_rows(void **state) {
    (void)state;
    const di_config_row *rows = di_config_rows();
    di_config *config = fresh();
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        assert_string_equal(di_config_text(config, (di_config_id)i), rows[i].value);
        assert_false(di_config_is_set(config, (di_config_id)i));
        bool may_be_unset = rows[i].type == DI_CONFIG_TYPE_STRING || rows[i].type == DI_CONFIG_TYPE_UINT64 ||
                            rows[i].type == DI_CONFIG_TYPE_CHOICE;
        if (rows[i].value[0] || !may_be_unset) set(config, rows[i].name, rows[i].value);
        assert_true(strlen(rows[i].help) > 5);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(rows[i].name, rows[j].name);
    }
    di_config_free(config);
    di_config_free(NULL);
}

static void test_values(void **state) {
    (void)state;
    di_config *config = fresh();
    set(config, "threads", "7");
    assert_int_equal(di_config_int(config, DI_OPT_THREADS), 7);
    assert_string_equal(di_config_text(config, DI_OPT_THREADS), "7");
    static const char *const yes[] = {"on", "true", "yes", "1"}, *const no[] = {"off", "false", "no", "0"};
    for (size_t i = 0; i < 4; i++) {
        set(config, "quiet", yes[i]);
        assert_true(di_config_bool(config, DI_OPT_QUIET));
        assert_true(di_config_is(config, DI_OPT_QUIET, "on"));
        set(config, "quiet", no[i]);
        assert_false(di_config_bool(config, DI_OPT_QUIET));
        assert_true(di_config_is(config, DI_OPT_QUIET, "off"));
    }
    static const struct {
        const char *text;
        int64_t bytes;
    } sizes[] = {{"0", 0}, {"10", 10}, {"3k", 3072}, {"3K", 3072}, {"64M", 67108864}, {"2g", 2147483648}, {"0T", 0}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        set(config, "cache-ram", sizes[i].text);
        assert_true(di_config_int(config, DI_OPT_CACHE_RAM) == sizes[i].bytes);
    }
    set(config, "temperature", "0.75");
    assert_true(di_config_float(config, DI_OPT_TEMPERATURE) == 0.75);
    set(config, "temperature", "1e-3");
    assert_true(di_config_float(config, DI_OPT_TEMPERATURE) == 1e-3);
    set(config, "effort", "100");
    assert_int_equal(di_config_int(config, DI_OPT_EFFORT), 100);
    set(config, "effort", "low");
    assert_int_equal(di_config_int(config, DI_OPT_EFFORT), 0);
    assert_true(di_config_is(config, DI_OPT_EFFORT, "low"));
    uint64_t seed = 1;
    assert_false(di_config_uint64(config, DI_OPT_SEED, &seed));
    set(config, "seed", "18446744073709551615");
    assert_true(di_config_uint64(config, DI_OPT_SEED, &seed) && seed == UINT64_MAX);
    set(config, "seed", "0");
    assert_true(di_config_uint64(config, DI_OPT_SEED, &seed) && seed == 0);
    set(config, "model", "/a b/c");
    assert_string_equal(di_config_text(config, DI_OPT_MODEL), "/a b/c");
    di_config_free(config);
}

static void test_refusals(void **state) {
    (void)state;
    di_config *config = fresh();
    static const struct {
        const char *name, *value, *message;
    } cases[] = {
        {"threads", "1025", "option threads is \"1025\"; it must be an integer from 0 to 1024"},
        {"threads", "-1", "0 to 1024"},
        {"threads", "", "0 to 1024"},
        {"threads", "4x", "\"4x\""},
        {"threads", " 4", "0 to 1024"},
        {"threads", "+4", "0 to 1024"},
        {"threads", "0x4", "0 to 1024"},
        {"threads", "99999999999999999999", "0 to 1024"},
        {"max-rows", "0", "1 to 65536"},
        {"top-k", "-2", "-1 to 2147483647"},
        {"cache-ram", "5X", "number of bytes"},
        {"cache-ram", "5MM", "number of bytes"},
        {"cache-ram", "M", "number of bytes"},
        {"cache-ram", "-5M", "number of bytes"},
        {"cache-ram", "9999999999999999999T", "number of bytes"},
        {"cache-ram", "16777216T", "number of bytes"},
        {"temperature", "nan", "a number from 0 to 1000000"},
        {"temperature", "inf", "a number from"},
        {"temperature", "0x1", "a number from"},
        {"temperature", "1,5", "a number from"},
        {"temperature", "1e", "a number from"},
        {"temperature", "1e999", "a number from"},
        {"temperature", "-0.1", "a number from"},
        {"top-p", "1.01", "from 0 to 1"},
        {"quiet", "maybe", "on or off"},
        {"quiet", "ON", "on or off"},
        {"cpu-isa", "avx", "scalar, avx2, avx512 or auto"},
        {"cpu-isa", "", "scalar, avx2"},
        {"cpu-isa", "scalar|avx2", "scalar, avx2"},
        {"spec", "9", "auto, off or 1..8"},
        {"spec", "0", "auto, off or 1..8"},
        {"spec", "1..8", "auto, off or 1..8"},
        {"seed", "18446744073709551616", "18446744073709551615"},
        {"seed", "-1", "from 0"},
        {"seed", "", "from 0"},
        {"api-key", "", "option api-key is empty; leave it out, or give it a value"},
        {"api-key-file", "", "is empty"},
        {"output", "", "is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refuse(config, cases[i].name, cases[i].value, DI_ERR_CONFIG, cases[i].message);
    }
    refuse(config, "accelerator", "ascend", DI_ERR_UNSUPPORTED, "no backend for Ascend");
    refuse(config, "thread", "1", DI_ERR_CONFIG, "there is no option \"thread\"; did you mean \"threads\"?");
    refuse(config, "max_rows", "1", DI_ERR_CONFIG, "did you mean \"max-rows\"?");
    refuse(config, "no-such-thing-at-all", "1", DI_ERR_CONFIG, "there is no option \"no-such-thing-at-all\"");
    refuse(config, "", "1", DI_ERR_CONFIG, "there is no option");
    for (size_t i = 0; i < DI_OPT_COUNT; i++) assert_false(di_config_is_set(config, (di_config_id)i));
    /* A long hostile value is shown in part. */
    char longer[5000];
    memset(longer, '9', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    refuse(config, "threads", longer, DI_ERR_CONFIG, "it must be an integer from 0 to 1024");
    di_config_free(config);
}

static void test_precedence(void **state) {
    (void)state;
    di_config *config = fresh();
    static const di_config_source order[] = {DI_CONFIG_FLAG, DI_CONFIG_FILE, DI_CONFIG_ENVIRONMENT, DI_CONFIG_FLAG};
    static const int64_t expected[] = {10, 10, 10, 13};
    for (int i = 0; i < 4; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", 10 + i);
        assert_int_equal(di_config_set(config, "threads", text, order[i], NULL), DI_OK);
        assert_int_equal(di_config_int(config, DI_OPT_THREADS), expected[i]);
    }
    /* A weaker source's value is checked all the same. */
    assert_int_equal(di_config_set(config, "threads", "x", DI_CONFIG_FILE, NULL), DI_ERR_CONFIG);
    assert_int_equal(di_config_source_of(config, DI_OPT_THREADS), DI_CONFIG_FLAG);
    assert_int_equal(di_config_set(config, "chunk", "5", DI_CONFIG_FILE, NULL), DI_OK);
    assert_int_equal(di_config_source_of(config, DI_OPT_CHUNK), DI_CONFIG_FILE);
    assert_int_equal(di_config_set(config, "chunk", "6", DI_CONFIG_ENVIRONMENT, NULL), DI_OK);
    assert_int_equal(di_config_int(config, DI_OPT_CHUNK), 6);
    assert_true(di_config_is_set(config, DI_OPT_CHUNK));
    di_config_free(config);
}

static di_status load_text(di_config *config, const char *text, size_t length, char path[40], di_error *error) {
    snprintf(path, 40, "/tmp/di_test_config_XXXXXX");
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, length), length);
    close(file);
    di_status status = di_config_load_file(config, path, false, error);
    unlink(path);
    return status;
}

static void test_file(void **state) {
    (void)state;
    di_config *config = fresh();
    char path[40];
    di_error error = {0};
    const char *good =
        "# comment\n\n  threads = 3  \r\n\tmax-rows=64\nmodel = /x y#z = q\nsystem =\n  # more\nquiet = yes";
    assert_int_equal(load_text(config, good, strlen(good), path, &error), DI_OK);
    assert_int_equal(di_config_int(config, DI_OPT_THREADS), 3);
    assert_int_equal(di_config_int(config, DI_OPT_MAX_ROWS), 64);
    assert_string_equal(di_config_text(config, DI_OPT_MODEL), "/x y#z = q");
    assert_true(di_config_is_set(config, DI_OPT_SYSTEM));
    assert_true(di_config_bool(config, DI_OPT_QUIET));
    assert_int_equal(di_config_source_of(config, DI_OPT_THREADS), DI_CONFIG_FILE);
    di_config_free(config);
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"\nthreads = x\n", "line 2: option threads is \"x\""},
        {"thread = 1\n", "line 1: there is no option \"thread\"; did you mean \"threads\"?"},
        {"threads\n", "line 1: \"threads\" is not of the form name = value"},
        {"= 4\n", "line 1: there is no option \"\""},
        {"threads = 1\n\nthreads = 1\n", "line 3: option threads is already set on line 1"},
        {"config = other\n", "option config cannot be set in a configuration file"},
        {"threads = 4 # four\n", "\"4 # four\""},
        {"model = \xFF\n", "byte 8 is invalid UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config = fresh();
        di_status status = load_text(config, cases[i].text, strlen(cases[i].text), path, &error);
        assert_int_not_equal(status, DI_OK);
        if (!strstr(error.message, cases[i].message)) fail_msg("%s", error.message);
        assert_non_null(strstr(error.message, path));
        di_config_free(config);
    }
    config = fresh();
    assert_int_equal(load_text(config, "threads = 1\n\0", 13, path, &error), DI_ERR_FORMAT);
    assert_int_equal(di_config_load_file(config, "/nonexistent/file", false, &error), DI_ERR_NOT_FOUND);
    di_config_free(config);
}

/* Loads an environment that consists of these variables alone. */
static di_status load_environment(di_config *config, const char *const pairs[][2], size_t count, di_text *note,
                                  di_error *error) {
    clearenv();
    for (size_t i = 0; i < count; i++) setenv(pairs[i][0], pairs[i][1], 1);
    di_status status = di_config_load_environment(config, note, error);
    clearenv();
    return status;
}

static void test_environment(void **state) {
    (void)state;
    static const char *const good[][2] = {
        {"DEEPINFER_THREADS", "5"},
        {"DEEPINFER_MAX_ROWS", "99"},
        {"DEEPINFER_ACCELERATOR", "nvidia"},
        {"DEEPINFER_BATCH_INVARIANT", "0"},
        {"DEEPINFER_ENABLE_MTP_VARLEN", "0"},
        {"DEEPINFER_USE_NEXTN_DECODE", "0"},
        {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact"},
        {"DEEPINFER_PREFILL", "compact"}, /* the same value by its other name */
        {"DEEPINFER_YOCO_PREFILL_KEEP_TOKENS", "140"},
        {"DEEPINFERNO", "x"},
        {"HOME", "/"},
    };
    di_config *config = fresh();
    di_text note = {0};
    di_error error = {0};
    di_status status = load_environment(config, good, sizeof good / sizeof good[0], &note, &error);
    if (status != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_config_int(config, DI_OPT_THREADS), 5);
    assert_int_equal(di_config_int(config, DI_OPT_MAX_ROWS), 99);
    assert_true(di_config_is(config, DI_OPT_ACCELERATOR, "nvidia"));
    assert_true(di_config_is(config, DI_OPT_PREFILL, "compact"));
    assert_int_equal(di_config_int(config, DI_OPT_PREFILL_KEEP), 140);
    assert_int_equal(di_config_source_of(config, DI_OPT_THREADS), DI_CONFIG_ENVIRONMENT);
    assert_non_null(strstr(note.data, "DEEPINFER_BATCH_INVARIANT=0: there is nothing to switch off"));
    di_text_clear(&note);
    di_config_free(config);
    static const struct {
        const char *pairs[2][2];
        const char *spec;
    } drafts[] = {
        {{{"DEEPINFER_ENABLE_MTP_VARLEN", "1"}}, "auto"},
        {{{"DEEPINFER_ENABLE_MTP_VARLEN", "0"}}, "5"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "3"}}, "3"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "12"}}, "8"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "0"}, {"DEEPINFER_ENABLE_MTP_VARLEN", "1"}}, "off"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "3"}, {"DEEPINFER_ENABLE_MTP_VARLEN", "1"}}, "auto"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "3"}, {"DEEPINFER_SPEC", "3"}}, "3"},
    };
    for (size_t i = 0; i < sizeof drafts / sizeof drafts[0]; i++) {
        config = fresh();
        status = load_environment(config, drafts[i].pairs, drafts[i].pairs[1][0] ? 2 : 1, NULL, &error);
        if (status != DI_OK) fail_msg("%s", error.message);
        if (!di_config_is(config, DI_OPT_SPEC, drafts[i].spec)) fail_msg("case %zu", i);
        di_config_free(config);
    }
    static const struct {
        const char *pairs[2][2];
        di_status status;
        const char *message;
    } cases[] = {
        {{{"DEEPINFER_THREAD", "5"}}, DI_ERR_CONFIG, "DEEPINFER_THREAD; did you mean DEEPINFER_THREADS"},
        {{{"DEEPINFER_USE_NEXTN", "5"}}, DI_ERR_CONFIG, "unknown environment variable DEEPINFER_USE_NEXTN"},
        {{{"DEEPINFER_BATCH_INVARIANCE", "1"}}, DI_ERR_CONFIG, "did you mean DEEPINFER_BATCH_INVARIANT"},
        {{{"DEEPINFER_", "5"}}, DI_ERR_CONFIG, "unknown environment variable DEEPINFER_"},
        {{{"DEEPINFER_max_rows", "5"}}, DI_ERR_CONFIG, "unknown environment variable"},
        {{{"DEEPINFER_THREADS", "many"}}, DI_ERR_CONFIG, "DEEPINFER_THREADS: option threads is \"many\""},
        {{{"DEEPINFER_ACCELERATOR", "ascend"}}, DI_ERR_UNSUPPORTED, "no backend for Ascend"},
        {{{"DEEPINFER_BATCH_INVARIANT", "2"}}, DI_ERR_CONFIG, "it must be 0 or 1"},
        {{{"DEEPINFER_ENABLE_MTP_VARLEN", "2"}}, DI_ERR_CONFIG, "it must be 0 or 1"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "65"}}, DI_ERR_CONFIG, "up to 64"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "x"}}, DI_ERR_CONFIG, "it must be 0"},
        {{{"DEEPINFER_USE_NEXTN_DECODE", "3"}, {"DEEPINFER_SPEC", "4"}}, DI_ERR_CONFIG, "stand for --spec 3"},
        {{{"DEEPINFER_PREFILL", "off"}, {"DEEPINFER_YOCO_PREFILL_TRUNCATION_MODE", "compact"}},
         DI_ERR_CONFIG,
         "set option prefill to different values"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        config = fresh();
        status = load_environment(config, cases[i].pairs, cases[i].pairs[1][0] ? 2 : 1, &note, &error);
        if (status != cases[i].status) fail_msg("%s gave %d", cases[i].pairs[0][0], status);
        if (!strstr(error.message, cases[i].message)) fail_msg("%s", error.message);
        di_config_free(config);
    }
    assert_int_equal(note.length, 0);
    /* Without a place for notes nothing is lost but the note. */
    static const char *const invariant[][2] = {{"DEEPINFER_BATCH_INVARIANT", "0"}};
    config = fresh();
    assert_int_equal(load_environment(config, invariant, 1, NULL, &error), DI_OK);
    di_config_free(config);
    di_text_free(&note);
}

static void test_help(void **state) {
    (void)state;
    di_text out = {0};
    di_config_write_help(&out, "sampling chat");
    assert_non_null(strstr(out.data, "  --temperature X "));
    assert_non_null(strstr(out.data, "  --system TEXT "));
    assert_non_null(strstr(out.data, "  --ignore-eos  "));
    assert_null(strstr(out.data, "--threads"));
    di_text_clear(&out);
    di_config_write_help(&out, "samplin");
    assert_int_equal(out.length, 0);
    di_config_write_markdown(&out);
    const di_config_row *rows = di_config_rows();
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        char line[128];
        snprintf(line, sizeof line, "\n| `--%s` | ", rows[i].name);
        char *found = strstr(out.data, line);
        assert_non_null(found);
        assert_null(strstr(found + 1, line));
        /* Four cells: a bar in a text would make a fifth. */
        size_t bars = 0;
        for (char *c = found + 1; *c != '\n'; c++) bars += *c == '|';
        assert_int_equal(bars, 5);
        if (rows[i].seed_name[0]) assert_non_null(strstr(out.data, rows[i].seed_name));
    }
    assert_non_null(strstr(out.data, "DEEPINFER_USE_NEXTN_DECODE"));
    di_text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),       cmocka_unit_test(test_values), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_precedence), cmocka_unit_test(test_file),   cmocka_unit_test(test_environment),
        cmocka_unit_test(test_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
