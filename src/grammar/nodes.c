/* nodes.c - see nodes.h. */
#include "grammar/nodes.h"

#include <stdlib.h>
#include <string.h>

bool di_grow(void *array, uint32_t *capacity, uint64_t need, size_t size) {
    if (need <= *capacity) return true;
    uint64_t wanted = need + need / 2 + 16;
    if (wanted > UINT32_MAX / 2) return false;
    void *old, *fresh;
    memcpy(&old, array, sizeof old);
    fresh = realloc(old, wanted * size);
    if (!fresh) return false;
    memcpy(array, &fresh, sizeof fresh);
    *capacity = (uint32_t)wanted;
    // cppcheck-suppress memleak
    return true;
}

uint64_t di_mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

bool di_table_reserve(di_table *table, uint64_t (*hash)(const void *arg, uint32_t index), const void *arg) {
    if ((uint64_t)table->used * 2 < table->size) return true;
    uint32_t size = table->size ? table->size * 2 : 64;
    if (size < table->size) return false;
    uint32_t *slots = calloc(size, sizeof *slots);
    if (!slots) return false;
    for (uint32_t i = 0; i < table->size; i++) {
        if (!table->slots[i]) continue;
        uint64_t at = hash(arg, table->slots[i] - 1);
        while (slots[at & (size - 1)]) at++;
        slots[at & (size - 1)] = table->slots[i];
    }
    free(table->slots);
    table->slots = slots;
    table->size = size;
    return true;
}

bool di_copy_array(void *to, const void *from, uint32_t count, uint32_t *capacity, size_t size) {
    void *fresh = malloc((count ? count : 1) * size);
    if (!fresh) return false;
    if (count) memcpy(fresh, from, count * size);
    memcpy(to, &fresh, sizeof fresh);
    if (capacity) *capacity = count;
    // cppcheck-suppress memleak
    return true;
}

/* ------------------------------------------------------------------------------------------------------- interning */

static uint64_t hash_content(const di_node *node, const uint32_t *list) {
    uint64_t hash = di_mix(node->kind, list ? 0 : node->a);
    hash = di_mix(hash, node->b);
    hash = di_mix(di_mix(hash, node->low), node->high);
    if (list)
        for (uint32_t i = 0; i < node->b; i++) hash = di_mix(hash, list[i]);
    return hash;
}

static uint64_t hash_node(const void *arg, uint32_t index) {
    const di_nodes *n = arg;
    const di_node *node = &n->nodes[index];
    return hash_content(node, node->listed ? n->pool + node->a : NULL);
}

static bool is_same(const di_nodes *n, const di_node *a, const di_node *b, const uint32_t *list) {
    if (a->kind != b->kind || a->b != b->b || a->low != b->low || a->high != b->high) return false;
    return list ? memcmp(n->pool + a->a, list, b->b * sizeof *list) == 0 : a->a == b->a;
}

di_status di_nodes_intern(di_nodes *n, di_node node, const uint32_t *list, uint32_t *id) {
    if (!di_table_reserve(&n->table, hash_node, n)) return DI_ERR_MEMORY;
    node.listed = list != NULL;
    uint64_t at = hash_content(&node, list);
    uint32_t mask = n->table.size - 1, slot;
    for (; (slot = n->table.slots[at & mask]); at++) {
        if (!is_same(n, &n->nodes[slot - 1], &node, list)) continue;
        *id = slot - 1;
        return DI_OK;
    }
    if (n->count >= n->limit) return DI_ERR_LIMIT;
    if (!di_grow(&n->nodes, &n->capacity, (uint64_t)n->count + 1, sizeof *n->nodes)) return DI_ERR_MEMORY;
    if (list) {
        if ((uint64_t)n->pool_count + node.b > (uint64_t)n->limit * 8) return DI_ERR_LIMIT;
        if (!di_grow(&n->pool, &n->pool_capacity, (uint64_t)n->pool_count + node.b, sizeof *n->pool))
            return DI_ERR_MEMORY;
        memcpy(n->pool + n->pool_count, list, node.b * sizeof *list);
        node.a = n->pool_count;
        n->pool_count += node.b;
    }
    n->nodes[n->count] = node;
    n->table.slots[at & mask] = ++n->table.used;
    *id = n->count++;
    return DI_OK;
}

/* ------------------------------------------------------------------------------------------------------- life time */

bool di_nodes_init(di_nodes *n, uint32_t limit) {
    *n = (di_nodes){.limit = limit};
    return di_grow(&n->pool, &n->pool_capacity, 1, sizeof *n->pool);
}

bool di_nodes_copy(di_nodes *to, const di_nodes *from) {
    *to = *from;
    to->nodes = NULL, to->pool = NULL, to->table.slots = NULL;
    if (di_copy_array(&to->nodes, from->nodes, from->count, &to->capacity, sizeof *to->nodes) &&
        di_copy_array(&to->pool, from->pool, from->pool_count, &to->pool_capacity, sizeof *to->pool) &&
        di_copy_array(&to->table.slots, from->table.slots, from->table.size, NULL, sizeof *to->table.slots))
        return true;
    di_nodes_free(to);
    return false;
}

void di_nodes_free(di_nodes *n) {
    free(n->nodes);
    free(n->pool);
    free(n->table.slots);
    *n = (di_nodes){0};
}

size_t di_nodes_memory(const di_nodes *n) {
    return n->capacity * sizeof *n->nodes + n->pool_capacity * sizeof *n->pool +
           (size_t)n->table.size * sizeof *n->table.slots;
}
