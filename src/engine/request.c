/* request.c - requests as their submitter and reader see them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

void di_sampling_default(di_sampling *sampling) {
    *sampling = (di_sampling){
        .temperature = 1,
        .top_p = 1,
        .max_tokens = -1,
        .n = 1,
        .logprobs = -1,
        .prompt_logprobs = -1,
        .repetition_penalty = 1,
        .so_args = {.bound_token_id = -1},
    };
}

void di_request_params_default(di_request_params *params) {
    memset(params, 0, sizeof *params);
    di_sampling_default(&params->sampling);
    params->stop_arm_token_id = -1;
}

di_status di_request_new(di_engine *engine, di_request **out, di_error *error) {
    di_request *request = calloc(1, sizeof *request);
    if (!request) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a request");
    request->arena = di_arena_new(4096);
    if (!request->arena) {
        free(request);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a request");
    }
    di_status status = di_events_init(&request->events, error);
    if (status != DI_OK) {
        di_arena_free(request->arena);
        free(request);
        return status;
    }
    atomic_init(&request->references, 1);
    atomic_init(&request->cancelled, false);
    atomic_init(&request->window_free, true);
    atomic_init(&request->throttled, false);
    atomic_fetch_add_explicit(&engine->hub->references, 1, memory_order_relaxed);
    request->hub = engine->hub;
    request->event_limit = engine->event_limit;
    request->submitted_ns = di_now_ns();
    request->deadline_ns = INT64_MAX;
    request->state = DI_REQUEST_QUEUED;
    request->tenant_place = UINT32_MAX;
    request->stop_arm = -1;
    *out = request;
    return DI_OK;
}

void di_request_release(di_request *request) {
    if (!request || atomic_fetch_sub_explicit(&request->references, 1, memory_order_acq_rel) != 1) return;
    di_events_destroy(&request->events);
    di_hub_release(request->hub);
    di_arena_free(request->arena);
    free(request->prompt);
    free(request->window);
    free(request);
}

void di_count_refusal(di_engine *engine, di_status status) {
    if (status == DI_ERR_QUEUE_FULL) di_count(&engine->metrics, DI_COUNT_REQUESTS_REFUSED, 1);
    if (status == DI_ERR_LIMIT || status == DI_ERR_CONTEXT_LENGTH) di_count(&engine->metrics, DI_COUNT_LIMITS, 1);
}

static di_status add_segment(const di_engine *engine, const di_segment *segment, size_t index, uint64_t *bytes,
                             di_ids *ids, di_error *error) {
    char param[48];
    snprintf(param, sizeof param, "segments[%zu]", index);
    if (segment->token_ids && segment->text)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s has token ids and text; it is one of them", param);
    if (!segment->token_ids && segment->token_count)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s has %zu token ids at NULL", param,
                       segment->token_count);
    if (segment->token_ids) {
        for (size_t i = 0; i < segment->token_count; i++) {
            int32_t id = segment->token_ids[i];
            if (id < 0 || (uint32_t)id >= engine->info.vocabulary)
                return di_fail(error, DI_ERR_INVALID_ARGUMENT, "token_ids",
                               "token_ids[%zu] is %d; ids of this model are 0 .. %u", i, id,
                               engine->info.vocabulary - 1);
            di_ids_append(ids, id);
        }
        return DI_OK;
    }
    if (!segment->text) return DI_OK;
    if (!engine->tokenizer)
        return di_fail(error, DI_ERR_UNSUPPORTED, param, "the model has no tokenizer; only token ids can go in");
    size_t length = segment->text_length == DI_ZSTRING ? strlen(segment->text) : segment->text_length;
    *bytes += length;
    if (*bytes > engine->prompt_limit)
        return di_fail(error, DI_ERR_LIMIT, param,
                       "the prompt has more than %llu bytes; --limit-prompt-bytes sets this",
                       (unsigned long long)engine->prompt_limit);
    return di_tokenizer_encode(engine->tokenizer, segment->text, length, false, ids, error);
}

static di_status build_prompt(const di_engine *engine, const di_segment *segments, size_t count, di_request *request,
                              di_error *error) {
    di_ids ids = {0};
    uint64_t bytes = 0;
    di_status status = DI_OK;
    if (count && !segments) status = di_fail(error, DI_ERR_INVALID_ARGUMENT, "segments", "segments is NULL");
    for (size_t i = 0; status == DI_OK && i < count; i++)
        status = add_segment(engine, &segments[i], i, &bytes, &ids, error);
    if (status == DI_OK && ids.failed)
        status = di_fail(error, DI_ERR_MEMORY, "prompt", "out of memory for the prompt's token ids");
    if (status == DI_OK && !ids.count)
        status = di_fail(error, DI_ERR_INVALID_ARGUMENT, "prompt", "the prompt is empty; it needs at least one token");
    if (status == DI_OK && ids.count > engine->context)
        status = di_fail(error, DI_ERR_CONTEXT_LENGTH, "prompt",
                         "the prompt has %zu tokens; the context holds %u (--context)", ids.count, engine->context);
    if (status != DI_OK) {
        di_ids_free(&ids);
        return status;
    }
    request->prompt = ids.data;
    request->prompt_count = (uint32_t)ids.count;
    return DI_OK;
}

di_status di_submit(di_engine *engine, const di_request_params *params, di_request **out, di_error *error) {
    if (!out) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "request", "request is NULL");
    *out = NULL;
    if (!engine || !params)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, engine ? "params" : "engine", "%s is NULL",
                       engine ? "params" : "engine");
    di_request *request = NULL;
    di_status status = di_request_new(engine, &request, error);
    if (status != DI_OK) return status;
    status = build_prompt(engine, params->segments, params->segment_count, request, error);
    if (status == DI_OK) status = di_check_parameters(engine, params, request, error);
    request->events.on_ready = params->on_ready;
    request->events.on_ready_arg = params->on_ready_arg;
    if (status == DI_OK) status = di_hub_submit(engine->hub, request, engine->max_queue, error);
    if (status != DI_OK) {
        di_count_refusal(engine, status);
        di_constraint_release(engine->constraints, request->grammar);
        di_request_release(request);
        return status;
    }
    *out = request;
    return DI_OK;
}

bool di_request_next(di_request *request, int64_t timeout_ms, di_event *event) {
    uint64_t waiting = 0;
    di_take take = di_events_take(&request->events, timeout_ms, event, &waiting);
    if (waiting < request->event_limit / 2 && atomic_exchange(&request->throttled, false)) di_hub_wake(request->hub);
    if (take == DI_TAKE_EVENT) {
        if (event->status != DI_OK) event->error = request->error;
        return true;
    }
    if (take == DI_TAKE_NOTHING || request->done_taken) return false;
    request->done_taken = true;
    memset(event, 0, sizeof *event);
    event->kind = DI_EVENT_DONE;
    event->token_id = event->stop_token_id = -1;
    event->text = "";
    event->seed = request->seed;
    event->usage = request->usage;
    event->timings = request->timings;
    event->status = request->status;
    event->error = request->error;
    return true;
}

void di_request_cancel(di_request *request) {
    if (!request) return;
    atomic_store_explicit(&request->cancelled, true, memory_order_release);
    di_hub_wake(request->hub);
}

void di_request_free(di_request *request) {
    if (!request) return;
    di_events_mute(&request->events);
    di_request_cancel(request);
    di_request_release(request);
}
