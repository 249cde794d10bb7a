/* Tools, the choice among them, and response formats, in the words of each flavour. */
#include "recipe/recipe_internal.h"

#include <string.h>

enum { MAX_NAME = 128, MAX_CLASHES = 100 };

/* ---------------------------------------------------------------------------------------------- tools */

typedef struct tool_list {
    di_reader *reader;
    di_tool *tools; /* [count] */
    size_t count, capacity;
    di_name_set names; /* of the tools in namespaces */
} tool_list;

static di_tool *add_tool(tool_list *list) {
    di_reader *r = list->reader;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 16;
        di_tool *tools = di_arena_array(r->arena, capacity, sizeof *tools);
        if (!tools) {
            di_reader_memory(r);
            return NULL;
        }
        if (list->count) memcpy(tools, list->tools, list->count * sizeof *tools);
        list->tools = tools;
        list->capacity = capacity;
    }
    list->tools[list->count] = (di_tool){0};
    return &list->tools[list->count++];
}

static di_status check_name(di_reader *r, const char *name, di_field_path path) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    size_t length = strlen(name);
    if (!length)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "Invalid '%s': empty string. Expected a string with minimum length 1, but got an empty string "
                       "instead.",
                       path.text);
    if (length > MAX_NAME)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "Invalid '%s': string too long. Expected a string with maximum length %d, but got a string "
                       "with length %zu instead.",
                       path.text, MAX_NAME, length);
    if (strspn(name, allowed) != length)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "Invalid '%s': string does not match pattern. Expected a string that matches the pattern "
                       "'^[a-zA-Z0-9_-]+$'.",
                       path.text);
    return DI_OK;
}

static di_status check_schema(di_reader *r, const char *name, const di_json *schema, di_field_path path) {
    const di_json *type = di_json_get(schema, "type");
    if (di_json_string_is(type, "object")) return DI_OK;
    di_text got = {0};
    di_json_writer writer;
    di_json_begin(&writer, &got);
    if (type)
        di_json_value(&writer, type);
    else
        di_json_null(&writer);
    di_status status =
        got.failed ? di_reader_memory(r)
                   : di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                             "Invalid schema for function '%s': schema must be a JSON Schema of 'type: \"object\"', "
                             "got 'type: %.200s'.",
                             name, got.data);
    di_text_free(&got);
    return status;
}

/* name, description, strict and the schema of `object`, whose fields begin with `path`. */
static di_status read_function(tool_list *list, const di_json *object, const char *schema_member, di_field_path path) {
    di_reader *r = list->reader;
    di_tool *tool = add_tool(list);
    if (!tool) return DI_ERR_MEMORY;
    if (!object || object->type != DI_JSON_OBJECT) return di_bad_type(path, "an object", object, r->error);
    di_field_path name_path = di_path("%.80s.name", path.text),
                  schema_path = di_path("%.80s.%s", path.text, schema_member);
    const di_json *strict = di_json_get(object, "strict"), *schema = di_json_get(object, schema_member);
    di_status status = di_read_name(r, object, "name", name_path, true, &tool->name);
    if (status == DI_OK) status = check_name(r, tool->name, name_path);
    if (status == DI_OK)
        status =
            di_read_name(r, object, "description", di_path("%.80s.description", path.text), false, &tool->description);
    if (status != DI_OK) return status;
    tool->own_name = tool->name;
    if (!di_is_absent(strict) && strict->type != DI_JSON_TRUE && strict->type != DI_JSON_FALSE)
        return di_bad_type(di_path("%.80s.strict", path.text), "true or false", strict, r->error);
    tool->strict = di_json_is_true(strict);
    if (!di_is_absent(schema)) {
        if (schema->type != DI_JSON_OBJECT) return di_bad_type(schema_path, "an object", schema, r->error);
        status = check_schema(r, tool->name, schema, schema_path);
        tool->parameters = schema;
    }
    if (status == DI_OK && tool->strict)
        status = di_strict_schema(r->arena, tool->parameters, schema_path, &tool->parameters, r->error);
    return status;
}

static di_status read_chat_tool(tool_list *list, const di_json *item, size_t index) {
    const di_json *type = di_json_get(item, "type");
    if (!di_is_absent(type) && !di_json_string_is(type, "function"))
        return di_fail(list->reader->error, DI_ERR_INVALID_ARGUMENT, di_path("tools[%zu].type", index).text,
                       "tools[%zu].type must be \"function\"", index);
    return read_function(list, di_json_get(item, "function"), "parameters", di_path("tools[%zu].function", index));
}

