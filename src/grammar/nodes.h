/* nodes.h - growable arrays, hash tables, and hash-consed nodes: what expressions and symbols are stored in.
 *
 * Equal nodes have equal ids; ids count from 0 and are never freed one by one. Plain data of its owner, one thread.
 */
#ifndef DI_GRAMMAR_NODES_H
#define DI_GRAMMAR_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Room for `need` items of `size` bytes; *(void **)array may move. */
bool di_grow(void *array, uint32_t *capacity, uint64_t need, size_t size);
/* *(void **)to = a copy of `count` items; *capacity (may be NULL) = count. */
bool di_copy_array(void *to, const void *from, uint32_t count, uint32_t *capacity, size_t size);

uint64_t di_mix(uint64_t hash, uint64_t value);

/* For qsort and bsearch of lists of ids. */
static inline int di_compare_ids(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

typedef struct di_table { /* open addressing, 0 = free slot, else index + 1 */
    uint32_t *slots, size, used;
} di_table;

/* A free slot for one more. */
bool di_table_reserve(di_table *table, uint64_t (*hash)(const void *arg, uint32_t index), const void *arg);

typedef struct di_node {
    uint8_t kind;
    bool listed;            /* its content is pool[a .. a+b) */
    bool nullable, boolean; /* of expressions (expr.h); they follow from the rest */
    uint32_t a, b, low, high;
} di_node;

typedef struct di_nodes {
    di_node *nodes;
    uint32_t count, capacity;
    uint32_t *pool;
    uint32_t pool_count, pool_capacity;
    di_table table;
    uint32_t limit; /* nodes; the pool holds at most eight times as many ids */
} di_nodes;

bool di_nodes_init(di_nodes *n, uint32_t limit);
bool di_nodes_copy(di_nodes *to, const di_nodes *from); /* on failure *to is empty */
void di_nodes_free(di_nodes *n);
size_t di_nodes_memory(const di_nodes *n);
/* The id of this node; with a list, the content is list[node.b] and node.a is set. DI_ERR_MEMORY or DI_ERR_LIMIT. */
di_status di_nodes_intern(di_nodes *n, di_node node, const uint32_t *list, uint32_t *id);

#endif
