/* needs: engine cache sampling model backend_cpu tokenizer checkpoint tensor base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/stop.h"

/* Pushes `text` in pieces of `piece` bytes; returns the match and the text before it (or all of it) in *out. */
static int32_t cut(const char *const *stops, size_t count, const char *text, size_t piece, di_text *out) {
    di_arena *arena = di_arena_new(0);
    di_stop_set set;
    di_stop_matcher matcher;
    di_error error = {0};
    assert_int_equal(di_stop_set_build(&set, arena, stops, count, &error), DI_OK);
    assert_true(di_stop_matcher_init(&matcher, arena, &set, true));
    int32_t match = -1;
    di_text_clear(out);
    for (size_t at = 0, length = strlen(text); at < length && match < 0; at += piece)
        match = di_stop_push(&matcher, text + at, length - at < piece ? length - at : piece, out);
    if (match < 0) di_stop_flush(&matcher, out);
    assert_false(out->failed);
    di_stop_matcher_free(&matcher);
    di_arena_free(arena);
    return match;
}

static void check(const char *const *stops, size_t count, const char *text, int32_t match, const char *before) {
    di_text out = {0};
    for (size_t piece = 1; piece <= strlen(text) + 1; piece++) {
        assert_int_equal(cut(stops, count, text, piece, &out), match);
        assert_string_equal(out.data ? out.data : "", before);
    }
    di_text_free(&out);
}

static void cuts_where_the_first_string_is_complete(void **state) {
    (void)state;
    check((const char *const[]){"END"}, 1, "the END of it", 0, "the ");
    check((const char *const[]){"END"}, 1, "ENENDED", 0, "EN");
    check((const char *const[]){"END"}, 1, "no such word EN", -1, "no such word EN");
    check((const char *const[]){"abcd", "bc"}, 2, "xabcdx", 1, "xa");      /* "bc" is complete first */
    check((const char *const[]){"cd", "abcd"}, 2, "xabcdx", 1, "x");       /* both complete: the longest */
    check((const char *const[]){"aab"}, 1, "aaaaab", 0, "aaa");            /* borders */
    check((const char *const[]){"abab", "baba"}, 2, "cababa", 0, "c");     /* overlapping */
    check((const char *const[]){"\xc3\xa9"}, 1, "caf\xc3\xa9!", 0, "caf"); /* more than one byte a character */
    check((const char *const[]){"a"}, 1, "a", 0, "");
    check(NULL, 0, "anything", -1, "anything");
}

/* Reference: try every end, then every string. */
static int32_t naive(const char *const *stops, size_t count, const char *text, size_t *start) {
    for (size_t end = 1; end <= strlen(text); end++) {
        int32_t best = -1;
        for (size_t s = 0; s < count; s++) {
            size_t length = strlen(stops[s]);
            if (length <= end && memcmp(text + end - length, stops[s], length) == 0 &&
                (best < 0 || length > strlen(stops[best])))
                best = (int32_t)s;
        }
        if (best >= 0) {
            *start = end - strlen(stops[best]);
            return best;
        }
    }
    return -1;
}

static void equals_a_naive_search_on_random_text(void **state) {
    (void)state;
    uint32_t random = 1;
    di_text out = {0};
    for (int round = 0; round < 3000; round++) {
        char words[3][6], text[40];
        const char *stops[3];
        for (size_t w = 0; w < 3; w++) {
            size_t length = 1 + (random = random * 1664525 + 1013904223) % 5;
            for (size_t i = 0; i < length; i++) words[w][i] = "ab"[(random = random * 1664525 + 1013904223) >> 16 & 1];
            words[w][length] = 0;
            stops[w] = words[w];
        }
        for (size_t i = 0; i < sizeof text; i++) text[i] = "abc"[(random = random * 1664525 + 1013904223) % 7919 % 3];
        text[sizeof text - 1] = 0;
        size_t start = strlen(text);
        int32_t expected = naive(stops, 3, text, &start);
        int32_t got = cut(stops, 3, text, 1 + (size_t)round % 7, &out);
        /* Equal strings have equal rights. */
        if (expected >= 0)
            assert_string_equal(stops[got], stops[expected]);
        else
            assert_int_equal(got, -1);
        assert_int_equal(out.length, start);
        if (start) assert_memory_equal(out.data, text, start);
    }
    di_text_free(&out);
}

static void holds_back_no_more_than_it_must(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_stop_set set;
    di_stop_matcher matcher;
    di_text out = {0};
    const char *stops[] = {"\n\nUser:"};
    assert_int_equal(di_stop_set_build(&set, arena, stops, 1, NULL), DI_OK);
    assert_true(di_stop_matcher_init(&matcher, arena, &set, true));
    assert_int_equal(di_stop_push(&matcher, "one\n", 4, &out), -1);
    assert_string_equal(out.data, "one");
    assert_int_equal(di_stop_push(&matcher, "two", 3, &out), -1);
    assert_string_equal(out.data, "one\ntwo");
    assert_int_equal(di_stop_push(&matcher, "\n\nUse", 5, &out), -1);
    assert_string_equal(out.data, "one\ntwo");
    di_stop_flush(&matcher, &out); /* a border that no match may cross */
    assert_string_equal(out.data, "one\ntwo\n\nUse");
    assert_int_equal(di_stop_push(&matcher, "r:", 2, &out), -1);
    assert_string_equal(out.data, "one\ntwo\n\nUser:");
    di_text_free(&out);
    di_stop_matcher_free(&matcher);
    di_arena_free(arena);
}

