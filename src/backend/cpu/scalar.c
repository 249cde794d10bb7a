/* scalar.c - the reference table. This file defines the bits; the vector tables repeat its operations
 * (docs/numerics.md).
 *
 * Written for reading, not for speed. Every fused multiply-add is explicit; the build forbids contraction, so that no
 * compiler or optimisation level can change a result.
 */
#include "backend/cpu/kernels.h"

#include "backend/cpu/math.h"
#include "tensor/codec.h"

#include <string.h>

enum { LANES = 16, F8_TILE = 32, F4_ROWS = 16, BLOCK = 32, TILE_BYTES = 256, ATTENTION_TILE = 64, MAX_COPIES = 8 };

/* ---------------------------------------------------------------- the canonical sums */

static float fold16(float *lane) {
    for (int width = LANES / 2; width > 0; width /= 2) {
        for (int l = 0; l < width; l++) lane[l] += lane[l + width];
    }
    return lane[0];
}

/* Lanes that n leaves over see the padding: fma(0, 0, lane) = lane + 0, which turns -0 into +0. */
static void pad_lanes(float *lane, size_t n) {
    for (size_t l = n % LANES; l > 0 && l < LANES; l++) lane[l] += 0.0f;
}

static float scalar_dot(const float *a, const float *b, size_t n) {
    float lane[LANES] = {0};
    for (size_t k = 0; k < n; k++) lane[k % LANES] = __builtin_fmaf(a[k], b[k], lane[k % LANES]);
    pad_lanes(lane, n);
    return fold16(lane);
}

static float scalar_sum(const float *a, size_t n) {
    float lane[LANES] = {0};
    for (size_t k = 0; k < n; k++) lane[k % LANES] += a[k];
    return fold16(lane);
}

static float scalar_inverse_rms(const float *x, size_t n, float eps) {
    float mean_square = scalar_dot(x, x, n) / (float)n;
    return 1.0f / __builtin_sqrtf(mean_square + eps);
}

static void scalar_rms_norm(const float *x, const float *w, size_t n, float eps, uint16_t *out) {
    float r = scalar_inverse_rms(x, n, eps);
    for (size_t i = 0; i < n; i++) out[i] = di_bf16_encode(w[i] * (x[i] * r));
}

/* ---------------------------------------------------------------- products */

static void scalar_product_f8(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                              float *y, size_t y_stride, float *scratch) {
    size_t in = w->in;
    for (size_t tile = n0; tile < n1; tile += F8_TILE) {
        const uint8_t *scales = w->scales + tile / F8_TILE * (in / BLOCK);
        for (size_t m = 0; m < rows; m++) {
            for (size_t k = 0; k < in; k++)
                scratch[m * in + k] = x[m * x_stride + k] * di_e8m0_decode(scales[k / BLOCK]);
        }
        for (size_t n = tile; n < n1 && n < tile + F8_TILE; n++) {
            const uint8_t *codes = w->codes + n * in;
            for (size_t m = 0; m < rows; m++) {
                float lane[LANES] = {0};
                for (size_t k = 0; k < in; k++)
                    lane[k % LANES] = __builtin_fmaf(di_e4m3_decode(codes[k]), scratch[m * in + k], lane[k % LANES]);
                y[m * y_stride + n] = fold16(lane);
            }
        }
    }
}

/* 2 * e2m1 of row r, input k in [0, 32) of a tile */
static int32_t tile_weight(const uint8_t *tile, size_t r, size_t k) {
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    size_t within = k % 16;
    uint8_t byte = tile[within / 4 * 64 + r * 4 + within % 4];
    return doubled[k < 16 ? byte & 15 : byte >> 4];
}

static int32_t block_value(const di_f4_block *block, size_t k) {
    return block->rest[k] + 8 * block->limb[0][k] + 2048 * block->limb[1][k];
}

