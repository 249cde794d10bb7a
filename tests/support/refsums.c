/* refsums.c - see refsums.h. Sums are at most MAX_TERMS long, enough for every test model. */
#include "support/refsums.h"

#include "tensor/codec.h"

#include <math.h>
#include <string.h>

enum { MAX_TERMS = 1 << 15 };

static float tree_sum(double *p, size_t n) {
    while (n > 1) {
        size_t h = (n + 1) / 2;
        for (size_t i = 0; i < n - h; i++) p[i] += p[h + i];
        n = h;
    }
    return n ? (float)p[0] : 0.0f;
}

/* The first level of the tree is formed with the products, to halve the memory that is touched. */
static float ref_dot(const float *a, const float *b, size_t n) {
    double p[MAX_TERMS / 2];
    size_t h = (n + 1) / 2;
    for (size_t i = 0; i < n - h; i++) p[i] = (double)a[i] * (double)b[i] + (double)a[h + i] * (double)b[h + i];
    if (n % 2) p[h - 1] = (double)a[h - 1] * (double)b[h - 1];
    return tree_sum(p, h);
}

static float ref_sum(const float *a, size_t n) {
    double p[MAX_TERMS];
    for (size_t i = 0; i < n; i++) p[i] = a[i];
    return tree_sum(p, n);
}

static float exp32(float x) {
    return (float)exp((double)x);
}
static float sigmoid32(float x) {
    return (float)(1 / (1 + exp(-(double)x)));
}

/* ---------------------------------------------------------------- products */

/* y[m][n] for one weight row given as fp32 */
static void weight_row(const float *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n, float *y,
                       size_t y_stride) {
    for (size_t m = 0; m < rows; m++) y[m * y_stride + n] = ref_dot(x + m * x_stride, w, in);
}

static void ref_product_f8(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                           float *y, size_t y_stride, float *scratch) {
    (void)scratch;
    float row[MAX_TERMS];
    for (size_t n = n0; n < n1; n++) {
        const uint8_t *scales = w->scales + n / 32 * (w->in / 32);
        for (size_t k = 0; k < w->in; k++)
            row[k] = di_e4m3_decode(w->codes[n * w->in + k]) * di_e8m0_decode(scales[k / 32]);
        weight_row(row, w->in, x, x_stride, rows, n, y, y_stride);
    }
}

static void ref_product_f4(const di_cpu_f4 *w, const di_f4_block *x, const float *values, size_t rows, size_t n0,
                           size_t n1, float *y, size_t y_stride) {
    (void)x;
    float row[MAX_TERMS];
    size_t blocks = w->in / 32;
    for (size_t n = n0; n < n1; n++) {
        for (size_t k = 0; k < w->in; k++) {
            size_t tile = n / 16 * blocks + k / 32, r = n % 16, within = k % 16;
            uint8_t byte = w->tiles[tile * 256 + within / 4 * 64 + r * 4 + within % 4];
            uint8_t code = k % 32 < 16 ? byte & 15 : byte >> 4;
            row[k] = di_e2m1_decode(code) * di_e8m0_decode(w->scales[tile * 16 + r]);
        }
        weight_row(row, w->in, values, w->in, rows, n, y, y_stride);
    }
}

static void ref_product_bf16(const uint8_t *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,
                             size_t n1, float *y, size_t y_stride) {
    float row[MAX_TERMS];
    for (size_t n = n0; n < n1; n++) {
        for (size_t k = 0; k < in; k++) {
            uint16_t code;
            memcpy(&code, w + (n * in + k) * 2, 2);
            row[k] = di_bf16_decode(code);
        }
        weight_row(row, in, x, x_stride, rows, n, y, y_stride);
    }
}

static void ref_product_f32(const float *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,
                            size_t n1, float *y, size_t y_stride) {
    for (size_t n = n0; n < n1; n++) weight_row(w + n * in, in, x, x_stride, rows, n, y, y_stride);
}

/* ---------------------------------------------------------------- norms */

/* The oracle's epsilon is the double 1e-20, which fp32 does not hold exactly. */
static float ref_inverse_rms(const float *x, size_t n, float eps) {
    double exact = eps == 1e-20f ? 1e-20 : (double)eps;
    float mean_square = ref_dot(x, x, n) / (float)n;
    return (float)(1 / sqrt((double)mean_square + exact));
}

