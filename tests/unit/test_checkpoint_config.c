/* needs: checkpoint tensor base */
/* Model configs: what the official files mean, and one broken config for every property that is checked. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "checkpoint/model_config.h"
#include "support/folder.h"

static char *nano; /* config.json of nano */
static size_t nano_length;

static int setup(void **state) {
    (void)state;
    di_folder folder = {DI_TEST_DATA "/nano"};
    nano = di_folder_read(&folder, "config.json", &nano_length);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    free(nano);
    return 0;
}

static di_status parse(const char *text, di_model_config *config, di_error *error) {
    memset(error, 0, sizeof *error);
    return di_model_config_parse("config.json", text, strlen(text), config, error);
}

/* nano's config with the member "key" set to `value`; a missing member is put into text_config. Lists span lines. */
static char *with(const char *text, const char *key, const char *value) {
    char quoted[96];
    snprintf(quoted, sizeof quoted, "\"%s\":", key);
    const char *at = strstr(text, quoted), *end;
    char *out = malloc(strlen(text) + strlen(key) + strlen(value) + 64);
    if (!at) {
        const char *inside = strstr(text, "\"text_config\": {") + strlen("\"text_config\": {");
        sprintf(out, "%.*s\"%s\": %s,%s", (int)(inside - text), text, key, value, inside);
        return out;
    }
    const char *start = at + strlen(quoted) + 1;
    int depth = 0;
    for (end = start; depth > 0 || (*end != ',' && *end != '\n' && *end != '}'); end++) {
        depth += *end == '[' || *end == '{';
        depth -= *end == ']' || *end == '}';
    }
    sprintf(out, "%.*s%s%s", (int)(start - text), text, value, end);
    return out;
}

/* The same in vision_config, whose names text_config has too. */
static char *with_vision(const char *text, const char *key, const char *value) {
    const char *vision = strstr(text, "\"vision_config\"");
    char *tail = with(vision, key, value);
    char *out = malloc((size_t)(vision - text) + strlen(tail) + 1);
    sprintf(out, "%.*s%s", (int)(vision - text), text, tail);
    free(tail);
    return out;
}

static void expect_text(char *text, di_status status, const char *key, const char *needle) {
    di_model_config config;
    di_error error;
    di_status got = parse(text, &config, &error);
    if (got != status || !strstr(error.message, needle) || !strstr(error.message, key) ||
        !strstr(error.message, "config.json"))
        fail_msg("%s: status %d (%s), wanted %d and \"%s\"", key, got, error.message, status, needle);
    if (!strstr(error.param, key)) fail_msg("param is \"%s\", wanted \"%s\"", error.param, key);
    free(text);
}

/* key = value must be refused with a message that names the field and contains `needle`. */
static void expect(const char *key, const char *value, const char *needle) {
    expect_text(with(nano, key, value), DI_ERR_CHECKPOINT, key, needle);
}

static void expect_unsupported(const char *key, const char *value, const char *needle) {
    expect_text(with(nano, key, value), DI_ERR_UNSUPPORTED, key, needle);
}

static void expect_vision(const char *key, const char *value, const char *needle) {
    expect_text(with_vision(nano, key, value), DI_ERR_CHECKPOINT, key, needle);
}

static void accept(const char *key, const char *value) {
    char *text = with(nano, key, value);
    di_model_config config;
    di_error error;
    if (parse(text, &config, &error) != DI_OK) fail_msg("%s = %s is refused: %s", key, value, error.message);
    free(text);
}

/* ------------------------------------------------------------------------------------------------ good files */

