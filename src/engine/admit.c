/* admit.c - who runs: the queue, admission by pages and places, preemption by swapping state objects.
 *
 * No request can block the others for ever. Admission counts the pages that the running ones still have to take for
 * their prompts. Beyond that there is one order of importance (level, then arrival): for its pages a request may move
 * out less important ones, as state objects in the swap space or, when that is full, by forgetting their states and
 * computing them again (the bits are the same); a less important one waits. The most important one fits the pool alone,
 * so there is always one that goes on.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/engine_internal.h"

/* ---------------------------------------------------------------- lists */

bool di_list_add(di_request_list *list, di_request *request) {
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? 2 * list->capacity : 64;
        di_request **grown = realloc(list->items, capacity * sizeof *grown);
        if (!grown) return false;
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = request;
    return true;
}

void di_list_remove(di_request_list *list, uint32_t index) {
    memmove(list->items + index, list->items + index + 1, (list->count - index - 1) * sizeof *list->items);
    list->count--;
}

/* ---------------------------------------------------------------- the queue */

void di_enqueue(di_engine *engine, di_request *inbox) {
    while (inbox) {
        di_request *request = inbox;
        inbox = inbox->next;
        di_count(&engine->metrics, DI_COUNT_REQUESTS_SUBMITTED, 1);
        request->serial = engine->arrivals++;
        request->waiting_ns = request->submitted_ns;
        if (di_join_shares(engine, request) && di_list_add(&engine->queue, request)) continue;
        di_error error = {0};
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the request queue");
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
        di_request_release(request);
    }
}

/* ---------------------------------------------------------------- starting */

static di_status make_sequence(di_engine *engine, di_request *request, int32_t index, di_error *error) {
    di_sequence *sequence = &request->sequences[index];
    uint64_t positions = request->prompt_count + request->max_tokens;
    sequence->request = request;
    sequence->live = true;
    sequence->ids = malloc(positions * sizeof *sequence->ids); /* untouched memory costs nothing */
    if (!sequence->ids)
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for %zu token ids", (size_t)positions);
    memcpy(sequence->ids, request->prompt, request->prompt_count * sizeof *sequence->ids);
    sequence->ids_count = sequence->goal = request->prompt_count;
    sequence->choose = request->max_tokens > 0 && !request->score;
    if (request->score || !request->max_tokens) return DI_OK;
    di_sampler_params params = {
        .sampling = &request->sampling,
        .seed = request->seed,
        .sample_index = (uint32_t)index,
        .prompt = request->prompt,
        .prompt_count = request->prompt_count,
        .eos = engine->config.eos_token_ids,
        .eos_count = engine->config.eos_count,
        .vocabulary = engine->info.vocabulary,
        .max_tokens = (int64_t)request->max_tokens,
    };
    di_status status = di_sampler_new(&params, &sequence->sampler, error);
    if (status != DI_OK) return status;
    if (engine->tokenizer) di_detokenizer_init(&sequence->detokenizer, engine->tokenizer);
    if (!di_stop_matcher_init(&sequence->stop, request->arena, &request->stops, request->stop_arm < 0))
        return di_fail(error, DI_ERR_MEMORY, "stop", "out of memory for stop strings");
    status = di_drafts_start(engine, sequence, error);
    if (status != DI_OK) return status;
    return di_constraint_start(engine->constraints, request->grammar, &request->sampling.so_args, &sequence->constraint,
                               error);
}

static uint32_t positions_of(const di_request *request) {
    return (uint32_t)(request->prompt_count + request->max_tokens);
}

/* Ids among which a cached state may be looked for. Compact: a state behind the prompt's end has no decoder windows,
 * while this sequence had some there. */
static uint32_t reusable(const di_engine *engine, const di_sequence *sequence) {
    uint32_t prompt = sequence->request->prompt_count;
    return engine->compact && sequence->goal > prompt ? prompt : sequence->goal;
}

