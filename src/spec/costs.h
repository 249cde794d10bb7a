/* costs.h - what a step of n rows, or a draft of n blocks, takes, as measured on this machine while it runs.
 *
 * Sizes up to DI_COST_EXACT are kept one by one, larger ones in bins an eighth apart. Each keeps its last samples, of
 * which the end of the lowest third counts, and a larger size never costs less than a smaller one: other work on the
 * machine and memory that is touched for the first time only add time, so the smaller is believed. Sizes with fewer
 * than DI_COST_SURE samples are hoped to be cheap, so that whoever chooses by cost tries them. Costs decide how fast,
 * never what: no result depends on them. Plain data, one thread.
 */
#ifndef DI_SPEC_COSTS_H
#define DI_SPEC_COSTS_H

#include <stdint.h>

enum { DI_COST_EXACT = 32, DI_COST_BINS = DI_COST_EXACT + 96, DI_COST_SAMPLES = 9, DI_COST_SURE = 3 };

typedef struct di_costs {
    struct {
        double seconds[DI_COST_SAMPLES]; /* ring */
        double sizes[DI_COST_SAMPLES];   /* their sizes */
        uint64_t count;                  /* ever */
        double size, typical;            /* mean size of the samples, seconds that count */
    } bins[DI_COST_BINS];
    uint32_t end; /* bins from here on are empty */
} di_costs;       /* zero-initialised: nothing is known */

/* Samples of no size or no time are passed over. */
void di_costs_add(di_costs *costs, uint32_t size, double seconds);
/* Samples so far of this size, or of its bin. */
uint64_t di_costs_known(const di_costs *costs, uint32_t size);
/* What the samples of this size, or of its bin, say, however few; 0 when there are none. */
double di_costs_measured(const di_costs *costs, uint32_t size);
/* Seconds for `size`, between and beyond what was measured in straight lines; 0 when nothing was. */
double di_costs_get(const di_costs *costs, uint32_t size);

#endif
