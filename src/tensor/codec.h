/* codec.h - number formats, bit-exact ([4.1, 4.2] of docs/model.md; golden: codec.*, fq.*, packed.*).
 *
 *   BF16  upper half of an fp32                       E4M3  s eeee mmm, bias 7, no inf, 0x7f/0xff NaN, max 448
 *   E8M0  b -> 2^(b-127), 255 NaN, 0 -> 2^-127        E2M1  s mmm, magnitudes 0 .5 1 1.5 2 3 4 6
 *
 * All encoders round to nearest even and keep the sign of zero. Quantisers work on blocks of one row; n is a multiple
 * of the block. Input values are bf16 values held as fp32; NaN and infinity are the caller's business (the engine
 * refuses them before they get here). Pure functions, any thread.
 */
#ifndef DI_TENSOR_CODEC_H
#define DI_TENSOR_CODEC_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline float di_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t di_bits_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float di_bf16_decode(uint16_t code) {
    return di_f32_from_bits((uint32_t)code << 16);
}

/* NaN becomes 0x7fc0. */
static inline uint16_t di_bf16_encode(float value) {
    uint32_t bits = di_bits_from_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float di_bf16_round(float value) {
    return di_bf16_decode(di_bf16_encode(value));
}

extern const float di_e4m3_table[256];
extern const float di_e2m1_table[16];

static inline float di_e4m3_decode(uint8_t code) {
    return di_e4m3_table[code];
}
static inline float di_e2m1_decode(uint8_t code) {
    return di_e2m1_table[code & 15];
}
static inline float di_e8m0_decode(uint8_t code) {
    return code == 255 ? di_f32_from_bits(0x7fc00000u) : di_f32_from_bits(code ? (uint32_t)code << 23 : 0x00400000u);
}

uint8_t di_e4m3_encode(float value); /* magnitudes above 448 become 448 */
uint8_t di_e2m1_encode(float value); /* magnitudes above 6 become 6 */

/* E8M0 byte of the smallest power of two >= value; value > 0 and normal. */
static inline uint8_t di_p2ceil_byte(float value) {
    uint32_t bits = di_bits_from_f32(value);
    return (uint8_t)((bits >> 23) + ((bits & 0x7fffffu) != 0));
}

/* The three quantisers. codes: one code a byte, [n]; scales: [n / block]. */
void di_quantise_q8_32(const float *x, size_t n, uint8_t *codes, uint8_t *scales); /* E4M3, E8M0 per 32 */
void di_quantise_q4_32(const float *x, size_t n, uint8_t *codes, uint8_t *scales); /* E2M1, E8M0 per 32 */
void di_quantise_q4_16(const float *x, size_t n, uint8_t *codes, uint8_t *scales); /* E2M1, E4M3 per 16 */
void di_dequantise_q8_32(const uint8_t *codes, const uint8_t *scales, size_t n, float *x);
void di_dequantise_q4_32(const uint8_t *codes, const uint8_t *scales, size_t n, float *x);
void di_dequantise_q4_16(const uint8_t *codes, const uint8_t *scales, size_t n, float *x);

void di_pack_nibbles(const uint8_t *codes, size_t n, uint8_t *packed); /* n even; low nibble = even channel */
void di_unpack_nibbles(const uint8_t *packed, size_t n, uint8_t *codes);

#endif
