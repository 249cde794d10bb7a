/* schema_build.c - forms to symbols; see schema.h. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

enum { MAX_PREFIX = 4096, MAX_ENTRIES = 60000, MAX_UNIQUE = 64, MAX_CHOICES = 32, MAX_DEMANDS = 64 };

/* -------------------------------------------------------------------------------------------------------- languages */

di_expr di_build_number(compiler *c, const conjunction *conj) {
    di_expr result = DI_EXPR_ALL;
    for (uint32_t i = 0; i < conj->count; i++)
        if (conj->list[i]->kind == C_NUMBER) result = di_expr_and2(c->x, result, conj->list[i]->expr);
    if (result != DI_EXPR_ALL) return result;
    if (!c->number_full) c->number_full = di_number_full(c->x);
    return c->number_full;
}

static void bounds_of(const conjunction *conj, constraint_kind kind, uint32_t *low, uint32_t *high) {
    *low = 0;
    *high = DI_UNBOUNDED;
    for (uint32_t i = 0; i < conj->count; i++) {
        if (conj->list[i]->kind != kind) continue;
        if (conj->list[i]->low > *low) *low = conj->list[i]->low;
        if (conj->list[i]->high < *high) *high = conj->list[i]->high;
    }
}

di_expr di_build_string(compiler *c, const conjunction *conj) {
    di_expr result = DI_EXPR_ALL;
    uint32_t low, high;
    for (uint32_t i = 0; i < conj->count; i++)
        if (conj->list[i]->kind == C_STRING) result = di_expr_and2(c->x, result, conj->list[i]->expr);
    bounds_of(conj, C_LENGTH, &low, &high);
    if (result != DI_EXPR_ALL && low == 0 && high == DI_UNBOUNDED) return result;
    di_expr length = di_expr_repeat(c->x, di_expr_any_point(c->x, DI_ENCODING_JSON_GENERAL), low, high);
    return di_expr_and2(c->x, result, length);
}

/* ------------------------------------------------------------------------------------------------------------- keys */

/* The inside of the JSON string of a key, as the encoding without general escapes spells it. */
static bool key_matches(compiler *c, di_expr language, const char *name, size_t length) {
    di_text out = {0};
    for (size_t i = 0; i < length; i++) {
        unsigned char b = (unsigned char)name[i];
        if (b == '"' || b == '\\')
            di_text_printf(&out, "\\%c", b);
        else if (b < 0x20)
            di_text_printf(&out, "\\u%04x", b);
        else
            di_text_putc(&out, (char)b);
    }
    bool result = di_expr_matches(c->x, language, out.data ? out.data : "", out.length);
    if (out.failed) c->x->failed = DI_ERR_MEMORY;
    di_text_free(&out);
    return result;
}

static bool same_name(const char *a, size_t a_length, const char *b, size_t b_length) {
    return a_length == b_length && memcmp(a, b, a_length) == 0;
}

bool di_keys_cover(compiler *c, const layer *keys, const char *name, size_t length) {
    for (uint32_t i = 0; i < keys->name_count; i++)
        if (same_name(keys->names[i], keys->lengths[i], name, length)) return true;
    for (uint32_t i = 0; i < keys->pattern_count; i++)
        if (key_matches(c, keys->patterns[i], name, length)) return true;
    return false;
}

static set_id never(compiler *c) {
    return di_set_of(c, di_schema_false(), MEANS_SCHEMA);
}

set_id di_property_set(compiler *c, const conjunction *conj, const char *name, size_t length) {
    set_id set = 0;
    for (uint32_t i = 0; i < conj->count && di_exprs_spend(c->x, 1); i++) {
        const constraint *k = conj->list[i];
        if (k->kind == C_PROPERTY && same_name(k->name, k->name_length, name, length))
            set = di_set_join(c, set, k->set);
        if (k->kind == C_PATTERN && key_matches(c, k->expr, name, length)) set = di_set_join(c, set, k->set);
        if (k->kind == C_ADDITIONAL && !di_keys_cover(c, k->keys, name, length)) set = di_set_join(c, set, k->set);
        if (k->kind == C_NAMES && !key_matches(c, k->expr, name, length)) set = di_set_join(c, set, never(c));
    }
    return set;
}

/* ---------------------------------------------------------------------------------------------------------- objects */

typedef struct object_builder {
    compiler *c;
    const conjunction *conj;
    const char **names;
    size_t *lengths;
    uint32_t name_count;
    di_expr *atoms; /* languages of keys that matter */
    uint32_t atom_count;
    di_cell cells[DI_MAX_CELLS];
    uint64_t truths[DI_MAX_CELLS]; /* of atoms */
    uint32_t cell_count;
} object_builder;

