/* http_parser.h - one HTTP/1.x request from bytes, strictly.
 *
 * Fed in pieces of any size; the result does not depend on how the bytes were cut. It stops when the head is complete,
 * so that the caller can decide before it takes a body, and at the end of the message. What two readers could take
 * differently is refused: bare LF, folded lines, space before a colon, more than one Content-Length, Content-Length
 * beside Transfer-Encoding, codings other than chunked. Knows nothing of sockets. Owner: one thread.
 */
#ifndef DI_SERVER_HTTP_PARSER_H
#define DI_SERVER_HTTP_PARSER_H

#include "base/status.h"
#include "base/text.h"

typedef struct di_http_limits {
    size_t head_bytes;  /* request line, fields and line ends; the same again for trailers */
    size_t head_fields; /* fields of a head */
    size_t body_bytes;
} di_http_limits;

typedef enum di_http_state {
    DI_HTTP_HEAD,      /* wants bytes of the head */
    DI_HTTP_HEAD_DONE, /* the head is complete: di_http_parser_take_body goes on */
    DI_HTTP_BODY,      /* wants bytes of the body */
    DI_HTTP_DONE,      /* the message is complete */
    DI_HTTP_FAILED     /* `http_status` and `reason` say why; nothing more is taken */
} di_http_state;

typedef struct di_http_field {
    size_t name, value; /* offsets into head.data, zero-terminated */
} di_http_field;

/* One request as text: what the head said. Offsets are into head.data, each text ends with a zero byte. */
typedef struct di_http_message {
    di_text head;
    di_text body;        /* zero-terminated beyond its length once complete */
    di_text path;        /* decoded */
    size_t method;       /* offset; valid once the request line was read */
    int minor;           /* HTTP/1.minor */
    bool has_line;       /* the request line was read */
    bool has_head;       /* all fields were read, so that they may be asked for */
    bool chunked;        /* Transfer-Encoding: chunked */
    bool has_length;     /* Content-Length was there */
    bool wants_continue; /* Expect: 100-continue */
    bool keep_alive;     /* the client wants the connection to stay */
    uint64_t content_length;
    di_http_field *fields;
    size_t field_count, field_capacity;
} di_http_message;

/* Value of the first field of that name, in any case; NULL if absent. */
const char *di_http_message_field(const di_http_message *message, const char *name);
const char *di_http_message_method(const di_http_message *message); /* "" before the request line was read */
void di_http_message_free(di_http_message *message);

typedef struct di_http_parser {
    di_http_limits limits;
    di_http_state state;
    int http_status;    /* when failed: 400, 413, 414, 417, 431, 501, 503 or 505 */
    const char *reason; /* when failed; static */
    di_http_message message;
    /* the parser's own */
    size_t line_start;
    int empty_lines; /* passed over before the request line */
    uint64_t left;   /* bytes of the body or of the chunk */
    size_t trailer_bytes;
    int part;     /* of a chunked body */
    di_text line; /* of a chunked body */
} di_http_parser;

void di_http_parser_init(di_http_parser *parser, const di_http_limits *limits);
void di_http_parser_free(di_http_parser *parser);
/* Ready for the next message; the old one is freed unless it was moved away (zeroed by the caller). */
void di_http_parser_reset(di_http_parser *parser);

/* Takes bytes until the head is complete, the message is complete or it failed; returns how many were taken. */
size_t di_http_parser_feed(di_http_parser *parser, const char *bytes, size_t length);
/* After DI_HTTP_HEAD_DONE: goes on to the body, or to DI_HTTP_DONE if there is none. */
void di_http_parser_take_body(di_http_parser *parser);
/* Whether bytes of a message were taken that is not complete. Empty lines before it are none. */
bool di_http_parser_within(const di_http_parser *parser);

#endif
