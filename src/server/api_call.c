/* api_call.c - a call in the engine: submission, events, answer, end. I/O thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <xxhash.h>

#include "server/api_internal.h"

enum {
    DRAIN_EVENTS = 256,       /* events taken before others have their turn */
    WRITE_BYTES = 16 * 1024,  /* of a stream, put together before they are written */
    SEED_MASK_BITS = 64 - 53, /* a seed that is drawn survives clients whose numbers are doubles */
    HEADER_NAME_BYTES = 512   /* of the names of ignored fields */
};

/* ------------------------------------------------------------------------------------------------- beginning */

/* Id of the answer and the seed, drawn where the client gave none. */
static bool draw_id_and_seed(di_call *call) {
    static const char *const prefixes[DI_ENDPOINT_COUNT] = {[DI_ENDPOINT_CHAT] = "chatcmpl-",
                                                            [DI_ENDPOINT_COMPLETIONS] = "cmpl-",
                                                            [DI_ENDPOINT_MESSAGES] = "msg_",
                                                            [DI_ENDPOINT_RESPONSES] = "resp_"};
    uint64_t random[3];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) return false;
    const char *prefix = prefixes[call->endpoint];
    if (call->own_id)
        snprintf(call->id, sizeof call->id, "%s%s", prefix, call->own_id);
    else
        snprintf(call->id, sizeof call->id, "%s%016llx%016llx", prefix, (unsigned long long)random[0],
                 (unsigned long long)random[1]);
    call->tail = call->id + strlen(prefix);
    if (!call->sampling.has_seed) {
        call->sampling.has_seed = true;
        call->sampling.seq_seed = call->api->has_seed ? call->api->seed : random[2] >> SEED_MASK_BITS;
    }
    return true;
}

static di_status make_reply(di_call *call) {
    static const di_reply_kind kinds[DI_ENDPOINT_COUNT] = {[DI_ENDPOINT_CHAT] = DI_REPLY_CHAT,
                                                           [DI_ENDPOINT_COMPLETIONS] = DI_REPLY_COMPLETION,
                                                           [DI_ENDPOINT_MESSAGES] = DI_REPLY_MESSAGES,
                                                           [DI_ENDPOINT_RESPONSES] = DI_REPLY_RESPONSES};
    const di_api *api = call->api;
    const di_sampling *sampling = &call->sampling;
    const di_model_config *model = di_engine_model_config(api->engine);
    di_reply_options options = {
        .kind = kinds[call->endpoint],
        .id = call->id,
        .request_id = di_exchange_id(call->exchange),
        .tail = call->tail,
        .model = api->names[0],
        .fingerprint = di_engine_info(api->engine)->fingerprint,
        .created = (int64_t)time(NULL),
        .seed = sampling->seq_seed,
        .prompts = call->prompt_count,
        .samples = (uint32_t)sampling->n,
        .stream = call->stream,
        .include_usage = call->include_usage,
        .continuous_usage = call->continuous_usage,
        .thinking = call->options.thinking && call->endpoint != DI_ENDPOINT_COMPLETIONS,
        .hide_reasoning = call->hide_reasoning,
        .omit_thinking = call->omit_thinking,
        .one_call = call->conversation.one_call,
        .stop_in_text = call->stop_in_text,
        .logprobs = sampling->logprobs,
        .token_ids = call->token_ids,
        .draft_records = call->draft_records,
        .logits_hash = sampling->logits_hash,
        .tokenizer = api->tokenizer,
        .bos = (int32_t)di_engine_info(api->engine)->bos_token_id,
        .eos = model->eos_token_ids,
        .eos_count = model->eos_count,
        .prompt_ids = call->ids,
        .request = call->body,
        .temperature = sampling->temperature,
        .top_p = sampling->top_p,
        .presence_penalty = sampling->presence_penalty,
        .frequency_penalty = sampling->frequency_penalty,
    };
    return di_reply_init(&call->reply, &options, &call->error);
}

