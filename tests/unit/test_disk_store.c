/* needs: cache base */
/* The store of the disk tier: what is found again, what is evicted, whose folder it is. */
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
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cache/disk_folder.h"
#include "cache/disk_record.h"
#include "support/stored.h"

enum { MOST = STORED_WALK };
static const uint64_t SALT = 11;

/* ---------------------------------------------------------------- fingerprints and names */

static void fingerprints_are_blake2b(void **state) {
    (void)state;
    /* From Python: hashlib.blake2b(bytes(i * 7 % 256 for i in range(N)), digest_size=16).hexdigest() */
    static const struct {
        size_t bytes;
        const char *hex;
    } cases[] = {{0, "cae66941d9efbd404e4d88758ea67670"},   {1, "7025e075d5e2f6cde3cc051a31f07660"},
                 {127, "40efb3ed1b6eb973c5f774422adb0230"}, {128, "06e5bcee475a6bf6d9b8a07c6f4ae80a"},
                 {129, "2ec7e7bf8a8265ffd68aadd70ecd2b7e"}, {256, "dbb08d79105462394550aa4d4e10133f"},
                 {999, "4cccaf74a22eddc571b1821c9b68064b"}};
    uint8_t bytes[1000], out[DI_FINGERPRINT];
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (uint8_t)(i * 7);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t cut = cases[i].bytes / 3;
        char hex[2 * DI_FINGERPRINT + 1];
        di_blake2b_16(bytes, cut, bytes + cut, cases[i].bytes - cut, out);
        for (int j = 0; j < DI_FINGERPRINT; j++) snprintf(hex + 2 * j, 3, "%02x", out[j]);
        assert_string_equal(hex, cases[i].hex);
    }
}

static void names_are_read_exactly(void **state) {
    (void)state;
    const di_disk_key keys[] = {{DI_DISK_BLOCK, 0, 0, 0},
                                {DI_DISK_BLOCK, UINT64_MAX, 0, 0},
                                {DI_DISK_SNAPSHOT, 0x0123456789abcdef, 1, 2},
                                {DI_DISK_SNAPSHOT, 5, UINT32_MAX, UINT64_MAX}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char name[DI_DISK_NAME];
        di_disk_key got;
        di_disk_name(&keys[i], name);
        assert_true(di_disk_parse_name(strchr(name, '/') + 1, &got));
        assert_true(di_disk_same(&got, &keys[i]));
    }
    static const char *const wrong[] = {"",
                                        "b",
                                        "b-",
                                        "b-0123456789abcde",
                                        "b-0123456789abcdef0",
                                        "b-0123456789ABCDEF",
                                        "b-+123456789abcdef",
                                        "b- 123456789abcdef",
                                        "b-0123456789abcdef.tmp",
                                        "c-0123456789abcdef",
                                        "s-0123456789abcdef",
                                        "s-0123456789abcdef-00000001",
                                        "s-0123456789abcdef-00000001-",
                                        "s-0123456789abcdef-1-0123456789abcdef",
                                        "s-0123456789abcdef-00000001-0123456789abcdef-",
                                        "s-0123456789abcdef_00000001_0123456789abcdef"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        di_disk_key got;
        if (di_disk_parse_name(wrong[i], &got)) fail_msg("\"%s\" is no name", wrong[i]);
    }
}

/* ---------------------------------------------------------------- what is found */

static void saved_states_come_back_also_after_a_restart(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    di_stored_ids(1, ids, MOST);
    di_stored_start(&s);
    for (uint32_t position = 1; position <= 14; position++) di_stored_save(&s, SALT, ids, position);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(di_stored_load(&s, SALT, ids, 0), 0);
        assert_int_equal(di_stored_load(&s, SALT, ids, 1), 0); /* one token is always left to compute */
        for (uint32_t count = 2; count <= 15; count++)
            assert_int_equal(di_stored_load(&s, SALT, ids, count), count - 1);
        assert_int_equal(di_stored_load(&s, SALT, ids, MOST), 14);
        assert_int_equal(di_stored_load(&s, SALT + 1, ids, MOST), 0);
        assert_int_equal(di_disk_find(s.disk, SALT, ids, MOST, 13), 14);
        assert_int_equal(di_disk_find(s.disk, SALT, ids, MOST, 14), 0);
        assert_int_equal(di_disk_find(s.disk, SALT, ids, MOST, UINT32_MAX), 0);
        for (uint32_t i = 0; i < 14; i++) { /* another id from i on */
            ids[i]++;
            assert_int_equal(di_stored_load(&s, SALT, ids, MOST), i);
            ids[i]--;
        }
        if (round == 0) di_stored_open(&s);
    }
    di_disk_counters counters = di_stored_counters(&s);
    assert_int_equal(counters.load_failures, 0);
    assert_int_equal(counters.records, 14 + 3);
    assert_int_equal(s.warnings, 0);
    di_stored_files files;
    di_stored_list(&s.folder, &files);
    assert_int_equal(files.count, 14 + 3);
    assert_int_equal(files.bytes, counters.bytes);
    di_stored_free(&s);
}

