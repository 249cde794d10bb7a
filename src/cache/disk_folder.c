/* disk_folder.c - see disk_folder.h and the end of disk.h. */
#include "cache/disk_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { DEEPEST = 2, MOST_TRIES = 100 };

int di_disk_is_locked(int file, const char *path) {
    struct stat locked, there;
    if (fstat(file, &locked) != 0) return -1;
    if (lstat(path, &there) != 0) return errno == ENOENT || errno == ENOTDIR ? 0 : -1;
    return locked.st_dev == there.st_dev && locked.st_ino == there.st_ino;
}

int di_disk_lock(const char *path, bool create) {
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        int file = open(path, O_RDWR | (create ? O_CREAT : 0) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (file < 0) return -1;
        bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
        int stands = locked ? di_disk_is_locked(file, path) : -1, error = errno;
        if (stands > 0) return file;
        close(file);
        errno = error;
        if (stands < 0) return -1;
    }
    errno = EBUSY; /* somebody does nothing but remove it */
    return -1;
}

int64_t di_disk_file_ns(const struct stat *info) {
    static const int64_t latest = INT64_MAX / 1000000000 - 1;
    int64_t seconds = info->st_mtim.tv_sec < 0 ? 0 : info->st_mtim.tv_sec > latest ? latest : info->st_mtim.tv_sec;
    return seconds * 1000000000 + info->st_mtim.tv_nsec;
}

/* ---------------------------------------------------------------- walking */

static bool is_hex(const char *at, size_t digits) {
    return strspn(at, "0123456789abcdef") >= digits;
}

/* "DIGEST-PROFILE/XX/NAME" */
static void classify(di_disk_file *file) {
    const char *path = file->path, *name = path + 37;
    file->kind = DI_FILE_UNKNOWN;
    if (strlen(path) < 37 || !is_hex(path, 16) || path[16] != '-' || !is_hex(path + 17, 16) || path[33] != '/' ||
        !is_hex(path + 34, 2) || path[36] != '/')
        return;
    char plain[DI_DISK_NAME], expected[DI_DISK_NAME];
    size_t length = strlen(name);
    bool temporary = length > 4 && strcmp(name + length - 4, ".tmp") == 0;
    if (temporary) length -= 4;
    if (length >= sizeof plain) return;
    memcpy(plain, name, length);
    plain[length] = 0;
    if (!di_disk_parse_name(plain, &file->what)) return;
    di_disk_name(&file->what, expected);
    if (strncmp(expected, path + 34, 2) != 0) return;
    file->kind = temporary ? DI_FILE_TEMPORARY : DI_FILE_RECORD;
    memcpy(file->subfolder, path, DI_DISK_SUBFOLDER - 1);
    file->subfolder[DI_DISK_SUBFOLDER - 1] = 0;
}

typedef struct scan {
    const char *folder;
    di_disk_scan_visit visit;
    void *arg;
    bool stopped;
    di_status status;
    di_error *error; /* the first that could not be read */
} scan;

/* "", "DIGEST-PROFILE" or "DIGEST-PROFILE/XX". */
static bool holds_records(const char *relative) {
    size_t length = strlen(relative);
    if (length != 33 && length != 36) return !length;
    return is_hex(relative, 16) && relative[16] == '-' && is_hex(relative + 17, 16) &&
           (length == 33 || (relative[33] == '/' && is_hex(relative + 34, 2)));
}

/* What was removed meanwhile is not missed, and other people's folders need not be open to us. */
static void cannot_read(scan *s, const char *path, const char *relative) {
    if (errno == ENOENT || errno == ENOTDIR || s->status != DI_OK || !holds_records(relative)) return;
    s->status = di_fail_errno(s->error, DI_ERR_IO, "cache-dir", errno, "cannot read the folder %s", path);
}

/* errno tells an end from a failure. */
static const struct dirent *next_entry(DIR *folder) {
    errno = 0;
    return readdir(folder);
}

