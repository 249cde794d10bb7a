/* schema_values.c - keywords about single values: numbers, types, enumerations, strings and sizes; see
 * schema_keywords.h. */
#include "grammar/schema_keywords.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------------------- numbers */

static di_expr plain_number(compiler *c) {
    if (!c->number_plain) c->number_plain = di_number_plain(c->x);
    return c->number_plain;
}

static di_expr integer(compiler *c) {
    bool dot_zero = c->draft > DI_DRAFT_4 && c->source->profile == DI_PROFILE_FULL;
    if (!c->number_integer) c->number_integer = di_number_integer(c->x, dot_zero);
    return c->number_integer;
}

static bool decimal(const keyword *k, const di_json *at, di_decimal *value) {
    if (at->type != DI_JSON_NUMBER) return di_keyword_syntax(k, "a number"), false;
    if (di_decimal_parse(k->c->arena, at->text, at->length, value)) return true;
    di_schema_refuse(k->c, DI_REASON_TOO_COMPLEX, at, "this number has more than 400 digits");
    return false;
}

static void number(const keyword *k, di_expr language) {
    if (!k->positive) language = di_expr_minus(k->c->x, plain_number(k->c), language);
    di_keyword_add(k, TYPE_NUMBER, (constraint){.kind = C_NUMBER, .expr = language});
}

static void bound(const keyword *k, bool above, bool exclusive) {
    di_decimal value;
    if (!decimal(k, k->at, &value)) return;
    di_expr language =
        above ? di_number_above(k->c->x, &value, exclusive) : di_number_below(k->c->x, &value, exclusive);
    number(k, language);
}

static void kw_minimum(const keyword *k) {
    bound(k, true, k->c->draft <= DI_DRAFT_4 && di_json_is_true(di_json_get(k->node, "exclusiveMinimum")));
}

static void kw_maximum(const keyword *k) {
    bound(k, false, k->c->draft <= DI_DRAFT_4 && di_json_is_true(di_json_get(k->node, "exclusiveMaximum")));
}

static bool boolean_form(const keyword *k) { /* draft 4: read by minimum and maximum */
    if (k->at->type != DI_JSON_TRUE && k->at->type != DI_JSON_FALSE) return false;
    if (k->c->draft > DI_DRAFT_4) return di_keyword_syntax(k, "a number"), true;
    if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
    return true;
}

static void kw_exclusive_minimum(const keyword *k) {
    if (!boolean_form(k)) bound(k, true, true);
}

static void kw_exclusive_maximum(const keyword *k) {
    if (!boolean_form(k)) bound(k, false, true);
}

static void kw_multiple_of(const keyword *k) {
    di_decimal value;
    di_expr language;
    if (!decimal(k, k->at, &value)) return;
    if (value.negative || (value.integer[0] == '0' && !value.fraction[0])) {
        di_keyword_syntax(k, "a number above 0");
        return;
    }
    if (di_number_multiple(k->c->x, &value, &language))
        number(k, language);
    else
        di_keyword_unsupported(k, "multiples of a number with more digits than 65536 cannot be enforced");
}

/* ------------------------------------------------------------------------------------------------- types and values */

