/* symbols.c - constructors of symbols; see symbols.h. */
#include "grammar/symbols.h"

#include <stdlib.h>
#include <string.h>

static di_symbol fail(di_exprs *x, di_status status) {
    if (x->failed == DI_OK) x->failed = status;
    return DI_SYMBOL_EMPTY;
}

static di_symbol intern(di_symbols *s, di_exprs *x, di_symbol_node node, const uint32_t *list) {
    if (x->failed != DI_OK) return DI_SYMBOL_EMPTY;
    uint32_t before = s->n.count, id = DI_SYMBOL_EMPTY;
    di_status status = di_nodes_intern(&s->n, node, list, &id);
    if (status != DI_OK) return fail(x, status);
    if (list && s->n.count > before && !di_exprs_spend(x, node.b)) return DI_SYMBOL_EMPTY;
    return id;
}

di_status di_symbols_init(di_symbols *s, di_exprs *x, uint32_t limit) {
    memset(s, 0, sizeof *s);
    s->space = DI_SYMBOL_EPSILON;
    if (!di_nodes_init(&s->n, limit) || !di_grow(&s->properties, &s->property_capacity, 1, sizeof *s->properties) ||
        !di_grow(&s->cells, &s->cell_capacity, 1, sizeof *s->cells) ||
        !di_grow(&s->items, &s->item_capacity, 1, sizeof *s->items) ||
        !di_grow(&s->seen_pool, &s->seen_capacity, 1, sizeof *s->seen_pool))
        return x->failed = DI_ERR_MEMORY;
    intern(s, x, (di_symbol_node){.kind = DI_SYM_EMPTY}, NULL);
    intern(s, x, (di_symbol_node){.kind = DI_SYM_EPSILON}, NULL);
    return x->failed;
}

#define COPY(array, number, room) di_copy_array(&to->array, from->array, from->number, &to->room, sizeof *to->array)

di_status di_symbols_copy(di_symbols *to, const di_symbols *from) {
    *to = *from;
    to->rules = NULL, to->objects = NULL, to->properties = NULL, to->cells = NULL;
    to->arrays = NULL, to->items = NULL, to->registers = NULL, to->seen_pool = NULL;
    to->register_table.slots = NULL;
    bool ok = di_nodes_copy(&to->n, &from->n) && COPY(rules, rule_count, rule_capacity) &&
              COPY(objects, object_count, object_capacity) && COPY(properties, property_count, property_capacity) &&
              COPY(cells, cell_count, cell_capacity) && COPY(arrays, array_count, array_capacity) &&
              COPY(items, item_count, item_capacity) && COPY(registers, register_count, register_capacity) &&
              COPY(seen_pool, seen_count, seen_capacity) &&
              di_copy_array(&to->register_table.slots, from->register_table.slots, from->register_table.size, NULL,
                            sizeof(uint32_t));
    if (ok) return DI_OK;
    di_symbols_free(to);
    return DI_ERR_MEMORY;
}

void di_symbols_free(di_symbols *s) {
    di_nodes_free(&s->n);
    free(s->rules);
    free(s->objects);
    free(s->properties);
    free(s->cells);
    free(s->arrays);
    free(s->items);
    free(s->registers);
    free(s->seen_pool);
    free(s->register_table.slots);
    memset(s, 0, sizeof *s);
}

size_t di_symbols_memory(const di_symbols *s) {
    return di_nodes_memory(&s->n) + s->rule_capacity * sizeof *s->rules + s->object_capacity * sizeof *s->objects +
           s->property_capacity * sizeof *s->properties + s->cell_capacity * sizeof *s->cells +
           s->array_capacity * sizeof *s->arrays + s->item_capacity * sizeof *s->items +
           s->register_capacity * sizeof *s->registers + s->seen_capacity * sizeof *s->seen_pool +
           (size_t)s->register_table.size * sizeof(uint32_t);
}

/* ---------------------------------------------------------------------------------------------------- constructors */

di_symbol di_sym_lexeme(di_symbols *s, di_exprs *x, di_expr expr) {
    if (expr == DI_EXPR_EMPTY) return DI_SYMBOL_EMPTY;
    if (expr == DI_EXPR_EPSILON) return DI_SYMBOL_EPSILON;
    if (!di_expr_nullable(x, expr)) return intern(s, x, (di_symbol_node){.kind = DI_SYM_LEXEME, .a = expr}, NULL);
    di_expr rest = di_expr_nonempty(x, expr);
    if (rest == DI_EXPR_EMPTY) return DI_SYMBOL_EPSILON;
    di_symbol lexeme = intern(s, x, (di_symbol_node){.kind = DI_SYM_LEXEME, .a = rest}, NULL);
    return di_sym_choice2(s, x, DI_SYMBOL_EPSILON, lexeme);
}

