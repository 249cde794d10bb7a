/* Names and ids, looked up. */
#include "recipe/recipe_internal.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    const di_id_entry *x = a, *y = b;
    int order = strcmp(x->id, y->id);
    return order ? order : (x->position > y->position) - (x->position < y->position);
}

bool di_id_table_build(di_id_table *table, di_arena *arena, const char *const *ids, size_t count) {
    table->entries = di_arena_array(arena, count + 1, sizeof *table->entries);
    table->count = count;
    if (!table->entries) return false;
    for (size_t i = 0; i < count; i++) table->entries[i] = (di_id_entry){ids[i], i};
    qsort(table->entries, count, sizeof *table->entries, compare);
    return true;
}

size_t di_id_table_find(const di_id_table *table, const char *id) {
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(table->entries[middle].id, id) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < table->count && strcmp(table->entries[low].id, id) == 0 ? table->entries[low].position : SIZE_MAX;
}

const char *di_id_table_duplicate(const di_id_table *table) {
    for (size_t i = 1; i < table->count; i++)
        if (strcmp(table->entries[i - 1].id, table->entries[i].id) == 0) return table->entries[i].id;
    return NULL;
}

bool di_id_table_calls(di_id_table *table, di_arena *arena, const di_tool_call *calls, size_t count) {
    const char **ids = di_arena_array(arena, count + 1, sizeof *ids);
    if (!ids) return false;
    for (size_t i = 0; i < count; i++) ids[i] = calls[i].id;
    return di_id_table_build(table, arena, ids, count);
}

/* ---------------------------------------------------------------------------------------------- a growing set */

static size_t slot_of(const di_name_set *set, const char *name) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (const char *c = name; *c; c++) hash = (hash ^ (uint8_t)*c) * UINT64_C(1099511628211);
    size_t slot = (size_t)(hash ^ hash >> 32) & (set->capacity - 1);
    while (set->slots[slot] && strcmp(set->slots[slot], name) != 0) slot = (slot + 1) & (set->capacity - 1);
    return slot;
}

bool di_name_set_has(const di_name_set *set, const char *name) {
    return set->capacity && set->slots[slot_of(set, name)];
}

bool di_name_set_add(di_name_set *set, di_arena *arena, const char *name) {
    if (2 * (set->count + 1) > set->capacity) {
        di_name_set larger = {.capacity = set->capacity ? 2 * set->capacity : 64, .count = set->count};
        larger.slots = di_arena_zalloc(arena, larger.capacity * sizeof *larger.slots);
        if (!larger.slots) return false;
        for (size_t i = 0; i < set->capacity; i++)
            if (set->slots[i]) larger.slots[slot_of(&larger, set->slots[i])] = set->slots[i];
        *set = larger;
    }
    size_t slot = slot_of(set, name);
    set->count += !set->slots[slot];
    set->slots[slot] = name;
    return true;
}
