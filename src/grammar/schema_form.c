/* schema_form.c - sets of schemas and their forms: products, unions, and what is provably empty; see schema.h. */
#include <stdlib.h>
#include <string.h>

#include "grammar/schema.h"

enum { MAX_CONJUNCTIONS = 4096, MAX_DEPTH = 200, EMPTY_DEPTH = 12 };

/* ------------------------------------------------------------------------------------------------------------- sets */

static uint64_t hash_literals(const uint32_t *literals, uint32_t count) {
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) hash = di_mix(hash, literals[i]);
    return hash;
}

static uint64_t hash_set(const void *arg, uint32_t index) {
    const literal_set *set = &((const compiler *)arg)->sets[index];
    return hash_literals(set->literals, set->count);
}

/* literals: sorted, once each. */
static set_id intern_set(compiler *c, const uint32_t *literals, uint32_t count) {
    if (di_schema_failed(c)) return 0;
    if (!di_table_reserve(&c->set_table, hash_set, c)) return c->x->failed = DI_ERR_MEMORY, 0;
    uint64_t at = hash_literals(literals, count);
    uint32_t wrap = c->set_table.size - 1, slot;
    for (; (slot = c->set_table.slots[at & wrap]); at++) {
        const literal_set *o = &c->sets[slot - 1];
        if (o->count == count && (!count || memcmp(o->literals, literals, count * sizeof *literals) == 0))
            return slot - 1;
    }
    if (c->set_count >= c->s->n.limit) return c->x->failed = DI_ERR_LIMIT, 0;
    uint32_t *kept = di_schema_alloc(c, (count + 1) * sizeof *kept);
    if (!kept || !di_grow(&c->sets, &c->set_capacity, (uint64_t)c->set_count + 1, sizeof *c->sets))
        return c->x->failed = DI_ERR_MEMORY, 0;
    if (count) memcpy(kept, literals, count * sizeof *kept);
    c->sets[c->set_count] = (literal_set){.literals = kept, .count = count, .rule = UINT32_MAX};
    c->set_table.slots[at & wrap] = ++c->set_table.used;
    return c->set_count++;
}

set_id di_set_of(compiler *c, const di_json *node, meaning m) {
    if (c->set_count == 0) intern_set(c, NULL, 0);
    bool empty_object = node->type == DI_JSON_OBJECT && !node->first;
    if (m == MEANS_SCHEMA && (node->type == DI_JSON_TRUE || empty_object)) return 0;
    if (m == MEANS_NOT_SCHEMA && node->type == DI_JSON_FALSE) return 0;
    if (m == MEANS_NOT_SCHEMA && (node->type == DI_JSON_TRUE || empty_object)) {
        node = di_schema_false();
        m = MEANS_SCHEMA;
    }
    uint32_t literal = di_schema_node(c, node) * MEANINGS + m;
    return intern_set(c, &literal, 1);
}

set_id di_set_join(compiler *c, set_id a, set_id b) {
    if (a == b || b == 0) return a;
    if (a == 0) return b;
    const literal_set x = c->sets[a], y = c->sets[b];
    uint32_t *merged = di_schema_alloc(c, (x.count + y.count) * sizeof *merged), n = 0, i = 0, j = 0;
    if (!merged) return 0;
    while (i < x.count || j < y.count) {
        uint32_t next =
            j >= y.count || (i < x.count && x.literals[i] <= y.literals[j]) ? x.literals[i++] : y.literals[j++];
        if (!n || merged[n - 1] != next) merged[n++] = next;
    }
    return intern_set(c, merged, n);
}

/* ------------------------------------------------------------------------------------------------------------ forms */

static conjunction *form_room(compiler *c, form *f) {
    if (di_schema_failed(c)) return NULL;
    if (f->count >= MAX_CONJUNCTIONS) {
        c->x->failed = DI_ERR_LIMIT;
        return NULL;
    }
    if (f->count == f->capacity) {
        uint32_t capacity = f->capacity ? f->capacity * 2 : 2;
        conjunction *list = di_schema_alloc(c, capacity * sizeof *list);
        if (!list) return NULL;
        if (f->count) memcpy(list, f->list, f->count * sizeof *list);
        f->list = list;
        f->capacity = capacity;
    }
    return &f->list[f->count];
}

void di_form_add(compiler *c, form *to, uint32_t types, const constraint *list, uint32_t count) {
    conjunction *out = form_room(c, to);
    const constraint **kept = di_schema_alloc(c, (count + 1) * sizeof *kept);
    constraint *copies = di_schema_alloc(c, (count + 1) * sizeof *copies);
    if (!out || !kept || !copies) return;
    for (uint32_t i = 0; i < count; i++) {
        copies[i] = list[i];
        kept[i] = &copies[i];
    }
    *out = (conjunction){types, count, kept};
    to->count++;
}

