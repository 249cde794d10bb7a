/* needs: engine */
/* labels: long
 * di_save_state and di_load_state: what comes back from a file gives the same bytes, and a file that is damaged or from
 * elsewhere is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/disk_record.h"
#include "engine/engine_internal.h"
#include "support/folder.h"
#include "support/requests.h"

#define NANO DI_TEST_DATA "/nano"
enum { OUTPUT = 5 };

static di_engine *open_nano(bool compact, const char *ram, const char *context) {
    const di_option options[] = {
        {"prefill", compact ? "compact" : "off"}, {"cache-ram", ram}, {"context", context}, {"snapshot-interval", "0"}};
    return di_open_with(NANO, options, sizeof options / sizeof *options);
}

static di_job ask(const int32_t *ids, uint32_t count) {
    di_job job = di_greedy_job(ids, count, OUTPUT);
    job.sampling.logprobs = 3;
    return job;
}

typedef struct paths {
    di_folder folder;
    char path[256];
} paths;

static paths make_paths(void) {
    paths p = {.folder = di_folder_new(NULL)};
    snprintf(p.path, sizeof p.path, "%s/kept", p.folder.path);
    return p;
}

/* ---------------------------------------------------------------- the same bytes */

static void states_come_back(void **state) {
    (void)state;
    static const uint32_t lengths[] = {2, 33, 63, 64, 65, 66, 128, 129, 197};
    paths p = make_paths();
    for (int compact = 0; compact < 2; compact++) {
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            uint32_t count = lengths[l];
            const int32_t *ids = di_walk((uint32_t)l, count + 20);
            di_outcome first, longer, got;
            di_error error = {0};
            size_t positions = 0, loaded = 0;
            di_engine *engine = open_nano(compact, "0", "1024");
            di_job job = ask(ids, count), more = ask(ids, count + 20);
            di_run_job(engine, &job, &first);
            di_run_job(engine, &more, &longer);
            di_close(engine);

            engine = open_nano(compact, "64M", "1024");
            di_run_job(engine, &job, &got);
            di_assert_same(&first, &got, "with a cache");
            if (di_save_state(engine, ids, count + 20, NULL, p.path, &positions, &error)) fail_msg("%s", error.message);
            assert_int_equal(positions, count - 1); /* one before the prompt's end; the answer went elsewhere */
            di_close(engine);

            engine = open_nano(compact, "64M", "1024");
            if (di_load_state(engine, p.path, NULL, &loaded, &error)) fail_msg("%s", error.message);
            assert_int_equal(loaded, positions);
            di_run_job(engine, &job, &got);
            assert_int_equal(got.usage.cached_tokens, positions);
            di_assert_same(&first, &got, "from a file");
            di_run_job(engine, &more, &got);
            assert_true(got.usage.cached_tokens >= positions);
            di_assert_same(&longer, &got, "from a file, longer");
            di_assert_idle(engine);
            di_close(engine);
        }
    }
    di_folder_delete(&p.folder);
}

/* A conversation: the state at the end of an answer, which is in no prompt yet. */
static void answers_come_back(void **state) {
    (void)state;
    paths p = make_paths();
    int32_t ids[200];
    memcpy(ids, di_walk(3, 100), 100 * sizeof *ids);
    di_engine *engine = open_nano(false, "64M", "1024");
    di_job job = ask(ids, 100);
    di_outcome outcome, cold;
    size_t positions;
    di_error error = {0};
    di_run_job(engine, &job, &outcome);
    memcpy(ids + 100, outcome.ids, OUTPUT * sizeof *ids);
    assert_int_equal(di_save_state(engine, ids, 100 + OUTPUT, NULL, p.path, &positions, &error), DI_OK);
    assert_int_equal(positions, 100 + OUTPUT - 1); /* the newest id was never a row */
    di_close(engine);
    memcpy(ids + 100 + OUTPUT, di_walk(4, 40), 40 * sizeof *ids);
    di_job next = ask(ids, 100 + OUTPUT + 40);
    engine = open_nano(false, "0", "1024");
    di_run_job(engine, &next, &cold);
    di_close(engine);
    engine = open_nano(false, "64M", "1024");
    assert_int_equal(di_load_state(engine, p.path, NULL, NULL, &error), DI_OK);
    di_run_job(engine, &next, &outcome);
    assert_int_equal(outcome.usage.cached_tokens, 100 + OUTPUT - 1);
    di_assert_same(&cold, &outcome, "next turn");
    di_close(engine);
    di_folder_delete(&p.folder);
}

static di_engine *open_tiny(const char *spec) {
    const di_option options[] = {{"spec", spec}, {"context", "1024"}};
    return di_open_with(DI_SOURCE_DIR "/models/tiny", options, 2);
}

