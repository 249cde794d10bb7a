/* schema.h - JSON Schema to symbols: the parts share one compiler, used by one thread for one compilation.
 *
 * A schema becomes a union of conjunctions (a form), each a set of types with constraints that apply to one type each;
 * allOf is a product, anyOf a union, not and oneOf use complements, which exist for every constraint that is exact.
 * Subschemas of arrays and objects stay sets of signed schemas (a set means all of them at once), so that recursion
 * ends: there are finitely many sets. Everything lives in the compiler's arena.
 */
#ifndef DI_GRAMMAR_SCHEMA_H
#define DI_GRAMMAR_SCHEMA_H

#include "grammar/number.h"
#include "grammar/regex.h"
#include "grammar/symbols.h"

typedef enum di_schema_draft {
    DI_DRAFT_4 = 4,
    DI_DRAFT_6 = 6,
    DI_DRAFT_7 = 7,
    DI_DRAFT_2019 = 2019,
    DI_DRAFT_2020 = 2020
} di_schema_draft;

enum {
    TYPE_NULL = 1,
    TYPE_FALSE = 2,
    TYPE_TRUE = 4,
    TYPE_NUMBER = 8,
    TYPE_STRING = 16,
    TYPE_ARRAY = 32,
    TYPE_OBJECT = 64,
    TYPE_ALL = 127
};

/* How a JSON node is meant in a set. */
typedef enum meaning { MEANS_SCHEMA, MEANS_NOT_SCHEMA, MEANS_VALUE, MEANINGS } meaning;
typedef uint32_t set_id; /* 0: the empty set, everything is valid */

typedef struct layer { /* what one schema object says about the keys of objects */
    const char **names;
    size_t *lengths;
    uint32_t name_count;
    di_expr *patterns;
    uint32_t pattern_count;
} layer;

typedef enum constraint_kind {
    C_NUMBER,     /* expr */
    C_STRING,     /* expr, of the inside */
    C_LENGTH,     /* low..high characters */
    C_PROPERTY,   /* if there is `name`, its value is in `set` */
    C_REQUIRED,   /* name */
    C_PATTERN,    /* values of keys in expr are in `set` */
    C_ADDITIONAL, /* values of keys outside of `keys` are in `set` */
    C_NAMES,      /* keys are in expr */
    C_EXISTS,     /* there is a key outside of `keys` */
    C_ENTRIES,    /* low..high */
    C_ITEM,       /* the item at position `low`, if there, is in `set` */
    C_REST,       /* items from position `low` on are in `set` */
    C_ITEMS,      /* low..high of them */
    C_CONTAINS,   /* low..high items are in `set` */
    C_UNIQUE
} constraint_kind;

typedef struct constraint {
    constraint_kind kind;
    bool negated; /* comes from `not` and the like: evaluates nothing */
    bool value;   /* comes from a value of const or enum: evaluates nothing either, but declares keys */
    const di_json *at;
    set_id set;
    di_expr expr;
    uint32_t low, high;
    const char *name;
    size_t name_length;
    const layer *keys;
} constraint;

typedef struct conjunction {
    uint32_t types, count;
    const constraint **list; /* [count] */
} conjunction;

typedef struct form {
    conjunction *list;
    uint32_t count, capacity;
} form;

/* What the keywords around a node make of it. */
typedef enum node_role {
    ROLE_SCHEMA, /* a schema or a list of some */
    ROLE_NAMED,  /* an object that gives names to schemas: its keys are no keywords */
    ROLE_OTHER   /* a value, or what no keyword explains: there is no schema in it unless a reference leads there */
} node_role;

typedef struct node_info {
    const di_json *node;
    uint32_t parent, resource;
    node_role role;
    bool stray; /* in ROLE_OTHER, at or below an identifier: whether that counts is not defined */
    const form *forms[MEANINGS];
    bool busy[MEANINGS];
} node_info;

typedef struct resource {
    const char *uri;
    const di_json *root;
} resource;

typedef struct anchor {
    uint32_t resource;
    const char *name;
    size_t length;
    const di_json *node;
    bool dynamic;
} anchor;

typedef struct literal_set {
    uint32_t *literals, count; /* sorted; literal = node index * MEANINGS + meaning */
    const form *form;
    uint32_t rule; /* UINT32_MAX = none yet */
    uint8_t empty; /* 0 not known, 1 provably empty, 2 not, 3 being asked */
} literal_set;

typedef struct object_minimum { /* an object with minProperties */
    uint32_t object;
    const di_json *at;
} object_minimum;

