/* needs: backend_cpu tensor base */
/* Elementary functions: error against long double, special values, and one hash of their bits that ties compilers,
 * optimisation levels and machines together. */
#include "backend/cpu/math.h"
#include "tensor/codec.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

static double error_f(float got, long double want) {
    int exponent;
    frexpl(want, &exponent);
    if (exponent < -125) exponent = -125;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, exponent - 24));
}

static double error_d(double got, long double want) {
    int exponent;
    frexpl(want, &exponent);
    if (exponent < -1021) exponent = -1021;
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, exponent - 53));
}

static uint64_t random_state;
static uint64_t next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

typedef struct worst {
    double error, at;
} worst;

static void note(worst *w, double error, double at) {
    if (error > w->error) *w = (worst){error, at};
}

static void report(const char *name, worst w, double limit) {
    printf("%-12s largest error %.3f ulp at %a (limit %.2f)\n", name, w.error, w.at, limit);
    assert_true(w.error <= limit);
}

/* Every float with a stride of bit patterns: both signs, all exponents. */
static void test_float_errors(void **state) {
    (void)state;
    worst exponential = {0}, logarithm = {0}, softplus = {0}, sigmoid = {0};
    for (uint64_t bits = 0; bits < 0xff800000u; bits += 10007) {
        float x = di_f32_from_bits((uint32_t)bits);
        if (isnan(x)) continue;
        if (x > -103.0f && x < 88.7f) note(&exponential, error_f(di_expf(x), expl(x)), x);
        if (x > -87.0f && x < 100.0f) note(&sigmoid, error_f(di_sigmoidf(x), 1 / (1 + expl(-(long double)x))), x);
        if (x > 0 && !isinf(x)) note(&logarithm, error_f(di_logf(x), logl(x)), x);
        if (x > -103.0f && x <= 20.0f) note(&softplus, error_f(di_log1p_expf(x), log1pl(expl(x))), x);
    }
    report("exp", exponential, 1.0);
    report("log", logarithm, 1.0);
    report("log1p(exp)", softplus, 2.0);
    report("sigmoid", sigmoid, 2.5);
}

static void test_double_errors(void **state) {
    (void)state;
    random_state = 88172645463325252u;
    worst logarithm = {0}, logarithm1p = {0}, sine = {0}, cosine = {0};
    for (int i = 0; i < 1000000; i++) {
        double u = (double)(next() >> 32) * 0x1p-32 + 0x1p-33; /* the sampler's noise */
        if (i % 3 == 0) u = 1.0 - 0x1p-24 * (double)(1 + (next() >> 52));
        if (i % 7 == 0) u = ldexp(u, -(int)(next() % 60));
        note(&logarithm1p, error_d(di_log1p_double(-u), log1pl(-(long double)u)), -u);
        double x = -di_log1p_double(-u);
        note(&logarithm, error_d(di_log_double(x), logl(x)), x);
        x = ldexp(1.0 + (double)(next() >> 12) * 0x1p-52, (int)(next() % 2100) - 1074);
        if (!isinf(x)) note(&logarithm, error_d(di_log_double(x), logl(x)), x);
        if (i % 4) continue;
        float angle = ldexpf((float)(next() >> 40) * 0x1p-24f, (int)(next() % 31)); /* below 2^30 */
        double s, c;
        di_sincos(angle, &s, &c);
        note(&sine, error_d(s, sinl(angle)), angle);
        note(&cosine, error_d(c, cosl(angle)), angle);
        di_sincos(-angle, &s, &c);
        note(&sine, error_d(s, -sinl(angle)), -angle);
    }
    report("log1p", logarithm1p, 0.999);
    report("log", logarithm, 0.999);
    report("sin", sine, 1.0);
    report("cos", cosine, 1.0);
}

static void test_special_values(void **state) {
    (void)state;
    assert_true(di_expf(0.0f) == 1.0f && di_expf(-0.0f) == 1.0f);
    assert_true(di_expf(-104.0f) == 0.0f && di_expf(-INFINITY) == 0.0f && di_expf(-3e38f) == 0.0f);
    assert_true(di_expf(-103.9f) == 0x1p-149f); /* smallest subnormal, not flushed */
    assert_true(isinf(di_expf(88.73f)) && isinf(di_expf(INFINITY)) && !isinf(di_expf(88.72f)));
    assert_true(isnan(di_expf(NAN)) && isnan(di_sigmoidf(NAN)) && isnan(di_log1p_expf(NAN)) && isnan(di_logf(NAN)));
    assert_true(di_sigmoidf(0.0f) == 0.5f && di_sigmoidf(INFINITY) == 1.0f && di_sigmoidf(-INFINITY) == 0.0f);
    assert_true(di_logf(1.0f) == 0.0f && isinf(di_logf(0.0f)) && isnan(di_logf(-1.0f)) && isinf(di_logf(INFINITY)));
    assert_true(di_log_double(1.0) == 0.0 && isinf(di_log_double(0.0)) && isnan(di_log_double(-1.0)) &&
                isinf(di_log_double(INFINITY)));
    assert_true(di_log1p_double(0.0) == 0.0 && isinf(di_log1p_double(-1.0)) && isnan(di_log1p_double(-2.0)) &&
                isnan(di_log1p_double(NAN)));
    assert_true(di_log1p_double(-0x1p-80) == -0x1p-80);
    assert_true(di_log1p_expf(-103.9f) == 0x1p-149f && di_log1p_expf(-INFINITY) == 0.0f);
    double s, c;
    di_sincos(0.0, &s, &c);
    assert_true(s == 0.0 && c == 1.0);
}

/* fma must be one rounding also where the compiler calls the library for it. */
static void test_fma_is_fused(void **state) {
    (void)state;
    volatile float a = 1.0f + 0x1p-12f, tiny = 0x1p-100f;
    assert_true(__builtin_fmaf(a, a, -(1.0f + 0x1p-11f)) == 0x1p-24f);
    assert_true(__builtin_fmaf(tiny, 0x1p-49f, 0.0f) == 0x1p-149f);
    volatile double b = 1.0 + 0x1p-30;
    assert_true(__builtin_fma(b, b, -(1.0 + 0x1p-29)) == 0x1p-60);
}

static void test_golden_bits(void **state) {
    (void)state;
    XXH64_state_t *hash = XXH64_createState();
    assert_non_null(hash);
    XXH64_reset(hash, 0);
    for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 99991) {
        float x = di_f32_from_bits((uint32_t)bits);
        if (isnan(x)) continue;
        float values[4] = {di_expf(x), di_sigmoidf(x), x > 0 ? di_logf(x) : 0.0f, x <= 20 ? di_log1p_expf(x) : 0.0f};
        double angle = fabsf(x) < 0x1p+30f ? x : 0.0, pair[4] = {0};
        di_sincos(angle, &pair[0], &pair[1]);
        pair[2] = x > 0 ? di_log_double(x) : 0.0;
        pair[3] = x > -1 ? di_log1p_double(x) : 0.0;
        XXH64_update(hash, values, sizeof values);
        XXH64_update(hash, pair, sizeof pair);
    }
    uint64_t digest = XXH64_digest(hash);
    XXH64_freeState(hash);
    printf("elementary functions: %016llx\n", (unsigned long long)digest);
    assert_int_equal(digest, 0xa18e8a80948f6bc3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_float_errors),   cmocka_unit_test(test_double_errors),
        cmocka_unit_test(test_special_values), cmocka_unit_test(test_fma_is_fused),
        cmocka_unit_test(test_golden_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
