/* matcher.h - inside of a matcher; see grammar.h.
 *
 * tail    what is left of the text behind a lexeme: a symbol and the next tail, or several tails at once.
 * lexer   a set of (slot, expression): the lexemes that are being read, one state of a lazy automaton over bytes.
 * row     the tail of every slot, and what may happen before the next byte (the end, token symbols).
 * config  a lexer and a row: a state of the text. All are hash-consed, so equal futures found along different ways
 *         have the same id, and masks are remembered under it.
 */
#ifndef DI_GRAMMAR_MATCHER_H
#define DI_GRAMMAR_MATCHER_H

#include "grammar/symbols.h"
#include "grammar/vocabulary.h"

enum { MAX_BASES = 8, MAX_FAR = 32, MAX_FAR_STATES = 1500 };
enum { CONFIG_REJECT = 0, CONFIG_ENDED = 1, LEXER_DEAD = 0, TAIL_END = 0 };
#define NOT_MADE UINT32_MAX

typedef struct pair {
    uint32_t slot, value; /* value: expression of a lexer */
} pair;

typedef struct tail {
    uint32_t symbol, next; /* symbol NOT_MADE: pairs next.. of tail_pool, `count` tails */
    uint32_t count;
    uint32_t config; /* the config at its start, NOT_MADE */
    uint32_t joined; /* of a list: the same without two of one symbol, NOT_MADE */
} tail;

typedef struct lexer {
    uint32_t pairs, count; /* in pair_pool */
    uint32_t row;          /* of transitions [class_count], NOT_MADE; if `single`, what follows that byte, NOT_MADE */
    uint32_t mask;         /* lexeme mask, NOT_MADE */
    uint32_t asked, loops; /* kinds of characters (vocabulary.h) looked at, those that lead back to this state */
    bool accepts;          /* some expression may end here */
    bool single;           /* all bytes but those of class `only` are dead */
    uint8_t only;
} lexer;

typedef struct row {
    uint32_t tails, count;        /* in tail_pool, by slot */
    uint32_t tokens, token_count; /* pairs (token, tail) in pair_pool */
    bool complete;
} row;

typedef struct config {
    uint32_t lexer, row, mask;
    bool start; /* row.complete and its tokens hold */
} config;

/* Bases of masks that are no lexeme masks: bodies[base - BASE_BODY] of the vocabulary. */
enum { BASE_BODY = UINT32_MAX - 2 };

/* Tokens as a full bit set, or: those of a base mask, or the string-safe ones up to `safe` characters; without a list;
 * with another list. */
typedef struct mask {
    uint32_t base; /* lexeme mask made before, BASE_BODY.., NOT_MADE = none */
    uint32_t safe; /* 0 = none, DI_UNBOUNDED = all */
    uint32_t count, capacity;
    uint32_t *ids;
    uint32_t removed_count, removed_capacity;
    uint32_t *removed;
    uint64_t *bits; /* [words] instead of the lists, NULL */
} mask;

typedef struct exit_point { /* a lexeme may end at a node of a trie */
    uint32_t node, slot;
    uint8_t trie; /* EXIT_ALL .. */
} exit_point;

/* Tries of the vocabulary: all tokens, those that are not string-safe, what is behind the quote in bodies[0], [1]. */
enum { EXIT_ALL, EXIT_REST, EXIT_AFTER };

typedef struct lexeme_mask {
    mask tokens;
    exit_point *exits;
    uint32_t exit_count, exit_capacity;
} lexeme_mask;

struct di_matcher {
    di_grammar *grammar;
    const di_vocabulary *vocabulary;
    di_exprs x;
    di_symbols s;
    pair *pair_pool;
    uint32_t pair_count, pair_capacity;
    uint32_t *tail_pool;
    uint32_t tail_pool_count, tail_pool_capacity;
    tail *tails;
    uint32_t tail_count, tail_capacity;
    di_table tail_table;
    lexer *lexers;
    uint32_t lexer_count, lexer_capacity;
    di_table lexer_table;
    uint32_t *transitions;
    uint32_t transition_count, transition_capacity;
    row *rows;
    uint32_t row_count, row_capacity;
    di_table row_table;
    config *configs;
    uint32_t config_count, config_capacity;
    di_table config_table;
    lexeme_mask *lexeme_masks;
    uint32_t lexeme_mask_count, lexeme_mask_capacity;
    mask *masks;
    uint32_t mask_count, mask_capacity;
    size_t mask_bytes;
    uint32_t bases[MAX_BASES], base_count; /* lexeme masks with bit sets that others are near to */
    struct {                               /* patterns beside bounds of the length, see di_expr_farthest */
        di_expr language;
        uint32_t greatest;
        bool known;
    } far[MAX_FAR];
    uint32_t far_count, far_next;
    /* scratch */
    uint32_t *walk_stack; /* [walk_capacity] */
    uint32_t walk_capacity, walk_used;
    uint32_t *seen_tails; /* [seen_capacity] epoch by tail */
    uint32_t seen_capacity, epoch;
    uint32_t start;
};

/* ---- configs.c */
uint32_t di_tail_cons(di_matcher *m, di_symbol symbol, uint32_t next);
uint32_t di_config_of_tail(di_matcher *m, uint32_t tail);
uint32_t di_lexer_of(di_matcher *m, const pair *pairs, uint32_t count);
uint32_t di_lexer_next(di_matcher *m, uint32_t lexer, uint8_t byte);
/* The same where it is known already, NOT_MADE elsewhere. */
static inline uint32_t di_lexer_known(const di_matcher *m, uint32_t id, uint8_t byte) {
    const lexer *l = &m->lexers[id];
    uint8_t class = m->x.class_of[byte];
    if (l->single) return class == l->only ? l->row : LEXER_DEAD;
    return l->row == NOT_MADE ? NOT_MADE : m->transitions[l->row + class];
}
uint32_t di_config_step(di_matcher *m, uint32_t config, uint8_t byte);
bool di_config_complete(di_matcher *m, uint32_t config);
/* The config behind a token symbol, CONFIG_REJECT if the token is none here. */
uint32_t di_config_token(di_matcher *m, uint32_t config, uint32_t token);
/* Both at once. */
uint32_t di_config_join(di_matcher *m, uint32_t a, uint32_t b);
typedef struct mover { /* to a matcher of the same grammar that knows nothing yet */
    const di_matcher *from;
    di_import import;
    uint32_t *tail_map; /* [from->tail_count] new ids, NOT_MADE */
} mover;
uint32_t di_config_move(di_matcher *to, const mover *v, uint32_t config);
/* Turns a spent budget or lost memory into an error and makes the store usable again. */
di_status di_matcher_check(di_matcher *m, di_error *error);

/* ---- mask.c */
/* The remembered mask of the config, NULL after a failure. */
const mask *di_config_mask(di_matcher *m, uint32_t config);
void di_mask_fill(const di_matcher *m, const mask *from, uint64_t *bits);
void di_mask_free(mask *tokens);

#endif
