/* matrix_crowd.c - many requests at once, and what each of them gives compared with what it gave alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "engine/matrix_internal.h"

/* How long the driver looks at one request before it looks at the others. */
enum { PATIENCE_MS = 1 };

/* ---------------------------------------------------------------- rows of logits (compute thread) */

static bool make_ties(matrix_ties ties, float *logits, uint32_t count) {
    for (uint32_t i = 0; ties != MATRIX_NO_TIES && i < count; i++)
        logits[i] = ties == MATRIX_ALL_EQUAL ? 1.0f : floorf(logits[i] * 0.5f) * 2.0f;
    return ties != MATRIX_NO_TIES;
}

/* Flips the lowest bit of one logit when its time has come. */
static bool plant(matrix *m, float *logits) {
    if (!m->plant_in || --m->plant_in) return false;
    uint32_t bits;
    memcpy(&bits, &logits[m->vocabulary / 3], sizeof bits);
    bits ^= 1;
    memcpy(&logits[m->vocabulary / 3], &bits, sizeof bits);
    atomic_store(&m->planted, true);
    return true;
}

static void compare_row(const matrix *m, matrix_entry *e, int32_t sample, uint32_t position, const float *alone,
                        const float *now) {
    size_t bytes = m->vocabulary * sizeof *now, differing = 0, at = 0;
    if (memcmp(alone, now, bytes) == 0) return;
    for (size_t i = 0; i < bytes; i++) {
        if (((const uint8_t *)alone)[i] == ((const uint8_t *)now)[i]) continue;
        if (!differing++) at = i / sizeof *now;
    }
    if (!e->differing) {
        uint32_t a, b;
        memcpy(&a, &alone[at], sizeof a);
        memcpy(&b, &now[at], sizeof b);
        snprintf(e->first, sizeof e->first,
                 "request %u (prompt of %u tokens), sample %d, position %u: logit %zu is %08x, alone %08x",
                 (unsigned)(e - m->entries), e->prompt_count, sample, position, at, b, a);
    }
    e->differing += differing;
}

/* Behind a stop string some rows may have been computed before it was seen; nobody is told of them. */
static bool is_unheard(const matrix_request *r, int32_t sample, uint32_t index) {
    return r->sampling.stop_count && r->first + index >= r->prompt_count + r->alone[sample].id_count;
}

/* A row of a request that is recorded or compared. True when a fault was planted in it. */
static bool look(matrix *m, matrix_entry *e, int32_t sample, uint32_t position, float *logits) {
    matrix_request *r = e->request;
    uint32_t index = position - r->first;
    float *alone = NULL;
    if (sample < r->sampling.n && position >= r->first && index < r->row_count)
        alone = r->alone[sample].logits + (size_t)index * m->vocabulary;
    bool changed = !e->record && plant(m, logits);
    if (alone && !e->record && is_unheard(r, sample, index)) return changed;
    if (!alone || (!e->record && !r->alone[sample].seen[index])) {
        if (!e->differing)
            snprintf(e->first, sizeof e->first, "request %u, sample %d, position %u: alone there is no such row",
                     (unsigned)(e - m->entries), sample, position);
        e->differing += m->vocabulary * sizeof *logits;
        return changed;
    }
    if (e->record)
        memcpy(alone, logits, m->vocabulary * sizeof *logits);
    else
        compare_row(m, e, sample, position, alone, logits);
    e->tokens += !e->now[sample].seen[index];
    e->now[sample].seen[index] = 1;
    return changed;
}

bool matrix_watch(void *arg, const char *id, int32_t sample, uint32_t position, float *logits) {
    matrix *m = arg;
    bool changed = false;
    if (id[0] == 'w') changed = look(m, &m->entries[strtoul(id + 1, NULL, 10)], sample, position, logits);
    return make_ties(m->ties, logits, m->vocabulary) || changed;
}

/* ---------------------------------------------------------------- entries */

matrix_entry *matrix_entries(matrix *m, uint32_t count) {
    di_arena_reset(m->crowd);
    matrix_entry *entries = di_arena_zalloc(m->crowd, count * sizeof *entries);
    if (!entries) di_fail(m->error, DI_ERR_MEMORY, NULL, "out of memory for %u requests", count);
    for (uint32_t i = 0; entries && i < count; i++) entries[i].cancel = UINT64_MAX;
    return entries;
}

void matrix_enter(matrix_entry *e, const matrix_request *request) {
    e->request = (matrix_request *)request;
    e->prompt = request->prompt;
    e->prompt_count = request->prompt_count;
    e->sampling = request->sampling;
}

