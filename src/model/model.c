/* model.c - books of a step, the same for every family: rows, sequences, logits, submit and commit. */
#include "model/model_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------- opening */

di_status di_model_open(const char *folder, const di_model_config *config, const di_checkpoint *checkpoint,
                        const di_tokenizer *tokenizer, di_backend *backend, const di_model_options *options,
                        di_model **model, di_error *error) {
    *model = NULL;
    uint32_t keep = options->keep ? options->keep : config->sliding_window + 12;
    if (options->compact && keep < config->sliding_window)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prefill-keep",
                       "--prefill-keep %u is less than the model's window of %u positions", keep,
                       config->sliding_window);
    di_model_source source = {folder, config, checkpoint, tokenizer, backend, options};
    di_status status = di_deepseek_v41.open(&source, model, error);
    if (status) return status;
    di_model *m = *model;
    if (options->compact)
        snprintf(m->profile, sizeof m->profile, "%s+compact+%u", backend->profile, m->keep);
    else
        snprintf(m->profile, sizeof m->profile, "%s", backend->profile);
    return DI_OK;
}

void di_model_close(di_model *model) {
    if (model) model->family->close(model);
}

const di_state_layout *di_model_layout(const di_model *model) {
    return &model->layout;
}
di_backend *di_model_backend(const di_model *model) {
    return model->backend;
}
const char *di_model_profile(const di_model *model) {
    return model->profile;
}
uint64_t di_model_digest(const di_model *model) {
    return model->digest;
}

void di_model_set_trace(di_model *model, di_trace trace, void *arg) {
    model->trace = trace;
    model->trace_arg = arg;
}

/* ---------------------------------------------------------------- steps */

uint64_t di_step_bytes(const di_model_config *config, const di_model_options *options, uint32_t max_rows,
                       uint32_t max_logits) {
    return di_deepseek_v41.step_bytes(config, options, max_rows, max_logits);
}

di_status di_step_new(di_model *model, uint32_t max_rows, uint32_t max_sequences, uint32_t max_logits, di_step **step,
                      di_error *error) {
    *step = NULL;
    di_step *s = NULL;
    di_status status = model->family->step_new(model, &s, max_rows, max_logits, error);
    if (status) return status;
    s->model = model;
    s->max_rows = max_rows;
    s->max_sequences = max_sequences;
    s->max_logits = max_logits;
    s->decoder_capacity = max_rows + model->keep;
    s->rows[0] = calloc(max_rows, sizeof(di_row));
    s->rows[1] = calloc(s->decoder_capacity, sizeof(di_row));
    s->sequences = calloc(max_sequences, sizeof *s->sequences);
    s->entries = calloc(max_sequences, sizeof *s->entries);
    s->logits_rows = calloc(max_logits ? max_logits : 1, sizeof *s->logits_rows);
    if (!s->rows[0] || !s->rows[1] || !s->sequences || !s->entries || !s->logits_rows) {
        di_step_free(s);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make a step of %u rows", max_rows);
    }
    di_step_clear(s);
    *step = s;
    return DI_OK;
}

void di_step_free(di_step *step) {
    if (!step) return;
    free(step->rows[0]);
    free(step->rows[1]);
    free(step->sequences);
    free(step->entries);
    free(step->logits_rows);
    step->model->family->step_free(step);
}

void di_step_clear(di_step *step) {
    for (uint32_t h = 0; h < 2; h++)
        step->half[h] = (di_rows){.rows = step->rows[h],
                                  .sequences = step->sequences,
                                  .half = h,
                                  .page_tokens = step->model->layout.page_tokens};
    step->logits_count = 0;
    step->submitted = false;
}

void di_step_poison(di_step *step) {
    di_backend *backend = step->model->backend;
    backend->ops->fill(backend, step->memory, 0xFF, step->memory_bytes);
}

