/* needs: tokenizer base */
/* Nano's golden vectors, and the compressed-token maps of both small models. */
#include "base/json.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NANO DI_TEST_DATA "/nano"
#define TINY DI_SOURCE_DIR "/models/tiny"

static const di_json *parse(di_arena *arena, const char *path) {
    const di_json *root = NULL;
    di_error error = {0};
    if (di_json_parse_file(arena, path, 1 << 28, 0, &root, &error)) fail_msg("%s", error.message);
    return root;
}

static di_tokenizer *load(const char *path) {
    di_tokenizer *tokenizer = NULL;
    di_error error = {0};
    if (di_tokenizer_load(path, &tokenizer, &error)) fail_msg("%s", error.message);
    return tokenizer;
}

static void read_ids(const di_json *array, di_ids *ids) {
    for (const di_json *node = array->first; node; node = node->next) {
        int64_t id;
        assert_true(di_json_int64(node, &id));
        di_ids_append(ids, (int32_t)id);
    }
}

static void assert_ids(const di_ids *got, const di_ids *wanted, const char *what) {
    assert_int_equal(got->count, wanted->count);
    if (got->count && memcmp(got->data, wanted->data, got->count * sizeof *got->data) != 0)
        fail_msg("other ids for: %s", what);
}

static void encodes_the_golden_strings(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_tokenizer *tokenizer = load(NANO);
    const di_json *vectors = di_json_get(parse(arena, NANO "/golden/tokenizer.json"), "encode");
    assert_int_equal(vectors->count, 71);
    for (const di_json *node = vectors->first; node; node = node->next) {
        const di_json *text = di_json_get(node, "text");
        di_ids wanted = {0}, got = {0};
        di_error error = {0};
        read_ids(di_json_get(node, "ids"), &wanted);
        assert_int_equal(di_tokenizer_encode(tokenizer, text->text, text->length, true, &got, &error), DI_OK);
        assert_ids(&got, &wanted, text->text);
        di_ids_free(&wanted);
        di_ids_free(&got);
    }
    di_tokenizer_free(tokenizer);
    di_arena_free(arena);
}

static void assert_decodes(const di_tokenizer *tokenizer, const di_ids *ids, bool skip_special, const di_json *wanted) {
    di_text text = {0};
    di_error error = {0};
    assert_int_equal(di_tokenizer_decode(tokenizer, ids->data, ids->count, skip_special, &text, &error), DI_OK);
    assert_int_equal(text.length, wanted->length);
    if (text.length) assert_memory_equal(text.data, wanted->text, text.length);
    di_text_free(&text);
}

static void decodes_the_golden_ids(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_tokenizer *tokenizer = load(NANO "/tokenizer.json");
    const di_json *vectors = di_json_get(parse(arena, NANO "/golden/tokenizer.json"), "decode");
    assert_true(vectors->count > 0);
    for (const di_json *node = vectors->first; node; node = node->next) {
        di_ids ids = {0};
        read_ids(di_json_get(node, "ids"), &ids);
        assert_decodes(tokenizer, &ids, false, di_json_get(node, "text"));
        assert_decodes(tokenizer, &ids, true, di_json_get(node, "text_without_special"));
        di_ids_free(&ids);
    }
    di_tokenizer_free(tokenizer);
    di_arena_free(arena);
}

static void check_map(const char *folder, const char *engram, uint32_t vocabulary, uint32_t compressed) {
    di_arena *arena = di_arena_new(0);
    di_tokenizer *tokenizer = load(folder);
    const di_json *root = parse(arena, engram);
    di_ids wanted = {0};
    read_ids(di_json_get(root, "token_map"), &wanted);
    assert_int_equal(wanted.count, vocabulary);
    assert_int_equal(di_tokenizer_vocabulary(tokenizer), vocabulary);
    int32_t *map = calloc(vocabulary, sizeof *map);
    uint32_t count = 0;
    di_error error = {0};
    assert_int_equal(di_tokenizer_compressed_map(tokenizer, vocabulary, map, &count, &error), DI_OK);
    assert_int_equal(count, compressed);
    assert_memory_equal(map, wanted.data, vocabulary * sizeof *map);
    assert_int_equal(di_tokenizer_compressed_map(tokenizer, vocabulary + 1, map, &count, &error), DI_ERR_CHECKPOINT);
    assert_non_null(strstr(error.message, "vocab_size"));
    free(map);
    di_ids_free(&wanted);
    di_tokenizer_free(tokenizer);
    di_arena_free(arena);
}

static void compressed_maps_are_those_of_the_models(void **state) {
    (void)state;
    check_map(NANO, NANO "/engram.json", 704, 591);
    check_map(TINY, TINY "/engram.json", 4096, 3140);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encodes_the_golden_strings),
        cmocka_unit_test(decodes_the_golden_ids),
        cmocka_unit_test(compressed_maps_are_those_of_the_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
