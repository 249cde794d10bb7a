/* needs: grammar tokenizer base */
/* A text without end in bounded memory: whatever states it goes through, forgetting keeps what it can still become. */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BYTES = 256, STOP = BYTES, WORDS = (BYTES + 1 + 63) / 64, TOKENS = 100000, ALLOWED = 1 << 20 };

static uint64_t seed = 1;

static unsigned draw(unsigned below) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33) % below;
}

static di_vocabulary *vocabulary;

static int make_vocabulary(void **unused) {
    (void)unused;
    static char bytes[BYTES];
    const char *spellings[BYTES + 1] = {0};
    uint32_t lengths[BYTES + 1] = {0};
    for (int b = 0; b < BYTES; b++) {
        bytes[b] = (char)b;
        spellings[b] = &bytes[b];
        lengths[b] = 1;
    }
    const int32_t stop = STOP;
    return di_vocabulary_new(spellings, lengths, BYTES + 1, &stop, 1, &vocabulary, NULL) != DI_OK;
}

static int free_vocabulary(void **unused) {
    (void)unused;
    di_vocabulary_free(vocabulary);
    return 0;
}

/* Objects of 40 optional keys in any order have 2^40 states. */
static di_matcher *open_matcher(void) {
    di_text text = {0};
    di_text_puts(
        &text, "{\"type\":\"array\",\"minItems\":1000000,\"items\":{\"type\":\"object\",\"additionalProperties\":false,"
               "\"minProperties\":12,\"properties\":{");
    for (int i = 0; i < 40; i++)
        di_text_printf(&text, "%s\"%c%c\":{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", i ? "," : "",
                       'a' + i % 26, 'a' + i * 7 % 26, i, 3 * i + 9);
    di_text_puts(&text, "}}}");
    di_grammar_source source = {
        .kind = DI_GRAMMAR_JSON_SCHEMA, .text = text.data, .length = text.length, .order = DI_ORDER_ANY};
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    di_error error = {0};
    if (di_grammar_compile(&source, NULL, &grammar, NULL, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    di_grammar_free(grammar);
    di_text_free(&text);
    return matcher;
}

static void test_without_end(void **unused) {
    (void)unused;
    di_matcher *matcher = open_matcher();
    size_t least = di_matcher_memory(matcher), compacted = 0;
    di_grammar_state states[2] = {di_matcher_start(matcher), di_matcher_start(matcher)};
    uint64_t mask[WORDS];
    for (int n = 0; n < TOKENS; n++) {
        di_grammar_state *at = &states[n & 1]; /* two texts share the matcher */
        assert_int_equal(di_matcher_mask(matcher, *at, mask, NULL), DI_OK);
        uint32_t token = 0, count = 0;
        for (uint32_t b = 0; b < BYTES; b++)
            if (mask[b / 64] >> b % 64 & 1 && draw(++count) == 0) token = b;
        assert_true(count > 0);
        assert_int_equal(di_matcher_advance(matcher, *at, token, at, NULL), DI_OK);
        assert_int_not_equal(*at, DI_GRAMMAR_REJECT);
        if (di_matcher_memory(matcher) <= ALLOWED) continue;
        uint64_t after[WORDS];
        assert_int_equal(di_matcher_mask(matcher, *at, mask, NULL), DI_OK);
        assert_int_equal(di_matcher_compact(matcher, states, 2, NULL), DI_OK);
        assert_true(di_matcher_memory(matcher) < least + ALLOWED / 4);
        assert_int_equal(di_matcher_mask(matcher, *at, after, NULL), DI_OK);
        assert_memory_equal(mask, after, sizeof mask);
        compacted++;
    }
    print_message("%zu bytes at first, compacted %zu times\n", least, compacted);
    assert_true(compacted > 2);
    di_matcher_free(matcher);
}

static void test_wrong_states(void **unused) {
    (void)unused;
    di_matcher *matcher = open_matcher();
    di_grammar_state states[2] = {di_matcher_start(matcher), 1u << 30};
    di_error error = {0};
    assert_int_equal(di_matcher_compact(matcher, states, 2, &error), DI_ERR_INVALID_ARGUMENT);
    assert_string_equal(error.param, "state");
    assert_int_equal(states[0], di_matcher_start(matcher));
    assert_int_equal(di_matcher_compact(matcher, NULL, 0, NULL), DI_OK);
    di_matcher_free(matcher);
}

static di_grammar_state read_bytes(di_matcher *matcher, di_grammar_state at, char byte, size_t count) {
    for (size_t i = 0; i < count; i++)
        assert_int_equal(di_matcher_advance(matcher, at, (uint8_t)byte, &at, NULL), DI_OK);
    assert_int_not_equal(at, DI_GRAMMAR_REJECT);
    return at;
}

static di_matcher *open_object(size_t memory) {
    di_grammar_source source = {.kind = DI_GRAMMAR_JSON_OBJECT, .text = "", .length = 0};
    di_grammar_limits limits;
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    di_grammar_limits_default(&limits);
    limits.memory = memory;
    assert_int_equal(di_grammar_compile(&source, &limits, &grammar, NULL, NULL), DI_OK);
    assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
    di_grammar_free(grammar);
    return matcher;
}

/* As deep as a text may get. */
static void test_deep(void **unused) {
    (void)unused;
    enum { DEPTH = 30000 };
    bool complete = false;
    di_matcher *matcher = open_object((size_t)1 << 30);
    di_grammar_state start;
    assert_int_equal(
        di_matcher_advance_bytes(matcher, di_matcher_start(matcher), (const uint8_t *)"{\"a\":", 5, &start, NULL),
        DI_OK);
    di_grammar_state states[2] = {read_bytes(matcher, start, '[', 3), read_bytes(matcher, start, '[', DEPTH)};
    assert_int_equal(di_matcher_compact(matcher, states, 2, NULL), DI_OK);
    for (int i = 0; i < 2; i++) {
        di_grammar_state at = read_bytes(matcher, states[i], ']', i ? DEPTH : 3);
        assert_int_equal(di_matcher_complete(matcher, at, &complete, NULL), DI_OK);
        assert_false(complete);
        at = read_bytes(matcher, at, '}', 1);
        assert_int_equal(di_matcher_complete(matcher, at, &complete, NULL), DI_OK);
        assert_true(complete);
    }
    di_matcher_free(matcher);
}

/* A text that takes all the memory is given up; those beside it do not notice. */
static void test_heavy(void **unused) {
    (void)unused;
    uint64_t before[WORDS], after[WORDS];
    di_matcher *matcher = open_object(0);
    size_t least = di_matcher_memory(matcher);
    di_matcher_free(matcher);
    matcher = open_object(least + ALLOWED);
    di_grammar_state states[3], at;
    assert_int_equal(
        di_matcher_advance_bytes(matcher, di_matcher_start(matcher), (const uint8_t *)"{\"a\":", 5, &at, NULL), DI_OK);
    states[0] = states[2] = read_bytes(matcher, at, '[', 3);
    assert_int_equal(di_matcher_mask(matcher, states[0], before, NULL), DI_OK);
    for (di_status status = DI_OK; status == DI_OK;) {
        states[1] = at;
        status = di_matcher_advance(matcher, at, '[', &at, NULL);
        if (status != DI_OK) assert_int_equal(status, DI_ERR_LIMIT);
    }
    assert_int_equal(di_matcher_mask(matcher, states[0], after, NULL), DI_ERR_LIMIT);
    for (int i = 0; i < 100 && states[1] != DI_GRAMMAR_REJECT; i++) { /* goes on as far as it can */
        assert_int_equal(di_matcher_compact(matcher, states, 3, NULL), DI_OK);
        assert_int_not_equal(states[0], DI_GRAMMAR_REJECT);
        assert_int_equal(states[0], states[2]);
        assert_int_equal(di_matcher_mask(matcher, states[0], after, NULL), DI_OK);
        assert_memory_equal(before, after, sizeof before);
        while (states[1] && di_matcher_advance(matcher, states[1], '[', &at, NULL) == DI_OK) states[1] = at;
    }
    assert_int_equal(states[1], DI_GRAMMAR_REJECT);
    di_matcher_free(matcher);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_end), cmocka_unit_test(test_wrong_states),
                                       cmocka_unit_test(test_deep), cmocka_unit_test(test_heavy)};
    return cmocka_run_group_tests(tests, make_vocabulary, free_vocabulary);
}
