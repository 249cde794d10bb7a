/* needs: grammar tokenizer base */
/* Masks against an independent recogniser: random grammars, a textbook Earley parser over bytes, every token at every
 * state of random walks. The parser shares no code with the library and knows no lexemes, tries or memory. An argument
 * is the number of grammars: the long run. */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    RULES = 4,
    PRODUCTIONS = 3,
    SYMBOLS = 3,
    LETTERS = 4,
    LONGEST = 3,
    TOKENS = LETTERS + LETTERS * LETTERS + LETTERS * LETTERS * LETTERS + 1,
    TEXT = 24,
    ITEMS = 4096
};

static uint64_t seed;
static unsigned wanted_grammars = 4000;

static unsigned draw(unsigned below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

typedef struct symbol { /* a rule, or letters low..high */
    int rule, low, high;
} symbol;

typedef struct grammar {
    int rules, productions[RULES], sizes[RULES][PRODUCTIONS];
    symbol symbols[RULES][PRODUCTIONS][SYMBOLS];
    bool nullable[RULES];
} grammar;

/* The first production of each rule has letters only, so that every rule can be completed. */
static void random_grammar(grammar *g) {
    memset(g, 0, sizeof *g);
    g->rules = 1 + (int)draw(RULES);
    for (int r = 0; r < g->rules; r++) {
        g->productions[r] = 1 + (int)draw(PRODUCTIONS);
        for (int p = 0; p < g->productions[r]; p++) {
            g->sizes[r][p] = (int)draw(SYMBOLS + 1);
            if (g->sizes[r][p] == 0 && draw(2)) g->sizes[r][p] = 1;
            for (int i = 0; i < g->sizes[r][p]; i++) {
                symbol *s = &g->symbols[r][p][i];
                s->rule = p && draw(2) ? (int)draw((unsigned)g->rules) : -1;
                s->low = (int)draw(LETTERS);
                s->high = s->low + (int)draw((unsigned)(LETTERS - s->low));
            }
        }
    }
    for (int round = 0; round < RULES; round++)
        for (int r = 0; r < g->rules; r++)
            for (int p = 0; p < g->productions[r]; p++) {
                bool empty = true;
                for (int i = 0; i < g->sizes[r][p]; i++) {
                    const symbol *s = &g->symbols[r][p][i];
                    empty = empty && s->rule >= 0 && g->nullable[s->rule];
                }
                g->nullable[r] = g->nullable[r] || empty;
            }
}

static void write_gbnf(const grammar *g, di_text *out) {
    for (int r = 0; r < g->rules; r++) {
        di_text_printf(out, r ? "r%d ::=" : "root ::=", r);
        for (int p = 0; p < g->productions[r]; p++) {
            if (p) di_text_puts(out, " |");
            if (g->sizes[r][p] == 0) di_text_puts(out, " \"\"");
            for (int i = 0; i < g->sizes[r][p]; i++) {
                const symbol *s = &g->symbols[r][p][i];
                if (s->rule > 0)
                    di_text_printf(out, " r%d", s->rule);
                else if (s->rule == 0)
                    di_text_puts(out, " root");
                else
                    di_text_printf(out, " [%c-%c]", 'a' + s->low, 'a' + s->high);
            }
        }
        di_text_putc(out, '\n');
    }
}

/* ------------------------------------------------------------------------------------------------------------ Earley
 */

typedef struct item {
    short rule, production, dot, origin;
} item;

typedef struct chart {
    item sets[TEXT + 1][ITEMS];
    int counts[TEXT + 1];
} chart;

static void add_item(chart *c, int at, item new) {
    for (int i = 0; i < c->counts[at]; i++)
        if (memcmp(&c->sets[at][i], &new, sizeof new) == 0) return;
    assert_true(c->counts[at] < ITEMS);
    c->sets[at][c->counts[at]++] = new;
}

static void close_set(const grammar *g, chart *c, int at) {
    for (int i = 0; i < c->counts[at]; i++) {
        item it = c->sets[at][i];
        if (it.dot == g->sizes[it.rule][it.production]) {
            for (int j = 0; j < c->counts[it.origin]; j++) {
                item from = c->sets[it.origin][j];
                if (from.dot == g->sizes[from.rule][from.production]) continue;
                if (g->symbols[from.rule][from.production][from.dot].rule != it.rule) continue;
                from.dot++;
                add_item(c, at, from);
            }
            continue;
        }
        const symbol *s = &g->symbols[it.rule][it.production][it.dot];
        if (s->rule < 0) continue;
        for (int p = 0; p < g->productions[s->rule]; p++)
            add_item(c, at, (item){(short)s->rule, (short)p, 0, (short)at});
        if (g->nullable[s->rule]) {
            it.dot++;
            add_item(c, at, it);
        }
    }
}

static void start_chart(const grammar *g, chart *c) {
    c->counts[0] = 0;
    for (int p = 0; p < g->productions[0]; p++) add_item(c, 0, (item){0, (short)p, 0, 0});
    close_set(g, c, 0);
}

/* Reads a letter at position `at`; false if no text goes on like this. */
static bool read_letter(const grammar *g, chart *c, int at, char letter) {
    c->counts[at + 1] = 0;
    for (int i = 0; i < c->counts[at]; i++) {
        item it = c->sets[at][i];
        if (it.dot == g->sizes[it.rule][it.production]) continue;
        const symbol *s = &g->symbols[it.rule][it.production][it.dot];
        if (s->rule >= 0 || letter - 'a' < s->low || letter - 'a' > s->high) continue;
        it.dot++;
        add_item(c, at + 1, it);
    }
    close_set(g, c, at + 1);
    return c->counts[at + 1] > 0;
}

static bool may_end(const grammar *g, const chart *c, int at) {
    for (int i = 0; i < c->counts[at]; i++) {
        item it = c->sets[at][i];
        if (it.rule == 0 && it.origin == 0 && it.dot == g->sizes[0][it.production]) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------------------------------------- tests
 */

static char texts[TOKENS][LONGEST + 1];
static uint32_t lengths[TOKENS];
static chart *shared;
static di_vocabulary *vocabulary;
static uint64_t bits_compared;

static int make_vocabulary(void **state) {
    (void)state;
    const char *bytes[TOKENS] = {0};
    int n = 0;
    for (int length = 1; length <= LONGEST; length++) {
        int count = 1;
        for (int i = 0; i < length; i++) count *= LETTERS;
        for (int code = 0; code < count; code++, n++) {
            for (int i = 0, rest = code; i < length; i++, rest /= LETTERS) texts[n][i] = (char)('a' + rest % LETTERS);
            lengths[n] = (uint32_t)length;
            bytes[n] = texts[n];
        }
    }
    const int32_t stop = TOKENS - 1;
    shared = malloc(sizeof *shared);
    return !shared || di_vocabulary_new(bytes, lengths, TOKENS, &stop, 1, &vocabulary, NULL) != DI_OK;
}

static int free_vocabulary(void **state) {
    (void)state;
    di_vocabulary_free(vocabulary);
    free(shared);
    return 0;
}

static void compare_mask(const grammar *g, di_matcher *matcher, di_grammar_state state, int at, const char *source) {
    uint64_t mask[(TOKENS + 63) / 64];
    bool complete;
    assert_int_equal(di_matcher_mask(matcher, state, mask, NULL), DI_OK);
    assert_int_equal(di_matcher_complete(matcher, state, &complete, NULL), DI_OK);
    for (uint32_t token = 0; token < TOKENS; token++) {
        bool wanted = lengths[token] ? true : may_end(g, shared, at);
        for (uint32_t i = 0; wanted && i < lengths[token]; i++)
            wanted = read_letter(g, shared, at + (int)i, texts[token][i]);
        bool got = mask[token / 64] >> token % 64 & 1;
        bits_compared++;
        if (wanted != got) fail_msg("token \"%s\" at %d: %d, not %d\n%s", texts[token], at, got, wanted, source);
    }
    assert_int_equal(complete, may_end(g, shared, at));
}

static void walk(const grammar *g, di_matcher *matcher, const char *source) {
    di_grammar_state state = di_matcher_start(matcher), next;
    uint64_t mask[(TOKENS + 63) / 64];
    int at = 0;
    start_chart(g, shared);
    while (at + LONGEST <= 15) {
        if (di_matcher_mask(matcher, state, mask, NULL) != DI_OK) fail_msg("no mask at %d of\n%s", at, source);
        compare_mask(g, matcher, state, at, source);
        if (draw(5) == 0) assert_int_equal(di_matcher_compact(matcher, &state, 1, NULL), DI_OK);
        uint32_t token = draw(TOKENS - 1), tried = 0;
        while (!(mask[token / 64] >> token % 64 & 1) && tried++ < TOKENS) token = (token + 1) % (TOKENS - 1);
        if (!(mask[token / 64] >> token % 64 & 1)) break; /* the text must end here */
        assert_int_equal(di_matcher_advance(matcher, state, token, &next, NULL), DI_OK);
        assert_int_not_equal(next, DI_GRAMMAR_REJECT);
        for (uint32_t i = 0; i < lengths[token]; i++) assert_true(read_letter(g, shared, at++, texts[token][i]));
        state = next;
    }
}

static void test_random_grammars(void **unused) {
    (void)unused;
    unsigned compiled = 0, refused = 0;
    for (seed = 1; compiled < wanted_grammars;) {
        uint64_t own = seed + compiled + refused;
        seed = own;
        grammar g;
        di_text source = {0};
        random_grammar(&g);
        write_gbnf(&g, &source);
        di_grammar_source s = {.kind = DI_GRAMMAR_GBNF, .text = source.data, .length = source.length};
        di_grammar *made = NULL;
        di_grammar_fault fault;
        if (di_grammar_compile(&s, NULL, &made, &fault, NULL) == DI_OK) {
            di_matcher *matcher = NULL;
            assert_int_equal(di_matcher_new(made, vocabulary, &matcher, NULL), DI_OK);
            for (int i = 0; i < 3; i++) walk(&g, matcher, source.data);
            di_matcher_free(matcher);
            compiled++;
        } else {
            assert_int_equal(fault.reason, DI_REASON_UNSUPPORTED); /* left recursion behind an empty part */
            refused++;
        }
        di_grammar_free(made);
        di_text_free(&source);
    }
    fprintf(stderr, "%llu bits compared, %u grammars refused\n", (unsigned long long)bits_compared, refused);
    assert_true(refused < compiled / 2);
}

int main(int argc, char **argv) {
    if (argc > 1) wanted_grammars = (unsigned)strtoul(argv[1], NULL, 10);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_grammars)};
    return cmocka_run_group_tests(tests, make_vocabulary, free_vocabulary);
}
