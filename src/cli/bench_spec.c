/* bench_spec.c - see bench_spec.h. JSON lines on stdout, the environment first; tables for people on stderr.
 *
 *   cost        a step of 1 to 8 rows of one sequence, a block of drafts, and a cycle, which is a block and the step
 *               that verifies it, in milliseconds and plain steps
 *   acceptance  by kind of text and temperature, whole blocks verified: how often draft 1, 2, ... is right when those
 *               before it are, tokens a cycle (tau), and the conversion 1 + n * rate of drafts a cycle and their rate
 *   speed       tokens a second with every --spec, in turns with an engine that has none, at 1, 8 and 50 streams, or
 *               at --clients; of one stream also without the prompts, and what tau and the cost of a cycle promise
 *
 * When --spec is given there is only its speed, in five times as many turns (--spec off says how much the machine
 * scatters).
 *
 * With --calibrate only the temperatures of the confidences are fitted and written. The text is --input: JSON lines
 * with "prompt" or "token_ids", and perhaps "kind"; without it heldout.jsonl of the model's folder.
 */
#include "cli/bench_spec.h"
#include "cli/bench_load.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/pool.h"
#include "engine/engine.h"
#include "spec/calibration.h"

enum {
    MOST_KINDS = 16,
    MOST_PROMPTS = 4096,
    BLOCK = DI_CALIBRATION_MOST,
    USUAL_TOKENS = 60,
    ROUNDS = 3,       /* of a sweep */
    MOST_ROUNDS = 15, /* of one --spec alone */
    COST_ROUNDS = 40,
    COST_CONTEXT = 300,
    PROMPTS_A_STREAM = 4,
    LEAST_PROMPTS = 12,
    FEW_SAMPLES = 500,
};

typedef struct text {
    int32_t *ids; /* [count] */
    size_t count;
    char kind[24];
} text;

/* What a number of answers showed. */
typedef struct tally {
    char kind[24];
    uint64_t answers, tokens, cycles, drafted, accepted, tried[BLOCK], right[BLOCK];
} tally;

typedef struct samples { /* of the calibration */
    float *confidences;  /* [count][block] */
    uint32_t *accepted, *behind;
    uint32_t count, room, failed;
} samples;

typedef struct bench {
    di_cli *cli;
    di_arena *arena;
    di_engine *plain, *drafts; /* plain: --spec off */
    text *texts;               /* [count] */
    uint32_t count, block;
    int64_t max_tokens;
    float temperature;
    const char *spec; /* the one to measure; NULL = all */
    char cut[16];     /* that one, if the block is shorter */
    int rounds;
    double cycle_steps[BLOCK + 1]; /* plain steps of a cycle with so many drafts; 0 = not measured */
    tally kinds[MOST_KINDS + 1];   /* all of them first */
    uint32_t kind_count;
    samples samples;
    di_text line;
    di_json_writer json;
} bench;

/* ---------------------------------------------------------------- lines */

static void begin_line(bench *b, const char *what) {
    di_text_clear(&b->line);
    di_json_begin(&b->json, &b->line);
    b->json.spaces = true;
    di_json_object_begin(&b->json);
    di_json_key(&b->json, "bench");
    di_json_string(&b->json, "spec");
    di_json_key(&b->json, "what");
    di_json_string(&b->json, what);
}

static void put_text(bench *b, const char *key, const char *value) {
    di_json_key(&b->json, key);
    di_json_string(&b->json, value);
}

static void put_count(bench *b, const char *key, uint64_t value) {
    di_json_key(&b->json, key);
    di_json_unsigned(&b->json, value);
}

static double rounded(double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.4g", isfinite(value) ? value : 0);
    return strtod(digits, NULL);
}

/* Four digits are more than a measurement holds. */
static void put_number(bench *b, const char *key, double value) {
    di_json_key(&b->json, key);
    di_json_number(&b->json, rounded(value));
}

