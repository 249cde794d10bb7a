/* open.c - from a configuration to a loaded model and a running engine thread, and back. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/digest.h"
#include "base/find.h"
#include "base/thread.h"
#include "checkpoint/dummy.h"
#include "engine/engine_internal.h"

#ifndef DI_DATA_DIR
#define DI_DATA_DIR "/usr/local/share/deepinfer"
#endif
/* Set by whoever builds a release; part of the fingerprint. */
#ifndef DI_BUILD_ID
#define DI_BUILD_ID DI_VERSION_TEXT
#endif
#define DI_TEXT_OF(x)   #x
#define DI_TEXT(x)      DI_TEXT_OF(x)
#define DI_VERSION_TEXT DI_TEXT(DI_VERSION_MAJOR) "." DI_TEXT(DI_VERSION_MINOR) "." DI_TEXT(DI_VERSION_PATCH)

const char *di_version(void) {
    return DI_VERSION_TEXT;
}

void di_free(void *memory) {
    free(memory);
}

/* ---------------------------------------------------------------- configuration */

di_status di_read_configuration(di_config *config, di_text *notes, di_error *error) {
    di_status status = di_config_load_environment(config, notes, error);
    const char *file = di_config_text(config, DI_OPT_CONFIG);
    if (status == DI_OK && file[0]) status = di_config_load_file(config, file, false, error);
    return status;
}

di_status di_check_features(const di_config *config, di_error *error) {
    const char *accelerator = di_config_text(config, DI_OPT_ACCELERATOR);
    if (strcmp(accelerator, "ascend") == 0)
        return di_fail(error, DI_ERR_UNSUPPORTED, "accelerator",
                       "--accelerator ascend: deepinfer has no Ascend backend; use cpu");
    if (strcmp(accelerator, "cpu") != 0)
        return di_fail(error, DI_ERR_UNSUPPORTED, "accelerator",
                       "--accelerator %s: this version computes on the CPU only; use cpu", accelerator);
    return DI_OK;
}

/* ---------------------------------------------------------------- where the model is */

static bool exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

