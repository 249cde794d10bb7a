/* mask.c - which tokens may come next. A lexeme mask is made by one walk of the trie in the lexer's automaton and
 * remembered by lexer state: tokens that stay inside lexemes, and the nodes where a lexeme may end. A mask adds to it
 * what the tails allow behind those nodes. */
#include <stdlib.h>
#include <string.h>

#include "grammar/matcher.h"

enum {
    MAX_EXIT_WALKS = 4096,
    FEW_IDS = 16,
    MANY_IDS = 256,
    LIST_IDS = 2048,
    LIST_NEAR = 1024,
    MAX_APART = 6000,
    MAX_SINGLE = 4000
};

static void fail(di_matcher *m, di_status status) {
    if (m->x.failed == DI_OK) m->x.failed = status;
}

void di_mask_free(mask *tokens) {
    free(tokens->ids);
    free(tokens->removed);
    free(tokens->bits);
    tokens->ids = tokens->removed = NULL;
    tokens->bits = NULL;
    tokens->safe = tokens->count = tokens->capacity = tokens->removed_count = tokens->removed_capacity = 0;
    tokens->base = NOT_MADE;
}

/* From here on `tokens` is a bit set. */
static void to_bits(di_matcher *m, mask *tokens) {
    uint64_t *bits = malloc(m->vocabulary->words * sizeof *bits);
    if (!bits) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    di_mask_fill(m, tokens, bits);
    di_mask_free(tokens);
    tokens->bits = bits;
}

static void add_id(di_matcher *m, mask *tokens, uint32_t id) {
    if (!tokens->bits && tokens->count >= LIST_IDS) to_bits(m, tokens);
    if (tokens->bits) {
        tokens->bits[id / 64] |= (uint64_t)1 << id % 64;
    } else if (!di_grow(&tokens->ids, &tokens->capacity, (uint64_t)tokens->count + 1, sizeof *tokens->ids)) {
        fail(m, DI_ERR_MEMORY);
    } else {
        tokens->ids[tokens->count++] = id;
    }
}

static void add_token(di_matcher *m, const di_trie *trie, mask *tokens, uint32_t id) {
    if (trie->ids) {
        const uint32_t *run = &trie->ids[id];
        for (; !(*run & DI_LAST_ID); run++) add_id(m, tokens, *run);
        add_id(m, tokens, *run & ~DI_LAST_ID);
        return;
    }
    for (; id != DI_NO_TOKEN; id = m->vocabulary->same[id]) add_id(m, tokens, id);
}

static void add_removed(di_matcher *m, mask *tokens, uint32_t id) {
    for (; id != DI_NO_TOKEN; id = m->vocabulary->same[id]) {
        if (!di_grow(&tokens->removed, &tokens->removed_capacity, (uint64_t)tokens->removed_count + 1, sizeof id)) {
            fail(m, DI_ERR_MEMORY);
            return;
        }
        tokens->removed[tokens->removed_count++] = id;
    }
}

static bool has_base(const mask *tokens) {
    return tokens->base != NOT_MADE || tokens->safe;
}

static bool is_empty(const mask *tokens) {
    return !tokens->bits && !has_base(tokens) && !tokens->count;
}

static void add_bits(di_matcher *m, mask *to, const mask *from) {
    size_t words = m->vocabulary->words;
    uint64_t *bits = malloc(words * sizeof *bits);
    if (!to->bits) to_bits(m, to);
    if (!bits) fail(m, DI_ERR_MEMORY);
    if (bits && to->bits && m->x.failed == DI_OK) {
        di_mask_fill(m, from, bits);
        for (size_t i = 0; i < words; i++) to->bits[i] |= bits[i];
    }
    free(bits);
}

/* Adds the tokens of a lexeme mask: by reference, if they are the first and not very few. */
static void add_mask(di_matcher *m, mask *to, uint32_t id) {
    const mask *from = &m->lexeme_masks[id].tokens;
    bool list = !from->bits && !has_base(from);
    if (is_empty(to) && (!list || from->count > FEW_IDS))
        to->base = id;
    else if (!list)
        add_bits(m, to, from);
    else
        for (uint32_t i = 0; i < from->count; i++) add_id(m, to, m->lexeme_masks[id].tokens.ids[i]);
}

void di_mask_fill(const di_matcher *m, const mask *from, uint64_t *bits) {
    const di_vocabulary *v = m->vocabulary;
    if (from->bits) {
        memcpy(bits, from->bits, v->words * sizeof *bits);
    } else if (from->base != NOT_MADE && from->base >= BASE_BODY) {
        memcpy(bits, v->bodies[from->base - BASE_BODY].bits, v->words * sizeof *bits);
    } else if (from->base != NOT_MADE) {
        di_mask_fill(m, &m->lexeme_masks[from->base].tokens, bits);
    } else if (!from->safe) {
        memset(bits, 0, v->words * sizeof *bits);
    } else if (from->safe <= DI_SAFE_LEVELS) {
        memcpy(bits, v->safe_levels + (size_t)(from->safe - 1) * v->words, v->words * sizeof *bits);
    } else {
        memcpy(bits, v->safe, v->words * sizeof *bits);
        for (uint32_t i = 0; i < v->safe_count && v->safe_lengths[i] > from->safe; i++)
            bits[v->safe_ids[i] / 64] &= ~((uint64_t)1 << v->safe_ids[i] % 64);
    }
    for (uint32_t i = 0; i < from->removed_count; i++)
        bits[from->removed[i] / 64] &= ~((uint64_t)1 << from->removed[i] % 64);
    for (uint32_t i = 0; i < from->count; i++) bits[from->ids[i] / 64] |= (uint64_t)1 << from->ids[i] % 64;
}

