/* configs.c - tails, lexers, rows and configs of a matcher; see matcher.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "grammar/matcher.h"

static uint32_t fail(di_matcher *m, di_status status) {
    if (m->x.failed == DI_OK) m->x.failed = status;
    return 0;
}

enum { MANY_HEADS = 512, MAX_JOINS = 500 };

/* ------------------------------------------------------------------------------------------------------------ tails */

/* One tail for several. */
static uint32_t tail_join(di_matcher *m, const uint32_t *list, uint32_t count, unsigned depth);

static uint64_t hash_tail_content(const di_matcher *m, const tail *t) {
    uint64_t hash = di_mix(t->symbol, t->count);
    if (t->symbol != NOT_MADE) return di_mix(hash, t->next);
    for (uint32_t i = 0; i < t->count; i++) hash = di_mix(hash, m->tail_pool[t->next + i]);
    return hash;
}

static uint64_t hash_tail(const void *arg, uint32_t index) {
    const di_matcher *m = arg;
    return hash_tail_content(m, &m->tails[index]);
}

/* The id of this tail. A list must be the last thing in tail_pool; it is taken back if the tail is known. */
static uint32_t intern_tail(di_matcher *m, tail t) {
    if (m->x.failed != DI_OK) return TAIL_END;
    if (!di_table_reserve(&m->tail_table, hash_tail, m)) return fail(m, DI_ERR_MEMORY);
    uint64_t at = hash_tail_content(m, &t);
    uint32_t wrap = m->tail_table.size - 1, slot;
    for (; (slot = m->tail_table.slots[at & wrap]); at++) {
        const tail *o = &m->tails[slot - 1];
        if (o->symbol != t.symbol || o->count != t.count) continue;
        if (t.symbol != NOT_MADE ? o->next == t.next
                                 : memcmp(m->tail_pool + o->next, m->tail_pool + t.next, t.count * 4) == 0) {
            if (t.symbol == NOT_MADE) m->tail_pool_count = t.next;
            return slot - 1;
        }
    }
    if (!di_grow(&m->tails, &m->tail_capacity, (uint64_t)m->tail_count + 1, sizeof t)) return fail(m, DI_ERR_MEMORY);
    t.config = t.joined = NOT_MADE;
    m->tails[m->tail_count] = t;
    m->tail_table.slots[at & wrap] = ++m->tail_table.used;
    return m->tail_count++;
}

uint32_t di_tail_cons(di_matcher *m, di_symbol symbol, uint32_t next) {
    return symbol == DI_SYMBOL_EPSILON ? next : intern_tail(m, (tail){.symbol = symbol, .next = next});
}

static bool is_list(const di_matcher *m, uint32_t id) {
    return id != TAIL_END && m->tails[id].symbol == NOT_MADE;
}

/* Tails that begin with the same symbol become one: S A | S B = S (A | B). Without this the tails of an ambiguous
 * grammar would multiply. list: [count], sorted by symbol; returns how many are left. */
static uint32_t join_heads(di_matcher *m, uint32_t *list, uint32_t count, unsigned depth) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count && m->x.failed == DI_OK;) {
        uint32_t j = i + 1, symbol = m->tails[list[i]].symbol;
        while (j < count && list[i] != TAIL_END && m->tails[list[j]].symbol == symbol) j++;
        if (j - i == 1) {
            list[kept++] = list[i++];
            continue;
        }
        uint32_t *rests = malloc((j - i) * sizeof *rests);
        if (!rests) return fail(m, DI_ERR_MEMORY);
        for (uint32_t k = i; k < j; k++) rests[k - i] = m->tails[list[k]].next;
        uint32_t rest = tail_join(m, rests, j - i, depth + 1);
        free(rests);
        list[kept++] = di_tail_cons(m, symbol, rest);
        i = j;
    }
    return kept;
}

/* Sorts by symbol, the end first; insertion, since the lists are short, beyond that by id of the tail. */
static void sort_heads(const di_matcher *m, uint32_t *list, uint32_t count) {
    for (uint32_t i = 1; i < count; i++) {
        uint32_t id = list[i], j = i;
        for (; j && m->tails[list[j - 1]].symbol > m->tails[id].symbol; j--) list[j] = list[j - 1];
        list[j] = id;
    }
}

