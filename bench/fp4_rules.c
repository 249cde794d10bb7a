/* fp4_rules.c - the measurement behind rule 3 of docs/numerics.md: what a product of E2M1 weights with E4M3 inputs
 * costs under three definitions, each in the layout that suits it, one input row, weights from main memory.
 *
 *   limbs        block sums exact in integers; the table's own kernel (the rule in force)
 *   two passes   the same exact block sums from two fp32 passes: inputs split in two parts of at most 15 bits, whose
 *                sums of 32 products fit 24 bits. Same bits as limbs
 *   rule 2       dot16 on dequantised values, scale applied to the weights
 *
 * The last two exist only here. bench_fp4_rules [--rounds N] [--time MS] [--threads N]...
 */
#include "measure.h"
#include "tensor/codec.h"

#include <immintrin.h>

enum { POOL_BYTES = 384 << 20, MAX_IN = 5120, MAX_OUT = 5120, F4_ROWS = 16, BLOCK = 32, TILE_BYTES = 256 };

typedef struct input {
    di_f4_block blocks[MAX_IN / BLOCK];
    float values[MAX_IN];
    float low[MAX_IN], high[MAX_IN]; /* v = low + 2^9 high in units of 2^-9 */
} input;

typedef struct job {
    const uint8_t *tiles, *scales; /* n0 is folded in by the kernels */
    const input *x;
    size_t in, out, tile_rows;
    float *y;
    void (*kernel)(const struct job *job, size_t n0, size_t n1);
} job;

#define AVX2   __attribute__((target("avx2,fma,f16c")))
#define AVX512 __attribute__((target("avx2,fma,avx512f,avx512bw,avx512vl,avx512dq")))

/* ---------------------------------------------------------------- limbs */

static void limbs(const job *j, const di_cpu_kernels *k, size_t n0, size_t n1) {
    di_cpu_f4 w = {j->tiles, j->scales, j->out, j->in};
    k->product_f4(&w, j->x->blocks, j->x->values, 1, n0, n1, j->y, j->out);
}
static void limbs_avx2(const job *j, size_t n0, size_t n1) {
    limbs(j, &di_cpu_avx2, n0, n1);
}
static void limbs_avx512(const job *j, size_t n0, size_t n1) {
    limbs(j, &di_cpu_avx512, n0, n1);
}

/* ---------------------------------------------------------------- two exact fp32 passes; lanes are output rows */

static inline void prefetch_ahead(const uint8_t *tile) {
    for (int line = 0; line < TILE_BYTES; line += 64) _mm_prefetch((const char *)tile + 4096 + line, _MM_HINT_T0);
}

AVX512 static void two_passes_avx512(const job *j, size_t n0, size_t n1) {
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 6, 8, 12, -0.0f, -1, -2, -3, -4, -6, -8, -12);
    size_t blocks = j->in / BLOCK;
    for (size_t n = n0; n < n1; n += F4_ROWS) {
        const uint8_t *tile = j->tiles + n / F4_ROWS * blocks * TILE_BYTES;
        const uint8_t *scales = j->scales + n / F4_ROWS * blocks * F4_ROWS;
        __m512 acc = _mm512_setzero_ps();
        for (size_t b = 0; b < blocks; b++, tile += TILE_BYTES, scales += F4_ROWS) {
            prefetch_ahead(tile);
            const float *low = j->x->low + b * BLOCK, *high = j->x->high + b * BLOCK;
            __m512 sum_low[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            __m512 sum_high[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            for (int c = 0; c < 4; c++) {
                __m512i packed = _mm512_loadu_si512(tile + 64 * c);
#pragma GCC unroll 8
                for (int t = 0; t < 8;
                     t++) { /* t < 4: low nibbles, k = 4c + t; else high nibbles, k = 16 + 4c + t - 4 */
                    int shift = t < 4 ? 8 * t : 8 * (t - 4) + 4, k = t < 4 ? 4 * c + t : 12 + 4 * c + t;
                    __m512 w = _mm512_permutexvar_ps(_mm512_srl_epi32(packed, _mm_cvtsi32_si128(shift)), table);
                    sum_low[t / 4] = _mm512_fmadd_ps(w, _mm512_set1_ps(low[k]), sum_low[t / 4]);
                    sum_high[t / 4] = _mm512_fmadd_ps(w, _mm512_set1_ps(high[k]), sum_high[t / 4]);
                }
            }
            __m512 total = _mm512_fmadd_ps(_mm512_add_ps(sum_high[0], sum_high[1]), _mm512_set1_ps(512.0f),
                                           _mm512_add_ps(sum_low[0], sum_low[1]));
            __m512i bits =
                _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)scales)), 23);
            __m512 scale = _mm512_mul_ps(_mm512_set1_ps(j->x->blocks[b].scale), _mm512_castsi512_ps(bits));
            acc = _mm512_fmadd_ps(total, scale, acc);
        }
        _mm512_storeu_ps(j->y + n, acc);
    }
}

