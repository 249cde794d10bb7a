/* needs: tokenizer base */
/* Incremental and whole decoding against a decoder written from the Unicode table of well-formed sequences. */
#include "support/small_tokenizer.h"
#include "tokenizer/tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { S = 256, USER = 257, PART = 258, IDS = 259 }; /* <s> special, <user> added, PART = the bytes E7 81 */

static di_tokenizer *tokenizer;

static int make_tokenizer(void **state) {
    (void)state;
    di_text added = {0}, file = {0}, vocabulary = {0};
    small_added_token(&added, S, "<s>", true);
    di_text_putc(&added, ',');
    small_added_token(&added, USER, "<user>", false);
    char left[5] = {0}, right[5] = {0};
    di_utf8_encode(small_alphabet(0xE7), left);
    di_utf8_encode(small_alphabet(0x81), right);
    di_text_printf(&vocabulary, ",\"%s%s\":%d", left, right, PART);
    small_tokenizer(&file, vocabulary.data, "", added.data);
    di_status status = di_tokenizer_parse("small.json", file.data, file.length, &tokenizer, NULL);
    di_text_free(&added);
    di_text_free(&file);
    di_text_free(&vocabulary);
    return status != DI_OK;
}

static int free_tokenizer(void **state) {
    (void)state;
    di_tokenizer_free(tokenizer);
    return 0;
}

/* Unicode table 3-7: how many bytes from p are the beginning of a well-formed sequence; *whole if it is complete. */
static size_t well_formed(const uint8_t *p, size_t n, bool *whole) {
    uint8_t first = p[0], low = 0x80, high = 0xBF;
    size_t needed;
    *whole = false;
    if (first < 0x80)
        needed = 1;
    else if (first >= 0xC2 && first <= 0xDF)
        needed = 2;
    else if (first >= 0xE0 && first <= 0xEF)
        needed = 3;
    else if (first >= 0xF0 && first <= 0xF4)
        needed = 4;
    else
        return 0;
    if (first == 0xE0) low = 0xA0;
    if (first == 0xED) high = 0x9F;
    if (first == 0xF0) low = 0x90;
    if (first == 0xF4) high = 0x8F;
    size_t used = 1;
    for (; used < needed && used < n && p[used] >= low && p[used] <= high; used++) low = 0x80, high = 0xBF;
    *whole = used == needed;
    return used;
}

static void decode_by_table(const uint8_t *bytes, size_t length, di_text *out) {
    while (length > 0) {
        bool whole;
        size_t used = well_formed(bytes, length, &whole);
        if (whole)
            di_text_append(out, (const char *)bytes, used);
        else
            di_text_puts(out, "\xEF\xBF\xBD");
        used = used ? used : 1;
        bytes += used;
        length -= used;
    }
}

static uint32_t random_state = 3;

static uint32_t draw(uint32_t bound) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * bound) >> 32);
}

/* Bytes that are often almost a character. */
static int32_t random_id(void) {
    static const uint8_t likely[] = {0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC2, 0xDF, 0xE0, 0xE7,
                                     0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF, 'a',  0x81, 0xBD};
    switch (draw(8)) {
    case 0:
        return (int32_t)draw(IDS);
    case 1:
        return PART;
    default:
        return likely[draw(sizeof likely)];
    }
}

