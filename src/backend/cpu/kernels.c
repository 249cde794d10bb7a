/* kernels.c - which tables this machine can run, and their comparison with the reference at start. */
#include "backend/cpu/kernels.h"

#include "tensor/codec.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* ---------------------------------------------------------------- what the machine has */

#if defined(__x86_64__)
typedef struct cpu_features {
    bool avx2, avx512;
} cpu_features;

/* Register state that the operating system saves: XCR0. */
static uint64_t saved_state(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return ((uint64_t)high << 32) | low;
}

static bool has(uint32_t word, uint32_t bits) {
    return (word & bits) == bits;
}

static cpu_features detect(void) {
    cpu_features features = {false, false};
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return features;
    if (!has(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) return features;
    uint64_t state = saved_state();
    uint32_t c7, d7;
    if ((state & 0x06) != 0x06 || !__get_cpuid_count(7, 0, &a, &b, &c7, &d7)) return features;
    features.avx2 = has(b, bit_AVX2);
    features.avx512 = features.avx2 && (state & 0xe6) == 0xe6 && has(c7, bit_AVX512VNNI) &&
                      has(b, bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ);
    return features;
}
#endif

bool di_cpu_supports(const di_cpu_kernels *kernels) {
#if defined(__x86_64__)
    if (kernels == &di_cpu_avx2) return detect().avx2;
    if (kernels == &di_cpu_avx512) return detect().avx512;
#endif
    return kernels == &di_cpu_scalar;
}

/* ---------------------------------------------------------------- self-test */

enum { N = 160, ROWS = 2, OUT = 36, VECTORS = 100, RESULT = 16384, HEADS = 2, KEYS = 70, DIM = 64 };
enum { WINDOW_ENTRY = DIM + DIM / 32, GLOBAL_ENTRY = DIM / 2 + DIM / 16, INDEX_ENTRY = DIM / 2 + DIM / 32 };

/* One random vector set. Values are bf16 values where an entry asks for them. */
typedef struct vectors {
    size_t n;      /* 1..N */
    float f[4][N]; /* ordinary values with zeros, subnormals and large ones between them */
    float x[ROWS * N];
    uint16_t b[ROWS * N];
    uint8_t codes[OUT * N], scales[OUT * N];
    uint16_t weights[OUT * N];
    _Alignas(64) uint8_t tiles[(OUT + 15) / 16 * 16 * N / 2];
    uint8_t tile_scales[(OUT + 15) / 16 * 16 * N / 32];
    di_f4_block blocks[ROWS * N / 32];
    uint8_t entries[KEYS * WINDOW_ENTRY];
    const uint8_t *keys[KEYS];
    _Alignas(64) float scratch[32768];
    uint8_t result[2][RESULT];
    uint64_t random;
} vectors;

static uint32_t next(vectors *v) {
    v->random = v->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(v->random >> 32);
}

static float next_value(vectors *v) {
    uint32_t r = next(v), kind = next(v) % 32;
    float value = (float)(int32_t)r * 0x1p-31f;
    if (kind == 0) return r & 1 ? -0.0f : 0.0f;
    if (kind == 1) return di_f32_from_bits(r & 0x807fffffu);
    if (kind == 2) return value * 0x1p+20f;
    if (kind < 8) return (float)((int32_t)(r % 33) - 16) * 0.25f;
    return value * 4.0f;
}

static void fill(vectors *v) {
    v->n = 1 + next(v) % N;
    for (size_t i = 0; i < 4 * N; i++) v->f[i / N][i % N] = di_bf16_round(next_value(v));
    for (size_t i = 0; i < ROWS * N; i++) {
        v->x[i] = next_value(v);
        v->b[i] = di_bf16_encode(next_value(v));
    }
    for (size_t i = 0; i < OUT * N; i++) {
        uint8_t code = (uint8_t)next(v);
        v->codes[i] = (code & 0x7f) == 0x7f ? 0x7e : code;
        v->scales[i] = (uint8_t)(110 + next(v) % 30);
        v->weights[i] = di_bf16_encode(next_value(v));
    }
    for (size_t i = 0; i < sizeof v->entries; i++) v->entries[i] = (uint8_t)(next(v) & 0x7b);
    di_cpu_f4_repack(v->codes, v->scales, OUT, N, v->tiles, v->tile_scales);
}

/* Entries of `size` bytes, the last `scale_bytes` of which are exponents near one, and a missing key where allowed. */
static void lay_keys(vectors *v, size_t size, size_t scale_bytes, uint8_t scale, bool holes) {
    for (size_t i = 0; i < KEYS; i++) {
        uint8_t *entry = v->entries + i * size;
        for (size_t s = size - scale_bytes; s < size; s++) entry[s] = (uint8_t)(scale + s % 3);
        v->keys[i] = holes && i % 9 == 0 ? NULL : entry;
    }
}

typedef void (*test_case)(const di_cpu_kernels *k, vectors *v, uint8_t *result);

static void case_product_f8(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    di_cpu_f8 w = {v->codes, v->scales, OUT, N};
    k->product_f8(&w, v->x, N, ROWS, 0, OUT, (float *)result, OUT, v->scratch);
}
static void case_product_f4(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    di_cpu_f4 w = {v->tiles, v->tile_scales, OUT, N};
    di_cpu_scalar.quantise_input(v->b, ROWS * N, v->scratch, v->blocks);
    k->product_f4(&w, v->blocks, v->scratch, ROWS, 0, OUT, (float *)result, OUT);
}
static void case_product_bf16(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->product_bf16((const uint8_t *)v->weights, v->n, v->x, N, ROWS, 0, OUT, (float *)result, OUT);
}
static void case_product_f32(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->product_f32(v->f[0], v->n, v->x, N, ROWS, 0, N / v->n * 4, (float *)result, N * 4);
}
static void case_dot(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    *(float *)result = k->dot(v->f[0], v->f[1], v->n);
}
static void case_sum(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    *(float *)result = k->sum(v->f[0], v->n);
}
static void case_inverse_rms(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    *(float *)result = k->inverse_rms(v->f[0], v->n, 1e-20f);
}
static void case_rms_norm(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->rms_norm(v->f[0], v->f[1], v->n, 1e-20f, (uint16_t *)result);
}
static void case_bf16_to_f32(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->bf16_to_f32(v->b, v->n, (float *)result);
}
static void case_f32_to_bf16(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->f32_to_bf16(v->x, v->n, (uint16_t *)result);
}
static void case_quantise_input(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->quantise_input(v->b, N, (float *)result, (di_f4_block *)(result + N * sizeof(float)));
}
static void case_window_entry(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->window_entry(v->f[0], N, result);
}
static void case_global_entry(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->global_entry(v->f[0], N, result);
}
static void case_index_entry(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->index_entry(v->f[0], N, result);
}
static void case_hyper_mix(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    size_t copies = 1 + v->n % 8;
    float *out = (float *)result;
    for (size_t i = 0; i < N; i++) v->scratch[i] = v->f[0][i] < 64.0f && v->f[0][i] > -64.0f ? v->f[0][i] : 1.0f;
    k->hyper_mix(v->scratch, v->f[1], v->f[2], copies, 20, 1e-6f, out, out + copies, out + 2 * copies);
}
static void case_collapse(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->collapse(v->b, v->f[0], ROWS, v->n, (uint16_t *)result);
}
static void case_expand(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    memcpy(result, v->b, sizeof v->b);
    k->expand(v->weights, v->f[0], v->f[1], ROWS, v->n, (uint16_t *)result);
}
static void case_mean(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->mean(v->b, ROWS, v->n, (uint16_t *)result);
}
static void case_cos_sin(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    for (size_t i = 0; i < N; i++) v->scratch[i] = 1.0f / (1.0f + v->f[0][i] * v->f[0][i]);
    k->cos_sin((int64_t)(v->random >> 44), v->scratch, v->n, (float *)result, (float *)result + N);
}
static void case_rotate(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    memcpy(result, v->f[0], sizeof v->f[0]);
    k->rotate((float *)result, v->f[1], v->f[2], (v->n + 1) / 2, v->n & 1);
}
static void case_sigmoid(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->sigmoid(v->x, v->n, (float *)result);
}
static void case_swiglu(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->swiglu(v->f[0], v->f[1], v->n, 10.0f, v->n & 1, 0.37f, (uint16_t *)result);
}
static void case_router_score(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    memcpy(result, v->x, N * sizeof(float));
    k->router_score((float *)result, v->n);
}
static void case_pool2(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    k->pool2(v->f[0], v->f[1], v->f[2], v->f[3], v->n, (float *)result);
}
static void case_engram(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    *(float *)result = k->engram(v->f[0], v->f[1], v->f[2], v->f[3], v->n, 1e-20f, v->n % 8 == 0,
                                 (uint16_t *)(result + sizeof(float)));
}

/* Window keys with holes, then global keys; together more than one tile. */
static void case_attention(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    const uint8_t *window[KEYS];
    lay_keys(v, WINDOW_ENTRY, DIM / 32, 124, true);
    memcpy(window, v->keys, sizeof window);
    size_t window_slots = v->n % KEYS, global_count = v->n / 7 % (KEYS / 2);
    for (size_t i = 0; i < global_count; i++) v->keys[i] = v->entries + i * GLOBAL_ENTRY;
    di_cpu_attention a = {.q = v->b,
                          .sink = v->f[0],
                          .heads = HEADS,
                          .head_dim = DIM,
                          .scale = 0.125f,
                          .window = window,
                          .window_slots = window_slots,
                          .global = v->keys,
                          .global_count = global_count,
                          .global_slots = global_count,
                          .out = (uint16_t *)result,
                          .scratch = v->scratch};
    k->attention(&a);
}

static void case_index_scores(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    lay_keys(v, INDEX_ENTRY, DIM / 32, 124, false);
    k->index_scores(v->entries + 3 * INDEX_ENTRY, v->f[0], 1 + v->n % 20, DIM, v->keys, 1 + v->n % KEYS,
                    (float *)result, v->scratch);
}

static void case_count_from(const di_cpu_kernels *k, vectors *v, uint8_t *result) {
    *(size_t *)(void *)result = k->count_from(v->f[0], v->n, v->f[0][v->n / 2]);
}

#define CASE(entry)                                                                                                    \
    { #entry, case_##entry }
static const struct {
    const char *name;
    test_case run;
} cases[] = {
    CASE(product_f8),   CASE(product_f4),  CASE(product_bf16),   CASE(product_f32),
    CASE(dot),          CASE(sum),         CASE(inverse_rms),    CASE(rms_norm),
    CASE(bf16_to_f32),  CASE(f32_to_bf16), CASE(quantise_input), CASE(window_entry),
    CASE(global_entry), CASE(index_entry), CASE(hyper_mix),      CASE(collapse),
    CASE(expand),       CASE(mean),        CASE(cos_sin),        CASE(rotate),
    CASE(sigmoid),      CASE(swiglu),      CASE(router_score),   CASE(pool2),
    CASE(engram),       CASE(attention),   CASE(index_scores),   CASE(count_from),
};

uint64_t di_cpu_compare_kernels(const di_cpu_kernels *kernels, uint64_t seed, uint32_t count, const char **what) {
    vectors *v = aligned_alloc(_Alignof(vectors), sizeof *v);
    *what = v ? NULL : "memory";
    if (!v) return 1;
    memset(v, 0, sizeof *v);
    v->random = seed;
    uint64_t differing = 0;
    for (uint32_t vector = 0; vector < count; vector++) {
        fill(v);
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            memset(v->result, 0, sizeof v->result);
            cases[c].run(&di_cpu_scalar, v, v->result[0]);
            cases[c].run(kernels, v, v->result[1]);
            if (memcmp(v->result[0], v->result[1], RESULT) == 0) continue;
            if (!*what) *what = cases[c].name;
            for (size_t i = 0; i < RESULT; i++) differing += v->result[0][i] != v->result[1][i];
        }
    }
    free(v);
    return differing;
}

bool di_cpu_self_test(const di_cpu_kernels *kernels, const char **what) {
    return di_cpu_compare_kernels(kernels, 41, VECTORS, what) == 0;
}