/* The tail of a sorted list of two or more. */
static uint32_t list_tail(di_matcher *m, const uint32_t *list, uint32_t count) {
    uint32_t from = m->tail_pool_count;
    if (!di_grow(&m->tail_pool, &m->tail_pool_capacity, (uint64_t)from + count, sizeof *m->tail_pool))
        return fail(m, DI_ERR_MEMORY);
    memcpy(m->tail_pool + from, list, count * sizeof *list);
    m->tail_pool_count = from + count;
    return intern_tail(m, (tail){.symbol = NOT_MADE, .next = from, .count = count});
}

static uint32_t tail_join(di_matcher *m, const uint32_t *list, uint32_t count, unsigned depth) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) total += is_list(m, list[i]) ? m->tails[list[i]].count : 1;
    if (!di_exprs_spend(&m->x, total)) return TAIL_END;
    uint32_t *out = malloc(total * sizeof *out), n = 0, kept = 0;
    if (!out) return fail(m, DI_ERR_MEMORY);
    for (uint32_t i = 0; i < count; i++) {
        const tail *t = &m->tails[list[i]];
        if (!is_list(m, list[i])) out[n++] = list[i];
        for (uint32_t j = 0; is_list(m, list[i]) && j < t->count; j++) out[n++] = m->tail_pool[t->next + j];
    }
    qsort(out, n, sizeof *out, di_compare_ids);
    for (uint32_t i = 0; i < n; i++)
        if (!kept || out[kept - 1] != out[i]) out[kept++] = out[i];
    uint32_t result = kept == 1 ? out[0] : list_tail(m, out, kept), plain = result;
    if (kept > 1 && m->x.failed == DI_OK && m->tails[plain].joined != NOT_MADE) {
        result = m->tails[plain].joined;
    } else if (kept > 1 && kept <= MANY_HEADS && depth < MAX_JOINS && m->x.failed == DI_OK) {
        sort_heads(m, out, kept);
        kept = join_heads(m, out, kept, depth);
        qsort(out, kept, sizeof *out, di_compare_ids);
        result = kept == 1 ? out[0] : list_tail(m, out, kept);
        if (m->x.failed == DI_OK) m->tails[plain].joined = m->tails[result].joined = result;
    }
    free(out);
    return m->x.failed == DI_OK ? result : TAIL_END;
}

/* ----------------------------------------------------------------------------------------------------------- lexers */

static uint64_t hash_pairs(const pair *pairs, uint32_t count) {
    uint64_t hash = count;
    for (uint32_t i = 0; i < count; i++) hash = di_mix(hash, (uint64_t)pairs[i].slot << 32 | pairs[i].value);
    return hash;
}

static uint64_t hash_lexer(const void *arg, uint32_t index) {
    const di_matcher *m = arg;
    return hash_pairs(m->pair_pool + m->lexers[index].pairs, m->lexers[index].count);
}

/* Copies pairs to the pool; NOT_MADE when memory ran out. */
static uint32_t keep_pairs(di_matcher *m, const pair *pairs, uint32_t count) {
    if (!di_grow(&m->pair_pool, &m->pair_capacity, (uint64_t)m->pair_count + count, sizeof *pairs)) {
        fail(m, DI_ERR_MEMORY);
        return NOT_MADE;
    }
    if (count) memcpy(m->pair_pool + m->pair_count, pairs, count * sizeof *pairs);
    m->pair_count += count;
    return m->pair_count - count;
}

/* Texts like the rest of a key: one byte, or those of one class, may follow. Such states are most, and need no row. */
static bool only_class(const di_matcher *m, di_expr expr, uint8_t *class) {
    const di_expr_node *n = &m->x.n.nodes[expr];
    if (n->kind == DI_KIND_CAT) n = &m->x.n.nodes[n->a];
    if (n->kind != DI_KIND_SET) return false;
    unsigned first = 0;
    while (!di_set_has(&m->x.sets[n->a], (uint8_t)first)) first++;
    *class = m->x.class_of[first];
    for (unsigned b = first; b < 256; b++)
        if (di_set_has(&m->x.sets[n->a], (uint8_t)b) && m->x.class_of[b] != *class) return false;
    return true;
}

