/* kernel_cases.h - inputs and comparisons for the tests of the kernel tables. Include it in the test's one file. */
#ifndef DI_TESTS_SUPPORT_KERNEL_CASES_H
#define DI_TESTS_SUPPORT_KERNEL_CASES_H

#include "support/kernel_tables.h"
#include "tensor/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

/* Of the results of the scalar table: ties machines, compilers and optimisation levels together. */
static uint64_t case_hash;

/* ---------------------------------------------------------------- values */

typedef enum value_kind {
    VALUES_NORMAL, /* around one */
    VALUES_WIDE,   /* exponents -60..60 */
    VALUES_ZERO,   /* zeros of both signs */
    VALUES_SPARSE, /* zeros of both signs and a few others */
    VALUES_SUBNORMAL,
    VALUES_HUGE,     /* up to the largest finite bf16 */
    VALUES_TIED,     /* one of three */
    VALUES_MIDPOINT, /* few-bit mantissas: midpoints of the small grids */
    VALUE_KINDS
} value_kind;

static inline uint64_t next_random(uint64_t *seed) {
    uint64_t x = (*seed += 0x9e3779b97f4a7c15ull);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* In (-1, 1). */
static inline float random_signed(uint64_t *seed) {
    return (float)((int64_t)next_random(seed) >> 24) * 0x1p-39f;
}

static inline float random_value(uint64_t *seed, value_kind kind) {
    uint64_t bits = next_random(seed);
    float sign = bits & 1 ? -1.0f : 1.0f, x = random_signed(seed);
    uint32_t pick = (uint32_t)(bits >> 8 & 0xffff), small = (uint32_t)(bits >> 40);
    switch (kind) {
    case VALUES_WIDE:
        return x * di_f32_from_bits((127 - 60 + pick % 121) << 23);
    case VALUES_ZERO:
        return sign * 0.0f;
    case VALUES_SPARSE:
        return pick % 4 ? sign * 0.0f : x;
    case VALUES_SUBNORMAL:
        return sign * di_f32_from_bits(small % 0x1000000);
    case VALUES_HUGE:
        return x * 0x1.fep127f;
    case VALUES_TIED:
        return sign * (pick % 3 == 0 ? 0.75f : pick % 3 == 1 ? 1.0f : 30.0f);
    case VALUES_MIDPOINT:
        return sign * (float)(1 + small % 63) * di_f32_from_bits((127 - 12 + pick % 12) << 23);
    default:
        return 4.0f * x;
    }
}

static inline void fill_floats(uint64_t *seed, float *x, size_t n, value_kind kind) {
    for (size_t i = 0; i < n; i++) x[i] = random_value(seed, kind);
}

static inline void fill_bf16(uint64_t *seed, uint16_t *x, size_t n, value_kind kind) {
    for (size_t i = 0; i < n; i++) {
        x[i] = di_bf16_encode(random_value(seed, kind));
        if ((x[i] & 0x7f80) == 0x7f80) x[i] = (uint16_t)((x[i] & 0x8000) | 0x7f7f);
    }
}

/* Poisoned, of exactly this size, so that the address sanitizer sees every byte too many. */
static inline void *case_memory(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memset(memory, 0xa5, bytes);
}

static inline void hash_reference(const di_cpu_kernels *k, const void *expected, size_t bytes) {
    if (k == &di_cpu_scalar) case_hash = XXH64(expected, bytes, case_hash);
}

static inline void check_bytes(const di_cpu_kernels *k, const char *entry, size_t n, value_kind kind,
                               const void *expected, const void *got, size_t bytes) {
    hash_reference(k, expected, bytes);
    if (memcmp(expected, got, bytes) == 0) return;
    size_t at = 0;
    while (((const uint8_t *)expected)[at] == ((const uint8_t *)got)[at]) at++;
    fail_msg("%s of %s differs from scalar at byte %zu of %zu (n %zu, values of kind %d)", entry, k->name, at, bytes, n,
             (int)kind);
}

#endif
