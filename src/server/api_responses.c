/* api_responses.c - answers of /v1/responses; see api_reply.h.
 *
 * A response is a list of items, always in this order: reasoning, message, calls. An item exists once its first byte
 * does; its index is its place in the list.
 */
#include "server/api_reply.h"

#include <stdio.h>
#include <string.h>

enum { ITEM_ID_BYTES = 192 }; /* prefix, the tail of the response's id, index */

/* ------------------------------------------------------------------------------------------------------- items */

typedef struct item {
    di_reply_item kind;
    const di_answer_call *call; /* DI_ITEM_CALL; NULL otherwise */
    uint32_t index;
} item;

static bool is_custom(const item *at) {
    return at->call && at->call->tool && at->call->tool->custom;
}

/* "rs_TAIL_0" */
static const char *item_id(const di_reply *reply, const item *at, char *id, size_t room) {
    const char *prefix = at->kind == DI_ITEM_REASONING ? "rs"
                         : at->kind == DI_ITEM_TEXT    ? "msg"
                         : is_custom(at)               ? "ctc"
                                                       : "fc";
    snprintf(id, room, "%s_%s_%u", prefix, reply->options.tail, at->index);
    return id;
}

/* Of the message's text; choice NULL: none yet. unsent: only those that no event had. */
static void write_logprobs(di_json_writer *writer, di_reply_choice *choice, bool unsent) {
    if (choice)
        di_reply_write_list(writer, &choice->lists[DI_LIST_CONTENT], unsent);
    else
        di_json_raw(writer, "[]", 2);
}

static void write_text_part(di_json_writer *writer, const item *at, di_reply_choice *choice, const di_text *text) {
    di_json_object_begin(writer);
    if (at->kind == DI_ITEM_REASONING) {
        di_put_string(writer, "type", "reasoning_text");
    } else {
        di_put_string(writer, "type", "output_text");
        di_json_key(writer, "annotations");
        di_json_raw(writer, "[]", 2);
        di_json_key(writer, "logprobs");
        write_logprobs(writer, text ? choice : NULL, false);
    }
    if (text)
        di_put_text_member(writer, "text", text);
    else
        di_put_string(writer, "text", "");
    di_json_object_end(writer);
}

/* The plain text that a custom tool takes: what is in its argument "input", or the arguments as they are. */
static void write_custom_input(di_json_writer *writer, const di_answer_call *call) {
    const char *arguments = call->arguments.data ? call->arguments.data : "";
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL, *input = NULL;
    if (arena && di_json_parse(arena, arguments, call->arguments.length, 0, &root, NULL) == DI_OK)
        input = di_json_get(root, "input");
    if (input && input->type == DI_JSON_STRING)
        di_json_string_n(writer, input->text, input->length);
    else
        di_json_string_n(writer, arguments, call->arguments.length);
    di_arena_free(arena);
}

static void write_call(di_json_writer *writer, const item *at, bool empty) {
    di_put_string(writer, "call_id", at->call->id);
    di_put_string(writer, "name", at->call->name);
    if (at->call->space) di_put_string(writer, "namespace", at->call->space);
    di_json_key(writer, is_custom(at) ? "input" : "arguments");
    if (empty)
        di_json_string(writer, "");
    else if (is_custom(at))
        write_custom_input(writer, at->call);
    else
        di_json_string_n(writer, at->call->arguments.data ? at->call->arguments.data : "", at->call->arguments.length);
}

