/* speculate.h - drafts in the engine: whether, how many, and what became of them. docs/draft.md "A cycle" is its text.
 *
 * Between two steps the engine thread drafts for the sequences that decode (the model's draft head, or prompt look-up
 * when it has none) and decides how many drafts of each the next step verifies. Their rows are ordinary rows. The
 * thread that computes the step then chooses tokens row by row as plain decoding would (spec/verify.h), so nothing that
 * is decided here can change a result.
 */
#ifndef DI_ENGINE_SPECULATE_H
#define DI_ENGINE_SPECULATE_H

#include "base/config.h"
#include "model/model.h"
#include "spec/history.h"
#include "spec/lookup.h"

struct di_engine;
struct di_sequence;

typedef struct di_speculation di_speculation; /* of an engine */

/* Of one sequence; engine thread, and the compute thread while its rows are in a step. Start from {0}. */
typedef struct di_drafts {
    di_history history;
    di_lookup *lookup; /* without a draft head */
    uint32_t length;   /* drafts in the step that is planned or runs; they stand behind the known ids */
    uint32_t verify;   /* index among the sequences that verify */
    uint32_t slot;     /* of the batch: results of its tokens */
    uint32_t place;    /* of its drafts in the engine's block, for the step that is planned or runs */
    struct {           /* of the last step, until its tokens are delivered */
        int32_t token_ids[DI_SPEC_MOST];
        float confidence[DI_SPEC_MOST];
        uint32_t count, accepted;
        bool judged; /* confidence is there */
    } record;
} di_drafts;

typedef enum di_speculation_mode { DI_SPEC_OFF, DI_SPEC_AUTO, DI_SPEC_FIXED } di_speculation_mode;

/* --spec as it was given: the mode, and the drafts of DI_SPEC_FIXED. */
di_speculation_mode di_speculation_wanted(const di_config *config, uint32_t *length);

/* The model, the step and the batches are there. NULL is what "off" leaves in the engine. */
di_status di_speculation_open(struct di_engine *engine, const di_config *config, di_error *error);
void di_speculation_free(di_speculation *speculation); /* NULL is allowed */

/* Another mode and length, at most the one it was opened with; false if that cannot be. Engine thread. */
bool di_speculation_set(di_speculation *speculation, const char *spec);
uint32_t di_speculation_longest(const di_speculation *speculation);
di_draft *di_speculation_head(const di_speculation *speculation); /* NULL: prompt look-up */

/* What a sequence needs to be drafted for; nothing when drafting is off. */
di_status di_drafts_start(const struct di_engine *engine, struct di_sequence *sequence, di_error *error);
void di_drafts_end(di_drafts *drafts);

/* Whether the sequence's next rows leave what the draft head needs to go on behind them; counts them if so. */
bool di_speculation_taps(struct di_engine *engine, const struct di_sequence *sequence, uint32_t rows);
/* Before the rows of a step are planned: drafts, and sets `length` of every sequence that decodes. most_rows: decode
 * rows that the step may have. */
void di_speculate(struct di_engine *engine, uint32_t most_rows);
/* The rows of the sequence and its drafts are in the step. */
void di_speculation_add(struct di_engine *engine, struct di_sequence *sequence);
/* Makes the job of the planned step verify them. */
void di_speculation_prepare(struct di_engine *engine);
/* After the step: commits what was chosen; chosen tokens stand in the sequence's ids. */
di_status di_speculation_commit(struct di_engine *engine, struct di_sequence *sequence, di_error *error);
/* What became of the drafts of the choice that is delivered, for its first event; lists are the sequence's. */
void di_drafts_tell(const struct di_sequence *sequence, di_draft_record *record);
/* After a step, before its sequences: what it took, to be learned from. */
void di_speculation_learn(struct di_engine *engine);
/* Room for the best ids of a choice. False when memory ran out. */
bool di_speculation_widen(di_speculation *speculation, uint32_t top_stride);

#endif
