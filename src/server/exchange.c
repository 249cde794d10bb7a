/* exchange.c - one request and its answer; see http.h and exchange.h. */
#include "server/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"

enum { LARGE_ARENA = 4 << 20 };

/* ---------------------------------------------------------------- life */

di_exchange *di_exchange_begin(di_connection *connection) {
    di_exchange *exchange = calloc(1, sizeof *exchange);
    if (!exchange) return NULL;
    di_server *server = connection->server;
    exchange->server = server;
    exchange->connection = connection;
    exchange->message = connection->parser.message;
    exchange->body_counted = connection->body_counted;
    exchange->rest = "";
    exchange->arrival_ns = di_now_ns();
    exchange->holds = 1; /* the connection's, until the answer has ended */
    exchange->keep_alive = exchange->message.has_head && exchange->message.keep_alive;
    snprintf(exchange->peer, sizeof exchange->peer, "%s", connection->peer);
    di_server_make_id(server, &exchange->message, exchange->id, exchange->trace);
    connection->parser.message = (di_http_message){0};
    connection->body_counted = 0;
    connection->exchange = exchange;
    return exchange;
}

static void write_access(di_exchange *exchange) {
    const di_route *route = exchange->route;
    bool probe = route && route->access == DI_ACCESS_PROBE && exchange->http_status < 300;
    di_json_writer *line = probe ? NULL : di_access_log_begin(exchange->server->access);
    if (!line) return;
    int64_t now = di_now_ns();
    di_json_key(line, "id");
    di_json_string(line, exchange->id);
    if (exchange->trace[0]) {
        di_json_key(line, "trace");
        di_json_string(line, exchange->trace);
    }
    di_json_key(line, "peer");
    di_json_string(line, exchange->peer);
    if (exchange->tenant[0]) {
        di_json_key(line, "tenant");
        di_json_string(line, exchange->tenant);
    }
    const di_http_message *message = &exchange->message;
    size_t path = message->path.length < 256 ? message->path.length : 256;
    di_json_key(line, "method");
    di_json_string(line, di_http_message_method(message));
    di_json_key(line, "path");
    di_json_string_n(line, message->has_line ? message->path.data : "", message->has_line ? path : 0);
    di_json_key(line, "status");
    di_json_integer(line, exchange->http_status);
    di_json_key(line, "end");
    di_json_string(line, exchange->gone ? "gone" : "done");
    di_json_key(line, "bytes_in");
    di_json_unsigned(line, message->body.length);
    di_json_key(line, "bytes_out");
    di_json_unsigned(line, exchange->bytes_out);
    if (exchange->begun_ns) {
        di_json_key(line, "begun_ms");
        di_json_number(line, di_ms((exchange->begun_ns - exchange->arrival_ns) / 1000 * 1000));
    }
    di_json_key(line, "ms");
    di_json_number(line, di_ms((now - exchange->arrival_ns) / 1000 * 1000));
    for (size_t i = 0; i < exchange->note_count; i++) {
        const di_exchange_note *note = &exchange->notes[i];
        di_json_key(line, note->name);
        if (note->text)
            di_json_string(line, note->text);
        else
            di_json_number(line, note->number);
    }
    di_access_log_end(exchange->server->access);
}

void di_exchange_hold(di_exchange *exchange) {
    exchange->holds++;
}

static void free_arena(void *arg) {
    di_arena_free(arg);
}

static void arena_freed(void *arg) {
    (void)arg;
}

void di_exchange_release(di_exchange *exchange) {
    if (--exchange->holds) return;
    exchange->server->body_bytes -= exchange->body_counted;
    di_http_message_free(&exchange->message);
    /* Giving hundreds of megabytes back takes a while. */
    bool large = exchange->arena && di_arena_bytes(exchange->arena) > LARGE_ARENA;
    if (!large || di_server_work(exchange->server, free_arena, arena_freed, exchange->arena, NULL) != DI_OK)
        di_arena_free(exchange->arena);
    free(exchange);
}

/* No more of it reaches the client. */
static void detach(di_exchange *exchange) {
    di_server *server = exchange->server;
    server->counters.answers[exchange->http_status / 100 % 6]++;
    if (exchange->counted) server->exchanges--;
    exchange->counted = false;
    exchange->connection->exchange = NULL;
    exchange->connection = NULL;
}

/* The pointer may be invalid afterwards. */
static void finish(di_exchange *exchange) {
    write_access(exchange);
    exchange->logged = true;
    di_exchange_release(exchange);
}

static void end_answer(di_exchange *exchange) {
    di_connection *connection = exchange->connection;
    if (!exchange->keep_alive) connection->closing = true;
    detach(exchange);
    finish(exchange);
    di_connection_answered(connection);
}

