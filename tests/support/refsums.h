/* refsums.h - a kernel table with reference sums, for tests.
 *
 * Every sum of products is formed in double, added in the fixed pairwise order tree_sum (while n > 1: h = (n + 1) / 2;
 * p[i] += p[h + i] for i < n - h; n = h) and rounded once to fp32; elementary functions are libm's in double, rounded
 * to fp32; single fp32 operations stay fp32. With it the module ops reproduce the golden "ref" arrays bit for bit.
 */
#ifndef DI_TESTS_SUPPORT_REFSUMS_H
#define DI_TESTS_SUPPORT_REFSUMS_H

#include "backend/cpu/kernels.h"

extern const di_cpu_kernels di_refsums;

#endif
