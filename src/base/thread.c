/* thread.c - see thread.h. */
#include "base/thread.h"

#include <signal.h>
#include <stdio.h>

int di_thread_start(pthread_t *thread, const char *name, void *(*main)(void *argument), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, main, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return failed;
    char cut[16];
    snprintf(cut, sizeof cut, "%s", name);
    pthread_setname_np(*thread, cut);
    return 0;
}