static void takes_linear_time_on_repetition(void **state) {
    (void)state;
    enum { LENGTH = 1 << 20 };
    di_arena *arena = di_arena_new(0);
    char *stop = malloc(LENGTH + 1), *text = malloc(LENGTH);
    memset(stop, 'a', LENGTH);
    stop[LENGTH - 1] = 'b';
    stop[LENGTH] = 0;
    memset(text, 'a', LENGTH);
    const char *stops[] = {stop};
    di_stop_set set;
    di_stop_matcher matcher;
    di_text out = {0};
    assert_int_equal(di_stop_set_build(&set, arena, stops, 1, NULL), DI_OK);
    assert_true(di_stop_matcher_init(&matcher, arena, &set, true));
    assert_int_equal(di_stop_push(&matcher, text, LENGTH, &out), -1);
    assert_int_equal(out.length, 1);
    assert_int_equal(di_stop_push(&matcher, "b", 1, &out), 0);
    assert_int_equal(out.length, 1);
    di_text_free(&out);
    di_stop_matcher_free(&matcher);
    di_arena_free(arena);
    free(stop);
    free(text);
}

/* Held back are line breaks before what may be an end, and that; nothing behind an end. */
static void matches_nothing_from_an_end_on(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    di_stop_set set;
    di_stop_matcher matcher;
    di_text out = {0};
    const char *stops[] = {"\n", "x"}, *ends[] = {"<call>", "\n[c]\n["};
    assert_int_equal(di_stop_set_build(&set, arena, stops, 2, NULL), DI_OK);
    assert_int_equal(di_stop_set_add_ends(&set, arena, ends, 2, NULL), DI_OK);
    assert_true(di_stop_matcher_init(&matcher, arena, &set, true));
    assert_int_equal(di_stop_push(&matcher, "one [c] [", 9, &out), -1); /* not at the start of a line */
    assert_string_equal(out.data, "one [c] [");
    assert_int_equal(di_stop_push(&matcher, "<<cal", 5, &out), -1);
    assert_string_equal(out.data, "one [c] [<");
    assert_int_equal(di_stop_push(&matcher, "e \n\n", 4, &out), -1);
    assert_string_equal(out.data, "one [c] [<<cale ");
    assert_int_equal(di_stop_push(&matcher, "[c]", 3, &out), -1);
    assert_int_equal(di_stop_push(&matcher, " \n", 2, &out), -1);
    assert_string_equal(out.data, "one [c] [<<cale ");
    assert_int_equal(di_stop_push(&matcher, "[\nx", 3, &out), -1);
    assert_string_equal(out.data, "one [c] [<<cale \n\n[c] \n[\nx");
    di_stop_arm(&matcher);
    assert_int_equal(di_stop_push(&matcher, "x", 1, &out), -1);
    assert_int_equal(di_stop_finish(&matcher, &out), -1);
    di_stop_matcher_free(&matcher);
    di_text_clear(&out);
    assert_true(di_stop_matcher_init(&matcher, arena, &set, true));
    assert_int_equal(di_stop_push(&matcher, "two\n<call", 9, &out), -1);
    assert_int_equal(di_stop_finish(&matcher, &out), 0); /* it was none */
    assert_string_equal(out.data, "two");
    di_stop_matcher_free(&matcher);
    di_text_free(&out);
    di_arena_free(arena);
}

static void refuses_strings_that_cannot_stop(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    const char *bad[] = {"", "\xff", "\xc3", NULL};
    for (size_t i = 0; i < 4; i++) {
        di_stop_set set;
        di_error error = {0};
        const char *stops[] = {"fine", bad[i]};
        assert_int_equal(di_stop_set_build(&set, arena, stops, 2, &error), DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, "stop");
        assert_non_null(strstr(error.message, "stop[1]"));
    }
    const char *bad_ends[] = {"", "\xff", "\n", "\n\na", NULL};
    for (size_t i = 0; i < 5; i++) {
        di_stop_set set;
        di_error error = {0};
        const char *stop = "fine", *ends[] = {"\nfine", bad_ends[i]};
        assert_int_equal(di_stop_set_build(&set, arena, &stop, 1, &error), DI_OK);
        assert_int_equal(di_stop_set_add_ends(&set, arena, ends, 2, &error), DI_ERR_INVALID_ARGUMENT);
        assert_string_equal(error.param, "stop_disarm");
        assert_non_null(strstr(error.message, "stop_disarm[1]"));
    }
    di_arena_free(arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_where_the_first_string_is_complete),
        cmocka_unit_test(equals_a_naive_search_on_random_text),
        cmocka_unit_test(holds_back_no_more_than_it_must),
        cmocka_unit_test(takes_linear_time_on_repetition),
        cmocka_unit_test(matches_nothing_from_an_end_on),
        cmocka_unit_test(refuses_strings_that_cannot_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
