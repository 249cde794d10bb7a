/* prefix.c - see prefix.h. */
#include "cache/prefix.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { OLDEST = 8, FIRST_BUCKETS = 1024, MOST_CHILDREN = 256 };

typedef struct snapshot snapshot;

typedef struct node {
    struct node *parent, *next_in_bucket;
    struct node *first_child, *next_sibling, *previous_sibling;
    uint64_t hash;              /* chain: XXH64(ids, parent's hash) */
    uint32_t references, depth; /* depth: blocks from the root, the node's own included; 0 = root */
    snapshot *snapshots;
    struct node *next_root; /* roots only */
    uint64_t salt;
    di_page *page;
    int32_t ids[]; /* [page_tokens] */
} node;

struct snapshot {
    node *at; /* node of the last complete block */
    snapshot *next_here, *newer, *older;
    uint32_t position; /* H */
    int32_t decoder_low;
    di_block *rolling;
    di_page *tail;      /* unfinished page, NULL when H is at a block border */
    int32_t tail_ids[]; /* [H mod page_tokens] */
};

struct di_prefix_cache {
    di_page_pool *pool;
    di_model *model;
    uint64_t budget, rolling_bytes, page_bytes;
    uint32_t page_tokens;
    node **buckets;
    size_t bucket_count;
    node *roots;
    snapshot *newest, *oldest;
    di_disk *disk;
    di_prefix_counters counters;
};

const char *di_miss_name(di_miss_reason reason) {
    static const char *const names[] = {"none", "empty", "diverged", "end", "snapshot", "disabled"};
    return names[reason];
}

static bool is_compact(const di_prefix_cache *c) {
    return strchr(di_model_profile(c->model), '+') != NULL;
}

/* ---------------------------------------------------------------- nodes */

static node *find_root(const di_prefix_cache *c, uint64_t salt) {
    node *root = c->roots;
    while (root && root->salt != salt) root = root->next_root;
    return root;
}

static uint64_t block_hash(const di_prefix_cache *c, const node *parent, const int32_t *ids) {
    return XXH64(ids, c->page_tokens * sizeof *ids, parent->hash);
}

static node *find_child(const di_prefix_cache *c, const node *parent, const int32_t *ids) {
    uint64_t hash = block_hash(c, parent, ids);
    node *n = c->buckets[hash % c->bucket_count];
    while (n && (n->hash != hash || n->parent != parent || memcmp(n->ids, ids, c->page_tokens * sizeof *ids) != 0))
        n = n->next_in_bucket;
    return n;
}

/* A larger table when the chains get long; keeping the old one when memory is short only costs time. */
static void grow_table(di_prefix_cache *c) {
    if (c->counters.nodes < c->bucket_count) return;
    size_t count = 2 * c->bucket_count;
    node **grown = calloc(count, sizeof *grown);
    if (!grown) return;
    for (size_t b = 0; b < c->bucket_count; b++) {
        while (c->buckets[b]) {
            node *n = c->buckets[b];
            c->buckets[b] = n->next_in_bucket;
            n->next_in_bucket = grown[n->hash % count];
            grown[n->hash % count] = n;
        }
    }
    free(c->buckets);
    c->buckets = grown;
    c->bucket_count = count;
}

static node *new_root(di_prefix_cache *c, uint64_t salt) {
    node *root = calloc(1, sizeof *root);
    if (!root) return NULL;
    root->salt = salt;
    root->hash = XXH64(&salt, sizeof salt, 0);
    root->next_root = c->roots;
    c->roots = root;
    return root;
}

static node *new_child(di_prefix_cache *c, node *parent, const int32_t *ids, di_page *page) {
    node *n = calloc(1, sizeof *n + c->page_tokens * sizeof *ids);
    if (!n) return NULL;
    n->parent = parent;
    n->hash = block_hash(c, parent, ids);
    n->depth = parent->depth + 1;
    n->salt = parent->salt;
    memcpy(n->ids, ids, c->page_tokens * sizeof *ids);
    n->page = page;
    di_page_share(page);
    di_page_set_cached(page, true);
    parent->references++;
    n->next_sibling = parent->first_child;
    if (parent->first_child) parent->first_child->previous_sibling = n;
    parent->first_child = n;
    grow_table(c);
    n->next_in_bucket = c->buckets[n->hash % c->bucket_count];
    c->buckets[n->hash % c->bucket_count] = n;
    c->counters.nodes++;
    c->counters.pages++;
    c->counters.bytes += c->page_bytes;
    return n;
}

