/* expr_alive.c - what completes an expression: whether anything does, and how much of it is needed; see expr.h. */
#include <stdlib.h>
#include <string.h>

#include "grammar/expr.h"

static di_expr fail(di_exprs *x, di_status status) {
    if (x->failed == DI_OK) x->failed = status;
    return DI_EXPR_EMPTY;
}

/* ---------------------------------------------------------------------------------------------------------- lengths */

/* Lengths: characters that complete a language, found by breadth first search over pairs of it and of what is left of
 * the character being read. Counters stay outside, so there are few pairs. */
enum { NO_LENGTH = UINT32_MAX, NOT_KNOWN = UINT32_MAX - 1, GREATEST = UINT32_MAX - 2 };

static uint64_t hash_length(const void *arg, uint32_t index) {
    return di_mix(0, ((const di_exprs *)arg)->lengths[index].pair);
}

/* Where the lengths of a pair are kept; NO_LENGTH when memory ran out. */
static uint32_t length_index(di_exprs *x, uint64_t key) {
    if (!di_table_reserve(&x->length_table, hash_length, x)) return fail(x, DI_ERR_MEMORY), NO_LENGTH;
    uint64_t at = di_mix(0, key);
    uint32_t wrap = x->length_table.size - 1, slot;
    for (; (slot = x->length_table.slots[at & wrap]); at++)
        if (x->lengths[slot - 1].pair == key) return slot - 1;
    if (!di_grow(&x->lengths, &x->length_capacity, (uint64_t)x->length_table.used + 1, sizeof *x->lengths))
        return fail(x, DI_ERR_MEMORY), NO_LENGTH;
    x->lengths[x->length_table.used] = (di_lengths){.pair = key, .least = NOT_KNOWN};
    x->length_table.slots[at & wrap] = ++x->length_table.used;
    return x->length_table.used - 1;
}

/* The least length of a pair, to be read or set; NULL when memory ran out. */
static uint32_t *length_slot(di_exprs *x, uint64_t key) {
    uint32_t index = length_index(x, key);
    return index == NO_LENGTH ? NULL : &x->lengths[index].least;
}

/* In a language without complements and intersections any of the ways to go on can be completed, so its structure
 * bounds what its states need. */
static uint32_t sum_lengths(uint64_t a, uint64_t b) {
    return a + b < GREATEST ? (uint32_t)(a + b) : GREATEST;
}

static bool bound_parts(di_exprs *x, const di_expr_node *n, di_bounds *out) {
    di_bounds part;
    *out = (di_bounds){GREATEST, 0};
    for (uint32_t i = 0; i < n->b; i++) {
        if (!di_expr_bounds(x, x->n.pool[n->a + i], &part)) return false;
        if (part.least < out->least) out->least = part.least;
        if (part.greatest > out->greatest) out->greatest = part.greatest;
    }
    return true;
}

static bool make_bounds(di_exprs *x, const di_expr_node *n, di_bounds *out) {
    di_bounds first, rest;
    switch (n->kind) {
    case DI_KIND_EPSILON:
        *out = (di_bounds){0, 0};
        return true;
    case DI_KIND_SET:
        *out = (di_bounds){1, 1};
        return true;
    case DI_KIND_CAT:
        if (!di_expr_bounds(x, n->a, &first) || !di_expr_bounds(x, n->b, &rest)) return false;
        out->least = sum_lengths(first.least, rest.least);
        out->greatest = sum_lengths(first.greatest, rest.least);
        if (rest.greatest > out->greatest) out->greatest = rest.greatest;
        return true;
    case DI_KIND_OR:
        return bound_parts(x, n, out);
    case DI_KIND_REPEAT:
        if (!di_expr_bounds(x, n->a, &first)) return false;
        out->least = sum_lengths((uint64_t)n->low * first.least, 0);
        out->greatest = sum_lengths(first.greatest, (uint64_t)(n->low ? n->low - 1 : 0) * first.least);
        return true;
    default:
        return false;
    }
}

