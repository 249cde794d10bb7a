/* stop.h - stop strings in a growing text.
 *
 * Where a text is cut depends on its bytes alone, not on how tokens cut it into pieces: the stop string that is
 * completed first wins; of several completed by the same byte the longest. Text that may be the beginning of a stop
 * string is held back until it is certain. Linear time (Knuth-Morris-Pratt, one state a string).
 */
#ifndef DI_ENGINE_STOP_H
#define DI_ENGINE_STOP_H

#include "base/arena.h"
#include "base/status.h"
#include "base/text.h"

/* The strings of a request. Immutable; in the request's arena. */
typedef struct di_stop_set {
    uint32_t count;
    const char **strings;   /* [count], zero-terminated */
    uint32_t *lengths;      /* [count] */
    const uint32_t **links; /* [count][length]: length of the longest proper border of the first i + 1 bytes */
} di_stop_set;

/* One sample's progress. */
typedef struct di_stop_matcher {
    const di_stop_set *set;
    uint32_t *matched; /* [count]: bytes of each string that the text ends with */
    di_text held;      /* text not yet certain */
} di_stop_matcher;

/* The strings must be valid UTF-8 without zero bytes and not empty (checked: DI_ERR_INVALID_ARGUMENT "stop"). */
di_status di_stop_set_build(di_stop_set *set, di_arena *arena, const char *const *strings, size_t count,
                            di_error *error);
/* False when memory ran out. */
bool di_stop_matcher_init(di_stop_matcher *matcher, di_arena *arena, const di_stop_set *set);
void di_stop_matcher_free(di_stop_matcher *matcher);

/* Adds text and appends what became certain to *out. Returns the index of the string that was completed, -1 if none:
 * after a match *out ends before the string and the rest of the text is dropped. */
int32_t di_stop_push(di_stop_matcher *matcher, const char *text, size_t length, di_text *out);
/* No match can begin before this point: appends what was held back. */
void di_stop_flush(di_stop_matcher *matcher, di_text *out);

#endif
