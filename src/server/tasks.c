/* tasks.c - what reaches the I/O thread from other threads, and work that leaves it; see http.h. */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/thread.h"
#include "server/server_internal.h"

/* ---------------------------------------------------------------- tasks */

void di_server_post(di_server *server, di_server_task *task) {
    pthread_mutex_lock(&server->mutex);
    bool wake = !server->posted;
    if (!task->queued) {
        task->queued = true;
        task->next = NULL;
        *server->posted_end = task;
        server->posted_end = &task->next;
    }
    pthread_mutex_unlock(&server->mutex);
    /* The counter of an eventfd cannot fill up by this; if writing fails, it is not empty. */
    if (wake && write(server->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0) return;
}

void di_server_unpost(di_server *server, di_server_task *task) {
    pthread_mutex_lock(&server->mutex);
    di_server_task **at = &server->posted;
    while (*at && *at != task) at = &(*at)->next;
    if (*at) {
        *at = task->next;
        if (!*at) server->posted_end = at;
    }
    task->queued = false;
    pthread_mutex_unlock(&server->mutex);
}

static di_server_task *take_posted(di_server *server) {
    pthread_mutex_lock(&server->mutex);
    di_server_task *task = server->posted;
    if (task) {
        server->posted = task->next;
        if (!server->posted) server->posted_end = &server->posted;
        task->queued = false;
    }
    pthread_mutex_unlock(&server->mutex);
    return task;
}

static void run_posted(evutil_socket_t socket, short what, void *arg) {
    (void)what;
    enum { AT_ONCE = 256 }; /* then sockets get their turn */
    di_server *server = arg;
    uint64_t wakes;
    if (read(socket, &wakes, sizeof wakes) < 0 && errno != EAGAIN) return;
    di_server_task *task = NULL;
    for (int i = 0; i < AT_ONCE && (task = take_posted(server)); i++) task->run(task->arg);
    pthread_mutex_lock(&server->mutex);
    bool more = server->posted != NULL;
    pthread_mutex_unlock(&server->mutex);
    if (more && write(server->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0) return;
}

/* ---------------------------------------------------------------- work */

static void push(di_work_list *list, di_work *work) {
    work->next = NULL;
    *list->end = work;
    list->end = &work->next;
}

static di_work *pop(di_work_list *list) {
    di_work *work = list->first;
    if (!work) return NULL;
    list->first = work->next;
    if (!list->first) list->end = &list->first;
    return work;
}

static void *work_main(void *arg) {
    di_server *server = arg;
    pthread_mutex_lock(&server->mutex);
    for (;;) {
        di_work *work = pop(&server->queued);
        if (work) {
            pthread_mutex_unlock(&server->mutex);
            work->work(work->arg);
            pthread_mutex_lock(&server->mutex);
            push(&server->finished, work);
            pthread_mutex_unlock(&server->mutex);
            di_server_post(server, &server->deliver);
            pthread_mutex_lock(&server->mutex);
        } else if (server->work_ends) {
            break;
        } else {
            pthread_cond_wait(&server->work_waits, &server->mutex);
        }
    }
    pthread_mutex_unlock(&server->mutex);
    return NULL;
}

static void deliver(void *arg) {
    di_server *server = arg;
    for (;;) {
        pthread_mutex_lock(&server->mutex);
        di_work *work = pop(&server->finished);
        pthread_mutex_unlock(&server->mutex);
        if (!work) return;
        work->done(work->arg);
        free(work);
    }
}

di_status di_server_work(di_server *server, void (*work)(void *arg), void (*done)(void *arg), void *arg,
                         di_error *error) {
    di_work *item = malloc(sizeof *item);
    if (!item) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a task");
    *item = (di_work){.work = work, .done = done, .arg = arg};
    pthread_mutex_lock(&server->mutex);
    bool ends = server->work_ends;
    if (!ends) push(&server->queued, item);
    pthread_cond_signal(&server->work_waits);
    pthread_mutex_unlock(&server->mutex);
    if (!ends) return DI_OK;
    free(item);
    return di_fail(error, DI_ERR_CANCELLED, NULL, "the server has ended");
}

void di_tasks_drain(di_server *server) {
    pthread_mutex_lock(&server->mutex);
    server->work_ends = true;
    pthread_cond_broadcast(&server->work_waits);
    pthread_mutex_unlock(&server->mutex);
    while (server->worker_count) pthread_join(server->workers[--server->worker_count], NULL);
    deliver(server);
}

/* ---------------------------------------------------------------- open and close */

di_status di_tasks_open(di_server *server, di_error *error) {
    server->posted_end = &server->posted;
    server->queued.end = &server->queued.first;
    server->finished.end = &server->finished.first;
    server->deliver = (di_server_task){.run = deliver, .arg = server};
    server->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (server->wake < 0) return di_fail_errno(error, DI_ERR_INTERNAL, NULL, errno, "cannot make an eventfd");
    server->woken = event_new(server->base, server->wake, EV_READ | EV_PERSIST, run_posted, server);
    server->workers = calloc((size_t)server->settings.workers, sizeof *server->workers);
    if (!server->woken || !server->workers || event_add(server->woken, NULL) != 0)
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    for (; server->worker_count < server->settings.workers; server->worker_count++) {
        int failed = di_thread_start(&server->workers[server->worker_count], "di-server-task", work_main, server);
        if (failed) return di_fail_errno(error, DI_ERR_INTERNAL, NULL, failed, "cannot start a worker thread");
    }
    return DI_OK;
}

void di_tasks_close(di_server *server) {
    if (server->worker_count) di_tasks_drain(server);
    if (server->woken) event_free(server->woken);
    if (server->wake >= 0) close(server->wake);
    free(server->workers);
}
