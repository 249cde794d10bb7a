/* family.c - opening and closing a DeepSeek-V4.1 model. */
#include "model/deepseek_v41/v41.h"

#include <stdlib.h>

#include "base/digest.h"

static void v41_close(di_model *model) {
    v41_model *m = (v41_model *)model;
    for (size_t i = 0; i < m->owned_count; i++) model->backend->ops->free_weight(model->backend, m->owned[i]);
    free(m->owned);
    di_arena_free(m->arena);
    free(m);
}

/* Everything that a state depends on beside the ids: weights, what is done with them, and the rows of the tables. */
static di_status identify(v41_model *m, const di_model_source *source, di_error *error) {
    uint64_t weights;
    di_status status = di_checkpoint_digest(source->checkpoint, &weights, error);
    if (status) return status;
    m->base.digest = di_digest_u64(weights, di_model_config_digest(&m->base.config));
    m->base.digest = di_digest_u64(m->base.digest, v41_engram_digest(m));
    return DI_OK;
}

static di_status open_parts(v41_model *m, const di_model_source *source, di_error *error) {
    const di_model_config *c = &m->base.config;
    m->layers = di_arena_zalloc(m->arena, c->num_hidden_layers * sizeof *m->layers);
    for (int table = 0; table < 2; table++)
        m->frequency[table] = di_arena_array(m->arena, c->qk_rope_head_dim / 2, sizeof(float));
    if (!m->layers || !m->frequency[0] || !m->frequency[1])
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot open the model");
    if (source->options->draft) {
        size_t stages = c->draft_stages;
        m->stages = di_arena_zalloc(m->arena, stages * sizeof *m->stages);
        m->draft_wkv = di_arena_zalloc(m->arena, stages * sizeof(di_weight *));
        m->draft_kv_norm = di_arena_zalloc(m->arena, stages * sizeof(di_weight *));
        if (!m->stages || !m->draft_wkv || !m->draft_kv_norm)
            return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot open the draft head");
    }
    v41_frequencies(c, false, m->frequency[0]);
    v41_frequencies(c, true, m->frequency[1]);
    di_status status = v41_make_layout(m, error);
    if (!status) status = v41_engram_open(m, source->folder, source->tokenizer, error);
    if (!status) status = identify(m, source, error);
    return status ? status : v41_load(m, source->checkpoint, error);
}

static di_status check_draft(const di_model_source *source, di_error *error) {
    const di_model_config *c = source->config;
    if (!source->options->draft) return DI_OK;
    if (!c->draft_stages)
        return di_fail(error, DI_ERR_UNSUPPORTED, "spec", "this model has no draft head (dspark_block_size is 0)");
    if (source->options->compact && c->tap_layers[0] < c->cut)
        return di_fail(error, DI_ERR_UNSUPPORTED, "prefill",
                       "compact prefill and the draft head do not go together here: the head reads layer %u, which is "
                       "before the first decoder layer (%u)",
                       c->tap_layers[0], c->cut);
    return DI_OK;
}

static di_status v41_open(const di_model_source *source, di_model **model, di_error *error) {
    di_status status = check_draft(source, error);
    if (status) return status;
    v41_model *m = calloc(1, sizeof *m);
    if (!m || !(m->arena = di_arena_new(0))) {
        free(m);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot open the model");
    }
    m->base.family = &di_deepseek_v41;
    m->base.config = *source->config;
    m->base.options = *source->options;
    m->base.backend = source->backend;
    uint32_t keep = source->options->keep ? source->options->keep : source->config->sliding_window + 12;
    m->base.keep = source->options->compact ? keep : 0;
    status = open_parts(m, source, error);
    if (status) {
        v41_close(&m->base);
        return status;
    }
    *model = &m->base;
    return DI_OK;
}

const di_model_family di_deepseek_v41 = {
    .architecture = "deepseek_v41",
    .open = v41_open,
    .close = v41_close,
    .step_new = v41_step_new,
    .step_free = v41_step_free,
    .step_bytes = v41_step_bytes,
    .forward = v41_forward,
    .commit = v41_commit,
    .draft_new = v41_draft_new,
    .draft_free = v41_draft_free,
    .draft_bytes = v41_draft_bytes,
    .draft_run = v41_draft_run,
};
