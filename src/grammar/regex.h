/* regex.h - regular expressions of JSON Schema (ECMA-262) and of stand-alone constraints (RE2) as expressions.
 *
 * Both read the same syntax over code points; they differ in \s, in the anchors and in what a text must be: a pattern
 * of a schema is found somewhere, a stand-alone one is the whole text.
 */
#ifndef DI_GRAMMAR_REGEX_H
#define DI_GRAMMAR_REGEX_H

#include "grammar/expr.h"
#include "grammar/grammar.h"

typedef struct di_regex_options {
    di_encoding encoding;
    bool search;      /* the expression is found somewhere in the text */
    bool ecma;        /* else RE2 */
    bool ignore_case; /* ASCII letters */
    bool dot_all;     /* . takes line breaks too */
    bool extended;    /* white space and comments are left out */
} di_regex_options;

typedef struct di_regex_fault {
    di_grammar_reason reason;
    size_t position; /* byte */
    char message[160];
} di_regex_fault;

/* The language of the expression. False with *fault filled; the caller looks at x->failed first. */
bool di_regex_compile(di_exprs *x, const char *text, size_t length, const di_regex_options *options, di_expr *result,
                      di_regex_fault *fault);

#endif
