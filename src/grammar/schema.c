/* schema.c - compiles a JSON Schema; see schema.h. */
#include "grammar/schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SCHEMA_DEPTH = 256, MAX_BLANKS = 40 };

bool di_schema_failed(const compiler *c) {
    return c->x->failed != DI_OK || c->fault->reason != DI_REASON_NONE || c->probe_failed;
}

bool di_schema_refuse(compiler *c, di_grammar_reason reason, const di_json *at, const char *format, ...) {
    if (c->fault->reason != DI_REASON_NONE || c->x->failed != DI_OK) return false;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->fault->message, sizeof c->fault->message, format, arguments);
    va_end(arguments);
    c->fault->reason = reason;
    di_schema_pointer(c, at, c->fault->pointer, sizeof c->fault->pointer);
    return false;
}

void *di_schema_alloc(compiler *c, size_t size) {
    if (!di_exprs_spend(c->x, size / 4096)) return NULL;
    void *memory = di_arena_zalloc(c->arena, size);
    if (!memory) c->x->failed = DI_ERR_MEMORY;
    return memory;
}

static di_schema_draft draft_of(const di_json *root) {
    const di_json *name = di_json_get(root, "$schema");
    if (!name || name->type != DI_JSON_STRING) return DI_DRAFT_2020;
    if (strstr(name->text, "draft-03") || strstr(name->text, "draft-04")) return DI_DRAFT_4;
    if (strstr(name->text, "draft-06")) return DI_DRAFT_6;
    if (strstr(name->text, "draft-07")) return DI_DRAFT_7;
    if (strstr(name->text, "2019-09")) return DI_DRAFT_2019;
    return DI_DRAFT_2020;
}

/* One blank, or a line break and some: what a person's or a printer's layout needs, and bounded. */
static di_expr space_language(di_exprs *x, di_grammar_whitespace whitespace) {
    if (whitespace == DI_WHITESPACE_COMPACT) return DI_EXPR_EPSILON;
    di_expr blank = di_expr_or2(x, di_expr_byte(x, ' '), di_expr_byte(x, '\t'));
    di_expr line = di_expr_cat(x, di_expr_optional(x, di_expr_byte(x, '\r')), di_expr_byte(x, '\n'));
    line = di_expr_cat(x, line, di_expr_repeat(x, blank, 0, MAX_BLANKS));
    return di_expr_optional(x, di_expr_or2(x, di_expr_byte(x, ' '), line));
}

static bool parse(compiler *c) {
    di_error error = {0};
    const di_grammar_source *source = c->source;
    if (source->kind == DI_GRAMMAR_JSON_OBJECT) {
        c->root = di_schema_true();
        return true;
    }
    if (di_json_parse(c->arena, source->text, source->length, MAX_SCHEMA_DEPTH, &c->root, &error) == DI_OK) return true;
    if (error.status == DI_ERR_MEMORY) c->x->failed = DI_ERR_MEMORY;
    return di_schema_refuse(c, DI_REASON_SYNTAX, NULL, "the schema is no JSON: %.200s", error.message);
}

static void note_unevaluated(compiler *c) {
    for (uint32_t i = 0; i < c->info_count && c->draft >= DI_DRAFT_2019; i++) {
        const di_json *node = c->infos[i].node;
        if (di_json_get(node, "unevaluatedProperties") || di_json_get(node, "unevaluatedItems")) c->unevaluated = true;
    }
}

static bool prepare(compiler *c) {
    if (!parse(c)) return false;
    c->draft = draft_of(c->root);
    c->space = space_language(c->x, c->source->whitespace);
    c->s->space = di_sym_lexeme(c->s, c->x, c->space);
    if (!di_schema_index(c)) return false;
    if (c->source->profile == DI_PROFILE_OPENAI && c->source->kind != DI_GRAMMAR_JSON_OBJECT && !di_openai_check(c))
        return false;
    note_unevaluated(c);
    return !di_schema_failed(c);
}

static bool finish(compiler *c, const di_json *at, di_symbol made, di_symbol *root) {
    if (!di_build_all(c)) return false;
    *root = di_sym_prune(c->s, c->x, made);
    if (!di_build_check(c)) return false;
    if (*root == DI_SYMBOL_EMPTY) di_schema_refuse(c, DI_REASON_UNSATISFIABLE, at, "no JSON value follows this schema");
    return !di_schema_failed(c);
}

bool di_schema_open(compiler *c, di_exprs *x, di_symbols *s, const di_grammar_source *source, di_grammar_fault *fault) {
    *c = (compiler){.x = x, .s = s, .source = source, .fault = fault, .arena = di_arena_new(0)};
    if (!c->arena) x->failed = DI_ERR_MEMORY;
    return c->arena && prepare(c);
}

bool di_schema_part(compiler *c, const di_json *node, di_symbol *root) {
    return finish(c, node, di_build_rule(c, di_set_of(c, node, MEANS_SCHEMA)), root);
}

void di_schema_close(compiler *c) {
    free(c->map);
    free(c->infos);
    free(c->resources);
    free(c->anchors);
    free(c->sets);
    free(c->set_table.slots);
    free(c->queue);
    free(c->minimums);
    di_arena_free(c->arena);
}

bool di_schema_compile(di_exprs *x, di_symbols *s, const di_grammar_source *source, di_symbol *root,
                       di_grammar_fault *fault) {
    compiler c;
    bool ok = di_schema_open(&c, x, s, source, fault);
    if (ok && source->kind == DI_GRAMMAR_JSON_OBJECT)
        ok = finish(&c, NULL, di_build_any_object(&c), root);
    else if (ok)
        ok = di_schema_part(&c, c.root, root);
    di_schema_close(&c);
    return ok;
}
