/* needs: base */
/* JSON writer: separators, escapes, shortest numbers that read back, any locale; what was read is written back. */
#include "base/json.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_structure(void **state) {
    (void)state;
    for (int spaces = 0; spaces < 2; spaces++) {
        di_text out = {0};
        di_json_writer writer;
        di_json_begin(&writer, &out);
        writer.spaces = spaces;
        di_json_object_begin(&writer);
        di_json_key(&writer, "a");
        di_json_array_begin(&writer);
        di_json_integer(&writer, INT64_MIN);
        di_json_unsigned(&writer, UINT64_MAX);
        di_json_array_begin(&writer);
        di_json_array_end(&writer);
        di_json_bool(&writer, true);
        di_json_bool(&writer, false);
        di_json_null(&writer);
        di_json_array_end(&writer);
        di_json_key_n(&writer, "b\0c", 3);
        di_json_object_begin(&writer);
        di_json_object_end(&writer);
        di_json_key(&writer, "d");
        di_json_raw(&writer, "[1]", 3);
        di_json_key(&writer, "e");
        di_json_string(&writer, "x");
        di_json_object_end(&writer);
        assert_string_equal(out.data,
                            spaces ? "{\"a\": [-9223372036854775808, 18446744073709551615, [], true, false, null], "
                                     "\"b\\u0000c\": {}, \"d\": [1], \"e\": \"x\"}"
                                   : "{\"a\":[-9223372036854775808,18446744073709551615,[],true,false,null],"
                                     "\"b\\u0000c\":{},\"d\":[1],\"e\":\"x\"}");
        di_text_free(&out);
    }
}

static void test_strings(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        const char *expected;
    } cases[] = {
        {"", 0, "\"\""},
        {"\"\\/\b\f\n\r\t", 8, "\"\\\"\\\\/\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"\xC3\xA9\xF0\x9F\x98\x80", 6, "\"\xC3\xA9\xF0\x9F\x98\x80\""},
        {"a\xFFz", 3, "\"a\xEF\xBF\xBDz\""},
        {"\xE2\x82", 2, "\"\xEF\xBF\xBD\""},
        {"\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        di_text out = {0};
        di_json_writer writer;
        di_json_begin(&writer, &out);
        di_json_string_n(&writer, cases[i].bytes, cases[i].length);
        assert_string_equal(out.data, cases[i].expected);
        di_text_free(&out);
    }
}

static const char *number_text(di_text *out, double value, bool single) {
    di_text_clear(out);
    di_json_writer writer;
    di_json_begin(&writer, out);
    if (single) {
        di_json_float(&writer, (float)value);
    } else {
        di_json_number(&writer, value);
    }
    return out->data;
}

