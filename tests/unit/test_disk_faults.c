/* needs: cache base */
/* labels: long */
/* The store of the disk tier against damaged files and failing devices: a miss and a warning at most, and never a byte
 * that was not saved. Every load here compares all it got (support/stored.c). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cache/disk_record.h"
#include "support/stored.h"

enum { MOST = STORED_WALK, STATES = 3 };
static const uint64_t SALT = 5;

static const uint32_t positions[STATES] = {6, 11, 3};

/* States 0 and 1 share a beginning. */
static void make_ids(uint32_t number, int32_t *ids) {
    di_stored_ids(number == 2 ? 2 : 0, ids, MOST);
}

static void save_all(di_stored *s) {
    for (uint32_t i = 0; i < STATES; i++) {
        int32_t ids[MOST];
        make_ids(i, ids);
        di_stored_save(s, SALT, ids, positions[i]);
    }
}

/* Loads everything; returns how many came back as far as they were saved. */
static uint32_t load_all(di_stored *s) {
    uint32_t whole = 0;
    for (uint32_t i = 0; i < STATES; i++) {
        int32_t ids[MOST];
        make_ids(i, ids);
        whole += di_stored_load(s, SALT, ids, positions[i] + 1) == positions[i];
    }
    return whole;
}

/* ---------------------------------------------------------------- damage */

typedef struct fault_list {
    const char *path;
    uint32_t faults, others;
} fault_list;

static bool note_fault(void *arg, const di_disk_record *r) {
    fault_list *list = arg;
    if (r->fault && strcmp(r->path, list->path) == 0) list->faults++;
    if (r->fault && strcmp(r->path, list->path) != 0) list->others++;
    return true;
}

/* The file holds `bytes` now. It must be seen by `cache verify`, must not be served, must not keep others from being
 * served, and the state must come back once it is saved again. */
static void expect_refused(di_stored *s, const char *path, const void *bytes, size_t length, const char *what,
                           size_t where) {
    fault_list list = {.path = path};
    di_error error = {0};
    di_folder_write(&s->folder, path, bytes, length);
    assert_int_equal(di_disk_walk(s->folder.path, true, note_fault, &list, &error), DI_OK);
    if (list.faults != 1 || list.others) fail_msg("%s at %zu of %s: verify finds %u", what, where, path, list.faults);
    uint32_t warnings = s->warnings;
    di_stored_open(s);
    uint32_t whole = load_all(s);
    if (whole == STATES) fail_msg("%s at %zu of %s was served", what, where, path);
    if (s->warnings != warnings + 1) fail_msg("%s at %zu of %s: no warning", what, where, path);
    save_all(s);
    if (load_all(s) != STATES) fail_msg("%s at %zu of %s: not healed", what, where, path);
    di_stored_close(s);
}

static void begin(di_stored *s, di_stored_files *files) {
    di_stored_start(s);
    save_all(s);
    assert_int_equal(load_all(s), STATES);
    di_stored_close(s);
    di_stored_list(&s->folder, files);
    assert_int_equal(files->count, 2 + 3);
}

/* Every record once: `harm` may do with it and its bytes what it likes, then it is put right. */
static void harm_each(di_stored *s, const di_stored_files *files,
                      void (*harm)(di_stored *s, const di_stored_files *files, uint32_t f, char *bytes,
                                   size_t length)) {
    for (uint32_t f = 0; f < files->count; f++) {
        size_t length;
        char *right = di_folder_read(&s->folder, files->paths[f], &length), *bytes = malloc(length);
        assert_non_null(bytes);
        memcpy(bytes, right, length);
        harm(s, files, f, bytes, length);
        di_folder_write(&s->folder, files->paths[f], right, length);
        free(bytes);
        free(right);
    }
}

static void flip_bytes(di_stored *s, const di_stored_files *files, uint32_t f, char *bytes, size_t length) {
    static const char flips[] = {1, (char)0x80, (char)0xFF};
    for (size_t i = 0; i < length; i++) {
        bytes[i] ^= flips[i % 3];
        expect_refused(s, files->paths[f], bytes, length, "flip", i);
        bytes[i] ^= flips[i % 3];
    }
}

