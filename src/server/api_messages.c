/* api_messages.c - answers of Anthropic's /v1/messages; see api_reply.h. */
#include "server/api_reply.h"

#include <string.h>

/* Blocks are strictly one after the other: what is open is stopped before the next starts. */

static void write_usage(const di_reply *reply, di_json_writer *writer, bool begins) {
    const di_usage *usage = &reply->usage;
    di_json_key(writer, "usage");
    di_json_object_begin(writer);
    di_put_unsigned(writer, "input_tokens", usage->prompt_tokens - usage->cached_tokens);
    di_put_unsigned(writer, "cache_creation_input_tokens", 0);
    di_put_unsigned(writer, "cache_read_input_tokens", usage->cached_tokens);
    di_put_unsigned(writer, "output_tokens", begins ? 0 : usage->completion_tokens);
    di_put_string(writer, "service_tier", "standard");
    if (!begins) di_put_unsigned(writer, "reasoning_tokens", reply->reasoning_tokens);
    di_json_object_end(writer);
}

static const char *stop_reason(const di_reply_choice *choice) {
    switch (choice->finish) {
    case DI_ANSWER_LENGTH:
        return "max_tokens";
    case DI_ANSWER_TOOL_CALLS:
        return "tool_use";
    default:
        return choice->stop_string ? "stop_sequence" : "end_turn";
    }
}

static void event_end(di_reply *reply, di_json_writer *writer, const char *type) {
    di_json_object_end(writer);
    di_reply_send(reply, type, &reply->scratch);
}

static void write_message_head(const di_reply *reply, di_json_writer *writer) {
    di_put_string(writer, "id", reply->options.id);
    di_put_string(writer, "type", "message");
    di_put_string(writer, "role", "assistant");
    di_put_string(writer, "model", reply->options.model);
}

static void write_origin(const di_reply *reply, di_json_writer *writer) {
    di_put_unsigned(writer, "seed", reply->options.seed);
    di_put_string(writer, "system_fingerprint", reply->options.fingerprint);
}

/* ------------------------------------------------------------------------------------------------------ stream */

static void messages_begin(di_reply *reply) {
    (void)reply;
}

static void messages_prompt(di_reply *reply) {
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, "message_start");
    di_json_key(&writer, "message");
    di_json_object_begin(&writer);
    write_message_head(reply, &writer);
    di_json_key(&writer, "content");
    di_json_array_begin(&writer);
    di_json_array_end(&writer);
    di_put_null(&writer, "stop_reason");
    di_put_null(&writer, "stop_sequence");
    write_usage(reply, &writer, true);
    write_origin(reply, &writer);
    di_json_object_end(&writer);
    event_end(reply, &writer, "message_start");
}

static void delta(di_reply *reply, const di_reply_choice *choice, const char *type, const char *key, const char *text,
                  size_t length) {
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, "content_block_delta");
    di_put_unsigned(&writer, "index", choice->opened - 1);
    di_json_key(&writer, "delta");
    di_json_object_begin(&writer);
    di_put_string(&writer, "type", type);
    di_json_key(&writer, key);
    di_json_string_n(&writer, text, length);
    di_json_object_end(&writer);
    event_end(reply, &writer, "content_block_delta");
}

static void close_block(di_reply *reply, di_reply_choice *choice) {
    if (choice->open == DI_ITEM_NONE) return;
    if (choice->open == DI_ITEM_REASONING) {
        char signature[DI_REPLY_SIGNATURE];
        di_reply_signature(reply, choice, signature);
        delta(reply, choice, "signature_delta", "signature", signature, strlen(signature));
    }
    choice->open = DI_ITEM_NONE;
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, "content_block_stop");
    di_put_unsigned(&writer, "index", choice->opened - 1);
    event_end(reply, &writer, "content_block_stop");
}

static void write_block(di_json_writer *writer, const di_part *part) {
    di_json_object_begin(writer);
    if (part->kind == DI_PART_REASONING) {
        di_put_string(writer, "type", "thinking");
        di_put_string(writer, "thinking", "");
        di_put_string(writer, "signature", "");
    } else if (part->kind == DI_PART_CONTENT) {
        di_put_string(writer, "type", "text");
        di_put_string(writer, "text", "");
    } else {
        di_put_string(writer, "type", "tool_use");
        di_put_string(writer, "id", part->id);
        di_put_string(writer, "name", part->name);
        di_json_key(writer, "input");
        di_json_object_begin(writer);
        di_json_object_end(writer);
    }
    di_json_object_end(writer);
}

