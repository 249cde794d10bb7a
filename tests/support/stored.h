/* stored.h - a disk store of the cache (src/cache/disk.h) in a scratch folder, with payloads that are a function of
 * everything before them, so that serving a wrong one shows. Failures end the test.
 */
#ifndef DI_TESTS_SUPPORT_STORED_H
#define DI_TESTS_SUPPORT_STORED_H

#include <pthread.h>

#include "cache/disk.h"
#include "support/folder.h"

enum { STORED_PAGE = 4, STORED_DIGEST = 0xD1, STORED_LAYOUT = 7, STORED_WALK = 64 };

typedef struct di_stored {
    di_folder folder;
    di_disk *disk; /* NULL while closed */
    di_log *log;
    char last_warning[1024];
    uint32_t warnings;
    uint64_t bytes, queue_bytes, digest; /* options of the next opening; bytes 0 = 1 MiB */
    const char *profile;
    const di_disk_io *io;
    pthread_mutex_t mutex; /* of the warnings */
} di_stored;

void di_stored_init(di_stored *s);  /* closed, with an empty folder */
void di_stored_start(di_stored *s); /* the same, and opened */
void di_stored_open(di_stored *s);  /* closes first; waits until the folder is listed */
void di_stored_close(di_stored *s);
void di_stored_free(di_stored *s); /* with the folder */

/* [count] ids, another walk for each seed; static memory of the caller. */
void di_stored_ids(uint32_t seed, int32_t *ids, uint32_t count);
/* Queues the state at ids[0 .. position). */
void di_stored_queue(di_stored *s, uint64_t salt, const int32_t *ids, uint32_t position);
/* The same, and waits until it is written. */
void di_stored_save(di_stored *s, uint64_t salt, const int32_t *ids, uint32_t position);
/* Position up to which ids[0 .. count-1) come back, right in every byte; 0 = a miss. */
uint32_t di_stored_load(di_stored *s, uint64_t salt, const int32_t *ids, uint32_t count);
/* The same with the first STORED_WALK ids of the seed's walk. */
void di_stored_save_walk(di_stored *s, uint64_t salt, uint32_t seed, uint32_t position);
uint32_t di_stored_load_walk(di_stored *s, uint64_t salt, uint32_t seed);
void di_stored_idle(di_stored *s);
di_disk_counters di_stored_counters(di_stored *s);
/* Payload of a block (of ids[0 .. (block + 1) * STORED_PAGE)) or, for DI_DISK_REST, of the snapshot at `position`. */
void di_stored_payload(uint64_t salt, const int32_t *ids, uint32_t position, uint32_t block, di_text *out);

/* Every plain file of the folder but the lock, in order of name, relative paths. */
typedef struct di_stored_files {
    char paths[256][128];
    uint32_t count;
    uint64_t bytes;
} di_stored_files;
void di_stored_list(const di_folder *folder, di_stored_files *files);
/* Sets a file's age. */
void di_stored_set_age(const di_stored *s, const char *path, int64_t seconds_ago);

#endif
