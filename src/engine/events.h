/* events.h - the event queue of one request: written by the engine thread, read by one other thread.
 *
 * Records are packed into blocks that are reused, so a reader that keeps up costs no allocation. Text and lists handed
 * out are borrowed until the next di_events_take. The queue knows how many bytes wait; the engine does not plan steps
 * for a request whose reader is too far behind. Functions that do not say who calls them: any thread.
 */
#ifndef DI_ENGINE_EVENTS_H
#define DI_ENGINE_EVENTS_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/status.h"

typedef struct di_event_block di_event_block;

typedef struct di_event_queue {
    pthread_mutex_t mutex;
    _Atomic uint64_t waiting; /* bytes not yet taken; changed with the mutex held */
    di_event_block *tail;
    _Atomic(uint8_t *) place; /* where the next record will likely stand: a hint */
    di_event_block *head, *spare;
    bool waits;      /* the reader, for something to read */
    bool closed;     /* nothing follows what is queued */
    bool incomplete; /* an event was lost because memory ran out */
    void (*on_ready)(
        void *arg); /* may be NULL; called with the mutex held when there is something to read and was not */
    void *on_ready_arg;
    pthread_cond_t changed;
} di_event_queue;

di_status di_events_init(di_event_queue *queue, di_error *error);
void di_events_destroy(di_event_queue *queue);
/* No call of on_ready is running or comes after this. */
void di_events_mute(di_event_queue *queue);

/* Appends a copy of *event (its error is not kept) with its text and list. False when memory ran out. */
bool di_events_push(di_event_queue *queue, const di_event *event);
/* Asks for the memory that the next push will write. Engine thread: only that moves `tail`. */
static inline void di_events_expect(const di_event_queue *queue) {
    enum { LINES = 5 };
    __builtin_prefetch(queue->tail, 1);
    const uint8_t *place = atomic_load_explicit(&queue->place, memory_order_relaxed);
    for (int i = 0; place && i < LINES; i++) __builtin_prefetch(place + i * 64, 1);
}
/* Nothing is pushed after this. */
void di_events_close(di_event_queue *queue);
uint64_t di_events_waiting(const di_event_queue *queue);

typedef enum di_take { DI_TAKE_EVENT, DI_TAKE_NOTHING, DI_TAKE_CLOSED } di_take;
/* Oldest event. timeout_ms < 0 waits for ever. *waiting (may be NULL) = bytes left. */
di_take di_events_take(di_event_queue *queue, int64_t timeout_ms, di_event *event, uint64_t *waiting);

/* Condition variable on the monotonic clock, and a wait on it; false when the time is over. */
di_status di_condition_init(pthread_cond_t *condition, di_error *error);
bool di_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex, int64_t until_ns);

#endif
