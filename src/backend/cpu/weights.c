/* weights.c - weights as the CPU wants them: mapped bytes as they are, E2M1 matrices repacked, vectors widened. */
#include "backend/cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

uint64_t di_cpu_weight_bytes(di_weight_kind kind, di_dtype dtype, uint32_t rank, const uint64_t *shape) {
    uint64_t elements = 1;
    for (uint32_t i = 0; i < rank; i++) elements *= shape[i];
    if (kind == DI_WEIGHT_VECTOR) return elements * sizeof(float);
    if (kind == DI_WEIGHT_MATRIX && dtype == DI_DTYPE_I8 && rank == 2) {
        size_t out = (size_t)shape[0], in = (size_t)shape[1] * 2;
        return di_cpu_f4_tile_bytes(out, in) + di_cpu_f4_scale_bytes(out, in);
    }
    return 0;
}

/* The file's pages were read once for the repack and are not needed again. */
static void drop_pages(const void *data, uint64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)data + page - 1) / page * page, to = ((uintptr_t)data + bytes) / page * page;
    if (to > from) madvise((void *)from, to - from, MADV_DONTNEED);
}

static di_status check_scales(const di_tensor *scale, di_error *error) {
    const uint8_t *bytes = scale->data;
    const uint8_t *found = memchr(bytes, 255, scale->bytes);
    if (!found) return DI_OK;
    return di_fail(error, DI_ERR_CHECKPOINT, scale->name, "tensor %s: scale byte %llu is 255, which is NaN in E8M0",
                   scale->name, (unsigned long long)(found - bytes));
}

static di_status load_f4(di_weight *w, const di_tensor *tensor, const di_tensor *scale, di_error *error) {
    w->out = (size_t)tensor->shape[0];
    w->in = (size_t)tensor->shape[1] * 2;
    w->owned = di_aligned_alloc(di_cpu_f4_tile_bytes(w->out, w->in), 1);
    w->owned_scales = di_aligned_alloc(di_cpu_f4_scale_bytes(w->out, w->in), 1);
    if (!w->owned || !w->owned_scales)
        return di_fail(error, DI_ERR_MEMORY, tensor->name, "out of memory: cannot hold tensor %s", tensor->name);
    di_cpu_f4_repack(tensor->data, scale->data, w->out, w->in, w->owned, w->owned_scales);
    drop_pages(tensor->data, tensor->bytes);
    drop_pages(scale->data, scale->bytes);
    return DI_OK;
}

/* BF16 or F32 to owned fp32; an aligned F32 matrix is used where it is. */
static di_status load_values(di_weight *w, const di_tensor *tensor, di_error *error) {
    size_t n = w->out * w->in;
    if (tensor->dtype == DI_DTYPE_F32 && (uintptr_t)tensor->data % sizeof(float) == 0 && w->kind == DI_WEIGHT_MATRIX) {
        w->values = tensor->data;
        return DI_OK;
    }
    float *values = di_aligned_alloc(n, sizeof *values);
    if (!values)
        return di_fail(error, DI_ERR_MEMORY, tensor->name, "out of memory: cannot hold tensor %s", tensor->name);
    w->owned = (uint8_t *)values;
    w->values = values;
    const uint8_t *bytes = tensor->data;
    for (size_t i = 0; i < n; i++) {
        if (tensor->dtype == DI_DTYPE_F32) {
            memcpy(&values[i], bytes + i * 4, 4);
        } else {
            uint16_t code;
            memcpy(&code, bytes + i * 2, 2);
            values[i] = di_bf16_decode(code);
        }
    }
    return DI_OK;
}

static di_status load_into(di_weight *w, const di_tensor *tensor, const di_tensor *scale, di_error *error) {
    bool packed = tensor->dtype == DI_DTYPE_I8, f8 = tensor->dtype == DI_DTYPE_F8_E4M3;
    if ((packed || f8) && !scale)
        return di_fail(error, DI_ERR_CHECKPOINT, tensor->name, "tensor %s: its .scale tensor is missing", tensor->name);
    if (scale) {
        di_status status = check_scales(scale, error);
        if (status) return status;
    }
    w->dtype = tensor->dtype;
    w->out = tensor->rank > 1 ? (size_t)tensor->shape[0] : 1;
    w->in = (size_t)tensor->shape[tensor->rank - 1];
    if (w->kind == DI_WEIGHT_VECTOR) { /* any rank, flattened */
        w->in = w->out = 1;
        for (uint32_t i = 0; i < tensor->rank; i++) w->in *= (size_t)tensor->shape[i];
    }
    if (packed && w->kind == DI_WEIGHT_MATRIX) return load_f4(w, tensor, scale, error);
    if (w->kind != DI_WEIGHT_VECTOR && (f8 || tensor->dtype == DI_DTYPE_BF16)) {
        w->codes = tensor->data;
        w->scales = scale ? scale->data : NULL;
        return DI_OK;
    }
    if (w->kind != DI_WEIGHT_TABLE && (tensor->dtype == DI_DTYPE_F32 || tensor->dtype == DI_DTYPE_BF16))
        return load_values(w, tensor, error);
    return di_fail(error, DI_ERR_CHECKPOINT, tensor->name, "tensor %s: dtype %s cannot be used here", tensor->name,
                   di_dtype_name(tensor->dtype));
}

di_status di_cpu_load_weight(di_backend *backend, di_weight_kind kind, const di_tensor *tensor, const di_tensor *scale,
                             di_weight **weight, di_error *error) {
    *weight = NULL;
    di_weight *w = calloc(1, sizeof *w);
    if (!w) return di_fail(error, DI_ERR_MEMORY, tensor->name, "out of memory: cannot hold tensor %s", tensor->name);
    w->kind = kind;
    di_status status = load_into(w, tensor, scale, error);
    if (status) {
        di_cpu_free_weight(backend, w);
        return status;
    }
    *weight = w;
    return DI_OK;
}

void di_cpu_free_weight(di_backend *backend, di_weight *weight) {
    (void)backend;
    if (!weight) return;
    di_aligned_free(weight->owned);
    di_aligned_free(weight->owned_scales);
    free(weight);
}
