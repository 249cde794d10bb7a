/* needs: tokenizer base */
/* The real 129,280-id vocabulary. tests/tools/real_tokenizer.py writes the file; DI_TEST_TOKENIZER names another
 * place than build/real_tokenizer/tokenizer.json. Without the file every test here is skipped, loudly. */
#include "base/clock.h"
#include "support/json_lines.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define VOCABULARY 129280
#define COMPRESSED 99092
#define GOLDEN     DI_TEST_DATA "/tokenizer-golden.jsonl"

static di_tokenizer *tokenizer; /* NULL: the file is not there */

static int load_tokenizer(void **state) {
    (void)state;
    const char *path = getenv("DI_TEST_TOKENIZER");
    if (!path) path = DI_SOURCE_DIR "/build/real_tokenizer/tokenizer.json";
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr,
                "SKIPPED: no %s\n"
                "SKIPPED: run 'tests/tools/real_tokenizer.py build/real_tokenizer/tokenizer.json' (needs pip)\n",
                path);
        return 0;
    }
    fclose(file);
    di_error error = {0};
    int64_t start = di_now_ns();
    if (di_tokenizer_load(path, &tokenizer, &error)) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    fprintf(stderr, "load: %.0f ms\n", di_ms(di_now_ns() - start));
    return 0;
}

static int free_tokenizer(void **state) {
    (void)state;
    di_tokenizer_free(tokenizer);
    return 0;
}

static int32_t *ids_of(const di_json *array, size_t *count) {
    int32_t *ids = calloc(array->count + 1, sizeof *ids);
    *count = 0;
    for (const di_json *node = array->first; node; node = node->next) {
        int64_t id;
        assert_true(di_json_int64(node, &id));
        ids[(*count)++] = (int32_t)id;
    }
    return ids;
}

static void assert_encodes(const char *name, const char *text, size_t length, bool added, const int32_t *wanted,
                           size_t count) {
    di_ids ids = {0};
    di_error error = {0};
    if (di_tokenizer_encode(tokenizer, text, length, added, &ids, &error)) fail_msg("%s: %s", name, error.message);
    if (ids.count != count || (count && memcmp(ids.data, wanted, count * sizeof *wanted) != 0))
        fail_msg("%s: other ids", name);
    di_ids_free(&ids);
}

static void assert_decodes(const char *name, const int32_t *ids, size_t count, const char *text, size_t length) {
    di_text out = {0};
    di_error error = {0};
    if (di_tokenizer_decode(tokenizer, ids, count, false, &out, &error)) fail_msg("%s: %s", name, error.message);
    if (out.length != length || (length && memcmp(out.data, text, length) != 0)) fail_msg("%s: other text", name);
    di_text_free(&out);
}

/* The text of a vector: `text`, or `repeat` [piece, times]. */
static void read_text(const di_json *vector, di_text *text) {
    const di_json *plain = di_json_get(vector, "text"), *repeat = di_json_get(vector, "repeat");
    if (plain && plain->type == DI_JSON_STRING) {
        di_text_append(text, plain->text, plain->length);
        return;
    }
    int64_t times = 0;
    assert_non_null(repeat);
    assert_true(di_json_int64(repeat->first->next, &times));
    for (int64_t i = 0; i < times; i++) di_text_append(text, repeat->first->text, repeat->first->length);
}

/* counts [3]: by kind. */
static void check_vector(void *arg, di_arena *arena, const di_json *vector) {
    (void)arena;
    unsigned *counts = arg;
    const di_json *id = di_json_get(vector, "id"), *kind = di_json_get(vector, "kind");
    size_t count;
    int32_t *ids = ids_of(di_json_get(vector, "ids"), &count);
    di_text text = {0};
    read_text(vector, &text);
    if (di_json_string_is(kind, "decode")) {
        counts[2]++;
    } else {
        bool plain = di_json_string_is(kind, "encode_plain");
        assert_true(plain || di_json_string_is(kind, "encode"));
        counts[plain]++;
        assert_encodes(id->text, text.data, text.length, !plain, ids, count);
    }
    assert_decodes(id->text, ids, count, text.data, text.length);
    di_text_free(&text);
    free(ids);
}

