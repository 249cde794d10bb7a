/* listener.c - the address the server listens on, and who gets in. */
#include <arpa/inet.h>
#include <errno.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "server/server_internal.h"

enum {
    BACKLOG = 1024,
    SPARE_CONNECTIONS = 64, /* beyond --max-connections: for probes, and to say no in HTTP */
    ACCEPT_PAUSE_US = 100000,
    KEEPALIVE_IDLE_S = 60
};

static bool is_loopback(const struct sockaddr *address) {
    if (address->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24) == 127;
    if (address->sa_family != AF_INET6) return false;
    const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
}

static void print_address(const struct sockaddr *address, socklen_t length, char *text, size_t room, bool with_port) {
    char host[INET6_ADDRSTRLEN], port[8];
    if (getnameinfo(address, length, host, sizeof host, port, sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0)
        snprintf(text, room, "?");
    else if (!with_port)
        snprintf(text, room, "%s", host);
    else
        snprintf(text, room, address->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

static di_status bind_one(di_server *server, const struct addrinfo *info, di_error *error) {
    int opened = socket(info->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (opened < 0) return di_fail_errno(error, DI_ERR_IO, "host", errno, "cannot make a socket");
    setsockopt(opened, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
    char where[128];
    print_address(info->ai_addr, info->ai_addrlen, where, sizeof where, true);
    if (bind(opened, info->ai_addr, info->ai_addrlen) != 0) {
        int reason = errno;
        close(opened);
        if (reason == EADDRINUSE)
            return di_fail_errno(error, DI_ERR_IO, "port", reason,
                                 "another program listens on %s already (ss -ltnp shows which); --port takes another",
                                 where);
        return di_fail_errno(error, DI_ERR_IO, "host", reason, "cannot listen on %s", where);
    }
    struct sockaddr_storage bound = {0};
    socklen_t length = sizeof bound;
    if (getsockname(opened, (struct sockaddr *)&bound, &length) == 0)
        print_address((struct sockaddr *)&bound, length, where, sizeof where, true);
    snprintf(server->url, sizeof server->url, "%s://%s", server->tls ? "https" : "http", where);
    server->socket = opened;
    return DI_OK;
}

di_status di_listener_bind(di_server *server, bool has_key, di_error *error) {
    const char *host = server->settings.host, *port = server->settings.port;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int failed = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
    if (failed)
        return di_fail(error, DI_ERR_CONFIG, "host", "--host %s is no address of this machine: %s", host,
                       gai_strerror(failed));
    di_status status = DI_OK;
    for (const struct addrinfo *at = list; at; at = at->ai_next) {
        if (!has_key && !is_loopback(at->ai_addr)) {
            status = di_fail(error, DI_ERR_CONFIG, "host",
                             "--host %s can be reached from other machines, and no key is set: give --api-key-file or "
                             "DEEPINFER_API_KEY, or listen on 127.0.0.1",
                             host);
            break;
        }
        status = bind_one(server, at, error);
        if (status == DI_OK) break;
    }
    freeaddrinfo(list);
    return status;
}

/* ---------------------------------------------------------------- accepting */

/* Room for somebody new: the connection that has been idle for longest is closed. */
static void close_idle(di_server *server) {
    di_connection *oldest = NULL;
    for (di_connection *at = server->connections; at; at = at->older)
        if (di_connection_idle(at) && (!oldest || at->since_ns < oldest->since_ns)) oldest = at;
    if (oldest) di_connection_close(oldest, false);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t client, struct sockaddr *address, int length,
                      void *arg) {
    (void)listener;
    di_server *server = arg;
    server->counters.connections++;
    if (server->connection_count >= server->settings.connections) close_idle(server);
    bool over = server->connection_count >= server->settings.connections;
    if (over) server->counters.refused_connections++;
    if (server->connection_count >= server->settings.connections + SPARE_CONNECTIONS) {
        static const char no[] = "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n"
                                 "Connection: close\r\n\r\n";
        if (!server->tls && send(client, no, sizeof no - 1, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) shutdown(client, SHUT_WR);
        evutil_closesocket(client);
        return;
    }
    char peer[64];
    print_address(address, (socklen_t)length, peer, sizeof peer, false);
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    /* A client whose machine is gone says nothing; without this its answer would be computed to the end. */
    setsockopt(client, SOL_SOCKET, SO_KEEPALIVE, &(int){1}, sizeof(int));
    setsockopt(client, IPPROTO_TCP, TCP_KEEPIDLE, &(int){KEEPALIVE_IDLE_S}, sizeof(int));
    setsockopt(client, IPPROTO_TCP, TCP_KEEPINTVL, &(int){KEEPALIVE_IDLE_S / 4}, sizeof(int));
    setsockopt(client, IPPROTO_TCP, TCP_KEEPCNT, &(int){4}, sizeof(int));
    di_connection_open(server, client, peer, over);
}

/* No descriptor or memory is left: trying again at once would only burn a core. */
static void on_accept_failed(struct evconnlistener *listener, void *arg) {
    di_server *server = arg;
    int reason = errno;
    di_log_write(server->log, DI_LOG_ERROR, "server", "cannot take a connection: %s", strerror(reason));
    evconnlistener_disable(listener);
    evtimer_add(server->accept_again, (&(struct timeval){.tv_usec = ACCEPT_PAUSE_US}));
}

static void accept_again(evutil_socket_t socket, short what, void *arg) {
    (void)socket, (void)what;
    di_server *server = arg;
    if (server->listener) evconnlistener_enable(server->listener);
}

di_status di_listener_start(di_server *server, di_error *error) {
    server->accept_again = evtimer_new(server->base, accept_again, server);
    if (!server->accept_again) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    if (listen(server->socket, BACKLOG) != 0)
        return di_fail_errno(error, DI_ERR_IO, "port", errno, "cannot listen on %s", server->url);
    server->listener = evconnlistener_new(server->base, on_accept, server,
                                          LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, server->socket);
    if (!server->listener) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    server->socket = -1;
    evconnlistener_set_error_cb(server->listener, on_accept_failed);
    return DI_OK;
}

void di_listener_close(di_server *server) {
    if (server->listener) evconnlistener_free(server->listener);
    if (server->accept_again) event_free(server->accept_again);
    if (server->socket >= 0) close(server->socket);
    server->listener = NULL;
    server->accept_again = NULL;
    server->socket = -1;
}
