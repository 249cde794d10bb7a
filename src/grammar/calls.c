/* calls.c - see calls.h. */
#include "grammar/calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "grammar/regex.h"
#include "grammar/schema.h"

#define MARK                                                                                                           \
    "\xEF\xBD\x9C"                                                                                                     \
    "DSML"                                                                                                             \
    "\xEF\xBD\x9C"

enum { MAX_TOOLS = 1024, MAX_PARAMETERS = 512 };

typedef struct calls {
    di_exprs *x;
    di_symbols *s;
    di_arena *arena;
    const di_grammar_source *source;
    di_grammar_fault *fault;
    const char *gap, *block;
    di_symbol mark;
} calls;

static bool refuse(calls *c, di_grammar_reason reason, const char *pointer, const char *format, ...) DI_PRINTF(4, 5);
static bool refuse(calls *c, di_grammar_reason reason, const char *pointer, const char *format, ...) {
    if (c->fault->reason != DI_REASON_NONE || c->x->failed != DI_OK) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->fault->message, sizeof c->fault->message, format, arguments);
    va_end(arguments);
    c->fault->reason = reason;
    snprintf(c->fault->pointer, sizeof c->fault->pointer, "%s", pointer);
    return false;
}

static di_symbol then(calls *c, di_symbol a, di_symbol b) {
    return di_sym_sequence(c->s, c->x, a, b);
}

/* Text in which ｜DSML｜ stands for the token; `next` follows. */
static di_symbol before(calls *c, const char *text, size_t length, di_symbol next) {
    const char *at = memmem(text, length, MARK, strlen(MARK));
    size_t first = at ? (size_t)(at - text) : length;
    if (at) {
        size_t used = first + strlen(MARK);
        next = then(c, c->mark, before(c, text + used, length - used, next));
    }
    return first ? then(c, di_sym_lexeme(c->s, c->x, di_expr_literal(c->x, text, first)), next) : next;
}

/* `open` is "<" or "</"; the tag's inside is `tag` and `rest`. */
static di_symbol tag(calls *c, const char *open, const char *name, const char *rest, di_symbol next) {
    di_text text = {0};
    di_text_printf(&text, "%s" MARK "%s%s%s", open, c->gap, name, rest);
    if (text.failed) c->x->failed = DI_ERR_MEMORY;
    di_symbol result = text.failed ? DI_SYMBOL_EMPTY : before(c, text.data, text.length, next);
    di_text_free(&text);
    return result;
}

/* ---------------------------------------------------------------------------------------------- parameters */

static bool is_plain_string(const di_json *schema) {
    return schema->type == DI_JSON_OBJECT && di_json_string_is(di_json_get(schema, "type"), "string");
}

static bool limit_of(const di_json *schema, const char *name, uint32_t *value) {
    const di_json *node = di_json_get(schema, name);
    int64_t number;
    if (!node) return true;
    if (!di_json_int64(node, &number) || number < 0 || number >= DI_UNBOUNDED) return false;
    *value = (uint32_t)number;
    return true;
}

/* True for members that say nothing about which strings are valid, or that string_language reads. */
static bool is_known(const char *key) {
    static const char *const names[] = {"type",      "enum",        "const",     "pattern",   "minLength",
                                        "maxLength", "title",       "default",   "examples",  "$comment",
                                        "readOnly",  "description", "writeOnly", "deprecated"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(key, names[i]) == 0) return true;
    return false;
}

/* The texts of {"type": "string", ...} as they are written in a parameter; false when that has to go as JSON. */
static bool string_language(calls *c, const di_json *schema, di_expr *language) {
    *language = DI_EXPR_ALL;
    for (const di_json *member = schema->first; member; member = member->next)
        if (!is_known(member->key)) return false;
    const di_json *list = di_json_get(schema, "enum"), *one = di_json_get(schema, "const");
    const di_json *pattern = di_json_get(schema, "pattern");
    if ((list && list->type != DI_JSON_ARRAY) || (pattern && pattern->type != DI_JSON_STRING)) return false;
    if (list) {
        di_expr any = DI_EXPR_EMPTY;
        for (const di_json *item = list->first; item; item = item->next)
            if (item->type == DI_JSON_STRING)
                any = di_expr_or2(c->x, any, di_expr_literal(c->x, item->text, item->length));
        *language = di_expr_and2(c->x, *language, any);
    }
    if (one) {
        if (one->type != DI_JSON_STRING) return false;
        *language = di_expr_and2(c->x, *language, di_expr_literal(c->x, one->text, one->length));
    }
    if (pattern) {
        di_regex_options options = {.encoding = DI_ENCODING_UTF8, .search = true, .ecma = true};
        di_regex_fault fault;
        di_expr found;
        if (!di_regex_compile(c->x, pattern->text, pattern->length, &options, &found, &fault)) return false;
        *language = di_expr_and2(c->x, *language, found);
    }
    uint32_t low = 0, high = DI_UNBOUNDED;
    if (!limit_of(schema, "minLength", &low) || !limit_of(schema, "maxLength", &high) || low > high) return false;
    di_expr characters = di_expr_repeat(c->x, di_expr_any_point(c->x, DI_ENCODING_UTF8), low, high);
    *language = di_expr_and2(c->x, *language, characters);
    return true;
}

