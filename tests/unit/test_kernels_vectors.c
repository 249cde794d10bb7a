/* needs: backend_cpu tensor base */
/* Byte equality of the vector tables with the scalar one: sums, conversions, quantisers, elementwise entries. */
#include "support/kernel_cases.h"

#include <float.h>
#include <math.h>

#include "backend/cpu/cpu_internal.h"

enum { WIDTH = 5120 };

static const size_t sizes[] = {1,  2,  3,  7,  8,   9,   15,  16,  17,  31,  32,  33,  47,   48,   63,
                               64, 65, 96, 97, 100, 127, 128, 129, 256, 257, 500, 512, 1280, WIDTH};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* Buffers of exactly the size in use, so that the address sanitizer sees every byte too many. */
static float *floats(uint64_t *seed, size_t n, value_kind kind) {
    float *x = case_memory(n * sizeof *x);
    fill_floats(seed, x, n, kind);
    return x;
}

static void check_sums(const di_cpu_kernels *k, size_t n, value_kind kind, uint64_t *seed) {
    float *a = floats(seed, n, kind), *b = floats(seed, n, kind);
    uint16_t *expected = case_memory(n * 2), *got = case_memory(n * 2);
    float eps = kind == VALUES_ZERO ? 1e-20f : 1e-6f;
    float want[3] = {di_cpu_scalar.dot(a, b, n), di_cpu_scalar.sum(a, n), di_cpu_scalar.inverse_rms(a, n, eps)};
    float have[3] = {k->dot(a, b, n), k->sum(a, n), k->inverse_rms(a, n, eps)};
    check_bytes(k, "dot, sum, inverse_rms", n, kind, want, have, sizeof want);
    di_cpu_scalar.rms_norm(a, b, n, eps, expected);
    k->rms_norm(a, b, n, eps, got);
    check_bytes(k, "rms_norm", n, kind, expected, got, n * 2);
    free(a), free(b), free(expected), free(got);
}

static void check_engram(const di_cpu_kernels *k, size_t n, value_kind kind, uint64_t *seed) {
    float *h = floats(seed, n, kind), *qk = floats(seed, n, VALUES_NORMAL), *key = floats(seed, n, kind);
    float *value = floats(seed, n, kind);
    uint16_t *expected = case_memory(n * 2), *got = case_memory(n * 2);
    for (int image = 0; image < 2; image++) {
        float want = di_cpu_scalar.engram(h, qk, key, value, n, 1e-20f, image, expected);
        float have = k->engram(h, qk, key, value, n, 1e-20f, image, got);
        if (isnan(want) && isnan(have)) want = have = 0.0f; /* from overflow; the sign of a NaN is the compiler's */
        check_bytes(k, "engram gate", n, kind, &want, &have, sizeof want);
        check_bytes(k, "engram", n, kind, expected, got, n * 2);
    }
    free(h), free(qk), free(key), free(value), free(expected), free(got);
}

static void test_sums(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 1;
        for (size_t s = 0; s < SIZES; s++) {
            for (int kind = 0; kind < VALUE_KINDS; kind++) {
                check_sums(k, sizes[s], (value_kind)kind, &seed);
                check_engram(k, sizes[s], (value_kind)kind, &seed);
            }
        }
    }
}

/* The canonical sum is not any other order: lanes of sixteen, then halves. */
static void test_sum_order(void **state) {
    (void)state;
    float a[32] = {0}, ones[32];
    for (int i = 0; i < 32; i++) ones[i] = 1.0f;
    a[0] = 0x1p24f, a[16] = 1.0f, a[8] = 1.0f, a[1] = 1.0f, a[9] = 1.0f;
    /* lane 0: 2^24 + 1 -> 2^24; + lane 8 -> 2^24; lanes 1 and 9 join first, and 2 is kept */
    FOR_EACH_TABLE(k) {
        assert_true(k->sum(a, 32) == 0x1p24f + 2.0f);
        assert_true(k->dot(a, ones, 32) == 0x1p24f + 2.0f);
        assert_true(k->sum(a, 0) == 0.0f && k->dot(a, ones, 0) == 0.0f);
    }
    /* Products that vanish below zero leave -0, which the padding of a last incomplete sixteen turns into +0. */
    float tiny[32], minus[32];
    for (int i = 0; i < 32; i++) tiny[i] = 0x1p-100f, minus[i] = -0x1p-100f;
    FOR_EACH_TABLE(k) {
        for (size_t n = 1; n <= 32; n++) assert_int_equal(signbit(k->dot(tiny, minus, n)) != 0, n % 16 == 0);
    }
}