di_symbol di_sym_text(di_symbols *s, di_exprs *x, const char *text) {
    return di_sym_lexeme(s, x, di_expr_literal(x, text, strlen(text)));
}

di_symbol di_sym_sequence(di_symbols *s, di_exprs *x, di_symbol a, di_symbol b) {
    if (a == DI_SYMBOL_EMPTY || b == DI_SYMBOL_EMPTY) return DI_SYMBOL_EMPTY;
    if (a == DI_SYMBOL_EPSILON) return b;
    if (b == DI_SYMBOL_EPSILON) return a;
    return intern(s, x, (di_symbol_node){.kind = DI_SYM_SEQUENCE, .a = a, .b = b}, NULL);
}

di_symbol di_sym_choice(di_symbols *s, di_exprs *x, const di_symbol *list, uint32_t count) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += s->n.nodes[list[i]].kind == DI_SYM_CHOICE ? s->n.nodes[list[i]].b : 1;
    if (!di_exprs_spend(x, total)) return DI_SYMBOL_EMPTY;
    di_symbol *flat = malloc((total + 1) * sizeof *flat);
    di_expr *lexemes = malloc((total + 1) * sizeof *lexemes);
    uint32_t n = 0, lexeme_count = 0;
    di_symbol result = DI_SYMBOL_EMPTY;
    if (flat && lexemes) {
        for (uint32_t i = 0; i < count; i++) {
            const di_symbol_node *node = &s->n.nodes[list[i]];
            const uint32_t *members = (node)->kind == DI_SYM_CHOICE ? s->n.pool + node->a : &list[i];
            for (uint32_t j = 0; j < ((node)->kind == DI_SYM_CHOICE ? node->b : 1); j++) {
                const di_symbol_node *member = &s->n.nodes[members[j]];
                if (member->kind == DI_SYM_LEXEME)
                    lexemes[lexeme_count++] = member->a;
                else if (member->kind != DI_SYM_EMPTY)
                    flat[n++] = members[j];
            }
        }
        if (lexeme_count) {
            di_expr joined = di_expr_or(x, lexemes, lexeme_count);
            flat[n++] = intern(s, x, (di_symbol_node){.kind = DI_SYM_LEXEME, .a = joined}, NULL);
        }
        qsort(flat, n, sizeof *flat, di_compare_ids);
        uint32_t kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (!kept || flat[kept - 1] != flat[i]) flat[kept++] = flat[i];
        if (kept == 1)
            result = flat[0];
        else if (kept)
            result = intern(s, x, (di_symbol_node){.kind = DI_SYM_CHOICE, .b = kept}, flat);
    } else {
        fail(x, DI_ERR_MEMORY);
    }
    free(flat);
    free(lexemes);
    return x->failed == DI_OK ? result : DI_SYMBOL_EMPTY;
}

di_symbol di_sym_choice2(di_symbols *s, di_exprs *x, di_symbol a, di_symbol b) {
    return di_sym_choice(s, x, (di_symbol[]){a, b}, 2);
}

di_symbol di_sym_repeat(di_symbols *s, di_exprs *x, di_symbol a, uint32_t low, uint32_t high) {
    if (low > high) return DI_SYMBOL_EMPTY;
    if (high == 0 || a == DI_SYMBOL_EPSILON) return DI_SYMBOL_EPSILON;
    if (a == DI_SYMBOL_EMPTY) return low ? DI_SYMBOL_EMPTY : DI_SYMBOL_EPSILON;
    if (low == 1 && high == 1) return a;
    return intern(s, x, (di_symbol_node){.kind = DI_SYM_REPEAT, .a = a, .low = low, .high = high}, NULL);
}

di_symbol di_sym_token(di_symbols *s, di_exprs *x, uint32_t token) {
    return intern(s, x, (di_symbol_node){.kind = DI_SYM_TOKEN, .a = token}, NULL);
}

uint32_t di_sym_new_rule(di_symbols *s, di_exprs *x) {
    if (s->rule_count >= s->n.limit) return fail(x, DI_ERR_LIMIT);
    if (!di_grow(&s->rules, &s->rule_capacity, (uint64_t)s->rule_count + 1, sizeof *s->rules))
        return fail(x, DI_ERR_MEMORY);
    s->rules[s->rule_count] = DI_SYMBOL_EMPTY;
    return s->rule_count++;
}

di_symbol di_sym_rule(di_symbols *s, di_exprs *x, uint32_t rule) {
    return intern(s, x, (di_symbol_node){.kind = DI_SYM_RULE, .a = rule}, NULL);
}

