/* schema_containers.c - keywords about objects and arrays; see schema_keywords.h. */
#include "grammar/schema_keywords.h"

#include <stdlib.h>
#include <string.h>

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
        if (!di_keyword_expression(k, m, m->key, m->key_length, true, &keys->patterns[keys->pattern_count++]))
            return NULL;
    return keys;
}

static void kw_properties(const keyword *k) {
    if (!is_object(k, k->at)) return;
    constraint *list = di_schema_alloc(k->c, (k->at->count + 1) * sizeof *list);
    uint32_t n = 0;
    for (const di_json *m = k->at->first; list && m; m = m->next) {
        constraint one = {.kind = C_PROPERTY, .at = m, .name = m->key, .name_length = m->key_length};
        one.set = di_keyword_set(k, m, k->positive);
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
        if (!di_keyword_expression(k, m, m->key, m->key_length, true, &one.expr)) return;
        one.set = di_keyword_set(k, m, k->positive);
        list[n++] = one;
        if (k->positive) continue;
        if (m->type != DI_JSON_FALSE) {
            di_keyword_unsupported(k, "the opposite of patternProperties cannot be enforced");
            return;
        }
        layer *keys = di_schema_alloc(k->c, sizeof *keys);
        if (!keys || !(keys->patterns = di_schema_alloc(k->c, sizeof *keys->patterns))) return;
        keys->patterns[keys->pattern_count++] = di_expr_minus(k->c->x, di_keyword_any_string(k->c), one.expr);
        di_keyword_add(k, TYPE_OBJECT, (constraint){.kind = C_EXISTS, .keys = keys});
    }
    if (list && k->positive) di_form_add(k->c, k->out, TYPE_ALL, list, n);
}

static void kw_additional_properties(const keyword *k) {
    const layer *keys = keys_of(k);
    if (!keys) return;
    constraint one = {.kind = C_ADDITIONAL, .keys = keys};
    if (k->positive) {
        one.set = di_keyword_set(k, k->at, true);
        di_keyword_add(k, TYPE_OBJECT, one);
        return;
    }
    bool anything = k->at->type == DI_JSON_TRUE || (k->at->type == DI_JSON_OBJECT && !k->at->first);
    if (anything) return; /* its opposite has no value */
    if (k->at->type != DI_JSON_FALSE) {
        di_keyword_unsupported(k, "the opposite of additionalProperties with a schema cannot be enforced");
        return;
    }
    one.kind = C_EXISTS;
    di_keyword_add(k, TYPE_OBJECT, one);
}

static void kw_property_names(const keyword *k) {
    set_id set = di_keyword_set(k, k->at, true);
    const form *f = di_set_form(k->c, set);
    di_expr language = DI_EXPR_EMPTY;
    for (uint32_t i = 0; f && i < f->count; i++)
        if (f->list[i].types & TYPE_STRING)
            language = di_expr_or2(k->c->x, language, di_build_string(k->c, &f->list[i]));
    if (!f) return;
    if (k->positive) {
        di_keyword_add(k, TYPE_OBJECT, (constraint){.kind = C_NAMES, .expr = language});
        return;
    }
    if (k->c->used_format) {
        di_keyword_unsupported(k, "the opposite of propertyNames with a format cannot be enforced");
        return;
    }
    layer *keys = di_schema_alloc(k->c, sizeof *keys);
    if (!keys || !(keys->patterns = di_schema_alloc(k->c, sizeof *keys->patterns))) return;
    keys->patterns[keys->pattern_count++] = language;
    di_keyword_add(k, TYPE_OBJECT, (constraint){.kind = C_EXISTS, .keys = keys});
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
        one.set = di_keyword_never(k);
        one.negated = true;
        list[n] = one;
        di_form_add(k->c, k->out, TYPE_OBJECT, list, n + 1);
    }
    if (k->positive) di_form_add(k->c, k->out, first ? TYPE_OBJECT : TYPE_ALL, list, n);
}

