/* server.c - opening, routes, signals, the event loop and its end; see server.h. */
#include "server/server.h"

#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <time.h>

#include "server/server_internal.h"

enum { DRAIN_CHECK_MS = 20 };

/* ---------------------------------------------------------------- settings */

static char *copy_option(const di_config *config, di_config_id id) {
    return strdup(di_config_text(config, id));
}

static di_status read_settings(const di_config *config, di_http_settings *settings, di_error *error) {
    *settings = (di_http_settings){
        .limits = {.head_bytes = (size_t)di_config_int(config, DI_OPT_LIMIT_HEADER_BYTES),
                   .head_fields = (size_t)di_config_int(config, DI_OPT_LIMIT_HEADER_FIELDS),
                   .body_bytes = (size_t)di_config_int(config, DI_OPT_LIMIT_BODY_BYTES)},
        .drain_ms = di_config_int(config, DI_OPT_DRAIN_MS),
        .keepalive_ms = di_config_int(config, DI_OPT_KEEPALIVE_MS),
        .idle_ms = di_config_int(config, DI_OPT_IDLE_TIMEOUT_MS),
        .header_ms = di_config_int(config, DI_OPT_HEADER_TIMEOUT_MS),
        .body_ms = di_config_int(config, DI_OPT_BODY_TIMEOUT_MS),
        .write_ms = di_config_int(config, DI_OPT_WRITE_TIMEOUT_MS),
        .linger_ms = di_config_int(config, DI_OPT_LINGER_MS),
        .write_buffer = (size_t)di_config_int(config, DI_OPT_WRITE_BUFFER),
        .bodies_bytes = (size_t)di_config_int(config, DI_OPT_LIMIT_BODIES_BYTES),
        .connections = (size_t)di_config_int(config, DI_OPT_MAX_CONNECTIONS),
        .workers = (int)di_config_int(config, DI_OPT_HTTP_WORKERS),
        .open_probes = di_config_bool(config, DI_OPT_OPEN_PROBES),
        .host = copy_option(config, DI_OPT_HOST),
        .port = copy_option(config, DI_OPT_PORT),
        .api_key = copy_option(config, DI_OPT_API_KEY),
        .api_key_file = copy_option(config, DI_OPT_API_KEY_FILE),
        .tls_cert = copy_option(config, DI_OPT_TLS_CERT),
        .tls_key = copy_option(config, DI_OPT_TLS_KEY),
        .cors_origin = copy_option(config, DI_OPT_CORS_ORIGIN),
        .allowed_hosts = copy_option(config, DI_OPT_ALLOWED_HOSTS),
    };
    if (settings->host && settings->port && settings->api_key && settings->api_key_file && settings->tls_cert &&
        settings->tls_key && settings->cors_origin && settings->allowed_hosts)
        return DI_OK;
    return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
}

static void free_settings(di_http_settings *settings) {
    free(settings->host);
    free(settings->port);
    free(settings->api_key);
    free(settings->api_key_file);
    free(settings->tls_cert);
    free(settings->tls_key);
    free(settings->cors_origin);
    free(settings->allowed_hosts);
}

/* ---------------------------------------------------------------- routes */

di_status di_server_add_routes(di_server *server, const di_route *routes, size_t count, void *app, di_error *error) {
    if (server->table_count == DI_MAX_ROUTE_TABLES)
        return di_fail(error, DI_ERR_INTERNAL, NULL, "more than %d tables of routes", DI_MAX_ROUTE_TABLES);
    for (size_t i = 0; i < count; i++) {
        const di_route *other;
        for (size_t j = 0; (other = di_server_route(server, j)); j++)
            if (strcmp(other->method, routes[i].method) == 0 && strcmp(other->path, routes[i].path) == 0)
                return di_fail(error, DI_ERR_INTERNAL, NULL, "the route %s %s is there twice", other->method,
                               other->path);
    }
    server->tables[server->table_count++] = (di_route_table){routes, count, app};
    return DI_OK;
}

void di_server_set_errors(di_server *server, di_error_shape (*choose)(const di_exchange *exchange)) {
    server->choose_errors = choose;
}

const di_route *di_server_route(const di_server *server, size_t index) {
    for (size_t t = 0; t < server->table_count; t++) {
        if (index < server->tables[t].count) return &server->tables[t].rows[index];
        index -= server->tables[t].count;
    }
    return NULL;
}

