/* needs: engine */
/* labels: long
 * An engine with a disk tier: an answer is the same bytes whether its prompt was computed, found in memory, read from
 * disk after a restart, or read again after it was evicted; and whatever happens to the folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "cache/disk_record.h"
#include "engine/engine_internal.h"
#include "support/gate.h"
#include "support/requests.h"
#include "support/stored.h"

#define NANO DI_TEST_DATA "/nano"
enum { WAIT_MS = 60000, OUTPUT = 6, MOST_OPTIONS = 16 };

typedef struct setup {
    di_option options[MOST_OPTIONS];
    size_t count;
} setup;

static void set(setup *s, const char *name, const char *value) {
    assert_true(s->count < MOST_OPTIONS);
    s->options[s->count++] = (di_option){name, value};
}

/* Without cache yet. */
static setup base(bool compact) {
    setup s = {.count = 0};
    set(&s, "prefill", compact ? "compact" : "off");
    set(&s, "context", "2048");
    set(&s, "snapshot-interval", "48");
    set(&s, "restore-ms", "3600000"); /* a busy machine must not turn hits into misses */
    return s;
}

static di_engine *open_setup(const setup *s) {
    return di_open_with(NANO, s->options, s->count);
}

/* Without memory tier, so that every hit comes from disk; or with a little, or with much. */
static setup cached(bool compact, const char *folder, const char *ram) {
    setup s = base(compact);
    set(&s, "cache-dir", folder);
    set(&s, "cache-ram", ram);
    return s;
}

static di_engine *open_cached(bool compact, const char *folder, const char *ram) {
    setup s = cached(compact, folder, ram);
    return open_setup(&s);
}

static void settle(di_engine *engine) {
    di_assert_idle(engine);
    assert_true(di_disk_wait_idle(engine->disk, WAIT_MS));
}

static void close_without_failures(di_engine *engine) {
    di_disk_counters counters;
    settle(engine);
    di_disk_get_counters(engine->disk, &counters);
    assert_int_equal(counters.load_failures + counters.save_failures, 0);
    di_close(engine);
}

static di_job ask(const int32_t *ids, uint32_t count) {
    di_job job = di_greedy_job(ids, count, OUTPUT);
    job.sampling.temperature = 0.7f;
    job.sampling.has_seed = true;
    job.sampling.seq_seed = 99;
    job.sampling.logprobs = 2;
    return job;
}

/* ---------------------------------------------------------------- every tier, around every checkpoint */

/* Checkpoints stand one before a prompt's end, at multiples of 48, and where an answer ended. */
static const uint32_t lengths[] = {41, 64, 65, 66, 97, 128, 129, 130, 144, 145, 146, 193, 215};
enum { LENGTHS = sizeof lengths / sizeof *lengths, AROUND = 5 };

/* A prompt that goes on like `lengths[l]` did: it ends around the checkpoint at lengths[l] - 1. */
typedef struct variant {
    int32_t ids[320];
    uint32_t count;
    di_outcome cold;
} variant;

static void make_variant(variant *v, uint32_t l, uint32_t a) {
    static const int32_t beyond[AROUND] = {-1, 0, 1, 2, 40};
    v->count = (uint32_t)((int32_t)lengths[l] + beyond[a]);
    memcpy(v->ids, di_walk(l, v->count), v->count * sizeof *v->ids);
    if (a == 4) /* goes its own way behind the checkpoint */
        for (uint32_t i = lengths[l]; i < v->count; i++) v->ids[i] = 3 + (int32_t)(i * 7 % 600);
}

static variant variants[2][LENGTHS][AROUND]; /* [compact] */
static uint32_t stride = 1;                  /* fewer lengths under a sanitizer */

static void compute_cold(void) {
    for (int compact = 0; compact < 2; compact++) {
        setup s = base(compact);
        set(&s, "cache-ram", "0");
        di_engine *engine = open_setup(&s);
        for (uint32_t l = 0; l < LENGTHS; l += stride) {
            for (uint32_t a = 0; a < AROUND; a++) {
                variant *v = &variants[compact][l][a];
                make_variant(v, l, a);
                di_job job = ask(v->ids, v->count);
                di_run_job(engine, &job, &v->cold);
                assert_int_equal(v->cold.status, DI_OK);
                assert_int_equal(v->cold.usage.cached_tokens, 0);
            }
        }
        di_close(engine);
    }
}

/* First the prompts that leave the checkpoints, alone. */
static void seed_all(di_engine *engine) {
    for (uint32_t l = 0; l < LENGTHS; l += stride) {
        di_job job = ask(di_walk(l, lengths[l]), lengths[l]);
        di_outcome outcome;
        di_run_job(engine, &job, &outcome);
    }
}