/* -------------------------------------------------------------------------------------------------------- registers */

static uint64_t hash_register_content(const di_register *r, const uint64_t *seen) {
    uint64_t hash = di_mix(r->of, (uint64_t)r->position << 32 | r->count);
    hash = di_mix(hash, (uint64_t)r->used << 32 | r->started);
    hash = di_mix(hash, r->words);
    for (uint32_t i = 0; i < r->words; i++) hash = di_mix(hash, seen[i]);
    return hash;
}

static uint64_t hash_register(const void *arg, uint32_t index) {
    const di_symbols *s = arg;
    return hash_register_content(&s->registers[index], s->seen_pool + s->registers[index].seen);
}

/* The symbol of this kind with this register; seen: [r.words]. */
static di_symbol with_register(di_symbols *s, di_exprs *x, uint32_t kind, di_register r, const uint64_t *seen) {
    if (x->failed != DI_OK) return DI_SYMBOL_EMPTY;
    if (!di_table_reserve(&s->register_table, hash_register, s)) return fail(x, DI_ERR_MEMORY);
    uint64_t at = hash_register_content(&r, seen);
    uint32_t mask = s->register_table.size - 1, slot;
    for (; (slot = s->register_table.slots[at & mask]); at++) {
        const di_register *o = &s->registers[slot - 1];
        if (o->of == r.of && o->position == r.position && o->count == r.count && o->used == r.used &&
            o->started == r.started && o->words == r.words &&
            (!r.words || memcmp(s->seen_pool + o->seen, seen, r.words * sizeof *seen) == 0))
            break;
    }
    if (!slot) {
        if (s->register_count >= s->n.limit) return fail(x, DI_ERR_LIMIT);
        if (!di_grow(&s->registers, &s->register_capacity, (uint64_t)s->register_count + 1, sizeof r) ||
            !di_grow(&s->seen_pool, &s->seen_capacity, (uint64_t)s->seen_count + r.words, sizeof *seen))
            return fail(x, DI_ERR_MEMORY);
        r.seen = s->seen_count;
        if (r.words) memcpy(s->seen_pool + s->seen_count, seen, r.words * sizeof *seen);
        s->seen_count += r.words;
        s->registers[s->register_count++] = r;
        slot = s->register_table.slots[at & mask] = ++s->register_table.used;
    }
    return intern(s, x, (di_symbol_node){.kind = kind, .a = slot - 1}, NULL);
}

static bool bit(const uint64_t *words, uint32_t i) {
    return words[i / 64] >> i % 64 & 1;
}

typedef struct object_state {
    di_register r;
    uint64_t seen[DI_MAX_DECLARED / 64];
} object_state;

static bool counts(const di_object *o) {
    return o->minimum > 0 || o->maximum != DI_UNBOUNDED;
}

static bool property_open(const di_symbols *s, const di_object *o, const object_state *state, uint32_t i) {
    if (s->properties[o->properties + i].value == DI_SYMBOL_EMPTY) return false;
    return o->any_order ? !bit(state->seen, i) : i >= state->r.position;
}

/* True if the object can be closed with entries that are still possible: none of them is skipped that is needed. */
static bool can_finish(const di_symbols *s, const di_object *o, const object_state *state) {
    if (o->open) return true;
    uint64_t needed = 0, available = 0;
    for (uint32_t i = o->any_order ? 0 : state->r.position; i < o->property_count; i++) {
        bool done = o->any_order && bit(state->seen, i);
        if (!done && s->properties[o->properties + i].required) {
            if (s->properties[o->properties + i].value == DI_SYMBOL_EMPTY) return false;
            needed++;
        }
        if (property_open(s, o, state, i)) available++;
    }
    uint32_t live = 0;
    for (uint32_t i = 0; i < o->cell_count; i++)
        if (s->cells[o->cells + i].value != DI_SYMBOL_EMPTY) live |= 1u << i;
    uint32_t assumed = state->r.used;
    for (uint32_t i = 0; i < o->obligation_count; i++) {
        if (o->obligations[i] & assumed) continue;
        uint32_t open = o->obligations[i] & live;
        if (!open) return false;
        assumed |= open & -open; /* cells of one obligation may serve another: an upper bound of what is needed */
        needed++;
    }
    available += (uint64_t)__builtin_popcount(live & ~state->r.used);
    uint64_t distinct = state->r.count >> 16, entries = state->r.count & 0xFFFF;
    if (!counts(o)) return true;
    uint64_t missing = o->minimum > distinct ? o->minimum - distinct : 0;
    if (missing > available) return false;
    if (missing > needed) needed = missing;
    return o->maximum == DI_UNBOUNDED || entries + needed <= o->maximum;
}

