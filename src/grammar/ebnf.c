/* ebnf.c - rules to symbols; see ebnf.h. */
#include "grammar/ebnf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool di_ebnf_failed(const ebnf *g) {
    return g->x->failed != DI_OK || g->fault->reason != DI_REASON_NONE;
}

part *di_ebnf_refuse(ebnf *g, di_grammar_reason reason, size_t at, const char *format, ...) {
    if (di_ebnf_failed(g)) return NULL;
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at && i < g->source->length; i++) {
        column = g->source->text[i] == '\n' ? 1 : column + 1;
        line += g->source->text[i] == '\n';
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(g->fault->message, sizeof g->fault->message, format, arguments);
    va_end(arguments);
    snprintf(g->fault->pointer, sizeof g->fault->pointer, "%zu:%zu", line, column);
    g->fault->reason = reason;
    return NULL;
}

part *di_ebnf_part(ebnf *g, part_kind kind, size_t at) {
    part *p = di_arena_zalloc(g->arena, sizeof *p);
    if (!p || !di_exprs_spend(g->x, 1)) {
        if (!p) g->x->failed = DI_ERR_MEMORY;
        return NULL;
    }
    p->kind = kind;
    p->at = at;
    return p;
}

part *di_ebnf_expr(ebnf *g, di_expr expr, size_t at) {
    part *p = di_ebnf_part(g, PART_EXPR, at);
    if (p) p->expr = expr;
    return p;
}

part *di_ebnf_repeat(ebnf *g, part *member, uint32_t low, uint32_t high, size_t at) {
    part *p = member ? di_ebnf_part(g, PART_REPEAT, at) : NULL;
    if (!p) return NULL;
    p->first = member;
    p->low = low;
    p->high = high;
    return p;
}

uint32_t di_ebnf_rule(ebnf *g, const char *name, size_t length, size_t at) {
    for (uint32_t i = 0; i < g->rule_count; i++)
        if (g->rules[i].length == length && memcmp(g->rules[i].name, name, length) == 0) return i;
    di_exprs_spend(g->x, 1 + g->rule_count / 16);
    if (!di_grow(&g->rules, &g->rule_capacity, (uint64_t)g->rule_count + 1, sizeof *g->rules)) {
        g->x->failed = DI_ERR_MEMORY;
        return 0;
    }
    g->rules[g->rule_count] = (ebnf_rule){.name = name, .length = length, .at = at};
    return g->rule_count++;
}

/* ---------------------------------------------------------------------------------------------------- regular parts */

static bool rule_regular(ebnf *g, uint32_t rule);

/* The language of a part without recursion and tokens; false if it is no such part. */
static bool regular(ebnf *g, const part *p, di_expr *out) {
    di_expr one;
    if (!di_exprs_spend(g->x, 1)) return false;
    switch (p->kind) {
    case PART_EXPR:
        *out = p->expr;
        return true;
    case PART_TOKEN:
        return false;
    case PART_RULE:
        if (!rule_regular(g, p->rule)) return false;
        *out = g->rules[p->rule].expr;
        return true;
    case PART_REPEAT:
        if (!regular(g, p->first, &one)) return false;
        *out = di_expr_repeat(g->x, one, p->low, p->high);
        return true;
    case PART_MINUS: {
        di_expr without;
        if (!regular(g, p->first, &one) || !regular(g, p->first->next, &without)) {
            di_ebnf_refuse(g, DI_REASON_UNSUPPORTED, p->at, "a difference needs two regular operands");
            return false;
        }
        *out = di_expr_minus(g->x, one, without);
        return true;
    }
    default:
        break;
    }
    di_expr result = p->kind == PART_ALT ? DI_EXPR_EMPTY : DI_EXPR_EPSILON;
    for (const part *i = p->first; i; i = i->next) {
        if (!regular(g, i, &one)) return false;
        result = p->kind == PART_ALT ? di_expr_or2(g->x, result, one) : di_expr_cat(g->x, result, one);
    }
    *out = result;
    return true;
}

static bool rule_regular(ebnf *g, uint32_t rule) {
    if (g->rules[rule].regular == 0) {
        g->rules[rule].regular = 1;
        di_expr expr = DI_EXPR_EMPTY;
        bool yes = g->rules[rule].body && regular(g, g->rules[rule].body, &expr);
        g->rules[rule].expr = expr;
        g->rules[rule].regular = yes ? 2 : 3;
    }
    return g->rules[rule].regular == 2;
}

/* --------------------------------------------------------------------------------------------------------- symbols */

static di_symbol lower(ebnf *g, const part *p);

