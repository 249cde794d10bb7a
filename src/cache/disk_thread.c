/* disk_thread.c - the I/O thread of the store: lists, reads, writes and removes. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache/disk_folder.h"
#include "cache/disk_internal.h"

enum { MOST_WARNINGS = 20, MOST_STUCK = 8 };
static const char SOMEBODY_ELSE[] = "another process is writing there";
/* Ages within this time are the same to a file: one system call a record and second is enough. */
static const int64_t TOUCH_NS = 1000000000;

/* ---------------------------------------------------------------- small things */

static void path_of(const di_disk *d, const di_disk_key *what, uint32_t folder, char path[PATH_MAX]) {
    char name[DI_DISK_NAME];
    di_disk_name(what, name);
    /* di_disk_open made sure that it fits. */
    snprintf(path, PATH_MAX, "%.3900s/%s/%s", d->root, folder ? d->foreign[folder - 1] : d->subfolder, name);
}

/* A folder full of damage must not flood the log. */
static void warn(di_disk *d, const char *path, const char *text, const char *more) {
    if (d->warnings > MOST_WARNINGS) return;
    if (d->warnings++ == MOST_WARNINGS)
        di_log_write(d->log, DI_LOG_WARN, "cache", "more is wrong with %s; `deepinfer cache verify` lists it", d->root);
    else
        di_log_write(d->log, DI_LOG_WARN, "cache", "%s: %s%s", path, text, more);
}

static int64_t wall_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* First of `count` ages that are above all given before, also when the clock was set back. */
static int64_t next_ages(di_disk *d, uint32_t count) {
    int64_t now = wall_ns();
    if (now <= d->clock_ns) now = d->clock_ns + 1;
    d->clock_ns = now + count;
    return now;
}

/* Of a path: nothing stands there. */
static bool is_gone(int error) {
    return error == ENOENT || error == ENOTDIR;
}

static void blame(di_disk *d, const char *path) {
    snprintf(d->blamed, sizeof d->blamed, "%s", path);
}

/* Takes a record out of the index. */
static void forget(di_disk *d, const di_disk_key *what) {
    pthread_mutex_lock(&d->mutex);
    di_entry *entry = di_index_find(&d->index, what);
    if (entry && entry->stored) {
        di_index_age_remove(&d->index, entry);
        di_index_remove(&d->index, entry);
    }
    pthread_mutex_unlock(&d->mutex);
}

/* Ages of a state's records: the snapshot first, then its blocks from the last to the first. */
static int64_t age_of(int64_t first, uint32_t blocks, uint32_t number) {
    return number == DI_DISK_REST ? first : first + (blocks - number);
}

static void use_record(di_disk *d, const di_disk_key *what, int64_t used_ns) {
    pthread_mutex_lock(&d->mutex);
    di_entry *entry = di_index_find(&d->index, what);
    bool stored = entry && entry->stored;
    pthread_mutex_unlock(&d->mutex);
    if (!stored) return;
    di_index_use(&d->index, entry, used_ns);
    if (used_ns - entry->file_ns < TOUCH_NS) return;
    char path[PATH_MAX];
    path_of(d, what, 0, path);
    d->io->touch(path, used_ns); /* where this is not allowed, ages end with the process */
    entry->file_ns = used_ns;
}

static void use_state(di_disk *d, const uint64_t *keys, const int32_t *ids, uint32_t position, int64_t first) {
    uint32_t blocks = position / d->page_tokens;
    di_disk_key what = di_disk_snapshot_key(d, keys, ids, position);
    use_record(d, &what, age_of(first, blocks, DI_DISK_REST));
    for (uint32_t b = blocks; b-- > 0;) {
        what = di_disk_block_key(keys[b + 1]);
        use_record(d, &what, age_of(first, blocks, b));
    }
}

static void lock_path(const di_disk *d, char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%.3900s/lock", d->root);
}

/* May files be written and removed? Whoever removes the folder removes the lock with it. */
static bool is_ours(const di_disk *d) {
    char path[PATH_MAX];
    lock_path(d, path);
    return d->lock_file >= 0 && di_disk_is_locked(d->lock_file, path) > 0;
}

/* ---------------------------------------------------------------- loading */

