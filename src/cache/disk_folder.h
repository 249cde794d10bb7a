/* disk_folder.h - walking and locking a cache folder; shared by the store and `deepinfer cache`. */
#ifndef DI_CACHE_DISK_FOLDER_H
#define DI_CACHE_DISK_FOLDER_H

#include <sys/stat.h>

#include "cache/disk_record.h"

/* Opens `path`, a lock file, and locks it (flock, which ends with the process). The descriptor, or -1 and errno
 * (EWOULDBLOCK: another process has it). What is locked is what stands at `path`: a lock on a file that was removed or
 * replaced meanwhile would keep nobody away. */
int di_disk_lock(const char *path, bool create);
/* Does what was locked still stand at `path`? 1, 0, or -1 and errno when that cannot be told. */
int di_disk_is_locked(int file, const char *path);

typedef enum di_disk_kind { DI_FILE_RECORD, DI_FILE_TEMPORARY, DI_FILE_UNKNOWN } di_disk_kind;

/* A file below a cache folder. A record, and the rest of one that was being written, is only what stands where a store
 * would have put it: nobody else's file is ever touched. */
typedef struct di_disk_file {
    const char *path; /* relative */
    di_disk_kind kind;
    di_disk_key what;                  /* of a record */
    char subfolder[DI_DISK_SUBFOLDER]; /* of a record or the rest of one */
    struct stat info;
} di_disk_file;

typedef bool (*di_disk_scan_visit)(void *arg, const di_disk_file *file); /* false: stop */
/* Visits every plain file but FOLDER/lock; links are not followed. The folder was seen to exist. Fails when it, or one
 * in which a store puts records, cannot be read: with the first, after all others were visited. */
di_status di_disk_scan(const char *folder, di_disk_scan_visit visit, void *arg, di_error *error);
/* Says why a folder cannot be walked. */
di_status di_disk_check_folder(const char *folder, di_error *error);

int64_t di_disk_file_ns(const struct stat *info); /* modification time */

#endif