static void add_name(object_builder *b, const char *name, size_t length) {
    for (uint32_t i = 0; i < b->name_count; i++)
        if (same_name(b->names[i], b->lengths[i], name, length)) return;
    di_exprs_spend(b->c->x, 1 + b->name_count / 8);
    b->names[b->name_count] = name;
    b->lengths[b->name_count++] = length;
}

static void add_atom(object_builder *b, di_expr atom) {
    for (uint32_t i = 0; i < b->atom_count; i++)
        if (b->atoms[i] == atom) return;
    b->atoms[b->atom_count++] = atom;
}

static void add_layer_atoms(object_builder *b, const layer *keys) {
    for (uint32_t i = 0; i < keys->pattern_count; i++) add_atom(b, keys->patterns[i]);
}

static bool collect_keys(object_builder *b) {
    size_t names = 1, atoms = 1;
    for (uint32_t i = 0; i < b->conj->count; i++) {
        const constraint *k = b->conj->list[i];
        names += 1 + (k->kind == C_EXISTS ? k->keys->name_count : 0);
        atoms += 1 + (k->kind == C_EXISTS || k->kind == C_ADDITIONAL ? k->keys->pattern_count : 0);
    }
    b->names = di_schema_alloc(b->c, names * sizeof *b->names);
    b->lengths = di_schema_alloc(b->c, names * sizeof *b->lengths);
    b->atoms = di_schema_alloc(b->c, atoms * sizeof *b->atoms);
    if (!b->names || !b->lengths || !b->atoms) return false;
    for (int pass = 0; pass < 2; pass++) /* declared ones first */
        for (uint32_t i = 0; i < b->conj->count; i++) {
            const constraint *k = b->conj->list[i];
            bool declares = k->kind == C_PROPERTY && !k->negated;
            bool other = k->kind == C_REQUIRED || (k->kind == C_PROPERTY && k->negated);
            if (pass == 0 ? declares : other) add_name(b, k->name, k->name_length);
            if (pass == 0 && (k->kind == C_PATTERN || k->kind == C_NAMES)) add_atom(b, k->expr);
            if (pass == 0 && (k->kind == C_ADDITIONAL || k->kind == C_EXISTS)) add_layer_atoms(b, k->keys);
            if (pass == 1 && k->kind == C_EXISTS)
                for (uint32_t j = 0; j < k->keys->name_count; j++) add_name(b, k->keys->names[j], k->keys->lengths[j]);
        }
    if (b->name_count > DI_MAX_DECLARED || b->atom_count > 64)
        return di_schema_refuse(b->c, DI_REASON_TOO_COMPLEX, b->conj->count ? b->conj->list[0]->at : NULL,
                                "objects with more than %d declared keys or 64 key patterns are not supported",
                                DI_MAX_DECLARED);
    return true;
}

static bool atom_true(const object_builder *b, uint64_t truth, di_expr atom) {
    for (uint32_t i = 0; i < b->atom_count; i++)
        if (b->atoms[i] == atom) return truth >> i & 1;
    return false;
}

static bool layer_open(const object_builder *b, const layer *keys, uint64_t truth) {
    for (uint32_t i = 0; i < keys->pattern_count; i++)
        if (atom_true(b, truth, keys->patterns[i])) return false;
    return true;
}

/* What values of undeclared keys with these truths must follow. */
static set_id cell_set(object_builder *b, uint64_t truth) {
    set_id set = 0;
    for (uint32_t i = 0; i < b->conj->count; i++) {
        const constraint *k = b->conj->list[i];
        bool applies = (k->kind == C_PATTERN && atom_true(b, truth, k->expr)) ||
                       (k->kind == C_ADDITIONAL && layer_open(b, k->keys, truth));
        if (applies) set = di_set_join(b->c, set, k->set);
        if (k->kind == C_NAMES && !atom_true(b, truth, k->expr)) set = di_set_join(b->c, set, never(b->c));
    }
    return set;
}