bool di_expr_bounds(di_exprs *x, di_expr a, di_bounds *out) {
    uint64_t key = (uint64_t)a << 32 | NO_LENGTH; /* behind no character */
    if (x->n.nodes[a].boolean || x->depth >= DI_EXPR_DEPTH) return false;
    uint32_t index = length_index(x, key);
    if (index == NO_LENGTH) return false;
    if (x->lengths[index].least == NOT_KNOWN) {
        const di_expr_node n = x->n.nodes[a];
        x->depth++;
        bool bounded = di_exprs_spend(x, 1) && make_bounds(x, &n, out);
        x->depth--;
        if (!bounded || (index = length_index(x, key)) == NO_LENGTH) return false;
        x->lengths[index].least = out->least;
        x->lengths[index].greatest = out->greatest;
    }
    *out = (di_bounds){x->lengths[index].least, x->lengths[index].greatest};
    return true;
}

/* -------------------------------------------------------------------------------------------------------- emptiness */

enum { UNKNOWN, ALIVE, DEAD };

static bool reserve_alive(di_exprs *x) {
    if (x->n.count <= x->alive_count) return true;
    uint32_t size = x->n.count + x->n.count / 2 + 64;
    uint8_t *alive = realloc(x->alive, size);
    if (!alive) {
        fail(x, DI_ERR_MEMORY);
        return false;
    }
    memset(alive + x->alive_count, UNKNOWN, size - x->alive_count);
    x->alive = alive;
    x->alive_count = size;
    return true;
}

static bool known_alive(const di_exprs *x, di_expr a) {
    const di_expr_node *n = &x->n.nodes[a];
    return a != DI_EXPR_EMPTY && (n->nullable || !n->boolean || (a < x->alive_count && x->alive[a] == ALIVE));
}

typedef struct search {
    di_expr *found;  /* in order of discovery */
    uint32_t *from;  /* index of the state it was reached from */
    uint32_t *least; /* bytes that it needs at least to be completed */
    uint32_t count, capacity, from_capacity, least_capacity;
    uint32_t *heap; /* states to go on from, the one that needs least first */
    uint32_t waiting, heap_capacity;
    di_table seen;
} search;

static uint64_t hash_found(const void *arg, uint32_t index) {
    return di_mix(0, ((const search *)arg)->found[index]);
}

/* Bytes of the shortest text, or fewer: complements count nothing. */
static uint32_t least_bytes(di_exprs *x, di_expr a, unsigned depth) {
    const di_expr_node n = x->n.nodes[a];
    di_bounds bounds;
    if (!n.boolean) return di_expr_bounds(x, a, &bounds) ? bounds.least : 0;
    if (depth > 16) return 0;
    uint32_t least = n.kind == DI_KIND_OR ? UINT32_MAX : 0;
    if (n.kind == DI_KIND_CAT) return sum_lengths(least_bytes(x, n.a, depth + 1), least_bytes(x, n.b, depth + 1));
    if (n.kind != DI_KIND_OR && n.kind != DI_KIND_AND) return 0;
    for (uint32_t i = 0; i < n.b; i++) {
        uint32_t part = least_bytes(x, x->n.pool[n.a + i], depth + 1);
        if (n.kind == DI_KIND_OR ? part < least : part > least) least = part;
    }
    return least;
}

static void swap_ids(uint32_t *a, uint32_t *b) {
    uint32_t kept = *a;
    *a = *b;
    *b = kept;
}

static uint32_t take_least(search *s) {
    uint32_t taken = s->heap[0], at = 0;
    s->heap[0] = s->heap[--s->waiting];
    for (uint32_t child; (child = 2 * at + 1) < s->waiting; at = child) {
        if (child + 1 < s->waiting && s->least[s->heap[child + 1]] < s->least[s->heap[child]]) child++;
        if (s->least[s->heap[at]] <= s->least[s->heap[child]]) break;
        swap_ids(&s->heap[at], &s->heap[child]);
    }
    return taken;
}

