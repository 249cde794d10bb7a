/* disk.c - the store: names in memory, eviction by age, the I/O thread. */
#include "cache/disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/disk_folder.h"
#include "cache/disk_record.h"

enum { BUCKETS = 1 << 16, PATH_BYTES = 4096 };

typedef struct record {
    struct record *next; /* in the bucket */
    di_disk_key what;
    uint64_t bytes;
    int64_t used_ns;
    bool stored;   /* false: waits to be written */
    char *foreign; /* path of a record of other weights or another profile: only evicted */
} record;

typedef struct save {
    struct save *next;
    di_disk_header header;
    int32_t *ids;
    di_text payload;
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
    int32_t *ids; /* [position] */
    uint32_t position, first_block, block_count;
    loaded *blocks; /* [block_count] from first_block on */
    loaded snapshot;
    int32_t decoder_low;
    di_disk_result result;
    bool abandoned;
};

struct di_disk {
    char root[PATH_BYTES];   /* FOLDER */
    char folder[PATH_BYTES]; /* FOLDER/DIGEST-PROFILE */
    uint64_t budget, digest, queue_limit;
    char profile[64];
    uint32_t page_tokens;
    di_log *log;
    const di_disk_io *io;
    void (*wake)(void *arg);
    void *wake_arg;
    int lock_file; /* -1: not ours */

    pthread_t thread;
    pthread_mutex_t mutex; /* everything below */
    pthread_cond_t work, listed;
    record **buckets;
    save *saves, **saves_end;
    di_disk_load *loads, **loads_end;
    uint64_t queued_bytes;
    bool stopping, write_warned;
    di_disk_counters counters;
};

/* ---------------------------------------------------------------- keys */

uint64_t di_disk_root(uint64_t salt) {
    return XXH64(&salt, sizeof salt, 0);
}
uint64_t di_disk_next(uint64_t key, const int32_t *ids, uint32_t count) {
    return XXH64(ids, count * sizeof *ids, key);
}
uint64_t di_disk_tail(const int32_t *ids, uint32_t count) {
    return XXH64(ids, count * sizeof *ids, 7);
}

static record **bucket_of(const di_disk *d, uint64_t key) {
    return &d->buckets[key % BUCKETS];
}

static bool same(const di_disk_key *a, const di_disk_key *b) {
    return a->kind == b->kind && a->key == b->key && a->position == b->position && a->tail == b->tail;
}

/* Mutex held, as in all functions on records. */
static record *find(const di_disk *d, const di_disk_key *what) {
    record *r = *bucket_of(d, what->key);
    while (r && (r->foreign || !same(&r->what, what))) r = r->next;
    return r;
}

static record *add(di_disk *d, const di_disk_key *what, uint64_t bytes, int64_t used_ns) {
    record *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    *r = (record){.next = *bucket_of(d, what->key), .what = *what, .bytes = bytes, .used_ns = used_ns, .stored = true};
    *bucket_of(d, what->key) = r;
    d->counters.records++;
    d->counters.bytes += bytes;
    return r;
}

static void drop(di_disk *d, record *r) {
    record **link = bucket_of(d, r->what.key);
    while (*link != r) link = &(*link)->next;
    *link = r->next;
    d->counters.records--;
    d->counters.bytes -= r->bytes;
    free(r->foreign);
    free(r);
}

/* ---------------------------------------------------------------- listing */

