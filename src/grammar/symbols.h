/* symbols.h - the context-free part: hash-consed symbols over lexemes, with rules, counted loops, and the registers of
 * JSON objects and arrays whose continuations are made when they are reached.
 *
 * Owner: a grammar under construction or one matcher; single-threaded. Ids are never freed one by one. A failure is
 * noted in the expression store, whose rules of use apply here too.
 */
#ifndef DI_GRAMMAR_SYMBOLS_H
#define DI_GRAMMAR_SYMBOLS_H

#include "grammar/expr.h"
#include "grammar/grammar.h"

typedef uint32_t di_symbol;
enum { DI_SYMBOL_EMPTY = 0, DI_SYMBOL_EPSILON = 1 }; /* nothing, the empty text */

typedef enum di_symbol_kind {
    DI_SYM_EMPTY,
    DI_SYM_EPSILON,
    DI_SYM_LEXEME,   /* expression a, which is not nullable */
    DI_SYM_SEQUENCE, /* a, then b */
    DI_SYM_CHOICE,   /* pool[a .. a+b), sorted */
    DI_SYM_RULE,     /* rules[a] */
    DI_SYM_REPEAT,   /* low..high times a */
    DI_SYM_TOKEN,    /* the token a itself, whatever its text */
    DI_SYM_OBJECT,   /* the rest of an object behind an entry or the brace: register a */
    DI_SYM_ENTRIES,  /* the next entry of an object and its rest */
    DI_SYM_ARRAY,    /* the same of arrays */
    DI_SYM_ITEMS
} di_symbol_kind;

typedef di_node di_symbol_node;

typedef struct di_property { /* declared */
    di_expr key;             /* with quotes and colon */
    di_symbol value;         /* DI_SYMBOL_EMPTY: must not appear */
    bool required;
} di_property;

typedef struct di_cell { /* undeclared keys of one kind; cells of an object are disjoint */
    di_expr key;
    di_symbol value;
} di_cell;

enum { DI_MAX_CELLS = 32, DI_MAX_OBLIGATIONS = 16, DI_MAX_DECLARED = 4096 };

typedef struct di_object {
    uint32_t properties, property_count; /* in di_symbols.properties */
    uint32_t cells, cell_count;
    uint32_t obligations[DI_MAX_OBLIGATIONS], obligation_count; /* sets of cells of which one entry must be there */
    uint32_t minimum, maximum;                                  /* entries */
    bool any_order;
    bool open; /* can be finished from every state: nothing is counted */
} di_object;

typedef struct di_array_item { /* by position; the last one stands for all that follow */
    di_symbol plain, counted;  /* counted: also follows `contains` */
} di_array_item;

typedef struct di_array {
    uint32_t items, item_count;
    uint32_t minimum, maximum, contains_minimum, contains_maximum;
    uint32_t unique; /* values of a set of which each may come once; 0 = not unique. Then items hold one value each */
} di_array;

typedef struct di_register {
    uint32_t of;          /* object or array */
    uint32_t position;    /* next declared property in schema order; items so far */
    uint32_t count;       /* entries so far, where that matters; items that followed `contains` */
    uint32_t used;        /* cells used so far, where that matters */
    uint32_t started;     /* something was written */
    uint32_t seen, words; /* properties seen, in seen_pool */
} di_register;

typedef struct di_symbols {
    di_nodes n;
    di_symbol *rules;
    uint32_t rule_count, rule_capacity;
    di_object *objects;
    uint32_t object_count, object_capacity;
    di_property *properties;
    uint32_t property_count, property_capacity;
    di_cell *cells;
    uint32_t cell_count, cell_capacity;
    di_array *arrays;
    uint32_t array_count, array_capacity;
    di_array_item *items;
    uint32_t item_count, item_capacity;
    di_register *registers;
    uint32_t register_count, register_capacity;
    uint64_t *seen_pool;
    uint32_t seen_count, seen_capacity;
    di_table register_table;
    di_symbol space; /* optional white space */
} di_symbols;

/* A compiled source. */
struct di_grammar {
    di_exprs x;
    di_symbols s;
    di_symbol root;
    di_grammar_limits limits;
    uint32_t references; /* atomic */
};

di_status di_symbols_init(di_symbols *s, di_exprs *x, uint32_t limit);
di_status di_symbols_copy(di_symbols *to, const di_symbols *from);
void di_symbols_free(di_symbols *s);
size_t di_symbols_memory(const di_symbols *s);

di_symbol di_sym_lexeme(di_symbols *s, di_exprs *x, di_expr expr); /* nullable ones become optional */
di_symbol di_sym_text(di_symbols *s, di_exprs *x, const char *text);
di_symbol di_sym_sequence(di_symbols *s, di_exprs *x, di_symbol a, di_symbol b);
/* Lexemes among the members become one. */
di_symbol di_sym_choice(di_symbols *s, di_exprs *x, const di_symbol *list, uint32_t count);
di_symbol di_sym_choice2(di_symbols *s, di_exprs *x, di_symbol a, di_symbol b);
di_symbol di_sym_repeat(di_symbols *s, di_exprs *x, di_symbol a, uint32_t low, uint32_t high);
di_symbol di_sym_token(di_symbols *s, di_exprs *x, uint32_t token);
uint32_t di_sym_new_rule(di_symbols *s, di_exprs *x); /* its body is empty until rules[id] is set */
di_symbol di_sym_rule(di_symbols *s, di_exprs *x, uint32_t rule);
/* Objects and arrays whose parts are filled in: the whole value, braces included. */
di_symbol di_sym_object(di_symbols *s, di_exprs *x, uint32_t object);
di_symbol di_sym_array(di_symbols *s, di_exprs *x, uint32_t array);
/* What a symbol with a register stands for. */
di_symbol di_sym_unfold(di_symbols *s, di_exprs *x, di_symbol symbol);

/* Where a symbol of one matcher is made again in another one of the same grammar. The maps hold new ids by old ones,
 * UINT32_MAX = not known yet. */
typedef struct di_import {
    const di_symbols *from;
    const di_exprs *exprs;
    uint32_t shared_symbols, shared_exprs; /* ids below these are the same in both */
    uint32_t *symbol_map, *expr_map;       /* [from->n.count], [exprs->n.count] */
} di_import;
di_symbol di_sym_import(di_symbols *s, di_exprs *x, const di_import *import, di_symbol symbol);

/* Removes what cannot be completed, in rules, objects and arrays; returns the root again, DI_SYMBOL_EMPTY if no text
 * follows it. */
di_symbol di_sym_prune(di_symbols *s, di_exprs *x, di_symbol root);
/* After pruning: true if nothing but the minimum of its keys keeps this object from being closed, and there are
 * undeclared keys, of which each kind counts once. */
bool di_sym_short_of_keys(const di_symbols *s, uint32_t object);

#endif
