/* products_avx512.c - the four products with AVX-512 F, BW, VL, DQ and VNNI. Contracts: kernels.h, docs/numerics.md. */
#include "backend/cpu/lanes.h"

/* Output rows whose accumulators fit beside M input rows in 32 registers. Decoded weights are worth more rows than
 * plain ones, which cost a load. */
#define MAX_ROWS         8
#define PLAIN_MAX_ROWS   6
#define products_rows(M) ((M) <= 2 ? 8 : (M) <= 6 ? 4 : 3)

DI_LANES lanes in_registers(lanes x) {
    __asm__("" : "+v"(x));
    return x;
}

/* E4M3 values * 2^-8: exponent and mantissa moved to their place in an fp16, whose bias is larger by eight; subnormals
 * fit as they are. The multiplication is a shift by 7 that other execution units take than the sign extension. */
DI_LANES lanes decode16(__m128i codes) {
    __m256i wide = _mm256_mullo_epi16(_mm256_cvtepi8_epi16(codes), _mm256_set1_epi16(128));
    return _mm512_cvtph_ps(_mm256_and_si256(wide, _mm256_set1_epi16((int16_t)0xbfff)));
}

DI_LANES void e4m3_decode(const uint8_t *codes, lanes value[2]) {
    value[0] = decode16(_mm_loadu_si128((const __m128i *)codes));
    value[1] = decode16(_mm_loadu_si128((const __m128i *)(codes + 16)));
}

DI_LANES lanes e4m3_order(lanes x) {
    return x;
}

DI_LANES __m128 plain_fold4(const lanes x[4]);

DI_LANES __m128 e4m3_fold4(const lanes x[4]) {
    return plain_fold4(x);
}

#include "backend/cpu/products_body.h"

DI_LANES void e4m3_body(const uint8_t *codes, size_t in, const float *x, float *y, size_t y_stride, const int W,
                        const int M) {
    lanes acc[8][MAX_ROWS], value[8][2];
    UNROLL for (int w = 0; w < W; w++) {
        UNROLL for (int m = 0; m < M; m++) acc[w][m] = lanes_zero();
    }
    for (size_t k = 0; k < in; k += BLOCK, x += M * BLOCK) {
        prefetch_next(codes, in, k, BLOCK, W);
        UNROLL for (int w = 0; w < W; w++) e4m3_decode(codes + (size_t)w * in + k, value[w]);
        UNROLL for (int half = 0; half < 2; half++) {
            UNROLL for (int m = 0; m < M; m++) {
                lanes input = load_input(x + (half * M + m) * DI_LANE_COUNT, W);
                UNROLL for (int w = 0; w < W; w++) acc[w][m] = lanes_fma(value[w][half], input, acc[w][m]);
            }
        }
    }
    store_folds(acc, y, y_stride, FORM_E4M3, W, M);
}

/* One row is all decoding, and the conversion to fp32 is no faster in 512 bits than in 256. */
void di_cpu_product_f8_avx512(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                              float *y, size_t y_stride, float *scratch) {
    if (rows == 1)
        di_cpu_product_f8_avx2(w, x, x_stride, rows, n0, n1, y, y_stride, scratch);
    else
        product_e4m3(w, x, x_stride, rows, n0, n1, y, y_stride, scratch);
}

/* ---------------------------------------------------------------- E2M1, block-exact */

/* F4_AHEAD: tiles between the one that is read and the one that is asked for. */
enum { F4_ROWS = 16, TILE_BYTES = 256, F4_MAX_ROWS = 8, F4_AHEAD = 16 };

DI_LANES __m512i broadcast4(const int8_t *bytes) {
    int32_t word;
    memcpy(&word, bytes, sizeof word);
    return _mm512_set1_epi32(word);
}

/* E8M0 of the tile's 16 rows; 255 does not occur. Byte 0 is 2^-127, the subnormal with bits 0x00400000. */
DI_LANES __m512 decode_scales(const uint8_t *scales) {
    __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)scales)), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(bits, _mm512_set1_epi32(0x00400000)));
}

/* sum + the block's rests times 2 * e2m1: a few inputs at most have one. */
DI_LANES __m512i add_rests(__m512i sum, const uint8_t *tile, const di_f4_block *block) {
    const __m512i doubled = _mm512_setr_epi32(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    for (uint32_t mask = block->rest_mask; mask; mask &= mask - 1) {
        const unsigned k = (unsigned)__builtin_ctz(mask);
        __m512i packed = _mm512_loadu_si512(tile + k % 16 / 4 * 64);
        packed = _mm512_srl_epi32(packed, _mm_cvtsi32_si128((int)(k % 4 * 8 + k / 16 * 4)));
        __m512i weight = _mm512_permutexvar_epi32(packed, doubled); /* looks at four bits */
        sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(weight, _mm512_set1_epi32(block->rest[k])));
    }
    return sum;
}

