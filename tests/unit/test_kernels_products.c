/* needs: backend_cpu tensor base */
/* Matrix products: every vector table against the scalar one, byte for byte, on ordinary and adversarial data. */
#include "backend/cpu/kernels.h"
#include "tensor/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

static const di_cpu_kernels *const tables[] = {
#if defined(__x86_64__)
    &di_cpu_avx2, &di_cpu_avx512,
#endif
    &di_cpu_scalar};
enum { TABLES = sizeof tables / sizeof *tables };

static uint64_t random_state;
static uint32_t next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

typedef enum data_kind { RANDOM, TIES, ZEROS, SUBNORMAL, LARGEST, EXTREME_SCALES, KINDS } data_kind;
static const char *const kind_names[] = {"random", "ties", "zeros", "subnormal", "largest", "extreme scales"};

static float input_value(data_kind kind) {
    uint32_t r = next();
    float value = (float)(int32_t)r * 0x1p-30f;
    switch (kind) {
    case TIES:
        return (float)((int32_t)(r % 5) - 2) * 0.5f;
    case ZEROS:
        return r & 1 ? -0.0f : 0.0f;
    case SUBNORMAL:
        return di_f32_from_bits(r & 0x807fffffu);
    case LARGEST:
        return r & 1 ? -0x1.fep+127f : 0x1.fep+127f;
    case EXTREME_SCALES:
        return r % 8 == 0 ? value * 0x1p-120f : value;
    default:
        return value;
    }
}

/* Codes that are NaN in E4M3 do not occur: such a checkpoint is refused. */
static uint8_t weight_code(data_kind kind) {
    uint8_t code = (uint8_t)next();
    if (kind == TIES) code = code & 1 ? 0x38 : 0xb8;
    if (kind == ZEROS) code = code & 1 ? 0x80 : 0x00;
    if (kind == SUBNORMAL) code &= 0x87;
    if (kind == LARGEST) code = code & 1 ? 0x7e : 0xfe;
    return (code & 0x7f) == 0x7f ? 0x7e : code;
}

static uint8_t scale_byte(data_kind kind) {
    static const uint8_t extremes[] = {0, 1, 2, 126, 127, 128, 253, 254};
    return kind == EXTREME_SCALES ? extremes[next() % 8] : (uint8_t)(115 + next() % 24);
}

/* Buffers of exactly the size that is needed, so that the address sanitizer sees one element too many. */
static void *exact(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    assert_non_null(memory);
    return memory;
}

