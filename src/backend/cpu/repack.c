/* repack.c - packed E2M1 into the tile form of kernels.h, done once at load. */
#include "backend/cpu/kernels.h"

#include <string.h>

enum { ROWS = 16, BLOCK = 32, TILE_BYTES = 256 };

size_t di_cpu_f4_tile_bytes(size_t out, size_t in) {
    return (out + ROWS - 1) / ROWS * (in / BLOCK) * TILE_BYTES;
}

size_t di_cpu_f4_scale_bytes(size_t out, size_t in) {
    return (out + ROWS - 1) / ROWS * (in / BLOCK) * ROWS;
}

/* A block of a row is 16 bytes: byte i holds k = 2i (low nibble) and 2i + 1. In the tile, k and k + 16 share a byte:
 * byte i gives the low nibbles of k = 2i, 2i + 1, byte i + 8 their high nibbles. */
static void repack_block(const uint8_t *packed, size_t row, uint8_t *tile) {
    for (size_t i = 0; i < 8; i++) {
        uint8_t low = packed[i], high = packed[i + 8];
        uint8_t *at = tile + i / 2 * 64 + row * 4 + i % 2 * 2;
        at[0] = (uint8_t)((low & 15) | (high << 4));
        at[1] = (uint8_t)((low >> 4) | (high & 0xf0));
    }
}

void di_cpu_f4_repack(const uint8_t *packed, const uint8_t *scales, size_t out, size_t in, uint8_t *tiles,
                      uint8_t *tile_scales) {
    size_t blocks = in / BLOCK;
    memset(tiles, 0, di_cpu_f4_tile_bytes(out, in));
    memset(tile_scales, 127, di_cpu_f4_scale_bytes(out, in));
    for (size_t n = 0; n < out; n++) {
        const uint8_t *row = packed + n * (in / 2);
        for (size_t b = 0; b < blocks; b++) {
            size_t tile = n / ROWS * blocks + b;
            repack_block(row + b * (BLOCK / 2), n % ROWS, tiles + tile * TILE_BYTES);
            tile_scales[tile * ROWS + n % ROWS] = scales[n * blocks + b];
        }
    }
}