/* What stays as it is would be told with every request. */
static bool is_first_warning(di_disk *d, const di_disk_key *what) {
    pthread_mutex_lock(&d->mutex);
    di_entry *entry = di_index_find(&d->index, what);
    pthread_mutex_unlock(&d->mutex);
    bool first = !entry || !entry->warned;
    if (entry) entry->warned = true;
    return first;
}

/* Reads a record and compares it with what it should be, ids included. *damaged is set when it is removed. */
static bool load_record(di_disk *d, const di_disk_key *what, const int32_t *ids, uint32_t id_count,
                        const uint8_t fingerprint[DI_FINGERPRINT], di_disk_loaded *out, int32_t *decoder_low,
                        bool *damaged) {
    pthread_mutex_lock(&d->mutex);
    bool stored = di_index_is_stored(&d->index, what);
    pthread_mutex_unlock(&d->mutex);
    if (!stored) return false; /* evicted after it was found */
    char path[PATH_MAX];
    const char *why, *payload;
    const int32_t *stored_ids;
    di_disk_header h;
    path_of(d, what, 0, path);
    di_disk_fault fault = di_disk_read(d->io, path, DI_DISK_MOST_BYTES, &h, &out->bytes, &stored_ids, &payload, &why);
    if (fault == DI_DISK_SOUND && (!di_disk_same(&h.what, what) || h.digest != d->digest || h.layout != d->layout ||
                                   strcmp(h.profile, d->profile) != 0)) {
        fault = DI_DISK_DAMAGED;
        why = "its content belongs to another name";
    }
    if (fault == DI_DISK_UNREADABLE) {
        if (is_first_warning(d, what)) warn(d, path, why, "; it is a miss");
    } else if (fault != DI_DISK_SOUND) {
        forget(d, what);
        *damaged |= fault == DI_DISK_DAMAGED;
        if (fault == DI_DISK_DAMAGED) warn(d, path, why, "; it is a miss");
        if (fault == DI_DISK_DAMAGED && is_ours(d)) d->io->unlink(path);
    }
    if (fault != DI_DISK_SOUND) return false;
    /* The same name for other ids is a collision of hashes: an honest miss, nothing is wrong with the file. */
    if (h.id_count != id_count || memcmp(stored_ids, ids, id_count * sizeof *ids) != 0 ||
        memcmp(h.fingerprint, fingerprint, DI_FINGERPRINT) != 0)
        return false;
    out->payload = payload;
    out->length = h.payload_bytes;
    if (decoder_low) *decoder_low = h.decoder_low;
    return true;
}

static bool is_abandoned(di_disk *d, const di_disk_load *l) {
    pthread_mutex_lock(&d->mutex);
    bool abandoned = l->abandoned;
    pthread_mutex_unlock(&d->mutex);
    return abandoned;
}

/* Where one record is gone, others are too: they are all forgotten now, so that the next save brings them back at once.
 */
static void forget_missing(di_disk *d, const di_disk_load *l) {
    di_disk_key what = di_disk_snapshot_key(d, l->keys, l->ids, l->position);
    for (uint32_t b = 0; b <= l->block_count; b++) {
        char path[PATH_MAX];
        path_of(d, &what, 0, path);
        if (access(path, F_OK) != 0 && is_gone(errno)) forget(d, &what);
        if (b < l->block_count) what = di_disk_block_key(l->keys[b + 1]);
    }
}

/* Damage seldom comes alone: once there is some, the other records are looked at too, so that one miss heals them all.
 */
static bool read_records(di_disk *d, di_disk_load *l) {
    uint8_t fingerprint[DI_FINGERPRINT];
    bool ok = true, damaged = false;
    di_fingerprint_root(l->salt, fingerprint);
    for (uint32_t b = 0; b < l->block_count && (ok || damaged); b++) {
        const int32_t *ids = l->ids + (size_t)b * d->page_tokens;
        di_fingerprint_next(fingerprint, ids, d->page_tokens, fingerprint);
        di_disk_key what = di_disk_block_key(l->keys[b + 1]);
        ok &= load_record(d, &what, ids, d->page_tokens, fingerprint, &l->blocks[b], NULL, &damaged);
        if (is_abandoned(d, l)) return false;
    }
    if (!ok && !damaged) return false;
    uint32_t from = l->block_count * d->page_tokens;
    di_disk_key what = di_disk_snapshot_key(d, l->keys, l->ids, l->position);
    di_fingerprint_next(fingerprint, l->ids + from, l->position - from, fingerprint);
    ok &=
        load_record(d, &what, l->ids + from, l->position - from, fingerprint, &l->snapshot, &l->decoder_low, &damaged);
    if (ok) use_state(d, l->keys, l->ids, l->position, next_ages(d, l->block_count + 1));
    return ok;
}

