/* json_read.c - the JSON reader; see json.h. One pass over the text, no recursion: open containers are on a stack. */
#include "base/json.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_DEPTH = 128 };

typedef struct reader {
    di_arena *arena;
    const char *text;
    size_t length, position;
    uint32_t values;
    di_error *error;
} reader;

/* A container that is still open, and the last item read into it. */
typedef struct frame {
    di_json *node, *last;
} frame;

/* ------------------------------------------------------------------------------------------------------ errors */

/* Where `offset` is: line and column (in characters) from 1. Only errors pay for it. A text of one line, which may be
 * one of many, has no line number. */
static void find_line(const reader *r, size_t offset, size_t *line, size_t *column) {
    *line = *column = 1;
    for (size_t i = 0; i < offset; i++) {
        if (r->text[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)r->text[i] & 0xC0) != 0x80) {
            ++*column;
        }
    }
}

static di_status fail_for(reader *r, di_status status, const char *param, size_t offset, const char *what) {
    size_t line, column;
    find_line(r, offset, &line, &column);
    const char *end = r->length ? memchr(r->text, '\n', r->length) : NULL;
    if (!end || end + 1 == r->text + r->length)
        return di_fail(r->error, status, param, "column %zu (byte %zu): %s", column, offset, what);
    return di_fail(r->error, status, param, "line %zu, column %zu (byte %zu): %s", line, column, offset, what);
}

static di_status fail_at(reader *r, size_t offset, const char *what) {
    return fail_for(r, DI_ERR_FORMAT, NULL, offset, what);
}

static di_status fail_memory(reader *r) {
    return di_fail(r->error, DI_ERR_MEMORY, NULL, "out of memory after %zu bytes of JSON", r->position);
}

/* "expected WHAT, found ..." at the current position. */
static di_status fail_expected(reader *r, const char *what) {
    char message[160];
    if (r->position >= r->length) {
        snprintf(message, sizeof message, "expected %s, found the end of the text", what);
        return fail_at(r, r->position, message);
    }
    unsigned char c = (unsigned char)r->text[r->position];
    const char *hint = "";
    if (r->position == 0 && r->length >= 3 && memcmp(r->text, "\xEF\xBB\xBF", 3) == 0) hint = " (a byte order mark)";
    if (c > 0x20 && c < 0x7F) {
        snprintf(message, sizeof message, "expected %s, found '%c'", what, c);
    } else {
        snprintf(message, sizeof message, "expected %s, found byte 0x%02X%s", what, c, hint);
    }
    return fail_at(r, r->position, message);
}

/* ----------------------------------------------------------------------------------------------------- strings */

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The four hexadecimal digits of an escaped code unit at offset; false if they are not all there. */
static bool read_hex4(const reader *r, size_t offset, uint32_t *value) {
    if (r->length - offset < 4) return false;
    *value = 0;
    for (size_t i = 0; i < 4; i++) {
        int digit = hex_digit(r->text[offset + i]);
        if (digit < 0) return false;
        *value = *value << 4 | (uint32_t)digit;
    }
    return true;
}

/* The escape whose backslash is at *offset: its character, and *offset moves behind it. */
static di_status read_escape(reader *r, size_t *offset, uint32_t *codepoint) {
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    size_t start = *offset;
    if (r->length - start < 2) return fail_at(r, start, "the text ends inside a string");
    char letter = r->text[start + 1];
    const char *found = letter ? strchr(letters, letter) : NULL;
    if (found) {
        *codepoint = (unsigned char)meanings[found - letters];
        *offset = start + 2;
        return DI_OK;
    }
    if (letter != 'u') return fail_at(r, start, "unknown escape in a string");
    uint32_t high, low;
    if (!read_hex4(r, start + 2, &high)) return fail_at(r, start, "\\u needs four hexadecimal digits");
    *offset = start + 6;
    *codepoint = high;
    if (high < 0xD800 || high > 0xDFFF) return DI_OK;
    bool paired = high < 0xDC00 && r->length - *offset >= 2 && r->text[*offset] == '\\' &&
                  r->text[*offset + 1] == 'u' && read_hex4(r, *offset + 2, &low) && low >= 0xDC00 && low <= 0xDFFF;
    if (!paired) return fail_at(r, start, "lone surrogate in a \\u escape");
    *codepoint = 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00);
    *offset += 6;
    return DI_OK;
}