/* Eight rows of a tile: byte t of every dword, its low or high nibble, as fp32 2 * e2m1. */
AVX2 static inline __m256 weights8(__m256i values, int t) {
    __m256i byte = _mm256_srai_epi32(_mm256_sll_epi32(values, _mm_cvtsi32_si128(24 - 8 * t)), 24);
    return _mm256_cvtepi32_ps(byte);
}

AVX2 static void two_passes_avx2(const job *j, size_t n0, size_t n1) {
    const __m256i table = _mm256_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12, 0, 1, 2, 3, 4, 6, 8,
                                           12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m256i nibble = _mm256_set1_epi8(15);
    size_t blocks = j->in / BLOCK;
    for (size_t n = n0; n < n1; n += 8) {
        size_t strip = n / F4_ROWS * blocks, half = n % F4_ROWS / 8;
        __m256 acc = _mm256_setzero_ps();
        for (size_t b = 0; b < blocks; b++) {
            const uint8_t *tile = j->tiles + (strip + b) * TILE_BYTES + 32 * half;
            const uint8_t *scales = j->scales + (strip + b) * F4_ROWS + 8 * half;
            prefetch_ahead(tile);
            const float *low = j->x->low + b * BLOCK, *high = j->x->high + b * BLOCK;
            __m256 sum_low[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            __m256 sum_high[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
            for (int c = 0; c < 4; c++) {
                __m256i packed = _mm256_loadu_si256((const __m256i *)(const void *)(tile + 64 * c));
                __m256i w[2] = {_mm256_shuffle_epi8(table, _mm256_and_si256(packed, nibble)),
                                _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble))};
#pragma GCC unroll 8
                for (int t = 0; t < 8; t++) {
                    int k = t < 4 ? 4 * c + t : 12 + 4 * c + t;
                    __m256 value = weights8(w[t / 4], t % 4);
                    sum_low[t / 4] = _mm256_fmadd_ps(value, _mm256_set1_ps(low[k]), sum_low[t / 4]);
                    sum_high[t / 4] = _mm256_fmadd_ps(value, _mm256_set1_ps(high[k]), sum_high[t / 4]);
                }
            }
            __m256 total = _mm256_fmadd_ps(_mm256_add_ps(sum_high[0], sum_high[1]), _mm256_set1_ps(512.0f),
                                           _mm256_add_ps(sum_low[0], sum_low[1]));
            __m256i bits =
                _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)scales)), 23);
            __m256 scale = _mm256_mul_ps(_mm256_set1_ps(j->x->blocks[b].scale), _mm256_castsi256_ps(bits));
            acc = _mm256_fmadd_ps(total, scale, acc);
        }
        _mm256_storeu_ps(j->y + n, acc);
    }
}

/* ---------------------------------------------------------------- rule 2; lanes are inputs
 *
 * Row-major: 64 bytes of a row hold 128 inputs, dword l the nibbles of k = l, l + 16, ... l + 112; scales [out][in/32].
 * Four rows at a time, so that the chains of fma do not wait for each other. */

