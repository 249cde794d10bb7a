/* Requests to /v1/chat/completions. */
#include "recipe/recipe_internal.h"

#include <string.h>

/* ---------------------------------------------------------------------------------------------- a message */

static di_status read_role(di_reader *r, size_t index, const di_json *object, di_role *role) {
    static const char *const names[] = {"system", "user", "assistant", "tool", "latest_reminder", "developer"};
    static const di_role roles[] = {DI_ROLE_SYSTEM,          DI_ROLE_USER,  DI_ROLE_ASSISTANT, DI_ROLE_TOOL,
                                    DI_ROLE_LATEST_REMINDER, DI_ROLE_SYSTEM};
    const di_json *value = di_json_get(object, "role");
    di_field_path path = di_path("messages[%zu].role", index);
    if (!value || value->type != DI_JSON_STRING) return di_bad_type(path, "a string", value, r->error);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (di_json_string_is(value, names[i])) {
            *role = roles[i];
            return DI_OK;
        }
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                   "%s: unknown role \"%.40s\"; known are system, user, assistant, tool, latest_reminder and developer",
                   path.text, value->text);
}

static di_status read_part(di_reader *r, const di_message *message, const di_json *part, di_field_path path,
                           di_content *content) {
    const di_json *type = di_json_get(part, "type");
    bool refusal = message->role == DI_ROLE_ASSISTANT && di_json_string_is(type, "refusal");
    const char *member = refusal ? "refusal" : "text";
    if (!type || type->type != DI_JSON_STRING)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s must be an object with a type", path.text);
    if (refusal || di_json_string_is(type, "text")) {
        const di_json *text = di_json_get(part, member);
        di_field_path text_path = di_path("%.80s.%s", path.text, member);
        if (!text || text->type != DI_JSON_STRING) return di_bad_type(text_path, "a string", text, r->error);
        *content = (di_content){DI_CONTENT_TEXT, text->text, text->length};
        return DI_OK;
    }
    if (di_json_string_is(type, "image_url")) {
        const di_json *image = di_json_get(part, "image_url");
        if (message->role == DI_ROLE_ASSISTANT)
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "Image in assistant message is not supported");
        return di_read_image(r, path, image && image->type == DI_JSON_STRING ? image : di_json_get(image, "url"),
                             content);
    }
    if (di_json_string_is(type, "extracted_url") && message->role == DI_ROLE_USER) {
        const di_json *url = di_json_get(part, "url");
        if (!url || url->type != DI_JSON_STRING)
            return di_bad_type(di_path("%.80s.url", path.text), "a string", url, r->error);
        *content = (di_content){DI_CONTENT_EXTRACTED_URL, url->text, url->length};
        return DI_OK;
    }
    return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text,
                   "%s: parts of type \"%.40s\" are not supported, only text and image_url", path.text, type->text);
}

static di_status read_content(di_reader *r, size_t index, const di_json *object, di_message *message) {
    const di_json *value = di_json_get(object, "content");
    di_field_path path = di_path("messages[%zu].content", index);
    if (di_is_absent(value) && message->role == DI_ROLE_ASSISTANT) {
        value = di_json_get(object, "refusal"); /* of another model: it was the answer */
        if (!value || value->type != DI_JSON_STRING) return DI_OK;
    }
    if (value && value->type == DI_JSON_STRING)
        return di_read_text(r, value->text, value->length, &message->content, &message->content_count);
    if (!value || value->type != DI_JSON_ARRAY)
        return di_bad_type(path, "a string or a list of parts", value, r->error);
    di_content *content = di_arena_array(r->arena, (size_t)value->count + 1, sizeof *content);
    if (!content) return di_reader_memory(r);
    message->content = content;
    message->content_count = value->count;
    di_status status = DI_OK;
    size_t i = 0;
    for (const di_json *part = value->first; part && status == DI_OK; part = part->next, i++)
        status = read_part(r, message, part, di_path("messages[%zu].content[%zu]", index, i), &content[i]);
    return status;
}

