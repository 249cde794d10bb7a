/* ops_index.c - indexer: index queries, scores of visible groups, candidate blocks, top-k lists. */
#include "backend/cpu/cpu_internal.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------- selection */

/* The float with this place in the ascending order of floats. */
static float at_place(uint32_t place) {
    return di_f32_from_bits(place & 0x80000000u ? place & 0x7fffffffu : ~place);
}

/* A number with at least k of x from it on, and no more than those equal to it too many: mostly the k-th largest. There
 * are k numbers above -inf, k >= 1. Its place is found bit by bit, by counting. */
static float kth_largest(const di_cpu_kernels *kernels, const float *x, size_t n, size_t k) {
    uint32_t place = 0;
    for (uint32_t bit = 0x80000000u; bit; bit >>= 1) {
        size_t count = kernels->count_from(x, n, at_place(place | bit));
        if (count >= k) place |= bit;
        if (count == k) break;
    }
    return at_place(place);
}

/* The tie rule (docs/numerics.md rule 6): value descending, then index ascending. Everything above the k-th value is
 * in; of those equal to it the lowest ids fill up. */
size_t di_cpu_top_ids(const di_cpu_kernels *kernels, const float *scores, const int32_t *ids, size_t n, size_t k,
                      int32_t *out) {
    size_t valid = kernels->count_from(scores, n, -FLT_MAX), wanted = valid < k ? valid : k, count = 0;
    float least = valid > k && k ? kth_largest(kernels, scores, n, k) : -FLT_MAX;
    size_t above = isinf(least) ? 0 : kernels->count_from(scores, n, nextafterf(least, INFINITY));
    size_t ties = wanted > above ? wanted - above : 0;
    for (size_t i = 0; i < n && count < wanted; i++) { /* without branches: nobody can foresee them */
        bool tie = scores[i] == least && ties;
        out[count] = ids ? ids[i] : (int32_t)i;
        count += scores[i] > least || tie;
        ties -= tie;
    }
    for (size_t i = count; i < k; i++) out[i] = -1;
    return count;
}

/* ---------------------------------------------------------------- the op */

enum { SCORE_TILE = 512, SCORES_AT_ONCE = 1 << 22 };

typedef struct index_run {
    di_cpu *cpu;
    const di_index_args *a;
    size_t entry_bytes, members; /* of an index entry; groups one row can score */
    float *q;                    /* [T][heads * dim] */
    uint8_t *entries;            /* [T][heads][entry_bytes] */
    float *weights;              /* [T][heads] */
    /* of the rows [first, first + block) that are scored at once */
    size_t first, block, tiles_per_row;
    int32_t *groups; /* [block][members] ids that are scored */
    size_t *scored;  /* [block] how many */
    float *scores;   /* [block][members] */
} index_run;

static size_t visible(const di_index_args *a, size_t t) {
    return ((size_t)a->rows->rows[t].position + 1) / a->ratio;
}

static size_t blocks_of(const di_index_args *a, size_t n) {
    return (n + a->candidate_block_size - 1) / a->candidate_block_size;
}

static void query_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const index_run *run = arg;
    const di_index_args *a = run->a;
    const di_cpu_kernels *k = run->cpu->k;
    size_t dim = a->dim, half = a->rotary_dim / 2, t = tile / a->heads;
    float *q = run->q + tile * dim;
    for (size_t i = 0; i < dim; i++) q[i] = di_bf16_round(q[i]);
    /* index queries and keys use the YaRN table (table 1) */
    const float *cosine = (const float *)di_cpu_at(a->rotary) + (a->rows->count + t) * a->rotary_dim;
    k->rotate(q + dim - a->rotary_dim, cosine, cosine + half, half, false);
    k->index_entry(q, dim, run->entries + tile * run->entry_bytes);
}

static void weigh(const index_run *run) {
    const di_index_args *a = run->a;
    float scale = (float)(1.0 / sqrt((double)a->dim) / sqrt((double)a->heads));
    for (size_t i = 0; i < (size_t)a->rows->count * a->heads; i++)
        run->weights[i] = di_bf16_round(di_bf16_round(run->weights[i]) * scale);
}

/* Which groups of row t must be scored: none when the answer does not depend on scores. */
static size_t choose_groups(const index_run *run, size_t t, int32_t *groups) {
    const di_index_args *a = run->a;
    size_t n = visible(a, t), blocks = a->candidate_block_size ? blocks_of(a, n) : 0, count = 0;
    bool filtered = a->candidate_user && blocks > a->candidate_blocks;
    bool blocks_open = a->candidate_source && blocks > a->candidate_blocks;
    if (n <= a->topk && !filtered && !blocks_open && !a->scores.block) return 0;
    if (!filtered) {
        for (size_t g = 0; g < n; g++) groups[g] = (int32_t)g;
        return n;
    }
    const int32_t *candidates = (const int32_t *)di_cpu_at(a->candidates) + t * a->candidate_blocks;
    for (size_t i = 0; i < a->candidate_blocks && candidates[i] >= 0; i++) {
        size_t from = (size_t)candidates[i] * a->candidate_block_size, to = from + a->candidate_block_size;
        for (size_t g = from; g < to && g < n; g++) groups[count++] = (int32_t)g;
    }
    return count;
}

