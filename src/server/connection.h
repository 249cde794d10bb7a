/* connection.h - one client's socket: reads requests one after another, writes answers, keeps the time limits.
 *
 * A connection has at most one exchange; requests that were sent ahead wait in its input buffer. While an answer is in
 * progress the socket is read on, so that a client that leaves is noticed at once; one that sends more ahead than the
 * buffer holds is cut off, because its end could not be seen behind those bytes. I/O thread.
 */
#ifndef DI_SERVER_CONNECTION_H
#define DI_SERVER_CONNECTION_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>

#include "server/http.h"
#include "server/http_parser.h"

typedef enum di_connection_state {
    DI_CONNECTION_HEAD,     /* between requests, or within a head */
    DI_CONNECTION_BODY,     /* within a body */
    DI_CONNECTION_EXCHANGE, /* an answer is in progress */
    DI_CONNECTION_FLUSH,    /* the last answer is being written, then the end */
    DI_CONNECTION_LINGER    /* all is written; what still comes is dropped, so that no reset overtakes the answer */
} di_connection_state;

typedef struct di_connection {
    di_server *server;
    struct di_connection *older, *newer;
    struct bufferevent *stream;
    struct event *timer;
    int64_t timer_due_ns; /* INT64_MAX = not set */
    di_connection_state state;
    di_http_parser parser;
    di_exchange *exchange;
    size_t body_counted;     /* bytes of the parser's body that are in server->body_bytes */
    int64_t read_due_ns;     /* HEAD, BODY, LINGER: when patience ends */
    int64_t linger_until_ns; /* LINGER: at the latest */
    int64_t write_due_ns;    /* while output waits: when the client must have taken some */
    int64_t since_ns;        /* of the state HEAD: how long it has been idle */
    bool used;               /* a request has begun to come */
    bool over_limit;         /* one connection too many: probes are answered, all else is refused */
    bool closing;            /* no further request is read */
    bool lingers;            /* unread input is expected at the end */
    bool resume;             /* to go on from the event loop after an answer */
    bool aborting;           /* to be reset as soon as the event loop comes back */
    bool tls, peer_ended;
    char peer[64];
} di_connection;

/* Takes over the socket. Closes it when memory runs out. */
void di_connection_open(di_server *server, evutil_socket_t socket, const char *peer, bool over_limit);
/* Ends it at once; an exchange in progress is gone. reset: the client sees a reset, not an orderly end. */
void di_connection_close(di_connection *connection, bool reset);
/* Between requests: nothing of one received, not even by the kernel, no answer being written. To close such a
 * connection loses nothing if it was used before: its client knows that it may go. */
bool di_connection_idle(const di_connection *connection);
/* A request, or the answer to one, is on this connection, or may be on its way: the server must not end yet. */
bool di_connection_waited_for(const di_connection *connection);
/* Bytes that wait to be written. */
size_t di_connection_queued(const di_connection *connection);
/* For exchange.c: bytes of an answer; the answer has ended. */
void di_connection_write(di_connection *connection, const char *bytes, size_t length);
void di_connection_answered(di_connection *connection);
/* The timer must go off at that time at the latest. */
void di_connection_arm(di_connection *connection, int64_t due_ns);

#endif