/* reasoning_content, or reasoning as other programs spell it. */
static di_status read_reasoning(di_reader *r, size_t index, const di_json *object, di_message *message) {
    const char *name = di_is_absent(di_json_get(object, "reasoning_content")) ? "reasoning" : "reasoning_content";
    const di_json *value = di_json_get(object, name);
    di_field_path path = di_path("messages[%zu].%s", index, name);
    if (di_is_absent(value)) return DI_OK;
    if (value->type != DI_JSON_STRING) return di_bad_type(path, "a string", value, r->error);
    if (message->role != DI_ROLE_ASSISTANT) {
        if (r->options->pass_unknown) return DI_OK;
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s: only assistant messages have reasoning",
                       path.text);
    }
    message->reasoning = value->text;
    message->reasoning_length = value->length;
    return DI_OK;
}

static di_status read_call(di_reader *r, const di_json *item, di_field_path path, di_tool_call *call) {
    const di_json *type = di_json_get(item, "type"), *function = di_json_get(item, "function");
    if (item->type != DI_JSON_OBJECT) return di_bad_type(path, "an object", item, r->error);
    if (!di_is_absent(type) && !di_json_string_is(type, "function"))
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("%.80s.type", path.text).text,
                       "%.80s.type must be \"function\"", path.text);
    if (!function || function->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("%.80s.function", path.text), "an object", function, r->error);
    di_status status = di_read_name(r, item, "id", di_path("%.80s.id", path.text), true, &call->id);
    if (status == DI_OK)
        status = di_read_name(r, function, "name", di_path("%.60s.function.name", path.text), true, &call->name);
    if (status == DI_OK)
        status = di_read_arguments(r, di_json_get(function, "arguments"),
                                   di_path("%.60s.function.arguments", path.text), call);
    return status;
}

static di_status read_calls(di_reader *r, size_t index, const di_json *object, di_message *message) {
    const di_json *list = di_json_get(object, "tool_calls");
    di_field_path path = di_path("messages[%zu].tool_calls", index);
    if (di_is_absent(list)) return DI_OK;
    if (list->type != DI_JSON_ARRAY) return di_bad_type(path, "a list of calls", list, r->error);
    if (list->count && message->role != DI_ROLE_ASSISTANT)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s: only assistant messages have calls",
                       path.text);
    di_tool_call *calls = di_arena_zalloc(r->arena, ((size_t)list->count + 1) * sizeof *calls);
    if (!calls) return di_reader_memory(r);
    message->calls = calls;
    message->call_count = list->count;
    di_status status = DI_OK;
    size_t i = 0;
    for (const di_json *item = list->first; item && status == DI_OK; item = item->next, i++)
        status = read_call(r, item, di_path("messages[%zu].tool_calls[%zu]", index, i), &calls[i]);
    return status;
}

static di_status read_task(di_reader *r, size_t index, const di_json *object, di_message *message) {
    static const char *const names[] = {"", "action", "query", "authority", "domain", "read_url", "title"};
    const di_json *value = di_json_get(object, "task");
    di_field_path path = di_path("messages[%zu].task", index);
    if (di_is_absent(value)) return DI_OK;
    for (int i = DI_TASK_ACTION; i <= DI_TASK_TITLE; i++)
        if (di_json_string_is(value, names[i])) message->task = (di_task)i;
    di_role wanted = message->task == DI_TASK_TITLE ? DI_ROLE_ASSISTANT : DI_ROLE_USER;
    if (message->task != DI_TASK_NONE && message->role == wanted) return DI_OK;
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                   "%s must be action, query, authority, domain or read_url on a user message, or title on an "
                   "assistant's",
                   path.text);
}