static void every_flipped_byte_is_a_miss(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    begin(&s, &files);
    harm_each(&s, &files, flip_bytes);
    di_stored_free(&s);
}

/* All files at once: a state is right again after one miss, or two when its beginning was another's too. */
static void damage_everywhere_heals_at_once(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    begin(&s, &files);
    for (uint32_t f = 0; f < files.count; f++) di_folder_poke(&s.folder, files.paths[f], 100, "\xEE", 1);
    di_stored_open(&s);
    assert_int_equal(load_all(&s), 0);
    save_all(&s);
    assert_true(load_all(&s) >= STATES - 1);
    save_all(&s);
    assert_int_equal(load_all(&s), STATES);
    assert_int_equal(s.warnings, files.count);
    di_stored_free(&s);
}

static void change_length(di_stored *s, const di_stored_files *files, uint32_t f, char *bytes, size_t length) {
    char longer[4096] = {0};
    assert_true(length + 40 < sizeof longer);
    memcpy(longer, bytes, length);
    for (size_t cut = 0; cut < length + 40; cut++)
        if (cut != length) expect_refused(s, files->paths[f], longer, cut, "length", cut);
}

static void every_length_but_the_right_one_is_a_miss(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    begin(&s, &files);
    harm_each(&s, &files, change_length);
    di_stored_free(&s);
}

static void put_others_in_its_place(di_stored *s, const di_stored_files *files, uint32_t f, char *own,
                                    size_t own_length) {
    (void)own;
    (void)own_length;
    for (uint32_t g = 0; g < files->count; g++) {
        if (g == f) continue;
        size_t length;
        char *bytes = di_folder_read(&s->folder, files->paths[g], &length);
        expect_refused(s, files->paths[f], bytes, length, "file", g);
        free(bytes);
    }
}

/* Every file under every other file's name, and under another model's. */
static void exchanged_files_are_misses(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    begin(&s, &files);
    harm_each(&s, &files, put_others_in_its_place);
    /* The whole folder of one model renamed to another's. */
    char from[64], to[64];
    snprintf(from, sizeof from, "%.33s", files.paths[0]);
    di_disk_subfolder(STORED_DIGEST + 1, "exact", STORED_LAYOUT, to);
    di_folder_rename(&s.folder, from, to);
    s.digest++;
    di_stored_open(&s);
    assert_int_equal(load_all(&s), 0);
    assert_true(s.warnings > 0);
    di_stored_free(&s);
}

static void large_sizes_are_not_believed(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    begin(&s, &files);
    size_t length;
    char *bytes = di_folder_read(&s.folder, files.paths[0], &length);
    for (int i = 0; i < 2; i++) {
        memset(bytes + (i ? 104 : 112), 0x7F, i ? 4 : 8);
        expect_refused(&s, files.paths[0], bytes, length, "size", (size_t)i);
    }
    free(bytes);
    /* A hole as long as the header says, and longer than a record can be. */
    bytes = di_folder_read(&s.folder, files.paths[0], &length);
    for (int i = 0; i < 8; i++) bytes[112 + i] = (char)(((uint64_t)1 << 40) >> 8 * i);
    di_folder_write(&s.folder, files.paths[0], bytes, length);
    di_folder_resize(&s.folder, files.paths[0], DI_DISK_HEADER + STORED_PAGE * 4 + ((uint64_t)1 << 40));
    free(bytes);
    s.bytes = (uint64_t)1 << 50;
    di_stored_open(&s);
    assert_true(load_all(&s) < STATES);
    di_stored_free(&s);
}