/* Tokens as the difference from a base; false if that is too great. */
static bool store_near(di_matcher *m, mask *tokens, uint32_t base_id) {
    const uint64_t *base =
        base_id >= BASE_BODY ? m->vocabulary->bodies[base_id - BASE_BODY].bits : m->lexeme_masks[base_id].tokens.bits;
    uint32_t differ = 0;
    for (size_t i = 0; i < m->vocabulary->words && differ <= LIST_NEAR; i++)
        differ += (uint32_t)__builtin_popcountll(base[i] ^ tokens->bits[i]);
    if (differ > LIST_NEAR) return false;
    mask near = {.base = base_id};
    for (size_t i = 0; i < m->vocabulary->words; i++)
        for (uint64_t d = base[i] ^ tokens->bits[i]; d; d &= d - 1) {
            uint32_t id = (uint32_t)(i * 64 + (size_t)__builtin_ctzll(d));
            if (!(base[i] >> id % 64 & 1))
                add_id(m, &near, id);
            else if (!di_grow(&near.removed, &near.removed_capacity, (uint64_t)near.removed_count + 1, sizeof id))
                fail(m, DI_ERR_MEMORY);
            else
                near.removed[near.removed_count++] = id;
        }
    di_mask_free(tokens);
    *tokens = near;
    return true;
}

/* Room that is not used is given back. */
static void shrink(uint32_t **list, uint32_t count, uint32_t *capacity) {
    uint32_t *less = count && count < *capacity ? realloc(*list, count * sizeof **list) : NULL;
    if (!less) return;
    *list = less;
    *capacity = count;
}

static bool find_near(di_matcher *m, mask *tokens) {
    bool near = false;
    for (uint32_t b = 0; b < 2 && !near && m->x.failed == DI_OK; b++) near = store_near(m, tokens, BASE_BODY + b);
    for (uint32_t b = 0; b < m->base_count && !near && m->x.failed == DI_OK; b++)
        near = store_near(m, tokens, m->bases[b]);
    return near;
}

static void compress(di_matcher *m, mask *tokens) {
    if (tokens->bits) {
        find_near(m, tokens);
    } else if (tokens->safe && tokens->count > MANY_IDS) {
        mask all = {.base = NOT_MADE, .bits = malloc(m->vocabulary->words * sizeof *all.bits)};
        if (!all.bits) {
            fail(m, DI_ERR_MEMORY);
            return;
        }
        di_mask_fill(m, tokens, all.bits);
        if (find_near(m, &all)) {
            di_mask_free(tokens);
            *tokens = all;
        } else {
            di_mask_free(&all);
        }
    }
    shrink(&tokens->ids, tokens->count, &tokens->capacity);
    shrink(&tokens->removed, tokens->removed_count, &tokens->removed_capacity);
}

static size_t mask_memory(const di_matcher *m, const mask *tokens) {
    return ((size_t)tokens->capacity + tokens->removed_capacity) * 4 +
           (tokens->bits ? m->vocabulary->words * sizeof(uint64_t) : 0);
}

/* ------------------------------------------------------------------------------------------------------------ walking
 */

/* The walk stack holds pairs: a lexer (or config) on the path, and the end of its subtree. Space for `count` more
 * entries of the walk stack; their index, NOT_MADE after a failure. */
static uint32_t push_walk(di_matcher *m, uint32_t count) {
    if (!di_grow(&m->walk_stack, &m->walk_capacity, (uint64_t)m->walk_used + 2 * (uint64_t)count,
                 sizeof *m->walk_stack)) {
        fail(m, DI_ERR_MEMORY);
        return NOT_MADE;
    }
    uint32_t at = m->walk_used;
    m->walk_used += 2 * count;
    return at;
}

typedef void (*exit_function)(di_matcher *m, void *arg, const di_trie *trie, uint32_t node, uint32_t lexer_id);

/* Walks the subtree of `node` (without itself) from a lexer, adds the tokens that stay alive, and calls `leave` at
 * every inner node where a lexeme may end. */
static void walk(di_matcher *m, const di_trie *trie, uint32_t node, uint32_t from, mask *tokens, exit_function leave,
                 void *arg) {
    uint32_t base = push_walk(m, m->vocabulary->longest + 2);
    if (base == NOT_MADE) return;
    uint32_t at = base, p = node + 1, visited = 0;
    m->walk_stack[at] = from;
    m->walk_stack[at + 1] = node + trie->nodes[node].size;
    uint32_t end = m->walk_stack[at + 1];
    while (p < end) {
        while (p >= m->walk_stack[at + 1]) at -= 2;
        const di_trie_node n = trie->nodes[p];
        uint32_t now = m->walk_stack[at];
        uint32_t next = di_lexer_known(m, now, trie->bytes[p]);
        if (next == NOT_MADE) next = di_lexer_next(m, now, trie->bytes[p]);
        visited++;
        if (next == LEXER_DEAD) {
            if (m->x.failed != DI_OK) break;
            p += n.size;
            continue;
        }
        if (n.token != DI_NO_TOKEN) add_token(m, trie, tokens, n.token);
        if (n.size > 1) {
            if (m->lexers[next].accepts) leave(m, arg, trie, p, next);
            at += 2;
            m->walk_stack[at] = next;
            m->walk_stack[at + 1] = p + n.size;
        }
        p++;
    }
    m->walk_used = base;
    di_exprs_spend(&m->x, visited);
}

