/* ebnf_parse.h - reading characters of a grammar; for the parsers of its dialects. */
#ifndef DI_GRAMMAR_EBNF_PARSE_H
#define DI_GRAMMAR_EBNF_PARSE_H

#include "grammar/ebnf.h"

typedef struct scanner {
    ebnf *g;
    const char *text;
    size_t length, at;
    unsigned nesting;
} scanner;

enum { EBNF_NESTING = 200, EBNF_REPEAT = 1 << 30 };

char di_scan_peek(const scanner *s, size_t ahead); /* '\0' at the end */
bool di_scan_take(scanner *s, const char *text);   /* true if it was there */
uint32_t di_scan_point(scanner *s);                /* one character */
bool di_scan_number(scanner *s, uint32_t *value);  /* decimal digits; false if none or too many */
bool di_scan_hex(scanner *s, size_t least, size_t most, uint32_t *value);
bool di_scan_enter(scanner *s); /* one level deeper; false beyond the limit */
part *di_scan_literal(scanner *s, const char *utf8, size_t length, bool ignore_case, size_t at);
part *di_scan_points(scanner *s, di_points *points, bool inverted, size_t at); /* frees them */
/* Joins parts as members of one; a single one stays what it is. */
typedef struct part_list {
    part *first, *last;
    uint32_t count;
} part_list;
void di_part_append(part_list *list, part *p);
part *di_part_join(scanner *s, part_list *list, part_kind kind, size_t at);

bool di_lark_parse(ebnf *g);

#endif
