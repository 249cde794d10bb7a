/* Requests to /v1/responses. */
#include "recipe/recipe_internal.h"

#include <stdlib.h>
#include <string.h>

/* The assistant turn under construction: reasoning, a message and calls that follow each other. */
typedef struct turn {
    di_reader *reader;
    di_text reasoning;
    bool has_reasoning, has_message;
    di_content *content; /* [content_count] */
    size_t content_count, content_capacity;
    di_tool_call *calls; /* [call_count] */
    size_t call_count, call_capacity, origin;
    bool *answered; /* [call_count] while results are read */
    di_id_table ids;
    size_t open;
} turn;

static di_status memory(turn *t) {
    return di_reader_memory(t->reader);
}

/* ---------------------------------------------------------------------------------------------- turns */

static int compare_calls(const void *a, const void *b) {
    return strcmp(((const di_tool_call *)a)->id, ((const di_tool_call *)b)->id);
}

/* Ends the turn, if there is one. */
static di_status end_turn(turn *t) {
    di_reader *r = t->reader;
    if (!t->has_reasoning && !t->has_message && !t->call_count) return DI_OK;
    di_message *message = di_reader_add(r, DI_ROLE_ASSISTANT, t->origin);
    if (!message) return DI_ERR_MEMORY;
    if (t->call_count) qsort(t->calls, t->call_count, sizeof *t->calls, compare_calls);
    message->content = t->content;
    message->content_count = t->content_count;
    message->calls = t->calls;
    message->call_count = t->call_count;
    if (t->has_reasoning) {
        message->reasoning = t->reasoning.failed ? NULL
                                                 : di_arena_copy(r->arena, t->reasoning.data ? t->reasoning.data : "",
                                                                 t->reasoning.length);
        message->reasoning_length = t->reasoning.length;
        if (!message->reasoning) return memory(t);
    }
    t->open = t->call_count;
    if (t->call_count) {
        t->answered = di_arena_zalloc(r->arena, t->call_count);
        if (!t->answered || !di_id_table_calls(&t->ids, r->arena, t->calls, t->call_count)) return memory(t);
    }
    const char *twice = t->call_count ? di_id_table_duplicate(&t->ids) : NULL;
    if (twice)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, di_path("input[%zu].call_id", t->origin).text,
                       "Duplicate 'call_id': %.128s.", twice);
    di_text_clear(&t->reasoning);
    t->has_reasoning = t->has_message = false;
    t->content = NULL;
    t->content_count = t->content_capacity = t->call_count = t->call_capacity = 0;
    return DI_OK;
}

/* Everything but results: those of the turn before must be complete. */
static di_status check_answered(turn *t) {
    if (!t->open) return DI_OK;
    size_t i = 0;
    while (t->answered[t->ids.entries[i].position]) i++;
    return di_fail(t->reader->error, DI_ERR_INVALID_ARGUMENT, di_path("input[%zu]", t->origin).text,
                   "No tool output found for tool call %.128s.", t->ids.entries[i].id);
}

/* ---------------------------------------------------------------------------------------------- content */

static di_status read_part(di_reader *r, const di_json *part, di_field_path path, di_role role, di_content *content) {
    static const char *const texts[] = {"input_text", "output_text", "text"};
    const di_json *type = di_json_get(part, "type");
    bool refusal = di_json_string_is(type, "refusal");
    if (di_one_of(type, texts, sizeof texts / sizeof *texts) || refusal) {
        const char *member = refusal ? "refusal" : "text";
        const di_json *text = di_json_get(part, member);
        if (!text || text->type != DI_JSON_STRING)
            return di_bad_type(di_path("%.80s.%s", path.text, member), "a string", text, r->error);
        *content = (di_content){DI_CONTENT_TEXT, text->text, text->length};
        return DI_OK;
    }
    if (di_json_string_is(type, "input_image")) {
        if (role == DI_ROLE_ASSISTANT)
            return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "Image in assistant message is not supported");
        return di_read_image(r, path, di_json_get(part, "image_url"), content);
    }
    if (!type || type->type != DI_JSON_STRING)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "%s must be an object with a type", path.text);
    return di_fail(r->error, DI_ERR_UNSUPPORTED, path.text, "%s: parts of type \"%.40s\" are not supported", path.text,
                   type->text);
}

