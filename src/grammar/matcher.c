/* matcher.c - the calls of grammar.h on matchers. */
#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

static di_status no_memory(di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a grammar's states");
}

/* The first tail, lexer, row and configs, and the start state. */
static di_status make_start(di_matcher *m, di_error *error) {
    di_expr_classes(&m->x);
    if (!di_grow(&m->pair_pool, &m->pair_capacity, 16, sizeof *m->pair_pool) ||
        !di_grow(&m->tail_pool, &m->tail_pool_capacity, 16, sizeof *m->tail_pool))
        return no_memory(error);
    di_lexer_of(m, NULL, 0);
    m->tails = malloc(sizeof *m->tails);
    m->rows = malloc(sizeof *m->rows);
    m->configs = malloc(2 * sizeof *m->configs);
    if (!m->tails || !m->rows || !m->configs) return no_memory(error);
    m->tails[0] = (tail){.config = NOT_MADE, .joined = NOT_MADE};
    m->tail_count = m->tail_capacity = 1;
    m->tail_table.used = 1; /* entries are indices; the first is not looked up */
    m->rows[0] = (row){0};
    m->row_count = m->row_capacity = m->row_table.used = 1;
    m->configs[CONFIG_REJECT] = m->configs[CONFIG_ENDED] = (config){.mask = NOT_MADE};
    m->config_count = m->config_capacity = m->config_table.used = 2;
    m->start = di_config_of_tail(m, di_tail_cons(m, m->grammar->root, TAIL_END));
    return di_matcher_check(m, error);
}

static di_status prepare(di_matcher *m, di_error *error) {
    di_status status = di_exprs_copy(&m->x, &m->grammar->x);
    if (status == DI_OK) status = di_symbols_copy(&m->s, &m->grammar->s);
    if (status != DI_OK) return no_memory(error);
    m->x.work_limit = m->grammar->limits.mask_work;
    return make_start(m, error);
}

static void release(di_matcher *m) {
    di_exprs_free(&m->x);
    di_symbols_free(&m->s);
    free(m->pair_pool);
    free(m->tail_pool);
    free(m->tails);
    free(m->tail_table.slots);
    free(m->lexers);
    free(m->lexer_table.slots);
    free(m->transitions);
    free(m->rows);
    free(m->row_table.slots);
    free(m->configs);
    free(m->config_table.slots);
    for (uint32_t i = 0; i < m->lexeme_mask_count; i++) {
        di_mask_free(&m->lexeme_masks[i].tokens);
        free(m->lexeme_masks[i].exits);
    }
    free(m->lexeme_masks);
    for (uint32_t i = 0; i < m->mask_count; i++) di_mask_free(&m->masks[i]);
    free(m->masks);
    free(m->walk_stack);
    free(m->seen_tails);
}

di_status di_matcher_new(di_grammar *grammar, const di_vocabulary *vocabulary, di_matcher **matcher, di_error *error) {
    *matcher = NULL;
    di_matcher *m = calloc(1, sizeof *m);
    if (!m) return no_memory(error);
    m->grammar = di_grammar_share(grammar);
    m->vocabulary = vocabulary;
    di_status status = prepare(m, error);
    if (status != DI_OK) {
        di_matcher_free(m);
        return status;
    }
    *matcher = m;
    return DI_OK;
}

void di_matcher_free(di_matcher *m) {
    if (!m) return;
    release(m);
    di_grammar_free(m->grammar);
    free(m);
}

static di_status check_state(const di_matcher *m, di_grammar_state state, di_error *error) {
    if (state > DI_GRAMMAR_REJECT && state < m->config_count) return DI_OK;
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, "state", "%u is no live state of this matcher", state);
}

static di_status check_memory(const di_matcher *m, di_error *error) {
    size_t used = di_matcher_memory(m), limit = m->grammar->limits.memory;
    if (used <= limit) return DI_OK;
    return di_fail(error, DI_ERR_LIMIT, "limit-grammar-memory",
                   "the states of this grammar take %zu bytes, more than %zu (--limit-grammar-memory)", used, limit);
}

