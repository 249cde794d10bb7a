/* number.h - languages of JSON numbers without exponent.
 *
 * Values are exact decimals of any length; nothing is rounded.
 */
#ifndef DI_GRAMMAR_NUMBER_H
#define DI_GRAMMAR_NUMBER_H

#include "base/arena.h"
#include "grammar/expr.h"

typedef struct di_decimal {
    bool negative;        /* never for zero */
    const char *integer;  /* digits without leading zeros, "0" if none */
    const char *fraction; /* digits without trailing zeros, "" if none */
} di_decimal;

/* Reads the text of a JSON number. False if its plain form has more than 400 digits, or memory ran out. */
bool di_decimal_parse(di_arena *arena, const char *text, size_t length, di_decimal *value);
bool di_decimal_is_integer(const di_decimal *value);
int di_decimal_compare(const di_decimal *a, const di_decimal *b);

/* -? integer (. digits)? */
di_expr di_number_plain(di_exprs *x);
di_expr di_number_full(di_exprs *x);                                           /* with exponents */
di_expr di_number_integer(di_exprs *x, bool dot_zero);                         /* dot_zero: 1.0 is one too */
di_expr di_number_above(di_exprs *x, const di_decimal *bound, bool exclusive); /* >= or > */
di_expr di_number_below(di_exprs *x, const di_decimal *bound, bool exclusive);
/* False if the divisor has too many digits. */
bool di_number_multiple(di_exprs *x, const di_decimal *divisor, di_expr *result);

#endif
