/* inspect_plan.h - what a model needs, computed from its config and the headers of its shards alone.
 *
 * Budget: numbers and bytes by part of the model. Plan: memory for a context and a number of sequences, by the same
 * rules as the engine's allocations. Machine: what there is. Plain data, any thread.
 */
#ifndef DI_CLI_INSPECT_PLAN_H
#define DI_CLI_INSPECT_PLAN_H

#include "base/status.h"
#include "checkpoint/checkpoint.h"

enum {
    DI_PART_ATTENTION,
    DI_PART_COMPRESSOR_INDEXER,
    DI_PART_EXPERTS,
    DI_PART_SHARED_EXPERTS,
    DI_PART_GATE,
    DI_PART_MHC,
    DI_PART_NORMS, /* the layers end here */
    DI_PART_EMBED,
    DI_PART_HEAD,
    DI_PART_VISION,
    DI_PART_ENGRAM, /* the backbone ends here */
    DI_PART_ENGRAM_TABLE,
    DI_PART_DRAFT,
    DI_PART_COUNT
};

extern const char *const di_part_keys[DI_PART_COUNT];   /* as in di_expected_tensor.part and the JSON form */
extern const char *const di_part_labels[DI_PART_COUNT]; /* for people */

/* What one decoded token reads from the weights (batch 1, as stored), in this order. */
enum {
    DI_READ_ATTENTION,
    DI_READ_COMPRESSOR_INDEXER,
    DI_READ_EXPERTS,
    DI_READ_SHARED_EXPERTS,
    DI_READ_GATE,
    DI_READ_MHC,
    DI_READ_NORMS_EMBED, /* block norms, final norm, one embedding row */
    DI_READ_ENGRAM,
    DI_READ_ENGRAM_ROWS,
    DI_READ_HEAD,
    DI_READ_COUNT
};

extern const char *const di_read_keys[DI_READ_COUNT];
extern const char *const di_read_labels[DI_READ_COUNT];

typedef struct di_plan_budget {
    uint64_t tensors, parameters, bytes;
    uint64_t part_parameters[DI_PART_COUNT], part_bytes[DI_PART_COUNT];
    uint64_t layer_parameters, layer_bytes;       /* all layers, without Engram */
    uint64_t backbone_parameters, backbone_bytes; /* without Engram tables and draft head */
    uint64_t active_prompt, active_decoded;       /* parameters that one token runs through */
    uint64_t read[DI_READ_COUNT], read_total;
} di_plan_budget;

void di_budget_make(const di_model_config *config, di_plan_budget *budget);

typedef struct di_plan_options {
    uint32_t context; /* 0 = the model's maximum, or what `available` holds */
    uint32_t max_seqs, max_rows;
    uint32_t threads;   /* 0 = one per usable core */
    bool compact;       /* --prefill compact */
    bool draft;         /* --spec, and the model has a head that is loaded then */
    bool lookup;        /* --spec, and drafts come from prompt look-up */
    uint32_t keep;      /* --prefill-keep, 0 = window + 12 */
    uint64_t available; /* bytes this process may take; 0 = unknown */
} di_plan_options;

typedef struct di_memory_plan {
    uint32_t context, max_seqs, max_rows;
    uint64_t mapped;        /* weights used where they are in the file */
    uint64_t tables;        /* embedding and Engram tables: in the file, read row by row */
    uint64_t owned;         /* repacked E2M1 matrices and widened vectors */
    uint64_t unused;        /* in the file, not loaded: vision, and the draft head unless `draft` */
    uint64_t rolling, page; /* a sequence's fixed state; one page of its growing state */
    uint32_t page_tokens;
    uint64_t sequence;  /* one sequence at `context` */
    uint64_t sequences; /* all of them */
    uint64_t step;      /* buffers of a step */
    uint64_t draft;     /* buffers of the draft head or, at most, of prompt look-up; 0 without drafts */
    uint64_t workspace; /* of the kernels */
    uint64_t program;   /* code, tokenizer, threads */
    uint64_t total;
    uint64_t private_bytes;      /* of these: not backed by the model's files, so the system cannot drop them */
    uint64_t sequences_that_fit; /* at `context`, in `available`; 0 if the weights alone do not fit */
    bool fits;                   /* total <= available */
} di_memory_plan;

/* checkpoint may be NULL (no weights at hand): F32 matrices are then taken to be aligned. */
void di_memory_plan_make(const di_model_config *config, const di_checkpoint *checkpoint, const di_plan_options *options,
                         di_memory_plan *plan);

typedef struct di_machine {
    uint64_t memory;    /* of the machine, or the cgroup's limit if that is less */
    uint64_t available; /* this process may still take; 0 = unknown */
    uint64_t disk_free; /* where the model lies; 0 = unknown */
    int cores;
} di_machine;

void di_machine_look(const char *path, di_machine *machine);

#endif