static void free_root(di_prefix_cache *c, node *root) {
    for (node **link = &c->roots; *link; link = &(*link)->next_root) {
        if (*link != root) continue;
        *link = root->next_root;
        break;
    }
    free(root);
}

static void give_back(di_prefix_cache *c, di_page *page) {
    if (!page) return;
    di_page_set_cached(page, false);
    di_page_release(c->pool, page);
    c->counters.pages--;
}

/* Frees nodes from `n` upwards that nothing refers to. */
static void drop_unused(di_prefix_cache *c, node *n) {
    while (n && n->references == 0) {
        node *parent = n->parent;
        if (!parent) {
            free_root(c, n);
            return;
        }
        node **link = &c->buckets[n->hash % c->bucket_count];
        while (*link != n) link = &(*link)->next_in_bucket;
        *link = n->next_in_bucket;
        if (n->next_sibling) n->next_sibling->previous_sibling = n->previous_sibling;
        if (n->previous_sibling)
            n->previous_sibling->next_sibling = n->next_sibling;
        else
            parent->first_child = n->next_sibling;
        give_back(c, n->page);
        c->counters.nodes--;
        c->counters.bytes -= c->page_bytes;
        parent->references--;
        free(n);
        n = parent;
    }
}

/* ---------------------------------------------------------------- snapshots */

static uint64_t snapshot_bytes(const di_prefix_cache *c, const snapshot *s) {
    return c->rolling_bytes + (s->tail ? c->page_bytes : 0);
}

/* What points to the snapshot in the list of ages. */
static snapshot **place_of(di_prefix_cache *c, const snapshot *s) {
    return s->older ? &s->older->newer : &c->oldest;
}

static void unlink_age(di_prefix_cache *c, snapshot **place) {
    snapshot *s = *place;
    *place = s->newer;
    if (s->newer)
        s->newer->older = s->older;
    else
        c->newest = s->older;
}

static void link_newest(di_prefix_cache *c, snapshot *s) {
    s->newer = NULL;
    s->older = c->newest;
    if (c->newest) c->newest->newer = s;
    c->newest = s;
    if (!c->oldest) c->oldest = s;
}

static void evict(di_prefix_cache *c, snapshot **place) {
    snapshot *s = *place;
    unlink_age(c, place);
    for (snapshot **link = &s->at->snapshots; *link; link = &(*link)->next_here) {
        if (*link != s) continue;
        *link = s->next_here;
        break;
    }
    di_backend *backend = di_model_backend(c->model);
    c->counters.bytes -= snapshot_bytes(c, s);
    c->counters.snapshots--;
    c->counters.snapshots_evicted++;
    backend->ops->release(backend, s->rolling);
    give_back(c, s->tail);
    s->at->references--;
    drop_unused(c, s->at);
    free(s);
}

/* Tokens that would have to be computed again without this snapshot: the way to the nearest earlier one on its path. */
static uint32_t tokens_saved(const snapshot *s) {
    uint32_t nearest = 0;
    for (const node *n = s->at; n; n = n->parent) {
        for (const snapshot *other = n->snapshots; other; other = other->next_here)
            if (other->position < s->position && other->position > nearest) nearest = other->position;
        if (nearest) break;
    }
    return s->position - nearest;
}

/* Bytes that evicting this snapshot gives back: its own, and those of nodes that only it keeps. */
static uint64_t bytes_freed(const di_prefix_cache *c, const snapshot *s) {
    uint64_t bytes = snapshot_bytes(c, s);
    for (const node *n = s->at; n && n->parent && n->references == 1; n = n->parent) bytes += c->page_bytes;
    return bytes;
}

/* Whether evicting it gives a page back to the pool: pages of its path may be shared with running sequences, or needed
 * by other snapshots. */
