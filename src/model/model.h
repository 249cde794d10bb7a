/* model.h - what a model family provides: a state layout, a forward pass over rows, explicit commit.
 *
 * di_model is immutable after opening; a di_step belongs to the engine thread. The forward pass is
 * submit / poll; nothing of a step is real until di_model_commit:
 *
 *   di_step_clear -> di_step_add (per sequence) -> di_model_submit -> di_model_poll -> read logits, sample
 *                 -> di_model_commit(sequence, n) for each sequence -> next step
 *
 * Rows that are not committed never happened: window entries, open compressor rows and kept rows stay in the step's own
 * buffers until commit; global entries are written behind the committed ones, into pages that the sequence owns alone.
 */
#ifndef DI_MODEL_MODEL_H
#define DI_MODEL_MODEL_H

#include "backend/ops.h"
#include "checkpoint/checkpoint.h"
#include "tokenizer/tokenizer.h"

/* ---------------------------------------------------------------- state layout */

typedef enum di_part_kind {
    DI_PART_PAGED, /* grows: one entry per `tokens_per_entry` positions, in pages; floor(H / tokens_per_entry) valid */
    DI_PART_RING,  /* rolling: entry of position p in slot p mod `slots`; positions max(low, H - slots) .. H-1 valid */
    DI_PART_OPEN,  /* rolling: the rows of the unfinished group, slot = position mod tokens_per_entry; H mod
                      tokens_per_entry of them valid; slots = tokens_per_entry - 1 */
} di_part_kind;

typedef struct di_state_part {
    char name[32]; /* "window.12", "global.20", "keys.20", "open.8", "ngram", "kept", "draft.0" */
    di_part_kind kind;
    bool required; /* optional parts come last in a layout; a missing one only costs speed, and is all zero */
    bool decoder;  /* belongs to the decoder half: its ring obeys decoder_low */
    uint32_t entry_bytes;
    uint32_t tokens_per_entry; /* paged and open */
    uint32_t slots;            /* ring and open */
    uint64_t offset;           /* in a page, or in the rolling block */
} di_state_part;

typedef struct di_state_layout {
    const di_state_part *parts;
    uint32_t part_count;
    uint32_t page_tokens; /* positions per page, a multiple of every tokens_per_entry */
    uint64_t page_bytes;
    uint64_t rolling_bytes;
} di_state_layout;

/* What a sequence remembers, as the model sees it. Owned by cache/. */
typedef struct di_state_view {
    di_buffer rolling;
    const di_buffer *pages; /* must cover committed + new rows */
    uint32_t page_count;
    int32_t committed;   /* H */
    int32_t decoder_low; /* compact: first position with decoder window entries; 0 otherwise */
} di_state_view;

/* ---------------------------------------------------------------- model */

typedef struct di_model di_model;
typedef struct di_step di_step;

typedef struct di_model_options {
    bool compact;     /* --prefill compact */
    uint32_t keep;    /* --prefill-keep, 0 = window + 12; at least window */
    uint32_t context; /* positions per sequence */
    bool draft;       /* load the draft head and keep its state; DI_ERR_UNSUPPORTED when the model has none */
    bool dummy;       /* made-up weights: a token map that neither engram.json nor a tokenizer gives is made up too */
} di_model_options;

/* Loads weights into the backend. checkpoint, tokenizer and backend are borrowed and must outlive the model; tokenizer
 * may be NULL when `folder` holds an engram.json or the model has no Engram layer. */
di_status di_model_open(const char *folder, const di_model_config *config, const di_checkpoint *checkpoint,
                        const di_tokenizer *tokenizer, di_backend *backend, const di_model_options *options,
                        di_model **model, di_error *error);
void di_model_close(di_model *model);

const di_state_layout *di_model_layout(const di_model *model);
di_backend *di_model_backend(const di_model *model);
/* "exact", or "exact+compact+KEEP": part of every fingerprint and state object. */
const char *di_model_profile(const di_model *model);
/* Of weights, config and Engram map: equal digests, equal states for equal ids (within a profile). */
uint64_t di_model_digest(const di_model *model);

/* ---------------------------------------------------------------- steps */

/* Memory for steps of up to max_rows rows, max_sequences sequences, max_logits logits rows. */
di_status di_step_new(di_model *model, uint32_t max_rows, uint32_t max_sequences, uint32_t max_logits, di_step **step,
                      di_error *error);
