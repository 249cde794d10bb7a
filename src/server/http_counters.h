/* http_counters.h - what the transport counts, for /metrics. I/O thread. */
#ifndef DI_SERVER_HTTP_COUNTERS_H
#define DI_SERVER_HTTP_COUNTERS_H

#include <stdint.h>

/* Limits that requests meet, DI_HTTP_LIMIT(id, option or name of the limit). */
#define DI_HTTP_LIMITS                                                                                                 \
    DI_HTTP_LIMIT(HEADER, "limit-header-bytes")                                                                        \
    DI_HTTP_LIMIT(BODY, "limit-body-bytes")                                                                            \
    DI_HTTP_LIMIT(BODIES, "limit-bodies-bytes")                                                                        \
    DI_HTTP_LIMIT(CONNECTIONS, "max-connections")                                                                      \
    DI_HTTP_LIMIT(AHEAD, "sent-ahead")                                                                                 \
    DI_HTTP_LIMIT(HEADER_TIME, "header-timeout-ms")                                                                    \
    DI_HTTP_LIMIT(BODY_TIME, "body-timeout-ms")                                                                        \
    DI_HTTP_LIMIT(WRITE_TIME, "write-timeout-ms")

typedef enum di_http_limit {
#define DI_HTTP_LIMIT(id, name) DI_HTTP_LIMIT_##id,
    DI_HTTP_LIMITS
#undef DI_HTTP_LIMIT
        DI_HTTP_LIMIT_COUNT
} di_http_limit;

enum { DI_HTTP_ERROR_CODES = 64 }; /* beyond these the last row counts */

typedef struct di_http_counters {
    uint64_t connections, refused_connections, tls_failures;
    uint64_t answers[6];   /* by hundreds of the HTTP status; 0 = gone before the answer began */
    uint64_t gone;         /* clients that left before their answer ended */
    uint64_t malformed;    /* requests that are no HTTP */
    uint64_t unauthorised; /* without a right key */
    uint64_t limits[DI_HTTP_LIMIT_COUNT];
    struct {
        const char *code; /* literal; NULL = the row is free */
        uint64_t count;
    } errors[DI_HTTP_ERROR_CODES]; /* error answers by the code in their body */
    uint64_t bytes_in, bytes_out;
} di_http_counters;

#endif
