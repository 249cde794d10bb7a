/* model_config.c - reads config.json (nested or flat) and generation_config.json; contract in model_config.h.
 *
 * Every number is one row of `fields`: where it stands in either file, its range and its place in di_model_config.
 */
#include "checkpoint/model_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/digest.h"
#include "base/find.h"
#include "base/json.h"
#include "checkpoint/checkpoint_internal.h"

enum { CONFIG_FILE_LIMIT = 4 << 20, PATH_LIMIT = 4096 };

typedef enum field_group { GROUP_TEXT, GROUP_ROPE, GROUP_ENGRAM, GROUP_DRAFT, GROUP_VISION } field_group;
typedef enum field_type { TYPE_U32, TYPE_I32, TYPE_F32, TYPE_F64 } field_type;

typedef struct field {
    field_group group;
    const char *name;  /* in the nested file, inside the group's object */
    const char *other; /* in the flat file; also accepted in the nested one */
    size_t offset;
    field_type type;
    double minimum, maximum;
    unsigned multiple;
    bool optional; /* absent or null: the value set by set_defaults stays */
} field;

#define AT(member) offsetof(di_model_config, member)
#define REQUIRED   false
#define OPTIONAL   true

/* clang-format off */
static const field fields[] = {
    {GROUP_TEXT, "vocab_size",              "vocab_size",          AT(vocab_size),              TYPE_U32, 2, 16777216, 1, REQUIRED},
    {GROUP_TEXT, "hidden_size",             "dim",                 AT(hidden_size),             TYPE_U32, 32, 65536, 32, REQUIRED},
    {GROUP_TEXT, "moe_intermediate_size",   "moe_inter_dim",       AT(moe_intermediate_size),   TYPE_U32, 32, 65536, 32, REQUIRED},
    {GROUP_TEXT, "num_hidden_layers",       "n_layers",            AT(num_hidden_layers),       TYPE_U32, 1, DI_MAX_LAYERS, 1, REQUIRED},
    {GROUP_TEXT, "num_attention_heads",     "n_heads",             AT(num_attention_heads),     TYPE_U32, 1, 1024, 1, REQUIRED},
    {GROUP_TEXT, "head_dim",                "head_dim",            AT(head_dim),                TYPE_U32, 32, 4096, 32, REQUIRED},
    {GROUP_TEXT, "qk_rope_head_dim",        "rope_head_dim",       AT(qk_rope_head_dim),        TYPE_U32, 2, 4096, 2, REQUIRED},
    {GROUP_TEXT, "q_lora_rank",             "q_lora_rank",         AT(q_lora_rank),             TYPE_U32, 32, 65536, 32, REQUIRED},
    {GROUP_TEXT, "o_lora_rank",             "o_lora_rank",         AT(o_lora_rank),             TYPE_U32, 1, 65536, 1, REQUIRED},
    {GROUP_TEXT, "o_groups",                "o_groups",            AT(o_groups),                TYPE_U32, 1, 1024, 1, REQUIRED},
    {GROUP_TEXT, "n_routed_experts",        "n_routed_experts",    AT(n_routed_experts),        TYPE_U32, 1, 4096, 1, REQUIRED},
    {GROUP_TEXT, "n_shared_experts",        "n_shared_experts",    AT(n_shared_experts),        TYPE_U32, 0, 4096, 1, REQUIRED},
    {GROUP_TEXT, "num_experts_per_tok",     "n_activated_experts", AT(num_experts_per_tok),     TYPE_U32, 1, 64, 1, REQUIRED},
    {GROUP_TEXT, "routed_scaling_factor",   "route_scale",         AT(routed_scaling_factor),   TYPE_F32, 1e-6, 1e6, 1, REQUIRED},
    {GROUP_TEXT, "gate_temp",               "gate_temp",           AT(gate_temp),               TYPE_F32, 1e-6, 1e6, 1, OPTIONAL},
    {GROUP_TEXT, "swiglu_limit",            "swiglu_limit",        AT(swiglu_limit),            TYPE_F32, 1e-6, 1e30, 1, REQUIRED},
    {GROUP_TEXT, "rms_norm_eps",            "norm_eps",            AT(rms_norm_eps),            TYPE_F32, 1e-37, 1, 1, REQUIRED},
    {GROUP_TEXT, "sliding_window",          "window_size",         AT(sliding_window),          TYPE_U32, 1, 65536, 1, REQUIRED},
    {GROUP_TEXT, "index_n_heads",           "index_n_heads",       AT(index_n_heads),           TYPE_U32, 1, 1024, 1, REQUIRED},
    {GROUP_TEXT, "index_head_dim",          "index_head_dim",      AT(index_head_dim),          TYPE_U32, 32, 4096, 32, REQUIRED},
    {GROUP_TEXT, "index_topk",              "index_topk",          AT(index_topk),              TYPE_U32, 1, 65536, 1, REQUIRED},
    {GROUP_TEXT, "candidate_source_layer_id", "candidate_source_layer", AT(candidate_source_layer), TYPE_I32, -1, DI_MAX_LAYERS - 1, 1, OPTIONAL},
    {GROUP_TEXT, "candidate_topk_blocks",   "candidate_topk_blocks", AT(candidate_topk_blocks), TYPE_U32, 0, 1048576, 1, OPTIONAL},
    {GROUP_TEXT, "candidate_block_size",    "candidate_block_size", AT(candidate_block_size),   TYPE_U32, 0, 65536, 1, OPTIONAL},
    {GROUP_TEXT, "hc_mult",                 "hc_mult",             AT(hc_mult),                 TYPE_U32, 1, DI_MAX_HC, 1, REQUIRED},
    {GROUP_TEXT, "hc_sinkhorn_iters",       "hc_sinkhorn_iters",   AT(hc_sinkhorn_iters),       TYPE_U32, 1, 1000, 1, REQUIRED},
    {GROUP_TEXT, "hc_eps",                  "hc_eps",              AT(hc_eps),                  TYPE_F32, 1e-30, 1, 1, REQUIRED},
    {GROUP_TEXT, "rope_theta",              "rope_theta",          AT(rope_theta),              TYPE_F64, 1.5, 1e12, 1, REQUIRED},
    {GROUP_TEXT, "compress_rope_theta",     "compress_rope_theta", AT(compress_rope_theta),     TYPE_F64, 1.5, 1e12, 1, REQUIRED},
    {GROUP_ROPE, "factor",                  "rope_factor",         AT(yarn_factor),             TYPE_F64, 1, 1e6, 1, REQUIRED},
    {GROUP_ROPE, "beta_fast",               "beta_fast",           AT(yarn_beta_fast),          TYPE_F64, 1e-6, 1e6, 1, REQUIRED},
    {GROUP_ROPE, "beta_slow",               "beta_slow",           AT(yarn_beta_slow),          TYPE_F64, 1e-6, 1e6, 1, REQUIRED},
    {GROUP_ROPE, "original_max_position_embeddings", "original_seq_len", AT(yarn_original_positions), TYPE_U32, 1, 16777216, 1, REQUIRED},
    {GROUP_TEXT, "max_position_embeddings", "max_position_embeddings", AT(max_position_embeddings), TYPE_U32, 1, 16777216, 1, OPTIONAL},
    {GROUP_ENGRAM, "engram_max_ngram_size", "engram_max_ngram_size", AT(engram_max_ngram),      TYPE_U32, 2, DI_MAX_NGRAM, 1, REQUIRED},
    {GROUP_ENGRAM, "engram_n_heads",        "engram_n_heads",      AT(engram_n_heads),          TYPE_U32, 1, 256, 1, REQUIRED},
    {GROUP_ENGRAM, "engram_head_dim",       "engram_head_dim",     AT(engram_head_dim),         TYPE_U32, 32, 4096, 32, REQUIRED},
    {GROUP_ENGRAM, "engram_vocab_size",     "engram_vocab_size",   AT(engram_vocab_size),       TYPE_U32, 2, 2147483647, 1, REQUIRED},
    {GROUP_ENGRAM, "engram_pad_token_id",   "engram_pad_id",       AT(engram_pad_id),           TYPE_U32, 0, 16777215, 1, REQUIRED},
    {GROUP_ENGRAM, "engram_compressed_vocab_size", "engram_compressed_vocab_size", AT(engram_compressed_vocab_size), TYPE_U32, 1, 16777216, 1, REQUIRED},
    {GROUP_DRAFT, "num_nextn_predict_layers", "n_mtp_layers",      AT(draft_stages),            TYPE_U32, 1, 16, 1, REQUIRED},
    {GROUP_DRAFT, "dspark_noise_token_id",  "dspark_noise_token_id", AT(draft_noise_token_id),  TYPE_I32, 0, 16777215, 1, REQUIRED},
    {GROUP_DRAFT, "dspark_markov_rank",     "dspark_markov_rank",  AT(draft_markov_rank),       TYPE_U32, 1, 65536, 1, REQUIRED},
    {GROUP_DRAFT, "dspark_n_routed_experts", "dspark_n_routed_experts", AT(draft_n_routed_experts), TYPE_U32, 1, 4096, 1, OPTIONAL},
    {GROUP_DRAFT, "dspark_num_experts_per_tok", "dspark_n_activated_experts", AT(draft_num_experts_per_tok), TYPE_U32, 1, 64, 1, OPTIONAL},
    {GROUP_VISION, "num_hidden_layers",     "vision_n_layers",     AT(vision_layers),           TYPE_U32, 1, 256, 1, REQUIRED},
    {GROUP_VISION, "hidden_size",           "vision_dim",          AT(vision_dim),              TYPE_U32, 1, 65536, 1, REQUIRED},
    {GROUP_VISION, "num_attention_heads",   "vision_n_heads",      AT(vision_heads),            TYPE_U32, 1, 1024, 1, REQUIRED},
    {GROUP_VISION, "intermediate_size",     "vision_inter_dim",    AT(vision_intermediate),     TYPE_U32, 1, 65536, 1, REQUIRED},
    {GROUP_VISION, "patch_size",            "vision_patch_size",   AT(vision_patch),            TYPE_U32, 1, 256, 1, REQUIRED},
    {GROUP_VISION, "downsample_ratio",      "vision_downsample_ratio", AT(vision_downsample),   TYPE_U32, 1, 64, 1, REQUIRED},
};

