/* needs: base */
/* The golden array reader: every array of both folders loads, shapes and values are what the files hold. */
#include "support/golden.h"

#include "base/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_all_arrays_load(void **state) {
    (void)state;
    const char *folders[] = {DI_TEST_DATA "/nano/golden", DI_TEST_DATA "/tiny_golden"};
    for (size_t f = 0; f < 2; f++) {
        di_golden *golden = di_golden_open(folders[f]);
        di_arena *arena = di_arena_new(0);
        char path[512];
        snprintf(path, sizeof path, "%s/manifest.json", folders[f]);
        const di_json *root;
        assert_int_equal(di_json_parse_file(arena, path, 1 << 30, 0, &root, NULL), DI_OK);
        const di_json *arrays = di_json_get(root, "arrays");
        assert_true(arrays->count > 10);
        for (const di_json *item = arrays->first; item; item = item->next) {
            di_golden_array array = di_golden_get(golden, item->key);
            assert_non_null(array.data);
            assert_int_equal((uintptr_t)array.data % 64, 0);
            assert_ptr_equal(di_golden_get(golden, item->key).data, array.data);
        }
        di_arena_free(arena);
        di_golden_close(golden);
    }
}

static void test_known_values(void **state) {
    (void)state;
    di_golden *golden = di_golden_open(DI_TEST_DATA "/nano/golden");
    di_golden_array array = di_golden_get(golden, "codec.e2m1.decode");
    assert_string_equal(array.dtype, "float32");
    assert_int_equal(array.rank, 1);
    assert_int_equal(array.shape[0], 16);
    size_t count;
    const float *values = di_golden_f32(golden, "codec.e2m1.decode", &count);
    static const float expected[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                       -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    assert_int_equal(count, 16);
    assert_memory_equal(values, expected, sizeof expected);
    assert_true(di_golden_has(golden, "codec.e8m0.decode"));
    assert_false(di_golden_has(golden, "codec.no_such_array"));
    di_golden_close(golden);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_arrays_load), cmocka_unit_test(test_known_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
