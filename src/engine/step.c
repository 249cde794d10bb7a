/* step.c - what a step holds, and what it made true: decode rows first, then prompt rows within the budget. */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

/* ---------------------------------------------------------------- items to sample */

di_batch *di_current_batch(di_engine *engine) {
    return &engine->batches[engine->batch];
}

/* Room for the lists of best ids; grows while requests with more of them come. */
static bool widen_top(di_engine *engine, uint32_t top) {
    di_batch *batch = di_current_batch(engine);
    if (top > batch->top_stride) batch->top_stride = top;
    uint64_t need = (uint64_t)batch->capacity * batch->top_stride;
    if (!di_speculation_widen(engine->speculation, batch->top_stride)) return false;
    if (need <= batch->top_capacity) return true;
    di_sample_top *grown = realloc(batch->top, need * sizeof *grown);
    if (!grown) return false;
    batch->top = grown;
    batch->top_capacity = need;
    return true;
}

/* Items that report the log-probability of the prompt token after each of `count` rows from position `done` on. */
static void add_prompt_items(di_engine *engine, di_sequence *s, uint32_t done, uint32_t count) {
    const di_request *request = s->request;
    di_batch *batch = di_current_batch(engine);
    for (uint32_t i = 0; i < count && done + i + 1 < request->prompt_count; i++) {
        batch->items[batch->count++] = (di_sample_item){
            .logits_row = s->logits_row + i,
            .position = done + i + 1,
            .temperature = 0,
            .top_p = 1,
            .repetition_penalty = 1,
            .forced = request->prompt[done + i + 1],
            .logprobs = request->sampling.prompt_logprobs,
        };
        s->prompt_items++;
    }
}

/* wanted: there is no second try for this row. */
static void need_mask(di_engine *engine, di_sequence *s, bool wanted) {
    s->constraint.wanted = wanted;
    s->constraint.late = false;
    if (s->constraint.phase == DI_PHASE_BOUND) engine->constrained[engine->constrained_count++] = &s->constraint;
}

static void add_choice(di_engine *engine, di_sequence *s, uint32_t logits_row, bool wanted) {
    di_batch *batch = di_current_batch(engine);
    s->choice_item = batch->count;
    di_sample_item *item = &batch->items[batch->count++];
    di_sampler_next(s->sampler, logits_row, s->ids_count, item);
    di_constraint_next(engine->constraints, &s->constraint, item);
    need_mask(engine, s, wanted);
}

/* ---------------------------------------------------------------- rows */

/* First prompt position that the decoder half sees in compact mode. */
static uint32_t compact_from(const di_engine *engine, const di_request *request) {
    return request->prompt_count > engine->keep ? request->prompt_count - engine->keep : 0;
}

static void fail_request(di_engine *engine, di_request *request, const di_error *error) {
    request->numeric_fault |= error->status == DI_ERR_NUMERIC;
    di_finish_request(engine, request, DI_FINISH_ERROR, error);
}

static void fail_sample(di_engine *engine, di_sequence *s, const di_error *error) {
    s->request->numeric_fault |= error->status == DI_ERR_NUMERIC;
    di_fail_sample(engine, s, error);
}

/* Not prompts, which are committed in stages, drafts, and rows whose mask may be late. */
static bool is_sure(const di_sequence *s) {
    return s->request->prompt_done && !s->drafts.length && s->constraint.phase != DI_PHASE_BOUND;
}

