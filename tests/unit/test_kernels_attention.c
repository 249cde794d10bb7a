/* needs: backend_cpu tensor base */
/* Byte equality of the vector tables with the scalar one: attention and index scores. */
#include "support/kernel_cases.h"

#include <math.h>

/* ---------------------------------------------------------------- attention */

/* Pool of keys a case draws from. */
enum { POOL = 97 };

typedef struct attention_case {
    size_t heads, d, window_slots, window_keys, global_count;
    value_kind queries, keys;
    float sink;
    int extreme; /* 0: entries made by the quantisers; 1: random codes and scale bytes; 2: scale bytes 0, 127 and 254;
                  * 3: like 1, with a few NaN codes */
} attention_case;

static uint8_t random_byte(uint64_t *seed) {
    return (uint8_t)(next_random(seed) >> 32);
}

/* window entries [POOL][d + d/32], then global entries [POOL][d/2 + d/16] */
static uint8_t *make_keys(uint64_t *seed, const attention_case *c) {
    size_t window = c->d + c->d / 32, global = c->d / 2 + c->d / 16;
    uint8_t *pool = case_memory(POOL * (window + global));
    float *x = case_memory(c->d * sizeof *x);
    for (size_t j = 0; j < POOL; j++) {
        uint8_t *w = pool + j * window, *g = pool + POOL * window + j * global;
        for (size_t i = 0; i < c->d; i++) x[i] = di_bf16_round(random_value(seed, c->keys) * (j % 3 ? 1.0f : 0.01f));
        if (!c->extreme) {
            di_cpu_scalar.window_entry(x, c->d, w);
            di_cpu_scalar.global_entry(x, c->d, g);
            continue;
        }
        for (size_t i = 0; i < c->d; i++) w[i] = (uint8_t)(random_byte(seed) % 127 | (random_byte(seed) & 0x80));
        for (size_t i = 0; i < c->d / 32; i++) {
            uint8_t pick = random_byte(seed);
            w[c->d + i] = c->extreme != 2 ? (uint8_t)(110 + pick % 20) : pick % 3 == 0 ? 0 : pick % 3 == 1 ? 254 : 127;
        }
        if (c->extreme == 3 && j % 40 == 0) w[j % c->d] = 0x7f;
        for (size_t i = 0; i < c->d / 2; i++) g[i] = random_byte(seed);
        for (size_t i = 0; i < c->d / 16; i++) g[c->d / 2 + i] = random_byte(seed) % 127;
    }
    free(x);
    return pool;
}

/* Everything one row's attention reads and writes. */
typedef struct attention_buffers {
    uint8_t *pool;
    uint16_t *q, *out;
    float *sink, *scratch;
    const uint8_t **windows, **globals;
} attention_buffers;

static di_cpu_attention make_attention(const attention_case *c, uint64_t *seed, attention_buffers *b) {
    size_t window = c->d + c->d / 32, global = c->d / 2 + c->d / 16, n = c->heads * c->d;
    size_t slots = c->window_slots + c->global_count, missing = c->window_slots - c->window_keys;
    b->pool = make_keys(seed, c);
    b->q = case_memory(n * 2);
    b->out = case_memory(n * 2);
    b->sink = case_memory(c->heads * 4);
    b->scratch = case_memory(di_cpu_attention_scratch(c->heads, c->d, slots) * 4);
    b->windows = case_memory(c->window_slots * sizeof *b->windows);
    b->globals = case_memory(c->global_count * sizeof *b->globals);
    fill_bf16(seed, b->q, n, c->queries);
    for (size_t h = 0; h < c->heads; h++) b->sink[h] = c->sink + random_signed(seed);
    for (size_t j = 0; j < c->window_slots; j++) b->windows[j] = j < missing ? NULL : b->pool + j % POOL * window;
    for (size_t j = 0; j < c->global_count; j++) b->globals[j] = b->pool + POOL * window + j * 7 % POOL * global;
    return (di_cpu_attention){.q = b->q,
                              .sink = b->sink,
                              .heads = c->heads,
                              .head_dim = c->d,
                              .scale = (float)(1.0 / sqrt((double)c->d)),
                              .window = b->windows,
                              .window_slots = c->window_slots,
                              .global = b->globals,
                              .global_count = c->global_count,
                              .global_slots = c->global_count,
                              .out = b->out,
                              .scratch = b->scratch};
}

static void free_buffers(attention_buffers *b) {
    free(b->pool), free(b->q), free(b->out), free(b->sink), free(b->scratch), free(b->windows), free(b->globals);
}

