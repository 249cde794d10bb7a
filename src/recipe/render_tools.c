/* Tools in prompts: their declarations, calls of the history, response formats. */
#include "recipe/recipe_internal.h"

#include <stdlib.h>
#include <string.h>

const char *di_tag_gap(const di_recipe *recipe) {
    return di_is_v41(recipe) ? " " : "";
}

const char *di_block_name(const di_recipe *recipe) {
    return di_is_v41(recipe) ? "calls" : "tool_calls";
}

const char *di_block_opener(const di_recipe *recipe) {
    return di_is_v41(recipe) ? "\n\n<" DI_DSML " calls>\n" : "\n\n<" DI_DSML "tool_calls>\n";
}

static void put(di_builder *b, const char *text) {
    di_put_text(b, text, strlen(text));
}

static void put_json(di_builder *b, const di_json *value) {
    di_text text = {0};
    di_json_writer writer;
    di_json_begin(&writer, &text);
    writer.python = true;
    di_json_value(&writer, value);
    if (text.failed)
        b->failed = true;
    else
        di_put_text(b, text.data, text.length);
    di_text_free(&text);
}

/* {"name": ..., "description": ..., "parameters": ...} */
static void put_declaration(di_builder *b, const di_tool *tool) {
    di_text text = {0};
    di_json_writer writer;
    di_json_begin(&writer, &text);
    writer.python = true;
    di_json_object_begin(&writer);
    di_json_key(&writer, "name");
    di_json_string(&writer, tool->name);
    di_json_key(&writer, "description");
    di_json_string(&writer, tool->description ? tool->description : "");
    di_json_key(&writer, "parameters");
    if (tool->parameters)
        di_json_value(&writer, tool->parameters);
    else
        di_json_raw(&writer, "{}", 2);
    di_json_object_end(&writer);
    if (text.failed)
        b->failed = true;
    else
        di_put_text(b, text.data, text.length);
    di_text_free(&text);
}

void di_put_tools(di_builder *b) {
    const di_conversation *c = b->conversation;
    const char *head = di_is_v41(b->recipe) ? di_tools_head_v41 : di_tools_head_v4;
    put(b, "\n\n");
    di_put_template(b, head, strlen(head));
    bool first = true;
    for (size_t i = 0; i < c->tool_count; i++) {
        if (c->choice == DI_CHOICE_NAMED && &c->tools[i] != c->named) continue;
        if (!first) put(b, "\n");
        put_declaration(b, &c->tools[i]);
        first = false;
    }
    put(b, di_tools_tail);
}

void di_put_response_format(di_builder *b) {
    const di_conversation *c = b->conversation;
    put(b, "\n\n");
    if (c->format == DI_FORMAT_JSON_OBJECT && !di_is_v41(b->recipe)) {
        put(b, di_format_json_v4);
        return;
    }
    put(b, di_format_head);
    if (c->format == DI_FORMAT_JSON_OBJECT)
        put(b, "{\"type\": \"json_object\"}");
    else
        put_json(b, c->schema);
}

/* <｜DSML｜ NAME, or its closer */
static void put_tag(di_builder *b, const char *bracket, const char *name) {
    put(b, bracket);
    di_put_control(b, DI_CONTROL_DSML);
    put(b, di_tag_gap(b->recipe));
    put(b, name);
}

static void put_parameter(di_builder *b, const char *key, size_t key_length, const di_json *value, const char *raw,
                          size_t raw_length) {
    bool string = !value || value->type == DI_JSON_STRING;
    put_tag(b, "<", "parameter name=\"");
    di_put_text(b, key, key_length);
    put(b, string ? "\" string=\"true\">" : "\" string=\"false\">");
    if (!value)
        di_put_text(b, raw, raw_length);
    else if (string)
        di_put_text(b, value->text, value->length);
    else
        put_json(b, value);
    put_tag(b, "</", "parameter>\n");
}

static void put_call(di_builder *b, const di_tool_call *call) {
    put_tag(b, "<", "invoke name=\"");
    put(b, call->name);
    put(b, "\">\n");
    if (!call->arguments) {
        put_parameter(b, "arguments", strlen("arguments"), NULL, call->raw, call->raw_length);
    } else {
        const di_json **values = di_json_fold(call->arguments);
        const di_json *member = call->arguments->first;
        if (!values) b->failed = true;
        for (size_t i = 0; values && member; member = member->next, i++)
            if (values[i]) put_parameter(b, member->key, member->key_length, values[i], NULL, 0);
        free(values);
        if (!call->arguments->count && di_is_v41(b->recipe)) put(b, "\n");
    }
    put_tag(b, "</", "invoke>");
}

void di_put_block_opener(di_builder *b) {
    put(b, "\n\n");
    put_tag(b, "<", di_block_name(b->recipe));
    put(b, ">\n");
}

void di_put_calls(di_builder *b, const di_tool_call *calls, size_t count) {
    if (!count) return;
    di_put_block_opener(b);
    for (size_t i = 0; i < count; i++) {
        put_call(b, &calls[i]);
        put(b, "\n");
    }
    put_tag(b, "</", di_block_name(b->recipe));
    put(b, ">");
}
