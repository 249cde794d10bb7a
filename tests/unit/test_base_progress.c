/* needs: base */
/* Progress bar: shown on a terminal only, never with quiet, fits the line, cleared at the end. */
#include "base/progress.h"

#include <pty.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct bar {
    const char *label;
    uint64_t total;
    bool quiet;
} bar;

static void show(const bar *b) {
    di_progress *progress = di_progress_new(b->label, "tokens", b->total, b->quiet);
    for (int i = 0; i < 5; i++) {
        usleep(60000);
        di_progress_add(progress, 1000);
    }
    di_progress_end(progress);
}

/* What a child that shows the bar writes to its standard error; terminal of 60 columns, or a pipe. */
static size_t output_of(const bar *b, bool terminal, char *out, size_t room) {
    int ends[2];
    pid_t child;
    if (terminal) {
        struct winsize size = {.ws_row = 24, .ws_col = 60};
        child = forkpty(&ends[0], NULL, NULL, &size);
    } else {
        assert_int_equal(pipe(ends), 0);
        child = fork();
        if (child == 0) dup2(ends[1], STDERR_FILENO);
        if (child > 0) close(ends[1]);
    }
    assert_true(child >= 0);
    if (child == 0) {
        show(b);
        _exit(0);
    }
    size_t used = 0;
    ssize_t got;
    while (used < room - 1 && (got = read(ends[0], out + used, room - 1 - used)) > 0) used += (size_t)got;
    out[used] = '\0';
    close(ends[0]);
    waitpid(child, NULL, 0);
    return used;
}

static void test_shown(void **state) {
    (void)state;
    char out[8192];
    assert_true(output_of(&(bar){"prompt", 10000, false}, true, out, sizeof out) > 0);
    assert_non_null(strstr(out, "\rprompt ["));
    assert_non_null(strstr(out, "%"));
    assert_non_null(strstr(out, "tokens"));
    size_t length = strlen(out);
    assert_true(length > 4 && strcmp(out + length - 4, "\r\033[K") == 0);
    /* No line is wider than the terminal. */
    for (char *line = strtok(out, "\r"); line; line = strtok(NULL, "\r")) assert_true(strcspn(line, "\033") < 60);
    /* Without a total: amount and rate. */
    assert_true(output_of(&(bar){"load", 0, false}, true, out, sizeof out) > 0);
    assert_non_null(strstr(out, "\rload  "));
    assert_null(strstr(out, "ETA"));
}

static void test_not_shown(void **state) {
    (void)state;
    char out[8192];
    assert_int_equal(output_of(&(bar){"prompt", 10000, true}, true, out, sizeof out), 0);
    assert_int_equal(output_of(&(bar){"prompt", 10000, false}, false, out, sizeof out), 0);
    di_progress_add(NULL, 1);
    di_progress_end(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shown), cmocka_unit_test(test_not_shown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
