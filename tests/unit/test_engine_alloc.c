/* needs: engine */
/* A steady decode step takes no memory from the system: the allocator of this program counts. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine_internal.h"
#include "support/gate.h"
#include "support/requests.h"
#include "support/slow.h"

#define NANO DI_TEST_DATA "/nano"

#define COUNTS (!DI_TEST_SLOW) /* under a sanitizer the allocator is the sanitizer's */

/* ---------------------------------------------------------------- the counting allocator */

enum { PLACES = 8, DEPTH = 16 };

static atomic_bool counting;
static atomic_uint counted;
static _Thread_local bool excluded __attribute__((unused)); /* the reader, and this file while it looks around */
static void *places[PLACES][DEPTH];
static int depths[PLACES];

#if COUNTS
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static void note(void) {
    if (!atomic_load_explicit(&counting, memory_order_relaxed) || excluded) return;
    excluded = true;
    unsigned n = atomic_fetch_add(&counted, 1);
    if (n < PLACES) depths[n] = backtrace(places[n], DEPTH);
    excluded = false;
}

__attribute__((visibility("default"))) void *malloc(size_t size) {
    note();
    return __libc_malloc(size);
}
__attribute__((visibility("default"))) void *calloc(size_t count, size_t size) {
    note();
    return __libc_calloc(count, size);
}
__attribute__((visibility("default"))) void *realloc(void *memory, size_t size) {
    note();
    return __libc_realloc(memory, size);
}
__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t size) {
    note();
    return __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) int posix_memalign(void **memory, size_t alignment, size_t size) {
    note();
    *memory = __libc_memalign(alignment, size);
    return *memory ? 0 : ENOMEM;
}
__attribute__((visibility("default"))) void *mmap(void *at, size_t size, int protection, int flags, int file,
                                                  off_t offset) {
    note();
    return (void *)syscall(SYS_mmap, at, size, protection, flags, file, offset);
}
#endif

static void start_counting(void) {
    atomic_store(&counted, 0);
    atomic_store(&counting, true);
}

static void stop_counting(const char *what) {
    atomic_store(&counting, false);
    unsigned n = atomic_load(&counted);
    if (!n) return;
    for (unsigned i = 0; i < n && i < PLACES; i++) {
        fprintf(stderr, "allocation %u:\n", i);
        backtrace_symbols_fd(places[i], depths[i], STDERR_FILENO);
    }
    fail_msg("%s: %u allocations", what, n);
}

/* ---------------------------------------------------------------- decode */

enum { STREAMS = 4, WARM_UP = 160, COUNTED_STEPS = 50 };

static void read_all(di_request **requests, di_outcome *outcomes, uint32_t least) {
    for (int i = 0; i < STREAMS; i++) {
        di_event event;
        while (outcomes[i].tokens[0] < least) {
            assert_true(di_request_next(requests[i], -1, &event));
            di_take_event(&outcomes[i], &event);
        }
    }
}

static void one_step(void) {
    di_gate_pass();
    assert_true(di_gate_wait(60000, NULL));
}

static void decode_steps(const di_option *options, size_t count, const di_job *job, const char *what) {
    di_engine *engine = di_open_with(NANO, options, count);
    di_gate_on(engine, true);
    di_request *requests[STREAMS];
    di_outcome outcomes[STREAMS] = {0};
    for (uint32_t i = 0; i < STREAMS; i++) {
        di_job mine = *job;
        mine.ids = di_walk(i, job->count);
        requests[i] = di_submit_job(engine, &mine, NULL, NULL);
    }
    /* Step by step, with a reader that keeps up. Warm is who has both of the blocks that its events go through. */
    assert_true(di_gate_wait(60000, NULL));
    uint32_t tokens = 0;
    while (tokens < WARM_UP) {
        one_step();
        bool all = true;
        for (int i = 0; i < STREAMS; i++) {
            di_event event;
            while (di_request_next(requests[i], tokens ? 50 : 5, &event)) {
                di_take_event(&outcomes[i], &event);
                if (outcomes[i].tokens[0] > tokens) break;
            }
            all &= outcomes[i].tokens[0] > tokens;
        }
        tokens += all;
    }
    start_counting();
    for (uint32_t i = 0; i < COUNTED_STEPS; i++) {
        one_step();
        read_all(requests, outcomes, tokens + 1 + i);
    }
    stop_counting(what);
    for (int i = 0; i < STREAMS; i++) di_request_free(requests[i]);
    di_gate_open(true);
    di_assert_idle(engine);
    di_gate_close(engine);
}

static void a_steady_decode_step_allocates_nothing(void **state) {
    (void)state;
    static const char *const stops[] = {"zebra crossing", "\xe2\x82\xac\xe2\x82\xac"};
    static const di_option plain[] = {{"threads", "2"}}, cold[] = {{"cache-ram", "0"}, {"prefill", "compact"}};
    di_job job = di_greedy_job(NULL, 60, 400); /* goes over a page border while counted */
    decode_steps(plain, 1, &job, "greedy");
    decode_steps(cold, 2, &job, "compact");
    job.sampling.temperature = 1;
    job.sampling.top_k = 50;
    job.sampling.top_p = 0.9f;
    job.sampling.min_p = 0.01f;
    job.sampling.repetition_penalty = 1.1f;
    job.sampling.frequency_penalty = 0.1f;
    job.sampling.logprobs = 20;
    job.sampling.stop = stops;
    job.sampling.stop_count = 2;
    decode_steps(plain, 1, &job, "everything on");
    job.sampling.n = 2;
    decode_steps(plain, 1, &job, "two samples each");
}

/* The counter sees what it is there to see. */
static void the_counter_counts(void **state) {
    (void)state;
    void *volatile memory; /* or the compiler leaves out what nobody uses */
    start_counting();
    memory = malloc(10);
    free(memory);
    memory = calloc(1, 10);
    free(memory);
    memory = aligned_alloc(64, 64);
    memory = realloc(memory, 1000);
    free(memory);
    munmap(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), 4096); /* large memory is mapped */
    atomic_store(&counting, false);
    assert_int_equal(atomic_load(&counted), COUNTS ? 5 : 0);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    void *warm[DEPTH];
    backtrace(warm, DEPTH); /* loads its library now */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_counter_counts),
        cmocka_unit_test(a_steady_decode_step_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
