/* golden.h - reads golden arrays (manifest.json + raw little-endian files) for tests.
 *
 * A golden folder holds manifest.json {"arrays": {name: {file, offset, dtype, shape, note}}}. Arrays are copied out, so
 * they are aligned. Failures end the test with a message (cmocka's fail_msg).
 */
#ifndef DI_TESTS_SUPPORT_GOLDEN_H
#define DI_TESTS_SUPPORT_GOLDEN_H

#include "base/json.h"

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
/* A JSON file of the folder; owned by the di_golden. */
const di_json *di_golden_json(di_golden *golden, const char *name);
/* The whole numbers of an array to ids [most]; returns how many. */
size_t di_golden_ids(const di_json *array, int32_t *ids, size_t most);
int di_golden_has(di_golden *golden, const char *name);

#endif
