/* hub.c - the one place where other threads reach the engine thread. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

di_hub *di_hub_new(di_error *error) {
    di_hub *hub = calloc(1, sizeof *hub);
    if (!hub) {
        di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the request queue");
        return NULL;
    }
    atomic_init(&hub->references, 1);
    hub->inbox_end = &hub->inbox;
    hub->idle = true;
    int failed = pthread_mutex_init(&hub->mutex, NULL);
    if (failed)
        di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot make a mutex");
    else if (di_condition_init(&hub->called, error) != DI_OK)
        pthread_mutex_destroy(&hub->mutex);
    else {
        sem_init(&hub->work, 0, 0); /* fails for a wrong value only */
        return hub;
    }
    free(hub);
    return NULL;
}

void di_hub_release(di_hub *hub) {
    if (!hub || atomic_fetch_sub_explicit(&hub->references, 1, memory_order_acq_rel) != 1) return;
    sem_destroy(&hub->work);
    pthread_cond_destroy(&hub->called);
    pthread_mutex_destroy(&hub->mutex);
    free(hub);
}

/* Mutex held. */
static void add_to_inbox(di_hub *hub, di_request *request) {
    atomic_fetch_add_explicit(&request->references, 1, memory_order_relaxed);
    request->next = NULL;
    if (!hub->inbox) atomic_store_explicit(&hub->inbox_ns, request->submitted_ns, memory_order_relaxed);
    *hub->inbox_end = request;
    hub->inbox_end = &request->next;
    request->older = hub->newest;
    *(hub->newest ? &hub->newest->newer : &hub->oldest) = request;
    hub->newest = request;
    hub->unfinished++;
    if (hub->idle) atomic_store_explicit(&hub->progress_ns, di_now_ns(), memory_order_relaxed);
    hub->idle = false;
    atomic_fetch_add_explicit(&hub->waiting, 1, memory_order_relaxed);
}

di_status di_hub_submit(di_hub *hub, di_request *request, uint32_t limit, di_error *error) {
    pthread_mutex_lock(&hub->mutex);
    di_status status = DI_OK;
    uint32_t waiting = atomic_load_explicit(&hub->waiting, memory_order_relaxed);
    if (hub->stopping)
        status = di_fail(error, DI_ERR_CANCELLED, NULL, "the engine is being closed");
    else if (waiting >= limit)
        status = di_fail(error, DI_ERR_QUEUE_FULL, "max-queue",
                         "%u requests are waiting already; --max-queue allows %u. Try again when one has started",
                         waiting, limit);
    else
        add_to_inbox(hub, request);
    pthread_mutex_unlock(&hub->mutex);
    if (status == DI_OK) di_hub_wake(hub);
    return status;
}

void di_hub_finished(di_hub *hub, di_request *request) {
    pthread_mutex_lock(&hub->mutex);
    *(request->older ? &request->older->newer : &hub->oldest) = request->newer;
    *(request->newer ? &request->newer->older : &hub->newest) = request->older;
    request->older = request->newer = NULL;
    hub->unfinished--;
    pthread_mutex_unlock(&hub->mutex);
}

void di_hub_wake(di_hub *hub) {
    sem_post(&hub->work);
}

void di_hub_stop(di_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    hub->stopping = true;
    pthread_mutex_unlock(&hub->mutex);
    di_hub_wake(hub);
}

bool di_hub_posted(di_hub *hub) {
    int posts = 0;
    return sem_getvalue(&hub->work, &posts) == 0 && posts > 0;
}

bool di_hub_wait(di_hub *hub, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    for (;;) {
        int failed = until_ns == INT64_MAX ? sem_wait(&hub->work) : sem_clockwait(&hub->work, CLOCK_MONOTONIC, &until);
        if (!failed || errno != EINTR) return !failed;
    }
}

di_request *di_hub_take(di_hub *hub, bool wait, int64_t timeout_ms, bool *stopping) {
    int64_t until = wait && timeout_ms >= 0 ? di_now_ns() + timeout_ms * 1000000 : INT64_MAX;
    bool posted = false;
    for (;;) {
        while (sem_trywait(&hub->work) == 0) posted = true; /* what was posted for is seen below */
        pthread_mutex_lock(&hub->mutex);
        hub->idle = wait && !posted && !hub->inbox && !hub->calls && !hub->stopping && timeout_ms < 0;
        if (!wait || posted || hub->inbox || hub->calls || hub->stopping) break;
        pthread_mutex_unlock(&hub->mutex);
        if (di_hub_wait(hub, until))
            posted = true;
        else
            wait = false;
    }
    di_request *taken = hub->inbox;
    hub->inbox = NULL;
    hub->inbox_end = &hub->inbox;
    atomic_store_explicit(&hub->inbox_ns, 0, memory_order_relaxed);
    *stopping = hub->stopping;
    pthread_mutex_unlock(&hub->mutex);
    return taken;
}

bool di_hub_call(di_hub *hub, void (*work)(void *arg), void *arg) {
    di_hub_work call = {.work = work, .arg = arg};
    atomic_fetch_add_explicit(&hub->references, 1, memory_order_relaxed);
    pthread_mutex_lock(&hub->mutex);
    bool open = !hub->stopping;
    if (open) {
        di_hub_work **end = &hub->calls;
        while (*end) end = &(*end)->next;
        *end = &call;
        di_hub_wake(hub);
        while (!call.done) pthread_cond_wait(&hub->called, &hub->mutex);
    }
    pthread_mutex_unlock(&hub->mutex);
    di_hub_release(hub);
    return open;
}

void di_hub_serve_calls(di_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    while (hub->calls) {
        di_hub_work *call = hub->calls;
        hub->calls = call->next;
        pthread_mutex_unlock(&hub->mutex);
        call->work(call->arg);
        pthread_mutex_lock(&hub->mutex);
        call->done = true; /* the caller's memory: not touched any more once the mutex is free */
        pthread_cond_broadcast(&hub->called);
    }
    pthread_mutex_unlock(&hub->mutex);
}

void di_hub_left_queue(di_hub *hub) {
    atomic_fetch_sub_explicit(&hub->waiting, 1, memory_order_relaxed);
}