static void score_tile(void *arg, size_t tile, int worker) {
    const index_run *run = arg;
    const di_index_args *a = run->a;
    size_t r = tile / run->tiles_per_row, from = tile % run->tiles_per_row * SCORE_TILE, t = run->first + r;
    if (from >= run->scored[r]) return;
    size_t count = run->scored[r] - from < SCORE_TILE ? run->scored[r] - from : SCORE_TILE;
    const di_row *row = &a->rows->rows[t];
    const uint8_t *keys[SCORE_TILE];
    const int32_t *groups = run->groups + r * run->members + from;
    for (size_t i = 0; i < count; i++) keys[i] = di_cpu_paged_entry(a->rows, row, &a->keys, (size_t)groups[i]);
    run->cpu->k->index_scores(run->entries + t * a->heads * run->entry_bytes, run->weights + t * a->heads, a->heads,
                              a->dim, keys, count, run->scores + r * run->members + from,
                              run->cpu->worker_memory[worker]);
}

/* Best blocks by their best member; the newest block is always kept. */
static void choose_blocks(const index_run *run, size_t r, size_t n, int32_t *out, float *best) {
    const di_index_args *a = run->a;
    size_t blocks = blocks_of(a, n);
    if (blocks <= a->candidate_blocks) {
        for (size_t b = 0; b < a->candidate_blocks; b++) out[b] = b < blocks ? (int32_t)b : -1;
        return;
    }
    const float *scores = run->scores + r * run->members;
    for (size_t b = 0; b < blocks; b++) {
        best[b] = -INFINITY;
        for (size_t g = b * a->candidate_block_size; g < (b + 1) * a->candidate_block_size && g < n; g++)
            if (scores[g] > best[b]) best[b] = scores[g];
    }
    best[blocks - 1] = INFINITY;
    di_cpu_top_ids(run->cpu->k, best, NULL, blocks, a->candidate_blocks, out);
}

static void list_tile(void *arg, size_t r, int worker) {
    const index_run *run = arg;
    const di_index_args *a = run->a;
    size_t t = run->first + r, n = visible(a, t);
    int32_t *list = (int32_t *)di_cpu_at(a->lists) + t * a->topk;
    if (a->candidate_source)
        choose_blocks(run, r, n, (int32_t *)di_cpu_at(a->candidates) + t * a->candidate_blocks,
                      (float *)run->cpu->worker_memory[worker]);
    if (run->scored[r]) {
        di_cpu_top_ids(run->cpu->k, run->scores + r * run->members, run->groups + r * run->members, run->scored[r],
                       a->topk, list);
    } else {
        for (size_t i = 0; i < a->topk; i++) list[i] = i < n ? (int32_t)i : -1;
    }
    if (!a->scores.block) return;
    float *traced = (float *)di_cpu_at(a->scores) + t * a->scores_stride;
    for (size_t g = 0; g < a->scores_stride; g++) traced[g] = -INFINITY;
    for (size_t i = 0; i < run->scored[r]; i++)
        traced[run->groups[r * run->members + i]] = run->scores[r * run->members + i];
}

static bool make_queries(index_run *run) {
    di_cpu *cpu = run->cpu;
    const di_index_args *a = run->a;
    size_t rows = a->rows->count, all = (size_t)a->heads * a->dim;
    run->entry_bytes = a->dim / 2 + a->dim / 32;
    run->q = di_cpu_take(cpu, rows * all, sizeof(float));
    run->entries = di_cpu_take(cpu, rows * a->heads, run->entry_bytes);
    run->weights = di_cpu_take(cpu, rows * a->heads, sizeof(float));
    di_cpu_input latent, in;
    if (cpu->failed || !di_cpu_quantise(cpu, di_cpu_at(a->qr), rows, a->q_rank, false, &latent) ||
        !di_cpu_widen(cpu, di_cpu_at(a->x), rows, a->width, &in))
        return false;
    di_cpu_linear set[2] = {di_cpu_whole(a->wq_b, &latent, run->q, all),
                            di_cpu_whole(a->weights_proj, &in, run->weights, a->heads)};
    di_cpu_products(cpu, set, 2);
    if (cpu->failed) return false;
    di_cpu_run(cpu, rows * a->heads, query_tile, run, rows * all * 8);
    weigh(run);
    return true;
}

void di_cpu_index(di_backend *backend, const di_index_args *a) {
    di_cpu *cpu = (di_cpu *)backend;
    di_cpu_begin(cpu);
    index_run run = {.cpu = cpu, .a = a};
    size_t rows = a->rows->count;
    for (size_t t = 0; t < rows; t++)
        if (visible(a, t) > run.members) run.members = visible(a, t);
    size_t at_once = run.members ? SCORES_AT_ONCE / run.members : rows;
    at_once = at_once < 1 ? 1 : at_once > rows ? rows : at_once;
    run.groups = di_cpu_take(cpu, at_once * run.members, sizeof(int32_t));
    run.scores = di_cpu_take(cpu, at_once * run.members, sizeof(float));
    run.scored = di_cpu_take(cpu, at_once, sizeof(size_t));
    run.tiles_per_row = (run.members + SCORE_TILE - 1) / SCORE_TILE;
    if (cpu->failed) return;
    bool queries = false;
    for (run.first = 0; run.first < rows; run.first += at_once) {
        run.block = rows - run.first < at_once ? rows - run.first : at_once;
        size_t total = 0;
        for (size_t r = 0; r < run.block; r++) {
            run.scored[r] = choose_groups(&run, run.first + r, run.groups + r * run.members);
            total += run.scored[r];
        }
        if (total && !queries) {
            if (!make_queries(&run)) return;
            queries = true;
        }
        size_t best = a->candidate_block_size ? blocks_of(a, run.members) * sizeof(float) : 0;
        size_t scratch = (size_t)a->heads * (a->dim + 64) * 4 + 4096;
        if (!di_cpu_worker(cpu, scratch > best ? scratch : best)) return;
        if (total) di_cpu_run(cpu, run.block * run.tiles_per_row, score_tile, &run, total * a->heads * a->dim / 4);
        di_cpu_run(cpu, run.block, list_tile, &run, total * 16 + run.block * a->topk);
    }
}
