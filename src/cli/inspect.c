/* inspect.c - `deepinfer inspect`: what a model is, what it needs, what this machine can hold.
 *
 * Reads config.json and the headers of the shards, no data. Faults of the checkpoint do not stop it: everything is
 * printed as the config implies it, then the faults go to stderr and the exit code is 1.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/cli.h"
#include "cli/inspect_plan.h"
#include "engine/engine.h"

enum { FAULT_LINES = 200 };

typedef struct inspection {
    const char *path;
    di_model_config config;
    di_checkpoint *checkpoint; /* NULL: only a config was given */
    di_plan_budget budget;
    di_memory_plan plan;
    di_machine machine;
    bool spec, draft, compact; /* not --spec off; the draft head is loaded; it is not, because of --prefill compact */
    size_t fault_count;
    di_text faults;  /* a line each */
    di_text missing; /* a line for each shard whose data is cut */
    uint64_t missing_bytes;
} inspection;

static const char *const mode_names[] = {
    [DI_ATTENTION_SWA] = "window",
    [DI_ATTENTION_FULL] = "full",
    [DI_ATTENTION_REINDEX] = "reindex",
    [DI_ATTENTION_REUSE] = "reuse",
};

/* ------------------------------------------------------------------------------------------------ numbers */

/* 1234567 -> "1,234,567" */
static const char *grouped(uint64_t value, char out[32]) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, value), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0) out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

static void count_modes(const di_model_config *config, uint32_t counts[4]) {
    memset(counts, 0, 4 * sizeof counts[0]);
    for (uint32_t i = 0; i < config->num_hidden_layers; i++) counts[config->layers[i].mode]++;
}

/* ------------------------------------------------------------------------------------------------ text */

static void write_list(di_text *out, const uint32_t *values, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) di_text_printf(out, "%s%" PRIu32, i ? ", " : "", values[i]);
}

static void write_architecture(const inspection *in, di_text *out) {
    const di_model_config *c = &in->config;
    uint32_t modes[4];
    count_modes(c, modes);
    di_text_printf(out, "%s\n\nArchitecture  deepseek_v41\n", in->path);
    di_text_printf(out, "  layers          %u: %u encoder, %u decoder; %u window, %u full, %u reindex, %u reuse\n",
                   c->num_hidden_layers, c->cut, c->num_hidden_layers - c->cut, modes[DI_ATTENTION_SWA],
                   modes[DI_ATTENTION_FULL], modes[DI_ATTENTION_REINDEX], modes[DI_ATTENTION_REUSE]);
    di_text_printf(out, "  hidden size     %u in %u streams, vocabulary %u, context %u\n", c->hidden_size, c->hc_mult,
                   c->vocab_size, c->max_position_embeddings);
    di_text_printf(out, "  attention       %u heads of %u (%u rotary), window %u, best %u by an index of %u x %u\n",
                   c->num_attention_heads, c->head_dim, c->qk_rope_head_dim, c->sliding_window, c->index_topk,
                   c->index_n_heads, c->index_head_dim);
    di_text_printf(out, "  experts         %u of %u and %u shared, inner size %u\n", c->num_experts_per_tok,
                   c->n_routed_experts, c->n_shared_experts, c->moe_intermediate_size);
    if (c->engram_layer_count) {
        di_text_puts(out, "  Engram          layers ");
        write_list(out, c->engram_layers, c->engram_layer_count);
        di_text_printf(out, "; n-grams up to %u, %u heads of %u\n", c->engram_max_ngram, c->engram_n_heads,
                       c->engram_head_dim);
    }
    if (c->draft_stages)
        di_text_printf(out, "  draft head      %u stages, blocks of %u, %u of %u experts%s\n", c->draft_stages,
                       c->draft_block_size, c->draft_num_experts_per_tok, c->draft_n_routed_experts,
                       in->draft     ? ""
                       : in->compact ? " (not loaded: --prefill compact)"
                       : in->spec    ? " (not loaded: --max-rows 1)"
                                     : " (not loaded: --spec off)");
    if (c->has_vision)
        di_text_printf(out, "  vision          %u layers of %u (not used by this version)\n", c->vision_layers,
                       c->vision_dim);
}

