/* attention_avx512.c - the attention entry of the AVX-512 table. */
#include "backend/cpu/attention_body.h"
