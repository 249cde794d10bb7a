/* events.c - packed event records in reusable blocks. */
#include "engine/events.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

enum { BLOCK_BYTES = 16 * 1024 };

struct di_event_block {
    di_event_block *next;
    size_t capacity, used, read;
    _Alignas(16) uint8_t data[];
};

/* A record: this, then `top`, ids and confidences of drafts, then the text with a terminating zero, padded to 16 bytes.
 */
typedef struct di_event_record {
    size_t bytes;
    di_event_kind kind;
    int32_t sample, token_id, stop_token_id;
    int64_t position;
    size_t text_length, top_count;
    di_draft_record drafts; /* its pointers say only what is there */
    float logprob;
    di_finish_reason finish_reason;
    const char *stop_string;
    bool has_logits_hash;
    uint64_t logits_hash, seed;
    di_usage usage;
    di_timings timings;
    di_status status;
} di_event_record;

static size_t round_up(size_t n) {
    return (n + 15) & ~(size_t)15;
}

di_status di_condition_init(pthread_cond_t *condition, di_error *error) {
    pthread_condattr_t attributes;
    int failed = pthread_condattr_init(&attributes);
    if (!failed) {
        failed = pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        if (!failed) failed = pthread_cond_init(condition, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    if (failed) return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot make a condition variable");
    return DI_OK;
}

bool di_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until_ns) {
    if (until_ns == INT64_MAX) return pthread_cond_wait(condition, mutex) == 0;
    struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    return pthread_cond_timedwait(condition, mutex, &until) == 0;
}

di_status di_events_init(di_event_queue *queue, di_error *error) {
    memset(queue, 0, sizeof *queue);
    int failed = pthread_mutex_init(&queue->mutex, NULL);
    if (failed) return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot make a mutex");
    di_status status = di_condition_init(&queue->changed, error);
    if (status != DI_OK) pthread_mutex_destroy(&queue->mutex);
    return status;
}

void di_events_destroy(di_event_queue *queue) {
    for (di_event_block *block = queue->head, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(queue->spare);
    pthread_cond_destroy(&queue->changed);
    pthread_mutex_destroy(&queue->mutex);
}

/* Block with room for `bytes` at its end. Mutex held. */
static di_event_block *block_for(di_event_queue *queue, size_t bytes) {
    di_event_block *tail = queue->tail;
    if (tail && tail->capacity - tail->used >= bytes) return tail;
    di_event_block *block = NULL;
    if (queue->spare && queue->spare->capacity >= bytes) {
        block = queue->spare;
        queue->spare = NULL;
    } else {
        size_t capacity = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        block = malloc(sizeof *block + capacity);
        if (!block) return NULL;
        block->capacity = capacity;
    }
    block->next = NULL;
    block->used = block->read = 0;
    if (tail)
        tail->next = block;
    else
        queue->head = block;
    queue->tail = block;
    return block;
}

void di_events_mute(di_event_queue *queue) {
    pthread_mutex_lock(&queue->mutex);
    queue->on_ready = NULL;
    pthread_mutex_unlock(&queue->mutex);
}

static bool has_event(const di_event_queue *queue) {
    return queue->head && queue->head->read < queue->head->used;
}

/* Mutex held. */
static void tell_reader(di_event_queue *queue, bool was_readable) {
    if (queue->waits) pthread_cond_signal(&queue->changed);
    queue->waits = false;
    if (!was_readable && queue->on_ready) queue->on_ready(queue->on_ready_arg);
}

static size_t ids_bytes(const di_draft_record *drafts) {
    return drafts->count * sizeof *drafts->token_ids;
}

static size_t confidence_bytes(const di_draft_record *drafts) {
    return drafts->confidence ? drafts->count * sizeof *drafts->confidence : 0;
}

/* Copies a list behind the record and goes on behind it. */
static uint8_t *put(uint8_t *at, const void *list, size_t bytes) {
    if (bytes) memcpy(at, list, bytes);
    return at + bytes;
}

bool di_events_push(di_event_queue *queue, const di_event *event) {
    size_t top_bytes = event->top_count * sizeof(di_logprob);
    size_t lists = top_bytes + ids_bytes(&event->drafts) + confidence_bytes(&event->drafts);
    size_t bytes = round_up(sizeof(di_event_record) + lists + event->text_length + 1);
    pthread_mutex_lock(&queue->mutex);
    bool was_readable = has_event(queue);
    di_event_block *block = block_for(queue, bytes);
    if (block) {
        di_event_record *record = (di_event_record *)(void *)(block->data + block->used);
        *record = (di_event_record){
            .bytes = bytes,
            .kind = event->kind,
            .sample = event->sample,
            .token_id = event->token_id,
            .stop_token_id = event->stop_token_id,
            .position = event->position,
            .text_length = event->text_length,
            .top_count = event->top_count,
            .drafts = event->drafts,
            .logprob = event->logprob,
            .finish_reason = event->finish_reason,
            .stop_string = event->stop_string,
            .has_logits_hash = event->has_logits_hash,
            .logits_hash = event->logits_hash,
            .seed = event->seed,
            .usage = event->usage,
            .timings = event->timings,
            .status = event->status,
        };
        uint8_t *payload = (uint8_t *)(record + 1);
        payload = put(payload, event->top, top_bytes);
        payload = put(payload, event->drafts.token_ids, ids_bytes(&event->drafts));
        payload = put(payload, event->drafts.confidence, confidence_bytes(&event->drafts));
        *put(payload, event->text, event->text_length) = 0;
        block->used += bytes;
        atomic_store_explicit(&queue->place, block->data + block->used, memory_order_relaxed);
        atomic_fetch_add_explicit(&queue->waiting, bytes, memory_order_relaxed);
    } else {
        queue->incomplete = true;
    }
    tell_reader(queue, was_readable);
    pthread_mutex_unlock(&queue->mutex);
    return block != NULL;
}

void di_events_close(di_event_queue *queue) {
    pthread_mutex_lock(&queue->mutex);
    bool was_readable = has_event(queue) || queue->closed;
    queue->closed = true;
    tell_reader(queue, was_readable);
    pthread_mutex_unlock(&queue->mutex);
}

uint64_t di_events_waiting(const di_event_queue *queue) {
    return atomic_load(&queue->waiting);
}

/* Blocks whose records were all handed out earlier. Only now may they be reused: the reader's loan has ended. */
static void drop_read_blocks(di_event_queue *queue) {
    while (queue->head && queue->head->read == queue->head->used) {
        di_event_block *block = queue->head;
        if (block == queue->tail) {
            block->used = block->read = 0;
            atomic_store_explicit(&queue->place, block->data, memory_order_relaxed);
            return;
        }
        queue->head = block->next;
        if (!queue->spare && block->capacity == BLOCK_BYTES)
            queue->spare = block;
        else
            free(block);
    }
}

di_take di_events_take(di_event_queue *queue, int64_t timeout_ms, di_event *event, uint64_t *waiting) {
    int64_t until = timeout_ms < 0 || timeout_ms > INT64_MAX / 4000000 ? INT64_MAX : di_now_ns() + timeout_ms * 1000000;
    pthread_mutex_lock(&queue->mutex);
    drop_read_blocks(queue);
    while (!has_event(queue) && !queue->closed && timeout_ms != 0) {
        queue->waits = true;
        bool woken = di_condition_wait(&queue->changed, &queue->mutex, until);
        drop_read_blocks(queue); /* the event may have had no room in the block that was waited with */
        if (!woken && di_now_ns() >= until) break;
    }
    di_take result = queue->closed ? DI_TAKE_CLOSED : DI_TAKE_NOTHING;
    if (has_event(queue)) {
        const di_event_record *record = (const di_event_record *)(void *)(queue->head->data + queue->head->read);
        const uint8_t *payload = (const uint8_t *)(record + 1);
        memset(event, 0, sizeof *event);
        event->kind = record->kind;
        event->sample = record->sample;
        event->position = record->position;
        event->token_id = record->token_id;
        event->top = record->top_count ? (const di_logprob *)(const void *)payload : NULL;
        event->top_count = record->top_count;
        payload += record->top_count * sizeof(di_logprob);
        event->drafts = record->drafts;
        event->drafts.token_ids = record->drafts.count ? (const int32_t *)(const void *)payload : NULL;
        payload += ids_bytes(&record->drafts);
        event->drafts.confidence = confidence_bytes(&record->drafts) ? (const float *)(const void *)payload : NULL;
        event->text = (const char *)payload + confidence_bytes(&record->drafts);
        event->text_length = record->text_length;
        event->logprob = record->logprob;
        event->finish_reason = record->finish_reason;
        event->stop_token_id = record->stop_token_id;
        event->stop_string = record->stop_string;
        event->has_logits_hash = record->has_logits_hash;
        event->logits_hash = record->logits_hash;
        event->seed = record->seed;
        event->usage = record->usage;
        event->timings = record->timings;
        event->status = record->status;
        queue->head->read += record->bytes;
        atomic_fetch_sub(&queue->waiting, record->bytes);
        result = DI_TAKE_EVENT;
    }
    if (waiting) *waiting = queue->waiting;
    pthread_mutex_unlock(&queue->mutex);
    return result;
}