static bool embedded_model(di_text *path) {
    char binary[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", binary, sizeof binary - 1);
    if (length > 0) {
        binary[length] = 0;
        for (int up = 0; up <= 3; up++) {
            char *slash = strrchr(binary, '/');
            if (!slash) break;
            *slash = 0;
            /* The second is where an installation has it, whatever its prefix has become. */
            for (int place = 0; place < 2; place++) {
                di_text_clear(path);
                di_text_printf(path, "%s%s/models/tiny", binary, place ? "/share/deepinfer" : "");
                if (!path->failed && exists(path->data)) return true;
            }
        }
    }
    di_text_clear(path);
    di_text_puts(path, DI_DATA_DIR "/models/tiny");
    return !path->failed && exists(path->data);
}

di_status di_find_model(const di_config *config, const char *model, di_text *path, di_error *error) {
    const char *name = model && model[0] ? model : di_config_text(config, DI_OPT_MODEL);
    if (!name[0]) {
        if (embedded_model(path)) return DI_OK;
        return di_fail(error, DI_ERR_NOT_FOUND, "model",
                       "no model was named and there is no models/tiny beside the program, in the three folders above "
                       "it, or in " DI_DATA_DIR "; name a model folder or set DEEPINFER_MODEL");
    }
    di_text_puts(path, name);
    if (path->failed) return di_fail(error, DI_ERR_MEMORY, "model", "out of memory");
    if (!exists(name))
        return di_fail_errno(error, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, "model", errno,
                             "cannot open the model %s", name);
    return DI_OK;
}

/* ---------------------------------------------------------------- opening */

static bool is_dummy(const di_config *config) {
    return di_config_is(config, DI_OPT_LOAD_FORMAT, "dummy");
}

static di_status load_tokenizer(di_engine *engine, di_error *error) {
    di_text path = {0};
    bool found = false;
    di_text_printf(&path, "%s/tokenizer.json", engine->path);
    di_status status =
        path.failed ? di_fail(error, DI_ERR_MEMORY, "model", "out of memory") : di_find_file(path.data, &found, error);
    if (status == DI_OK && found) status = di_tokenizer_load(engine->path, &engine->tokenizer, error);
    di_text_free(&path);
    return status;
}

/* Headers and tokenizer: everything is verified before anything is computed or copied. */
static di_status open_files(di_engine *engine, const di_config *config, di_error *error) {
    bool dummy = is_dummy(config);
    di_status status = di_model_config_load(engine->path, &engine->config, error);
    if (status == DI_OK && di_config_is(config, DI_OPT_GENERATION_CONFIG, "model") && !engine->config.has_generation)
        status = di_fail(error, DI_ERR_NOT_FOUND, "generation-config",
                         "--generation-config model: %s has no generation_config.json; leave the option out, or give "
                         "--temperature and --top-p",
                         engine->path);
    if (status == DI_OK && !dummy) status = di_checkpoint_open(engine->path, NULL, &engine->checkpoint, error);
    if (status == DI_OK && !dummy) status = di_checkpoint_verify(engine->checkpoint, &engine->config, error);
    if (status == DI_OK) status = load_tokenizer(engine, error);
    if (status == DI_OK && engine->tokenizer && di_tokenizer_vocabulary(engine->tokenizer) > engine->config.vocab_size)
        status = di_fail(error, DI_ERR_CHECKPOINT, "tokenizer.json",
                         "the tokenizer has ids up to %u, the model's vocab_size is %u",
                         di_tokenizer_vocabulary(engine->tokenizer) - 1, engine->config.vocab_size);
    return status;
}

/* The same weights in every run: --seed is for noise. */
static di_status make_up_weights(di_engine *engine, di_error *error) {
    uint64_t need = di_dummy_bytes(&engine->config), available = di_available_memory();
    if (available && need > available)
        return di_fail(error, DI_ERR_MEMORY, "load-format",
                       "%s: its made-up weights take %" PRIu64 " bytes of memory, and %" PRIu64 " are available",
                       engine->path, need, available);
    return di_checkpoint_dummy(&engine->config, 0, engine->pool, &engine->checkpoint, error);
}

static di_status open_device(di_engine *engine, const di_config *config, di_error *error) {
    int threads = (int)di_config_int(config, DI_OPT_THREADS);
    if (!threads) threads = di_usable_cores();
    di_status status = di_pool_new(threads, &engine->pool, error);
    if (status == DI_OK)
        status = is_dummy(config) ? make_up_weights(engine, error)
                                  : di_checkpoint_scan(engine->checkpoint, engine->pool, error);
    if (status != DI_OK) return status;
    return di_cpu_backend_new(di_config_text(config, DI_OPT_CPU_ISA), engine->pool, engine->note, &engine->backend,
                              error);
}

static uint32_t option(const di_config *config, di_config_id id) {
    return (uint32_t)di_config_int(config, id);
}

static di_status choose_context(di_engine *engine, uint32_t wanted, di_error *error) {
    uint32_t maximum = engine->config.max_position_embeddings;
    if (wanted > maximum)
        return di_fail(error, DI_ERR_CONFIG, "context", "--context %u is above the model's maximum of %u positions",
                       wanted, maximum);
    const di_state_layout *layout = di_model_layout(engine->model);
    engine->context = wanted ? wanted
                             : di_plan_context(maximum, layout->rolling_bytes, layout->page_bytes, layout->page_tokens,
                                               di_available_memory());
    return DI_OK;
}

/* Pages of a sequence, and one for the copy of an unfinished page. */
static uint64_t least_pages(const di_engine *engine, uint32_t positions) {
    return positions / di_model_layout(engine->model)->page_tokens + 2;
}

uint64_t di_engine_least_kv_ram(const di_engine *engine, uint32_t positions) {
    return least_pages(engine, positions) * di_model_layout(engine->model)->page_bytes;
}

/* Pages as --kv-ram says. A context that nobody asked for is what fits them. */
static di_status take_pages(di_engine *engine, uint64_t bytes, bool context_wanted, uint32_t *count, di_error *error) {
    const di_state_layout *layout = di_model_layout(engine->model);
    uint64_t pages = bytes / layout->page_bytes, least = least_pages(engine, engine->context);
    if (pages < least && !context_wanted && pages >= 2) {
        engine->context = (uint32_t)(pages - 1) * layout->page_tokens - 1;
        least = pages;
    }
    uint32_t positions = context_wanted ? engine->context : layout->page_tokens - 1;
    if (pages < least)
        return di_fail(error, DI_ERR_CONFIG, "kv-ram",
                       "--kv-ram %" PRIu64 " is too little: a sequence of %u positions takes %" PRIu64
                       " bytes (--context)",
                       bytes, positions, di_engine_least_kv_ram(engine, positions));
    *count = pages > INT32_MAX ? INT32_MAX : (uint32_t)pages;
    return DI_OK;
}

/* Pages for every sequence's whole context, or as many as three quarters of the memory left hold; one sequence of the
 * whole context always fits. */
static uint32_t plan_pages(const di_engine *engine) {
    uint64_t least = least_pages(engine, engine->context), pages = (least - 1) * engine->max_seqs;
    uint64_t available = di_available_memory() / 4 * 3 / di_model_layout(engine->model)->page_bytes;
    if (available && pages > available) pages = available;
    if (pages < least) pages = least;
    return pages > INT32_MAX ? INT32_MAX : (uint32_t)pages;
}

enum { LISTING_MS = 2000 };

static void wake_engine(void *hub) {
    di_hub_wake(hub);
}

static di_status open_disk(di_engine *engine, const di_config *config, di_error *error) {
    const char *folder = di_config_text(config, DI_OPT_CACHE_DIR);
    engine->restore_ms = di_config_int(config, DI_OPT_RESTORE_MS);
    if (!folder[0]) return DI_OK;
    di_disk_options options = {
        .folder = folder,
        .bytes = (uint64_t)di_config_int(config, DI_OPT_CACHE_DISK),
        .digest = di_model_digest(engine->model),
        .profile = di_model_profile(engine->model),
        .layout = di_state_layout_id(engine->model),
        .page_tokens = di_model_layout(engine->model)->page_tokens,
        .log = engine->log,
    };
    di_status status = di_disk_open(&options, &engine->disk, error);
    if (status != DI_OK) return status;
    di_prefix_set_disk(engine->cache, engine->disk);
    /* So that the first requests after a restart find what is there; a very large folder goes on being listed. */
    if (!di_disk_wait_ready(engine->disk, LISTING_MS))
        di_log_write(engine->log, DI_LOG_WARN, "cache", "the cache folder %s is still being listed", folder);
    return DI_OK;
}

static di_status open_state(di_engine *engine, const di_config *config, di_error *error) {
    engine->max_gap_ms = di_config_int(config, DI_OPT_MAX_GAP);
    engine->stall_ms = di_config_int(config, DI_OPT_STALL_MS);
    engine->ageing_ms = di_config_int(config, DI_OPT_AGEING_MS);
    engine->swap_limit = (uint64_t)di_config_int(config, DI_OPT_SWAP_RAM);
    engine->event_limit = (uint64_t)di_config_int(config, DI_OPT_LIMIT_EVENT_BYTES);
    engine->masks_ms = di_config_int(config, DI_OPT_MASK_MS);
    engine->snapshot_interval = option(config, DI_OPT_SNAPSHOT_INTERVAL);
    uint64_t bytes = (uint64_t)di_config_int(config, DI_OPT_KV_RAM);
    uint32_t pages = 0;
    di_status status = DI_OK;
    if (bytes)
        status = take_pages(engine, bytes, option(config, DI_OPT_CONTEXT) != 0, &pages, error);
    else
        pages = plan_pages(engine);
    if (status == DI_OK) status = di_page_pool_new(engine->model, pages, &engine->pages, error);
    if (status == DI_OK)
        status = di_prefix_cache_new(engine->pages, (uint64_t)di_config_int(config, DI_OPT_CACHE_RAM), &engine->cache,
                                     error);
    if (status == DI_OK) status = open_disk(engine, config, error);
    return status == DI_OK ? di_compute_new(engine->model, &engine->compute, error) : status;
}

static di_status open_batches(di_engine *engine, di_error *error) {
    bool complete = true;
    for (int i = 0; i < 2; i++) {
        di_batch *batch = &engine->batches[i];
        batch->capacity = engine->max_logits + engine->max_seqs;
        batch->items = calloc(batch->capacity, sizeof *batch->items);
        batch->results = calloc(batch->capacity, sizeof *batch->results);
        complete = complete && batch->items && batch->results;
    }
    engine->tenant_capacity = engine->max_seqs + 16;
    engine->tenants = calloc(engine->tenant_capacity, sizeof *engine->tenants);
    engine->planned = calloc(engine->max_seqs, sizeof *engine->planned);
    engine->chosen = calloc(engine->max_seqs, sizeof(di_sequence *));
    engine->constrained = calloc(engine->max_seqs, sizeof(di_constraint_state *));
    engine->top_out = calloc(DI_SAMPLING_MAX_LOGPROBS, sizeof *engine->top_out);
    complete =
        complete && engine->tenants && engine->planned && engine->chosen && engine->constrained && engine->top_out;
    return complete ? DI_OK : di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a step");
}

/* A head that cannot be used here leaves prompt look-up. */
static bool has_draft_head(const di_engine *engine, const di_config *config) {
    uint32_t length;
    return di_speculation_wanted(config, &length) != DI_SPEC_OFF && engine->config.draft_stages && !engine->compact;
}

static void note_lookup(const di_engine *engine, const di_config *config) {
    uint32_t length;
    if (di_speculation_wanted(config, &length) == DI_SPEC_OFF) {
        if (di_config_is_set(config, DI_OPT_SPEC) && !di_config_is(config, DI_OPT_SPEC, "off"))
            di_log_write(engine->log, DI_LOG_WARN, "spec", "no drafts: --max-rows 1 leaves them no row");
        return;
    }
    if (has_draft_head(engine, config)) return;
    di_log_write(engine->log, DI_LOG_INFO, "spec", "drafts come from prompt look-up alone: %s",
                 engine->config.draft_stages ? "the draft head does not go with --prefill compact"
                                             : "the model has no draft head");
}

static di_status open_model(di_engine *engine, const di_config *config, di_error *error) {
    engine->compact = di_config_is(config, DI_OPT_PREFILL, "compact");
    engine->keep = option(config, DI_OPT_PREFILL_KEEP);
    if (!engine->keep) engine->keep = engine->config.sliding_window + 12;
    uint32_t wanted = option(config, DI_OPT_CONTEXT);
    di_model_options options = {
        .compact = engine->compact,
        .keep = engine->keep,
        .context = wanted ? wanted : engine->config.max_position_embeddings,
        .draft = has_draft_head(engine, config),
        .dummy = is_dummy(config),
    };
    di_status status = di_model_open(engine->path, &engine->config, engine->checkpoint, engine->tokenizer,
                                     engine->backend, &options, &engine->model, error);
    if (status == DI_OK) status = choose_context(engine, wanted, error);
    if (status != DI_OK) return status;
    note_lookup(engine, config);
    engine->max_rows = option(config, DI_OPT_MAX_ROWS);
    engine->max_seqs = option(config, DI_OPT_MAX_SEQS);
    engine->chunk = option(config, DI_OPT_CHUNK);
    if (!engine->chunk || engine->chunk > engine->max_rows) engine->chunk = engine->max_rows;
    engine->max_logits = di_plan_logits_rows(engine->max_rows, engine->max_seqs);
    uint32_t sequences = engine->max_seqs < engine->max_rows ? engine->max_seqs : engine->max_rows;
    status = di_step_new(engine->model, engine->max_rows, sequences, engine->max_logits, &engine->step, error);
    if (status == DI_OK) status = open_state(engine, config, error);
    if (status == DI_OK)
        status = di_constraints_new(config, engine->tokenizer, engine->config.vocab_size, engine->config.eos_token_ids,
                                    engine->config.eos_count, &engine->metrics, &engine->constraints, error);
    if (status == DI_OK) status = open_batches(engine, error);
    return status == DI_OK ? di_speculation_open(engine, config, error) : status;
}

/* Of what turns text into ids and back, and of the ids that begin and end a text. States do not depend on it, answers
 * do. */
static uint64_t text_digest(const di_engine *engine) {
    const di_model_config *config = &engine->config;
    uint64_t digest = engine->tokenizer ? di_tokenizer_digest(engine->tokenizer) : 0;
    digest = di_digest_u64(digest, (uint32_t)config->bos_token_id);
    digest = di_digest_u64(digest, (uint32_t)config->thinking);
    digest = di_digest_u64(digest, config->eos_count);
    for (uint32_t i = 0; i < config->eos_count; i++) digest = di_digest_u64(digest, (uint32_t)config->eos_token_ids[i]);
    return digest;
}

static di_status describe(di_engine *engine, di_error *error) {
    const di_model_config *config = &engine->config;
    const char *profile = di_model_profile(engine->model);
    di_text fingerprint = {0};
    di_text_printf(&fingerprint, "di-%016" PRIx64 "-%016" PRIx64 "-%s-%s", di_model_digest(engine->model),
                   text_digest(engine), profile, DI_BUILD_ID);
    if (fingerprint.failed) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
    engine->fingerprint = fingerprint.data;
    engine->info = (di_model_info){
        .path = engine->path,
        .architecture = "deepseek_v41",
        .isa = engine->backend->isa,
        .fingerprint = engine->fingerprint,
        .profile = profile,
        .vocabulary = config->vocab_size,
        .context = engine->context,
        .bos_token_id = config->bos_token_id < 0 ? UINT32_MAX : (uint32_t)config->bos_token_id,
        .has_tokenizer = engine->tokenizer != NULL,
        .thinking_default = config->thinking != 0,
    };
    return DI_OK;
}

static di_status start_thread(di_engine *engine, const di_config *config, di_error *error) {
    engine->max_queue = option(config, DI_OPT_LIMIT_QUEUE);
    engine->stop_limit = option(config, DI_OPT_LIMIT_STOP_STRINGS);
    engine->prompt_limit = (uint64_t)di_config_int(config, DI_OPT_LIMIT_PROMPT_BYTES);
    engine->hub = di_hub_new(error);
    if (!engine->hub) return DI_ERR_MEMORY;
    if (engine->disk) di_disk_on_load(engine->disk, wake_engine, engine->hub);
    di_compute_on_done(engine->compute, wake_engine, engine->hub);
    int failed = di_thread_start(&engine->thread, "di-engine", di_engine_main, engine);
    if (failed) return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot start the engine's thread");
    engine->started = true;
    return DI_OK;
}

di_status di_engine_open(const char *model, const di_config *config, di_log *log, di_engine **out, di_error *error) {
    *out = NULL;
    di_status status = di_check_features(config, error);
    if (status != DI_OK) return status;
    di_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the engine");
    pthread_mutex_init(&engine->refreshing, NULL); /* an ordinary one: cannot fail */
    engine->log = log;
    di_text path = {0};
    status = di_find_model(config, model, &path, error);
    engine->path = path.data;
    if (status == DI_OK) status = open_files(engine, config, error);
    if (status == DI_OK) status = open_device(engine, config, error);
    if (status == DI_OK) status = open_model(engine, config, error);
    if (status == DI_OK) status = describe(engine, error);
    if (status == DI_OK) status = start_thread(engine, config, error);
    if (status != DI_OK) {
        di_close(engine);
        return status;
    }
    di_log_write(log, DI_LOG_INFO, "engine", "%s: %s, %s, context %u", engine->path, engine->fingerprint,
                 engine->info.isa, engine->context);
    *out = engine;
    return DI_OK;
}

di_status di_read_options(const di_option *options, size_t option_count, di_config **out, di_error *error) {
    *out = NULL;
    if (option_count && !options) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "options", "options is NULL");
    di_config *config = di_config_new();
    if (!config) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the configuration");
    di_status status = DI_OK;
    for (size_t i = 0; status == DI_OK && i < option_count; i++) {
        if (!options[i].name || !options[i].value)
            status = di_fail(error, DI_ERR_INVALID_ARGUMENT, "options", "option %zu has no name or no value", i);
        else
            status = di_config_set(config, options[i].name, options[i].value, DI_CONFIG_FLAG, error);
    }
    if (status == DI_OK) status = di_read_configuration(config, NULL, error);
    if (status == DI_OK)
        *out = config;
    else
        di_config_free(config);
    return status;
}

