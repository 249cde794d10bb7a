/* needs: cache model backend_cpu tokenizer checkpoint tensor base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/harness.h"

#define NANO DI_TEST_DATA "/nano"

static di_harness *harness(void) {
    di_harness_options options = {.kernels = di_harness_best_kernels(), .max_rows = 256};
    return di_harness_open(NANO, &options);
}

static int32_t ids[1024];

/* ---------------------------------------------------------------- the pool */

static void the_limit_holds_and_pages_come_back(void **state) {
    (void)state;
    di_harness *h = harness();
    di_page_pool *pool = NULL;
    enum { LIMIT = 150 }; /* several chunks, the last one cut off */
    di_page *pages[LIMIT];
    assert_int_equal(di_page_pool_new(h->model, LIMIT, &pool, NULL), DI_OK);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < LIMIT; i++) {
            pages[i] = di_page_take(pool);
            assert_non_null(pages[i]);
            assert_int_equal(pages[i]->references, 1);
            assert_int_equal(di_page_pool_used(pool), i + 1);
            for (uint32_t k = 0; k < i; k += 7) assert_true(pages[k] != pages[i]);
        }
        assert_null(di_page_take(pool));
        assert_null(di_page_copy(pool, pages[0]));
        di_page_share(pages[9]);
        di_page_release(pool, pages[9]);
        assert_int_equal(di_page_pool_used(pool), LIMIT);
        assert_null(di_page_take(pool));
        for (uint32_t i = 0; i < LIMIT; i++) di_page_release(pool, pages[(i * 31 + 5) % LIMIT]);
        assert_int_equal(di_page_pool_used(pool), 0);
    }
    di_page_release(pool, NULL);
    assert_int_equal(di_page_pool_limit(pool), LIMIT);
    di_page_pool_free(pool);
    assert_int_equal(di_page_pool_new(h->model, 0, &pool, NULL), DI_OK);
    assert_null(di_page_take(pool));
    di_page_pool_free(pool);
    di_page_pool_free(NULL);
    di_harness_close(h);
}

static void pages_do_not_overlap(void **state) {
    (void)state;
    di_harness *h = harness();
    di_page_pool *pool = NULL;
    enum { COUNT = 70 };
    di_page *pages[COUNT];
    uint64_t bytes = di_model_layout(h->model)->page_bytes, hashes[COUNT];
    assert_int_equal(di_page_pool_new(h->model, COUNT, &pool, NULL), DI_OK);
    for (int i = 0; i < COUNT; i++) {
        pages[i] = di_page_take(pool);
        h->backend->ops->fill(h->backend, pages[i]->buffer, (uint8_t)i, bytes);
    }
    for (int i = 0; i < COUNT; i++) hashes[i] = di_harness_page_hash(h, pages[i]);
    for (int i = 0; i < COUNT; i++) {
        h->backend->ops->fill(h->backend, pages[i]->buffer, 0xee, bytes);
        for (int k = i + 1; k < COUNT; k++) assert_true(di_harness_page_hash(h, pages[k]) == hashes[k]);
        di_page_release(pool, pages[i]);
    }
    di_page_pool_free(pool);
    di_harness_close(h);
}