static void take_part(void *arg, const di_part *part) {
    di_call_choice *choice = arg;
    if (part->kind != DI_PART_REASONING) choice->reasoning = false;
    di_reply_part(&choice->call->reply, choice->index, part);
}

/* Ids of calls are a function of seed, prompt and choice: the same request gives the same bytes. */
static di_status make_choices(di_call *call) {
    call->choices = calloc(call->reply.choice_count, sizeof *call->choices);
    if (!call->choices) return di_fail(&call->error, DI_ERR_MEMORY, NULL, "out of memory for the request");
    for (uint32_t i = 0; i < call->reply.choice_count; i++) {
        di_call_choice *choice = &call->choices[i];
        *choice = (di_call_choice){.call = call, .index = i};
        if (call->endpoint == DI_ENDPOINT_COMPLETIONS) continue;
        di_answer_start start = call->prompt.start;
        choice->reasoning = start == DI_START_REASONING || start == DI_START_REASONING_CONTINUED;
        di_parser_options options = {
            .id_prefix = call->endpoint == DI_ENDPOINT_MESSAGES ? "toolu_" : "call_",
            .id_seed =
                XXH64(call->ids[0].data, call->ids[0].count * sizeof *call->ids[0].data, call->sampling.seq_seed + i),
            .grammar = call->grammar != NULL,
            .lenient = call->prompt.tools,
            .on_part = take_part,
            .arg = choice,
        };
        choice->parser = di_parser_new(&call->api->recipe, &call->conversation, &call->prompt, &options);
        if (!choice->parser) return di_fail(&call->error, DI_ERR_MEMORY, NULL, "out of memory for the request");
    }
    return DI_OK;
}

/* Called from the engine's thread. */
static void wake(void *arg) {
    di_call *call = arg;
    di_server_post(call->api->server, &call->task);
}

