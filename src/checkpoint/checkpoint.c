/* checkpoint.c - opens a folder of shards, finds tensors, compares the manifest; contract in checkpoint.h.
 *
 * Shards are mapped whole; until a tensor's data is read only the header pages are touched. A file that is cut while it
 * is open ends the process with SIGBUS, like every mapped file.
 */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/find.h"
#include "base/json.h"
#include "checkpoint/checkpoint_internal.h"

enum { PATH_LIMIT = 4096, INDEX_FILE_LIMIT = 1 << 30 };
static const uint64_t default_header_limit = (uint64_t)256 << 20;
static const char suffix[] = ".safetensors";

/* ------------------------------------------------------------------------------------------------ shard list */

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool ends_with_suffix(const char *name, size_t length) {
    size_t n = sizeof suffix - 1;
    return length > n && memcmp(name + length - n, suffix, n) == 0;
}

/* A shard must be a plain file name: nothing in an index may reach outside its folder. */
static bool is_plain_name(const di_json *value) {
    return value->type == DI_JSON_STRING && strlen(value->text) == value->length &&
           ends_with_suffix(value->text, value->length) && !memchr(value->text, '/', value->length) &&
           value->text[0] != '.' && value->length < 256;
}

static bool take_shards(di_checkpoint *checkpoint, const char **names, size_t count) {
    checkpoint->shards = di_arena_array(checkpoint->arena, count + 1, sizeof checkpoint->shards[0]);
    if (!checkpoint->shards) return false;
    if (count > 1) qsort(names, count, sizeof names[0], by_text);
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        checkpoint->shards[checkpoint->shard_count++] = (di_shard){.name = names[i]};
    }
    return true;
}

static uint32_t shard_index(const di_checkpoint *checkpoint, const char *name) {
    size_t low = 0, high = checkpoint->shard_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        int order = strcmp(checkpoint->shards[middle].name, name);
        if (order == 0) return (uint32_t)middle;
        if (order < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return UINT32_MAX;
}

static di_status out_of_memory(const di_checkpoint *checkpoint, di_error *error) {
    return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", checkpoint->folder);
}

static di_status read_index(di_checkpoint *checkpoint, const char *path, di_error *error) {
    const di_json *root;
    di_status status = di_json_parse_file(checkpoint->arena, path, INDEX_FILE_LIMIT, 8, &root, error);
    if (status != DI_OK) return status;
    const di_json *map = di_json_get(root, "weight_map");
    if (!map || map->type != DI_JSON_OBJECT || map->count == 0)
        return di_fail(error, DI_ERR_CHECKPOINT, "weight_map",
                       "%s: weight_map is missing; it must be an object {tensor: shard}", path);
    checkpoint->has_index = true;
    const char **names = di_arena_array(checkpoint->arena, map->count, sizeof names[0]);
    if (!names || !di_name_table_new(checkpoint->arena, map->count, &checkpoint->listed))
        return out_of_memory(checkpoint, error);
    size_t count = 0;
    for (const di_json *item = map->first; item; item = item->next) {
        if (is_plain_name(item)) {
            if (count == 0 || strcmp(names[count - 1], item->text) != 0) names[count++] = item->text;
            continue;
        }
        di_faults_add(&checkpoint->faults, item->key,
                      "model.safetensors.index.json: %.200s is placed in %.100s; a shard must be the plain name of a "
                      "%s file in the same folder",
                      item->key, item->type == DI_JSON_STRING ? item->text : di_json_type_name(item->type), suffix);
    }
    if (!take_shards(checkpoint, names, count)) return out_of_memory(checkpoint, error);
    for (const di_json *item = map->first; item; item = item->next) {
        if (!is_plain_name(item)) continue;
        const char *name = di_shard_tensor_name(checkpoint->arena, item->key, item->key_length);
        if (!name) return out_of_memory(checkpoint, error);
        uint32_t place = shard_index(checkpoint, item->text);
        if (di_name_table_put(&checkpoint->listed, name, place) != UINT32_MAX)
            di_faults_add(&checkpoint->faults, name, "model.safetensors.index.json: %.200s is listed twice", name);
    }
    return DI_OK;
}

static di_status read_folder(di_checkpoint *checkpoint, di_error *error) {
    DIR *directory = opendir(checkpoint->folder);
    if (!directory)
        return di_fail_errno(error, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, "model", errno,
                             "cannot open folder %s", checkpoint->folder);
    const char **names = NULL;
    size_t count = 0, capacity = 0;
    bool failed = false;
    for (const struct dirent *entry; !failed && (entry = readdir(directory));) {
        size_t length = strlen(entry->d_name);
        if (entry->d_name[0] == '.' || !ends_with_suffix(entry->d_name, length)) continue;
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 16;
            const char **grown = realloc(names, capacity * sizeof names[0]);
            if (!grown) failed = true;
            if (grown) names = grown;
        }
        if (!failed) names[count] = di_arena_copy(checkpoint->arena, entry->d_name, length);
        failed = failed || !names[count++];
    }
    closedir(directory);
    failed = failed || !take_shards(checkpoint, names, count);
    free(names);
    if (failed) return out_of_memory(checkpoint, error);
    if (count == 0)
        return di_fail(error, DI_ERR_NOT_FOUND, "model",
                       "%s holds no weights: neither model.safetensors.index.json nor a %s file", checkpoint->folder,
                       suffix);
    return DI_OK;
}

