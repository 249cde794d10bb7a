/* engram.c - which rows of the Engram tables a position reads [8.1].
 *
 * engram.json beside the checkpoint, if there is one, holds token map, primes and multipliers. Without it they are
 * derived by the official rule: the token map from the tokenizer, primes by search, multipliers from NumPy's default
 * generator (SeedSequence and PCG64, both specified by their authors) seeded with 10007 * layer. Made-up weights
 * without a tokenizer get a made-up token map.
 */
#include "model/deepseek_v41/v41.h"

#include "base/digest.h"
#include "base/find.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEAD = -1 };

/* ---------------------------------------------------------------- NumPy's default_rng(seed).integers(0, high) */

typedef struct pcg64 {
    unsigned __int128 state, increment;
} pcg64;

static const unsigned __int128 PCG_MULTIPLIER =
    ((unsigned __int128)0x2360ed051fc65da4ull << 64) | 0x4385df649fccf645ull;

static uint64_t pcg64_next(pcg64 *g) {
    g->state = g->state * PCG_MULTIPLIER + g->increment;
    uint64_t folded = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    unsigned turn = (unsigned)(g->state >> 122);
    return folded >> turn | folded << ((64 - turn) & 63);
}

static uint32_t seed_hash(uint32_t value, uint32_t *constant, uint32_t multiplier) {
    value ^= *constant;
    *constant *= multiplier;
    value *= *constant;
    return value ^ value >> 16;
}

/* SeedSequence(seed).generate_state(8 words) for a seed of at most 64 bits. */
static void seed_sequence(uint64_t seed, uint32_t out[8]) {
    uint32_t pool[4], constant = 0x43b0d7e5u;
    for (int i = 0; i < 4; i++) {
        uint32_t word = i == 0 ? (uint32_t)seed : i == 1 ? (uint32_t)(seed >> 32) : 0;
        pool[i] = seed_hash(word, &constant, 0x931e8875u);
    }
    for (int from = 0; from < 4; from++) {
        for (int to = 0; to < 4; to++) {
            if (from == to) continue;
            uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * seed_hash(pool[from], &constant, 0x931e8875u);
            pool[to] = mixed ^ mixed >> 16;
        }
    }
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 8; i++) out[i] = seed_hash(pool[i % 4], &constant, 0x58f38dedu);
}

static void pcg64_seed(pcg64 *g, uint64_t seed) {
    uint32_t words[8];
    uint64_t v[4];
    seed_sequence(seed, words);
    for (int i = 0; i < 4; i++) v[i] = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
    g->state = 0;
    g->increment = (((unsigned __int128)v[2] << 64 | v[3]) << 1) | 1;
    pcg64_next(g);
    g->state += (unsigned __int128)v[0] << 64 | v[1];
    pcg64_next(g);
}

/* Uniform in [0, high) by multiplication with rejection, 2^32 < high < 2^64. */
static uint64_t pcg64_below(pcg64 *g, uint64_t high) {
    unsigned __int128 product = (unsigned __int128)pcg64_next(g) * high;
    if ((uint64_t)product < high) {
        uint64_t threshold = (0 - high) % high;
        while ((uint64_t)product < threshold) product = (unsigned __int128)pcg64_next(g) * high;
    }
    return (uint64_t)(product >> 64);
}

/* ---------------------------------------------------------------- derivation */

static bool is_prime(uint64_t n) { /* tables have below 2^40 rows per column */
    if (n < 4) return n > 1;
    if (n % 2 == 0) return false;
    for (uint64_t f = 3; f * f <= n; f += 2)
        if (n % f == 0) return false;
    return true;
}

static di_status derive_layers(v41_engram *e, const di_model_config *c, di_error *error) {
    uint64_t last = c->engram_vocab_size ? c->engram_vocab_size - 1 : 0;
    uint64_t high = (uint64_t)INT64_MAX / c->engram_compressed_vocab_size / 2;
    if (high <= UINT32_MAX)
        return di_fail(error, DI_ERR_CONFIG, "engram_compressed_vocab_size",
                       "engram_compressed_vocab_size %u is too large to derive multipliers from",
                       c->engram_compressed_vocab_size);
    for (uint32_t i = 0; i < c->engram_layer_count; i++) {
        struct v41_engram_layer *layer = &e->layers[i];
        for (uint32_t column = 0; column < e->columns; column++) { /* the next prime not used before */
            do last++;
            while (!is_prime(last));
            layer->primes[column] = last;
        }
        pcg64 g;
        pcg64_seed(&g, 10007ull * c->engram_layers[i]);
        for (uint32_t s = 0; s < e->ngram; s++) layer->multipliers[s] = pcg64_below(&g, high) * 2 + 1;
    }
    return DI_OK;
}