static void golden_vectors(void **state) {
    (void)state;
    if (!tokenizer) skip();
    unsigned counts[3] = {0};
    di_each_json_line(GOLDEN, NULL, check_vector, counts, 44 + 3 + 9);
    assert_int_equal(counts[0], 44);
    assert_int_equal(counts[1], 3);
    assert_int_equal(counts[2], 9);
}

static void specification_vectors(void **state) {
    (void)state;
    if (!tokenizer) skip();
    static const struct {
        const char *text;
        size_t count;
        int32_t ids[8];
    } vectors[] = {
        {"The capital of France is", 5, {671, 6102, 294, 8760, 344}},
        {"1234567", 3, {6895, 18009, 25}},
        {"你好，世界", 3, {30594, 303, 3427}},
        {".foo bar-baz", 5, {4658, 6379, 4758, 1761, 1521}},
        {"  5 a", 3, {262, 23, 260}},
        {"!!!\n", 1, {115432}},
        {" ", 1, {223}},
        {"\n", 1, {201}},
        {"a<think>b", 3, {67, 128821, 68}},
        {"x｜DSML｜y", 3, {90, 128825, 91}},
        {"I don't", 3, {43, 2090, 1664}},
        {"日本語のテキスト", 5, {88768, 1576, 17383, 20367, 24552}},
    };
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        const char *text = vectors[i].text;
        assert_encodes(text, text, strlen(text), true, vectors[i].ids, vectors[i].count);
        assert_decodes(text, vectors[i].ids, vectors[i].count, text, strlen(text));
    }
}

static void added_tokens(void **state) {
    (void)state;
    if (!tokenizer) skip();
    static const struct {
        int32_t id;
        const char *text;
        bool special;
    } known[] = {
        {0, "<｜begin▁of▁sentence｜>", true},
        {1, "<｜end▁of▁sentence｜>", true},
        {2, "<｜▁pad▁｜>", true},
        {128000, "<｜place▁holder▁no▁0｜>", true},
        {128798, "<｜place▁holder▁no▁798｜>", true},
        {128799, "<｜System｜>", false},
        {128803, "<｜User｜>", false},
        {128804, "<｜Assistant｜>", false},
        {128805, "<|EOT|>", false},
        {128821, "<think>", false},
        {128822, "</think>", false},
        {128825, "｜DSML｜", false},
        {128828, "<｜latest_reminder｜>", false},
        {128846, "<｜end_of_query｜>", true},
        {128847, "<|place_holder_mm_span_0021|>", true},
        {129264, "<｜deepseek_image｜>", false},
        {129270, "<|place_holder_mm_span_0441|>", false},
        {129278, "<｜ref｜>", true},
        {129279, "<|place_holder_mm_span_0442|>", true},
    };
    assert_int_equal(di_tokenizer_vocabulary(tokenizer), VOCABULARY);
    unsigned added = 0;
    for (int32_t id = 0; id < VOCABULARY; id++) {
        added += di_tokenizer_is_added(tokenizer, id);
        if (!di_tokenizer_is_added(tokenizer, id)) continue;
        assert_int_equal(di_tokenizer_added_id(tokenizer, di_tokenizer_spelling(tokenizer, id)), id);
    }
    assert_int_equal(added, 1283);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(di_tokenizer_added_id(tokenizer, known[i].text), known[i].id);
        assert_string_equal(di_tokenizer_spelling(tokenizer, known[i].id), known[i].text);
        assert_int_equal(di_tokenizer_is_special(tokenizer, known[i].id), known[i].special);
    }
    assert_int_equal(di_tokenizer_added_id(tokenizer, "<think"), -1);
    assert_int_equal(di_tokenizer_added_id(tokenizer, "<think>x"), -1);
    assert_int_equal(di_tokenizer_added_id(tokenizer, ""), -1);
}