/* Splits the keys of `language` by the atoms from `next` on. */
static bool split_cells(object_builder *b, di_expr language, uint32_t next, uint64_t truth) {
    compiler *c = b->c;
    if (language == DI_EXPR_EMPTY || !di_expr_alive(c->x, language)) return !di_schema_failed(c);
    if (next < b->atom_count) {
        di_expr in = di_expr_and2(c->x, language, b->atoms[next]);
        return split_cells(b, in, next + 1, truth | (uint64_t)1 << next) &&
               split_cells(b, di_expr_minus(c->x, language, b->atoms[next]), next + 1, truth);
    }
    set_id set = cell_set(b, truth);
    if (set && di_set_empty(c, set)) return !di_schema_failed(c);
    if (b->cell_count == DI_MAX_CELLS)
        return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, b->conj->count ? b->conj->list[0]->at : NULL,
                                "the key patterns of this object have more than %d combinations", DI_MAX_CELLS);
    b->truths[b->cell_count] = truth;
    b->cells[b->cell_count++] = (di_cell){language, di_build_rule(c, set)};
    return !di_schema_failed(c);
}

static di_expr key_lexeme(compiler *c, di_expr inside) {
    di_expr end = di_expr_cat(c->x, c->space, di_expr_byte(c->x, ':'));
    end = di_expr_cat(c->x, di_expr_byte(c->x, '"'), end);
    return di_expr_cat(c->x, di_expr_byte(c->x, '"'), di_expr_cat(c->x, inside, end));
}

static bool make_cells(object_builder *b) {
    compiler *c = b->c;
    bool closed = false, plain = b->name_count == 0 && b->atom_count == 0;
    for (uint32_t i = 0; i < b->conj->count; i++) {
        const constraint *k = b->conj->list[i];
        if (k->kind == C_ADDITIONAL && k->keys->pattern_count == 0 && k->set && di_set_empty(c, k->set)) closed = true;
    }
    if (closed || di_schema_failed(c)) return !di_schema_failed(c);
    di_encoding encoding = plain ? DI_ENCODING_JSON_GENERAL : DI_ENCODING_JSON;
    di_expr language = di_expr_star(c->x, di_expr_any_point(c->x, encoding));
    di_expr *declared = di_schema_alloc(c, (b->name_count + 1) * sizeof *declared);
    if (!declared) return false;
    for (uint32_t i = 0; i < b->name_count; i++)
        declared[i] = di_expr_text(c->x, b->names[i], b->lengths[i], DI_ENCODING_JSON);
    if (b->name_count) language = di_expr_minus(c->x, language, di_expr_or(c->x, declared, b->name_count));
    return split_cells(b, language, 0, 0);
}

static bool fill_object(object_builder *b, di_object *o) {
    compiler *c = b->c;
    di_symbols *s = c->s;
    if (!di_grow(&s->properties, &s->property_capacity, (uint64_t)s->property_count + b->name_count,
                 sizeof(di_property)) ||
        !di_grow(&s->cells, &s->cell_capacity, (uint64_t)s->cell_count + b->cell_count, sizeof(di_cell)))
        return c->x->failed = DI_ERR_MEMORY, false;
    o->properties = s->property_count;
    o->property_count = b->name_count;
    for (uint32_t i = 0; i < b->name_count; i++) {
        bool needed = false;
        for (uint32_t j = 0; j < b->conj->count && !needed; j++) {
            const constraint *k = b->conj->list[j];
            needed = k->kind == C_REQUIRED && same_name(k->name, k->name_length, b->names[i], b->lengths[i]);
        }
        set_id set = di_property_set(c, b->conj, b->names[i], b->lengths[i]);
        di_symbol value = set && di_set_empty(c, set) ? DI_SYMBOL_EMPTY : di_build_rule(c, set);
        di_expr key = key_lexeme(c, di_expr_text(c->x, b->names[i], b->lengths[i], DI_ENCODING_JSON));
        if (di_schema_failed(c)) return false;
        s->properties[s->property_count++] = (di_property){key, value, needed};
    }
    o->cells = s->cell_count;
    o->cell_count = b->cell_count;
    for (uint32_t i = 0; i < b->cell_count; i++)
        s->cells[s->cell_count++] = (di_cell){key_lexeme(c, b->cells[i].key), b->cells[i].value};
    for (uint32_t i = 0; i < b->conj->count; i++) {
        const constraint *k = b->conj->list[i];
        uint32_t cells = 0;
        if (k->kind != C_EXISTS) continue;
        for (uint32_t j = 0; j < b->cell_count; j++)
            if (layer_open(b, k->keys, b->truths[j])) cells |= 1u << j;
        if (o->obligation_count == DI_MAX_OBLIGATIONS)
            return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, k->at, "too many demands for further keys");
        o->obligations[o->obligation_count++] = cells;
    }
    return !di_schema_failed(c);
}