void matrix_enter_neighbour(matrix *m, matrix_entry *e, uint32_t longest) {
    uint32_t most = m->longest - 32, length = 1 + matrix_below(m, matrix_below(m, 16) ? 100 : 2000);
    if (longest > most) longest = most;
    if (m->slow && longest > 64) longest = 64;
    if (length > longest) length = longest;
    int32_t *ids = di_arena_array(m->crowd, length, sizeof *ids);
    di_sampling_default(&e->sampling);
    e->sampling.max_tokens = 1 + matrix_below(m, 24);
    e->sampling.has_seed = true;
    e->sampling.seq_seed = matrix_next(m);
    e->prompt = ids;
    e->prompt_count = ids ? length : 0;
    if (ids) matrix_random_ids(m, ids, length);
}

/* Where its results go. */
static bool prepare(matrix *m, matrix_entry *e) {
    if (!e->request) return true;
    if (e->record) {
        e->now = e->request->alone;
        return true;
    }
    uint32_t n = (uint32_t)e->request->sampling.n;
    e->now = di_arena_zalloc(m->crowd, n * sizeof *e->now);
    for (uint32_t i = 0; e->now && i < n; i++) {
        e->now[i].seen = di_arena_zalloc(m->crowd, e->request->row_count);
        e->now[i].ids = di_arena_array(m->crowd, (size_t)e->sampling.max_tokens, sizeof(int32_t));
        if (!e->now[i].seen || !e->now[i].ids) return false;
    }
    return e->now != NULL;
}

/* ---------------------------------------------------------------- events (driver) */

static void fold(matrix_sample *s, const void *bytes, size_t count) {
    s->others = XXH64(bytes, count, s->others);
}

static void fold_token(matrix_sample *s, const di_event *event) {
    fold(s, &event->position, sizeof event->position);
    fold(s, event->text, event->text_length);
    fold(s, &event->logprob, sizeof event->logprob);
    fold(s, event->top, event->top_count * sizeof *event->top);
}

static void take(matrix *m, matrix_entry *e, const di_event *event) {
    if (event->kind == DI_EVENT_DONE) {
        e->done = true;
        e->seed = event->seed;
        bool expected = event->status == DI_OK ||
                        (!e->request && (event->status == DI_ERR_CANCELLED || event->status == DI_ERR_DEADLINE));
        if (expected) return;
        if (e->record)
            *m->error = event->error;
        else
            matrix_differs(m, 1, "request %u failed: %s", (unsigned)(e - m->entries), event->error.message);
        return;
    }
    if (!e->request || (event->kind == DI_EVENT_PROMPT)) return;
    matrix_sample *s = &e->now[event->sample];
    if (event->kind == DI_EVENT_TOKEN && s->id_count < e->sampling.max_tokens) s->ids[s->id_count++] = event->token_id;
    if (event->kind == DI_EVENT_FINISH) {
        uint64_t end[4] = {(uint64_t)event->finish_reason, (uint64_t)(uint32_t)event->stop_token_id, event->logits_hash,
                           (uint64_t)event->position};
        fold(s, end, sizeof end);
        fold(s, event->text, event->text_length);
        return;
    }
    if (event->kind == DI_EVENT_PROMPT_TOKEN && event->position != e->prompt_tokens_seen++ && !e->record)
        matrix_differs(m, 1, "request %u: the event of prompt token %lld comes as number %u",
                       (unsigned)(e - m->entries), (long long)event->position, e->prompt_tokens_seen - 1);
    fold_token(s, event);
}

static void compare_ids(matrix *m, const matrix_entry *e, uint32_t sample) {
    const matrix_sample *alone = &e->request->alone[sample], *now = &e->now[sample];
    uint32_t number = (unsigned)(e - m->entries);
    uint32_t most = alone->id_count > now->id_count ? alone->id_count : now->id_count;
    for (uint32_t i = 0; i < most; i++) {
        int32_t a = i < alone->id_count ? alone->ids[i] : -1, b = i < now->id_count ? now->ids[i] : -1;
        if (a == b) continue;
        matrix_differs(m, sizeof a, "request %u, sample %u: token %u is %d, alone %d", number, sample, i, b, a);
    }
    if (alone->others != now->others)
        matrix_differs(m, sizeof alone->others,
                       "request %u, sample %u: log-probabilities, text, hash or reason of the end differ", number,
                       sample);
}

/* Adds one finished request to the case. */
static void settle(matrix *m, const matrix_entry *e) {
    if (!e->request || e->record) return;
    const matrix_request *r = e->request;
    m->now->tokens += e->tokens;
    m->tokens += e->tokens;
    if (e->differing) matrix_differs(m, e->differing, "%s", e->first);
    for (uint32_t i = 0; i < (uint32_t)r->sampling.n; i++) {
        uint32_t from = e->rows_only ? e->prompt_count - r->first : 0;
        uint32_t to = e->rows_only ? from + (uint32_t)e->sampling.max_tokens : r->row_count;
        for (uint32_t row = from; row < to; row++)
            if (r->alone[i].seen[row] && !e->now[i].seen[row] && !is_unheard(r, (int32_t)i, row))
                matrix_differs(m, m->vocabulary * sizeof(float),
                               "request %u, sample %u, position %u: the row is missing", (unsigned)(e - m->entries), i,
                               r->first + row);
        if (!e->rows_only) compare_ids(m, e, i);
    }
}

