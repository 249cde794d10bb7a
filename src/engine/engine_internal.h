/* engine_internal.h - the engine's parts and who may touch what.
 *
 * Three owners, each with its fields:
 *
 *   engine thread   states, samplers, cache, request.state, all that is marked "engine"; run.c, step.c, admit.c,
 * share.c, emit.c submitter       builds a request completely before it enters the inbox; "fixed" fields never change
 * after that reader          takes events; fields marked "reader"
 *
 * They meet at three points only: the hub (inbox, wake-up), the request's event queue, and atomics. The compute thread
 * (compute.h) owns the step between submit and wait.
 *
 * One turn of the engine thread (run.c): plan and submit step n+1
 *   -> deliver texts and events of step n -> look around: inbox, cancels, deadlines, restores, admission -> wait, and
 *   look around again whenever somebody calls -> commit step n+1. Between two steps it looks around only when
 *   somebody called meanwhile.
 *
 * State x event (docs/engine.md tells it in words):
 *               admitted   rows done          preempted  swapped in  sample ends       cancel, deadline, failure, close
 *   QUEUED      PREFILL or RESTORING, when the disk tier knows more than memory
 *   RESTORING   PREFILL when the state is read, when it cannot be, or when --restore-ms have passed (a plain miss)
 *   QUEUED      PREFILL    -                  -          -           -                 FINISHED
 *   PREFILL     -          PREFILL or DECODE  SWAPPED    -           -                 FINISHED
 *   DECODE      -          DECODE             SWAPPED    -           DECODE, FINISHED  FINISHED
 *   SWAPPED     -          -                  -          PREFILL     -                 FINISHED
 *   FINISHED    -          -                  -          -           -                 FINISHED (nothing happens)
 * A finished request owns no state, no sampler and no place in a queue; its events stay until they are read. A sequence
 * that ends while its row is being computed gives its state back when that step is committed ("doomed").
 */
#ifndef DI_ENGINE_ENGINE_INTERNAL_H
#define DI_ENGINE_ENGINE_INTERNAL_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "backend/cpu/cpu.h"
#include "backend/sample.h"
#include "base/arena.h"
#include "base/pool.h"
#include "cache/prefix.h"
#include "cache/state.h"
#include "checkpoint/checkpoint.h"
#include "engine/compute.h"
#include "engine/constraint.h"
#include "engine/engine.h"
#include "engine/events.h"
#include "engine/metrics.h"
#include "engine/schedule.h"
#include "engine/speculate.h"
#include "engine/stop.h"
#include "model/model.h"
#include "sampling/sampling.h"

/* Something that another thread has the engine thread do between two steps; lives on the caller's stack. */
typedef struct di_hub_work {
    struct di_hub_work *next;
    void (*work)(void *arg);
    void *arg;
    bool done;
} di_hub_work;

/* Where other threads reach the engine thread. Counted: requests may outlive their engine. */
typedef struct di_hub {
    atomic_uint references;
    sem_t work; /* posted by whoever has something for the engine thread, signal handlers too */
    pthread_mutex_t mutex;
    pthread_cond_t called;
    di_request *inbox, **inbox_end; /* newest last */
    di_request *oldest, *newest;    /* all that are not finished, in the order of their coming */
    uint32_t unfinished;
    di_hub_work *calls; /* oldest first */
    bool stopping, idle;
    /* written with the mutex held or by the engine thread, read by anybody */
    atomic_uint waiting;         /* submitted, not yet admitted or finished */
    _Atomic int64_t inbox_ns;    /* submission of the first in the inbox; 0 = empty */
    _Atomic int64_t progress_ns; /* when something went on last, or work came to an idle engine */
} di_hub;

typedef enum di_request_state {
    DI_REQUEST_QUEUED,
    DI_REQUEST_RESTORING, /* state is being read from the disk tier */
    DI_REQUEST_PREFILL, /* rows are computed that give no token: prompt, or what a preempted sequence computes again */
    DI_REQUEST_DECODE,
    DI_REQUEST_SWAPPED,
    DI_REQUEST_FINISHED
} di_request_state;