static void a_folder_full_of_damage_does_not_flood_the_log(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    di_stored_start(&s);
    for (uint32_t seed = 0; seed < 60; seed++) di_stored_save_walk(&s, SALT, seed, 6);
    di_stored_close(&s);
    di_stored_list(&s.folder, &files);
    for (uint32_t f = 0; f < files.count; f++) di_folder_resize(&s.folder, files.paths[f], 100);
    di_stored_open(&s);
    for (uint32_t seed = 0; seed < 60; seed++) assert_int_equal(di_stored_load_walk(&s, SALT, seed), 0);
    assert_true(s.warnings > 10 && s.warnings < 30);
    assert_non_null(strstr(s.last_warning, "cache verify"));
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- failing devices */

typedef enum operation { OPEN, READ, WRITE, SYNC, CLOSE, RENAME, UNLINK, TOUCH, OPERATIONS } operation;

/* The device under test; one store at a time uses it. */
static struct device {
    atomic_uint calls[OPERATIONS];
    atomic_uint fail_from[OPERATIONS], fail_to[OPERATIONS]; /* calls that fail: from <= number < to */
    atomic_int error;
    atomic_uint most;       /* bytes of one read or write; 0 = all */
    atomic_bool interrupt;  /* every other read and write is interrupted */
    atomic_bool held;       /* writes wait */
    atomic_bool times_held; /* setting times waits */
    char stuck[128];        /* no file whose path ends so can be opened or removed; set while the store is idle */
    atomic_bool wrong_thread;
    pthread_t owner;
} device;

static bool fails(operation op) {
    uint32_t number = atomic_fetch_add(&device.calls[op], 1);
    if (pthread_equal(pthread_self(), device.owner)) atomic_store(&device.wrong_thread, true);
    if (number < atomic_load(&device.fail_from[op]) || number >= atomic_load(&device.fail_to[op])) return false;
    errno = atomic_load(&device.error);
    return true;
}

static size_t amount(size_t bytes) {
    size_t most = atomic_load(&device.most);
    return most && bytes > most ? most : bytes;
}

static bool is_stuck(const char *path) {
    size_t length = strlen(path), tail = strlen(device.stuck);
    if (!tail || length < tail || strcmp(path + length - tail, device.stuck) != 0) return false;
    errno = EACCES;
    return true;
}

static int device_open(const char *path, int flags, int mode) {
    if (is_stuck(path)) return -1;
    return fails(OPEN) ? -1 : di_disk_system_io.open(path, flags, mode);
}
static long device_read(int file, void *to, size_t bytes) {
    if (atomic_load(&device.interrupt) && atomic_load(&device.calls[READ]) % 2) {
        atomic_fetch_add(&device.calls[READ], 1);
        errno = EINTR;
        return -1;
    }
    return fails(READ) ? -1 : di_disk_system_io.read(file, to, amount(bytes));
}
static long device_write(int file, const void *from, size_t bytes) {
    while (atomic_load(&device.held)) usleep(200);
    if (atomic_load(&device.interrupt) && atomic_load(&device.calls[WRITE]) % 2) {
        atomic_fetch_add(&device.calls[WRITE], 1);
        errno = EINTR;
        return -1;
    }
    return fails(WRITE) ? -1 : di_disk_system_io.write(file, from, amount(bytes));
}
static int device_sync(int file) {
    return fails(SYNC) ? -1 : di_disk_system_io.sync(file);
}
static int device_close(int file) {
    int result = di_disk_system_io.close(file);
    return fails(CLOSE) ? -1 : result;
}
static int device_rename(const char *from, const char *to) {
    return fails(RENAME) ? -1 : di_disk_system_io.rename(from, to);
}
static int device_unlink(const char *path) {
    return is_stuck(path) || fails(UNLINK) ? -1 : di_disk_system_io.unlink(path);
}
static int device_touch(const char *path, int64_t used_ns) {
    while (atomic_load(&device.times_held)) usleep(200);
    return fails(TOUCH) ? -1 : di_disk_system_io.touch(path, used_ns);
}

static const di_disk_io device_io = {.open = device_open,
                                     .read = device_read,
                                     .write = device_write,
                                     .sync = device_sync,
                                     .close = device_close,
                                     .rename = device_rename,
                                     .unlink = device_unlink,
                                     .touch = device_touch};

/* A store on a device that works so far, still closed; the calling thread owns the store. */
static void put_on_device(di_stored *s) {
    memset(&device, 0, sizeof device);
    device.owner = pthread_self();
    di_stored_init(s);
    s->io = &device_io;
}

/* Each call of each operation fails once, with each reason; afterwards everything works again. */
static void every_call_may_fail(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC, EACCES, EMFILE, ENOMEM, ENOENT, EROFS};
    for (operation op = 0; op < OPERATIONS; op++) {
        uint32_t calls = 1;
        for (uint32_t n = 0; n < calls; n++) {
            di_stored s;
            put_on_device(&s);
            s.bytes = 800; /* a little less than all, so that eviction takes part */
            device.fail_from[op] = n;
            device.fail_to[op] = n + 1;
            device.error = errors[(n + op) % (sizeof errors / sizeof *errors)];
            for (int round = 0; round < 3; round++) {
                di_stored_open(&s);
                save_all(&s);
                load_all(&s);
                assert_true(di_stored_counters(&s).bytes <= s.bytes);
                assert_int_equal(di_stored_counters(&s).queued, 0);
            }
            if (calls <= device.calls[op]) calls = device.calls[op];
            device.fail_to[op] = 0;
            s.bytes = 1 << 20;
            di_stored_open(&s);
            load_all(&s); /* what is damaged is found and removed */
            save_all(&s);
            if (load_all(&s) != STATES) fail_msg("operation %d, call %u: not healed", op, n);
            di_stored_files files;
            di_stored_list(&s.folder, &files);
            assert_int_equal(files.count, 5); /* no rest of a write is left */
            assert_int_equal(files.bytes, di_stored_counters(&s).bytes);
            assert_false(device.wrong_thread);
            di_stored_free(&s);
        }
        assert_true(op == SYNC || calls > 1);
    }
}

