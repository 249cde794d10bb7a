/* cpu.h - the CPU backend: module ops composed of the functions of one kernel table.
 *
 * Weights stay in their stored precision; E2M1 matrices are repacked once (kernels.h). Ops run on the calling thread
 * and the pool's workers and are finished when they return.
 */
#ifndef DI_BACKEND_CPU_CPU_H
#define DI_BACKEND_CPU_CPU_H

#include "backend/ops.h"

struct di_cpu_kernels;

/* isa: "scalar", "avx2", "avx512" or "auto" (the best one that this machine has and whose self-test passes). The chosen
 * table is compared with the scalar one on a hundred vectors; if they differ, auto falls back with a warning in *note
 * (may be NULL) and a forced one fails. The pool is borrowed. */
di_status di_cpu_backend_new(const char *isa, di_pool *pool, char note[256], di_backend **backend, di_error *error);

/* With a given table (tests: the reference sums). */
di_status di_cpu_backend_with_kernels(const struct di_cpu_kernels *kernels, di_pool *pool, di_backend **backend,
                                      di_error *error);

/* True if this machine can run the table `isa`. */
bool di_cpu_can(const char *isa);
/* Compares the table `isa`, which this machine can run, with the scalar one on `vectors` random vectors of every entry.
 * Returns the number of bytes that differ and the first entry concerned (NULL = none; "memory" if there was none). */
uint64_t di_cpu_compare(const char *isa, uint64_t seed, uint32_t vectors, const char **what);

/* Bytes that loading this weight will hold beyond the mapped file (memory plan). */
uint64_t di_cpu_weight_bytes(di_weight_kind kind, di_dtype dtype, uint32_t rank, const uint64_t *shape);

#endif