/* Adds a state; false when memory ran out. */
static bool search_add(di_exprs *x, search *s, di_expr state, uint32_t from) {
    if (!di_table_reserve(&s->seen, hash_found, s)) return false;
    uint64_t at = di_mix(0, state);
    uint32_t mask = s->seen.size - 1;
    for (; s->seen.slots[at & mask]; at++)
        if (s->found[s->seen.slots[at & mask] - 1] == state) return true;
    if (!di_grow(&s->found, &s->capacity, (uint64_t)s->count + 1, sizeof *s->found) ||
        !di_grow(&s->from, &s->from_capacity, (uint64_t)s->count + 1, sizeof *s->from) ||
        !di_grow(&s->least, &s->least_capacity, (uint64_t)s->count + 1, sizeof *s->least) ||
        !di_grow(&s->heap, &s->heap_capacity, (uint64_t)s->waiting + 1, sizeof *s->heap))
        return false;
    s->found[s->count] = state;
    s->from[s->count] = from;
    s->least[s->count] = least_bytes(x, state, 0);
    uint32_t place = s->waiting++;
    s->heap[place] = s->count++;
    for (; place && s->least[s->heap[(place - 1) / 2]] > s->least[s->heap[place]]; place = (place - 1) / 2)
        swap_ids(&s->heap[place], &s->heap[(place - 1) / 2]);
    s->seen.slots[at & mask] = ++s->seen.used;
    return true;
}

static void mark_path(di_exprs *x, const search *s, uint32_t last) {
    for (uint32_t j = last;; j = s->from[j]) {
        x->alive[s->found[j]] = ALIVE;
        if (j == 0) return;
    }
}

/* From `a` to a state that is known not to be empty; those that seem near to the end first. */
static bool search_alive(di_exprs *x, di_expr a) {
    search s = {0};
    di_expr_classes(x);
    bool ok = search_add(x, &s, a, 0), alive = false;
    while (ok && s.waiting && !alive && x->failed == DI_OK) {
        uint32_t i = take_least(&s);
        di_byte_set first = {{0}};
        di_expr_first(x, s.found[i], &first);
        for (uint32_t c = 0; ok && c < x->class_count && !alive; c++) {
            if (!di_set_has(&first, x->class_byte[c])) continue;
            di_expr d = di_expr_derive(x, s.found[i], x->class_byte[c]);
            if (x->failed != DI_OK) break;
            if (d == DI_EXPR_EMPTY || (d < x->alive_count && x->alive[d] == DEAD)) continue;
            alive = known_alive(x, d);
            if (alive && reserve_alive(x)) mark_path(x, &s, i);
            if (!alive) ok = search_add(x, &s, d, i);
        }
    }
    if (!ok) fail(x, DI_ERR_MEMORY);
    if (x->failed == DI_OK && !alive && reserve_alive(x))
        for (uint32_t i = 0; i < s.count; i++) x->alive[s.found[i]] = DEAD;
    free(s.found);
    free(s.from);
    free(s.least);
    free(s.heap);
    free(s.seen.slots);
    return alive;
}

typedef struct pair_list {
    uint64_t *pairs;
    uint32_t count, capacity;
} pair_list;

static void push_pair(di_exprs *x, pair_list *list, uint64_t pair) {
    if (!di_grow(&list->pairs, &list->capacity, (uint64_t)list->count + 1, sizeof pair)) {
        fail(x, DI_ERR_MEMORY);
        return;
    }
    list->pairs[list->count++] = pair;
}

static uint64_t hash_pair_list(const void *arg, uint32_t index) {
    return di_mix(0, ((const pair_list *)arg)->pairs[index]);
}

/* Adds a pair to those seen; false if it is there already. */
static bool first_visit(di_exprs *x, pair_list *seen, di_table *table, uint64_t pair) {
    if (!di_table_reserve(table, hash_pair_list, seen)) return fail(x, DI_ERR_MEMORY), false;
    uint64_t at = di_mix(0, pair);
    for (; table->slots[at & (table->size - 1)]; at++)
        if (seen->pairs[table->slots[at & (table->size - 1)] - 1] == pair) return false;
    push_pair(x, seen, pair);
    if (x->failed == DI_OK) table->slots[at & (table->size - 1)] = ++table->used;
    return x->failed == DI_OK;
}

