/* index_avx512.c - the index score entry of the AVX-512 table. */
#if defined(__x86_64__)
#include "backend/cpu/index_body.h"
#endif
