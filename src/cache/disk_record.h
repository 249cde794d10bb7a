/* disk_record.h - one file of the disk tier: layout, names, reading and writing. Any thread.
 *
 *     0 "DIRECORD"               8 u32 version           12 u32 kind (1 block, 2 snapshot, 3 state file)
 *    16 u64 key                 24 u64 model digest    32 numeric profile [64], zero-padded
 *    96 u32 position           100 i32 decoder_low      104 u32 number of ids      108 u32 zero
 *   112 u64 payload bytes      120 fingerprint [16]     136 u64 state layout       144 u64 zero
 *   152 u64 XXH64 of bytes 0..151, the ids and the payload, chained in this order
 *   160 ids, i32 each           then the payload         all little-endian
 *
 * A block holds its page_tokens ids, position is 0. A snapshot holds the ids behind the last complete block. Both carry
 * the fingerprint of all ids from position 0 on (fingerprint.h). A state file (engine/state_file.h) holds all ids.
 */
#ifndef DI_CACHE_DISK_RECORD_H
#define DI_CACHE_DISK_RECORD_H

#include "cache/disk.h"
#include "cache/fingerprint.h"

enum {
    DI_DISK_BLOCK = 1,
    DI_DISK_SNAPSHOT = 2,
    DI_DISK_STATE = 3,
    DI_DISK_HEADER = 160,
    DI_DISK_NAME = 64,
    DI_DISK_SUBFOLDER = 34, /* 16 + 1 + 16 and the terminating zero */
    DI_DISK_PROFILE = 64,
    DI_DISK_MOST_BYTES = 1 << 30 /* of a record of the cache */
};

typedef struct di_disk_key {
    uint32_t kind;
    uint64_t key;
    uint32_t position; /* snapshots */
    uint64_t tail;     /* snapshots; from the ids, not stored */
} di_disk_key;

typedef struct di_disk_header {
    di_disk_key what;
    uint64_t digest, layout;
    char profile[DI_DISK_PROFILE];
    uint8_t fingerprint[DI_FINGERPRINT];
    int32_t decoder_low;
    uint32_t id_count;
    uint64_t payload_bytes;
} di_disk_header;

bool di_disk_same(const di_disk_key *a, const di_disk_key *b);

/* "DIGEST-PROFILE": the folder for one model, numeric profile and state layout. */
void di_disk_subfolder(uint64_t digest, const char *profile, uint64_t layout, char name[DI_DISK_SUBFOLDER]);
/* "XX/b-KEY" or "XX/s-KEY-POSITION-TAIL". */
void di_disk_name(const di_disk_key *what, char name[DI_DISK_NAME]);
/* From the last path component; false if it is no record's name. */
bool di_disk_parse_name(const char *name, di_disk_key *what);

/* Writes a record to `path` by way of `path` + ".tmp"; its modification time becomes used_ns (0: left alone). sync:
 * waits until the device has it. errno and false on failure, and the temporary file is gone. */
bool di_disk_write(const di_disk_io *io, const char *path, const di_disk_header *header, const int32_t *ids,
                   const char *payload, int64_t used_ns, bool sync);

typedef enum di_disk_fault {
    DI_DISK_SOUND,
    DI_DISK_MISSING,    /* there is no such file */
    DI_DISK_UNREADABLE, /* for a reason that says nothing about its content: rights, memory, descriptors */
    DI_DISK_DAMAGED,
} di_disk_fault;

/* Reads and verifies a whole record of at most `limit` bytes. *bytes is malloc'ed; ids and payload point into it.
 * Anything but DI_DISK_SOUND leaves *bytes = NULL and a reason in *why ("wrong checksum", ...). */
di_disk_fault di_disk_read(const di_disk_io *io, const char *path, uint64_t limit, di_disk_header *header, char **bytes,
                           const int32_t **ids, const char **payload, const char **why);

extern const di_disk_io di_disk_system_io;

#endif
