/* disk.h - the disk tier of the prefix cache: a folder of immutable files, one a record.
 *
 *   FOLDER/lock                         flock: one writer; a dead process leaves nothing behind
 *   FOLDER/WWWWWWWWWWWWWWWW-PPPPPPPPPPPPPPPP/   one folder per weights, and per numeric profile and state layout
 *     XX/b-KEY                          a block: the growing entries of page_tokens positions
 *     XX/s-KEY-POSITION-TAIL            a snapshot: rolling parts at POSITION and the entries of the unfinished page
 *
 * KEY chains the ids of complete blocks from the namespace's root (XXH64), TAIL hashes the ids behind the last block;
 * XX is KEY's first byte. Every file carries its ids, the fingerprint of all ids before them (fingerprint.h) and a
 * checksum over all its bytes, so neither a collision of keys nor damage can serve wrong state: it is a miss. Files
 * appear by rename and are never changed. Use moves their modification time, which is the age for eviction, also over
 * restarts; a snapshot counts as older than the blocks under it, and a block as older than those before it. Whatever is
 * wrong with the folder is a warning and a miss.
 *
 * Threads: one I/O thread lists, reads, writes and removes. All functions below but di_disk_open do memory work only,
 * and are for one owner (the engine thread).
 */
#ifndef DI_CACHE_DISK_H
#define DI_CACHE_DISK_H

#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

typedef struct di_disk di_disk;
typedef struct di_disk_load di_disk_load;

/* File operations, replaceable in tests; semantics of the system calls (-1 and errno on failure). */
typedef struct di_disk_io {
    int (*open)(const char *path, int flags, int mode);
    long (*read)(int file, void *to, size_t bytes);
    long (*write)(int file, const void *from, size_t bytes);
    int (*sync)(int file);
    int (*close)(int file);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*touch)(const char *path, int64_t used_ns); /* sets the modification time */
} di_disk_io;

typedef struct di_disk_options {
    const char *folder;
    uint64_t bytes;       /* the records of the whole folder stay below this, foreign ones too */
    uint64_t digest;      /* di_model_digest */
    const char *profile;  /* numeric profile */
    uint64_t layout;      /* of the state */
    uint32_t page_tokens; /* positions of a block */
    uint64_t queue_bytes; /* writes waiting beyond this are dropped; 0 = 64 MiB */
    di_log *log;          /* may be NULL */
    const di_disk_io *io; /* NULL: the system's */
} di_disk_options;

typedef struct di_disk_counters {
    uint64_t loads, load_failures, saves, save_failures, evicted, loaded_bytes, saved_bytes;
    uint64_t dropped; /* records not written because too much was waiting, or because they do not fit the folder */
    uint64_t bytes;   /* of the records in the folder */
    uint64_t queued;  /* bytes waiting to be written */
    uint32_t records; /* in the folder, and waiting to be written */
    bool failing;     /* the last record that was to be written could not be */
    bool read_only;   /* another process writes, or the folder does not allow it */
    bool ready;       /* the folder has been listed */
} di_disk_counters;

/* Fails only when memory runs out: a folder that cannot be used gives a store that finds nothing and says so. */
di_status di_disk_open(const di_disk_options *options, di_disk **disk, di_error *error);
/* Waits until the folder has been listed, or timeout_ms have passed; true if it has. */
bool di_disk_wait_ready(di_disk *disk, int64_t timeout_ms);
/* Waits until nothing is left to read or write, or timeout_ms have passed; true if so. */
bool di_disk_wait_idle(di_disk *disk, int64_t timeout_ms);
/* Finishes the writes that wait. Every load must have been freed. NULL is allowed. */
void di_disk_close(di_disk *disk);

/* Keys. root: of a namespace; then one step a block. */
uint64_t di_disk_root(uint64_t salt);
uint64_t di_disk_next(uint64_t key, const int32_t *ids, uint32_t count);
uint64_t di_disk_tail(const int32_t *ids, uint32_t count); /* hash of the ids behind the last block */

/* Longest stored snapshot of ids[0 .. count-1) beyond position `above`; 0 if there is none (or it was not listed yet).
 */
uint32_t di_disk_find(di_disk *disk, uint64_t salt, const int32_t *ids, uint32_t count, uint32_t above);

/* Starts reading the snapshot at `position` and the blocks under it. NULL when memory runs out. ids are copied. */
di_disk_load *di_disk_load_start(di_disk *disk, uint64_t salt, const int32_t *ids, uint32_t position);
typedef enum di_disk_result { DI_DISK_PENDING, DI_DISK_LOADED, DI_DISK_MISSED } di_disk_result;
di_disk_result di_disk_load_poll(di_disk_load *load);
/* Payloads of a load that succeeded; borrowed until freed. */
const char *di_disk_load_block(const di_disk_load *load, uint32_t block, size_t *length);
const char *di_disk_load_snapshot(const di_disk_load *load, size_t *length, int32_t *decoder_low);
void di_disk_load_free(di_disk_load *load); /* may be pending: it is then abandoned */

/* Appends block number `block` to *out, or what the snapshot holds if block is DI_DISK_REST. */
enum { DI_DISK_REST = UINT32_MAX };
typedef void (*di_disk_source)(void *arg, uint32_t block, di_text *out);
/* Queues what is not stored yet of the state at ids[0 .. position): its blocks, then its snapshot, as far as the queue
 * has room (a snapshot only if all its blocks are there or queued). What is stored counts as used. The source is called
 * for what is needed, before this returns. */
void di_disk_save(di_disk *disk, uint64_t salt, const int32_t *ids, uint32_t position, int32_t decoder_low,
                  di_disk_source source, void *arg);

void di_disk_get_counters(di_disk *disk, di_disk_counters *counters);

/* Wakes the owner when a load is done; called from the I/O thread. Before the first load. */
void di_disk_on_load(di_disk *disk, void (*wake)(void *arg), void *arg);

/* ---- `deepinfer cache`: a folder without a store. Any thread. */

typedef struct di_disk_record {
    const char *path; /* relative to the folder */
    const char *kind; /* "block", "snapshot", "temporary" (rest of an interrupted write), "unknown" (not ours) */
    uint64_t bytes;
    int64_t used_ns;   /* modification time */
    uint64_t digest;   /* di_model_digest */
    uint32_t position; /* snapshots */
    char profile[64];  /* only with check */
    const char *fault; /* only with check: NULL = sound */
} di_disk_record;
typedef bool (*di_disk_visit)(void *arg, const di_disk_record *record); /* false: stop */
/* Visits every file of a folder but its lock. check: reads and verifies records. A folder of records that cannot be
 * read is an error, told when all others were visited. */
di_status di_disk_walk(const char *folder, bool check, di_disk_visit visit, void *arg, di_error *error);
/* Removes the rests of interrupted writes, and oldest records until the folder holds at most `bytes` of them. Refused
 * while another process has the folder locked. A file that cannot be removed is an error, told when all others were
 * seen to. */
di_status di_disk_trim(const char *folder, uint64_t bytes, uint64_t *removed, uint64_t *freed, uint64_t *left,
                       di_error *error);

#endif