/* What is left of the path beyond the row's; NULL if it is another path. */
static const char *match_path(const char *pattern, const char *path) {
    size_t length = strlen(pattern);
    if (length >= 2 && strcmp(pattern + length - 2, "/*") == 0)
        return strncmp(pattern, path, length - 1) == 0 && path[length - 1] ? path + length - 1 : NULL;
    return strcmp(pattern, path) == 0 ? path + length : NULL;
}

di_match di_server_match(const di_server *server, const char *method, const char *path, di_text *allow) {
    di_match match = {0};
    bool head = strcmp(method, "HEAD") == 0;
    for (size_t t = 0; t < server->table_count; t++) {
        const di_route_table *table = &server->tables[t];
        for (size_t i = 0; i < table->count; i++) {
            const di_route *row = &table->rows[i];
            const char *rest = match_path(row->path, path);
            if (!rest) continue;
            bool get = strcmp(row->method, "GET") == 0;
            if (!match.sibling) match.sibling = row;
            if (allow) di_text_printf(allow, "%s%s", row->method, get ? ", HEAD, " : ", ");
            if (match.route || (strcmp(row->method, method) != 0 && !(head && get))) continue;
            match.route = row;
            match.app = table->app;
            match.rest = rest;
        }
    }
    if (allow) di_text_puts(allow, "OPTIONS");
    return match;
}

/* ---------------------------------------------------------------- keys, origins, ids, dates */

const char *di_server_check_key(const di_server *server, const di_http_message *message) {
    if (!server->keys) return "";
    static const char bearer[] = "Bearer ";
    const char *key = di_http_message_field(message, "authorization");
    if (key && strncasecmp(key, bearer, sizeof bearer - 1) == 0) {
        key += sizeof bearer - 1;
        key += strspn(key, " ");
    } else {
        key = di_http_message_field(message, "x-api-key");
    }
    return key ? di_keys_find(server->keys, key) : NULL;
}

/* Whether a list "a,b", or "*", names text[0 .. length), in any case. */
static bool list_names(const char *list, const char *text, size_t length) {
    if (strcmp(list, "*") == 0) return true;
    while (*list) {
        list += strspn(list, ", ");
        size_t item = strcspn(list, ", ");
        if (item && item == length && strncasecmp(list, text, length) == 0) return true;
        list += item;
    }
    return false;
}

bool di_server_cors_allows(const di_server *server, const char *origin) {
    return origin && list_names(server->settings.cors_origin, origin, strlen(origin));
}

/* Without a key the address is loopback, and what keeps a stranger's web page out is that it is another origin. It is
 * not when its domain name was made to resolve to this address. An address, and a name without a dot, cannot be had
 * that way. */
bool di_server_knows_host(const di_server *server, const char *host) {
    static const char local[] = ".localhost";
    if (server->keys || !host || host[0] == '[') return true;
    size_t length = strcspn(host, ":");
    if (length && host[length - 1] == '.') length--;
    bool address = strspn(host, "0123456789.") >= length, label = !memchr(host, '.', length);
    bool below_localhost =
        length >= sizeof local && strncasecmp(host + length - (sizeof local - 1), local, sizeof local - 1) == 0;
    return address || label || below_localhost || list_names(server->settings.host, host, length) ||
           list_names(server->settings.allowed_hosts, host, length);
}

void di_server_write_cors(const di_server *server, const char *origin, di_text *head) {
    if (!server->settings.cors_origin[0]) return;
    bool any = strcmp(server->settings.cors_origin, "*") == 0;
    if (!any) di_text_puts(head, "Vary: Origin\r\n");
    if (!di_server_cors_allows(server, origin)) return;
    di_text_printf(head,
                   "Access-Control-Allow-Origin: %s\r\nAccess-Control-Expose-Headers: x-request-id, request-id, "
                   "retry-after\r\n",
                   any ? "*" : origin);
}

