/* Requests of every flavour: what they have in common. */
#include "recipe/recipe_internal.h"

#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------- errors */

di_field_path di_path(const char *format, ...) {
    di_field_path path;
    va_list list;
    va_start(list, format);
    vsnprintf(path.text, sizeof path.text, format, list);
    va_end(list);
    return path;
}

di_status di_bad_type(di_field_path path, const char *wanted, const di_json *value, di_error *error) {
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, path.text, "%s must be %s, not %s", path.text, wanted,
                   value ? di_json_type_name(value->type) : "absent");
}

bool di_is_absent(const di_json *value) {
    return !value || value->type == DI_JSON_NULL;
}

bool di_one_of(const di_json *value, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (di_json_string_is(value, names[i])) return true;
    return false;
}

di_status di_reader_memory(di_reader *r) {
    return di_fail(r->error, DI_ERR_MEMORY, NULL, "out of memory for a request");
}

/* ---------------------------------------------------------------------------------------------- pieces */

di_message *di_reader_add(di_reader *r, di_role role, size_t origin) {
    if (r->count == r->capacity) {
        size_t capacity = r->capacity ? 2 * r->capacity : 16;
        di_message *messages = di_arena_array(r->arena, capacity, sizeof *messages);
        size_t *origins = di_arena_array(r->arena, capacity, sizeof *origins);
        if (!messages || !origins) {
            di_reader_memory(r);
            return NULL;
        }
        if (r->count) {
            memcpy(messages, r->messages, r->count * sizeof *messages);
            memcpy(origins, r->origins, r->count * sizeof *origins);
        }
        r->messages = messages;
        r->origins = origins;
        r->capacity = capacity;
    }
    di_message *message = &r->messages[r->count];
    *message = (di_message){.role = role};
    r->origins[r->count++] = origin;
    return message;
}

di_status di_read_name(di_reader *r, const di_json *object, const char *member, di_field_path path, bool required,
                       const char **text) {
    const di_json *value = di_json_get(object, member);
    *text = NULL;
    if (di_is_absent(value) && !required) return DI_OK;
    if (!value || value->type != DI_JSON_STRING) return di_bad_type(path, "a string", value, r->error);
    if (strlen(value->text) != value->length)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s must not hold a zero byte", path.text);
    *text = value->text;
    return DI_OK;
}

di_status di_read_text(di_reader *r, const char *text, size_t length, const di_content **content, size_t *count) {
    di_content *piece = di_arena_zalloc(r->arena, sizeof *piece);
    if (!piece) return di_reader_memory(r);
    *piece = (di_content){DI_CONTENT_TEXT, text, length};
    *content = piece;
    *count = 1;
    return DI_OK;
}

di_status di_read_image(di_reader *r, di_field_path path, const di_json *url, di_content *content) {
    if (!url || url->type != DI_JSON_STRING)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s: an image needs a URL or data", path.text);
    if (!r->options->images)
        return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text,
                       "%s: images are not available in this version, only text", path.text);
    *content = (di_content){DI_CONTENT_IMAGE, url->text, url->length};
    return DI_OK;
}