/* One case on every table. */
static void check_attention(const attention_case *c, uint64_t *seed) {
    size_t n = c->heads * c->d, scratch = di_cpu_attention_scratch(c->heads, c->d, c->window_slots + c->global_count);
    attention_buffers b;
    di_cpu_attention a = make_attention(c, seed, &b);
    uint16_t *expected = case_memory(n * 2);
    di_cpu_scalar.attention(&a);
    memcpy(expected, b.out, n * 2);
    hash_reference(&di_cpu_scalar, expected, n * 2);
    FOR_EACH_TABLE(k) {
        if (k == &di_cpu_scalar) continue;
        memset(b.out, 0xa5, n * 2);
        memset(b.scratch, 0xa5, scratch * 4);
        k->attention(&a);
        if (memcmp(expected, b.out, n * 2) != 0)
            fail_msg("attention of %s differs from scalar: heads %zu, d %zu, window %zu of %zu, global %zu, values of "
                     "kind %d and %d, extreme %d",
                     k->name, c->heads, c->d, c->window_keys, c->window_slots, c->global_count, (int)c->queries,
                     (int)c->keys, c->extreme);
    }
    if (c->window_keys + c->global_count == 0)
        for (size_t i = 0; i < n; i++) assert_int_equal(expected[i], 0);
    free(expected);
    free_buffers(&b);
}

/* Every count of keys around the tile borders, split between window and list, at every head size. */
static void test_attention_counts(void **state) {
    (void)state;
    static const size_t counts[][3] = {{0, 0, 0},     {5, 0, 0},   {1, 1, 0},   {0, 0, 1},   {2, 1, 1},
                                       {16, 7, 3},    {64, 62, 0}, {64, 63, 0}, {64, 64, 0}, {64, 64, 1},
                                       {65, 65, 0},   {64, 3, 61}, {16, 16, 8}, {64, 5, 64}, {128, 1, 63},
                                       {128, 128, 1}, {3, 3, 128}, {66, 66, 67}};
    static const size_t dims[] = {32, 64, 96, 256, 512};
    uint64_t seed = 11;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (size_t j = 0; j < 5; j++) {
            attention_case c = {.heads = 1 + (i + 3 * j) % 9,
                                .d = dims[j],
                                .window_slots = counts[i][0],
                                .window_keys = counts[i][1],
                                .global_count = counts[i][2]};
            check_attention(&c, &seed);
        }
    }
}

static void test_attention_heads(void **state) {
    (void)state;
    uint64_t seed = 12;
    for (size_t heads = 1; heads <= 64; heads++) {
        attention_case c = {.heads = heads,
                            .d = heads % 8 ? 64 : 32,
                            .window_slots = 64,
                            .window_keys = 1 + heads * 5 % 64,
                            .global_count = heads * 3 % 70};
        check_attention(&c, &seed);
    }
}

static void test_attention_values(void **state) {
    (void)state;
    static const float sinks[] = {0.0f, -200.0f, 200.0f, -1e30f, 1e30f};
    uint64_t seed = 13;
    for (int queries = 0; queries < VALUE_KINDS; queries++) {
        for (int keys = 0; keys < VALUE_KINDS; keys++) {
            for (int extreme = 0; extreme < 4; extreme++) {
                attention_case c = {.heads = 3,
                                    .d = 64,
                                    .window_slots = 48,
                                    .window_keys = 45,
                                    .global_count = 40,
                                    .queries = (value_kind)queries,
                                    .keys = (value_kind)keys,
                                    .sink = sinks[(queries + keys + extreme) % 5],
                                    .extreme = extreme};
                check_attention(&c, &seed);
            }
        }
    }
}

/* The release's shape: 64 heads of 512, 128 window and 512 listed keys. */
static void test_attention_release(void **state) {
    (void)state;
    uint64_t seed = 14;
    attention_case c = {.heads = 64, .d = 512, .window_slots = 128, .window_keys = 128, .global_count = 512};
    check_attention(&c, &seed);
}

/* A million outputs over two tiles, the second of which often raises the maximum: what differs in the last bit of an
 * fp32 sum, maximum or denominator shows in one bf16 output of 2^16. */
static void test_attention_many(void **state) {
    (void)state;
    uint64_t seed = 19;
    for (int i = 0; i < 40; i++) {
        attention_case c = {.heads = 64, .d = 512, .window_slots = 128, .window_keys = 128, .queries = VALUES_SPARSE};
        check_attention(&c, &seed);
    }
}

