/* needs: engine */
/* The registry's arithmetic and text, what a known workload counts, and the record of a request. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "base/arena.h"
#include "base/json.h"
#include "engine/engine_internal.h"
#include "support/requests.h"

#define NANO DI_TEST_DATA "/nano"

/* ---------------------------------------------------------------- registry */

static void buckets_double(void **state) {
    (void)state;
    static di_metrics metrics;
    static const double values[] = {0, 0.5, 1, 1.5, 2, 3, 4, 1000, -1, NAN};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) di_observe(&metrics, DI_HISTOGRAM_STEP_ROWS, values[i]);
    assert_int_equal(metrics.histograms[DI_HISTOGRAM_STEP_ROWS].buckets[0], 5); /* up to 1; nonsense counts as 0 */
    assert_int_equal(metrics.histograms[DI_HISTOGRAM_STEP_ROWS].buckets[1], 2);
    assert_int_equal(metrics.histograms[DI_HISTOGRAM_STEP_ROWS].buckets[2], 2);
    assert_int_equal(metrics.histograms[DI_HISTOGRAM_STEP_ROWS].buckets[10], 1);
    assert_int_equal(metrics.histograms[DI_HISTOGRAM_STEP_ROWS].count, 10);
    di_observe(&metrics, DI_HISTOGRAM_STEP_ROWS, 1e9);
    assert_int_equal(metrics.histograms[DI_HISTOGRAM_STEP_ROWS].buckets[DI_HISTOGRAM_BUCKETS], 1);
}

static const char *const names[] = {
#define DI_COUNTER(id, name, help)          name,
#define DI_GAUGE(id, name, help)            name,
#define DI_HISTOGRAM(id, name, first, help) name,
#include "engine/metrics_table.h"
};
enum { NAMES = sizeof names / sizeof *names };