static void check_ids(const int32_t *ids, size_t count, bool skip_special) {
    di_text bytes = {0}, wanted = {0}, whole = {0}, pushed = {0};
    di_detokenizer detokenizer;
    di_detokenizer_init(&detokenizer, tokenizer);
    for (size_t i = 0; i < count; i++) {
        if (skip_special && di_tokenizer_is_special(tokenizer, ids[i])) continue;
        size_t length = 0;
        const char *data = di_tokenizer_bytes(tokenizer, ids[i], &length);
        di_text_append(&bytes, data, length);
        assert_int_equal(di_detokenizer_push(&detokenizer, ids[i], &pushed, NULL), DI_OK);
        if (pushed.length) assert_int_equal(di_utf8_validate(pushed.data, pushed.length), pushed.length);
        assert_true(detokenizer.pending_count <= 3);
        /* A fork that ends here gives what the whole decoding of the ids so far gives. */
        di_detokenizer fork = detokenizer;
        di_text end = {0}, so_far = {0};
        di_text_append(&end, pushed.data, pushed.length);
        di_detokenizer_flush(&fork, &end);
        decode_by_table((const uint8_t *)bytes.data, bytes.length, &so_far);
        assert_int_equal(end.length, so_far.length);
        if (end.length) assert_memory_equal(end.data, so_far.data, end.length);
        /* What waits could still become valid: no certain text is held back. */
        bool complete = true;
        size_t held = detokenizer.pending_count;
        if (held) assert_int_equal(well_formed(detokenizer.pending, held, &complete), held);
        assert_true(!held || !complete);
        di_text_free(&end);
        di_text_free(&so_far);
    }
    di_detokenizer_flush(&detokenizer, &pushed);
    assert_int_equal(di_tokenizer_decode(tokenizer, ids, count, skip_special, &whole, NULL), DI_OK);
    decode_by_table((const uint8_t *)bytes.data, bytes.length, &wanted);
    assert_int_equal(whole.length, wanted.length);
    assert_int_equal(pushed.length, wanted.length);
    if (wanted.length) {
        assert_memory_equal(whole.data, wanted.data, wanted.length);
        assert_memory_equal(pushed.data, wanted.data, wanted.length);
    }
    di_text_free(&bytes);
    di_text_free(&wanted);
    di_text_free(&whole);
    di_text_free(&pushed);
}

static void random_ids(void **state) {
    (void)state;
    int32_t ids[40];
    for (int round = 0; round < 10000; round++) {
        size_t count = draw(sizeof ids / sizeof *ids);
        for (size_t i = 0; i < count; i++) ids[i] = random_id();
        check_ids(ids, count, round % 2);
    }
}

static void every_pair_and_some_triples_of_bytes(void **state) {
    (void)state;
    for (int32_t a = 0; a < 256; a++)
        for (int32_t b = 0; b < 256; b++) {
            const int32_t ids[] = {a, b, 0x80 + (a ^ b) % 64, 'z'};
            check_ids(ids, 4, false);
        }
}

static void a_character_comes_out_with_its_last_byte(void **state) {
    (void)state;
    di_detokenizer detokenizer;
    di_detokenizer_init(&detokenizer, tokenizer);
    di_text text = {0};
    const int32_t ids[] = {0xF0, 0x9F, 0x98, 0x80};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(di_detokenizer_push(&detokenizer, ids[i], &text, NULL), DI_OK);
        assert_int_equal(text.length, 0);
    }
    assert_int_equal(di_detokenizer_push(&detokenizer, ids[3], &text, NULL), DI_OK);
    assert_string_equal(text.data, "😀");
    /* An added token ends what was begun. */
    assert_int_equal(di_detokenizer_push(&detokenizer, PART, &text, NULL), DI_OK);
    assert_int_equal(di_detokenizer_push(&detokenizer, USER, &text, NULL), DI_OK);
    assert_string_equal(text.data, "😀\xEF\xBF\xBD<user>");
    di_text_free(&text);
}

static void unknown_ids_are_refused(void **state) {
    (void)state;
    const int32_t unknown[] = {-1, IDS, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        di_text text = {0};
        di_error error = {0};
        assert_int_equal(di_tokenizer_decode(tokenizer, &unknown[i], 1, i % 2, &text, &error), DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, "token_ids");
        assert_non_null(strstr(error.message, "0..258"));
        size_t length;
        assert_null(di_tokenizer_bytes(tokenizer, unknown[i], &length));
        assert_null(di_tokenizer_spelling(tokenizer, unknown[i]));
        assert_false(di_tokenizer_is_added(tokenizer, unknown[i]));
        assert_false(di_tokenizer_is_special(tokenizer, unknown[i]));
        di_text_free(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_ids),
        cmocka_unit_test(every_pair_and_some_triples_of_bytes),
        cmocka_unit_test(a_character_comes_out_with_its_last_byte),
        cmocka_unit_test(unknown_ids_are_refused),
    };
    return cmocka_run_group_tests(tests, make_tokenizer, free_tokenizer);
}
