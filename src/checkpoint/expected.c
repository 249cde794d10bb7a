/* expected.c - the manifest that a config implies: every tensor with its dtype, shape and part of the budget.
 *
 * Formats of a matrix [out][in]:
 *   fp8     NAME.weight F8_E4M3 [out][in], NAME.scale F8_E8M0 [ceil(out / 32)][in / 32]
 *   fp4     NAME.weight I8 [out][in / 2] (two E2M1 codes a byte), NAME.scale F8_E8M0 [out][in / 32]
 *   table   NAME.weight F8_E4M3 [rows][n], NAME.scale F8_E8M0 [rows][n / 32]
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "checkpoint/checkpoint.h"

typedef struct emitter {
    const di_model_config *config;
    di_expected_visit visit;
    void *arg;
    char prefix[32]; /* "layers.3." */
    int32_t layer;
    const char *part_override; /* draft stages: everything is "draft" */
    bool stopped;
} emitter;

static void emit(emitter *e, const char *part, di_dtype dtype, uint64_t parameters, const uint64_t *shape,
                 uint32_t rank, const char *name, const char *suffix) {
    if (e->stopped) return;
    di_expected_tensor tensor = {.part = e->part_override ? e->part_override : part,
                                 .dtype = dtype,
                                 .rank = rank,
                                 .parameters = parameters,
                                 .layer = e->layer};
    snprintf(tensor.name, sizeof tensor.name, "%s%s%s", e->prefix, name, suffix);
    memcpy(tensor.shape, shape, rank * sizeof shape[0]);
    e->stopped = !e->visit(e->arg, &tensor);
}

static void vector(emitter *e, const char *part, di_dtype dtype, const char *name, uint64_t n) {
    emit(e, part, dtype, n, &n, 1, name, "");
}

static void matrix(emitter *e, const char *part, di_dtype dtype, const char *name, uint64_t rows, uint64_t columns) {
    emit(e, part, dtype, rows * columns, (uint64_t[]){rows, columns}, 2, name, "");
}

static void fp8(emitter *e, const char *part, const char *name, uint64_t rows, uint64_t columns) {
    emit(e, part, DI_DTYPE_F8_E4M3, rows * columns, (uint64_t[]){rows, columns}, 2, name, ".weight");
    emit(e, part, DI_DTYPE_F8_E8M0, 0, (uint64_t[]){(rows + 31) / 32, columns / 32}, 2, name, ".scale");
}

static void fp4(emitter *e, const char *part, const char *name, uint64_t rows, uint64_t columns) {
    emit(e, part, DI_DTYPE_I8, rows * columns, (uint64_t[]){rows, columns / 2}, 2, name, ".weight");
    emit(e, part, DI_DTYPE_F8_E8M0, 0, (uint64_t[]){rows, columns / 32}, 2, name, ".scale");
}

static void table(emitter *e, const char *part, const char *name, uint64_t rows, uint64_t width) {
    emit(e, part, DI_DTYPE_F8_E4M3, rows * width, (uint64_t[]){rows, width}, 2, name, ".weight");
    emit(e, part, DI_DTYPE_F8_E8M0, 0, (uint64_t[]){rows, width / 32}, 2, name, ".scale");
}

static void hyper_connection(emitter *e, const char *site) {
    uint64_t copies = e->config->hc_mult, rows = (2 + copies) * copies;
    char name[32];
    snprintf(name, sizeof name, "hc_%s_fn", site);
    matrix(e, "mhc", DI_DTYPE_F32, name, rows, copies * e->config->hidden_size);
    snprintf(name, sizeof name, "hc_%s_base", site);
    vector(e, "mhc", DI_DTYPE_F32, name, rows);
    snprintf(name, sizeof name, "hc_%s_scale", site);
    vector(e, "mhc", DI_DTYPE_F32, name, 3);
}