/* An engine without memory tier whose folder holds every prompt. */
static di_engine *open_seeded(const char *folder) {
    di_engine *engine = open_cached(false, folder, "0");
    seed_all(engine);
    settle(engine);
    return engine;
}

/* hit: every variant must find the checkpoint it ends behind; but a few tokens more than memory has are not worth
 * reading from disk. */
static void ask_all(di_engine *engine, int compact, bool hit, const char *what) {
    for (uint32_t l = 0; l < LENGTHS; l += stride) {
        for (uint32_t a = 0; a < AROUND; a++) {
            const variant *v = &variants[compact][l][a];
            di_job job = ask(v->ids, v->count);
            di_outcome outcome;
            char name[128];
            di_run_job(engine, &job, &outcome);
            snprintf(name, sizeof name, "%s, %s, length %u, variant %u, %u cached", what, compact ? "compact" : "off",
                     lengths[l], a, (unsigned)outcome.usage.cached_tokens);
            di_assert_same(&v->cold, &outcome, name);
            assert_true(outcome.usage.cached_tokens < v->count);
            uint32_t unread = di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_RAM) ? 31 : 0;
            if (hit && a > 0 && lengths[l] > 40 && outcome.usage.cached_tokens + unread < lengths[l] - 1)
                fail_msg("%s: should have found %u", name, lengths[l] - 1);
        }
    }
}

static void all_tiers_give_the_same_bytes(void **state) {
    (void)state;
    for (int compact = 0; compact < 2; compact++) {
        di_folder folder = di_folder_new(NULL);
        di_engine *engine = open_cached(compact, folder.path, "64M");
        seed_all(engine);
        ask_all(engine, compact, true, "memory");
        assert_int_equal(di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_DISK), 0);
        settle(engine);
        di_close(engine);
        engine = open_cached(compact, folder.path, "64M");
        ask_all(engine, compact, true, "disk after a restart");
        assert_true(di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_DISK) > 1000 / stride);
        ask_all(engine, compact, true, "memory after disk");
        settle(engine);
        di_close(engine);
        engine = open_cached(compact, folder.path, "0"); /* nothing stays in memory */
        ask_all(engine, compact, true, "disk alone");
        ask_all(engine, compact, true, "disk alone, again");
        assert_int_equal(di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_RAM), 0);
        di_close(engine);
        engine = open_cached(compact, folder.path, "200k"); /* most is evicted from memory and read again */
        ask_all(engine, compact, true, "evicted and read again");
        assert_true(di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_DISK) > 1000 / stride);
        close_without_failures(engine);
        di_folder_delete(&folder);
    }
}

/* A cold folder that each answer fills: whatever a variant finds there was left by the ones before. */
static void filling_while_asking(void **state) {
    (void)state;
    for (int compact = 0; compact < 2; compact++) {
        di_folder folder = di_folder_new(NULL);
        di_engine *engine = open_cached(compact, folder.path, "0");
        ask_all(engine, compact, false, "filling");
        di_close(engine);
        /* So little room that records are evicted all the time. */
        setup s = cached(compact, folder.path, "0");
        set(&s, "cache-disk", "300k");
        engine = open_setup(&s);
        ask_all(engine, compact, false, "little room on disk");
        settle(engine);
        di_disk_counters counters;
        di_disk_get_counters(engine->disk, &counters);
        assert_true(counters.evicted > 0 && counters.bytes <= 300 << 10);
        di_close(engine);
        di_folder_delete(&folder);
    }
}

/* Another profile's and another model's records in one folder are never used. */
static void profiles_do_not_mix(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NULL);
    for (int round = 0; round < 2; round++) {
        for (int compact = 0; compact < 2; compact++) {
            di_engine *engine = open_cached(compact, folder.path, "0");
            seed_all(engine);
            ask_all(engine, compact, false, "two profiles");
            settle(engine);
            if (round == 0) assert_true(di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_DISK) > 0);
            di_close(engine);
        }
    }
    di_folder_delete(&folder);
}

/* Records with and without the draft head's rings: every engine takes both. */
static void drafts_on_and_off_share_a_folder(void **state) {
    (void)state;
    for (int order = 0; order < 2; order++) {
        di_folder folder = di_folder_new(NULL);
        for (int second = 0; second < 2; second++) {
            bool drafts = order != second;
            setup s = cached(false, folder.path, "0");
            set(&s, "spec", drafts ? "5" : "off");
            di_engine *engine = open_setup(&s);
            if (!second) seed_all(engine);
            settle(engine);
            ask_all(engine, 0, true, drafts ? "with drafts" : "without drafts");
            assert_true(di_engine_counter(engine, DI_COUNT_CACHED_TOKENS_DISK) > 1000 / stride);
            assert_int_equal(di_engine_counter(engine, DI_COUNT_DRAFTED) > 0, drafts);
            close_without_failures(engine);
        }
        di_folder_delete(&folder);
    }
}