di_status di_open(const char *model, const di_option *options, size_t option_count, di_engine **engine,
                  di_error *error) {
    if (!engine) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "engine", "engine is NULL");
    *engine = NULL;
    di_config *config = NULL;
    di_status status = di_read_options(options, option_count, &config, error);
    if (status == DI_OK) status = di_engine_open(model, config, NULL, engine, error);
    di_config_free(config);
    return status;
}

void di_close(di_engine *engine) {
    if (!engine) return;
    if (engine->started) {
        di_hub_stop(engine->hub);
        pthread_join(engine->thread, NULL);
    }
    di_disk_close(engine->disk); /* these two wake the hub until they are closed */
    di_compute_free(engine->compute);
    di_hub_release(engine->hub);
    di_step_free(engine->step);
    di_speculation_free(engine->speculation);
    di_prefix_cache_free(engine->cache);
    di_page_pool_free(engine->pages);
    di_model_close(engine->model);
    if (engine->backend) engine->backend->free(engine->backend);
    di_pool_free(engine->pool);
    di_constraints_free(engine->constraints);
    di_tokenizer_free(engine->tokenizer);
    di_checkpoint_close(engine->checkpoint);
    di_text_free(&engine->text);
    di_text_free(&engine->scratch);
    for (int i = 0; i < 2; i++) {
        free(engine->batches[i].items);
        free(engine->batches[i].results);
        free(engine->batches[i].top);
    }
    free(engine->queue.items);
    free(engine->running.items);
    free(engine->swapped.items);
    free(engine->tenants);
    free(engine->planned);
    free((void *)engine->chosen);
    free((void *)engine->constrained);
    free(engine->top_out);
    free(engine->watched_row);
    free(engine->fingerprint);
    free(engine->path);
    pthread_mutex_destroy(&engine->refreshing);
    free(engine);
}

