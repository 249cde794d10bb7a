/* http_client.c - see http_client.h. */
#include "support/http_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

static void *serve(void *arg) {
    di_test_server *test = arg;
    di_error error = {0};
    test->ended = di_server_run(test->server, &error);
    return NULL;
}

static void drain(void *arg) {
    di_test_server *test = arg;
    di_server_drain(test->server);
}

void di_test_server_open(di_test_server *test, const char *const *options) {
    di_error error = {0};
    *test = (di_test_server){.config = di_config_new(), .drain = {.run = drain, .arg = test}};
    assert_non_null(test->config);
    assert_int_equal(di_config_set(test->config, "port", "0", DI_CONFIG_FLAG, &error), DI_OK);
    assert_int_equal(di_config_set(test->config, "access-log", "off", DI_CONFIG_FLAG, &error), DI_OK);
    for (; options && *options; options += 2)
        if (di_config_set(test->config, options[0], options[1], DI_CONFIG_FLAG, &error) != DI_OK)
            fail_msg("%s", error.message);
    if (di_server_open(test->config, NULL, &test->server, &error) != DI_OK) fail_msg("%s", error.message);
}

void di_test_server_begin(di_test_server *test) {
    di_error error = {0};
    assert_int_equal(di_server_listen(test->server, &error), DI_OK);
    const char *colon = strrchr(di_server_url(test->server), ':');
    test->port = (int)strtol(colon + 1, NULL, 10);
    assert_int_equal(pthread_create(&test->thread, NULL, serve, test), 0);
}

void di_test_server_start(di_test_server *test, const di_route *routes, size_t count, void *app,
                          const char *const *options) {
    di_error error = {0};
    di_test_server_open(test, options);
    assert_int_equal(di_server_add_routes(test->server, routes, count, app, &error), DI_OK);
    di_test_server_begin(test);
}

void di_test_server_drain(di_test_server *test) {
    di_server_post(test->server, &test->drain);
}

void di_test_server_join(di_test_server *test) {
    pthread_join(test->thread, NULL);
    di_server_close(test->server);
    di_config_free(test->config);
}

void di_test_server_stop(di_test_server *test) {
    di_test_server_drain(test);
    di_test_server_join(test);
    assert_int_equal(test->ended, DI_OK);
}

int di_test_connect(int port, int timeout_ms) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int opened = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(opened >= 0);
    assert_int_equal(connect(opened, (struct sockaddr *)&address, sizeof address), 0);
    struct timeval wait = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    setsockopt(opened, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(opened, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    return opened;
}

bool di_test_send(int socket, const char *bytes, size_t length) {
    for (size_t at = 0; at < length;) {
        ssize_t sent = send(socket, bytes + at, length - at, MSG_NOSIGNAL);
        if (sent <= 0) return false;
        at += (size_t)sent;
    }
    return true;
}

void di_test_puts(int socket, const char *text) {
    assert_true(di_test_send(socket, text, strlen(text)));
}

void di_test_receive(int socket, const char *end, di_text *text, bool *closed) {
    char piece[65536];
    if (closed) *closed = false;
    di_text_append(text, "", 0);
    while (!end || !strstr(text->data, end)) {
        ssize_t got = recv(socket, piece, sizeof piece, 0);
        if (got <= 0) {
            if (closed) *closed = got == 0;
            return;
        }
        di_text_append(text, piece, (size_t)got);
    }
}

di_text di_test_ask(int port, const char *request) {
    di_text text = {0};
    int socket = di_test_connect(port, 5000);
    di_test_puts(socket, request);
    di_test_receive(socket, NULL, &text, NULL);
    close(socket);
    return text;
}

int di_test_status(const di_text *text) {
    return text->length > 12 && strncmp(text->data, "HTTP/1.1 ", 9) == 0 ? (int)strtol(text->data + 9, NULL, 10) : 0;
}
