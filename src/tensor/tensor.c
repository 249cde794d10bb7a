/* tensor.c - names and sizes of element types. */
#include "tensor/tensor.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[DI_DTYPE_COUNT] = {
    [DI_DTYPE_F32] = {"F32", 4},         [DI_DTYPE_BF16] = {"BF16", 2},       [DI_DTYPE_F16] = {"F16", 2},
    [DI_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [DI_DTYPE_F8_E8M0] = {"F8_E8M0", 1}, [DI_DTYPE_I8] = {"I8", 1},
    [DI_DTYPE_U8] = {"U8", 1},           [DI_DTYPE_I32] = {"I32", 4},         [DI_DTYPE_I64] = {"I64", 8},
};

const char *di_dtype_name(di_dtype dtype) {
    return (unsigned)dtype < DI_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

size_t di_dtype_size(di_dtype dtype) {
    return (unsigned)dtype < DI_DTYPE_COUNT ? dtypes[dtype].size : 0;
}

di_dtype di_dtype_from_name(const char *name, size_t length) {
    for (int i = 0; i < DI_DTYPE_COUNT; i++)
        if (strlen(dtypes[i].name) == length && memcmp(dtypes[i].name, name, length) == 0) return (di_dtype)i;
    return DI_DTYPE_COUNT;
}