/* The fewest whole characters (of `any`) that complete `language`, when `left` of a character must come first. */
static uint32_t least_length(di_exprs *x, di_expr language, di_expr left, di_expr any) {
    uint64_t start = (uint64_t)language << 32 | left;
    const uint32_t *known = length_slot(x, start);
    if (!known || *known != NOT_KNOWN) return known ? *known : NO_LENGTH;
    pair_list seen = {0}, level = {0}, next = {0};
    di_table table = {0};
    uint32_t distance = 0, result = NO_LENGTH;
    di_expr_classes(x);
    push_pair(x, &level, start);
    while (level.count && result == NO_LENGTH && x->failed == DI_OK) {
        next.count = 0;
        for (uint32_t i = 0; i < level.count && result == NO_LENGTH && x->failed == DI_OK; i++) {
            if (!first_visit(x, &seen, &table, level.pairs[i])) continue;
            di_expr p = (di_expr)(level.pairs[i] >> 32), r = (di_expr)level.pairs[i];
            if (r == DI_EXPR_EPSILON && x->n.nodes[p].nullable) result = distance;
            bool begins = r == DI_EXPR_EPSILON;
            for (uint32_t c = 0; c < x->class_count && result == NO_LENGTH; c++) {
                di_expr rest = di_expr_derive(x, begins ? any : r, x->class_byte[c]);
                if (rest == DI_EXPR_EMPTY) continue;
                di_expr after = di_expr_derive(x, p, x->class_byte[c]);
                if (after != DI_EXPR_EMPTY) push_pair(x, begins ? &next : &level, (uint64_t)after << 32 | rest);
            }
        }
        pair_list swap = level;
        level = next;
        next = swap;
        distance++;
    }
    free(seen.pairs);
    free(level.pairs);
    free(next.pairs);
    free(table.slots);
    uint32_t *slot = x->failed == DI_OK ? length_slot(x, start) : NULL;
    if (slot) *slot = result;
    return result;
}

/* Steps between pairs of a language and the rest of a character. */
typedef struct pair_step {
    uint32_t from, to, cost;
} pair_step;

typedef struct pair_graph {
    pair_list pairs;
    di_table table;
    pair_step *steps;
    uint32_t count, capacity;
} pair_graph;

/* The index of a pair, added if new; NO_LENGTH after a failure. */
static uint32_t pair_index(di_exprs *x, pair_graph *g, uint64_t pair) {
    if (!di_table_reserve(&g->table, hash_pair_list, &g->pairs)) return fail(x, DI_ERR_MEMORY), NO_LENGTH;
    uint64_t at = di_mix(0, pair);
    uint32_t wrap = g->table.size - 1;
    for (; g->table.slots[at & wrap]; at++)
        if (g->pairs.pairs[g->table.slots[at & wrap] - 1] == pair) return g->table.slots[at & wrap] - 1;
    push_pair(x, &g->pairs, pair);
    if (x->failed != DI_OK) return NO_LENGTH;
    g->table.slots[at & wrap] = ++g->table.used;
    return g->table.used - 1;
}

static void explore_pairs(di_exprs *x, pair_graph *g, di_expr any, uint32_t limit) {
    for (uint32_t i = 0; i < g->pairs.count && g->pairs.count <= limit && x->failed == DI_OK; i++) {
        di_expr p = (di_expr)(g->pairs.pairs[i] >> 32), r = (di_expr)g->pairs.pairs[i];
        bool begins = r == DI_EXPR_EPSILON;
        for (uint32_t c = 0; c < x->class_count && x->failed == DI_OK; c++) {
            di_expr rest = di_expr_derive(x, begins ? any : r, x->class_byte[c]);
            di_expr after = rest == DI_EXPR_EMPTY ? DI_EXPR_EMPTY : di_expr_derive(x, p, x->class_byte[c]);
            if (after == DI_EXPR_EMPTY) continue;
            uint32_t to = pair_index(x, g, (uint64_t)after << 32 | rest);
            if (!di_grow(&g->steps, &g->capacity, (uint64_t)g->count + 1, sizeof *g->steps)) fail(x, DI_ERR_MEMORY);
            if (x->failed == DI_OK) g->steps[g->count++] = (pair_step){i, to, begins};
        }
    }
}

