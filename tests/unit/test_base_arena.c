/* needs: base */
/* Arenas: alignment, no overlap, growth, reset keeps blocks, overflow; poisoning in test builds. */
#include "base/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Each piece is filled with its own byte; if two overlapped, an earlier one would change. */
static void fill_and_check(di_arena *arena) {
    enum { PIECES = 400 };
    unsigned char *pieces[PIECES];
    size_t sizes[PIECES];
    uint32_t random = 12345;
    for (size_t i = 0; i < PIECES; i++) {
        random = random * 1664525 + 1013904223;
        sizes[i] = random >> 16 & 0x3FF;
        if (i % 50 == 7) sizes[i] = 5000 + (random >> 20);
        size_t alignment = (size_t)1 << (random >> 8) % 7;
        pieces[i] = di_arena_alloc_aligned(arena, sizes[i], alignment);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % alignment, 0);
        memset(pieces[i], (int)(i & 0xFF), sizes[i]);
    }
    for (size_t i = 0; i < PIECES; i++) {
        for (size_t k = 0; k < sizes[i]; k++) {
            if (pieces[i][k] != (i & 0xFF)) fail_msg("piece %zu changed at %zu", i, k);
        }
    }
}

static void test_pieces(void **state) {
    (void)state;
    static const size_t block_sizes[] = {0, 1, 64, 1000, 1 << 20};
    for (size_t b = 0; b < sizeof block_sizes / sizeof block_sizes[0]; b++) {
        di_arena *arena = di_arena_new(block_sizes[b]);
        assert_non_null(arena);
        fill_and_check(arena);
        size_t held = di_arena_bytes(arena);
        assert_true(held > 0);
        for (int i = 0; i < 20; i++) {
            di_arena_reset(arena);
            fill_and_check(arena);
        }
        /* The same work after a reset needs hardly more memory, and soon none. */
        assert_true(di_arena_bytes(arena) <= held + held / 4 + 65536);
        held = di_arena_bytes(arena);
        di_arena_reset(arena);
        fill_and_check(arena);
        assert_int_equal(di_arena_bytes(arena), held);
        di_arena_free(arena);
    }
    di_arena_free(NULL);
}

static void test_refusals(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(0);
    assert_null(di_arena_array(arena, SIZE_MAX / 2, 3));
    assert_null(di_arena_alloc(arena, SIZE_MAX));
    assert_null(di_arena_alloc(arena, SIZE_MAX - 100));
    assert_null(di_arena_copy(arena, "x", SIZE_MAX));
    assert_null(di_arena_alloc_aligned(arena, 8, 3));
    assert_null(di_arena_alloc_aligned(arena, 8, 128));
    assert_null(di_arena_alloc_aligned(arena, 8, 0));
    void *first = di_arena_alloc(arena, 0), *second = di_arena_alloc(arena, 0);
    assert_non_null(first);
    assert_ptr_not_equal(first, second);
    di_arena_free(arena);
    assert_null(di_aligned_alloc(SIZE_MAX, 2));
    assert_null(di_aligned_alloc(SIZE_MAX, 1));
}

static void test_helpers(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(256);
    char *copy = di_arena_copy(arena, "abcdef", 3);
    assert_string_equal(copy, "abc");
    assert_string_equal(di_arena_copy(arena, NULL, 0), "");
    unsigned char *zero = di_arena_zalloc(arena, 1000);
    for (size_t i = 0; i < 1000; i++) assert_int_equal(zero[i], 0);
    uint64_t *array = di_arena_array(arena, 10, sizeof *array);
    assert_int_equal((uintptr_t)array % 16, 0);
    di_arena_free(arena);
    unsigned char *memory = di_aligned_alloc(33, 3);
    assert_int_equal((uintptr_t)memory % 64, 0);
    for (size_t i = 0; i < 99; i++) assert_int_equal(memory[i], 0);
    di_aligned_free(memory);
    di_aligned_free(NULL);
    memory = di_aligned_alloc(0, 8);
    assert_non_null(memory);
    di_aligned_free(memory);
}

static size_t resident(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long pages = 0, all;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lu %lu", &all, &pages), 2);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Large memory: cleared, aligned, costs nothing before it is written and nothing after it is freed. */
static void test_large(void **state) {
    (void)state;
    enum { SIZE = 48 << 20, ROUNDS = 4 };
    size_t before = resident();
    unsigned char *kept[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        unsigned char *memory = di_aligned_alloc(SIZE, 1);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t at = 0; at < SIZE; at += 4096) assert_int_equal(memory[at], 0);
        memset(memory, 0xff, SIZE);
        kept[i] = di_aligned_alloc(5000, 1); /* would keep a heap from shrinking */
        assert_non_null(kept[i]);
        di_aligned_free(memory);
    }
    unsigned char *unused = di_aligned_alloc(SIZE, 1);
    assert_non_null(unused);
#ifndef DI_POISON /* a sanitizer keeps freed memory back */
    assert_in_range(resident(), 0, before + (16 << 20));
#endif
    (void)before;
    di_aligned_free(unused);
    for (int i = 0; i < ROUNDS; i++) di_aligned_free(kept[i]);
}

#ifdef DI_POISON
static void test_poison(void **state) {
    (void)state;
    di_arena *arena = di_arena_new(4096);
    unsigned char *memory = di_arena_alloc(arena, 100);
    for (size_t i = 0; i < 100; i++) assert_int_equal(memory[i], 0xA5);
    memset(memory, 0, 100);
    di_arena_reset(arena);
    unsigned char *again = di_arena_alloc(arena, 100);
    assert_ptr_equal(memory, again);
    for (size_t i = 0; i < 100; i++) assert_int_equal(again[i], 0xA5);
    di_arena_free(arena);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),  cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_helpers), cmocka_unit_test(test_large),
#ifdef DI_POISON
        cmocka_unit_test(test_poison),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