/* Texts without the closing mark; the empty text is one of them. */
static di_symbol text_of(calls *c, di_expr language) {
    static const char closer[] = "</" MARK;
    di_expr holds = di_expr_cat(c->x, DI_EXPR_ALL,
                                di_expr_cat(c->x, di_expr_literal(c->x, closer, sizeof closer - 1), DI_EXPR_ALL));
    return di_sym_lexeme(c->s, c->x, di_expr_minus(c->x, language, holds));
}

/* The schema of a tool's arguments as a document of its own, opened when the first of them needs it. */
typedef struct document {
    const di_json *parameters;
    di_grammar_source source;
    di_grammar_fault fault;
    di_text text;
    compiler schema;
    bool open;
} document;

static bool open_document(calls *c, document *d) {
    di_json_writer w;
    if (d->open) return true;
    di_json_begin(&w, &d->text);
    di_json_value(&w, d->parameters);
    if (d->text.failed) {
        c->x->failed = DI_ERR_MEMORY;
        return false;
    }
    d->source = *c->source;
    d->source.kind = DI_GRAMMAR_JSON_SCHEMA;
    d->source.text = d->text.data;
    d->source.length = d->text.length;
    d->open = true;
    return di_schema_open(&d->schema, c->x, c->s, &d->source, &d->fault);
}

static void close_document(document *d) {
    if (d->open) di_schema_close(&d->schema);
    di_text_free(&d->text);
}

/* The property of this name; faults below it are told from there. */
static bool json_value(calls *c, document *d, const char *name, const char *pointer, di_symbol *value) {
    char above[sizeof d->fault.pointer] = "";
    bool ok = open_document(c, d);
    if (ok) {
        const di_json *node = di_json_get(di_json_get(d->schema.root, "properties"), name);
        di_schema_pointer(&d->schema, node, above, sizeof above);
        ok = di_schema_part(&d->schema, node, value);
    }
    if (!ok && d->fault.reason != DI_REASON_NONE) {
        const char *inner = d->fault.pointer;
        if (strncmp(inner, above, strlen(above)) == 0) inner += strlen(above);
        refuse(c, d->fault.reason, pointer, "%s: %s", inner[0] ? inner : "here", d->fault.message);
    }
    return ok;
}

/* One parameter, whole. */
static bool parameter(calls *c, document *d, const di_json *property, const char *pointer, di_symbol *out) {
    if (strpbrk(property->key, "\"\n<>") || strlen(property->key) != property->key_length)
        return refuse(c, DI_REASON_UNSUPPORTED, pointer, "this name cannot be written in a call");
    di_symbol value = DI_SYMBOL_EMPTY;
    di_expr language = DI_EXPR_EMPTY;
    bool string = is_plain_string(property) && string_language(c, property, &language);
    if (c->x->failed != DI_OK) return false;
    if (string)
        value = text_of(c, language);
    else if (!json_value(c, d, property->key, pointer, &value))
        return false;
    di_text rest = {0};
    di_text_printf(&rest, " name=\"%s\" string=\"%s\">", property->key, string ? "true" : "false");
    if (rest.failed) c->x->failed = DI_ERR_MEMORY;
    di_symbol end = tag(c, "</", "parameter", ">\n", DI_SYMBOL_EPSILON);
    if (!rest.failed) *out = tag(c, "<", "parameter", rest.data, then(c, value, end));
    di_text_free(&rest);
    return c->x->failed == DI_OK;
}

static bool is_required(const di_json *parameters, const char *name) {
    const di_json *list = di_json_get(parameters, "required");
    if (!list || list->type != DI_JSON_ARRAY) return false;
    for (const di_json *item = list->first; item; item = item->next)
        if (di_json_string_is(item, name)) return true;
    return false;
}

