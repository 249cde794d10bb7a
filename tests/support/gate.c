/* gate.c - see gate.h. */
#include "support/gate.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine_internal.h"

static struct {
    const di_ops *real;
    di_ops ops;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool open, standing;
    uint32_t passes;
    uint64_t steps;
    int64_t sleep_ms;
    int32_t poison;
    bool deny;
    di_gate_step step;
    void (*watch)(void *arg, const di_gate_step *step);
    void *watch_arg;
} gate = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void show(const di_rows *rows) {
    di_gate_step *step = &gate.step;
    step->rows = rows->count;
    step->sequences = rows->sequence_count < DI_GATE_SEQUENCES ? rows->sequence_count : DI_GATE_SEQUENCES;
    memset(step->count, 0, sizeof step->count);
    for (uint32_t i = 0; i < rows->count; i++) {
        uint32_t s = rows->rows[i].sequence;
        if (s >= DI_GATE_SEQUENCES) continue;
        if (step->count[s]++) continue;
        step->first[s] = rows->rows[i].position;
        step->token[s] = rows->rows[i].token;
    }
}

static void poison_rows(di_backend *backend, const di_embed_args *args, int32_t token) {
    uint64_t bytes = (uint64_t)args->copies * args->width * sizeof(uint16_t);
    for (uint32_t i = 0; i < args->rows->count; i++)
        if (args->rows->rows[i].token == token)
            gate.real->fill(backend, di_buffer_at(args->stream, i * bytes), 0xff, bytes); /* 0xffff is a NaN */
}

static void embed(di_backend *backend, const di_embed_args *args) {
    pthread_mutex_lock(&gate.mutex);
    show(args->rows);
    gate.steps++;
    gate.standing = true;
    pthread_cond_broadcast(&gate.changed);
    while (!gate.open && !gate.passes) pthread_cond_wait(&gate.changed, &gate.mutex);
    if (!gate.open) gate.passes--;
    gate.standing = false;
    if (gate.watch) gate.watch(gate.watch_arg, &gate.step);
    int64_t sleep_ms = gate.sleep_ms;
    int32_t poison = gate.poison;
    pthread_mutex_unlock(&gate.mutex);
    if (sleep_ms) usleep((useconds_t)sleep_ms * 1000);
    gate.real->embed(backend, args);
    if (poison >= 0) poison_rows(backend, args, poison);
}

static di_status allocate(di_backend *backend, uint64_t bytes, di_block **block, di_error *error) {
    pthread_mutex_lock(&gate.mutex);
    bool deny = gate.deny;
    pthread_mutex_unlock(&gate.mutex);
    if (!deny) return gate.real->allocate(backend, bytes, block, error);
    *block = NULL;
    return di_fail(error, DI_ERR_MEMORY, NULL, "denied");
}

void di_gate_on(di_engine *engine, bool closed) {
    assert_null(gate.real);
    gate.real = engine->backend->ops;
    gate.ops = *gate.real;
    gate.ops.embed = embed;
    gate.ops.allocate = allocate;
    gate.deny = false;
    gate.open = !closed;
    gate.standing = false;
    gate.passes = 0;
    gate.steps = 0;
    gate.sleep_ms = 0;
    gate.poison = -1;
    gate.watch = NULL;
    engine->backend->ops = &gate.ops;
}

void di_gate_close(di_engine *engine) {
    di_gate_open(true);
    di_close(engine);
    gate.real = NULL;
}

bool di_gate_wait(int64_t timeout_ms, di_gate_step *step) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&gate.mutex);
    int failed = 0;
    while ((!gate.standing || gate.passes) && failed != ETIMEDOUT)
        failed = pthread_cond_timedwait(&gate.changed, &gate.mutex, &until);
    bool stands = gate.standing && !gate.passes;
    if (stands && step) *step = gate.step;
    pthread_mutex_unlock(&gate.mutex);
    return stands;
}

void di_gate_pass(void) {
    pthread_mutex_lock(&gate.mutex);
    gate.passes++;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mutex);
}

void di_gate_open(bool open) {
    pthread_mutex_lock(&gate.mutex);
    gate.open = open;
    gate.passes = 0;
    pthread_cond_broadcast(&gate.changed);
    pthread_mutex_unlock(&gate.mutex);
}

uint64_t di_gate_steps(void) {
    pthread_mutex_lock(&gate.mutex);
    uint64_t steps = gate.steps;
    pthread_mutex_unlock(&gate.mutex);
    return steps;
}

void di_gate_sleep(int64_t milliseconds) {
    pthread_mutex_lock(&gate.mutex);
    gate.sleep_ms = milliseconds;
    pthread_mutex_unlock(&gate.mutex);
}

void di_gate_poison(int32_t token) {
    pthread_mutex_lock(&gate.mutex);
    gate.poison = token;
    pthread_mutex_unlock(&gate.mutex);
}

void di_gate_deny(bool deny) {
    pthread_mutex_lock(&gate.mutex);
    gate.deny = deny;
    pthread_mutex_unlock(&gate.mutex);
}

void di_gate_watch(void (*watch)(void *arg, const di_gate_step *step), void *arg) {
    pthread_mutex_lock(&gate.mutex);
    gate.watch = watch;
    gate.watch_arg = arg;
    pthread_mutex_unlock(&gate.mutex);
}