di_status di_read_arguments(di_reader *r, const di_json *value, di_field_path path, di_tool_call *call) {
    if (value && value->type == DI_JSON_OBJECT) {
        call->arguments = value;
        return DI_OK;
    }
    if (!value || value->type != DI_JSON_STRING)
        return di_bad_type(path, "a string of JSON or an object", value, r->error);
    const di_json *parsed = NULL;
    bool valid = di_json_parse(r->arena, value->text, value->length, 0, &parsed, NULL) == DI_OK;
    if (valid && parsed->type == DI_JSON_OBJECT) {
        call->arguments = parsed;
        return DI_OK;
    }
    call->raw = value->text;
    call->raw_length = value->length;
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- options */

di_status di_read_effort(di_reader *r, const di_json *effort, di_field_path path) {
    if (di_is_absent(effort)) return DI_OK;
    bool readable = effort->type == DI_JSON_STRING || effort->type == DI_JSON_NUMBER;
    if (!readable || strlen(effort->text) != effort->length)
        return di_bad_type(path, "a string or an integer", effort, r->error);
    r->options->thinking = true;
    di_error inner = {0};
    di_status status = di_recipe_effort_parse(effort->text, r->options, &inner);
    return status == DI_OK ? DI_OK : di_fail(r->error, status, path.text, "%s", inner.message);
}

di_status di_read_thinking(di_reader *r, const di_json *thinking) {
    if (di_is_absent(thinking)) return DI_OK;
    const di_json *type = thinking->type == DI_JSON_OBJECT ? di_json_get(thinking, "type") : NULL;
    if (thinking->type == DI_JSON_TRUE || di_json_string_is(type, "enabled") || di_json_string_is(type, "adaptive"))
        r->options->thinking = true;
    else if (thinking->type == DI_JSON_FALSE || di_json_string_is(type, "disabled"))
        r->options->thinking = false;
    else
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "thinking",
                       "thinking must be true, false or {\"type\": \"enabled\" | \"disabled\" | \"adaptive\"}");
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- checks */

/* True if `text` holds "json" in any case. */
static bool names_json(const char *text, size_t length) {
    static const char word[] = "json";
    for (size_t i = 0; i + 4 <= length; i++) {
        size_t same = 0;
        while (same < 4 && ((unsigned char)text[i + same] | 0x20u) == (unsigned char)word[same]) same++;
        if (same == 4) return true;
    }
    return false;
}

static di_status check_json_word(const di_reader *r) {
    if (r->conversation->format != DI_FORMAT_JSON_OBJECT) return DI_OK;
    for (size_t i = 0; i < r->count; i++)
        for (size_t k = 0; k < r->messages[i].content_count; k++) {
            const di_content *piece = &r->messages[i].content[k];
            if (piece->kind == DI_CONTENT_TEXT && names_json(piece->text, piece->length)) return DI_OK;
        }
    if (r->flavour == DI_FLAVOUR_RESPONSES)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "text.format",
                       "Response input messages must contain the word 'json' in some form to use 'text.format' of type "
                       "'json_object'.");
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "response_format",
                   "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.");
}

/* ---------------------------------------------------------------------------------------------- entry */

di_status di_recipe_parse_request(di_arena *arena, di_flavour flavour, const di_json *request,
                                  di_conversation *conversation, di_recipe_options *options, di_error *error) {
    di_reader r = {.arena = arena,
                   .request = request,
                   .flavour = flavour,
                   .conversation = conversation,
                   .options = options,
                   .error = error};
    *conversation = (di_conversation){0};
    if (request->type != DI_JSON_OBJECT)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, NULL, "a request is an object, not %s",
                       di_json_type_name(request->type));
    di_status status = di_read_tools(&r);
    if (status == DI_OK) status = di_read_choice(&r);
    if (status == DI_OK)
        status = flavour == DI_FLAVOUR_CHAT       ? di_request_chat(&r)
                 : flavour == DI_FLAVOUR_MESSAGES ? di_request_messages(&r)
                                                  : di_request_responses(&r);
    if (status == DI_OK) status = check_json_word(&r);
    bool bound = conversation->format == DI_FORMAT_JSON_SCHEMA || conversation->format == DI_FORMAT_REGEX;
    if (status == DI_OK && bound && di_conversation_has_tools(conversation) && conversation->tools[0].strict)
        status = di_fail(error, DI_ERR_INVALID_ARGUMENT, flavour == DI_FLAVOUR_CHAT ? "response_format" : "text.format",
                         "response_format should not be used with tools");
    bool forced = di_conversation_has_tools(conversation) && conversation->choice != DI_CHOICE_AUTO;
    if (status == DI_OK && forced && options->thinking && !options->forced_thought)
        status =
            di_fail(error, DI_ERR_INVALID_ARGUMENT, "tool_choice", "Thinking mode does not support this tool_choice");
    conversation->messages = r.messages;
    conversation->count = r.count;
    return status;
}
