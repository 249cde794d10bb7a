/* metrics.c - see metrics.h. */
#include "engine/metrics.h"

typedef struct metric_row {
    const char *name, *help;
    double first;
} metric_row;

static const metric_row counter_rows[] = {
#define DI_COUNTER(id, name, help) {name, help, 0},
#define DI_GAUGE(id, name, help)
#define DI_HISTOGRAM(id, name, first, help)
#include "engine/metrics_table.h"
};

static const metric_row gauge_rows[] = {
#define DI_COUNTER(id, name, help)
#define DI_GAUGE(id, name, help) {name, help, 0},
#define DI_HISTOGRAM(id, name, first, help)
#include "engine/metrics_table.h"
};

static const metric_row histogram_rows[] = {
#define DI_COUNTER(id, name, help)
#define DI_GAUGE(id, name, help)
#define DI_HISTOGRAM(id, name, first, help) {name, help, first},
#include "engine/metrics_table.h"
};

enum { SUM_UNITS = 1024 };

/* Upper bound of a bucket. */
static double bound(const metric_row *row, int bucket) {
    return row->first * (double)(1u << bucket);
}

void di_observe_many(di_metrics *metrics, di_histogram_id id, double value, uint64_t count) {
    const metric_row *row = &histogram_rows[id];
    int bucket = 0;
    if (!(value >= 0)) value = 0;
    while (bucket < DI_HISTOGRAM_BUCKETS && value > bound(row, bucket)) bucket++;
    atomic_fetch_add_explicit(&metrics->histograms[id].buckets[bucket], count, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->histograms[id].count, count, memory_order_relaxed);
    atomic_fetch_add_explicit(&metrics->histograms[id].sum, count * (uint64_t)(value / row->first * SUM_UNITS),
                              memory_order_relaxed);
}

static void write_head(di_text *out, const metric_row *row, const char *type) {
    di_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n", row->name, row->help, row->name, type);
}

void di_metrics_write_histogram(const di_metrics *metrics, di_histogram_id id, const char *name, const char *labels,
                                di_text *out) {
    const metric_row *row = &histogram_rows[id];
    const char *comma = *labels ? "," : "", *open = *labels ? "{" : "", *close = *labels ? "}" : "";
    unsigned long long seen = 0;
    for (int b = 0; b < DI_HISTOGRAM_BUCKETS; b++) {
        seen += atomic_load_explicit(&metrics->histograms[id].buckets[b], memory_order_relaxed);
        di_text_printf(out, "%s_bucket{%s%sle=\"%.9g\"} %llu\n", name, labels, comma, bound(row, b), seen);
    }
    seen += atomic_load_explicit(&metrics->histograms[id].buckets[DI_HISTOGRAM_BUCKETS], memory_order_relaxed);
    double sum = (double)atomic_load_explicit(&metrics->histograms[id].sum, memory_order_relaxed);
    di_text_printf(out, "%s_bucket{%s%sle=\"+Inf\"} %llu\n%s_sum%s%s%s %.9g\n%s_count%s%s%s %llu\n", name, labels,
                   comma, seen, name, open, labels, close, sum * row->first / SUM_UNITS, name, open, labels, close,
                   seen);
}

void di_metrics_write_prometheus(const di_metrics *metrics, di_text *out) {
    for (int i = 0; i < DI_COUNTER_COUNT; i++) {
        write_head(out, &counter_rows[i], "counter");
        di_text_printf(out, "%s %llu\n", counter_rows[i].name, (unsigned long long)di_counter(metrics, i));
    }
    for (int i = 0; i < DI_GAUGE_COUNT; i++) {
        write_head(out, &gauge_rows[i], "gauge");
        di_text_printf(out, "%s %lld\n", gauge_rows[i].name,
                       (long long)atomic_load_explicit(&metrics->gauges[i], memory_order_relaxed));
    }
    for (int i = 0; i < DI_HISTOGRAM_COUNT; i++) {
        write_head(out, &histogram_rows[i], "histogram");
        di_metrics_write_histogram(metrics, i, histogram_rows[i].name, "", out);
    }
}
