/* sample.h - arguments of the sample op: one pure function of (logits row, parameters, ids before it, mask), in the
 * order of docs/numerics.md rule 12. sampling/ builds these descriptors; the device does the arithmetic.
 *
 * raw logits -> logits_hash, log-probabilities -> logit bias -> penalties -> EOS / min_tokens / first_n_token_no_eos
 * and mask -> / T -> top-k -> top-p -> min-p -> argmax(logit' - log E), ties to the lowest id. T = 0: argmax of the
 * masked logits.
 *
 * Steps, x fp32, each operation rounded once:
 *   - log-probability: double (x - max) - di_log_double(sum), rounded to fp32; sum of the fp32 di_expf(x - max) in 16
 * double lanes, element i in lane i mod 16, folded by halves
 *   - bias: x + bias
 *   - penalties: x > 0 ? x / repetition : x * repetition for ids of prompt and output; then for ids of the output
 *     (x - presence) - frequency * count; bias and penalties saturate at the largest finite float
 *   - / T: l = (double)x / (double)T
 *   - order: x descending, id ascending; -0 = +0
 *   - top-k: the first k
 *   - top-p: weight of a survivor of top-k: trunc(di_expf((float)(l - l_max)) * 2^40), 0 where l - l_max < -28; Q = sum
 *     of the weights; need = ceil(P * Q / 2^32), P = max(1, trunc(top_p * 2^32)); kept is who has less than `need`
 *     before it in the order; top_p = 1 keeps all
 *   - min-p: kept is who has di_expf((float)(l - l_max)) >= min_p
 *   - choice: largest l - di_log_double(E), in double; the best candidate of the order survives every truncation
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
    int32_t forced;       /* id to take whatever the logits and masks say, -1 = sample */
    int32_t logprobs;     /* -1 = off, else number of best ids wanted, at most top_stride */
    bool hash;
    uint64_t hash_seed; /* previous logits_hash, 0 at the start */
} di_sample_item;

typedef struct di_sample_result {
    int32_t token_id;   /* -1 when nothing could be chosen */
    bool numeric_fault; /* NaN or infinity in the row: nothing was sampled, hash = hash_seed */
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
    di_sample_top *top;          /* out: host, [count][top_stride], best first; id -1 where V is exhausted */
    uint32_t top_stride;
} di_sample_args;

/* The CPU arithmetic of one item (the sample op runs it per tile). top: [item->logprobs], may be NULL if logprobs < 1.
 * scratch: di_sample_scratch(V) bytes, aligned to 64. Allocates nothing. */
size_t di_sample_scratch(uint32_t vocabulary);
void di_sample_row(const float *logits, uint32_t vocabulary, const di_sample_item *item, di_sample_result *result,
                   di_sample_top *top, void *scratch);
/* Log-probabilities alone (scoring): log-softmax of raw logits at `ids` (each < V); *best = argmax, lowest id on ties.
 * False when the row holds NaN or infinity; nothing is written then. */
bool di_sample_logprobs(const float *logits, uint32_t vocabulary, const int32_t *ids, uint32_t count, float *logprobs,
                        int32_t *best);
/* E of rule 11 for one token id. */
double di_sample_noise(uint64_t key, int64_t position, uint32_t token_id);

#endif