static di_status end_line(bench *b, di_error *error) {
    di_json_object_end(&b->json);
    di_text_putc(&b->line, '\n');
    if (b->line.failed) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a line of output");
    return di_cli_write(b->line.data, b->line.length, error);
}

static void processor(char *name, size_t size) {
    snprintf(name, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(name, size, "%s", colon + 1 + (colon[1] == ' '));
        break;
    }
    if (file) fclose(file);
}

static di_status write_environment(bench *b, di_error *error) {
    char name[256];
    double load[1];
    const di_model_info *info = di_engine_info(b->drafts);
    processor(name, sizeof name);
    begin_line(b, "environment");
    put_text(b, "machine", name);
    put_count(b, "cores", (uint64_t)di_usable_cores());
    put_number(b, "load", getloadavg(load, 1) == 1 ? load[0] : -1);
    put_text(b, "version", di_version());
    put_text(b, "compiler", __VERSION__);
    put_text(b, "model", info->path);
    put_text(b, "fingerprint", info->fingerprint);
    put_text(b, "profile", info->profile);
    put_text(b, "isa", info->isa);
    put_count(b, "block", b->block);
    put_count(b, "prompts", b->count);
    put_count(b, "max_tokens", (uint64_t)b->max_tokens);
    di_json_key(&b->json, "settings");
    di_json_object_begin(&b->json);
    for (di_config_id id = 0; id < DI_OPT_COUNT; id++)
        if (di_config_is_set(b->cli->config, id) && id != DI_OPT_API_KEY && id != DI_OPT_SPEC)
            put_text(b, di_config_rows()[id].name, di_config_text(b->cli->config, id));
    di_json_object_end(&b->json);
    di_cli_note(b->cli, "%s, %d cores, load %.1f; %u prompts, %lld tokens each", name, di_usable_cores(),
                getloadavg(load, 1) == 1 ? load[0] : -1, b->count, (long long)b->max_tokens);
    return end_line(b, error);
}

/* ---------------------------------------------------------------- text */

static di_status take_text(bench *b, const char *name, uint64_t number, const char *bytes, size_t length,
                           di_error *error) {
    const di_json *line = NULL;
    text *t = &b->texts[b->count];
    di_error inner = {0};
    if (di_json_parse(b->arena, bytes, length, 0, &line, &inner) != DI_OK)
        return di_fail(error, DI_ERR_FORMAT, "input", "%s, line %llu: %s", name, (unsigned long long)number,
                       inner.message);
    const di_json *ids = di_json_get(line, "token_ids"), *prompt = di_json_get(line, "prompt"),
                  *kind = di_json_get(line, "kind");
    snprintf(t->kind, sizeof t->kind, "%s", kind && kind->type == DI_JSON_STRING ? kind->text : "text");
    di_status status = DI_OK;
    if (ids) {
        status = di_cli_json_ids(b->arena, ids, "token_ids", &t->ids, &t->count, &inner);
    } else if (prompt && prompt->type == DI_JSON_STRING) {
        int32_t *own = NULL;
        status = di_tokenize(b->drafts, prompt->text, prompt->length, false, &own, &t->count, &inner);
        t->ids = status == DI_OK ? di_arena_array(b->arena, t->count + 1, sizeof *t->ids) : NULL;
        uint32_t bos = di_engine_info(b->drafts)->bos_token_id;
        size_t at = 0;
        if (t->ids && bos != UINT32_MAX) t->ids[at++] = (int32_t)bos;
        if (t->ids && t->count) memcpy(t->ids + at, own, t->count * sizeof *own);
        t->count += at;
        di_free(own);
    } else {
        status = di_fail(&inner, DI_ERR_INVALID_ARGUMENT, "prompt", "it has neither \"prompt\" nor \"token_ids\"");
    }
    if (status == DI_OK && (!t->ids || !t->count))
        status = di_fail(&inner, DI_ERR_INVALID_ARGUMENT, "prompt", "the prompt is empty");
    if (status != DI_OK)
        return di_fail(error, status, "input", "%s, line %llu: %s", name, (unsigned long long)number, inner.message);
    b->count++;
    return DI_OK;
}

