/* ebnf_recursion.c - left recursion taken out of rules; see ebnf.h.
 *
 * The rules of a cycle of first parts satisfy A = A M + B in which A is the row of rules, M what follows a rule at the
 * front of another, and B what begins otherwise. So A = B M*, and M* = 1 + M M* gives one new rule for every entry,
 * none of which begins with itself.
 */
#include <stdlib.h>
#include <string.h>

#include "grammar/ebnf.h"

enum { MAX_CYCLE = 12 };

bool di_ebnf_nullable(const ebnf *g, const part *p) {
    switch (p->kind) {
    case PART_EXPR:
        return di_expr_nullable(g->x, p->expr);
    case PART_RULE:
        return g->rules[p->rule].nullable != 0;
    case PART_TOKEN:
        return false;
    case PART_REPEAT:
        return p->low == 0 || di_ebnf_nullable(g, p->first);
    case PART_MINUS:
        return di_ebnf_nullable(g, p->first) && !di_ebnf_nullable(g, p->first->next);
    case PART_ALT:
        for (const part *i = p->first; i; i = i->next)
            if (di_ebnf_nullable(g, i)) return true;
        return false;
    default:
        break;
    }
    for (const part *i = p->first; i; i = i->next)
        if (!di_ebnf_nullable(g, i)) return false;
    return true;
}

static void find_nullable(ebnf *g) {
    for (bool changed = true; changed;) {
        changed = false;
        for (uint32_t i = 0; i < g->rule_count; i++) {
            if (g->rules[i].nullable || !di_ebnf_nullable(g, g->rules[i].body)) continue;
            g->rules[i].nullable = 1;
            changed = true;
        }
        if (!di_exprs_spend(g->x, g->rule_count)) return;
    }
}

/* Rules that may come first in a part. */
typedef struct firsts {
    uint32_t *rules;
    bool *grows; /* something follows it there: to go round such an edge makes the rest longer */
    uint32_t count, capacity, grows_capacity;
} firsts;

static void add_first(ebnf *g, firsts *f, uint32_t rule, bool grows) {
    for (uint32_t i = 0; i < f->count; i++)
        if (f->rules[i] == rule) {
            f->grows[i] = f->grows[i] || grows;
            return;
        }
    if (!di_grow(&f->rules, &f->capacity, (uint64_t)f->count + 1, sizeof *f->rules) ||
        !di_grow(&f->grows, &f->grows_capacity, (uint64_t)f->count + 1, sizeof *f->grows)) {
        g->x->failed = DI_ERR_MEMORY;
        return;
    }
    f->rules[f->count] = rule;
    f->grows[f->count++] = grows;
}

static void collect(ebnf *g, const part *p, bool followed, firsts *out) {
    if (!di_exprs_spend(g->x, 1)) return;
    switch (p->kind) {
    case PART_RULE:
        add_first(g, out, p->rule, followed);
        break;
    case PART_REPEAT:
        if (p->high > 0) collect(g, p->first, followed || p->high > 1, out);
        break;
    case PART_ALT:
        for (const part *i = p->first; i; i = i->next) collect(g, i, followed, out);
        break;
    case PART_SEQ:
        for (const part *i = p->first; i; i = i->next) {
            collect(g, i, followed || i->next, out);
            if (!di_ebnf_nullable(g, i)) break;
        }
        break;
    default: /* operands of a difference are regular */
        break;
    }
}

/* reach[a * n + b]: b can come first in a. */
static bool *reachability(ebnf *g, const firsts *all, uint32_t n) {
    bool *reach = calloc((size_t)n * n + 1, 1);
    uint32_t *stack = malloc((n + 1) * sizeof *stack);
    if (!reach || !stack) g->x->failed = DI_ERR_MEMORY;
    for (uint32_t a = 0; a < n && g->x->failed == DI_OK; a++) {
        uint32_t depth = 0;
        bool *row = reach + (size_t)a * n;
        stack[depth++] = a;
        while (depth) {
            const firsts *f = &all[stack[--depth]];
            for (uint32_t i = 0; i < f->count; i++) {
                if (row[f->rules[i]]) continue;
                row[f->rules[i]] = true;
                stack[depth++] = f->rules[i];
            }
            if (!di_exprs_spend(g->x, 1 + f->count)) break;
        }
    }
    free(stack);
    return reach;
}