/* Checks the string that starts behind the quote at r->position; *end is its closing quote. */
static di_status scan_string(reader *r, size_t *end, bool *escaped) {
    size_t i = r->position + 1;
    *escaped = false;
    while (i < r->length) {
        unsigned char c = (unsigned char)r->text[i];
        uint32_t codepoint;
        if (c == '"') {
            *end = i;
            return DI_OK;
        }
        if (c == '\\') {
            *escaped = true;
            di_status status = read_escape(r, &i, &codepoint);
            if (status != DI_OK) return status;
        } else if (c < 0x20) {
            return fail_at(r, i, "control character in a string (write it as an escape)");
        } else if (c < 0x80) {
            i++;
        } else {
            size_t size = di_utf8_decode(r->text + i, r->length - i, &codepoint);
            if (size == 0) return fail_at(r, i, "invalid UTF-8 in a string");
            i += size;
        }
    }
    return fail_at(r, r->position, "this string is not closed");
}

static di_status read_string(reader *r, const char **text, size_t *length) {
    size_t end = 0;
    bool escaped = false;
    di_status status = scan_string(r, &end, &escaped);
    if (status != DI_OK) return status;
    size_t i = r->position + 1;
    char *copy = di_arena_copy(r->arena, r->text + i, end - i);
    if (!copy) return fail_memory(r);
    size_t used = end - i;
    if (escaped) {
        /* An escape is never shorter than the character it stands for, so the copy is rewritten in place. */
        used = 0;
        while (i < end) {
            if (r->text[i] != '\\') {
                copy[used++] = r->text[i++];
                continue;
            }
            uint32_t codepoint;
            status = read_escape(r, &i, &codepoint);
            if (status != DI_OK) return status;
            used += di_utf8_encode(codepoint, copy + used);
        }
        copy[used] = '\0';
    }
    *text = copy;
    *length = used;
    r->position = end + 1;
    return DI_OK;
}

/* ----------------------------------------------------------------------------------------------------- scalars */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static size_t skip_digits(const reader *r, size_t i) {
    while (i < r->length && is_digit(r->text[i])) i++;
    return i;
}

static di_status read_number(reader *r, di_json *node) {
    size_t start = r->position, i = start;
    if (r->text[i] == '-') i++;
    size_t digits = i;
    i = skip_digits(r, i);
    r->position = i;
    if (i == digits) return fail_expected(r, "a digit");
    if (r->text[digits] == '0' && i > digits + 1) return fail_at(r, digits, "a number must not start with 0");
    if (i < r->length && r->text[i] == '.') {
        r->position = i + 1;
        i = skip_digits(r, i + 1);
        if (i == r->position) return fail_expected(r, "a digit after the decimal point");
    }
    if (i < r->length && (r->text[i] == 'e' || r->text[i] == 'E')) {
        i++;
        if (i < r->length && (r->text[i] == '+' || r->text[i] == '-')) i++;
        r->position = i;
        i = skip_digits(r, i);
        if (i == r->position) return fail_expected(r, "a digit of the exponent");
    }
    node->type = DI_JSON_NUMBER;
    node->length = i - start;
    node->text = di_arena_copy(r->arena, r->text + start, node->length);
    if (!node->text) return fail_memory(r);
    r->position = i;
    return DI_OK;
}

static bool take_word(reader *r, const char *word) {
    size_t size = strlen(word);
    if (r->length - r->position < size || memcmp(r->text + r->position, word, size) != 0) return false;
    r->position += size;
    return true;
}

/* A scalar, or the opening bracket of a container. */
static di_status read_value(reader *r, di_json *node) {
    if (r->position >= r->length) return fail_expected(r, "a value");
    node->offset = r->position;
    char c = r->text[r->position];
    if (c == '"') {
        node->type = DI_JSON_STRING;
        return read_string(r, &node->text, &node->length);
    }
    if (c == '-' || is_digit(c)) return read_number(r, node);
    if (c == '{' || c == '[') {
        node->type = c == '{' ? DI_JSON_OBJECT : DI_JSON_ARRAY;
        r->position++;
        return DI_OK;
    }
    if (take_word(r, "null")) {
        node->type = DI_JSON_NULL;
    } else if (take_word(r, "true")) {
        node->type = DI_JSON_TRUE;
    } else if (take_word(r, "false")) {
        node->type = DI_JSON_FALSE;
    } else {
        return fail_expected(r, "a value");
    }
    return DI_OK;
}

/* -------------------------------------------------------------------------------------------------- containers */

static void skip_space(reader *r) {
    while (r->position < r->length) {
        char c = r->text[r->position];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
        r->position++;
    }
}

static bool take(reader *r, char c) {
    if (r->position >= r->length || r->text[r->position] != c) return false;
    r->position++;
    return true;
}