static bool may_close(const di_symbols *s, const di_object *o, const object_state *state) {
    for (uint32_t i = o->any_order ? 0 : state->r.position; i < o->property_count; i++)
        if (s->properties[o->properties + i].required && !(o->any_order && bit(state->seen, i))) return false;
    for (uint32_t i = 0; i < o->obligation_count; i++)
        if (!(o->obligations[i] & state->r.used)) return false;
    return !counts(o) || state->r.count >> 16 >= o->minimum;
}

/* count: entries that are distinct for sure << 16 | entries. */
static void count_entry(const di_object *o, di_register *r, bool distinct) {
    if (!counts(o)) return;
    uint32_t entries = r->count & 0xFFFF, sure = r->count >> 16;
    if (o->maximum != DI_UNBOUNDED) entries++;
    if (distinct && sure < o->minimum) sure++;
    r->count = sure << 16 | entries;
}

/* The state behind declared property i, or behind an entry of cell i. */
static object_state after_property(const di_object *o, const object_state *state, uint32_t i) {
    object_state next = *state;
    next.r.started = 1;
    if (o->any_order)
        next.seen[i / 64] |= (uint64_t)1 << i % 64;
    else
        next.r.position = i + 1;
    count_entry(o, &next.r, true);
    return next;
}

static object_state after_cell(const di_object *o, const object_state *state, uint32_t i) {
    object_state next = *state;
    next.r.started = 1;
    if (!o->any_order) next.r.position = o->property_count;
    count_entry(o, &next.r, !(state->r.used >> i & 1));
    if (o->minimum || o->obligation_count) next.r.used |= 1u << i;
    return next;
}

static di_symbol rest_of(di_symbols *s, di_exprs *x, uint32_t kind, const object_state *state) {
    return with_register(s, x, kind, state->r, state->seen);
}

static di_symbol entry(di_symbols *s, di_exprs *x, di_expr key, di_symbol value, const object_state *next) {
    di_symbol rest = rest_of(s, x, DI_SYM_OBJECT, next);
    di_symbol tail = di_sym_sequence(s, x, s->space, di_sym_sequence(s, x, value, rest));
    return di_sym_sequence(s, x, di_sym_lexeme(s, x, key), tail);
}

/* Calls for every entry that may come next; with `list` NULL only asks whether there is one. */
static uint32_t next_entries(di_symbols *s, di_exprs *x, const object_state *state, di_symbol *list) {
    const di_object o = s->objects[state->r.of];
    uint32_t n = 0;
    bool full = o.maximum != DI_UNBOUNDED && (state->r.count & 0xFFFF) >= o.maximum, skipped = false;
    for (uint32_t i = o.any_order ? 0 : state->r.position; i < o.property_count && !full && !skipped; i++) {
        const di_property p = s->properties[o.properties + i];
        if (property_open(s, &o, state, i)) {
            object_state next = after_property(&o, state, i);
            if (can_finish(s, &o, &next)) {
                if (!list) return 1;
                list[n++] = entry(s, x, p.key, p.value, &next);
            }
        }
        skipped = !o.any_order && p.required;
        if (!di_exprs_spend(x, 1)) return n;
    }
    for (uint32_t i = 0; i < o.cell_count && !full && !skipped; i++) {
        const di_cell c = s->cells[o.cells + i];
        if (c.value == DI_SYMBOL_EMPTY) continue;
        object_state next = after_cell(&o, state, i);
        if (!can_finish(s, &o, &next)) continue;
        if (!list) return 1;
        list[n++] = entry(s, x, c.key, c.value, &next);
    }
    return n;
}

static void load_state(const di_symbols *s, uint32_t id, object_state *state) {
    state->r = s->registers[id];
    if (state->r.words) memcpy(state->seen, s->seen_pool + state->r.seen, state->r.words * sizeof *state->seen);
}

static di_symbol unfold_entries(di_symbols *s, di_exprs *x, uint32_t id) {
    object_state state;
    load_state(s, id, &state);
    const di_object *o = &s->objects[state.r.of];
    di_symbol *list = malloc(((size_t)o->property_count + o->cell_count + 1) * sizeof *list);
    if (!list) return fail(x, DI_ERR_MEMORY);
    uint32_t n = next_entries(s, x, &state, list);
    di_symbol result = di_sym_choice(s, x, list, n);
    free(list);
    return result;
}

