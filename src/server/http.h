/* http.h - what the endpoints of the server see of HTTP: exchanges, routes and tasks.
 *
 * One I/O thread runs everything: handlers, callbacks and tasks. Every function here belongs to that thread,
 * except di_server_post, which any thread may call. Nothing called from the I/O thread may block or compute for long;
 * di_server_work has a thread for that. No callback is ever called from within one of these functions.
 *
 * An exchange is one request and its answer. It begins with the call of the route's handler, the whole body at hand,
 * and ends once: answered (di_exchange_reply, di_exchange_fail, di_exchange_stream_end) or gone (the client closed or
 * half-closed its side, took no bytes for too long, or the server stops). When it is gone, on_close is called; answers
 * to it from then on do nothing. The pointer is valid until the exchange has ended and nobody holds it
 * (di_exchange_hold); until then everything borrowed from it, its body too, stays where it is.
 *
 * Times are milliseconds. Texts are zero-terminated and borrowed from the exchange unless said otherwise.
 */
#ifndef DI_SERVER_HTTP_H
#define DI_SERVER_HTTP_H

#include "base/arena.h"
#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "base/text.h"

typedef struct di_server di_server;
typedef struct di_exchange di_exchange;

/* --------------------------------------------------------------------------------------------------- routes */

/* What an error answer says. code: a short machine word ("invalid_request_error"); param may be NULL. */
typedef struct di_error_parts {
    int http_status;
    const char *code, *param, *message;
    const char *request_id; /* di_exchange_id */
} di_error_parts;

/* Body of an error answer in the shape of one API. */
typedef void (*di_error_shape)(di_text *body, const di_error_parts *parts);

typedef enum di_access {
    DI_ACCESS_KEY,   /* needs a key when keys are set */
    DI_ACCESS_PROBE, /* health of the server: as above unless --open-probes; answered while the server drains and when
                        its connections are all taken, and while it loads */
    DI_ACCESS_STATIC /* files of the program, the same for everybody: never needs a key */
} di_access;

typedef struct di_route {
    const char *method; /* "GET" also answers HEAD */
    const char *path;   /* "/v1/models"; an ending "/" and "*" takes the rest: di_exchange_rest */
    di_access access;
    bool json;            /* a request must have Content-Type application/json, else 415 */
    di_error_shape error; /* NULL: see di_server_set_errors */
    void (*handler)(void *app, di_exchange *exchange);
} di_route;

/* {"error": {"message", "type", "param", "code"}}; type by the HTTP status, as vLLM and OpenAI name them. */
void di_error_openai(di_text *body, const di_error_parts *parts);

/* Before the server starts. Which shape an error has where no route says it: paths that are not there, routes without
 * one, requests that could not be read (whose path is then ""). Without it: di_error_openai. */
void di_server_set_errors(di_server *server, di_error_shape (*choose)(const di_exchange *exchange));
/* Before the server starts. The table must stay valid; a path may have rows for several methods, each once. */
di_status di_server_add_routes(di_server *server, const di_route *routes, size_t count, void *app, di_error *error);
/* Routes in the order they were added, for tests and lists; NULL behind the last. */
const di_route *di_server_route(const di_server *server, size_t index);

/* -------------------------------------------------------------------------------------------------- the request */

const char *di_exchange_method(const di_exchange *exchange); /* "POST" */
const char *di_exchange_path(const di_exchange *exchange);   /* decoded, without the query */
const char *di_exchange_rest(const di_exchange *exchange);   /* what "*" of the route took; "" */
/* Name in any case. Several fields of one name are joined with ", ". NULL if absent. */
const char *di_exchange_header(const di_exchange *exchange, const char *name);
const char *di_exchange_body(const di_exchange *exchange, size_t *length); /* zero-terminated beyond length */
const char *di_exchange_id(const di_exchange *exchange);     /* x-request-id, trace id of traceparent, or made */
const char *di_exchange_tenant(const di_exchange *exchange); /* name of the API key; NULL when no keys are set */
/* Memory that lives as long as the exchange; NULL when there is none. I/O thread, or the one task working on it. */
di_arena *di_exchange_arena(di_exchange *exchange);

