/* harness.h - a loaded model with a chosen kernel table, and ways to drive it, for tests. Failures end the test. */
#ifndef DI_TESTS_SUPPORT_HARNESS_H
#define DI_TESTS_SUPPORT_HARNESS_H

#include "backend/cpu/cpu_internal.h"
#include "cache/pages.h"
#include "cache/state.h"
#include "model/model.h"

typedef struct di_harness {
    di_pool *pool;
    di_backend *backend;
    di_model_config config;
    di_checkpoint *checkpoint;
    di_tokenizer *tokenizer;
    di_model *model;
    di_page_pool *pages;
    di_step *step;
    uint32_t max_rows;
} di_harness;

typedef struct di_harness_options {
    const struct di_cpu_kernels *kernels; /* NULL: scalar */
    int threads;                          /* 0: 1 */
    uint32_t max_rows;                    /* 0: 600 */
    bool compact;
    uint32_t keep;
    bool draft; /* with the draft head */
} di_harness_options;

/* Ends the test with the error's message unless status is DI_OK. */
void di_must(di_status status, const di_error *error);

/* The fastest kernel table that this machine can run. */
const struct di_cpu_kernels *di_harness_best_kernels(void);

di_harness *di_harness_open(const char *folder, const di_harness_options *options);
void di_harness_close(di_harness *harness);

di_state *di_harness_state(di_harness *harness, uint32_t tokens);
/* Feeds ids in chunks of `chunk` (0 = all at once) and commits them. Logits of the last row, or of all rows if `all`,
 * are copied to `logits`. In compact mode the ids are a whole prompt. */
void di_harness_feed(di_harness *harness, di_state *state, const int32_t *ids, size_t count, size_t chunk, bool all,
                     float *logits);
/* Runs what was added to harness->step, to its end. */
void di_harness_run_step(di_harness *harness);
/* XXH64 of the serialised state, without the digest of the model in its header. */
uint64_t di_harness_state_hash(di_state *state);
/* XXH64 of a page's bytes. */
uint64_t di_harness_page_hash(di_harness *harness, const di_page *page);
/* argmax with the lowest id on ties */
int32_t di_harness_argmax(const float *logits, size_t count);

#endif
