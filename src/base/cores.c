/* cores.c - what the machine gives a thread: usable cores, float mode; see pool.h. */
#include "base/pool.h"
#include "base/text.h"

#include <fenv.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

static int affinity_cores(void) {
    /* The kernel refuses a set smaller than its own, so machines beyond 1024 processors need a second try. */
    for (int processors = 1024; processors <= 1 << 16; processors *= 4) {
        cpu_set_t *set = CPU_ALLOC(processors);
        if (!set) return 1;
        size_t size = CPU_ALLOC_SIZE(processors);
        int count = sched_getaffinity(0, size, set) == 0 ? CPU_COUNT_S(size, set) : 0;
        CPU_FREE(set);
        if (count > 0) return count;
    }
    return 1;
}

/* Whole cores of "quota period" in microseconds; INT_MAX when unlimited. */
static int quota_cores(long long quota, long long period) {
    if (quota <= 0 || period <= 0) return INT_MAX;
    long long cores = quota / period;
    if (cores < 1) return 1;
    return cores < INT_MAX ? (int)cores : INT_MAX;
}

static int read_cpu_max(const char *folder) {
    char path[4352], *data;
    size_t length;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (di_read_file(path, 4096, &data, &length, NULL) != DI_OK) return INT_MAX;
    long long quota, period;
    int cores = sscanf(data, "%lld %lld", &quota, &period) == 2 ? quota_cores(quota, period) : INT_MAX;
    free(data);
    return cores;
}

/* Smallest quota from this process's group up to the root of cgroup version 2. */
static int cgroup_cores(void) {
    char *groups;
    size_t length;
    if (di_read_file("/proc/self/cgroup", 1 << 16, &groups, &length, NULL) != DI_OK) return INT_MAX;
    char folder[4200] = "";
    const char *line = strstr(groups, "0::/");
    if (line && (line == groups || line[-1] == '\n')) {
        size_t size = strcspn(line + 3, "\n");
        if (size < 4096) snprintf(folder, sizeof folder, "/sys/fs/cgroup%.*s", (int)size, line + 3);
    }
    free(groups);
    int cores = INT_MAX;
    const size_t root = strlen("/sys/fs/cgroup");
    while (strlen(folder) >= root) {
        int here = read_cpu_max(folder);
        if (here < cores) cores = here;
        char *slash = strrchr(folder, '/');
        if (!slash) break;
        *slash = '\0';
    }
    return cores;
}

/* Version 1 keeps the quota in two files; inside a container its own group is mounted as the root. */
static int cgroup_v1_cores(void) {
    long long values[2] = {0, 0};
    static const char *const paths[2] = {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"};
    for (int i = 0; i < 2; i++) {
        char *data;
        size_t length;
        if (di_read_file(paths[i], 4096, &data, &length, NULL) != DI_OK) return INT_MAX;
        values[i] = atoll(data);
        free(data);
    }
    return quota_cores(values[0], values[1]);
}

int di_usable_cores(void) {
    int cores = affinity_cores(), v2 = cgroup_cores(), v1 = cgroup_v1_cores();
    if (v2 < cores) cores = v2;
    if (v1 < cores) cores = v1;
    return cores;
}

bool di_float_mode_ok(void) {
    fesetround(FE_TONEAREST);
#if defined(__x86_64__)
    const unsigned flush_to_zero = 0x8000, denormals_are_zero = 0x0040, rounding = 0x6000;
    _mm_setcsr(_mm_getcsr() & ~(flush_to_zero | denormals_are_zero | rounding));
    if (_mm_getcsr() & (flush_to_zero | denormals_are_zero | rounding)) return false;
#endif
    /* What the bits promise, seen in arithmetic: volatile keeps it at run time. */
    volatile float smallest_normal = 0x1p-126f, half = 0.5f, one = 1.0f, tiny = 0x1p-24f, more = 0x1.8p-24f;
    volatile float subnormal = smallest_normal * half, back = subnormal + subnormal;
    volatile float tie = one + tiny, up = one + more, down = -one - tiny;
    return back == smallest_normal && tie == one && up > one && down == -one;
}
