/* compute.c - see compute.h. */
#include "engine/compute.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/thread.h"

struct di_compute {
    di_model *model;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    di_compute_job *job; /* running or waiting to run */
    bool released;       /* its items are complete */
    bool stopping;
    atomic_bool done; /* the job that was submitted last */
    void (*on_done)(void *arg);
    void *on_done_arg;
};

static void wait_for_release(di_compute *c) {
    pthread_mutex_lock(&c->mutex);
    while (!c->released) pthread_cond_wait(&c->wake, &c->mutex);
    pthread_mutex_unlock(&c->mutex);
}

static void run_job(di_compute *c, di_compute_job *job) {
    int64_t start = di_now_ns();
    job->error = (di_error){0};
    job->status = di_model_submit(c->model, job->step, &job->error);
    if (job->status == DI_OK) di_model_poll(c->model, job->step, true, &job->status, &job->error);
    job->computed = job->status == DI_OK;
    if (job->status == DI_OK && job->inspect) job->inspect(job->inspect_arg);
    if (job->held) wait_for_release(c);
    if (job->status == DI_OK && job->sample.count) {
        di_backend *backend = di_model_backend(c->model);
        backend->ops->sample(backend, &job->sample);
        backend->ops->synchronise(backend);
        job->status = backend->failure(backend, &job->error);
    }
    if (job->status == DI_OK && job->verify) {
        job->verify(job->verify_arg);
        job->status = di_model_backend(c->model)->failure(di_model_backend(c->model), &job->error);
    }
    job->compute_ns = di_now_ns() - start;
}

static void *compute_main(void *arg) {
    di_compute *c = arg;
    di_float_mode_ok();
    pthread_mutex_lock(&c->mutex);
    while (!c->stopping) {
        if (!c->job) {
            pthread_cond_wait(&c->wake, &c->mutex);
            continue;
        }
        di_compute_job *job = c->job;
        pthread_mutex_unlock(&c->mutex);
        run_job(c, job);
        pthread_mutex_lock(&c->mutex);
        c->job = NULL;
        atomic_store_explicit(&c->done, true, memory_order_release); /* from here on there may be another one */
        c->on_done(c->on_done_arg);
    }
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

di_status di_compute_new(di_model *model, di_compute **compute, di_error *error) {
    *compute = NULL;
    di_compute *c = calloc(1, sizeof *c);
    if (!c) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the compute thread");
    c->model = model;
    int failed = pthread_mutex_init(&c->mutex, NULL);
    if (!failed) failed = pthread_cond_init(&c->wake, NULL);
    if (failed) {
        free(c);
        return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot make the compute thread");
    }
    failed = di_thread_start(&c->thread, "di-compute", compute_main, c);
    if (failed) {
        pthread_mutex_destroy(&c->mutex);
        free(c);
        return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot start the compute thread");
    }
    *compute = c;
    return DI_OK;
}

void di_compute_free(di_compute *c) {
    if (!c) return;
    pthread_mutex_lock(&c->mutex);
    c->stopping = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->mutex);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->wake);
    pthread_mutex_destroy(&c->mutex);
    free(c);
}

void di_compute_on_done(di_compute *c, void (*wake)(void *arg), void *arg) {
    c->on_done = wake;
    c->on_done_arg = arg;
}

void di_compute_submit(di_compute *c, di_compute_job *job) {
    pthread_mutex_lock(&c->mutex);
    c->job = job;
    atomic_store_explicit(&c->done, false, memory_order_relaxed);
    c->released = !job->held;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->mutex);
}

void di_compute_release(di_compute *c) {
    pthread_mutex_lock(&c->mutex);
    c->released = true;
    pthread_cond_signal(&c->wake);
    pthread_mutex_unlock(&c->mutex);
}

bool di_compute_done(const di_compute *c) {
    return atomic_load_explicit(&c->done, memory_order_acquire);
}