static void attention(emitter *e) {
    const di_model_config *c = e->config;
    uint64_t d = c->hidden_size, heads = (uint64_t)c->num_attention_heads * c->head_dim;
    vector(e, "attention", DI_DTYPE_F32, "attn.attn_sink", c->num_attention_heads);
    fp8(e, "attention", "attn.wq_a", c->q_lora_rank, d);
    vector(e, "attention", DI_DTYPE_BF16, "attn.q_norm.weight", c->q_lora_rank);
    fp8(e, "attention", "attn.wq_b", heads, c->q_lora_rank);
    fp8(e, "attention", "attn.wkv", c->head_dim, d);
    vector(e, "attention", DI_DTYPE_BF16, "attn.kv_norm.weight", c->head_dim);
    uint64_t grouped = (uint64_t)c->o_groups * c->o_lora_rank;
    fp8(e, "attention", "attn.wo_a", grouped, heads / c->o_groups);
    fp8(e, "attention", "attn.wo_b", d, grouped);
}

static void compressor_indexer(emitter *e, const di_layer_config *layer) {
    static const char part[] = "compressor_indexer";
    const di_model_config *c = e->config;
    if (layer->mode == DI_ATTENTION_FULL) {
        matrix(e, part, DI_DTYPE_BF16, "attn.compressor.wkv.weight", c->head_dim, c->hidden_size);
        if (layer->ratio > 1)
            matrix(e, part, DI_DTYPE_BF16, "attn.compressor.wgate.weight", c->head_dim, c->hidden_size);
        vector(e, part, DI_DTYPE_BF16, "attn.compressor.norm.weight", c->head_dim);
        matrix(e, part, DI_DTYPE_BF16, "attn.indexer.wk.weight", c->index_head_dim, c->head_dim);
        vector(e, part, DI_DTYPE_BF16, "attn.indexer.k_norm.weight", c->index_head_dim);
    }
    if (layer->mode == DI_ATTENTION_FULL || layer->mode == DI_ATTENTION_REINDEX) {
        fp8(e, part, "attn.indexer.wq_b", (uint64_t)c->index_n_heads * c->index_head_dim, c->q_lora_rank);
        matrix(e, part, DI_DTYPE_BF16, "attn.indexer.weights_proj.weight", c->index_n_heads, c->hidden_size);
    }
}

static void feed_forward(emitter *e, uint32_t experts) {
    const di_model_config *c = e->config;
    uint64_t d = c->hidden_size, f = c->moe_intermediate_size;
    matrix(e, "gate", DI_DTYPE_BF16, "ffn.gate.weight", experts, d);
    vector(e, "gate", DI_DTYPE_F32, "ffn.gate.bias", experts);
    vector(e, "gate", DI_DTYPE_F32, "ffn.gate.bias_vl", experts);
    for (uint32_t i = 0; i < experts && !e->stopped; i++) {
        char name[48];
        snprintf(name, sizeof name, "ffn.experts.%u.w1", i);
        fp4(e, "experts", name, f, d);
        snprintf(name, sizeof name, "ffn.experts.%u.w3", i);
        fp4(e, "experts", name, f, d);
        snprintf(name, sizeof name, "ffn.experts.%u.w2", i);
        fp4(e, "experts", name, d, f);
    }
    fp8(e, "shared_experts", "ffn.shared_experts.w1", f, d);
    fp8(e, "shared_experts", "ffn.shared_experts.w3", f, d);
    fp8(e, "shared_experts", "ffn.shared_experts.w2", d, f);
}

static void engram(emitter *e, uint64_t rows) {
    const di_model_config *c = e->config;
    uint64_t columns = (uint64_t)(c->engram_max_ngram - 1) * c->engram_n_heads, d = c->hidden_size;
    table(e, "engram_table", "engram.embed", rows, c->engram_head_dim);
    fp8(e, "engram", "engram.wkv", (c->hc_mult + 1) * d, columns * c->engram_head_dim);
    matrix(e, "engram", DI_DTYPE_BF16, "engram.q_weight", c->hc_mult, d);
    matrix(e, "engram", DI_DTYPE_BF16, "engram.k_weight", c->hc_mult, d);
}

static void block(emitter *e, const di_layer_config *layer, uint32_t experts) {
    vector(e, "norms", DI_DTYPE_BF16, "attn_norm.weight", e->config->hidden_size);
    vector(e, "norms", DI_DTYPE_BF16, "ffn_norm.weight", e->config->hidden_size);
    hyper_connection(e, "attn");
    hyper_connection(e, "ffn");
    attention(e);
    if (layer) compressor_indexer(e, layer);
    feed_forward(e, experts);
}

