/* ops_experts.c - router, routed experts grouped by expert, shared expert, combination in ascending expert id. */
#include "backend/cpu/cpu_internal.h"

#include <string.h>

/* One (row, expert) pair. Entries are sorted by expert, then row, so that walking a row's entries in order visits its
 * experts in ascending id. The shared expert comes last, with weight 1. */
typedef struct entry {
    uint32_t row;
    uint32_t expert; /* `experts` = the shared one */
    float weight;
} entry;

typedef struct experts_run {
    di_cpu *cpu;
    const di_experts_args *a;
    float *logits;     /* [T][E] router */
    int32_t *ids;      /* [T][top] best first */
    float *weights;    /* [T][top] */
    entry *entries;    /* [T * (top + shared)] */
    uint32_t *first;   /* [E + 2] first entry of each expert; the shared expert is number E */
    uint32_t *places;  /* [T][top + shared] entries of a row, ascending expert */
    di_cpu_input x;    /* [T] quantised input */
    di_cpu_input wide; /* [T] input as the router reads it */
    float *gathered;   /* [entries][D] inputs of experts with several rows */
    di_f4_block *gathered_blocks;
    float *gate, *up; /* [entries][F] */
    di_cpu_input h;   /* [entries] quantised inner activations */
    float *out;       /* [entries][D] */
} experts_run;

/* ---------------------------------------------------------------- router */

static void input_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const experts_run *run = arg;
    size_t d = run->a->width;
    const uint16_t *x = (const uint16_t *)di_cpu_at(run->a->x) + t * d;
    run->cpu->k->bf16_to_f32(x, d, run->wide.values + t * d);
    di_cpu_quantise_row(run->cpu, x, &run->x, t);
}

static void route_tile(void *arg, size_t t, int worker) {
    const experts_run *run = arg;
    const di_experts_args *a = run->a;
    size_t experts = a->experts, top = a->top;
    float *score = run->logits + t * experts, *choice = (float *)run->cpu->worker_memory[worker]; /* [E] */
    if (a->gate_temp != 1.0f)
        for (size_t e = 0; e < experts; e++) score[e] /= a->gate_temp;
    run->cpu->k->router_score(score, experts);
    const float *bias = a->rows->rows[t].flags & DI_ROW_IMAGE ? a->bias_vl->values : a->bias->values;
    for (size_t e = 0; e < experts; e++) choice[e] = score[e] + bias[e];
    int32_t *ids = run->ids + t * top;
    float *weights = run->weights + t * top;
    for (size_t i = 0; i < top; i++) { /* best first, the lower id on ties */
        size_t best = experts;
        for (size_t e = 0; e < experts; e++) {
            bool taken = false;
            for (size_t j = 0; j < i; j++) taken |= ids[j] == (int32_t)e;
            if (!taken && (best == experts || choice[e] > choice[best])) best = e;
        }
        ids[i] = (int32_t)best;
        weights[i] = score[best];
    }
    float sum = run->cpu->k->sum(weights, top) + 1e-20f;
    for (size_t i = 0; i < top; i++) weights[i] = weights[i] / sum * a->scale;
}

/* Sorts pairs by expert: counting sort, rows ascending inside an expert. */
static size_t group_entries(experts_run *run) {
    const di_experts_args *a = run->a;
    size_t rows = a->rows->count, experts = a->experts, per_row = a->top + (a->shared ? 1 : 0);
    uint32_t *first = run->first;
    memset(first, 0, (experts + 2) * sizeof *first);
    for (size_t i = 0; i < rows * a->top; i++) first[run->ids[i] + 1]++;
    if (a->shared) first[experts + 1] = (uint32_t)rows;
    for (size_t e = 0; e <= experts; e++) first[e + 1] += first[e];
    for (size_t t = 0; t < rows; t++) {
        for (size_t i = 0; i < a->top; i++) {
            size_t e = (size_t)run->ids[t * a->top + i];
            run->entries[first[e]++] = (entry){(uint32_t)t, (uint32_t)e, run->weights[t * a->top + i]};
        }
        if (a->shared) run->entries[first[experts]++] = (entry){(uint32_t)t, (uint32_t)experts, 1.0f};
    }
    for (size_t e = experts + 1; e > 0; e--) first[e] = first[e - 1]; /* filling moved every start to the next one */
    first[0] = 0;
    size_t total = rows * per_row;
    uint32_t *filled = run->places + rows * per_row; /* [T] */
    memset(filled, 0, rows * sizeof *filled);
    for (size_t i = 0; i < total; i++) {
        uint32_t t = run->entries[i].row;
        run->places[t * per_row + filled[t]++] = (uint32_t)i;
    }
    return total;
}

