/* v41.h - DeepSeek-V4.1: weights, state layout and step buffers, for this family's own files.
 *
 *   load.c     weights by name                       forward.c  the layer graph, written once for every device
 *   layout.c   what a sequence remembers             step.c     step buffers, commit
 *   engram.c   compressed ids, primes, multipliers, table rows (spec model-moe-engram-checkpoint.md 5.1-5.3)
 *   rotary.c   frequencies (spec model-backbone.md 4.5)
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
} v41_model;

/* Device buffers of a step; T = rows of the longer list. */
typedef struct v41_step {
    di_step base; /* first */
    di_block *block;
    uint64_t bytes;
    di_buffer stream[2];  /* by half: bf16 [T][C][D]; the same buffer without compact */
    di_buffer pre[2];     /* by half: f32 [T][C] */
    di_buffer pre_middle; /* f32 [T][C]: between attention and experts */
    di_buffer post, comb, x, y, qr, q, rotary, lists, candidates, taps;
    di_buffer *window;     /* [layers] u8 [T][entry] */
    di_buffer *open;       /* [layers] f32 [T][2][d], ratio-2 sources only */
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
/* forward.c */
void v41_forward(di_step *step);

/* A state part inside one sequence's rolling block. */
static inline uint64_t v41_part_offset(const v41_model *m, int part) {
    return m->base.layout.parts[part].offset;
}

#endif
