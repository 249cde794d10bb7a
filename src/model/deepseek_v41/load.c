/* load.c - weights by their names in the checkpoint. */
#include "model/deepseek_v41/v41.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct loader {
    v41_model *m;
    const di_checkpoint *checkpoint;
    di_error *error;
    di_status status;
} loader;

static void remember(loader *l, di_weight *weight) {
    v41_model *m = l->m;
    if (m->owned_count == m->owned_capacity) {
        size_t capacity = m->owned_capacity ? 2 * m->owned_capacity : 256;
        di_weight **grown = realloc(m->owned, capacity * sizeof *grown);
        if (!grown) {
            m->base.backend->ops->free_weight(m->base.backend, weight);
            l->status = di_fail(l->error, DI_ERR_MEMORY, NULL, "out of memory: cannot load the weights");
            return;
        }
        m->owned = grown;
        m->owned_capacity = capacity;
    }
    m->owned[m->owned_count++] = weight;
}

/* `format` gives the name without ".weight"; tensors without that suffix are named whole with a trailing '!'. */
static di_weight *load(loader *l, di_weight_kind kind, const char *format, ...) {
    if (l->status) return NULL;
    char base[96], name[112];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(base, sizeof base, format, args);
    va_end(args);
    bool whole = length > 0 && base[length - 1] == '!';
    if (whole) base[length - 1] = 0;
    snprintf(name, sizeof name, "%s%s", base, whole ? "" : ".weight");
    const di_tensor *tensor = di_checkpoint_find(l->checkpoint, name);
    if (!tensor) {
        l->status = di_fail(l->error, DI_ERR_CHECKPOINT, name, "tensor %s is missing from the checkpoint", name);
        return NULL;
    }
    snprintf(name, sizeof name, "%s.scale", base);
    bool scaled = tensor->dtype == DI_DTYPE_F8_E4M3 || tensor->dtype == DI_DTYPE_I8;
    const di_tensor *scale = scaled ? di_checkpoint_find(l->checkpoint, name) : NULL;
    di_weight *weight = NULL;
    l->status = l->m->base.backend->ops->load_weight(l->m->base.backend, kind, tensor, scale, &weight, l->error);
    if (!l->status) remember(l, weight);
    return l->status ? NULL : weight;
}

#define MATRIX(...) load(l, DI_WEIGHT_MATRIX, __VA_ARGS__)
#define VECTOR(...) load(l, DI_WEIGHT_VECTOR, __VA_ARGS__)

static void load_hyper(loader *l, v41_hyper *h, const char *block, const char *which) {
    h->fn = MATRIX("%s.hc_%s_fn!", block, which);
    h->base = VECTOR("%s.hc_%s_base!", block, which);
    h->scale = VECTOR("%s.hc_%s_scale!", block, which);
}

static void load_attention(loader *l, v41_layer *w, const char *block) {
    w->attn_norm = VECTOR("%s.attn_norm", block);
    w->wq_a = MATRIX("%s.attn.wq_a", block);
    w->q_norm = VECTOR("%s.attn.q_norm", block);
    w->wq_b = MATRIX("%s.attn.wq_b", block);
    w->wkv = MATRIX("%s.attn.wkv", block);
    w->kv_norm = VECTOR("%s.attn.kv_norm", block);
    w->sink = VECTOR("%s.attn.attn_sink!", block);
    w->wo_a = MATRIX("%s.attn.wo_a", block);
    w->wo_b = MATRIX("%s.attn.wo_b", block);
}