uint32_t di_lexer_of(di_matcher *m, const pair *pairs, uint32_t count) {
    if (m->x.failed != DI_OK || (count == 0 && m->lexer_count)) return LEXER_DEAD;
    if (!di_table_reserve(&m->lexer_table, hash_lexer, m)) return fail(m, DI_ERR_MEMORY);
    uint64_t at = hash_pairs(pairs, count);
    uint32_t wrap = m->lexer_table.size - 1, slot;
    for (; (slot = m->lexer_table.slots[at & wrap]); at++) {
        const lexer *o = &m->lexers[slot - 1];
        if (o->count == count && (!count || memcmp(m->pair_pool + o->pairs, pairs, count * sizeof *pairs) == 0))
            return slot - 1;
    }
    if (!di_grow(&m->lexers, &m->lexer_capacity, (uint64_t)m->lexer_count + 1, sizeof *m->lexers))
        return fail(m, DI_ERR_MEMORY);
    lexer l = {.count = count, .row = NOT_MADE, .mask = NOT_MADE, .pairs = keep_pairs(m, pairs, count)};
    if (l.pairs == NOT_MADE) return LEXER_DEAD;
    for (uint32_t i = 0; i < count; i++) l.accepts = l.accepts || di_expr_nullable(&m->x, pairs[i].value);
    l.single = count == 1 && only_class(m, pairs[0].value, &l.only);
    m->lexers[m->lexer_count] = l;
    m->lexer_table.slots[at & wrap] = ++m->lexer_table.used;
    return m->lexer_count++;
}

static uint32_t make_transition(di_matcher *m, uint32_t id, uint8_t byte) {
    pair local[64], *next = local;
    const lexer l = m->lexers[id];
    uint32_t count = 0;
    if (l.count > 64) next = malloc(l.count * sizeof *next);
    if (!next) return fail(m, DI_ERR_MEMORY);
    for (uint32_t i = 0; i < l.count && m->x.failed == DI_OK; i++) {
        pair p = m->pair_pool[l.pairs + i];
        p.value = di_expr_derive(&m->x, p.value, byte);
        if (p.value != DI_EXPR_EMPTY && di_expr_alive(&m->x, p.value)) next[count++] = p;
    }
    di_exprs_spend(&m->x, l.count);
    uint32_t result = di_lexer_of(m, next, count);
    if (next != local) free(next);
    return result;
}

/* Transitions not made yet, but for bytes that no text here begins with: most. */
static bool make_row(di_matcher *m, lexer *l) {
    uint32_t classes = m->x.class_count;
    di_byte_set first = {{0}};
    if (!di_grow(&m->transitions, &m->transition_capacity, (uint64_t)m->transition_count + classes,
                 sizeof *m->transitions))
        return false;
    l->row = m->transition_count;
    m->transition_count += classes;
    for (uint32_t i = 0; i < l->count; i++) di_expr_first(&m->x, m->pair_pool[l->pairs + i].value, &first);
    for (uint32_t c = 0; c < classes; c++) {
        uint8_t byte = m->x.class_byte[c];
        m->transitions[l->row + c] = di_set_has(&first, byte) ? NOT_MADE : LEXER_DEAD;
    }
    return true;
}

uint32_t di_lexer_next(di_matcher *m, uint32_t id, uint8_t byte) {
    uint32_t next = di_lexer_known(m, id, byte);
    if (next != NOT_MADE) return next;
    uint8_t class = m->x.class_of[byte];
    lexer *l = &m->lexers[id];
    if (!l->single && l->row == NOT_MADE) {
        if (!make_row(m, l)) return fail(m, DI_ERR_MEMORY);
        if (m->transitions[l->row + class] == LEXER_DEAD) return LEXER_DEAD;
    }
    next = make_transition(m, id, m->x.class_byte[class]); /* derivatives of one byte a class are remembered */
    if (m->x.failed != DI_OK) return LEXER_DEAD;
    l = &m->lexers[id];
    if (l->single)
        l->row = next;
    else
        m->transitions[l->row + class] = next;
    return next;
}

/* --------------------------------------------------------------------------------------------------- rows and configs
 */

static uint64_t hash_row_content(const di_matcher *m, const row *r) {
    uint64_t hash = di_mix(r->complete, r->count);
    for (uint32_t i = 0; i < r->count; i++) hash = di_mix(hash, m->tail_pool[r->tails + i]);
    return di_mix(hash, r->token_count ? hash_pairs(m->pair_pool + r->tokens, r->token_count) : 0);
}

