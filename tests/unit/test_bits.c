/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* The contract of docs/numerics.md, by bytes of logits and of serialised state, on nano and on the embedded model:
 * chunking, threads, instruction sets, neighbours in the batch, rollback, restored state, golden hashes. */
#include "support/harness.h"
#include "support/kernel_tables.h"
#include "support/slow.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#define NANO DI_TEST_DATA "/nano"
#define TINY DI_SOURCE_DIR "/models/tiny"

enum { PROMPT = 300, MAX_ROWS = 320 };

/* XXH64 of the logits of all PROMPT rows and of the state after them. Every machine, compiler and instruction set must
 * give these. States are hashed without the digest of the model in their header. */
static const struct model_case {
    const char *folder;
    uint64_t logits, state, compact_logits, compact_state;
} MODELS[] = {
    {NANO, 0x6234fcbf5a4947fa, 0xfc6a0d6fe36d055a, 0x155f31d436f48fc0, 0x213051f8dd590890},
    {TINY, 0x14ee3c0284d87696, 0x2de1952eab7b30e6, 0xa35054ff056627bc, 0x8f6cb57455a18504},
};
/* Under a sanitizer the embedded model has its golden hashes and its instruction sets only. */
enum { MODEL_COUNT = 2, MOST_MODELS = DI_TEST_SLOW ? 1 : MODEL_COUNT };

/* Reproducible ids: a linear congruential sequence, with repetitions so that n-grams recur. */
static void make_ids(uint32_t vocabulary, uint32_t seed, int32_t *ids, size_t count) {
    uint32_t x = seed * 2654435761u + 12345u;
    for (size_t i = 0; i < count; i++) {
        x = x * 1664525u + 1013904223u;
        ids[i] = (int32_t)((x >> 8) % vocabulary);
        if (i > 20 && x % 5 == 0) ids[i] = ids[i - 7];
    }
}

typedef struct result {
    uint64_t logits, state;
} result;

static result run(di_harness *h, size_t count, size_t chunk) {
    int32_t ids[PROMPT];
    size_t v = h->config.vocab_size;
    bool compact = strcmp(di_model_profile(h->model), "exact") != 0;
    float *logits = calloc(count * v, sizeof *logits);
    assert_non_null(logits);
    make_ids(h->config.vocab_size, 7, ids, count);
    di_state *s = di_harness_state(h, PROMPT + 64);
    di_harness_feed(h, s, ids, count, chunk, !compact, logits);
    result r = {XXH64(logits, (compact ? 1 : count) * v * sizeof *logits, 0), di_harness_state_hash(s)};
    di_state_free(s);
    free(logits);
    return r;
}

static void assert_same(result a, result b, const char *what) {
    if (a.logits != b.logits)
        fail_msg("%s: logits differ: %016llx %016llx", what, (unsigned long long)a.logits,
                 (unsigned long long)b.logits);
    if (a.state != b.state)
        fail_msg("%s: state differs: %016llx %016llx", what, (unsigned long long)a.state, (unsigned long long)b.state);
}

static di_harness *open_best(const char *folder, int threads, bool compact) {
    return di_harness_open(folder, &(di_harness_options){.kernels = di_harness_best_kernels(),
                                                         .threads = threads,
                                                         .max_rows = MAX_ROWS,
                                                         .compact = compact});
}

/* ---------------------------------------------------------------- golden hashes, instruction sets, threads */

static void golden_hashes(void **state) {
    (void)state;
    for (size_t m = 0; m < MODEL_COUNT; m++) {
        di_harness *h = open_best(MODELS[m].folder, 2, false), *c = open_best(MODELS[m].folder, 2, true);
        result full = run(h, PROMPT, 0), compact = run(c, PROMPT, 0);
        print_message("%s: {0x%016llx, 0x%016llx, 0x%016llx, 0x%016llx} with %s\n", MODELS[m].folder,
                      (unsigned long long)full.logits, (unsigned long long)full.state,
                      (unsigned long long)compact.logits, (unsigned long long)compact.state, h->backend->isa);
        assert_same(full, (result){MODELS[m].logits, MODELS[m].state}, "golden hash");
        assert_same(compact, (result){MODELS[m].compact_logits, MODELS[m].compact_state}, "golden hash, compact");
        di_harness_close(h);
        di_harness_close(c);
    }
}

static void instruction_sets_agree(void **state) {
    (void)state;
    enum { COUNT = 96 };
    name_skipped_tables();
    for (size_t m = 0; m < MODEL_COUNT; m++) {
        result first = {0, 0};
        FOR_EACH_TABLE(kernels) {
            di_harness *h =
                di_harness_open(MODELS[m].folder, &(di_harness_options){.kernels = kernels, .max_rows = MAX_ROWS});
            result r = run(h, DI_TEST_SLOW && m ? COUNT / 4 : COUNT, 33);
            if (kernels == &di_cpu_scalar) first = r;
            assert_same(first, r, kernels->name);
            di_harness_close(h);
        }
    }
}

