/* json_write.c - the JSON writer; see json.h. */
#include "base/json.h"

#include <assert.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void di_json_begin(di_json_writer *writer, di_text *out) {
    *writer = (di_json_writer){.out = out};
}

/* Separator before a value or key: nothing, a comma, or nothing after a key. */
static void separate(di_json_writer *writer) {
    if (writer->after_key) {
        writer->after_key = false;
        return;
    }
    uint64_t bit = UINT64_C(1) << writer->depth;
    if (writer->depth > 0 && (writer->used & bit))
        di_text_puts(writer->out, writer->spaces || writer->python ? ", " : ",");
    writer->used |= bit;
}

static void open_container(di_json_writer *writer, char bracket) {
    separate(writer);
    di_text_putc(writer->out, bracket);
    assert(writer->depth < 63);
    writer->depth++;
    writer->used &= ~(UINT64_C(1) << writer->depth);
}

static void close_container(di_json_writer *writer, char bracket) {
    assert(writer->depth > 0 && !writer->after_key);
    writer->depth--;
    di_text_putc(writer->out, bracket);
}

void di_json_object_begin(di_json_writer *writer) {
    open_container(writer, '{');
}

void di_json_object_end(di_json_writer *writer) {
    close_container(writer, '}');
}

void di_json_array_begin(di_json_writer *writer) {
    open_container(writer, '[');
}

void di_json_array_end(di_json_writer *writer) {
    close_container(writer, ']');
}

/* ----------------------------------------------------------------------------------------------------- strings */

static void write_escape(di_text *out, unsigned char c) {
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    const char *found = c ? strchr(meanings, c) : NULL;
    if (found) {
        char escape[2] = {'\\', letters[found - meanings]};
        di_text_append(out, escape, 2);
    } else {
        di_text_printf(out, "\\u%04x", c);
    }
}

static void write_quoted(di_text *out, const char *text, size_t length) {
    di_text_putc(out, '"');
    size_t plain = 0; /* start of what was checked and not yet written */
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        uint32_t codepoint;
        size_t size = di_utf8_decode(text + i, length - i, &codepoint);
        if (size > 1) {
            i += size;
            continue;
        }
        di_text_append(out, text + plain, i - plain);
        if (size == 1) {
            write_escape(out, c);
            i++;
        } else {
            di_text_append(out, "\xEF\xBF\xBD", 3);
            i += di_utf8_bad_prefix(text + i, length - i, NULL);
        }
        plain = i;
    }
    di_text_append(out, text + plain, length - plain);
    di_text_putc(out, '"');
}

void di_json_key_n(di_json_writer *writer, const char *key, size_t length) {
    assert(!writer->after_key);
    separate(writer);
    write_quoted(writer->out, key, length);
    di_text_puts(writer->out, writer->spaces || writer->python ? ": " : ":");
    writer->after_key = true;
}

void di_json_key(di_json_writer *writer, const char *key) {
    di_json_key_n(writer, key, strlen(key));
}

void di_json_string_n(di_json_writer *writer, const char *text, size_t length) {
    separate(writer);
    write_quoted(writer->out, text, length);
}

void di_json_string(di_json_writer *writer, const char *text) {
    di_json_string_n(writer, text, strlen(text));
}

/* ----------------------------------------------------------------------------------------------------- numbers */

void di_json_integer(di_json_writer *writer, int64_t value) {
    separate(writer);
    di_text_printf(writer->out, "%lld", (long long)value);
}

void di_json_unsigned(di_json_writer *writer, uint64_t value) {
    separate(writer);
    di_text_printf(writer->out, "%llu", (unsigned long long)value);
}

/* Shortest of %.{first..last}g that reads back as the same value (as a float if `single`). `last` always does. */
static void write_shortest(di_text *out, double value, int first, int last, bool single) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) {
        out->failed = true;
        return;
    }
    locale_t before = uselocale(plain); /* of this thread: a decimal point is "." whatever the program has set */
    char text[40];
    for (int digits = first; digits <= last; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (single ? (double)strtof(text, NULL) == value : strtod(text, NULL) == value) break;
    }
    uselocale(before);
    freelocale(plain);
    di_text_puts(out, text);
}

void di_json_number(di_json_writer *writer, double value) {
    if (!isfinite(value)) {
        di_json_null(writer);
        return;
    }
    separate(writer);
    /* Normal numbers keep DBL_DIG digits, so fewer need not be tried: %g drops trailing zeros. Subnormals have fewer.
     */
    write_shortest(writer->out, value, fabs(value) < DBL_MIN ? 1 : DBL_DIG, DBL_DECIMAL_DIG, false);
}

void di_json_float(di_json_writer *writer, float value) {
    if (!isfinite(value)) {
        di_json_null(writer);
        return;
    }
    separate(writer);
    write_shortest(writer->out, (double)value, fabsf(value) < FLT_MIN ? 1 : FLT_DIG, FLT_DECIMAL_DIG, true);
}

/* ------------------------------------------------------------------------------------------------ other values */

void di_json_bool(di_json_writer *writer, bool value) {
    separate(writer);
    di_text_puts(writer->out, value ? "true" : "false");
}

