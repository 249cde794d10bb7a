/* regex.c - reads regular expressions and builds their language from right to left, so that a zero-width assertion can
 * be intersected with all that follows it; see regex.h. */
#include "grammar/regex.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "grammar/unicode.h"

enum { MAX_NESTING = 250, MAX_UNROLLED = 64, MAX_REPEAT = 1 << 30, MAX_NESTED_COUNT = 4000 };

typedef enum node_kind {
    NODE_CLASS,
    NODE_CAT,
    NODE_ALT,
    NODE_REPEAT,
    NODE_BEGIN,
    NODE_END,
    NODE_WORD,
    NODE_LOOK
} node_kind;

typedef struct node {
    node_kind kind;
    bool asserts; /* contains a zero-width assertion */
    bool negative;
    uint32_t low, high;
    uint64_t counted;          /* bounds of the repetitions in it, multiplied where they are nested */
    di_points points;          /* CLASS */
    struct node *first, *next; /* members; next sibling */
    di_expr expr;              /* CLASS: made already, 0 = not */
} node;

typedef struct parser {
    di_exprs *x;
    di_arena *arena;
    const char *text;
    size_t length, at;
    di_regex_options options;
    di_regex_fault *fault;
    unsigned nesting;
    node *classes; /* all CLASS nodes, by `first`: their points are freed in the end */
} parser;

static node *refuse(parser *p, di_grammar_reason reason, size_t position, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

static node *refuse(parser *p, di_grammar_reason reason, size_t position, const char *format, ...) {
    if (p->fault->reason != DI_REASON_NONE) return NULL;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->fault->message, sizeof p->fault->message, format, arguments);
    va_end(arguments);
    p->fault->reason = reason;
    p->fault->position = position;
    return NULL;
}

static node *new_node(parser *p, node_kind kind) {
    node *n = di_arena_zalloc(p->arena, sizeof *n);
    if (!n) {
        p->x->failed = DI_ERR_MEMORY;
        return refuse(p, DI_REASON_TOO_COMPLEX, p->at, "out of memory");
    }
    n->kind = kind;
    n->asserts = kind >= NODE_BEGIN;
    if (kind == NODE_CLASS) {
        n->first = p->classes;
        p->classes = n;
    }
    return n;
}

static bool more(const parser *p) {
    return p->at < p->length;
}

static char peek(const parser *p) {
    return p->at < p->length ? p->text[p->at] : '\0';
}

static bool take(parser *p, const char *text) {
    size_t n = strlen(text);
    if (p->length - p->at < n || memcmp(p->text + p->at, text, n) != 0) return false;
    p->at += n;
    return true;
}

static uint32_t take_point(parser *p) {
    uint32_t point = 0;
    size_t used = di_utf8_decode(p->text + p->at, p->length - p->at, &point);
    p->at += used ? used : 1;
    return used ? point : 0xFFFD;
}

/* ---------------------------------------------------------------------------------------------------------- classes */

static void add_digits(di_points *set) {
    di_points_add(set, '0', '9');
}

static void add_word(di_points *set) {
    di_points_add(set, 'a', 'z');
    di_points_add(set, 'A', 'Z');
    di_points_add(set, '0', '9');
    di_points_add(set, '_', '_');
}

static void add_space(di_points *set, bool ecma) {
    if (!ecma) {
        di_points_add(set, '\t', '\n');
        di_points_add(set, '\f', '\r');
        di_points_add(set, ' ', ' ');
        return;
    }
    static const uint32_t spaces[][2] = {{0x09, 0x0D},     {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680},
                                         {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                         {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) di_points_add(set, spaces[i][0], spaces[i][1]);
}

static void add_all(di_points *to, const di_points *from) {
    for (uint32_t i = 0; i < from->count; i++) di_points_add(to, from->ranges[i][0], from->ranges[i][1]);
}

/* \d \D \w \W \s \S; false for other letters. */
static bool add_shorthand(const parser *p, di_points *set, char letter) {
    di_points one = {0};
    switch (letter | 0x20) {
    case 'd':
        add_digits(&one);
        break;
    case 'w':
        add_word(&one);
        break;
    case 's':
        add_space(&one, p->options.ecma);
        break;
    default:
        return false;
    }
    di_points_sort(&one);
    if (!(letter & 0x20)) di_points_invert(&one);
    add_all(set, &one);
    set->failed = set->failed || one.failed;
    di_points_free(&one);
    return true;
}

static void fold_case(const parser *p, di_points *set) {
    if (!p->options.ignore_case) return;
    uint32_t count = set->count;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t c = 'A'; c <= 'z'; c++) {
            if ((c > 'Z' && c < 'a') || c < set->ranges[i][0] || c > set->ranges[i][1]) continue;
            di_points_add(set, c ^ 0x20, c ^ 0x20);
        }
}

static bool hex_value(const char *text, size_t digits, uint32_t *value) {
    *value = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = text[i];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0) return false;
        *value = *value << 4 | (uint32_t)d;
    }
    return true;
}

