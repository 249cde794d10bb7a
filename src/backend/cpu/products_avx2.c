/* products_avx2.c - the four products with AVX2, FMA and F16C. Contracts: kernels.h, docs/numerics.md. */
#include "backend/cpu/lanes.h"

/* Output rows whose accumulators (two registers each) fit beside M input rows in 16 registers. */
#define MAX_ROWS         2
#define PLAIN_MAX_ROWS   2
#define products_rows(M) ((M) <= 1 ? 4 : 2)

DI_LANES lanes in_registers(lanes x) {
    __asm__("" : "+x"(x.low), "+x"(x.high));
    return x;
}

/* 32 E4M3 codes -> the fp16 of their values * 2^-8: exponent and mantissa moved to their place in an fp16, whose bias
 * is larger by eight; subnormals fit as they are. One multiplication picks the even codes of the 32 and shifts them,
 * another the odd ones: lanes 0, 2, ... 14 stand in the low register of a `lanes`, 1, 3, ... 15 in the high one. */
DI_LANES void e4m3_to_fp16(const uint8_t *codes, __m256i words[2]) {
    const __m256i packed = _mm256_loadu_si256((const __m256i *)codes), mask = _mm256_set1_epi16((int16_t)0xbfff);
    words[0] = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16(128), packed), mask);
    words[1] = _mm256_and_si256(_mm256_maddubs_epi16(_mm256_set1_epi16((int16_t)0x8000), packed), mask);
}

DI_LANES lanes e4m3_order(lanes x) {
    __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(x.low, x.high, _MM_SHUFFLE(2, 0, 2, 0)));
    __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(x.low, x.high, _MM_SHUFFLE(3, 1, 3, 1)));
    return (lanes){_mm256_castpd_ps(_mm256_permute4x64_pd(even, _MM_SHUFFLE(3, 1, 2, 0))),
                   _mm256_castpd_ps(_mm256_permute4x64_pd(odd, _MM_SHUFFLE(3, 1, 2, 0)))};
}

DI_LANES __m256 fold_pair(__m256 a, __m256 b);
DI_LANES __m128 fold_last(__m256 two);

/* Two folds of rule 2 in this order, down to four lanes: 16 -> 8 inside even and odd lanes, 8 -> 4 in both. */
DI_LANES __m256 e4m3_fold_pair(lanes a, lanes b) {
    __m256 even = fold_pair(a.low, b.low), odd = fold_pair(a.high, b.high);
    return _mm256_add_ps(_mm256_shuffle_ps(even, odd, _MM_SHUFFLE(1, 0, 1, 0)),
                         _mm256_shuffle_ps(even, odd, _MM_SHUFFLE(3, 2, 3, 2))); /* lanes 0, 2, 1, 3 of a, then of b */
}

DI_LANES __m128 e4m3_fold4(const lanes x[4]) {
    __m256 ab = e4m3_fold_pair(x[0], x[1]), cd = e4m3_fold_pair(x[2], x[3]);
    return fold_last(_mm256_add_ps(_mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(2, 0, 2, 0)),
                                   _mm256_shuffle_ps(ab, cd, _MM_SHUFFLE(3, 1, 3, 1))));
}

#include "backend/cpu/products_body.h"

/* The first or second sixteen of 32 codes. */
DI_LANES lanes words_to_lanes(const __m256i words[2], int half) {
    const __m128i *quarter = (const __m128i *)words;
    return (lanes){_mm256_cvtph_ps(quarter[half]), _mm256_cvtph_ps(quarter[2 + half])};
}

/* A chunk of each row becomes fp16 in memory first: vcvtph2ps from memory costs one operation less than from a
 * register, and no upper halves have to be extracted. */
enum { F8_CHUNK = 256 };

DI_LANES void e4m3_body(const uint8_t *codes, size_t in, const float *x, float *y, size_t y_stride, const int W,
                        const int M) {
    __m256i words[4][F8_CHUNK / BLOCK][2]; /* even and odd codes */
    lanes acc[8][MAX_ROWS];
    UNROLL for (int w = 0; w < W; w++) {
        UNROLL for (int m = 0; m < M; m++) acc[w][m] = lanes_zero();
    }
    for (size_t k = 0; k < in; k += F8_CHUNK) {
        size_t blocks = in - k < F8_CHUNK ? (in - k) / BLOCK : F8_CHUNK / BLOCK;
        for (size_t b = 0; b < blocks; b++) {
            prefetch_next(codes, in, k + b * BLOCK, BLOCK, W);
            UNROLL for (int w = 0; w < W; w++) e4m3_to_fp16(codes + (size_t)w * in + k + b * BLOCK, words[w][b]);
        }
        __asm__("" : "+m"(words)); /* read back from memory */
        for (size_t b = 0; b < blocks; b++, x += M * BLOCK) {
            UNROLL for (int half = 0; half < 2; half++) {
                lanes input[MAX_ROWS];
                UNROLL for (int m = 0; m < M; m++) input[m] = load_input(x + (half * M + m) * DI_LANE_COUNT, W);
                UNROLL for (int w = 0; w < W; w++) {
                    lanes value = words_to_lanes(words[w][b], half);
                    UNROLL for (int m = 0; m < M; m++) acc[w][m] = in_registers(lanes_fma(value, input[m], acc[w][m]));
                }
            }
        }
    }
    store_folds(acc, y, y_stride, FORM_E4M3, W, M);
}

void di_cpu_product_f8_avx2(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                            float *y, size_t y_stride, float *scratch) {
    product_e4m3(w, x, x_stride, rows, n0, n1, y, y_stride, scratch);
}

/* ---------------------------------------------------------------- E2M1, block-exact */

