/* state.h - what one sequence remembers: pages and rolling block after the model's state layout, and its one
 * serialised form.
 *
 * Serialised form: independent of ring capacity, page size, threads and instruction set.
 *   header 144 bytes
 *     0 "DISTATE1" | 8 u32 version | 12 u32 part count | 16 u64 committed | 24 u64 decoder_low | 32 u64 model digest
 *     | 40 profile [64] | 104 u64 body bytes | 112 u64 XXH64 of bytes 0..111 and the body | 120 zero [24]
 *   body: parts in layout order, each u64 bytes | payload
 *     paged  floor(H / tokens_per_entry) entries, ascending
 *     ring   `slots` entries for positions H - slots .. H-1; positions below max(0, low) are zero
 *     open   `slots` entries, H mod tokens_per_entry of them valid, the rest zero
 *   Optional parts come last. A state takes an object without them (they are missing then) or with others than its own
 *   (which are passed over), so that states move between engines with and without a draft head.
 * All little-endian. Owner: the sequence. Engine thread only.
 */
#ifndef DI_CACHE_STATE_H
#define DI_CACHE_STATE_H

#include "base/text.h"
#include "cache/pages.h"
#include "model/model.h"

typedef struct di_state di_state;

/* A fresh sequence for up to max_tokens positions; pages are taken from the pool as it grows. */
di_status di_state_new(di_page_pool *pool, uint32_t max_tokens, di_state **state, di_error *error);
void di_state_free(di_state *state);
/* Back to position 0: gives its pages back. */
void di_state_reset(di_state *state);

/* Makes room for positions up to `tokens`: DI_ERR_CONTEXT_LENGTH above max_tokens, DI_ERR_LIMIT when the pool is
 * exhausted (pages taken so far stay). */
di_status di_state_reserve(di_state *state, uint32_t tokens, di_error *error);
/* Pages that reserving would still have to take. */
uint32_t di_state_pages_missing(const di_state *state, uint32_t tokens);
/* Its pages, those that it shares with others but the prefix cache in part: what would go if all of them went. */
double di_state_pages_owned(const di_state *state);
/* The view to put into a di_step_entry, and to give to di_model_commit. */
di_state_view *di_state_get_view(di_state *state);
int32_t di_state_length(const di_state *state); /* committed positions */

/* Sharing, for the prefix cache and for samples of one prompt. A fresh state becomes a sequence of `position` committed
 * positions: the rolling block is copied, so is the unfinished page `tail` (NULL when position is a page border).
 * Complete pages 0 .. position / page_tokens - 1 must be handed in with di_state_share_page afterwards. False when the
 * pool has no page for the copy. */
bool di_state_resume(di_state *state, uint32_t position, int32_t decoder_low, di_buffer rolling, const di_page *tail);
void di_state_share_page(di_state *state, uint32_t index, di_page *page);
di_page *di_state_page(di_state *state, uint32_t index); /* borrowed */
/* Makes the fresh state `to` a copy of `from` that shares its complete pages. */
di_status di_state_fork(di_state *from, di_state *to, di_error *error);

/* The serialised form in pieces, for the disk tier: one complete page (every paged part's entries), and the rest at
 * position H (ring and open parts, the paged entries of the unfinished page, then optional parts as above).
 * decoder_low: what the decoder rings hold; H for none. Reading needs the state's length set by di_state_begin and
 * checks sizes; false if they differ. */
void di_state_write_block(const di_state *state, uint32_t index, di_text *out);
void di_state_write_rest(const di_state *state, int32_t decoder_low, di_text *out);
/* A fresh state becomes one of `position` positions with pages of its own, contents still to be read. */
di_status di_state_begin(di_state *state, uint32_t position, int32_t decoder_low, di_error *error);
bool di_state_read_block(di_state *state, uint32_t index, const char *bytes, size_t length);
bool di_state_read_rest(di_state *state, const char *bytes, size_t length);

/* Names the layout: equal for two models only if the required parts of their serialised states mean the same. */
uint64_t di_state_layout_id(const di_model *model);

/* Bytes of the serialised form at this position, optional parts included. */
uint64_t di_state_serialised_bytes(const di_model *model, uint32_t position);
di_status di_state_serialise(const di_state *state, di_text *out, di_error *error);
/* Refuses another profile, another model, wrong sizes or checksums. The state's previous content is lost. */
di_status di_state_restore(di_state *state, const char *bytes, size_t length, di_error *error);

#endif
