/* http_parser.c - see http_parser.h. RFC 9112, and of what it lets a server choose the stricter side. */
#include "server/http_parser.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    METHOD_BYTES = 32,
    EMPTY_LINES = 8,        /* before a request line: some clients end a body with one */
    CHUNK_LINE_BYTES = 256, /* size and extensions */
    CHUNK_DIGITS = 15,
    LENGTH_DIGITS = 18
};

enum { PART_SIZE, PART_DATA, PART_DATA_END, PART_TRAILER };

static const char no_memory[] = "out of memory for the request";

static void fail(di_http_parser *parser, int http_status, const char *reason) {
    parser->state = DI_HTTP_FAILED;
    parser->http_status = http_status;
    parser->reason = reason;
}

/* ---------------------------------------------------------------- characters */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

static bool is_token_char(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (!is_token_char(text[i])) return false;
    return length > 0;
}

/* Field values: visible characters, space, tab, and bytes from 0x80 on. */
static bool is_value(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)text[i];
        if ((c < 0x20 && c != '\t') || c == 0x7F) return false;
    }
    return true;
}

/* ---------------------------------------------------------------- message */

const char *di_http_message_field(const di_http_message *message, const char *name) {
    for (size_t i = 0; i < message->field_count; i++)
        if (strcasecmp(message->head.data + message->fields[i].name, name) == 0)
            return message->head.data + message->fields[i].value;
    return NULL;
}

const char *di_http_message_method(const di_http_message *message) {
    return message->has_line ? message->head.data + message->method : "";
}

void di_http_message_free(di_http_message *message) {
    di_text_free(&message->head);
    di_text_free(&message->body);
    di_text_free(&message->path);
    free(message->fields);
    *message = (di_http_message){0};
}

/* ---------------------------------------------------------------- request line */

/* Percent escapes of the path are decoded once. */
static bool decode_path(const char *raw, size_t length, di_text *path) {
    for (size_t i = 0; i < length; i++) {
        char c = raw[i];
        if (c == '%') {
            int high = i + 2 < length ? hex_value(raw[i + 1]) : -1, low = i + 2 < length ? hex_value(raw[i + 2]) : -1;
            if (high < 0 || low < 0) return false;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if ((unsigned char)c < 0x20 || c == 0x7F) return false;
        di_text_putc(path, c);
    }
    return di_utf8_validate(path->data, path->length) == path->length;
}

/* Where the path begins: "/x", "http://host/x", or "*" of OPTIONS. NULL if it is none of them; a target without a path
 * stands for "/". */
static const char *find_path(const char *method, const char *target) {
    static const char *const schemes[] = {"http://", "https://"};
    if (target[0] == '/') return target;
    if (strcmp(target, "*") == 0) return strcmp(method, "OPTIONS") == 0 ? target : NULL;
    for (size_t i = 0; i < sizeof schemes / sizeof *schemes; i++) {
        size_t length = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], length) != 0) continue;
        size_t host = strcspn(target + length, "/?");
        return host ? target + length + host : NULL;
    }
    return NULL;
}

static void read_target(di_http_parser *parser, char *target) {
    di_http_message *message = &parser->message;
    for (const char *c = target; *c; c++)
        if (*c <= 0x20 || *c >= 0x7F || *c == '#') {
            fail(parser, 400, "the request target holds a character that must be escaped");
            return;
        }
    const char *path = find_path(message->head.data + message->method, target);
    if (!path) {
        fail(parser, 400, "the request target must be a path, \"/...\", or an address, \"http://host/...\"");
        return;
    }
    size_t length = strcspn(path, "?");
    if (!length) di_text_putc(&message->path, '/');
    if (!decode_path(path, length, &message->path))
        fail(parser, 400, "the path holds a bad escape or a character that is not allowed");
    else if (message->path.failed)
        fail(parser, 503, no_memory);
    else
        message->has_line = true;
}

/* line: [length], without its line end, zero-terminated. */
static void read_request_line(di_http_parser *parser, char *line, size_t length) {
    char *target = memchr(line, ' ', length);
    char *version = target ? memchr(target + 1, ' ', length - (size_t)(target + 1 - line)) : NULL;
    if (!version || strlen(line) != length || memchr(version + 1, ' ', length - (size_t)(version + 1 - line))) {
        fail(parser, 400, "the request line must be METHOD TARGET HTTP/1.1");
        return;
    }
    *target++ = '\0';
    *version++ = '\0';
    size_t method_length = strlen(line);
    if (!is_token(line, method_length) || method_length > METHOD_BYTES || strlen(version) != 8 ||
        strncmp(version, "HTTP/", 5) != 0 || !is_digit(version[5]) || version[6] != '.' || !is_digit(version[7])) {
        fail(parser, 400, "the request line must be METHOD TARGET HTTP/1.1");
        return;
    }
    if (version[5] != '1') {
        fail(parser, 505, "only HTTP/1.1 and HTTP/1.0 are spoken here");
        return;
    }
    parser->message.minor = version[7] == '0' ? 0 : 1;
    parser->message.method = (size_t)(line - parser->message.head.data);
    read_target(parser, target);
}

