/* needs: base */
/* JSON reader: what RFC 8259 allows and refuses, exact numbers, error positions, hostile input. */
#include "base/json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Parses a copy without a byte behind it, so that the sanitizer sees every read past the end. */
static di_status parse(di_arena *arena, const char *text, size_t length, unsigned depth, const di_json **root,
                       di_error *error) {
    char *exact = malloc(length ? length : 1);
    if (length) memcpy(exact, text, length);
    di_status status = di_json_parse(arena, exact, length, depth, root, error);
    free(exact);
    return status;
}

static void test_accepts(void **state) {
    (void)state;
    static const char *const texts[] = {
        "null",
        "true",
        "false",
        "0",
        "-0",
        "12",
        "-12",
        "0.5",
        "1e5",
        "1E+5",
        "1e-5",
        "-0.0e00",
        "123.456e-7",
        "\"\"",
        "\"a\"",
        "[]",
        "{}",
        " \t\r\n[ ] ",
        "[1,2]",
        "[ 1 , 2 ]",
        "{\"a\":1}",
        "{ \"a\" : 1 , \"b\" : [ ] }",
        "[[[[[[]]]]]]",
        "\"\\u0000\"",
        "\"\\ud83d\\ude00\"",
        "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\x7f\"",
        "\"\xF0\x9F\x98\x80\"",
        "\"\xEF\xBF\xBF\"",
        "{\"\":0}",
        "{\"a\":1,\"a\":2}",
        "[1e999999999999999999999]",
        "\"\xE2\x80\xA8\"",
        "100000000000000000000000000000000000000000",
    };
    di_arena *arena = di_arena_new(0);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const di_json *root;
        di_error error = {0};
        if (parse(arena, texts[i], strlen(texts[i]), 0, &root, &error) != DI_OK) {
            fail_msg("refused %s: %s", texts[i], error.message);
        }
    }
    di_arena_free(arena);
}

static void test_refuses(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "column 1 (byte 0): expected a value, found the end of the text"},
        {"\n[1,\n", "line 3, column 1 (byte 5): expected a value, found the end"},
        {"  ", "byte 2"},
        {"nul", "expected a value, found 'n'"},
        {"nulll", "byte 4"},
        {"True", "expected a value"},
        {"NaN", "expected a value"},
        {"Infinity", "expected a value"},
        {"-Infinity", "expected a digit, found 'I'"},
        {"+1", "expected a value, found '+'"},
        {".5", "expected a value"},
        {"5.", "expected a digit after the decimal point"},
        {"01", "must not start with 0"},
        {"-01", "must not start with 0"},
        {"-", "expected a digit"},
        {"1e", "digit of the exponent"},
        {"1e+", "digit of the exponent"},
        {"0x10", "expected the end of the text, found 'x'"},
        {"1 2", "expected the end of the text, found '2'"},
        {"{} {}", "expected the end of the text"},
        {"[1,]", "expected a value, found ']'"},
        {"[,1]", "expected a value, found ','"},
        {"[1 2]", "expected ',' or ']', found '2'"},
        {"[1", "expected ',' or ']', found the end"},
        {"[", "expected a value, found the end"},
        {"]", "expected a value"},
        {"{", "a member name in quotes or '}'"},
        {"{a:1}", "a member name in quotes or '}'"},
        {"{'a':1}", "a member name in quotes"},
        {"{\"a\"}", "expected ':' after a member name"},
        {"{\"a\":}", "expected a value, found '}'"},
        {"{\"a\":1,}", "a member name in quotes, found '}'"},
        {"{\"a\":1 \"b\":2}", "expected ',' or '}'"},
        {"{1:2}", "a member name in quotes"},
        {"[1}", "expected ',' or ']', found '}'"},
        {"\"a", "this string is not closed"},
        {"\"a\nb\"", "control character"},
        {"\"\t\"", "control character"},
        {"\"\\x41\"", "unknown escape"},
        {"\"\\", "the text ends inside a string"},
        {"\"\\u12\"", "four hexadecimal digits"},
        {"\"\\u12G4\"", "four hexadecimal digits"},
        {"\"\\ud800\"", "lone surrogate"},
        {"\"\\ud800\\n\"", "lone surrogate"},
        {"\"\\udc00\\ud800\"", "lone surrogate"},
        {"\"\\ud800\\u0041\"", "lone surrogate"},
        {"\"\\ud800\\ud800\"", "lone surrogate"},
        {"\"\xFF\"", "invalid UTF-8"},
        {"\"\xC0\x80\"", "invalid UTF-8"},
        {"\"\xED\xA0\x80\"", "invalid UTF-8"},
        {"\"\xF4\x90\x80\x80\"", "invalid UTF-8"},
        {"\"\xE2\x82\"", "invalid UTF-8"},
        {"{\"\xFF\":1}", "invalid UTF-8"},
        {"\xEF\xBB\xBF{}", "byte order mark"},
        {"// c\n1", "expected a value, found '/'"},
        {"[1,\n  2,\n  \"\xC3\xA9\", x]", "line 3, column 8 (byte 17): expected a value, found 'x'"},
        {"\xC2\xA0[]", "found byte 0xC2"},
        {"\f[]", "found byte 0x0C"},
    };
    di_arena *arena = di_arena_new(0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const di_json *root = (const di_json *)&root;
        di_error error = {0};
        di_status status = parse(arena, cases[i].text, strlen(cases[i].text), 0, &root, &error);
        if (status != DI_ERR_FORMAT) fail_msg("accepted %s", cases[i].text);
        assert_null(root);
        if (!strstr(error.message, cases[i].message)) fail_msg("%s: %s", cases[i].text, error.message);
    }
    const di_json *root;
    assert_int_equal(parse(arena, "\0", 1, 0, &root, NULL), DI_ERR_FORMAT);
    assert_int_equal(parse(arena, "1\0", 2, 0, &root, NULL), DI_ERR_FORMAT);
    assert_int_equal(parse(arena, "\"\\\0\"", 4, 0, &root, NULL), DI_ERR_FORMAT);
    di_arena_free(arena);
}

