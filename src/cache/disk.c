/* disk.c - the store: what its owner asks for, and the I/O thread. */
#include "cache/disk.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/clock.h"
#include "base/thread.h"
#include "cache/disk_folder.h"
#include "cache/disk_index.h"
#include "cache/disk_record.h"

enum { LONGEST_ROOT = 3900 }; /* so that every path below it fits PATH_MAX */
enum { MOST_WARNINGS = 20, MOST_STUCK = 8 };
static const char SOMEBODY_ELSE[] = "another process is writing there";
static const uint64_t DEFAULT_QUEUE = (uint64_t)64 << 20;
/* Ages within this time are the same to a file: one system call a record and second is enough. */
static const int64_t TOUCH_NS = 1000000000;

typedef struct block {
    uint32_t number;
    di_text payload;
} block;

/* One di_disk_save: what is to be written, and the records that count as used. */
typedef struct save {
    struct save *next;
    uint64_t salt;
    int32_t *ids;   /* [position] */
    uint64_t *keys; /* [position / page_tokens + 1] */
    uint32_t position, block_count;
    int32_t decoder_low;
    uint64_t overhead; /* bytes of ids and keys, which wait too */
    block *blocks;     /* [block_count], ascending */
    di_text rest;      /* length 0: no snapshot to write */
} save;

typedef struct loaded {
    char *bytes;
    const char *payload;
    size_t length;
} loaded;

struct di_disk_load {
    di_disk_load *next;
    di_disk *disk;
    uint64_t salt;
    int32_t *ids;   /* [position] */
    uint64_t *keys; /* [block_count + 1] */
    uint32_t position, block_count;
    loaded *blocks; /* [block_count] */
    loaded snapshot;
    int32_t decoder_low;
    /* under the store's mutex */
    di_disk_result result;
    bool abandoned;
};

struct di_disk {
    /* fixed */
    char root[PATH_MAX]; /* FOLDER */
    char subfolder[DI_DISK_SUBFOLDER];
    char profile[DI_DISK_PROFILE];
    uint64_t budget, digest, layout, queue_limit;
    uint32_t page_tokens;
    di_log *log;
    const di_disk_io *io;

    /* I/O thread; besides these, the list of ages in the index */
    int lock_file;  /* -1: the folder is not ours */
    bool read_only; /* and will not be */
    char **foreign; /* [foreign_count] folders below the root that are not ours; entry.folder - 1 */
    uint32_t foreign_count, foreign_capacity;
    int64_t clock_ns; /* last age given */
    uint32_t warnings;
    bool write_warned;
    char blamed[PATH_MAX]; /* what the last failure was about */

    pthread_t thread;
    pthread_mutex_t mutex; /* everything below */
    pthread_cond_t work, change;
    di_disk_index index;
    save *saves, **saves_end;
    di_disk_load *loads, **loads_end;
    uint64_t queued_bytes;
    bool stopping, busy;
    void (*wake)(void *arg);
    void *wake_arg;
    di_disk_counters counters;
};

/* ---------------------------------------------------------------- keys and paths */

uint64_t di_disk_root(uint64_t salt) {
    return XXH64(&salt, sizeof salt, 0);
}
uint64_t di_disk_next(uint64_t key, const int32_t *ids, uint32_t count) {
    return XXH64(ids, count * sizeof *ids, key);
}
uint64_t di_disk_tail(const int32_t *ids, uint32_t count) {
    return XXH64(ids, count * sizeof *ids, 7);
}

/* keys[b]: behind b complete blocks. [blocks + 1], malloc'ed. */
static uint64_t *chain(const di_disk *d, uint64_t salt, const int32_t *ids, uint32_t blocks) {
    uint64_t *keys = malloc(((size_t)blocks + 1) * sizeof *keys);
    if (!keys) return NULL;
    keys[0] = di_disk_root(salt);
    for (uint32_t b = 0; b < blocks; b++)
        keys[b + 1] = di_disk_next(keys[b], ids + (size_t)b * d->page_tokens, d->page_tokens);
    return keys;
}

static di_disk_key block_key(uint64_t key) {
    return (di_disk_key){.kind = DI_DISK_BLOCK, .key = key};
}

