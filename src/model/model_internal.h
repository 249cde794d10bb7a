/* model_internal.h - what model.c and the families share.
 *
 * model.c keeps the books of a step (rows, sequences, logits) and is the same for every family; a family owns weights,
 * layout, step buffers, forward pass and commit. A family embeds di_model and di_step as the first member of its own
 * types.
 */
#ifndef DI_MODEL_INTERNAL_H
#define DI_MODEL_INTERNAL_H

#include "model/model.h"

typedef struct di_model_source { /* everything that opening a model reads; borrowed */
    const char *folder;
    const di_model_config *config;
    const di_checkpoint *checkpoint;
    const di_tokenizer *tokenizer;
    di_backend *backend;
    const di_model_options *options;
} di_model_source;

typedef struct di_model_family {
    const char *architecture;
    di_status (*open)(const di_model_source *source, di_model **model, di_error *error);
    void (*close)(di_model *model);
    di_status (*step_new)(di_model *model, di_step **step, uint32_t max_rows, uint32_t max_logits, di_error *error);
    void (*step_free)(di_step *step);
    uint64_t (*step_bytes)(const di_model_config *config, const di_model_options *options, uint32_t max_rows,
                           uint32_t max_logits);
    void (*forward)(di_step *step);
    void (*commit)(di_step *step, uint32_t index, uint32_t count);
    /* draft head, used only when options.draft */
    di_status (*draft_new)(di_model *model, uint32_t max_blocks, di_draft **draft, di_error *error);
    void (*draft_free)(di_draft *draft);
    uint64_t (*draft_bytes)(const di_model_config *config, uint32_t max_blocks);
    void (*draft_run)(di_draft *draft, const di_draft_entry *entries, uint32_t count, uint32_t length, int32_t *tokens,
                      float *confidences);
} di_model_family;

extern const di_model_family di_deepseek_v41;

struct di_model {
    const di_model_family *family;
    di_model_config config;
    di_model_options options;
    di_backend *backend;
    di_state_layout layout;
    uint32_t keep; /* compact: rows kept at the cut; 0 when off */
    char profile[64];
    uint64_t digest;
    di_trace trace;
    void *trace_arg;
};

struct di_step {
    di_model *model;
    uint32_t max_rows, max_sequences, max_logits;
    uint32_t decoder_capacity; /* rows of the decoder list; max_rows plus kept rows in compact mode */
    di_rows half[2];           /* row lists; without compact both are the same list */
    di_row *rows[2];           /* [max_rows], [decoder_capacity] */
    di_sequence_view *sequences;
    di_step_entry *entries; /* [max_sequences] as added */
    uint32_t *logits_rows;  /* [max_logits] index into the decoder list */
    uint32_t logits_count;
    di_buffer logits; /* f32 [max_logits][V] */
    di_buffer memory; /* [memory_bytes] everything that the step computes in */
    uint64_t memory_bytes;
    bool submitted;
};

struct di_draft {
    di_model *model;
    uint32_t max_blocks;
    di_buffer memory; /* [memory_bytes] everything that a block computes in */
    uint64_t memory_bytes;
};

#endif
