/* disk_index.c - see disk_index.h. */
#include "cache/disk_index.h"

#include <stdlib.h>

/* Says which snapshots hang on a key, so that looking for one costs a few probes and not a walk through all of them. */
struct di_stem {
    di_stem *next;
    uint64_t key;
    uint64_t lengths; /* bit n: there is a snapshot whose position mod 64 is n, or was one */
    uint32_t count;
};

bool di_index_init(di_disk_index *index) {
    *index = (di_disk_index){.entries = calloc(DI_INDEX_BUCKETS, sizeof(di_entry *)),
                             .stems = calloc(DI_INDEX_BUCKETS, sizeof(di_stem *))};
    if (index->entries && index->stems) return true;
    di_index_free(index);
    return false;
}

void di_index_free(di_disk_index *index) {
    for (di_entry *entry = index->oldest, *newer; entry; entry = newer) { /* foreign records are in this list only */
        newer = entry->newer;
        if (entry->folder) free(entry);
    }
    for (size_t b = 0; index->entries && b < DI_INDEX_BUCKETS; b++) {
        while (index->entries[b]) {
            di_entry *next = index->entries[b]->next;
            free(index->entries[b]);
            index->entries[b] = next;
        }
    }
    for (size_t b = 0; index->stems && b < DI_INDEX_BUCKETS; b++) {
        while (index->stems[b]) {
            di_stem *next = index->stems[b]->next;
            free(index->stems[b]);
            index->stems[b] = next;
        }
    }
    free((void *)index->entries);
    free((void *)index->stems);
    *index = (di_disk_index){0};
}

/* ---------------------------------------------------------------- names */

static di_entry **bucket_of(const di_disk_index *index, const di_disk_key *what) {
    uint64_t mixed = what->key ^ what->tail ^ (what->position + (uint64_t)what->kind) * 0x9E3779B97F4A7C15u;
    return &index->entries[(mixed ^ mixed >> 32) % DI_INDEX_BUCKETS];
}

di_entry *di_index_find(const di_disk_index *index, const di_disk_key *what) {
    di_entry *entry = *bucket_of(index, what);
    while (entry && !di_disk_same(&entry->what, what)) entry = entry->next;
    return entry;
}

static di_stem **stem_of(const di_disk_index *index, uint64_t key) {
    di_stem **link = &index->stems[(key ^ key >> 32) % DI_INDEX_BUCKETS];
    while (*link && (*link)->key != key) link = &(*link)->next;
    return link;
}

static bool grow_stem(di_disk_index *index, const di_disk_key *what) {
    di_stem **link = stem_of(index, what->key);
    if (!*link) {
        *link = calloc(1, sizeof **link);
        if (!*link) return false;
        (*link)->key = what->key;
    }
    (*link)->lengths |= (uint64_t)1 << what->position % 64;
    (*link)->count++;
    return true;
}

static void shrink_stem(di_disk_index *index, uint64_t key) {
    di_stem **link = stem_of(index, key), *stem = *link;
    if (!stem || --stem->count) return;
    *link = stem->next;
    free(stem);
}

di_entry *di_index_add(di_disk_index *index, const di_disk_key *what, uint64_t bytes, uint32_t folder) {
    di_entry *entry = calloc(1, sizeof *entry);
    if (entry && !folder && what->kind == DI_DISK_SNAPSHOT && !grow_stem(index, what)) {
        free(entry);
        entry = NULL;
    }
    if (!entry) return NULL;
    *entry = (di_entry){.what = *what, .bytes = bytes, .folder = folder};
    if (!folder) {
        di_entry **bucket = bucket_of(index, what);
        entry->next = *bucket;
        *bucket = entry;
    }
    index->records++;
    return entry;
}

void di_index_remove(di_disk_index *index, di_entry *entry) {
    if (!entry->folder) {
        di_entry **link = bucket_of(index, &entry->what);
        while (*link != entry) link = &(*link)->next;
        *link = entry->next;
        if (entry->what.kind == DI_DISK_SNAPSHOT) shrink_stem(index, entry->what.key);
    }
    index->records--;
    if (entry->stored) index->bytes -= entry->bytes;
    free(entry);
}

void di_index_set_stored(di_disk_index *index, di_entry *entry, uint64_t bytes) {
    index->bytes += bytes - (entry->stored ? entry->bytes : 0);
    entry->bytes = bytes;
    entry->stored = true;
}

bool di_index_is_stored(const di_disk_index *index, const di_disk_key *what) {
    const di_entry *entry = di_index_find(index, what);
    return entry && entry->stored;
}

/* Longest stored snapshot on `key`, which stands behind `from` positions. */
static uint32_t longest_here(const di_disk_index *index, uint64_t key, const int32_t *ids, uint32_t from,
                             uint32_t limit, uint32_t above) {
    const di_stem *stem = *stem_of(index, key);
    for (uint32_t position = limit; stem && position > above && position >= from; position--) {
        if (!(stem->lengths >> position % 64 & 1)) continue;
        di_disk_key what = {DI_DISK_SNAPSHOT, key, position, di_disk_tail(ids + from, position - from)};
        if (di_index_is_stored(index, &what)) return position;
    }
    return 0;
}

uint32_t di_index_longest(const di_disk_index *index, const uint64_t *keys, const int32_t *ids, uint32_t limit,
                          uint32_t page_tokens, uint32_t above) {
    uint32_t blocks = limit / page_tokens, complete = 0;
    while (complete < blocks &&
           di_index_is_stored(index, &(di_disk_key){.kind = DI_DISK_BLOCK, .key = keys[complete + 1]}))
        complete++;
    for (uint32_t b = complete + 1; b-- > 0;) {
        uint32_t from = b * page_tokens, to = limit - from < page_tokens ? limit : from + page_tokens - 1;
        if (to <= above) break;
        uint32_t best = longest_here(index, keys[b], ids, from, to, above);
        if (best) return best;
    }
    return 0;
}

/* ---------------------------------------------------------------- ages */

void di_index_age_remove(di_disk_index *index, di_entry *entry) {
    if (!entry->aged) return;
    if (entry->newer)
        entry->newer->older = entry->older;
    else
        index->newest = entry->older;
    if (entry->older)
        entry->older->newer = entry->newer;
    else
        index->oldest = entry->newer;
    entry->older = entry->newer = NULL;
    entry->aged = false;
}

void di_index_use(di_disk_index *index, di_entry *entry, int64_t used_ns) {
    di_index_age_remove(index, entry);
    entry->used_ns = used_ns;
    entry->aged = true;
    entry->newer = NULL;
    entry->older = index->newest;
    if (index->newest)
        index->newest->newer = entry;
    else
        index->oldest = entry;
    index->newest = entry;
}

static int by_age(const void *a, const void *b) {
    const di_entry *x = *(di_entry *const *)a, *y = *(di_entry *const *)b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return (int)y->what.kind - (int)x->what.kind; /* a snapshot before the blocks under it */
}

bool di_index_sort(di_disk_index *index) {
    size_t count = 0, i = 0;
    for (di_entry *e = index->oldest; e; e = e->newer) count++;
    if (count < 2) return true;
    di_entry **all = malloc(count * sizeof *all);
    if (!all) return false;
    for (di_entry *e = index->oldest; e; e = e->newer) all[i++] = e;
    qsort((void *)all, count, sizeof *all, by_age);
    index->oldest = index->newest = NULL;
    for (i = 0; i < count; i++) {
        all[i]->aged = false;
        di_index_use(index, all[i], all[i]->used_ns);
    }
    free((void *)all);
    return true;
}