static void reads_nano(void **state) {
    (void)state;
    di_model_config c;
    di_error error = {0};
    assert_int_equal(di_model_config_load(DI_TEST_DATA "/nano", &c, &error), DI_OK);
    assert_int_equal(c.hidden_size, 128);
    assert_int_equal(c.cut, 5);
    static const di_attention_mode modes[10] = {
        DI_ATTENTION_SWA,  DI_ATTENTION_SWA,   DI_ATTENTION_FULL,    DI_ATTENTION_REUSE, DI_ATTENTION_FULL,
        DI_ATTENTION_FULL, DI_ATTENTION_REUSE, DI_ATTENTION_REINDEX, DI_ATTENTION_REUSE, DI_ATTENTION_REINDEX};
    static const int32_t kv[10] = {-1, -1, 2, 2, 4, 5, 5, 5, 5, 5}, index[10] = {-1, -1, 2, 2, 4, 5, 5, 7, 7, 9};
    static const int32_t engram[10] = {-1, 0, -1, -1, 1, -1, -1, -1, -1, -1};
    static const int32_t tap[10] = {-1, -1, -1, -1, -1, -1, -1, 0, 1, 2};
    for (int i = 0; i < 10; i++) {
        assert_int_equal(c.layers[i].mode, modes[i]);
        assert_int_equal(c.layers[i].kv_source, kv[i]);
        assert_int_equal(c.layers[i].index_source, index[i]);
        assert_int_equal(c.layers[i].engram, engram[i]);
        assert_int_equal(c.layers[i].tap, tap[i]);
    }
    assert_true(c.rms_norm_eps == 1e-20f && c.yarn_factor == 16 && c.gate_temp == 1.0f);
    assert_int_equal(c.engram_rows[1], 864);
    assert_int_equal(c.engram_pad_id, 2);
    assert_int_equal(c.eos_count, 1);
    assert_int_equal(c.eos_token_ids[0], 1);
    assert_int_equal(c.thinking, -1);
    assert_true(c.generation_top_p == 0.95f);
    assert_int_equal(c.draft_stages, 3);
    assert_true(c.has_vision && c.vision_dim == 32);
}

static void reads_the_release(void **state) {
    (void)state;
    di_model_config c;
    di_error error = {0};
    assert_int_equal(di_model_config_load(DI_TEST_DATA "/release/config.json", &c, &error), DI_OK);
    uint32_t modes[4] = {0};
    for (uint32_t i = 0; i < c.num_hidden_layers; i++) modes[c.layers[i].mode]++;
    assert_int_equal(modes[DI_ATTENTION_SWA], 2);
    assert_int_equal(modes[DI_ATTENTION_FULL], 4);
    assert_int_equal(modes[DI_ATTENTION_REINDEX], 4);
    assert_int_equal(modes[DI_ATTENTION_REUSE], 30);
    assert_int_equal(c.cut, 20);
    assert_int_equal(c.engram_rows[0], 384006168);
    assert_true(isnan(c.generation_temperature));
}

