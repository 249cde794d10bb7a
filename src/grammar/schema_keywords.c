/* schema_keywords.c - what each keyword of a schema says, and what its opposite says; see schema.h. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

typedef struct keyword { /* of a schema object, while its form is made */
    compiler *c;
    const di_json *node, *at; /* the schema, the keyword's value */
    bool positive;
    form *out;
} keyword;

const di_json *di_schema_true(void) {
    static const di_json node = {.type = DI_JSON_TRUE};
    return &node;
}

const di_json *di_schema_false(void) {
    static const di_json node = {.type = DI_JSON_FALSE};
    return &node;
}

static bool syntax(const keyword *k, const char *what) {
    return di_schema_refuse(k->c, DI_REASON_SYNTAX, k->at, "\"%.60s\" must be %s, not %s", k->at->key ? k->at->key : "",
                            what, di_json_type_name(k->at->type));
}

static bool unsupported(const keyword *k, const char *what) {
    return di_schema_refuse(k->c, DI_REASON_UNSUPPORTED, k->at, "%s", what);
}

/* One conjunction: the constraint for its type, whatever else for other types; or, negative, its type alone. */
static void add(const keyword *k, uint32_t type, constraint one) {
    one.at = k->at;
    one.negated = !k->positive;
    di_form_add(k->c, k->out, k->positive ? TYPE_ALL : type, &one, 1);
}

static meaning sign(bool positive) {
    return positive ? MEANS_SCHEMA : MEANS_NOT_SCHEMA;
}

static set_id set_of(const keyword *k, const di_json *schema, bool positive) {
    return di_set_of(k->c, schema, sign(positive));
}

static set_id never(const keyword *k) {
    return di_set_of(k->c, di_schema_false(), MEANS_SCHEMA);
}

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
    if (at->type != DI_JSON_NUMBER) return syntax(k, "a number"), false;
    if (di_decimal_parse(k->c->arena, at->text, at->length, value)) return true;
    di_schema_refuse(k->c, DI_REASON_TOO_COMPLEX, at, "this number has more than 400 digits");
    return false;
}

static void number(const keyword *k, di_expr language) {
    if (!k->positive) language = di_expr_minus(k->c->x, plain_number(k->c), language);
    add(k, TYPE_NUMBER, (constraint){.kind = C_NUMBER, .expr = language});
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
    if (k->c->draft > DI_DRAFT_4) return syntax(k, "a number"), true;
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
        syntax(k, "a number above 0");
        return;
    }
    if (di_number_multiple(k->c->x, &value, &language))
        number(k, language);
    else
        unsupported(k, "multiples of a number with more digits than 65536 cannot be enforced");
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
        syntax(k, "a string or an array of strings");
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

static di_expr any_string(compiler *c) { /* as keys and values with constraints are spelled */
    return di_expr_star(c->x, di_expr_any_point(c->x, DI_ENCODING_JSON));
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
        constraint one = {.kind = C_PROPERTY, .at = value, .name = m->key, .name_length = m->key_length};
        one.set = di_set_of(c, m, MEANS_VALUE);
        list[n++] = one;
        one.kind = C_REQUIRED;
        list[n++] = one;
    }
    set_id none = di_set_of(c, di_schema_false(), MEANS_SCHEMA);
    list[n++] = (constraint){.kind = C_ADDITIONAL, .at = value, .keys = keys, .set = none};
    di_form_add(c, out, TYPE_OBJECT, list, n);
}

static void array_value(compiler *c, const di_json *value, form *out) {
    constraint *list = di_schema_alloc(c, ((size_t)value->count + 1) * sizeof *list);
    if (!list) return;
    uint32_t n = 0;
    for (const di_json *i = value->first; i; i = i->next, n++)
        list[n] = (constraint){.kind = C_ITEM, .at = value, .low = n, .set = di_set_of(c, i, MEANS_VALUE)};
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
            if (!k->positive) return unsupported(k, "the opposite of an array or object value cannot be enforced");
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
    list[1].expr = di_expr_minus(c->x, any_string(c), strings);
    list[0].negated = list[1].negated = true;
    if (!(v.types & TYPE_NUMBER)) list[0].expr = DI_EXPR_ALL;
    if (!(v.types & TYPE_STRING)) list[1].expr = DI_EXPR_ALL;
    uint32_t gone = v.types & (TYPE_NULL | TYPE_FALSE | TYPE_TRUE);
    di_form_add(c, k->out, TYPE_ALL & ~gone, list, 2);
}