static float *inputs(size_t count, data_kind kind) {
    float *x = exact(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = input_value(kind);
    return x;
}

static uint8_t *bytes_of(size_t count, data_kind kind, uint8_t (*make)(data_kind)) {
    uint8_t *bytes = exact(count);
    for (size_t i = 0; i < count; i++) bytes[i] = make(kind);
    return bytes;
}

typedef struct product_case {
    data_kind kind;
    size_t rows, in, out, n0, n1, stride;
} product_case;

/* Runs one product with every table into poisoned memory; compares all of it, so that stray writes show too. */
typedef void (*product_runner)(const di_cpu_kernels *k, const product_case *c, const void *data, float *y);

static void compare(const char *entry, const product_case *c, const void *data, product_runner run,
                    XXH64_state_t *hash) {
    size_t bytes = c->rows * c->stride * sizeof(float);
    float *want = exact(bytes), *got = exact(bytes);
    memset(want, 0xa5, bytes);
    run(&di_cpu_scalar, c, data, want);
    if (hash && c->kind != EXTREME_SCALES && c->kind != LARGEST) XXH64_update(hash, want, bytes);
    for (size_t t = 0; t < TABLES; t++) {
        if (tables[t] == &di_cpu_scalar || !di_cpu_supports(tables[t])) continue;
        memset(got, 0xa5, bytes);
        run(tables[t], c, data, got);
        for (size_t i = 0; i < c->rows * c->stride; i++) {
            if (memcmp(&want[i], &got[i], sizeof(float)) == 0) continue;
            fail_msg("%s %s, %s data, rows %zu in %zu out %zu [%zu, %zu): element %zu of row %zu is %a, not %a", entry,
                     tables[t]->name, kind_names[c->kind], c->rows, c->in, c->out, c->n0, c->n1, i % c->stride,
                     i / c->stride, (double)got[i], (double)want[i]);
        }
    }
    free(want);
    free(got);
}

typedef struct f8_data {
    di_cpu_f8 w;
    const float *x;
} f8_data;

static void run_f8(const di_cpu_kernels *k, const product_case *c, const void *data, float *y) {
    const f8_data *d = data;
    float *scratch = exact(c->rows * c->in * sizeof *scratch);
    k->product_f8(&d->w, d->x, c->in + 5, c->rows, c->n0, c->n1, y, c->stride, scratch);
    free(scratch);
}

static void check_f8(const product_case *c, XXH64_state_t *hash) {
    uint8_t *codes = bytes_of(c->out * c->in, c->kind, weight_code);
    uint8_t *scales = bytes_of((c->out + 31) / 32 * (c->in / 32), c->kind, scale_byte);
    float *x = inputs(c->rows * (c->in + 5), c->kind);
    f8_data data = {{codes, scales, c->out, c->in}, x};
    compare("product_f8", c, &data, run_f8, hash);
    free(codes);
    free(scales);
    free(x);
}

typedef struct f4_data {
    di_cpu_f4 w;
    const di_f4_block *x;
    const float *values;
} f4_data;

static void run_f4(const di_cpu_kernels *k, const product_case *c, const void *data, float *y) {
    const f4_data *d = data;
    k->product_f4(&d->w, d->x, d->values, c->rows, c->n0, c->n1, y, c->stride);
}

static void check_f4(const product_case *c, XXH64_state_t *hash) {
    uint8_t *packed = bytes_of(c->out * c->in / 2, c->kind, weight_code);
    uint8_t *scales = bytes_of(c->out * (c->in / 32), c->kind, scale_byte);
    uint8_t *tiles = aligned_alloc(64, (di_cpu_f4_tile_bytes(c->out, c->in) + 63) / 64 * 64);
    uint8_t *tile_scales = aligned_alloc(64, (di_cpu_f4_scale_bytes(c->out, c->in) + 63) / 64 * 64);
    assert_true(tiles && tile_scales);
    di_cpu_f4_repack(packed, scales, c->out, c->in, tiles, tile_scales);
    size_t count = c->rows * c->in;
    uint16_t *x = exact(count * sizeof *x);
    for (size_t i = 0; i < count; i++) x[i] = di_bf16_encode(input_value(c->kind));
    float *values = exact(count * sizeof *values);
    di_f4_block *blocks = exact(count / 32 * sizeof *blocks);
    di_cpu_scalar.quantise_input(x, count, values, blocks);
    f4_data data = {{tiles, tile_scales, c->out, c->in}, blocks, values};
    compare("product_f4", c, &data, run_f4, hash);
    free(packed);
    free(scales);
    free(tiles);
    free(tile_scales);
    free(x);
    free(values);
    free(blocks);
}

typedef struct plain_data {
    const void *w;
    const float *x;
} plain_data;

static void run_bf16(const di_cpu_kernels *k, const product_case *c, const void *data, float *y) {
    const plain_data *d = data;
    k->product_bf16(d->w, c->in, d->x, c->in + 3, c->rows, c->n0, c->n1, y, c->stride);
}

static void run_f32(const di_cpu_kernels *k, const product_case *c, const void *data, float *y) {
    const plain_data *d = data;
    k->product_f32(d->w, c->in, d->x, c->in + 3, c->rows, c->n0, c->n1, y, c->stride);
}

static void check_plain(const product_case *c, XXH64_state_t *hash) {
    size_t count = c->out * c->in;
    float *w = inputs(count, c->kind), *x = inputs(c->rows * (c->in + 3), c->kind);
    uint8_t *codes = exact(count * 2 + 1); /* read at an odd address, as in a file */
    for (size_t i = 0; i < count; i++) {
        uint16_t code = di_bf16_encode(w[i]);
        memcpy(codes + 1 + 2 * i, &code, 2);
    }
    plain_data bf16 = {codes + 1, x}, f32 = {w, x};
    compare("product_bf16", c, &bf16, run_bf16, hash);
    compare("product_f32", c, &f32, run_f32, hash);
    free(codes);
    free(w);
    free(x);
}

static const size_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 64};
enum { ROW_COUNTS = sizeof row_counts / sizeof *row_counts };

