/* needs: base tensor */
/* Number formats against the golden vectors, and properties over whole code ranges. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"
#include "tensor/codec.h"
#include "tensor/tensor.h"

static di_golden *golden;

static int setup(void **state) {
    (void)state;
    golden = di_golden_open(DI_TEST_DATA "/nano/golden");
    return golden ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    di_golden_close(golden);
    return 0;
}

static const uint8_t *bytes_of(const char *name, size_t *count) {
    di_golden_array array = di_golden_get(golden, name);
    assert_string_equal(array.dtype, "uint8");
    if (count) *count = array.count;
    return array.data;
}

static void assert_same_value(float a, float b) {
    if (isnan(a) || isnan(b)) {
        assert_true(isnan(a) && isnan(b));
    } else {
        assert_int_equal(di_bits_from_f32(a), di_bits_from_f32(b));
    }
}

static void decodes(void **state) {
    (void)state;
    const float *e4m3 = di_golden_f32(golden, "codec.e4m3.decode", NULL);
    const float *e8m0 = di_golden_f32(golden, "codec.e8m0.decode", NULL);
    const float *e2m1 = di_golden_f32(golden, "codec.e2m1.decode", NULL);
    for (int i = 0; i < 256; i++) {
        assert_same_value(di_e4m3_decode((uint8_t)i), e4m3[i]);
        assert_same_value(di_e8m0_decode((uint8_t)i), e8m0[i]);
        assert_same_value(di_e2m1_decode((uint8_t)i), e2m1[i & 15]);
    }
}

static void encodes(void **state) {
    (void)state;
    size_t n;
    const float *in = di_golden_f32(golden, "codec.e4m3.in", &n);
    const uint8_t *out = bytes_of("codec.e4m3.out", NULL);
    for (size_t i = 0; i < n; i++) assert_int_equal(di_e4m3_encode(in[i]), out[i]);
    in = di_golden_f32(golden, "codec.e2m1.in", &n);
    out = bytes_of("codec.e2m1.out", NULL);
    for (size_t i = 0; i < n; i++) assert_int_equal(di_e2m1_encode(in[i]), out[i]);
    in = di_golden_f32(golden, "codec.p2ceil.in", &n);
    out = bytes_of("codec.p2ceil.out", NULL);
    for (size_t i = 0; i < n; i++) assert_int_equal(di_p2ceil_byte(in[i]), out[i]);
    in = di_golden_f32(golden, "codec.bf16.in", &n);
    di_golden_array bf16 = di_golden_get(golden, "codec.bf16.out");
    assert_string_equal(bf16.dtype, "uint16");
    for (size_t i = 0; i < n; i++) assert_int_equal(di_bf16_encode(in[i]), ((const uint16_t *)bf16.data)[i]);
}

/* Every code that is a number comes back from its value; NaN stays NaN. */
static void round_trips(void **state) {
    (void)state;
    for (int i = 0; i < 256; i++)
        assert_int_equal(di_e4m3_encode(di_e4m3_decode((uint8_t)i)) & ((i & 0x7f) == 0x7f ? 0x7f : 0xff),
                         (i & 0x7f) == 0x7f ? 0x7f : i);
    for (int i = 0; i < 16; i++) assert_int_equal(di_e2m1_encode(di_e2m1_decode((uint8_t)i)), i);
    for (int i = 1; i < 255; i++) assert_int_equal(di_p2ceil_byte(di_e8m0_decode((uint8_t)i)), i);
    for (uint32_t i = 0; i < 65536; i++)
        if ((i & 0x7fff) <= 0x7f80) assert_int_equal(di_bf16_encode(di_bf16_decode((uint16_t)i)), i);
    assert_int_equal(di_e4m3_encode(1e30f), 0x7e);
    assert_int_equal(di_e4m3_encode(-INFINITY), 0xfe);
    assert_int_equal(di_e2m1_encode(-1e30f), 15);
}

/* Nearest value, by search over the table: no encoder may be off anywhere on a fine grid. */
static void encodes_to_the_nearest(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x44000000u; bits += 4099) {
        float x = di_f32_from_bits(bits);
        float error = fabsf(di_e4m3_decode(di_e4m3_encode(x)) - x);
        float best = 1e9f;
        for (int i = 0; i < 127; i++) best = fminf(best, fabsf(di_e4m3_table[i] - x));
        assert_true(error == best);
    }
}

typedef void quantise(const float *x, size_t n, uint8_t *codes, uint8_t *scales);
typedef void dequantise(const uint8_t *codes, const uint8_t *scales, size_t n, float *x);

static void check_quantiser(const char *name, quantise *forth, dequantise *back, size_t block) {
    char key[64];
    size_t n, code_count, scale_count, value_count;
    const float *in = di_golden_f32(golden, "fq.in", &n);
    snprintf(key, sizeof key, "fq.%s.codes", name);
    const uint8_t *codes = bytes_of(key, &code_count);
    snprintf(key, sizeof key, "fq.%s.scales", name);
    const uint8_t *scales = bytes_of(key, &scale_count);
    snprintf(key, sizeof key, "fq.%s.values", name);
    const float *values = di_golden_f32(golden, key, &value_count);
    assert_int_equal(code_count, n);
    assert_int_equal(value_count, n);
    assert_int_equal(scale_count, n / block);
    uint8_t *my_codes = malloc(n), *my_scales = malloc(n / block);
    float *my_values = malloc(n * sizeof *my_values);
    forth(in, n, my_codes, my_scales);
    back(my_codes, my_scales, n, my_values);
    assert_memory_equal(my_codes, codes, n);
    assert_memory_equal(my_scales, scales, n / block);
    assert_memory_equal(my_values, values, n * sizeof *my_values);
    for (size_t i = 0; i < n; i++)
        assert_same_value(di_bf16_round(my_values[i]), my_values[i]); /* code * scale is a bf16 value */
    free(my_codes);
    free(my_scales);
    free(my_values);
}

