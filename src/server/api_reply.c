/* api_reply.c - what the forms of all interfaces share; see api_reply.h. */
#include "server/api_reply.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

static const di_reply_form *const forms[] = {
    [DI_REPLY_CHAT] = &di_reply_chat,
    [DI_REPLY_COMPLETION] = &di_reply_completion,
    [DI_REPLY_MESSAGES] = &di_reply_messages,
    [DI_REPLY_RESPONSES] = &di_reply_responses,
};

di_status di_reply_init(di_reply *reply, const di_reply_options *options, di_error *error) {
    *reply = (di_reply){.options = *options, .form = forms[options->kind]};
    uint32_t count = options->prompts * options->samples;
    reply->choices = calloc(count, sizeof *reply->choices);
    if (!reply->choices) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for %u choices", count);
    reply->choice_count = count;
    for (uint32_t i = 0; i < count; i++) {
        reply->choices[i].index = i;
        di_detokenizer_init(&reply->choices[i].detokenizer, options->tokenizer);
    }
    return DI_OK;
}

void di_reply_free(di_reply *reply) {
    for (uint32_t i = 0; i < reply->choice_count; i++) {
        di_reply_choice *choice = &reply->choices[i];
        di_answer_free(&choice->answer);
        for (int list = 0; list < DI_LIST_COUNT; list++) di_text_free(&choice->lists[list].text);
        free(choice->stop_string);
    }
    free(reply->choices);
    di_text_free(&reply->out);
    di_text_free(&reply->scratch);
    memset(reply, 0, sizeof *reply);
}

bool di_reply_failed(const di_reply *reply) {
    bool failed = reply->failed || reply->out.failed || reply->scratch.failed;
    for (uint32_t i = 0; i < reply->choice_count && !failed; i++) {
        const di_reply_choice *choice = &reply->choices[i];
        failed = choice->answer.failed || choice->answer.content.failed || choice->answer.reasoning.failed;
        for (int list = 0; list < DI_LIST_COUNT; list++) failed |= choice->lists[list].text.failed;
    }
    return failed;
}

/* ------------------------------------------------------------------------------------------------------ lists */

/* Begins a new value of a list. */
static di_text *add_value(di_reply_choice *choice, di_reply_list_id id) {
    di_text *text = &choice->lists[id].text;
    if (text->length) di_text_putc(text, ',');
    return text;
}

void di_reply_write_list(di_json_writer *writer, di_reply_list *list, bool unsent) {
    size_t from = unsent ? list->sent : 0;
    if (from && from < list->text.length) from++; /* the comma */
    di_json_array_begin(writer);
    if (list->text.length > from) di_json_raw(writer, list->text.data + from, list->text.length - from);
    di_json_array_end(writer);
    list->sent = list->text.length;
}

bool di_reply_has_unsent(const di_reply_list *list) {
    return list->text.length > list->sent;
}

/* --------------------------------------------------------------------------------------------------- logprobs */

static void write_logprob(di_json_writer *writer, float value) {
    if (isnan(value))
        di_json_null(writer);
    else
        di_json_float(writer, value < -9999.0F ? -9999.0F : value);
}

/* "token", "logprob", "bytes": a piece of a character has U+FFFD in its text, and its bytes tell the truth. */
static void write_token(const di_reply *reply, di_json_writer *writer, int32_t id, float logprob) {
    size_t length = 0;
    const char *bytes = di_tokenizer_bytes(reply->options.tokenizer, id, &length);
    di_json_key(writer, "token");
    di_json_string_n(writer, bytes ? bytes : "", length);
    di_json_key(writer, "logprob");
    write_logprob(writer, logprob);
    di_json_key(writer, "bytes");
    di_json_array_begin(writer);
    for (size_t i = 0; bytes && i < length; i++) di_json_unsigned(writer, (unsigned char)bytes[i]);
    di_json_array_end(writer);
}

static void add_chat_logprob(di_reply *reply, di_reply_choice *choice, const di_event *event, bool reasoning) {
    di_json_writer writer;
    di_json_begin(&writer, add_value(choice, reasoning ? DI_LIST_REASONING : DI_LIST_CONTENT));
    di_json_object_begin(&writer);
    write_token(reply, &writer, event->token_id, event->logprob);
    di_json_key(&writer, "top_logprobs");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < event->top_count; i++) {
        di_json_object_begin(&writer);
        write_token(reply, &writer, event->top[i].token_id, event->top[i].logprob);
        di_json_object_end(&writer);
    }
    di_json_array_end(&writer);
    di_json_object_end(&writer);
}