/* Notes where the minimum of the object made last comes from. Whether its keys are enough for it shows at the end. */
static bool note_minimum(compiler *c, const conjunction *conj) {
    if (!di_grow(&c->minimums, &c->minimum_capacity, (uint64_t)c->minimum_count + 1, sizeof *c->minimums))
        return c->x->failed = DI_ERR_MEMORY, false;
    const constraint *highest = NULL;
    for (uint32_t i = 0; i < conj->count; i++)
        if (conj->list[i]->kind == C_ENTRIES && (!highest || conj->list[i]->low > highest->low))
            highest = conj->list[i];
    c->minimums[c->minimum_count++] = (object_minimum){c->s->object_count - 1, highest ? highest->at : NULL};
    return true;
}

bool di_build_check(compiler *c) {
    for (uint32_t i = 0; i < c->minimum_count && !di_schema_failed(c); i++)
        if (di_sym_short_of_keys(c->s, c->minimums[i].object))
            di_schema_refuse(c, DI_REASON_UNSUPPORTED, c->minimums[i].at,
                             "minProperties beyond the declared keys cannot be enforced: undeclared keys could repeat");
    return !di_schema_failed(c);
}

static di_symbol build_cells_object(compiler *c, const conjunction *conj) {
    object_builder *b = di_schema_alloc(c, sizeof *b);
    di_object o = {.any_order = c->source->order == DI_ORDER_ANY};
    if (!b) return DI_SYMBOL_EMPTY;
    b->c = c;
    b->conj = conj;
    bounds_of(conj, C_ENTRIES, &o.minimum, &o.maximum);
    if (o.minimum > o.maximum) return DI_SYMBOL_EMPTY;
    if (!collect_keys(b) || !make_cells(b) || !fill_object(b, &o)) return DI_SYMBOL_EMPTY;
    if (o.maximum != DI_UNBOUNDED && o.maximum > MAX_ENTRIES) o.maximum = MAX_ENTRIES;
    di_symbols *s = c->s;
    if (!di_grow(&s->objects, &s->object_capacity, (uint64_t)s->object_count + 1, sizeof o))
        return c->x->failed = DI_ERR_MEMORY, DI_SYMBOL_EMPTY;
    s->objects[s->object_count++] = o;
    if (o.minimum && !note_minimum(c, conj)) return DI_SYMBOL_EMPTY;
    return di_sym_object(s, c->x, s->object_count - 1);
}

static di_symbol build_object(compiler *c, const conjunction *conj, uint32_t from, unsigned depth);

/* The object in which this key meets the demand list[from]. */
static di_symbol build_with_key(compiler *c, const conjunction *conj, uint32_t from, unsigned depth, const char *name,
                                size_t length) {
    constraint *key = di_schema_alloc(c, sizeof *key);
    const constraint **list = di_schema_alloc(c, conj->count * sizeof *list);
    if (!key || !list || !di_exprs_spend(c->x, 1 + conj->count)) return DI_SYMBOL_EMPTY;
    memcpy(list, conj->list, conj->count * sizeof *list);
    *key = (constraint){.kind = C_REQUIRED, .at = conj->list[from]->at, .name = name, .name_length = length};
    list[from] = key;
    conjunction next = {conj->types, conj->count, list};
    return build_object(c, &next, from + 1, depth + 1);
}

typedef struct key_choice {
    const char *names[MAX_CHOICES];
    size_t lengths[MAX_CHOICES];
    uint32_t count;
} key_choice;

/* Adds a key that meets the demand, if it can be there. */
static bool add_choice(compiler *c, const conjunction *conj, const constraint *demand, const char *name, size_t length,
                       key_choice *choice) {
    for (uint32_t i = 0; i < choice->count; i++)
        if (same_name(choice->names[i], choice->lengths[i], name, length)) return true;
    if (!di_exprs_spend(c->x, 1 + choice->count / 8) || di_keys_cover(c, demand->keys, name, length))
        return !di_schema_failed(c);
    if (di_set_empty(c, di_property_set(c, conj, name, length))) return !di_schema_failed(c);
    if (choice->count == MAX_CHOICES)
        return di_schema_refuse(c, DI_REASON_TOO_COMPLEX, demand->at,
                                "more than %d keys could meet this demand for a further key", MAX_CHOICES);
    choice->names[choice->count] = name;
    choice->lengths[choice->count++] = length;
    return !di_schema_failed(c);
}

/* Demands for a key outside of some are met by undeclared keys, which cells count, or by keys that are named anywhere
 * else: a union over these, unless one of them is required. */