static di_status read_messages_tool(tool_list *list, const di_json *item, size_t index) {
    const di_json *type = di_json_get(item, "type");
    if (!di_is_absent(type) && !di_json_string_is(type, "custom"))
        return di_fail(list->reader->error, DI_ERR_UNSUPPORTED, di_path("tools[%zu].type", index).text,
                       "tools[%zu]: server tools are not supported", index);
    if (di_is_absent(di_json_get(item, "input_schema")))
        return di_bad_type(di_path("tools[%zu].input_schema", index), "an object", NULL, list->reader->error);
    return read_function(list, item, "input_schema", di_path("tools[%zu]", index));
}

/* A custom tool is shown as a function of one string. */
static di_status custom_schema(di_reader *r, const di_json **schema) {
    static const char text[] = "{\"type\": \"object\", \"additionalProperties\": false, \"properties\": {\"input\": "
                               "{\"type\": \"string\"}}, \"required\": [\"input\"]}";
    return di_json_parse(r->arena, text, strlen(text), 0, schema, r->error);
}

static di_status read_custom_tool(tool_list *list, const di_json *item, size_t index) {
    di_reader *r = list->reader;
    const di_json *name = di_json_get(item, "name");
    di_field_path path = di_path("tools[%zu].name", index);
    if (!name || name->type != DI_JSON_STRING) return di_bad_type(path, "a string", name, r->error);
    if (!di_json_string_is(name, "apply_patch"))
        return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text,
                       "Unsupported custom tool: '%.60s'. Only 'apply_patch' is supported.", name->text);
    di_tool *tool = add_tool(list);
    if (!tool) return DI_ERR_MEMORY;
    tool->name = tool->own_name = name->text;
    tool->custom = true;
    di_status status =
        di_read_name(r, item, "description", di_path("tools[%zu].description", index), false, &tool->description);
    return status == DI_OK ? custom_schema(r, &tool->parameters) : status;
}

/* "space::name", with _1, _2 ... where that is taken; the namespace's description before the tool's own. */
static di_status put_in_space(tool_list *list, const char *space, const char *description) {
    di_reader *r = list->reader;
    di_tool *tool = &list->tools[list->count - 1];
    di_text name = {0}, told = {0};
    size_t plain = 0;
    di_text_printf(&name, "%s::%s", space, tool->own_name);
    plain = name.length;
    for (unsigned n = 1; n <= MAX_CLASHES && name.data && !name.failed && di_name_set_has(&list->names, name.data);
         n++) {
        name.length = plain;
        di_text_printf(&name, "_%u", n);
    }
    if (description) di_text_printf(&told, "%s\n%s", description, tool->description ? tool->description : "");
    tool->space = space;
    tool->name = name.failed ? NULL : di_arena_copy(r->arena, name.data, name.length);
    if (description) tool->description = told.failed ? NULL : di_arena_copy(r->arena, told.data, told.length);
    di_text_free(&name);
    di_text_free(&told);
    bool kept =
        tool->name && (!description || tool->description) && di_name_set_add(&list->names, r->arena, tool->name);
    return kept ? DI_OK : di_reader_memory(r);
}

static di_status read_namespace(tool_list *list, const di_json *item, size_t index) {
    di_reader *r = list->reader;
    const char *space = NULL, *description = NULL;
    di_field_path path = di_path("tools[%zu].name", index);
    const di_json *tools = di_json_get(item, "tools");
    di_status status = di_read_name(r, item, "name", path, true, &space);
    if (status == DI_OK) status = check_name(r, space, path);
    if (status == DI_OK)
        status = di_read_name(r, item, "description", di_path("tools[%zu].description", index), false, &description);
    if (status != DI_OK) return status;
    if (!tools || tools->type != DI_JSON_ARRAY)
        return di_bad_type(di_path("tools[%zu].tools", index), "a list of tools", tools, r->error);
    size_t inner = 0;
    for (const di_json *tool = tools->first; tool && status == DI_OK; tool = tool->next, inner++) {
        if (!di_json_string_is(di_json_get(tool, "type"), "function")) continue; /* unknown tools are passed over */
        status = read_function(list, tool, "parameters", di_path("tools[%zu].tools[%zu]", index, inner));
        if (status == DI_OK) status = put_in_space(list, space, description);
    }
    return status;
}