static uint32_t type_bits(const di_json *name) {
    static const struct {
        const char *name;
        uint32_t bits;
    } types[] = {{"null", TYPE_NULL},     {"boolean", TYPE_FALSE | TYPE_TRUE},
                 {"number", TYPE_NUMBER}, {"string", TYPE_STRING},
                 {"array", TYPE_ARRAY},   {"object", TYPE_OBJECT},
                 {"integer", 0x100},      {"any", TYPE_ALL}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (di_json_string_is(name, types[i].name)) return types[i].bits;
    return 0;
}

static void kw_type(const keyword *k) {
    uint32_t types = 0, one;
    if (k->at->type != DI_JSON_STRING && k->at->type != DI_JSON_ARRAY) {
        di_keyword_syntax(k, "a string or an array of strings");
        return;
    }
    const di_json *first = k->at->type == DI_JSON_ARRAY ? k->at->first : k->at;
    for (const di_json *i = first; i; i = k->at->type == DI_JSON_ARRAY ? i->next : NULL) {
        one = type_bits(i);
        if (!one) {
            di_schema_refuse(k->c, DI_REASON_SYNTAX, i, "\"%.60s\" is no type",
                             i->type == DI_JSON_STRING ? i->text : "");
            return;
        }
        types |= one;
    }
    bool integers = types & 0x100 && !(types & TYPE_NUMBER);
    if (types & 0x100) types |= TYPE_NUMBER;
    types &= TYPE_ALL;
    constraint c = {.kind = C_NUMBER, .at = k->at, .expr = integers ? integer(k->c) : DI_EXPR_ALL};
    if (k->positive) {
        di_form_add(k->c, k->out, types, &c, integers);
        return;
    }
    c.expr = integers ? di_expr_minus(k->c->x, plain_number(k->c), c.expr) : DI_EXPR_ALL;
    c.negated = true;
    types = (TYPE_ALL & ~types) | (integers ? TYPE_NUMBER : 0);
    if (types) di_form_add(k->c, k->out, types, &c, integers);
}

static bool number_value(compiler *c, const di_json *value, di_expr *language) {
    di_decimal d;
    if (!di_decimal_parse(c->arena, value->text, value->length, &d))
        return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, value, "this number has more than 400 digits");
    *language = di_expr_and2(c->x, di_number_above(c->x, &d, false), di_number_below(c->x, &d, false));
    if (c->draft <= DI_DRAFT_4 || c->source->profile != DI_PROFILE_FULL) { /* 1.0 is another spelling than asked */
        if (di_decimal_is_integer(&d)) *language = di_expr_and2(c->x, *language, integer(c));
    }
    return true;
}

static void object_value(compiler *c, const di_json *value, form *out) {
    constraint *list = di_schema_alloc(c, (2 * (size_t)value->count + 1) * sizeof *list);
    layer *keys = di_schema_alloc(c, sizeof *keys);
    if (!list || !keys) return;
    keys->names = di_schema_alloc(c, (value->count + 1) * sizeof *keys->names);
    keys->lengths = di_schema_alloc(c, (value->count + 1) * sizeof *keys->lengths);
    if (!keys->names || !keys->lengths) return;
    uint32_t n = 0;
    for (const di_json *m = value->first; m; m = m->next) {
        keys->names[keys->name_count] = m->key;
        keys->lengths[keys->name_count++] = m->key_length;
        constraint one = {.kind = C_PROPERTY, .value = true, .at = value, .name = m->key, .name_length = m->key_length};
        one.set = di_set_of(c, m, MEANS_VALUE);
        list[n++] = one;
        one.kind = C_REQUIRED;
        list[n++] = one;
    }
    set_id none = di_set_of(c, di_schema_false(), MEANS_SCHEMA);
    list[n++] = (constraint){.kind = C_ADDITIONAL, .value = true, .at = value, .keys = keys, .set = none};
    di_form_add(c, out, TYPE_OBJECT, list, n);
}

static void array_value(compiler *c, const di_json *value, form *out) {
    constraint *list = di_schema_alloc(c, ((size_t)value->count + 1) * sizeof *list);
    if (!list) return;
    uint32_t n = 0;
    for (const di_json *i = value->first; i; i = i->next, n++)
        list[n] =
            (constraint){.kind = C_ITEM, .value = true, .at = value, .low = n, .set = di_set_of(c, i, MEANS_VALUE)};
    list[n] = (constraint){.kind = C_ITEMS, .at = value, .low = n, .high = n};
    di_form_add(c, out, TYPE_ARRAY, list, n + 1);
}

void di_value_form(compiler *c, const di_json *value, form *out) {
    constraint one = {.at = value};
    switch (value->type) {
    case DI_JSON_NULL:
        di_form_add(c, out, TYPE_NULL, NULL, 0);
        break;
    case DI_JSON_FALSE:
        di_form_add(c, out, TYPE_FALSE, NULL, 0);
        break;
    case DI_JSON_TRUE:
        di_form_add(c, out, TYPE_TRUE, NULL, 0);
        break;
    case DI_JSON_NUMBER:
        one.kind = C_NUMBER;
        if (number_value(c, value, &one.expr)) di_form_add(c, out, TYPE_NUMBER, &one, 1);
        break;
    case DI_JSON_STRING:
        one.kind = C_STRING;
        one.expr = di_expr_text(c->x, value->text, value->length, DI_ENCODING_JSON);
        di_form_add(c, out, TYPE_STRING, &one, 1);
        break;
    case DI_JSON_ARRAY:
        array_value(c, value, out);
        break;
    case DI_JSON_OBJECT:
        object_value(c, value, out);
        break;
    }
}

