/* requests.h - requests against an engine, and everything they produced folded into digests, for tests of the engine.
 *
 * Two outcomes are equal when every byte that a reader saw is equal: ids, text and where events cut it, log-probability
 * bits, logits hashes, reasons of the end. Failures end the test.
 */
#ifndef DI_TESTS_SUPPORT_REQUESTS_H
#define DI_TESTS_SUPPORT_REQUESTS_H

#include "deepinfer.h"
#include "engine/metrics.h"

enum { DI_JOB_SAMPLES = 8, DI_JOB_OUTPUT = 64 };

/* What is asked for. Arrays are borrowed. */
typedef struct di_job {
    const int32_t *ids;
    uint32_t count;
    di_sampling sampling;
    const char *id; /* NULL = none */
    int32_t priority;
    const char *owner, *tenant;
    int64_t deadline_ms;
    bool score; /* di_score instead; only ids and count matter */
} di_job;

typedef struct di_outcome {
    uint64_t samples[DI_JOB_SAMPLES]; /* digest of all that a sample produced */
    uint64_t prompt;                  /* digest of the prompt tokens' log-probabilities; score: logits_hash */
    uint32_t tokens[DI_JOB_SAMPLES];
    uint32_t prompt_tokens;
    int32_t ids[DI_JOB_OUTPUT]; /* of sample 0, the first ones */
    bool finished[DI_JOB_SAMPLES];
    bool done;
    di_finish_reason reason; /* of sample 0 */
    di_status status;
    di_error error;
    di_usage usage;
    di_timings timings;
    uint64_t seed;
} di_outcome;

/* Without "spec" there are no drafts: how many there were, so what a step holds, would depend on time.
 * "kv-ram" may be "least", what one sequence of the "context" among the options needs, or "least+N": N pages more. */
di_engine *di_open_with(const char *folder, const di_option *options, size_t count);

/* ids that look like text but are not: a fixed walk without control ids, another one for each seed. Valid for the
 * program's life; count <= 1 << 15. Any thread. */
const int32_t *di_walk(uint32_t seed, uint32_t count);

di_job di_greedy_job(const int32_t *ids, uint32_t count, int64_t tokens);

/* NULL with *status set when it was refused; error may be NULL. Not for score jobs. */
di_request *di_submit_job(di_engine *engine, const di_job *job, di_status *status, di_error *error);
/* Adds one event. Checks the order that deepinfer.h promises. */
void di_take_event(di_outcome *outcome, const di_event *event);
/* Reads to the end and frees the request. */
void di_drain(di_request *request, di_outcome *outcome);
/* Submits and drains; scores too. */
void di_run_job(di_engine *engine, const di_job *job, di_outcome *outcome);
/* Ends the test with what differs. */
void di_assert_same(const di_outcome *expected, const di_outcome *got, const char *what);

/* Waits for the engine to have nothing to do; then every page in use is the prefix cache's and every gauge of running
 * work is zero. Ends the test after 60 s. */
void di_assert_idle(di_engine *engine);

uint64_t di_engine_counter(di_engine *engine, di_counter_id id);
int64_t di_engine_gauge(di_engine *engine, di_gauge_id id);

/* The long run: DI_TEST_LONG=1 in the environment, or the argument "long". Another argument is a pattern for the names
 * of the tests to run. */
void di_test_arguments(int count, char **values);
bool di_test_long(void);
/* True under a sanitizer: fewer rounds. */
bool di_test_slow(void);

/* Reproducible choices. */
typedef struct di_dice {
    uint64_t state;
} di_dice;
uint32_t di_roll(di_dice *dice, uint32_t below);

#endif