/* space ( "," space entries | "}" ), without the comma at the start. */
static di_symbol unfold_rest(di_symbols *s, di_exprs *x, bool more, bool close, bool started, di_symbol next,
                             const char *closing) {
    di_symbol result = DI_SYMBOL_EMPTY;
    if (more) {
        result = next;
        if (started) result = di_sym_sequence(s, x, di_sym_text(s, x, ","), di_sym_sequence(s, x, s->space, next));
    }
    if (close) result = di_sym_choice2(s, x, result, di_sym_text(s, x, closing));
    return di_sym_sequence(s, x, s->space, result);
}

static di_symbol unfold_object(di_symbols *s, di_exprs *x, uint32_t id) {
    object_state state;
    load_state(s, id, &state);
    bool more = next_entries(s, x, &state, NULL) > 0;
    di_symbol next = more ? rest_of(s, x, DI_SYM_ENTRIES, &state) : DI_SYMBOL_EMPTY;
    return unfold_rest(s, x, more, may_close(s, &s->objects[state.r.of], &state), state.r.started != 0, next, "}");
}

static object_state first_state(const di_symbols *s, uint32_t object) {
    const di_object *o = &s->objects[object];
    object_state state;
    memset(&state, 0, sizeof state);
    state.r.of = object;
    state.r.words = o->any_order ? (o->property_count + 63) / 64 : 0;
    return state;
}

/* What unfolding will need is made now: byte classes are settled when a grammar is complete. */
static void make_marks(di_symbols *s, di_exprs *x, const char *closing) {
    di_sym_text(s, x, ",");
    di_sym_text(s, x, closing);
}

di_symbol di_sym_object(di_symbols *s, di_exprs *x, uint32_t object) {
    make_marks(s, x, "}");
    object_state state = first_state(s, object);
    return di_sym_sequence(s, x, di_sym_text(s, x, "{"), rest_of(s, x, DI_SYM_OBJECT, &state));
}

/* ----------------------------------------------------------------------------------------------------------- arrays */

static const di_array_item *item_at(const di_symbols *s, const di_array *a, uint32_t position) {
    return &s->items[a->items + (position < a->item_count ? position : a->item_count - 1)];
}

static bool unique_can_finish(const di_symbols *s, const di_array *a, uint32_t position, uint64_t used) {
    uint32_t left = 0; /* items hold one value each: enough of those not used must be left */
    for (uint32_t i = 0; i < a->unique; i++)
        if (!(used >> i & 1) && s->items[a->items + i].plain != DI_SYMBOL_EMPTY) left++;
    return position >= a->minimum || a->minimum - position <= left;
}

/* True if from `position` items on, of which `matched` followed `contains`, the array can be closed some time. The
 * number of items that follow `contains` can be anything from `low` to `high`. */
static bool array_can_finish(const di_symbols *s, const di_array *a, uint32_t position, uint32_t matched,
                             uint64_t used) {
    if (a->unique) return unique_can_finish(s, a, position, used);
    int64_t low = matched, high = matched, least = a->contains_minimum, most = a->contains_maximum;
    if (least > most) return false;
    for (;; position++) {
        if (position >= a->minimum && low <= most && high >= least) return true;
        if (position >= a->maximum) return false;
        if (position + 1 >= a->item_count) break;
        const di_array_item *item = item_at(s, a, position);
        if (item->plain == DI_SYMBOL_EMPTY && item->counted == DI_SYMBOL_EMPTY) return false;
        low += item->plain == DI_SYMBOL_EMPTY;
        high += item->counted != DI_SYMBOL_EMPTY;
    }
    const di_array_item *item = item_at(s, a, position);
    bool plain = item->plain != DI_SYMBOL_EMPTY, counted = item->counted != DI_SYMBOL_EMPTY;
    int64_t fewest = a->minimum > position ? a->minimum - position : 0;
    int64_t many = a->maximum == DI_UNBOUNDED ? INT64_MAX / 4 : a->maximum - position;
    if (!plain && !counted) return false; /* to close here was no choice */
    if (!plain) {
        int64_t from = fewest > least - high ? fewest : least - high, to = many < most - low ? many : most - low;
        return from <= to;
    }
    return low <= most && (counted ? high + many >= least : high >= least) && fewest <= many;
}

static di_symbol array_next(di_symbols *s, di_exprs *x, di_symbol value, di_register r, const uint64_t *used) {
    const di_array *a = &s->arrays[r.of];
    uint32_t far = a->minimum > a->item_count ? a->minimum : a->item_count;
    r.started = 1;
    r.position++;
    if (a->maximum == DI_UNBOUNDED && r.position > far) r.position = far;
    return di_sym_sequence(s, x, value, with_register(s, x, DI_SYM_ARRAY, r, used));
}

