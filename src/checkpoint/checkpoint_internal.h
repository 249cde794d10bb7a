/* checkpoint_internal.h - what the files of this module share. */
#ifndef DI_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define DI_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "base/text.h"
#include "checkpoint/checkpoint.h"

/* ---------------------------------------------------------------- model config */

/* The source lists of config.json, before they become layer modes. */
typedef struct di_layer_lists {
    uint32_t ratio_count, ratios[DI_MAX_LAYERS];
    uint32_t kv_count, kv_sources[DI_MAX_LAYERS];
    uint32_t index_count, index_sources[DI_MAX_LAYERS];
} di_layer_lists;

/* Checks every relation between fields that were range-checked one by one, and derives layers[], cut and the engram and
 * tap indices. `name` is the file's name for errors. */
di_status di_model_config_derive(const char *name, const di_layer_lists *lists, di_model_config *config,
                                 di_error *error);

/* ---------------------------------------------------------------- faults */

/* Faults found so far, a line each. */
typedef struct di_faults {
    di_text lines;
    size_t count;
    char first[96]; /* tensor, shard or field of the first one */
} di_faults;

void di_faults_add(di_faults *faults, const char *subject, const char *format, ...) DI_PRINTF(3, 4);
/* One error of status DI_ERR_CHECKPOINT that holds as many lines as fit. */
di_status di_faults_fail(const di_faults *faults, const char *what, di_error *error);

/* ---------------------------------------------------------------- one shard */

/* The entries of one header, by offset. Names are in the arena, "model." removed, control characters replaced. */
typedef struct di_shard_entry {
    di_tensor tensor;     /* data NULL */
    uint64_t begin;       /* offset in the file */
    bool faulty, outside; /* unusable; the range goes beyond the file */
} di_shard_entry;

typedef struct di_shard_header {
    di_shard_entry *entries; /* [count] */
    size_t count;
    uint64_t data_start, data_end; /* in the file; data_end: of the last entry */
    uint64_t payload;              /* bytes of all entries */
} di_shard_header;

/* Reads the header of a shard of `file_bytes` bytes, of which the first `length` are at `bytes`. Entries live in
 * `arena`. Faults go to *faults; false when the header as a whole cannot be used or memory ran out. */
bool di_shard_read_header(const char *shard, const uint8_t *bytes, size_t length, uint64_t file_bytes,
                          uint64_t header_limit, bool headers_only, di_arena *arena, di_shard_header *header,
                          di_faults *faults);

/* A name for messages and tables: "model." removed, control characters as '?'. */
const char *di_shard_tensor_name(di_arena *arena, const char *name, size_t length);

/* ---------------------------------------------------------------- name table */

/* Open addressing by XXH64; values are indices into the caller's array. */
typedef struct di_name_table {
    const char **names; /* [mask + 1], NULL = free */
    uint32_t *values;
    size_t mask;
} di_name_table;

bool di_name_table_new(di_arena *arena, size_t count, di_name_table *table);
/* Value of the name; UINT32_MAX if absent. */
uint32_t di_name_table_get(const di_name_table *table, const char *name);
/* Returns the value that was there already, UINT32_MAX if the name is new. At most `count` names. */
uint32_t di_name_table_put(di_name_table *table, const char *name, uint32_t value);

/* ---------------------------------------------------------------- the checkpoint */

typedef struct di_shard {
    const char *name;
    uint8_t *map;
    uint64_t file_bytes; /* of the map */
    bool usable;         /* its header could be read */
    di_shard_header header;
} di_shard;

struct di_checkpoint {
    di_arena *arena;
    const char *folder;
    di_shard *shards; /* [shard_count], by name */
    size_t shard_count;
    di_tensor *tensors; /* [count], by shard, then by offset */
    uint32_t *shard_of; /* [count] */
    bool *faulty;       /* [count] never found */
    size_t count, capacity;
    uint64_t payload;
    di_name_table by_name;
    bool has_index;
    di_name_table listed; /* name in weight_map -> shard */
    di_faults faults;     /* of shards and index */
    di_checkpoint_options options;
    uint64_t *hashes; /* [count] of the data of each tensor; NULL before a scan */
    bool made_up;     /* dummy.c: the data follow from the names and the seed */
    uint64_t seed;    /* of made-up data; 0 otherwise */
};

/* Fills tensors and the table of names from the headers of all shards; false when out of memory. */
bool di_checkpoint_take_tensors(di_checkpoint *checkpoint);

#endif