static di_status read_texts(bench *b, di_error *error) {
    char beside[4096];
    const char *path = di_config_text(b->cli->config, DI_OPT_INPUT);
    snprintf(beside, sizeof beside, "%s/heldout.jsonl", di_engine_info(b->drafts)->path);
    if (!path[0]) path = beside;
    char *data = NULL;
    size_t length = 0;
    uint64_t number = 0;
    struct stat info;
    b->texts = di_arena_zalloc(b->arena, MOST_PROMPTS * sizeof *b->texts);
    di_status status = b->texts ? DI_OK : di_fail(error, DI_ERR_MEMORY, "input", "out of memory for the prompts");
    if (status == DI_OK && stat(path, &info) == 0) status = di_cli_check_outputs(b->cli, path, &info, error);
    if (status == DI_OK)
        status = (di_status)di_read_source(path, (size_t)di_config_int(b->cli->config, DI_OPT_LIMIT_PROMPT_BYTES),
                                           &data, &length, error);
    if (status == DI_ERR_NOT_FOUND && path == beside)
        status = di_fail(error, DI_ERR_USAGE, "input",
                         "the model comes with no heldout.jsonl; give prompts with --input FILE, JSON lines");
    for (char *at = data; status == DI_OK && at && at < data + length && b->count < MOST_PROMPTS;) {
        char *end = memchr(at, '\n', (size_t)(data + length - at));
        size_t bytes = end ? (size_t)(end - at) : (size_t)(data + length - at);
        number++;
        if (!di_cli_blank(at, bytes)) status = take_text(b, path, number, at, bytes, error);
        at += bytes + 1;
    }
    free(data);
    if (status == DI_OK && !b->count) status = di_fail(error, DI_ERR_USAGE, "input", "%s holds no prompt", path);
    return status;
}

/* ---------------------------------------------------------------- running */

typedef struct answer {
    di_request *request;
    const text *text;
    tally *kind;
    uint64_t tokens, covered; /* covered: by steps with drafts */
    double prompt_ms;         /* to the first token */
    uint32_t first_sample;    /* of the calibration */
} answer;

static tally *tally_of(bench *b, const char *kind) {
    for (uint32_t i = 1; i <= b->kind_count; i++)
        if (strcmp(b->kinds[i].kind, kind) == 0) return &b->kinds[i];
    if (b->kind_count == MOST_KINDS) return &b->kinds[0];
    tally *t = &b->kinds[++b->kind_count];
    *t = (tally){0};
    snprintf(t->kind, sizeof t->kind, "%s", kind);
    return t;
}

static di_status submit(bench *b, di_engine *engine, const text *t, answer *a, di_error *error) {
    di_segment segment = {.token_ids = t->ids, .token_count = t->count};
    di_request_params params;
    di_request_params_default(&params);
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling.temperature = b->temperature;
    params.sampling.max_tokens = b->max_tokens;
    params.sampling.has_seed = true;
    params.sampling.seq_seed = (uint64_t)(t - b->texts);
    params.draft_records = true;
    *a = (answer){.text = t, .kind = tally_of(b, t->kind), .first_sample = b->samples.count};
    return di_submit(engine, &params, &a->request, error);
}

static void count_record(tally *t, const di_draft_record *r) {
    t->cycles++;
    t->drafted += r->count;
    t->accepted += r->accepted;
    for (size_t j = 0; j < r->count && j <= r->accepted && j < BLOCK; j++) {
        t->tried[j]++;
        t->right[j] += j < r->accepted;
    }
}

