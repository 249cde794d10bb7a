/* The chat part of a JSON request. */
#include "recipe/recipe.h"

#include <stdio.h>
#include <string.h>

typedef struct field_path {
    char text[96]; /* "messages[2].content" */
} field_path;

static field_path path_of(size_t message, const char *member) {
    field_path path;
    snprintf(path.text, sizeof path.text, "messages[%zu]%s%.40s", message, *member ? "." : "", member);
    return path;
}

static di_status bad_type(const char *path, const char *wanted, const di_json *value, di_error *error) {
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, path, "%s must be %s, not %s", path, wanted,
                   value ? di_json_type_name(value->type) : "absent");
}

static bool is_absent(const di_json *value) {
    return !value || value->type == DI_JSON_NULL;
}

static bool is_neutral(const di_json *value) {
    return is_absent(value) || (value->type == DI_JSON_ARRAY && value->count == 0);
}

static bool one_of(const di_json *value, const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (di_json_string_is(value, names[i])) return true;
    return false;
}

/* ---------------------------------------------------------------------------------------------- messages */

static di_status read_role(size_t index, const di_json *object, di_role *role, di_error *error) {
    static const char *const unavailable[] = {"tool", "function", "developer", "latest_reminder"};
    const di_json *value = di_json_get(object, "role");
    field_path path = path_of(index, "role");
    if (!value || value->type != DI_JSON_STRING) return bad_type(path.text, "a string", value, error);
    if (di_json_string_is(value, "system"))
        *role = DI_ROLE_SYSTEM;
    else if (di_json_string_is(value, "user"))
        *role = DI_ROLE_USER;
    else if (di_json_string_is(value, "assistant"))
        *role = DI_ROLE_ASSISTANT;
    else if (one_of(value, unavailable, sizeof unavailable / sizeof *unavailable))
        return di_fail(error, DI_ERR_UNSUPPORTED, path.text,
                       "%s: the role \"%s\" is not available in this version; available are system, user and assistant",
                       path.text, value->text);
    else
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "%s: unknown role \"%.40s\"; known are system, user and assistant", path.text, value->text);
    return DI_OK;
}

static di_status read_part(const char *path, size_t part, const di_json *value, di_content *content, di_error *error) {
    const di_json *type = di_json_get(value, "type"), *text = di_json_get(value, "text");
    if (!type || type->type != DI_JSON_STRING)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, path, "%s[%zu] must be an object with a type", path, part);
    if (!di_json_string_is(type, "text"))
        return di_fail(error, DI_ERR_UNSUPPORTED, path,
                       "%s[%zu]: parts of type \"%.40s\" are not available in this version, only text", path, part,
                       type->text);
    if (!text || text->type != DI_JSON_STRING)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, path, "%s[%zu].text must be a string", path, part);
    *content = (di_content){DI_CONTENT_TEXT, text->text, text->length};
    return DI_OK;
}

static di_status read_content(di_arena *arena, size_t index, const di_json *object, di_message *message,
                              di_error *error) {
    const di_json *value = di_json_get(object, "content");
    field_path path = path_of(index, "content");
    if (is_absent(value) && message->role == DI_ROLE_ASSISTANT) return DI_OK;
    if (!value || (value->type != DI_JSON_STRING && value->type != DI_JSON_ARRAY))
        return bad_type(path.text, "a string or a list of parts", value, error);
    size_t count = value->type == DI_JSON_STRING ? 1 : value->count, i = 0;
    di_content *content = di_arena_array(arena, count + 1, sizeof *content);
    if (!content) return di_fail(error, DI_ERR_MEMORY, path.text, "out of memory for %s", path.text);
    message->content = content;
    message->content_count = count;
    if (value->type == DI_JSON_STRING) {
        *content = (di_content){DI_CONTENT_TEXT, value->text, value->length};
        return DI_OK;
    }
    di_status status = DI_OK;
    for (const di_json *part = value->first; part && status == DI_OK; part = part->next, i++)
        status = read_part(path.text, i, part, &content[i], error);
    return status;
}

/* reasoning_content, or reasoning as other programs spell it. */
static di_status read_reasoning(size_t index, const di_json *object, di_message *message, di_error *error) {
    const char *name = is_absent(di_json_get(object, "reasoning_content")) ? "reasoning" : "reasoning_content";
    const di_json *value = di_json_get(object, name);
    field_path path = path_of(index, name);
    if (is_absent(value)) return DI_OK;
    if (value->type != DI_JSON_STRING) return bad_type(path.text, "a string", value, error);
    if (message->role != DI_ROLE_ASSISTANT)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, path.text, "%s: only assistant messages have reasoning",
                       path.text);
    message->reasoning = value->text;
    message->reasoning_length = value->length;
    return DI_OK;
}

