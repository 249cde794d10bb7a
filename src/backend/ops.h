/* ops.h - the op table: everything a device must be able to do.
 *
 * Written for a device that is not the host: ops take buffer handles (block, offset), packed row descriptors and
 * weights prepared by the device itself; none returns data. An op may be queued; order of calls is order of execution;
 * `synchronise` waits. The granularity is the module (attention parts, experts, hyper-connections, compressor, indexer,
 * head), so that a device may fuse inside it.
 *
 * Every op is defined per row (docs/numerics.md): the bits of a row depend on that row's inputs alone.
 * One thread at a time uses a backend (the engine thread). Nothing here allocates once warmed up with the largest step.
 *
 * Shapes beside every buffer: T rows of the list, C copies (hc_mult), D hidden size, H heads, d head size, r rotary
 * size, V vocabulary. bf16 = uint16_t, all others as written. Formulas: docs/model.md (section in brackets).
 */
#ifndef DI_BACKEND_OPS_H
#define DI_BACKEND_OPS_H

#include "base/pool.h"
#include "base/status.h"
#include "tensor/tensor.h"

typedef struct di_backend di_backend;
typedef struct di_block di_block;   /* device memory, opaque outside the backend */
typedef struct di_weight di_weight; /* a weight as the device wants it, opaque */

typedef struct di_buffer {
    di_block *block;
    uint64_t offset; /* bytes */
} di_buffer;

static inline di_buffer di_buffer_at(di_buffer buffer, uint64_t bytes) {
    buffer.offset += bytes;
    return buffer;
}

/* ---------------------------------------------------------------- what a step is made of */

enum {
    DI_ROW_IMAGE = 1,  /* inside an image span: image bias in the router, no Engram; input is an embedding row */
    DI_ROW_LOGITS = 2, /* wants logits */
    DI_ROW_TAPS = 4,   /* wants draft-head taps */
};

/* 16 bytes: | sequence u32 | position i32 | token i32 | flags u32 | */
typedef struct di_row {
    uint32_t sequence; /* index into di_rows.sequences */
    int32_t position;  /* absolute */
    int32_t token;     /* input id, or index of the embedding row with DI_ROW_IMAGE */
    uint32_t flags;
} di_row;

/* The halves of the model: layers [0, cut) and [cut, L). */
enum { DI_HALF_ENCODER = 0, DI_HALF_DECODER = 1 };

/* State of one sequence as a step sees it. Rows of a sequence stand together in a row list, positions ascending by one.
 * Window entries of positions before first_position[half] are read from the ring (slot = position mod window), those of
 * the step's own rows from the step buffer at row first_row[half] + (position - first_position[half]). */
typedef struct di_sequence_view {
    di_buffer rolling;      /* the rolling block */
    const di_buffer *pages; /* page table: page i holds positions [i * page_tokens, (i + 1) * page_tokens) */
    uint32_t page_count;
    int32_t committed;     /* positions that are real */
    uint32_t first_row[2]; /* by half */
    uint32_t row_count[2];
    int32_t first_position[2];
    int32_t window_low[2]; /* lowest position whose window entry may be read */
} di_sequence_view;

typedef struct di_rows {
    const di_row *rows; /* [count] */
    uint32_t count;
    const di_sequence_view *sequences;
    uint32_t sequence_count;
    uint32_t half;
    uint32_t page_tokens;
} di_rows;

/* A growing part of the state in a page: entries of `ratio` positions each, `entry_bytes` long, from `offset` on. */
typedef struct di_paged_part {
    uint64_t offset;
    uint32_t entry_bytes;
    uint32_t ratio;
} di_paged_part;

/* ---------------------------------------------------------------- weights */

typedef enum di_weight_kind {
    DI_WEIGHT_MATRIX, /* [out][in]; F8_E4M3 + scale, packed E2M1 (I8) + scale, BF16 or F32 */
    DI_WEIGHT_VECTOR, /* BF16 or F32, widened to fp32 */
    DI_WEIGHT_TABLE,  /* rows that are gathered, never multiplied: BF16, or F8_E4M3 + scale; stays where it is */
} di_weight_kind;

/* ---------------------------------------------------------------- arguments */

