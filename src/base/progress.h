/* progress.h - a progress bar on stderr, only on a terminal and not with --quiet, with rate and ETA.
 * Not thread-safe; redraws at most ten times a second. */
#ifndef DI_BASE_PROGRESS_H
#define DI_BASE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct di_progress di_progress;

/* total 0 = unknown. Returns NULL (which every function accepts) when nothing should be shown. */
di_progress *di_progress_new(const char *label, const char *unit, uint64_t total, bool quiet);
void di_progress_add(di_progress *progress, uint64_t done);
void di_progress_end(di_progress *progress); /* clears the line and frees */

#endif
