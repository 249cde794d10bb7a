/* dummy.c - see dummy.h. One anonymous mapping takes the place of a shard; tiles of it are filled by counter-based
 * noise, so neither their order nor their number matters.
 */
#include "checkpoint/dummy.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/philox.h"
#include "checkpoint/checkpoint_internal.h"

enum { PAGE = 4096, TILE_BYTES = 1 << 20, NOISE_BYTES = 16 };
/* Larger tables repeat with this period. */
static const uint64_t table_period = (uint64_t)64 << 20;
/* Part of the digest: another way of making weights up is another model. */
static const char generator[] = "deepinfer dummy 1";

/* How noise becomes values. All but RULE_ONE, RULE_CODES and RULE_SCALES have a sign, one of four exponents from -2 to
 * 1 and a random mantissa, times 2^exponent. */
typedef enum rule {
    RULE_NONE,   /* zero, no memory */
    RULE_CODES,  /* packed E2M1: any byte */
    RULE_SCALES, /* E8M0: 2^exponent or half of it */
    RULE_E4M3,
    RULE_BF16,
    RULE_F32,
    RULE_ONE_BF16, /* 0.5 .. 1.5 */
    RULE_ONE_F32,
} rule;

typedef struct plan {
    rule rule;
    int exponent;
    uint64_t key, first_tile;
} plan;

typedef struct maker {
    di_checkpoint *checkpoint;
    di_shard *shard;
    plan *plans; /* [count] */
    size_t capacity;
    int scale_exponent; /* of the matrix just seen: its scale comes next */
    uint64_t tiles;
    bool failed;
} maker;

/* ---------------------------------------------------------------- sizes */

static bool is_loaded(const di_expected_tensor *tensor) {
    return strcmp(tensor->part, "draft") != 0 && strcmp(tensor->part, "vision") != 0;
}

static uint64_t bytes_of(const di_expected_tensor *tensor) {
    uint64_t bytes = di_dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++) bytes *= tensor->shape[i];
    return bytes;
}

static uint64_t filled_bytes(const char *name, uint64_t bytes) {
    bool table = strstr(name, ".engram.embed.") != NULL;
    return table && bytes > table_period ? table_period : bytes;
}

static bool count_bytes(void *arg, const di_expected_tensor *tensor) {
    uint64_t *sum = arg;
    if (is_loaded(tensor)) *sum += filled_bytes(tensor->name, bytes_of(tensor));
    return true;
}

uint64_t di_dummy_bytes(const di_model_config *config) {
    uint64_t sum = 0;
    di_expected_tensors(config, count_bytes, &sum);
    return sum;
}

/* ---------------------------------------------------------------- magnitudes */

