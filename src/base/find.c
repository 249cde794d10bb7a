/* find.c - see find.h. */
#include "base/find.h"

#include <errno.h>
#include <sys/stat.h>

di_status di_find_file(const char *path, bool *found, di_error *error) {
    struct stat info, link;
    *found = false;
    if (stat(path, &info) != 0) {
        int reason = errno;
        bool absent = reason == ENOENT || reason == ENOTDIR;
        if (absent && lstat(path, &link) != 0 && (errno == ENOENT || errno == ENOTDIR)) return DI_OK;
        if (absent) return di_fail(error, DI_ERR_NOT_FOUND, path, "%s is a link to something that is not there", path);
        return di_fail_errno(error, DI_ERR_IO, path, reason, "cannot examine %s", path);
    }
    if (!S_ISREG(info.st_mode))
        return di_fail(error, DI_ERR_IO, path, "%s is not a plain file; %s cannot be read here", path,
                       S_ISDIR(info.st_mode) ? "a folder" : "a pipe or device");
    *found = true;
    return DI_OK;
}
