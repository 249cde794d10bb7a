/* pool.c - the thread pool; see pool.h.
 *
 * One run is published as (work, arg, tiles), then a range of tiles for every thread, then `generation` + 1. A thread
 * claims a tile by taking 1 from `remaining` of a range, its own until that is empty, then the others'; only a positive
 * old value is a claim. So the same rows or weights come to the same thread in one run after the other, as far as the
 * threads keep pace, and lie in its core's caches; cores that share no cache pay dearly for anything else. The run's
 * description is read after a claim and before the tile is counted in `done`: while a claimed tile is not counted the
 * run cannot end, so the description cannot change. A worker that wakes late finds nothing to claim, or claims from the
 * run that is current by then; either is right.
 *
 * Waiting is spinning for a few microseconds and then a futex. A thread that blocks leaves its core to whoever else
 * wants it, which with a busy neighbour is often the very worker that is waited for.
 */
#include "base/pool.h"

#include "base/clock.h"
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_THREADS = 1024,
    WORKER_SPIN_NS = 50000, /* bridges the gap between two runs of a step */
    CALLER_SPIN_NS = 20000, /* the rest of a tile on a core that was not lost */
    PAUSES_PER_LOOK = 16,
    /* The caller goes back to sleep this often. A core that becomes idle looks for a thread that waits for another
     * core; one that ran there less than half a millisecond ago is passed over, so the first look is often too early.
     */
    CALLER_SLEEP_NS = 600000,
    /* A worker offers its core this often, while it holds no tile: a neighbour that waits for the core then takes it
     * here and not in the middle of a tile, where everybody would wait for the worker to come back. */
    WORKER_YIELD_NS = 500000,
};

/* Tiles [end - remaining, end) are not claimed yet. */
typedef struct tile_range {
    _Alignas(64) _Atomic int64_t remaining;
    size_t end;
} tile_range;

typedef struct worker {
    di_pool *pool;
    pthread_t thread;
    int index; /* 1 .. threads-1; 0 is the calling thread */
    _Atomic int64_t busy_ns;
} worker;

struct di_pool {
    /* Written by the caller between runs. */
    di_pool_tile work;
    void *arg;
    size_t tiles;
    int threads, running; /* running: worker threads that exist */
    int64_t worker_spin_ns, caller_spin_ns;
    worker *workers;                          /* [threads - 1] */
    tile_range *ranges;                       /* [threads] */
    _Alignas(64) _Atomic uint32_t generation; /* futex: workers sleep on it */
    _Atomic int sleeping;
    _Atomic bool stop;
    _Alignas(64) _Atomic size_t done;
    _Atomic uint32_t caller_sleeps; /* futex: the caller sleeps on it while it is 1 */
    _Atomic uint32_t started;       /* futex: workers that have checked their float mode */
    _Atomic bool float_mode_bad;
    _Atomic int64_t caller_waits_ns;
};

/* Sleeps while *word is `value`, at most timeout_ns (below one second; 0 = without limit). May return early. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value, long timeout_ns) {
    struct timespec timeout = {.tv_nsec = timeout_ns};
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, timeout_ns ? &timeout : NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word, int count) {
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

static void spin_pause(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ------------------------------------------------------------------------------------------------------- tiles */

/* Works until no tile is left to claim. busy_ns (may be NULL) counts the time from the first claim to the last tile. */
static void work_tiles(di_pool *pool, int index, _Atomic int64_t *busy_ns) {
    size_t finished = 0, tiles = 0;
    int64_t start = 0;
    for (int i = 0; i < pool->threads; i++) {
        tile_range *range = &pool->ranges[(index + i) % pool->threads];
        for (;;) {
            if (atomic_load_explicit(&range->remaining, memory_order_relaxed) <= 0) break;
            int64_t left = atomic_fetch_sub_explicit(&range->remaining, 1, memory_order_acquire);
            if (left <= 0) break;
            if (finished == 0) {
                tiles = pool->tiles;
                if (busy_ns) start = di_now_ns();
            }
            pool->work(pool->arg, range->end - (size_t)left, index);
            finished++;
        }
    }
    if (finished == 0) return;
    if (busy_ns) atomic_fetch_add_explicit(busy_ns, di_now_ns() - start, memory_order_relaxed);
    /* From here on a new run may begin: only atomics may be touched. */
    bool last = atomic_fetch_add(&pool->done, finished) + finished == tiles;
    if (last && index != 0 && atomic_exchange(&pool->caller_sleeps, 0) == 1) futex_wake(&pool->caller_sleeps, 1);
}

