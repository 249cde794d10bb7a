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
#include "tokenizer/tokenizer.h"

/* Folder of the model to use: `model` if not NULL, else the option "model" (DEEPINFER_MODEL), else models/tiny beside
 * the binary or in one of the three folders above it, else the installed data directory. Appends it to *path. The
 * folder's content is not looked at, only that something is there. */
di_status di_find_model(const di_config *config, const char *model, di_text *path, di_error *error);

/* Refuses by name the options of features that do not exist yet when they are not at their neutral value. */
di_status di_check_features(const di_config *config, di_error *error);

/* Like di_open, from a configuration that is complete (file, environment and flags read). config is read during the
 * call only; the log (may be NULL) must outlive the engine. */
di_status di_engine_open(const char *model, const di_config *config, di_log *log, di_engine **engine, di_error *error);

const di_tokenizer *di_engine_tokenizer(const di_engine *engine); /* NULL if the model has none */
const di_model_config *di_engine_model_config(const di_engine *engine);

/* Requests that may be submitted and not yet finished before di_submit answers DI_ERR_QUEUE_FULL. */
uint32_t di_engine_queue_limit(const di_engine *engine);
uint32_t di_engine_max_sequences(const di_engine *engine);
/* Chosen at opening: "avx512 differs from the scalar reference in ...; using avx2", empty if there is nothing to say.
 */
const char *di_engine_note(const di_engine *engine);

/* ------------------------------------------------------------------------------------------- memory plan */

typedef struct di_plan_input {
    uint32_t context;  /* positions per sequence; 0 = the default rule */
    uint32_t max_seqs; /* sequences that hold state at once */
    uint32_t max_rows; /* rows of a step */
    uint32_t threads;
    bool compact;
    uint32_t keep;
} di_plan_input;

typedef struct di_plan {
    uint64_t position_bytes; /* growing state of one sequence, bytes per 1024 positions */
    uint64_t rolling_bytes;  /* fixed state of one sequence */
    uint64_t state_bytes;    /* of max_seqs sequences at `context` */
    uint64_t step_bytes;     /* activations and logits of one step */
    uint64_t logits_rows;
    uint32_t context;
} di_plan;

/* Logits rows of one step for these limits: the step's buffers and the plan use the same number. */
uint32_t di_plan_logits_rows(uint32_t max_rows, uint32_t max_seqs);
/* Bytes this process may still use: MemAvailable and the cgroup limit, whichever is less; 0 if unknown. */
uint64_t di_available_memory(void);

#endif
