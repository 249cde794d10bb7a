#include "backend/cpu/math.h"
#include "backend/cpu/math_constants.h"

#include <string.h>

/* __builtin_fma is the hardware instruction or libm's exact emulation of it: one rounding either way. */

static uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t bits_of_double(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double double_of_bits(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The comparisons are written as minps/maxps do them (second operand on NaN), so that NaN stays NaN. */
float di_expf(float x) {
    x = DI_EXP_LOW > x ? DI_EXP_LOW : x;
    x = DI_EXP_HIGH < x ? DI_EXP_HIGH : x;
    float shifted = __builtin_fmaf(x, DI_EXP_LOG2E, DI_EXP_SHIFTER);
    float n = shifted - DI_EXP_SHIFTER;
    float r = __builtin_fmaf(-n, DI_EXP_LN2_HI, x);
    r = __builtin_fmaf(-n, DI_EXP_LN2_LO, r);
    float p = DI_EXP_C7;
    p = __builtin_fmaf(p, r, DI_EXP_C6);
    p = __builtin_fmaf(p, r, DI_EXP_C5);
    p = __builtin_fmaf(p, r, DI_EXP_C4);
    p = __builtin_fmaf(p, r, DI_EXP_C3);
    p = __builtin_fmaf(p, r, DI_EXP_C2);
    p = __builtin_fmaf(p, r, 1.0f);
    p = __builtin_fmaf(p, r, 1.0f);
    /* 2^n in two factors, so that subnormal results are rounded once and n = 128 does not overflow early */
    int32_t exponent = (int32_t)(bits_of_float(shifted) - bits_of_float(DI_EXP_SHIFTER));
    int32_t half = exponent >> 1;
    float scale = float_of_bits((uint32_t)(half + 127) << 23);
    float rest = float_of_bits((uint32_t)(exponent - half + 127) << 23);
    return (p * scale) * rest;
}

/* log(2^k m) + correction; m from u's bits, f = f_small instead of m - 1 where k = 0 */
static float log_core(float u, float f_exact, float correction, int32_t k_offset) {
    uint32_t bits = bits_of_float(u) - DI_LOGF_SQRT_HALF;
    int32_t k = (int32_t)bits >> 23;
    float m = float_of_bits((bits & 0x007fffffu) + DI_LOGF_SQRT_HALF);
    k += k_offset;
    float f = k == 0 ? f_exact : m - 1.0f;
    float c = k == 0 ? 0.0f : correction;
    float s = f / (2.0f + f);
    float z = s * s;
    float r = __builtin_fmaf(z, DI_LOGF_L3, DI_LOGF_L2);
    r = z * __builtin_fmaf(z, r, DI_LOGF_L1);
    float h = (0.5f * f) * f;
    float t = __builtin_fmaf((float)k, DI_LOGF_LN2_LO, c);
    t = __builtin_fmaf(s, h + r, t);
    return __builtin_fmaf((float)k, DI_LOGF_LN2_HI, f - (h - t));
}

float di_logf(float x) {
    if (!(x > 0.0f)) return x == 0.0f ? -float_of_bits(0x7f800000u) : float_of_bits(0x7fc00000u);
    if (x > 0x1.fffffep+127f) return x;
    int32_t offset = 0;
    if (x < 0x1p-126f) {
        x *= 0x1p+23f;
        offset = -23;
    }
    return log_core(x, x - 1.0f, 0.0f, offset);
}

/* u + c = 1 + y exactly: the rounding of 1 + y is given back to the logarithm */
float di_log1p_expf(float x) {
    float y = di_expf(x);
    float u = 1.0f + y;
    float b = u - 1.0f;
    float c = (1.0f - (u - b)) + (y - b);
    return log_core(u, y, c / u, 0);
}

float di_sigmoidf(float x) {
    return 1.0f / (1.0f + di_expf(-x));
}

static double log_core_double(double u, double f_exact, double correction, int64_t k_offset) {
    uint64_t bits = bits_of_double(u) - DI_LOG_SQRT_HALF;
    int64_t k = (int64_t)bits >> 52;
    double m = double_of_bits((bits & 0x000fffffffffffffull) + DI_LOG_SQRT_HALF);
    k += k_offset;
    double f = k == 0 ? f_exact : m - 1.0;
    double c = k == 0 ? 0.0 : correction;
    double s = f / (2.0 + f);
    double z = s * s;
    double r = DI_LOG_L7;
    r = __builtin_fma(r, z, DI_LOG_L6);
    r = __builtin_fma(r, z, DI_LOG_L5);
    r = __builtin_fma(r, z, DI_LOG_L4);
    r = __builtin_fma(r, z, DI_LOG_L3);
    r = __builtin_fma(r, z, DI_LOG_L2);
    r = __builtin_fma(r, z, DI_LOG_L1);
    r = r * z;
    /* k ln2 + f - f^2/2 with the rounding errors of both additions and of the square carried along */
    double h = (0.5 * f) * f;
    double h_low = __builtin_fma(0.5 * f, f, -h);
    double big = (double)k * DI_LOG_LN2_HI;
    double sum = big + f;
    double sum_low = k == 0 ? 0.0 : f - (sum - big);
    double top = sum - h;
    double top_low = (sum - top) - h;
    double low = __builtin_fma((double)k, DI_LOG_LN2_LO, c);
    low = low + (sum_low + (top_low - h_low));
    low = __builtin_fma(s, h + r, low);
    return top + low;
}

double di_log_double(double x) {
    if (!(x > 0.0)) return x == 0.0 ? -(double)float_of_bits(0x7f800000u) : (double)float_of_bits(0x7fc00000u);
    if (x > 0x1.fffffffffffffp+1023) return x;
    int64_t offset = 0;
    if (x < 0x1p-1022) {
        x *= 0x1p+52;
        offset = -52;
    }
    return log_core_double(x, x - 1.0, 0.0, offset);
}

double di_log1p_double(double x) {
    if (!(x > -1.0)) return x == -1.0 ? -(double)float_of_bits(0x7f800000u) : (double)float_of_bits(0x7fc00000u);
    if (x > 0x1.fffffffffffffp+1023) return x;
    double u = 1.0 + x;
    double b = u - 1.0;
    double c = (1.0 - (u - b)) + (x - b);
    return log_core_double(u, x, c / u, 0);
}

void di_sincos(double angle, double *sine, double *cosine) {
    double shifted = __builtin_fma(angle, DI_SINCOS_TWO_OVER_PI, DI_SINCOS_SHIFTER);
    double n = shifted - DI_SINCOS_SHIFTER;
    uint64_t quadrant = bits_of_double(shifted) & 3u;
    /* r + r_low = angle - n pi/2; the first step is exact */
    double a = __builtin_fma(-n, DI_SINCOS_PIO2_1, angle);
    double p = n * DI_SINCOS_PIO2_2;
    double p_low = __builtin_fma(n, DI_SINCOS_PIO2_2, -p);
    double r = a - p;
    double b = r - a;
    double r_low = (a - (r - b)) - (p + b);
    r_low = r_low - p_low;
    r_low = __builtin_fma(-n, DI_SINCOS_PIO2_3, r_low);
    double sum = r + r_low;
    r_low = r_low - (sum - r);
    r = sum;

    double z = r * r;
    double s = DI_SINCOS_S6;
    s = __builtin_fma(s, z, DI_SINCOS_S5);
    s = __builtin_fma(s, z, DI_SINCOS_S4);
    s = __builtin_fma(s, z, DI_SINCOS_S3);
    s = __builtin_fma(s, z, DI_SINCOS_S2);
    s = __builtin_fma(s, z, DI_SINCOS_S1);
    double half = 0.5 * z;
    /* sin(r + r_low) = sin r + r_low (1 - z/2) */
    double sin_low = __builtin_fma(-half, r_low, r_low);
    sin_low = __builtin_fma(r * z, s, sin_low);
    double sin_r = r + sin_low;

    double k = DI_SINCOS_K6;
    k = __builtin_fma(k, z, DI_SINCOS_K5);
    k = __builtin_fma(k, z, DI_SINCOS_K4);
    k = __builtin_fma(k, z, DI_SINCOS_K3);
    k = __builtin_fma(k, z, DI_SINCOS_K2);
    k = __builtin_fma(k, z, DI_SINCOS_K1);
    double one = 1.0 - half;
    double one_low = (1.0 - one) - half;
    /* cos(r + r_low) = cos r - r_low r */
    double cos_low = __builtin_fma(-r, r_low, one_low);
    cos_low = __builtin_fma(z * z, k, cos_low);
    double cos_r = one + cos_low;

    double sin_value = quadrant & 1u ? cos_r : sin_r;
    double cos_value = quadrant & 1u ? sin_r : cos_r;
    *sine = quadrant & 2u ? -sin_value : sin_value;
    *cosine = (quadrant + 1u) & 2u ? -cos_value : cos_value;
}
