/* avx2.c - the table for AVX2, FMA and F16C. */
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include "backend/cpu/products.h"
#include "backend/cpu/vectors.h"

const di_cpu_kernels di_cpu_avx2 = {
    .name = "avx2",
    DI_CPU_PRODUCT_ENTRIES(avx2),
    DI_CPU_VECTOR_ENTRIES(avx2),
};
#endif
