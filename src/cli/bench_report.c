/* bench_report.c - the figures of a load: JSON lines for programs, a table for people; see bench_load.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "cli/bench_load.h"

/* ---------------------------------------------------------------- lines */

typedef struct report_line {
    di_text text;
    di_json_writer json;
} report_line;

static void write_text(di_json_writer *json, const char *key, const char *value) {
    di_json_key(json, key);
    di_json_string(json, value);
}

static void write_integer(di_json_writer *json, const char *key, int64_t value) {
    di_json_key(json, key);
    di_json_integer(json, value);
}

/* Four significant digits are more than a measurement holds. */
static void write_number(di_json_writer *json, const char *key, double value) {
    char text[32];
    di_json_key(json, key);
    snprintf(text, sizeof text, "%.4g", value);
    di_json_number(json, strtod(text, NULL));
}

static void begin_line(report_line *line, const char *bench, const char *what) {
    *line = (report_line){0};
    di_json_begin(&line->json, &line->text);
    line->json.spaces = true;
    di_json_object_begin(&line->json);
    write_text(&line->json, "bench", bench);
    write_text(&line->json, "what", what);
}

static void end_line(report_line *line) {
    di_json_object_end(&line->json);
    if (line->text.failed)
        fprintf(stderr, "deepinfer: out of memory for a line of the report\n");
    else
        puts(line->text.data);
    fflush(stdout);
    di_text_free(&line->text);
}

/* Threads that run or want to run on this machine, averaged over a minute. */
static double load_average(void) {
    double load[1];
    return getloadavg(load, 1) == 1 ? load[0] : -1;
}

static void processor_name(char *name, size_t size) {
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(name, size, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file) fclose(file);
}

void di_bench_report_environment(const di_cli *cli, const di_bench_load *load) {
    char name[256];
    report_line line;
    const di_config_row *rows = di_config_rows();
    processor_name(name, sizeof name);
    begin_line(&line, "serve", "environment");
    write_text(&line.json, "machine", name);
    write_integer(&line.json, "cores", di_usable_cores());
    write_text(&line.json, "version", di_version());
    write_text(&line.json, "compiler", __VERSION__);
    write_number(&line.json, "load", load_average());
    di_json_key(&line.json, "settings");
    di_json_object_begin(&line.json);
    for (di_config_id id = 0; id < DI_OPT_COUNT; id++)
        if (di_config_is_set(cli->config, id) && id != DI_OPT_API_KEY)
            write_text(&line.json, rows[id].name, di_config_text(cli->config, id));
    di_json_object_end(&line.json);
    write_text(&line.json, "url", load->s->url);
    write_text(&line.json, "model", load->model);
    end_line(&line);
    di_cli_note(cli, "%s, %d cores, load %.1f", name, di_usable_cores(), load_average());
}

/* ---------------------------------------------------------------- figures */

int di_bench_compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct sample {
    double *values; /* sorted by percentiles() */
    size_t count;
} sample;

static void add(sample *s, double value) {
    double *values =
        s->count & (s->count - 1) ? s->values : realloc(s->values, (s->count ? 2 * s->count : 1) * sizeof *values);
    if (!values) return;
    s->values = values;
    s->values[s->count++] = value;
}

static double percentile(const sample *s, double share) {
    if (!s->count) return 0;
    size_t at = (size_t)(share * (double)s->count);
    return s->values[at < s->count ? at : s->count - 1];
}

static void write_sample(di_json_writer *json, const char *key, sample *s) {
    if (s->count) qsort(s->values, s->count, sizeof *s->values, di_bench_compare_doubles);
    di_json_key(json, key);
    di_json_object_begin(json);
    write_integer(json, "count", (int64_t)s->count);
    write_number(json, "p50", percentile(s, 0.5));
    write_number(json, "p90", percentile(s, 0.9));
    write_number(json, "p95", percentile(s, 0.95));
    write_number(json, "p99", percentile(s, 0.99));
    write_number(json, "max", s->count ? s->values[s->count - 1] : 0);
    di_json_object_end(json);
}

typedef struct totals {
    sample first, gaps, total;
    size_t outcomes[4], typed, on_time;
    const char *fingerprint;
    int64_t prompt, cached, completion;
} totals;

static totals add_up(const di_bench_load *l) {
    totals t = {.fingerprint = ""};
    for (size_t i = 0; i < l->count; i++) {
        const di_bench_record *r = l->records[i];
        t.outcomes[r->outcome]++;
        t.typed += r->outcome == DI_BENCH_REFUSED && r->typed;
        if (r->outcome != DI_BENCH_GOOD) continue;
        if (!t.fingerprint[0]) t.fingerprint = r->fingerprint;
        bool late = r->first_ms > l->s->first_ms;
        if (r->completion) add(&t.first, r->first_ms);
        add(&t.total, r->total_ms);
        for (size_t g = 0; g < r->gap_count; g++) {
            add(&t.gaps, r->gaps[g]);
            late = late || r->gaps[g] > l->s->gap_ms;
        }
        t.on_time += !late;
        t.prompt += r->prompt;
        t.cached += r->cached;
        t.completion += r->completion;
    }
    return t;
}