/* Tokens that were chosen in the last step and are not delivered yet. */
typedef struct di_choice {
    bool waiting;
    uint32_t count;          /* they stand at ids[position] and behind */
    int32_t stop_token;      /* of the last one */
    di_finish_reason reason; /* of the last one */
    int64_t position;
    uint32_t item; /* of the first one, in the batch of that step */
    bool drafted;  /* there were drafts: drafts.record */
} di_choice;

/* One sample of a request: its state, its choice of tokens, its text. Engine. */
typedef struct di_sequence {
    di_request *request;
    bool live;                             /* the reader has not been told its end */
    bool done;                             /* takes no more rows */
    bool in_step;                          /* has rows in the step that is being computed */
    bool doomed;                           /* ended meanwhile: to be released at the commit */
    uint32_t step_index, logits_row, rows; /* of the step that runs */
    bool sure;                             /* its rows are in the state when they are computed (di_step_entry) */
    uint32_t first_item, prompt_items, choice_item;
    di_state *state;    /* NULL: not started, swapped out, or ended */
    di_disk_load *load; /* RESTORING: what is being read, and up to where it would reach */
    uint32_t load_position;
    uint32_t adopted; /* blocks of it taken over; UINT32_MAX = nothing yet */
    di_text swapped;  /* state object while preempted; empty = computed again */
    di_sampler *sampler;
    di_detokenizer detokenizer;
    di_stop_matcher stop;
    di_constraint_state constraint;
    int32_t *ids;       /* [prompt_count + max_tokens]: prompt, then what was chosen */
    uint32_t ids_count; /* known ids */
    uint32_t goal;      /* rows to compute before the next choice; ids_count - 1 or the prompt */
    bool choose;        /* the row that reaches the goal gives a token (not when it was chosen before a preemption) */
    di_choice choice;
    uint32_t delivered; /* tokens that the reader was told of */
    di_status fault;    /* why this sample failed while others may go on */
    uint64_t delivered_hash;
    int64_t last_token_ns;
    di_drafts drafts; /* last: large, and without --spec nobody looks at it */
} di_sequence;

/* In which order requests go on; compared from the first field to the last (di_compare_order). */
typedef struct di_order {
    double level;         /* higher first: priority, and one more for each ageing period that it has waited */
    double owner, tenant; /* lower first: portions of service that it had more than the least served one */
    double ratio;         /* higher first: (age + cost) / cost, so that short work overtakes long work, not for ever */
} di_order;

struct di_request {
    /* What every step looks at stands first: few lines of a cache, which are cold each time. */
    atomic_uint references; /* handle, engine */
    atomic_bool cancelled;
    atomic_bool window_free;           /* score: the reader is done with `window` */
    atomic_bool throttled;             /* the engine waits for the reader to catch up */
    bool score;                        /* fixed */
    _Atomic di_request_state state;    /* engine; read by anybody */
    uint32_t prompt_count;             /* fixed */
    di_sequence *sequences;            /* engine: [sampling.n]; the first computes the prompt for all */
    uint32_t live;                     /* engine */
    int32_t failed_sample;             /* engine: whose error the request has, if it has one and still runs */
    uint32_t tenant_place;             /* engine: in engine->tenants; UINT32_MAX: none (not enqueued, or finished) */
    bool prompt_done, draft_records;   /* engine; fixed */
    bool numeric_fault;                /* engine: it, or one of its samples, met NaN or infinity */
    int32_t stop_arm;                  /* fixed */
    uint64_t max_tokens;               /* fixed: after the cut to the context */
    uint64_t seed;                     /* fixed */
    int64_t submitted_ns, deadline_ns; /* fixed; INT64_MAX = none */
    /* engine; the atomic ones are read by anybody */
    int64_t admitted_ns, prompt_done_ns, first_token_ns;
    _Atomic uint64_t completion_tokens;
    uint64_t draft_tokens, accepted_draft_tokens;
    _Atomic uint32_t cached_tokens, preemptions;