AVX2 static inline float sum8(__m256 eight) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

AVX512 static void rule2_avx512(const job *j, size_t n0, size_t n1) {
    const __m512 table = _mm512_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6);
    size_t row_bytes = j->in / 2, row_scales = j->in / BLOCK;
    for (size_t n = n0; n < n1; n += 4) {
        __m512 acc[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (size_t c = 0; c < j->in / 128; c++) {
            const float *x = j->x->values + 128 * c;
#pragma GCC unroll 4
            for (size_t r = 0; r < 4; r++) {
                const uint8_t *row = j->tiles + (n + r) * row_bytes + 64 * c;
                _mm_prefetch((const char *)row + 4 * row_bytes, _MM_HINT_T1);
                __m512i packed = _mm512_loadu_si512(row);
#pragma GCC unroll 4
                for (int b = 0; b < 4; b++) {
                    uint32_t bits = (uint32_t)j->scales[(n + r) * row_scales + 4 * c + (size_t)b] << 23;
                    __m512 scaled = _mm512_mul_ps(table, _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)bits)));
                    __m512 w0 = _mm512_permutexvar_ps(_mm512_srl_epi32(packed, _mm_cvtsi32_si128(8 * b)), scaled);
                    __m512 w1 = _mm512_permutexvar_ps(_mm512_srl_epi32(packed, _mm_cvtsi32_si128(8 * b + 4)), scaled);
                    acc[r] = _mm512_fmadd_ps(w0, _mm512_loadu_ps(x + 32 * b), acc[r]);
                    acc[r] = _mm512_fmadd_ps(w1, _mm512_loadu_ps(x + 32 * b + 16), acc[r]);
                }
            }
        }
        for (size_t r = 0; r < 4; r++) {
            j->y[n + r] = sum8(_mm256_add_ps(_mm512_castps512_ps256(acc[r]), _mm512_extractf32x8_ps(acc[r], 1)));
        }
    }
}

/* Eight inputs of a block: pick the magnitude from the scaled table, put the sign of bit 3 on top. */
AVX2 static inline __m256 dequantise8(__m256i packed, int shift, __m256 scaled) {
    __m256i codes = _mm256_srl_epi32(packed, _mm_cvtsi32_si128(shift));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(codes, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(scaled, codes), _mm256_castsi256_ps(sign));
}

AVX2 static void rule2_avx2(const job *j, size_t n0, size_t n1) {
    const __m256 table = _mm256_setr_ps(0, 0.5f, 1, 1.5f, 2, 3, 4, 6);
    size_t row_bytes = j->in / 2, row_scales = j->in / BLOCK;
    for (size_t n = n0; n < n1; n += 4) {
        __m256 acc[4][2];
        for (int r = 0; r < 4; r++) acc[r][0] = acc[r][1] = _mm256_setzero_ps();
        for (size_t c = 0; c < j->in / 128; c++) {
            const float *x = j->x->values + 128 * c;
#pragma GCC unroll 4
            for (size_t r = 0; r < 4; r++) {
                const uint8_t *row = j->tiles + (n + r) * row_bytes + 64 * c;
                _mm_prefetch((const char *)row + 4 * row_bytes, _MM_HINT_T1);
#pragma GCC unroll 8
                for (int b = 0; b < 8; b++) { /* 16 inputs; lanes 0..7 in the first 32 bytes, 8..15 in the second */
                    uint32_t bits = (uint32_t)j->scales[(n + r) * row_scales + 4 * c + (size_t)b / 2] << 23;
                    __m256 scaled = _mm256_mul_ps(table, _mm256_castsi256_ps(_mm256_set1_epi32((int32_t)bits)));
                    for (int h = 0; h < 2; h++) {
                        __m256i packed = _mm256_loadu_si256((const __m256i *)(const void *)(row + 32 * h));
                        __m256 w = dequantise8(packed, 4 * b, scaled);
                        acc[r][h] = _mm256_fmadd_ps(w, _mm256_loadu_ps(x + 16 * b + 8 * h), acc[r][h]);
                    }
                }
            }
        }
        for (size_t r = 0; r < 4; r++) {
            j->y[n + r] = sum8(_mm256_add_ps(acc[r][0], acc[r][1]));
        }
    }
}

