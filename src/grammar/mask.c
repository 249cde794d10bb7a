/* mask.c - which tokens may come next. A lexeme mask is made by one walk of the trie in the lexer's automaton and
 * remembered by lexer state: tokens that stay inside lexemes, and the nodes where a lexeme may end. A mask adds to it
 * what the tails allow behind those nodes. */
#include <stdlib.h>
#include <string.h>

#include "grammar/matcher.h"

enum { MAX_EXIT_WALKS = 4096, LIST_IDS = 2048 };

static void fail(di_matcher *m, di_status status) {
    if (m->x.failed == DI_OK) m->x.failed = status;
}

void di_mask_free(mask *tokens) {
    free(tokens->ids);
    free(tokens->bits);
    *tokens = (mask){0};
}

/* From here on `tokens` is a bit set. */
static void to_bits(di_matcher *m, mask *tokens) {
    uint64_t *bits = malloc(m->vocabulary->words * sizeof *bits);
    if (!bits) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    di_mask_fill(m, tokens, bits);
    free(tokens->ids);
    *tokens = (mask){.bits = bits};
}

static void add_id(di_matcher *m, mask *tokens, uint32_t id) {
    if (tokens->bits) {
        tokens->bits[id / 64] |= (uint64_t)1 << id % 64;
        return;
    }
    if (tokens->count >= LIST_IDS) {
        to_bits(m, tokens);
        if (tokens->bits) tokens->bits[id / 64] |= (uint64_t)1 << id % 64;
        return;
    }
    if (!di_grow(&tokens->ids, &tokens->capacity, (uint64_t)tokens->count + 1, sizeof *tokens->ids)) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    tokens->ids[tokens->count++] = id;
}

static void add_token(di_matcher *m, mask *tokens, uint32_t id) {
    for (; id != DI_NO_TOKEN; id = m->vocabulary->same[id]) add_id(m, tokens, id);
}

static void add_safe(di_matcher *m, mask *tokens, uint32_t safe) {
    if (!safe) return;
    if (!tokens->bits) {
        if (safe > tokens->safe) tokens->safe = safe;
        return;
    }
    const di_vocabulary *v = m->vocabulary;
    uint64_t *bits = malloc(v->words * sizeof *bits);
    if (!bits) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    di_mask_fill(m, &(mask){.safe = safe}, bits);
    for (size_t i = 0; i < v->words; i++) tokens->bits[i] |= bits[i];
    free(bits);
}

static void add_mask(di_matcher *m, mask *to, const mask *from) {
    if (from->bits && !to->bits) to_bits(m, to);
    if (m->x.failed != DI_OK) return;
    if (from->bits) {
        for (size_t i = 0; i < m->vocabulary->words; i++) to->bits[i] |= from->bits[i];
        return;
    }
    add_safe(m, to, from->safe);
    for (uint32_t i = 0; i < from->count; i++) add_id(m, to, from->ids[i]);
}

void di_mask_fill(const di_matcher *m, const mask *from, uint64_t *bits) {
    const di_vocabulary *v = m->vocabulary;
    if (from->bits) {
        memcpy(bits, from->bits, v->words * sizeof *bits);
        return;
    }
    if (!from->safe) {
        memset(bits, 0, v->words * sizeof *bits);
    } else if (from->safe <= DI_SAFE_LEVELS) {
        memcpy(bits, v->safe_levels + (size_t)(from->safe - 1) * v->words, v->words * sizeof *bits);
    } else {
        memcpy(bits, v->safe, v->words * sizeof *bits);
        for (uint32_t i = 0; i < v->safe_count && v->safe_lengths[i] > from->safe; i++)
            bits[v->safe_ids[i] / 64] &= ~((uint64_t)1 << v->safe_ids[i] % 64);
    }
    for (uint32_t i = 0; i < from->count; i++) bits[from->ids[i] / 64] |= (uint64_t)1 << from->ids[i] % 64;
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
        const lexer *l = &m->lexers[now];
        uint32_t next = l->row == NOT_MADE ? NOT_MADE : m->transitions[l->row + m->x.class_of[trie->bytes[p]]];
        if (next == NOT_MADE) next = di_lexer_next(m, now, trie->bytes[p]);
        visited++;
        if (next == LEXER_DEAD) {
            if (m->x.failed != DI_OK) break;
            p += n.size;
            continue;
        }
        if (n.token != DI_NO_TOKEN) add_token(m, tokens, n.token);
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

/* ------------------------------------------------------------------------------------------------------ lexeme masks
 */

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
        out->exits[out->exit_count++] = (exit_point){node, p.slot, trie == &m->vocabulary->rest};
    }
}

/* True for the inside of a JSON string: characters, so many that *room more are allowed, then the quote. */
static bool string_body(const di_matcher *m, di_expr expr, uint32_t *room) {
    const di_expr_node *n = &m->x.nodes[expr];
    if (n->kind != DI_KIND_CAT || m->x.nodes[n->a].kind != DI_KIND_REPEAT) return false;
    const di_expr_node *repeat = &m->x.nodes[n->a], *next = &m->x.nodes[n->b];
    if (repeat->a != m->x.any_point[DI_ENCODING_JSON] && repeat->a != m->x.any_point[DI_ENCODING_JSON_GENERAL])
        return false;
    if (next->kind == DI_KIND_CAT) next = &m->x.nodes[next->a];
    if (next->kind != DI_KIND_SET) return false;
    const uint64_t *set = m->x.sets[next->a].bits;
    *room = repeat->high;
    return set[0] == (uint64_t)1 << '"' && !set[1] && !set[2] && !set[3];
}

