/* structured.c - what constrained generation costs others: tokens a second of many streams that all follow JSON Schemas
 * beside as many that write free text of the same length, in turn.
 *
 * bench_structured [--model tiny|PATH] [--threads N] [--streams N] [--tokens N] [--rounds N]
 *
 * "loss" is 1 - structured / free, of tokens by wall time and by processor time; on a shared machine the latter counts.
 */
#include "report.h"

#include "engine/engine_internal.h"

enum { MAX_STREAMS = 256, SCHEMAS = 5 };

/* Arrays that max_tokens ends. */
static const char *const schemas[SCHEMAS] = {
    "{\"type\":\"array\",\"minItems\":100000,\"items\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
    "\"integer\"},"
    "\"name\":{\"type\":\"string\",\"maxLength\":30},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\","
    "\"green\","
    "\"blue\"]},\"maxItems\":3}},\"required\":[\"id\",\"name\"],\"additionalProperties\":false}}",
    "{\"type\":\"array\",\"minItems\":100000,\"items\":{\"type\":\"string\",\"format\":\"date-time\"}}",
    "{\"type\":\"array\",\"minItems\":100000,\"items\":{\"type\":\"string\",\"pattern\":\"^(?:\\\\S+\\\\s+){0,9}\\\\S+$"
    "\","
    "\"maxLength\":80}}",
    "{\"type\":\"array\",\"minItems\":100000,\"items\":{\"anyOf\":[{\"type\":\"number\",\"minimum\":0},{\"type\":"
    "\"boolean\"},"
    "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"maxProperties\":4}]}}",
    "{\"type\":\"array\",\"minItems\":100000,\"items\":{}}"};

typedef struct settings {
    const char *model, *threads;
    int streams, tokens, rounds;
} settings;

typedef struct outcome {
    double tokens_per_s, tokens_per_cpu_s;
} outcome;

static bool submit(di_engine *engine, const settings *s, int index, bool structured, di_request **request) {
    int32_t ids[32];
    di_error error = {0};
    uint64_t noise = (uint64_t)index + 1;
    for (int i = 0; i < 32; i++) ids[i] = some_id(&noise, di_engine_info(engine)->vocabulary);
    di_segment segment = {.token_ids = ids, .token_count = 32};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling.max_tokens = s->tokens;
    params.sampling.ignore_eos = !structured;
    params.sampling.has_seed = true;
    params.sampling.seq_seed = (uint64_t)index;
    if (structured) {
        params.sampling.so_args.schema_type = "json";
        params.sampling.so_args.schema = schemas[index % SCHEMAS];
    }
    if (di_submit(engine, &params, request, &error) == DI_OK) return true;
    fprintf(stderr, "bench_structured: %s\n", error.message);
    return false;
}

/* All streams from the first step to the last token. */
static bool run(di_engine *engine, const settings *s, bool structured, outcome *out) {
    di_request *requests[MAX_STREAMS] = {0};
    uint64_t tokens = 0;
    bool good = true;
    int64_t wall = di_now_ns(), cpu = cpu_ns(CLOCK_PROCESS_CPUTIME_ID), reader = cpu_ns(CLOCK_THREAD_CPUTIME_ID);
    for (int i = 0; i < s->streams && good; i++) good = submit(engine, s, i, structured, &requests[i]);
    for (int i = 0; i < s->streams; i++) {
        di_event event;
        while (requests[i] && di_request_next(requests[i], -1, &event)) {
            tokens += event.kind == DI_EVENT_TOKEN;
            if (event.kind != DI_EVENT_DONE) continue;
            if (event.status != DI_OK) fprintf(stderr, "bench_structured: %s\n", event.error.message);
            good = good && event.status == DI_OK;
        }
        di_request_free(requests[i]);
    }
    wall = di_now_ns() - wall;
    cpu = cpu_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu - (cpu_ns(CLOCK_THREAD_CPUTIME_ID) - reader);
    *out = (outcome){(double)tokens * 1e9 / (double)wall, (double)tokens * 1e9 / (double)cpu};
    if (good && tokens != (uint64_t)s->streams * (uint64_t)s->tokens) {
        fprintf(stderr, "bench_structured: %llu tokens are too few\n", (unsigned long long)tokens);
        good = false;
    }
    return good;
}