/* A token as the lists of completions show it, where it is a key: each has a name of its own. A piece of a character
 * is "bytes:\xe6\xbc", as OpenAI writes it. */
static const di_text *spell_token(di_reply *reply, int32_t id) {
    di_text *out = &reply->scratch;
    size_t length = 0;
    const char *bytes = di_tokenizer_bytes(reply->options.tokenizer, id, &length);
    di_text_clear(out);
    if (!bytes) {
        di_text_printf(out, "token_id:%d", id);
    } else if (di_utf8_validate(bytes, length) == length) {
        di_text_append(out, bytes, length);
    } else {
        di_text_puts(out, "bytes:");
        for (size_t i = 0; i < length; i++) di_text_printf(out, "\\x%02x", (unsigned)(unsigned char)bytes[i]);
    }
    return out;
}

/* Takes what became certain of the text. */
static void count_characters(di_reply_choice *choice, const di_text *text) {
    for (size_t i = 0; i < text->length; i++) choice->text_offset += ((unsigned char)text->data[i] & 0xC0) != 0x80;
}

static bool has_text(const di_reply *reply, const di_event *event) {
    const di_reply_options *options = &reply->options;
    if (event->kind == DI_EVENT_PROMPT_TOKEN) return event->position > 0 || event->token_id != options->bos;
    for (size_t i = 0; i < options->eos_count; i++)
        if (options->eos[i] == event->token_id) return false;
    return true;
}

/* Where the token's text begins, in characters of the text; a character counts with the token that completes it. */
static void add_offset(di_reply *reply, di_reply_choice *choice, const di_event *event) {
    di_text *text = &reply->scratch;
    di_json_writer writer;
    di_text_clear(text);
    bool begins = event->kind == DI_EVENT_TOKEN && !choice->tokens; /* the prompt before it was a text of its own */
    if (begins) di_detokenizer_flush(&choice->detokenizer, text);
    count_characters(choice, text);
    di_json_begin(&writer, add_value(choice, DI_LIST_OFFSETS));
    di_json_unsigned(&writer, choice->text_offset);
    di_text_clear(text);
    if (has_text(reply, event)) (void)di_detokenizer_push(&choice->detokenizer, event->token_id, text, NULL);
    count_characters(choice, text);
}

static void write_name(di_json_writer *writer, const di_text *name, bool key) {
    (key ? di_json_key_n : di_json_string_n)(writer, name->data ? name->data : "", name->length);
}

static void add_completion_logprob(di_reply *reply, di_reply_choice *choice, const di_event *event) {
    di_json_writer writer;
    add_offset(reply, choice, event);
    di_json_begin(&writer, add_value(choice, DI_LIST_TOKENS));
    write_name(&writer, spell_token(reply, event->token_id), false);
    di_json_begin(&writer, add_value(choice, DI_LIST_LOGPROBS));
    write_logprob(&writer, event->logprob);

    di_json_begin(&writer, add_value(choice, DI_LIST_TOP));
    if (isnan(event->logprob)) {
        di_json_null(&writer);
        return;
    }
    bool listed = false;
    di_json_object_begin(&writer);
    for (size_t i = 0; i <= event->top_count; i++) { /* the token itself last, if it is not among the best */
        bool best = i < event->top_count;
        if (!best && listed) break;
        int32_t id = best ? event->top[i].token_id : event->token_id;
        listed |= id == event->token_id;
        write_name(&writer, spell_token(reply, id), true);
        write_logprob(&writer, best ? event->top[i].logprob : event->logprob);
    }
    di_json_object_end(&writer);
}

/* ----------------------------------------------------------------------------------------------------- drafts */

static void write_draft_ids(const di_reply *reply, di_json_writer *writer, const di_draft_record *record) {
    di_json_key(writer, "drafted");
    di_json_array_begin(writer);
    for (size_t i = 0; i < record->count; i++) di_json_integer(writer, record->token_ids[i]);
    di_json_array_end(writer);
    di_json_key(writer, "drafted_text");
    di_json_array_begin(writer);
    for (size_t i = 0; i < record->count && reply->options.tokenizer; i++) {
        size_t length = 0;
        const char *bytes = di_tokenizer_bytes(reply->options.tokenizer, record->token_ids[i], &length);
        di_json_string_n(writer, bytes ? bytes : "", length);
    }
    di_json_array_end(writer);
}

