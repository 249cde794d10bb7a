/* disk_folder.c - see disk_folder.h and the end of disk.h. */
#include "cache/disk_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cache/disk_record.h"

enum { PATH_BYTES = 4400, DEEPEST = 3 };

int di_disk_lock(const char *folder) {
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%.4000s/lock", folder);
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return -1;
    if (flock(file, LOCK_EX | LOCK_NB) == 0) return file;
    int error = errno;
    close(file);
    errno = error;
    return -1;
}

typedef struct walk {
    const char *folder;
    bool check;
    di_disk_visit visit;
    void *arg;
    bool stopped;
} walk;

static bool ends_in_tmp(const char *name) {
    size_t n = strlen(name);
    return n > 4 && strcmp(name + n - 4, ".tmp") == 0;
}

static void visit_file(walk *w, const char *relative, const char *name, const struct stat *info) {
    di_disk_key what;
    if (strcmp(relative, "lock") == 0) return;
    bool temporary = ends_in_tmp(name), known = !temporary && di_disk_parse_name(name, &what);
    di_disk_record r = {.path = relative,
                        .kind = !known                       ? "unknown"
                                : what.kind == DI_DISK_BLOCK ? "block"
                                                             : "snapshot",
                        .bytes = (uint64_t)info->st_size,
                        .used_ns = (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec,
                        .position = known ? what.position : 0};
    if (w->check && known) {
        char path[2 * PATH_BYTES];
        di_disk_header header;
        char *bytes;
        const int32_t *ids;
        const char *payload, *why;
        snprintf(path, sizeof path, "%s/%s", w->folder, relative);
        /* Checking must not make records look used: times are put back. */
        r.damaged = !di_disk_read(&di_disk_system_io, path, &header, &bytes, &ids, &payload, &why);
        if (!r.damaged) {
            r.digest = header.digest;
            memcpy(r.profile, header.profile, sizeof r.profile);
            r.damaged = header.what.kind != what.kind || header.what.key != what.key;
            const struct timespec times[2] = {info->st_atim, info->st_mtim};
            utimensat(AT_FDCWD, path, times, 0);
        }
        free(bytes);
    }
    w->stopped = !w->visit(w->arg, &r);
}

static void walk_folder(walk *w, const char *relative, int depth) {
    char path[2 * PATH_BYTES];
    snprintf(path, sizeof path, "%s%s%s", w->folder, relative[0] ? "/" : "", relative);
    DIR *folder = opendir(path);
    if (!folder) return;
    const struct dirent *entry;
    while (!w->stopped && (entry = readdir(folder))) {
        if (entry->d_name[0] == '.') continue;
        char below[PATH_BYTES];
        struct stat info;
        int n = snprintf(below, sizeof below, "%s%s%s", relative, relative[0] ? "/" : "", entry->d_name);
        if (n >= (int)sizeof below || fstatat(dirfd(folder), entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
        if (S_ISDIR(info.st_mode) && depth < DEEPEST)
            walk_folder(w, below, depth + 1);
        else if (S_ISREG(info.st_mode))
            visit_file(w, below, entry->d_name, &info);
    }
    closedir(folder);
}

di_status di_disk_walk(const char *folder, bool check, di_disk_visit visit, void *arg, di_error *error) {
    struct stat info;
    if (stat(folder, &info) != 0)
        return di_fail_errno(error, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, "cache-dir", errno,
                             "cannot open the cache folder %s", folder);
    if (!S_ISDIR(info.st_mode))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "cache-dir", "%s is not a folder", folder);
    walk w = {.folder = folder, .check = check, .visit = visit, .arg = arg};
    walk_folder(&w, "", 0);
    return DI_OK;
}

/* ---------------------------------------------------------------- trimming */

typedef struct trim_entry {
    char *path;
    uint64_t bytes;
    int64_t used_ns;
} trim_entry;

typedef struct trim_list {
    trim_entry *entries;
    size_t count, capacity;
    uint64_t bytes;
    bool failed;
} trim_list;

static bool collect(void *arg, const di_disk_record *r) {
    trim_list *list = arg;
    if (strcmp(r->kind, "unknown") == 0) return true;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 1024;
        trim_entry *grown = realloc(list->entries, capacity * sizeof *grown);
        if (!grown) {
            list->failed = true;
            return false;
        }
        list->entries = grown;
        list->capacity = capacity;
    }
    char *path = strdup(r->path);
    list->failed |= !path;
    if (path) list->entries[list->count++] = (trim_entry){path, r->bytes, r->used_ns};
    list->bytes += r->bytes;
    return !list->failed;
}

static int oldest_first(const void *a, const void *b) {
    const trim_entry *x = a, *y = b;
    return (x->used_ns > y->used_ns) - (x->used_ns < y->used_ns);
}

di_status di_disk_trim(const char *folder, uint64_t bytes, uint64_t *removed, uint64_t *freed, di_error *error) {
    *removed = *freed = 0;
    int lock = di_disk_lock(folder);
    if (lock < 0) {
        if (errno == EWOULDBLOCK)
            return di_fail(error, DI_ERR_LIMIT, "cache-dir", "%s is in use by another process; stop it first", folder);
        return di_fail_errno(error, DI_ERR_IO, "cache-dir", errno, "cannot lock the cache folder %s", folder);
    }
    trim_list list = {0};
    di_status status = di_disk_walk(folder, false, collect, &list, error);
    if (status == DI_OK && list.failed) status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK && list.count) qsort(list.entries, list.count, sizeof *list.entries, oldest_first);
    for (size_t i = 0; i < list.count; i++) {
        char path[2 * PATH_BYTES];
        snprintf(path, sizeof path, "%s/%s", folder, list.entries[i].path);
        if (status == DI_OK && list.bytes - *freed > bytes) {
            if (unlink(path) != 0) {
                status = di_fail_errno(error, DI_ERR_IO, "cache-dir", errno, "cannot remove %s", path);
            } else {
                ++*removed;
                *freed += list.entries[i].bytes;
            }
        }
        free(list.entries[i].path);
    }
    free(list.entries);
    close(lock);
    return status;
}
