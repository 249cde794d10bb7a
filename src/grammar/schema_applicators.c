/* schema_applicators.c - keywords that join schemas, and references; see schema_keywords.h. */
#include "grammar/schema_keywords.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ applicators */

static bool is_list(const keyword *k) {
    if (k->at->type == DI_JSON_ARRAY && k->at->first) return true;
    return di_keyword_syntax(k, "an array with something in it");
}

static void append(const keyword *k, const form *f) {
    if (f && !di_schema_failed(k->c)) di_form_append(k->c, k->out, f);
}

/* All of the list (with the sign), or one of the list. */
static const form *fold(const keyword *k, bool positive, bool product) {
    form *all = di_schema_alloc(k->c, sizeof *all);
    if (!all) return NULL;
    if (product) di_form_add(k->c, all, TYPE_ALL, NULL, 0);
    for (const di_json *i = k->at->first; i; i = i->next) {
        const form *one = di_node_form(k->c, i, di_keyword_sign(positive));
        if (!one) return NULL;
        if (product) {
            all = di_form_product(k->c, all, one);
            if (all && all->count > 8) di_form_prune(k->c, all);
        } else {
            di_form_append(k->c, all, one);
        }
        if (!all || di_schema_failed(k->c)) return NULL;
    }
    return all;
}

static void kw_all_of(const keyword *k) {
    if (is_list(k)) append(k, fold(k, k->positive, k->positive));
}

/* With unevaluated* beside it every set of branches that hold counts for itself. */
static void any_subsets(const keyword *k) {
    uint32_t n = k->at->count;
    if (n > 4) {
        di_keyword_unsupported(k, "unevaluated* beside anyOf with more than four branches cannot be enforced");
        return;
    }
    for (uint32_t subset = 1; subset < 1u << n; subset++) {
        form *all = di_schema_alloc(k->c, sizeof *all);
        uint32_t i = 0;
        if (!all) return;
        di_form_add(k->c, all, TYPE_ALL, NULL, 0);
        for (const di_json *b = k->at->first; b && all; b = b->next, i++) {
            if (!(subset >> i & 1)) continue;
            const form *one = di_node_form(k->c, b, MEANS_SCHEMA);
            all = one ? di_form_product(k->c, all, one) : NULL;
        }
        append(k, all);
    }
}

static void kw_any_of(const keyword *k) {
    bool exact = k->positive && k->c->unevaluated;
    if (!is_list(k)) return;
    if (exact)
        any_subsets(k);
    else
        append(k, fold(k, k->positive, !k->positive));
}

static bool disjoint(compiler *c, const form *a, const form *b) {
    form *both = di_form_product(c, a, b);
    if (both) di_form_prune(c, both);
    return both && both->count == 0;
}

/* The opposite of an opposite evaluates keys that `not` must not evaluate. */
static bool evaluates(const keyword *k) {
    return !k->positive && k->c->unevaluated &&
           !di_keyword_unsupported(k, "the opposite of this keyword in a schema with unevaluated* cannot be enforced");
}

static void kw_one_of(const keyword *k) {
    compiler *c = k->c;
    if (!is_list(k) || evaluates(k)) return;
    uint32_t n = k->at->count, i = 0;
    const di_json **branches = di_schema_alloc(c, (n + 1) * sizeof *branches);
    const form **forms = di_schema_alloc(c, (n + 1) * sizeof *forms);
    if (!branches || !forms) return;
    for (const di_json *b = k->at->first; b; b = b->next, i++) {
        branches[i] = b;
        forms[i] = di_node_form(c, b, MEANS_SCHEMA);
        if (!forms[i]) return;
    }
    if (!k->positive) { /* none, or two at least */
        append(k, fold(k, false, true));
        for (i = 0; i < n; i++)
            for (uint32_t j = i + 1; j < n && !di_schema_failed(c); j++)
                append(k, di_form_product(c, forms[i], forms[j]));
        return;
    }
    bool *overlap = di_schema_alloc(c, (size_t)n * n + 1);
    if (!overlap) return;
    for (i = 0; i < n; i++)
        for (uint32_t j = i + 1; j < n && !di_schema_failed(c); j++)
            overlap[(size_t)i * n + j] = overlap[(size_t)j * n + i] = !disjoint(c, forms[i], forms[j]);
    for (i = 0; i < n && !di_schema_failed(c); i++) {
        const form *one = forms[i];
        for (uint32_t j = 0; j < n && !di_schema_failed(c); j++) {
            if (i == j || !overlap[(size_t)i * n + j]) continue;
            const form *other = di_node_form(c, branches[j], MEANS_NOT_SCHEMA);
            form *without = other ? di_form_product(c, one, other) : NULL;
            if (without) di_form_prune(c, without);
            one = without;
            if (!one) return;
        }
        append(k, one);
    }
}

