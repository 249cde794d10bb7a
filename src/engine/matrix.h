/* matrix.h - the determinism matrix: every way in which a request may be run must give the bytes that it gives alone.
 *
 * Requests are made up from a fixed seed, run one at a time on an engine without a cache, and every row of logits is
 * kept. Then they run again in all the ways of the matrix (rows T1 .. T15: neighbours, chunks, cache hits, preemption,
 * threads, instruction sets, ...) and every row of logits, every id, log-probability and hash is compared by bytes.
 * `deepinfer verify` and the tests are this one piece of code; docs/determinism.md lists the rows.
 *
 * Blocking, one thread at a time. Engines are opened one after the other.
 */
#ifndef DI_ENGINE_MATRIX_H
#define DI_ENGINE_MATRIX_H

#include "deepinfer.h"

typedef struct di_matrix_result {
    const char *row;              /* "T3" */
    const char *name;             /* of the case; "" for a row that is skipped as a whole */
    const char *skipped;          /* why it did not run; NULL = it ran */
    uint64_t tokens;              /* rows of logits compared */
    uint64_t differing_bytes;     /* of logits, ids, log-probabilities, hashes */
    const char *first_difference; /* in words; NULL = none */
} di_matrix_result;

typedef struct di_matrix_options {
    const char *model;        /* as for di_open */
    const di_option *options; /* [option_count] for every engine; the matrix sets its own beside them */
    size_t option_count;
    uint64_t tokens;         /* tokens to compare, at least; 0 = the usual number, and no longer than `limit_ms` */
    int64_t limit_ms;        /* with tokens 0: cases that would start later are skipped */
    const char *folder;      /* where a folder for state on disk is made and removed again; NULL = /tmp */
    const char *rows;        /* "T1,T3"; NULL or "" = all */
    bool plant_fault;        /* one bit of one compared row is flipped in the engine; it must be found */
    void *arg;               /* of the functions, each of which may be NULL */
    bool (*stop)(void *arg); /* true ends the run: DI_ERR_CANCELLED */
    void (*progress)(void *arg, const char *row, const char *name, uint64_t tokens, uint64_t total);
    void (*report)(void *arg, const di_matrix_result *result);
} di_matrix_options;

/* *passed = something was compared and no byte differed. Fails when the model cannot be opened, an option is wrong or a
 * request failed. */
di_status di_matrix_run(const di_matrix_options *options, bool *passed, di_error *error);

#endif
