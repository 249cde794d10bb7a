/* unicode.h - sets of code points by property. */
#ifndef DI_GRAMMAR_UNICODE_H
#define DI_GRAMMAR_UNICODE_H

#include "grammar/expr.h"

/* Adds the code points of a General_Category (short or long name, with or without "General_Category=") or of Any,
 * ASCII, White_Space. False if the name is none of them. */
bool di_unicode_property(const char *name, size_t length, di_points *set);

#endif
