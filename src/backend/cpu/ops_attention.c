/* ops_attention.c - rotary tables, query and window projections, compressor, attention core with output projection. */
#include "backend/cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- rotary tables */

typedef struct rotary_run {
    di_cpu *cpu;
    const di_rotary_args *a;
} rotary_run;

static void rotary_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const rotary_run *run = arg;
    const di_rotary_args *a = run->a;
    size_t n = a->half_width, rows = a->rows->count, table = tile / rows, t = tile % rows;
    float *out = (float *)di_cpu_at(a->table) + (table * rows + t) * 2 * n;
    run->cpu->k->cos_sin(a->rows->rows[t].position, a->frequency[table], n, out, out + n);
}

void di_cpu_rotary(di_backend *backend, const di_rotary_args *a) {
    rotary_run run = {.cpu = (di_cpu *)backend, .a = a};
    di_cpu_run(run.cpu, 2 * (size_t)a->rows->count, rotary_tile, &run, 2 * (size_t)a->rows->count * a->half_width * 60);
}

/* Cosines of row t in table `table`; the sines follow after half a rotary width. */
static const float *cosines(di_buffer rotary, const di_rows *rows, size_t table, size_t t, size_t rotary_dim) {
    return (const float *)di_cpu_at(rotary) + (table * rows->count + t) * rotary_dim;
}

/* ---------------------------------------------------------------- projections */

typedef struct project_run {
    di_cpu *cpu;
    const di_project_args *a;
    float *qr;     /* [T][q_rank] */
    float *window; /* [T][d] */
    float *q;      /* [T][H * d] */
    di_cpu_input latent;
} project_run;

static void round_row(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = di_bf16_round(x[i]);
}

static void latent_tile(void *arg, size_t t, int worker) {
    const project_run *run = arg;
    const di_project_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    float *qr = run->qr + t * a->q_rank, *w = run->window + t * a->head_dim;
    round_row(qr, a->q_rank);
    uint16_t *latent = (uint16_t *)di_cpu_at(a->qr) + t * a->q_rank;
    k->rms_norm(qr, a->q_norm->values, a->q_rank, a->eps, latent);
    di_cpu_quantise_row(run->cpu, latent, &run->latent, t);
    round_row(w, a->head_dim);
    uint16_t *normed = (uint16_t *)run->cpu->worker_memory[worker]; /* [d] */
    k->rms_norm(w, a->kv_norm->values, a->head_dim, a->eps, normed);
    k->bf16_to_f32(normed, a->head_dim, w);
    const float *c = cosines(a->rotary, a->rows, a->rotary_table, t, a->rotary_dim);
    k->rotate(w + a->head_dim - a->rotary_dim, c, c + a->rotary_dim / 2, a->rotary_dim / 2, false);
    k->window_entry(w, a->head_dim, (uint8_t *)di_cpu_at(a->window) + t * (a->head_dim + a->head_dim / 32));
}

static void query_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const project_run *run = arg;
    const di_project_args *a = run->a;
    size_t d = a->head_dim, t = tile / a->heads;
    float *q = run->q + tile * d;
    round_row(q, d);
    const float *c = cosines(a->rotary, a->rows, a->rotary_table, t, a->rotary_dim);
    run->cpu->k->rotate(q + d - a->rotary_dim, c, c + a->rotary_dim / 2, a->rotary_dim / 2, false);
    run->cpu->k->f32_to_bf16(q, d, (uint16_t *)di_cpu_at(a->q) + tile * d);
}

void di_cpu_project(di_backend *backend, const di_project_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t rows = a->rows->count, all = (size_t)a->heads * a->head_dim;
    project_run run = {.cpu = cpu, .a = a};
    run.qr = di_cpu_take(cpu, rows * a->q_rank, sizeof(float));
    run.window = di_cpu_take(cpu, rows * a->head_dim, sizeof(float));
    run.q = di_cpu_take(cpu, rows * all, sizeof(float));
    di_cpu_input in;
    if (!di_cpu_take_input(cpu, rows, a->q_rank, false, &run.latent) ||
        !di_cpu_quantise(cpu, di_cpu_at(a->x), rows, a->width, false, &in))
        return;
    di_cpu_linear first[2] = {di_cpu_whole(a->wq_a, &in, run.qr, a->q_rank),
                              di_cpu_whole(a->wkv, &in, run.window, a->head_dim)};
    di_cpu_products(cpu, first, 2);
    if (!di_cpu_worker(cpu, a->head_dim * sizeof(uint16_t))) return;
    di_cpu_run(cpu, rows, latent_tile, &run, rows * (a->q_rank + 4 * a->head_dim) * 8);
    di_cpu_linear second = di_cpu_whole(a->wq_b, &run.latent, run.q, all);
    di_cpu_products(cpu, &second, 1);
    di_cpu_run(cpu, rows * a->heads, query_tile, &run, rows * all * 4);
}

