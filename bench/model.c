/* model.c - speed of the forward pass alone: prefill of a prompt in chunks, and decoding token by token, by threads and
 * instruction set. Variants alternate from round to round; figures are medians.
 *
 * bench_model [--model FOLDER] [--rounds N] [--prompt N] [--decode N] [--chunk N] [--threads N]...
 */
#include "report.h"

#include "backend/cpu/cpu.h"
#include "cache/state.h"
#include "model/model.h"

enum { MAX_THREAD_COUNTS = 4, MAX_VARIANTS = 3 * MAX_THREAD_COUNTS };

typedef struct settings {
    const char *folder;
    int rounds, thread_counts, threads[MAX_THREAD_COUNTS];
    uint32_t prompt, decode, chunk;
} settings;

typedef struct variant {
    int threads;
    const char *isa;
    di_pool *pool;
    di_backend *backend;
    di_model *model;
    di_page_pool *pages;
    di_step *step;
    double prefill[MAX_ROUNDS], decode[MAX_ROUNDS];         /* tokens/s */
    double prefill_cpu[MAX_ROUNDS], decode_cpu[MAX_ROUNDS]; /* tokens a second of processor time */
} variant;

typedef struct bench {
    const settings *s;
    di_model_config config;
    di_checkpoint *checkpoint;
    di_tokenizer *tokenizer;
    int32_t *ids; /* [prompt + decode] */
    variant variants[MAX_VARIANTS];
    int variant_count;
} bench;

static bool failed(const di_error *error) {
    fprintf(stderr, "bench_model: %s\n", error->message);
    return false;
}

/* Rows [from, to) of the ids; logits of the last one. */
static bool feed(bench *b, variant *v, di_state *state, uint32_t from, uint32_t to) {
    di_error error = {0};
    uint32_t index, first;
    if (di_state_reserve(state, to, &error)) return failed(&error);
    di_step_entry entry = {.state = *di_state_get_view(state),
                           .tokens = b->ids + from,
                           .count = to - from,
                           .logits_from = to - from - 1,
                           .replay_from = -1};
    di_step_clear(v->step);
    if (di_step_add(v->step, &entry, &index, &first, &error) || di_model_submit(v->model, v->step, &error))
        return failed(&error);
    di_status status;
    di_model_poll(v->model, v->step, true, &status, &error);
    if (status) return failed(&error);
    di_model_commit(v->model, v->step, index, to - from, di_state_get_view(state));
    return true;
}

static bool measure(bench *b, variant *v, int round) {
    const settings *s = b->s;
    di_error error = {0};
    di_state *state;
    if (di_state_new(v->pages, s->prompt + s->decode, &state, &error)) return failed(&error);
    int64_t start = di_now_ns(), cpu = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    bool good = true;
    for (uint32_t at = 0; at < s->prompt && good; at += s->chunk)
        good = feed(b, v, state, at, s->prompt - at < s->chunk ? s->prompt : at + s->chunk);
    int64_t middle = di_now_ns(), cpu_middle = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint32_t at = s->prompt; at < s->prompt + s->decode && good; at++) good = feed(b, v, state, at, at + 1);
    int64_t end = di_now_ns(), cpu_end = cpu_ns(CLOCK_PROCESS_CPUTIME_ID);
    di_state_free(state);
    v->prefill[round] = s->prompt / ((double)(middle - start) / 1e9);
    v->decode[round] = s->decode / ((double)(end - middle) / 1e9);
    v->prefill_cpu[round] = s->prompt / ((double)(cpu_middle - cpu) / 1e9);
    v->decode_cpu[round] = s->decode / ((double)(cpu_end - cpu_middle) / 1e9);
    return good;
}

static void print(const bench *b, const variant *v) {
    const int rounds = b->s->rounds;
    const struct {
        const char *phase;
        uint32_t tokens;
        const double *rate, *cpu;
    } phases[] = {{"prefill", b->s->prompt, v->prefill, v->prefill_cpu},
                  {"decode", b->s->decode, v->decode, v->decode_cpu}};
    for (int i = 0; i < 2; i++) {
        report line;
        report_begin(&line, "model", phases[i].phase);
        report_text(&line, "isa", v->isa);
        report_integer(&line, "threads", v->threads);
        report_integer(&line, "tokens", phases[i].tokens);
        report_integer(&line, "chunk", i ? 1 : b->s->chunk);
        report_number(&line, "tokens_per_s", median(phases[i].rate, rounds));
        report_number(&line, "tokens_per_cpu_s", median(phases[i].cpu, rounds));
        report_number(&line, "load", load_average());
        report_end(&line);
        fprintf(stderr, "%-8s %-8s %7d | %10.1f %10.1f\n", phases[i].phase, v->isa, v->threads,
                median(phases[i].rate, rounds), median(phases[i].cpu, rounds));
    }
}

