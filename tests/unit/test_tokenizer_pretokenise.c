/* needs: tokenizer base */
/* The pieces against two other ways to make them, a matcher written by hand and PCRE2 on the file's own expressions;
 * and the time on long runs of one thing. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/tokenizer_internal.h"

#include <pcre2.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>

#include <cmocka.h>

enum { MAX_CHARACTERS = 400 };

typedef struct pieces {
    size_t ends[4 * MAX_CHARACTERS]; /* end offset of each piece */
    size_t count, at;
} pieces;

static di_status add_piece(void *arg, const char *piece, size_t length, di_error *error) {
    pieces *out = arg;
    (void)piece;
    (void)error;
    out->at += length;
    if (out->count < sizeof out->ends / sizeof *out->ends) out->ends[out->count++] = out->at;
    return DI_OK;
}

/* --- by hand: characters and their classes */

typedef struct characters {
    uint32_t code[MAX_CHARACTERS + 1];
    size_t offset[MAX_CHARACTERS + 1]; /* in bytes */
    int count;
} characters;

static bool has_class(uint32_t c, const char *letters) {
    return strchr(letters, utf8proc_category_string((utf8proc_int32_t)c)[0]) != NULL;
}

static bool is_line_end(uint32_t c) {
    return c == '\r' || c == '\n';
}

static bool is_ascii_letter(uint32_t c) {
    return c < 128 && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", (int)c) && c;
}

static int match_number(const characters *s, int i, int n) {
    int j = i;
    while (j < n && j - i < 3 && has_class(s->code[j], "N")) j++;
    return j;
}

static int match_han_kana(const characters *s, int i, int n) {
    while (i < n && ((s->code[i] >= 0x4E00 && s->code[i] <= 0x9FA5) || (s->code[i] >= 0x3040 && s->code[i] <= 0x30FF)))
        i++;
    return i;
}

static int letters_and_marks(const characters *s, int i, int n) {
    while (i < n && has_class(s->code[i], "LM")) i++;
    return i;
}

static int match_white_space(const characters *s, int i, int n) {
    int end = i, last_line_end = -1;
    for (; end < n && di_is_white_space(s->code[end]); end++)
        if (is_line_end(s->code[end])) last_line_end = end;
    if (last_line_end >= 0) return last_line_end + 1;
    return end == n || end <= i + 1 ? end : end - 1;
}

static int match_words(const characters *s, int i, int n) {
    uint32_t c = s->code[i];
    int j = i + 1;
    if (c < 128 && c > 32 && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", (int)c)) {
        while (j < n && is_ascii_letter(s->code[j])) j++;
        if (j > i + 1) return j;
    }
    if (!is_line_end(c) && !has_class(c, "LPS")) {
        j = letters_and_marks(s, i + 1, n);
        if (j > i + 1) return j;
    }
    j = letters_and_marks(s, i, n);
    if (j > i) return j;
    int start = c == ' ' ? i + 1 : i;
    for (j = start; j < n && has_class(s->code[j], "PS");) j++;
    if (j > start) {
        while (j < n && is_line_end(s->code[j])) j++;
        return j;
    }
    return match_white_space(s, i, n);
}

static void split_by_hand(const characters *s, int pass, int from, int to, pieces *out) {
    int (*const match[])(const characters *, int, int) = {match_number, match_han_kana, match_words};
    if (pass == 3) {
        out->ends[out->count++] = s->offset[to];
        return;
    }
    int gap = from;
    for (int i = from; i < to;) {
        int j = match[pass](s, i, to);
        if (j == i) {
            i++;
            continue;
        }
        if (gap < i) split_by_hand(s, pass + 1, gap, i, out);
        split_by_hand(s, pass + 1, i, j, out);
        gap = i = j;
    }
    if (gap < to) split_by_hand(s, pass + 1, gap, to, out);
}

/* --- PCRE2 on the expressions as they stand in the file */

static pcre2_code *file_codes[DI_TOKENIZER_PASS_COUNT];