void di_exchange_lost(di_exchange *exchange) {
    exchange->gone = true;
    exchange->server->counters.gone++;
    detach(exchange);
    if (exchange->on_close) exchange->on_close(exchange, exchange->user);
    finish(exchange);
}

/* ---------------------------------------------------------------- the request */

const char *di_exchange_method(const di_exchange *exchange) {
    return di_http_message_method(&exchange->message);
}

const char *di_exchange_path(const di_exchange *exchange) {
    return exchange->message.has_line ? exchange->message.path.data : "";
}

const char *di_exchange_rest(const di_exchange *exchange) {
    return exchange->rest;
}

/* All fields of the name, joined. */
static const char *join_fields(di_exchange *exchange, const char *name) {
    const di_http_message *message = &exchange->message;
    di_text joined = {0};
    for (size_t i = 0; i < message->field_count; i++) {
        if (strcasecmp(message->head.data + message->fields[i].name, name) != 0) continue;
        if (joined.length) di_text_puts(&joined, ", ");
        di_text_puts(&joined, message->head.data + message->fields[i].value);
    }
    di_arena *arena = joined.failed ? NULL : di_exchange_arena(exchange);
    const char *copy = arena ? di_arena_copy(arena, joined.data, joined.length) : NULL;
    di_text_free(&joined);
    return copy;
}

const char *di_exchange_header(const di_exchange *exchange, const char *name) {
    const di_http_message *message = &exchange->message;
    size_t count = 0;
    for (size_t i = 0; i < message->field_count; i++)
        count += strcasecmp(message->head.data + message->fields[i].name, name) == 0;
    if (count < 2) return di_http_message_field(message, name);
    return join_fields((di_exchange *)exchange, name);
}

const char *di_exchange_body(const di_exchange *exchange, size_t *length) {
    *length = exchange->message.body.length;
    return exchange->message.body.data ? exchange->message.body.data : "";
}

const char *di_exchange_id(const di_exchange *exchange) {
    return exchange->id;
}

const char *di_exchange_tenant(const di_exchange *exchange) {
    return exchange->tenant[0] ? exchange->tenant : NULL;
}

di_arena *di_exchange_arena(di_exchange *exchange) {
    if (!exchange->arena) exchange->arena = di_arena_new(4096);
    return exchange->arena;
}

void di_exchange_set_user(di_exchange *exchange, void *user) {
    exchange->user = user;
}

void di_exchange_on_close(di_exchange *exchange, void (*on_close)(di_exchange *exchange, void *user)) {
    exchange->on_close = on_close;
}

bool di_exchange_gone(const di_exchange *exchange) {
    return exchange->gone;
}

/* ---------------------------------------------------------------- the answer */

static const char *status_text(int http_status) {
    static const struct {
        int http_status;
        const char *text;
    } rows[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {421, "Misdirected Request"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].http_status == http_status) return rows[i].text;
    return "Unknown";
}

static bool is_header(const di_header *header) {
    return header->value && !strpbrk(header->name, "\r\n: ") && !strpbrk(header->value, "\r\n");
}

static bool has_header(const di_header *headers, size_t count, const char *name) {
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(headers[i].name, name) == 0) return true;
    return false;
}

/* length: of the body; SIZE_MAX = streamed. */
static void write_head(di_exchange *exchange, int http_status, const char *content_type, const di_header *headers,
                       size_t count, size_t length) {
    di_server *server = exchange->server;
    const di_http_message *message = &exchange->message;
    bool streamed = length == SIZE_MAX, events = content_type && strncmp(content_type, "text/event-stream", 17) == 0;
    bool has_body = http_status >= 200 && http_status != 204 && http_status != 304;
    exchange->bodyless = strcmp(di_http_message_method(message), "HEAD") == 0 || !has_body;
    exchange->chunked = streamed && message->minor > 0;
    if ((streamed && !exchange->chunked && !exchange->bodyless) || server->draining || exchange->connection->closing)
        exchange->keep_alive = false;
    di_text head = {0};
    di_text_printf(&head, "HTTP/1.1 %d %s\r\nDate: %s\r\nx-request-id: %s\r\n", http_status, status_text(http_status),
                   di_server_date(server), exchange->id);
    if (!has_header(headers, count, "request-id")) di_text_printf(&head, "request-id: %s\r\n", exchange->id);
    if (content_type) di_text_printf(&head, "Content-Type: %s\r\n", content_type);
    if (!has_header(headers, count, "x-content-type-options"))
        di_text_puts(&head, "X-Content-Type-Options: nosniff\r\n");
    if (events && !has_header(headers, count, "cache-control")) di_text_puts(&head, "Cache-Control: no-cache\r\n");
    if (events && !has_header(headers, count, "x-accel-buffering")) di_text_puts(&head, "X-Accel-Buffering: no\r\n");
    if (exchange->chunked)
        di_text_puts(&head, "Transfer-Encoding: chunked\r\n");
    else if (!streamed && has_body)
        di_text_printf(&head, "Content-Length: %zu\r\n", length);
    if ((http_status == 429 || http_status == 503) && !has_header(headers, count, "retry-after"))
        di_text_puts(&head, "Retry-After: 1\r\n");
    if (http_status == 401) di_text_puts(&head, "WWW-Authenticate: Bearer\r\n");
    for (size_t i = 0; i < count; i++)
        if (is_header(&headers[i])) di_text_printf(&head, "%s: %s\r\n", headers[i].name, headers[i].value);
    const char *origin = message->has_head ? di_http_message_field(message, "origin") : NULL;
    di_server_write_cors(server, origin, &head);
    di_text_printf(&head, "Connection: %s\r\n\r\n", exchange->keep_alive ? "keep-alive" : "close");
    exchange->http_status = http_status;
    exchange->begun_ns = exchange->written_ns = di_now_ns();
    if (head.failed)
        exchange->keep_alive = false;
    else
        di_connection_write(exchange->connection, head.data, head.length);
    di_text_free(&head);
}