/* Every character of these byte ranges leads from `from` back to `home`, without a lexeme that might end. */
static bool leads_back(di_matcher *m, const di_kind_of_character *c, uint32_t at, uint32_t from, uint32_t home) {
    uint32_t last = NOT_MADE;
    if (at >= sizeof c->low) return false;
    for (unsigned b = c->low[at]; b <= c->high[at]; b++) {
        uint32_t next = di_lexer_next(m, from, (uint8_t)b);
        if (next == last) continue;
        last = next;
        if (at + 1 == c->length) {
            if (next != home) return false;
        } else if (next == LEXER_DEAD || m->lexers[next].accepts || !leads_back(m, c, at + 1, next, home)) {
            return false;
        }
    }
    return true;
}

/* Characters of these kinds all keep the lexer where it is. */
static bool loops(di_matcher *m, uint32_t id, uint32_t kinds) {
    if (kinds >> DI_INSIDE_CHARACTER || m->lexers[id].accepts) return false;
    uint32_t known = m->lexers[id].asked;
    if (kinds & known & ~m->lexers[id].loops) return false;
    for (uint32_t k = 0; k < DI_KINDS; k++) {
        if (!((kinds & ~known) >> k & 1)) continue;
        bool back = true;
        for (size_t i = 0; i < di_character_kind_count && back; i++)
            if (di_character_kinds[i].kind == k) back = leads_back(m, &di_character_kinds[i], 0, id, id);
        if (m->x.failed != DI_OK) return false;
        m->lexers[id].asked |= (uint32_t)1 << k;
        if (back) m->lexers[id].loops |= (uint32_t)1 << k;
        if (!back) return false;
    }
    return true;
}

/* The string-safe tokens below a node. */
static void add_below(di_matcher *m, uint32_t node, mask *tokens) {
    const di_vocabulary *v = m->vocabulary;
    uint32_t from = v->all.safe_before[node + 1], to = v->all.safe_before[node + v->all.nodes[node].size];
    if (!tokens->bits && tokens->count + (to - from) > LIST_IDS) to_bits(m, tokens);
    if (m->x.failed != DI_OK) return;
    if (tokens->bits)
        for (uint32_t i = from; i < to; i++)
            tokens->bits[v->safe_order[i] / 64] |= (uint64_t)1 << v->safe_order[i] % 64;
    else
        for (uint32_t i = from; i < to; i++) add_id(m, tokens, v->safe_order[i]);
    di_exprs_spend(&m->x, (to - from) / 16);
}

/* The lexer reads text in which most characters change nothing. */
static bool may_loop(di_matcher *m, uint32_t id) {
    static const uint8_t samples[] = {'e', 'A', '0', ' '};
    for (size_t i = 0; i < sizeof samples; i++) {
        uint32_t next = di_lexer_next(m, id, samples[i]);
        if (next != LEXER_DEAD && !m->lexers[next].accepts && di_lexer_next(m, next, samples[i]) == next) return true;
    }
    return false;
}

/* String-safe tokens only; subtrees whose characters change nothing are taken as a whole. */
static void walk_safe(di_matcher *m, uint32_t from, mask *tokens, exit_function leave, void *arg) {
    enum { WORTH_ASKING = 12 };
    const di_trie *trie = &m->vocabulary->all;
    uint32_t base = push_walk(m, m->vocabulary->longest + 2);
    if (base == NOT_MADE) return;
    uint32_t at = base, p = 1, visited = 0;
    m->walk_stack[at] = from;
    m->walk_stack[at + 1] = trie->count;
    while (p < trie->count && m->x.failed == DI_OK) {
        while (p >= m->walk_stack[at + 1]) at -= 2;
        const di_trie_node n = trie->nodes[p];
        uint32_t here = trie->safe_before[p], below = trie->safe_before[p + 1], next = LEXER_DEAD;
        if (trie->safe_before[p + n.size] > here) next = di_lexer_next(m, m->walk_stack[at], trie->bytes[p]);
        visited++;
        if (next == LEXER_DEAD) {
            p += n.size;
            continue;
        }
        for (; here < below; here++) add_id(m, tokens, m->vocabulary->safe_order[here]);
        bool all = n.size >= WORTH_ASKING && loops(m, next, trie->kinds[p]);
        if (all) add_below(m, p, tokens);
        if (!all && n.size > 1) {
            if (m->lexers[next].accepts) leave(m, arg, trie, p, next);
            at += 2;
            m->walk_stack[at] = next;
            m->walk_stack[at + 1] = p + n.size;
        }
        p += all ? n.size : 1;
    }
    m->walk_used = base;
    di_exprs_spend(&m->x, visited);
}

/* The whole vocabulary. */
static void walk_all(di_matcher *m, uint32_t from, mask *tokens, exit_function leave, void *arg) {
    if (!may_loop(m, from)) {
        walk(m, &m->vocabulary->all, 0, from, tokens, leave, arg);
        return;
    }
    walk_safe(m, from, tokens, leave, arg);
    walk(m, &m->vocabulary->rest, 0, from, tokens, leave, arg);
}

/* ------------------------------------------------------------------------------------------------------ lexeme masks
 */

static uint8_t exit_trie(const di_vocabulary *v, const di_trie *trie) {
    if (trie == &v->all) return EXIT_ALL;
    return trie == &v->rest ? EXIT_REST : trie == &v->bodies[0].after ? EXIT_AFTER : EXIT_AFTER + 1;
}