/* Pages that only the cache holds are counted, whatever the order of sharing, releasing and marking. */
static void spare_pages_are_counted(void **state) {
    (void)state;
    di_harness *h = harness();
    di_page_pool *pool = NULL;
    assert_int_equal(di_page_pool_new(h->model, 8, &pool, NULL), DI_OK);
    di_page *page = di_page_take(pool); /* a sequence's */
    di_page_share(page);                /* and the tree's */
    di_page_set_cached(page, true);
    assert_int_equal(di_page_pool_spare(pool), 0);
    di_page_release(pool, page);
    assert_int_equal(di_page_pool_spare(pool), 1);
    di_page_share(page);
    assert_int_equal(di_page_pool_spare(pool), 0);
    di_page_set_cached(page, false); /* the tree lets go first */
    di_page_release(pool, page);
    assert_int_equal(di_page_pool_spare(pool), 0);
    assert_int_equal(di_page_pool_used(pool), 1);
    di_page_release(pool, page);
    di_page *tail = di_page_take(pool);
    di_page_set_cached(tail, true);
    assert_int_equal(di_page_pool_spare(pool), 1);
    di_page_set_cached(tail, false);
    assert_int_equal(di_page_pool_spare(pool), 0);
    di_page_release(pool, tail);
    assert_int_equal(di_page_pool_used(pool), 0);
    di_page_pool_free(pool);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- states on pages */

static void a_state_takes_what_it_needs(void **state) {
    (void)state;
    di_harness *h = harness();
    uint32_t page = di_model_layout(h->model)->page_tokens;
    di_page_pool *pool = NULL;
    di_state *a = NULL, *b = NULL;
    di_error error = {0};
    assert_int_equal(di_page_pool_new(h->model, 5, &pool, NULL), DI_OK);
    assert_int_equal(di_state_new(pool, 3 * page, &a, &error), DI_OK);
    assert_int_equal(di_state_new(pool, 4 * page + 1, &b, &error), DI_OK);
    assert_int_equal(di_page_pool_used(pool), 0);
    assert_int_equal(di_state_pages_missing(a, 0), 0);
    assert_int_equal(di_state_pages_missing(a, 1), 1);
    assert_int_equal(di_state_reserve(a, 1, &error), DI_OK);
    assert_int_equal(di_state_reserve(a, page, &error), DI_OK);
    assert_int_equal(di_state_get_view(a)->page_count, 1);
    assert_int_equal(di_state_reserve(a, page + 1, &error), DI_OK);
    assert_int_equal(di_state_get_view(a)->page_count, 2);
    assert_int_equal(di_state_reserve(a, 3 * page + 1, &error), DI_ERR_CONTEXT_LENGTH);
    assert_int_equal(di_state_get_view(a)->page_count, 2);
    assert_int_equal(di_state_reserve(b, 4 * page, &error), DI_ERR_LIMIT); /* three are left */
    assert_string_equal(error.param, "kv-ram");
    assert_int_equal(di_state_get_view(b)->page_count, 3);
    di_state_reset(a);
    assert_int_equal(di_state_length(a), 0);
    assert_int_equal(di_state_reserve(b, 4 * page, &error), DI_OK);
    assert_int_equal(di_page_pool_used(pool), 4);
    di_state_free(a);
    di_state_free(b);
    assert_int_equal(di_page_pool_used(pool), 0);
    di_page_pool_free(pool);
    di_harness_close(h);
}

/* Two sequences on the same complete pages: neither writes them, each goes on as if it were alone. */
static void forks_share_complete_pages_and_write_none(void **state) {
    (void)state;
    di_harness *h = harness();
    uint32_t page = di_model_layout(h->model)->page_tokens;
    di_error error = {0};
    static const int offsets[] = {-1, 0, 1, 33, 64};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        uint32_t position = 2 * page + (uint32_t)offsets[i], complete = position / page;
        di_state *from = NULL, *to = NULL, *alone[2] = {NULL, NULL};
        assert_int_equal(di_state_new(h->pages, 400, &from, &error), DI_OK);
        assert_int_equal(di_state_new(h->pages, 400, &to, &error), DI_OK);
        di_harness_feed(h, from, ids, position, 50, false, NULL);
        uint32_t before = di_page_pool_used(h->pages);
        assert_int_equal(di_state_fork(from, to, &error), DI_OK);
        assert_int_equal(di_page_pool_used(h->pages) - before,
                         position % page != 0); /* the unfinished page is copied */
        assert_true(di_harness_state_hash(from) == di_harness_state_hash(to));
        uint64_t hashes[8];
        for (uint32_t p = 0; p < complete; p++) {
            assert_true(di_state_page(from, p) == di_state_page(to, p));
            assert_int_equal(di_state_page(from, p)->references, 2);
            hashes[p] = di_harness_page_hash(h, di_state_page(from, p));
        }
        if (position % page) assert_true(di_state_page(from, complete) != di_state_page(to, complete));
        /* They go different ways. */
        di_harness_feed(h, from, ids + 300, 90, 7, false, NULL);
        di_harness_feed(h, to, ids + 500, 90, 0, false, NULL);
        for (uint32_t p = 0; p < complete; p++)
            assert_true(di_harness_page_hash(h, di_state_page(from, p)) == hashes[p]);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(di_state_new(h->pages, 400, &alone[k], &error), DI_OK);
            di_harness_feed(h, alone[k], ids, position, 0, false, NULL);
            di_harness_feed(h, alone[k], ids + (k ? 500 : 300), 90, 0, false, NULL);
            assert_true(di_harness_state_hash(alone[k]) == di_harness_state_hash(k ? to : from));
            di_state_free(alone[k]);
        }
        /* The one that is left keeps what it needs. */
        uint64_t hash = di_harness_state_hash(to);
        di_state_free(from);
        for (uint32_t p = 0; p < complete; p++) assert_int_equal(di_state_page(to, p)->references, 1);
        assert_true(di_harness_state_hash(to) == hash);
        di_state_free(to);
        assert_int_equal(di_page_pool_used(h->pages), 0);
    }
    di_harness_close(h);
}