typedef struct cycle {
    uint32_t rules[MAX_CYCLE], count;
    part *begins[MAX_CYCLE];            /* B: alternatives that begin otherwise */
    part *follow[MAX_CYCLE][MAX_CYCLE]; /* M: what follows [a] at the front of [b] */
    uint32_t stars[MAX_CYCLE][MAX_CYCLE];
} cycle;

static int index_in(const cycle *c, uint32_t rule) {
    for (uint32_t i = 0; i < c->count; i++)
        if (c->rules[i] == rule) return (int)i;
    return -1;
}

static bool begins_inside(ebnf *g, const cycle *c, const part *p) {
    firsts f = {0};
    bool found = false;
    collect(g, p, false, &f);
    for (uint32_t i = 0; i < f.count; i++) found = found || index_in(c, f.rules[i]) >= 0;
    free(f.rules);
    free(f.grows);
    return found;
}

static part *copy_part(ebnf *g, const part *p) {
    part *out = di_ebnf_part(g, p->kind, p->at);
    if (!out) return NULL;
    *out = *p;
    out->next = NULL;
    return out;
}

static part *pair_of(ebnf *g, part *a, part *b, part_kind kind) {
    if (!a || !b) return a ? a : b;
    part *p = di_ebnf_part(g, kind, a->at);
    if (!p) return NULL;
    p->first = copy_part(g, a);
    if (p->first) p->first->next = copy_part(g, b);
    return p;
}

/* Sorts the alternatives of a part of rule `to`, each followed by `rest` (may be NULL), into B and M. */
static void sort_out(ebnf *g, cycle *c, uint32_t to, const part *p, part *rest) {
    if (!di_exprs_spend(g->x, 1) || di_ebnf_failed(g)) return;
    int own = p->kind == PART_RULE ? index_in(c, p->rule) : -1;
    if (own >= 0) {
        part *follow = rest ? rest : di_ebnf_part(g, PART_SEQ, p->at);
        c->follow[own][to] = pair_of(g, c->follow[own][to], follow, PART_ALT);
    } else if (!begins_inside(g, c, p)) {
        if (rest && di_ebnf_nullable(g, p) && begins_inside(g, c, rest)) {
            di_ebnf_refuse(g, DI_REASON_UNSUPPORTED, p->at, "left recursion behind a part that may be empty");
            return;
        }
        c->begins[to] = pair_of(g, c->begins[to], pair_of(g, copy_part(g, p), rest, PART_SEQ), PART_ALT);
    } else if (p->kind == PART_ALT) {
        for (const part *i = p->first; i; i = i->next) sort_out(g, c, to, i, rest);
    } else if (p->kind == PART_REPEAT && p->high == 1) {
        part *empty = rest ? rest : di_ebnf_part(g, PART_SEQ, p->at);
        if (p->low == 0 && empty) sort_out(g, c, to, empty, NULL);
        sort_out(g, c, to, p->first, rest);
    } else if (p->kind == PART_SEQ && p->first) {
        part *others = di_ebnf_part(g, PART_SEQ, p->at);
        if (!others) return;
        others->first = p->first->next;
        sort_out(g, c, to, p->first, others->first ? pair_of(g, others, rest, PART_SEQ) : rest);
    } else {
        di_ebnf_refuse(g, DI_REASON_UNSUPPORTED, p->at, "left recursion inside a repetition");
    }
}

static part *call(ebnf *g, uint32_t rule, size_t at) {
    part *p = di_ebnf_part(g, PART_RULE, at);
    if (p) p->rule = rule;
    return p;
}

static part *nothing(ebnf *g, size_t at) { /* no text at all */
    return di_ebnf_expr(g, DI_EXPR_EMPTY, at);
}

