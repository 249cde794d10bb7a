/* needs: cache model backend_cpu tokenizer checkpoint tensor base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#include "cache/prefix.h"
#include "support/harness.h"
#include "support/slow.h"

#define NANO DI_TEST_DATA "/nano"

enum { TEXT = 1024, MOST = 400 };
static int32_t text_ids[TEXT], other_ids[TEXT];

static di_harness *harness(void) {
    di_harness_options options = {.kernels = di_harness_best_kernels(), .max_rows = 256};
    return di_harness_open(NANO, &options);
}

static di_prefix_cache *cache_on(di_page_pool *pool, uint64_t bytes) {
    di_prefix_cache *cache = NULL;
    di_error error = {0};
    if (di_prefix_cache_new(pool, bytes, &cache, &error) != DI_OK) fail_msg("%s", error.message);
    return cache;
}

static di_state *fresh(di_page_pool *pool) {
    di_state *state = NULL;
    di_error error = {0};
    if (di_state_new(pool, MOST, &state, &error) != DI_OK) fail_msg("%s", error.message);
    return state;
}

/* A state of the first `count` ids. */
static di_state *computed(di_harness *h, di_page_pool *pool, const int32_t *ids, uint32_t count) {
    di_state *state = fresh(pool);
    di_harness_feed(h, state, ids, count, 0, false, NULL);
    return state;
}

static void publish(di_harness *h, di_page_pool *pool, di_prefix_cache *cache, uint64_t salt, const int32_t *ids,
                    uint32_t count) {
    di_state *state = computed(h, pool, ids, count);
    di_prefix_publish(cache, salt, ids, state);
    di_state_free(state);
}

static di_prefix_hit look(di_page_pool *pool, di_prefix_cache *cache, uint64_t salt, const int32_t *ids, uint32_t count,
                          uint64_t *hash) {
    di_state *state = fresh(pool);
    di_prefix_hit hit;
    di_prefix_lookup(cache, salt, ids, count, state, &hit);
    assert_int_equal(di_state_length(state), hit.cached);
    if (hash) *hash = hit.cached ? di_harness_state_hash(state) : 0;
    di_state_free(state);
    return hit;
}

static uint64_t hash_of(di_harness *h, const int32_t *ids, uint32_t count) {
    di_state *state = computed(h, h->pages, ids, count);
    uint64_t hash = di_harness_state_hash(state);
    di_state_free(state);
    return hash;
}

/* The first `shared` ids of the text, then those of the other one. */
static const int32_t *branch(uint32_t shared) {
    static int32_t ids[TEXT];
    memcpy(ids, text_ids, shared * sizeof *ids);
    memcpy(ids + shared, other_ids + shared, (TEXT - shared) * sizeof *ids);
    return ids;
}

/* ---------------------------------------------------------------- what is found */

static void any_position_is_found_again(void **state) {
    (void)state;
    di_harness *h = harness();
    static const uint32_t lengths[] = {1, 2, 7, 63, 64, 65, 127, 128, 129, 200, 257};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        di_prefix_cache *cache = cache_on(h->pages, 1 << 28);
        uint32_t at = lengths[i];
        uint64_t hash, expected = hash_of(h, text_ids, at);
        publish(h, h->pages, cache, 1, text_ids, at);
        assert_int_equal(look(h->pages, cache, 1, text_ids, at, NULL).cached, 0); /* one id is left to compute */
        assert_int_equal(look(h->pages, cache, 1, text_ids, at + 1, &hash).cached, at);
        assert_true(hash == expected);
        assert_int_equal(look(h->pages, cache, 1, text_ids, 390, &hash).cached, at);
        assert_true(hash == expected);
        assert_int_equal(look(h->pages, cache, 1, branch(at), 390, &hash).cached, at);
        assert_true(hash == expected);
        assert_int_equal(look(h->pages, cache, 1, branch(at - 1), 390, NULL).cached, 0);
        assert_int_equal(look(h->pages, cache, 2, text_ids, 390, NULL).cached, 0); /* another namespace */
        di_prefix_cache_free(cache);
        assert_int_equal(di_page_pool_used(h->pages), 0);
    }
    di_harness_close(h);
}

