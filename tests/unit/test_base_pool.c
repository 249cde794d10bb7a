/* needs: base */
/* Thread pool: every tile exactly once, results visible to the caller, idle costs nothing, float mode. */
#include "base/clock.h"
#include "base/pool.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

enum { TILES = 200 };

typedef struct record {
    int threads;
    unsigned counts[TILES]; /* plain memory: only the tile's thread and then the caller touch it */
    unsigned workers[8];    /* tiles done by each worker, written by that worker */
    _Atomic int bad_worker;
} record;

static void count_tile(void *arg, size_t tile, int worker) {
    record *r = arg;
    r->counts[tile]++;
    if (worker < 0 || worker >= r->threads) {
        atomic_store(&r->bad_worker, 1);
        return;
    }
    r->workers[worker]++;
}

static void test_every_tile_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        di_pool *pool;
        assert_int_equal(di_pool_new(threads, &pool, NULL), DI_OK);
        assert_int_equal(di_pool_threads(pool), threads);
        for (int run = 0; run < 1500; run++) {
            size_t tiles = run % 3 == 0 ? (size_t)run % 7 : (size_t)run % (TILES + 1);
            record r = {.threads = threads};
            di_pool_run(pool, tiles, count_tile, &r);
            unsigned total = 0;
            for (int w = 0; w < 8; w++) total += r.workers[w];
            assert_int_equal(total, tiles);
            assert_int_equal(atomic_load(&r.bad_worker), 0);
            for (size_t t = 0; t < TILES; t++) {
                if (r.counts[t] != (t < tiles)) fail_msg("%d threads, run %d, tile %zu", threads, run, t);
            }
        }
        di_pool_free(pool);
    }
}

typedef struct meeting {
    _Atomic int started, done;
    int awaited;
    int worker_of[8];
} meeting;

/* Every tile waits until all have begun, so no thread can take a second one. */
static void meet(void *arg, size_t tile, int worker) {
    meeting *m = arg;
    m->worker_of[tile] = worker;
    atomic_fetch_add(&m->started, 1);
    while (atomic_load(&m->started) < m->awaited) sched_yield();
}

/* Each thread begins with its own part of the tiles. */
static void test_own_part_first(void **state) {
    (void)state;
    for (int threads = 1; threads <= 5; threads++) {
        di_pool *pool;
        assert_int_equal(di_pool_new(threads, &pool, NULL), DI_OK);
        for (int run = 0; run < 20; run++) {
            meeting m = {.awaited = threads};
            di_pool_run(pool, (size_t)threads, meet, &m);
            for (int t = 0; t < threads; t++) assert_int_equal(m.worker_of[t], t);
        }
        di_pool_free(pool);
    }
}

/* The first tile ends when all others are done. */
static void hold_first(void *arg, size_t tile, int worker) {
    meeting *m = arg;
    (void)worker;
    while (tile == 0 && atomic_load(&m->done) < m->awaited) sched_yield();
    atomic_fetch_add(&m->done, 1);
}

/* A thread that is held up holds up one tile: the others take the rest of its part. */
static void test_slow_thread_holds_one_tile(void **state) {
    (void)state;
    for (int threads = 2; threads <= 5; threads++) {
        di_pool *pool;
        assert_int_equal(di_pool_new(threads, &pool, NULL), DI_OK);
        meeting m = {.awaited = 40};
        di_pool_run(pool, 41, hold_first, &m);
        assert_int_equal(atomic_load(&m.done), 41);
        di_pool_free(pool);
    }
}

/* What one run wrote is what the next run reads, whichever thread does it. */
static void next_value(void *arg, size_t tile, int worker) {
    (void)worker;
    uint64_t *values = arg; /* [2][TILES] */
    values[TILES + tile] = values[tile] + values[(tile + 1) % TILES];
}

static void copy_back(void *arg, size_t tile, int worker) {
    (void)worker;
    uint64_t *values = arg;
    values[tile] = values[TILES + tile];
}

static void test_runs_are_ordered(void **state) {
    (void)state;
    static uint64_t expected[2 * TILES];
    for (int threads = 1; threads <= 5; threads++) {
        static uint64_t values[2 * TILES];
        for (size_t i = 0; i < TILES; i++) values[i] = i;
        di_pool *pool;
        assert_int_equal(di_pool_new(threads, &pool, NULL), DI_OK);
        for (int run = 0; run < 300; run++) {
            di_pool_run(pool, TILES, next_value, values);
            di_pool_run(pool, TILES, copy_back, values);
            if (run % 100 == 50) usleep(3000); /* let the workers fall asleep */
        }
        di_pool_free(pool);
        if (threads == 1) memcpy(expected, values, sizeof expected);
        assert_memory_equal(values, expected, sizeof expected);
    }
}

/* Tiles that last, so that the caller and the workers go through their blocking waits. */
typedef struct slow_record {
    _Atomic int done;
    _Atomic unsigned workers; /* bit w: worker w did a tile */
} slow_record;

