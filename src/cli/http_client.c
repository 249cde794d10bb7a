/* http_client.c - see http_client.h. */
#include "cli/http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- targets */

/* "host:port/path" */
static bool parse_authority(const char *url, const char *default_port, di_client_target *target) {
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
    snprintf(target->port, sizeof target->port, "%.*s",
             colon ? (int)(url + authority - colon - 1) : (int)strlen(default_port), colon ? colon + 1 : default_port);
    snprintf(target->path, sizeof target->path, "%.*s", (int)path, url + authority);
    bool six = strchr(target->host, ':') != NULL;
    snprintf(target->authority, sizeof target->authority, "%s%s%s:%s", six ? "[" : "", target->host, six ? "]" : "",
             target->port);
    return true;
}

/* Trusts what ca_file holds, or what the system trusts. */
static di_status open_tls(const char *ca_file, di_client_target *target, di_error *error) {
    target->tls = SSL_CTX_new(TLS_client_method());
    if (!target->tls) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for TLS");
    SSL_CTX_set_min_proto_version(target->tls, TLS1_2_VERSION);
    SSL_CTX_set_verify(target->tls, SSL_VERIFY_PEER, NULL);
    bool trusts = ca_file[0] ? SSL_CTX_load_verify_locations(target->tls, ca_file, NULL) == 1
                             : SSL_CTX_set_default_verify_paths(target->tls) == 1;
    ERR_clear_error();
    if (trusts) return DI_OK;
    di_client_close_target(target);
    return di_fail(error, DI_ERR_CONFIG, "ca-file", "--ca-file %s: no certificates in PEM form", ca_file);
}

di_status di_client_open_target(const char *url, const char *ca_file, di_client_target *target, di_error *error) {
    bool secure = strncmp(url, "https://", 8) == 0, plain = strncmp(url, "http://", 7) == 0;
    if ((!secure && !plain) || !parse_authority(url + (secure ? 8 : 7), secure ? "443" : "80", target))
        return di_fail(error, DI_ERR_CONFIG, "url", "--url %.200s: give http://HOST:PORT or https://HOST:PORT", url);
    return secure ? open_tls(ca_file, target, error) : DI_OK;
}

void di_client_close_target(di_client_target *target) {
    SSL_CTX_free(target->tls);
    target->tls = NULL;
}

/* ---------------------------------------------------------------- connections */

static bool fail(di_client *c, const char *what) {
    snprintf(c->error, sizeof c->error, "%s%s%s", what, errno ? ": " : "", errno ? strerror(errno) : "");
    return false;
}

void di_client_close(di_client *c) {
    SSL_free(c->tls);
    c->tls = NULL;
    if (c->fd >= 0) close(c->fd);
    c->fd = -1;
    c->used = false;
    c->from = c->to = 0;
}

/* OpenSSL's own reason. */
static bool fail_tls(di_client *c, const char *what) {
    char reason[100] = "no reason given";
    long verified = c->tls ? SSL_get_verify_result(c->tls) : X509_V_OK;
    unsigned long code = ERR_peek_last_error();
    if (verified != X509_V_OK)
        snprintf(reason, sizeof reason, "%s", X509_verify_cert_error_string(verified));
    else if (code)
        ERR_error_string_n(code, reason, sizeof reason);
    ERR_clear_error();
    snprintf(c->error, sizeof c->error, "%s: %s", what, reason);
    return false;
}

static bool begin_tls(di_client *c, const di_client_target *target) {
    unsigned char address[sizeof(struct in6_addr)];
    bool number = inet_pton(AF_INET, target->host, address) == 1 || inet_pton(AF_INET6, target->host, address) == 1;
    c->tls = SSL_new(target->tls);
    bool named = c->tls && SSL_set_fd(c->tls, c->fd) == 1;
    if (named && number) named = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(c->tls), target->host) == 1;
    if (named && !number)
        named = SSL_set1_host(c->tls, target->host) == 1 && SSL_set_tlsext_host_name(c->tls, target->host) == 1;
    if (named && SSL_connect(c->tls) == 1) return true;
    fail_tls(c, "TLS cannot begin");
    di_client_close(c);
    return false;
}

static bool connect_to(di_client *c, const di_client_target *target, int timeout_s) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    errno = 0;
    di_client_close(c);
    if (getaddrinfo(target->host, target->port, &hints, &list)) return fail(c, "the host has no address");
    for (struct addrinfo *a = list; a && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd < 0) continue;
        struct timeval limit = {.tv_sec = timeout_s};
        setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(c->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        if (connect(c->fd, a->ai_addr, a->ai_addrlen)) {
            int reason = errno;
            di_client_close(c);
            errno = reason;
        }
    }
    freeaddrinfo(list);
    if (c->fd < 0) return fail(c, "no connection");
    return !target->tls || begin_tls(c, target);
}