static bool take_hex(parser *p, size_t digits, uint32_t *value) {
    if (p->length - p->at < digits || !hex_value(p->text + p->at, digits, value)) return false;
    p->at += digits;
    return true;
}

/* {H...} behind \u or \x. */
static bool take_braced(parser *p, uint32_t *value) {
    const char *end = memchr(p->text + p->at, '}', p->length - p->at);
    if (peek(p) != '{' || !end) return false;
    size_t digits = (size_t)(end - (p->text + p->at)) - 1;
    if (digits == 0 || digits > 6 || !hex_value(p->text + p->at + 1, digits, value) || *value > 0x10FFFF) return false;
    p->at += digits + 2;
    return true;
}

static bool unicode_escape(parser *p, size_t start, uint32_t *point) {
    if (take_braced(p, point)) return true;
    if (!take_hex(p, 4, point)) {
        refuse(p, DI_REASON_SYNTAX, start, "\\u needs four hexadecimal digits, or some in braces");
        return false;
    }
    uint32_t low;
    if (*point < 0xD800 || *point > 0xDFFF) return true;
    if (*point < 0xDC00 && take(p, "\\u") && take_hex(p, 4, &low) && low >= 0xDC00 && low <= 0xDFFF) {
        *point = 0x10000 + ((*point - 0xD800) << 10) + (low - 0xDC00);
        return true;
    }
    refuse(p, DI_REASON_UNSUPPORTED, start, "a lone surrogate is no character");
    return false;
}

/* The character of an escape behind its backslash; letter is taken already. */
static bool escaped_point(parser *p, size_t start, uint32_t letter, bool in_class, uint32_t *point) {
    static const char letters[] = "nrtfv", meanings[] = "\n\r\t\f\v";
    const char *found = letter && letter < 0x80 ? strchr(letters, (int)letter) : NULL;
    *point = letter;
    if (found) {
        *point = (uint8_t)meanings[found - letters];
        return true;
    }
    if (letter == 'u') return unicode_escape(p, start, point);
    if (letter == 'x') {
        if (take_hex(p, 2, point) || (!p->options.ecma && take_braced(p, point))) return true;
        refuse(p, DI_REASON_SYNTAX, start, "\\x needs two hexadecimal digits");
        return false;
    }
    if (letter == 'a' && !p->options.ecma) {
        *point = 7;
        return true;
    }
    if (letter == 'b' && in_class) {
        *point = 8;
        return true;
    }
    if (letter == '0' && !(peek(p) >= '0' && peek(p) <= '9')) {
        *point = 0;
        return true;
    }
    if (letter == 'c' && ((peek(p) | 0x20) >= 'a' && (peek(p) | 0x20) <= 'z')) {
        *point = (uint32_t)p->text[p->at++] & 0x1F;
        return true;
    }
    bool alphanumeric = (letter >= '0' && letter <= '9') || ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z');
    if (!alphanumeric) return true;
    if ((letter >= '1' && letter <= '9') || letter == 'k')
        refuse(p, DI_REASON_UNSUPPORTED, start, "a reference back to a group cannot be enforced");
    else
        refuse(p, DI_REASON_SYNTAX, start, "unknown escape \\%c", (char)letter);
    return false;
}

/* \p{...} and \P{...}, \pL; the letter is taken already. */
/* Every code point is asked for. */
enum { PROPERTY_WORK = 5000 };

