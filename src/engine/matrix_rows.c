/* matrix_rows.c - rows of the matrix about how a step is made up: neighbours, kernels, chunks, threads, instruction
 * sets, padding, ties, cancels, noise. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "backend/cpu/cpu.h"
#include "base/pool.h"
#include "engine/matrix_internal.h"

#define UNLIMITED_GAP "3600000" /* prompts are never cut for the sake of the others */

/* Opens an engine with these options and runs the mixed set on it. */
static bool run_mixed_on(matrix *m, uint64_t round, bool poison, const char *const *overrides) {
    const matrix_set *set = matrix_mixed(m, round);
    di_engine *engine = set ? matrix_open(m, MATRIX_NO_TIES, poison, overrides) : NULL;
    bool ok = engine && matrix_warm(m, engine) && matrix_run_set(m, engine, set, true);
    di_close(engine);
    return ok;
}

/* ---------------------------------------------------------------- T1 */

/* `others` + 1 requests of the set, in random order and at random times, and strangers that come and are cancelled. */
static bool run_crowd(matrix *m, di_engine *engine, const matrix_set *set, uint32_t others, uint32_t strangers) {
    uint32_t count = others + 1 + strangers;
    matrix_entry *entries = matrix_entries(m, count);
    if (!entries) return false;
    for (uint32_t i = 0; i < count; i++) {
        matrix_entry *e = &entries[i];
        if (i <= others)
            matrix_enter(e, &set->requests[(i + matrix_below(m, 2) * matrix_below(m, set->count)) % set->count]);
        else
            matrix_enter_neighbour(m, e, 2000);
        e->start = matrix_below(m, 8 * count);
        e->priority = (int32_t)matrix_below(m, 3) - 1;
        if (!e->request && matrix_below(m, 2)) e->cancel = e->start + matrix_below(m, 400);
        uint32_t other = matrix_below(m, i + 1);
        matrix_entry swap = entries[other];
        entries[other] = *e;
        *e = swap;
    }
    return matrix_run(m, engine, entries, count);
}

bool matrix_neighbours(matrix *m, uint64_t round) {
    static const uint32_t counts[] = {1, 7, 64, 2, 4, 16, 24, 32, 48, 63};
    const matrix_set *set = matrix_mixed(m, round);
    di_engine *engine = set ? matrix_open(m, MATRIX_NO_TIES, false,
                                          MATRIX_OVERRIDES("cache-ram", "0", "max-seqs", "200", "max-queue", "512"))
                            : NULL;
    if (!engine) return false;
    bool ok = true;
    matrix_reseed(m, round, 1);
    if (matrix_begin(m, "T1", "alone again")) ok = matrix_run_set(m, engine, set, false);
    for (uint32_t i = 0; ok && i < (matrix_is_small(m) ? 3 : MATRIX_COUNT(counts)); i++) {
        char name[48];
        snprintf(name, sizeof name, "beside %u others", counts[i]);
        if (matrix_begin(m, "T1", name)) ok = run_crowd(m, engine, set, counts[i], 1 + counts[i] / 4);
    }
    di_close(engine);
    return ok;
}

/* ---------------------------------------------------------------- T2, T10 */

static bool sweep_kernels(matrix *m, uint64_t round, const char *isa) {
    enum { VECTORS = 300 };
    char name[64];
    snprintf(name, sizeof name, "%s kernels, %d random vectors each", isa, VECTORS);
    if (!matrix_begin(m, "T2", name)) return !matrix_stopped(m);
    const char *what = NULL;
    if (!di_cpu_can(isa)) {
        matrix_skip(m, "this processor does not have the instruction set");
        return true;
    }
    uint64_t differing = di_cpu_compare(isa, 100 + round, VECTORS, &what);
    matrix_expect(m, true, NULL);
    if (what) matrix_differs(m, differing, "kernel %s differs from the scalar reference", what);
    return true;
}

bool matrix_kernels(matrix *m, uint64_t round) {
    static const char *const rows[] = {"1", "3", "7", "2", "4", "6", "13", "31", "64"};
    bool ok = sweep_kernels(m, round, "avx2") && sweep_kernels(m, round, "avx512");
    for (uint32_t i = 0; ok && i < (matrix_is_small(m) ? 3 : MATRIX_COUNT(rows)); i++) {
        char name[48];
        snprintf(name, sizeof name, "steps of at most %s rows", rows[i]);
        matrix_reseed(m, round, 20 + i);
        if (matrix_begin(m, "T2", name))
            ok = run_mixed_on(
                m, round, false,
                MATRIX_OVERRIDES("cache-ram", "0", "max-rows", rows[i], "max-seqs", "64", "max-gap", UNLIMITED_GAP));
    }
    return ok;
}

