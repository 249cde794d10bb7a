/* needs: model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* engram.json: what it says is used, compared or refused by name, and is part of the model's identity. */
#include "model/deepseek_v41/v41.h"
#include "support/folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NANO DI_TEST_DATA "/nano"
#define NAME "engram.json"

static di_status open_folder(const char *path, uint64_t *digest, di_error *error) {
    static v41_model m;
    memset(&m, 0, sizeof m);
    *error = (di_error){0};
    if (di_model_config_load(NANO, &m.base.config, error)) fail_msg("%s", error->message);
    m.arena = di_arena_new(0);
    assert_non_null(m.arena);
    di_status status = v41_engram_open(&m, path, NULL, error);
    if (status == DI_OK) *digest = v41_engram_digest(&m);
    di_arena_free(m.arena);
    return status;
}

static uint64_t digest_of(const char *path) {
    uint64_t digest = 0;
    di_error error;
    if (open_folder(path, &digest, &error)) fail_msg("%s", error.message);
    return digest;
}

static void expect(const char *from, const char *to, di_status status, const char *param, const char *needle) {
    uint64_t digest;
    di_error error;
    di_folder folder = di_folder_new(NANO);
    di_folder_replace(&folder, NAME, from, to);
    di_status got = open_folder(folder.path, &digest, &error);
    if (got != status || strcmp(error.param, param) != 0 || !strstr(error.message, needle))
        fail_msg("%s: status %d, param %s: %s", to, got, error.param, error.message);
    di_folder_delete(&folder);
}

static void refuses_what_the_config_contradicts(void **state) {
    (void)state;
    static const struct {
        const char *name, *is;
    } fields[] = {{"version", "1"}, {"compressed_vocab_size", "591"},
                  {"pad_id", "2"},  {"max_ngram_size", "4"},
                  {"n_heads", "2"}, {"head_dim", "32"}};
    static const char *const wrong[] = {"0", "99", "-1", "\"1\"", "1.5", "null", "[]"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
            char from[64], to[64], needle[64];
            snprintf(from, sizeof from, "\"%s\": %s", fields[i].name, fields[i].is);
            snprintf(to, sizeof to, "\"%s\": %s", fields[i].name, wrong[k]);
            snprintf(needle, sizeof needle, "%s must be %s", fields[i].name, fields[i].is);
            expect(from, to, DI_ERR_CHECKPOINT, fields[i].name, needle);
        }
    expect("\"rows\": 660", "\"rows\": 661", DI_ERR_CHECKPOINT, "rows", "rows must be 660");
    expect("\"offsets\": [", "\"offsets\": [1,", DI_ERR_FORMAT, "layers[].offsets", "sum of the primes");
}

/* A file that says less is not wrong. */
static void fields_may_be_absent(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    static const char *const names[] = {
        "version", "compressed_vocab_size", "pad_id", "max_ngram_size", "n_heads", "head_dim", "offsets", "rows"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "\"%s\":", names[i]);
        snprintf(to, sizeof to, "\"x_%s\":", names[i]);
        di_folder_replace(&folder, NAME, from, to);
    }
    assert_true(digest_of(folder.path) == digest_of(NANO));
    di_folder_delete(&folder);
}

/* Rows would be looked up far outside the table. */
static void primes_do_not_wrap(void **state) {
    (void)state;
    di_folder folder = di_folder_new(NANO);
    size_t length;
    char *text = di_folder_read(&folder, NAME, &length);
    const char *layers = strstr(text, "\"layers\":");
    char *changed = malloc(length + 1024);
    assert_non_null(layers);
    /* 2^64 - 10 + 670 = 2^64 + 660 */
    sprintf(changed,
            "%.*s\"layers\": [{\"layer\": 1, \"primes\": [[18446744073709551606, 660], [5, 2], [2, 1]], "
            "\"multipliers\": [\"1\", \"3\", \"5\", \"7\"]}, {\"layer\": 4, \"primes\": [[859, 1], [1, 1], [1, 1]], "
            "\"multipliers\": [\"1\", \"3\", \"5\", \"7\"]}]}",
            (int)(layers - text), text);
    di_folder_write(&folder, NAME, changed, strlen(changed));
    uint64_t digest;
    di_error error;
    assert_int_equal(open_folder(folder.path, &digest, &error), DI_ERR_CHECKPOINT);
    if (!strstr(error.message, "the primes of layer 1 add up to more")) fail_msg("%s", error.message);
    free(changed);
    free(text);
    di_folder_delete(&folder);
}

static void multipliers_are_digits(void **state) {
    (void)state;
    static const char *const wrong[] = {"\"-18446744073709551615\"", "\" 7\"", "\"\"", "\"7x\"", "-7", "null"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char to[64];
        snprintf(to, sizeof to, "\"multipliers\": [%s, \"1\", \"1\", \"1\"], \"x\": [", wrong[i]);
        expect("\"multipliers\": [", to, DI_ERR_FORMAT, "layers[].multipliers[]", "decimal string");
    }
}

static void refuses_what_is_no_file(void **state) {
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        char path[DI_FOLDER_PATH];
        uint64_t digest;
        di_error error;
        di_folder folder = di_folder_new(NULL);
        di_folder_path(&folder, NAME, path);
        assert_int_equal(kind == 0 ? symlink("nowhere", path) : kind == 1 ? mkfifo(path, 0600) : mkdir(path, 0700), 0);
        assert_int_equal(open_folder(folder.path, &digest, &error), kind == 0 ? DI_ERR_NOT_FOUND : DI_ERR_IO);
        assert_non_null(strstr(error.message, path));
        di_folder_delete(&folder);
    }
}

/* Another map is another model. */
static void digest_covers_the_map(void **state) {
    (void)state;
    uint64_t digest = digest_of(NANO);
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"\"token_map\": [\n  0,\n  1,", "\"token_map\": [\n  1,\n  0,"},
        {"\"multipliers\": [", "\"multipliers\": [\"1\", \"3\", \"5\", \"7\"], \"x\": ["},
        {"\"primes\": [", "\"primes\": [[655, 1], [1, 1], [1, 1]], \"x\": ["},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_folder folder = di_folder_new(NANO);
        di_folder_replace(&folder, NAME, cases[i].from, cases[i].to);
        if (i == 2) di_folder_replace(&folder, NAME, "\"offsets\":", "\"y\":");
        if (digest_of(folder.path) == digest) fail_msg("case %zu", i);
        di_folder_delete(&folder);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_the_config_contradicts),
        cmocka_unit_test(fields_may_be_absent),
        cmocka_unit_test(primes_do_not_wrap),
        cmocka_unit_test(multipliers_are_digits),
        cmocka_unit_test(refuses_what_is_no_file),
        cmocka_unit_test(digest_covers_the_map),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
