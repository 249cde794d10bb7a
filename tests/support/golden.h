/* golden.h - reads golden arrays (manifest.json + raw little-endian files) for tests.
 *
 * A golden folder holds manifest.json {"arrays": {name: {file, offset, dtype, shape, note}}}. Arrays are copied out, so
 * they are aligned. Failures end the test with a message (cmocka's fail_msg).
 */
#ifndef DI_TESTS_SUPPORT_GOLDEN_H
#define DI_TESTS_SUPPORT_GOLDEN_H

#include <stddef.h>
#include <stdint.h>

typedef struct di_golden di_golden;

typedef struct di_golden_array {
    char dtype[8]; /* "float32", "int32", "int64", "uint8", "uint16" */
    size_t rank, shape[6], count, bytes;
    const void *data; /* owned by the di_golden */
} di_golden_array;

di_golden *di_golden_open(const char *folder); /* DI_TEST_DATA "/nano/golden", DI_TEST_DATA "/tiny_golden" */
void di_golden_close(di_golden *golden);
di_golden_array di_golden_get(di_golden *golden, const char *name);
const float *di_golden_f32(di_golden *golden, const char *name, size_t *count); /* checks the dtype */
int di_golden_has(di_golden *golden, const char *name);

#endif