bool matrix_isas(matrix *m, uint64_t round) {
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    bool ok = true;
    for (uint32_t i = 0; ok && i < MATRIX_COUNT(isas); i++) {
        matrix_reseed(m, round, 100 + i);
        if (!matrix_begin(m, "T10", isas[i])) continue;
        if (di_cpu_can(isas[i]))
            ok = run_mixed_on(m, round, false, MATRIX_OVERRIDES("cache-ram", "0", "cpu-isa", isas[i]));
        else
            matrix_skip(m, "this processor does not have the instruction set");
    }
    return ok;
}

/* ---------------------------------------------------------------- T3 */

/* A prompt longer than every chunk. */
static const matrix_set *long_prompt(matrix *m, uint64_t round) {
    enum { POSITIONS = 2060, TOKENS = 8 };
    int32_t ids[POSITIONS];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 2);
    matrix_random_ids(m, ids, POSITIONS);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    if (!engine) return NULL;
    di_sampling sampling = matrix_sampling(m, set, 1, TOKENS);
    bool ok = matrix_add(m, set, ids, POSITIONS, &sampling) && matrix_record(m, engine, set, 0);
    di_close(engine);
    return ok ? set : NULL;
}

static bool run_chunk(matrix *m, uint64_t round, const char *chunk, const char *rows, const matrix_set *more) {
    const matrix_set *set = matrix_mixed(m, round);
    di_engine *engine = set ? matrix_open(m, MATRIX_NO_TIES, false,
                                          MATRIX_OVERRIDES("cache-ram", "0", "chunk", chunk, "max-rows", rows,
                                                           "max-seqs", "8", "max-gap", UNLIMITED_GAP))
                            : NULL;
    bool ok = engine && matrix_warm(m, engine) && matrix_run_set(m, engine, set, true);
    if (ok && more) ok = matrix_run_set(m, engine, more, true);
    di_close(engine);
    return ok;
}

typedef struct scored {
    matrix *m;
    const matrix_request *request;
    const matrix_sample *alone;
} scored;

/* Row `row` predicts the token at position row + 1. */
static bool compare_scored(void *arg, size_t row, const float *logits) {
    const scored *s = arg;
    matrix *m = s->m;
    uint32_t position = (uint32_t)row + 1, index = position - s->request->first;
    if (position < s->request->first || index >= s->request->row_count || !s->alone->seen[index]) return true;
    const uint8_t *a = (const uint8_t *)(s->alone->logits + (size_t)index * m->vocabulary), *b = (const void *)logits;
    uint64_t differing = 0;
    for (size_t i = 0; i < m->vocabulary * sizeof *logits; i++) differing += a[i] != b[i];
    m->now->tokens++;
    m->tokens++;
    if (differing) matrix_differs(m, differing, "a scored text differs from the answer at position %u", position);
    return true;
}

/* The answers as given text: all rows by the road of prompts. */
static bool score_answers(matrix *m, uint64_t round) {
    int32_t ids[400];
    const matrix_set *set = matrix_mixed(m, round);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    for (uint32_t r = 0; engine && r < set->count; r++) {
        const matrix_request *request = &set->requests[r];
        for (int32_t i = 0; i < request->sampling.n && !matrix_stopped(m); i++) {
            const matrix_sample *alone = &request->alone[i];
            uint32_t count = request->prompt_count + alone->id_count;
            memcpy(ids, request->prompt, request->prompt_count * sizeof *ids);
            memcpy(ids + request->prompt_count, alone->ids, alone->id_count * sizeof *ids);
            scored check = {m, request, alone};
            di_score(engine, ids, count, compare_scored, &check, NULL, m->error);
        }
    }
    di_close(engine);
    return !matrix_stopped(m);
}

