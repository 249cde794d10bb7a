/* draft.c - the draft head on held-out prompts: how many drafts the target would accept, by kind and position, greedy
 * and with noise; and what a block and verification rows cost in plain steps.
 *
 * Every token of the target's own continuation (up to its end of text) is an anchor once. `accepted[k]` is the share of
 * anchors with more than k tokens behind them whose drafts 1 .. k + 1 equal those tokens. `tau` is 1 + the mean number
 * of accepted drafts over all anchors, so short where the text ends. `tau_ratio` is what rejection sampling with the
 * same drafts would commit: 1 + the mean of sum_k prod_{i<=k} min(1, p_i / q_i).
 *
 * bench_draft [--model FOLDER] [--prompts N of each kind] [--threads N] [--calibration FILE] [--temperature T]...
 *
 * --calibration writes the temperatures of the confidences that fit the last temperature's run.
 */
#include "report.h"

#include "backend/cpu/cpu.h"
#include "backend/cpu/cpu_internal.h"
#include "backend/sample.h"
#include "base/json.h"
#include "cache/state.h"
#include "model/model.h"
#include "spec/calibration.h"

#include <math.h>

enum { MAX_BLOCK = 8, MAX_TEMPERATURES = 4, MAX_ANSWER = 200, MAX_KINDS = 16, COST_ROUNDS = 40, COST_CONTEXT = 300 };

typedef struct settings {
    const char *folder, *calibration;
    int prompts, threads, temperature_count;
    float temperatures[MAX_TEMPERATURES];
} settings;

typedef struct tally {
    char kind[32];
    uint64_t prompts, anchors, tried[MAX_BLOCK], accepted[MAX_BLOCK], drafts, cycles, committed;
    double confidence[MAX_BLOCK]; /* sum of survivals that the head expected, over `tried` */
    double ratio;                 /* sum of expected accepted drafts under the ratio rule */
} tally;

typedef struct bench {
    const settings *s;
    di_model_config config;
    di_checkpoint *checkpoint;
    di_tokenizer *tokenizer;
    di_pool *pool;
    di_backend *backend;
    di_model *model;
    di_page_pool *pages;
    di_step *step;
    di_draft *draft;
    uint32_t block;
    float *draft_logits; /* [block][V] of the last block */
    tally tallies[MAX_KINDS];
    int kind_count;
    /* for the calibration */
    float *confidences; /* [samples][block] */
    uint32_t *accepted, *behind;
    uint32_t samples, sample_capacity;
} bench;

static bool failed(const di_error *error) {
    fprintf(stderr, "bench_draft: %s\n", error->message);
    return false;
}

/* ---------------------------------------------------------------- running the model */

/* Computes rows; logits of those from logits_from on. Commits `commit` of them. */
static bool run_rows(bench *b, di_state *state, const int32_t *ids, uint32_t count, uint32_t logits_from,
                     uint32_t commit) {
    di_error error = {0};
    uint32_t index, first;
    di_status status;
    if (di_state_reserve(state, (uint32_t)di_state_length(state) + count, &error)) return failed(&error);
    di_step_entry entry = {.state = *di_state_get_view(state),
                           .tokens = ids,
                           .count = count,
                           .logits_from = logits_from,
                           .replay_from = -1,
                           .taps = true};
    di_step_clear(b->step);
    if (di_step_add(b->step, &entry, &index, &first, &error) || di_model_submit(b->model, b->step, &error))
        return failed(&error);
    di_model_poll(b->model, b->step, true, &status, &error);
    if (status) return failed(&error);
    di_model_commit(b->model, b->step, index, commit, di_state_get_view(state));
    return true;
}

static bool run_draft(bench *b, di_state *state, int32_t anchor, float temperature, uint32_t length, int32_t *drafts,
                      float *confidence) {
    di_error error = {0};
    di_draft_entry entry = {.state = di_state_get_view(state), .anchor = anchor, .temperature = temperature, .key = 1};
    return di_model_draft(b->model, b->draft, &entry, 1, length, drafts, confidence, &error) == DI_OK || failed(&error);
}

