/* ebnf_parse.c - GBNF, W3C and ISO notation; see ebnf.h. */
#include "grammar/ebnf_parse.h"

#include <stdlib.h>
#include <string.h>

#include "base/text.h"

/* --------------------------------------------------------------------------------------------------------- scanning */

char di_scan_peek(const scanner *s, size_t ahead) {
    return s->length - s->at > ahead ? s->text[s->at + ahead] : '\0';
}

bool di_scan_take(scanner *s, const char *text) {
    size_t n = strlen(text);
    if (s->length - s->at < n || memcmp(s->text + s->at, text, n) != 0) return false;
    s->at += n;
    return true;
}

uint32_t di_scan_point(scanner *s) {
    uint32_t point = 0xFFFD;
    size_t used = di_utf8_decode(s->text + s->at, s->length - s->at, &point);
    s->at += used ? used : 1;
    return point;
}

bool di_scan_number(scanner *s, uint32_t *value) {
    size_t start = s->at;
    uint64_t n = 0;
    for (; di_scan_peek(s, 0) >= '0' && di_scan_peek(s, 0) <= '9'; s->at++) {
        n = n * 10 + (uint64_t)(di_scan_peek(s, 0) - '0');
        if (n > EBNF_REPEAT) return false;
    }
    *value = (uint32_t)n;
    return s->at > start;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
}

bool di_scan_hex(scanner *s, size_t least, size_t most, uint32_t *value) {
    size_t n = 0;
    *value = 0;
    for (; n < most && hex_digit(di_scan_peek(s, 0)) >= 0; n++, s->at++)
        *value = *value << 4 | (uint32_t)hex_digit(di_scan_peek(s, 0));
    return n >= least;
}

bool di_scan_enter(scanner *s) {
    if (++s->nesting <= EBNF_NESTING) return true;
    di_ebnf_refuse(s->g, DI_REASON_TOO_COMPLEX, s->at, "groups are nested more than %d deep", EBNF_NESTING);
    return false;
}

part *di_scan_points(scanner *s, di_points *points, bool inverted, size_t at) {
    di_points_sort(points);
    if (inverted) di_points_invert(points);
    di_expr expr = di_expr_points(s->g->x, points, DI_ENCODING_UTF8);
    di_points_free(points);
    return di_ebnf_expr(s->g, expr, at);
}

part *di_scan_literal(scanner *s, const char *utf8, size_t length, bool ignore_case, size_t at) {
    di_exprs *x = s->g->x;
    di_expr result = DI_EXPR_EPSILON;
    for (size_t i = length; i > 0; i--) {
        char c = utf8[i - 1];
        bool letter = ignore_case && (c | 0x20) >= 'a' && (c | 0x20) <= 'z';
        di_expr one = di_expr_byte(x, (uint8_t)c);
        if (letter) one = di_expr_or2(x, one, di_expr_byte(x, (uint8_t)(c ^ 0x20)));
        result = di_expr_cat(x, one, result);
    }
    return di_ebnf_expr(s->g, result, at);
}

void di_part_append(part_list *list, part *p) {
    if (list->last)
        list->last->next = p;
    else
        list->first = p;
    list->last = p;
    list->count++;
}

part *di_part_join(scanner *s, part_list *list, part_kind kind, size_t at) {
    if (list->count == 1) return list->first;
    part *p = di_ebnf_part(s->g, kind, at);
    if (p) p->first = list->first;
    return p;
}

/* --------------------------------------------------------------------------------------------------------- dialects */

static di_grammar_kind dialect(const scanner *s) {
    return s->g->source->kind;
}

/* A comment whose opening mark was taken at `start`; in ISO 14977 there may be others in it. */
static bool skip_comment(scanner *s, size_t start) {
    bool nests = dialect(s) == DI_GRAMMAR_ISO;
    for (uint64_t depth = 1; depth;) {
        if (s->at >= s->length) {
            di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this comment is not closed");
            return false;
        }
        if (di_scan_take(s, nests ? "*)" : "*/"))
            depth--;
        else if (nests && di_scan_take(s, "(*"))
            depth++;
        else
            s->at++;
    }
    return true;
}

