/* budget.c - see budget.h. */
#include "spec/budget.h"

/* Acceptance is uneven: a drafter that wins half a step a cycle loses four in a row of bad luck about one time in six.
 * What was won covers later losses up to MOST_WON, so that a change of text ends it some day. */
static const double MOST_LOST = 4, AFTER_REST = 2.5, MOST_WON = 24, WORST_STEP = 4;
/* What a row takes more that leaves keys for the head: 1.3 to 2.6 % were measured. */
static const double KEYS = 0.03;
enum { FIRST_REST = 128, LONGEST_REST = 8192, WARM_STEPS = 16, MOST_DOUBLINGS = 16 };

static uint32_t account_of(uint32_t streams) {
    uint32_t at = streams ? 31 - (uint32_t)__builtin_clz(streams) : 0;
    return at < DI_BUDGET_ACCOUNTS ? at : DI_BUDGET_ACCOUNTS - 1;
}

static di_budget_phase phase_of(const di_budget_account *a) {
    return a->rest ? DI_BUDGET_REST : a->warm ? DI_BUDGET_WARM : DI_BUDGET_DRAFT;
}

di_budget_phase di_budget_now(const di_budget *b) {
    return phase_of(&b->accounts[b->now]);
}

di_budget_phase di_budget_step(di_budget *b, uint32_t streams) {
    if (!streams) return di_budget_now(b);
    bool cold = di_budget_now(b) == DI_BUDGET_REST;
    uint32_t before = b->now;
    b->now = account_of(streams);
    di_budget_account *a = &b->accounts[b->now];
    /* Rows of the steps before left no keys. */
    if (b->now != before && cold && phase_of(a) != DI_BUDGET_REST) a->warm = WARM_STEPS;
    di_budget_phase phase = phase_of(a);
    if (phase == DI_BUDGET_REST)
        a->rest--;
    else if (phase == DI_BUDGET_WARM)
        a->warm--;
    return phase;
}

uint32_t di_budget_width(const di_budget *b) {
    return UINT32_C(1) << b->accounts[b->now].width;
}

static void give_up(di_budget_account *a) {
    if (a->rest || a->lost < MOST_LOST) return;
    a->pause = !a->pause ? FIRST_REST : a->pause < LONGEST_REST ? 2 * a->pause : LONGEST_REST;
    a->rest = a->pause;
    a->warm = WARM_STEPS;
    a->lost = AFTER_REST;
    a->width = 0;
}

void di_budget_settle(di_budget *b, double gain, uint32_t streams) {
    di_budget_account *a = &b->accounts[account_of(streams)];
    if (!(gain > -WORST_STEP)) gain = -WORST_STEP; /* one step was disturbed, perhaps */
    if (gain > WORST_STEP) gain = WORST_STEP;
    a->lost -= gain;
    if (a->lost < -MOST_WON) a->lost = -MOST_WON;
    if (gain > 0 && a->width < MOST_DOUBLINGS) a->width++;
    if (gain <= 0 && a->width) a->width--;
    if (a->lost <= 0) a->pause = 0;
    give_up(a);
}

void di_budget_keys(di_budget *b, double steps, uint32_t streams) {
    if (!(steps > 0)) return;
    di_budget_account *a = &b->accounts[account_of(streams)];
    a->lost += KEYS * (steps < WORST_STEP ? steps : WORST_STEP);
    give_up(a);
}
