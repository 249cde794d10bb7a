/* Requests to /v1/messages. */
#include "recipe/recipe_internal.h"

#include <string.h>

static di_status bad_block(di_reader *r, di_field_path path, const di_json *type) {
    if (!type || type->type != DI_JSON_STRING)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s must be an object with a type", path.text);
    return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text, "%s: blocks of type \"%.40s\" are not supported here",
                   path.text, type->text);
}

/* [Unsupported document type: text/plain] */
static di_status read_document(di_reader *r, const di_json *block, di_content *content) {
    const di_json *media = di_json_get(di_json_get(block, "source"), "media_type");
    di_text text = {0};
    bool known = media && media->type == DI_JSON_STRING;
    di_text_puts(&text, "[Unsupported document type: ");
    di_text_append(&text, known ? media->text : "unknown", known ? media->length : strlen("unknown"));
    di_text_putc(&text, ']');
    char *copy = text.failed ? NULL : di_arena_copy(r->arena, text.data, text.length);
    *content = (di_content){DI_CONTENT_TEXT, copy, text.length};
    di_text_free(&text);
    return copy ? DI_OK : di_reader_memory(r);
}

/* text, image, document */
static di_status read_block(di_reader *r, const di_json *block, di_field_path path, di_role role, di_content *content) {
    const di_json *type = di_json_get(block, "type"), *source = di_json_get(block, "source");
    if (di_json_string_is(type, "text")) {
        const di_json *text = di_json_get(block, "text");
        if (!text || text->type != DI_JSON_STRING)
            return di_bad_type(di_path("%.80s.text", path.text), "a string", text, r->error);
        *content = (di_content){DI_CONTENT_TEXT, text->text, text->length};
        return DI_OK;
    }
    if (di_json_string_is(type, "image")) {
        if (role == DI_ROLE_ASSISTANT)
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "Image in assistant message is not supported");
        bool url = di_json_string_is(di_json_get(source, "type"), "url");
        return di_read_image(r, path, di_json_get(source, url ? "url" : "data"), content);
    }
    if (di_json_string_is(type, "document") && role != DI_ROLE_ASSISTANT) return read_document(r, block, content);
    return bad_block(r, path, type);
}

/* A string, or blocks that are text, images or documents. */
static di_status read_content(di_reader *r, const di_json *value, di_field_path path, di_message *message) {
    if (value && value->type == DI_JSON_STRING)
        return di_read_text(r, value->text, value->length, &message->content, &message->content_count);
    if (!value || value->type != DI_JSON_ARRAY)
        return di_bad_type(path, "a string or a list of blocks", value, r->error);
    di_content *content = di_arena_array(r->arena, (size_t)value->count + 1, sizeof *content);
    if (!content) return di_reader_memory(r);
    di_status status = DI_OK;
    size_t count = 0;
    for (const di_json *block = value->first; block && status == DI_OK; block = block->next, count++)
        status = read_block(r, block, di_path("%.70s[%zu]", path.text, count), message->role, &content[count]);
    message->content = content;
    message->content_count = count;
    return status;
}

/* ---------------------------------------------------------------------------------------------- assistant */

static di_status read_tool_use(di_reader *r, const di_json *block, di_field_path path, di_tool_call *call) {
    di_status status = di_read_name(r, block, "id", di_path("%.80s.id", path.text), true, &call->id);
    if (status == DI_OK) status = di_read_name(r, block, "name", di_path("%.80s.name", path.text), true, &call->name);
    if (status == DI_OK)
        status = di_read_arguments(r, di_json_get(block, "input"), di_path("%.80s.input", path.text), call);
    return status;
}

static di_status read_thought(di_reader *r, const di_json *block, di_field_path path, bool first, di_text *reasoning) {
    const di_json *text = di_json_get(block, "thinking");
    if (!text || text->type != DI_JSON_STRING)
        return di_bad_type(di_path("%.80s.thinking", path.text), "a string", text, r->error);
    if (!first) di_text_puts(reasoning, "\n\n");
    di_text_append(reasoning, text->text, text->length);
    return DI_OK;
}

static di_status empty_content(di_reader *r, size_t index) {
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("messages[%zu].content", index).text,
                   "messages.%zu: all messages must have non-empty content", index);
}