static void scalar_product_f4(const di_cpu_f4 *w, const di_f4_block *x, const float *values, size_t rows, size_t n0,
                              size_t n1, float *y, size_t y_stride) {
    (void)values;
    size_t blocks = w->in / BLOCK;
    for (size_t n = n0; n < n1; n++) {
        size_t strip = n / F4_ROWS, r = n % F4_ROWS;
        for (size_t m = 0; m < rows; m++) {
            float acc = 0.0f;
            for (size_t b = 0; b < blocks; b++) {
                const uint8_t *tile = w->tiles + (strip * blocks + b) * TILE_BYTES;
                const di_f4_block *block = x + m * blocks + b;
                int32_t sum = 0;
                for (size_t k = 0; k < BLOCK; k++) sum += tile_weight(tile, r, k) * block_value(block, k);
                float scale = block->scale * di_e8m0_decode(w->scales[(strip * blocks + b) * F4_ROWS + r]);
                acc = __builtin_fmaf((float)sum, scale, acc);
            }
            y[m * y_stride + n] = acc;
        }
    }
}

static void scalar_product_bf16(const uint8_t *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,
                                size_t n1, float *y, size_t y_stride) {
    for (size_t n = n0; n < n1; n++) {
        const uint8_t *row = w + n * in * 2;
        for (size_t m = 0; m < rows; m++) {
            float lane[LANES] = {0};
            for (size_t k = 0; k < in; k++) {
                uint16_t code;
                memcpy(&code, row + 2 * k, 2);
                lane[k % LANES] = __builtin_fmaf(di_bf16_decode(code), x[m * x_stride + k], lane[k % LANES]);
            }
            pad_lanes(lane, in);
            y[m * y_stride + n] = fold16(lane);
        }
    }
}

static void scalar_product_f32(const float *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,
                               size_t n1, float *y, size_t y_stride) {
    for (size_t n = n0; n < n1; n++) {
        for (size_t m = 0; m < rows; m++) y[m * y_stride + n] = scalar_dot(w + n * in, x + m * x_stride, in);
    }
}

/* ---------------------------------------------------------------- conversions */

static void scalar_bf16_to_f32(const uint16_t *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = di_bf16_decode(x[i]);
}

static void scalar_f32_to_bf16(const float *x, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i++) out[i] = di_bf16_encode(x[i]);
}

/* E4M3 value in units of 2^-9 */
static int32_t e4m3_units(uint8_t code) {
    int32_t exponent = (code >> 3) & 15, mantissa = code & 7;
    int32_t magnitude = exponent ? (8 + mantissa) << (exponent - 1) : mantissa;
    return code & 0x80 ? -magnitude : magnitude;
}

/* The signed low bits of *v, in [-unit / 2, unit / 2 - 1]; *v becomes what is left in units of `unit`. */
static int8_t take_limb(int32_t *v, int32_t unit) {
    int32_t limb = ((*v + unit / 2) & (unit - 1)) - unit / 2;
    *v = (*v - limb) / unit;
    return (int8_t)limb;
}

static void fill_block(const uint8_t *codes, float scale, di_f4_block *block) {
    int32_t sum = 0;
    block->rest_mask = 0;
    for (size_t k = 0; k < BLOCK; k++) {
        int32_t v = e4m3_units(codes[k]);
        block->rest[k] = take_limb(&v, 8);
        if (block->rest[k]) block->rest_mask |= 1u << k;
        sum += v;
        block->limb[0][k] = take_limb(&v, 256);
        block->limb[1][k] = (int8_t)v;
    }
    block->bias = -12 * sum;
    block->scale = scale * 0x1p-10f;
}

static void scalar_quantise_input(const uint16_t *x, size_t n, float *values, di_f4_block *blocks) {
    for (size_t b = 0; b < n / BLOCK; b++) {
        float block[BLOCK];
        uint8_t codes[BLOCK], scale;
        scalar_bf16_to_f32(x + b * BLOCK, BLOCK, block);
        di_quantise_q8_32(block, BLOCK, codes, &scale);
        if (values) di_dequantise_q8_32(codes, &scale, BLOCK, values + b * BLOCK);
        if (blocks) fill_block(codes, di_e8m0_decode(scale), &blocks[b]);
    }
}

static void scalar_window_entry(const float *x, size_t n, uint8_t *entry) {
    di_quantise_q8_32(x, n, entry, entry + n);
}

static void scalar_global_entry(const float *x, size_t n, uint8_t *entry) {
    uint8_t codes[16];
    for (size_t i = 0; i < n; i += 16) {
        di_quantise_q4_16(x + i, 16, codes, entry + n / 2 + i / 16);
        di_pack_nibbles(codes, 16, entry + i / 2);
    }
}

