/* http_client.h - a plain blocking HTTP client and a server running in a thread, for tests. Failures end the test. */
#ifndef DI_TESTS_SUPPORT_HTTP_CLIENT_H
#define DI_TESTS_SUPPORT_HTTP_CLIENT_H

#include <pthread.h>

#include "base/text.h"
#include "server/server.h"

typedef struct di_test_server {
    di_server *server;
    di_config *config;
    pthread_t thread;
    int port;
    di_status ended; /* of di_server_run */
    di_server_task drain;
} di_test_server;

/* options: name, value, ..., NULL. A free port of 127.0.0.1, no access log. Routes may be added until it begins. */
void di_test_server_open(di_test_server *test, const char *const *options);
void di_test_server_begin(di_test_server *test);
/* Both, with these routes. */
void di_test_server_start(di_test_server *test, const di_route *routes, size_t count, void *app,
                          const char *const *options);
/* Drains, waits for the end of the thread, frees. */
void di_test_server_stop(di_test_server *test);
/* Only begins to drain. */
void di_test_server_drain(di_test_server *test);
void di_test_server_join(di_test_server *test);

/* A connected socket; receiving times out after `timeout_ms`. */
int di_test_connect(int port, int timeout_ms);
/* True if all was sent. */
bool di_test_send(int socket, const char *bytes, size_t length);
void di_test_puts(int socket, const char *text);
/* Receives until the text holds `end` (NULL: until the connection ends) or nothing more comes. *closed (may be NULL):
 * whether the connection ended in order. */
void di_test_receive(int socket, const char *end, di_text *text, bool *closed);
/* Sends, receives until the connection ends or nothing comes for the socket's time, closes. Caller frees the text. */
di_text di_test_ask(int port, const char *request);
/* Status of the first answer in the text; 0 if there is none. */
int di_test_status(const di_text *text);

#endif
