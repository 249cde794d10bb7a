/* test_server_http_parser.c - requests from bytes: what is taken, what is refused, and that cuts make no difference.
 * needs: server base */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "server/http_parser.h"

static const di_http_limits limits = {.head_bytes = 1024, .head_fields = 8, .body_bytes = 64};

typedef struct sample {
    const char *bytes;
    int http_status; /* 0: a whole request */
    const char *method, *path, *body;
    bool close;        /* the client wants the connection to end */
    const char *after; /* bytes of the next message */
} sample;

/* What came of it, as text, so that two ways of cutting can be compared. */
typedef struct outcome {
    di_http_state state;
    size_t taken;
    di_text text;
} outcome;

static void describe(const di_http_parser *parser, di_text *text) {
    const di_http_message *message = &parser->message;
    di_text_printf(text, "%d %d %s|%s|1.%d|%d%d%d%d|%llu|", (int)parser->state, parser->http_status,
                   di_http_message_method(message), message->has_line ? message->path.data : "", message->minor,
                   message->chunked, message->has_length, message->wants_continue, message->keep_alive,
                   (unsigned long long)message->content_length);
    for (size_t i = 0; i < message->field_count; i++)
        di_text_printf(text, "%s=%s|", message->head.data + message->fields[i].name,
                       message->head.data + message->fields[i].value);
    di_text_append(text, message->body.data ? message->body.data : "", message->body.length);
    di_text_puts(text, parser->reason ? parser->reason : "");
}

/* Feeds bytes [length] in pieces: up to `cut` first (SIZE_MAX: byte by byte), each in a block of its own size, so that
 * a read beyond it is seen. */
static outcome parse(const char *bytes, size_t length, size_t cut) {
    outcome result = {0};
    di_http_parser parser;
    di_http_parser_init(&parser, &limits);
    while (result.taken < length) {
        size_t piece = cut == SIZE_MAX ? 1 : result.taken < cut ? cut - result.taken : length - result.taken;
        char *copy = malloc(piece);
        assert_non_null(copy);
        memcpy(copy, bytes + result.taken, piece);
        size_t taken = di_http_parser_feed(&parser, copy, piece);
        free(copy);
        assert_true(taken <= piece);
        result.taken += taken;
        if (parser.state == DI_HTTP_HEAD_DONE)
            di_http_parser_take_body(&parser);
        else if (taken < piece)
            break;
        if (parser.state == DI_HTTP_DONE || parser.state == DI_HTTP_FAILED) break;
    }
    result.state = parser.state;
    describe(&parser, &result.text);
    di_http_parser_free(&parser);
    return result;
}

#define HOST "Host: a\r\n"
#define POST "POST /x HTTP/1.1\r\n" HOST

/* A POST refused for its header fields or body, and a first line that is none. */
#define REFUSED(status, fields) POST fields, status, "POST", "/x", "", false, NULL
#define MALFORMED(line)         line, 400, "", "", "", false, NULL