static void slow_tile(void *arg, size_t tile, int worker) {
    slow_record *r = arg;
    usleep(tile == 0 ? 3000 : 200);
    atomic_fetch_or(&r->workers, 1u << worker);
    atomic_fetch_add(&r->done, 1);
}

static void test_blocking_waits(void **state) {
    (void)state;
    for (int threads = 2; threads <= 5; threads++) {
        di_pool *pool;
        assert_int_equal(di_pool_new(threads, &pool, NULL), DI_OK);
        slow_record r = {0};
        unsigned all = (1u << threads) - 1;
        for (int run = 1; run <= 20 || (run < 2000 && atomic_load(&r.workers) != all); run++) {
            di_pool_run(pool, 6, slow_tile, &r);
            assert_int_equal(atomic_load(&r.done), 6 * run);
        }
        assert_int_equal(atomic_load(&r.workers), all);
        di_pool_free(pool);
    }
}

static void test_start_and_stop(void **state) {
    (void)state;
    for (int i = 0; i < 100; i++) {
        di_pool *pool;
        assert_int_equal(di_pool_new(1 + i % 5, &pool, NULL), DI_OK);
        record r = {.threads = 1 + i % 5};
        if (i % 2) di_pool_run(pool, 10, count_tile, &r);
        di_pool_free(pool);
    }
    di_pool_free(NULL);
    di_pool *pool = (di_pool *)&pool;
    di_error error = {0};
    assert_int_equal(di_pool_new(0, &pool, &error), DI_ERR_INVALID_ARGUMENT);
    assert_null(pool);
    assert_string_equal(error.param, "threads");
    assert_int_equal(di_pool_new(1025, &pool, &error), DI_ERR_INVALID_ARGUMENT);
}

static void test_idle_costs_nothing(void **state) {
    (void)state;
    di_pool *pool;
    assert_int_equal(di_pool_new(2, &pool, NULL), DI_OK);
    record r = {.threads = 2};
    di_pool_run(pool, 100, count_tile, &r);
    usleep(5000);
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(300000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    double used = (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) / 1e9;
    if (used > 0.003) fail_msg("%.1f ms of processor time in 300 ms of idleness", used * 1e3);
    di_pool_free(pool);
}

static void check_mode(void *arg, size_t tile, int worker) {
    (void)tile;
    (void)worker;
    if (fegetround() != FE_TONEAREST) atomic_store((_Atomic int *)arg, 1);
#if defined(__x86_64__)
    if (_mm_getcsr() & 0x8040) atomic_store((_Atomic int *)arg, 1);
#endif
    usleep(100);
}

/* A caller that has changed its own mode does not pass it on: threads inherit it, so the workers set it right. */
static void test_float_mode(void **state) {
    (void)state;
    assert_true(di_float_mode_ok());
    fesetround(FE_UPWARD);
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
    di_pool *pool;
    assert_int_equal(di_pool_new(3, &pool, NULL), DI_OK);
    assert_true(di_float_mode_ok());
    _Atomic int bad = 0;
    di_pool_run(pool, 50, check_mode, &bad);
    assert_int_equal(atomic_load(&bad), 0);
    di_pool_free(pool);
}

static void test_usable_cores(void **state) {
    (void)state;
    int cores = di_usable_cores();
    assert_in_range(cores, 1, sysconf(_SC_NPROCESSORS_ONLN));
    cpu_set_t before, one;
    CPU_ZERO(&before);
    if (sched_getaffinity(0, sizeof before, &before) != 0) {
        print_message("the cores that this process may use cannot be asked for here\n");
        skip();
    }
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &before)) {
            CPU_SET(i, &one);
            break;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(di_usable_cores(), 1);
    sched_setaffinity(0, sizeof before, &before);
}

static void work_2_ms(void *arg, size_t tile, int worker) {
    (void)arg;
    (void)tile;
    (void)worker;
    for (int64_t until = di_now_ns() + 2000000; di_now_ns() < until;) {
    }
}

static void test_times(void **state) {
    (void)state;
    di_pool *pool;
    di_pool_times times;
    assert_int_equal(di_pool_new(3, &pool, NULL), DI_OK);
    di_pool_get_times(pool, &times);
    assert_int_equal(times.workers_busy_ns, 0);
    assert_int_equal(times.caller_waits_ns, 0);
    int64_t start = di_now_ns();
    for (int run = 0; run < 10; run++) di_pool_run(pool, 4, work_2_ms, NULL);
    int64_t wall = di_now_ns() - start;
    di_pool_get_times(pool, &times);
    assert_in_range(times.workers_busy_ns, 2000000, 2 * wall);
    assert_in_range(times.caller_waits_ns, 0, wall);
    di_pool_free(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_tile_once),
        cmocka_unit_test(test_own_part_first),
        cmocka_unit_test(test_slow_thread_holds_one_tile),
        cmocka_unit_test(test_runs_are_ordered),
        cmocka_unit_test(test_blocking_waits),
        cmocka_unit_test(test_start_and_stop),
        cmocka_unit_test(test_idle_costs_nothing),
        cmocka_unit_test(test_float_mode),
        cmocka_unit_test(test_usable_cores),
        cmocka_unit_test(test_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