/* X[t][c] = embedding of row t for every copy c; pre = (1, 0, 0, ...) [5] */
typedef struct di_embed_args {
    const di_rows *rows;
    const di_weight *table; /* [V][D] */
    di_buffer embeddings;   /* bf16 [*][D], rows of images */
    uint32_t copies, width;
    di_buffer stream; /* out: bf16 [T][C][D] */
    di_buffer pre;    /* out: f32 [T][C] */
} di_embed_args;

/* cos and sin of every row for both rotary tables, angle = fp32(position) * frequency [4.5] */
typedef struct di_rotary_args {
    const di_rows *rows;
    const float *frequency[2]; /* host, [half_width]: plain, YaRN */
    uint32_t half_width;       /* r / 2 */
    di_buffer table;           /* out: f32 [2][T][2][r/2]: cos, then sin */
} di_rotary_args;

/* Engram injection [8.1, 8.2]; X is updated in place */
typedef struct di_engram_args {
    const di_rows *rows;
    const di_weight *table;       /* [rows][head_dim] */
    const di_weight *project;     /* wkv [(C + 1) * D][columns * head_dim] */
    const di_weight *query, *key; /* vectors [C * D] */
    const int64_t *table_rows;    /* host, [T][columns] */
    uint32_t columns, head_dim, copies, width;
    float eps;
    di_buffer stream; /* in, out: bf16 [T][C][D] */
    di_buffer gate;   /* out: f32 [T][C] (for tests; block NULL = not wanted) */
} di_engram_args;

/* Coefficients of this sublayer, collapse with the coefficients carried in, norm [5.1, 4.4]:
 * (post, comb, pre_out) = mix(X); x = rms(collapse(X, pre_in), norm) */
typedef struct di_hyper_enter_args {
    uint32_t count, copies, width, iterations;
    float norm_eps, hc_eps;
    const di_weight *fn, *base, *scale; /* [(2 + C) * C][C * D], [(2 + C) * C], [3] */
    const di_weight *norm;              /* [D] */
    di_buffer stream;                   /* in: bf16 [T][C][D] */
    di_buffer pre_in;                   /* in: f32 [T][C] */
    di_buffer x;                        /* out: bf16 [T][D] */
    di_buffer post;                     /* out: f32 [T][C] */
    di_buffer comb;                     /* out: f32 [T][C][C], source copy first */
    di_buffer pre_out;                  /* out: f32 [T][C]; may not be pre_in */
} di_hyper_enter_args;

/* X[k] = post[k] y + sum_j comb[j][k] X[j], in place [5.1] */
typedef struct di_hyper_leave_args {
    uint32_t count, copies, width;
    di_buffer y; /* in: bf16 [T][D] */
    di_buffer post, comb;
    di_buffer stream; /* in, out */
} di_hyper_leave_args;

/* Only collapse and norm: what the compressor of the first decoder layer needs from rows that go no further. */
typedef struct di_collapse_args {
    uint32_t count, copies, width;
    float norm_eps;
    const di_weight *norm;
    di_buffer stream, pre; /* in */
    di_buffer x;           /* out: bf16 [T][D] */
    di_buffer hidden;      /* out: bf16 [T][D] before the norm; block NULL = not wanted */
} di_collapse_args;

/* qr, q and the window entry of every row [6]. Entry: d E4M3 codes, then d/32 E8M0 bytes. */
typedef struct di_project_args {
    const di_rows *rows;
    uint32_t width, q_rank, heads, head_dim, rotary_dim, rotary_table;
    float eps;
    const di_weight *wq_a, *q_norm, *wq_b, *wkv, *kv_norm;
    di_buffer rotary; /* in: from di_rotary_args */
    di_buffer x;      /* in: bf16 [T][D] */
    di_buffer qr;     /* out: bf16 [T][q_rank] */
    di_buffer q;      /* out: bf16 [T][H][d] */
    di_buffer window; /* out: u8 [T][d + d/32], step buffer */
} di_project_args;

/* Compressor and publishing [6.1]. Closes every group whose last token is in the list; writes global entries
 * (d/2 packed E2M1, then d/16 E4M3 scales) and index keys (i/2 packed E2M1, then i/32 E8M0) into pages. */