static void check_bf16(const di_cpu_kernels *k, size_t n, value_kind kind, uint64_t *seed) {
    float *x = floats(seed, n, kind), *wide = case_memory(n * 4), *wide_expected = case_memory(n * 4);
    uint16_t *expected = case_memory(n * 2), *got = case_memory(n * 2);
    for (size_t i = 0; i < n; i++) {
        uint64_t random = next_random(seed);
        if (random % 4 == 0) x[i] = di_f32_from_bits((uint32_t)(random >> 32)); /* also NaN and infinity */
        if (random % 4 == 1) x[i] = di_f32_from_bits((uint32_t)(random >> 48) << 16 | 0x8000u); /* midpoints */
    }
    di_cpu_scalar.f32_to_bf16(x, n, expected);
    k->f32_to_bf16(x, n, got);
    check_bytes(k, "f32_to_bf16", n, kind, expected, got, n * 2);
    di_cpu_scalar.bf16_to_f32(expected, n, wide_expected);
    k->bf16_to_f32(expected, n, wide);
    check_bytes(k, "bf16_to_f32", n, kind, wide_expected, wide, n * 4);
    free(x), free(wide), free(wide_expected), free(expected), free(got);
}

static void test_bf16(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 2;
        for (size_t s = 0; s < SIZES; s++) {
            for (int kind = 0; kind < VALUE_KINDS; kind++) check_bf16(k, sizes[s], (value_kind)kind, &seed);
        }
        static uint16_t all[65536];
        static float expected[65536], got[65536];
        for (size_t i = 0; i < 65536; i++) all[i] = (uint16_t)i;
        di_cpu_scalar.bf16_to_f32(all, 65536, expected);
        k->bf16_to_f32(all, 65536, got);
        check_bytes(k, "bf16_to_f32", 65536, VALUES_NORMAL, expected, got, sizeof got);
    }
}

/* ---------------------------------------------------------------- quantisers */

/* Blocks are compared as they are; the reference's hash is of what they stand for, which no layout changes. */
static void check_blocks(const di_cpu_kernels *k, const char *entry, size_t n, value_kind kind,
                         const di_f4_block *expected, const di_f4_block *got) {
    for (size_t b = 0; b < n / 32; b++) {
        int32_t value[32];
        if (memcmp(&expected[b], &got[b], sizeof *got)) fail_msg("%s of %s differs, block %zu", entry, k->name, b);
        for (size_t i = 0; i < 32; i++)
            value[i] = expected[b].rest[i] + 8 * expected[b].limb[0][i] + 2048 * expected[b].limb[1][i];
        check_bytes(k, entry, n, kind, value, value, sizeof value);
        check_bytes(k, entry, n, kind, &expected[b].scale, &got[b].scale, sizeof(float));
    }
}

static void check_quantisers(const di_cpu_kernels *k, const uint16_t *x, size_t n, value_kind kind) {
    size_t blocks = n / 32;
    float *wide = case_memory(n * 4), *expected = case_memory(n * 4), *got = case_memory(n * 4);
    di_f4_block *expected_blocks = case_memory(blocks * sizeof *expected_blocks);
    di_f4_block *got_blocks = case_memory(blocks * sizeof *got_blocks);
    uint8_t *expected_entry = case_memory(n + n / 32), *got_entry = case_memory(n + n / 32);
    di_cpu_scalar.quantise_input(x, n, expected, expected_blocks);
    k->quantise_input(x, n, got, got_blocks);
    check_bytes(k, "quantise_input values", n, kind, expected, got, n * 4);
    check_blocks(k, "quantise_input blocks", n, kind, expected_blocks, got_blocks);
    memset(got, 0xa5, n * 4);
    k->quantise_input(x, n, got, NULL);
    check_bytes(k, "quantise_input without blocks", n, kind, expected, got, n * 4);
    memset(got_blocks, 0xa5, blocks * sizeof *got_blocks);
    k->quantise_input(x, n, NULL, got_blocks);
    check_blocks(k, "quantise_input without values", n, kind, expected_blocks, got_blocks);

    di_cpu_scalar.bf16_to_f32(x, n, wide);
    di_cpu_scalar.window_entry(wide, n, expected_entry);
    k->window_entry(wide, n, got_entry);
    check_bytes(k, "window_entry", n, kind, expected_entry, got_entry, n + n / 32);
    di_cpu_scalar.global_entry(wide, n, expected_entry);
    k->global_entry(wide, n, got_entry);
    check_bytes(k, "global_entry", n, kind, expected_entry, got_entry, n / 2 + n / 16);
    di_cpu_scalar.index_entry(wide, n, expected_entry);
    k->index_entry(wide, n, got_entry);
    check_bytes(k, "index_entry", n, kind, expected_entry, got_entry, n / 2 + n / 32);
    free(wide), free(expected), free(got), free(expected_blocks), free(got_blocks);
    free(expected_entry), free(got_entry);
}