/* False: it has to wait for pages or for the next step, or its request has ended because memory ran out. */
static bool add_rows(di_engine *engine, di_sequence *s, uint32_t count, uint32_t logits_from) {
    uint32_t done = (uint32_t)di_state_length(s->state), prompt = s->request->prompt_count;
    di_error error;
    uint32_t missing = di_state_pages_missing(s->state, done + count);
    if (missing && !di_make_room(engine, s, missing)) return false;
    if (di_state_reserve(s->state, done + count, &error) != DI_OK) {
        /* There is room for pages, but the device has no memory for them. */
        di_fail(&error, DI_ERR_MEMORY, "kv-ram", "out of memory for state pages: %u of %u were taken (--kv-ram)",
                di_page_pool_used(engine->pages), di_page_pool_limit(engine->pages));
        fail_request(engine, s->request, &error);
        return false;
    }
    di_step_entry entry = {
        .state = *di_state_get_view(s->state),
        .tokens = s->ids + done,
        .count = count,
        .logits_from = logits_from,
        .replay_from = -1,
        .taps = done + count + engine->config.sliding_window > prompt && di_speculation_taps(engine, s, count),
        .sure = is_sure(s),
    };
    if (engine->compact && !s->request->score && done < prompt) {
        /* The decoder half sees the last `keep` positions of the prompt only, all of them in its last chunk. */
        if (done + count < prompt)
            entry.decoder_from = UINT32_MAX;
        else
            entry.replay_from = (int32_t)compact_from(engine, s->request);
    }
    di_status status = di_step_add(engine->step, &entry, &s->step_index, &s->logits_row, &error);
    if (status == DI_ERR_LIMIT && di_step_rows(engine->step)) return false; /* compact: no place for the kept rows */
    if (status != DI_OK) {
        fail_request(engine, s->request, &error);
        return false;
    }
    s->rows = count;
    s->sure = entry.sure;
    s->in_step = true;
    s->prompt_items = 0;
    s->first_item = di_current_batch(engine)->count;
    engine->planned[engine->planned_count++] = s;
    return true;
}

bool di_reader_is_behind(const di_engine *engine, di_request *request) {
    /* One that was moved out comes back when there is something to gain. */
    uint64_t limit = request->state == DI_REQUEST_SWAPPED ? engine->event_limit / 2 : engine->event_limit;
    if (request->score || di_events_waiting(&request->events) < limit) return false;
    atomic_store(&request->throttled, true);
    /* The reader may have caught up before it could see the flag. */
    return di_events_waiting(&request->events) >= limit;
}

bool di_may_run(const di_engine *engine, di_request *request) {
    if (request->state != DI_REQUEST_PREFILL && request->state != DI_REQUEST_DECODE) return false;
    if (engine->turn_ns >= request->deadline_ns) return false; /* about to be ended */
    if (request->score) return atomic_load_explicit(&request->window_free, memory_order_acquire);
    return !di_reader_is_behind(engine, request);
}

static uint32_t top_wanted(const di_request *request) {
    int32_t top = request->sampling.logprobs;
    if (request->sampling.prompt_logprobs > top) top = request->sampling.prompt_logprobs;
    return top > 0 ? (uint32_t)top : 0;
}

bool di_is_decoding(const di_sequence *s) {
    return s->state && !s->done && s->choose && (uint32_t)di_state_length(s->state) + 1 == s->goal &&
           s->goal > s->request->prompt_count;
}

/* Its next row, and the drafts behind it as far as there is room. */
static void add_decode(di_engine *engine, di_sequence *s, uint32_t most) {
    uint32_t rows = most - di_step_rows(engine->step);
    uint32_t logits = engine->max_logits - di_step_logits_count(engine->step);
    if (rows > logits) rows = logits;
    if (s->drafts.length >= rows) s->drafts.length = rows ? rows - 1 : 0;
    if (!add_rows(engine, s, 1 + s->drafts.length, 0)) return;
    engine->load.decode_rows += 1 + s->drafts.length;
    if (!s->drafts.length) {
        add_choice(engine, s, s->logits_row, false);
        return;
    }
    di_speculation_add(engine, s);
    need_mask(engine, s, true);
}

/* The next row of every sequence that decodes, up to `most` rows in the step. */
static void plan_decode(di_engine *engine, uint32_t most) {
    uint32_t count = engine->running.count;
    for (uint32_t j = 0; j < count && engine->running.count; j++) {
        di_request *request = engine->running.items[(engine->turn + j) % engine->running.count];
        if (di_step_rows(engine->step) >= most) return;
        if (!di_may_run(engine, request) || !request->prompt_done || !widen_top(engine, top_wanted(request))) continue;
        for (int32_t i = 0; i < request->sampling.n; i++) {
            di_sequence *s = &request->sequences[i];
            if (!di_is_decoding(s) || s->in_step || di_step_rows(engine->step) >= most) continue;
            add_decode(engine, s, most);
        }
    }
}