/* ---------------------------------------------------------------- compressor */

typedef struct compress_run {
    di_cpu *cpu;
    const di_compress_args *a;
    uint32_t *closing; /* [groups] row that closes each group */
    size_t groups;
    float *kv;        /* ratio 1: [T][d] */
    uint16_t *latent; /* bf16 [groups][d] */
    float *wide;      /* [groups][d] latent widened */
    float *key;       /* [groups][index_dim] */
} compress_run;

/* kv and gate rows of the token before row t, which opened the group that t closes. */
static const float *open_row(const di_compress_args *a, uint32_t t) {
    const di_row *row = &a->rows->rows[t];
    const di_sequence_view *s = &a->rows->sequences[row->sequence];
    if (t > s->first_row[a->rows->half]) return (const float *)di_cpu_at(a->open) + ((size_t)t - 1) * 2 * a->head_dim;
    return (const float *)di_cpu_at(di_buffer_at(s->rolling, a->open_offset));
}

static void pool_tile(void *arg, size_t g, int worker) {
    const compress_run *run = arg;
    const di_compress_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    size_t d = a->head_dim, t = run->closing[g];
    float *pooled = (float *)run->cpu->worker_memory[worker]; /* [d] */
    if (a->ratio == 1) {
        for (size_t i = 0; i < d; i++) pooled[i] = di_bf16_round(run->kv[t * d + i]);
    } else {
        const float *r0 = open_row(a, (uint32_t)t), *r1 = (const float *)di_cpu_at(a->open) + t * 2 * d;
        k->pool2(r0, r0 + d, r1, r1 + d, d, pooled);
    }
    k->rms_norm(pooled, a->norm->values, d, a->eps, run->latent + g * d);
    k->bf16_to_f32(run->latent + g * d, d, run->wide + g * d);
}

static void publish_tile(void *arg, size_t g, int worker) {
    const compress_run *run = arg;
    const di_compress_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    const di_row *row = &a->rows->rows[run->closing[g]];
    size_t d = a->head_dim, i = a->index_dim, half = a->rotary_dim / 2, group = (size_t)row->position / a->ratio;
    float *scratch = (float *)run->cpu->worker_memory[worker], *cosine = scratch, *sine = scratch + half;
    float *key = sine + half;                 /* [index_dim] */
    uint16_t *normed = (uint16_t *)(key + i); /* [index_dim] */
    /* A group stands at the position of its first token. */
    k->cos_sin((int64_t)(group * a->ratio), a->frequency, half, cosine, sine);
    round_row(run->key + g * i, i);
    k->rms_norm(run->key + g * i, a->k_norm->values, i, a->eps, normed);
    k->bf16_to_f32(normed, i, key);
    k->rotate(key + i - a->rotary_dim, cosine, sine, half, false);
    k->index_entry(key, i, di_cpu_paged_entry(a->rows, row, &a->keys, group));
    float *latent = run->wide + g * d;
    k->rotate(latent + d - a->rotary_dim, cosine, sine, half, false);
    k->global_entry(latent, d, di_cpu_paged_entry(a->rows, row, &a->global, group));
}

/* Copies the two halves of a product pair into rows of [2][d]. */
static bool gated_products(di_cpu *cpu, const di_compress_args *a, const di_cpu_input *in) {
    size_t d = a->head_dim;
    float *open = di_cpu_at(a->open);
    di_cpu_linear set[2] = {di_cpu_whole(a->wkv, in, open, 2 * d), di_cpu_whole(a->wgate, in, open + d, 2 * d)};
    di_cpu_products(cpu, set, 2);
    return !cpu->failed;
}

