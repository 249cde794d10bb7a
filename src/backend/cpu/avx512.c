/* avx512.c - the table for AVX-512 F, BW, VL, DQ and VNNI. */
#include "backend/cpu/kernels.h"

#if defined(__x86_64__)
#include "backend/cpu/products.h"
#include "backend/cpu/vectors.h"

const di_cpu_kernels di_cpu_avx512 = {
    .name = "avx512",
    DI_CPU_PRODUCT_ENTRIES(avx512),
    DI_CPU_VECTOR_ENTRIES(avx512),
};
#endif