/* Largest e <= 0 with 4^e * squares <= 1. */
static int root_exponent(uint64_t squares) {
    int e = 0;
    for (uint64_t power = 1; power < squares; power *= 4) e--;
    return e;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool around_one(const char *name) {
    return strstr(name, "norm.weight") || ends_with(name, "engram.q_weight") || ends_with(name, "engram.k_weight") ||
           ends_with(name, "_scale");
}

/* Mean squares of the values before the exponent: of four exponents 2.9; of E2M1 codes 8.6; of a scale and its half
 * 0.63. */
static plan plan_of(maker *m, const di_expected_tensor *tensor) {
    plan p = {.key = XXH64(tensor->name, strlen(tensor->name), m->checkpoint->seed)};
    uint64_t in = tensor->shape[tensor->rank - 1];
    bool table = strcmp(tensor->part, "engram_table") == 0, f32 = tensor->dtype == DI_DTYPE_F32;
    if (!is_loaded(tensor)) return p;
    switch (tensor->dtype) {
    case DI_DTYPE_I8:
        p.rule = RULE_CODES;
        m->scale_exponent = root_exponent(in * 11); /* two inputs a byte */
        break;
    case DI_DTYPE_F8_E4M3:
        p.rule = RULE_E4M3;
        m->scale_exponent = table ? 0 : root_exponent(in * 2);
        break;
    case DI_DTYPE_F8_E8M0:
        p.rule = RULE_SCALES;
        p.exponent = m->scale_exponent;
        break;
    default:
        p.rule = f32 ? RULE_F32 : RULE_BF16;
        if (around_one(tensor->name))
            p.rule = f32 ? RULE_ONE_F32 : RULE_ONE_BF16;
        else if (tensor->rank == 1) /* biases, sinks */
            p.exponent = -4;
        else
            p.exponent = strcmp(tensor->part, "embed") == 0 ? -1 : root_exponent(in * 3);
    }
    return p;
}

/* ---------------------------------------------------------------- noise */

static uint16_t word16(const uint8_t *bytes) {
    return (uint16_t)(bytes[0] | bytes[1] << 8);
}

/* 16 bytes of noise to 16 bytes of tensor, little-endian whatever the machine is. */
static void shape_noise(const plan *p, const uint8_t noise[NOISE_BYTES], uint8_t out[NOISE_BYTES]) {
    uint8_t scale = (uint8_t)(127 + p->exponent);
    for (int i = 0; i < NOISE_BYTES; i++) {
        uint8_t b = noise[i];
        if (p->rule == RULE_CODES)
            out[i] = b;
        else if (p->rule == RULE_SCALES)
            out[i] = (uint8_t)(scale - (b & 1));
        else
            out[i] = (uint8_t)((b & 0x80) | (5 + (b >> 3 & 3)) << 3 | (b & 7)); /* E4M3, bias 7 */
    }
    int width = p->rule == RULE_BF16 || p->rule == RULE_ONE_BF16 ? 2 : 4;
    if (p->rule < RULE_BF16) return;
    bool one = p->rule == RULE_ONE_BF16 || p->rule == RULE_ONE_F32;
    for (int i = 0; i < NOISE_BYTES; i += width) { /* the upper half of an F32 is a BF16 */
        uint16_t b = word16(noise + i + width - 2);
        uint16_t top = one ? (uint16_t)(b & 0x80 ? 126u << 7 | (b & 0x7f) : 127u << 7 | (b & 0x3f))
                           : (uint16_t)((b & 0x8000) | (unsigned)(125 + p->exponent + (b >> 7 & 3)) << 7 | (b & 0x7f));
        if (width == 4) memcpy(out + i, noise + i, 2);
        out[i + width - 2] = (uint8_t)top;
        out[i + width - 1] = (uint8_t)(top >> 8);
    }
}

/* Bytes [from, to) of a tensor; `from` is a multiple of 16. */
static void fill(const plan *p, uint64_t from, uint64_t to, uint8_t *out) {
    uint32_t key[2] = {(uint32_t)p->key, (uint32_t)(p->key >> 32)}, words[4];
    for (uint64_t at = from; at < to; at += NOISE_BYTES) {
        uint8_t noise[NOISE_BYTES], shaped[NOISE_BYTES];
        uint64_t block = at / NOISE_BYTES;
        di_philox4x32(key, (uint32_t[]){(uint32_t)block, (uint32_t)(block >> 32), 0, 0}, words);
        for (int i = 0; i < NOISE_BYTES; i++) noise[i] = (uint8_t)(words[i / 4] >> i % 4 * 8);
        shape_noise(p, noise, shaped);
        memcpy(out + (at - from), shaped, to - at < NOISE_BYTES ? to - at : NOISE_BYTES);
    }
}

/* ---------------------------------------------------------------- the mapping */

static bool add_tensor(void *arg, const di_expected_tensor *tensor) {
    maker *m = arg;
    di_shard_header *header = &m->shard->header;
    if (header->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 1024;
        di_shard_entry *entries = realloc(header->entries, m->capacity * sizeof *entries);
        if (entries) header->entries = entries;
        plan *plans = entries ? realloc(m->plans, m->capacity * sizeof *plans) : NULL;
        if (plans) m->plans = plans;
        m->failed = !plans;
        if (m->failed) return false;
    }
    di_shard_entry *entry = &header->entries[header->count];
    plan *p = &m->plans[header->count];
    uint64_t bytes = bytes_of(tensor);
    *entry =
        (di_shard_entry){.tensor = {.name = di_arena_copy(m->checkpoint->arena, tensor->name, strlen(tensor->name)),
                                    .dtype = tensor->dtype,
                                    .rank = tensor->rank,
                                    .bytes = bytes},
                         .begin = header->data_end};
    memcpy(entry->tensor.shape, tensor->shape, sizeof entry->tensor.shape);
    *p = plan_of(m, tensor);
    p->first_tile = m->tiles;
    if (p->rule) m->tiles += (filled_bytes(tensor->name, bytes) + TILE_BYTES - 1) / TILE_BYTES;
    /* Whole pages each, so that pages can be given back. */
    header->data_end += (bytes + PAGE - 1) / PAGE * PAGE;
    header->payload += bytes;
    header->count++;
    m->failed = !entry->tensor.name;
    return !m->failed;
}

static void fill_tile(void *arg, size_t tile, int worker) {
    (void)worker;
    const maker *m = arg;
    size_t low = 0, high = m->shard->header.count; /* last tensor that begins at or before the tile */
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (m->plans[middle].first_tile <= tile)
            low = middle;
        else
            high = middle;
    }
    const di_shard_entry *entry = &m->shard->header.entries[low];
    uint64_t from = (tile - m->plans[low].first_tile) * TILE_BYTES,
             end = filled_bytes(entry->tensor.name, entry->tensor.bytes);
    uint64_t to = end - from < TILE_BYTES ? end : from + TILE_BYTES;
    fill(&m->plans[low], from, to, m->shard->map + entry->begin + from);
}

