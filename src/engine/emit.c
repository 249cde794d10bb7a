/* emit.c - what a chosen token means for a sequence: text, stop conditions, events. */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

void di_fill_progress(const di_request *request, di_event *event) {
    int64_t now = di_now_ns();
    event->seed = request->seed;
    event->usage.prompt_tokens = request->prompt_count;
    event->usage.completion_tokens = request->completion_tokens;
    int64_t admitted = request->admitted_ns ? request->admitted_ns : now;
    event->timings.queue_ms = di_ms(admitted - request->submitted_ns);
    if (request->admitted_ns)
        event->timings.prefill_ms = di_ms((request->prompt_done_ns ? request->prompt_done_ns : now) - admitted);
    if (request->first_token_ns) event->timings.first_token_ms = di_ms(request->first_token_ns - request->submitted_ns);
    event->timings.total_ms = di_ms(now - request->submitted_ns);
}

static di_event new_event(const di_request *request, di_event_kind kind) {
    di_event event = {.kind = kind, .token_id = -1, .stop_token_id = -1, .text = "", .logprob = NAN};
    di_fill_progress(request, &event);
    return event;
}

void di_emit_prompt(di_request *request) {
    di_event event = new_event(request, DI_EVENT_PROMPT);
    event.position = request->prompt_count;
    di_events_push(&request->events, &event);
}

/* Log-probability and best ids of an item, borrowed from the engine until the next item. */
static void add_logprobs(di_engine *engine, di_event *event, uint32_t item) {
    int32_t wanted = engine->items[item].logprobs;
    if (wanted < 0) return;
    event->logprob = engine->results[item].logprob;
    const di_sample_top *top = engine->top + (size_t)item * engine->top_stride;
    for (int32_t i = 0; i < wanted && (uint32_t)i < engine->info.vocabulary; i++) {
        engine->top_out[i] = (di_logprob){.token_id = top[i].token_id, .logprob = top[i].logprob};
        event->top_count++;
    }
    event->top = engine->top_out;
}

bool di_emit_prompt_token(di_engine *engine, di_request *request, uint32_t position, uint32_t item) {
    di_event event = new_event(request, DI_EVENT_PROMPT_TOKEN);
    event.position = position;
    event.token_id = request->prompt[position];
    if (item != UINT32_MAX) add_logprobs(engine, &event, item);
    return di_events_push(&request->events, &event);
}

void di_finish_sequence(di_engine *engine, di_request *request, di_sequence *sequence, di_finish_reason reason,
                        int32_t stop_token_id, const char *stop_string) {
    di_text_clear(&engine->text);
    if (engine->tokenizer && sequence->sampler && !stop_string) {
        di_stop_flush(&sequence->stop, &engine->text);
        di_detokenizer_flush(&sequence->detokenizer, &engine->text);
    }
    sequence->live = false;
    if (request->live) request->live--;
    di_event event = new_event(request, DI_EVENT_FINISH);
    event.sample = (int32_t)(sequence - request->sequences);
    event.position = request->prompt_count;
    if (sequence->sampler) {
        event.position += di_sampler_produced(sequence->sampler);
        event.has_logits_hash = request->sampling.logits_hash;
        event.logits_hash = di_sampler_logits_hash(sequence->sampler);
    }
    event.finish_reason = reason;
    event.stop_token_id = stop_token_id;
    event.stop_string = stop_string;
    if (reason == DI_FINISH_ERROR) event.status = request->status;
    if (engine->text.length && !engine->text.failed) {
        event.text = engine->text.data;
        event.text_length = engine->text.length;
    }
    if (engine->text.failed) request->events.incomplete = true;
    di_events_push(&request->events, &event);
    /* State and sampler of a sequence that is done serve nobody. */
    di_state_free(sequence->state);
    di_sampler_free(sequence->sampler);
    sequence->state = NULL;
    sequence->sampler = NULL;
}

/* EOS ids never become text, nor does the id that ended the answer, nor an id that the tokenizer does not know. */
static bool has_text(const di_engine *engine, int32_t token, int32_t stop_token) {
    size_t length;
    if (!engine->tokenizer || token == stop_token) return false;
    for (uint32_t i = 0; i < engine->config.eos_count; i++)
        if (engine->config.eos_token_ids[i] == token) return false;
    return di_tokenizer_bytes(engine->tokenizer, token, &length) != NULL;
}

/* Text of one token through the stop matcher into engine->text. Returns the stop string that was completed, or -1. */
static int32_t add_text(di_engine *engine, di_request *request, di_sequence *sequence, int32_t token, di_error *error) {
    di_text *scratch = &engine->scratch;
    if (token == request->stop_disarm && sequence->armed) {
        di_stop_flush(&sequence->stop, &engine->text);
        sequence->armed = false;
    }
    int32_t match = -1;
    di_text_clear(scratch);
    if (di_detokenizer_push(&sequence->detokenizer, token, scratch, error) != DI_OK) return -1;
    if (!sequence->armed)
        di_text_append(&engine->text, scratch->data, scratch->length);
    else
        match = di_stop_push(&sequence->stop, scratch->data, scratch->length, &engine->text);
    if (scratch->failed) engine->text.failed = true;
    if (token == request->stop_arm) sequence->armed = true;
    return match;
}

void di_accept_token(di_engine *engine, di_request *request, di_sequence *sequence, uint32_t item) {
    const di_sample_result *result = &engine->results[item];
    di_error error = {0};
    int32_t token = result->token_id;
    if (token < 0) {
        di_fail(&error, DI_ERR_INVALID_ARGUMENT, "sampling_params",
                "no token may be chosen at output %llu: min_tokens, first_n_token_no_eos and logit_bias exclude all",
                (unsigned long long)di_sampler_produced(sequence->sampler));
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
        return;
    }
    int64_t position = request->prompt_count + di_sampler_produced(sequence->sampler);
    int32_t stop_token = -1, match = -1;
    di_finish_reason reason = di_sampler_commit(sequence->sampler, result, &stop_token);
    sequence->last_token = token;
    request->completion_tokens++;
    if (!request->first_token_ns) request->first_token_ns = di_now_ns();

    di_text_clear(&engine->text);
    if (has_text(engine, token, stop_token)) match = add_text(engine, request, sequence, token, &error);
    if (engine->text.failed) di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the request's text");

    di_event event = new_event(request, DI_EVENT_TOKEN);
    event.sample = (int32_t)(sequence - request->sequences);
    event.position = position;
    event.token_id = token;
    if (engine->text.length) {
        event.text = engine->text.data;
        event.text_length = engine->text.length;
    }
    add_logprobs(engine, &event, item);
    if (error.status == DI_OK && !di_events_push(&request->events, &event))
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
    if (error.status != DI_OK) {
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
        return;
    }
    if (match >= 0)
        di_finish_sequence(engine, request, sequence, DI_FINISH_STOP, -1, request->stops.strings[match]);
    else if (reason != DI_FINISH_NONE)
        di_finish_sequence(engine, request, sequence, reason, stop_token, NULL);
}
