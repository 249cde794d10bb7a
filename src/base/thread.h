/* thread.h - the one way to start a thread: named, and without signals.
 *
 * Signals are the program's business, so every one is blocked in the new thread; the caller's mask is as before. The
 * name, at most 15 bytes and cut there, is what `top -H` and debuggers show. Any thread may call.
 */
#ifndef DI_BASE_THREAD_H
#define DI_BASE_THREAD_H

#include <pthread.h>

/* 0, or the system's error number; then there is no thread. A thread that started is joined by whoever started it. */
int di_thread_start(pthread_t *thread, const char *name, void *(*main)(void *argument), void *argument);

#endif