/* Least lengths of all pairs, by relaxation; the greatest of them at whole characters. */
static uint32_t relax_pairs(di_exprs *x, pair_graph *g) {
    uint32_t *least = malloc((g->pairs.count + 1) * sizeof *least), greatest = 0;
    if (!least) return fail(x, DI_ERR_MEMORY), NO_LENGTH;
    for (uint32_t i = 0; i < g->pairs.count; i++) {
        di_expr p = (di_expr)(g->pairs.pairs[i] >> 32), r = (di_expr)g->pairs.pairs[i];
        least[i] = r == DI_EXPR_EPSILON && x->n.nodes[p].nullable ? 0 : NO_LENGTH;
    }
    for (bool changed = true; changed && di_exprs_spend(x, g->count / 8 + 1);) {
        changed = false;
        for (uint32_t i = g->count; i > 0; i--) {
            const pair_step *s = &g->steps[i - 1];
            if (least[s->to] == NO_LENGTH || least[s->to] + s->cost >= least[s->from]) continue;
            least[s->from] = least[s->to] + s->cost;
            changed = true;
        }
    }
    for (uint32_t i = 0; i < g->pairs.count && x->failed == DI_OK; i++) {
        uint32_t *slot = length_slot(x, g->pairs.pairs[i]);
        if (slot) *slot = least[i];
        if ((di_expr)g->pairs.pairs[i] == DI_EXPR_EPSILON && least[i] != NO_LENGTH && least[i] > greatest)
            greatest = least[i];
    }
    free(least);
    return greatest;
}

bool di_expr_farthest(di_exprs *x, di_expr language, di_expr any, uint32_t limit, uint32_t *greatest) {
    pair_graph g = {0};
    di_expr_classes(x);
    pair_index(x, &g, (uint64_t)language << 32 | DI_EXPR_EPSILON);
    explore_pairs(x, &g, any, limit);
    bool all = g.pairs.count <= limit && x->failed == DI_OK;
    if (all) *greatest = relax_pairs(x, &g);
    free(g.pairs.pairs);
    free(g.table.slots);
    free(g.steps);
    return all && x->failed == DI_OK;
}

bool di_expr_counted(di_exprs *x, di_expr a, di_counted *out) {
    const di_expr_node n = x->n.nodes[a];
    if (n.kind != DI_KIND_AND || n.b > 16) return false;
    di_expr others[16];
    uint32_t count = 0, found = 0;
    for (uint32_t i = 0; i < n.b; i++) {
        di_expr part = x->n.pool[n.a + i];
        const di_expr_node *p = &x->n.nodes[part], *r = p->kind == DI_KIND_CAT ? &x->n.nodes[p->b] : p;
        bool any = r->kind == DI_KIND_REPEAT && (r->low || r->high != DI_UNBOUNDED) &&
                   (r->a == x->any_point[0] || r->a == x->any_point[1] || r->a == x->any_point[2]);
        if (!any) {
            others[count++] = part;
            continue;
        }
        *out = (di_counted){.left = r == p ? DI_EXPR_EPSILON : p->a, .any = r->a, .low = r->low, .high = r->high};
        found++;
    }
    if (found != 1) return false;
    out->language = di_expr_and(x, others, count);
    return x->failed == DI_OK;
}

/* Whether a language with bounds of its length is empty, from the least length. False: that does not tell. */
static bool counted_alive(di_exprs *x, di_expr a, bool *alive) {
    di_counted c;
    if (!di_expr_counted(x, a, &c)) return false;
    uint32_t least = least_length(x, c.language, c.left, c.any);
    if (x->failed != DI_OK) return false;
    if (least != NO_LENGTH && (c.high == DI_UNBOUNDED || least <= c.high) && least < c.low) return false;
    *alive = least != NO_LENGTH && (c.high == DI_UNBOUNDED || least <= c.high);
    if (reserve_alive(x)) x->alive[a] = *alive ? ALIVE : DEAD;
    return true;
}

bool di_expr_alive(di_exprs *x, di_expr a) {
    for (;;) {
        if (a == DI_EXPR_EMPTY) return false;
        if (known_alive(x, a)) return true;
        if (a < x->alive_count && x->alive[a] == DEAD) return false;
        const di_expr_node n = x->n.nodes[a];
        if (n.kind == DI_KIND_REPEAT) {
            a = n.a;
        } else if (n.kind == DI_KIND_CAT) {
            if (!di_expr_alive(x, n.a)) return false;
            a = n.b;
        } else {
            bool alive;
            return counted_alive(x, a, &alive) ? alive : search_alive(x, a);
        }
    }
}