const char *di_server_date(di_server *server) {
    time_t now = time(NULL);
    if (now != server->date_second || !server->date[0]) {
        static const char days[] = "SunMonTueWedThuFriSat", months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
        struct tm utc = {0};
        gmtime_r(&now, &utc);
        snprintf(server->date, sizeof server->date, "%.3s, %02d %.3s %04d %02d:%02d:%02d GMT", days + 3 * utc.tm_wday,
                 utc.tm_mday, months + 3 * utc.tm_mon, utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
        server->date_second = now;
    }
    return server->date;
}

static bool only_of(const char *text, size_t length, const char *characters) {
    return strspn(text, characters) >= length;
}

void di_server_make_id(di_server *server, const di_http_message *message, char id[129], char trace[33]) {
    static const char hex[] = "0123456789abcdef";
    static const char word[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:";
    const char *given = message->has_head ? di_http_message_field(message, "x-request-id") : NULL;
    const char *parent = message->has_head ? di_http_message_field(message, "traceparent") : NULL;
    trace[0] = '\0';
    /* version - trace id - parent id - flags */
    if (parent && strlen(parent) >= 55 && only_of(parent, 2, hex) && parent[2] == '-' && only_of(parent + 3, 32, hex) &&
        parent[35] == '-' && !only_of(parent + 3, 32, "0"))
        snprintf(trace, 33, "%.32s", parent + 3);
    size_t length = given ? strlen(given) : 0;
    if (length && length <= 128 && only_of(given, length, word))
        snprintf(id, 129, "%s", given);
    else if (trace[0])
        snprintf(id, 129, "%s", trace);
    else
        snprintf(id, 129, "req-%016llx-%llu", (unsigned long long)server->id_prefix,
                 (unsigned long long)++server->id_count);
}

/* ---------------------------------------------------------------- end */

void di_server_stop(di_server *server) {
    server->stopped = true;
    event_base_loopbreak(server->base);
}

void di_server_set_loading(di_server *server, bool loading) {
    server->loading = loading;
}

/* Whether somebody still waits for bytes of an answer. */
static bool answers_left(const di_server *server) {
    if (server->exchanges) return true;
    for (const di_connection *at = server->connections; at; at = at->older)
        if (di_connection_waited_for(at)) return true;
    return false;
}

static void check_drain(evutil_socket_t socket, short what, void *arg) {
    (void)socket, (void)what;
    di_server *server = arg;
    if (!answers_left(server)) {
        di_server_stop(server);
    } else if (di_now_ns() >= server->drain_until_ns) {
        di_log_write(server->log, DI_LOG_WARN, "server", "%zu answers are cut off: --drain-ms is over",
                     server->exchanges);
        di_server_stop(server);
    } else {
        evtimer_add(server->drain_check, (&(struct timeval){.tv_usec = DRAIN_CHECK_MS * 1000}));
    }
}

void di_server_drain(di_server *server) {
    if (server->draining) return;
    server->draining = true;
    server->drain_until_ns = di_now_ns() + server->settings.drain_ms * 1000000;
    for (di_connection *at = server->connections, *older; at; at = older) {
        older = at->older;
        if (at->used && di_connection_idle(at)) di_connection_close(at, false);
    }
    evtimer_add(server->drain_check, (&(struct timeval){.tv_usec = DRAIN_CHECK_MS * 1000}));
}

bool di_server_draining(const di_server *server) {
    return server->draining;
}

/* ---------------------------------------------------------------- signals */

static void on_stop_signal(evutil_socket_t number, short what, void *arg) {
    (void)number, (void)what;
    di_server *server = arg;
    if (server->draining) {
        server->cut = true;
        di_server_stop(server);
        return;
    }
    di_log_write(server->log, DI_LOG_INFO, "server", "draining: %zu answers in progress", server->exchanges);
    di_server_drain(server);
}

/* What cannot be read stays as it was. */
static void on_reload_signal(evutil_socket_t number, short what, void *arg) {
    (void)number, (void)what;
    di_server *server = arg;
    const di_http_settings *settings = &server->settings;
    di_error error = {0};
    di_keys *keys = NULL;
    SSL_CTX *tls = NULL;
    if (di_keys_read(settings->api_key, settings->api_key_file, true, server->log, &keys, &error) == DI_OK) {
        di_keys_free(server->keys);
        server->keys = keys;
    } else {
        di_log_write(server->log, DI_LOG_ERROR, "server", "keys stay as they were: %s", error.message);
    }
    if (di_tls_open(settings->tls_cert, settings->tls_key, server->log, &tls, &error) == DI_OK) {
        SSL_CTX_free(server->tls); /* connections keep theirs */
        server->tls = tls;
    } else {
        di_log_write(server->log, DI_LOG_ERROR, "server", "the certificate stays as it was: %s", error.message);
    }
    if (di_access_log_reopen(server->access, &error) != DI_OK)
        di_log_write(server->log, DI_LOG_ERROR, "server", "%s", error.message);
    if (server->on_reload) server->on_reload(server->on_reload_arg);
}

void di_server_on_reload(di_server *server, void (*on_reload)(void *arg), void *arg) {
    server->on_reload = on_reload;
    server->on_reload_arg = arg;
}

/* ---------------------------------------------------------------- open, run, close */

static di_status make_events(di_server *server, di_error *error) {
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};
    server->base = event_base_new();
    if (!server->base) return di_fail(error, DI_ERR_INTERNAL, NULL, "cannot make an event loop");
    bool made = true;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        server->signals[i] =
            evsignal_new(server->base, numbers[i], numbers[i] == SIGHUP ? on_reload_signal : on_stop_signal, server);
        made = made && server->signals[i];
    }
    server->drain_check = evtimer_new(server->base, check_drain, server);
    if (!made || !server->drain_check) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    return di_tasks_open(server, error);
}