static di_symbol build_object(compiler *c, const conjunction *conj, uint32_t from, unsigned depth) {
    while (from < conj->count && conj->list[from]->kind != C_EXISTS) from++;
    if (from == conj->count) return build_cells_object(c, conj);
    const constraint *exists = conj->list[from];
    if (depth >= MAX_DEMANDS) {
        di_schema_refuse(c, DI_REASON_TOO_COMPLEX, exists->at, "too many demands for further keys");
        return DI_SYMBOL_EMPTY;
    }
    for (uint32_t i = 0; i < conj->count; i++) {
        const constraint *k = conj->list[i];
        if (k->kind == C_REQUIRED && !di_keys_cover(c, exists->keys, k->name, k->name_length))
            return build_with_key(c, conj, from, depth, k->name, k->name_length);
    }
    key_choice choice = {.count = 0};
    for (uint32_t i = 0; i < conj->count; i++) {
        const constraint *k = conj->list[i];
        if (k->kind == C_PROPERTY && !add_choice(c, conj, exists, k->name, k->name_length, &choice))
            return DI_SYMBOL_EMPTY;
        for (uint32_t j = 0; k->kind == C_EXISTS && k != exists && j < k->keys->name_count; j++)
            if (!add_choice(c, conj, exists, k->keys->names[j], k->keys->lengths[j], &choice)) return DI_SYMBOL_EMPTY;
    }
    di_symbol result = build_object(c, conj, from + 1, depth + 1);
    for (uint32_t i = 0; i < choice.count && !di_schema_failed(c); i++)
        result = di_sym_choice2(c->s, c->x, result,
                                build_with_key(c, conj, from, depth, choice.names[i], choice.lengths[i]));
    return result;
}

/* ----------------------------------------------------------------------------------------------------------- arrays */

/* Values that the items of an array can have at most, as nodes. */
typedef struct value_list {
    const di_json *list[MAX_UNIQUE];
    uint32_t count;
} value_list;

static bool add_value(value_list *v, const di_json *value) {
    if (!value || v->count == MAX_UNIQUE) return false;
    v->list[v->count++] = value;
    return true;
}

static bool integer_bound(const di_json *node, const char *name, const char *exclusive, int64_t *bound) {
    const di_json *value = di_json_get(node, name), *other = di_json_get(node, exclusive);
    return di_json_int64(value && value->type == DI_JSON_NUMBER ? value : other, bound);
}

/* Integers between two bounds; whether these belong to them shows when each value is joined with the schema. */
static bool add_integers(compiler *c, const di_json *node, value_list *v) {
    int64_t low, high;
    if (!integer_bound(node, "minimum", "exclusiveMinimum", &low) ||
        !integer_bound(node, "maximum", "exclusiveMaximum", &high))
        return false;
    if (low > high || (uint64_t)high - (uint64_t)low >= MAX_UNIQUE) return false;
    if (!di_exprs_spend(c->x, (uint64_t)high - (uint64_t)low)) return false;
    for (int64_t i = low;; i++) {
        di_json *value = di_schema_alloc(c, sizeof *value);
        char *text = di_schema_alloc(c, 24);
        if (!value || !text) return false;
        int length = snprintf(text, 24, "%" PRId64, i);
        *value = (di_json){.type = DI_JSON_NUMBER, .text = text, .length = (size_t)length};
        if (!add_value(v, value)) return false;
        if (i == high) return true;
    }
}

static bool add_type(compiler *c, const di_json *node, const di_json *type, value_list *v) {
    static const di_json null = {.type = DI_JSON_NULL};
    if (di_json_string_is(type, "null")) return add_value(v, &null);
    if (di_json_string_is(type, "boolean")) return add_value(v, di_schema_true()) && add_value(v, di_schema_false());
    return di_json_string_is(type, "integer") && add_integers(c, node, v);
}

/* Adds the values that may follow the schema, and maybe some more; false if they are not few. Schemas that refer to
 * each other can be visited very often: each visit is counted. */
