/* vectors_body.h - sums, conversions and elementwise entries over lanes.h; compiled once an instruction set by
 * vectors_avx2.c and vectors_avx512.c. Bytes equal scalar.c, whose operations are repeated in its order.
 */
#include "backend/cpu/lanes.h"
#include "backend/cpu/lanes_math.h"
#include "backend/cpu/math.h"
#include "backend/cpu/vectors.h"
#include "tensor/codec.h"

enum { BLOCK = 32, MAX_COPIES = 8 };

/* ---------------------------------------------------------------- the canonical sums */

float DI_ISA(dot)(const float *a, const float *b, size_t n) {
    lanes acc = lanes_zero();
    size_t k = 0;
    for (; k + DI_LANE_COUNT <= n; k += DI_LANE_COUNT) acc = lanes_fma(lanes_load(a + k), lanes_load(b + k), acc);
    if (k < n) acc = lanes_fma(lanes_load_first(a + k, n - k), lanes_load_first(b + k, n - k), acc);
    return lanes_fold(acc);
}

float DI_ISA(sum)(const float *a, size_t n) {
    lanes acc = lanes_zero();
    size_t k = 0;
    for (; k + DI_LANE_COUNT <= n; k += DI_LANE_COUNT) acc = lanes_add(acc, lanes_load(a + k));
    if (k < n) acc = lanes_add(acc, lanes_load_first(a + k, n - k));
    return lanes_fold(acc);
}

float DI_ISA(inverse_rms)(const float *x, size_t n, float eps) {
    float mean_square = DI_ISA(dot)(x, x, n) / (float)n;
    return 1.0f / __builtin_sqrtf(mean_square + eps);
}

void DI_ISA(rms_norm)(const float *x, const float *w, size_t n, float eps, uint16_t *out) {
    const lanes r = lanes_set(DI_ISA(inverse_rms)(x, n, eps));
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes normed = lanes_mul(lanes_load_part(x + i, n - i), r);
        lanes_store_bf16_part(out + i, lanes_mul(lanes_load_part(w + i, n - i), normed), n - i);
    }
}

/* ---------------------------------------------------------------- conversions */

void DI_ISA(bf16_to_f32)(const uint16_t *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) lanes_store_part(out + i, lanes_load_bf16_part(x + i, n - i), n - i);
}

void DI_ISA(f32_to_bf16)(const float *x, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) lanes_store_bf16_part(out + i, lanes_load_part(x + i, n - i), n - i);
}

/* min(limit, max(-limit, x)), NaN stays NaN */
DI_LANES lanes clamp(lanes x, float limit) {
    return lanes_max(lanes_set(-limit), lanes_min(lanes_set(limit), x));
}

/* x >= 0 rounded to nearest even on a floating-point grid of `fraction` fraction bits whose smallest normal exponent
 * has the biased form in `lowest`: adding 2^23 grid steps and taking them away again leaves the rounding to the adder.
 */
DI_LANES lanes round_to_grid(lanes x, float lowest, int fraction) {
    ints exponent = ints_and(lanes_bits(lanes_max(x, lanes_set(lowest))), ints_set(0x7f800000));
    lanes steps = ints_as_lanes(ints_add(exponent, ints_set((23 - fraction) << 23)));
    return lanes_sub(lanes_add(x, steps), steps);
}

/* Largest of `least` and the magnitudes of a and b. */
DI_LANES float block_maximum(lanes a, lanes b, float least) {
    const lanes start = lanes_set(least);
    return lanes_maximum(lanes_max(lanes_max(lanes_abs(a), start), lanes_max(lanes_abs(b), start)));
}

/* x / 2^(byte - 127): the quotient by a power of two whose reciprocal is normal equals the product. */
DI_LANES lanes unscale(lanes x, uint8_t byte) {
    return lanes_mul(x, lanes_set(di_f32_from_bits((uint32_t)(254 - byte) << 23)));
}

/* x / scale on the E4M3 grid, as a value with the sign of x. */
DI_LANES lanes quantise_e4m3(lanes x, uint8_t byte) {
    lanes scaled = clamp(unscale(x, byte), 448.0f);
    lanes grid = round_to_grid(lanes_abs(scaled), 0x1p-6f, 3);
    return ints_as_lanes(ints_or(lanes_bits(grid), lanes_sign_bits(x)));
}

