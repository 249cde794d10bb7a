/* shard.c - one safetensors header, the list of faults, and the table of names.
 *
 * Holes between tensors and bytes after the last one are allowed; overlaps are not. Every number from the file is
 * checked before it is used.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/json.h"
#include "checkpoint/checkpoint_internal.h"

/* FAULT_LINES: a config and a checkpoint that have nothing in common differ in millions of tensors. */
enum { HEADER_DEPTH = 8, LENGTH_BYTES = 8, FAULT_LINES = 200000 };

/* ------------------------------------------------------------------------------------------------ faults */

void di_faults_add(di_faults *faults, const char *subject, const char *format, ...) {
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    line[di_utf8_validate(line, strlen(line))] = 0; /* a cut line must not end inside a character */
    if (faults->count++ == 0) snprintf(faults->first, sizeof faults->first, "%s", subject);
    if (faults->count > FAULT_LINES) return;
    di_text_puts(&faults->lines, line);
    di_text_putc(&faults->lines, '\n');
}

di_status di_faults_fail(const di_faults *faults, const char *what, di_error *error) {
    if (faults->lines.failed) return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", what);
    di_fail(error, DI_ERR_CHECKPOINT, faults->first, "%s: %zu fault%s:", what, faults->count,
            faults->count == 1 ? "" : "s");
    const char *line = faults->lines.data;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1)
        di_error_add_line(error, "%.*s", (int)(end - line), line);
    return DI_ERR_CHECKPOINT;
}

/* ------------------------------------------------------------------------------------------------ name table */

bool di_name_table_new(di_arena *arena, size_t count, di_name_table *table) {
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    table->names = di_arena_array(arena, slots, sizeof table->names[0]);
    table->values = di_arena_array(arena, slots, sizeof table->values[0]);
    table->mask = slots - 1;
    if (!table->names || !table->values) return false;
    memset(table->names, 0, slots * sizeof table->names[0]);
    return true;
}

static size_t find_slot(const di_name_table *table, const char *name) {
    size_t slot = XXH64(name, strlen(name), 0) & table->mask;
    while (table->names[slot] && strcmp(table->names[slot], name) != 0) slot = (slot + 1) & table->mask;
    return slot;
}

uint32_t di_name_table_get(const di_name_table *table, const char *name) {
    size_t slot = find_slot(table, name);
    return table->names[slot] ? table->values[slot] : UINT32_MAX;
}

uint32_t di_name_table_put(di_name_table *table, const char *name, uint32_t value) {
    size_t slot = find_slot(table, name);
    if (table->names[slot]) return table->values[slot];
    table->names[slot] = name;
    table->values[slot] = value;
    return UINT32_MAX;
}

/* ------------------------------------------------------------------------------------------------ header */

const char *di_shard_tensor_name(di_arena *arena, const char *name, size_t length) {
    static const char prefix[] = "model.";
    size_t skip = sizeof prefix - 1;
    if (length > skip && memcmp(name, prefix, skip) == 0) {
        name += skip;
        length -= skip;
    }
    char *copy = di_arena_copy(arena, name, length);
    for (size_t i = 0; copy && i < length; i++)
        if ((unsigned char)copy[i] < 0x20 || copy[i] == 0x7f) copy[i] = '?';
    return copy;
}

typedef struct header_reader {
    const char *shard;
    uint64_t file_bytes;
    bool headers_only;
    di_shard_header *header;
    di_faults *faults;
} header_reader;

