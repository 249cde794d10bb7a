/* tensor.c - names and sizes of element types. */
#include "tensor/tensor.h"

#include <stdbool.h>
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

/* Bytes looked at between two decisions: long enough to vectorise, short enough to find the spot again. */
enum { SCAN_BLOCK = 4096 };

static bool is_nonfinite(const uint8_t *at, di_dtype dtype) {
    uint16_t half;
    uint32_t word;
    switch (dtype) {
    case DI_DTYPE_F8_E8M0:
        return *at == 255;
    case DI_DTYPE_F8_E4M3:
        return (*at & 0x7f) == 0x7f;
    case DI_DTYPE_BF16:
        memcpy(&half, at, sizeof half);
        return (half & 0x7f80) == 0x7f80;
    case DI_DTYPE_F16:
        memcpy(&half, at, sizeof half);
        return (half & 0x7c00) == 0x7c00;
    case DI_DTYPE_F32:
        memcpy(&word, at, sizeof word);
        return (word & 0x7f800000u) == 0x7f800000u;
    default:
        return false;
    }
}

/* One loop for each type, with a constant step, so that the compiler can vectorise it. */
static bool block_has_nonfinite(const uint8_t *at, size_t bytes, di_dtype dtype) {
    unsigned bad = 0;
#define SCAN(TYPE, SIZE)                                                                                               \
    case TYPE:                                                                                                         \
        for (size_t i = 0; i < bytes; i += (SIZE)) bad |= is_nonfinite(at + i, TYPE);                                  \
        break
    switch (dtype) {
        SCAN(DI_DTYPE_F8_E8M0, 1);
        SCAN(DI_DTYPE_F8_E4M3, 1);
        SCAN(DI_DTYPE_BF16, 2);
        SCAN(DI_DTYPE_F16, 2);
        SCAN(DI_DTYPE_F32, 4);
    default:
        break;
    }
#undef SCAN
    return bad != 0;
}

uint64_t di_tensor_first_nonfinite(const di_tensor *tensor) {
    const uint8_t *data = tensor->data;
    size_t size = di_dtype_size(tensor->dtype);
    for (uint64_t at = 0; data && at < tensor->bytes; at += SCAN_BLOCK) {
        uint64_t n = tensor->bytes - at < SCAN_BLOCK ? tensor->bytes - at : SCAN_BLOCK;
        if (!block_has_nonfinite(data + at, n, tensor->dtype)) continue;
        for (uint64_t i = at; i < at + n; i += size)
            if (is_nonfinite(data + i, tensor->dtype)) return i;
    }
    return tensor->bytes;
}