/* The sampler's choice from a row of the step. */
static int32_t choose(bench *b, uint32_t row, int32_t position, float temperature) {
    di_sample_item item = {.logits_row = row,
                           .position = position,
                           .key = 1,
                           .temperature = temperature,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .forced = -1,
                           .logprobs = -1};
    di_sample_result result;
    di_sample_args args = {.logits = di_step_logits(b->step),
                           .vocabulary = b->config.vocab_size,
                           .count = 1,
                           .items = &item,
                           .results = &result};
    b->backend->ops->sample(b->backend, &args);
    return result.token_id;
}

static void keep_logits(void *arg, const char *name, di_buffer data, di_dtype dtype, uint32_t rows, uint32_t width) {
    bench *b = arg;
    (void)dtype;
    if (strcmp(name, "draft.logits") == 0)
        memcpy(b->draft_logits, di_cpu_at(data), (size_t)rows * width * sizeof(float));
}

static bool ends(const bench *b, int32_t token) {
    for (uint32_t i = 0; i < b->config.eos_count; i++)
        if (b->config.eos_token_ids[i] == token) return true;
    return false;
}

/* ---------------------------------------------------------------- acceptance */

/* log softmax(logits / T) at id */
static double log_probability(const float *logits, uint32_t v, double temperature, int32_t id) {
    double max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < v; i++) max = logits[i] > max ? logits[i] : max;
    for (uint32_t i = 0; i < v; i++) sum += exp((logits[i] - max) / temperature);
    return (logits[id] - max) / temperature - log(sum);
}

/* Probabilities that the ratio rule accepts drafts 1 .. j + 1 too. */
static void ratio_rule(const bench *b, const int32_t *drafts, float temperature, double *survivals) {
    const float *target = di_cpu_at(di_step_logits(b->step));
    uint32_t v = b->config.vocab_size;
    double survival = 1;
    for (uint32_t j = 0; j < b->block; j++) {
        double p = log_probability(target + (size_t)j * v, v, (double)temperature, drafts[j]);
        double q = log_probability(b->draft_logits + (size_t)j * v, v, (double)temperature, drafts[j]);
        survival *= p < q ? exp(p - q) : 1;
        survivals[j] = survival;
    }
}

typedef struct answer {
    int32_t tokens[MAX_ANSWER];
    int32_t drafts[MAX_ANSWER][MAX_BLOCK];
    float confidence[MAX_ANSWER][MAX_BLOCK];
    double ratio[MAX_ANSWER][MAX_BLOCK];
    uint32_t count;
} answer;

/* Continues the prompt; every token is an anchor before its own row is computed. */
static bool continue_prompt(bench *b, const int32_t *ids, uint32_t count, float temperature, answer *a) {
    di_error error = {0};
    di_state *state = NULL;
    if (di_state_new(b->pages, count + MAX_ANSWER + MAX_BLOCK + 1, &state, &error)) return failed(&error);
    bool good = run_rows(b, state, ids, count, count - 1, count);
    a->count = 0;
    while (good && a->count < MAX_ANSWER) {
        int32_t n = di_state_length(state), rows[MAX_BLOCK + 1];
        uint32_t i = a->count;
        rows[0] = a->tokens[a->count++] = choose(b, 0, n, temperature);
        if (ends(b, rows[0])) break;
        good = run_draft(b, state, rows[0], temperature, b->block, a->drafts[i], a->confidence[i]);
        memcpy(rows + 1, a->drafts[i], b->block * sizeof *rows);
        good = good && run_rows(b, state, rows, temperature > 0 ? b->block + 1 : 1, 0, 1);
        if (good && temperature > 0) ratio_rule(b, a->drafts[i], temperature, a->ratio[i]);
    }
    di_state_free(state);
    return good;
}

static uint32_t accepted_from(const bench *b, const answer *a, uint32_t i) {
    uint32_t n = 0;
    while (n < b->block && i + 1 + n < a->count && a->drafts[i][n] == a->tokens[i + 1 + n]) n++;
    return n;
}

static void count_answer(const bench *b, const answer *a, tally *t) {
    t->prompts++;
    for (uint32_t i = 0; i + 1 < a->count; t->cycles++) {
        uint32_t step = accepted_from(b, a, i) + 1;
        if (step > a->count - 1 - i) step = a->count - 1 - i;
        t->committed += step;
        i += step;
    }
    for (uint32_t i = 0; i < a->count && !ends(b, a->tokens[i]); i++) {
        uint32_t behind = a->count - 1 - i;
        bool equal = true;
        double survival = 1;
        t->anchors++;
        for (uint32_t j = 0; j < b->block && j < behind; j++) {
            equal = equal && a->drafts[i][j] == a->tokens[i + 1 + j];
            survival /= 1 + exp(-(double)a->confidence[i][j]);
            t->tried[j]++;
            t->accepted[j] += equal;
            t->drafts += equal;
            t->ratio += a->ratio[i][j];
            t->confidence[j] += survival;
        }
    }
}

