/* matrix_state_rows.c - rows of the matrix about state that is kept: prefix cache and preemption. */
#include <stdio.h>
#include <string.h>

#include "engine/matrix_internal.h"

/* ---------------------------------------------------------------- T4 */

/* Positions of the snapshots that prompts then meet, miss by one and pass by one: odd, even, at and inside pages. */
static const uint32_t HEIGHTS[] = {17, 64, 2, 65, 128, 1, 16, 63, 96, 127, 129, 200, 201};

static bool add_branch(matrix *m, di_engine *engine, matrix_set *set, const int32_t *base, uint32_t shared,
                       uint32_t tail) {
    int32_t ids[260];
    memcpy(ids, base, shared * sizeof *ids);
    for (uint32_t i = 0; i < tail; i++)
        ids[shared + i] = i ? (int32_t)matrix_below(m, m->vocabulary) : (base[shared] + 1) % (int32_t)m->vocabulary;
    di_sampling sampling = matrix_sampling(m, set, set->count % 2 ? 1 : 0, 3);
    return matrix_add(m, set, ids, shared + tail, &sampling) && matrix_record(m, engine, set, set->count - 1);
}

/* The prompt, its answer, and what is said next. */
static bool add_turn(matrix *m, di_engine *engine, matrix_set *set, uint32_t index) {
    int32_t ids[260];
    const matrix_request *r = &set->requests[index];
    uint32_t count = r->prompt_count;
    memcpy(ids, r->prompt, count * sizeof *ids);
    for (uint32_t i = 0; i < r->alone->id_count; i++) ids[count++] = r->alone->ids[i];
    matrix_random_ids(m, ids + count, 3);
    di_sampling sampling = matrix_sampling(m, set, 1, 4);
    return matrix_add(m, set, ids, count + 3, &sampling) && matrix_record(m, engine, set, set->count - 1);
}

/* For each height H: a prompt of H + 1 tokens, which leaves a snapshot at H; prompts that go on differently after
 * H - 1, H and H + 1 tokens; and the next turn. */
const matrix_set *matrix_branches(matrix *m, uint64_t round) {
    int32_t base[260];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 4);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    if (!engine) return NULL;
    bool ok = true;
    for (uint32_t i = 0; ok && i < (matrix_is_small(m) ? 5 : MATRIX_COUNT(HEIGHTS)); i++) {
        uint32_t height = HEIGHTS[i], first = set->count;
        if (height + 16 > m->longest) continue;
        matrix_random_ids(m, base, height + 2);
        ok = add_branch(m, engine, set, base, height + 1, 0) && add_branch(m, engine, set, base, height - 1, 2) &&
             add_branch(m, engine, set, base, height, 2) && add_branch(m, engine, set, base, height + 1, 3) &&
             add_turn(m, engine, set, first);
    }
    di_close(engine);
    return matrix_stopped(m) || !set->count ? NULL : set;
}

static const char no_hit[] = "no prompt was found in the cache, so nothing was tested";

/* One case on an open engine; it must find something in the cache. */
static bool run_cached(matrix *m, di_engine *engine, const matrix_set *set, bool at_once) {
    uint64_t before = matrix_counter(engine, DI_COUNT_CACHE_HITS);
    bool ok = matrix_run_set(m, engine, set, at_once);
    matrix_expect(m, matrix_counter(engine, DI_COUNT_CACHE_HITS) > before, no_hit);
    return ok;
}

static bool run_evicting(matrix *m, const matrix_set *set, const char *bytes) {
    di_engine *engine = matrix_open(m, MATRIX_NO_TIES, false, MATRIX_OVERRIDES("cache-ram", bytes));
    bool ok = engine && matrix_run_set(m, engine, set, false) && run_cached(m, engine, set, false);
    di_close(engine);
    return ok;
}