static const sample samples[] = {
    {"GET / HTTP/1.1\r\n" HOST "\r\n", 0, "GET", "/", "", false, ""},
    {"\r\n\r\nGET /a HTTP/1.1\r\n" HOST "\r\nGET", 0, "GET", "/a", "", false, "GET"},
    {"GET /a%20b/%c3%a9?x=1&y=%41 HTTP/1.1\r\n" HOST "\r\n", 0, "GET", "/a b/é", "", false, ""},
    {"GET http://host:80/p?q HTTP/1.1\r\n" HOST "\r\n", 0, "GET", "/p", "", false, ""},
    {"GET http://host HTTP/1.1\r\n" HOST "\r\n", 0, "GET", "/", "", false, ""},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 0, "OPTIONS", "*", "", false, ""},
    {"GET / HTTP/1.0\r\n\r\n", 0, "GET", "/", "", true, ""},
    {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 0, "GET", "/", "", false, ""},
    {"GET / HTTP/1.1\r\n" HOST "Connection: x, Close\r\n\r\n", 0, "GET", "/", "", true, ""},
    {POST "Content-Length: 3\r\n\r\nabcdef", 0, "POST", "/x", "abc", false, "def"},
    {POST "content-length:\t 003 \r\n\r\nabc", 0, "POST", "/x", "abc", false, ""},
    {POST "Content-Length: 0\r\n\r\nG", 0, "POST", "/x", "", false, "G"},
    {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nA;x=\"y\"\r\n0123456789\r\n0\r\n\r\nZ", 0, "POST", "/x",
     "abc0123456789", false, "Z"},
    {POST "Transfer-Encoding: Chunked\r\n\r\n3 ;e\r\nabc\r\n00\r\nTrailer: x\r\n\r\n", 0, "POST", "/x", "abc", false,
     ""},
    {POST "Expect: 100-continue\r\nContent-Length: 1\r\n\r\na", 0, "POST", "/x", "a", false, ""},
    {"GET / HTTP/1.1\r\n" HOST "X: \xff\x80 \t y\r\n\r\n", 0, "GET", "/", "", false, ""},
    /* Two readers could take these differently. */
    {REFUSED(400, "Content-Length: 3\r\nContent-Length: 5\r\n\r\nabc")},
    {REFUSED(400, "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc")},
    {REFUSED(400, "Content-Length: 3, 3\r\n\r\nabc")},
    {REFUSED(400, "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n")},
    {REFUSED(501, "Transfer-Encoding: gzip, chunked\r\n\r\n")},
    {REFUSED(501, "Transfer-Encoding: xchunked\r\n\r\n")},
    {"POST /x HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400, "POST", "/x", "", false, NULL},
    {REFUSED(400, "Content-Length: +3\r\n\r\nabc")},
    {REFUSED(400, "Content-Length: -1\r\n\r\n")},
    {REFUSED(400, "Content-Length: 0x3\r\n\r\nabc")},
    {REFUSED(400, "Content-Length: 3 4\r\n\r\nabc")},
    {REFUSED(400, "Content-Length:\r\n\r\nabc")},
    {REFUSED(400, "Content-Length : 3\r\n\r\nabc")},
    {REFUSED(400, "X: a\r\n Content-Length: 3\r\n\r\nabc")},
    {REFUSED(400, "X: a\r\n\tb\r\n\r\n")},
    {REFUSED(400, "X: a\n\r\n")},
    {REFUSED(400, "X: a\rb\r\n\r\n")},
    {REFUSED(400, "X: a\r\r\n\r\n")},
    {REFUSED(400, "X: a\x01\r\n\r\n")},
    {REFUSED(400, ": a\r\n\r\n")},
    {REFUSED(400, "X\r\n\r\n")},
    {REFUSED(400, "X\x80: a\r\n\r\n")},
    {REFUSED(400, "Host: b\r\n\r\n")},
    {"GET / HTTP/1.1\r\n\r\n", 400, "GET", "/", "", false, NULL},
    {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, "GET", "/", "", false, NULL},
    {REFUSED(400, "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n")},
    {MALFORMED("GET / HTTP/1.1\nHost: a\n\n")},
    {MALFORMED("GET  / HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET / HTTP/1.1 \r\n" HOST "\r\n")},
    {MALFORMED(" GET / HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /\r\n" HOST "\r\n")},
    {MALFORMED("GET / http/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET / HTTP/1.10\r\n" HOST "\r\n")},
    {MALFORMED("G@T / HTTP/1.1\r\n" HOST "\r\n")},
    {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "", "", "", false, NULL},
    {MALFORMED("GET x HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET * HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("CONNECT a:1 HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /\xc3\xa9 HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /%c3 HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /%zz HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /%4 HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /a%00b HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("GET /a#b HTTP/1.1\r\n" HOST "\r\n")},
    {MALFORMED("\x16\x03\x01\x02\x01\n")},
    {REFUSED(417, "Expect: 200-maybe\r\n\r\n")},
    {REFUSED(413, "Content-Length: 65\r\n\r\n")},
    {REFUSED(413, "Content-Length: 99999999999999999999999999\r\n\r\n")},
    {REFUSED(413, "Content-Length: 18446744073709551619\r\n\r\n")},
    {REFUSED(431, "A:1\r\nB:1\r\nC:1\r\nD:1\r\nE:1\r\nF:1\r\nG:1\r\nH:1\r\n\r\n")},
    {REFUSED(413, "Transfer-Encoding: chunked\r\n\r\n41\r\n")},
    {REFUSED(413, "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n")},
    {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n", 400, "POST", "/x", "abc", false, NULL},
    {POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabcX\r\n", 400, "POST", "/x", "abc", false, NULL},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n3x\r\nabc\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n\r\n")},
    {REFUSED(400, "Transfer-Encoding: chunked\r\n\r\n0\r\nX : a\r\n\r\n")},
};

static void check_sample(const sample *s, const di_http_parser *parser) {
    const di_http_message *message = &parser->message;
    assert_string_equal(di_http_message_method(message), s->method);
    assert_string_equal(message->has_line ? message->path.data : "", s->path);
    assert_int_equal(message->body.length, strlen(s->body));
    if (s->body[0]) assert_memory_equal(message->body.data, s->body, strlen(s->body));
    if (!s->http_status) assert_int_equal(message->keep_alive, !s->close);
}

static void every_sample_gives_what_it_should(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        const sample *s = &samples[i];
        size_t length = strlen(s->bytes), taken;
        di_http_parser parser;
        di_http_parser_init(&parser, &limits);
        taken = di_http_parser_feed(&parser, s->bytes, length);
        if (parser.state == DI_HTTP_HEAD_DONE) {
            di_http_parser_take_body(&parser);
            taken += di_http_parser_feed(&parser, s->bytes + taken, length - taken);
        }
        if (parser.http_status != s->http_status || (parser.state == DI_HTTP_DONE) != !s->http_status)
            fail_msg("sample %zu gives state %d, status %d (%s): %s", i, (int)parser.state, parser.http_status,
                     parser.reason ? parser.reason : "", s->bytes);
        check_sample(s, &parser);
        if (s->after) assert_string_equal(s->bytes + taken, s->after);
        if (s->http_status) assert_non_null(parser.reason);
        di_http_parser_free(&parser);
    }
}