static void threads_agree(void **state) {
    (void)state;
    static const int counts[] = {1, 2, 3, 5};
    for (size_t m = 0; m < MOST_MODELS; m++) {
        for (size_t t = 0; t < 4; t++) {
            di_harness *h = open_best(MODELS[m].folder, counts[t], false);
            result r = run(h, PROMPT, 50), again = run(h, PROMPT, 50);
            assert_same(r, again, "second run");
            assert_same(r, (result){MODELS[m].logits, MODELS[m].state}, "threads");
            di_harness_close(h);
        }
    }
}

/* ---------------------------------------------------------------- chunking */

static void feed_randomly(di_harness *h, di_state *s, const int32_t *ids, size_t count, float *logits, uint32_t seed) {
    size_t v = h->config.vocab_size;
    for (size_t from = 0; from < count;) {
        seed = seed * 1664525u + 1013904223u;
        size_t n = 1 + (seed >> 10) % 70;
        if (n > count - from) n = count - from;
        di_harness_feed(h, s, ids + from, n, 0, true, logits + from * v);
        from += n;
    }
}

static void chunking_does_not_matter(void **state) {
    (void)state;
    static const size_t chunks[] = {1, 7, 16, 64, 127, 128, 129};
    for (size_t m = 0; m < MOST_MODELS; m++) {
        di_harness *h = open_best(MODELS[m].folder, 2, false);
        result whole = {MODELS[m].logits, MODELS[m].state};
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
            assert_same(whole, run(h, PROMPT, chunks[c]), "chunk");
        size_t v = h->config.vocab_size;
        float *logits = calloc(PROMPT * v, sizeof *logits);
        int32_t ids[PROMPT];
        make_ids(h->config.vocab_size, 7, ids, PROMPT);
        for (uint32_t seed = 1; seed <= 3; seed++) {
            di_state *s = di_harness_state(h, PROMPT + 64);
            feed_randomly(h, s, ids, PROMPT, logits, seed);
            result r = {XXH64(logits, PROMPT * v * sizeof *logits, 0), di_harness_state_hash(s)};
            assert_same(whole, r, "random chunks");
            di_state_free(s);
        }
        free(logits);
        di_harness_close(h);
    }
}

static void compact_chunking_does_not_matter(void **state) {
    (void)state;
    static const size_t chunks[] = {1, 7, 64, 129, 299};
    for (size_t m = 0; m < MOST_MODELS; m++) {
        di_harness *h = open_best(MODELS[m].folder, 2, true);
        result whole = {MODELS[m].compact_logits, MODELS[m].compact_state};
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++)
            assert_same(whole, run(h, PROMPT, chunks[c]), "compact chunk");
        di_harness_close(h);
    }
}

/* A prompt of at most KEEP tokens: compact and off give the same bits. */
static void short_compact_prompts_equal_off(void **state) {
    (void)state;
    for (size_t m = 0; m < MOST_MODELS; m++) {
        di_harness *off = open_best(MODELS[m].folder, 2, false), *compact = open_best(MODELS[m].folder, 2, true);
        size_t v = off->config.vocab_size, count = off->config.sliding_window + 12;
        int32_t ids[PROMPT];
        float *a = malloc(v * sizeof *a), *b = malloc(v * sizeof *b);
        make_ids(off->config.vocab_size, 9, ids, PROMPT);
        di_state *s = di_harness_state(off, PROMPT), *t = di_harness_state(compact, PROMPT);
        di_harness_feed(off, s, ids, count, 0, false, a);
        di_harness_feed(compact, t, ids, count, 11, false, b);
        assert_memory_equal(a, b, v * sizeof *a);
        for (size_t i = 0; i < 5; i++) {
            di_harness_feed(off, s, ids + count + i, 1, 0, false, a);
            di_harness_feed(compact, t, ids + count + i, 1, 0, false, b);
            assert_memory_equal(a, b, v * sizeof *a);
        }
        di_state_free(s);
        di_state_free(t);
        free(a);
        free(b);
        di_harness_close(off);
        di_harness_close(compact);
    }
}

/* ---------------------------------------------------------------- neighbours */

enum { SEQUENCES = 33, STEPS = 12 };

typedef struct crowd {
    di_state *states[SEQUENCES];
    int32_t ids[SEQUENCES][PROMPT];
    size_t fed[SEQUENCES];
} crowd;