static void rewrite(ebnf *g, cycle *c) {
    for (uint32_t i = 0; i < c->count; i++) sort_out(g, c, i, g->rules[c->rules[i]].body, NULL);
    for (uint32_t a = 0; a < c->count && !di_ebnf_failed(g); a++)
        for (uint32_t b = 0; b < c->count; b++) {
            static const char name[] = "left recursion";
            if (!di_grow(&g->rules, &g->rule_capacity, (uint64_t)g->rule_count + 1, sizeof *g->rules)) {
                g->x->failed = DI_ERR_MEMORY;
                return;
            }
            size_t at = g->rules[c->rules[a]].at;
            g->rules[g->rule_count] = (ebnf_rule){.name = name, .length = sizeof name - 1, .at = at};
            c->stars[a][b] = g->rule_count++;
        }
    for (uint32_t a = 0; a < c->count && !di_ebnf_failed(g); a++)
        for (uint32_t b = 0; b < c->count; b++) {
            size_t at = g->rules[c->rules[a]].at;
            part *body = a == b ? di_ebnf_part(g, PART_SEQ, at) : NULL;
            for (uint32_t l = 0; l < c->count; l++) {
                if (!c->follow[a][l]) continue;
                part *step = pair_of(g, c->follow[a][l], call(g, c->stars[l][b], at), PART_SEQ);
                body = pair_of(g, body, step, PART_ALT);
            }
            g->rules[c->stars[a][b]].body = body ? body : nothing(g, at);
        }
    for (uint32_t i = 0; i < c->count && !di_ebnf_failed(g); i++) {
        size_t at = g->rules[c->rules[i]].at;
        part *body = NULL;
        for (uint32_t j = 0; j < c->count; j++) {
            if (!c->begins[j]) continue;
            body = pair_of(g, body, pair_of(g, c->begins[j], call(g, c->stars[j][i], at), PART_SEQ), PART_ALT);
        }
        g->rules[c->rules[i]].body = body ? body : nothing(g, at);
    }
}

static firsts *all_firsts(ebnf *g, uint32_t n) {
    firsts *all = calloc(n + 1, sizeof *all);
    if (!all) g->x->failed = DI_ERR_MEMORY;
    for (uint32_t i = 0; i < n && all; i++) collect(g, g->rules[i].body, false, &all[i]);
    return all;
}

static void free_firsts(firsts *all, uint32_t n) {
    for (uint32_t i = 0; all && i < n; i++) {
        free(all[i].rules);
        free(all[i].grows);
    }
    free(all);
}

/* After rewriting: going round first parts must not make the rest of the text longer. */
static void check_growth(ebnf *g) {
    uint32_t n = g->rule_count;
    find_nullable(g);
    firsts *all = all_firsts(g, n);
    bool *reach = all && !di_ebnf_failed(g) ? reachability(g, all, n) : NULL;
    for (uint32_t a = 0; reach && a < n && !di_ebnf_failed(g); a++)
        for (uint32_t i = 0; i < all[a].count; i++)
            if (all[a].grows[i] && (all[a].rules[i] == a || reach[(size_t)all[a].rules[i] * n + a]))
                di_ebnf_refuse(g, DI_REASON_UNSUPPORTED, g->rules[a].at,
                               "this rule is left recursive behind a part that may be empty");
    free(reach);
    free_firsts(all, n);
}

bool di_ebnf_recursion(ebnf *g) {
    uint32_t n = g->rule_count;
    if (n > 4096) return di_ebnf_refuse(g, DI_REASON_TOO_COMPLEX, 0, "more than 4096 rules"), false;
    find_nullable(g);
    firsts *all = all_firsts(g, n);
    bool *reach = all && !di_ebnf_failed(g) ? reachability(g, all, n) : NULL, any = false;
    bool *done = calloc(n + 1, 1);
    for (uint32_t a = 0; reach && done && a < n && !di_ebnf_failed(g); a++) {
        if (done[a] || !reach[(size_t)a * n + a]) continue;
        cycle *c = di_arena_zalloc(g->arena, sizeof *c);
        if (!c) break;
        any = true;
        for (uint32_t b = 0; b < n; b++) {
            if (b != a && !(reach[(size_t)a * n + b] && reach[(size_t)b * n + a])) continue;
            if (c->count == MAX_CYCLE) {
                di_ebnf_refuse(g, DI_REASON_TOO_COMPLEX, g->rules[a].at, "more than %d rules begin with each other",
                               MAX_CYCLE);
                break;
            }
            c->rules[c->count++] = b;
            done[b] = true;
        }
        if (!di_ebnf_failed(g)) rewrite(g, c);
    }
    free(done);
    free(reach);
    free_firsts(all, n);
    if (any && !di_ebnf_failed(g)) check_growth(g);
    return !di_ebnf_failed(g);
}
