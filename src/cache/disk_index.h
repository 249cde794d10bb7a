/* disk_index.h - what is in a cache folder, in memory: records by name, and by age.
 *
 * Two structures with different owners:
 *   names   hash table of our own records, and for each key with snapshots a stem that knows their lengths. Any thread,
 *           under the store's mutex.
 *   ages    list of everything that may be evicted, records of other weights and profiles too. I/O thread only.
 */
#ifndef DI_CACHE_DISK_INDEX_H
#define DI_CACHE_DISK_INDEX_H

#include "cache/disk_record.h"

typedef struct di_entry {
    struct di_entry *next;          /* in the bucket */
    struct di_entry *older, *newer; /* ages */
    di_disk_key what;
    uint64_t bytes;
    int64_t used_ns;   /* ages */
    int64_t file_ns;   /* ages: modification time of the file */
    uint32_t folder;   /* 0: ours; otherwise a folder of other weights or another profile, only evicted */
    bool stored, aged; /* false: waits to be written; true: is in the list of ages */
    bool warned;       /* I/O thread: the log names its file already */
} di_entry;

typedef struct di_stem di_stem;

typedef struct di_disk_index {
    di_entry **entries; /* [DI_INDEX_BUCKETS] */
    di_stem **stems;    /* [DI_INDEX_BUCKETS] */
    di_entry *oldest, *newest;
    uint64_t bytes;   /* of what is stored */
    uint32_t records; /* stored or waiting */
} di_disk_index;

enum { DI_INDEX_BUCKETS = 1 << 17 };

bool di_index_init(di_disk_index *index); /* false: out of memory */
void di_index_free(di_disk_index *index);

/* ---- names */
di_entry *di_index_find(const di_disk_index *index, const di_disk_key *what);
/* NULL when out of memory. Foreign records (folder > 0) are counted but not found. The entry waits to be written. */
di_entry *di_index_add(di_disk_index *index, const di_disk_key *what, uint64_t bytes, uint32_t folder);
void di_index_set_stored(di_disk_index *index, di_entry *entry, uint64_t bytes); /* also again */
bool di_index_is_stored(const di_disk_index *index, const di_disk_key *what);
/* The entry must be in no list of ages any more. */
void di_index_remove(di_disk_index *index, di_entry *entry);
/* Longest stored snapshot of ids[0 .. limit] behind blocks that are all stored, beyond position `above`; 0 = none.
 * keys[b]: behind b complete blocks, b = 0 .. limit / page_tokens. */
uint32_t di_index_longest(const di_disk_index *index, const uint64_t *keys, const int32_t *ids, uint32_t limit,
                          uint32_t page_tokens, uint32_t above);

/* ---- ages */
void di_index_use(di_disk_index *index, di_entry *entry, int64_t used_ns); /* becomes the newest */
void di_index_age_remove(di_disk_index *index, di_entry *entry);
/* Puts the list into the order of used_ns. False when out of memory: the order is then the one of listing. */
bool di_index_sort(di_disk_index *index);

#endif
