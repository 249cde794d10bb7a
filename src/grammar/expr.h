/* expr.h - regular languages over bytes as a hash-consed graph, and their derivatives.
 *
 * Owner: a grammar under construction or one matcher; single-threaded. An expression is an id, equal expressions have
 * equal ids, ids are never freed one by one. `failed` stays set after memory or a budget ran out; results are then
 * without meaning and nothing is remembered, so that the store can be used again once the budget is reset.
 */
#ifndef DI_GRAMMAR_EXPR_H
#define DI_GRAMMAR_EXPR_H

#include "grammar/nodes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint32_t di_expr;
enum { DI_EXPR_EMPTY = 0, DI_EXPR_EPSILON = 1, DI_EXPR_ALL = 2 }; /* nothing, the empty text, every text */
#define DI_UNBOUNDED UINT32_MAX

typedef enum di_expr_kind {
    DI_KIND_EMPTY,
    DI_KIND_EPSILON,
    DI_KIND_SET,     /* one byte of sets[a] */
    DI_KIND_CAT,     /* a, then b; a is no CAT */
    DI_KIND_OR,      /* pool[a .. a+b), sorted */
    DI_KIND_AND,     /* the same */
    DI_KIND_NOT,     /* every text but a */
    DI_KIND_REPEAT,  /* low..high times a */
    DI_KIND_MULTIPLE /* the rest of a decimal number that is a multiple of multiples[a]: b = residue, low = phase */
} di_expr_kind;

/* boolean: contains AND, NOT or MULTIPLE, so it may be empty without being DI_EXPR_EMPTY */
typedef di_node di_expr_node;

typedef struct di_byte_set {
    uint64_t bits[4];
} di_byte_set;

static inline bool di_set_has(const di_byte_set *set, uint8_t byte) {
    return set->bits[byte >> 6] >> (byte & 63) & 1;
}
enum { DI_EXPR_DEPTH = 4000 }; /* of work on expressions inside expressions: bounds the stack */

typedef struct di_multiple { /* of modulus / 10^scale */
    uint32_t modulus, scale;
} di_multiple;

typedef struct di_lengths { /* of an expression and the rest of a character: pair = expression << 32 | rest */
    uint64_t pair;
    uint32_t least, greatest; /* greatest: of di_expr_bounds, whose pairs have no rest */
} di_lengths;

typedef struct di_derivative {
    uint32_t key; /* (expr << 8 | byte) + 1, 0 = free */
    di_expr value;
} di_derivative;

typedef struct di_exprs {
    di_nodes n;
    di_byte_set *sets;
    uint32_t set_count, set_capacity;
    di_multiple *multiples;
    uint32_t multiple_count, multiple_capacity;
    di_table set_table;
    di_derivative *memo; /* [memo_size] open addressing */
    uint32_t memo_size, memo_used;
    uint8_t *alive; /* [alive_count] 0 = not known, 1 = not empty, 2 = empty */
    uint32_t alive_count;
    di_lengths *lengths;
    uint32_t length_capacity;
    di_table length_table;
    uint8_t class_of[256]; /* byte classes: bytes that no set tells apart */
    uint8_t class_byte[256];
    uint32_t class_count, class_sets; /* class_sets: sets seen by the last di_expr_classes */
    bool class_digits;
    di_expr any_point[3]; /* of each encoding, 0 = not made yet */
    uint32_t depth;
    uint64_t work, work_limit;
    di_status failed; /* DI_OK, DI_ERR_MEMORY, DI_ERR_LIMIT */
} di_exprs;

di_status di_exprs_init(di_exprs *x, uint32_t node_limit, uint64_t work_limit);
di_status di_exprs_copy(di_exprs *to, const di_exprs *from); /* without memory of derivatives */
void di_exprs_free(di_exprs *x);
/* Frees what was only remembered. */
void di_exprs_forget(di_exprs *x);
size_t di_exprs_memory(const di_exprs *x);
/* Counts `steps`; false once the budget is spent. */
bool di_exprs_spend(di_exprs *x, uint64_t steps);

/* The same expression in another store, which holds those below `shared` under the same ids. map: [from->n.count], new
 * ids, UINT32_MAX = not known yet. */
