/* test_server_http_exchange.c - a server in a thread, with routes of its own: answers, streams, back-pressure, clients
 * that leave, tasks, work, time limits, draining.
 * needs: server base */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "support/http_client.h"

enum { FLOOD_BYTES = 24 << 20, FLOOD_PIECE = 8192, WRITE_BUFFER = 64 << 10 };

/* What the routes do. Fields without _Atomic belong to the server's thread. */
typedef struct routes_state {
    _Atomic int begun, gone, finished;
    _Atomic bool go; /* /wait and /stream/wait answer when it is set and the task ran */
    di_server *server;
    di_exchange *waiting;
    di_server_task finish;
    size_t flooded;
    _Atomic size_t most_queued;
} routes_state;

static routes_state shared;

/* ---------------------------------------------------------------- routes */

static void echo(void *app, di_exchange *exchange) {
    (void)app;
    size_t length;
    const char *body = di_exchange_body(exchange, &length);
    const char *header = di_exchange_header(exchange, "X-Test");
    di_text text = {0};
    di_text_printf(&text, "%s|%s|%s|%s|%s|", di_exchange_method(exchange), di_exchange_path(exchange),
                   di_exchange_rest(exchange), header ? header : "-",
                   di_exchange_tenant(exchange) ? di_exchange_tenant(exchange) : "-");
    di_text_append(&text, body, length < 100 ? length : 100);
    di_text_printf(&text, "|%zu", length);
    const di_header headers[] = {{"X-Own", "1"}, {"X-Bad", "a\r\nX-Split: 1"}, {"X-None", NULL}};
    di_exchange_reply(exchange, 200, "text/plain", headers, 3, text.data, text.length);
    di_text_free(&text);
}

static void stream(void *app, di_exchange *exchange) {
    (void)app;
    di_exchange_stream_begin(exchange, 200, "text/event-stream; charset=utf-8", NULL, 0);
    for (int i = 0; i < 3; i++) {
        char event[32];
        snprintf(event, sizeof event, "data: %d\n\n", i);
        di_exchange_stream_write(exchange, event, strlen(event));
    }
    di_exchange_stream_end(exchange);
}

static void left(di_exchange *exchange, void *user) {
    routes_state *state = user;
    if (!di_exchange_gone(exchange)) state->gone += 1000;
    if (state->waiting == exchange) state->waiting = NULL;
    di_exchange_reply(exchange, 200, NULL, NULL, 0, NULL, 0); /* does nothing */
    state->gone++;
}

static void finish(void *arg) {
    routes_state *state = arg;
    di_exchange *exchange = state->waiting;
    state->waiting = NULL;
    if (!exchange) return;
    if (strncmp(di_exchange_path(exchange), "/stream", 7) == 0) {
        di_exchange_stream_write(exchange, "data: end\n\n", 11);
        di_exchange_stream_end(exchange);
    } else {
        di_exchange_reply(exchange, 200, "text/plain", NULL, 0, "late", 4);
    }
    state->finished++;
}

static void wait_for_task(void *app, di_exchange *exchange) {
    routes_state *state = app;
    di_exchange_set_user(exchange, state);
    di_exchange_on_close(exchange, left);
    state->waiting = exchange;
    if (strncmp(di_exchange_path(exchange), "/stream", 7) == 0) {
        di_exchange_stream_begin(exchange, 200, "text/event-stream", NULL, 0);
        di_exchange_keepalive(exchange, ": keep-alive\n\n");
        di_exchange_stream_write(exchange, "data: begin\n\n", 13);
    }
    state->begun++;
}

static void flood_on(di_exchange *exchange, void *user) {
    routes_state *state = user;
    static const char piece[FLOOD_PIECE] = "x";
    while (state->flooded < FLOOD_BYTES && !di_exchange_full(exchange, 0)) {
        di_exchange_stream_write(exchange, piece, sizeof piece);
        state->flooded += sizeof piece;
        if (di_exchange_queued(exchange) > state->most_queued) state->most_queued = di_exchange_queued(exchange);
    }
    if (state->flooded < FLOOD_BYTES)
        di_exchange_on_drain(exchange, flood_on);
    else
        di_exchange_stream_end(exchange);
}

static void flood(void *app, di_exchange *exchange) {
    routes_state *state = app;
    di_exchange_set_user(exchange, state);
    di_exchange_on_close(exchange, left);
    di_exchange_stream_begin(exchange, 200, "text/event-stream", NULL, 0);
    di_exchange_keepalive(exchange, ": keep-alive\n\n");
    state->flooded = 0;
    state->begun++;
    flood_on(exchange, state);
}

/* The body summed up on the worker thread. */
typedef struct sum_job {
    di_exchange *exchange;
    uint64_t sum;
} sum_job;

static void sum(void *arg) {
    sum_job *job = arg;
    size_t length;
    const char *body = di_exchange_body(job->exchange, &length);
    for (size_t i = 0; i < length; i++) job->sum += (unsigned char)body[i];
    usleep(20000);
}

