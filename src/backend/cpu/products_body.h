/* products_body.h - E4M3, BF16 and F32 products over the sixteen lanes of lanes.h, compiled once an instruction set.
 *
 * A body keeps W output rows times M input rows of sixteen-lane accumulators in registers; both are constants of an
 * inlined function, so that every loop over them is unrolled and a decoded weight is used M times. The including file
 * defines MAX_ROWS, the largest M for E4M3, PLAIN_MAX_ROWS, that for the others, and products_rows(M), the W that fits
 * its registers beside M.
 */
#ifndef DI_BACKEND_CPU_PRODUCTS_BODY_H
#define DI_BACKEND_CPU_PRODUCTS_BODY_H

#include "backend/cpu/lanes.h"
#include "backend/cpu/products.h"
#include "tensor/codec.h"

#include <stdbool.h>

enum { F8_TILE = 32, BLOCK = 32 };

typedef enum weight_form { FORM_E4M3, FORM_BF16, FORM_F32 } weight_form;

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

DI_LANES lanes load_weights(const uint8_t *row, size_t k, const weight_form form) {
    return form == FORM_BF16 ? lanes_load_bf16((const uint16_t *)(row + 2 * k))
                             : lanes_load((const float *)(row + 4 * k));
}

/* The last `left` < 16 elements of a row, zeros behind. */
DI_LANES lanes load_last_weights(const uint8_t *row, size_t k, size_t left, const weight_form form) {
    uint8_t padded[64] = {0};
    size_t size = form == FORM_BF16 ? 2 : 4;
    memcpy(padded, row + size * k, left * size);
    return load_weights(padded, 0, form);
}

/* Rows lie one behind the other, and so do the groups of W rows that one body after the other reads. While `bytes` of
 * each row are read at `at`, as many lines are asked for in the first following group that starts at least
 * PREFETCH_AHEAD later: main memory needs that long. */
enum { PREFETCH_AHEAD = 16384 };

DI_LANES void prefetch_next(const uint8_t *weights, size_t row_bytes, size_t at, const size_t bytes, const int W) {
    const size_t group = (size_t)W * row_bytes;
    const uint8_t *next = weights + (PREFETCH_AHEAD + group - 1) / group * group + (size_t)W * at;
    UNROLL for (size_t line = 0; line < (size_t)W * bytes; line += 64)
        _mm_prefetch((const char *)next + line, _MM_HINT_T1);
}

/* Steps 4 -> 2 -> 1 of four folds: (a, a, c, c) and (b, b, d, d) of two lanes each -> a, b, c, d. */
DI_LANES __m128 fold_last(__m256 two) {
    __m256 one = _mm256_add_ps(_mm256_shuffle_ps(two, two, _MM_SHUFFLE(2, 0, 2, 0)),
                               _mm256_shuffle_ps(two, two, _MM_SHUFFLE(3, 1, 3, 1)));
    return _mm_unpacklo_ps(_mm256_castps256_ps128(one), _mm256_extractf128_ps(one, 1));
}

/* One step of two folds: halves of a and of b. */
DI_LANES __m256 fold_pair(__m256 a, __m256 b) {
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}

/* The folds of rule 2 of four accumulators at once. */
DI_LANES __m128 plain_fold4(const lanes x[4]) {
    __m256 ab = fold_pair(lanes_fold8(x[0]), lanes_fold8(x[1])), cd = fold_pair(lanes_fold8(x[2]), lanes_fold8(x[3]));
    return fold_last(_mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(1, 0, 1, 0)),
                                   _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 2, 3, 2))));
}

/* y[m * y_stride + w] = fold of acc[w][m] */
DI_LANES void store_folds(lanes (*acc)[MAX_ROWS], float *y, size_t y_stride, const weight_form form, const int W,
                          const int M) {
    UNROLL for (int m = 0; m < M; m++) {
        UNROLL for (int w = 0; w < W; w += 4) {
            const int count = W - w < 4 ? W - w : 4;
            lanes group[4];
            UNROLL for (int i = 0; i < 4; i++) group[i] = i < count ? acc[w + i][m] : lanes_zero();
            __m128 sums = form == FORM_E4M3 ? e4m3_fold4(group) : plain_fold4(group);
            memcpy(y + (size_t)m * y_stride + (size_t)w, &sums, (size_t)count * sizeof *y);
        }
    }
}

