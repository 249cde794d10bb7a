/* api_chat.c - answers of /v1/chat/completions and /v1/completions; see api_reply.h. */
#include "server/api_reply.h"

/* Members that every object begins with. */
static void write_head(const di_reply *reply, di_json_writer *writer, const char *object) {
    const di_reply_options *options = &reply->options;
    di_put_string(writer, "id", options->id);
    di_put_string(writer, "object", object);
    di_json_key(writer, "created");
    di_json_integer(writer, options->created);
    di_put_string(writer, "model", options->model);
}

static void write_finish(di_json_writer *writer, const di_reply_choice *choice) {
    if (!choice->finished) {
        di_put_null(writer, "finish_reason");
        return;
    }
    di_put_string(writer, "finish_reason", di_answer_finish_name(choice->finish));
    di_json_key(writer, "stop_reason"); /* the string or the id of stop_token_ids that ended it */
    if (choice->stop_string)
        di_json_string(writer, choice->stop_string);
    else if (choice->stop_token_id >= 0)
        di_json_integer(writer, choice->stop_token_id);
    else
        di_json_null(writer);
}

static void write_extras(const di_reply *reply, di_json_writer *writer, di_reply_choice *choice, bool unsent) {
    if (reply->options.token_ids) {
        di_json_key(writer, "token_ids");
        di_reply_write_list(writer, &choice->lists[DI_LIST_IDS], unsent);
    }
    di_reply_list *drafts = &choice->lists[DI_LIST_DRAFTS];
    if (reply->options.draft_records && (!unsent || di_reply_has_unsent(drafts))) {
        di_json_key(writer, "drafts");
        di_reply_write_list(writer, drafts, unsent);
    }
    if (choice->finished && choice->has_hash) {
        char hash[16];
        static const char digits[] = "0123456789abcdef";
        for (int i = 0; i < 16; i++) hash[i] = digits[choice->hash >> (60 - 4 * i) & 15];
        di_json_key(writer, "logits_hash");
        di_json_string_n(writer, hash, 16);
    }
}

static void write_prompt_ids(const di_reply *reply, di_json_writer *writer, uint32_t prompt) {
    if (!reply->options.token_ids) return;
    const di_ids *ids = &reply->options.prompt_ids[prompt];
    di_json_key(writer, "prompt_token_ids");
    di_json_array_begin(writer);
    for (size_t i = 0; i < ids->count; i++) di_json_integer(writer, ids->data[i]);
    di_json_array_end(writer);
}

/* Seed and usage: in the chunk in which the last choice ends, in the chunk that was asked for, and in whole answers. */
static void write_accounts(const di_reply *reply, di_json_writer *writer) {
    di_json_key(writer, "usage");
    di_reply_write_usage(reply, writer);
    di_put_unsigned(writer, "seed", reply->options.seed);
}

/* What stands behind the choices of a chunk. */
static void write_chunk_tail(const di_reply *reply, di_json_writer *writer) {
    bool last = reply->finished == reply->choice_count;
    if (last) {
        write_accounts(reply, writer);
    } else if (reply->options.continuous_usage) {
        di_json_key(writer, "usage");
        di_reply_write_usage(reply, writer);
    } else if (reply->options.include_usage) {
        di_put_null(writer, "usage");
    }
}

static void send_usage_and_done(di_reply *reply, const char *object) {
    di_text *text = &reply->scratch;
    if (reply->options.include_usage) {
        di_json_writer writer;
        di_text_clear(text);
        di_json_begin(&writer, text);
        di_json_object_begin(&writer);
        write_head(reply, &writer, object);
        di_put_string(&writer, "system_fingerprint", reply->options.fingerprint);
        di_json_key(&writer, "choices");
        di_json_array_begin(&writer);
        di_json_array_end(&writer);
        write_accounts(reply, &writer);
        di_json_object_end(&writer);
        di_reply_send(reply, NULL, text);
    }
    di_text_puts(&reply->out, "data: [DONE]\n\n");
}

