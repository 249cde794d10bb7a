/* inspect_plan.c - budget, memory plan and machine; contract in inspect_plan.h. */
#include "cli/inspect_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "backend/cpu/cpu.h"
#include "engine/engine.h"
#include "model/model.h"
#include "spec/lookup.h"

const char *const di_part_keys[DI_PART_COUNT] = {
    "attention", "compressor_indexer", "experts", "shared_experts", "gate", "mhc", "norms", "embed", "head", "vision",
    "engram",    "engram_table",       "draft"};
const char *const di_part_labels[DI_PART_COUNT] = {
    "attention core",    "compressor, indexer", "routed experts",     "shared expert", "router gates",
    "hyper-connections", "block norms",         "embedding",          "head, norm",    "vision",
    "Engram layers",     "Engram tables",       "draft head (DSpark)"};
const char *const di_read_keys[DI_READ_COUNT] = {
    "attention", "compressor_indexer", "experts", "shared_experts", "gate",
    "mhc",       "norms_embed",        "engram",  "engram_rows",    "head"};
const char *const di_read_labels[DI_READ_COUNT] = {
    "attention core",    "compressor, indexer", "routed experts", "shared expert", "router gates",
    "hyper-connections", "norms, embed row",    "Engram layers",  "Engram rows",   "head"};

/* ------------------------------------------------------------------------------------------------ budget */

typedef struct budget_maker {
    const di_model_config *config;
    di_plan_budget *budget;
    uint64_t expert_parameters[2], expert_bytes; /* of all experts; parameters: encoder half, all layers */
    uint64_t encoder, engram, entry, norm_bytes;
} budget_maker;

static int part_of(const char *key) {
    for (int i = 0; i < DI_PART_COUNT; i++)
        if (strcmp(di_part_keys[i], key) == 0) return i;
    return DI_PART_ATTENTION; /* not reached: the keys are those of di_expected_tensors */
}

static uint64_t tensor_bytes(const di_expected_tensor *tensor) {
    uint64_t bytes = di_dtype_size(tensor->dtype);
    for (uint32_t i = 0; i < tensor->rank; i++) bytes *= tensor->shape[i];
    return bytes;
}

static bool ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Of the first decoder layer a prompt token needs only what fills the global cache. */
static bool feeds_global_cache(const char *name) {
    return ends_with(name, "attn_norm.weight") || strstr(name, "attn.compressor.") ||
           ends_with(name, "indexer.wk.weight") || ends_with(name, "indexer.k_norm.weight");
}

static bool add_tensor(void *arg, const di_expected_tensor *tensor) {
    budget_maker *m = arg;
    di_plan_budget *b = m->budget;
    int part = part_of(tensor->part);
    uint64_t bytes = tensor_bytes(tensor);
    b->tensors++;
    b->parameters += tensor->parameters;
    b->bytes += bytes;
    b->part_parameters[part] += tensor->parameters;
    b->part_bytes[part] += bytes;
    bool encoder = tensor->layer >= 0 && tensor->layer < (int32_t)m->config->cut;
    if (part == DI_PART_EXPERTS) {
        m->expert_parameters[1] += tensor->parameters;
        m->expert_bytes += bytes;
        if (encoder) m->expert_parameters[0] += tensor->parameters;
    } else if (part <= DI_PART_NORMS && encoder) {
        m->encoder += tensor->parameters;
    } else if (part <= DI_PART_NORMS && tensor->layer == (int32_t)m->config->cut && feeds_global_cache(tensor->name)) {
        m->entry += tensor->parameters;
    }
    if (strcmp(tensor->name, "norm.weight") == 0) m->norm_bytes = bytes;
    return true;
}

void di_budget_make(const di_model_config *config, di_plan_budget *budget) {
    memset(budget, 0, sizeof *budget);
    budget_maker m = {.config = config, .budget = budget};
    di_expected_tensors(config, add_tensor, &m);
    for (int i = 0; i <= DI_PART_ENGRAM; i++) {
        if (i <= DI_PART_NORMS) budget->layer_parameters += budget->part_parameters[i];
        if (i <= DI_PART_NORMS) budget->layer_bytes += budget->part_bytes[i];
        budget->backbone_parameters += budget->part_parameters[i];
        budget->backbone_bytes += budget->part_bytes[i];
    }
    /* Experts of a layer are alike, so the division is exact. */
    uint64_t top = config->num_experts_per_tok, all = config->n_routed_experts;
    uint64_t engram = budget->part_parameters[DI_PART_ENGRAM];
    budget->active_prompt = m.encoder + m.expert_parameters[0] / all * top + engram + m.entry;
    budget->active_decoded = budget->layer_parameters - m.expert_parameters[1] + m.expert_parameters[1] / all * top +
                             engram + budget->part_parameters[DI_PART_HEAD];
    uint64_t *read = budget->read;
    for (int i = DI_READ_ATTENTION; i <= DI_READ_MHC; i++)
        read[i] = budget->part_bytes[i]; /* the two enumerations begin alike */
    read[DI_READ_EXPERTS] = m.expert_bytes / all * top;
    read[DI_READ_NORMS_EMBED] =
        budget->part_bytes[DI_PART_NORMS] + m.norm_bytes + (uint64_t)config->hidden_size * sizeof(uint16_t);
    read[DI_READ_ENGRAM] = budget->part_bytes[DI_PART_ENGRAM];
    uint64_t columns = config->engram_layer_count ? (config->engram_max_ngram - 1) * config->engram_n_heads : 0;
    read[DI_READ_ENGRAM_ROWS] =
        config->engram_layer_count * columns * (config->engram_head_dim + config->engram_head_dim / 32);
    read[DI_READ_HEAD] = budget->part_bytes[DI_PART_HEAD] - m.norm_bytes;
    for (int i = 0; i < DI_READ_COUNT; i++) budget->read_total += read[i];
}