static const di_trie *trie_of_exit(const di_vocabulary *v, uint8_t trie) {
    if (trie == EXIT_ALL) return &v->all;
    return trie == EXIT_REST ? &v->rest : &v->bodies[trie - EXIT_AFTER].after;
}

static void note_exit(di_matcher *m, void *arg, const di_trie *trie, uint32_t node, uint32_t lexer_id) {
    lexeme_mask *out = arg;
    const lexer l = m->lexers[lexer_id];
    for (uint32_t i = 0; i < l.count; i++) {
        pair p = m->pair_pool[l.pairs + i];
        if (!di_expr_nullable(&m->x, p.value)) continue;
        if (!di_grow(&out->exits, &out->exit_capacity, (uint64_t)out->exit_count + 1, sizeof *out->exits)) {
            fail(m, DI_ERR_MEMORY);
            return;
        }
        out->exits[out->exit_count++] = (exit_point){node, p.slot, exit_trie(m->vocabulary, trie)};
    }
}

/* Every text of it begins with a quote. */
static bool begins_quoted(const di_matcher *m, di_expr expr) {
    const di_expr_node *n = &m->x.n.nodes[expr];
    if (n->kind == DI_KIND_CAT) n = &m->x.n.nodes[n->a];
    if (n->kind != DI_KIND_SET) return false;
    const uint64_t *set = m->x.sets[n->a].bits;
    return set[0] == (uint64_t)1 << '"' && !set[1] && !set[2] && !set[3];
}

/* True for the inside of a JSON string: characters, so many that *room more are allowed, then the quote. */
static bool string_body(const di_matcher *m, di_expr expr, uint32_t *room) {
    const di_expr_node *n = &m->x.n.nodes[expr];
    if (n->kind != DI_KIND_CAT || m->x.n.nodes[n->a].kind != DI_KIND_REPEAT) return false;
    const di_expr_node *repeat = &m->x.n.nodes[n->a];
    if (repeat->a != m->x.any_point[DI_ENCODING_JSON] && repeat->a != m->x.any_point[DI_ENCODING_JSON_GENERAL])
        return false;
    *room = repeat->high;
    return begins_quoted(m, n->b);
}

/* True if any characters at all leave the language completable: it is, begins with, or has as an alternative, any
 * characters. So unanchored patterns look until they are found. */
static bool open_body_at(di_matcher *m, di_expr expr, unsigned depth) {
    const di_expr_node n = m->x.n.nodes[expr];
    if (depth > 8) return false;
    if (n.kind == DI_KIND_OR && n.b <= 64) {
        for (uint32_t i = 0; i < n.b; i++)
            if (open_body_at(m, m->x.n.pool[n.a + i], depth + 1)) return true;
        return false;
    }
    if (n.kind == DI_KIND_REPEAT)
        return !n.low && n.high == DI_UNBOUNDED && (n.a == m->x.any_point[1] || n.a == m->x.any_point[2]);
    return n.kind == DI_KIND_CAT && open_body_at(m, n.a, depth + 1) && di_expr_alive(&m->x, n.b);
}

static bool open_body(di_matcher *m, di_expr expr) {
    return open_body_at(m, expr, 0);
}

/* The same string body with bounds that no token tells from the true ones. */
static di_expr far_bounds(di_matcher *m, di_expr expr) {
    const di_expr_node n = m->x.n.nodes[expr], repeat = m->x.n.nodes[n.a];
    uint32_t longest = m->vocabulary->longest + 1;
    uint32_t low = repeat.low < longest ? repeat.low : longest;
    uint32_t high = repeat.high < longest ? repeat.high : DI_UNBOUNDED;
    if (low == repeat.low && high == repeat.high) return expr;
    return di_expr_cat(&m->x, di_expr_repeat(&m->x, repeat.a, low, high), n.b);
}

static uint32_t lexeme_mask_of(di_matcher *m, uint32_t lexer_id);

static void append_exits(di_matcher *m, lexeme_mask *to, uint32_t id, uint32_t slot) {
    const lexeme_mask *from = &m->lexeme_masks[id];
    if (!di_grow(&to->exits, &to->exit_capacity, (uint64_t)to->exit_count + from->exit_count, sizeof *to->exits)) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    for (uint32_t i = 0; i < from->exit_count; i++) {
        exit_point e = from->exits[i];
        e.slot = slot;
        to->exits[to->exit_count++] = e;
    }
}

/* The mask of one expression, in slot 0. */
static void add_single(di_matcher *m, lexeme_mask *to, di_expr expr, uint32_t slot) {
    uint32_t one = di_lexer_of(m, &(pair){0, expr}, 1);
    uint32_t id = m->x.failed == DI_OK ? lexeme_mask_of(m, one) : NOT_MADE;
    if (id == NOT_MADE) return;
    add_mask(m, &to->tokens, id);
    append_exits(m, to, id, slot);
}

/* The string body of which `expr` leaves something out: characters that follow other conditions too, then the quote.
 * DI_EXPR_EMPTY if it is no such expression. */
