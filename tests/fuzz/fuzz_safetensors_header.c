/* needs: checkpoint tensor base */
/* A shard's first bytes: parsing ends in success or in an error with a message. The first two bytes say how large the
 * file claims to be, in units of 64 bytes; then either a whole shard, or (first byte odd) JSON that gets its length
 * put before it, so that mutations reach the entries. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    uint64_t file_bytes = 64 * (uint64_t)(data[0] | data[1] << 8);
    bool wrap = data[0] & 1;
    size_t length = size - 2;
    uint8_t *shard = malloc(length + 8);
    if (!shard) return 0;
    uint8_t *at = shard;
    for (int i = 0; wrap && i < 8; i++) *at++ = (uint8_t)(length >> (8 * i));
    memcpy(at, data + 2, length);
    if (wrap) length += 8;
    di_error error = {0};
    di_status status = di_safetensors_check_header("fuzz.safetensors", shard, length, file_bytes, &error);
    if (status != DI_OK && (status != DI_ERR_CHECKPOINT || error.message[0] == 0)) abort();
    free(shard);
    return 0;
}
