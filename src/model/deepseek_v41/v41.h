/* v41.h - DeepSeek-V4.1: weights, state layout and step buffers, for this family's own files.
 *
 *   load.c     weights by name                       forward.c  the layer graph, written once for every device
 *   layout.c   what a sequence remembers             step.c     step buffers, commit
 *   block.c    what layers and draft stages share    draft.c    the draft head
 *   engram.c   compressed ids, primes, multipliers, table rows [8.1]
 *   rotary.c   frequencies [4.5]
 */
#ifndef DI_MODEL_DEEPSEEK_V41_H
#define DI_MODEL_DEEPSEEK_V41_H

#include "base/arena.h"
#include "model/model_internal.h"

typedef struct v41_hyper {
    di_weight *fn, *base, *scale;
} v41_hyper;

typedef struct v41_layer {
    v41_hyper hc_attn, hc_ffn;
    di_weight *attn_norm, *ffn_norm;
    di_weight *wq_a, *q_norm, *wq_b, *wkv, *kv_norm, *sink, *wo_a, *wo_b;
    di_weight *comp_wkv, *comp_wgate, *comp_norm, *index_wk, *index_k_norm; /* FULL */
    di_weight *index_wq_b, *index_weights;                                  /* FULL, REINDEX */
    di_weight *engram_table, *engram_wkv, *engram_q, *engram_k;             /* Engram layers */
    di_weight *gate, *bias, *bias_vl;
    di_weight **w1, **w2, **w3; /* [experts] */
    di_weight *shared_w1, *shared_w2, *shared_w3;
    /* state parts, indices into the layout; -1 = none */
    int window_part, global_part, keys_part, open_part;
} v41_layer;

/* Row numbers of the Engram tables. Column c = (order - 2) * heads + head. */
typedef struct v41_engram {
    int32_t *token_map; /* [vocabulary] compressed id */
    int32_t pad;        /* compressed id that stands for what is missing */
    uint32_t orders, heads, columns, ngram;
    struct v41_engram_layer {
        uint64_t *primes;      /* [columns] */
        uint64_t *offsets;     /* [columns] */
        uint64_t *multipliers; /* [ngram] */
    } layers[DI_MAX_LAYERS];   /* by engram index */
} v41_engram;

typedef struct v41_model {
    di_model base; /* first */
    di_arena *arena;
    di_weight **owned; /* every weight, for closing */
    size_t owned_count, owned_capacity;
    di_weight *embed, *norm, *head;
    v41_layer *layers;
    v41_engram engram;
    float *frequency[2]; /* [r/2]: plain, YaRN */
    int ngram_part, kept_part;
    /* draft head; stages NULL when it is not loaded */
    v41_layer *stages; /* [draft_stages]; window_part is the stage's ring */
    di_weight *main_proj, *main_norm, *draft_norm, *markov_embed, *markov_head, *confidence;
    di_weight **draft_wkv, **draft_kv_norm; /* [draft_stages] those of the stages again, in a row */
} v41_model;

/* What a block computes in; T = rows. */
typedef struct v41_buffers {
    di_buffer pre_middle; /* f32 [T][C]: between attention and experts */
    di_buffer post;       /* f32 [T][C] */
    di_buffer comb;       /* f32 [T][C][C] */
    di_buffer x, y;       /* bf16 [T][D] */
    di_buffer qr;         /* bf16 [T][q_rank] */
    di_buffer q;          /* bf16 [T][H][d] */
    di_buffer rotary;     /* f32 [2][T][r] */
} v41_buffers;

/* Where a block works: a layer on its half's rows, or a draft stage. */
typedef struct v41_site {
    const v41_model *m;
    const v41_layer *w;
    const v41_buffers *b;
    const di_ops *ops;
    di_backend *backend;
    const di_rows *rows;
    di_buffer stream; /* bf16 [T][C][D] */
} v41_site;

/* Device buffers of a step; T = rows of the longer list. */
typedef struct v41_step {
    di_step base; /* first */
    di_block *block;
    uint64_t bytes;
    di_buffer stream[2]; /* by half: bf16 [T][C][D]; the same buffer without compact */
    di_buffer pre[2];    /* by half: f32 [T][C] */
    v41_buffers b;
    di_buffer lists, candidates, taps;
    di_buffer *window;     /* [layers] u8 [T][entry] */
    di_buffer *open;       /* [layers] f32 [T][2][d], ratio-2 sources only */
    di_buffer *draft_keys; /* [stages] u8 [T][entry], decoder rows */
    int32_t *compressed;   /* host [max_rows] compressed ids */
    int64_t *table_rows;   /* host [max_rows][columns] */
    int32_t *look_back;    /* host scratch [ngram - 1] */
    di_block *trace_block; /* grown on demand when a trace is set */
    uint64_t trace_bytes;
} v41_step;

/* load.c */
di_status v41_load(v41_model *m, const di_checkpoint *checkpoint, di_error *error);
/* layout.c */
di_status v41_make_layout(v41_model *m, di_error *error);
/* rotary.c */
void v41_frequencies(const di_model_config *config, bool yarn, float *out);
/* engram.c: from FOLDER/engram.json if it is there, else derived from the tokenizer by the official rule. */
di_status v41_engram_open(v41_model *m, const char *folder, const di_tokenizer *tokenizer, di_error *error);
/* Of the map from token ids to table rows. */
uint64_t v41_engram_digest(const v41_model *m);
/* Table rows of `count` positions: ids[-look_back .. count-1] compressed ids, oldest first (-1 = dead or missing).
 * rows: [count][columns]. */
void v41_engram_rows(const v41_engram *e, size_t layer, const int32_t *ids, size_t look_back, size_t count,
                     int64_t *rows);
/* step.c */
di_status v41_step_new(di_model *model, di_step **step, uint32_t max_rows, uint32_t max_logits, di_error *error);
void v41_step_free(di_step *step);
uint64_t v41_step_bytes(const di_model_config *config, const di_model_options *options, uint32_t max_rows,
                        uint32_t max_logits);
void v41_commit(di_step *step, uint32_t index, uint32_t count);
/* block.c. pre_in, pre_out: f32 [T][C]. ids: i32 [T][top], block NULL = not wanted. */
void v41_enter(const v41_site *at, const v41_hyper *hyper, const di_weight *norm, di_buffer pre_in, di_buffer pre_out);
void v41_leave(const v41_site *at);
void v41_project(const v41_site *at, uint32_t rotary_table, di_buffer window);
di_attend_args v41_attend_args(const v41_site *at, uint32_t rotary_table, uint64_t ring_offset, di_buffer window);
void v41_experts(const v41_site *at, uint32_t experts, uint32_t top, di_buffer ids);
/* draft.c: v41_draft_keys runs at the end of a forward pass, when rows want taps. */
void v41_draft_keys(v41_step *s);
di_status v41_draft_new(di_model *model, uint32_t max_blocks, di_draft **draft, di_error *error);
void v41_draft_free(di_draft *draft);
uint64_t v41_draft_bytes(const di_model_config *config, uint32_t max_blocks);
void v41_draft_run(di_draft *draft, const di_draft_entry *entries, uint32_t count, uint32_t length, int32_t *tokens,
                   float *confidences);
/* forward.c */
void v41_forward(di_step *step);

/* A state part inside one sequence's rolling block. */
static inline uint64_t v41_part_offset(const v41_model *m, int part) {
    return m->base.layout.parts[part].offset;
}

#endif