static void a_miss_says_where_and_why(void **state) {
    (void)state;
    di_harness *h = harness();
    di_prefix_cache *cache = cache_on(h->pages, 1 << 28);
    di_prefix_hit hit = look(h->pages, cache, 1, text_ids, 300, NULL);
    assert_int_equal(hit.reason, DI_MISS_EMPTY);
    assert_int_equal(hit.known, 0);
    publish(h, h->pages, cache, 1, text_ids, 150);
    static const struct {
        uint32_t shared, count, cached, known;
        di_miss_reason reason;
    } cases[] = {
        {300, 151, 150, 150, DI_MISS_NONE},   {300, 300, 150, 150, DI_MISS_END},
        {300, 150, 0, 150, DI_MISS_SNAPSHOT}, {300, 100, 0, 100, DI_MISS_SNAPSHOT},
        {140, 300, 0, 140, DI_MISS_DIVERGED}, {128, 300, 0, 128, DI_MISS_DIVERGED},
        {127, 300, 0, 127, DI_MISS_DIVERGED}, {1, 300, 0, 1, DI_MISS_DIVERGED},
        {0, 300, 0, 0, DI_MISS_DIVERGED},     {300, 64, 0, 64, DI_MISS_SNAPSHOT},
        {150, 300, 150, 150, DI_MISS_END},    {149, 300, 0, 149, DI_MISS_DIVERGED},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hit = look(h->pages, cache, 1, branch(cases[i].shared), cases[i].count, NULL);
        if (hit.cached != cases[i].cached || hit.known != cases[i].known || hit.reason != cases[i].reason)
            fail_msg("case %zu: cached %u, known %u, %s", i, hit.cached, hit.known, di_miss_name(hit.reason));
        if (hit.known < cases[i].count) assert_int_equal(hit.diverged_at, hit.known);
    }
    /* The branch point that was reported, published: the next one that branches there finds it. */
    publish(h, h->pages, cache, 1, branch(140), 140);
    assert_int_equal(look(h->pages, cache, 1, branch(140), 300, NULL).cached, 140);
    assert_int_equal(look(h->pages, cache, 1, text_ids, 300, NULL).cached, 150);
    di_prefix_cache_free(cache);
    di_harness_close(h);
}

/* Multiplicative inverse modulo 2^64 of an odd number. */
static uint64_t inverse(uint64_t odd) {
    uint64_t x = odd;
    for (int i = 0; i < 6; i++) x *= 2 - odd * x;
    return x;
}

static uint64_t lane(uint64_t sum, uint64_t input) {
    sum += input * 0xC2B2AE3D27D4EB4Fu;
    return (sum << 31 | sum >> 33) * 0x9E3779B185EBCA87u;
}

/* Another block with the same XXH64: the first eight bytes changed, and the next eight of their lane so that the lane
 * comes out the same. */
static void collide(const int32_t *block, int32_t *other, uint32_t count, uint64_t seed) {
    memcpy(other, block, count * sizeof *other);
    uint64_t first, second, changed = 0x1234500006789u;
    memcpy(&first, block, 8);
    memcpy(&second, block + 8, 8);
    uint64_t start = seed + 0x9E3779B185EBCA87u + 0xC2B2AE3D27D4EB4Fu;
    second += (lane(start, first) - lane(start, changed)) * inverse(0xC2B2AE3D27D4EB4Fu);
    memcpy(other, &changed, 8);
    memcpy(other + 8, &second, 8);
}