static void summed(void *arg) {
    sum_job *job = arg;
    char text[32];
    int length = snprintf(text, sizeof text, "sum %llu", (unsigned long long)job->sum);
    di_exchange_reply(job->exchange, 200, "text/plain", NULL, 0, text, (size_t)length);
    di_exchange_release(job->exchange);
    free(job);
    shared.finished++;
}

static void work(void *app, di_exchange *exchange) {
    (void)app;
    di_error error = {0};
    sum_job *job = calloc(1, sizeof *job);
    assert_non_null(job);
    job->exchange = exchange;
    di_exchange_hold(exchange);
    shared.begun++;
    assert_int_equal(di_server_work(shared.server, sum, summed, job, &error), DI_OK);
}

/* A whole answer far larger than what a socket takes at once. */
static void answer_large(void *app, di_exchange *exchange) {
    (void)app;
    char *bytes = calloc(1, FLOOD_BYTES);
    assert_non_null(bytes);
    memset(bytes, 'b', FLOOD_BYTES);
    di_exchange_reply(exchange, 200, "text/plain", NULL, 0, bytes, FLOOD_BYTES);
    free(bytes);
}

static const di_route routes[] = {
    {"GET", "/echo", DI_ACCESS_KEY, false, NULL, echo},
    {"POST", "/echo", DI_ACCESS_KEY, false, NULL, echo},
    {"POST", "/json", DI_ACCESS_KEY, true, NULL, echo},
    {"GET", "/files/*", DI_ACCESS_KEY, false, NULL, echo},
    {"GET", "/stream", DI_ACCESS_KEY, false, NULL, stream},
    {"GET", "/stream/wait", DI_ACCESS_KEY, false, NULL, wait_for_task},
    {"GET", "/wait", DI_ACCESS_KEY, false, NULL, wait_for_task},
    {"POST", "/wait", DI_ACCESS_KEY, false, NULL, wait_for_task},
    {"GET", "/flood", DI_ACCESS_KEY, false, NULL, flood},
    {"GET", "/large", DI_ACCESS_KEY, false, NULL, answer_large},
    {"POST", "/work", DI_ACCESS_KEY, false, NULL, work},
    {"GET", "/probe", DI_ACCESS_PROBE, false, NULL, echo},
    {"GET", "/static", DI_ACCESS_STATIC, false, NULL, echo},
};

static void start(di_test_server *test, const char *const *options) {
    di_error error = {0};
    di_test_server_open(test, options);
    memset(&shared, 0, sizeof shared);
    shared.server = test->server;
    shared.finish = (di_server_task){.run = finish, .arg = &shared};
    assert_int_equal(di_server_add_routes(test->server, routes, sizeof routes / sizeof *routes, &shared, &error),
                     DI_OK);
    di_test_server_begin(test);
}

static void wait_until(const _Atomic int *value, int wanted) {
    for (int i = 0; i < 5000 && *value != wanted; i++) usleep(1000);
    assert_int_equal(*value, wanted);
}

static void expect(int port, const char *request, int http_status, const char *holds) {
    di_text text = di_test_ask(port, request);
    if (di_test_status(&text) != http_status || !strstr(text.data, holds))
        fail_msg("wanted %d and %s, got: %s", http_status, holds, text.data);
    di_text_free(&text);
}

#define END "Host: a\r\nConnection: close\r\n\r\n"

/* ---------------------------------------------------------------- answers */