static void each_case(const size_t *ins, size_t in_count, const size_t (*outs)[3], size_t out_count,
                      void (*check)(const product_case *, XXH64_state_t *), uint64_t golden) {
    XXH64_state_t *hash = XXH64_createState();
    assert_non_null(hash);
    XXH64_reset(hash, 0);
    random_state = 0x9e3779b97f4a7c15u;
    for (int kind = 0; kind < KINDS; kind++) {
        for (size_t r = 0; r < ROW_COUNTS; r++) {
            for (size_t i = 0; i < in_count; i++) {
                const size_t *out = outs[(r + i + (size_t)kind) % out_count];
                product_case c = {(data_kind)kind, row_counts[r], ins[i], out[0], out[1], out[2], out[0] + 3};
                check(&c, hash);
            }
        }
    }
    uint64_t digest = XXH64_digest(hash);
    XXH64_freeState(hash);
    printf("scalar results: %016llx\n", (unsigned long long)digest);
    assert_int_equal(digest, golden);
}

/* {out, n0, n1}: whole matrices, ends that fill no tile, inner ranges */
static const size_t blocked_outs[][3] = {{64, 0, 64},  {1, 0, 1},    {31, 0, 31}, {33, 0, 33},
                                         {70, 32, 70}, {96, 32, 64}, {50, 0, 50}, {39, 32, 39}};
static const size_t plain_outs[][3] = {{1, 0, 1},    {7, 0, 7}, {16, 3, 11}, {17, 0, 17},
                                       {40, 13, 40}, {8, 5, 6}, {35, 0, 35}};

static void test_f8(void **state) {
    (void)state;
    const size_t ins[] = {32, 96, 160, 544};
    each_case(ins, 4, blocked_outs, sizeof blocked_outs / sizeof *blocked_outs, check_f8, 0x70e7e592b4565a86);
}

static void test_f4(void **state) {
    (void)state;
    const size_t ins[] = {32, 96, 160, 544};
    each_case(ins, 4, blocked_outs, sizeof blocked_outs / sizeof *blocked_outs, check_f4, 0x7560c5cbe7f1e56c);
}

static void test_plain(void **state) {
    (void)state;
    const size_t ins[] = {1, 5, 15, 16, 17, 33, 100, 129, 320};
    each_case(ins, 9, plain_outs, sizeof plain_outs / sizeof *plain_outs, check_plain, 0xb29e07e8155173e3);
}

/* The largest block sum: 32 products of 6 and 448 stay exact in every accumulator. */
static void test_f4_largest_sum(void **state) {
    (void)state;
    uint8_t packed[32 * 16], scales[32], tiles_memory[1024 + 64], tile_scales[64];
    uint8_t *tiles = (uint8_t *)(((uintptr_t)tiles_memory + 63) / 64 * 64);
    memset(packed, 0x77, sizeof packed);
    memset(scales, 127, sizeof scales);
    di_cpu_f4_repack(packed, scales, 32, 32, tiles, tile_scales);
    uint16_t x[32];
    for (int i = 0; i < 32; i++) x[i] = di_bf16_encode(448.0f);
    float values[32], y[32];
    di_f4_block block;
    di_cpu_scalar.quantise_input(x, 32, values, &block);
    di_cpu_f4 w = {tiles, tile_scales, 32, 32};
    for (size_t t = 0; t < TABLES; t++) {
        if (!di_cpu_supports(tables[t])) continue;
        tables[t]->product_f4(&w, &block, values, 1, 0, 32, y, 32);
        for (int n = 0; n < 32; n++) assert_true(y[n] == 32 * 6 * 448.0f);
    }
}

/* The block-exact sum is the exact sum, rounded once: any order of the inputs of a block gives the same bits. */
static void test_f4_order_free(void **state) {
    (void)state;
    random_state = 7;
    uint8_t packed[16], other[16], scales[1] = {127}, tiles[2][256], tile_scales[2][16], codes[32], shuffled[32];
    uint16_t x[32], x_shuffled[32];
    for (int i = 0; i < 32; i++) {
        codes[i] = (uint8_t)(next() & 15);
        x[i] = di_bf16_encode(input_value(RANDOM) * (i % 3 == 0 ? 0x1p-9f : 1.0f));
    }
    for (int i = 0; i < 32; i++) {
        shuffled[i] = codes[(i * 11 + 5) % 32];
        x_shuffled[i] = x[(i * 11 + 5) % 32];
    }
    di_pack_nibbles(codes, 32, packed);
    di_pack_nibbles(shuffled, 32, other);
    di_cpu_f4_repack(packed, scales, 1, 32, tiles[0], tile_scales[0]);
    di_cpu_f4_repack(other, scales, 1, 32, tiles[1], tile_scales[1]);
    float values[32], y[2];
    di_f4_block block;
    di_cpu_scalar.quantise_input(x, 32, values, &block);
    long double exact_sum = 0;
    for (int i = 0; i < 32; i++) exact_sum += (long double)values[i] * di_e2m1_decode(codes[i]);
    di_cpu_f4 w = {tiles[0], tile_scales[0], 1, 32};
    di_cpu_scalar.product_f4(&w, &block, values, 1, 0, 1, &y[0], 1);
    di_cpu_scalar.quantise_input(x_shuffled, 32, values, &block);
    w = (di_cpu_f4){tiles[1], tile_scales[1], 1, 32};
    di_cpu_scalar.product_f4(&w, &block, values, 1, 0, 1, &y[1], 1);
    assert_memory_equal(&y[0], &y[1], sizeof(float));
    assert_true(y[0] == (float)exact_sum);
}

