/* watch.c - logits as the determinism matrix sees them, and steps whose memory starts as NaN. */
#include <stdlib.h>

#include "engine/engine_internal.h"

void di_watch_row(di_engine *engine, const di_sequence *s, uint32_t row, uint32_t position) {
    if (!engine->watch) return;
    uint64_t bytes = (uint64_t)engine->info.vocabulary * sizeof(float);
    const di_ops *ops = engine->backend->ops;
    const di_request *request = s->request;
    di_buffer at = di_buffer_at(di_step_logits(engine->step), row * bytes);
    ops->read(engine->backend, engine->watched_row, at, bytes);
    if (engine->watch(engine->watch_arg, request->id, (int32_t)(s - request->sequences), position, engine->watched_row))
        ops->write(engine->backend, at, engine->watched_row, bytes);
}

/* Compute thread, between the forward pass and sampling: the plan of the step does not change meanwhile. */
static void inspect(void *arg) {
    di_engine *engine = arg;
    for (uint32_t i = 0; i < engine->planned_count; i++) {
        const di_sequence *s = engine->planned[i];
        if (s->drafts.length) continue; /* its rows are shown when it is known that they count */
        bool last = i + 1 == engine->planned_count;
        uint32_t end = last ? di_step_logits_count(engine->step) : engine->planned[i + 1]->logits_row;
        uint32_t next = (uint32_t)di_state_length(s->state) + s->rows; /* position after the sequence's last row */
        for (uint32_t row = s->logits_row; row < end; row++) di_watch_row(engine, s, row, next - (end - 1 - row));
    }
}

di_status di_engine_watch(di_engine *engine, di_logits_watch watch, void *arg, bool poison, di_error *error) {
    engine->watched_row = calloc(engine->info.vocabulary, sizeof *engine->watched_row);
    if (!engine->watched_row) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a row of logits");
    engine->watch = watch;
    engine->watch_arg = arg;
    engine->poison = poison;
    return DI_OK;
}

void di_prepare_watch(di_engine *engine) {
    if (!engine->watch) return;
    engine->job.inspect = inspect;
    engine->job.inspect_arg = engine;
}

const di_metrics *di_engine_metrics(const di_engine *engine) {
    return &engine->metrics;
}