static void test_tree(void **state) {
    (void)state;
    const char *text = "{\"a\": 1.50, \"b\": [true, \"x\\u0000y\", {}], \"a\": -2E+1, \"\\u0061b\": null}";
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    assert_int_equal(parse(arena, text, strlen(text), 0, &root, NULL), DI_OK);
    assert_int_equal(root->type, DI_JSON_OBJECT);
    assert_int_equal(root->count, 4);
    const di_json *first = root->first;
    assert_string_equal(first->key, "a");
    assert_string_equal(first->text, "1.50");
    assert_int_equal(first->offset, 6);
    const di_json *list = first->next;
    assert_int_equal(list->count, 3);
    assert_true(di_json_is_true(list->first));
    assert_int_equal(list->first->next->length, 3);
    assert_memory_equal(list->first->next->text, "x\0y", 4);
    assert_false(di_json_string_is(list->first->next, "x"));
    assert_int_equal(list->first->next->next->type, DI_JSON_OBJECT);
    assert_null(list->first->next->next->first);
    assert_null(list->first->next->next->next);
    /* The last of two equal keys is the one that is found; both are there. */
    assert_string_equal(di_json_get(root, "a")->text, "-2E+1");
    assert_int_equal(di_json_get(root, "ab")->type, DI_JSON_NULL);
    assert_null(di_json_get(root, "c"));
    assert_null(di_json_get(list, "a"));
    assert_null(di_json_get(NULL, "a"));
    assert_string_equal(di_json_type_name(list->type), "an array");
    di_arena_free(arena);
}

/* A short text must not become gigabytes of nodes. */
static void test_many_values(void **state) {
    (void)state;
    enum { VALUES = DI_JSON_MAX_VALUES };
    char *text = malloc(2 * VALUES);
    assert_non_null(text);
    text[0] = '[';
    for (size_t i = 1; i < 2 * VALUES; i++) text[i] = i % 2 ? '1' : ',';
    di_arena *arena = di_arena_new(1 << 20);
    const di_json *root;
    di_error error = {0};
    size_t most = 2 * (size_t)(VALUES - 1); /* the array is a value too */
    text[most] = ']';
    assert_int_equal(di_json_parse(arena, text, most + 1, 0, &root, &error), DI_OK);
    assert_int_equal(root->count, VALUES - 1);
    di_arena_reset(arena);
    text[most] = ',';
    text[2 * VALUES - 1] = '1';
    assert_int_equal(di_json_parse(arena, text, 2 * VALUES, 0, &root, &error), DI_ERR_LIMIT);
    assert_non_null(strstr(error.message, "more than 4194304 values"));
    assert_string_equal(error.param, "values");
    di_arena_free(arena);
    free(text);
}