static void ref_rms_norm(const float *x, const float *w, size_t n, float eps, uint16_t *out) {
    float r = ref_inverse_rms(x, n, eps);
    for (size_t i = 0; i < n; i++) {
        float scaled = x[i] * r;
        out[i] = di_bf16_encode(w[i] * scaled);
    }
}

/* ---------------------------------------------------------------- conversions */

static void ref_bf16_to_f32(const uint16_t *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = di_bf16_decode(x[i]);
}

static void ref_f32_to_bf16(const float *x, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i++) out[i] = di_bf16_encode(x[i]);
}

static void ref_quantise_input(const uint16_t *x, size_t n, float *values, di_f4_block *blocks) {
    (void)blocks; /* reference products read the values */
    uint8_t codes[32], scale;
    float block[32];
    for (size_t i = 0; i < n; i += 32) {
        ref_bf16_to_f32(x + i, 32, block);
        di_quantise_q8_32(block, 32, codes, &scale);
        di_dequantise_q8_32(codes, &scale, 32, values + i);
    }
}

static void ref_window_entry(const float *x, size_t n, uint8_t *entry) {
    di_quantise_q8_32(x, n, entry, entry + n);
}

static void ref_global_entry(const float *x, size_t n, uint8_t *entry) {
    uint8_t codes[16];
    for (size_t i = 0; i < n; i += 16) {
        di_quantise_q4_16(x + i, 16, codes, entry + n / 2 + i / 16);
        di_pack_nibbles(codes, 16, entry + i / 2);
    }
}

static void ref_index_entry(const float *x, size_t n, uint8_t *entry) {
    uint8_t codes[32];
    for (size_t i = 0; i < n; i += 32) {
        di_quantise_q4_32(x + i, 32, codes, entry + n / 2 + i / 32);
        di_pack_nibbles(codes, 32, entry + i / 2);
    }
}

/* ---------------------------------------------------------------- hyper-connections */

/* Divides every row (or column) of a c x c matrix by its sequential fp32 sum plus eps. */
static void divide(float *b, size_t c, bool columns, float eps) {
    size_t along = columns ? c : 1, across = columns ? 1 : c;
    for (size_t i = 0; i < c; i++) {
        float sum = b[i * across];
        for (size_t j = 1; j < c; j++) sum = sum + b[i * across + j * along];
        for (size_t j = 0; j < c; j++) b[i * across + j * along] /= sum + eps;
    }
}

static void ref_hyper_mix(const float *m, const float *base, const float *scale, size_t c, unsigned iterations,
                          float eps, float *pre, float *post, float *comb) {
    for (size_t i = 0; i < c; i++) {
        float a = m[i] * scale[0], b = m[c + i] * scale[1];
        pre[i] = sigmoid32(a + base[i]) + eps;
        post[i] = 2 * sigmoid32(b + base[c + i]);
    }
    for (size_t j = 0; j < c; j++) {
        float top = -INFINITY;
        for (size_t k = 0; k < c; k++) {
            float product = m[2 * c + j * c + k] * scale[2];
            comb[j * c + k] = product + base[2 * c + j * c + k];
            if (comb[j * c + k] > top) top = comb[j * c + k];
        }
        for (size_t k = 0; k < c; k++) comb[j * c + k] = exp32(comb[j * c + k] - top);
    }
    divide(comb, c, false, 0);
    for (size_t i = 0; i < c * c; i++) comb[i] += eps;
    divide(comb, c, true, eps);
    for (unsigned pass = 1; pass < iterations; pass++) {
        divide(comb, c, false, eps);
        divide(comb, c, true, eps);
    }
}

static void ref_collapse(const uint16_t *stream, const float *pre, size_t copies, size_t n, uint16_t *out) {
    double p[16];
    for (size_t i = 0; i < n; i++) {
        for (size_t c = 0; c < copies; c++) p[c] = (double)di_bf16_decode(stream[c * n + i]) * (double)pre[c];
        out[i] = di_bf16_encode(tree_sum(p, copies));
    }
}