static uint32_t *new_map(uint32_t count) {
    return malloc((count + 1) * sizeof(uint32_t));
}

static void clear_map(uint32_t *map, uint32_t count) {
    memset(map, 0xFF, (count + 1) * sizeof *map);
}

/* Parts of a matcher that states consist of. */
static size_t part_count(const di_matcher *m) {
    return (size_t)m->tail_count + m->tail_pool_count + m->pair_count + m->x.n.count + m->s.n.count;
}

/* Moves states ([count], DI_GRAMMAR_REJECT for those given up) to a fresh matcher. They may take half of the
 * memory: tables double when they grow, and there has to be room for what is computed for any of them. DI_ERR_LIMIT
 * with *heaviest < count: it cannot be moved, or they take more and it has the greatest part. */
static di_status move_states(const mover *v, const di_grammar_state *states, size_t count, di_matcher **fresh,
                             di_grammar_state *moved, size_t *heaviest, di_error *error) {
    const di_matcher *m = v->from;
    size_t most = 0;
    *heaviest = count;
    clear_map(v->import.symbol_map, m->s.n.count);
    clear_map(v->import.expr_map, m->x.n.count);
    clear_map(v->tail_map, m->tail_count);
    di_status status = di_matcher_new(m->grammar, m->vocabulary, fresh, error);
    if (status == DI_OK) status = check_memory(*fresh, error);
    if (status != DI_OK) return status;
    size_t least = di_matcher_memory(*fresh), room = least + (m->grammar->limits.memory - least) / 2;
    for (size_t i = 0; i < count; i++) {
        moved[i] = DI_GRAMMAR_REJECT;
        if (states[i] == DI_GRAMMAR_REJECT) continue;
        size_t before = part_count(*fresh);
        moved[i] = di_config_move(*fresh, v, states[i]);
        status = di_matcher_check(*fresh, error);
        size_t parts = part_count(*fresh) - before;
        if (status == DI_ERR_LIMIT || *heaviest == count || parts > most) {
            *heaviest = i;
            most = parts;
        }
        if (status != DI_OK) return status;
        if (di_matcher_memory(*fresh) > room)
            return di_fail(error, DI_ERR_LIMIT, "limit-grammar-memory", "the states in use take more than %zu bytes",
                           room);
    }
    return DI_OK;
}

/* Moves all but those that have to be given up, which become DI_GRAMMAR_REJECT in `states`. */
static di_status compact(mover *v, di_grammar_state *states, size_t count, di_matcher **fresh, di_grammar_state *moved,
                         di_error *error) {
    size_t heaviest;
    di_status status = move_states(v, states, count, fresh, moved, &heaviest, error);
    while (status == DI_ERR_LIMIT && heaviest < count) {
        states[heaviest] = DI_GRAMMAR_REJECT;
        di_matcher_free(*fresh);
        status = move_states(v, states, count, fresh, moved, &heaviest, error);
    }
    return status;
}

di_status di_matcher_compact(di_matcher *m, di_grammar_state *states, size_t count, di_error *error) {
    for (size_t i = 0; i < count; i++) {
        di_status known = states[i] == DI_GRAMMAR_REJECT ? DI_OK : check_state(m, states[i], error);
        if (known != DI_OK) return known;
    }
    di_matcher *fresh = NULL;
    di_grammar_state *moved = malloc((count + 1) * sizeof *moved), *kept = malloc((count + 1) * sizeof *kept);
    mover v = {.from = m,
               .import = {.from = &m->s,
                          .exprs = &m->x,
                          .shared_symbols = m->grammar->s.n.count,
                          .shared_exprs = m->grammar->x.n.count,
                          .symbol_map = new_map(m->s.n.count),
                          .expr_map = new_map(m->x.n.count)},
               .tail_map = new_map(m->tail_count)};
    bool memory = moved && kept && v.import.symbol_map && v.import.expr_map && v.tail_map;
    if (memory && count) memcpy(kept, states, count * sizeof *kept);
    di_status status = memory ? compact(&v, kept, count, &fresh, moved, error) : no_memory(error);
    if (status == DI_OK) {
        di_matcher old = *m;
        *m = *fresh;
        *fresh = old;
        if (count) memcpy(states, moved, count * sizeof *states);
    }
    di_matcher_free(fresh);
    free(moved);
    free(kept);
    free(v.import.symbol_map);
    free(v.import.expr_map);
    free(v.tail_map);
    return status;
}