static bool cache_branches(matrix *m, uint64_t round) {
    const matrix_set *set = matrix_branches(m, round);
    di_engine *engine = set ? matrix_open(m, MATRIX_NO_TIES, false, MATRIX_OVERRIDES("cache-ram", "256M")) : NULL;
    bool ok = engine != NULL;
    if (ok && matrix_begin(m, "T4", "one before, at and one after a snapshot")) ok = run_cached(m, engine, set, false);
    if (ok && matrix_begin(m, "T4", "the same prompts again")) ok = run_cached(m, engine, set, false);
    if (ok && matrix_begin(m, "T4", "the same prompts at once")) ok = run_cached(m, engine, set, true);
    int64_t held = 0;
    if (engine)
        held = atomic_load_explicit(&di_engine_metrics(engine)->gauges[DI_GAUGE_CACHE_BYTES], memory_order_relaxed);
    di_close(engine);
    char few[24];
    snprintf(few, sizeof few, "%lld", (long long)held / 6 + 1);
    if (ok && matrix_begin(m, "T4", "after eviction and rebuild")) ok = run_evicting(m, set, few);
    if (ok && matrix_begin(m, "T4", "from disk alone")) ok = matrix_run_disk_tier(m, set);
    return ok;
}

static bool cache_mixed(matrix *m, uint64_t round) {
    const matrix_set *set = matrix_mixed(m, round);
    di_engine *engine =
        set ? matrix_open(m, MATRIX_NO_TIES, false, MATRIX_OVERRIDES("cache-ram", "256M", "snapshot-interval", "7"))
            : NULL;
    bool ok = engine && matrix_run_set(m, engine, set, true) && run_cached(m, engine, set, true);
    di_close(engine);
    return ok;
}

bool matrix_cache(matrix *m, uint64_t round) {
    bool ok = cache_branches(m, round);
    if (ok && matrix_begin(m, "T4", "a snapshot every 7 positions")) ok = cache_mixed(m, round);
    return ok;
}

/* ---------------------------------------------------------------- T5 */

/* Where a request is when it is moved out of the way of another. */
static const struct {
    const char *when;
    uint32_t variant; /* of matrix_sampling */
    uint32_t shortest, more, tokens;
} groups[] = {
    {"while the prompt is computed", 1, 80, 80, 1},
    {"while the answer is computed", 2, 1, 5, 30},
    {"with three samples", 3, 20, 40, 12},
    {"with prompt log-probabilities", 6, 60, 40, 4},
};
enum { GROUPS = MATRIX_COUNT(groups), GROUP_SIZE = 6, SHORT_REQUESTS = 6 };

/* GROUP_SIZE requests of each group, then short ones that come in between. */
static const matrix_set *record_groups(matrix *m, uint64_t round) {
    int32_t ids[200];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 5);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    if (!engine) return NULL;
    set->until_ns = 0; /* all groups are needed */
    bool ok = true;
    for (uint32_t i = 0; ok && i < GROUPS * GROUP_SIZE + SHORT_REQUESTS; i++) {
        uint32_t g = i / GROUP_SIZE, length = 1 + matrix_below(m, 6), tokens = 3, variant = i % 3;
        if (g < GROUPS) {
            length = groups[g].shortest + matrix_below(m, groups[g].more);
            tokens = groups[g].tokens;
            variant = groups[g].variant;
        }
        if (length + tokens > m->longest) length = m->longest - tokens;
        matrix_random_ids(m, ids, length);
        di_sampling sampling = matrix_sampling(m, set, variant, tokens);
        sampling.ignore_eos = true;
        ok = matrix_add(m, set, ids, length, &sampling) && matrix_record(m, engine, set, i);
    }
    di_close(engine);
    return ok ? set : NULL;
}

/* The group's requests fill the places; short ones of a higher priority come at random moments. */
static bool interrupt_group(matrix *m, di_engine *engine, const matrix_set *set, uint32_t g) {
    enum { INTERRUPTIONS = 12 };
    uint32_t size = matrix_is_small(m) ? 3 : GROUP_SIZE;
    matrix_entry *entries = matrix_entries(m, size + INTERRUPTIONS);
    if (!entries) return false;
    uint32_t rows = 0;
    for (uint32_t i = 0; i < size; i++) {
        const matrix_request *r = &set->requests[g * GROUP_SIZE + i];
        matrix_enter(&entries[i], r);
        rows += r->prompt_count + (uint32_t)(r->sampling.max_tokens * r->sampling.n);
    }
    for (uint32_t i = 0; i < INTERRUPTIONS; i++) {
        matrix_entry *e = &entries[size + i];
        matrix_enter(e, &set->requests[GROUPS * GROUP_SIZE + i % SHORT_REQUESTS]);
        e->priority = 5;
        e->start = 1 + matrix_below(m, rows);
    }
    return matrix_run(m, engine, entries, size + INTERRUPTIONS);
}

