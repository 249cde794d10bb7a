/* folder.h - scratch copies of a model folder, for tests that break one thing in it.
 *
 * Every failure ends the test with a message (cmocka's fail_msg). Only the plain files of a folder are copied.
 */
#ifndef DI_TESTS_SUPPORT_FOLDER_H
#define DI_TESTS_SUPPORT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct di_folder {
    char path[128]; /* below TMPDIR or /tmp */
} di_folder;

/* from NULL: an empty folder. */
di_folder di_folder_new(const char *from);
void di_folder_delete(di_folder *folder); /* with everything in it */

/* FOLDER/name. */
enum { DI_FOLDER_PATH = 512 };
void di_folder_path(const di_folder *folder, const char *name, char out[DI_FOLDER_PATH]);
/* Content of FOLDER/name, zero-terminated, malloc'ed. */
char *di_folder_read(const di_folder *folder, const char *name, size_t *length);
void di_folder_write(const di_folder *folder, const char *name, const void *data, size_t length);
void di_folder_remove(const di_folder *folder, const char *name);
void di_folder_rename(const di_folder *folder, const char *from, const char *to);
/* Sets the size of a file: cuts it, or lengthens it with a hole. */
void di_folder_resize(const di_folder *folder, const char *name, uint64_t bytes);

/* Replaces the first occurrence of `from` in a text file; it must be there. */
void di_folder_replace(const di_folder *folder, const char *name, const char *from, const char *to);
/* The same in the JSON header of a shard; the length field follows. */
void di_folder_replace_header(const di_folder *folder, const char *shard, const char *from, const char *to);
/* Writes a shard with this header and `data_bytes` zero bytes of data. */
void di_folder_write_shard(const di_folder *folder, const char *shard, const char *header, size_t data_bytes);
/* Overwrites bytes of a file. */
void di_folder_poke(const di_folder *folder, const char *name, uint64_t offset, const void *data, size_t length);

#endif