/* What the code implements; another value means another model. */
static const struct {
    const char *name, *other, *value;
} fixed_strings[] = {
    {"scoring_func", "score_func", "sqrtsoftplus"},
    {"topk_method", "topk_method", "noaux_tc"},
    {"hidden_act", "hidden_act", "silu"},
};
static const struct {
    const char *name;
    bool value;
} fixed_bools[] = {{"norm_topk_prob", true}, {"tie_word_embeddings", false}, {"attention_bias", false}};
/* clang-format on */

typedef struct reader {
    const char *name; /* of the file, for errors */
    bool flat;
    const di_json *root, *text, *rope, *vision;
    di_model_config *config;
    di_error *error;
} reader;

static bool present(const di_json *node) {
    return node && node->type != DI_JSON_NULL;
}

/* The field's path as the user finds it in the file. */
static void field_path(const reader *r, field_group group, const char *name, const char *other, char out[96]) {
    const char *prefix = group == GROUP_ROPE     ? "text_config.rope_scaling."
                         : group == GROUP_VISION ? "vision_config."
                                                 : "text_config.";
    snprintf(out, 96, "%s%s", r->flat ? "" : prefix, r->flat ? other : name);
}

static const di_json *group_object(const reader *r, field_group group) {
    if (r->flat) return r->root;
    return group == GROUP_ROPE ? r->rope : group == GROUP_VISION ? r->vision : r->text;
}