/* The flat inference config of nano: other names, same dimensions. */
static const char flat[] =
    "{\"vocab_size\": 704, \"dim\": 128, \"moe_inter_dim\": 64, \"n_layers\": 10, \"n_heads\": 4, \"head_dim\": 64,"
    "\"rope_head_dim\": 16, \"q_lora_rank\": 64, \"o_lora_rank\": 32, \"o_groups\": 2, \"swiglu_limit\": 2.0,"
    "\"norm_eps\": 1e-20, \"rope_theta\": 10000, \"rope_factor\": 16, \"beta_fast\": 32, \"beta_slow\": 1,"
    "\"original_seq_len\": 65536, \"n_routed_experts\": 16, \"n_shared_experts\": 1, \"n_activated_experts\": 3,"
    "\"score_func\": \"sqrtsoftplus\", \"route_scale\": 1.5, \"window_size\": 16,"
    "\"compress_ratios\": [0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 0, 0], \"compress_rope_theta\": 160000,"
    "\"kv_source_layers\": [2, 4, 5], \"index_source_layers\": [2, 4, 5, 7, 9], \"index_n_heads\": 4,"
    "\"index_head_dim\": 64, \"index_topk\": 8, \"candidate_source_layer\": 5, \"candidate_topk_blocks\": 6,"
    "\"candidate_block_size\": 4, \"hc_mult\": 4, \"hc_sinkhorn_iters\": 20, \"hc_eps\": 1e-06,"
    "\"engram_layer_ids\": [1, 4], \"engram_num_embeddings\": [660, 864], \"engram_max_ngram_size\": 4,"
    "\"engram_vocab_size\": 100, \"engram_n_heads\": 2, \"engram_head_dim\": 32, \"engram_pad_id\": 2,"
    "\"engram_compressed_vocab_size\": 591, \"n_mtp_layers\": 3, \"dspark_block_size\": 5,"
    "\"dspark_noise_token_id\": 642, \"dspark_target_layer_ids\": [7, 8, 9], \"dspark_markov_rank\": 32,"
    "\"dspark_n_routed_experts\": 4, \"dspark_n_activated_experts\": 2, \"vision_n_layers\": 2, \"vision_dim\": 32,"
    "\"vision_n_heads\": 2, \"vision_inter_dim\": 48, \"vision_patch_size\": 4, \"vision_downsample_ratio\": 3,"
    "\"vision_max_n_token\": 32, \"image_token_id\": 694, \"bos_token_id\": 0, \"eos_token_id\": 1,"
    "\"pad_token_id\": 2}";

static void flat_file_means_the_same(void **state) {
    (void)state;
    static di_model_config a, b;
    di_error error;
    assert_int_equal(parse(nano, &a, &error), DI_OK);
    if (parse(flat, &b, &error) != DI_OK) fail_msg("%s", error.message);
    a.generation_temperature = a.generation_top_p = b.generation_temperature = b.generation_top_p = 0;
    assert_memory_equal(&a, &b, sizeof a);
}

