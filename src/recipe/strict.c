/* Strict tools: their schemas as the model is shown them. */
#include "recipe/recipe_internal.h"

#include <stdlib.h>
#include <string.h>

typedef struct strict {
    di_arena *arena;
    di_field_path path;
    di_error *error;
    di_status status;
} strict;

static di_json *node(strict *s, di_json_type type, const char *key) {
    di_json *made = di_arena_zalloc(s->arena, sizeof *made);
    if (!made) {
        s->status = di_fail(s->error, DI_ERR_MEMORY, s->path.text, "out of memory for a schema");
        return NULL;
    }
    made->type = type;
    made->key = key;
    made->key_length = key ? strlen(key) : 0;
    return made;
}

/* `before` NAME `after`; without a name `before` is all. */
static void fail(strict *s, const char *before, const char *name, const char *after) {
    if (s->status != DI_OK) return;
    s->status = di_fail(s->error, DI_ERR_INVALID_ARGUMENT, s->path.text, "%s%.60s%s", before, name ? name : "",
                        name ? after : "");
}

/* Appends to the object under construction. */
static void append(di_json *object, di_json **last, di_json *member) {
    if (!member) return;
    member->next = NULL;
    if (*last)
        (*last)->next = member;
    else
        object->first = member;
    *last = member;
    object->count++;
}

static di_json *copy(strict *s, const di_json *source) {
    di_json *made = node(s, source->type, NULL);
    if (made) *made = *source;
    return made;
}

/* Names as a table: the keys of an object, or the strings of an array. */
static bool names_of(strict *s, const di_json *list, di_id_table *table) {
    size_t count = list ? list->count : 0, i = 0;
    const char **names = di_arena_array(s->arena, count + 1, sizeof *names);
    for (const di_json *item = list ? list->first : NULL; names && item; item = item->next, i++) {
        bool array = list->type == DI_JSON_ARRAY;
        names[i] = array ? item->text : item->key;
        if ((array && item->type != DI_JSON_STRING) || strlen(names[i]) != (array ? item->length : item->key_length)) {
            fail(s, "names of properties must be strings without zero bytes", NULL, NULL);
            return false;
        }
    }
    if (names && di_id_table_build(table, s->arena, names, count)) return true;
    s->status = di_fail(s->error, DI_ERR_MEMORY, s->path.text, "out of memory for a schema");
    return false;
}

/* `required` must name every property, each once. */
static void check_required(strict *s, const di_json *required, const di_json *properties) {
    di_id_table listed, known;
    if (required->type != DI_JSON_ARRAY) {
        fail(s, "required must be an array of property names", NULL, NULL);
        return;
    }
    if (!names_of(s, required, &listed) || !names_of(s, properties, &known)) return;
    const char *twice = di_id_table_duplicate(&listed);
    if (twice) fail(s, "Duplicate required property '", twice, "'");
    for (size_t i = 0; i < listed.count; i++)
        if (di_id_table_find(&known, listed.entries[i].id) == SIZE_MAX)
            fail(s, "Required property '", listed.entries[i].id, "' not found in object");
    for (size_t i = 0; i < known.count; i++)
        if (di_id_table_find(&listed, known.entries[i].id) == SIZE_MAX)
            fail(s, "Required properties must match all properties in the object", NULL, NULL);
}

static di_json *required_of(strict *s, const di_json *properties) {
    di_json *list = node(s, DI_JSON_ARRAY, "required"), *last = NULL;
    const di_json **values = properties ? di_json_fold(properties) : NULL;
    if (properties && !values) s->status = di_fail(s->error, DI_ERR_MEMORY, s->path.text, "out of memory for a schema");
    const di_json *property = values ? properties->first : NULL;
    for (size_t i = 0; list && property && s->status == DI_OK; property = property->next, i++) {
        di_json *name = values[i] ? node(s, DI_JSON_STRING, NULL) : NULL;
        if (!name) continue;
        name->text = property->key;
        name->length = property->key_length;
        append(list, &last, name);
    }
    free(values);
    return list;
}

static di_json *convert(strict *s, const di_json *schema);

/* The members of an object whose values are schemas. */
static di_json *convert_members(strict *s, const di_json *source) {
    di_json *made = copy(s, source), *last = NULL;
    if (!made) return NULL;
    made->first = NULL;
    made->count = 0;
    for (const di_json *member = source->first; member && s->status == DI_OK; member = member->next)
        append(made, &last, convert(s, member));
    return made;
}

static di_json *convert_keyword(strict *s, const di_json *member) {
    static const char *const maps[] = {"properties", "$defs", "definitions", "patternProperties"};
    static const char *const schemas[] = {"items", "anyOf", "oneOf", "allOf", "prefixItems",
                                          "not",   "if",    "then",  "else"};
    const di_json key = {.type = DI_JSON_STRING, .text = member->key, .length = member->key_length};
    if (member->type == DI_JSON_OBJECT && di_one_of(&key, maps, sizeof maps / sizeof *maps))
        return convert_members(s, member);
    if (!di_one_of(&key, schemas, sizeof schemas / sizeof *schemas)) return copy(s, member);
    return member->type == DI_JSON_ARRAY ? convert_members(s, member) : convert(s, member);
}

/* Recursion is bounded by the depth that the JSON reader allows. */
static di_json *convert(strict *s, const di_json *schema) {
    di_json *made = copy(s, schema), *last = NULL;
    if (!made || schema->type != DI_JSON_OBJECT) return made;
    const di_json *properties = di_json_get(schema, "properties");
    bool object = di_json_string_is(di_json_get(schema, "type"), "object");
    const di_json *extra = di_json_get(schema, "additionalProperties"), *required = di_json_get(schema, "required");
    made->first = NULL;
    made->count = 0;
    for (const di_json *member = schema->first; member && s->status == DI_OK; member = member->next)
        append(made, &last, convert_keyword(s, member));
    if (!object || s->status != DI_OK) return made;
    if (properties && properties->type != DI_JSON_OBJECT) fail(s, "properties must be an object", NULL, NULL);
    if (s->status != DI_OK) return made;
    if (!properties) {
        append(made, &last, node(s, DI_JSON_OBJECT, "properties"));
    }
    if (extra && extra->type != DI_JSON_FALSE)
        fail(s, "additionalProperties must be false in a strict tool", NULL, NULL);
    if (!extra) append(made, &last, node(s, DI_JSON_FALSE, "additionalProperties"));
    if (required)
        check_required(s, required, properties);
    else
        append(made, &last, required_of(s, properties));
    return made;
}

di_status di_strict_schema(di_arena *arena, const di_json *schema, di_field_path path, const di_json **result,
                           di_error *error) {
    strict s = {.arena = arena, .path = path, .error = error};
    di_json *empty = NULL;
    if (!schema) {
        di_json *type = node(&s, DI_JSON_STRING, "type");
        empty = node(&s, DI_JSON_OBJECT, NULL);
        if (!type || !empty) return s.status;
        type->text = "object";
        type->length = strlen("object");
        empty->first = type;
        empty->count = 1;
    }
    *result = convert(&s, schema ? schema : empty);
    return s.status;
}