/* What became of the drafts of one step. */
static void add_drafts(di_reply *reply, di_reply_choice *choice, const di_draft_record *record) {
    di_json_writer writer;
    di_json_begin(&writer, add_value(choice, DI_LIST_DRAFTS));
    di_json_object_begin(&writer);
    di_json_key(&writer, "position");
    di_json_integer(&writer, record->position);
    di_put_unsigned(&writer, "index", choice->tokens);
    write_draft_ids(reply, &writer, record);
    di_put_unsigned(&writer, "accepted", record->accepted);
    di_json_key(&writer, "confidence");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < record->count && record->confidence; i++) di_json_float(&writer, record->confidence[i]);
    di_json_array_end(&writer);
    di_json_object_end(&writer);
}

/* ----------------------------------------------------------------------------------------------------- events */

void di_reply_begin(di_reply *reply) {
    if (reply->options.stream) reply->form->begin(reply);
}

void di_reply_prompt(di_reply *reply) {
    if (reply->options.stream && reply->form->prompt) reply->form->prompt(reply);
}

void di_reply_token(di_reply *reply, uint32_t index, const di_event *event, bool reasoning) {
    di_reply_choice *choice = &reply->choices[index];
    const di_reply_options *options = &reply->options;
    if (options->logprobs >= 0 && options->kind == DI_REPLY_COMPLETION) add_completion_logprob(reply, choice, event);
    bool chat = options->kind == DI_REPLY_CHAT && !(reasoning && options->hide_reasoning);
    /* A response's are those of its message, which ends where calls begin. */
    bool response = options->kind == DI_REPLY_RESPONSES && !reasoning && !choice->answer.call_count;
    if (options->logprobs >= 0 && (chat || response)) add_chat_logprob(reply, choice, event, reasoning);
    if (event->kind != DI_EVENT_TOKEN) return;
    if (options->token_ids) di_text_printf(add_value(choice, DI_LIST_IDS), "%d", event->token_id);
    if (options->draft_records && event->drafts.count) add_drafts(reply, choice, &event->drafts);
    choice->tokens++;
}

void di_reply_part(di_reply *reply, uint32_t index, const di_part *part) {
    di_reply_choice *choice = &reply->choices[index];
    const di_reply_options *options = &reply->options;
    bool call = part->kind != DI_PART_CONTENT && part->kind != DI_PART_REASONING;
    if (part->kind == DI_PART_REASONING && options->hide_reasoning) return;
    if (call && options->one_call && part->call > 0) return;
    di_answer_take(&choice->answer, part);
    if (options->stream) reply->form->part(reply, choice, part);
}

void di_reply_finish(di_reply *reply, uint32_t index, di_answer_finish finish, const di_event *event,
                     uint64_t reasoning_tokens) {
    di_reply_choice *choice = &reply->choices[index];
    if (event->stop_string) {
        size_t length = strlen(event->stop_string);
        choice->stop_string = malloc(length + 1);
        if (choice->stop_string)
            memcpy(choice->stop_string, event->stop_string, length + 1);
        else
            reply->failed = true;
        if (reply->options.stop_in_text)
            di_reply_part(reply, index,
                          &(di_part){.kind = DI_PART_CONTENT, .text = event->stop_string, .length = length});
    }
    choice->finished = true;
    choice->finish = finish;
    choice->stop_token_id = event->stop_token_id;
    choice->has_hash = event->has_logits_hash;
    choice->hash = event->logits_hash;
    choice->reasoning_tokens = reasoning_tokens;
    reply->reasoning_tokens += reasoning_tokens;
    reply->finished++;
    if (reply->options.stream) reply->form->finish(reply, choice);
}

void di_reply_end(di_reply *reply) {
    if (reply->options.stream)
        reply->form->end(reply);
    else
        reply->form->whole(reply);
}

void di_reply_error(di_reply *reply, const di_error *error, int http_status) {
    reply->form->error(reply, error, http_status);
}

/* --------------------------------------------------------------------------------------------- shared writing */

void di_reply_event_begin(di_reply *reply, di_json_writer *writer, const char *type) {
    di_text_clear(&reply->scratch);
    di_json_begin(writer, &reply->scratch);
    di_json_object_begin(writer);
    di_put_string(writer, "type", type);
}

void di_reply_send(di_reply *reply, const char *event, const di_text *json) {
    if (event) di_text_printf(&reply->out, "event: %s\n", event);
    di_text_puts(&reply->out, "data: ");
    if (json->data) di_text_append(&reply->out, json->data, json->length);
    di_text_puts(&reply->out, "\n\n");
    if (json->failed) reply->failed = true;
}

