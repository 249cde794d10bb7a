/* needs: recipe tokenizer base */
/* Segments of a prompt: control tokens and plain text never mix; added tokens; invalid text; many threads on one
 * tokenizer. */
#include "recipe/recipe.h"
#include "support/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BC = 256, OPEN = 257, OPEN_LONG = 258, MARK = 259, UNEQUAL = 260, UNEQUAL3 = 261 };

static di_tokenizer *tokenizer;

static int make_tokenizer(void **state) {
    (void)state;
    di_text added = {0}, file = {0};
    const char *const contents[] = {"<a>", "<a><b", "｜M｜", "≠", "≠≠≠"};
    for (int i = 0; i < 5; i++) {
        if (i) di_text_putc(&added, ',');
        small_added_token(&added, OPEN + i, contents[i], false);
    }
    small_tokenizer(&file, ",\"bc\":256", "\"b c\"", added.data);
    di_error error = {0};
    di_status status = di_tokenizer_parse("small.json", file.data, file.length, &tokenizer, &error);
    if (status) print_error("%s\n", error.message);
    di_text_free(&added);
    di_text_free(&file);
    return status != DI_OK;
}

static int free_tokenizer(void **state) {
    (void)state;
    di_tokenizer_free(tokenizer);
    return 0;
}

static void assert_ids(const di_ids *ids, const int32_t *wanted, size_t wanted_count) {
    assert_int_equal(ids->count, wanted_count);
    if (wanted_count) assert_memory_equal(ids->data, wanted, wanted_count * sizeof *wanted);
}

static void assert_encodes(const di_segment *segments, size_t count, const int32_t *wanted, size_t wanted_count) {
    const di_prompt prompt = {.request = segments, .count = count};
    di_ids ids = {0};
    di_error error = {0};
    if (di_recipe_encode(tokenizer, &prompt, &ids, &error)) fail_msg("%s", error.message);
    assert_ids(&ids, wanted, wanted_count);
    di_ids_free(&ids);
}

#define TEXT(bytes)                                                                                                    \
    { .text = bytes, .text_length = sizeof(bytes) - 1 }
#define CONTROL(id)                                                                                                    \
    { .token_ids = &(const int32_t){id}, .token_count = 1 }
#define ASSERT_ENCODES(wanted, ...)                                                                                    \
    assert_encodes((const di_segment[]){__VA_ARGS__}, sizeof((const di_segment[]){__VA_ARGS__}) / sizeof(di_segment),  \
                   wanted, sizeof(wanted) / sizeof(int32_t))

static void plain_text_stays_plain(void **state) {
    (void)state;
    const int32_t spelled[] = {'<', 'a', '>', 'x'};
    ASSERT_ENCODES(spelled, TEXT("<a>x"));
    const int32_t both[] = {OPEN, '<', 'a', '>', MARK};
    ASSERT_ENCODES(both, CONTROL(OPEN), TEXT("<a>"), CONTROL(MARK));
}

/* Neither a merge nor an added token forms across a border. */
static void borders_hold(void **state) {
    (void)state;
    const int32_t one[] = {BC}, split[] = {'b', 'c'}, half[] = {'<', 'a', '>'}, between[] = {'b', MARK, 'c'};
    ASSERT_ENCODES(one, TEXT("bc"));
    ASSERT_ENCODES(split, TEXT("b"), TEXT("c"));
    ASSERT_ENCODES(split, TEXT("b"), TEXT(""), TEXT("c"));
    ASSERT_ENCODES(half, TEXT("<a"), TEXT(">"));
    ASSERT_ENCODES(between, TEXT("b"), CONTROL(MARK), TEXT("c"));
    assert_encodes(NULL, 0, NULL, 0);
    const di_segment nothing = {0};
    assert_encodes(&nothing, 1, NULL, 0);
}

/* Text of our own, in which added tokens are recognised. */
static void the_leftmost_longest_token_wins(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int32_t ids[5];
        size_t count;
    } rows[] = {{"<a>x", {OPEN, 'x'}, 2},
                {"<a><b><a><c", {OPEN_LONG, '>', OPEN, '<', 'c'}, 5},
                {"≠≠≠≠≠x≠≠≠", {UNEQUAL3, UNEQUAL, UNEQUAL, 'x', UNEQUAL3}, 5},
                {"<<a><a", {'<', OPEN, '<', 'a'}, 4}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_ids ids = {0};
        assert_int_equal(di_tokenizer_encode(tokenizer, rows[i].text, strlen(rows[i].text), true, &ids, NULL), DI_OK);
        assert_ids(&ids, rows[i].ids, rows[i].count);
        di_ids_free(&ids);
    }
}

static void invalid_text_is_refused_with_its_offset(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t length, offset;
    } bad[] = {
        {"abc\xFF", 4, 3},      {"\xC0\xAF", 2, 0},           {"a\xE7\x81", 3, 1},
        {"\xED\xA0\x80", 3, 0}, {"xy\xF4\x90\x80\x80", 6, 2}, {"\x80", 1, 0},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int added = 0; added < 2; added++) {
            char offset[32];
            snprintf(offset, sizeof offset, "offset %zu", bad[i].offset);
            di_ids ids = {0};
            di_ids_append(&ids, 7);
            di_error error = {0};
            assert_int_equal(di_tokenizer_encode(tokenizer, bad[i].text, bad[i].length, added, &ids, &error),
                             DI_ERR_FORMAT);
            assert_string_equal(error.param, "text");
            assert_non_null(strstr(error.message, offset));
            assert_int_equal(ids.count, 1); /* what was there stays, nothing half-done is added */
            assert_int_equal(ids.data[0], 7);
            assert_int_equal(di_tokenizer_encode(tokenizer, bad[i].text, bad[i].length, added, &ids, NULL),
                             DI_ERR_FORMAT);
            di_ids_free(&ids);
            const di_segment segments[] = {TEXT("bc"), {.text = bad[i].text, .text_length = bad[i].length}};
            const di_prompt prompt = {.request = segments, .count = 2};
            assert_int_equal(di_recipe_encode(tokenizer, &prompt, &ids, &error), DI_ERR_FORMAT);
            di_ids_free(&ids);
        }
    di_error error = {0};
    di_ids ids = {0};
    assert_int_equal(di_tokenizer_encode(tokenizer, "", (size_t)INT32_MAX + 1, false, &ids, &error), DI_ERR_LIMIT);
}

static void *encode_often(void *arg) {
    bool *good = arg;
    for (int round = 0; round < 200 && *good; round++) {
        di_ids ids = {0};
        const char text[] = "<a>bc bc 12345 海の\n\n  x｜M｜";
        di_status status = di_tokenizer_encode(tokenizer, text, sizeof text - 1, true, &ids, NULL);
        di_text back = {0};
        if (!status) status = di_tokenizer_decode(tokenizer, ids.data, ids.count, false, &back, NULL);
        *good = !status && ids.data[0] == OPEN && ids.data[ids.count - 1] == MARK && strcmp(back.data, text) == 0;
        di_ids_free(&ids);
        di_text_free(&back);
    }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    pthread_t threads[4];
    bool good[4] = {true, true, true, true};
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, encode_often, &good[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_true(good[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_stays_plain),          cmocka_unit_test(borders_hold),
        cmocka_unit_test(the_leftmost_longest_token_wins), cmocka_unit_test(invalid_text_is_refused_with_its_offset),
        cmocka_unit_test(threads_share_a_tokenizer),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, free_tokenizer);
}
