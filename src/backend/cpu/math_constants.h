/* math_constants.h - constants of the elementary functions, shared by the scalar form (math.c), which defines the bits,
 * and the vector forms, which repeat its operations one by one (docs/numerics.md, "Elementary functions").
 *
 * Polynomials interpolate at Chebyshev nodes of the reduced range; coefficients are rounded to the working precision.
 */
#ifndef DI_BACKEND_CPU_MATH_CONSTANTS_H
#define DI_BACKEND_CPU_MATH_CONSTANTS_H

/* exp: x = n ln2 + r, |r| <= ln2 / 2; exp(r) = 1 + r (1 + r P(r)), P(r) = C2 + C3 r + ... + C7 r^5 */
#define DI_EXP_LOW     -104.0f
#define DI_EXP_HIGH    89.0f
#define DI_EXP_LOG2E   0x1.715476p+0f
#define DI_EXP_SHIFTER 0x1.8p+23f /* x + SHIFTER rounds x to an integer, which then stands in the low bits */
#define DI_EXP_LN2_HI  0x1.62e430p-1f
#define DI_EXP_LN2_LO  -0x1.05c610p-29f
#define DI_EXP_C2      0x1.000000p-1f
#define DI_EXP_C3      0x1.555556p-3f
#define DI_EXP_C4      0x1.5554e8p-5f
#define DI_EXP_C5      0x1.1110e0p-7f
#define DI_EXP_C6      0x1.6d4362p-10f
#define DI_EXP_C7      0x1.a12528p-13f

/* log: x = 2^k m, m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (2 + f), z = s^2;
 * log(1 + f) = f - f^2/2 + s (f^2/2 + R), R = z (L1 + L2 z + ...) */
#define DI_LOGF_SQRT_HALF 0x3f3504f3u    /* bits of sqrt(1/2) */
#define DI_LOGF_LN2_HI    0x1.62e400p-1f /* 15 bits: k * LN2_HI is exact */
#define DI_LOGF_LN2_LO    0x1.7f7d1cp-20f
#define DI_LOGF_L1        0x1.55555cp-1f
#define DI_LOGF_L2        0x1.997c30p-2f
#define DI_LOGF_L3        0x1.2ee610p-2f

#define DI_LOG_SQRT_HALF 0x3fe6a09e667f3bcdull
#define DI_LOG_LN2_HI    0x1.62e42fefa3800p-1 /* 42 bits */
#define DI_LOG_LN2_LO    0x1.ef35793c76730p-45
#define DI_LOG_L1        0x1.5555555555558p-1
#define DI_LOG_L2        0x1.99999999952e2p-2
#define DI_LOG_L3        0x1.2492492df148dp-2
#define DI_LOG_L4        0x1.c71c62e5800a1p-3
#define DI_LOG_L5        0x1.7462b4ab2ef6bp-3
#define DI_LOG_L6        0x1.39fe606542ddep-3
#define DI_LOG_L7        0x1.2b584aae78a57p-3

/* sin, cos: x = n pi/2 + r, |r| <= pi/4, z = r^2; sin r = r + r z (S1 + S2 z + ...), cos r = 1 - z/2 + z^2 (K1 + K2 z
 * ...) */
#define DI_SINCOS_TWO_OVER_PI 0x1.45f306dc9c883p-1
#define DI_SINCOS_SHIFTER     0x1.8p+52
#define DI_SINCOS_PIO2_1      0x1.921fb54442d18p+0
#define DI_SINCOS_PIO2_2      0x1.1a62633145c07p-54
#define DI_SINCOS_PIO2_3      -0x1.f1976b7ed8fbcp-110
#define DI_SINCOS_S1          -0x1.5555555555555p-3
#define DI_SINCOS_S2          0x1.1111111110ba5p-7
#define DI_SINCOS_S3          -0x1.a01a019e80693p-13
#define DI_SINCOS_S4          0x1.71de379252004p-19
#define DI_SINCOS_S5          -0x1.ae60069e53ef1p-26
#define DI_SINCOS_S6          0x1.5e098556d302ep-33
#define DI_SINCOS_K1          0x1.5555555555555p-5
#define DI_SINCOS_K2          -0x1.6c16c16c16960p-10
#define DI_SINCOS_K3          0x1.a01a019f4d0edp-16
#define DI_SINCOS_K4          -0x1.27e4fa15bd814p-22
#define DI_SINCOS_K5          0x1.1eeb66b683028p-29
#define DI_SINCOS_K6          -0x1.907c0e63adbb6p-37

#endif