bool matrix_chunks(matrix *m, uint64_t round) {
    static const char *const chunks[] = {"1", "7", "64", "127", "128", "129", "2048"};
    bool ok = true;
    const matrix_set *more = NULL;
    if (!matrix_is_small(m) && m->longest >= 2100 && !(more = long_prompt(m, round))) return false;
    for (uint32_t i = 0; ok && i < MATRIX_COUNT(chunks); i++) {
        char name[48];
        snprintf(name, sizeof name, "chunks of %s rows", chunks[i]);
        matrix_reseed(m, round, 30 + i);
        if (matrix_begin(m, "T3", name)) ok = run_chunk(m, round, chunks[i], i == 6 ? "2048" : "256", i ? more : NULL);
    }
    matrix_reseed(m, round, 40);
    if (ok && matrix_begin(m, "T3", "random chunks: what others leave of 37 rows"))
        ok = run_chunk(m, round, "0", "37", more);
    if (ok && matrix_begin(m, "T3", "answers scored as one text")) {
        if (m->compact)
            matrix_skip(m, "scoring always runs --prefill off, another profile");
        else
            ok = score_answers(m, round);
    }
    return ok;
}

/* ---------------------------------------------------------------- T9 */

/* All threads of the engine on the first core that this process may use. */
static bool run_on_one_core(matrix *m, uint64_t round) {
    cpu_set_t before, one;
    if (sched_getaffinity(0, sizeof before, &before) != 0) {
        matrix_skip(m, "the cores of this process cannot be read");
        return true;
    }
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
    if (!matrix_mixed(m, round)) return false;
    sched_setaffinity(0, sizeof one, &one);
    bool ok = run_mixed_on(m, round, false, MATRIX_OVERRIDES("cache-ram", "0", "threads", "3"));
    sched_setaffinity(0, sizeof before, &before);
    return ok;
}

bool matrix_threads(matrix *m, uint64_t round) {
    uint32_t cores = (uint32_t)di_usable_cores(), counts[] = {1, 2, 3, 5, cores, cores + 1};
    bool ok = true;
    for (uint32_t i = 0; ok && i < MATRIX_COUNT(counts); i++) {
        uint32_t earlier = 0;
        while (earlier < i && counts[earlier] != counts[i]) earlier++;
        if (earlier < i) continue;
        char name[32], threads[16];
        snprintf(threads, sizeof threads, "%u", counts[i]);
        snprintf(name, sizeof name, "%u thread%s", counts[i], counts[i] == 1 ? "" : "s");
        matrix_reseed(m, round, 90 + i);
        if (matrix_begin(m, "T9", name))
            ok = run_mixed_on(m, round, false, MATRIX_OVERRIDES("cache-ram", "0", "threads", threads));
    }
    if (ok && matrix_begin(m, "T9", "3 threads on one core")) ok = run_on_one_core(m, round);
    return ok;
}

/* ---------------------------------------------------------------- T11 */

enum { MOST_ROWS = 256 };

/* One request whose prompt rows are all recorded: what any beginning of it must give. */
static matrix_set *record_base(matrix *m, uint64_t round) {
    int32_t ids[MOST_ROWS + 2];
    uint32_t count = m->longest < MOST_ROWS + 4 ? m->longest - 2 : MOST_ROWS + 2;
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 11);
    matrix_random_ids(m, ids, count);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    if (!engine) return NULL;
    di_sampling sampling;
    di_sampling_default(&sampling);
    sampling.max_tokens = 1;
    sampling.prompt_logprobs = 0;
    bool ok = matrix_add(m, set, ids, count, &sampling) && matrix_record(m, engine, set, 0);
    di_close(engine);
    return ok ? set : NULL;
}

/* A step of exactly `rows` rows, then one of one row. */
static bool run_prefix(matrix *m, di_engine *engine, const matrix_request *base, uint32_t rows) {
    matrix_entry *e = matrix_entries(m, 1);
    if (!e) return false;
    matrix_enter(e, base);
    e->rows_only = true;
    e->prompt_count = rows;
    e->sampling.prompt_logprobs = -1;
    e->sampling.max_tokens = 2;
    e->sampling.ignore_eos = true;
    e->sampling.golden_token_ids = base->prompt + rows;
    e->sampling.golden_token_count = 1;
    return matrix_run(m, engine, e, 1);
}

static bool run_row_counts(matrix *m, uint64_t round) {
    const matrix_set *set = record_base(m, round);
    di_engine *engine =
        set ? matrix_open(m, MATRIX_NO_TIES, true,
                          MATRIX_OVERRIDES("cache-ram", "0", "max-rows", "256", "max-gap", UNLIMITED_GAP))
            : NULL;
    bool ok = engine && matrix_warm(m, engine);
    for (uint32_t rows = 1; ok && rows + 2 <= set->requests[0].prompt_count; rows++) {
        /* Small sets: all counts up to 17, then those around powers of two. */
        uint32_t near = rows + 1, power = 1;
        while (2 * power <= near) power *= 2;
        if (matrix_is_small(m) && rows > 17 && near - power > 2) continue;
        ok = run_prefix(m, engine, &set->requests[0], rows);
    }
    di_close(engine);
    return ok;
}