static bool is_container(const di_json *node) {
    return node->type == DI_JSON_ARRAY || node->type == DI_JSON_OBJECT;
}

/* The next item of the container in `top`, comma and key first; *item is NULL when the container was closed. */
static di_status read_item(reader *r, frame *top, di_json **item) {
    bool object = top->node->type == DI_JSON_OBJECT;
    *item = NULL;
    skip_space(r);
    if (take(r, object ? '}' : ']')) return DI_OK;
    if (top->last) {
        if (!take(r, ',')) return fail_expected(r, object ? "',' or '}'" : "',' or ']'");
        skip_space(r);
    }
    if (++r->values >= DI_JSON_MAX_VALUES)
        return di_fail(r->error, DI_ERR_LIMIT, "values", "more than %d values of JSON in one text", DI_JSON_MAX_VALUES);
    di_json *node = di_arena_zalloc(r->arena, sizeof *node);
    if (!node) return fail_memory(r);
    if (object) {
        bool quote = r->position < r->length && r->text[r->position] == '"';
        if (!quote) return fail_expected(r, top->last ? "a member name in quotes" : "a member name in quotes or '}'");
        di_status status = read_string(r, &node->key, &node->key_length);
        if (status != DI_OK) return status;
        skip_space(r);
        if (!take(r, ':')) return fail_expected(r, "':' after a member name");
        skip_space(r);
    }
    if (top->last) {
        top->last->next = node;
    } else {
        top->node->first = node;
    }
    top->last = node;
    top->node->count++;
    *item = node;
    return read_value(r, node);
}

static di_status read_document(reader *r, unsigned max_depth, di_json *root) {
    frame frames[DI_JSON_MAX_DEPTH];
    unsigned depth = 0;
    skip_space(r);
    di_json *node = root;
    di_status status = read_value(r, root);
    while (status == DI_OK) {
        if (node && is_container(node)) {
            if (depth == max_depth) {
                char message[80];
                snprintf(message, sizeof message, "nested deeper than the %u levels allowed", max_depth);
                return fail_for(r, DI_ERR_LIMIT, "depth", node->offset, message);
            }
            frames[depth++] = (frame){.node = node};
        } else if (!node) {
            depth--;
        }
        if (depth == 0) break;
        status = read_item(r, &frames[depth - 1], &node);
    }
    if (status != DI_OK) return status;
    skip_space(r);
    if (r->position < r->length) return fail_expected(r, "the end of the text");
    return DI_OK;
}

di_status di_json_parse(di_arena *arena, const char *text, size_t length, unsigned max_depth, const di_json **root,
                        di_error *error) {
    *root = NULL;
    if (max_depth == 0) max_depth = DEFAULT_DEPTH;
    if (max_depth > DI_JSON_MAX_DEPTH) max_depth = DI_JSON_MAX_DEPTH;
    reader r = {.arena = arena, .text = text, .length = length, .error = error};
    di_json *node = di_arena_zalloc(arena, sizeof *node);
    if (!node) return fail_memory(&r);
    di_status status = read_document(&r, max_depth, node);
    if (status == DI_OK) *root = node;
    return status;
}

di_status di_json_parse_file(di_arena *arena, const char *path, size_t limit, unsigned max_depth, const di_json **root,
                             di_error *error) {
    *root = NULL;
    char *data;
    size_t length;
    di_status status = (di_status)di_read_file(path, limit, &data, &length, error);
    if (status != DI_OK) return status;
    di_error inner = {0};
    status = di_json_parse(arena, data, length, max_depth, root, &inner);
    free(data);
    if (status != DI_OK) return di_fail(error, status, path, "%s: %s", path, inner.message);
    return DI_OK;
}

/* ------------------------------------------------------------------------------------------------------ access */

const di_json *di_json_get(const di_json *object, const char *key) {
    if (!object || object->type != DI_JSON_OBJECT) return NULL;
    size_t length = strlen(key);
    const di_json *found = NULL;
    for (const di_json *item = object->first; item; item = item->next) {
        if (item->key_length == length && memcmp(item->key, key, length) == 0) found = item;
    }
    return found;
}

typedef struct member {
    const di_json *item;
    size_t position;
} member;

static int compare_members(const void *a, const void *b) {
    const member *x = a, *y = b;
    size_t common = x->item->key_length < y->item->key_length ? x->item->key_length : y->item->key_length;
    int order = common ? memcmp(x->item->key, y->item->key, common) : 0;
    if (order == 0) order = (x->item->key_length > y->item->key_length) - (x->item->key_length < y->item->key_length);
    return order ? order : (x->position > y->position) - (x->position < y->position);
}