static bool read_load(di_disk *d, di_disk_load *l) {
    if (read_records(d, l)) return true;
    if (!is_abandoned(d, l)) forget_missing(d, l);
    return false;
}

static void run_load(di_disk *d, di_disk_load *l) {
    bool ok = read_load(d, l);
    pthread_mutex_lock(&d->mutex);
    bool abandoned = l->abandoned;
    if (ok) {
        d->counters.loads++;
        d->counters.loaded_bytes += l->snapshot.length;
        for (uint32_t i = 0; i < l->block_count; i++) d->counters.loaded_bytes += l->blocks[i].length;
    } else if (!abandoned) {
        d->counters.load_failures++;
    }
    l->result = ok ? DI_DISK_LOADED : DI_DISK_MISSED;
    void (*wake)(void *arg) = d->wake;
    void *arg = d->wake_arg;
    pthread_mutex_unlock(&d->mutex);
    if (abandoned)
        di_disk_drop_load(l);
    else if (wake)
        wake(arg);
}

/* Somebody waits for loads: they go before everything else. */
static void serve_loads(di_disk *d) {
    for (;;) {
        pthread_mutex_lock(&d->mutex);
        di_disk_load *l = d->loads;
        if (l) d->loads = l->next;
        if (!d->loads) d->loads_end = &d->loads;
        pthread_mutex_unlock(&d->mutex);
        if (!l) return;
        run_load(d, l);
    }
}

/* ---------------------------------------------------------------- listing */

/* Number of a foreign folder, from 1; 0 when out of memory. */
static uint32_t foreign_folder(di_disk *d, const char *name) {
    for (uint32_t i = d->foreign_count; i-- > 0;)
        if (strcmp(d->foreign[i], name) == 0) return i + 1;
    if (d->foreign_count == d->foreign_capacity) {
        uint32_t capacity = d->foreign_capacity ? 2 * d->foreign_capacity : 16;
        char **grown = realloc((void *)d->foreign, capacity * sizeof *grown);
        if (!grown) return 0;
        d->foreign = grown;
        d->foreign_capacity = capacity;
    }
    d->foreign[d->foreign_count] = strdup(name);
    return d->foreign[d->foreign_count] ? ++d->foreign_count : 0;
}

static void list_record(di_disk *d, const di_disk_file *file) {
    uint32_t folder = strcmp(file->subfolder, d->subfolder) == 0 ? 0 : foreign_folder(d, file->subfolder);
    if (!folder && strcmp(file->subfolder, d->subfolder) != 0) return;
    pthread_mutex_lock(&d->mutex);
    uint64_t bytes = (uint64_t)file->info.st_size;
    di_entry *entry = folder ? NULL : di_index_find(&d->index, &file->what); /* queued: it will replace the file */
    if (!entry) entry = di_index_add(&d->index, &file->what, bytes, folder);
    if (entry) di_index_set_stored(&d->index, entry, bytes);
    pthread_mutex_unlock(&d->mutex);
    if (!entry) return;
    entry->file_ns = di_disk_file_ns(&file->info);
    int64_t now = wall_ns();
    if (entry->file_ns > now) { /* a clock was wrong: such a record would never be old */
        char path[PATH_MAX];
        path_of(d, &entry->what, folder, path);
        if (d->lock_file >= 0) d->io->touch(path, now);
        entry->file_ns = now;
    }
    di_index_use(&d->index, entry, entry->file_ns);
}

static bool list_file(void *arg, const di_disk_file *file) {
    di_disk *d = arg;
    if (file->kind == DI_FILE_TEMPORARY && d->lock_file >= 0) { /* its writer is dead: the lock is ours */
        char path[PATH_MAX];
        if (snprintf(path, sizeof path, "%s/%s", d->root, file->path) < (int)sizeof path) d->io->unlink(path);
    }
    if (file->kind == DI_FILE_RECORD) list_record(d, file);
    serve_loads(d);
    pthread_mutex_lock(&d->mutex);
    bool go_on = !d->stopping || d->counters.ready; /* what waits is still to be written within the budget */
    pthread_mutex_unlock(&d->mutex);
    return go_on;
}