/* empty: as the item is when it begins. */
static void write_item(const di_reply *reply, di_json_writer *writer, const item *at, const char *status, bool empty) {
    di_reply_choice *choice = &reply->choices[0];
    const di_answer *answer = &choice->answer;
    char id[ITEM_ID_BYTES], signature[DI_REPLY_SIGNATURE];
    di_json_object_begin(writer);
    di_put_string(writer, "type",
                  at->kind == DI_ITEM_REASONING ? "reasoning"
                  : at->kind == DI_ITEM_TEXT    ? "message"
                  : is_custom(at)               ? "custom_tool_call"
                                                : "function_call");
    di_put_string(writer, "id", item_id(reply, at, id, sizeof id));
    di_put_string(writer, "status", status);
    if (at->call) {
        write_call(writer, at, empty);
        di_json_object_end(writer);
        return;
    }
    if (at->kind == DI_ITEM_TEXT) {
        di_put_string(writer, "role", "assistant");
        di_put_string(writer, "phase", answer->call_count ? "commentary" : "final_answer");
    }
    di_json_key(writer, "content");
    di_json_array_begin(writer);
    if (!empty) write_text_part(writer, at, choice, at->kind == DI_ITEM_TEXT ? &answer->content : &answer->reasoning);
    di_json_array_end(writer);
    if (at->kind == DI_ITEM_REASONING) {
        di_json_key(writer, "summary");
        di_json_raw(writer, "[]", 2);
        di_put_string(writer, "encrypted_content", empty ? "" : di_reply_signature(reply, choice, signature));
    }
    di_json_object_end(writer);
}

static void write_output(const di_reply *reply, di_json_writer *writer) {
    const di_reply_choice *choice = &reply->choices[0];
    const di_answer *answer = &choice->answer;
    bool cut = choice->finish == DI_ANSWER_LENGTH;
    uint32_t count = (answer->reasoning.length > 0) + (answer->content.length > 0) + (uint32_t)answer->call_count;
    di_json_array_begin(writer);
    for (uint32_t i = 0, call = 0; i < count; i++) {
        item at = {.index = i};
        if (i == 0 && answer->reasoning.length) {
            at.kind = DI_ITEM_REASONING;
        } else if (answer->content.length && i == (answer->reasoning.length > 0)) {
            at.kind = DI_ITEM_TEXT;
        } else {
            at.kind = DI_ITEM_CALL;
            at.call = &answer->calls[call++];
        }
        bool whole = i + 1 < count || (at.call && at.call->complete);
        write_item(reply, writer, &at, cut && !whole ? "incomplete" : "completed", false);
    }
    di_json_array_end(writer);
}

/* ---------------------------------------------------------------------------------------------------- response */

static void repeat(di_json_writer *writer, const di_json *request, const char *name, const char *otherwise) {
    const di_json *value = di_json_get(request, name);
    di_json_key(writer, name);
    if (value && value->type != DI_JSON_NULL)
        di_json_value(writer, value);
    else
        di_json_raw(writer, otherwise, strlen(otherwise));
}

/* Function tools with all members that typed clients expect. */
static void write_tools(di_json_writer *writer, const di_json *tools) {
    static const char *const members[] = {"name", "description", "parameters", "strict"};
    di_json_key(writer, "tools");
    di_json_array_begin(writer);
    for (const di_json *tool = tools ? tools->first : NULL; tool; tool = tool->next) {
        if (!di_json_string_is(di_json_get(tool, "type"), "function")) {
            di_json_value(writer, tool);
            continue;
        }
        di_json_object_begin(writer);
        di_put_string(writer, "type", "function");
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) repeat(writer, tool, members[i], "null");
        di_json_object_end(writer);
    }
    di_json_array_end(writer);
}