static uint64_t hash_row(const void *arg, uint32_t index) {
    const di_matcher *m = arg;
    return hash_row_content(m, &m->rows[index]);
}

/* The id of a row whose tails and tokens are the last things in their pools; they are taken back if it is known. */
static uint32_t intern_row(di_matcher *m, row r) {
    if (m->x.failed != DI_OK || !di_table_reserve(&m->row_table, hash_row, m)) return fail(m, DI_ERR_MEMORY);
    uint64_t at = hash_row_content(m, &r);
    uint32_t wrap = m->row_table.size - 1, slot;
    for (; (slot = m->row_table.slots[at & wrap]); at++) {
        const row *o = &m->rows[slot - 1];
        if (o->count != r.count || o->token_count != r.token_count || o->complete != r.complete ||
            (r.count && memcmp(m->tail_pool + o->tails, m->tail_pool + r.tails, r.count * 4) != 0) ||
            (r.token_count &&
             memcmp(m->pair_pool + o->tokens, m->pair_pool + r.tokens, r.token_count * sizeof(pair)) != 0))
            continue;
        m->tail_pool_count = r.tails;
        m->pair_count = r.tokens;
        return slot - 1;
    }
    if (!di_grow(&m->rows, &m->row_capacity, (uint64_t)m->row_count + 1, sizeof r)) return fail(m, DI_ERR_MEMORY);
    m->rows[m->row_count] = r;
    m->row_table.slots[at & wrap] = ++m->row_table.used;
    return m->row_count++;
}

static uint64_t hash_config_content(uint32_t l, uint32_t r, bool start) {
    return di_mix(di_mix(start, l), r);
}

static uint64_t hash_config(const void *arg, uint32_t index) {
    const config *c = &((const di_matcher *)arg)->configs[index];
    return hash_config_content(c->lexer, c->row, c->start);
}

static uint32_t config_of(di_matcher *m, uint32_t l, uint32_t r, bool start) {
    if (m->x.failed != DI_OK || !di_table_reserve(&m->config_table, hash_config, m)) return fail(m, DI_ERR_MEMORY);
    uint64_t at = hash_config_content(l, r, start);
    uint32_t wrap = m->config_table.size - 1, slot;
    for (; (slot = m->config_table.slots[at & wrap]); at++) {
        const config *o = &m->configs[slot - 1];
        if (o->lexer == l && o->row == r && o->start == start) return slot - 1;
    }
    if (!di_grow(&m->configs, &m->config_capacity, (uint64_t)m->config_count + 1, sizeof *m->configs))
        return fail(m, DI_ERR_MEMORY);
    m->configs[m->config_count] = (config){.lexer = l, .row = r, .mask = NOT_MADE, .start = start};
    m->config_table.slots[at & wrap] = m->config_count + 1;
    m->config_table.used++;
    return m->config_count++;
}

/* Threads collected for a config: lexemes being read with what follows each. */
typedef struct threads {
    pair *list; /* slot = expression, value = tail; sorted in the end */
    uint32_t count, capacity;
    pair *tokens; /* slot = token, value = tail */
    uint32_t token_count, token_capacity;
    bool complete;
} threads;

static void add_thread(di_matcher *m, threads *t, uint32_t expr, uint32_t tail_id) {
    if (!di_grow(&t->list, &t->capacity, (uint64_t)t->count + 1, sizeof *t->list)) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    t->list[t->count++] = (pair){expr, tail_id};
}