static void ref_expand(const uint16_t *y, const float *post, const float *comb, size_t copies, size_t n,
                       uint16_t *stream) {
    double p[17];
    float x[16];
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < copies; j++) x[j] = di_bf16_decode(stream[j * n + i]);
        for (size_t k = 0; k < copies; k++) {
            p[0] = (double)post[k] * (double)di_bf16_decode(y[i]);
            for (size_t j = 0; j < copies; j++) p[1 + j] = (double)comb[j * copies + k] * (double)x[j];
            stream[k * n + i] = di_bf16_encode(tree_sum(p, copies + 1));
        }
    }
}

static void ref_mean(const uint16_t *stream, size_t copies, size_t n, uint16_t *out) {
    float weight[16];
    for (size_t c = 0; c < copies; c++) weight[c] = 1.0f / (float)copies;
    ref_collapse(stream, weight, copies, n, out);
}

/* ---------------------------------------------------------------- rotary */

static void ref_cos_sin(int64_t position, const float *frequency, size_t n, float *cosine, float *sine) {
    for (size_t j = 0; j < n; j++) {
        float angle = (float)position * frequency[j];
        cosine[j] = (float)cos((double)angle);
        sine[j] = (float)sin((double)angle);
    }
}

static void ref_rotate(float *x, const float *cosine, const float *sine, size_t n, bool inverse) {
    for (size_t j = 0; j < n; j++) {
        double re = x[2 * j], im = x[2 * j + 1], c = cosine[j], s = inverse ? -sine[j] : sine[j];
        x[2 * j] = di_bf16_round((float)(re * c - im * s));
        x[2 * j + 1] = di_bf16_round((float)(re * s + im * c));
    }
}

/* ---------------------------------------------------------------- elementwise */

static void ref_sigmoid(const float *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i++) out[i] = sigmoid32(x[i]);
}

static void ref_swiglu(const float *g, const float *u, size_t n, float limit, bool has_weight, float weight,
                       uint16_t *out) {
    for (size_t i = 0; i < n; i++) {
        double gate = fminf(g[i], limit);
        float a = (float)(gate / (1 + exp(-gate)));
        a = a * fmaxf(fminf(u[i], limit), -limit);
        if (has_weight) a = a * weight;
        out[i] = di_bf16_encode(a);
    }
}

static void ref_router_score(float *z, size_t n) {
    for (size_t i = 0; i < n; i++) {
        float softplus = z[i] > 20 ? z[i] : (float)log1p(exp((double)z[i]));
        z[i] = (float)sqrt((double)softplus);
    }
}

static void ref_pool2(const float *kv0, const float *gate0, const float *kv1, const float *gate1, size_t n,
                      float *out) {
    for (size_t i = 0; i < n; i++) {
        float top = fmaxf(gate0[i], gate1[i]);
        float e0 = exp32(gate0[i] - top), e1 = exp32(gate1[i] - top);
        float sum = (float)((double)e0 + (double)e1), a0 = e0 / sum, a1 = e1 / sum;
        out[i] = di_bf16_round((float)((double)a0 * (double)kv0[i] + (double)a1 * (double)kv1[i]));
    }
}

static float ref_engram(const float *h, const float *qk, const float *key, const float *value, size_t n, float eps,
                        bool image, uint16_t *out) {
    double p[MAX_TERMS];
    for (size_t i = 0; i < n; i++) p[i] = (double)h[i] * (double)qk[i] * (double)key[i];
    float r = ref_inverse_rms(h, n, eps) * ref_inverse_rms(key, n, eps);
    float d = tree_sum(p, n) * r;
    d = d / (float)sqrt((double)n);
    float m = (float)sqrt((double)fmaxf(fabsf(d), 1e-6f));
    float gate = image ? 0.0f : sigmoid32(copysignf(m, d));
    for (size_t i = 0; i < n; i++) {
        float product = gate * value[i];
        out[i] = di_bf16_encode(h[i] + product);
    }
    return gate;
}

/* ---------------------------------------------------------------- attention and index */

static void decode_global(const uint8_t *entry, size_t d, float *key) {
    for (size_t i = 0; i < d; i++) {
        uint8_t code = entry[i / 2] >> (i % 2 * 4) & 15;
        key[i] = di_e2m1_decode(code) * di_e4m3_decode(entry[d / 2 + i / 16]);
    }
}