static void test_quantisers(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 3;
        for (size_t s = 0; s < SIZES; s++) {
            size_t n = (sizes[s] + 31) / 32 * 32;
            uint16_t *x = case_memory(n * 2);
            for (int kind = 0; kind < VALUE_KINDS; kind++) {
                fill_bf16(&seed, x, n, (value_kind)kind);
                check_quantisers(k, x, n, (value_kind)kind);
            }
            free(x);
        }
    }
}

/* Every finite bf16 value as a block's maximum with all its near neighbours in the grid below it: values whose quotient
 * is an exact midpoint of either grid, or one bf16 step beside it. */
static void test_quantisers_everywhere(void **state) {
    (void)state;
    enum { BLOCKS = 127, N = BLOCKS * 32 };
    uint16_t x[N];
    FOR_EACH_TABLE(k) {
        uint64_t seed = 4;
        for (uint32_t high = 0; high < 255; high++) { /* exponent */
            for (uint32_t b = 0; b < BLOCKS; b++) {
                uint16_t top = (uint16_t)(high << 7 | b);
                x[b * 32] = top;
                for (uint32_t i = 1; i < 32; i++) {
                    /* i steps of 1/32 of the power of two below the maximum, shifted down by 0..7 octaves */
                    uint32_t octave = high > i % 8 ? high - i % 8 : 0;
                    uint32_t code = octave << 7 | (uint32_t)(next_random(&seed) & 0x7c) | (b % 3 == 0 ? b & 3 : 0);
                    if (code > top) code = top;
                    x[b * 32 + i] = (uint16_t)(code | (next_random(&seed) & 1) << 15);
                }
            }
            check_quantisers(k, x, N, VALUES_WIDE);
        }
    }
}

/* ---------------------------------------------------------------- hyper-connections */

static void check_streams(const di_cpu_kernels *k, size_t copies, size_t n, value_kind kind, uint64_t *seed) {
    uint16_t *stream = case_memory(copies * n * 2), *expected = case_memory(copies * n * 2);
    uint16_t *got = case_memory(copies * n * 2), *y = case_memory(n * 2);
    float *coefficients = floats(seed, copies * (copies + 2), VALUES_NORMAL);
    fill_bf16(seed, stream, copies * n, kind);
    fill_bf16(seed, y, n, kind);
    di_cpu_scalar.collapse(stream, coefficients, copies, n, expected);
    k->collapse(stream, coefficients, copies, n, got);
    check_bytes(k, "collapse", n, kind, expected, got, n * 2);
    di_cpu_scalar.mean(stream, copies, n, expected);
    k->mean(stream, copies, n, got);
    check_bytes(k, "mean", n, kind, expected, got, n * 2);
    memcpy(expected, stream, copies * n * 2);
    memcpy(got, stream, copies * n * 2);
    di_cpu_scalar.expand(y, coefficients, coefficients + copies, copies, n, expected);
    k->expand(y, coefficients, coefficients + copies, copies, n, got);
    check_bytes(k, "expand", n, kind, expected, got, copies * n * 2);
    free(stream), free(expected), free(got), free(y), free(coefficients);
}

static void test_streams(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 5;
        for (size_t s = 0; s < SIZES - 1; s++) {
            for (size_t copies = 1; copies <= 8; copies++)
                check_streams(k, copies, sizes[s], (value_kind)((s + copies) % VALUE_KINDS), &seed);
            for (int kind = 0; kind < VALUE_KINDS; kind++) check_streams(k, 4, sizes[s], (value_kind)kind, &seed);
        }
    }
}

static void check_mix(const di_cpu_kernels *k, size_t c, unsigned iterations, float size, uint64_t *seed) {
    size_t n = (2 + c) * c;
    float m[80], base[80], scale[3], expected[80] = {0}, got[80] = {0};
    for (size_t i = 0; i < n; i++) {
        m[i] = size * random_signed(seed);
        base[i] = size * random_signed(seed);
        if (next_random(seed) % 8 == 0) m[i] = base[i] = i % 2 ? 0.0f : -0.0f;
        if (i && next_random(seed) % 8 == 0) m[i] = m[i - 1], base[i] = base[i - 1];
    }
    for (int i = 0; i < 3; i++) scale[i] = random_signed(seed);
    di_cpu_scalar.hyper_mix(m, base, scale, c, iterations, 1e-6f, expected, expected + c, expected + 2 * c);
    k->hyper_mix(m, base, scale, c, iterations, 1e-6f, got, got + c, got + 2 * c);
    check_bytes(k, "hyper_mix", c, VALUES_NORMAL, expected, got, n * sizeof *got);
}