void di_exchange_reply(di_exchange *exchange, int http_status, const char *content_type, const di_header *headers,
                       size_t header_count, const char *bytes, size_t length) {
    if (!exchange->connection || exchange->streaming) return;
    write_head(exchange, http_status, content_type, headers, header_count, length);
    if (!exchange->bodyless && length) {
        di_connection_write(exchange->connection, bytes, length);
        exchange->bytes_out += length;
    }
    end_answer(exchange);
}

void di_error_openai(di_text *body, const di_error_parts *parts) {
    int http_status = parts->http_status;
    static const struct {
        int http_status;
        const char *type;
    } rows[] = {
        {401, "authentication_error"},  {403, "permission_error"},          {404, "not_found_error"},
        {408, "timeout_error"},         {429, "rate_limit_error"},          {500, "internal_error"},
        {501, "not_implemented_error"}, {503, "service_unavailable_error"}, {504, "timeout_error"},
        {505, "invalid_request_error"},
    };
    const char *type = http_status >= 500 ? "internal_error" : "invalid_request_error";
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].http_status == http_status) type = rows[i].type;
    di_json_writer writer;
    di_json_begin(&writer, body);
    di_json_object_begin(&writer);
    di_json_key(&writer, "error");
    di_json_object_begin(&writer);
    di_json_key(&writer, "message");
    di_json_string(&writer, parts->message);
    di_json_key(&writer, "type");
    di_json_string(&writer, type);
    di_json_key(&writer, "param");
    if (parts->param && parts->param[0])
        di_json_string(&writer, parts->param);
    else
        di_json_null(&writer);
    di_json_key(&writer, "code");
    di_json_string(&writer, parts->code);
    di_json_object_end(&writer);
    di_json_object_end(&writer);
}

static di_error_shape shape_of(const di_exchange *exchange) {
    const di_route *route = exchange->route ? exchange->route : exchange->sibling;
    if (route && route->error) return route->error;
    return exchange->server->choose_errors ? exchange->server->choose_errors(exchange) : di_error_openai;
}

static void fail_with(di_exchange *exchange, int http_status, const char *code, const char *param, const char *message,
                      const di_header *headers, size_t header_count) {
    di_text body = {0};
    const di_error_parts parts = {http_status, code, param, message, exchange->id};
    shape_of(exchange)(&body, &parts);
    const char *bytes = body.failed || !body.data ? "{}" : body.data;
    di_exchange_note_text(exchange, "error", code);
    di_exchange_reply(exchange, http_status, "application/json", headers, header_count, bytes, strlen(bytes));
    di_text_free(&body);
}

void di_exchange_fail(di_exchange *exchange, int http_status, const char *code, const char *param, const char *format,
                      ...) {
    if (!exchange->connection || exchange->streaming) return;
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    fail_with(exchange, http_status, code, param, message, NULL, 0);
}

void di_exchange_fail_method(di_exchange *exchange, const char *allow) {
    char message[200];
    snprintf(message, sizeof message, "%.32s is not possible here; possible is %.120s", di_exchange_method(exchange),
             allow);
    fail_with(exchange, 405, "method_not_allowed", NULL, message, &(di_header){"Allow", allow}, 1);
}

