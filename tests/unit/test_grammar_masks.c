/* needs: grammar tokenizer base */
/* Every bit of masks against reading the token byte by byte, along texts of schemas that take each of the shortcuts:
 * string bodies, bounds, keys with exceptions, patterns with and without anchors and bounds. On the vocabulary of the
 * embedded model, and on the real one where its file is there (tests/tools/real_tokenizer.py). */
#include "grammar/grammar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *schema, *text;
} cases[] = {
    {"{}", "{\"a\": [1, \"b\\u00e9\\n\xC3\xA4\", {}, null, -1.5e3]}"},
    {"{\"type\":\"object\",\"properties\":{\"alpha\":{\"type\":\"string\",\"maxLength\":20},\"beta\":{\"minLength\":3,"
     "\"type\":\"string\",\"maxLength\":200}},\"additionalProperties\":{\"type\":\"integer\"}}",
     "{\"alpha\": \"some text \\\" here\", \"beta\":\"more text\",\"alphb\" : 12, \"bet\":0}"},
    {"{\"type\":\"string\",\"pattern\":\"^[a-z ]+$\",\"maxLength\":12}", "\"hello world\""},
    {"{\"type\":\"string\",\"pattern\":\"^(ab|cd)+e?$\",\"maxLength\":40,\"minLength\":3}",
     "\"ababcdcdababababcdcde\""},
    {"{\"type\":\"string\",\"pattern\":\"^[^@\\\\s]+@[a-z]+\\\\.com\",\"maxLength\":30}",
     "\"someone@example.com more\""},
    {"{\"type\":\"string\",\"pattern\":\"cat|d[aeiou]g\"}", "\"the dog and the cat\""},
    {"{\"type\":\"string\",\"pattern\":\"[a-z0-9]{20}\"}", "\"0123 abcdefghij0123456789 x\""},
    {"{\"type\":\"string\",\"not\":{\"pattern\":\"bad|worse\"},\"maxLength\":60}", "\"a good one, not a wors\""},
    {"{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"string\"},\"y$\":{\"type\":\"string\",\"enum\":"
     "[\"on\",\"off\",\"on/off\"]}},\"propertyNames\":{\"maxLength\":10}}",
     "{\"x-a\":\"b\",\"kez\":1,\"why\":\"on\"}"},
    {"{\"anyOf\":[{\"type\":\"string\",\"maxLength\":6},{\"type\":\"string\",\"pattern\":\"^long\"},{\"enum\":["
     "\"exactly\"]}]}",
     "\"longer text\""},
    {"{\"type\":\"string\",\"format\":\"uri\",\"maxLength\":50}", "\"https://example.com/a?b=c#d\""},
    {"{\"type\":\"array\",\"items\":{\"type\":\"number\",\"multipleOf\":0.25,\"minimum\":-10}}",
     "[1.5,-3,\n  0.75 , 100]"},
};

static void compare(const di_vocabulary *vocabulary, di_matcher *matcher, di_grammar_state state, uint64_t *mask,
                    const char *schema, uint64_t *bits) {
    di_error error = {0};
    bool complete;
    if (di_matcher_mask(matcher, state, mask, &error) != DI_OK) fail_msg("%s: %s", schema, error.message);
    assert_int_equal(di_matcher_complete(matcher, state, &complete, NULL), DI_OK);
    for (uint32_t token = 0; token < di_vocabulary_rows(vocabulary); token++) {
        uint32_t length;
        const uint8_t *bytes = di_vocabulary_bytes(vocabulary, token, &length);
        di_grammar_state at = length ? state : complete && token == 1 ? state : DI_GRAMMAR_REJECT;
        for (uint32_t i = 0; i < length && at != DI_GRAMMAR_REJECT; i++)
            assert_int_equal(di_matcher_advance_bytes(matcher, at, bytes + i, 1, &at, &error), DI_OK);
        bool wanted = at != DI_GRAMMAR_REJECT, got = mask[token / 64] >> token % 64 & 1;
        if (wanted != got)
            fail_msg("%s: token %u \"%.*s\": %d, not %d", schema, token, (int)length, bytes, got, wanted);
    }
    *bits += di_vocabulary_rows(vocabulary);
}

static void compare_all(const char *path, size_t every) {
    di_tokenizer *tokenizer = NULL;
    di_vocabulary *vocabulary = NULL;
    const int32_t stop = 1;
    uint64_t bits = 0;
    assert_int_equal(di_tokenizer_load(path, &tokenizer, NULL), DI_OK);
    assert_int_equal(di_vocabulary_of_tokenizer(tokenizer, 0, &stop, 1, &vocabulary, NULL), DI_OK);
    uint64_t *mask = calloc(di_vocabulary_words(vocabulary), sizeof *mask);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        di_grammar_source s = {
            .kind = DI_GRAMMAR_JSON_SCHEMA, .text = cases[c].schema, .length = strlen(cases[c].schema)};
        di_grammar *grammar = NULL;
        di_matcher *matcher = NULL;
        di_error error = {0};
        if (di_grammar_compile(&s, NULL, &grammar, NULL, &error) != DI_OK) fail_msg("%s: %s", s.text, error.message);
        assert_int_equal(di_matcher_new(grammar, vocabulary, &matcher, NULL), DI_OK);
        di_grammar_state state = di_matcher_start(matcher);
        const char *text = cases[c].text;
        for (size_t i = 0;; i++) {
            if ((i + c) % every == 0 || !text[i]) compare(vocabulary, matcher, state, mask, s.text, &bits);
            if (!text[i]) break;
            uint8_t byte = (uint8_t)text[i];
            assert_int_equal(di_matcher_advance_bytes(matcher, state, &byte, 1, &state, NULL), DI_OK);
            if (state == DI_GRAMMAR_REJECT) fail_msg("%s stops at byte %zu of %s", s.text, i, text);
        }
        di_matcher_free(matcher);
        di_grammar_free(grammar);
    }
    fprintf(stderr, "%llu bits compared\n", (unsigned long long)bits);
    free(mask);
    di_vocabulary_free(vocabulary);
    di_tokenizer_free(tokenizer);
}

static void test_embedded(void **state) {
    (void)state;
    compare_all(DI_SOURCE_DIR "/models/tiny", 1);
}

static void test_real(void **state) {
    (void)state;
    const char *path = DI_SOURCE_DIR "/build/real_tokenizer/tokenizer.json";
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "SKIPPED: no %s\n", path);
        skip();
    }
    fclose(file);
    compare_all(path, 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_embedded), cmocka_unit_test(test_real)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
