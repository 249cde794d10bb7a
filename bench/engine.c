/* engine.c - the engine under load: throughput at several numbers of streams, idle time of the compute threads, the
 * engine thread's own work, gaps between tokens beside a long prompt and a crowd, and a busy neighbour process.
 *
 * bench_engine [--model tiny|large|PATH] [--dummy] [--threads N] [--rounds N] [--seconds S] [--prompt N]
 *              [--streams N]... [--part throughput|fairness|neighbour]...
 *
 * Times of tokens are the engine's own (di_timings of each event), so reading events late changes nothing. On a shared
 * machine look at "cpu_share": processor time used by the program, of threads * wall time.
 */
#include "report.h"

#include "engine/engine_internal.h"

#include <signal.h>
#include <sys/wait.h>

enum { MAX_STREAMS = 512, MAX_COUNTS = 8, LONG_PROMPT = 16000, SHORT_PROMPT = 32, ARRIVALS = 50, ARRIVAL_PROMPT = 200 };

typedef struct stream {
    di_request *request;
    int64_t submitted_ns, first_ns, last_ns; /* of tokens; 0 = none yet */
    uint64_t tokens;
    double worst_gap_ms; /* since it was last set to 0 */
    bool done, failed;
} stream;

typedef struct settings {
    const char *model; /* NULL: tiny, then large */
    bool dummy;
    const char *threads;
    int rounds;
    double seconds;
    uint32_t prompt;
    int streams[MAX_COUNTS], stream_counts;
    bool throughput, fairness, neighbour;
} settings;

typedef struct bench {
    di_engine *engine;
    const char *name;
    const settings *s;
    uint64_t noise;
    stream streams[MAX_STREAMS];
} bench;

/* ---------------------------------------------------------------- streams */

static bool start(bench *b, stream *s, uint32_t prompt, int64_t tokens) {
    int32_t *ids = malloc(prompt * sizeof *ids);
    di_error error = {0};
    if (!ids) return false;
    for (uint32_t i = 0; i < prompt; i++) ids[i] = some_id(&b->noise, di_engine_info(b->engine)->vocabulary);
    di_segment segment = {.token_ids = ids, .token_count = prompt};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling.max_tokens = tokens;
    params.sampling.ignore_eos = true;
    params.sampling.has_seed = true;
    *s = (stream){.submitted_ns = di_now_ns()};
    s->failed = di_submit(b->engine, &params, &s->request, &error) != DI_OK;
    if (s->failed) fprintf(stderr, "bench_engine: %s\n", error.message);
    free(ids);
    return !s->failed;
}

static void drain(stream *s) {
    di_event event;
    while (s->request && !s->done && di_request_next(s->request, 0, &event)) {
        if (event.kind == DI_EVENT_TOKEN) {
            int64_t at = s->submitted_ns + (int64_t)(event.timings.total_ms * 1e6);
            double gap = s->last_ns ? (double)(at - s->last_ns) / 1e6 : 0;
            if (gap > s->worst_gap_ms) s->worst_gap_ms = gap;
            if (!s->first_ns) s->first_ns = at;
            s->last_ns = at;
            s->tokens++;
        }
        if (event.kind != DI_EVENT_DONE) continue;
        s->done = true;
        s->failed = event.status != DI_OK && event.status != DI_ERR_CANCELLED;
        if (s->failed) fprintf(stderr, "bench_engine: %s\n", event.error.message);
    }
}

/* Drains until every one of `count` streams has produced `tokens`; false when one ended before. */
static bool wait_for(bench *b, stream *s, int count, uint64_t tokens) {
    for (;;) {
        bool all = true;
        for (int i = 0; i < MAX_STREAMS; i++) drain(&b->streams[i]);
        for (int i = 0; i < count; i++) {
            if (s[i].tokens >= tokens) continue;
            if (s[i].done || !s[i].request) return false;
            all = false;
        }
        if (all) return true;
        sleep_us(500);
    }
}

static void end(stream *s, int count) {
    for (int i = 0; i < count; i++)
        if (s[i].request) di_request_cancel(s[i].request);
    for (int i = 0; i < count; i++) {
        while (s[i].request && !s[i].done) {
            drain(&s[i]);
            sleep_us(200);
        }
        di_request_free(s[i].request);
        s[i].request = NULL;
    }
}

/* ---------------------------------------------------------------- what passed between two moments */

typedef struct moment {
    int64_t wall, process, engine, reader;
    int64_t workers_busy, caller_waits;
    double tokens, steps, rows, plan_s, compute_s, commit_s;
} moment;

