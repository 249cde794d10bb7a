/* connection.c - see connection.h. */
#include "server/connection.h"

#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "server/exchange.h"

enum {
    INPUT_BYTES = 64 << 10,        /* read ahead of what is parsed */
    REFUSAL_MS = 2000,             /* patience with a connection too many */
    LINGER_IDLE_MS = 5000,         /* without a byte */
    FIRST_REQUEST_MS = 500,        /* from connecting to the first byte of a client that has something to ask */
    BODY_BYTES_A_SECOND = 64 << 10 /* what a body must come at, beyond --body-timeout-ms */
};

static int64_t after_ms(int64_t ms) {
    return di_now_ns() + ms * 1000000;
}

/* ---------------------------------------------------------------- time */

void di_connection_arm(di_connection *connection, int64_t due_ns) {
    if (due_ns >= connection->timer_due_ns) return;
    int64_t wait = due_ns - di_now_ns();
    if (wait < 0) wait = 0;
    struct timeval tv = {.tv_sec = wait / 1000000000, .tv_usec = wait % 1000000000 / 1000};
    if (event_add(connection->timer, &tv) == 0) connection->timer_due_ns = due_ns;
}

static void wait_for_input(di_connection *connection, int64_t ms) {
    connection->read_due_ns = after_ms(ms);
    di_connection_arm(connection, connection->read_due_ns);
}

size_t di_connection_queued(const di_connection *connection) {
    return evbuffer_get_length(bufferevent_get_output(connection->stream));
}

/* ---------------------------------------------------------------- end */

static void count_body(di_connection *connection, size_t bytes) {
    connection->server->body_bytes += bytes - connection->body_counted;
    connection->body_counted = bytes;
}

/* The message that the parser has, complete or not, becomes that of the exchange. */
static void take_message(di_connection *connection) {
    di_exchange *exchange = connection->exchange;
    exchange->message = connection->parser.message;
    exchange->body_counted = connection->body_counted;
    connection->parser.message = (di_http_message){0};
    connection->body_counted = 0;
    connection->state = DI_CONNECTION_EXCHANGE;
    connection->read_due_ns = INT64_MAX;
}

