/* model_layers.c - relations between the fields of a model config, and the layer table that follows from them. */
#include <string.h>

#include "checkpoint/checkpoint_internal.h"

/* Everything below reports one fault: the field, its value, and what would be right. */
typedef struct checker {
    const char *name;
    const di_layer_lists *lists;
    di_model_config *config;
    di_error *error;
} checker;

#define WRONG(c, field, ...) di_fail((c)->error, DI_ERR_CHECKPOINT, field, __VA_ARGS__)

static bool contains(const uint32_t *list, uint32_t count, uint32_t value) {
    for (uint32_t i = 0; i < count; i++)
        if (list[i] == value) return true;
    return false;
}

static di_status check_ascending(const checker *c, const char *field, const uint32_t *list, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (list[i] >= c->config->num_hidden_layers)
            return WRONG(c, field, "%s: %s names layer %u; num_hidden_layers is %u", c->name, field, list[i],
                         c->config->num_hidden_layers);
        if (i > 0 && list[i] <= list[i - 1])
            return WRONG(c, field, "%s: %s holds %u after %u; it must be strictly ascending", c->name, field, list[i],
                         list[i - 1]);
    }
    return DI_OK;
}

static di_status check_widths(const checker *c) {
    const di_model_config *m = c->config;
    if (m->qk_rope_head_dim > m->head_dim || m->qk_rope_head_dim > m->index_head_dim)
        return WRONG(c, "qk_rope_head_dim",
                     "%s: qk_rope_head_dim is %u; it must be at most head_dim (%u) and index_head_dim (%u)", c->name,
                     m->qk_rope_head_dim, m->head_dim, m->index_head_dim);
    if (m->num_attention_heads % m->o_groups != 0)
        return WRONG(c, "o_groups", "%s: o_groups is %u; it must divide num_attention_heads (%u)", c->name, m->o_groups,
                     m->num_attention_heads);
    if ((uint64_t)m->o_lora_rank * m->o_groups % 32 != 0)
        return WRONG(c, "o_lora_rank", "%s: o_lora_rank is %u; times o_groups (%u) it must be a multiple of 32",
                     c->name, m->o_lora_rank, m->o_groups);
    if (m->num_experts_per_tok > m->n_routed_experts)
        return WRONG(c, "num_experts_per_tok",
                     "%s: num_experts_per_tok is %u; it must be at most n_routed_experts (%u)", c->name,
                     m->num_experts_per_tok, m->n_routed_experts);
    if (m->n_shared_experts != 1)
        return di_fail(c->error, DI_ERR_UNSUPPORTED, "n_shared_experts",
                       "%s: n_shared_experts is %u; the checkpoint layout has exactly 1", c->name, m->n_shared_experts);
    if (m->yarn_beta_fast <= m->yarn_beta_slow)
        return WRONG(c, "beta_fast", "%s: rope_scaling beta_fast is %g; it must be above beta_slow (%g)", c->name,
                     m->yarn_beta_fast, m->yarn_beta_slow);
    return DI_OK;
}

static di_status check_sources(const checker *c) {
    const di_layer_lists *lists = c->lists;
    const di_model_config *m = c->config;
    di_status status = check_ascending(c, "kv_source_layer_ids", lists->kv_sources, lists->kv_count);
    if (status == DI_OK)
        status = check_ascending(c, "index_source_layer_ids", lists->index_sources, lists->index_count);
    if (status != DI_OK) return status;
    if (lists->ratio_count < m->num_hidden_layers)
        return WRONG(c, "compress_ratios", "%s: compress_ratios has %u entries; num_hidden_layers is %u", c->name,
                     lists->ratio_count, m->num_hidden_layers);
    for (uint32_t i = 0; i < lists->ratio_count; i++) {
        if (lists->ratios[i] > 2)
            return di_fail(c->error, DI_ERR_UNSUPPORTED, "compress_ratios",
                           "%s: compress_ratios[%u] is %u; only 0, 1 and 2 are supported", c->name, i,
                           lists->ratios[i]);
        if (i >= m->num_hidden_layers && lists->ratios[i] != 0)
            return di_fail(c->error, DI_ERR_UNSUPPORTED, "compress_ratios",
                           "%s: compress_ratios[%u] belongs to a draft stage and is %u; only 0 is supported there",
                           c->name, i, lists->ratios[i]);
    }
    for (uint32_t i = 0; i < lists->kv_count; i++)
        if (!contains(lists->index_sources, lists->index_count, lists->kv_sources[i]))
            return WRONG(c, "index_source_layer_ids",
                         "%s: index_source_layer_ids lacks layer %u, which is in kv_source_layer_ids", c->name,
                         lists->kv_sources[i]);
    for (uint32_t i = 0; i < lists->index_count; i++)
        if (lists->ratios[lists->index_sources[i]] == 0)
            return WRONG(c, "index_source_layer_ids",
                         "%s: layer %u is in index_source_layer_ids, but compress_ratios says 0 there", c->name,
                         lists->index_sources[i]);
    return DI_OK;
}

