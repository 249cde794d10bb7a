/* matrix.c - the order of the matrix: rows, rounds, cases, and what is reported. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/matrix_internal.h"

/* Without a number: this many tokens, in sets of this many rows, however fast the machine. */
enum {
    USUAL_TOKENS = 8000,
    CASES = 56,
    LEAST_SET_ROWS = 48,
    SMALL_SET_ROWS = 128,
    MOST_SET_ROWS = 640,
    MOST_LOGITS = 256 << 20
};
/* Positions of the longest request; the context of every engine has room for it. */
enum { LONGEST = 2200 };

static const struct {
    const char *name;
    bool (*run)(matrix *m, uint64_t round);
    const char *missing;
} rows[] = {
    {"T1", matrix_neighbours, NULL},
    {"T2", matrix_kernels, NULL},
    {"T3", matrix_chunks, NULL},
    {"T4", matrix_cache, NULL},
    {"T5", matrix_preempt, NULL},
    {"T6", matrix_restarts, NULL},
    {"T7", matrix_drafts, NULL},
    {"T8", NULL, "this version runs in one process; there are no ranks or placements to vary"},
    {"T9", matrix_threads, NULL},
    {"T10", matrix_isas, NULL},
    {"T11", matrix_padding, NULL},
    {"T12", matrix_tie_storms, NULL},
    {"T13", NULL, "prompt and answer are computed by one process in this version"},
    {"T14", matrix_cancels, NULL},
    {"T15", matrix_seeds, NULL},
};
enum { ROW_COUNT = sizeof rows / sizeof rows[0] };

/* ---------------------------------------------------------------- random numbers */

uint64_t matrix_next(matrix *m) { /* splitmix64 */
    uint64_t z = m->random += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
}

uint32_t matrix_below(matrix *m, uint32_t bound) {
    return (uint32_t)(matrix_next(m) % bound);
}

void matrix_reseed(matrix *m, uint64_t a, uint64_t b) {
    m->random = MATRIX_SEED + a * 0xd1342543de82ef95 + b * 0xaf251af3b0f025b5;
}

/* ---------------------------------------------------------------- cases */

static bool time_over(const matrix *m) {
    return m->options->limit_ms > 0 && !m->options->tokens &&
           di_now_ns() - m->start_ns > m->options->limit_ms * 1000000;
}

bool matrix_stopped(matrix *m) {
    if (m->error->status != DI_OK) return true;
    if (m->options->stop && m->options->stop(m->options->arg)) di_fail(m->error, DI_ERR_CANCELLED, NULL, "interrupted");
    return m->error->status != DI_OK;
}

bool matrix_is_small(const matrix *m) {
    return m->slow || m->set_rows < SMALL_SET_ROWS;
}

bool matrix_begin(matrix *m, const char *row, const char *name) {
    if (matrix_stopped(m)) return false;
    matrix_case *c = m->cases;
    while (c && (strcmp(c->row, row) != 0 || strcmp(c->name, name) != 0)) c = c->next;
    if (!c) {
        c = di_arena_zalloc(m->arena, sizeof *c);
        char *copy = c ? di_arena_copy(m->arena, name, strlen(name)) : NULL;
        if (!copy) {
            di_fail(m->error, DI_ERR_MEMORY, NULL, "out of memory for the matrix");
            return false;
        }
        c->row = row;
        c->name = copy;
        *m->cases_end = c;
        m->cases_end = &c->next;
    }
    m->now = c;
    if (m->options->progress) m->options->progress(m->options->arg, row, name, m->tokens, m->total);
    if (time_over(m)) {
        matrix_skip(m, "the time limit was reached; --tokens N has none");
        return false;
    }
    return true;
}

void matrix_skip(matrix *m, const char *reason) {
    if (!m->now->tokens) m->now->skipped = reason;
}

void matrix_expect(matrix *m, bool happened, const char *otherwise) {
    m->now->happened = m->now->happened || happened;
    m->now->skipped = m->now->happened ? NULL : otherwise;
}