static bool frees_page(const snapshot *s) {
    if (s->tail) return true;
    bool frees = false;
    for (const node *n = s->at; n && n->parent && n->references == 1 && !frees; n = n->parent)
        frees = n->page->references == 1;
    return frees;
}

/* for_pages: only what gives pages back. */
static bool evict_one(di_prefix_cache *c, bool for_pages) {
    snapshot **worst = NULL;
    uint64_t worst_saved = 0, worst_freed = 0;
    int looked_at = 0;
    for (snapshot **s = &c->oldest; *s && looked_at < OLDEST; s = &(*s)->newer) {
        if (for_pages && !frees_page(*s)) continue;
        looked_at++;
        uint64_t saved = tokens_saved(*s), freed = bytes_freed(c, *s);
        if (!worst || saved * worst_freed < worst_saved * freed) { /* saved / freed is less */
            worst = s;
            worst_saved = saved;
            worst_freed = freed;
        }
    }
    if (!worst) return false;
    evict(c, worst);
    return true;
}

/* ---------------------------------------------------------------- lookup */

/* Longest common beginning of two id lists. */
static uint32_t common(const int32_t *a, const int32_t *b, uint32_t count) {
    uint32_t n = 0;
    while (n < count && a[n] == b[n]) n++;
    return n;
}

/* Ids beyond the last matching block: how far any child or tail goes the same way, and whether one goes on differently.
 */
static void look_beyond(const di_prefix_cache *c, const node *last, const int32_t *ids, uint32_t count,
                        di_prefix_hit *hit) {
    uint32_t from = last->depth * c->page_tokens, best = 0, rest = count - from;
    bool differs = false;
    int looked_at = 0; /* a branch point is only advice: popular beginnings have too many continuations to compare */
    for (const node *n = last->first_child; n && looked_at++ < MOST_CHILDREN; n = n->next_sibling) {
        uint32_t compared = rest < c->page_tokens ? rest : c->page_tokens, same = common(n->ids, ids + from, compared);
        if (same > best) best = same;
        differs |= same < compared;
    }
    for (const snapshot *s = last->snapshots; s; s = s->next_here) {
        uint32_t tail = s->position - from, compared = rest < tail ? rest : tail;
        uint32_t same = common(s->tail_ids, ids + from, compared);
        if (same > best) best = same;
        differs |= same < compared;
    }
    hit->known = from + best;
    hit->diverged_at = hit->known;
    if (hit->known == count)
        hit->reason = DI_MISS_SNAPSHOT;
    else if (differs)
        hit->reason = DI_MISS_DIVERGED;
    else
        hit->reason = hit->known ? DI_MISS_END : DI_MISS_EMPTY;
}

static snapshot *best_snapshot(const di_prefix_cache *c, const node *n, const int32_t *ids, uint32_t limit) {
    snapshot *best = NULL;
    uint32_t from = n->depth * c->page_tokens;
    for (snapshot *s = n->snapshots; s; s = s->next_here) {
        uint32_t tail = s->position - from;
        if (s->position > limit || (best && s->position <= best->position)) continue;
        if (memcmp(s->tail_ids, ids + from, tail * sizeof *ids) == 0) best = s;
    }
    return best;
}

void di_prefix_lookup(di_prefix_cache *c, uint64_t salt, const int32_t *ids, uint32_t count, di_state *state,
                      di_prefix_hit *hit) {
    *hit = (di_prefix_hit){.reason = DI_MISS_EMPTY};
    c->counters.lookups++;
    node *n = find_root(c, salt);
    if (!n || !count) return;
    snapshot *best = NULL;
    node *last = n;
    for (; n; n = (n->depth + 1) * c->page_tokens <= count ? find_child(c, n, ids + n->depth * c->page_tokens) : NULL) {
        snapshot *here = best_snapshot(c, n, ids, count - 1);
        if (here) best = here;
        last = n;
    }
    look_beyond(c, last, ids, count, hit);
    if (!best) return;
    if (!di_state_resume(state, best->position, best->decoder_low, (di_buffer){best->rolling, 0}, best->tail)) return;
    uint32_t index = best->at->depth;
    for (const node *up = best->at; up->parent; up = up->parent) di_state_share_page(state, --index, up->page);
    unlink_age(c, place_of(c, best));
    link_newest(c, best);
    hit->cached = best->position;
    if (best->position == count - 1) hit->reason = DI_MISS_NONE;
    c->counters.hits++;
    c->counters.hit_tokens += best->position;
}

