/* schema_openai.c - what the profile "openai" refuses beyond the schema itself; see schema.h. */
#include <string.h>

#include "grammar/schema.h"

enum { MAX_PROPERTIES = 5000, MAX_LEVELS = 10, MAX_ENUM = 1000, MAX_CHARACTERS = 120000 };

typedef struct totals {
    uint32_t properties, values;
    size_t characters;
} totals;

static bool listed(const char *name, const char *const *list) {
    for (; *list; list++)
        if (strcmp(name, *list) == 0) return true;
    return false;
}

static const char *const known[] = {"type",
                                    "enum",
                                    "const",
                                    "anyOf",
                                    "properties",
                                    "required",
                                    "additionalProperties",
                                    "items",
                                    "pattern",
                                    "format",
                                    "multipleOf",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum",
                                    "minItems",
                                    "maxItems",
                                    "$ref",
                                    "$defs",
                                    "definitions",
                                    "title",
                                    "description",
                                    "default",
                                    "examples",
                                    "$schema",
                                    "$id",
                                    "$comment",
                                    "$anchor",
                                    NULL};
static const char *const formats[] = {"date-time", "time", "date", "duration", "email",
                                      "hostname",  "ipv4", "ipv6", "uuid",     NULL};

static bool check(compiler *c, const di_json *node, unsigned level, totals *t);

static bool check_all(compiler *c, const di_json *list, unsigned level, totals *t) {
    for (const di_json *i = list ? list->first : NULL; i; i = i->next)
        if (!check(c, i, level, t)) return false;
    return true;
}

static bool check_object(compiler *c, const di_json *node, const di_json *properties, totals *t) {
    const di_json *required = di_json_get(node, "required"), *more = di_json_get(node, "additionalProperties");
    if (!more || more->type != DI_JSON_FALSE)
        return di_schema_refuse(c, DI_REASON_UNSUPPORTED, node, "profile openai: additionalProperties must be false");
    for (const di_json *p = properties ? properties->first : NULL; p; p = p->next) {
        bool found = false;
        for (const di_json *r = required ? required->first : NULL; r && !found; r = r->next)
            found = r->type == DI_JSON_STRING && r->length == p->key_length && memcmp(r->text, p->key, r->length) == 0;
        if (!found)
            return di_schema_refuse(c, DI_REASON_UNSUPPORTED, p, "profile openai: every property must be required");
        t->characters += p->key_length;
        if (++t->properties > MAX_PROPERTIES)
            return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, p, "profile openai: more than %d properties",
                                    MAX_PROPERTIES);
    }
    return true;
}

static bool check_values(compiler *c, const di_json *node, totals *t) {
    const di_json *list = di_json_get(node, "enum"), *one = di_json_get(node, "const");
    for (const di_json *i = list ? list->first : NULL; i; i = i->next) {
        if (i->type == DI_JSON_STRING) t->characters += i->length;
        if (++t->values > MAX_ENUM)
            return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, i, "profile openai: more than %d enum values", MAX_ENUM);
    }
    if (one && one->type == DI_JSON_STRING) t->characters += one->length;
    if (t->characters > MAX_CHARACTERS)
        return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, node,
                                "profile openai: more than %d characters of names and values", MAX_CHARACTERS);
    return true;
}

static bool check(compiler *c, const di_json *node, unsigned level, totals *t) {
    if (node->type != DI_JSON_OBJECT)
        return di_schema_refuse(c, DI_REASON_UNSUPPORTED, node, "profile openai: a schema must be an object");
    for (const di_json *m = node->first; m; m = m->next)
        if (!listed(m->key, known))
            return di_schema_refuse(c, DI_REASON_UNSUPPORTED, m, "profile openai: \"%.60s\" is not supported", m->key);
    const di_json *format = di_json_get(node, "format"), *properties = di_json_get(node, "properties");
    const di_json *items = di_json_get(node, "items");
    if (format && (format->type != DI_JSON_STRING || !listed(format->text, formats)))
        return di_schema_refuse(c, DI_REASON_UNSUPPORTED, format, "profile openai: this format is not supported");
    const di_json *type = di_json_get(node, "type");
    bool object = properties || di_json_string_is(type, "object");
    for (const di_json *i = type && type->type == DI_JSON_ARRAY ? type->first : NULL; i; i = i->next)
        object = object || di_json_string_is(i, "object");
    if (level > MAX_LEVELS)
        return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, node, "profile openai: more than %d levels", MAX_LEVELS);
    if (object && !check_object(c, node, properties, t)) return false;
    return check_values(c, node, t) && check_all(c, properties, level + 1, t) &&
           check_all(c, di_json_get(node, "anyOf"), level, t) && check_all(c, di_json_get(node, "$defs"), level, t) &&
           check_all(c, di_json_get(node, "definitions"), level, t) && (!items || check(c, items, level + 1, t));
}

bool di_openai_check(compiler *c) {
    totals t = {0};
    if (!di_json_string_is(di_json_get(c->root, "type"), "object") || di_json_get(c->root, "anyOf"))
        return di_schema_refuse(c, DI_REASON_UNSUPPORTED, NULL,
                                "profile openai: the root must be of type object, without anyOf");
    return check(c, c->root, 1, &t);
}