static bool property(parser *p, size_t start, bool inverted, di_points *set) {
    const char *name = p->text + p->at;
    size_t size = 1;
    if (peek(p) == '{') {
        const char *end = memchr(name, '}', p->length - p->at);
        if (!end) {
            refuse(p, DI_REASON_SYNTAX, start, "\\p needs a name in braces");
            return false;
        }
        name++;
        size = (size_t)(end - name);
        p->at += size + 2;
    } else if (more(p)) {
        p->at++;
    } else {
        size = 0;
    }
    if (size && *name == '^') {
        inverted = !inverted;
        name++;
        size--;
    }
    di_points one = {0};
    if (!di_exprs_spend(p->x, PROPERTY_WORK)) return false;
    if (!di_unicode_property(name, size, &one)) {
        refuse(p, DI_REASON_UNSUPPORTED, start, "the character property \"%.*s\" is not known here",
               (int)(size > 40 ? 40 : size), name);
        return false;
    }
    di_points_sort(&one);
    if (inverted) di_points_invert(&one);
    add_all(set, &one);
    set->failed = set->failed || one.failed;
    di_points_free(&one);
    return true;
}

static bool posix_class(parser *p, di_points *set) {
    static const struct {
        const char *name, *ranges;
    } classes[] = {{"alpha", "azAZ"},    {"digit", "09"},      {"alnum", "azAZ09"}, {"upper", "AZ"},
                   {"lower", "az"},      {"space", "\t\r  "},  {"blank", "\t\t  "}, {"punct", "!/:@[`{~"},
                   {"xdigit", "09afAF"}, {"word", "azAZ09__"}, {"print", " ~"},     {"graph", "!~"}};
    const char *end = p->length - p->at > 2 ? memchr(p->text + p->at + 2, ':', p->length - p->at - 2) : NULL;
    if (p->options.ecma || peek(p) != '[' || p->length - p->at < 5 || p->text[p->at + 1] != ':' || !end ||
        end + 1 >= p->text + p->length || end[1] != ']')
        return false;
    const char *name = p->text + p->at + 2;
    bool inverted = *name == '^';
    name += inverted;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (strlen(classes[i].name) != (size_t)(end - name) || memcmp(classes[i].name, name, (size_t)(end - name)) != 0)
            continue;
        di_points one = {0};
        for (const char *r = classes[i].ranges; *r; r += 2) di_points_add(&one, (uint8_t)r[0], (uint8_t)r[1]);
        di_points_sort(&one);
        if (inverted) di_points_invert(&one);
        add_all(set, &one);
        di_points_free(&one);
        p->at = (size_t)(end + 2 - p->text);
        return true;
    }
    return false;
}

/* One member of a class: a set (then *single is false) or a character. */
static bool class_member(parser *p, di_points *set, bool *single, uint32_t *point) {
    size_t start = p->at;
    *single = false;
    if (posix_class(p, set)) return true;
    if (peek(p) != '\\') {
        *single = true;
        *point = take_point(p);
        return true;
    }
    p->at++;
    if (!more(p)) {
        refuse(p, DI_REASON_SYNTAX, start, "the expression ends in a backslash");
        return false;
    }
    uint32_t letter = take_point(p);
    if (letter < 0x80 && add_shorthand(p, set, (char)letter)) return true;
    if (letter == 'p' || letter == 'P') return property(p, start, letter == 'P', set);
    *single = true;
    return escaped_point(p, start, letter, true, point);
}

static node *parse_class(parser *p) {
    size_t start = p->at++;
    node *n = new_node(p, NODE_CLASS);
    if (!n) return NULL;
    bool inverted = take(p, "^"), first = true;
    for (; more(p) && (peek(p) != ']' || (first && !p->options.ecma)); first = false) {
        bool single, end_single;
        uint32_t low = 0, high = 0;
        if (!class_member(p, &n->points, &single, &low)) return NULL;
        bool range = peek(p) == '-' && p->length - p->at > 1 && p->text[p->at + 1] != ']';
        if (!range) {
            if (single) di_points_add(&n->points, low, low);
            continue;
        }
        size_t dash = p->at++;
        if (!class_member(p, &n->points, &end_single, &high)) return NULL;
        if (!single || !end_single) { /* [\w-.]: a dash and two members */
            di_points_add(&n->points, '-', '-');
            if (single) di_points_add(&n->points, low, low);
            if (end_single) di_points_add(&n->points, high, high);
            continue;
        }
        if (low > high) return refuse(p, DI_REASON_SYNTAX, dash, "this range of characters runs backwards");
        di_points_add(&n->points, low, high);
    }
    if (!take(p, "]")) return refuse(p, DI_REASON_SYNTAX, start, "this class of characters is not closed");
    fold_case(p, &n->points);
    di_points_sort(&n->points);
    if (inverted) di_points_invert(&n->points);
    return n;
}