static void nothing_is_written_twice(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    di_stored_ids(1, ids, MOST);
    di_stored_start(&s);
    di_stored_save(&s, SALT, ids, 10);
    assert_int_equal(di_stored_counters(&s).saves, 3);
    di_stored_save(&s, SALT, ids, 10);
    assert_int_equal(di_stored_counters(&s).saves, 3);
    di_stored_save(&s, SALT, ids, 12);
    assert_int_equal(di_stored_counters(&s).saves, 5);
    di_stored_open(&s);
    di_stored_save(&s, SALT, ids, 12);
    assert_int_equal(di_stored_counters(&s).saves, 0);
    di_stored_free(&s);
}

static void closing_writes_what_waits(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    di_stored_start(&s);
    for (uint32_t seed = 0; seed < 40; seed++) {
        di_stored_ids(seed, ids, MOST);
        di_stored_queue(&s, SALT, ids, 9);
    }
    di_stored_open(&s);
    for (uint32_t seed = 0; seed < 40; seed++) assert_int_equal(di_stored_load_walk(&s, SALT, seed), 9);
    di_stored_free(&s);
}

/* Keys can be made to collide; the fingerprint of the whole beginning cannot. */
static void a_collision_of_keys_is_a_miss(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST], other[MOST];
    di_stored_ids(1, ids, MOST);
    di_stored_ids(2, other, MOST);
    memcpy(other + STORED_PAGE, ids + STORED_PAGE, STORED_PAGE * sizeof *ids); /* the same second block */
    di_stored_start(&s);
    di_stored_save(&s, SALT, ids, 8);
    di_stored_close(&s);
    /* The second block of `other`, stored under the key that the second block of `ids` has. */
    uint64_t key = di_disk_next(di_disk_next(di_disk_root(SALT), ids, STORED_PAGE), ids + STORED_PAGE, STORED_PAGE);
    di_disk_header h = {.what = {.kind = DI_DISK_BLOCK, .key = key},
                        .digest = s.digest,
                        .layout = STORED_LAYOUT,
                        .profile = "exact",
                        .id_count = STORED_PAGE};
    di_text payload = {0};
    di_stored_payload(SALT, other, 8, 1, &payload);
    h.payload_bytes = payload.length;
    di_fingerprint_root(SALT, h.fingerprint);
    di_fingerprint_next(h.fingerprint, other, STORED_PAGE, h.fingerprint);
    di_fingerprint_next(h.fingerprint, other + STORED_PAGE, STORED_PAGE, h.fingerprint);
    char path[DI_FOLDER_PATH], subfolder[DI_DISK_SUBFOLDER], name[DI_DISK_NAME];
    di_disk_subfolder(s.digest, "exact", STORED_LAYOUT, subfolder);
    di_disk_name(&h.what, name);
    snprintf(path, sizeof path, "%s/%s/%s", s.folder.path, subfolder, name);
    assert_int_equal(access(path, F_OK), 0);
    assert_true(di_disk_write(&di_disk_system_io, path, &h, other + STORED_PAGE, payload.data, 0, true));
    di_text_free(&payload);
    di_stored_open(&s);
    assert_int_equal(di_disk_find(s.disk, SALT, ids, MOST, 0), 8);
    assert_int_equal(di_stored_load(&s, SALT, ids, MOST), 0);
    assert_int_equal(s.warnings, 0);
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- the budget */

/* Which of the states 0 .. count-1 (one block and one snapshot each) can still be found. */
static uint64_t present(di_stored *s, uint32_t count) {
    uint64_t found = 0;
    for (uint32_t seed = 0; seed < count; seed++) {
        int32_t ids[MOST];
        di_stored_ids(seed, ids, MOST);
        found |= (uint64_t)(di_disk_find(s->disk, SALT, ids, MOST, 0) > 0) << seed;
    }
    return found;
}

static void save_number(di_stored *s, uint32_t seed) {
    di_stored_save_walk(s, SALT, seed, 6);
}

static uint32_t load_number(di_stored *s, uint32_t seed) {
    return di_stored_load_walk(s, SALT, seed);
}

static uint64_t size_of_one(void) {
    return 2 * (DI_DISK_HEADER + 5 * 8) + 6 * 4; /* at most */
}

static void least_recently_used_goes_first(void **state) {
    (void)state;
    for (int restart = 0; restart < 2; restart++) {
        di_stored s;
        di_stored_init(&s);
        s.bytes = 4 * size_of_one();
        di_stored_open(&s);
        for (uint32_t i = 0; i < 4; i++) save_number(&s, i);
        assert_int_equal(present(&s, 4), 0xF);
        assert_int_equal(load_number(&s, 0), 6); /* used by reading */
        save_number(&s, 1);                      /* and by being saved again */
        if (restart) {
            /* Files do not tell ages within a second apart; these are what the store would have written then. */
            di_stored_close(&s);
            di_stored_files files;
            di_stored_list(&s.folder, &files);
            for (uint32_t i = 0; i < files.count; i++) di_stored_set_age(&s, files.paths[i], 100);
            di_stored_open(&s);
            assert_int_equal(load_number(&s, 0), 6);
            save_number(&s, 1);
            di_stored_open(&s);
        }
        save_number(&s, 4);
        save_number(&s, 5);
        uint64_t left = present(&s, 6);
        if ((left & 0x33) != 0x33) fail_msg("left %llx", (unsigned long long)left);
        assert_int_not_equal(left & 0xC, 0xC);
        assert_true(di_stored_counters(&s).bytes <= s.bytes);
        assert_int_equal(s.warnings, 0);
        di_stored_free(&s);
    }
}