/* ---------------------------------------------------------------- running */

/* False when it does not run now. */
static bool submit(matrix *m, di_engine *engine, matrix_entry *e) {
    char id[24];
    snprintf(id, sizeof id, "%c%u", e->request ? 'w' : 'n', (unsigned)(e - m->entries));
    di_segment segment = {.token_ids = e->prompt, .token_count = e->prompt_count};
    di_request_params params;
    di_request_params_default(&params);
    params.id = id;
    params.segments = &segment;
    params.segment_count = 1;
    params.sampling = e->sampling;
    params.priority = e->priority;
    params.deadline_ms = e->deadline_ms;
    di_error error = {0};
    di_status status = di_submit(engine, &params, &e->handle, &error);
    if (status == DI_ERR_LIMIT) { /* more samples or positions than this engine takes: the case is not about it */
        e->request = NULL;
        e->done = true;
    } else if (status != DI_OK && status != DI_ERR_QUEUE_FULL) {
        *m->error = error;
    }
    return status == DI_OK;
}

/* Starts whose time has come; when nothing runs, whoever is first. */
static uint32_t start(matrix *m, di_engine *engine, uint64_t clock) {
    uint32_t active = 0, next = m->entry_count;
    for (uint32_t i = 0; i < m->entry_count; i++) {
        matrix_entry *e = &m->entries[i];
        if (!e->handle && !e->done && e->start <= clock) submit(m, engine, e);
        active += e->handle && !e->done;
        if (!e->handle && !e->done && (next == m->entry_count || e->start < m->entries[next].start)) next = i;
    }
    if (!active && next < m->entry_count && !m->entries[next].done) {
        submit(m, engine, &m->entries[next]);
        active = 1;
    }
    return active;
}

uint64_t matrix_counter(const di_engine *engine, di_counter_id id) {
    return di_counter(di_engine_metrics(engine), id);
}

/* Takes what has come, and waits a little at the first request that still runs. */
static void drain(matrix *m, uint64_t clock) {
    bool waited = false;
    for (uint32_t i = 0; i < m->entry_count && m->error->status == DI_OK; i++) {
        matrix_entry *e = &m->entries[i];
        if (!e->handle || e->done) continue;
        if (clock >= e->cancel) di_request_cancel(e->handle);
        di_event event;
        /* One wait in all: others may have to start between two events of a request that is quick. */
        while (!e->done && di_request_next(e->handle, waited ? 0 : PATIENCE_MS, &event)) {
            take(m, e, &event);
            waited = true;
        }
        waited = waited || !e->done;
    }
}

/* A request that ended early may still have rows in a step: they belong to these entries, not to the next ones. */
static void wait_until_idle(const di_engine *engine) {
    for (;;) {
        di_engine_progress p = di_engine_get_progress(engine);
        if (!p.running && !p.waiting && !p.swapped) return;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    }
}

bool matrix_run(matrix *m, di_engine *engine, matrix_entry *entries, uint32_t count) {
    m->entries = entries;
    m->entry_count = count;
    for (uint32_t i = 0; i < count; i++)
        if (!prepare(m, &entries[i]) || !entries[i].prompt_count)
            di_fail(m->error, DI_ERR_MEMORY, NULL, "out of memory for the matrix");
    uint64_t zero = matrix_counter(engine, DI_COUNT_COMPUTED_ROWS);
    for (;;) {
        uint64_t clock = matrix_counter(engine, DI_COUNT_COMPUTED_ROWS) - zero;
        if (matrix_stopped(m) || !start(m, engine, clock)) break;
        drain(m, clock);
    }
    for (uint32_t i = 0; i < count; i++) {
        di_request_free(entries[i].handle);
        entries[i].handle = NULL;
    }
    wait_until_idle(engine);
    for (uint32_t i = 0; i < count && !matrix_stopped(m); i++) settle(m, &entries[i]);
    return !matrix_stopped(m);
}

bool matrix_run_set(matrix *m, di_engine *engine, const matrix_set *set, bool at_once) {
    enum { FEW = 8 };
    uint32_t total = m->slow && set->count > FEW ? FEW : set->count;
    for (uint32_t first = 0; first < total;) {
        uint32_t count = at_once ? total : 1;
        matrix_entry *entries = matrix_entries(m, count);
        if (!entries) return false;
        for (uint32_t i = 0; i < count; i++) matrix_enter(&entries[i], &set->requests[first + i]);
        if (!matrix_run(m, engine, entries, count)) return false;
        first += count;
    }
    return true;
}

bool matrix_warm(matrix *m, di_engine *engine) {
    enum { TOKENS = 10 };
    matrix_entry *entry = matrix_entries(m, 1);
    if (!entry) return false;
    matrix_enter_neighbour(m, entry, 40);
    entry->sampling.max_tokens = TOKENS;
    entry->sampling.ignore_eos = true;
    return matrix_run(m, engine, entry, 1);
}