/* For made-up weights any map will do. */
static di_status make_up(v41_engram *e, const di_model_config *c, di_error *error) {
    for (uint32_t id = 0; id < c->vocab_size; id++) e->token_map[id] = (int32_t)(id % c->engram_compressed_vocab_size);
    e->pad = e->token_map[c->engram_pad_id];
    return derive_layers(e, c, error);
}

static di_status derive(v41_engram *e, const di_model_config *c, const di_tokenizer *tokenizer, di_error *error) {
    if (!tokenizer)
        return di_fail(error, DI_ERR_NOT_FOUND, "engram.json",
                       "this model has Engram layers: it needs its tokenizer.json (or an engram.json)");
    uint32_t compressed = 0;
    di_status status = di_tokenizer_compressed_map(tokenizer, c->vocab_size, e->token_map, &compressed, error);
    if (status) return status;
    if (compressed != c->engram_compressed_vocab_size)
        return di_fail(error, DI_ERR_CHECKPOINT, "engram_compressed_vocab_size",
                       "the tokenizer gives %u compressed ids, the config says %u: this is another tokenizer",
                       compressed, c->engram_compressed_vocab_size);
    e->pad = e->token_map[c->engram_pad_id];
    return derive_layers(e, c, error);
}

/* ---------------------------------------------------------------- engram.json */

typedef struct engram_file {
    const char *path;
    di_error *error;
} engram_file;

static di_status bad_field(const engram_file *f, const char *field, const char *wanted) {
    return di_fail(f->error, DI_ERR_FORMAT, field, "%s: field %s must be %s", f->path, field, wanted);
}

static di_status read_token_map(const engram_file *f, const di_json *root, v41_engram *e, const di_model_config *c) {
    const di_json *map = di_json_get(root, "token_map");
    int64_t value;
    if (!map || map->type != DI_JSON_ARRAY || map->count != c->vocab_size)
        return bad_field(f, "token_map", "an array with one compressed id per token id");
    size_t i = 0;
    for (const di_json *item = map->first; item; item = item->next) {
        if (!di_json_int64(item, &value) || value < 0 || value >= c->engram_compressed_vocab_size)
            return bad_field(f, "token_map", "compressed ids below engram_compressed_vocab_size");
        e->token_map[i++] = (int32_t)value;
    }
    e->pad = e->token_map[c->engram_pad_id];
    return DI_OK;
}

/* What the file says beside the map must be what config and map say, as far as it says it. */
static di_status check_field(const engram_file *f, const di_json *object, const char *name, uint64_t wanted,
                             const char *because) {
    const di_json *node = di_json_get(object, name);
    uint64_t value;
    if (!node || (di_json_uint64(node, &value) && value == wanted)) return DI_OK;
    return di_fail(f->error, DI_ERR_CHECKPOINT, name, "%s: %s must be %" PRIu64 ": %s", f->path, name, wanted, because);
}

static di_status check_head(const engram_file *f, const di_json *root, const v41_engram *e, const di_model_config *c) {
    const struct {
        const char *name;
        uint64_t wanted;
        const char *because;
    } rows[] = {
        {"version", 1, "no other version of this file is known"},
        {"compressed_vocab_size", c->engram_compressed_vocab_size,
         "so says engram_compressed_vocab_size in config.json"},
        {"max_ngram_size", c->engram_max_ngram, "so says engram_max_ngram_size in config.json"},
        {"n_heads", c->engram_n_heads, "so says engram_n_heads in config.json"},
        {"head_dim", c->engram_head_dim, "so says engram_head_dim in config.json"},
        {"pad_id", (uint64_t)e->pad, "so says token_map for engram_pad_token_id of config.json"},
    };
    di_status status = DI_OK;
    for (size_t i = 0; !status && i < sizeof rows / sizeof *rows; i++)
        status = check_field(f, root, rows[i].name, rows[i].wanted, rows[i].because);
    return status;
}