/* Value as the file spells it, shortened, for error texts. */
static void value_text(const di_json *node, char out[48]) {
    if (node->type == DI_JSON_NUMBER || node->type == DI_JSON_STRING)
        snprintf(out, 48, node->type == DI_JSON_STRING ? "\"%.40s\"" : "%.40s", node->text);
    else
        snprintf(out, 48, "%s", di_json_type_name(node->type));
}

/* Both spellings of a field may be there if they agree. */
static di_status find_field(const reader *r, field_group group, const char *name, const char *other,
                            const di_json **node) {
    const di_json *object = group_object(r, group);
    *node = di_json_get(object, name);
    /* Group objects of the nested file have their own namespace; the flat names of ROPE and VISION do not occur there,
     * and in the flat file the nested names of VISION would mean the text model. */
    if (r->flat && (group == GROUP_VISION || group == GROUP_ROPE) && strcmp(name, other) != 0) *node = NULL;
    if (strcmp(name, other) == 0) return DI_OK;
    const di_json *second = di_json_get(object, other);
    if (!present(*node)) {
        *node = second;
        return DI_OK;
    }
    double a = 0, b = 0;
    if (present(second) && !(di_json_double(*node, &a) && di_json_double(second, &b) && a == b))
        return di_fail(r->error, DI_ERR_CHECKPOINT, name, "%s: '%s' and '%s' mean the same field but differ", r->name,
                       name, other);
    return DI_OK;
}

static di_status wrong_type(const reader *r, const char *path, const di_json *node, const char *wanted) {
    char value[48];
    value_text(node, value);
    return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s is %s; it must be %s", r->name, path, value, wanted);
}

