/* score.c - teacher-forced evaluation: rows go to the caller's thread through a window that both sides hand over.
 *
 * The engine fills the window (logits of consecutive rows) and queues one event for it: position = first row,
 * token_id = number of rows. The caller reads the rows and gives the window back by window_free.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/engine_internal.h"

di_status di_score_rows(di_engine *engine, di_request *request, uint32_t done, uint32_t count, uint32_t first_logits,
                        di_error *error) {
    uint32_t known = request->reported > done ? request->reported - done : 0;
    if (known >= count) return DI_OK;
    done += known;
    first_logits += known;
    count -= known;
    request->reported = done + count;
    uint64_t row = (uint64_t)engine->info.vocabulary * sizeof(float);
    engine->backend->ops->read(engine->backend, request->window,
                               di_buffer_at(di_step_logits(engine->step), first_logits * row), count * row);
    di_status status = engine->backend->failure(engine->backend, error);
    if (status != DI_OK) return status;
    atomic_store_explicit(&request->window_free, false, memory_order_release);
    di_event event = {.kind = DI_EVENT_TOKEN, .position = done, .token_id = (int32_t)count, .text = ""};
    if (di_events_push(&request->events, &event)) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
}

static bool all_finite(const float *row, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (!isfinite(row[i])) return false;
    return true;
}

/* Rows of one window. */
static di_status read_window(uint32_t vocabulary, const di_request *request, size_t first, size_t count,
                             di_score_row on_row, void *arg, uint64_t *hash, di_error *error) {
    for (size_t i = 0; i < count; i++) {
        const float *row = request->window + i * vocabulary;
        if (!all_finite(row, vocabulary))
            return di_fail(error, DI_ERR_NUMERIC, "logits",
                           "the logits of row %zu hold NaN or infinity; the weights or the input are damaged",
                           first + i);
        *hash = XXH64(row, vocabulary * sizeof *row, *hash);
        if (on_row && !on_row(arg, first + i, row))
            return di_fail(error, DI_ERR_CANCELLED, NULL, "stopped by the caller at row %zu", first + i);
    }
    return DI_OK;
}

static di_status new_score(di_engine *engine, const int32_t *ids, size_t count, di_request **out, di_error *error) {
    if (!engine || !ids || !count)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, engine ? "token_ids" : "engine",
                       "%s; scoring needs at least one token", engine ? "there are no token ids" : "engine is NULL");
    if (count > engine->context)
        return di_fail(error, DI_ERR_CONTEXT_LENGTH, "token_ids", "%zu tokens; the context holds %u (--context)", count,
                       engine->context);
    for (size_t i = 0; i < count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= engine->info.vocabulary)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "token_ids",
                           "token_ids[%zu] is %d; ids of this model are 0 .. %u", i, ids[i],
                           engine->info.vocabulary - 1);
    di_request *request = NULL;
    di_status status = di_request_new(engine, &request, error);
    if (status != DI_OK) return status;
    di_sampling_default(&request->sampling);
    request->score = true;
    request->id = "score";
    request->prompt_count = (uint32_t)count;
    request->prompt = malloc(count * sizeof *ids);
    size_t rows = count < engine->max_logits ? count : engine->max_logits;
    request->window = calloc(rows * engine->info.vocabulary, sizeof(float));
    if (!request->prompt || !request->window) {
        di_request_release(request);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for %zu rows of logits", rows);
    }
    memcpy(request->prompt, ids, count * sizeof *ids);
    *out = request;
    return DI_OK;
}

di_status di_score(di_engine *engine, const int32_t *token_ids, size_t count, di_score_row on_row, void *arg,
                   uint64_t *logits_hash, di_error *error) {
    di_request *request = NULL;
    di_status status = new_score(engine, token_ids, count, &request, error);
    if (status != DI_OK) {
        if (engine) di_count_refusal(engine, status);
        return status;
    }
    status = di_hub_submit(engine->hub, request, engine->max_queue, error);
    di_count_refusal(engine, status);
    uint32_t vocabulary = engine->info.vocabulary; /* the engine may be closed meanwhile */
    uint64_t hash = 0;
    while (status == DI_OK) {
        di_event event;
        if (di_events_take(&request->events, -1, &event, NULL) != DI_TAKE_EVENT) {
            status = request->status;
            if (error && status != DI_OK) *error = request->error;
            break;
        }
        status =
            read_window(vocabulary, request, (size_t)event.position, (size_t)event.token_id, on_row, arg, &hash, error);
        atomic_store_explicit(&request->window_free, true, memory_order_release);
        di_hub_wake(request->hub);
    }
    di_request_free(request);
    if (status == DI_OK && logits_hash) *logits_hash = hash;
    return status;
}