di_expr di_expr_import(di_exprs *to, const di_exprs *from, di_expr a, uint32_t shared, uint32_t *map);

di_expr di_expr_set(di_exprs *x, const di_byte_set *set);
di_expr di_expr_range(di_exprs *x, uint8_t low, uint8_t high);
di_expr di_expr_byte(di_exprs *x, uint8_t byte);
di_expr di_expr_cat(di_exprs *x, di_expr a, di_expr b);
di_expr di_expr_or(di_exprs *x, const di_expr *list, uint32_t count);
di_expr di_expr_and(di_exprs *x, const di_expr *list, uint32_t count);
di_expr di_expr_or2(di_exprs *x, di_expr a, di_expr b);
di_expr di_expr_and2(di_exprs *x, di_expr a, di_expr b);
di_expr di_expr_not(di_exprs *x, di_expr a);
di_expr di_expr_minus(di_exprs *x, di_expr a, di_expr b); /* a without b */
di_expr di_expr_repeat(di_exprs *x, di_expr a, uint32_t low, uint32_t high);
di_expr di_expr_optional(di_exprs *x, di_expr a);
di_expr di_expr_star(di_exprs *x, di_expr a);
di_expr di_expr_nonempty(di_exprs *x, di_expr a); /* without the empty text */
di_expr di_expr_literal(di_exprs *x, const char *bytes, size_t length);
/* Decimal digits with an optional fraction (no sign) whose value is a multiple of modulus / 10^scale. */
di_expr di_expr_multiple(di_exprs *x, uint32_t modulus, uint32_t scale);

bool di_expr_nullable(const di_exprs *x, di_expr a);
di_expr di_expr_derive(di_exprs *x, di_expr a, uint8_t byte);
/* Adds the bytes that a text of `a` may begin with, and maybe some more: the derivatives of all others are empty. */
void di_expr_first(const di_exprs *x, di_expr a, di_byte_set *bytes);
/* False only if no text is in the language. */
bool di_expr_alive(di_exprs *x, di_expr a);
typedef struct di_counted { /* a language of `low` to `high` more characters behind the rest of one */
    di_expr language, left, any;
    uint32_t low, high;
} di_counted;
/* Takes an intersection with bounds of the length apart; false if `a` is none. */
bool di_expr_counted(di_exprs *x, di_expr a, di_counted *out);
/* The greatest number of characters (of `any`) that any state of the language needs to be completed. False if it has
 * more than `limit` states. */
bool di_expr_farthest(di_exprs *x, di_expr language, di_expr any, uint32_t limit, uint32_t *greatest);
typedef struct di_bounds {
    uint32_t least;    /* bytes of the shortest text */
    uint32_t greatest; /* no state of the language needs more bytes to be completed */
} di_bounds;
/* False for languages with complements or intersections: their structure does not tell. */
bool di_expr_bounds(di_exprs *x, di_expr a, di_bounds *out);
bool di_expr_matches(di_exprs *x, di_expr a, const char *bytes, size_t length);
/* Brings class_of and class_byte up to date with all sets. */
void di_expr_classes(di_exprs *x);

/* Sets of code points as sorted, disjoint ranges. */
typedef struct di_points {
    uint32_t (*ranges)[2];
    uint32_t count, capacity;
    bool failed;
} di_points;
void di_points_add(di_points *set, uint32_t low, uint32_t high);
void di_points_sort(di_points *set); /* after the last add */
void di_points_invert(di_points *set);
bool di_points_has(const di_points *set, uint32_t point);
void di_points_free(di_points *set);
/* How code points become bytes. */
typedef enum di_encoding {
    DI_ENCODING_UTF8,
    DI_ENCODING_JSON,        /* in a JSON string: printable ASCII as it is, everything else also as an escape */
    DI_ENCODING_JSON_GENERAL /* in a JSON string: every spelling */
} di_encoding;
/* One code point of the set; surrogates are never in it. */
di_expr di_expr_points(di_exprs *x, const di_points *set, di_encoding encoding);
di_expr di_expr_any_point(di_exprs *x, di_encoding encoding);
di_expr di_expr_text(di_exprs *x, const char *utf8, size_t length, di_encoding encoding);

#endif