static void test_mix(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 6;
        for (size_t copies = 1; copies <= 8; copies++) {
            for (unsigned i = 0; i < 60; i++)
                check_mix(k, copies, 1 + i % 21, i < 20 ? 1.0f : i < 40 ? 10.0f : 120.0f, &seed);
        }
        for (unsigned i = 0; i < 2000; i++) check_mix(k, 4, 20, i % 2 ? 3.0f : 60.0f, &seed);
    }
}

/* ---------------------------------------------------------------- elementwise */

static void check_elementwise(const di_cpu_kernels *k, size_t n, value_kind kind, uint64_t *seed) {
    float *a = floats(seed, n, kind), *b = floats(seed, n, kind), *c = floats(seed, n, kind),
          *d = floats(seed, n, kind);
    float *expected = case_memory(n * 4), *got = case_memory(n * 4);
    uint16_t *expected16 = case_memory(n * 2), *got16 = case_memory(n * 2);
    di_cpu_scalar.sigmoid(a, n, expected);
    k->sigmoid(a, n, got);
    check_bytes(k, "sigmoid", n, kind, expected, got, n * 4);
    for (int weighted = 0; weighted < 2; weighted++) {
        float limit = weighted ? 10.0f : 2.0f;
        di_cpu_scalar.swiglu(a, b, n, limit, weighted, 0.37f, expected16);
        k->swiglu(a, b, n, limit, weighted, 0.37f, got16);
        check_bytes(k, "swiglu", n, kind, expected16, got16, n * 2);
    }
    memcpy(expected, a, n * 4);
    memcpy(got, a, n * 4);
    di_cpu_scalar.router_score(expected, n);
    k->router_score(got, n);
    check_bytes(k, "router_score", n, kind, expected, got, n * 4);
    di_cpu_scalar.pool2(a, b, c, d, n, expected);
    k->pool2(a, b, c, d, n, got);
    check_bytes(k, "pool2", n, kind, expected, got, n * 4);
    di_cpu_scalar.pool2(a, b, c, b, n, expected); /* equal gates */
    k->pool2(a, b, c, b, n, got);
    check_bytes(k, "pool2, equal gates", n, kind, expected, got, n * 4);
    free(a), free(b), free(c), free(d), free(expected), free(got), free(expected16), free(got16);
}

static void test_elementwise(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 7;
        for (size_t s = 0; s < SIZES; s++) {
            for (int kind = 0; kind < VALUE_KINDS; kind++) check_elementwise(k, sizes[s], (value_kind)kind, &seed);
        }
    }
}

/* The elementary functions on a comb through all finite floats, and on all bf16 values. */
static void test_functions_everywhere(void **state) {
    (void)state;
    enum { N = 4096 };
    static float x[N], expected[N], got[N];
    FOR_EACH_TABLE(k) {
        for (uint64_t start = 0; start < 0x100000000ull; start += (uint64_t)N << 10) {
            for (uint64_t i = 0; i < N; i++) {
                uint32_t bits = (uint32_t)(start + (i << 10)) + (uint32_t)(i % 3);
                x[i] = (bits & 0x7f800000u) == 0x7f800000u ? 0.0f : di_f32_from_bits(bits);
            }
            di_cpu_scalar.sigmoid(x, N, expected);
            k->sigmoid(x, N, got);
            check_bytes(k, "sigmoid", N, VALUES_WIDE, expected, got, sizeof got);
            memcpy(expected, x, sizeof x);
            memcpy(got, x, sizeof x);
            di_cpu_scalar.router_score(expected, N);
            k->router_score(got, N);
            check_bytes(k, "router_score", N, VALUES_WIDE, expected, got, sizeof got);
        }
    }
}