static void test_depth(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    static char text[400000];
    const di_json *root;
    di_error error = {0};
    for (size_t depth = 1; depth <= 130; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(parse(arena, text, 2 * depth, 0, &root, &error), depth <= 128 ? DI_OK : DI_ERR_LIMIT);
        assert_int_equal(parse(arena, text, 2 * depth, 3, &root, &error), depth <= 3 ? DI_OK : DI_ERR_LIMIT);
    }
    assert_non_null(strstr(error.message, "nested deeper than the 3 levels"));
    assert_string_equal(error.param, "depth");
    /* No limit of the caller lets the stack grow without bound. */
    memset(text, '[', sizeof text);
    assert_int_equal(parse(arena, text, sizeof text, 1u << 30, &root, &error), DI_ERR_LIMIT);
    assert_non_null(strstr(error.message, "1024 levels"));
    memset(text, '[', DI_JSON_MAX_DEPTH);
    memset(text + DI_JSON_MAX_DEPTH, ']', DI_JSON_MAX_DEPTH);
    assert_int_equal(parse(arena, text, 2 * DI_JSON_MAX_DEPTH, DI_JSON_MAX_DEPTH, &root, &error), DI_OK);
    di_arena_free(arena);
}

/* Cut or damaged at every byte: refused or read, never a crash; a cut document is always refused. */
static void test_truncated_and_damaged(void **state) {
    (void)state;
    const char *text =
        "{\"k\\u00e9y\": [1, -2.5e+10, \"\xF0\x9F\x98\x80 \\ud83d\\ude00\", true, false, null], \"\xC3\xA9\": {}}";
    size_t length = strlen(text);
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    for (size_t cut = 0; cut < length; cut++) {
        di_error error = {0};
        assert_int_equal(parse(arena, text, cut, 0, &root, &error), DI_ERR_FORMAT);
        assert_non_null(strstr(error.message, "byte "));
    }
    assert_int_equal(parse(arena, text, length, 0, &root, NULL), DI_OK);
    char damaged[256];
    for (size_t i = 0; i < length; i++) {
        for (unsigned value = 0; value < 256; value += 5) {
            memcpy(damaged, text, length);
            damaged[i] = (char)value;
            di_status status = parse(arena, damaged, length, 0, &root, NULL);
            assert_true(status == DI_OK || status == DI_ERR_FORMAT);
        }
        di_arena_reset(arena);
    }
    di_arena_free(arena);
}

static const di_json *number(di_arena *arena, const char *text) {
    const di_json *root;
    assert_int_equal(parse(arena, text, strlen(text), 0, &root, NULL), DI_OK);
    return root;
}

static void test_integers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool is_signed, is_unsigned;
        int64_t value;
        uint64_t bits;
    } cases[] = {
        {"0", true, true, 0, 0},
        {"-0", true, true, 0, 0},
        {"-0.000e-7", true, true, 0, 0},
        {"0e999999999999999999999", true, true, 0, 0},
        {"1.0", true, true, 1, 1},
        {"1e2", true, true, 100, 100},
        {"12.5e1", true, true, 125, 125},
        {"1200e-2", true, true, 12, 12},
        {"1200e-3", false, false, 0, 0},
        {"1.5", false, false, 0, 0},
        {"1e-1", false, false, 0, 0},
        {"0.10e1", true, true, 1, 1},
        {"0.1", false, false, 0, 0},
        {"-7", true, false, -7, 0},
        {"9223372036854775807", true, true, INT64_MAX, INT64_MAX},
        {"9223372036854775808", false, true, 0, UINT64_C(9223372036854775808)},
        {"-9223372036854775808", true, false, INT64_MIN, 0},
        {"-9223372036854775809", false, false, 0, 0},
        {"18446744073709551615", false, true, 0, UINT64_MAX},
        {"18446744073709551616", false, false, 0, 0},
        {"1844674407370955161.5e1", false, true, 0, UINT64_MAX},
        {"1e18", true, true, INT64_C(1000000000000000000), UINT64_C(1000000000000000000)},
        {"1e19", false, true, 0, UINT64_C(10000000000000000000)},
        {"1e20", false, false, 0, 0},
        {"1e99999999999999999999", false, false, 0, 0},
        {"1e-99999999999999999999", false, false, 0, 0},
        {"9007199254740993", true, true, 9007199254740993, 9007199254740993}, /* 2^53 + 1: no double holds it */
        {"0.0000000000000000000000000000000000000001e40", true, true, 1, 1},
        {"10000000000000000000000000000000000000000e-40", true, true, 1, 1},
    };
    di_arena *arena = di_arena_new(0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const di_json *node = number(arena, cases[i].text);
        int64_t value = 0;
        uint64_t bits = 0;
        if (di_json_int64(node, &value) != cases[i].is_signed) fail_msg("%s", cases[i].text);
        if (di_json_uint64(node, &bits) != cases[i].is_unsigned) fail_msg("%s", cases[i].text);
        if (cases[i].is_signed && value != cases[i].value) fail_msg("%s", cases[i].text);
        if (cases[i].is_unsigned && bits != cases[i].bits) fail_msg("%s", cases[i].text);
    }
    int64_t value;
    assert_false(di_json_int64(NULL, &value));
    assert_false(di_json_int64(number(arena, "\"1\""), &value));
    assert_false(di_json_int64(number(arena, "true"), &value));
    di_arena_free(arena);
}