/* dtype and shape; false after a fault. *bytes is what they take. */
static bool read_type(const header_reader *r, const di_json *node, di_tensor *tensor, uint64_t *bytes) {
    const di_json *dtype = di_json_get(node, "dtype"), *shape = di_json_get(node, "shape");
    if (!dtype || dtype->type != DI_JSON_STRING || !shape || shape->type != DI_JSON_ARRAY) {
        di_faults_add(r->faults, tensor->name, "%.200s in %s: entry needs dtype (a string) and shape (a list)",
                      tensor->name, r->shard);
        return false;
    }
    tensor->dtype = di_dtype_from_name(dtype->text, dtype->length);
    if (tensor->dtype == DI_DTYPE_COUNT) {
        di_faults_add(r->faults, tensor->name, "%.200s in %s: dtype %.20s is not known", tensor->name, r->shard,
                      dtype->text);
        return false;
    }
    if (shape->count > DI_MAX_RANK) {
        di_faults_add(r->faults, tensor->name, "%.200s in %s: shape has %u dimensions; at most %d are possible",
                      tensor->name, r->shard, shape->count, DI_MAX_RANK);
        return false;
    }
    *bytes = di_dtype_size(tensor->dtype);
    bool overflow = false;
    for (const di_json *item = shape->first; item; item = item->next) {
        uint64_t dimension;
        if (!di_json_uint64(item, &dimension)) {
            di_faults_add(r->faults, tensor->name, "%.200s in %s: shape must hold whole numbers of 0 or more",
                          tensor->name, r->shard);
            return false;
        }
        tensor->shape[tensor->rank++] = dimension;
        overflow |= __builtin_mul_overflow(*bytes, dimension, bytes);
    }
    if (overflow) di_faults_add(r->faults, tensor->name, "%.200s in %s: shape overflows", tensor->name, r->shard);
    return !overflow;
}

static bool read_range(const header_reader *r, const di_json *node, uint64_t bytes, di_shard_entry *entry) {
    const char *name = entry->tensor.name;
    const di_json *offsets = di_json_get(node, "data_offsets");
    uint64_t begin, end, data_start = r->header->data_start;
    if (!offsets || offsets->type != DI_JSON_ARRAY || offsets->count != 2 || !di_json_uint64(offsets->first, &begin) ||
        !di_json_uint64(offsets->first->next, &end) || end < begin) {
        di_faults_add(r->faults, name, "%.200s in %s: data_offsets must be [begin, end] with begin <= end", name,
                      r->shard);
        return false;
    }
    if (end - begin != bytes) {
        di_faults_add(r->faults, name, "%.200s in %s: data_offsets hold %llu bytes, dtype and shape need %llu", name,
                      r->shard, (unsigned long long)(end - begin), (unsigned long long)bytes);
        return false;
    }
    if (end > UINT64_MAX / 2 - data_start) {
        di_faults_add(r->faults, name, "%.200s in %s: data_offsets end at %llu, beyond any file", name, r->shard,
                      (unsigned long long)end);
        return false;
    }
    entry->begin = data_start + begin;
    entry->tensor.bytes = bytes;
    entry->outside = data_start + end > r->file_bytes;
    return true;
}

static int by_offset(const void *a, const void *b) {
    const di_shard_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->tensor.bytes != y->tensor.bytes) return x->tensor.bytes < y->tensor.bytes ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

/* Entries are sorted. An entry is compared with the one that reaches farthest so far. */
static void check_overlaps(const header_reader *r) {
    di_shard_entry *widest = NULL;
    for (size_t i = 0; i < r->header->count; i++) {
        di_shard_entry *entry = &r->header->entries[i];
        if (entry->faulty || entry->tensor.bytes == 0) continue;
        if (widest && entry->begin < widest->begin + widest->tensor.bytes) {
            di_faults_add(r->faults, entry->tensor.name, "%.200s in %s: data overlaps that of %.200s",
                          entry->tensor.name, r->shard, widest->tensor.name);
            entry->faulty = true;
        }
        if (!widest || entry->begin + entry->tensor.bytes > widest->begin + widest->tensor.bytes) widest = entry;
    }
}

static void check_ends(const header_reader *r) {
    di_shard_header *header = r->header;
    const di_shard_entry *first = NULL;
    size_t outside = 0;
    header->data_end = header->data_start;
    for (size_t i = 0; i < header->count; i++) {
        const di_shard_entry *entry = &header->entries[i];
        if (entry->faulty) continue;
        uint64_t end = entry->begin + entry->tensor.bytes;
        if (end > header->data_end) header->data_end = end;
        header->payload += entry->tensor.bytes;
        if (!entry->outside) continue;
        if (outside++ == 0) first = entry;
    }
    if (first && !r->headers_only)
        di_faults_add(r->faults, first->tensor.name,
                      "%s: truncated: the file has %llu bytes, its tensors need %llu; %.200s is the first of %zu cut "
                      "off",
                      r->shard, (unsigned long long)r->file_bytes, (unsigned long long)header->data_end,
                      first->tensor.name, outside);
}