static di_status check_members(size_t index, const di_json *object, di_error *error) {
    static const char *const known[] = {"role", "content", "reasoning_content", "reasoning", "prefix"};
    static const char *const unavailable[] = {"tool_calls", "tool_call_id", "function_call", "name",
                                              "audio",      "refusal",      "task"};
    for (const di_json *member = object->first; member; member = member->next) {
        const di_json key = {.type = DI_JSON_STRING, .text = member->key, .length = member->key_length};
        field_path path = path_of(index, member->key);
        if (one_of(&key, known, sizeof known / sizeof *known)) continue;
        if (one_of(&key, unavailable, sizeof unavailable / sizeof *unavailable)) {
            if (is_neutral(member)) continue;
            return di_fail(error, DI_ERR_UNSUPPORTED, path.text, "%s is not available in this version", path.text);
        }
        const char *nearest = di_nearest_name(member->key, known, sizeof known / sizeof *known);
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, path.text, "%s is not a member of a message%s%s%s", path.text,
                       nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    }
    return DI_OK;
}

static di_status read_message(di_arena *arena, size_t index, const di_json *object, di_message *message,
                              di_error *error) {
    *message = (di_message){0};
    if (object->type != DI_JSON_OBJECT) return bad_type(path_of(index, "").text, "an object", object, error);
    di_status status = read_role(index, object, &message->role, error);
    if (status == DI_OK) status = check_members(index, object, error);
    if (status == DI_OK) status = read_content(arena, index, object, message, error);
    if (status == DI_OK) status = read_reasoning(index, object, message, error);
    const di_json *prefix = di_json_get(object, "prefix");
    if (status != DI_OK || is_absent(prefix)) return status;
    if (prefix->type != DI_JSON_TRUE && prefix->type != DI_JSON_FALSE)
        return bad_type(path_of(index, "prefix").text, "true or false", prefix, error);
    message->prefix = di_json_is_true(prefix);
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- options */

/* thinking beats reasoning_effort, which beats the default. */
static di_status read_thinking(const di_json *request, di_recipe_options *options, di_error *error) {
    const di_json *effort = di_json_get(request, "reasoning_effort"), *thinking = di_json_get(request, "thinking");
    if (!is_absent(effort)) {
        bool readable = effort->type == DI_JSON_STRING || effort->type == DI_JSON_NUMBER;
        if (!readable || strlen(effort->text) != effort->length)
            return bad_type("reasoning_effort", "a string or an integer", effort, error);
        options->thinking = true;
        di_status status = di_recipe_effort_parse(effort->text, options, error);
        if (status != DI_OK) return status;
    }
    if (is_absent(thinking)) return DI_OK;
    const di_json *type = thinking->type == DI_JSON_OBJECT ? di_json_get(thinking, "type") : NULL;
    if (thinking->type == DI_JSON_TRUE || di_json_string_is(type, "enabled") || di_json_string_is(type, "adaptive"))
        options->thinking = true;
    else if (thinking->type == DI_JSON_FALSE || di_json_string_is(type, "disabled"))
        options->thinking = false;
    else
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "thinking",
                       "thinking must be true, false or {\"type\": \"enabled\" | \"disabled\" | \"adaptive\"}");
    return DI_OK;
}

static di_status check_neutral(const di_json *request, di_error *error) {
    static const char *const choices[] = {"none", "auto", "required"};
    const di_json *tools = di_json_get(request, "tools"), *choice = di_json_get(request, "tool_choice");
    const di_json *format = di_json_get(request, "response_format");
    if (!is_neutral(tools) && !di_json_string_is(choice, "none"))
        return di_fail(error, DI_ERR_UNSUPPORTED, "tools", "tools are not available in this version");
    if (!is_absent(choice) && !one_of(choice, choices, sizeof choices / sizeof *choices))
        return di_fail(error, DI_ERR_UNSUPPORTED, "tool_choice", "tool_choice is not available in this version");
    if (!is_absent(format) && !di_json_string_is(di_json_get(format, "type"), "text"))
        return di_fail(error, DI_ERR_UNSUPPORTED, "response_format",
                       "response_format is not available in this version, except {\"type\": \"text\"}");
    return DI_OK;
}

di_status di_recipe_parse_request(di_arena *arena, di_flavour flavour, const di_json *request,
                                  di_conversation *conversation, di_recipe_options *options, di_error *error) {
    if (flavour != DI_FLAVOUR_CHAT)
        return di_fail(error, DI_ERR_UNSUPPORTED, NULL, "only chat requests are understood");
    const di_json *list = di_json_get(request, "messages");
    if (!list || list->type != DI_JSON_ARRAY) return bad_type("messages", "a list of messages", list, error);
    di_status status = check_neutral(request, error);
    if (status == DI_OK) status = read_thinking(request, options, error);
    if (status != DI_OK) return status;
    di_message *messages = di_arena_array(arena, (size_t)list->count + 1, sizeof *messages);
    if (!messages) return di_fail(error, DI_ERR_MEMORY, "messages", "out of memory for messages");
    size_t count = 0;
    for (const di_json *item = list->first; item && status == DI_OK; item = item->next, count++)
        status = read_message(arena, count, item, &messages[count], error);
    *conversation = (di_conversation){.messages = messages, .count = count};
    return status;
}