static void list_records(di_disk *d) {
    di_error error = {0};
    if (di_disk_scan(d->root, list_file, d, &error) != DI_OK)
        warn(d, d->root, error.message, "; what it holds is not counted");
    di_index_sort(&d->index);
}

static void list_folder(di_disk *d) {
    di_error error = {0};
    if (di_disk_check_folder(d->root, &error) == DI_OK)
        list_records(d);
    else if (d->lock_file >= 0) /* otherwise said already */
        warn(d, d->root, error.message, "");
    pthread_mutex_lock(&d->mutex);
    d->counters.ready = true;
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->mutex);
}

/* ---------------------------------------------------------------- whose folder it is */

/* Takes out of the index what is not there any more, or everything. */
static void forget_vanished(di_disk *d, bool all) {
    for (di_entry *next, *entry = d->index.oldest; entry; entry = next) {
        char path[PATH_MAX];
        next = entry->newer;
        path_of(d, &entry->what, entry->folder, path);
        if (!all && (access(path, F_OK) == 0 || !is_gone(errno))) continue;
        di_index_age_remove(&d->index, entry);
        pthread_mutex_lock(&d->mutex);
        di_index_remove(&d->index, entry);
        pthread_mutex_unlock(&d->mutex);
    }
}

static void stay_read_only(di_disk *d, const char *folder, const char *why) {
    di_log_write(d->log, DI_LOG_WARN, "cache", "nothing will be stored in %s: %s", folder, why);
    if (d->lock_file >= 0) close(d->lock_file);
    d->lock_file = -1;
    d->read_only = true;
    pthread_mutex_lock(&d->mutex);
    d->counters.read_only = true;
    pthread_mutex_unlock(&d->mutex);
}

/* Makes the folder and locks it. False and errno if that cannot be. */
static bool take_folder(di_disk *d) {
    char path[PATH_MAX];
    lock_path(d, path);
    if (d->lock_file >= 0) close(d->lock_file);
    d->lock_file = -1;
    if (mkdir(d->root, 0700) != 0 && errno != EEXIST) return false;
    d->lock_file = di_disk_lock(path, true);
    return d->lock_file >= 0;
}

/* Before something is written: the folder may have been removed, and somebody else may have made and locked another.
 * What is there then is listed anew, so that the budget holds. False and errno: nothing may be written now. */
static bool keep_folder(di_disk *d) {
    char path[PATH_MAX];
    lock_path(d, path);
    bool had = d->lock_file >= 0;
    int kept = had ? di_disk_is_locked(d->lock_file, path) : 0, error = errno;
    if (kept > 0) return true;
    blame(d, d->root);
    errno = error;
    if (kept < 0 || d->read_only) return false;
    bool taken = take_folder(d);
    error = errno;
    if (!taken && error == EWOULDBLOCK) stay_read_only(d, d->root, SOMEBODY_ELSE);
    if (taken)
        di_log_write(d->log, DI_LOG_INFO, "cache", "%s was removed or replaced; it is locked and listed again",
                     d->root);
    if (had || taken) {
        forget_vanished(d, true);
        list_records(d);
    }
    errno = error;
    return taken;
}

/* ---------------------------------------------------------------- saving */

static bool is_over(di_disk *d, uint64_t need) {
    pthread_mutex_lock(&d->mutex);
    bool over = d->index.bytes + need > d->budget;
    pthread_mutex_unlock(&d->mutex);
    return over;
}

/* Removes the oldest record. A file that cannot be removed goes on counting, as the newest, so that it is tried again
 * after all others; where something else took its place there is no record any more. False and errno in both cases. */
static bool evict(di_disk *d, di_entry *oldest, const char *path) {
    struct stat info;
    int error = d->io->unlink(path) == 0 || is_gone(errno) ? 0 : errno;
    if (error && (lstat(path, &info) == 0 ? S_ISREG(info.st_mode) : !is_gone(errno))) {
        di_index_use(&d->index, oldest, next_ages(d, 1));
    } else {
        di_index_age_remove(&d->index, oldest);
        pthread_mutex_lock(&d->mutex);
        di_index_remove(&d->index, oldest);
        d->counters.evicted += !error;
        pthread_mutex_unlock(&d->mutex);
    }
    errno = error;
    return !error;
}