/* The draft rings are a part of the state that may be missing or too much: tokens are the same, and drafts are made
 * again, with the rings of the file at once. */
static void states_cross_between_drafts_on_and_off(void **state) {
    (void)state;
    static const char *const modes[] = {"off", "5"};
    paths p = make_paths();
    const int32_t *ids = di_walk(2, 150);
    di_outcome cold, got;
    di_error error = {0};
    di_engine *engine = open_tiny("off");
    di_job job = di_greedy_job(ids, 150, 60), more = di_greedy_job(ids, 150, 61);
    di_run_job(engine, &job, &cold);
    di_close(engine);
    uint64_t accepted[2][2];
    for (int from = 0; from < 2; from++) {
        engine = open_tiny(modes[from]);
        di_run_job(engine, &job, &got);
        di_assert_same(&cold, &got, "cold");
        if (di_save_state(engine, ids, 150, NULL, p.path, NULL, &error)) fail_msg("%s", error.message);
        di_close(engine);
        for (int to = 0; to < 2; to++) {
            engine = open_tiny(modes[to]);
            size_t positions = 0;
            if (di_load_state(engine, p.path, NULL, &positions, &error)) fail_msg("%s", error.message);
            di_run_job(engine, &job, &got);
            di_assert_same(&cold, &got, modes[to]);
            assert_int_equal(got.usage.cached_tokens, positions);
            assert_int_equal(got.usage.draft_tokens > 0, to);
            accepted[from][to] = got.usage.accepted_draft_tokens;
            di_run_job(engine, &more, &got); /* found in memory */
            assert_true(got.usage.cached_tokens >= positions);
            di_close(engine);
        }
    }
    assert_true(accepted[1][1] > 0 && accepted[0][1] > 0); /* without rings drafts are worse, not none */
    di_folder_delete(&p.folder);
}

static void tenants_stay_apart(void **state) {
    (void)state;
    paths p = make_paths();
    const int32_t *ids = di_walk(1, 80);
    di_engine *engine = open_nano(false, "64M", "1024");
    di_job job = ask(ids, 80);
    di_outcome outcome;
    di_error error = {0};
    size_t positions;
    job.tenant = "one";
    di_run_job(engine, &job, &outcome);
    assert_int_equal(di_save_state(engine, ids, 80, NULL, p.path, &positions, &error), DI_ERR_NOT_FOUND);
    assert_int_equal(di_save_state(engine, ids, 80, "two", p.path, &positions, &error), DI_ERR_NOT_FOUND);
    assert_int_equal(access(p.path, F_OK), -1);
    assert_int_equal(di_save_state(engine, ids, 80, "one", p.path, &positions, &error), DI_OK);
    assert_int_equal(di_load_state(engine, p.path, "two", &positions, &error), DI_OK);
    assert_int_equal(positions, 79);
    job.tenant = NULL;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.usage.cached_tokens, 0);
    job.tenant = "two";
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.usage.cached_tokens, 79);
    di_close(engine);
    di_folder_delete(&p.folder);
}

/* ---------------------------------------------------------------- what is refused */

static void expect(di_engine *engine, const char *path, di_status status, const char *says) {
    di_error error = {0};
    size_t positions = 7;
    di_status got = di_load_state(engine, path, NULL, &positions, &error);
    if (got != status || !strstr(error.message, says) || !strstr(error.message, path))
        fail_msg("%s: %s, expected %s with \"%s\"", di_status_name(got), error.message, di_status_name(status), says);
    assert_int_equal(positions, 0);
    assert_string_equal(error.param, status == DI_ERR_LIMIT ? "cache-ram" : "path");
}

static void make_state(const char *path, bool compact, uint32_t count) {
    di_engine *engine = open_nano(compact, "64M", "1024");
    di_job job = ask(di_walk(1, count), count);
    di_outcome outcome;
    di_error error = {0};
    di_run_job(engine, &job, &outcome);
    if (di_save_state(engine, job.ids, count, NULL, path, NULL, &error)) fail_msg("%s", error.message);
    di_close(engine);
}

static void damage_is_refused(void **state) {
    (void)state;
    paths p = make_paths();
    make_state(p.path, false, 70);
    di_engine *engine = open_nano(false, "64M", "1024");
    size_t length;
    char *bytes = di_folder_read(&p.folder, "kept", &length);
    uint32_t step = di_test_long() ? 1 : di_test_slow() ? 1009 : 61;
    for (size_t i = 0; i < length; i += i < 500 ? (di_test_slow() ? 11 : 1) : step) {
        bytes[i] ^= 0x20;
        di_folder_poke(&p.folder, "kept", i, bytes + i, 1);
        expect(engine, p.path, DI_ERR_FORMAT, ": it");
        bytes[i] ^= 0x20;
        di_folder_poke(&p.folder, "kept", i, bytes + i, 1);
    }
    for (size_t cut = 0; cut < length + 3; cut += cut < 300 ? 1 : step) {
        di_folder_write(&p.folder, "kept", bytes, cut < length ? cut : length);
        if (cut > length) di_folder_resize(&p.folder, "kept", cut);
        if (cut != length) expect(engine, p.path, DI_ERR_FORMAT, ": it");
    }
    di_outcome outcome;
    di_job job = ask(di_walk(1, 70), 70);
    di_run_job(engine, &job, &outcome);
    assert_int_equal(outcome.usage.cached_tokens, 0); /* nothing of all this came in */
    free(bytes);
    di_close(engine);
    di_folder_delete(&p.folder);
}

