/* needs: base */
/* Philox4x32-10: the known answers of the paper's own test vectors. */
#include "base/philox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

static void test_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], expected[4];
    } cases[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];
        di_philox4x32(cases[i].key, cases[i].counter, out);
        assert_memory_equal(out, cases[i].expected, sizeof out);
    }
}

/* The result may be written over the counter. */
static void test_in_place(void **state) {
    (void)state;
    uint32_t key[2] = {1, 2}, counter[4] = {3, 4, 5, 6}, out[4];
    di_philox4x32(key, counter, out);
    di_philox4x32(key, counter, counter);
    assert_memory_equal(out, counter, sizeof out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known_answers), cmocka_unit_test(test_in_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