static double histogram_sum(const di_metrics *metrics, di_histogram_id id) {
    static const double first[] = {
#define DI_COUNTER(id, name, help)
#define DI_GAUGE(id, name, help)
#define DI_HISTOGRAM(id, name, first, help) [DI_HISTOGRAM_##id] = first,
#include "engine/metrics_table.h"
    };
    return (double)atomic_load_explicit(&metrics->histograms[id].sum, memory_order_relaxed) * first[id] / 1024;
}

static moment look(const di_engine *engine) {
    const di_metrics *m = di_engine_metrics(engine);
    clockid_t clock;
    di_pool_times times;
    di_pool_get_times(engine->pool, &times);
    return (moment){.wall = di_now_ns(),
                    .process = cpu_ns(CLOCK_PROCESS_CPUTIME_ID),
                    .engine = pthread_getcpuclockid(engine->thread, &clock) ? 0 : cpu_ns(clock),
                    .reader = cpu_ns(CLOCK_THREAD_CPUTIME_ID),
                    .workers_busy = times.workers_busy_ns,
                    .caller_waits = times.caller_waits_ns,
                    .tokens = (double)di_counter(m, DI_COUNT_OUTPUT_TOKENS),
                    .steps = (double)di_counter(m, DI_COUNT_STEPS),
                    .rows = (double)di_counter(m, DI_COUNT_COMPUTED_ROWS),
                    .plan_s = histogram_sum(m, DI_HISTOGRAM_STEP_PLAN),
                    .compute_s = histogram_sum(m, DI_HISTOGRAM_STEP_COMPUTE),
                    .commit_s = histogram_sum(m, DI_HISTOGRAM_STEP_COMMIT)};
}

/* Figures of one stretch of steady decoding. */
typedef struct rates {
    double tokens_per_s, tokens_per_cpu_s; /* cpu: of all threads but the reader */
    double step_ms, rows;
    double idle;                   /* share of threads * wall in which a compute thread has nothing */
    double between;                /* share of wall in which no step is computed */
    double waiting, without_tiles; /* of idle, within a step: for the last tiles; workers while nobody has tiles */
    double engine_us, plan_us, commit_us; /* a step: processor time of the engine thread; wall time of its parts */
    double worst_gap_ms, cpu_share;
} rates;

static rates rates_between(const bench *b, moment from, moment to) {
    double wall = (double)(to.wall - from.wall) / 1e9, steps = to.steps - from.steps;
    double compute = to.compute_s - from.compute_s, threads = di_pool_threads(b->engine->pool);
    double process = (double)(to.process - from.process - (to.reader - from.reader)) / 1e9;
    double workers = (double)(to.workers_busy - from.workers_busy) / 1e9;
    double waits = (double)(to.caller_waits - from.caller_waits) / 1e9, busy = compute + workers - waits;
    return (rates){.tokens_per_s = (to.tokens - from.tokens) / wall,
                   .tokens_per_cpu_s = (to.tokens - from.tokens) / process,
                   .step_ms = wall / steps * 1000,
                   .rows = (to.rows - from.rows) / steps,
                   .idle = 1 - busy / (threads * wall),
                   .between = 1 - compute / wall,
                   .waiting = waits / (threads * wall),
                   .without_tiles = ((threads - 1) * compute - workers) / (threads * wall),
                   .engine_us = (double)(to.engine - from.engine) / steps / 1000,
                   .plan_us = (to.plan_s - from.plan_s) / steps * 1e6,
                   .commit_us = (to.commit_s - from.commit_s) / steps * 1e6,
                   .cpu_share = process / (threads * wall)};
}

/* Decoding of `count` streams for the seconds asked for and at least four steps. */
static bool decode(bench *b, int count, rates *r) {
    bool good = true;
    for (int i = 0; i < count && good; i++) good = start(b, &b->streams[i], b->s->prompt, 100000);
    good = good && wait_for(b, b->streams, count, 3);
    for (int i = 0; i < count; i++) b->streams[i].worst_gap_ms = 0;
    moment from = look(b->engine), to = from;
    while (good && ((double)(to.wall - from.wall) < b->s->seconds * 1e9 || to.steps - from.steps < 4)) {
        sleep_us(2000);
        for (int i = 0; i < count; i++) {
            drain(&b->streams[i]);
            good = good && !b->streams[i].done;
        }
        to = look(b->engine);
    }
    if (good) *r = rates_between(b, from, to);
    for (int i = 0; good && i < count; i++)
        if (b->streams[i].worst_gap_ms > r->worst_gap_ms) r->worst_gap_ms = b->streams[i].worst_gap_ms;
    end(b->streams, count);
    return good;
}