/* ------------------------------------------------------------------------------------------------ memory plan */

typedef struct weight_planner {
    const di_checkpoint *checkpoint;
    di_memory_plan *plan;
    bool draft;           /* the head is loaded */
    bool scale_is_mapped; /* of the weight just seen: its scale comes next */
} weight_planner;

/* Where a tensor goes when the model is loaded. */
static bool plan_tensor(void *arg, const di_expected_tensor *tensor) {
    weight_planner *p = arg;
    di_memory_plan *plan = p->plan;
    uint64_t bytes = tensor_bytes(tensor);
    int part = part_of(tensor->part);
    if (part == DI_PART_VISION || (part == DI_PART_DRAFT && !p->draft)) {
        plan->unused += bytes;
    } else if (part == DI_PART_ENGRAM_TABLE || part == DI_PART_EMBED ||
               ends_with(tensor->name, "markov_head.embed.weight")) {
        plan->tables += bytes;
    } else if (tensor->dtype == DI_DTYPE_F8_E8M0) {
        if (p->scale_is_mapped) plan->mapped += bytes;
    } else {
        bool vector = tensor->rank == 1 || ends_with(tensor->name, "engram.q_weight") ||
                      ends_with(tensor->name, "engram.k_weight") ||
                      ends_with(tensor->name, "confidence_head.proj.weight");
        di_weight_kind kind = vector ? DI_WEIGHT_VECTOR : DI_WEIGHT_MATRIX;
        uint64_t owned = di_cpu_weight_bytes(kind, tensor->dtype, tensor->rank, tensor->shape);
        const di_tensor *stored =
            tensor->dtype == DI_DTYPE_F32 && p->checkpoint ? di_checkpoint_find(p->checkpoint, tensor->name) : NULL;
        if (!owned && stored && (uintptr_t)stored->data % sizeof(float) != 0) owned = bytes; /* copied to align it */
        plan->owned += owned;
        if (!owned) plan->mapped += bytes;
        p->scale_is_mapped = !owned;
    }
    return true;
}

static uint64_t aligned(uint64_t bytes) {
    return (bytes + 63) / 64 * 64;
}

/* The state of a sequence: the parts and alignment of the model's state layout. */
static void plan_state(const di_model_config *c, uint32_t keep, bool draft, di_memory_plan *plan) {
    enum { PAGE_TOKENS = 64 };
    uint64_t d = c->head_dim, i = c->index_head_dim;
    plan->page_tokens = PAGE_TOKENS;
    for (uint32_t l = 0; l < c->num_hidden_layers; l++) {
        uint32_t ratio = c->layers[l].ratio;
        plan->rolling += aligned(c->sliding_window * (d + d / 32));
        if (c->layers[l].mode != DI_ATTENTION_FULL) continue;
        plan->page += aligned(PAGE_TOKENS / ratio * (d / 2 + d / 16)) + aligned(PAGE_TOKENS / ratio * (i / 2 + i / 32));
        if (ratio > 1) plan->rolling += aligned((ratio - 1) * 2 * d * sizeof(float));
    }
    if (c->engram_layer_count) plan->rolling += aligned((c->engram_max_ngram - 1) * sizeof(int32_t));
    uint64_t row = (uint64_t)c->hc_mult * c->hidden_size * sizeof(uint16_t) + c->hc_mult * sizeof(float);
    plan->rolling += aligned(keep * row);
    if (draft) plan->rolling += c->draft_stages * aligned(c->sliding_window * (d + d / 32));
    if (plan->page == 0) plan->page = 64;
}

/* What the experts hold for `rows` rows, `top` of `count` each. Sizes as in ops_experts.c: fp32 and quantised rows (104
 * bytes a block of 32), gate, up and product of every expert. */
static uint64_t experts_bytes(const di_model_config *c, uint64_t rows, uint64_t count, uint64_t top) {
    const uint64_t block = 104;
    uint64_t d = c->hidden_size, f = c->moe_intermediate_size, all = top + 1;
    return rows * (count * sizeof(float) + top * (4 * d + d / 32 * block) +
                   all * (10 * f + 4 * d + 4 * f + f / 32 * block) + 8 * d + d / 32 * block);
}

