/* scan.c - reads the data of all tensors once: finds values that are no numbers, and hashes what identifies the
 * weights.
 *
 * Both go by pieces whose borders depend on the tensor alone, so neither threads nor shards matter:
 *
 *   hash of a tensor = XXH3 of the hashes (XXH3, u64, little-endian) of its pieces, in order
 *   digest           = XXH64 over the tensors by name: name, dtype, shape, hash
 *
 * An Engram table is not read as a whole: its pieces are small, and from a number on they are samples, evenly spread
 * from the first byte to the last.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

#include "checkpoint/checkpoint_internal.h"

/* A piece stays in a core's second-level cache between the two looks at it. A sample is about what a device reads at
 * once. */
enum { PIECE_BYTES = 256 << 10, SAMPLE_BYTES = 4 << 10, MOST_SAMPLES = 4096 };

/* ---------------------------------------------------------------- pieces */

static bool is_table(const di_tensor *tensor) {
    return strstr(tensor->name, ".engram.embed.") != NULL;
}

static uint64_t piece_bytes(const di_tensor *tensor) {
    return is_table(tensor) ? SAMPLE_BYTES : PIECE_BYTES;
}

static bool is_sampled(const di_tensor *tensor) {
    return is_table(tensor) && tensor->bytes > (uint64_t)SAMPLE_BYTES * MOST_SAMPLES;
}

static uint64_t piece_count(const di_checkpoint *checkpoint, size_t index) {
    const di_tensor *tensor = &checkpoint->tensors[index];
    if (!tensor->data || checkpoint->faulty[index]) return 0;
    if (is_sampled(tensor)) return MOST_SAMPLES;
    return tensor->bytes / piece_bytes(tensor) + (tensor->bytes % piece_bytes(tensor) != 0);
}

/* The part of `tensor` that piece `index` covers, as a tensor of the same type. */
static di_tensor piece_at(const di_tensor *tensor, uint64_t index) {
    uint64_t bytes = piece_bytes(tensor), at = index * bytes;
    if (is_sampled(tensor)) {
        uint64_t last = tensor->bytes - bytes;
        at = index == MOST_SAMPLES - 1 ? last : last / (MOST_SAMPLES - 1) * index;
    }
    di_tensor piece = *tensor;
    piece.data = (const uint8_t *)tensor->data + at;
    piece.bytes = tensor->bytes - at < bytes ? tensor->bytes - at : bytes;
    return piece;
}

static void advise(const uint8_t *data, uint64_t bytes, int advice) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = (uintptr_t)data / page * page, to = ((uintptr_t)data + bytes + page - 1) / page * page;
    madvise((void *)from, to - from, advice);
}

static void put_u64(uint8_t out[8], uint64_t value) {
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(value >> 8 * i);
}

/* Pages that only the hash needed must not count as memory in use: samples, and packed matrices, which are copied into
 * another order when they are loaded. Small ones are not worth the call. */
static void hash_piece(const di_tensor *tensor, const di_tensor *piece, uint8_t out[8]) {
    put_u64(out, XXH3_64bits(piece->data, piece->bytes));
    if (is_sampled(tensor) || (tensor->dtype == DI_DTYPE_I8 && piece->bytes == PIECE_BYTES))
        advise(piece->data, piece->bytes, MADV_DONTNEED);
}

static uint64_t hash_of_pieces(const uint8_t *hashes, uint64_t count) {
    return XXH3_64bits(hashes, count * 8);
}

/* ---------------------------------------------------------------- scan */

typedef struct scan {
    const di_checkpoint *checkpoint;
    uint64_t *first_piece; /* [tensors + 1] */
    uint8_t *hashes;       /* [pieces][8] */
    atomic_size_t first;   /* lowest index of a tensor that holds a value that is no number */
} scan;

/* The last tensor that begins at or before the piece; empty ones have none. */
static size_t tensor_of(const scan *s, uint64_t piece) {
    size_t low = 0, high = s->checkpoint->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->first_piece[middle] <= piece)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static void scan_piece(void *arg, size_t tile, int worker) {
    (void)worker;
    scan *s = arg;
    size_t index = tensor_of(s, tile);
    const di_tensor *tensor = &s->checkpoint->tensors[index];
    di_tensor piece = piece_at(tensor, tile - s->first_piece[index]);
    bool finite = is_table(tensor) || di_tensor_first_nonfinite(&piece) == piece.bytes;
    if (!s->checkpoint->made_up) hash_piece(tensor, &piece, s->hashes + 8 * tile);
    if (finite) return;
    size_t first = atomic_load(&s->first);
    while (index < first && !atomic_compare_exchange_weak(&s->first, &first, index)) {
    }
}

/* Samples far apart need no read-ahead. */
static void advise_tables(const di_checkpoint *checkpoint, int advice) {
    for (size_t i = 0; i < checkpoint->count; i++) {
        const di_tensor *tensor = &checkpoint->tensors[i];
        if (tensor->data && is_sampled(tensor)) advise(tensor->data, tensor->bytes, advice);
    }
}