static bool keep_samples(bench *b, const answer *a) {
    uint32_t need = b->samples + a->count;
    if (need > b->sample_capacity) {
        uint32_t capacity = 2 * need;
        float *confidences = realloc(b->confidences, (size_t)capacity * b->block * sizeof *confidences);
        if (confidences) b->confidences = confidences;
        uint32_t *accepted = confidences ? realloc(b->accepted, capacity * sizeof *accepted) : NULL;
        if (accepted) b->accepted = accepted;
        uint32_t *behind = accepted ? realloc(b->behind, capacity * sizeof *behind) : NULL;
        if (!behind) return false;
        b->behind = behind;
        b->sample_capacity = capacity;
    }
    for (uint32_t i = 0; i < a->count && !ends(b, a->tokens[i]); i++, b->samples++) {
        memcpy(b->confidences + (size_t)b->samples * b->block, a->confidence[i], b->block * sizeof(float));
        b->accepted[b->samples] = accepted_from(b, a, i);
        b->behind[b->samples] = a->count - 1 - i;
    }
    return true;
}

static bool write_calibration(bench *b) {
    di_calibration c = {.digest = di_model_digest(b->model), .count = b->block};
    di_text text = {0};
    di_calibrate(b->confidences, b->accepted, b->behind, b->samples, b->block, c.temperatures);
    di_calibration_write(&c, &text);
    fprintf(stderr, "%s\n", text.failed ? "out of memory" : text.data);
    FILE *file = b->s->calibration && !text.failed ? fopen(b->s->calibration, "w") : NULL;
    bool good = !b->s->calibration || (file && fprintf(file, "%s\n", text.data) > 0);
    if (file && fclose(file)) good = false;
    if (!good) fprintf(stderr, "bench_draft: cannot write %s\n", b->s->calibration);
    di_text_free(&text);
    return good;
}

static tally *tally_of(bench *b, const char *kind) {
    for (int i = 0; i < b->kind_count; i++)
        if (strcmp(b->tallies[i].kind, kind) == 0) return &b->tallies[i];
    if (b->kind_count == MAX_KINDS) return NULL;
    tally *t = &b->tallies[b->kind_count++];
    *t = (tally){.prompts = 0};
    snprintf(t->kind, sizeof t->kind, "%s", kind);
    return t;
}

static void print_tally(const bench *b, const tally *t, float temperature) {
    report line;
    char name[24];
    double tau = t->cycles ? (double)t->committed / (double)t->cycles : 0;
    report_begin(&line, "draft", "acceptance");
    report_text(&line, "kind", t->kind);
    report_number(&line, "temperature", (double)temperature);
    report_integer(&line, "prompts", (int64_t)t->prompts);
    report_integer(&line, "anchors", (int64_t)t->anchors);
    fprintf(stderr, "%-12s T %.1f %5llu anchors |", t->kind, (double)temperature, (unsigned long long)t->anchors);
    for (uint32_t j = 0; j < b->block; j++) {
        double tried = t->tried[j] ? (double)t->tried[j] : 1;
        snprintf(name, sizeof name, "accepted%u", j + 1);
        report_number(&line, name, (double)t->accepted[j] / tried);
        snprintf(name, sizeof name, "expected%u", j + 1);
        report_number(&line, name, t->confidence[j] / tried);
        fprintf(stderr, " %.3f(%.3f)", (double)t->accepted[j] / tried, t->confidence[j] / tried);
    }
    report_number(&line, "tau", tau);
    fprintf(stderr, " | tau %.3f", tau);
    if (temperature > 0) {
        double anchors = t->anchors ? (double)t->anchors : 1;
        double match = 1 + (double)t->drafts / anchors, ratio = 1 + t->ratio / anchors;
        report_number(&line, "tau_match", match);
        report_number(&line, "tau_ratio", ratio);
        fprintf(stderr, ", all anchors: match %.3f, ratio rule %.3f", match, ratio);
    }
    fprintf(stderr, "\n");
    report_end(&line);
}