void di_connection_close(di_connection *connection, bool reset) {
    di_server *server = connection->server;
    if (connection->state == DI_CONNECTION_BODY) take_message(connection);
    if (connection->exchange) di_exchange_lost(connection->exchange);
    if (connection->newer)
        connection->newer->older = connection->older;
    else
        server->connections = connection->older;
    if (connection->older) connection->older->newer = connection->newer;
    server->connection_count--;
    count_body(connection, 0);
    di_http_parser_free(&connection->parser);
    if (reset) {
        struct linger now = {.l_onoff = 1, .l_linger = 0};
        setsockopt(bufferevent_getfd(connection->stream), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    } else if (connection->tls) {
        SSL *ssl = bufferevent_openssl_get_ssl(connection->stream);
        SSL_set_shutdown(ssl, SSL_RECEIVED_SHUTDOWN);
        SSL_shutdown(ssl);
        ERR_clear_error();
    }
    event_free(connection->timer);
    bufferevent_free(connection->stream);
    free(connection);
}

/* Between requests, as far as the event loop has looked. */
static bool between_requests(const di_connection *connection) {
    return connection->state == DI_CONNECTION_HEAD && !di_http_parser_within(&connection->parser) &&
           !evbuffer_get_length(bufferevent_get_input(connection->stream)) && !di_connection_queued(connection);
}

bool di_connection_idle(const di_connection *connection) {
    char byte;
    return between_requests(connection) &&
           recv(bufferevent_getfd(connection->stream), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

bool di_connection_waited_for(const di_connection *connection) {
    if (connection->state == DI_CONNECTION_LINGER) return false;
    if (!di_connection_idle(connection)) return true;
    return !connection->used && di_now_ns() < connection->since_ns + (int64_t)FIRST_REQUEST_MS * 1000000;
}

static void drop_input(di_connection *connection) {
    struct evbuffer *input = bufferevent_get_input(connection->stream);
    evbuffer_drain(input, evbuffer_get_length(input));
}

/* Everything is written and no request follows. True if the connection is closed. */
static bool flushed(di_connection *connection) {
    if (connection->peer_ended ||
        (!connection->lingers && !evbuffer_get_length(bufferevent_get_input(connection->stream)))) {
        di_connection_close(connection, false);
        return true;
    }
    /* Closing a socket with unread input resets it, and the reset may overtake the answer. */
    connection->state = DI_CONNECTION_LINGER;
    drop_input(connection);
    if (!connection->tls) shutdown(bufferevent_getfd(connection->stream), SHUT_WR);
    int64_t linger = connection->over_limit ? REFUSAL_MS : connection->server->settings.linger_ms;
    connection->linger_until_ns = after_ms(linger);
    wait_for_input(connection, linger < LINGER_IDLE_MS ? linger : LINGER_IDLE_MS);
    return false;
}

/* ---------------------------------------------------------------- output */

void di_connection_write(di_connection *connection, const char *bytes, size_t length) {
    bool empty = !di_connection_queued(connection);
    if (bufferevent_write(connection->stream, bytes, length) != 0) {
        connection->aborting = true; /* out of memory: half an answer must not look whole */
        di_connection_arm(connection, 0);
        return;
    }
    if (!empty) return;
    connection->write_due_ns = after_ms(connection->server->settings.write_ms);
    di_connection_arm(connection, connection->write_due_ns);
}

static void on_output_changed(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *arg) {
    (void)buffer;
    di_connection *connection = arg;
    connection->server->counters.bytes_out += info->n_deleted;
    if (info->n_deleted) connection->write_due_ns = after_ms(connection->server->settings.write_ms);
}

void di_connection_answered(di_connection *connection) {
    if (connection->aborting) return;
    connection->state = connection->closing ? DI_CONNECTION_FLUSH : DI_CONNECTION_HEAD;
    connection->since_ns = di_now_ns();
    di_http_parser_reset(&connection->parser);
    wait_for_input(connection, connection->server->settings.idle_ms);
    /* The next request, or the end, comes from the event loop: this may be within a handler. */
    connection->resume = true;
    di_connection_arm(connection, 0);
}

/* ---------------------------------------------------------------- requests */

static void refuse(di_connection *connection, int http_status, const char *code, const char *message) {
    connection->closing = connection->lingers = true;
    di_exchange_fail(connection->exchange, http_status, code, NULL, "%s", message);
}

/* The exchange of the message in the parser; false when the connection was given up. */
static bool begin_exchange(di_connection *connection) {
    di_exchange *exchange = di_exchange_begin(connection);
    if (!exchange) {
        connection->aborting = true;
        di_connection_arm(connection, 0);
        return false;
    }
    connection->state = DI_CONNECTION_EXCHANGE;
    connection->read_due_ns = INT64_MAX;
    return true;
}

static void count_limit(di_connection *connection, di_http_limit limit) {
    connection->server->counters.limits[limit]++;
}

/* What the parser refused. True if it was for a limit. */
static bool count_failure(di_connection *connection) {
    switch (connection->parser.http_status) {
    case 413:
        count_limit(connection, DI_HTTP_LIMIT_BODY);
        return true;
    case 414:
    case 431:
        count_limit(connection, DI_HTTP_LIMIT_HEADER);
        return true;
    default:
        connection->server->counters.malformed++;
        return false;
    }
}

static void refuse_message(di_connection *connection) {
    const di_http_parser *parser = &connection->parser;
    int http_status = parser->http_status;
    const char *reason = parser->reason;
    bool limit = count_failure(connection);
    if (!begin_exchange(connection)) return;
    di_exchange *exchange = connection->exchange;
    di_match match =
        di_server_match(connection->server, di_exchange_method(exchange), di_exchange_path(exchange), NULL);
    exchange->sibling = match.sibling;
    /* What a limit says is nobody's business without a key. */
    if (exchange->message.has_head && !di_server_check_key(connection->server, &exchange->message))
        refuse(connection, 401, "invalid_api_key",
               "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY");
    else
        refuse(connection, http_status,
               http_status == 413   ? "request_too_large"
               : limit              ? "header_too_large"
               : http_status == 503 ? "overloaded"
                                    : "malformed_request",
               reason);
}

/* OPTIONS: which methods a path has, and what a web page of another origin may send. */
static void answer_options(di_exchange *exchange, const char *allow) {
    const di_http_message *message = &exchange->message;
    const char *wanted = di_http_message_field(message, "access-control-request-headers");
    bool cross = di_server_cors_allows(exchange->server, di_http_message_field(message, "origin"));
    const di_header headers[] = {{"Allow", allow},
                                 {"Access-Control-Allow-Methods", cross ? allow : NULL},
                                 {"Access-Control-Allow-Headers", cross ? wanted : NULL},
                                 {"Access-Control-Max-Age", cross ? "600" : NULL}};
    di_exchange_reply(exchange, 204, NULL, headers, sizeof headers / sizeof *headers, NULL, 0);
}

static bool is_json(const char *content_type) {
    static const char json[] = "application/json";
    if (!content_type || strncasecmp(content_type, json, sizeof json - 1) != 0) return false;
    char after = content_type[sizeof json - 1];
    return !after || strchr("; \t", after);
}

/* Reasons that have nothing to do with the path. True if the request was refused. */
static bool refuse_by_state(di_connection *connection, const di_route *route) {
    di_server *server = connection->server;
    di_exchange *exchange = connection->exchange;
    bool probe = route && route->access == DI_ACCESS_PROBE;
    const char *encoding = di_http_message_field(&exchange->message, "content-encoding");
    if (connection->over_limit) connection->closing = true;
    if (!di_server_knows_host(server, di_http_message_field(&exchange->message, "host"))) {
        refuse(connection, 421, "unknown_host",
               "this server does not go by that name; --allowed-hosts can say that it does, or set a key");
    } else if (server->draining && !probe) {
        refuse(connection, 503, "shutting_down", "the server is shutting down");
    } else if (server->loading && !probe) {
        refuse(connection, 503, "loading", "the model is being loaded; /health/ready says when that is done");
    } else if (connection->over_limit && !probe) {
        count_limit(connection, DI_HTTP_LIMIT_CONNECTIONS);
        refuse(connection, 503, "too_many_connections", "too many connections are open (--max-connections)");
    } else if (encoding && strcasecmp(encoding, "identity") != 0) {
        refuse(connection, 415, "unsupported_media_type", "the body must not have a Content-Encoding");
    } else if (route && route->json && !is_json(di_http_message_field(&exchange->message, "content-type"))) {
        refuse(connection, 415, "unsupported_media_type", "the body must be JSON: Content-Type: application/json");
    } else {
        return false;
    }
    return true;
}

/* The head is complete: decides whether its body is wanted. True if the request was refused or answered. The check of
 * the key stands here, before anything is done for anybody. */
static bool admit(di_connection *connection) {
    di_server *server = connection->server;
    di_exchange *exchange = connection->exchange;
    const di_http_message *message = &exchange->message;
    const char *method = di_exchange_method(exchange), *path = di_exchange_path(exchange);
    di_text allow = {0};
    di_match match = di_server_match(server, method, path, &allow);
    bool options = strcmp(method, "OPTIONS") == 0;
    bool preflight = options && di_http_message_field(message, "access-control-request-method") &&
                     di_server_cors_allows(server, di_http_message_field(message, "origin"));
    di_access access = match.route ? match.route->access : DI_ACCESS_KEY;
    bool open = preflight || access == DI_ACCESS_STATIC || (access == DI_ACCESS_PROBE && server->settings.open_probes);
    const char *tenant = di_server_check_key(server, message);
    exchange->route = match.route;
    exchange->sibling = match.sibling;
    exchange->app = match.app;
    exchange->rest = match.rest ? match.rest : "";
    bool refused = true;
    if (server->keys && tenant) snprintf(exchange->tenant, sizeof exchange->tenant, "%s", tenant);
    if (message->chunked || message->content_length) connection->lingers = true; /* until the body was read */
    if (!tenant && !open) {
        server->counters.unauthorised++;
        refuse(connection, 401, "invalid_api_key",
               "this server needs an API key: Authorization: Bearer KEY, or x-api-key: KEY");
    } else if (refuse_by_state(connection, match.route)) {
    } else if (options && (match.sibling || strcmp(path, "*") == 0)) {
        connection->closing |= connection->lingers;
        answer_options(exchange, allow.data && !allow.failed ? allow.data : "GET, HEAD, POST, OPTIONS");
    } else if (!match.sibling) {
        connection->closing |= connection->lingers;
        di_exchange_fail(exchange, 404, "not_found", NULL, "there is no %.200s here", path);
    } else if (!match.route) {
        connection->closing |= connection->lingers;
        di_exchange_fail_method(exchange, allow.data && !allow.failed ? allow.data : "GET");
    } else {
        refused = false;
    }
    di_text_free(&allow);
    return refused;
}

static void head_done(di_connection *connection) {
    if (!begin_exchange(connection) || admit(connection)) return;
    di_exchange *exchange = connection->exchange;
    di_server *server = connection->server;
    if (exchange->message.wants_continue && !evbuffer_get_length(bufferevent_get_input(connection->stream)))
        di_connection_write(connection, "HTTP/1.1 100 Continue\r\n\r\n", 25);
    /* The message goes back to the parser for its body. */
    connection->parser.message = exchange->message;
    exchange->message = (di_http_message){0};
    connection->state = DI_CONNECTION_BODY;
    wait_for_input(connection, server->settings.body_ms);
    di_http_parser_take_body(&connection->parser);
}

/* Requests sent ahead of an answer have room for so many bytes. */
static void check_input(di_connection *connection) {
    if (connection->state != DI_CONNECTION_EXCHANGE ||
        evbuffer_get_length(bufferevent_get_input(connection->stream)) < INPUT_BYTES)
        return;
    count_limit(connection, DI_HTTP_LIMIT_AHEAD);
    connection->aborting = true;
    di_connection_arm(connection, 0);
}

static void message_done(di_connection *connection) {
    di_exchange *exchange = connection->exchange;
    take_message(connection);
    connection->lingers = false;
    exchange->counted = strcmp(exchange->route->method, "POST") == 0 && exchange->route->access == DI_ACCESS_KEY;
    if (exchange->counted) connection->server->exchanges++;
    di_exchange_hold(exchange);
    exchange->route->handler(exchange->app, exchange);
    di_exchange_release(exchange);
    check_input(connection);
}

/* Refusal of a message whose exchange may have begun with its head. */
static void fail_message(di_connection *connection, int http_status, const char *code, const char *reason) {
    if (!connection->exchange) {
        if (!begin_exchange(connection)) return;
    } else {
        take_message(connection);
    }
    refuse(connection, http_status, code, reason);
}

static void body_failed(di_connection *connection) {
    const di_http_parser *parser = &connection->parser;
    bool limit = count_failure(connection);
    fail_message(connection, parser->http_status,
                 parser->http_status == 413 ? "request_too_large"
                 : limit                    ? "header_too_large"
                                            : "malformed_request",
                 parser->reason);
}

/* One piece of input. False when nothing more can be taken now. */
static bool take_input(di_connection *connection) {
    struct evbuffer *input = bufferevent_get_input(connection->stream);
    size_t length = evbuffer_get_contiguous_space(input);
    if (connection->state > DI_CONNECTION_BODY || !length) return false;
    bool between = !di_http_parser_within(&connection->parser), in_body = connection->state == DI_CONNECTION_BODY;
    const char *bytes = (const char *)evbuffer_pullup(input, (ssize_t)length);
    size_t taken = di_http_parser_feed(&connection->parser, bytes, length);
    evbuffer_drain(input, taken);
    di_server *server = connection->server;
    server->counters.bytes_in += taken;
    count_body(connection, connection->parser.message.body.length);
    if (in_body) connection->read_due_ns += (int64_t)taken * (1000000000 / BODY_BYTES_A_SECOND);
    connection->used = true;
    if (between && di_http_parser_within(&connection->parser))
        wait_for_input(connection, connection->over_limit ? REFUSAL_MS : server->settings.header_ms);
    switch (connection->parser.state) {
    case DI_HTTP_HEAD_DONE:
        head_done(connection);
        if (connection->state == DI_CONNECTION_BODY && connection->parser.state == DI_HTTP_DONE)
            message_done(connection);
        break;
    case DI_HTTP_DONE:
        message_done(connection);
        break;
    case DI_HTTP_FAILED:
        if (connection->exchange)
            body_failed(connection);
        else
            refuse_message(connection);
        break;
    case DI_HTTP_BODY:
        if (server->body_bytes <= server->settings.bodies_bytes) break;
        count_limit(connection, DI_HTTP_LIMIT_BODIES);
        fail_message(connection, 503, "overloaded", "too many bytes of requests are held (--limit-bodies-bytes)");
        break;
    case DI_HTTP_HEAD:
        break;
    }
    return true;
}

static void read_on(di_connection *connection) {
    if (connection->state == DI_CONNECTION_LINGER) {
        drop_input(connection);
        int64_t due = after_ms(LINGER_IDLE_MS);
        connection->read_due_ns = due < connection->linger_until_ns ? due : connection->linger_until_ns;
        di_connection_arm(connection, connection->read_due_ns);
        return;
    }
    /* Answers to requests that were sent ahead wait for their reader like any other. */
    while (!connection->aborting && connection->state <= DI_CONNECTION_BODY &&
           di_connection_queued(connection) <= connection->server->settings.write_buffer && take_input(connection))
        continue;
    check_input(connection);
}

/* ---------------------------------------------------------------- events of the stream */

static void on_input(struct bufferevent *stream, void *arg) {
    (void)stream;
    read_on(arg);
}

static void on_output(struct bufferevent *stream, void *arg) {
    (void)stream;
    di_connection *connection = arg;
    if (connection->exchange) di_exchange_drained(connection->exchange);
    if (connection->aborting) return;
    if (connection->state == DI_CONNECTION_FLUSH && !di_connection_queued(connection))
        flushed(connection);
    else if (connection->state == DI_CONNECTION_HEAD)
        read_on(connection);
}

static void peer_ended(di_connection *connection) {
    connection->peer_ended = true;
    switch (connection->state) {
    case DI_CONNECTION_HEAD:
    case DI_CONNECTION_BODY:
        if (connection->aborting || !di_http_parser_within(&connection->parser)) {
            connection->closing = true;
            if (!di_connection_queued(connection)) {
                di_connection_close(connection, false);
                return;
            }
            connection->state = DI_CONNECTION_FLUSH;
            return;
        }
        connection->server->counters.malformed++;
        fail_message(connection, 400, "malformed_request", "the request ended before it was complete");
        return;
    case DI_CONNECTION_EXCHANGE: /* whoever ends its side before the answer has left */
    case DI_CONNECTION_LINGER:
        di_connection_close(connection, false);
        return;
    case DI_CONNECTION_FLUSH:
        if (!di_connection_queued(connection)) di_connection_close(connection, false);
        return;
    }
}

static void on_event(struct bufferevent *stream, short what, void *arg) {
    di_connection *connection = arg;
    if (what & BEV_EVENT_CONNECTED) return; /* the handshake is done */
    if (connection->tls) {
        unsigned long reason = what & BEV_EVENT_ERROR ? bufferevent_get_openssl_error(stream) : 0;
        if (reason && ERR_GET_REASON(reason) != SSL_R_UNEXPECTED_EOF_WHILE_READING)
            connection->server->counters.tls_failures++;
        ERR_clear_error();
    }
    if (what & BEV_EVENT_EOF) {
        peer_ended(connection);
        return;
    }
    if (what & BEV_EVENT_ERROR) di_connection_close(connection, false);
}

/* ---------------------------------------------------------------- timer */

/* Patience with the client's bytes ended. True if the connection is closed. */
static bool input_late(di_connection *connection) {
    connection->read_due_ns = INT64_MAX;
    bool between = connection->state == DI_CONNECTION_HEAD && !di_http_parser_within(&connection->parser);
    if (between && di_connection_queued(connection)) { /* the last answer is still being taken */
        wait_for_input(connection, connection->server->settings.idle_ms);
        return false;
    }
    if (between || connection->state == DI_CONNECTION_LINGER) {
        di_connection_close(connection, false);
        return true;
    }
    count_limit(connection,
                connection->state == DI_CONNECTION_HEAD ? DI_HTTP_LIMIT_HEADER_TIME : DI_HTTP_LIMIT_BODY_TIME);
    if (connection->state == DI_CONNECTION_HEAD)
        fail_message(connection, 408, "request_timeout", "the head of the request took too long (--header-timeout-ms)");
    else if (connection->state == DI_CONNECTION_BODY)
        fail_message(connection, 408, "request_timeout", "the body of the request took too long (--body-timeout-ms)");
    return false;
}

static void on_timer(evutil_socket_t socket, short what, void *arg) {
    (void)socket, (void)what;
    di_connection *connection = arg;
    int64_t now = di_now_ns();
    connection->timer_due_ns = INT64_MAX;
    if (connection->aborting) {
        di_connection_close(connection, true);
        return;
    }
    if (connection->resume) {
        connection->resume = false;
        if (connection->state == DI_CONNECTION_FLUSH && !di_connection_queued(connection) && flushed(connection))
            return;
        read_on(connection);
    }
    if (di_connection_queued(connection) && now >= connection->write_due_ns) {
        count_limit(connection, DI_HTTP_LIMIT_WRITE_TIME);
        di_connection_close(connection, true);
        return;
    }
    if (connection->state != DI_CONNECTION_EXCHANGE && connection->state != DI_CONNECTION_FLUSH &&
        now >= connection->read_due_ns && input_late(connection))
        return;
    int64_t due = INT64_MAX;
    if (connection->exchange) di_exchange_drained(connection->exchange);
    if (connection->exchange) due = di_exchange_keep_alive(connection->exchange, now);
    if (connection->state != DI_CONNECTION_EXCHANGE && connection->state != DI_CONNECTION_FLUSH &&
        connection->read_due_ns < due)
        due = connection->read_due_ns;
    if (di_connection_queued(connection) && connection->write_due_ns < due) due = connection->write_due_ns;
    di_connection_arm(connection, due);
}

/* ---------------------------------------------------------------- begin */

static struct bufferevent *make_stream(di_server *server, evutil_socket_t socket) {
    int options = BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS;
    if (!server->tls) return bufferevent_socket_new(server->base, socket, options);
    SSL *ssl = SSL_new(server->tls);
    if (!ssl) return NULL;
    struct bufferevent *stream =
        bufferevent_openssl_socket_new(server->base, socket, ssl, BUFFEREVENT_SSL_ACCEPTING, options);
    if (stream)
        bufferevent_openssl_set_allow_dirty_shutdown(stream, 1);
    else
        SSL_free(ssl);
    return stream;
}

void di_connection_open(di_server *server, evutil_socket_t socket, const char *peer, bool over_limit) {
    di_connection *connection = calloc(1, sizeof *connection);
    struct bufferevent *stream = connection ? make_stream(server, socket) : NULL;
    struct event *timer = stream ? evtimer_new(server->base, on_timer, connection) : NULL;
    if (!timer || !evbuffer_add_cb(bufferevent_get_output(stream), on_output_changed, connection)) {
        if (timer) event_free(timer);
        if (stream)
            bufferevent_free(stream);
        else
            evutil_closesocket(socket);
        free(connection);
        return;
    }
    connection->server = server;
    connection->stream = stream;
    connection->timer = timer;
    connection->timer_due_ns = connection->read_due_ns = connection->write_due_ns = INT64_MAX;
    connection->since_ns = di_now_ns();
    connection->over_limit = over_limit;
    connection->tls = server->tls != NULL;
    snprintf(connection->peer, sizeof connection->peer, "%s", peer);
    di_http_parser_init(&connection->parser, &server->settings.limits);
    connection->older = server->connections;
    if (connection->older) connection->older->newer = connection;
    server->connections = connection;
    server->connection_count++;
    bufferevent_setcb(stream, on_input, on_output, on_event, connection);
    bufferevent_setwatermark(stream, EV_READ, 0, INPUT_BYTES);
    bufferevent_setwatermark(stream, EV_WRITE, server->settings.write_buffer / 2, 0);
    bufferevent_enable(stream, EV_READ | EV_WRITE);
    wait_for_input(connection, over_limit ? REFUSAL_MS : server->settings.header_ms);
}