/* Members that clients send back to us are passed over; those that would change the meaning are refused by name. */
static di_status check_members(di_reader *r, size_t index, const di_json *object) {
    static const char *const known[] = {
        "role", "content", "reasoning_content", "reasoning",   "prefix", "tool_calls",   "tool_call_id",
        "task", "name",    "refusal",           "annotations", "audio",  "function_call"};
    static const char *const unavailable[] = {"function_call", "audio"};
    for (const di_json *member = object->first; member; member = member->next) {
        const di_json key = {.type = DI_JSON_STRING, .text = member->key, .length = member->key_length};
        di_field_path path = di_path("messages[%zu].%.40s", index, member->key);
        if (di_one_of(&key, unavailable, sizeof unavailable / sizeof *unavailable)) {
            if (di_is_absent(member)) continue;
            return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text, "%s is not supported", path.text);
        }
        if (r->options->pass_unknown || di_one_of(&key, known, sizeof known / sizeof *known)) continue;
        const char *nearest = di_nearest_name(member->key, known, sizeof known / sizeof *known);
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s is not a member of a message%s%s%s", path.text,
                       nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    }
    return DI_OK;
}

static di_status read_message(di_reader *r, size_t index, const di_json *object) {
    di_role role = DI_ROLE_USER;
    if (object->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("messages[%zu]", index), "an object", object, r->error);
    di_status status = read_role(r, index, object, &role);
    di_message *message = status == DI_OK ? di_reader_add(r, role, index) : NULL;
    if (!message) return status == DI_OK ? DI_ERR_MEMORY : status;
    const di_json *prefix = di_json_get(object, "prefix");
    status = check_members(r, index, object);
    if (status == DI_OK) status = read_content(r, index, object, message);
    if (status == DI_OK) status = read_reasoning(r, index, object, message);
    if (status == DI_OK) status = read_calls(r, index, object, message);
    if (status == DI_OK) status = read_task(r, index, object, message);
    if (status == DI_OK && role == DI_ROLE_TOOL)
        status = di_read_name(r, object, "tool_call_id", di_path("messages[%zu].tool_call_id", index), true,
                              &message->call_id);
    if (status != DI_OK || di_is_absent(prefix)) return status;
    if (prefix->type != DI_JSON_TRUE && prefix->type != DI_JSON_FALSE)
        return di_bad_type(di_path("messages[%zu].prefix", index), "true or false", prefix, r->error);
    message->prefix = di_json_is_true(prefix);
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- order */

#define MUST_FOLLOW                                                                                                    \
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'"

/* The results of one message's calls, at messages[first ..). */
static di_status check_results(di_reader *r, size_t index, size_t *behind) {
    const di_message *message = &r->messages[index];
    di_field_path path = di_path("messages[%zu]", r->origins[index]);
    di_id_table table;
    if (!di_id_table_calls(&table, r->arena, message->calls, message->call_count)) return di_reader_memory(r);
    const char *twice = di_id_table_duplicate(&table);
    if (twice)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "Duplicate value for 'tool_call_id' of %.128s in message[%zu]", twice, r->origins[index]);
    size_t first = index + 1, end = first;
    while (end < r->count && end - first < message->call_count && r->messages[end].role == DI_ROLE_TOOL) end++;
    if (end - first < message->call_count)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       MUST_FOLLOW ". (insufficient tool messages following tool_calls message)");
    bool *answered = di_arena_zalloc(r->arena, message->call_count);
    if (!answered) return di_reader_memory(r);
    for (size_t i = first; i < end; i++) {
        const char *id = r->messages[i].call_id;
        size_t position = di_id_table_find(&table, id);
        if (position == SIZE_MAX || answered[position])
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("messages[%zu].tool_call_id", r->origins[i]).text,
                           MUST_FOLLOW ", The following tool_call_ids did not have response messages: %.128s", id);
        answered[position] = true;
    }
    *behind = end;
    return DI_OK;
}

static di_status check_order(di_reader *r) {
    for (size_t i = 0; i < r->count;) {
        const di_message *message = &r->messages[i];
        di_field_path path = di_path("messages[%zu]", r->origins[i]);
        if (message->role == DI_ROLE_TOOL)
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                           "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'");
        if (message->prefix && (message->role != DI_ROLE_ASSISTANT || i + 1 < r->count))
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("%.80s.prefix", path.text).text,
                           "Invalid completion message: prefix set true with message which is not final message or "
                           "message role is not assistant");
        if (message->role == DI_ROLE_ASSISTANT && !message->content && !message->call_count &&
            !(message->reasoning && message->prefix))
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                           "Invalid assistant message: content or tool_calls must be set");
        i++;
        if (!message->call_count) continue;
        di_status status = check_results(r, i - 1, &i);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- options */