/* Of one state the snapshot goes first, then its blocks from the last to the first: what is left stays useful. */
static void a_state_is_evicted_from_its_end(void **state) {
    (void)state;
    for (int restart = 0; restart < 2; restart++) {
        di_stored s;
        int32_t ids[MOST];
        di_stored_ids(1, ids, MOST);
        di_stored_init(&s);
        di_stored_open(&s);
        di_stored_save(&s, SALT, ids, 18);
        di_stored_save(&s, SALT, ids, 9);
        uint64_t bytes = di_stored_counters(&s).bytes;
        uint32_t found[8], count = 0;
        if (restart) di_stored_close(&s);
        for (uint64_t budget = bytes; budget > 8; budget -= 8) {
            if (s.disk || restart) {
                s.bytes = budget;
                di_stored_open(&s);
                di_stored_idle(&s);
            }
            uint32_t now = di_disk_find(s.disk, SALT, ids, MOST, 0);
            if (!count || found[count - 1] != now) found[count++] = now;
            assert_true(count < 8);
        }
        /* 18 needs blocks 0..3; without its snapshot there is still 9; then nothing. */
        assert_int_equal(count, 3);
        assert_int_equal(found[0], 18);
        assert_int_equal(found[1], 9);
        assert_int_equal(found[2], 0);
        di_stored_free(&s);
    }
}

static void the_budget_holds_and_counts_foreign_records(void **state) {
    (void)state;
    di_stored s;
    di_stored_init(&s);
    s.profile = "exact+compact+12";
    di_stored_open(&s);
    for (uint32_t i = 0; i < 10; i++) save_number(&s, i);
    s.profile = "exact";
    s.digest++;
    di_stored_open(&s);
    for (uint32_t i = 0; i < 10; i++) save_number(&s, i);
    s.digest--;
    s.bytes = 20 * size_of_one();
    di_stored_open(&s);
    assert_int_equal(present(&s, 10), 0); /* nothing of another profile or of other weights is ever found */
    assert_int_equal(di_stored_counters(&s).records, 40);
    for (uint32_t i = 0; i < 30; i++) {
        save_number(&s, i);
        di_stored_files files;
        di_stored_list(&s.folder, &files);
        assert_true(files.bytes <= s.bytes);
        assert_int_equal(files.bytes, di_stored_counters(&s).bytes);
    }
    assert_int_equal(present(&s, 30) >> 15, 0x7FFF); /* the foreign ones were older */
    s.bytes = 3 * size_of_one();
    di_stored_open(&s); /* a smaller budget is met at once */
    di_stored_idle(&s);
    assert_true(di_stored_counters(&s).bytes <= s.bytes);
    s.bytes = 100; /* less than any record */
    di_stored_open(&s);
    save_number(&s, 50);
    assert_int_equal(di_stored_counters(&s).bytes, 0);
    assert_int_equal(di_stored_counters(&s).saves, 0);
    assert_true(di_stored_counters(&s).dropped > 0);
    assert_int_equal(s.warnings, 0);
    di_stored_free(&s);
}

