/* budget.c - see budget.h. */
#include "spec/budget.h"

/* Acceptance is uneven: a drafter that wins half a step a cycle loses four in a row of bad luck about one time in six.
 * What was won covers later losses up to MOST_WON, so that a change of text ends it some day. */
static const double MOST_LOST = 4, AFTER_REST = 3, MOST_WON = 24, WORST_STEP = 4;
/* Keys that rows leave for the head are part of every step by which drafts are judged; this is about what they cost. */
static const double KEYS = 0.03;
enum { FIRST_REST = 128, LONGEST_REST = 8192, WARM_STEPS = 16, MOST_DOUBLINGS = 16 };

di_budget_phase di_budget_now(const di_budget *b) {
    return b->rest ? DI_BUDGET_REST : b->warm ? DI_BUDGET_WARM : DI_BUDGET_DRAFT;
}

di_budget_phase di_budget_step(di_budget *b, uint32_t streams) {
    if (b->rest && streams && streams <= b->streams / 2) {
        b->rest = 0;
        b->streams = streams; /* with load that comes and goes the next rest is not cut short again */
        b->cut = true;
    }
    di_budget_phase phase = di_budget_now(b);
    if (phase == DI_BUDGET_REST) {
        b->rest -= streams > 0;
        if (!b->rest) b->cut = false;
    } else if (phase == DI_BUDGET_WARM) {
        b->warm -= streams > 0;
    }
    return phase;
}

uint32_t di_budget_width(const di_budget *b) {
    return UINT32_C(1) << b->width;
}

void di_budget_settle(di_budget *b, double gain, uint32_t streams) {
    if (!(gain > -WORST_STEP)) gain = -WORST_STEP; /* one step was disturbed, perhaps */
    if (gain > WORST_STEP) gain = WORST_STEP;
    b->lost += KEYS - gain;
    if (b->lost < -MOST_WON) b->lost = -MOST_WON;
    if (gain > 0 && b->width < MOST_DOUBLINGS) b->width++;
    if (gain <= 0 && b->width) b->width--;
    if (b->lost <= 0) {
        b->pause = 0;
        b->cut = false;
    }
    if (b->lost < MOST_LOST) return;
    b->pause = !b->pause ? FIRST_REST : b->pause < LONGEST_REST ? 2 * b->pause : LONGEST_REST;
    b->rest = b->pause;
    b->warm = WARM_STEPS;
    if (!b->cut || streams < b->streams) b->streams = streams;
    b->lost = AFTER_REST;
    b->width = 0;
}
