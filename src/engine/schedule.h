/* schedule.h - how much a step may hold: a model of step time fitted while running. Pure arithmetic, engine thread.
 *
 *   seconds = w0 + w1 * decode rows + w2 * prompt rows + w3 * (prompt rows * context / 4096)
 *
 * fitted by recursive least squares that forgets only what new steps say something about. The budget is the number of
 * prompt rows that keeps a step within the target, so that running requests get their next token in time however long
 * the prompts beside them are.
 */
#ifndef DI_ENGINE_SCHEDULE_H
#define DI_ENGINE_SCHEDULE_H

#include <stdint.h>

enum { DI_STEP_FEATURES = 4 };

typedef struct di_step_model {
    double information[DI_STEP_FEATURES][DI_STEP_FEATURES]; /* what is known of the weights: inverse covariance */
    double weights[DI_STEP_FEATURES];
    uint64_t steps;     /* observed */
    double excess;      /* longest step of late, of its predicted time; fading */
    double decode_step; /* fading mean of steps without prompt rows, seconds; 0 = none yet */
} di_step_model;

typedef struct di_step_load {
    uint32_t decode_rows, prompt_rows;
    double prompt_context; /* mean position of the prompt rows */
} di_step_load;

void di_step_model_observe(di_step_model *model, const di_step_load *load, double seconds);
double di_step_model_predict(const di_step_model *model, const di_step_load *load);
/* Prompt rows beside `decode_rows` that leave the step well within `target` seconds, 1 .. most; a few also when the
 * decode rows alone take longer than that. */
uint32_t di_step_model_budget(const di_step_model *model, uint32_t decode_rows, double prompt_context, double target,
                              uint32_t most);
/* The longest allowed gap in seconds: max_gap_ms, or max(100 ms, twice a step of these decode rows) when it is 0. */
double di_step_model_gap(const di_step_model *model, uint32_t decode_rows, int64_t max_gap_ms);

#endif
