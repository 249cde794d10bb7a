/* The sample op's arithmetic: the steps and their order are written down in backend/sample.h and docs/numerics.md.
 *
 * Exact shortcuts only. Truncations are cuts in the total order (value descending, id ascending), found by a radix
 * selection over weights that are integers, so no sort is needed and the order of addition does not matter. Noise is
 * computed only for candidates that could still win: rounding is monotonic, so a candidate whose upper bound is below
 * the best score so far cannot reach it. */
#include "backend/sample.h"

#include "backend/cpu/math.h"
#include "base/philox.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows and ids are hashed as they lie in memory");

enum { LANES = 16, BUCKETS = 2048, WEIGHT_BITS = 40 };

#define REMOVED (-INFINITY) /* a candidate that is gone; processed logits are finite */

/* E >= 2^-33 and E >= 2^-(z + 1) if the 32 bits have z leading zeros, so -log E is below these. */
#define NOISE_MAXIMUM 22.88
#define LN2_ABOVE     0.6931472

typedef struct scratch {
    float *values;       /* [V] processed logits */
    float *weights;      /* [V] di_expf(l - l_max) of the survivors of top-k */
    uint64_t *histogram; /* [BUCKETS] */
} scratch;

/* What a truncation leaves: values above `value`, and those equal to it with an id up to last_id. */
typedef struct cut {
    float value;
    int64_t last_id;
} cut;

static const cut no_cut = {-FLT_MAX, INT64_MAX};

static size_t padded(uint32_t vocabulary) {
    return ((size_t)vocabulary + LANES - 1) / LANES * LANES;
}

size_t di_sample_scratch(uint32_t vocabulary) {
    return 2 * padded(vocabulary) * sizeof(float) + BUCKETS * sizeof(uint64_t);
}