typedef struct compiler {
    di_exprs *x;
    di_symbols *s;
    di_arena *arena;
    const di_grammar_source *source;
    di_grammar_fault *fault;
    di_schema_draft draft;
    const di_json *root;
    node_info *infos;
    uint32_t info_count, info_capacity;
    uint32_t *map, map_size; /* node -> index + 1 */
    resource *resources;
    uint32_t resource_count, resource_capacity;
    anchor *anchors;
    uint32_t anchor_count, anchor_capacity;
    literal_set *sets;
    uint32_t set_count, set_capacity;
    di_table set_table;
    uint32_t *queue; /* sets whose rules have no body yet */
    uint32_t queue_count, queue_capacity, queue_done;
    object_minimum *minimums;
    uint32_t minimum_count, minimum_capacity;
    uint32_t depth, empty_depth;
    bool unevaluated;                                  /* the schema being read looks at what its parts evaluate */
    bool probe_failed;                                 /* a question of emptiness met a form that is being made */
    di_expr number_plain, number_full, number_integer; /* 0 = not made */
    di_expr space;                                     /* optional white space */
    bool used_format;                                  /* a format was met */
} compiler;

/* The whole: root symbol in *root. False with *fault filled or x->failed set. */
bool di_schema_compile(di_exprs *x, di_symbols *s, const di_grammar_source *source, di_symbol *root,
                       di_grammar_fault *fault);

/* The same for schemas inside of one document, one after the other: what they refer to counts in that document.
 * Close it in any case. `source` and `fault` must stay; nodes are found from compiler.root. */
bool di_schema_open(compiler *c, di_exprs *x, di_symbols *s, const di_grammar_source *source, di_grammar_fault *fault);
bool di_schema_part(compiler *c, const di_json *node, di_symbol *root);
void di_schema_close(compiler *c);

/* ---- schema.c */
/* Notes the first fault; `at` NULL = the root. Returns false. */
bool di_schema_refuse(compiler *c, di_grammar_reason reason, const di_json *at, const char *format, ...)
    DI_PRINTF(4, 5);
bool di_schema_failed(const compiler *c);
void *di_schema_alloc(compiler *c, size_t size); /* zeroed; NULL also fails the compilation */

/* ---- schema_refs.c */
bool di_schema_index(compiler *c);
uint32_t di_schema_node(compiler *c, const di_json *node); /* its index; a boolean made here too */
void di_schema_pointer(const compiler *c, const di_json *node, char *out, size_t size);
/* Target of a reference, NULL with the fault filled. */
const di_json *di_schema_resolve(compiler *c, const di_json *at, const di_json *reference);

/* ---- schema_form.c */
set_id di_set_of(compiler *c, const di_json *node, meaning m);
set_id di_set_join(compiler *c, set_id a, set_id b);
const form *di_set_form(compiler *c, set_id set);
const form *di_node_form(compiler *c, const di_json *node, meaning m);
bool di_set_empty(compiler *c, set_id set); /* provably */
form *di_form_product(compiler *c, const form *a, const form *b);
void di_form_append(compiler *c, form *to, const form *from);
/* Adds a conjunction of these constraints ([count], copied). */
void di_form_add(compiler *c, form *to, uint32_t types, const constraint *list, uint32_t count);
/* Removes types and conjunctions that are provably empty. */
void di_form_prune(compiler *c, form *f);
bool di_keys_cover(compiler *c, const layer *keys, const char *name, size_t length);

/* ---- schema_keywords.c and the families beside it: the form of one keyword of a schema, or of its opposite */
void di_keyword_form(compiler *c, const di_json *node, const di_json *member, bool positive, form *out, bool *known);
void di_value_form(compiler *c, const di_json *value, form *out);
const di_json *di_schema_true(void);
const di_json *di_schema_false(void);
void di_unevaluated(compiler *c, const di_json *node, form *f);

/* ---- schema_build.c */
di_symbol di_build_rule(compiler *c, set_id set);
bool di_build_all(compiler *c);
/* After pruning: refuses objects whose minimum of keys is out of reach only because undeclared keys count once. */
bool di_build_check(compiler *c);
di_expr di_build_string(compiler *c, const conjunction *conj);
di_expr di_build_number(compiler *c, const conjunction *conj);
set_id di_property_set(compiler *c, const conjunction *conj, const char *name, size_t length);
di_symbol di_build_any_object(compiler *c);

/* ---- schema_openai.c */
bool di_openai_check(compiler *c);

/* ---- formats.c */
const char *di_format_expression(const char *name); /* NULL: unknown, an annotation */

#endif
