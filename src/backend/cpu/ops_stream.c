/* ops_stream.c - what works on the residual stream: embedding, hyper-connections, Engram, taps, head, sampling. */
#include "backend/cpu/cpu_internal.h"
#include "backend/sample.h"

#include <string.h>

/* ---------------------------------------------------------------- embedding */

typedef struct embed_run {
    di_cpu *cpu;
    const di_embed_args *a;
} embed_run;

static void embed_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const embed_run *run = arg;
    const di_embed_args *a = run->a;
    const di_row *row = &a->rows->rows[t];
    size_t width = a->width, index = (size_t)row->token;
    const uint8_t *from = row->flags & DI_ROW_IMAGE ? (const uint8_t *)di_cpu_at(a->embeddings) : a->table->codes;
    uint16_t *stream = (uint16_t *)di_cpu_at(a->stream) + t * a->copies * width; /* [C][D] */
    float *pre = (float *)di_cpu_at(a->pre) + t * a->copies;
    for (size_t c = 0; c < a->copies; c++) {
        memcpy(stream + c * width, from + index * width * 2, width * 2);
        pre[c] = c == 0 ? 1.0f : 0.0f;
    }
}

void di_cpu_embed(di_backend *backend, const di_embed_args *a) {
    embed_run run = {.cpu = (di_cpu *)backend, .a = a};
    di_cpu_run(run.cpu, a->rows->count, embed_tile, &run, (size_t)a->rows->count * a->copies * a->width * 2);
}

/* ---------------------------------------------------------------- hyper-connections */

typedef struct enter_run {
    di_cpu *cpu;
    const di_hyper_enter_args *a;
    float *stream; /* [T][C * D] widened */
    float *r;      /* [T] inverse rms over all copies */
    float *mix;    /* [T][(2 + C) * C] */
} enter_run;

static void widen_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const enter_run *run = arg;
    size_t n = (size_t)run->a->copies * run->a->width;
    float *v = run->stream + t * n;
    run->cpu->k->bf16_to_f32((const uint16_t *)di_cpu_at(run->a->stream) + t * n, n, v);
    run->r[t] = run->cpu->k->inverse_rms(v, n, run->a->norm_eps);
}

static void collapse_norm(di_cpu *cpu, const uint16_t *stream, const float *pre, size_t copies, size_t width,
                          const di_weight *norm, float eps, uint16_t *hidden, float *scratch, uint16_t *x) {
    cpu->k->collapse(stream, pre, copies, width, hidden);
    cpu->k->bf16_to_f32(hidden, width, scratch);
    cpu->k->rms_norm(scratch, norm->values, width, eps, x);
}

static void enter_tile(void *arg, size_t t, int worker) {
    const enter_run *run = arg;
    const di_hyper_enter_args *a = run->a;
    di_cpu *cpu = run->cpu;
    size_t c = a->copies, mixes = (2 + c) * c, d = a->width;
    float *m = run->mix + t * mixes;
    for (size_t i = 0; i < mixes; i++) m[i] *= run->r[t];
    cpu->k->hyper_mix(m, a->base->values, a->scale->values, c, a->iterations, a->hc_eps,
                      (float *)di_cpu_at(a->pre_out) + t * c, (float *)di_cpu_at(a->post) + t * c,
                      (float *)di_cpu_at(a->comb) + t * c * c);
    uint16_t *x = (uint16_t *)di_cpu_at(a->x) + t * d;
    collapse_norm(cpu, (const uint16_t *)di_cpu_at(a->stream) + t * c * d, (const float *)di_cpu_at(a->pre_in) + t * c,
                  c, d, a->norm, a->norm_eps, x, (float *)cpu->worker_memory[worker], x);
}

void di_cpu_hyper_enter(di_backend *backend, const di_hyper_enter_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t rows = a->count, n = (size_t)a->copies * a->width, mixes = (2 + (size_t)a->copies) * a->copies;
    enter_run run = {.cpu = cpu, .a = a};
    run.stream = di_cpu_take(cpu, rows * n, sizeof(float));
    run.r = di_cpu_take(cpu, rows, sizeof(float));
    run.mix = di_cpu_take(cpu, rows * mixes, sizeof(float));
    if (cpu->failed || !di_cpu_worker(cpu, a->width * sizeof(float))) return;
    di_cpu_run(cpu, rows, widen_tile, &run, rows * n * 4);
    di_cpu_input in = {.values = run.stream, .rows = rows, .width = n, .stride = n};
    di_cpu_linear fn = di_cpu_whole(a->fn, &in, run.mix, mixes);
    di_cpu_products(cpu, &fn, 1);
    di_cpu_run(cpu, rows, enter_tile, &run, rows * n * 8);
}