/* E4M3 codes of values on the grid. */
DI_LANES ints e4m3_codes(lanes value) {
    lanes magnitude = lanes_abs(value);
    ints normal = ints_sub(ints_shift_right(lanes_bits(magnitude), 20), ints_set((127 - 7) << 3));
    ints subnormal = lanes_to_ints(lanes_mul(magnitude, lanes_set(512.0f)));
    ints code = ints_select(lanes_less(magnitude, lanes_set(0x1p-6f)), subnormal, normal);
    return ints_or(code, ints_shift_right(lanes_sign_bits(value), 24));
}

/* E2M1 codes of scaled values, |x| <= 6. */
DI_LANES ints e2m1_codes(lanes x) {
    lanes grid = round_to_grid(lanes_abs(x), 1.0f, 1);
    ints normal = ints_sub(ints_shift_right(lanes_bits(grid), 22), ints_set((127 << 1) - 2));
    ints subnormal = lanes_to_ints(lanes_add(grid, grid));
    ints code = ints_select(lanes_less(grid, lanes_set(1.0f)), subnormal, normal);
    return ints_or(code, ints_shift_right(lanes_sign_bits(x), 28));
}

/* 16 codes -> 8 bytes, low nibble first. */
DI_LANES void store_nibbles(uint8_t *p, ints codes) {
    __m128i pairs = _mm_maddubs_epi16(ints_to_bytes(codes), _mm_set1_epi16(0x1001));
    _mm_storel_epi64((__m128i *)p, _mm_packus_epi16(pairs, pairs));
}

DI_LANES void store_limb(int8_t *p, ints limb) {
    _mm_storeu_si128((__m128i *)p, ints_to_bytes(ints_and(limb, ints_set(255))));
}

/* Splits integers in units of 2^-9 into rest and limbs of di_f4_block; returns what the limbs stand for. */
DI_LANES ints store_limbs(di_f4_block *block, size_t at, ints v) {
    ints upper = ints_shift_sign(ints_add(v, ints_set(4)), 3);
    store_limb(block->rest + at, ints_sub(v, ints_shift_left(upper, 3)));
    store_limb(block->limb[0] + at, upper);
    store_limb(block->limb[1] + at, ints_shift_sign(ints_add(upper, ints_set(128)), 8));
    return upper;
}

DI_LANES uint32_t not_zero(const int8_t bytes[32]) {
    __m256i zero = _mm256_cmpeq_epi8(_mm256_loadu_si256((const __m256i *)bytes), _mm256_setzero_si256());
    return ~(uint32_t)_mm256_movemask_epi8(zero);
}

void DI_ISA(quantise_input)(const uint16_t *x, size_t n, float *values, di_f4_block *blocks) {
    for (size_t i = 0; i < n; i += BLOCK) {
        lanes a = lanes_load_bf16(x + i), b = lanes_load_bf16(x + i + DI_LANE_COUNT);
        uint8_t byte = di_p2ceil_byte(block_maximum(a, b, 1e-4f) * (1.0f / 448.0f));
        float scale = di_e8m0_decode(byte);
        a = quantise_e4m3(a, byte);
        b = quantise_e4m3(b, byte);
        if (values) {
            lanes_store(values + i, lanes_mul(a, lanes_set(scale)));
            lanes_store(values + i + DI_LANE_COUNT, lanes_mul(b, lanes_set(scale)));
        }
        if (!blocks) continue;
        di_f4_block *block = blocks + i / BLOCK;
        ints low = lanes_to_ints(lanes_mul(a, lanes_set(512.0f)));
        ints high = lanes_to_ints(lanes_mul(b, lanes_set(512.0f)));
        low = store_limbs(block, 0, low);
        high = store_limbs(block, DI_LANE_COUNT, high);
        block->rest_mask = not_zero(block->rest);
        block->bias = (int32_t)(-12u * (uint32_t)ints_sum(ints_add(low, high))); /* NaN: any number */
        block->scale = scale * 0x1p-10f;
    }
}

