/* needs: checkpoint tensor base */
/* Shards, index and manifest: the good ones, and one broken checkpoint for every property that is checked. */
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

#include "checkpoint/checkpoint.h"
#include "support/folder.h"

#define NANO    DI_TEST_DATA "/nano"
#define INDEX   "model.safetensors.index.json"
#define SHARD_1 "model-00001-of-00004.safetensors"
#define SHARD_2 "model-00002-of-00004.safetensors"
#define SHARD_4 "model-00004-of-00004.safetensors"

static di_checkpoint *open_folder(const char *path, bool headers_only, uint64_t header_limit) {
    const di_checkpoint_options options = {.headers_only = headers_only, .header_limit = header_limit};
    di_checkpoint *checkpoint;
    di_error error = {0};
    if (di_checkpoint_open(path, &options, &checkpoint, &error) != DI_OK) fail_msg("%s", error.message);
    return checkpoint;
}

static di_model_config *load_config(const char *path) {
    static di_model_config config;
    di_error error = {0};
    if (di_model_config_load(path, &config, &error) != DI_OK) fail_msg("%s", error.message);
    return &config;
}

/* Opening and verifying the folder must fail, in one error that contains all `needles` (NULL-terminated); the folder is
 * deleted. */
static void expect_limit(di_folder *folder, uint64_t header_limit, const char *const *needles) {
    di_checkpoint *checkpoint = open_folder(folder->path, false, header_limit);
    di_error error = {0};
    di_status status = di_checkpoint_verify(checkpoint, load_config(folder->path), &error);
    if (status != DI_ERR_CHECKPOINT) fail_msg("status %d: %s", status, error.message);
    for (size_t i = 0; needles[i]; i++)
        if (!strstr(error.message, needles[i])) fail_msg("\"%s\" is not in: %s", needles[i], error.message);
    assert_true(error.param[0] != 0);
    di_checkpoint_close(checkpoint);
    di_folder_delete(folder);
}

#define EXPECT(folder, ...) expect_limit(folder, 0, (const char *const[]){__VA_ARGS__, NULL})

/* ------------------------------------------------------------------------------------------------ good files */

static void opens_models(void **state) {
    (void)state;
    static const struct {
        const char *path;
        size_t count;
        uint64_t bytes;
    } models[] = {{NANO, 1499, 5683572}, {DI_SOURCE_DIR "/models/tiny", 1797, 29278584}};
    for (size_t i = 0; i < 2; i++) {
        di_checkpoint *checkpoint = open_folder(models[i].path, false, 0);
        di_error error = {0};
        if (di_checkpoint_verify(checkpoint, load_config(models[i].path), &error) != DI_OK)
            fail_msg("%s", error.message);
        assert_int_equal(di_checkpoint_count(checkpoint), models[i].count);
        assert_int_equal(di_checkpoint_bytes(checkpoint), models[i].bytes);
        di_text missing = {0};
        assert_int_equal(di_checkpoint_missing_data(checkpoint, &missing), 0);
        assert_int_equal(missing.length, 0);
        for (size_t k = 0; k < di_checkpoint_count(checkpoint); k++) {
            const di_tensor *tensor = di_checkpoint_at(checkpoint, k);
            assert_ptr_equal(di_checkpoint_find(checkpoint, tensor->name), tensor);
            assert_non_null(tensor->data);
        }
        di_checkpoint_close(checkpoint);
    }
}

/* A tensor's bytes are those at its place in the file. */
static void finds_the_bytes(void **state) {
    (void)state;
    di_checkpoint *checkpoint = open_folder(NANO, false, 0);
    di_folder folder = {NANO};
    size_t length;
    char *file = di_folder_read(&folder, SHARD_1, &length);
    const di_tensor *tensor = di_checkpoint_find(checkpoint, "embed.weight");
    assert_int_equal(tensor->dtype, DI_DTYPE_BF16);
    assert_int_equal(tensor->rank, 2);
    assert_int_equal(tensor->shape[0], 704);
    assert_int_equal(tensor->shape[1], 128);
    assert_int_equal(tensor->bytes, 326016 - 145792);
    assert_memory_equal(tensor->data, file + 8 + 66488 + 145792, tensor->bytes);
    assert_null(di_checkpoint_find(checkpoint, "embed.bias"));
    assert_null(di_checkpoint_find(checkpoint, ""));
    assert_null(di_checkpoint_at(checkpoint, 1499));
    free(file);
    di_checkpoint_close(checkpoint);
}