static void requests_reach_their_handlers(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    expect(test.port, "GET /echo?a=1 HTTP/1.1\r\nX-Test: a\r\nx-test: b\r\n" END, 200, "GET|/echo||a, b|-||0");
    expect(test.port, "GET /files/a%20b/c HTTP/1.1\r\n" END, 200, "GET|/files/a b/c|a b/c|-|-||0");
    expect(test.port, "POST /echo HTTP/1.1\r\nContent-Length: 2\r\n" END "hi", 200, "POST|/echo||-|-|hi|2");
    expect(test.port, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" END "2\r\nhi\r\n0\r\n\r\n", 200, "|hi|2");
    expect(test.port, "GET /echo HTTP/1.1\r\nx-request-id: abc.1\r\n" END, 200, "\r\nx-request-id: abc.1\r\n");
    expect(test.port, "GET /echo HTTP/1.1\r\nx-request-id: a b\r\n" END, 200, "\r\nx-request-id: req-");
    expect(test.port,
           "GET /echo HTTP/1.1\r\ntraceparent: 00-0123456789abcdef0123456789abcdef-0123456789abcdef-01\r\n" END, 200,
           "\r\nx-request-id: 0123456789abcdef0123456789abcdef\r\n");
    expect(test.port, "GET /echo HTTP/1.0\r\n\r\n", 200, "Connection: close\r\n\r\nGET|");
    expect(test.port, "GET /files/ HTTP/1.1\r\n" END, 404, "there is no /files/ here");
    expect(test.port, "GET /nothing HTTP/1.1\r\n" END, 404, "\"type\":\"not_found_error\"");
    expect(test.port, "GET /work HTTP/1.1\r\n" END, 405, "\r\nAllow: POST, OPTIONS\r\n");
    expect(test.port, "BREW /echo HTTP/1.1\r\n" END, 405, "\r\nAllow: GET, HEAD, POST, OPTIONS\r\n");
    expect(test.port, "OPTIONS /work HTTP/1.1\r\n" END, 204, "\r\nAllow: POST, OPTIONS\r\n");
    expect(test.port, "OPTIONS * HTTP/1.1\r\n" END, 204, "\r\nAllow: ");
    expect(test.port, "POST /json HTTP/1.1\r\nContent-Length: 2\r\n" END "{}", 415, "Content-Type: application/json");
    expect(test.port, "POST /json HTTP/1.1\r\nContent-Type: application/jsonx\r\n" END, 415, "");
    expect(test.port, "POST /json HTTP/1.1\r\nContent-Type: Application/JSON; charset=utf-8\r\n" END, 200, "|0");
    expect(test.port, "POST /echo HTTP/1.1\r\nContent-Encoding: gzip\r\n" END, 415, "Content-Encoding");
    di_text text = di_test_ask(test.port, "GET /echo HTTP/1.1\r\n" END);
    assert_non_null(strstr(text.data, "\r\nX-Own: 1\r\n"));
    assert_null(strstr(text.data, "X-Split"));
    assert_null(strstr(text.data, "X-None"));
    di_text_free(&text);
    text = di_test_ask(test.port, "HEAD /echo HTTP/1.1\r\n" END);
    assert_non_null(strstr(text.data, "Content-Length: 18\r\n"));
    assert_string_equal(strstr(text.data, "\r\n\r\n"), "\r\n\r\n");
    di_text_free(&text);
    di_test_server_stop(&test);
}

static void streams_are_chunked_or_end_with_the_connection(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    expect(test.port, "GET /stream HTTP/1.1\r\n" END, 200,
           "\r\n\r\n9\r\ndata: 0\n\n\r\n9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n\r\n0\r\n\r\n");
    expect(test.port, "GET /stream HTTP/1.1\r\n" END, 200, "X-Accel-Buffering: no\r\n");
    expect(test.port, "GET /stream HTTP/1.0\r\n\r\n", 200, "close\r\n\r\ndata: 0\n\ndata: 1\n\ndata: 2\n\n");
    di_text text = di_test_ask(test.port, "HEAD /stream HTTP/1.1\r\n" END);
    assert_null(strstr(text.data, "data:"));
    di_text_free(&text);
    di_test_server_stop(&test);
}

/* Answers come in the order of the requests, also when one takes a while. */
static void requests_sent_ahead_are_answered_in_order(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    int socket = di_test_connect(test.port, 5000);
    di_test_puts(socket, "POST /work HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc"
                         "GET /files/1 HTTP/1.1\r\nHost: a\r\n\r\nHEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n"
                         "POST /work HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nz"
                         "GET /stream HTTP/1.1\r\nHost: a\r\n\r\nGET /files/2 HTTP/1.1\r\n" END);
    di_text text = {0};
    bool closed;
    di_test_receive(socket, NULL, &text, &closed);
    close(socket);
    assert_true(closed);
    static const char *const parts[] = {"sum 294", "|1|", "sum 122", "data: 2", "|2|"};
    const char *at = text.data;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        at = strstr(at, parts[i]);
        if (!at) fail_msg("no %s in order: %s", parts[i], text.data);
    }
    di_text_free(&text);
    di_test_server_stop(&test);
}

static void a_body_is_asked_for(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"limit-body-bytes", "10", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    di_test_puts(socket, "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n" END);
    di_test_receive(socket, "\r\n\r\n", &text, NULL);
    assert_string_equal(text.data, "HTTP/1.1 100 Continue\r\n\r\n");
    di_test_puts(socket, "hi");
    di_test_receive(socket, NULL, &text, NULL);
    assert_non_null(strstr(text.data, "|hi|2"));
    close(socket);
    di_text_free(&text);
    expect(test.port, "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 11\r\n" END, 413,
           "--limit-body-bytes");
    di_test_server_stop(&test);
}

/* ---------------------------------------------------------------- clients that leave */