static di_status read_primes(const engram_file *f, const di_json *layer, v41_engram *e, uint64_t *primes) {
    const di_json *orders = di_json_get(layer, "primes");
    uint32_t column = 0;
    if (!orders || orders->type != DI_JSON_ARRAY || orders->count != e->orders)
        return bad_field(f, "layers[].primes", "one array per n-gram order");
    for (const di_json *order = orders->first; order; order = order->next) {
        if (order->type != DI_JSON_ARRAY || order->count != e->heads)
            return bad_field(f, "layers[].primes[]", "one prime per head");
        for (const di_json *prime = order->first; prime; prime = prime->next)
            if (!di_json_uint64(prime, &primes[column++]) || !primes[column - 1])
                return bad_field(f, "layers[].primes[][]", "a positive integer");
    }
    return DI_OK;
}

/* Where each column begins, if the file says it: the sum of the primes before. */
static di_status check_offsets(const engram_file *f, const di_json *layer, const v41_engram *e, size_t i) {
    const di_json *offsets = di_json_get(layer, "offsets");
    uint64_t sum = 0, value, column = 0;
    if (!offsets) return DI_OK;
    bool right = offsets->type == DI_JSON_ARRAY && offsets->count == e->columns;
    for (const di_json *offset = offsets->first; right && offset; offset = offset->next) {
        right = di_json_uint64(offset, &value) && value == sum;
        sum += e->layers[i].primes[column++];
    }
    return right ? DI_OK : bad_field(f, "layers[].offsets", "for each column the sum of the primes before it");
}

static di_status read_layer(const engram_file *f, const di_json *layer, v41_engram *e, const di_model_config *c,
                            size_t i) {
    di_status status = check_field(f, layer, "rows", c->engram_rows[i], "so says engram_num_embeddings in config.json");
    if (!status) status = read_primes(f, layer, e, e->layers[i].primes);
    if (!status) status = check_offsets(f, layer, e, i);
    if (status) return status;
    const di_json *multipliers = di_json_get(layer, "multipliers");
    if (!multipliers || multipliers->type != DI_JSON_ARRAY || multipliers->count != e->ngram)
        return bad_field(f, "layers[].multipliers", "one decimal string per look-back distance");
    uint32_t s = 0;
    for (const di_json *m = multipliers->first; m; m = m->next) {
        char *end = NULL;
        bool digits = (m->type == DI_JSON_STRING || m->type == DI_JSON_NUMBER) && *m->text >= '0' && *m->text <= '9';
        if (!digits) return bad_field(f, "layers[].multipliers[]", "a decimal string");
        e->layers[i].multipliers[s] = strtoull(m->text, &end, 10);
        if (*end || e->layers[i].multipliers[s] > INT64_MAX)
            return bad_field(f, "layers[].multipliers[]", "a decimal string below 2^63");
        s++;
    }
    return DI_OK;
}

static di_status read_file(const char *path, v41_engram *e, const di_model_config *c, di_error *error) {
    engram_file f = {path, error};
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot read %s", path);
    const di_json *root = NULL;
    di_status status = di_json_parse_file(arena, path, (size_t)1 << 30, 0, &root, error);
    if (!status) status = read_token_map(&f, root, e, c);
    if (!status) status = check_head(&f, root, e, c);
    for (uint32_t i = 0; !status && i < c->engram_layer_count; i++) {
        const di_json *layers = di_json_get(root, "layers"), *found = NULL;
        for (const di_json *layer = layers ? layers->first : NULL; layer; layer = layer->next) {
            int64_t number;
            if (di_json_int64(di_json_get(layer, "layer"), &number) && number == c->engram_layers[i]) found = layer;
        }
        status = found ? read_layer(&f, found, e, c, i) : bad_field(&f, "layers", "a list with every Engram layer");
    }
    di_arena_free(arena);
    return status;
}

/* ---------------------------------------------------------------- opening and hashing */