static int compare_pairs(const void *a, const void *b) {
    const pair *x = a, *y = b;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Joins the tails of equal expressions (or tokens): list becomes one pair each. */
static void join_equal(di_matcher *m, pair *list, uint32_t *count) {
    uint32_t kept = 0;
    if (*count > 1) qsort(list, *count, sizeof *list, compare_pairs);
    for (uint32_t i = 0; i < *count && m->x.failed == DI_OK;) {
        uint32_t j = i + 1;
        while (j < *count && list[j].slot == list[i].slot) j++;
        pair joined = list[i];
        if (j - i > 1) {
            uint32_t *tails = malloc((j - i) * sizeof *tails);
            if (!tails) {
                fail(m, DI_ERR_MEMORY);
                return;
            }
            for (uint32_t k = i; k < j; k++) tails[k - i] = list[k].value;
            joined.value = tail_join(m, tails, j - i, 0);
            free(tails);
        }
        list[kept++] = joined;
        i = j;
    }
    *count = kept;
}

static uint32_t config_of_threads(di_matcher *m, threads *t, bool start) {
    join_equal(m, t->list, &t->count);
    join_equal(m, t->tokens, &t->token_count);
    if (m->x.failed != DI_OK) return CONFIG_REJECT;
    if (!t->count && !t->token_count && !t->complete) return CONFIG_REJECT;
    pair *pairs = malloc((t->count + 1) * sizeof *pairs);
    if (!pairs || !di_grow(&m->tail_pool, &m->tail_pool_capacity, (uint64_t)m->tail_pool_count + t->count, 4)) {
        free(pairs);
        return fail(m, DI_ERR_MEMORY);
    }
    row r = {.count = t->count, .token_count = t->token_count, .complete = t->complete};
    for (uint32_t i = 0; i < t->count; i++) pairs[i] = (pair){i, t->list[i].slot};
    uint32_t l = di_lexer_of(m, pairs, t->count);
    free(pairs);
    r.tails = m->tail_pool_count;
    for (uint32_t i = 0; i < t->count; i++) m->tail_pool[m->tail_pool_count++] = t->list[i].value;
    r.tokens = keep_pairs(m, t->tokens, t->token_count);
    uint32_t row_id = intern_row(m, r);
    return config_of(m, l, row_id, start);
}

/* ------------------------------------------------------------------------------------------------------- unfolding */

typedef struct worklist {
    uint32_t *list;
    uint32_t count, capacity;
} worklist;

static void push_tail(di_matcher *m, worklist *w, uint32_t id) {
    if (m->x.failed != DI_OK) return;
    if (id >= m->seen_capacity) {
        uint32_t size = m->tail_capacity, old = m->seen_capacity;
        if (!di_grow(&m->seen_tails, &m->seen_capacity, size > id ? size : (uint64_t)id + 1, sizeof(uint32_t))) {
            fail(m, DI_ERR_MEMORY);
            return;
        }
        memset(m->seen_tails + old, 0, (m->seen_capacity - old) * sizeof(uint32_t));
    }
    if (m->seen_tails[id] == m->epoch) return;
    m->seen_tails[id] = m->epoch;
    if (!di_grow(&w->list, &w->capacity, (uint64_t)w->count + 1, sizeof *w->list)) {
        fail(m, DI_ERR_MEMORY);
        return;
    }
    w->list[w->count++] = id;
}

static void push_symbol(di_matcher *m, worklist *w, di_symbol symbol, uint32_t next) {
    if (symbol == DI_SYMBOL_EMPTY) return;
    push_tail(m, w, di_tail_cons(m, symbol, next));
}

/* One step of unfolding: a symbol in front of `next`. */
static void unfold(di_matcher *m, worklist *w, threads *t, di_symbol symbol, uint32_t next) {
    const di_symbol_node n = m->s.n.nodes[symbol];
    switch (n.kind) {
    case DI_SYM_EMPTY:
        break;
    case DI_SYM_EPSILON:
        push_tail(m, w, next);
        break;
    case DI_SYM_LEXEME:
        add_thread(m, t, n.a, next);
        break;
    case DI_SYM_SEQUENCE:
        push_symbol(m, w, n.a, di_tail_cons(m, n.b, next));
        break;
    case DI_SYM_CHOICE:
        for (uint32_t i = 0; i < n.b; i++) push_symbol(m, w, m->s.n.pool[n.a + i], next);
        break;
    case DI_SYM_RULE:
        push_symbol(m, w, m->s.rules[n.a], next);
        break;
    case DI_SYM_REPEAT: {
        uint32_t low = n.low ? n.low - 1 : 0, high = n.high == DI_UNBOUNDED ? n.high : n.high - 1;
        di_symbol rest = di_sym_repeat(&m->s, &m->x, n.a, low, high);
        if (n.low == 0) push_tail(m, w, next);
        push_symbol(m, w, n.a, di_tail_cons(m, rest, next));
        break;
    }
    case DI_SYM_TOKEN:
        if (!di_grow(&t->tokens, &t->token_capacity, (uint64_t)t->token_count + 1, sizeof *t->tokens)) {
            fail(m, DI_ERR_MEMORY);
            break;
        }
        t->tokens[t->token_count++] = (pair){n.a, next};
        break;
    default:
        push_symbol(m, w, di_sym_unfold(&m->s, &m->x, symbol), next);
        break;
    }
}

uint32_t di_config_of_tail(di_matcher *m, uint32_t id) {
    if (m->tails[id].config != NOT_MADE) return m->tails[id].config;
    worklist w = {0};
    threads t = {0};
    m->epoch++;
    push_tail(m, &w, id);
    while (w.count && di_exprs_spend(&m->x, 1)) {
        uint32_t at = w.list[--w.count];
        const tail now = m->tails[at];
        if (at == TAIL_END) {
            t.complete = true;
        } else if (now.symbol == NOT_MADE) {
            for (uint32_t i = 0; i < now.count; i++) push_tail(m, &w, m->tail_pool[now.next + i]);
        } else {
            unfold(m, &w, &t, now.symbol, now.next);
        }
    }
    uint32_t result = config_of_threads(m, &t, true);
    free(w.list);
    free(t.list);
    free(t.tokens);
    if (m->x.failed != DI_OK) return CONFIG_REJECT;
    m->tails[id].config = result;
    return result;
}

/* --------------------------------------------------------------------------------------------------------- stepping */

static uint32_t tail_of_slot(const di_matcher *m, uint32_t row_id, uint32_t slot) {
    return m->tail_pool[m->rows[row_id].tails + slot];
}

/* The config of a lexer in a row; a lexeme that has ended for sure is left at once. */
static uint32_t settle(di_matcher *m, uint32_t l, uint32_t row_id) {
    const lexer *now = &m->lexers[l];
    if (now->count == 1 && m->pair_pool[now->pairs].value == DI_EXPR_EPSILON)
        return di_config_of_tail(m, tail_of_slot(m, row_id, m->pair_pool[now->pairs].slot));
    return config_of(m, l, row_id, false);
}

typedef struct source {
    uint32_t lexer, row;
} source;

typedef struct sources {
    source *list;
    uint32_t count, capacity;
} sources;

/* Every (lexer, row) that is alive behind `byte`. */
static void step_all(di_matcher *m, uint32_t id, uint8_t byte, sources *out) {
    const config c = m->configs[id];
    uint32_t next = di_lexer_next(m, c.lexer, byte);
    if (next != LEXER_DEAD) {
        for (uint32_t i = 0; i < out->count; i++)
            if (out->list[i].lexer == next && out->list[i].row == c.row) return;
        if (!di_grow(&out->list, &out->capacity, (uint64_t)out->count + 1, sizeof *out->list)) {
            fail(m, DI_ERR_MEMORY);
            return;
        }
        out->list[out->count++] = (source){next, c.row};
    }
    const lexer l = m->lexers[c.lexer];
    if (!l.accepts) return;
    for (uint32_t i = 0; i < l.count && di_exprs_spend(&m->x, 1); i++) {
        pair p = m->pair_pool[l.pairs + i];
        if (!di_expr_nullable(&m->x, p.value)) continue;
        uint32_t behind = di_config_of_tail(m, tail_of_slot(m, c.row, p.slot));
        if (m->x.failed == DI_OK && behind != CONFIG_REJECT) step_all(m, behind, byte, out);
    }
}

static void add_threads_of(di_matcher *m, threads *t, uint32_t lexer_id, uint32_t row_id) {
    const lexer l = m->lexers[lexer_id];
    for (uint32_t j = 0; j < l.count; j++) {
        pair p = m->pair_pool[l.pairs + j];
        add_thread(m, t, p.value, tail_of_slot(m, row_id, p.slot));
    }
}

uint32_t di_config_join(di_matcher *m, uint32_t a, uint32_t b) {
    if (a == b || b == CONFIG_REJECT) return a;
    if (a == CONFIG_REJECT) return b;
    threads t = {0};
    for (int i = 0; i < 2; i++) {
        const config c = m->configs[i ? b : a];
        const row r = m->rows[c.row];
        add_threads_of(m, &t, c.lexer, c.row);
        if (!c.start) continue;
        t.complete = t.complete || r.complete;
        if (!di_grow(&t.tokens, &t.token_capacity, (uint64_t)t.token_count + r.token_count, sizeof *t.tokens))
            fail(m, DI_ERR_MEMORY);
        else if (r.token_count)
            memcpy(t.tokens + t.token_count, m->pair_pool + r.tokens, r.token_count * sizeof *t.tokens);
        if (m->x.failed == DI_OK) t.token_count += r.token_count;
    }
    uint32_t result = config_of_threads(m, &t, true);
    free(t.list);
    free(t.tokens);
    return m->x.failed == DI_OK ? result : CONFIG_REJECT;
}

uint32_t di_config_step(di_matcher *m, uint32_t id, uint8_t byte) {
    if (id <= CONFIG_ENDED) return CONFIG_REJECT;
    const config c = m->configs[id];
    if (!m->lexers[c.lexer].accepts) {
        uint32_t next = di_lexer_next(m, c.lexer, byte);
        return next == LEXER_DEAD || m->x.failed != DI_OK ? CONFIG_REJECT : settle(m, next, c.row);
    }
    sources all = {0};
    uint32_t result = CONFIG_REJECT;
    step_all(m, id, byte, &all);
    if (all.count == 1) {
        result = settle(m, all.list[0].lexer, all.list[0].row);
    } else if (all.count > 1) {
        threads t = {0};
        for (uint32_t i = 0; i < all.count; i++) add_threads_of(m, &t, all.list[i].lexer, all.list[i].row);
        result = config_of_threads(m, &t, false);
        free(t.list);
    }
    free(all.list);
    return m->x.failed == DI_OK ? result : CONFIG_REJECT;
}

/* The tail whose parts are all moved. */
static uint32_t make_tail(di_matcher *to, const mover *v, tail t) {
    if (t.symbol != NOT_MADE)
        return di_tail_cons(to, di_sym_import(&to->s, &to->x, &v->import, t.symbol), v->tail_map[t.next]);
    uint32_t *list = malloc(((size_t)t.count + 1) * sizeof *list);
    if (!list) return fail(to, DI_ERR_MEMORY);
    for (uint32_t i = 0; i < t.count; i++) list[i] = v->tail_map[v->from->tail_pool[t.next + i]];
    uint32_t result = tail_join(to, list, t.count, 0);
    free(list);
    return result;
}

/* Puts a tail that is not moved yet on the list. */
static void want_tail(di_matcher *to, const mover *v, worklist *w, uint32_t id) {
    if (v->tail_map[id] != NOT_MADE) return;
    if (!di_grow(&w->list, &w->capacity, (uint64_t)w->count + 1, sizeof *w->list))
        fail(to, DI_ERR_MEMORY);
    else
        w->list[w->count++] = id;
}

/* Moves a tail and what is behind it, which is as long as the text is deep: without recursion, the last parts first. */
static uint32_t move_tail(di_matcher *to, const mover *v, uint32_t id) {
    worklist w = {0};
    v->tail_map[TAIL_END] = TAIL_END;
    want_tail(to, v, &w, id);
    while (w.count && to->x.failed == DI_OK) {
        uint32_t at = w.list[w.count - 1], waiting = w.count;
        const tail t = v->from->tails[at];
        if (v->tail_map[at] == NOT_MADE && t.symbol != NOT_MADE) want_tail(to, v, &w, t.next);
        for (uint32_t i = t.count; v->tail_map[at] == NOT_MADE && t.symbol == NOT_MADE && i; i--)
            want_tail(to, v, &w, v->from->tail_pool[t.next + i - 1]);
        if (w.count > waiting || to->x.failed != DI_OK) continue;
        if (v->tail_map[at] == NOT_MADE) {
            uint32_t made = make_tail(to, v, t);
            if (to->x.failed == DI_OK) v->tail_map[at] = made;
        }
        w.count--;
    }
    free(w.list);
    return to->x.failed == DI_OK ? v->tail_map[id] : TAIL_END;
}

uint32_t di_config_move(di_matcher *to, const mover *v, uint32_t id) {
    const di_matcher *from = v->from;
    if (id <= CONFIG_ENDED) return id;
    const config c = from->configs[id];
    const lexer l = from->lexers[c.lexer];
    const row r = from->rows[c.row];
    threads t = {.complete = c.start && r.complete};
    for (uint32_t i = 0; i < l.count && to->x.failed == DI_OK; i++) {
        pair p = from->pair_pool[l.pairs + i];
        uint32_t after = move_tail(to, v, tail_of_slot(from, c.row, p.slot));
        di_expr expr = di_expr_import(&to->x, &from->x, p.value, v->import.shared_exprs, v->import.expr_map);
        add_thread(to, &t, expr, after);
    }
    for (uint32_t i = 0; c.start && i < r.token_count && to->x.failed == DI_OK; i++) {
        pair p = from->pair_pool[r.tokens + i];
        p.value = move_tail(to, v, p.value);
        if (!di_grow(&t.tokens, &t.token_capacity, (uint64_t)t.token_count + 1, sizeof p))
            fail(to, DI_ERR_MEMORY);
        else
            t.tokens[t.token_count++] = p;
    }
    uint32_t result = to->x.failed == DI_OK ? config_of_threads(to, &t, c.start) : CONFIG_REJECT;
    free(t.list);
    free(t.tokens);
    return to->x.failed == DI_OK ? result : CONFIG_REJECT;
}

bool di_config_complete(di_matcher *m, uint32_t id) {
    if (id <= CONFIG_ENDED) return id == CONFIG_ENDED;
    const config c = m->configs[id];
    if (c.start && m->rows[c.row].complete) return true;
    const lexer l = m->lexers[c.lexer];
    for (uint32_t i = 0; l.accepts && i < l.count; i++) {
        pair p = m->pair_pool[l.pairs + i];
        if (!di_expr_nullable(&m->x, p.value)) continue;
        uint32_t behind = di_config_of_tail(m, tail_of_slot(m, c.row, p.slot));
        if (behind != CONFIG_REJECT && m->rows[m->configs[behind].row].complete) return true;
    }
    return false;
}

static uint32_t token_tail(const di_matcher *m, uint32_t id, uint32_t token) {
    const config *c = &m->configs[id];
    const row *r = &m->rows[c->row];
    for (uint32_t i = 0; c->start && i < r->token_count; i++)
        if (m->pair_pool[r->tokens + i].slot == token) return m->pair_pool[r->tokens + i].value;
    return NOT_MADE;
}

uint32_t di_config_token(di_matcher *m, uint32_t id, uint32_t token) {
    if (id <= CONFIG_ENDED) return CONFIG_REJECT;
    const config c = m->configs[id];
    uint32_t found = token_tail(m, id, token);
    const lexer l = m->lexers[c.lexer];
    uint32_t *list = malloc((l.count + 1) * sizeof *list), count = 0;
    if (!list) return fail(m, DI_ERR_MEMORY);
    if (found != NOT_MADE) list[count++] = found;
    for (uint32_t i = 0; l.accepts && i < l.count; i++) {
        pair p = m->pair_pool[l.pairs + i];
        if (!di_expr_nullable(&m->x, p.value)) continue;
        uint32_t behind = di_config_of_tail(m, tail_of_slot(m, c.row, p.slot));
        if (behind == CONFIG_REJECT) continue;
        found = token_tail(m, behind, token);
        if (found != NOT_MADE) list[count++] = found;
    }
    uint32_t result = count ? di_config_of_tail(m, tail_join(m, list, count, 0)) : CONFIG_REJECT;
    free(list);
    return m->x.failed == DI_OK ? result : CONFIG_REJECT;
}

di_status di_matcher_check(di_matcher *m, di_error *error) {
    di_status failed = m->x.failed;
    bool work = m->x.work > m->x.work_limit;
    m->x.failed = DI_OK;
    m->x.work = 0;
    m->x.depth = 0;
    if (failed == DI_OK) return DI_OK;
    if (failed == DI_ERR_MEMORY) return di_fail(error, failed, NULL, "out of memory for a grammar's states");
    if (work)
        return di_fail(error, DI_ERR_LIMIT, "limit-mask-work",
                       "this grammar takes more than %" PRIu64 " steps for one token here (--limit-mask-work)",
                       m->x.work_limit);
    return di_fail(error, DI_ERR_LIMIT, "grammar", "this grammar has more states here than a matcher holds");
}