static di_disk_key snapshot_key(const di_disk *d, const uint64_t *keys, const int32_t *ids, uint32_t position) {
    uint32_t blocks = position / d->page_tokens, from = blocks * d->page_tokens;
    return (di_disk_key){DI_DISK_SNAPSHOT, keys[blocks], position, di_disk_tail(ids + from, position - from)};
}

static void path_of(const di_disk *d, const di_disk_key *what, uint32_t folder, char path[PATH_MAX]) {
    char name[DI_DISK_NAME];
    di_disk_name(what, name);
    /* di_disk_open made sure that it fits. */
    snprintf(path, PATH_MAX, "%.3900s/%s/%s", d->root, folder ? d->foreign[folder - 1] : d->subfolder, name);
}

/* ---------------------------------------------------------------- I/O thread: small things */

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
    di_disk_key what = snapshot_key(d, keys, ids, position);
    use_record(d, &what, age_of(first, blocks, DI_DISK_REST));
    for (uint32_t b = blocks; b-- > 0;) {
        what = block_key(keys[b + 1]);
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

/* ---------------------------------------------------------------- I/O thread: loading */

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
                        const uint8_t fingerprint[DI_FINGERPRINT], loaded *out, int32_t *decoder_low, bool *damaged) {
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
    di_disk_key what = snapshot_key(d, l->keys, l->ids, l->position);
    for (uint32_t b = 0; b <= l->block_count; b++) {
        char path[PATH_MAX];
        path_of(d, &what, 0, path);
        if (access(path, F_OK) != 0 && is_gone(errno)) forget(d, &what);
        if (b < l->block_count) what = block_key(l->keys[b + 1]);
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
        di_disk_key what = block_key(l->keys[b + 1]);
        ok &= load_record(d, &what, ids, d->page_tokens, fingerprint, &l->blocks[b], NULL, &damaged);
        if (is_abandoned(d, l)) return false;
    }
    if (!ok && !damaged) return false;
    uint32_t from = l->block_count * d->page_tokens;
    di_disk_key what = snapshot_key(d, l->keys, l->ids, l->position);
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

static void free_load(di_disk_load *l) {
    for (uint32_t i = 0; l->blocks && i < l->block_count; i++) free(l->blocks[i].bytes);
    free(l->snapshot.bytes);
    free(l->blocks);
    free(l->keys);
    free(l->ids);
    free(l);
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
        free_load(l);
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

/* ---------------------------------------------------------------- I/O thread: listing */

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
    di_entry *entry = NULL;
    if (folder || !di_index_find(&d->index, &file->what)) /* a queued record may have the name: it replaces the file */
        entry = di_index_add(&d->index, &file->what, (uint64_t)file->info.st_size, folder);
    if (entry) di_index_set_stored(&d->index, entry);
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

static void list_folder(di_disk *d) {
    di_error error = {0};
    if (di_disk_check_folder(d->root, &error) == DI_OK)
        di_disk_scan(d->root, list_file, d);
    else if (d->lock_file >= 0) /* otherwise said already */
        warn(d, d->root, error.message, "");
    di_index_sort(&d->index);
    pthread_mutex_lock(&d->mutex);
    d->counters.ready = true;
    pthread_cond_broadcast(&d->change);
    pthread_mutex_unlock(&d->mutex);
}

/* ---------------------------------------------------------------- I/O thread: whose folder it is */

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
        di_disk_scan(d->root, list_file, d);
        di_index_sort(&d->index);
    }
    errno = error;
    return taken;
}

/* ---------------------------------------------------------------- I/O thread: saving */

static void free_save(save *s) {
    for (uint32_t i = 0; i < s->block_count; i++) di_text_free(&s->blocks[i].payload);
    di_text_free(&s->rest);
    free(s->blocks);
    free(s->keys);
    free(s->ids);
    free(s);
}

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
    if (ok && entry) di_index_set_stored(&d->index, entry);
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

