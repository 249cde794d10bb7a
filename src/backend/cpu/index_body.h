/* index_body.h - scores of index keys; compiled once an instruction set by index_avx2.c and index_avx512.c. Bytes equal
 * scalar.c.
 *
 * A lane is a key. A group of 16 (AVX-512) or 8 (AVX2) keys is transposed so that a 32-bit lane holds four codes of one
 * key; a query's four codes are broadcast against them. Inside a 32-block the sum is an exact integer, so codes may
 * come in any order: even channels (low nibbles) first, then odd ones, for queries and keys alike. Keys are held as
 * 2 e2m1 + 12, unsigned as the byte products want it, queries as 2 e2m1; the bias of a query's block takes the 12 away.
 */
#include "backend/cpu/lanes.h"
#include "backend/cpu/vectors.h"
#include "tensor/codec.h"

enum { BLOCK = 32, BLOCK_BYTES = 16, CHUNKS = 8, FOLD = 16 };

#if defined(__AVX512F__)

enum { KEYS = 16 };
typedef __m512 key_floats;
typedef __m512i key_ints;

#define float_set                 _mm512_set1_ps
#define float_zero                _mm512_setzero_ps
#define float_load                _mm512_load_ps
#define float_store               _mm512_store_ps
#define float_store_any           _mm512_storeu_ps
#define float_mul                 _mm512_mul_ps
#define float_add                 _mm512_add_ps
#define float_max                 _mm512_max_ps
#define float_fma                 _mm512_fmadd_ps
#define float_of_ints             _mm512_cvtepi32_ps
#define float_of_bits             _mm512_castsi512_ps
#define int_set                   _mm512_set1_epi32
#define int_and                   _mm512_and_si512
#define int_shift_left            _mm512_slli_epi32
#define int_high_codes(x)         _mm512_srli_epi16(x, 4)
#define unpack_low_32             _mm512_unpacklo_epi32
#define unpack_high_32            _mm512_unpackhi_epi32
#define unpack_low_64             _mm512_unpacklo_epi64
#define unpack_high_64            _mm512_unpackhi_epi64
#define byte_lookup(table, codes) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes)

/* 16 bytes at `at` of keys r, r + 4, ... side by side */
DI_LANES key_ints gather(const uint8_t *const *keys, size_t r, size_t at) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(keys[r] + at)));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(keys[r + 4] + at)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(keys[r + 8] + at)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(keys[r + 12] + at)), 3);
}
DI_LANES key_ints widen_bytes(const uint8_t bytes[KEYS]) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)bytes));
}
DI_LANES key_ints replace_equal(key_ints x, int32_t what, key_ints in, int32_t with) {
    return _mm512_mask_mov_epi32(in, _mm512_cmpeq_epi32_mask(x, _mm512_set1_epi32(what)), _mm512_set1_epi32(with));
}
/* bias + sum over the block of (key code) * (query code); q: 32 codes */
DI_LANES key_ints block_sums(const key_ints key[CHUNKS], const int8_t *q, int32_t bias) {
    __m512i acc = _mm512_set1_epi32(bias);
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; c++) {
        int32_t four;
        memcpy(&four, q + 4 * c, sizeof four);
        acc = _mm512_dpbusd_epi32(acc, key[c], _mm512_set1_epi32(four));
    }
    return acc;
}

#else

enum { KEYS = 8 };
typedef __m256 key_floats;
typedef __m256i key_ints;

#define float_set                 _mm256_set1_ps
#define float_zero                _mm256_setzero_ps
#define float_load                _mm256_load_ps
#define float_store               _mm256_store_ps
#define float_store_any           _mm256_storeu_ps
#define float_mul                 _mm256_mul_ps
#define float_add                 _mm256_add_ps
#define float_max                 _mm256_max_ps
#define float_fma                 _mm256_fmadd_ps
#define float_of_ints             _mm256_cvtepi32_ps
#define float_of_bits             _mm256_castsi256_ps
#define int_set                   _mm256_set1_epi32
#define int_and                   _mm256_and_si256
#define int_shift_left            _mm256_slli_epi32
#define int_high_codes(x)         _mm256_srli_epi16(x, 4)
#define unpack_low_32             _mm256_unpacklo_epi32
#define unpack_high_32            _mm256_unpackhi_epi32
#define unpack_low_64             _mm256_unpacklo_epi64
#define unpack_high_64            _mm256_unpackhi_epi64
#define byte_lookup(table, codes) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), codes)

