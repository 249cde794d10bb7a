/* needs: grammar tokenizer base */
/* Masks of string schemas against an independent recogniser: random patterns, bounds of the length, `not` and `oneOf`;
 * an automaton with sets of positions and a search for what completes the text. It shares no code with the library.
 * An argument is the number of schemas: the long run. */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    LETTERS = 4,
    CHARACTERS = LETTERS + 2, /* of tokens: letters, one that no pattern names, the quote */
    OTHER = LETTERS,
    QUOTE = LETTERS + 1,
    NEWLINE, /* in no token, but what completes a text may hold it */
    DOT = (1 << (LETTERS + 1)) - 1,
    ANY = DOT | 1 << NEWLINE,
    LONGEST = 3,
    TOKENS = CHARACTERS + CHARACTERS * CHARACTERS + CHARACTERS * CHARACTERS * CHARACTERS + 1,
    STATES = 60,
    PATTERNS = 2,
    SEEN = 1 << 13,
    NO_MAXIMUM = 1000
};
static const char spelled[CHARACTERS + 1] = "abcdz\"";

static uint64_t seed;
static unsigned wanted = 300;

static unsigned draw(unsigned below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

/* Thompson's automaton. A state has one edge for a set of characters, or up to two without. */
typedef struct automaton {
    unsigned char set[STATES]; /* bit by character; 0 = an edge that reads nothing */
    int to[STATES], other[STATES];
    int count, accepting;
    bool full;
    uint64_t start;
} automaton;

typedef struct schema {
    automaton patterns[PATTERNS];
    bool negated[PATTERNS], one_of;
    int count, minimum, maximum;
    di_text text;
} schema;

typedef struct place {
    uint64_t sets[PATTERNS];
    int length;
} place;

static int state(automaton *a, unsigned char set, int to, int other) {
    a->full = a->full || a->count == STATES;
    if (a->full) return 0; /* it is not used */
    a->set[a->count] = set;
    a->to[a->count] = to;
    a->other[a->count] = other;
    return a->count++;
}

/* Writes a random expression and adds its states before `next`, backwards; returns where it starts. */
static int expression(automaton *a, di_text *out, int next, int depth);

static int atom(automaton *a, di_text *out, int next, int depth) {
    if (depth > 2 || draw(3)) {
        unsigned low = draw(LETTERS), high = low + draw(LETTERS - low);
        unsigned char set = 0;
        for (unsigned c = low; c <= high; c++) set |= (unsigned char)(1 << c);
        switch (draw(6)) {
        case 0:
            di_text_putc(out, '.');
            set = DOT;
            break;
        case 1:
            di_text_printf(out, "[^%c-%c]", 'a' + low, 'a' + high);
            set = (unsigned char)(ANY & ~set);
            break;
        default:
            if (low == high)
                di_text_putc(out, (char)('a' + low));
            else
                di_text_printf(out, "[%c-%c]", 'a' + low, 'a' + high);
        }
        return state(a, set, next, -1);
    }
    di_text_puts(out, "(?:");
    int at = expression(a, out, next, depth + 1);
    di_text_putc(out, ')');
    return at;
}

static int repeated(automaton *a, di_text *out, int next, int depth) {
    if (a->count > STATES / 2 || draw(3)) return atom(a, out, next, depth);
    switch (draw(3)) {
    case 0: { /* the loop is closed when its body is known */
        int loop = state(a, 0, -1, next);
        a->to[loop] = atom(a, out, loop, depth + 1);
        di_text_putc(out, '*');
        return loop;
    }
    case 1: {
        int at = atom(a, out, next, depth + 1);
        di_text_putc(out, '?');
        return state(a, 0, at, next);
    }
    default: { /* x{2,3} of one letter, written out */
        unsigned low = 1 + draw(3), high = low + draw(3), letter = draw(LETTERS);
        int at = next;
        for (unsigned i = 0; i < high - low; i++)
            at = state(a, 0, state(a, (unsigned char)(1 << letter), at, -1), next);
        for (unsigned i = 0; i < low; i++) at = state(a, (unsigned char)(1 << letter), at, -1);
        di_text_printf(out, "%c{%u,%u}", 'a' + letter, low, high);
        return at;
    }
    }
}

/* Each part but the last ends in a state that is linked when the next one is there. */
static int sequence(automaton *a, di_text *out, int next, int depth) {
    int first = -1, hole = -1;
    for (unsigned parts = 1 + draw(3); parts; parts--) {
        int end = parts > 1 ? state(a, 0, -1, -1) : next;
        int at = repeated(a, out, end, depth);
        if (hole >= 0) a->to[hole] = at;
        if (first < 0) first = at;
        hole = end;
    }
    return first;
}

static int expression(automaton *a, di_text *out, int next, int depth) {
    int at = sequence(a, out, next, depth);
    if (a->count > STATES / 2 || draw(3)) return at;
    di_text_putc(out, '|');
    return state(a, 0, at, sequence(a, out, next, depth));
}

static uint64_t closure(const automaton *a, uint64_t set) {
    for (uint64_t before = 0; before != set;) {
        before = set;
        for (int s = 0; s < a->count; s++) {
            if (!(set >> s & 1) || a->set[s]) continue;
            if (a->to[s] >= 0) set |= (uint64_t)1 << a->to[s];
            if (a->other[s] >= 0) set |= (uint64_t)1 << a->other[s];
        }
    }
    return set;
}

static void pattern(automaton *a, di_text *out) {
    bool from_start = draw(2), to_end = draw(2);
    size_t length = out->length;
    a->count = 0;
    a->full = false;
    a->accepting = state(a, 0, -1, -1);
    int last = a->accepting;
    if (!to_end) {
        last = state(a, 0, -1, a->accepting);
        a->to[last] = state(a, ANY, last, -1);
    }
    if (from_start) di_text_putc(out, '^');
    di_text_puts(out, "(?:");
    int start = expression(a, out, last, 0);
    di_text_putc(out, ')');
    if (to_end) di_text_putc(out, '$');
    if (!from_start) {
        int loop = state(a, 0, -1, start);
        a->to[loop] = state(a, ANY, loop, -1);
        start = loop;
    }
    a->start = closure(a, (uint64_t)1 << start);
    if (!a->full) return;
    out->length = length;
    pattern(a, out);
}

static void random_schema(schema *s) {
    s->count = 1 + (int)draw(PATTERNS);
    s->one_of = s->count > 1 && draw(2);
    s->minimum = draw(3) ? 0 : (int)draw(6);
    s->maximum = draw(2) ? NO_MAXIMUM : s->minimum + (int)draw(14);
    s->text.length = 0;
    di_text_printf(&s->text, "{\"type\":\"string\",\"%s\":[", s->one_of ? "oneOf" : "allOf");
    for (int i = 0; i < s->count; i++) {
        s->negated[i] = !s->one_of && !draw(3);
        di_text_printf(&s->text, "%s%s{\"pattern\":\"", i ? "," : "", s->negated[i] ? "{\"not\":" : "");
        pattern(&s->patterns[i], &s->text);
        di_text_printf(&s->text, "\"}%s", s->negated[i] ? "}" : "");
    }
    di_text_printf(&s->text, "],\"minLength\":%d", s->minimum);
    if (s->maximum < NO_MAXIMUM) di_text_printf(&s->text, ",\"maxLength\":%d", s->maximum);
    di_text_putc(&s->text, '}');
}

/* ------------------------------------------------------------------------------------------------------- recogniser */

static bool holds(const schema *s, const place *p) {
    int found = 0;
    for (int i = 0; i < s->count; i++) found += (p->sets[i] >> s->patterns[i].accepting & 1) != s->negated[i];
    return p->length >= s->minimum && p->length <= s->maximum && (s->one_of ? found == 1 : found == s->count);
}

/* Lengths that nothing tells apart are one. */
static place read_character(const schema *s, const place *p, int character) {
    place next = {.length = p->length + 1};
    if (s->maximum == NO_MAXIMUM && next.length > s->minimum) next.length = s->minimum;
    for (int i = 0; i < s->count; i++) {
        const automaton *a = &s->patterns[i];
        for (int q = 0; q < a->count; q++)
            if (p->sets[i] >> q & 1 && a->set[q] >> character & 1) next.sets[i] |= (uint64_t)1 << a->to[q];
        next.sets[i] = closure(a, next.sets[i]);
    }
    return next;
}

static place queue[SEEN];

/* Breadth first; every place in the queue once. */
static bool completable(const schema *s, const place *from) {
    int count = 1;
    queue[0] = *from;
    for (int i = 0; i < count; i++) {
        if (holds(s, &queue[i])) return true;
        for (int c = 0; c <= NEWLINE; c++) {
            if (c == QUOTE) continue;
            place next = read_character(s, &queue[i], c);
            bool seen = next.length > s->maximum;
            for (int j = 0; j < count && !seen; j++) seen = memcmp(&queue[j], &next, sizeof next) == 0;
            if (seen) continue;
            assert_true(count < SEEN);
            queue[count++] = next;
        }
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------------------- tests
 */

static unsigned char texts[TOKENS][LONGEST]; /* characters */
static uint32_t lengths[TOKENS];
static char bytes[TOKENS][LONGEST];
static di_vocabulary *vocabulary;
static uint64_t bits_compared;

static int make_vocabulary(void **unused) {
    (void)unused;
    const char *spellings[TOKENS] = {0};
    int n = 0;
    for (int length = 1; length <= LONGEST; length++) {
        int count = 1;
        for (int i = 0; i < length; i++) count *= CHARACTERS;
        for (int code = 0; code < count; code++, n++) {
            for (int i = 0, rest = code; i < length; i++, rest /= CHARACTERS) {
                texts[n][i] = (unsigned char)(rest % CHARACTERS);
                bytes[n][i] = spelled[rest % CHARACTERS];
            }
            lengths[n] = (uint32_t)length;
            spellings[n] = bytes[n];
        }
    }
    const int32_t stop = TOKENS - 1;
    return di_vocabulary_new(spellings, lengths, TOKENS, &stop, 1, &vocabulary, NULL) != DI_OK;
}

static int free_vocabulary(void **unused) {
    (void)unused;
    di_vocabulary_free(vocabulary);
    return 0;
}

typedef struct cursor { /* before, in, behind the string */
    int phase;
    place at;
} cursor;

/* False if nothing completes the text then. */
static bool move(const schema *s, cursor *c, int character) {
    if (c->phase == 2 || (c->phase == 0 && character != QUOTE)) return false;
    if (c->phase == 0) {
        c->phase = 1;
        c->at = (place){0};
        for (int i = 0; i < s->count; i++) c->at.sets[i] = s->patterns[i].start;
        return true;
    }
    if (character == QUOTE) {
        c->phase = 2;
        return holds(s, &c->at);
    }
    c->at = read_character(s, &c->at, character);
    return c->at.length <= s->maximum;
}

static bool expected(const schema *s, cursor c, uint32_t token) {
    if (!lengths[token]) return c.phase == 2;
    for (uint32_t i = 0; i < lengths[token]; i++)
        if (!move(s, &c, texts[token][i])) return false;
    return c.phase != 1 || completable(s, &c.at);
}

static void walk(const schema *s, di_matcher *matcher) {
    uint64_t mask[(TOKENS + 63) / 64];
    cursor c = {0};
    di_grammar_state at = di_matcher_start(matcher);
    for (int step = 0; step < 6; step++) {
        assert_int_equal(di_matcher_mask(matcher, at, mask, NULL), DI_OK);
        uint32_t allowed = 0, choice = 0;
        for (uint32_t token = 0; token < TOKENS; token++) {
            bool right = expected(s, c, token), got = mask[token / 64] >> token % 64 & 1;
            if (right != got)
                fail_msg("step %d, token %.*s: %d, not %d\n%s", step, (int)lengths[token], bytes[token], got, right,
                         s->text.data);
            if (got && lengths[token] && draw(++allowed) == 0) choice = token;
        }
        bits_compared += TOKENS;
        if (draw(6) == 0) assert_int_equal(di_matcher_compact(matcher, &at, 1, NULL), DI_OK);
        if (!allowed) return;
        assert_int_equal(di_matcher_advance(matcher, at, choice, &at, NULL), DI_OK);
        for (uint32_t i = 0; i < lengths[choice]; i++) assert_true(move(s, &c, texts[choice][i]));
    }
}

static void test_random_patterns(void **unused) {
    (void)unused;
    schema s = {0};
    unsigned empty = 0, refused = 0;
    for (unsigned n = 0; n < wanted; n++) {
        seed = n + 1;
        random_schema(&s);
        di_grammar_source source = {.kind = DI_GRAMMAR_JSON_SCHEMA, .text = s.text.data, .length = s.text.length};
        di_grammar *grammar = NULL;
        di_grammar_fault fault;
        di_matcher *matcher = NULL;
        cursor start = {0};
        assert_true(move(&s, &start, QUOTE));
        bool satisfiable = completable(&s, &start.at);
        if (di_grammar_compile(&source, NULL, &grammar, &fault, NULL) != DI_OK) {
            if (fault.reason == DI_REASON_UNSATISFIABLE && satisfiable) fail_msg("%s\n%s", fault.message, s.text.data);
            empty += fault.reason == DI_REASON_UNSATISFIABLE;
            refused += fault.reason != DI_REASON_UNSATISFIABLE;
            continue;
        }
        if (!satisfiable) fail_msg("nothing follows\n%s", s.text.data);
        assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
        for (int i = 0; i < 2; i++) walk(&s, matcher);
        di_matcher_free(matcher);
        di_grammar_free(grammar);
    }
    di_text_free(&s.text);
    fprintf(stderr, "%llu bits compared, %u schemas empty, %u refused\n", (unsigned long long)bits_compared, empty,
            refused);
    assert_true(empty + refused < wanted / 2);
}

int main(int argc, char **argv) {
    if (argc > 1) wanted = (unsigned)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_patterns)};
    return cmocka_run_group_tests(tests, make_vocabulary, free_vocabulary);
}
