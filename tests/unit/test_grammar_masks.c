/* needs: grammar tokenizer base */
/* Every bit of masks against reading the token byte by byte, along texts of schemas that take each of the shortcuts:
 * string bodies, bounds, keys with exceptions, patterns with and without anchors and bounds. On the vocabulary of the
 * embedded model, and on the real one where its file is there (tests/tools/real_tokenizer.py).
 *
 * The long run, on schemas and instances of one's own, until so many bits are compared:
 * test_grammar_masks TOKENIZER CASES.jsonl BITS, with lines {"schema", "tests": [{"data"}, ...]} */
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
    {"{\"type\":\"string\",\"pattern\":\"^.+$\"}", "\"any text, \xE4\xB8\xAD\xE6\x96\x87 too\""},
    {"{\"type\":\"string\",\"pattern\":\"^(?:\\\\S+\\\\s+){0,9}\\\\S+$\",\"maxLength\":60}",
     "\"few words \xC2\xA0 here and there\""},
    {"{\"type\":\"string\",\"oneOf\":[{\"pattern\":\"cat\"},{\"pattern\":\"dog\"},{\"pattern\":\"c$\"}]}",
     "\"a cat and a dig\""},
    {"{\"type\":\"string\",\"pattern\":\"^zip|tar$|[^A-Z_ ]{3}x\"}", "\"a star or tar\""},
    {"{\"type\":\"string\",\"pattern\":\"^[^@^\\\\s]+@[\xC3\xA4-\xC3\xBC\xE4\xB8\x80-\xE9\xBF\xBF.]+$\",\"minLength\":"
     "5}",
     "\"who@\xC3\xA4\xE4\xB8\xAD.\xE6\x96\x87\""},
    {"{\"type\":\"string\",\"maxLength\":9,\"minLength\":2}", "\"\xE4\xB8\xAD\xE6\x96\x87 12\""},
    {"{\"properties\":{\"id\":{\"type\":\"integer\"},\"ids\":{\"type\":\"null\"},\"name\":{\"maxLength\":3}},"
     "\"additionalProperties\":"
     "{\"type\":\"boolean\"},\"type\":\"object\"}",
     "{\"id\":7,\"ids\":null,\"names\":true,\"i\":false}"},
};

/* A vocabulary with its ids in the order of their bytes, so that tokens share what they begin with. */
typedef struct words {
    di_tokenizer *tokenizer;
    di_vocabulary *vocabulary;
    uint64_t *mask;
    uint32_t rows, *order, *common; /* [rows]; common: bytes shared with the one before */
    di_grammar_state *states;       /* [longest + 1] */
    uint64_t bits;
} words;

static const di_vocabulary *compared;

static int by_bytes(const void *a, const void *b) {
    uint32_t m, n;
    const uint8_t *x = di_vocabulary_bytes(compared, *(const uint32_t *)a, &m);
    const uint8_t *y = di_vocabulary_bytes(compared, *(const uint32_t *)b, &n);
    int order = m && n ? memcmp(x, y, m < n ? m : n) : 0;
    return order ? order : m < n ? -1 : m > n;
}

static void open_words(words *w, const char *path) {
    const int32_t stop = 1;
    uint32_t longest = 0;
    *w = (words){0};
    assert_int_equal(di_tokenizer_load(path, &w->tokenizer, NULL), DI_OK);
    assert_int_equal(di_vocabulary_of_tokenizer(w->tokenizer, 0, &stop, 1, &w->vocabulary, NULL), DI_OK);
    w->rows = di_vocabulary_rows(w->vocabulary);
    w->mask = calloc(di_vocabulary_words(w->vocabulary), sizeof *w->mask);
    w->order = malloc(w->rows * sizeof *w->order);
    w->common = calloc(w->rows, sizeof *w->common);
    for (uint32_t i = 0; i < w->rows; i++) w->order[i] = i;
    compared = w->vocabulary;
    qsort(w->order, w->rows, sizeof *w->order, by_bytes);
    for (uint32_t i = 0; i < w->rows; i++) {
        uint32_t m, n = 0;
        const uint8_t *x = di_vocabulary_bytes(w->vocabulary, w->order[i], &m);
        const uint8_t *y = i ? di_vocabulary_bytes(w->vocabulary, w->order[i - 1], &n) : NULL;
        while (w->common[i] < m && w->common[i] < n && x[w->common[i]] == y[w->common[i]]) w->common[i]++;
        if (m > longest) longest = m;
    }
    w->states = malloc((longest + 1) * sizeof *w->states);
}

static void close_words(words *w) {
    fprintf(stderr, "%llu bits compared\n", (unsigned long long)w->bits);
    free(w->mask);
    free(w->order);
    free(w->common);
    free(w->states);
    di_vocabulary_free(w->vocabulary);
    di_tokenizer_free(w->tokenizer);
}