/* What only some layers have. */
static void load_sources(loader *l, v41_layer *w, uint32_t i) {
    const di_layer_config *config = &l->m->base.config.layers[i];
    if (config->mode == DI_ATTENTION_FULL) {
        w->comp_wkv = MATRIX("layers.%u.attn.compressor.wkv", i);
        if (config->ratio > 1) w->comp_wgate = MATRIX("layers.%u.attn.compressor.wgate", i);
        w->comp_norm = VECTOR("layers.%u.attn.compressor.norm", i);
        w->index_wk = MATRIX("layers.%u.attn.indexer.wk", i);
        w->index_k_norm = VECTOR("layers.%u.attn.indexer.k_norm", i);
    }
    if (config->mode == DI_ATTENTION_FULL || config->mode == DI_ATTENTION_REINDEX) {
        w->index_wq_b = MATRIX("layers.%u.attn.indexer.wq_b", i);
        w->index_weights = MATRIX("layers.%u.attn.indexer.weights_proj", i);
    }
    if (config->engram >= 0) {
        w->engram_table = load(l, DI_WEIGHT_TABLE, "layers.%u.engram.embed", i);
        w->engram_wkv = MATRIX("layers.%u.engram.wkv", i);
        w->engram_q = VECTOR("layers.%u.engram.q_weight!", i);
        w->engram_k = VECTOR("layers.%u.engram.k_weight!", i);
    }
}

static void load_experts(loader *l, v41_layer *w, const char *block, uint32_t experts) {
    w->ffn_norm = VECTOR("%s.ffn_norm", block);
    w->gate = MATRIX("%s.ffn.gate", block);
    w->bias = VECTOR("%s.ffn.gate.bias!", block);
    w->bias_vl = VECTOR("%s.ffn.gate.bias_vl!", block);
    di_weight ***sets[3] = {&w->w1, &w->w2, &w->w3};
    for (int s = 0; s < 3; s++) {
        *sets[s] = di_arena_array(l->m->arena, experts, sizeof(di_weight *));
        if (!*sets[s]) {
            l->status = di_fail(l->error, DI_ERR_MEMORY, NULL, "out of memory: cannot load the experts");
            return;
        }
        for (uint32_t e = 0; e < experts; e++) (*sets[s])[e] = MATRIX("%s.ffn.experts.%u.w%d", block, e, s + 1);
    }
    if (l->m->base.config.n_shared_experts) {
        w->shared_w1 = MATRIX("%s.ffn.shared_experts.w1", block);
        w->shared_w2 = MATRIX("%s.ffn.shared_experts.w2", block);
        w->shared_w3 = MATRIX("%s.ffn.shared_experts.w3", block);
    }
}

static void load_block(loader *l, v41_layer *w, const char *block, uint32_t experts) {
    load_hyper(l, &w->hc_attn, block, "attn");
    load_hyper(l, &w->hc_ffn, block, "ffn");
    load_attention(l, w, block);
    if (!l->status) load_experts(l, w, block, experts);
}

static void load_draft(loader *l) {
    v41_model *m = l->m;
    uint32_t last = m->base.config.draft_stages - 1;
    for (uint32_t s = 0; s <= last && !l->status; s++) {
        char block[32];
        snprintf(block, sizeof block, "mtp.%u", s);
        load_block(l, &m->stages[s], block, m->base.config.draft_n_routed_experts);
        m->draft_wkv[s] = m->stages[s].wkv;
        m->draft_kv_norm[s] = m->stages[s].kv_norm;
    }
    m->main_proj = MATRIX("mtp.0.main_proj");
    m->main_norm = VECTOR("mtp.0.main_norm");
    m->draft_norm = VECTOR("mtp.%u.norm", last);
    m->markov_embed = load(l, DI_WEIGHT_TABLE, "mtp.%u.markov_head.embed", last);
    m->markov_head = MATRIX("mtp.%u.markov_head.head", last);
    m->confidence = VECTOR("mtp.%u.confidence_head.proj", last);
}

di_status v41_load(v41_model *m, const di_checkpoint *checkpoint, di_error *error) {
    loader state = {.m = m, .checkpoint = checkpoint, .error = error}, *l = &state;
    m->embed = load(l, DI_WEIGHT_TABLE, "embed");
    m->norm = VECTOR("norm");
    m->head = MATRIX("head");
    for (uint32_t i = 0; i < m->base.config.num_hidden_layers && !l->status; i++) {
        char block[32];
        snprintf(block, sizeof block, "layers.%u", i);
        load_block(l, &m->layers[i], block, m->base.config.n_routed_experts);
        load_sources(l, &m->layers[i], i);
    }
    if (m->stages && !l->status) load_draft(l);
    return l->status;
}