const di_json **di_json_fold(const di_json *object) {
    size_t count = object->count, i = 0;
    member *members = calloc(count + 1, sizeof *members);
    const di_json **values = calloc(count + 1, sizeof *values);
    if (!members || !values) {
        free(members);
        free(values);
        return NULL;
    }
    for (const di_json *item = object->first; item && i < count; item = item->next, i++) members[i] = (member){item, i};
    qsort(members, count, sizeof *members, compare_members);
    for (size_t start = 0; start < count; start = i) {
        const di_json *key = members[start].item;
        for (i = start; i < count && members[i].item->key_length == key->key_length &&
                        memcmp(members[i].item->key, key->key, key->key_length) == 0;)
            i++;
        values[members[start].position] = members[i - 1].item;
    }
    free(members);
    return values;
}

bool di_json_is_true(const di_json *node) {
    return node && node->type == DI_JSON_TRUE;
}

bool di_json_string_is(const di_json *node, const char *text) {
    if (!node || node->type != DI_JSON_STRING) return false;
    size_t length = strlen(text);
    return node->length == length && memcmp(node->text, text, length) == 0;
}

const char *di_json_type_name(di_json_type type) {
    switch (type) {
    case DI_JSON_NULL:
        return "null";
    case DI_JSON_FALSE:
        return "false";
    case DI_JSON_TRUE:
        return "true";
    case DI_JSON_NUMBER:
        return "a number";
    case DI_JSON_STRING:
        return "a string";
    case DI_JSON_ARRAY:
        return "an array";
    case DI_JSON_OBJECT:
        return "an object";
    }
    return "no JSON value";
}

/* The exponent digits at text, held within +-1e9: far beyond any integer type, and sums with lengths stay exact. */
static int64_t read_exponent(const char *text) {
    bool negative = *text == '-';
    if (*text == '-' || *text == '+') text++;
    int64_t value = 0;
    for (; *text; text++) {
        if (value < 1000000000) value = value * 10 + (*text - '0');
    }
    return negative ? -value : value;
}

/* Exact magnitude of a number that is integral and below 2^64; the text follows JSON's grammar. */
static bool integer_magnitude(const di_json *node, bool *negative, uint64_t *magnitude) {
    if (!node || node->type != DI_JSON_NUMBER) return false;
    const char *text = node->text;
    *negative = *text == '-';
    if (*negative) text++;
    uint64_t value = 0;
    int64_t zeros = 0;    /* digits 0 not yet multiplied into value */
    int64_t fraction = 0; /* digits behind the point */
    bool behind = false;
    for (; is_digit(*text) || *text == '.'; text++) {
        if (*text == '.') {
            behind = true;
            continue;
        }
        if (behind) fraction++;
        zeros++;
        if (*text == '0') continue;
        for (; zeros > 0 && value > 0; zeros--) {
            if (__builtin_mul_overflow(value, 10u, &value)) return false;
        }
        zeros = 0;
        if (__builtin_add_overflow(value, (uint64_t)(*text - '0'), &value)) return false;
    }
    *magnitude = 0;
    if (value == 0) return true;
    /* value * 10^zeros * 10^(exponent - fraction) */
    int64_t power = zeros - fraction + (*text ? read_exponent(text + 1) : 0);
    if (power < 0) return false;
    for (; power > 0; power--) {
        if (__builtin_mul_overflow(value, 10u, &value)) return false;
    }
    *magnitude = value;
    return true;
}

bool di_json_uint64(const di_json *node, uint64_t *value) {
    bool negative;
    uint64_t magnitude;
    if (!integer_magnitude(node, &negative, &magnitude) || (negative && magnitude)) return false;
    *value = magnitude;
    return true;
}

bool di_json_int64(const di_json *node, int64_t *value) {
    bool negative;
    uint64_t magnitude;
    if (!integer_magnitude(node, &negative, &magnitude)) return false;
    if (magnitude > (uint64_t)INT64_MAX + (negative ? 1 : 0)) return false;
    *value = negative ? (int64_t)(0 - magnitude) : (int64_t)magnitude;
    return true;
}

bool di_json_double(const di_json *node, double *value) {
    if (!node || node->type != DI_JSON_NUMBER) return false;
    /* The program around the library may have set a locale with another decimal point. */
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) return false;
    double read = strtod_l(node->text, NULL, plain);
    freelocale(plain);
    if (!isfinite(read)) return false;
    *value = read;
    return true;
}
