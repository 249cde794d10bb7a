/* index_avx2.c - the index score entry of the AVX2 table. */
#include "backend/cpu/index_body.h"
