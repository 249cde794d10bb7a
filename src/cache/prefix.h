/* prefix.h - the prefix cache: states of prompts and answers, found again by their token ids.
 *
 * A tree over token ids in blocks of one page (hash chain with the namespace as salt; ids and parent are compared, so a
 * hash collision cannot serve wrong state). A node owns one page: the growing entries of its block, written once and
 * shared from then on. Snapshots hang on nodes: the rolling block at position H, H odd or inside a block (then with a
 * copy of the unfinished page). A prefix can be resumed only where a snapshot stands, because only there every required
 * part exists.
 *
 *   root(namespace) - [64 ids, page] - [64 ids, page] - ...
 *                         |                |
 *                         snapshot H=64    snapshot H=131 (3 tail ids, unfinished page)
 *
 * A node lives as long as something below it can be resumed: it is referenced by its children and its snapshots.
 * Eviction takes snapshots, least recently used first, of the eight oldest the one that saves the fewest tokens per
 * byte; nodes that nothing needs any more give their page back. Snapshots in compact mode hold no decoder windows
 * (docs/numerics.md). Only committed positions ever enter. Engine thread only.
 */
#ifndef DI_CACHE_PREFIX_H
#define DI_CACHE_PREFIX_H

#include "cache/disk.h"
#include "cache/pages.h"
#include "cache/state.h"

typedef struct di_prefix_cache di_prefix_cache;

typedef enum di_miss_reason {
    DI_MISS_NONE,     /* the whole prompt but its last token was found */
    DI_MISS_EMPTY,    /* nothing with this beginning is cached */
    DI_MISS_DIVERGED, /* a cached text goes on differently at `diverged_at` */
    DI_MISS_END,      /* the cached text ends at `diverged_at` */
    DI_MISS_SNAPSHOT, /* the ids are known to `diverged_at`, but no snapshot stands that far */
    DI_MISS_DISABLED, /* this request takes no hit */
} di_miss_reason;

const char *di_miss_name(di_miss_reason reason); /* "diverged", ... */

typedef struct di_prefix_hit {
    uint32_t cached;      /* positions restored; 0 = none */
    uint32_t known;       /* leading positions whose ids are in the tree: a branch point if known < count */
    uint32_t diverged_at; /* first position that was not found */
    di_miss_reason reason;
} di_prefix_hit;

typedef struct di_prefix_counters {
    uint64_t lookups, hits, hit_tokens, snapshots_made, snapshots_evicted;
    uint64_t bytes;                   /* held now: rolling blocks and pages of the tree */
    uint32_t snapshots, nodes, pages; /* pages: of nodes, and unfinished ones of snapshots */
} di_prefix_counters;

/* bytes: budget for rolling blocks, tree pages and unfinished pages; 0 = no caching. */
di_status di_prefix_cache_new(di_page_pool *pool, uint64_t bytes, di_prefix_cache **cache, di_error *error);
void di_prefix_cache_free(di_prefix_cache *cache);

/* Finds the longest resumable prefix of ids[0 .. count-1) (at least one token is left to compute) and restores it into
 * `state`, which must be fresh. Without a hit the state is untouched. */
void di_prefix_lookup(di_prefix_cache *cache, uint64_t salt, const int32_t *ids, uint32_t count, di_state *state,
                      di_prefix_hit *hit);

/* Remembers the state's committed positions, ids[0 .. length). Does nothing when the budget cannot hold it. */
void di_prefix_publish(di_prefix_cache *cache, uint64_t salt, const int32_t *ids, di_state *state);

/* Evicts until `pages` of the pool are free. False when that cannot be reached, then nothing is evicted. */
bool di_prefix_make_room(di_prefix_cache *cache, uint32_t pages);

/* With a disk tier, what is published goes there too. NULL: none. */
void di_prefix_set_disk(di_prefix_cache *cache, di_disk *disk);
/* Restores a load that succeeded (snapshot at `position` of ids) into the fresh `state`, and in the end into the tree.
 * It takes about *bytes at a time, which it reduces by what it took, so that others need not wait long: call again
 * while it returns DI_ADOPT_MORE, with *blocks, which is UINT32_MAX at first. Until it is done the state's content
 * means nothing. DI_ADOPT_FAILED: wrong sizes or no pages; the state is then fresh again. */
typedef enum di_adopt { DI_ADOPT_FAILED, DI_ADOPT_MORE, DI_ADOPT_DONE } di_adopt;
di_adopt di_prefix_adopt(di_prefix_cache *cache, uint64_t salt, const int32_t *ids, uint32_t position,
                         const di_disk_load *load, di_state *state, uint32_t *blocks, uint64_t *bytes);

void di_prefix_clear(di_prefix_cache *cache);
const di_prefix_counters *di_prefix_get_counters(const di_prefix_cache *cache);

#endif
