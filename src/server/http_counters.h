/* http_counters.h - what the transport counts, for /metrics. I/O thread. */
#ifndef DI_SERVER_HTTP_COUNTERS_H
#define DI_SERVER_HTTP_COUNTERS_H

#include <stdint.h>

typedef struct di_http_counters {
    uint64_t connections, refused_connections, tls_failures;
    uint64_t answers[6];   /* by hundreds of the HTTP status; 0 = gone before the answer began */
    uint64_t gone;         /* clients that left before their answer ended */
    uint64_t malformed;    /* requests that are no HTTP */
    uint64_t unauthorised; /* without a right key */
    uint64_t timeouts;     /* of heads, bodies and writes */
    uint64_t limits;       /* refused by a limit of heads, bodies or connections */
    uint64_t bytes_in, bytes_out;
} di_http_counters;

#endif