static void kw_not(const keyword *k) {
    if (evaluates(k)) return;
    append(k, di_node_form(k->c, k->at, di_keyword_sign(!k->positive)));
}

static void kw_if(const keyword *k) {
    if (evaluates(k)) return;
    const di_json *then = di_json_get(k->node, "then"), *otherwise = di_json_get(k->node, "else");
    if (!then && !otherwise && !k->c->unevaluated) {
        if (k->positive) di_form_add(k->c, k->out, TYPE_ALL, NULL, 0);
        return;
    }
    for (int branch = 0; branch < 2; branch++) {
        const di_json *next = branch ? otherwise : then;
        if (!next && !k->positive) continue;
        const form *condition = di_node_form(k->c, k->at, di_keyword_sign(branch == 0));
        if (condition && next) {
            const form *f = di_node_form(k->c, next, di_keyword_sign(k->positive));
            condition = f ? di_form_product(k->c, condition, f) : NULL;
        }
        append(k, condition);
    }
}

static void kw_ref(const keyword *k) {
    const di_json *target = di_schema_resolve(k->c, k->node, k->at);
    if (target) append(k, di_node_form(k->c, target, di_keyword_sign(k->positive)));
}

/* Where a dynamic anchor is meant, the outermost of that name counts; with one of that name it is the target itself. */
static void kw_dynamic_ref(const keyword *k) {
    compiler *c = k->c;
    const di_json *target = di_schema_resolve(c, k->node, k->at);
    if (!target) return;
    const anchor *own = NULL;
    uint32_t same = 0;
    const char *hash = strchr(k->at->text, '#');
    for (uint32_t i = 0; hash && i < c->anchor_count; i++)
        if (c->anchors[i].dynamic && c->anchors[i].node == target && strlen(hash + 1) == c->anchors[i].length &&
            memcmp(hash + 1, c->anchors[i].name, c->anchors[i].length) == 0)
            own = &c->anchors[i];
    for (uint32_t i = 0; own && i < c->anchor_count; i++)
        same += c->anchors[i].dynamic && c->anchors[i].length == own->length &&
                memcmp(c->anchors[i].name, own->name, own->length) == 0;
    if (own && same > 1)
        di_keyword_unsupported(k, "this dynamic reference has more than one possible target");
    else
        append(k, di_node_form(c, target, di_keyword_sign(k->positive)));
}

static void kw_recursive_ref(const keyword *k) {
    di_keyword_unsupported(k, "\"$recursiveRef\" is not supported; \"$ref\": \"#\" is");
}

static void kw_draft3(const keyword *k) {
    di_keyword_unsupported(k, "this keyword belongs to draft 3");
}

/* ------------------------------------------------------------------------------------------------------------- table
 */

const di_keyword_row di_applicator_keywords[] = {
    {"allOf", kw_all_of, 0, 9999},
    {"anyOf", kw_any_of, 0, 9999},
    {"oneOf", kw_one_of, 0, 9999},
    {"not", kw_not, 0, 9999},
    {"if", kw_if, DI_DRAFT_7, 9999},
    {"$ref", kw_ref, 0, 9999},
    {"$dynamicRef", kw_dynamic_ref, DI_DRAFT_2020, 9999},
    {"$recursiveRef", kw_recursive_ref, DI_DRAFT_2019, DI_DRAFT_2019},
    {"extends", kw_draft3, 0, DI_DRAFT_4},
    {"disallow", kw_draft3, 0, DI_DRAFT_4},
    {"divisibleBy", kw_draft3, 0, DI_DRAFT_4},
    {NULL, NULL, 0, 0},
};