void matrix_differs(matrix *m, uint64_t bytes, const char *format, ...) {
    if (!m->now->differing) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(m->now->first, sizeof m->now->first, format, arguments);
        va_end(arguments);
    }
    m->now->differing += bytes ? bytes : 1;
}

static void report_row(matrix *m, const char *row) {
    for (matrix_case *c = m->cases; c; c = c->next) {
        if (strcmp(c->row, row) != 0) continue;
        if (!c->skipped && !c->tokens && !c->happened) c->skipped = "no request of the matrix fits this engine";
        m->ran += !c->skipped;
        m->failed += c->differing > 0;
        di_matrix_result result = {.row = row,
                                   .name = c->name,
                                   .skipped = c->skipped,
                                   .tokens = c->tokens,
                                   .differing_bytes = c->differing,
                                   .first_difference = c->differing ? c->first : NULL};
        if (m->options->report) m->options->report(m->options->arg, &result);
    }
}

/* ---------------------------------------------------------------- engines */

di_engine *matrix_open(matrix *m, matrix_ties ties, bool poison, const char *const *overrides) {
    if (matrix_stopped(m)) return NULL;
    size_t more = 0, given = m->options->option_count;
    while (overrides && overrides[2 * more]) more++;
    di_option *options = malloc((given + more + 2) * sizeof *options);
    if (!options) {
        di_fail(m->error, DI_ERR_MEMORY, NULL, "out of memory for an engine's options");
        return NULL;
    }
    for (size_t i = 0; i < given; i++) options[i] = m->options->options[i];
    size_t count = given;
    options[count++] = (di_option){"cache-dir", ""}; /* what others have stored must not be found */
    if (m->context[0]) options[count++] = (di_option){"context", m->context};
    for (size_t i = 0; i < more; i++) options[count++] = (di_option){overrides[2 * i], overrides[2 * i + 1]};
    di_engine *engine = NULL;
    di_status status = di_open(m->options->model, options, count, &engine, m->error);
    free(options);
    m->ties = ties;
    if (status == DI_OK) status = di_engine_watch(engine, matrix_watch, m, poison, m->error);
    if (status == DI_OK) return engine;
    di_close(engine);
    return NULL;
}

/* What the engines have in common: vocabulary, context, profile. */
static bool look_at_model(matrix *m) {
    di_engine *engine = matrix_open(m, MATRIX_NO_TIES, false, NULL);
    if (!engine) return false;
    const di_model_info *info = di_engine_info(engine);
    m->vocabulary = info->vocabulary;
    m->compact = strcmp(info->profile, "exact") != 0;
    m->longest = info->context < LONGEST ? info->context : LONGEST;
    snprintf(m->context, sizeof m->context, "%u", m->longest);
    m->few_positions = m->longest < MATRIX_FEW_POSITIONS ? m->longest : MATRIX_FEW_POSITIONS;
    m->few_bytes = di_engine_least_kv_ram(engine, m->few_positions);
    uint64_t most = MOST_LOGITS / (m->vocabulary * sizeof(float));
    m->set_rows = m->total / CASES;
    if (m->set_rows > MOST_SET_ROWS) m->set_rows = MOST_SET_ROWS;
    if (m->set_rows > most) m->set_rows = most;
    if (m->set_rows < LEAST_SET_ROWS) m->set_rows = LEAST_SET_ROWS;
    di_close(engine);
    if (m->longest >= 64) return true;
    di_fail(m->error, DI_ERR_CONFIG, "context", "the matrix needs a context of 64 positions; this one has %u",
            m->longest);
    return false;
}

/* ---------------------------------------------------------------- rows */

static bool listed(const char *list, const char *name) {
    size_t length = strlen(name);
    if (!list || !list[0]) return true;
    for (const char *at = list; at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, name, length) == 0 && (!at[length] || at[length] == ',')) return true;
    return false;
}

