/* engine.h - what the engine offers to the modules above it, beyond the public header.
 *
 * An engine is opened from a configuration; di_open of include/deepinfer.h builds one from its options and comes here.
 * Everything returned is borrowed, immutable and valid as long as the engine; any thread.
 */
#ifndef DI_ENGINE_ENGINE_H
#define DI_ENGINE_ENGINE_H

#include "base/config.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/model_config.h"
#include "engine/metrics.h"
#include "tokenizer/tokenizer.h"

/* Folder of the model to use: `model` if not NULL, else the option "model" (DEEPINFER_MODEL), else models/tiny beside
 * the binary or in one of the three folders above it, else the installed data directory. Appends it to *path. Says
 * what was tried when there is nothing. The content is not looked at. */
di_status di_find_model(const di_config *config, const char *model, di_text *path, di_error *error);

/* Refuses by name the options of features that do not exist yet when they are not at their neutral value. */
di_status di_check_features(const di_config *config, di_error *error);

/* Adds the environment and the file that the option "config" names to a configuration; options already set keep their
 * values. *notes (may be NULL) as for di_config_load_environment. */
di_status di_read_configuration(di_config *config, di_text *notes, di_error *error);

/* The configuration of these options with environment and file; *config is the caller's, NULL on failure. */
di_status di_read_options(const di_option *options, size_t option_count, di_config **config, di_error *error);

/* Like di_open, from a configuration that is complete (file, environment and flags read). config is read during the
 * call only; the log (may be NULL) must outlive the engine. */
di_status di_engine_open(const char *model, const di_config *config, di_log *log, di_engine **engine, di_error *error);

const di_tokenizer *di_engine_tokenizer(const di_engine *engine); /* NULL if the model has none */
const di_model_config *di_engine_model_config(const di_engine *engine);

uint32_t di_engine_queue_limit(const di_engine *engine);   /* requests waiting before DI_ERR_QUEUE_FULL */
uint32_t di_engine_max_sequences(const di_engine *engine); /* sequences that hold state at once */
/* Said by the backend at opening (a faster variant that failed its self-test); "" if nothing. */
const char *di_engine_note(const di_engine *engine);

const di_metrics *di_engine_metrics(const di_engine *engine);
/* Brings up to date what others count, the disk tier and the grammars: also when the engine has nothing to do. Before
 * metrics are printed; any thread, waits for no step. */
void di_engine_refresh_metrics(di_engine *engine);

/* ------------------------------------------------------------------------------------------- the engine at work */

/* Any thread, without a lock: also while a step does not end. */
typedef struct di_engine_progress {
    uint32_t waiting;      /* requests submitted and not let in yet */
    uint32_t running;      /* requests that were let in */
    uint32_t swapped;      /* requests that were preempted and wait to go on */
    uint32_t sequences;    /* that hold state */
    uint64_t steps;        /* ended since the engine was opened */
    int64_t step_ms;       /* age of the step that runs; 0 = none runs */
    int64_t since_step_ms; /* since a step ended last; -1 = none yet */
    int64_t
        step_budget_ms; /* what the newest step may take: the longest allowed gap, or what it was expected to take */
    int64_t oldest_waiting_ms; /* of the request that has waited longest to be let in; 0 = none waits */
    /* How long nothing has gone on although there is work: no step ended, nor did all work wait for its readers or for
     * the disk. 0 without work. More than step_budget_ms means that a step is late, twice that that it hangs. */
    int64_t stuck_ms;
} di_engine_progress;

di_engine_progress di_engine_get_progress(const di_engine *engine);

/* A request that has not ended, without what it says. Strings are valid during the call. */
typedef struct di_live_request {
    const char *id;    /* "" = none was given */
    const char *state; /* "queued", "restoring", "prefill", "decode", "swapped": docs/engine.md */
    const char *owner; /* of its tenant; NULL = nobody */
    uint64_t prompt_tokens, cached_tokens, completion_tokens, max_tokens;
    int32_t samples, priority;
    uint32_t preemptions;
    int64_t age_ms; /* since its submission */
} di_live_request;

/* Cache namespace of a tenant: the beginning of BLAKE2b of its owner's and its own name, so that who may choose names
 * finds none that meets a given other one's. The same in every run: states on disk are found by it. NULL, NULL = the
 * common one, 0. */