static di_status read_responses_tool(tool_list *list, const di_json *item, size_t index) {
    const di_json *type = di_json_get(item, "type");
    if (item->type != DI_JSON_OBJECT || !type || type->type != DI_JSON_STRING)
        return di_bad_type(di_path("tools[%zu].type", index), "a string", type, list->reader->error);
    if (di_json_string_is(type, "function"))
        return read_function(list, item, "parameters", di_path("tools[%zu]", index));
    if (di_json_string_is(type, "namespace")) return read_namespace(list, item, index);
    if (di_json_string_is(type, "custom")) return read_custom_tool(list, item, index);
    return DI_OK; /* tools of the host, for instance web_search, are passed over */
}

static di_status check_tools(const tool_list *list) {
    di_reader *r = list->reader;
    const char **names = di_arena_array(r->arena, list->count + 1, sizeof *names);
    di_id_table table;
    bool strict = false, loose = false;
    if (!names) return di_reader_memory(r);
    for (size_t i = 0; i < list->count; i++) {
        names[i] = list->tools[i].name;
        strict |= list->tools[i].strict;
        loose |= !list->tools[i].strict;
    }
    if (!di_id_table_build(&table, r->arena, names, list->count)) return di_reader_memory(r);
    if (di_id_table_duplicate(&table))
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "tools", "Tool names must be unique.");
    if (strict && loose)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "tools",
                       "Cannot use strict tool with non-strict tool in the same request");
    return DI_OK;
}

di_status di_read_tools(di_reader *r) {
    const di_json *tools = di_json_get(r->request, "tools");
    if (di_is_absent(tools)) return DI_OK;
    if (tools->type != DI_JSON_ARRAY) return di_bad_type(di_path("tools"), "a list of tools", tools, r->error);
    tool_list list = {.reader = r};
    size_t index = 0;
    di_status status = DI_OK;
    for (const di_json *item = tools->first; item && status == DI_OK; item = item->next, index++) {
        if (item->type != DI_JSON_OBJECT)
            status = di_bad_type(di_path("tools[%zu]", index), "an object", item, r->error);
        else if (r->flavour == DI_FLAVOUR_CHAT)
            status = read_chat_tool(&list, item, index);
        else if (r->flavour == DI_FLAVOUR_MESSAGES)
            status = read_messages_tool(&list, item, index);
        else
            status = read_responses_tool(&list, item, index);
    }
    if (status == DI_OK) status = check_tools(&list);
    r->conversation->tools = list.tools;
    r->conversation->tool_count = list.count;
    return status;
}

/* ---------------------------------------------------------------------------------------------- the choice */

static di_status no_tools(di_reader *r) {
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "tool_choice",
                   "tool_choice asks for a call, but there are no tools");
}

/* A declared tool by the name that the client gave it; NULL and an error: there is none. */
static const di_tool *find_tool(di_reader *r, const char *name, const char *space, di_field_path path) {
    const di_conversation *c = r->conversation;
    for (size_t i = 0; i < c->tool_count; i++) {
        const di_tool *tool = &c->tools[i];
        bool same = space ? tool->space && strcmp(tool->space, space) == 0 && strcmp(tool->own_name, name) == 0
                          : strcmp(tool->name, name) == 0;
        if (same) return tool;
    }
    di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
            "Invalid value for 'tool_call': no function named '%.128s' was specified in the 'tools' parameter.", name);
    return NULL;
}

static di_status choose_named(di_reader *r, const char *name, const char *space, di_field_path path) {
    const di_conversation *c = r->conversation;
    if (!c->tool_count) return no_tools(r);
    const di_tool *tool = find_tool(r, name, space, path);
    if (!tool) return r->error->status;
    r->conversation->choice = DI_CHOICE_NAMED;
    r->conversation->named = tool;
    return DI_OK;
}

static di_status read_word_choice(di_reader *r, const di_json *choice) {
    if (di_json_string_is(choice, "none"))
        r->conversation->choice = DI_CHOICE_NONE;
    else if (di_json_string_is(choice, "required") && !r->conversation->tool_count)
        return no_tools(r);
    else if (di_json_string_is(choice, "required"))
        r->conversation->choice = DI_CHOICE_REQUIRED;
    else if (!di_json_string_is(choice, "auto"))
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "tool_choice",
                       "tool_choice must be \"none\", \"auto\", \"required\" or name a tool, not \"%.60s\"",
                       choice->text);
    return DI_OK;
}