static void write_row(di_text *out, const char *label, uint64_t layers, uint64_t parameters, uint64_t bytes) {
    char per_layer[32] = "", a[32], b[32];
    if (layers && parameters % layers == 0) grouped(parameters / layers, per_layer);
    di_text_printf(out, "  %-20s %17s %19s %19s\n", label, per_layer, grouped(parameters, a), grouped(bytes, b));
}

static void write_budget(const inspection *in, di_text *out) {
    const di_plan_budget *b = &in->budget;
    char label[32], number[32];
    di_text_printf(out, "\n%-22s %17s %19s %19s\n", "Budget", "per layer", "parameters", "bytes");
    for (int i = 0; i < DI_PART_COUNT; i++) {
        bool every_layer = i <= DI_PART_NORMS && i != DI_PART_COMPRESSOR_INDEXER;
        write_row(out, di_part_labels[i], every_layer ? in->config.num_hidden_layers : 0, b->part_parameters[i],
                  b->part_bytes[i]);
        if (i == DI_PART_NORMS) {
            snprintf(label, sizeof label, "= %u layers", in->config.num_hidden_layers);
            write_row(out, label, 0, b->layer_parameters, b->layer_bytes);
        }
        if (i == DI_PART_ENGRAM) write_row(out, "= backbone", 0, b->backbone_parameters, b->backbone_bytes);
    }
    write_row(out, "= all", 0, b->parameters, b->bytes);
    di_text_printf(out, "  %s tensors; ", grouped(b->tensors, number));
    di_text_printf(out, "a prompt token runs through %s parameters, ", grouped(b->active_prompt, number));
    di_text_printf(out, "a decoded one through %s\n", grouped(b->active_decoded, number));
    di_text_printf(out, "\n%-22s %19s\n", "Read per decoded token", "bytes");
    for (int i = 0; i < DI_READ_COUNT; i++)
        di_text_printf(out, "  %-20s %19s\n", di_read_labels[i], grouped(b->read[i], number));
    di_text_printf(out, "  %-20s %19s\n", "= all", grouped(b->read_total, number));
}

static void write_memory(di_text *out, const char *label, uint64_t bytes, const char *remark) {
    char number[32], size[32];
    di_text_printf(out, "  %-22s %17s  %10s  %s\n", label, grouped(bytes, number), di_cli_size_text(bytes, size),
                   remark);
}

static void write_plan(const inspection *in, di_text *out) {
    const di_memory_plan *p = &in->plan;
    char remark[96], number[32];
    di_text_printf(out, "\nMemory plan for %u sequence%s of %u positions, %u rows a step\n", p->max_seqs,
                   p->max_seqs == 1 ? "" : "s", p->context, p->max_rows);
    write_memory(out, "weights in the file", p->mapped, "mapped, used where they are");
    write_memory(out, "weights repacked", p->owned, "E2M1 matrices, vectors");
    write_memory(out, "tables in the file", p->tables, "mapped, read row by row");
    snprintf(remark, sizeof remark, "%u x %" PRIu64 ": %" PRIu64 " fixed, %.6g a position", p->max_seqs, p->sequence,
             p->rolling, (double)p->page / p->page_tokens);
    write_memory(out, "sequences", p->sequences, remark);
    write_memory(out, "step buffers", p->step, "");
    if (p->draft) write_memory(out, "draft buffers", p->draft, in->draft ? "" : "prompt look-up, --spec off saves it");
    write_memory(out, "kernel workspace", p->workspace, "");
    write_memory(out, "program", p->program, "code, tokenizer, threads");
    snprintf(remark, sizeof remark, "%s of it private", di_cli_size_text(p->private_bytes, number));
    write_memory(out, "= all", p->total, remark);
    bool head = in->config.draft_stages && !in->draft, vision = in->config.has_vision;
    if (p->unused)
        write_memory(out, "not loaded", p->unused,
                     head && vision ? "draft head, vision"
                     : head         ? "draft head"
                                    : "vision");
}