/* `behind` holds the position of the first draft until the answer has ended. */
static void keep_sample(bench *b, const di_draft_record *r) {
    samples *s = &b->samples;
    if (!r->confidence || r->count < b->block) return; /* the last drafts of an answer */
    if (s->count == s->room) {
        uint32_t room = 2 * s->room + 1024;
        float *confidences = realloc(s->confidences, (size_t)room * b->block * sizeof *confidences);
        if (confidences) s->confidences = confidences;
        uint32_t *accepted = confidences ? realloc(s->accepted, room * sizeof *accepted) : NULL;
        if (accepted) s->accepted = accepted;
        uint32_t *behind = accepted ? realloc(s->behind, room * sizeof *behind) : NULL;
        if (!behind) {
            s->failed++;
            return;
        }
        s->behind = behind;
        s->room = room;
    }
    for (uint32_t j = 0; j < b->block; j++) { /* back to what the head said; these are chances at temperature 1 */
        double p = fmin(fmax((double)r->confidence[j], 1e-7), 1 - 1e-7);
        s->confidences[(size_t)s->count * b->block + j] = (float)log(p / (1 - p));
    }
    s->accepted[s->count] = (uint32_t)r->accepted;
    s->behind[s->count++] = (uint32_t)r->position;
}

/* Takes what is there; waits for the first event if `wait`. True when the answer has ended. */
static bool take_events(bench *b, answer *a, bool wait, bool sampling, di_error *error) {
    di_event event;
    int timeout = wait ? 20 : 0;
    while (di_request_next(a->request, timeout, &event)) {
        timeout = 0;
        a->tokens += event.kind == DI_EVENT_TOKEN;
        if (event.drafts.count) {
            count_record(&b->kinds[0], &event.drafts);
            if (a->kind != &b->kinds[0]) count_record(a->kind, &event.drafts);
            a->covered += event.drafts.accepted + 1;
            if (sampling) keep_sample(b, &event.drafts);
        }
        if (event.kind != DI_EVENT_DONE) continue;
        if (event.status != DI_OK) *error = event.error;
        a->prompt_ms = event.timings.first_token_ms;
        return true;
    }
    return false;
}

static void end_answer(bench *b, const answer *a) {
    tally *both[] = {&b->kinds[0], a->kind};
    for (size_t i = 0; i < (a->kind == &b->kinds[0] ? 1 : 2); i++) {
        both[i]->answers++;
        both[i]->tokens += a->tokens;
        both[i]->cycles += a->tokens > a->covered ? a->tokens - a->covered : 0; /* steps without drafts */
    }
    uint64_t end = a->text->count + a->tokens;
    for (uint32_t i = a->first_sample; i < b->samples.count; i++)
        b->samples.behind[i] = end > b->samples.behind[i] ? (uint32_t)end - b->samples.behind[i] : 0;
}

typedef struct speed {
    double tokens, seconds, cpu_seconds;
    double decode_seconds; /* of one stream: less the time to the first tokens */
    double decoded;        /* tokens behind those */
} speed;

