/* measure.h - shared by the benchmarks of kernels: the environment line, medians, data larger than every cache, and the
 * read bandwidth that products are compared with. JSON lines go to stdout, tables to stderr.
 */
#ifndef DI_BENCH_MEASURE_H
#define DI_BENCH_MEASURE_H

#include "backend/cpu/kernels.h"
#include "base/arena.h"
#include "base/clock.h"
#include "base/pool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { MAX_ROUNDS = 9 };

static inline int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double median(const double *values, int count) {
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    return sorted[count / 2];
}

static inline void processor_name(char *name, size_t size) {
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(name, size, "%s", colon + 2);
        break;
    }
    if (file) fclose(file);
}

/* Megabytes of the last-level cache; 0 if the system does not say. */
static inline long last_level_cache(void) {
    long kilobytes = 0;
    FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "r");
    if (file && fscanf(file, "%ldK", &kilobytes) != 1) kilobytes = 0;
    if (file) fclose(file);
    return kilobytes >> 10;
}

static inline void print_environment(const char *bench) {
    char name[256];
    processor_name(name, sizeof name);
    long cache = last_level_cache();
    printf(
        "{\"bench\": \"%s\", \"machine\": \"%s\", \"cores\": %d, \"last_level_cache_mb\": %ld, \"compiler\": \"%s\", "
        "\"avx2\": %s, \"avx512\": %s}\n",
        bench, name, di_usable_cores(), cache, __VERSION__, di_cpu_supports(&di_cpu_avx2) ? "true" : "false",
        di_cpu_supports(&di_cpu_avx512) ? "true" : "false");
    fprintf(stderr, "%s, %d cores, last-level cache %ld MB\n", name, di_usable_cores(), cache);
}

/* Pseudo-random bytes, none of which is a NaN in E4M3; big pages where the system has them. */
static inline uint8_t *random_bytes(size_t bytes) {
    uint8_t *memory = aligned_alloc(2u << 20, (bytes + (2u << 20) - 1) / (2u << 20) * (2u << 20));
    if (!memory) return NULL;
    madvise(memory, bytes, MADV_HUGEPAGE);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < bytes; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        uint8_t code = (uint8_t)(state >> 56);
        memory[i] = (code & 0x7f) == 0x7f ? 0x3c : code;
    }
    return memory;
}

typedef struct read_run {
    const uint8_t *data;
    size_t piece;
    uint64_t sink[64];
} read_run;

/* Plain loads of whole lines, asked for ahead: what a kernel that did nothing with its bytes could reach. */
static inline void read_piece(void *arg, size_t tile, int worker) {
    read_run *run = arg;
    const uint8_t *data = run->data + tile * run->piece;
    typedef uint64_t words __attribute__((vector_size(16), aligned(16)));
    words a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < run->piece; i += 64) {
        __builtin_prefetch(data + i + 4096);
        const words *w = (const words *)(const void *)(data + i);
        a |= w[0];
        b |= w[1];
        c |= w[2];
        d |= w[3];
    }
    a |= b | c | d;
    run->sink[worker % 64] |= a[0] | a[1];
}

/* GB/s of reading all of `data` once on the pool. */
static inline double read_bandwidth(di_pool *pool, const uint8_t *data, size_t bytes) {
    read_run run = {.data = data, .piece = 1u << 18};
    int64_t start = di_now_ns();
    di_pool_run(pool, bytes / run.piece, read_piece, &run);
    return (double)(bytes / run.piece * run.piece) / (double)(di_now_ns() - start);
}

#endif