/* ----------------------------------------------------------------------------------------------------- workers */

/* Returns the generation that follows `seen`. */
static uint32_t wait_for_run(di_pool *pool, uint32_t seen) {
    int64_t until = 0;
    for (;;) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            uint32_t generation = atomic_load_explicit(&pool->generation, memory_order_acquire);
            if (generation != seen) return generation;
            spin_pause();
        }
        int64_t now = di_now_ns();
        if (until == 0) until = now + pool->worker_spin_ns;
        if (now >= until) break;
    }
    atomic_fetch_add(&pool->sleeping, 1);
    uint32_t generation;
    while ((generation = atomic_load(&pool->generation)) == seen) futex_wait(&pool->generation, seen, 0);
    atomic_fetch_sub(&pool->sleeping, 1);
    return generation;
}

static void *worker_main(void *argument) {
    worker *self = argument;
    di_pool *pool = self->pool;
    if (!di_float_mode_ok()) atomic_store(&pool->float_mode_bad, true);
    atomic_fetch_add(&pool->started, 1);
    futex_wake(&pool->started, 1);
    uint32_t seen = 0;
    int64_t last_yield_ns = di_now_ns();
    for (;;) {
        seen = wait_for_run(pool, seen);
        if (atomic_load(&pool->stop)) return NULL;
        work_tiles(pool, self->index, &self->busy_ns);
        int64_t now = di_now_ns();
        if (now - last_yield_ns > WORKER_YIELD_NS) {
            sched_yield();
            last_yield_ns = now;
        }
    }
}

static di_status start_workers(di_pool *pool, di_error *error) {
    int failure = 0;
    for (int i = 0; i < pool->threads - 1 && failure == 0; i++) {
        pool->workers[i] = (worker){.pool = pool, .index = i + 1};
        char name[24];
        snprintf(name, sizeof name, "di-worker-%d", i + 1);
        failure = di_thread_start(&pool->workers[i].thread, name, worker_main, &pool->workers[i]);
        if (failure == 0) pool->running++;
    }
    uint32_t started;
    while ((started = atomic_load(&pool->started)) < (uint32_t)pool->running) futex_wait(&pool->started, started, 0);
    if (failure) {
        return di_fail_errno(error, DI_ERR_MEMORY, "threads", failure, "cannot start thread %d of %d",
                             pool->running + 2, pool->threads);
    }
    if (atomic_load(&pool->float_mode_bad)) {
        return di_fail(error, DI_ERR_INTERNAL, NULL,
                       "a thread does not round to nearest or flushes subnormal numbers to zero");
    }
    return DI_OK;
}

/* -------------------------------------------------------------------------------------------------- life cycle */

