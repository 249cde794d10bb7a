/* matrix_internal.h - parts of the matrix: what requests gave alone (matrix_set.c), how they are run and compared
 * (matrix_crowd.c), the rows (matrix_rows.c, matrix_state_rows.c), and the order of it all (matrix.c).
 *
 * The caller's thread drives; the engine's compute thread shows the rows of logits (di_engine_watch). Between
 * submission and the last event of a request its results belong to the compute thread and to whoever takes its events,
 * part by part as marked.
 */
#ifndef DI_ENGINE_MATRIX_INTERNAL_H
#define DI_ENGINE_MATRIX_INTERNAL_H

#include <stdatomic.h>

#include "base/arena.h"
#include "engine/engine.h"
#include "engine/matrix.h"

/* What a sample gave alone, or gives now. */
typedef struct matrix_sample {
    float *logits; /* [row_count][V]; only of what was recorded */
    uint8_t *seen; /* [row_count]; compute thread */
    int32_t *ids;  /* [max_tokens]; driver, as the rest */
    uint32_t id_count;
    uint64_t others; /* hash of positions, texts, log-probabilities, reasons, hashes */
} matrix_sample;

typedef struct matrix_request {
    int32_t *prompt; /* [prompt_count] */
    uint32_t prompt_count;
    di_sampling sampling; /* arrays in the set's arena */
    uint32_t first;       /* first position whose row is compared: prompt_count, or 1 with prompt_logprobs */
    uint32_t row_count;   /* of a sample: positions first .. prompt_count + max_tokens - 1 */
    matrix_sample *alone; /* [n] */
} matrix_request;

typedef struct matrix_set {
    di_arena *arena;
    matrix_request requests[256];
    uint32_t count;
    uint64_t rows;    /* recorded */
    int64_t until_ns; /* nothing is added later; 0 = no limit */
} matrix_set;

/* One submission. */
typedef struct matrix_entry {
    matrix_request *request; /* NULL: a neighbour that nobody compares */
    bool record;             /* request->alone is filled instead of compared */
    bool rows_only;          /* `prompt` is a prefix of the request's: only rows of logits are compared */
    const int32_t *prompt;   /* [prompt_count], with request too */
    uint32_t prompt_count;
    di_sampling sampling;
    int32_t priority;
    int64_t deadline_ms;
    uint64_t start, cancel; /* rows computed since the run began; cancel UINT64_MAX = never */

    di_request *handle;
    bool done;
    matrix_sample *now;          /* [n]; without logits */
    uint64_t tokens, differing;  /* compute thread, then driver */
    char first[320];             /* first difference */
    uint32_t prompt_tokens_seen; /* positions of DI_EVENT_PROMPT_TOKEN come once each, ascending */
    uint64_t seed;
} matrix_entry;

typedef struct matrix_case {
    const char *row, *name, *skipped;
    bool happened; /* what the case is about did happen */
    uint64_t tokens, differing;
    char first[320];
    struct matrix_case *next;
} matrix_case;

/* Logits as the sampler sees them: as they are, all equal, or rounded to few values so that ties abound. */
typedef enum matrix_ties { MATRIX_NO_TIES, MATRIX_ALL_EQUAL, MATRIX_PLATEAUS } matrix_ties;

typedef struct matrix {
    const di_matrix_options *options;
    di_error *error;
    di_arena *arena; /* names */
    di_arena *crowd; /* of the run in progress */
    uint64_t random;
    char context[16]; /* option of every engine */
    uint32_t longest; /* positions a request may have */
    uint32_t vocabulary;
    uint32_t few_positions; /* context of the engines with few pages, */
    uint64_t few_bytes;     /* and what its pages take */
    bool compact;
    int64_t start_ns;
    uint64_t set_rows;    /* rows that a set aims for */
    uint64_t total;       /* tokens wanted */
    uint64_t tokens;      /* compared so far */
    uint32_t ran, failed; /* cases */
    bool slow;            /* the time limit is near */
    matrix_case *cases, **cases_end;
    matrix_case *now;
    matrix_set mixed;
    uint64_t mixed_round;
    matrix_set extra; /* of the row that runs */

    /* fixed while an engine is open */
    matrix_ties ties;
    /* fixed while requests are compared */
    matrix_entry *entries; /* [entry_count] */
    uint32_t entry_count;
    /* compute thread */
    uint32_t plant_in; /* rows until a bit is flipped; 0 = none */
    atomic_bool planted;
} matrix;

enum { MATRIX_SEED = 1, MATRIX_FEW_POSITIONS = 352 };

#define MATRIX_COUNT(array) ((uint32_t)(sizeof(array) / sizeof(array)[0]))
/* Name, value, name, value, ... of options. */
#define MATRIX_OVERRIDES(...) ((const char *const[]){__VA_ARGS__, NULL})