/* threads 0: without a scan. */
static uint64_t digest_after_scan(const char *path, int threads) {
    di_checkpoint *checkpoint = open_folder(path, false, 0);
    uint64_t digest;
    di_error error = {0};
    if (threads) {
        di_pool *pool;
        assert_int_equal(di_pool_new(threads, &pool, &error), DI_OK);
        if (di_checkpoint_scan(checkpoint, pool, &error) != DI_OK) fail_msg("%s", error.message);
        di_pool_free(pool);
    }
    if (di_checkpoint_digest(checkpoint, &digest, &error) != DI_OK) fail_msg("%s", error.message);
    di_checkpoint_close(checkpoint);
    return digest;
}

static void same_digest_in_any_layout(void **state) {
    (void)state;
    uint64_t digest = digest_after_scan(NANO, 0);

    di_folder folder = di_folder_new(NANO); /* without index; "model." before a name; header padded to odd alignment */
    di_folder_remove(&folder, INDEX);
    di_folder_replace_header(&folder, SHARD_1, "\"embed.weight\"", "\"model.embed.weight\"");
    di_folder_replace_header(&folder, SHARD_2, "{", "{ ");
    di_checkpoint *checkpoint = open_folder(folder.path, false, 0);
    di_error error = {0};
    if (di_checkpoint_verify(checkpoint, load_config(folder.path), &error) != DI_OK) fail_msg("%s", error.message);
    for (int threads = 0; threads <= 3; threads++) assert_true(digest_after_scan(folder.path, threads) == digest);
    assert_non_null(di_checkpoint_find(checkpoint, "embed.weight"));
    di_checkpoint_close(checkpoint);

    const uint8_t other = 0x55;
    di_folder_poke(&folder, SHARD_4, 100000, &other, 1);
    assert_true(digest_after_scan(folder.path, 0) != digest);
    di_folder_delete(&folder);
}

/* Changes `length` bytes at `offset` of the data; the digest must be another one until they are as before. */
static void expect_noticed(const di_folder *folder, uint64_t data, uint64_t offset, size_t length, uint64_t digest) {
    uint8_t bytes[16384];
    assert_true(length <= sizeof bytes);
    memset(bytes, 0x11, length);
    di_folder_poke(folder, "a.safetensors", data + offset, bytes, length);
    for (int threads = 0; threads <= 2; threads += 2)
        if (digest_after_scan(folder->path, threads) == digest)
            fail_msg("%zu bytes at %llu are not noticed", length, (unsigned long long)offset);
    memset(bytes, 0, length);
    di_folder_poke(folder, "a.safetensors", data + offset, bytes, length);
}

/* However large a checkpoint is, every byte counts; of a large Engram table every stretch longer than the way from one
 * sample to the next. */
static void digest_covers_large_tensors(void **state) {
    (void)state;
    enum { MATRIX = 70 << 20, TABLE = 20 << 20, SMALL = 5000, PIECE = 256 << 10, STRETCH = TABLE / 4095 + 4096 };
    char header[512];
    snprintf(header, sizeof header,
             "{\"embed.weight\":{\"dtype\":\"BF16\",\"shape\":[%d],\"data_offsets\":[0,%d]},"
             "\"layers.1.engram.embed.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[%d],\"data_offsets\":[%d,%d]},"
             "\"layers.2.engram.embed.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
             MATRIX / 2, MATRIX, TABLE, MATRIX, MATRIX + TABLE, SMALL, MATRIX + TABLE, MATRIX + TABLE + SMALL);
    di_folder folder = di_folder_new(NULL);
    di_folder_write_shard(&folder, "a.safetensors", header, 0);
    uint64_t data = 8 + strlen(header);
    di_folder_resize(&folder, "a.safetensors", data + MATRIX + TABLE + SMALL);
    uint64_t digest = digest_after_scan(folder.path, 0);
    for (int threads = 1; threads <= 3; threads++) assert_true(digest_after_scan(folder.path, threads) == digest);
    static const uint64_t bytes[] = {0,
                                     1,
                                     PIECE - 1,
                                     PIECE,
                                     12345678,
                                     MATRIX / 2,
                                     MATRIX - 1,
                                     MATRIX,
                                     MATRIX + TABLE - 1,
                                     MATRIX + TABLE,
                                     MATRIX + TABLE + 4096,
                                     MATRIX + TABLE + SMALL - 1};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) expect_noticed(&folder, data, bytes[i], 1, digest);
    static const uint64_t stretches[] = {4000, 7654321, TABLE / 2, TABLE - STRETCH};
    for (size_t i = 0; i < sizeof stretches / sizeof *stretches; i++)
        expect_noticed(&folder, data, MATRIX + stretches[i], STRETCH, digest);
    assert_true(digest_after_scan(folder.path, 2) == digest);
    di_folder_delete(&folder);
}