/* Largest element <= layer, -1 if there is none. */
static int32_t source_of(const uint32_t *list, uint32_t count, uint32_t layer) {
    int32_t source = -1;
    for (uint32_t i = 0; i < count && list[i] <= layer; i++) source = (int32_t)list[i];
    return source;
}

static di_status derive_layers(const checker *c) {
    const di_layer_lists *lists = c->lists;
    di_model_config *m = c->config;
    m->cut = lists->kv_count ? lists->kv_sources[lists->kv_count - 1] : m->num_hidden_layers;
    for (uint32_t i = 0; i < m->num_hidden_layers; i++) {
        di_layer_config *layer = &m->layers[i];
        *layer = (di_layer_config){.mode = DI_ATTENTION_SWA,
                                   .ratio = lists->ratios[i],
                                   .kv_source = -1,
                                   .index_source = -1,
                                   .engram = -1,
                                   .tap = -1};
        if (layer->ratio == 0) continue;
        layer->kv_source = source_of(lists->kv_sources, lists->kv_count, i);
        layer->index_source = source_of(lists->index_sources, lists->index_count, i);
        if (layer->kv_source < 0 || layer->index_source < layer->kv_source)
            return WRONG(c, "kv_source_layer_ids",
                         "%s: layer %u has compress_ratios %u, but kv_source_layer_ids has no layer at or before it",
                         c->name, i, layer->ratio);
        if (lists->ratios[layer->kv_source] != layer->ratio)
            return WRONG(c, "compress_ratios",
                         "%s: compress_ratios[%u] is %u, but the layer reads the cache of layer %d, which has %u",
                         c->name, i, layer->ratio, layer->kv_source, lists->ratios[layer->kv_source]);
        bool owns_kv = layer->kv_source == (int32_t)i, owns_index = layer->index_source == (int32_t)i;
        layer->mode = owns_kv ? DI_ATTENTION_FULL : owns_index ? DI_ATTENTION_REINDEX : DI_ATTENTION_REUSE;
    }
    return DI_OK;
}

static di_status check_candidates(const checker *c) {
    const di_model_config *m = c->config;
    int32_t source = m->candidate_source_layer;
    if (source < 0) return DI_OK;
    /* Candidates are made and used in one half; there all layers with a cache read the same one. */
    bool indexer = source < (int32_t)m->num_hidden_layers &&
                   (m->layers[source].mode == DI_ATTENTION_FULL || m->layers[source].mode == DI_ATTENTION_REINDEX);
    if (!indexer || source < (int32_t)m->cut)
        return WRONG(
            c, "candidate_source_layer_id",
            "%s: candidate_source_layer_id is %d; it must be -1 or one of index_source_layer_ids from the last "
            "of kv_source_layer_ids on",
            c->name, source);
    if (m->candidate_topk_blocks == 0)
        return WRONG(c, "candidate_topk_blocks", "%s: candidate_topk_blocks must be at least 1", c->name);
    if (m->candidate_block_size == 0)
        return WRONG(c, "candidate_block_size", "%s: candidate_block_size must be at least 1", c->name);
    return DI_OK;
}

