/* folder.c - see folder.h. */
#include "support/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static void join(char out[DI_FOLDER_PATH], const char *folder, const char *name) {
    if (snprintf(out, DI_FOLDER_PATH, "%s/%s", folder, name) >= DI_FOLDER_PATH)
        fail_msg("path too long: %s/%s", folder, name);
}

void di_folder_path(const di_folder *folder, const char *name, char out[DI_FOLDER_PATH]) {
    join(out, folder->path, name);
}

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) fail_msg("cannot read %s: %s", path, strerror(errno));
    char *data = malloc((size_t)info.st_size + 1);
    if (!data) fail_msg("out of memory");
    *length = fread(data, 1, (size_t)info.st_size, file);
    data[*length] = 0;
    fclose(file);
    return data;
}

di_folder di_folder_new(const char *from) {
    di_folder folder;
    snprintf(folder.path, sizeof folder.path, "/tmp/deepinfer-test-XXXXXX");
    if (!mkdtemp(folder.path)) fail_msg("cannot make a folder: %s", strerror(errno));
    DIR *directory = from ? opendir(from) : NULL;
    if (from && !directory) fail_msg("cannot open %s: %s", from, strerror(errno));
    for (const struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[DI_FOLDER_PATH];
        struct stat info;
        join(path, from, entry->d_name);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode)) continue;
        size_t length;
        char *data = read_file(path, &length);
        di_folder_write(&folder, entry->d_name, data, length);
        free(data);
    }
    if (directory) closedir(directory);
    return folder;
}

void di_folder_delete(di_folder *folder) {
    DIR *directory = opendir(folder->path);
    for (const struct dirent *entry; directory && (entry = readdir(directory));) {
        char path[DI_FOLDER_PATH];
        join(path, folder->path, entry->d_name);
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 && remove(path) != 0) {
            di_folder inner;
            if (snprintf(inner.path, sizeof inner.path, "%s", path) < (int)sizeof inner.path) di_folder_delete(&inner);
        }
    }
    if (directory) closedir(directory);
    rmdir(folder->path);
}

char *di_folder_read(const di_folder *folder, const char *name, size_t *length) {
    char path[DI_FOLDER_PATH];
    size_t unused;
    di_folder_path(folder, name, path);
    return read_file(path, length ? length : &unused);
}

void di_folder_write(const di_folder *folder, const char *name, const void *data, size_t length) {
    char path[DI_FOLDER_PATH];
    di_folder_path(folder, name, path);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data, 1, length, file) != length || fclose(file) != 0)
        fail_msg("cannot write %s: %s", path, strerror(errno));
}

void di_folder_remove(const di_folder *folder, const char *name) {
    char path[DI_FOLDER_PATH];
    di_folder_path(folder, name, path);
    if (remove(path) != 0) fail_msg("cannot remove %s: %s", path, strerror(errno));
}

void di_folder_rename(const di_folder *folder, const char *from, const char *to) {
    char a[DI_FOLDER_PATH], b[DI_FOLDER_PATH];
    di_folder_path(folder, from, a);
    di_folder_path(folder, to, b);
    if (rename(a, b) != 0) fail_msg("cannot rename %s: %s", a, strerror(errno));
}

void di_folder_resize(const di_folder *folder, const char *name, uint64_t bytes) {
    char path[DI_FOLDER_PATH];
    di_folder_path(folder, name, path);
    if (truncate(path, (off_t)bytes) != 0) fail_msg("cannot resize %s: %s", path, strerror(errno));
}

/* data[0..*length) with the first `from` replaced by `to`; malloc'ed. */
static char *replaced(char *data, size_t *length, const char *from, const char *to) {
    char *at = memmem(data, *length, from, strlen(from));
    if (!at) fail_msg("\"%s\" is not there to be replaced", from);
    size_t before = (size_t)(at - data), rest = *length - before - strlen(from);
    char *out = malloc(before + strlen(to) + rest + 1);
    if (!out) fail_msg("out of memory");
    memcpy(out, data, before);
    memcpy(out + before, to, strlen(to));
    memcpy(out + before + strlen(to), at + strlen(from), rest);
    *length = before + strlen(to) + rest;
    out[*length] = 0;
    free(data);
    return out;
}

void di_folder_replace(const di_folder *folder, const char *name, const char *from, const char *to) {
    size_t length;
    char *data = di_folder_read(folder, name, &length);
    data = replaced(data, &length, from, to);
    di_folder_write(folder, name, data, length);
    free(data);
}

static void write_parts(const di_folder *folder, const char *shard, const char *header, size_t header_bytes,
                        const char *data, size_t data_bytes) {
    char *whole = malloc(8 + header_bytes + data_bytes + 1);
    if (!whole) fail_msg("out of memory");
    for (size_t i = 0; i < 8; i++) whole[i] = (char)(header_bytes >> (8 * i));
    memcpy(whole + 8, header, header_bytes);
    if (data) memcpy(whole + 8 + header_bytes, data, data_bytes);
    if (!data) memset(whole + 8 + header_bytes, 0, data_bytes);
    di_folder_write(folder, shard, whole, 8 + header_bytes + data_bytes);
    free(whole);
}

void di_folder_replace_header(const di_folder *folder, const char *shard, const char *from, const char *to) {
    size_t length;
    char *file = di_folder_read(folder, shard, &length);
    size_t header_bytes = 0;
    for (size_t i = 8; i-- > 0;) header_bytes = header_bytes << 8 | (uint8_t)file[i];
    size_t data_bytes = length - 8 - header_bytes;
    char *header = malloc(header_bytes + 1);
    if (!header) fail_msg("out of memory");
    memcpy(header, file + 8, header_bytes);
    size_t new_bytes = header_bytes;
    header = replaced(header, &new_bytes, from, to);
    write_parts(folder, shard, header, new_bytes, file + 8 + header_bytes, data_bytes);
    free(header);
    free(file);
}

void di_folder_write_shard(const di_folder *folder, const char *shard, const char *header, size_t data_bytes) {
    write_parts(folder, shard, header, strlen(header), NULL, data_bytes);
}

void di_folder_poke(const di_folder *folder, const char *name, uint64_t offset, const void *data, size_t length) {
    char path[DI_FOLDER_PATH];
    di_folder_path(folder, name, path);
    int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0 || pwrite(file, data, length, (off_t)offset) != (ssize_t)length)
        fail_msg("cannot change %s: %s", path, strerror(errno));
    close(file);
}
