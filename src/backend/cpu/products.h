/* products.h - AVX2 and AVX-512 forms of the four products of kernels.h. Bytes equal scalar.c on every input. */
#ifndef DI_BACKEND_CPU_PRODUCTS_H
#define DI_BACKEND_CPU_PRODUCTS_H

#include "backend/cpu/kernels.h"

#define DI_CPU_DECLARE_PRODUCTS(isa)                                                                                   \
    void di_cpu_product_f8_##isa(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0,          \
                                 size_t n1, float *y, size_t y_stride, float *scratch);                                \
    void di_cpu_product_f4_##isa(const di_cpu_f4 *w, const di_f4_block *x, const float *values, size_t rows,           \
                                 size_t n0, size_t n1, float *y, size_t y_stride);                                     \
    void di_cpu_product_bf16_##isa(const uint8_t *w, size_t in, const float *x, size_t x_stride, size_t rows,          \
                                   size_t n0, size_t n1, float *y, size_t y_stride);                                   \
    void di_cpu_product_f32_##isa(const float *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,  \
                                  size_t n1, float *y, size_t y_stride);

DI_CPU_DECLARE_PRODUCTS(avx2)
DI_CPU_DECLARE_PRODUCTS(avx512)

#define DI_CPU_PRODUCT_ENTRIES(isa)                                                                                    \
    .product_f8 = di_cpu_product_f8_##isa, .product_f4 = di_cpu_product_f4_##isa,                                      \
    .product_bf16 = di_cpu_product_bf16_##isa, .product_f32 = di_cpu_product_f32_##isa

#endif
