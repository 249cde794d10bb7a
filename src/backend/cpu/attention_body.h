/* attention_body.h - sink attention over lanes.h; compiled once an instruction set by attention_avx2.c and
 * attention_avx512.c. Bytes equal scalar.c.
 *
 * A tile of at most 64 keys is decoded once to fp32; then scores of all heads, softmax of all heads, values of all
 * heads. Blocks of heads x keys (scores) and heads x channels (values) stay in registers; the order of every sum is
 * rule 5's. Key rows stand one cache line further apart than their length where that would be a multiple of 1 KiB, so
 * that a column of the tile spreads over the first-level cache.
 */
#include "backend/cpu/lanes.h"
#include "backend/cpu/lanes_math.h"
#include "backend/cpu/vectors.h"
#include "tensor/codec.h"

enum { TILE = 64, BLOCK = 32, HEAD_BLOCK = 4 };

#if defined(__AVX512F__)
enum { KEY_BLOCK = 4, VALUE_HEADS = 8, VALUE_LANES = 2 };
#else
enum { KEY_BLOCK = 3, VALUE_HEADS = 4, VALUE_LANES = 1 };
#endif

/* A function of its own: inlined into each other, the loops take each other's registers. */
#define DI_APART static __attribute__((noinline))

/* One row's work; all arrays in the caller's scratch. */
typedef struct attention_work {
    const di_cpu_attention *a;
    size_t stride;  /* floats between key rows */
    size_t count;   /* keys of the tile */
    float *keys;    /* [64][stride] */
    float *queries; /* [HEAD_BLOCK][d] */
    float *o;       /* [heads][d] */
    float *p;       /* [heads][64]: scores, then probabilities */
    float *maximum; /* [heads] */
    float *fade;    /* [heads] */
    float *sum;     /* [heads]: denominator */
} attention_work;

/* ---------------------------------------------------------------- keys */

static void decode_window(const uint8_t *entry, size_t d, float *key) {
    for (size_t i = 0; i < d; i += BLOCK) {
        const lanes scale = lanes_set(di_e8m0_decode(entry[d + i / BLOCK]));
        lanes_store(key + i, lanes_mul(lanes_load_e4m3(entry + i), scale));
        lanes_store(key + i + DI_LANE_COUNT, lanes_mul(lanes_load_e4m3(entry + i + DI_LANE_COUNT), scale));
    }
}

static void decode_global(const uint8_t *entry, size_t d, float *key) {
    for (size_t i = 0; i < d; i += DI_LANE_COUNT) {
        const lanes scale = lanes_set(di_e4m3_decode(entry[d / 2 + i / DI_LANE_COUNT]));
        lanes_store(key + i, lanes_mul(lanes_e2m1(ints_load_nibbles(entry + i / 2)), scale));
    }
}

/* Decodes the next tile, from *slot of window slots and global keys on; keys[count] of it are then in place. */
static void decode_tile(attention_work *work, size_t *slot) {
    const di_cpu_attention *a = work->a;
    size_t count = 0, d = a->head_dim, end = a->window_slots + a->global_count;
    for (; *slot < end && count < TILE; ++*slot) {
        float *key = work->keys + count * work->stride;
        if (*slot >= a->window_slots) {
            decode_global(a->global[*slot - a->window_slots], d, key);
        } else {
            if (!a->window[*slot]) continue;
            decode_window(a->window[*slot], d, key);
        }
        count++;
    }
    work->count = count;
}

/* ---------------------------------------------------------------- scores */

#if defined(__AVX512F__)

