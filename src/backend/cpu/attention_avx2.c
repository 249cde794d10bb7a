/* attention_avx2.c - the attention entry of the AVX2 table. */
#include "backend/cpu/attention_body.h"