static node *single_class(parser *p, uint32_t point) {
    node *n = new_node(p, NODE_CLASS);
    if (!n) return NULL;
    di_points_add(&n->points, point, point);
    fold_case(p, &n->points);
    di_points_sort(&n->points);
    return n;
}

static node *dot(parser *p) {
    node *n = new_node(p, NODE_CLASS);
    if (!n) return NULL;
    if (!p->options.dot_all) {
        di_points_add(&n->points, '\n', '\n');
        if (p->options.ecma) {
            di_points_add(&n->points, '\r', '\r');
            di_points_add(&n->points, 0x2028, 0x2029);
        }
    }
    di_points_sort(&n->points);
    di_points_invert(&n->points);
    return n;
}

/* ---------------------------------------------------------------------------------------------------------- groups */

static node *parse_alternatives(parser *p);

static node *parse_look(parser *p, bool negative) {
    node *inner = parse_alternatives(p), *n = inner ? new_node(p, NODE_LOOK) : NULL;
    if (!n) return NULL;
    n->negative = negative;
    n->first = inner;
    return n;
}

/* Flags behind "(?": i, s and their removal. False if these are no flags, or unsupported ones. */
static bool parse_flags(parser *p, di_regex_options *options) {
    size_t start = p->at;
    bool on = true;
    for (; more(p) && peek(p) != ')' && peek(p) != ':'; p->at++) {
        char c = peek(p);
        if (c == '-')
            on = false;
        else if (c == 'i')
            options->ignore_case = on;
        else if (c == 's')
            options->dot_all = on;
        else if (c == 'u' || (c == 'm' && !on)) {
        } else {
            refuse(p, DI_REASON_UNSUPPORTED, start - 2, "the group (?%c is not supported", c);
            return false;
        }
    }
    return more(p);
}

static bool skip_name(parser *p, char end) {
    size_t start = p->at;
    while (more(p) && peek(p) != end) p->at++;
    if (more(p) && p->at > start) {
        p->at++;
        return true;
    }
    refuse(p, DI_REASON_SYNTAX, start, "the name of this group is not closed");
    return false;
}

static node *empty_node(parser *p) {
    return new_node(p, NODE_CAT);
}

static node *parse_group(parser *p) {
    size_t start = p->at++;
    di_regex_options saved = p->options;
    node *inner = NULL;
    if (++p->nesting > MAX_NESTING)
        return refuse(p, DI_REASON_TOO_COMPLEX, start, "groups are nested more than %d deep", MAX_NESTING);
    if (take(p, "?=")) {
        inner = parse_look(p, false);
    } else if (take(p, "?!")) {
        inner = parse_look(p, true);
    } else if (take(p, "?<=") || take(p, "?<!")) {
        return refuse(p, DI_REASON_UNSUPPORTED, start, "looking behind cannot be enforced");
    } else if (take(p, "?>")) {
        return refuse(p, DI_REASON_UNSUPPORTED, start, "an atomic group cannot be enforced");
    } else if (take(p, "?P=") || take(p, "?(")) {
        return refuse(p, DI_REASON_UNSUPPORTED, start, "a reference back to a group cannot be enforced");
    } else if (take(p, "?<") || take(p, "?P<")) {
        inner = skip_name(p, '>') ? parse_alternatives(p) : NULL;
    } else if (take(p, "?")) {
        if (!parse_flags(p, &p->options)) return refuse(p, DI_REASON_SYNTAX, start, "this group is not closed");
        if (peek(p) == ')') { /* for the rest of the group around it */
            p->at++;
            p->nesting--;
            return empty_node(p);
        }
        p->at++;
        inner = parse_alternatives(p);
    } else {
        inner = parse_alternatives(p);
    }
    if (!inner) return NULL;
    if (!take(p, ")")) return refuse(p, DI_REASON_SYNTAX, start, "this group is not closed");
    p->options = saved;
    p->nesting--;
    return inner;
}