static void cuts_make_no_difference(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        size_t length = strlen(samples[i].bytes);
        outcome whole = parse(samples[i].bytes, length, length);
        for (size_t cut = 0; cut <= length; cut++) {
            outcome other = parse(samples[i].bytes, length, cut ? cut : SIZE_MAX);
            if (other.taken != whole.taken || strcmp(other.text.data, whole.text.data) != 0)
                fail_msg("sample %zu cut at %zu:\n%s\n%s", i, cut, other.text.data, whole.text.data);
            di_text_free(&other.text);
        }
        di_text_free(&whole.text);
    }
}

static di_text long_head(size_t line, size_t fields) {
    di_text text = {0};
    di_text_puts(&text, "GET /");
    for (size_t i = 0; i < line; i++) di_text_putc(&text, 'a');
    di_text_puts(&text, " HTTP/1.1\r\nHost: a\r\nX: ");
    for (size_t i = 0; i < fields; i++) di_text_putc(&text, 'b');
    di_text_puts(&text, "\r\n\r\n");
    return text;
}

static void long_heads_are_refused_where_they_get_too_long(void **state) {
    (void)state;
    static const struct {
        size_t line, fields;
        int http_status;
    } rows[] = {{900, 10, 0}, {1100, 10, 414}, {100000, 10, 414}, {10, 1100, 431}, {10, 1000000, 431}, {500, 500, 431}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_text text = long_head(rows[i].line, rows[i].fields);
        for (size_t piece = 1; piece < 4000; piece += 333) {
            di_http_parser parser;
            di_http_parser_init(&parser, &limits);
            size_t taken = 0;
            while (taken < text.length && parser.state == DI_HTTP_HEAD)
                taken += di_http_parser_feed(&parser, text.data + taken,
                                             text.length - taken < piece ? text.length - taken : piece);
            assert_int_equal(parser.http_status, rows[i].http_status);
            assert_true(taken <= limits.head_bytes);
            assert_true(parser.message.head.capacity <= 4 * limits.head_bytes);
            di_http_parser_free(&parser);
        }
        di_text_free(&text);
    }
}

/* What a chunked body comes to: `unit` `count` times between `before` and `after`. */
static di_http_state chunked(const char *before, const char *unit, size_t count, const char *after, size_t cut) {
    di_text text = {0};
    di_text_puts(&text, POST "Transfer-Encoding: chunked\r\n\r\n");
    di_text_puts(&text, before);
    for (size_t i = 0; i < count; i++) di_text_puts(&text, unit);
    di_text_puts(&text, after);
    outcome result = parse(text.data, text.length, cut ? cut : text.length);
    di_text_free(&text);
    di_text_free(&result.text);
    return result.state;
}

