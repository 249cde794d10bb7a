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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_without_end), cmocka_unit_test(test_wrong_states)};
    return cmocka_run_group_tests(tests, make_vocabulary, free_vocabulary);
}
