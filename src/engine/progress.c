/* progress.c - what other threads may see of the engine at work. */
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

static int64_t ms_since(int64_t then, int64_t now) {
    return then && now > then ? (now - then) / 1000000 : 0;
}

static int64_t gauge(const di_engine *engine, di_gauge_id id) {
    return atomic_load_explicit(&engine->metrics.gauges[id], memory_order_relaxed);
}

static int64_t read_time(const _Atomic int64_t *time) {
    return atomic_load_explicit(time, memory_order_relaxed);
}

di_engine_progress di_engine_get_progress(const di_engine *engine) {
    /* Times before the clock, so that none is later than it. */
    int64_t went_on = read_time(&engine->hub->progress_ns), started = read_time(&engine->step_started_ns);
    int64_t finished = read_time(&engine->step_finished_ns), oldest = read_time(&engine->oldest_ns);
    int64_t inbox = read_time(&engine->hub->inbox_ns), now = di_now_ns();
    if (!oldest || (inbox && inbox < oldest)) oldest = inbox;
    di_engine_progress progress = {
        .waiting = atomic_load_explicit(&engine->hub->waiting, memory_order_relaxed),
        .running = (uint32_t)gauge(engine, DI_GAUGE_RUNNING_REQUESTS),
        .swapped = (uint32_t)gauge(engine, DI_GAUGE_SWAPPED),
        .sequences = (uint32_t)gauge(engine, DI_GAUGE_RUNNING),
        .steps = di_counter(&engine->metrics, DI_COUNT_STEPS),
        .step_ms = ms_since(started, now),
        .since_step_ms = finished ? ms_since(finished, now) : -1,
        .step_budget_ms = read_time(&engine->step_budget_ns) / 1000000,
        .oldest_waiting_ms = ms_since(oldest, now),
    };
    if (progress.waiting || progress.running || progress.swapped) progress.stuck_ms = ms_since(went_on, now);
    return progress;
}

static void set_disk_metrics(di_engine *engine) {
    di_disk_counters now, *last = &engine->disk_counters;
    di_disk_get_counters(engine->disk, &now);
    uint64_t failures = now.load_failures + now.save_failures, before = last->load_failures + last->save_failures;
    di_count(&engine->metrics, DI_COUNT_DISK_LOADS, now.loads - last->loads);
    di_count(&engine->metrics, DI_COUNT_DISK_LOADED_BYTES, now.loaded_bytes - last->loaded_bytes);
    di_count(&engine->metrics, DI_COUNT_DISK_SAVES, now.saves - last->saves);
    di_count(&engine->metrics, DI_COUNT_DISK_SAVED_BYTES, now.saved_bytes - last->saved_bytes);
    di_count(&engine->metrics, DI_COUNT_DISK_FAILURES, failures - before);
    di_count(&engine->metrics, DI_COUNT_DISK_DROPPED, now.dropped - last->dropped);
    di_count(&engine->metrics, DI_COUNT_DISK_EVICTED, now.evicted - last->evicted);
    di_gauge(&engine->metrics, DI_GAUGE_DISK_BYTES, (int64_t)now.bytes);
    di_gauge(&engine->metrics, DI_GAUGE_DISK_RECORDS, now.records);
    di_gauge(&engine->metrics, DI_GAUGE_DISK_QUEUED, (int64_t)now.queued);
    di_gauge(&engine->metrics, DI_GAUGE_DISK_UNWRITABLE, now.read_only || now.failing);
    *last = now;
}

static void set_grammar_metrics(di_engine *engine) {
    di_constraint_counters now, *last = &engine->constraint_counters;
    di_constraints_get_counters(engine->constraints, &now);
    di_count(&engine->metrics, DI_COUNT_GRAMMARS_COMPILED, now.compiled - last->compiled);
    di_count(&engine->metrics, DI_COUNT_GRAMMARS_REUSED, now.reused - last->reused);
    di_count(&engine->metrics, DI_COUNT_GRAMMARS_REFUSED, now.refused - last->refused);
    di_count(&engine->metrics, DI_COUNT_GRAMMAR_RESETS, now.resets - last->resets);
    di_gauge(&engine->metrics, DI_GAUGE_GRAMMARS, (int64_t)now.grammars);
    *last = now;
}

void di_engine_refresh_metrics(di_engine *engine) {
    pthread_mutex_lock(&engine->refreshing);
    if (engine->disk) set_disk_metrics(engine);
    set_grammar_metrics(engine);
    pthread_mutex_unlock(&engine->refreshing);
}

static const char *state_name(di_request_state state) {
    switch (state) {
    case DI_REQUEST_QUEUED:
        return "queued";
    case DI_REQUEST_RESTORING:
        return "restoring";
    case DI_REQUEST_PREFILL:
        return "prefill";
    case DI_REQUEST_DECODE:
        return "decode";
    case DI_REQUEST_SWAPPED:
        return "swapped";
    case DI_REQUEST_FINISHED:
        break;
    }
    return "finished";
}

static void show(const di_request *request, di_live_request_reader each, void *arg) {
    di_request_state state = atomic_load_explicit(&request->state, memory_order_relaxed);
    if (state == DI_REQUEST_FINISHED) return;
    di_live_request live = {
        .id = request->id ? request->id : "",
        .state = state_name(state),
        .owner = request->owner,
        .prompt_tokens = request->prompt_count,
        .cached_tokens = atomic_load_explicit(&request->cached_tokens, memory_order_relaxed),
        .completion_tokens = atomic_load_explicit(&request->completion_tokens, memory_order_relaxed),
        .max_tokens = request->max_tokens,
        .samples = request->sampling.n,
        .priority = request->priority,
        .preemptions = atomic_load_explicit(&request->preemptions, memory_order_relaxed),
        .age_ms = ms_since(request->submitted_ns, di_now_ns()),
    };
    each(arg, &live);
}

di_status di_engine_each_request(const di_engine *engine, di_live_request_reader each, void *arg, di_error *error) {
    di_hub *hub = engine->hub;
    uint32_t count = 0;
    pthread_mutex_lock(&hub->mutex);
    di_request **held = malloc((hub->unfinished + 1) * sizeof *held);
    for (di_request *request = hub->oldest; held && request; request = request->newer) {
        atomic_fetch_add_explicit(&request->references, 1, memory_order_relaxed);
        held[count++] = request;
    }
    pthread_mutex_unlock(&hub->mutex);
    if (!held) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the list of requests");
    for (uint32_t i = 0; i < count; i++) {
        show(held[i], each, arg);
        di_request_release(held[i]);
    }
    free((void *)held);
    return DI_OK;
}