void di_step_free(di_step *step);
uint64_t di_step_bytes(const di_model_config *config, const di_model_options *options, uint32_t max_rows,
                       uint32_t max_logits); /* for the memory plan */

void di_step_clear(di_step *step);
/* For tests: fills the step's device memory with bytes that are NaN in every format, so that whatever reads a row that
 * is not of this step shows. */
void di_step_poison(di_step *step);

typedef struct di_step_entry {
    di_state_view state;   /* copied; what it points to must stay until commit */
    const int32_t *tokens; /* [count] ids at positions committed .. committed + count - 1 */
    uint32_t count;
    uint32_t logits_from; /* rows logits_from .. count-1 want logits; count = none */
    /* Decoder half. Rows from decoder_from on run layers [cut, L); UINT32_MAX = none of them (a prompt chunk that is
     * not the end in compact mode). */
    uint32_t decoder_from;
    /* Compact, last chunk of a prompt (-1 otherwise): the decoder half runs from this absolute position on, with empty
     * windows before it. Positions below `committed` come from the kept rows; decoder_from is then implied. */
    int32_t replay_from;
    bool taps; /* the draft head may be asked to continue after these rows: its keys are made and committed with them */
    /* All rows are sure to be committed once they are computed: di_model_poll writes them into the state, on the thread
     * that computes. di_model_commit must follow, with all of them, whenever it said that the step succeeded. */
    bool sure;
} di_step_entry;

/* Adds one sequence's rows. Returns its index in the step through *index; the first of its logits rows through
 * *first_logits. Fails with DI_ERR_LIMIT when the step is full, DI_ERR_INVALID_ARGUMENT for ids outside the vocabulary.
 */
di_status di_step_add(di_step *step, const di_step_entry *entry, uint32_t *index, uint32_t *first_logits,
                      di_error *error);
uint32_t di_step_rows(const di_step *step);
uint32_t di_step_logits_count(const di_step *step);
di_buffer di_step_logits(const di_step *step); /* f32 [count][V] */

/* Queues the forward pass; poll returns true when it is done (wait: blocks until then) and its status. */
di_status di_model_submit(di_model *model, di_step *step, di_error *error);
bool di_model_poll(di_model *model, di_step *step, bool wait, di_status *status, di_error *error);

/* Makes the first `count` rows of sequence `index` real: fills *state (same object as given to di_step_add) with the
 * new committed length and decoder_low. count may be 0. Must come before the step is cleared. */
void di_model_commit(di_model *model, di_step *step, uint32_t index, uint32_t count, di_state_view *state);

/* ---------------------------------------------------------------- draft head */

/* Buffers for drafting up to max_blocks blocks at once; with options.draft only. Owned like a step. */
typedef struct di_draft di_draft;

typedef struct di_draft_entry {
    const di_state_view *state; /* H = committed positions; only read */
    int32_t anchor;             /* the id at position H: known, not computed yet */
    float temperature;          /* of the request, and the key of its noise (sample.h): the drafts share it, so that */
    uint64_t key;               /* they are what the target would choose if its logits were the head's */
} di_draft_entry;

/* Rows of a whole block, the most that can be drafted at once; 0 when the head is not loaded. */
uint32_t di_draft_length(const di_model *model);
di_status di_draft_new(di_model *model, uint32_t max_blocks, di_draft **draft, di_error *error);
void di_draft_free(di_draft *draft);
uint64_t di_draft_bytes(const di_model_config *config, uint32_t max_blocks); /* for the memory plan */
void di_draft_poison(di_draft *draft);                                       /* for tests, like di_step_poison */

/* Drafts the ids that may stand at H + 1 .. H + length of every entry, from its committed state alone: call it after
 * commit. A block of `length` rows is run, so that a shorter one is not the beginning of a longer one. tokens
 * [count][length]: -1 from the first row on whose logits are no numbers. confidences [count][length]: the sigmoid of
 * it is the head's opinion that the draft is right if those before it are. Blocks until they are there. The result of
 * an entry does not depend on the others. */
di_status di_model_draft(di_model *model, di_draft *draft, const di_draft_entry *entries, uint32_t count,
                         uint32_t length, int32_t *tokens, float *confidences, di_error *error);

/* Test hook: called with intermediate results after each op, names as in the golden files ("3.attn_in"). */
typedef void (*di_trace)(void *arg, const char *name, di_buffer data, di_dtype dtype, uint32_t rows, uint32_t width);
void di_model_set_trace(di_model *model, di_trace trace, void *arg);

#endif
