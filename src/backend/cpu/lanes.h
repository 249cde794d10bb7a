/* lanes.h - the sixteen fp32 lanes of the canonical sums, as one AVX-512 register or two AVX2 registers.
 *
 * Internal to the vector kernels: only files compiled for one of the two instruction sets include it. Every function
 * is one IEEE operation a lane; min and max follow x86 (the second operand if either is NaN or both are zero).
 */
#ifndef DI_BACKEND_CPU_LANES_H
#define DI_BACKEND_CPU_LANES_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DI_LANES static inline __attribute__((always_inline))

enum { DI_LANE_COUNT = 16 };

#if defined(__AVX512F__)

#define DI_ISA(name) di_cpu_##name##_avx512

typedef __m512 lanes;
typedef __m512i ints;
typedef __mmask16 lane_mask;

DI_LANES lanes lanes_zero(void) {
    return _mm512_setzero_ps();
}
DI_LANES lanes lanes_set(float value) {
    return _mm512_set1_ps(value);
}
DI_LANES lanes lanes_load(const float *p) {
    return _mm512_loadu_ps(p);
}
/* The first n < 16 lanes, zeros behind. */
DI_LANES lanes lanes_load_first(const float *p, size_t n) {
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}
DI_LANES void lanes_store(float *p, lanes x) {
    _mm512_storeu_ps(p, x);
}
DI_LANES lanes lanes_add(lanes a, lanes b) {
    return _mm512_add_ps(a, b);
}
DI_LANES lanes lanes_sub(lanes a, lanes b) {
    return _mm512_sub_ps(a, b);
}
DI_LANES lanes lanes_mul(lanes a, lanes b) {
    return _mm512_mul_ps(a, b);
}
DI_LANES lanes lanes_div(lanes a, lanes b) {
    return _mm512_div_ps(a, b);
}
DI_LANES lanes lanes_fma(lanes a, lanes b, lanes c) {
    return _mm512_fmadd_ps(a, b, c);
}
DI_LANES lanes lanes_sqrt(lanes a) {
    return _mm512_sqrt_ps(a);
}
DI_LANES lanes lanes_min(lanes a, lanes b) {
    return _mm512_min_ps(a, b);
}
DI_LANES lanes lanes_max(lanes a, lanes b) {
    return _mm512_max_ps(a, b);
}
DI_LANES ints lanes_bits(lanes a) {
    return _mm512_castps_si512(a);
}
DI_LANES lanes ints_as_lanes(ints a) {
    return _mm512_castsi512_ps(a);
}
DI_LANES ints ints_set(int32_t value) {
    return _mm512_set1_epi32(value);
}
DI_LANES ints ints_add(ints a, ints b) {
    return _mm512_add_epi32(a, b);
}
DI_LANES ints ints_sub(ints a, ints b) {
    return _mm512_sub_epi32(a, b);
}
DI_LANES ints ints_and(ints a, ints b) {
    return _mm512_and_si512(a, b);
}
DI_LANES ints ints_or(ints a, ints b) {
    return _mm512_or_si512(a, b);
}
DI_LANES ints ints_xor(ints a, ints b) {
    return _mm512_xor_si512(a, b);
}
#define ints_shift_left(a, n)  _mm512_slli_epi32(a, n)
#define ints_shift_right(a, n) _mm512_srli_epi32(a, n)
#define ints_shift_sign(a, n)  _mm512_srai_epi32(a, n)
DI_LANES lanes ints_to_lanes(ints a) {
    return _mm512_cvtepi32_ps(a);
}
/* To nearest even. */
DI_LANES ints lanes_to_ints(lanes a) {
    return _mm512_cvtps_epi32(a);
}
DI_LANES lane_mask lanes_less(lanes a, lanes b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
DI_LANES lane_mask lanes_less_equal(lanes a, lanes b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ);
}
DI_LANES size_t lanes_count(lane_mask mask) {
    return (size_t)__builtin_popcount(mask);
}
DI_LANES lane_mask lanes_unordered(lanes a) {
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
DI_LANES lane_mask ints_equal(ints a, ints b) {
    return _mm512_cmpeq_epi32_mask(a, b);
}
DI_LANES lane_mask ints_less(ints a, ints b) {
    return _mm512_cmp_epi32_mask(a, b, _MM_CMPINT_LT);
}
/* yes where the mask is set, else no */
DI_LANES lanes lanes_select(lane_mask mask, lanes yes, lanes no) {
    return _mm512_mask_blend_ps(mask, no, yes);
}
DI_LANES ints ints_select(lane_mask mask, ints yes, ints no) {
    return _mm512_mask_blend_epi32(mask, no, yes);
}
/* 0, 1, 2, ... 15 */
DI_LANES ints ints_index(void) {
    return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
DI_LANES ints ints_load_bytes(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
/* 16 packed E2M1 codes (8 bytes, low nibble first), one a lane. */
DI_LANES ints ints_load_nibbles(const uint8_t *p) {
    __m128i packed = _mm_loadl_epi64((const __m128i *)p);
    __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(low, high));
}
/* Lanes hold 0..255; one byte each. */
DI_LANES __m128i ints_to_bytes(ints a) {
    return _mm512_cvtepi32_epi8(a);
}
DI_LANES lanes lanes_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
/* Lanes hold 0..65535. */
DI_LANES void ints_store_u16(uint16_t *p, ints a) {
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a));
}
/* Sixteen E4M3 codes, exact. Through fp16, whose conversion takes subnormals at full speed. */
DI_LANES lanes lanes_load_e4m3(const uint8_t *p) {
    __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
    __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x7f)), 7);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x7e00));
    __m512 scaled = _mm512_cvtph_ps(_mm256_or_si256(_mm256_or_si256(sign, magnitude), nan));
    return _mm512_mul_ps(scaled, _mm512_set1_ps(256.0f));
}
/* The E2M1 values of codes 0..15. */
DI_LANES lanes lanes_e2m1(ints codes) {
    const __m512 table = _mm512_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f,
                                        -2.0f, -3.0f, -4.0f, -6.0f);
    return _mm512_permutexvar_ps(codes, table);
}
/* Fold 16 -> 8 of rule 2. */
DI_LANES __m256 lanes_fold8(lanes x) {
    return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
DI_LANES __m256 lanes_max8(lanes x) {
    return _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
DI_LANES __m256i ints_halves_sum(ints x) {
    return _mm256_add_epi32(_mm512_castsi512_si256(x), _mm512_extracti64x4_epi64(x, 1));
}
/* (h0, h0, h1, h1, ...) */
DI_LANES lanes lanes_double(__m256 half) {
    const __m512i index = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(half));
}
DI_LANES lanes lanes_join(__m256 low, __m256 high) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}
/* (x1, x0, x3, x2, ...) */
DI_LANES lanes lanes_swap_pairs(lanes x) {
    return _mm512_permute_ps(x, _MM_SHUFFLE(2, 3, 0, 1));
}
DI_LANES lanes lanes_duplicate_even(lanes x) {
    return _mm512_moveldup_ps(x);
}
DI_LANES lanes lanes_duplicate_odd(lanes x) {
    return _mm512_movehdup_ps(x);
}
/* Lanes as a 4 x 4 matrix [row][column]: column i in every column; row i in every row. */
#define lanes_spread_column(x, i) _mm512_permute_ps(x, (i)*0x55)
#define lanes_spread_row(x, i)    _mm512_shuffle_f32x4(x, x, (i)*0x55)