/* ------------------------------------------------------------------------------------------------ shards */

static void map_shard(di_checkpoint *checkpoint, di_shard *s) {
    char path[PATH_LIMIT];
    struct stat info;
    snprintf(path, sizeof path, "%s/%s", checkpoint->folder, s->name);
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe must not block */
    if (file < 0 || fstat(file, &info) != 0) {
        di_faults_add(&checkpoint->faults, s->name, "%s: cannot be opened: %s", s->name, strerror(errno));
    } else if (!S_ISREG(info.st_mode)) {
        di_faults_add(&checkpoint->faults, s->name, "%s: is not a regular file", s->name);
    } else if (info.st_size == 0) {
        di_faults_add(&checkpoint->faults, s->name, "%s: is empty", s->name);
    } else {
        void *map = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, file, 0);
        if (map == MAP_FAILED) {
            di_faults_add(&checkpoint->faults, s->name, "%s: cannot be mapped: %s", s->name, strerror(errno));
        } else {
            s->map = map;
            s->file_bytes = (uint64_t)info.st_size;
        }
    }
    if (file >= 0) close(file);
}

/* Tensors that the index places in a shard that cannot be read are counted, not listed one by one. */
static void read_shard(di_checkpoint *checkpoint, di_shard *s) {
    map_shard(checkpoint, s);
    s->usable = s->map && di_shard_read_header(s->name, s->map, s->file_bytes, s->file_bytes,
                                               checkpoint->options.header_limit, checkpoint->options.headers_only,
                                               checkpoint->arena, &s->header, &checkpoint->faults);
    if (s->usable) checkpoint->capacity += s->header.count;
}

bool di_checkpoint_take_tensors(di_checkpoint *checkpoint) {
    size_t n = checkpoint->capacity;
    checkpoint->tensors = di_arena_array(checkpoint->arena, n + 1, sizeof checkpoint->tensors[0]);
    checkpoint->shard_of = di_arena_array(checkpoint->arena, n + 1, sizeof checkpoint->shard_of[0]);
    checkpoint->faulty = di_arena_array(checkpoint->arena, n + 1, sizeof checkpoint->faulty[0]);
    if (n >= UINT32_MAX || !checkpoint->tensors || !checkpoint->shard_of || !checkpoint->faulty ||
        !di_name_table_new(checkpoint->arena, n, &checkpoint->by_name))
        return false;
    for (size_t s = 0; s < checkpoint->shard_count; s++) {
        const di_shard *owner = &checkpoint->shards[s];
        for (size_t i = 0; i < owner->header.count; i++) {
            const di_shard_entry *entry = &owner->header.entries[i];
            const char *name = entry->tensor.name;
            uint32_t other = di_name_table_put(&checkpoint->by_name, name, (uint32_t)checkpoint->count);
            if (other != UINT32_MAX) {
                di_faults_add(&checkpoint->faults, name, "%.200s is twice in the checkpoint: in %s and in %s", name,
                              checkpoint->shards[checkpoint->shard_of[other]].name, owner->name);
                continue;
            }
            di_tensor *tensor = &checkpoint->tensors[checkpoint->count];
            *tensor = entry->tensor;
            if (!entry->faulty && !entry->outside) tensor->data = owner->map + entry->begin;
            checkpoint->faulty[checkpoint->count] =
                entry->faulty || (entry->outside && !checkpoint->options.headers_only);
            checkpoint->shard_of[checkpoint->count] = (uint32_t)s;
            if (!entry->faulty) checkpoint->payload += entry->tensor.bytes;
            checkpoint->count++;
        }
    }
    return true;
}

