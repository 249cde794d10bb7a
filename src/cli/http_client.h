/* http_client.h - as much of an HTTP/1.1 client as a load on a server needs: blocking sockets, TLS for https,
 * keep-alive, chunked bodies read as they come. One connection belongs to one thread; a target is shared and not
 * changed while it is. Errors are texts for people. SIGPIPE must be ignored.
 */
#ifndef DI_CLI_HTTP_CLIENT_H
#define DI_CLI_HTTP_CLIENT_H

#include <openssl/ssl.h>
#include <sys/types.h>

#include "base/status.h"
#include "base/text.h"

typedef struct di_client_target {
    char host[256], port[16], path[256]; /* path: what stands before "/v1/..." */
    char authority[288];
    const char *key; /* API key, NULL = none */
    SSL_CTX *tls;    /* NULL: http */
} di_client_target;

typedef struct di_client {
    int fd; /* -1: not connected */
    SSL *tls;
    int status;
    bool chunked, close, ended, used; /* of the answer being read; used: it has carried an answer before */
    bool retry_after;                 /* the answer has that field */
    long long left;                   /* bytes of this chunk or of the body; -1 = until the connection closes */
    size_t from, to;                  /* what of buffer is not consumed */
    char error[160];
    char buffer[16384];
} di_client;

/* "http://host:port/path" or https. ca_file: certificates in PEM form that are trusted, "" = the system's. */
di_status di_client_open_target(const char *url, const char *ca_file, di_client_target *target, di_error *error);
void di_client_close_target(di_client_target *target);

/* A connection begins with fd -1 and zeros. */
void di_client_close(di_client *c);
/* Sends a request and reads the head of the answer. body NULL = GET. A kept connection that the server has closed
 * meanwhile is opened again, once. False: c->error says why. */
bool di_client_request(di_client *c, const di_client_target *target, const char *path, const char *body, size_t length,
                       int timeout_s);
/* Bytes of the body as they come: *bytes is valid until the next call. 0 = the body has ended, -1 = failed. */
ssize_t di_client_read(di_client *c, const char **bytes);
/* The rest of the body. */
bool di_client_read_all(di_client *c, di_text *out);

#endif