static void write_machine(const inspection *in, di_text *out) {
    const di_machine *m = &in->machine;
    const di_memory_plan *p = &in->plan;
    char a[32], b[32], c[32];
    di_text_printf(out, "\nThis machine: %d cores, %s memory, %s available, %s disk free\n", m->cores,
                   di_cli_size_text(m->memory, a), di_cli_size_text(m->available, b),
                   di_cli_size_text(m->disk_free, c));
    if (m->available == 0) {
        di_text_puts(out, "  how much memory is available is not known\n");
    } else if (p->fits) {
        di_text_printf(out, "  the plan fits; there is room for %" PRIu64 " sequences of %u positions\n",
                       p->sequences_that_fit, p->context);
    } else {
        di_text_printf(out, "  the plan needs %s more; ", di_cli_size_text(p->total - m->available, a));
        if (p->sequences_that_fit)
            di_text_printf(out, "there is room for %" PRIu64 " sequences of %u positions\n", p->sequences_that_fit,
                           p->context);
        else if (p->private_bytes <= m->available)
            di_text_puts(out, "it would run, reading weights from the disk again and again\n");
        else
            di_text_printf(out, "not even one sequence of %u positions fits\n", p->context);
    }
}

/* ------------------------------------------------------------------------------------------------ tensors */

typedef struct tensor_writer {
    di_text *out;
    di_json_writer *json; /* NULL: text */
    bool header;
} tensor_writer;

