/* attention_avx2.c - the attention entry of the AVX2 table. */
#if defined(__x86_64__)
#include "backend/cpu/attention_body.h"
#endif