static void test_doubles(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    double value;
    assert_true(di_json_double(number(arena, "0.1"), &value) && value == 0.1);
    assert_true(di_json_double(number(arena, "-0"), &value) && value == 0 && signbit(value));
    assert_true(di_json_double(number(arena, "5e-324"), &value) && value == 0x1p-1074);
    assert_true(di_json_double(number(arena, "1e-400"), &value) && value == 0);
    assert_true(di_json_double(number(arena, "1.7976931348623157e308"), &value) && value == DBL_MAX);
    assert_false(di_json_double(number(arena, "1e309"), &value));
    assert_false(di_json_double(number(arena, "-1e309"), &value));
    assert_false(di_json_double(number(arena, "null"), &value));
    di_arena_free(arena);
}

static double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Time grows with the length, not with its square, whatever the text is made of: a step for each pair of bytes would
 * take many minutes. */
static void test_linear_and_large(void **state) {
    (void)state;
    enum { BYTES = 2000000 };
    static const char *const units[] = {"1,", "\"a\",", "[],", "{\"k\":1},", "\"\\u00e9\",", "        ", "-1.5e+10,"};
    char *text = malloc(BYTES + 16);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t size = strlen(units[u]), used = 0;
        text[used++] = '[';
        while (used + size < BYTES) {
            memcpy(text + used, units[u], size);
            used += size;
        }
        text[used++] = '0';
        text[used++] = ']';
        di_arena *arena = di_arena_new(1 << 20);
        const di_json *root;
        double start = processor_seconds();
        assert_int_equal(di_json_parse(arena, text, used, 0, &root, NULL), DI_OK);
        double seconds = processor_seconds() - start;
        if (seconds > 10) fail_msg("%s: %.1f s for 2 MB", units[u], seconds);
        assert_int_equal(root->count, (units[u][0] == ' ' ? 0 : (used - 3) / size) + 1);
        di_arena_free(arena);
    }
    /* One string and one number as long as the file. */
    memset(text, '7', BYTES);
    text[BYTES] = 'e';
    text[BYTES + 1] = '5';
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    double value;
    int64_t integer;
    assert_int_equal(di_json_parse(arena, text, BYTES + 2, 0, &root, NULL), DI_OK);
    assert_false(di_json_double(root, &value));
    assert_false(di_json_int64(root, &integer));
    text[0] = text[BYTES] = '"';
    assert_int_equal(di_json_parse(arena, text, BYTES + 1, 0, &root, NULL), DI_OK);
    assert_int_equal(root->length, BYTES - 1);
    di_arena_free(arena);
    free(text);
}

static void test_files(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    di_error error = {0};
    assert_int_equal(di_json_parse_file(arena, DI_TEST_DATA "/nano/config.json", 1 << 20, 0, &root, &error), DI_OK);
    assert_int_equal(root->type, DI_JSON_OBJECT);
    assert_int_equal(di_json_parse_file(arena, DI_TEST_DATA "/nano/config.json", 100, 0, &root, &error), DI_ERR_LIMIT);
    assert_int_equal(di_json_parse_file(arena, "/nonexistent/x.json", 100, 0, &root, &error), DI_ERR_NOT_FOUND);
    char path[] = "/tmp/di_test_json_XXXXXX";
    int file = mkstemp(path);
    assert_int_equal(write(file, "{\"a\" 1}", 7), 7);
    close(file);
    assert_int_equal(di_json_parse_file(arena, path, 100, 0, &root, &error), DI_ERR_FORMAT);
    assert_non_null(strstr(error.message, path));
    assert_non_null(strstr(error.message, ": column 6 (byte 5): expected ':'"));
    unlink(path);
    di_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepts),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_tree),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_many_values),
        cmocka_unit_test(test_truncated_and_damaged),
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_doubles),
        cmocka_unit_test(test_linear_and_large),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
