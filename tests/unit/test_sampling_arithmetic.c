/* needs: backend_cpu tensor base */
/* The sample op's arithmetic: golden noise and golden ids (tests/tools/golden_noise.py), then byte equality with a slow
 * reference that sorts everything and computes all noise, then edges. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "backend/cpu/math.h"
#include "backend/sample.h"
#include "base/arena.h"
#include "base/json.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { LARGE = 129280 };

#define GOLDEN_LOGPROBS 0xabf073a77b557650u

typedef struct row {
    uint32_t n;
    float *x;
    void *scratch;
} row;

static row new_row(uint32_t n) {
    row r = {n, malloc(n * sizeof(float)), di_aligned_alloc(1, di_sample_scratch(n))};
    assert_non_null(r.x);
    assert_non_null(r.scratch);
    return r;
}

static void free_row(row *r) {
    free(r->x);
    di_aligned_free(r->scratch);
}

static uint64_t draw(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    uint64_t z = *state;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (z ^ z >> 31) >> 40;
}

/* The rows of golden_noise.py. */
static void fill(row *r, uint64_t state, float span, uint32_t levels) {
    for (uint32_t i = 0; i < r->n; i++) {
        if (levels) {
            r->x[i] = (float)((int64_t)(draw(&state) % levels) - (int64_t)(levels / 2)) * span;
        } else {
            int64_t sum = 0;
            for (int k = 0; k < 4; k++) sum += (int64_t)draw(&state);
            sum -= 4ll << 23;
            r->x[i] = (float)(sum >> 2) * 0x1p-23f * span;
        }
    }
}

static di_sample_item neutral(void) {
    return (di_sample_item){.temperature = 1.0f,
                            .top_p = 1.0f,
                            .repetition_penalty = 1.0f,
                            .forced = -1,
                            .logprobs = -1,
                            .key = 0x123456789abcdef0u,
                            .position = 77};
}

static int32_t run(row *r, const di_sample_item *item) {
    di_sample_result result;
    float *before = malloc(r->n * sizeof(float));
    assert_non_null(before);
    memcpy(before, r->x, r->n * sizeof(float));
    memset(r->scratch, 0xA5, di_sample_scratch(r->n));
    di_sample_row(r->x, r->n, item, &result, NULL, r->scratch);
    assert_memory_equal(before, r->x, r->n * sizeof(float));
    free(before);
    assert_false(result.numeric_fault);
    return result.token_id;
}

/* ---------------------------------------------------------------------------------------------- golden files */

typedef void (*on_line)(const di_json *line, unsigned number);

static unsigned each_line(const char *name, on_line check) {
    char path[512], *text;
    size_t length;
    snprintf(path, sizeof path, "%s/sampling/%s", DI_TEST_DATA, name);
    assert_int_equal(di_read_file(path, 1u << 24, &text, &length, NULL), DI_OK);
    di_arena *arena = di_arena_new(0);
    unsigned count = 0;
    for (char *at = text; at < text + length;) {
        char *end = memchr(at, '\n', (size_t)(text + length - at));
        assert_non_null(end);
        const di_json *line;
        di_error error;
        assert_int_equal(di_json_parse(arena, at, (size_t)(end - at), 0, &line, &error), DI_OK);
        check(line, ++count);
        di_arena_reset(arena);
        at = end + 1;
    }
    di_arena_free(arena);
    free(text);
    return count;
}

static uint64_t get_unsigned(const di_json *object, const char *key) {
    uint64_t value = 0;
    const di_json *node = di_json_get(object, key);
    if (node) assert_true(di_json_uint64(node, &value));
    return value;
}

static float get_float(const di_json *object, const char *key, double missing) {
    const di_json *node = di_json_get(object, key);
    if (node) assert_true(di_json_double(node, &missing));
    return (float)missing;
}

static int64_t integer(const di_json *node) {
    int64_t value = 0;
    assert_true(di_json_int64(node, &value));
    return value;
}

static void check_noise(const di_json *line, unsigned number) {
    (void)number;
    uint64_t key = get_unsigned(line, "key");
    int64_t position = (int64_t)get_unsigned(line, "position");
    for (const di_json *pair = di_json_get(line, "noise")->first; pair; pair = pair->next) {
        double expected = strtod(pair->first->next->text, NULL);
        double actual = di_sample_noise(key, position, (uint32_t)integer(pair->first));
        uint64_t a, b;
        memcpy(&a, &expected, sizeof a);
        memcpy(&b, &actual, sizeof b);
        assert_true(a - b + 1 <= 2);
    }
}