/* First row of the entry that runs the decoder half. */
static uint32_t decoder_start(const di_step_entry *e) {
    if (e->replay_from < 0) return e->decoder_from < e->count ? e->decoder_from : e->count;
    return e->replay_from > e->state.committed ? (uint32_t)(e->replay_from - e->state.committed) : 0;
}

static di_status check_entry(const di_step *step, const di_step_entry *e, di_error *error) {
    const di_model *model = step->model;
    bool replay = e->replay_from >= 0;
    uint32_t replayed =
        replay && e->replay_from < e->state.committed ? (uint32_t)(e->state.committed - e->replay_from) : 0;
    uint32_t start = decoder_start(e), logits = e->logits_from < e->count ? e->count - e->logits_from : 0;
    if (!model->options.compact && (e->decoder_from != 0 || replay))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "decoder_from", "only compact prefill leaves out decoder rows");
    if (replayed > model->keep || start > e->count || (logits && e->logits_from < start))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "replay_from",
                       "the decoder half starts at most %u positions back, and logits need it", model->keep);
    if (step->half[0].sequence_count == step->max_sequences || step->half[0].count + e->count > step->max_rows ||
        step->half[1].count + replayed + (e->count - start) > step->decoder_capacity ||
        step->logits_count + logits > step->max_logits)
        return di_fail(error, DI_ERR_LIMIT, "max-rows",
                       "the step is full: at most %u rows, %u sequences and %u rows of logits", step->max_rows,
                       step->max_sequences, step->max_logits);
    uint64_t need = (uint64_t)e->state.committed + e->count;
    if (need > (uint64_t)e->state.page_count * model->layout.page_tokens)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "pages", "%llu positions do not fit %u pages of %u positions",
                       (unsigned long long)need, e->state.page_count, model->layout.page_tokens);
    for (uint32_t i = 0; i < e->count; i++)
        if (e->tokens[i] < 0 || (uint32_t)e->tokens[i] >= model->config.vocab_size)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "token_ids",
                           "token id %d at index %u is outside the vocabulary 0..%u", e->tokens[i], i,
                           model->config.vocab_size - 1);
    return DI_OK;
}

static void add_row(di_step *step, uint32_t half, uint32_t sequence, int32_t position, int32_t token, uint32_t flags) {
    step->rows[half][step->half[half].count++] =
        (di_row){.sequence = sequence, .position = position, .token = token, .flags = flags};
}

di_status di_step_add(di_step *step, const di_step_entry *entry, uint32_t *index, uint32_t *first_logits,
                      di_error *error) {
    di_status status = check_entry(step, entry, error);
    if (status) return status;
    uint32_t s = step->half[0].sequence_count;
    int32_t start = entry->state.committed;
    bool replay = entry->replay_from >= 0;
    uint32_t decoder_from = decoder_start(entry);
    di_sequence_view view = {.rolling = entry->state.rolling,
                             .pages = entry->state.pages,
                             .page_count = entry->state.page_count,
                             .committed = start,
                             .first_row = {step->half[0].count, step->half[1].count},
                             .first_position = {start, replay ? entry->replay_from : start + (int32_t)decoder_from},
                             .window_low = {0, replay ? entry->replay_from : entry->state.decoder_low}};
    *first_logits = step->logits_count;
    if (replay)
        for (int32_t p = entry->replay_from; p < start; p++) add_row(step, DI_HALF_DECODER, s, p, 0, 0);
    for (uint32_t i = 0; i < entry->count; i++) {
        uint32_t flags = (entry->taps ? DI_ROW_TAPS : 0) | (i >= entry->logits_from ? DI_ROW_LOGITS : 0);
        int32_t position = start + (int32_t)i;
        add_row(step, DI_HALF_ENCODER, s, position, entry->tokens[i], flags);
        if (i < decoder_from) continue;
        if (i >= entry->logits_from) step->logits_rows[step->logits_count++] = step->half[1].count;
        add_row(step, DI_HALF_DECODER, s, position, entry->tokens[i], flags);
    }
    for (int h = 0; h < 2; h++) {
        view.row_count[h] = step->half[h].count - view.first_row[h];
        step->half[h].sequence_count = s + 1;
    }
    step->sequences[s] = view;
    step->entries[s] = *entry;
    *index = s;
    return DI_OK;
}

