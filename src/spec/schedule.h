/* schedule.h - how many drafts of each request a step verifies.
 *
 * A draft's survival is the probability that it and all before it are accepted. The B largest survivals of the batch
 * are verified, ties to the earlier draft, then to the earlier request, with the B that gives the most tokens a second:
 *   (emitting + sum of the B largest) / (draft seconds + cost of base_rows + B rows)
 * Acceptance is by equality with the sampler's choice, so neither this choice nor what it is made from can change a
 * result. Pure functions; nothing is allocated.
 */
#ifndef DI_SPEC_SCHEDULE_H
#define DI_SPEC_SCHEDULE_H

#include "spec/costs.h"

/* Chance of a draft to be right when those before it are, as the head sees it: sigmoid(confidence / temperature); 0 for
 * what is no number. */
double di_chance(float confidence, float temperature);

/* Survivals from the head's confidences: products of the chances. temperatures [count], NULL = all 1. survivals
 * [count] may not be confidences. */
void di_survivals(const float *confidences, const float *temperatures, uint32_t count, float *survivals);

typedef struct di_offer {   /* the drafts of one request */
    const float *survivals; /* [count] */
    uint32_t count;         /* cut to what may still be committed: tokens left - 1 */
    uint32_t length;        /* out: drafts to verify */
} di_offer;

typedef struct di_step_shape {
    uint32_t emitting;    /* sequences that will commit a token without any draft */
    uint32_t base_rows;   /* rows of the step without drafts */
    uint32_t most_rows;   /* that a step holds */
    double draft_seconds; /* spent on the drafts, or to be spent on them */
} di_step_shape;

/* Fills the lengths; returns their sum. *rate (may be NULL): tokens a second then. With no costs known everything that
 * has room is verified, so that they become known. heap: scratch [count]. */
uint32_t di_schedule(di_offer *offers, uint32_t count, const di_step_shape *shape, const di_costs *costs, double *rate,
                     uint32_t *heap);

#endif