static rates median_rates(const rates *all, int rounds) {
    rates out;
    enum { FIELDS = sizeof(rates) / sizeof(double) };
    for (int f = 0; f < FIELDS; f++) {
        double values[MAX_ROUNDS];
        for (int i = 0; i < rounds; i++) values[i] = ((const double *)&all[i])[f];
        ((double *)&out)[f] = median(values, rounds);
    }
    return out;
}

static void print_rates(const bench *b, int streams, const rates *r, double one) {
    report line;
    report_begin(&line, "engine", "throughput");
    report_text(&line, "model", b->name);
    report_integer(&line, "threads", di_pool_threads(b->engine->pool));
    report_integer(&line, "streams", streams);
    report_integer(&line, "prompt_tokens", b->s->prompt);
    report_number(&line, "tokens_per_s", r->tokens_per_s);
    report_number(&line, "times_one_stream", r->tokens_per_s / one);
    report_number(&line, "tokens_per_cpu_s", r->tokens_per_cpu_s);
    report_number(&line, "step_ms", r->step_ms);
    report_number(&line, "rows_per_step", r->rows);
    report_number(&line, "compute_idle_share", r->idle);
    report_number(&line, "between_steps_share", r->between);
    report_number(&line, "idle_waiting_for_tiles_share", r->waiting);
    report_number(&line, "idle_without_tiles_share", r->without_tiles);
    report_number(&line, "engine_thread_us_per_step", r->engine_us);
    report_number(&line, "plan_us", r->plan_us);
    report_number(&line, "commit_us", r->commit_us);
    report_number(&line, "worst_gap_ms", r->worst_gap_ms);
    report_number(&line, "cpu_share", r->cpu_share);
    report_number(&line, "load", load_average());
    report_end(&line);
    fprintf(stderr, "%-8s %7d | %9.1f %6.2f %9.1f %9.2f | %6.1f%% %6.1f%% | %8.1f %7.1f %7.1f | %8.1f %5.0f%% %5.1f\n",
            b->name, streams, r->tokens_per_s, r->tokens_per_s / one, r->tokens_per_cpu_s, r->step_ms, 100 * r->idle,
            100 * r->between, r->engine_us, r->plan_us, r->commit_us, r->worst_gap_ms, 100 * r->cpu_share,
            load_average());
}

/* Numbers of streams alternate from round to round. */
static bool throughput(bench *b) {
    static rates all[MAX_COUNTS][MAX_ROUNDS];
    fprintf(
        stderr,
        "\n%-8s %7s | %9s %6s %9s %9s | %7s %7s | %8s %7s %7s | %8s %6s %5s\n%-8s %7s | %9s %6s %9s %9s | %7s %7s | "
        "%8s %7s %7s | %8s %6s\n",
        "", "", "tokens", "times", "per cpu", "step", "compute", "no", "engine", "plan", "commit", "worst", "cpu",
        "load", "model", "streams", "per s", "one", "second", "ms", "idle", "step", "us/step", "us", "us", "gap ms",
        "share");
    for (int round = 0; round < b->s->rounds; round++)
        for (int i = 0; i < b->s->stream_counts; i++)
            if (!decode(b, b->s->streams[i], &all[i][round])) return false;
    double one = 0;
    for (int i = 0; i < b->s->stream_counts; i++) {
        rates r = median_rates(all[i], b->s->rounds);
        if (i == 0) one = r.tokens_per_s;
        print_rates(b, b->s->streams[i], &r, one);
    }
    return true;
}

/* ---------------------------------------------------------------- fairness */

static double worst_gap(bench *b, int from, int to, bool reset) {
    double worst = 0;
    for (int i = from; i < to; i++) {
        stream *s = &b->streams[i];
        if (s->worst_gap_ms > worst) worst = s->worst_gap_ms;
        if (reset) s->worst_gap_ms = 0;
    }
    return worst;
}

static double first_token_ms(const stream *s) {
    return (double)(s->first_ns - s->submitted_ns) / 1e6;
}