static void openai_error(di_reply *reply, const di_error *error, int http_status) {
    di_text *text = &reply->scratch;
    di_json_writer writer;
    di_text_clear(text);
    di_json_begin(&writer, text);
    di_json_object_begin(&writer);
    di_json_key(&writer, "error");
    di_json_object_begin(&writer);
    di_put_string(&writer, "message", error->message);
    di_put_string(&writer, "type", http_status < 500 ? "invalid_request_error" : "server_error");
    di_put_string(&writer, "param", error->param[0] ? error->param : NULL);
    di_put_string(&writer, "code", di_api_error_code(error->status));
    di_json_object_end(&writer);
    di_json_object_end(&writer);
    di_reply_send(reply, NULL, text);
    di_text_puts(&reply->out, "data: [DONE]\n\n");
}

/* ------------------------------------------------------------------------------------------------- chat stream */

/* A chunk is begun up to the members of its delta, and ended behind them. */
static void chunk_begin(di_reply *reply, const di_reply_choice *choice, di_json_writer *writer) {
    di_text_clear(&reply->scratch);
    di_json_begin(writer, &reply->scratch);
    di_json_object_begin(writer);
    write_head(reply, writer, "chat.completion.chunk");
    di_put_string(writer, "system_fingerprint", reply->options.fingerprint);
    di_json_key(writer, "choices");
    di_json_array_begin(writer);
    di_json_object_begin(writer);
    di_put_unsigned(writer, "index", choice->index);
    di_json_key(writer, "delta");
    di_json_object_begin(writer);
}

static bool has_reasoning(const di_reply *reply) {
    return reply->options.thinking && !reply->options.hide_reasoning;
}

/* Log-probabilities that did not go out yet. */
static void write_chat_logprobs(const di_reply *reply, di_json_writer *writer, di_reply_choice *choice, bool unsent) {
    di_reply_list *content = &choice->lists[DI_LIST_CONTENT], *reasoning = &choice->lists[DI_LIST_REASONING];
    di_json_key(writer, "logprobs");
    bool any = di_reply_has_unsent(content) || di_reply_has_unsent(reasoning) || !unsent;
    if (reply->options.logprobs < 0 || !any) {
        di_json_null(writer);
        return;
    }
    di_json_object_begin(writer);
    di_json_key(writer, "content");
    di_reply_write_list(writer, content, unsent);
    if (has_reasoning(reply)) {
        di_json_key(writer, "reasoning_content");
        di_reply_write_list(writer, reasoning, unsent);
    }
    di_json_object_end(writer);
}

static void chunk_end(di_reply *reply, di_reply_choice *choice, di_json_writer *writer) {
    di_json_object_end(writer);
    write_chat_logprobs(reply, writer, choice, true);
    write_finish(writer, choice);
    write_extras(reply, writer, choice, true);
    di_json_object_end(writer);
    di_json_array_end(writer);
    write_chunk_tail(reply, writer);
    di_json_object_end(writer);
    di_reply_send(reply, NULL, &reply->scratch);
}

static void chat_begin(di_reply *reply) {
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        di_reply_choice *choice = &reply->choices[i];
        di_json_writer writer;
        chunk_begin(reply, choice, &writer);
        di_put_string(&writer, "role", "assistant");
        di_put_string(&writer, "content", has_reasoning(reply) ? NULL : "");
        if (has_reasoning(reply)) di_put_string(&writer, "reasoning_content", "");
        chunk_end(reply, choice, &writer);
    }
}

