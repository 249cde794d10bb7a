/* fields.h - the table of request fields of every endpoint.
 *
 * A row is one field of a JSON body: its type, range, default, and what becomes of it. Rows are fields_table.h; the
 * lists in docs/api.md are generated from them. A body is checked against the table before anything else looks at it,
 * and what is read then is a copy of it that holds nothing but what has a row: the code behind may read any field by
 * name without checking types again, also one that this endpoint does not have. What lies inside messages, tools,
 * prompts and the like is checked by who reads it.
 *
 * Rules, the same everywhere: null counts as absent; a member that an object has twice is refused; a field that no row
 * knows is ignored and its name handed back, or refused (`strict`). Errors are DI_ERR_INVALID_ARGUMENT, or
 * DI_ERR_UNSUPPORTED for what is understood but refused; `param` is the field's path ("stream_options.include_usage").
 * Immutable, any thread.
 */
#ifndef DI_SERVER_FIELDS_H
#define DI_SERVER_FIELDS_H

#include "base/config.h"
#include "base/json.h"

typedef enum di_endpoint {
    DI_ENDPOINT_CHAT,
    DI_ENDPOINT_COMPLETIONS,
    DI_ENDPOINT_MESSAGES,
    DI_ENDPOINT_COUNT_TOKENS,
    DI_ENDPOINT_RESPONSES,
    DI_ENDPOINT_TOKENIZE,
    DI_ENDPOINT_DETOKENIZE,
    DI_ENDPOINT_COUNT
} di_endpoint;

typedef enum di_field_type {
    DI_FIELD_BOOL = 1,
    DI_FIELD_INTEGER = 2,
    DI_FIELD_NUMBER = 4,
    DI_FIELD_STRING = 8,
    DI_FIELD_ARRAY = 16,
    DI_FIELD_OBJECT = 32
} di_field_type;

typedef enum di_field_use {
    DI_FIELD_REQUIRED, /* used, and must be there */
    DI_FIELD_USED,
    DI_FIELD_NEUTRAL, /* only the values of `values` are accepted: what they ask for is what is done anyway */
    DI_FIELD_IGNORED, /* its type is checked, its value has no effect */
    DI_FIELD_REFUSED
} di_field_use;

typedef struct di_field {
    unsigned endpoints;      /* bit 1 << di_endpoint */
    const char *path;        /* "stream_options.include_usage" */
    unsigned types;          /* di_field_type */
    double minimum, maximum; /* of a number; bytes of a string; items of a list. maximum 0 = no bound */
    const char *range;       /* the same in words: "[0, 2]", "" if there is none */
    const char *values;      /* words a string may be: "auto|none"; "" = any. NEUTRAL: the accepted values as JSON */
    int limit;               /* di_config_id of the option that bounds it further, -1 if none */
    const char *fallback;    /* default in words */
    di_field_use use;
    const char *note;
} di_field;

const di_field *di_fields(size_t *count);
const char *di_endpoint_path(di_endpoint endpoint); /* "/v1/chat/completions" */

/* Checks a body. config gives the limits. Names of unknown fields are appended to *unknown, separated by ", ".
 * *known: the body without them and without what is null; in the arena, with the values of `body`. */
di_status di_fields_check(di_endpoint endpoint, di_arena *arena, const di_json *body, const di_config *config,
                          bool strict, di_text *unknown, const di_json **known, di_error *error);

/* Member of an object, NULL when absent or null. */
const di_json *di_field_get(const di_json *object, const char *name);

/* The lists of docs/api.md, in Markdown. */
void di_fields_write_markdown(di_text *out);

#endif