/* White space and comments. */
static void skip(scanner *s) {
    for (;;) {
        char c = di_scan_peek(s, 0);
        const char *open = dialect(s) == DI_GRAMMAR_W3C ? "/*" : "(*";
        size_t start = s->at;
        if (c && strchr(" \t\r\n\f", c)) {
            s->at++;
        } else if (dialect(s) == DI_GRAMMAR_GBNF && c == '#') {
            while (s->at < s->length && di_scan_peek(s, 0) != '\n') s->at++;
        } else if (dialect(s) != DI_GRAMMAR_GBNF && di_scan_take(s, open)) {
            if (!skip_comment(s, start)) return;
        } else {
            return;
        }
    }
}

static bool name_char(const scanner *s, char c, bool first) {
    if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') return true;
    if (c == '_' || (first && dialect(s) != DI_GRAMMAR_GBNF)) return c == '_';
    return (c >= '0' && c <= '9') || (c == '-' && dialect(s) != DI_GRAMMAR_ISO) ||
           (c == '.' && dialect(s) == DI_GRAMMAR_W3C);
}

/* A name; ISO names may consist of several words. Length 0 if there is none. */
static size_t take_name(scanner *s, const char **name) {
    size_t start = s->at, end;
    *name = s->text + start;
    if (!name_char(s, di_scan_peek(s, 0), true)) return 0;
    for (;;) {
        while (name_char(s, di_scan_peek(s, 0), false)) s->at++;
        end = s->at;
        if (dialect(s) != DI_GRAMMAR_ISO) break;
        while (di_scan_peek(s, 0) == ' ') s->at++;
        if (!name_char(s, di_scan_peek(s, 0), false)) break;
    }
    s->at = end;
    return end - start;
}

static bool take_definition(scanner *s) {
    return di_scan_take(s, dialect(s) == DI_GRAMMAR_ISO ? "=" : "::=");
}

/* "[12]" in front of a W3C rule. */
static void skip_rule_number(scanner *s) {
    size_t start = s->at;
    if (dialect(s) != DI_GRAMMAR_W3C || !di_scan_take(s, "[")) return;
    while (name_char(s, di_scan_peek(s, 0), false)) s->at++;
    if (!di_scan_take(s, "]")) {
        s->at = start;
        return;
    }
    skip(s);
}

/* True if the next rule begins here: nothing is taken. */
static bool at_rule(const scanner *s) {
    scanner ahead = *s;
    const char *name;
    if (dialect(s) == DI_GRAMMAR_ISO) return false;
    skip_rule_number(&ahead);
    if (!take_name(&ahead, &name)) return false;
    while (di_scan_peek(&ahead, 0) && strchr(" \t\r\n", di_scan_peek(&ahead, 0))) ahead.at++;
    return take_definition(&ahead);
}

static part *parse_choice(scanner *s);

/* A character of a GBNF string or class, or of a W3C class. */
static bool take_character(scanner *s, uint32_t *point) {
    size_t start = s->at;
    if (dialect(s) == DI_GRAMMAR_W3C) {
        if (!di_scan_take(s, "#x")) return *point = di_scan_point(s), true;
        if (di_scan_hex(s, 1, 6, point) && *point <= 0x10FFFF) return true;
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "#x needs one to six hexadecimal digits"), false;
    }
    if (!di_scan_take(s, "\\")) return *point = di_scan_point(s), true;
    static const char letters[] = "nrt", meanings[] = "\n\r\t";
    char c = di_scan_peek(s, 0);
    const char *found = c ? strchr(letters, c) : NULL;
    s->at += c != 0;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (found) return *point = (uint8_t)meanings[found - letters], true;
    if (digits && di_scan_hex(s, digits, digits, point)) return true;
    if (!digits && c && strchr("\\\"[]^-/.", c)) return *point = (uint8_t)c, true;
    return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "unknown escape"), false;
}