static const char no_preemption[] = "nothing was preempted, so nothing was tested";

/* One way of giving up a state, for every group. */
static bool interrupt_all(matrix *m, const matrix_set *set, const char *way, di_counter_id evidence, const char *swap,
                          const char *cache) {
    enum { ATTEMPTS = 12 };
    di_engine *engine = matrix_open(m, MATRIX_NO_TIES, false,
                                    MATRIX_OVERRIDES("cache-ram", cache, "swap-ram", swap, "max-seqs", "3", "chunk",
                                                     "8", "snapshot-interval", "24"));
    bool ok = engine && matrix_warm(m, engine);
    for (uint32_t g = 0; ok && g < GROUPS; g++) {
        char name[96];
        snprintf(name, sizeof name, "%s %s", way, groups[g].when);
        if (!matrix_begin(m, "T5", name)) continue;
        uint64_t before = matrix_counter(engine, evidence);
        for (uint32_t i = 0; ok && i < ATTEMPTS && matrix_counter(engine, evidence) == before; i++)
            ok = interrupt_group(m, engine, set, g);
        matrix_expect(m, matrix_counter(engine, evidence) > before, no_preemption);
    }
    di_close(engine);
    return ok;
}

enum { PAGES_ANSWER = 160 };

/* Short prompts, long answers: they are let in and then grow out of the pages. */
static const matrix_set *record_growing(matrix *m, uint64_t round) {
    enum { REQUESTS = 6, LONGEST_PROMPT = 12 };
    int32_t ids[LONGEST_PROMPT];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 6);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    bool ok = engine != NULL;
    for (uint32_t i = 0; ok && i < (matrix_is_small(m) ? 4 : REQUESTS); i++) {
        uint32_t length = 1 + matrix_below(m, LONGEST_PROMPT);
        matrix_random_ids(m, ids, length);
        uint32_t tokens = m->longest < MATRIX_FEW_POSITIONS ? m->longest / 2 : PAGES_ANSWER;
        di_sampling sampling = matrix_sampling(m, set, i % 3, tokens);
        sampling.ignore_eos = true;
        if (!matrix_add(m, set, ids, length, &sampling)) break; /* the time for recording is over */
        ok = matrix_record(m, engine, set, i);
    }
    di_close(engine);
    return ok ? set : NULL;
}

/* Few pages for many requests. */
static bool run_out_of_pages(matrix *m, const matrix_set *set, di_counter_id evidence, const char *swap) {
    char context[16], least[24];
    snprintf(context, sizeof context, "%u", m->few_positions);
    snprintf(least, sizeof least, "%llu", (unsigned long long)m->few_bytes);
    di_engine *engine = matrix_open(
        m, MATRIX_NO_TIES, false,
        MATRIX_OVERRIDES("context", context, "kv-ram", least, "swap-ram", swap, "cache-ram", "0", "max-seqs", "16"));
    uint64_t before = engine ? matrix_counter(engine, evidence) : 0;
    bool ok = engine && matrix_run_set(m, engine, set, true);
    if (ok) matrix_expect(m, matrix_counter(engine, evidence) > before, no_preemption);
    di_close(engine);
    return ok;
}

bool matrix_preempt(matrix *m, uint64_t round) {
    const matrix_set *set = record_groups(m, round);
    bool ok = set && interrupt_all(m, set, "swap", DI_COUNT_PREEMPTIONS, "1G", "0") &&
              interrupt_all(m, set, "recompute", DI_COUNT_RECOMPUTES, "0", "0") &&
              interrupt_all(m, set, "recompute from the cache", DI_COUNT_RECOMPUTES, "0", "64M");
    set = ok ? record_growing(m, round) : NULL;
    ok = set != NULL;
    if (ok && matrix_begin(m, "T5", "swap when pages run out"))
        ok = run_out_of_pages(m, set, DI_COUNT_PREEMPTIONS, "1G");
    if (ok && matrix_begin(m, "T5", "recompute when pages run out"))
        ok = run_out_of_pages(m, set, DI_COUNT_RECOMPUTES, "0");
    return ok;
}