static void write_settings(const di_reply *reply, di_json_writer *writer) {
    const di_json *request = reply->options.request;
    const di_json *text = di_json_get(request, "text"), *reasoning = di_json_get(request, "reasoning");
    repeat(writer, request, "parallel_tool_calls", "true");
    di_json_key(writer, "presence_penalty");
    di_json_number(writer, reply->options.presence_penalty);
    di_put_null(writer, "previous_response_id");
    repeat(writer, request, "prompt_cache_key", "null");
    repeat(writer, request, "prompt_cache_retention", "null");
    di_json_key(writer, "reasoning");
    di_json_object_begin(writer);
    repeat(writer, reasoning, "effort", "null");
    repeat(writer, reasoning, "summary", "null");
    di_json_object_end(writer);
    repeat(writer, request, "safety_identifier", "null");
    di_put_string(writer, "service_tier", "default");
    di_put_bool(writer, "store", false);
    di_json_key(writer, "temperature");
    di_json_number(writer, reply->options.temperature);
    di_json_key(writer, "text");
    di_json_object_begin(writer);
    repeat(writer, text, "format", "{\"type\":\"text\"}");
    repeat(writer, text, "verbosity", "null");
    di_json_object_end(writer);
    repeat(writer, request, "tool_choice", "\"auto\"");
    const di_json *tools = di_json_get(request, "tools");
    write_tools(writer, tools && tools->type == DI_JSON_ARRAY ? tools : NULL);
    di_put_unsigned(writer, "top_logprobs", reply->options.logprobs > 0 ? (uint64_t)reply->options.logprobs : 0);
    di_json_key(writer, "top_p");
    di_json_number(writer, reply->options.top_p);
    di_put_string(writer, "truncation", "disabled");
}

static void write_usage(const di_reply *reply, di_json_writer *writer) {
    const di_usage *usage = &reply->usage;
    di_json_object_begin(writer);
    di_put_unsigned(writer, "input_tokens", usage->prompt_tokens);
    di_json_key(writer, "input_tokens_details");
    di_json_object_begin(writer);
    di_put_unsigned(writer, "cached_tokens", usage->cached_tokens);
    di_json_object_end(writer);
    di_put_unsigned(writer, "output_tokens", usage->completion_tokens);
    di_json_key(writer, "output_tokens_details");
    di_json_object_begin(writer);
    di_put_unsigned(writer, "reasoning_tokens", reply->reasoning_tokens);
    di_json_object_end(writer);
    di_put_unsigned(writer, "total_tokens", usage->prompt_tokens + usage->completion_tokens);
    di_json_object_end(writer);
}

typedef enum stage { STAGE_RUNNING, STAGE_ENDED, STAGE_FAILED } stage;

static const char *status_of(const di_reply *reply, stage at) {
    if (at == STAGE_RUNNING) return "in_progress";
    if (at == STAGE_FAILED) return "failed";
    return reply->choices[0].finish == DI_ANSWER_LENGTH ? "incomplete" : "completed";
}

static void write_response(const di_reply *reply, di_json_writer *writer, stage at, const di_error *error) {
    const di_reply_options *options = &reply->options;
    const char *status = status_of(reply, at);
    di_json_object_begin(writer);
    di_put_string(writer, "id", options->id);
    di_put_string(writer, "object", "response");
    di_json_key(writer, "created_at");
    di_json_integer(writer, options->created);
    di_put_string(writer, "status", status);
    di_put_bool(writer, "background", false);
    di_json_key(writer, "completed_at");
    if (at == STAGE_ENDED && strcmp(status, "completed") == 0)
        di_json_integer(writer, reply->completed);
    else
        di_json_null(writer);
    di_put_null(writer, "content_filters");
    di_json_key(writer, "error");
    if (error) {
        di_json_object_begin(writer);
        di_put_string(writer, "code", di_api_error_code(error->status));
        di_put_string(writer, "message", error->message);
        di_json_object_end(writer);
    } else {
        di_json_null(writer);
    }
    di_json_key(writer, "frequency_penalty");
    di_json_number(writer, options->frequency_penalty);
    di_json_key(writer, "incomplete_details");
    if (strcmp(status, "incomplete") == 0)
        di_json_raw(writer, "{\"reason\":\"max_output_tokens\"}", strlen("{\"reason\":\"max_output_tokens\"}"));
    else
        di_json_null(writer);
    repeat(writer, options->request, "instructions", "null");
    repeat(writer, options->request, "max_output_tokens", "null");
    repeat(writer, options->request, "max_tool_calls", "null");
    di_put_string(writer, "model", options->model);
    di_put_null(writer, "moderation");
    di_json_key(writer, "output");
    if (at == STAGE_ENDED)
        write_output(reply, writer);
    else
        di_json_raw(writer, "[]", 2);
    write_settings(reply, writer);
    di_json_key(writer, "usage");
    if (at == STAGE_ENDED)
        write_usage(reply, writer);
    else
        di_json_null(writer);
    repeat(writer, options->request, "user", "null");
    repeat(writer, options->request, "metadata", "{}");
    di_put_unsigned(writer, "seed", options->seed);
    di_put_string(writer, "system_fingerprint", options->fingerprint);
    di_json_object_end(writer);
}