static void compare(words *w, di_matcher *matcher, di_grammar_state state, const char *schema) {
    di_error error = {0};
    bool complete;
    uint32_t known = 0; /* bytes of the last token that were read */
    if (di_matcher_mask(matcher, state, w->mask, &error) != DI_OK) fail_msg("%s: %s", schema, error.message);
    assert_int_equal(di_matcher_complete(matcher, state, &complete, NULL), DI_OK);
    w->states[0] = state;
    for (uint32_t i = 0; i < w->rows; i++) {
        uint32_t length, token = w->order[i];
        const uint8_t *bytes = di_vocabulary_bytes(w->vocabulary, token, &length);
        if (known > w->common[i]) known = w->common[i];
        for (; known < length && w->states[known] != DI_GRAMMAR_REJECT; known++)
            assert_int_equal(
                di_matcher_advance_bytes(matcher, w->states[known], bytes + known, 1, &w->states[known + 1], &error),
                DI_OK);
        bool wanted = length ? known == length && w->states[known] != DI_GRAMMAR_REJECT : complete && token == 1;
        bool got = w->mask[token / 64] >> token % 64 & 1;
        if (wanted != got)
            fail_msg("%s: token %u \"%.*s\": %d, not %d", schema, token, (int)length, bytes, got, wanted);
    }
    w->bits += w->rows;
}

/* At every `every`-th byte of a text that follows the schema, as far as it does. */
static bool compare_text(words *w, const char *schema, di_grammar_order order, const char *text, size_t from,
                         size_t every) {
    di_grammar_source s = {.kind = DI_GRAMMAR_JSON_SCHEMA, .text = schema, .length = strlen(schema), .order = order};
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    di_error error = {0};
    if (di_grammar_compile(&s, NULL, &grammar, NULL, &error) != DI_OK) return false;
    assert_int_equal(di_matcher_new(grammar, w->vocabulary, &matcher, NULL), DI_OK);
    di_grammar_state state = di_matcher_start(matcher);
    for (size_t i = 0; state != DI_GRAMMAR_REJECT; i++) {
        if ((i + from) % every == 0 || !text[i]) compare(w, matcher, state, schema);
        if (i % 7 == 3) assert_int_equal(di_matcher_compact(matcher, &state, 1, NULL), DI_OK);
        if (!text[i]) break;
        uint8_t byte = (uint8_t)text[i];
        assert_int_equal(di_matcher_advance_bytes(matcher, state, &byte, 1, &state, NULL), DI_OK);
    }
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    return state != DI_GRAMMAR_REJECT;
}

static void compare_all(const char *path, size_t every) {
    words w;
    open_words(&w, path);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        if (!compare_text(&w, cases[c].schema, DI_ORDER_SCHEMA, cases[c].text, c, every))
            fail_msg("%s does not take %s", cases[c].schema, cases[c].text);
    close_words(&w);
}

/* ------------------------------------------------------------------------------------------------------ the long run
 */

static const char **arguments; /* TOKENIZER CASES BITS */

static char *text_of(const di_json *value) {
    di_text out = {0};
    di_json_writer writer;
    di_json_begin(&writer, &out);
    di_json_value(&writer, value);
    assert_false(out.failed);
    return out.data;
}

static void test_own(void **state) {
    (void)state;
    words w;
    uint64_t bits = strtoull(arguments[2], NULL, 10), rounds = 0;
    open_words(&w, arguments[0]);
    di_arena *arena = di_arena_new(0);
    char *line = NULL;
    size_t capacity = 0, every = 24;
    /* Other bytes of the same instances in each round. */
    for (uint64_t before = UINT64_MAX; w.bits < bits && w.bits != before && rounds < every; rounds++) {
        FILE *file = fopen(arguments[1], "rb");
        assert_non_null(file);
        before = w.bits;
        while (w.bits < bits && getline(&line, &capacity, file) > 0) {
            const di_json *root;
            di_arena_reset(arena);
            assert_int_equal(di_json_parse(arena, line, strlen(line), 512, &root, NULL), DI_OK);
            char *schema = text_of(di_json_get(root, "schema"));
            for (const di_json *t = di_json_get(root, "tests")->first; t && w.bits < bits; t = t->next) {
                char *text = text_of(di_json_get(t, "data"));
                compare_text(&w, schema, rounds % 2 ? DI_ORDER_SCHEMA : DI_ORDER_ANY, text, rounds, every);
                free(text);
            }
            free(schema);
        }
        fclose(file);
    }
    free(line);
    di_arena_free(arena);
    close_words(&w);
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

int main(int argc, char **argv) {
    if (argc == 4) {
        const struct CMUnitTest own[] = {cmocka_unit_test(test_own)};
        arguments = (const char **)argv + 1;
        return cmocka_run_group_tests(own, NULL, NULL);
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_embedded), cmocka_unit_test(test_real)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