void DI_ISA(window_entry)(const float *x, size_t n, uint8_t *entry) {
    for (size_t i = 0; i < n; i += BLOCK) {
        lanes a = lanes_load(x + i), b = lanes_load(x + i + DI_LANE_COUNT);
        uint8_t byte = di_p2ceil_byte(block_maximum(a, b, 1e-4f) * (1.0f / 448.0f));
        entry[n + i / BLOCK] = byte;
        _mm_storeu_si128((__m128i *)(entry + i), ints_to_bytes(e4m3_codes(quantise_e4m3(a, byte))));
        _mm_storeu_si128((__m128i *)(entry + i + DI_LANE_COUNT), ints_to_bytes(e4m3_codes(quantise_e4m3(b, byte))));
    }
}

void DI_ISA(global_entry)(const float *x, size_t n, uint8_t *entry) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes a = lanes_load(x + i);
        uint8_t byte = di_e4m3_encode(block_maximum(a, a, 6.0f * 0x1p-9f) / 6.0f);
        entry[n / 2 + i / DI_LANE_COUNT] = byte;
        store_nibbles(entry + i / 2, e2m1_codes(clamp(lanes_div(a, lanes_set(di_e4m3_decode(byte))), 6.0f)));
    }
}

void DI_ISA(index_entry)(const float *x, size_t n, uint8_t *entry) {
    for (size_t i = 0; i < n; i += BLOCK) {
        lanes a = lanes_load(x + i), b = lanes_load(x + i + DI_LANE_COUNT);
        uint8_t byte = di_p2ceil_byte(block_maximum(a, b, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
        entry[n / 2 + i / BLOCK] = byte;
        store_nibbles(entry + i / 2, e2m1_codes(clamp(unscale(a, byte), 6.0f)));
        store_nibbles(entry + i / 2 + DI_LANE_COUNT / 2, e2m1_codes(clamp(unscale(b, byte), 6.0f)));
    }
}

/* ---------------------------------------------------------------- hyper-connections */

/* Matrix entries divided by the sums over their row, or their column, plus eps; sums sequential. */
DI_LANES lanes normalise_rows(lanes m, lanes eps) {
    lanes sum = lanes_add(lanes_spread_column(m, 0), lanes_spread_column(m, 1));
    sum = lanes_add(lanes_add(sum, lanes_spread_column(m, 2)), lanes_spread_column(m, 3));
    return lanes_div(m, lanes_add(sum, eps));
}

DI_LANES lanes normalise_columns(lanes m, lanes eps) {
    lanes sum = lanes_add(lanes_spread_row(m, 0), lanes_spread_row(m, 1));
    sum = lanes_add(lanes_add(sum, lanes_spread_row(m, 2)), lanes_spread_row(m, 3));
    return lanes_div(m, lanes_add(sum, eps));
}

/* The Sinkhorn loop for four copies, the matrix in sixteen lanes; other numbers of copies take the scalar form. */
void DI_ISA(hyper_mix)(const float *m, const float *base, const float *scale, size_t copies, unsigned iterations,
                       float eps, float *pre, float *post, float *comb) {
    if (copies != 4) {
        di_cpu_scalar.hyper_mix(m, base, scale, copies, iterations, eps, pre, post, comb);
        return;
    }
    float gates[DI_LANE_COUNT],
        factors[8] = {scale[0], scale[0], scale[0], scale[0], scale[1], scale[1], scale[1], scale[1]};
    lanes gate = lanes_mul(lanes_load_first(m, 8), lanes_load_first(factors, 8));
    lanes_store(gates, lanes_sigmoid(lanes_add(gate, lanes_load_first(base, 8))));
    for (size_t c = 0; c < 4; c++) {
        pre[c] = gates[c] + eps;
        post[c] = 2.0f * gates[4 + c];
    }
    const lanes epsilon = lanes_set(eps);
    lanes b = lanes_add(lanes_mul(lanes_load(m + 8), lanes_set(scale[2])), lanes_load(base + 8));
    lanes top = lanes_max(lanes_max(lanes_spread_column(b, 0), lanes_spread_column(b, 1)),
                          lanes_max(lanes_spread_column(b, 2), lanes_spread_column(b, 3)));
    b = normalise_rows(lanes_exp(lanes_sub(b, top)), lanes_zero());
    b = normalise_columns(lanes_add(b, epsilon), epsilon);
    for (unsigned pass = 1; pass < iterations; pass++) b = normalise_columns(normalise_rows(b, epsilon), epsilon);
    lanes_store(comb, b);
}

DI_LANES void collapse(const uint16_t *stream, const float *pre, size_t copies, size_t n, uint16_t *out) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes acc = lanes_zero();
        for (size_t c = 0; c < copies; c++)
            acc = lanes_fma(lanes_set(pre[c]), lanes_load_bf16_part(stream + c * n + i, n - i), acc);
        lanes_store_bf16_part(out + i, acc, n - i);
    }
}

