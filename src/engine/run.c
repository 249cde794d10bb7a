/* run.c - the engine thread: its turn, and how requests end. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

/* While a request waits for its reader, cancels and deadlines are looked at this often. */
enum { PAUSE_MS = 50, STALL_POLL_MS = 1000 };

/* ---------------------------------------------------------------- end of sequences and requests */

/* The compute thread reads its state, its sampler or its mask: the step that ends a prompt chooses for all samples, but
 * holds rows of the first one only. */
static bool is_read(const di_sequence *s) {
    const di_request *request = s->request; /* NULL: memory ran out before it was made */
    return s->in_step || (request && !request->prompt_done && request->sequences[0].in_step);
}

void di_release_sequence(di_engine *engine, di_sequence *s) {
    if (is_read(s)) {
        s->doomed = true;
        return;
    }
    s->doomed = false;
    s->done = true;
    engine->swap_bytes -= s->swapped.length;
    di_text_free(&s->swapped);
    if (s->load && s->state) di_state_reset(s->state); /* half read, perhaps: not to be published */
    di_disk_load_free(s->load);
    s->load = NULL;
    if (s->choice.waiting) return; /* delivered first: the sampler is still asked */
    /* What an answer left behind is found again by the next turn of its conversation. */
    if (s->state && s->request->prompt_done && !s->request->score && s->ids)
        di_prefix_publish(engine->cache, s->request->tenant, s->ids, s->state);
    di_state_free(s->state);
    di_sampler_free(s->sampler);
    di_stop_matcher_free(&s->stop);
    di_constraint_end(engine->constraints, &s->constraint);
    di_drafts_end(&s->drafts);
    s->state = NULL;
    s->sampler = NULL;
    free(s->ids);
    s->ids = NULL;
}

/* The reader is told about every sample, also of a request that never ran. */
static void make_silent_sequences(di_request *request) {
    request->sequences = di_arena_zalloc(request->arena, (size_t)request->sampling.n * sizeof(di_sequence));
    for (int32_t i = 0; request->sequences && i < request->sampling.n; i++) {
        request->sequences[i].request = request;
        request->sequences[i].live = true;
    }
}

/* Choices of a request that is over are not delivered; it may be freed before the next delivery. */
static void forget_choices(di_engine *engine, const di_request *request) {
    for (uint32_t i = 0; i < engine->chosen_count; i++)
        if (engine->chosen[i] && engine->chosen[i]->request == request) engine->chosen[i] = NULL;
}

