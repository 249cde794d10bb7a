/* http_metrics.c - see http_metrics.h. */
#include "server/http_metrics.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "server/server_internal.h"

/* ---------------------------------------------------------------- transport and process */

static void write_number(di_text *out, const char *name, const char *type, const char *help, double value) {
    di_text_printf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", name, help, name, type, name, value);
}

static double seconds(const struct timeval *time) {
    return (double)time->tv_sec + (double)time->tv_usec / 1e6;
}

/* Open descriptors of this process, less the one that looks; 0 if that cannot be seen. */
static size_t open_files(void) {
    size_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) return 0;
    for (const struct dirent *entry; (entry = readdir(folder));) count += entry->d_name[0] != '.';
    closedir(folder);
    return count ? count - 1 : 0;
}

static void write_process(const di_server *server, di_text *out) {
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    char line[128];
    if (file && fgets(line, sizeof line, file)) {
        const char *resident = strchr(line, ' ');
        for (const char *c = resident ? resident + 1 : ""; *c >= '0' && *c <= '9'; c++)
            pages = pages * 10 + (unsigned long long)(*c - '0');
    }
    if (file) fclose(file);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    write_number(out, "process_resident_memory_bytes", "gauge", "memory of the process",
                 (double)pages * (double)sysconf(_SC_PAGESIZE));
    write_number(out, "process_cpu_seconds_total", "counter", "time on processors",
                 seconds(&usage.ru_utime) + seconds(&usage.ru_stime));
    struct rlimit files = {0};
    getrlimit(RLIMIT_NOFILE, &files);
    write_number(out, "process_open_fds", "gauge", "open files and sockets", (double)open_files());
    write_number(out, "process_max_fds", "gauge", "how many there may be", (double)files.rlim_cur);
    write_number(out, "process_start_time_seconds", "gauge", "when the server was opened, since 1970",
                 (double)server->opened);
}

static void write_errors(const di_http_counters *counters, di_text *out) {
    static const char name[] = "deepinfer_http_errors_total";
    di_text_printf(out, "# HELP %s error answers by the code in their body\n# TYPE %s counter\n", name, name);
    for (int i = 0; i < DI_HTTP_ERROR_CODES && counters->errors[i].code; i++)
        di_text_printf(out, "%s{code=\"%s\"} %llu\n", name, counters->errors[i].code,
                       (unsigned long long)counters->errors[i].count);
}

void di_http_metrics_write(const di_server *server, di_text *out) {
    const di_http_counters *counters = &server->counters;
    size_t queued = 0;
    for (const di_connection *at = server->connections; at; at = at->older) queued += di_connection_queued(at);
    const struct {
        const char *name, *help;
        uint64_t value;
    } rows[] = {
        {"deepinfer_http_connections_total", "connections taken", counters->connections},
        {"deepinfer_http_connections_refused_total", "connections beyond --max-connections",
         counters->refused_connections},
        {"deepinfer_http_tls_failures_total", "connections that failed in TLS", counters->tls_failures},
        {"deepinfer_http_gone_total", "clients that left before their answer ended", counters->gone},
        {"deepinfer_http_malformed_total", "requests that are no HTTP", counters->malformed},
        {"deepinfer_http_unauthorised_total", "requests without a right key", counters->unauthorised},
        {"deepinfer_http_received_bytes_total", "bytes of requests", counters->bytes_in},
        {"deepinfer_http_sent_bytes_total", "bytes of answers", counters->bytes_out},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        write_number(out, rows[i].name, "counter", rows[i].help, (double)rows[i].value);
    static const char answers[] = "deepinfer_http_answers_total";
    di_text_printf(out, "# HELP %s answers by HTTP status\n# TYPE %s counter\n", answers, answers);
    for (int i = 1; i < 6; i++)
        di_text_printf(out, "%s{status=\"%dxx\"} %llu\n", answers, i, (unsigned long long)counters->answers[i]);
    write_errors(counters, out);
    static const char limits[] = "deepinfer_http_limits_total";
    static const char *const limit_names[] = {
#define DI_HTTP_LIMIT(id, name) name,
        DI_HTTP_LIMITS
#undef DI_HTTP_LIMIT
    };
    di_text_printf(out, "# HELP %s requests that met a limit of the transport\n# TYPE %s counter\n", limits, limits);
    for (int i = 0; i < DI_HTTP_LIMIT_COUNT; i++)
        di_text_printf(out, "%s{limit=\"%s\"} %llu\n", limits, limit_names[i], (unsigned long long)counters->limits[i]);
    write_number(out, "deepinfer_http_connections", "gauge", "open connections", (double)server->connection_count);
    write_number(out, "deepinfer_http_exchanges", "gauge", "requests for work in progress", (double)server->exchanges);
    write_number(out, "deepinfer_http_body_bytes", "gauge", "bytes of bodies held", (double)server->body_bytes);
    write_number(out, "deepinfer_http_queued_bytes", "gauge", "bytes that clients have not taken", (double)queued);
    write_number(out, "deepinfer_draining", "gauge", "1 while the server shuts down", server->draining);
    write_process(server, out);
}

/* ---------------------------------------------------------------- what runs here */

static void write_label(di_text *out, const char *name, const char *value) {
    di_text_printf(out, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\') di_text_putc(out, '\\');
        di_text_putc(out, *c == '\n' ? ' ' : *c);
    }
    di_text_putc(out, '"');
}

void di_build_metric_write(const di_model_info *info, const char *model, di_text *out) {
    const struct {
        const char *name, *value;
    } rows[] = {
        {"version", di_version()},
        {"compiler", __VERSION__},
        {"isa", info->isa},
        {"profile", info->profile},
        {"architecture", info->architecture},
        {"fingerprint", info->fingerprint},
        {"model_name", model},
    };
    static const char name[] = "deepinfer_build_info";
    di_text_printf(out, "# HELP %s what runs here\n# TYPE %s gauge\n%s{", name, name, name);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (i) di_text_putc(out, ',');
        write_label(out, rows[i].name, rows[i].value);
    }
    di_text_puts(out, "} 1\n");
}

