/* disk_folder.h - walking, locking and trimming a cache folder; shared by the store and `deepinfer cache`. */
#ifndef DI_CACHE_DISK_FOLDER_H
#define DI_CACHE_DISK_FOLDER_H

#include "cache/disk.h"

/* Opens FOLDER/lock and locks it (flock, which ends with the process). The descriptor, or -1 and errno (EWOULDBLOCK:
 * another process has it). */
int di_disk_lock(const char *folder);

#endif