typedef struct leave_run {
    di_cpu *cpu;
    const di_hyper_leave_args *a;
} leave_run;

static void leave_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const leave_run *run = arg;
    const di_hyper_leave_args *a = run->a;
    size_t c = a->copies, d = a->width;
    run->cpu->k->expand((const uint16_t *)di_cpu_at(a->y) + t * d, (const float *)di_cpu_at(a->post) + t * c,
                        (const float *)di_cpu_at(a->comb) + t * c * c, c, d,
                        (uint16_t *)di_cpu_at(a->stream) + t * c * d);
}

void di_cpu_hyper_leave(di_backend *backend, const di_hyper_leave_args *a) {
    leave_run run = {.cpu = (di_cpu *)backend, .a = a};
    di_cpu_run(run.cpu, a->count, leave_tile, &run, (size_t)a->count * a->copies * a->width * 8);
}

typedef struct collapse_run {
    di_cpu *cpu;
    const di_collapse_args *a;
} collapse_run;

static void collapse_tile(void *arg, size_t t, int worker) {
    const collapse_run *run = arg;
    const di_collapse_args *a = run->a;
    size_t c = a->copies, d = a->width;
    uint16_t *x = (uint16_t *)di_cpu_at(a->x) + t * d;
    uint16_t *hidden = a->hidden.block ? (uint16_t *)di_cpu_at(a->hidden) + t * d : x;
    collapse_norm(run->cpu, (const uint16_t *)di_cpu_at(a->stream) + t * c * d,
                  (const float *)di_cpu_at(a->pre) + t * c, c, d, a->norm, a->norm_eps, hidden,
                  (float *)run->cpu->worker_memory[worker], x);
}

void di_cpu_collapse(di_backend *backend, const di_collapse_args *a) {
    collapse_run run = {.cpu = (di_cpu *)backend, .a = a};
    if (!di_cpu_worker(run.cpu, a->width * sizeof(float))) return;
    di_cpu_run(run.cpu, a->count, collapse_tile, &run, (size_t)a->count * a->copies * a->width * 4);
}

typedef struct tap_run {
    di_cpu *cpu;
    const di_tap_args *a;
} tap_run;

static void tap_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const tap_run *run = arg;
    const di_tap_args *a = run->a;
    run->cpu->k->mean((const uint16_t *)di_cpu_at(a->stream) + t * a->copies * a->width, a->copies, a->width,
                      (uint16_t *)di_cpu_at(a->taps) + t * a->stride);
}

void di_cpu_tap(di_backend *backend, const di_tap_args *a) {
    tap_run run = {.cpu = (di_cpu *)backend, .a = a};
    di_cpu_run(run.cpu, a->count, tap_tile, &run, (size_t)a->count * a->copies * a->width * 4);
}

/* ---------------------------------------------------------------- Engram */

typedef struct engram_run {
    di_cpu *cpu;
    const di_engram_args *a;
    di_cpu_input in; /* [T][columns * head_dim] */
    float *kv;       /* [T][(C + 1) * D] */
    float *qk;       /* [C * D] query weight * key weight */
} engram_run;

static void gather_tile(void *arg, size_t t, int worker) {
    const engram_run *run = arg;
    const di_engram_args *a = run->a;
    size_t n = a->head_dim, scales = (n + 31) / 32;
    uint16_t *gathered = (uint16_t *)run->cpu->worker_memory[worker]; /* [columns * head_dim] */
    for (size_t c = 0; c < a->columns; c++) {
        size_t row = (size_t)a->table_rows[t * a->columns + c];
        const uint8_t *codes = a->table->codes + row * n, *scale = a->table->scales + row * scales;
        uint16_t *out = gathered + c * n;
        for (size_t i = 0; i < n; i++)
            out[i] = di_bf16_encode(di_e4m3_decode(codes[i]) * di_e8m0_decode(scale[i / 32]));
    }
    di_cpu_quantise_row(run->cpu, gathered, &run->in, t);
}