static part *parse_string(scanner *s) {
    size_t start = s->at;
    char quote = s->text[s->at++];
    di_text out = {0};
    while (s->at < s->length && di_scan_peek(s, 0) != quote) {
        char bytes[4];
        uint32_t point;
        if (dialect(s) != DI_GRAMMAR_GBNF) {
            di_text_putc(&out, s->text[s->at++]);
        } else if (!take_character(s, &point)) {
            break;
        } else {
            size_t n = di_utf8_encode(point, bytes);
            if (!n) di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "an escape here is no character");
            di_text_append(&out, bytes, n);
        }
    }
    part *p = NULL;
    bool closed = di_scan_peek(s, 0) == quote && s->at < s->length;
    if (!closed) di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this string is not closed");
    if (out.failed) s->g->x->failed = DI_ERR_MEMORY;
    if (!di_ebnf_failed(s->g)) p = di_scan_literal(s, out.data ? out.data : "", out.length, false, start);
    s->at += closed;
    di_text_free(&out);
    return p;
}

static part *parse_class(scanner *s) {
    size_t start = s->at++;
    di_points points = {0};
    bool inverted = di_scan_take(s, "^");
    while (s->at < s->length && di_scan_peek(s, 0) != ']') {
        uint32_t low, high;
        size_t here = s->at;
        if (!take_character(s, &low)) break;
        high = low;
        if (di_scan_peek(s, 0) == '-' && di_scan_peek(s, 1) != ']') {
            s->at++;
            if (!take_character(s, &high)) break;
        }
        if (low > high) di_ebnf_refuse(s->g, DI_REASON_SYNTAX, here, "this range of characters runs backwards");
        di_points_add(&points, low, high);
    }
    if (!di_scan_take(s, "]")) di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this class of characters is not closed");
    if (!di_ebnf_failed(s->g)) return di_scan_points(s, &points, inverted, start);
    di_points_free(&points);
    return NULL;
}

/* <[1000]>: the token of that id. */
static part *parse_token(scanner *s) {
    size_t start = s->at;
    uint32_t id;
    if (di_scan_take(s, "<[") && di_scan_number(s, &id) && di_scan_take(s, "]>")) {
        part *p = di_ebnf_part(s->g, PART_TOKEN, start);
        if (p) p->low = id;
        return p;
    }
    return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, start, "tokens are written by their id, as <[1000]>");
}

static part *parse_group(scanner *s, const char *open, const char *close, uint32_t low, uint32_t high) {
    size_t start = s->at;
    di_scan_take(s, open);
    if (!di_scan_enter(s)) return NULL;
    part *inner = parse_choice(s);
    if (!inner) return NULL;
    s->nesting--;
    if (!di_scan_take(s, close)) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this group is not closed");
    if (low == 1 && high == 1) { /* its own part: it may be the head of a list of siblings */
        part *p = di_ebnf_part(s->g, PART_SEQ, start);
        if (p) p->first = inner;
        return p;
    }
    return di_ebnf_repeat(s->g, inner, low, high, start);
}

static part *parse_name(scanner *s) {
    size_t start = s->at;
    const char *name;
    size_t length = take_name(s, &name);
    part *p = di_ebnf_part(s->g, PART_RULE, start);
    if (p) p->rule = di_ebnf_rule(s->g, name, length, start);
    return p;
}

static part *parse_iso_atom(scanner *s) {
    char c = di_scan_peek(s, 0);
    if (c == '[') return parse_group(s, "[", "]", 0, 1);
    if (c == '{') return parse_group(s, "{", "}", 0, DI_UNBOUNDED);
    if (c == '?') return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, s->at, "special sequences have no meaning here");
    return NULL;
}