static void a_wrong_clock_only_changes_the_order(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    di_stored_start(&s);
    for (uint32_t i = 0; i < 4; i++) save_number(&s, i);
    di_stored_close(&s);
    di_stored_list(&s.folder, &files);
    for (uint32_t i = 0; i < files.count; i++)
        di_stored_set_age(&s, files.paths[i], i % 2 ? -1000000 : -200LL * 365 * 86400);
    di_stored_open(&s);
    assert_int_equal(present(&s, 4), 0xF);
    di_stored_close(&s);
    for (uint32_t i = 0; i < files.count; i++) { /* records of the future were brought back to now */
        char path[DI_FOLDER_PATH];
        struct stat info;
        di_folder_path(&s.folder, files.paths[i], path);
        assert_int_equal(stat(path, &info), 0);
        assert_true(info.st_mtim.tv_sec <= time(NULL) + 1);
    }
    s.bytes = 4 * size_of_one();
    di_stored_open(&s);
    for (uint32_t i = 4; i < 8; i++) save_number(&s, i);
    assert_int_equal(present(&s, 8), 0xF0);
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- whose folder it is */

static void a_second_process_reads_only(void **state) {
    (void)state;
    di_stored a, b;
    di_stored_init(&a);
    di_stored_init(&b);
    di_folder own = b.folder;
    b.folder = a.folder;
    di_stored_open(&a);
    save_number(&a, 0);
    di_stored_open(&b);
    assert_true(di_stored_counters(&b).read_only);
    assert_int_equal(b.warnings, 1);
    assert_non_null(strstr(b.last_warning, "another process"));
    assert_int_equal(load_number(&b, 0), 6);
    save_number(&b, 1); /* goes nowhere */
    save_number(&a, 2);
    assert_int_equal(present(&b, 3), 1);
    assert_int_equal(present(&a, 3), 5);
    di_stored_files files;
    di_stored_list(&a.folder, &files);
    for (uint32_t i = 0; i < files.count; i++) di_folder_remove(&a.folder, files.paths[i]);
    assert_int_equal(load_number(&b, 0), 0); /* evicted by the other one: a plain miss */
    assert_int_equal(b.warnings, 1);
    di_stored_close(&a);
    assert_int_equal(load_number(&b, 0), 0);
    di_stored_open(&b); /* the lock went with its holder */
    assert_false(di_stored_counters(&b).read_only);
    save_number(&b, 1);
    assert_int_equal(present(&b, 3), 2);
    di_stored_close(&b);
    b.folder = own;
    di_stored_free(&b);
    di_stored_free(&a);
}

static void expect_unusable(di_stored *s, const char *folder, bool listed) {
    di_folder own = s->folder;
    uint32_t before = s->warnings;
    if (folder) snprintf(s->folder.path, sizeof s->folder.path, "%s", folder);
    di_stored_open(s);
    assert_true(di_stored_counters(s).read_only);
    assert_int_equal(load_number(s, 0), listed ? 6 : 0);
    save_number(s, 1);
    assert_int_equal(load_number(s, 1), 0);
    assert_int_equal(s->warnings, before + 1);
    di_stored_close(s);
    s->folder = own;
}

static void an_unusable_folder_is_a_warning(void **state) {
    (void)state;
    di_stored s;
    char path[DI_FOLDER_PATH];
    di_stored_init(&s);
    di_folder_write(&s.folder, "file", "", 0);
    di_folder_path(&s.folder, "file", path);
    expect_unusable(&s, path, false);
    di_folder_path(&s.folder, "none/below", path);
    expect_unusable(&s, path, false);
    expect_unusable(&s, "/proc/deepinfer-cache", false);
    di_folder_path(&s.folder, "lock", path); /* may be read, not locked */
    di_stored_open(&s);
    save_number(&s, 0);
    di_stored_close(&s);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    expect_unusable(&s, NULL, true);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(symlink("/etc/hostname", path), 0); /* a link in its place is not followed */
    expect_unusable(&s, NULL, true);
    di_stored_free(&s);
    char longest[6000];
    memset(longest, 'a', sizeof longest);
    longest[0] = '/';
    longest[sizeof longest - 1] = 0;
    for (size_t length = 3890; length < 5000; length += length < 4110 ? 1 : 300) {
        char saved = longest[length];
        longest[length] = 0;
        di_disk_options options = {.folder = longest, .bytes = 1 << 20, .profile = "exact", .page_tokens = STORED_PAGE};
        di_disk *disk;
        di_error error = {0};
        assert_int_equal(di_disk_open(&options, &disk, &error), DI_OK);
        assert_true(di_disk_wait_ready(disk, 60000));
        di_disk_counters counters;
        di_disk_get_counters(disk, &counters);
        assert_true(counters.read_only);
        di_disk_close(disk);
        longest[length] = saved;
    }
}

static void files_of_others_are_left_alone(void **state) {
    (void)state;
    di_stored s;
    di_stored_start(&s);
    save_number(&s, 0);
    di_stored_close(&s);
    di_stored_files before, after;
    di_stored_list(&s.folder, &before);
    char temporary[160], above[256];
    snprintf(temporary, sizeof temporary, "%s.tmp", before.paths[0]);
    di_folder_write(&s.folder, temporary, "half", 4);
    /* Record names where no store would put them, and other things. */
    snprintf(above, sizeof above, "%.33s/x.txt", before.paths[0]);
    di_folder_write(&s.folder, "b-0123456789abcdef", "mine", 4);
    di_folder_write(&s.folder, "b-0123456789abcdef.tmp", "mine", 4);
    di_folder_write(&s.folder, "notes.txt", "mine", 4);
    di_folder_write(&s.folder, above, "mine", 4);
    char deep[256];
    snprintf(deep, sizeof deep, "%.36s/s-none", before.paths[0]);
    di_folder_write(&s.folder, deep, "mine", 4);
    s.bytes = 1000;
    di_stored_open(&s);
    assert_int_equal(di_stored_counters(&s).records, 2);
    for (uint32_t i = 1; i < 20; i++) save_number(&s, i);
    di_stored_close(&s);
    di_stored_list(&s.folder, &after);
    uint32_t mine = 0;
    for (uint32_t i = 0; i < after.count; i++) {
        assert_string_not_equal(after.paths[i], temporary); /* the rest of a write that was interrupted */
        mine += strcmp(after.paths[i], "b-0123456789abcdef") == 0 || strcmp(after.paths[i], "notes.txt") == 0 ||
                strcmp(after.paths[i], "b-0123456789abcdef.tmp") == 0 || strcmp(after.paths[i], above) == 0 ||
                strcmp(after.paths[i], deep) == 0;
    }
    assert_int_equal(mine, 5);
    uint64_t removed, freed, left;
    di_error error = {0};
    assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_OK);
    di_stored_list(&s.folder, &after);
    assert_int_equal(after.count, 5);
    assert_int_equal(left, 0);
    di_stored_free(&s);
}

static void links_and_pipes_are_not_followed(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    char path[DI_FOLDER_PATH], elsewhere[DI_FOLDER_PATH];
    di_stored_start(&s);
    save_number(&s, 0);
    di_stored_list(&s.folder, &files);
    di_folder_path(&s.folder, files.paths[0], path);
    di_folder_path(&s.folder, "elsewhere", elsewhere);
    assert_int_equal(rename(path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, path), 0);
    assert_int_equal(load_number(&s, 0), 0); /* the link took the record's place while the store ran */
    assert_int_equal(access(elsewhere, F_OK), 0);
    save_number(&s, 0);
    assert_int_equal(load_number(&s, 0), 6);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(load_number(&s, 0), 0); /* and does not wait for a writer */
    save_number(&s, 0);
    assert_int_equal(load_number(&s, 0), 6);
    snprintf(path, sizeof path, "%s/%s.tmp", s.folder.path, files.paths[0]);
    di_stored_close(&s);
    di_folder_path(&s.folder, files.paths[0], elsewhere);
    assert_int_equal(unlink(elsewhere), 0);
    di_folder_path(&s.folder, "victim", elsewhere);
    di_folder_write(&s.folder, "victim", "precious", 8);
    assert_int_equal(symlink(elsewhere, path), 0); /* where a temporary file will be wanted */
    di_stored_open(&s);
    save_number(&s, 0);
    size_t length;
    char *victim = di_folder_read(&s.folder, "victim", &length);
    assert_string_equal(victim, "precious");
    free(victim);
    di_stored_free(&s);
}