static void a_full_disk_is_one_warning(void **state) {
    (void)state;
    static const int errors[] = {ENOSPC, EDQUOT, EROFS, EIO};
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        di_stored s;
        put_on_device(&s);
        device.fail_to[WRITE] = UINT32_MAX;
        device.error = errors[e];
        di_stored_open(&s);
        for (int i = 0; i < 3; i++) save_all(&s);
        assert_int_equal(load_all(&s), 0);
        assert_int_equal(s.warnings, 1);
        assert_non_null(strstr(s.last_warning, strerror(errors[e])));
        assert_int_equal(di_stored_counters(&s).records, 0);
        assert_true(di_stored_counters(&s).save_failures > 3);
        di_stored_files files;
        di_stored_list(&s.folder, &files);
        assert_int_equal(files.count, 0);
        device.fail_to[WRITE] = 0;
        save_all(&s);
        assert_int_equal(load_all(&s), STATES);
        device.fail_to[WRITE] = UINT32_MAX; /* full again: said again */
        di_stored_save_walk(&s, SALT, 77, 20);
        assert_int_equal(s.warnings, 2);
        assert_int_equal(load_all(&s), STATES);
        di_stored_free(&s);
    }
}

static void short_and_interrupted_transfers_are_completed(void **state) {
    (void)state;
    for (uint32_t most = 1; most < 40; most += most < 8 ? 1 : 9) {
        di_stored s;
        put_on_device(&s);
        device.most = most;
        device.interrupt = most % 2;
        di_stored_open(&s);
        save_all(&s);
        assert_int_equal(load_all(&s), STATES);
        assert_int_equal(s.warnings, 0);
        di_stored_free(&s);
    }
}

/* Reasons that say nothing about the file do not cost it. */
static void a_passing_failure_keeps_the_record(void **state) {
    (void)state;
    static const int errors[] = {EMFILE, ENFILE, ENOMEM, EACCES};
    for (size_t e = 0; e < sizeof errors / sizeof *errors; e++) {
        di_stored s;
        put_on_device(&s);
        di_stored_open(&s);
        save_all(&s);
        device.error = errors[e];
        device.fail_to[OPEN] = UINT32_MAX;
        assert_int_equal(load_all(&s), 0);
        device.fail_to[OPEN] = 0;
        assert_int_equal(load_all(&s), STATES);
        di_stored_free(&s);
    }
}