static bool read_prompt(const di_json *ids, int32_t *prompt, uint32_t room, uint32_t *count) {
    int64_t value;
    *count = 0;
    if (!ids) return false;
    for (const di_json *item = ids->first; item; item = item->next) {
        if (*count == room || !di_json_int64(item, &value)) return false;
        prompt[(*count)++] = (int32_t)value;
    }
    return *count > 0;
}

static const char *group_of(const char *kind) {
    static const char *const groups[][2] = {{"plain", "chat"},      {"talk", "chat"},         {"coffeechat", "chat"},
                                            {"json", "json (all)"}, {"tools", "tools (all)"}, {"calls", "tools (all)"}};
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(groups[i][0], kind) == 0) return groups[i][1];
    return "other";
}

static bool take_prompt(bench *b, const char *text, size_t length, float temperature) {
    enum { ROOM = 1024 };
    static answer a;
    int32_t prompt[ROOM];
    uint32_t count;
    di_error error = {0};
    const di_json *root = NULL, *kind;
    di_arena *arena = di_arena_new(0);
    bool good = arena && di_json_parse(arena, text, length, 0, &root, &error) == DI_OK &&
                (kind = di_json_get(root, "kind")) && kind->type == DI_JSON_STRING &&
                read_prompt(di_json_get(root, "token_ids"), prompt, ROOM, &count);
    if (!good) fprintf(stderr, "bench_draft: a line of heldout.jsonl has no kind or no token_ids\n");
    tally *one = good ? tally_of(b, kind->text) : NULL, *group = good ? tally_of(b, group_of(kind->text)) : NULL;
    if (one && group && one->prompts < (uint64_t)b->s->prompts) {
        good = continue_prompt(b, prompt, count, temperature, &a);
        if (good) {
            count_answer(b, &a, one);
            count_answer(b, &a, group);
            good = keep_samples(b, &a);
        }
    }
    di_arena_free(arena);
    return good;
}

static bool measure_acceptance(bench *b, float temperature) {
    char path[4096];
    snprintf(path, sizeof path, "%s/heldout.jsonl", b->s->folder);
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "bench_draft: there is no %s\n", path);
        return false;
    }
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool good = true;
    b->kind_count = 0;
    b->samples = 0;
    while (good && (length = getline(&line, &capacity, file)) > 0)
        good = take_prompt(b, line, (size_t)length, temperature);
    free(line);
    fclose(file);
    for (int i = 0; good && i < b->kind_count; i++) print_tally(b, &b->tallies[i], temperature);
    return good && write_calibration(b);
}

/* ---------------------------------------------------------------- cost */

static void print_cost(const char *what, uint32_t rows, double ms, double plain) {
    report line;
    report_begin(&line, "draft", "cost");
    report_text(&line, "what", what);
    report_integer(&line, "rows", rows);
    report_number(&line, "ms", ms);
    report_number(&line, "plain_steps", ms / plain);
    report_number(&line, "load", load_average());
    report_end(&line);
    fprintf(stderr, "%-8s %u rows | %8.3f ms  %5.2f plain steps\n", what, rows, ms, ms / plain);
}

/* Best of COST_ROUNDS each, taken in turns: other work on the machine only adds time. */
static bool measure_cost(bench *b) {
    di_error error = {0};
    int32_t ids[COST_CONTEXT + MAX_BLOCK], drafts[MAX_BLOCK];
    float confidence[MAX_BLOCK];
    double rows_ms[MAX_BLOCK + 1], draft_ms[MAX_BLOCK + 1];
    uint64_t noise = 1;
    di_state *state = NULL;
    for (int i = 0; i <= MAX_BLOCK; i++) rows_ms[i] = draft_ms[i] = INFINITY;
    for (int i = 0; i < COST_CONTEXT + MAX_BLOCK; i++) ids[i] = some_id(&noise, b->config.vocab_size);
    if (di_state_new(b->pages, COST_CONTEXT + MAX_BLOCK, &state, &error)) return failed(&error);
    bool good = run_rows(b, state, ids, COST_CONTEXT, COST_CONTEXT - 1, COST_CONTEXT);
    for (int round = 0; good && round < COST_ROUNDS; round++) {
        for (uint32_t n = 1; good && n <= MAX_BLOCK; n++) {
            int64_t start = di_now_ns();
            good = run_rows(b, state, ids + COST_CONTEXT, n, 0, 0);
            double ms = di_ms(di_now_ns() - start);
            if (ms < rows_ms[n]) rows_ms[n] = ms;
        }
        for (uint32_t n = 1; good && n <= b->block; n++) {
            int64_t start = di_now_ns();
            good = run_draft(b, state, ids[COST_CONTEXT], 0, n, drafts, confidence);
            double ms = di_ms(di_now_ns() - start);
            if (ms < draft_ms[n]) draft_ms[n] = ms;
        }
    }
    di_state_free(state);
    for (uint32_t n = 1; good && n <= MAX_BLOCK; n++) print_cost("rows", n, rows_ms[n], rows_ms[1]);
    for (uint32_t n = 1; good && n <= b->block; n++) print_cost("block", n, draft_ms[n], rows_ms[1]);
    return good;
}