typedef struct di_compress_args {
    const di_rows *rows;
    uint32_t width, head_dim, index_dim, rotary_dim, ratio;
    float eps;
    const di_weight *wkv, *wgate, *norm, *wk, *k_norm; /* wgate NULL for ratio 1 */
    const float *frequency;                            /* host, [r/2], YaRN */
    di_paged_part global, keys;
    uint64_t open_offset; /* of this layer's open row in the rolling block: f32 [2][d] kv, gate */
    di_buffer x;          /* in: bf16 [T][D] */
    di_buffer open;       /* out: f32 [T][2][d], step buffer (ratio 2) */
} di_compress_args;

/* Indexer, candidate stage and top-k lists [6.2] */
typedef struct di_index_args {
    const di_rows *rows;
    uint32_t width, q_rank, heads, dim, rotary_dim, ratio, topk;
    const di_weight *wq_b, *weights_proj;
    di_paged_part keys; /* of the kv source layer */
    bool candidate_source, candidate_user;
    uint32_t candidate_blocks, candidate_block_size;
    di_buffer rotary, x, qr;
    di_buffer lists;      /* out: i32 [T][topk], ascending, -1 padded */
    di_buffer candidates; /* out (source) or in (user): i32 [T][candidate_blocks], ascending, -1 padded */
    di_buffer scores;     /* out: f32 [T][scores_stride] for tests; block NULL = not wanted */
    uint32_t scores_stride;
} di_index_args;

/* Sink attention over window and listed global entries, inverse rotation, grouped output projection [6, 6.3] */
typedef struct di_attend_args {
    const di_rows *rows;
    uint32_t width, heads, head_dim, rotary_dim, rotary_table, window, topk, groups, o_rank;
    const di_weight *sink, *wo_a, *wo_b;
    uint64_t ring_offset; /* of this layer's window ring in the rolling block */
    uint32_t ring_slots;  /* of that ring; 0 = window */
    bool optional;        /* ring entries whose first scale byte is 0 (no entry has that) are missing */
    di_paged_part global; /* entry_bytes 0: no global entries (ratio 0) */
    di_buffer rotary, q;
    di_buffer window_rows; /* in: step buffer written by project */
    di_buffer lists;       /* in: i32 [T][topk] */
    di_buffer y;           /* out: bf16 [T][D] */
} di_attend_args;

/* Router, routed experts, shared expert, combination [7] */
typedef struct di_experts_args {
    const di_rows *rows;
    uint32_t width, inner, experts, top, shared;
    float limit, scale, gate_temp;
    const di_weight *gate, *bias, *bias_vl;
    const di_weight *const *w1, *const *w2, *const *w3; /* [experts] */
    const di_weight *shared_w1, *shared_w2, *shared_w3;
    di_buffer x;   /* in: bf16 [T][D] */
    di_buffer y;   /* out: bf16 [T][D] */
    di_buffer ids; /* out: i32 [T][top] best first, for tests; block NULL = not wanted */
} di_experts_args;

/* Mean of the copies [5], bf16 */
typedef struct di_tap_args {
    uint32_t count, copies, width, stride; /* stride: elements between rows of `taps` */
    di_buffer stream;
    di_buffer taps; /* out: bf16 [T][stride] at the layer's column */
} di_tap_args;

/* What the draft head remembers of a row [10.1]: main = rms(project taps, main_norm), and for every stage the window
 * entry of its key made from `main`, rotated by the plain table. */
typedef struct di_draft_keys_args {
    const di_rows *rows;
    uint32_t width, taps_width, head_dim, rotary_dim, stages;
    float eps;
    const di_weight *project, *main_norm;         /* [D][taps_width], [D] */
    const di_weight *const *wkv, *const *kv_norm; /* [stages]: [d][D], [d] */
    di_buffer rotary;                             /* in: from di_rotary_args, of these rows */
    di_buffer taps;                               /* in: bf16 [T][taps_width] */
    const di_buffer *entries;                     /* out: host [stages], u8 [T][d + d/32] */
} di_draft_keys_args;

/* Markov head, choice and confidence of `blocks` draft blocks of `length` rows [10.3]. For j ascending, with prev = the
 * anchor or the token chosen before: e = embed[prev]; logits[j] += head . e; confidence = weight . (hidden[j], e);
 * token = argmax of the logits at temperature 0, else of logits / temperature - log E with the noise of the position
 * that it will take. A row with NaN or infinity gives -1 there and in all rows after it. */