static void two_engines_share_a_folder(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NULL);
    di_engine *first = open_seeded(folder.path);
    di_engine *second = open_cached(false, folder.path, "0");
    ask_all(second, 0, true, "second process");
    assert_true(di_engine_counter(second, DI_COUNT_CACHED_TOKENS_DISK) > 1000);
    ask_all(first, 0, true, "first process");
    di_close(first);
    ask_all(second, 0, true, "second process, alone");
    di_close(second);
    di_folder_delete(&folder);
}

/* ---------------------------------------------------------------- waiting for the disk */

static void a_deadline_that_passes_is_a_plain_miss(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NULL);
    di_engine *engine = open_seeded(folder.path);
    di_close(engine);
    setup s = cached(false, folder.path, "0");
    set(&s, "restore-ms", "0");
    engine = open_setup(&s);
    ask_all(engine, 0, false, "no time to read");
    di_close(engine);
    di_folder_delete(&folder);
}

static void requests_end_while_they_are_restored(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NULL);
    di_engine *engine = open_seeded(folder.path);
    for (uint32_t i = 0; i < 120; i++) {
        const variant *v = &variants[0][i % LENGTHS / stride * stride][1 + i % 4];
        di_job job = ask(v->ids, v->count);
        job.deadline_ms = i % 3 == 2 ? 1 : 0;
        di_outcome outcome = {0};
        di_request *request = di_submit_job(engine, &job, NULL, NULL);
        if (i % 3 == 0) usleep(i % 7 * 200);
        if (i % 3 != 2) di_request_cancel(request);
        di_drain(request, &outcome);
        if (outcome.status == DI_OK) di_assert_same(&v->cold, &outcome, "just in time");
    }
    settle(engine);
    /* Closed with restores under way. */
    di_request *requests[8];
    for (int i = 0; i < 8; i++) {
        di_job job = ask(variants[0][i / 3 * 3][2].ids, variants[0][i / 3 * 3][2].count);
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
    }
    di_close(engine);
    for (int i = 0; i < 8; i++) di_request_free(requests[i]);
    engine = open_cached(false, folder.path, "0");
    ask_all(engine, 0, true, "after a hasty end");
    di_close(engine);
    di_folder_delete(&folder);
}

static const variant *member_of_crowd(int compact, uint32_t i) {
    return &variants[compact][i % LENGTHS / stride * stride][2 + i % 3];
}

/* CROWD requests, each six above the six before: one step passes for each that comes, so that those who run have to
 * make way whatever the machine's speed. */
static void run_crowd(di_engine *engine, int compact) {
    enum { CROWD = 24 };
    di_request *requests[CROWD];
    di_gate_open(false);
    for (uint32_t i = 0; i < CROWD; i++) {
        const variant *v = member_of_crowd(compact, i);
        di_job job = ask(v->ids, v->count);
        job.priority = (int32_t)(i / 6);
        requests[i] = di_submit_job(engine, &job, NULL, NULL);
        assert_true(di_gate_wait(WAIT_MS, NULL));
        di_gate_pass();
    }
    di_gate_open(true);
    for (uint32_t i = 0; i < CROWD; i++) {
        di_outcome outcome = {0};
        di_drain(requests[i], &outcome);
        di_assert_same(&member_of_crowd(compact, i)->cold, &outcome, "crowd");
    }
}

/* Many at once, with pages for few of them: what is moved out comes back from the swap space, from disk, or is computed
 * again. */
static void preempted_requests_come_back_from_disk(void **state) {
    (void)state;
    for (int compact = 0; compact < 2; compact++) {
        uint64_t recomputes = 0;
        for (int swap = 0; swap < 2; swap++) {
            di_folder folder = di_folder_new(NULL);
            setup s = cached(compact, folder.path, "0");
            set(&s, "kv-ram", "least");
            set(&s, "context", "512");
            set(&s, "swap-ram", swap ? "200k" : "0");
            di_engine *engine = open_setup(&s);
            di_gate_on(engine, true);
            for (int round = 0; round < 2; round++) run_crowd(engine, compact);
            recomputes += di_engine_counter(engine, DI_COUNT_RECOMPUTES);
            settle(engine);
            di_gate_close(engine);
            di_folder_delete(&folder);
        }
        assert_true(recomputes > 0);
    }
}