static di_expr body_around(di_matcher *m, di_expr expr) {
    const di_expr_node n = m->x.n.nodes[expr];
    if (n.kind != DI_KIND_CAT || m->x.n.nodes[n.a].kind != DI_KIND_AND) return DI_EXPR_EMPTY;
    const di_expr_node all = m->x.n.nodes[n.a];
    for (uint32_t i = 0; i < all.b; i++) {
        di_expr part = m->x.n.pool[all.a + i];
        const di_expr_node *r = &m->x.n.nodes[part];
        if (r->kind != DI_KIND_REPEAT || r->low || r->high != DI_UNBOUNDED) continue;
        di_expr body = di_expr_cat(&m->x, part, n.b);
        uint32_t room;
        if (string_body(m, body, &room)) return body;
    }
    return DI_EXPR_EMPTY;
}

typedef struct apart { /* where two runs over a trie differ */
    lexeme_mask *out;
    const exit_point *exits; /* [exit_count] of the base in `rest`, by node */
    uint32_t exit_count, copied, visited;
    bool changed; /* some exits differ */
} apart;

/* Exits of the base before `node` hold for both runs. */
static void copy_exits(di_matcher *m, apart *a, uint32_t node) {
    for (; a->copied < a->exit_count && a->exits[a->copied].node < node; a->copied++) {
        lexeme_mask *out = a->out;
        if (!di_grow(&out->exits, &out->exit_capacity, (uint64_t)out->exit_count + 1, sizeof *out->exits)) {
            fail(m, DI_ERR_MEMORY);
            return;
        }
        out->exits[out->exit_count++] = a->exits[a->copied];
    }
}

/* The exits where both runs are at a node and differ: the narrower one's. */
static void differing_exits(di_matcher *m, apart *a, uint32_t node, uint32_t next) {
    copy_exits(m, a, node);
    bool had = a->copied < a->exit_count && a->exits[a->copied].node == node;
    while (a->copied < a->exit_count && a->exits[a->copied].node == node) a->copied++;
    bool has = m->vocabulary->rest.nodes[node].size > 1 && m->lexers[next].accepts;
    if (has) note_exit(m, a->out, &m->vocabulary->rest, node, next);
    a->changed = a->changed || had != has;
}

/* Both lexers go through the trie; subtrees in which they are equal are skipped. Tokens (on the trie of all) and exits
 * (on the other) of the base that the narrower one lacks are taken out. False if they differ too much. */
static bool walk_apart(di_matcher *m, const di_trie *trie, uint32_t narrow, uint32_t wide, apart *a) {
    bool all = trie == &m->vocabulary->all;
    uint32_t base = push_walk(m, 2 * (m->vocabulary->longest + 2));
    if (base == NOT_MADE) return false;
    uint32_t *stack = m->walk_stack;
    uint32_t at = base, p = 1;
    stack[at] = narrow, stack[at + 1] = wide, stack[at + 2] = trie->count;
    while (p < trie->count && a->visited <= MAX_APART && m->x.failed == DI_OK) {
        while (p >= stack[at + 2]) at -= 3;
        const di_trie_node n = trie->nodes[p];
        uint32_t next = stack[at] == LEXER_DEAD ? LEXER_DEAD : di_lexer_next(m, stack[at], trie->bytes[p]);
        uint32_t other = di_lexer_next(m, stack[at + 1], trie->bytes[p]);
        if (next == other) {
            p += n.size;
            continue;
        }
        a->visited++;
        if (all && n.token != DI_NO_TOKEN && next == LEXER_DEAD) add_removed(m, &a->out->tokens, n.token);
        if (!all) differing_exits(m, a, p, next);
        if (n.size > 1) {
            at += 3;
            stack[at] = next, stack[at + 1] = other, stack[at + 2] = p + n.size;
        }
        p++;
    }
    m->walk_used = base;
    di_exprs_spend(&m->x, a->visited);
    if (!all && p >= trie->count) copy_exits(m, a, UINT32_MAX);
    return p >= trie->count && m->x.failed == DI_OK;
}

/* The exit of a plain body quote by quote. */
static exit_point *quote_exits(di_matcher *m, const exit_point *joined) {
    const di_body *body = &m->vocabulary->bodies[joined->trie - EXIT_AFTER];
    exit_point *list = malloc((body->quote_count + 1) * sizeof *list);
    if (!list) fail(m, DI_ERR_MEMORY);
    for (uint32_t i = 0; list && i < body->quote_count; i++)
        list[i] = (exit_point){body->quotes[i], joined->slot, EXIT_REST};
    return list;
}

/* The mask of a string body with conditions as what it lacks of the plain one. False: nothing was made. */
static bool make_near(di_matcher *m, di_expr expr, uint32_t lexer_id, lexeme_mask *out) {
    di_expr around = body_around(m, expr);
    if (around == DI_EXPR_EMPTY) return false;
    uint32_t wide = di_lexer_of(m, &(pair){0, around}, 1);
    uint32_t id = m->x.failed == DI_OK ? lexeme_mask_of(m, wide) : NOT_MADE;
    if (id == NOT_MADE) return false;
    const lexeme_mask base = m->lexeme_masks[id];
    bool joined = base.exit_count == 1 && base.exits[0].trie >= EXIT_AFTER;
    exit_point *quotes = joined ? quote_exits(m, &base.exits[0]) : NULL;
    apart a = {.out = out, .exits = base.exits, .exit_count = base.exit_count};
    if (joined) {
        a.exits = quotes;
        a.exit_count = m->vocabulary->bodies[base.exits[0].trie - EXIT_AFTER].quote_count;
    }
    out->tokens.base = id;
    bool near = m->x.failed == DI_OK && walk_apart(m, &m->vocabulary->all, lexer_id, wide, &a) &&
                walk_apart(m, &m->vocabulary->rest, lexer_id, wide, &a);
    free(quotes);
    if (near && joined && !a.changed) {
        out->exit_count = 0;
        append_exits(m, out, id, 0);
    }
    if (near) return true;
    di_mask_free(&out->tokens);
    free(out->exits);
    *out = (lexeme_mask){.tokens = {.base = NOT_MADE}};
    return false;
}