di_status di_server_open(const di_config *config, di_log *log, di_server **server, di_error *error) {
    *server = NULL;
    di_server *made = calloc(1, sizeof *made);
    if (!made) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    made->log = log;
    made->opened = time(NULL);
    made->counters.errors[0].code = di_status_name(DI_ERR_INTERNAL); /* to be seen at 0: alerts look for growth */
    made->socket = made->wake = -1;
    pthread_mutex_init(&made->mutex, NULL);
    pthread_cond_init(&made->work_waits, NULL);
    if (getrandom(&made->id_prefix, sizeof made->id_prefix, 0) < 0) made->id_prefix = (uint64_t)di_now_ns();
    di_status status = read_settings(config, &made->settings, error);
    const di_http_settings *settings = &made->settings;
    if (status == DI_OK)
        status = di_keys_read(settings->api_key, settings->api_key_file, false, log, &made->keys, error);
    if (status == DI_OK) status = di_tls_open(settings->tls_cert, settings->tls_key, log, &made->tls, error);
    if (status == DI_OK) {
        const char *where = di_config_text(config, DI_OPT_ACCESS_LOG);
        bool quiet = di_config_bool(config, DI_OPT_QUIET) && strcmp(where, "stderr") == 0;
        status = di_access_log_open(quiet ? "off" : where, &made->access, error);
    }
    if (status == DI_OK) status = di_listener_bind(made, made->keys != NULL, error);
    if (status == DI_OK) status = make_events(made, error);
    if (status == DI_OK)
        *server = made;
    else
        di_server_close(made);
    return status;
}

void di_server_close(di_server *server) {
    if (!server) return;
    while (server->connections) di_connection_close(server->connections, true);
    di_listener_close(server);
    di_tasks_close(server);
    for (size_t i = 0; i < sizeof server->signals / sizeof *server->signals; i++)
        if (server->signals[i]) event_free(server->signals[i]);
    if (server->drain_check) event_free(server->drain_check);
    if (server->base) event_base_free(server->base);
    SSL_CTX_free(server->tls);
    di_keys_free(server->keys);
    di_access_log_close(server->access);
    free_settings(&server->settings);
    pthread_cond_destroy(&server->work_waits);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

di_status di_server_listen(di_server *server, di_error *error) {
    return di_listener_start(server, error);
}

const char *di_server_url(const di_server *server) {
    return server->url;
}

size_t di_server_exchanges(const di_server *server) {
    return server->exchanges;
}

di_status di_server_run(di_server *server, di_error *error) {
    signal(SIGPIPE, SIG_IGN);
    for (size_t i = 0; i < sizeof server->signals / sizeof *server->signals; i++)
        if (event_add(server->signals[i], NULL) != 0)
            return di_fail(error, DI_ERR_INTERNAL, NULL, "cannot receive signals");
    while (!server->stopped)
        if (event_base_dispatch(server->base) != 0)
            return di_fail(error, DI_ERR_INTERNAL, NULL, "the event loop failed");
    /* Nobody looks at signals from here on, so they are again what the caller has made of them. The address is free
     * only afterwards: whoever sees that it is can rely on this. */
    for (size_t i = 0; i < sizeof server->signals / sizeof *server->signals; i++) event_del(server->signals[i]);
    di_listener_close(server);
    while (server->connections) di_connection_close(server->connections, server->connections->exchange != NULL);
    event_base_loop(server->base, EVLOOP_NONBLOCK); /* libevent closes sockets from its loop */
    di_tasks_drain(server);
    return server->cut ? di_fail(error, DI_ERR_CANCELLED, NULL, "stopped at once") : DI_OK;
}
