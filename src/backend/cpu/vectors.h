/* vectors.h - AVX2 and AVX-512 forms of every table entry that is not a product.
 *
 * Contracts are those of kernels.h; bytes equal scalar.c on every input. avx2.c and avx512.c build their tables from
 * DI_CPU_VECTOR_ENTRIES. The 16-lane code is written once (vectors_body.h, attention_body.h, index_body.h over
 * lanes.h) and compiled once an instruction set.
 */
#ifndef DI_BACKEND_CPU_VECTORS_H
#define DI_BACKEND_CPU_VECTORS_H

#include "backend/cpu/kernels.h"

#define DI_CPU_DECLARE_VECTORS(isa)                                                                                    \
    float di_cpu_dot_##isa(const float *a, const float *b, size_t n);                                                  \
    float di_cpu_sum_##isa(const float *a, size_t n);                                                                  \
    float di_cpu_inverse_rms_##isa(const float *x, size_t n, float eps);                                               \
    void di_cpu_rms_norm_##isa(const float *x, const float *w, size_t n, float eps, uint16_t *out);                    \
    void di_cpu_bf16_to_f32_##isa(const uint16_t *x, size_t n, float *out);                                            \
    void di_cpu_f32_to_bf16_##isa(const float *x, size_t n, uint16_t *out);                                            \
    void di_cpu_quantise_input_##isa(const uint16_t *x, size_t n, float *values, di_f4_block *blocks);                 \
    void di_cpu_window_entry_##isa(const float *x, size_t n, uint8_t *entry);                                          \
    void di_cpu_global_entry_##isa(const float *x, size_t n, uint8_t *entry);                                          \
    void di_cpu_index_entry_##isa(const float *x, size_t n, uint8_t *entry);                                           \
    void di_cpu_hyper_mix_##isa(const float *m, const float *base, const float *scale, size_t copies,                  \
                                unsigned iterations, float eps, float *pre, float *post, float *comb);                 \
    void di_cpu_collapse_##isa(const uint16_t *stream, const float *pre, size_t copies, size_t n, uint16_t *out);      \
    void di_cpu_expand_##isa(const uint16_t *y, const float *post, const float *comb, size_t copies, size_t n,         \
                             uint16_t *stream);                                                                        \
    void di_cpu_mean_##isa(const uint16_t *stream, size_t copies, size_t n, uint16_t *out);                            \
    void di_cpu_cos_sin_##isa(int64_t position, const float *frequency, size_t n, float *cosine, float *sine);         \
    void di_cpu_rotate_##isa(float *x, const float *cosine, const float *sine, size_t n, bool inverse);                \
    void di_cpu_sigmoid_##isa(const float *x, size_t n, float *out);                                                   \
    void di_cpu_swiglu_##isa(const float *g, const float *u, size_t n, float limit, bool has_weight, float weight,     \
                             uint16_t *out);                                                                           \
    void di_cpu_router_score_##isa(float *z, size_t n);                                                                \
    void di_cpu_pool2_##isa(const float *kv0, const float *gate0, const float *kv1, const float *gate1, size_t n,      \
                            float *out);                                                                               \
    float di_cpu_engram_##isa(const float *h, const float *qk, const float *key, const float *value, size_t n,         \
                              float eps, bool image, uint16_t *out);                                                   \
    void di_cpu_attention_##isa(const di_cpu_attention *a);                                                            \
    void di_cpu_index_scores_##isa(const uint8_t *q, const float *w, size_t heads, size_t dim,                         \
                                   const uint8_t *const *keys, size_t count, float *scores, void *scratch);            \
    size_t di_cpu_count_from_##isa(const float *x, size_t n, float least);

DI_CPU_DECLARE_VECTORS(avx2)
DI_CPU_DECLARE_VECTORS(avx512)

/* The designated initialisers of these entries in a di_cpu_kernels. */
#define DI_CPU_VECTOR_ENTRIES(isa)                                                                                     \
    .dot = di_cpu_dot_##isa, .sum = di_cpu_sum_##isa, .inverse_rms = di_cpu_inverse_rms_##isa,                         \
    .rms_norm = di_cpu_rms_norm_##isa, .bf16_to_f32 = di_cpu_bf16_to_f32_##isa,                                        \
    .f32_to_bf16 = di_cpu_f32_to_bf16_##isa, .quantise_input = di_cpu_quantise_input_##isa,                            \
    .window_entry = di_cpu_window_entry_##isa, .global_entry = di_cpu_global_entry_##isa,                              \
    .index_entry = di_cpu_index_entry_##isa, .hyper_mix = di_cpu_hyper_mix_##isa, .collapse = di_cpu_collapse_##isa,   \
    .expand = di_cpu_expand_##isa, .mean = di_cpu_mean_##isa, .cos_sin = di_cpu_cos_sin_##isa,                         \
    .rotate = di_cpu_rotate_##isa, .sigmoid = di_cpu_sigmoid_##isa, .swiglu = di_cpu_swiglu_##isa,                     \
    .router_score = di_cpu_router_score_##isa, .pool2 = di_cpu_pool2_##isa, .engram = di_cpu_engram_##isa,             \
    .attention = di_cpu_attention_##isa, .index_scores = di_cpu_index_scores_##isa,                                    \
    .count_from = di_cpu_count_from_##isa

#endif
