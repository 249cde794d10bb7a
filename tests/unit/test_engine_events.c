/* needs: engine cache sampling model backend_cpu tokenizer checkpoint tensor base */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "engine/events.h"

static void push_numbered(di_event_queue *queue, int n) {
    char text[64];
    di_logprob top[3] = {{n, -1.5f}, {n + 1, -2.5f}, {n + 2, -3.5f}};
    snprintf(text, sizeof text, "text %d", n);
    int32_t drafted[5] = {n, n - 1, n - 2, n - 3, n - 4};
    float confidence[5] = {1, 0.5f, 0.25f, 0.125f, 0};
    di_event event = {.kind = DI_EVENT_TOKEN,
                      .token_id = n,
                      .position = (int64_t)n << 33,
                      .text = text,
                      .text_length = strlen(text),
                      .top = top,
                      .top_count = (size_t)n % 4,
                      .drafts = {.position = n,
                                 .token_ids = n % 6 ? drafted : NULL,
                                 .confidence = n % 6 && n % 5 ? confidence : NULL,
                                 .count = (size_t)n % 6,
                                 .accepted = (size_t)n % 6 / 2},
                      .logits_hash = UINT64_MAX - (uint64_t)n};
    assert_true(di_events_push(queue, &event));
}

static void check_numbered(const di_event *event, int n) {
    char text[64];
    snprintf(text, sizeof text, "text %d", n);
    assert_int_equal(event->kind, DI_EVENT_TOKEN);
    assert_int_equal(event->token_id, n);
    assert_true(event->position == (int64_t)n << 33);
    assert_string_equal(event->text, text);
    assert_int_equal(event->text_length, strlen(text));
    assert_int_equal(event->top_count, n % 4);
    for (size_t i = 0; i < event->top_count; i++) assert_int_equal(event->top[i].token_id, n + (int)i);
    assert_true(event->logits_hash == UINT64_MAX - (uint64_t)n);
    const di_draft_record *drafts = &event->drafts;
    assert_int_equal(drafts->count, n % 6);
    assert_int_equal(drafts->accepted, n % 6 / 2);
    assert_true(drafts->position == n);
    assert_int_equal(drafts->token_ids != NULL, n % 6 > 0);
    assert_int_equal(drafts->confidence != NULL, n % 6 && n % 5);
    for (size_t i = 0; i < drafts->count; i++) {
        assert_int_equal(drafts->token_ids[i], n - (int)i);
        if (drafts->confidence) assert_true(drafts->confidence[i] == (i < 4 ? 1.0f / (float)(1 << i) : 0));
    }
}

static void keeps_order_and_content_over_blocks(void **state) {
    (void)state;
    di_event_queue queue;
    di_event event;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    for (int round = 0; round < 3; round++) {
        for (int n = 0; n < 5000; n++) push_numbered(&queue, n);
        for (int n = 0; n < 5000; n++) {
            assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
            check_numbered(&event, n);
        }
        assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_NOTHING);
        assert_int_equal(di_events_waiting(&queue), 0);
    }
    di_events_destroy(&queue);
}

static void count_call(void *arg) {
    ++*(int *)arg;
}

/* One call for each change from nothing to something, none after the queue was muted. */
static void tells_the_reader_once(void **state) {
    (void)state;
    di_event_queue queue;
    di_event event;
    int calls = 0;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    queue.on_ready = count_call;
    queue.on_ready_arg = &calls;
    push_numbered(&queue, 1);
    push_numbered(&queue, 2);
    assert_int_equal(calls, 1);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
    push_numbered(&queue, 3);
    assert_int_equal(calls, 1);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_NOTHING);
    push_numbered(&queue, 4);
    assert_int_equal(calls, 2);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
    di_events_close(&queue);
    assert_int_equal(calls, 3);
    di_events_close(&queue);
    assert_int_equal(calls, 3);
    di_events_mute(&queue);
    push_numbered(&queue, 5);
    assert_int_equal(calls, 3);
    di_events_destroy(&queue);
}

/* What was handed out stays until the next take, whatever is pushed meanwhile. */
static void lends_text_until_the_next_take(void **state) {
    (void)state;
    di_event_queue queue;
    di_event event;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    push_numbered(&queue, 0);
    for (int n = 0; n < 3000; n++) {
        assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
        for (int more = n ? n % 3 : 1; more >= 0 && n < 2000; more--) push_numbered(&queue, 7);
        if (n == 0)
            check_numbered(&event, 0);
        else
            check_numbered(&event, 7);
    }
    di_events_destroy(&queue);
}