static void kw_required(const keyword *k) {
    if (k->c->draft <= DI_DRAFT_4 && (k->at->type == DI_JSON_TRUE || k->at->type == DI_JSON_FALSE)) { /* draft 3 */
        if (k->at->type == DI_JSON_TRUE)
            di_keyword_unsupported(k, "\"required\" as a boolean belongs to draft 3");
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
                      .set = di_keyword_never(k)};
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
    const form *schema = di_node_form(k->c, member, di_keyword_sign(k->positive));
    if (schema) di_form_append(k->c, out, di_form_product(k->c, &has, schema));
}

static void kw_dependent(const keyword *k) {
    if (!is_object(k, k->at)) return;
    form *all = di_schema_alloc(k->c, sizeof *all);
    if (!all) return;
    if (k->positive) di_form_add(k->c, all, TYPE_ALL, NULL, 0);
    for (const di_json *m = k->at->first; m && all && !di_schema_failed(k->c); m = m->next) {
        if (m->type == DI_JSON_STRING) { /* draft 3 spelling */
            di_keyword_unsupported(k, "a dependency must be an array of names or a schema");
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
        list[n] = (constraint){.kind = C_ITEM, .at = i, .low = n, .set = di_keyword_set(k, i, k->positive)};
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
        di_keyword_add(k, TYPE_ARRAY, (constraint){.kind = C_REST, .low = from, .set = di_keyword_set(k, k->at, true)});
    } else if (from == 0) {
        constraint one = {.kind = C_CONTAINS, .low = 1, .high = DI_UNBOUNDED, .set = di_keyword_set(k, k->at, false)};
        di_keyword_add(k, TYPE_ARRAY, one);
    } else if (k->at->type == DI_JSON_FALSE) {
        di_keyword_add(k, TYPE_ARRAY, (constraint){.kind = C_ITEMS, .low = from + 1, .high = DI_UNBOUNDED});
    } else {
        di_keyword_unsupported(k, "the opposite of items behind a prefix cannot be enforced");
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
        di_keyword_syntax(k, "an array");
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
    if (least && !di_keyword_size(k, least, &one.low)) return;
    if (most && !di_keyword_size(k, most, &one.high)) return;
    if (k->positive) {
        one.set = di_keyword_set(k, k->at, true);
        if (one.low == 0 && one.high == DI_UNBOUNDED)
            di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
        else
            di_keyword_add(k, TYPE_ARRAY, one);
        return;
    }
    uint32_t low = one.low, high = one.high;
    one.set = di_keyword_set(k, k->at, true);
    if (low) {
        one.low = 0;
        one.high = low - 1;
        di_keyword_add(k, TYPE_ARRAY, one);
    }
    if (high == DI_UNBOUNDED) return;
    one.low = high + 1;
    one.high = DI_UNBOUNDED;
    di_keyword_add(k, TYPE_ARRAY, one);
}

static void kw_unique_items(const keyword *k) {
    if (!di_json_is_true(k->at)) {
        if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
    } else if (k->positive) {
        di_keyword_add(k, TYPE_ARRAY, (constraint){.kind = C_UNIQUE});
    } else {
        di_keyword_unsupported(k, "the opposite of uniqueItems cannot be enforced");
    }
}

/* ------------------------------------------------------------------------------------------------------------- table
 */

const di_keyword_row di_container_keywords[] = {
    {"properties", kw_properties, 0, 9999},
    {"required", kw_required, 0, 9999},
    {"additionalProperties", kw_additional_properties, 0, 9999},
    {"patternProperties", kw_pattern_properties, 0, 9999},
    {"propertyNames", kw_property_names, DI_DRAFT_6, 9999},
    {"dependencies", kw_dependent, 0, 9999},
    {"dependentRequired", kw_dependent, DI_DRAFT_2019, 9999},
    {"dependentSchemas", kw_dependent, DI_DRAFT_2019, 9999},
    {"items", kw_items, 0, 9999},
    {"prefixItems", kw_prefix_items, DI_DRAFT_2020, 9999},
    {"additionalItems", kw_additional_items, 0, 9999},
    {"uniqueItems", kw_unique_items, 0, 9999},
    {"contains", kw_contains, DI_DRAFT_6, 9999},
    {NULL, NULL, 0, 0},
};