static double cpu_seconds(void) {
    struct timespec t;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t) ? 0 : (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The first `prompts` texts, `streams` of them at a time. */
static di_status run_texts(bench *b, di_engine *engine, uint32_t prompts, uint32_t streams, bool sampling, speed *out,
                           di_error *error) {
    answer *running = calloc(streams, sizeof *running);
    uint32_t next = 0, count = 0;
    double prompts_ms = 0;
    if (!running) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for %u streams", streams);
    memset(b->kinds, 0, sizeof b->kinds);
    snprintf(b->kinds[0].kind, sizeof b->kinds[0].kind, "all");
    b->kind_count = 0;
    int64_t start = di_now_ns();
    double cpu = cpu_seconds();
    while (error->status == DI_OK && (count || next < prompts)) {
        while (error->status == DI_OK && count < streams && next < prompts)
            if (submit(b, engine, &b->texts[next++ % b->count], &running[count], error) == DI_OK) count++;
        bool waited = false;
        for (uint32_t i = 0; i < count && error->status == DI_OK;) {
            bool ended = take_events(b, &running[i], !waited, sampling, error);
            waited = true;
            if (!ended) {
                i++;
                continue;
            }
            di_request_free(running[i].request);
            prompts_ms += running[i].prompt_ms;
            end_answer(b, &running[i]);
            running[i] = running[--count];
        }
        if (di_cli_interrupted(b->cli)) di_fail(error, DI_ERR_CANCELLED, NULL, "interrupted");
    }
    for (uint32_t i = 0; i < count; i++) di_request_free(running[i].request);
    free(running);
    out->tokens = (double)b->kinds[0].tokens;
    out->seconds = (double)(di_now_ns() - start) / 1e9;
    out->cpu_seconds = cpu_seconds() - cpu;
    out->decode_seconds = out->seconds - prompts_ms / 1e3;
    out->decoded = (double)(b->kinds[0].tokens - b->kinds[0].answers);
    return error->status;
}

/* ---------------------------------------------------------------- parts */

static di_status write_cost(bench *b, const char *key, uint32_t rows, double ms, double plain, di_error *error) {
    begin_line(b, "cost");
    put_count(b, key, rows);
    put_number(b, "ms", ms);
    put_number(b, "plain_steps", ms / plain);
    di_cli_note(b->cli, "%-6s %2u | %9.3f ms | %6.2f plain steps", key, rows, ms, ms / plain);
    return end_line(b, error);
}

_Static_assert((int)DI_SPEC_COST_BLOCK <= (int)BLOCK, "every cycle has its place");

static di_status measure_costs(bench *b, di_error *error) {
    di_spec_costs costs;
    di_status status = di_engine_measure_spec(b->drafts, COST_CONTEXT, COST_ROUNDS, &costs, error);
    for (uint32_t n = 1; n <= DI_SPEC_COST_ROWS && status == DI_OK; n++)
        status = write_cost(b, "rows", n, costs.rows_ms[n - 1], costs.rows_ms[0], error);
    for (uint32_t n = 1; n <= costs.block && status == DI_OK; n++)
        status = write_cost(b, "block", n, costs.block_ms[n - 1], costs.rows_ms[0], error);
    for (uint32_t n = 1; n <= costs.block && costs.cycle_ms[n - 1] > 0 && status == DI_OK; n++) {
        status = write_cost(b, "cycle", n, costs.cycle_ms[n - 1], costs.rows_ms[0], error);
        b->cycle_steps[n] = costs.cycle_ms[n - 1] / costs.rows_ms[0];
    }
    return status;
}

static double share(uint64_t part, uint64_t whole) {
    return whole ? (double)part / (double)whole : 0;
}

static di_status write_acceptance(bench *b, const tally *t, di_error *error) {
    char shown[8 * BLOCK + 1] = "";
    double rate = share(t->accepted, t->drafted), mean = share(t->drafted, t->cycles);
    begin_line(b, "acceptance");
    put_text(b, "kind", t->kind);
    put_number(b, "temperature", (double)b->temperature);
    put_count(b, "answers", t->answers);
    put_count(b, "tokens", t->tokens);
    put_count(b, "cycles", t->cycles);
    put_count(b, "draft_tokens", t->drafted);
    put_count(b, "accepted_draft_tokens", t->accepted);
    di_json_key(&b->json, "rates");
    di_json_array_begin(&b->json);
    for (uint32_t j = 0; j < b->block; j++) {
        di_json_number(&b->json, rounded(share(t->right[j], t->tried[j])));
        snprintf(shown + strlen(shown), sizeof shown - strlen(shown), " %.3f", share(t->right[j], t->tried[j]));
    }
    di_json_array_end(&b->json);
    put_number(b, "tau", share(t->tokens, t->cycles));
    put_number(b, "drafts_a_cycle", mean);
    put_number(b, "rate", rate);
    put_number(b, "tau_converted", 1 + mean * rate);
    di_cli_note(b->cli, "T %.1f %-12s %6llu tokens |%s | tau %.2f, converted 1 + %.2f * %.3f = %.2f",
                (double)b->temperature, t->kind, (unsigned long long)t->tokens, shown, share(t->tokens, t->cycles),
                mean, rate, 1 + mean * rate);
    return end_line(b, error);
}

static di_status measure_acceptance(bench *b, float temperature, di_error *error) {
    char block[16];
    speed unused;
    snprintf(block, sizeof block, "%u", b->block);
    b->temperature = temperature;
    di_status status = di_engine_set_spec(b->drafts, block, error);
    if (status == DI_OK) status = run_texts(b, b->drafts, b->count, 8, false, &unused, error);
    for (uint32_t i = 1; i <= b->kind_count && status == DI_OK; i++) status = write_acceptance(b, &b->kinds[i], error);
    return status == DI_OK ? write_acceptance(b, &b->kinds[0], error) : status;
}

static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, di_bench_compare_doubles);
    return values[count / 2];
}