static void write_tensor(tensor_writer *w, const char *name, di_dtype dtype, uint32_t rank, const uint64_t *shape,
                         const char *shard) {
    uint64_t bytes = di_dtype_size(dtype);
    for (uint32_t i = 0; i < rank; i++) bytes *= shape[i];
    if (w->json) {
        di_json_object_begin(w->json);
        di_json_key(w->json, "name");
        di_json_string(w->json, name);
        di_json_key(w->json, "dtype");
        di_json_string(w->json, di_dtype_name(dtype));
        di_json_key(w->json, "shape");
        di_json_array_begin(w->json);
        for (uint32_t i = 0; i < rank; i++) di_json_unsigned(w->json, shape[i]);
        di_json_array_end(w->json);
        di_json_key(w->json, "bytes");
        di_json_unsigned(w->json, bytes);
        if (shard) di_json_key(w->json, "shard");
        if (shard) di_json_string(w->json, shard);
        di_json_object_end(w->json);
        return;
    }
    char text[96];
    int at = snprintf(text, sizeof text, "[");
    for (uint32_t i = 0; i < rank; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%" PRIu64, i ? ", " : "", shape[i]);
    snprintf(text + at, sizeof text - (size_t)at, "]");
    if (!w->header) di_text_puts(w->out, "\nTensors\n");
    w->header = true;
    di_text_printf(w->out, "  %-48s %-8s %-20s %15" PRIu64 "  %s\n", name, di_dtype_name(dtype), text, bytes,
                   shard ? shard : "");
}

static bool write_expected(void *arg, const di_expected_tensor *tensor) {
    write_tensor(arg, tensor->name, tensor->dtype, tensor->rank, tensor->shape, NULL);
    return true;
}

/* What is in the shards; without shards what the config implies. */
static void write_tensors(const inspection *in, tensor_writer *w) {
    if (!in->checkpoint) {
        di_expected_tensors(&in->config, write_expected, w);
        return;
    }
    for (size_t i = 0; i < di_checkpoint_count(in->checkpoint); i++) {
        const di_tensor *tensor = di_checkpoint_at(in->checkpoint, i);
        if (tensor->dtype < DI_DTYPE_COUNT)
            write_tensor(w, tensor->name, tensor->dtype, tensor->rank, tensor->shape,
                         di_checkpoint_shard(in->checkpoint, i));
    }
}

/* ------------------------------------------------------------------------------------------------ JSON */

static void put(di_json_writer *json, const char *key, uint64_t value) {
    di_json_key(json, key);
    di_json_unsigned(json, value);
}

static void put_text(di_json_writer *json, const char *key, const char *value) {
    di_json_key(json, key);
    di_json_string(json, value);
}

static void put_layers(di_json_writer *json, const di_model_config *c) {
    di_json_key(json, "layer_table");
    di_json_array_begin(json);
    for (uint32_t i = 0; i < c->num_hidden_layers; i++) {
        const di_layer_config *layer = &c->layers[i];
        di_json_object_begin(json);
        put_text(json, "mode", mode_names[layer->mode]);
        put(json, "ratio", layer->ratio);
        if (layer->kv_source >= 0) put(json, "kv_source", (uint64_t)layer->kv_source);
        if (layer->index_source >= 0) put(json, "index_source", (uint64_t)layer->index_source);
        if (layer->engram >= 0) di_json_key(json, "engram");
        if (layer->engram >= 0) di_json_bool(json, true);
        di_json_object_end(json);
    }
    di_json_array_end(json);
}

static void put_architecture(di_json_writer *json, const inspection *in) {
    const di_model_config *c = &in->config;
    uint32_t modes[4];
    count_modes(c, modes);
    di_json_key(json, "architecture");
    di_json_object_begin(json);
    put_text(json, "name", "deepseek_v41");
    put_text(json, "path", in->path);
    put(json, "layers", c->num_hidden_layers);
    put(json, "encoder_layers", c->cut);
    di_json_key(json, "modes");
    di_json_object_begin(json);
    for (int i = 0; i < 4; i++) put(json, mode_names[i], modes[i]);
    di_json_object_end(json);
    put(json, "vocabulary", c->vocab_size);
    put(json, "context", c->max_position_embeddings);
    put(json, "hidden_size", c->hidden_size);
    put(json, "streams", c->hc_mult);
    put(json, "attention_heads", c->num_attention_heads);
    put(json, "head_dim", c->head_dim);
    put(json, "window", c->sliding_window);
    put(json, "index_topk", c->index_topk);
    put(json, "experts", c->n_routed_experts);
    put(json, "experts_per_token", c->num_experts_per_tok);
    put(json, "shared_experts", c->n_shared_experts);
    put(json, "expert_inner_size", c->moe_intermediate_size);
    di_json_key(json, "engram_layers");
    di_json_array_begin(json);
    for (uint32_t i = 0; i < c->engram_layer_count; i++) di_json_unsigned(json, c->engram_layers[i]);
    di_json_array_end(json);
    put(json, "draft_stages", c->draft_stages);
    di_json_key(json, "vision");
    di_json_bool(json, c->has_vision);
    put_layers(json, c);
    di_json_object_end(json);
}

static void put_parts(di_json_writer *json, const uint64_t values[DI_PART_COUNT]) {
    di_json_key(json, "parts");
    di_json_object_begin(json);
    for (int i = 0; i < DI_PART_COUNT; i++) put(json, di_part_keys[i], values[i]);
    di_json_object_end(json);
}

static void put_budget(di_json_writer *json, const di_plan_budget *b) {
    di_json_key(json, "parameters");
    di_json_object_begin(json);
    put(json, "total", b->parameters);
    put(json, "layers", b->layer_parameters);
    put(json, "backbone", b->backbone_parameters);
    put(json, "active_prompt", b->active_prompt);
    put(json, "active_decoded", b->active_decoded);
    put_parts(json, b->part_parameters);
    di_json_object_end(json);
    di_json_key(json, "bytes");
    di_json_object_begin(json);
    put(json, "total", b->bytes);
    put(json, "tensors", b->tensors);
    put(json, "layers", b->layer_bytes);
    put(json, "backbone", b->backbone_bytes);
    put_parts(json, b->part_bytes);
    di_json_key(json, "decoded_token");
    di_json_object_begin(json);
    put(json, "total", b->read_total);
    for (int i = 0; i < DI_READ_COUNT; i++) put(json, di_read_keys[i], b->read[i]);
    di_json_object_end(json);
    di_json_object_end(json);
}

static void put_plan(di_json_writer *json, const inspection *in) {
    const di_memory_plan *p = &in->plan;
    const di_machine *m = &in->machine;
    di_json_key(json, "plan");
    di_json_object_begin(json);
    put(json, "context", p->context);
    put(json, "max_seqs", p->max_seqs);
    put(json, "max_rows", p->max_rows);
    put(json, "weights_mapped", p->mapped);
    put(json, "weights_repacked", p->owned);
    put(json, "tables_mapped", p->tables);
    put(json, "not_loaded", p->unused);
    put(json, "sequence_fixed", p->rolling);
    di_json_key(json, "sequence_per_position");
    di_json_number(json, (double)p->page / p->page_tokens);
    put(json, "sequence", p->sequence);
    put(json, "sequences", p->sequences);
    put(json, "step", p->step);
    put(json, "draft", p->draft);
    put(json, "workspace", p->workspace);
    put(json, "program", p->program);
    put(json, "private", p->private_bytes);
    put(json, "total", p->total);
    di_json_object_end(json);
    di_json_key(json, "machine");
    di_json_object_begin(json);
    put(json, "cores", (uint64_t)m->cores);
    put(json, "memory", m->memory);
    put(json, "available", m->available);
    put(json, "disk_free", m->disk_free);
    di_json_key(json, "fits");
    di_json_bool(json, p->fits);
    put(json, "sequences_that_fit", p->sequences_that_fit);
    di_json_object_end(json);
}

static void put_lines(di_json_writer *json, const char *key, const di_text *lines) {
    if (!lines->length) return;
    di_json_key(json, key);
    di_json_array_begin(json);
    for (const char *line = lines->data, *end; (end = strchr(line, '\n')); line = end + 1)
        di_json_string_n(json, line, (size_t)(end - line));
    di_json_array_end(json);
}

static void write_json(const inspection *in, bool tensors, di_text *out) {
    di_json_writer json;
    di_json_begin(&json, out);
    di_json_object_begin(&json);
    put_architecture(&json, in);
    put_budget(&json, &in->budget);
    put_plan(&json, in);
    put_lines(&json, "faults", &in->faults);
    put_lines(&json, "missing_data", &in->missing);
    if (tensors) {
        di_json_key(&json, "tensors");
        di_json_array_begin(&json);
        write_tensors(in, &(tensor_writer){.out = out, .json = &json});
        di_json_array_end(&json);
    }
    di_json_object_end(&json);
    di_text_putc(out, '\n');
}

/* ------------------------------------------------------------------------------------------------ command */

/* A config.json alone, or a folder with --load-format dummy, is inspected as a model without weights. */
static di_status look(const di_config *options, inspection *in, di_error *error) {
    di_status status = di_model_config_load(in->path, &in->config, error);
    struct stat info;
    bool dummy = di_config_is(options, DI_OPT_LOAD_FORMAT, "dummy");
    if (status == DI_OK && !dummy && stat(in->path, &info) == 0 && S_ISDIR(info.st_mode)) {
        const di_checkpoint_options headers = {.headers_only = true};
        status = di_checkpoint_open(in->path, &headers, &in->checkpoint, error);
    }
    if (status != DI_OK) return status;
    if (in->checkpoint) {
        in->fault_count = di_checkpoint_faults(in->checkpoint, &in->config, &in->faults);
        in->missing_bytes = di_checkpoint_missing_data(in->checkpoint, &in->missing);
    }
    di_budget_make(&in->config, &in->budget);
    di_machine_look(in->path, &in->machine);
    in->spec = !di_config_is(options, DI_OPT_SPEC, "off");
    bool drafts = di_plan_drafts(options);
    in->compact = drafts && di_config_is(options, DI_OPT_PREFILL, "compact");
    in->draft = drafts && !in->compact && in->config.draft_stages;
    const di_plan_options plan = {.context = (uint32_t)di_config_int(options, DI_OPT_CONTEXT),
                                  .max_seqs = (uint32_t)di_config_int(options, DI_OPT_MAX_SEQS),
                                  .max_rows = (uint32_t)di_config_int(options, DI_OPT_MAX_ROWS),
                                  .threads = (uint32_t)di_config_int(options, DI_OPT_THREADS),
                                  .compact = di_config_is(options, DI_OPT_PREFILL, "compact"),
                                  .draft = in->draft,
                                  .lookup = drafts && !in->draft,
                                  .keep = (uint32_t)di_config_int(options, DI_OPT_PREFILL_KEEP),
                                  .available = in->machine.available};
    if (plan.context > in->config.max_position_embeddings)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "context", "--context %u: the model's maximum is %u",
                       plan.context, in->config.max_position_embeddings);
    if (plan.compact && plan.keep && plan.keep < in->config.sliding_window)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prefill-keep",
                       "--prefill-keep %u: must be 0 or at least the model's window of %u", plan.keep,
                       in->config.sliding_window);
    di_memory_plan_make(&in->config, in->checkpoint, &plan, &in->plan);
    return DI_OK;
}