static node *quoted(parser *p) {
    node *n = empty_node(p), *last = NULL;
    while (n && more(p) && !take(p, "\\E")) {
        node *one = single_class(p, take_point(p));
        if (!one) return NULL;
        if (last)
            last->next = one;
        else
            n->first = one;
        last = one;
    }
    return n;
}

static node *parse_escape(parser *p) {
    size_t start = p->at++;
    if (!more(p)) return refuse(p, DI_REASON_SYNTAX, start, "the expression ends in a backslash");
    uint32_t letter = take_point(p), point;
    if (letter == 'b' || letter == 'B') {
        node *n = new_node(p, NODE_WORD);
        if (n) n->negative = letter == 'B';
        return n;
    }
    if (!p->options.ecma) {
        if (letter == 'A') return new_node(p, NODE_BEGIN);
        if (letter == 'z' || letter == 'Z') return new_node(p, NODE_END);
        if (letter == 'Q') return quoted(p);
    }
    di_points set = {0};
    bool is_set = letter < 0x80 && add_shorthand(p, &set, (char)letter);
    if (letter == 'p' || letter == 'P') {
        if (!property(p, start, letter == 'P', &set)) return NULL;
        is_set = true;
    }
    if (!is_set) return escaped_point(p, start, letter, false, &point) ? single_class(p, point) : NULL;
    node *n = new_node(p, NODE_CLASS);
    di_points_sort(&set);
    if (n)
        n->points = set;
    else
        di_points_free(&set);
    return n;
}

/* {m}, {m,}, {m,n} or {,n}; false and nothing taken if it is no quantifier. */
static bool take_counts(parser *p, uint32_t *low, uint32_t *high) {
    size_t i = p->at + 1;
    uint64_t values[2] = {0, 0};
    bool given[2] = {false, false}, comma = false;
    for (; i < p->length && p->text[i] != '}'; i++) {
        char c = p->text[i];
        if (c == ',' && !comma) {
            comma = true;
        } else if (c >= '0' && c <= '9') {
            given[comma] = true;
            values[comma] = values[comma] * 10 + (uint64_t)(c - '0');
            if (values[comma] > MAX_REPEAT) values[comma] = (uint64_t)MAX_REPEAT + 1;
        } else {
            return false;
        }
    }
    if (i >= p->length || !given[0]) return false;
    *low = (uint32_t)values[0];
    *high = !comma ? *low : given[1] ? (uint32_t)values[1] : DI_UNBOUNDED;
    p->at = i + 1;
    return true;
}

static node *parse_quantifiers(parser *p, node *atom) {
    size_t start = p->at;
    uint32_t low, high;
    char c = peek(p);
    if (c == '*' || c == '+' || c == '?') {
        p->at++;
        low = c == '+';
        high = c == '?' ? 1 : DI_UNBOUNDED;
    } else if (c != '{' || !take_counts(p, &low, &high)) {
        return atom;
    }
    if (atom->kind >= NODE_BEGIN) return refuse(p, DI_REASON_SYNTAX, start, "there is nothing to repeat here");
    if (low > high) return refuse(p, DI_REASON_SYNTAX, start, "this repetition has a maximum below its minimum");
    if (low > MAX_REPEAT || (high > MAX_REPEAT && high != DI_UNBOUNDED))
        return refuse(p, DI_REASON_TOO_COMPLEX, start, "a repetition of more than %d is too large", MAX_REPEAT);
    if (!take(p, "?") && peek(p) == '+')
        return refuse(p, DI_REASON_UNSUPPORTED, p->at, "a possessive repetition cannot be enforced");
    c = peek(p);
    uint32_t low2, high2;
    size_t here = p->at;
    if (c == '*' || c == '+' || c == '?' || (c == '{' && take_counts(p, &low2, &high2)))
        return refuse(p, DI_REASON_SYNTAX, here, "there is nothing to repeat here");
    node *n = new_node(p, NODE_REPEAT);
    if (!n) return NULL;
    n->low = low;
    n->high = high;
    n->first = atom;
    n->asserts = atom->asserts;
    n->counted = atom->counted;
    if (high == DI_UNBOUNDED) return n;
    n->counted = high * (atom->counted ? atom->counted : 1);
    if (high > 8 && atom->counted > 8 && n->counted > MAX_NESTED_COUNT)
        return refuse(p, DI_REASON_TOO_COMPLEX, start,
                      "counted repetitions inside of each other allow more than %d parts", MAX_NESTED_COUNT);
    return n;
}

