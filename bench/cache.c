/* cache.c - what a hit from the disk tier costs: the first token of a long prompt whose state lies on disk, against
 * computing the prompt, and the gaps between the tokens of running requests meanwhile.
 *
 * bench_cache [--model large|tiny|PATH] [--tokens N] [--computed N] [--threads N] [--rounds N] [--folder DIR]
 *
 * Computing is measured on the first --computed positions of the prompt and taken times their share, which is too
 * little: later rows see more. --computed of --tokens - 1 computes it all. Otherwise the state on disk is made of
 * zeros: reading it costs what reading a computed one costs. Its files are taken out of the page cache before each
 * round.
 */
#include "report.h"

#include "engine/engine_internal.h"

#include <fcntl.h>
#include <ftw.h>

enum { RUNNING = 4, RUNNING_PROMPT = 12 };
static const double MOST_SHARE = 0.03;

typedef struct settings {
    const char *model, *threads, *folder;
    uint32_t tokens, computed;
    int rounds;
} settings;

typedef struct bench {
    const settings *s;
    di_engine *engine;
    int32_t *ids;     /* [tokens] */
    di_status stored; /* of the state made of zeros */
    di_error error;
} bench;

typedef struct first_token {
    double ms;
    uint64_t cached;
} first_token;

static bool failed(const di_error *error) {
    fprintf(stderr, "bench_cache: %s\n", error->message);
    return false;
}

/* ---------------------------------------------------------------- requests */

static di_request *ask(bench *b, const int32_t *ids, uint32_t count, int64_t tokens) {
    di_segment segment = {.token_ids = ids, .token_count = count};
    di_request_params params;
    di_request *request = NULL;
    di_error error = {0};
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling.temperature = 0;
    params.sampling.max_tokens = tokens;
    params.sampling.ignore_eos = true;
    if (di_submit(b->engine, &params, &request, &error) != DI_OK) failed(&error);
    return request;
}

static bool measure_first(bench *b, uint32_t count, first_token *result) {
    di_request *request = ask(b, b->ids, count, 1);
    di_event event;
    bool good = request != NULL;
    while (good && di_request_next(request, -1, &event)) {
        if (event.kind != DI_EVENT_DONE) continue;
        *result = (first_token){.ms = event.timings.first_token_ms, .cached = event.usage.cached_tokens};
        if (event.status != DI_OK) good = failed(&event.error);
    }
    di_request_free(request);
    return good;
}

/* Takes what has come; the worst gap between tokens since the last call. */
static double gaps(di_request **running, double *last_ms) {
    double worst = 0;
    di_event event;
    for (int i = 0; i < RUNNING; i++) {
        while (running[i] && di_request_next(running[i], 0, &event)) {
            if (event.kind != DI_EVENT_TOKEN) continue;
            if (last_ms[i] > 0) worst = fmax(worst, event.timings.total_ms - last_ms[i]);
            last_ms[i] = event.timings.total_ms;
        }
    }
    return worst;
}

/* ---------------------------------------------------------------- the folder */

static int drop_pages(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)place;
    int file = kind == FTW_F ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    fsync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
    return 0;
}

static int remove_entry(const char *path, const struct stat *info, int kind, struct FTW *place) {
    (void)info;
    (void)kind;
    (void)place;
    return remove(path);
}

/* Engine thread: a state of zeros at the position before the prompt's last token, as if it had been computed. */
static void store_zeros(void *arg) {
    bench *b = arg;
    di_state *state = NULL;
    di_backend *backend = b->engine->backend;
    const di_state_layout *layout = di_model_layout(b->engine->model);
    b->stored = di_state_new(b->engine->pages, b->s->tokens, &state, &b->error);
    if (b->stored == DI_OK) b->stored = di_state_begin(state, b->s->tokens - 1, 0, &b->error);
    if (b->stored == DI_OK) {
        const di_state_view *view = di_state_get_view(state);
        backend->ops->fill(backend, view->rolling, 0, layout->rolling_bytes);
        for (uint32_t i = 0; i < view->page_count; i++)
            backend->ops->fill(backend, view->pages[i], 0, layout->page_bytes);
        /* As often as it takes: a state larger than the queue of writes is stored in turns. */
        for (int turn = 0; turn < 64; turn++) {
            di_prefix_publish(b->engine->cache, 0, b->ids, state);
            di_disk_wait_idle(b->engine->disk, 60000);
        }
    }
    di_state_free(state);
}

/* ---------------------------------------------------------------- rounds */

static bool open_engine(bench *b) {
    const settings *s = b->s;
    char context[16];
    snprintf(context, sizeof context, "%u", s->tokens + 1024);
    bool dummy = strcmp(s->model, "large") == 0;
    const char *path = dummy                           ? DI_SOURCE_DIR "/bench/shapes/large.json"
                       : strcmp(s->model, "tiny") == 0 ? DI_SOURCE_DIR "/models/tiny"
                                                       : s->model;
    const di_option options[] = {{"threads", s->threads},
                                 {"spec", "off"},
                                 {"context", context},
                                 {"max-seqs", "8"},
                                 {"cache-ram", "0"},
                                 {"cache-dir", s->folder},
                                 {"cache-disk", "100G"},
                                 {"restore-ms", "600000"},
                                 {"max-gap", "3600000"},
                                 /* computing goes as fast as it can */ {"load-format", dummy ? "dummy" : "auto"}};
    di_error error = {0};
    if (di_open(path, options, sizeof options / sizeof *options, &b->engine, &error) != DI_OK) return failed(&error);
    if (b->ids) return true;
    uint64_t noise = 7;
    b->ids = malloc(s->tokens * sizeof *b->ids);
    for (uint32_t i = 0; b->ids && i < s->tokens; i++)
        b->ids[i] = some_id(&noise, di_engine_info(b->engine)->vocabulary);
    return b->ids != NULL;
}

