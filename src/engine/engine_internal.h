/* engine_internal.h - the engine's parts and who may touch what.
 *
 * Three owners (docs/architecture.md idea 5):
 *   engine thread   model steps, states, samplers, request.state and everything marked "engine"; engine/run.c, score.c
 *   submitter       builds a request completely before it enters the inbox; fields marked "fixed" never change after
 *   reader          takes events; fields marked "reader"
 * They meet at three points only: the hub (inbox, wake-up), the request's event queue, and atomics.
 *
 * State x event:
 *               admitted     prompt done    token          cancel, deadline, failure, close
 *   QUEUED      PREFILL      -              -              FINISHED
 *   PREFILL     -            DECODE         -              FINISHED
 *   DECODE      -            -              DECODE, or     FINISHED
 *                                           FINISHED when no sequence is live
 *   FINISHED    -            -              -              FINISHED (nothing happens)
 * A finished request owns no state, no sampler and no place in a queue; its events stay until they are read.
 */
#ifndef DI_ENGINE_ENGINE_INTERNAL_H
#define DI_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "backend/sample.h"
#include "base/arena.h"
#include "base/pool.h"
#include "cache/state.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "engine/events.h"
#include "engine/stop.h"
#include "model/model.h"
#include "sampling/sampling.h"

/* Where other threads reach the engine thread. Counted: requests may outlive their engine. */
typedef struct di_hub {
    atomic_uint references;
    pthread_mutex_t mutex;
    pthread_cond_t work;
    di_request *inbox, **inbox_end; /* newest last */
    uint32_t waiting;               /* submitted, not yet admitted or finished */
    bool stopping, woken;
} di_hub;

typedef enum di_request_state {
    DI_REQUEST_QUEUED,
    DI_REQUEST_PREFILL,
    DI_REQUEST_DECODE,
    DI_REQUEST_FINISHED
} di_request_state;

/* One sample of a request: its state, its choice of tokens, its text. Engine. */
typedef struct di_sequence {
    bool live;
    uint32_t step_index, logits_row; /* of the step that runs */
    di_state *state;
    di_sampler *sampler;
    di_detokenizer detokenizer;
    di_stop_matcher stop;
    bool armed;         /* stop strings are matched */
    int32_t last_token; /* chosen, not yet evaluated */
} di_sequence;

struct di_request {
    atomic_uint references; /* handle, engine */
    atomic_bool cancelled;
    atomic_bool window_free; /* score: the reader is done with `window` */
    atomic_bool throttled;   /* the engine waits for the reader to catch up */
    di_hub *hub;
    di_arena *arena;
    di_event_queue events;

    /* fixed */
    const char *id;
    int32_t *prompt; /* [prompt_count] */
    uint32_t prompt_count;
    di_sampling sampling;
    di_stop_set stops;
    int32_t stop_arm, stop_disarm;
    int32_t priority;
    uint64_t seed;
    uint64_t max_tokens;               /* after the cut to the context */
    int64_t submitted_ns, deadline_ns; /* INT64_MAX = none */
    bool score;
    float *window; /* score: f32 [logits rows][V], filled by the engine while window_free is false */

    /* engine */
    di_request_state state;
    di_request *next;
    di_sequence *sequences; /* [sampling.n] */
    uint32_t live;
    uint64_t completion_tokens;
    int64_t admitted_ns, prompt_done_ns, first_token_ns;

    /* written by the engine before the event queue closes */
    di_status status;
    di_error error;
    di_usage usage;
    di_timings timings;

    /* reader */
    bool done_taken;
};

/* Bytes of unread events above which a request is not run until its reader has caught up. */
enum { DI_EVENT_LIMIT = 64 << 20 };

struct di_engine {
    /* fixed after opening */
    di_log *log;
    di_model_info info;
    di_model_config config;
    char *path, *fingerprint, note[256];
    di_tokenizer *tokenizer;
    di_checkpoint *checkpoint;
    di_pool *pool;
    di_backend *backend;
    di_model *model;
    di_page_pool *pages;
    uint32_t context, chunk, max_rows, max_seqs, max_logits, max_queue, stop_limit;
    uint64_t prompt_limit;
    bool compact;
    uint32_t keep;

    di_hub *hub;
    pthread_t thread;
    bool started;

    /* engine thread */
    di_step *step;
    di_request *queue;     /* by priority, then age */
    di_request *active;    /* one at a time */
    di_sample_item *items; /* [max_logits + max_seqs] */
    di_sample_result *results;
    di_sample_top *top;  /* [items][top_stride] */
    di_logprob *top_out; /* [top_stride] */
    uint32_t item_count, top_stride, top_capacity;
    di_text text, scratch; /* of the event being built; of the token */
};

/* ---- hub.c */
di_hub *di_hub_new(di_error *error);
void di_hub_release(di_hub *hub);
/* Queues the request; the hub then holds a reference. Refuses above `limit` waiting requests and while stopping. */
di_status di_hub_submit(di_hub *hub, di_request *request, uint32_t limit, di_error *error);
void di_hub_wake(di_hub *hub);
void di_hub_stop(di_hub *hub);
/* Takes the inbox. With `wait`, blocks until there is something, a wake-up, or timeout_ms have passed (< 0: for ever).
 * *stopping = the engine is being closed. */
di_request *di_hub_take(di_hub *hub, bool wait, int64_t timeout_ms, bool *stopping);
void di_hub_left_queue(di_hub *hub); /* a waiting request was admitted or finished */

/* ---- request.c */
void di_request_release(di_request *request); /* drops one reference */
di_status di_request_new(di_engine *engine, di_request **request, di_error *error);

/* ---- parameters.c */
/* Checks `params` and copies its sampling into the request (fixed part). The prompt is there already. */
di_status di_check_parameters(const di_engine *engine, const di_request_params *params, di_request *request,
                              di_error *error);

/* ---- run.c */
void *di_engine_main(void *engine);
/* Ends the request as a whole: frees what it holds, tells the reader. */
void di_finish_request(di_engine *engine, di_request *request, di_finish_reason reason, const di_error *error);
/* Submits the step that was built and waits for it. */
di_status di_run_step(di_engine *engine, di_error *error);
/* Adds prompt or score rows [committed, committed + count) of a sequence to the cleared step. */
di_status di_add_rows(di_engine *engine, di_request *request, di_sequence *sequence, uint32_t count,
                      uint32_t logits_from, di_error *error);

/* ---- emit.c */
void di_emit_prompt(di_request *request);
bool di_emit_prompt_token(di_engine *engine, di_request *request, uint32_t position, uint32_t item);
/* Takes the token that `item` chose for a sequence: text, stop conditions, events. */
void di_accept_token(di_engine *engine, di_request *request, di_sequence *sequence, uint32_t item);
void di_finish_sequence(di_engine *engine, di_request *request, di_sequence *sequence, di_finish_reason reason,
                        int32_t stop_token_id, const char *stop_string);
void di_fill_progress(const di_request *request, di_event *event);

/* ---- score.c */
void di_score_step(di_engine *engine, di_request *request);

#endif