static di_status read_assistant(di_reader *r, size_t index, const di_json *value) {
    if (value && value->type == DI_JSON_ARRAY && !value->count) return empty_content(r, index);
    di_message *message = di_reader_add(r, DI_ROLE_ASSISTANT, index);
    di_field_path path = di_path("messages[%zu].content", index);
    if (!message) return DI_ERR_MEMORY;
    if (!value || value->type != DI_JSON_ARRAY) return read_content(r, value, path, message);
    di_content *content = di_arena_array(r->arena, (size_t)value->count + 1, sizeof *content);
    di_tool_call *calls = di_arena_zalloc(r->arena, ((size_t)value->count + 1) * sizeof *calls);
    if (!content || !calls) return di_reader_memory(r);
    di_text reasoning = {0};
    di_status status = DI_OK;
    size_t i = 0, thoughts = 0;
    for (const di_json *block = value->first; block && status == DI_OK; block = block->next, i++) {
        const di_json *type = di_json_get(block, "type");
        di_field_path block_path = di_path("messages[%zu].content[%zu]", index, i);
        if (di_json_string_is(type, "thinking"))
            status = read_thought(r, block, block_path, thoughts++ == 0, &reasoning);
        else if (di_json_string_is(type, "redacted_thinking"))
            continue; /* another model's thoughts, unreadable */
        else if (di_json_string_is(type, "tool_use"))
            status = read_tool_use(r, block, block_path, &calls[message->call_count++]);
        else
            status = read_block(r, block, block_path, DI_ROLE_ASSISTANT, &content[message->content_count++]);
        /* Nothing is said before the first text. */
        if (message->content_count == 1 && status == DI_OK && !content[0].length) message->content_count = 0;
    }
    message->content = content;
    message->calls = calls;
    if (status == DI_OK && thoughts) {
        const char *text = reasoning.data ? reasoning.data : "";
        message->reasoning = reasoning.failed ? NULL : di_arena_copy(r->arena, text, reasoning.length);
        message->reasoning_length = reasoning.length;
        if (!message->reasoning) status = di_reader_memory(r);
    }
    di_text_free(&reasoning);
    return status;
}

/* ---------------------------------------------------------------------------------------------- user */

/* The calls of the message before, while their results are read. */
typedef struct pending {
    const di_message *message; /* NULL = none */
    di_id_table ids;
    bool *answered; /* [call_count] */
    size_t open;
} pending;

static di_status expect_results(di_reader *r, pending *p) {
    *p = (pending){0};
    const di_message *last = r->count ? &r->messages[r->count - 1] : NULL;
    if (!last || last->role != DI_ROLE_ASSISTANT || !last->call_count) return DI_OK;
    p->message = last;
    p->open = last->call_count;
    p->answered = di_arena_zalloc(r->arena, last->call_count);
    if (!p->answered || !di_id_table_calls(&p->ids, r->arena, last->calls, last->call_count))
        return di_reader_memory(r);
    const char *twice = di_id_table_duplicate(&p->ids);
    if (!twice) return DI_OK;
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("messages[%zu]", r->origins[r->count - 1]).text,
                   "messages.%zu: `tool_use` ids must be unique: %.128s", r->origins[r->count - 1], twice);
}

/* Results stand before anything else in the message that follows. */
static di_status check_answered(di_reader *r, const pending *p, size_t index) {
    if (!p->open) return DI_OK;
    size_t i = 0;
    while (p->answered[i]) i++;
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("messages[%zu]", index).text,
                   "messages.%zu: `tool_use` ids were found without `tool_result` blocks immediately after: %.128s. "
                   "Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
                   index, p->message->calls[i].id);
}

static di_status read_result(di_reader *r, size_t index, size_t block_index, const di_json *block, pending *p) {
    di_field_path path = di_path("messages[%zu].content[%zu]", index, block_index);
    const char *id = NULL;
    di_status status = di_read_name(r, block, "tool_use_id", di_path("%.80s.tool_use_id", path.text), true, &id);
    if (status != DI_OK) return status;
    size_t position = p->message ? di_id_table_find(&p->ids, id) : SIZE_MAX;
    if (position == SIZE_MAX)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "unexpected `messages.%zu.content.%zu: tool_use_id` found in `tool_result` blocks: %.128s. Each "
                       "`tool_result` block must have a corresponding `tool_use` block in the previous message.",
                       index, block_index, id);
    if (p->answered[position])
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "messages.%zu.content.%zu: each tool_use must have a single result. Found multiple "
                       "`tool_result` blocks with id: %.128s",
                       index, block_index, id);
    p->answered[position] = true;
    p->open--;
    di_message *message = di_reader_add(r, DI_ROLE_TOOL, index);
    if (!message) return DI_ERR_MEMORY;
    message->call_id = id;
    const di_json *content = di_json_get(block, "content");
    if (di_is_absent(content)) return DI_OK;
    return read_content(r, content, di_path("%.80s.content", path.text), message);
}