static void a_client_that_leaves_is_noticed(void **state) {
    (void)state;
    static const char *const paths[] = {"GET /wait", "POST /wait", "GET /stream/wait"};
    di_test_server test;
    start(&test, (const char *const[]){"keepalive-ms", "3600000", NULL});
    int gone = 0;
    for (int way = 0; way < 3; way++)
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
            char request[128];
            snprintf(request, sizeof request, "%s HTTP/1.1\r\nHost: a\r\n\r\n", paths[i]);
            int socket = di_test_connect(test.port, 5000);
            di_test_puts(socket, request);
            wait_until(&shared.begun, gone + 1);
            struct linger reset = {.l_onoff = 1};
            if (way == 0) shutdown(socket, SHUT_WR); /* ends its side only */
            if (way == 1) setsockopt(socket, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            if (way) close(socket);
            wait_until(&shared.gone, ++gone);
            if (!way) close(socket);
        }
    di_server_post(test.server, &shared.finish);
    di_test_server_stop(&test);
    assert_int_equal(shared.finished, 0);
}

/* Some requests may be sent ahead, and whoever sent them is still seen to leave; far ahead is refused. */
static void a_client_that_sent_ahead_is_noticed(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    int socket = di_test_connect(test.port, 5000);
    di_test_puts(socket, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(&shared.begun, 1);
    for (int i = 0; i < 1000; i++) di_test_puts(socket, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    usleep(100000);
    assert_int_equal(shared.gone, 0);
    close(socket);
    wait_until(&shared.gone, 1);
    socket = di_test_connect(test.port, 5000);
    di_test_puts(socket, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
    while (di_test_send(socket, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 31)) continue;
    wait_until(&shared.gone, 2);
    close(socket);
    di_test_server_stop(&test);
}

static void an_answer_that_is_complete_reaches_who_ended_their_side(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    bool closed;
    di_test_puts(socket, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    shutdown(socket, SHUT_WR);
    di_test_receive(socket, NULL, &text, &closed);
    close(socket);
    assert_true(closed);
    assert_int_equal(di_test_status(&text), 200);
    di_text_clear(&text);
    socket = di_test_connect(test.port, 5000);
    di_test_puts(socket, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
    shutdown(socket, SHUT_WR);
    di_test_receive(socket, NULL, &text, &closed);
    close(socket);
    assert_int_equal(di_test_status(&text), 400);
    di_text_free(&text);
    di_test_server_stop(&test);
}

/* ---------------------------------------------------------------- keepalive, back-pressure */

static void silence_is_broken_by_the_clock(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"keepalive-ms", "50", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    int64_t then = di_now_ns();
#define BEAT "e\r\n: keep-alive\n\n\r\n"
    di_test_puts(socket, "GET /stream/wait HTTP/1.1\r\n" END);
    di_test_receive(socket, BEAT BEAT BEAT BEAT BEAT, &text, NULL);
    di_server_post(test.server, &shared.finish);
    di_test_receive(socket, NULL, &text, NULL);
    close(socket);
    int count = 0;
    for (const char *at = text.data; (at = strstr(at, BEAT)); at++) count++;
    assert_in_range(count, 5, (di_now_ns() - then) / 50000000); /* a busy machine makes it slower, never faster */
    assert_non_null(strstr(text.data, "d\r\ndata: begin\n\n\r\ne\r\n: keep"));
    assert_non_null(strstr(text.data, "\n\n\r\nb\r\ndata: end\n\n\r\n0\r\n\r\n"));
    di_text_free(&text);
    di_test_server_stop(&test);
}

static void a_slow_reader_gets_everything_and_costs_little(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"write-buffer", "64k", "keepalive-ms", "20", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    di_test_puts(socket, "GET /flood HTTP/1.1\r\n" END);
    for (int i = 0; i < 5000 && shared.most_queued <= WRITE_BUFFER; i++) usleep(1000);
    usleep(200000);                                                    /* to queue more in, if it did */
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 200, "GET|/echo"); /* others are served */
    assert_true(shared.most_queued > WRITE_BUFFER);
    assert_true(shared.most_queued < WRITE_BUFFER + 2 * FLOOD_PIECE);
    di_test_receive(socket, NULL, &text, NULL);
    close(socket);
    assert_true(text.length > FLOOD_BYTES);
    assert_int_equal(strcmp(text.data + text.length - 7, "\r\n0\r\n\r\n"), 0);
    assert_true(shared.most_queued < WRITE_BUFFER + 2 * FLOOD_PIECE);
    assert_int_equal(shared.gone, 0);
    di_text_free(&text);
    di_test_server_stop(&test);
}

/* Neither the patience with idle connections nor a lack of room for new ones cuts an answer that is being taken. */
static void an_answer_that_is_being_taken_is_no_idleness(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"idle-timeout-ms", "100", "max-connections", "1", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    bool closed;
    di_test_puts(socket, "GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    usleep(300000);
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 503, "--max-connections");
    usleep(300000);
    di_test_receive(socket, NULL, &text, &closed);
    assert_true(closed); /* once all was taken */
    assert_true(text.length > FLOOD_BYTES);
    di_text_free(&text);
    close(socket);
    di_test_server_stop(&test);
}

static void a_client_that_takes_nothing_is_gone(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"write-buffer", "64k", "write-timeout-ms", "200", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_test_puts(socket, "GET /flood HTTP/1.1\r\n" END);
    wait_until(&shared.begun, 1);
    wait_until(&shared.gone, 1);
    close(socket);
    di_test_server_stop(&test);
}

/* ---------------------------------------------------------------- tasks and work */

typedef struct poster {
    di_server *server;
    di_server_task *own, *common;
    _Atomic int *posted;
} poster;

static _Atomic int own_runs, common_runs, never_runs;

static void count_run(void *arg) {
    (*(_Atomic int *)arg)++;
}

static void *post_often(void *arg) {
    poster *p = arg;
    for (int i = 0; i < 20000; i++) {
        di_server_post(p->server, i % 2 ? p->own : p->common);
        if (i % 64 == 0) usleep(1);
    }
    return NULL;
}

static void tasks_run_at_least_once_after_every_post(void **state) {
    (void)state;
    enum { THREADS = 4 };
    di_test_server test;
    start(&test, NULL);
    own_runs = common_runs = never_runs = 0;
    di_server_task own[THREADS], common = {.run = count_run, .arg = &common_runs};
    poster posters[THREADS];
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) {
        own[i] = (di_server_task){.run = count_run, .arg = &own_runs};
        posters[i] = (poster){.server = test.server, .own = &own[i], .common = &common};
        assert_int_equal(pthread_create(&threads[i], NULL, post_often, &posters[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    int before = common_runs;
    di_server_post(test.server, &common);
    for (int i = 0; i < 5000 && common_runs == before; i++) usleep(1000);
    assert_true(common_runs > before);
    assert_in_range(own_runs, THREADS, 10000 * THREADS);
    di_test_server_stop(&test);
}

static di_server_task doomed = {.run = count_run, .arg = &never_runs};

static void take_back(void *arg) {
    di_server *server = arg;
    di_server_post(server, &doomed);
    di_server_unpost(server, &doomed);
    di_server_unpost(server, &doomed);
}

static void a_task_that_was_taken_back_does_not_run(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    never_runs = 0;
    di_server_task task = {.run = take_back, .arg = test.server};
    for (int i = 0; i < 100; i++) di_server_post(test.server, &task);
    di_test_server_stop(&test);
    assert_int_equal(never_runs, 0);
}

/* Work that nobody waits for any more is done all the same, and its end is told. */
static void work_outlives_its_client(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    for (int i = 0; i < 10; i++) {
        int socket = di_test_connect(test.port, 5000);
        di_test_puts(socket, "POST /work HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
        wait_until(&shared.begun, i + 1);
        close(socket);
    }
    di_test_server_stop(&test);
    assert_int_equal(shared.finished, 10);
}

/* ---------------------------------------------------------------- limits */

/* Says `bytes` and no more. True when the server told `http_status` and closed; how long it took in *waited_ns. */
static bool is_told(uint16_t port, const char *bytes, int http_status, int64_t *waited_ns) {
    int64_t then = di_now_ns();
    int socket = di_test_connect(port, 5000);
    di_text text = {0};
    bool closed;
    di_test_puts(socket, bytes);
    di_test_receive(socket, NULL, &text, &closed);
    *waited_ns = di_now_ns() - then;
    bool good = closed && di_test_status(&text) == http_status; /* by the server, not by the patience of the socket */
    di_text_free(&text);
    close(socket);
    return good;
}

/* A process that was stopped meanwhile may have said its bytes too late: such a try does not count. */
static void slow_clients_are_told(void **state) {
    (void)state;
    enum { TRIES = 20, STOPPED_NS = 300000000 };
    di_test_server test;
    start(&test, (const char *const[]){"header-timeout-ms", "150", "body-timeout-ms", "150", "idle-timeout-ms", "150",
                                       "limit-body-bytes", "1000", NULL});
    static const struct {
        const char *bytes;
        int http_status;
    } rows[] = {{"", 0},
                {"\r\n\r\n", 0},
                {"GET /ec", 408},
                {"GET /echo HTTP/1.1\r\nHost: a\r\nX: ", 408},
                {"POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nab", 408},
                {"POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na", 408},
                {"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n", 200}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int64_t waited = 0;
        bool good = false;
        for (int t = 0; !good && t < TRIES; t++) {
            good = is_told(test.port, rows[i].bytes, rows[i].http_status, &waited);
            if (!good && waited < STOPPED_NS) fail_msg("row %zu after %lld ms", i, (long long)waited / 1000000);
        }
        assert_true(good);
        assert_true(waited >= 140000000);
    }
    di_test_server_stop(&test);
}

/* A body that trickles does not renew the patience with it. */
static void a_body_must_come_at_a_rate(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"body-timeout-ms", "300", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    int64_t then = di_now_ns();
    di_test_puts(socket, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 60000000\r\n\r\n");
    while (recv(socket, (char[1]){0}, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && di_now_ns() - then < 20000000000) {
        di_test_puts(socket, "x");
        usleep(20000);
    }
    di_test_receive(socket, "}}", &text, NULL);
    assert_int_equal(di_test_status(&text), 408);
    assert_true(di_now_ns() - then >= 250000000);
    di_text_free(&text);
    close(socket);
    /* One that comes in pieces, in time, is taken. */
    char *piece = calloc(1, 1 << 20);
    assert_non_null(piece);
    socket = di_test_connect(test.port, 5000);
    di_test_puts(socket, "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 6291456\r\n\r\n");
    for (int i = 0; i < 6; i++) {
        assert_true(di_test_send(socket, piece, 1 << 20));
        usleep(100000);
    }
    di_test_receive(socket, NULL, &text, NULL);
    assert_int_equal(di_test_status(&text), 200);
    di_text_free(&text);
    close(socket);
    free(piece);
    di_test_server_stop(&test);
}

/* The whole body is taken from the socket, so that the client gets to read why it was refused. */
static void a_body_too_large_is_refused_readably(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"limit-body-bytes", "1k", "limit-bodies-bytes", "1k", NULL});
    enum { BYTES = 20 << 20 };
    char *body = calloc(1, BYTES);
    assert_non_null(body);
    memset(body, 'a', BYTES);
    for (int chunked = 0; chunked < 2; chunked++) {
        int socket = di_test_connect(test.port, 5000);
        di_text text = {0};
        di_test_puts(socket, chunked ? "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1400000\r\n"
                                     : "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 20971520\r\n\r\n");
        assert_true(di_test_send(socket, body, BYTES));
        di_test_receive(socket, "}}", &text, NULL);
        assert_int_equal(di_test_status(&text), 413);
        assert_non_null(strstr(text.data, "--limit-body-bytes"));
        assert_non_null(strstr(text.data, "Connection: close"));
        di_text_free(&text);
        close(socket);
    }
    free(body);
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 200, "GET|/echo");
    di_test_server_stop(&test);
}

static void bodies_together_have_a_limit(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"limit-body-bytes", "100k", "limit-bodies-bytes", "150k", NULL});
    char *body = calloc(1, 100000);
    assert_non_null(body);
    int first = di_test_connect(test.port, 5000), second = di_test_connect(test.port, 5000);
    di_text text = {0};
    di_test_puts(first, "POST /wait HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    assert_true(di_test_send(first, body, 100000));
    wait_until(&shared.begun, 1);
    di_test_puts(second, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n");
    assert_true(di_test_send(second, body, 100000));
    di_test_receive(second, "}}", &text, NULL);
    assert_int_equal(di_test_status(&text), 503);
    assert_non_null(strstr(text.data, "Retry-After: "));
    assert_non_null(strstr(text.data, "--limit-bodies-bytes"));
    di_text_clear(&text);
    close(second);
    close(first);
    wait_until(&shared.gone, 1);
    second = di_test_connect(test.port, 5000); /* what the first held is free again */
    di_test_puts(second, "POST /echo HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 100000\r\n\r\n");
    assert_true(di_test_send(second, body, 100000));
    di_test_receive(second, NULL, &text, NULL);
    assert_int_equal(di_test_status(&text), 200);
    close(second);
    free(body);
    di_text_free(&text);
    di_test_server_stop(&test);
}

static void connections_have_a_limit(void **state) {
    (void)state;
    enum { BUSY = 4 };
    di_test_server test;
    start(&test, (const char *const[]){"max-connections", "4", NULL});
    int busy[BUSY];
    for (int i = 0; i < BUSY; i++) {
        busy[i] = di_test_connect(test.port, 5000);
        di_test_puts(busy[i], "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
        wait_until(&shared.begun, i + 1);
    }
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 503, "Retry-After: 1\r\n");
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 503, "--max-connections");
    expect(test.port, "GET /probe HTTP/1.1\r\nHost: a\r\n\r\n", 200, "Connection: close");
    close(busy[0]);
    wait_until(&shared.gone, 1);
    /* A connection that only idles makes room. */
    int idle = di_test_connect(test.port, 5000);
    di_text text = {0};
    bool closed;
    di_test_puts(idle, "GET /echo HTTP/1.1\r\nHost: a\r\n\r\n");
    di_test_receive(idle, "|0", &text, NULL);
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 200, "GET|/echo");
    di_test_receive(idle, NULL, &text, &closed);
    assert_true(closed);
    close(idle);
    di_text_free(&text);
    for (int i = 1; i < BUSY; i++) close(busy[i]);
    wait_until(&shared.gone, BUSY);
    di_test_server_stop(&test);
}

/* ---------------------------------------------------------------- keys */

static void without_a_key_nothing_but_files_answers(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"api-key", "secret-key-1", NULL});
    const di_route *route;
    for (size_t i = 0; (route = di_server_route(test.server, i)); i++) {
        char request[256];
        snprintf(request, sizeof request, "%s %s HTTP/1.1\r\n" END, route->method, route->path);
        expect(test.port, request, route->access == DI_ACCESS_STATIC ? 200 : 401,
               route->access == DI_ACCESS_STATIC ? "" : "\r\nWWW-Authenticate: Bearer\r\n");
        snprintf(request, sizeof request, "OPTIONS %s HTTP/1.1\r\n" END, route->path);
        expect(test.port, request, 401, "invalid_api_key");
    }
    expect(test.port, "GET /nothing HTTP/1.1\r\n" END, 401, "");
    expect(test.port, "GET /echo HTTP/1.1\r\nAuthorization: Bearer secret-key-2\r\n" END, 401, "");
    expect(test.port, "GET /echo HTTP/1.1\r\nAuthorization: Bearer secret-key-11\r\n" END, 401, "");
    expect(test.port, "GET /echo HTTP/1.1\r\nAuthorization: Bearer \r\n" END, 401, "");
    expect(test.port, "GET /echo HTTP/1.1\r\nAuthorization: secret-key-1\r\n" END, 401, "");
    expect(test.port, "GET /echo HTTP/1.1\r\nAuthorization: Bearer secret-key-1\r\n" END, 200, "|key-");
    expect(test.port, "GET /echo HTTP/1.1\r\nauthorization: bearer  secret-key-1\r\n" END, 200, "|key-");
    expect(test.port, "GET /echo HTTP/1.1\r\nx-api-key: secret-key-1\r\n" END, 200, "|key-");
    /* A body is not even read. */
    expect(test.port, "POST /echo HTTP/1.1\r\nContent-Length: 1000\r\n" END, 401, "");
    di_test_server_stop(&test);
    start(&test, (const char *const[]){"api-key", "secret-key-1", "open-probes", "on", NULL});
    expect(test.port, "GET /probe HTTP/1.1\r\n" END, 200, "");
    expect(test.port, "GET /echo HTTP/1.1\r\n" END, 401, "");
    di_test_server_stop(&test);
}

static void other_origins_are_let_in_by_name(void **state) {
    (void)state;
    static const char preflight[] = "OPTIONS /json HTTP/1.1\r\nOrigin: https://a.example\r\n"
                                    "Access-Control-Request-Method: POST\r\n"
                                    "Access-Control-Request-Headers: authorization, content-type\r\n" END;
    di_test_server test;
    start(&test, NULL);
    di_text text = di_test_ask(test.port, preflight);
    assert_int_equal(di_test_status(&text), 204);
    assert_null(strstr(text.data, "Access-Control"));
    di_text_free(&text);
    di_test_server_stop(&test);
    start(&test,
          (const char *const[]){"cors-origin", "https://b.example,https://a.example", "api-key", "secret-key-1", NULL});
    expect(test.port, preflight, 204, "\r\nAccess-Control-Allow-Headers: authorization, content-type\r\n");
    expect(test.port, preflight, 204, "\r\nAccess-Control-Allow-Origin: https://a.example\r\n");
    expect(test.port, "GET /echo HTTP/1.1\r\nOrigin: https://a.example\r\n" END, 401, "Access-Control-Allow-Origin: ");
    text = di_test_ask(test.port, "GET /echo HTTP/1.1\r\nx-api-key: secret-key-1\r\nOrigin: https://c.example\r\n" END);
    assert_int_equal(di_test_status(&text), 200);
    assert_null(strstr(text.data, "Access-Control"));
    assert_non_null(strstr(text.data, "Vary: Origin"));
    di_text_free(&text);
    di_test_server_stop(&test);
}

static void names_that_anybody_could_have_are_not_ours(void **state) {
    (void)state;
    static const struct {
        const char *host;
        bool ours;
    } rows[] = {
        {"localhost", true},        {"LOCALHOST:80", true}, {"127.0.0.1:8000", true},  {"[::1]:8000", true},
        {"10.1.2.3", true},         {"inference", true},    {"a.localhost:1", true},   {"", true},
        {"evil.example", false},    {"a.evil:80", false},   {"127.0.0.1.evil", false}, {"localhost.evil", false},
        {"evillocalhost.x", false}, {".localhost", false},  {"evil.example.", false},  {"ours.example:80", true}};
    di_test_server test;
    for (int keys = 0; keys < 2; keys++) {
        start(&test, (const char *const[]){"allowed-hosts", "x.example, Ours.Example", keys ? "api-key" : NULL,
                                           "secret-key-1", NULL});
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            char request[256];
            snprintf(request, sizeof request,
                     "GET /echo HTTP/1.1\r\nHost: %s\r\nx-api-key: secret-key-1\r\nConnection: close\r\n\r\n",
                     rows[i].host);
            expect(test.port, request, keys || rows[i].ours ? 200 : 421, "");
        }
        di_test_server_stop(&test);
    }
    start(&test, (const char *const[]){"allowed-hosts", "*", NULL});
    expect(test.port, "GET /echo HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", 200, "");
    di_test_server_stop(&test);
}

static void a_route_is_there_once(void **state) {
    (void)state;
    static const di_route other[] = {{"PUT", "/echo", DI_ACCESS_KEY, false, NULL, echo},
                                     {"GET", "/files/*", DI_ACCESS_KEY, false, NULL, echo}};
    di_test_server test;
    di_error error = {0};
    start(&test, NULL);
    assert_int_equal(di_server_add_routes(test.server, other, 2, NULL, &error), DI_ERR_INTERNAL);
    assert_string_equal(error.message, "the route GET /files/* is there twice");
    di_test_server_stop(&test);
}

/* ---------------------------------------------------------------- the end */

static void draining_lets_answers_end(void **state) {
    (void)state;
    di_test_server test;
    start(&test, NULL);
    int socket = di_test_connect(test.port, 5000), idle = di_test_connect(test.port, 5000), ahead;
    di_text text = {0};
    bool closed;
    di_test_puts(idle, "GET /probe HTTP/1.1\r\nHost: a\r\n\r\n\r\n"); /* an empty line begins nothing */
    di_test_receive(idle, "GET|/probe", &text, NULL);
    di_text_clear(&text);
    di_test_puts(socket, "GET /stream/wait HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(&shared.begun, 1);
    ahead = di_test_connect(test.port, 5000);
    di_test_puts(ahead, "GET /echo HT");
    expect(test.port, "GET /probe HTTP/1.1\r\n" END, 200, "GET|/probe"); /* what came before it is read too */
    di_test_server_drain(&test);
    di_test_receive(idle, NULL, &text, &closed);
    assert_true(closed && !text.length);
    di_test_puts(ahead, "TP/1.1\r\nHost: a\r\n\r\n");
    di_test_receive(ahead, NULL, &text, NULL);
    assert_int_equal(di_test_status(&text), 503);
    assert_non_null(strstr(text.data, "shutting down"));
    di_text_clear(&text);
    expect(test.port, "GET /probe HTTP/1.1\r\n" END, 200, "GET|/probe");
    usleep(100000);
    di_server_post(test.server, &shared.finish);
    di_test_receive(socket, NULL, &text, &closed);
    assert_true(closed);
    assert_non_null(strstr(text.data, "data: end\n\n\r\n0\r\n\r\n"));
    di_text_free(&text);
    di_test_server_join(&test);
    assert_int_equal(test.ended, DI_OK);
    assert_int_equal(shared.gone, 0);
    close(socket);
    close(idle);
    close(ahead);
}

static void the_deadline_ends_what_is_left(void **state) {
    (void)state;
    di_test_server test;
    start(&test, (const char *const[]){"drain-ms", "100", NULL});
    int socket = di_test_connect(test.port, 5000);
    di_text text = {0};
    di_test_puts(socket, "GET /stream/wait HTTP/1.1\r\nHost: a\r\n\r\n");
    wait_until(&shared.begun, 1);
    di_test_server_drain(&test);
    di_test_receive(socket, NULL, &text, NULL);
    assert_null(strstr(text.data, "\r\n0\r\n\r\n"));
    di_test_server_join(&test);
    assert_int_equal(test.ended, DI_OK);
    assert_int_equal(shared.gone, 1);
    di_text_free(&text);
    close(socket);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_reach_their_handlers),
        cmocka_unit_test(streams_are_chunked_or_end_with_the_connection),
        cmocka_unit_test(requests_sent_ahead_are_answered_in_order),
        cmocka_unit_test(a_body_is_asked_for),
        cmocka_unit_test(a_client_that_leaves_is_noticed),
        cmocka_unit_test(a_client_that_sent_ahead_is_noticed),
        cmocka_unit_test(an_answer_that_is_complete_reaches_who_ended_their_side),
        cmocka_unit_test(silence_is_broken_by_the_clock),
        cmocka_unit_test(a_slow_reader_gets_everything_and_costs_little),
        cmocka_unit_test(an_answer_that_is_being_taken_is_no_idleness),
        cmocka_unit_test(a_client_that_takes_nothing_is_gone),
        cmocka_unit_test(tasks_run_at_least_once_after_every_post),
        cmocka_unit_test(a_task_that_was_taken_back_does_not_run),
        cmocka_unit_test(work_outlives_its_client),
        cmocka_unit_test(slow_clients_are_told),
        cmocka_unit_test(a_body_must_come_at_a_rate),
        cmocka_unit_test(a_body_too_large_is_refused_readably),
        cmocka_unit_test(bodies_together_have_a_limit),
        cmocka_unit_test(connections_have_a_limit),
        cmocka_unit_test(without_a_key_nothing_but_files_answers),
        cmocka_unit_test(other_origins_are_let_in_by_name),
        cmocka_unit_test(names_that_anybody_could_have_are_not_ours),
        cmocka_unit_test(a_route_is_there_once),
        cmocka_unit_test(draining_lets_answers_end),
        cmocka_unit_test(the_deadline_ends_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