/* ---------------------------------------------------------------- publishing */

static bool fits(di_prefix_cache *c, uint64_t more) {
    if (more > c->budget) return false;
    while (c->counters.bytes + more > c->budget)
        if (!evict_one(c, false)) return false;
    return true;
}

/* The node of the state's last complete block, made as needed. It holds one extra reference for the caller. */
static node *insert_blocks(di_prefix_cache *c, uint64_t salt, const int32_t *ids, uint32_t blocks, di_state *state) {
    node *n = find_root(c, salt);
    if (!n) n = new_root(c, salt);
    if (!n) return NULL;
    n->references++;
    for (uint32_t b = 0; b < blocks; b++) {
        const int32_t *block = ids + (size_t)b * c->page_tokens;
        node *child = find_child(c, n, block);
        if (!child && fits(c, c->page_bytes)) child = new_child(c, n, block, di_state_page(state, b));
        if (child) child->references++;
        n->references--;
        if (!child) {
            drop_unused(c, n);
            return NULL;
        }
        n = child;
    }
    return n;
}

static bool fill_snapshot(di_prefix_cache *c, snapshot *s, const int32_t *ids, di_state *state) {
    uint32_t tail = s->position % c->page_tokens;
    di_backend *backend = di_model_backend(c->model);
    memcpy(s->tail_ids, ids + (s->position - tail), tail * sizeof *ids);
    if (backend->ops->allocate(backend, c->rolling_bytes, &s->rolling, NULL)) return false;
    if (tail && !(s->tail = di_page_copy(c->pool, di_state_page(state, s->position / c->page_tokens)))) return false;
    if (s->tail) {
        di_page_set_cached(s->tail, true);
        c->counters.pages++;
    }
    const di_state_view *view = di_state_get_view(state);
    di_copy_args copy = {.from = view->rolling, .to = {s->rolling, 0}, .bytes = c->rolling_bytes, .count = 1};
    backend->ops->copy(backend, &copy);
    /* Compact: decoder windows never enter; nothing below H may be read in the decoder half. */
    s->decoder_low = is_compact(c) ? (int32_t)s->position : view->decoder_low;
    return true;
}

static void publish_in_memory(di_prefix_cache *c, uint64_t salt, const int32_t *ids, di_state *state) {
    uint32_t position = (uint32_t)di_state_length(state), tail = position % c->page_tokens;
    uint64_t need = c->rolling_bytes + (tail ? c->page_bytes : 0);
    if (!position || need > c->budget) return;
    node *at = insert_blocks(c, salt, ids, position / c->page_tokens, state);
    if (!at) return;
    snapshot *known = best_snapshot(c, at, ids, position);
    snapshot *s = NULL;
    if (known && known->position == position) {
        unlink_age(c, place_of(c, known));
        link_newest(c, known);
    } else if (fits(c, need) && (s = calloc(1, sizeof *s + tail * sizeof *ids))) {
        s->at = at;
        s->position = position;
        if (fill_snapshot(c, s, ids, state)) {
            s->next_here = at->snapshots;
            at->snapshots = s;
            at->references++;
            link_newest(c, s);
            c->counters.bytes += snapshot_bytes(c, s);
            c->counters.snapshots++;
            c->counters.snapshots_made++;
        } else {
            di_backend *backend = di_model_backend(c->model);
            backend->ops->release(backend, s->rolling);
            free(s);
        }
    }
    at->references--;
    drop_unused(c, at);
}

/* ---------------------------------------------------------------- the disk tier */

typedef struct source {
    const di_state *state;
    int32_t decoder_low;
} source;

static void write_part(void *arg, uint32_t block, di_text *out) {
    const source *s = arg;
    if (block == DI_DISK_REST)
        di_state_write_rest(s->state, s->decoder_low, out);
    else
        di_state_write_block(s->state, block, out);
}