static di_status read_user(di_reader *r, size_t index, const di_json *value, pending *p) {
    di_field_path path = di_path("messages[%zu].content", index);
    di_content *content = NULL;
    size_t count = 0, i = 0;
    bool list = value && value->type == DI_JSON_ARRAY;
    di_status status = DI_OK;
    if (list && !value->count) return empty_content(r, index);
    if (list) content = di_arena_array(r->arena, (size_t)value->count + 1, sizeof *content);
    if (list && !content) return di_reader_memory(r);
    for (const di_json *block = list ? value->first : NULL; block && status == DI_OK; block = block->next, i++) {
        if (di_json_string_is(di_json_get(block, "type"), "tool_result")) {
            status = read_result(r, index, i, block, p);
        } else {
            status = check_answered(r, p, index);
            if (status == DI_OK)
                status = read_block(r, block, di_path("messages[%zu].content[%zu]", index, i), DI_ROLE_USER,
                                    &content[count++]);
        }
    }
    if (status == DI_OK) status = check_answered(r, p, index);
    if (status != DI_OK || (list && !count)) return status; /* results only */
    di_message *message = di_reader_add(r, DI_ROLE_USER, index);
    if (!message) return DI_ERR_MEMORY;
    if (!list) return read_content(r, value, path, message);
    message->content = content;
    message->content_count = count;
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- the request */

static di_status read_message(di_reader *r, size_t index, const di_json *object) {
    pending p;
    const di_json *role = di_json_get(object, "role"), *content = di_json_get(object, "content");
    if (object->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("messages[%zu]", index), "an object", object, r->error);
    di_status status = expect_results(r, &p);
    if (status != DI_OK) return status;
    if (di_json_string_is(role, "user")) return read_user(r, index, content, &p);
    status = check_answered(r, &p, index);
    if (status != DI_OK) return status;
    if (di_json_string_is(role, "assistant")) return read_assistant(r, index, content);
    if (di_json_string_is(role, "system")) {
        di_message *message = di_reader_add(r, DI_ROLE_SYSTEM, index);
        if (message) message->kept = true;
        return message ? read_content(r, content, di_path("messages[%zu].content", index), message) : DI_ERR_MEMORY;
    }
    di_field_path path = di_path("messages[%zu].role", index);
    if (!role || role->type != DI_JSON_STRING) return di_bad_type(path, "a string", role, r->error);
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                   "%s: unknown role \"%.40s\"; known are user, assistant and system", path.text, role->text);
}

static di_status read_system(di_reader *r) {
    const di_json *system = di_json_get(r->request, "system");
    if (di_is_absent(system)) return DI_OK;
    di_message *message = di_reader_add(r, DI_ROLE_SYSTEM, SIZE_MAX);
    if (message) message->kept = true;
    return message ? read_content(r, system, di_path("system"), message) : DI_ERR_MEMORY;
}

static di_status read_options(di_reader *r) {
    const di_json *output = di_json_get(r->request, "output_config");
    if (!di_is_absent(output) && output->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("output_config"), "an object", output, r->error);
    di_status status = di_read_effort(r, di_json_get(output, "effort"), di_path("output_config.effort"));
    if (status == DI_OK) status = di_read_thinking(r, di_json_get(r->request, "thinking"));
    if (status == DI_OK) status = di_read_format(r, di_json_get(output, "format"), "output_config.format");
    return status;
}

di_status di_request_messages(di_reader *r) {
    const di_json *list = di_json_get(r->request, "messages");
    if (!list || list->type != DI_JSON_ARRAY)
        return di_bad_type(di_path("messages"), "a list of messages", list, r->error);
    if (!list->count)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "messages", "messages: at least one message is required");
    di_status status = read_system(r);
    size_t index = 0;
    for (const di_json *item = list->first; item && status == DI_OK; item = item->next, index++)
        status = read_message(r, index, item);
    pending p;
    if (status == DI_OK) status = expect_results(r, &p);
    if (status == DI_OK) status = check_answered(r, &p, index);
    return status == DI_OK ? read_options(r) : status;
}
