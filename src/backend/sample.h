/* sample.h - arguments of the sample op: one pure function of (logits row, parameters, ids before it, mask), in the
 * order of docs/numerics.md rule 12. sampling/ builds these descriptors; the device does the arithmetic.
 *
 * raw logits -> logits_hash, log-probabilities -> logit bias -> penalties -> EOS / min_tokens / first_n_token_no_eos
 * and mask -> / T -> top-k -> top-p -> min-p -> argmax(logit' - log E), ties to the lowest id. T = 0: argmax of the
 * masked logits.
 */
#ifndef DI_BACKEND_SAMPLE_H
#define DI_BACKEND_SAMPLE_H

#include "backend/ops.h"

typedef struct di_sample_bias {
    int32_t token_id;
    float bias;
} di_sample_bias;

/* Occurrences of one id before this row. */
typedef struct di_sample_count {
    int32_t token_id;
    uint32_t prompt, output;
} di_sample_count;

/* One sample to draw. Several may share one logits row. Pointers are host memory, valid during the op. */
typedef struct di_sample_item {
    uint32_t logits_row;
    int64_t position; /* absolute position of the token produced: counter of the noise */
    uint64_t key;     /* rule 11: XXH64(seed | sample index | hash of the prompt's ids) */
    float temperature, top_p, min_p;
    int32_t top_k;
    float repetition_penalty, presence_penalty, frequency_penalty;
    const di_sample_bias *bias; /* ascending id */
    uint32_t bias_count;
    const di_sample_count *counts; /* ids that occurred, for penalties; NULL when all penalties are neutral */
    uint32_t count_count;
    const int32_t *banned; /* ids masked for this token (EOS while min_tokens holds, ...) */
    uint32_t banned_count;
    const uint64_t *mask; /* [ceil(V/64)] allowed ids, NULL = all */
    int32_t forced;       /* id to take whatever the logits say, -1 = sample */
    int32_t logprobs;     /* -1 = off, else number of best ids wanted */
    bool hash;
    uint64_t hash_seed; /* previous logits_hash, 0 at the start */
} di_sample_item;

typedef struct di_sample_result {
    int32_t token_id;   /* -1 when nothing could be chosen */
    bool numeric_fault; /* NaN or infinity in the row: nothing was sampled */
    float logprob;      /* of token_id, from the raw logits; 0 if logprobs is off */
    uint64_t hash;
} di_sample_result;

typedef struct di_sample_top {
    int32_t token_id;
    float logprob;
} di_sample_top;

typedef struct di_sample_args {
    di_buffer logits; /* f32 [rows][V] */
    uint32_t vocabulary;
    uint32_t count;
    const di_sample_item *items; /* [count] */
    di_sample_result *results;   /* out: host, [count] */
    di_sample_top *top;          /* out: host, [count][top_stride], best first */
    uint32_t top_stride;
} di_sample_args;

/* The CPU arithmetic of one item (the sample op runs it per tile). scratch: di_sample_scratch(V) bytes, aligned to 64.
 */
size_t di_sample_scratch(uint32_t vocabulary);
void di_sample_row(const float *logits, uint32_t vocabulary, const di_sample_item *item, di_sample_result *result,
                   di_sample_top *top, void *scratch);
/* Log-probabilities alone (scoring): log-softmax of raw logits at `ids`; *best = argmax. */
void di_sample_logprobs(const float *logits, uint32_t vocabulary, const int32_t *ids, uint32_t count, float *logprobs,
                        int32_t *best);
/* E of rule 11 for one token id. */
double di_sample_noise(uint64_t key, int64_t position, uint32_t token_id);

#endif