static bool read_entries(const header_reader *r, di_arena *arena, const di_json *root) {
    di_shard_header *header = r->header;
    header->entries = di_arena_array(arena, root->count + 1, sizeof header->entries[0]);
    if (!header->entries) return false;
    for (const di_json *node = root->first; node; node = node->next) {
        if (node->key_length == strlen("__metadata__") && memcmp(node->key, "__metadata__", node->key_length) == 0)
            continue;
        di_shard_entry *entry = &header->entries[header->count++];
        memset(entry, 0, sizeof *entry);
        entry->tensor.name = di_shard_tensor_name(arena, node->key, node->key_length);
        if (!entry->tensor.name) return false;
        uint64_t bytes;
        entry->faulty = !read_type(r, node, &entry->tensor, &bytes) || !read_range(r, node, bytes, entry);
    }
    if (header->count > 1) qsort(header->entries, header->count, sizeof header->entries[0], by_offset);
    check_overlaps(r);
    check_ends(r);
    return true;
}

bool di_shard_read_header(const char *shard, const uint8_t *bytes, size_t length, uint64_t file_bytes,
                          uint64_t header_limit, bool headers_only, di_arena *arena, di_shard_header *header,
                          di_faults *faults) {
    memset(header, 0, sizeof *header);
    if (length < LENGTH_BYTES) {
        di_faults_add(faults, shard, "%s: the file has %zu bytes; a safetensors header needs at least %d", shard,
                      length, LENGTH_BYTES);
        return false;
    }
    uint64_t header_bytes = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) header_bytes = header_bytes << 8 | bytes[i];
    if (header_bytes > header_limit) {
        di_faults_add(faults, shard, "%s: header too large: %llu bytes, the limit is %llu", shard,
                      (unsigned long long)header_bytes, (unsigned long long)header_limit);
        return false;
    }
    if (header_bytes > length - LENGTH_BYTES) {
        di_faults_add(faults, shard, "%s: truncated inside the header: it has %llu bytes, the file only %zu", shard,
                      (unsigned long long)header_bytes + LENGTH_BYTES, length);
        return false;
    }
    di_arena *scratch = di_arena_new(1 << 20); /* the parsed JSON is several times as large as the entries */
    const di_json *root = NULL;
    di_error error = {0};
    bool done = false;
    if (!scratch) {
        di_faults_add(faults, shard, "%s: out of memory", shard);
    } else if (di_json_parse(scratch, (const char *)bytes + LENGTH_BYTES, header_bytes, HEADER_DEPTH, &root, &error)) {
        di_faults_add(faults, shard, "%s: header: %s", shard, error.message);
    } else if (root->type != DI_JSON_OBJECT) {
        di_faults_add(faults, shard, "%s: the header holds %s; it must hold an object", shard,
                      di_json_type_name(root->type));
    } else {
        header->data_start = LENGTH_BYTES + header_bytes;
        const header_reader r = {shard, file_bytes, headers_only, header, faults};
        done = read_entries(&r, arena, root);
        if (!done) di_faults_add(faults, shard, "%s: out of memory", shard);
    }
    di_arena_free(scratch);
    return done;
}

di_status di_safetensors_check_header(const char *shard, const uint8_t *bytes, size_t length, uint64_t file_bytes,
                                      di_error *error) {
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "%s: out of memory", shard);
    di_faults faults = {0};
    di_shard_header header;
    di_name_table names;
    if (di_shard_read_header(shard, bytes, length, file_bytes, UINT64_MAX / 4, false, arena, &header, &faults) &&
        di_name_table_new(arena, header.count, &names)) {
        for (size_t i = 0; i < header.count; i++)
            if (di_name_table_put(&names, header.entries[i].tensor.name, 0) != UINT32_MAX)
                di_faults_add(&faults, header.entries[i].tensor.name, "%.200s is twice in %s",
                              header.entries[i].tensor.name, shard);
    }
    di_status status = faults.count ? di_faults_fail(&faults, shard, error) : DI_OK;
    di_text_free(&faults.lines);
    di_arena_free(arena);
    return status;
}
