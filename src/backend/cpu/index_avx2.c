/* index_avx2.c - the index score entry of the AVX2 table. */
#if defined(__x86_64__)
#include "backend/cpu/index_body.h"
#endif