void DI_ISA(collapse)(const uint16_t *stream, const float *pre, size_t copies, size_t n, uint16_t *out) {
    if (copies == 4)
        collapse(stream, pre, 4, n, out);
    else
        collapse(stream, pre, copies, n, out);
}

DI_LANES void expand(const uint16_t *y, const float *post, const float *comb, size_t copies, size_t n,
                     uint16_t *stream) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes x[MAX_COPIES], input = lanes_load_bf16_part(y + i, n - i);
        for (size_t j = 0; j < copies; j++) x[j] = lanes_load_bf16_part(stream + j * n + i, n - i);
        for (size_t k = 0; k < copies; k++) {
            lanes acc = lanes_mul(lanes_set(post[k]), input);
            for (size_t j = 0; j < copies; j++) acc = lanes_fma(lanes_set(comb[j * copies + k]), x[j], acc);
            lanes_store_bf16_part(stream + k * n + i, acc, n - i);
        }
    }
}

void DI_ISA(expand)(const uint16_t *y, const float *post, const float *comb, size_t copies, size_t n,
                    uint16_t *stream) {
    if (copies == 4)
        expand(y, post, comb, 4, n, stream);
    else
        expand(y, post, comb, copies, n, stream);
}

void DI_ISA(mean)(const uint16_t *stream, size_t copies, size_t n, uint16_t *out) {
    float weight[MAX_COPIES];
    for (size_t c = 0; c < copies; c++) weight[c] = 1.0f / (float)copies;
    DI_ISA(collapse)(stream, weight, copies, n, out);
}

/* ---------------------------------------------------------------- rotary */

void DI_ISA(cos_sin)(int64_t position, const float *frequency, size_t n, float *cosine, float *sine) {
    const __m128 where = _mm_set1_ps((float)position);
    size_t j = 0;
    for (; j + 4 <= n; j += 4) {
        __m256d s, c;
        quad_sincos(_mm256_cvtps_pd(_mm_mul_ps(where, _mm_loadu_ps(frequency + j))), &s, &c);
        _mm_storeu_ps(cosine + j, _mm256_cvtpd_ps(c));
        _mm_storeu_ps(sine + j, _mm256_cvtpd_ps(s));
    }
    if (j < n) di_cpu_scalar.cos_sin(position, frequency + j, n - j, cosine + j, sine + j);
}

void DI_ISA(rotate)(float *x, const float *cosine, const float *sine, size_t n, bool inverse) {
    /* Even lanes: re * c + im * -s; odd lanes: re * s + im * c. Flipping the sign of a factor flips the product. */
    const ints odd = ints_and(ints_index(), ints_set(1));
    const lane_mask is_odd = ints_equal(odd, ints_set(1));
    const ints even_sign = ints_xor(ints_shift_left(odd, 31), ints_set(INT32_MIN));
    const ints sine_sign = inverse ? ints_set(INT32_MIN) : ints_set(0);
    for (size_t j = 0; j < n; j += DI_LANE_COUNT / 2) {
        size_t left = 2 * (n - j);
        lanes pair = lanes_load_part(x + 2 * j, left);
        lanes c = lanes_load_doubled(cosine + j, n - j), s = lanes_load_doubled(sine + j, n - j);
        s = ints_as_lanes(ints_xor(lanes_bits(s), sine_sign));
        lanes minus_s = ints_as_lanes(ints_xor(lanes_bits(s), even_sign));
        lanes product = lanes_mul(lanes_duplicate_odd(pair), lanes_select(is_odd, c, minus_s));
        lanes turned = lanes_fma(lanes_duplicate_even(pair), lanes_select(is_odd, s, c), product);
        lanes_store_part(x + 2 * j, lanes_round_bf16(turned), left);
    }
}