/* Many values at once: scalars share one conjunction. */
typedef struct values {
    uint32_t types;
    di_expr numbers;
    const di_json **strings;
    uint32_t string_count;
} values;

static int compare_strings(const void *a, const void *b) {
    const di_json *x = *(const di_json *const *)a, *y = *(const di_json *const *)b;
    int order = memcmp(x->text, y->text, x->length < y->length ? x->length : y->length);
    return order ? order : x->length < y->length ? -1 : x->length > y->length;
}

/* A trie of the strings[low, high), which agree before `at`, by characters; depth bounds the stack. */
static di_expr string_trie(compiler *c, const di_json **strings, uint32_t low, uint32_t high, size_t at,
                           unsigned depth) {
    di_expr result = DI_EXPR_EMPTY;
    if (low == high || !di_exprs_spend(c->x, 1)) return result;
    if (high - low == 1 || depth > 500) {
        for (uint32_t i = low; i < high; i++)
            result = di_expr_or2(c->x, result,
                                 di_expr_text(c->x, strings[i]->text + at, strings[i]->length - at, DI_ENCODING_JSON));
        return result;
    }
    di_expr *parts = malloc((high - low + 1) * sizeof *parts);
    uint32_t n = 0;
    if (!parts) return c->x->failed = DI_ERR_MEMORY, DI_EXPR_EMPTY;
    while (low < high && strings[low]->length == at) low++, parts[0] = DI_EXPR_EPSILON, n = 1;
    for (uint32_t i = low; i < high;) {
        uint32_t point = 0, j = i + 1;
        size_t used = di_utf8_decode(strings[i]->text + at, strings[i]->length - at, &point);
        while (j < high && memcmp(strings[j]->text + at, strings[i]->text + at, used) == 0) j++;
        di_expr head = di_expr_text(c->x, strings[i]->text + at, used, DI_ENCODING_JSON);
        parts[n++] = di_expr_cat(c->x, head, string_trie(c, strings, i, j, at + used, depth + 1));
        i = j;
    }
    result = di_expr_or(c->x, parts, n);
    free(parts);
    return result;
}

static bool collect_values(const keyword *k, const di_json *first, bool one, values *v) {
    uint32_t count = 0;
    for (const di_json *i = first; i; i = one ? NULL : i->next) count++;
    v->strings = di_schema_alloc(k->c, (count + 1) * sizeof *v->strings);
    if (!v->strings) return false;
    for (const di_json *i = first; i; i = one ? NULL : i->next) {
        di_expr language = DI_EXPR_EMPTY;
        switch (i->type) {
        case DI_JSON_NULL:
            v->types |= TYPE_NULL;
            break;
        case DI_JSON_FALSE:
            v->types |= TYPE_FALSE;
            break;
        case DI_JSON_TRUE:
            v->types |= TYPE_TRUE;
            break;
        case DI_JSON_NUMBER:
            if (!number_value(k->c, i, &language)) return false;
            v->types |= TYPE_NUMBER;
            v->numbers = di_expr_or2(k->c->x, v->numbers, language);
            break;
        case DI_JSON_STRING:
            v->types |= TYPE_STRING;
            v->strings[v->string_count++] = i;
            break;
        default:
            if (!k->positive)
                return di_keyword_unsupported(k, "the opposite of an array or object value cannot be enforced");
            di_form_append(k->c, k->out, di_node_form(k->c, i, MEANS_VALUE));
        }
        if (di_schema_failed(k->c)) return false;
    }
    qsort(v->strings, v->string_count, sizeof *v->strings, compare_strings);
    return true;
}

static void add_values(const keyword *k, const di_json *first, bool one) {
    values v = {0};
    compiler *c = k->c;
    if (!collect_values(k, first, one, &v)) return;
    di_expr strings = string_trie(c, v.strings, 0, v.string_count, 0, 0);
    constraint list[2] = {{.kind = C_NUMBER, .at = k->at, .expr = v.numbers},
                          {.kind = C_STRING, .at = k->at, .expr = strings}};
    if (k->positive) {
        if (v.types) di_form_add(c, k->out, v.types, list, 2);
        return;
    }
    list[0].expr = di_expr_minus(c->x, plain_number(c), v.numbers);
    list[1].expr = di_expr_minus(c->x, di_keyword_any_string(c), strings);
    list[0].negated = list[1].negated = true;
    if (!(v.types & TYPE_NUMBER)) list[0].expr = DI_EXPR_ALL;
    if (!(v.types & TYPE_STRING)) list[1].expr = DI_EXPR_ALL;
    uint32_t gone = v.types & (TYPE_NULL | TYPE_FALSE | TYPE_TRUE);
    di_form_add(c, k->out, TYPE_ALL & ~gone, list, 2);
}

