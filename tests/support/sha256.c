/* sha256.c - see sha256.h. The round constants are the first 32 bits of the fractional parts of the cube roots of the
 * first 64 primes, the start values those of the square roots of the first 8 (FIPS 180-4, 4.2.2 and 5.3.3); both are
 * computed here. */
#include "support/sha256.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static uint32_t fraction(long double x) {
    return (uint32_t)((x - floorl(x)) * 4294967296.0L);
}

static void constants(uint32_t k[64], uint32_t h[8]) {
    int count = 0;
    for (int n = 2; count < 64; n++) {
        int prime = 1;
        for (int f = 2; f * f <= n; f++) prime &= n % f != 0;
        if (!prime) continue;
        if (count < 8) h[count] = fraction(sqrtl(n));
        k[count++] = fraction(cbrtl(n));
    }
}

static void compress(uint32_t h[8], const uint32_t k[64], const uint8_t *block) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | block[4 * i + 1] << 16 | block[4 * i + 2] << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(v, h, 32);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
        uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + k[i] + w[i];
        uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 28);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void di_sha256_hex(const void *data, size_t length, char *out, size_t digits) {
    uint32_t k[64], h[8];
    constants(k, h);
    const uint8_t *bytes = data;
    size_t left = length;
    for (; left >= 64; left -= 64, bytes += 64) compress(h, k, bytes);
    uint8_t tail[128] = {0};
    memcpy(tail, bytes, left);
    tail[left] = 0x80;
    size_t total = left < 56 ? 64 : 128;
    for (int i = 0; i < 8; i++) tail[total - 1 - i] = (uint8_t)((uint64_t)length * 8 >> 8 * i);
    for (size_t i = 0; i < total; i += 64) compress(h, k, tail + i);
    char hex[65];
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h[i]);
    memcpy(out, hex, digits);
    out[digits] = 0;
}
