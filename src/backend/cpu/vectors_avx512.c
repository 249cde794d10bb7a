/* vectors_avx512.c - the entries of the AVX-512 table that are no products, attention or index scores. */
#if defined(__x86_64__)
#include "backend/cpu/vectors_body.h"
#endif