/* --spec number `i` of the sweep: 1, 2, ... block, auto; or the one that was given. */
static void name_of(const bench *b, uint32_t i, char name[16]) {
    if (b->spec)
        snprintf(name, 16, "%s", b->spec);
    else if (i < b->block)
        snprintf(name, 16, "%u", i + 1);
    else
        snprintf(name, 16, "auto");
}

/* Decoding alone, which the prompts of short answers hide, and what was to be expected of it. */
static void write_decoding(bench *b, const char *spec, const speed *plain, const speed *drafts, double tau) {
    double rates[MOST_ROUNDS] = {0}, ratios[MOST_ROUNDS] = {0};
    size_t rounds = (size_t)b->rounds, length = strtoul(spec, NULL, 10);
    for (size_t r = 0; r < rounds; r++) {
        if (!(plain[r].decoded > 0 && drafts[r].decoded > 0)) return; /* answers of one token */
        rates[r] = drafts[r].decoded / drafts[r].decode_seconds;
        ratios[r] = rates[r] / (plain[r].decoded / plain[r].decode_seconds);
    }
    double rate = median(rates, rounds), ratio = median(ratios, rounds);
    double cycle = length && length <= BLOCK ? b->cycle_steps[length] : 0;
    put_number(b, "decoded_per_s", rate);
    put_number(b, "times_off_decoding", ratio);
    if (cycle > 0) put_number(b, "times_off_expected", tau / cycle);
    di_cli_note(b->cli, "   decoding alone     | %8.1f tokens/s | %5.3f times off", rate, ratio);
    if (cycle > 0) di_cli_note(b->cli, "   tau / cost of cycle |                   | %5.3f times off", tau / cycle);
}

static di_status write_speed(bench *b, uint32_t streams, const char *spec, const speed *plain, const speed *drafts,
                             const tally *t, di_error *error) {
    double rates[MOST_ROUNDS] = {0}, ratios[MOST_ROUNDS] = {0}, cpu[MOST_ROUNDS] = {0};
    size_t rounds = (size_t)b->rounds;
    for (size_t r = 0; r < rounds; r++) {
        rates[r] = drafts[r].tokens / drafts[r].seconds;
        ratios[r] = rates[r] / (plain[r].tokens / plain[r].seconds);
        cpu[r] = drafts[r].tokens / drafts[r].cpu_seconds / (plain[r].tokens / plain[r].cpu_seconds);
    }
    double rate = median(rates, rounds), ratio = median(ratios, rounds), cpu_ratio = median(cpu, rounds);
    begin_line(b, "speed");
    put_count(b, "streams", streams);
    put_text(b, "spec", spec);
    put_number(b, "temperature", (double)b->temperature);
    put_count(b, "rounds", rounds);
    put_number(b, "tokens_per_s", rate);
    put_number(b, "times_off", ratio);
    put_number(b, "times_off_least", ratios[0]);
    put_number(b, "times_off_most", ratios[rounds - 1]);
    put_number(b, "times_off_by_cpu_time", cpu_ratio);
    put_number(b, "tau", share(t->tokens, t->cycles));
    put_number(b, "drafts_a_cycle", share(t->drafted, t->cycles));
    di_cli_note(b->cli,
                "%2u streams --spec %-4s | %8.1f tokens/s | %5.3f times off (%.3f to %.3f), %5.3f by CPU time | tau "
                "%.2f of %.2f drafts",
                streams, spec, rate, ratio, ratios[0], ratios[rounds - 1], cpu_ratio, share(t->tokens, t->cycles),
                share(t->drafted, t->cycles));
    if (streams == 1) write_decoding(b, spec, plain, drafts, share(t->tokens, t->cycles));
    return end_line(b, error);
}