uint32_t di_step_rows(const di_step *step) {
    return step->half[0].count;
}
uint32_t di_step_logits_count(const di_step *step) {
    return step->logits_count;
}
di_buffer di_step_logits(const di_step *step) {
    return step->logits;
}

di_status di_model_submit(di_model *model, di_step *step, di_error *error) {
    (void)error;
    if (step->half[0].count) model->family->forward(step);
    step->submitted = true;
    return DI_OK;
}

bool di_model_poll(di_model *model, di_step *step, bool wait, di_status *status, di_error *error) {
    (void)wait;
    model->backend->ops->synchronise(model->backend);
    *status = model->backend->failure(model->backend, error);
    for (uint32_t i = 0; *status == DI_OK && i < step->half[0].sequence_count; i++)
        if (step->entries[i].sure) model->family->commit(step, i, step->entries[i].count);
    return true;
}

void di_model_commit(di_model *model, di_step *step, uint32_t index, uint32_t count, di_state_view *state) {
    const di_step_entry *entry = &step->entries[index];
    if (count > entry->count) count = entry->count;
    assert(!entry->sure || count == entry->count);
    if (count && !entry->sure) model->family->commit(step, index, count);
    if (count && entry->replay_from >= 0) state->decoder_low = entry->replay_from;
    state->committed = entry->state.committed + (int32_t)count;
}

/* ---------------------------------------------------------------- draft head */

uint32_t di_draft_length(const di_model *model) {
    return model->options.draft ? model->config.draft_block_size : 0;
}

di_status di_draft_new(di_model *model, uint32_t max_blocks, di_draft **draft, di_error *error) {
    *draft = NULL;
    if (!model->options.draft)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "draft", "the model was opened without its draft head");
    di_status status = model->family->draft_new(model, max_blocks, draft, error);
    if (status == DI_OK) (*draft)->max_blocks = max_blocks;
    return status;
}

void di_draft_free(di_draft *draft) {
    if (draft) draft->model->family->draft_free(draft);
}

uint64_t di_draft_bytes(const di_model_config *config, uint32_t max_blocks) {
    return di_deepseek_v41.draft_bytes(config, max_blocks);
}

void di_draft_poison(di_draft *draft) {
    di_backend *backend = draft->model->backend;
    backend->ops->fill(backend, draft->memory, 0xFF, draft->memory_bytes);
}

static di_status check_draft(const di_draft *draft, const di_draft_entry *entries, uint32_t count, uint32_t length,
                             di_error *error) {
    const di_model_config *config = &draft->model->config;
    if (length < 1 || length > config->draft_block_size)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "length", "a draft block has 1 to %u rows, not %u",
                       config->draft_block_size, length);
    if (count > draft->max_blocks)
        return di_fail(error, DI_ERR_LIMIT, "count", "%u draft blocks at once, at most %u have room", count,
                       draft->max_blocks);
    for (uint32_t i = 0; i < count; i++)
        if (entries[i].anchor < 0 || (uint32_t)entries[i].anchor >= config->vocab_size)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "anchor", "token id %d is outside the vocabulary of %u",
                           entries[i].anchor, config->vocab_size);
    return DI_OK;
}

di_status di_model_draft(di_model *model, di_draft *draft, const di_draft_entry *entries, uint32_t count,
                         uint32_t length, int32_t *tokens, float *confidences, di_error *error) {
    di_status status = check_draft(draft, entries, count, length, error);
    if (status != DI_OK || count == 0) return status;
    model->family->draft_run(draft, entries, count, length, tokens, confidences);
    model->backend->ops->synchronise(model->backend);
    return model->backend->failure(model->backend, error);
}