/* The prompt's first positions, computed; then the whole of it is on disk. */
static bool compute(bench *b, double *cold_ms) {
    const settings *s = b->s;
    first_token cold = {0};
    if (!measure_first(b, s->computed, &cold) || cold.cached) return false;
    *cold_ms = cold.ms * s->tokens / s->computed;
    if (s->computed + 1 >= s->tokens) return true;
    if (!di_hub_call(b->engine->hub, store_zeros, b)) return false;
    return b->stored == DI_OK || failed(&b->error);
}

/* A hit of an engine that has just been opened, and gaps of running requests with and without one beside them. */
static bool hit(bench *b, first_token *result, double *gap_alone, double *gap_beside) {
    di_request *running[RUNNING];
    double last_ms[RUNNING] = {0};
    if (!measure_first(b, b->s->tokens, result)) return false;
    for (int i = 0; i < RUNNING; i++) running[i] = ask(b, b->ids + 1 + i, RUNNING_PROMPT, 1000);
    sleep_us(400000);
    gaps(running, last_ms);
    sleep_us(1500000);
    *gap_alone = gaps(running, last_ms);
    first_token beside;
    bool good = measure_first(b, b->s->tokens, &beside);
    sleep_us(300000);
    *gap_beside = gaps(running, last_ms);
    for (int i = 0; i < RUNNING; i++) di_request_free(running[i]);
    return good;
}

static bool run(bench *b, int argc, char **argv) {
    const settings *s = b->s;
    double cold_ms = 0;
    report line;
    if (!open_engine(b)) return false;
    report_environment(&line, "cache", argc, argv);
    report_text(&line, "model", s->model);
    report_text(&line, "isa", di_engine_info(b->engine)->isa);
    report_integer(&line, "threads", di_pool_threads(b->engine->pool));
    report_end(&line);
    bool good = compute(b, &cold_ms), within = true;
    di_close(b->engine); /* writes what waits */
    for (int round = 0; good && round < s->rounds; round++) {
        first_token warm = {0};
        double gap_alone = 0, gap_beside = 0;
        nftw(s->folder, drop_pages, 16, FTW_PHYS);
        if (!open_engine(b)) return false;
        good = hit(b, &warm, &gap_alone, &gap_beside);
        di_disk_counters disk;
        di_disk_get_counters(b->engine->disk, &disk);
        report_begin(&line, "cache", "hit from disk");
        report_integer(&line, "tokens", s->tokens);
        report_integer(&line, "cached_tokens", (int64_t)warm.cached);
        report_integer(&line, "read_bytes", (int64_t)(disk.loads ? disk.loaded_bytes / disk.loads : 0));
        report_number(&line, "first_token_ms", warm.ms);
        report_number(&line, "computed_ms_at_least", cold_ms);
        report_number(&line, "share", warm.ms / cold_ms);
        report_number(&line, "gap_alone_ms", gap_alone);
        report_number(&line, "gap_beside_hit_ms", gap_beside);
        report_number(&line, "load", load_average());
        report_end(&line);
        fprintf(stderr,
                "%u tokens from disk: first token after %.1f ms, %.2f %% of %.0f ms; gaps %.1f ms, beside %.1f ms\n",
                s->tokens, warm.ms, 100 * warm.ms / cold_ms, cold_ms, gap_alone, gap_beside);
        within = within && warm.ms <= MOST_SHARE * cold_ms;
        if (good && warm.cached + 1 != s->tokens) {
            fprintf(stderr, "bench_cache: only %llu tokens were found\n", (unsigned long long)warm.cached);
            good = false;
        }
        di_close(b->engine);
    }
    if (good && !within) fprintf(stderr, "bench_cache: more than %.0f %% of computing\n", 100 * MOST_SHARE);
    return good && within;
}

/* ---------------------------------------------------------------- main */

static int usage(void) {
    fprintf(stderr,
            "usage: bench_cache [--model large|tiny|PATH] [--tokens N] [--computed N] [--threads N] [--rounds 1..%d]\n"
            "                   [--folder DIR]\n",
            MAX_ROUNDS);
    return 2;
}

int main(int argc, char **argv) {
    char made[] = "/tmp/bench-cache-XXXXXX";
    settings s = {.model = "large", .threads = "0", .tokens = 32768, .computed = 1024, .rounds = 3};
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[++i] : "";
        int number = atoi(value);
        if (!strcmp(name, "--model") && value[0])
            s.model = value;
        else if (!strcmp(name, "--folder") && value[0])
            s.folder = value;
        else if (!strcmp(name, "--threads") && number > 0)
            s.threads = value;
        else if (!strcmp(name, "--rounds") && number > 0 && number <= MAX_ROUNDS)
            s.rounds = number;
        else if (!strcmp(name, "--tokens") && number >= 256)
            s.tokens = (uint32_t)number;
        else if (!strcmp(name, "--computed") && number >= 16)
            s.computed = (uint32_t)number;
        else
            return usage();
    }
    if (s.computed >= s.tokens) return usage();
    bool own = !s.folder;
    if (own) s.folder = mkdtemp(made);
    if (!s.folder) {
        perror("bench_cache: /tmp");
        return 1;
    }
    bench b = {.s = &s};
    bool good = run(&b, argc, argv);
    free(b.ids);
    if (own) nftw(s.folder, remove_entry, 16, FTW_PHYS | FTW_DEPTH);
    return good ? 0 : 1;
}