/* ---------------------------------------------------------------- measurement */

typedef struct variant {
    const char *rule, *isa;
    const di_cpu_kernels *needs;
    void (*kernel)(const job *job, size_t n0, size_t n1);
} variant;

static const variant variants[] = {
    {"limbs", "avx2", &di_cpu_avx2, limbs_avx2},
    {"two passes", "avx2", &di_cpu_avx2, two_passes_avx2},
    {"rule 2", "avx2", &di_cpu_avx2, rule2_avx2},
    {"limbs", "avx512", &di_cpu_avx512, limbs_avx512},
    {"two passes", "avx512", &di_cpu_avx512, two_passes_avx512},
    {"rule 2", "avx512", &di_cpu_avx512, rule2_avx512},
};
enum { VARIANTS = sizeof variants / sizeof *variants };
static const size_t shapes[][2] = {{5120, 2304}, {2304, 5120}};

static void job_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const job *j = arg;
    size_t n0 = tile * j->tile_rows, n1 = n0 + j->tile_rows < j->out ? n0 + j->tile_rows : j->out;
    j->kernel(j, n0, n1);
}

static void prepare_input(input *x, size_t in) {
    static uint16_t bf16[MAX_IN];
    for (size_t i = 0; i < in; i++)
        bf16[i] = di_bf16_encode((float)((int)(i * 2654435761u >> 16 & 0xffff) - 32768) * 0x1p-14f);
    di_cpu_scalar.quantise_input(bf16, in, x->values, x->blocks);
    for (size_t i = 0; i < in; i++) {
        const di_f4_block *b = &x->blocks[i / BLOCK];
        int v = b->rest[i % BLOCK] + 8 * b->limb[0][i % BLOCK] + 2048 * b->limb[1][i % BLOCK];
        int low = ((v + 256) & 511) - 256;
        x->low[i] = (float)low;
        x->high[i] = (float)((v - low) / 512);
    }
}

/* The exact definitions must agree in every bit. */
static bool same_bits(const uint8_t *weights, const uint8_t *scales, const input *x, size_t in, size_t out, float *y) {
    float *want = malloc(out * sizeof *want);
    if (!want) return false;
    job j = {.tiles = weights, .scales = scales, .x = x, .in = in, .out = out, .y = want};
    limbs(&j, &di_cpu_scalar, 0, out);
    j.y = y;
    bool same = true;
    for (size_t v = 0; v < VARIANTS; v++) {
        if (!di_cpu_supports(variants[v].needs) || !strcmp(variants[v].rule, "rule 2")) continue;
        variants[v].kernel(&j, 0, out);
        if (memcmp(want, y, out * sizeof *want) != 0) {
            fprintf(stderr, "%s %s differs from the scalar kernel\n", variants[v].isa, variants[v].rule);
            same = false;
        }
    }
    free(want);
    return same;
}

static double measure(di_pool *pool, const variant *v, job *j, const uint8_t *weights, size_t *next, int time_ms) {
    size_t bytes = di_cpu_f4_tile_bytes(j->out, j->in), products = 0;
    j->kernel = v->kernel;
    j->tile_rows = (1u << 16) / j->in / 32 * 32;
    if (j->tile_rows < 32) j->tile_rows = 32;
    int64_t start = di_now_ns(), now = start;
    while (now - start < (int64_t)time_ms * 1000000) {
        if (*next + bytes > POOL_BYTES) *next = 0;
        j->tiles = weights + *next;
        *next += (bytes + 4095) / 4096 * 4096;
        di_pool_run(pool, (j->out + j->tile_rows - 1) / j->tile_rows, job_tile, j);
        products++;
        now = di_now_ns();
    }
    return (double)(products * (bytes + di_cpu_f4_scale_bytes(j->out, j->in))) / (double)(now - start);
}