/* 16 bytes at `at` of keys r and r + 4 side by side */
DI_LANES key_ints gather(const uint8_t *const *keys, size_t r, size_t at) {
    __m256i x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(keys[r] + at)));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(keys[r + 4] + at)), 1);
}
DI_LANES key_ints widen_bytes(const uint8_t bytes[KEYS]) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)bytes));
}
DI_LANES key_ints replace_equal(key_ints x, int32_t what, key_ints in, int32_t with) {
    return _mm256_blendv_epi8(in, _mm256_set1_epi32(with), _mm256_cmpeq_epi32(x, _mm256_set1_epi32(what)));
}
/* bias + sum over the block of (key code) * (query code); q: 32 codes. At most 8 * 2 * 24 * 12 in a 16-bit lane. */
DI_LANES key_ints block_sums(const key_ints key[CHUNKS], const int8_t *q, int32_t bias) {
    __m256i acc = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; c++) {
        int32_t four;
        memcpy(&four, q + 4 * c, sizeof four);
        acc = _mm256_add_epi16(acc, _mm256_maddubs_epi16(key[c], _mm256_set1_epi32(four)));
    }
    return _mm256_add_epi32(_mm256_madd_epi16(acc, _mm256_set1_epi16(1)), _mm256_set1_epi32(bias));
}

#endif

/* Queries unpacked once a call; all arrays in the caller's scratch. */
typedef struct index_queries {
    size_t heads, dim, blocks;
    float *d;      /* [heads][KEYS], aligned 64 */
    int8_t *codes; /* [heads][dim]: 2 e2m1, in a block the even channels first */
    int32_t *bias; /* [heads][blocks]: -12 * sum of the block's codes */
    float *scale;  /* [heads][blocks] */
} index_queries;

static index_queries unpack_queries(const uint8_t *q, size_t heads, size_t dim, void *scratch) {
    const __m128i doubled = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i low_bits = _mm_set1_epi8(15);
    size_t blocks = dim / BLOCK;
    index_queries queries = {.heads = heads, .dim = dim, .blocks = blocks, .d = scratch};
    queries.codes = (int8_t *)(queries.d + heads * KEYS);
    queries.bias = (int32_t *)(queries.codes + heads * dim);
    queries.scale = (float *)(queries.bias + heads * blocks);
    for (size_t h = 0; h < heads; h++, q += dim / 2 + blocks) {
        for (size_t b = 0; b < blocks; b++) {
            __m128i packed = _mm_loadu_si128((const __m128i *)(q + b * BLOCK_BYTES));
            __m128i even = _mm_shuffle_epi8(doubled, _mm_and_si128(packed, low_bits));
            __m128i odd = _mm_shuffle_epi8(doubled, _mm_and_si128(_mm_srli_epi16(packed, 4), low_bits));
            int8_t *codes = queries.codes + h * dim + b * BLOCK;
            _mm_storeu_si128((__m128i *)codes, even);
            _mm_storeu_si128((__m128i *)(codes + BLOCK_BYTES), odd);
            /* even + odd + 24 is 0..48: the sum of absolute differences to zero adds the bytes */
            __m128i shifted = _mm_add_epi8(_mm_add_epi8(even, odd), _mm_set1_epi8(24));
            __m128i halves = _mm_sad_epu8(shifted, _mm_setzero_si128());
            int32_t sum = _mm_cvtsi128_si32(halves) + _mm_extract_epi16(halves, 4) - 24 * BLOCK_BYTES;
            queries.bias[h * blocks + b] = -12 * sum;
            queries.scale[h * blocks + b] = di_e8m0_decode(q[dim / 2 + b]);
        }
    }
    return queries;
}