/* The items that may come next, joined; DI_SYMBOL_EMPTY if there are none. */
static di_symbol next_items(di_symbols *s, di_exprs *x, const di_register *r, uint64_t used) {
    const di_array a = s->arrays[r->of];
    if (r->position >= a.maximum) return DI_SYMBOL_EMPTY;
    if (a.unique) {
        di_symbol result = DI_SYMBOL_EMPTY;
        for (uint32_t i = 0; i < a.unique; i++) {
            uint64_t next = used | (uint64_t)1 << i;
            di_symbol value = s->items[a.items + i].plain;
            if (used >> i & 1 || value == DI_SYMBOL_EMPTY || !array_can_finish(s, &a, r->position + 1, 0, next))
                continue;
            result = di_sym_choice2(s, x, result, array_next(s, x, value, *r, &next));
        }
        return result;
    }
    const di_array_item item = *item_at(s, &a, r->position);
    di_symbol plain = DI_SYMBOL_EMPTY, counted = DI_SYMBOL_EMPTY;
    di_register next = *r;
    if (item.plain != DI_SYMBOL_EMPTY && array_can_finish(s, &a, r->position + 1, r->count, 0))
        plain = array_next(s, x, item.plain, next, NULL);
    if (item.counted != DI_SYMBOL_EMPTY && r->count < a.contains_maximum) {
        if (a.contains_maximum != DI_UNBOUNDED || next.count < a.contains_minimum) next.count++;
        if (array_can_finish(s, &a, r->position + 1, next.count, 0))
            counted = array_next(s, x, item.counted, next, NULL);
    }
    return di_sym_choice2(s, x, plain, counted);
}

static uint64_t used_values(const di_symbols *s, const di_register *r) {
    return r->words ? s->seen_pool[r->seen] : 0;
}

static di_symbol unfold_array(di_symbols *s, di_exprs *x, uint32_t id) {
    const di_register r = s->registers[id];
    const di_array *a = &s->arrays[r.of];
    bool close = r.position >= a->minimum && r.count >= a->contains_minimum;
    di_symbol next = next_items(s, x, &r, used_values(s, &r));
    return unfold_rest(s, x, next != DI_SYMBOL_EMPTY, close, r.started != 0, next, "]");
}

di_symbol di_sym_array(di_symbols *s, di_exprs *x, uint32_t array) {
    di_register r = {.of = array, .words = s->arrays[array].unique ? 1 : 0};
    uint64_t none = 0;
    make_marks(s, x, "]");
    return di_sym_sequence(s, x, di_sym_text(s, x, "["), with_register(s, x, DI_SYM_ARRAY, r, &none));
}

di_symbol di_sym_unfold(di_symbols *s, di_exprs *x, di_symbol symbol) {
    const di_symbol_node n = s->n.nodes[symbol];
    switch (n.kind) {
    case DI_SYM_OBJECT:
        return unfold_object(s, x, n.a);
    case DI_SYM_ENTRIES:
        return unfold_entries(s, x, n.a);
    case DI_SYM_ARRAY:
        return unfold_array(s, x, n.a);
    default:
        return symbol;
    }
}

/* --------------------------------------------------------------------------------------------------------- importing
 */

static di_symbol import_choice(di_symbols *s, di_exprs *x, const di_import *import, di_symbol_node n) {
    di_symbol *list = malloc(n.b * sizeof *list);
    if (!list) return fail(x, DI_ERR_MEMORY);
    for (uint32_t i = 0; i < n.b; i++) list[i] = di_sym_import(s, x, import, import->from->n.pool[n.a + i]);
    qsort(list, n.b, sizeof *list, di_compare_ids);
    di_symbol result = intern(s, x, n, list);
    free(list);
    return result;
}

static di_symbol import_node(di_symbols *s, di_exprs *x, const di_import *import, di_symbol symbol) {
    di_symbol_node n = import->from->n.nodes[symbol];
    switch ((di_symbol_kind)n.kind) {
    case DI_SYM_EMPTY:
    case DI_SYM_EPSILON:
        return symbol;
    case DI_SYM_LEXEME:
        n.a = di_expr_import(x, import->exprs, n.a, import->shared_exprs, import->expr_map);
        break;
    case DI_SYM_SEQUENCE:
        n.b = di_sym_import(s, x, import, n.b);
        n.a = di_sym_import(s, x, import, n.a);
        break;
    case DI_SYM_CHOICE:
        return import_choice(s, x, import, n);
    case DI_SYM_REPEAT:
        n.a = di_sym_import(s, x, import, n.a);
        break;
    case DI_SYM_RULE:
    case DI_SYM_TOKEN:
        break;
    case DI_SYM_OBJECT:
    case DI_SYM_ENTRIES:
    case DI_SYM_ARRAY:
    case DI_SYM_ITEMS: {
        const di_register r = import->from->registers[n.a];
        return with_register(s, x, n.kind, r, r.words ? import->from->seen_pool + r.seen : NULL);
    }
    }
    return intern(s, x, n, NULL);
}