static void run_threads(di_pool *pool, const uint8_t *weights, const uint8_t *scales, input *x, float *y, int rounds,
                        int time_ms) {
    size_t next = 0;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        job j = {.scales = scales, .x = x, .in = shapes[s][0], .out = shapes[s][1], .y = y};
        prepare_input(x, j.in);
        double rate[VARIANTS][MAX_ROUNDS], read[MAX_ROUNDS];
        for (int round = 0; round < rounds; round++) {
            read[round] = read_bandwidth(pool, weights, POOL_BYTES / 2);
            for (size_t v = 0; v < VARIANTS; v++) {
                if (di_cpu_supports(variants[v].needs))
                    rate[v][round] = measure(pool, &variants[v], &j, weights, &next, time_ms);
            }
        }
        for (size_t v = 0; v < VARIANTS; v++) {
            if (!di_cpu_supports(variants[v].needs)) continue;
            double gb = median(rate[v], rounds), bandwidth = median(read, rounds);
            printf("{\"bench\": \"fp4_rules\", \"rule\": \"%s\", \"isa\": \"%s\", \"in\": %zu, \"out\": %zu, "
                   "\"threads\": %d, "
                   "\"gb_per_s\": %.2f, \"read_gb_per_s\": %.2f, \"fraction\": %.3f}\n",
                   variants[v].rule, variants[v].isa, j.in, j.out, di_pool_threads(pool), gb, bandwidth,
                   gb / bandwidth);
            fprintf(stderr, "%d threads %5zu -> %5zu  %-8s %-12s %7.2f GB/s %4.0f%% of %.1f\n", di_pool_threads(pool),
                    j.in, j.out, variants[v].isa, variants[v].rule, gb, 100 * gb / bandwidth, bandwidth);
        }
    }
}

static int usage(void) {
    fprintf(stderr, "usage: bench_fp4_rules [--rounds 1..%d] [--time MS] [--threads N]...\n", MAX_ROUNDS);
    return 2;
}

int main(int argc, char **argv) {
    int rounds = 5, time_ms = 100, threads[4], count = 0;
    for (int i = 1; i < argc; i += 2) {
        int value = i + 1 < argc ? atoi(argv[i + 1]) : 0;
        if (value < 1) return usage();
        if (!strcmp(argv[i], "--rounds") && value <= MAX_ROUNDS)
            rounds = value;
        else if (!strcmp(argv[i], "--time"))
            time_ms = value;
        else if (!strcmp(argv[i], "--threads") && count < 4 && value <= 64)
            threads[count++] = value;
        else
            return usage();
    }
    if (!count) {
        threads[count++] = 1;
        if (di_usable_cores() > 1) threads[count++] = 2;
    }
    print_environment("fp4_rules");
    uint8_t *weights = random_bytes(POOL_BYTES), *scales = malloc((size_t)1 << 20);
    input *x = di_aligned_alloc(1, sizeof *x);
    float *y = di_aligned_alloc(MAX_OUT, sizeof *y);
    if (!weights || !scales || !x || !y) {
        fprintf(stderr, "bench_fp4_rules: out of memory\n");
        return 1;
    }
    for (size_t i = 0; i < (size_t)1 << 20; i++) scales[i] = (uint8_t)(118 + i % 5);
    prepare_input(x, shapes[0][0]);
    if (!same_bits(weights, scales, x, shapes[0][0], shapes[0][1], y)) return 1;
    for (int i = 0; i < count; i++) {
        di_pool *pool;
        di_error error;
        if (di_pool_new(threads[i], &pool, &error)) {
            fprintf(stderr, "bench_fp4_rules: %s\n", error.message);
            return 1;
        }
        run_threads(pool, weights, scales, x, y, rounds, time_ms);
        di_pool_free(pool);
    }
    return 0;
}