static void test_golden_noise(void **state) {
    (void)state;
    assert_int_equal(each_line("noise.jsonl", check_noise), 28);
}

static void check_case(const di_json *line, unsigned number) {
    row r = new_row((uint32_t)get_unsigned(line, "count"));
    fill(&r, get_unsigned(line, "row"), get_float(line, "span", 1), (uint32_t)get_unsigned(line, "levels"));
    di_sample_bias bias[8];
    di_sample_count counts[32];
    int32_t banned[512];
    di_sample_item item = neutral();
    item.key = get_unsigned(line, "key");
    item.position = (int64_t)get_unsigned(line, "position");
    item.temperature = get_float(line, "temperature", 1);
    item.top_k = (int32_t)get_unsigned(line, "top_k");
    item.top_p = get_float(line, "top_p", 1);
    item.min_p = get_float(line, "min_p", 0);
    item.repetition_penalty = get_float(line, "repetition", 1);
    item.presence_penalty = get_float(line, "presence", 0);
    item.frequency_penalty = get_float(line, "frequency", 0);
    const di_json *list = di_json_get(line, "bias");
    for (const di_json *at = list ? list->first : NULL; at; at = at->next) {
        double value;
        assert_true(di_json_double(at->first->next, &value));
        bias[item.bias_count++] = (di_sample_bias){(int32_t)integer(at->first), (float)value};
    }
    list = di_json_get(line, "counts");
    for (const di_json *at = list ? list->first : NULL; at; at = at->next)
        counts[item.count_count++] = (di_sample_count){(int32_t)integer(at->first), (uint32_t)integer(at->first->next),
                                                       (uint32_t)integer(at->first->next->next)};
    list = di_json_get(line, "banned");
    for (const di_json *at = list ? list->first : NULL; at; at = at->next)
        banned[item.banned_count++] = (int32_t)integer(at);
    item.bias = bias;
    item.counts = counts;
    item.banned = banned;
    int32_t id = run(&r, &item), expected = (int32_t)integer(di_json_get(line, "id"));
    if (id != expected) fail_msg("cases.jsonl line %u: id %d, expected %d", number, id, expected);
    free_row(&r);
}

static void test_golden_ids(void **state) {
    (void)state;
    assert_true(each_line("cases.jsonl", check_case) >= 500);
}

/* ---------------------------------------------------------------------------------------------- slow reference */

static const float *sort_values;

