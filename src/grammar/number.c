/* number.c - numbers by the digits of their bounds; see number.h. */
#include "grammar/number.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_DIGITS = 400, MAX_MODULUS = 65536 };

bool di_decimal_parse(di_arena *arena, const char *text, size_t length, di_decimal *value) {
    char digits[MAX_DIGITS + 1] = {0};
    size_t count = 0, point = SIZE_MAX, i = 0;
    *value = (di_decimal){0};
    if (i < length && text[i] == '-') value->negative = true, i++;
    for (; i < length && text[i] != 'e' && text[i] != 'E'; i++) {
        if (text[i] == '.') {
            point = count;
            continue;
        }
        if (count == 0 && text[i] == '0' && point == SIZE_MAX) continue;
        if (count >= MAX_DIGITS) return false;
        digits[count++] = text[i];
    }
    if (point == SIZE_MAX) point = count;
    long exponent = i < length ? strtol(text + i + 1, NULL, 10) : 0; /* the text is zero-terminated */
    if (exponent > MAX_DIGITS || exponent < -MAX_DIGITS) exponent = exponent > 0 ? MAX_DIGITS + 1 : -MAX_DIGITS - 1;
    bool zero = true;
    for (size_t d = 0; d < count; d++) zero = zero && digits[d] == '0';
    if (zero) {
        *value = (di_decimal){.integer = "0", .fraction = ""};
        return true;
    }
    long at = (long)point + exponent; /* digits before the point; may be negative */
    if (at > MAX_DIGITS || at < -MAX_DIGITS) return false;
    char *integer = di_arena_zalloc(arena, 2 * MAX_DIGITS + 2), *fraction = di_arena_zalloc(arena, 2 * MAX_DIGITS + 2);
    if (!integer || !fraction) return false;
    size_t a = 0, b = 0;
    for (long d = 0; d < at; d++) {
        char c = d < (long)count ? digits[d] : '0';
        if (a || c != '0') integer[a++] = c;
    }
    if (!a) integer[a++] = '0';
    for (long d = at; d < 0; d++) fraction[b++] = '0';
    for (long d = at > 0 ? at : 0; d < (long)count; d++) fraction[b++] = digits[d];
    while (b && fraction[b - 1] == '0') fraction[--b] = '\0';
    value->integer = integer;
    value->fraction = fraction;
    return true;
}

bool di_decimal_is_integer(const di_decimal *value) {
    return value->fraction[0] == '\0';
}

static int compare_magnitude(const di_decimal *a, const di_decimal *b) {
    size_t la = strlen(a->integer), lb = strlen(b->integer);
    if (la != lb) return la < lb ? -1 : 1;
    int order = strcmp(a->integer, b->integer);
    return order ? order : strcmp(a->fraction, b->fraction);
}

int di_decimal_compare(const di_decimal *a, const di_decimal *b) {
    if (a->negative != b->negative) return a->negative ? -1 : 1;
    int order = compare_magnitude(a, b);
    return a->negative ? -order : order;
}

/* -------------------------------------------------------------------------------------------------------- magnitudes
 */

static di_expr digits(di_exprs *x, uint32_t low, uint32_t high) {
    return di_expr_repeat(x, di_expr_range(x, '0', '9'), low, high);
}

static di_expr any_fraction(di_exprs *x) {
    return di_expr_optional(x, di_expr_cat(x, di_expr_byte(x, '.'), digits(x, 1, DI_UNBOUNDED)));
}

static di_expr any_integer(di_exprs *x) {
    return di_expr_or2(x, di_expr_byte(x, '0'), di_expr_cat(x, di_expr_range(x, '1', '9'), digits(x, 0, DI_UNBOUNDED)));
}

static di_expr digit_range(di_exprs *x, char low, char high) {
    return low > high ? DI_EXPR_EMPTY : di_expr_range(x, (uint8_t)low, (uint8_t)high);
}

/* Optional fractions that are >= (or >) 0.F. */
static di_expr fraction_above(di_exprs *x, const char *f, bool exclusive) {
    di_expr point = di_expr_byte(x, '.');
    if (!*f && !exclusive) return any_fraction(x);
    di_expr rest = exclusive ? di_expr_cat(x, di_expr_star(x, di_expr_byte(x, '0')),
                                           di_expr_cat(x, digit_range(x, '1', '9'), digits(x, 0, DI_UNBOUNDED)))
                             : digits(x, 0, DI_UNBOUNDED);
    for (size_t i = strlen(f); i > 0; i--) {
        di_expr equal = di_expr_cat(x, di_expr_byte(x, (uint8_t)f[i - 1]), rest);
        di_expr more = digit_range(x, (char)(f[i - 1] + 1), '9');
        rest = di_expr_or2(x, equal, di_expr_cat(x, more, digits(x, 0, DI_UNBOUNDED)));
    }
    return di_expr_cat(x, point, rest);
}

/* Optional fractions that are <= (or <) 0.F. */
static di_expr fraction_below(di_exprs *x, const char *f, bool exclusive) {
    di_expr point = di_expr_byte(x, '.'), zeros = di_expr_star(x, di_expr_byte(x, '0'));
    if (!*f)
        return exclusive ? DI_EXPR_EMPTY
                         : di_expr_optional(
                               x, di_expr_cat(x, point, di_expr_repeat(x, di_expr_byte(x, '0'), 1, DI_UNBOUNDED)));
    di_expr rest = exclusive ? DI_EXPR_EMPTY : zeros;
    size_t length = strlen(f);
    for (size_t i = length; i > 0; i--) {
        di_expr after = i == length ? rest : di_expr_optional(x, rest); /* a shorter fraction is smaller */
        di_expr equal = di_expr_cat(x, di_expr_byte(x, (uint8_t)f[i - 1]), after);
        di_expr less = digit_range(x, '0', (char)(f[i - 1] - 1));
        rest = di_expr_or2(x, equal, di_expr_cat(x, less, digits(x, 0, DI_UNBOUNDED)));
    }
    return di_expr_optional(x, di_expr_cat(x, point, rest));
}