    /* fixed */
    di_sampling sampling;
    di_stop_set stops;
    const char *id, *owner;    /* owner: NULL = nobody */
    uint64_t tenant;           /* di_namespace: cache namespace, and share of what its owner gets */
    int32_t *prompt;           /* [prompt_count] */
    di_bound_grammar *grammar; /* NULL = none */
    int32_t priority;
    uint64_t serial; /* order of arrival, given by the queue */
    float *window;   /* score: f32 [logits rows][V], filled by the engine while window_free is false */

    di_hub *hub;
    di_request *older, *newer; /* of the hub */
    di_arena *arena;
    uint64_t event_limit; /* of the engine */
    di_event_queue events;

    /* engine */
    di_request *next;  /* in the inbox */
    uint32_t reported; /* scored rows or prompt tokens that the reader has; what is computed again is not told again */
    di_prefix_hit hit;
    int64_t restore_until_ns;
    int64_t waiting_ns; /* since when it waits to start or to go on; 0 = it runs */
    int64_t waited_ns;  /* before that */
    di_order order;     /* scratch of the scheduler */

    /* written by the engine before the event queue closes */
    di_status status;
    di_error error;
    di_usage usage;
    di_timings timings;

    /* reader */
    bool done_taken;
};

/* So many places before their turn, sequences and what they point to are fetched. */
enum { DI_FETCH_FAR = 16, DI_FETCH_NEAR = 8 };

/* Asks for memory that is used soon. Between two steps it has left the caches, and waiting for much of it at once takes
 * hardly longer than for a piece. */
static inline void di_fetch(const void *memory, size_t bytes) {
    if (!memory) return;
    const char *from = memory, *end = from + bytes;
    for (from -= (uintptr_t)from % 64; from < end; from += 64) __builtin_prefetch(from);
}

/* What one step samples, and the results; two of them, so that one is delivered while the next is computed. */
typedef struct di_batch {
    di_sample_item *items;     /* [capacity] */
    di_sample_result *results; /* [capacity] */
    di_sample_top *top;        /* [capacity][top_stride] */
    uint32_t count, capacity, top_stride;
    uint64_t top_capacity;
} di_batch;

/* A tenant, or an owner of tenants (share.c). */
typedef struct di_tenant {
    uint64_t name;       /* hash */
    double served;       /* rows computed, lifted to the least of the active ones of its like when it comes back */
    double least_served; /* owner: of its active tenants */
    uint32_t requests;   /* not finished; with none of them the place may be given to another one */
    uint32_t owner;      /* its place; UINT32_MAX: it is one */
} di_tenant;