static void write_save(di_disk *d, save *s, int64_t first) {
    uint8_t fingerprint[DI_FINGERPRINT];
    uint32_t blocks = s->position / d->page_tokens, next = 0;
    bool complete = true;
    di_fingerprint_root(s->salt, fingerprint);
    for (uint32_t b = 0; b < blocks; b++) {
        const int32_t *ids = s->ids + (size_t)b * d->page_tokens;
        di_fingerprint_next(fingerprint, ids, d->page_tokens, fingerprint);
        if (next == s->block_count || s->blocks[next].number != b) continue;
        di_disk_header h = {.what = block_key(s->keys[b + 1]), .id_count = d->page_tokens};
        memcpy(h.fingerprint, fingerprint, sizeof fingerprint);
        complete &= save_record(d, &h, ids, &s->blocks[next++].payload, age_of(first, blocks, b));
    }
    if (!s->rest.length) return;
    uint32_t from = blocks * d->page_tokens;
    di_disk_header h = {.what = snapshot_key(d, s->keys, s->ids, s->position),
                        .decoder_low = s->decoder_low,
                        .id_count = s->position - from};
    di_fingerprint_next(fingerprint, s->ids + from, h.id_count, h.fingerprint);
    if (complete)
        save_record(d, &h, s->ids + from, &s->rest, age_of(first, blocks, DI_DISK_REST));
    else
        give_up(d, &h.what, &s->rest);
}

static void run_save(di_disk *d, save *s) {
    int64_t first = next_ages(d, s->position / d->page_tokens + 1);
    if (s->block_count || s->rest.length) write_save(d, s, first);
    use_state(d, s->keys, s->ids, s->position, first);
    pthread_mutex_lock(&d->mutex);
    d->queued_bytes -= s->overhead;
    pthread_mutex_unlock(&d->mutex);
    free_save(s);
}

/* ---------------------------------------------------------------- the I/O thread */

static void *io_main(void *arg) {
    di_disk *d = arg;
    list_folder(d);
    /* The budget may be smaller than last time. */
    if (d->lock_file >= 0 && !make_space(d, 0)) failed_to_write(d, errno);
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        save *s = NULL;
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

/* ---------------------------------------------------------------- opening and closing */

/* Reasons that may be over with the next state. */
static bool is_passing(int error) {
    return error == ENOSPC || error == EDQUOT || error == EMFILE || error == ENFILE || error == ENOMEM;
}

static void prepare_folder(di_disk *d, const char *folder) {
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

static void free_disk(di_disk *d) {
    di_index_free(&d->index);
    for (uint32_t i = 0; i < d->foreign_count; i++) free(d->foreign[i]);
    free((void *)d->foreign);
    if (d->lock_file >= 0) close(d->lock_file);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->change);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

static void init_locks(di_disk *d) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->change, &attributes);
    pthread_condattr_destroy(&attributes);
}

di_status di_disk_open(const di_disk_options *o, di_disk **disk, di_error *error) {
    *disk = NULL;
    di_disk *d = calloc(1, sizeof *d);
    if (!d) return di_fail(error, DI_ERR_MEMORY, "cache-dir", "out of memory for the disk cache");
    if (strlen(o->folder) <= LONGEST_ROOT) snprintf(d->root, sizeof d->root, "%s", o->folder);
    snprintf(d->profile, sizeof d->profile, "%s", o->profile);
    di_disk_subfolder(o->digest, o->profile, o->layout, d->subfolder);
    d->budget = o->bytes;
    d->digest = o->digest;
    d->layout = o->layout;
    d->page_tokens = o->page_tokens;
    d->queue_limit = o->queue_bytes ? o->queue_bytes : DEFAULT_QUEUE;
    d->log = o->log;
    d->io = o->io ? o->io : &di_disk_system_io;
    d->lock_file = -1;
    d->busy = true; /* until the folder is listed */
    d->saves_end = &d->saves;
    d->loads_end = &d->loads;
    init_locks(d);
    prepare_folder(d, o->folder);
    int failed = di_index_init(&d->index) ? di_thread_start(&d->thread, "di-disk", io_main, d) : ENOMEM;
    if (failed) {
        free_disk(d);
        return di_fail_errno(error, DI_ERR_MEMORY, "cache-dir", failed, "cannot start the disk cache");
    }
    *disk = d;
    return DI_OK;
}

void di_disk_close(di_disk *d) {
    if (!d) return;
    pthread_mutex_lock(&d->mutex);
    d->stopping = true;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
    pthread_join(d->thread, NULL);
    free_disk(d);
}