/* One step with rows of several sequences in the given order; logits of every row are compared with `alone`. */
static void crowd_step(di_harness *h, crowd *c, const uint32_t *order, const uint32_t *rows, uint32_t members,
                       float *const *alone) {
    di_error error = {0};
    size_t v = h->config.vocab_size;
    uint32_t index[SEQUENCES], first[SEQUENCES];
    di_step_clear(h->step);
    for (uint32_t i = 0; i < members; i++) {
        uint32_t q = order[i];
        di_step_entry entry = {.state = *di_state_get_view(c->states[q]),
                               .tokens = c->ids[q] + c->fed[q],
                               .count = rows[i],
                               .replay_from = -1};
        di_must(di_step_add(h->step, &entry, &index[i], &first[i], &error), &error);
    }
    di_harness_run_step(h);
    const float *logits = di_cpu_at(di_step_logits(h->step));
    for (uint32_t i = 0; i < members; i++) {
        uint32_t q = order[i];
        if (memcmp(logits + first[i] * v, alone[q] + c->fed[q] * v, rows[i] * v * sizeof *logits) != 0)
            fail_msg("sequence %u at position %zu: %u rows beside %u sequences differ", q, c->fed[q], rows[i], members);
        di_model_commit(h->model, h->step, index[i], rows[i], di_state_get_view(c->states[q]));
        c->fed[q] += rows[i];
    }
}

static void neighbours_do_not_matter(void **state) {
    (void)state;
    for (size_t m = 0; m < MOST_MODELS; m++) {
        di_harness *h = open_best(MODELS[m].folder, 2, false);
        size_t v = h->config.vocab_size, length = STEPS * 6;
        crowd *c = calloc(1, sizeof *c);
        float *alone[SEQUENCES];
        for (uint32_t q = 0; q < SEQUENCES; q++) {
            make_ids(h->config.vocab_size, 100 + q, c->ids[q], PROMPT);
            alone[q] = malloc(length * v * sizeof(float));
            di_state *s = di_harness_state(h, (uint32_t)length);
            di_harness_feed(h, s, c->ids[q], length, 0, true, alone[q]);
            di_state_free(s);
            c->states[q] = di_harness_state(h, (uint32_t)length);
        }
        uint32_t seed = 5;
        for (uint32_t step = 0; step < STEPS; step++) {
            uint32_t order[SEQUENCES], rows[SEQUENCES], members;
            for (uint32_t q = 0; q < SEQUENCES; q++) order[q] = q;
            for (uint32_t q = SEQUENCES - 1; q > 0; q--) { /* shuffle */
                seed = seed * 1664525u + 1013904223u;
                uint32_t other = (seed >> 8) % (q + 1), kept = order[q];
                order[q] = order[other];
                order[other] = kept;
            }
            members = step == 0 ? SEQUENCES : 1 + (seed >> 12) % SEQUENCES;
            for (uint32_t i = 0; i < members; i++) {
                seed = seed * 1664525u + 1013904223u;
                rows[i] = 1 + (seed >> 9) % 6;
            }
            crowd_step(h, c, order, rows, members, alone);
        }
        for (uint32_t q = 0; q < SEQUENCES; q++) {
            di_state_free(c->states[q]);
            free(alone[q]);
        }
        free(c);
        di_harness_close(h);
    }
}

/* ---------------------------------------------------------------- rollback and restore */

/* Runs `count` rows that are then not committed (or only the first `keep` of them). */
static void try_rows(di_harness *h, di_state *s, const int32_t *ids, uint32_t count, uint32_t keep) {
    di_error error = {0};
    uint32_t index, first;
    di_step_entry entry = {.state = *di_state_get_view(s), .tokens = ids, .count = count, .replay_from = -1};
    di_step_clear(h->step);
    di_must(di_step_add(h->step, &entry, &index, &first, &error), &error);
    di_harness_run_step(h);
    di_model_commit(h->model, h->step, index, keep, di_state_get_view(s));
}