static void names_are_prometheus_names(void **state) {
    (void)state;
    for (size_t i = 0; i < NAMES; i++) {
        assert_int_equal(strncmp(names[i], "deepinfer_", 10), 0);
        assert_int_equal(strspn(names[i], "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(names[i]));
        for (size_t k = 0; k < i; k++) assert_string_not_equal(names[i], names[k]);
    }
#define DI_COUNTER(id, name, help) assert_string_equal((name) + strlen(name) - 6, "_total");
#define DI_GAUGE(id, name, help)
#define DI_HISTOGRAM(id, name, first, help) assert_true((first) > 0);
#include "engine/metrics_table.h"
}

static void text_is_prometheus_text(void **state) {
    (void)state;
    static di_metrics metrics;
    di_count(&metrics, DI_COUNT_STEPS, 41);
    di_gauge(&metrics, DI_GAUGE_QUEUE, -3);
    for (int i = 0; i < 100; i++) di_observe(&metrics, DI_HISTOGRAM_TOKEN_GAP, 0.0005 * i);
    di_text text = {0};
    di_metrics_write_prometheus(&metrics, &text);
    assert_false(text.failed);
    assert_non_null(strstr(text.data, "\ndeepinfer_steps_total 41\n"));
    assert_non_null(strstr(text.data, "\ndeepinfer_queue_requests -3\n"));
    assert_non_null(strstr(text.data, "\ndeepinfer_token_gap_seconds_count 100\n"));
    const char *sum = strstr(text.data, "\ndeepinfer_token_gap_seconds_sum ");
    assert_non_null(sum);
    assert_true(fabs(strtod(strchr(sum, ' '), NULL) - 2.475) < 0.01);
    /* Every metric: HELP and TYPE once, before its samples; cumulative buckets; +Inf equals the count. */
    for (size_t i = 0; i < NAMES; i++) {
        char head[128];
        snprintf(head, sizeof head, "# HELP %s ", names[i]);
        const char *help = strstr(text.data, head);
        assert_non_null(help);
        assert_null(strstr(help + 1, head));
        snprintf(head, sizeof head, "\n# TYPE %s ", names[i]);
        assert_non_null(strstr(help, head));
    }
    uint64_t last = 0;
    for (const char *at = text.data; (at = strstr(at, "deepinfer_token_gap_seconds_bucket{le=\"")); at++) {
        uint64_t value = strtoull(strstr(at, "} ") + 2, NULL, 10);
        assert_true(value >= last);
        last = value;
    }
    assert_int_equal(last, 100);
    di_text_free(&text);
}

/* ---------------------------------------------------------------- what is counted */

typedef struct records {
    pthread_mutex_t mutex;
    di_text lines;
    uint32_t count;
} records;

static void keep_record(void *arg, di_log_level level, const char *line) {
    records *r = arg;
    const char *json = strstr(line, "request: {");
    if (level != DI_LOG_INFO || !json) return;
    pthread_mutex_lock(&r->mutex);
    di_text_clear(&r->lines);
    di_text_puts(&r->lines, json + strlen("request: "));
    r->count++;
    pthread_mutex_unlock(&r->mutex);
}

static di_engine *open_logged(di_log *log, const di_option *options, size_t count) {
    di_engine *engine = NULL;
    di_error error = {0};
    di_config *config = di_config_new();
    assert_int_equal(di_config_set(config, "spec", "off", DI_CONFIG_FLAG, &error), DI_OK);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(di_config_set(config, options[i].name, options[i].value, DI_CONFIG_FLAG, &error), DI_OK);
    if (di_engine_open(NANO, config, log, &engine, &error) != DI_OK) fail_msg("%s", error.message);
    di_config_free(config);
    return engine;
}

static double number(const di_json *record, const char *key) {
    const di_json *value = di_json_get(record, key);
    assert_non_null(value);
    double result = 0;
    assert_true(di_json_double(value, &result));
    return result;
}

static void a_known_workload_is_counted_exactly(void **state) {
    (void)state;
    static const di_option options[] = {{"max-seqs", "8"}, {"chunk", "32"}};
    records seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    di_log *log = di_log_new(DI_LOG_INFO, keep_record, &seen);
    di_engine *engine = open_logged(log, options, 2);
    const di_metrics *m = di_engine_metrics(engine);
    di_outcome outcome;
    di_job job = di_greedy_job(di_walk(1, 100), 100, 7);
    di_run_job(engine, &job, &outcome); /* a miss: 100 + 6 rows */
    di_run_job(engine, &job, &outcome); /* a hit of 99: 1 + 6 rows */
    job.sampling.n = 3;
    job.tenant = "other"; /* a miss in its own namespace: 100 + 3 * 6 rows */
    di_run_job(engine, &job, &outcome);
    assert_int_equal(di_score(engine, di_walk(2, 50), 50, NULL, NULL, NULL, NULL), DI_OK); /* 50 rows */
    job = di_greedy_job(di_walk(3, 30), 30, 3000);
    di_request *request = di_submit_job(engine, &job, NULL, NULL);
    di_event event;
    do assert_true(di_request_next(request, -1, &event));
    while (event.kind != DI_EVENT_TOKEN);
    di_request_cancel(request);
    outcome = (di_outcome){0};
    while (di_request_next(request, -1, &event)) {
    }
    di_request_free(request);
    job.ids = di_walk(4, 30);
    job.deadline_ms = 1;
    job.sampling.max_tokens = 100000;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.status, DI_ERR_DEADLINE);
    di_assert_idle(engine);
    static const struct {
        di_counter_id id;
        uint64_t value;
    } expected[] = {
        {DI_COUNT_REQUESTS_SUBMITTED, 6},
        {DI_COUNT_REQUESTS_FINISHED, 6},
        {DI_COUNT_REQUESTS_ANSWERED, 4},
        {DI_COUNT_REQUESTS_FAILED, 1},
        {DI_COUNT_REQUESTS_REFUSED, 0},
        {DI_COUNT_CANCELS, 1},
        {DI_COUNT_DEADLINES, 1},
        {DI_COUNT_NUMERIC_FAULTS, 0},
        {DI_COUNT_CACHE_HITS, 1},
        {DI_COUNT_CACHED_TOKENS_RAM, 99},
        {DI_COUNT_PREEMPTIONS, 0},
        {DI_COUNT_STALLS, 0},
        {DI_COUNT_LIMITS, 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (di_counter(m, expected[i].id) != expected[i].value)
            fail_msg("counter %d is %llu, expected %llu", expected[i].id,
                     (unsigned long long)di_counter(m, expected[i].id), (unsigned long long)expected[i].value);
    assert_true(di_counter(m, DI_COUNT_COMPUTED_ROWS) >= 106 + 7 + 118 + 50);
    assert_int_equal(m->histograms[DI_HISTOGRAM_REQUEST_TIME].count, 6);
    assert_true(m->histograms[DI_HISTOGRAM_FIRST_TOKEN].count >= 4);
    assert_int_equal(m->histograms[DI_HISTOGRAM_STEP_COMPUTE].count, di_counter(m, DI_COUNT_STEPS));
    assert_int_equal(m->histograms[DI_HISTOGRAM_STEP_ROWS].count, di_counter(m, DI_COUNT_STEPS));
    assert_int_equal(seen.count, 6);
    di_close(engine);
    di_log_free(log);
    di_text_free(&seen.lines);
}

static void rows_are_counted_once(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_job job = di_greedy_job(di_walk(1, 100), 100, 7);
    di_outcome outcome;
    di_run_job(engine, &job, &outcome);
    job.sampling.n = 3;
    di_run_job(engine, &job, &outcome);
    di_assert_idle(engine);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_COMPUTED_ROWS), 106 + 1 + 18);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_OUTPUT_TOKENS), 7 + 21);
    assert_int_equal(di_engine_counter(engine, DI_COUNT_PROMPT_TOKENS), 200);
    di_close(engine);
}