static void check_rotary(const di_cpu_kernels *k, size_t n, value_kind kind, uint64_t *seed) {
    float *frequency = floats(seed, n, VALUES_NORMAL), *x = floats(seed, 2 * n, kind);
    float *angles = case_memory(2 * n * 4), *other = case_memory(2 * n * 4);
    float *expected = case_memory(2 * n * 4), *got = case_memory(2 * n * 4);
    int64_t position = (int64_t)(next_random(seed) % 1048576);
    di_cpu_scalar.cos_sin(position, frequency, n, angles, angles + n);
    k->cos_sin(position, frequency, n, other, other + n);
    check_bytes(k, "cos_sin", n, kind, angles, other, 2 * n * 4);
    for (int inverse = 0; inverse < 2; inverse++) {
        memcpy(expected, x, 2 * n * 4);
        memcpy(got, x, 2 * n * 4);
        di_cpu_scalar.rotate(expected, angles, angles + n, n, inverse);
        k->rotate(got, angles, angles + n, n, inverse);
        check_bytes(k, "rotate", n, kind, expected, got, 2 * n * 4);
    }
    free(frequency), free(x), free(angles), free(other), free(expected), free(got);
}

static void test_rotary(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 8;
        for (size_t n = 1; n <= 65; n++) {
            for (int kind = 0; kind < VALUE_KINDS; kind++) check_rotary(k, n, (value_kind)kind, &seed);
        }
    }
}

/* Scores with ties, both zeros, both infinities and a NaN now and then. */
static void fill_scores(uint64_t *seed, float *x, size_t n, unsigned grid) {
    static const float special[] = {-0.0f, 0.0f, INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-149f, FLT_MAX};
    for (size_t i = 0; i < n; i++) {
        *seed = *seed * 6364136223846793005u + 1442695040888963407u;
        uint32_t r = (uint32_t)(*seed >> 33);
        x[i] = r % 16 < sizeof special / sizeof *special && grid % 2
                   ? special[r % 16]
                   : (float)(int32_t)(r >> 4 & grid) - (float)(grid / 2);
    }
}

/* Chosen is who has fewer than k before it in the order of the tie rule. */
static void check_top_ids(const di_cpu_kernels *k, const float *x, size_t n, size_t wanted) {
    int32_t *ids = case_memory(n * sizeof *ids), *got = case_memory((wanted ? wanted : 1) * sizeof *got);
    size_t at = 0;
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(3 * i + 1);
    size_t count = di_cpu_top_ids(k, x, ids, n, wanted, got);
    for (size_t i = 0; i < n; i++) {
        size_t before = 0;
        for (size_t j = 0; j < n; j++) before += x[j] > x[i] || (x[j] == x[i] && j < i);
        if (!(x[i] > -INFINITY) || before >= wanted) continue;
        if (at >= count || got[at] != ids[i])
            fail_msg("%s: top %zu of %zu: place %zu is %d, not %d", k->name, wanted, n, at, got[at], ids[i]);
        at++;
    }
    assert_int_equal(at, count);
    for (; at < wanted; at++) assert_int_equal(got[at], -1);
    free(ids), free(got);
}

static void test_selection(void **state) {
    (void)state;
    static const size_t wanted[] = {0, 1, 2, 6, 16, 64, 500};
    static const unsigned grids[] = {1, 7, 64, 0xfffff, 0xffffff0};
    FOR_EACH_TABLE(k) {
        uint64_t seed = 9;
        for (size_t s = 0; s < SIZES && sizes[s] <= 512; s++) {
            float *x = case_memory(sizes[s] * sizeof *x);
            for (size_t g = 0; g < sizeof grids / sizeof *grids; g++) {
                fill_scores(&seed, x, sizes[s], grids[g]);
                for (size_t w = 0; w < sizeof wanted / sizeof *wanted; w++) {
                    check_top_ids(&di_cpu_scalar, x, sizes[s], wanted[w]);
                    check_top_ids(k, x, sizes[s], wanted[w]);
                }
                for (size_t i = 0; i < sizes[s]; i++)
                    assert_int_equal(k->count_from(x, sizes[s], x[i]), di_cpu_scalar.count_from(x, sizes[s], x[i]));
            }
            free(x);
        }
    }
}

/* The reference's own bits: the same on every machine, compiler and optimisation level. Changes with the cases. */
static void test_reference_hash(void **state) {
    (void)state;
    if (case_hash != 0xd9e18b2adad6cf96ull)
        fail_msg("hash of the scalar results is %016llx", (unsigned long long)case_hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sum_order),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_quantisers),
        cmocka_unit_test(test_quantisers_everywhere),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_mix),
        cmocka_unit_test(test_elementwise),
        cmocka_unit_test(test_functions_everywhere),
        cmocka_unit_test(test_rotary),
        cmocka_unit_test(test_selection),
        cmocka_unit_test(test_reference_hash),
    };
    name_skipped_tables();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