static void write_errors(di_json_writer *json, const di_bench_load *l) {
    di_json_key(json, "errors");
    di_json_array_begin(json);
    int shown = 0;
    for (size_t i = 0; i < l->count && shown < 3; i++) {
        const di_bench_record *r = l->records[i];
        if (r->outcome != DI_BENCH_FAILED) continue;
        di_json_object_begin(json);
        write_integer(json, "status", r->status);
        write_text(json, "text", r->error);
        di_json_object_end(json);
        shown++;
    }
    di_json_array_end(json);
}

static void print_row(const char *name, const totals *t, double seconds, const di_bench_verdict *v) {
    fprintf(
        stderr,
        "%-7s %5zu %5zu %5zu | %8.1f %7.2f %5.0f%% | %7.0f %7.0f %7.0f | %6.1f %6.1f %6.0f | %5.0f%% | %zu of %zu\n",
        name, t->outcomes[DI_BENCH_GOOD], t->outcomes[DI_BENCH_REFUSED], t->outcomes[DI_BENCH_FAILED],
        (double)t->completion / seconds, (double)t->outcomes[DI_BENCH_GOOD] / seconds,
        t->outcomes[DI_BENCH_GOOD] ? 100.0 * (double)t->on_time / (double)t->outcomes[DI_BENCH_GOOD] : 0,
        percentile(&t->first, 0.5), percentile(&t->first, 0.95), percentile(&t->first, 0.99), percentile(&t->gaps, 0.5),
        percentile(&t->gaps, 0.99), t->gaps.count ? t->gaps.values[t->gaps.count - 1] : 0,
        t->prompt ? 100.0 * (double)t->cached / (double)t->prompt : 0, v->compared - v->differing - v->failed,
        v->compared);
}

void di_bench_report_heads(void) {
    fprintf(stderr,
            "\n%-7s %5s %5s %5s | %8s %7s %6s | %23s | %20s | %6s | %s\n%-7s %5s %5s %5s | %8s %7s %6s | %7s %7s %7s | "
            "%6s %6s %6s | %6s | %s\n",
            "", "", "re-", "", "tokens", "answers", "on", "first token ms", "gap ms", "prompt", "same as", "load",
            "good", "fused", "failed", "per s", "per s", "time", "p50", "p95", "p99", "p50", "p99", "max", "cached",
            "alone");
}

bool di_bench_report_load(const di_bench_load *l, const char *name, double rate, const di_bench_verdict *v) {
    double seconds = di_ms(l->end_ns - l->start_ns) / 1000;
    totals t = add_up(l);
    report_line line;
    begin_line(&line, "serve", name);
    write_integer(&line.json, "clients", l->s->clients);
    if (rate > 0) write_number(&line.json, "conversations_per_s", rate);
    write_integer(&line.json, "conversations", (int64_t)l->conversations);
    write_number(&line.json, "seconds", seconds);
    write_integer(&line.json, "requests", (int64_t)l->count);
    write_integer(&line.json, "good", (int64_t)t.outcomes[DI_BENCH_GOOD]);
    write_integer(&line.json, "refused", (int64_t)t.outcomes[DI_BENCH_REFUSED]);
    write_integer(&line.json, "refused_typed", (int64_t)t.typed);
    write_integer(&line.json, "failed", (int64_t)t.outcomes[DI_BENCH_FAILED]);
    write_integer(&line.json, "dropped", (int64_t)t.outcomes[DI_BENCH_DROPPED]);
    write_integer(&line.json, "tokens", t.completion);
    write_number(&line.json, "tokens_per_s", (double)t.completion / seconds);
    write_number(&line.json, "requests_per_s", (double)t.outcomes[DI_BENCH_GOOD] / seconds);
    write_sample(&line.json, "first_token_ms", &t.first);
    write_sample(&line.json, "gap_ms", &t.gaps);
    write_sample(&line.json, "total_ms", &t.total);
    write_number(&line.json, "first_ms_wanted", l->s->first_ms);
    write_number(&line.json, "gap_ms_wanted", l->s->gap_ms);
    write_number(&line.json, "goodput_per_s", (double)t.on_time / seconds);
    write_integer(&line.json, "prompt_tokens", t.prompt);
    write_integer(&line.json, "cached_tokens", t.cached);
    write_number(&line.json, "cache_hit_share", t.prompt ? (double)t.cached / (double)t.prompt : 0);
    write_integer(&line.json, "compared", (int64_t)v->compared);
    write_integer(&line.json, "differing", (int64_t)v->differing);
    write_text(&line.json, "fingerprint", t.fingerprint);
    write_errors(&line.json, l);
    write_number(&line.json, "load", load_average());
    end_line(&line);
    if (!l->s->quiet) print_row(name, &t, seconds, v);
    bool good = !t.outcomes[DI_BENCH_FAILED] && !v->differing && !v->failed &&
                t.outcomes[DI_BENCH_GOOD] + t.outcomes[DI_BENCH_DROPPED] > 0;
    free(t.first.values);
    free(t.gaps.values);
    free(t.total.values);
    return good;
}