static void open_block(di_reply *reply, di_reply_choice *choice, di_reply_item item, const di_part *part) {
    close_block(reply, choice);
    choice->open = item;
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, "content_block_start");
    di_put_unsigned(&writer, "index", choice->opened);
    di_json_key(&writer, "content_block");
    write_block(&writer, part);
    event_end(reply, &writer, "content_block_start");
    if (choice->opened++ == 0) {
        di_reply_event_begin(reply, &writer, "ping");
        event_end(reply, &writer, "ping");
    }
}

static void messages_part(di_reply *reply, di_reply_choice *choice, const di_part *part) {
    switch (part->kind) {
    case DI_PART_REASONING:
        if (!part->length) return;
        if (choice->open != DI_ITEM_REASONING) open_block(reply, choice, DI_ITEM_REASONING, part);
        if (!reply->options.omit_thinking) delta(reply, choice, "thinking_delta", "thinking", part->text, part->length);
        return;
    case DI_PART_CONTENT:
        if (!part->length) return;
        if (choice->open != DI_ITEM_TEXT) open_block(reply, choice, DI_ITEM_TEXT, part);
        delta(reply, choice, "text_delta", "text", part->text, part->length);
        return;
    case DI_PART_CALL_BEGIN:
        open_block(reply, choice, DI_ITEM_CALL, part);
        return;
    case DI_PART_CALL_ARGUMENTS:
        if (part->length) delta(reply, choice, "input_json_delta", "partial_json", part->text, part->length);
        return;
    case DI_PART_CALL_END:
        close_block(reply, choice);
        return;
    }
}

static void messages_finish(di_reply *reply, di_reply_choice *choice) {
    close_block(reply, choice);
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, "message_delta");
    di_json_key(&writer, "delta");
    di_json_object_begin(&writer);
    di_put_string(&writer, "stop_reason", stop_reason(choice));
    di_put_string(&writer, "stop_sequence", choice->stop_string);
    di_json_object_end(&writer);
    write_usage(reply, &writer, false);
    event_end(reply, &writer, "message_delta");
}

static void messages_end(di_reply *reply) {
    di_json_writer writer;
    di_reply_event_begin(reply, &writer, "message_stop");
    event_end(reply, &writer, "message_stop");
}

static void messages_error(di_reply *reply, const di_error *error, int http_status) {
    di_text_clear(&reply->scratch);
    const di_error_parts parts = {http_status, "", error->param, error->message, reply->options.request_id};
    di_error_anthropic(&reply->scratch, &parts);
    di_reply_send(reply, "error", &reply->scratch);
}

/* ------------------------------------------------------------------------------------------------------- whole */

static void write_calls(di_json_writer *writer, const di_answer *answer) {
    for (size_t i = 0; i < answer->call_count; i++) {
        const di_answer_call *call = &answer->calls[i];
        di_json_object_begin(writer);
        di_put_string(writer, "type", "tool_use");
        di_put_string(writer, "id", call->id);
        di_put_string(writer, "name", call->name);
        di_json_key(writer, "input");
        if (call->complete) {
            di_json_raw(writer, call->arguments.data, call->arguments.length);
        } else { /* what was cut off is no JSON: the official service says {}; what was written stands beside it */
            di_json_raw(writer, "{}", 2);
            di_put_text_member(writer, "partial_json", &call->arguments);
        }
        di_json_object_end(writer);
    }
}

static void messages_whole(di_reply *reply) {
    di_reply_choice *choice = &reply->choices[0];
    const di_answer *answer = &choice->answer;
    di_json_writer writer;
    di_json_begin(&writer, &reply->out);
    di_json_object_begin(&writer);
    write_message_head(reply, &writer);
    di_json_key(&writer, "content");
    di_json_array_begin(&writer);
    if (answer->reasoning.length) {
        di_json_object_begin(&writer);
        di_put_string(&writer, "type", "thinking");
        const di_text none = {0};
        di_put_text_member(&writer, "thinking", reply->options.omit_thinking ? &none : &answer->reasoning);
        char signature[DI_REPLY_SIGNATURE];
        di_put_string(&writer, "signature", di_reply_signature(reply, choice, signature));
        di_json_object_end(&writer);
    }
    if (answer->content.length) {
        di_json_object_begin(&writer);
        di_put_string(&writer, "type", "text");
        di_put_text_member(&writer, "text", &answer->content);
        di_json_object_end(&writer);
    }
    write_calls(&writer, answer);
    di_json_array_end(&writer);
    di_put_string(&writer, "stop_reason", stop_reason(choice));
    di_put_string(&writer, "stop_sequence", choice->stop_string);
    write_usage(reply, &writer, false);
    write_origin(reply, &writer);
    di_json_object_end(&writer);
}

const di_reply_form di_reply_messages = {.begin = messages_begin,
                                         .prompt = messages_prompt,
                                         .part = messages_part,
                                         .finish = messages_finish,
                                         .end = messages_end,
                                         .error = messages_error,
                                         .whole = messages_whole};
