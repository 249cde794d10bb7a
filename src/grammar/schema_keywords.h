/* schema_keywords.h - what each keyword of a schema says, and what its opposite says.
 *
 * A file for each family of keywords ends with its table; schema_keywords.c finds a keyword in them. A keyword adds
 * conjunctions to a form (schema.h), or refuses with the place in the schema.
 */
#ifndef DI_GRAMMAR_SCHEMA_KEYWORDS_H
#define DI_GRAMMAR_SCHEMA_KEYWORDS_H

#include "grammar/schema.h"

typedef struct keyword { /* of a schema object, while its form is made */
    compiler *c;
    const di_json *node, *at; /* the schema, the keyword's value */
    bool positive;
    form *out;
} keyword;

typedef struct di_keyword_row {
    const char *name; /* NULL ends a table */
    void (*apply)(const keyword *k);
    di_schema_draft since, until;
} di_keyword_row;

extern const di_keyword_row di_value_keywords[], di_container_keywords[], di_applicator_keywords[];

/* ---- for all families */
bool di_keyword_syntax(const keyword *k, const char *what); /* "must be WHAT"; false */
bool di_keyword_unsupported(const keyword *k, const char *what);
/* One conjunction: the constraint for its type, whatever else for other types; or, negative, its type alone. */
void di_keyword_add(const keyword *k, uint32_t type, constraint one);
meaning di_keyword_sign(bool positive);
set_id di_keyword_set(const keyword *k, const di_json *schema, bool positive);
set_id di_keyword_never(const keyword *k);
/* A regular expression of the schema, as a language of the inside of strings. */
bool di_keyword_expression(const keyword *k, const di_json *at, const char *text, size_t length, bool search,
                           di_expr *out);
/* Any string, as keys and values with constraints are spelled. */
di_expr di_keyword_any_string(compiler *c);
/* A length or count; false with the fault filled. Values beyond 32 bits are unbounded for a maximum. */
bool di_keyword_size(const keyword *k, const di_json *at, uint32_t *value);

#endif
