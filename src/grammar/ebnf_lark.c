/* ebnf_lark.c - a subset of Lark: rules, terminals, strings, expressions, ranges, repetition, %import common, %ignore.
 * Every reading of a text counts, as with Lark's Earley parser and its dynamic_complete lexer. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "grammar/ebnf_parse.h"
#include "grammar/regex.h"

static const struct {
    const char *name, *expression;
} common[] = {
    {"DIGIT", "[0-9]"},
    {"HEXDIGIT", "[a-fA-F0-9]"},
    {"INT", "[0-9]+"},
    {"SIGNED_INT", "[+-]?[0-9]+"},
    {"DECIMAL", "[0-9]+\\.[0-9]*|\\.[0-9]+"},
    {"FLOAT", "[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_FLOAT", "[+-]?(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"NUMBER", "[0-9]+(?:[eE][+-]?[0-9]+)?|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?"},
    {"SIGNED_NUMBER", "[+-]?(?:[0-9]+(?:[eE][+-]?[0-9]+)?|(?:[0-9]+\\.[0-9]*|\\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"},
    {"ESCAPED_STRING", "\"(?:[^\"\\\\\\n]|\\\\[^\\n])*\""},
    {"LCASE_LETTER", "[a-z]"},
    {"UCASE_LETTER", "[A-Z]"},
    {"LETTER", "[A-Za-z]"},
    {"WORD", "[A-Za-z]+"},
    {"CNAME", "[_A-Za-z][_A-Za-z0-9]*"},
    {"WS_INLINE", "[ \\t]+"},
    {"WS", "[ \\t\\f\\r\\n]+"},
    {"CR", "\\r"},
    {"LF", "\\n"},
    {"NEWLINE", "(?:\\r?\\n)+"},
    {"SH_COMMENT", "#[^\\n]*"},
    {"CPP_COMMENT", "//[^\\n]*"},
    {"SQL_COMMENT", "--[^\\n]*"},
    {"C_COMMENT", "/\\*(?:[^*]|\\*+[^*/])*\\*+/"},
};

static void skip_inline(scanner *s) {
    while (di_scan_peek(s, 0) == ' ' || di_scan_peek(s, 0) == '\t' || di_scan_peek(s, 0) == '\r') s->at++;
    if (di_scan_peek(s, 0) == '#' || (di_scan_peek(s, 0) == '/' && di_scan_peek(s, 1) == '/'))
        while (s->at < s->length && di_scan_peek(s, 0) != '\n') s->at++;
}

static void skip_lines(scanner *s) {
    for (skip_inline(s); di_scan_peek(s, 0) == '\n'; skip_inline(s)) s->at++;
}

static bool letter(char c) {
    return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_';
}

static size_t take_name(scanner *s, const char **name) {
    size_t start = s->at;
    *name = s->text + start;
    if (!letter(di_scan_peek(s, 0))) return 0;
    while (letter(di_scan_peek(s, 0)) || (di_scan_peek(s, 0) >= '0' && di_scan_peek(s, 0) <= '9')) s->at++;
    return s->at - start;
}

static bool is_terminal(const char *name, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (name[i] != '_') return name[i] >= 'A' && name[i] <= 'Z';
    return false;
}

static part *expression(scanner *s, const char *text, size_t length, const di_regex_options *options, size_t at) {
    di_expr language;
    di_regex_fault fault;
    if (di_regex_compile(s->g->x, text, length, options, &language, &fault)) return di_ebnf_expr(s->g, language, at);
    return di_ebnf_refuse(s->g, fault.reason, at, "expression, byte %zu: %s", fault.position, fault.message);
}