size_t di_matcher_memory(const di_matcher *m) {
    return sizeof *m + di_exprs_memory(&m->x) + di_symbols_memory(&m->s) + m->pair_capacity * sizeof(pair) +
           m->tail_pool_capacity * sizeof(uint32_t) + m->tail_capacity * sizeof(tail) +
           m->lexer_capacity * sizeof(lexer) + m->transition_capacity * sizeof(uint32_t) +
           m->row_capacity * sizeof(row) + m->config_capacity * sizeof(config) +
           ((size_t)m->tail_table.size + m->lexer_table.size + m->row_table.size + m->config_table.size +
            m->walk_capacity + m->seen_capacity) *
               sizeof(uint32_t) +
           m->lexeme_mask_capacity * sizeof(lexeme_mask) + m->mask_capacity * sizeof(mask) + m->mask_bytes;
}

di_grammar_state di_matcher_start(const di_matcher *m) {
    return m->start;
}

static uint32_t step_bytes(di_matcher *m, uint32_t state, const uint8_t *bytes, size_t length) {
    for (size_t i = 0; i < length && state != CONFIG_REJECT; i++) {
        state = di_config_step(m, state, bytes[i]);
        if (i % 4096 == 4095) m->x.work = 0; /* the budget is one of a token, not of a long text */
    }
    return state;
}

di_status di_matcher_advance_bytes(di_matcher *m, di_grammar_state state, const uint8_t *bytes, size_t length,
                                   di_grammar_state *next, di_error *error) {
    *next = DI_GRAMMAR_REJECT;
    di_status status = check_state(m, state, error);
    if (status != DI_OK) return status;
    uint32_t reached = step_bytes(m, state, bytes, length);
    status = di_matcher_check(m, error);
    if (status == DI_OK) status = check_memory(m, error);
    if (status == DI_OK) *next = reached;
    return status;
}

di_status di_matcher_advance(di_matcher *m, di_grammar_state state, uint32_t token, di_grammar_state *next,
                             di_error *error) {
    *next = DI_GRAMMAR_REJECT;
    di_status status = check_state(m, state, error);
    if (status != DI_OK) return status;
    if (token >= m->vocabulary->rows)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "token", "token %u is not in 0..%u", token,
                       m->vocabulary->rows - 1);
    uint32_t length, reached = CONFIG_REJECT;
    const uint8_t *bytes = di_vocabulary_bytes(m->vocabulary, token, &length);
    if (length) reached = step_bytes(m, state, bytes, length);
    reached = di_config_join(m, reached, di_config_token(m, state, token));
    bool stop = m->vocabulary->stop[token / 64] >> token % 64 & 1;
    if (reached == CONFIG_REJECT && stop && di_config_complete(m, state)) reached = CONFIG_ENDED;
    status = di_matcher_check(m, error);
    if (status == DI_OK) status = check_memory(m, error);
    if (status == DI_OK) *next = reached;
    return status;
}

di_status di_matcher_mask(di_matcher *m, di_grammar_state state, uint64_t *bits, di_error *error) {
    di_status status = check_state(m, state, error);
    if (status != DI_OK) return status;
    const mask *made = di_config_mask(m, state);
    status = di_matcher_check(m, error);
    if (status == DI_OK) status = check_memory(m, error);
    if (status == DI_OK) di_mask_fill(m, made, bits);
    return status;
}

di_status di_matcher_complete(di_matcher *m, di_grammar_state state, bool *complete, di_error *error) {
    *complete = false;
    di_status status = check_state(m, state, error);
    if (status != DI_OK) return status;
    bool result = di_config_complete(m, state);
    status = di_matcher_check(m, error);
    if (status == DI_OK) *complete = result;
    return status;
}