/* One stretch of memory, mapped again and again over the whole of a large table. */
static bool repeat(const maker *m, const di_shard_entry *entry) {
    int file = memfd_create("deepinfer-table", MFD_CLOEXEC);
    bool done = file >= 0 && ftruncate(file, (off_t)table_period) == 0;
    for (uint64_t at = 0; done && at < entry->tensor.bytes; at += table_period) {
        uint64_t left = entry->tensor.bytes - at;
        const void *place = mmap(m->shard->map + entry->begin + at, left < table_period ? left : table_period,
                                 PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0);
        done = place != MAP_FAILED;
    }
    if (file >= 0) close(file);
    return done;
}

static bool map(maker *m) {
    di_shard *shard = m->shard;
    void *memory =
        mmap(NULL, shard->header.data_end, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    shard->map = memory;
    shard->file_bytes = shard->header.data_end;
    for (size_t i = 0; i < shard->header.count; i++) {
        const di_shard_entry *entry = &shard->header.entries[i];
        if (filled_bytes(entry->tensor.name, entry->tensor.bytes) < entry->tensor.bytes && !repeat(m, entry))
            return false;
    }
    return true;
}

static bool make(maker *m, const di_model_config *config, di_pool *pool) {
    di_checkpoint *c = m->checkpoint;
    c->shards = m->shard = di_arena_zalloc(c->arena, sizeof *m->shard);
    c->folder = di_arena_copy(c->arena, "dummy weights", 13);
    if (!m->shard || !c->folder) return false;
    *m->shard = (di_shard){.name = "dummy", .usable = true};
    c->shard_count = 1;
    di_expected_tensors(config, add_tensor, m);
    if (m->failed || !map(m)) return false;
    c->capacity = m->shard->header.count;
    if (!di_checkpoint_take_tensors(c)) return false;
    di_pool_run(pool, m->tiles, fill_tile, m);
    return true;
}

di_status di_checkpoint_dummy(const di_model_config *config, uint64_t seed, di_pool *pool, di_checkpoint **checkpoint,
                              di_error *error) {
    *checkpoint = NULL;
    di_checkpoint *c = calloc(1, sizeof *c);
    if (c) c->arena = di_arena_new(1 << 20);
    bool complete = false;
    if (c && c->arena) {
        maker m = {.checkpoint = c};
        c->made_up = true;
        c->seed = XXH64(generator, sizeof generator - 1, seed);
        complete = make(&m, config, pool);
        if (m.shard) {
            free(m.shard->header.entries);
            m.shard->header = (di_shard_header){0};
        }
        free(m.plans);
    }
    if (!complete) {
        di_checkpoint_close(c);
        return di_fail(error, DI_ERR_MEMORY, "load-format", "out of memory for the made-up weights of this config");
    }
    *checkpoint = c;
    return DI_OK;
}