static void accepts_other_models(void **state) {
    (void)state;
    accept("hc_mult", "2");
    accept("hidden_size", "160");
    accept("sliding_window", "7");
    accept("candidate_source_layer_id", "-1");
    accept("candidate_source_layer_id", "null");
    accept("candidate_source_layer_id", "7");
    accept("engram_layer_ids", "[]");
    accept("dspark_block_size", "0");
    accept("eos_token_id", "[1, 5, 1]");
    accept("max_position_embeddings", "4096");
    accept("rope_theta", "10000.0");
    accept("some_new_key", "{\"a\": [1, 2]}");
    char *text = with(nano, "kv_source_layer_ids", "[]"); /* windows only */
    char *next = with(text, "index_source_layer_ids", "[]");
    free(text);
    text = with(next, "compress_ratios", "[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]");
    free(next);
    next = with(text, "candidate_source_layer_id", "-1");
    free(text);
    di_model_config config;
    di_error error;
    if (parse(next, &config, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(config.cut, 10);
    free(next);
}

static void either_name_of_the_pad_id(void **state) {
    (void)state;
    char *renamed = malloc(nano_length + 64), *at;
    strcpy(renamed, nano);
    at = strstr(renamed, "engram_pad_token_id");
    memmove(at + strlen("engram_pad_id"), at + strlen("engram_pad_token_id"),
            strlen(at + strlen("engram_pad_token_id")) + 1);
    memcpy(at, "engram_pad_id", strlen("engram_pad_id"));
    di_model_config config;
    di_error error;
    assert_int_equal(parse(renamed, &config, &error), DI_OK);
    assert_int_equal(config.engram_pad_id, 2);
    free(renamed);
    expect_text(with(nano, "engram_pad_id", "3"), DI_ERR_CHECKPOINT, "engram_pad_token_id", "differ");
}

/* ------------------------------------------------------------------------------------------------ bad fields */

static void refuses_missing_fields(void **state) {
    (void)state;
    static const char *const names[] = {"vocab_size",
                                        "hidden_size",
                                        "moe_intermediate_size",
                                        "num_hidden_layers",
                                        "head_dim",
                                        "num_attention_heads",
                                        "qk_rope_head_dim",
                                        "q_lora_rank",
                                        "o_lora_rank",
                                        "o_groups",
                                        "n_routed_experts",
                                        "n_shared_experts",
                                        "swiglu_limit",
                                        "num_experts_per_tok",
                                        "routed_scaling_factor",
                                        "rms_norm_eps",
                                        "sliding_window",
                                        "index_n_heads",
                                        "index_head_dim",
                                        "index_topk",
                                        "hc_mult",
                                        "hc_sinkhorn_iters",
                                        "hc_eps",
                                        "rope_theta",
                                        "compress_rope_theta",
                                        "factor",
                                        "beta_fast",
                                        "beta_slow",
                                        "original_max_position_embeddings",
                                        "compress_ratios",
                                        "kv_source_layer_ids",
                                        "index_source_layer_ids",
                                        "engram_num_embeddings",
                                        "engram_max_ngram_size",
                                        "engram_n_heads",
                                        "engram_head_dim",
                                        "engram_vocab_size",
                                        "engram_pad_token_id",
                                        "engram_compressed_vocab_size",
                                        "num_nextn_predict_layers",
                                        "dspark_noise_token_id",
                                        "dspark_markov_rank",
                                        "dspark_target_layer_ids",
                                        "quant_method",
                                        "activation_scheme",
                                        "scale_fmt",
                                        "expert_dtype",
                                        "rope_type"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) expect(names[i], "null", "is missing");
    static const char *const vision[] = {"num_hidden_layers", "hidden_size", "num_attention_heads",
                                         "intermediate_size", "patch_size",  "downsample_ratio"};
    for (size_t i = 0; i < sizeof vision / sizeof vision[0]; i++) expect_vision(vision[i], "null", "is missing");
    expect("image_token_id", "null", "missing");
}

static void refuses_wrong_types(void **state) {
    (void)state;
    expect("hidden_size", "\"128\"", "whole number");
    expect("hidden_size", "128.5", "whole number");
    expect("rope_theta", "true", "a number");
    expect("compress_ratios", "2", "a list");
    expect("compress_ratios", "[0, 0, 2.5]", "compress_ratios[2]");
    expect("kv_source_layer_ids", "[-2]", "kv_source_layer_ids[0]");
    expect("rope_scaling", "[1]", "must be an object");
    expect("rope_scaling", "null", "is missing");
    expect("vision_config", "7", "must be an object");
    expect("text_config", "\"x\"", "must be an object");
    expect("quantization_config", "null", "is missing");
}

static void refuses_values_out_of_range(void **state) {
    (void)state;
    expect("vocab_size", "0", "it must be in 2 .. 16777216");
    expect("vocab_size", "99999999999999999999", "whole number");
    expect("hidden_size", "0", "must be in 32 .. 65536");
    expect("hidden_size", "-128", "must be in");
    expect("hidden_size", "100", "multiple of 32");
    expect("moe_intermediate_size", "72", "multiple of 32");
    expect("num_hidden_layers", "257", "must be in 1 .. 256");
    expect("num_attention_heads", "0", "must be in");
    expect("head_dim", "48", "multiple of 32");
    expect("qk_rope_head_dim", "15", "multiple of 2");
    expect("q_lora_rank", "33", "multiple of 32");
    expect("o_lora_rank", "0", "must be in");
    expect("o_groups", "0", "must be in");
    expect("n_routed_experts", "0", "must be in");
    expect("num_experts_per_tok", "0", "must be in");
    expect("routed_scaling_factor", "0", "must be in");
    expect("gate_temp", "0", "must be in");
    expect("swiglu_limit", "-1", "must be in");
    expect("rms_norm_eps", "0", "must be in");
    expect("rms_norm_eps", "1e-60", "must be in");
    expect("sliding_window", "0", "must be in");
    expect("index_n_heads", "0", "must be in");
    expect("index_head_dim", "16", "must be in");
    expect("index_topk", "0", "must be in");
    expect("candidate_source_layer_id", "-2", "must be in");
    expect("hc_mult", "0", "must be in 1 .. 8");
    expect("hc_mult", "9", "must be in 1 .. 8");
    expect("hc_sinkhorn_iters", "0", "must be in");
    expect("hc_eps", "2", "must be in");
    expect("rope_theta", "1", "must be in");
    expect("compress_rope_theta", "0", "must be in");
    expect("factor", "0.5", "must be in");
    expect("beta_slow", "0", "must be in");
    expect("original_max_position_embeddings", "0", "must be in");
    expect("max_position_embeddings", "0", "must be in");
    expect("engram_max_ngram_size", "1", "must be in");
    expect("engram_max_ngram_size", "9", "must be in");
    expect("engram_n_heads", "0", "must be in");
    expect("engram_head_dim", "40", "multiple of 32");
    expect("engram_vocab_size", "1", "must be in");
    expect("engram_num_embeddings", "[660, 0]", "at least 1");
    expect("dspark_block_size", "65", "must be in");
    expect("dspark_markov_rank", "0", "must be in");
    expect("num_nextn_predict_layers", "0", "must be in");
    expect_vision("num_hidden_layers", "0", "must be in");
    expect_vision("patch_size", "0", "must be in");
    expect("bos_token_id", "704", "token id in 0 .. 703");
    expect("eos_token_id", "-1", "token id");
    expect("eos_token_id", "[0, 704]", "token id");
    expect("eos_token_id", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "more than 16");
    expect("pad_token_id", "\"2\"", "token id");
    expect("image_token_id", "70400", "token id");
}

static void refuses_broken_relations(void **state) {
    (void)state;
    expect("qk_rope_head_dim", "66", "at most head_dim (64) and index_head_dim (64)");
    char *text = with(nano, "index_head_dim", "32");
    char *next = with(text, "qk_rope_head_dim", "34");
    free(text);
    expect_text(next, DI_ERR_CHECKPOINT, "qk_rope_head_dim", "index_head_dim (32)");
    expect("o_groups", "3", "must divide num_attention_heads (4)");
    expect("o_lora_rank", "8", "multiple of 32");
    expect("num_experts_per_tok", "17", "at most n_routed_experts (16)");
    expect("beta_fast", "1", "above beta_slow");
    expect("compress_ratios", "[0, 0, 2]", "has 3 entries");
    expect("kv_source_layer_ids", "[4, 2, 5]", "strictly ascending");
    expect("kv_source_layer_ids", "[2, 2, 5]", "strictly ascending");
    expect("kv_source_layer_ids", "[2, 4, 10]", "num_hidden_layers is 10");
    expect("index_source_layer_ids", "[2, 5, 4, 7, 9]", "strictly ascending");
    expect("index_source_layer_ids", "[2, 4, 5, 7, 12]", "num_hidden_layers is 10");
    expect("index_source_layer_ids", "[2, 5, 7, 9]", "lacks layer 4");
    expect("index_source_layer_ids", "[1, 2, 4, 5, 7, 9]", "compress_ratios says 0");
    text = with(nano, "index_source_layer_ids", "[4, 5, 7, 9]");
    expect_text(with(text, "kv_source_layer_ids", "[4, 5]"), DI_ERR_CHECKPOINT, "kv_source_layer_ids",
                "layer 2 has compress_ratios 2");
    free(text);
    expect("compress_ratios", "[0, 0, 2, 1, 2, 1, 1, 1, 1, 1]", "reads the cache of layer 2");
    expect("candidate_source_layer_id", "4", "one of index_source_layer_ids from the last");
    expect("candidate_source_layer_id", "6", "one of index_source_layer_ids from the last");
    expect("candidate_source_layer_id", "8", "one of index_source_layer_ids from the last");
    expect("candidate_topk_blocks", "0", "at least 1");
    expect("candidate_block_size", "0", "at least 1");
    expect("engram_layer_ids", "[4, 1]", "strictly ascending");
    expect("engram_layer_ids", "[1, 5]", "before the last key-value source");
    expect("engram_layer_ids", "[1, 99]", "num_hidden_layers is 10");
    expect("engram_num_embeddings", "[660]", "engram_layer_ids has 2");
    expect("engram_pad_token_id", "704", "vocab_size is 704");
    expect("engram_compressed_vocab_size", "705", "at most vocab_size");
    text = with(nano, "engram_n_heads", "256");
    expect_text(with(text, "engram_head_dim", "4096"), DI_ERR_CHECKPOINT, "engram_n_heads", "at most 1048576");
    free(text);
    expect("dspark_target_layer_ids", "[]", "is empty");
    expect("dspark_target_layer_ids", "[9, 8]", "strictly ascending");
    expect("dspark_target_layer_ids", "[10]", "num_hidden_layers is 10");
    expect("dspark_num_experts_per_tok", "5", "at most dspark_n_routed_experts (4)");
    expect("dspark_noise_token_id", "704", "vocab_size is 704");
    expect_vision("num_attention_heads", "3", "multiple of 4");
    expect_vision("num_attention_heads", "16", "multiple of 4");
}

static void refuses_other_architectures(void **state) {
    (void)state;
    expect_unsupported("model_type", "\"deepseek_v4\"", "deepseek_v41");
    expect_unsupported("n_shared_experts", "2", "exactly 1");
    expect_unsupported("n_shared_experts", "0", "exactly 1");
    expect_unsupported("scoring_func", "\"sigmoid\"", "sqrtsoftplus");
    expect_unsupported("topk_method", "\"greedy\"", "noaux_tc");
    expect_unsupported("hidden_act", "\"gelu\"", "silu");
    expect_unsupported("norm_topk_prob", "false", "true");
    expect_unsupported("tie_word_embeddings", "true", "false");
    expect_unsupported("attention_bias", "true", "false");
    expect_unsupported("num_key_value_heads", "2", "only 1");
    expect_unsupported("rope_type", "\"linear\"", "yarn");
    expect_unsupported("quant_method", "\"awq\"", "fp8");
    expect_unsupported("activation_scheme", "\"static\"", "dynamic");
    expect_unsupported("scale_fmt", "\"float\"", "ue8m0");
    expect_unsupported("expert_dtype", "\"fp8\"", "fp4");
    expect_unsupported("weight_block_size", "[128, 128]", "[32, 32]");
    expect_unsupported("weight_block_size", "32", "[32, 32]");
    expect_unsupported("compress_ratios", "[0, 0, 4, 4, 4, 1, 1, 1, 1, 1]", "only 0, 1 and 2");
    expect_unsupported("compress_ratios", "[0, 0, 2, 2, 2, 1, 1, 1, 1, 1, 0, 2, 0]", "draft stage");
    expect_unsupported("dspark_target_layer_ids", "[4, 8, 9]", "engram_layer_ids");
}

static void refuses_what_is_no_config(void **state) {
    (void)state;
    di_model_config config;
    di_error error;
    assert_int_equal(parse("", &config, &error), DI_ERR_FORMAT);
    assert_int_equal(parse("{\"text_config\": ", &config, &error), DI_ERR_FORMAT);
    assert_non_null(strstr(error.message, "config.json"));
    assert_int_equal(parse("[1, 2]", &config, &error), DI_ERR_CHECKPOINT);
    assert_int_equal(parse("{\"hidden_size\": 4096}", &config, &error), DI_ERR_CHECKPOINT);
    assert_non_null(strstr(error.message, "no DeepSeek-V4.1"));
    assert_int_equal(di_model_config_load("/nonexistent", &config, &error), DI_ERR_NOT_FOUND);
    assert_int_equal(di_model_config_load(DI_TEST_DATA, &config, &error), DI_ERR_NOT_FOUND);
    assert_non_null(strstr(error.message, "inference/config.json"));
}

/* Cut anywhere, a config is refused, and nothing beyond the cut is read. */
static void refuses_every_cut(void **state) {
    (void)state;
    for (size_t n = 0; n < nano_length - 2; n += 7) {
        char *text = malloc(n + 1);
        memcpy(text, nano, n);
        di_model_config config;
        di_error error;
        assert_int_equal(di_model_config_parse("cut", text, n, &config, &error), DI_ERR_FORMAT);
        free(text);
    }
}

/* ------------------------------------------------------------------------------------------------ folders */

static void load_folder(const di_folder *folder, di_status status, const char *needle, di_model_config *config) {
    di_error error = {0};
    di_status got = di_model_config_load(folder->path, config, &error);
    if (got != status || (needle && !strstr(error.message, needle)))
        fail_msg("status %d (%s), wanted %d and \"%s\"", got, error.message, status, needle ? needle : "");
}

static void write_generation(const di_folder *folder, const char *text) {
    di_folder_write(folder, "generation_config.json", text, strlen(text));
}

static void reads_generation_config(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NULL);
    di_model_config c;
    di_folder_write(&folder, "config.json", nano, nano_length);
    load_folder(&folder, DI_OK, NULL, &c);
    assert_int_equal(c.thinking, -1);
    assert_int_equal(c.eos_count, 1);
    write_generation(&folder,
                     "{\"eos_token_id\": [1, 640], \"thinking\": true, \"temperature\": 0.5, \"top_p\": null}");
    load_folder(&folder, DI_OK, NULL, &c);
    assert_int_equal(c.eos_count, 2);
    assert_int_equal(c.eos_token_ids[1], 640);
    assert_int_equal(c.thinking, 1);
    assert_true(c.generation_temperature == 0.5f && isnan(c.generation_top_p));
    write_generation(&folder, "{\"thinking\": \"yes\"}");
    load_folder(&folder, DI_ERR_CHECKPOINT, "generation_config.json: thinking", &c);
    write_generation(&folder, "{\"eos_token_id\": 704}");
    load_folder(&folder, DI_ERR_CHECKPOINT, "eos_token_id is 704", &c);
    write_generation(&folder, "{\"temperature\": -1}");
    load_folder(&folder, DI_ERR_CHECKPOINT, "temperature is -1", &c);
    write_generation(&folder, "{\"top_p\": 1.5}");
    load_folder(&folder, DI_ERR_CHECKPOINT, "top_p is 1.5", &c);
    write_generation(&folder, "[]");
    load_folder(&folder, DI_ERR_CHECKPOINT, "must hold an object", &c);
    write_generation(&folder, "{");
    load_folder(&folder, DI_ERR_FORMAT, "generation_config.json", &c);
    di_folder_delete(&folder);
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "generation_config.json"};
    for (size_t i = 0; i < 2; i++)
        for (int kind = 0; kind < 3; kind++) {
            char path[DI_FOLDER_PATH];
            di_model_config c;
            di_folder folder = di_folder_new(NULL);
            if (i) di_folder_write(&folder, "config.json", nano, nano_length);
            di_folder_path(&folder, names[i], path);
            assert_int_equal(kind == 0   ? symlink("nowhere", path)
                             : kind == 1 ? mkfifo(path, 0600)
                                         : mkdir(path, 0700),
                             0);
            load_folder(&folder, kind == 0 ? DI_ERR_NOT_FOUND : DI_ERR_IO, path, &c);
            di_folder_delete(&folder);
        }
}

