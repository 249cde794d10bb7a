/* verify.h - acceptance by equality: which of the computed rows become tokens.
 *
 * A sequence's rows are its anchor and its drafts, at the anchor's position and on. Choices are made in rounds: round j
 * chooses from row j of every sequence that is still open, with its sampler as plain decoding would have it, and
 * commits the choice to the sampler. A sequence stays open while its choice equals its draft j + 1. So penalties, bans
 * by output index, the hash of logits, masks and stop strings only ever see committed tokens, there is nothing to take
 * back, and the tokens are those of plain decoding, which is the case of no drafts.
 *
 *   n = position of the anchor; `chosen` = k tokens y_1 .. y_k stand at n + 1 .. n + k
 *   di_model_commit(..., k): the anchor's row and those of y_1 .. y_(k-1); y_k is the next anchor; H = n + k
 *
 * Runs on the thread that computes the step; nothing is allocated. Samplers are the run's alone meanwhile.
 */
#ifndef DI_SPEC_VERIFY_H
#define DI_SPEC_VERIFY_H

#include "sampling/sampling.h"

typedef enum di_verify_fault {
    DI_VERIFY_OK,
    DI_VERIFY_NUMERIC,  /* the row holds NaN or infinity */
    DI_VERIFY_NO_TOKEN, /* every token is excluded */
    DI_VERIFY_REFUSED,  /* `allow` did not let the choice in */
} di_verify_fault;

typedef struct di_verify_sequence {
    di_sampler *sampler;
    uint32_t logits_row;   /* of the anchor; the drafts' rows follow */
    int64_t position;      /* n + 1 */
    const int32_t *drafts; /* [length] */
    uint32_t length;
    void *owner; /* for the hooks */
    /* out */
    uint32_t chosen;   /* tokens committed to the sampler; 0 only with a fault */
    uint32_t accepted; /* of these, equal to their drafts */
    di_finish_reason reason;
    int32_t stop_token;
    di_verify_fault fault; /* at token chosen + 1 */
} di_verify_sequence;

typedef struct di_verify_run {
    di_backend *backend;
    di_buffer logits; /* f32 [rows][V] of the step */
    uint32_t vocabulary;
    di_sample_item *items;     /* scratch [count] */
    di_sample_result *results; /* scratch [count] */
    uint32_t *open;            /* scratch [count] */
    di_sample_top *top;        /* scratch [count][top_stride] */
    uint32_t top_stride;
    void *arg;
    /* Before the choice of token j + 1: may set the mask and what is wanted of log-probabilities. NULL = nothing to do.
     */
    void (*before)(void *arg, const di_verify_sequence *sequence, uint32_t j, di_sample_item *item);
    /* Before it is committed: false = it cannot be, a fault. NULL = it can. */
    bool (*allow)(void *arg, const di_verify_sequence *sequence, uint32_t j, const di_sample_result *result);
    /* After it was committed (sequence->reason says whether it ends): takes the result and the best ids; false =
     * nothing may follow (a stop string is complete, a grammar has ended). NULL = go on. */
    bool (*after)(void *arg, const di_verify_sequence *sequence, uint32_t j, const di_sample_result *result,
                  const di_sample_top *top);
} di_verify_run;

void di_verify(const di_verify_run *run, di_verify_sequence *sequences, uint32_t count);

#endif