static di_status check_engram(const checker *c) {
    di_model_config *m = c->config;
    di_status status = check_ascending(c, "engram_layer_ids", m->engram_layers, m->engram_layer_count);
    if (status != DI_OK || m->engram_layer_count == 0) return status;
    for (uint32_t i = 0; i < m->engram_layer_count; i++) {
        if (m->engram_layers[i] >= m->cut)
            return WRONG(c, "engram_layer_ids",
                         "%s: engram_layer_ids names layer %u; Engram layers must come before the last key-value "
                         "source (layer %u)",
                         c->name, m->engram_layers[i], m->cut);
        if (m->engram_rows[i] == 0)
            return WRONG(c, "engram_num_embeddings", "%s: engram_num_embeddings[%u] must be at least 1", c->name, i);
        m->layers[m->engram_layers[i]].engram = (int32_t)i;
    }
    if (m->engram_pad_id >= m->vocab_size)
        return WRONG(c, "engram_pad_token_id", "%s: engram_pad_token_id is %u; vocab_size is %u", c->name,
                     m->engram_pad_id, m->vocab_size);
    if (m->engram_compressed_vocab_size > m->vocab_size)
        return WRONG(c, "engram_compressed_vocab_size",
                     "%s: engram_compressed_vocab_size is %u; it must be at most vocab_size (%u)", c->name,
                     m->engram_compressed_vocab_size, m->vocab_size);
    uint64_t width = (uint64_t)(m->engram_max_ngram - 1) * m->engram_n_heads * m->engram_head_dim;
    if (width > 1u << 20)
        return WRONG(c, "engram_n_heads",
                     "%s: Engram rows add up to %llu values a token ((engram_max_ngram_size - 1) * engram_n_heads * "
                     "engram_head_dim); at most 1048576 are supported",
                     c->name, (unsigned long long)width);
    return DI_OK;
}

static di_status check_draft(const checker *c) {
    di_model_config *m = c->config;
    if (m->draft_stages == 0) return DI_OK;
    if (m->num_hidden_layers + m->draft_stages > DI_MAX_LAYERS)
        return WRONG(c, "num_nextn_predict_layers", "%s: num_hidden_layers (%u) and draft stages (%u) exceed %d",
                     c->name, m->num_hidden_layers, m->draft_stages, DI_MAX_LAYERS);
    if (m->tap_count == 0)
        return WRONG(c, "dspark_target_layer_ids", "%s: dspark_target_layer_ids is empty; the draft head needs input",
                     c->name);
    di_status status = check_ascending(c, "dspark_target_layer_ids", m->tap_layers, m->tap_count);
    if (status != DI_OK) return status;
    for (uint32_t i = 0; i < m->tap_count; i++) {
        di_layer_config *layer = &m->layers[m->tap_layers[i]];
        if (layer->engram >= 0)
            return di_fail(c->error, DI_ERR_UNSUPPORTED, "dspark_target_layer_ids",
                           "%s: layer %u is in dspark_target_layer_ids and in engram_layer_ids; that is not supported",
                           c->name, m->tap_layers[i]);
        layer->tap = (int32_t)i;
    }
    if (m->draft_num_experts_per_tok > m->draft_n_routed_experts)
        return WRONG(c, "dspark_num_experts_per_tok",
                     "%s: dspark_num_experts_per_tok is %u; it must be at most dspark_n_routed_experts (%u)", c->name,
                     m->draft_num_experts_per_tok, m->draft_n_routed_experts);
    if (m->draft_noise_token_id >= (int32_t)m->vocab_size)
        return WRONG(c, "dspark_noise_token_id", "%s: dspark_noise_token_id is %d; vocab_size is %u", c->name,
                     m->draft_noise_token_id, m->vocab_size);
    return DI_OK;
}

static di_status check_vision(const checker *c) {
    const di_model_config *m = c->config;
    if (!m->has_vision) return DI_OK;
    if (m->vision_dim % m->vision_heads != 0 || m->vision_dim / m->vision_heads % 4 != 0)
        return WRONG(c, "vision_config.num_attention_heads",
                     "%s: vision_config.num_attention_heads is %u; hidden_size (%u) divided by it must be a multiple "
                     "of 4 (two-dimensional rotation)",
                     c->name, m->vision_heads, m->vision_dim);
    if (m->image_token_id < 0)
        return WRONG(c, "image_token_id", "%s: image_token_id is missing; a model with vision needs it", c->name);
    return DI_OK;
}

di_status di_model_config_derive(const char *name, const di_layer_lists *lists, di_model_config *config,
                                 di_error *error) {
    const checker c = {.name = name, .lists = lists, .config = config, .error = error};
    di_status status = check_widths(&c);
    if (status == DI_OK) status = check_sources(&c);
    if (status == DI_OK) status = derive_layers(&c);
    if (status == DI_OK) status = check_candidates(&c);
    if (status == DI_OK) status = check_engram(&c);
    if (status == DI_OK) status = check_draft(&c);
    return status == DI_OK ? check_vision(&c) : status;
}