static void expect_told_once(di_stored *s, uint32_t *known, const char *what) {
    if (s->warnings != *known + 1 || !strstr(s->last_warning, what))
        fail_msg("%u warnings, the last: %s", s->warnings - *known, s->last_warning);
    *known = s->warnings;
}

static void expect_counted(di_stored *s) {
    di_stored_files files;
    di_stored_list(&s->folder, &files);
    assert_int_equal(di_stored_counters(s).bytes, files.bytes);
    assert_int_equal(di_stored_counters(s).records, files.count);
    assert_true(files.bytes <= s->bytes);
}

/* The oldest record, relative to the folder: the snapshot of what was saved first. */
static void save_oldest(di_stored *s, di_stored_files *files) {
    s->bytes = 2000;
    di_stored_open(s);
    di_stored_save_walk(s, SALT, 0, 3);
    di_stored_list(&s->folder, files);
    assert_int_equal(files->count, 1);
}

/* It counts, and is in nobody's way; once it can be removed, it goes as others do. */
static void a_record_that_cannot_be_removed_does_not_keep_the_others(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    char path[DI_FOLDER_PATH];
    uint32_t known = 0;
    put_on_device(&s);
    save_oldest(&s, &files);
    di_folder_path(&s.folder, files.paths[0], path);
    snprintf(device.stuck, sizeof device.stuck, "%s", files.paths[0]);
    for (uint32_t seed = 1; seed < 60; seed++) {
        di_stored_save_walk(&s, SALT, seed, 6);
        assert_int_equal(di_stored_load_walk(&s, SALT, seed), 6);
        expect_counted(&s);
    }
    expect_told_once(&s, &known, path); /* though it was tried more than once */
    assert_int_equal(di_stored_counters(&s).save_failures, 0);
    assert_int_equal(access(path, F_OK), 0);
    device.stuck[0] = 0;
    for (uint32_t seed = 60; seed < 80; seed++) di_stored_save_walk(&s, SALT, seed, 6);
    assert_int_equal(access(path, F_OK), -1);
    expect_counted(&s);
    assert_int_equal(s.warnings, known);
    di_stored_free(&s);
}

static void what_took_the_place_of_a_record_does_not_count(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    char path[DI_FOLDER_PATH];
    uint32_t known = 0;
    put_on_device(&s);
    save_oldest(&s, &files);
    di_folder_path(&s.folder, files.paths[0], path);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    for (uint32_t seed = 1; seed < 20; seed++) di_stored_save_walk(&s, SALT, seed, 6);
    expect_told_once(&s, &known, path);
    assert_int_equal(di_stored_counters(&s).save_failures, 0);
    expect_counted(&s);
    di_stored_save_walk(&s, SALT, 0, 3); /* cannot come back as long as the folder stands there */
    expect_told_once(&s, &known, path);
    assert_true(di_stored_counters(&s).failing);
    expect_counted(&s);
    assert_int_equal(rmdir(path), 0);
    di_stored_save_walk(&s, SALT, 0, 3);
    assert_int_equal(di_stored_load_walk(&s, SALT, 0), 3);
    assert_false(di_stored_counters(&s).failing);
    expect_counted(&s);
    assert_int_equal(s.warnings, known);
    di_stored_free(&s);
}

