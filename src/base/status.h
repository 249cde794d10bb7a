/* status.h - the one error scheme.
 *
 * A function that can fail returns di_status and fills the caller's di_error (NULL is allowed) with a bounded message
 * that names the input: tensor, field path, byte offset, option. di_status, di_error: include/deepinfer.h.
 */
#ifndef DI_BASE_STATUS_H
#define DI_BASE_STATUS_H

#include "deepinfer.h"

#define DI_PRINTF(text, first) __attribute__((__format__(__printf__, text, first)))

/* Fills *error (if not NULL) and returns `status`, so that callers write `return di_fail(...)`.
 * `param` may be NULL. A message that does not fit is cut at a character border and ends in "...". */
di_status di_fail(di_error *error, di_status status, const char *param, const char *format, ...) DI_PRINTF(4, 5);

/* The same with errno's text appended: "cannot open FILE: No such file or directory". */
di_status di_fail_errno(di_error *error, di_status status, const char *param, int error_number, const char *format, ...)
    DI_PRINTF(5, 6);

/* Appends a line to a message that is already there (a manifest check lists many faults in one error). Lines that do
 * not fit are counted and the last line says how many were left out. */
void di_error_add_line(di_error *error, const char *format, ...) DI_PRINTF(2, 3);

void di_error_clear(di_error *error);

#endif
