/* spec_bench.c - what `deepinfer bench spec` needs of an engine: another --spec while it is open, and what rows and
 * blocks of drafts cost. Both are done by the engine thread between two steps. */
#include <math.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

/* ---------------------------------------------------------------- another --spec */

uint32_t di_engine_draft_block(const di_engine *engine) {
    return engine->speculation ? di_speculation_longest(engine->speculation) : 0;
}

uint64_t di_engine_digest(const di_engine *engine) {
    return di_model_digest(engine->model);
}

typedef struct change {
    di_engine *engine;
    const char *text;
    bool good;
} change;

static void set_spec(void *arg) {
    change *c = arg;
    c->good = di_speculation_set(c->engine->speculation, c->text);
}

di_status di_engine_set_spec(di_engine *engine, const char *text, di_error *error) {
    change c = {.engine = engine, .text = text};
    if (!engine->speculation)
        return di_fail(error, DI_ERR_UNSUPPORTED, "spec", "the engine was opened with --spec off");
    if (!di_hub_call(engine->hub, set_spec, &c))
        return di_fail(error, DI_ERR_CANCELLED, NULL, "the engine is being closed");
    if (c.good) return DI_OK;
    return di_fail(error, DI_ERR_CONFIG, "spec", "--spec cannot become %s here", text);
}

/* ---------------------------------------------------------------- costs */

typedef struct measurement {
    di_engine *engine;
    uint32_t context, rounds;
    di_spec_costs *costs;
    di_state *state;
    uint32_t rows; /* of the longest step */
    int32_t *ids;  /* [context + rows] */
    di_status status;
    di_error *error;
} measurement;

static bool failed(measurement *m, di_status status) {
    m->status = status;
    return status != DI_OK;
}

/* Rows from the state's length on, of which `commit` are kept. */
static bool compute(measurement *m, uint32_t count, uint32_t logits_from, uint32_t commit) {
    di_engine *engine = m->engine;
    uint32_t index, first, at = (uint32_t)di_state_length(m->state);
    di_status status;
    if (failed(m, di_state_reserve(m->state, at + count, m->error))) return false;
    di_step_entry entry = {.state = *di_state_get_view(m->state),
                           .tokens = m->ids + at,
                           .count = count,
                           .logits_from = logits_from,
                           .replay_from = -1,
                           .taps = true};
    di_step_clear(engine->step);
    if (failed(m, di_step_add(engine->step, &entry, &index, &first, m->error)) ||
        failed(m, di_model_submit(engine->model, engine->step, m->error)))
        return false;
    di_model_poll(engine->model, engine->step, true, &status, m->error);
    if (failed(m, status)) return false;
    if (commit) di_model_commit(engine->model, engine->step, index, commit, di_state_get_view(m->state));
    return true;
}

static void keep_least(double *least, int64_t start) {
    double ms = (double)(di_now_ns() - start) / 1e6;
    if (*least <= 0 || ms < *least) *least = ms;
}

/* The second of two: decoding finds the weights in the caches where the step before left them. */
static bool measure_rows(measurement *m) {
    for (uint32_t n = 1; n <= DI_SPEC_COST_ROWS; n++) {
        if (!compute(m, n, 0, 0)) return false;
        int64_t start = di_now_ns();
        if (!compute(m, n, 0, 0)) return false;
        keep_least(&m->costs->rows_ms[n - 1], start);
    }
    return true;
}

static bool draft(measurement *m, uint32_t n) {
    int32_t drafts[DI_SPEC_MOST];
    float confidences[DI_SPEC_MOST];
    di_draft_entry entry = {.state = di_state_get_view(m->state), .anchor = m->ids[m->context]};
    return !failed(m, di_model_draft(m->engine->model, di_speculation_head(m->engine->speculation), &entry, 1, n,
                                     drafts, confidences, m->error));
}

/* Of two cycles the second: see above. */
static bool measure_drafts(measurement *m) {
    for (uint32_t n = 1; n <= m->costs->block; n++) {
        uint32_t rows = n < m->rows ? n + 1 : m->rows;
        if (!draft(m, n) || !compute(m, rows, 0, 0)) return false;
        int64_t start = di_now_ns();
        if (!draft(m, n)) return false;
        keep_least(&m->costs->block_ms[n - 1], start);
        if (!compute(m, rows, 0, 0)) return false;
        if (rows == n + 1) keep_least(&m->costs->cycle_ms[n - 1], start);
    }
    return true;
}

/* Those that are over may stand in the list until the engine thread looks around. */
static bool anybody_runs(const di_engine *engine) {
    for (uint32_t i = 0; i < engine->running.count; i++)
        if (engine->running.items[i]->state != DI_REQUEST_FINISHED) return true;
    return false;
}

/* Best of the rounds, in turns: other work on the machine only adds time. */
static void measure(void *arg) {
    measurement *m = arg;
    di_engine *engine = m->engine;
    if (anybody_runs(engine)) {
        di_fail(m->error, DI_ERR_INTERNAL, NULL, "costs are measured on an engine without requests");
        m->status = DI_ERR_INTERNAL;
        return;
    }
    uint32_t total = m->context + m->rows;
    if (failed(m, di_state_new(engine->pages, total, &m->state, m->error))) return;
    di_prefix_make_room(engine->cache, di_state_pages_missing(m->state, total));
    bool good = true;
    for (uint32_t done = 0; good && done < m->context;) {
        uint32_t left = m->context - done, count = left < engine->max_rows ? left : engine->max_rows;
        good = compute(m, count, count - 1, count);
        done += count;
    }
    for (uint32_t r = 0; good && r < m->rounds; r++) good = measure_rows(m) && measure_drafts(m);
    di_step_clear(engine->step);
    di_state_free(m->state);
}

di_status di_engine_measure_spec(di_engine *engine, uint32_t context, uint32_t rounds, di_spec_costs *costs,
                                 di_error *error) {
    di_error unused = {0};
    measurement m = {
        .engine = engine, .context = context, .rounds = rounds, .costs = costs, .error = error ? error : &unused};
    *costs = (di_spec_costs){0};
    if (engine->speculation && di_speculation_head(engine->speculation)) costs->block = di_draft_length(engine->model);
    if (costs->block > DI_SPEC_MOST) costs->block = DI_SPEC_MOST;
    m.rows = costs->block >= DI_SPEC_COST_ROWS ? costs->block + 1 : DI_SPEC_COST_ROWS;
    if (m.rows > engine->max_logits) m.rows = engine->max_logits;
    if (!context || context + m.rows > engine->context || m.rows < DI_SPEC_COST_ROWS)
        return di_fail(error, DI_ERR_CONFIG, "context", "measuring %u positions and %d rows does not fit this engine",
                       context, DI_SPEC_COST_ROWS);
    m.ids = malloc(((size_t)context + m.rows) * sizeof *m.ids);
    if (!m.ids) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for token ids");
    uint64_t dice = 1;
    for (uint32_t i = 0; i < context + m.rows; i++) {
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        m.ids[i] = (int32_t)(dice >> 33) % (int32_t)engine->info.vocabulary;
    }
    if (!di_hub_call(engine->hub, measure, &m))
        m.status = di_fail(error, DI_ERR_CANCELLED, NULL, "the engine is being closed");
    free(m.ids);
    return m.status;
}