/* One --spec in turns with off, so that what else the machine does meets both; which goes first alternates too. */
static di_status measure_one(bench *b, uint32_t streams, const char *spec, di_error *error) {
    uint32_t prompts = streams * PROMPTS_A_STREAM > LEAST_PROMPTS ? streams * PROMPTS_A_STREAM : LEAST_PROMPTS;
    speed plain[MOST_ROUNDS] = {0}, drafts[MOST_ROUNDS] = {0};
    tally total = {0};
    di_status status = strcmp(spec, "off") == 0 ? DI_OK : di_engine_set_spec(b->drafts, spec, error);
    for (int turn = 0; turn < 2 * b->rounds && status == DI_OK; turn++) {
        int round = turn / 2;
        if (turn % 2 == round % 2) {
            status = run_texts(b, b->plain, prompts, streams, false, &plain[round], error);
        } else {
            status = run_texts(b, b->drafts, prompts, streams, false, &drafts[round], error);
            total = b->kinds[0];
        }
    }
    return status == DI_OK ? write_speed(b, streams, spec, plain, drafts, &total, error) : status;
}

static di_status measure_speed(bench *b, uint32_t streams, di_error *error) {
    di_status status = DI_OK;
    for (uint32_t i = 0; i <= (b->spec ? 0 : b->block) && status == DI_OK; i++) {
        char spec[16];
        name_of(b, i, spec);
        status = measure_one(b, streams, spec, error);
    }
    return status;
}

/* ---------------------------------------------------------------- calibration */

static di_status write_file(const char *path, const di_text *content, di_error *error) {
    FILE *file = fopen(path, "we");
    bool good = file && fwrite(content->data, 1, content->length, file) == content->length && fputc('\n', file) != EOF;
    if (file && fclose(file) != 0) good = false;
    return good ? DI_OK : di_fail_errno(error, DI_ERR_IO, "calibrate", errno, "cannot write %s", path);
}

static di_status calibrate(bench *b, const char *path, di_error *error) {
    char block[16];
    speed unused;
    di_calibration c = {.digest = di_engine_digest(b->drafts), .count = b->block};
    di_text content = {0};
    snprintf(block, sizeof block, "%u", b->block);
    di_status status = di_engine_set_spec(b->drafts, block, error);
    if (status == DI_OK) status = run_texts(b, b->drafts, b->count, 1, true, &unused, error);
    if (status == DI_OK && b->samples.failed)
        status = di_fail(error, DI_ERR_MEMORY, "calibrate", "out of memory for %u samples", b->samples.count);
    if (status == DI_OK && !b->samples.count)
        status = di_fail(error, DI_ERR_UNSUPPORTED, "calibrate",
                         "nothing to fit: no answer had a whole block of drafts with confidences");
    if (status != DI_OK) return status;
    di_calibrate(b->samples.confidences, b->samples.accepted, b->samples.behind, b->samples.count, b->block,
                 c.temperatures);
    di_calibration_write(&c, &content);
    status = content.failed ? di_fail(error, DI_ERR_MEMORY, "calibrate", "out of memory for a file")
                            : write_file(path, &content, error);
    di_text_free(&content);
    if (status != DI_OK) return status;
    begin_line(b, "calibration");
    put_text(b, "file", path);
    put_count(b, "samples", b->samples.count);
    di_json_key(&b->json, "temperatures");
    di_json_array_begin(&b->json);
    for (uint32_t j = 0; j < b->block; j++) di_json_float(&b->json, c.temperatures[j]);
    di_json_array_end(&b->json);
    di_cli_note(b->cli, "%u samples; written to %s, read when it is draft_calibration.json beside the weights%s",
                b->samples.count, path,
                b->samples.count < FEW_SAMPLES ? "; few samples, more text would fit better" : "");
    return end_line(b, error);
}