/* Block b of a group of keys: chunk c holds four codes of each key, in the order of the queries' codes. */
DI_LANES void unpack_keys(const uint8_t *const *keys, size_t b, key_ints key[CHUNKS]) {
    const __m128i raised = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    const key_ints low_bits = int_set(0x0f0f0f0f);
    key_ints r0 = gather(keys, 0, b * BLOCK_BYTES), r1 = gather(keys, 1, b * BLOCK_BYTES);
    key_ints r2 = gather(keys, 2, b * BLOCK_BYTES), r3 = gather(keys, 3, b * BLOCK_BYTES);
    key_ints low01 = unpack_low_32(r0, r1), low23 = unpack_low_32(r2, r3);
    key_ints high01 = unpack_high_32(r0, r1), high23 = unpack_high_32(r2, r3);
    key_ints packed[4] = {unpack_low_64(low01, low23), unpack_high_64(low01, low23), unpack_low_64(high01, high23),
                          unpack_high_64(high01, high23)};
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        key[c] = byte_lookup(raised, int_and(packed[c], low_bits));
        key[c + 4] = byte_lookup(raised, int_and(int_high_codes(packed[c]), low_bits));
    }
}

/* E8M0 scales at `at` of a group of keys. */
DI_LANES key_floats key_scales(const uint8_t *const *keys, size_t at) {
    uint8_t bytes[KEYS];
    for (size_t j = 0; j < KEYS; j++) bytes[j] = keys[j][at];
    key_ints exponent = widen_bytes(bytes);
    key_ints bits = replace_equal(exponent, 0, int_shift_left(exponent, 23), 0x00400000);
    return float_of_bits(replace_equal(exponent, 255, bits, 0x7fc00000));
}

/* Adds block b of every head's product with a group of keys. */
static void add_block(const index_queries *queries, const uint8_t *const *keys, size_t b) {
    key_ints key[CHUNKS];
    unpack_keys(keys, b, key);
    const key_floats key_scale = key_scales(keys, queries->dim / 2 + b), quarter = float_set(0.25f);
    const int8_t *codes = queries->codes + b * BLOCK;
    for (size_t h = 0; h < queries->heads; h++, codes += queries->dim) {
        size_t at = h * queries->blocks + b;
        key_ints sums = block_sums(key, codes, queries->bias[at]);
        key_floats scale = float_mul(quarter, float_mul(float_set(queries->scale[at]), key_scale));
        key_floats acc = b ? float_load(queries->d + h * KEYS) : float_zero();
        float_store(queries->d + h * KEYS, float_fma(float_of_ints(sums), scale, acc));
    }
}

/* dot16 over the heads of w and the positive parts of d; lane l of dot16 is an array element here, a key a lane. */
static key_floats weigh_heads(const index_queries *queries, const float *w) {
    key_floats lane[FOLD];
    for (size_t l = 0; l < FOLD; l++) lane[l] = float_zero();
    for (size_t h = 0; h < queries->heads; h++) {
        key_floats positive = float_max(float_zero(), float_load(queries->d + h * KEYS));
        lane[h % FOLD] = float_fma(float_set(w[h]), positive, lane[h % FOLD]);
    }
    /* the padding of a last incomplete sixteen: fma(0, 0, lane) */
    for (size_t l = queries->heads % FOLD; l > 0 && l < FOLD; l++) lane[l] = float_add(lane[l], float_zero());
    for (size_t width = FOLD / 2; width > 0; width /= 2) {
        for (size_t l = 0; l < width; l++) lane[l] = float_add(lane[l], lane[l + width]);
    }
    return lane[0];
}

void DI_ISA(index_scores)(const uint8_t *q, const float *w, size_t heads, size_t dim, const uint8_t *const *keys,
                          size_t count, float *scores, void *scratch) {
    if (!count) return;
    index_queries queries = unpack_queries(q, heads, dim, scratch);
    for (size_t g = 0; g < count; g += KEYS) {
        const uint8_t *group[KEYS];
        for (size_t j = 0; j < KEYS; j++) group[j] = keys[g + j < count ? g + j : count - 1];
        for (size_t b = 0; b < queries.blocks; b++) add_block(&queries, group, b);
        key_floats score = weigh_heads(&queries, w);
        if (g + KEYS <= count) {
            float_store_any(scores + g, score);
        } else {
            float last[KEYS];
            float_store_any(last, score);
            memcpy(scores + g, last, (count - g) * sizeof *scores);
        }
    }
}