/* Growing list of request pointers; the engine's reference goes with the place. */
typedef struct di_request_list {
    di_request **items;
    uint32_t count, capacity;
} di_request_list;

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
    uint32_t context, chunk, max_rows, max_seqs, max_logits, max_queue, stop_limit;
    uint64_t prompt_limit;
    bool compact;
    uint32_t keep;
    int64_t max_gap_ms, stall_ms, ageing_ms;
    uint64_t swap_limit;
    uint64_t event_limit; /* bytes of unread events above which a request waits for its reader */
    uint32_t snapshot_interval;
    int64_t restore_ms;

    di_hub *hub;
    pthread_t thread;
    bool started;
    di_metrics metrics;
    pthread_mutex_t refreshing; /* for what follows: what others count, as the metrics know it */
    di_disk_counters disk_counters;
    di_constraint_counters constraint_counters;
    /* what progress.c tells; written by the engine thread */
    _Atomic int64_t step_started_ns;  /* 0 while no step runs */
    _Atomic int64_t step_finished_ns; /* 0 = none yet */
    int64_t step_ns;                  /* of the last one, from its start until its end was seen */
    _Atomic int64_t step_budget_ns;   /* what the step that was planned last may take */
    _Atomic int64_t oldest_ns;        /* submission of the oldest request in the queue; 0 = none */

    /* engine thread */
    di_page_pool *pages;
    di_prefix_cache *cache;
    di_disk *disk; /* NULL without --cache-dir */
    di_compute *compute;
    di_step *step;
    di_compute_job job;
    di_batch batches[2];
    uint32_t batch;        /* the one that the step being planned or computed fills */
    di_sequence **planned; /* [max_seqs] sequences with rows in the step */
    uint32_t planned_count;
    uint64_t committed_rows; /* of the step that is being committed, without those of drafts */
    di_sequence **chosen;    /* [max_seqs] sequences with a choice to deliver */
    uint32_t chosen_count;
    di_constraints *constraints;
    int64_t masks_ms;                  /* for the masks of a step */
    di_speculation *speculation;       /* NULL = off */
    di_constraint_state **constrained; /* [max_seqs] whose masks the step needs */
    uint32_t constrained_count;
    di_step_load load;
    di_step_model step_model;
    bool stalled;
    bool ended;      /* a request that is over still stands in a list, or a step held its state */
    bool more;       /* of what was read from disk, to be taken over at once */
    int64_t turn_ns; /* when this turn began */
    di_request_list queue, running, swapped;
    uint32_t sequences; /* that hold or are about to hold state */
    uint64_t swap_bytes;
    di_tenant *tenants; /* and their owners */
    uint32_t tenant_count, tenant_capacity;
    double least_served;   /* of the active owners */
    uint64_t arrivals;     /* requests enqueued so far */
    uint32_t turn;         /* steps planned; rotates who goes first when not all fit */
    di_logprob *top_out;   /* [DI_SAMPLING_MAX_LOGPROBS] */
    di_text text, scratch; /* of the event being built; of the token */

    /* watch.c; fixed before the first request */
    di_logits_watch watch; /* NULL: nobody watches */
    void *watch_arg;
    float *watched_row; /* [vocabulary] */
    bool poison;
};

/* ---- hub.c */
di_hub *di_hub_new(di_error *error);
void di_hub_release(di_hub *hub);
/* Queues the request; the queue then holds a reference. Refuses above `limit` waiting requests and while stopping. */
di_status di_hub_submit(di_hub *hub, di_request *request, uint32_t limit, di_error *error);
void di_hub_wake(di_hub *hub);                   /* also from a signal handler */
bool di_hub_posted(di_hub *hub);                 /* somebody woke it and di_hub_take was not called since */
bool di_hub_wait(di_hub *hub, int64_t until_ns); /* until somebody wakes it; false when the time is over */
void di_hub_stop(di_hub *hub);
/* Takes the inbox. With `wait`, blocks until there is something, a wake-up, or timeout_ms have passed (< 0: for ever).
 * *stopping = the engine is being closed. */
di_request *di_hub_take(di_hub *hub, bool wait, int64_t timeout_ms, bool *stopping);
/* Has the engine thread do `work` between two steps and returns when it is done. False, and nothing is done, when the
 * engine is being closed. Not from the engine thread. */
bool di_hub_call(di_hub *hub, void (*work)(void *arg), void *arg);
void di_hub_serve_calls(di_hub *hub); /* engine thread */
void di_hub_left_queue(di_hub *hub);  /* a waiting request was admitted or finished */
void di_hub_finished(di_hub *hub, di_request *request);

/* ---- request.c */
void di_request_release(di_request *request); /* drops one reference */
di_status di_request_new(di_engine *engine, di_request **request, di_error *error);
/* Counts a request that was not taken, by why. */
void di_count_refusal(di_engine *engine, di_status status);

/* ---- parameters.c */
/* Checks `params` and copies its sampling into the request (fixed part). The prompt is there already. */
di_status di_check_parameters(const di_engine *engine, const di_request_params *params, di_request *request,
                              di_error *error);

/* ---- run.c */
void *di_engine_main(void *engine);
/* Ends the request as a whole: frees what it holds, tells the reader. */
void di_finish_request(di_engine *engine, di_request *request, di_finish_reason reason, const di_error *error);
/* Ends one sample by a fault of its own. The others go on: what they say depends on nobody else. The request ends with
 * the error of the lowest sample that failed. */