static di_status read_field(const reader *r, const field *f) {
    char path[96], value[48];
    field_path(r, f->group, f->name, f->other, path);
    const di_json *node;
    di_status status = find_field(r, f->group, f->name, f->other, &node);
    if (status != DI_OK) return status;
    if (!present(node)) {
        if (f->optional) return DI_OK;
        return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s is missing", r->name, path);
    }
    bool integral = f->type == TYPE_U32 || f->type == TYPE_I32;
    double number = 0;
    int64_t integer = 0;
    if (integral ? !di_json_int64(node, &integer) : !di_json_double(node, &number))
        return wrong_type(r, path, node, integral ? "a whole number" : "a number");
    if (integral) number = (double)integer;
    if (!(number >= f->minimum && number <= f->maximum)) {
        value_text(node, value);
        return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s is %s; it must be in %.15g .. %.15g", r->name, path,
                       value, f->minimum, f->maximum);
    }
    if (integral && f->multiple > 1 && integer % f->multiple != 0)
        return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s is %lld; it must be a multiple of %u", r->name, path,
                       (long long)integer, f->multiple);
    void *to = (char *)r->config + f->offset;
    if (f->type == TYPE_U32) {
        *(uint32_t *)to = (uint32_t)integer;
    } else if (f->type == TYPE_I32) {
        *(int32_t *)to = (int32_t)integer;
    } else if (f->type == TYPE_F32) {
        *(float *)to = (float)number;
    } else {
        *(double *)to = number;
    }
    return DI_OK;
}

static di_status read_group(const reader *r, field_group group) {
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].group != group) continue;
        di_status status = read_field(r, &fields[i]);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

/* A list of whole numbers in text_config, each in 0 .. maximum. A missing list is an empty one if `optional`. */
static di_status read_list(const reader *r, const char *name, const char *other, bool optional, uint64_t maximum,
                           uint32_t limit, uint64_t *values, uint32_t *count) {
    char path[96];
    field_path(r, GROUP_TEXT, name, other, path);
    const di_json *node = di_json_get(r->text, name), *second = di_json_get(r->text, other);
    if (!present(node)) node = second;
    *count = 0;
    if (!present(node)) {
        if (optional) return DI_OK;
        return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s is missing", r->name, path);
    }
    if (node->type != DI_JSON_ARRAY) return wrong_type(r, path, node, "a list of whole numbers");
    if (node->count > limit)
        return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s has %u entries; at most %u are possible", r->name,
                       path, node->count, limit);
    for (const di_json *item = node->first; item; item = item->next) {
        uint64_t value;
        if (!di_json_uint64(item, &value) || value > maximum) {
            char text[48];
            value_text(item, text);
            return di_fail(r->error, DI_ERR_CHECKPOINT, path,
                           "%s: %s[%u] is %s; it must be a whole number in 0 .. %llu", r->name, path, *count, text,
                           (unsigned long long)maximum);
        }
        values[(*count)++] = value;
    }
    return DI_OK;
}

static di_status read_list_u32(const reader *r, const char *name, const char *other, bool optional, uint32_t maximum,
                               uint32_t limit, uint32_t *values, uint32_t *count) {
    uint64_t wide[DI_MAX_LAYERS];
    di_status status = read_list(r, name, other, optional, maximum, limit, wide, count);
    for (uint32_t i = 0; status == DI_OK && i < *count; i++) values[i] = (uint32_t)wide[i];
    return status;
}

/* A string that must have one value if it is there. */
static di_status expect_string(const reader *r, const di_json *object, const char *path, const char *key,
                               const char *value) {
    const di_json *node = di_json_get(object, key);
    if (!present(node) || di_json_string_is(node, value)) return DI_OK;
    char text[48];
    value_text(node, text);
    return di_fail(r->error, DI_ERR_UNSUPPORTED, path, "%s: %s is %s; only \"%s\" is supported", r->name, path, text,
                   value);
}

static di_status check_fixed(const reader *r) {
    char path[96];
    for (size_t i = 0; i < sizeof fixed_strings / sizeof fixed_strings[0]; i++) {
        const char *key = di_json_get(r->text, fixed_strings[i].name) ? fixed_strings[i].name : fixed_strings[i].other;
        field_path(r, GROUP_TEXT, key, key, path);
        di_status status = expect_string(r, r->text, path, key, fixed_strings[i].value);
        if (status != DI_OK) return status;
    }
    for (size_t i = 0; i < sizeof fixed_bools / sizeof fixed_bools[0]; i++) {
        const di_json *node = di_json_get(r->text, fixed_bools[i].name);
        field_path(r, GROUP_TEXT, fixed_bools[i].name, fixed_bools[i].name, path);
        if (present(node) && node->type != (fixed_bools[i].value ? DI_JSON_TRUE : DI_JSON_FALSE))
            return di_fail(r->error, DI_ERR_UNSUPPORTED, path, "%s: %s must be %s", r->name, path,
                           fixed_bools[i].value ? "true" : "false");
    }
    field_path(r, GROUP_TEXT, "num_key_value_heads", "num_key_value_heads", path);
    const di_json *kv_heads = di_json_get(r->text, "num_key_value_heads");
    int64_t one;
    if (present(kv_heads) && (!di_json_int64(kv_heads, &one) || one != 1)) {
        char value[48];
        value_text(kv_heads, value);
        return di_fail(r->error, DI_ERR_UNSUPPORTED, path, "%s: %s is %s; only 1 is supported", r->name, path, value);
    }
    return DI_OK;
}