static part *parse_expression(scanner *s) {
    size_t start = s->at++, end = s->at;
    di_regex_options options = {.encoding = DI_ENCODING_UTF8};
    while (end < s->length && s->text[end] != '/' && s->text[end] != '\n') end += s->text[end] == '\\' ? 2 : 1;
    if (end >= s->length || s->text[end] != '/')
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this expression is not closed");
    di_text text = {0}; /* \/ is an escape of the grammar */
    for (size_t i = s->at; i < end; i++) {
        if (s->text[i] == '\\' && s->text[i + 1] == '/')
            i++;
        else if (s->text[i] == '\\')
            di_text_putc(&text, s->text[i++]);
        di_text_putc(&text, s->text[i]);
    }
    s->at = end + 1;
    for (; letter(di_scan_peek(s, 0)); s->at++) {
        char c = di_scan_peek(s, 0);
        options.ignore_case = options.ignore_case || c == 'i';
        options.dot_all = options.dot_all || c == 's';
        options.extended = options.extended || c == 'x';
        if (!strchr("isxu", c)) di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, s->at, "the flag %c is not supported", c);
    }
    part *p = NULL;
    if (text.failed) s->g->x->failed = DI_ERR_MEMORY;
    if (!di_ebnf_failed(s->g)) p = expression(s, text.data ? text.data : "", text.length, &options, start);
    di_text_free(&text);
    return p;
}

/* The characters of a string, escapes taken out. False with the fault filled. */
static bool take_string(scanner *s, di_text *out) {
    static const char letters[] = "nrtfv\\\"'/", meanings[] = "\n\r\t\f\v\\\"'/";
    size_t start = s->at++;
    while (s->at < s->length && di_scan_peek(s, 0) != '"' && di_scan_peek(s, 0) != '\n') {
        char c = s->text[s->at++], bytes[4];
        if (c != '\\') {
            di_text_putc(out, c);
            continue;
        }
        c = di_scan_peek(s, 0);
        s->at += c != 0;
        const char *found = c ? strchr(letters, c) : NULL;
        uint32_t point = found ? (uint8_t)meanings[found - letters] : 0;
        size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0, n = 0;
        if (found || (digits && di_scan_hex(s, digits, digits, &point))) n = di_utf8_encode(point, bytes);
        if (!n) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "unknown escape"), false;
        di_text_append(out, bytes, n);
    }
    if (out->failed) s->g->x->failed = DI_ERR_MEMORY;
    if (di_scan_take(s, "\"")) return !di_ebnf_failed(s->g);
    return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this string is not closed"), false;
}

static part *parse_string(scanner *s) {
    size_t start = s->at;
    di_text low = {0}, high = {0};
    part *p = NULL;
    if (!take_string(s, &low)) {
    } else if (di_scan_peek(s, 0) == '.' && di_scan_peek(s, 1) == '.') {
        s->at += 2;
        uint32_t from = 0, to = 0;
        if (di_scan_peek(s, 0) != '"' || !take_string(s, &high) || !high.length || !low.length ||
            di_utf8_decode(low.data, low.length, &from) != low.length ||
            di_utf8_decode(high.data, high.length, &to) != high.length || from > to) {
            di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "a range goes from one character to a later one");
        } else {
            di_points points = {0};
            di_points_add(&points, from, to);
            p = di_scan_points(s, &points, false, start);
        }
    } else {
        bool ignore_case = di_scan_take(s, "i");
        if (low.length == 0)
            di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "an empty string is no terminal");
        else
            p = di_scan_literal(s, low.data, low.length, ignore_case, start);
    }
    di_text_free(&low);
    di_text_free(&high);
    return p;
}

static part *parse_choice(scanner *s, bool terminal);

/* A terminal in a rule, with what is ignored behind it. */
static part *with_ignored(scanner *s, part *p, bool terminal) {
    if (terminal || !p) return p;
    part *ignored = di_ebnf_part(s->g, PART_RULE, p->at), *both = di_ebnf_part(s->g, PART_SEQ, p->at);
    if (!ignored || !both) return NULL;
    ignored->rule = 0; /* the rule of what is ignored is made first */
    both->first = p;
    p->next = ignored;
    return both;
}

static part *parse_group(scanner *s, bool terminal, char close) {
    size_t start = s->at++;
    if (!di_scan_enter(s)) return NULL;
    part *inner = parse_choice(s, terminal);
    if (!inner) return NULL;
    s->nesting--;
    skip_lines(s);
    if (di_scan_peek(s, 0) != close) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this group is not closed");
    s->at++;
    if (close == ']') return di_ebnf_repeat(s->g, inner, 0, 1, start);
    part *p = di_ebnf_part(s->g, PART_SEQ, start);
    if (p) p->first = inner;
    return p;
}

