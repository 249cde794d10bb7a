/* server_internal.h - the server from inside: shared by server.c, listener.c, connection.c, exchange.c, tasks.c and
 * operations.c. Everything belongs to the I/O thread except what stands under `mutex`. */
#ifndef DI_SERVER_SERVER_INTERNAL_H
#define DI_SERVER_SERVER_INTERNAL_H

#include <event2/event.h>
#include <pthread.h>

#include "base/clock.h"
#include "server/access_log.h"
#include "server/connection.h"
#include "server/http.h"
#include "server/http_counters.h"
#include "server/http_parser.h"
#include "server/keys.h"
#include "server/server.h"
#include "server/tls.h"

typedef struct di_http_settings {
    di_http_limits limits;
    int64_t drain_ms, keepalive_ms, idle_ms, header_ms, body_ms, write_ms, linger_ms;
    size_t write_buffer, bodies_bytes;
    size_t connections;
    int workers;
    bool open_probes;
    char *host, *port, *api_key, *api_key_file, *tls_cert, *tls_key, *cors_origin, *allowed_hosts;
} di_http_settings;

typedef struct di_route_table {
    const di_route *rows;
    size_t count;
    void *app;
} di_route_table;

enum { DI_MAX_ROUTE_TABLES = 8 };

typedef struct di_work {
    void (*work)(void *arg);
    void (*done)(void *arg);
    void *arg;
    struct di_work *next;
} di_work;

typedef struct di_work_list {
    di_work *first, **end;
} di_work_list;

struct di_server {
    di_log *log;
    di_http_settings settings;
    struct event_base *base;
    /* listener.c */
    int socket;
    struct evconnlistener *listener;
    struct event *accept_again;
    SSL_CTX *tls;
    char url[160];
    /* server.c */
    di_keys *keys; /* NULL = none are needed */
    di_access_log *access;
    di_route_table tables[DI_MAX_ROUTE_TABLES];
    size_t table_count;
    di_error_shape (*choose_errors)(const di_exchange *exchange); /* may be NULL */
    struct event *signals[3], *drain_check;
    void (*on_reload)(void *arg);
    void *on_reload_arg;
    bool loading, draining, stopped, cut; /* cut: by a second signal */
    int64_t drain_until_ns;
    uint64_t id_prefix, id_count;
    time_t opened, date_second;
    char date[40];
    /* connection.c */
    di_connection *connections; /* newest first */
    size_t connection_count;
    size_t exchanges;  /* begun by a handler and not ended, that ask for work: POST, no probes */
    size_t body_bytes; /* of all bodies held */
    di_http_counters counters;
    /* tasks.c */
    pthread_mutex_t mutex;
    di_server_task *posted, **posted_end; /* mutex */
    int wake;                             /* eventfd */
    struct event *woken;
    pthread_cond_t work_waits;
    di_work_list queued, finished; /* mutex */
    bool work_ends;                /* mutex */
    di_server_task deliver;
    pthread_t *workers;
    int worker_count;
};

/* listener.c */
di_status di_listener_bind(di_server *server, bool has_key, di_error *error);
di_status di_listener_start(di_server *server, di_error *error);
void di_listener_close(di_server *server);

/* tasks.c */
di_status di_tasks_open(di_server *server, di_error *error);
/* Lets the workers finish what is queued and delivers it. */
void di_tasks_drain(di_server *server);
void di_tasks_close(di_server *server);

/* server.c: rows of the path of a request. *path_known: some row has this path, whatever its method; its methods are
 * appended to *allow (may be NULL). *rest receives what "*" took. */
typedef struct di_match {
    const di_route *route; /* of path and method; NULL if none */
    void *app;
    const di_route *sibling; /* any row of the path */
    const char *rest;
} di_match;
di_match di_server_match(const di_server *server, const char *method, const char *path, di_text *allow);
/* Tenant of the request's key; NULL if it has none that is known. */
const char *di_server_check_key(const di_server *server, const di_http_message *message);
/* Whether a request with this Host (may be NULL) may be meant for this server. */
bool di_server_knows_host(const di_server *server, const char *host);
/* Writes what CORS wants of an answer to a request with this Origin (may be NULL). */
void di_server_write_cors(const di_server *server, const char *origin, di_text *head);
bool di_server_cors_allows(const di_server *server, const char *origin);
const char *di_server_date(di_server *server);
void di_server_make_id(di_server *server, const di_http_message *message, char id[129], char trace[33]);

#endif