void di_cpu_compress(di_backend *backend, const di_compress_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t rows = a->rows->count, d = a->head_dim, i = a->index_dim;
    compress_run run = {.cpu = cpu, .a = a};
    run.closing = di_cpu_take(cpu, rows, sizeof(uint32_t));
    di_cpu_input in;
    if (cpu->failed || !di_cpu_widen(cpu, di_cpu_at(a->x), rows, a->width, &in)) return;
    if (a->ratio == 1) {
        run.kv = di_cpu_take(cpu, rows * d, sizeof(float));
        if (cpu->failed) return;
        di_cpu_linear wkv = di_cpu_whole(a->wkv, &in, run.kv, d);
        di_cpu_products(cpu, &wkv, 1);
    } else if (!gated_products(cpu, a, &in)) {
        return;
    }
    for (uint32_t t = 0; t < rows; t++)
        if (((uint32_t)a->rows->rows[t].position + 1) % a->ratio == 0) run.closing[run.groups++] = t;
    if (!run.groups) return;
    run.latent = di_cpu_take(cpu, run.groups * d, sizeof(uint16_t));
    run.wide = di_cpu_take(cpu, run.groups * d, sizeof(float));
    run.key = di_cpu_take(cpu, run.groups * i, sizeof(float));
    if (cpu->failed || !di_cpu_worker(cpu, (d + 2 * i + a->rotary_dim) * sizeof(float))) return;
    di_cpu_run(cpu, run.groups, pool_tile, &run, run.groups * d * 40);
    di_cpu_input latent = {.values = run.wide, .rows = run.groups, .width = d, .stride = d};
    di_cpu_linear wk = di_cpu_whole(a->wk, &latent, run.key, i);
    di_cpu_products(cpu, &wk, 1);
    if (!di_cpu_worker(cpu, (d + 2 * i + a->rotary_dim) * sizeof(float))) return;
    di_cpu_run(cpu, run.groups, publish_tile, &run, run.groups * (d + i) * 16);
}

/* ---------------------------------------------------------------- attention */

typedef struct attend_run {
    di_cpu *cpu;
    const di_attend_args *a;
    size_t head_blocks, heads_per_block;
    uint16_t *o; /* bf16 [T][H * d] */
    float *wide; /* [T][H * d], rotated back */
    float *z;    /* [T][groups][z_stride] */
    size_t z_stride;
    di_cpu_input flat; /* [T][groups * o_rank] */
    float *y;          /* [T][D] */
} attend_run;

/* Fills the key lists of row t. keys: [window + topk] */
static size_t list_keys(const attend_run *run, size_t t, const uint8_t **keys) {
    const di_attend_args *a = run->a;
    const di_row *row = &a->rows->rows[t];
    uint32_t half = a->rows->half, slots = a->ring_slots ? a->ring_slots : a->window;
    const di_sequence_view *s = &a->rows->sequences[row->sequence];
    size_t entry = a->head_dim + a->head_dim / 32;
    const uint8_t *step = di_cpu_at(a->window_rows);
    const uint8_t *ring = di_cpu_at(di_buffer_at(s->rolling, a->ring_offset));
    int64_t start = (int64_t)row->position - (a->window - 1);
    size_t slot = (size_t)((start % slots + slots) % slots);
    for (uint32_t i = 0; i < a->window; i++, slot = slot + 1 == slots ? 0 : slot + 1) {
        int64_t position = start + i;
        if (position < 0 || position < s->window_low[half])
            keys[i] = NULL;
        else if (position >= s->first_position[half])
            keys[i] = step + (s->first_row[half] + (size_t)(position - s->first_position[half])) * entry;
        else
            keys[i] = ring + slot * entry;
        if (a->optional && keys[i] && !keys[i][a->head_dim]) keys[i] = NULL;
    }
    if (!a->global.entry_bytes) return 0;
    const int32_t *list = (const int32_t *)di_cpu_at(a->lists) + t * a->topk;
    size_t count = 0;
    while (count < a->topk && list[count] >= 0) {
        keys[a->window + count] = di_cpu_paged_entry(a->rows, row, &a->global, (size_t)list[count]);
        count++;
    }
    return count;
}

static void attend_tile(void *arg, size_t tile, int worker) {
    const attend_run *run = arg;
    const di_attend_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    size_t t = tile / run->head_blocks, h0 = tile % run->head_blocks * run->heads_per_block, d = a->head_dim;
    size_t heads = a->heads - h0 < run->heads_per_block ? a->heads - h0 : run->heads_per_block;
    const uint8_t **keys = (const uint8_t **)run->cpu->worker_memory[worker];
    size_t slots = a->window + a->topk, count = list_keys(run, t, keys);
    uint16_t *o = run->o + (t * a->heads + h0) * d;
    di_cpu_attention attention = {
        .q = (const uint16_t *)di_cpu_at(a->q) + (t * a->heads + h0) * d,
        .sink = a->sink->values + h0,
        .heads = heads,
        .head_dim = d,
        .scale = (float)(1.0 / sqrt((double)d)),
        .window = keys,
        .window_slots = a->window,
        .global = keys + a->window,
        .global_count = count,
        .global_slots = a->global.entry_bytes ? a->topk : 0,
        .out = o,
        .scratch = (float *)(run->cpu->worker_memory[worker] + di_round_up(slots * sizeof *keys, 64)),
    };
    k->attention(&attention);
    const float *c = cosines(a->rotary, a->rows, a->rotary_table, t, a->rotary_dim);
    float *wide = run->wide + (t * a->heads + h0) * d;
    k->bf16_to_f32(o, heads * d, wide);
    for (size_t h = 0; h < heads; h++)
        k->rotate(wide + h * d + d - a->rotary_dim, c, c + a->rotary_dim / 2, a->rotary_dim / 2, true);
}