bool matrix_padding(matrix *m, uint64_t round) {
    bool ok = true;
    matrix_reseed(m, round, 110);
    if (matrix_begin(m, "T11", "the step's memory is NaN before every step"))
        ok = run_mixed_on(m, round, true, MATRIX_OVERRIDES("cache-ram", "0"));
    if (ok && matrix_begin(m, "T11", "NaN behind 1 .. 256 rows")) {
        if (m->compact)
            matrix_skip(m, "in compact mode the bits of a row depend on where the prompt ends");
        else
            ok = run_row_counts(m, round);
    }
    return ok;
}

/* ---------------------------------------------------------------- T12 */

/* With equal logits greedy choice takes the lowest id. */
static void check_lowest(matrix *m, const matrix_set *set) {
    for (uint32_t r = 0; r < set->count; r++) {
        const di_sampling *s = &set->requests[r].sampling;
        const matrix_sample *alone = set->requests[r].alone;
        if (s->temperature > 0 || s->golden_token_count) continue;
        for (uint32_t i = 0; i < alone->id_count; i++)
            if (alone->ids[i] != 0)
                matrix_differs(m, sizeof(int32_t), "request %u: all logits are equal and token %u is %d, not 0", r, i,
                               alone->ids[i]);
    }
}

static bool run_ties(matrix *m, uint64_t round, matrix_ties ties) {
    enum { REQUESTS = 12, LENGTH = 200, TOKENS = 8 };
    int32_t ids[LENGTH];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 120 + ties);
    di_engine *engine = set ? matrix_open_alone(m, ties) : NULL;
    if (!engine) return false;
    bool ok = true;
    for (uint32_t i = 0; ok && i < (matrix_is_small(m) ? 8 : REQUESTS); i++) {
        uint32_t length = 1 + matrix_below(m, m->longest < LENGTH + 16 ? m->longest - 16 : LENGTH);
        matrix_random_ids(m, ids, length);
        for (uint32_t j = 0; i % 2 && j < length; j++) ids[j] = ids[0]; /* the keys of the index are alike, too */
        di_sampling sampling = matrix_sampling(m, set, i, TOKENS);
        sampling.ignore_eos = true;
        if (!matrix_add(m, set, ids, length, &sampling)) break; /* the time for recording is over */
        ok = matrix_record(m, engine, set, i);
    }
    if (ok && ties == MATRIX_ALL_EQUAL) check_lowest(m, set);
    di_close(engine);
    engine = ok ? matrix_open(m, ties, false, MATRIX_OVERRIDES("max-seqs", "64")) : NULL;
    ok = engine && matrix_run_set(m, engine, set, true);
    if (ok) ok = matrix_run_set(m, engine, set, true); /* from the cache */
    di_close(engine);
    return ok;
}

bool matrix_tie_storms(matrix *m, uint64_t round) {
    bool ok = true;
    if (matrix_begin(m, "T12", "all logits equal")) ok = run_ties(m, round, MATRIX_ALL_EQUAL);
    if (ok && matrix_begin(m, "T12", "logits of few values")) ok = run_ties(m, round, MATRIX_PLATEAUS);
    return ok;
}

/* ---------------------------------------------------------------- T14 */

/* Most strangers are cancelled, many before they have begun; some run into their deadline. */
static bool run_storm(matrix *m, di_engine *engine, const matrix_set *set, uint32_t watched, uint32_t strangers) {
    uint32_t count = watched + strangers;
    matrix_entry *entries = matrix_entries(m, count);
    if (!entries) return false;
    for (uint32_t i = 0; i < count; i++) {
        matrix_entry *e = &entries[i];
        e->start = matrix_below(m, 6 * count);
        if (i < watched) {
            matrix_enter(e, &set->requests[matrix_below(m, set->count)]);
            continue;
        }
        matrix_enter_neighbour(m, e, 300);
        e->sampling.n = 1 + (int32_t)matrix_below(m, 3);
        e->priority = (int32_t)matrix_below(m, 3) - 1;
        if (matrix_below(m, 8)) e->cancel = e->start + matrix_below(m, 60);
        if (matrix_below(m, 4) == 0) e->deadline_ms = 1 + matrix_below(m, 20);
    }
    return matrix_run(m, engine, entries, count);
}

