/* compute.h - the thread that runs steps, so that the engine thread can plan and deliver meanwhile.
 *
 * One job at a time: forward pass of a step, then the sample op over its logits. The engine thread submits, does other
 * work, and is told; between submit and di_compute_done it touches neither the step, nor the items, nor the states
 * whose rows are in it, except to read what is committed.
 */
#ifndef DI_ENGINE_COMPUTE_H
#define DI_ENGINE_COMPUTE_H

#include "backend/sample.h"
#include "model/model.h"

typedef struct di_compute di_compute;

typedef struct di_compute_job {
    di_step *step;
    di_sample_args sample;      /* count 0: nothing to sample */
    void (*inspect)(void *arg); /* NULL, or called between the two */
    void *inspect_arg;
    void (*verify)(void *arg); /* NULL, or called after the sample op */
    void *verify_arg;
    bool held; /* nothing is sampled before di_compute_release */
    /* results */
    bool computed; /* the forward pass succeeded */
    di_status status;
    di_error error;
    int64_t compute_ns;
} di_compute_job;

di_status di_compute_new(di_model *model, di_compute **compute, di_error *error);
void di_compute_free(di_compute *compute); /* NULL is allowed; no job may be running */
/* Called by the compute thread whenever a job is done. Once, before the first job. */
void di_compute_on_done(di_compute *compute, void (*wake)(void *arg), void *arg);
void di_compute_submit(di_compute *compute, di_compute_job *job);
/* The items of the job that was submitted last are complete. */
void di_compute_release(di_compute *compute);
/* The job that was submitted last is done. */
bool di_compute_done(const di_compute *compute);

#endif