/* Used W times: one load, not W memory operands. */
DI_LANES lanes load_input(const float *x, const int W) {
    lanes input = lanes_load(x);
    return W > 1 ? in_registers(input) : input;
}

/* W rows of E4M3 codes times M rows of x, which is [in/16][M][16] and times scale * 2^8. Results y[m * y_stride + w].
 * The including file's: decoded values are times 2^-8 and, like x, in the lane order of its e4m3_order. */
DI_LANES void e4m3_body(const uint8_t *codes, size_t in, const float *x, float *y, size_t y_stride, const int W,
                        const int M);

/* W rows of BF16 or F32 weights, row_bytes apart, times M rows of x, x_stride apart. Results y[m * y_stride + w]. */
DI_LANES void plain_body(const uint8_t *weights, size_t row_bytes, size_t in, const float *x, size_t x_stride, float *y,
                         size_t y_stride, const weight_form form, const int W, const int M) {
    lanes acc[8][MAX_ROWS], value[8];
    UNROLL for (int w = 0; w < W; w++) {
        UNROLL for (int m = 0; m < M; m++) acc[w][m] = lanes_zero();
    }
    const size_t size = form == FORM_BF16 ? 2 : 4;
    size_t k = 0;
    for (; k + DI_LANE_COUNT <= in; k += DI_LANE_COUNT) {
        prefetch_next(weights, row_bytes, k * size, DI_LANE_COUNT * size, W);
        UNROLL for (int w = 0; w < W; w++) value[w] = load_weights(weights + (size_t)w * row_bytes, k, form);
        UNROLL for (int m = 0; m < M; m++) {
            lanes input = load_input(x + (size_t)m * x_stride + k, W);
            UNROLL for (int w = 0; w < W; w++) acc[w][m] = lanes_fma(value[w], input, acc[w][m]);
        }
    }
    if (k < in) {
        UNROLL for (int w = 0; w < W; w++) value[w] =
            load_last_weights(weights + (size_t)w * row_bytes, k, in - k, form);
        UNROLL for (int m = 0; m < M; m++) {
            lanes input = lanes_load_first(x + (size_t)m * x_stride + k, in - k);
            UNROLL for (int w = 0; w < W; w++) acc[w][m] = lanes_fma(value[w], input, acc[w][m]);
        }
    }
    store_folds(acc, y, y_stride, form, W, M);
}

DI_LANES void product_body(const uint8_t *weights, size_t row_bytes, size_t in, const float *x, size_t x_stride,
                           float *y, size_t y_stride, const weight_form form, const int W, const int M) {
    if (form == FORM_E4M3)
        e4m3_body(weights, in, x, y, y_stride, W, M);
    else
        plain_body(weights, row_bytes, in, x, x_stride, y, y_stride, form, W, M);
}

/* `outputs` rows of weights times M rows of x */
DI_LANES void product_strip(const uint8_t *weights, size_t row_bytes, size_t outputs, size_t in, const float *x,
                            size_t x_stride, float *y, size_t y_stride, const weight_form form, const int M) {
    const int W = products_rows(M);
    size_t n = 0;
    for (; n + (size_t)W <= outputs; n += (size_t)W)
        product_body(weights + n * row_bytes, row_bytes, in, x, x_stride, y + n, y_stride, form, W, M);
    for (; W > 2 && n + 2 <= outputs; n += 2)
        product_body(weights + n * row_bytes, row_bytes, in, x, x_stride, y + n, y_stride, form, 2, M);
    for (; n < outputs; n++)
        product_body(weights + n * row_bytes, row_bytes, in, x, x_stride, y + n, y_stride, form, 1, M);
}

/* How many of the rows left the next body takes: as even a cut as can be, since a body of few rows decodes as much. */
static inline size_t next_rows(size_t left, size_t most) {
    size_t bodies = (left + most - 1) / most;
    return (left + bodies - 1) / bodies;
}

