/* Ranges, copies, seeds, and when a sample ends. */
#include "sampling/sampling_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "prompt ids are hashed as they lie in memory");

#define FIELD(member, type, above, minimum, maximum, range)                                                            \
    { #member, offsetof(di_sampling, member), type, above, minimum, maximum, range }

const di_sampling_field di_sampling_fields[DI_SAMPLING_FIELDS] = {
    FIELD(temperature, DI_SAMPLING_FLOAT, false, 0, 1e6, "in 0 .. 1000000 (0 = greedy)"),
    FIELD(top_p, DI_SAMPLING_FLOAT, true, 0, 1, "above 0 and at most 1"),
    FIELD(top_k, DI_SAMPLING_INT32, false, -1, INT32_MAX, "in -1 .. 2147483647 (0 or -1 = off)"),
    FIELD(min_p, DI_SAMPLING_FLOAT, false, 0, 1, "in 0 .. 1"),
    FIELD(max_tokens, DI_SAMPLING_INT64, false, -1, INT32_MAX, "in -1 .. 2147483647 (-1 = the room left)"),
    FIELD(min_tokens, DI_SAMPLING_INT64, false, 0, INT32_MAX, "in 0 .. 2147483647"),
    FIELD(n, DI_SAMPLING_INT32, false, 1, DI_SAMPLING_MAX_SAMPLES, "in 1 .. 4096"),
    FIELD(logprobs, DI_SAMPLING_INT32, false, -1, DI_SAMPLING_MAX_LOGPROBS, "in 0 .. 1000 (-1 = off)"),
    FIELD(prompt_logprobs, DI_SAMPLING_INT32, false, -1, DI_SAMPLING_MAX_LOGPROBS, "in 0 .. 1000 (-1 = off)"),
    FIELD(repetition_penalty, DI_SAMPLING_FLOAT, true, 0, 1e6, "above 0 and at most 1000000"),
    FIELD(presence_penalty, DI_SAMPLING_FLOAT, false, -2, 2, "in -2 .. 2"),
    FIELD(frequency_penalty, DI_SAMPLING_FLOAT, false, -2, 2, "in -2 .. 2"),
    FIELD(first_n_token_no_eos, DI_SAMPLING_INT64, false, 0, INT32_MAX, "in 0 .. 2147483647"),
};

bool di_sampling_in_range(const di_sampling_field *field, double value) {
    return (field->above ? value > field->minimum : value >= field->minimum) && value <= field->maximum;
}

static double value_of(const di_sampling *sampling, const di_sampling_field *field) {
    const char *at = (const char *)sampling + field->offset;
    switch (field->type) {
    case DI_SAMPLING_FLOAT:
        return (double)*(const float *)(const void *)at;
    case DI_SAMPLING_INT32:
        return *(const int32_t *)(const void *)at;
    case DI_SAMPLING_INT64:
        return (double)*(const int64_t *)(const void *)at;
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------- checks */

static di_status check_list(const char *name, const void *list, size_t count, di_error *error) {
    if (count && !list)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s is NULL, but its count is %zu", name, count);
    return DI_OK;
}

static di_status check_ids(const char *name, const int32_t *ids, size_t count, int32_t minimum, uint32_t vocabulary,
                           di_error *error) {
    di_status status = check_list(name, ids, count, error);
    for (size_t i = 0; i < count && status == DI_OK; i++)
        if (ids[i] < minimum || (ids[i] >= 0 && (uint32_t)ids[i] >= vocabulary))
            status = di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s[%zu] is %d; ids of this model are 0 .. %u%s",
                             name, i, ids[i], vocabulary - 1, minimum < 0 ? " (-1 = sample)" : "");
    return status;
}

static di_status check_bias(const di_sampling *sampling, uint32_t vocabulary, di_error *error) {
    static const char name[] = "logit_bias";
    di_status status = check_list(name, sampling->logit_bias, sampling->logit_bias_count, error);
    for (size_t i = 0; i < sampling->logit_bias_count && status == DI_OK; i++) {
        const di_logit_bias *b = &sampling->logit_bias[i];
        if (b->token_id < 0 || (uint32_t)b->token_id >= vocabulary)
            status = di_fail(error, DI_ERR_INVALID_ARGUMENT, name,
                             "logit_bias names the id %d; ids of this model are 0 .. %u", b->token_id, vocabulary - 1);
        else if (!(b->bias >= -100.0f && b->bias <= 100.0f))
            status = di_fail(error, DI_ERR_INVALID_ARGUMENT, name,
                             "logit_bias of id %d must be in -100 .. 100, not %.9g", b->token_id, (double)b->bias);
    }
    return status;
}

static di_status check_stop_strings(const di_sampling *sampling, uint32_t limit, di_error *error) {
    di_status status = check_list("stop", sampling->stop, sampling->stop_count, error);
    if (status != DI_OK) return status;
    if (sampling->stop_count > limit)
        return di_fail(error, DI_ERR_LIMIT, "stop", "%zu stop strings, at most %u are allowed", sampling->stop_count,
                       limit);
    for (size_t i = 0; i < sampling->stop_count; i++) {
        const char *text = sampling->stop[i];
        if (!text || !*text) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "stop", "stop[%zu] is empty", i);
        size_t length = strlen(text), bad = di_utf8_validate(text, length);
        if (bad < length)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "stop", "stop[%zu] is not valid UTF-8 at byte %zu", i, bad);
    }
    return DI_OK;
}