static bool finite_values(compiler *c, const di_json *node, value_list *v, unsigned depth) {
    if (depth >= 16 || !di_exprs_spend(c->x, 1 + node->count / 32)) return false;
    const di_json *list = di_json_get(node, "enum"), *one = di_json_get(node, "const");
    const di_json *ref = di_json_get(node, "$ref"), *type = di_json_get(node, "type"), *target = NULL;
    uint32_t before = v->count;
    bool few = false;
    if (ref && ref->type == DI_JSON_STRING) target = di_schema_resolve(c, node, ref);
    if (target && finite_values(c, target, v, depth + 1)) return true;
    if (ref && c->draft < DI_DRAFT_2019) return false; /* nothing beside it counts */
    if (one && c->draft >= DI_DRAFT_6) return add_value(v, one);
    if (list && list->type == DI_JSON_ARRAY) {
        few = true;
        for (const di_json *i = list->first; i && few; i = i->next) few = add_value(v, i);
        if (few) return true;
    }
    static const char *const unions[] = {"anyOf", "oneOf"};
    for (int u = 0; u < 2; u++) {
        const di_json *parts = di_json_get(node, unions[u]);
        v->count = before;
        few = parts && parts->type == DI_JSON_ARRAY;
        for (const di_json *i = few ? parts->first : NULL; i && few; i = i->next)
            few = finite_values(c, i, v, depth + 1);
        if (few) return true;
    }
    const di_json *all = di_json_get(node, "allOf");
    for (const di_json *i = all && all->type == DI_JSON_ARRAY ? all->first : NULL; i && !di_schema_failed(c);
         i = i->next) {
        v->count = before;
        if (finite_values(c, i, v, depth + 1)) return true;
    }
    v->count = before;
    if (di_schema_failed(c)) return false;
    few = type != NULL;
    if (type && type->type != DI_JSON_ARRAY) few = add_type(c, node, type, v);
    for (const di_json *i = type && type->type == DI_JSON_ARRAY ? type->first : NULL; i && few; i = i->next)
        few = add_type(c, node, i, v);
    if (!few) v->count = before;
    return few;
}

/* True if they are one value spelled differently. The depth is that of the document. */
static bool equal_values(compiler *c, const di_json *a, const di_json *b) {
    di_decimal x, y;
    if (a->type != b->type) return false;
    if (a->type == DI_JSON_STRING) return same_name(a->text, a->length, b->text, b->length);
    if (a->type == DI_JSON_NUMBER)
        return di_exprs_spend(c->x, (a->length + b->length) / 16) &&
               di_decimal_parse(c->arena, a->text, a->length, &x) &&
               di_decimal_parse(c->arena, b->text, b->length, &y) && di_decimal_compare(&x, &y) == 0;
    if (a->type != DI_JSON_ARRAY && a->type != DI_JSON_OBJECT) return true;
    if (a->count != b->count || !di_exprs_spend(c->x, 1 + a->count / 8)) return false;
    const di_json *j = b->first;
    for (const di_json *i = a->first; i; i = i->next) {
        uint64_t passed = 0;
        if (a->type == DI_JSON_OBJECT)
            for (j = b->first; j && !same_name(i->key, i->key_length, j->key, j->key_length); passed++) j = j->next;
        if (!j || !di_exprs_spend(c->x, passed / 8) || !equal_values(c, i, j)) return false;
        if (a->type == DI_JSON_ARRAY) j = j->next;
    }
    return true;
}

static bool unique_items(compiler *c, set_id set, di_array *a, const di_json *at) {
    value_list v = {.count = 0};
    bool few = false;
    for (uint32_t i = 0; i < c->sets[set].count && !few && !di_schema_failed(c); i++) {
        uint32_t literal = c->sets[set].literals[i];
        if (literal % MEANINGS == MEANS_SCHEMA) few = finite_values(c, c->infos[literal / MEANINGS].node, &v, 0);
    }
    if (di_schema_failed(c)) return false;
    if (!few || !v.count)
        return di_schema_refuse(c, DI_REASON_UNSUPPORTED, at,
                                "uniqueItems is enforced for items of at most %d values only", MAX_UNIQUE);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < v.count; i++) {
        bool known = false;
        for (uint32_t j = 0; j < kept; j++) known = known || equal_values(c, v.list[i], v.list[j]);
        if (!known) v.list[kept++] = v.list[i];
    }
    di_symbols *s = c->s;
    a->items = s->item_count;
    a->item_count = a->unique = kept;
    if (!di_grow(&s->items, &s->item_capacity, (uint64_t)s->item_count + kept, sizeof *s->items))
        return c->x->failed = DI_ERR_MEMORY, false;
    for (uint32_t i = 0; i < kept; i++) {
        set_id one = di_set_join(c, set, di_set_of(c, v.list[i], MEANS_VALUE));
        s->items[s->item_count++] = (di_array_item){di_build_rule(c, one), DI_SYMBOL_EMPTY};
    }
    return !di_schema_failed(c);
}