static part *parse_atom(scanner *s) {
    char c = di_scan_peek(s, 0);
    if (c == '"' || (c == '\'' && dialect(s) != DI_GRAMMAR_GBNF)) return parse_string(s);
    if (c == '(') return parse_group(s, "(", ")", 1, 1);
    if (dialect(s) == DI_GRAMMAR_ISO && c && strchr("[{?", c)) return parse_iso_atom(s);
    if (c == '[') return parse_class(s);
    if (c == '.' && dialect(s) == DI_GRAMMAR_GBNF) {
        di_points none = {0};
        s->at++;
        return di_scan_points(s, &none, true, s->at - 1);
    }
    if ((c == '<' || c == '!') && dialect(s) == DI_GRAMMAR_GBNF) return parse_token(s);
    if (c == '#' && dialect(s) == DI_GRAMMAR_W3C) {
        di_points one = {0};
        size_t start = s->at;
        uint32_t point;
        if (!take_character(s, &point)) return NULL;
        di_points_add(&one, point, point);
        return di_scan_points(s, &one, false, start);
    }
    if (name_char(s, c, true)) return parse_name(s);
    if (!c) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "the grammar ends where something must follow");
    return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "'%c' has no meaning here", c);
}

/* {m}, {m,}, {m,n}, {,n} of GBNF. */
static part *parse_counts(scanner *s, part *p) {
    size_t start = s->at++;
    uint32_t low = 0, high;
    bool given = di_scan_number(s, &low);
    skip(s);
    high = low;
    if (di_scan_take(s, ",")) {
        skip(s);
        if (!di_scan_number(s, &high)) high = DI_UNBOUNDED;
        skip(s);
    } else if (!given) {
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "a repetition is written {m}, {m,} or {m,n}");
    }
    if (!di_scan_take(s, "}")) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this repetition is not closed");
    if (low > high)
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this repetition has a maximum below its minimum");
    return di_ebnf_repeat(s->g, p, low, high, start);
}

static part *parse_postfix(scanner *s, part *p) {
    while (p && dialect(s) != DI_GRAMMAR_ISO) {
        size_t start = s->at;
        if (dialect(s) == DI_GRAMMAR_W3C) skip(s);
        char c = di_scan_peek(s, 0);
        if (c == '*' || c == '+' || c == '?') {
            s->at++;
            p = di_ebnf_repeat(s->g, p, c == '+', c == '?' ? 1 : DI_UNBOUNDED, start);
        } else if (c == '{' && dialect(s) == DI_GRAMMAR_GBNF) {
            p = parse_counts(s, p);
        } else {
            s->at = start;
            break;
        }
    }
    return p;
}

static part *parse_difference(scanner *s, part *p) {
    skip(s);
    size_t start = s->at;
    if (!p || dialect(s) == DI_GRAMMAR_GBNF || !di_scan_take(s, "-")) return p;
    skip(s);
    part *out = di_ebnf_part(s->g, PART_MINUS, start), *without = NULL;
    if (dialect(s) == DI_GRAMMAR_ISO && di_scan_peek(s, 0) && strchr(",|;.)]}/!", di_scan_peek(s, 0)))
        without = di_ebnf_expr(s->g, DI_EXPR_EPSILON, start); /* {x}-: at least one */
    else
        without = parse_postfix(s, parse_atom(s));
    if (!out || !without) return NULL;
    out->first = p;
    p->next = without;
    return out;
}

static part *parse_term(scanner *s) {
    if (dialect(s) == DI_GRAMMAR_ISO && di_scan_peek(s, 0) >= '0' && di_scan_peek(s, 0) <= '9') {
        size_t start = s->at;
        uint32_t count;
        if (!di_scan_number(s, &count))
            return di_ebnf_refuse(s->g, DI_REASON_TOO_COMPLEX, start, "this count is too large");
        skip(s);
        if (!di_scan_take(s, "*")) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "a count needs * behind it");
        skip(s);
        return parse_difference(s, di_ebnf_repeat(s->g, parse_atom(s), count, count, start));
    }
    return parse_difference(s, parse_postfix(s, parse_atom(s)));
}