static void scalar_index_entry(const float *x, size_t n, uint8_t *entry) {
    uint8_t codes[BLOCK];
    for (size_t i = 0; i < n; i += BLOCK) {
        di_quantise_q4_32(x + i, BLOCK, codes, entry + n / 2 + i / BLOCK);
        di_pack_nibbles(codes, BLOCK, entry + i / 2);
    }
}

/* ---------------------------------------------------------------- hyper-connections */

/* comb[j][k] /= (sum over the row or column) + eps; sums sequential from the first element */
static void normalise_rows(float *comb, size_t c, float eps) {
    for (size_t j = 0; j < c; j++) {
        float sum = comb[j * c];
        for (size_t k = 1; k < c; k++) sum += comb[j * c + k];
        for (size_t k = 0; k < c; k++) comb[j * c + k] /= sum + eps;
    }
}

static void normalise_columns(float *comb, size_t c, float eps) {
    for (size_t k = 0; k < c; k++) {
        float sum = comb[k];
        for (size_t j = 1; j < c; j++) sum += comb[j * c + k];
        for (size_t j = 0; j < c; j++) comb[j * c + k] /= sum + eps;
    }
}

/* The Sinkhorn loop: the softmax of the rows is the first row pass; it ends on columns. */
static void scalar_hyper_mix(const float *m, const float *base, const float *scale, size_t copies, unsigned iterations,
                             float eps, float *pre, float *post, float *comb) {
    size_t c = copies;
    for (size_t i = 0; i < c; i++) {
        pre[i] = di_sigmoidf(m[i] * scale[0] + base[i]) + eps;
        post[i] = 2.0f * di_sigmoidf(m[c + i] * scale[1] + base[c + i]);
    }
    for (size_t j = 0; j < c; j++) {
        float *row = comb + j * c;
        for (size_t k = 0; k < c; k++) row[k] = m[2 * c + j * c + k] * scale[2] + base[2 * c + j * c + k];
        float top = row[0];
        for (size_t k = 1; k < c; k++) top = row[k] > top ? row[k] : top;
        for (size_t k = 0; k < c; k++) row[k] = di_expf(row[k] - top);
    }
    normalise_rows(comb, c, 0.0f);
    for (size_t i = 0; i < c * c; i++) comb[i] += eps;
    normalise_columns(comb, c, eps);
    for (unsigned pass = 1; pass < iterations; pass++) {
        normalise_rows(comb, c, eps);
        normalise_columns(comb, c, eps);
    }
}

static void scalar_collapse(const uint16_t *stream, const float *pre, size_t copies, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i++) {
        float acc = 0.0f;
        for (size_t c = 0; c < copies; c++) acc = __builtin_fmaf(pre[c], di_bf16_decode(stream[c * n + i]), acc);
        out[i] = di_bf16_encode(acc);
    }
}

static void scalar_expand(const uint16_t *y, const float *post, const float *comb, size_t copies, size_t n,
                          uint16_t *stream) {
    for (size_t i = 0; i < n; i++) {
        float x[MAX_COPIES];
        for (size_t j = 0; j < copies; j++) x[j] = di_bf16_decode(stream[j * n + i]);
        for (size_t k = 0; k < copies; k++) {
            float acc = post[k] * di_bf16_decode(y[i]);
            for (size_t j = 0; j < copies; j++) acc = __builtin_fmaf(comb[j * copies + k], x[j], acc);
            stream[k * n + i] = di_bf16_encode(acc);
        }
    }
}

static void scalar_mean(const uint16_t *stream, size_t copies, size_t n, uint16_t *out) {
    float weight[MAX_COPIES];
    for (size_t c = 0; c < copies; c++) weight[c] = 1.0f / (float)copies;
    scalar_collapse(stream, weight, copies, n, out);
}

/* ---------------------------------------------------------------- rotary */

static void scalar_cos_sin(int64_t position, const float *frequency, size_t n, float *cosine, float *sine) {
    for (size_t j = 0; j < n; j++) {
        float angle = (float)position * frequency[j];
        double s, c;
        di_sincos((double)angle, &s, &c);
        cosine[j] = (float)c;
        sine[j] = (float)s;
    }
}