static void allows_holes_and_links(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    size_t length;
    free(di_folder_read(&folder, SHARD_4, &length));
    di_folder_resize(&folder, SHARD_4, length + 1000); /* bytes after the last tensor */
    di_folder_rename(&folder, SHARD_2, "blob");        /* a download cache links its files */
    char path[256];
    snprintf(path, sizeof path, "%s/" SHARD_2, folder.path);
    assert_int_equal(symlink("blob", path), 0);
    di_checkpoint *checkpoint = open_folder(folder.path, false, 0);
    di_error error = {0};
    if (di_checkpoint_verify(checkpoint, load_config(folder.path), &error) != DI_OK) fail_msg("%s", error.message);
    di_checkpoint_close(checkpoint);
    di_folder_delete(&folder);
}

/* ------------------------------------------------------------------------------------------------ broken shards */

static void refuses_truncated_shards(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    di_folder_resize(&folder, SHARD_1, 8 + 66488 + 326016 + 10);
    EXPECT(&folder, SHARD_1 ": truncated", "image_start is the first");
    folder = di_folder_new(NANO);
    di_folder_resize(&folder, SHARD_1, 8 + 66488);
    EXPECT(&folder, SHARD_1 ": truncated", "vision.patch_embed.proj.weight is the first");
    folder = di_folder_new(NANO);
    di_folder_resize(&folder, SHARD_1, 8 + 1000);
    EXPECT(&folder, SHARD_1 ": truncated inside the header", "its 673 tensors cannot be read");
    folder = di_folder_new(NANO);
    di_folder_resize(&folder, SHARD_1, 5);
    EXPECT(&folder, SHARD_1 ": the file has 5 bytes");
    folder = di_folder_new(NANO);
    di_folder_resize(&folder, SHARD_1, 0);
    EXPECT(&folder, SHARD_1 ": is empty");
    folder = di_folder_new(NANO);
    di_folder_remove(&folder, SHARD_2);
    EXPECT(&folder, SHARD_2 ": cannot be opened", "its 645 tensors cannot be read");
}

static void refuses_odd_shards(void **state) {
    (void)state;
    char path[256];
    di_folder folder = di_folder_new(NANO);
    di_folder_remove(&folder, SHARD_2);
    snprintf(path, sizeof path, "%s/" SHARD_2, folder.path);
    assert_int_equal(mkdir(path, 0700), 0);
    EXPECT(&folder, SHARD_2 ": is not a regular file");
    folder = di_folder_new(NANO);
    di_folder_remove(&folder, SHARD_2);
    snprintf(path, sizeof path, "%s/" SHARD_2, folder.path);
    assert_int_equal(mkfifo(path, 0600), 0);
    EXPECT(&folder, SHARD_2 ": is not a regular file");
}

/* An index that is there in name only is no folder without an index. */
static void refuses_an_odd_index(void **state) {
    (void)state;
    char path[256];
    di_checkpoint *checkpoint;
    for (int kind = 0; kind < 3; kind++) {
        di_error error = {0};
        di_folder folder = di_folder_new(NANO);
        di_folder_remove(&folder, INDEX);
        snprintf(path, sizeof path, "%s/" INDEX, folder.path);
        assert_int_equal(kind == 0 ? symlink("nowhere", path) : kind == 1 ? mkfifo(path, 0600) : mkdir(path, 0700), 0);
        assert_int_not_equal(di_checkpoint_open(folder.path, NULL, &checkpoint, &error), DI_OK);
        assert_non_null(strstr(error.message, path));
        di_folder_delete(&folder);
    }
}