/* Inputs of every magnitude in one block, so that many have a rest below the limbs: each table gives the exact sum. */
static void test_f4_rests(void **state) {
    (void)state;
    enum { OUT = 16, ROWS = 9 };
    random_state = 11;
    uint8_t packed[OUT * 16], scales[OUT], tiles_memory[256 + 64], tile_scales[OUT];
    uint8_t *tiles = (uint8_t *)(((uintptr_t)tiles_memory + 63) / 64 * 64);
    for (size_t i = 0; i < sizeof packed; i++) packed[i] = (uint8_t)next();
    memset(scales, 127, sizeof scales);
    di_cpu_f4_repack(packed, scales, OUT, 32, tiles, tile_scales);
    uint16_t x[ROWS * 32];
    for (int i = 0; i < ROWS * 32; i++)
        x[i] =
            di_bf16_encode(i % 32 == 5 ? -447.0f : input_value(RANDOM) * di_f32_from_bits((127 - next() % 14) << 23));
    float values[ROWS * 32], y[ROWS * OUT];
    di_f4_block blocks[ROWS];
    di_cpu_scalar.quantise_input(x, ROWS * 32, values, blocks);
    int rests = 0;
    for (int m = 0; m < ROWS; m++) rests += __builtin_popcount(blocks[m].rest_mask);
    assert_true(rests > ROWS);
    di_cpu_f4 w = {tiles, tile_scales, OUT, 32};
    for (size_t t = 0; t < TABLES; t++) {
        if (!di_cpu_supports(tables[t])) continue;
        for (size_t rows = 1; rows <= ROWS; rows++) {
            tables[t]->product_f4(&w, blocks, values, rows, 0, OUT, y, OUT);
            for (size_t i = 0; i < rows * OUT; i++) {
                double sum = 0; /* exact: 27 bits */
                for (size_t k = 0; k < 32; k++) {
                    uint8_t pair = packed[i % OUT * 16 + k / 2];
                    sum += (double)values[i / OUT * 32 + k] * (double)di_e2m1_decode(k % 2 ? pair >> 4 : pair & 15);
                }
                assert_true(y[i] == (float)sum);
            }
        }
    }
}

static void test_self_test(void **state) {
    (void)state;
    for (size_t t = 0; t < TABLES; t++) {
        const char *what = NULL;
        if (!di_cpu_supports(tables[t])) continue;
        if (!di_cpu_self_test(tables[t], &what)) fail_msg("self-test of %s: %s differs", tables[t]->name, what);
    }
}

static float broken_dot(const float *a, const float *b, size_t n) {
    float value = di_cpu_scalar.dot(a, b, n);
    return n > 140 ? di_f32_from_bits(di_bits_from_f32(value) ^ 1) : value;
}

/* One wrong bit at a few lengths is found and named. */
static void test_self_test_finds(void **state) {
    (void)state;
    di_cpu_kernels broken = di_cpu_scalar;
    broken.dot = broken_dot;
    const char *what = NULL;
    assert_false(di_cpu_self_test(&broken, &what));
    assert_string_equal(what, "dot");
}

int main(void) {
    for (size_t t = 0; t < TABLES; t++)
        printf("%s: %s\n", tables[t]->name,
               di_cpu_supports(tables[t]) ? "tested" : "skipped, not supported by this machine");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f8),
        cmocka_unit_test(test_f4),
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_f4_largest_sum),
        cmocka_unit_test(test_f4_order_free),
        cmocka_unit_test(test_f4_rests),
        cmocka_unit_test(test_self_test),
        cmocka_unit_test(test_self_test_finds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