/* What the kernels hold for a step of `rows` rows and `drafts` rows of draft blocks: the experts or the indexer need
 * most. Index scores as in ops_index.c. */
static uint64_t workspace_bytes(const di_model_config *c, uint64_t rows, uint64_t drafts, uint64_t context) {
    const uint64_t scores_at_once = (uint64_t)1 << 22;
    uint64_t d = c->hidden_size, experts = experts_bytes(c, rows, c->n_routed_experts, c->num_experts_per_tok);
    uint64_t head = experts_bytes(c, drafts, c->draft_n_routed_experts, c->draft_num_experts_per_tok);
    if (head > experts) experts = head;
    uint64_t queries = (uint64_t)c->index_n_heads * (c->index_head_dim * 5 + 4) + 4 * (d + c->q_lora_rank);
    uint64_t limit = context > scores_at_once ? context : scores_at_once;
    uint64_t scores = rows * context < limit ? rows * context : limit;
    uint64_t index = rows * queries + scores * (sizeof(float) + sizeof(int32_t));
    const uint64_t least = (uint64_t)1 << 20, most = experts > index ? experts : index;
    return most > least ? most : least;
}

/* Code and libraries, the tokenizer's tables (about 300 bytes an entry), and for each thread a stack, attention scratch
 * and the sampler's copies of a row. */
static uint64_t program_bytes(const di_model_config *config, uint64_t threads) {
    uint64_t vocabulary = config->vocab_size;
    return ((uint64_t)8 << 20) + vocabulary * 300 + threads * (((uint64_t)1 << 20) + vocabulary * 16);
}

void di_memory_plan_make(const di_model_config *config, const di_checkpoint *checkpoint, const di_plan_options *options,
                         di_memory_plan *plan) {
    memset(plan, 0, sizeof *plan);
    weight_planner planner = {.checkpoint = checkpoint, .plan = plan, .draft = options->draft};
    di_expected_tensors(config, plan_tensor, &planner);
    uint32_t keep = !options->compact ? 0 : options->keep ? options->keep : config->sliding_window + 12;
    plan_state(config, keep, options->draft, plan);
    plan->max_seqs = options->max_seqs;
    plan->max_rows = options->max_rows;
    di_model_options model = {.compact = options->compact, .keep = options->keep, .draft = options->draft};
    uint64_t weights = plan->mapped + plan->tables + plan->owned;
    plan->context = options->context;
    if (plan->context == 0) {
        /* Where not even the weights fit, the plan shows what the model's maximum would need. */
        uint64_t left = options->available > weights ? options->available - weights : 0;
        plan->context =
            di_plan_context(config->max_position_embeddings, plan->rolling, plan->page, plan->page_tokens, left);
    }
    model.context = plan->context;
    plan->step = di_step_bytes(config, &model, plan->max_rows, di_plan_logits_rows(plan->max_rows, plan->max_seqs));
    uint64_t drafts = options->draft ? (uint64_t)plan->max_seqs * config->draft_block_size : 0;
    if (options->draft) plan->draft = di_draft_bytes(config, plan->max_seqs);
    if (options->lookup) plan->draft = plan->max_seqs * di_lookup_bytes(plan->context);
    plan->workspace = workspace_bytes(config, (uint64_t)plan->max_rows + keep, drafts, plan->context);
    plan->program = program_bytes(config, options->threads ? options->threads : (uint64_t)di_usable_cores());
    uint64_t pages = ((uint64_t)plan->context + plan->page_tokens - 1) / plan->page_tokens;
    plan->sequence = plan->rolling + pages * plan->page;
    plan->sequences = plan->sequence * plan->max_seqs;
    uint64_t fixed = weights + plan->step + plan->draft + plan->workspace + plan->program;
    plan->total = fixed + plan->sequences;
    plan->private_bytes = plan->total - plan->mapped - plan->tables;
    plan->fits = options->available && plan->total <= options->available;
    if (options->available > fixed) plan->sequences_that_fit = (options->available - fixed) / plan->sequence;
}

/* ------------------------------------------------------------------------------------------------ machine */

static bool read_limit(const char *path, uint64_t *limit) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    char line[64] = "", *end = line;
    if (fgets(line, sizeof line, file)) *limit = strtoull(line, &end, 10);
    fclose(file);
    return end != line; /* "max" is no number */
}

void di_machine_look(const char *path, di_machine *machine) {
    static const char *const limits[] = {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"};
    memset(machine, 0, sizeof *machine);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) machine->memory = (uint64_t)pages * (uint64_t)page;
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        uint64_t limit = 0;
        if (read_limit(limits[i], &limit) && limit < machine->memory) machine->memory = limit;
    }
    machine->available = di_available_memory();
    machine->cores = di_usable_cores();
    struct statvfs disk;
    if (statvfs(path, &disk) == 0) machine->disk_free = (uint64_t)disk.f_bavail * disk.f_frsize;
}
