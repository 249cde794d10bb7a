/* stored.c - see stored.h. */
#include "support/stored.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <xxhash.h>

enum { WAIT_MS = 60000 };

static void remember(void *arg, di_log_level level, const char *line) {
    di_stored *s = arg;
    if (level > DI_LOG_WARN) return;
    pthread_mutex_lock(&s->mutex);
    s->warnings++;
    snprintf(s->last_warning, sizeof s->last_warning, "%s", line);
    pthread_mutex_unlock(&s->mutex);
}

void di_stored_init(di_stored *s) {
    *s = (di_stored){.folder = di_folder_new(NULL), .digest = STORED_DIGEST, .profile = "exact"};
    pthread_mutex_init(&s->mutex, NULL);
    s->log = di_log_new(DI_LOG_WARN, remember, s);
    assert_non_null(s->log);
}

void di_stored_start(di_stored *s) {
    di_stored_init(s);
    di_stored_open(s);
}

void di_stored_open(di_stored *s) {
    di_stored_close(s);
    di_disk_options options = {.folder = s->folder.path,
                               .bytes = s->bytes ? s->bytes : 1 << 20,
                               .digest = s->digest,
                               .profile = s->profile,
                               .layout = STORED_LAYOUT,
                               .page_tokens = STORED_PAGE,
                               .queue_bytes = s->queue_bytes,
                               .log = s->log,
                               .io = s->io};
    di_error error = {0};
    if (di_disk_open(&options, &s->disk, &error) != DI_OK) fail_msg("%s", error.message);
    assert_true(di_disk_wait_ready(s->disk, WAIT_MS));
}

void di_stored_close(di_stored *s) {
    di_disk_close(s->disk);
    s->disk = NULL;
}

void di_stored_free(di_stored *s) {
    di_stored_close(s);
    di_log_free(s->log);
    pthread_mutex_destroy(&s->mutex);
    di_folder_delete(&s->folder);
}

void di_stored_ids(uint32_t seed, int32_t *ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t words[2] = {seed, i};
        ids[i] = (int32_t)(XXH32(words, sizeof words, 0) % 100000);
    }
}

void di_stored_payload(uint64_t salt, const int32_t *ids, uint32_t position, uint32_t block, di_text *out) {
    uint32_t reach = block == DI_DISK_REST ? position : (block + 1) * STORED_PAGE;
    uint64_t hash = XXH64(ids, reach * sizeof *ids, salt + (block == DI_DISK_REST));
    for (uint32_t i = 0; i < 3 + hash % 3; i++) {
        uint64_t word = XXH64(&i, sizeof i, hash);
        di_text_append(out, (const char *)&word, sizeof word);
    }
}

typedef struct save {
    uint64_t salt;
    const int32_t *ids;
    uint32_t position;
} save;

static void source(void *arg, uint32_t block, di_text *out) {
    const save *s = arg;
    di_stored_payload(s->salt, s->ids, s->position, block, out);
}

void di_stored_idle(di_stored *s) {
    assert_true(di_disk_wait_idle(s->disk, WAIT_MS));
}

void di_stored_queue(di_stored *s, uint64_t salt, const int32_t *ids, uint32_t position) {
    save what = {salt, ids, position};
    di_disk_save(s->disk, salt, ids, position, (int32_t)position / 2, source, &what);
}

void di_stored_save(di_stored *s, uint64_t salt, const int32_t *ids, uint32_t position) {
    di_stored_queue(s, salt, ids, position);
    di_stored_idle(s);
}

static void check(const char *got, size_t length, uint64_t salt, const int32_t *ids, uint32_t position,
                  uint32_t block) {
    di_text expected = {0};
    di_stored_payload(salt, ids, position, block, &expected);
    if (length != expected.length || memcmp(got, expected.data, length) != 0)
        fail_msg("wrong payload: position %u, block %d", position, (int)block);
    di_text_free(&expected);
}

uint32_t di_stored_load(di_stored *s, uint64_t salt, const int32_t *ids, uint32_t count) {
    uint32_t position = di_disk_find(s->disk, salt, ids, count, 0);
    if (!position) return 0;
    assert_true(position < count);
    di_disk_load *load = di_disk_load_start(s->disk, salt, ids, position);
    assert_non_null(load);
    di_stored_idle(s);
    di_disk_result result = di_disk_load_poll(load);
    assert_int_not_equal(result, DI_DISK_PENDING);
    if (result == DI_DISK_LOADED) {
        size_t length;
        int32_t low;
        for (uint32_t b = 0; b < position / STORED_PAGE; b++) {
            const char *got = di_disk_load_block(load, b, &length);
            check(got, length, salt, ids, position, b);
        }
        const char *got = di_disk_load_snapshot(load, &length, &low);
        check(got, length, salt, ids, position, DI_DISK_REST);
        assert_int_equal(low, position / 2);
    }
    di_disk_load_free(load);
    return result == DI_DISK_LOADED ? position : 0;
}

void di_stored_save_walk(di_stored *s, uint64_t salt, uint32_t seed, uint32_t position) {
    int32_t ids[STORED_WALK];
    di_stored_ids(seed, ids, STORED_WALK);
    di_stored_save(s, salt, ids, position);
}

uint32_t di_stored_load_walk(di_stored *s, uint64_t salt, uint32_t seed) {
    int32_t ids[STORED_WALK];
    di_stored_ids(seed, ids, STORED_WALK);
    return di_stored_load(s, salt, ids, STORED_WALK);
}

di_disk_counters di_stored_counters(di_stored *s) {
    di_disk_counters counters;
    di_disk_get_counters(s->disk, &counters);
    return counters;
}

/* ---------------------------------------------------------------- files */

static bool add_file(void *arg, const di_disk_record *r) {
    di_stored_files *files = arg;
    assert_true(files->count < 256);
    snprintf(files->paths[files->count++], sizeof files->paths[0], "%s", r->path);
    files->bytes += r->bytes;
    return true;
}

static int by_name(const void *a, const void *b) {
    return strcmp(a, b);
}

void di_stored_list(const di_folder *folder, di_stored_files *files) {
    di_error error = {0};
    *files = (di_stored_files){0};
    if (di_disk_walk(folder->path, false, add_file, files, &error) != DI_OK) fail_msg("%s", error.message);
    qsort(files->paths, files->count, sizeof files->paths[0], by_name);
}

void di_stored_set_age(const di_stored *s, const char *path, int64_t seconds_ago) {
    char full[DI_FOLDER_PATH];
    di_folder_path(&s->folder, path, full);
    struct timespec now, times[2];
    clock_gettime(CLOCK_REALTIME, &now);
    times[0] = times[1] = (struct timespec){.tv_sec = now.tv_sec - seconds_ago, .tv_nsec = now.tv_nsec};
    assert_int_equal(utimensat(AT_FDCWD, full, times, 0), 0);
}
