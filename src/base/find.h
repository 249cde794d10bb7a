/* find.h - whether a file is there.
 *
 * Something that has the name but cannot be read as a file (a link that leads nowhere, a folder, a pipe, a folder
 * without the right to look into it) is an error that names it, never "not there": what was put into a model's folder
 * is used or refused.
 */
#ifndef DI_BASE_FIND_H
#define DI_BASE_FIND_H

#include "base/status.h"

#include <stdbool.h>

/* *found: a plain file, or a link to one. False with DI_OK: nothing has this name. Opens nothing. */
di_status di_find_file(const char *path, bool *found, di_error *error);

#endif
