/* budget.h - what drafts may cost before they have earned it: the reason why `auto` is never slower than "off" by much.
 *
 * Everything is counted in plain steps: what a step with drafts gained or lost against the steps that would have given
 * the same tokens. There is an account for 1 sequence that decodes, for 2 or 3, for 4 to 7 and so on: with one stream
 * drafts may pay that do not with eight, and what the one wins is not for the other to lose. Losses are allowed up to a
 * small sum and beyond it up to what was gained before, to a limit. When the sum is used up drafting rests, for a
 * number of steps that doubles from time to time, and is then tried again. Before a try some steps go by in which rows
 * leave what the drafter needs (di_step_entry.taps), so that it is not judged by cold starts. A step drafts for few
 * sequences at first, for twice as many each time that it pays. Plain data, one thread.
 */
#ifndef DI_SPEC_BUDGET_H
#define DI_SPEC_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

typedef enum di_budget_phase {
    DI_BUDGET_REST, /* no drafts, nothing is kept for them */
    DI_BUDGET_WARM, /* no drafts yet */
    DI_BUDGET_DRAFT,
} di_budget_phase;

enum { DI_BUDGET_ACCOUNTS = 10 };

typedef struct di_budget_account {
    double lost;          /* plain steps, of late; negative = won */
    uint32_t rest, pause; /* steps left of this rest, length of the last one */
    uint32_t warm;        /* steps left */
    uint32_t width;       /* doublings of what a step drafts for */
} di_budget_account;

typedef struct di_budget {
    di_budget_account accounts[DI_BUDGET_ACCOUNTS]; /* [i]: 2^i to 2^(i+1) - 1 sequences, the last one all above too */
    uint32_t now;                                   /* the account of the last step */
} di_budget;                                        /* zero-initialised: a first try is allowed */

/* Before a step in which `streams` sequences decode; 0 changes nothing. */
di_budget_phase di_budget_step(di_budget *budget, uint32_t streams);
/* The phase without going on. */
di_budget_phase di_budget_now(const di_budget *budget);
/* Sequences that the step may draft for. */
uint32_t di_budget_width(const di_budget *budget);
/* A step of so many sequences that drafted gained so many plain steps, or lost them. */
void di_budget_settle(di_budget *budget, double gain, uint32_t streams);
/* Rows that would have taken so many plain steps left keys for the head, whether the step drafted or not. */
void di_budget_keys(di_budget *budget, double steps, uint32_t streams);

#endif
