/* sha256.h - SHA-256 (FIPS 180-4), for golden row hashes in tests. */
#ifndef DI_TESTS_SUPPORT_SHA256_H
#define DI_TESTS_SUPPORT_SHA256_H

#include <stddef.h>

/* First `digits` lowercase hexadecimal digits (at most 64) and a terminating zero. */
void di_sha256_hex(const void *data, size_t length, char *out, size_t digits);

#endif