di_status di_start_state(di_engine *engine, di_sequence *sequence, di_prefix_hit *hit, di_error *error) {
    di_request *request = sequence->request;
    di_status status = di_state_new(engine->pages, positions_of(request), &sequence->state, error);
    if (status != DI_OK) return status;
    *hit = (di_prefix_hit){.reason = DI_MISS_DISABLED};
    if (request->score || request->sampling.prompt_logprobs >= 0) return DI_OK;
    di_prefix_lookup(engine->cache, request->tenant, sequence->ids, reusable(engine, sequence), sequence->state, hit);
    di_count(&engine->metrics, DI_COUNT_CACHE_LOOKUPS, 1);
    di_count(&engine->metrics, DI_COUNT_CACHE_HITS, hit->cached > 0);
    di_count(&engine->metrics, DI_COUNT_CACHED_TOKENS_RAM, hit->cached);
    return DI_OK;
}

/* A shorter gain from the disk is not worth the wait. */
enum { LEAST_RESTORED = 32, ADOPTED_BYTES = 8 << 20 };

/* Starts reading when the disk tier reaches further than memory. */
static void start_restore(di_engine *engine, di_sequence *sequence) {
    di_request *request = sequence->request;
    if (!engine->disk || request->score || request->sampling.prompt_logprobs >= 0) return;
    uint32_t here = (uint32_t)di_state_length(sequence->state);
    uint32_t there = di_disk_find(engine->disk, request->tenant, sequence->ids, reusable(engine, sequence), here);
    if (there < here + LEAST_RESTORED) return;
    sequence->load = di_disk_load_start(engine->disk, request->tenant, sequence->ids, there);
    sequence->load_position = there;
    sequence->adopted = UINT32_MAX;
    if (!sequence->load) return;
    request->state = DI_REQUEST_RESTORING;
    request->restore_until_ns = di_now_ns() + engine->restore_ms * 1000000;
}

/* What memory had of it is counted already. The record of the request tells of the better of the two. */
static void count_restored(di_engine *engine, di_request *request, uint32_t position) {
    di_prefix_hit *hit = &request->hit;
    if (request->prompt_done) {
        di_count(&engine->metrics, DI_COUNT_CACHED_TOKENS_DISK, position);
        return;
    }
    di_count(&engine->metrics, DI_COUNT_CACHED_TOKENS_DISK, position - hit->cached);
    di_count(&engine->metrics, DI_COUNT_CACHE_HITS, hit->cached == 0);
    hit->cached = position;
    if (position > hit->diverged_at) {
        hit->diverged_at = position;
        hit->reason = DI_MISS_END;
    }
    if (position == request->prompt_count - 1) hit->reason = DI_MISS_NONE;
}

/* Takes over what was read, a piece at a time beside others. True when the sequence can go on. */
static bool adopt(di_engine *engine, di_sequence *s, uint64_t *bytes) {
    di_request *request = s->request;
    if (s->adopted == UINT32_MAX) di_state_reset(s->state);
    di_adopt result = di_prefix_adopt(engine->cache, request->tenant, s->ids, s->load_position, s->load, s->state,
                                      &s->adopted, bytes);
    if (result == DI_ADOPT_MORE) return false;
    bool loaded = result == DI_ADOPT_DONE;
    if (loaded) count_restored(engine, request, s->load_position);
    if (!request->prompt_done) request->cached_tokens = loaded ? s->load_position : 0;
    return true;
}

/* True when the sequence need not wait any longer. */
static bool poll_restore(di_engine *engine, di_sequence *s, bool late, uint64_t *bytes) {
    di_disk_result result = di_disk_load_poll(s->load);
    if (result == DI_DISK_PENDING && !late) return false;
    if (result == DI_DISK_LOADED && (!*bytes || !adopt(engine, s, bytes))) return false;
    int64_t since = s->request->restore_until_ns - engine->restore_ms * 1000000;
    di_observe(&engine->metrics, DI_HISTOGRAM_RESTORE_TIME, (double)(di_now_ns() - since) / 1e9);
    di_disk_load_free(s->load);
    s->load = NULL;
    return true;
}

bool di_poll_restores(di_engine *engine) {
    uint64_t bytes = ADOPTED_BYTES; /* of all of them in one turn */
    for (uint32_t i = 0; engine->disk && i < engine->running.count; i++) {
        di_request *request = engine->running.items[i];
        if (request->state != DI_REQUEST_RESTORING) continue;
        bool late = di_now_ns() >= request->restore_until_ns, waiting = false;
        for (int32_t j = 0; j < request->sampling.n; j++) {
            di_sequence *s = &request->sequences[j];
            if (s->load && !poll_restore(engine, s, late, &bytes)) waiting = true;
        }
        if (!waiting) request->state = DI_REQUEST_PREFILL;
    }
    return !bytes; /* there may be more */
}

