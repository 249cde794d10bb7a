/* schedule.c - see schedule.h. */
#include "engine/schedule.h"

#include <math.h>

/* Old steps fade to half after about 140; the first guesses are careful. Prompt rows get half of the time that decoding
 * leaves of the gap, because machines are noisy, and a tenth of the decode step when it leaves none, because a prompt
 * must end some day. */
static const double FADE = 0.995, SHARE_OF_REST = 0.5, LEAST_SHARE = 0.1;
enum { LEARNING_STEPS = 6, LEARNING_ROWS = 16 };

static void features(const di_step_load *load, double f[DI_STEP_FEATURES]) {
    f[0] = 1;
    f[1] = load->decode_rows;
    f[2] = load->prompt_rows;
    f[3] = load->prompt_rows * load->prompt_context / 4096;
}

/* Solves the normal equations with a small ridge by elimination; negative costs are set to zero. */
static void solve(di_step_model *m) {
    double a[DI_STEP_FEATURES][DI_STEP_FEATURES + 1];
    for (int i = 0; i < DI_STEP_FEATURES; i++) {
        for (int j = 0; j < DI_STEP_FEATURES; j++) a[i][j] = m->products[i][j];
        a[i][i] += 1e-6 * m->products[i][i] + 1e-9;
        a[i][DI_STEP_FEATURES] = m->targets[i];
    }
    for (int p = 0; p < DI_STEP_FEATURES; p++) {
        for (int i = 0; i < DI_STEP_FEATURES; i++) {
            if (i == p || a[p][p] == 0) continue;
            double factor = a[i][p] / a[p][p];
            for (int j = p; j <= DI_STEP_FEATURES; j++) a[i][j] -= factor * a[p][j];
        }
    }
    for (int i = 0; i < DI_STEP_FEATURES; i++) {
        double w = a[i][i] != 0 ? a[i][DI_STEP_FEATURES] / a[i][i] : 0;
        m->weights[i] = w > 0 && isfinite(w) ? w : 0;
    }
}

void di_step_model_observe(di_step_model *m, const di_step_load *load, double seconds) {
    double f[DI_STEP_FEATURES];
    features(load, f);
    for (int i = 0; i < DI_STEP_FEATURES; i++) {
        for (int j = 0; j < DI_STEP_FEATURES; j++) m->products[i][j] = FADE * m->products[i][j] + f[i] * f[j];
        m->targets[i] = FADE * m->targets[i] + f[i] * seconds;
    }
    m->steps++;
    if (!load->prompt_rows && load->decode_rows)
        m->decode_step = m->decode_step > 0 ? m->decode_step + 0.1 * (seconds - m->decode_step) : seconds;
    solve(m);
}

double di_step_model_predict(const di_step_model *m, const di_step_load *load) {
    double f[DI_STEP_FEATURES], seconds = 0;
    features(load, f);
    for (int i = 0; i < DI_STEP_FEATURES; i++) seconds += m->weights[i] * f[i];
    return seconds;
}

static double decode_seconds(const di_step_model *m, uint32_t decode_rows) {
    return m->steps < LEARNING_STEPS ? m->decode_step : m->weights[0] + m->weights[1] * decode_rows;
}

uint32_t di_step_model_budget(const di_step_model *m, uint32_t decode_rows, double prompt_context, double target,
                              uint32_t most) {
    if (m->steps < LEARNING_STEPS) return most < LEARNING_ROWS ? most : LEARNING_ROWS;
    double base = decode_seconds(m, decode_rows);
    double row = m->weights[2] + m->weights[3] * prompt_context / 4096;
    double left = (target - base) * SHARE_OF_REST;
    if (left < base * LEAST_SHARE) left = base * LEAST_SHARE;
    double rows = row > 0 ? left / row : most;
    return rows >= most ? most : rows < 1 ? 1 : (uint32_t)rows;
}

double di_step_model_gap(const di_step_model *m, uint32_t decode_rows, int64_t max_gap_ms) {
    if (max_gap_ms > 0) return (double)max_gap_ms / 1000;
    return fmax(0.1, 2 * decode_seconds(m, decode_rows));
}