static bool wait_for(di_disk *d, int64_t timeout_ms, bool idle) {
    int64_t until = di_now_ns() + timeout_ms * 1000000;
    const struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    bool reached = false, late = false;
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        reached = d->counters.ready && (!idle || !(d->busy || d->loads || d->saves));
        if (reached || late) break;
        late = pthread_cond_timedwait(&d->change, &d->mutex, &at) != 0;
    }
    pthread_mutex_unlock(&d->mutex);
    return reached;
}

bool di_disk_wait_ready(di_disk *d, int64_t timeout_ms) {
    return wait_for(d, timeout_ms, false);
}

bool di_disk_wait_idle(di_disk *d, int64_t timeout_ms) {
    return wait_for(d, timeout_ms, true);
}

void di_disk_on_load(di_disk *d, void (*wake)(void *arg), void *arg) {
    pthread_mutex_lock(&d->mutex);
    d->wake_arg = arg;
    d->wake = wake;
    pthread_mutex_unlock(&d->mutex);
}

void di_disk_get_counters(di_disk *d, di_disk_counters *counters) {
    pthread_mutex_lock(&d->mutex);
    *counters = d->counters;
    counters->bytes = d->index.bytes;
    counters->records = d->index.records;
    counters->queued = d->queued_bytes;
    pthread_mutex_unlock(&d->mutex);
}

/* ---------------------------------------------------------------- owner: finding and loading */

uint32_t di_disk_find(di_disk *d, uint64_t salt, const int32_t *ids, uint32_t count, uint32_t above) {
    if (count < 2 || above >= count - 1) return 0;
    uint64_t *keys = chain(d, salt, ids, (count - 1) / d->page_tokens);
    if (!keys) return 0;
    pthread_mutex_lock(&d->mutex);
    uint32_t best = di_index_longest(&d->index, keys, ids, count - 1, d->page_tokens, above);
    pthread_mutex_unlock(&d->mutex);
    free(keys);
    return best;
}

di_disk_load *di_disk_load_start(di_disk *d, uint64_t salt, const int32_t *ids, uint32_t position) {
    di_disk_load *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    *l = (di_disk_load){.disk = d, .salt = salt, .position = position, .block_count = position / d->page_tokens};
    l->ids = malloc((position ? position : 1) * sizeof *ids);
    l->keys = chain(d, salt, ids, l->block_count);
    l->blocks = calloc(l->block_count ? l->block_count : 1, sizeof *l->blocks);
    if (!l->ids || !l->keys || !l->blocks) {
        free_load(l);
        return NULL;
    }
    memcpy(l->ids, ids, position * sizeof *ids);
    pthread_mutex_lock(&d->mutex);
    *d->loads_end = l;
    d->loads_end = &l->next;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
    return l;
}

di_disk_result di_disk_load_poll(di_disk_load *l) {
    pthread_mutex_lock(&l->disk->mutex);
    di_disk_result result = l->result;
    pthread_mutex_unlock(&l->disk->mutex);
    return result;
}

const char *di_disk_load_block(const di_disk_load *l, uint32_t number, size_t *length) {
    *length = l->blocks[number].length;
    return l->blocks[number].payload;
}

const char *di_disk_load_snapshot(const di_disk_load *l, size_t *length, int32_t *decoder_low) {
    *length = l->snapshot.length;
    *decoder_low = l->decoder_low;
    return l->snapshot.payload;
}

void di_disk_load_free(di_disk_load *l) {
    if (!l) return;
    pthread_mutex_lock(&l->disk->mutex);
    bool pending = l->result == DI_DISK_PENDING;
    l->abandoned = pending;
    pthread_mutex_unlock(&l->disk->mutex);
    if (!pending) free_load(l);
}

/* ---------------------------------------------------------------- owner: saving */

/* Which records of the state are neither stored nor queued: missing[b], and missing[blocks] for the snapshot. */
static uint32_t find_missing(di_disk *d, const save *s, bool *missing) {
    uint32_t blocks = s->position / d->page_tokens, count = 0;
    di_disk_key what = snapshot_key(d, s->keys, s->ids, s->position);
    pthread_mutex_lock(&d->mutex);
    missing[blocks] = !di_index_find(&d->index, &what);
    for (uint32_t b = 0; b < blocks; b++) {
        what = block_key(s->keys[b + 1]);
        missing[b] = !di_index_find(&d->index, &what);
        count += missing[b];
    }
    pthread_mutex_unlock(&d->mutex);
    return count;
}

