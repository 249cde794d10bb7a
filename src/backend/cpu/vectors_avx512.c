/* vectors_avx512.c - the non-product entries of the AVX-512 table. */
#include "backend/cpu/vectors_body.h"