static bool list_record(void *arg, const di_disk_record *found) {
    di_disk *d = arg;
    di_disk_key what = {0};
    const char *slash = strrchr(found->path, '/');
    if (strcmp(found->kind, "temporary") == 0 && !d->counters.read_only) { /* its writer is dead: the lock is ours */
        char path[2 * PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", d->root, found->path);
        d->io->unlink(path);
        return true;
    }
    size_t own = strlen(d->folder) - strlen(d->root) - 1;
    bool ours = strncmp(found->path, d->folder + strlen(d->root) + 1, own) == 0 && found->path[own] == '/';
    if (!slash || !di_disk_parse_name(slash + 1, &what)) return true;
    pthread_mutex_lock(&d->mutex);
    record *r = ours && find(d, &what) ? NULL : add(d, &what, found->bytes, found->used_ns);
    if (r && !ours && !(r->foreign = strdup(found->path))) drop(d, r);
    bool go_on = !d->stopping;
    pthread_mutex_unlock(&d->mutex);
    return go_on;
}

static void list_folder(di_disk *d) {
    di_error error = {0};
    if (di_disk_walk(d->root, false, list_record, d, &error))
        di_log_write(d->log, DI_LOG_WARN, "cache", "%s", error.message);
    pthread_mutex_lock(&d->mutex);
    d->counters.ready = true;
    pthread_cond_broadcast(&d->listed);
    pthread_mutex_unlock(&d->mutex);
}

/* ---------------------------------------------------------------- eviction */

static int by_age(const void *a, const void *b) {
    const record *x = *(record *const *)a, *y = *(record *const *)b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return (int)y->what.kind - (int)x->what.kind; /* a snapshot before its blocks */
}

/* Brings the folder below nine tenths of its budget, oldest first. I/O thread. */
static void evict(di_disk *d) {
    pthread_mutex_lock(&d->mutex);
    uint32_t count = 0;
    record **all = d->counters.bytes > d->budget ? malloc(d->counters.records * sizeof *all) : NULL;
    for (size_t b = 0; all && b < BUCKETS; b++)
        for (record *r = d->buckets[b]; r; r = r->next)
            if (r->stored) all[count++] = r;
    if (all) qsort(all, count, sizeof *all, by_age);
    for (uint32_t i = 0; all && i < count && d->counters.bytes > d->budget / 10 * 9; i++) {
        char path[PATH_BYTES + 128], name[DI_DISK_NAME];
        di_disk_name(&all[i]->what, name);
        if (all[i]->foreign)
            snprintf(path, sizeof path, "%s/%s", d->root, all[i]->foreign);
        else
            snprintf(path, sizeof path, "%s/%s", d->folder, name);
        drop(d, all[i]);
        d->counters.evicted++;
        pthread_mutex_unlock(&d->mutex);
        d->io->unlink(path);
        pthread_mutex_lock(&d->mutex);
    }
    pthread_mutex_unlock(&d->mutex);
    free(all);
}

/* ---------------------------------------------------------------- saving (I/O thread) */

static void free_save(save *s) {
    free(s->ids);
    di_text_free(&s->payload);
    free(s);
}

static bool write_record(di_disk *d, const save *s) {
    char path[PATH_BYTES + 128], name[DI_DISK_NAME];
    di_disk_name(&s->header.what, name);
    snprintf(path, sizeof path, "%s/%s", d->folder, name);
    if (di_disk_write(d->io, path, &s->header, s->ids, s->payload.data)) return true;
    if (errno != ENOENT) return false;
    char *slash = strrchr(path, '/');
    *slash = 0;
    if (mkdir(path, 0700) != 0 && errno != EEXIST) return false;
    *slash = '/';
    return di_disk_write(d->io, path, &s->header, s->ids, s->payload.data);
}

static void run_save(di_disk *d, save *s) {
    bool ok = write_record(d, s);
    int error = errno;
    pthread_mutex_lock(&d->mutex);
    record *r = find(d, &s->header.what);
    d->queued_bytes -= s->payload.length;
    if (ok) {
        d->counters.saves++;
        d->counters.saved_bytes += s->payload.length;
        if (r) r->stored = true;
        d->write_warned = false;
    } else {
        d->counters.save_failures++;
        if (r) drop(d, r);
    }
    bool warn = !ok && !d->write_warned;
    if (warn) d->write_warned = true;
    pthread_mutex_unlock(&d->mutex);
    if (warn)
        di_log_write(d->log, DI_LOG_WARN, "cache", "cannot write to %s: %s; going on without storing", d->root,
                     strerror(error));
    free_save(s);
    evict(d);
}

/* ---------------------------------------------------------------- loading (I/O thread) */

static void forget(di_disk *d, const di_disk_key *what, const char *why) {
    char path[PATH_BYTES + 128], name[DI_DISK_NAME];
    di_disk_name(what, name);
    snprintf(path, sizeof path, "%s/%s", d->folder, name);
    pthread_mutex_lock(&d->mutex);
    record *r = find(d, what);
    if (r) drop(d, r);
    bool remove = !d->counters.read_only;
    pthread_mutex_unlock(&d->mutex);
    if (remove) d->io->unlink(path);
    di_log_write(d->log, DI_LOG_WARN, "cache", "%s: %s; it is a miss", path, why);
}

/* Reads a record and compares it with what it should be, ids included. */
static bool load_record(di_disk *d, const di_disk_key *what, const int32_t *ids, uint32_t id_count, loaded *out,
                        int32_t *decoder_low) {
    char path[PATH_BYTES + 128], name[DI_DISK_NAME];
    const char *why, *payload;
    const int32_t *stored;
    di_disk_header header;
    di_disk_name(what, name);
    snprintf(path, sizeof path, "%s/%s", d->folder, name);
    if (!di_disk_read(d->io, path, &header, &out->bytes, &stored, &payload, &why)) {
        forget(d, what, why);
        return false;
    }
    di_disk_key got = header.what;
    if (got.kind == DI_DISK_BLOCK) got.position = what->position, got.tail = what->tail;
    if (!same(&got, what) || header.digest != d->digest || strcmp(header.profile, d->profile) != 0) {
        forget(d, what, "belongs to other weights, another profile or another name");
        return false;
    }
    /* Equal names with other ids are a collision of hashes: an honest miss, nothing is wrong with the file. */
    if (header.id_count != id_count || memcmp(stored, ids, id_count * sizeof *ids) != 0) return false;
    out->payload = payload;
    out->length = header.payload_bytes;
    if (decoder_low) *decoder_low = header.decoder_low;
    return true;
}

static void touch(di_disk *d, const di_disk_key *what) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pthread_mutex_lock(&d->mutex);
    record *r = find(d, what);
    if (r) r->used_ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    pthread_mutex_unlock(&d->mutex);
}