/* Removes oldest records until `need` bytes more fit the budget. False and errno if that cannot be. A record that stays
 * does not keep the others; but where nothing can be removed, not all are tried. */
static bool make_space(di_disk *d, uint64_t need) {
    int stuck = 0, error = ENOSPC;
    bool told = false;
    while (is_over(d, need)) {
        di_entry *oldest = d->index.oldest;
        char path[PATH_MAX];
        if (!oldest || stuck == MOST_STUCK) {
            blame(d, d->root);
            d->write_warned |= told;
            errno = error;
            return false;
        }
        bool tell = !stuck && !oldest->warned && !d->write_warned;
        oldest->warned |= tell;
        path_of(d, &oldest->what, oldest->folder, path);
        if (!evict(d, oldest, path)) {
            error = errno;
            stuck++;
            if (tell) warn(d, path, "it cannot be removed to make room: ", strerror(error));
            told |= tell;
        }
        serve_loads(d);
    }
    return true;
}

/* Makes the folders of a record. */
static bool make_folders(di_disk *d, char path[PATH_MAX]) {
    char *last = strrchr(path, '/');
    *last = 0;
    char *before = strrchr(path, '/');
    *before = 0;
    bool made = mkdir(path, 0700) == 0, ok = made || errno == EEXIST;
    if (made) forget_vanished(d, false);
    *before = '/';
    ok = ok && (mkdir(path, 0700) == 0 || errno == EEXIST);
    *last = '/';
    return ok;
}

static bool write_record(di_disk *d, const di_disk_header *h, const int32_t *ids, const char *payload, int64_t used) {
    char path[PATH_MAX];
    path_of(d, &h->what, 0, path);
    blame(d, path);
    /* Not synchronised: what a power failure cuts off is found by its checksum, and a cache may forget. */
    if (di_disk_write(d->io, path, h, ids, payload, used, false)) return true;
    return errno == ENOENT && make_folders(d, path) && di_disk_write(d->io, path, h, ids, payload, used, false);
}

/* The folder may be removed at any moment: then it is made again. */
static bool write_within(di_disk *d, uint64_t bytes, const di_disk_header *h, const int32_t *ids, const char *payload,
                         int64_t used) {
    for (int tries = 0;; tries++) {
        if (keep_folder(d) && make_space(d, bytes) && write_record(d, h, ids, payload, used)) return true;
        if (errno != ENOENT || tries == 2) return false;
    }
}

static void failed_to_write(di_disk *d, int error) {
    if (!d->write_warned && !d->read_only) warn(d, d->blamed, "cannot store: ", strerror(error));
    d->write_warned = true;
}

static bool save_record(di_disk *d, di_disk_header *h, const int32_t *ids, di_text *payload, int64_t used_ns) {
    serve_loads(d);
    h->digest = d->digest;
    h->layout = d->layout;
    memcpy(h->profile, d->profile, sizeof h->profile);
    h->payload_bytes = payload->length;
    uint64_t bytes = DI_DISK_HEADER + h->id_count * sizeof *ids + payload->length;
    bool fits = bytes <= d->budget; /* larger than the whole folder may be: nothing to complain about */
    bool ok = fits && write_within(d, bytes, h, ids, payload->data, used_ns);
    int error = errno;
    pthread_mutex_lock(&d->mutex);
    di_entry *entry = di_index_find(&d->index, &h->what);
    if (ok && !entry) entry = di_index_add(&d->index, &h->what, bytes, 0);
    if (ok && entry) di_index_set_stored(&d->index, entry, bytes);
    if (!ok && entry && !entry->stored) {
        di_index_remove(&d->index, entry);
        entry = NULL;
    }
    d->queued_bytes -= payload->length;
    d->counters.saves += ok;
    d->counters.saved_bytes += ok ? bytes : 0;
    d->counters.save_failures += fits && !ok;
    d->counters.dropped += !fits;
    if (fits) d->counters.failing = !ok;
    pthread_mutex_unlock(&d->mutex);
    if (ok && entry) {
        entry->file_ns = used_ns;
        di_index_use(&d->index, entry, used_ns);
    }
    if (ok)
        d->write_warned = false;
    else if (fits)
        failed_to_write(d, error);
    di_text_free(payload);
    return ok;
}

