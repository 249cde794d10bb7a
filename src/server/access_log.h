/* access_log.h - one JSON line for every answered request: who, what, how long; never prompt text, never a key.
 * I/O thread. */
#ifndef DI_SERVER_ACCESS_LOG_H
#define DI_SERVER_ACCESS_LOG_H

#include "base/json.h"
#include "base/status.h"

typedef struct di_access_log di_access_log;

/* where: "stderr", "off" or a file that is appended to. NULL in *log when off. */
di_status di_access_log_open(const char *where, di_access_log **log, di_error *error);
void di_access_log_close(di_access_log *log);
/* Opens the file again (after it was moved away); stays with the old one if that fails. */
di_status di_access_log_reopen(di_access_log *log, di_error *error);

/* Begins a line with its time; the caller writes members and ends it. NULL log: NULL. */
di_json_writer *di_access_log_begin(di_access_log *log);
void di_access_log_end(di_access_log *log);

#endif
