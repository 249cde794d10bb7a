/* needs: base */
/* Threads have their name, take no signals, and leave the mask of whoever starts them as it was. */
#include "base/thread.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

typedef struct seen {
    pthread_mutex_t named; /* held until the thread has its name */
    char name[16];
    sigset_t mask;
} seen;

static void *look(void *argument) {
    seen *s = argument;
    pthread_mutex_lock(&s->named);
    pthread_getname_np(pthread_self(), s->name, sizeof s->name);
    pthread_mutex_unlock(&s->named);
    pthread_sigmask(SIG_SETMASK, NULL, &s->mask);
    return NULL;
}

static void start(seen *s, const char *name) {
    pthread_t thread;
    pthread_mutex_init(&s->named, NULL);
    pthread_mutex_lock(&s->named);
    assert_int_equal(di_thread_start(&thread, name, look, s), 0);
    pthread_mutex_unlock(&s->named);
    pthread_join(thread, NULL);
    pthread_mutex_destroy(&s->named);
}

static void test_name_and_signals(void **state) {
    (void)state;
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    seen s = {0};
    start(&s, "di-worker-3");
    assert_string_equal(s.name, "di-worker-3");
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGCHLD, SIGALRM};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) assert_true(sigismember(&s.mask, signals[i]));
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < 32; number++) assert_int_equal(sigismember(&after, number), number == SIGUSR2);
}

static void test_long_names_are_cut(void **state) {
    (void)state;
    seen s = {0};
    start(&s, "di-a-name-beyond-fifteen");
    assert_string_equal(s.name, "di-a-name-beyon");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_name_and_signals),
                                       cmocka_unit_test(test_long_names_are_cut)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