/* One payload, if there is room for it: something always fits an empty queue. */
static bool draw(di_disk_source source, void *arg, uint32_t number, uint64_t *room, bool empty, di_text *payload) {
    if (!*room && !empty) return false;
    source(arg, number, payload);
    if (payload->length && !payload->failed && (payload->length <= *room || empty)) {
        *room -= payload->length < *room ? payload->length : *room;
        return true;
    }
    di_text_free(payload);
    return false;
}

/* Fills in payloads as far as the queue's room goes. Returns the number of records that found none. */
static uint32_t draw_all(di_disk *d, save *s, di_disk_source source, void *arg) {
    uint32_t blocks = s->position / d->page_tokens;
    bool *missing = malloc((size_t)blocks + 1);
    uint32_t wanted = missing ? find_missing(d, s, missing) : 0, left = wanted;
    if (missing) s->blocks = calloc(wanted ? wanted : 1, sizeof *s->blocks);
    if (!s->blocks) {
        free(missing);
        return 1;
    }
    pthread_mutex_lock(&d->mutex);
    bool empty = !d->queued_bytes;
    uint64_t room = d->queued_bytes < d->queue_limit ? d->queue_limit - d->queued_bytes : 0;
    pthread_mutex_unlock(&d->mutex);
    if (s->overhead > room && !empty) {
        free(s->blocks);
        s->blocks = NULL; /* not even this fits: nothing is queued */
    }
    room -= s->overhead < room ? s->overhead : room;
    for (uint32_t b = 0; s->blocks && b < blocks && left; b++) {
        block *next = &s->blocks[s->block_count];
        if (!missing[b]) continue;
        if (!draw(source, arg, b, &room, empty && !s->block_count, &next->payload)) break;
        next->number = b;
        s->block_count++;
        left--;
    }
    left += missing[blocks];
    if (s->blocks && missing[blocks] && left == 1 &&
        draw(source, arg, DI_DISK_REST, &room, empty && !s->block_count, &s->rest))
        left = 0;
    free(missing);
    return left;
}

/* Adds the names of what will be written. Without memory for a name the record is written all the same, and found after
 * a restart. */
static void enqueue(di_disk *d, save *s, uint32_t dropped) {
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < s->block_count; i++) {
        const block *b = &s->blocks[i];
        di_disk_key what = block_key(s->keys[b->number + 1]);
        di_index_add(&d->index, &what, DI_DISK_HEADER + d->page_tokens * sizeof *s->ids + b->payload.length, 0);
        d->queued_bytes += b->payload.length;
    }
    if (s->rest.length) {
        di_disk_key what = snapshot_key(d, s->keys, s->ids, s->position);
        uint64_t ids = s->position % d->page_tokens * sizeof *s->ids;
        di_index_add(&d->index, &what, DI_DISK_HEADER + ids + s->rest.length, 0);
        d->queued_bytes += s->rest.length;
    }
    d->queued_bytes += s->overhead;
    d->counters.dropped += dropped;
    *d->saves_end = s;
    d->saves_end = &s->next;
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->mutex);
}

void di_disk_save(di_disk *d, uint64_t salt, const int32_t *ids, uint32_t position, int32_t decoder_low,
                  di_disk_source source, void *arg) {
    pthread_mutex_lock(&d->mutex);
    bool read_only = d->counters.read_only;
    pthread_mutex_unlock(&d->mutex);
    if (read_only || !position) return;
    save *s = calloc(1, sizeof *s);
    if (!s) return;
    *s = (save){.salt = salt, .position = position, .decoder_low = decoder_low};
    s->overhead = position * sizeof *ids + (position / d->page_tokens + 1) * sizeof *s->keys;
    s->ids = malloc(position * sizeof *ids);
    s->keys = chain(d, salt, ids, position / d->page_tokens);
    if (!s->ids || !s->keys) {
        free_save(s);
        return;
    }
    memcpy(s->ids, ids, position * sizeof *ids);
    uint32_t dropped = draw_all(d, s, source, arg);
    if (s->blocks) {
        enqueue(d, s, dropped);
        return;
    }
    free_save(s);
    pthread_mutex_lock(&d->mutex);
    d->counters.dropped += dropped;
    pthread_mutex_unlock(&d->mutex);
}