static void report_lines(const di_text *lines, const char *what) {
    size_t count = 0;
    if (!lines->length) return;
    fprintf(stderr, "deepinfer: %s\n", what);
    for (const char *line = lines->data, *end; (end = strchr(line, '\n')); line = end + 1)
        if (count++ < FAULT_LINES) fprintf(stderr, "  %.*s\n", (int)(end - line), line);
    if (count > FAULT_LINES) fprintf(stderr, "  ... and %zu more\n", count - FAULT_LINES);
}

static int report_faults(const inspection *in) {
    char what[160], size[32];
    snprintf(what, sizeof what, "the checkpoint has %zu fault%s:", in->fault_count, in->fault_count == 1 ? "" : "s");
    report_lines(&in->faults, what);
    snprintf(what, sizeof what, "%s of data are missing:", di_cli_size_text(in->missing_bytes, size));
    report_lines(&in->missing, what);
    return in->fault_count || in->missing_bytes ? DI_EXIT_FAILED : DI_EXIT_OK;
}

static int show(di_cli *cli, const inspection *in) {
    di_text out = {0};
    di_error error = {0};
    bool tensors = di_config_bool(cli->config, DI_OPT_TENSORS);
    if (di_config_bool(cli->config, DI_OPT_JSON)) {
        write_json(in, tensors, &out);
    } else {
        write_architecture(in, &out);
        write_budget(in, &out);
        write_plan(in, &out);
        write_machine(in, &out);
        if (!in->checkpoint) di_text_puts(&out, "\nOnly a configuration was given; no weights were looked at.\n");
        if (tensors) write_tensors(in, &(tensor_writer){.out = &out});
    }
    di_status status = out.failed || in->faults.failed || in->missing.failed
                           ? di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory")
                           : di_cli_write(out.data, out.length, &error);
    di_text_free(&out);
    return status == DI_OK ? report_faults(in) : di_cli_report(&error);
}

static int run(di_cli *cli) {
    inspection *in = calloc(1, sizeof *in);
    di_text path = {0};
    di_error error = {0};
    int code;
    di_status status = in ? DI_OK : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = di_find_model(cli->config, cli->model, &path, &error);
    if (status == DI_OK) {
        in->path = path.data;
        status = look(cli->config, in, &error);
    }
    code = status == DI_OK ? show(cli, in) : di_cli_report(&error);
    if (in) {
        di_checkpoint_close(in->checkpoint);
        di_text_free(&in->faults);
        di_text_free(&in->missing);
    }
    di_text_free(&path);
    free(in);
    return code;
}

const di_command di_command_inspect = {
    .name = "inspect",
    .summary = "what a model is, what it needs, what this machine can hold",
    .usage = "[MODEL] [options]",
    .text = "Prints architecture, parameters and bytes by part, a memory plan for\n"
            "--context and --max-seqs, and what this machine can hold. Reads only headers;\n"
            "MODEL may also be a config.json without weights. Exits with 1 when the\n"
            "checkpoint is incomplete or does not match its config.",
    .example = "  deepinfer inspect models/tiny --context 4096 --max-seqs 8",
    .groups = "inspect json",
    .run = run,
};
