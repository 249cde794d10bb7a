/* metrics.h - the one registry of counters, gauges and histograms.
 *
 * Rows are metrics_table.h. Values are atomics: the engine thread writes, any thread reads or prints. Nothing here
 * allocates except the printers. Histograms count seconds or rows in buckets that double.
 */
#ifndef DI_ENGINE_METRICS_H
#define DI_ENGINE_METRICS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/text.h"

typedef enum di_counter_id {
#define DI_COUNTER(id, name, help) DI_COUNT_##id,
#define DI_GAUGE(id, name, help)
#define DI_HISTOGRAM(id, name, first, help)
#include "engine/metrics_table.h"
    DI_COUNTER_COUNT
} di_counter_id;

typedef enum di_gauge_id {
#define DI_COUNTER(id, name, help)
#define DI_GAUGE(id, name, help) DI_GAUGE_##id,
#define DI_HISTOGRAM(id, name, first, help)
#include "engine/metrics_table.h"
    DI_GAUGE_COUNT
} di_gauge_id;

typedef enum di_histogram_id {
#define DI_COUNTER(id, name, help)
#define DI_GAUGE(id, name, help)
#define DI_HISTOGRAM(id, name, first, help) DI_HISTOGRAM_##id,
#include "engine/metrics_table.h"
    DI_HISTOGRAM_COUNT
} di_histogram_id;

enum { DI_HISTOGRAM_BUCKETS = 24 }; /* upper bounds first * 2^i, then infinity */

typedef struct di_metrics {
    _Atomic uint64_t counters[DI_COUNTER_COUNT];
    _Atomic int64_t gauges[DI_GAUGE_COUNT];
    struct {
        _Atomic uint64_t buckets[DI_HISTOGRAM_BUCKETS + 1];
        _Atomic uint64_t count, sum; /* sum in units of `first` / 1024 */
    } histograms[DI_HISTOGRAM_COUNT];
} di_metrics;

static inline void di_count(di_metrics *metrics, di_counter_id id, uint64_t n) {
    atomic_fetch_add_explicit(&metrics->counters[id], n, memory_order_relaxed);
}
static inline void di_gauge(di_metrics *metrics, di_gauge_id id, int64_t value) {
    atomic_store_explicit(&metrics->gauges[id], value, memory_order_relaxed);
}
static inline uint64_t di_counter(const di_metrics *metrics, di_counter_id id) {
    return atomic_load_explicit(&metrics->counters[id], memory_order_relaxed);
}
/* The same value `count` times, for the price of one. */
void di_observe_many(di_metrics *metrics, di_histogram_id id, double value, uint64_t count);
static inline void di_observe(di_metrics *metrics, di_histogram_id id, double value) {
    di_observe_many(metrics, id, value, 1);
}
/* Buckets, sum and count of a histogram under a name; labels: those of every line, without braces, "" = none. */
void di_metrics_write_histogram(const di_metrics *metrics, di_histogram_id id, const char *name, const char *labels,
                                di_text *out);

/* Prometheus text format. */
void di_metrics_write_prometheus(const di_metrics *metrics, di_text *out);

#endif