typedef struct di_draft_anchor {
    int32_t token;
    int32_t position; /* of the anchor; row j chooses the token at position + 1 + j */
    float temperature;
    uint64_t key; /* of the noise */
} di_draft_anchor;

typedef struct di_markov_args {
    uint32_t blocks, length, width, rank, vocabulary;
    const di_draft_anchor *anchors; /* host [blocks] */
    const di_weight *embed;         /* table [V][rank] */
    const di_weight *head;          /* matrix [V][rank] */
    const di_weight *confidence;    /* vector [D + rank] */
    di_buffer hidden;               /* in: bf16 [blocks * length][D] */
    di_buffer logits;               /* in, out: f32 [blocks * length][V] */
    int32_t *tokens;                /* out: host [blocks][length] */
    float *confidences;             /* out: host [blocks][length], before the sigmoid */
} di_markov_args;

/* logits[i] = head . rms(collapse(X, pre), norm) of row row_index[i] [9] */
typedef struct di_head_args {
    uint32_t count;            /* rows wanted */
    const uint32_t *row_index; /* host */
    uint32_t copies, width, vocabulary;
    float eps;
    const di_weight *norm, *head;
    di_buffer stream, pre;
    di_buffer logits; /* out: f32 [count][V] */
    di_buffer hidden; /* out: bf16 [count][D] collapsed, before the norm; block NULL = not wanted */
} di_head_args;

struct di_sample_args; /* backend/sample.h */

/* Strided copy: `count` pieces of `bytes` from `from` + i * from_stride to `to` + i * to_stride. */
typedef struct di_copy_args {
    di_buffer from, to;
    uint64_t bytes, from_stride, to_stride;
    uint32_t count;
} di_copy_args;

/* ---------------------------------------------------------------- the table */

typedef struct di_ops {
    const char *device; /* "cpu" */
    /* memory */
    di_status (*allocate)(di_backend *backend, uint64_t bytes, di_block **block, di_error *error);
    void (*release)(di_backend *backend, di_block *block);
    void (*write)(di_backend *backend, di_buffer to, const void *from, uint64_t bytes);
    void (*read)(di_backend *backend, void *to, di_buffer from, uint64_t bytes); /* waits */
    void (*copy)(di_backend *backend, const di_copy_args *args);
    void (*fill)(di_backend *backend, di_buffer to, uint8_t value, uint64_t bytes);
    void (*synchronise)(di_backend *backend);
    /* weights; `scale` NULL where the dtype has none. The tensors must stay mapped as long as the weight lives. */
    di_status (*load_weight)(di_backend *backend, di_weight_kind kind, const di_tensor *tensor, const di_tensor *scale,
                             di_weight **weight, di_error *error);
    void (*free_weight)(di_backend *backend, di_weight *weight);
    /* modules */
    void (*embed)(di_backend *backend, const di_embed_args *args);
    void (*rotary)(di_backend *backend, const di_rotary_args *args);
    void (*engram)(di_backend *backend, const di_engram_args *args);
    void (*hyper_enter)(di_backend *backend, const di_hyper_enter_args *args);
    void (*hyper_leave)(di_backend *backend, const di_hyper_leave_args *args);
    void (*collapse)(di_backend *backend, const di_collapse_args *args);
    void (*project)(di_backend *backend, const di_project_args *args);
    void (*compress)(di_backend *backend, const di_compress_args *args);
    void (*index)(di_backend *backend, const di_index_args *args);
    void (*attend)(di_backend *backend, const di_attend_args *args);
    void (*experts)(di_backend *backend, const di_experts_args *args);
    void (*tap)(di_backend *backend, const di_tap_args *args);
    void (*head)(di_backend *backend, const di_head_args *args);
    void (*draft_keys)(di_backend *backend, const di_draft_keys_args *args);
    void (*markov)(di_backend *backend, const di_markov_args *args);
    void (*sample)(di_backend *backend, const struct di_sample_args *args);
} di_ops;

/* Every backend starts with this. */
struct di_backend {
    const di_ops *ops;
    const char *profile; /* numeric profile: "exact" */
    const char *isa;     /* kernels in use: "avx2" */
    /* First failure of a queued op (out of memory while warming up, a lost device): DI_OK otherwise. Reading it waits.
     */
    di_status (*failure)(di_backend *backend, di_error *error);
    void (*free)(di_backend *backend);
};

#endif