static void quantises(void **state) {
    (void)state;
    check_quantiser("q8_32", di_quantise_q8_32, di_dequantise_q8_32, 32);
    check_quantiser("q4_32", di_quantise_q4_32, di_dequantise_q4_32, 32);
    check_quantiser("q4_16", di_quantise_q4_16, di_dequantise_q4_16, 16);
}

/* The three packed weight layouts of a checkpoint. */
static void decodes_packed_weights(void **state) {
    (void)state;
    const uint8_t *codes = bytes_of("packed.fp8_tiles.codes", NULL),
                  *scales = bytes_of("packed.fp8_tiles.scales", NULL);
    const float *values = di_golden_f32(golden, "packed.fp8_tiles.values", NULL);
    for (size_t n = 0; n < 64; n++)
        for (size_t k = 0; k < 96; k++)
            assert_same_value(di_e4m3_decode(codes[n * 96 + k]) * di_e8m0_decode(scales[n / 32 * 3 + k / 32]),
                              values[n * 96 + k]);
    codes = bytes_of("packed.fp8_rows.codes", NULL);
    scales = bytes_of("packed.fp8_rows.scales", NULL);
    values = di_golden_f32(golden, "packed.fp8_rows.values", NULL);
    float row[256];
    for (size_t n = 0; n < 5; n++) {
        di_dequantise_q8_32(codes + n * 256, scales + n * 8, 256, row);
        assert_memory_equal(row, values + n * 256, sizeof row);
    }
    codes = bytes_of("packed.fp4_rows.codes", NULL);
    scales = bytes_of("packed.fp4_rows.scales", NULL);
    values = di_golden_f32(golden, "packed.fp4_rows.values", NULL);
    uint8_t unpacked[96], packed[48];
    for (size_t n = 0; n < 5; n++) {
        di_unpack_nibbles(codes + n * 48, 96, unpacked);
        di_pack_nibbles(unpacked, 96, packed);
        assert_memory_equal(packed, codes + n * 48, sizeof packed);
        di_dequantise_q4_32(unpacked, scales + n * 3, 96, row);
        assert_memory_equal(row, values + n * 96, 96 * sizeof row[0]);
    }
}

static void names_types(void **state) {
    (void)state;
    for (int i = 0; i < DI_DTYPE_COUNT; i++) {
        const char *name = di_dtype_name((di_dtype)i);
        assert_int_equal(di_dtype_from_name(name, strlen(name)), i);
        assert_true(di_dtype_size((di_dtype)i) > 0);
    }
    assert_int_equal(di_dtype_from_name("BF1", 3), DI_DTYPE_COUNT);
    assert_int_equal(di_dtype_from_name("bf16", 4), DI_DTYPE_COUNT);
    assert_int_equal(di_dtype_size(DI_DTYPE_COUNT), 0);
}

static void expect_nonfinite(di_dtype dtype, const void *element, size_t bytes, uint64_t at) {
    uint8_t *data = calloc(bytes + 1, 1);
    uint8_t *unaligned = data + 1;
    if (at < bytes) memcpy(unaligned + at, element, di_dtype_size(dtype));
    di_tensor tensor = {.name = "x", .dtype = dtype, .rank = 1, .data = unaligned, .bytes = bytes};
    assert_int_equal(di_tensor_first_nonfinite(&tensor), at);
    free(data);
}

static void finds_nonfinite_values(void **state) {
    (void)state;
    static const uint64_t places[] = {0, 4, 4092, 4096, 8188, 9000};
    const uint8_t nan_e8m0 = 255, nan_e4m3 = 0xff;
    const uint16_t inf_bf16 = 0xff80, nan_f16 = 0x7c01;
    const float nan_f32 = NAN;
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        expect_nonfinite(DI_DTYPE_F8_E8M0, &nan_e8m0, 9004, places[i]);
        expect_nonfinite(DI_DTYPE_F8_E4M3, &nan_e4m3, 9004, places[i]);
        expect_nonfinite(DI_DTYPE_BF16, &inf_bf16, 9004, places[i]);
        expect_nonfinite(DI_DTYPE_F16, &nan_f16, 9004, places[i]);
        expect_nonfinite(DI_DTYPE_F32, &nan_f32, 9004, places[i]);
    }
    expect_nonfinite(DI_DTYPE_F8_E4M3, NULL, 5000, 5000);
    const uint8_t largest = 0x7e, plain = 255;
    uint8_t data[8] = {0};
    memset(data, largest, sizeof data);
    di_tensor tensor = {.dtype = DI_DTYPE_F8_E4M3, .data = data, .bytes = sizeof data};
    assert_int_equal(di_tensor_first_nonfinite(&tensor), sizeof data);
    memset(data, plain, sizeof data);
    tensor.dtype = DI_DTYPE_I8;
    assert_int_equal(di_tensor_first_nonfinite(&tensor), sizeof data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes),     cmocka_unit_test(encodes),
        cmocka_unit_test(round_trips), cmocka_unit_test(encodes_to_the_nearest),
        cmocka_unit_test(quantises),   cmocka_unit_test(decodes_packed_weights),
        cmocka_unit_test(names_types), cmocka_unit_test(finds_nonfinite_values),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
