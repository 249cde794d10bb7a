/* history.h - how drafts of one sequence fared, and whether to go on drafting for it.
 *
 * Rates are conditional (draft j accepted when those before it were) and fade, so that a change of text shows. A cycle
 * pays when it committed more tokens than plain steps would have in its time; when cycles have lost some steps the
 * sequence goes without drafts for a number of tokens that doubles each time, then tries again. When drafts are not
 * expected to pay it goes without for a short while and forgets some of what it expects, so that it is tried again some
 * day. Plain data, one thread.
 */
#ifndef DI_SPEC_HISTORY_H
#define DI_SPEC_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

enum { DI_SPEC_MOST = 64 }; /* drafts in a cycle: the largest block that a config may have */

typedef struct di_history {
    struct {
        double tried, accepted; /* fading counts */
    } at[DI_SPEC_MOST];
    double lost;                /* plain steps, of late; negative = won */
    uint32_t pause, rest;       /* length of the last pause, tokens left of it */
    uint64_t drafted, accepted; /* ever */
} di_history;                   /* zero-initialised: nothing is known, drafting is on */

/* A new sequence expects what others found lately; little of its own is needed to change that. */
void di_history_start(di_history *history, const di_history *others);
/* A cycle: `verified` drafts of which the first `accepted` were, at a cost of `plain` plain steps (0: not known). */
void di_history_add(di_history *history, uint32_t verified, uint32_t accepted, double plain);
/* No cycle, because none was expected to pay. */
void di_history_decline(di_history *history);
/* A token came without drafts. */
void di_history_plain(di_history *history);
/* Whether to draft now. */
bool di_history_wants(const di_history *history);
/* Expected survivals of `count` drafts, for drafters without confidences and for planning before drafting. Starts
 * hopeful, so that a new sequence is tried. */
void di_history_survivals(const di_history *history, uint32_t count, float *survivals);

#endif
