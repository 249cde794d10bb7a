/* math.h - elementary functions in the path of a logit (docs/numerics.md rule 9).
 *
 * Built from + - x / sqrt, fma and bit operations only, so that scalar, AVX2 and AVX-512 forms give equal bits. The
 * scalar forms here define the bits; vector forms live beside the kernels and repeat the operations one by one.
 * docs/numerics.md writes every function down operation by operation.
 */
#ifndef DI_BACKEND_CPU_MATH_H
#define DI_BACKEND_CPU_MATH_H

#include <stdint.h>

float di_expf(float x);           /* 0 below about -104, +inf above about 88.73; error < 1 ulp on the normal range */
float di_log1p_expf(float x);     /* log1p(exp(x)) for x <= 20 */
float di_logf(float x);           /* x > 0 */
double di_log_double(double x);   /* x > 0, for the sampler's noise; error < 1 ulp */
double di_log1p_double(double x); /* x > -1, for the sampler's noise; error < 1 ulp */
float di_sigmoidf(float x);
void di_sincos(double angle, double *sine, double *cosine); /* |angle| < 2^30, full range reduction */

#endif
