/* needs: spec sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Calibration: known temperatures are found again, and the file takes what it wrote and nothing else. */
#include "spec/calibration.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { SAMPLES = 20000, LENGTH = 5 };

static uint64_t noise = 1;

static double uniform(void) {
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (double)(noise >> 11) * 0x1p-53;
}

static void known_temperatures_are_found(void **state) {
    (void)state;
    static const float wanted[LENGTH] = {2, 0.5f, 1, 4, 1.5f};
    static float confidences[SAMPLES][LENGTH];
    static uint32_t accepted[SAMPLES], behind[SAMPLES];
    float got[LENGTH];
    for (uint32_t i = 0; i < SAMPLES; i++) {
        bool alive = true;
        behind[i] = i % 7 ? LENGTH : i % LENGTH;
        for (uint32_t j = 0; j < LENGTH; j++) {
            confidences[i][j] = (float)(8 * uniform() - 1);
            alive = alive && uniform() < 1 / (1 + exp(-(double)confidences[i][j] / (double)wanted[j]));
            accepted[i] += alive && j < behind[i];
        }
    }
    di_calibrate(confidences[0], accepted, behind, SAMPLES, LENGTH, got);
    for (uint32_t j = 0; j < LENGTH; j++) {
        print_message("position %u: %.3f, wanted %.3f\n", j + 1, (double)got[j], (double)wanted[j]);
        assert_true(got[j] > wanted[j] * 0.75f && got[j] < wanted[j] * 1.34f);
    }
}

static void no_samples_leave_confidences_alone(void **state) {
    (void)state;
    static const float confidences[2][2] = {{NAN, 3}, {INFINITY, -INFINITY}};
    static const uint32_t accepted[2] = {0, 2}, nothing[2] = {0, 0};
    float got[2] = {9, 9};
    di_calibrate(confidences[0], accepted, nothing, 2, 2, got);
    assert_true(got[0] == 1 && got[1] == 1);
    di_calibrate(confidences[0], accepted, NULL, 0, 2, got);
    assert_true(got[0] == 1 && got[1] == 1);
    di_calibrate(confidences[0], accepted, NULL, 2, 2, got);
    assert_true(got[0] > 0 && got[1] > 0);
}

static void the_file_reads_back(void **state) {
    (void)state;
    di_calibration c = {.digest = 0x0123456789abcdefull, .count = 3, .temperatures = {1.25f, 0.7071068f, 8}}, back;
    di_text text = {0};
    di_error error;
    di_calibration_write(&c, &text);
    assert_string_equal(text.data,
                        "{\"draft_calibration\": 1, \"weights\": \"0123456789abcdef\", \"temperatures\": [1.25, "
                        "0.7071068, 8]}");
    assert_int_equal(di_calibration_read("file", text.data, text.length, c.digest, &back, &error), DI_OK);
    assert_int_equal(back.count, 3);
    assert_memory_equal(back.temperatures, c.temperatures, 3 * sizeof(float));
    assert_int_equal(di_calibration_read("file", text.data, text.length, 5, &back, &error), DI_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "file: it was made for other weights"));
    for (size_t n = 0; n < text.length; n++)
        assert_int_not_equal(di_calibration_read("file", text.data, n, c.digest, &back, &error), DI_OK);
    di_text_free(&text);
}

static void other_files_are_refused_by_field(void **state) {
    (void)state;
    static const struct {
        const char *text, *field;
    } cases[] = {
        {"[]", "draft_calibration"},
        {"{}", "draft_calibration"},
        {"{\"draft_calibration\": 2}", "draft_calibration"},
        {"{\"draft_calibration\": 1}", "weights"},
        {"{\"draft_calibration\": 1, \"weights\": 5}", "weights"},
        {"{\"draft_calibration\": 1, \"weights\": \"0000000000000005\"}", "temperatures"},
        {"{\"draft_calibration\": 1, \"weights\": \"0000000000000005\", \"temperatures\": 1}", "temperatures"},
        {"{\"draft_calibration\": 1, \"weights\": \"0000000000000005\", \"temperatures\": []}", "temperatures"},
        {"{\"draft_calibration\": 1, \"weights\": \"0000000000000005\", \"temperatures\": [1, 0]}", "temperatures"},
        {"{\"draft_calibration\": 1, \"weights\": \"0000000000000005\", \"temperatures\": [1e9]}", "temperatures"},
        {"{\"draft_calibration\": 1, \"weights\": \"0000000000000005\", \"temperatures\": [\"1\"]}", "temperatures"},
    };
    di_calibration c;
    di_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        di_status status = di_calibration_read("file", cases[i].text, strlen(cases[i].text), 5, &c, &error);
        assert_int_equal(status, DI_ERR_FORMAT);
        assert_string_equal(error.param, cases[i].field);
    }
    di_text many = {0};
    di_text_puts(&many, "{\"draft_calibration\": 1, \"weights\": \"0000000000000005\", \"temperatures\": [1");
    for (int i = 0; i < 64; i++) di_text_puts(&many, ",1");
    di_text_puts(&many, "]}");
    assert_int_equal(di_calibration_read("file", many.data, many.length, 5, &c, &error), DI_ERR_FORMAT);
    di_text_free(&many);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_temperatures_are_found),
        cmocka_unit_test(no_samples_leave_confidences_alone),
        cmocka_unit_test(the_file_reads_back),
        cmocka_unit_test(other_files_are_refused_by_field),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