/* dot16 of four queries [4][d] with four keys; row h of the result is p[h][0..3]. */
DI_APART void score_block(const float *q, size_t d, const float *const key[KEY_BLOCK], float p[HEAD_BLOCK][4]) {
    __m512 acc[HEAD_BLOCK][KEY_BLOCK];
#pragma GCC unroll 16
    for (int i = 0; i < HEAD_BLOCK * KEY_BLOCK; i++) acc[i / KEY_BLOCK][i % KEY_BLOCK] = _mm512_setzero_ps();
    for (size_t k = 0; k < d; k += DI_LANE_COUNT) {
        __m512 x[KEY_BLOCK];
#pragma GCC unroll 4
        for (int j = 0; j < KEY_BLOCK; j++) x[j] = _mm512_loadu_ps(key[j] + k);
#pragma GCC unroll 4
        for (int h = 0; h < HEAD_BLOCK; h++) {
            const __m512 query = _mm512_loadu_ps(q + (size_t)h * d + k);
#pragma GCC unroll 4
            for (int j = 0; j < KEY_BLOCK; j++) acc[h][j] = _mm512_fmadd_ps(query, x[j], acc[h][j]);
        }
    }
    /* The folds of sixteen sums at once. 16 -> 8 -> 4: the four heads of a key go to the four quarters of a register.
     */
    __m512 quarters[KEY_BLOCK];
#pragma GCC unroll 4
    for (int j = 0; j < KEY_BLOCK; j++) {
        __m512 pair[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512 first = acc[2 * h][j], second = acc[2 * h + 1][j];
            pair[h] = _mm512_add_ps(_mm512_shuffle_f32x4(first, second, _MM_SHUFFLE(1, 0, 1, 0)),
                                    _mm512_shuffle_f32x4(first, second, _MM_SHUFFLE(3, 2, 3, 2)));
        }
        quarters[j] = _mm512_add_ps(_mm512_shuffle_f32x4(pair[0], pair[1], _MM_SHUFFLE(2, 0, 2, 0)),
                                    _mm512_shuffle_f32x4(pair[0], pair[1], _MM_SHUFFLE(3, 1, 3, 1)));
    }
    /* 4 -> 2 -> 1: inside a quarter, the keys become the elements. */
    __m512 low = _mm512_add_ps(_mm512_shuffle_ps(quarters[0], quarters[1], _MM_SHUFFLE(1, 0, 1, 0)),
                               _mm512_shuffle_ps(quarters[0], quarters[1], _MM_SHUFFLE(3, 2, 3, 2)));
    __m512 high = _mm512_add_ps(_mm512_shuffle_ps(quarters[2], quarters[3], _MM_SHUFFLE(1, 0, 1, 0)),
                                _mm512_shuffle_ps(quarters[2], quarters[3], _MM_SHUFFLE(3, 2, 3, 2)));
    _mm512_storeu_ps(p[0], _mm512_add_ps(_mm512_shuffle_ps(low, high, _MM_SHUFFLE(2, 0, 2, 0)),
                                         _mm512_shuffle_ps(low, high, _MM_SHUFFLE(3, 1, 3, 1))));
}

#else