static void takes_events_larger_than_a_block(void **state) {
    (void)state;
    enum { SIZE = 100000 };
    di_event_queue queue;
    di_event event = {.kind = DI_EVENT_TOKEN};
    char *text = malloc(SIZE);
    memset(text, 'x', SIZE);
    event.text = text;
    event.text_length = SIZE;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    push_numbered(&queue, 1);
    assert_true(di_events_push(&queue, &event));
    push_numbered(&queue, 2);
    di_event taken;
    assert_int_equal(di_events_take(&queue, 0, &taken, NULL), DI_TAKE_EVENT);
    assert_int_equal(di_events_take(&queue, 0, &taken, NULL), DI_TAKE_EVENT);
    assert_int_equal(taken.text_length, SIZE);
    assert_memory_equal(taken.text, text, SIZE);
    assert_int_equal(di_events_take(&queue, 0, &taken, NULL), DI_TAKE_EVENT);
    check_numbered(&taken, 2);
    free(text);
    di_events_destroy(&queue);
}

static void *take_one(void *queue) {
    static di_event taken; /* of one reader */
    return di_events_take(queue, -1, &taken, NULL) == DI_TAKE_EVENT ? &taken : NULL;
}

/* A reader that waits with a block it has read is woken by an event that needs another one. */
static void wakes_for_an_event_larger_than_what_is_left(void **state) {
    (void)state;
    enum { SIZE = 100000 };
    di_event_queue queue;
    di_event event = {.kind = DI_EVENT_TOKEN};
    pthread_t reader;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    push_numbered(&queue, 1);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_EVENT);
    assert_int_equal(pthread_create(&reader, NULL, take_one, &queue), 0);
    for (bool waits = false; !waits;) {
        pthread_mutex_lock(&queue.mutex);
        waits = queue.waits;
        pthread_mutex_unlock(&queue.mutex);
    }
    char *text = malloc(SIZE);
    memset(text, 'x', SIZE);
    event = (di_event){.kind = DI_EVENT_FINISH, .text = text, .text_length = SIZE};
    assert_true(di_events_push(&queue, &event));
    di_events_close(&queue);
    void *result;
    pthread_join(reader, &result);
    const di_event *taken = result;
    assert_non_null(taken);
    assert_int_equal(taken->text_length, SIZE);
    assert_memory_equal(taken->text, text, SIZE);
    assert_int_equal(di_events_take(&queue, 0, &event, NULL), DI_TAKE_CLOSED);
    free(text);
    di_events_destroy(&queue);
}

static void ends_after_the_last_event(void **state) {
    (void)state;
    di_event_queue queue;
    di_event event;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    push_numbered(&queue, 3);
    di_events_close(&queue);
    assert_int_equal(di_events_take(&queue, -1, &event, NULL), DI_TAKE_EVENT);
    assert_int_equal(di_events_take(&queue, -1, &event, NULL), DI_TAKE_CLOSED);
    assert_int_equal(di_events_take(&queue, -1, &event, NULL), DI_TAKE_CLOSED);
    di_events_destroy(&queue);
}

static void waits_no_longer_than_asked(void **state) {
    (void)state;
    di_event_queue queue;
    di_event event;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    int64_t start = di_now_ns();
    assert_int_equal(di_events_take(&queue, 30, &event, NULL), DI_TAKE_NOTHING);
    double waited = di_ms(di_now_ns() - start);
    assert_true(waited >= 29 && waited < 5000);
    di_events_destroy(&queue);
}

enum { CROSSING = 200000 };

static void *producer(void *queue) {
    for (int n = 0; n < CROSSING; n++) push_numbered(queue, n);
    di_events_close(queue);
    return NULL;
}

static void passes_events_between_threads(void **state) {
    (void)state;
    di_event_queue queue;
    di_event event;
    pthread_t thread;
    assert_int_equal(di_events_init(&queue, NULL), DI_OK);
    assert_int_equal(pthread_create(&thread, NULL, producer, &queue), 0);
    int n = 0;
    while (di_events_take(&queue, -1, &event, NULL) == DI_TAKE_EVENT) check_numbered(&event, n++);
    assert_int_equal(n, CROSSING);
    pthread_join(thread, NULL);
    di_events_destroy(&queue);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_order_and_content_over_blocks),
        cmocka_unit_test(lends_text_until_the_next_take),
        cmocka_unit_test(takes_events_larger_than_a_block),
        cmocka_unit_test(ends_after_the_last_event),
        cmocka_unit_test(waits_no_longer_than_asked),
        cmocka_unit_test(tells_the_reader_once),
        cmocka_unit_test(passes_events_between_threads),
        cmocka_unit_test(wakes_for_an_event_larger_than_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
