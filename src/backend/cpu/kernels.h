/* kernels.h - the inner functions of the CPU ops, one table per instruction set.
 *
 * A table is complete: scalar.c (the reference, plain C), avx2.c, avx512.c, and for tests a table with reference sums
 * in double (tests/support/refsums.c). Production tables must give equal BYTES on every finite input
 * (docs/numerics.md); a table may fill entries with another table's functions. All functions are pure, re-entrant, and
 * allocate nothing. Pointers need no alignment beyond their element type unless said. Sizes are in elements.
 *
 * The canonical dot product "dot16" (rule 2): lane l of 16 sums k = l, l+16, ... by fma from +0 in ascending k; then
 * fold 16 -> 8 -> 4 -> 2 -> 1 by halves (lane l += lane l + 8; then + 4; + 2; + 1). K not a multiple of 16 is padded
 * with zeros (the padded lanes see fma(0, 0, lane)). sum16 is the same with plain additions instead of fma.
 */
#ifndef DI_BACKEND_CPU_KERNELS_H
#define DI_BACKEND_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* E4M3 matrix in stored form: codes [out][in], scale bytes E8M0 [ceil(out/32)][in/32] (in is a multiple of 32).
 * Codes that are NaN (0x7f, 0xff) must not occur: vector tables read them as +-480. Scale byte 255 neither.
 * Element value = e4m3(code); the tile's scale multiplies the INPUT: y[n] = dot16(e4m3(code[n]), x * scale[n/32]),
 * the product x[k] * scale rounded to fp32 (exact unless it leaves the fp32 range). */
typedef struct di_cpu_f8 {
    const uint8_t *codes;
    const uint8_t *scales;
    size_t out, in;
} di_cpu_f8;

/* Packed E2M1 matrix, repacked: tiles of 16 output rows x 32 inputs, [ceil(out/16)][in/32][256 bytes].
 *   chunk j = 0..3 of a tile: 64 bytes; byte (r, t), r = 0..15, t = 0..3 at j*64 + r*4 + t:
 *     low nibble  = code at row r, k = 4j + t          high nibble = code at row r, k = 16 + 4j + t
 * scales: [ceil(out/16)][in/32][16] E8M0. Rows beyond `out` are zero codes with scale byte 127. 64-byte aligned. */
typedef struct di_cpu_f4 {
    const uint8_t *tiles;
    const uint8_t *scales;
    size_t out, in;
} di_cpu_f4;

/* One 32-block of a quantised input row for E2M1 products. The E4M3 value in units of 2^-9 is an integer v,
 * |v| <= 229376, split into v = rest + 2^3 (limb0 + 2^8 limb1), rest in [-4, 3], limb0 in [-128, 127], |limb1| <= 112.
 * Only values below 1/1792 of the block's largest have a rest (or of 1e-4 where that is larger), so it is kept apart:
 * bit k of rest_mask = rest[k] is not zero. bias = -12 * (sum of limb0 + 2^8 limb1 over the block): kernels may
 * multiply limbs with 2*e2m1 + 12 (0..24, unsigned) instead of 2*e2m1; a rest is multiplied with 2*e2m1.
 * The scale is that of the block, times 2^-10. Rule 3: block sum s = sum 2*e2m1 * v exactly (int32), then
 * acc = fma((float)s, scale * weight_scale, acc), blocks ascending; scale * weight_scale rounded to fp32. */
typedef struct di_f4_block {
    int8_t limb[2][32];
    int8_t rest[32];
    uint32_t rest_mask;
    int32_t bias;
    float scale;
} di_f4_block; /* 108 bytes */

/* Keys of one attention row. A key is a stored entry:
 *   window entry  d E4M3 codes | d/32 E8M0         global entry  d/2 packed E2M1 | d/16 E4M3 scales
 * A NULL window key is a missing slot (oldest first); it is skipped. Production walks present window keys ascending,
 * then global keys, in tiles of 64 counted from the first present key (rule 5):
 *   t_j = dot16(q, k_j) * scale;  M' = max(M, max t);  fade = exp(M - M');  p_j = exp(t_j - M')
 *   den = den * fade + sum16(p);  o[i] = fma(p_j, k_j[i], o[i]) for ascending j, after o[i] *= fade
 * start: M = sink, den = 1, o = 0; the end: out = bf16(o / den). A row without keys gives 0. */