/* Where a record is made before it gets its name. */
static void what_stands_in_the_way_of_a_write_is_replaced(void **state) {
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        di_stored s;
        di_stored_files files;
        char path[DI_FOLDER_PATH + 8];
        di_stored_start(&s);
        save_number(&s, 0);
        di_stored_list(&s.folder, &files);
        snprintf(path, sizeof path, "%s/%s", s.folder.path, files.paths[0]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(load_number(&s, 0), 0);
        snprintf(path, sizeof path, "%s/%s.tmp", s.folder.path, files.paths[0]);
        if (kind == 0) assert_int_equal(symlink("/nonexistent/file", path), 0);
        if (kind == 1) assert_int_equal(mkfifo(path, 0600), 0);
        if (kind == 2) di_folder_write(&s.folder, path + strlen(s.folder.path) + 1, "half", 4);
        if (kind == 3) assert_int_equal(mkdir(path, 0700), 0);
        save_number(&s, 0);
        assert_int_equal(load_number(&s, 0), kind == 3 ? 0 : 6);
        assert_int_equal(s.warnings, kind == 3);
        if (kind == 3) { /* the record is stored once it is gone */
            assert_non_null(strstr(s.last_warning, files.paths[0]));
            assert_int_equal(rmdir(path), 0);
            save_number(&s, 0);
            assert_int_equal(load_number(&s, 0), 6);
        }
        di_stored_free(&s);
    }
}

static void records_removed_under_us_are_misses(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    di_stored_start(&s);
    for (uint32_t i = 0; i < 10; i++) save_number(&s, i);
    di_stored_list(&s.folder, &files);
    for (uint32_t i = 0; i < files.count; i += 2) di_folder_remove(&s.folder, files.paths[i]);
    for (uint32_t i = 0; i < 10; i++) load_number(&s, i);
    for (uint32_t i = 0; i < 10; i++) save_number(&s, i);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(load_number(&s, i), 6);
    assert_int_equal(s.warnings, 0);
    char subfolder[512];
    snprintf(subfolder, sizeof subfolder, "%s/%.33s", s.folder.path, files.paths[0]);
    di_folder whole;
    snprintf(whole.path, sizeof whole.path, "%.127s", subfolder);
    di_folder_delete(&whole); /* with everything in it */
    save_number(&s, 10);      /* finds that all is gone */
    assert_int_equal(di_stored_counters(&s).records, 2);
    for (uint32_t i = 0; i < 10; i++) save_number(&s, i);
    for (uint32_t i = 0; i < 10; i++) assert_int_equal(load_number(&s, i), 6);
    assert_int_equal(s.warnings, 0);
    di_stored_list(&s.folder, &files);
    assert_int_equal(di_stored_counters(&s).bytes, files.bytes);
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- a folder that is removed while it is used */

static void make_empty(const di_folder *folder) {
    di_folder gone = *folder;
    di_folder_delete(&gone);
    assert_int_equal(mkdir(folder->path, 0700), 0);
}

/* A second store on the folder of the first. */
static void start_beside(di_stored *s, const di_stored *first, di_folder *own) {
    di_stored_init(s);
    *own = s->folder;
    s->folder = first->folder;
    s->bytes = first->bytes;
    di_stored_open(s);
}

static void free_beside(di_stored *s, const di_folder *own) {
    di_stored_close(s);
    s->folder = *own;
    di_stored_free(s);
}

static void expect_counted(di_stored *s) {
    di_stored_files files;
    di_stored_list(&s->folder, &files);
    assert_int_equal(di_stored_counters(s).bytes, files.bytes);
    assert_int_equal(di_stored_counters(s).records, files.count);
}

static void a_removed_folder_is_made_again(void **state) {
    (void)state;
    for (int how = 0; how < 4; how++) {
        di_stored s;
        di_error error = {0};
        uint64_t removed, freed, left;
        char aside[DI_FOLDER_PATH + 8];
        di_stored_start(&s);
        snprintf(aside, sizeof aside, "%s-aside", s.folder.path);
        for (uint32_t i = 0; i < 3; i++) save_number(&s, i);
        if (how == 0) di_folder_delete(&s.folder);
        if (how == 1) make_empty(&s.folder);
        if (how == 2) di_folder_remove(&s.folder, "lock");
        if (how == 3) assert_int_equal(rename(s.folder.path, aside), 0);
        save_number(&s, 10);
        assert_int_equal(present(&s, 3), how == 2 ? 7 : 0);
        expect_counted(&s);
        assert_int_equal(load_number(&s, 10), 6);
        assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_ERR_LIMIT);
        for (uint32_t i = 0; i < 3; i++) save_number(&s, i);
        for (uint32_t i = 0; i < 3; i++) assert_int_equal(load_number(&s, i), 6);
        expect_counted(&s);
        assert_int_equal(di_stored_counters(&s).save_failures, 0);
        assert_false(di_stored_counters(&s).failing || di_stored_counters(&s).read_only);
        assert_int_equal(s.warnings, 0);
        di_folder renamed = s.folder;
        snprintf(renamed.path, sizeof renamed.path, "%.100s", aside);
        if (how == 3) di_folder_delete(&renamed);
        di_stored_free(&s);
    }
}