static void foreign_files_are_refused(void **state) {
    (void)state;
    paths p = make_paths();
    char other[300];
    make_state(p.path, false, 90);
    di_engine *engine = open_nano(true, "64M", "1024");
    expect(engine, p.path, DI_ERR_UNSUPPORTED, "numeric profile exact; this engine has exact+compact");
    di_close(engine);
    engine = di_open_with(DI_SOURCE_DIR "/models/tiny", NULL, 0);
    expect(engine, p.path, DI_ERR_UNSUPPORTED, "other weights");
    di_close(engine);
    engine = open_nano(false, "64M", "88");
    expect(engine, p.path, DI_ERR_CONTEXT_LENGTH, "89 positions; the context holds 88");
    di_close(engine);
    engine = open_nano(false, "0", "1024");
    expect(engine, p.path, DI_ERR_LIMIT, "cannot hold its 89 positions");
    di_close(engine);
    engine = open_nano(false, "64M", "1024");
    expect(engine, "/nonexistent/state", DI_ERR_NOT_FOUND, "cannot read");
    expect(engine, p.folder.path, DI_ERR_FORMAT, "plain file");
    snprintf(other, sizeof other, "%s/pipe", p.folder.path);
    assert_int_equal(mkfifo(other, 0600), 0);
    expect(engine, other, DI_ERR_FORMAT, "plain file");
    snprintf(other, sizeof other, "%s/link", p.folder.path);
    assert_int_equal(symlink(p.path, other), 0);
    di_error error = {0};
    size_t positions;
    assert_int_equal(di_load_state(engine, other, NULL, &positions, &error), DI_OK); /* the caller's own link */
    assert_int_equal(positions, 89);
    di_folder_write(&p.folder, "text", "{}", 2);
    snprintf(other, sizeof other, "%s/text", p.folder.path);
    expect(engine, other, DI_ERR_FORMAT, "cut off");
    di_close(engine);
    di_folder_delete(&p.folder);
}

/* Sound by its checksums, but not what a save writes: ids of one length, a state of another; and a state cut short. */
static void files_that_contradict_themselves_are_refused(void **state) {
    (void)state;
    paths p = make_paths();
    for (int fault = 0; fault < 2; fault++) {
        make_state(p.path, false, 70);
        di_disk_header h;
        char *bytes = NULL;
        const int32_t *ids;
        const char *payload, *why;
        assert_int_equal(di_disk_read(&di_disk_system_io, p.path, 1 << 24, &h, &bytes, &ids, &payload, &why), 0);
        if (fault == 0) h.what.position = h.id_count = 68;
        if (fault == 1) h.payload_bytes -= 8;
        assert_true(di_disk_write(&di_disk_system_io, p.path, &h, ids, payload, 0, false));
        free(bytes);
        di_engine *engine = open_nano(false, "64M", "1024");
        expect(engine, p.path, DI_ERR_FORMAT, fault == 0 ? "its state has 69 positions, its ids are 68" : "cut off");
        di_close(engine);
    }
    di_folder_delete(&p.folder);
}

static bool first_record(void *arg, const di_disk_record *record) {
    snprintf(arg, 256, "%s", record->path);
    return false;
}

static void a_record_of_the_cache_is_no_state_file(void **state) {
    (void)state;
    paths p = make_paths();
    const di_option options[] = {{"cache-dir", p.folder.path}, {"context", "512"}};
    di_engine *engine = di_open_with(NANO, options, 2);
    di_job job = ask(di_walk(1, 90), 90);
    di_outcome outcome;
    di_error error = {0};
    char name[256], path[512];
    di_run_job(engine, &job, &outcome);
    assert_true(di_disk_wait_idle(engine->disk, 60000));
    assert_int_equal(di_disk_walk(p.folder.path, false, first_record, name, &error), DI_OK);
    snprintf(path, sizeof path, "%s/%s", p.folder.path, name);
    expect(engine, path, DI_ERR_FORMAT, "no state file");
    di_close(engine);
    di_folder_delete(&p.folder);
}