static void kw_enum(const keyword *k) {
    if (k->at->type != DI_JSON_ARRAY)
        di_keyword_syntax(k, "an array");
    else
        add_values(k, k->at->first, false);
}

static void kw_const(const keyword *k) {
    add_values(k, k->at, true);
}

/* ---------------------------------------------------------------------------------------------------------- strings */

/* A minimum (or maximum) of a size, or its opposite. */
static void size_bound(const keyword *k, uint32_t type, constraint_kind kind, bool minimum) {
    uint32_t n = 0;
    if (!di_keyword_size(k, k->at, &n)) return;
    constraint one = {.kind = kind, .low = 0, .high = DI_UNBOUNDED};
    if (minimum == k->positive) {
        one.low = minimum ? n : n + 1;
    } else {
        if (minimum && n == 0) return; /* less than nothing: no value */
        one.high = minimum ? n - 1 : n;
    }
    di_keyword_add(k, type, one);
}

static void kw_min_length(const keyword *k) {
    size_bound(k, TYPE_STRING, C_LENGTH, true);
}
static void kw_max_length(const keyword *k) {
    size_bound(k, TYPE_STRING, C_LENGTH, false);
}
static void kw_min_items(const keyword *k) {
    size_bound(k, TYPE_ARRAY, C_ITEMS, true);
}
static void kw_max_items(const keyword *k) {
    size_bound(k, TYPE_ARRAY, C_ITEMS, false);
}
static void kw_min_properties(const keyword *k) {
    size_bound(k, TYPE_OBJECT, C_ENTRIES, true);
}
static void kw_max_properties(const keyword *k) {
    size_bound(k, TYPE_OBJECT, C_ENTRIES, false);
}

static void string(const keyword *k, di_expr language) {
    if (!k->positive) language = di_expr_minus(k->c->x, di_keyword_any_string(k->c), language);
    di_keyword_add(k, TYPE_STRING, (constraint){.kind = C_STRING, .expr = language});
}

static void kw_pattern(const keyword *k) {
    di_expr language;
    if (k->at->type != DI_JSON_STRING)
        di_keyword_syntax(k, "a string");
    else if (di_keyword_expression(k, k->at, k->at->text, k->at->length, true, &language))
        string(k, language);
}

static void kw_format(const keyword *k) {
    if (k->at->type != DI_JSON_STRING) {
        di_keyword_syntax(k, "a string");
        return;
    }
    const char *text = di_format_expression(k->at->text);
    di_expr language;
    if (strcmp(k->at->text, "regex") == 0) {
        di_keyword_unsupported(k, "the format \"regex\" cannot be enforced");
    } else if (!text) {
        if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
    } else if (!k->positive) {
        di_keyword_unsupported(k, "the opposite of a format cannot be enforced");
    } else if (di_keyword_expression(k, k->at, text, strlen(text), false, &language)) {
        k->c->used_format = true;
        string(k, language);
    }
}

/* ------------------------------------------------------------------------------------------------------------- table
 */

const di_keyword_row di_value_keywords[] = {
    {"type", kw_type, 0, 9999},
    {"enum", kw_enum, 0, 9999},
    {"const", kw_const, DI_DRAFT_6, 9999},
    {"minProperties", kw_min_properties, 0, 9999},
    {"maxProperties", kw_max_properties, 0, 9999},
    {"minItems", kw_min_items, 0, 9999},
    {"maxItems", kw_max_items, 0, 9999},
    {"minLength", kw_min_length, 0, 9999},
    {"maxLength", kw_max_length, 0, 9999},
    {"pattern", kw_pattern, 0, 9999},
    {"format", kw_format, 0, 9999},
    {"minimum", kw_minimum, 0, 9999},
    {"maximum", kw_maximum, 0, 9999},
    {"exclusiveMinimum", kw_exclusive_minimum, 0, 9999},
    {"exclusiveMaximum", kw_exclusive_maximum, 0, 9999},
    {"multipleOf", kw_multiple_of, 0, 9999},
    {NULL, NULL, 0, 0},
};
