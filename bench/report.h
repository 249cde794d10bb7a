/* report.h - shared by the benchmarks of the model and the engine: JSON lines on stdout that begin with the
 * environment, and what a machine that is shared with others does to the figures (load, processor time).
 */
#ifndef DI_BENCH_REPORT_H
#define DI_BENCH_REPORT_H

#include "measure.h"

#include "base/json.h"
#include "deepinfer.h"

#include <math.h>
#include <time.h>
#include <unistd.h>

typedef struct report {
    di_text text;
    di_json_writer json;
} report;

static inline void report_begin(report *r, const char *bench, const char *what) {
    *r = (report){0};
    di_json_begin(&r->json, &r->text);
    r->json.spaces = true;
    di_json_object_begin(&r->json);
    di_json_key(&r->json, "bench");
    di_json_string(&r->json, bench);
    if (!what) return;
    di_json_key(&r->json, "what");
    di_json_string(&r->json, what);
}

static inline void report_text(report *r, const char *key, const char *value) {
    di_json_key(&r->json, key);
    di_json_string(&r->json, value);
}

static inline void report_integer(report *r, const char *key, int64_t value) {
    di_json_key(&r->json, key);
    di_json_integer(&r->json, value);
}

/* Four significant digits are more than a measurement holds. */
static inline void report_number(report *r, const char *key, double value) {
    char text[32];
    di_json_key(&r->json, key);
    snprintf(text, sizeof text, "%.4g", value);
    di_json_number(&r->json, strtod(text, NULL));
}

static inline void report_end(report *r) {
    di_json_object_end(&r->json);
    if (r->text.failed)
        fprintf(stderr, "out of memory for a line of the report\n");
    else
        puts(r->text.data);
    fflush(stdout);
    di_text_free(&r->text);
}

/* Threads that run or want to run on this machine, averaged over a minute. */
static inline double load_average(void) {
    double load[1];
    return getloadavg(load, 1) == 1 ? load[0] : -1;
}

static inline int64_t cpu_ns(clockid_t clock) {
    struct timespec t;
    return clock_gettime(clock, &t) ? 0 : (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void sleep_us(long us) {
    nanosleep(&(struct timespec){.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000}, NULL);
}

/* `settings`: what the command line asked for. Further keys may follow before report_end. */
static inline void report_environment(report *r, const char *bench, int argc, char **argv) {
    char name[256];
    processor_name(name, sizeof name);
    report_begin(r, bench, "environment");
    report_text(r, "machine", name);
    report_integer(r, "cores", di_usable_cores());
    report_integer(r, "last_level_cache_mb", last_level_cache());
    report_text(r, "version", di_version());
    report_text(r, "compiler", __VERSION__);
#ifdef NDEBUG
    report_text(r, "build", "release");
#else
    report_text(r, "build", "with assertions");
#endif
    report_number(r, "load", load_average());
    di_json_key(&r->json, "settings");
    di_json_array_begin(&r->json);
    for (int i = 1; i < argc; i++) di_json_string(&r->json, argv[i]);
    di_json_array_end(&r->json);
    fprintf(stderr, "%s, %d cores, last-level cache %ld MB, load %.1f\n", name, di_usable_cores(), last_level_cache(),
            load_average());
}

/* A pseudo-random id that is no special one (models keep these at the ends of their vocabulary). */
static inline int32_t some_id(uint64_t *state, uint32_t vocabulary) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (int32_t)(8 + (*state >> 33) % (vocabulary * 3 / 4 - 8));
}

#endif