static void scalar_rotate(float *x, const float *cosine, const float *sine, size_t n, bool inverse) {
    for (size_t j = 0; j < n; j++) {
        float re = x[2 * j], im = x[2 * j + 1], c = cosine[j], s = inverse ? -sine[j] : sine[j];
        x[2 * j] = di_bf16_round(__builtin_fmaf(re, c, -(im * s)));
        x[2 * j + 1] = di_bf16_round(__builtin_fmaf(re, s, im * c));
    }
}

/* ---------------------------------------------------------------- elementwise */

static void scalar_sigmoid(const float *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = di_sigmoidf(x[i]);
}

/* The comparisons are those of minps and maxps, so that NaN stays NaN. */
static void scalar_swiglu(const float *g, const float *u, size_t n, float limit, bool has_weight, float weight,
                          uint16_t *out) {
    for (size_t i = 0; i < n; i++) {
        float gate = limit < g[i] ? limit : g[i];
        float up = limit < u[i] ? limit : u[i];
        up = -limit > up ? -limit : up;
        float value = gate / (1.0f + di_expf(-gate)) * up;
        if (has_weight) value *= weight;
        out[i] = di_bf16_encode(value);
    }
}

static void scalar_router_score(float *z, size_t n) {
    for (size_t i = 0; i < n; i++) z[i] = __builtin_sqrtf(z[i] > 20.0f ? z[i] : di_log1p_expf(z[i]));
}

static void scalar_pool2(const float *kv0, const float *gate0, const float *kv1, const float *gate1, size_t n,
                         float *out) {
    for (size_t i = 0; i < n; i++) {
        float top = gate0[i] > gate1[i] ? gate0[i] : gate1[i];
        float e0 = di_expf(gate0[i] - top), e1 = di_expf(gate1[i] - top);
        float sum = e0 + e1;
        float a0 = e0 / sum, a1 = e1 / sum;
        out[i] = di_bf16_round(__builtin_fmaf(a1, kv1[i], a0 * kv0[i]));
    }
}

static float scalar_engram(const float *h, const float *qk, const float *key, const float *value, size_t n, float eps,
                           bool image, uint16_t *out) {
    float lane[LANES] = {0};
    for (size_t i = 0; i < n; i++) lane[i % LANES] = __builtin_fmaf(h[i] * qk[i], key[i], lane[i % LANES]);
    pad_lanes(lane, n);
    float r = scalar_inverse_rms(h, n, eps) * scalar_inverse_rms(key, n, eps);
    float d = fold16(lane) * r / __builtin_sqrtf((float)n);
    float magnitude = __builtin_fabsf(d);
    magnitude = 1e-6f > magnitude ? 1e-6f : magnitude;
    float gate = image ? 0.0f : di_sigmoidf(__builtin_copysignf(__builtin_sqrtf(magnitude), d));
    for (size_t i = 0; i < n; i++) out[i] = di_bf16_encode(__builtin_fmaf(gate, value[i], h[i]));
    return gate;
}

/* ---------------------------------------------------------------- attention */

static void decode_global(const uint8_t *entry, size_t d, float *key) {
    for (size_t i = 0; i < d; i++) {
        uint8_t code = entry[i / 2] >> (i % 2 * 4) & 15;
        key[i] = di_e2m1_decode(code) * di_e4m3_decode(entry[d / 2 + i / 16]);
    }
}

/* One head, one tile of at most 64 keys: the online softmax step. state: maximum, denominator; o: [d] */
static void attend_tile(const float *q, const float *keys, size_t count, size_t d, float scale, float state[2],
                        float *o) {
    float p[ATTENTION_TILE];
    float top = state[0];
    for (size_t j = 0; j < count; j++) {
        p[j] = scalar_dot(q, keys + j * d, d) * scale;
        top = p[j] > top ? p[j] : top;
    }
    float fade = di_expf(state[0] - top);
    for (size_t j = 0; j < count; j++) p[j] = di_expf(p[j] - top);
    state[0] = top;
    state[1] = state[1] * fade + scalar_sum(p, count);
    for (size_t i = 0; i < d; i++) {
        float acc = o[i] * fade;
        for (size_t j = 0; j < count; j++) acc = __builtin_fmaf(p[j], keys[j * d + i], acc);
        o[i] = acc;
    }
}