/* One strip of 16 output rows times M input rows (blocks x_stride apart), M <= F4_MAX_ROWS. Weights enter as
 * 2 * e2m1 + 12, unsigned; the block's bias takes the 12 back. Every integer sum is exact. */
DI_LANES void f4_strip(const uint8_t *tiles, const uint8_t *scales, size_t blocks, const di_f4_block *x, float *y,
                       size_t y_stride, __mmask16 present, const int M) {
    const __m512i table =
        _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const __m512i nibble = _mm512_set1_epi8(15);
    const size_t x_stride = blocks;
    __m512 acc[F4_MAX_ROWS];
    UNROLL for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    for (size_t b = 0; b < blocks; b++, tiles += TILE_BYTES, scales += F4_ROWS) {
        UNROLL for (int line = 0; line < TILE_BYTES; line += 64)
            _mm_prefetch((const char *)tiles + F4_AHEAD * TILE_BYTES + line, _MM_HINT_T0);
        _mm_prefetch((const char *)scales + F4_AHEAD * F4_ROWS, _MM_HINT_T0);
        __m512i sum[F4_MAX_ROWS][2];
        UNROLL for (int m = 0; m < M; m++) {
            sum[m][0] = _mm512_set1_epi32(x[(size_t)m * x_stride + b].bias);
            sum[m][1] = _mm512_setzero_si512();
        }
        UNROLL for (int j = 0; j < 4; j++) {
            __m512i packed = _mm512_loadu_si512(tiles + 64 * j);
            __m512i low = _mm512_shuffle_epi8(table, _mm512_and_si512(packed, nibble));
            __m512i high = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(packed, 4), nibble));
            UNROLL for (int m = 0; m < M; m++) {
                const di_f4_block *block = &x[(size_t)m * x_stride + b];
                UNROLL for (int l = 0; l < 2; l++) {
                    sum[m][l] = _mm512_dpbusd_epi32(sum[m][l], low, broadcast4(block->limb[l] + 4 * j));
                    sum[m][l] = _mm512_dpbusd_epi32(sum[m][l], high, broadcast4(block->limb[l] + 16 + 4 * j));
                }
            }
        }
        __m512 weight_scale = decode_scales(scales);
        UNROLL for (int m = 0; m < M; m++) {
            const di_f4_block *block = &x[(size_t)m * x_stride + b];
            __m512i total = _mm512_add_epi32(_mm512_slli_epi32(sum[m][0], 3), _mm512_slli_epi32(sum[m][1], 11));
            if (__builtin_expect(block->rest_mask != 0, 0)) total = add_rests(total, tiles, block);
            __m512 scale = _mm512_mul_ps(_mm512_set1_ps(block->scale), weight_scale);
            acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(total), scale, acc[m]);
        }
    }
    UNROLL for (int m = 0; m < M; m++) _mm512_mask_storeu_ps(y + (size_t)m * y_stride, present, acc[m]);
}

void di_cpu_product_f4_avx512(const di_cpu_f4 *w, const di_f4_block *x, const float *values, size_t rows, size_t n0,
                              size_t n1, float *y, size_t y_stride) {
    (void)values;
    size_t blocks = w->in / BLOCK;
    for (size_t n = n0; n < n1; n += F4_ROWS) {
        const uint8_t *tiles = w->tiles + n / F4_ROWS * blocks * TILE_BYTES;
        const uint8_t *scales = w->scales + n / F4_ROWS * blocks * F4_ROWS;
        __mmask16 present = n1 - n < F4_ROWS ? (__mmask16)((1u << (n1 - n)) - 1) : (__mmask16)0xffff;
        for (size_t m = 0, count; m < rows; m += count) {
            count = next_rows(rows - m, F4_MAX_ROWS);
            const di_f4_block *input = x + m * blocks;
            float *result = y + m * y_stride + n;
            switch (count) {
#define ROWS(M)                                                                                                        \
    case M:                                                                                                            \
        f4_strip(tiles, scales, blocks, input, result, y_stride, present, M);                                          \
        break;
                ROWS(1)
                ROWS(2)
                ROWS(3)
                ROWS(4)
                ROWS(5)
                ROWS(6)
                ROWS(7)
                ROWS(8)
#undef ROWS
            default:
                break;
            }
        }
    }
}