/* ---------------------------------------------------------------- names of vLLM */

typedef struct alias {
    const char *name, *type, *more; /* more: further labels, with a comma before them */
    double value;
} alias;

static double counter(const di_metrics *metrics, di_counter_id id) {
    return (double)di_counter(metrics, id);
}

static double gauge(const di_metrics *metrics, di_gauge_id id) {
    return (double)atomic_load_explicit(&metrics->gauges[id], memory_order_relaxed);
}

static void write_labels(di_text *out, const char *model) {
    write_label(out, "model_name", model);
    di_text_puts(out, ",engine=\"0\"");
}

static void write_aliases(const di_metrics *metrics, const char *labels, di_text *out) {
    double pages = gauge(metrics, DI_GAUGE_PAGES_LIMIT), used = gauge(metrics, DI_GAUGE_PAGES_SEQUENCES);
    double cached = counter(metrics, DI_COUNT_CACHED_TOKENS_RAM) + counter(metrics, DI_COUNT_CACHED_TOKENS_DISK);
    const alias rows[] = {
        {"vllm:num_requests_running", "gauge", "", gauge(metrics, DI_GAUGE_RUNNING_REQUESTS)},
        {"vllm:num_requests_waiting", "gauge", "", gauge(metrics, DI_GAUGE_QUEUE) + gauge(metrics, DI_GAUGE_SWAPPED)},
        {"vllm:kv_cache_usage_perc", "gauge", "", pages > 0 ? used / pages : 0}, /* a share of 1, as there */
        {"vllm:num_preemptions_total", "counter", "", counter(metrics, DI_COUNT_PREEMPTIONS)},
        {"vllm:prompt_tokens_total", "counter", "", counter(metrics, DI_COUNT_PROMPT_TOKENS)},
        {"vllm:prompt_tokens_cached_total", "counter", "", cached},
        {"vllm:generation_tokens_total", "counter", "", counter(metrics, DI_COUNT_OUTPUT_TOKENS)},
        {"vllm:prefix_cache_queries_total", "counter", "", counter(metrics, DI_COUNT_PROMPT_TOKENS)},
        {"vllm:prefix_cache_hits_total", "counter", "", cached},
        {"vllm:request_success_total", "counter", ",finished_reason=\"done\"",
         counter(metrics, DI_COUNT_REQUESTS_ANSWERED)},
        {"vllm:request_success_total", "counter", ",finished_reason=\"abort\"", counter(metrics, DI_COUNT_CANCELS)},
        {"vllm:request_success_total", "counter", ",finished_reason=\"error\"",
         counter(metrics, DI_COUNT_REQUESTS_FAILED)},
        {"vllm:spec_decode_num_drafts_total", "counter", "", counter(metrics, DI_COUNT_DRAFT_CYCLES)},
        {"vllm:spec_decode_num_draft_tokens_total", "counter", "", counter(metrics, DI_COUNT_DRAFTED)},
        {"vllm:spec_decode_num_accepted_tokens_total", "counter", "", counter(metrics, DI_COUNT_ACCEPTED)},
        {"vllm:corrupted_requests_total", "counter", "", counter(metrics, DI_COUNT_NUMERIC_FAULTS)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (!i || strcmp(rows[i].name, rows[i - 1].name) != 0)
            di_text_printf(out, "# TYPE %s %s\n", rows[i].name, rows[i].type);
        di_text_printf(out, "%s{%s%s} %.15g\n", rows[i].name, labels, rows[i].more, rows[i].value);
    }
}

void di_vllm_metrics_write(const di_metrics *metrics, const char *model, di_text *out) {
    static const struct {
        di_histogram_id id;
        const char *name;
    } histograms[] = {
        {DI_HISTOGRAM_FIRST_TOKEN, "vllm:time_to_first_token_seconds"},
        {DI_HISTOGRAM_TOKEN_GAP, "vllm:inter_token_latency_seconds"},
        {DI_HISTOGRAM_REQUEST_TIME, "vllm:e2e_request_latency_seconds"},
        {DI_HISTOGRAM_QUEUE_TIME, "vllm:request_queue_time_seconds"},
        {DI_HISTOGRAM_PREFILL_TIME, "vllm:request_prefill_time_seconds"},
        {DI_HISTOGRAM_STEP_ROWS, "vllm:iteration_tokens_total"},
    };
    di_text labels = {0};
    write_labels(&labels, model);
    if (labels.failed) {
        out->failed = true;
    } else {
        write_aliases(metrics, labels.data, out);
        for (size_t i = 0; i < sizeof histograms / sizeof *histograms; i++) {
            di_text_printf(out, "# TYPE %s histogram\n", histograms[i].name);
            di_metrics_write_histogram(metrics, histograms[i].id, histograms[i].name, labels.data, out);
        }
    }
    di_text_free(&labels);
}