const char *di_reply_signature(const di_reply *reply, const di_reply_choice *choice, char text[DI_REPLY_SIGNATURE]) {
    const char *fingerprint = reply->options.fingerprint ? reply->options.fingerprint : "";
    const di_text *reasoning = &choice->answer.reasoning;
    XXH64_hash_t seed = XXH64(fingerprint, strlen(fingerprint), 0);
    XXH128_hash_t hash = XXH3_128bits_withSeed(reasoning->data ? reasoning->data : "", reasoning->length, seed);
    snprintf(text, DI_REPLY_SIGNATURE, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return text;
}

/* How many drafts there were depends on time, so only who asks for drafts is told: other answers have equal bytes. */
void di_reply_write_usage(const di_reply *reply, di_json_writer *writer) {
    const di_usage *usage = &reply->usage;
    di_json_object_begin(writer);
    di_put_unsigned(writer, "prompt_tokens", usage->prompt_tokens);
    di_put_unsigned(writer, "completion_tokens", usage->completion_tokens);
    di_put_unsigned(writer, "total_tokens", usage->prompt_tokens + usage->completion_tokens);
    di_json_key(writer, "prompt_tokens_details");
    di_json_object_begin(writer);
    di_put_unsigned(writer, "cached_tokens", usage->cached_tokens);
    di_json_object_end(writer);
    di_json_key(writer, "completion_tokens_details");
    di_json_object_begin(writer);
    di_put_unsigned(writer, "reasoning_tokens", reply->reasoning_tokens);
    if (reply->options.draft_records) {
        di_put_unsigned(writer, "accepted_prediction_tokens", usage->accepted_draft_tokens);
        di_put_unsigned(writer, "rejected_prediction_tokens", usage->draft_tokens - usage->accepted_draft_tokens);
    }
    di_json_object_end(writer);
    di_put_unsigned(writer, "prompt_cache_hit_tokens", usage->cached_tokens);
    di_put_unsigned(writer, "prompt_cache_miss_tokens", usage->prompt_tokens - usage->cached_tokens);
    if (reply->options.draft_records) {
        di_put_unsigned(writer, "draft_tokens", usage->draft_tokens);
        di_put_unsigned(writer, "accepted_draft_tokens", usage->accepted_draft_tokens);
    }
    di_json_object_end(writer);
}

/* ----------------------------------------------------------------------------------------------------- errors */

const char *di_api_error_code(di_status status) {
    switch (status) {
    case DI_ERR_INVALID_ARGUMENT:
    case DI_ERR_FORMAT:
    case DI_ERR_UNSUPPORTED:
        return "invalid_request_error";
    case DI_ERR_NOT_FOUND:
        return "model_not_found";
    default:
        return di_status_name(status);
    }
}

const char *di_anthropic_error_type(int http_status) {
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {402, "billing_error"},     {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"}, {429, "rate_limit_error"},
                 {503, "overloaded_error"},     {504, "timeout_error"},     {505, "invalid_request_error"},
                 {529, "overloaded_error"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].status == http_status) return types[i].type;
    return http_status < 500 ? "invalid_request_error" : "api_error";
}

/* The message says which field it means. */
static bool names_field(const char *message, const char *param) {
    char field[64];
    size_t length = strcspn(param, ".[");
    if (length >= sizeof field) return false;
    memcpy(field, param, length);
    field[length] = '\0';
    return strstr(message, field) != NULL;
}

void di_error_anthropic(di_text *body, const di_error_parts *parts) {
    const char *param = parts->param;
    di_json_writer writer;
    di_json_begin(&writer, body);
    di_json_object_begin(&writer);
    di_put_string(&writer, "type", "error");
    di_json_key(&writer, "error");
    di_json_object_begin(&writer);
    di_put_string(&writer, "type", di_anthropic_error_type(parts->http_status));
    di_json_key(&writer, "message");
    if (param && *param && !names_field(parts->message, param)) { /* there is no other place for the field's name */
        di_text text = {0};
        di_text_printf(&text, "%s: %s", param, parts->message);
        di_json_string(&writer, text.data ? text.data : parts->message);
        di_text_free(&text);
    } else {
        di_json_string(&writer, parts->message);
    }
    if (param && strcmp(param, "thread") == 0) { /* what makes official clients go on without */
        di_json_key(&writer, "details");
        di_json_object_begin(&writer);
        di_put_string(&writer, "error_code", "thread_unsupported_request");
        di_json_key(&writer, "unsupported");
        di_json_raw(&writer, "[\"thread\"]", strlen("[\"thread\"]"));
        di_json_object_end(&writer);
    }
    di_json_object_end(&writer);
    di_put_string(&writer, "request_id", parts->request_id);
    di_json_object_end(&writer);
}