/* The same string body with bounds that no token tells from the true ones. */
static di_expr far_bounds(di_matcher *m, di_expr expr) {
    const di_expr_node n = m->x.nodes[expr], repeat = m->x.nodes[n.a];
    uint32_t longest = m->vocabulary->longest + 1;
    uint32_t low = repeat.low < longest ? repeat.low : longest;
    uint32_t high = repeat.high < longest ? repeat.high : DI_UNBOUNDED;
    if (low == repeat.low && high == repeat.high) return expr;
    return di_expr_cat(&m->x, di_expr_repeat(&m->x, repeat.a, low, high), n.b);
}

static uint32_t lexeme_mask_of(di_matcher *m, uint32_t lexer_id);

static void append(di_matcher *m, lexeme_mask *to, const lexeme_mask *from, uint32_t slot) {
    add_mask(m, &to->tokens, &from->tokens);
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
    const lexeme_mask from = m->lexeme_masks[id];
    append(m, to, &from, slot);
}

static bool any_string_body(const di_matcher *m, di_expr expr) {
    const di_expr_node *n = &m->x.nodes[expr];
    uint32_t room;
    if (string_body(m, expr, &room)) return true;
    for (uint32_t i = 0; n->kind == DI_KIND_OR && i < n->b; i++)
        if (string_body(m, m->x.pool[n->a + i], &room)) return true;
    return false;
}

static void make_lexeme_mask(di_matcher *m, uint32_t lexer_id, lexeme_mask *out) {
    const lexer l = m->lexers[lexer_id];
    uint32_t room;
    bool string = false;
    for (uint32_t i = 0; i < l.count; i++) string = string || any_string_body(m, m->pair_pool[l.pairs + i].value);
    if (!string) {
        walk(m, &m->vocabulary->all, 0, lexer_id, &out->tokens, note_exit, out);
        return;
    }
    const pair first = m->pair_pool[l.pairs];
    if (l.count == 1 && first.slot == 0 && string_body(m, first.value, &room)) {
        di_expr far = far_bounds(m, first.value);
        if (far != first.value) {
            add_single(m, out, far, 0);
            return;
        }
        add_safe(m, &out->tokens, room);
        walk(m, &m->vocabulary->rest, 0, lexer_id, &out->tokens, note_exit, out);
        return;
    }
    for (uint32_t i = 0; i < l.count && m->x.failed == DI_OK; i++) {
        const pair p = m->pair_pool[l.pairs + i];
        const di_expr_node n = m->x.nodes[p.value];
        bool split = n.kind == DI_KIND_OR && any_string_body(m, p.value);
        for (uint32_t j = 0; j < (split ? n.b : 1) && m->x.failed == DI_OK; j++)
            add_single(m, out, split ? m->x.pool[n.a + j] : p.value, p.slot);
    }
}

static uint32_t lexeme_mask_of(di_matcher *m, uint32_t lexer_id) {
    if (m->lexers[lexer_id].mask != NOT_MADE) return m->lexers[lexer_id].mask;
    lexeme_mask made = {0};
    make_lexeme_mask(m, lexer_id, &made);
    if (m->x.failed == DI_OK &&
        !di_grow(&m->lexeme_masks, &m->lexeme_mask_capacity, (uint64_t)m->lexeme_mask_count + 1, sizeof made))
        fail(m, DI_ERR_MEMORY);
    if (m->x.failed != DI_OK) {
        di_mask_free(&made.tokens);
        free(made.exits);
        return NOT_MADE;
    }
    m->mask_bytes += made.tokens.capacity * 4 + made.exit_capacity * sizeof *made.exits +
                     (made.tokens.bits ? m->vocabulary->words * 8 : 0);
    m->lexeme_masks[m->lexeme_mask_count] = made;
    m->lexers[lexer_id].mask = m->lexeme_mask_count;
    return m->lexeme_mask_count++;
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
    add_mask(m, tokens, &m->lexeme_masks[lexemes].tokens);
    builder b = {tokens, c.row, left};
    for (uint32_t i = 0; i < m->lexeme_masks[lexemes].exit_count && m->x.failed == DI_OK; i++) {
        exit_point e = m->lexeme_masks[lexemes].exits[i];
        walk_tail(m, &b, e.rest ? &m->vocabulary->rest : &m->vocabulary->all, e.node, e.slot);
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
        if (n.token != DI_NO_TOKEN) add_token(m, tokens, n.token);
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
    mask made = {0};
    m->walk_used = 0;
    make_mask(m, id, &made);
    if (m->x.failed == DI_OK && !di_grow(&m->masks, &m->mask_capacity, (uint64_t)m->mask_count + 1, sizeof made))
        fail(m, DI_ERR_MEMORY);
    if (m->x.failed != DI_OK) {
        di_mask_free(&made);
        return NULL;
    }
    m->mask_bytes += made.capacity * 4 + (made.bits ? m->vocabulary->words * 8 : 0);
    m->masks[m->mask_count] = made;
    m->configs[id].mask = m->mask_count;
    return &m->masks[m->mask_count++];
}
