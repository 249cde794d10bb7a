/* emit.c - what a chosen token means for a sequence: text, stop conditions, events. */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/clock.h"
#include "base/json.h"
#include "engine/engine_internal.h"

void di_fill_progress(const di_request *request, int64_t now, di_event *event) {
    event->seed = request->seed;
    event->usage.prompt_tokens = request->prompt_count;
    event->usage.completion_tokens = request->completion_tokens;
    event->usage.cached_tokens = request->cached_tokens;
    event->usage.draft_tokens = request->draft_tokens;
    event->usage.accepted_draft_tokens = request->accepted_draft_tokens;
    int64_t admitted = request->admitted_ns ? request->admitted_ns : now;
    event->timings.queue_ms = di_ms(admitted - request->submitted_ns);
    if (request->admitted_ns)
        event->timings.prefill_ms = di_ms((request->prompt_done_ns ? request->prompt_done_ns : now) - admitted);
    if (request->first_token_ns) event->timings.first_token_ms = di_ms(request->first_token_ns - request->submitted_ns);
    event->timings.total_ms = di_ms(now - request->submitted_ns);
}

/* The error stays as it is: the queue does not keep it, and clearing it for each token would cost more than the rest.
 */
static void start_event(di_event *event, const di_request *request, di_event_kind kind, int64_t now) {
    memset(event, 0, offsetof(di_event, error));
    event->kind = kind;
    event->token_id = event->stop_token_id = -1;
    event->text = "";
    event->logprob = NAN;
    di_fill_progress(request, now, event);
}

void di_emit_prompt(di_request *request) {
    di_event event;
    start_event(&event, request, DI_EVENT_PROMPT, di_now_ns());
    event.position = request->prompt_count;
    di_events_push(&request->events, &event);
}

/* Log-probability and best ids of an item, borrowed from the engine until the next item. */
static void add_logprobs(di_engine *engine, di_event *event, const di_batch *batch, uint32_t item) {
    int32_t wanted = batch->items[item].logprobs;
    if (wanted < 0) return;
    event->logprob = batch->results[item].logprob;
    const di_sample_top *top = batch->top + (size_t)item * batch->top_stride;
    for (int32_t i = 0; i < wanted && (uint32_t)i < engine->info.vocabulary; i++) {
        engine->top_out[i] = (di_logprob){.token_id = top[i].token_id, .logprob = top[i].logprob};
        event->top_count++;
    }
    event->top = engine->top_out;
}

bool di_emit_prompt_token(di_engine *engine, di_request *request, const di_batch *batch, uint32_t position,
                          uint32_t item) {
    di_event event;
    start_event(&event, request, DI_EVENT_PROMPT_TOKEN, di_now_ns());
    event.position = position;
    event.token_id = request->prompt[position];
    if (item != UINT32_MAX) add_logprobs(engine, &event, batch, item);
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
    di_event event;
    start_event(&event, request, DI_EVENT_FINISH, di_now_ns());
    event.sample = (int32_t)(sequence - request->sequences);
    event.position = request->prompt_count;
    event.position += sequence->delivered; /* the sampler may have gone on behind a stop string */
    if (sequence->sampler) {
        event.has_logits_hash = request->sampling.logits_hash;
        event.logits_hash = sequence->delivered_hash;
    }
    event.finish_reason = reason;
    event.stop_token_id = stop_token_id;
    event.stop_string = stop_string;
    if (reason == DI_FINISH_ERROR) event.status = sequence->fault != DI_OK ? sequence->fault : request->status;
    if (engine->text.length && !engine->text.failed) {
        event.text = engine->text.data;
        event.text_length = engine->text.length;
    }
    if (engine->text.failed) request->events.incomplete = true;
    di_events_push(&request->events, &event);
    di_release_sequence(engine, sequence);
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
    di_text_clear(scratch);
    if (di_detokenizer_push(&sequence->detokenizer, token, scratch, error) != DI_OK) return -1;
    int32_t match = di_stop_push(&sequence->stop, scratch->data, scratch->length, &engine->text);
    if (scratch->failed) engine->text.failed = true;
    if (token == request->stop_arm) di_stop_arm(&sequence->stop);
    return match;
}

/* What the tokens of one step have in common. */
typedef struct delivery {
    const di_batch *batch;
    int64_t now, gap; /* gap: of the last tokens; most are alike, so that they are counted together */
    uint64_t gaps, tokens;
} delivery;

static void count_gaps(di_engine *engine, delivery *d) {
    if (d->gaps) di_observe_many(&engine->metrics, DI_HISTOGRAM_TOKEN_GAP, (double)d->gap / 1e9, d->gaps);
    d->gaps = 0;
}

static void count_token(di_engine *engine, delivery *d, di_request *request, di_sequence *sequence) {
    d->tokens++;
    uint64_t produced = atomic_load_explicit(&request->completion_tokens, memory_order_relaxed);
    atomic_store_explicit(&request->completion_tokens, produced + 1, memory_order_relaxed);
    if (!request->first_token_ns) {
        request->first_token_ns = d->now;
        di_observe(&engine->metrics, DI_HISTOGRAM_FIRST_TOKEN, (double)(d->now - request->submitted_ns) / 1e9);
    }
    if (sequence->last_token_ns) {
        int64_t gap = d->now - sequence->last_token_ns;
        if (gap != d->gap) count_gaps(engine, d);
        d->gap = gap;
        d->gaps++;
    }
    sequence->last_token_ns = d->now;
}