/* Which tensors are quantised follows from the architecture; the config may only confirm the one scheme there is. */
static di_status check_quantisation(const reader *r) {
    static const struct {
        const char *key, *path, *value;
    } strings[] = {{"quant_method", "quantization_config.quant_method", "fp8"},
                   {"activation_scheme", "quantization_config.activation_scheme", "dynamic"},
                   {"scale_fmt", "quantization_config.scale_fmt", "ue8m0"},
                   {"expert_dtype", "quantization_config.expert_dtype", "fp4"}};
    const di_json *object = r->flat ? r->root : di_json_get(r->root, "quantization_config");
    if (!r->flat && (!object || object->type != DI_JSON_OBJECT))
        return di_fail(r->error, DI_ERR_CHECKPOINT, "quantization_config",
                       "%s: quantization_config is missing; it must say quant_method fp8, activation_scheme dynamic, "
                       "weight_block_size [32, 32], scale_fmt ue8m0, expert_dtype fp4",
                       r->name);
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        const char *path = r->flat ? strings[i].key : strings[i].path;
        if (!r->flat && !present(di_json_get(object, strings[i].key)))
            return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s is missing; it must be \"%s\"", r->name, path,
                           strings[i].value);
        di_status status = expect_string(r, object, path, strings[i].key, strings[i].value);
        if (status != DI_OK) return status;
    }
    const di_json *block = di_json_get(object, "weight_block_size");
    if (r->flat && !present(block)) return DI_OK;
    int64_t rows = 0, columns = 0;
    if (!block || block->type != DI_JSON_ARRAY || block->count != 2 || !di_json_int64(block->first, &rows) ||
        !di_json_int64(block->first->next, &columns) || rows != 32 || columns != 32)
        return di_fail(r->error, DI_ERR_UNSUPPORTED, "quantization_config.weight_block_size",
                       "%s: quantization_config.weight_block_size must be [32, 32]", r->name);
    return DI_OK;
}

/* ------------------------------------------------------------------------------------------------ special ids */

static di_status check_token_id(const reader *r, const char *key, const di_json *node, int32_t *id) {
    int64_t value;
    if (!di_json_int64(node, &value) || value < 0 || value >= r->config->vocab_size) {
        char text[48];
        value_text(node, text);
        return di_fail(r->error, DI_ERR_CHECKPOINT, key, "%s: %s is %s; it must be a token id in 0 .. %u", r->name, key,
                       text, r->config->vocab_size - 1);
    }
    *id = (int32_t)value;
    return DI_OK;
}

static di_status read_token_id(const reader *r, const char *key, int32_t *id) {
    const di_json *node = di_json_get(r->root, key);
    if (!present(node)) node = di_json_get(r->text, key);
    return present(node) ? check_token_id(r, key, node, id) : DI_OK;
}

static di_status add_eos(const reader *r, const di_json *node) {
    di_model_config *config = r->config;
    int32_t id = 0;
    di_status status = check_token_id(r, "eos_token_id", node, &id);
    if (status != DI_OK) return status;
    for (uint32_t i = 0; i < config->eos_count; i++)
        if (config->eos_token_ids[i] == id) return DI_OK;
    if (config->eos_count == DI_MAX_EOS)
        return di_fail(r->error, DI_ERR_CHECKPOINT, "eos_token_id", "%s: more than %d different eos_token_id values",
                       r->name, DI_MAX_EOS);
    config->eos_token_ids[config->eos_count++] = id;
    return DI_OK;
}

/* One id or a list of ids. */
static di_status read_eos(const reader *r) {
    const di_json *node = di_json_get(r->root, "eos_token_id");
    if (!present(node)) node = di_json_get(r->text, "eos_token_id");
    if (!present(node)) return DI_OK;
    if (node->type != DI_JSON_ARRAY) return add_eos(r, node);
    for (const di_json *item = node->first; item; item = item->next) {
        di_status status = add_eos(r, item);
        if (status != DI_OK) return status;
    }
    return DI_OK;
}