void di_exchange_set_user(di_exchange *exchange, void *user);
/* Called once from the event loop if the exchange is gone before it was answered; never after an answer was ended. */
void di_exchange_on_close(di_exchange *exchange, void (*on_close)(di_exchange *exchange, void *user));
bool di_exchange_gone(const di_exchange *exchange);
void di_exchange_hold(di_exchange *exchange);    /* keeps the pointer valid */
void di_exchange_release(di_exchange *exchange); /* ends one hold */

/* -------------------------------------------------------------------------------------------------- the answer */

/* Further header fields. Content-Type, Content-Length, Date, Connection and x-request-id are written by the server. */
typedef struct di_header {
    const char *name, *value;
} di_header;

/* A whole answer; ends the exchange. content_type NULL with no bytes = no content. Everything is copied. */
void di_exchange_reply(di_exchange *exchange, int http_status, const char *content_type, const di_header *headers,
                       size_t header_count, const char *bytes, size_t length);
/* An error in the shape of the exchange's route; ends the exchange. 429 and 503 get a Retry-After. */
void di_exchange_fail(di_exchange *exchange, int http_status, const char *code, const char *param, const char *format,
                      ...) DI_PRINTF(5, 6);
/* The same from a di_error: HTTP status by di_status_http, code by di_status_name. */
void di_exchange_fail_error(di_exchange *exchange, const di_error *error);

/* A streamed answer: begin, any number of writes, end. Chunked for HTTP/1.1, until the connection closes for HTTP/1.0.
 * A write is one or more whole events: keepalive text goes between writes. */
void di_exchange_stream_begin(di_exchange *exchange, int http_status, const char *content_type,
                              const di_header *headers, size_t header_count);
void di_exchange_stream_write(di_exchange *exchange, const char *bytes, size_t length);
void di_exchange_stream_end(di_exchange *exchange); /* ends the exchange */
/* The text, whole events, is written whenever nothing else was for --keepalive-ms, from stream_begin to the end:
 * ": keep-alive\n\n", "event: ping\ndata: {...}\n\n". Must stay valid; NULL = none. */
void di_exchange_keepalive(di_exchange *exchange, const char *text);

/* Back-pressure. queued: bytes of the answer that the client has not taken yet. full: more than --write-buffer
 * with so many more bytes that are about to be written; stop writing (nothing is lost if one goes on), on_drain is
 * called once when at most half of it is left. */
size_t di_exchange_queued(const di_exchange *exchange);
bool di_exchange_full(const di_exchange *exchange, size_t more);
void di_exchange_on_drain(di_exchange *exchange, void (*on_drain)(di_exchange *exchange, void *user));

/* Figures for the access log: name is a literal, shown as a member. At most 16; more are dropped. Never prompt text. */
void di_exchange_note_number(di_exchange *exchange, const char *name, double value);
void di_exchange_note_text(di_exchange *exchange, const char *name, const char *literal);

/* ---------------------------------------------------------------------------------------------------------- tasks */

/* A task is run once on the I/O thread for any number of posts before it runs. Set run and arg, zero the rest. */
typedef struct di_server_task {
    void (*run)(void *arg);
    void *arg;
    struct di_server_task *next; /* the server's */
    bool queued;                 /* the server's */
} di_server_task;

/* Any thread; quick, allocates nothing, calls nothing back. The engine's on_ready may call it. */
void di_server_post(di_server *server, di_server_task *task);
/* I/O thread: the task does not run any more unless it is posted again. Before its memory goes away. */
void di_server_unpost(di_server *server, di_server_task *task);

/* Runs `work` on a worker thread (in the order of the calls, --http-workers at a time) and then `done` on the I/O
 * thread, always, also when the server is stopping. Hold the exchange that the work reads.
 * Refused once di_server_run has returned. */
di_status di_server_work(di_server *server, void (*work)(void *arg), void (*done)(void *arg), void *arg,
                         di_error *error);

/* ------------------------------------------------------------------------------------------------ the whole server */

bool di_server_draining(const di_server *server);
size_t di_server_exchanges(const di_server *server); /* in progress that ask for work: POST, no probes */

#endif
