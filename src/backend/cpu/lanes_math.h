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

#endif