static set_id position_set(compiler *c, const conjunction *conj, uint32_t position) {
    set_id set = 0;
    for (uint32_t i = 0; i < conj->count; i++) {
        const constraint *k = conj->list[i];
        if ((k->kind == C_ITEM && k->low == position) || (k->kind == C_REST && k->low <= position))
            set = di_set_join(c, set, k->set);
    }
    return set;
}

static bool opposite_set(compiler *c, set_id set, const di_json *at, set_id *out) {
    if (set == 0) return *out = never(c), true;
    uint32_t literal = c->sets[set].literals[0], m = literal % MEANINGS;
    if (c->sets[set].count > 1 || m == MEANS_VALUE)
        return di_schema_refuse(c, DI_REASON_UNSUPPORTED, at, "maxContains cannot be enforced here");
    *out = di_set_of(c, c->infos[literal / MEANINGS].node, m == MEANS_SCHEMA ? MEANS_NOT_SCHEMA : MEANS_SCHEMA);
    return true;
}

static di_symbol rule_or_nothing(compiler *c, set_id set) {
    return set && di_set_empty(c, set) ? DI_SYMBOL_EMPTY : di_build_rule(c, set);
}

static bool array_items(compiler *c, const conjunction *conj, di_array *a, uint32_t prefix,
                        const constraint *contains) {
    di_symbols *s = c->s;
    set_id other = 0;
    bool limited = contains && contains->high != DI_UNBOUNDED;
    a->contains_maximum = DI_UNBOUNDED;
    if (contains) {
        a->contains_minimum = contains->low;
        a->contains_maximum = contains->high;
        if (limited && !opposite_set(c, contains->set, contains->at, &other)) return false;
    }
    a->items = s->item_count;
    a->item_count = prefix + 1;
    if (!di_grow(&s->items, &s->item_capacity, (uint64_t)s->item_count + prefix + 1, sizeof *s->items))
        return c->x->failed = DI_ERR_MEMORY, false;
    s->item_count += prefix + 1;
    for (uint32_t i = 0; i <= prefix && !di_schema_failed(c); i++) {
        set_id set = position_set(c, conj, i);
        di_array_item item = {DI_SYMBOL_EMPTY, DI_SYMBOL_EMPTY};
        item.plain = rule_or_nothing(c, limited ? di_set_join(c, set, other) : set);
        if (contains) item.counted = rule_or_nothing(c, di_set_join(c, set, contains->set));
        s->items[a->items + i] = item;
    }
    return !di_schema_failed(c);
}

static di_symbol build_array(compiler *c, const conjunction *conj) {
    di_array a = {0};
    uint32_t prefix = 0;
    const constraint *contains = NULL, *unique = NULL;
    bounds_of(conj, C_ITEMS, &a.minimum, &a.maximum);
    for (uint32_t i = 0; i < conj->count; i++) {
        const constraint *k = conj->list[i];
        if (k->kind == C_ITEM && k->low + 1 > prefix) prefix = k->low + 1;
        if (k->kind == C_REST && k->low > prefix) prefix = k->low;
        if (k->kind == C_UNIQUE) unique = k;
        if (k->kind != C_CONTAINS) continue;
        if (k->low > k->high) return DI_SYMBOL_EMPTY;
        if (contains && (contains->set != k->set || contains->low != k->low || contains->high != k->high)) {
            di_schema_refuse(c, DI_REASON_UNSUPPORTED, k->at, "more than one contains at once cannot be enforced");
            return DI_SYMBOL_EMPTY;
        }
        contains = k;
    }
    if (a.minimum > a.maximum) return DI_SYMBOL_EMPTY;
    if (prefix > MAX_PREFIX) {
        di_schema_refuse(c, DI_REASON_TOO_COMPLEX, conj->list[0]->at, "more than %d items by position", MAX_PREFIX);
        return DI_SYMBOL_EMPTY;
    }
    if (unique && a.maximum > 1) {
        if (contains || prefix) {
            di_schema_refuse(c, DI_REASON_UNSUPPORTED, unique->at,
                             "uniqueItems beside items by position or contains cannot be enforced");
            return DI_SYMBOL_EMPTY;
        }
        if (!unique_items(c, position_set(c, conj, 0), &a, unique->at)) return DI_SYMBOL_EMPTY;
    } else if (!array_items(c, conj, &a, prefix, contains)) {
        return DI_SYMBOL_EMPTY;
    }
    di_symbols *s = c->s;
    if (!di_grow(&s->arrays, &s->array_capacity, (uint64_t)s->array_count + 1, sizeof a))
        return c->x->failed = DI_ERR_MEMORY, DI_SYMBOL_EMPTY;
    s->arrays[s->array_count++] = a;
    return di_sym_array(s, c->x, s->array_count - 1);
}