/* Rows of one chunk: cut to the budget, to the rows of logits that are left, and at the prompt's end. */
static uint32_t chunk_of(const di_engine *engine, const di_sequence *s, uint32_t budget, bool all_logits) {
    uint32_t done = (uint32_t)di_state_length(s->state), count = s->goal - done, prompt = s->request->prompt_count;
    uint32_t logits_left = engine->max_logits - di_step_logits_count(engine->step);
    if (count > budget) count = budget;
    if (count > engine->chunk) count = engine->chunk;
    if (all_logits && count > logits_left) count = logits_left;
    if (done < prompt && count > prompt - done) count = prompt - done;
    return count;
}

/* Rows that one sequence would get if it were the only one. */
static uint32_t budget_of(const di_engine *engine, const di_sequence *s, uint32_t most) {
    uint32_t decode = engine->load.decode_rows;
    double gap = di_step_model_gap(&engine->step_model, decode, engine->max_gap_ms);
    return di_step_model_budget(&engine->step_model, decode, di_state_length(s->state), gap, most);
}

/* A chunk within what is left of the time for prompt rows, `share` (1 .. 0), which it lessens. */
static void plan_chunk(di_engine *engine, di_sequence *s, double *share) {
    di_request *request = s->request;
    bool all_logits = request->score || (request->sampling.prompt_logprobs >= 0 && !request->prompt_done);
    uint32_t rows_left = engine->max_rows - di_step_rows(engine->step);
    if (!rows_left) return;
    double budget = budget_of(engine, s, engine->max_rows);
    uint32_t count = chunk_of(engine, s, (uint32_t)(budget * *share + 0.5), all_logits);
    if (count > rows_left) count = rows_left;
    if (!count) return;
    uint32_t done = (uint32_t)di_state_length(s->state);
    bool chooses = s->choose && done + count == s->goal;
    if (chooses && !all_logits && di_step_logits_count(engine->step) == engine->max_logits) return;
    if (!widen_top(engine, top_wanted(request))) return;
    s->drafts.length = 0;
    if (!add_rows(engine, s, count, all_logits ? 0 : chooses ? count - 1 : count)) return;
    if (all_logits && !request->score) add_prompt_items(engine, s, done, count);
    if (chooses) {
        uint32_t row = s->logits_row + (all_logits ? count - 1 : 0);
        if (request->prompt_done)
            add_choice(engine, s, row, true);
        else /* the prompt's last row serves all samples */
            for (int32_t i = 0; i < request->sampling.n; i++) add_choice(engine, &request->sequences[i], row, true);
    }
    engine->load.prompt_context += (double)count * (done + count / 2.0);
    engine->load.prompt_rows += count;
    *share -= count / budget;
}

static int by_order(const void *a, const void *b) {
    return di_compare_order(*(di_request *const *)a, *(di_request *const *)b);
}

/* A sequence that got no state when the prompt ended, because there were no pages. False: it has to wait, or its
 * request has ended because memory ran out. */
static bool ensure_state(di_engine *engine, di_sequence *s) {
    if (s->state) return true;
    di_prefix_hit hit;
    di_error error = {0};
    if (!s->request->prompt_done || s->done || !di_make_room(engine, s, 2)) return false;
    if (di_start_state(engine, s, &hit, &error) == DI_OK) return true;
    fail_request(engine, s->request, &error);
    return false;
}

static uint32_t count_prompts(const di_engine *engine) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < engine->running.count; i++) count += engine->running.items[i]->state == DI_REQUEST_PREFILL;
    return count;
}

static void plan_prompts(di_engine *engine, uint32_t prompts) {
    double share = 1;
    if (prompts > 1) {
        di_order_all(engine, &engine->running);
        qsort(engine->running.items, engine->running.count, sizeof *engine->running.items, by_order);
    }
    /* Preempting for pages changes the list: look at each place again until the time is used. */
    for (uint32_t i = 0; i < engine->running.count && share > 0; i++) {
        di_request *request = engine->running.items[i];
        if (request->state != DI_REQUEST_PREFILL || !di_may_run(engine, request)) continue;
        for (int32_t j = 0; j < request->sampling.n && share > 0; j++) {
            di_sequence *s = &request->sequences[j];
            if (s->done || s->in_step || !ensure_state(engine, s)) continue;
            if ((uint32_t)di_state_length(s->state) >= s->goal) continue;
            if (di_is_decoding(s) && request->prompt_done) continue;
            plan_chunk(engine, s, &share);
        }
    }
}

