/* json.h - the one JSON reader and the one JSON writer.
 *
 * Reader: strict RFC 8259. Keeps number text, key order and duplicate keys; refuses invalid UTF-8, lone surrogates in
 * \u escapes, control characters in strings, trailing text, and nesting deeper than the limit. Nodes and strings live
 * in the caller's arena. Errors name line, column and byte offset.
 *
 *   object  first -> item (key) -> item (key) -> NULL      array  first -> item -> item -> NULL
 */
#ifndef DI_BASE_JSON_H
#define DI_BASE_JSON_H

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

typedef enum di_json_type {
    DI_JSON_NULL,
    DI_JSON_FALSE,
    DI_JSON_TRUE,
    DI_JSON_NUMBER,
    DI_JSON_STRING,
    DI_JSON_ARRAY,
    DI_JSON_OBJECT
} di_json_type;

typedef struct di_json {
    di_json_type type;
    uint32_t count;  /* items of an array or object */
    const char *key; /* member name, unescaped, zero-terminated (may hold zero bytes: see key_length) */
    size_t key_length;
    const char *text; /* string: unescaped UTF-8, zero-terminated; number: its text */
    size_t length;
    struct di_json *first; /* array or object */
    struct di_json *next;  /* next sibling */
    size_t offset;         /* byte offset of the value in the input */
} di_json;

#define DI_JSON_MAX_DEPTH  1024      /* no larger max_depth takes effect */
#define DI_JSON_MAX_VALUES (1 << 22) /* of a text; a node takes forty times the bytes of the "1," it may stand for */

/* max_depth 0 = 128. Never looks beyond text[length). DI_ERR_FORMAT: it is no JSON. DI_ERR_LIMIT: it is more than is
 * read, and the error's param says of what, "depth" or "values". */
di_status di_json_parse(di_arena *arena, const char *text, size_t length, unsigned max_depth, const di_json **root,
                        di_error *error);
/* A file; `limit` bytes at most. Errors name the file. */
di_status di_json_parse_file(di_arena *arena, const char *path, size_t limit, unsigned max_depth, const di_json **root,
                             di_error *error);

/* Member of an object; the last one if the key is there twice; NULL if absent or not an object. */
const di_json *di_json_get(const di_json *object, const char *key);
/* Repeated keys of an object folded: for every member, in order, the one whose value stands in its place (the last of
 * that key), NULL if the key was there before. [count], malloc'ed; NULL when out of memory. */
const di_json **di_json_fold(const di_json *object);
bool di_json_is_true(const di_json *node);
/* Exact conversions; false when the node is no number, not integral (1.0 and 1e2 are integral), or out of range. */
bool di_json_int64(const di_json *node, int64_t *value);
bool di_json_uint64(const di_json *node, uint64_t *value);
bool di_json_double(const di_json *node, double *value); /* finite only */
bool di_json_string_is(const di_json *node, const char *text);
const char *di_json_type_name(di_json_type type); /* "a string", "an object", ... for error texts */

/* Writer. Compact by default; commas and colons are put where they belong. Non-ASCII is written as UTF-8; invalid
 * UTF-8 in a string is written as U+FFFD. Nesting is checked by assertion only. */
typedef struct di_json_writer {
    di_text *out;
    uint64_t used; /* bit d: something was written at depth d */
    unsigned depth;
    bool after_key;
    bool spaces; /* ", " and ": " between items */
    bool python; /* di_json_value writes as Python's json.dumps(json.loads(text), ensure_ascii=False): spaces, floats
                    as repr writes them (1e2 is 100.0), integers exact, of a repeated key the first place and the last
                    value. A number beyond the range of a double keeps its text. */
} di_json_writer;

void di_json_begin(di_json_writer *writer, di_text *out);
void di_json_object_begin(di_json_writer *writer);
void di_json_object_end(di_json_writer *writer);
void di_json_array_begin(di_json_writer *writer);
void di_json_array_end(di_json_writer *writer);
void di_json_key(di_json_writer *writer, const char *key);
void di_json_key_n(di_json_writer *writer, const char *key, size_t length);
void di_json_string(di_json_writer *writer, const char *text);
void di_json_string_n(di_json_writer *writer, const char *text, size_t length);
void di_json_integer(di_json_writer *writer, int64_t value);
void di_json_unsigned(di_json_writer *writer, uint64_t value);
void di_json_number(di_json_writer *writer, double value); /* shortest text that reads back; NaN and inf become null */
void di_json_float(di_json_writer *writer, float value);   /* shortest text that reads back as float */
void di_json_bool(di_json_writer *writer, bool value);
void di_json_null(di_json_writer *writer);
void di_json_raw(di_json_writer *writer, const char *text, size_t length); /* one complete value, as it is */
void di_json_value(di_json_writer *writer, const di_json *node); /* a parsed node, number text and duplicates kept */

#endif
