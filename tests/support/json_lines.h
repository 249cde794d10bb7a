/* json_lines.h - files with one JSON value in a line, as golden vectors come. Failures end the test. */
#ifndef DI_TESTS_SUPPORT_JSON_LINES_H
#define DI_TESTS_SUPPORT_JSON_LINES_H

#include "base/json.h"

#include <stddef.h>

/* Calls check for every line whose "kind" is this one (NULL: every line); there must be `expected` of them. The line
 * and what check puts into the arena last until check returns. */
void di_each_json_line(const char *path, const char *kind,
                       void (*check)(void *arg, di_arena *arena, const di_json *line), void *arg, size_t expected);

#endif
