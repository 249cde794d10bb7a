/* calibration.c - see calibration.h. */
#include "spec/calibration.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Temperatures 2^(k / 8), from 1/8 to 8. */
enum { STEPS = 49, BINS = 20 };

typedef struct samples {
    const float *confidences;
    const uint32_t *accepted, *behind;
    uint32_t count, length;
} samples;

static double sigmoid(float z, float temperature) {
    double x = (double)z / (double)temperature;
    return x == x ? 1 / (1 + exp(-x)) : 0;
}

/* What was expected of drafts 1 .. j + 1 of a sample. */
static double expected(const samples *s, uint32_t i, uint32_t j, const float *temperatures) {
    double survival = 1;
    for (uint32_t k = 0; k <= j; k++) survival *= sigmoid(s->confidences[(size_t)i * s->length + k], temperatures[k]);
    return survival;
}

/* Expected calibration error at position j; negative when no sample has it. */
static double error_at(const samples *s, uint32_t j, const float *temperatures) {
    double sum[BINS] = {0}, survived[BINS] = {0}, error = 0;
    uint32_t count = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->behind && s->behind[i] <= j) continue;
        double p = expected(s, i, j, temperatures);
        int bin = p >= 1 ? BINS - 1 : (int)(p * BINS);
        sum[bin] += p;
        survived[bin] += s->accepted[i] > j;
        count++;
    }
    for (int b = 0; b < BINS; b++) error += fabs(sum[b] - survived[b]);
    return count ? error / count : -1;
}

void di_calibrate(const float *confidences, const uint32_t *accepted, const uint32_t *behind, uint32_t count,
                  uint32_t length, float *temperatures) {
    samples s = {confidences, accepted, behind, count, length};
    for (uint32_t j = 0; j < length; j++) {
        float best = temperatures[j] = 1;
        double least = error_at(&s, j, temperatures);
        for (int k = 0; least >= 0 && k < STEPS; k++) { /* from the middle outward: of equals the mildest stays */
            int step = k % 2 ? (k + 1) / 2 : -(k / 2);
            temperatures[j] = (float)exp2(step / 8.0);
            double error = error_at(&s, j, temperatures);
            if (error < least) {
                least = error;
                best = temperatures[j];
            }
        }
        temperatures[j] = best;
    }
}

/* ---------------------------------------------------------------- file */

void di_calibration_write(const di_calibration *c, di_text *out) {
    char digest[17];
    di_json_writer json;
    snprintf(digest, sizeof digest, "%016" PRIx64, c->digest);
    di_json_begin(&json, out);
    json.spaces = true;
    di_json_object_begin(&json);
    di_json_key(&json, "draft_calibration");
    di_json_integer(&json, 1);
    di_json_key(&json, "weights");
    di_json_string(&json, digest);
    di_json_key(&json, "temperatures");
    di_json_array_begin(&json);
    for (uint32_t i = 0; i < c->count; i++) di_json_float(&json, c->temperatures[i]);
    di_json_array_end(&json);
    di_json_object_end(&json);
}

static di_status refuse(di_error *error, const char *name, const char *field, const char *why) {
    return di_fail(error, DI_ERR_FORMAT, field, "%s: %s %s", name, field, why);
}

static di_status read_temperatures(const char *name, const di_json *array, di_calibration *c, di_error *error) {
    double value;
    if (!array || array->type != DI_JSON_ARRAY)
        return refuse(error, name, "temperatures", "must be an array of numbers");
    for (const di_json *item = array->first; item; item = item->next) {
        if (c->count == DI_CALIBRATION_MOST)
            return refuse(error, name, "temperatures", "has more than 64 elements; a draft block has at most 64 rows");
        if (!di_json_double(item, &value) || value < 0.01 || value > 100)
            return refuse(error, name, "temperatures", "has an element that is no number from 0.01 to 100");
        c->temperatures[c->count++] = (float)value;
    }
    return c->count ? DI_OK : refuse(error, name, "temperatures", "is empty");
}

di_status di_calibration_read(const char *name, const char *text, size_t length, uint64_t digest, di_calibration *c,
                              di_error *error) {
    const di_json *root = NULL;
    int64_t version;
    char wanted[17];
    *c = (di_calibration){.digest = digest};
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory: cannot read %s", name);
    snprintf(wanted, sizeof wanted, "%016" PRIx64, digest);
    di_status status = di_json_parse(arena, text, length, 8, &root, error);
    if (status != DI_OK && error) { /* what is wrong there, and in which file */
        di_error inner = *error;
        di_fail(error, status, inner.param, "%s: %s", name, inner.message);
    }
    const di_json *weights = status == DI_OK ? di_json_get(root, "weights") : NULL;
    if (status == DI_OK && (!di_json_int64(di_json_get(root, "draft_calibration"), &version) || version != 1))
        status = refuse(error, name, "draft_calibration", "must be 1");
    else if (status == DI_OK && (!weights || weights->type != DI_JSON_STRING))
        status = refuse(error, name, "weights", "must be a string of 16 hexadecimal digits");
    else if (status == DI_OK && !di_json_string_is(weights, wanted))
        status = di_fail(error, DI_ERR_UNSUPPORTED, "weights",
                         "%s: it was made for other weights or another config than these (%s)", name, wanted);
    if (status == DI_OK) status = read_temperatures(name, di_json_get(root, "temperatures"), c, error);
    di_arena_free(arena);
    return status;
}
