/* model_config.h - dimensions of a DeepSeek-V4.1 model.
 *
 * Read from the official nested config.json (text_config, vision_config, quantization_config) or the flat inference
 * config (dim, n_layers, ...). Every field is range-checked and every relation
 * between fields that the code relies on; the error names the field. Plain data after that, any thread.
 */
#ifndef DI_CHECKPOINT_MODEL_CONFIG_H
#define DI_CHECKPOINT_MODEL_CONFIG_H

#include "base/arena.h"
#include "base/status.h"

enum { DI_MAX_LAYERS = 256, DI_MAX_HC = 8, DI_MAX_NGRAM = 8, DI_MAX_TAPS = 16, DI_MAX_EOS = 16 };

typedef enum di_attention_mode {
    DI_ATTENTION_SWA,     /* ratio 0: window only */
    DI_ATTENTION_FULL,    /* owns compressor, index keys and an indexer */
    DI_ATTENTION_REINDEX, /* owns an indexer, scores the keys of kv_source */
    DI_ATTENTION_REUSE    /* reuses the last list of index_source */
} di_attention_mode;

typedef struct di_layer_config {
    di_attention_mode mode;
    uint32_t ratio;       /* 0, 1 or 2 (other positive ratios are refused) */
    int32_t kv_source;    /* layer, -1 for SWA */
    int32_t index_source; /* layer, -1 for SWA */
    int32_t engram;       /* index into engram_layers, -1 */
    int32_t tap;          /* index into target layers, -1 */
} di_layer_config;

typedef struct di_model_config {
    uint32_t vocab_size, hidden_size, moe_intermediate_size, num_hidden_layers, num_attention_heads, head_dim,
        qk_rope_head_dim, q_lora_rank, o_lora_rank, o_groups, n_routed_experts, n_shared_experts, num_experts_per_tok,
        sliding_window, index_n_heads, index_head_dim, index_topk, candidate_topk_blocks, candidate_block_size, hc_mult,
        hc_sinkhorn_iters, max_position_embeddings;
    int32_t candidate_source_layer; /* -1 = none */
    float swiglu_limit, rms_norm_eps, routed_scaling_factor, hc_eps, gate_temp;
    double rope_theta, compress_rope_theta, yarn_factor, yarn_beta_fast, yarn_beta_slow;
    uint32_t yarn_original_positions;
    di_layer_config layers[DI_MAX_LAYERS];
    uint32_t cut; /* first decoder layer = last kv source; num_hidden_layers if there is none */

    uint32_t engram_layer_count, engram_layers[DI_MAX_LAYERS];
    uint64_t engram_rows[DI_MAX_LAYERS]; /* table rows, by engram index */
    uint32_t engram_max_ngram, engram_n_heads, engram_head_dim, engram_vocab_size, engram_pad_id,
        engram_compressed_vocab_size;

    uint32_t draft_stages, draft_block_size, draft_markov_rank, draft_n_routed_experts, draft_num_experts_per_tok;
    int32_t draft_noise_token_id;
    uint32_t tap_count, tap_layers[DI_MAX_TAPS];

    bool has_vision;
    uint32_t vision_layers, vision_dim, vision_heads, vision_intermediate, vision_patch, vision_downsample;

    int32_t bos_token_id, pad_token_id, image_token_id; /* -1 = none */
    uint32_t eos_count;
    int32_t eos_token_ids[DI_MAX_EOS];              /* config.json and generation_config.json together */
    bool has_generation;                            /* there is a generation_config.json */
    int32_t thinking;                               /* generation_config.json "thinking": 1, 0, or -1 if absent */
    float generation_temperature, generation_top_p; /* generation_config.json; NAN if absent */
} di_model_config;

/* Reads FOLDER/config.json (else FOLDER/inference/config.json) and FOLDER/generation_config.json if there. `path` may
 * also be a config.json itself. */
di_status di_model_config_load(const char *path, di_model_config *config, di_error *error);
/* The same from text (tests, fuzzing); `name` is used in errors. */
di_status di_model_config_parse(const char *name, const char *text, size_t length, di_model_config *config,
                                di_error *error);

/* Of everything that a forward pass or the draft head computes with: all fields but the special ids, what
 * generation_config.json says and max_position_embeddings, which is a limit. The same however the file spells it. */
uint64_t di_model_config_digest(const di_model_config *config);

#endif