bool matrix_cancels(matrix *m, uint64_t round) {
    const matrix_set *set = matrix_mixed(m, round);
    di_engine *engine = set ? matrix_open(m, MATRIX_NO_TIES, false, MATRIX_OVERRIDES("max-seqs", "24")) : NULL;
    bool ok = engine != NULL;
    matrix_reseed(m, round, 140);
    uint32_t watched = set && set->count < 16 ? set->count : 16;
    if (ok && matrix_begin(m, "T14", "cancels and deadlines around"))
        ok = run_storm(m, engine, set, watched, matrix_is_small(m) ? 60 : 200);
    if (ok && matrix_begin(m, "T14", "after the storm")) ok = matrix_run_set(m, engine, set, true);
    di_close(engine);
    return ok;
}

/* ---------------------------------------------------------------- T15 */

static void must_differ(matrix *m, const matrix_sample *a, const matrix_sample *b, const char *what) {
    if (a->id_count == b->id_count && memcmp(a->ids, b->ids, a->id_count * sizeof *a->ids) == 0)
        matrix_differs(m, a->id_count * sizeof *a->ids, "the same noise for %s", what);
}

/* All logits are equal, so the ids are the noise itself. */
static bool run_noise(matrix *m, uint64_t round) {
    enum { LENGTH = 9, TOKENS = 16 };
    int32_t ids[LENGTH];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 150);
    matrix_random_ids(m, ids, LENGTH);
    di_engine *engine = set ? matrix_open(m, MATRIX_ALL_EQUAL, false, NULL) : NULL;
    if (!engine) return false;
    di_sampling sampling = matrix_sampling(m, set, 1, TOKENS);
    sampling.ignore_eos = true;
    sampling.n = 2;
    bool ok = matrix_add(m, set, ids, LENGTH, &sampling); /* 0 */
    ids[LENGTH - 1] = (ids[LENGTH - 1] + 1) % (int32_t)m->vocabulary;
    ok = ok && matrix_add(m, set, ids, LENGTH, &sampling); /* 1: another last id */
    sampling.seq_seed++;
    ok = ok && matrix_add(m, set, ids, LENGTH, &sampling);     /* 2: another seed */
    ok = ok && matrix_add(m, set, ids, LENGTH - 1, &sampling); /* 3: one id less */
    ok = ok && matrix_record(m, engine, set, 0) && matrix_run_set(m, engine, set, true);
    const matrix_request *r = set->requests;
    if (ok) {
        must_differ(m, r[0].alone, r[1].alone, "one seed and two prompts");
        must_differ(m, r[0].alone, r[0].alone + 1, "two samples of a request");
        must_differ(m, r[1].alone, r[2].alone, "two seeds");
        must_differ(m, r[2].alone, r[3].alone, "a prompt and its beginning");
    }
    di_close(engine);
    return ok;
}

/* A request without a seed reports the one that was drawn; with it the answer comes again. */
static bool run_reported_seed(matrix *m, uint64_t round) {
    enum { LENGTH = 12, TOKENS = 16 };
    int32_t ids[LENGTH];
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 151);
    matrix_random_ids(m, ids, LENGTH);
    di_engine *engine = set ? matrix_open(m, MATRIX_NO_TIES, false, NULL) : NULL;
    if (!engine) return false;
    di_sampling sampling = matrix_sampling(m, set, 1, TOKENS);
    sampling.has_seed = false;
    bool ok = matrix_add(m, set, ids, LENGTH, &sampling);
    matrix_entry *first = ok ? matrix_entries(m, 1) : NULL;
    if (first) {
        matrix_enter(first, &set->requests[0]);
        first->record = true;
        ok = matrix_run(m, engine, first, 1);
        uint64_t seed = first->seed;
        matrix_entry *again = ok ? matrix_entries(m, 1) : NULL;
        if (again) {
            matrix_enter(again, &set->requests[0]);
            again->sampling.has_seed = true;
            again->sampling.seq_seed = seed;
            ok = matrix_run(m, engine, again, 1);
        }
    }
    di_close(engine);
    return ok && !matrix_stopped(m);
}

bool matrix_seeds(matrix *m, uint64_t round) {
    bool ok = true;
    if (matrix_begin(m, "T15", "noise of seeds, prompts and samples")) ok = run_noise(m, round);
    if (ok && matrix_begin(m, "T15", "the reported seed gives the answer again")) ok = run_reported_seed(m, round);
    return ok;
}