void di_form_append(compiler *c, form *to, const form *from) {
    for (uint32_t i = 0; i < from->count; i++) {
        conjunction *out = form_room(c, to);
        if (!out) return;
        *out = from->list[i];
        to->count++;
    }
}

form *di_form_product(compiler *c, const form *a, const form *b) {
    form *out = di_schema_alloc(c, sizeof *out);
    if (!out) return NULL;
    for (uint32_t i = 0; i < a->count; i++)
        for (uint32_t j = 0; j < b->count; j++) {
            const conjunction *p = &a->list[i], *q = &b->list[j];
            uint32_t types = p->types & q->types, count = p->count + q->count;
            if (!types) continue;
            if (!di_exprs_spend(c->x, 1 + count)) return out;
            conjunction *room = form_room(c, out);
            const constraint **list = p->count ? p->list : q->list;
            if (!room) return out;
            if (p->count && q->count) {
                list = di_schema_alloc(c, count * sizeof *list);
                if (!list) return out;
                memcpy(list, p->list, p->count * sizeof *list);
                memcpy(list + p->count, q->list, q->count * sizeof *list);
            }
            *room = (conjunction){types, count, list};
            out->count++;
        }
    return out;
}

/* The union (positive) or its complement, keyword by keyword. */
static const form *schema_form(compiler *c, const di_json *node, bool positive) {
    form *f = di_schema_alloc(c, sizeof *f);
    if (!f) return NULL;
    if (node->type == DI_JSON_TRUE || node->type == DI_JSON_FALSE) {
        if ((node->type == DI_JSON_TRUE) == positive) di_form_add(c, f, TYPE_ALL, NULL, 0);
        return f;
    }
    if (node->type != DI_JSON_OBJECT) {
        di_schema_refuse(c, DI_REASON_SYNTAX, node, "a schema must be an object or a boolean, not %s",
                         di_json_type_name(node->type));
        return f;
    }
    if (positive) di_form_add(c, f, TYPE_ALL, NULL, 0);
    const di_json *reference = di_json_get(node, "$ref");
    bool alone = reference && c->draft <= DI_DRAFT_7; /* siblings of $ref are ignored there */
    for (const di_json *m = node->first; m && !di_schema_failed(c); m = m->next) {
        if ((alone && m != reference) || di_json_get(node, m->key) != m) continue;
        form one = {0};
        bool known = false;
        di_keyword_form(c, node, m, positive, &one, &known);
        if (!known || di_schema_failed(c)) continue;
        if (positive) {
            f = di_form_product(c, f, &one);
            if (f && f->count > 8) di_form_prune(c, f);
        } else {
            di_form_append(c, f, &one);
        }
        if (!f) return NULL;
    }
    bool unevaluated = di_json_get(node, "unevaluatedProperties") || di_json_get(node, "unevaluatedItems");
    if (unevaluated && !alone && c->draft >= DI_DRAFT_2019 && !di_schema_failed(c)) {
        if (!positive)
            di_schema_refuse(c, DI_REASON_UNSUPPORTED, node, "the opposite of unevaluated* cannot be enforced");
        else
            di_unevaluated(c, node, f);
    }
    return f;
}

const form *di_node_form(compiler *c, const di_json *node, meaning m) {
    uint32_t index = di_schema_node(c, node);
    if (di_schema_failed(c)) return NULL;
    if (c->infos[index].forms[m]) return c->infos[index].forms[m];
    if (c->infos[index].busy[m] && c->empty_depth) {
        c->probe_failed = true;
        return NULL;
    }
    if (c->infos[index].busy[m]) {
        di_schema_refuse(c, DI_REASON_UNSUPPORTED, node, "this schema refers to itself without anything in between");
        return NULL;
    }
    if (c->depth >= MAX_DEPTH) {
        di_schema_refuse(c, DI_REASON_TOO_COMPLEX, node, "schemas are nested more than %d deep", MAX_DEPTH);
        return NULL;
    }
    c->infos[index].busy[m] = true;
    c->depth++;
    const form *made;
    if (m == MEANS_VALUE) {
        form *f = di_schema_alloc(c, sizeof *f);
        if (f) di_value_form(c, node, f);
        made = f;
    } else {
        made = schema_form(c, node, m == MEANS_SCHEMA);
    }
    c->depth--;
    c->infos[index].busy[m] = false;
    if (di_schema_failed(c)) return NULL;
    return c->infos[index].forms[m] = made;
}