#else

#define DI_ISA(name) di_cpu_##name##_avx2

typedef struct lanes {
    __m256 low, high;
} lanes;
typedef struct ints {
    __m256i low, high;
} ints;
typedef struct lane_mask {
    __m256 low, high;
} lane_mask;

#define DI_BOTH(type, expression_low, expression_high) ((type){(expression_low), (expression_high)})

DI_LANES lanes lanes_zero(void) {
    return DI_BOTH(lanes, _mm256_setzero_ps(), _mm256_setzero_ps());
}
DI_LANES lanes lanes_set(float value) {
    return DI_BOTH(lanes, _mm256_set1_ps(value), _mm256_set1_ps(value));
}
DI_LANES lanes lanes_load(const float *p) {
    return DI_BOTH(lanes, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8));
}
/* The first n < 16 lanes, zeros behind. */
DI_LANES lanes lanes_load_first(const float *p, size_t n) {
    float padded[16] = {0};
    memcpy(padded, p, n * sizeof *p);
    return lanes_load(padded);
}
DI_LANES void lanes_store(float *p, lanes x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
DI_LANES lanes lanes_add(lanes a, lanes b) {
    return DI_BOTH(lanes, _mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}
DI_LANES lanes lanes_sub(lanes a, lanes b) {
    return DI_BOTH(lanes, _mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high));
}
DI_LANES lanes lanes_mul(lanes a, lanes b) {
    return DI_BOTH(lanes, _mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}
DI_LANES lanes lanes_div(lanes a, lanes b) {
    return DI_BOTH(lanes, _mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high));
}
DI_LANES lanes lanes_fma(lanes a, lanes b, lanes c) {
    return DI_BOTH(lanes, _mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
DI_LANES lanes lanes_sqrt(lanes a) {
    return DI_BOTH(lanes, _mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high));
}
DI_LANES lanes lanes_min(lanes a, lanes b) {
    return DI_BOTH(lanes, _mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high));
}
DI_LANES lanes lanes_max(lanes a, lanes b) {
    return DI_BOTH(lanes, _mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}
DI_LANES ints lanes_bits(lanes a) {
    return DI_BOTH(ints, _mm256_castps_si256(a.low), _mm256_castps_si256(a.high));
}
DI_LANES lanes ints_as_lanes(ints a) {
    return DI_BOTH(lanes, _mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high));
}
DI_LANES ints ints_set(int32_t value) {
    return DI_BOTH(ints, _mm256_set1_epi32(value), _mm256_set1_epi32(value));
}
DI_LANES ints ints_add(ints a, ints b) {
    return DI_BOTH(ints, _mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high));
}
DI_LANES ints ints_sub(ints a, ints b) {
    return DI_BOTH(ints, _mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high));
}
DI_LANES ints ints_and(ints a, ints b) {
    return DI_BOTH(ints, _mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high));
}
DI_LANES ints ints_or(ints a, ints b) {
    return DI_BOTH(ints, _mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high));
}
DI_LANES ints ints_xor(ints a, ints b) {
    return DI_BOTH(ints, _mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high));
}
#define ints_shift_left(a, n)                          DI_BOTH(ints, _mm256_slli_epi32((a).low, n), _mm256_slli_epi32((a).high, n))
#define ints_shift_right(a, n)                         DI_BOTH(ints, _mm256_srli_epi32((a).low, n), _mm256_srli_epi32((a).high, n))
#define ints_shift_sign(a, n)                          DI_BOTH(ints, _mm256_srai_epi32((a).low, n), _mm256_srai_epi32((a).high, n))
DI_LANES lanes ints_to_lanes(ints a) {
    return DI_BOTH(lanes, _mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high));
}
/* To nearest even. */
DI_LANES ints lanes_to_ints(lanes a) {
    return DI_BOTH(ints, _mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high));
}
DI_LANES lane_mask lanes_less(lanes a, lanes b) {
    return DI_BOTH(lane_mask, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ));
}
DI_LANES lane_mask lanes_less_equal(lanes a, lanes b) {
    return DI_BOTH(lane_mask, _mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ));
}
DI_LANES size_t lanes_count(lane_mask mask) {
    unsigned bits = (unsigned)_mm256_movemask_ps(mask.low) | (unsigned)_mm256_movemask_ps(mask.high) << 8;
    return (size_t)__builtin_popcount(bits);
}
DI_LANES lane_mask lanes_unordered(lanes a) {
    return DI_BOTH(lane_mask, _mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q), _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q));
}
DI_LANES lane_mask ints_equal(ints a, ints b) {
    return DI_BOTH(lane_mask, _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.low, b.low)),
                   _mm256_castsi256_ps(_mm256_cmpeq_epi32(a.high, b.high)));
}
DI_LANES lane_mask ints_less(ints a, ints b) {
    return DI_BOTH(lane_mask, _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.low, a.low)),
                   _mm256_castsi256_ps(_mm256_cmpgt_epi32(b.high, a.high)));
}
/* yes where the mask is set, else no */
DI_LANES lanes lanes_select(lane_mask mask, lanes yes, lanes no) {
    return DI_BOTH(lanes, _mm256_blendv_ps(no.low, yes.low, mask.low), _mm256_blendv_ps(no.high, yes.high, mask.high));
}
DI_LANES ints ints_select(lane_mask mask, ints yes, ints no) {
    return lanes_bits(lanes_select(mask, ints_as_lanes(yes), ints_as_lanes(no)));
}
/* 0, 1, 2, ... 15 */
DI_LANES ints ints_index(void) {
    return DI_BOTH(ints, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
}
DI_LANES ints ints_from_bytes(__m128i bytes) {
    return DI_BOTH(ints, _mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}
DI_LANES ints ints_load_bytes(const uint8_t *p) {
    return ints_from_bytes(_mm_loadu_si128((const __m128i *)p));
}
/* 16 packed E2M1 codes (8 bytes, low nibble first), one a lane. */
DI_LANES ints ints_load_nibbles(const uint8_t *p) {
    __m128i packed = _mm_loadl_epi64((const __m128i *)p);
    __m128i low = _mm_and_si128(packed, _mm_set1_epi8(15));
    __m128i high = _mm_and_si128(_mm_srli_epi16(packed, 4), _mm_set1_epi8(15));
    return ints_from_bytes(_mm_unpacklo_epi8(low, high));
}
/* Lanes hold 0..65535; in order. */
DI_LANES __m256i ints_to_u16(ints a) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a.low, a.high), _MM_SHUFFLE(3, 1, 2, 0));
}
/* Lanes hold 0..255; one byte each. */
DI_LANES __m128i ints_to_bytes(ints a) {
    __m256i words = ints_to_u16(a);
    return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
DI_LANES lanes lanes_load_bf16(const uint16_t *p) {
    __m256i low = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    __m256i high = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8)));
    return DI_BOTH(lanes, _mm256_castsi256_ps(_mm256_slli_epi32(low, 16)),
                   _mm256_castsi256_ps(_mm256_slli_epi32(high, 16)));
}
/* Lanes hold 0..65535. */
DI_LANES void ints_store_u16(uint16_t *p, ints a) {
    _mm256_storeu_si256((__m256i *)p, ints_to_u16(a));
}
/* Sixteen E4M3 codes, exact. Through fp16, whose conversion takes subnormals at full speed. */
DI_LANES lanes lanes_load_e4m3(const uint8_t *p) {
    __m256i words = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    __m256i sign = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x80)), 8);
    __m256i magnitude = _mm256_slli_epi16(_mm256_and_si256(words, _mm256_set1_epi16(0x7f)), 7);
    __m256i nan = _mm256_and_si256(_mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80)), _mm256_set1_epi16(0x7e00));
    __m256i half = _mm256_or_si256(_mm256_or_si256(sign, magnitude), nan);
    lanes scaled = DI_BOTH(lanes, _mm256_cvtph_ps(_mm256_castsi256_si128(half)),
                           _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
    return lanes_mul(scaled, lanes_set(256.0f));
}
/* The E2M1 values of codes 0..15. */
DI_LANES lanes lanes_e2m1(ints codes) {
    const __m256 table = _mm256_setr_ps(0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f);
    ints sign = ints_shift_left(ints_shift_right(codes, 3), 31);
    lanes magnitude =
        DI_BOTH(lanes, _mm256_permutevar8x32_ps(table, codes.low), _mm256_permutevar8x32_ps(table, codes.high));
    return ints_as_lanes(ints_or(lanes_bits(magnitude), sign));
}
/* Fold 16 -> 8 of rule 2. */
DI_LANES __m256 lanes_fold8(lanes x) {
    return _mm256_add_ps(x.low, x.high);
}
DI_LANES __m256 lanes_max8(lanes x) {
    return _mm256_max_ps(x.low, x.high);
}
DI_LANES __m256i ints_halves_sum(ints x) {
    return _mm256_add_epi32(x.low, x.high);
}
/* (h0, h0, h1, h1, ...) */
DI_LANES lanes lanes_double(__m256 half) {
    return DI_BOTH(lanes, _mm256_permutevar8x32_ps(half, _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3)),
                   _mm256_permutevar8x32_ps(half, _mm256_setr_epi32(4, 4, 5, 5, 6, 6, 7, 7)));
}
DI_LANES lanes lanes_join(__m256 low, __m256 high) {
    return DI_BOTH(lanes, low, high);
}
/* (x1, x0, x3, x2, ...) */
DI_LANES lanes lanes_swap_pairs(lanes x) {
    return DI_BOTH(lanes, _mm256_permute_ps(x.low, _MM_SHUFFLE(2, 3, 0, 1)),
                   _mm256_permute_ps(x.high, _MM_SHUFFLE(2, 3, 0, 1)));
}
DI_LANES lanes lanes_duplicate_even(lanes x) {
    return DI_BOTH(lanes, _mm256_moveldup_ps(x.low), _mm256_moveldup_ps(x.high));
}
DI_LANES lanes lanes_duplicate_odd(lanes x) {
    return DI_BOTH(lanes, _mm256_movehdup_ps(x.low), _mm256_movehdup_ps(x.high));
}
DI_LANES lanes lanes_twice(__m256 half) {
    return DI_BOTH(lanes, half, half);
}
/* Lanes as a 4 x 4 matrix [row][column]: column i in every column; row i in every row. */
#define lanes_spread_column(x, i)                                                                                      \
    DI_BOTH(lanes, _mm256_permute_ps((x).low, (i)*0x55), _mm256_permute_ps((x).high, (i)*0x55))
