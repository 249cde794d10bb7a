/* constraint.h - structured output: which ids each next token of a sample may have.
 *
 * A grammar is compiled by the thread that submits the request, within the limits of --limit-grammar-*. Compiled
 * grammars are kept, the ones used last, and shared by all requests with the same source; each has one matcher, which
 * belongs to the engine thread and to the one that computes a step. The mask of a row is computed while the forward
 * pass of its step runs (of a later row of drafts: between two choices), and depends on the source and the ids that the
 * sample has produced, on nothing else.
 *
 * Phases of a sample:
 *   free     before trigger_token_ids: anything; nothing that ends the text if trigger_required
 *   forced   after bound_token_id: the ids of the trigger, one by one
 *   bound    the grammar; EOS only where the text may end
 * Without a trigger a sample starts bound.
 */
#ifndef DI_ENGINE_CONSTRAINT_H
#define DI_ENGINE_CONSTRAINT_H

#include "base/config.h"
#include "engine/metrics.h"
#include "grammar/grammar.h"
#include "sampling/sampling.h"

typedef struct di_constraints di_constraints;     /* of an engine */
typedef struct di_bound_grammar di_bound_grammar; /* a grammar in use */

typedef enum di_constraint_phase { DI_PHASE_NONE, DI_PHASE_FREE, DI_PHASE_FORCED, DI_PHASE_BOUND } di_constraint_phase;

/* Of one sample. Start from {0}: no constraint. */
typedef struct di_constraint_state {
    di_bound_grammar *grammar;
    const di_so_args *args;
    di_constraint_phase phase;
    size_t forced;       /* ids of the trigger that were given */
    di_grammar_state at; /* in the matcher of the grammar */
    uint64_t *mask;      /* [words] of the next row */
    di_status failed;
    const char *too_heavy;                    /* DI_ERR_LIMIT: which limit and its option */
    bool wanted;                              /* the step waits for the mask, however long it takes */
    bool late;                                /* it was not there in time: the row has to be computed again */
    struct di_constraint_state *next, **link; /* samples of the same grammar */
} di_constraint_state;

/* tokenizer NULL: every grammar is refused. Borrows it, eos and metrics. */
di_status di_constraints_new(const di_config *config, const di_tokenizer *tokenizer, uint32_t vocabulary,
                             const int32_t *eos, size_t eos_count, di_metrics *metrics, di_constraints **constraints,
                             di_error *error);
void di_constraints_free(di_constraints *constraints); /* no request uses it any more; NULL is allowed */

/* Any thread. Compiles, or finds, the grammar of the arguments: *grammar is NULL when schema_type is. Refusals name
 * "so_args" and the place in the source. To be ended by di_constraint_release. */
di_status di_constraint_open(di_constraints *constraints, const di_so_args *args, di_bound_grammar **grammar,
                             di_error *error);
void di_constraint_release(di_constraints *constraints, di_bound_grammar *grammar); /* any thread; NULL is allowed */

/* ---- engine thread, and the compute thread for samples in its step */

/* args outlives the state. A NULL grammar leaves it without a constraint. */
di_status di_constraint_start(di_constraints *constraints, di_bound_grammar *grammar, const di_so_args *args,
                              di_constraint_state *state, di_error *error);
/* The sample goes on without a constraint; a step that runs may still read its mask. */
void di_constraint_leave(di_constraints *constraints, di_constraint_state *state);
void di_constraint_end(di_constraints *constraints, di_constraint_state *state); /* also resets it to {0} */

/* Sets the mask or the forced id of the item for the next token. The mask is filled by di_constraint_fill. */
void di_constraint_next(di_constraints *constraints, const di_constraint_state *state, di_sample_item *item);
/* Fills the mask that the item was given; when it cannot, nothing is allowed and `failed` says why. One mask takes at
 * most --limit-mask-work steps. */
void di_constraint_fill(di_constraints *constraints, di_constraint_state *state);
/* The id was chosen. output: the ids of the sample so far, this one the last. */
di_status di_constraint_commit(di_constraints *constraints, di_constraint_state *state, const int32_t *output,
                               size_t count, di_error *error);
/* Why no id could be chosen, if the constraint is the reason: false otherwise. */
bool di_constraint_explain(const di_constraint_state *state, di_error *error);

typedef struct di_constraint_counters {
    uint64_t compiled, reused, refused;
    uint64_t resets;   /* matchers that forgot what they had computed, at their limit */
    uint64_t grammars; /* kept now */
} di_constraint_counters;
void di_constraints_get_counters(di_constraints *constraints, di_constraint_counters *counters);

#endif