/* F4_AHEAD: tiles between the one that is read and the one that is asked for. */
enum { F4_ROWS = 16, TILE_BYTES = 256, F4_MAX_ROWS = 4, F4_AHEAD = 16 };

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

/* The compiler may not carry what it loaded through this pointer over from before: without it the limbs of a whole
 * block are kept for the second half of a tile, which means spilled. */
DI_LANES const di_f4_block *reload(const di_f4_block *x) {
    __asm__("" : "+r"(x));
    return x;
}

/* The sum exists here, in a register: else the compiler reorders integer additions, adds late, and spills the terms. */
DI_LANES __m256i in_register(__m256i sum) {
    __asm__("" : "+x"(sum));
    return sum;
}

/* total + the block's rests times 2 * e2m1, for eight rows of a tile: a few inputs at most have one. */
DI_LANES __m256i add_rests(__m256i total, const uint8_t *tile, const di_f4_block *block) {
    const __m256i doubled =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    for (uint32_t mask = block->rest_mask; mask; mask &= mask - 1) {
        const unsigned k = (unsigned)__builtin_ctz(mask);
        __m256i packed = _mm256_loadu_si256((const __m256i *)(tile + k % 16 / 4 * 64));
        packed = _mm256_srl_epi32(packed, _mm_cvtsi32_si128((int)(k % 4 * 8 + k / 16 * 4)));
        __m256i weight = _mm256_shuffle_epi8(doubled, _mm256_and_si256(packed, _mm256_set1_epi32(15)));
        weight = _mm256_srai_epi32(_mm256_slli_epi32(weight, 24), 24);
        total = _mm256_add_epi32(total, _mm256_mullo_epi32(weight, _mm256_set1_epi32(block->rest[k])));
    }
    return total;
}

/* One 32-block: H halves (8 output rows each) of a tile times M input rows. Weights enter as 2 * e2m1 + 12, unsigned;
 * the block's bias takes the 12 back. A 16-bit lane sums 4 pairs of at most 24 * 128 * 2, which is 24576: exact. */
DI_LANES void f4_block(const uint8_t *tile, const uint8_t *scales, const di_f4_block *x, size_t x_stride,
                       __m256 (*acc)[F4_MAX_ROWS], const int H, const int M) {
    const __m256i table = _mm256_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0, 12, 13, 14, 15,
                                           16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const __m256i nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
    __m256i sum[2][F4_MAX_ROWS][2], part[2][F4_MAX_ROWS][2];
    UNROLL for (int j = 0; j < 4; j++) {
        __m256i low[2], high[2];
        UNROLL for (int h = 0; h < H; h++) {
            __m256i packed = _mm256_loadu_si256((const __m256i *)(tile + 64 * j + 32 * h));
            low[h] = _mm256_shuffle_epi8(table, _mm256_and_si256(packed, nibble));
            high[h] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(packed, 4), nibble));
        }
        UNROLL for (int m = 0; m < M; m++) {
            const di_f4_block *block = &x[(size_t)m * x_stride];
            UNROLL for (int l = 0; l < 2; l++) {
                __m256i first = broadcast4(block->limb[l] + 4 * j), second = broadcast4(block->limb[l] + 16 + 4 * j);
                UNROLL for (int h = 0; h < H; h++) {
                    __m256i pair =
                        _mm256_add_epi16(_mm256_maddubs_epi16(low[h], first), _mm256_maddubs_epi16(high[h], second));
                    if (j % 2 == 0) {
                        part[h][m][l] = in_register(pair);
                    } else {
                        __m256i four = _mm256_madd_epi16(_mm256_add_epi16(part[h][m][l], pair), ones);
                        sum[h][m][l] = in_register(j == 1 ? four : _mm256_add_epi32(sum[h][m][l], four));
                    }
                }
            }
        }
    }
    UNROLL for (int h = 0; h < H; h++) {
        __m256 weight_scale = decode_scales(scales + 8 * h);
        UNROLL for (int m = 0; m < M; m++) {
            const di_f4_block *block = &x[(size_t)m * x_stride];
            __m256i total = _mm256_add_epi32(sum[h][m][0], _mm256_set1_epi32(block->bias));
            total = _mm256_add_epi32(total, _mm256_slli_epi32(sum[h][m][1], 8));
            total = _mm256_slli_epi32(total, 3);
            if (__builtin_expect(block->rest_mask != 0, 0)) total = add_rests(total, tile + 32 * h, block);
            __m256 scale = _mm256_mul_ps(_mm256_set1_ps(block->scale), weight_scale);
            acc[h][m] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(total), scale, acc[h][m]);
        }
    }
}

/* A strip of 16 output rows times M input rows (blocks x_stride apart): acc[half][m] */
DI_LANES void f4_strip(const uint8_t *tiles, const uint8_t *scales, size_t blocks, const di_f4_block *x,
                       size_t x_stride, __m256 (*acc)[F4_MAX_ROWS], const int M) {
    for (size_t b = 0; b < blocks; b++, tiles += TILE_BYTES, scales += F4_ROWS) {
        UNROLL for (int line = 0; line < TILE_BYTES; line += 64)
            _mm_prefetch((const char *)tiles + F4_AHEAD * TILE_BYTES + line, _MM_HINT_T0);
        _mm_prefetch((const char *)scales + F4_AHEAD * F4_ROWS, _MM_HINT_T0);
        if (M == 1) {
            f4_block(tiles, scales, reload(x + b), x_stride, acc, 2, 1);
        } else {
            f4_block(tiles, scales, reload(x + b), x_stride, acc, 1, M);
            f4_block(tiles + 32, scales + 8, reload(x + b), x_stride, acc + 1, 1, M);
        }
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