static void print_round(const char *what, const outcome *free_text, const outcome *structured) {
    report line;
    report_begin(&line, "structured", what);
    report_number(&line, "free_tokens_per_s", free_text->tokens_per_s);
    report_number(&line, "structured_tokens_per_s", structured->tokens_per_s);
    report_number(&line, "loss", 1 - structured->tokens_per_s / free_text->tokens_per_s);
    report_number(&line, "free_tokens_per_cpu_s", free_text->tokens_per_cpu_s);
    report_number(&line, "structured_tokens_per_cpu_s", structured->tokens_per_cpu_s);
    report_number(&line, "cpu_loss", 1 - structured->tokens_per_cpu_s / free_text->tokens_per_cpu_s);
    report_number(&line, "load", load_average());
    report_end(&line);
}

static bool measure(di_engine *engine, const settings *s) {
    double values[4][MAX_ROUNDS];
    outcome free_text, structured;
    /* The first turn of each compiles and allocates. */
    if (!run(engine, s, true, &structured) || !run(engine, s, false, &free_text)) return false;
    for (int i = 0; i < s->rounds; i++) {
        bool order = i % 2;
        if (!run(engine, s, order, order ? &structured : &free_text)) return false;
        if (!run(engine, s, !order, order ? &free_text : &structured)) return false;
        print_round("round", &free_text, &structured);
        values[0][i] = free_text.tokens_per_s;
        values[1][i] = structured.tokens_per_s;
        values[2][i] = free_text.tokens_per_cpu_s;
        values[3][i] = structured.tokens_per_cpu_s;
    }
    free_text = (outcome){median(values[0], s->rounds), median(values[2], s->rounds)};
    structured = (outcome){median(values[1], s->rounds), median(values[3], s->rounds)};
    print_round("median", &free_text, &structured);
    fprintf(stderr, "%d streams: %.1f tokens/s free, %.1f structured: loss %.1f %%; by processor time %.1f %%\n",
            s->streams, free_text.tokens_per_s, structured.tokens_per_s,
            100 * (1 - structured.tokens_per_s / free_text.tokens_per_s),
            100 * (1 - structured.tokens_per_cpu_s / free_text.tokens_per_cpu_s));
    return true;
}

static bool take(settings *s, const char *name, const char *value) {
    int *number = !strcmp(name, "--streams")  ? &s->streams
                  : !strcmp(name, "--tokens") ? &s->tokens
                  : !strcmp(name, "--rounds") ? &s->rounds
                                              : NULL;
    if (!strcmp(name, "--model")) return (s->model = strcmp(value, "tiny") ? value : s->model) != NULL;
    if (!strcmp(name, "--threads")) return (s->threads = value) != NULL;
    if (!number) return false;
    *number = atoi(value);
    return *number > 0 && s->streams <= MAX_STREAMS && s->rounds <= MAX_ROUNDS;
}

int main(int argc, char **argv) {
    settings s = {.model = DI_SOURCE_DIR "/models/tiny", .threads = "0", .streams = 50, .tokens = 128, .rounds = 5};
    for (int i = 1; i < argc; i += 2)
        if (i + 1 == argc || !take(&s, argv[i], argv[i + 1])) {
            fprintf(stderr, "usage: bench_structured [--model tiny|PATH] [--threads N] [--streams N] [--tokens N] "
                            "[--rounds N]\n");
            return 2;
        }
    report line;
    report_environment(&line, "structured", argc, argv);
    report_end(&line);
    const di_option options[] = {{"threads", s.threads}, {"spec", "off"}};
    di_engine *engine = NULL;
    di_error error = {0};
    if (di_open(s.model, options, 2, &engine, &error) != DI_OK) {
        fprintf(stderr, "bench_structured: %s\n", error.message);
        return 1;
    }
    bool good = measure(engine, &s);
    di_close(engine);
    return good ? 0 : 1;
}
