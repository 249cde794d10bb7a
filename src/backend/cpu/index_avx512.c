/* index_avx512.c - the index score entry of the AVX-512 table. */
#include "backend/cpu/index_body.h"