static void write_call_delta(di_json_writer *writer, const di_part *part) {
    bool begins = part->kind == DI_PART_CALL_BEGIN;
    di_json_key(writer, "tool_calls");
    di_json_array_begin(writer);
    di_json_object_begin(writer);
    di_put_unsigned(writer, "index", part->call);
    if (begins) {
        di_put_string(writer, "id", part->id);
        di_put_string(writer, "type", "function");
    }
    di_json_key(writer, "function");
    di_json_object_begin(writer);
    if (begins) di_put_string(writer, "name", part->name);
    di_json_key(writer, "arguments");
    di_json_string_n(writer, begins ? "" : part->text, begins ? 0 : part->length);
    di_json_object_end(writer);
    di_json_object_end(writer);
    di_json_array_end(writer);
}

static void chat_part(di_reply *reply, di_reply_choice *choice, const di_part *part) {
    if (part->kind == DI_PART_CALL_END || (part->kind != DI_PART_CALL_BEGIN && !part->length)) return;
    di_json_writer writer;
    chunk_begin(reply, choice, &writer);
    if (part->kind == DI_PART_CONTENT || part->kind == DI_PART_REASONING) {
        bool content = part->kind == DI_PART_CONTENT;
        di_json_key(&writer, "content");
        if (content)
            di_json_string_n(&writer, part->text, part->length);
        else
            di_json_null(&writer);
        if (!content) {
            di_json_key(&writer, "reasoning_content");
            di_json_string_n(&writer, part->text, part->length);
        } else if (has_reasoning(reply)) {
            di_put_null(&writer, "reasoning_content");
        }
    } else {
        write_call_delta(&writer, part);
    }
    chunk_end(reply, choice, &writer);
}

static void chat_finish(di_reply *reply, di_reply_choice *choice) {
    di_json_writer writer;
    chunk_begin(reply, choice, &writer);
    di_put_string(&writer, "content", "");
    if (has_reasoning(reply)) di_put_null(&writer, "reasoning_content");
    chunk_end(reply, choice, &writer);
}

static void chat_end(di_reply *reply) {
    send_usage_and_done(reply, "chat.completion.chunk");
}

/* -------------------------------------------------------------------------------------------------- chat whole */

static void write_message(const di_reply *reply, di_json_writer *writer, const di_answer *answer) {
    di_json_object_begin(writer);
    di_put_string(writer, "role", "assistant");
    di_put_text_member(writer, "content", &answer->content);
    if (has_reasoning(reply)) di_put_text_member(writer, "reasoning_content", &answer->reasoning);
    if (answer->call_count) {
        di_json_key(writer, "tool_calls");
        di_json_array_begin(writer);
        for (size_t i = 0; i < answer->call_count; i++) {
            const di_answer_call *call = &answer->calls[i];
            di_json_object_begin(writer);
            di_put_unsigned(writer, "index", i);
            di_put_string(writer, "id", call->id);
            di_put_string(writer, "type", "function");
            di_json_key(writer, "function");
            di_json_object_begin(writer);
            di_put_string(writer, "name", call->name);
            di_put_text_member(writer, "arguments", &call->arguments);
            di_json_object_end(writer);
            di_json_object_end(writer);
        }
        di_json_array_end(writer);
    }
    di_json_object_end(writer);
}

static void chat_whole(di_reply *reply) {
    di_json_writer writer;
    di_json_begin(&writer, &reply->out);
    di_json_object_begin(&writer);
    write_head(reply, &writer, "chat.completion");
    di_json_key(&writer, "choices");
    di_json_array_begin(&writer);
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        di_reply_choice *choice = &reply->choices[i];
        di_json_object_begin(&writer);
        di_put_unsigned(&writer, "index", i);
        di_json_key(&writer, "message");
        write_message(reply, &writer, &choice->answer);
        write_chat_logprobs(reply, &writer, choice, false);
        write_finish(&writer, choice);
        write_extras(reply, &writer, choice, false);
        di_json_object_end(&writer);
    }
    di_json_array_end(&writer);
    write_accounts(reply, &writer);
    di_put_string(&writer, "system_fingerprint", reply->options.fingerprint);
    write_prompt_ids(reply, &writer, 0);
    di_json_object_end(&writer);
}