/* Slots: the window (oldest first, missing ones 0), then `global_slots`, then the sink. */
static void ref_attention(const di_cpu_attention *a) {
    size_t d = a->head_dim, slots = a->window_slots + a->global_slots;
    float *keys = a->scratch, *e = keys + slots * d, *q = e + slots; /* [slots][d], [slots], [d] */
    double p[MAX_TERMS];
    bool present[MAX_TERMS];
    for (size_t s = 0; s < slots; s++) {
        size_t g = s - a->window_slots;
        present[s] = s < a->window_slots ? a->window[s] != NULL : g < a->global_count;
        if (!present[s])
            memset(keys + s * d, 0, d * sizeof *keys);
        else if (s < a->window_slots)
            di_dequantise_q8_32(a->window[s], a->window[s] + d, d, keys + s * d);
        else
            decode_global(a->global[g], d, keys + s * d);
    }
    for (size_t h = 0; h < a->heads; h++) {
        float top = a->sink[h];
        ref_bf16_to_f32(a->q + h * d, d, q);
        for (size_t s = 0; s < slots; s++) {
            e[s] = present[s] ? ref_dot(q, keys + s * d, d) * a->scale : -INFINITY;
            if (e[s] > top) top = e[s];
        }
        for (size_t s = 0; s < slots; s++) {
            e[s] = present[s] ? exp32(e[s] - top) : 0.0f;
            p[s] = e[s];
        }
        p[slots] = exp32(a->sink[h] - top);
        float denominator = tree_sum(p, slots + 1);
        for (size_t i = 0; i < d; i++) {
            for (size_t s = 0; s < slots; s++) p[s] = (double)e[s] * (double)keys[s * d + i];
            a->out[h * d + i] = di_bf16_encode(tree_sum(p, slots) / denominator);
        }
    }
}

static void decode_index(const uint8_t *entry, size_t dim, float *out) {
    uint8_t codes[MAX_TERMS];
    di_unpack_nibbles(entry, dim, codes);
    di_dequantise_q4_32(codes, entry + dim / 2, dim, out);
}

static void ref_index_scores(const uint8_t *q, const float *w, size_t heads, size_t dim, const uint8_t *const *keys,
                             size_t count, float *scores, void *scratch) {
    float *query = scratch, *relu = query + heads * dim, key[MAX_TERMS]; /* [heads][dim], [heads] */
    size_t entry = dim / 2 + dim / 32;
    for (size_t h = 0; h < heads; h++) decode_index(q + h * entry, dim, query + h * dim);
    for (size_t g = 0; g < count; g++) {
        decode_index(keys[g], dim, key);
        for (size_t h = 0; h < heads; h++) relu[h] = fmaxf(ref_dot(query + h * dim, key, dim), 0.0f);
        scores[g] = ref_dot(relu, w, heads);
    }
}

static size_t ref_count_from(const float *x, size_t n, float least) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += x[i] >= least;
    return count;
}

const di_cpu_kernels di_refsums = {
    .name = "reference sums",
    .f4_reads_values = true,
    .product_f8 = ref_product_f8,
    .product_f4 = ref_product_f4,
    .product_bf16 = ref_product_bf16,
    .product_f32 = ref_product_f32,
    .dot = ref_dot,
    .sum = ref_sum,
    .inverse_rms = ref_inverse_rms,
    .rms_norm = ref_rms_norm,
    .bf16_to_f32 = ref_bf16_to_f32,
    .f32_to_bf16 = ref_f32_to_bf16,
    .quantise_input = ref_quantise_input,
    .window_entry = ref_window_entry,
    .global_entry = ref_global_entry,
    .index_entry = ref_index_entry,
    .hyper_mix = ref_hyper_mix,
    .collapse = ref_collapse,
    .expand = ref_expand,
    .mean = ref_mean,
    .cos_sin = ref_cos_sin,
    .rotate = ref_rotate,
    .sigmoid = ref_sigmoid,
    .swiglu = ref_swiglu,
    .router_score = ref_router_score,
    .pool2 = ref_pool2,
    .engram = ref_engram,
    .attention = ref_attention,
    .index_scores = ref_index_scores,
    .count_from = ref_count_from,
};