static void split_by_file(int pass, const char *text, size_t length, pieces *out) {
    if (pass == DI_TOKENIZER_PASS_COUNT) {
        add_piece(out, text, length, NULL);
        return;
    }
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    size_t at = 0;
    while (at < length && pcre2_match(file_codes[pass], (PCRE2_SPTR)text, length, at, 0, data, NULL) > 0) {
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(data);
        size_t start = bounds[0], end = bounds[1];
        if (start > at) split_by_file(pass + 1, text + at, start - at, out);
        split_by_file(pass + 1, text + start, end - start, out);
        at = end;
    }
    if (at < length) split_by_file(pass + 1, text + at, length - at, out);
    pcre2_match_data_free(data);
}

/* --- random text */

static uint32_t random_state = 7;

static uint32_t draw(uint32_t bound) {
    random_state = random_state * 1664525u + 1013904223u;
    return (uint32_t)(((uint64_t)random_state * bound) >> 32);
}

static const char *const pools[] = {
    " ",
    "\t\n\r \x0b\x0c",
    "\r\n",
    "\xC2\x85\xC2\xA0\xE1\x9A\x80\xE2\x80\x83\xE2\x80\xA8\xE2\x80\xA9\xE3\x80\x80",
    "\xE1\xA0\x8E\xE2\x80\x8B\xEF\xBB\xBF\x01\x1c\x1f\x7f",
    "abcXYZ",
    "éßñджα",
    "0123456789",
    "٣²½Ⅷ〇４",
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "。、「」｜€≠∑©‐…",
    "你好世界龥龦㐀𠮷",
    "ひらカター・゛々〆ゔヿ゠",
    "\xCC\x81\xCC\xA7\xE2\x83\x9D\xE0\xA4\xBF\xE3\x82\x99",
    "👩\xE2\x80\x8D🚀\xEF\xB8\x8F🏽",
    "한국어",
};

static uint32_t pool_character(const char *pool) {
    uint32_t all[64], count = 0;
    for (size_t used, length = strlen(pool); length > 0; pool += used, length -= used)
        used = di_utf8_decode(pool, length, &all[count++]);
    return all[draw(count)];
}

/* Few pools a text, so that runs and borders of two classes are common. `separator` false: no U+180E. */
static void random_text(characters *s, di_text *text, bool separator) {
    di_text_clear(text);
    di_text_puts(text, "");
    int pool_count = 1 + (int)draw(4), length = 1 + (int)draw(draw(4) ? 20 : MAX_CHARACTERS);
    uint32_t chosen[4];
    for (int i = 0; i < pool_count; i++) chosen[i] = draw(sizeof pools / sizeof *pools);
    s->count = 0;
    while (s->count < length) {
        uint32_t c = pool_character(pools[chosen[draw((uint32_t)pool_count)]]);
        if (c == 0x180E && !separator) continue;
        char utf8[4];
        s->code[s->count] = c;
        s->offset[s->count++] = text->length;
        di_text_append(text, utf8, di_utf8_encode(c, utf8));
    }
    s->offset[s->count] = text->length;
}

static void assert_pieces(const pieces *got, const pieces *wanted, const di_text *text, const char *by) {
    bool same = got->count == wanted->count && memcmp(got->ends, wanted->ends, got->count * sizeof *got->ends) == 0;
    if (same) return;
    for (size_t i = 0; i < text->length; i++) printf("\\x%02x", (uint8_t)text->data[i]);
    fail_msg("other pieces than %s", by);
}

static void pieces_are_those_of_the_expressions(void **state) {
    (void)state;
    di_pretokeniser *kinds[2];
    for (int jit = 0; jit < 2; jit++) assert_int_equal(di_pretokeniser_new(jit, &kinds[jit], NULL), DI_OK);
    di_text text = {0};
    for (int round = 0; round < 10000; round++) {
        static characters s;
        bool separator = round % 2;
        random_text(&s, &text, separator);
        static pieces hand, file, got;
        hand.count = file.count = file.at = 0;
        split_by_hand(&s, 0, 0, s.count, &hand);
        split_by_file(0, text.data, text.length, &file);
        if (!separator) assert_pieces(&file, &hand, &text, "by hand");
        for (int jit = 0; jit < 2; jit++) {
            got.count = got.at = 0;
            assert_int_equal(di_pretokenise(kinds[jit], text.data, text.length, add_piece, &got, NULL), DI_OK);
            assert_pieces(&got, &hand, &text, jit ? "by hand (compiled)" : "by hand (interpreted)");
        }
    }
    di_text_free(&text);
    for (int jit = 0; jit < 2; jit++) di_pretokeniser_free(kinds[jit]);
}