static void kw_enum(const keyword *k) {
    if (k->at->type != DI_JSON_ARRAY)
        syntax(k, "an array");
    else
        add_values(k, k->at->first, false);
}

static void kw_const(const keyword *k) {
    add_values(k, k->at, true);
}

/* ---------------------------------------------------------------------------------------------------------- strings */

/* A length or count; false with the fault filled. Values beyond 32 bits are unbounded for a maximum. */
static bool size_of(const keyword *k, const di_json *at, uint32_t *value) {
    uint64_t wide;
    if (!di_json_uint64(at, &wide)) {
        di_decimal d;
        if (at->type == DI_JSON_NUMBER && di_decimal_parse(k->c->arena, at->text, at->length, &d) && !d.negative &&
            di_decimal_is_integer(&d)) {
            *value = DI_UNBOUNDED - 1;
            return true;
        }
        return di_schema_refuse(k->c, DI_REASON_SYNTAX, at, "a size must be a whole number, 0 or more");
    }
    *value = wide >= DI_UNBOUNDED - 1 ? DI_UNBOUNDED - 1 : (uint32_t)wide;
    return true;
}

/* A minimum (or maximum) of a size, or its opposite. */
static void size_bound(const keyword *k, uint32_t type, constraint_kind kind, bool minimum) {
    uint32_t n = 0;
    if (!size_of(k, k->at, &n)) return;
    constraint one = {.kind = kind, .low = 0, .high = DI_UNBOUNDED};
    if (minimum == k->positive) {
        one.low = minimum ? n : n + 1;
    } else {
        if (minimum && n == 0) return; /* less than nothing: no value */
        one.high = minimum ? n - 1 : n;
    }
    add(k, type, one);
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

static bool expression(const keyword *k, const di_json *at, const char *text, size_t length, bool search,
                       di_expr *out) {
    di_regex_options options = {.encoding = DI_ENCODING_JSON, .search = search, .ecma = true};
    di_regex_fault fault;
    if (di_regex_compile(k->c->x, text, length, &options, out, &fault)) return true;
    if (k->c->x->failed != DI_OK) return false;
    return di_schema_refuse(k->c, fault.reason, at, "expression, byte %zu: %s", fault.position, fault.message);
}

static void string(const keyword *k, di_expr language) {
    if (!k->positive) language = di_expr_minus(k->c->x, any_string(k->c), language);
    add(k, TYPE_STRING, (constraint){.kind = C_STRING, .expr = language});
}

static void kw_pattern(const keyword *k) {
    di_expr language;
    if (k->at->type != DI_JSON_STRING)
        syntax(k, "a string");
    else if (expression(k, k->at, k->at->text, k->at->length, true, &language))
        string(k, language);
}

static void kw_format(const keyword *k) {
    if (k->at->type != DI_JSON_STRING) {
        syntax(k, "a string");
        return;
    }
    const char *text = di_format_expression(k->at->text);
    di_expr language;
    if (strcmp(k->at->text, "regex") == 0) {
        unsupported(k, "the format \"regex\" cannot be enforced");
    } else if (!text) {
        if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
    } else if (!k->positive) {
        unsupported(k, "the opposite of a format cannot be enforced");
    } else if (expression(k, k->at, text, strlen(text), false, &language)) {
        k->c->used_format = true;
        string(k, language);
    }
}

/* ---------------------------------------------------------------------------------------------------------- objects */

static bool is_object(const keyword *k, const di_json *at) {
    if (at->type == DI_JSON_OBJECT) return true;
    return di_schema_refuse(k->c, DI_REASON_SYNTAX, at, "this must be an object, not %s", di_json_type_name(at->type));
}

/* The keys that properties and patternProperties of the schema speak of. */
static const layer *keys_of(const keyword *k) {
    const di_json *properties = di_json_get(k->node, "properties"),
                  *patterns = di_json_get(k->node, "patternProperties");
    layer *keys = di_schema_alloc(k->c, sizeof *keys);
    if (!keys) return NULL;
    uint32_t n = properties ? properties->count : 0, p = patterns ? patterns->count : 0;
    keys->names = di_schema_alloc(k->c, (n + 1) * sizeof *keys->names);
    keys->lengths = di_schema_alloc(k->c, (n + 1) * sizeof *keys->lengths);
    keys->patterns = di_schema_alloc(k->c, (p + 1) * sizeof *keys->patterns);
    if (!keys->names || !keys->lengths || !keys->patterns) return NULL;
    for (const di_json *m = properties ? properties->first : NULL; m; m = m->next) {
        keys->names[keys->name_count] = m->key;
        keys->lengths[keys->name_count++] = m->key_length;
    }
    for (const di_json *m = patterns ? patterns->first : NULL; m; m = m->next)
        if (!expression(k, m, m->key, m->key_length, true, &keys->patterns[keys->pattern_count++])) return NULL;
    return keys;
}

static void kw_properties(const keyword *k) {
    if (!is_object(k, k->at)) return;
    constraint *list = di_schema_alloc(k->c, (k->at->count + 1) * sizeof *list);
    uint32_t n = 0;
    for (const di_json *m = k->at->first; list && m; m = m->next) {
        constraint one = {.kind = C_PROPERTY, .at = m, .name = m->key, .name_length = m->key_length};
        one.set = set_of(k, m, k->positive);
        if (di_schema_failed(k->c)) return;
        if (k->positive) {
            list[n++] = one;
            continue;
        }
        one.negated = true;
        constraint pair[2] = {one, one};
        pair[0].kind = C_REQUIRED;
        di_form_add(k->c, k->out, TYPE_OBJECT, pair, 2);
    }
    if (list && k->positive) di_form_add(k->c, k->out, TYPE_ALL, list, n);
}

static void kw_pattern_properties(const keyword *k) {
    if (!is_object(k, k->at)) return;
    constraint *list = di_schema_alloc(k->c, (k->at->count + 1) * sizeof *list);
    uint32_t n = 0;
    for (const di_json *m = k->at->first; list && m; m = m->next) {
        constraint one = {.kind = C_PATTERN, .at = m};
        if (!expression(k, m, m->key, m->key_length, true, &one.expr)) return;
        one.set = set_of(k, m, k->positive);
        list[n++] = one;
        if (k->positive) continue;
        if (m->type != DI_JSON_FALSE) {
            unsupported(k, "the opposite of patternProperties cannot be enforced");
            return;
        }
        layer *keys = di_schema_alloc(k->c, sizeof *keys);
        if (!keys || !(keys->patterns = di_schema_alloc(k->c, sizeof *keys->patterns))) return;
        keys->patterns[keys->pattern_count++] = di_expr_minus(k->c->x, any_string(k->c), one.expr);
        add(k, TYPE_OBJECT, (constraint){.kind = C_EXISTS, .keys = keys});
    }
    if (list && k->positive) di_form_add(k->c, k->out, TYPE_ALL, list, n);
}

static void kw_additional_properties(const keyword *k) {
    const layer *keys = keys_of(k);
    if (!keys) return;
    constraint one = {.kind = C_ADDITIONAL, .keys = keys};
    if (k->positive) {
        one.set = set_of(k, k->at, true);
        add(k, TYPE_OBJECT, one);
        return;
    }
    bool anything = k->at->type == DI_JSON_TRUE || (k->at->type == DI_JSON_OBJECT && !k->at->first);
    if (anything) return; /* its opposite has no value */
    if (k->at->type != DI_JSON_FALSE) {
        unsupported(k, "the opposite of additionalProperties with a schema cannot be enforced");
        return;
    }
    one.kind = C_EXISTS;
    add(k, TYPE_OBJECT, one);
}

static void kw_property_names(const keyword *k) {
    set_id set = set_of(k, k->at, true);
    const form *f = di_set_form(k->c, set);
    di_expr language = DI_EXPR_EMPTY;
    for (uint32_t i = 0; f && i < f->count; i++)
        if (f->list[i].types & TYPE_STRING)
            language = di_expr_or2(k->c->x, language, di_build_string(k->c, &f->list[i]));
    if (!f) return;
    if (k->positive) {
        add(k, TYPE_OBJECT, (constraint){.kind = C_NAMES, .expr = language});
        return;
    }
    if (k->c->used_format) {
        unsupported(k, "the opposite of propertyNames with a format cannot be enforced");
        return;
    }
    layer *keys = di_schema_alloc(k->c, sizeof *keys);
    if (!keys || !(keys->patterns = di_schema_alloc(k->c, sizeof *keys->patterns))) return;
    keys->patterns[keys->pattern_count++] = language;
    add(k, TYPE_OBJECT, (constraint){.kind = C_EXISTS, .keys = keys});
}

static bool is_names(const keyword *k, const di_json *at) {
    bool right = at->type == DI_JSON_ARRAY;
    for (const di_json *i = at->first; right && i; i = i->next) right = i->type == DI_JSON_STRING;
    return right || di_schema_refuse(k->c, DI_REASON_SYNTAX, at, "this must be an array of strings");
}

/* All of the names are there, with `first` (may be NULL) in front; or, negative, with `first` one is missing. */
static void required(const keyword *k, const di_json *names, const di_json *first) {
    constraint *list = di_schema_alloc(k->c, (names->count + 2) * sizeof *list);
    uint32_t n = 0;
    if (!list) return;
    if (first)
        list[n++] = (constraint){.kind = C_REQUIRED, .at = k->at, .name = first->key, .name_length = first->key_length};
    for (const di_json *i = names->first; i; i = i->next) {
        constraint one = {.kind = C_REQUIRED, .at = k->at, .name = i->text, .name_length = i->length};
        if (k->positive) {
            list[n++] = one;
            continue;
        }
        one.kind = C_PROPERTY;
        one.set = never(k);
        one.negated = true;
        list[n] = one;
        di_form_add(k->c, k->out, TYPE_OBJECT, list, n + 1);
    }
    if (k->positive) di_form_add(k->c, k->out, first ? TYPE_OBJECT : TYPE_ALL, list, n);
}

static void kw_required(const keyword *k) {
    if (k->c->draft <= DI_DRAFT_4 && (k->at->type == DI_JSON_TRUE || k->at->type == DI_JSON_FALSE)) { /* draft 3 */
        if (k->at->type == DI_JSON_TRUE)
            unsupported(k, "\"required\" as a boolean belongs to draft 3");
        else if (k->positive)
            di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
        return;
    }
    if (is_names(k, k->at)) required(k, k->at, NULL);
}

/* The key is not there. */
static void absent(const keyword *k, const di_json *member, form *out) {
    constraint one = {.kind = C_PROPERTY,
                      .at = k->at,
                      .negated = true,
                      .name = member->key,
                      .name_length = member->key_length,
                      .set = never(k)};
    di_form_add(k->c, out, TYPE_ALL, &one, 1);
}

/* One member of dependent*: the key is absent, or what it depends on holds (and the key is there). */
static void dependency(const keyword *k, const di_json *member, form *out) {
    keyword inner = *k;
    inner.out = out;
    if (member->type == DI_JSON_ARRAY) {
        if (!is_names(k, member)) return;
        if (k->positive) absent(k, member, out);
        required(&inner, member, member);
        return;
    }
    if (k->positive) absent(k, member, out);
    form has = {0};
    constraint one = {.kind = C_REQUIRED, .at = k->at, .name = member->key, .name_length = member->key_length};
    di_form_add(k->c, &has, TYPE_OBJECT, &one, 1);
    const form *schema = di_node_form(k->c, member, sign(k->positive));
    if (schema) di_form_append(k->c, out, di_form_product(k->c, &has, schema));
}

static void kw_dependent(const keyword *k) {
    if (!is_object(k, k->at)) return;
    form *all = di_schema_alloc(k->c, sizeof *all);
    if (!all) return;
    if (k->positive) di_form_add(k->c, all, TYPE_ALL, NULL, 0);
    for (const di_json *m = k->at->first; m && all && !di_schema_failed(k->c); m = m->next) {
        if (m->type == DI_JSON_STRING) { /* draft 3 spelling */
            unsupported(k, "a dependency must be an array of names or a schema");
            return;
        }
        form one = {0};
        dependency(k, m, &one);
        if (k->positive) {
            all = di_form_product(k->c, all, &one);
            if (all && all->count > 8) di_form_prune(k->c, all);
        } else {
            di_form_append(k->c, all, &one);
        }
    }
    if (all && !di_schema_failed(k->c)) di_form_append(k->c, k->out, all);
}

/* ----------------------------------------------------------------------------------------------------------- arrays */

static void prefix_items(const keyword *k) {
    constraint *list = di_schema_alloc(k->c, (k->at->count + 1) * sizeof *list);
    uint32_t n = 0;
    for (const di_json *i = k->at->first; list && i; i = i->next, n++) {
        list[n] = (constraint){.kind = C_ITEM, .at = i, .low = n, .set = set_of(k, i, k->positive)};
        if (k->positive) continue;
        list[n].negated = true;
        constraint pair[2] = {list[n], {.kind = C_ITEMS, .at = i, .negated = true, .low = n + 1, .high = DI_UNBOUNDED}};
        di_form_add(k->c, k->out, TYPE_ARRAY, pair, 2);
    }
    if (list && k->positive) di_form_add(k->c, k->out, TYPE_ALL, list, n);
}

/* Items from position `from` on follow the schema; or one of them does not. */
static void rest_items(const keyword *k, uint32_t from) {
    if (k->positive) {
        add(k, TYPE_ARRAY, (constraint){.kind = C_REST, .low = from, .set = set_of(k, k->at, true)});
    } else if (from == 0) {
        constraint one = {.kind = C_CONTAINS, .low = 1, .high = DI_UNBOUNDED, .set = set_of(k, k->at, false)};
        add(k, TYPE_ARRAY, one);
    } else if (k->at->type == DI_JSON_FALSE) {
        add(k, TYPE_ARRAY, (constraint){.kind = C_ITEMS, .low = from + 1, .high = DI_UNBOUNDED});
    } else {
        unsupported(k, "the opposite of items behind a prefix cannot be enforced");
    }
}

static void kw_items(const keyword *k) {
    const di_json *prefix = di_json_get(k->node, "prefixItems");
    if (k->at->type == DI_JSON_ARRAY)
        prefix_items(k);
    else
        rest_items(k, prefix && k->c->draft >= DI_DRAFT_2020 ? prefix->count : 0);
}

static void kw_prefix_items(const keyword *k) {
    if (k->at->type != DI_JSON_ARRAY)
        syntax(k, "an array");
    else
        prefix_items(k);
}

static void kw_additional_items(const keyword *k) {
    const di_json *items = di_json_get(k->node, "items");
    if (items && items->type == DI_JSON_ARRAY)
        rest_items(k, items->count);
    else if (k->positive)
        di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
}

static void kw_contains(const keyword *k) {
    const di_json *least = di_json_get(k->node, "minContains"), *most = di_json_get(k->node, "maxContains");
    constraint one = {.kind = C_CONTAINS, .low = 1, .high = DI_UNBOUNDED};
    if (k->c->draft < DI_DRAFT_2019) least = most = NULL;
    if (least && !size_of(k, least, &one.low)) return;
    if (most && !size_of(k, most, &one.high)) return;
    if (k->positive) {
        one.set = set_of(k, k->at, true);
        if (one.low == 0 && one.high == DI_UNBOUNDED)
            di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
        else
            add(k, TYPE_ARRAY, one);
        return;
    }
    uint32_t low = one.low, high = one.high;
    one.set = set_of(k, k->at, true);
    if (low) {
        one.low = 0;
        one.high = low - 1;
        add(k, TYPE_ARRAY, one);
    }
    if (high == DI_UNBOUNDED) return;
    one.low = high + 1;
    one.high = DI_UNBOUNDED;
    add(k, TYPE_ARRAY, one);
}

static void kw_unique_items(const keyword *k) {
    if (!di_json_is_true(k->at)) {
        if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
    } else if (k->positive) {
        add(k, TYPE_ARRAY, (constraint){.kind = C_UNIQUE});
    } else {
        unsupported(k, "the opposite of uniqueItems cannot be enforced");
    }
}

/* ------------------------------------------------------------------------------------------------------ applicators */

static bool is_list(const keyword *k) {
    if (k->at->type == DI_JSON_ARRAY && k->at->first) return true;
    return syntax(k, "an array with something in it");
}

static void append(const keyword *k, const form *f) {
    if (f && !di_schema_failed(k->c)) di_form_append(k->c, k->out, f);
}

/* All of the list (with the sign), or one of the list. */
static const form *fold(const keyword *k, bool positive, bool product) {
    form *all = di_schema_alloc(k->c, sizeof *all);
    if (!all) return NULL;
    if (product) di_form_add(k->c, all, TYPE_ALL, NULL, 0);
    for (const di_json *i = k->at->first; i; i = i->next) {
        const form *one = di_node_form(k->c, i, sign(positive));
        if (!one) return NULL;
        if (product) {
            all = di_form_product(k->c, all, one);
            if (all && all->count > 8) di_form_prune(k->c, all);
        } else {
            di_form_append(k->c, all, one);
        }
        if (!all || di_schema_failed(k->c)) return NULL;
    }
    return all;
}

static void kw_all_of(const keyword *k) {
    if (is_list(k)) append(k, fold(k, k->positive, k->positive));
}

/* With unevaluated* beside it every set of branches that hold counts for itself. */
static void any_subsets(const keyword *k) {
    uint32_t n = k->at->count;
    if (n > 4) {
        unsupported(k, "unevaluated* beside anyOf with more than four branches cannot be enforced");
        return;
    }
    for (uint32_t subset = 1; subset < 1u << n; subset++) {
        form *all = di_schema_alloc(k->c, sizeof *all);
        uint32_t i = 0;
        if (!all) return;
        di_form_add(k->c, all, TYPE_ALL, NULL, 0);
        for (const di_json *b = k->at->first; b && all; b = b->next, i++) {
            if (!(subset >> i & 1)) continue;
            const form *one = di_node_form(k->c, b, MEANS_SCHEMA);
            all = one ? di_form_product(k->c, all, one) : NULL;
        }
        append(k, all);
    }
}

static void kw_any_of(const keyword *k) {
    bool exact = k->positive && k->c->unevaluated;
    if (!is_list(k)) return;
    if (exact)
        any_subsets(k);
    else
        append(k, fold(k, k->positive, !k->positive));
}

static bool disjoint(compiler *c, const form *a, const form *b) {
    form *both = di_form_product(c, a, b);
    if (both) di_form_prune(c, both);
    return both && both->count == 0;
}

/* The opposite of an opposite evaluates keys that `not` must not evaluate. */
static bool evaluates(const keyword *k) {
    return !k->positive && k->c->unevaluated &&
           !unsupported(k, "the opposite of this keyword in a schema with unevaluated* cannot be enforced");
}

static void kw_one_of(const keyword *k) {
    compiler *c = k->c;
    if (!is_list(k) || evaluates(k)) return;
    uint32_t n = k->at->count, i = 0;
    const di_json **branches = di_schema_alloc(c, (n + 1) * sizeof *branches);
    const form **forms = di_schema_alloc(c, (n + 1) * sizeof *forms);
    if (!branches || !forms) return;
    for (const di_json *b = k->at->first; b; b = b->next, i++) {
        branches[i] = b;
        forms[i] = di_node_form(c, b, MEANS_SCHEMA);
        if (!forms[i]) return;
    }
    if (!k->positive) { /* none, or two at least */
        append(k, fold(k, false, true));
        for (i = 0; i < n; i++)
            for (uint32_t j = i + 1; j < n && !di_schema_failed(c); j++)
                append(k, di_form_product(c, forms[i], forms[j]));
        return;
    }
    bool *overlap = di_schema_alloc(c, (size_t)n * n + 1);
    if (!overlap) return;
    for (i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n && !di_schema_failed(c); j++)
            overlap[(size_t)i * n + j] = overlap[(size_t)j * n + i] = !disjoint(c, forms[i], forms[j]);
    for (i = 0; i < n && !di_schema_failed(c); i++) {
        const form *one = forms[i];
        for (uint32_t j = 0; j < n && !di_schema_failed(c); j++) {
            if (i == j || !overlap[(size_t)i * n + j]) continue;
            const form *other = di_node_form(c, branches[j], MEANS_NOT_SCHEMA);
            form *without = other ? di_form_product(c, one, other) : NULL;
            if (without) di_form_prune(c, without);
            one = without;
            if (!one) return;
        }
        append(k, one);
    }
}

static void kw_not(const keyword *k) {
    if (evaluates(k)) return;
    append(k, di_node_form(k->c, k->at, sign(!k->positive)));
}

static void kw_if(const keyword *k) {
    if (evaluates(k)) return;
    const di_json *then = di_json_get(k->node, "then"), *otherwise = di_json_get(k->node, "else");
    if (!then && !otherwise && !k->c->unevaluated) {
        if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
        return;
    }
    for (int branch = 0; branch < 2; branch++) {
        const di_json *next = branch ? otherwise : then;
        if (!next && !k->positive) continue;
        const form *condition = di_node_form(k->c, k->at, sign(branch == 0));
        if (condition && next) {
            const form *f = di_node_form(k->c, next, sign(k->positive));
            condition = f ? di_form_product(k->c, condition, f) : NULL;
        }
        append(k, condition);
    }
}

static void kw_ref(const keyword *k) {
    const di_json *target = di_schema_resolve(k->c, k->node, k->at);
    if (target) append(k, di_node_form(k->c, target, sign(k->positive)));
}

/* Where a dynamic anchor is meant, the outermost of that name counts; with one of that name it is the target itself. */
static void kw_dynamic_ref(const keyword *k) {
    compiler *c = k->c;
    const di_json *target = di_schema_resolve(c, k->node, k->at);
    if (!target) return;
    const anchor *own = NULL;
    uint32_t same = 0;
    const char *hash = strchr(k->at->text, '#');
    for (uint32_t i = 0; hash && i < c->anchor_count; i++)
        if (c->anchors[i].dynamic && c->anchors[i].node == target && strlen(hash + 1) == c->anchors[i].length &&
            memcmp(hash + 1, c->anchors[i].name, c->anchors[i].length) == 0)
            own = &c->anchors[i];
    for (uint32_t i = 0; own && i < c->anchor_count; i++)
        same += c->anchors[i].dynamic && c->anchors[i].length == own->length &&
                memcmp(c->anchors[i].name, own->name, own->length) == 0;
    if (own && same > 1)
        unsupported(k, "this dynamic reference has more than one possible target");
    else
        append(k, di_node_form(c, target, sign(k->positive)));
}

static void kw_recursive_ref(const keyword *k) {
    unsupported(k, "\"$recursiveRef\" is not supported; \"$ref\": \"#\" is");
}

static void kw_draft3(const keyword *k) {
    unsupported(k, "this keyword belongs to draft 3");
}

/* ------------------------------------------------------------------------------------------------------------- table
 */

static const struct {
    const char *name;
    void (*apply)(const keyword *k);
    di_draft since, until;
} keywords[] = {
    {"type", kw_type, 0, 9999},
    {"enum", kw_enum, 0, 9999},
    {"const", kw_const, DI_DRAFT_6, 9999},
    {"properties", kw_properties, 0, 9999},
    {"required", kw_required, 0, 9999},
    {"additionalProperties", kw_additional_properties, 0, 9999},
    {"patternProperties", kw_pattern_properties, 0, 9999},
    {"propertyNames", kw_property_names, DI_DRAFT_6, 9999},
    {"minProperties", kw_min_properties, 0, 9999},
    {"maxProperties", kw_max_properties, 0, 9999},
    {"dependencies", kw_dependent, 0, 9999},
    {"dependentRequired", kw_dependent, DI_DRAFT_2019, 9999},
    {"dependentSchemas", kw_dependent, DI_DRAFT_2019, 9999},
    {"items", kw_items, 0, 9999},
    {"prefixItems", kw_prefix_items, DI_DRAFT_2020, 9999},
    {"additionalItems", kw_additional_items, 0, 9999},
    {"minItems", kw_min_items, 0, 9999},
    {"maxItems", kw_max_items, 0, 9999},
    {"uniqueItems", kw_unique_items, 0, 9999},
    {"contains", kw_contains, DI_DRAFT_6, 9999},
    {"minLength", kw_min_length, 0, 9999},
    {"maxLength", kw_max_length, 0, 9999},
    {"pattern", kw_pattern, 0, 9999},
    {"format", kw_format, 0, 9999},
    {"minimum", kw_minimum, 0, 9999},
    {"maximum", kw_maximum, 0, 9999},
    {"exclusiveMinimum", kw_exclusive_minimum, 0, 9999},
    {"exclusiveMaximum", kw_exclusive_maximum, 0, 9999},
    {"multipleOf", kw_multiple_of, 0, 9999},
    {"allOf", kw_all_of, 0, 9999},
    {"anyOf", kw_any_of, 0, 9999},
    {"oneOf", kw_one_of, 0, 9999},
    {"not", kw_not, 0, 9999},
    {"if", kw_if, DI_DRAFT_7, 9999},
    {"$ref", kw_ref, 0, 9999},
    {"$dynamicRef", kw_dynamic_ref, DI_DRAFT_2020, 9999},
    {"$recursiveRef", kw_recursive_ref, DI_DRAFT_2019, DI_DRAFT_2019},
    {"extends", kw_draft3, 0, DI_DRAFT_4},
    {"disallow", kw_draft3, 0, DI_DRAFT_4},
    {"divisibleBy", kw_draft3, 0, DI_DRAFT_4},
};

void di_keyword_form(compiler *c, const di_json *node, const di_json *member, bool positive, form *out, bool *known) {
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++) {
        if (strcmp(keywords[i].name, member->key) != 0) continue;
        if (c->draft < keywords[i].since || c->draft > keywords[i].until) break;
        *known = true;
        keyword k = {c, node, member, positive, out};
        keywords[i].apply(&k);
        break;
    }
}

