/* schema_keywords.c - finds keywords, and what they share; unevaluated*; see schema_keywords.h. */
#include "grammar/schema_keywords.h"

#include <string.h>

const di_json *di_schema_true(void) {
    static const di_json node = {.type = DI_JSON_TRUE};
    return &node;
}

const di_json *di_schema_false(void) {
    static const di_json node = {.type = DI_JSON_FALSE};
    return &node;
}

bool di_keyword_syntax(const keyword *k, const char *what) {
    return di_schema_refuse(k->c, DI_REASON_SYNTAX, k->at, "\"%.60s\" must be %s, not %s", k->at->key ? k->at->key : "",
                            what, di_json_type_name(k->at->type));
}

bool di_keyword_unsupported(const keyword *k, const char *what) {
    return di_schema_refuse(k->c, DI_REASON_UNSUPPORTED, k->at, "%s", what);
}

void di_keyword_add(const keyword *k, uint32_t type, constraint one) {
    one.at = k->at;
    one.negated = !k->positive;
    di_form_add(k->c, k->out, k->positive ? TYPE_ALL : type, &one, 1);
}

meaning di_keyword_sign(bool positive) {
    return positive ? MEANS_SCHEMA : MEANS_NOT_SCHEMA;
}

set_id di_keyword_set(const keyword *k, const di_json *schema, bool positive) {
    return di_set_of(k->c, schema, di_keyword_sign(positive));
}

set_id di_keyword_never(const keyword *k) {
    return di_set_of(k->c, di_schema_false(), MEANS_SCHEMA);
}

bool di_keyword_expression(const keyword *k, const di_json *at, const char *text, size_t length, bool search,
                           di_expr *out) {
    di_regex_options options = {.encoding = DI_ENCODING_JSON, .search = search, .ecma = true};
    di_regex_fault fault;
    if (di_regex_compile(k->c->x, text, length, &options, out, &fault)) return true;
    if (k->c->x->failed != DI_OK) return false;
    return di_schema_refuse(k->c, fault.reason, at, "expression, byte %zu: %s", fault.position, fault.message);
}

di_expr di_keyword_any_string(compiler *c) {
    return di_expr_star(c->x, di_expr_any_point(c->x, DI_ENCODING_JSON));
}

bool di_keyword_size(const keyword *k, const di_json *at, uint32_t *value) {
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

static const di_keyword_row *find(const char *name) {
    static const di_keyword_row *const tables[] = {di_value_keywords, di_container_keywords, di_applicator_keywords};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const di_keyword_row *row = tables[i]; row->name; row++)
            if (strcmp(row->name, name) == 0) return row;
    return NULL;
}

void di_keyword_form(compiler *c, const di_json *node, const di_json *member, bool positive, form *out, bool *known) {
    const di_keyword_row *row = find(member->key);
    if (!row || c->draft < row->since || c->draft > row->until) return;
    *known = true;
    row->apply(&(keyword){c, node, member, positive, out});
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
            if (k->negated || k->value) continue;
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