/* The limit of a body is exact, whole and in chunks; trailers and extensions have limits of their own. */
static void bodies_up_to_the_limit(void **state) {
    (void)state;
    for (size_t size = 60; size <= 68; size++)
        assert_int_equal(chunked("", "1\r\nx\r\n", size, "0\r\n\r\n", 0),
                         size <= limits.body_bytes ? DI_HTTP_DONE : DI_HTTP_FAILED);
    for (size_t extra = 200; extra <= 300; extra += 100)
        assert_int_equal(chunked("1;", "e", extra, "\r\nx\r\n0\r\n\r\n", SIZE_MAX),
                         extra <= 250 ? DI_HTTP_DONE : DI_HTTP_FAILED);
    for (size_t lines = 100; lines <= 300; lines += 200)
        assert_int_equal(chunked("0\r\n", "A: b\r\n", lines, "\r\n", 0),
                         lines * 6 <= limits.head_bytes ? DI_HTTP_DONE : DI_HTTP_FAILED);
}

static void a_parser_takes_one_message_after_another(void **state) {
    (void)state;
    static const char bytes[] = POST "Content-Length: 2\r\n\r\nabGET /y HTTP/1.1\r\n" HOST "\r\n";
    di_http_parser parser;
    di_http_parser_init(&parser, &limits);
    assert_false(di_http_parser_within(&parser));
    size_t taken = di_http_parser_feed(&parser, bytes, 10);
    assert_true(di_http_parser_within(&parser));
    taken += di_http_parser_feed(&parser, bytes + taken, sizeof bytes - 1 - taken);
    assert_int_equal(parser.state, DI_HTTP_HEAD_DONE);
    assert_int_equal(di_http_parser_feed(&parser, bytes + taken, 1), 0);
    di_http_parser_take_body(&parser);
    taken += di_http_parser_feed(&parser, bytes + taken, sizeof bytes - 1 - taken);
    assert_int_equal(parser.state, DI_HTTP_DONE);
    di_http_parser_reset(&parser);
    assert_false(di_http_parser_within(&parser));
    taken += di_http_parser_feed(&parser, bytes + taken, sizeof bytes - 1 - taken);
    assert_int_equal(taken, sizeof bytes - 1);
    assert_int_equal(parser.state, DI_HTTP_HEAD_DONE);
    assert_string_equal(parser.message.path.data, "/y");
    assert_string_equal(di_http_message_field(&parser.message, "HOST"), "a");
    assert_null(di_http_message_field(&parser.message, "x"));
    di_http_parser_free(&parser);
}

/* Empty lines between two requests are nothing that was begun, and come to an end. */
static void empty_lines_before_a_request_are_passed_over(void **state) {
    (void)state;
    static const char request[] = "GET /x HTTP/1.1\r\n" HOST "\r\n";
    di_http_parser parser;
    di_http_parser_init(&parser, &limits);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(di_http_parser_feed(&parser, "\r", 1), 1);
        assert_true(di_http_parser_within(&parser));
        assert_int_equal(di_http_parser_feed(&parser, "\n", 1), 1);
        assert_false(di_http_parser_within(&parser));
    }
    assert_int_equal(di_http_parser_feed(&parser, request, strlen(request)), strlen(request));
    assert_int_equal(parser.state, DI_HTTP_HEAD_DONE);
    assert_string_equal(parser.message.path.data, "/x");
    assert_string_equal(di_http_message_field(&parser.message, "host"), "a");
    di_http_parser_reset(&parser);
    for (int i = 0; i < 9; i++) assert_int_equal(di_http_parser_feed(&parser, "\r\n", 2), 2);
    assert_int_equal(parser.state, DI_HTTP_FAILED);
    assert_int_equal(parser.http_status, 400);
    di_http_parser_free(&parser);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sample_gives_what_it_should),
        cmocka_unit_test(cuts_make_no_difference),
        cmocka_unit_test(long_heads_are_refused_where_they_get_too_long),
        cmocka_unit_test(bodies_up_to_the_limit),
        cmocka_unit_test(a_parser_takes_one_message_after_another),
        cmocka_unit_test(empty_lines_before_a_request_are_passed_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
