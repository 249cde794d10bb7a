/* run.c - the engine thread: admit, plan a step, run it, commit, emit. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

/* While a request waits for its reader, cancels and deadlines are looked at this often. */
enum { PAUSE_MS = 50 };

di_status di_run_step(di_engine *engine, di_error *error) {
    di_status status = di_model_submit(engine->model, engine->step, error);
    if (status != DI_OK) return status;
    di_model_poll(engine->model, engine->step, true, &status, error);
    return status;
}

/* ---------------------------------------------------------------- admission and end */

static void free_sequences(di_request *request) {
    for (int32_t i = 0; request->sequences && i < request->sampling.n; i++) {
        di_state_free(request->sequences[i].state);
        di_sampler_free(request->sequences[i].sampler);
        di_stop_matcher_free(&request->sequences[i].stop);
    }
    request->sequences = NULL;
    request->live = 0;
}

static di_status make_sequence(di_engine *engine, di_request *request, int32_t index, di_error *error) {
    di_sequence *sequence = &request->sequences[index];
    sequence->live = true;
    sequence->armed = request->stop_arm < 0;
    sequence->last_token = -1;
    uint32_t positions = (uint32_t)(request->prompt_count + request->max_tokens);
    di_status status = di_state_new(engine->pages, positions, &sequence->state, error);
    if (status != DI_OK || request->score) return status;
    if (request->max_tokens) {
        di_sampler_params params = {
            .sampling = &request->sampling,
            .seed = request->seed,
            .sample_index = (uint32_t)index,
            .prompt = request->prompt,
            .prompt_count = request->prompt_count,
            .eos = engine->config.eos_token_ids,
            .eos_count = engine->config.eos_count,
            .vocabulary = engine->info.vocabulary,
            .max_tokens = (int64_t)request->max_tokens,
        };
        status = di_sampler_new(&params, &sequence->sampler, error);
        if (status != DI_OK) return status;
    }
    if (engine->tokenizer) di_detokenizer_init(&sequence->detokenizer, engine->tokenizer);
    if (!di_stop_matcher_init(&sequence->stop, request->arena, &request->stops))
        return di_fail(error, DI_ERR_MEMORY, "stop", "out of memory for stop strings");
    return DI_OK;
}

static void admit(di_engine *engine, di_request *request) {
    di_error error = {0};
    di_status status = DI_OK;
    di_hub_left_queue(engine->hub);
    request->admitted_ns = di_now_ns();
    request->state = DI_REQUEST_PREFILL;
    request->sequences = di_arena_zalloc(request->arena, (size_t)request->sampling.n * sizeof(di_sequence));
    if (!request->sequences)
        status = di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the request");
    else
        request->live = (uint32_t)request->sampling.n;
    for (int32_t i = 0; status == DI_OK && i < request->sampling.n; i++)
        status = make_sequence(engine, request, i, &error);
    if (status != DI_OK)
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
    else if (!request->score)
        di_emit_prompt(request);
}