/* Nothing can be removed: a few are tried for each record, one warning names the first, the budget holds. */
static void a_folder_where_nothing_can_be_removed_is_one_warning(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    uint32_t known = 0;
    put_on_device(&s);
    s.bytes = 4000;
    di_stored_open(&s);
    for (uint32_t seed = 0; seed < 40; seed++) di_stored_save_walk(&s, SALT, seed, 3);
    expect_counted(&s);
    uint64_t evicted = di_stored_counters(&s).evicted;
    assert_true(evicted > 0);
    device.error = EROFS;
    device.fail_to[UNLINK] = UINT32_MAX;
    device.calls[UNLINK] = 0;
    for (uint32_t seed = 100; seed < 130; seed++) {
        di_stored_save_walk(&s, SALT, seed, 3);
        expect_counted(&s);
    }
    expect_told_once(&s, &known, "it cannot be removed to make room: Read-only file system");
    assert_true(device.calls[UNLINK] <= 30 * 8);
    assert_true(di_stored_counters(&s).failing);
    assert_int_equal(di_stored_counters(&s).evicted, evicted);
    assert_int_equal(di_stored_counters(&s).save_failures, 30);
    device.fail_to[UNLINK] = 0;
    for (uint32_t seed = 100; seed < 130; seed++) di_stored_save_walk(&s, SALT, seed, 3);
    assert_int_equal(di_stored_load_walk(&s, SALT, 129), 3);
    assert_false(di_stored_counters(&s).failing);
    expect_counted(&s);
    assert_int_equal(s.warnings, known);
    device.fail_to[UNLINK] = UINT32_MAX;
    device.calls[UNLINK] = 0;
    s.bytes = 1000;
    di_stored_open(&s); /* a smaller budget that cannot be met is told without anything to be stored */
    di_stored_idle(&s);
    expect_told_once(&s, &known, "it cannot be removed to make room");
    device.fail_to[UNLINK] = 0;
    di_stored_save_walk(&s, SALT, 200, 3);
    di_stored_list(&s.folder, &files);
    assert_true(files.bytes <= s.bytes);
    di_stored_free(&s);
}