/* The index and the shards must tell the same story. */
static void check_index(di_checkpoint *checkpoint) {
    const di_name_table *listed = &checkpoint->listed;
    size_t *lost = calloc(checkpoint->shard_count + 1, sizeof lost[0]); /* NULL: these counts are left out */
    for (size_t slot = 0; slot <= listed->mask; slot++) {
        const char *name = listed->names[slot];
        if (!name) continue;
        const di_shard *place = &checkpoint->shards[listed->values[slot]];
        uint32_t found = di_name_table_get(&checkpoint->by_name, name);
        if (!place->usable) {
            if (lost) lost[listed->values[slot]]++;
        } else if (found == UINT32_MAX) {
            di_faults_add(&checkpoint->faults, name, "%.200s is missing: the index places it in %s", name, place->name);
        } else if (checkpoint->shard_of[found] != listed->values[slot]) {
            di_faults_add(&checkpoint->faults, name, "%.200s is in %s, but the index places it in %s", name,
                          checkpoint->shards[checkpoint->shard_of[found]].name, place->name);
        }
    }
    for (size_t s = 0; lost && s < checkpoint->shard_count; s++)
        if (lost[s])
            di_faults_add(&checkpoint->faults, checkpoint->shards[s].name, "%s: its %zu tensor%s cannot be read",
                          checkpoint->shards[s].name, lost[s], lost[s] == 1 ? "" : "s");
    free(lost);
    for (size_t i = 0; i < checkpoint->count; i++)
        if (di_name_table_get(listed, checkpoint->tensors[i].name) == UINT32_MAX)
            di_faults_add(&checkpoint->faults, checkpoint->tensors[i].name, "%.200s in %s is not listed in the index",
                          checkpoint->tensors[i].name, di_checkpoint_shard(checkpoint, i));
}

static di_status open_all(di_checkpoint *checkpoint, di_error *error) {
    char path[PATH_LIMIT];
    bool found;
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", checkpoint->folder);
    di_status status = di_find_file(path, &found, error);
    if (status == DI_OK) status = found ? read_index(checkpoint, path, error) : read_folder(checkpoint, error);
    if (status != DI_OK) return status;
    for (size_t i = 0; i < checkpoint->shard_count; i++) read_shard(checkpoint, &checkpoint->shards[i]);
    if (!di_checkpoint_take_tensors(checkpoint)) return out_of_memory(checkpoint, error);
    if (checkpoint->has_index) check_index(checkpoint);
    return checkpoint->faults.lines.failed ? out_of_memory(checkpoint, error) : DI_OK;
}

di_status di_checkpoint_open(const char *folder, const di_checkpoint_options *options, di_checkpoint **checkpoint,
                             di_error *error) {
    *checkpoint = NULL;
    if (strlen(folder) > PATH_LIMIT - 512)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "model", "the model's path is longer than %d bytes",
                       PATH_LIMIT - 512);
    di_checkpoint *c = calloc(1, sizeof *c);
    if (c) c->arena = di_arena_new(1 << 20);
    if (c && c->arena) c->folder = di_arena_copy(c->arena, folder, strlen(folder));
    if (!c || !c->folder) {
        di_checkpoint_close(c);
        return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", folder);
    }
    if (options) c->options = *options;
    if (c->options.header_limit == 0) c->options.header_limit = default_header_limit;
    di_status status = open_all(c, error);
    if (status != DI_OK) {
        di_checkpoint_close(c);
        return status;
    }
    *checkpoint = c;
    return DI_OK;
}

void di_checkpoint_close(di_checkpoint *checkpoint) {
    if (!checkpoint) return;
    for (size_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i].map) munmap(checkpoint->shards[i].map, checkpoint->shards[i].file_bytes);
    di_text_free(&checkpoint->faults.lines);
    di_arena_free(checkpoint->arena);
    free(checkpoint);
}

/* ------------------------------------------------------------------------------------------------ questions */

const di_tensor *di_checkpoint_find(const di_checkpoint *checkpoint, const char *name) {
    uint32_t index = di_name_table_get(&checkpoint->by_name, name);
    return index == UINT32_MAX || checkpoint->faulty[index] ? NULL : &checkpoint->tensors[index];
}

size_t di_checkpoint_count(const di_checkpoint *checkpoint) {
    return checkpoint->count;
}

const di_tensor *di_checkpoint_at(const di_checkpoint *checkpoint, size_t index) {
    return index < checkpoint->count ? &checkpoint->tensors[index] : NULL;
}

const char *di_checkpoint_shard(const di_checkpoint *checkpoint, size_t index) {
    return index < checkpoint->count ? checkpoint->shards[checkpoint->shard_of[index]].name : NULL;
}

uint64_t di_checkpoint_bytes(const di_checkpoint *checkpoint) {
    return checkpoint->payload;
}

