/* lookup.h - drafts without a draft head: what followed the same ids before in this sequence (prompt look-up).
 *
 * Every position is chained to the one before it whose last DI_LOOKUP_LEAST ids were the same. Of the newest
 * DI_LOOKUP_TRIES places on the chain, the one that agrees with the end of the sequence the furthest back is continued;
 * ties to the newest. A pure function of the ids. Only committed ids are ever added, so there is nothing to roll back.
 * Owner: one sequence, one thread.
 */
#ifndef DI_SPEC_LOOKUP_H
#define DI_SPEC_LOOKUP_H

#include "base/status.h"

enum { DI_LOOKUP_LEAST = 2, DI_LOOKUP_TRIES = 16, DI_LOOKUP_REACH = 32 };

typedef struct di_lookup di_lookup;

/* What one for max_ids ids takes: 8 to 12 bytes an id. */
uint64_t di_lookup_bytes(uint32_t max_ids);
/* For a sequence of at most max_ids ids; all memory is taken here. */
di_status di_lookup_new(uint32_t max_ids, di_lookup **lookup, di_error *error);
void di_lookup_free(di_lookup *lookup); /* NULL is allowed */

/* ids [count]: the sequence so far, prompt and output; earlier ones as in the calls before. */
void di_lookup_add(di_lookup *lookup, const int32_t *ids, uint32_t count);

/* Up to `most` ids that may follow ids[count - 1], into drafts; returns how many. `matched` (may be NULL): how many of
 * the last ids the place agreed with, at most DI_LOOKUP_REACH. The ids must have been added. */
uint32_t di_lookup_draft(const di_lookup *lookup, const int32_t *ids, uint32_t count, uint32_t most, int32_t *drafts,
                         uint32_t *matched);

#endif
