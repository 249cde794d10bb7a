/* api_endpoints.h - the endpoints of OpenAI's and Anthropic's interfaces over one engine.
 *
 * The owner opens the api before the server listens, starts it once there is an engine, and closes it after the server
 * has gone and before the engine closes. Everything between runs on the server's I/O thread, except what it hands to
 * di_server_work.
 */
#ifndef DI_SERVER_API_ENDPOINTS_H
#define DI_SERVER_API_ENDPOINTS_H

#include "base/config.h"
#include "base/log.h"
#include "server/http.h"

typedef struct di_api di_api;

/* Adds the routes, so that their errors have their shapes; no handler may be called before di_api_start has returned
 * (the server is loading till then). config, server, engine and log (may be NULL) must outlive the api. */
di_status di_api_open(di_server *server, const di_config *config, di_log *log, di_api **api, di_error *error);
di_status di_api_start(di_api *api, di_engine *engine, di_error *error);
void di_api_close(di_api *api); /* NULL is allowed */

/* Markdown of docs/api.md. */
void di_api_write_markdown(di_text *out);

#endif
