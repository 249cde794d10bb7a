/* dummy.h - made-up weights for any config: a checkpoint that is computed, not read (--load-format dummy).
 *
 * Every byte is a function of the tensor's name, its offset and the seed, the same on every machine. Magnitudes are
 * such that activations stay finite: matrices have rms about 1 / sqrt(inputs), tables about 1, norms lie around 1.
 *
 * Memory: what is loaded is private memory of this process. Draft head and vision tensors, which no code reads yet,
 * stay zero and take none. Engram tables above 64 MiB repeat every 64 MiB and take no more than that together. A
 * backend that repacks packed matrices gives their pages back, so a model can be loaded from one dummy checkpoint only
 * once.
 */
#ifndef DI_CHECKPOINT_DUMMY_H
#define DI_CHECKPOINT_DUMMY_H

#include "checkpoint/checkpoint.h"

/* All functions of checkpoint.h work on the result; its digest covers names, dtypes, shapes and the seed. */
di_status di_checkpoint_dummy(const di_model_config *config, uint64_t seed, di_pool *pool, di_checkpoint **checkpoint,
                              di_error *error);

/* Memory that it takes. */
uint64_t di_dummy_bytes(const di_model_config *config);

#endif