static void check_known_numbers(void) {
    static const struct {
        double value;
        const char *expected;
    } cases[] = {
        {0, "0"},
        {-0.0, "-0"},
        {1, "1"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"},
        {1e22, "1e+22"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {5e-324, "5e-324"},
        {DBL_MAX, "1.7976931348623157e+308"},
        {DBL_MIN, "2.2250738585072014e-308"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    di_text out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(number_text(&out, cases[i].value, false), cases[i].expected);
    }
    assert_string_equal(number_text(&out, 0.1f, true), "0.1");
    assert_string_equal(number_text(&out, 1.0f / 3, true), "0.33333334");
    assert_string_equal(number_text(&out, 1e-45f, true), "1e-45");
    assert_string_equal(number_text(&out, FLT_MAX, true), "3.4028235e+38");
    assert_string_equal(number_text(&out, 16777216.0f, true), "16777216");
    assert_string_equal(number_text(&out, (double)NAN, true), "null");
    di_text_free(&out);
}

static void test_numbers(void **state) {
    (void)state;
    check_known_numbers();
}

/* Sets a locale with a decimal comma: one of the system's, or one made in `folder`. */
static const char *set_comma_locale(const char *folder) {
    static const char *const names[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "nl_NL.UTF-8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (setlocale(LC_ALL, names[i])) return names[i];
    }
    char command[256];
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
    int result = system(command);
    setenv("LOCPATH", folder, 1);
    const char *found = result == 0 ? setlocale(LC_ALL, names[0]) : NULL;
    unsetenv("LOCPATH");
    return found;
}

/* The program around the library may use a decimal comma. */
static void test_locale(void **state) {
    (void)state;
    char folder[] = "/tmp/di_test_locale_XXXXXX";
    assert_non_null(mkdtemp(folder));
    const char *found = set_comma_locale(folder);
    char text[16], command[64];
    snprintf(text, sizeof text, "%.1f", 0.5);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    if (!found) {
        print_message("no locale with a decimal comma can be had here\n");
        skip();
    }
    assert_string_equal(text, "0,5");
    check_known_numbers();
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    double value = 0;
    assert_int_equal(di_json_parse(arena, "1.5", 3, 0, &root, NULL), DI_OK);
    bool read = di_json_double(root, &value);
    snprintf(text, sizeof text, "%.1f", 0.5);
    setlocale(LC_ALL, "C");
    assert_string_equal(text, "0,5"); /* the writer put the program's locale back */
    assert_true(read && value == 1.5);
    di_arena_free(arena);
}

/* Random bit patterns read back exactly, and no shorter precision would. */
static void test_round_trip(void **state) {
    (void)state;
    uint64_t random = 88172645463325252u;
    di_text out = {0};
    for (int i = 0; i < 100000; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        double value;
        memcpy(&value, &random, sizeof value);
        if (isfinite(value)) {
            const char *text = number_text(&out, value, false);
            double back = strtod(text, NULL);
            if (memcmp(&back, &value, sizeof back) != 0) fail_msg("%s for %a", text, value);
        }
        float single;
        uint32_t low = (uint32_t)random;
        memcpy(&single, &low, sizeof single);
        if (isfinite(single)) {
            const char *text = number_text(&out, (double)single, true);
            float back = strtof(text, NULL);
            if (memcmp(&back, &single, sizeof back) != 0) fail_msg("%s for %a", text, (double)single);
        }
    }
    di_text_free(&out);
}

static void write_value(di_text *out, const char *text, bool spaces) {
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    di_error error = {0};
    if (di_json_parse(arena, text, strlen(text), DI_JSON_MAX_DEPTH, &root, &error) != DI_OK)
        fail_msg("%s", error.message);
    di_text_clear(out);
    di_json_writer writer;
    di_json_begin(&writer, out);
    writer.spaces = spaces;
    di_json_value(&writer, root);
    di_arena_free(arena);
}

static void test_values(void **state) {
    (void)state;
    di_text out = {0};
    const char *text = "{\"b\":1.50,\"a\":[1E+2,-0,\"\xC3\xA9\\n\",null,true,false,[],{}],\"b\":{\"x\":[[]]}}";
    write_value(&out, text, false);
    assert_string_equal(out.data, text);
    write_value(&out, "{\"a\":[1,2],\"b\":{}}", true);
    assert_string_equal(out.data, "{\"a\": [1, 2], \"b\": {}}");
    /* Deeper than the writer's own nesting marks. */
    static char deep[2 * DI_JSON_MAX_DEPTH + 1];
    memset(deep, '[', DI_JSON_MAX_DEPTH);
    memset(deep + DI_JSON_MAX_DEPTH, ']', DI_JSON_MAX_DEPTH);
    write_value(&out, deep, false);
    assert_string_equal(out.data, deep);
    di_text_free(&out);
}

/* As json.dumps(json.loads(text), ensure_ascii=False) of Python 3.11 wrote it. */
static void test_python(void **state) {
    (void)state;
    static const struct {
        const char *text, *python;
    } rows[] = {
        {"[1.0,1e2,-0.0,-0,0.00001,1.5e-7,1e16,1E+2,1e15,100000.0,0.0001,0.5]",
         "[1.0, 100.0, -0.0, 0, 1e-05, 1.5e-07, 1e+16, 100.0, 1000000000000000.0, 100000.0, 0.0001, 0.5]"},
        {"[9007199254740993.0,123456789012345680.0,5e-324,1.7976931348623157e308,2.2250738585072014e-308,0.1,12.50]",
         "[9007199254740992.0, 1.2345678901234568e+17, 5e-324, 1.7976931348623157e+308, 2.2250738585072014e-308, 0.1, "
         "12.5]"},
        /* powers of two, whose nearest decimal of 16 digits does not read back */
        {"[5.9604644775390625e-8,5.684341886080801486968994140625e-14,9.5367431640625e-07]",
         "[5.960464477539063e-08, 5.684341886080802e-14, 9.5367431640625e-07]"},
        {"[18446744073709551616,-170141183460469231731687303715884105728,123456789012345678901234567890]",
         "[18446744073709551616, -170141183460469231731687303715884105728, 123456789012345678901234567890]"},
        {"{\"b\":1,\"a\":{\"x\":1,\"x\":[ ]},\"b\":{ },\"c\":null,\"a\":2}", "{\"b\": {}, \"a\": 2, \"c\": null}"},
        {"\"\\u0001\\u001f\\b\\f\\t\\n\\r\\/\\\"\\\\\\u007f\\u00e9\\ud83d\\ude42\"",
         "\"\\u0001\\u001f\\b\\f\\t\\n\\r/\\\"\\\\\x7Fé🙂\""},
        {"1e999", "1e999"}, /* out of a double's range: as it came */
    };
    di_text out = {0};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_arena *arena = di_arena_new(0);
        const di_json *root;
        assert_int_equal(di_json_parse(arena, rows[i].text, strlen(rows[i].text), 0, &root, NULL), DI_OK);
        di_text_clear(&out);
        di_json_writer writer;
        di_json_begin(&writer, &out);
        writer.python = true;
        di_json_value(&writer, root);
        assert_string_equal(out.data, rows[i].python);
        di_arena_free(arena);
    }
    di_text_free(&out);
}

static void test_fold(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    const char *text = "{\"b\":1,\"a\":2,\"b\":3,\"\":4,\"b\\u0000\":5,\"b\":6}";
    assert_int_equal(di_json_parse(arena, text, strlen(text), 0, &root, NULL), DI_OK);
    const di_json **values = di_json_fold(root);
    assert_non_null(values);
    static const int64_t expected[] = {6, 2, 0, 4, 5, 0};
    for (size_t i = 0; i < 6; i++) {
        int64_t value = 0;
        if (values[i]) assert_true(di_json_int64(values[i], &value));
        assert_int_equal(value, expected[i]);
    }
    free(values);
    assert_int_equal(di_json_parse(arena, "{}", 2, 0, &root, NULL), DI_OK);
    values = di_json_fold(root);
    assert_non_null(values);
    free(values);
    di_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_structure), cmocka_unit_test(test_strings),    cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_locale),    cmocka_unit_test(test_round_trip), cmocka_unit_test(test_values),
        cmocka_unit_test(test_python),    cmocka_unit_test(test_fold),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
