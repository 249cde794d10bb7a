/* tensor.h - element types and views of stored tensors. Views borrow; they never own bytes. */
#ifndef DI_TENSOR_TENSOR_H
#define DI_TENSOR_TENSOR_H

#include <stddef.h>
#include <stdint.h>

typedef enum di_dtype {
    DI_DTYPE_F32,
    DI_DTYPE_BF16,
    DI_DTYPE_F16,
    DI_DTYPE_F8_E4M3,
    DI_DTYPE_F8_E8M0,
    DI_DTYPE_I8, /* in checkpoints: two packed E2M1 codes a byte, low nibble = even channel */
    DI_DTYPE_U8,
    DI_DTYPE_I32,
    DI_DTYPE_I64,
    DI_DTYPE_COUNT
} di_dtype;

const char *di_dtype_name(di_dtype dtype); /* safetensors spelling: "F8_E4M3" */
size_t di_dtype_size(di_dtype dtype);      /* bytes per element */
/* DI_DTYPE_COUNT when the name is unknown. */
di_dtype di_dtype_from_name(const char *name, size_t length);

enum { DI_MAX_RANK = 4 };

typedef struct di_tensor {
    const char *name;
    di_dtype dtype;
    uint32_t rank;
    uint64_t shape[DI_MAX_RANK]; /* row-major */
    const void *data;            /* may be unaligned: read with memcpy or byte loads */
    uint64_t bytes;
} di_tensor;

/* Offset in bytes of the first element that is no finite number (E8M0 255, E4M3 NaN, BF16, F16 or F32 infinity or NaN);
 * `bytes` if there is none. Integer types have none. */
uint64_t di_tensor_first_nonfinite(const di_tensor *tensor);

#endif
