/* fingerprint.c - see fingerprint.h. */
#include "cache/fingerprint.h"

#include <string.h>

enum { BLOCK_BYTES = 128, ROUNDS = 12 };

static const uint64_t start[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

static const uint8_t order[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static uint64_t rotate(uint64_t x, int bits) {
    return x >> bits | x << (64 - bits);
}

static void mix(uint64_t *v, int a, int b, int c, int d, uint64_t x, uint64_t y) {
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 32);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 24);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 63);
}

static uint64_t word(const uint8_t *from) {
    uint64_t value = 0;
    for (int i = 7; i >= 0; i--) value = value << 8 | from[i];
    return value;
}

static void compress(uint64_t h[8], const uint8_t block[BLOCK_BYTES], uint64_t bytes, int last) {
    uint64_t v[16], m[16];
    for (int i = 0; i < 16; i++) m[i] = word(block + 8 * i);
    memcpy(v, h, 8 * sizeof *v);
    memcpy(v + 8, start, sizeof start);
    v[12] ^= bytes;
    if (last) v[14] = ~v[14];
    for (int r = 0; r < ROUNDS; r++) {
        const uint8_t *s = order[r % 10];
        for (int i = 0; i < 4; i++) mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) h[i] ^= v[i] ^ v[i + 8];
}

typedef struct hash {
    uint64_t h[8], bytes;
    uint8_t block[BLOCK_BYTES];
    size_t filled;
} hash;

static void update(hash *s, const uint8_t *from, size_t bytes) {
    while (bytes) {
        if (s->filled == BLOCK_BYTES) { /* more follows, so this block is not the last */
            compress(s->h, s->block, s->bytes += BLOCK_BYTES, 0);
            s->filled = 0;
        }
        size_t piece = BLOCK_BYTES - s->filled < bytes ? BLOCK_BYTES - s->filled : bytes;
        memcpy(s->block + s->filled, from, piece);
        s->filled += piece;
        from += piece;
        bytes -= piece;
    }
}

void di_blake2b_16(const void *first, size_t first_bytes, const void *second, size_t second_bytes,
                   uint8_t out[DI_FINGERPRINT]) {
    hash s = {.bytes = 0};
    memcpy(s.h, start, sizeof start);
    s.h[0] ^= 0x01010000 ^ DI_FINGERPRINT; /* no key, sequential */
    update(&s, first, first_bytes);
    update(&s, second, second_bytes);
    memset(s.block + s.filled, 0, BLOCK_BYTES - s.filled);
    compress(s.h, s.block, s.bytes + s.filled, 1);
    for (int i = 0; i < DI_FINGERPRINT; i++) out[i] = (uint8_t)(s.h[i / 8] >> 8 * (i % 8));
}

void di_fingerprint_root(uint64_t salt, uint8_t out[DI_FINGERPRINT]) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(salt >> 8 * i);
    di_blake2b_16(bytes, sizeof bytes, NULL, 0, out);
}

void di_fingerprint_next(const uint8_t before[DI_FINGERPRINT], const int32_t *ids, size_t count,
                         uint8_t out[DI_FINGERPRINT]) {
    uint8_t first[DI_FINGERPRINT];
    memcpy(first, before, sizeof first);
    di_blake2b_16(first, sizeof first, ids, count * sizeof *ids, out);
}
