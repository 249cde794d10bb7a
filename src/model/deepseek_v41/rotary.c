/* rotary.c - rotary frequencies [4.5]. */
#include "model/deepseek_v41/v41.h"

#include <math.h>

/* Dimension index at which a rotation makes `rotations` turns over the original context. */
static double turning_dimension(const di_model_config *c, double rotations) {
    double positions = (double)c->yarn_original_positions;
    return c->qk_rope_head_dim * log(positions / (rotations * 2 * M_PI)) / (2 * log(c->compress_rope_theta));
}

/* libm is used at load time only; the frequencies are checked against golden values bit by bit, and pow and log of
 * these arguments are far from a rounding border of fp32. */
void v41_frequencies(const di_model_config *c, bool yarn, float *out) {
    uint32_t dim = c->qk_rope_head_dim;
    double theta = yarn ? c->compress_rope_theta : c->rope_theta;
    float low = 0, high = 0;
    if (yarn) {
        double from = floor(turning_dimension(c, c->yarn_beta_fast)),
               to = ceil(turning_dimension(c, c->yarn_beta_slow));
        if (from < 0) from = 0;
        if (to > dim - 1) to = dim - 1;
        if (from == to) to += 0.001;
        low = (float)from;
        high = (float)(to - from);
    }
    for (uint32_t j = 0; j < dim / 2; j++) {
        float f = 1.0f / (float)pow(theta, 2.0 * j / dim);
        if (yarn) {
            float ramp = ((float)j - low) / high;
            ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
            float keep = 1.0f - ramp, stretched = f / (float)c->yarn_factor;
            float a = stretched * (1.0f - keep), b = f * keep;
            f = a + b;
        }
        out[j] = f;
    }
}
