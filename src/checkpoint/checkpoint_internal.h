/* checkpoint_internal.h - what the files of this module share. */
#ifndef DI_CHECKPOINT_CHECKPOINT_INTERNAL_H
#define DI_CHECKPOINT_CHECKPOINT_INTERNAL_H

#include "checkpoint/model_config.h"

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

#endif