/* rows: 1..MAX_ROWS for E4M3, 1..PLAIN_MAX_ROWS for the others */
DI_LANES void product_rows(const uint8_t *weights, size_t row_bytes, size_t outputs, size_t in, const float *x,
                           size_t x_stride, size_t rows, float *y, size_t y_stride, const weight_form form) {
    switch (rows) {
#define ROWS(M)                                                                                                        \
    case M:                                                                                                            \
        if (form == FORM_E4M3 || M <= PLAIN_MAX_ROWS)                                                                  \
            product_strip(weights, row_bytes, outputs, in, x, x_stride, y, y_stride, form, M);                         \
        break;
        ROWS(1)
        ROWS(2)
#if MAX_ROWS > 2
        ROWS(3)
        ROWS(4)
        ROWS(5)
        ROWS(6)
        ROWS(7)
        ROWS(8)
#endif
#undef ROWS
    default:
        break;
    }
}

/* out [in/16][step][16] at its first row: (x * scale) * 2^8. The factor takes back the 2^-8 of decoded weights. */
static void scale_input(const float *x, const uint8_t *scales, size_t in, float *out, size_t step) {
    for (size_t b = 0; b < in / BLOCK; b++) {
        lanes scale = lanes_set(di_e8m0_decode(scales[b]));
        for (size_t k = b * BLOCK; k < (b + 1) * BLOCK; k += DI_LANE_COUNT) {
            lanes scaled = lanes_mul(lanes_mul(lanes_load(x + k), scale), lanes_set(256.0f));
            lanes_store(out + k * step, e4m3_order(scaled));
        }
    }
}

static bool all_finite(const float *y, size_t y_stride, size_t rows, size_t outputs) {
    uint32_t special = 0;
    for (size_t m = 0; m < rows; m++) {
        for (size_t n = 0; n < outputs; n++)
            special |= (di_bits_from_f32(y[m * y_stride + n]) & 0x7f800000u) == 0x7f800000u;
    }
    return !special;
}

/* An input times scale of 2^120 and more overflows by the factor 2^8 alone. Its sums are then infinite or NaN, and
 * those are formed again without the factor. */
static void product_e4m3(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                         float *y, size_t y_stride, float *scratch) {
    size_t in = w->in;
    for (size_t n = n0; n < n1; n += F8_TILE) {
        size_t outputs = n1 - n < F8_TILE ? n1 - n : F8_TILE;
        const uint8_t *scales = w->scales + n / F8_TILE * (in / BLOCK);
        for (size_t m0 = 0, count; m0 < rows; m0 += count) {
            count = next_rows(rows - m0, MAX_ROWS);
            const float *input = x + m0 * x_stride;
            float *result = y + m0 * y_stride;
            for (size_t m = 0; m < count; m++)
                scale_input(input + m * x_stride, scales, in, scratch + m * DI_LANE_COUNT, count);
            product_rows(w->codes + n * in, in, outputs, in, scratch, 0, count, result + n, y_stride, FORM_E4M3);
            if (!all_finite(result + n, y_stride, count, outputs))
                di_cpu_scalar.product_f8(w, input, x_stride, count, n, n + outputs, result, y_stride, scratch);
        }
    }
}

/* Weights of `outputs` rows stay in the nearest caches while all rows of x pass. */
enum { PLAIN_STRIP = 16 };

void DI_ISA(product_bf16)(const uint8_t *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,
                          size_t n1, float *y, size_t y_stride) {
    for (size_t n = n0; n < n1; n += PLAIN_STRIP) {
        size_t outputs = n1 - n < PLAIN_STRIP ? n1 - n : PLAIN_STRIP;
        for (size_t m = 0, count; m < rows; m += count) {
            count = next_rows(rows - m, PLAIN_MAX_ROWS);
            product_rows(w + n * in * 2, in * 2, outputs, in, x + m * x_stride, x_stride, count, y + m * y_stride + n,
                         y_stride, FORM_BF16);
        }
    }
}

void DI_ISA(product_f32)(const float *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                         float *y, size_t y_stride) {
    for (size_t n = n0; n < n1; n += PLAIN_STRIP) {
        size_t outputs = n1 - n < PLAIN_STRIP ? n1 - n : PLAIN_STRIP;
        for (size_t m = 0, count; m < rows; m += count) {
            count = next_rows(rows - m, PLAIN_MAX_ROWS);
            product_rows((const uint8_t *)(w + n * in), in * 4, outputs, in, x + m * x_stride, x_stride, count,
                         y + m * y_stride + n, y_stride, FORM_F32);
        }
    }
}

#endif