static di_status read_content(di_reader *r, const di_json *value, di_field_path path, di_role role,
                              const di_content **content, size_t *count) {
    if (value && value->type == DI_JSON_STRING) return di_read_text(r, value->text, value->length, content, count);
    if (!value || value->type != DI_JSON_ARRAY)
        return di_bad_type(path, "a string or a list of parts", value, r->error);
    di_content *list = di_arena_array(r->arena, (size_t)value->count + 1, sizeof *list);
    if (!list) return di_reader_memory(r);
    di_status status = DI_OK;
    *content = list;
    *count = 0;
    for (const di_json *part = value->first; part && status == DI_OK; part = part->next, ++*count)
        status = read_part(r, part, di_path("%.70s[%zu]", path.text, *count), role, &list[*count]);
    return status;
}

/* ---------------------------------------------------------------------------------------------- items */

/* What the assistant said is joined over its messages, empty ones left out. */
static di_status read_said(turn *t, const di_json *value, di_field_path path) {
    const di_content *more = NULL;
    size_t count = 0, skip = 0;
    di_status status = read_content(t->reader, value, path, DI_ROLE_ASSISTANT, &more, &count);
    if (status != DI_OK) return status;
    bool empty = true;
    for (size_t i = 0; i < count; i++) empty &= !more[i].length && i == 0;
    if (empty) skip = count;
    if (t->content_count + count > t->content_capacity) {
        size_t capacity = 2 * (t->content_count + count);
        di_content *content = di_arena_array(t->reader->arena, capacity, sizeof *content);
        if (!content) return memory(t);
        if (t->content_count) memcpy(content, t->content, t->content_count * sizeof *content);
        t->content = content;
        t->content_capacity = capacity;
    }
    for (size_t i = skip; i < count; i++) t->content[t->content_count++] = more[i];
    return DI_OK;
}

static di_status read_message(turn *t, size_t index, const di_json *item) {
    static const char *const names[] = {"user", "system", "developer", "assistant"};
    static const di_role roles[] = {DI_ROLE_USER, DI_ROLE_SYSTEM, DI_ROLE_SYSTEM, DI_ROLE_ASSISTANT};
    di_reader *r = t->reader;
    const di_json *role = di_json_get(item, "role"), *content = di_json_get(item, "content");
    di_field_path path = di_path("input[%zu].role", index);
    size_t i = 0;
    if (!role || role->type != DI_JSON_STRING) return di_bad_type(path, "a string", role, r->error);
    while (i < 4 && !di_json_string_is(role, names[i])) i++;
    if (i == 4)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "%s: unknown role \"%.40s\"; known are user, system, developer and assistant", path.text,
                       role->text);
    path = di_path("input[%zu].content", index);
    if (roles[i] == DI_ROLE_ASSISTANT) {
        di_status status = t->call_count ? end_turn(t) : DI_OK;
        if (status == DI_OK) status = check_answered(t);
        if (status != DI_OK) return status;
        t->has_message = true;
        t->origin = index;
        return read_said(t, content, path);
    }
    di_status status = end_turn(t);
    if (status == DI_OK) status = check_answered(t);
    di_message *message = status == DI_OK ? di_reader_add(r, roles[i], index) : NULL;
    if (!message) return status == DI_OK ? DI_ERR_MEMORY : status;
    message->kept = true;
    return read_content(r, content, path, roles[i], &message->content, &message->content_count);
}

