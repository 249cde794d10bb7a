/* digest.h - digests of values: the same number for the same values on every machine, however they were written down.
 *
 * A digest grows by one value at a time and depends on their order. It is XXH64: it tells things apart, and is no
 * protection against somebody who wants two of them to look alike.
 */
#ifndef DI_BASE_DIGEST_H
#define DI_BASE_DIGEST_H

#include <stdint.h>
#include <string.h>
#include <xxhash.h>

static inline uint64_t di_digest_u64(uint64_t digest, uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(value >> 8 * i);
    return XXH64(bytes, sizeof bytes, digest);
}

static inline uint64_t di_digest_double(uint64_t digest, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return di_digest_u64(digest, bits);
}

/* With the zero at its end, so that two texts are not taken for one. */
static inline uint64_t di_digest_text(uint64_t digest, const char *text) {
    return XXH64(text, strlen(text) + 1, digest);
}

#endif