#define lanes_spread_row(x, i)                                                                                         \
    lanes_twice(_mm256_permute2f128_ps((i) < 2 ? (x).low : (x).high, (i) < 2 ? (x).low : (x).high, (i) % 2 * 0x11))

#endif

/* ---------------------------------------------------------------- built from the above */

DI_LANES lanes lanes_abs(lanes x) {
    return ints_as_lanes(ints_and(lanes_bits(x), ints_set(0x7fffffff)));
}
DI_LANES lanes lanes_negate(lanes x) {
    return ints_as_lanes(ints_xor(lanes_bits(x), ints_set(INT32_MIN)));
}
DI_LANES ints lanes_sign_bits(lanes x) {
    return ints_and(lanes_bits(x), ints_set(INT32_MIN));
}
/* Fold 8 -> 4 -> 2 -> 1 of rule 2. */
DI_LANES float lanes_fold_half(__m256 half) {
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
DI_LANES float lanes_fold(lanes x) {
    return lanes_fold_half(lanes_fold8(x));
}
/* Maximum of lanes that are not NaN. */
DI_LANES float lanes_maximum(lanes x) {
    __m256 eight = lanes_max8(x);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
/* bf16 codes, to nearest even, NaN to 0x7fc0. */
DI_LANES ints lanes_to_bf16(lanes x) {
    ints bits = lanes_bits(x);
    ints odd = ints_and(ints_shift_right(bits, 16), ints_set(1));
    ints rounded = ints_shift_right(ints_add(bits, ints_add(odd, ints_set(0x7fff))), 16);
    return ints_select(lanes_unordered(x), ints_set(0x7fc0), rounded);
}
DI_LANES void lanes_store_bf16(uint16_t *p, lanes x) {
    ints_store_u16(p, lanes_to_bf16(x));
}
DI_LANES lanes lanes_round_bf16(lanes x) {
    return ints_as_lanes(ints_shift_left(lanes_to_bf16(x), 16));
}

DI_LANES int32_t ints_sum(ints x) {
    __m256i eight = ints_halves_sum(x);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

/* Loads and stores of a piece of `left` elements, of which at most 16 count; missing lanes read as zero. */
DI_LANES lanes lanes_load_part(const float *p, size_t left) {
    return left >= DI_LANE_COUNT ? lanes_load(p) : lanes_load_first(p, left);
}
/* Eight floats, each in two lanes, of which `left` are there. */
DI_LANES lanes lanes_load_doubled(const float *p, size_t left) {
    if (left >= DI_LANE_COUNT / 2) return lanes_double(_mm256_loadu_ps(p));
    float padded[DI_LANE_COUNT / 2] = {0};
    memcpy(padded, p, left * sizeof *p);
    return lanes_double(_mm256_loadu_ps(padded));
}
DI_LANES void lanes_store_part(float *p, lanes x, size_t left) {
    if (left >= DI_LANE_COUNT) {
        lanes_store(p, x);
    } else {
        float padded[DI_LANE_COUNT];
        lanes_store(padded, x);
        memcpy(p, padded, left * sizeof *p);
    }
}
DI_LANES lanes lanes_load_bf16_part(const uint16_t *p, size_t left) {
    if (left >= DI_LANE_COUNT) return lanes_load_bf16(p);
    uint16_t padded[DI_LANE_COUNT] = {0};
    memcpy(padded, p, left * sizeof *p);
    return lanes_load_bf16(padded);
}
DI_LANES void lanes_store_bf16_part(uint16_t *p, lanes x, size_t left) {
    if (left >= DI_LANE_COUNT) {
        lanes_store_bf16(p, x);
    } else {
        uint16_t padded[DI_LANE_COUNT];
        lanes_store_bf16(padded, x);
        memcpy(p, padded, left * sizeof *p);
    }
}

#endif