static void a_fork_without_a_page_leaves_nothing(void **state) {
    (void)state;
    di_harness *h = harness();
    uint32_t page = di_model_layout(h->model)->page_tokens;
    di_page_pool *pool = NULL;
    di_state *from = NULL, *to = NULL;
    di_error error = {0};
    assert_int_equal(di_page_pool_new(h->model, 2, &pool, NULL), DI_OK);
    assert_int_equal(di_state_new(pool, 400, &from, &error), DI_OK);
    assert_int_equal(di_state_new(pool, 400, &to, &error), DI_OK);
    di_harness_feed(h, from, ids, page + 5, 0, false, NULL);
    assert_int_equal(di_state_fork(from, to, &error), DI_ERR_LIMIT);
    assert_string_equal(error.param, "kv-ram");
    assert_int_equal(di_state_length(to), 0);
    assert_int_equal(di_state_get_view(to)->page_count, 0);
    assert_int_equal(di_page_pool_used(pool), 2);
    di_state_free(to);
    di_state_free(from);
    di_page_pool_free(pool);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- the serialised form */

static void restored_states_go_on_with_the_same_bits(void **state) {
    (void)state;
    for (int compact = 0; compact < 2; compact++) {
        di_harness_options options = {
            .kernels = di_harness_best_kernels(), .max_rows = 256, .compact = compact, .keep = 40};
        di_harness *h = di_harness_open(NANO, &options);
        static const uint32_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 131, 200};
        float *one = calloc(h->config.vocab_size, sizeof *one), *two = calloc(h->config.vocab_size, sizeof *two);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            di_state *a = di_harness_state(h, 400), *b = di_harness_state(h, 400);
            di_text text = {0}, again = {0};
            di_error error = {0};
            di_harness_feed(h, a, ids, lengths[i], 0, false, NULL);
            assert_int_equal(di_state_serialise(a, &text, &error), DI_OK);
            di_harness_feed(h, b, ids + 100, 77, 0, false, NULL); /* what it held before is gone */
            assert_int_equal(di_state_restore(b, text.data, text.length, &error), DI_OK);
            assert_int_equal(di_state_serialise(b, &again, &error), DI_OK);
            assert_int_equal(text.length, again.length);
            assert_memory_equal(text.data, again.data, text.length);
            for (int k = 0; k < 20; k++) { /* single rows: what is no prompt runs whole in both modes */
                di_harness_feed(h, a, ids + 700 + k, 1, 0, false, one);
                di_harness_feed(h, b, ids + 700 + k, 1, 0, false, two);
                assert_memory_equal(one, two, h->config.vocab_size * sizeof *one);
            }
            di_text_free(&text);
            di_text_free(&again);
            di_state_free(a);
            di_state_free(b);
        }
        free(one);
        free(two);
        di_harness_close(h);
    }
}

static void every_damaged_byte_is_refused(void **state) {
    (void)state;
    di_harness *h = harness();
    di_state *a = di_harness_state(h, 100), *b = di_harness_state(h, 100);
    di_text text = {0};
    di_error error = {0};
    di_harness_feed(h, a, ids, 70, 0, false, NULL);
    assert_int_equal(di_state_serialise(a, &text, &error), DI_OK);
    for (size_t at = 0; at < text.length; at += at < 144 ? 1 : 997) {
        if (at >= 120 && at < 144) continue; /* reserved, zero, not covered */
        text.data[at] ^= 0x10;
        if (di_state_restore(b, text.data, text.length, &error) == DI_OK) fail_msg("byte %zu changed, accepted", at);
        assert_int_equal(error.status, DI_ERR_FORMAT);
        assert_true(error.message[0] != 0);
        text.data[at] ^= 0x10;
    }
    for (size_t length = 0; length < text.length; length += length < 200 ? 1 : 1009)
        assert_int_equal(di_state_restore(b, text.data, length, &error), DI_ERR_FORMAT);
    assert_int_equal(di_state_restore(b, text.data, text.length, &error), DI_OK);
    /* Too long for the sequence it is to become. */
    di_state *shorter = NULL;
    assert_int_equal(di_state_new(h->pages, 64, &shorter, &error), DI_OK);
    assert_int_equal(di_state_restore(shorter, text.data, text.length, &error), DI_ERR_CONTEXT_LENGTH);
    assert_int_equal(di_state_length(shorter), 0);
    di_state_free(shorter);
    di_text_free(&text);
    di_state_free(a);
    di_state_free(b);
    di_harness_close(h);
}

int main(void) {
    for (int i = 0; i < 1024; i++) ids[i] = 3 + (i * 37 + i * i % 11) % 600;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_limit_holds_and_pages_come_back),
        cmocka_unit_test(pages_do_not_overlap),
        cmocka_unit_test(spare_pages_are_counted),
        cmocka_unit_test(a_state_takes_what_it_needs),
        cmocka_unit_test(forks_share_complete_pages_and_write_none),
        cmocka_unit_test(a_fork_without_a_page_leaves_nothing),
        cmocka_unit_test(restored_states_go_on_with_the_same_bits),
        cmocka_unit_test(every_damaged_byte_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