/* Keys missing in the middle of the window are skipped, not counted: the tiles are those of the present keys. */
static void test_attention_gaps(void **state) {
    (void)state;
    enum { D = 64, SLOTS = 150, HEADS = 5 };
    uint64_t seed = 15;
    attention_case c = {.heads = HEADS, .d = D};
    uint8_t *pool = make_keys(&seed, &c);
    uint16_t q[HEADS * D], dense[HEADS * D], gaps[HEADS * D];
    float sink[HEADS] = {0};
    fill_bf16(&seed, q, HEADS * D, VALUES_NORMAL);
    const uint8_t *some[SLOTS], *all[SLOTS];
    size_t count = 0;
    for (size_t j = 0; j < SLOTS; j++) {
        some[j] = j % 7 < 3 ? NULL : pool + j % POOL * (D + D / 32);
        if (some[j]) all[count++] = some[j];
    }
    float *scratch = case_memory(di_cpu_attention_scratch(HEADS, D, SLOTS) * sizeof *scratch);
    di_cpu_attention a = {.q = q, .sink = sink, .heads = HEADS, .head_dim = D, .scale = 0.125f, .scratch = scratch};
    a.window = all, a.window_slots = count, a.out = dense;
    di_cpu_scalar.attention(&a);
    a.window = some, a.window_slots = SLOTS, a.out = gaps;
    FOR_EACH_TABLE(k) {
        memset(gaps, 0xa5, sizeof gaps);
        k->attention(&a);
        assert_memory_equal(dense, gaps, sizeof gaps);
    }
    free(scratch), free(pool);
}

/* A head's bits do not depend on which heads are computed with it. */
static void test_attention_alone(void **state) {
    (void)state;
    enum { D = 96, KEYS = 90, HEADS = 13 };
    uint64_t seed = 16;
    attention_case c = {.heads = HEADS, .d = D};
    uint8_t *pool = make_keys(&seed, &c);
    uint16_t q[HEADS * D], together[HEADS * D], alone[D];
    float sink[HEADS];
    fill_bf16(&seed, q, HEADS * D, VALUES_NORMAL);
    fill_floats(&seed, sink, HEADS, VALUES_NORMAL);
    const uint8_t *keys[KEYS];
    for (size_t j = 0; j < KEYS; j++) keys[j] = pool + j * (D + D / 32);
    float *scratch = case_memory(di_cpu_attention_scratch(HEADS, D, KEYS) * sizeof *scratch);
    FOR_EACH_TABLE(k) {
        di_cpu_attention a = {.q = q, .sink = sink, .heads = HEADS, .head_dim = D, .scale = 0.1f, .scratch = scratch};
        a.window = keys, a.window_slots = KEYS, a.out = together;
        k->attention(&a);
        for (size_t h = 0; h < HEADS; h++) {
            a.q = q + h * D, a.sink = sink + h, a.heads = 1, a.out = alone;
            k->attention(&a);
            assert_memory_equal(together + h * D, alone, sizeof alone);
        }
    }
    free(scratch), free(pool);
}

/* ---------------------------------------------------------------- index scores */

typedef struct index_case {
    size_t heads, dim, count;
    value_kind kind, weights;
    int extreme; /* as above, with scale bytes 0 and 254 from 2 on */
} index_case;

static uint8_t *make_entries(uint64_t *seed, const index_case *c, size_t n) {
    size_t entry = c->dim / 2 + c->dim / 32;
    uint8_t *entries = case_memory(n * entry);
    float *x = case_memory(c->dim * sizeof *x);
    for (size_t j = 0; j < n; j++) {
        uint8_t *e = entries + j * entry;
        for (size_t i = 0; i < c->dim; i++) x[i] = di_bf16_round(random_value(seed, c->kind));
        if (!c->extreme) {
            di_cpu_scalar.index_entry(x, c->dim, e);
            continue;
        }
        for (size_t i = 0; i < c->dim / 2; i++) e[i] = random_byte(seed);
        for (size_t i = 0; i < c->dim / 32; i++) {
            uint8_t pick = random_byte(seed);
            e[c->dim / 2 + i] = c->extreme == 1 ? (uint8_t)(100 + pick % 40)
                                : pick % 3 == 0 ? 0
                                : pick % 3 == 1 ? 254
                                                : pick;
            if (e[c->dim / 2 + i] == 255) e[c->dim / 2 + i] = 254;
        }
    }
    free(x);
    return entries;
}