static di_status start_request(di_engine *engine, di_request *request, di_error *error) {
    request->sequences = di_arena_zalloc(request->arena, (size_t)request->sampling.n * sizeof(di_sequence));
    if (!request->sequences) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the request");
    request->live = (uint32_t)request->sampling.n;
    di_status status = DI_OK;
    for (int32_t i = 0; status == DI_OK && i < request->sampling.n; i++)
        status = make_sequence(engine, request, i, error);
    if (status == DI_OK) status = di_start_state(engine, &request->sequences[0], &request->hit, error);
    request->cached_tokens = request->hit.cached;
    if (status == DI_OK) start_restore(engine, &request->sequences[0]);
    return status;
}

/* ---------------------------------------------------------------- preemption */

/* Moves a running request out: state objects into the swap space as far as it goes. */
static void swap_out(di_engine *engine, uint32_t index) {
    di_request *request = engine->running.items[index];
    for (int32_t i = 0; i < request->sampling.n; i++) {
        di_sequence *s = &request->sequences[i];
        s->drafts.length = 0;
        if (!s->state) continue;
        di_error error = {0};
        bool fits = engine->swap_bytes < engine->swap_limit && di_state_length(s->state) > 0;
        if (fits && di_state_serialise(s->state, &s->swapped, &error) == DI_OK &&
            engine->swap_bytes + s->swapped.length <= engine->swap_limit) {
            engine->swap_bytes += s->swapped.length;
            di_count(&engine->metrics, DI_COUNT_SWAPPED_BYTES, s->swapped.length);
        } else {
            di_text_free(&s->swapped);
            di_count(&engine->metrics, DI_COUNT_RECOMPUTES, 1);
            /* What is computed again starts from where the prefix cache or the disk tier still has it. */
            if (s->ids && di_state_length(s->state) > 0 && engine->disk)
                di_prefix_publish(engine->cache, request->tenant, s->ids, s->state);
        }
        di_state_free(s->state);
        s->state = NULL;
        /* Everything but the newest id is computed again if it has to be; that id was chosen already. */
        if (s->ids_count > request->prompt_count) {
            s->goal = s->ids_count - 1;
            s->choose = false;
        }
    }
    request->preemptions++;
    di_count(&engine->metrics, DI_COUNT_PREEMPTIONS, 1);
    if (di_list_add(&engine->swapped, request)) {
        di_list_remove(&engine->running, index);
        engine->sequences -= (uint32_t)request->sampling.n;
        request->state = DI_REQUEST_SWAPPED;
        request->waiting_ns = di_now_ns();
        di_order_one(engine, request, request->waiting_ns);
        return;
    }
    di_error error = {0};
    di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the list of preempted requests");
    di_finish_request(engine, request, DI_FINISH_ERROR, &error);
}

static bool in_step(const di_request *request) {
    for (int32_t i = 0; request->sequences && i < request->sampling.n; i++)
        if (request->sequences[i].in_step) return true;
    return false;
}

/* A request that only wants to start moves out those of lower priority, unless they have waited enough to be above it:
 * age protects, but pushes nobody out, or all that wait would take turns at losing what they have computed. */
static bool gives_way_to_start(const di_engine *engine, di_request *r, const di_request *other, int64_t now) {
    if (r == other || r->state == DI_REQUEST_FINISHED || r->state == DI_REQUEST_RESTORING || in_step(r)) return false;
    if (di_reader_is_behind(engine, r)) return true;
    return r->priority < other->priority && di_level_of(engine, r, now) < di_level_of(engine, other, now);
}

/* The running request that is moved out for `other`: one whose reader is behind, else the least important one, if it is
 * less important than `other`. -1 = none. */