/* A name where the interface has it: in "function" for chat, beside the type for responses. */
static di_status read_tool_name(di_reader *r, const di_json *object, di_field_path path, const char **name,
                                const char **space) {
    bool chat = r->flavour == DI_FLAVOUR_CHAT;
    const di_json *named = chat ? di_json_get(object, "function") : object;
    di_field_path inner = di_path(chat ? "%.80s.function.name" : "%.80s.name", path.text);
    di_status status = di_read_name(r, named, "name", inner, true, name);
    if (status == DI_OK && !chat)
        status = di_read_name(r, object, "namespace", di_path("%.80s.namespace", path.text), false, space);
    return status;
}

/* {"type": "allowed_tools", "mode": auto or required, "tools": [...]}: the model is shown these only. */
static di_status read_allowed(di_reader *r, const di_json *choice) {
    bool chat = r->flavour == DI_FLAVOUR_CHAT;
    di_conversation *c = r->conversation;
    const di_json *allowed = chat ? di_json_get(choice, "allowed_tools") : choice;
    const di_json *mode = di_json_get(allowed, "mode"), *list = di_json_get(allowed, "tools");
    di_field_path path = di_path(chat ? "tool_choice.allowed_tools" : "tool_choice");
    if (!di_json_string_is(mode, "auto") && !di_json_string_is(mode, "required"))
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("%.80s.mode", path.text).text,
                       "%s.mode must be \"auto\" or \"required\"", path.text);
    if (!list || list->type != DI_JSON_ARRAY || !list->count)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("%.80s.tools", path.text).text,
                       "%s.tools must be a list of tools, not empty", path.text);
    if (c->tool_count && list->count > c->tool_count)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("%.80s.tools", path.text).text,
                       "%s.tools has %u entries, more than there are tools (%zu)", path.text, (unsigned)list->count,
                       c->tool_count);
    bool *wanted = di_arena_zalloc(r->arena, c->tool_count + 1);
    di_tool *tools = di_arena_array(r->arena, c->tool_count + 1, sizeof *tools);
    if (!wanted || !tools) return di_reader_memory(r);
    size_t index = 0, count = 0;
    for (const di_json *item = list->first; item; item = item->next, index++) {
        const char *name = NULL, *space = NULL;
        di_field_path at = di_path("%.80s.tools[%zu]", path.text, index);
        di_status status = read_tool_name(r, item, at, &name, &space);
        if (status != DI_OK) return status;
        const di_tool *tool = find_tool(r, name, space, at);
        if (!tool) return r->error->status;
        wanted[tool - c->tools] = true;
    }
    for (size_t i = 0; i < c->tool_count; i++)
        if (wanted[i]) tools[count++] = c->tools[i];
    c->tools = tools;
    c->tool_count = count;
    if (di_json_string_is(mode, "required")) c->choice = DI_CHOICE_REQUIRED;
    return DI_OK;
}

static di_status read_openai_choice(di_reader *r, const di_json *choice) {
    if (choice->type == DI_JSON_STRING) return read_word_choice(r, choice);
    if (choice->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("tool_choice"), "a string or an object", choice, r->error);
    const di_json *type = di_json_get(choice, "type");
    if (di_json_string_is(type, "allowed_tools")) return read_allowed(r, choice);
    bool chat = r->flavour == DI_FLAVOUR_CHAT;
    bool custom = !chat && di_json_string_is(type, "custom");
    if (!di_is_absent(type) && !di_json_string_is(type, "function") && !custom)
        return di_fail(r->error, DI_ERR_UNSUPPORTED, "tool_choice.type",
                       "tool_choice.type must be \"function\"%s or \"allowed_tools\"", chat ? "" : ", \"custom\"");
    const char *name = NULL, *space = NULL;
    di_status status = read_tool_name(r, choice, di_path("tool_choice"), &name, &space);
    di_field_path path = di_path(chat ? "tool_choice.function.name" : "tool_choice.name");
    return status == DI_OK ? choose_named(r, name, space, path) : status;
}