const form *di_set_form(compiler *c, set_id set) {
    if (c->set_count == 0) intern_set(c, NULL, 0);
    if (di_schema_failed(c)) return NULL;
    if (c->sets[set].form) return c->sets[set].form;
    form *product = di_schema_alloc(c, sizeof *product);
    if (!product) return NULL;
    di_form_add(c, product, TYPE_ALL, NULL, 0);
    for (uint32_t i = 0; i < c->sets[set].count; i++) {
        uint32_t literal = c->sets[set].literals[i];
        const form *f = di_node_form(c, c->infos[literal / MEANINGS].node, (meaning)(literal % MEANINGS));
        if (!f) return NULL;
        product = di_form_product(c, product, f);
        if (!product || di_schema_failed(c)) return NULL;
        if (product->count > 8) di_form_prune(c, product);
    }
    c->sets[set].form = product;
    return product;
}

/* -------------------------------------------------------------------------------------------------------- emptiness */

static void bounds_of(const conjunction *conj, constraint_kind kind, uint32_t *low, uint32_t *high) {
    *low = 0;
    *high = DI_UNBOUNDED;
    for (uint32_t i = 0; i < conj->count; i++) {
        if (conj->list[i]->kind != kind) continue;
        if (conj->list[i]->low > *low) *low = conj->list[i]->low;
        if (conj->list[i]->high < *high) *high = conj->list[i]->high;
    }
}

static bool object_empty(compiler *c, const conjunction *conj) {
    uint32_t low, high, required = 0;
    bounds_of(conj, C_ENTRIES, &low, &high);
    for (uint32_t i = 0; i < conj->count; i++) {
        const constraint *k = conj->list[i];
        if (k->kind == C_REQUIRED) required++;
        if (k->kind == C_REQUIRED && di_set_empty(c, di_property_set(c, conj, k->name, k->name_length))) return true;
        if (di_schema_failed(c)) return false;
    }
    return low > high || (required && high == 0);
}

static bool array_empty(compiler *c, const conjunction *conj) {
    uint32_t low, high;
    bounds_of(conj, C_ITEMS, &low, &high);
    if (low > high) return true;
    for (uint32_t i = 0; i < conj->count; i++) {
        const constraint *k = conj->list[i];
        bool item = k->kind == C_ITEM || k->kind == C_REST;
        if (k->kind == C_CONTAINS && (k->low > k->high || k->low > high)) return true;
        if (!item || k->low >= low) continue;
        set_id set = k->set; /* all that is said of this position */
        for (uint32_t j = 0; j < conj->count; j++) {
            const constraint *o = conj->list[j];
            if ((o->kind == C_ITEM && o->low == k->low) || (o->kind == C_REST && o->low <= k->low))
                set = di_set_join(c, set, o->set);
        }
        if (di_set_empty(c, set)) return true;
    }
    return false;
}

/* The types of a conjunction that are not provably empty. */
static uint32_t live_types(compiler *c, const conjunction *conj) {
    uint32_t types = conj->types;
    if (types & TYPE_NUMBER && !di_expr_alive(c->x, di_build_number(c, conj))) types &= ~(uint32_t)TYPE_NUMBER;
    if (types & TYPE_STRING && !di_expr_alive(c->x, di_build_string(c, conj))) types &= ~(uint32_t)TYPE_STRING;
    if (types & TYPE_ARRAY && array_empty(c, conj)) types &= ~(uint32_t)TYPE_ARRAY;
    if (types & TYPE_OBJECT && object_empty(c, conj)) types &= ~(uint32_t)TYPE_OBJECT;
    return types;
}

void di_form_prune(compiler *c, form *f) {
    uint32_t kept = 0;
    if (c->depth >= MAX_DEPTH) return;
    c->depth++;
    for (uint32_t i = 0; i < f->count && !di_schema_failed(c); i++) {
        f->list[i].types = live_types(c, &f->list[i]);
        if (f->list[i].types) f->list[kept++] = f->list[i];
    }
    c->depth--;
    f->count = kept;
}

bool di_set_empty(compiler *c, set_id set) {
    if (set == 0 || di_schema_failed(c)) return false;
    uint8_t *state = &c->sets[set].empty;
    if (*state == 3 || c->empty_depth >= EMPTY_DEPTH) return false; /* on the way: not proven */
    if (*state) return *state == 1;
    *state = 3;
    c->empty_depth++;
    const form *f = di_set_form(c, set);
    bool empty = f != NULL;
    for (uint32_t i = 0; f && i < f->count && empty; i++) empty = live_types(c, &f->list[i]) == 0;
    c->empty_depth--;
    bool unknown = c->probe_failed;
    c->probe_failed = false;
    c->sets[set].empty = unknown ? 0 : empty ? 1 : 2;
    return empty && !unknown && !di_schema_failed(c);
}