/* What a pattern beside bounds of the length needs at most to be completed, from any of its states; remembered by
 * pattern. False if that is not known. */
static bool farthest(di_matcher *m, const di_counted *c, uint32_t *greatest) {
    for (uint32_t i = 0; i < m->far_count; i++) {
        if (m->far[i].language != c->language) continue;
        *greatest = m->far[i].greatest;
        return m->far[i].known;
    }
    uint32_t slot = m->far_count < MAX_FAR ? m->far_count++ : m->far_next++ % MAX_FAR;
    m->far[slot].language = c->language;
    m->far[slot].known = di_expr_farthest(&m->x, c->language, c->any, MAX_FAR_STATES, greatest);
    m->far[slot].greatest = *greatest;
    if (m->x.failed != DI_OK) m->far_count = m->far_next = 0;
    return m->far[slot].known;
}

/* Reads a token; LEXER_DEAD if it is not allowed. */
static uint32_t read_token(di_matcher *m, uint32_t lexer_id, uint32_t id) {
    uint32_t length;
    const uint8_t *bytes = di_vocabulary_bytes(m->vocabulary, id, &length);
    for (uint32_t i = 0; i < length && lexer_id != LEXER_DEAD; i++) lexer_id = di_lexer_next(m, lexer_id, bytes[i]);
    return lexer_id;
}

/* String-safe tokens that may not fit when `high` characters are left, of which `need` may complete the text. */
static uint32_t longer_tokens(const di_vocabulary *v, uint32_t high, uint32_t need) {
    uint32_t room = high < need ? 0 : high - need, many = 0;
    while (many < v->safe_count && many <= MAX_SINGLE && v->safe_lengths[many] > room) many++;
    return many;
}

/* The mask of a pattern with a bound of its length: that of the pattern alone, since short tokens leave room enough to
 * complete it; long ones and those that are not string-safe are looked at one by one. False: nothing was made. */
static bool make_counted(di_matcher *m, di_expr expr, uint32_t lexer_id, lexeme_mask *out) {
    const di_expr_node n = m->x.n.nodes[expr];
    const di_vocabulary *v = m->vocabulary;
    di_counted c;
    di_bounds bounds;
    uint32_t need, many = UINT32_MAX;
    if (n.kind != DI_KIND_CAT || !di_expr_counted(&m->x, n.a, &c)) return false;
    if (c.low || c.left != DI_EXPR_EPSILON) return false;
    if (!begins_quoted(m, n.b)) return false; /* a string-safe token could leave the lexeme */
    if (di_expr_bounds(&m->x, c.language, &bounds)) many = longer_tokens(v, c.high, need = bounds.greatest);
    if (many > MAX_SINGLE && farthest(m, &c, &need)) many = longer_tokens(v, c.high, need);
    if (many > MAX_SINGLE) return false;
    uint32_t alone = di_lexer_of(m, &(pair){0, di_expr_cat(&m->x, c.language, n.b)}, 1);
    uint32_t id = m->x.failed == DI_OK ? lexeme_mask_of(m, alone) : NOT_MADE;
    if (id == NOT_MADE) return true;
    add_mask(m, &out->tokens, id);
    if (c.high >= (uint64_t)need + v->longest) { /* no token comes near the bound: exits are the same too */
        append_exits(m, out, id, 0);
        return true;
    }
    if (!out->tokens.bits) to_bits(m, &out->tokens);
    if (m->x.failed != DI_OK) return true;
    for (size_t i = 0; i < v->words; i++) out->tokens.bits[i] &= v->safe[i];
    walk(m, &v->rest, 0, lexer_id, &out->tokens, note_exit, out);
    for (uint32_t i = 0; i < many && m->x.failed == DI_OK; i++) {
        uint32_t token = v->safe_ids[i];
        if (out->tokens.bits[token / 64] >> token % 64 & 1 && read_token(m, lexer_id, token) == LEXER_DEAD)
            out->tokens.bits[token / 64] &= ~((uint64_t)1 << token % 64);
    }
    di_exprs_spend(&m->x, many);
    return true;
}

static bool has_counted(di_matcher *m, di_expr expr) {
    const di_expr_node n = m->x.n.nodes[expr];
    di_counted c;
    return n.kind == DI_KIND_CAT && di_expr_counted(&m->x, n.a, &c) && c.low == 0 && c.left == DI_EXPR_EPSILON;
}

static bool any_string_body(di_matcher *m, di_expr expr) {
    const di_expr_node n = m->x.n.nodes[expr];
    uint32_t room;
    if (open_body(m, expr) || string_body(m, expr, &room) || body_around(m, expr) != DI_EXPR_EMPTY ||
        has_counted(m, expr))
        return true;
    for (uint32_t i = 0; n.kind == DI_KIND_OR && i < n.b; i++)
        if (string_body(m, m->x.n.pool[n.a + i], &room)) return true;
    return false;
}