static void saving_fails_by_name(void **state) {
    (void)state;
    di_engine *engine = open_nano(false, "64M", "1024");
    const int32_t *ids = di_walk(1, 80);
    di_job job = ask(ids, 80);
    di_outcome outcome;
    di_error error = {0};
    size_t positions = 3;
    di_run_job(engine, &job, &outcome);
    assert_int_equal(di_save_state(engine, ids, 80, NULL, "/nonexistent/state", &positions, &error), DI_ERR_IO);
    assert_non_null(strstr(error.message, "/nonexistent/state"));
    assert_int_equal(positions, 0);
    assert_int_equal(di_save_state(engine, ids, 80, NULL, "/dev/null", &positions, &error), DI_ERR_IO);
    assert_non_null(strstr(error.message, "plain file"));
    assert_int_equal(di_save_state(engine, NULL, 0, NULL, "/tmp/x", &positions, &error), DI_ERR_NOT_FOUND);
    assert_int_equal(di_save_state(engine, NULL, 5, NULL, "/tmp/x", &positions, &error), DI_ERR_INVALID_ARGUMENT);
    assert_int_equal(di_save_state(engine, ids, 80, NULL, NULL, &positions, &error), DI_ERR_INVALID_ARGUMENT);
    assert_int_equal(di_save_state(NULL, ids, 80, NULL, "/tmp/x", &positions, &error), DI_ERR_INVALID_ARGUMENT);
    assert_int_equal(di_load_state(NULL, "/tmp/x", NULL, &positions, &error), DI_ERR_INVALID_ARGUMENT);
    assert_int_equal(di_load_state(engine, NULL, NULL, &positions, NULL), DI_ERR_INVALID_ARGUMENT);
    di_close(engine);
}

/* ---------------------------------------------------------------- beside requests */

typedef struct saver {
    di_engine *engine;
    char path[300];
    uint32_t number, rounds, moved;
} saver;

static void *save_and_load(void *arg) {
    saver *s = arg;
    for (uint32_t i = 0; i < s->rounds; i++) {
        const int32_t *ids = di_walk((s->number + i) % 6, 120);
        di_error error = {0};
        size_t positions;
        if (di_save_state(s->engine, ids, 120, NULL, s->path, &positions, &error) != DI_OK) continue;
        if (di_load_state(s->engine, s->path, "other", &positions, &error) == DI_OK) s->moved++;
    }
    return NULL;
}

static void others_go_on_meanwhile(void **state) {
    (void)state;
    paths p = make_paths();
    di_outcome alone[6];
    di_engine *engine = open_nano(false, "0", "512");
    for (uint32_t i = 0; i < 6; i++) {
        di_job job = ask(di_walk(i, 90 + 7 * i), 90 + 7 * i);
        di_run_job(engine, &job, &alone[i]);
    }
    di_close(engine);
    const di_option options[] = {{"cache-ram", "2M"}, {"context", "512"}, {"kv-ram", "least"}};
    engine = di_open_with(NANO, options, 3);
    pthread_t threads[3];
    saver savers[3];
    for (uint32_t t = 0; t < 3; t++) {
        savers[t] = (saver){.engine = engine, .number = t, .rounds = di_test_slow() ? 10 : 40};
        snprintf(savers[t].path, sizeof savers[t].path, "%s/%u", p.folder.path, t);
        assert_int_equal(pthread_create(&threads[t], NULL, save_and_load, &savers[t]), 0);
    }
    for (uint32_t round = 0; round < (di_test_slow() ? 3u : 12u); round++) {
        di_request *requests[6];
        for (uint32_t i = 0; i < 6; i++) {
            di_job job = ask(di_walk(i, 90 + 7 * i), 90 + 7 * i);
            job.tenant = round % 2 ? "other" : NULL;
            requests[i] = di_submit_job(engine, &job, NULL, NULL);
        }
        for (uint32_t i = 0; i < 6; i++) {
            di_outcome outcome = {0};
            di_drain(requests[i], &outcome);
            di_assert_same(&alone[i], &outcome, "beside transfers");
        }
    }
    for (uint32_t t = 0; t < 3; t++) pthread_join(threads[t], NULL);
    di_assert_idle(engine);
    di_close(engine);
    di_folder_delete(&p.folder);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_come_back),
        cmocka_unit_test(answers_come_back),
        cmocka_unit_test(states_cross_between_drafts_on_and_off),
        cmocka_unit_test(tenants_stay_apart),
        cmocka_unit_test(damage_is_refused),
        cmocka_unit_test(files_that_contradict_themselves_are_refused),
        cmocka_unit_test(foreign_files_are_refused),
        cmocka_unit_test(a_record_of_the_cache_is_no_state_file),
        cmocka_unit_test(saving_fails_by_name),
        cmocka_unit_test(others_go_on_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
