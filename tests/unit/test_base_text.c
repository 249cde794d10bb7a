/* needs: base */
/* Growable text, UTF-8, whole files, nearest names. */
#include "base/status.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void test_growth(void **state) {
    (void)state;
    di_text text = {0};
    di_text_append(&text, NULL, 0);
    assert_string_equal(text.data, "");
    for (int i = 0; i < 1000; i++) di_text_printf(&text, "%d,", i);
    assert_int_equal(text.length, 10 * 2 + 90 * 3 + 900 * 4);
    assert_int_equal(strlen(text.data), text.length);
    assert_memory_equal(text.data, "0,1,2,", 6);
    di_text_clear(&text);
    assert_int_equal(text.length, 0);
    di_text_puts(&text, "a");
    di_text_putc(&text, '\0');
    di_text_append(&text, "b", 1);
    assert_memory_equal(text.data, "a\0b", 4);
    /* Every fill level of the first growth, so that a length that just fits is met too. */
    char filler[200];
    memset(filler, 'q', sizeof filler);
    for (size_t before = 0; before < 130; before++) {
        di_text_free(&text);
        di_text_append(&text, filler, before);
        di_text_printf(&text, "%s", "0123456789");
        assert_int_equal(text.length, before + 10);
        assert_string_equal(text.data + before, "0123456789");
    }
    di_text_free(&text);
    assert_null(text.data);
    di_text_append(&text, "x", SIZE_MAX / 2);
    assert_true(text.failed);
    di_text_puts(&text, "ignored");
    assert_true(text.failed);
    di_text_free(&text);
}

/* Every scalar value and nothing else has an encoding, and it reads back. */
static void test_utf8_all_codepoints(void **state) {
    (void)state;
    for (uint32_t c = 0; c <= 0x110010; c++) {
        bool scalar = c < 0xD800 || (c > 0xDFFF && c <= 0x10FFFF);
        char bytes[4];
        size_t size = di_utf8_encode(c, bytes);
        size_t expected = !scalar ? 0 : c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        if (size != expected) assert_int_equal(size, expected);
        if (!scalar) continue;
        uint32_t back = 0;
        if (di_utf8_decode(bytes, size, &back) != size || back != c) assert_int_equal(back, c);
        /* Every shorter prefix is incomplete. */
        for (size_t cut = 1; cut < size; cut++) {
            bool incomplete = false;
            if (di_utf8_decode(bytes, cut, &back) != 0) fail();
            if (di_utf8_bad_prefix(bytes, cut, &incomplete) != cut || !incomplete) fail();
        }
    }
}

/* Ill-formed sequences with their maximal subparts, and every sequence of two bytes. */
static void test_utf8_invalid(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t length, bad_prefix;
        bool incomplete;
    } cases[] = {
        {"\x80", 1, 1, false},
        {"\xBF", 1, 1, false},
        {"\xC0\x80", 2, 1, false},
        {"\xC1\xBF", 2, 1, false},
        {"\xE0\x80\x80", 3, 1, false},
        {"\xE0\x9F\xBF", 3, 1, false},
        {"\xED\xA0\x80", 3, 1, false},
        {"\xED\xBF\xBF", 3, 1, false},
        {"\xF0\x80\x80\x80", 4, 1, false},
        {"\xF4\x90\x80\x80", 4, 1, false},
        {"\xF5\x80\x80\x80", 4, 1, false},
        {"\xFF", 1, 1, false},
        {"\xE2\x82", 2, 2, true},
        {"\xE2\x82x", 3, 2, false},
        {"\xF0\x9F\x98", 3, 3, true},
        {"\xF0\x9F\x98z", 4, 3, false},
        {"\xF0\x9F", 2, 2, true},
        {"\xC3", 1, 1, true},
        {"\xC3z", 2, 1, false},
        {"\xE0", 1, 1, true},
        {"\xF4", 1, 1, true},
        {"\xF0\x9F\xC3\xA9", 4, 2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t codepoint;
        bool incomplete = true;
        assert_int_equal(di_utf8_decode(cases[i].bytes, cases[i].length, &codepoint), 0);
        assert_int_equal(di_utf8_bad_prefix(cases[i].bytes, cases[i].length, &incomplete), cases[i].bad_prefix);
        assert_int_equal(incomplete, cases[i].incomplete);
    }
    for (unsigned first = 0; first < 256; first++) {
        for (unsigned second = 0; second < 256; second++) {
            char bytes[2] = {(char)first, (char)second};
            bool valid = (first < 0x80 && second < 0x80) || (first >= 0xC2 && first < 0xE0 && (second & 0xC0) == 0x80);
            if ((di_utf8_validate(bytes, 2) == 2) != valid) fail_msg("%02x %02x", first, second);
        }
    }
}