void di_fail_sample(di_engine *engine, di_sequence *sequence, const di_error *error);
/* Gives back the state and sampler of a sequence; if a step is using them, only when it is over. */
void di_release_sequence(di_engine *engine, di_sequence *sequence);

/* ---- lists (admit.c) */
bool di_list_add(di_request_list *list, di_request *request);
void di_list_remove(di_request_list *list, uint32_t index); /* keeps the order */

/* ---- admit.c: who runs. */
/* Takes over what came in. */
void di_enqueue(di_engine *engine, di_request *inbox);
/* Admits and swaps in what fits, preempting lower levels. */
void di_admit(di_engine *engine);
/* Lets requests go on whose state was read from disk, or whose time for that is over. True: some of it is taken over,
 * and the rest can be at once. */
bool di_poll_restores(di_engine *engine);
/* Frees pages for rows of `sequence`: cached prefixes first, then the states of less important requests. False when the
 * more important ones, or those whose rows are being computed, hold the rest: it has to wait. */
bool di_make_room(di_engine *engine, const di_sequence *sequence, uint32_t pages);
/* A state for the sequence, with whatever the prefix cache holds of its ids. */
di_status di_start_state(di_engine *engine, di_sequence *sequence, di_prefix_hit *hit, di_error *error);
/* The reader is so far behind that the request is not run until it has caught up. */
bool di_reader_is_behind(const di_engine *engine, di_request *request);

/* ---- share.c: in which order. */
/* Counts the request among those of its tenant and its owner. False when memory ran out. */
bool di_join_shares(di_engine *engine, di_request *request);
void di_leave_shares(di_engine *engine, di_request *request);
void di_count_served(di_engine *engine, const di_request *request, uint32_t rows);
/* Priority, and one more for each ageing period that the request has waited, also after it was preempted. */
double di_level_of(const di_engine *engine, const di_request *request, int64_t now);
/* Fills request->order: of all in the list that have not ended, or of one. */
void di_order_all(di_engine *engine, di_request_list *list);
void di_order_one(di_engine *engine, di_request *request, int64_t now);
int di_compare_order(const di_request *a, const di_request *b); /* < 0: a goes first */

/* ---- step.c: what a step holds, and what it made true. */
di_batch *di_current_batch(di_engine *engine); /* that the step being planned or computed fills */
bool di_may_run(const di_engine *engine, di_request *request);
bool di_is_decoding(const di_sequence *sequence);
/* Why a choice could not be made. */
di_status di_fail_numeric(int64_t position, di_error *error);
di_status di_fail_no_token(const di_sequence *sequence, di_error *error);
/* Builds the next step. False when there is nothing to compute. */
bool di_plan_step(di_engine *engine);
void di_commit_step(di_engine *engine);

/* ---- watch.c */
/* Makes the job of the planned step show its logits to whoever watches. */
void di_prepare_watch(di_engine *engine);
/* Compute thread: shows the row that gives the token at `position`, if anybody watches. */
void di_watch_row(di_engine *engine, const di_sequence *sequence, uint32_t row, uint32_t position);

/* ---- emit.c */
void di_emit_prompt(di_request *request);
bool di_emit_prompt_token(di_engine *engine, di_request *request, const di_batch *batch, uint32_t position,
                          uint32_t item);
/* Texts and events of the choices made in the last step. */
void di_deliver(di_engine *engine);
void di_finish_sequence(di_engine *engine, di_request *request, di_sequence *sequence, di_finish_reason reason,
                        int32_t stop_token_id, const char *stop_string);
void di_fill_progress(const di_request *request, int64_t now, di_event *event);
/* One structured line for a request that ended. */
void di_record_request(di_engine *engine, const di_request *request);

/* ---- score.c */
/* After the step with rows [done, done + count) of a scored text: hands the logits that the reader does not have yet
 * to it. */
di_status di_score_rows(di_engine *engine, di_request *request, uint32_t done, uint32_t count, uint32_t first_logits,
                        di_error *error);

#endif
