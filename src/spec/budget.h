/* budget.h - what drafts may cost before they have earned it: the reason why `auto` is never slower than "off" by much.
 *
 * Everything is counted in plain steps: what a step with drafts gained or lost against the steps that would have given
 * the same tokens. Losses are allowed up to a small sum and beyond it up to what was gained before, to a limit. When
 * the sum is used up drafting rests, for a number of steps that doubles from time to time, and is then tried again; it
 * comes back sooner when at most half as many sequences decode as when it was given up, for fewer and fewer of them
 * until a rest was whole. Before a try some steps go by in which rows leave what the drafter needs
 * (di_step_entry.taps), so that it is not judged by cold starts. A step drafts for few sequences at first, for twice as
 * many each time that it pays. Plain data, one thread.
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

typedef struct di_budget {
    double lost;          /* plain steps, of late; negative = won */
    uint32_t rest, pause; /* steps left of this rest, length of the last one */
    uint32_t warm;        /* steps left */
    uint32_t streams;     /* that decoded when drafting was given up, or when a rest was cut short */
    bool cut;             /* a rest was, and none was whole since */
    uint32_t width;       /* doublings of what a step drafts for */
} di_budget;              /* zero-initialised: a first try is allowed */

/* Before a step in which `streams` sequences decode. */
di_budget_phase di_budget_step(di_budget *budget, uint32_t streams);
/* The phase without going on. */
di_budget_phase di_budget_now(const di_budget *budget);
/* Sequences that the step may draft for. */
uint32_t di_budget_width(const di_budget *budget);
/* A step that drafted gained so many plain steps, or lost them. */
void di_budget_settle(di_budget *budget, double gain, uint32_t streams);

#endif