static di_status set_offsets(v41_engram *e, const di_model_config *c, di_error *error) {
    for (uint32_t i = 0; i < c->engram_layer_count; i++) {
        uint64_t sum = 0;
        bool fits = true; /* primes from a file may be anything; their sum must not wrap */
        for (uint32_t column = 0; column < e->columns; column++) {
            e->layers[i].offsets[column] = sum;
            fits = fits && !__builtin_add_overflow(sum, e->layers[i].primes[column], &sum);
        }
        if (!fits)
            return di_fail(error, DI_ERR_CHECKPOINT, "layers[].primes",
                           "the primes of layer %u add up to more than any table has rows", c->engram_layers[i]);
        if (sum != c->engram_rows[i])
            return di_fail(error, DI_ERR_CHECKPOINT, "engram_num_embeddings",
                           "the hash of layer %u spans %llu rows, the config says %llu", c->engram_layers[i],
                           (unsigned long long)sum, (unsigned long long)c->engram_rows[i]);
    }
    return DI_OK;
}

di_status v41_engram_open(v41_model *m, const char *folder, const di_tokenizer *tokenizer, di_error *error) {
    const di_model_config *c = &m->base.config;
    v41_engram *e = &m->engram;
    if (!c->engram_layer_count) return DI_OK;
    e->ngram = c->engram_max_ngram;
    e->orders = e->ngram - 1;
    e->heads = c->engram_n_heads;
    e->columns = e->orders * e->heads;
    e->token_map = di_arena_array(m->arena, c->vocab_size, sizeof *e->token_map);
    bool complete = e->token_map != NULL;
    for (uint32_t i = 0; i < c->engram_layer_count; i++) {
        struct v41_engram_layer *layer = &e->layers[i];
        layer->primes = di_arena_array(m->arena, e->columns, sizeof(uint64_t));
        layer->offsets = di_arena_array(m->arena, e->columns, sizeof(uint64_t));
        layer->multipliers = di_arena_array(m->arena, e->ngram, sizeof(uint64_t));
        complete = complete && layer->primes && layer->offsets && layer->multipliers;
    }
    if (!complete) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot hold the Engram hash");
    char path[4096];
    bool file = false;
    di_status status = DI_OK;
    snprintf(path, sizeof path, "%s/engram.json", folder ? folder : "");
    if (folder) status = di_find_file(path, &file, error);
    if (status) return status;
    bool made_up = !file && !tokenizer && m->base.options.dummy;
    status = file ? read_file(path, e, c, error) : made_up ? make_up(e, c, error) : derive(e, c, tokenizer, error);
    return status ? status : set_offsets(e, c, error);
}

uint64_t v41_engram_digest(const v41_model *m) {
    const di_model_config *c = &m->base.config;
    const v41_engram *e = &m->engram;
    uint64_t digest = di_digest_u64(0, c->engram_layer_count);
    if (!c->engram_layer_count) return digest;
    for (uint32_t id = 0; id < c->vocab_size; id++) digest = di_digest_u64(digest, (uint32_t)e->token_map[id]);
    digest = di_digest_u64(digest, (uint32_t)e->pad);
    for (uint32_t i = 0; i < c->engram_layer_count; i++) {
        const struct v41_engram_layer *layer = &e->layers[i];
        for (uint32_t k = 0; k < e->columns; k++) digest = di_digest_u64(digest, layer->primes[k]);
        for (uint32_t k = 0; k < e->ngram; k++) digest = di_digest_u64(digest, layer->multipliers[k]);
    }
    return digest;
}

void v41_engram_rows(const v41_engram *e, size_t layer, const int32_t *ids, size_t look_back, size_t count,
                     int64_t *rows) {
    const struct v41_engram_layer *l = &e->layers[layer];
    for (size_t p = 0; p < count; p++) {
        bool blocked = false; /* sticky: nothing beyond a dead or missing position is seen */
        uint64_t hash = 0;
        for (size_t s = 0; s < e->ngram; s++) {
            bool present = s <= p + look_back;
            int32_t id = present ? ids[(ptrdiff_t)p - (ptrdiff_t)s] : DEAD;
            blocked = blocked || id == DEAD;
            hash ^= (uint64_t)(blocked ? e->pad : id) * l->multipliers[s];
            if (s == 0) continue;
            for (size_t head = 0; head < e->heads; head++) {
                size_t column = (s - 1) * e->heads + head;
                rows[p * e->columns + column] = (int64_t)(hash % l->primes[column] + l->offsets[column]);
            }
        }
    }
}
