/* needs: tokenizer base */
/* One broken tokenizer.json per property that the loader checks; each error must name the field. */
#include "support/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCABULARY ",\"ab\":256,\"abc\":257,\"<s>\":258"
#define MERGES     "\"a b\",[\"ab\",\"c\"]"

static void good_file(di_text *out) {
    di_text added = {0};
    small_added_token(&added, 258, "<s>", true);
    di_text_putc(&added, ',');
    small_added_token(&added, 259, "<user>", false);
    small_tokenizer(out, VOCABULARY, MERGES, added.data);
    di_text_free(&added);
    assert_false(out->failed);
}

/* Replaces the first `find` by `put`; "" appends. */
static void replace(di_text *text, const char *find, const char *put) {
    if (!*find) {
        di_text_puts(text, put);
        return;
    }
    char *at = strstr(text->data, find);
    if (!at) fail_msg("the good file does not hold: %s", find);
    di_text out = {0};
    di_text_append(&out, text->data, (size_t)(at - text->data));
    di_text_puts(&out, put);
    di_text_puts(&out, at + strlen(find));
    di_text_free(text);
    *text = out;
}

typedef struct broken_case {
    const char *find, *put;
    di_status status;
    const char *param;
    const char *message; /* part of the message */
} broken_case;

#define FIRST_TOKEN "added_tokens\":[{\"id\":258,\"content\":\"<s>\""
#define LONG_TOKEN                                                                                                     \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"             \
    "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"             \
    "012345678901234567890123456789012345678901234567890123456789"