static bool read_load(di_disk *d, di_disk_load *l) {
    uint64_t key = di_disk_root(l->salt);
    uint32_t complete = l->position / d->page_tokens;
    for (uint32_t b = 0; b < complete; b++) {
        const int32_t *ids = l->ids + (size_t)b * d->page_tokens;
        key = di_disk_next(key, ids, d->page_tokens);
        if (b < l->first_block) continue;
        di_disk_key what = {.kind = DI_DISK_BLOCK, .key = key};
        if (!load_record(d, &what, ids, d->page_tokens, &l->blocks[b - l->first_block], NULL)) return false;
        touch(d, &what);
    }
    const int32_t *tail = l->ids + (size_t)complete * d->page_tokens;
    uint32_t tail_count = l->position % d->page_tokens;
    di_disk_key what = {DI_DISK_SNAPSHOT, key, l->position, di_disk_tail(tail, tail_count)};
    if (!load_record(d, &what, tail, tail_count, &l->snapshot, &l->decoder_low)) return false;
    touch(d, &what);
    return true;
}

static void free_load(di_disk_load *l) {
    for (uint32_t i = 0; i < l->block_count; i++) free(l->blocks[i].bytes);
    free(l->snapshot.bytes);
    free(l->blocks);
    free(l->ids);
    free(l);
}

static void run_load(di_disk *d, di_disk_load *l) {
    bool ok = read_load(d, l);
    pthread_mutex_lock(&d->mutex);
    if (ok) {
        d->counters.loads++;
        d->counters.loaded_bytes += l->snapshot.length;
        for (uint32_t i = 0; i < l->block_count; i++) d->counters.loaded_bytes += l->blocks[i].length;
    } else {
        d->counters.load_failures++;
    }
    l->result = ok ? DI_DISK_LOADED : DI_DISK_MISSED;
    bool abandoned = l->abandoned;
    pthread_mutex_unlock(&d->mutex);
    if (abandoned)
        free_load(l);
    else if (d->wake)
        d->wake(d->wake_arg);
}

/* ---------------------------------------------------------------- the I/O thread */