static bool prepare(scan *s) {
    const di_checkpoint *c = s->checkpoint;
    s->first_piece = malloc((c->count + 1) * sizeof s->first_piece[0]);
    if (!s->first_piece) return false;
    uint64_t pieces = 0;
    for (size_t i = 0; i <= c->count; i++) {
        s->first_piece[i] = pieces;
        if (i < c->count) pieces += piece_count(c, i);
    }
    s->hashes = malloc(8 * pieces + 1);
    return s->hashes != NULL;
}

di_status di_checkpoint_scan(di_checkpoint *checkpoint, di_pool *pool, di_error *error) {
    scan s = {.checkpoint = checkpoint, .first = checkpoint->count};
    size_t count = checkpoint->count;
    uint64_t *hashes = di_arena_array(checkpoint->arena, count + 1, sizeof hashes[0]);
    bool complete = hashes && prepare(&s);
    if (complete) {
        advise_tables(checkpoint, MADV_RANDOM);
        di_pool_run(pool, s.first_piece[count], scan_piece, &s);
        advise_tables(checkpoint, MADV_NORMAL);
        for (size_t i = 0; i < count && !checkpoint->made_up; i++)
            hashes[i] = hash_of_pieces(s.hashes + 8 * s.first_piece[i], s.first_piece[i + 1] - s.first_piece[i]);
        checkpoint->hashes = hashes;
    }
    free(s.first_piece);
    free(s.hashes);
    if (!complete)
        return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory for the check of its data", checkpoint->folder);
    size_t first = atomic_load(&s.first);
    if (first == count) return DI_OK;
    const di_tensor *tensor = &checkpoint->tensors[first];
    return di_fail(error, DI_ERR_CHECKPOINT, tensor->name,
                   "%.200s in %s: the %s value at byte %llu of its data is no finite number", tensor->name,
                   di_checkpoint_shard(checkpoint, first), di_dtype_name(tensor->dtype),
                   (unsigned long long)di_tensor_first_nonfinite(tensor));
}

/* ---------------------------------------------------------------- digest */

static int by_tensor_name(const void *a, const void *b) {
    return strcmp((*(const di_tensor *const *)a)->name, (*(const di_tensor *const *)b)->name);
}

/* False when out of memory. */
static bool hash_tensor(const di_checkpoint *checkpoint, size_t index, uint64_t *hash) {
    const di_tensor *tensor = &checkpoint->tensors[index];
    uint64_t count = piece_count(checkpoint, index);
    uint8_t *hashes = malloc(8 * count + 1);
    if (!hashes) return false;
    for (uint64_t i = 0; i < count; i++) {
        di_tensor piece = piece_at(tensor, i);
        hash_piece(tensor, &piece, hashes + 8 * i);
    }
    *hash = hash_of_pieces(hashes, count);
    free(hashes);
    return true;
}

/* Made-up data follow from the manifest and the seed that the state began with. */
static bool digest_tensor(const di_checkpoint *checkpoint, XXH64_state_t *state, const di_tensor *tensor) {
    uint8_t bytes[8];
    XXH64_update(state, tensor->name, strlen(tensor->name) + 1);
    const char *dtype = di_dtype_name(tensor->dtype);
    XXH64_update(state, dtype, strlen(dtype) + 1);
    for (uint32_t i = 0; i < DI_MAX_RANK; i++) {
        put_u64(bytes, i < tensor->rank ? tensor->shape[i] : UINT64_MAX);
        XXH64_update(state, bytes, sizeof bytes);
    }
    if (checkpoint->made_up) return true;
    size_t index = (size_t)(tensor - checkpoint->tensors);
    uint64_t hash;
    if (checkpoint->hashes)
        hash = checkpoint->hashes[index];
    else if (!hash_tensor(checkpoint, index, &hash))
        return false;
    put_u64(bytes, hash);
    XXH64_update(state, bytes, sizeof bytes);
    return true;
}

di_status di_checkpoint_digest(const di_checkpoint *checkpoint, uint64_t *digest, di_error *error) {
    const di_tensor **sorted = malloc((checkpoint->count + 1) * sizeof sorted[0]);
    XXH64_state_t *state = XXH64_createState();
    bool complete = sorted && state;
    if (complete) {
        for (size_t i = 0; i < checkpoint->count; i++) sorted[i] = &checkpoint->tensors[i];
        if (checkpoint->count > 1) qsort(sorted, checkpoint->count, sizeof sorted[0], by_tensor_name);
        XXH64_reset(state, checkpoint->seed);
    }
    for (size_t i = 0; complete && i < checkpoint->count; i++) complete = digest_tensor(checkpoint, state, sorted[i]);
    if (complete) *digest = XXH64_digest(state);
    XXH64_freeState(state);
    free(sorted);
    if (complete) return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory for its digest", checkpoint->folder);
}