static int64_t find_victim(const di_engine *engine, const di_request *other, bool starting) {
    int64_t best = -1, now = di_now_ns();
    uint64_t serial = starting ? UINT64_MAX : other->serial;
    double level = di_level_of(engine, other, now);
    for (uint32_t i = 0; i < engine->running.count; i++) {
        di_request *r = engine->running.items[i];
        if (starting && !gives_way_to_start(engine, r, other, now)) continue;
        if (r == other || r->state == DI_REQUEST_FINISHED || r->state == DI_REQUEST_RESTORING || in_step(r)) continue;
        if (di_reader_is_behind(engine, r)) return i;
        double its = di_level_of(engine, r, now);
        if (its > level || (its == level && r->serial <= serial)) continue;
        level = its;
        serial = r->serial;
        best = i;
    }
    return best;
}

bool di_make_room(di_engine *engine, const di_sequence *sequence, uint32_t pages) {
    while (!di_prefix_make_room(engine->cache, pages)) {
        int64_t victim = find_victim(engine, sequence->request, false);
        if (victim < 0) return false;
        swap_out(engine, (uint32_t)victim);
    }
    return true;
}

/* ---------------------------------------------------------------- admission */

static uint32_t pages_for(const di_engine *engine, uint32_t positions) {
    uint32_t page = di_model_layout(engine->model)->page_tokens;
    return positions / page + (positions % page != 0);
}

/* Pages that a request needs to get going: what it has to compute before the next token, and one more a sample. */
static uint32_t pages_wanted(const di_engine *engine, const di_request *request) {
    uint32_t n = (uint32_t)request->sampling.n;
    if (!request->sequences) return pages_for(engine, request->prompt_count) + n;
    uint32_t pages = n;
    for (uint32_t i = 0; i < n; i++)
        if (!request->sequences[i].done) pages += pages_for(engine, request->sequences[i].goal);
    return pages;
}

/* Pages that a running request was admitted for and does not have yet: up to its goals, and one of growth a sample. */
static uint32_t pages_promised_to(const di_engine *engine, const di_request *r) {
    uint32_t pages = (uint32_t)r->sampling.n;
    for (int32_t j = 0; r->sequences && j < r->sampling.n; j++) {
        const di_sequence *s = &r->sequences[j];
        if (s->done || (j > 0 && !r->prompt_done)) continue;
        pages += s->state ? di_state_pages_missing(s->state, s->goal) : pages_for(engine, s->goal);
    }
    return pages;
}

static uint32_t pages_promised(const di_engine *engine) {
    uint32_t pages = 0;
    for (uint32_t i = 0; i < engine->running.count; i++) pages += pages_promised_to(engine, engine->running.items[i]);
    return pages;
}

/* Whether there would be room if all that may be moved out for the request were: otherwise nobody is. */
static bool could_have_room(const di_engine *engine, const di_request *request) {
    int64_t now = di_now_ns();
    uint32_t places = engine->sequences + (uint32_t)request->sampling.n, stay = 0;
    uint32_t need = pages_wanted(engine, request);
    double pages = di_page_pool_limit(engine->pages) - di_page_pool_used(engine->pages);
    pages += di_page_pool_spare(engine->pages);
    for (uint32_t i = 0; i < engine->running.count; i++) {
        di_request *r = engine->running.items[i];
        if (!gives_way_to_start(engine, r, request, now)) {
            need += pages_promised_to(engine, r);
            stay++;
            continue;
        }
        places -= (uint32_t)r->sampling.n;
        for (int32_t j = 0; r->sequences && j < r->sampling.n; j++)
            if (r->sequences[j].state) pages += di_state_pages_owned(r->sequences[j].state);
    }
    return !stay || (places <= engine->max_seqs && pages + 0.5 >= need);
}

static bool has_room_now(di_engine *engine, const di_request *request) {
    return engine->sequences + (uint32_t)request->sampling.n <= engine->max_seqs &&
           di_prefix_make_room(engine->cache, pages_wanted(engine, request) + pages_promised(engine));
}

/* Room for the request beside those that run: a place for every sample and its pages. Lower levels give way. Alone it
 * is given whatever there is: parameters.c made sure that it fits. */
static bool has_room(di_engine *engine, const di_request *request) {
    if (has_room_now(engine, request)) return true;
    if (!could_have_room(engine, request)) return false;
    while (engine->running.count && !has_room_now(engine, request)) {
        int64_t victim = find_victim(engine, request, true);
        if (victim < 0) return false;
        swap_out(engine, (uint32_t)victim);
    }
    return true;
}