const di_reply_form di_reply_chat = {.begin = chat_begin,
                                     .part = chat_part,
                                     .finish = chat_finish,
                                     .end = chat_end,
                                     .error = openai_error,
                                     .whole = chat_whole};

/* ------------------------------------------------------------------------------------------------- completions */

static void write_completion_logprobs(const di_reply *reply, di_json_writer *writer, di_reply_choice *choice,
                                      bool unsent) {
    di_json_key(writer, "logprobs");
    if (reply->options.logprobs < 0 || (unsent && !di_reply_has_unsent(&choice->lists[DI_LIST_TOKENS]))) {
        di_json_null(writer);
        return;
    }
    static const struct {
        const char *key;
        di_reply_list_id list;
    } members[] = {{"tokens", DI_LIST_TOKENS},
                   {"token_logprobs", DI_LIST_LOGPROBS},
                   {"top_logprobs", DI_LIST_TOP},
                   {"text_offset", DI_LIST_OFFSETS}};
    di_json_object_begin(writer);
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        di_json_key(writer, members[i].key);
        di_reply_write_list(writer, &choice->lists[members[i].list], unsent);
    }
    di_json_object_end(writer);
}

static void write_completion_choice(di_reply *reply, di_json_writer *writer, di_reply_choice *choice, const char *text,
                                    size_t length, bool unsent) {
    di_json_object_begin(writer);
    di_put_unsigned(writer, "index", choice->index);
    di_json_key(writer, "text");
    di_json_string_n(writer, text, length);
    write_completion_logprobs(reply, writer, choice, unsent);
    write_finish(writer, choice);
    write_extras(reply, writer, choice, unsent);
    if (!unsent || choice->finished) write_prompt_ids(reply, writer, choice->index / reply->options.samples);
    di_json_object_end(writer);
}

static void completion_chunk(di_reply *reply, di_reply_choice *choice, const char *text, size_t length) {
    di_json_writer writer;
    di_text_clear(&reply->scratch);
    di_json_begin(&writer, &reply->scratch);
    di_json_object_begin(&writer);
    write_head(reply, &writer, "text_completion");
    di_put_string(&writer, "system_fingerprint", reply->options.fingerprint);
    di_json_key(&writer, "choices");
    di_json_array_begin(&writer);
    write_completion_choice(reply, &writer, choice, text, length, true);
    di_json_array_end(&writer);
    write_chunk_tail(reply, &writer);
    di_json_object_end(&writer);
    di_reply_send(reply, NULL, &reply->scratch);
}

static void completion_begin(di_reply *reply) {
    (void)reply;
}

static void completion_part(di_reply *reply, di_reply_choice *choice, const di_part *part) {
    if (part->length) completion_chunk(reply, choice, part->text, part->length);
}

static void completion_finish(di_reply *reply, di_reply_choice *choice) {
    completion_chunk(reply, choice, "", 0);
}

static void completion_end(di_reply *reply) {
    send_usage_and_done(reply, "text_completion");
}

static void completion_whole(di_reply *reply) {
    di_json_writer writer;
    di_json_begin(&writer, &reply->out);
    di_json_object_begin(&writer);
    write_head(reply, &writer, "text_completion");
    di_json_key(&writer, "choices");
    di_json_array_begin(&writer);
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        di_reply_choice *choice = &reply->choices[i];
        const di_text *text = &choice->answer.content;
        write_completion_choice(reply, &writer, choice, text->data ? text->data : "", text->length, false);
    }
    di_json_array_end(&writer);
    write_accounts(reply, &writer);
    di_put_string(&writer, "system_fingerprint", reply->options.fingerprint);
    di_json_object_end(&writer);
}

const di_reply_form di_reply_completion = {.begin = completion_begin,
                                           .part = completion_part,
                                           .finish = completion_finish,
                                           .end = completion_end,
                                           .error = openai_error,
                                           .whole = completion_whole};