/* Every name of the list is a row. */
static di_status check_list(const char *list, uint32_t *selected, di_error *error) {
    *selected = 0;
    for (uint32_t i = 0; i < ROW_COUNT; i++) *selected += listed(list, rows[i].name) && rows[i].run;
    for (const char *at = list && list[0] ? list : NULL; at;) {
        const char *comma = strchr(at, ',');
        size_t length = comma ? (size_t)(comma - at) : strlen(at);
        bool known = false;
        for (uint32_t i = 0; i < ROW_COUNT && !known; i++)
            known = strlen(rows[i].name) == length && strncmp(rows[i].name, at, length) == 0;
        if (!known)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "rows",
                           "there is no row \"%.*s\"; rows are T1 to T15, written T1,T3",
                           (int)(length < 40 ? length : 40), at);
        at = comma ? comma + 1 : NULL;
    }
    return DI_OK;
}

/* Rounds of one row until it has its share of the tokens. */
static void run_row(matrix *m, uint32_t index, uint64_t share) {
    uint64_t before = m->tokens;
    for (uint64_t round = 0;; round++) {
        uint64_t had = m->tokens;
        if (!rows[index].run(m, round) || m->tokens == had || m->tokens - before >= share || time_over(m)) break;
    }
}

static void skip_row(const matrix *m, uint32_t index) {
    di_matrix_result result = {.row = rows[index].name, .name = "", .skipped = rows[index].missing};
    if (m->options->report) m->options->report(m->options->arg, &result);
}

/* Slow down the ambition when the rows that are left would not fit into the time that is left. */
static void watch_time(matrix *m, uint32_t done, uint32_t selected) {
    if (m->options->limit_ms <= 0 || m->options->tokens || !done) return;
    double elapsed = (double)(di_now_ns() - m->start_ns) / 1e6;
    if (elapsed / done * selected > (double)m->options->limit_ms * 0.8) m->slow = true;
}

static void run_rows(matrix *m, uint32_t selected) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < ROW_COUNT && !matrix_stopped(m); i++) {
        if (!listed(m->options->rows, rows[i].name)) continue;
        if (!rows[i].run) {
            skip_row(m, i);
            continue;
        }
        uint64_t left = m->total > m->tokens ? m->total - m->tokens : 0;
        watch_time(m, done, selected);
        run_row(m, i, left / (selected - done++));
        report_row(m, rows[i].name);
    }
}

di_status di_matrix_run(const di_matrix_options *options, bool *passed, di_error *error) {
    di_error unused = {0};
    *passed = false;
    if (!error) error = &unused;
    *error = (di_error){0};
    uint32_t selected;
    di_status status = check_list(options->rows, &selected, error);
    if (status != DI_OK) return status;
    matrix *m = calloc(1, sizeof *m);
    if (!m) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the matrix");
    m->options = options;
    m->error = error;
    m->arena = di_arena_new(0);
    m->crowd = di_arena_new(0);
    m->cases_end = &m->cases;
    m->start_ns = di_now_ns();
    m->total = options->tokens ? options->tokens : USUAL_TOKENS;
    m->plant_in = options->plant_fault ? 3 : 0;
    atomic_init(&m->planted, false);
    if (!m->arena || !m->crowd)
        di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the matrix");
    else if (look_at_model(m))
        run_rows(m, selected);
    *passed = error->status == DI_OK && m->ran && !m->failed;
    if (error->status == DI_OK && options->plant_fault && !atomic_load(&m->planted))
        di_fail(error, DI_ERR_INVALID_ARGUMENT, "plant-fault",
                "no fault was planted: the rows that ran compare no logits; choose others with --rows");
    if (error->status == DI_OK && options->plant_fault && *passed)
        di_fail(error, DI_ERR_INTERNAL, "plant-fault", "a fault was planted and no row found it");
    if (error->status != DI_OK) *passed = false;
    matrix_set_clear(&m->mixed);
    matrix_set_clear(&m->extra);
    di_arena_free(m->arena);
    di_arena_free(m->crowd);
    free(m);
    return error->status;
}
