/* history.c - see history.h. */
#include "spec/history.h"

/* Counts remember about sixteen cycles; the first guess of a rate weighs as much as two. A cycle that wins a quarter of
 * a plain step on the mean wins or loses more than one by chance, so that losses of MOST_LOST say something and a few
 * bad cycles do not. */
static const double FADE = 0.94, GUESS = 0.8, GUESS_WEIGHT = 2, DECLINED = 0.7;
static const double MOST_LOST = 4, AFTER_REST = 2.5, MOST_WON = 8;
enum { FIRST_PAUSE = 32, LONGEST_PAUSE = 1024 };

void di_history_start(di_history *h, const di_history *others) {
    *h = (di_history){0};
    for (uint32_t j = 0; j < DI_SPEC_MOST && others->at[j].tried > 0; j++) {
        double share = others->at[j].tried > GUESS_WEIGHT ? GUESS_WEIGHT / others->at[j].tried : 1;
        h->at[j].tried = others->at[j].tried * share;
        h->at[j].accepted = others->at[j].accepted * share;
    }
}

void di_history_decline(di_history *h) {
    for (uint32_t j = 0; j < DI_SPEC_MOST; j++) {
        h->at[j].tried *= DECLINED;
        h->at[j].accepted *= DECLINED;
    }
    h->rest = FIRST_PAUSE;
}

static void give_up(di_history *h) {
    h->pause = !h->pause ? FIRST_PAUSE : h->pause < LONGEST_PAUSE ? 2 * h->pause : LONGEST_PAUSE;
    h->rest = h->pause;
    h->lost = AFTER_REST;
}

void di_history_add(di_history *h, uint32_t verified, uint32_t accepted, double plain) {
    if (verified > DI_SPEC_MOST) verified = DI_SPEC_MOST;
    if (accepted > verified) accepted = verified;
    h->drafted += verified;
    h->accepted += accepted;
    for (uint32_t j = 0; j < verified && j <= accepted; j++) {
        h->at[j].tried = h->at[j].tried * FADE + 1;
        h->at[j].accepted = h->at[j].accepted * FADE + (j < accepted);
    }
    if (!(plain > 0)) return;
    h->lost -= (double)accepted + 1 - plain;
    if (h->lost < -MOST_WON) h->lost = -MOST_WON;
    if (h->lost <= 0) h->pause = 0;
    if (h->lost > MOST_LOST) give_up(h);
}

void di_history_plain(di_history *h) {
    if (h->rest) h->rest--;
}

bool di_history_wants(const di_history *h) {
    return !h->rest;
}

void di_history_survivals(const di_history *h, uint32_t count, float *survivals) {
    double survival = 1;
    for (uint32_t j = 0; j < count; j++) {
        double tried = GUESS_WEIGHT, accepted = GUESS_WEIGHT * GUESS;
        if (j < DI_SPEC_MOST) {
            tried += h->at[j].tried;
            accepted += h->at[j].accepted;
        }
        survival *= accepted / tried;
        survivals[j] = (float)survival;
    }
}