/* Four running streams; a long prompt and a short one behind it; then a crowd. */
static bool fairness_round(bench *b, double unloaded[1], report *line) {
    enum { RUNNING = 4, LONG = RUNNING, SHORT, FIRST_ARRIVAL };
    stream *s = b->streams;
    bool good = start(b, &s[SHORT], SHORT_PROMPT, 4) && wait_for(b, &s[SHORT], 1, 1);
    *unloaded = good ? first_token_ms(&s[SHORT]) : 0;
    end(&s[SHORT], 1);
    for (int i = 0; i < RUNNING && good; i++) good = start(b, &s[i], SHORT_PROMPT, 100000);
    good = good && wait_for(b, s, RUNNING, 3);
    worst_gap(b, 0, RUNNING, true);
    good = good && wait_for(b, s, RUNNING, s[0].tokens + 50);
    report_number(line, "gap_alone_ms", worst_gap(b, 0, RUNNING, true));
    good = good && start(b, &s[LONG], LONG_PROMPT, 4);
    sleep_us(100000);
    good = good && start(b, &s[SHORT], SHORT_PROMPT, 4) && wait_for(b, &s[SHORT], 1, 1);
    report_number(line, "short_first_token_ms", good ? first_token_ms(&s[SHORT]) : 0);
    good = good && wait_for(b, &s[LONG], 1, 1);
    report_number(line, "long_first_token_ms", good ? first_token_ms(&s[LONG]) : 0);
    report_number(line, "gap_beside_long_ms", worst_gap(b, 0, RUNNING, true));
    end(&s[LONG], 2);
    for (int i = 0; i < ARRIVALS && good; i++) good = start(b, &s[FIRST_ARRIVAL + i], ARRIVAL_PROMPT, 32);
    good = good && wait_for(b, &s[FIRST_ARRIVAL], ARRIVALS, 32);
    report_number(line, "gap_beside_arrivals_ms", worst_gap(b, 0, RUNNING, true));
    report_number(line, "gap_of_arrivals_ms", worst_gap(b, FIRST_ARRIVAL, FIRST_ARRIVAL + ARRIVALS, true));
    double last = 0;
    for (int i = 0; i < ARRIVALS && good; i++)
        if (first_token_ms(&s[FIRST_ARRIVAL + i]) > last) last = first_token_ms(&s[FIRST_ARRIVAL + i]);
    report_number(line, "last_arrival_first_token_ms", last);
    end(s, FIRST_ARRIVAL + ARRIVALS);
    return good;
}

static bool fairness(bench *b) {
    for (int round = 0; round < b->s->rounds; round++) {
        report line;
        double unloaded;
        report_begin(&line, "engine", "fairness");
        report_text(&line, "model", b->name);
        report_integer(&line, "threads", di_pool_threads(b->engine->pool));
        report_integer(&line, "long_prompt", LONG_PROMPT);
        bool good = fairness_round(b, &unloaded, &line);
        double gap = 1000 * di_step_model_gap(&b->engine->step_model, 4, b->engine->max_gap_ms);
        report_number(&line, "unloaded_first_token_ms", unloaded);
        report_number(&line, "max_gap_ms", gap);
        report_number(&line, "short_limit_ms", 2 * unloaded + gap);
        report_number(&line, "load", load_average());
        if (good) fprintf(stderr, "%s\n", line.text.failed ? "" : line.text.data);
        report_end(&line);
        if (!good) return false;
    }
    return true;
}

/* ---------------------------------------------------------------- a busy neighbour */

static bool neighbour(bench *b) {
    double quiet[MAX_ROUNDS], busy[MAX_ROUNDS];
    for (int round = 0; round < b->s->rounds; round++) {
        rates r;
        if (!decode(b, 1, &r)) return false;
        quiet[round] = r.tokens_per_s;
        pid_t child = fork();
        if (child < 0) return false;
        if (child == 0)
            for (volatile int i = 0;; i++) {
            }
        bool good = decode(b, 1, &r);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        if (!good) return false;
        busy[round] = r.tokens_per_s;
    }
    double before = median(quiet, b->s->rounds), beside = median(busy, b->s->rounds);
    report line;
    report_begin(&line, "engine", "neighbour");
    report_text(&line, "model", b->name);
    report_integer(&line, "threads", di_pool_threads(b->engine->pool));
    report_number(&line, "quiet_tokens_per_s", before);
    report_number(&line, "busy_tokens_per_s", beside);
    report_number(&line, "kept", beside / before);
    report_number(&line, "load", load_average());
    report_end(&line);
    fprintf(stderr, "\n%s, one stream: %.1f tokens/s, %.1f with a busy neighbour process: %.0f %%\n", b->name, before,
            beside, 100 * beside / before);
    return true;
}

/* ---------------------------------------------------------------- main */

