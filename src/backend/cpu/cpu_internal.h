/* cpu_internal.h - shared by the CPU backend's own files: weights, memory, running tiles, linear products.
 *
 * Memory during an op: `di_cpu_take` hands out pieces of the op's workspace (valid until the op returns), and
 * `di_cpu_worker` a piece per worker. Both grow while the engine warms up with its largest step and are then fixed.
 * When they cannot grow, the op records the failure (di_backend.failure) and does nothing.
 */
#ifndef DI_BACKEND_CPU_INTERNAL_H
#define DI_BACKEND_CPU_INTERNAL_H

#include "backend/cpu/cpu.h"
#include "backend/cpu/kernels.h"
#include "base/arena.h"
#include "tensor/codec.h"

struct di_block {
    uint8_t *base;
    uint64_t bytes;
};

struct di_weight {
    di_weight_kind kind;
    di_dtype dtype;        /* as stored */
    size_t out, in;        /* matrix and table: rows, columns; vector: 1, n */
    const uint8_t *codes;  /* borrowed: stored elements of F8 and BF16 matrices and of tables */
    const uint8_t *scales; /* borrowed: E8M0 */
    const float *values;   /* F32 matrices and vectors; owned unless borrowed from the map */
    uint8_t *owned;        /* repacked tiles or widened values */
    uint8_t *owned_scales;
};

typedef struct di_cpu_chunk {
    uint8_t *base;
    size_t bytes;
    struct di_cpu_chunk *next;
} di_cpu_chunk;

typedef struct di_cpu {
    di_backend backend; /* first */
    const di_cpu_kernels *k;
    di_pool *pool;
    int workers;
    di_cpu_chunk *workspace;
    size_t workspace_used, workspace_wanted;
    uint8_t **worker_memory; /* [workers] */
    size_t worker_bytes;
    di_status failed;
} di_cpu;

static inline void *di_cpu_at(di_buffer buffer) {
    return buffer.block ? buffer.block->base + buffer.offset : NULL;
}

/* Starts an op: everything taken before is given back. */
void di_cpu_begin(di_cpu *cpu);
/* count * size bytes of the op's workspace, 64-byte aligned; NULL on failure (recorded). */
void *di_cpu_take(di_cpu *cpu, size_t count, size_t size);
/* At least `bytes` for every worker; false on failure (recorded). */
bool di_cpu_worker(di_cpu *cpu, size_t bytes);

/* Runs tiles on the pool, or on the calling thread alone when the whole run is less than about 5 us of work (`cost`:
 * bytes touched or multiply-adds). */
void di_cpu_run(di_cpu *cpu, size_t tiles, di_pool_tile work, void *arg, size_t cost);

/* A row of activations ready for products: values fp32, and blocks when an E2M1 matrix will read it. */
typedef struct di_cpu_input {
    float *values;       /* [rows][stride] */
    di_f4_block *blocks; /* [rows][width / 32], NULL if not needed */
    size_t rows, width, stride;
} di_cpu_input;

/* One product y = x W^T, fp32 results. Several run as one set of tiles. */
typedef struct di_cpu_linear {
    const di_weight *w;
    const float *x; /* [rows][x_stride] */
    size_t x_stride;
    const di_f4_block *blocks; /* [rows][in / 32] for E2M1 */
    size_t rows;
    size_t n0, n1; /* output range; n0 a multiple of 32 */
    float *y;      /* y[m * y_stride + (n - n0)] */
    size_t y_stride;
} di_cpu_linear;

/* Whole matrix. */
di_cpu_linear di_cpu_whole(const di_weight *w, const di_cpu_input *x, float *y, size_t y_stride);
void di_cpu_products(di_cpu *cpu, const di_cpu_linear *set, size_t count);

/* Room in the workspace for rows that a tile of the op fills one by one, and one of them from its bf16 [width].
 * False on failure. */
bool di_cpu_take_input(di_cpu *cpu, size_t rows, size_t width, bool blocks, di_cpu_input *input);
void di_cpu_quantise_row(di_cpu *cpu, const uint16_t *x, const di_cpu_input *input, size_t row);
/* bf16 [rows][width] -> quantised values (and blocks) in the workspace. False on failure. */
bool di_cpu_quantise(di_cpu *cpu, const uint16_t *x, size_t rows, size_t width, bool blocks, di_cpu_input *input);
/* bf16 -> fp32 without quantisation. */
bool di_cpu_widen(di_cpu *cpu, const uint16_t *x, size_t rows, size_t width, di_cpu_input *input);

static inline size_t di_round_up(size_t n, size_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

/* Entry number `entry` of a sequence's part; a page holds whole entries. */
static inline uint8_t *di_cpu_paged_entry(const di_rows *rows, const di_row *row, const di_paged_part *part,
                                          size_t entry) {
    const uint32_t of_page = rows->page_tokens / part->ratio;
    uint32_t page = (uint32_t)entry / of_page, slot = (uint32_t)entry % of_page;
    return di_cpu_at(di_buffer_at(rows->sequences[row->sequence].pages[page], part->offset + slot * part->entry_bytes));
}

/* Ids of the k largest of n scores, (value descending, id ascending), written in ascending id order, -1 padded; scores
 * of -inf are never chosen; -0 equals +0. Returns how many were chosen. ids NULL: scores index themselves. */
size_t di_cpu_top_ids(const di_cpu_kernels *kernels, const float *scores, const int32_t *ids, size_t n, size_t k,
                      int32_t *out);

/* Module ops, one file a group. */
void di_cpu_embed(di_backend *backend, const di_embed_args *a);
void di_cpu_rotary(di_backend *backend, const di_rotary_args *a);
void di_cpu_engram(di_backend *backend, const di_engram_args *a);
void di_cpu_hyper_enter(di_backend *backend, const di_hyper_enter_args *a);
void di_cpu_hyper_leave(di_backend *backend, const di_hyper_leave_args *a);
void di_cpu_collapse(di_backend *backend, const di_collapse_args *a);
void di_cpu_project(di_backend *backend, const di_project_args *a);
void di_cpu_compress(di_backend *backend, const di_compress_args *a);
void di_cpu_index(di_backend *backend, const di_index_args *a);
void di_cpu_attend(di_backend *backend, const di_attend_args *a);
void di_cpu_experts(di_backend *backend, const di_experts_args *a);
void di_cpu_tap(di_backend *backend, const di_tap_args *a);
void di_cpu_head(di_backend *backend, const di_head_args *a);
void di_cpu_draft_keys(di_backend *backend, const di_draft_keys_args *a);
void di_cpu_markov(di_backend *backend, const di_markov_args *a);
void di_cpu_sample(di_backend *backend, const struct di_sample_args *a);

/* weights.c */
di_status di_cpu_load_weight(di_backend *backend, di_weight_kind kind, const di_tensor *tensor, const di_tensor *scale,
                             di_weight **weight, di_error *error);
void di_cpu_free_weight(di_backend *backend, di_weight *weight);

#endif