/* ---------------------------------------------------------------- in pieces */

typedef struct pieces {
    di_engine *engine;
    const int32_t *ids;
    uint32_t position, calls;
    di_disk_load *load;
    uint64_t memory, disk; /* hashes of the serialised state */
} pieces;

static uint64_t hash_state(const di_state *state) {
    di_text text = {0};
    di_error error = {0};
    if (di_state_serialise(state, &text, &error) != DI_OK) fail_msg("%s", error.message);
    uint64_t hash = XXH64(text.data, text.length, 0);
    di_text_free(&text);
    return hash;
}

/* On the engine thread: the state as memory has it, and as it is taken over from disk one byte's worth at a time. */
static void adopt_in_pieces(void *arg) {
    pieces *p = arg;
    di_prefix_cache *cache = p->engine->cache;
    di_state *state = NULL;
    di_error error = {0};
    di_prefix_hit hit;
    uint32_t blocks = UINT32_MAX;
    di_adopt result;
    assert_int_equal(di_state_new(p->engine->pages, p->position + 1, &state, &error), DI_OK);
    di_prefix_lookup(cache, 0, p->ids, p->position + 1, state, &hit);
    p->memory = hit.cached == p->position ? hash_state(state) : 0;
    di_state_reset(state);
    di_prefix_clear(cache);
    do {
        uint64_t bytes = 1;
        result = di_prefix_adopt(cache, 0, p->ids, p->position, p->load, state, &blocks, &bytes);
        assert_int_equal(bytes, 0);
        p->calls++;
    } while (result == DI_ADOPT_MORE);
    assert_int_equal(result, DI_ADOPT_DONE);
    p->disk = hash_state(state);
    di_state_free(state);
}

static void a_state_is_taken_over_in_pieces(void **state) {
    (void)state;
    for (int compact = 0; compact < 2; compact++) {
        for (uint32_t count = 127; count < 132; count++) {
            di_folder folder = di_folder_new(NULL);
            di_engine *engine = open_cached(compact, folder.path, "64M");
            pieces p = {.engine = engine, .ids = di_walk(9, count), .position = count - 1};
            di_job job = ask(p.ids, count);
            di_outcome outcome;
            di_run_job(engine, &job, &outcome);
            settle(engine);
            p.load = di_disk_load_start(engine->disk, 0, p.ids, p.position);
            assert_true(di_disk_wait_idle(engine->disk, WAIT_MS));
            assert_int_equal(di_disk_load_poll(p.load), DI_DISK_LOADED);
            assert_true(di_hub_call(engine->hub, adopt_in_pieces, &p));
            di_disk_load_free(p.load);
            assert_int_equal(p.calls, 1 + p.position / 64);
            assert_int_not_equal(p.memory, 0);
            assert_int_equal(p.disk, p.memory);
            di_run_job(engine, &job, &outcome);
            assert_int_equal(outcome.usage.cached_tokens, p.position);
            di_close(engine);
            di_folder_delete(&folder);
        }
    }
}

/* ---------------------------------------------------------------- damage */

/* A byte of a record becomes another one. */
static void poke_other(const di_folder *folder, const char *path, const char *right, uint64_t at) {
    char changed = (char)(right[at] ^ (1 + (int)(at % 255)));
    di_folder_poke(folder, path, at, &changed, 1);
}

/* The damaged file as it was, once it is stored again; files that this conversation does not read are put right here.
 */
static void expect_healed(const di_folder *folder, const char *path, const char *right, size_t length, uint64_t at) {
    size_t now;
    char *bytes = di_folder_read(folder, path, &now);
    assert_int_equal(now, length);
    if (bytes[at] != right[at]) {
        di_folder_poke(folder, path, at, right + at, 1);
        bytes[at] = right[at];
    }
    assert_memory_equal(bytes, right, length);
    free(bytes);
}

/* A small folder, one conversation: every byte flipped, one by one (a sample of them in a short run), while the engine
 * runs. The answer does not change, and the same bytes are stored again. */