static void compressed_map(void **state) {
    (void)state;
    if (!tokenizer) skip();
    int32_t *map = calloc(VOCABULARY, sizeof *map);
    uint32_t compressed = 0;
    di_error error = {0};
    int64_t start = di_now_ns();
    assert_int_equal(di_tokenizer_compressed_map(tokenizer, VOCABULARY, map, &compressed, &error), DI_OK);
    fprintf(stderr, "compressed map: %.0f ms\n", di_ms(di_now_ns() - start));
    assert_int_equal(compressed, COMPRESSED);
    for (int32_t id = 0; id <= 66; id++) assert_int_equal(map[id], id);
    assert_int_equal(map[67], 35);
    assert_int_equal(map[VOCABULARY - 1], COMPRESSED - 1);
    for (int32_t id = VOCABULARY - 240; id < VOCABULARY; id++) assert_int_equal(map[id], id - 30188);
    free(map);
}

/* Every id's bytes decode to themselves, and plain text that spells an added token never becomes one. */
static void plain_text_never_makes_control_tokens(void **state) {
    (void)state;
    if (!tokenizer) skip();
    di_text all = {0}, back = {0};
    for (int32_t id = 0; id < VOCABULARY; id++)
        if (di_tokenizer_is_added(tokenizer, id)) di_text_puts(&all, di_tokenizer_spelling(tokenizer, id));
    di_ids ids = {0};
    di_error error = {0};
    assert_int_equal(di_tokenizer_encode(tokenizer, all.data, all.length, false, &ids, &error), DI_OK);
    for (size_t i = 0; i < ids.count; i++) assert_false(di_tokenizer_is_added(tokenizer, ids.data[i]));
    assert_int_equal(di_tokenizer_decode(tokenizer, ids.data, ids.count, false, &back, &error), DI_OK);
    assert_string_equal(back.data, all.data);
    ids.count = 0;
    assert_int_equal(di_tokenizer_encode(tokenizer, all.data, all.length, true, &ids, &error), DI_OK);
    assert_int_equal(ids.count, 1283);
    di_ids_free(&ids);
    di_text_free(&all);
    di_text_free(&back);
}

static void megabytes(void **state) {
    (void)state;
    if (!tokenizer) skip();
    static const char *const pieces[][2] = {
        {"letter", "a"},
        {"space", " "},
        {"combining mark", "\xCC\x81"},
        {"digit", "7"},
        {"punctuation", "="},
        {"line end", "\n"},
        {"space, line end", " \n"},
        {"control byte", "\x01"},
        {"emoji", "😀"},
        {"han", "海"},
        {"added-token prefix", "<｜place▁holder▁no▁"},
        {"English", "The keeper counted the ships before dawn, one by one, and wrote 17 of them down. "},
    };
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        di_text text = {0};
        while (text.length < 1 << 20) di_text_puts(&text, pieces[i][1]);
        di_ids ids = {0};
        di_text back = {0};
        di_error error = {0};
        int64_t start = di_now_ns();
        assert_int_equal(di_tokenizer_encode(tokenizer, text.data, text.length, true, &ids, &error), DI_OK);
        double ms = di_ms(di_now_ns() - start);
        fprintf(stderr, "%-20s %8zu bytes %7zu ids %7.1f ms %6.1f MB/s\n", pieces[i][0], text.length, ids.count, ms,
                (double)text.length / ms / 1e3);
        assert_int_equal(di_tokenizer_decode(tokenizer, ids.data, ids.count, false, &back, &error), DI_OK);
        assert_int_equal(back.length, text.length);
        assert_memory_equal(back.data, text.data, text.length);
        di_ids_free(&ids);
        di_text_free(&text);
        di_text_free(&back);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_vectors), cmocka_unit_test(specification_vectors),
        cmocka_unit_test(added_tokens),   cmocka_unit_test(compressed_map),
        cmocka_unit_test(megabytes),      cmocka_unit_test(plain_text_never_makes_control_tokens),
    };
    return cmocka_run_group_tests(tests, load_tokenizer, free_tokenizer);
}