static part *parse_atom(scanner *s, bool terminal) {
    char c = di_scan_peek(s, 0);
    const char *name;
    size_t start = s->at, length;
    if (c == '"') return with_ignored(s, parse_string(s), terminal);
    if (c == '/') return with_ignored(s, parse_expression(s), terminal);
    if (c == '(') return parse_group(s, terminal, ')');
    if (c == '[') return parse_group(s, terminal, ']');
    if (!(length = take_name(s, &name))) {
        bool extension = c == '<' || c == '%' || c == '~' || c == '&' || c == '@';
        return di_ebnf_refuse(s->g, extension ? DI_REASON_UNSUPPORTED : DI_REASON_SYNTAX, start,
                              c ? "'%c' has no meaning here" : "something must follow here", c);
    }
    if (di_scan_peek(s, 0) == '{')
        return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, start, "templates are not supported");
    part *p = di_ebnf_part(s->g, PART_RULE, start);
    if (!p) return NULL;
    p->rule = di_ebnf_rule(s->g, name, length, start);
    bool token = is_terminal(name, length);
    if (terminal && !token) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "a terminal cannot use a rule");
    return token ? with_ignored(s, p, terminal) : p;
}

static part *parse_item(scanner *s, bool terminal) {
    size_t start = s->at;
    part *p = parse_atom(s, terminal);
    if (!p) return NULL;
    char c = di_scan_peek(s, 0);
    if (c == '*' || c == '+' || c == '?') {
        s->at++;
        return di_ebnf_repeat(s->g, p, c == '+', c == '?' ? 1 : DI_UNBOUNDED, start);
    }
    skip_inline(s);
    if (!di_scan_take(s, "~")) return p;
    uint32_t low, high;
    skip_inline(s);
    if (!di_scan_number(s, &low)) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "~ needs a count");
    high = low;
    if (di_scan_take(s, "..") && !di_scan_number(s, &high))
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, ".. needs a count");
    if (low > high)
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "this repetition has a maximum below its minimum");
    return di_ebnf_repeat(s->g, p, low, high, start);
}

/* Goes over line ends if what follows goes on with the rule: "|", or anything inside a group. */
static void skip_on(scanner *s) {
    skip_inline(s);
    scanner ahead = *s;
    skip_lines(&ahead);
    if (s->nesting || di_scan_peek(&ahead, 0) == '|') s->at = ahead.at;
}

static part *parse_choice(scanner *s, bool terminal) {
    part_list choice = {0};
    size_t start = s->at;
    do {
        part_list list = {0};
        const char *alias;
        for (skip_on(s); di_scan_peek(s, 0) && !strchr("|)]\n", di_scan_peek(s, 0)); skip_on(s)) {
            if (di_scan_take(s, "->")) {
                skip_inline(s);
                take_name(s, &alias);
                continue;
            }
            part *p = parse_item(s, terminal);
            if (!p) return NULL;
            di_part_append(&list, p);
        }
        part *one = di_part_join(s, &list, PART_SEQ, start);
        if (!one) return NULL;
        di_part_append(&choice, one);
        skip_on(s);
    } while (di_scan_take(s, "|"));
    return di_part_join(s, &choice, PART_ALT, start);
}

/* -------------------------------------------------------------------------------------------------------- statements
 */

static bool define(scanner *s, uint32_t rule, part *body, size_t at) {
    if (!body || di_ebnf_failed(s->g)) return false;
    if (s->g->rules[rule].body) {
        const ebnf_rule *r = &s->g->rules[rule];
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, at, "\"%.*s\" is defined twice",
                              (int)(r->length > 60 ? 60 : r->length), r->name),
               false;
    }
    s->g->rules[rule].body = body;
    return true;
}

static bool import_one(scanner *s, const char *name, size_t length, const char *as, size_t as_length, size_t at) {
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (strlen(common[i].name) != length || memcmp(common[i].name, name, length) != 0) continue;
        di_regex_options options = {.encoding = DI_ENCODING_UTF8};
        part *p = expression(s, common[i].expression, strlen(common[i].expression), &options, at);
        return define(s, di_ebnf_rule(s->g, as, as_length, at), p, at);
    }
    return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, at, "common has no terminal \"%.*s\" here",
                          (int)(length > 60 ? 60 : length), name),
           false;
}