static void test_utf8_validate_offsets(void **state) {
    (void)state;
    char text[64];
    /* A bad byte at every place, also around the 8-byte steps. */
    for (size_t length = 0; length < sizeof text; length++) {
        memset(text, 'a', sizeof text);
        assert_int_equal(di_utf8_validate(text, length), length);
        for (size_t bad = 0; bad < length; bad++) {
            memset(text, 'a', sizeof text);
            text[bad] = (char)0xFF;
            assert_int_equal(di_utf8_validate(text, length), bad);
            text[bad] = (char)0xC3; /* needs one more byte */
            assert_int_equal(di_utf8_validate(text, length), bad);
        }
    }
}

static void write_file(const char *path, const char *bytes, size_t length) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, length, file), length);
    assert_int_equal(fclose(file), 0);
}

static void test_read_file(void **state) {
    (void)state;
    char path[] = "/tmp/di_test_text_XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    close(descriptor);
    char *data;
    size_t length;
    di_error error = {0};
    assert_int_equal(di_read_file(path, 10, &data, &length, &error), DI_OK);
    assert_int_equal(length, 0);
    assert_string_equal(data, "");
    free(data);
    write_file(path, "0123456789", 10);
    assert_int_equal(di_read_file(path, 10, &data, &length, &error), DI_OK);
    assert_int_equal(length, 10);
    assert_string_equal(data, "0123456789");
    free(data);
    assert_int_equal(di_read_file(path, 9, &data, &length, &error), DI_ERR_LIMIT);
    assert_non_null(strstr(error.message, path));
    assert_null(data);
    unlink(path);
    assert_int_equal(di_read_file(path, 9, &data, &length, &error), DI_ERR_NOT_FOUND);
    assert_non_null(strstr(error.message, path));
    assert_int_equal(di_read_file("/tmp", 1000, &data, &length, &error), DI_ERR_IO);
    assert_non_null(strstr(error.message, "is a folder"));
    assert_int_equal(di_read_source("/tmp", 1000, &data, &length, &error), DI_ERR_IO);
    assert_non_null(strstr(error.message, "is a folder"));
    /* A file that tells no size, and one that never ends. */
    assert_int_equal(di_read_file("/proc/self/stat", 100000, &data, &length, &error), DI_OK);
    assert_true(length > 10);
    free(data);
    assert_int_equal(di_read_source("/dev/zero", 100000, &data, &length, &error), DI_ERR_LIMIT);
    assert_int_equal(di_read_file("/dev/zero", 100000, &data, &length, &error), DI_ERR_IO);
    assert_non_null(strstr(error.message, "/dev/zero is not a plain file"));
}

/* A pipe that nobody writes would be waited for without end. */
static void test_read_pipe(void **state) {
    (void)state;
    char folder[] = "/tmp/di_test_text_XXXXXX", path[64], shown[32];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/pipe", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    char *data;
    size_t length;
    di_error error = {0};
    assert_int_equal(di_read_file(path, 100, &data, &length, &error), DI_ERR_IO);
    assert_null(data);
    assert_non_null(strstr(error.message, path));
    assert_non_null(strstr(error.message, "is not a plain file"));
    int ends[2];
    assert_int_equal(pipe(ends), 0); /* as the shell's <(command) gives */
    assert_int_equal(write(ends[1], "key", 3), 3);
    close(ends[1]);
    snprintf(shown, sizeof shown, "/dev/fd/%d", ends[0]);
    assert_int_equal(di_read_file(shown, 100, &data, &length, &error), DI_ERR_IO);
    assert_int_equal(di_read_source(shown, 100, &data, &length, &error), DI_OK);
    assert_string_equal(data, "key");
    free(data);
    close(ends[0]);
    unlink(path);
    rmdir(folder);
}

static void test_nearest(void **state) {
    (void)state;
    const char *names[] = {"threads", "top-p", "top-k", "temperature", "max-rows"};
    size_t count = sizeof names / sizeof names[0];
    assert_string_equal(di_nearest_name("thread", names, count), "threads");
    assert_string_equal(di_nearest_name("htreads", names, count), "threads");
    assert_string_equal(di_nearest_name("max_rows", names, count), "max-rows");
    assert_string_equal(di_nearest_name("temprature", names, count), "temperature");
    assert_string_equal(di_nearest_name("threads", names, count), "threads");
    assert_null(di_nearest_name("completely-else", names, count));
    assert_null(di_nearest_name("xy", names, count));
    assert_null(di_nearest_name("thread", names, 0));
    char longer[500];
    memset(longer, 't', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_null(di_nearest_name(longer, names, count));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth),       cmocka_unit_test(test_utf8_all_codepoints),
        cmocka_unit_test(test_utf8_invalid), cmocka_unit_test(test_utf8_validate_offsets),
        cmocka_unit_test(test_read_file),    cmocka_unit_test(test_read_pipe),
        cmocka_unit_test(test_nearest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