static bool run_model(bench *b, const char *name, const char *path, bool dummy, int argc, char **argv) {
    di_error error = {0};
    const di_option options[] = {{"threads", b->s->threads},
                                 {"spec", "off"},
                                 {"max-seqs", "256"},
                                 {"max-rows", "256"},
                                 {"cache-ram", "64M"},
                                 {"max-queue", "1024"},
                                 {"load-format", dummy ? "dummy" : "auto"}};
    int64_t start_ns = di_now_ns();
    if (di_open(path, options, sizeof options / sizeof *options, &b->engine, &error) != DI_OK) {
        fprintf(stderr, "bench_engine: %s\n", error.message);
        return false;
    }
    double open_ms = (double)(di_now_ns() - start_ns) / 1e6;
    const di_model_info *info = di_engine_info(b->engine);
    b->name = name;
    report line;
    report_environment(&line, "engine", argc, argv);
    report_text(&line, "model", name);
    report_text(&line, "fingerprint", info->fingerprint);
    report_text(&line, "profile", info->profile);
    report_text(&line, "isa", info->isa);
    report_integer(&line, "threads", di_pool_threads(b->engine->pool));
    report_number(&line, "open_ms", open_ms);
    report_end(&line);
    bool good = !b->s->throughput || throughput(b);
    if (good && b->s->fairness && info->context > LONG_PROMPT + 64) good = fairness(b);
    if (good && b->s->neighbour) good = neighbour(b);
    end(b->streams, MAX_STREAMS);
    di_close(b->engine);
    return good;
}

static int usage(void) {
    fprintf(stderr,
            "usage: bench_engine [--model tiny|large|PATH] [--dummy] [--threads N] [--rounds 1..%d] [--seconds S]\n"
            "                    [--prompt N] [--streams 1..%d]... [--part throughput|fairness|neighbour]...\n",
            MAX_ROUNDS, MAX_STREAMS);
    return 2;
}

static bool parse(settings *s, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--dummy")) {
            s->dummy = true;
            continue;
        }
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : "";
        int number = atoi(value);
        if (!strcmp(name, "--model") && value[0])
            s->model = value;
        else if (!strcmp(name, "--threads") && number > 0)
            s->threads = value;
        else if (!strcmp(name, "--rounds") && number > 0 && number <= MAX_ROUNDS)
            s->rounds = number;
        else if (!strcmp(name, "--seconds") && strtod(value, NULL) > 0)
            s->seconds = strtod(value, NULL);
        else if (!strcmp(name, "--prompt") && number > 0)
            s->prompt = (uint32_t)number;
        else if (!strcmp(name, "--streams") && number > 0 && number <= MAX_STREAMS && s->stream_counts < MAX_COUNTS)
            s->streams[s->stream_counts++] = number;
        else if (!strcmp(name, "--part") && !strcmp(value, "throughput"))
            s->throughput = true;
        else if (!strcmp(name, "--part") && !strcmp(value, "fairness"))
            s->fairness = true;
        else if (!strcmp(name, "--part") && !strcmp(value, "neighbour"))
            s->neighbour = true;
        else
            return false;
    }
    return true;
}

int main(int argc, char **argv) {
    static bench b;
    settings s = {.threads = "0", .rounds = 3, .seconds = 1, .prompt = 8};
    if (!parse(&s, argc, argv)) return usage();
    if (!s.throughput && !s.fairness && !s.neighbour) s.throughput = s.fairness = s.neighbour = true;
    if (!s.stream_counts) {
        s.stream_counts = 4;
        memcpy(s.streams, (int[]){1, 8, 50, 256}, 4 * sizeof *s.streams);
    }
    b = (bench){.s = &s, .noise = 1};
    static const char tiny[] = DI_SOURCE_DIR "/models/tiny", large[] = DI_SOURCE_DIR "/bench/shapes/large.json";
    if (s.model && strcmp(s.model, "tiny") != 0 && strcmp(s.model, "large") != 0)
        return run_model(&b, strrchr(s.model, '/') ? strrchr(s.model, '/') + 1 : s.model, s.model, s.dummy, argc, argv)
                   ? 0
                   : 1;
    bool good = true;
    if (!s.model || !strcmp(s.model, "tiny")) good = run_model(&b, "tiny", tiny, s.dummy, argc, argv);
    if (good &&
        (!s.model || !strcmp(s.model, "large"))) { /* gaps and neighbours are about the engine: tiny shows them */
        if (!s.model) s.fairness = s.neighbour = false;
        if (!s.model && s.stream_counts == 4) s.stream_counts = 3;
        good = run_model(&b, "large", large, true, argc, argv);
    }
    return good ? 0 : 1;
}
