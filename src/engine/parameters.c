/* parameters.c - what of a request depends on the engine: ids, stop strings, room in the context, limits. */
#include <string.h>

#include "cache/fingerprint.h"
#include "engine/engine_internal.h"

/* Alone, a request must fit the pages there are; the room it did not ask for by number is cut to that. */
static di_status check_pages(const di_engine *engine, di_request *request, di_error *error) {
    uint32_t page = di_model_layout(engine->model)->page_tokens, n = (uint32_t)request->sampling.n;
    uint64_t positions = (uint64_t)(di_page_pool_limit(engine->pages) / n) * page;
    if (request->prompt_count + request->max_tokens <= positions) return DI_OK;
    bool asked = request->sampling.max_tokens >= 0 && (uint64_t)request->sampling.max_tokens == request->max_tokens;
    if (!asked && positions > request->prompt_count) {
        request->max_tokens = positions - request->prompt_count;
        return DI_OK;
    }
    return di_fail(error, DI_ERR_LIMIT, "kv-ram",
                   "%u samples of up to %llu positions need more pages than there are: %llu positions each fit "
                   "(--kv-ram, n, max_tokens)",
                   n, (unsigned long long)(request->prompt_count + request->max_tokens), (unsigned long long)positions);
}

/* What fits: the prompt must leave room for a token, max_tokens is cut to the room. */
static di_status check_room(const di_engine *engine, di_request *request, di_error *error) {
    const di_sampling *sampling = &request->sampling;
    uint32_t room = engine->context - request->prompt_count;
    if (!room && sampling->max_tokens != 0)
        return di_fail(error, DI_ERR_CONTEXT_LENGTH, "prompt",
                       "the prompt has %u tokens and the context %u, which leaves no room for an answer (--context)",
                       request->prompt_count, engine->context);
    bool cut = sampling->max_tokens < 0 || sampling->max_tokens > room;
    request->max_tokens = cut ? room : (uint64_t)sampling->max_tokens;
    return check_pages(engine, request, error);
}

static di_status check_stops(const di_engine *engine, const di_request_params *params, di_request *request,
                             di_error *error) {
    const di_sampling *sampling = &request->sampling;
    if (sampling->stop_count && !engine->tokenizer)
        return di_fail(error, DI_ERR_UNSUPPORTED, "stop",
                       "the model has no tokenizer, so there is no text to look for stop strings in");
    di_status status = di_stop_set_build(&request->stops, request->arena, sampling->stop, sampling->stop_count, error);
    if (status != DI_OK) return status;
    return di_stop_set_add_ends(&request->stops, request->arena, params->stop_disarm, params->stop_disarm_count, error);
}

static di_status check_limits(const di_engine *engine, const di_request *request, di_error *error) {
    const di_sampling *sampling = &request->sampling;
    if (sampling->prompt_logprobs >= 0 && engine->compact)
        return di_fail(error, DI_ERR_UNSUPPORTED, "prompt_logprobs",
                       "prompt_logprobs needs every prompt row, which --prefill compact does not compute");
    uint32_t most = engine->max_seqs < engine->max_rows ? engine->max_seqs : engine->max_rows;
    if ((uint32_t)sampling->n > most)
        return di_fail(error, DI_ERR_LIMIT, "n", "n is %d; --max-seqs and --max-rows allow %u", sampling->n, most);
    return DI_OK;
}

uint64_t di_namespace(const char *owner, const char *tenant) {
    uint8_t hash[DI_FINGERPRINT];
    uint64_t result = 0;
    if (!owner && !tenant) return 0;
    /* With the zero byte behind it an owner's name ends where the other begins. */
    di_blake2b_16(owner, owner ? strlen(owner) + 1 : 0, tenant, tenant ? strlen(tenant) : 0, hash);
    for (int i = 7; i >= 0; i--) result = result << 8 | hash[i];
    return result;
}

di_status di_check_parameters(const di_engine *engine, const di_request_params *params, di_request *request,
                              di_error *error) {
    request->priority = params->priority;
    request->tenant = di_namespace(params->owner, params->tenant);
    request->stop_arm = params->stop_arm_token_id;
    request->draft_records = params->draft_records;
    if (params->deadline_ms < 0)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "deadline_ms", "deadline_ms is %lld; it must not be negative",
                       (long long)params->deadline_ms);
    if (params->deadline_ms && params->deadline_ms < INT64_MAX / 4000000)
        request->deadline_ns = request->submitted_ns + params->deadline_ms * 1000000;
    const char *id = params->id ? params->id : "";
    request->id = di_arena_copy(request->arena, id, strlen(id));
    if (params->owner) request->owner = di_arena_copy(request->arena, params->owner, strlen(params->owner));
    if (!request->id || (params->owner && !request->owner))
        return di_fail(error, DI_ERR_MEMORY, "id", "out of memory for the request");
    di_sampling_limits limits = {.vocabulary = engine->info.vocabulary, .stop_strings = engine->stop_limit};
    di_status status = di_sampling_check(&params->sampling, &limits, error);
    if (status == DI_OK) status = di_sampling_copy(request->arena, &params->sampling, &request->sampling, error);
    if (status == DI_OK) status = di_sampling_seed(&request->sampling, &request->seed, error);
    if (status == DI_OK) status = check_stops(engine, params, request, error);
    if (status == DI_OK) status = check_limits(engine, request, error);
    if (status == DI_OK) status = check_room(engine, request, error);
    if (status == DI_OK)
        status = di_constraint_open(engine->constraints, &request->sampling.so_args, &request->grammar, error);
    return status;
}
