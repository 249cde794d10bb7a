/* fuzz_http.c - the HTTP parser: a message read in two pieces and byte by byte gives what it gives whole; one that is
 * taken has one meaning.
 * needs: server base */
#include "server/http_parser.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const di_http_limits limits = {.head_bytes = 2048, .head_fields = 16, .body_bytes = 4096};

/* Feeds everything, `first` bytes first (0: byte by byte); the sum says what came of it. */
static uint64_t parse(const uint8_t *data, size_t size, size_t first, size_t *messages) {
    uint64_t sum = 14695981039346656037ULL;
    size_t taken = 0;
    di_http_parser parser;
    di_http_parser_init(&parser, &limits);
    *messages = 0;
    while (taken < size && parser.state != DI_HTTP_FAILED) {
        size_t piece = !first ? 1 : taken < first ? first - taken : size - taken;
        taken += di_http_parser_feed(&parser, (const char *)data + taken, piece);
        if (taken > size) abort();
        if (parser.state == DI_HTTP_HEAD_DONE) {
            const di_http_message *message = &parser.message;
            if (message->chunked && message->has_length) abort();
            if (memchr(message->path.data, '\0', message->path.length)) abort();
            for (size_t i = 0; i < message->field_count; i++)
                for (const char *c = message->head.data + message->fields[i].value; *c; c++)
                    sum = (sum ^ (unsigned char)*c) * 1099511628211ULL;
            di_http_parser_take_body(&parser);
        }
        if (parser.state == DI_HTTP_DONE) {
            const di_text *body = &parser.message.body;
            if (!body->data || body->data[body->length]) abort();
            if (!parser.message.chunked && body->length != parser.message.content_length) abort();
            for (size_t i = 0; i < body->length; i++) sum = (sum ^ (unsigned char)body->data[i]) * 1099511628211ULL;
            ++*messages;
            di_http_parser_reset(&parser);
        }
    }
    if (parser.state == DI_HTTP_FAILED && (!parser.reason || parser.http_status < 400)) abort();
    sum = (sum ^ (uint64_t)parser.http_status) * 1099511628211ULL;
    sum = (sum ^ (uint64_t)parser.state) * 1099511628211ULL;
    di_http_parser_free(&parser);
    return (sum ^ taken) * 1099511628211ULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t messages, again;
    uint64_t whole = parse(data, size, size, &messages);
    if (parse(data, size, 0, &again) != whole || again != messages) abort();
    size_t cut = size ? 1 + data[size / 2] % size : 1;
    if (parse(data, size, cut, &again) != whole || again != messages) abort();
    return 0;
}