/* What schemas of arguments may say beside their properties without changing which calls are valid here. */
static bool check_parameters(calls *c, const di_json *parameters, const char *pointer) {
    static const char *const known[] = {"type",        "properties",  "required", "additionalProperties",
                                        "$schema",     "description", "title",    "$defs",
                                        "definitions", "$id",         "$comment", "examples",
                                        "default",     "strict"};
    if (parameters->type != DI_JSON_OBJECT)
        return refuse(c, DI_REASON_UNSUPPORTED, pointer, "parameters must be the schema of an object");
    for (const di_json *member = parameters->first; member; member = member->next) {
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(member->key, known[i]) == 0;
        if (!found)
            return refuse(c, DI_REASON_UNSUPPORTED, pointer,
                          "\"%.60s\" beside the properties of a call's arguments cannot be enforced", member->key);
    }
    const di_json *type = di_json_get(parameters, "type"), *properties = di_json_get(parameters, "properties");
    if (type && !di_json_string_is(type, "object"))
        return refuse(c, DI_REASON_UNSUPPORTED, pointer, "the arguments of a call are an object");
    if (properties && properties->type != DI_JSON_OBJECT)
        return refuse(c, DI_REASON_SYNTAX, pointer, "properties must be an object");
    if (properties && properties->count > MAX_PARAMETERS)
        return refuse(c, DI_REASON_TOO_COMPLEX, pointer, "more than %d properties", MAX_PARAMETERS);
    const di_json *required = di_json_get(parameters, "required");
    if (required && required->type != DI_JSON_ARRAY)
        return refuse(c, DI_REASON_SYNTAX, pointer, "required must be a list");
    for (const di_json *item = required ? required->first : NULL; item; item = item->next)
        if (item->type != DI_JSON_STRING || !properties || !di_json_get(properties, item->text))
            return refuse(c, DI_REASON_UNSUPPORTED, pointer, "required names what properties do not declare");
    return true;
}

/* These parameters in order: `rest` grows from the end; `filled` is the same with at least one of them. */
static bool in_order(calls *c, document *d, const di_json *const *list, uint32_t count, const char *pointer,
                     di_symbol *out) {
    di_symbol rest = DI_SYMBOL_EPSILON, filled = DI_SYMBOL_EMPTY;
    bool all_optional = true;
    for (uint32_t i = count; i-- > 0;) {
        char where[512];
        snprintf(where, sizeof where, "%s/properties/%.200s", pointer, list[i]->key);
        di_symbol one = DI_SYMBOL_EMPTY;
        if (!parameter(c, d, list[i], where, &one)) return false;
        di_symbol here = then(c, one, rest);
        bool required = is_required(d->parameters, list[i]->key);
        all_optional &= !required;
        filled = required ? here : di_sym_choice2(c->s, c->x, here, filled);
        rest = required ? here : di_sym_choice2(c->s, c->x, here, rest);
    }
    *out = all_optional ? di_sym_choice2(c->s, c->x, filled, di_sym_text(c->s, c->x, "\n")) : filled;
    return c->x->failed == DI_OK;
}

static bool arguments(calls *c, const di_json *parameters, const char *pointer, di_symbol *out) {
    const di_json *properties = parameters ? di_json_get(parameters, "properties") : NULL;
    if (parameters && !check_parameters(c, parameters, pointer)) return false;
    uint32_t count = 0;
    const di_json **list = di_arena_array(c->arena, (properties ? properties->count : 0) + 1, sizeof *list);
    document *d = di_arena_zalloc(c->arena, sizeof *d);
    if (!list || !d) {
        c->x->failed = DI_ERR_MEMORY;
        return false;
    }
    for (const di_json *property = properties ? properties->first : NULL; property; property = property->next)
        if (di_json_get(properties, property->key) == property) list[count++] = property;
    d->parameters = parameters;
    bool ok = in_order(c, d, list, count, pointer, out);
    close_document(d);
    return ok;
}

/* Any parameters, any values. */
static bool loose_arguments(calls *c, di_symbol *out) {
    di_grammar_source source = *c->source;
    source.kind = DI_GRAMMAR_JSON_SCHEMA;
    source.text = "true";
    source.length = strlen(source.text);
    di_grammar_fault none = {0};
    di_symbol json = DI_SYMBOL_EMPTY;
    if (!di_schema_compile(c->x, c->s, &source, &json, &none)) return false;
    di_regex_fault fault;
    di_regex_options options = {.encoding = DI_ENCODING_UTF8};
    static const char name[] = "[^\"<>\\x00-\\x1f]{1,256}";
    di_expr key;
    if (!di_regex_compile(c->x, name, sizeof name - 1, &options, &key, &fault)) return false;
    di_symbol text = text_of(c, di_expr_star(c->x, di_expr_any_point(c->x, DI_ENCODING_UTF8)));
    di_symbol end = tag(c, "</", "parameter", ">\n", DI_SYMBOL_EPSILON);
    di_symbol value =
        di_sym_choice2(c->s, c->x, then(c, di_sym_text(c->s, c->x, "\" string=\"true\">"), then(c, text, end)),
                       then(c, di_sym_text(c->s, c->x, "\" string=\"false\">"), then(c, json, end)));
    di_symbol one = tag(c, "<", "parameter", " name=\"", then(c, di_sym_lexeme(c->s, c->x, key), value));
    di_symbol some = di_sym_repeat(c->s, c->x, one, 1, DI_UNBOUNDED);
    *out = di_sym_choice2(c->s, c->x, some, di_sym_text(c->s, c->x, "\n"));
    return c->x->failed == DI_OK;
}