static di_status read_flag(di_reader *r, const di_json *value, di_field_path path, bool *flag) {
    if (di_is_absent(value)) return DI_OK;
    if (value->type != DI_JSON_TRUE && value->type != DI_JSON_FALSE)
        return di_bad_type(path, "true or false", value, r->error);
    *flag = di_json_is_true(value);
    return DI_OK;
}

static di_status read_messages_choice(di_reader *r, const di_json *choice) {
    const di_json *type = di_json_get(choice, "type");
    if (choice->type != DI_JSON_OBJECT || !type || type->type != DI_JSON_STRING)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "tool_choice", "tool_choice must be an object with a type");
    di_status status = read_flag(r, di_json_get(choice, "disable_parallel_tool_use"),
                                 di_path("tool_choice.disable_parallel_tool_use"), &r->conversation->one_call);
    if (status != DI_OK) return status;
    if (di_json_string_is(type, "none")) {
        r->conversation->choice = DI_CHOICE_NONE;
    } else if (di_json_string_is(type, "tool")) {
        const char *name = NULL;
        status = di_read_name(r, choice, "name", di_path("tool_choice.name"), true, &name);
        if (status == DI_OK) status = choose_named(r, name, NULL, di_path("tool_choice.name"));
    } else if (di_json_string_is(type, "any")) {
        if (!r->conversation->tool_count) return no_tools(r);
        r->conversation->choice = DI_CHOICE_REQUIRED;
    } else if (!di_json_string_is(type, "auto")) {
        status = di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "tool_choice.type",
                         "tool_choice.type must be \"auto\", \"any\", \"tool\" or \"none\", not \"%.60s\"", type->text);
    }
    return status;
}

di_status di_read_choice(di_reader *r) {
    const di_json *choice = di_json_get(r->request, "tool_choice");
    bool parallel = true;
    di_status status = DI_OK;
    if (!di_is_absent(choice))
        status = r->flavour == DI_FLAVOUR_MESSAGES ? read_messages_choice(r, choice) : read_openai_choice(r, choice);
    if (status != DI_OK || r->flavour == DI_FLAVOUR_MESSAGES) return status;
    status = read_flag(r, di_json_get(r->request, "parallel_tool_calls"), di_path("parallel_tool_calls"), &parallel);
    r->conversation->one_call = !parallel;
    return status;
}

/* ---------------------------------------------------------------------------------------------- the format */

static di_status read_schema_format(di_reader *r, const di_json *format, const char *path) {
    bool chat = r->flavour == DI_FLAVOUR_CHAT;
    const di_json *holder = chat ? di_json_get(format, "json_schema") : format;
    const di_json *schema = di_json_get(holder, "schema"), *strict = di_json_get(holder, "strict");
    di_field_path schema_path = di_path(chat ? "%s.json_schema.schema" : "%s.schema", path);
    bool is_strict = false;
    if (!schema || schema->type != DI_JSON_OBJECT) return di_bad_type(schema_path, "an object", schema, r->error);
    di_status status = read_flag(r, strict, di_path(chat ? "%s.json_schema.strict" : "%s.strict", path), &is_strict);
    r->conversation->format = DI_FORMAT_JSON_SCHEMA;
    r->conversation->schema = schema;
    return status;
}

di_status di_read_format(di_reader *r, const di_json *format, const char *path) {
    if (di_is_absent(format)) return DI_OK;
    const di_json *type = di_json_get(format, "type");
    bool chat = r->flavour == DI_FLAVOUR_CHAT, schema_only = r->flavour == DI_FLAVOUR_MESSAGES;
    if (format->type != DI_JSON_OBJECT || !type || type->type != DI_JSON_STRING)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path, "%s must be an object with a type", path);
    if (di_json_string_is(type, "json_schema")) return read_schema_format(r, format, path);
    if (di_json_string_is(type, "text") && !schema_only) return DI_OK;
    if (di_json_string_is(type, "json_object") && !schema_only) {
        r->conversation->format = DI_FORMAT_JSON_OBJECT;
        return DI_OK;
    }
    if (chat && di_json_string_is(type, "regex")) {
        r->conversation->format = DI_FORMAT_REGEX;
        return di_read_name(r, format, "regex", di_path("%s.regex", path), true, &r->conversation->regex);
    }
    return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("%s.type", path).text,
                   "%s.type must be %s\"json_schema\"%s, not \"%.60s\"", path,
                   schema_only ? "" : "\"text\", \"json_object\", ", chat ? " or \"regex\"" : "", type->text);
}