/* What the vocabulary knows of strings, and what follows the quote. */
static void make_plain_body(di_matcher *m, di_expr expr, uint32_t lexer_id, lexeme_mask *out) {
    const di_trie *rest = &m->vocabulary->rest;
    const di_expr_node n = m->x.n.nodes[expr];
    di_expr any = m->x.n.nodes[n.a].a;
    uint32_t which = any == m->x.any_point[DI_ENCODING_JSON_GENERAL];
    const di_body *body = &m->vocabulary->bodies[which];
    uint32_t behind = di_lexer_next(m, lexer_id, '"');
    out->tokens.base = BASE_BODY + which;
    if (behind == LEXER_DEAD) return;
    if (m->x.n.nodes[n.b].kind == DI_KIND_SET) { /* nothing of the lexeme follows */
        note_exit(m, out, &body->after, 0, behind);
        return;
    }
    for (uint32_t i = 0; i < body->quote_count && m->x.failed == DI_OK; i++) {
        uint32_t node = body->quotes[i];
        if (rest->nodes[node].size == 1) continue;
        if (m->lexers[behind].accepts) note_exit(m, out, rest, node, behind);
        walk(m, rest, node, behind, &out->tokens, note_exit, out);
    }
}

/* A plain string body: safe tokens as far as there is room for them, the others by a walk. */
static void make_body(di_matcher *m, di_expr expr, uint32_t lexer_id, uint32_t room, lexeme_mask *out) {
    di_expr far = far_bounds(m, expr);
    if (far != expr) {
        add_single(m, out, far, 0);
    } else if (room == DI_UNBOUNDED && m->x.n.nodes[m->x.n.nodes[expr].a].low == 0) {
        make_plain_body(m, expr, lexer_id, out);
    } else {
        out->tokens.safe = room;
        walk(m, &m->vocabulary->rest, 0, lexer_id, &out->tokens, note_exit, out);
    }
}

/* All string-safe tokens, the others by a walk. */
static void make_open(di_matcher *m, uint32_t lexer_id, lexeme_mask *out) {
    out->tokens.safe = DI_UNBOUNDED;
    walk(m, &m->vocabulary->rest, 0, lexer_id, &out->tokens, note_exit, out);
}

/* Several lexemes at once: string bodies one by one, the rest together. */
static void make_parts(di_matcher *m, const lexer *l, lexeme_mask *out) {
    pair *others = malloc((l->count + 1) * sizeof *others);
    uint32_t count = 0;
    if (!others) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    for (uint32_t i = 0; i < l->count && m->x.failed == DI_OK; i++) {
        const pair p = m->pair_pool[l->pairs + i];
        const di_expr_node n = m->x.n.nodes[p.value];
        if (!any_string_body(m, p.value)) {
            others[count++] = p;
            continue;
        }
        bool split = n.kind == DI_KIND_OR && !open_body(m, p.value);
        for (uint32_t j = 0; j < (split ? n.b : 1) && m->x.failed == DI_OK; j++)
            add_single(m, out, split ? m->x.n.pool[n.a + j] : p.value, p.slot);
    }
    if (count && m->x.failed == DI_OK) {
        uint32_t rest = di_lexer_of(m, others, count);
        if (m->x.failed == DI_OK) walk_all(m, rest, &out->tokens, note_exit, out);
    }
    free(others);
}

static void make_lexeme_mask(di_matcher *m, uint32_t lexer_id, lexeme_mask *out) {
    const lexer l = m->lexers[lexer_id];
    uint32_t room;
    bool string = false;
    for (uint32_t i = 0; i < l.count; i++) string = string || any_string_body(m, m->pair_pool[l.pairs + i].value);
    if (!string) {
        walk_all(m, lexer_id, &out->tokens, note_exit, out);
        return;
    }
    const pair first = m->pair_pool[l.pairs];
    bool alone = l.count == 1 && first.slot == 0;
    if (alone && string_body(m, first.value, &room))
        make_body(m, first.value, lexer_id, room, out);
    else if (alone && open_body(m, first.value))
        make_open(m, lexer_id, out);
    else if (alone && m->x.n.nodes[first.value].kind != DI_KIND_OR) {
        if (!make_near(m, first.value, lexer_id, out) && m->x.failed == DI_OK &&
            !make_counted(m, first.value, lexer_id, out) && m->x.failed == DI_OK)
            walk_all(m, lexer_id, &out->tokens, note_exit, out);
    } else {
        make_parts(m, &l, out);
    }
}

/* A mask that others are near to. */
static void keep_base(di_matcher *m, uint32_t id) {
    if (m->lexeme_masks[id].tokens.bits && m->base_count < MAX_BASES) m->bases[m->base_count++] = id;
}

static uint32_t lexeme_mask_of(di_matcher *m, uint32_t lexer_id) {
    if (m->lexers[lexer_id].mask != NOT_MADE) return m->lexers[lexer_id].mask;
    lexeme_mask made = {.tokens = {.base = NOT_MADE}};
    make_lexeme_mask(m, lexer_id, &made);
    if (m->x.failed == DI_OK) compress(m, &made.tokens);
    if (m->x.failed == DI_OK &&
        !di_grow(&m->lexeme_masks, &m->lexeme_mask_capacity, (uint64_t)m->lexeme_mask_count + 1, sizeof made))
        fail(m, DI_ERR_MEMORY);
    if (m->x.failed != DI_OK) {
        di_mask_free(&made.tokens);
        free(made.exits);
        return NOT_MADE;
    }
    m->mask_bytes += mask_memory(m, &made.tokens) + made.exit_capacity * sizeof *made.exits;
    m->lexeme_masks[m->lexeme_mask_count] = made;
    m->lexers[lexer_id].mask = m->lexeme_mask_count++;
    keep_base(m, m->lexeme_mask_count - 1);
    return m->lexeme_mask_count - 1;
}