/* ---------------------------------------------------------------------------------------------- the whole */

static bool call(calls *c, const di_json *tool, uint32_t index, di_symbol *out) {
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/tools/%u", index);
    const di_json *name = di_json_get(tool, "name"), *parameters = di_json_get(tool, "parameters");
    if (!name || name->type != DI_JSON_STRING || !name->length || strpbrk(name->text, "\"\n<>"))
        return refuse(c, DI_REASON_UNSUPPORTED, pointer, "this name cannot be written in a call");
    snprintf(pointer, sizeof pointer, "/tools/%u/parameters", index);
    di_symbol body = DI_SYMBOL_EMPTY;
    if (!arguments(c, parameters, pointer, &body)) {
        bool strict = di_json_is_true(di_json_get(tool, "strict"));
        if (strict || c->x->failed != DI_OK || c->fault->reason != DI_REASON_UNSUPPORTED) return false;
        *c->fault = (di_grammar_fault){0};
        if (!loose_arguments(c, &body)) return false;
    }
    di_text rest = {0};
    di_text_printf(&rest, " name=\"%s\">\n", name->text);
    if (rest.failed) c->x->failed = DI_ERR_MEMORY;
    di_symbol end = tag(c, "</", "invoke", ">\n", DI_SYMBOL_EPSILON);
    if (!rest.failed) *out = tag(c, "<", "invoke", rest.data, then(c, body, end));
    di_text_free(&rest);
    return c->x->failed == DI_OK;
}

static const char *text_member(calls *c, const di_json *root, const char *name) {
    const di_json *member = di_json_get(root, name);
    if (member && member->type == DI_JSON_STRING) return member->text;
    refuse(c, DI_REASON_SYNTAX, "", "\"%s\" must be a string", name);
    return "";
}

static bool compile(calls *c, di_symbol *root) {
    const di_json *json = NULL, *tools;
    di_error error = {0};
    if (di_json_parse(c->arena, c->source->text, c->source->length, 0, &json, &error) != DI_OK) {
        if (error.status == DI_ERR_MEMORY) c->x->failed = DI_ERR_MEMORY;
        return refuse(c, DI_REASON_SYNTAX, "", "%s", error.message);
    }
    int64_t mark;
    if (!di_json_int64(di_json_get(json, "mark"), &mark) || mark < 0 || mark > INT32_MAX)
        return refuse(c, DI_REASON_SYNTAX, "/mark", "mark must be a token id");
    c->gap = text_member(c, json, "gap");
    c->block = text_member(c, json, "block");
    const char *opening = text_member(c, json, "opening");
    if (c->fault->reason != DI_REASON_NONE) return false;
    c->mark = di_sym_token(c->s, c->x, (uint32_t)mark);
    tools = di_json_get(json, "tools");
    if (!tools || tools->type != DI_JSON_ARRAY || !tools->count)
        return refuse(c, DI_REASON_SYNTAX, "/tools", "tools must be a list with at least one tool");
    if (tools->count > MAX_TOOLS) return refuse(c, DI_REASON_TOO_COMPLEX, "/tools", "more than %d tools", MAX_TOOLS);
    di_symbol any = DI_SYMBOL_EMPTY;
    uint32_t index = 0;
    for (const di_json *tool = tools->first; tool; tool = tool->next) {
        di_symbol one = DI_SYMBOL_EMPTY;
        if (!call(c, tool, index++, &one)) return false;
        any = di_sym_choice2(c->s, c->x, any, one);
    }
    bool single = di_json_is_true(di_json_get(json, "one"));
    di_symbol list = single ? any : di_sym_repeat(c->s, c->x, any, 1, DI_UNBOUNDED);
    di_symbol end = tag(c, "</", c->block, ">", DI_SYMBOL_EPSILON);
    *root = di_sym_prune(c->s, c->x, before(c, opening, strlen(opening), then(c, list, end)));
    if (c->x->failed != DI_OK) return false;
    if (*root == DI_SYMBOL_EMPTY) return refuse(c, DI_REASON_UNSATISFIABLE, "/tools", "no call follows these schemas");
    return true;
}

bool di_calls_compile(di_exprs *x, di_symbols *s, const di_grammar_source *source, di_symbol *root,
                      di_grammar_fault *fault) {
    calls c = {.x = x, .s = s, .source = source, .fault = fault, .arena = di_arena_new(0)};
    if (!c.arena) x->failed = DI_ERR_MEMORY;
    bool ok = c.arena && compile(&c, root);
    di_arena_free(c.arena);
    return ok;
}