void di_json_null(di_json_writer *writer) {
    separate(writer);
    di_text_puts(writer->out, "null");
}

void di_json_raw(di_json_writer *writer, const char *text, size_t length) {
    separate(writer);
    di_text_append(writer->out, text, length);
}

/* ---------------------------------------------------------------------------------------------- parsed values */

/* One digit more in the last place. False when the first digit carries over. */
static bool count_up(char *digits, int count) {
    while (count > 0 && digits[count - 1] == '9') digits[--count] = '0';
    if (count == 0) return false;
    digits[count - 1]++;
    return true;
}

/* The shortest decimal that reads back: digits [17] without trailing zeros, value = 0.DIGITS * 10^*point. Below a power
 * of two the nearest decimal may lie outside while its neighbour reads back, hence the second try. */
static int shortest_digits(double value, char digits[32], int *point, locale_t plain) {
    char text[40], again[48];
    for (int count = value < DBL_MIN ? 1 : DBL_DIG; count <= DBL_DECIMAL_DIG; count++) {
        snprintf(text, sizeof text, "%.*e", count - 1, value);
        *point = (int)strtol(strchr(text, 'e') + 1, NULL, 10) + 1;
        digits[0] = text[0];
        if (count > 1) memcpy(digits + 1, text + 2, (size_t)count - 1);
        digits[count] = '\0';
        bool exact = strtod_l(text, NULL, plain) == value;
        if (!exact && count_up(digits, count)) {
            snprintf(again, sizeof again, "0.%se%d", digits, *point);
            exact = strtod_l(again, NULL, plain) == value;
        }
        if (!exact) continue;
        while (count > 1 && digits[count - 1] == '0') digits[--count] = '\0';
        return count;
    }
    return DBL_DECIMAL_DIG;
}

static void write_float_of_python(di_text *out, const char *number, size_t length) {
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!plain) {
        out->failed = true;
        return;
    }
    double value = strtod_l(number, NULL, plain);
    locale_t before = uselocale(plain);
    char digits[32];
    int point = 1, count = 1;
    if (value != 0 && isfinite(value))
        count = shortest_digits(fabs(value), digits, &point, plain);
    else
        memcpy(digits, "0", 2);
    uselocale(before);
    freelocale(plain);
    if (!isfinite(value)) {
        di_text_append(out, number, length);
        return;
    }
    if (signbit(value)) di_text_putc(out, '-');
    if (point > 16 || point < -3) {
        di_text_putc(out, digits[0]);
        if (count > 1) di_text_printf(out, ".%s", digits + 1);
        di_text_printf(out, "e%c%02d", point > 0 ? '+' : '-', abs(point - 1));
        return;
    }
    if (point <= 0) di_text_puts(out, "0.");
    for (int i = point; i < 0; i++) di_text_putc(out, '0');
    for (int i = 0; i < count || i < point; i++) {
        if (i == point && i > 0) di_text_putc(out, '.');
        di_text_putc(out, i < count ? digits[i] : '0');
    }
    if (count <= point) di_text_puts(out, ".0");
}

static void write_number(di_text *out, const di_json *node, bool python) {
    if (python && strpbrk(node->text, ".eE"))
        write_float_of_python(out, node->text, node->length);
    else if (python && strcmp(node->text, "-0") == 0)
        di_text_putc(out, '0');
    else
        di_text_append(out, node->text, node->length);
}

/* A parsed value may nest deeper than the writer's own marks reach, so it writes its own commas. Recursion is bounded
 * by DI_JSON_MAX_DEPTH, which the reader enforces. */
static void write_node(di_text *out, const di_json *node, const di_json_writer *style) {
    switch (node->type) {
    case DI_JSON_NULL:
        di_text_puts(out, "null");
        return;
    case DI_JSON_FALSE:
        di_text_puts(out, "false");
        return;
    case DI_JSON_TRUE:
        di_text_puts(out, "true");
        return;
    case DI_JSON_NUMBER:
        write_number(out, node, style->python);
        return;
    case DI_JSON_STRING:
        write_quoted(out, node->text, node->length);
        return;
    case DI_JSON_ARRAY:
    case DI_JSON_OBJECT:
        break;
    }
    bool object = node->type == DI_JSON_OBJECT, spaces = style->spaces || style->python, any = false;
    const di_json **values = object && style->python && node->count > 1 ? di_json_fold(node) : NULL;
    if (object && style->python && node->count > 1 && !values) out->failed = true;
    size_t position = 0;
    di_text_putc(out, object ? '{' : '[');
    for (const di_json *item = node->first; item; item = item->next) {
        const di_json *value = values ? values[position++] : item;
        if (!value) continue;
        if (any) di_text_puts(out, spaces ? ", " : ",");
        any = true;
        if (object) {
            write_quoted(out, item->key, item->key_length);
            di_text_puts(out, spaces ? ": " : ":");
        }
        write_node(out, value, style);
    }
    free(values);
    di_text_putc(out, object ? '}' : ']');
}

void di_json_value(di_json_writer *writer, const di_json *node) {
    separate(writer);
    write_node(writer->out, node, writer);
}