/* Every request that finds it tries to read it again: only the first says so. */
static void a_record_that_cannot_be_opened_is_named_once(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    uint32_t known = 0;
    put_on_device(&s);
    save_oldest(&s, &files);
    snprintf(device.stuck, sizeof device.stuck, "%s", files.paths[0]);
    for (int i = 0; i < 5; i++) assert_int_equal(di_stored_load_walk(&s, SALT, 0), 0);
    expect_told_once(&s, &known, files.paths[0]);
    assert_int_equal(di_stored_counters(&s).load_failures, 5);
    device.stuck[0] = 0;
    assert_int_equal(di_stored_load_walk(&s, SALT, 0), 3);
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- the queue */

static void a_full_queue_drops_and_never_leaves_a_snapshot_alone(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    put_on_device(&s);
    s.queue_bytes = 2000;
    di_stored_open(&s);
    device.held = true;
    for (uint32_t seed = 0; seed < 50; seed++) {
        di_stored_ids(seed, ids, MOST);
        di_stored_queue(&s, SALT, ids, 22);
        assert_true(di_stored_counters(&s).queued <= s.queue_bytes + 500);
    }
    assert_true(di_stored_counters(&s).dropped > 0);
    device.held = false;
    di_stored_idle(&s);
    assert_int_equal(di_stored_counters(&s).queued, 0);
    uint32_t found = 0, snapshots = 0;
    for (uint32_t seed = 0; seed < 50; seed++) found += di_stored_load_walk(&s, SALT, seed) == 22;
    di_stored_files files;
    di_stored_list(&s.folder, &files);
    for (uint32_t i = 0; i < files.count; i++) snapshots += strstr(files.paths[i], "/s-") != NULL;
    assert_int_equal(found, snapshots);
    assert_in_range(found, 1, 49);
    for (int round = 0; round < 40 && found < 50; round++) { /* what was dropped comes in later turns */
        found = 0;
        for (uint32_t seed = 0; seed < 50; seed++) {
            di_stored_save_walk(&s, SALT, seed, 22);
            found += di_stored_load_walk(&s, SALT, seed) == 22;
        }
    }
    assert_int_equal(found, 50);
    di_stored_free(&s);
}

/* A state larger than the whole queue is stored too, in several turns. */
static void a_state_larger_than_the_queue_is_stored_in_turns(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    di_stored_ids(1, ids, MOST);
    for (uint64_t queue = 1; queue < 700; queue += 69) {
        put_on_device(&s);
        s.queue_bytes = queue;
        di_stored_open(&s);
        uint32_t turns = 0;
        while (di_stored_load(&s, SALT, ids, MOST) != 50 && turns++ < 60) di_stored_save(&s, SALT, ids, 50);
        assert_true(turns < 20);
        di_stored_free(&s);
    }
}

static void source_while_listed(void *arg, uint32_t block, di_text *out) {
    di_stored *s = arg;
    int32_t ids[MOST];
    di_stored_ids(1, ids, MOST);
    device.times_held = false;
    assert_true(di_disk_wait_ready(s->disk, 60000));
    di_stored_payload(SALT, ids, 22, block, out);
}

/* Between the look at what is missing and the queue, the listing of the folder finds the very same records. */
static void a_record_that_is_listed_while_it_is_queued_counts_once(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    int32_t ids[MOST];
    put_on_device(&s);
    s.bytes = 1 << 20;
    di_stored_open(&s);
    di_stored_ids(1, ids, MOST);
    di_stored_save(&s, SALT, ids, 22);
    di_stored_close(&s);
    di_stored_list(&s.folder, &files);
    assert_int_equal(files.count, 6);
    for (uint32_t f = 0; f < files.count; f++) di_stored_set_age(&s, files.paths[f], -1000); /* listing will mend it */
    device.times_held = true;
    di_disk_options options = {.folder = s.folder.path,
                               .bytes = s.bytes,
                               .digest = s.digest,
                               .profile = s.profile,
                               .layout = STORED_LAYOUT,
                               .page_tokens = STORED_PAGE,
                               .io = &device_io};
    di_error error = {0};
    assert_int_equal(di_disk_open(&options, &s.disk, &error), DI_OK);
    di_disk_save(s.disk, SALT, ids, 22, 11, source_while_listed, &s);
    di_stored_idle(&s);
    expect_counted(&s);
    assert_int_equal(di_stored_load(&s, SALT, ids, MOST), 22);
    di_stored_free(&s);
}

/* What the owner does never waits for the device: it only touches memory. */
static void the_owner_does_not_wait_for_the_device(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    put_on_device(&s);
    di_stored_open(&s);
    di_stored_ids(0, ids, MOST);
    di_stored_save(&s, SALT, ids, 22);
    device.held = true;
    for (uint32_t seed = 1; seed < 20; seed++) {
        int32_t more[MOST];
        di_stored_ids(seed, more, MOST);
        di_stored_queue(&s, SALT, more, 22);
    }
    di_disk_load *load = di_disk_load_start(s.disk, SALT, ids, 22);
    assert_int_equal(di_disk_find(s.disk, SALT, ids, MOST, 0), 22);
    assert_int_equal(di_disk_load_poll(load), DI_DISK_PENDING);
    assert_int_equal(di_stored_counters(&s).records, 20 * 6);
    device.held = false;
    di_disk_load_free(load);
    di_stored_idle(&s);
    assert_false(device.wrong_thread);
    di_stored_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flipped_byte_is_a_miss),
        cmocka_unit_test(damage_everywhere_heals_at_once),
        cmocka_unit_test(every_length_but_the_right_one_is_a_miss),
        cmocka_unit_test(exchanged_files_are_misses),
        cmocka_unit_test(large_sizes_are_not_believed),
        cmocka_unit_test(a_folder_full_of_damage_does_not_flood_the_log),
        cmocka_unit_test(every_call_may_fail),
        cmocka_unit_test(a_full_disk_is_one_warning),
        cmocka_unit_test(short_and_interrupted_transfers_are_completed),
        cmocka_unit_test(a_passing_failure_keeps_the_record),
        cmocka_unit_test(a_record_that_cannot_be_removed_does_not_keep_the_others),
        cmocka_unit_test(what_took_the_place_of_a_record_does_not_count),
        cmocka_unit_test(a_folder_where_nothing_can_be_removed_is_one_warning),
        cmocka_unit_test(a_record_that_cannot_be_opened_is_named_once),
        cmocka_unit_test(a_full_queue_drops_and_never_leaves_a_snapshot_alone),
        cmocka_unit_test(a_state_larger_than_the_queue_is_stored_in_turns),
        cmocka_unit_test(a_record_that_is_listed_while_it_is_queued_counts_once),
        cmocka_unit_test(the_owner_does_not_wait_for_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
