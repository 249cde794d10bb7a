/* checkpoint.h - the official sharded safetensors layout, mapped read-only.
 *
 *   shard:   8-byte little-endian header length | JSON header | data   (data starts at 8 + length, any alignment)
 *   folder:  model.safetensors.index.json {"weight_map": {tensor: shard}} or every *.safetensors file
 *
 * di_checkpoint_open reads headers only. di_checkpoint_verify compares the whole manifest with what the config implies
 * (draft head and vision tensors included) and reports every fault by name in one error: missing, unexpected, wrong
 * shape, wrong dtype, listed in another shard, overlapping or out-of-file ranges, truncated shard, header too large.
 * Owner: whoever opened it; immutable after that (and after a scan, if there is one), any thread.
 */
#ifndef DI_CHECKPOINT_CHECKPOINT_H
#define DI_CHECKPOINT_CHECKPOINT_H

#include "base/pool.h"
#include "base/text.h"
#include "checkpoint/model_config.h"
#include "tensor/tensor.h"

typedef struct di_checkpoint di_checkpoint;

/* Only a folder, index or allocation failure makes open fail; faults of single shards and tensors are kept and reported
 * by di_checkpoint_verify together with everything else. A tensor whose entry is faulty is never found. */
typedef struct di_checkpoint_options {
    bool headers_only;     /* inspect: shards whose data is cut off are accepted, their tensors have data == NULL;
                              missing data is reported by di_checkpoint_missing_data */
    uint64_t header_limit; /* bytes of one header; 0 = 256 MiB */
} di_checkpoint_options;

di_status di_checkpoint_open(const char *folder, const di_checkpoint_options *options, di_checkpoint **checkpoint,
                             di_error *error);
void di_checkpoint_close(di_checkpoint *checkpoint);

/* Parsing of one header alone (fuzzing): calls nothing on disk. `bytes` is the start of a shard, length included. */
di_status di_safetensors_check_header(const char *shard, const uint8_t *bytes, size_t length, uint64_t file_bytes,
                                      di_error *error);

/* NULL if there is no such tensor. An optional "model." prefix in the file is ignored. */
const di_tensor *di_checkpoint_find(const di_checkpoint *checkpoint, const char *name);
size_t di_checkpoint_count(const di_checkpoint *checkpoint);
const di_tensor *di_checkpoint_at(const di_checkpoint *checkpoint, size_t index); /* by shard, then by offset */
const char *di_checkpoint_shard(const di_checkpoint *checkpoint, size_t index);   /* file name of tensor `index` */
uint64_t di_checkpoint_bytes(const di_checkpoint *checkpoint);                    /* payload */
/* Lists shards whose data is cut (headers_only); returns the number of missing bytes. */
uint64_t di_checkpoint_missing_data(const di_checkpoint *checkpoint, di_text *out);

di_status di_checkpoint_verify(const di_checkpoint *checkpoint, const di_model_config *config, di_error *error);
/* The same faults, one a line, 200,000 at most (an error message is bounded). Returns their number. */
size_t di_checkpoint_faults(const di_checkpoint *checkpoint, const di_model_config *config, di_text *out);

/* Reads all data except Engram tables (hundreds of GB, checked row by row when they are used; of large ones samples).
 * Looks for values that are no numbers: E8M0 255, E4M3 0x7f and 0xff, BF16 and F32 infinities and NaN; names the first
 * tensor and offset. What di_checkpoint_digest needs is computed on the way. */
di_status di_checkpoint_scan(di_checkpoint *checkpoint, di_pool *pool, di_error *error);
/* Identifies weights, whatever shards they are in: names, dtypes, shapes and data, those of Engram tables above 16 MiB
 * by 4,096 samples each (docs/cache.md). Quick after a scan; without one it reads the data itself, on this thread. */
di_status di_checkpoint_digest(const di_checkpoint *checkpoint, uint64_t *digest, di_error *error);

/* Every tensor that a config implies, in checkpoint order. part:
 * "attention", "compressor_indexer", "experts", "shared_experts", "gate", "mhc", "norms", "embed", "head", "engram",
 * "engram_table", "draft", "vision". Return false from the callback to stop. */
typedef struct di_expected_tensor {
    char name[96];
    const char *part;
    di_dtype dtype;
    uint32_t rank;
    uint64_t shape[DI_MAX_RANK];
    uint64_t parameters; /* numbers this tensor counts for (0 for scales; twice the bytes for packed E2M1) */
    int32_t layer;       /* -1 if none; draft stages count on after the layers */
} di_expected_tensor;
typedef bool (*di_expected_visit)(void *arg, const di_expected_tensor *tensor);
void di_expected_tensors(const di_model_config *config, di_expected_visit visit, void *arg);

#endif
