/* fingerprint.h - a collision-resistant name of a beginning of token ids (BLAKE2b, RFC 7693, 16 bytes).
 *
 * The keys by which records are found are fast and can be made to collide on purpose. What a record holds depends on
 * every id before it, so it carries the fingerprint of them all, chained block by block from the namespace's root:
 *   root(salt) = H(salt)      next(f, ids) = H(f, ids)
 * Any thread.
 */
#ifndef DI_CACHE_FINGERPRINT_H
#define DI_CACHE_FINGERPRINT_H

#include <stddef.h>
#include <stdint.h>

enum { DI_FINGERPRINT = 16 };

void di_fingerprint_root(uint64_t salt, uint8_t out[DI_FINGERPRINT]);
/* `out` may be `before`. */
void di_fingerprint_next(const uint8_t before[DI_FINGERPRINT], const int32_t *ids, size_t count,
                         uint8_t out[DI_FINGERPRINT]);
/* The hash itself: first piece, then second piece. */
void di_blake2b_16(const void *first, size_t first_bytes, const void *second, size_t second_bytes,
                   uint8_t out[DI_FINGERPRINT]);

#endif