static di_status read_special_ids(const reader *r) {
    di_model_config *config = r->config;
    di_status status = read_token_id(r, "bos_token_id", &config->bos_token_id);
    if (status == DI_OK) status = read_token_id(r, "pad_token_id", &config->pad_token_id);
    if (status == DI_OK) status = read_token_id(r, "image_token_id", &config->image_token_id);
    return status == DI_OK ? read_eos(r) : status;
}

/* ------------------------------------------------------------------------------------------------ whole file */

static void set_defaults(di_model_config *config) {
    memset(config, 0, sizeof *config);
    config->gate_temp = 1.0f;
    config->candidate_source_layer = -1;
    config->draft_noise_token_id = -1;
    config->bos_token_id = config->pad_token_id = config->image_token_id = -1;
    config->thinking = -1;
    config->generation_temperature = config->generation_top_p = NAN;
}

static di_status find_groups(reader *r) {
    const di_json *root = r->root;
    if (root->type != DI_JSON_OBJECT)
        return di_fail(r->error, DI_ERR_CHECKPOINT, NULL, "%s: the file holds %s; it must hold an object", r->name,
                       di_json_type_name(root->type));
    r->text = di_json_get(root, "text_config");
    r->flat = !present(r->text);
    if (r->flat && !di_json_get(root, "dim"))
        return di_fail(
            r->error, DI_ERR_CHECKPOINT, "text_config",
            "%s: neither 'text_config' (official config.json) nor 'dim' (inference config) is there; this is "
            "no DeepSeek-V4.1 configuration",
            r->name);
    if (r->flat) {
        r->text = r->rope = root;
        int64_t layers;
        const di_json *count = di_json_get(root, "vision_n_layers");
        bool none = !present(count) || (di_json_int64(count, &layers) && layers == 0);
        r->vision = none ? NULL : root;
        return DI_OK;
    }
    if (r->text->type != DI_JSON_OBJECT) return wrong_type(r, "text_config", r->text, "an object");
    r->rope = di_json_get(r->text, "rope_scaling");
    if (!present(r->rope))
        return di_fail(r->error, DI_ERR_CHECKPOINT, "text_config.rope_scaling",
                       "%s: text_config.rope_scaling is missing; it must be a YaRN object", r->name);
    if (r->rope->type != DI_JSON_OBJECT) return wrong_type(r, "text_config.rope_scaling", r->rope, "an object");
    r->vision = di_json_get(root, "vision_config");
    if (!present(r->vision)) r->vision = NULL;
    if (r->vision && r->vision->type != DI_JSON_OBJECT) return wrong_type(r, "vision_config", r->vision, "an object");
    return DI_OK;
}

static di_status check_model_type(const reader *r) {
    if (r->flat) return DI_OK;
    di_status status = expect_string(r, r->root, "model_type", "model_type", "deepseek_v41");
    if (status == DI_OK)
        status = expect_string(r, r->text, "text_config.model_type", "model_type", "deepseek_v41_text");
    const char *key = di_json_get(r->rope, "rope_type") ? "rope_type" : "type";
    if (status == DI_OK && !present(di_json_get(r->rope, key)))
        return di_fail(r->error, DI_ERR_CHECKPOINT, "text_config.rope_scaling.rope_type",
                       "%s: text_config.rope_scaling.rope_type is missing; it must be \"yarn\"", r->name);
    return status == DI_OK ? expect_string(r, r->rope, "text_config.rope_scaling.rope_type", key, "yarn") : status;
}

/* The draft head is there if and only if dspark_block_size > 0. */
static di_status read_draft(const reader *r) {
    static const field block = {
        GROUP_TEXT, "dspark_block_size", "dspark_block_size", AT(draft_block_size), TYPE_U32, 0, 64, 1, OPTIONAL};
    di_model_config *config = r->config;
    di_status status = read_field(r, &block);
    if (status != DI_OK || config->draft_block_size == 0) return status;
    config->draft_n_routed_experts = config->n_routed_experts;
    config->draft_num_experts_per_tok = config->num_experts_per_tok;
    status = read_group(r, GROUP_DRAFT);
    if (status != DI_OK) return status;
    return read_list_u32(r, "dspark_target_layer_ids", "dspark_target_layer_ids", false, DI_MAX_LAYERS - 1, DI_MAX_TAPS,
                         config->tap_layers, &config->tap_count);
}

