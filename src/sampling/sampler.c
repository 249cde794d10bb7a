/* One sample: what was committed so far, and the descriptor of the next choice. */
#include "sampling/sampling.h"

#include <stdlib.h>
#include <string.h>

struct di_sampler {
    const di_sampling *sampling;
    di_stop_rule rule;
    uint64_t key, logits_hash;
    int64_t produced;
    di_sample_bias *bias;
    /* Occurrences, only when a penalty is on: dense list and an open-addressing index into it. */
    di_sample_count *counts; /* [count_capacity] */
    uint32_t count_count, count_capacity;
    uint32_t *slots; /* [slot_mask + 1]: position in counts + 1, 0 = empty */
    uint32_t slot_mask;
    int32_t banned[]; /* [eos_count + stop_token_count]: EOS ids first */
};

static bool penalises(const di_sampling *sampling) {
    return sampling->repetition_penalty != 1.0f || sampling->presence_penalty != 0.0f ||
           sampling->frequency_penalty != 0.0f;
}

/* The entry of an id, made if need be. NULL once more ids came than were planned for. */
static di_sample_count *occurrences(di_sampler *sampler, int32_t token_id) {
    uint32_t slot = (uint32_t)token_id * 0x9E3779B1u;
    for (slot ^= slot >> 15;; slot++) {
        uint32_t *entry = &sampler->slots[slot & sampler->slot_mask];
        if (*entry && sampler->counts[*entry - 1].token_id != token_id) continue;
        if (!*entry) {
            if (sampler->count_count == sampler->count_capacity) return NULL;
            sampler->counts[sampler->count_count++] = (di_sample_count){.token_id = token_id};
            *entry = sampler->count_count;
        }
        return &sampler->counts[*entry - 1];
    }
}

static bool prepare_counts(di_sampler *sampler, const di_sampler_params *params) {
    uint64_t ids = params->prompt_count + (params->max_tokens > 0 ? (uint64_t)params->max_tokens : 0);
    if (ids > params->vocabulary) ids = params->vocabulary;
    uint32_t slots = 16;
    while (slots < 2 * ids) slots *= 2;
    sampler->count_capacity = (uint32_t)ids;
    sampler->slot_mask = slots - 1;
    sampler->counts = malloc((ids + 1) * sizeof *sampler->counts);
    sampler->slots = calloc(slots, sizeof *sampler->slots);
    if (!sampler->counts || !sampler->slots) return false;
    for (size_t i = 0; i < params->prompt_count; i++) {
        di_sample_count *count = occurrences(sampler, params->prompt[i]);
        if (count) count->prompt++;
    }
    return true;
}

di_status di_sampler_new(const di_sampler_params *params, di_sampler **out, di_error *error) {
    const di_sampling *sampling = params->sampling;
    *out = NULL;
    size_t stops = params->eos_count + sampling->stop_token_count;
    di_sampler *sampler = calloc(1, sizeof *sampler + stops * sizeof *sampler->banned);
    if (!sampler) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a sample");
    sampler->sampling = sampling;
    sampler->key = di_sampling_key(params->seed, params->sample_index,
                                   di_sampling_prompt_hash(params->prompt, params->prompt_count));
    sampler->bias = malloc((sampling->logit_bias_count + 1) * sizeof *sampler->bias);
    bool ready = sampler->bias != NULL;
    if (ready) {
        for (size_t i = 0; i < stops; i++)
            sampler->banned[i] =
                i < params->eos_count ? params->eos[i] : sampling->stop_token_ids[i - params->eos_count];
        for (size_t i = 0; i < sampling->logit_bias_count; i++)
            sampler->bias[i] = (di_sample_bias){sampling->logit_bias[i].token_id, sampling->logit_bias[i].bias};
        if (penalises(sampling)) ready = prepare_counts(sampler, params);
    }
    if (!ready) {
        di_sampler_free(sampler);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a sample");
    }
    sampler->rule = (di_stop_rule){sampling, sampler->banned, params->eos_count, params->max_tokens};
    *out = sampler;
    return DI_OK;
}

void di_sampler_free(di_sampler *sampler) {
    if (!sampler) return;
    free(sampler->bias);
    free(sampler->counts);
    free(sampler->slots);
    free(sampler);
}

void di_sampler_next(const di_sampler *sampler, uint32_t logits_row, int64_t position, di_sample_item *item) {
    const di_sampling *sampling = sampler->sampling;
    size_t banned = 0;
    if (sampler->produced < sampling->min_tokens)
        banned = sampler->rule.eos_count + sampling->stop_token_count;
    else if (sampler->produced < sampling->first_n_token_no_eos)
        banned = sampler->rule.eos_count;
    bool golden = (uint64_t)sampler->produced < sampling->golden_token_count;
    *item = (di_sample_item){
        .logits_row = logits_row,
        .position = position,
        .key = sampler->key,
        .temperature = sampling->temperature,
        .top_p = sampling->top_p,
        .min_p = sampling->min_p,
        .top_k = sampling->top_k,
        .repetition_penalty = sampling->repetition_penalty,
        .presence_penalty = sampling->presence_penalty,
        .frequency_penalty = sampling->frequency_penalty,
        .bias = sampler->bias,
        .bias_count = (uint32_t)sampling->logit_bias_count,
        .counts = sampler->counts,
        .count_count = sampler->count_count,
        .banned = sampler->banned,
        .banned_count = (uint32_t)banned,
        .forced = golden ? sampling->golden_token_ids[sampler->produced] : -1,
        .logprobs = sampling->logprobs,
        .hash = sampling->logits_hash,
        .hash_seed = sampler->logits_hash,
    };
}

di_finish_reason di_sampler_commit(di_sampler *sampler, const di_sample_result *result, int32_t *stop_token_id) {
    if (sampler->counts) {
        di_sample_count *count = occurrences(sampler, result->token_id);
        if (count) count->output++;
    }
    if (sampler->sampling->logits_hash) sampler->logits_hash = result->hash;
    return di_stop_after(&sampler->rule, sampler->produced++, result->token_id, stop_token_id);
}

int64_t di_sampler_produced(const di_sampler *sampler) {
    return sampler->produced;
}
