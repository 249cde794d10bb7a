/* exchange.h - exchanges from inside: connection.c makes and ends them, exchange.c is the rest of http.h. I/O thread.
 */
#ifndef DI_SERVER_EXCHANGE_H
#define DI_SERVER_EXCHANGE_H

#include "server/server_internal.h"

enum { DI_EXCHANGE_NOTES = 16 };

typedef struct di_exchange_note {
    const char *name, *text; /* text NULL: a number */
    double number;
} di_exchange_note;

struct di_exchange {
    di_server *server;
    di_connection *connection; /* NULL once it has ended or is gone */
    const di_route *route;     /* NULL if none was found */
    const di_route *sibling;   /* of the same path, for the shape of errors */
    void *app;
    di_http_message message;
    size_t body_counted;
    const char *rest;
    char id[129], trace[33], tenant[64], peer[64];
    int64_t arrival_ns, begun_ns, written_ns; /* head complete, answer begun (0 = not yet), last write */
    di_arena *arena;
    void *user;
    void (*on_close)(di_exchange *exchange, void *user);
    void (*on_drain)(di_exchange *exchange, void *user);
    const char *keepalive;
    unsigned holds;
    bool counted; /* in server->exchanges: asks for work of the engine */
    bool logged, gone, streaming, chunked, bodyless, keep_alive;
    int http_status;
    uint64_t bytes_out;
    di_exchange_note notes[DI_EXCHANGE_NOTES];
    size_t note_count;
};

/* Takes the parser's message over, complete or not. NULL when out of memory. */
di_exchange *di_exchange_begin(di_connection *connection);
/* The client is gone or the server stops: on_close, unless the answer has ended. */
void di_exchange_lost(di_exchange *exchange);
/* Writes the keepalive text if it is due. Returns when it is due next, INT64_MAX if never. */
int64_t di_exchange_keep_alive(di_exchange *exchange, int64_t now_ns);
/* 405 that names the methods there are. */
void di_exchange_fail_method(di_exchange *exchange, const char *allow);
/* Output went down. */
void di_exchange_drained(di_exchange *exchange);

#endif
