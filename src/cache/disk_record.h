/* disk_record.h - one file of the disk tier: layout, names, reading and writing. Any thread.
 *
 *   0  "DIRECORD"          8  u32 version 1       12 u32 kind (1 block, 2 snapshot)
 *   16 u64 key             24 u64 weights digest  32 numeric profile [64], zero-padded
 *   96 u32 position        100 i32 decoder_low    104 u32 number of ids     108 u32 zero
 *   112 u64 payload bytes  120 u64 XXH64 of bytes 0..119, the ids and the payload, chained in this order
 *   128 ids, i32 each      then the payload       all little-endian
 *
 * A block holds its page_tokens ids; position = page_tokens. A snapshot holds the ids behind the last complete block.
 */
#ifndef DI_CACHE_DISK_RECORD_H
#define DI_CACHE_DISK_RECORD_H

#include "cache/disk.h"

enum { DI_DISK_BLOCK = 1, DI_DISK_SNAPSHOT = 2, DI_DISK_HEADER = 128, DI_DISK_NAME = 64 };

typedef struct di_disk_key {
    uint32_t kind;
    uint64_t key;
    uint32_t position; /* snapshots */
    uint64_t tail;     /* snapshots */
} di_disk_key;

typedef struct di_disk_header {
    di_disk_key what;
    uint64_t digest;
    char profile[64];
    int32_t decoder_low;
    uint32_t id_count;
    uint64_t payload_bytes;
} di_disk_header;

/* "XX/b-KEY" or "XX/s-KEY-POSITION-TAIL". */
void di_disk_name(const di_disk_key *what, char name[DI_DISK_NAME]);
/* From the last path component; false if it is no record's name. */
bool di_disk_parse_name(const char *name, di_disk_key *what);

/* Writes a record to `path` by way of `path` + ".tmp"; errno and false on failure, and the temporary file is gone. */
bool di_disk_write(const di_disk_io *io, const char *path, const di_disk_header *header, const int32_t *ids,
                   const char *payload);

/* Reads and verifies a whole record. *bytes is malloc'ed; ids and payload point into it. False with a reason in *why
 * ("checksum", "truncated", ...) and *bytes = NULL. */
bool di_disk_read(const di_disk_io *io, const char *path, di_disk_header *header, char **bytes, const int32_t **ids,
                  const char **payload, const char **why);

extern const di_disk_io di_disk_system_io;

#endif