/* Whoever made the folder again writes there, and is the only one. */
static void a_folder_that_another_made_again_is_its_own(void **state) {
    (void)state;
    di_stored a, b;
    di_folder own;
    di_stored_init(&a);
    a.bytes = 4 * size_of_one();
    di_stored_open(&a);
    save_number(&a, 0);
    make_empty(&a.folder);
    start_beside(&b, &a, &own);
    assert_false(di_stored_counters(&b).read_only);
    for (uint32_t i = 0; i < 8; i++) {
        save_number(&b, 10 + i);
        save_number(&a, 20 + i);
        expect_counted(&b);
        assert_true(di_stored_counters(&b).bytes <= b.bytes);
    }
    assert_true(di_stored_counters(&a).read_only);
    assert_true(di_stored_counters(&a).save_failures > 0);
    assert_int_equal(di_stored_counters(&a).queued, 0);
    assert_int_equal(a.warnings, 1);
    assert_non_null(strstr(a.last_warning, "another process is writing there"));
    assert_int_equal(b.warnings, 0);
    assert_int_equal(present(&a, 30), 1 << 10); /* what was there when it looked */
    free_beside(&b, &own);
    di_stored_free(&a);
}

/* Another made it again, wrote, and went: what it left counts. */
static void what_others_left_there_counts(void **state) {
    (void)state;
    di_stored a, b;
    di_folder own;
    di_stored_start(&a);
    save_number(&a, 0);
    make_empty(&a.folder);
    start_beside(&b, &a, &own);
    for (uint32_t i = 10; i < 13; i++) save_number(&b, i);
    di_stored_close(&b);
    save_number(&a, 20);
    expect_counted(&a);
    assert_int_equal(di_stored_counters(&a).records, 8);
    for (uint32_t i = 10; i < 13; i++) assert_int_equal(load_number(&a, i), 6);
    assert_int_equal(a.warnings, 0);
    free_beside(&b, &own);
    di_stored_free(&a);
}

/* While the folder's own place is missing nothing can be stored; that ends by itself. */
static void a_missing_parent_is_waited_for(void **state) {
    (void)state;
    di_stored s;
    di_folder above = di_folder_new(NULL);
    char aside[DI_FOLDER_PATH + 8];
    di_stored_init(&s);
    di_folder own = s.folder;
    snprintf(aside, sizeof aside, "%s-aside", above.path);
    snprintf(s.folder.path, sizeof s.folder.path, "%.100s/cache", above.path);
    di_stored_open(&s);
    save_number(&s, 0);
    assert_int_equal(rename(above.path, aside), 0);
    for (uint32_t i = 1; i < 4; i++) save_number(&s, i);
    assert_int_equal(di_stored_counters(&s).records, 0);
    assert_int_equal(di_stored_counters(&s).bytes, 0);
    assert_true(di_stored_counters(&s).failing);
    assert_int_equal(s.warnings, 1);
    assert_non_null(strstr(s.last_warning, "cache: cannot store: No such file or directory"));
    assert_int_equal(rename(aside, above.path), 0);
    save_number(&s, 4);
    assert_false(di_stored_counters(&s).failing);
    assert_int_equal(load_number(&s, 0), 6); /* it came back with the folder */
    assert_int_equal(load_number(&s, 4), 6);
    expect_counted(&s);
    assert_int_equal(s.warnings, 1);
    di_stored_close(&s);
    di_folder_delete(&above);
    s.folder = own;
    di_stored_free(&s);
}