/* ------------------------------------------------------------------------------------------------------ events */

static void event_end(di_reply *reply, di_json_writer *writer, const char *type) {
    di_put_unsigned(writer, "sequence_number", reply->sequence++);
    di_json_object_end(writer);
    di_reply_send(reply, type, &reply->scratch);
}

static void response_event(di_reply *reply, const char *type, stage at, const di_error *error) {
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, type);
    di_json_key(&writer, "response");
    write_response(reply, &writer, at, error);
    event_end(reply, &writer, type);
}

static void item_event(di_reply *reply, const char *type, const item *at, const char *status, bool empty) {
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, type);
    di_json_key(&writer, "item");
    write_item(reply, &writer, at, status, empty);
    di_put_unsigned(&writer, "output_index", at->index);
    event_end(reply, &writer, type);
}

/* Members that tell where in the output an event belongs, and the log-probabilities that no event had. */
static void write_place(const di_reply *reply, di_json_writer *writer, const item *at) {
    char id[ITEM_ID_BYTES];
    di_put_string(writer, "item_id", item_id(reply, at, id, sizeof id));
    if (at->kind == DI_ITEM_TEXT) {
        di_json_key(writer, "logprobs");
        write_logprobs(writer, &reply->choices[0], true);
    }
    di_put_unsigned(writer, "output_index", at->index);
}

/* Without log-probabilities, which deltas had and the item has again: they can be most of an answer. */
static void part_event(di_reply *reply, const char *type, const item *at, const di_text *text) {
    char id[ITEM_ID_BYTES];
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, type);
    di_put_unsigned(&writer, "content_index", 0);
    di_put_string(&writer, "item_id", item_id(reply, at, id, sizeof id));
    di_put_unsigned(&writer, "output_index", at->index);
    di_json_key(&writer, "part");
    write_text_part(&writer, at, NULL, text);
    event_end(reply, &writer, type);
}

static const char *delta_type(const item *at) {
    switch (at->kind) {
    case DI_ITEM_REASONING:
        return "response.reasoning_text.delta";
    case DI_ITEM_TEXT:
        return "response.output_text.delta";
    default:
        return is_custom(at) ? "response.custom_tool_call_input.delta" : "response.function_call_arguments.delta";
    }
}

static void delta_event(di_reply *reply, const item *at, const char *text, size_t length) {
    const char *type = delta_type(at);
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, type);
    if (at->kind != DI_ITEM_CALL) di_put_unsigned(&writer, "content_index", 0);
    di_json_key(&writer, "delta");
    if (is_custom(at))
        write_custom_input(&writer, at->call);
    else
        di_json_string_n(&writer, text, length);
    write_place(reply, &writer, at);
    event_end(reply, &writer, type);
}

/* "response.output_text.done" and its like, with the whole text. */
static void done_event(di_reply *reply, const item *at) {
    const di_answer *answer = &reply->choices[0].answer;
    const char *type = at->kind == DI_ITEM_REASONING ? "response.reasoning_text.done"
                       : at->kind == DI_ITEM_TEXT    ? "response.output_text.done"
                       : is_custom(at)               ? "response.custom_tool_call_input.done"
                                                     : "response.function_call_arguments.done";
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, type);
    if (at->call) {
        di_json_key(&writer, is_custom(at) ? "input" : "arguments");
        if (is_custom(at))
            write_custom_input(&writer, at->call);
        else
            di_json_string_n(&writer, at->call->arguments.data ? at->call->arguments.data : "",
                             at->call->arguments.length);
        if (!is_custom(at)) di_put_string(&writer, "name", at->call->name);
        write_place(reply, &writer, at);
    } else {
        di_put_unsigned(&writer, "content_index", 0);
        write_place(reply, &writer, at);
        di_put_text_member(&writer, "text", at->kind == DI_ITEM_TEXT ? &answer->content : &answer->reasoning);
    }
    event_end(reply, &writer, type);
}