/* The texts of its content, one a line. Summaries are for people. */
static di_status read_reasoning(turn *t, size_t index, const di_json *item) {
    di_reader *r = t->reader;
    const di_json *content = di_json_get(item, "content");
    if (di_is_absent(content)) return DI_OK;
    if (content->type != DI_JSON_ARRAY)
        return di_bad_type(di_path("input[%zu].content", index), "a list of parts", content, r->error);
    size_t i = 0, length = content->count ? content->count - 1 : 0;
    for (const di_json *part = content->first; part; part = part->next, i++) {
        const di_json *text = di_json_get(part, "text");
        if (!text || text->type != DI_JSON_STRING)
            return di_bad_type(di_path("input[%zu].content[%zu].text", index, i), "a string", text, r->error);
        length += text->length;
    }
    if (!length) return DI_OK; /* no reasoning at all */
    di_status status = t->content_count || t->call_count ? end_turn(t) : DI_OK;
    if (status == DI_OK) status = check_answered(t);
    if (status != DI_OK) return status;
    if (t->has_reasoning) di_text_putc(&t->reasoning, '\n');
    for (const di_json *part = content->first; part; part = part->next) {
        const di_json *text = di_json_get(part, "text");
        if (part != content->first) di_text_putc(&t->reasoning, '\n');
        di_text_append(&t->reasoning, text->text, text->length);
    }
    t->origin = index;
    t->has_reasoning = true;
    return DI_OK;
}

/* The name that the model is shown for a tool of a namespace: of several declared alike the first one's. */
static di_status shown_name(di_reader *r, const char *space, const char *name, const char **shown) {
    *shown = name;
    if (!space) return DI_OK;
    di_text text = {0};
    di_text_printf(&text, "%s::%s", space, name);
    *shown = text.failed ? NULL : di_arena_copy(r->arena, text.data, text.length);
    di_text_free(&text);
    return *shown ? DI_OK : di_reader_memory(r);
}

/* The input of a custom call as its one argument. */
static di_status custom_arguments(di_reader *r, const di_json *input, di_field_path path, di_tool_call *call) {
    if (!input || input->type != DI_JSON_STRING) return di_bad_type(path, "a string", input, r->error);
    di_json *object = di_arena_zalloc(r->arena, sizeof *object), *member = di_arena_zalloc(r->arena, sizeof *member);
    if (!object || !member) return di_reader_memory(r);
    *member = *input;
    member->key = "input";
    member->key_length = strlen("input");
    member->next = NULL;
    object->type = DI_JSON_OBJECT;
    object->count = 1;
    object->first = member;
    call->arguments = object;
    return DI_OK;
}

static di_tool_call *add_call(turn *t) {
    if (t->call_count == t->call_capacity) {
        size_t capacity = t->call_capacity ? 2 * t->call_capacity : 8;
        di_tool_call *calls = di_arena_array(t->reader->arena, capacity, sizeof *calls);
        if (!calls) return NULL;
        if (t->call_count) memcpy(calls, t->calls, t->call_count * sizeof *calls);
        t->calls = calls;
        t->call_capacity = capacity;
    }
    t->calls[t->call_count] = (di_tool_call){0};
    return &t->calls[t->call_count++];
}

static di_status read_call(turn *t, size_t index, const di_json *item, bool custom) {
    di_reader *r = t->reader;
    const char *name = NULL, *space = NULL;
    di_status status = check_answered(t);
    if (status != DI_OK) return status;
    di_tool_call *call = add_call(t);
    if (!call) return memory(t);
    t->origin = index;
    status = di_read_name(r, item, "call_id", di_path("input[%zu].call_id", index), true, &call->id);
    if (status == DI_OK) status = di_read_name(r, item, "name", di_path("input[%zu].name", index), true, &name);
    if (status == DI_OK)
        status = di_read_name(r, item, "namespace", di_path("input[%zu].namespace", index), false, &space);
    if (status == DI_OK) status = shown_name(r, space, name, &call->name);
    if (status != DI_OK) {
        call->id = "";
        return status;
    }
    if (custom) return custom_arguments(r, di_json_get(item, "input"), di_path("input[%zu].input", index), call);
    return di_read_arguments(r, di_json_get(item, "arguments"), di_path("input[%zu].arguments", index), call);
}

static di_status read_output(turn *t, size_t index, const di_json *item) {
    di_reader *r = t->reader;
    const char *id = NULL;
    di_field_path path = di_path("input[%zu].call_id", index);
    di_status status = end_turn(t);
    if (status == DI_OK) status = di_read_name(r, item, "call_id", path, true, &id);
    if (status != DI_OK) return status;
    size_t position = t->answered ? di_id_table_find(&t->ids, id) : SIZE_MAX;
    if (position == SIZE_MAX)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text,
                       "No tool call found for tool output with call_id %.128s.", id);
    if (t->answered[position])
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, path.text, "Duplicate tool output for call_id: %.128s.", id);
    t->answered[position] = true;
    t->open--;
    di_message *message = di_reader_add(r, DI_ROLE_TOOL, index);
    if (!message) return DI_ERR_MEMORY;
    message->call_id = id;
    return read_content(r, di_json_get(item, "output"), di_path("input[%zu].output", index), DI_ROLE_TOOL,
                        &message->content, &message->content_count);
}