static bool write_all(di_client *c, const char *bytes, size_t length) {
    while (length) {
        int part = length > (1 << 20) ? 1 << 20 : (int)length;
        ssize_t n = c->tls ? SSL_write(c->tls, bytes, part) : send(c->fd, bytes, (size_t)part, MSG_NOSIGNAL);
        if (n < 0 && !c->tls && errno == EINTR) continue;
        if (n <= 0 && c->tls) return fail_tls(c, "the request could not be sent");
        if (n <= 0) return fail(c, "the request could not be sent");
        bytes += n;
        length -= (size_t)n;
    }
    return true;
}

/* As recv. The end of a TLS stream without its own end is one too: what was to come says whether it is whole. */
static ssize_t receive(di_client *c, char *bytes, size_t room) {
    if (!c->tls) return recv(c->fd, bytes, room, 0);
    int n = SSL_read(c->tls, bytes, room > (1 << 20) ? 1 << 20 : (int)room);
    if (n > 0) return n;
    bool ended = SSL_get_error(c->tls, n) == SSL_ERROR_ZERO_RETURN || errno == 0;
    ERR_clear_error();
    return ended ? 0 : -1;
}

/* ---------------------------------------------------------------- requests */

static bool fill(di_client *c) {
    if (c->from == c->to) c->from = c->to = 0;
    if (c->to == sizeof c->buffer) {
        memmove(c->buffer, c->buffer + c->from, c->to - c->from);
        c->to -= c->from;
        c->from = 0;
    }
    ssize_t n;
    errno = 0;
    do {
        n = receive(c, c->buffer + c->to, sizeof c->buffer - c->to);
    } while (n < 0 && errno == EINTR);
    if (n <= 0) return fail(c, n ? "no answer" : "the connection was closed");
    c->to += (size_t)n;
    return true;
}

/* A line without its end; NULL on failure. Valid until the next read. */
static char *read_line(di_client *c) {
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
            fail(c, "a line of the answer is too long");
            return NULL;
        }
        if (!fill(c)) return NULL;
    }
}

static bool read_head(di_client *c) {
    char *line = read_line(c);
    if (!line) return false;
    errno = 0;
    if (sscanf(line, "HTTP/1.%*d %d", &c->status) != 1) return fail(c, "the answer is not HTTP");
    c->chunked = c->ended = c->retry_after = false;
    c->close = !strncmp(line, "HTTP/1.0", 8);
    c->left = -1;
    while ((line = read_line(c)) && *line) {
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

bool di_client_request(di_client *c, const di_client_target *target, const char *path, const char *body, size_t length,
                       int timeout_s) {
    di_text head = {0};
    di_text_printf(&head, "%s %s%s HTTP/1.1\r\nHost: %s\r\nAccept: */*\r\n", body ? "POST" : "GET", target->path, path,
                   target->authority);
    if (target->key) di_text_printf(&head, "Authorization: Bearer %s\r\n", target->key);
    if (body) di_text_printf(&head, "Content-Type: application/json\r\nContent-Length: %zu\r\n", length);
    di_text_puts(&head, "\r\n");
    if (body) di_text_append(&head, body, length);
    bool good = !head.failed;
    errno = ENOMEM;
    if (!good) fail(c, "the request");
    for (int attempt = 0; good; attempt++) {
        bool kept = c->fd >= 0 && c->used;
        good = (c->fd >= 0 || connect_to(c, target, timeout_s)) && write_all(c, head.data, head.length) && read_head(c);
        if (good || !kept || attempt) break;
        di_client_close(c);
        good = true;
    }
    di_text_free(&head);
    if (!good) di_client_close(c);
    return good;
}

ssize_t di_client_read(di_client *c, const char **bytes) {
    if (c->ended) return 0;
    if (c->chunked && c->left == 0) {
        char *line = read_line(c);
        if (line && !*line) line = read_line(c); /* the end of the chunk before */
        if (!line) return -1;
        c->left = strtoll(line, NULL, 16);
        if (c->left == 0) {
            while ((line = read_line(c)) && *line) continue; /* trailers */
            c->ended = c->used = line != NULL;
            if (c->ended && c->close) di_client_close(c);
            return c->ended ? 0 : -1;
        }
    }
    if (c->left != 0 && c->from == c->to && !fill(c)) {
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
        if (c->close) di_client_close(c);
    }
    return (ssize_t)n;
}

bool di_client_read_all(di_client *c, di_text *out) {
    const char *bytes;
    ssize_t n;
    while ((n = di_client_read(c, &bytes)) > 0) di_text_append(out, bytes, (size_t)n);
    return n == 0 && !out->failed;
}