/* ------------------------------------------------------------------------------------------------------------- masks
 */

typedef struct builder {
    mask *tokens;
    uint32_t row;   /* whose tails follow */
    uint32_t *left; /* exit walks that may still be done */
} builder;

/* The tail of a slot goes on at a node of the trie. */
static void walk_tail(di_matcher *m, const builder *b, const di_trie *trie, uint32_t node, uint32_t slot);

static void leave_lexeme(di_matcher *m, void *arg, const di_trie *trie, uint32_t node, uint32_t lexer_id) {
    const lexer l = m->lexers[lexer_id];
    for (uint32_t i = 0; i < l.count && m->x.failed == DI_OK; i++) {
        pair p = m->pair_pool[l.pairs + i];
        if (di_expr_nullable(&m->x, p.value)) walk_tail(m, arg, trie, node, p.slot);
    }
}

static void walk_tail(di_matcher *m, const builder *b, const di_trie *trie, uint32_t node, uint32_t slot) {
    if (*b->left == 0) return;
    --*b->left;
    uint32_t behind = di_config_of_tail(m, m->tail_pool[m->rows[b->row].tails + slot]);
    if (behind == CONFIG_REJECT || m->x.failed != DI_OK) return;
    builder deeper = *b;
    deeper.row = m->configs[behind].row;
    walk(m, trie, node, m->configs[behind].lexer, b->tokens, leave_lexeme, &deeper);
}

static void add_config(di_matcher *m, uint32_t id, mask *tokens, uint32_t *left, unsigned depth) {
    const config c = m->configs[id];
    const row r = m->rows[c.row];
    uint32_t lexemes = lexeme_mask_of(m, c.lexer);
    if (lexemes == NOT_MADE) return;
    add_mask(m, tokens, lexemes);
    builder b = {tokens, c.row, left};
    for (uint32_t i = 0; i < m->lexeme_masks[lexemes].exit_count && m->x.failed == DI_OK; i++) {
        exit_point e = m->lexeme_masks[lexemes].exits[i];
        walk_tail(m, &b, trie_of_exit(m->vocabulary, e.trie), e.node, e.slot);
    }
    for (uint32_t i = 0; c.start && i < r.token_count; i++)
        if (m->pair_pool[r.tokens + i].slot < m->vocabulary->rows) add_id(m, tokens, m->pair_pool[r.tokens + i].slot);
    const lexer l = m->lexers[c.lexer];
    for (uint32_t i = 0; l.accepts && i < l.count && m->x.failed == DI_OK; i++) {
        pair p = m->pair_pool[l.pairs + i];
        if (!di_expr_nullable(&m->x, p.value)) continue;
        uint32_t behind = di_config_of_tail(m, m->tail_pool[r.tails + p.slot]);
        if (behind != CONFIG_REJECT && depth < 2) add_config(m, behind, tokens, left, depth + 1);
    }
}

/* Config by config instead of lexeme by lexeme: one visit a node however many ways lead there. */
static void walk_configs(di_matcher *m, uint32_t id, mask *tokens) {
    const di_trie *trie = &m->vocabulary->all;
    uint32_t base = push_walk(m, m->vocabulary->longest + 2);
    if (base == NOT_MADE) return;
    uint32_t at = base, p = 1;
    m->walk_stack[at] = id;
    m->walk_stack[at + 1] = trie->count;
    while (p < trie->count && di_exprs_spend(&m->x, 1)) {
        while (p >= m->walk_stack[at + 1]) at -= 2;
        const di_trie_node n = trie->nodes[p];
        uint32_t next = di_config_step(m, m->walk_stack[at], trie->bytes[p]);
        if (next == CONFIG_REJECT) {
            p += n.size;
            continue;
        }
        if (n.token != DI_NO_TOKEN) add_token(m, trie, tokens, n.token);
        if (n.size > 1) {
            at += 2;
            m->walk_stack[at] = next;
            m->walk_stack[at + 1] = p + n.size;
        }
        p++;
    }
    m->walk_used = base;
}

static void make_mask(di_matcher *m, uint32_t id, mask *out) {
    uint32_t left = MAX_EXIT_WALKS;
    if (id != CONFIG_ENDED) add_config(m, id, out, &left, 0);
    if (left == 0 && m->x.failed == DI_OK) walk_configs(m, id, out);
    if (m->x.failed == DI_OK && di_config_complete(m, id))
        for (uint32_t i = 0; i < m->vocabulary->stop_count; i++) add_id(m, out, (uint32_t)m->vocabulary->stops[i]);
}

const mask *di_config_mask(di_matcher *m, uint32_t id) {
    if (m->configs[id].mask != NOT_MADE) return &m->masks[m->configs[id].mask];
    mask made = {.base = NOT_MADE};
    m->walk_used = 0;
    make_mask(m, id, &made);
    if (m->x.failed == DI_OK) compress(m, &made);
    if (m->x.failed == DI_OK && !di_grow(&m->masks, &m->mask_capacity, (uint64_t)m->mask_count + 1, sizeof made))
        fail(m, DI_ERR_MEMORY);
    if (m->x.failed != DI_OK) {
        di_mask_free(&made);
        return NULL;
    }
    m->mask_bytes += mask_memory(m, &made);
    m->masks[m->mask_count] = made;
    m->configs[id].mask = m->mask_count;
    return &m->masks[m->mask_count++];
}