/* ---------------------------------------------------------------- experts */

static size_t expert_rows(const experts_run *run, size_t e) {
    return run->first[e + 1] - run->first[e];
}

static const di_weight *weight_of(const experts_run *run, int which, size_t e) {
    const di_experts_args *a = run->a;
    bool shared = e == a->experts;
    if (which == 1) return shared ? a->shared_w1 : a->w1[e];
    if (which == 2) return shared ? a->shared_w2 : a->w2[e];
    return shared ? a->shared_w3 : a->w3[e];
}

/* What products with the matrix read of their inputs. */
static bool reads_blocks(const di_weight *w) {
    return w->dtype == DI_DTYPE_I8;
}

static bool reads_values(const experts_run *run, const di_weight *w) {
    return !reads_blocks(w) || run->cpu->k->f4_reads_values;
}

static void gather_tile(void *arg, size_t i, int worker) {
    (void)worker;
    const experts_run *run = arg;
    size_t d = run->a->width, t = run->entries[i].row, e = run->entries[i].expert;
    if (e == run->a->experts || expert_rows(run, e) == 1) return;
    if (reads_values(run, weight_of(run, 1, e)) || reads_values(run, weight_of(run, 3, e)))
        memcpy(run->gathered + i * d, run->x.values + t * d, d * sizeof(float));
    memcpy(run->gathered_blocks + i * (d / 32), run->x.blocks + t * (d / 32), d / 32 * sizeof(di_f4_block));
}

/* Input rows of expert e: in place when they stand together already. */
static void input_of(const experts_run *run, size_t e, const float **x, const di_f4_block **blocks) {
    size_t d = run->a->width, first = run->first[e];
    bool in_place = e == run->a->experts || expert_rows(run, e) == 1;
    size_t row = in_place ? run->entries[first].row : first;
    *x = (in_place ? run->x.values : run->gathered) + row * d;
    *blocks = (in_place ? run->x.blocks : run->gathered_blocks) + row * (d / 32);
}

static void swiglu_tile(void *arg, size_t i, int worker) {
    const experts_run *run = arg;
    const di_experts_args *a = run->a;
    size_t f = a->inner;
    float *g = run->gate + i * f, *u = run->up + i * f;
    for (size_t j = 0; j < f; j++) {
        g[j] = di_bf16_round(g[j]);
        u[j] = di_bf16_round(u[j]);
    }
    size_t e = run->entries[i].expert;
    bool routed = e != a->experts;
    const di_weight *next = weight_of(run, 2, e);
    uint16_t *inner = (uint16_t *)run->cpu->worker_memory[worker]; /* [F] */
    run->cpu->k->swiglu(g, u, f, a->limit, routed, run->entries[i].weight, inner);
    run->cpu->k->quantise_input(inner, f, reads_values(run, next) ? run->h.values + i * f : NULL,
                                reads_blocks(next) ? run->h.blocks + i * (f / 32) : NULL);
}

static void combine_tile(void *arg, size_t t, int worker) {
    const experts_run *run = arg;
    const di_experts_args *a = run->a;
    size_t d = a->width, per_row = a->top + (a->shared ? 1 : 0);
    float *sum = (float *)run->cpu->worker_memory[worker]; /* [D] */
    memset(sum, 0, d * sizeof *sum);
    for (size_t i = 0; i < per_row; i++) {
        const float *o = run->out + (size_t)run->places[t * per_row + i] * d;
        for (size_t j = 0; j < d; j++) sum[j] += di_bf16_round(o[j]);
    }
    run->cpu->k->f32_to_bf16(sum, d, (uint16_t *)di_cpu_at(a->y) + t * d);
}