static void *io_main(void *arg) {
    di_disk *d = arg;
    list_folder(d);
    if (!d->counters.read_only) evict(d);
    pthread_mutex_lock(&d->mutex);
    for (;;) {
        /* Loads first: somebody waits for them. */
        if (d->loads) {
            di_disk_load *l = d->loads;
            d->loads = l->next;
            if (!d->loads) d->loads_end = &d->loads;
            pthread_mutex_unlock(&d->mutex);
            run_load(d, l);
            pthread_mutex_lock(&d->mutex);
        } else if (d->saves) {
            save *s = d->saves;
            d->saves = s->next;
            if (!d->saves) d->saves_end = &d->saves;
            pthread_mutex_unlock(&d->mutex);
            run_save(d, s);
            pthread_mutex_lock(&d->mutex);
        } else if (d->stopping) {
            break;
        } else {
            pthread_cond_wait(&d->work, &d->mutex);
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

/* ---------------------------------------------------------------- opening */

static void make_folder(di_disk *d, const di_disk_options *o) {
    uint64_t profile = XXH64(o->profile, strlen(o->profile), 0);
    snprintf(d->root, sizeof d->root, "%s", o->folder);
    snprintf(d->folder, sizeof d->folder, "%.4000s/%016" PRIx64 "-%016" PRIx64, o->folder, o->digest, profile);
    const char *why = NULL;
    if (mkdir(d->root, 0700) != 0 && errno != EEXIST) why = strerror(errno);
    if (!why) d->lock_file = di_disk_lock(d->root);
    if (!why && d->lock_file < 0)
        why = errno == EWOULDBLOCK ? "another process is using it; reading only" : strerror(errno);
    if (!why && mkdir(d->folder, 0700) != 0 && errno != EEXIST) why = strerror(errno);
    if (!why) return;
    d->counters.read_only = true;
    di_log_write(d->log, DI_LOG_WARN, "cache", "cache folder %s: %s", d->root, why);
}

di_status di_disk_open(const di_disk_options *o, di_disk **disk, di_error *error) {
    *disk = NULL;
    di_disk *d = calloc(1, sizeof *d);
    if (d) d->buckets = calloc(BUCKETS, sizeof *d->buckets);
    if (!d || !d->buckets || strlen(o->folder) > 3900) {
        bool memory = !d || !d->buckets;
        if (d) free(d->buckets);
        free(d);
        return memory ? di_fail(error, DI_ERR_MEMORY, "cache-dir", "out of memory for the disk cache")
                      : di_fail(error, DI_ERR_INVALID_ARGUMENT, "cache-dir", "--cache-dir: the path is too long");
    }
    d->budget = o->bytes;
    d->digest = o->digest;
    snprintf(d->profile, sizeof d->profile, "%s", o->profile);
    d->page_tokens = o->page_tokens;
    d->queue_limit = o->queue_bytes ? o->queue_bytes : (uint64_t)64 << 20;
    d->log = o->log;
    d->io = o->io ? o->io : &di_disk_system_io;
    d->lock_file = -1;
    d->saves_end = &d->saves;
    d->loads_end = &d->loads;
    make_folder(d, o);
    pthread_mutex_init(&d->mutex, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->listed, NULL);
    int failed = pthread_create(&d->thread, NULL, io_main, d);
    if (failed) {
        if (d->lock_file >= 0) close(d->lock_file);
        free(d->buckets);
        free(d);
        return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot start the cache's I/O thread");
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
    for (size_t b = 0; b < BUCKETS; b++)
        while (d->buckets[b]) drop(d, d->buckets[b]);
    free(d->buckets);
    if (d->lock_file >= 0) close(d->lock_file);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->listed);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}

bool di_disk_wait_ready(di_disk *d, int64_t timeout_ms) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&d->mutex);
    while (!d->counters.ready && pthread_cond_timedwait(&d->listed, &d->mutex, &until) == 0) {
    }
    bool ready = d->counters.ready;
    pthread_mutex_unlock(&d->mutex);
    return ready;
}

void di_disk_on_load(di_disk *d, void (*wake)(void *arg), void *arg) {
    d->wake_arg = arg;
    d->wake = wake;
}

/* ---------------------------------------------------------------- finding and loading */

static bool all_blocks_stored(const di_disk *d, const uint64_t *keys, uint32_t count) {
    for (uint32_t b = 0; b < count; b++) {
        const record *r = find(d, &(di_disk_key){.kind = DI_DISK_BLOCK, .key = keys[b]});
        if (!r || !r->stored) return false;
    }
    return true;
}

/* Longest snapshot with its last complete block's key `key` that fits the ids behind it. */
static uint32_t snapshot_here(const di_disk *d, uint64_t key, const int32_t *ids, uint32_t from, uint32_t limit) {
    uint32_t best = 0;
    for (const record *r = *bucket_of(d, key); r; r = r->next) {
        if (r->foreign || !r->stored || r->what.kind != DI_DISK_SNAPSHOT || r->what.key != key) continue;
        if (r->what.position < from || r->what.position > limit || r->what.position <= best) continue;
        if (r->what.tail == di_disk_tail(ids + from, r->what.position - from)) best = r->what.position;
    }
    return best;
}

uint32_t di_disk_find(di_disk *d, uint64_t salt, const int32_t *ids, uint32_t count, uint32_t above) {
    if (count < 2) return 0;
    uint32_t limit = count - 1, blocks = limit / d->page_tokens, best = 0;
    uint64_t *keys = malloc((blocks + 1) * sizeof *keys); /* keys[b]: behind b complete blocks */
    if (!keys) return 0;
    keys[0] = di_disk_root(salt);
    for (uint32_t b = 0; b < blocks; b++)
        keys[b + 1] = di_disk_next(keys[b], ids + (size_t)b * d->page_tokens, d->page_tokens);
    pthread_mutex_lock(&d->mutex);
    for (uint32_t b = blocks + 1; b-- > 0 && !best;) {
        if ((b + 1) * d->page_tokens <= above) break;
        uint32_t here = snapshot_here(d, keys[b], ids, b * d->page_tokens, limit);
        if (here > above && all_blocks_stored(d, keys + 1, b)) best = here;
    }
    pthread_mutex_unlock(&d->mutex);
    free(keys);
    return best;
}

di_disk_load *di_disk_load_start(di_disk *d, uint64_t salt, const int32_t *ids, uint32_t position,
                                 uint32_t first_block) {
    di_disk_load *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    uint32_t complete = position / d->page_tokens;
    *l = (di_disk_load){.disk = d, .salt = salt, .position = position, .first_block = first_block};
    l->block_count = complete > first_block ? complete - first_block : 0;
    l->ids = malloc((position ? position : 1) * sizeof *ids);
    l->blocks = calloc(l->block_count ? l->block_count : 1, sizeof *l->blocks);
    if (!l->ids || !l->blocks) {
        l->block_count = 0;
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

const char *di_disk_load_block(const di_disk_load *l, uint32_t block, size_t *length) {
    const loaded *b = &l->blocks[block - l->first_block];
    *length = b->length;
    return b->payload;
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

/* ---------------------------------------------------------------- saving */

static bool has(const di_disk *d, const di_disk_key *what) {
    di_disk *mutable = (di_disk *)d;
    pthread_mutex_lock(&mutable->mutex);
    bool known = find(d, what) != NULL;
    pthread_mutex_unlock(&mutable->mutex);
    return known;
}

bool di_disk_has_block(const di_disk *d, uint64_t key) {
    return has(d, &(di_disk_key){.kind = DI_DISK_BLOCK, .key = key});
}

bool di_disk_has_snapshot(const di_disk *d, uint64_t key, uint32_t position, uint64_t tail) {
    return has(d, &(di_disk_key){DI_DISK_SNAPSHOT, key, position, tail});
}

static void enqueue(di_disk *d, const di_disk_header *header, const int32_t *ids, di_text *payload) {
    save *s = calloc(1, sizeof *s);
    int32_t *copy = malloc((header->id_count ? header->id_count : 1) * sizeof *copy);
    bool ok = s && copy && !payload->failed;
    uint64_t bytes = DI_DISK_HEADER + header->id_count * sizeof *ids + payload->length;
    pthread_mutex_lock(&d->mutex);
    ok = ok && !d->counters.read_only && d->counters.ready && bytes <= d->budget && !find(d, &header->what);
    if (ok && d->queued_bytes + payload->length > d->queue_limit) {
        d->counters.dropped++;
        ok = false;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    record *r = ok ? add(d, &header->what, bytes, (int64_t)now.tv_sec * 1000000000 + now.tv_nsec) : NULL;
    if (r) {
        r->stored = false;
        *s = (save){.header = *header, .ids = copy, .payload = *payload};
        snprintf(s->header.profile, sizeof s->header.profile, "%s", d->profile);
        s->header.digest = d->digest;
        s->header.payload_bytes = payload->length;
        memcpy(copy, ids, header->id_count * sizeof *ids);
        *payload = (di_text){0};
        d->queued_bytes += s->payload.length;
        *d->saves_end = s;
        d->saves_end = &s->next;
        pthread_cond_signal(&d->work);
    }
    pthread_mutex_unlock(&d->mutex);
    if (!r) {
        free(s);
        free(copy);
        di_text_free(payload);
    }
}

void di_disk_save_block(di_disk *d, uint64_t key, const int32_t *ids, di_text *payload) {
    di_disk_header header = {.what = {.kind = DI_DISK_BLOCK, .key = key}, .id_count = d->page_tokens};
    enqueue(d, &header, ids, payload);
}

void di_disk_save_snapshot(di_disk *d, uint64_t key, uint32_t position, int32_t decoder_low, const int32_t *tail_ids,
                           di_text *payload) {
    uint32_t tail = position % d->page_tokens;
    di_disk_header header = {.what = {DI_DISK_SNAPSHOT, key, position, di_disk_tail(tail_ids, tail)},
                             .decoder_low = decoder_low,
                             .id_count = tail};
    enqueue(d, &header, tail_ids, payload);
}

void di_disk_get_counters(di_disk *d, di_disk_counters *counters) {
    pthread_mutex_lock(&d->mutex);
    *counters = d->counters;
    pthread_mutex_unlock(&d->mutex);
}
