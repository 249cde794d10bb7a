/* stop.h - stop strings in a growing text, and the texts behind which they mean nothing any more.
 *
 * Text is matched while the matcher is armed. Ends, for instance the openings of tool calls, are looked for from the
 * beginning; from where one stands, and from the line breaks before it, all is passed on as it is. What may be an end
 * is held back until it is certain.
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
    uint32_t end_count;     /* 0 without strings */
    const char **ends;      /* [end_count], without the line break that asks for the start of a line */
    uint32_t *end_lengths;
    bool *ends_at_line; /* [end_count]: an end at the start of a line only */
    bool end_byte[256]; /* some end begins with it */
} di_stop_set;

/* One sample's progress. */
typedef struct di_stop_matcher {
    const di_stop_set *set;
    uint32_t *matched; /* [count]: bytes of each string that the text ends with */
    di_text held;      /* text not yet certain */
    di_text pending;   /* line breaks and then perhaps what may be an end; not armed: passed on already */
    size_t breaks;     /* it begins with at least so many line breaks */
    bool armed, ended;
    bool line_start; /* `pending` stands at the start of a line, or of what is matched */
} di_stop_matcher;

/* The strings must be valid UTF-8 without zero bytes and not empty (checked: DI_ERR_INVALID_ARGUMENT "stop"). */
di_status di_stop_set_build(di_stop_set *set, di_arena *arena, const char *const *strings, size_t count,
                            di_error *error);
/* Adds ends to a set, checked like the strings ("stop_disarm"). With "\n" in front it must stand at the start of a
 * line; further on "\n" stands for any number, also none, of line breaks and blanks. */
di_status di_stop_set_add_ends(di_stop_set *set, di_arena *arena, const char *const *ends, size_t count,
                               di_error *error);
/* False when memory ran out. */
bool di_stop_matcher_init(di_stop_matcher *matcher, di_arena *arena, const di_stop_set *set, bool armed);
void di_stop_matcher_free(di_stop_matcher *matcher);
/* From here on text is matched, unless there was an end. */
void di_stop_arm(di_stop_matcher *matcher);

/* Adds text and appends what became certain to *out. Returns the index of the string that was completed, -1 if none:
 * after a match *out ends before the string and the rest of the text is dropped. */
int32_t di_stop_push(di_stop_matcher *matcher, const char *text, size_t length, di_text *out);
/* The text is over: what may have been an end is none. As di_stop_push. */
int32_t di_stop_finish(di_stop_matcher *matcher, di_text *out);
/* No match can begin before this point: appends what was held back. */
void di_stop_flush(di_stop_matcher *matcher, di_text *out);

#endif