/* A snapshot whose blocks could not be written is not written either. */
static void give_up(di_disk *d, const di_disk_key *what, di_text *payload) {
    pthread_mutex_lock(&d->mutex);
    di_entry *entry = di_index_find(&d->index, what);
    if (entry && !entry->stored) di_index_remove(&d->index, entry);
    d->queued_bytes -= payload->length;
    pthread_mutex_unlock(&d->mutex);
    di_text_free(payload);
}

static void write_save(di_disk *d, di_disk_queued *s, int64_t first) {
    uint8_t fingerprint[DI_FINGERPRINT];
    uint32_t blocks = s->position / d->page_tokens, next = 0;
    bool complete = true;
    di_fingerprint_root(s->salt, fingerprint);
    for (uint32_t b = 0; b < blocks; b++) {
        const int32_t *ids = s->ids + (size_t)b * d->page_tokens;
        di_fingerprint_next(fingerprint, ids, d->page_tokens, fingerprint);
        if (next == s->block_count || s->blocks[next].number != b) continue;
        di_disk_header h = {.what = di_disk_block_key(s->keys[b + 1]), .id_count = d->page_tokens};
        memcpy(h.fingerprint, fingerprint, sizeof fingerprint);
        complete &= save_record(d, &h, ids, &s->blocks[next++].payload, age_of(first, blocks, b));
    }
    if (!s->rest.length) return;
    uint32_t from = blocks * d->page_tokens;
    di_disk_header h = {.what = di_disk_snapshot_key(d, s->keys, s->ids, s->position),
                        .decoder_low = s->decoder_low,
                        .id_count = s->position - from};
    di_fingerprint_next(fingerprint, s->ids + from, h.id_count, h.fingerprint);
    if (complete)
        save_record(d, &h, s->ids + from, &s->rest, age_of(first, blocks, DI_DISK_REST));
    else
        give_up(d, &h.what, &s->rest);
}

static void run_save(di_disk *d, di_disk_queued *s) {
    int64_t first = next_ages(d, s->position / d->page_tokens + 1);
    if (s->block_count || s->rest.length) write_save(d, s, first);
    use_state(d, s->keys, s->ids, s->position, first);
    pthread_mutex_lock(&d->mutex);
    d->queued_bytes -= s->overhead;
    pthread_mutex_unlock(&d->mutex);
    di_disk_drop_queued(s);
}

/* Reasons that may be over with the next state. */
static bool is_passing(int error) {
    return error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
}

void di_disk_prepare(di_disk *d, const char *folder) {
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3900s/%s", d->root, d->subfolder);
    blame(d, d->root);
    if (d->root[0] && take_folder(d) && (mkdir(path, 0700) == 0 || errno == EEXIST)) return;
    int error = d->root[0] ? errno : ENAMETOOLONG;
    d->counters.failing = is_passing(error);
    if (d->counters.failing)
        failed_to_write(d, error);
    else
        stay_read_only(d, folder,
                       !d->root[0]            ? "the path is too long"
                       : error == EWOULDBLOCK ? SOMEBODY_ELSE
                                              : strerror(error));
}
/* ---------------------------------------------------------------- the thread */

void *di_disk_run(void *arg) {
    di_disk *d = arg;
    list_folder(d);
    /* The budget may be smaller than last time. */
    if (d->lock_file >= 0 && !make_space(d, 0)) failed_to_write(d, errno);
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        di_disk_queued *s = NULL;
        d->busy = d->loads || d->saves;
        if (!d->busy) {
            pthread_cond_broadcast(&d->change);
            if (d->stopping) break;
            pthread_cond_wait(&d->work, &d->mutex);
            continue;
        }
        if (!d->loads) {
            s = d->saves;
            d->saves = s->next;
            if (!d->saves) d->saves_end = &d->saves;
        }
        pthread_mutex_unlock(&d->mutex);
        serve_loads(d);
        if (s) run_save(d, s);
        pthread_mutex_lock(&d->mutex);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}