static void scan_folder(scan *s, const char *relative, int depth) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s%s", s->folder, relative[0] ? "/" : "", relative) >= (int)sizeof path) return;
    DIR *folder = opendir(path);
    if (!folder) {
        cannot_read(s, path, relative);
        return;
    }
    const struct dirent *entry;
    while (!s->stopped && (entry = next_entry(folder))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char below[PATH_MAX];
        di_disk_file file = {.path = below};
        int n = snprintf(below, sizeof below, "%s%s%s", relative, relative[0] ? "/" : "", entry->d_name);
        if (n >= (int)sizeof below) continue;
        if (fstatat(dirfd(folder), entry->d_name, &file.info, AT_SYMLINK_NOFOLLOW) != 0) {
            cannot_read(s, path, relative);
            continue;
        }
        if (S_ISDIR(file.info.st_mode) && depth < DEEPEST) {
            scan_folder(s, below, depth + 1);
        } else if (S_ISREG(file.info.st_mode) && strcmp(below, "lock") != 0) {
            classify(&file);
            s->stopped = !s->visit(s->arg, &file);
        }
    }
    if (!s->stopped && errno) cannot_read(s, path, relative);
    closedir(folder);
}

di_status di_disk_scan(const char *folder, di_disk_scan_visit visit, void *arg, di_error *error) {
    scan s = {.folder = folder, .visit = visit, .arg = arg, .status = DI_OK, .error = error};
    scan_folder(&s, "", 0);
    return s.status;
}

di_status di_disk_check_folder(const char *folder, di_error *error) {
    struct stat info;
    if (stat(folder, &info) != 0)
        return di_fail_errno(error, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, "cache-dir", errno,
                             "cannot open the cache folder %s", folder);
    if (!S_ISDIR(info.st_mode))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "cache-dir", "%s is not a folder", folder);
    DIR *listed = opendir(folder);
    if (!listed) return di_fail_errno(error, DI_ERR_IO, "cache-dir", errno, "cannot read the cache folder %s", folder);
    closedir(listed);
    return DI_OK;
}

/* ---------------------------------------------------------------- showing */

typedef struct show {
    const char *folder;
    bool check;
    di_disk_visit visit;
    void *arg;
} show;

/* Compares a record's content with the place where it stands. */
static const char *misplaced(const di_disk_file *file, const di_disk_header *header) {
    char subfolder[DI_DISK_SUBFOLDER];
    if (!di_disk_same(&header->what, &file->what)) return "its content belongs to another name";
    di_disk_subfolder(header->digest, header->profile, header->layout, subfolder);
    return strcmp(subfolder, file->subfolder) == 0 ? NULL : "its content belongs to another folder";
}

static bool show_file(void *arg, const di_disk_file *file) {
    const show *s = arg;
    bool record = file->kind == DI_FILE_RECORD;
    di_disk_record r = {.path = file->path,
                        .kind = file->kind == DI_FILE_UNKNOWN      ? "unknown"
                                : file->kind == DI_FILE_TEMPORARY  ? "temporary"
                                : file->what.kind == DI_DISK_BLOCK ? "block"
                                                                   : "snapshot",
                        .bytes = (uint64_t)file->info.st_size,
                        .used_ns = di_disk_file_ns(&file->info),
                        .position = file->what.position};
    if (record) sscanf(file->subfolder, "%16" SCNx64, &r.digest);
    if (!record || !s->check) return s->visit(s->arg, &r);
    char path[PATH_MAX], *bytes = NULL;
    const int32_t *ids;
    const char *payload;
    di_disk_header header;
    if (snprintf(path, sizeof path, "%s/%s", s->folder, file->path) >= (int)sizeof path) {
        r.fault = "its path is too long";
    } else {
        di_disk_fault fault =
            di_disk_read(&di_disk_system_io, path, DI_DISK_MOST_BYTES, &header, &bytes, &ids, &payload, &r.fault);
        if (fault == DI_DISK_MISSING) return true; /* removed since it was listed */
        if (fault == DI_DISK_SOUND) {
            r.fault = misplaced(file, &header);
            memcpy(r.profile, header.profile, sizeof r.profile);
        }
    }
    free(bytes);
    return s->visit(s->arg, &r);
}