uint64_t di_checkpoint_missing_data(const di_checkpoint *checkpoint, di_text *out) {
    uint64_t missing = 0;
    for (size_t i = 0; i < checkpoint->shard_count; i++) {
        const di_shard *s = &checkpoint->shards[i];
        if (!s->usable || s->header.data_end <= s->file_bytes) continue;
        size_t cut = 0;
        for (size_t k = 0; k < s->header.count; k++) cut += s->header.entries[k].outside;
        missing += s->header.data_end - s->file_bytes;
        if (out)
            di_text_printf(out, "%s: %llu of %llu bytes are missing (%zu of %zu tensors)\n", s->name,
                           (unsigned long long)(s->header.data_end - s->file_bytes),
                           (unsigned long long)(s->header.data_end - s->header.data_start), cut, s->header.count);
    }
    return missing;
}

/* ------------------------------------------------------------------------------------------------ verification */

typedef struct verifier {
    const di_checkpoint *checkpoint;
    di_faults *faults;
    uint8_t *seen; /* [count] */
    bool failed;
} verifier;

static void shape_text(const uint64_t *shape, uint32_t rank, char out[96]) {
    size_t at = (size_t)snprintf(out, 96, "[");
    for (uint32_t i = 0; i < rank && at < 90; i++)
        at += (size_t)snprintf(out + at, 96 - at, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
    if (at < 95) snprintf(out + at, 96 - at, "]");
}

static bool check_expected(void *arg, const di_expected_tensor *expected) {
    verifier *v = arg;
    const di_checkpoint *checkpoint = v->checkpoint;
    uint32_t index = di_name_table_get(&checkpoint->by_name, expected->name);
    if (index == UINT32_MAX) {
        /* A tensor that the index lists was reported when the index was checked. */
        if (checkpoint->has_index && di_name_table_get(&checkpoint->listed, expected->name) != UINT32_MAX) return true;
        char shape[96];
        shape_text(expected->shape, expected->rank, shape);
        di_faults_add(v->faults, expected->name, "%s is missing: the config implies it as %s %s", expected->name,
                      di_dtype_name(expected->dtype), shape);
        return true;
    }
    v->seen[index] = 1;
    const di_tensor *tensor = &checkpoint->tensors[index];
    if (checkpoint->faulty[index]) return true; /* reported when its shard was read */
    if (tensor->dtype != expected->dtype)
        di_faults_add(v->faults, expected->name, "%s in %s: dtype is %s, must be %s", expected->name,
                      di_checkpoint_shard(checkpoint, index), di_dtype_name(tensor->dtype),
                      di_dtype_name(expected->dtype));
    if (tensor->rank != expected->rank ||
        memcmp(tensor->shape, expected->shape, expected->rank * sizeof expected->shape[0]) != 0) {
        char is[96], must[96];
        shape_text(tensor->shape, tensor->rank, is);
        shape_text(expected->shape, expected->rank, must);
        di_faults_add(v->faults, expected->name, "%s in %s: shape is %s, must be %s", expected->name,
                      di_checkpoint_shard(checkpoint, index), is, must);
    }
    return true;
}

static bool collect_faults(const di_checkpoint *checkpoint, const di_model_config *config, di_faults *faults) {
    verifier v = {.checkpoint = checkpoint, .faults = faults};
    v.seen = calloc(checkpoint->count + 1, 1);
    if (!v.seen) return false;
    memcpy(faults->first, checkpoint->faults.first, sizeof faults->first);
    faults->count = checkpoint->faults.count;
    di_text_append(&faults->lines, checkpoint->faults.lines.data, checkpoint->faults.lines.length);
    di_expected_tensors(config, check_expected, &v);
    for (size_t i = 0; i < checkpoint->count; i++)
        if (!v.seen[i])
            di_faults_add(faults, checkpoint->tensors[i].name,
                          "%.200s in %s is unexpected: the config implies no such "
                          "tensor",
                          checkpoint->tensors[i].name, di_checkpoint_shard(checkpoint, i));
    free(v.seen);
    return !faults->lines.failed;
}

di_status di_checkpoint_verify(const di_checkpoint *checkpoint, const di_model_config *config, di_error *error) {
    di_faults faults = {0};
    di_status status = DI_OK;
    if (!collect_faults(checkpoint, config, &faults)) {
        status = di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", checkpoint->folder);
    } else if (faults.count) {
        status = di_faults_fail(&faults, checkpoint->folder, error);
    }
    di_text_free(&faults.lines);
    return status;
}

size_t di_checkpoint_faults(const di_checkpoint *checkpoint, const di_model_config *config, di_text *out) {
    di_faults faults = {0};
    collect_faults(checkpoint, config, &faults);
    if (faults.lines.length) di_text_append(out, faults.lines.data, faults.lines.length);
    di_text_free(&faults.lines);
    return faults.count;
}