di_status di_pool_new(int threads, di_pool **out, di_error *error) {
    *out = NULL;
    if (threads < 1 || threads > MAX_THREADS) {
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "threads", "threads is %d; it must be 1 .. %d", threads,
                       MAX_THREADS);
    }
    di_pool *pool = aligned_alloc(64, (sizeof *pool + 63) / 64 * 64);
    worker *workers = calloc((size_t)threads, sizeof *workers);
    tile_range *ranges = aligned_alloc(64, (size_t)threads * sizeof *ranges);
    if (!pool || !workers || !ranges) {
        free(pool);
        free(workers);
        free(ranges);
        return di_fail(error, DI_ERR_MEMORY, "threads", "out of memory for %d threads", threads);
    }
    *pool = (di_pool){.threads = threads, .workers = workers, .ranges = ranges};
    for (int i = 0; i < threads; i++) ranges[i] = (tile_range){.remaining = 0};
    /* With more threads than cores a spinning thread keeps the core from one that has work. */
    if (threads <= di_usable_cores()) {
        pool->worker_spin_ns = WORKER_SPIN_NS;
        pool->caller_spin_ns = CALLER_SPIN_NS;
    }
    di_status status = start_workers(pool, error);
    if (status != DI_OK) {
        di_pool_free(pool);
        return status;
    }
    *out = pool;
    return DI_OK;
}

void di_pool_free(di_pool *pool) {
    if (!pool) return;
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->generation, 1);
    futex_wake(&pool->generation, INT_MAX);
    for (int i = 0; i < pool->running; i++) pthread_join(pool->workers[i].thread, NULL);
    free(pool->workers);
    free(pool->ranges);
    free(pool);
}

int di_pool_threads(const di_pool *pool) {
    return pool->threads;
}

/* --------------------------------------------------------------------------------------------------------- run */

static bool spin_for_tiles(di_pool *pool, size_t tiles, int64_t until) {
    for (;;) {
        for (int i = 0; i < PAUSES_PER_LOOK; i++) {
            if (atomic_load_explicit(&pool->done, memory_order_acquire) == tiles) return true;
            spin_pause();
        }
        if (di_now_ns() >= until) return false;
    }
}

static void sleep_for_tiles(di_pool *pool, size_t tiles) {
    for (;;) {
        atomic_store(&pool->caller_sleeps, 1);
        if (atomic_load(&pool->done) == tiles) break;
        futex_wait(&pool->caller_sleeps, 1, CALLER_SLEEP_NS);
    }
    atomic_store(&pool->caller_sleeps, 0);
}

static void wait_for_tiles(di_pool *pool, size_t tiles) {
    if (atomic_load_explicit(&pool->done, memory_order_acquire) == tiles) return;
    int64_t start = di_now_ns();
    if (!spin_for_tiles(pool, tiles, start + pool->caller_spin_ns)) sleep_for_tiles(pool, tiles);
    atomic_fetch_add_explicit(&pool->caller_waits_ns, di_now_ns() - start, memory_order_relaxed);
}

void di_pool_get_times(const di_pool *pool, di_pool_times *times) {
    *times = (di_pool_times){.caller_waits_ns = atomic_load_explicit(&pool->caller_waits_ns, memory_order_relaxed)};
    for (int i = 0; i < pool->running; i++)
        times->workers_busy_ns += atomic_load_explicit(&pool->workers[i].busy_ns, memory_order_relaxed);
}

void di_pool_run(di_pool *pool, size_t tiles, di_pool_tile work, void *arg) {
    if (tiles <= 1 || pool->threads == 1) {
        for (size_t tile = 0; tile < tiles; tile++) work(arg, tile, 0);
        return;
    }
    pool->work = work;
    pool->arg = arg;
    pool->tiles = tiles;
    atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
    size_t threads = (size_t)pool->threads, share = tiles / threads, more = tiles % threads, end = 0;
    for (size_t i = 0; i < threads; i++) {
        size_t count = share + (i < more ? 1 : 0);
        pool->ranges[i].end = end += count;
        atomic_store_explicit(&pool->ranges[i].remaining, (int64_t)count, memory_order_release);
    }
    atomic_fetch_add(&pool->generation, 1);
    int sleeping = atomic_load(&pool->sleeping);
    if (sleeping > 0) futex_wake(&pool->generation, tiles - 1 < (size_t)sleeping ? (int)(tiles - 1) : sleeping);
    work_tiles(pool, 0, NULL);
    wait_for_tiles(pool, tiles);
}