/* The item that is being written. */
static item current(const di_reply_choice *choice) {
    item at = {.kind = choice->open, .index = choice->opened - 1};
    if (choice->open == DI_ITEM_CALL) at.call = &choice->answer.calls[choice->open_call];
    return at;
}

static void close_item(di_reply *reply, di_reply_choice *choice, const char *status) {
    if (choice->open == DI_ITEM_NONE) return;
    item at = current(choice);
    const di_answer *answer = &choice->answer;
    if (is_custom(&at) && at.call->arguments.length) delta_event(reply, &at, NULL, 0);
    done_event(reply, &at);
    if (at.kind != DI_ITEM_CALL)
        part_event(reply, "response.content_part.done", &at,
                   at.kind == DI_ITEM_TEXT ? &answer->content : &answer->reasoning);
    item_event(reply, "response.output_item.done", &at, status, false);
    choice->open = DI_ITEM_NONE;
}

static void open_item(di_reply *reply, di_reply_choice *choice, di_reply_item kind, uint32_t call) {
    close_item(reply, choice, "completed");
    choice->open = kind;
    choice->open_call = call;
    choice->opened++;
    item at = current(choice);
    item_event(reply, "response.output_item.added", &at, "in_progress", true);
    if (kind != DI_ITEM_CALL) part_event(reply, "response.content_part.added", &at, NULL);
}

static void responses_begin(di_reply *reply) {
    response_event(reply, "response.created", STAGE_RUNNING, NULL);
    response_event(reply, "response.in_progress", STAGE_RUNNING, NULL);
}

static void responses_part(di_reply *reply, di_reply_choice *choice, const di_part *part) {
    if (part->kind == DI_PART_CALL_BEGIN) {
        open_item(reply, choice, DI_ITEM_CALL, part->call);
        return;
    }
    if (part->kind == DI_PART_CALL_END) {
        if (part->complete) close_item(reply, choice, "completed");
        return;
    }
    if (!part->length) return;
    if (part->kind != DI_PART_CALL_ARGUMENTS) {
        di_reply_item kind = part->kind == DI_PART_CONTENT ? DI_ITEM_TEXT : DI_ITEM_REASONING;
        if (choice->open != kind) open_item(reply, choice, kind, 0);
    }
    item at = current(choice);
    if (!is_custom(&at)) delta_event(reply, &at, part->text, part->length);
}

static void responses_finish(di_reply *reply, di_reply_choice *choice) {
    close_item(reply, choice, choice->finish == DI_ANSWER_LENGTH ? "incomplete" : "completed");
}

static void responses_end(di_reply *reply) {
    bool cut = reply->choices[0].finish == DI_ANSWER_LENGTH;
    response_event(reply, cut ? "response.incomplete" : "response.completed", STAGE_ENDED, NULL);
}

static void responses_error(di_reply *reply, const di_error *error, int http_status) {
    (void)http_status;
    response_event(reply, "response.failed", STAGE_FAILED, error);
}

static void responses_whole(di_reply *reply) {
    di_json_writer writer;
    di_json_begin(&writer, &reply->out);
    write_response(reply, &writer, STAGE_ENDED, NULL);
}

const di_reply_form di_reply_responses = {.begin = responses_begin,
                                          .part = responses_part,
                                          .finish = responses_finish,
                                          .end = responses_end,
                                          .error = responses_error,
                                          .whole = responses_whole};
