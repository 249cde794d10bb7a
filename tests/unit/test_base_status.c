/* needs: base */
/* Status table, bounded errors, log lines, clock. */
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_table(void **state) {
    (void)state;
    for (int i = 0; i < DI_STATUS_COUNT; i++) {
        assert_true(strlen(di_status_name(i)) > 1);
        assert_true(strlen(di_status_text(i)) > 4);
        assert_in_range(di_status_http(i), 200, 599);
        assert_int_equal(i == DI_OK, di_status_http(i) == 200);
        for (int j = 0; j < i; j++) assert_string_not_equal(di_status_name(i), di_status_name(j));
    }
    assert_string_equal(di_status_name(DI_ERR_INVALID_ARGUMENT), "invalid_argument");
    assert_int_equal(di_status_http(DI_ERR_QUEUE_FULL), 429);
    assert_string_equal(di_status_name((di_status)999), "internal");
}

static void test_fail(void **state) {
    (void)state;
    assert_int_equal(di_fail(NULL, DI_ERR_IO, "x", "%d", 1), DI_ERR_IO);
    di_error error;
    memset(&error, 0x7E, sizeof error);
    assert_int_equal(di_fail(&error, DI_ERR_FORMAT, NULL, "tensor %s at byte %d", "w", 7), DI_ERR_FORMAT);
    assert_string_equal(error.message, "tensor w at byte 7");
    assert_string_equal(error.param, "");
    /* Wrapping: the arguments are parts of the error itself. */
    di_fail(&error, DI_ERR_FORMAT, "inner", "inner text");
    di_fail(&error, DI_ERR_CHECKPOINT, error.param, "file: %s", error.message);
    assert_string_equal(error.message, "file: inner text");
    assert_string_equal(error.param, "inner");
    di_fail_errno(&error, DI_ERR_NOT_FOUND, "f", ENOENT, "cannot open %s", "f");
    assert_string_equal(error.message, "cannot open f: No such file or directory");
    di_error_clear(&error);
    assert_int_equal(error.status, DI_OK);
    assert_string_equal(error.message, "");
}

/* Text that does not fit ends in "..." and never inside a character. */
static void test_cut(void **state) {
    (void)state;
    char longer[4000];
    for (size_t shift = 0; shift < 3; shift++) {
        memset(longer, 'a', sizeof longer);
        for (size_t i = shift; i + 3 < sizeof longer; i += 3) memcpy(longer + i, "\xE2\x82\xAC", 3);
        longer[sizeof longer - 1] = '\0';
        di_error error;
        memset(&error, 0x7E, sizeof error);
        di_fail(&error, DI_ERR_FORMAT, longer, "%s", longer);
        size_t length = strnlen(error.message, sizeof error.message);
        assert_in_range(length, sizeof error.message - 4, sizeof error.message - 1);
        assert_string_equal(error.message + length - 3, "...");
        assert_int_equal(di_utf8_validate(error.message, length), length);
        length = strnlen(error.param, sizeof error.param);
        assert_in_range(length, sizeof error.param - 4, sizeof error.param - 1);
        assert_int_equal(di_utf8_validate(error.param, length), length);
        /* The system's reason stays whole. */
        di_fail_errno(&error, DI_ERR_IO, NULL, EACCES, "cannot open %s", longer);
        length = strlen(error.message);
        assert_string_equal(error.message + length - strlen("...: Permission denied"), "...: Permission denied");
    }
}

static void test_lines(void **state) {
    (void)state;
    di_error_add_line(NULL, "x");
    di_error error = {0};
    di_error_add_line(&error, "first");
    di_error_add_line(&error, "second %d", 2);
    assert_string_equal(error.message, "first\nsecond 2");
    for (int i = 0; i < 1000; i++) di_error_add_line(&error, "missing tensor layers.%d.weight", i);
    size_t kept = 0;
    for (const char *c = error.message; *c; c++) kept += *c == '\n';
    const char *last = strrchr(error.message, '\n') + 1;
    char expected[64];
    snprintf(expected, sizeof expected, "(and %zu more)", 1002 - kept);
    assert_string_equal(last, expected);
    assert_true(strlen(error.message) < sizeof error.message);
    assert_true(strlen(error.message) > sizeof error.message - 100);
    /* A message that already fills the space, and a line that is too long by itself. */
    char longer[2000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    di_fail(&error, DI_ERR_CHECKPOINT, NULL, "%s", longer);
    di_error_add_line(&error, "y");
    di_error_add_line(&error, "z");
    last = strrchr(error.message, '\n');
    assert_string_equal(last, "\n(and 2 more)");
    assert_memory_equal(last - 3, "...", 3);
    di_error_clear(&error);
    di_error_add_line(&error, "%s", longer);
    di_error_add_line(&error, "%s", longer);
    assert_string_equal(strrchr(error.message, '\n'), "\n(and 1 more)");
}

typedef struct sink {
    int lines;
    char last[4096];
} sink;

static void keep_line(void *arg, di_log_level level, const char *line) {
    (void)level;
    sink *s = arg;
    s->lines++;
    snprintf(s->last, sizeof s->last, "%s", line);
}

static void test_log(void **state) {
    (void)state;
    di_log_write(NULL, DI_LOG_ERROR, "m", "x");
    di_log_set_level(NULL, DI_LOG_ERROR);
    sink s = {0};
    di_log *log = di_log_new(DI_LOG_WARN, keep_line, &s);
    di_log_write(log, DI_LOG_INFO, "module", "not this");
    assert_int_equal(s.lines, 0);
    di_log_write(log, DI_LOG_WARN, "module", "two\nlines %d", 2);
    assert_int_equal(s.lines, 1);
    assert_string_equal(s.last + 24, " warn  module: two lines 2");
    assert_int_equal(s.last[10], 'T');
    assert_int_equal(s.last[23], 'Z');
    char longer[8000];
    memset(longer, 'y', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    di_log_write(log, DI_LOG_ERROR, "module", "%s", longer);
    assert_int_equal(s.lines, 2);
    size_t length = strlen(s.last);
    assert_in_range(length, 2000, 2048);
    assert_string_equal(s.last + length - 4, "y...");
    di_log_set_level(log, DI_LOG_DEBUG);
    di_log_write(log, DI_LOG_DEBUG, "module", "now");
    assert_int_equal(s.lines, 3);
    di_log_free(log);
    di_log_free(NULL);
}

static void test_clock(void **state) {
    (void)state;
    int64_t before = di_now_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now = di_now_ns();
        assert_true(now >= before);
        before = now;
    }
    assert_true(di_ms(1500000) == 1.5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table), cmocka_unit_test(test_fail), cmocka_unit_test(test_cut),
        cmocka_unit_test(test_lines), cmocka_unit_test(test_log),  cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