static bool parse_import(scanner *s) {
    size_t start = s->at;
    const char *name, *as;
    skip_inline(s);
    if (!di_scan_take(s, "common"))
        return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, start, "only common can be imported from"), false;
    if (di_scan_take(s, ".")) {
        size_t length = take_name(s, &name), as_length = length;
        as = name;
        skip_inline(s);
        if (di_scan_take(s, "->")) {
            skip_inline(s);
            as_length = take_name(s, &as);
        }
        return import_one(s, name, length, as, as_length, start);
    }
    skip_inline(s);
    if (!di_scan_take(s, "(")) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "names must follow"), false;
    for (skip_lines(s); !di_scan_take(s, ")"); skip_lines(s)) {
        size_t length = take_name(s, &name);
        if (!length || !import_one(s, name, length, name, length, start))
            return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "a name must stand here"), false;
        skip_lines(s);
        di_scan_take(s, ",");
    }
    return true;
}

static bool parse_directive(scanner *s) {
    size_t start = s->at;
    if (di_scan_take(s, "%import")) return parse_import(s);
    if (!di_scan_take(s, "%ignore"))
        return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, start,
                              "of directives only %%import and %%ignore are supported"),
               false;
    part *p = parse_choice(s, true);
    if (!p) return false;
    part *both = di_ebnf_part(s->g, PART_ALT, start);
    if (!both) return false;
    both->first = p;
    if (p->next) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "one terminal must follow"), false;
    p->next = s->g->ignored;
    s->g->ignored = both;
    return true;
}

static bool parse_statement(scanner *s) {
    const char *name;
    if (di_scan_peek(s, 0) == '%') return parse_directive(s);
    while (di_scan_peek(s, 0) == '?' || di_scan_peek(s, 0) == '!') s->at++;
    size_t start = s->at, length = take_name(s, &name);
    if (!length) return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, start, "a rule must begin with its name"), false;
    if (di_scan_peek(s, 0) == '{' || di_scan_peek(s, 0) == '.' || di_scan_peek(s, 0) == '[')
        return di_ebnf_refuse(s->g, DI_REASON_UNSUPPORTED, s->at,
                              "templates, priorities and attributes are not supported"),
               false;
    skip_inline(s);
    if (!di_scan_take(s, ":"))
        return di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, ": must follow the name of a rule"), false;
    uint32_t rule = di_ebnf_rule(s->g, name, length, start);
    part *body = parse_choice(s, is_terminal(name, length));
    if (di_scan_peek(s, 0) == ')' || di_scan_peek(s, 0) == ']')
        di_ebnf_refuse(s->g, DI_REASON_SYNTAX, s->at, "there is no group to close here");
    return define(s, rule, body, start);
}

bool di_lark_parse(ebnf *g) {
    scanner s = {.g = g, .text = g->source->text, .length = g->source->length};
    const char *name = g->source->start ? g->source->start : "start";
    di_ebnf_rule(g, " ignored", 8, 0); /* rule 0; no name of a grammar has a blank */
    for (skip_lines(&s); s.at < s.length && !di_ebnf_failed(g); skip_lines(&s))
        if (!parse_statement(&s)) return false;
    if (di_ebnf_failed(g)) return false;
    part *nothing = di_ebnf_part(g, PART_SEQ, 0);
    g->rules[0].body = g->ignored ? di_ebnf_repeat(g, g->ignored, 0, DI_UNBOUNDED, 0) : nothing;
    uint32_t start = di_ebnf_rule(g, name, strlen(name), 0);
    part *front = di_ebnf_part(g, PART_RULE, 0), *both = di_ebnf_part(g, PART_SEQ, 0);
    if (di_ebnf_failed(g) || !front || !both || !g->rules[start].body) return !di_ebnf_failed(g);
    /* What is ignored may stand in front of the whole, but not before every use of the start rule. */
    part *body = di_ebnf_part(g, PART_RULE, 0);
    uint32_t inner = di_ebnf_rule(g, " start", 6, 0);
    if (!body || di_ebnf_failed(g)) return false;
    both->first = front;
    front->next = body;
    body->rule = start;
    g->rules[inner].body = both;
    g->start = inner;
    return true;
}