/* ------------------------------------------------------------------------------------------------------------ rules */

di_symbol di_build_rule(compiler *c, set_id set) {
    if (di_schema_failed(c)) return DI_SYMBOL_EMPTY;
    if (c->set_count == 0) di_set_of(c, di_schema_true(), MEANS_SCHEMA);
    if (c->sets[set].rule == UINT32_MAX) {
        uint32_t rule = di_sym_new_rule(c->s, c->x);
        if (!di_grow(&c->queue, &c->queue_capacity, (uint64_t)c->queue_count + 1, sizeof *c->queue))
            return c->x->failed = DI_ERR_MEMORY, DI_SYMBOL_EMPTY;
        c->queue[c->queue_count++] = set;
        c->sets[set].rule = rule;
    }
    return di_sym_rule(c->s, c->x, c->sets[set].rule);
}

static bool concerns(const constraint *k, uint32_t type) {
    return type == TYPE_OBJECT ? k->kind >= C_PROPERTY && k->kind <= C_ENTRIES : k->kind >= C_ITEM;
}

/* Constraints of one type only, without repetition. */
static conjunction only(compiler *c, const conjunction *conj, uint32_t type) {
    conjunction out = {type, 0, di_schema_alloc(c, (conj->count + 1) * sizeof *out.list)};
    for (uint32_t i = 0; out.list && i < conj->count; i++) {
        bool known = !concerns(conj->list[i], type);
        for (uint32_t j = 0; j < out.count && !known; j++) known = out.list[j] == conj->list[i];
        if (!known) out.list[out.count++] = conj->list[i];
    }
    return out;
}

static bool built_before(compiler *c, const form *f, uint32_t index, uint32_t type, const conjunction *now) {
    for (uint32_t i = 0; i < index; i++) {
        if (!(f->list[i].types & type)) continue;
        conjunction old = only(c, &f->list[i], type);
        if (old.list && old.count == now->count && memcmp(old.list, now->list, old.count * sizeof *old.list) == 0)
            return true;
    }
    return false;
}

static di_symbol build_conjunction(compiler *c, const form *f, uint32_t index) {
    static const char *const words[] = {"null", "false", "true"};
    const conjunction *conj = &f->list[index];
    di_expr scalars = DI_EXPR_EMPTY;
    for (uint32_t i = 0; i < 3; i++)
        if (conj->types >> i & 1)
            scalars = di_expr_or2(c->x, scalars, di_expr_literal(c->x, words[i], strlen(words[i])));
    if (conj->types & TYPE_NUMBER) {
        di_expr language = di_build_number(c, conj);
        scalars = di_expr_or2(c->x, scalars, language);
    }
    if (conj->types & TYPE_STRING) {
        di_expr quote = di_expr_byte(c->x, '"');
        di_expr inside = di_expr_cat(c->x, di_build_string(c, conj), quote);
        scalars = di_expr_or2(c->x, scalars, di_expr_cat(c->x, quote, inside));
    }
    di_symbol result = scalars == DI_EXPR_EMPTY ? DI_SYMBOL_EMPTY : di_sym_lexeme(c->s, c->x, scalars);
    for (uint32_t type = TYPE_ARRAY; type <= TYPE_OBJECT; type <<= 1) {
        if (!(conj->types & type) || di_schema_failed(c)) continue;
        conjunction part = only(c, conj, type);
        if (!part.list || built_before(c, f, index, type, &part)) continue;
        di_symbol one = type == TYPE_ARRAY ? build_array(c, &part) : build_object(c, &part, 0, 0);
        result = di_sym_choice2(c->s, c->x, result, one);
    }
    return result;
}

bool di_build_all(compiler *c) {
    while (c->queue_done < c->queue_count && !di_schema_failed(c)) {
        set_id set = c->queue[c->queue_done++];
        const form *f = di_set_form(c, set);
        di_symbol *list = f ? di_schema_alloc(c, (f->count + 1) * sizeof *list) : NULL;
        if (!list) return false;
        for (uint32_t i = 0; i < f->count && !di_schema_failed(c); i++) list[i] = build_conjunction(c, f, i);
        if (di_schema_failed(c)) return false;
        c->s->rules[c->sets[set].rule] = di_sym_choice(c->s, c->x, list, f->count);
    }
    return !di_schema_failed(c);
}

di_symbol di_build_any_object(compiler *c) {
    conjunction none = {TYPE_OBJECT, 0, NULL};
    return build_object(c, &none, 0, 0);
}