/* The only way into FINISHED. The engine's reference stays: whoever holds the request in a list drops it. */
void di_finish_request(di_engine *engine, di_request *request, di_finish_reason reason, const di_error *error) {
    if (request->state == DI_REQUEST_FINISHED) return;
    if (error && error->status != DI_OK) {
        request->status = error->status;
        request->error = *error;
    }
    if (request->state == DI_REQUEST_QUEUED) {
        di_hub_left_queue(engine->hub);
        if (!request->sequences && !request->score) make_silent_sequences(request);
    }
    engine->ended = true;
    di_leave_shares(engine, request);
    di_hub_finished(engine->hub, request);
    request->state = DI_REQUEST_FINISHED;
    forget_choices(engine, request);
    for (int32_t i = 0; request->sequences && i < request->sampling.n; i++) {
        di_sequence *s = &request->sequences[i];
        s->choice.waiting = false;
        di_constraint_leave(engine->constraints, &s->constraint);
        if (s->live && !request->score)
            di_finish_sequence(engine, request, s, reason, -1, NULL);
        else
            di_release_sequence(engine, s);
    }
    di_constraint_release(engine->constraints, request->grammar);
    request->grammar = NULL;
    di_event last = {0};
    di_fill_progress(request, di_now_ns(), &last);
    request->usage = last.usage;
    request->timings = last.timings;
    if (request->events.incomplete && request->status == DI_OK)
        request->status = di_fail(&request->error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
    di_record_request(engine, request);
    di_events_close(&request->events);
}

void di_fail_sample(di_engine *engine, di_sequence *s, const di_error *error) {
    di_request *request = s->request;
    int32_t sample = (int32_t)(s - request->sequences);
    if (request->status == DI_OK || sample < request->failed_sample) {
        request->status = error->status;
        request->error = *error;
        request->failed_sample = sample;
    }
    s->fault = error->status;
    s->choice.waiting = false;
    di_constraint_leave(engine->constraints, &s->constraint);
    di_finish_sequence(engine, request, s, DI_FINISH_ERROR, -1, NULL);
    if (!request->live) di_finish_request(engine, request, DI_FINISH_NONE, NULL);
}

/* Ends a request that was cancelled or is late. */
static void end_from_outside(di_engine *engine, di_request *request) {
    di_error error = {0};
    if (atomic_load_explicit(&request->cancelled, memory_order_acquire)) {
        di_fail(&error, DI_ERR_CANCELLED, NULL, "the request was cancelled");
        di_finish_request(engine, request, DI_FINISH_CANCELLED, &error);
    } else {
        di_count(&engine->metrics, DI_COUNT_DEADLINES, 1);
        di_fail(&error, DI_ERR_DEADLINE, "deadline_ms", "the request's deadline of %.0f ms passed",
                di_ms(request->deadline_ns - request->submitted_ns));
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
    }
}

static bool owns_state(const di_request *request) {
    for (int32_t i = 0; request->sequences && i < request->sampling.n; i++)
        if (request->sequences[i].in_step || request->sequences[i].state) return true;
    return false;
}

/* Ends what was cancelled or is late, and drops finished requests that own nothing any more. */
static void reap(di_engine *engine, di_request_list *list, bool stopping) {
    int64_t now = di_now_ns();
    for (uint32_t i = 0; i < list->count;) {
        di_request *request = list->items[i];
        if (stopping) atomic_store_explicit(&request->cancelled, true, memory_order_relaxed);
        bool over = atomic_load_explicit(&request->cancelled, memory_order_relaxed) || now >= request->deadline_ns;
        if (over && request->state != DI_REQUEST_FINISHED) end_from_outside(engine, request);
        if (request->state != DI_REQUEST_FINISHED || owns_state(request)) {
            i++;
            continue;
        }
        if (list == &engine->running) engine->sequences -= (uint32_t)request->sampling.n;
        di_list_remove(list, i);
        di_request_release(request);
    }
}

/* ---------------------------------------------------------------- the turn */

static int64_t oldest_of(const di_request_list *list) {
    int64_t oldest = 0;
    for (uint32_t i = 0; i < list->count; i++)
        if (!oldest || list->items[i]->submitted_ns < oldest) oldest = list->items[i]->submitted_ns;
    return oldest;
}

/* Who waits and who runs: also right before a step, in case it does not end. */
static void set_work_gauges(di_engine *engine) {
    atomic_store_explicit(&engine->oldest_ns, oldest_of(&engine->queue), memory_order_relaxed);
    di_gauge(&engine->metrics, DI_GAUGE_QUEUE, engine->queue.count);
    di_gauge(&engine->metrics, DI_GAUGE_RUNNING_REQUESTS, engine->running.count);
    di_gauge(&engine->metrics, DI_GAUGE_RUNNING, engine->sequences);
    di_gauge(&engine->metrics, DI_GAUGE_SWAPPED, engine->swapped.count);
}

static void went_on(di_engine *engine, int64_t now) {
    atomic_store_explicit(&engine->hub->progress_ns, now, memory_order_relaxed);
}

/* Masks of the step's choices, while its forward pass runs. Those that are not there in time wait for the next step, so
 * that grammars cost others no more than that and one mask. */
static void fill_masks(di_engine *engine) {
    if (!engine->constrained_count) return;
    int64_t until = di_now_ns() + engine->masks_ms * 1000000;
    for (uint32_t i = 0; i < engine->constrained_count; i++) {
        di_constraint_state *state = engine->constrained[i];
        state->late = i && !state->wanted && di_now_ns() > until;
        if (!state->late) di_constraint_fill(engine->constraints, state);
        di_count(&engine->metrics, DI_COUNT_LATE_MASKS, state->late);
    }
    di_compute_release(engine->compute);
}

static void set_gauges(di_engine *engine) {
    di_engine_refresh_metrics(engine);
    const di_prefix_counters *cache = di_prefix_get_counters(engine->cache);
    set_work_gauges(engine);
    uint32_t used = di_page_pool_used(engine->pages);
    di_gauge(&engine->metrics, DI_GAUGE_PAGES_USED, used);
    di_gauge(&engine->metrics, DI_GAUGE_PAGES_SEQUENCES, used - di_page_pool_spare(engine->pages));
    di_gauge(&engine->metrics, DI_GAUGE_PAGES_LIMIT, di_page_pool_limit(engine->pages));
    di_gauge(&engine->metrics, DI_GAUGE_PAGES_CACHE, cache->pages);
    di_gauge(&engine->metrics, DI_GAUGE_CACHE_BYTES, (int64_t)cache->bytes);
    di_gauge(&engine->metrics, DI_GAUGE_SWAP_BYTES, (int64_t)engine->swap_bytes);
}

/* What others did: new requests, cancels, states that were read; and who may run now. Also beside a running step. */
static void look_around(di_engine *engine, bool *stopping) {
    engine->ended = false;
    di_enqueue(engine, di_hub_take(engine->hub, false, 0, stopping));
    reap(engine, &engine->queue, *stopping);
    reap(engine, &engine->running, *stopping);
    reap(engine, &engine->swapped, *stopping);
    engine->more = di_poll_restores(engine);
    di_admit(engine);
    set_gauges(engine);
}

/* Waits for the step, and looks around whenever somebody calls; a step that takes too long is noticed while it runs. */
static void wait_for_step(di_engine *engine, bool *stopping) {
    int64_t limit = engine->stall_ms > 0 ? engine->stall_ms : INT64_MAX / 2000000;
    int64_t poll = (limit < STALL_POLL_MS ? limit : STALL_POLL_MS) * 1000000;
    look_around(engine, stopping);
    while (!di_compute_done(engine->compute)) {
        bool called = engine->more || di_hub_wait(engine->hub, di_now_ns() + poll);
        if (di_compute_done(engine->compute)) break;
        if (called) look_around(engine, stopping);
        int64_t age = di_now_ns() - atomic_load_explicit(&engine->step_started_ns, memory_order_relaxed);
        if (engine->stalled || age < limit * 1000000) continue;
        engine->stalled = true;
        di_count(&engine->metrics, DI_COUNT_STALLS, 1);
        di_log_write(engine->log, DI_LOG_ERROR, "engine",
                     "a step of %u rows has been running for %.1f s (--stall-ms %lld)", di_step_rows(engine->step),
                     (double)age / 1e9, (long long)engine->stall_ms);
    }
    engine->stalled = false;
}

/* One step, if there is something to compute. False when nothing went on at all. */
static bool turn(di_engine *engine, bool *stopping) {
    int64_t start = engine->turn_ns = di_now_ns();
    bool running = di_plan_step(engine);
    int64_t planned = di_now_ns();
    if (!running) went_on(engine, planned); /* all that there is waits for somebody else */
    if (running) {
        di_observe(&engine->metrics, DI_HISTOGRAM_STEP_PLAN, (double)(planned - start) / 1e9);
        atomic_store_explicit(&engine->step_started_ns, planned, memory_order_relaxed);
        di_compute_submit(engine->compute, &engine->job);
        fill_masks(engine);
    }
    bool delivers = engine->chosen_count > 0;
    di_deliver(engine);
    if (!running) return delivers;
    wait_for_step(engine, stopping);
    int64_t computed = di_now_ns();
    atomic_store_explicit(&engine->step_started_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&engine->step_finished_ns, computed, memory_order_relaxed);
    went_on(engine, computed);
    engine->step_ns = computed - planned;
    di_commit_step(engine);
    di_observe(&engine->metrics, DI_HISTOGRAM_STEP_COMMIT, (double)(di_now_ns() - computed) / 1e9);
    return true;
}

static bool has_work(const di_engine *engine) {
    return engine->queue.count || engine->running.count || engine->swapped.count;
}

/* Between two steps: whoever called since the last look around, or waits for what the step held, is heard before the
 * next one is planned; the step's own end counts as a call when it was not waited for. False: there was no reason to
 * look around. */
static bool between_steps(di_engine *engine, bool *stopping) {
    bool called = di_hub_posted(engine->hub) || engine->ended || engine->more;
    di_hub_serve_calls(engine->hub);
    if (called)
        look_around(engine, stopping);
    else
        di_admit(engine);
    return called;
}

void *di_engine_main(void *arg) {
    di_engine *engine = arg;
    di_float_mode_ok();
    bool stopping = false, ran = false;
    while (!stopping || has_work(engine)) {
        bool looked = true;
        if (ran && has_work(engine)) {
            looked = between_steps(engine, &stopping);
        } else {
            /* With work but without a step: somebody's reader is behind. */
            int64_t pause = has_work(engine) ? PAUSE_MS : -1;
            di_enqueue(engine, di_hub_take(engine->hub, !engine->more, pause, &stopping));
            di_hub_serve_calls(engine->hub);
            look_around(engine, &stopping);
        }
        ran = turn(engine, &stopping);
        if (!ran && !looked) { /* nobody waits before he has looked */
            look_around(engine, &stopping);
            ran = turn(engine, &stopping);
        }
        if (!ran) set_gauges(engine);
    }
    di_hub_serve_calls(engine->hub); /* those that came before the hub was stopped */
    return NULL;
}
