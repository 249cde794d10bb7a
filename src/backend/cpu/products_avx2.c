/* products_avx2.c - the four products with AVX2, FMA and F16C. Contracts: kernels.h, docs/numerics.md. */
#include "backend/cpu/lanes.h"

/* Output rows whose accumulators (two registers each) fit beside M input rows in 16 registers. */
#define products_rows(M) ((M) <= 1 ? 4 : (M) <= 2 ? 2 : 1)

DI_LANES lanes lanes_from_fp16(__m256i codes) {
    return (lanes){_mm256_cvtph_ps(_mm256_castsi256_si128(codes)), _mm256_cvtph_ps(_mm256_extracti128_si256(codes, 1))};
}

#include "backend/cpu/products_body.h"

/* ---------------------------------------------------------------- E2M1, block-exact */

enum { F4_ROWS = 16, TILE_BYTES = 256, F4_MAX_ROWS = 4 };

DI_LANES __m256i broadcast4(const int8_t *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm256_set1_epi32(word);
}

/* E8M0 of 8 rows; 255 does not occur. Byte 0 is 2^-127, the subnormal with bits 0x00400000. */
DI_LANES __m256 decode_scales(const uint8_t *scales) {
    __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)scales)), 23);
    return _mm256_castsi256_ps(_mm256_max_epi32(bits, _mm256_set1_epi32(0x00400000)));
}

/* One 32-block: 8 output rows (half a tile) times M input rows. Weights enter as 2 * e2m1 + 12, unsigned; the block's
 * bias takes the 12 back. A 16-bit lane sums 8 pairs of at most 24 * 64 * 2, which is 24576: exact. */
DI_LANES void f4_block(const uint8_t *tile, const uint8_t *scales, const di_f4_block *x, size_t x_stride, __m256 *acc,
                       const int M) {
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                                           16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum[F4_MAX_ROWS][3];
    UNROLL for (int j = 0; j < 4; j++) {
        __m256i packed = _mm256_loadu_si256((const __m256i *)(tile + 64 * j));
        __m256i low = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, nibble));
        __m256i high = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble));
        UNROLL for (int m = 0; m < M; m++) {
            const di_f4_block *block = &x[(size_t)m * x_stride];
            UNROLL for (int l = 0; l < 3; l++) {
                __m256i a = _mm256_maddubs_epi16(low, broadcast4(block->limb[l] + 4 * j));
                __m256i c = _mm256_maddubs_epi16(high, broadcast4(block->limb[l] + 16 + 4 * j));
                sum[m][l] = j == 0 ? _mm256_add_epi16(a, c) : _mm256_add_epi16(_mm256_add_epi16(sum[m][l], a), c);
            }
        }
    }
    __m256 weight_scale = decode_scales(scales);
    UNROLL for (int m = 0; m < M; m++) {
        const di_f4_block *block = &x[(size_t)m * x_stride];
        __m256i total = _mm256_add_epi32(_mm256_madd_epi16(sum[m][0], ones), _mm256_set1_epi32(block->bias));
        total = _mm256_add_epi32(total, _mm256_slli_epi32(_mm256_madd_epi16(sum[m][1], ones), 7));
        total = _mm256_add_epi32(total, _mm256_slli_epi32(_mm256_madd_epi16(sum[m][2], ones), 14));
        __m256 scale = _mm256_mul_ps(_mm256_set1_ps(block->scale), weight_scale);
        acc[m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, acc[m]);
    }
}

/* A strip of 16 output rows times M input rows (blocks x_stride apart): acc[half][m] */
DI_LANES void f4_strip(const uint8_t *tiles, const uint8_t *scales, size_t blocks, const di_f4_block *x,
                       size_t x_stride, __m256 acc[2][F4_MAX_ROWS], const int M) {
    for (size_t b = 0; b < blocks; b++, tiles += TILE_BYTES, scales += F4_ROWS) {
        f4_block(tiles, scales, x + b, x_stride, acc[0], M);
        f4_block(tiles + 32, scales + 8, x + b, x_stride, acc[1], M);
    }
}

void di_cpu_product_f4_avx2(const di_cpu_f4 *w, const di_f4_block *x, const float *values, size_t rows, size_t n0,
                            size_t n1, float *y, size_t y_stride) {
    (void)values;
    size_t blocks = w->in / BLOCK;
    for (size_t n = n0; n < n1; n += F4_ROWS) {
        const uint8_t *tiles = w->tiles + n / F4_ROWS * blocks * TILE_BYTES;
        const uint8_t *scales = w->scales + n / F4_ROWS * blocks * F4_ROWS;
        size_t outputs = n1 - n < F4_ROWS ? n1 - n : F4_ROWS;
        for (size_t m0 = 0; m0 < rows; m0 += F4_MAX_ROWS) {
            size_t count = rows - m0 < F4_MAX_ROWS ? rows - m0 : F4_MAX_ROWS;
            const di_f4_block *input = x + m0 * blocks;
            __m256 acc[2][F4_MAX_ROWS];
            for (int m = 0; m < F4_MAX_ROWS; m++) acc[0][m] = acc[1][m] = _mm256_setzero_ps();
            switch (count) {
            case 1:
                f4_strip(tiles, scales, blocks, input, blocks, acc, 1);
                break;
            case 2:
                f4_strip(tiles, scales, blocks, input, blocks, acc, 2);
                break;
            case 3:
                f4_strip(tiles, scales, blocks, input, blocks, acc, 3);
                break;
            default:
                f4_strip(tiles, scales, blocks, input, blocks, acc, 4);
                break;
            }
            for (size_t m = 0; m < count; m++) {
                float row[F4_ROWS];
                _mm256_storeu_ps(row, acc[0][m]);
                _mm256_storeu_ps(row + 8, acc[1][m]);
                memcpy(y + (m0 + m) * y_stride + n, row, outputs * sizeof *row);
            }
        }
    }
}