uint64_t di_namespace(const char *owner, const char *tenant);

typedef void (*di_live_request_reader)(void *arg, const di_live_request *request);

/* Calls `each` for every request that has not ended, oldest first. Any thread; waits for no step. Fails for memory
 * only. */
di_status di_engine_each_request(const di_engine *engine, di_live_request_reader each, void *arg, di_error *error);

/* ------------------------------------------------------------------------------------------- watching logits */

/* A row of logits of the step being computed, before anything is sampled from it: of the request `id` ("" if it has
 * none, "score" for a scored text), for the token at `position` of `sample`; the row that gives the first token of all
 * samples counts as sample 0. May change the row and return true; sampling then sees it changed. Compute thread. */
typedef bool (*di_logits_watch)(void *arg, const char *id, int32_t sample, uint32_t position, float *logits);

/* For the determinism matrix; once, before the first request. poison: what a step's memory holds before the step is
 * NaN. */
di_status di_engine_watch(di_engine *engine, di_logits_watch watch, void *arg, bool poison, di_error *error);

/* Puts other drafts in the place of those that were made, and other lengths in the place of the schedule's. Engine
 * thread, between two steps. */
typedef struct di_draft_watch {
    void *arg;
    /* tokens [length] as drafted, -1 and behind: none; they are guesses of what `sample` says from token `index` on. */
    void (*drafts)(void *arg, const char *id, int32_t sample, uint32_t index, int32_t *tokens, uint32_t length);
    /* How many of `most` drafts are verified, with --spec N. NULL: as many as fit. */
    uint32_t (*verify)(void *arg, uint32_t most);
} di_draft_watch;

/* For the determinism matrix; once, before the first request. Nothing happens with --spec off. */
void di_engine_watch_drafts(di_engine *engine, const di_draft_watch *watch);

/* ------------------------------------------------------------------------------------------- bench spec */

uint32_t di_engine_draft_block(const di_engine *engine); /* drafts a step may have; 0 = --spec off */
uint64_t di_engine_digest(const di_engine *engine);      /* di_model_digest */
/* Another --spec for what is drafted from now on: "auto", or a number up to what the engine was opened with. */
di_status di_engine_set_spec(di_engine *engine, const char *spec, di_error *error);

enum { DI_SPEC_COST_ROWS = 8, DI_SPEC_COST_BLOCK = 64 };

typedef struct di_spec_costs {           /* milliseconds */
    double rows_ms[DI_SPEC_COST_ROWS];   /* a step of 1, 2, ... rows of one sequence */
    uint32_t block;                      /* drafts of the head's block; 0 = no head is loaded */
    double block_ms[DI_SPEC_COST_BLOCK]; /* [block] of 1, 2, ... rows */
    double cycle_ms[DI_SPEC_COST_BLOCK]; /* [block] 1, 2, ... drafts and the step that verifies them; 0 = too long */
} di_spec_costs;

/* Best of `rounds`, behind `context` positions; on an engine without requests. */
di_status di_engine_measure_spec(di_engine *engine, uint32_t context, uint32_t rounds, di_spec_costs *costs,
                                 di_error *error);

/* ------------------------------------------------------------------------------------------- memory plan */

/* Whether an engine with this configuration drafts: not with --spec off, and not where a step has no row for a draft.
 */
bool di_plan_drafts(const di_config *config);
/* Rows of logits that one step may ask for: the step's buffers and the memory plan use the same number. */
uint32_t di_plan_logits_rows(uint32_t max_rows, uint32_t max_seqs);

/* Positions a sequence may have when --context is not given: the model's maximum, or as many as `available` bytes hold
 * beside what is already taken, whichever is less; `available` 0 = unknown, the model's maximum. At least 1. */
uint32_t di_plan_context(uint32_t model_maximum, uint64_t rolling_bytes, uint64_t page_bytes, uint32_t page_tokens,
                         uint64_t available);

/* Bytes of --kv-ram that one sequence of this many positions needs. */
uint64_t di_engine_least_kv_ram(const di_engine *engine, uint32_t positions);

/* Bytes this process may still take: MemAvailable or what the cgroup leaves, whichever is less; 0 if unknown. */
uint64_t di_available_memory(void);

#endif
