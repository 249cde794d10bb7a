/* vectors_avx2.c - the non-product entries of the AVX2 table. */
#include "backend/cpu/vectors_body.h"