static node *parse_atom(parser *p) {
    size_t start = p->at;
    switch (peek(p)) {
    case '(':
        return parse_group(p);
    case '[':
        return parse_class(p);
    case '\\':
        return parse_escape(p);
    case '.':
        p->at++;
        return dot(p);
    case '^':
        p->at++;
        return new_node(p, NODE_BEGIN);
    case '$':
        p->at++;
        return new_node(p, NODE_END);
    case '*':
    case '+':
    case '?':
        return refuse(p, DI_REASON_SYNTAX, start, "there is nothing to repeat here");
    case '{': {
        uint32_t low, high;
        if (take_counts(p, &low, &high)) return refuse(p, DI_REASON_SYNTAX, start, "there is nothing to repeat here");
        break;
    }
    default:
        break;
    }
    return single_class(p, take_point(p));
}

/* White space and comments of the extended form. */
static void skip_blank(parser *p) {
    while (p->options.extended && more(p)) {
        if (strchr(" \t\r\n\f\v", peek(p))) {
            p->at++;
        } else if (peek(p) == '#') {
            while (more(p) && peek(p) != '\n') p->at++;
        } else {
            break;
        }
    }
}

static node *parse_sequence(parser *p) {
    node *n = empty_node(p), *last = NULL;
    for (skip_blank(p); n && more(p) && peek(p) != '|' && peek(p) != ')'; skip_blank(p)) {
        node *atom = parse_atom(p);
        skip_blank(p);
        if (atom) atom = parse_quantifiers(p, atom);
        if (!atom) return NULL;
        n->asserts = n->asserts || atom->asserts;
        if (atom->counted > n->counted) n->counted = atom->counted;
        if (last)
            last->next = atom;
        else
            n->first = atom;
        last = atom;
    }
    return n;
}

static node *parse_alternatives(parser *p) {
    node *first = parse_sequence(p), *last = first;
    if (!first || peek(p) != '|') return first;
    node *n = new_node(p, NODE_ALT);
    if (!n) return NULL;
    n->first = first;
    n->asserts = first->asserts;
    n->counted = first->counted;
    while (take(p, "|")) {
        last->next = parse_sequence(p);
        last = last->next;
        if (!last) return NULL;
        n->asserts = n->asserts || last->asserts;
        if (last->counted > n->counted) n->counted = last->counted;
    }
    return n;
}

/* --------------------------------------------------------------------------------------------------------- building */

/* What may follow, by what is before: the start of the text, a word character, another character. */
typedef struct future {
    di_expr behind[3];
} future;
enum { AT_START, AFTER_WORD, AFTER_OTHER };

static di_expr class_expr(parser *p, node *n) {
    if (!n->expr) n->expr = di_expr_points(p->x, &n->points, p->options.encoding);
    return n->expr;
}

static di_expr any_star(parser *p) {
    return di_expr_star(p->x, di_expr_any_point(p->x, p->options.encoding));
}

/* Word characters (or all others) of a set. */
static di_expr word_part(parser *p, const di_points *set, bool word) {
    di_points words = {0}, part = {0};
    add_word(&words);
    di_points_sort(&words);
    if (!word) di_points_invert(&words);
    for (uint32_t i = 0; i < words.count; i++)
        for (uint32_t j = 0; j < set->count; j++) {
            uint32_t low = words.ranges[i][0] > set->ranges[j][0] ? words.ranges[i][0] : set->ranges[j][0];
            uint32_t high = words.ranges[i][1] < set->ranges[j][1] ? words.ranges[i][1] : set->ranges[j][1];
            if (low <= high) di_points_add(&part, low, high);
        }
    di_points_sort(&part);
    di_expr result = di_expr_points(p->x, &part, p->options.encoding);
    di_points_free(&words);
    di_points_free(&part);
    return result;
}

static di_expr any_word(parser *p, bool word) {
    di_points all = {0};
    di_points_add(&all, 0, 0x10FFFF);
    di_points_sort(&all);
    di_expr result = word_part(p, &all, word);
    di_points_free(&all);
    return result;
}

