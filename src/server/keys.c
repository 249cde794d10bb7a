/* keys.c - see keys.h. */
#include "server/keys.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/text.h"

enum { NAME_BYTES = 64, MAX_KEYS = 10000, FILE_BYTES = 4 << 20, MIN_KEY_BYTES = 8 };

typedef struct key_row {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    char name[NAME_BYTES];
} key_row;

struct di_keys {
    key_row *rows;
    size_t count, capacity;
};

static void digest_of(const char *key, size_t length, unsigned char digest[SHA256_DIGEST_LENGTH]) {
    SHA256((const unsigned char *)key, length, digest);
}

static bool visible(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (text[i] <= 0x20 || text[i] >= 0x7F) return false;
    return true;
}

static di_status add_key(di_keys *keys, const char *name, size_t name_length, const char *key, size_t key_length,
                         const char *where, di_error *error) {
    if (key_length < MIN_KEY_BYTES || !visible(key, key_length))
        return di_fail(error, DI_ERR_CONFIG, "api-key", "%s: a key has at least %d visible ASCII characters", where,
                       MIN_KEY_BYTES);
    if (name_length >= NAME_BYTES || !visible(name, name_length))
        return di_fail(error, DI_ERR_CONFIG, "api-key", "%s: a name has at most %d visible ASCII characters", where,
                       NAME_BYTES - 1);
    if (keys->count == MAX_KEYS)
        return di_fail(error, DI_ERR_LIMIT, "api-key", "%s: more than %d keys", where, MAX_KEYS);
    if (keys->count == keys->capacity) {
        size_t capacity = keys->capacity ? 2 * keys->capacity : 4;
        key_row *rows = realloc(keys->rows, capacity * sizeof *rows);
        if (!rows) return di_fail(error, DI_ERR_MEMORY, "api-key", "out of memory for keys");
        keys->rows = rows;
        keys->capacity = capacity;
    }
    key_row *row = &keys->rows[keys->count];
    *row = (key_row){0};
    digest_of(key, key_length, row->digest);
    for (size_t i = 0; i < keys->count; i++)
        if (memcmp(keys->rows[i].digest, row->digest, sizeof row->digest) == 0)
            return di_fail(error, DI_ERR_CONFIG, "api-key", "%s: this key was given before", where);
    if (name_length)
        memcpy(row->name, name, name_length);
    else
        snprintf(row->name, sizeof row->name, "key-%02x%02x%02x%02x", row->digest[0], row->digest[1], row->digest[2],
                 row->digest[3]);
    keys->count++;
    return DI_OK;
}

/* A line of a key file: [length] bytes. */
static di_status read_line(di_keys *keys, const char *line, size_t length, const char *where, di_error *error) {
    static const char space[] = " \t";
    size_t start = 0;
    if (length && line[length - 1] == '\r') length--;
    while (start < length && strchr(space, line[start])) start++;
    while (length > start && strchr(space, line[length - 1])) length--;
    if (start == length || line[start] == '#') return DI_OK;
    size_t first = start, second;
    while (first < length && !strchr(space, line[first])) first++;
    for (second = first; second < length && strchr(space, line[second]);) second++;
    if (second == length) return add_key(keys, "", 0, line + start, first - start, where, error);
    return add_key(keys, line + start, first - start, line + second, length - second, where, error);
}

void di_warn_public_file(di_log *log, const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && (info.st_mode & S_IROTH))
        di_log_write(log, DI_LOG_WARN, "server",
                     "%s can be read by every user of this machine; chmod o-r keeps it secret", path);
}

static di_status read_file(di_keys *keys, const char *path, bool again, di_log *log, di_error *error) {
    char *data = NULL;
    size_t length = 0;
    di_status status = again ? (di_status)di_read_file(path, FILE_BYTES, &data, &length, error)
                             : (di_status)di_read_source(path, FILE_BYTES, &data, &length, error);
    if (status == DI_OK) di_warn_public_file(log, path);
    size_t before = keys->count;
    unsigned number = 1;
    for (size_t at = 0; status == DI_OK && at < length; number++) {
        const char *end = memchr(data + at, '\n', length - at);
        size_t size = end ? (size_t)(end - (data + at)) : length - at;
        char where[300];
        snprintf(where, sizeof where, "%.250s line %u", path, number);
        status = memchr(data + at, '\0', size) ? di_fail(error, DI_ERR_CONFIG, "api-key", "%s holds a zero byte", where)
                                               : read_line(keys, data + at, size, where, error);
        at += size + 1;
    }
    if (status == DI_OK && keys->count == before)
        status = di_fail(error, DI_ERR_CONFIG, "api-key-file", "%s holds no key; a line is NAME KEY or KEY", path);
    if (data) OPENSSL_cleanse(data, length);
    free(data);
    return status;
}

di_status di_keys_read(const char *key, const char *path, bool again, di_log *log, di_keys **keys, di_error *error) {
    *keys = NULL;
    bool has_key = key && key[0], has_file = path && path[0];
    if (!has_key && !has_file) return DI_OK;
    di_keys *read = calloc(1, sizeof *read);
    if (!read) return di_fail(error, DI_ERR_MEMORY, "api-key", "out of memory for keys");
    di_status status = has_key ? add_key(read, "", 0, key, strlen(key), "--api-key", error) : DI_OK;
    if (status == DI_OK && has_file) status = read_file(read, path, again, log, error);
    if (status == DI_OK)
        *keys = read;
    else
        di_keys_free(read);
    return status;
}

void di_keys_free(di_keys *keys) {
    if (!keys) return;
    free(keys->rows);
    free(keys);
}

const char *di_keys_find(const di_keys *keys, const char *key) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    digest_of(key, strlen(key), digest);
    const char *found = NULL;
    for (size_t i = 0; i < keys->count; i++) {
        bool same = CRYPTO_memcmp(keys->rows[i].digest, digest, sizeof digest) == 0;
        found = same ? keys->rows[i].name : found;
    }
    return found;
}
