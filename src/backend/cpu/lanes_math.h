/* lanes_math.h - the elementary functions of math.c on sixteen lanes, operation by operation (docs/numerics.md).
 *
 * Internal to the vector kernels, like lanes.h.
 */
#ifndef DI_BACKEND_CPU_LANES_MATH_H
#define DI_BACKEND_CPU_LANES_MATH_H

#include "backend/cpu/lanes.h"
#include "backend/cpu/math_constants.h"

/* di_expf */
DI_LANES lanes lanes_exp(lanes x) {
    x = lanes_max(lanes_set(DI_EXP_LOW), x);
    x = lanes_min(lanes_set(DI_EXP_HIGH), x);
    const lanes shifter = lanes_set(DI_EXP_SHIFTER);
    lanes shifted = lanes_fma(x, lanes_set(DI_EXP_LOG2E), shifter);
    lanes minus_n = lanes_negate(lanes_sub(shifted, shifter));
    lanes r = lanes_fma(minus_n, lanes_set(DI_EXP_LN2_HI), x);
    r = lanes_fma(minus_n, lanes_set(DI_EXP_LN2_LO), r);
    lanes p = lanes_set(DI_EXP_C7);
    p = lanes_fma(p, r, lanes_set(DI_EXP_C6));
    p = lanes_fma(p, r, lanes_set(DI_EXP_C5));
    p = lanes_fma(p, r, lanes_set(DI_EXP_C4));
    p = lanes_fma(p, r, lanes_set(DI_EXP_C3));
    p = lanes_fma(p, r, lanes_set(DI_EXP_C2));
    p = lanes_fma(p, r, lanes_set(1.0f));
    p = lanes_fma(p, r, lanes_set(1.0f));
    ints exponent = ints_sub(lanes_bits(shifted), lanes_bits(shifter));
    ints half = ints_shift_sign(exponent, 1);
    ints rest = ints_sub(exponent, half);
    p = lanes_mul(p, ints_as_lanes(ints_shift_left(ints_add(half, ints_set(127)), 23)));
    return lanes_mul(p, ints_as_lanes(ints_shift_left(ints_add(rest, ints_set(127)), 23)));
}

/* di_sigmoidf */
DI_LANES lanes lanes_sigmoid(lanes x) {
    const lanes one = lanes_set(1.0f);
    return lanes_div(one, lanes_add(one, lanes_exp(lanes_negate(x))));
}

/* di_log1p_expf; log_core of math.c with k_offset 0 */
DI_LANES lanes lanes_log1p_exp(lanes x) {
    const lanes one = lanes_set(1.0f);
    lanes y = lanes_exp(x);
    lanes u = lanes_add(one, y);
    lanes b = lanes_sub(u, one);
    lanes lost = lanes_add(lanes_sub(one, lanes_sub(u, b)), lanes_sub(y, b));
    lanes correction = lanes_div(lost, u);

    ints bits = ints_sub(lanes_bits(u), ints_set((int32_t)DI_LOGF_SQRT_HALF));
    ints k = ints_shift_sign(bits, 23);
    ints mantissa = ints_add(ints_and(bits, ints_set(0x007fffff)), ints_set((int32_t)DI_LOGF_SQRT_HALF));
    lane_mask zero = ints_equal(k, ints_set(0));
    lanes f = lanes_select(zero, y, lanes_sub(ints_as_lanes(mantissa), one));
    lanes c = lanes_select(zero, lanes_zero(), correction);
    lanes s = lanes_div(f, lanes_add(lanes_set(2.0f), f));
    lanes z = lanes_mul(s, s);
    lanes r = lanes_fma(z, lanes_set(DI_LOGF_L3), lanes_set(DI_LOGF_L2));
    r = lanes_mul(z, lanes_fma(z, r, lanes_set(DI_LOGF_L1)));
    lanes h = lanes_mul(lanes_mul(lanes_set(0.5f), f), f);
    lanes power = ints_to_lanes(k);
    lanes t = lanes_fma(power, lanes_set(DI_LOGF_LN2_LO), c);
    t = lanes_fma(s, lanes_add(h, r), t);
    return lanes_fma(power, lanes_set(DI_LOGF_LN2_HI), lanes_sub(f, lanes_sub(h, t)));
}