bool di_plan_step(di_engine *engine) {
    engine->batch ^= 1;
    di_batch *batch = di_current_batch(engine);
    batch->count = 0;
    engine->planned_count = 0;
    engine->constrained_count = 0;
    engine->load = (di_step_load){0};
    di_step_clear(engine->step);
    if (engine->poison) di_step_poison(engine->step);
    /* However many sequences decode, prompts get a row; with steps of one row, every other step. */
    uint32_t prompts = count_prompts(engine);
    uint32_t kept = !prompts ? 0 : engine->max_rows > 1 ? 1 : engine->turn & 1;
    if (engine->speculation) di_speculate(engine, engine->max_rows - kept);
    plan_decode(engine, engine->max_rows - kept);
    if (prompts) plan_prompts(engine, prompts);
    if (kept) plan_decode(engine, engine->max_rows);
    engine->turn++;
    if (!engine->planned_count) {
        engine->batch ^= 1; /* what the other one holds is not delivered yet */
        return false;
    }
    if (engine->load.prompt_rows) engine->load.prompt_context /= engine->load.prompt_rows;
    double gap = di_step_model_gap(&engine->step_model, engine->load.decode_rows, engine->max_gap_ms);
    double expected = di_step_model_predict(&engine->step_model, &engine->load);
    atomic_store_explicit(&engine->step_budget_ns, (int64_t)(fmax(gap, expected) * 1e9), memory_order_relaxed);
    engine->job = (di_compute_job){.step = engine->step,
                                   .held = engine->constrained_count > 0,
                                   .sample = {.logits = di_step_logits(engine->step),
                                              .vocabulary = engine->info.vocabulary,
                                              .count = batch->count,
                                              .items = batch->items,
                                              .results = batch->results,
                                              .top = batch->top,
                                              .top_stride = batch->top_stride}};
    di_speculation_prepare(engine);
    di_prepare_watch(engine);
    return true;
}

/* ---------------------------------------------------------------- commit */

static void commit_rows(di_engine *engine, di_sequence *s, uint32_t count) {
    di_model_commit(engine->model, engine->step, s->step_index, count, di_state_get_view(s->state));
}

/* Commits prompt rows in stages, so that snapshots stand exactly where they are useful: at a branch point, at regular
 * distances, and one before the prompt's end (the same prompt again finds all but its last token). */
static void commit_prompt(di_engine *engine, di_sequence *s) {
    const di_request *request = s->request;
    uint32_t from = (uint32_t)di_state_length(s->state), to = from + s->rows, end = request->prompt_count;
    bool publish = !request->score && s == &request->sequences[0];
    uint32_t interval = engine->snapshot_interval;
    uint32_t branch = request->hit.known < end - 1 ? request->hit.known : 0;
    while (publish) {
        uint32_t here = (uint32_t)di_state_length(s->state), next = to;
        uint32_t regular = interval ? (here / interval + 1) * interval : UINT32_MAX;
        if (regular < next) next = regular;
        if (branch > here && branch < next) next = branch;
        if (end - 1 > here && end - 1 < next) next = end - 1;
        bool stands = next == regular || next == branch || next == end - 1;
        if (next == to && !stands) break;
        commit_rows(engine, s, next - from);
        di_prefix_publish(engine->cache, request->tenant, s->ids, s->state);
        if (next == to) return;
    }
    commit_rows(engine, s, s->rows);
}

di_status di_fail_numeric(int64_t position, di_error *error) {
    return di_fail(error, DI_ERR_NUMERIC, "logits",
                   "the logits for position %lld hold NaN or infinity; the weights or the input are damaged",
                   (long long)position);
}

di_status di_fail_no_token(const di_sequence *s, di_error *error) {
    if (di_constraint_explain(&s->constraint, error)) return error->status;
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, "sampling_params",
                   "no token may be chosen at output %llu: min_tokens, first_n_token_no_eos and logit_bias exclude all",
                   (unsigned long long)di_sampler_produced(s->sampler));
}

static bool results_ok(di_engine *engine, const di_sequence *s, uint32_t items, di_error *error) {
    const di_batch *batch = di_current_batch(engine);
    for (uint32_t i = s->first_item; i < s->first_item + items; i++)
        if (batch->results[i].numeric_fault) {
            di_fail_numeric(batch->items[i].position, error);
            return false;
        }
    return true;
}