static void check_index(const di_cpu_kernels *k, const index_case *c, uint64_t *seed) {
    size_t entry = c->dim / 2 + c->dim / 32, bytes = c->heads * (c->dim + 64) * 4 + 4096;
    uint8_t *q = make_entries(seed, c, c->heads), *pool = make_entries(seed, c, c->count);
    float *w = case_memory(c->heads * 4), *expected = case_memory(c->count * 4), *got = case_memory(c->count * 4);
    void *scratch = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(scratch);
    fill_floats(seed, w, c->heads, c->weights);
    const uint8_t **keys = case_memory(c->count * sizeof *keys);
    for (size_t g = 0; g < c->count; g++) keys[g] = pool + g * 5 % c->count * entry;
    di_cpu_scalar.index_scores(q, w, c->heads, c->dim, keys, c->count, expected, scratch);
    memset(scratch, 0xa5, bytes);
    k->index_scores(q, w, c->heads, c->dim, keys, c->count, got, scratch);
    hash_reference(k, expected, c->count * 4);
    if (memcmp(expected, got, c->count * 4) != 0)
        fail_msg("index_scores of %s differs from scalar: heads %zu, dim %zu, count %zu, values of kind %d and %d, "
                 "extreme %d",
                 k->name, c->heads, c->dim, c->count, (int)c->kind, (int)c->weights, c->extreme);
    free(q), free(pool), free(w), free(expected), free(got), free(scratch), free(keys);
}

static void test_index_shapes(void **state) {
    (void)state;
    static const size_t dims[] = {32, 64, 96, 128, 512};
    FOR_EACH_TABLE(k) {
        uint64_t seed = 17;
        for (size_t i = 0; i < 5; i++) {
            for (size_t count = 0; count <= 35; count++) {
                index_case c = {.heads = 1 + (count + i) % 18, .dim = dims[i], .count = count};
                check_index(k, &c, &seed);
            }
        }
        for (size_t heads = 1; heads <= 64; heads++) {
            index_case c = {.heads = heads, .dim = heads % 2 ? 64 : 128, .count = 21};
            check_index(k, &c, &seed);
        }
        index_case release = {.heads = 32, .dim = 128, .count = 1000}, tiny = {.heads = 8, .dim = 64, .count = 999};
        check_index(k, &release, &seed);
        check_index(k, &tiny, &seed);
    }
}

static void test_index_values(void **state) {
    (void)state;
    FOR_EACH_TABLE(k) {
        uint64_t seed = 18;
        for (int kind = 0; kind < VALUE_KINDS; kind++) {
            for (int weights = 0; weights < VALUE_KINDS; weights++) {
                for (int extreme = 0; extreme < 3; extreme++) {
                    index_case c = {.heads = (size_t)(5 + 9 * extreme),
                                    .dim = 64,
                                    .count = 37,
                                    .kind = (value_kind)kind,
                                    .weights = (value_kind)weights,
                                    .extreme = extreme};
                    check_index(k, &c, &seed);
                }
            }
        }
    }
}

/* The same sign of zero as dot16's, also where the heads fill no sixteen: every weighted product vanishes below zero.
 */
static void test_index_zero(void **state) {
    (void)state;
    enum { DIM = 32, ENTRY = DIM / 2 + 1, HEADS = 33 };
    uint8_t q[HEADS * ENTRY], key[ENTRY];
    float w[HEADS];
    memset(key, 0x11, ENTRY - 1); /* 0.5 everywhere */
    key[ENTRY - 1] = 90;
    for (int h = 0; h < HEADS; h++) {
        memcpy(q + h * ENTRY, key, ENTRY);
        w[h] = -0x1p-100f;
    }
    const uint8_t *keys[1] = {key};
    void *scratch = aligned_alloc(64, (HEADS * (DIM + 64) * 4 + 4096) / 64 * 64 + 64);
    assert_non_null(scratch);
    FOR_EACH_TABLE(k) {
        for (size_t heads = 1; heads <= HEADS; heads++) {
            float score = 1.0f;
            k->index_scores(q, w, heads, DIM, keys, 1, &score, scratch);
            assert_true(score == 0.0f);
            assert_int_equal(signbit(score) != 0, heads % 16 == 0);
        }
    }
    free(scratch);
}

/* The reference's own bits: the same on every machine, compiler and optimisation level. Changes with the cases. */
static void test_reference_hash(void **state) {
    (void)state;
    if (case_hash != 0x902e61339a66f342ull)
        fail_msg("hash of the scalar results is %016llx", (unsigned long long)case_hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_counts), cmocka_unit_test(test_attention_heads),
        cmocka_unit_test(test_attention_values), cmocka_unit_test(test_attention_gaps),
        cmocka_unit_test(test_attention_alone),  cmocka_unit_test(test_attention_release),
        cmocka_unit_test(test_attention_many),   cmocka_unit_test(test_index_shapes),
        cmocka_unit_test(test_index_values),     cmocka_unit_test(test_index_zero),
        cmocka_unit_test(test_reference_hash),
    };
    name_skipped_tables();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