static void a_hash_collision_serves_nothing_wrong(void **state) {
    (void)state;
    di_harness *h = harness();
    di_prefix_cache *cache = cache_on(h->pages, 1 << 28);
    uint32_t page = di_model_layout(h->model)->page_tokens, count = 2 * page + 9;
    uint64_t salt = 77, root = XXH64(&salt, sizeof salt, 0), hash;
    int32_t twin[MOST];
    memcpy(twin, text_ids, sizeof twin);
    collide(text_ids, twin, page, root);
    assert_memory_not_equal(twin, text_ids, page * sizeof *twin);
    assert_true(XXH64(twin, page * sizeof *twin, root) == XXH64(text_ids, page * sizeof *twin, root));
    publish(h, h->pages, cache, salt, text_ids, count);
    di_prefix_hit hit = look(h->pages, cache, salt, twin, count + 1, NULL);
    assert_int_equal(hit.cached, 0);
    assert_int_equal(hit.known, 0);
    assert_int_equal(hit.reason, DI_MISS_DIVERGED);
    /* Both beside each other: the states differ (these are of other ids), each is found by its own. */
    di_state *others = computed(h, h->pages, other_ids, count);
    di_prefix_publish(cache, salt, twin, others);
    uint64_t wanted = di_harness_state_hash(others);
    di_state_free(others);
    assert_int_equal(look(h->pages, cache, salt, twin, count + 1, &hash).cached, count);
    assert_true(hash == wanted);
    assert_int_equal(look(h->pages, cache, salt, text_ids, count + 1, &hash).cached, count);
    assert_true(hash == hash_of(h, text_ids, count));
    assert_int_equal(di_prefix_get_counters(cache)->nodes, 4);
    di_prefix_cache_free(cache);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- sharing */

static void shared_pages_are_never_written(void **state) {
    (void)state;
    di_harness *h = harness();
    di_prefix_cache *cache = cache_on(h->pages, 1 << 28);
    uint32_t page = di_model_layout(h->model)->page_tokens;
    static const uint32_t positions[] = {128, 129, 191, 192, 193};
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        uint32_t at = positions[i], complete = at / page;
        di_state *writer = computed(h, h->pages, text_ids, at), *reader = fresh(h->pages), *second = fresh(h->pages);
        di_prefix_publish(cache, 1, text_ids, writer);
        di_prefix_hit hit;
        di_prefix_lookup(cache, 1, text_ids, at + 1, reader, &hit);
        assert_int_equal(hit.cached, at);
        uint64_t hashes[8], before = di_harness_state_hash(reader);
        for (uint32_t p = 0; p < complete; p++) {
            assert_true(di_state_page(reader, p)->references >= 2);
            hashes[p] = di_harness_page_hash(h, di_state_page(reader, p));
        }
        /* The publisher and the reader both go on from here, each in its own way. */
        di_harness_feed(h, writer, other_ids, 100, 0, false, NULL);
        di_harness_feed(h, reader, other_ids + 300, 100, 33, false, NULL);
        for (uint32_t p = 0; p < complete; p++)
            assert_true(di_harness_page_hash(h, di_state_page(reader, p)) == hashes[p]);
        di_prefix_lookup(cache, 1, text_ids, at + 1, second, &hit);
        assert_int_equal(hit.cached, at);
        assert_true(di_harness_state_hash(second) == before);
        /* The cache lets go while they run: their pages stay. */
        uint64_t hash = di_harness_state_hash(reader);
        di_prefix_clear(cache);
        assert_true(di_harness_state_hash(reader) == hash);
        di_state_free(writer);
        di_state_free(reader);
        di_state_free(second);
        assert_int_equal(di_page_pool_used(h->pages), 0);
        assert_int_equal(di_page_pool_spare(h->pages), 0);
    }
    di_prefix_cache_free(cache);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- budget and eviction */

static void the_budget_holds_and_the_oldest_go(void **state) {
    (void)state;
    di_harness *h = harness();
    const di_state_layout *layout = di_model_layout(h->model);
    uint64_t each = layout->rolling_bytes + 2 * layout->page_bytes; /* one node, one unfinished page */
    di_prefix_cache *cache = cache_on(h->pages, 10 * each + 100);
    const di_prefix_counters *counters = di_prefix_get_counters(cache);
    int32_t ids[30][MOST];
    for (int i = 0; i < 30; i++) {
        memcpy(ids[i], text_ids, sizeof ids[i]);
        ids[i][0] = 3 + i;
        publish(h, h->pages, cache, 1, ids[i], layout->page_tokens + 20);
        assert_true(counters->bytes <= 10 * each + 100);
        assert_int_equal(counters->snapshots, i < 10 ? i + 1 : 10);
        assert_int_equal(counters->nodes, counters->snapshots);
        assert_int_equal(counters->pages, 2 * counters->snapshots);
        assert_int_equal(di_page_pool_used(h->pages), counters->pages);
        /* The first one is asked for again and again, so it stays. */
        assert_int_equal(look(h->pages, cache, 1, ids[0], 300, NULL).cached, layout->page_tokens + 20);
    }
    assert_int_equal(counters->snapshots_evicted, 20);
    /* All score the same: the oldest went first. */
    for (int i = 1; i < 21; i++) assert_int_equal(look(h->pages, cache, 1, ids[i], 300, NULL).cached, 0);
    for (int i = 21; i < 30; i++) assert_int_not_equal(look(h->pages, cache, 1, ids[i], 300, NULL).cached, 0);
    /* What is known already evicts nothing. */
    uint64_t evicted = counters->snapshots_evicted;
    for (int i = 21; i < 30; i++) publish(h, h->pages, cache, 1, ids[i], layout->page_tokens + 20);
    assert_int_equal(counters->snapshots_evicted, evicted);
    di_prefix_clear(cache);
    assert_int_equal(counters->bytes, 0);
    assert_int_equal(counters->nodes + counters->snapshots + counters->pages, 0);
    di_prefix_cache_free(cache);

    /* Too small for one, and none at all. */
    static const uint64_t budgets[] = {0, 1, 5000};
    for (int i = 0; i < 3; i++) {
        cache = cache_on(h->pages, budgets[i]);
        publish(h, h->pages, cache, 1, text_ids, 100);
        assert_int_equal(di_prefix_get_counters(cache)->bytes, 0);
        assert_int_equal(look(h->pages, cache, 1, text_ids, 200, NULL).cached, 0);
        di_prefix_cache_free(cache);
    }
    assert_int_equal(di_page_pool_used(h->pages), 0);
    di_harness_close(h);
}

/* Of old snapshots the one goes that saves the fewest tokens for its bytes: not the long way, but the step beside it.
 */
static void the_least_useful_of_the_oldest_goes(void **state) {
    (void)state;
    di_harness *h = harness();
    const di_state_layout *layout = di_model_layout(h->model);
    di_prefix_cache *cache = cache_on(h->pages, 4 * layout->rolling_bytes + 5 * layout->page_bytes);
    publish(h, h->pages, cache, 1, text_ids, 192); /* the oldest, worth 192 tokens */
    publish(h, h->pages, cache, 1, text_ids, 200); /* worth 8 more */
    publish(h, h->pages, cache, 1, other_ids, 64);
    publish(h, h->pages, cache, 2, other_ids, 64);
    assert_int_equal(look(h->pages, cache, 1, text_ids, 300, NULL).cached, 192);
    assert_int_equal(look(h->pages, cache, 1, other_ids, 300, NULL).cached, 64);
    assert_int_equal(look(h->pages, cache, 2, other_ids, 300, NULL).cached, 64);
    di_prefix_cache_free(cache);
    di_harness_close(h);
}

/* For pages the cache gives up what gives pages back; what running sequences share is no help, so it stays. */
static void room_is_made_only_by_what_gives_pages_back(void **state) {
    (void)state;
    di_harness *h = harness();
    di_page_pool *pool = NULL;
    enum { LIMIT = 12 };
    assert_int_equal(di_page_pool_new(h->model, LIMIT, &pool, NULL), DI_OK);
    di_prefix_cache *cache = cache_on(pool, 1 << 28);
    di_state *running = computed(h, pool, text_ids, 128); /* two pages, shared with the tree */
    di_prefix_publish(cache, 1, text_ids, running);
    publish(h, pool, cache, 1, other_ids, 3 * 64);
    publish(h, pool, cache, 2, text_ids, 64 + 1); /* a node and an unfinished page */
    assert_int_equal(di_page_pool_used(pool), 2 + 3 + 2);
    assert_int_equal(di_page_pool_spare(pool), 5);
    assert_true(di_prefix_make_room(cache, 5));
    assert_int_equal(di_prefix_get_counters(cache)->snapshots, 3); /* there was room */
    assert_false(di_prefix_make_room(cache, 11));
    assert_int_equal(di_prefix_get_counters(cache)->snapshots, 3); /* out of reach: nothing is thrown away for it */
    assert_true(di_prefix_make_room(cache, 10));
    assert_int_equal(di_prefix_get_counters(cache)->snapshots, 1);
    assert_int_equal(look(pool, cache, 1, text_ids, 300, NULL).cached, 128); /* what is in use is still known */
    di_state_free(running);
    assert_int_equal(di_page_pool_spare(pool), 2);
    assert_true(di_prefix_make_room(cache, LIMIT));
    assert_int_equal(di_page_pool_used(pool), 0);
    assert_false(di_prefix_make_room(cache, LIMIT + 1));
    di_prefix_cache_free(cache);
    di_page_pool_free(pool);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- against a simple model */

typedef struct entry {
    uint64_t salt;
    uint32_t shared, position;
} entry;

static uint32_t roll(uint32_t below) {
    static uint64_t state = 99;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((state >> 33) % below);
}

static uint32_t common(const int32_t *a, const int32_t *b, uint32_t count) {
    uint32_t n = 0;
    while (n < count && a[n] == b[n]) n++;
    return n;
}

/* Random texts that branch off each other; nothing is evicted, so what is found is what a list would find. */
static void finds_what_a_list_would_find(void **state) {
    (void)state;
    di_harness *h = harness();
    enum { ENTRIES = DI_TEST_SLOW ? 16 : 40, LOOKUPS = DI_TEST_SLOW ? 100 : 400 };
    static int32_t texts[ENTRIES][300];
    static uint64_t hashes[ENTRIES];
    uint32_t positions[ENTRIES], salts[ENTRIES];
    di_prefix_cache *cache = cache_on(h->pages, (uint64_t)1 << 30);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        memcpy(texts[i], i && roll(4) ? texts[roll(i)] : text_ids, sizeof texts[i]);
        uint32_t from = roll(200);
        for (uint32_t k = from; k < 300; k++) texts[i][k] = 3 + (int32_t)roll(3); /* near-misses are common */
        positions[i] = 1 + roll(roll(2) ? 299 : 140);
        salts[i] = roll(3) ? 1 : 2;
        di_state *made = computed(h, h->pages, texts[i], positions[i]);
        hashes[i] = di_harness_state_hash(made);
        di_prefix_publish(cache, salts[i], texts[i], made);
        di_state_free(made);
    }
    for (uint32_t n = 0; n < LOOKUPS; n++) {
        int32_t ids[300];
        memcpy(ids, texts[roll(ENTRIES)], sizeof ids);
        if (roll(3)) ids[roll(300)] ^= 1;
        uint32_t count = 1 + roll(299), salt = 1 + roll(2), best = 0, known = 0;
        uint64_t expected = 0, hash;
        for (uint32_t i = 0; i < ENTRIES; i++) {
            if (salts[i] != salt) continue;
            uint32_t same = common(texts[i], ids, positions[i] < count ? positions[i] : count);
            if (same > known) known = same;
            if (same == positions[i] && positions[i] < count && positions[i] > best) {
                best = positions[i];
                expected = hashes[i];
            }
        }
        di_prefix_hit hit = look(h->pages, cache, salt, ids, count, &hash);
        assert_int_equal(hit.cached, best);
        assert_int_equal(hit.known, known);
        assert_true(hash == expected);
    }
    di_prefix_cache_free(cache);
    assert_int_equal(di_page_pool_used(h->pages), 0);
    di_harness_close(h);
}

/* Under pressure from budget and pages, what is found may be less, but is never wrong, and the books are right. */
static void pressure_makes_nothing_wrong(void **state) {
    (void)state;
    di_harness *h = harness();
    const di_state_layout *layout = di_model_layout(h->model);
    enum { ROUNDS = DI_TEST_SLOW ? 40 : 120, LIMIT = 24, RUNNING = 3 };
    di_page_pool *pool = NULL;
    assert_int_equal(di_page_pool_new(h->model, LIMIT, &pool, NULL), DI_OK);
    uint64_t budget = 12 * layout->rolling_bytes + 14 * layout->page_bytes;
    di_prefix_cache *cache = cache_on(pool, budget);
    const di_prefix_counters *counters = di_prefix_get_counters(cache);
    di_state *running[RUNNING] = {NULL};
    uint64_t found = 0;
    for (uint32_t n = 0; n < ROUNDS; n++) {
        uint32_t place = roll(RUNNING), shared = roll(4) * 50, count = 1 + shared + 30 * (1 + roll(3));
        const int32_t *ids = branch(shared);
        di_state_free(running[place]);
        running[place] = NULL;
        if (!di_prefix_make_room(cache, count / layout->page_tokens + 2)) continue;
        running[place] = fresh(pool);
        di_prefix_hit hit;
        di_prefix_lookup(cache, n % 2, ids, count, running[place], &hit);
        found += hit.cached > 0;
        if (di_prefix_make_room(cache, di_state_pages_missing(running[place], count) + 1))
            di_harness_feed(h, running[place], ids + hit.cached, count - hit.cached, 0, false, NULL);
        uint32_t length = (uint32_t)di_state_length(running[place]);
        if (length) assert_true(di_harness_state_hash(running[place]) == hash_of(h, ids, length));
        di_prefix_publish(cache, n % 2, ids, running[place]);
        assert_true(counters->bytes <= budget);
        assert_true(di_page_pool_used(pool) <= LIMIT && di_page_pool_spare(pool) <= counters->pages);
        if (roll(20) == 0) di_prefix_clear(cache);
    }
    assert_true(found > ROUNDS / 8);
    for (uint32_t i = 0; i < RUNNING; i++) di_state_free(running[i]);
    assert_int_equal(di_page_pool_used(pool), counters->pages);
    assert_int_equal(di_page_pool_spare(pool), counters->pages);
    di_prefix_cache_free(cache);
    di_page_pool_free(pool);
    di_harness_close(h);
}

static void reasons_have_names(void **state) {
    (void)state;
    assert_string_equal(di_miss_name(DI_MISS_NONE), "none");
    assert_string_equal(di_miss_name(DI_MISS_DISABLED), "disabled");
}

int main(void) {
    for (int i = 0; i < TEXT; i++) {
        text_ids[i] = 3 + (i * 37 + i * i % 11) % 600;
        other_ids[i] = 3 + (i * 53 + i * i % 7 + 250) % 600;
        if (other_ids[i] == text_ids[i]) other_ids[i]++;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_position_is_found_again),
        cmocka_unit_test(a_miss_says_where_and_why),
        cmocka_unit_test(a_hash_collision_serves_nothing_wrong),
        cmocka_unit_test(shared_pages_are_never_written),
        cmocka_unit_test(the_budget_holds_and_the_oldest_go),
        cmocka_unit_test(the_least_useful_of_the_oldest_goes),
        cmocka_unit_test(room_is_made_only_by_what_gives_pages_back),
        cmocka_unit_test(finds_what_a_list_would_find),
        cmocka_unit_test(pressure_makes_nothing_wrong),
        cmocka_unit_test(reasons_have_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