static di_symbol lower_sequence(ebnf *g, const part *p) {
    di_symbol result = DI_SYMBOL_EPSILON;
    di_expr run = DI_EXPR_EPSILON, one; /* neighbours that are regular become one lexeme */
    uint32_t count = 0, made = 0;
    for (const part *i = p->first; i; i = i->next) count++;
    di_symbol *list = di_arena_array(g->arena, count + 1, sizeof *list);
    if (!list) return g->x->failed = DI_ERR_MEMORY, DI_SYMBOL_EMPTY;
    for (const part *i = p->first; i && !di_ebnf_failed(g); i = i->next) {
        if (regular(g, i, &one)) {
            run = di_expr_cat(g->x, run, one);
            continue;
        }
        di_symbol head = di_sym_lexeme(g->s, g->x, run);
        list[made++] = di_sym_sequence(g->s, g->x, head, lower(g, i));
        run = DI_EXPR_EPSILON;
    }
    result = di_sym_lexeme(g->s, g->x, run);
    while (made) result = di_sym_sequence(g->s, g->x, list[--made], result);
    return result;
}

static di_symbol lower(ebnf *g, const part *p) {
    di_expr expr;
    if (di_ebnf_failed(g)) return DI_SYMBOL_EMPTY;
    if (regular(g, p, &expr)) return di_sym_lexeme(g->s, g->x, expr);
    switch (p->kind) {
    case PART_SEQ:
        return lower_sequence(g, p);
    case PART_ALT: {
        di_symbol result = DI_SYMBOL_EMPTY;
        for (const part *i = p->first; i; i = i->next) result = di_sym_choice2(g->s, g->x, result, lower(g, i));
        return result;
    }
    case PART_REPEAT:
        return di_sym_repeat(g->s, g->x, lower(g, p->first), p->low, p->high);
    case PART_TOKEN:
        return di_sym_token(g->s, g->x, p->low);
    case PART_RULE:
        return g->rules[p->rule].symbol;
    default:
        return DI_SYMBOL_EMPTY;
    }
}

static bool lower_all(ebnf *g, di_symbol *root) {
    for (uint32_t i = 0; i < g->rule_count && !di_ebnf_failed(g); i++) {
        if (!g->rules[i].body) {
            di_ebnf_refuse(g, DI_REASON_SYNTAX, g->rules[i].at, "there is no rule \"%.*s\"",
                           (int)(g->rules[i].length > 60 ? 60 : g->rules[i].length), g->rules[i].name);
            return false;
        }
    }
    if (!di_ebnf_recursion(g)) return false;
    for (uint32_t i = 0; i < g->rule_count; i++) g->rules[i].regular = 0;
    for (uint32_t i = 0; i < g->rule_count && !di_ebnf_failed(g); i++)
        if (!rule_regular(g, i)) g->rules[i].symbol = di_sym_rule(g->s, g->x, di_sym_new_rule(g->s, g->x));
    for (uint32_t i = 0; i < g->rule_count && !di_ebnf_failed(g); i++) {
        if (g->rules[i].regular == 2) continue;
        di_symbol body = lower(g, g->rules[i].body);
        if (g->x->failed == DI_OK) g->s->rules[g->s->n.nodes[g->rules[i].symbol].a] = body;
    }
    if (di_ebnf_failed(g)) return false;
    const ebnf_rule *start = &g->rules[g->start];
    di_symbol made = start->regular == 2 ? di_sym_lexeme(g->s, g->x, start->expr) : start->symbol;
    *root = di_sym_prune(g->s, g->x, made);
    if (g->x->failed == DI_OK && *root == DI_SYMBOL_EMPTY)
        di_ebnf_refuse(g, DI_REASON_UNSATISFIABLE, start->at, "no text follows this grammar");
    return !di_ebnf_failed(g);
}

bool di_ebnf_compile(di_exprs *x, di_symbols *s, const di_grammar_source *source, di_symbol *root,
                     di_grammar_fault *fault) {
    ebnf g = {.x = x, .s = s, .source = source, .fault = fault, .start = UINT32_MAX, .arena = di_arena_new(0)};
    if (!g.arena) x->failed = DI_ERR_MEMORY;
    size_t bad = di_utf8_validate(source->text, source->length);
    if (bad != source->length) di_ebnf_refuse(&g, DI_REASON_SYNTAX, bad, "the grammar is not valid UTF-8");
    bool ok = !di_ebnf_failed(&g) && di_ebnf_parse(&g) && lower_all(&g, root);
    free(g.rules);
    di_arena_free(g.arena);
    return ok && !di_ebnf_failed(&g);
}