uint64_t matrix_next(matrix *m);                       /* random */
uint32_t matrix_below(matrix *m, uint32_t bound);      /* 0 .. bound - 1 */
void matrix_reseed(matrix *m, uint64_t a, uint64_t b); /* the same numbers again, whatever ran before */

/* ---- matrix.c */
/* The case that follows; false when it must not run (stopped, time over, an earlier error). */
bool matrix_begin(matrix *m, const char *row, const char *name);
void matrix_skip(matrix *m, const char *reason); /* the case begun last */
/* The case shows nothing if what it is about (a hit, a preemption) did not happen in any round. */
void matrix_expect(matrix *m, bool happened, const char *otherwise);
/* Counts as one differing byte unless `bytes` says more. */
void matrix_differs(matrix *m, uint64_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool matrix_stopped(matrix *m); /* also after an error */
/* Few tokens are wanted or the time is short: fewer variants and requests. */
bool matrix_is_small(const matrix *m);
/* An engine with the run's options and these; NULL after an error (m->error). `overrides` are name, value, ..., NULL.
 */
di_engine *matrix_open(matrix *m, matrix_ties ties, bool poison, const char *const *overrides);

/* ---- matrix_set.c */
void matrix_set_clear(matrix_set *set);
/* Adds a request; false when the set is full, the time is over or memory ran out. The prompt is copied. */
bool matrix_add(matrix *m, matrix_set *set, const int32_t *prompt, uint32_t count, const di_sampling *sampling);
/* Sampling parameters of the variant number `index`, of at most `tokens` tokens. */
di_sampling matrix_sampling(matrix *m, matrix_set *set, uint32_t index, uint32_t tokens);
void matrix_random_ids(matrix *m, int32_t *ids, uint32_t count);
/* Runs requests from `first` on one at a time and keeps what they give. */
bool matrix_record(matrix *m, di_engine *engine, matrix_set *set, uint32_t first);
di_engine *matrix_open_alone(matrix *m, matrix_ties ties);
/* Empties the row's own set; later requests are only added while the time for recording lasts. */
matrix_set *matrix_new_set(matrix *m);
/* The set of mixed requests that most rows use, recorded once a round. */
const matrix_set *matrix_mixed(matrix *m, uint64_t round);

/* Prompts that part around snapshots at many heights, each followed by its next turn; in the row's own set. */
const matrix_set *matrix_branches(matrix *m, uint64_t round);

/* ---- matrix_crowd.c */
bool matrix_watch(void *arg, const char *id, int32_t sample, uint32_t position, float *logits);
/* Room for the entries of one run, zero. */
matrix_entry *matrix_entries(matrix *m, uint32_t count);
void matrix_enter(matrix_entry *entry, const matrix_request *request);
/* A neighbour with a random prompt of at most `longest` tokens. */
void matrix_enter_neighbour(matrix *m, matrix_entry *entry, uint32_t longest);
/* Runs the entries and adds to the case what was compared. False when stopped or failed. */
bool matrix_run(matrix *m, di_engine *engine, matrix_entry *entries, uint32_t count);
/* All requests of a set: at once, or one after the other. */
bool matrix_run_set(matrix *m, di_engine *engine, const matrix_set *set, bool at_once);
uint64_t matrix_counter(const di_engine *engine, di_counter_id id);
/* A few steps, so that the engine plans by what it has measured. */
bool matrix_warm(matrix *m, di_engine *engine);

/* ---- matrix_disk_rows.c */
/* The set twice on an engine that keeps state on disk and none in memory. */
bool matrix_run_disk_tier(matrix *m, const matrix_set *set);

/* ---- matrix_rows.c, matrix_state_rows.c, matrix_disk_rows.c, matrix_spec_rows.c: one round of a row; false when
 * stopped or failed */
bool matrix_neighbours(matrix *m, uint64_t round); /* T1 */
bool matrix_kernels(matrix *m, uint64_t round);    /* T2 */
bool matrix_chunks(matrix *m, uint64_t round);     /* T3 */
bool matrix_cache(matrix *m, uint64_t round);      /* T4 */
bool matrix_preempt(matrix *m, uint64_t round);    /* T5 */
bool matrix_restarts(matrix *m, uint64_t round);   /* T6 */
bool matrix_drafts(matrix *m, uint64_t round);     /* T7 */
bool matrix_threads(matrix *m, uint64_t round);    /* T9 */
bool matrix_isas(matrix *m, uint64_t round);       /* T10 */
bool matrix_padding(matrix *m, uint64_t round);    /* T11 */
bool matrix_tie_storms(matrix *m, uint64_t round); /* T12 */
bool matrix_cancels(matrix *m, uint64_t round);    /* T14 */
bool matrix_seeds(matrix *m, uint64_t round);      /* T15 */

#endif