/* The language of a node without assertions. */
static di_expr plain(parser *p, node *n) {
    if (!di_exprs_spend(p->x, 1)) return DI_EXPR_EMPTY;
    di_expr result = n->kind == NODE_ALT ? DI_EXPR_EMPTY : DI_EXPR_EPSILON;
    switch (n->kind) {
    case NODE_CLASS:
        return class_expr(p, n);
    case NODE_REPEAT:
        return di_expr_repeat(p->x, plain(p, n->first), n->low, n->high);
    case NODE_ALT:
        for (node *i = n->first; i; i = i->next) result = di_expr_or2(p->x, result, plain(p, i));
        return result;
    default:
        break;
    }
    uint32_t count = 0;
    for (node *i = n->first; i; i = i->next) count++;
    node **list = di_arena_array(p->arena, count + 1, sizeof *list);
    if (!list) return p->x->failed = DI_ERR_MEMORY, DI_EXPR_EMPTY;
    count = 0;
    for (node *i = n->first; i; i = i->next) list[count++] = i;
    while (count) {
        node *i = list[--count];
        result = di_expr_cat(p->x, plain(p, i), result);
    }
    return result;
}

static bool same(const future *f) {
    return f->behind[AFTER_WORD] == f->behind[AFTER_OTHER];
}

/* A language without assertions in front of a future. */
static future put_before(parser *p, di_expr language, const future *f) {
    di_exprs *x = p->x;
    future out;
    if (same(f) && f->behind[AT_START] == f->behind[AFTER_WORD]) {
        out.behind[0] = out.behind[1] = out.behind[2] = di_expr_cat(x, language, f->behind[0]);
        return out;
    }
    di_expr some = di_expr_nonempty(x, language);
    if (same(f)) {
        some = di_expr_cat(x, some, f->behind[AFTER_WORD]);
    } else {
        di_expr all = any_star(p);
        di_expr word = di_expr_and2(x, language, di_expr_cat(x, all, any_word(p, true)));
        di_expr other = di_expr_and2(x, language, di_expr_cat(x, all, any_word(p, false)));
        some =
            di_expr_or2(x, di_expr_cat(x, word, f->behind[AFTER_WORD]), di_expr_cat(x, other, f->behind[AFTER_OTHER]));
    }
    for (int c = 0; c < 3; c++)
        out.behind[c] = di_expr_nullable(x, language) ? di_expr_or2(x, some, f->behind[c]) : some;
    if (same(f) && di_expr_nullable(x, language))
        out.behind[1] = out.behind[2] = di_expr_cat(x, language, f->behind[AFTER_WORD]);
    return out;
}

static future build(parser *p, node *n, future f);

static future build_sequence(parser *p, node *n, future f) {
    uint32_t count = 0;
    for (node *i = n->first; i; i = i->next) count++;
    node **list = di_arena_array(p->arena, count + 1, sizeof *list);
    if (!list) return p->x->failed = DI_ERR_MEMORY, f;
    count = 0;
    for (node *i = n->first; i; i = i->next) list[count++] = i;
    while (count && p->x->failed == DI_OK) f = build(p, list[--count], f);
    return f;
}

static future join(parser *p, const future *a, const future *b) {
    future out;
    for (int c = 0; c < 3; c++) out.behind[c] = di_expr_or2(p->x, a->behind[c], b->behind[c]);
    return out;
}

static future build_repeat(parser *p, node *n, future f) {
    if (n->high == DI_UNBOUNDED || n->high > MAX_UNROLLED) {
        refuse(p, DI_REASON_UNSUPPORTED, 0, "an assertion inside a repetition cannot be enforced");
        return f;
    }
    const future end = f;
    for (uint32_t i = n->low; i < n->high; i++) {
        future once = build(p, n->first, f);
        f = join(p, &once, &end);
    }
    for (uint32_t i = 0; i < n->low; i++) f = build(p, n->first, f);
    return f;
}

static future build_word(parser *p, const node *n, future f) {
    di_expr next = di_expr_cat(p->x, any_word(p, true), any_star(p)), other = di_expr_not(p->x, next);
    for (int c = 0; c < 3; c++) {
        bool wants_word = (c != AFTER_WORD) != n->negative;
        f.behind[c] = di_expr_and2(p->x, wants_word ? next : other, f.behind[c]);
    }
    return f;
}