static void flatten_tile(void *arg, size_t t, int worker) {
    const attend_run *run = arg;
    const di_attend_args *a = run->a;
    uint16_t *flat = (uint16_t *)run->cpu->worker_memory[worker]; /* [groups * o_rank] */
    for (size_t g = 0; g < a->groups; g++) {
        const float *z = run->z + (t * a->groups + g) * run->z_stride + g * a->o_rank % 32;
        run->cpu->k->f32_to_bf16(z, a->o_rank, flat + g * a->o_rank);
    }
    di_cpu_quantise_row(run->cpu, flat, &run->flat, t);
}

static void output_tile(void *arg, size_t t, int worker) {
    (void)worker;
    const attend_run *run = arg;
    size_t d = run->a->width;
    run->cpu->k->f32_to_bf16(run->y + t * d, d, (uint16_t *)di_cpu_at(run->a->y) + t * d);
}

/* z[g] = wo_a[g] . o[g]: block diagonal, input not quantised. Weight tiles are 32 rows high, so a group that does not
 * start at a multiple of 32 computes a few rows of its neighbours too; flatten_tile skips them. */
static bool grouped_products(attend_run *run, size_t rows) {
    const di_attend_args *a = run->a;
    size_t all = (size_t)a->heads * a->head_dim, in = all / a->groups;
    di_cpu_linear *set = di_cpu_take(run->cpu, a->groups, sizeof *set);
    if (run->cpu->failed) return false;
    for (size_t g = 0; g < a->groups; g++) {
        size_t from = g * a->o_rank / 32 * 32, to = (g + 1) * a->o_rank;
        set[g] = (di_cpu_linear){.w = a->wo_a,
                                 .x = run->wide + g * in,
                                 .x_stride = all,
                                 .rows = rows,
                                 .n0 = from,
                                 .n1 = di_round_up(to, 32) < a->wo_a->out ? di_round_up(to, 32) : a->wo_a->out,
                                 .y = run->z + g * run->z_stride,
                                 .y_stride = a->groups * run->z_stride};
    }
    di_cpu_products(run->cpu, set, a->groups);
    return !run->cpu->failed;
}

void di_cpu_attend(di_backend *backend, const di_attend_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    size_t rows = a->rows->count, all = (size_t)a->heads * a->head_dim, slots = a->window + a->topk;
    /* Blocks of heads share the decoded keys; two blocks at least, so that one row keeps two threads busy. */
    size_t per_block = a->heads >= 32 ? 16 : (a->heads + 1) / 2;
    attend_run run = {.cpu = cpu, .a = a, .heads_per_block = per_block};
    run.head_blocks = (a->heads + per_block - 1) / per_block;
    run.z_stride = di_round_up(a->o_rank, 32) + 32;
    run.o = di_cpu_take(cpu, rows * all, sizeof(uint16_t));
    run.wide = di_cpu_take(cpu, rows * all, sizeof(float));
    run.z = di_cpu_take(cpu, rows * a->groups * run.z_stride, sizeof(float));
    run.y = di_cpu_take(cpu, rows * a->width, sizeof(float));
    size_t scratch = di_round_up(slots * sizeof(uint8_t *), 64) +
                     di_cpu_attention_scratch(per_block, a->head_dim, slots) * sizeof(float);
    if (!di_cpu_take_input(cpu, rows, (size_t)a->groups * a->o_rank, false, &run.flat) || !di_cpu_worker(cpu, scratch))
        return;
    di_cpu_run(cpu, rows * run.head_blocks, attend_tile, &run, rows * all * slots * 2);
    if (!grouped_products(&run, rows)) return;
    if (!di_cpu_worker(cpu, (size_t)a->groups * a->o_rank * sizeof(uint16_t))) return;
    di_cpu_run(cpu, rows, flatten_tile, &run, rows * a->groups * a->o_rank * 8);
    di_cpu_linear wo_b = di_cpu_whole(a->wo_b, &run.flat, run.y, a->width);
    di_cpu_products(cpu, &wo_b, 1);
    di_cpu_run(cpu, rows, output_tile, &run, rows * a->width * 4);
}