static bool sequence_ends(const scanner *s) {
    char c = di_scan_peek(s, 0);
    if (!c || c == '|' || c == ')' || s->at >= s->length) return true;
    if (dialect(s) == DI_GRAMMAR_ISO) return strchr(";.]}/!", c) != NULL;
    return s->nesting == 0 && at_rule(s);
}

static part *parse_sequence(scanner *s) {
    part_list list = {0};
    size_t start = s->at;
    for (skip(s); !sequence_ends(s) && !di_ebnf_failed(s->g); skip(s)) {
        part *p = parse_term(s);
        if (!p) return NULL;
        di_part_append(&list, p);
        skip(s);
        if (dialect(s) != DI_GRAMMAR_ISO || sequence_ends(s)) continue;
        if (!di_scan_take(s, ","))
            return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "parts are separated by commas");
    }
    return di_ebnf_failed(s->g) ? NULL : di_part_join(s, &list, PART_SEQ, start);
}

static part *parse_choice(scanner *s) {
    part_list list = {0};
    size_t start = s->at;
    do {
        part *p = parse_sequence(s);
        if (!p) return NULL;
        di_part_append(&list, p);
        skip(s);
    } while (di_scan_take(s, "|") || (dialect(s) == DI_GRAMMAR_ISO && (di_scan_take(s, "/") || di_scan_take(s, "!"))));
    return di_part_join(s, &list, PART_ALT, start);
}

static bool parse_rule(scanner *s) {
    skip_rule_number(s);
    size_t start = s->at;
    const char *name;
    size_t length = take_name(s, &name);
    if (!length) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "a rule must begin with its name"), false;
    uint32_t rule = di_ebnf_rule(s->g, name, length, start);
    skip(s);
    if (!take_definition(s))
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "%s must follow the name of a rule",
                              dialect(s) == DI_GRAMMAR_ISO ? "=" : "::="),
               false;
    if (di_ebnf_failed(s->g)) return false;
    if (s->g->rules[rule].body)
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "the rule \"%.*s\" is there twice",
                              (int)(length > 60 ? 60 : length), name),
               false;
    part *body = parse_choice(s);
    if (!body || di_ebnf_failed(s->g)) return false;
    s->g->rules[rule].body = body;
    if (s->g->start == UINT32_MAX) s->g->start = rule;
    skip(s);
    if (dialect(s) == DI_GRAMMAR_ISO && !di_scan_take(s, ";") && !di_scan_take(s, "."))
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "a rule ends with ; or ."), false;
    if (di_scan_peek(s, 0) == ')')
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "there is no group to close here"), false;
    return true;
}

/* The start rule by name, or the dialect's default. */
static bool find_start(ebnf *g) {
    const char *name = g->source->start;
    if (!name && g->source->kind == DI_GRAMMAR_GBNF) name = "root";
    if (!name && g->source->kind == DI_GRAMMAR_LARK) name = "start";
    if (g->rule_count == 0) return di_ebnf_refuse(g, DI_REASON_SYNTAX, 0, "there is no rule"), false;
    if (!name) return true;
    for (uint32_t i = 0; i < g->rule_count; i++)
        if (g->rules[i].length == strlen(name) && memcmp(g->rules[i].name, name, g->rules[i].length) == 0)
            return g->start = i, true;
    return di_ebnf_refuse(g, DI_REASON_SYNTAX, 0, "there is no rule \"%.60s\" to start with", name), false;
}

bool di_ebnf_parse(ebnf *g) {
    scanner s = {.g = g, .text = g->source->text, .length = g->source->length};
    if (g->source->kind == DI_GRAMMAR_LARK) return di_lark_parse(g) && (g->start != UINT32_MAX || find_start(g));
    for (skip(&s); s.at < s.length && !di_ebnf_failed(g); skip(&s))
        if (!parse_rule(&s)) return false;
    return !di_ebnf_failed(g) && find_start(g);
}
