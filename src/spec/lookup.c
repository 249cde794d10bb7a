/* lookup.c - see lookup.h. */
#include "spec/lookup.h"

#include <stdlib.h>

struct di_lookup {
    uint32_t added, max_ids; /* ids */
    uint32_t *before;        /* [max_ids] place behind the same ids before this one, 0 = none; a place is the number of
                                ids in front of it */
    uint32_t *newest;        /* [mask + 1] by hash of the last ids */
    uint32_t mask;
};

static uint32_t slots_for(uint32_t max_ids) {
    uint32_t slots = 64;
    while (slots < max_ids && slots < 1u << 30) slots *= 2;
    return slots;
}

uint64_t di_lookup_bytes(uint32_t max_ids) {
    return sizeof(di_lookup) + ((uint64_t)max_ids + 1 + slots_for(max_ids)) * sizeof(uint32_t);
}

di_status di_lookup_new(uint32_t max_ids, di_lookup **out, di_error *error) {
    *out = NULL;
    di_lookup *l = calloc(1, sizeof *l);
    uint32_t slots = slots_for(max_ids);
    if (l) {
        l->max_ids = max_ids;
        l->mask = slots - 1;
        l->before = malloc(((size_t)max_ids + 1) * sizeof *l->before);
        l->newest = calloc(slots, sizeof *l->newest);
    }
    if (!l || !l->before || !l->newest) {
        di_lookup_free(l);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot look up %u ids", max_ids);
    }
    *out = l;
    return DI_OK;
}

void di_lookup_free(di_lookup *lookup) {
    if (!lookup) return;
    free(lookup->before);
    free(lookup->newest);
    free(lookup);
}

/* Of the ids in front of a place. */
static uint32_t slot_of(const di_lookup *l, const int32_t *ids, uint32_t place) {
    uint64_t hash = 0;
    for (uint32_t i = 1; i <= DI_LOOKUP_LEAST; i++) hash = (hash ^ (uint32_t)ids[place - i]) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(hash >> 32) & l->mask;
}

void di_lookup_add(di_lookup *l, const int32_t *ids, uint32_t count) {
    if (count > l->max_ids) count = l->max_ids;
    for (; l->added < count; l->added++) {
        uint32_t place = l->added + 1;
        l->before[place - 1] = 0;
        if (place < DI_LOOKUP_LEAST) continue;
        uint32_t slot = slot_of(l, ids, place);
        l->before[place - 1] = l->newest[slot];
        l->newest[slot] = place;
    }
}

static uint32_t agreement(const int32_t *ids, uint32_t a, uint32_t b) {
    uint32_t n = 0, most = a < b ? a : b;
    if (most > DI_LOOKUP_REACH) most = DI_LOOKUP_REACH;
    while (n < most && ids[a - 1 - n] == ids[b - 1 - n]) n++;
    return n;
}

uint32_t di_lookup_draft(const di_lookup *l, const int32_t *ids, uint32_t count, uint32_t most, int32_t *drafts,
                         uint32_t *matched) {
    uint32_t best = 0, longest = DI_LOOKUP_LEAST - 1, drafted = 0;
    if (matched) *matched = 0;
    if (count > l->added || count < DI_LOOKUP_LEAST) return 0;
    uint32_t place = l->before[count - 1];
    for (int tries = 0; place && tries < DI_LOOKUP_TRIES; tries++, place = l->before[place - 1]) {
        uint32_t n = agreement(ids, count, place); /* places of other ids with the same hash agree in less */
        if (n > longest) {
            longest = n;
            best = place;
        }
    }
    if (!best) return 0;
    /* A place near the end is continued by what is drafted itself: a repetition goes on. */
    for (; drafted < most; drafted++) {
        uint32_t from = best + drafted;
        drafts[drafted] = from < count ? ids[from] : drafts[from - count];
    }
    if (matched) *matched = longest;
    return drafted;
}