static void a_finished_request_leaves_one_record(void **state) {
    (void)state;
    records seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    di_log *log = di_log_new(DI_LOG_INFO, keep_record, &seen);
    di_engine *engine = open_logged(log, NULL, 0);
    static const struct {
        uint32_t walk, count;
        const char *reason;
        double cached, diverged;
    } runs[] = {
        {1, 100, "empty", 0, 0},       {1, 100, "none", 99, 100},  {1, 80, "snapshot", 0, 80},
        {1, 150, "diverged", 99, 100}, {2, 100, "diverged", 0, 0},
    };
    for (uint32_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        di_job job = di_greedy_job(di_walk(runs[i].walk, runs[i].count), runs[i].count, 3);
        di_outcome outcome;
        di_run_job(engine, &job, &outcome);
        di_assert_idle(engine);
        pthread_mutex_lock(&seen.mutex);
        assert_int_equal(seen.count, i + 1);
        di_arena *arena = di_arena_new(0);
        const di_json *record = NULL;
        di_error error = {0};
        if (di_json_parse(arena, seen.lines.data, seen.lines.length, 0, &record, &error) != DI_OK)
            fail_msg("%s: %s", error.message, seen.lines.data);
        assert_true(number(record, "prompt_tokens") == runs[i].count);
        assert_true(number(record, "completion_tokens") == 3);
        assert_true(number(record, "preemptions") == 0);
        assert_true(number(record, "total_ms") >= number(record, "first_token_ms"));
        assert_true(number(record, "cached_tokens") == runs[i].cached);
        assert_true(number(record, "diverged_at") == runs[i].diverged);
        assert_true(di_json_string_is(di_json_get(record, "cache_miss"), runs[i].reason));
        assert_true(di_json_string_is(di_json_get(record, "status"), "ok"));
        di_arena_free(arena);
        pthread_mutex_unlock(&seen.mutex);
    }
    di_close(engine);
    di_log_free(log);
    di_text_free(&seen.lines);
}

/* ---------------------------------------------------------------- an engine with nothing to do */

static double metric(di_engine *engine, const char *name) {
    di_text text = {0};
    char key[96];
    snprintf(key, sizeof key, "\n%s ", name);
    di_engine_refresh_metrics(engine);
    di_metrics_write_prometheus(di_engine_metrics(engine), &text);
    const char *at = text.data ? strstr(text.data, key) : NULL;
    if (!at) fail_msg("%s is missing", name);
    double value = at ? strtod(at + strlen(key), NULL) : -1;
    di_text_free(&text);
    return value;
}

