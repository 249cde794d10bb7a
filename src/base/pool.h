/* pool.h - the one thread pool.
 *
 * An op cuts its work into tiles whose borders depend on the op alone; threads claim tiles one by one, each of its own
 * part of them first (thread t of T has the t-th of T parts) and then of the others', so a slow or pre-empted thread
 * delays only the tile it holds. Workers spin shortly after a run and then block, so an idle process
 * costs nothing. The calling thread takes part; `threads` counts it. One run at a time; which thread calls may change
 * from run to run (the one that computes steps, and between steps the one that drafts), if the first run happened
 * before the second.
 *
 * Every worker asserts round-to-nearest and no flush-to-zero at its start (docs/numerics.md rule 10).
 */
#ifndef DI_BASE_POOL_H
#define DI_BASE_POOL_H

#include "base/status.h"

typedef struct di_pool di_pool;

/* Work on tile `tile`; `worker` is 0 .. threads-1 and names the caller's scratch memory. */
typedef void (*di_pool_tile)(void *arg, size_t tile, int worker);

/* threads: 1 .. 1024. */
di_status di_pool_new(int threads, di_pool **pool, di_error *error);
void di_pool_free(di_pool *pool);
int di_pool_threads(const di_pool *pool);

/* Runs work(arg, t, worker) once for every t in [0, tiles) and returns when all are done. Allocates nothing. */
void di_pool_run(di_pool *pool, size_t tiles, di_pool_tile work, void *arg);

/* Time since the pool was made: of the workers on tiles, and of the caller waiting for the workers' last tiles. Any
 * thread. */
typedef struct di_pool_times {
    int64_t workers_busy_ns, caller_waits_ns;
} di_pool_times;
void di_pool_get_times(const di_pool *pool, di_pool_times *times);

/* Cores this process may use (affinity and cgroup quota), at least 1. */
int di_usable_cores(void);

/* True if this thread rounds to nearest and does not flush subnormals to zero; sets the mode right first. */
bool di_float_mode_ok(void);

#endif