typedef struct di_cpu_attention {
    const uint16_t *q; /* bf16 [heads][d] */
    const float *sink; /* [heads] */
    size_t heads, head_dim;
    float scale;
    const uint8_t *const *window; /* [window_slots] entries or NULL */
    size_t window_slots;
    const uint8_t *const *global; /* [global_count] */
    size_t global_count;
    size_t global_slots; /* list length of the layer type (index_topk, 0 for ratio 0): only reference sums look at it */
    uint16_t *out;       /* bf16 [heads][d] */
    float *scratch;      /* di_cpu_attention_scratch(heads, d, window_slots + global_slots) floats */
} di_cpu_attention;

static inline size_t di_cpu_attention_scratch(size_t heads, size_t head_dim, size_t slots) {
    return (slots + 64) * head_dim + heads * (head_dim + slots + 64 + 8) + 64;
}

typedef struct di_cpu_kernels {
    const char *name;     /* "scalar", "avx2", "avx512", "reference sums" */
    bool f4_reads_values; /* product_f4 reads the values of its input, not the blocks: reference sums only */

    /* ---- products: y[m * y_stride + n] for m in [0, rows), n in [n0, n1); fp32, not yet rounded to bf16.
     * x: fp32 [rows][x_stride]. n0 is a multiple of 32 (f8) or 16 (f4); n1 too, or `out`. */
    /* scratch: rows * in floats */
    void (*product_f8)(const di_cpu_f8 *w, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1, float *y,
                       size_t y_stride, float *scratch);
    /* x: blocks [rows][in/32]; values: the dequantised input [rows][in], undefined unless f4_reads_values */
    void (*product_f4)(const di_cpu_f4 *w, const di_f4_block *x, const float *values, size_t rows, size_t n0, size_t n1,
                       float *y, size_t y_stride);
    /* w: bf16 [out][in], any alignment; dot16 */
    void (*product_bf16)(const uint8_t *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0,
                         size_t n1, float *y, size_t y_stride);
    /* w: f32 [out][in]; dot16 */
    void (*product_f32)(const float *w, size_t in, const float *x, size_t x_stride, size_t rows, size_t n0, size_t n1,
                        float *y, size_t y_stride);

    /* ---- reductions */
    float (*dot)(const float *a, const float *b, size_t n); /* dot16 */
    float (*sum)(const float *a, size_t n);                 /* sum16 */
    /* 1 / sqrt(ms + eps), ms = dot(x, x) / n; fp32 operations one by one */
    float (*inverse_rms)(const float *x, size_t n, float eps);
    /* out = bf16(w * (x * r)), r = inverse_rms(x) */
    void (*rms_norm)(const float *x, const float *w, size_t n, float eps, uint16_t *out);

    /* ---- conversions */
    void (*bf16_to_f32)(const uint16_t *x, size_t n, float *out);
    void (*f32_to_bf16)(const float *x, size_t n, uint16_t *out); /* round to nearest even */
    /* FQ8_32 of a bf16 row: values (dequantised, fp32); blocks for E2M1 products; either may be NULL. n multiple of 32.
     */
    void (*quantise_input)(const uint16_t *x, size_t n, float *values, di_f4_block *blocks);
    /* entries; x is fp32 holding bf16 values */
    void (*window_entry)(const float *x, size_t n, uint8_t *entry); /* FQ8_32: codes, scales */
    void (*global_entry)(const float *x, size_t n, uint8_t *entry); /* FQ4_16: packed codes, E4M3 scales */
    void (*index_entry)(const float *x, size_t n, uint8_t *entry);  /* FQ4_32: packed codes, E8M0 scales */

    /* ---- hyper-connections [5.1]; copies <= 8 */
    /* m: [(2 + copies) * copies] mixed numbers, already times r. All fp32; row and column sums are sequential in index
     * order; exp of the row minus its maximum. */
    void (*hyper_mix)(const float *m, const float *base, const float *scale, size_t copies, unsigned iterations,
                      float eps, float *pre, float *post, float *comb);
    /* out = bf16(sum_c pre[c] X[c]), fma from +0, c ascending; X bf16 [copies][n] */
    void (*collapse)(const uint16_t *stream, const float *pre, size_t copies, size_t n, uint16_t *out);
    /* in place X[k] = bf16(post[k] y + sum_j comb[j][k] X[j]): product post*y first, then fma with j ascending */
    void (*expand)(const uint16_t *y, const float *post, const float *comb, size_t copies, size_t n, uint16_t *stream);
    /* out = bf16(mean of the copies): sum_c (1/copies) X[c] like collapse */
    void (*mean)(const uint16_t *stream, size_t copies, size_t n, uint16_t *out);

    /* ---- rotary [4.5] */
    /* angle = (float)position * frequency[j] (one fp32 product); double sin/cos with full range reduction, rounded */
    void (*cos_sin)(int64_t position, const float *frequency, size_t n, float *cosine, float *sine);
    /* x: [2n] adjacent pairs, rotated in place, result rounded to bf16 (kept as fp32):
     * re' = fma(re, c, -(im * s)), im' = fma(re, s, im * c); inverse: s -> -s */
    void (*rotate)(float *x, const float *cosine, const float *sine, size_t n, bool inverse);

    /* ---- elementwise */
    void (*sigmoid)(const float *x, size_t n, float *out); /* 1 / (1 + exp(-x)) */
    /* out = bf16((silu(min(g, limit)) * clamp(u, -limit, limit)) * weight), silu(g) = g / (1 + exp(-g)); the last
     * factor only if has_weight; g, u hold bf16 values */
    void (*swiglu)(const float *g, const float *u, size_t n, float limit, bool has_weight, float weight, uint16_t *out);
    /* in place z -> sqrt(softplus(z)), softplus(z) = z > 20 ? z : log1p(exp(z)) */
    void (*router_score)(float *z, size_t n);
    /* ratio-2 pooling per channel [6.1]: e_i = exp(s_i - max), a_i = e_i / (e_0 + e_1),
     * out = bf16(fma(a_1, kv_1, a_0 * kv_0)), kept as fp32 */
    void (*pool2)(const float *kv0, const float *gate0, const float *kv1, const float *gate1, size_t n, float *out);
    /* Engram for one copy: h, key, value fp32 [n] (bf16 values); qk = query * key weights.
     * d = (dot3 * (r_h * r_key)) / sqrt(n), dot3 = dot16(h * qk, key) (the product h*qk rounded);
     * gate = sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)); image: gate = 0; out = bf16(fma(gate, value, h)) */
    float (*engram)(const float *h, const float *qk, const float *key, const float *value, size_t n, float eps,
                    bool image, uint16_t *out);

    /* ---- attention and index */
    void (*attention)(const di_cpu_attention *a);
    /* scores[g] for `count` keys (index entries): sum over heads dot16(w, max(0, d)), d_i by rule 3's form: block sums
     * of (2 e2m1)(2 e2m1) exact, acc = fma((float)s, 0.25 * (q_scale * k_scale), acc), blocks ascending. q: index
     * entries [heads][dim/2 + dim/32]; w: fp32 [heads]; scratch: heads * (dim + 64) * 4 + 4096 bytes, aligned 64 */
    void (*index_scores)(const uint8_t *q, const float *w, size_t heads, size_t dim, const uint8_t *const *keys,
                         size_t count, float *scores, void *scratch);
    /* how many x[i] >= least; a NaN is none */
    size_t (*count_from)(const float *x, size_t n, float least);
} di_cpu_kernels;

extern const di_cpu_kernels di_cpu_scalar;
#if defined(__x86_64__)
extern const di_cpu_kernels di_cpu_avx2;   /* needs AVX2, FMA, F16C */
extern const di_cpu_kernels di_cpu_avx512; /* needs AVX-512 F, BW, VL, DQ, VNNI */
#endif

/* True if this machine can run the table. */
bool di_cpu_supports(const di_cpu_kernels *kernels);
/* Compares `kernels` with the scalar table on a hundred vectors of every entry; false names the entry in *what. */
bool di_cpu_self_test(const di_cpu_kernels *kernels, const char **what);
/* The same on `vectors` others; returns the bytes that differ. *what is NULL or the first entry concerned. */
uint64_t di_cpu_compare_kernels(const di_cpu_kernels *kernels, uint64_t seed, uint32_t vectors, const char **what);

/* Repacks packed E2M1 [out][in/2] with scales [out][in/32] into the tile form. */
size_t di_cpu_f4_tile_bytes(size_t out, size_t in);
size_t di_cpu_f4_scale_bytes(size_t out, size_t in);
void di_cpu_f4_repack(const uint8_t *packed, const uint8_t *scales, size_t out, size_t in, uint8_t *tiles,
                      uint8_t *tile_scales);

#endif