static di_status read_engram(const reader *r) {
    di_model_config *config = r->config;
    di_status status = read_list_u32(r, "engram_layer_ids", "engram_layer_ids", true, DI_MAX_LAYERS - 1, DI_MAX_LAYERS,
                                     config->engram_layers, &config->engram_layer_count);
    if (status != DI_OK || config->engram_layer_count == 0) return status;
    status = read_group(r, GROUP_ENGRAM);
    if (status != DI_OK) return status;
    uint32_t count;
    status = read_list(r, "engram_num_embeddings", "engram_num_embeddings", false, (uint64_t)1 << 40, DI_MAX_LAYERS,
                       config->engram_rows, &count);
    if (status == DI_OK && count != config->engram_layer_count) {
        char path[96];
        field_path(r, GROUP_TEXT, "engram_num_embeddings", "engram_num_embeddings", path);
        return di_fail(r->error, DI_ERR_CHECKPOINT, path, "%s: %s has %u entries; engram_layer_ids has %u", r->name,
                       path, count, config->engram_layer_count);
    }
    return status;
}

static di_status read_layers(const reader *r, di_layer_lists *lists) {
    di_status status = read_list_u32(r, "compress_ratios", "compress_ratios", false, 1u << 20, DI_MAX_LAYERS,
                                     lists->ratios, &lists->ratio_count);
    if (status == DI_OK)
        status = read_list_u32(r, "kv_source_layer_ids", "kv_source_layers", false, DI_MAX_LAYERS - 1, DI_MAX_LAYERS,
                               lists->kv_sources, &lists->kv_count);
    if (status == DI_OK)
        status = read_list_u32(r, "index_source_layer_ids", "index_source_layers", false, DI_MAX_LAYERS - 1,
                               DI_MAX_LAYERS, lists->index_sources, &lists->index_count);
    return status;
}

static di_status read_root(reader *r) {
    di_model_config *config = r->config;
    di_layer_lists lists = {0};
    di_status status = find_groups(r);
    if (status == DI_OK) status = check_model_type(r);
    if (status == DI_OK) status = check_quantisation(r);
    if (status == DI_OK) status = check_fixed(r);
    if (status == DI_OK) status = read_group(r, GROUP_TEXT);
    if (status == DI_OK) status = read_group(r, GROUP_ROPE);
    if (status == DI_OK) status = read_layers(r, &lists);
    if (status == DI_OK) status = read_engram(r);
    if (status == DI_OK) status = read_draft(r);
    if (status == DI_OK) status = read_special_ids(r);
    if (status != DI_OK) return status;
    if (r->vision) {
        config->has_vision = true;
        status = read_group(r, GROUP_VISION);
        if (status != DI_OK) return status;
    }
    if (config->max_position_embeddings == 0) { /* the flat file has no such field */
        double positions = config->yarn_factor * config->yarn_original_positions;
        config->max_position_embeddings = positions > 16777216.0 ? 16777216u : (uint32_t)positions;
    }
    return di_model_config_derive(r->name, &lists, config, r->error);
}

di_status di_model_config_parse(const char *name, const char *text, size_t length, di_model_config *config,
                                di_error *error) {
    set_defaults(config);
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", name);
    reader r = {.name = name, .config = config, .error = error};
    di_error syntax = {0};
    di_status status = di_json_parse(arena, text, length, 32, &r.root, &syntax);
    status = status == DI_OK ? read_root(&r) : di_fail(error, status, NULL, "%s: %s", name, syntax.message);
    di_arena_free(arena);
    return status;
}

/* ------------------------------------------------------------------------------------------------ files */

/* A number of generation_config.json in minimum .. maximum; absent or null leaves *value alone. */
static di_status read_sampling(const reader *r, const char *key, double minimum, double maximum, float *value) {
    const di_json *node = di_json_get(r->root, key);
    double number;
    if (!present(node)) return DI_OK;
    if (!di_json_double(node, &number) || number < minimum || number > maximum) {
        char text[48];
        value_text(node, text);
        return di_fail(r->error, DI_ERR_CHECKPOINT, key, "%s: %s is %s; it must be a number in %g .. %g", r->name, key,
                       text, minimum, maximum);
    }
    *value = (float)number;
    return DI_OK;
}

static di_status read_generation(const reader *r) {
    di_model_config *config = r->config;
    if (r->root->type != DI_JSON_OBJECT)
        return di_fail(r->error, DI_ERR_CHECKPOINT, NULL, "%s: the file holds %s; it must hold an object", r->name,
                       di_json_type_name(r->root->type));
    di_status status = read_eos(r);
    if (status == DI_OK && config->bos_token_id < 0) status = read_token_id(r, "bos_token_id", &config->bos_token_id);
    const di_json *thinking = di_json_get(r->root, "thinking");
    if (status == DI_OK && present(thinking)) {
        if (thinking->type != DI_JSON_TRUE && thinking->type != DI_JSON_FALSE)
            return wrong_type(r, "thinking", thinking, "true or false");
        config->thinking = thinking->type == DI_JSON_TRUE;
    }
    if (status == DI_OK) status = read_sampling(r, "temperature", 0, 1e6, &config->generation_temperature);
    if (status == DI_OK) status = read_sampling(r, "top_p", 0, 1, &config->generation_top_p);
    return status;
}