/* ---------------------------------------------------------------- fields */

/* Checks "name: value" in line [length], zero-terminated, and ends name and value with zero bytes. */
static bool split_field(di_http_parser *parser, char *line, size_t length, char **name, char **value) {
    char *colon = memchr(line, ':', length);
    if (line[0] == ' ' || line[0] == '\t') {
        fail(parser, 400, "a header field may not go on in a second line");
    } else if (!colon || !is_token(line, (size_t)(colon - line))) {
        fail(parser, 400, "a header field must be NAME: VALUE, without space before the colon");
    } else if (!is_value(colon + 1, length - (size_t)(colon + 1 - line))) {
        fail(parser, 400, "a header field holds a control character");
    } else {
        char *start = colon + 1, *end = line + length;
        while (start < end && (*start == ' ' || *start == '\t')) start++;
        while (end > start && (end[-1] == ' ' || end[-1] == '\t')) end--;
        *colon = *end = '\0';
        *name = line;
        *value = start;
        return true;
    }
    return false;
}

static void read_field(di_http_parser *parser, char *line, size_t length) {
    di_http_message *message = &parser->message;
    char *name, *value;
    if (!split_field(parser, line, length, &name, &value)) return;
    if (message->field_count == parser->limits.head_fields) {
        fail(parser, 431, "the request has too many header fields (--limit-header-fields)");
        return;
    }
    if (message->field_count == message->field_capacity) {
        size_t capacity = message->field_capacity ? 2 * message->field_capacity : 16;
        di_http_field *fields = realloc(message->fields, capacity * sizeof *fields);
        if (!fields) {
            fail(parser, 503, no_memory);
            return;
        }
        message->fields = fields;
        message->field_capacity = capacity;
    }
    const char *data = message->head.data;
    message->fields[message->field_count++] = (di_http_field){(size_t)(name - data), (size_t)(value - data)};
}

/* ---------------------------------------------------------------- what the fields mean together */

static size_t count_fields(const di_http_message *message, const char *name) {
    size_t count = 0;
    for (size_t i = 0; i < message->field_count; i++)
        count += strcasecmp(message->head.data + message->fields[i].name, name) == 0;
    return count;
}

/* Whether the list in a field, however many lines it has, holds the word. */
static bool list_holds(const di_http_message *message, const char *name, const char *word) {
    size_t length = strlen(word);
    for (size_t i = 0; i < message->field_count; i++) {
        if (strcasecmp(message->head.data + message->fields[i].name, name) != 0) continue;
        const char *at = message->head.data + message->fields[i].value;
        while (*at) {
            at += strspn(at, " \t,");
            size_t item = strcspn(at, ",");
            size_t trimmed = item;
            while (trimmed && (at[trimmed - 1] == ' ' || at[trimmed - 1] == '\t')) trimmed--;
            if (trimmed == length && strncasecmp(at, word, length) == 0) return true;
            at += item;
        }
    }
    return false;
}

/* Fields that may be there once: a second one is where smuggling begins. */
static bool check_single(di_http_parser *parser) {
    static const struct {
        const char *name, *reason;
    } single[] = {
        {"content-length", "there is more than one Content-Length"},
        {"transfer-encoding", "there is more than one Transfer-Encoding"},
        {"host", "there is more than one Host"},
        {"content-type", "there is more than one Content-Type"},
        {"authorization", "there is more than one Authorization"},
        {"x-api-key", "there is more than one x-api-key"},
    };
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        if (count_fields(&parser->message, single[i].name) < 2) continue;
        fail(parser, 400, single[i].reason);
        return false;
    }
    return true;
}