static void publish_on_disk(di_prefix_cache *c, uint64_t salt, const int32_t *ids, di_state *state) {
    uint32_t position = (uint32_t)di_state_length(state);
    /* As in memory: decoder windows of compact mode stay out. */
    source from = {state, is_compact(c) ? (int32_t)position : di_state_get_view(state)->decoder_low};
    di_disk_save(c->disk, salt, ids, position, from.decoder_low, write_part, &from);
}

void di_prefix_publish(di_prefix_cache *c, uint64_t salt, const int32_t *ids, di_state *state) {
    if (!di_state_length(state)) return;
    publish_in_memory(c, salt, ids, state);
    if (c->disk) publish_on_disk(c, salt, ids, state);
}

void di_prefix_set_disk(di_prefix_cache *c, di_disk *disk) {
    c->disk = disk;
}

static bool adopt_snapshot(di_prefix_cache *c, uint32_t position, const di_disk_load *load, di_state *state,
                           uint64_t *bytes) {
    size_t length;
    int32_t low;
    const char *rest = di_disk_load_snapshot(load, &length, &low);
    *bytes -= length < *bytes ? length : *bytes;
    return low >= 0 && (uint32_t)low <= position && di_prefix_make_room(c, position / c->page_tokens + 2) &&
           di_state_begin(state, position, low, NULL) == DI_OK && di_state_read_rest(state, rest, length);
}

di_adopt di_prefix_adopt(di_prefix_cache *c, uint64_t salt, const int32_t *ids, uint32_t position,
                         const di_disk_load *load, di_state *state, uint32_t *blocks, uint64_t *bytes) {
    uint32_t complete = position / c->page_tokens;
    bool ok = true;
    if (*blocks == UINT32_MAX) {
        ok = adopt_snapshot(c, position, load, state, bytes);
        *blocks = 0;
    }
    while (ok && *blocks < complete && *bytes) {
        size_t length;
        const char *block = di_disk_load_block(load, *blocks, &length);
        ok = di_state_read_block(state, *blocks, block, length);
        *bytes -= length < *bytes ? length : *bytes;
        ++*blocks;
    }
    if (!ok) {
        di_state_reset(state);
        return DI_ADOPT_FAILED;
    }
    if (*blocks < complete) return DI_ADOPT_MORE;
    publish_in_memory(c, salt, ids, state);
    return DI_ADOPT_DONE;
}

/* ---------------------------------------------------------------- room and life */

bool di_prefix_make_room(di_prefix_cache *c, uint32_t pages) {
    uint32_t limit = di_page_pool_limit(c->pool);
    if ((uint64_t)limit - di_page_pool_used(c->pool) + di_page_pool_spare(c->pool) < pages) return false;
    while (limit - di_page_pool_used(c->pool) < pages)
        if (!evict_one(c, true) && !evict_one(c, false)) return false;
    return true;
}

void di_prefix_clear(di_prefix_cache *c) {
    while (evict_one(c, false)) {
    }
}

di_status di_prefix_cache_new(di_page_pool *pool, uint64_t bytes, di_prefix_cache **cache, di_error *error) {
    *cache = NULL;
    di_prefix_cache *c = calloc(1, sizeof *c);
    node **buckets = calloc(FIRST_BUCKETS, sizeof(node *));
    if (!c || !buckets) {
        free(c);
        free(buckets);
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot make the prefix cache");
    }
    c->pool = pool;
    c->model = di_page_pool_model(pool);
    const di_state_layout *layout = di_model_layout(c->model);
    c->budget = bytes;
    c->rolling_bytes = layout->rolling_bytes;
    c->page_bytes = layout->page_bytes;
    c->page_tokens = layout->page_tokens;
    c->buckets = buckets;
    c->bucket_count = FIRST_BUCKETS;
    *cache = c;
    return DI_OK;
}

void di_prefix_cache_free(di_prefix_cache *c) {
    if (!c) return;
    di_prefix_clear(c);
    while (c->roots) free_root(c, c->roots);
    free(c->buckets);
    free(c);
}

const di_prefix_counters *di_prefix_get_counters(const di_prefix_cache *c) {
    return &c->counters;
}