static void draft(emitter *e) {
    const di_model_config *c = e->config;
    uint64_t d = c->hidden_size;
    e->part_override = "draft";
    for (uint32_t s = 0; s < c->draft_stages; s++) {
        snprintf(e->prefix, sizeof e->prefix, "mtp.%u.", s);
        e->layer = (int32_t)(c->num_hidden_layers + s);
        block(e, NULL, c->draft_n_routed_experts);
        if (s == 0) {
            fp8(e, "draft", "main_proj", d, d * c->tap_count);
            vector(e, "draft", DI_DTYPE_BF16, "main_norm.weight", d);
        }
        if (s + 1 == c->draft_stages) {
            vector(e, "draft", DI_DTYPE_BF16, "norm.weight", d);
            matrix(e, "draft", DI_DTYPE_BF16, "markov_head.embed.weight", c->vocab_size, c->draft_markov_rank);
            matrix(e, "draft", DI_DTYPE_BF16, "markov_head.head.weight", c->vocab_size, c->draft_markov_rank);
            matrix(e, "draft", DI_DTYPE_BF16, "confidence_head.proj.weight", 1, d + c->draft_markov_rank);
        }
    }
    e->part_override = NULL;
    e->layer = -1;
    e->prefix[0] = 0;
}

static void vision(emitter *e) {
    static const char part[] = "vision";
    const di_model_config *c = e->config;
    uint64_t v = c->vision_dim, d = c->hidden_size, patch = c->vision_patch, ratio = c->vision_downsample;
    matrix(e, part, DI_DTYPE_BF16, "vision.patch_embed.proj.weight", v, 3 * patch * patch);
    vector(e, part, DI_DTYPE_BF16, "vision.patch_embed.proj.bias", v);
    for (uint32_t b = 0; b < c->vision_layers; b++) {
        snprintf(e->prefix, sizeof e->prefix, "vision.blocks.%u.", b);
        vector(e, part, DI_DTYPE_BF16, "norm1.weight", v);
        vector(e, part, DI_DTYPE_BF16, "norm2.weight", v);
        matrix(e, part, DI_DTYPE_BF16, "attn.wqkv.weight", 3 * v, v);
        vector(e, part, DI_DTYPE_BF16, "attn.wqkv.bias", 3 * v);
        matrix(e, part, DI_DTYPE_BF16, "attn.wo.weight", v, v);
        vector(e, part, DI_DTYPE_BF16, "attn.wo.bias", v);
        matrix(e, part, DI_DTYPE_BF16, "mlp.w1.weight", 2 * (uint64_t)c->vision_intermediate, v);
        matrix(e, part, DI_DTYPE_BF16, "mlp.w2.weight", v, c->vision_intermediate);
    }
    e->prefix[0] = 0;
    vector(e, part, DI_DTYPE_BF16, "vision.norm.weight", v);
    matrix(e, part, DI_DTYPE_BF16, "aligner.w1.weight", d, v * ratio * ratio);
    vector(e, part, DI_DTYPE_BF16, "aligner.w1.bias", d);
    matrix(e, part, DI_DTYPE_BF16, "aligner.w2.weight", d, d);
    vector(e, part, DI_DTYPE_BF16, "aligner.w2.bias", d);
    vector(e, part, DI_DTYPE_BF16, "image_start", d);
    vector(e, part, DI_DTYPE_BF16, "image_end", d);
    vector(e, part, DI_DTYPE_BF16, "image_newline", d);
}

void di_expected_tensors(const di_model_config *config, di_expected_visit visit, void *arg) {
    emitter e = {.config = config, .visit = visit, .arg = arg, .layer = -1};
    if (config->has_vision) vision(&e);
    matrix(&e, "embed", DI_DTYPE_BF16, "embed.weight", config->vocab_size, config->hidden_size);
    for (uint32_t i = 0; i < config->num_hidden_layers; i++) {
        const di_layer_config *layer = &config->layers[i];
        e.layer = (int32_t)i;
        snprintf(e.prefix, sizeof e.prefix, "layers.%u.", i);
        if (layer->engram >= 0) engram(&e, config->engram_rows[layer->engram]);
        block(&e, layer, config->n_routed_experts);
    }
    e.layer = -1;
    e.prefix[0] = 0;
    matrix(&e, "head", DI_DTYPE_BF16, "head.weight", config->vocab_size, config->hidden_size);
    vector(&e, "head", DI_DTYPE_BF16, "norm.weight", config->hidden_size);
    draft(&e);
}
