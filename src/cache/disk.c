/* disk.c - the store: what its owner asks for. */
#include "cache/disk.h"

#include <errno.h>
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
#include "cache/disk_internal.h"

enum { LONGEST_ROOT = 3900 }; /* so that every path below it fits PATH_MAX */
static const uint64_t DEFAULT_QUEUE = (uint64_t)64 << 20;

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

/* keys[b]: behind b complete blocks. [blocks + 1], malloc'ed. */
static uint64_t *chain(const di_disk *d, uint64_t salt, const int32_t *ids, uint32_t blocks) {
    uint64_t *keys = malloc(((size_t)blocks + 1) * sizeof *keys);
    if (!keys) return NULL;
    keys[0] = di_disk_root(salt);
    for (uint32_t b = 0; b < blocks; b++)
        keys[b + 1] = di_disk_next(keys[b], ids + (size_t)b * d->page_tokens, d->page_tokens);
    return keys;
}

di_disk_key di_disk_block_key(uint64_t key) {
    return (di_disk_key){.kind = DI_DISK_BLOCK, .key = key};
}

di_disk_key di_disk_snapshot_key(const di_disk *d, const uint64_t *keys, const int32_t *ids, uint32_t position) {
    uint32_t blocks = position / d->page_tokens, from = blocks * d->page_tokens;
    return (di_disk_key){DI_DISK_SNAPSHOT, keys[blocks], position, di_disk_tail(ids + from, position - from)};
}

/* ---------------------------------------------------------------- dropping */

void di_disk_drop_load(di_disk_load *l) {
    for (uint32_t i = 0; l->blocks && i < l->block_count; i++) free(l->blocks[i].bytes);
    free(l->snapshot.bytes);
    free(l->blocks);
    free(l->keys);
    free(l->ids);
    free(l);
}

void di_disk_drop_queued(di_disk_queued *s) {
    for (uint32_t i = 0; i < s->block_count; i++) di_text_free(&s->blocks[i].payload);
    di_text_free(&s->rest);
    free(s->blocks);
    free(s->keys);
    free(s->ids);
    free(s);
}

/* ---------------------------------------------------------------- opening and closing */

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
    di_disk_prepare(d, o->folder);
    int failed = di_index_init(&d->index) ? di_thread_start(&d->thread, "di-disk", di_disk_run, d) : ENOMEM;
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
        di_disk_drop_load(l);
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
    if (!pending) di_disk_drop_load(l);
}

/* ---------------------------------------------------------------- owner: saving */

/* Which records of the state are neither stored nor queued: missing[b], and missing[blocks] for the snapshot. */
static uint32_t find_missing(di_disk *d, const di_disk_queued *s, bool *missing) {
    uint32_t blocks = s->position / d->page_tokens, count = 0;
    di_disk_key what = di_disk_snapshot_key(d, s->keys, s->ids, s->position);
    pthread_mutex_lock(&d->mutex);
    missing[blocks] = !di_index_find(&d->index, &what);
    for (uint32_t b = 0; b < blocks; b++) {
        what = di_disk_block_key(s->keys[b + 1]);
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
static uint32_t draw_all(di_disk *d, di_disk_queued *s, di_disk_source source, void *arg) {
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
        di_disk_part *next = &s->blocks[s->block_count];
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

/* The folder may have been listed since it was looked at: a name must not stand in the index twice. */
static void add_name(di_disk *d, const di_disk_key *what, uint64_t bytes) {
    if (!di_index_find(&d->index, what)) di_index_add(&d->index, what, bytes, 0);
}

/* Adds the names of what will be written. Without memory for a name the record is written all the same, and found after
 * a restart. */
static void enqueue(di_disk *d, di_disk_queued *s, uint32_t dropped) {
    pthread_mutex_lock(&d->mutex);
    for (uint32_t i = 0; i < s->block_count; i++) {
        const di_disk_part *b = &s->blocks[i];
        di_disk_key what = di_disk_block_key(s->keys[b->number + 1]);
        add_name(d, &what, DI_DISK_HEADER + d->page_tokens * sizeof *s->ids + b->payload.length);
        d->queued_bytes += b->payload.length;
    }
    if (s->rest.length) {
        di_disk_key what = di_disk_snapshot_key(d, s->keys, s->ids, s->position);
        uint64_t ids = s->position % d->page_tokens * sizeof *s->ids;
        add_name(d, &what, DI_DISK_HEADER + ids + s->rest.length);
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
    di_disk_queued *s = calloc(1, sizeof *s);
    if (!s) return;
    *s = (di_disk_queued){.salt = salt, .position = position, .decoder_low = decoder_low};
    s->overhead = position * sizeof *ids + (position / d->page_tokens + 1) * sizeof *s->keys;
    s->ids = malloc(position * sizeof *ids);
    s->keys = chain(d, salt, ids, position / d->page_tokens);
    if (!s->ids || !s->keys) {
        di_disk_drop_queued(s);
        return;
    }
    memcpy(s->ids, ids, position * sizeof *ids);
    uint32_t dropped = draw_all(d, s, source, arg);
    if (s->blocks) {
        enqueue(d, s, dropped);
        return;
    }
    di_disk_drop_queued(s);
    pthread_mutex_lock(&d->mutex);
    d->counters.dropped += dropped;
    pthread_mutex_unlock(&d->mutex);
}