di_status di_sampling_check(const di_sampling *sampling, const di_sampling_limits *limits, di_error *error) {
    for (size_t i = 0; i < DI_SAMPLING_FIELDS; i++) {
        const di_sampling_field *field = &di_sampling_fields[i];
        double value = value_of(sampling, field);
        if (!di_sampling_in_range(field, value))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->name, "%s must be %s, not %.10g", field->name,
                           field->range, value);
    }
    if (sampling->max_tokens >= 0 && sampling->min_tokens > sampling->max_tokens)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "min_tokens", "min_tokens (%lld) is above max_tokens (%lld)",
                       (long long)sampling->min_tokens, (long long)sampling->max_tokens);
    if (sampling->so_args.schema_type && sampling->ignore_eos)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args",
                       "so_args and ignore_eos exclude each other: the text of a grammar ends where it may end");
    uint32_t vocabulary = limits ? limits->vocabulary : INT32_MAX;
    di_status status = check_stop_strings(sampling, limits ? limits->stop_strings : UINT32_MAX, error);
    if (status == DI_OK)
        status =
            check_ids("stop_token_ids", sampling->stop_token_ids, sampling->stop_token_count, 0, vocabulary, error);
    if (status == DI_OK)
        status = check_ids("golden_token_ids", sampling->golden_token_ids, sampling->golden_token_count, -1, vocabulary,
                           error);
    if (status == DI_OK)
        status = check_ids("so_args.trigger_token_ids", sampling->so_args.trigger_token_ids,
                           sampling->so_args.trigger_token_count, 0, vocabulary, error);
    return status == DI_OK ? check_bias(sampling, vocabulary, error) : status;
}

/* ---------------------------------------------------------------------------------------------- copy */

static void *copy_array(di_arena *arena, const void *from, size_t count, size_t size, bool *failed) {
    if (!count) return NULL;
    void *copy = di_arena_array(arena, count, size);
    if (copy)
        memcpy(copy, from, count * size);
    else
        *failed = true;
    return copy;
}

static const char *copy_string(di_arena *arena, const char *from, bool *failed) {
    if (!from) return NULL;
    const char *copy = di_arena_copy(arena, from, strlen(from));
    if (!copy) *failed = true;
    return copy;
}

static int compare_bias(const void *a, const void *b) {
    int32_t x = ((const di_logit_bias *)a)->token_id, y = ((const di_logit_bias *)b)->token_id;
    return (x > y) - (x < y);
}

