/* http_client.h - as much of an HTTP/1.1 client as a benchmark of a server needs: blocking sockets, keep-alive, chunked
 * bodies read as they come. One connection belongs to one thread. Errors are texts for people.
 */
#ifndef DI_BENCH_HTTP_CLIENT_H
#define DI_BENCH_HTTP_CLIENT_H

#include "base/text.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

typedef struct http_target {
    char host[256], port[16], path[256]; /* path: what stands before "/v1/..." */
    char authority[288];
    const char *key; /* API key, NULL = none */
} http_target;

typedef struct http_connection {
    int fd; /* -1: not connected */
    int status;
    bool chunked, close, ended, used; /* of the answer being read; used: it has carried an answer before */
    bool retry_after;                 /* the answer has that field */
    long long left;                   /* bytes of this chunk or of the body; -1 = until the connection closes */
    size_t from, to;                  /* what of buffer is not consumed */
    char error[160];
    char buffer[16384];
} http_connection;

/* "http://host:port/path" */
static inline bool http_parse_url(const char *url, http_target *target) {
    if (strncmp(url, "http://", 7) != 0) return false;
    url += 7;
    size_t authority = strcspn(url, "/");
    const char *colon = NULL;
    for (const char *p = url; p < url + authority; p++)
        if (*p == ':') colon = p;
    size_t host = colon && url[0] != '[' ? (size_t)(colon - url) : authority;
    if (url[0] == '[') { /* an IPv6 address */
        const char *end = memchr(url, ']', authority);
        if (!end) return false;
        host = (size_t)(end - url) - 1;
        if (colon && colon < end) colon = NULL;
        url++;
        authority--;
    }
    size_t path = strlen(url + authority);
    while (path && url[authority + path - 1] == '/') path--;
    if (!host || host >= sizeof target->host || path >= sizeof target->path) return false;
    snprintf(target->host, sizeof target->host, "%.*s", (int)host, url);
    snprintf(target->port, sizeof target->port, "%.*s", colon ? (int)(url + authority - colon - 1) : 2,
             colon ? colon + 1 : "80");
    snprintf(target->path, sizeof target->path, "%.*s", (int)path, url + authority);
    bool six = strchr(target->host, ':') != NULL;
    snprintf(target->authority, sizeof target->authority, "%s%s%s:%s", six ? "[" : "", target->host, six ? "]" : "",
             target->port);
    return true;
}

static inline bool http_fail(http_connection *c, const char *what) {
    snprintf(c->error, sizeof c->error, "%s%s%s", what, errno ? ": " : "", errno ? strerror(errno) : "");
    return false;
}

static inline void http_close(http_connection *c) {
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->used = false;
    c->from = c->to = 0;
}

static inline bool http_connect(http_connection *c, const http_target *target, int timeout_s) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    errno = 0;
    http_close(c);
    if (getaddrinfo(target->host, target->port, &hints, &list)) return http_fail(c, "the host has no address");
    for (struct addrinfo *a = list; a && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd < 0) continue;
        struct timeval limit = {.tv_sec = timeout_s};
        setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (connect(c->fd, a->ai_addr, a->ai_addrlen)) {
            int reason = errno;
            http_close(c);
            errno = reason;
        }
    }
    freeaddrinfo(list);
    return c->fd >= 0 || http_fail(c, "no connection");
}