/* ---------------------------------------------------------------- the command */

static di_status open_engines(bench *b, bool calibrating, di_error *error) {
    di_cli *cli = b->cli;
    di_status status = DI_OK;
    if (!calibrating) {
        status = di_config_set(cli->config, "spec", "off", DI_CONFIG_FLAG, error);
        if (status == DI_OK) status = di_cli_open_engine(cli, &b->plain, error);
    }
    if (status == DI_OK && calibrating)
        status = di_config_set(cli->config, "draft-calibration", "off", DI_CONFIG_FLAG, error);
    const char *spec = b->spec && strcmp(b->spec, "off") == 0 ? "off" : "8";
    if (status == DI_OK) status = di_config_set(cli->config, "spec", spec, DI_CONFIG_FLAG, error);
    if (status == DI_OK) status = di_cli_open_engine(cli, &b->drafts, error);
    if (status == DI_OK) b->block = di_engine_draft_block(b->drafts);
    return status;
}

static di_status measure(bench *b, di_error *error) {
    static const float temperatures[] = {0, 0.6f, 1};
    uint32_t streams[] = {1, 8, 50}, stream_counts = 3;
    const di_config *config = b->cli->config;
    bool one = di_config_is_set(config, DI_OPT_TEMPERATURE);
    float given = one ? (float)di_config_float(config, DI_OPT_TEMPERATURE) : 0;
    const char *path = di_config_text(config, DI_OPT_CALIBRATE);
    int64_t tokens = di_config_int(config, DI_OPT_MAX_TOKENS);
    if (di_config_is_set(config, DI_OPT_CLIENTS)) {
        streams[0] = (uint32_t)di_config_int(config, DI_OPT_CLIENTS);
        stream_counts = 1;
    }
    if (di_config_is_set(config, DI_OPT_SPEC) && !path[0]) { /* open_engines sets the option */
        const char *spec = di_config_text(config, DI_OPT_SPEC);
        b->spec = di_arena_copy(b->arena, spec, strlen(spec));
        if (!b->spec) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
    }
    b->rounds = b->spec ? MOST_ROUNDS : ROUNDS;
    b->max_tokens = tokens > 0 ? tokens : USUAL_TOKENS;
    b->temperature = given;
    di_status status = open_engines(b, path[0], error);
    if (b->spec && strtoul(b->spec, NULL, 10) > b->block && b->block) { /* the engine has said so */
        snprintf(b->cut, sizeof b->cut, "%u", b->block);
        b->spec = b->cut;
    }
    if (status == DI_OK) status = read_texts(b, error);
    if (status == DI_OK) status = write_environment(b, error);
    if (status == DI_OK && path[0]) return calibrate(b, path, error);
    if (status == DI_OK && !b->spec) status = measure_costs(b, error);
    for (size_t i = 0; status == DI_OK && !b->spec && i < (one ? 1 : 3); i++)
        status = measure_acceptance(b, one ? given : temperatures[i], error);
    b->temperature = given;
    for (size_t i = 0; status == DI_OK && i < stream_counts; i++)
        if (streams[i] <= di_engine_max_sequences(b->drafts)) status = measure_speed(b, streams[i], error);
    return status;
}

int di_bench_spec(di_cli *cli) {
    di_error error = {0};
    bench b = {.cli = cli, .arena = di_arena_new(0)};
    di_status status =
        b.arena ? di_cli_catch_interrupts(cli, &error) : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = measure(&b, &error);
    di_close(b.plain);
    di_close(b.drafts);
    di_arena_free(b.arena);
    di_text_free(&b.line);
    free(b.samples.confidences);
    free(b.samples.accepted);
    free(b.samples.behind);
    if (status == DI_ERR_CANCELLED) return DI_EXIT_INTERRUPTED;
    return status == DI_OK ? DI_EXIT_OK : di_cli_report(&error);
}
