/* philox.h - Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Stateless. */
#ifndef DI_BASE_PHILOX_H
#define DI_BASE_PHILOX_H

#include <stdint.h>

void di_philox4x32(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

#endif