void di_exchange_fail_error(di_exchange *exchange, const di_error *error) {
    di_exchange_fail(exchange, di_status_http(error->status), di_status_name(error->status), error->param, "%s",
                     error->message);
}

/* ---------------------------------------------------------------- streams */

void di_exchange_stream_begin(di_exchange *exchange, int http_status, const char *content_type,
                              const di_header *headers, size_t header_count) {
    if (!exchange->connection || exchange->streaming) return;
    write_head(exchange, http_status, content_type, headers, header_count, SIZE_MAX);
    exchange->streaming = true;
    if (exchange->keepalive)
        di_connection_arm(exchange->connection,
                          exchange->written_ns + exchange->server->settings.keepalive_ms * 1000000);
}

void di_exchange_stream_write(di_exchange *exchange, const char *bytes, size_t length) {
    if (!exchange->connection || !exchange->streaming || !length) return;
    exchange->bytes_out += length;
    exchange->written_ns = di_now_ns();
    if (exchange->bodyless) return;
    char size[32];
    if (exchange->chunked) {
        int digits = snprintf(size, sizeof size, "%zx\r\n", length);
        di_connection_write(exchange->connection, size, (size_t)digits);
    }
    di_connection_write(exchange->connection, bytes, length);
    if (exchange->chunked) di_connection_write(exchange->connection, "\r\n", 2);
}

void di_exchange_stream_end(di_exchange *exchange) {
    if (!exchange->connection || !exchange->streaming) return;
    if (exchange->chunked && !exchange->bodyless) di_connection_write(exchange->connection, "0\r\n\r\n", 5);
    end_answer(exchange);
}

void di_exchange_keepalive(di_exchange *exchange, const char *text) {
    exchange->keepalive = text;
    if (text && exchange->connection && exchange->streaming)
        di_connection_arm(exchange->connection,
                          exchange->written_ns + exchange->server->settings.keepalive_ms * 1000000);
}

int64_t di_exchange_keep_alive(di_exchange *exchange, int64_t now_ns) {
    if (!exchange->streaming || !exchange->keepalive) return INT64_MAX;
    int64_t wait = exchange->server->settings.keepalive_ms * 1000000;
    /* A client that does not read has bytes waiting: more would tell it nothing. */
    if (now_ns - exchange->written_ns >= wait) {
        if (di_exchange_full(exchange, 0))
            exchange->written_ns = now_ns;
        else
            di_exchange_stream_write(exchange, exchange->keepalive, strlen(exchange->keepalive));
    }
    return exchange->written_ns + wait;
}

size_t di_exchange_queued(const di_exchange *exchange) {
    return exchange->connection ? di_connection_queued(exchange->connection) : 0;
}

bool di_exchange_full(const di_exchange *exchange, size_t more) {
    return di_exchange_queued(exchange) + more > exchange->server->settings.write_buffer;
}

void di_exchange_on_drain(di_exchange *exchange, void (*on_drain)(di_exchange *exchange, void *user)) {
    exchange->on_drain = on_drain;
    if (on_drain && exchange->connection && di_exchange_queued(exchange) <= exchange->server->settings.write_buffer / 2)
        di_connection_arm(exchange->connection, 0); /* from the event loop, as promised */
}

void di_exchange_drained(di_exchange *exchange) {
    if (!exchange->on_drain || di_exchange_queued(exchange) > exchange->server->settings.write_buffer / 2) return;
    void (*on_drain)(di_exchange * exchange, void *user) = exchange->on_drain;
    exchange->on_drain = NULL;
    on_drain(exchange, exchange->user);
}

static di_exchange_note *new_note(di_exchange *exchange, const char *name) {
    if (exchange->logged || exchange->note_count == DI_EXCHANGE_NOTES) return NULL;
    di_exchange_note *note = &exchange->notes[exchange->note_count++];
    *note = (di_exchange_note){.name = name};
    return note;
}

void di_exchange_note_number(di_exchange *exchange, const char *name, double value) {
    di_exchange_note *note = new_note(exchange, name);
    if (note) note->number = value;
}

static void count_error(di_http_counters *counters, const char *code) {
    int row = 0;
    while (row + 1 < DI_HTTP_ERROR_CODES && counters->errors[row].code && strcmp(counters->errors[row].code, code) != 0)
        row++;
    if (!counters->errors[row].code) counters->errors[row].code = row + 1 < DI_HTTP_ERROR_CODES ? code : "other";
    counters->errors[row].count++;
}

void di_exchange_note_text(di_exchange *exchange, const char *name, const char *literal) {
    if (!exchange->logged && strcmp(name, "error") == 0) count_error(&exchange->server->counters, literal);
    di_exchange_note *note = new_note(exchange, name);
    if (note) note->text = literal;
}
