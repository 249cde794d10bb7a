/* attention_avx512.c - the attention entry of the AVX-512 table. */
#if defined(__x86_64__)
#include "backend/cpu/attention_body.h"
#endif