static di_status load_generation(const char *path, di_model_config *config, di_error *error) {
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", path);
    reader r = {.name = path, .config = config, .error = error};
    di_status status = di_json_parse_file(arena, path, CONFIG_FILE_LIMIT, 32, &r.root, error);
    r.text = r.root;
    if (status == DI_OK) status = read_generation(&r);
    di_arena_free(arena);
    return status;
}

/* config.json of a folder, in one of two places; or `path` itself. */
static di_status find_config(const char *path, bool folder, char file[PATH_LIMIT], di_error *error) {
    bool found;
    snprintf(file, PATH_LIMIT, folder ? "%s/config.json" : "%s", path);
    di_status status = di_find_file(file, &found, error);
    if (status != DI_OK || found) return status;
    if (!folder)
        return di_fail(error, DI_ERR_NOT_FOUND, "model", "%s is neither a model folder nor a config.json", path);
    snprintf(file, PATH_LIMIT, "%s/inference/config.json", path);
    status = di_find_file(file, &found, error);
    if (status != DI_OK || found) return status;
    return di_fail(error, DI_ERR_NOT_FOUND, "model",
                   "%s holds neither config.json nor inference/config.json; a model folder has one", path);
}

di_status di_model_config_load(const char *path, di_model_config *config, di_error *error) {
    char file[PATH_LIMIT];
    struct stat info;
    set_defaults(config);
    if (strlen(path) > sizeof file - 64)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "model", "the model's path is longer than %zu bytes",
                       sizeof file - 64);
    bool folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    di_status status = find_config(path, folder, file, error);
    if (status != DI_OK) return status;
    char *text;
    size_t length;
    status = (di_status)di_read_file(file, CONFIG_FILE_LIMIT, &text, &length, error);
    if (status != DI_OK) return status;
    status = di_model_config_parse(file, text, length, config, error);
    free(text);
    if (status != DI_OK || !folder) return status;
    snprintf(file, sizeof file, "%s/generation_config.json", path);
    status = di_find_file(file, &config->has_generation, error);
    return status == DI_OK && config->has_generation ? load_generation(file, config, error) : status;
}

/* ------------------------------------------------------------------------------------------------ digest */

/* Whole numbers below 2^53 and floats are doubles without loss. */
static double field_value(const di_model_config *config, const field *f) {
    const void *at = (const char *)config + f->offset;
    switch (f->type) {
    case TYPE_U32:
        return *(const uint32_t *)at;
    case TYPE_I32:
        return *(const int32_t *)at;
    case TYPE_F32:
        return (double)*(const float *)at;
    default:
        return *(const double *)at;
    }
}

static uint64_t digest_list(uint64_t digest, const uint32_t *values, uint32_t count) {
    digest = di_digest_u64(digest, count);
    for (uint32_t i = 0; i < count; i++) digest = di_digest_u64(digest, values[i]);
    return digest;
}

uint64_t di_model_config_digest(const di_model_config *config) {
    uint64_t digest = 0;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (fields[i].offset == AT(max_position_embeddings)) continue;
        digest = di_digest_text(digest, fields[i].name);
        digest = di_digest_double(digest, field_value(config, &fields[i]));
    }
    for (uint32_t i = 0; i < config->num_hidden_layers; i++) {
        const di_layer_config *layer = &config->layers[i];
        const int32_t row[] = {(int32_t)layer->mode, (int32_t)layer->ratio, layer->kv_source,
                               layer->index_source,  layer->engram,         layer->tap};
        for (size_t k = 0; k < sizeof row / sizeof row[0]; k++) digest = di_digest_u64(digest, (uint32_t)row[k]);
    }
    digest = di_digest_u64(digest, config->cut);
    digest = digest_list(digest, config->engram_layers, config->engram_layer_count);
    for (uint32_t i = 0; i < config->engram_layer_count; i++) digest = di_digest_u64(digest, config->engram_rows[i]);
    digest = di_digest_u64(digest, config->draft_block_size);
    digest = digest_list(digest, config->tap_layers, config->tap_count);
    return di_digest_u64(digest, config->has_vision);
}