static void refuses_broken_headers(void **state) {
    (void)state;
    static const uint8_t huge[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    di_folder folder = di_folder_new(NANO);
    di_folder_poke(&folder, SHARD_4, 0, huge, sizeof huge);
    EXPECT(&folder, SHARD_4 ": header too large: 18446744073709551615 bytes");
    folder = di_folder_new(NANO);
    expect_limit(&folder, 60000,
                 (const char *const[]){SHARD_1 ": header too large: 66488 bytes, the limit is 60000", NULL});
    folder = di_folder_new(NANO);
    di_folder_poke(&folder, SHARD_4, 8, "[", 1);
    EXPECT(&folder, SHARD_4 ": header:");
    folder = di_folder_new(NANO);
    di_folder_write_shard(&folder, SHARD_4, "[]", 16);
    EXPECT(&folder, SHARD_4 ": the header holds", "object");
    folder = di_folder_new(NANO);
    di_folder_write_shard(&folder, SHARD_4, "", 0);
    EXPECT(&folder, SHARD_4 ": header:");
}

static const char entry[] = "\"layers.1.engram.q_weight\":{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":["
                            "144780,145804]}";

static void refuses_broken_entries(void **state) {
    (void)state;
    static const struct {
        const char *value, *needle;
    } cases[] = {
        {"{\"dtype\":\"BF16\",\"shape\":[4,128]}", "data_offsets must be [begin, end]"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[145804,144780]}", "data_offsets must be"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[144780]}", "data_offsets must be"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[-1,1023]}", "data_offsets must be"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[144780,145805]}", "hold 1025 bytes"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,64],\"data_offsets\":[144780,145804]}", "need 512"},
        {"{\"dtype\":\"BF17\",\"shape\":[4,128],\"data_offsets\":[144780,145804]}", "dtype BF17 is not known"},
        {"{\"dtype\":7,\"shape\":[4,128],\"data_offsets\":[144780,145804]}", "needs dtype"},
        {"{\"shape\":[4,128],\"data_offsets\":[144780,145804]}", "needs dtype"},
        {"{\"dtype\":\"BF16\",\"data_offsets\":[144780,145804]}", "needs dtype"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,-128],\"data_offsets\":[144780,145804]}", "whole numbers of 0 or more"},
        {"{\"dtype\":\"BF16\",\"shape\":[1,1,1,4,128],\"data_offsets\":[144780,145804]}", "5 dimensions"},
        {"{\"dtype\":\"BF16\",\"shape\":[4294967296,4294967296],\"data_offsets\":[144780,145804]}", "overflows"},
        {"{\"dtype\":\"BF16\",\"shape\":[4611686018427387904,1],\"data_offsets\":[0,9223372036854775808]}",
         "beyond any file"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[900000,901024]}", "truncated"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[0,1024]}", "overlaps that of layers.1.engram"},
        {"{\"dtype\":\"BF16\",\"shape\":[4,128],\"data_offsets\":[144700,145724]}", "overlaps that of"},
        {"[]", "needs dtype"},
        {"null", "needs dtype"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char changed[256];
        di_folder folder = di_folder_new(NANO);
        snprintf(changed, sizeof changed, "\"layers.1.engram.q_weight\":%s", cases[i].value);
        di_folder_replace_header(&folder, SHARD_4, entry, changed);
        EXPECT(&folder, "layers.1.engram.q_weight", SHARD_4, cases[i].needle);
    }
}

