/* codec.c - number formats; contract in codec.h. */
#include "tensor/codec.h"

#include <math.h>

/* Eight mantissas 8..15 of one exponent; `unit` is the value of the mantissa's last bit. */
#define NORMAL_ROW(unit)                                                                                               \
    8.0f * (unit), 9.0f * (unit), 10.0f * (unit), 11.0f * (unit), 12.0f * (unit), 13.0f * (unit), 14.0f * (unit),      \
        15.0f * (unit)
/* Exponents 0..14 of one sign, then exponent 15, whose last code is NaN. */
#define E4M3_HALF(sign)                                                                                                \
    sign 0.0f, sign 0x1p-9f, sign 0x2p-9f, sign 0x3p-9f, sign 0x4p-9f, sign 0x5p-9f, sign 0x6p-9f, sign 0x7p-9f,       \
        NORMAL_ROW(sign 0x1p-9f), NORMAL_ROW(sign 0x1p-8f), NORMAL_ROW(sign 0x1p-7f), NORMAL_ROW(sign 0x1p-6f),        \
        NORMAL_ROW(sign 0x1p-5f), NORMAL_ROW(sign 0x1p-4f), NORMAL_ROW(sign 0x1p-3f), NORMAL_ROW(sign 0x1p-2f),        \
        NORMAL_ROW(sign 0x1p-1f), NORMAL_ROW(sign 0x1p+0f), NORMAL_ROW(sign 0x1p+1f), NORMAL_ROW(sign 0x1p+2f),        \
        NORMAL_ROW(sign 0x1p+3f), NORMAL_ROW(sign 0x1p+4f), sign 256.0f, sign 288.0f, sign 320.0f, sign 352.0f,        \
        sign 384.0f, sign 416.0f, sign 448.0f, sign NAN

const float di_e4m3_table[256] = {E4M3_HALF(+), E4M3_HALF(-)};

const float di_e2m1_table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

uint8_t di_e4m3_encode(float value) {
    uint32_t bits = di_bits_from_f32(value);
    uint8_t sign = (uint8_t)((bits >> 24) & 0x80u);
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7f;
    if (magnitude >= 0x43e00000u) return sign | 0x7e; /* 448 and above */
    if (magnitude < 0x3c800000u)                      /* below 2^-6: multiples of 2^-9; 8 is the first normal code */
        return sign | (uint8_t)rintf(di_f32_from_bits(magnitude) * 512.0f);
    magnitude += 0x7ffffu + ((magnitude >> 20) & 1u); /* round 23 mantissa bits to 3, ties to even */
    return sign | (uint8_t)((magnitude >> 20) - ((127u - 7u) << 3));
}

uint8_t di_e2m1_encode(float value) {
    float a = fabsf(value);
    uint8_t sign = (uint8_t)((di_bits_from_f32(value) >> 28) & 8u);
    /* Borders between code i and i+1; a tie goes to the even code. */
    return sign |
           (uint8_t)((a > 0.25f) + (a >= 0.75f) + (a > 1.25f) + (a >= 1.75f) + (a > 2.5f) + (a >= 3.5f) + (a > 5.0f));
}

static float block_maximum(const float *x, size_t n, float floor_value) {
    float maximum = floor_value;
    for (size_t i = 0; i < n; i++) {
        float a = fabsf(x[i]);
        maximum = a > maximum ? a : maximum;
    }
    return maximum;
}

static float clamp(float value, float limit) {
    return value > limit ? limit : value < -limit ? -limit : value;
}

void di_quantise_q8_32(const float *x, size_t n, uint8_t *codes, uint8_t *scales) {
    for (size_t b = 0; b < n / 32; b++, x += 32, codes += 32) {
        scales[b] = di_p2ceil_byte(block_maximum(x, 32, 1e-4f) * (1.0f / 448.0f));
        float scale = di_e8m0_decode(scales[b]);
        for (size_t i = 0; i < 32; i++) codes[i] = di_e4m3_encode(clamp(x[i] / scale, 448.0f));
    }
}

void di_quantise_q4_32(const float *x, size_t n, uint8_t *codes, uint8_t *scales) {
    for (size_t b = 0; b < n / 32; b++, x += 32, codes += 32) {
        scales[b] = di_p2ceil_byte(block_maximum(x, 32, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
        float scale = di_e8m0_decode(scales[b]);
        for (size_t i = 0; i < 32; i++) codes[i] = di_e2m1_encode(clamp(x[i] / scale, 6.0f));
    }
}

void di_quantise_q4_16(const float *x, size_t n, uint8_t *codes, uint8_t *scales) {
    for (size_t b = 0; b < n / 16; b++, x += 16, codes += 16) {
        scales[b] = di_e4m3_encode(block_maximum(x, 16, 6.0f * 0x1p-9f) / 6.0f);
        float scale = di_e4m3_decode(scales[b]);
        for (size_t i = 0; i < 16; i++) codes[i] = di_e2m1_encode(clamp(x[i] / scale, 6.0f));
    }
}

void di_dequantise_q8_32(const uint8_t *codes, const uint8_t *scales, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) x[i] = di_e4m3_decode(codes[i]) * di_e8m0_decode(scales[i / 32]);
}

void di_dequantise_q4_32(const uint8_t *codes, const uint8_t *scales, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) x[i] = di_e2m1_decode(codes[i]) * di_e8m0_decode(scales[i / 32]);
}

void di_dequantise_q4_16(const uint8_t *codes, const uint8_t *scales, size_t n, float *x) {
    for (size_t i = 0; i < n; i++) x[i] = di_e2m1_decode(codes[i]) * di_e4m3_decode(scales[i / 16]);
}

void di_pack_nibbles(const uint8_t *codes, size_t n, uint8_t *packed) {
    for (size_t i = 0; i < n / 2; i++) packed[i] = (uint8_t)((codes[2 * i] & 15) | (codes[2 * i + 1] << 4));
}

void di_unpack_nibbles(const uint8_t *packed, size_t n, uint8_t *codes) {
    for (size_t i = 0; i < n / 2; i++) {
        codes[2 * i] = packed[i] & 15;
        codes[2 * i + 1] = packed[i] >> 4;
    }
}