/* PCRE2's \s takes U+180E for white space; Unicode and the tokenizer do not. */
static void mongolian_vowel_separator_is_no_white_space(void **state) {
    (void)state;
    di_pretokeniser *pretokeniser;
    assert_int_equal(di_pretokeniser_new(true, &pretokeniser, NULL), DI_OK);
    static pieces got;
    got.count = got.at = 0;
    const char text[] = " \xE1\xA0\x8E\xE1\xA0\x8E\n";
    assert_int_equal(di_pretokenise(pretokeniser, text, sizeof text - 1, add_piece, &got, NULL), DI_OK);
    assert_int_equal(got.count, 3); /* the space, the two separators as a gap, the line end */
    assert_int_equal(got.ends[0], 1);
    assert_int_equal(got.ends[1], 7);
    di_pretokeniser_free(pretokeniser);
}

/* Of this thread: neighbours on the machine do not count. */
static double cpu_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static double best_ms(const di_pretokeniser *pretokeniser, const char *text, size_t length) {
    double best = 1e30;
    for (int i = 0; i < 3; i++) {
        static pieces got;
        got.count = got.at = 0;
        double start = cpu_ms();
        assert_int_equal(di_pretokenise(pretokeniser, text, length, add_piece, &got, NULL), DI_OK);
        double ms = cpu_ms() - start;
        assert_int_equal(got.at, length);
        best = ms < best ? ms : best;
    }
    return best;
}

/* Eight times the text may cost 32 times the time (caches); a quadratic pass costs 64 times. */
static void time_is_linear(void **state) {
    (void)state;
    static const char *const units[] = {"a",         " ",  "\xCC\x81", "7",       "=",       "\n",       " \n",
                                        "\r",        "\t", "\x01",     "海",      "・",      "\xC2\xA0", "\xE1\xA0\x8E",
                                        "a\xCC\x81", "! ", "  a",      " \r\n\t", "\xCD\xB8"};
    for (int jit = 0; jit < 2; jit++) {
        di_pretokeniser *pretokeniser;
        assert_int_equal(di_pretokeniser_new(jit, &pretokeniser, NULL), DI_OK);
        for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
            di_text text = {0};
            while (text.length < 1 << 19) di_text_puts(&text, units[i]);
            size_t unit = strlen(units[i]), part = (1 << 16) / unit * unit;
            double small = best_ms(pretokeniser, text.data, part);
            double large = best_ms(pretokeniser, text.data, text.length);
            if (large > 32 * small + 10)
                fail_msg("unit %zu: %.2f ms for %zu bytes, %.2f ms for %zu", i, small, part, large, text.length);
            di_text_free(&text);
        }
        di_pretokeniser_free(pretokeniser);
    }
}

static int compile_file_expressions(void **state) {
    (void)state;
    for (int pass = 0; pass < DI_TOKENIZER_PASS_COUNT; pass++) {
        int code;
        PCRE2_SIZE offset;
        file_codes[pass] = pcre2_compile((PCRE2_SPTR)di_pretokeniser_expression(pass), PCRE2_ZERO_TERMINATED,
                                         PCRE2_UTF | PCRE2_UCP, &code, &offset, NULL);
        if (!file_codes[pass]) return 1;
    }
    return 0;
}

static int free_file_expressions(void **state) {
    (void)state;
    for (int pass = 0; pass < DI_TOKENIZER_PASS_COUNT; pass++) pcre2_code_free(file_codes[pass]);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_those_of_the_expressions),
        cmocka_unit_test(mongolian_vowel_separator_is_no_white_space),
        cmocka_unit_test(time_is_linear),
    };
    return cmocka_run_group_tests(tests, compile_file_expressions, free_file_expressions);
}
