/* disk_internal.h - the two halves of the store: its owner's side (disk.c) and its I/O thread (disk_thread.c). */
#ifndef DI_CACHE_DISK_INTERNAL_H
#define DI_CACHE_DISK_INTERNAL_H

#include <limits.h>
#include <pthread.h>

#include "cache/disk_index.h"

typedef struct di_disk_part {
    uint32_t number;
    di_text payload;
} di_disk_part;

/* One di_disk_save: what is to be written, and the records that count as used. */
typedef struct di_disk_queued {
    struct di_disk_queued *next;
    uint64_t salt;
    int32_t *ids;   /* [position] */
    uint64_t *keys; /* [position / page_tokens + 1] */
    uint32_t position, block_count;
    int32_t decoder_low;
    uint64_t overhead;    /* bytes of ids and keys, which wait too */
    di_disk_part *blocks; /* [block_count], ascending */
    di_text rest;         /* length 0: no snapshot to write */
} di_disk_queued;

typedef struct di_disk_loaded {
    char *bytes;
    const char *payload;
    size_t length;
} di_disk_loaded;

struct di_disk_load {
    di_disk_load *next;
    di_disk *disk;
    uint64_t salt;
    int32_t *ids;   /* [position] */
    uint64_t *keys; /* [block_count + 1] */
    uint32_t position, block_count;
    di_disk_loaded *blocks; /* [block_count] */
    di_disk_loaded snapshot;
    int32_t decoder_low;
    /* under the store's mutex */
    di_disk_result result;
    bool abandoned;
};

struct di_disk {
    /* fixed */
    char root[PATH_MAX]; /* FOLDER */
    char subfolder[DI_DISK_SUBFOLDER];
    char profile[DI_DISK_PROFILE];
    uint64_t budget, digest, layout, queue_limit;
    uint32_t page_tokens;
    di_log *log;
    const di_disk_io *io;

    /* I/O thread; besides these, the list of ages in the index */
    int lock_file;  /* -1: the folder is not ours */
    bool read_only; /* and will not be */
    char **foreign; /* [foreign_count] folders below the root that are not ours; entry.folder - 1 */
    uint32_t foreign_count, foreign_capacity;
    int64_t clock_ns; /* last age given */
    uint32_t warnings;
    bool write_warned;
    char blamed[PATH_MAX]; /* what the last failure was about */

    pthread_t thread;
    pthread_mutex_t mutex; /* everything below */
    pthread_cond_t work, change;
    di_disk_index index;
    di_disk_queued *saves, **saves_end;
    di_disk_load *loads, **loads_end;
    uint64_t queued_bytes;
    bool stopping, busy;
    void (*wake)(void *arg);
    void *wake_arg;
    di_disk_counters counters;
};

/* ---- disk.c */
di_disk_key di_disk_block_key(uint64_t key);
di_disk_key di_disk_snapshot_key(const di_disk *disk, const uint64_t *keys, const int32_t *ids, uint32_t position);
void di_disk_drop_load(di_disk_load *load);
void di_disk_drop_queued(di_disk_queued *queued);

/* ---- disk_thread.c */
/* Before the thread is there: makes and locks the folder; `folder` is its name for the log. */
void di_disk_prepare(di_disk *disk, const char *folder);
void *di_disk_run(void *disk); /* the I/O thread: lists, then reads and writes until the store is stopping */

#endif