/* Text, stop conditions and events of a chosen token, number i of its step. False: the sample has ended. */
static bool deliver_one(di_engine *engine, delivery *d, di_sequence *sequence, uint32_t i) {
    const di_batch *batch = d->batch;
    di_request *request = sequence->request;
    const di_choice *choice = &sequence->choice;
    bool last = i + 1 == choice->count;
    int32_t token = sequence->ids[choice->position + i], stop_token = last ? choice->stop_token : -1, match = -1;
    di_finish_reason reason = last ? choice->reason : DI_FINISH_NONE;
    uint32_t item = choice->item + i;
    di_error error;
    error.status = DI_OK;
    sequence->delivered++;
    sequence->delivered_hash = batch->results[item].hash;
    if (last) sequence->choice.waiting = false;
    count_token(engine, d, request, sequence);

    di_text_clear(&engine->text);
    if (has_text(engine, token, stop_token)) match = add_text(engine, request, sequence, token, &error);
    if (match < 0 && reason != DI_FINISH_NONE && engine->tokenizer)
        match = di_stop_finish(&sequence->stop, &engine->text);
    if (engine->text.failed) di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the request's text");

    di_event event;
    start_event(&event, request, DI_EVENT_TOKEN, d->now);
    event.sample = (int32_t)(sequence - request->sequences);
    event.position = choice->position + i;
    event.token_id = token;
    if (engine->text.length) {
        event.text = engine->text.data;
        event.text_length = engine->text.length;
    }
    add_logprobs(engine, &event, batch, item);
    if (i == 0 && choice->drafted && request->draft_records) di_drafts_tell(sequence, &event.drafts);
    if (error.status == DI_OK && !di_events_push(&request->events, &event))
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
    if (error.status != DI_OK) {
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
        return false;
    }
    if (match < 0 && reason == DI_FINISH_NONE) return true;
    sequence->choice.waiting = false;
    if (match >= 0)
        di_finish_sequence(engine, request, sequence, DI_FINISH_STOP, -1, request->stops.strings[match]);
    else
        di_finish_sequence(engine, request, sequence, reason, stop_token, NULL);
    if (!request->live) di_finish_request(engine, request, DI_FINISH_NONE, NULL);
    return false;
}

/* Ahead of choice i: what the next ones will need. */
static void fetch_ahead(const di_engine *engine, uint32_t i) {
    const di_sequence *far = i + DI_FETCH_FAR < engine->chosen_count ? engine->chosen[i + DI_FETCH_FAR] : NULL;
    const di_sequence *near = i + DI_FETCH_NEAR < engine->chosen_count ? engine->chosen[i + DI_FETCH_NEAR] : NULL;
    if (far && engine->tokenizer) di_tokenizer_expect(engine->tokenizer, far->ids[far->choice.position]);
    if (!near) return;
    di_events_expect(&near->request->events);
    size_t length;
    if (engine->tokenizer)
        __builtin_prefetch(di_tokenizer_bytes(engine->tokenizer, near->ids[near->choice.position], &length));
}

void di_deliver(di_engine *engine) {
    /* While a step runs, the choices of the step before it are in the other batch. */
    delivery d = {.batch = &engine->batches[engine->planned_count ? engine->batch ^ 1 : engine->batch]};
    if (engine->chosen_count) d.now = di_now_ns();
    for (uint32_t i = 0; i < engine->chosen_count; i++) {
        fetch_ahead(engine, i);
        di_sequence *sequence = engine->chosen[i];
        uint32_t count = sequence ? sequence->choice.count : 0; /* NULL: ended meanwhile */
        for (uint32_t j = 0; j < count && deliver_one(engine, &d, sequence, j); j++) {
        }
    }
    engine->chosen_count = 0;
    count_gaps(engine, &d);
    if (d.tokens) di_count(&engine->metrics, DI_COUNT_OUTPUT_TOKENS, d.tokens);
}

void di_record_request(di_engine *engine, const di_request *request) {
    const di_timings *t = &request->timings;
    di_count(&engine->metrics, DI_COUNT_REQUESTS_FINISHED, 1);
    di_counter_id how = request->status == DI_OK              ? DI_COUNT_REQUESTS_ANSWERED
                        : request->status == DI_ERR_CANCELLED ? DI_COUNT_CANCELS
                                                              : DI_COUNT_REQUESTS_FAILED;
    di_count(&engine->metrics, how, 1);
    if (request->numeric_fault) di_count(&engine->metrics, DI_COUNT_NUMERIC_FAULTS, 1);
    di_observe(&engine->metrics, DI_HISTOGRAM_REQUEST_TIME, t->total_ms / 1000);
    di_text line = {0};
    di_json_writer w;
    di_json_begin(&w, &line);
    di_json_object_begin(&w);
    di_json_key(&w, "id");
    di_json_string(&w, request->id ? request->id : "");
    di_json_key(&w, "status");
    di_json_string(&w, di_status_name(request->status));
    struct {
        const char *key;
        uint64_t value;
    } numbers[] = {{"prompt_tokens", request->prompt_count},
                   {"cached_tokens", request->cached_tokens},
                   {"completion_tokens", request->completion_tokens},
                   {"samples", (uint64_t)request->sampling.n},
                   {"preemptions", request->preemptions},
                   {"diverged_at", request->hit.diverged_at}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        di_json_key(&w, numbers[i].key);
        di_json_unsigned(&w, numbers[i].value);
    }
    di_json_key(&w, "cache_miss");
    di_json_string(&w, di_miss_name(request->hit.reason));
    struct {
        const char *key;
        double value;
    } times[] = {{"queue_ms", t->queue_ms},
                 {"prefill_ms", t->prefill_ms},
                 {"first_token_ms", t->first_token_ms},
                 {"total_ms", t->total_ms}};
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        di_json_key(&w, times[i].key);
        di_json_float(&w, (float)times[i].value);
    }
    di_json_object_end(&w);
    if (!line.failed) di_log_write(engine->log, DI_LOG_INFO, "request", "%s", line.data);
    di_text_free(&line);
}