static bool open_variant(bench *b, int threads, const di_cpu_kernels *kernels) {
    variant *v = &b->variants[b->variant_count++];
    di_error error = {0};
    *v = (variant){.threads = threads, .isa = kernels->name};
    const di_model_options options = {.context = b->s->prompt + b->s->decode};
    uint32_t pages = 2 * (b->s->prompt + b->s->decode) + 16;
    if (di_pool_new(threads, &v->pool, &error) || di_cpu_backend_with_kernels(kernels, v->pool, &v->backend, &error) ||
        di_model_open(b->s->folder, &b->config, b->checkpoint, b->tokenizer, v->backend, &options, &v->model, &error) ||
        di_page_pool_new(v->model, pages, &v->pages, &error) ||
        di_step_new(v->model, b->s->chunk, 1, 1, &v->step, &error))
        return failed(&error);
    return true;
}

static void close_variant(variant *v) {
    di_step_free(v->step);
    di_page_pool_free(v->pages);
    di_model_close(v->model);
    if (v->backend) v->backend->free(v->backend);
    di_pool_free(v->pool);
}

static bool open_all(bench *b) {
    di_error error = {0};
    char tokenizer[4096];
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", b->s->folder);
    if (di_model_config_load(b->s->folder, &b->config, &error) ||
        di_checkpoint_open(b->s->folder, NULL, &b->checkpoint, &error) ||
        di_checkpoint_verify(b->checkpoint, &b->config, &error) ||
        (access(tokenizer, R_OK) == 0 && di_tokenizer_load(tokenizer, &b->tokenizer, &error)))
        return failed(&error);
    if (b->s->prompt + b->s->decode > b->config.max_position_embeddings) {
        fprintf(stderr, "bench_model: the model has %u positions only\n", b->config.max_position_embeddings);
        return false;
    }
    uint64_t noise = 1;
    b->ids = malloc((b->s->prompt + b->s->decode) * sizeof *b->ids);
    if (!b->ids) return false;
    for (uint32_t i = 0; i < b->s->prompt + b->s->decode; i++) b->ids[i] = some_id(&noise, b->config.vocab_size);
    static const di_cpu_kernels *const tables[] = {&di_cpu_avx512, &di_cpu_avx2};
    for (int t = 0; t < b->s->thread_counts; t++)
        for (int k = 0; k < 2; k++)
            if (di_cpu_supports(tables[k]) && !open_variant(b, b->s->threads[t], tables[k])) return false;
    return true;
}

static int usage(void) {
    fprintf(
        stderr,
        "usage: bench_model [--model FOLDER] [--rounds 1..%d] [--prompt N] [--decode N] [--chunk N] [--threads N]...\n",
        MAX_ROUNDS);
    return 2;
}

static bool parse(settings *s, int argc, char **argv) {
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        int number = atoi(value);
        if (!strcmp(name, "--model"))
            s->folder = value;
        else if (number < 1)
            return false;
        else if (!strcmp(name, "--rounds") && number <= MAX_ROUNDS)
            s->rounds = number;
        else if (!strcmp(name, "--prompt"))
            s->prompt = (uint32_t)number;
        else if (!strcmp(name, "--decode"))
            s->decode = (uint32_t)number;
        else if (!strcmp(name, "--chunk"))
            s->chunk = (uint32_t)number;
        else if (!strcmp(name, "--threads") && s->thread_counts < MAX_THREAD_COUNTS)
            s->threads[s->thread_counts++] = number;
        else
            return false;
    }
    return argc % 2 == 1;
}

int main(int argc, char **argv) {
    static bench b;
    settings s = {.folder = DI_SOURCE_DIR "/models/tiny", .rounds = 5, .prompt = 1024, .decode = 128, .chunk = 256};
    if (!parse(&s, argc, argv)) return usage();
    if (!s.thread_counts) {
        s.threads[s.thread_counts++] = 1;
        if (di_usable_cores() > 1) s.threads[s.thread_counts++] = 2;
    }
    b = (bench){.s = &s};
    bool good = open_all(&b);
    report line;
    report_environment(&line, "model", argc, argv);
    report_text(&line, "model", s.folder);
    if (good) {
        char digest[24];
        snprintf(digest, sizeof digest, "%016llx", (unsigned long long)di_model_digest(b.variants[0].model));
        report_text(&line, "digest", digest);
        report_text(&line, "profile", di_model_profile(b.variants[0].model));
    }
    report_end(&line);
    for (int round = 0; round < s.rounds && good; round++)
        for (int i = 0; i < b.variant_count && good; i++) good = measure(&b, &b.variants[i], round);
    fprintf(stderr, "%-8s %-8s %7s | %10s %10s\n", "phase", "isa", "threads", "tokens/s", "/cpu s");
    for (int i = 0; i < b.variant_count && good; i++) print(&b, &b.variants[i]);
    for (int i = 0; i < b.variant_count; i++) close_variant(&b.variants[i]);
    di_tokenizer_free(b.tokenizer);
    di_checkpoint_close(b.checkpoint);
    free(b.ids);
    return good ? 0 : 1;
}