/* ---------------------------------------------------------------- selection */

size_t DI_ISA(count_from)(const float *x, size_t n, float least) {
    const lanes from = lanes_set(least);
    size_t count = 0, i = 0;
    for (; i + DI_LANE_COUNT <= n; i += DI_LANE_COUNT) count += lanes_count(lanes_less_equal(from, lanes_load(x + i)));
    for (; i < n; i++) count += x[i] >= least;
    return count;
}

/* ---------------------------------------------------------------- elementwise */

void DI_ISA(sigmoid)(const float *x, size_t n, float *out) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT)
        lanes_store_part(out + i, lanes_sigmoid(lanes_load_part(x + i, n - i)), n - i);
}

void DI_ISA(swiglu)(const float *g, const float *u, size_t n, float limit, bool has_weight, float weight,
                    uint16_t *out) {
    const lanes one = lanes_set(1.0f), top = lanes_set(limit), bottom = lanes_set(-limit);
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes gate = lanes_min(top, lanes_load_part(g + i, n - i));
        lanes up = lanes_max(bottom, lanes_min(top, lanes_load_part(u + i, n - i)));
        lanes value = lanes_div(gate, lanes_add(one, lanes_exp(lanes_negate(gate))));
        value = lanes_mul(value, up);
        if (has_weight) value = lanes_mul(value, lanes_set(weight));
        lanes_store_bf16_part(out + i, value, n - i);
    }
}

void DI_ISA(router_score)(float *z, size_t n) {
    const lanes bend = lanes_set(20.0f);
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes x = lanes_load_part(z + i, n - i);
        lanes softplus = lanes_select(lanes_less(bend, x), x, lanes_log1p_exp(x));
        lanes_store_part(z + i, lanes_sqrt(softplus), n - i);
    }
}

void DI_ISA(pool2)(const float *kv0, const float *gate0, const float *kv1, const float *gate1, size_t n, float *out) {
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes s0 = lanes_load_part(gate0 + i, n - i), s1 = lanes_load_part(gate1 + i, n - i);
        lanes top = lanes_max(s0, s1);
        lanes e0 = lanes_exp(lanes_sub(s0, top)), e1 = lanes_exp(lanes_sub(s1, top));
        lanes sum = lanes_add(e0, e1);
        lanes first = lanes_mul(lanes_div(e0, sum), lanes_load_part(kv0 + i, n - i));
        lanes pooled = lanes_fma(lanes_div(e1, sum), lanes_load_part(kv1 + i, n - i), first);
        lanes_store_part(out + i, lanes_round_bf16(pooled), n - i);
    }
}

float DI_ISA(engram)(const float *h, const float *qk, const float *key, const float *value, size_t n, float eps,
                     bool image, uint16_t *out) {
    lanes acc = lanes_zero();
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes query = lanes_mul(lanes_load_part(h + i, n - i), lanes_load_part(qk + i, n - i));
        acc = lanes_fma(query, lanes_load_part(key + i, n - i), acc);
    }
    float r = DI_ISA(inverse_rms)(h, n, eps) * DI_ISA(inverse_rms)(key, n, eps);
    float d = lanes_fold(acc) * r / __builtin_sqrtf((float)n);
    float magnitude = __builtin_fabsf(d);
    magnitude = 1e-6f > magnitude ? 1e-6f : magnitude;
    float gate = image ? 0.0f : di_sigmoidf(__builtin_copysignf(__builtin_sqrtf(magnitude), d));
    for (size_t i = 0; i < n; i += DI_LANE_COUNT) {
        lanes sum = lanes_fma(lanes_set(gate), lanes_load_part(value + i, n - i), lanes_load_part(h + i, n - i));
        lanes_store_bf16_part(out + i, sum, n - i);
    }
    return gate;
}