/* ---------------------------------------------------------------- what others may know */

const di_model_info *di_engine_info(const di_engine *engine) {
    return &engine->info;
}
const di_tokenizer *di_engine_tokenizer(const di_engine *engine) {
    return engine->tokenizer;
}
const di_model_config *di_engine_model_config(const di_engine *engine) {
    return &engine->config;
}
uint32_t di_engine_queue_limit(const di_engine *engine) {
    return engine->max_queue;
}
uint32_t di_engine_max_sequences(const di_engine *engine) {
    return engine->max_seqs;
}
const char *di_engine_note(const di_engine *engine) {
    return engine->note;
}

static di_status need_tokenizer(const di_engine *engine, di_error *error) {
    if (!engine) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "engine", "engine is NULL");
    if (!engine->tokenizer)
        return di_fail(error, DI_ERR_UNSUPPORTED, "tokenizer", "the model in %s has no tokenizer.json", engine->path);
    return DI_OK;
}

di_status di_tokenize(di_engine *engine, const char *text, size_t length, bool control, int32_t **token_ids,
                      size_t *count, di_error *error) {
    di_status status = need_tokenizer(engine, error);
    if (status != DI_OK) return status;
    if (!text || !token_ids || !count)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, text ? "token_ids" : "text", "a pointer is NULL");
    di_ids ids = {0};
    if (length == DI_ZSTRING) length = strlen(text);
    status = di_tokenizer_encode(engine->tokenizer, text, length, control, &ids, error);
    if (status == DI_OK && ids.failed) status = di_fail(error, DI_ERR_MEMORY, "text", "out of memory for token ids");
    if (status != DI_OK) {
        di_ids_free(&ids);
        return status;
    }
    *token_ids = ids.data;
    *count = ids.count;
    return DI_OK;
}

di_status di_detokenize(di_engine *engine, const int32_t *token_ids, size_t count, char **text, size_t *length,
                        di_error *error) {
    di_status status = need_tokenizer(engine, error);
    if (status != DI_OK) return status;
    if ((count && !token_ids) || !text || !length)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, text ? "token_ids" : "text", "a pointer is NULL");
    di_text out = {0};
    di_text_append(&out, "", 0);
    status = di_tokenizer_decode(engine->tokenizer, token_ids, count, false, &out, error);
    if (status == DI_OK && (out.failed || !out.data))
        status = di_fail(error, DI_ERR_MEMORY, "token_ids", "out of memory for the text");
    if (status != DI_OK) {
        di_text_free(&out);
        return status;
    }
    *text = out.data;
    *length = out.length;
    return DI_OK;
}