static void gate_tile(void *arg, size_t tile, int worker) {
    const engram_run *run = arg;
    const di_engram_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    size_t c = tile % a->copies, t = tile / a->copies, d = a->width;
    float *scratch = (float *)run->cpu->worker_memory[worker], *h = scratch, *key = scratch + d, *value = key + d;
    uint16_t *stream = (uint16_t *)di_cpu_at(a->stream) + tile * d;
    const float *kv = run->kv + t * (a->copies + 1) * d;
    k->bf16_to_f32(stream, d, h);
    for (size_t i = 0; i < d; i++) {
        key[i] = di_bf16_round(kv[c * d + i]);
        value[i] = di_bf16_round(kv[a->copies * d + i]);
    }
    bool image = a->rows->rows[t].flags & DI_ROW_IMAGE;
    float gate = k->engram(h, run->qk + c * d, key, value, d, a->eps, image, stream);
    if (a->gate.block) ((float *)di_cpu_at(a->gate))[tile] = gate;
}

void di_cpu_engram(di_backend *backend, const di_engram_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t rows = a->rows->count, n = (size_t)a->columns * a->head_dim, d = a->width, out = (a->copies + 1) * d;
    engram_run run = {.cpu = cpu, .a = a};
    run.kv = di_cpu_take(cpu, rows * out, sizeof(float));
    run.qk = di_cpu_take(cpu, a->copies * d, sizeof(float));
    if (!di_cpu_take_input(cpu, rows, n, a->project->dtype == DI_DTYPE_I8, &run.in) ||
        !di_cpu_worker(cpu, n * sizeof(uint16_t)))
        return;
    for (size_t i = 0; i < a->copies * d; i++) run.qk[i] = a->query->values[i] * a->key->values[i];
    di_cpu_run(cpu, rows, gather_tile, &run, rows * n * 16);
    di_cpu_linear wkv = di_cpu_whole(a->project, &run.in, run.kv, out);
    di_cpu_products(cpu, &wkv, 1);
    if (!di_cpu_worker(cpu, 3 * d * sizeof(float))) return;
    di_cpu_run(cpu, rows * a->copies, gate_tile, &run, rows * out * 8);
}

/* ---------------------------------------------------------------- head and sampling */

typedef struct head_run {
    di_cpu *cpu;
    const di_head_args *a;
    uint16_t *hidden; /* bf16 [count][D]; NULL: not wanted */
    di_cpu_input in;  /* [count][D] */
} head_run;

static void head_tile(void *arg, size_t i, int worker) {
    const head_run *run = arg;
    const di_head_args *a = run->a;
    size_t c = a->copies, d = a->width, t = a->row_index[i];
    float *scratch = (float *)run->cpu->worker_memory[worker]; /* [D] */
    uint16_t *x = (uint16_t *)(scratch + d), *hidden = run->hidden ? run->hidden + i * d : x;
    collapse_norm(run->cpu, (const uint16_t *)di_cpu_at(a->stream) + t * c * d,
                  (const float *)di_cpu_at(a->pre) + t * c, c, d, a->norm, a->eps, hidden, scratch, x);
    run->cpu->k->bf16_to_f32(x, d, run->in.values + i * d);
}

void di_cpu_head(di_backend *backend, const di_head_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t d = a->width;
    head_run run = {.cpu = cpu, .a = a};
    run.hidden = di_cpu_at(a->hidden);
    if (!di_cpu_take_input(cpu, a->count, d, false, &run.in) ||
        !di_cpu_worker(cpu, d * (sizeof(float) + sizeof(uint16_t))))
        return;
    di_cpu_run(cpu, a->count, head_tile, &run, a->count * a->copies * d * 4);
    di_cpu_linear head = di_cpu_whole(a->head, &run.in, di_cpu_at(a->logits), a->vocabulary);
    di_cpu_products(cpu, &head, 1);
}

typedef struct sample_run {
    di_cpu *cpu;
    const di_sample_args *a;
} sample_run;

static void sample_tile(void *arg, size_t i, int worker) {
    const sample_run *run = arg;
    const di_sample_args *a = run->a;
    const float *logits = (const float *)di_cpu_at(a->logits) + (size_t)a->items[i].logits_row * a->vocabulary;
    di_sample_row(logits, a->vocabulary, &a->items[i], &a->results[i], a->top ? a->top + i * a->top_stride : NULL,
                  run->cpu->worker_memory[worker]);
}

void di_cpu_sample(di_backend *backend, const struct di_sample_args *a) {
    sample_run run = {.cpu = (di_cpu *)backend, .a = a};
    if (!di_cpu_worker(run.cpu, di_sample_scratch(a->vocabulary))) return;
    di_cpu_run(run.cpu, a->count, sample_tile, &run, (size_t)a->count * a->vocabulary * 16);
}