static scratch layout(void *memory, uint32_t vocabulary) {
    float *floats = memory;
    size_t n = padded(vocabulary);
    return (scratch){floats, floats + n, (uint64_t *)(void *)(floats + 2 * n)};
}

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* Ascending unsigned order of finite floats, -0 folded into +0. */
static uint32_t order_key(float x) {
    uint32_t bits = bits_of(x);
    if (bits == 0x80000000u) bits = 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static float from_order_key(uint32_t key) {
    uint32_t bits = key >> 31 ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static bool all_finite(const float *x, uint32_t n) {
    uint32_t special = 0;
    for (uint32_t i = 0; i < n; i++) special |= (bits_of(x[i]) & 0x7f800000u) == 0x7f800000u;
    return !special;
}

static float maximum(const float *x, uint32_t n) {
    float lane[LANES];
    for (int l = 0; l < LANES; l++) lane[l] = REMOVED;
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lane[l] = x[i + l] > lane[l] ? x[i + l] : lane[l];
    for (; i < n; i++) lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    float best = lane[0];
    for (int l = 1; l < LANES; l++) best = lane[l] > best ? lane[l] : best;
    return best;
}

/* Lowest id of the value, -1 if it is nowhere. */
static int32_t first_of(const float *x, uint32_t n, float value) {
    for (uint32_t i = 0; i < n; i++)
        if (x[i] == value) return (int32_t)i;
    return -1;
}

/* log(sum of exp(x - maximum)) */
static double log_sum(const float *x, uint32_t n, float max) {
    double lane[LANES] = {0};
    for (uint32_t i = 0; i < n; i++) lane[i % LANES] += (double)di_expf(x[i] - max);
    for (int half = LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) lane[l] += lane[l + half];
    return di_log_double(lane[0]);
}

static float log_probability(float x, float max, double log_of_sum) {
    return (float)(((double)x - (double)max) - log_of_sum);
}

bool di_sample_logprobs(const float *logits, uint32_t vocabulary, const int32_t *ids, uint32_t count, float *logprobs,
                        int32_t *best) {
    if (!all_finite(logits, vocabulary)) return false;
    float max = maximum(logits, vocabulary);
    if (best) *best = first_of(logits, vocabulary, max);
    if (!count) return true;
    double log_of_sum = log_sum(logits, vocabulary, max);
    for (uint32_t i = 0; i < count; i++) logprobs[i] = log_probability(logits[ids[i]], max, log_of_sum);
    return true;
}

/* ---------------------------------------------------------------------------------------------- truncation */

static uint64_t weight_of(float e) {
    return (uint64_t)((double)e * (double)(1ull << WEIGHT_BITS));
}

/* The survivors are those with less than `need` weight before them in the total order. weights NULL: 1 each, otherwise
 * weight_of; all survivors of an earlier cut with equal values have equal weights, the others have none. The sum of all
 * weights is at least `need` and need is at least 1. */
static cut select_cut(const float *x, const float *weights, uint32_t n, uint64_t need, uint64_t *histogram) {
    static const struct { unsigned shift, width; } levels[3] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t prefix = 0; /* the key's bits found so far */
    uint64_t before = 0; /* weight above them */
    for (int level = 0; level < 3; level++) {
        unsigned shift = levels[level].shift, above = shift + levels[level].width;
        uint32_t buckets = 1u << levels[level].width;
        memset(histogram, 0, buckets * sizeof *histogram);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t key = order_key(x[i]);
            if (x[i] == REMOVED || (level && key >> above != prefix)) continue;
            histogram[(key >> shift) & (buckets - 1)] += weights ? weight_of(weights[i]) : 1;
        }
        uint32_t bucket = buckets - 1;
        while (bucket && before + histogram[bucket] < need) before += histogram[bucket--];
        prefix = prefix << levels[level].width | bucket;
    }
    cut result = {from_order_key(prefix), -1};
    for (uint32_t i = 0; i < n && before < need; i++)
        if (x[i] == result.value) {
            before += weights ? weight_of(weights[i]) : 1;
            result.last_id = i;
        }
    return result;
}

static bool survives(cut c, float x, uint32_t id) {
    return x > c.value || (x == c.value && (int64_t)id <= c.last_id);
}

/* di_expf(l - l_max) where it counts in 2^-40, else 0. */
static float relative(float x, double temperature, double l_max) {
    double difference = (double)x / temperature - l_max;
    return difference < -28.0 ? 0.0f : di_expf((float)difference);
}

static cut find_cut(const di_sample_item *item, uint32_t n, const scratch *s, double l_max) {
    cut c = no_cut;
    if (item->top_k > 0 && (uint32_t)item->top_k < n) {
        uint64_t candidates = 0;
        for (uint32_t i = 0; i < n; i++) candidates += s->values[i] != REMOVED;
        if (candidates > (uint32_t)item->top_k) c = select_cut(s->values, NULL, n, (uint32_t)item->top_k, s->histogram);
    }
    if (item->top_p < 1.0f) {
        uint64_t sum = 0;
        for (uint32_t i = 0; i < n; i++) {
            bool in = s->values[i] != REMOVED && survives(c, s->values[i], i);
            s->weights[i] = in ? relative(s->values[i], (double)item->temperature, l_max) : 0.0f;
            sum += weight_of(s->weights[i]);
        }
        uint64_t share = (uint64_t)((double)item->top_p * 4294967296.0);
        if (share == 0) share = 1;
        /* ceil(share * sum / 2^32) without a 128-bit product */
        uint64_t need = (sum >> 32) * share + (((sum & 0xffffffffu) * share + 0xffffffffu) >> 32);
        c = select_cut(s->values, s->weights, n, need, s->histogram);
    }
    return c;
}

/* ---------------------------------------------------------------------------------------------- noise and choice */

static void noise_words(uint64_t key, int64_t position, uint32_t group, uint32_t words[4]) {
    const uint32_t k[2] = {(uint32_t)key, (uint32_t)(key >> 32)};
    const uint32_t counter[4] = {group, (uint32_t)position, 0, 1};
    di_philox4x32(k, counter, words);
}

static double exponential(uint32_t bits) {
    double u = ((double)bits + 0.5) * 0x1p-32;
    if (u > 1.0 - 0x1p-24) u = 1.0 - 0x1p-24;
    return -di_log1p_double(-u);
}

double di_sample_noise(uint64_t key, int64_t position, uint32_t token_id) {
    uint32_t words[4];
    noise_words(key, position, token_id >> 2, words);
    return exponential(words[token_id & 3]);
}

/* Candidates below this cannot reach `best`, whatever their noise: x / T + NOISE_MAXIMUM < best, with room for
 * rounding.
 */
static double hopeless_below(double best, double temperature) {
    double size = best < 0 ? -best : best;
    return (best - NOISE_MAXIMUM - (size + 23.0) * 0x1p-40) * temperature;
}

/* argmax of l - log E over the survivors; `top` is the id of the largest value (every truncation keeps it). */
static int32_t choose(const di_sample_item *item, const float *x, uint32_t n, cut c, uint32_t top, double l_max) {
    double temperature = (double)item->temperature;
    uint32_t winner = top;
    double best = l_max - di_log_double(di_sample_noise(item->key, item->position, top));
    double floor_value = hopeless_below(best, temperature);
    for (uint32_t base = 0; base < n; base += 4) {
        uint32_t end = n - base < 4 ? n : base + 4;
        bool hopeful = false;
        for (uint32_t v = base; v < end; v++) hopeful |= x[v] >= c.value && (double)x[v] >= floor_value;
        if (!hopeful) continue;
        uint32_t words[4];
        noise_words(item->key, item->position, base >> 2, words);
        for (uint32_t v = base; v < end; v++) {
            if (!survives(c, x[v], v)) continue;
            uint32_t bits = words[v - base];
            double l = (double)x[v] / temperature;
            int leading_zeros = bits ? __builtin_clz(bits) : 32;
            if (l + (double)(leading_zeros + 1) * LN2_ABOVE < best) continue;
            double score = l - di_log_double(exponential(bits));
            if (score < best || (score == best && v >= winner)) continue;
            if (item->min_p > 0.0f && relative(x[v], temperature, l_max) < item->min_p) continue;
            winner = v;
            best = score;
            floor_value = hopeless_below(best, temperature);
        }
    }
    return (int32_t)winner;
}

/* ---------------------------------------------------------------------------------------------- masked logits */

static float saturate(float x) {
    return x > FLT_MAX ? FLT_MAX : x < -FLT_MAX ? -FLT_MAX : x;
}

static void penalise(const di_sample_item *item, uint32_t n, float *x) {
    for (uint32_t i = 0; i < item->bias_count; i++) {
        const di_sample_bias *b = &item->bias[i];
        if ((uint32_t)b->token_id < n) x[b->token_id] = saturate(x[b->token_id] + b->bias);
    }
    for (uint32_t i = 0; i < item->count_count; i++) {
        const di_sample_count *count = &item->counts[i];
        if ((uint32_t)count->token_id >= n) continue;
        float value = x[count->token_id];
        if (count->prompt || count->output)
            value = value > 0.0f ? value / item->repetition_penalty : value * item->repetition_penalty;
        if (count->output) value = (value - item->presence_penalty) - item->frequency_penalty * (float)count->output;
        x[count->token_id] = saturate(value);
    }
}

static void mask(const di_sample_item *item, uint32_t n, float *x) {
    for (uint32_t i = 0; i < item->banned_count; i++)
        if ((uint32_t)item->banned[i] < n) x[item->banned[i]] = REMOVED;
    if (!item->mask) return;
    for (uint32_t base = 0; base < n; base += 64) {
        uint64_t allowed = item->mask[base / 64];
        if (allowed == UINT64_MAX) continue;
        uint32_t end = n - base < 64 ? n : base + 64;
        for (uint32_t v = base; v < end; v++)
            if (!(allowed >> (v - base) & 1)) x[v] = REMOVED;
    }
}

/* ---------------------------------------------------------------------------------------------- best N */

static bool ranks_before(const di_sample_top *a, const di_sample_top *b) {
    return a->logprob > b->logprob || (a->logprob == b->logprob && a->token_id < b->token_id);
}

/* Heap sort: nothing is allocated and the total order leaves one result. */
static void sort_top(di_sample_top *a, uint32_t n) {
    for (uint32_t build = n / 2, size = n; size > 1;) {
        if (build) {
            build--;
        } else {
            di_sample_top last = a[--size];
            a[size] = a[0];
            a[0] = last;
        }
        for (uint32_t i = build, child; (child = 2 * i + 1) < size; i = child) {
            if (child + 1 < size && ranks_before(&a[child], &a[child + 1])) child++;
            if (!ranks_before(&a[i], &a[child])) break;
            di_sample_top swap = a[i];
            a[i] = a[child];
            a[child] = swap;
        }
    }
}

static void best_logprobs(const float *x, uint32_t n, uint32_t wanted, float max, double log_of_sum, di_sample_top *top,
                          uint64_t *histogram) {
    uint32_t found = 0, limit = wanted < n ? wanted : n;
    cut c = limit < n ? select_cut(x, NULL, n, limit, histogram) : no_cut;
    for (uint32_t v = 0; v < n && found < limit; v++)
        if (survives(c, x[v], v)) top[found++] = (di_sample_top){(int32_t)v, x[v]};
    sort_top(top, found);
    for (uint32_t i = 0; i < found; i++) top[i].logprob = log_probability(top[i].logprob, max, log_of_sum);
    for (uint32_t i = found; i < wanted; i++) top[i] = (di_sample_top){-1, 0.0f};
}

/* ---------------------------------------------------------------------------------------------- the op */

static int32_t pick(const float *logits, uint32_t n, const di_sample_item *item, const scratch *s) {
    if (item->forced >= 0) return (uint32_t)item->forced < n ? item->forced : -1;
    memcpy(s->values, logits, n * sizeof *logits);
    penalise(item, n, s->values);
    mask(item, n, s->values);
    float max = maximum(s->values, n);
    if (max == REMOVED) return -1;
    int32_t top = first_of(s->values, n, max);
    if (item->temperature == 0.0f) return top;
    double l_max = (double)max / (double)item->temperature;
    return choose(item, s->values, n, find_cut(item, n, s, l_max), (uint32_t)top, l_max);
}

void di_sample_row(const float *logits, uint32_t vocabulary, const di_sample_item *item, di_sample_result *result,
                   di_sample_top *top, void *memory) {
    *result = (di_sample_result){.token_id = -1, .hash = item->hash_seed};
    if (!all_finite(logits, vocabulary)) {
        result->numeric_fault = true;
        return;
    }
    scratch s = layout(memory, vocabulary);
    if (item->hash) result->hash = XXH64(logits, (size_t)vocabulary * sizeof *logits, item->hash_seed);
    result->token_id = pick(logits, vocabulary, item, &s);
    if (item->logprobs < 0) return;
    float max = maximum(logits, vocabulary);
    double log_of_sum = log_sum(logits, vocabulary, max);
    if (result->token_id >= 0) result->logprob = log_probability(logits[result->token_id], max, log_of_sum);
    if (item->logprobs > 0)
        best_logprobs(logits, vocabulary, (uint32_t)item->logprobs, max, log_of_sum, top, s.histogram);
}