static inline bool http_write(http_connection *c, const char *bytes, size_t length) {
    while (length) {
        ssize_t n = send(c->fd, bytes, length, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return http_fail(c, "the request could not be sent");
        bytes += n;
        length -= (size_t)n;
    }
    return true;
}

static inline bool http_fill(http_connection *c) {
    if (c->from == c->to) c->from = c->to = 0;
    if (c->to == sizeof c->buffer) {
        memmove(c->buffer, c->buffer + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
    }
    ssize_t n;
    errno = 0;
    do {
        n = recv(c->fd, c->buffer + c->to, sizeof c->buffer - c->to, 0);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) return http_fail(c, n ? "no answer" : "the connection was closed");
    c->to += (size_t)n;
    return true;
}

/* A line without its end; NULL on failure. Valid until the next read. */
static inline char *http_line(http_connection *c) {
    for (;;) {
        char *end = memchr(c->buffer + c->from, '\n', c->to - c->from);
        if (end) {
            char *line = c->buffer + c->from;
            c->from = (size_t)(end - c->buffer) + 1;
            if (end > line && end[-1] == '\r') end--;
            *end = 0;
            return line;
        }
        if (c->from == 0 && c->to == sizeof c->buffer) {
            errno = 0;
            http_fail(c, "a line of the answer is too long");
            return NULL;
        }
        if (!http_fill(c)) return NULL;
    }
}

static inline bool http_read_head(http_connection *c) {
    char *line = http_line(c);
    if (!line) return false;
    errno = 0;
    if (sscanf(line, "HTTP/1.%*d %d", &c->status) != 1) return http_fail(c, "the answer is not HTTP");
    c->chunked = c->ended = c->retry_after = false;
    c->close = !strncmp(line, "HTTP/1.0", 8);
    c->left = -1;
    while ((line = http_line(c)) && *line) {
        char *value = strchr(line, ':');
        if (!value) continue;
        *value++ = 0;
        value += strspn(value, " \t");
        if (!strcasecmp(line, "Content-Length")) c->left = strtoll(value, NULL, 10);
        if (!strcasecmp(line, "Transfer-Encoding") && !strcasecmp(value, "chunked")) c->chunked = true;
        if (!strcasecmp(line, "Retry-After") && *value) c->retry_after = true;
        if (!strcasecmp(line, "Connection") && !strcasecmp(value, "close")) c->close = true;
    }
    if (c->chunked) c->left = 0;
    return line != NULL;
}

/* Sends a request and reads the head of the answer. body NULL = GET. A kept connection that the server has closed
 * meanwhile is opened again, once. */
static inline bool http_request(http_connection *c, const http_target *target, const char *path, const char *body,
                                size_t length, int timeout_s) {
    di_text head = {0};
    di_text_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\n", body ? "POST" : "GET", target->path, path,
                   target->authority);
    if (target->key) di_text_printf(&head, "Authorization: Bearer %s\r\n", target->key);
    if (body) di_text_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", length);
    di_text_puts(&head, "\r\n");
    if (body) di_text_append(&head, body, length);
    bool good = !head.failed;
    errno = ENOMEM;
    if (!good) http_fail(c, "the request");
    for (int attempt = 0; good; attempt++) {
        bool kept = c->fd >= 0 && c->used;
        good = (c->fd >= 0 || http_connect(c, target, timeout_s)) && http_write(c, head.data, head.length) &&
               http_read_head(c);
        if (good || !kept || attempt) break;
        http_close(c);
        good = true;
    }
    di_text_free(&head);
    if (!good) http_close(c);
    return good;
}

/* Bytes of the body as they come: *bytes is valid until the next call. 0 = the body has ended, -1 = failed. */
static inline ssize_t http_read(http_connection *c, const char **bytes) {
    if (c->ended) return 0;
    if (c->chunked && c->left == 0) {
        char *line = http_line(c);
        if (line && !*line) line = http_line(c); /* the end of the chunk before */
        if (!line) return -1;
        c->left = strtoll(line, NULL, 16);
        if (c->left == 0) {
            while ((line = http_line(c)) && *line) continue; /* trailers */
            c->ended = c->used = line != NULL;
            if (c->ended && c->close) http_close(c);
            return c->ended ? 0 : -1;
        }
    }
    if (c->left != 0 && c->from == c->to && !http_fill(c)) {
        c->ended = c->left < 0 && errno == 0;
        return c->ended ? 0 : -1;
    }
    size_t n = c->to - c->from;
    if (c->left >= 0 && n > (size_t)c->left) n = (size_t)c->left;
    *bytes = c->buffer + c->from;
    c->from += n;
    if (c->left > 0) c->left -= (long long)n;
    if (!c->chunked && c->left == 0) {
        c->ended = c->used = true;
        if (c->close) http_close(c);
    }
    return (ssize_t)n;
}

/* The rest of the body. */
static inline bool http_read_all(http_connection *c, di_text *out) {
    const char *bytes;
    ssize_t n;
    while ((n = http_read(c, &bytes)) > 0) di_text_append(out, bytes, (size_t)n);
    return n == 0 && !out->failed;
}

#endif