/* Takes the id that was chosen for a sequence; its text is delivered later. */
static bool take_choice(di_engine *engine, di_sequence *s, di_error *error) {
    const di_sample_result *result = &di_current_batch(engine)->results[s->choice_item];
    if (result->token_id < 0) {
        di_fail_no_token(s, error);
        return false;
    }
    s->choice.waiting = true;
    s->choice.item = s->choice_item;
    s->choice.drafted = false;
    s->choice.count = 1;
    s->choice.position = s->ids_count;
    s->choice.reason = di_sampler_commit(s->sampler, result, &s->choice.stop_token);
    s->done = s->choice.reason != DI_FINISH_NONE;
    s->ids[s->ids_count++] = result->token_id;
    uint32_t prompt = s->request->prompt_count;
    if (di_constraint_commit(engine->constraints, &s->constraint, s->ids + prompt, s->ids_count - prompt, error) !=
        DI_OK)
        return false;
    s->goal = s->ids_count;
    s->choose = true;
    engine->chosen[engine->chosen_count++] = s;
    return true;
}

/* The other samples of the request start from the state that the first one reached. One for which there is no page
 * stays without a state and computes the prompt itself when there are pages again. */
static di_status share_prompt(di_engine *engine, di_request *request, di_error *error) {
    di_status status = DI_OK;
    for (int32_t i = 1; status == DI_OK && i < request->sampling.n; i++) {
        di_sequence *s = &request->sequences[i];
        if (!di_make_room(engine, s, 1)) continue;
        status = di_state_new(engine->pages, (uint32_t)(request->prompt_count + request->max_tokens), &s->state, error);
        if (status == DI_OK) status = di_state_fork(request->sequences[0].state, s->state, error);
    }
    return status;
}

static di_status end_of_prompt(di_engine *engine, di_request *request, di_error *error) {
    request->prompt_done = true;
    request->prompt_done_ns = di_now_ns();
    di_observe(&engine->metrics, DI_HISTOGRAM_PREFILL_TIME,
               (double)(request->prompt_done_ns - request->admitted_ns) / 1e9);
    if (!request->max_tokens) return DI_OK;
    di_status status = share_prompt(engine, request, error);
    for (int32_t i = 0; status == DI_OK && i < request->sampling.n; i++) {
        di_sequence *s = &request->sequences[i];
        if (!take_choice(engine, s, error)) fail_sample(engine, s, error);
        if (s->state || s->done) continue;
        s->goal = request->prompt_count;
        s->choose = false;
    }
    return status;
}

static di_status emit_prompt_rows(di_engine *engine, di_sequence *s, uint32_t done, di_error *error) {
    di_request *request = s->request;
    const di_batch *batch = di_current_batch(engine);
    bool ok = true;
    if (!request->reported) {
        ok = di_emit_prompt_token(engine, request, batch, 0, UINT32_MAX);
        request->reported = 1;
    }
    for (uint32_t i = 0; ok && i < s->prompt_items; i++) {
        if (done + i + 1 < request->reported) continue;
        ok = di_emit_prompt_token(engine, request, batch, done + i + 1, s->first_item + i);
        request->reported = done + i + 2;
    }
    return ok ? DI_OK : di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the request's events");
}

static di_status commit_sequence(di_engine *engine, di_sequence *s, di_error *error) {
    di_request *request = s->request;
    if (s->drafts.length) {
        di_count_served(engine, request, s->rows);
        return di_speculation_commit(engine, s, error);
    }
    if (s->constraint.late) { /* the row is computed again */
        s->constraint.late = false;
        commit_rows(engine, s, 0);
        return DI_OK;
    }
    uint32_t done = (uint32_t)di_state_length(s->state) - (s->sure ? s->rows : 0);
    bool reaches = done + s->rows == s->goal, prompt_end = reaches && !request->prompt_done;
    uint32_t choices = !reaches || !s->choose ? 0 : prompt_end ? (uint32_t)request->sampling.n : 1;
    if (!results_ok(engine, s, s->prompt_items + choices, error)) return error->status;
    if (!request->prompt_done)
        commit_prompt(engine, s);
    else if (!s->sure)
        commit_rows(engine, s, s->rows);
    engine->committed_rows += s->rows;
    di_count_served(engine, request, s->rows);
    di_status status = DI_OK;
    if (request->score)
        status = di_score_rows(engine, request, done, s->rows, s->logits_row, error);
    else if (request->sampling.prompt_logprobs >= 0 && !request->prompt_done)
        status = emit_prompt_rows(engine, s, done, error);
    if (status != DI_OK || !reaches) return status;
    if (request->score) {
        di_finish_request(engine, request, DI_FINISH_NONE, NULL);
        return DI_OK;
    }
    if (prompt_end) return end_of_prompt(engine, request, error);
    if (s->choose) return take_choice(engine, s, error) ? DI_OK : error->status;
    s->goal = s->ids_count; /* a preempted sequence has caught up; its newest id is the next row */
    s->choose = true;
    return DI_OK;
}