/* di_sincos of four angles */
DI_LANES void quad_sincos(__m256d angle, __m256d *sine, __m256d *cosine) {
#define SET(value)         _mm256_set1_pd(value)
#define FMA(a, b, c)       _mm256_fmadd_pd(a, b, c)
#define STEP(acc, z, next) _mm256_fmadd_pd(acc, z, _mm256_set1_pd(next))
    const __m256d shifter = SET(DI_SINCOS_SHIFTER), sign = SET(-0.0);
    __m256d shifted = FMA(angle, SET(DI_SINCOS_TWO_OVER_PI), shifter);
    __m256d n = _mm256_sub_pd(shifted, shifter), minus_n = _mm256_xor_pd(n, sign);
    __m256d a = FMA(minus_n, SET(DI_SINCOS_PIO2_1), angle);
    __m256d p = _mm256_mul_pd(n, SET(DI_SINCOS_PIO2_2));
    __m256d p_low = FMA(n, SET(DI_SINCOS_PIO2_2), _mm256_xor_pd(p, sign));
    __m256d r = _mm256_sub_pd(a, p);
    __m256d b = _mm256_sub_pd(r, a);
    __m256d r_low = _mm256_sub_pd(_mm256_sub_pd(a, _mm256_sub_pd(r, b)), _mm256_add_pd(p, b));
    r_low = _mm256_sub_pd(r_low, p_low);
    r_low = FMA(minus_n, SET(DI_SINCOS_PIO2_3), r_low);
    __m256d sum = _mm256_add_pd(r, r_low);
    r_low = _mm256_sub_pd(r_low, _mm256_sub_pd(sum, r));
    r = sum;

    __m256d z = _mm256_mul_pd(r, r), half = _mm256_mul_pd(SET(0.5), z);
    __m256d s = STEP(SET(DI_SINCOS_S6), z, DI_SINCOS_S5);
    s = STEP(s, z, DI_SINCOS_S4);
    s = STEP(s, z, DI_SINCOS_S3);
    s = STEP(s, z, DI_SINCOS_S2);
    s = STEP(s, z, DI_SINCOS_S1);
    __m256d sin_low = FMA(_mm256_xor_pd(half, sign), r_low, r_low);
    sin_low = FMA(_mm256_mul_pd(r, z), s, sin_low);
    __m256d sin_r = _mm256_add_pd(r, sin_low);

    __m256d k = STEP(SET(DI_SINCOS_K6), z, DI_SINCOS_K5);
    k = STEP(k, z, DI_SINCOS_K4);
    k = STEP(k, z, DI_SINCOS_K3);
    k = STEP(k, z, DI_SINCOS_K2);
    k = STEP(k, z, DI_SINCOS_K1);
    __m256d one = _mm256_sub_pd(SET(1.0), half);
    __m256d one_low = _mm256_sub_pd(_mm256_sub_pd(SET(1.0), one), half);
    __m256d cos_low = FMA(_mm256_xor_pd(r, sign), r_low, one_low);
    cos_low = FMA(_mm256_mul_pd(z, z), k, cos_low);
    __m256d cos_r = _mm256_add_pd(one, cos_low);

    /* bit 0 of the quadrant swaps the two, bit 1 turns the sign of the sine, bit 1 of quadrant + 1 that of the cosine
     */
    __m256i quadrant = _mm256_castpd_si256(shifted);
    __m256i next = _mm256_add_epi64(quadrant, _mm256_set1_epi64x(1));
    __m256d swap = _mm256_castsi256_pd(_mm256_slli_epi64(quadrant, 63));
    __m256d sine_sign = _mm256_and_pd(_mm256_castsi256_pd(_mm256_slli_epi64(quadrant, 62)), sign);
    __m256d cosine_sign = _mm256_and_pd(_mm256_castsi256_pd(_mm256_slli_epi64(next, 62)), sign);
    *sine = _mm256_xor_pd(_mm256_blendv_pd(sin_r, cos_r, swap), sine_sign);
    *cosine = _mm256_xor_pd(_mm256_blendv_pd(cos_r, sin_r, swap), cosine_sign);
#undef SET
#undef FMA
#undef STEP
}

#endif