static void refuses_duplicates(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    char twice[512];
    snprintf(twice, sizeof twice, "%s,%s", entry, entry);
    di_folder_replace_header(&folder, SHARD_4, entry, twice);
    EXPECT(&folder, "layers.1.engram.q_weight is twice in the checkpoint");
    folder = di_folder_new(NANO); /* the same tensor with and without "model." */
    di_folder_replace_header(&folder, SHARD_4, "\"layers.1.engram.k_weight\"", "\"model.layers.1.engram.q_weight\"");
    EXPECT(&folder, "layers.1.engram.q_weight is twice", "layers.1.engram.k_weight is missing");
    folder = di_folder_new(NANO); /* in two shards */
    di_folder_replace_header(&folder, SHARD_4, "\"layers.1.engram.q_weight\"", "\"embed.weight\"");
    EXPECT(&folder, "embed.weight is twice in the checkpoint: in " SHARD_1 " and in " SHARD_4);
}

/* ------------------------------------------------------------------------------------------------ broken index */

static void refuses_a_broken_index(void **state) {
    (void)state;
    static const char line[] = "\"embed.weight\": \"" SHARD_1 "\"";
    static const struct {
        const char *value, *needle;
    } cases[] = {
        {"\"embed.weight\": \"../" SHARD_1 "\"", "plain name"},
        {"\"embed.weight\": \"/etc/passwd\"", "plain name"},
        {"\"embed.weight\": \"sub/x.safetensors\"", "plain name"},
        {"\"embed.weight\": \".hidden.safetensors\"", "plain name"},
        {"\"embed.weight\": \"model.bin\"", "plain name"},
        {"\"embed.weight\": \"\"", "plain name"},
        {"\"embed.weight\": 7", "plain name"},
        {"\"embed.weight\": \"" SHARD_2 "\"", "but the index places it in " SHARD_2},
        {"\"embed.weight\": \"nowhere.safetensors\"", "nowhere.safetensors: cannot be opened"},
        {"\"embed.weight\": \"" SHARD_1 "\", \"extra.weight\": \"" SHARD_1 "\"", "extra.weight is missing"},
        {"\"embed.weight\": \"" SHARD_1 "\", \"model.embed.weight\": \"" SHARD_1 "\"", "embed.weight is listed twice"},
        {"\"another\": \"" SHARD_1 "\"", "embed.weight in " SHARD_1 " is not listed"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        di_folder folder = di_folder_new(NANO);
        di_folder_replace(&folder, INDEX, line, cases[i].value);
        EXPECT(&folder, cases[i].needle);
    }
}

static void refuses_useless_folders(void **state) {
    (void)state;
    di_checkpoint *checkpoint;
    di_error error = {0};
    di_folder folder = di_folder_new(NULL);
    assert_int_equal(di_checkpoint_open(folder.path, NULL, &checkpoint, &error), DI_ERR_NOT_FOUND);
    assert_null(checkpoint);
    assert_non_null(strstr(error.message, "holds no weights"));
    di_folder_write(&folder, INDEX, "{\"weight_map\": {}}", 18);
    assert_int_equal(di_checkpoint_open(folder.path, NULL, &checkpoint, &error), DI_ERR_CHECKPOINT);
    assert_non_null(strstr(error.message, "weight_map"));
    di_folder_write(&folder, INDEX, "{\"weight_map\": [", 16);
    assert_int_equal(di_checkpoint_open(folder.path, NULL, &checkpoint, &error), DI_ERR_FORMAT);
    assert_non_null(strstr(error.message, INDEX));
    di_folder_delete(&folder);
    assert_int_equal(di_checkpoint_open("/nonexistent/model", NULL, &checkpoint, &error), DI_ERR_NOT_FOUND);
}

/* ------------------------------------------------------------------------------------------------ manifest */

static void refuses_another_manifest(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    di_folder_replace_header(&folder, SHARD_1, "\"layers.3.attn.q_norm.weight\"", "\"layers.3.attn.q_nrom.weight\"");
    EXPECT(&folder, "layers.3.attn.q_norm.weight is missing: the index places it in " SHARD_1,
           "layers.3.attn.q_nrom.weight in " SHARD_1 " is not listed",
           "layers.3.attn.q_nrom.weight in " SHARD_1 " is unexpected");
    folder = di_folder_new(NANO);
    di_folder_remove(&folder, INDEX);
    di_folder_replace_header(&folder, SHARD_1, "\"layers.3.attn.q_norm.weight\"", "\"layers.3.attn.q_nrom.weight\"");
    EXPECT(&folder, "layers.3.attn.q_norm.weight is missing: the config implies it as BF16 [64]",
           "layers.3.attn.q_nrom.weight in " SHARD_1 " is unexpected", "2 faults");
    folder = di_folder_new(NANO);
    di_folder_replace_header(&folder, SHARD_4, "\"dtype\":\"BF16\",\"shape\":[4,128]",
                             "\"dtype\":\"F16\",\"shape\":[4,128]");
    EXPECT(&folder, "layers.1.engram.q_weight in " SHARD_4 ": dtype is F16, must be BF16");
    folder = di_folder_new(NANO);
    di_folder_replace_header(&folder, SHARD_4, "\"shape\":[4,128]", "\"shape\":[512]");
    EXPECT(&folder, "layers.1.engram.q_weight in " SHARD_4 ": shape is [512], must be [4, 128]");
    folder = di_folder_new(NANO);
    di_folder_replace_header(&folder, SHARD_4, "\"shape\":[4,128]", "\"shape\":[128,4]");
    EXPECT(&folder, ": shape is [128, 4], must be [4, 128]");
    /* draft head and vision tensors count too */
    folder = di_folder_new(NANO);
    di_folder_replace(&folder, "config.json", "\"dspark_markov_rank\": 32", "\"dspark_markov_rank\": 64");
    EXPECT(&folder, "mtp.2.markov_head.embed.weight", "mtp.2.confidence_head.proj.weight", "must be [1, 192]");
    folder = di_folder_new(NANO);
    di_folder_replace(&folder, "config.json", "\"intermediate_size\": 48", "\"intermediate_size\": 64");
    EXPECT(&folder, "vision.blocks.0.mlp.w1.weight", "must be [128, 32]");
    folder = di_folder_new(NANO);
    di_folder_replace(&folder, "config.json", "\"n_routed_experts\": 16", "\"n_routed_experts\": 17");
    EXPECT(&folder, "layers.0.ffn.experts.16.w1.weight is missing", "layers.0.ffn.gate.weight", "more");
}

/* Many faults at once: one error names what fits; the list has all of them. */
static void lists_every_fault(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    di_folder_replace(&folder, "config.json", "\"hidden_size\": 128", "\"hidden_size\": 160");
    di_checkpoint *checkpoint = open_folder(folder.path, false, 0);
    di_text lines = {0};
    di_model_config *config = load_config(folder.path);
    size_t count = di_checkpoint_faults(checkpoint, config, &lines), found = 0;
    for (const char *at = lines.data; (at = strchr(at, '\n')); at++) found++;
    assert_int_equal(found, count);
    assert_true(count > 1000);
    assert_non_null(strstr(lines.data, "layers.9.ffn.experts.15.w2.scale in "));
    di_error error = {0};
    assert_int_equal(di_checkpoint_verify(checkpoint, config, &error), DI_ERR_CHECKPOINT);
    assert_true(strlen(error.message) < sizeof error.message);
    di_text_free(&lines);
    di_checkpoint_close(checkpoint);
    di_folder_delete(&folder);
}

/* ------------------------------------------------------------------------------------------------ headers only */

static void reads_headers_only(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    di_folder_resize(&folder, SHARD_1, 8 + 66488);
    di_folder_resize(&folder, SHARD_4, 8 + 1136 + 21780);
    di_checkpoint *checkpoint = open_folder(folder.path, true, 0);
    di_error error = {0};
    if (di_checkpoint_verify(checkpoint, load_config(folder.path), &error) != DI_OK) fail_msg("%s", error.message);
    di_text missing = {0};
    assert_int_equal(di_checkpoint_missing_data(checkpoint, &missing), 2441680 - 66496 + 300388 - 21780);
    assert_non_null(strstr(missing.data, SHARD_1 ": 2375184 of 2375184 bytes are missing (673 of 673 tensors)"));
    assert_non_null(strstr(missing.data, SHARD_4));
    assert_null(strstr(missing.data, SHARD_2));
    assert_int_equal(di_checkpoint_count(checkpoint), 1499);
    assert_int_equal(di_checkpoint_bytes(checkpoint), 5683572);
    assert_null(di_checkpoint_find(checkpoint, "embed.weight")->data);
    assert_non_null(di_checkpoint_find(checkpoint, "layers.1.engram.embed.scale")->data);
    uint64_t digest;
    assert_int_equal(di_checkpoint_digest(checkpoint, &digest, &error), DI_OK);
    di_text_free(&missing);
    di_checkpoint_close(checkpoint);
    di_folder_delete(&folder);
}

/* ------------------------------------------------------------------------------------------------ values */

static void scan(const char *path, const char *needle) {
    di_checkpoint *checkpoint = open_folder(path, false, 0);
    di_error error = {0};
    di_pool *pool;
    assert_int_equal(di_pool_new(2, &pool, &error), DI_OK);
    di_status status = di_checkpoint_scan(checkpoint, pool, &error);
    if (status != (needle ? DI_ERR_CHECKPOINT : DI_OK) || (needle && !strstr(error.message, needle)))
        fail_msg("status %d: %s", status, error.message);
    di_pool_free(pool);
    di_checkpoint_close(checkpoint);
}

static void finds_values_that_are_no_numbers(void **state) {
    (void)state;
    static const uint8_t ones[2] = {0xff, 0x7f};
    scan(NANO, NULL);
    di_folder folder = di_folder_new(NANO);
    di_folder_poke(&folder, SHARD_4, 8 + 1136 + 144660 + 7, ones, 1); /* layers.1.engram.wkv.scale */
    scan(folder.path, "layers.1.engram.wkv.scale in " SHARD_4 ": the F8_E8M0 value at byte 7");
    di_folder_poke(&folder, SHARD_1, 8 + 66488 + 145792 + 2, ones, 2); /* embed.weight, an earlier shard */
    scan(folder.path, "embed.weight in " SHARD_1 ": the BF16 value at byte 2");
    di_folder_delete(&folder);
}

/* ------------------------------------------------------------------------------------------------ header function */

static di_status check_header(const char *json, uint64_t file_bytes, di_error *error) {
    size_t length = strlen(json);
    uint8_t *bytes = malloc(8 + length);
    for (size_t i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> (8 * i));
    memcpy(bytes + 8, json, length);
    di_status status = di_safetensors_check_header("x.safetensors", bytes, 8 + length, file_bytes, error);
    free(bytes);
    return status;
}

static void checks_a_header_alone(void **state) {
    (void)state;
    di_error error = {0};
    assert_int_equal(check_header("{}", 10, &error), DI_OK);
    assert_int_equal(check_header("{\"__metadata__\":{\"a\":\"b\"}}", 100, &error), DI_OK);
    static const char one[] = "{\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}";
    assert_int_equal(check_header(one, 8 + strlen(one) + 4, &error), DI_OK);
    assert_int_equal(check_header(one, 8 + strlen(one) + 3, &error), DI_ERR_CHECKPOINT);
    /* terabytes are fine */
    static const char large[] =
        "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[4000000000000],\"data_offsets\":[0,4000000000000]}}";
    assert_int_equal(check_header(large, 8 + strlen(large) + 4000000000000u, &error), DI_OK);
    assert_int_equal(check_header("{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[4,4]}}", 1000, &error),
                     DI_OK);
    assert_int_equal(di_safetensors_check_header("x", (const uint8_t *)"1234567", 7, 7, &error), DI_ERR_CHECKPOINT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_models),
        cmocka_unit_test(finds_the_bytes),
        cmocka_unit_test(same_digest_in_any_layout),
        cmocka_unit_test(digest_covers_large_tensors),
        cmocka_unit_test(allows_holes_and_links),
        cmocka_unit_test(refuses_truncated_shards),
        cmocka_unit_test(refuses_odd_shards),
        cmocka_unit_test(refuses_an_odd_index),
        cmocka_unit_test(refuses_broken_headers),
        cmocka_unit_test(refuses_broken_entries),
        cmocka_unit_test(refuses_duplicates),
        cmocka_unit_test(refuses_a_broken_index),
        cmocka_unit_test(refuses_useless_folders),
        cmocka_unit_test(refuses_another_manifest),
        cmocka_unit_test(lists_every_fault),
        cmocka_unit_test(reads_headers_only),
        cmocka_unit_test(finds_values_that_are_no_numbers),
        cmocka_unit_test(checks_a_header_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