static di_status read_flag(di_reader *r, const di_json *object, const char *member, di_field_path path, bool *flag) {
    const di_json *value = di_json_get(object, member);
    if (di_is_absent(value)) return DI_OK;
    if (value->type != DI_JSON_TRUE && value->type != DI_JSON_FALSE)
        return di_bad_type(path, "true or false", value, r->error);
    *flag = di_json_is_true(value);
    return DI_OK;
}

/* What other servers call it: {"thinking": true} or {"enable_thinking": true}, {"reasoning_effort": ...}. */
static di_status read_template_options(di_reader *r) {
    static const char *const known[] = {"thinking", "enable_thinking", "reasoning_effort"};
    const di_json *object = di_json_get(r->request, "chat_template_kwargs");
    if (di_is_absent(object)) return DI_OK;
    if (object->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("chat_template_kwargs"), "an object", object, r->error);
    for (const di_json *member = object->first; member; member = member->next) {
        const di_json key = {.type = DI_JSON_STRING, .text = member->key, .length = member->key_length};
        if (di_one_of(&key, known, sizeof known / sizeof *known)) continue;
        di_field_path path = di_path("chat_template_kwargs.%.60s", member->key);
        return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text,
                       "%s is not known; known are thinking, enable_thinking and reasoning_effort", path.text);
    }
    di_status status =
        di_read_effort(r, di_json_get(object, "reasoning_effort"), di_path("chat_template_kwargs.reasoning_effort"));
    for (size_t i = 0; i < 2 && status == DI_OK; i++)
        status = read_flag(r, object, known[i], di_path("chat_template_kwargs.%s", known[i]), &r->options->thinking);
    return status;
}

/* thinking beats chat_template_kwargs, which beats reasoning_effort, which beats the default. */
static di_status read_options(di_reader *r) {
    bool header = !r->options->no_header, open = false;
    di_status status = di_read_effort(r, di_json_get(r->request, "reasoning_effort"), di_path("reasoning_effort"));
    if (status == DI_OK) status = read_template_options(r);
    if (status == DI_OK) status = di_read_thinking(r, di_json_get(r->request, "thinking"));
    if (status == DI_OK) status = di_read_format(r, di_json_get(r->request, "response_format"), "response_format");
    if (status == DI_OK)
        status = read_flag(r, r->request, "continue_final_message", di_path("continue_final_message"), &open);
    if (open) header = false; /* the default then; true contradicts */
    if (status == DI_OK)
        status = read_flag(r, r->request, "add_generation_prompt", di_path("add_generation_prompt"), &header);
    if (status != DI_OK) return status;
    if (open && header)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "continue_final_message",
                       "continue_final_message and add_generation_prompt exclude each other");
    r->options->no_header = !header && !open;
    if (open && r->count) r->messages[r->count - 1].prefix = true;
    return DI_OK;
}

static di_status check_prefix(const di_reader *r) {
    const di_conversation *c = r->conversation;
    if (!r->count || !r->messages[r->count - 1].prefix) return DI_OK;
    if (di_conversation_has_tools(c))
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("messages[%zu].prefix", r->count - 1).text,
                       "Function call should not be used with prefix");
    if (c->format == DI_FORMAT_JSON_OBJECT)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "response_format",
                       "response_format json_object should not be used with prefix");
    return DI_OK;
}

di_status di_request_chat(di_reader *r) {
    const di_json *list = di_json_get(r->request, "messages");
    if (!list || list->type != DI_JSON_ARRAY)
        return di_bad_type(di_path("messages"), "a list of messages", list, r->error);
    if (!list->count) return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "messages", "Empty input messages");
    di_status status = DI_OK;
    size_t index = 0;
    for (const di_json *item = list->first; item && status == DI_OK; item = item->next, index++)
        status = read_message(r, index, item);
    if (status == DI_OK) status = read_options(r);
    if (status == DI_OK) status = check_order(r);
    return status == DI_OK ? check_prefix(r) : status;
}