/* The only way into FINISHED. The engine's reference stays: whoever holds the request in a queue drops it. */
void di_finish_request(di_engine *engine, di_request *request, di_finish_reason reason, const di_error *error) {
    if (request->state == DI_REQUEST_FINISHED) return;
    if (error && error->status != DI_OK) {
        request->status = error->status;
        request->error = *error;
    }
    if (request->state == DI_REQUEST_QUEUED) {
        di_hub_left_queue(engine->hub);
        if (!request->sequences && !request->score) {
            /* The reader is told about every sample, also of a request that never ran. */
            request->sequences = di_arena_zalloc(request->arena, (size_t)request->sampling.n * sizeof(di_sequence));
            for (int32_t i = 0; request->sequences && i < request->sampling.n; i++) request->sequences[i].live = true;
        }
    }
    request->state = DI_REQUEST_FINISHED;
    for (int32_t i = 0; request->sequences && !request->score && i < request->sampling.n; i++)
        if (request->sequences[i].live) di_finish_sequence(engine, request, &request->sequences[i], reason, -1, NULL);
    di_event last = {0};
    di_fill_progress(request, &last);
    request->usage = last.usage;
    request->timings = last.timings;
    if (request->events.incomplete && request->status == DI_OK)
        request->status = di_fail(&request->error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
    free_sequences(request);
    di_log_write(engine->log, DI_LOG_INFO, "engine",
                 "request %s finished: %s, %u prompt and %llu output tokens, %.1f ms",
                 request->id && request->id[0] ? request->id : "-", di_status_name(request->status),
                 request->prompt_count, (unsigned long long)request->completion_tokens, last.timings.total_ms);
    di_events_close(&request->events);
}

/* ---------------------------------------------------------------- one step of a request */

/* Results of the items of this step; the list of best ids is as wide as the request needs. */
static di_status sample(di_engine *engine, uint32_t top, di_error *error) {
    if (!engine->item_count) return DI_OK;
    engine->top_stride = top;
    uint64_t need = (uint64_t)(engine->max_logits + engine->max_seqs) * top;
    if (need > engine->top_capacity) {
        di_sample_top *list = realloc(engine->top, need * sizeof *list);
        if (list) engine->top = list;
        di_logprob *out = list ? realloc(engine->top_out, top * sizeof *out) : NULL;
        if (out) engine->top_out = out;
        if (!list || !out) return di_fail(error, DI_ERR_MEMORY, "logprobs", "out of memory for log-probabilities");
        engine->top_capacity = (uint32_t)need;
    }
    di_sample_args args = {
        .logits = di_step_logits(engine->step),
        .vocabulary = engine->info.vocabulary,
        .count = engine->item_count,
        .items = engine->items,
        .results = engine->results,
        .top = engine->top,
        .top_stride = top,
    };
    engine->backend->ops->sample(engine->backend, &args);
    engine->backend->ops->synchronise(engine->backend);
    di_status status = engine->backend->failure(engine->backend, error);
    for (uint32_t i = 0; status == DI_OK && i < engine->item_count; i++)
        if (engine->results[i].numeric_fault)
            status = di_fail(error, DI_ERR_NUMERIC, "logits",
                             "the logits for position %lld hold NaN or infinity; the weights or the input are damaged",
                             (long long)engine->items[i].position);
    return status;
}

static uint32_t top_wanted(const di_request *request) {
    int32_t top = request->sampling.logprobs;
    if (request->sampling.prompt_logprobs > top) top = request->sampling.prompt_logprobs;
    return top > 0 ? (uint32_t)top : 0;
}

/* First prompt position that the decoder half sees in compact mode. */
static uint32_t compact_from(const di_engine *engine, const di_request *request) {
    return request->prompt_count > engine->keep ? request->prompt_count - engine->keep : 0;
}

di_status di_add_rows(di_engine *engine, di_request *request, di_sequence *sequence, uint32_t count,
                      uint32_t logits_from, di_error *error) {
    uint32_t done = (uint32_t)di_state_length(sequence->state);
    di_status status = di_state_reserve(sequence->state, done + count, error);
    if (status != DI_OK) return status;
    di_step_entry entry = {
        .state = *di_state_get_view(sequence->state),
        .tokens = request->prompt + done,
        .count = count,
        .logits_from = logits_from,
        .replay_from = -1,
    };
    if (engine->compact && !request->score) {
        /* The decoder half sees the last `keep` positions of the prompt only, all of them in its last chunk. */
        if (done + count < request->prompt_count)
            entry.decoder_from = UINT32_MAX;
        else
            entry.replay_from = (int32_t)compact_from(engine, request);
    }
    di_step_clear(engine->step);
    return di_step_add(engine->step, &entry, &sequence->step_index, &sequence->logits_row, error);
}

/* Items that report the log-probability of the prompt token after each of `count` rows from position `done` on. */
static void plan_prompt_logprobs(di_engine *engine, const di_request *request, uint32_t done, uint32_t count) {
    for (uint32_t i = 0; i < count && done + i + 1 < request->prompt_count; i++) {
        engine->items[engine->item_count++] = (di_sample_item){
            .logits_row = i,
            .position = done + i + 1,
            .temperature = 0,
            .top_p = 1,
            .repetition_penalty = 1,
            .forced = request->prompt[done + i + 1],
            .logprobs = request->sampling.prompt_logprobs,
        };
    }
}

static void plan_sample(di_engine *engine, const di_request *request, di_sequence *sequence) {
    int64_t position = request->prompt_count + di_sampler_produced(sequence->sampler);
    di_sampler_next(sequence->sampler, sequence->logits_row, position, &engine->items[engine->item_count++]);
}

/* The other samples of the request start from the state that the first one reached. */
static di_status share_prompt(di_request *request, di_error *error) {
    if (request->sampling.n == 1) return DI_OK;
    di_text bytes = {0};
    di_status status = di_state_serialise(request->sequences[0].state, &bytes, error);
    for (int32_t i = 1; status == DI_OK && i < request->sampling.n; i++) {
        status = di_state_restore(request->sequences[i].state, bytes.data, bytes.length, error);
        request->sequences[i].logits_row = request->sequences[0].logits_row;
    }
    di_text_free(&bytes);
    return status;
}

/* First item of the samples: items before it belong to prompt log-probabilities. */
static void accept_all(di_engine *engine, di_request *request, uint32_t item) {
    for (int32_t i = 0; i < request->sampling.n && request->state != DI_REQUEST_FINISHED; i++)
        if (request->sequences[i].live) di_accept_token(engine, request, &request->sequences[i], item++);
    if (!request->live) di_finish_request(engine, request, DI_FINISH_NONE, NULL);
}

static di_status prefill(di_engine *engine, di_request *request, di_error *error) {
    di_sequence *first = &request->sequences[0];
    uint32_t done = (uint32_t)di_state_length(first->state), left = request->prompt_count - done;
    uint32_t count = left < engine->chunk ? left : engine->chunk;
    bool logprobs = request->sampling.prompt_logprobs >= 0;
    if (logprobs && count > engine->max_logits) count = engine->max_logits;
    if (engine->compact && done < compact_from(engine, request)) {
        /* A chunk ends where the decoder half begins, so that the last one starts inside what is kept. */
        uint32_t before = compact_from(engine, request) - done;
        if (count > before) count = before;
    }
    bool last = count == left;
    uint32_t logits_from = logprobs ? 0 : last && request->max_tokens ? count - 1 : count;
    di_status status = di_add_rows(engine, request, first, count, logits_from, error);
    if (status == DI_OK) status = di_run_step(engine, error);
    if (status != DI_OK) return status;

    engine->item_count = 0;
    if (logprobs) plan_prompt_logprobs(engine, request, done, count);
    uint32_t prompt_items = engine->item_count;
    di_model_commit(engine->model, engine->step, first->step_index, count, di_state_get_view(first->state));
    if (last) {
        first->logits_row += logprobs ? count - 1 : 0;
        status = share_prompt(request, error);
        for (int32_t i = 0; status == DI_OK && request->max_tokens && i < request->sampling.n; i++)
            plan_sample(engine, request, &request->sequences[i]);
    }
    if (status == DI_OK) status = sample(engine, top_wanted(request), error);
    if (status != DI_OK) return status;

    bool emitted = !logprobs || done > 0 || di_emit_prompt_token(engine, request, 0, UINT32_MAX);
    for (uint32_t i = 0; emitted && i < prompt_items; i++)
        emitted = di_emit_prompt_token(engine, request, done + i + 1, i);
    if (!emitted) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
    if (!last) return DI_OK;
    request->prompt_done_ns = di_now_ns();
    request->state = DI_REQUEST_DECODE;
    if (request->max_tokens)
        accept_all(engine, request, prompt_items);
    else
        di_finish_request(engine, request, DI_FINISH_LENGTH, NULL);
    return DI_OK;
}

static di_status decode(di_engine *engine, di_request *request, di_error *error) {
    di_step_clear(engine->step);
    engine->item_count = 0;
    di_status status = DI_OK;
    for (int32_t i = 0; status == DI_OK && i < request->sampling.n; i++) {
        di_sequence *sequence = &request->sequences[i];
        if (!sequence->live) continue;
        status = di_state_reserve(sequence->state, (uint32_t)di_state_length(sequence->state) + 1, error);
        if (status != DI_OK) break;
        di_step_entry entry = {
            .state = *di_state_get_view(sequence->state),
            .tokens = &sequence->last_token,
            .count = 1,
            .replay_from = -1,
        };
        status = di_step_add(engine->step, &entry, &sequence->step_index, &sequence->logits_row, error);
        if (status == DI_OK) plan_sample(engine, request, sequence);
    }
    if (status == DI_OK) status = di_run_step(engine, error);
    if (status == DI_OK) status = sample(engine, top_wanted(request), error);
    if (status != DI_OK) return status;
    for (int32_t i = 0; i < request->sampling.n; i++) {
        di_sequence *sequence = &request->sequences[i];
        if (sequence->live)
            di_model_commit(engine->model, engine->step, sequence->step_index, 1, di_state_get_view(sequence->state));
    }
    accept_all(engine, request, 0);
    return DI_OK;
}

static void step(di_engine *engine, di_request *request) {
    di_error error = {0};
    di_status status = DI_OK;
    if (request->score)
        di_score_step(engine, request);
    else if (request->state == DI_REQUEST_PREFILL)
        status = prefill(engine, request, &error);
    else
        status = decode(engine, request, &error);
    if (status != DI_OK) di_finish_request(engine, request, DI_FINISH_ERROR, &error);
}

/* ---------------------------------------------------------------- the thread */

/* Ends a request that was cancelled or is late. */
static bool ended_from_outside(di_engine *engine, di_request *request) {
    di_error error = {0};
    if (atomic_load_explicit(&request->cancelled, memory_order_acquire)) {
        di_fail(&error, DI_ERR_CANCELLED, NULL, "the request was cancelled");
        di_finish_request(engine, request, DI_FINISH_CANCELLED, &error);
    } else if (di_now_ns() >= request->deadline_ns) {
        di_fail(&error, DI_ERR_DEADLINE, "deadline_ms", "the request's deadline of %.0f ms passed",
                di_ms(request->deadline_ns - request->submitted_ns));
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
    } else {
        return false;
    }
    return true;
}

/* True if the request's next step has to wait for its reader. */
static bool must_wait(di_request *request) {
    if (request->score) return !atomic_load_explicit(&request->window_free, memory_order_acquire);
    if (di_events_waiting(&request->events) < DI_EVENT_LIMIT) return false;
    atomic_store_explicit(&request->throttled, true, memory_order_release);
    /* The reader may have caught up before it could see the flag. */
    return di_events_waiting(&request->events) >= DI_EVENT_LIMIT;
}

/* Puts what came in behind everything of the same or a higher priority. */
static void enqueue(di_engine *engine, di_request *list) {
    while (list) {
        di_request *request = list;
        list = list->next;
        di_request **at = &engine->queue;
        while (*at && (*at)->priority >= request->priority) at = &(*at)->next;
        request->next = *at;
        *at = request;
    }
}

static void reap_queue(di_engine *engine, bool stopping) {
    for (di_request **at = &engine->queue; *at;) {
        di_request *request = *at, *next = request->next;
        if (stopping) di_request_cancel(request);
        if (ended_from_outside(engine, request)) {
            *at = next;
            di_request_release(request);
        } else {
            at = &request->next;
        }
    }
}

/* One step of the active request, or none. Returns true if the step has to wait for a reader. */
static bool run_active(di_engine *engine, bool stopping) {
    if (!engine->active && engine->queue) {
        engine->active = engine->queue;
        engine->queue = engine->active->next;
        admit(engine, engine->active);
    }
    di_request *request = engine->active;
    if (!request) return false;
    if (stopping) di_request_cancel(request);
    bool waits = false;
    if (request->state != DI_REQUEST_FINISHED && !ended_from_outside(engine, request)) {
        waits = must_wait(request);
        if (!waits) step(engine, request);
    }
    if (request->state == DI_REQUEST_FINISHED) {
        engine->active = NULL;
        di_request_release(request);
    }
    return waits;
}

void *di_engine_main(void *arg) {
    di_engine *engine = arg;
    di_float_mode_ok();
    bool stopping = false, paused = false;
    while (!stopping || engine->active || engine->queue) {
        bool idle = !engine->active && !engine->queue;
        enqueue(engine, di_hub_take(engine->hub, idle || paused, paused ? PAUSE_MS : -1, &stopping));
        reap_queue(engine, stopping);
        paused = run_active(engine, stopping);
    }
    return NULL;
}
