/* golden.c - see golden.h. */
#include "support/golden.h"

#include "base/arena.h"
#include "base/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FILE_LIMIT = 1 << 30 };

typedef struct golden_file {
    char *name, *data;
    size_t length;
    struct golden_file *next;
} golden_file;

/* One array that was asked for; later calls get the same copy. */
typedef struct golden_entry {
    char *name;
    di_golden_array array;
    struct golden_entry *next;
} golden_entry;

struct di_golden {
    di_arena *arena;
    char *folder;
    const di_json *arrays;
    golden_file *files;
    golden_entry *entries;
};

static void *need(void *memory) {
    if (!memory) fail_msg("golden: out of memory");
    return memory;
}

const di_json *di_golden_json(di_golden *golden, const char *name) {
    char path[1024];
    const di_json *root;
    di_error error = {0};
    snprintf(path, sizeof path, "%s/%s", golden->folder, name);
    if (di_json_parse_file(golden->arena, path, FILE_LIMIT, 0, &root, &error) != DI_OK)
        fail_msg("golden: %s", error.message);
    return root;
}

size_t di_golden_ids(const di_json *array, int32_t *ids, size_t most) {
    size_t count = 0;
    int64_t value;
    assert_non_null(array);
    for (const di_json *item = array->first; item; item = item->next) {
        if (count == most || !di_json_int64(item, &value))
            fail_msg("golden: %s is no list of at most %zu ids", array->key ? array->key : "an item", most);
        ids[count++] = (int32_t)value;
    }
    return count;
}

di_golden *di_golden_open(const char *folder) {
    di_arena *arena = need(di_arena_new(0));
    di_golden *golden = need(di_arena_zalloc(arena, sizeof *golden));
    golden->arena = arena;
    golden->folder = need(di_arena_copy(arena, folder, strlen(folder)));
    golden->arrays = di_json_get(di_golden_json(golden, "manifest.json"), "arrays");
    if (!golden->arrays) fail_msg("golden: the manifest of %s has no member \"arrays\"", folder);
    return golden;
}

void di_golden_close(di_golden *golden) {
    if (!golden) return;
    for (golden_file *file = golden->files; file; file = file->next) free(file->data);
    for (golden_entry *entry = golden->entries; entry; entry = entry->next) {
        di_aligned_free((void *)(uintptr_t)entry->array.data);
    }
    di_arena_free(golden->arena);
}

static const golden_file *open_file(di_golden *golden, const di_json *name) {
    if (!name || name->type != DI_JSON_STRING) fail_msg("golden: an array of %s names no file", golden->folder);
    for (golden_file *file = golden->files; file; file = file->next) {
        if (di_json_string_is(name, file->name)) return file;
    }
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", golden->folder, name->text);
    golden_file *file = need(di_arena_zalloc(golden->arena, sizeof *file));
    di_error error = {0};
    if (di_read_file(path, FILE_LIMIT, &file->data, &file->length, &error) != DI_OK) {
        fail_msg("golden: %s", error.message);
    }
    file->name = need(di_arena_copy(golden->arena, name->text, name->length));
    file->next = golden->files;
    golden->files = file;
    return file;
}

static size_t item_size(const char *name, const di_json *dtype) {
    static const struct {
        const char *name;
        size_t size;
    } sizes[] = {{"float32", 4}, {"int32", 4}, {"int64", 8}, {"uint8", 1}, {"uint16", 2}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (di_json_string_is(dtype, sizes[i].name)) return sizes[i].size;
    }
    fail_msg("golden: %s has an unknown dtype", name);
    return 0;
}

static void load_array(di_golden *golden, const char *name, const di_json *about, di_golden_array *array) {
    const di_json *dtype = di_json_get(about, "dtype"), *shape = di_json_get(about, "shape");
    size_t size = item_size(name, dtype);
    snprintf(array->dtype, sizeof array->dtype, "%s", dtype->text);
    if (!shape || shape->type != DI_JSON_ARRAY || shape->count > 6) fail_msg("golden: %s has no usable shape", name);
    array->count = 1;
    for (const di_json *item = shape->first; item; item = item->next) {
        uint64_t extent;
        if (!di_json_uint64(item, &extent) || extent > FILE_LIMIT) fail_msg("golden: %s has a bad shape", name);
        array->shape[array->rank++] = extent;
        array->count *= extent;
    }
    array->bytes = array->count * size;
    const golden_file *file = open_file(golden, di_json_get(about, "file"));
    uint64_t offset;
    if (!di_json_uint64(di_json_get(about, "offset"), &offset)) fail_msg("golden: %s has no offset", name);
    if (offset > file->length || array->bytes > file->length - offset) {
        fail_msg("golden: %s needs bytes %llu..%llu of %s, which has %zu", name, (unsigned long long)offset,
                 (unsigned long long)(offset + array->bytes), file->name, file->length);
    }
    void *data = need(di_aligned_alloc(array->count, size));
    memcpy(data, file->data + offset, array->bytes);
    array->data = data;
}

di_golden_array di_golden_get(di_golden *golden, const char *name) {
    for (golden_entry *entry = golden->entries; entry; entry = entry->next) {
        if (strcmp(entry->name, name) == 0) return entry->array;
    }
    const di_json *about = di_json_get(golden->arrays, name);
    if (!about) fail_msg("golden: %s has no array %s", golden->folder, name);
    golden_entry *entry = need(di_arena_zalloc(golden->arena, sizeof *entry));
    entry->name = need(di_arena_copy(golden->arena, name, strlen(name)));
    load_array(golden, name, about, &entry->array);
    entry->next = golden->entries;
    golden->entries = entry;
    return entry->array;
}

const float *di_golden_f32(di_golden *golden, const char *name, size_t *count) {
    di_golden_array array = di_golden_get(golden, name);
    if (strcmp(array.dtype, "float32") != 0) fail_msg("golden: %s is %s, not float32", name, array.dtype);
    if (count) *count = array.count;
    return array.data;
}

int di_golden_has(di_golden *golden, const char *name) {
    return di_json_get(golden->arrays, name) != NULL;
}
