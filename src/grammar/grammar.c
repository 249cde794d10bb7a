/* grammar.c - compiles a source by its kind; see grammar.h. */
#include "grammar/grammar.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "grammar/calls.h"
#include "grammar/ebnf.h"
#include "grammar/regex.h"
#include "grammar/schema.h"

void di_grammar_limits_default(di_grammar_limits *limits) {
    *limits = (di_grammar_limits){.text_bytes = 4u << 20,
                                  .expressions = 1000000,
                                  .symbols = 500000,
                                  .work = 1500000,
                                  .mask_work = 2000000,
                                  .memory = (size_t)64 << 20};
}

void di_grammar_limits_configured(const di_config *config, di_grammar_limits *limits) {
    di_grammar_limits_default(limits);
    limits->text_bytes = (size_t)di_config_int(config, DI_OPT_LIMIT_GRAMMAR_BYTES);
    limits->work = (uint64_t)di_config_int(config, DI_OPT_LIMIT_GRAMMAR_WORK);
    limits->mask_work = (uint64_t)di_config_int(config, DI_OPT_LIMIT_MASK_WORK);
    limits->memory = (size_t)di_config_int(config, DI_OPT_LIMIT_GRAMMAR_MEMORY);
}

const char *di_grammar_reason_name(di_grammar_reason reason) {
    static const char *const names[] = {"none", "syntax", "unsupported", "unsatisfiable", "too_complex"};
    return names[reason];
}

static bool compile_regex(di_grammar *g, const di_grammar_source *source, di_grammar_fault *fault) {
    di_regex_options options = {.encoding = DI_ENCODING_UTF8};
    di_regex_fault where;
    di_expr language;
    if (!di_regex_compile(&g->x, source->text, source->length, &options, &language, &where)) {
        if (g->x.failed != DI_OK) return false;
        fault->reason = where.reason;
        snprintf(fault->pointer, sizeof fault->pointer, "1:%zu", where.position + 1);
        snprintf(fault->message, sizeof fault->message, "%s", where.message);
        return false;
    }
    g->root = di_sym_prune(&g->s, &g->x, di_sym_lexeme(&g->s, &g->x, language));
    if (g->x.failed != DI_OK) return false;
    if (g->root == DI_SYMBOL_EMPTY) {
        fault->reason = DI_REASON_UNSATISFIABLE;
        snprintf(fault->pointer, sizeof fault->pointer, "1:1");
        snprintf(fault->message, sizeof fault->message, "no text follows this expression");
    }
    return g->root != DI_SYMBOL_EMPTY;
}

static bool compile(di_grammar *g, const di_grammar_source *source, di_grammar_fault *fault) {
    switch (source->kind) {
    case DI_GRAMMAR_JSON_OBJECT:
    case DI_GRAMMAR_JSON_SCHEMA:
        return di_schema_compile(&g->x, &g->s, source, &g->root, fault);
    case DI_GRAMMAR_REGEX:
        return compile_regex(g, source, fault);
    case DI_GRAMMAR_CALLS:
        return di_calls_compile(&g->x, &g->s, source, &g->root, fault);
    default:
        return di_ebnf_compile(&g->x, &g->s, source, &g->root, fault);
    }
}

/* The error of a compilation that did not succeed. */
static di_status failure(const di_grammar *g, di_grammar_fault *fault, di_error *error) {
    if (g->x.failed == DI_ERR_MEMORY) {
        *fault = (di_grammar_fault){0};
        return di_fail(error, DI_ERR_MEMORY, "grammar", "out of memory for a grammar");
    }
    if (g->x.failed != DI_OK) {
        fault->reason = DI_REASON_TOO_COMPLEX;
        if (!fault->message[0])
            snprintf(fault->message, sizeof fault->message,
                     "this needs more work or states than the limits allow (--limit-grammar-work, "
                     "--limit-grammar-memory)");
    }
    di_status status = fault->reason == DI_REASON_TOO_COMPLEX ? DI_ERR_LIMIT : DI_ERR_INVALID_ARGUMENT;
    return di_fail(error, status, "grammar", "%s at \"%s\": %s", di_grammar_reason_name(fault->reason), fault->pointer,
                   fault->message);
}

di_status di_grammar_compile(const di_grammar_source *source, const di_grammar_limits *limits, di_grammar **grammar,
                             di_grammar_fault *fault, di_error *error) {
    di_grammar_fault local;
    if (!fault) fault = &local;
    *fault = (di_grammar_fault){0};
    *grammar = NULL;
    di_grammar *g = calloc(1, sizeof *g);
    if (!g) return di_fail(error, DI_ERR_MEMORY, "grammar", "out of memory for a grammar");
    g->references = 1;
    if (limits)
        g->limits = *limits;
    else
        di_grammar_limits_default(&g->limits);
    bool ok = di_exprs_init(&g->x, g->limits.expressions, g->limits.work) == DI_OK &&
              di_symbols_init(&g->s, &g->x, g->limits.symbols) == DI_OK;
    if (ok && source->length > g->limits.text_bytes) {
        fault->reason = DI_REASON_TOO_COMPLEX;
        snprintf(fault->message, sizeof fault->message,
                 "the source has %zu bytes, more than %zu (--limit-grammar-bytes)", source->length,
                 g->limits.text_bytes);
        ok = false;
    }
    if (ok) ok = compile(g, source, fault) && g->x.failed == DI_OK;
    if (!ok) {
        di_status status = failure(g, fault, error);
        di_grammar_free(g);
        return status;
    }
    di_expr_classes(&g->x);
    di_exprs_forget(&g->x);
    *grammar = g;
    return DI_OK;
}

di_grammar *di_grammar_share(di_grammar *grammar) {
    __atomic_add_fetch(&grammar->references, 1, __ATOMIC_RELAXED);
    return grammar;
}

size_t di_grammar_memory(const di_grammar *grammar) {
    return sizeof *grammar + di_exprs_memory(&grammar->x) + di_symbols_memory(&grammar->s);
}

void di_grammar_free(di_grammar *grammar) {
    if (!grammar || __atomic_sub_fetch(&grammar->references, 1, __ATOMIC_ACQ_REL) > 0) return;
    di_exprs_free(&grammar->x);
    di_symbols_free(&grammar->s);
    free(grammar);
}

void di_grammar_key(const di_grammar_source *source, char key[33]) {
    di_text canonical = {0};
    di_arena *arena = di_arena_new(0);
    const di_json *root;
    bool schema = source->kind == DI_GRAMMAR_JSON_SCHEMA && arena &&
                  di_json_parse(arena, source->text, source->length, 0, &root, NULL) == DI_OK;
    di_text_printf(&canonical, "%d %d %d %d %s\n", source->kind, source->order, source->profile, source->whitespace,
                   source->start ? source->start : "");
    if (schema) { /* the layout of a schema does not matter */
        di_json_writer writer;
        di_json_begin(&writer, &canonical);
        di_json_value(&writer, root);
    } else if (source->kind != DI_GRAMMAR_JSON_OBJECT) {
        di_text_append(&canonical, source->text, source->length);
    }
    XXH128_hash_t hash = XXH3_128bits(canonical.data ? canonical.data : "", canonical.length);
    snprintf(key, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64, (uint64_t)hash.low64);
    di_arena_free(arena);
    di_text_free(&canonical);
}