static void rolled_back_rows_never_happened(void **state) {
    (void)state;
    for (size_t m = 0; m < MOST_MODELS * 2; m++) {
        bool compact = m % 2;
        di_harness *h = open_best(MODELS[m / 2].folder, 2, compact);
        size_t v = h->config.vocab_size;
        int32_t ids[PROMPT], wrong[PROMPT];
        make_ids(h->config.vocab_size, 7, ids, PROMPT);
        make_ids(h->config.vocab_size, 8, wrong, PROMPT);
        float *plain = malloc(v * sizeof *plain), *tried = malloc(v * sizeof *tried);
        di_state *a = di_harness_state(h, PROMPT + 64), *b = di_harness_state(h, PROMPT + 64);
        di_harness_feed(h, a, ids, 131, 0, false, plain);
        di_harness_feed(h, b, ids, 131, 0, false, tried);
        assert_memory_equal(plain, tried, v * sizeof *plain);
        size_t at = 131;
        for (uint32_t n = 1; n <= 8; n++) {
            try_rows(h, b, wrong + n, n, 0);
            assert_int_equal(di_harness_state_hash(a), di_harness_state_hash(b));
            /* the first of n rows is right and kept, the rest is not */
            int32_t mixed[9];
            mixed[0] = ids[at];
            memcpy(mixed + 1, wrong, n * sizeof *wrong);
            try_rows(h, b, mixed, n + 1, 1);
            di_harness_feed(h, a, ids + at, 1, 0, false, plain);
            assert_int_equal(di_harness_state_hash(a), di_harness_state_hash(b));
            at++;
            di_harness_feed(h, a, ids + at, 1, 0, false, plain);
            di_harness_feed(h, b, ids + at, 1, 0, false, tried);
            assert_memory_equal(plain, tried, v * sizeof *plain);
            at++;
        }
        di_state_free(a);
        di_state_free(b);
        free(plain);
        free(tried);
        di_harness_close(h);
    }
}

static void restored_state_goes_on_the_same(void **state) {
    (void)state;
    static const size_t lengths[] = {1, 2, 15, 16, 17, 63, 64, 65, 130};
    for (size_t m = 0; m < MOST_MODELS * 2; m++) {
        bool compact = m % 2;
        di_harness *h = open_best(MODELS[m / 2].folder, 2, compact);
        size_t v = h->config.vocab_size;
        int32_t ids[PROMPT];
        make_ids(h->config.vocab_size, 7, ids, PROMPT);
        float *plain = malloc(v * sizeof *plain), *again = malloc(v * sizeof *again);
        for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
            di_state *a = di_harness_state(h, PROMPT), *b = di_harness_state(h, PROMPT);
            di_harness_feed(h, a, ids, lengths[l], 0, false, NULL);
            di_harness_feed(h, b, ids + 40, 77, 0, false, NULL); /* something else lived here before */
            di_text text = {0};
            di_error error = {0};
            assert_int_equal(di_state_serialise(a, &text, &error), DI_OK);
            assert_int_equal(di_state_restore(b, text.data, text.length, &error), DI_OK);
            assert_int_equal(di_harness_state_hash(a), di_harness_state_hash(b));
            for (size_t i = 0; i < 3; i++) {
                di_harness_feed(h, a, ids + lengths[l] + i, 1, 0, false, plain);
                di_harness_feed(h, b, ids + lengths[l] + i, 1, 0, false, again);
                assert_memory_equal(plain, again, v * sizeof *plain);
            }
            di_text_free(&text);
            di_state_free(a);
            di_state_free(b);
        }
        free(plain);
        free(again);
        di_harness_close(h);
    }
}

/* Every flipped byte and every cut of a state object is refused. */
static void damaged_state_is_refused(void **state) {
    (void)state;
    di_harness *h = open_best(NANO, 1, false), *other = open_best(TINY, 1, false);
    int32_t ids[PROMPT];
    make_ids(h->config.vocab_size, 7, ids, PROMPT);
    di_state *a = di_harness_state(h, PROMPT), *b = di_harness_state(h, PROMPT), *c = di_harness_state(other, PROMPT);
    di_harness_feed(h, a, ids, 21, 0, false, NULL);
    di_text text = {0};
    di_error error = {0};
    assert_int_equal(di_state_serialise(a, &text, &error), DI_OK);
    for (size_t i = 0; i < text.length; i += i < 200 ? 1 : 97) {
        if (i >= 120 && i < 144) continue; /* reserved bytes carry nothing */
        text.data[i] = (char)(text.data[i] ^ 0x10);
        assert_int_not_equal(di_state_restore(b, text.data, text.length, &error), DI_OK);
        text.data[i] = (char)(text.data[i] ^ 0x10);
    }
    for (size_t n = 0; n < text.length; n += n < 200 ? 1 : 53)
        assert_int_not_equal(di_state_restore(b, text.data, n, &error), DI_OK);
    assert_int_not_equal(di_state_restore(c, text.data, text.length, &error), DI_OK);
    assert_int_equal(di_state_restore(b, text.data, text.length, &error), DI_OK);
    di_text_free(&text);
    di_state_free(a);
    di_state_free(b);
    di_state_free(c);
    di_harness_close(h);
    di_harness_close(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_hashes),
        cmocka_unit_test(instruction_sets_agree),
        cmocka_unit_test(threads_agree),
        cmocka_unit_test(chunking_does_not_matter),
        cmocka_unit_test(compact_chunking_does_not_matter),
        cmocka_unit_test(short_compact_prompts_equal_off),
        cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(rolled_back_rows_never_happened),
        cmocka_unit_test(restored_state_goes_on_the_same),
        cmocka_unit_test(damaged_state_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
