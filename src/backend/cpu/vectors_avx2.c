/* vectors_avx2.c - the entries of the AVX2 table that are no products, attention or index scores. */
#if defined(__x86_64__)
#include "backend/cpu/vectors_body.h"
#endif