static di_status read_item(turn *t, size_t index, const di_json *item) {
    const di_json *type = di_json_get(item, "type");
    if (item->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("input[%zu]", index), "an object", item, t->reader->error);
    if (di_is_absent(type) || di_json_string_is(type, "message")) return read_message(t, index, item);
    if (di_json_string_is(type, "reasoning")) return read_reasoning(t, index, item);
    if (di_json_string_is(type, "function_call")) return read_call(t, index, item, false);
    if (di_json_string_is(type, "custom_tool_call")) return read_call(t, index, item, true);
    if (di_json_string_is(type, "function_call_output") || di_json_string_is(type, "custom_tool_call_output"))
        return read_output(t, index, item);
    if (di_json_string_is(type, "item_reference"))
        return di_fail(t->reader->error, DI_ERR_UNSUPPORTED, di_path("input[%zu].type", index).text,
                       "input[%zu]: items are not stored here, so there is none to refer to", index);
    if (type->type != DI_JSON_STRING)
        return di_bad_type(di_path("input[%zu].type", index), "a string", type, t->reader->error);
    return DI_OK; /* items of the host's own tools are passed over */
}

/* ---------------------------------------------------------------------------------------------- the request */

static di_status read_input(di_reader *r, const di_json *input) {
    if (input->type == DI_JSON_STRING) {
        di_message *message = di_reader_add(r, DI_ROLE_USER, 0);
        return message ? di_read_text(r, input->text, input->length, &message->content, &message->content_count)
                       : DI_ERR_MEMORY;
    }
    if (input->type != DI_JSON_ARRAY)
        return di_bad_type(di_path("input"), "a string or a list of items", input, r->error);
    if (!input->count)
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "input", "Input items array must not be empty");
    turn t = {.reader = r};
    size_t index = 0;
    di_status status = DI_OK;
    for (const di_json *item = input->first; item && status == DI_OK; item = item->next, index++)
        status = read_item(&t, index, item);
    if (status == DI_OK) status = end_turn(&t);
    if (status == DI_OK) status = check_answered(&t);
    di_text_free(&t.reasoning);
    return status;
}

static di_status read_options(di_reader *r) {
    const di_json *text = di_json_get(r->request, "text"), *reasoning = di_json_get(r->request, "reasoning");
    if (!di_is_absent(text) && text->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("text"), "an object", text, r->error);
    if (!di_is_absent(reasoning) && reasoning->type != DI_JSON_OBJECT)
        return di_bad_type(di_path("reasoning"), "an object", reasoning, r->error);
    di_status status = di_read_effort(r, di_json_get(reasoning, "effort"), di_path("reasoning.effort"));
    return status == DI_OK ? di_read_format(r, di_json_get(text, "format"), "text.format") : status;
}

di_status di_request_responses(di_reader *r) {
    const di_json *instructions = di_json_get(r->request, "instructions"), *input = di_json_get(r->request, "input");
    di_status status = DI_OK;
    if (di_is_absent(instructions) && di_is_absent(input))
        return di_fail(r->error, DI_ERR_INVALID_ARGUMENT, "input", "Either input or instructions must be provided");
    if (!di_is_absent(instructions)) {
        if (instructions->type != DI_JSON_STRING)
            return di_bad_type(di_path("instructions"), "a string", instructions, r->error);
        di_message *message = di_reader_add(r, DI_ROLE_SYSTEM, SIZE_MAX);
        if (!message) return DI_ERR_MEMORY;
        status = di_read_text(r, instructions->text, instructions->length, &message->content, &message->content_count);
    }
    if (status == DI_OK && !di_is_absent(input)) status = read_input(r, input);
    return status == DI_OK ? read_options(r) : status;
}
