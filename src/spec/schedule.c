/* schedule.c - see schedule.h. A heap of the requests by their next draft gives the drafts in order. */
#include "spec/schedule.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

double di_chance(float confidence, float temperature) {
    double z = (double)confidence / (double)temperature;
    return z == z ? 1 / (1 + exp(-z)) : 0;
}

void di_survivals(const float *confidences, const float *temperatures, uint32_t count, float *survivals) {
    double survival = 1;
    for (uint32_t i = 0; i < count; i++) {
        survival *= di_chance(confidences[i], temperatures ? temperatures[i] : 1);
        survivals[i] = (float)survival;
    }
}

/* The next draft's survival; no later draft counts for more than one before it. */
static float next_survival(const di_offer *offer) {
    float survival = 1;
    for (uint32_t j = 0; j <= offer->length; j++)
        if (!(offer->survivals[j] >= survival)) survival = offer->survivals[j] > 0 ? offer->survivals[j] : 0;
    return survival;
}

static bool goes_before(const di_offer *offers, uint32_t a, uint32_t b) {
    float x = next_survival(&offers[a]), y = next_survival(&offers[b]);
    if (x != y) return x > y;
    if (offers[a].length != offers[b].length) return offers[a].length < offers[b].length;
    return a < b;
}

static void sift(const di_offer *offers, uint32_t *heap, uint32_t count, uint32_t at) {
    for (uint32_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && goes_before(offers, heap[child + 1], heap[child])) child++;
        if (!goes_before(offers, heap[child], heap[at])) return;
        uint32_t swap = heap[at];
        heap[at] = heap[child];
        heap[child] = swap;
    }
}

typedef struct take { /* what taking the best drafts one by one found */
    uint32_t drafts;  /* with the best rate */
    double rate;
} take;

/* Takes up to `most` drafts. */
static take take_best(di_offer *offers, uint32_t count, const di_step_shape *shape, const di_costs *costs,
                      uint32_t most, uint32_t *heap) {
    uint32_t size = 0;
    for (uint32_t r = 0; r < count; r++) {
        offers[r].length = 0;
        if (offers[r].count) heap[size++] = r;
    }
    for (uint32_t at = size / 2; at-- > 0;) sift(offers, heap, size, at);
    double tokens = shape->emitting, plain = shape->draft_seconds + di_costs_get(costs, shape->base_rows);
    take best = {0, plain > 0 ? tokens / plain : 0};
    for (uint32_t taken = 1; taken <= most && size; taken++) {
        di_offer *offer = &offers[heap[0]];
        tokens += (double)next_survival(offer);
        if (++offer->length == offer->count) heap[0] = heap[--size];
        sift(offers, heap, size, 0);
        double seconds = shape->draft_seconds + di_costs_get(costs, shape->base_rows + taken);
        double rate = seconds > 0 ? tokens / seconds : 0;
        if (seconds > 0 && rate <= best.rate) continue;
        best = (take){taken, rate};
    }
    return best;
}

uint32_t di_schedule(di_offer *offers, uint32_t count, const di_step_shape *shape, const di_costs *costs, double *rate,
                     uint32_t *heap) {
    uint32_t room = shape->most_rows > shape->base_rows ? shape->most_rows - shape->base_rows : 0;
    take best = take_best(offers, count, shape, costs, room, heap);
    take_best(offers, count, shape, costs, best.drafts, heap);
    if (rate) *rate = best.rate;
    return best.drafts;
}