static void expand_experts(experts_run *run) {
    di_cpu *cpu = run->cpu;
    const di_experts_args *a = run->a;
    size_t active = 0, d = a->width, f = a->inner;
    di_cpu_linear *set = di_cpu_take(cpu, 2 * ((size_t)a->experts + 1), sizeof *set);
    if (cpu->failed) return;
    for (size_t e = 0; e <= a->experts; e++) {
        size_t rows = expert_rows(run, e), first = run->first[e];
        if (!rows) continue;
        di_cpu_linear l = {.x_stride = d, .rows = rows, .n1 = f, .y_stride = f};
        input_of(run, e, &l.x, &l.blocks);
        l.w = weight_of(run, 1, e);
        l.y = run->gate + first * f;
        set[active++] = l;
        l.w = weight_of(run, 3, e);
        l.y = run->up + first * f;
        set[active++] = l;
    }
    di_cpu_products(cpu, set, active);
}

static void contract_experts(experts_run *run) {
    di_cpu *cpu = run->cpu;
    const di_experts_args *a = run->a;
    size_t active = 0, d = a->width, f = a->inner;
    di_cpu_linear *set = di_cpu_take(cpu, (size_t)a->experts + 1, sizeof *set);
    if (cpu->failed) return;
    for (size_t e = 0; e <= a->experts; e++) {
        size_t first = run->first[e];
        if (!expert_rows(run, e)) continue;
        set[active++] = (di_cpu_linear){.w = weight_of(run, 2, e),
                                        .x = run->h.values + first * f,
                                        .x_stride = f,
                                        .blocks = run->h.blocks + first * (f / 32),
                                        .rows = expert_rows(run, e),
                                        .n1 = d,
                                        .y = run->out + first * d,
                                        .y_stride = d};
    }
    di_cpu_products(cpu, set, active);
}

static bool take_memory(experts_run *run) {
    di_cpu *cpu = run->cpu;
    const di_experts_args *a = run->a;
    size_t rows = a->rows->count, total = rows * (a->top + (a->shared ? 1 : 0)), d = a->width, f = a->inner;
    run->logits = di_cpu_take(cpu, rows * a->experts, sizeof(float));
    run->ids = a->ids.block ? di_cpu_at(a->ids) : di_cpu_take(cpu, rows * a->top, sizeof(int32_t));
    run->weights = di_cpu_take(cpu, rows * a->top, sizeof(float));
    run->entries = di_cpu_take(cpu, total, sizeof(entry));
    run->first = di_cpu_take(cpu, (size_t)a->experts + 2, sizeof(uint32_t));
    run->places = di_cpu_take(cpu, total + rows, sizeof(uint32_t));
    run->gathered = di_cpu_take(cpu, rows * a->top * d, sizeof(float));
    run->gathered_blocks = di_cpu_take(cpu, rows * a->top * (d / 32), sizeof(di_f4_block));
    run->gate = di_cpu_take(cpu, total * f, sizeof(float));
    run->up = di_cpu_take(cpu, total * f, sizeof(float));
    run->out = di_cpu_take(cpu, total * d, sizeof(float));
    return di_cpu_take_input(cpu, rows, d, true, &run->x) && di_cpu_take_input(cpu, rows, d, false, &run->wide) &&
           di_cpu_take_input(cpu, total, f, true, &run->h);
}

void di_cpu_experts(di_backend *backend, const di_experts_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    experts_run run = {.cpu = cpu, .a = a};
    size_t rows = a->rows->count, d = a->width, f = a->inner;
    if (!rows || !take_memory(&run)) return;
    di_cpu_run(cpu, rows, input_tile, &run, rows * d * 8);
    di_cpu_linear gate = di_cpu_whole(a->gate, &run.wide, run.logits, a->experts);
    di_cpu_products(cpu, &gate, 1);
    if (!di_cpu_worker(cpu, (a->experts > d ? a->experts : d) * sizeof(float))) return;
    di_cpu_run(cpu, rows, route_tile, &run, rows * a->experts * (40 + a->top));
    size_t total = group_entries(&run), routed = run.first[a->experts];
    di_cpu_run(cpu, routed, gather_tile, &run, rows > 1 ? routed * d * 8 : 0);
    expand_experts(&run);
    if (!di_cpu_worker(cpu, f * sizeof(uint16_t))) return;
    di_cpu_run(cpu, total, swiglu_tile, &run, total * f * 40);
    contract_experts(&run);
    if (!di_cpu_worker(cpu, d * sizeof(float))) return;
    di_cpu_run(cpu, rows, combine_tile, &run, total * d * 4);
}
