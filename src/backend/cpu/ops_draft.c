/* ops_draft.c - what only the draft head does: keys of committed rows, Markov head with choice and confidence. */
#include "backend/cpu/cpu_internal.h"
#include "backend/sample.h"

#include <string.h>

/* ---------------------------------------------------------------- keys */

typedef struct keys_run {
    di_cpu *cpu;
    const di_draft_keys_args *a;
    float *main;      /* [T][D] */
    uint16_t *normed; /* bf16 [T][D] */
    float *keys;      /* [stages][T][d] */
} keys_run;

static void round_row(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = di_bf16_round(x[i]);
}

static void main_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const keys_run *run = arg;
    const di_draft_keys_args *a = run->a;
    size_t d = a->width;
    round_row(run->main + t * d, d);
    run->cpu->k->rms_norm(run->main + t * d, a->main_norm->values, d, a->eps, run->normed + t * d);
}

static void key_tile(void *arg, size_t tile, int worker) {
    const keys_run *run = arg;
    const di_draft_keys_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    size_t d = a->head_dim, rows = a->rows->count, stage = tile / rows, t = tile % rows, half = a->rotary_dim / 2;
    float *key = run->keys + tile * d;
    uint16_t *normed = (uint16_t *)run->cpu->worker_memory[worker]; /* [d] */
    round_row(key, d);
    k->rms_norm(key, a->kv_norm[stage]->values, d, a->eps, normed);
    k->bf16_to_f32(normed, d, key);
    const float *cosine = (const float *)di_cpu_at(a->rotary) + t * a->rotary_dim;
    k->rotate(key + d - a->rotary_dim, cosine, cosine + half, half, false);
    k->window_entry(key, d, (uint8_t *)di_cpu_at(a->entries[stage]) + t * (d + d / 32));
}

void di_cpu_draft_keys(di_backend *backend, const di_draft_keys_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t rows = a->rows->count, d = a->head_dim;
    keys_run run = {.cpu = cpu, .a = a};
    run.main = di_cpu_take(cpu, rows * a->width, sizeof(float));
    run.normed = di_cpu_take(cpu, rows * a->width, sizeof(uint16_t));
    run.keys = di_cpu_take(cpu, a->stages * rows * d, sizeof(float));
    di_cpu_linear *set = di_cpu_take(cpu, a->stages, sizeof *set);
    di_cpu_input taps, main;
    if (cpu->failed || !di_cpu_quantise(cpu, di_cpu_at(a->taps), rows, a->taps_width, false, &taps)) return;
    di_cpu_linear project = di_cpu_whole(a->project, &taps, run.main, a->width);
    di_cpu_products(cpu, &project, 1);
    di_cpu_run(cpu, rows, main_tile, &run, rows * a->width * 8);
    if (!di_cpu_quantise(cpu, run.normed, rows, a->width, false, &main)) return;
    for (size_t s = 0; s < a->stages; s++) set[s] = di_cpu_whole(a->wkv[s], &main, run.keys + s * rows * d, d);
    di_cpu_products(cpu, set, a->stages);
    if (!di_cpu_worker(cpu, d * sizeof(uint16_t))) return;
    di_cpu_run(cpu, a->stages * rows, key_tile, &run, a->stages * rows * d * 16);
}

/* ---------------------------------------------------------------- Markov head */

typedef struct markov_run {
    di_cpu *cpu;
    const di_markov_args *a;
    uint32_t j;   /* row of the blocks */
    float *input; /* [blocks][rank] */
    float *bias;  /* [blocks][V] */
} markov_run;

static int32_t previous(const di_markov_args *a, size_t b, uint32_t j) {
    return j ? a->tokens[b * a->length + j - 1] : a->anchors[b].token;
}

static void input_tile(void *arg, size_t b, int worker) {
    const markov_run *run = arg;
    const di_markov_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    float *input = run->input + b * a->rank, *joined = (float *)run->cpu->worker_memory[worker]; /* [D + rank] */
    uint16_t *codes = (uint16_t *)(joined + a->width + a->rank);                                 /* [rank] */
    size_t row = b * a->length + run->j, d = a->width;
    int32_t token = previous(a, b, run->j);
    a->confidences[row] = 0;
    memset(input, 0, a->rank * sizeof *input);
    if (token < 0) return;
    memcpy(codes, a->embed->codes + (size_t)token * a->rank * sizeof *codes, a->rank * sizeof *codes);
    k->bf16_to_f32(codes, a->rank, input);
    k->bf16_to_f32((const uint16_t *)di_cpu_at(a->hidden) + row * d, d, joined);
    memcpy(joined + d, input, a->rank * sizeof *input);
    a->confidences[row] = k->dot(joined, a->confidence->values, d + a->rank);
}

static void choose_tile(void *arg, size_t b, int worker) {
    const markov_run *run = arg;
    const di_markov_args *a = run->a;
    const di_draft_anchor *anchor = &a->anchors[b];
    size_t row = b * a->length + run->j;
    int32_t *token = &a->tokens[row];
    *token = -1;
    if (previous(a, b, run->j) < 0) return;
    float *logits = (float *)di_cpu_at(a->logits) + row * a->vocabulary;
    const float *bias = run->bias + b * a->vocabulary;
    for (size_t v = 0; v < a->vocabulary; v++) logits[v] += bias[v];
    di_sample_item item = {.position = (int64_t)anchor->position + 1 + run->j,
                           .key = anchor->key,
                           .temperature = anchor->temperature,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .forced = -1,
                           .logprobs = -1};
    di_sample_result result;
    di_sample_row(logits, a->vocabulary, &item, &result, NULL, run->cpu->worker_memory[worker]);
    *token = result.token_id;
}

void di_cpu_markov(di_backend *backend, const di_markov_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    markov_run run = {.cpu = cpu, .a = a};
    run.input = di_cpu_take(cpu, (size_t)a->blocks * a->rank, sizeof(float));
    run.bias = di_cpu_take(cpu, (size_t)a->blocks * a->vocabulary, sizeof(float));
    size_t joined = ((size_t)a->width + a->rank) * sizeof(float) + a->rank * sizeof(uint16_t);
    size_t sample = di_sample_scratch(a->vocabulary), scratch = joined > sample ? joined : sample;
    if (cpu->failed) return;
    for (run.j = 0; run.j < a->length; run.j++) {
        if (!di_cpu_worker(cpu, scratch)) return;
        di_cpu_run(cpu, a->blocks, input_tile, &run, a->blocks * joined);
        di_cpu_input in = {.values = run.input, .rows = a->blocks, .width = a->rank, .stride = a->rank};
        di_cpu_linear head = di_cpu_whole(a->head, &in, run.bias, a->vocabulary);
        di_cpu_products(cpu, &head, 1);
        if (cpu->failed || !di_cpu_worker(cpu, scratch)) return;
        di_cpu_run(cpu, a->blocks, choose_tile, &run, (size_t)a->blocks * a->vocabulary * 20);
    }
}