static di_status submit(di_call *call) {
    call->jobs = calloc(call->prompt_count, sizeof *call->jobs);
    if (!call->jobs) return di_fail(&call->error, DI_ERR_MEMORY, NULL, "out of memory for the request");
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        di_segment segment = {.token_ids = call->ids[i].data, .token_count = call->ids[i].count};
        di_request_params params;
        di_request_params_default(&params);
        params.id = di_exchange_id(call->exchange);
        params.segments = &segment;
        params.segment_count = 1;
        params.sampling = call->sampling;
        params.priority = call->priority;
        params.tenant = call->tenant;
        params.owner = call->owner;
        params.draft_records = call->draft_records;
        if (call->endpoint != DI_ENDPOINT_COMPLETIONS) {
            params.stop_arm_token_id = call->prompt.stop_arm_token_id;
            di_status status = di_parser_openings(&call->conversation, &call->prompt, call->prompt.tools, call->arena,
                                                  &params.stop_disarm, &params.stop_disarm_count, &call->error);
            if (status != DI_OK) return status;
        }
        params.on_ready = wake;
        params.on_ready_arg = call;
        di_status status = di_submit(call->api->engine, &params, &call->jobs[i].request, &call->error);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

/* The engine knows a grammar as so_args; the client has another name for it. */
static void name_grammar_field(const di_call *call, di_error *error) {
    static const char ours[] = "so_args", schema[] = ".schema";
    if (!call->grammar || strncmp(error->param, ours, strlen(ours)) != 0) return;
    di_text text = {0};
    for (const char *at = error->message, *next; *at; at = next) {
        next = strstr(at, ours);
        if (!next) {
            di_text_puts(&text, at);
            break;
        }
        di_text_append(&text, at, (size_t)(next - at));
        di_text_puts(&text, call->grammar);
        next += strlen(ours);
        if (strncmp(next, schema, strlen(schema)) == 0) next += strlen(schema);
    }
    /* The client's grammar has to change: never a status that asks for less. */
    di_status status = error->status == DI_ERR_LIMIT ? DI_ERR_INVALID_ARGUMENT : error->status;
    if (!text.failed && text.data) di_fail(error, status, call->grammar, "%s", text.data);
    di_text_free(&text);
}

/* -------------------------------------------------------------------------------------------------- answering */

size_t di_call_headers(const di_call *call, bool stream, di_header headers[4]) {
    size_t count = 0;
    if (stream) {
        headers[count++] = (di_header){"Cache-Control", "no-cache"};
        headers[count++] = (di_header){"X-Accel-Buffering", "no"};
    }
    if (call->endpoint == DI_ENDPOINT_MESSAGES || call->endpoint == DI_ENDPOINT_COUNT_TOKENS)
        headers[count++] = (di_header){"request-id", di_exchange_id(call->exchange)};
    if (call->unknown.length) headers[count++] = (di_header){"x-ignored-fields", call->unknown.data};
    return count;
}

/* Names of fields come from the client: what may not stand in a header becomes '?'. */
void di_call_clean_names(di_text *names) {
    if (names->failed) di_text_clear(names);
    if (names->length > HEADER_NAME_BYTES) names->length = HEADER_NAME_BYTES;
    for (size_t i = 0; i < names->length; i++)
        if (names->data[i] < 0x20 || names->data[i] > 0x7E) names->data[i] = '?';
    if (names->length) names->data[names->length] = '\0';
}

static void flush(di_call *call) {
    di_text *out = &call->reply.out;
    if (!call->begun || !out->length || out->failed) return;
    di_exchange_stream_write(call->exchange, out->data, out->length);
    di_text_clear(out);
}

static void begin_stream(di_call *call) {
    static const char ping[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";
    di_header headers[4];
    size_t count = di_call_headers(call, true, headers);
    di_exchange_stream_begin(call->exchange, 200, "text/event-stream; charset=utf-8", headers, count);
    di_exchange_keepalive(call->exchange, call->endpoint == DI_ENDPOINT_MESSAGES ? ping : ": keep-alive\n\n");
    call->begun = true;
    di_reply_begin(&call->reply);
    flush(call);
}

/* Figures for the access log. */
static void note(di_call *call, const di_timings *timings) {
    const di_usage *usage = &call->reply.usage;
    di_exchange_note_number(call->exchange, "prompt_tokens", (double)usage->prompt_tokens);
    di_exchange_note_number(call->exchange, "cached_tokens", (double)usage->cached_tokens);
    di_exchange_note_number(call->exchange, "completion_tokens", (double)usage->completion_tokens);
    di_exchange_note_number(call->exchange, "reasoning_tokens", (double)call->reply.reasoning_tokens);
    di_exchange_note_number(call->exchange, "accepted_draft_tokens", (double)usage->accepted_draft_tokens);
    if (timings) {
        di_exchange_note_number(call->exchange, "queue_ms", timings->queue_ms);
        di_exchange_note_number(call->exchange, "prefill_ms", timings->prefill_ms);
        di_exchange_note_number(call->exchange, "first_token_ms", timings->first_token_ms);
        di_exchange_note_number(call->exchange, "total_ms", timings->total_ms);
    }
    if (call->reply.choices && call->reply.choices[0].finished)
        di_exchange_note_text(call->exchange, "finish", di_answer_finish_name(call->reply.choices[0].finish));
}

void di_call_fail(di_call *call, const di_error *error) {
    int http = di_status_http(error->status);
    if (error->status == DI_ERR_CANCELLED) http = 503; /* not the client, which would be gone: the server stops */
    call->ended = true;
    if (call->begun) {
        di_reply_error(&call->reply, error, http);
        flush(call);
        di_exchange_stream_end(call->exchange);
        return;
    }
    di_exchange_fail(call->exchange, http, di_api_error_code(error->status), error->param[0] ? error->param : NULL,
                     "%s", error->message);
}

static void complete(di_call *call, const di_timings *timings) {
    if (di_reply_failed(&call->reply)) {
        di_error error = {0};
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the answer");
        di_call_fail(call, &error);
        return;
    }
    di_reply_end(&call->reply);
    note(call, timings);
    if (di_reply_failed(&call->reply)) {
        di_error error = {0};
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the answer");
        di_call_fail(call, &error);
        return;
    }
    call->ended = true;
    if (call->begun) {
        flush(call);
        di_exchange_stream_end(call->exchange);
        return;
    }
    di_header headers[4];
    size_t count = di_call_headers(call, false, headers);
    di_exchange_reply(call->exchange, 200, "application/json", headers, count, call->reply.out.data,
                      call->reply.out.length);
}

/* ----------------------------------------------------------------------------------------------------- events */

static void sum_usage(di_call *call) {
    di_usage sum = {0};
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        const di_usage *usage = &call->jobs[i].usage;
        sum.prompt_tokens += usage->prompt_tokens;
        sum.cached_tokens += usage->cached_tokens;
        sum.completion_tokens += usage->completion_tokens;
        sum.draft_tokens += usage->draft_tokens;
        sum.accepted_draft_tokens += usage->accepted_draft_tokens;
    }
    call->reply.usage = sum;
}

static void take_prompt(di_call *call, uint32_t job) {
    uint32_t samples = (uint32_t)call->sampling.n;
    call->prompts_known++;
    sum_usage(call);
    if (call->prompts_known == call->prompt_count) di_reply_prompt(&call->reply);
    if (!call->echo) return;
    const di_call_echo *echo = &call->echo[job];
    const di_part part = {.kind = DI_PART_CONTENT, .text = echo->text, .length = echo->length};
    for (uint32_t i = 0; i < samples; i++) di_reply_part(&call->reply, job * samples + i, &part);
}

static void put_text(di_call *call, di_call_choice *choice, int32_t id, const char *text, size_t length) {
    if (choice->parser)
        di_parser_push(choice->parser, id, text, length);
    else if (length)
        di_reply_part(&call->reply, choice->index, &(di_part){.kind = DI_PART_CONTENT, .text = text, .length = length});
}

static void take_token(di_call *call, di_call_choice *choice, const di_event *event) {
    if (call->continuous_usage) sum_usage(call);
    di_reply_token(&call->reply, choice->index, event, choice->reasoning);
    if (choice->reasoning && event->token_id == call->api->recipe.ids[DI_CONTROL_THINK_END]) choice->reasoning = false;
    put_text(call, choice, event->token_id, event->text, event->text_length);
}

static di_answer_finish plain_finish(di_finish_reason reason) {
    return reason == DI_FINISH_LENGTH ? DI_ANSWER_LENGTH : DI_ANSWER_STOP;
}

/* Clients know the end of sequence as no stop reason; an id that they asked for is one. */
static int32_t stop_id_of_client(const di_call *call, int32_t id) {
    for (size_t i = 0; i < call->sampling.stop_token_count; i++)
        if (call->sampling.stop_token_ids[i] == id) return id;
    return -1;
}

static di_status take_finish(di_call *call, di_call_choice *choice, const di_event *event) {
    sum_usage(call);
    if (event->text_length) put_text(call, choice, -1, event->text, event->text_length);
    di_parser_end end = {.finish = plain_finish(event->finish_reason)};
    if (choice->parser) {
        di_output_end how = di_output_end_of(event->finish_reason, event->stop_string);
        if (di_parser_finish(choice->parser, how, &end, &call->error) != DI_OK) return call->error.status;
    }
    call->reply.completed = (int64_t)time(NULL);
    di_event ended = *event;
    ended.stop_token_id = stop_id_of_client(call, event->stop_token_id);
    di_reply_finish(&call->reply, choice->index, end.finish, &ended, end.reasoning_tokens);
    return DI_OK;
}

/* False when the call has ended. */
static bool take_event(di_call *call, uint32_t index, const di_event *event) {
    di_call_job *job = &call->jobs[index];
    uint32_t first = index * (uint32_t)call->sampling.n;
    job->usage = event->usage;
    switch (event->kind) {
    case DI_EVENT_PROMPT:
        take_prompt(call, index);
        break;
    case DI_EVENT_PROMPT_TOKEN:
        for (uint32_t i = 0; i < (uint32_t)call->sampling.n; i++) di_reply_token(&call->reply, first + i, event, false);
        break;
    case DI_EVENT_TOKEN:
        take_token(call, &call->choices[first + (uint32_t)event->sample], event);
        break;
    case DI_EVENT_FINISH:
        if (event->finish_reason == DI_FINISH_ERROR || event->finish_reason == DI_FINISH_CANCELLED) break;
        if (take_finish(call, &call->choices[first + (uint32_t)event->sample], event) == DI_OK) break;
        di_call_fail(call, &call->error);
        return false;
    case DI_EVENT_DONE:
        job->done = true;
        if (event->status != DI_OK) {
            call->error = event->error;
            name_grammar_field(call, &call->error);
            di_call_fail(call, &call->error);
            return false;
        }
        if (++call->jobs_done < call->prompt_count) break;
        complete(call, &event->timings);
        return false;
    }
    return true;
}

static void on_drain(di_exchange *exchange, void *user) {
    (void)exchange;
    di_call *call = user;
    di_server_post(call->api->server, &call->task);
}

/* Takes events while there are some and the client takes what they become. A request whose events stay unread is not
 * run further by the engine. */
static void take_events(void *arg) {
    di_call *call = arg;
    if (call->preparing) return; /* di_call_run looks again */
    int left = DRAIN_EVENTS;
    bool full = call->begun && di_exchange_full(call->exchange, 0); /* the engine wakes also who waits for a reader */
    for (uint32_t i = 0; i < call->prompt_count && left > 0 && !full; i++) {
        di_event event;
        while (left > 0 && !full && !call->jobs[i].done && di_request_next(call->jobs[i].request, 0, &event)) {
            left--;
            if (!take_event(call, i, &event)) {
                di_call_free(call);
                return;
            }
            if (call->begun && call->reply.out.length >= WRITE_BYTES) flush(call);
            full = call->begun && di_exchange_full(call->exchange, call->reply.out.length);
        }
    }
    flush(call);
    if (full)
        di_exchange_on_drain(call->exchange, on_drain);
    else if (left == 0)
        di_server_post(call->api->server, &call->task);
}

/* --------------------------------------------------------------------------------------------------- life time */

bool di_call_submit(di_call *call) {
    call->task = (di_server_task){.run = take_events, .arg = call};
    di_status status = DI_OK;
    if (!draw_id_and_seed(call))
        status = di_fail(&call->error, DI_ERR_INTERNAL, NULL, "the system gives no random numbers");
    if (status == DI_OK) status = make_reply(call);
    if (status == DI_OK) status = make_choices(call);
    if (status == DI_OK) status = submit(call);
    name_grammar_field(call, &call->error);
    return status == DI_OK;
}

void di_call_run(di_call *call) {
    if (call->stream) begin_stream(call);
    take_events(call);
}

void di_call_free(di_call *call) {
    for (uint32_t i = 0; call->jobs && i < call->prompt_count; i++) di_request_free(call->jobs[i].request);
    if (call->task.run) di_server_unpost(call->api->server, &call->task); /* no post comes after di_request_free */
    for (uint32_t i = 0; call->choices && i < call->reply.choice_count; i++) di_parser_free(call->choices[i].parser);
    for (uint32_t i = 0; call->ids && i < call->prompt_count; i++) di_ids_free(&call->ids[i]);
    free(call->choices);
    free(call->jobs);
    di_reply_free(&call->reply);
    di_text_free(&call->unknown);
    call->api->calls--;
    di_exchange_release(call->exchange);
    free(call);
}