di_symbol di_sym_import(di_symbols *s, di_exprs *x, const di_import *import, di_symbol symbol) {
    if (symbol < import->shared_symbols) return symbol;
    if (import->symbol_map[symbol] != UINT32_MAX) return import->symbol_map[symbol];
    if (x->failed != DI_OK) return DI_SYMBOL_EMPTY;
    if (x->depth >= DI_EXPR_DEPTH) return fail(x, DI_ERR_LIMIT);
    x->depth++;
    di_symbol result = import_node(s, x, import, symbol);
    x->depth--;
    if (x->failed == DI_OK) import->symbol_map[symbol] = result;
    return result;
}

/* ---------------------------------------------------------------------------------------------------------- pruning */

typedef struct pruner {
    di_symbols *s;
    di_exprs *x;
    uint8_t *rule_live; /* [rule_count] */
    uint8_t *known;     /* [count] of one pass: 0 not asked, 1 live, 2 dead, 3 being asked */
} pruner;

static bool live(pruner *p, di_symbol symbol);

static bool object_live(pruner *p, uint32_t object) {
    di_object *o = &p->s->objects[object];
    object_state state = first_state(p->s, object);
    /* can_finish looks at values: dead ones count as absent for this question */
    di_symbol *saved = malloc(((size_t)o->property_count + o->cell_count + 1) * sizeof *saved);
    if (!saved) return fail(p->x, DI_ERR_MEMORY);
    di_property *properties = p->s->properties + o->properties;
    di_cell *cells = p->s->cells + o->cells;
    for (uint32_t i = 0; i < o->property_count; i++) saved[i] = properties[i].value;
    for (uint32_t i = 0; i < o->cell_count; i++) saved[o->property_count + i] = cells[i].value;
    for (uint32_t i = 0; i < o->property_count; i++)
        if (!live(p, saved[i])) properties[i].value = DI_SYMBOL_EMPTY;
    for (uint32_t i = 0; i < o->cell_count; i++)
        if (!live(p, saved[o->property_count + i]) || !di_expr_alive(p->x, cells[i].key))
            cells[i].value = DI_SYMBOL_EMPTY;
    bool result = can_finish(p->s, o, &state);
    for (uint32_t i = 0; i < o->property_count; i++) properties[i].value = saved[i];
    for (uint32_t i = 0; i < o->cell_count; i++) cells[i].value = saved[o->property_count + i];
    free(saved);
    return result;
}

static bool array_live(pruner *p, uint32_t array) {
    di_array *a = &p->s->arrays[array];
    di_array_item *items = p->s->items + a->items, *saved = malloc((a->item_count + 1) * sizeof *saved);
    if (!saved) return fail(p->x, DI_ERR_MEMORY);
    memcpy(saved, items, a->item_count * sizeof *saved);
    for (uint32_t i = 0; i < a->item_count; i++) {
        if (!live(p, saved[i].plain)) items[i].plain = DI_SYMBOL_EMPTY;
        if (!live(p, saved[i].counted)) items[i].counted = DI_SYMBOL_EMPTY;
    }
    bool result = array_can_finish(p->s, a, 0, 0, 0);
    memcpy(items, saved, a->item_count * sizeof *saved);
    free(saved);
    return result;
}

static bool live_node(pruner *p, const di_symbol_node *n) {
    switch (n->kind) {
    case DI_SYM_EMPTY:
        return false;
    case DI_SYM_LEXEME:
        return di_expr_alive(p->x, n->a);
    case DI_SYM_SEQUENCE:
        return live(p, n->a) && live(p, n->b);
    case DI_SYM_CHOICE:
        for (uint32_t i = 0; i < n->b; i++)
            if (live(p, p->s->n.pool[n->a + i])) return true;
        return false;
    case DI_SYM_RULE:
        return p->rule_live[n->a];
    case DI_SYM_REPEAT:
        return n->low == 0 || live(p, n->a);
    case DI_SYM_OBJECT:
        return object_live(p, p->s->registers[n->a].of);
    case DI_SYM_ARRAY:
        return array_live(p, p->s->registers[n->a].of);
    default:
        return true;
    }
}