/* ------------------------------------------------------------------------------------------------------ unevaluated */

/* Adds to each conjunction what unevaluated* says about the keys and items that it has not evaluated itself. */
void di_unevaluated(compiler *c, const di_json *node, form *f) {
    const di_json *properties = di_json_get(node, "unevaluatedProperties"),
                  *items = di_json_get(node, "unevaluatedItems");
    for (uint32_t i = 0; i < f->count && !di_schema_failed(c); i++) {
        conjunction *conj = &f->list[i];
        layer *keys = di_schema_alloc(c, sizeof *keys);
        const constraint **list = di_schema_alloc(c, (conj->count + 3) * sizeof *list);
        constraint *added = di_schema_alloc(c, 2 * sizeof *added);
        if (!keys || !list || !added) return;
        keys->names = di_schema_alloc(c, (conj->count + 1) * sizeof *keys->names);
        keys->lengths = di_schema_alloc(c, (conj->count + 1) * sizeof *keys->lengths);
        keys->patterns = di_schema_alloc(c, (conj->count + 1) * sizeof *keys->patterns);
        if (!keys->names || !keys->lengths || !keys->patterns) return;
        bool all_keys = false, all_items = false, contains = false;
        uint32_t position = 0;
        for (uint32_t j = 0; j < conj->count; j++) {
            const constraint *k = conj->list[j];
            list[j] = k;
            if (k->negated) continue;
            if (k->kind == C_PROPERTY) {
                keys->names[keys->name_count] = k->name;
                keys->lengths[keys->name_count++] = k->name_length;
            }
            if (k->kind == C_PATTERN) keys->patterns[keys->pattern_count++] = k->expr;
            all_keys = all_keys || k->kind == C_ADDITIONAL;
            all_items = all_items || k->kind == C_REST;
            contains = contains || k->kind == C_CONTAINS;
            if (k->kind == C_ITEM && k->low + 1 > position) position = k->low + 1;
        }
        uint32_t n = conj->count;
        if (properties && !all_keys) {
            added[0] = (constraint){.kind = C_ADDITIONAL, .at = properties, .keys = keys};
            added[0].set = di_set_of(c, properties, MEANS_SCHEMA);
            list[n++] = &added[0];
        }
        if (items && !all_items) {
            if (contains && items->type != DI_JSON_TRUE) {
                di_schema_refuse(c, DI_REASON_UNSUPPORTED, items,
                                 "unevaluatedItems beside contains cannot be enforced");
                return;
            }
            added[1] = (constraint){.kind = C_REST, .at = items, .low = position};
            added[1].set = di_set_of(c, items, MEANS_SCHEMA);
            list[n++] = &added[1];
        }
        conj->list = list;
        conj->count = n;
    }
}
