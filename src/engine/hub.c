/* hub.c - the one place where other threads reach the engine thread. */
#include <stdlib.h>

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
    int failed = pthread_mutex_init(&hub->mutex, NULL);
    if (failed)
        di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot make a mutex");
    else if (di_condition_init(&hub->work, error) != DI_OK)
        pthread_mutex_destroy(&hub->mutex);
    else if (di_condition_init(&hub->called, error) != DI_OK) {
        pthread_cond_destroy(&hub->work);
        pthread_mutex_destroy(&hub->mutex);
    } else {
        return hub;
    }
    free(hub);
    return NULL;
}

void di_hub_release(di_hub *hub) {
    if (!hub || atomic_fetch_sub_explicit(&hub->references, 1, memory_order_acq_rel) != 1) return;
    pthread_cond_destroy(&hub->work);
    pthread_cond_destroy(&hub->called);
    pthread_mutex_destroy(&hub->mutex);
    free(hub);
}

di_status di_hub_submit(di_hub *hub, di_request *request, uint32_t limit, di_error *error) {
    pthread_mutex_lock(&hub->mutex);
    di_status status = DI_OK;
    if (hub->stopping) {
        status = di_fail(error, DI_ERR_CANCELLED, NULL, "the engine is being closed");
    } else if (hub->waiting >= limit) {
        status = di_fail(error, DI_ERR_QUEUE_FULL, "max-queue",
                         "%u requests are waiting already; --max-queue allows %u. Try again when one has started",
                         hub->waiting, limit);
    } else {
        atomic_fetch_add_explicit(&request->references, 1, memory_order_relaxed);
        request->next = NULL;
        *hub->inbox_end = request;
        hub->inbox_end = &request->next;
        hub->waiting++;
        pthread_cond_signal(&hub->work);
    }
    pthread_mutex_unlock(&hub->mutex);
    return status;
}

void di_hub_wake(di_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    hub->woken = true;
    pthread_cond_signal(&hub->work);
    pthread_mutex_unlock(&hub->mutex);
}

void di_hub_stop(di_hub *hub) {
    pthread_mutex_lock(&hub->mutex);
    hub->stopping = true;
    pthread_cond_signal(&hub->work);
    pthread_mutex_unlock(&hub->mutex);
}

di_request *di_hub_take(di_hub *hub, bool wait, int64_t timeout_ms, bool *stopping) {
    int64_t until = wait && timeout_ms >= 0 ? di_now_ns() + timeout_ms * 1000000 : INT64_MAX;
    pthread_mutex_lock(&hub->mutex);
    while (wait && !hub->inbox && !hub->calls && !hub->stopping && !hub->woken) {
        if (!di_condition_wait(&hub->work, &hub->mutex, until) && di_now_ns() >= until) break;
    }
    hub->woken = false;
    di_request *taken = hub->inbox;
    hub->inbox = NULL;
    hub->inbox_end = &hub->inbox;
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
        pthread_cond_signal(&hub->work);
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
    pthread_mutex_lock(&hub->mutex);
    hub->waiting--;
    pthread_mutex_unlock(&hub->mutex);
}