static void grammars_are_counted_while_nothing_runs(void **state) {
    (void)state;
    di_engine *engine = di_open_with(NANO, NULL, 0);
    di_job job = {.ids = di_walk(1, 8), .count = 8};
    di_sampling_default(&job.sampling);
    job.sampling.so_args.schema_type = "regex";
    job.sampling.so_args.schema = "(";
    di_status status = DI_OK;
    assert_null(di_submit_job(engine, &job, &status, NULL));
    assert_int_equal(status, DI_ERR_INVALID_ARGUMENT);
    assert_true(metric(engine, "deepinfer_grammars_refused_total") == 1);
    assert_true(metric(engine, "deepinfer_grammar_compile_seconds_count") == 1);
    assert_true(metric(engine, "deepinfer_mask_seconds_count") == 0);
    job.sampling.so_args.schema = "[ab]{3}";
    job.sampling.max_tokens = 3;
    di_outcome outcome = {0};
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.status, DI_OK);
    assert_true(metric(engine, "deepinfer_grammar_compile_seconds_count") == 2);
    assert_true(metric(engine, "deepinfer_mask_seconds_count") >= outcome.tokens[0]);
    di_close(engine);
}

static void shell(const char *format, const char *folder) {
    char command[256];
    snprintf(command, sizeof command, format, folder);
    assert_int_equal(system(command), 0);
}

/* A folder that cannot be used from the start; one in whose place a file stands for a while. */
static void a_cache_folder_that_cannot_be_written_shows(void **state) {
    (void)state;
    char folder[] = "/tmp/deepinfer_metrics_XXXXXX";
    assert_non_null(mkdtemp(folder));
    const di_option never[] = {{"cache-dir", "/dev/null/cache"}}, good[] = {{"cache-dir", folder}};
    di_engine *engine = di_open_with(NANO, never, 1);
    assert_true(metric(engine, "deepinfer_disk_unwritable") == 1);
    di_close(engine);
    engine = di_open_with(NANO, good, 1);
    assert_true(metric(engine, "deepinfer_disk_unwritable") == 0);
    static const char *const before[] = {"true %s", "rm -rf %1$s && touch %1$s", "rm %1$s && mkdir %1$s"};
    for (int round = 0; round < 3; round++) {
        shell(before[round], folder);
        di_job job = di_greedy_job(di_walk((uint32_t)round + 1, 200), 200, 4);
        di_outcome outcome = {0};
        di_run_job(engine, &job, &outcome);
        assert_int_equal(outcome.status, DI_OK);
        assert_true(di_disk_wait_idle(engine->disk, 60000));
        /* The engine has gone to sleep: what the disk did since is told all the same. */
        assert_true(metric(engine, "deepinfer_disk_unwritable") == (round == 1));
        assert_int_equal(metric(engine, "deepinfer_disk_failures_total") > 0, round > 0);
        assert_true(metric(engine, "deepinfer_disk_queued_bytes") == 0);
        assert_int_equal(metric(engine, "deepinfer_disk_saves_total") > 0, 1);
    }
    di_close(engine);
    shell("rm -rf %s", folder);
}

/* The list in docs/engine.md is that of the table. */
static void every_metric_is_documented(void **state) {
    (void)state;
    char *text = NULL;
    size_t length = 0;
    di_error error = {0};
    if (di_read_file(DI_SOURCE_DIR "/docs/engine.md", 1 << 20, &text, &length, &error)) fail_msg("%s", error.message);
    for (size_t i = 0; i < NAMES; i++) {
        char row[160];
        snprintf(row, sizeof row, "| `%s` |", names[i]);
        if (!strstr(text, row)) fail_msg("docs/engine.md has no row for %s", names[i]);
    }
    size_t rows = 0;
    for (const char *at = text; (at = strstr(at, "\n| `deepinfer_")); at++) rows++;
    assert_int_equal(rows, NAMES);
    free(text);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_double),
        cmocka_unit_test(names_are_prometheus_names),
        cmocka_unit_test(text_is_prometheus_text),
        cmocka_unit_test(a_known_workload_is_counted_exactly),
        cmocka_unit_test(rows_are_counted_once),
        cmocka_unit_test(a_finished_request_leaves_one_record),
        cmocka_unit_test(grammars_are_counted_while_nothing_runs),
        cmocka_unit_test(a_cache_folder_that_cannot_be_written_shows),
        cmocka_unit_test(every_metric_is_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
