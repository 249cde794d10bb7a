/* gate.h - a hand on an engine's steps: hold them, slow them, look into them, damage them.
 *
 * The gate takes the place of the backend's op table: the first op of a step waits until the test lets it through. One
 * gate at a time, put on before the first submission and there until the engine is closed.
 */
#ifndef DI_TESTS_SUPPORT_GATE_H
#define DI_TESTS_SUPPORT_GATE_H

#include "deepinfer.h"

enum { DI_GATE_SEQUENCES = 256 };

/* One step as it was let through. */
typedef struct di_gate_step {
    uint32_t rows, sequences;
    uint32_t count[DI_GATE_SEQUENCES]; /* rows of each sequence, in the order of the step */
    int32_t first[DI_GATE_SEQUENCES];  /* its first position, */
    int32_t token[DI_GATE_SEQUENCES];  /* and the id there */
} di_gate_step;

void di_gate_on(di_engine *engine, bool closed);
void di_gate_close(di_engine *engine); /* opens the gate and closes the engine */

/* Blocks until a step stands at the gate (false after timeout_ms), and shows it. */
bool di_gate_wait(int64_t timeout_ms, di_gate_step *step);
/* Lets one step through. */
void di_gate_pass(void);
/* Lets everything through from now on; `closed` again: holds again. */
void di_gate_open(bool open);
uint64_t di_gate_steps(void); /* that came so far */

/* Every step with an open gate takes this much longer. */
void di_gate_sleep(int64_t milliseconds);
/* Rows of this input id get NaN in the residual stream; -1 = none. */
void di_gate_poison(int32_t token);
/* The device has no memory for anything new. */
void di_gate_deny(bool deny);
/* Called for every step, on the compute thread. NULL = none. */
void di_gate_watch(void (*watch)(void *arg, const di_gate_step *step), void *arg);

#endif