static di_status swap_in(di_engine *engine, di_request *request, di_error *error) {
    di_status status = DI_OK;
    for (int32_t i = 0; status == DI_OK && i < request->sampling.n; i++) {
        di_sequence *s = &request->sequences[i];
        if (s->done || (i > 0 && !request->prompt_done)) continue;
        if (!s->swapped.length) {
            di_prefix_hit hit;
            status = di_start_state(engine, s, &hit, error);
            if (status == DI_OK) start_restore(engine, s);
            continue;
        }
        status = di_state_new(engine->pages, positions_of(request), &s->state, error);
        /* One that is let in because it is alone has to take its pages from the cache itself. */
        if (status == DI_OK) di_prefix_make_room(engine->cache, pages_for(engine, s->goal));
        if (status == DI_OK) status = di_state_restore(s->state, s->swapped.data, s->swapped.length, error);
        engine->swap_bytes -= s->swapped.length;
        di_text_free(&s->swapped);
        if (status == DI_OK && request->prompt_done && (uint32_t)di_state_length(s->state) >= s->goal) {
            s->goal = s->ids_count; /* nothing was lost: the newest id is the next row */
            s->choose = true;
        }
    }
    return status;
}

/* Starts or continues one request of a waiting list. */
static void let_run(di_engine *engine, di_request_list *list, uint32_t index) {
    di_request *request = list->items[index];
    di_error error = {0};
    bool fresh = request->state == DI_REQUEST_QUEUED;
    di_list_remove(list, index);
    engine->sequences += (uint32_t)request->sampling.n;
    int64_t now = di_now_ns();
    request->waited_ns += now - request->waiting_ns;
    request->waiting_ns = 0;
    if (fresh) {
        di_hub_left_queue(engine->hub);
        request->admitted_ns = now;
        di_count(&engine->metrics, DI_COUNT_PROMPT_TOKENS, request->prompt_count);
        di_observe(&engine->metrics, DI_HISTOGRAM_QUEUE_TIME,
                   (double)(request->admitted_ns - request->submitted_ns) / 1e9);
    }
    request->state = DI_REQUEST_PREFILL;
    if (!di_list_add(&engine->running, request)) {
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the list of running requests");
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
        engine->sequences -= (uint32_t)request->sampling.n;
        di_request_release(request);
        return;
    }
    di_status status = fresh ? start_request(engine, request, &error) : swap_in(engine, request, &error);
    if (status != DI_OK)
        di_finish_request(engine, request, DI_FINISH_ERROR, &error);
    else if (fresh && !request->score)
        di_emit_prompt(request);
}

/* One whose reader is behind would only be in the way. One that ended in the list, because its last token was still to
 * be delivered when it was moved out, is reaped from there. */
static int64_t first_in_order(const di_engine *engine, const di_request_list *list) {
    int64_t best = -1;
    for (uint32_t i = 0; i < list->count; i++) {
        di_request *request = list->items[i];
        if (request->state == DI_REQUEST_FINISHED) continue;
        if (best >= 0 && di_compare_order(list->items[best], request) <= 0) continue;
        if (list == &engine->queue || !di_reader_is_behind(engine, request)) best = i;
    }
    return best;
}

/* A preempted request goes before fresh ones of its level. */
static bool goes_before(const di_engine *engine, const di_request *swapped, const di_request *queued) {
    int64_t now = di_now_ns();
    return di_level_of(engine, swapped, now) >= di_level_of(engine, queued, now);
}

void di_admit(di_engine *engine) {
    if (!engine->queue.count && !engine->swapped.count) return;
    di_order_all(engine, &engine->queue);
    di_order_all(engine, &engine->swapped);
    for (;;) {
        int64_t queued = first_in_order(engine, &engine->queue), swapped = first_in_order(engine, &engine->swapped);
        bool old = swapped >= 0 &&
                   (queued < 0 || goes_before(engine, engine->swapped.items[swapped], engine->queue.items[queued]));
        di_request_list *list = old ? &engine->swapped : &engine->queue;
        int64_t index = old ? swapped : queued;
        if (index < 0 || !has_room(engine, list->items[index])) break;
        /* has_room may have moved requests to the list of swapped ones, behind `index`. */
        let_run(engine, list, (uint32_t)index);
    }
}