static bool check_host(di_http_parser *parser) {
    const char *host = di_http_message_field(&parser->message, "host");
    if (!host && parser->message.minor > 0)
        fail(parser, 400, "HTTP/1.1 needs a Host field");
    else if (host && host[strspn(host, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_:[]%~")])
        fail(parser, 400, "the Host field is no host name");
    return parser->state != DI_HTTP_FAILED;
}

static bool read_length(di_http_parser *parser, const char *text) {
    di_http_message *message = &parser->message;
    size_t digits = strlen(text);
    message->has_length = digits > 0;
    for (size_t i = 0; i < digits; i++) {
        if (!is_digit(text[i])) message->has_length = false;
        if (i < LENGTH_DIGITS) message->content_length = message->content_length * 10 + (uint64_t)(text[i] - '0');
    }
    if (!message->has_length)
        fail(parser, 400, "Content-Length is not a number");
    else if (digits > LENGTH_DIGITS)
        fail(parser, 413, "the body is larger than --limit-body-bytes allows");
    return parser->state != DI_HTTP_FAILED;
}

static bool check_framing(di_http_parser *parser) {
    di_http_message *message = &parser->message;
    const char *length = di_http_message_field(message, "content-length");
    const char *coding = di_http_message_field(message, "transfer-encoding");
    if (coding && length)
        fail(parser, 400, "Content-Length and Transfer-Encoding exclude each other");
    else if (coding && message->minor == 0)
        fail(parser, 400, "HTTP/1.0 has no Transfer-Encoding");
    else if (coding && strcasecmp(coding, "chunked") != 0)
        fail(parser, 501, "the only Transfer-Encoding taken is chunked");
    else if (length && !read_length(parser, length))
        return false;
    if (parser->state == DI_HTTP_FAILED) return false;
    message->chunked = coding != NULL;
    return true;
}

static void end_head(di_http_parser *parser) {
    di_http_message *message = &parser->message;
    message->has_head = true;
    if (!check_single(parser) || !check_host(parser) || !check_framing(parser)) return;
    const char *expect = di_http_message_field(message, "expect");
    if (expect && strcasecmp(expect, "100-continue") != 0) {
        fail(parser, 417, "the only Expect that is understood is 100-continue");
        return;
    }
    if (message->has_length && message->content_length > parser->limits.body_bytes) {
        fail(parser, 413, "the body is larger than --limit-body-bytes allows");
        return;
    }
    message->wants_continue = expect && message->minor > 0 && (message->chunked || message->content_length > 0);
    message->keep_alive = message->minor > 0 ? !list_holds(message, "connection", "close")
                                             : list_holds(message, "connection", "keep-alive") &&
                                                   !list_holds(message, "connection", "close");
    parser->state = DI_HTTP_HEAD_DONE;
}

/* An empty line before a request is passed over (RFC 9112, 2.2): nothing was begun. */
static void pass_over(di_http_parser *parser) {
    di_text_clear(&parser->message.head);
    if (++parser->empty_lines > EMPTY_LINES) fail(parser, 400, "too many empty lines stand before a request");
}

/* A line of the head: [length] bytes with its line end. */
static void end_head_line(di_http_parser *parser, char *line, size_t length) {
    if (length < 2 || line[length - 2] != '\r') {
        fail(parser, 400, "a line must end with CR LF");
        return;
    }
    length -= 2;
    line[length] = '\0';
    if (memchr(line, '\r', length))
        fail(parser, 400, "a CR stands within a line");
    else if (!parser->message.has_line && !length)
        pass_over(parser);
    else if (!parser->message.has_line)
        read_request_line(parser, line, length);
    else if (length)
        read_field(parser, line, length);
    else
        end_head(parser);
}

static size_t feed_head(di_http_parser *parser, const char *bytes, size_t length) {
    di_text *head = &parser->message.head;
    const char *end = memchr(bytes, '\n', length);
    size_t taken = end ? (size_t)(end - bytes) + 1 : length;
    size_t room = parser->limits.head_bytes - head->length;
    bool too_long = taken > room;
    if (too_long) taken = room;
    di_text_append(head, bytes, taken);
    if (head->failed) {
        fail(parser, 503, no_memory);
    } else if (too_long) {
        if (parser->message.has_line)
            fail(parser, 431, "the header fields are larger than --limit-header-bytes allows");
        else
            fail(parser, 414, "the request line is larger than --limit-header-bytes allows");
    } else if (end) {
        end_head_line(parser, head->data + parser->line_start, head->length - parser->line_start);
        parser->line_start = head->length;
    }
    return taken;
}

/* ---------------------------------------------------------------- body */

static void end_body(di_http_parser *parser) {
    di_text *body = &parser->message.body;
    di_text_append(body, "", 0); /* an empty body is a text too */
    if (body->failed)
        fail(parser, 503, no_memory);
    else
        parser->state = DI_HTTP_DONE;
}

static size_t take_data(di_http_parser *parser, const char *bytes, size_t length) {
    size_t taken = parser->left < length ? (size_t)parser->left : length;
    di_text_append(&parser->message.body, bytes, taken);
    parser->left -= taken;
    if (parser->message.body.failed) fail(parser, 503, no_memory);
    return taken;
}

/* The line with the size of a chunk: [length] bytes without its line end. */
static void read_chunk_size(di_http_parser *parser, const char *line, size_t length) {
    uint64_t size = 0;
    size_t digits = 0;
    for (; digits < length && hex_value(line[digits]) >= 0; digits++) {
        if (digits == CHUNK_DIGITS) {
            fail(parser, 413, "the body is larger than --limit-body-bytes allows");
            return;
        }
        size = size * 16 + (uint64_t)hex_value(line[digits]);
    }
    size_t after = digits;
    while (after < length && (line[after] == ' ' || line[after] == '\t')) after++;
    if (!digits || (after < length && line[after] != ';') || (after == length && after > digits) ||
        !is_value(line, length)) {
        fail(parser, 400, "a chunk must begin with its size in hexadecimal digits");
    } else if (size > parser->limits.body_bytes - parser->message.body.length) {
        fail(parser, 413, "the body is larger than --limit-body-bytes allows");
    } else {
        parser->left = size;
        parser->part = size ? PART_DATA : PART_TRAILER;
    }
}

static void end_chunk_line(di_http_parser *parser) {
    char *line = parser->line.data;
    size_t length = parser->line.length;
    if (length < 2 || line[length - 2] != '\r') {
        fail(parser, 400, "a line of a chunked body must end with CR LF");
        return;
    }
    length -= 2;
    line[length] = '\0';
    char *name, *value;
    if (memchr(line, '\r', length))
        fail(parser, 400, "a CR stands within a line");
    else if (parser->part == PART_SIZE)
        read_chunk_size(parser, line, length);
    else if (parser->part == PART_DATA_END && length)
        fail(parser, 400, "a chunk is longer than its size says");
    else if (parser->part == PART_DATA_END)
        parser->part = PART_SIZE;
    else if (length)
        (void)split_field(parser, line, length, &name, &value); /* trailers are checked and dropped */
    else
        end_body(parser);
}

static size_t feed_chunk_line(di_http_parser *parser, const char *bytes, size_t length) {
    const char *end = memchr(bytes, '\n', length);
    size_t taken = end ? (size_t)(end - bytes) + 1 : length;
    size_t limit = parser->part == PART_TRAILER ? parser->limits.head_bytes - parser->trailer_bytes
                   : parser->part == PART_SIZE  ? CHUNK_LINE_BYTES
                                                : 2;
    size_t room = limit - parser->line.length;
    bool too_long = taken > room;
    if (too_long) taken = room;
    di_text_append(&parser->line, bytes, taken);
    if (parser->line.failed) {
        fail(parser, 503, no_memory);
    } else if (too_long) {
        if (parser->part == PART_TRAILER)
            fail(parser, 431, "the trailers are larger than --limit-header-bytes allows");
        else
            fail(parser, 400, "a line of a chunked body is too long");
    } else if (end) {
        if (parser->part == PART_TRAILER) parser->trailer_bytes += parser->line.length;
        end_chunk_line(parser);
        di_text_clear(&parser->line);
    }
    return taken;
}

static size_t feed_body(di_http_parser *parser, const char *bytes, size_t length) {
    if (parser->message.chunked && parser->part != PART_DATA) return feed_chunk_line(parser, bytes, length);
    size_t taken = take_data(parser, bytes, length);
    if (parser->state == DI_HTTP_FAILED || parser->left) return taken;
    if (parser->message.chunked)
        parser->part = PART_DATA_END;
    else
        end_body(parser);
    return taken;
}

/* ---------------------------------------------------------------- parser */

void di_http_parser_init(di_http_parser *parser, const di_http_limits *limits) {
    *parser = (di_http_parser){.limits = *limits};
}

void di_http_parser_free(di_http_parser *parser) {
    di_http_message_free(&parser->message);
    di_text_free(&parser->line);
}

void di_http_parser_reset(di_http_parser *parser) {
    di_http_limits limits = parser->limits;
    di_http_parser_free(parser);
    di_http_parser_init(parser, &limits);
}

size_t di_http_parser_feed(di_http_parser *parser, const char *bytes, size_t length) {
    size_t taken = 0;
    while (taken < length && (parser->state == DI_HTTP_HEAD || parser->state == DI_HTTP_BODY))
        taken += (parser->state == DI_HTTP_HEAD ? feed_head : feed_body)(parser, bytes + taken, length - taken);
    return taken;
}

void di_http_parser_take_body(di_http_parser *parser) {
    if (parser->state != DI_HTTP_HEAD_DONE) return;
    parser->state = DI_HTTP_BODY;
    parser->left = parser->message.content_length;
    if (!parser->message.chunked && !parser->left) end_body(parser);
}

bool di_http_parser_within(const di_http_parser *parser) {
    return parser->state != DI_HTTP_HEAD || parser->message.head.length > 0;
}