static void scalar_attention(const di_cpu_attention *a) {
    size_t d = a->head_dim, total = a->window_slots + a->global_count;
    float *o = a->scratch, *state = o + a->heads * d, *keys = state + a->heads * 2;
    float *q = keys + ATTENTION_TILE * d;
    for (size_t h = 0; h < a->heads; h++) {
        state[2 * h] = a->sink[h];
        state[2 * h + 1] = 1.0f;
        for (size_t i = 0; i < d; i++) o[h * d + i] = 0.0f;
    }
    for (size_t slot = 0; slot < total;) {
        size_t count = 0;
        for (; slot < total && count < ATTENTION_TILE; slot++) {
            if (slot >= a->window_slots) {
                decode_global(a->global[slot - a->window_slots], d, keys + count++ * d);
            } else if (a->window[slot]) {
                di_dequantise_q8_32(a->window[slot], a->window[slot] + d, d, keys + count++ * d);
            }
        }
        for (size_t h = 0; h < a->heads && count > 0; h++) {
            scalar_bf16_to_f32(a->q + h * d, d, q);
            attend_tile(q, keys, count, d, a->scale, state + 2 * h, o + h * d);
        }
    }
    for (size_t h = 0; h < a->heads; h++) {
        for (size_t i = 0; i < d; i++) a->out[h * d + i] = di_bf16_encode(o[h * d + i] / state[2 * h + 1]);
    }
}

/* ---------------------------------------------------------------- index scores */

/* q . k of two index entries, block-exact */
static float index_dot(const uint8_t *q, const uint8_t *k, size_t dim) {
    float acc = 0.0f;
    for (size_t b = 0; b < dim / BLOCK; b++) {
        float sum = 0.0f; /* small multiples of 1/4: exact */
        for (size_t i = b * BLOCK; i < (b + 1) * BLOCK; i++) {
            unsigned shift = i % 2 * 4;
            sum += di_e2m1_decode(q[i / 2] >> shift & 15) * di_e2m1_decode(k[i / 2] >> shift & 15);
        }
        float scale = di_e8m0_decode(q[dim / 2 + b]) * di_e8m0_decode(k[dim / 2 + b]);
        acc = __builtin_fmaf(4.0f * sum, 0.25f * scale, acc);
    }
    return acc;
}

static void scalar_index_scores(const uint8_t *q, const float *w, size_t heads, size_t dim, const uint8_t *const *keys,
                                size_t count, float *scores, void *scratch) {
    (void)scratch;
    size_t entry = dim / 2 + dim / BLOCK;
    for (size_t g = 0; g < count; g++) {
        float lane[LANES] = {0};
        for (size_t i = 0; i < heads; i++) {
            float d = index_dot(q + i * entry, keys[g], dim);
            d = 0.0f > d ? 0.0f : d;
            lane[i % LANES] = __builtin_fmaf(w[i], d, lane[i % LANES]);
        }
        pad_lanes(lane, heads);
        scores[g] = fold16(lane);
    }
}

static size_t scalar_count_from(const float *x, size_t n, float least) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += x[i] >= least;
    return count;
}

/* ---------------------------------------------------------------- the table */

const di_cpu_kernels di_cpu_scalar = {
    .name = "scalar",
    .product_f8 = scalar_product_f8,
    .product_f4 = scalar_product_f4,
    .product_bf16 = scalar_product_bf16,
    .product_f32 = scalar_product_f32,
    .dot = scalar_dot,
    .sum = scalar_sum,
    .inverse_rms = scalar_inverse_rms,
    .rms_norm = scalar_rms_norm,
    .bf16_to_f32 = scalar_bf16_to_f32,
    .f32_to_bf16 = scalar_f32_to_bf16,
    .quantise_input = scalar_quantise_input,
    .window_entry = scalar_window_entry,
    .global_entry = scalar_global_entry,
    .index_entry = scalar_index_entry,
    .hyper_mix = scalar_hyper_mix,
    .collapse = scalar_collapse,
    .expand = scalar_expand,
    .mean = scalar_mean,
    .cos_sin = scalar_cos_sin,
    .rotate = scalar_rotate,
    .sigmoid = scalar_sigmoid,
    .swiglu = scalar_swiglu,
    .router_score = scalar_router_score,
    .pool2 = scalar_pool2,
    .engram = scalar_engram,
    .attention = scalar_attention,
    .index_scores = scalar_index_scores,
    .count_from = scalar_count_from,
};