di_status di_disk_walk(const char *folder, bool check, di_disk_visit visit, void *arg, di_error *error) {
    di_status status = di_disk_check_folder(folder, error);
    if (status == DI_OK) status = di_disk_scan(folder, show_file, &(show){folder, check, visit, arg}, error);
    return status;
}

/* ---------------------------------------------------------------- trimming */

typedef struct trim_entry {
    char *path;
    uint64_t bytes;
    int64_t used_ns;
    uint32_t kind;
} trim_entry;

typedef struct trim_list {
    trim_entry *entries;
    size_t count, capacity;
    uint64_t bytes;
    bool failed;
} trim_list;

static bool collect(void *arg, const di_disk_file *file) {
    trim_list *list = arg;
    if (file->kind == DI_FILE_UNKNOWN) return true;
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 1024;
        trim_entry *grown = realloc(list->entries, capacity * sizeof *grown);
        list->failed |= !grown;
        if (!grown) return false;
        list->entries = grown;
        list->capacity = capacity;
    }
    bool record = file->kind == DI_FILE_RECORD;
    trim_entry entry = {.path = strdup(file->path),
                        .bytes = (uint64_t)file->info.st_size,
                        .used_ns = record ? di_disk_file_ns(&file->info) : INT64_MIN,
                        .kind = file->what.kind};
    list->failed |= !entry.path;
    if (entry.path) list->entries[list->count++] = entry;
    list->bytes += entry.bytes;
    return !list->failed;
}

/* Rests of interrupted writes first, then by age; a snapshot before the blocks under it. */
static int oldest_first(const void *a, const void *b) {
    const trim_entry *x = a, *y = b;
    if (x->used_ns != y->used_ns) return x->used_ns < y->used_ns ? -1 : 1;
    return (int)y->kind - (int)x->kind;
}

static di_status remove_entry(const char *folder, const trim_entry *entry, di_error *error) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", folder, entry->path) >= (int)sizeof path)
        return di_fail(error, DI_ERR_IO, "cache-dir", "cannot remove %s: its path is too long", entry->path);
    if (unlink(path) != 0 && errno != ENOENT)
        return di_fail_errno(error, DI_ERR_IO, "cache-dir", errno, "cannot remove %s", path);
    /* Folders go with their last record. */
    for (int up = 0; up < 2; up++) {
        *strrchr(path, '/') = 0;
        if (rmdir(path) != 0) break;
    }
    return DI_OK;
}

di_status di_disk_trim(const char *folder, uint64_t bytes, uint64_t *removed, uint64_t *freed, uint64_t *left,
                       di_error *error) {
    *removed = *freed = *left = 0;
    char path[PATH_MAX];
    di_status status = di_disk_check_folder(folder, error);
    if (status != DI_OK) return status;
    if (snprintf(path, sizeof path, "%s/lock", folder) >= (int)sizeof path)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "cache-dir", "the path of the cache folder is too long");
    int lock = di_disk_lock(path, false);
    if (lock < 0 && errno == EWOULDBLOCK)
        return di_fail(error, DI_ERR_LIMIT, "cache-dir", "%s is in use by another process; stop it first", folder);
    if (lock < 0 && errno == ENOENT)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "cache-dir", "%s is not a cache folder: it has no file \"lock\"",
                       folder);
    if (lock < 0) return di_fail_errno(error, DI_ERR_IO, "cache-dir", errno, "cannot lock the cache folder %s", folder);
    trim_list list = {0};
    status = di_disk_scan(folder, collect, &list, error);
    if (list.failed) status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the list of records");
    if (list.count) qsort(list.entries, list.count, sizeof *list.entries, oldest_first);
    for (size_t i = 0; i < list.count; i++) {
        const trim_entry *entry = &list.entries[i];
        if (!list.failed && (entry->used_ns == INT64_MIN || list.bytes - *freed > bytes)) {
            di_error another = {0}; /* the first is told, and keeps none of the others */
            di_status result = remove_entry(folder, entry, status == DI_OK ? error : &another);
            if (result == DI_OK) {
                ++*removed;
                *freed += entry->bytes;
            } else if (status == DI_OK) {
                status = result;
            }
        }
        free(entry->path);
    }
    *left = list.bytes - *freed;
    free(list.entries);
    close(lock);
    return status;
}
