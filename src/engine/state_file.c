/* state_file.c - di_save_state and di_load_state: a sequence's state object in a file.
 *
 * The file is a record (cache/disk_record.h) of kind "state file": its ids are all those of the state, its payload is
 * the serialised state (cache/state.h). Files are read and written on the caller's thread; the engine thread only
 * copies between the prefix cache and memory, between two steps. Files with and without draft rings are taken by
 * engines with and without a draft head: what is missing costs drafts, nothing else.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "cache/disk_record.h"
#include "engine/engine_internal.h"

typedef struct transfer {
    di_engine *engine;
    uint64_t tenant;
    int32_t *ids;   /* [count + 1]; the last one is no token, so that a state of all of them counts as a prefix */
    uint32_t count; /* load: positions of the state */
    const char *path;
    di_text state; /* save: serialised */
    const char *bytes;
    size_t length; /* load: serialised */
    uint32_t positions;
    di_status status;
    di_error *error;
} transfer;

static bool copy_ids(transfer *t, const int32_t *ids, uint32_t count) {
    t->ids = malloc(((size_t)count + 1) * sizeof *ids);
    if (!t->ids) return false;
    if (count) memcpy(t->ids, ids, count * sizeof *ids);
    t->ids[count] = -1;
    t->count = count;
    return true;
}

/* ---------------------------------------------------------------- saving */

static void take_from_cache(void *arg) {
    transfer *t = arg;
    di_engine *engine = t->engine;
    di_state *state = NULL;
    di_prefix_hit hit = {0};
    t->status = di_state_new(engine->pages, t->count + 1, &state, t->error);
    if (t->status != DI_OK) return;
    di_prefix_make_room(engine->cache, 1); /* for a copy of the unfinished page */
    di_prefix_lookup(engine->cache, t->tenant, t->ids, t->count + 1, state, &hit);
    t->positions = hit.cached;
    if (hit.cached) t->status = di_state_serialise(state, &t->state, t->error);
    di_state_free(state);
}

static di_status write_state(const transfer *t) {
    const di_engine *engine = t->engine;
    di_disk_header h = {.what = {.kind = DI_DISK_STATE, .position = t->positions},
                        .digest = di_model_digest(engine->model),
                        .layout = di_state_layout_id(engine->model),
                        .id_count = t->positions,
                        .payload_bytes = t->state.length};
    struct stat info; /* a device or folder is not to be replaced */
    if (stat(t->path, &info) == 0 && !S_ISREG(info.st_mode))
        return di_fail(t->error, DI_ERR_IO, "path", "cannot write the state to %s: it is not a plain file", t->path);
    strncpy(h.profile, di_model_profile(engine->model), sizeof h.profile - 1);
    if (di_disk_write(&di_disk_system_io, t->path, &h, t->ids, t->state.data, 0, true)) return DI_OK;
    return di_fail_errno(t->error, DI_ERR_IO, "path", errno, "cannot write the state to %s", t->path);
}

di_status di_save_state(di_engine *engine, const int32_t *token_ids, size_t count, const char *tenant, const char *path,
                        size_t *positions, di_error *error) {
    if (positions) *positions = 0;
    if (!engine || !path || (count && !token_ids))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT,
                       !engine ? "engine"
                       : !path ? "path"
                               : "token_ids",
                       "a pointer is NULL");
    if (count > engine->context) count = engine->context; /* no state is longer */
    transfer t = {.engine = engine, .tenant = di_namespace(NULL, tenant), .path = path, .error = error};
    if (!copy_ids(&t, token_ids, (uint32_t)count))
        return di_fail(error, DI_ERR_MEMORY, "token_ids", "out of memory for %zu token ids", count);
    if (!di_hub_call(engine->hub, take_from_cache, &t))
        t.status = di_fail(error, DI_ERR_CANCELLED, NULL, "the engine is being closed");
    else if (t.status == DI_OK && !t.positions)
        t.status = di_fail(error, DI_ERR_NOT_FOUND, "token_ids", "no beginning of these %zu ids is in the prefix cache",
                           count);
    if (t.status == DI_OK) t.status = write_state(&t);
    if (t.status == DI_OK && positions) *positions = t.positions;
    di_text_free(&t.state);
    free(t.ids);
    return t.status;
}

/* ---------------------------------------------------------------- loading */

static void give_to_cache(void *arg) {
    transfer *t = arg;
    di_engine *engine = t->engine;
    di_state *state = NULL;
    di_prefix_hit hit = {0};
    t->status = di_state_new(engine->pages, t->count + 1, &state, t->error);
    if (t->status != DI_OK) return;
    di_prefix_make_room(engine->cache, di_state_pages_missing(state, t->count) + 1);
    t->status = di_state_restore(state, t->bytes, t->length, t->error);
    if (t->status == DI_OK && (uint32_t)di_state_length(state) != t->count)
        t->status = di_fail(t->error, DI_ERR_FORMAT, "path", "its state has %d positions, its ids are %u",
                            di_state_length(state), t->count);
    if (t->status == DI_OK) {
        di_prefix_publish(engine->cache, t->tenant, t->ids, state);
        di_state_reset(state);
        di_prefix_lookup(engine->cache, t->tenant, t->ids, t->count + 1, state, &hit);
        t->positions = hit.cached;
    }
    di_state_free(state);
}