/* A reason that passes keeps the store from writing only as long as it lasts. */
static void out_of_descriptors_at_opening_passes(void **state) {
    (void)state;
    di_stored s;
    struct rlimit limit;
    di_stored_init(&s);
    int lowest = dup(0);
    assert_true(lowest > 0 && close(lowest) == 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const struct rlimit none = {.rlim_cur = (rlim_t)lowest, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    di_stored_open(&s);
    save_number(&s, 0);
    assert_true(di_stored_counters(&s).failing);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(s.warnings, 1);
    save_number(&s, 0);
    assert_int_equal(load_number(&s, 0), 6);
    assert_false(di_stored_counters(&s).failing || di_stored_counters(&s).read_only);
    assert_int_equal(s.warnings, 1);
    di_stored_free(&s);
}

static void a_lock_is_that_of_the_path(void **state) {
    (void)state;
    char path[DI_FOLDER_PATH];
    di_folder folder = di_folder_new(NULL);
    di_folder_path(&folder, "lock", path);
    assert_int_equal(di_disk_lock(path, false), -1);
    int first = di_disk_lock(path, true);
    assert_int_equal(di_disk_is_locked(first, path), 1);
    assert_int_equal(di_disk_lock(path, true), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    di_folder_remove(&folder, "lock");
    assert_int_equal(di_disk_is_locked(first, path), 0);
    int second = di_disk_lock(path, true);
    assert_int_equal(di_disk_is_locked(first, path), 0);
    assert_int_equal(di_disk_is_locked(second, path), 1);
    close(first);
    close(second);
    assert_int_equal(di_disk_is_locked(second, path), -1);
    di_folder_delete(&folder);
}

static void the_folder_is_private(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files;
    di_stored_init(&s);
    char *end = s.folder.path + strlen(s.folder.path);
    snprintf(end, 8, "/cache");
    di_stored_open(&s);
    save_number(&s, 0);
    di_stored_list(&s.folder, &files);
    for (uint32_t i = 0; i < files.count; i++) {
        char path[DI_FOLDER_PATH];
        struct stat info;
        di_folder_path(&s.folder, files.paths[i], path);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 077, 0);
        *strrchr(path, '/') = 0;
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 077, 0);
    }
    di_stored_close(&s);
    di_folder_delete(&s.folder);
    *end = 0;
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- large folders, loads that nobody waits for */

static void a_large_folder_is_listed_beside_the_work(void **state) {
    (void)state;
    enum { MANY = 6000 };
    di_stored s;
    di_stored_init(&s);
    s.bytes = (uint64_t)1 << 30;
    di_stored_open(&s);
    save_number(&s, 0);
    di_stored_close(&s);
    char subfolder[DI_DISK_SUBFOLDER], path[512];
    di_disk_subfolder(s.digest, s.profile, STORED_LAYOUT, subfolder);
    for (uint32_t i = 0; i < MANY; i++) {
        char name[DI_DISK_NAME];
        di_disk_key what = {DI_DISK_SNAPSHOT, (uint64_t)(i % 200) << 56 | i, i, i};
        di_disk_name(&what, name);
        snprintf(path, sizeof path, "%s/%s/%.2s", s.folder.path, subfolder, name);
        if (i < 256) mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/%s/%s", s.folder.path, subfolder, name);
        int file = open(path, O_CREAT | O_WRONLY, 0600);
        assert_true(file >= 0);
        close(file);
    }
    di_stored_open(&s);
    assert_int_equal(di_stored_counters(&s).records, MANY + 2);
    assert_int_equal(load_number(&s, 0), 6);
    di_stored_close(&s);
    for (int i = 0; i < 10; i++) { /* closed while it lists */
        di_disk_options options = {.folder = s.folder.path,
                                   .bytes = s.bytes,
                                   .digest = s.digest,
                                   .profile = s.profile,
                                   .layout = STORED_LAYOUT,
                                   .page_tokens = STORED_PAGE};
        di_disk *disk;
        di_error error = {0};
        int32_t ids[MOST];
        di_stored_ids(0, ids, MOST);
        assert_int_equal(di_disk_open(&options, &disk, &error), DI_OK);
        if (i % 2) di_disk_wait_ready(disk, i);
        uint32_t position = di_disk_find(disk, SALT, ids, MOST, 0);
        di_disk_load *load = position ? di_disk_load_start(disk, SALT, ids, position) : NULL;
        di_disk_load_free(load);
        di_disk_close(disk);
    }
    di_stored_free(&s);
}

static void loads_may_be_abandoned(void **state) {
    (void)state;
    di_stored s;
    int32_t ids[MOST];
    di_stored_ids(3, ids, MOST);
    di_stored_start(&s);
    di_stored_save(&s, SALT, ids, 60);
    for (int i = 0; i < 200; i++) {
        di_disk_load *load = di_disk_load_start(s.disk, SALT, ids, 60);
        if (i % 3) di_disk_load_poll(load);
        di_disk_load_free(load);
        if (i % 50 == 49) di_stored_open(&s);
    }
    assert_int_equal(di_stored_load(&s, SALT, ids, MOST), 60);
    assert_int_equal(s.warnings, 0);
    di_stored_free(&s);
}

/* ---------------------------------------------------------------- cache list, verify, trim */

static bool count_kind(void *arg, const di_disk_record *r) {
    uint32_t *counts = arg;
    counts[strcmp(r->kind, "block") == 0 ? 0 : strcmp(r->kind, "snapshot") == 0 ? 1 : 2]++;
    if (r->fault) counts[3]++;
    return true;
}

static void walking_and_trimming(void **state) {
    (void)state;
    di_stored s;
    di_error error = {0};
    uint64_t removed, freed, left;
    di_stored_init(&s);
    assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "not a cache folder"));
    di_stored_open(&s);
    for (uint32_t i = 0; i < 6; i++) save_number(&s, i);
    assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_ERR_LIMIT);
    di_stored_close(&s);
    uint32_t counts[4] = {0};
    di_stored_files files;
    struct stat before, after;
    char path[DI_FOLDER_PATH];
    di_stored_list(&s.folder, &files);
    di_folder_path(&s.folder, files.paths[0], path);
    assert_int_equal(stat(path, &before), 0);
    assert_int_equal(di_disk_walk(s.folder.path, true, count_kind, counts, &error), DI_OK);
    assert_int_equal(stat(path, &after), 0);
    assert_memory_equal(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim); /* looking is not using */
    assert_int_equal(counts[0], 6);
    assert_int_equal(counts[1], 6);
    assert_int_equal(counts[2] + counts[3], 0);
    assert_int_equal(di_disk_trim(s.folder.path, files.bytes, &removed, &freed, &left, &error), DI_OK);
    assert_int_equal(removed, 0);
    assert_int_equal(left, files.bytes);
    assert_int_equal(di_disk_trim(s.folder.path, files.bytes / 2, &removed, &freed, &left, &error), DI_OK);
    assert_true(left <= files.bytes / 2 && left > files.bytes / 4);
    assert_int_equal(left + freed, files.bytes);
    di_stored_open(&s);
    assert_int_equal(present(&s, 6) & 0x30, 0x30); /* the newest stay */
    di_stored_close(&s);
    assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_OK);
    snprintf(path, sizeof path, "%s/%.33s", s.folder.path, files.paths[0]);
    assert_int_not_equal(access(path, F_OK), 0);
    assert_int_equal(di_disk_walk("/nonexistent/x", false, count_kind, counts, &error), DI_ERR_NOT_FOUND);
    assert_int_equal(di_disk_trim("/etc/hostname", 0, &removed, &freed, &left, &error), DI_ERR_INVALID_ARGUMENT);
    di_stored_free(&s);
}

