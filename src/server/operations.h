/* operations.h - what an operator and a load balancer ask: health, version, load, metrics, requests in progress.
 *
 *   GET /health/live    200 as long as the I/O thread runs
 *   GET /health/ready   200 when requests go in and steps go on; 503 and the reason ("loading") otherwise
 *   GET /health, /ping  (POST too for /ping) the same as ready, without a body, as vLLM has them
 *   GET /version /load  as vLLM has them
 *   GET /metrics        Prometheus text: the engine's registry, the transport's counters, and names of vLLM's
 *   GET /v1/requests    requests in progress of the key's own tenant ("operator" has all), without what they say
 *
 * I/O thread. Nothing here waits for the engine.
 */
#ifndef DI_SERVER_OPERATIONS_H
#define DI_SERVER_OPERATIONS_H

#include "engine/engine.h"
#include "server/http.h"

typedef struct di_operations di_operations;

/* Adds the routes; until di_operations_start, health says that the model is being loaded (the server must be loading
 * till then). The server must outlive it; config is read during the calls only. */
di_status di_operations_open(di_server *server, const di_config *config, di_operations **operations, di_error *error);
/* There is an engine, which must outlive the server's run. */
di_status di_operations_start(di_operations *operations, di_engine *engine, const di_config *config, di_error *error);
void di_operations_close(di_operations *operations); /* NULL is allowed */

/* Whether requests should be sent here; if not, *reason gets why. stall_ms: the option "ready-stall-ms". */
bool di_operations_ready(const di_engine_progress *progress, bool draining, int64_t stall_ms, di_text *reason);

#endif
