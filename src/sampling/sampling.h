/* sampling.h - sampling parameters and the state of one sample.
 *
 * Parameters (di_sampling of include/deepinfer.h): defaults, ranges, their JSON form, seeds. A sampler is one sample of
 * a request: it knows what was committed and builds the descriptor of the next choice (backend/sample.h); the
 * arithmetic is the backend's sample op. Everything here is a pure function of its arguments except di_sampling_seed.
 * Not thread-safe per object; nothing is shared.
 */
#ifndef DI_SAMPLING_SAMPLING_H
#define DI_SAMPLING_SAMPLING_H

#include "backend/sample.h"
#include "base/arena.h"
#include "base/json.h"
#include "base/status.h"

/* ---------------------------------------------------------------------------------------------- parameters */

enum { DI_SAMPLING_MAX_SAMPLES = 4096, DI_SAMPLING_MAX_LOGPROBS = 1000 };

typedef struct di_sampling_limits {
    uint32_t vocabulary;   /* ids are below it */
    uint32_t stop_strings; /* at most so many */
} di_sampling_limits;

/* Every field: DI_ERR_INVALID_ARGUMENT (DI_ERR_LIMIT for too many stop strings; what so_args holds is the engine's),
 * `param` is the name of docs/commands, the message says what is allowed and what was given. limits NULL: ranges only.
 */
di_status di_sampling_check(const di_sampling *sampling, const di_sampling_limits *limits, di_error *error);

/* Deep copy of arrays and strings into the arena; logit_bias comes out ascending by id. An id that is there twice is
 * refused. */
di_status di_sampling_copy(di_arena *arena, const di_sampling *from, di_sampling *to, di_error *error);

/* The JSON object `sampling_params`. *sampling holds the values to start from; names that are absent or null leave them
 * alone. Arrays and strings live in the arena. Unknown and repeated names, wrong types and values out of range are
 * refused by name; what needs the model (ids) is di_sampling_check's. */
di_status di_sampling_parse(di_arena *arena, const di_json *object, di_sampling *sampling, di_error *error);

/* seq_seed, or 64 bits drawn from the system if there is none. Call it once per request. */
di_status di_sampling_seed(const di_sampling *sampling, uint64_t *seed, di_error *error);

/* docs/numerics.md rule 11 */
uint64_t di_sampling_prompt_hash(const int32_t *prompt, size_t count);
uint64_t di_sampling_key(uint64_t seed, uint32_t sample_index, uint64_t prompt_hash);

/* ---------------------------------------------------------------------------------------------- end of a sample */

typedef struct di_stop_rule {
    const di_sampling *sampling; /* ignore_eos, stop_token_ids, min_tokens, first_n_token_no_eos */
    const int32_t *eos;          /* [eos_count] */
    size_t eos_count;
    int64_t max_tokens; /* resolved: at least 1 */
} di_stop_rule;

/* Ids that may not be sampled as output number `index` (from 0): EOS ids below first_n_token_no_eos, EOS ids and
 * stop_token_ids below min_tokens. They do not end a sample there either when they are forced. */
bool di_stop_suspended(const di_stop_rule *rule, int64_t index, int32_t token_id);

/* What token_id as output number `index` means: DI_FINISH_STOP with *stop_token_id = token_id, DI_FINISH_LENGTH when it
 * is the last one allowed, else DI_FINISH_NONE. *stop_token_id is -1 otherwise. Stop strings are the engine's. */
di_finish_reason di_stop_after(const di_stop_rule *rule, int64_t index, int32_t token_id, int32_t *stop_token_id);

/* ---------------------------------------------------------------------------------------------- one sample */

typedef struct di_sampler di_sampler;

typedef struct di_sampler_params {
    const di_sampling *sampling; /* checked; outlives the sampler */
    uint64_t seed;               /* di_sampling_seed */
    uint32_t sample_index;       /* 0 .. n - 1 */
    const int32_t *prompt;       /* [prompt_count], read by di_sampler_new only */
    size_t prompt_count;
    const int32_t *eos; /* [eos_count], copied */
    size_t eos_count;
    uint32_t vocabulary;
    int64_t max_tokens; /* sampling.max_tokens cut to the room left; bounds the memory */
} di_sampler_params;

/* All memory is taken here; nothing below allocates. */
di_status di_sampler_new(const di_sampler_params *params, di_sampler **sampler, di_error *error);
void di_sampler_free(di_sampler *sampler); /* NULL is allowed */

/* Descriptor of the next token, which will stand at absolute `position`. It borrows from the sampler and is valid until
 * the next commit. */
void di_sampler_next(const di_sampler *sampler, uint32_t logits_row, int64_t position, di_sample_item *item);

/* Takes the choice: counts the id, keeps the hash. Returns what it means, as di_stop_after. */
di_finish_reason di_sampler_commit(di_sampler *sampler, const di_sample_result *result, int32_t *stop_token_id);

int64_t di_sampler_produced(const di_sampler *sampler);

#endif