/* Eight of the sixteen lanes of four queries [4][d] times three keys, from `lane` on: twelve registers of sums. */
DI_APART void half_sums(const float *q, size_t d, const float *const key[KEY_BLOCK], size_t lane,
                        __m256 sums[HEAD_BLOCK][KEY_BLOCK]) {
    __m256 acc[HEAD_BLOCK][KEY_BLOCK];
#pragma GCC unroll 16
    for (int i = 0; i < HEAD_BLOCK * KEY_BLOCK; i++) acc[i / KEY_BLOCK][i % KEY_BLOCK] = _mm256_setzero_ps();
    for (size_t k = lane; k < d; k += DI_LANE_COUNT) {
        __m256 x[KEY_BLOCK];
#pragma GCC unroll 4
        for (int j = 0; j < KEY_BLOCK; j++) x[j] = _mm256_loadu_ps(key[j] + k);
#pragma GCC unroll 4
        for (int h = 0; h < HEAD_BLOCK; h++) {
            const __m256 query = _mm256_loadu_ps(q + (size_t)h * d + k);
#pragma GCC unroll 4
            for (int j = 0; j < KEY_BLOCK; j++) acc[h][j] = _mm256_fmadd_ps(query, x[j], acc[h][j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < HEAD_BLOCK * KEY_BLOCK; i++)
        sums[i / KEY_BLOCK][i % KEY_BLOCK] = acc[i / KEY_BLOCK][i % KEY_BLOCK];
}

/* dot16 of four queries [4][d] with three keys; row h of the result is p[h][0..2]. */
static void score_block(const float *q, size_t d, const float *const key[KEY_BLOCK], float p[HEAD_BLOCK][4]) {
    __m256 low[HEAD_BLOCK][KEY_BLOCK], high[HEAD_BLOCK][KEY_BLOCK];
    half_sums(q, d, key, 0, low);
    half_sums(q, d, key, 8, high);
    /* The folds of three sums at once: 16 -> 8 -> 4 each, 4 -> 2 -> 1 with the keys becoming the elements. */
    for (int h = 0; h < HEAD_BLOCK; h++) {
        __m128 four[KEY_BLOCK];
#pragma GCC unroll 4
        for (int j = 0; j < KEY_BLOCK; j++) {
            __m256 eight = _mm256_add_ps(low[h][j], high[h][j]);
            four[j] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
        }
        __m128 two = _mm_add_ps(_mm_movelh_ps(four[0], four[1]), _mm_movehl_ps(four[1], four[0]));
        __m128 last = _mm_add_ps(four[2], _mm_movehl_ps(four[2], four[2]));
        _mm_storeu_ps(p[h], _mm_add_ps(_mm_shuffle_ps(two, last, _MM_SHUFFLE(2, 0, 2, 0)),
                                       _mm_shuffle_ps(two, last, _MM_SHUFFLE(3, 1, 3, 1))));
    }
}

#endif

/* p[h][j] = dot16(q[h], key[j]) for the heads from h0 on; rows beyond the last head or key repeat it and are dropped.
 */
static void scores(attention_work *work, size_t h0) {
    const di_cpu_attention *a = work->a;
    size_t d = a->head_dim, heads = a->heads - h0 < HEAD_BLOCK ? a->heads - h0 : HEAD_BLOCK;
    for (size_t h = 0; h < HEAD_BLOCK; h++) {
        const uint16_t *q = a->q + (h0 + (h < heads ? h : heads - 1)) * d;
        for (size_t i = 0; i < d; i += DI_LANE_COUNT) lanes_store(work->queries + h * d + i, lanes_load_bf16(q + i));
    }
    for (size_t j0 = 0; j0 < work->count; j0 += KEY_BLOCK) {
        const float *key[KEY_BLOCK];
        float p[HEAD_BLOCK][4];
        for (size_t j = 0; j < KEY_BLOCK; j++)
            key[j] = work->keys + (j0 + j < work->count ? j0 + j : work->count - 1) * work->stride;
        score_block(work->queries, d, key, p);
        size_t width = TILE - j0 < KEY_BLOCK ? TILE - j0 : KEY_BLOCK;
        for (size_t h = 0; h < heads; h++) memcpy(work->p + (h0 + h) * TILE + j0, p[h], width * sizeof(float));
    }
}

/* ---------------------------------------------------------------- softmax */

/* Scaled scores, new maxima, and what is left of the old sums. Places beyond the last key become -inf. */
DI_APART void raise_maxima(attention_work *work) {
    const di_cpu_attention *a = work->a;
    const lanes scale = lanes_set(a->scale), nothing = lanes_set(-__builtin_inff());
    const ints count = ints_set((int32_t)work->count);
    for (size_t h = 0; h < a->heads; h++) {
        float *p = work->p + h * TILE;
        lanes top = lanes_set(work->maximum[h]);
        for (int j = 0; j < TILE; j += DI_LANE_COUNT) {
            lane_mask present = ints_less(ints_add(ints_index(), ints_set(j)), count);
            lanes t = lanes_select(present, lanes_mul(lanes_load(p + j), scale), nothing);
            top = lanes_max(t, top);
            lanes_store(p + j, t);
        }
        float maximum = lanes_maximum(top);
        work->fade[h] = work->maximum[h] - maximum;
        work->maximum[h] = maximum;
    }
    for (size_t h = 0; h < a->heads; h += DI_LANE_COUNT)
        lanes_store_part(work->fade + h, lanes_exp(lanes_load_part(work->fade + h, a->heads - h)), a->heads - h);
}

DI_APART void probabilities(attention_work *work) {
    const ints count = ints_set((int32_t)work->count);
    for (size_t h = 0; h < work->a->heads; h++) {
        float *p = work->p + h * TILE;
        const lanes top = lanes_set(work->maximum[h]);
        lanes sum = lanes_zero();
        for (int j = 0; j < TILE; j += DI_LANE_COUNT) {
            lane_mask present = ints_less(ints_add(ints_index(), ints_set(j)), count);
            lanes e = lanes_select(present, lanes_exp(lanes_sub(lanes_load(p + j), top)), lanes_zero());
            sum = lanes_add(sum, e);
            lanes_store(p + j, e);
        }
        work->sum[h] = work->sum[h] * work->fade[h] + lanes_fold(sum);
    }
}

/* ---------------------------------------------------------------- values */

/* o[h][i] = o[h][i] * fade[h] + sum over j of p[h][j] key[j][i], by fma in ascending j, for `heads` heads from h0 on
 * and VALUE_LANES vectors of channels from i0 on. `heads` is a constant where this is used; loops run to the constant
 * VALUE_HEADS so that compilers unroll them and keep the sums in registers. */
DI_LANES void value_block(attention_work *work, size_t h0, size_t i0, const int heads) {
    const size_t d = work->a->head_dim, stride = work->stride, count = work->count;
    const float *p = work->p + h0 * TILE, *key = work->keys + i0;
    float *o = work->o + h0 * d + i0;
    lanes acc[VALUE_HEADS][VALUE_LANES];
#pragma GCC unroll 8
    for (int h = 0; h < VALUE_HEADS; h++) {
        if (h >= heads) continue;
        const lanes fade = lanes_set(work->fade[h0 + (size_t)h]);
#pragma GCC unroll 2
        for (int l = 0; l < VALUE_LANES; l++)
            acc[h][l] = lanes_mul(lanes_load(o + (size_t)h * d + l * DI_LANE_COUNT), fade);
    }
    for (size_t j = 0; j < count; j++, key += stride) {
        lanes x[VALUE_LANES];
#pragma GCC unroll 2
        for (int l = 0; l < VALUE_LANES; l++) x[l] = lanes_load(key + l * DI_LANE_COUNT);
#pragma GCC unroll 8
        for (int h = 0; h < VALUE_HEADS; h++) {
            if (h >= heads) continue;
            const lanes weight = lanes_set(p[(size_t)h * TILE + j]);
#pragma GCC unroll 2
            for (int l = 0; l < VALUE_LANES; l++) acc[h][l] = lanes_fma(weight, x[l], acc[h][l]);
        }
    }
#pragma GCC unroll 8
    for (int h = 0; h < VALUE_HEADS; h++) {
        if (h >= heads) continue;
#pragma GCC unroll 2
        for (int l = 0; l < VALUE_LANES; l++) lanes_store(o + (size_t)h * d + l * DI_LANE_COUNT, acc[h][l]);
    }
}

/* Channels outside, heads inside: the column of the tile stays in the first-level cache. */
DI_APART void values(attention_work *work) {
    size_t d = work->a->head_dim, heads = work->a->heads;
    for (size_t i = 0; i < d; i += VALUE_LANES * DI_LANE_COUNT) {
        size_t h = 0;
        for (; h + VALUE_HEADS <= heads; h += VALUE_HEADS) value_block(work, h, i, VALUE_HEADS);
        if (VALUE_HEADS > 4 && h + 4 <= heads) {
            value_block(work, h, i, 4);
            h += 4;
        }
        for (; h < heads; h++) value_block(work, h, i, 1);
    }
}

/* ---------------------------------------------------------------- one row */

/* Fits di_cpu_attention_scratch for any number of slots: beside o, p and the key rows there is room for another
 * 64 d floats at least, of which padding (at most 64 * 16, from d = 256 on) and queries (4 d) take a part. */
static attention_work place(const di_cpu_attention *a) {
    size_t d = a->head_dim, heads = a->heads, most = a->window_slots + a->global_count;
    attention_work work = {.a = a, .stride = d % 256 ? d : d + DI_LANE_COUNT};
    work.o = (float *)(((uintptr_t)a->scratch + 63) / 64 * 64);
    work.p = work.o + heads * d;
    work.queries = work.p + heads * TILE;
    work.keys = work.queries + HEAD_BLOCK * d;
    work.maximum = work.keys + (most < TILE ? most : TILE) * work.stride;
    work.fade = work.maximum + heads;
    work.sum = work.fade + heads;
    return work;
}

void DI_ISA(attention)(const di_cpu_attention *a) {
    attention_work work = place(a);
    size_t n = a->heads * a->head_dim, end = a->window_slots + a->global_count;
    memset(work.o, 0, n * sizeof *work.o);
    for (size_t h = 0; h < a->heads; h++) {
        work.maximum[h] = a->sink[h];
        work.sum[h] = 1.0f;
    }
    for (size_t slot = 0; slot < end;) {
        decode_tile(&work, &slot);
        if (!work.count) break;
        for (size_t h = 0; h < a->heads; h += HEAD_BLOCK) scores(&work, h);
        raise_maxima(&work);
        probabilities(&work);
        values(&work);
    }
    for (size_t h = 0; h < a->heads; h++) {
        const lanes sum = lanes_set(work.sum[h]);
        for (size_t i = h * a->head_dim; i < (h + 1) * a->head_dim; i += DI_LANE_COUNT)
            lanes_store_bf16(a->out + i, lanes_div(lanes_load(work.o + i), sum));
    }
}