static int by_order(const void *a, const void *b) {
    uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    if (sort_values[i] != sort_values[j]) return sort_values[i] > sort_values[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Only truncation and choice; `allowed` may be NULL. */
static int32_t slow_choice(const float *x, uint32_t n, const di_sample_item *item, const bool *allowed) {
    uint32_t *order = malloc((n + 1) * sizeof *order), count = 0;
    assert_non_null(order);
    for (uint32_t v = 0; v < n; v++)
        if (!allowed || allowed[v]) order[count++] = v;
    sort_values = x;
    qsort(order, count, sizeof *order, by_order);
    int32_t winner = -1;
    if (item->temperature == 0.0f || !count) {
        winner = count ? (int32_t)order[0] : -1;
        free(order);
        return winner;
    }
    double t = (double)item->temperature, l_max = (double)x[order[0]] / t;
    if (item->top_k > 0 && count > (uint32_t)item->top_k) count = (uint32_t)item->top_k;
    double best = 0;
    unsigned __int128 sum = 0, before = 0;
    for (int pass = 0; pass < 2; pass++)
        for (uint32_t i = 0; i < count; i++) {
            double difference = (double)x[order[i]] / t - l_max;
            float e = difference < -28 ? 0.0f : di_expf((float)difference);
            uint64_t weight = (uint64_t)((double)e * 0x1p40);
            if (pass == 0) {
                sum += weight;
                continue;
            }
            uint64_t share = (uint64_t)((double)item->top_p * 0x1p32);
            if (item->top_p < 1 && before << 32 >= (share ? share : 1) * sum) break;
            before += weight;
            if (e < item->min_p) continue;
            double score =
                (double)x[order[i]] / t - di_log_double(di_sample_noise(item->key, item->position, order[i]));
            if (winner < 0 || score > best || (score == best && (int32_t)order[i] < winner)) {
                winner = (int32_t)order[i];
                best = score;
            }
        }
    free(order);
    return winner;
}

static void test_equals_slow_reference(void **state) {
    (void)state;
    uint64_t s = 5;
    for (int round = 0; round < 3000; round++) {
        static const uint32_t sizes[] = {1, 3, 4, 15, 16, 17, 100, 1000, 4096};
        static const float spans[] = {0.0f, 1e-3f, 1.0f, 8.0f, 30.0f, 1000.0f, 1e30f};
        static const float temperatures[] = {0.0f, 1e-45f, 1e-30f, 0.1f, 0.7f, 1.0f, 3.0f, 1e6f, 3e38f};
        static const float top_ps[] = {1.0f, 1.0f, 0.9999999f, 0.95f, 0.5f, 0.01f, 1e-20f, 1e-45f};
        static const float min_ps[] = {0.0f, 0.0f, 0.0f, 1e-6f, 0.02f, 0.5f, 1.0f};
        row r = new_row(sizes[draw(&s) % 9]);
        fill(&r, s, spans[draw(&s) % 7], draw(&s) % 2 ? 0 : (uint32_t)(1 + draw(&s) % 20));
        for (uint32_t i = 0; i < r.n; i++)
            if (r.x[i] == 0.0f && draw(&s) % 2) r.x[i] = -0.0f;
        di_sample_item item = neutral();
        item.key = draw(&s) << 40 | draw(&s);
        item.temperature = temperatures[draw(&s) % 9];
        item.top_p = top_ps[draw(&s) % 8];
        item.min_p = min_ps[draw(&s) % 7];
        item.top_k = draw(&s) % 2 ? 0 : (int32_t)(draw(&s) % (r.n + 2)) - 1;
        uint64_t mask[64 + 1];
        bool allowed[4096];
        if (draw(&s) % 2) {
            uint64_t kind = draw(&s) % 3;
            for (uint32_t i = 0; i < 65; i++)
                mask[i] = kind == 0 ? UINT64_MAX : kind == 1 ? draw(&s) << 41 ^ draw(&s) << 20 ^ draw(&s) : 0;
            if (kind == 2) mask[draw(&s) % 65] = 1u << draw(&s) % 10;
            for (uint32_t i = 0; i < r.n; i++) allowed[i] = mask[i / 64] >> i % 64 & 1;
            item.mask = mask;
        }
        int32_t expected = slow_choice(r.x, r.n, &item, item.mask ? allowed : NULL);
        int32_t actual = run(&r, &item);
        if (actual != expected) fail_msg("round %d: id %d, reference %d", round, actual, expected);
        free_row(&r);
    }
}

/* ---------------------------------------------------------------------------------------------- edges */

static void test_ties_and_greedy(void **state) {
    (void)state;
    row r = new_row(100);
    di_sample_item item = neutral();
    for (uint32_t i = 0; i < r.n; i++) r.x[i] = i % 2 ? 0.0f : -0.0f;
    item.temperature = 0;
    assert_int_equal(run(&r, &item), 0); /* -0 and +0 are equal: lowest id */
    int32_t banned[] = {0, 1, 2, 3};
    item.banned = banned;
    item.banned_count = 4;
    assert_int_equal(run(&r, &item), 4);
    item.temperature = 1;
    item.top_k = 1;
    assert_int_equal(run(&r, &item), 4); /* of equal values top-k keeps the lowest ids */
    item.top_k = 0;
    item.top_p = 1e-6f;
    assert_int_equal(run(&r, &item), 4);
    item.top_p = 0.5f; /* 96 equal weights: the first 48 stay */
    for (int64_t position = 0; position < 300; position++) {
        item.position = position;
        int32_t id = run(&r, &item);
        assert_in_range(id, 4, 51);
    }
    free_row(&r);
}

/* Two ids whose first has just less, or exactly, the share that top_p asks for: the rounding of `need` decides. */
static void test_top_p_boundary(void **state) {
    (void)state;
    row r = new_row(2);
    di_sample_item item = neutral();
    item.top_p = 8604205.0f * 0x1p-24f;
    for (int below = 0; below < 2; below++) {
        r.x[0] = 0;
        r.x[1] = below ? -0x1.a52e5p-5f : -0x1.a52e4ep-5f;
        unsigned second = 0;
        for (item.position = 0; item.position < 200; item.position++) second += run(&r, &item) == 1;
        if (below)
            assert_int_equal(second, 0);
        else
            assert_in_range(second, 50, 150);
    }
    free_row(&r);
}

static void test_nothing_left(void **state) {
    (void)state;
    row r = new_row(70);
    fill(&r, 9, 4, 0);
    uint64_t mask[2] = {0, 0};
    di_sample_item item = neutral();
    item.mask = mask;
    for (int greedy = 0; greedy < 2; greedy++) {
        item.temperature = (float)!greedy;
        mask[1] = 0;
        assert_int_equal(run(&r, &item), -1);
        mask[1] = 1ull << 40; /* id 104 does not exist */
        assert_int_equal(run(&r, &item), -1);
        mask[1] = 1ull << 5;
        assert_int_equal(run(&r, &item), 69);
    }
    free_row(&r);
}

static void test_not_a_number(void **state) {
    (void)state;
    row r = new_row(70);
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (uint32_t at = 0; at < r.n; at += 23)
        for (int b = 0; b < 4; b++) {
            fill(&r, 9, 4, 0);
            r.x[at] = bad[b];
            di_sample_item item = neutral();
            item.hash = true;
            item.hash_seed = 99;
            item.forced = 3;
            di_sample_result result;
            di_sample_row(r.x, r.n, &item, &result, NULL, r.scratch);
            assert_true(result.numeric_fault);
            assert_int_equal(result.token_id, -1);
            assert_true(result.hash == 99);
            assert_false(di_sample_logprobs(r.x, r.n, NULL, 0, NULL, NULL));
        }
    free_row(&r);
}

static void test_penalties(void **state) {
    (void)state;
    row r = new_row(4);
    di_sample_item item = neutral();
    item.temperature = 0;
    const float x[] = {4, 3.5f, -1, -2};
    memcpy(r.x, x, sizeof x);
    di_sample_count counts[] = {{0, 1, 0}, {2, 0, 0}};
    item.counts = counts;
    item.count_count = 2;
    item.presence_penalty = 2;
    assert_int_equal(run(&r, &item), 0); /* presence looks at the output only */
    item.repetition_penalty = 1.25f;     /* 3.2 */
    assert_int_equal(run(&r, &item), 1);
    item.repetition_penalty = 1;
    counts[0] = (di_sample_count){0, 0, 3};
    item.presence_penalty = 0;
    item.frequency_penalty = 0.125f;
    assert_int_equal(run(&r, &item), 0); /* 3.625 */
    item.presence_penalty = 0.25f;
    assert_int_equal(run(&r, &item), 1);
    /* a negative logit is multiplied; what overflows stays a candidate */
    item = neutral();
    item.temperature = 0;
    item.counts = counts;
    item.count_count = 1;
    item.repetition_penalty = FLT_MAX;
    r.x[0] = -3;
    int32_t banned[] = {1, 2, 3};
    item.banned = banned;
    item.banned_count = 3;
    assert_int_equal(run(&r, &item), 0);
    item.temperature = 0.5f;
    assert_int_equal(run(&r, &item), 0);
    di_sample_bias bias[] = {{3, 100}};
    item = neutral();
    item.bias = bias;
    item.bias_count = 1;
    assert_int_equal(run(&r, &item), 3);
    free_row(&r);
}

static void test_forced(void **state) {
    (void)state;
    row r = new_row(50);
    fill(&r, 3, 4, 0);
    di_sample_item item = neutral();
    int32_t banned[] = {7};
    item.banned = banned;
    item.banned_count = 1;
    item.forced = 7;
    item.logprobs = 0;
    di_sample_result result;
    di_sample_row(r.x, r.n, &item, &result, NULL, r.scratch);
    assert_int_equal(result.token_id, 7);
    float logprob;
    int32_t id = 7;
    assert_true(di_sample_logprobs(r.x, r.n, &id, 1, &logprob, NULL));
    assert_memory_equal(&logprob, &result.logprob, sizeof logprob);
    item.forced = 50;
    assert_int_equal(run(&r, &item), -1);
    free_row(&r);
}

static void test_logprobs(void **state) {
    (void)state;
    for (uint32_t n = 1; n < 70; n += 4) {
        row r = new_row(n);
        fill(&r, n, n % 3 ? 8 : 1, n % 3 ? 0 : 4);
        double sum = 0, max = -INFINITY;
        for (uint32_t i = 0; i < n; i++) max = fmax(max, (double)r.x[i]);
        for (uint32_t i = 0; i < n; i++) sum += exp((double)r.x[i] - max);
        di_sample_item item = neutral();
        item.logprobs = (int32_t)n + 2;
        item.hash = true;
        item.hash_seed = n;
        di_sample_top top[80];
        di_sample_result result;
        di_sample_row(r.x, n, &item, &result, top, r.scratch);
        assert_true(result.hash == XXH64(r.x, n * 4, n));
        uint32_t *order = malloc(n * sizeof *order);
        assert_non_null(order);
        for (uint32_t i = 0; i < n; i++) order[i] = i;
        sort_values = r.x;
        qsort(order, n, sizeof *order, by_order);
        for (uint32_t i = 0; i < n; i++) {
            assert_int_equal(top[i].token_id, order[i]);
            double expected = (double)r.x[order[i]] - max - log(sum);
            assert_true(fabs((double)top[i].logprob - expected) <= 2e-6 * (1 + fabs(expected)));
            if ((int32_t)order[i] == result.token_id)
                assert_memory_equal(&top[i].logprob, &result.logprob, sizeof(float));
        }
        assert_int_equal(top[n].token_id, -1);
        assert_int_equal(top[n + 1].token_id, -1);
        int32_t best, best_one;
        float logprob;
        assert_true(di_sample_logprobs(r.x, n, &top[0].token_id, 1, &logprob, &best));
        assert_int_equal(best, top[0].token_id);
        assert_memory_equal(&logprob, &top[0].logprob, sizeof(float));
        if (n > 20) {
            di_sample_top few[20];
            item.logprobs = 20;
            di_sample_row(r.x, n, &item, &result, few, r.scratch);
            assert_memory_equal(few, top, sizeof few);
            item.logprobs = 1;
            di_sample_row(r.x, n, &item, &result, few, r.scratch);
            best_one = few[0].token_id;
            assert_int_equal(best_one, top[0].token_id);
        }
        free(order);
        free_row(&r);
    }
}

/* The noise makes samples of the softmax: chi-square of 20,000 draws over 8 ids. */
static void test_distribution(void **state) {
    (void)state;
    row r = new_row(8);
    fill(&r, 4, 2, 0);
    double p[8], sum = 0, chi = 0;
    for (int i = 0; i < 8; i++) sum += p[i] = exp((double)r.x[i] / 0.5);
    unsigned seen[8] = {0}, draws = 20000;
    di_sample_item item = neutral();
    item.temperature = 0.5f;
    for (unsigned i = 0; i < draws; i++) {
        item.position = i;
        seen[run(&r, &item)]++;
    }
    for (int i = 0; i < 8; i++) {
        double expected = p[i] / sum * draws;
        chi += ((double)seen[i] - expected) * ((double)seen[i] - expected) / expected;
    }
    assert_true(chi < 24.3); /* 7 degrees of freedom, one in a thousand */
    free_row(&r);
}

static void test_large_rows(void **state) {
    (void)state;
    row r = new_row(LARGE);
    for (uint64_t seed = 0; seed < 6; seed++) {
        fill(&r, seed, seed == 5 ? 0 : 14, seed == 4 ? 30 : 0);
        for (int variant = 0; variant < 3; variant++) {
            di_sample_item item = neutral();
            item.key = seed;
            if (variant == 1) item.top_k = 40;
            if (variant == 2) item.top_p = 0.95f;
            assert_int_equal(run(&r, &item), slow_choice(r.x, r.n, &item, NULL));
        }
    }
    free_row(&r);
}

/* Bits of log-probabilities, equal on every compiler and machine. */
static void test_logprob_bits(void **state) {
    (void)state;
    row r = new_row(LARGE);
    di_sample_top *top = malloc(1000 * sizeof *top);
    assert_non_null(top);
    uint64_t hash = 0;
    for (uint64_t seed = 0; seed < 4; seed++) {
        fill(&r, seed, (float)(2 << seed), 0);
        di_sample_item item = neutral();
        item.logprobs = 1000;
        di_sample_result result;
        di_sample_row(r.x, r.n, &item, &result, top, r.scratch);
        hash = XXH64(top, 1000 * sizeof *top, hash);
        hash = XXH64(&result.logprob, sizeof result.logprob, hash);
    }
    if (hash != GOLDEN_LOGPROBS) fail_msg("hash %016llx", (unsigned long long)hash);
    free(top);
    free_row(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_noise),    cmocka_unit_test(test_golden_ids),
        cmocka_unit_test(test_ties_and_greedy), cmocka_unit_test(test_equals_slow_reference),
        cmocka_unit_test(test_nothing_left),    cmocka_unit_test(test_not_a_number),
        cmocka_unit_test(test_penalties),       cmocka_unit_test(test_forced),
        cmocka_unit_test(test_logprobs),        cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_large_rows),      cmocka_unit_test(test_top_p_boundary),
        cmocka_unit_test(test_logprob_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
