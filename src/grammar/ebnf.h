/* ebnf.h - grammars as text: GBNF, a subset of Lark, W3C and ISO EBNF.
 *
 * A parser of the dialect makes rules of parts; lowering folds what is regular into lexemes, takes left recursion out
 * and makes symbols. Semantics are scannerless: every way to read a text counts.
 */
#ifndef DI_GRAMMAR_EBNF_H
#define DI_GRAMMAR_EBNF_H

#include "base/arena.h"
#include "grammar/symbols.h"

typedef enum part_kind {
    PART_EXPR,   /* expr */
    PART_SEQ,    /* members in order; none = the empty text */
    PART_ALT,    /* one of the members */
    PART_REPEAT, /* low..high times the member */
    PART_RULE,   /* rule */
    PART_TOKEN,  /* the token `low` */
    PART_MINUS   /* first member without the second, both regular */
} part_kind;

typedef struct part {
    part_kind kind;
    di_expr expr;
    uint32_t low, high, rule;
    struct part *first, *next;
    size_t at; /* byte of the source */
} part;

typedef struct ebnf_rule {
    const char *name;
    size_t length, at;
    part *body;       /* NULL until it is defined */
    bool terminal;    /* Lark: of upper case */
    uint8_t regular;  /* 0 not asked, 1 being asked, 2 yes, 3 no */
    uint8_t nullable; /* 0 no, 1 yes; found by a fixpoint */
    di_expr expr;     /* of a regular one */
    di_symbol symbol; /* of another one: its rule */
} ebnf_rule;

typedef struct ebnf {
    di_exprs *x;
    di_symbols *s;
    di_arena *arena;
    const di_grammar_source *source;
    di_grammar_fault *fault;
    ebnf_rule *rules;
    uint32_t rule_count, rule_capacity;
    uint32_t start; /* UINT32_MAX = none */
    part *ignored;  /* Lark: what may stand between terminals, NULL */
} ebnf;

/* Root symbol in *root. False with *fault filled (pointer "line:column") or x->failed set. */
bool di_ebnf_compile(di_exprs *x, di_symbols *s, const di_grammar_source *source, di_symbol *root,
                     di_grammar_fault *fault);

/* ---- shared by the parsers (ebnf_parse.c, ebnf_lark.c) and the lowering (ebnf.c, ebnf_recursion.c) */
part *di_ebnf_refuse(ebnf *g, di_grammar_reason reason, size_t at, const char *format, ...) DI_PRINTF(4, 5);
bool di_ebnf_failed(const ebnf *g);
part *di_ebnf_part(ebnf *g, part_kind kind, size_t at);
part *di_ebnf_expr(ebnf *g, di_expr expr, size_t at);
part *di_ebnf_repeat(ebnf *g, part *member, uint32_t low, uint32_t high, size_t at);
uint32_t di_ebnf_rule(ebnf *g, const char *name, size_t length, size_t at); /* by name, made if new */
bool di_ebnf_parse(ebnf *g);
/* Rewrites rules that begin with themselves. */
bool di_ebnf_recursion(ebnf *g);
bool di_ebnf_nullable(const ebnf *g, const part *p);

#endif