/* ---------------------------------------------------------------- program */

static bool open_all(bench *b) {
    di_error error = {0};
    char tokenizer[4096], note[256];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", b->s->folder);
    if (di_model_config_load(b->s->folder, &b->config, &error) ||
        di_checkpoint_open(b->s->folder, NULL, &b->checkpoint, &error) ||
        di_checkpoint_verify(b->checkpoint, &b->config, &error) ||
        di_tokenizer_load(tokenizer, &b->tokenizer, &error) || di_pool_new(b->s->threads, &b->pool, &error) ||
        di_cpu_backend_new("auto", b->pool, note, &b->backend, &error))
        return failed(&error);
    const di_model_options options = {.context = b->config.max_position_embeddings, .draft = true};
    if (di_model_open(b->s->folder, &b->config, b->checkpoint, b->tokenizer, b->backend, &options, &b->model, &error) ||
        di_page_pool_new(b->model, 1024, &b->pages, &error) ||
        di_step_new(b->model, 1024, 1, MAX_BLOCK + 1, &b->step, &error) || di_draft_new(b->model, 1, &b->draft, &error))
        return failed(&error);
    b->block = di_draft_length(b->model);
    if (b->block > MAX_BLOCK) b->block = MAX_BLOCK;
    b->draft_logits = malloc((size_t)b->block * b->config.vocab_size * sizeof *b->draft_logits);
    return b->draft_logits != NULL;
}

static void close_all(bench *b) {
    free(b->draft_logits);
    free(b->confidences);
    free(b->accepted);
    free(b->behind);
    di_draft_free(b->draft);
    di_step_free(b->step);
    di_page_pool_free(b->pages);
    di_model_close(b->model);
    if (b->backend) b->backend->free(b->backend);
    di_pool_free(b->pool);
    di_tokenizer_free(b->tokenizer);
    di_checkpoint_close(b->checkpoint);
}

static bool parse(settings *s, int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        if (!strcmp(name, "--model"))
            s->folder = value;
        else if (!strcmp(name, "--calibration"))
            s->calibration = value;
        else if (!strcmp(name, "--prompts"))
            s->prompts = atoi(value);
        else if (!strcmp(name, "--threads"))
            s->threads = atoi(value);
        else if (!strcmp(name, "--temperature") && s->temperature_count < MAX_TEMPERATURES)
            s->temperatures[s->temperature_count++] = strtof(value, NULL);
        else
            return false;
    }
    return argc % 2 == 1 && s->prompts >= 0 && s->threads > 0;
}

int main(int argc, char **argv) {
    settings s = {.folder = DI_SOURCE_DIR "/models/tiny", .prompts = 20, .threads = 2};
    static bench b;
    if (!parse(&s, argc, argv)) {
        fprintf(stderr, "usage: bench_draft [--model FOLDER] [--prompts N] [--threads N] [--calibration FILE] "
                        "[--temperature T]...\n"
                        "--prompts 0 measures only what blocks and rows cost\n");
        return 2;
    }
    if (!s.temperature_count) s.temperature_count = 1; /* greedy */
    b.s = &s;
    print_environment("draft");
    bool good = open_all(&b) && measure_cost(&b);
    if (good) di_model_set_trace(b.model, keep_logits, &b);
    for (int t = 0; good && s.prompts && t < s.temperature_count; t++) good = measure_acceptance(&b, s.temperatures[t]);
    close_all(&b);
    return good ? 0 : 1;
}