static bool live(pruner *p, di_symbol symbol) {
    if (p->known[symbol]) return p->known[symbol] == 1;
    if (!di_exprs_spend(p->x, 1)) return false;
    p->known[symbol] = 3;
    const di_symbol_node n = p->s->n.nodes[symbol];
    bool result = live_node(p, &n);
    p->known[symbol] = result ? 1 : 2;
    return result;
}

/* The symbol without dead alternatives; valid once rule_live is final. rebuilt: [count] memo, UINT32_MAX = not made. */
static di_symbol rebuild(pruner *p, di_symbol symbol, di_symbol *rebuilt, uint32_t count) {
    if (symbol < count && rebuilt[symbol] != UINT32_MAX) return rebuilt[symbol];
    const di_symbol_node n = p->s->n.nodes[symbol];
    di_symbol result = symbol;
    if (!live(p, symbol)) {
        result = DI_SYMBOL_EMPTY;
    } else if (n.kind == DI_SYM_SEQUENCE) {
        di_symbol a = rebuild(p, n.a, rebuilt, count);
        result = di_sym_sequence(p->s, p->x, a, rebuild(p, n.b, rebuilt, count));
    } else if (n.kind == DI_SYM_REPEAT) {
        result = di_sym_repeat(p->s, p->x, rebuild(p, n.a, rebuilt, count), n.low, n.high);
    } else if (n.kind == DI_SYM_CHOICE) {
        di_symbol *list = malloc(n.b * sizeof *list);
        if (!list) return fail(p->x, DI_ERR_MEMORY);
        for (uint32_t i = 0; i < n.b; i++) list[i] = rebuild(p, p->s->n.pool[n.a + i], rebuilt, count);
        result = di_sym_choice(p->s, p->x, list, n.b);
        free(list);
    }
    if (symbol < count) rebuilt[symbol] = result;
    return result;
}

static void find_live(pruner *p, uint32_t count) {
    for (bool changed = true; changed && p->x->failed == DI_OK;) {
        changed = false;
        memset(p->known, 0, count);
        for (uint32_t i = 0; i < p->s->rule_count; i++)
            if (!p->rule_live[i] && live(p, p->s->rules[i])) p->rule_live[i] = changed = true;
    }
    memset(p->known, 0, count);
}

di_symbol di_sym_prune(di_symbols *s, di_exprs *x, di_symbol root) {
    uint32_t count = s->n.count;
    pruner p = {.s = s, .x = x, .rule_live = calloc(s->rule_count + 1, 1), .known = calloc(count + 1, 1)};
    di_symbol *rebuilt = malloc((count + 1) * sizeof *rebuilt), result = DI_SYMBOL_EMPTY;
    if (p.rule_live && p.known && rebuilt) {
        find_live(&p, count);
        for (uint32_t i = 0; i < count; i++) rebuilt[i] = UINT32_MAX;
        for (uint32_t i = 0; i < s->rule_count; i++) s->rules[i] = rebuild(&p, s->rules[i], rebuilt, count);
        for (uint32_t i = 0; i < s->property_count; i++)
            s->properties[i].value = rebuild(&p, s->properties[i].value, rebuilt, count);
        for (uint32_t i = 0; i < s->cell_count; i++) {
            di_symbol value = di_expr_alive(x, s->cells[i].key) ? s->cells[i].value : DI_SYMBOL_EMPTY;
            s->cells[i].value = rebuild(&p, value, rebuilt, count);
        }
        for (uint32_t i = 0; i < s->item_count; i++) {
            s->items[i].plain = rebuild(&p, s->items[i].plain, rebuilt, count);
            s->items[i].counted = rebuild(&p, s->items[i].counted, rebuilt, count);
        }
        result = rebuild(&p, root, rebuilt, count);
        for (uint32_t i = 0; i < s->object_count && x->failed == DI_OK; i++) {
            di_object *o = &s->objects[i];
            object_state state = first_state(s, i);
            o->open = !counts(o) && !o->obligation_count && can_finish(s, o, &state);
        }
    } else {
        fail(x, DI_ERR_MEMORY);
    }
    free(p.rule_live);
    free(p.known);
    free(rebuilt);
    return x->failed == DI_OK ? result : DI_SYMBOL_EMPTY;
}

bool di_sym_short_of_keys(const di_symbols *s, uint32_t object) {
    di_object o = s->objects[object];
    object_state state = first_state(s, object);
    bool undeclared = false;
    for (uint32_t i = 0; i < o.cell_count; i++)
        undeclared = undeclared || s->cells[o.cells + i].value != DI_SYMBOL_EMPTY;
    if (!undeclared || o.minimum > o.maximum || can_finish(s, &o, &state)) return false;
    o.minimum = 0;
    return can_finish(s, &o, &state);
}