/* PREFILL while a sequence has more to compute than its next row. */
static void update_state(di_engine *engine, di_request *request) {
    if (request->state != DI_REQUEST_PREFILL && request->state != DI_REQUEST_DECODE) return;
    if (request->prompt_done && !request->max_tokens) {
        di_finish_request(engine, request, DI_FINISH_LENGTH, NULL);
        return;
    }
    bool behind = !request->prompt_done;
    for (int32_t i = 0; i < request->sampling.n; i++) {
        const di_sequence *s = &request->sequences[i];
        behind |= request->prompt_done && !s->done && !di_is_decoding(s);
    }
    di_request_state next = behind ? DI_REQUEST_PREFILL : DI_REQUEST_DECODE;
    if (next != request->state) request->state = next;
}

/* Ahead of sequence i: what the next ones will need. */
static void fetch_ahead(const di_engine *engine, uint32_t i) {
    if (i + DI_FETCH_FAR < engine->planned_count)
        di_fetch(engine->planned[i + DI_FETCH_FAR], offsetof(di_sequence, drafts));
    if (i + DI_FETCH_NEAR >= engine->planned_count) return;
    const di_sequence *s = engine->planned[i + DI_FETCH_NEAR];
    di_fetch(s->request, offsetof(di_request, stops));
    di_fetch(&s->request->events, 64);
    di_fetch(s->state, 128);
    di_fetch(s->sampler, 192);
    if (s->ids) di_fetch(&s->ids[s->ids_count], sizeof *s->ids);
}

/* What was held back until the step was over: the sequence, and samples that it chose for. */
static void release_held(di_engine *engine, di_sequence *s) {
    di_release_sequence(engine, s);
    for (int32_t i = 0; i < s->request->sampling.n; i++)
        if (s->request->sequences[i].doomed) di_release_sequence(engine, &s->request->sequences[i]);
    engine->ended = true;
}

void di_commit_step(di_engine *engine) {
    engine->chosen_count = 0;
    engine->committed_rows = 0;
    di_speculation_learn(engine);
    for (uint32_t i = 0; i < engine->planned_count; i++) {
        fetch_ahead(engine, i);
        di_sequence *s = engine->planned[i];
        di_request *request = s->request;
        s->in_step = false;
        /* The state holds these rows, whatever became of the request meanwhile. */
        if (s->sure && engine->job.computed) commit_rows(engine, s, s->rows);
        if (s->doomed || request->state == DI_REQUEST_FINISHED || s->done) {
            release_held(engine, s);
            continue;
        }
        di_error error;
        di_status status = engine->job.status;
        bool alone = status == DI_OK && request->prompt_done && !request->score; /* a fault is this sample's */
        if (status != DI_OK)
            error = engine->job.error;
        else
            status = commit_sequence(engine, s, &error);
        if (status != DI_OK && alone)
            fail_sample(engine, s, &error);
        else if (status != DI_OK)
            fail_request(engine, request, &error);
        update_state(engine, request);
    }
    di_step_model_observe(&engine->step_model, &engine->load, (double)engine->job.compute_ns / 1e9);
    di_count(&engine->metrics, DI_COUNT_COMPUTED_ROWS, engine->committed_rows);
    di_count(&engine->metrics, DI_COUNT_STEPS, 1);
    di_observe(&engine->metrics, DI_HISTOGRAM_STEP_COMPUTE, (double)engine->job.compute_ns / 1e9);
    di_observe(&engine->metrics, DI_HISTOGRAM_STEP_ROWS, engine->load.decode_rows + engine->load.prompt_rows);
}
