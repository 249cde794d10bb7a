/* bpe.c - byte-pair merges of one piece.
 *
 * The result is that of: find the pair of neighbours with the lowest rank, the leftmost one on ties, merge it, repeat.
 * The parts are a doubly linked list in an array, the candidate pairs a binary heap ordered by (rank, position). An
 * entry of the heap is stale when the part at its position has another rank by now; stale entries are dropped when
 * they come up. Every merge takes one entry and adds at most two, so the heap never holds more than 2 n.
 */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>

static uint32_t pair_slot(const di_tokenizer *tokenizer, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t hash = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(hash >> 32) & tokenizer->pair_mask;
}

uint32_t di_pair_rank(const di_tokenizer *tokenizer, int32_t left, int32_t right) {
    for (uint32_t slot = pair_slot(tokenizer, left, right);; slot = (slot + 1) & tokenizer->pair_mask) {
        const di_pair *pair = &tokenizer->pairs[slot];
        if (pair->rank == DI_TOKENIZER_NO_RANK) return DI_TOKENIZER_NO_RANK;
        if (pair->left == left && pair->right == right) return pair->rank;
    }
}

bool di_pair_insert(di_tokenizer *tokenizer, int32_t left, int32_t right, uint32_t *rank) {
    for (uint32_t slot = pair_slot(tokenizer, left, right);; slot = (slot + 1) & tokenizer->pair_mask) {
        di_pair *pair = &tokenizer->pairs[slot];
        if (pair->rank == DI_TOKENIZER_NO_RANK) {
            *pair = (di_pair){left, right, *rank};
            return true;
        }
        if (pair->left == left && pair->right == right) {
            *rank = pair->rank;
            return false;
        }
    }
}

static void sift_down(uint64_t *heap, size_t count, size_t at) {
    uint64_t value = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= count) break;
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= value) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = value;
}

static void heap_push(uint64_t *heap, size_t *count, uint64_t value) {
    size_t at = (*count)++;
    while (at > 0 && heap[(at - 1) / 2] > value) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = value;
}

static uint64_t heap_pop(uint64_t *heap, size_t *count) {
    uint64_t top = heap[0];
    heap[0] = heap[--*count];
    if (*count > 1) sift_down(heap, *count, 0);
    return top;
}

static di_status reserve(di_bpe *bpe, size_t length, di_error *error) {
    if (length <= bpe->capacity) return DI_OK;
    size_t capacity = bpe->capacity ? bpe->capacity : 64;
    while (capacity < length) capacity *= 2;
    di_bpe_free(bpe);
    bpe->parts = malloc(capacity * sizeof *bpe->parts);
    bpe->heap = malloc(2 * capacity * sizeof *bpe->heap);
    if (!bpe->parts || !bpe->heap)
        return di_fail(error, DI_ERR_MEMORY, "text", "no memory to encode a piece of %zu bytes", length);
    bpe->capacity = capacity;
    return DI_OK;
}

void di_bpe_free(di_bpe *bpe) {
    free(bpe->parts);
    free(bpe->heap);
    *bpe = (di_bpe){0};
}

/* Sets the rank of the pair (at, at's next) and makes it a candidate. */
static void update_pair(const di_tokenizer *tokenizer, di_bpe *bpe, size_t *count, int32_t at) {
    di_bpe_part *part = &bpe->parts[at];
    part->rank = part->next < 0 ? DI_TOKENIZER_NO_RANK : di_pair_rank(tokenizer, part->id, bpe->parts[part->next].id);
    if (part->rank != DI_TOKENIZER_NO_RANK) heap_push(bpe->heap, count, (uint64_t)part->rank << 32 | (uint32_t)at);
}

static void merge_all(const di_tokenizer *tokenizer, di_bpe *bpe, size_t count) {
    di_bpe_part *parts = bpe->parts;
    while (count > 0) {
        uint64_t top = heap_pop(bpe->heap, &count);
        uint32_t rank = (uint32_t)(top >> 32);
        int32_t at = (int32_t)(uint32_t)top;
        if (parts[at].rank != rank) continue;
        di_bpe_part *left = &parts[at], *right = &parts[left->next];
        left->id = tokenizer->merged[rank];
        left->next = right->next;
        right->rank = DI_TOKENIZER_NO_RANK;
        if (left->next >= 0) parts[left->next].previous = at;
        update_pair(tokenizer, bpe, &count, at);
        if (left->previous >= 0) update_pair(tokenizer, bpe, &count, left->previous);
    }
}

di_status di_bpe_encode(const di_tokenizer *tokenizer, di_bpe *bpe, const char *piece, size_t length, di_ids *ids,
                        di_error *error) {
    const uint8_t *bytes = (const uint8_t *)piece;
    if (length == 0) return DI_OK;
    if (length == 1) {
        di_ids_append(ids, tokenizer->byte_ids[bytes[0]]);
        return DI_OK;
    }
    di_status status = reserve(bpe, length, error);
    if (status) return status;
    size_t count = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t rank =
            i + 1 < length ? tokenizer->byte_pair_ranks[bytes[i] * 256 + bytes[i + 1]] : DI_TOKENIZER_NO_RANK;
        bpe->parts[i] =
            (di_bpe_part){tokenizer->byte_ids[bytes[i]], (int32_t)i - 1, i + 1 < length ? (int32_t)i + 1 : -1, rank};
        if (rank != DI_TOKENIZER_NO_RANK) bpe->heap[count++] = (uint64_t)rank << 32 | (uint32_t)i;
    }
    for (size_t i = count / 2; i-- > 0;) sift_down(bpe->heap, count, i);
    merge_all(tokenizer, bpe, count);
    for (int32_t at = 0; at >= 0; at = bpe->parts[at].next) di_ids_append(ids, bpe->parts[at].id);
    return DI_OK;
}