static void damage_changes_no_answer(void **state) {
    (void)state;
    uint32_t step = di_test_long() ? 1 : di_test_slow() ? 1501 : 401;
    for (int compact = 0; compact < 2; compact++) {
        di_folder folder = di_folder_new(NULL);
        di_engine *engine = open_cached(compact, folder.path, "0");
        const variant *v = &variants[compact][3][1];
        di_job job = ask(v->ids, v->count);
        di_outcome outcome;
        di_run_job(engine, &job, &outcome);
        settle(engine);
        di_stored_files files;
        di_stored_list(&folder, &files);
        assert_true(files.count >= 3);
        uint64_t flipped = 0, misses = 0;
        for (uint32_t f = 0; f < files.count; f++) {
            size_t length;
            char *right = di_folder_read(&folder, files.paths[f], &length);
            for (uint64_t at = 0; at < length; at += at < 200 && step > 1 ? 9 : step) {
                poke_other(&folder, files.paths[f], right, at);
                di_run_job(engine, &job, &outcome);
                di_assert_same(&v->cold, &outcome, "damaged");
                misses += outcome.usage.cached_tokens < lengths[3] - 1;
                flipped++;
                assert_true(di_disk_wait_idle(engine->disk, WAIT_MS));
                expect_healed(&folder, files.paths[f], right, length, at);
            }
            free(right);
        }
        print_message("%llu bytes flipped, %llu misses\n", (unsigned long long)flipped, (unsigned long long)misses);
        assert_true(misses > flipped / 10);
        di_close(engine);
        di_folder_delete(&folder);
    }
}

static di_disk_fault fault_of(const char *path) {
    di_disk_header header;
    const int32_t *ids;
    const char *payload, *why;
    char *bytes = NULL;
    di_disk_fault fault = di_disk_read(&di_disk_system_io, path, 1 << 30, &header, &bytes, &ids, &payload, &why);
    if (fault == DI_DISK_SOUND) free(bytes);
    return fault;
}

/* Every byte of every record that an engine wrote, and every length (a sample of them in a short run): none is taken
 * for sound. */
static void no_damaged_record_is_read(void **state) {
    (void)state;
    uint32_t step = di_test_long() ? 1 : di_test_slow() ? 997 : 13;
    di_folder folder = di_folder_new(NULL);
    di_engine *engine = open_cached(false, folder.path, "0");
    di_job job = ask(di_walk(2, 90), 90);
    di_outcome outcome;
    di_run_job(engine, &job, &outcome);
    settle(engine);
    di_close(engine);
    di_stored_files files;
    di_stored_list(&folder, &files);
    for (uint32_t f = 0; f < files.count; f++) {
        char path[DI_FOLDER_PATH];
        size_t length;
        char *right = di_folder_read(&folder, files.paths[f], &length);
        di_folder_path(&folder, files.paths[f], path);
        for (uint64_t at = 0; at < length; at += at < 300 ? 1 : step) {
            poke_other(&folder, files.paths[f], right, at);
            assert_int_equal(fault_of(path), DI_DISK_DAMAGED);
            di_folder_poke(&folder, files.paths[f], at, right + at, 1);
        }
        assert_int_equal(fault_of(path), DI_DISK_SOUND);
        for (uint64_t cut = length; cut-- > 0; cut -= cut > 300 && cut > step ? step - 1 : 0) {
            di_folder_resize(&folder, files.paths[f], cut);
            assert_int_equal(fault_of(path), DI_DISK_DAMAGED);
        }
        free(right);
    }
    di_folder_delete(&folder);
}

/* The folder vanishes, is emptied, loses its lock, while the engine runs. */
static void a_folder_that_changes_under_the_engine(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NULL);
    di_engine *engine = open_seeded(folder.path);
    for (uint32_t round = 0; round < 3; round++) {
        if (round < 2) di_folder_delete(&folder);
        if (round == 1) assert_int_equal(mkdir(folder.path, 0700), 0);
        if (round == 2) di_folder_remove(&folder, "lock");
        ask_all(engine, 0, false, "a folder that changes");
        settle(engine);
    }
    ask_all(engine, 0, true, "a folder that came back");
    di_close(engine);
    di_folder_delete(&folder);
}

int main(int count, char **values) {
    di_test_arguments(count, values);
    if (di_test_slow()) stride = 3;
    compute_cold();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_tiers_give_the_same_bytes),
        cmocka_unit_test(filling_while_asking),
        cmocka_unit_test(profiles_do_not_mix),
        cmocka_unit_test(drafts_on_and_off_share_a_folder),
        cmocka_unit_test(two_engines_share_a_folder),
        cmocka_unit_test(a_deadline_that_passes_is_a_plain_miss),
        cmocka_unit_test(requests_end_while_they_are_restored),
        cmocka_unit_test(preempted_requests_come_back_from_disk),
        cmocka_unit_test(a_state_is_taken_over_in_pieces),
        cmocka_unit_test(damage_changes_no_answer),
        cmocka_unit_test(no_damaged_record_is_read),
        cmocka_unit_test(a_folder_that_changes_under_the_engine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