/* Unsigned numbers >= (or >) the magnitude of the bound. */
static di_expr magnitude_above(di_exprs *x, const di_decimal *bound, bool exclusive) {
    const char *d = bound->integer;
    uint32_t n = (uint32_t)strlen(d);
    di_expr result = di_expr_cat(x, di_expr_range(x, '1', '9'), digits(x, n, DI_UNBOUNDED));
    result = di_expr_cat(x, result, any_fraction(x));
    for (uint32_t i = 0; i < n; i++) {
        di_expr more = di_expr_cat(x, digit_range(x, (char)(d[i] + 1), '9'), digits(x, n - i - 1, n - i - 1));
        more = di_expr_cat(x, di_expr_literal(x, d, i), di_expr_cat(x, more, any_fraction(x)));
        result = di_expr_or2(x, result, more);
    }
    di_expr equal = di_expr_cat(x, di_expr_literal(x, d, n), fraction_above(x, bound->fraction, exclusive));
    return di_expr_or2(x, result, equal);
}

static di_expr magnitude_below(di_exprs *x, const di_decimal *bound, bool exclusive) {
    const char *d = bound->integer;
    uint32_t n = (uint32_t)strlen(d);
    di_expr result = DI_EXPR_EMPTY;
    if (n > 1) {
        di_expr shorter = di_expr_cat(x, di_expr_range(x, '1', '9'), digits(x, 0, n - 2));
        result = di_expr_cat(x, di_expr_or2(x, di_expr_byte(x, '0'), shorter), any_fraction(x));
    }
    for (uint32_t i = 0; i < n; i++) {
        char first = i == 0 && n > 1 ? '1' : '0';
        di_expr less = di_expr_cat(x, digit_range(x, first, (char)(d[i] - 1)), digits(x, n - i - 1, n - i - 1));
        less = di_expr_cat(x, di_expr_literal(x, d, i), di_expr_cat(x, less, any_fraction(x)));
        result = di_expr_or2(x, result, less);
    }
    di_expr equal = di_expr_cat(x, di_expr_literal(x, d, n), fraction_below(x, bound->fraction, exclusive));
    return di_expr_or2(x, result, equal);
}

static di_expr any_magnitude(di_exprs *x) {
    return di_expr_cat(x, any_integer(x), any_fraction(x));
}

static di_expr negative(di_exprs *x, di_expr magnitude) {
    return di_expr_cat(x, di_expr_byte(x, '-'), magnitude);
}

di_expr di_number_above(di_exprs *x, const di_decimal *bound, bool exclusive) {
    if (bound->negative) /* all unsigned ones, and those with a sign down to the bound */
        return di_expr_or2(x, any_magnitude(x), negative(x, magnitude_below(x, bound, exclusive)));
    di_expr result = magnitude_above(x, bound, exclusive);
    bool zero = bound->integer[0] == '0' && !bound->fraction[0];
    return zero && !exclusive ? di_expr_or2(x, result, negative(x, magnitude_below(x, bound, false))) : result;
}

di_expr di_number_below(di_exprs *x, const di_decimal *bound, bool exclusive) {
    if (bound->negative) return negative(x, magnitude_above(x, bound, exclusive));
    bool zero = bound->integer[0] == '0' && !bound->fraction[0];
    di_expr below = zero && exclusive ? magnitude_above(x, bound, true) : any_magnitude(x); /* -0 is 0 */
    return di_expr_or2(x, magnitude_below(x, bound, exclusive), negative(x, below));
}

di_expr di_number_plain(di_exprs *x) {
    return di_expr_cat(x, di_expr_optional(x, di_expr_byte(x, '-')), any_magnitude(x));
}

di_expr di_number_full(di_exprs *x) {
    di_expr sign = di_expr_optional(x, di_expr_or2(x, di_expr_byte(x, '+'), di_expr_byte(x, '-')));
    di_expr letter = di_expr_or2(x, di_expr_byte(x, 'e'), di_expr_byte(x, 'E'));
    di_expr exponent = di_expr_cat(x, letter, di_expr_cat(x, sign, digits(x, 1, DI_UNBOUNDED)));
    return di_expr_cat(x, di_number_plain(x), di_expr_optional(x, exponent));
}

di_expr di_number_integer(di_exprs *x, bool dot_zero) {
    di_expr tail = DI_EXPR_EPSILON;
    if (dot_zero)
        tail = di_expr_optional(
            x, di_expr_cat(x, di_expr_byte(x, '.'), di_expr_repeat(x, di_expr_byte(x, '0'), 1, DI_UNBOUNDED)));
    return di_expr_cat(x, di_expr_optional(x, di_expr_byte(x, '-')), di_expr_cat(x, any_integer(x), tail));
}

bool di_number_multiple(di_exprs *x, const di_decimal *divisor, di_expr *result) {
    uint64_t modulus = 0;
    for (int part = 0; part < 2; part++)
        for (const char *c = part ? divisor->fraction : divisor->integer; *c; c++) {
            modulus = modulus * 10 + (uint64_t)(*c - '0');
            if (modulus > MAX_MODULUS) return false;
        }
    if (modulus == 0 || divisor->negative) return false;
    di_expr sign = di_expr_optional(x, di_expr_byte(x, '-'));
    di_expr value = di_expr_multiple(x, (uint32_t)modulus, (uint32_t)strlen(divisor->fraction));
    *result = di_expr_and2(x, di_number_plain(x), di_expr_cat(x, sign, value));
    return true;
}
