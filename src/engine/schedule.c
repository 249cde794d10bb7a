/* schedule.c - see schedule.h. */
#include "engine/schedule.h"

#include <math.h>

/* A load that comes again and again is known from its last hundred steps; the first guesses are careful. Prompt rows
 * get half of the time that decoding leaves of the gap, because machines are noisy, and a tenth of the decode step when
 * it leaves none, because a prompt must end some day. */
static const double MEMORY = 0.99, LEAST_INFORMATION = 1, SHARE_OF_REST = 0.5, LEAST_SHARE = 0.1;
/* Steps that take up to twice the predicted time stay within the gap by the first of these shares. On a machine where
 * they took longer than that lately, the aim comes down. In a short step, one turn of another process is no measure. */
static const double USUAL_EXCESS = 2, MOST_EXCESS = 6, SHORT_STEP = 0.02, FADE = 0.995;
enum { LEARNING_STEPS = 6, LEARNING_ROWS = 16 };

static void features(const di_step_load *load, double f[DI_STEP_FEATURES]) {
    f[0] = 1;
    f[1] = load->decode_rows;
    f[2] = load->prompt_rows;
    f[3] = load->prompt_rows * load->prompt_context / 4096;
}

/* x = a^-1 b for a positive definite `a`. */
static void solve(double a[DI_STEP_FEATURES][DI_STEP_FEATURES], const double *b, double *x) {
    double m[DI_STEP_FEATURES][DI_STEP_FEATURES + 1];
    for (int i = 0; i < DI_STEP_FEATURES; i++) {
        for (int j = 0; j < DI_STEP_FEATURES; j++) m[i][j] = a[i][j];
        m[i][DI_STEP_FEATURES] = b[i];
    }
    for (int p = 0; p < DI_STEP_FEATURES; p++) {
        for (int i = 0; i < DI_STEP_FEATURES; i++) {
            if (i == p || m[p][p] <= 0) continue;
            double factor = m[i][p] / m[p][p];
            for (int j = p; j <= DI_STEP_FEATURES; j++) m[i][j] -= factor * m[p][j];
        }
    }
    for (int i = 0; i < DI_STEP_FEATURES; i++) {
        x[i] = m[i][i] > 0 ? m[i][DI_STEP_FEATURES] / m[i][i] : 0;
        if (!isfinite(x[i])) x[i] = 0;
    }
}

/* No cost is negative: the nearest weights, in the measure of what is known, that are not. */
static void keep_positive(di_step_model *m) {
    for (int pass = 0; pass < DI_STEP_FEATURES; pass++) {
        int least = 0;
        for (int i = 1; i < DI_STEP_FEATURES; i++)
            if (m->weights[i] < m->weights[least]) least = i;
        if (m->weights[least] >= 0) return;
        double unit[DI_STEP_FEATURES] = {0}, way[DI_STEP_FEATURES];
        unit[least] = 1;
        solve(m->information, unit, way);
        double steps = way[least] > 0 ? m->weights[least] / way[least] : 0;
        for (int i = 0; i < DI_STEP_FEATURES; i++) m->weights[i] -= steps * way[i];
        m->weights[least] = 0;
    }
    for (int i = 0; i < DI_STEP_FEATURES; i++) m->weights[i] = fmax(0, m->weights[i]);
}

/* Recursive least squares of the relative error. What was known is forgotten along the new load only: hours of long
 * prompts must not unlearn what a short one costs. */
static void learn(di_step_model *m, const double *f, double seconds) {
    double g[DI_STEP_FEATURES], x[DI_STEP_FEATURES], along[DI_STEP_FEATURES] = {0}, length = 0, error = 1;
    for (int i = 0; i < DI_STEP_FEATURES; i++) g[i] = f[i] / seconds;
    for (int i = 0; i < DI_STEP_FEATURES; i++) {
        m->information[i][i] += m->steps ? 0 : LEAST_INFORMATION;
        for (int j = 0; j < DI_STEP_FEATURES; j++) along[i] += m->information[i][j] * g[j];
        length += along[i] * g[i];
        error -= g[i] * m->weights[i];
    }
    for (int i = 0; i < DI_STEP_FEATURES; i++)
        for (int j = 0; j < DI_STEP_FEATURES; j++)
            m->information[i][j] += g[i] * g[j] - (1 - MEMORY) * along[i] * along[j] / length;
    solve(m->information, g, x);
    for (int i = 0; i < DI_STEP_FEATURES; i++) m->weights[i] += x[i] * error;
    keep_positive(m);
}

static void observe_excess(di_step_model *m, const di_step_load *load, double seconds) {
    double predicted = di_step_model_predict(m, load);
    m->excess *= FADE;
    if (m->steps < LEARNING_STEPS) return;
    m->excess = fmin(fmax(m->excess, seconds / fmax(predicted, SHORT_STEP)), MOST_EXCESS);
}

void di_step_model_observe(di_step_model *m, const di_step_load *load, double seconds) {
    double f[DI_STEP_FEATURES];
    features(load, f);
    observe_excess(m, load, seconds);
    double predicted = di_step_model_predict(m, load);
    /* A machine that was suspended, or a clock that jumped, says nothing about the next step. */
    if (m->steps >= LEARNING_STEPS) seconds = fmax(predicted / 10, fmin(seconds, 10 * predicted + 0.1));
    learn(m, f, fmax(seconds, 1e-6));
    m->steps++;
    if (!load->prompt_rows && load->decode_rows)
        m->decode_step = m->decode_step > 0 ? m->decode_step + 0.1 * (seconds - m->decode_step) : seconds;
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
    double left = (target / fmax(1, m->excess / USUAL_EXCESS) - base) * SHARE_OF_REST;
    if (left < base * LEAST_SHARE) left = base * LEAST_SHARE;
    double rows = row > 0 ? left / row : most;
    return rows >= most ? most : rows < 1 ? 1 : (uint32_t)rows;
}

double di_step_model_gap(const di_step_model *m, uint32_t decode_rows, int64_t max_gap_ms) {
    if (max_gap_ms > 0) return (double)max_gap_ms / 1000;
    return fmax(0.1, 2 * decode_seconds(m, decode_rows));
}