di_status di_sampling_copy(di_arena *arena, const di_sampling *from, di_sampling *to, di_error *error) {
    bool failed = false;
    di_sampling copy = *from;
    const char **stop = copy_array(arena, from->stop, from->stop_count, sizeof *stop, &failed);
    for (size_t i = 0; i < from->stop_count && !failed; i++) stop[i] = copy_string(arena, from->stop[i], &failed);
    di_logit_bias *bias = copy_array(arena, from->logit_bias, from->logit_bias_count, sizeof *bias, &failed);
    copy.stop = stop;
    copy.logit_bias = bias;
    copy.stop_token_ids = copy_array(arena, from->stop_token_ids, from->stop_token_count, sizeof(int32_t), &failed);
    copy.golden_token_ids =
        copy_array(arena, from->golden_token_ids, from->golden_token_count, sizeof(int32_t), &failed);
    copy.so_args.schema_type = copy_string(arena, from->so_args.schema_type, &failed);
    copy.so_args.schema = copy_string(arena, from->so_args.schema, &failed);
    copy.so_args.trigger_token_ids =
        copy_array(arena, from->so_args.trigger_token_ids, from->so_args.trigger_token_count, sizeof(int32_t), &failed);
    if (failed) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for sampling parameters");
    if (bias) qsort(bias, copy.logit_bias_count, sizeof *bias, compare_bias);
    for (size_t i = 1; i < copy.logit_bias_count; i++)
        if (bias[i].token_id == bias[i - 1].token_id)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "logit_bias", "logit_bias names the id %d twice",
                           bias[i].token_id);
    *to = copy;
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- seeds */

di_status di_sampling_seed(const di_sampling *sampling, uint64_t *seed, di_error *error) {
    if (sampling->has_seed) {
        *seed = sampling->seq_seed;
        return DI_OK;
    }
    ssize_t got;
    do got = getrandom(seed, sizeof *seed, 0);
    while (got < 0 && errno == EINTR);
    if (got != (ssize_t)sizeof *seed)
        return di_fail_errno(error, DI_ERR_IO, "seq_seed", errno, "cannot draw a seed; give seq_seed");
    return DI_OK;
}

uint64_t di_sampling_prompt_hash(const int32_t *prompt, size_t count) {
    return XXH64(prompt, count * sizeof *prompt, 0);
}

uint64_t di_sampling_key(uint64_t seed, uint32_t sample_index, uint64_t prompt_hash) {
    unsigned char bytes[20];
    memcpy(bytes, &seed, 8);
    memcpy(bytes + 8, &sample_index, 4);
    memcpy(bytes + 12, &prompt_hash, 8);
    return XXH64(bytes, sizeof bytes, 0);
}

/* ---------------------------------------------------------------------------------------------- end of a sample */

static bool contains(const int32_t *ids, size_t count, int32_t id) {
    for (size_t i = 0; i < count; i++)
        if (ids[i] == id) return true;
    return false;
}

bool di_stop_suspended(const di_stop_rule *rule, int64_t index, int32_t token_id) {
    const di_sampling *sampling = rule->sampling;
    bool eos = contains(rule->eos, rule->eos_count, token_id);
    if (eos && index < sampling->first_n_token_no_eos) return true;
    return index < sampling->min_tokens &&
           (eos || contains(sampling->stop_token_ids, sampling->stop_token_count, token_id));
}

di_finish_reason di_stop_after(const di_stop_rule *rule, int64_t index, int32_t token_id, int32_t *stop_token_id) {
    const di_sampling *sampling = rule->sampling;
    bool stops = (!sampling->ignore_eos && contains(rule->eos, rule->eos_count, token_id)) ||
                 contains(sampling->stop_token_ids, sampling->stop_token_count, token_id);
    if (stops && !di_stop_suspended(rule, index, token_id)) {
        *stop_token_id = token_id;
        return DI_FINISH_STOP;
    }
    *stop_token_id = -1;
    return index + 1 >= rule->max_tokens ? DI_FINISH_LENGTH : DI_FINISH_NONE;
}