/* ------------------------------------------------------------------------------------------------ digest */

static uint64_t digest_of_text(char *text) {
    static di_model_config config;
    di_error error;
    if (parse(text, &config, &error) != DI_OK) fail_msg("%s", error.message);
    free(text);
    return di_model_config_digest(&config);
}

/* However it is written; what no computation depends on is not in it. */
static void digest_is_of_values(void **state) {
    (void)state;
    uint64_t digest = digest_of_text(with(nano, "some_new_key", "1"));
    assert_true(digest_of_text(strdup(flat)) == digest);
    static const struct {
        const char *key, *value;
        bool same;
    } cases[] = {
        {"hc_eps", "0.000001", true},     {"hc_eps", "1.0E-6", true},        {"rms_norm_eps", "1e-3", false},
        {"rope_theta", "1e4", true},      {"rope_theta", "10001", false},    {"max_position_embeddings", "4096", true},
        {"eos_token_id", "[1, 5]", true}, {"gate_temp", "1", true},          {"gate_temp", "2", false},
        {"swiglu_limit", "3.0", false},   {"factor", "40", false},           {"hc_sinkhorn_iters", "3", false},
        {"index_topk", "16", false},      {"dspark_block_size", "0", false}, {"candidate_source_layer_id", "-1", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if ((digest_of_text(with(nano, cases[i].key, cases[i].value)) == digest) != cases[i].same)
            fail_msg("%s = %s", cases[i].key, cases[i].value);
}

/* Every byte of the struct is in the digest but for those named here: a new field is forgotten by nobody. */
static void digest_covers_the_struct(void **state) {
    (void)state;
    typedef di_model_config C;
    static C config;
    static const struct {
        size_t from, to;
    } left_out[] = {
        {offsetof(C, max_position_embeddings), offsetof(C, candidate_source_layer)},
        {offsetof(C, layers[10]), offsetof(C, cut)},
        {offsetof(C, engram_layers[2]), offsetof(C, engram_rows)},
        {offsetof(C, engram_rows[2]), offsetof(C, engram_max_ngram)},
        {offsetof(C, tap_layers[3]), offsetof(C, has_vision)},
        {offsetof(C, has_vision) + 1, offsetof(C, vision_layers)}, /* padding */
        {offsetof(C, bos_token_id), sizeof(C)},
    };
    static const size_t counts[] = {offsetof(C, num_hidden_layers), offsetof(C, engram_layer_count),
                                    offsetof(C, tap_count)};
    di_error error;
    if (parse(nano, &config, &error) != DI_OK) fail_msg("%s", error.message);
    assert_int_equal(config.num_hidden_layers, 10);
    assert_int_equal(config.engram_layer_count, 2);
    assert_int_equal(config.tap_count, 3);
    uint64_t digest = di_model_config_digest(&config);
    for (size_t at = 0; at < sizeof(C); at++) {
        bool out = false, skip = false;
        for (size_t i = 0; i < sizeof left_out / sizeof *left_out; i++)
            out = out || (at >= left_out[i].from && at < left_out[i].to);
        for (size_t i = 0; i < 3; i++) skip = skip || (at > counts[i] && at < counts[i] + 4); /* beyond the arrays */
        if (skip) continue;
        ((uint8_t *)&config)[at] ^= 1;
        if ((di_model_config_digest(&config) == digest) != out) fail_msg("byte %zu of di_model_config", at);
        ((uint8_t *)&config)[at] ^= 1;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_nano),
        cmocka_unit_test(reads_the_release),
        cmocka_unit_test(flat_file_means_the_same),
        cmocka_unit_test(accepts_other_models),
        cmocka_unit_test(either_name_of_the_pad_id),
        cmocka_unit_test(refuses_missing_fields),
        cmocka_unit_test(refuses_wrong_types),
        cmocka_unit_test(refuses_values_out_of_range),
        cmocka_unit_test(refuses_broken_relations),
        cmocka_unit_test(refuses_other_architectures),
        cmocka_unit_test(refuses_what_is_no_config),
        cmocka_unit_test(refuses_every_cut),
        cmocka_unit_test(reads_generation_config),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(digest_is_of_values),
        cmocka_unit_test(digest_covers_the_struct),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
