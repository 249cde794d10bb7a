/* op_memory.h - device memory, made-up weights and comparisons for tests that call single ops of the CPU backend.
 * Include it in the test's one file. Failures end the test. */
#ifndef DI_TESTS_SUPPORT_OP_MEMORY_H
#define DI_TESTS_SUPPORT_OP_MEMORY_H

#include "backend/cpu/cpu_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OP_BLOCKS = 512, OP_WEIGHTS = 64 };

/* Everything that one test asked of a backend; op_free gives it back. */
typedef struct op_memory {
    di_backend *backend;
    di_block *blocks[OP_BLOCKS];
    di_weight *weights[OP_WEIGHTS];
    size_t block_count, weight_count;
} op_memory;

static inline di_buffer op_room(op_memory *m, uint64_t bytes) {
    di_block *block = NULL;
    di_error error = {0};
    if (m->block_count == OP_BLOCKS || m->backend->ops->allocate(m->backend, bytes, &block, &error))
        fail_msg("no memory for %llu bytes", (unsigned long long)bytes);
    m->blocks[m->block_count++] = block;
    di_buffer buffer = {block, 0};
    m->backend->ops->fill(m->backend, buffer, 0xa5, bytes);
    return buffer;
}

static inline di_buffer op_put(op_memory *m, const void *data, uint64_t bytes) {
    di_buffer buffer = op_room(m, bytes);
    m->backend->ops->write(m->backend, buffer, data, bytes);
    return buffer;
}

/* Floats that hold bf16 values, as bf16. */
static inline di_buffer op_put_bf16(op_memory *m, const float *x, size_t n) {
    di_buffer buffer = op_room(m, n * sizeof(uint16_t));
    uint16_t *codes = di_cpu_at(buffer);
    for (size_t i = 0; i < n; i++) {
        codes[i] = di_bf16_encode(x[i]);
        if (di_bits_from_f32(di_bf16_decode(codes[i])) != di_bits_from_f32(x[i]))
            fail_msg("%g is no bf16", (double)x[i]);
    }
    return buffer;
}

static inline di_weight *op_weight(op_memory *m, di_weight_kind kind, const di_tensor *tensor) {
    di_weight *weight = NULL;
    di_error error = {0};
    if (m->weight_count == OP_WEIGHTS) fail_msg("too many weights");
    if (m->backend->ops->load_weight(m->backend, kind, tensor, NULL, &weight, &error)) fail_msg("%s", error.message);
    return m->weights[m->weight_count++] = weight;
}

/* A bf16 matrix [out][in]; values NULL = zeros. */
static inline di_weight *op_matrix(op_memory *m, const float *values, size_t out, size_t in) {
    float *zeros = values ? NULL : calloc(out * in, sizeof *zeros);
    di_buffer codes = op_put_bf16(m, values ? values : zeros, out * in);
    free(zeros);
    di_tensor tensor = {.name = "matrix",
                        .dtype = DI_DTYPE_BF16,
                        .rank = 2,
                        .shape = {out, in},
                        .data = di_cpu_at(codes),
                        .bytes = out * in * 2};
    return op_weight(m, DI_WEIGHT_MATRIX, &tensor);
}

static inline di_weight *op_vector(op_memory *m, const float *values, size_t n) {
    di_tensor tensor = {
        .name = "vector", .dtype = DI_DTYPE_F32, .rank = 1, .shape = {n}, .data = values, .bytes = n * sizeof *values};
    return op_weight(m, DI_WEIGHT_VECTOR, &tensor);
}

static inline void op_free(op_memory *m) {
    for (size_t i = 0; i < m->weight_count; i++) m->backend->ops->free_weight(m->backend, m->weights[i]);
    for (size_t i = 0; i < m->block_count; i++) m->backend->ops->release(m->backend, m->blocks[i]);
    m->block_count = m->weight_count = 0;
}

/* ---------------------------------------------------------------- comparisons, by bits */

static inline void expect_f32(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (di_bits_from_f32(got[i]) != di_bits_from_f32(want[i]))
            fail_msg("%s, element %zu of %zu: got %.9g, golden %.9g", what, i, n, (double)got[i], (double)want[i]);
}

static inline void expect_bf16(const char *what, const uint16_t *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (di_bits_from_f32(di_bf16_decode(got[i])) != di_bits_from_f32(want[i]))
            fail_msg("%s, element %zu of %zu: got %.9g, golden %.9g", what, i, n, (double)di_bf16_decode(got[i]),
                     (double)want[i]);
}

/* Stored entries as values. */
static inline void decode_window(const uint8_t *entry, size_t d, float *out) {
    di_dequantise_q8_32(entry, entry + d, d, out);
}

static inline void decode_packed(const uint8_t *entry, size_t n, bool global, float *out) {
    uint8_t *codes = malloc(n);
    assert_non_null(codes);
    di_unpack_nibbles(entry, n, codes);
    if (global)
        di_dequantise_q4_16(codes, entry + n / 2, n, out);
    else
        di_dequantise_q4_32(codes, entry + n / 2, n, out);
    free(codes);
}

#endif