static future build(parser *p, node *n, future f) {
    di_exprs *x = p->x;
    future out = {{DI_EXPR_EMPTY, DI_EXPR_EMPTY, DI_EXPR_EMPTY}};
    if (!di_exprs_spend(x, 1)) return out;
    switch (n->kind) {
    case NODE_BEGIN:
        out.behind[AT_START] = f.behind[AT_START];
        return out;
    case NODE_END:
        for (int c = 0; c < 3; c++)
            if (di_expr_nullable(x, f.behind[c])) out.behind[c] = DI_EXPR_EPSILON;
        return out;
    case NODE_WORD:
        return build_word(p, n, f);
    case NODE_LOOK: {
        di_expr all = any_star(p);
        future ahead = build(p, n->first, (future){{all, all, all}});
        for (int c = 0; c < 3; c++) {
            di_expr a = n->negative ? di_expr_not(x, ahead.behind[c]) : ahead.behind[c];
            out.behind[c] = di_expr_and2(x, a, f.behind[c]);
        }
        return out;
    }
    default:
        break;
    }
    if (n->kind == NODE_CLASS && !same(&f)) {
        di_expr word = di_expr_cat(x, word_part(p, &n->points, true), f.behind[AFTER_WORD]);
        di_expr other = di_expr_cat(x, word_part(p, &n->points, false), f.behind[AFTER_OTHER]);
        out.behind[0] = out.behind[1] = out.behind[2] = di_expr_or2(x, word, other);
        return out;
    }
    if (n->kind == NODE_CAT) return build_sequence(p, n, f);
    if (!n->asserts) return put_before(p, plain(p, n), &f);
    if (n->kind == NODE_REPEAT) return build_repeat(p, n, f);
    for (node *i = n->first; i; i = i->next) {
        future one = build(p, i, f);
        out = join(p, &out, &one);
    }
    return out;
}

static di_expr whole(parser *p, node *root) {
    di_exprs *x = p->x;
    if (!p->options.search) return build(p, root, (future){{1, 1, 1}}).behind[AT_START];
    di_expr all = any_star(p);
    future f = build(p, root, (future){{all, all, all}});
    if (same(&f) && f.behind[AT_START] == f.behind[AFTER_WORD]) return di_expr_cat(x, all, f.behind[0]);
    di_expr later = DI_EXPR_EMPTY;
    for (int c = AFTER_WORD; c <= AFTER_OTHER; c++) {
        if (f.behind[c] == DI_EXPR_EMPTY) continue;
        di_expr last = same(&f) ? di_expr_any_point(x, p->options.encoding) : any_word(p, c == AFTER_WORD);
        later = di_expr_or2(x, later, di_expr_cat(x, all, di_expr_cat(x, last, f.behind[c])));
    }
    return di_expr_or2(x, f.behind[AT_START], later);
}

bool di_regex_compile(di_exprs *x, const char *text, size_t length, const di_regex_options *options, di_expr *result,
                      di_regex_fault *fault) {
    *fault = (di_regex_fault){0};
    *result = DI_EXPR_EMPTY;
    parser p = {.x = x, .text = text, .length = length, .options = *options, .fault = fault};
    size_t bad = di_utf8_validate(text, length);
    if (bad != length) return refuse(&p, DI_REASON_SYNTAX, bad, "the expression is not valid UTF-8"), false;
    p.arena = di_arena_new(0);
    if (!p.arena) {
        x->failed = DI_ERR_MEMORY;
        return refuse(&p, DI_REASON_TOO_COMPLEX, 0, "out of memory"), false;
    }
    node *root = parse_alternatives(&p);
    p.options.encoding = options->encoding;
    if (root && more(&p)) refuse(&p, DI_REASON_SYNTAX, p.at, "there is no group to close here");
    if (fault->reason == DI_REASON_NONE && root) *result = whole(&p, root);
    if (x->failed != DI_OK)
        refuse(&p, DI_REASON_TOO_COMPLEX, 0,
               "this expression needs more work than the limits allow (--limit-grammar-work, --limit-grammar-memory)");
    for (node *n = p.classes; n; n = n->first) di_points_free(&n->points);
    di_arena_free(p.arena);
    return fault->reason == DI_REASON_NONE;
}