static const broken_case cases[] = {
    /* the file as a whole */
    {"{\"version\"", "[\"version\"", DI_ERR_FORMAT, "tokenizer", "byte 10"},
    {"", "x", DI_ERR_FORMAT, "tokenizer", ""},
    {"\"truncation\":null", "\"truncation\":{\"max_length\":5}", DI_ERR_UNSUPPORTED, "truncation", "null"},
    {"\"padding\":null", "\"padding\":{\"pad_id\":0}", DI_ERR_UNSUPPORTED, "padding", "null"},
    /* normaliser, decoder, post-processor */
    {"\"normalizers\":[]", "\"normalizers\":[{\"type\":\"NFC\"}]", DI_ERR_UNSUPPORTED, "normalizer.normalizers",
     "1 steps"},
    {"{\"type\":\"Sequence\",\"normalizers\"", "{\"type\":\"NFC\",\"normalizers\"", DI_ERR_UNSUPPORTED,
     "normalizer.type", "NFC"},
    {"\"normalizers\":[]", "\"other\":[]", DI_ERR_FORMAT, "normalizer.normalizers", "array"},
    {"{\"type\":\"Sequence\",\"normalizers\":[]}", "7", DI_ERR_FORMAT, "normalizer", "object"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":{\"type\":\"WordPiece\"}", DI_ERR_UNSUPPORTED, "decoder.type",
     "WordPiece"},
    {"\"decoder\":{\"type\":\"ByteLevel\"}", "\"decoder\":null", DI_ERR_FORMAT, "decoder", "object"},
    {"\"decoder\"", "\"decoder2\"", DI_ERR_FORMAT, "decoder", "missing"},
    {"\"post_processor\":{\"type\":\"ByteLevel\"", "\"post_processor\":{\"type\":\"TemplateProcessing\"",
     DI_ERR_UNSUPPORTED, "post_processor.type", "TemplateProcessing"},
    /* pre-tokeniser */
    {"\"pre_tokenizer\":", "\"pre_tokenizer\":null,\"x\":", DI_ERR_FORMAT, "pre_tokenizer", "object"},
    {"\"type\":\"Sequence\",\"pretokenizers\"", "\"type\":\"Whitespace\",\"pretokenizers\"", DI_ERR_UNSUPPORTED,
     "pre_tokenizer.type", "Whitespace"},
    {"\"pretokenizers\":[", "\"pretokenizers\":[{},", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers", "5 steps"},
    {"\"pretokenizers\":[", "\"pretokenizers\":7,\"x\":[", DI_ERR_FORMAT, "pre_tokenizer.pretokenizers", "array"},
    {"{1,3}", "{1,4}", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].pattern", "{1,4}"},
    {"u9fa5", "u9fff", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[1].pattern", "expression"},
    {"[A-Za-z]+|", "[A-Za-z]*|", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[2].pattern", "expression"},
    {"\"Regex\"", "\"String\"", DI_ERR_FORMAT, "pre_tokenizer.pretokenizers[0].pattern", "Regex"},
    {"\"type\":\"Split\"", "\"type\":\"Digits\"", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].type", "Digits"},
    {"\"Isolated\"", "\"Removed\"", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].behavior", "Removed"},
    {"\"invert\":false", "\"invert\":true", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[0].invert", "true"},
    {"\"add_prefix_space\":false", "\"add_prefix_space\":true", DI_ERR_UNSUPPORTED,
     "pre_tokenizer.pretokenizers[3].add_prefix_space", "false"},
    {",\"use_regex\":false", "", DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[3].use_regex", "left out"},
    {"{\"type\":\"ByteLevel\",\"add_prefix_space\":false", "{\"type\":\"Metaspace\",\"add_prefix_space\":false",
     DI_ERR_UNSUPPORTED, "pre_tokenizer.pretokenizers[3].type", "Metaspace"},
    /* model */
    {"\"model\":{", "\"model\":7,\"x\":{", DI_ERR_FORMAT, "model", "object"},
    {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", DI_ERR_UNSUPPORTED, "model.type", "Unigram"},
    {"\"type\":\"BPE\"", "\"type\":3", DI_ERR_FORMAT, "model.type", "BPE"},
    {"\"type\":\"BPE\",", "", DI_ERR_FORMAT, "model.type", "missing"},
    {"\"dropout\":null", "\"dropout\":0.1", DI_ERR_UNSUPPORTED, "model.dropout", "number"},
    {"\"unk_token\":null", "\"unk_token\":\"<unk>\"", DI_ERR_UNSUPPORTED, "model.unk_token", "null"},
    {"\"continuing_subword_prefix\":null", "\"continuing_subword_prefix\":\"##\"", DI_ERR_UNSUPPORTED,
     "model.continuing_subword_prefix", "null"},
    {"\"end_of_word_suffix\":null", "\"end_of_word_suffix\":\"</w>\"", DI_ERR_UNSUPPORTED, "model.end_of_word_suffix",
     "null"},
    {"\"fuse_unk\":false", "\"fuse_unk\":true", DI_ERR_UNSUPPORTED, "model.fuse_unk", "true"},
    {"\"byte_fallback\":false", "\"byte_fallback\":true", DI_ERR_UNSUPPORTED, "model.byte_fallback", "true"},
    {"\"byte_fallback\":false", "\"ignore_merges\":true", DI_ERR_UNSUPPORTED, "model.ignore_merges", "true"},
    /* vocabulary */
    {"\"vocab\":{", "\"vocab\":[],\"x\":{", DI_ERR_FORMAT, "model.vocab", "object"},
    {"\"ab\":256", "\"ab\":\"256\"", DI_ERR_FORMAT, "model.vocab[\"ab\"]", "integer"},
    {"\"ab\":256", "\"ab\":256.5", DI_ERR_FORMAT, "model.vocab[\"ab\"]", "integer"},
    {"\"ab\":256", "\"ab\":-1", DI_ERR_FORMAT, "model.vocab[\"ab\"]", "-1, out of range"},
    {"\"ab\":256", "\"ab\":1000000000", DI_ERR_FORMAT, "model.vocab[\"ab\"]", "1000000000, out of range"},
    {"\"ab\":256", "\"ab\":99999999999999999999", DI_ERR_FORMAT, "model.vocab[\"ab\"]", "integer"},
    {"\"ab\":256", "\"ab\":257", DI_ERR_FORMAT, "model.vocab[\"abc\"]", "id 257, which \"ab\" has already"},
    {"\"abc\":257", "\"ab\":257", DI_ERR_FORMAT, "model.vocab[\"ab\"]", "twice"},
    {"\"ab\":256,", "", DI_ERR_FORMAT, "model.vocab", "no token has id 256"},
    {"\"ab\":256", "\"\":256", DI_ERR_FORMAT, "model.vocab[\"\"]", "empty"},
    {"\"ab\":256", "\"a b\":256", DI_ERR_FORMAT, "model.vocab", "byte alphabet"},
    {"\"ab\":256", "\"\\u4e00\":256", DI_ERR_FORMAT, "model.vocab", "id 256 (\"一\")"},
    {"\"ab\":256", "\"\\u00ad\":256", DI_ERR_FORMAT, "model.vocab", "byte alphabet"},
    {"\"ab\":256", "\"\\u0144\":256", DI_ERR_FORMAT, "model.vocab", "byte alphabet"},
    {"\"!\":33", "\"!!\":33", DI_ERR_FORMAT, "model.vocab", "byte 0x21"},
    /* merges */
    {"\"merges\":[", "\"merges\":{},\"x\":[", DI_ERR_FORMAT, "model.merges", "array"},
    {"\"a b\"", "\"ab\"", DI_ERR_FORMAT, "model.merges[0]", "one space"},
    {"\"a b\"", "\"a  b\"", DI_ERR_FORMAT, "model.merges[0]", "one space"},
    {"\"a b\"", "7", DI_ERR_FORMAT, "model.merges[0]", "one space"},
    {"[\"ab\",\"c\"]", "[\"ab\"]", DI_ERR_FORMAT, "model.merges[1]", "array of two"},
    {"[\"ab\",\"c\"]", "[\"ab\",3]", DI_ERR_FORMAT, "model.merges[1]", "array of two"},
    {"[\"ab\",\"c\"]", "\"abx c\"", DI_ERR_FORMAT, "model.merges[1]", "its left part is not in model.vocab"},
    {"[\"ab\",\"c\"]", "\"ab cx\"", DI_ERR_FORMAT, "model.merges[1]", "its right part is not in model.vocab"},
    {"[\"ab\",\"c\"]", "\"ab d\"", DI_ERR_FORMAT, "model.merges[1]", "what it makes is not in model.vocab"},
    {"[\"ab\",\"c\"]", "\"a b\"", DI_ERR_FORMAT, "model.merges[1]", "repeats model.merges[0]"},
    {"[\"ab\",\"c\"]", "\"<s> c\"", DI_ERR_FORMAT, "model.merges[1]", "an added token"},
    {"[\"ab\",\"c\"]", "\" c\"", DI_ERR_FORMAT, "model.merges[1]", "not in model.vocab"},
    /* added tokens */
    {"\"added_tokens\":[", "\"added_tokens\":7,\"x\":[", DI_ERR_FORMAT, "added_tokens", "array"},
    {"\"added_tokens\":[", "\"added_tokens\":[7,", DI_ERR_FORMAT, "added_tokens[0]", "object"},
    {FIRST_TOKEN, "added_tokens\":[{\"content\":\"<s>\"", DI_ERR_FORMAT, "added_tokens[0].id", "integer"},
    {FIRST_TOKEN, "added_tokens\":[{\"id\":258,\"content\":7", DI_ERR_FORMAT, "added_tokens[0].content", "string"},
    {FIRST_TOKEN, "added_tokens\":[{\"id\":258,\"content\":\"\"", DI_ERR_FORMAT, "added_tokens[0].content", "0 bytes"},
    {FIRST_TOKEN, "added_tokens\":[{\"id\":258,\"content\":\"<\\u0000>\"", DI_ERR_FORMAT, "added_tokens[0].content",
     "zero"},
    {FIRST_TOKEN, "added_tokens\":[{\"id\":258,\"content\":\"" LONG_TOKEN "\"", DI_ERR_FORMAT,
     "added_tokens[0].content", "260 bytes"},
    {FIRST_TOKEN, "added_tokens\":[{\"id\":257,\"content\":\"<s>\"", DI_ERR_FORMAT, "added_tokens[0]",
     "id 257 but id 258 in model.vocab"},
    {FIRST_TOKEN, "added_tokens\":[{\"id\":258,\"content\":\"<t>\"", DI_ERR_FORMAT, "added_tokens[0]",
     "id 258, which \"<s>\" has already"},
    {"\"<user>\"", "\"<s>\"", DI_ERR_FORMAT, "added_tokens[1].content", "already"},
    {"\"id\":259", "\"id\":260", DI_ERR_FORMAT, "model.vocab", "no token has id 259"},
    {"\"id\":259", "\"id\":261", DI_ERR_FORMAT, "added_tokens[1].id", "261, out of range"},
    {"\"id\":259", "\"id\":-2", DI_ERR_FORMAT, "added_tokens[1].id", "out of range"},
    {"\"id\":259", "\"id\":257", DI_ERR_FORMAT, "added_tokens[1]", "id 257, which \"abc\" has already"},
    {"\"single_word\":false", "\"single_word\":true", DI_ERR_UNSUPPORTED, "added_tokens[0].single_word", "true"},
    {"\"lstrip\":false", "\"lstrip\":true", DI_ERR_UNSUPPORTED, "added_tokens[0].lstrip", "true"},
    {"\"rstrip\":false", "\"rstrip\":true", DI_ERR_UNSUPPORTED, "added_tokens[0].rstrip", "true"},
    {",\"special\":true", "", DI_ERR_FORMAT, "added_tokens[0].special", "true or false"},
    {"\"special\":true", "\"special\":1", DI_ERR_FORMAT, "added_tokens[0].special", "true or false"},
    {"\"normalized\":false", "\"normalized\":null", DI_ERR_FORMAT, "added_tokens[0].normalized", "true or false"},
    {"\"id\":258,\"content\":\"<s>\"", "\"id\":97,\"content\":\"a\"", DI_ERR_FORMAT, "model.vocab", "byte 0x61"},
};

static void the_good_file_loads(void **state) {
    (void)state;
    di_text text = {0};
    good_file(&text);
    di_tokenizer *tokenizer = NULL;
    di_error error = {0};
    if (di_tokenizer_parse("good.json", text.data, text.length, &tokenizer, &error)) fail_msg("%s", error.message);
    di_ids ids = {0};
    assert_int_equal(di_tokenizer_encode(tokenizer, "abcab<s><user>", 14, true, &ids, &error), DI_OK);
    const int32_t wanted[] = {257, 256, 258, 259};
    assert_int_equal(ids.count, 4);
    assert_memory_equal(ids.data, wanted, sizeof wanted);
    di_ids_free(&ids);
    di_tokenizer_free(tokenizer);
    di_text_free(&text);
}

static void each_broken_file_names_its_fault(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const broken_case *test = &cases[i];
        di_text text = {0};
        good_file(&text);
        replace(&text, test->find, test->put);
        di_tokenizer *tokenizer = (di_tokenizer *)&text;
        di_error error = {0};
        di_status status = di_tokenizer_parse("broken.json", text.data, text.length, &tokenizer, &error);
        if (status != test->status || strcmp(error.param, test->param) != 0 || !strstr(error.message, test->message) ||
            !strstr(error.message, "broken.json"))
            fail_msg("%s -> %s\n  wanted %s, %s, ...%s...\n  got %s, %s, %s", test->find, test->put,
                     di_status_name(test->status), test->param, test->message, di_status_name(status), error.param,
                     error.message);
        assert_null(tokenizer);
        di_text_free(&text);
    }
}

static void every_cut_of_the_file_is_refused(void **state) {
    (void)state;
    di_text text = {0};
    good_file(&text);
    for (size_t length = 0; length < text.length; length += 1 + length / 97) {
        char *cut = malloc(length ? length : 1); /* of its own, so that a read beyond the end is seen */
        memcpy(cut, text.data, length);
        di_tokenizer *tokenizer = NULL;
        di_error error = {0};
        assert_int_equal(di_tokenizer_parse("cut.json", cut, length, &tokenizer, &error), DI_ERR_FORMAT);
        assert_null(tokenizer);
        free(cut);
    }
    di_text_free(&text);
}

static void a_missing_file_is_named(void **state) {
    (void)state;
    di_tokenizer *tokenizer = NULL;
    di_error error = {0};
    assert_int_not_equal(di_tokenizer_load(DI_TEST_DATA "/nano/golden", &tokenizer, &error), DI_OK);
    assert_non_null(strstr(error.message, "tokenizer.json: "));
    tokenizer = NULL;
    assert_int_not_equal(di_tokenizer_load("/no/such/folder", &tokenizer, &error), DI_OK);
    assert_non_null(strstr(error.message, "/no/such/folder"));
    assert_int_not_equal(di_tokenizer_load("/no/such/folder", &tokenizer, NULL), DI_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_good_file_loads),
        cmocka_unit_test(each_broken_file_names_its_fault),
        cmocka_unit_test(every_cut_of_the_file_is_refused),
        cmocka_unit_test(a_missing_file_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
