/* harness.c - see harness.h. */
#include "support/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

void di_must(di_status status, const di_error *error) {
    if (status) fail_msg("%s: %s", di_status_name(status), error->message);
}

const di_cpu_kernels *di_harness_best_kernels(void) {
#if defined(__x86_64__)
    if (di_cpu_supports(&di_cpu_avx512)) return &di_cpu_avx512;
    if (di_cpu_supports(&di_cpu_avx2)) return &di_cpu_avx2;
#endif
    return &di_cpu_scalar;
}

di_harness *di_harness_open(const char *folder, const di_harness_options *options) {
    static const di_harness_options defaults = {0};
    if (!options) options = &defaults;
    di_harness *h = calloc(1, sizeof *h);
    assert_non_null(h);
    di_error error = {0};
    char path[4096];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    h->max_rows = options->max_rows ? options->max_rows : 600;
    const di_cpu_kernels *kernels = options->kernels ? options->kernels : &di_cpu_scalar;
    di_must(di_pool_new(options->threads ? options->threads : 1, &h->pool, &error), &error);
    di_must(di_cpu_backend_with_kernels(kernels, h->pool, &h->backend, &error), &error);
    di_must(di_model_config_load(folder, &h->config, &error), &error);
    di_must(di_checkpoint_open(folder, &(di_checkpoint_options){0}, &h->checkpoint, &error), &error);
    di_must(di_checkpoint_verify(h->checkpoint, &h->config, &error), &error);
    di_must(di_tokenizer_load(path, &h->tokenizer, &error), &error);
    di_model_options model = {
        .compact = options->compact,
        .keep = options->keep,
        .context = h->config.max_position_embeddings,
        .draft = options->draft,
    };
    di_must(di_model_open(folder, &h->config, h->checkpoint, h->tokenizer, h->backend, &model, &h->model, &error),
            &error);
    di_must(di_page_pool_new(h->model, 1 << 20, &h->pages, &error), &error);
    di_must(di_step_new(h->model, h->max_rows, 64, h->max_rows, &h->step, &error), &error);
    return h;
}

void di_harness_close(di_harness *h) {
    di_step_free(h->step);
    di_page_pool_free(h->pages);
    di_model_close(h->model);
    di_tokenizer_free(h->tokenizer);
    di_checkpoint_close(h->checkpoint);
    h->backend->free(h->backend);
    di_pool_free(h->pool);
    free(h);
}

di_state *di_harness_state(di_harness *h, uint32_t tokens) {
    di_error error = {0};
    di_state *state = NULL;
    di_must(di_state_new(h->pages, tokens, &state, &error), &error);
    di_must(di_state_reserve(state, tokens, &error), &error);
    return state;
}

void di_harness_run_step(di_harness *h) {
    di_error error = {0};
    di_status status;
    di_must(di_model_submit(h->model, h->step, &error), &error);
    assert_true(di_model_poll(h->model, h->step, true, &status, &error));
    di_must(status, &error);
}

static void one_chunk(di_harness *h, di_state *state, const int32_t *ids, size_t from, size_t to, size_t count,
                      bool all, float *logits) {
    di_error error = {0};
    uint32_t index, first, vocabulary = h->config.vocab_size;
    bool compact = strcmp(di_model_profile(h->model), "exact") != 0, last = to == count;
    di_must(di_state_reserve(state, (uint32_t)di_state_length(state) + (uint32_t)(to - from), &error), &error);
    di_step_entry entry = {.state = *di_state_get_view(state),
                           .tokens = ids + from,
                           .count = (uint32_t)(to - from),
                           .replay_from = -1,
                           .taps = true};
    entry.logits_from = all ? 0 : last ? entry.count - 1 : entry.count;
    if (compact && count > 1) { /* a prompt: the decoder half runs at its end, on the kept rows */
        uint32_t keep = (uint32_t)strtoul(di_model_profile(h->model) + strlen("exact+compact+"), NULL, 10);
        size_t low = count > keep ? count - keep : 0;
        if (last)
            entry.replay_from = (int32_t)low;
        else
            entry.decoder_from = UINT32_MAX;
    }
    di_step_clear(h->step);
    di_must(di_step_add(h->step, &entry, &index, &first, &error), &error);
    di_harness_run_step(h);
    uint32_t rows = di_step_logits_count(h->step);
    if (logits && rows) {
        float *out = all ? logits + from * vocabulary : logits;
        h->backend->ops->read(h->backend, out, di_step_logits(h->step), (uint64_t)rows * vocabulary * sizeof *out);
    }
    di_model_commit(h->model, h->step, index, entry.count, di_state_get_view(state));
}

void di_harness_feed(di_harness *h, di_state *state, const int32_t *ids, size_t count, size_t chunk, bool all,
                     float *logits) {
    if (!chunk || chunk > h->max_rows) chunk = h->max_rows;
    for (size_t from = 0; from < count; from += chunk)
        one_chunk(h, state, ids, from, count - from > chunk ? from + chunk : count, count, all, logits);
}

uint64_t di_harness_state_hash(di_state *state) {
    di_text text = {0};
    di_error error = {0};
    di_must(di_state_serialise(state, &text, &error), &error);
    memset(text.data + 32, 0, 8);  /* digest of the model: no result of a computation */
    memset(text.data + 112, 0, 8); /* checksum, also of the digest */
    uint64_t hash = XXH64(text.data, text.length, 0);
    di_text_free(&text);
    return hash;
}

uint64_t di_harness_page_hash(di_harness *h, const di_page *page) {
    uint64_t bytes = di_model_layout(h->model)->page_bytes;
    char *copy = malloc(bytes);
    assert_non_null(copy);
    h->backend->ops->read(h->backend, copy, page->buffer, bytes);
    uint64_t hash = XXH64(copy, bytes, 0);
    free(copy);
    return hash;
}

int32_t di_harness_argmax(const float *logits, size_t count) {
    size_t best = 0;
    for (size_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}