static di_status check_state(const transfer *t, const di_disk_header *h, const int32_t *ids) {
    const di_engine *engine = t->engine;
    const char *profile = di_model_profile(engine->model);
    if (h->what.kind != DI_DISK_STATE || h->id_count != h->what.position || !h->id_count)
        return di_fail(t->error, DI_ERR_FORMAT, "path", "%s: it is no state file, but a record of the disk cache",
                       t->path);
    if (h->digest != di_model_digest(engine->model))
        return di_fail(t->error, DI_ERR_UNSUPPORTED, "path", "%s: it was made with other weights or another config",
                       t->path);
    if (strncmp(h->profile, profile, sizeof h->profile - 1) != 0)
        return di_fail(t->error, DI_ERR_UNSUPPORTED, "path",
                       "%s: it was made with the numeric profile %s; this engine has %s", t->path, h->profile, profile);
    if (h->id_count > engine->context)
        return di_fail(t->error, DI_ERR_CONTEXT_LENGTH, "path",
                       "%s: it has %u positions; the context holds %u (--context)", t->path, h->id_count,
                       engine->context);
    if (h->layout != di_state_layout_id(engine->model))
        return di_fail(t->error, DI_ERR_FORMAT, "path", "%s: it was made by another version of deepinfer", t->path);
    for (uint32_t i = 0; i < h->id_count; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= engine->info.vocabulary)
            return di_fail(t->error, DI_ERR_FORMAT, "path", "%s: token id %d at position %u is not in the vocabulary",
                           t->path, ids[i], i);
    return DI_OK;
}

/* At most what a draft head adds to a state, whether this engine has loaded it or not: a ring of keys with their scales
 * for each stage. */
static uint64_t draft_bytes(const di_model_config *c) {
    return (uint64_t)c->draft_stages * (sizeof(uint64_t) + (uint64_t)c->sliding_window * 2 * c->head_dim);
}

static di_status read_state(transfer *t, char **bytes) {
    const di_model_config *c = &t->engine->config;
    uint32_t most = c->max_position_embeddings;
    uint64_t limit = di_state_serialised_bytes(t->engine->model, most) + draft_bytes(c);
    limit += (uint64_t)most * sizeof *t->ids;
    di_disk_header h;
    const int32_t *ids;
    const char *why;
    char target[PATH_MAX]; /* the store's reader follows no links; here they are the caller's */
    di_disk_fault fault = DI_DISK_MISSING;
    if (realpath(t->path, target))
        fault = di_disk_read(&di_disk_system_io, target, limit, &h, bytes, &ids, &t->bytes, &why);
    if (fault == DI_DISK_MISSING || fault == DI_DISK_UNREADABLE)
        return di_fail_errno(t->error, fault == DI_DISK_MISSING ? DI_ERR_NOT_FOUND : DI_ERR_IO, "path", errno,
                             "cannot read the state in %s", t->path);
    if (fault != DI_DISK_SOUND) return di_fail(t->error, DI_ERR_FORMAT, "path", "%s: %s", t->path, why);
    t->length = h.payload_bytes;
    di_status status = check_state(t, &h, ids);
    if (status != DI_OK || copy_ids(t, ids, h.id_count)) return status;
    return di_fail(t->error, DI_ERR_MEMORY, "path", "out of memory for %u token ids", h.id_count);
}

di_status di_load_state(di_engine *engine, const char *path, const char *tenant, size_t *positions, di_error *error) {
    if (positions) *positions = 0;
    if (!engine || !path)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, engine ? "path" : "engine", "a pointer is NULL");
    transfer t = {.engine = engine, .tenant = di_namespace(NULL, tenant), .path = path, .error = error};
    char *bytes = NULL;
    t.status = read_state(&t, &bytes);
    if (t.status == DI_OK) {
        di_error inner = {0};
        t.error = &inner;
        if (!di_hub_call(engine->hub, give_to_cache, &t))
            t.status = di_fail(&inner, DI_ERR_CANCELLED, NULL, "the engine is being closed");
        if (t.status != DI_OK)
            di_fail(error, t.status, t.status == DI_ERR_FORMAT ? "path" : inner.param, "%s: %s", path, inner.message);
    }
    if (t.status == DI_OK && t.positions != t.count)
        t.status = di_fail(error, DI_ERR_LIMIT, "cache-ram",
                           "%s: the prefix cache cannot hold its %u positions (--cache-ram, --kv-ram)", path, t.count);
    if (t.status == DI_OK && positions) *positions = t.positions;
    free(bytes);
    free(t.ids);
    return t.status;
}