/* The administrator may do everything: for a while this is nobody. */
static bool drop_rights(void) {
    return geteuid() == 0 && seteuid(65534) == 0;
}

/* One folder that may not be changed, then not even read: the others are seen to, and it is told. */
static void what_may_not_be_touched_does_not_keep_the_others(void **state) {
    (void)state;
    di_stored s;
    di_stored_files files, after;
    di_error error = {0};
    uint64_t removed, freed, left;
    uint32_t counts[4] = {0};
    char shut[DI_FOLDER_PATH];
    bool dropped = drop_rights();
    assert_true(dropped || geteuid() != 0);
    di_stored_start(&s);
    for (uint32_t i = 0; i < 20; i++) save_number(&s, i);
    di_stored_close(&s);
    di_stored_list(&s.folder, &files);
    for (uint32_t f = 0; f < files.count; f++) di_stored_set_age(&s, files.paths[f], f == 7 ? 1000 : 100);
    snprintf(shut, sizeof shut, "%s/%.36s", s.folder.path, files.paths[7]);
    assert_int_equal(chmod(shut, 0500), 0);
    assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_ERR_IO);
    if (!strstr(error.message, files.paths[7])) fail_msg("%s", error.message);
    di_stored_list(&s.folder, &after);
    assert_int_equal(after.count + removed, files.count);
    assert_int_equal(after.bytes, left);
    assert_int_equal(left + freed, files.bytes);
    for (uint32_t f = 0; f < after.count; f++) assert_memory_equal(after.paths[f], files.paths[7], 36);
    di_stored_open(&s);
    save_number(&s, 100);
    di_stored_close(&s);
    assert_int_equal(chmod(shut, 0), 0);
    assert_int_equal(di_disk_walk(s.folder.path, true, count_kind, counts, &error), DI_ERR_IO);
    if (!strstr(error.message, shut)) fail_msg("%s", error.message);
    assert_int_equal(counts[0] + counts[1], 2);
    assert_int_equal(s.warnings, 0);
    di_stored_open(&s);
    assert_int_equal(s.warnings, 1);
    if (!strstr(s.last_warning, shut)) fail_msg("%s", s.last_warning);
    assert_int_equal(load_number(&s, 100), 6);
    di_stored_close(&s);
    assert_int_equal(chmod(shut, 0700), 0);
    assert_int_equal(di_disk_trim(s.folder.path, 0, &removed, &freed, &left, &error), DI_OK);
    assert_int_equal(left, 0);
    di_stored_free(&s);
    if (dropped) assert_int_equal(seteuid(0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fingerprints_are_blake2b),
        cmocka_unit_test(names_are_read_exactly),
        cmocka_unit_test(saved_states_come_back_also_after_a_restart),
        cmocka_unit_test(nothing_is_written_twice),
        cmocka_unit_test(closing_writes_what_waits),
        cmocka_unit_test(a_collision_of_keys_is_a_miss),
        cmocka_unit_test(least_recently_used_goes_first),
        cmocka_unit_test(a_state_is_evicted_from_its_end),
        cmocka_unit_test(the_budget_holds_and_counts_foreign_records),
        cmocka_unit_test(a_wrong_clock_only_changes_the_order),
        cmocka_unit_test(a_second_process_reads_only),
        cmocka_unit_test(an_unusable_folder_is_a_warning),
        cmocka_unit_test(files_of_others_are_left_alone),
        cmocka_unit_test(links_and_pipes_are_not_followed),
        cmocka_unit_test(what_stands_in_the_way_of_a_write_is_replaced),
        cmocka_unit_test(records_removed_under_us_are_misses),
        cmocka_unit_test(a_removed_folder_is_made_again),
        cmocka_unit_test(a_folder_that_another_made_again_is_its_own),
        cmocka_unit_test(what_others_left_there_counts),
        cmocka_unit_test(a_missing_parent_is_waited_for),
        cmocka_unit_test(out_of_descriptors_at_opening_passes),
        cmocka_unit_test(a_lock_is_that_of_the_path),
        cmocka_unit_test(the_folder_is_private),
        cmocka_unit_test(a_large_folder_is_listed_beside_the_work),
        cmocka_unit_test(loads_may_be_abandoned),
        cmocka_unit_test(walking_and_trimming),
        cmocka_unit_test(what_may_not_be_touched_does_not_keep_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
