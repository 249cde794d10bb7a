/* operations.c - see operations.h. */
#include "server/operations.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "server/http_metrics.h"
#include "server/server_internal.h"

enum { LEAST_STALL_MS = 2000 };

struct di_operations {
    di_server *server;
    di_engine *engine; /* NULL while the model is being loaded */
    int64_t stall_ms, opened_ns;
    char *model; /* name for the label model_name */
};

/* ---------------------------------------------------------------- health */

bool di_operations_ready(const di_engine_progress *progress, bool draining, int64_t stall_ms, di_text *reason) {
    int64_t limit = stall_ms;
    if (!limit) limit = 2 * progress->step_budget_ms > LEAST_STALL_MS ? 2 * progress->step_budget_ms : LEAST_STALL_MS;
    if (draining) {
        di_text_puts(reason, "the server is shutting down");
    } else if (progress->stuck_ms > limit) {
        di_text_printf(reason, "no step has ended for %.1f s, %u requests running, %u waiting; a step may take %.1f s",
                       (double)progress->stuck_ms / 1e3, progress->running, progress->waiting, (double)limit / 1e3);
    } else {
        return true;
    }
    return false;
}

static void write_progress(di_json_writer *writer, const di_engine_progress *progress) {
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"waiting", progress->waiting},
        {"running", progress->running},
        {"swapped", progress->swapped},
        {"sequences", progress->sequences},
        {"steps", (int64_t)progress->steps},
        {"step_ms", progress->step_ms},
        {"since_step_ms", progress->since_step_ms},
        {"step_budget_ms", progress->step_budget_ms},
        {"oldest_waiting_ms", progress->oldest_waiting_ms},
        {"stuck_ms", progress->stuck_ms},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_json_key(writer, rows[i].name);
        di_json_integer(writer, rows[i].value);
    }
}

static void reply_json(di_exchange *exchange, int http_status, di_text *body) {
    if (body->failed)
        di_exchange_fail(exchange, 503, "memory", NULL, "out of memory");
    else
        di_exchange_reply(exchange, http_status, "application/json", NULL, 0, body->data, body->length);
    di_text_free(body);
}

static void answer_live(void *app, di_exchange *exchange) {
    (void)app;
    static const char body[] = "{\"status\":\"live\"}";
    di_exchange_reply(exchange, 200, "application/json", NULL, 0, body, sizeof body - 1);
}

static void answer_loading(const di_operations *operations, di_exchange *exchange) {
    di_text body = {0};
    di_text_printf(&body, "{\"status\":\"not_ready\",\"reason\":\"%s\",\"loading_ms\":%lld}",
                   di_server_draining(operations->server) ? "the server is shutting down" : "loading",
                   (long long)((di_now_ns() - operations->opened_ns) / 1000000));
    reply_json(exchange, 503, &body);
}

static void answer_ready(void *app, di_exchange *exchange) {
    const di_operations *operations = app;
    if (!operations->engine) {
        answer_loading(operations, exchange);
        return;
    }
    di_engine_progress progress = di_engine_get_progress(operations->engine);
    di_text reason = {0}, body = {0};
    bool ready = di_operations_ready(&progress, di_server_draining(operations->server), operations->stall_ms, &reason);
    di_json_writer writer;
    di_json_begin(&writer, &body);
    di_json_object_begin(&writer);
    di_json_key(&writer, "status");
    di_json_string(&writer, ready ? "ready" : "not_ready");
    if (!ready) {
        di_json_key(&writer, "reason");
        di_json_string(&writer, reason.data && !reason.failed ? reason.data : "out of memory");
    }
    write_progress(&writer, &progress);
    di_json_object_end(&writer);
    di_text_free(&reason);
    reply_json(exchange, ready ? 200 : 503, &body);
}

static void answer_health(void *app, di_exchange *exchange) {
    const di_operations *operations = app;
    bool ready = false;
    if (operations->engine) {
        di_engine_progress progress = di_engine_get_progress(operations->engine);
        di_text reason = {0};
        ready = di_operations_ready(&progress, di_server_draining(operations->server), operations->stall_ms, &reason);
        di_text_free(&reason);
    }
    di_exchange_reply(exchange, ready ? 200 : 503, NULL, NULL, 0, NULL, 0);
}

/* ---------------------------------------------------------------- version, load, metrics */

static void answer_version(void *app, di_exchange *exchange) {
    (void)app;
    di_text body = {0};
    di_json_writer writer;
    di_json_begin(&writer, &body);
    di_json_object_begin(&writer);
    di_json_key(&writer, "version");
    di_json_string(&writer, di_version());
    di_json_object_end(&writer);
    reply_json(exchange, 200, &body);
}

static void answer_load(void *app, di_exchange *exchange) {
    const di_operations *operations = app;
    di_text body = {0};
    di_text_printf(&body, "{\"server_load\":%zu}", di_server_exchanges(operations->server));
    reply_json(exchange, 200, &body);
}

static void answer_metrics(void *app, di_exchange *exchange) {
    const di_operations *operations = app;
    di_text body = {0};
    di_engine_refresh_metrics(operations->engine);
    di_metrics_write_prometheus(di_engine_metrics(operations->engine), &body);
    di_engine_progress progress = di_engine_get_progress(operations->engine);
    di_text reason = {0};
    bool ready = di_operations_ready(&progress, di_server_draining(operations->server), operations->stall_ms, &reason);
    di_text_free(&reason);
    di_text_printf(
        &body,
        "# HELP deepinfer_ready 1 while /health/ready says 200\n# TYPE deepinfer_ready gauge\ndeepinfer_ready %d\n",
        ready);
    di_build_metric_write(di_engine_info(operations->engine), operations->model, &body);
    di_http_metrics_write(operations->server, &body);
    di_vllm_metrics_write(di_engine_metrics(operations->engine), operations->model, &body);
    if (body.failed)
        di_exchange_fail(exchange, 503, "memory", NULL, "out of memory");
    else
        di_exchange_reply(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, 0, body.data, body.length);
    di_text_free(&body);
}

/* ---------------------------------------------------------------- requests */

/* Who asks for the list of requests. */
typedef struct reader {
    di_json_writer *writer;
    bool sees_all;
    const char *owner; /* name of the key; NULL without keys, who sees all */
} reader;

static void write_request(void *arg, const di_live_request *live) {
    const reader *who = arg;
    di_json_writer *writer = who->writer;
    if (!who->sees_all && (!live->owner || strcmp(live->owner, who->owner) != 0)) return;
    di_json_object_begin(writer);
    di_json_key(writer, "id");
    di_json_string(writer, live->id);
    di_json_key(writer, "state");
    di_json_string(writer, live->state);
    const struct {
        const char *name;
        int64_t value;
    } rows[] = {
        {"age_ms", live->age_ms},
        {"prompt_tokens", (int64_t)live->prompt_tokens},
        {"cached_tokens", (int64_t)live->cached_tokens},
        {"completion_tokens", (int64_t)live->completion_tokens},
        {"max_tokens", (int64_t)live->max_tokens},
        {"samples", live->samples},
        {"priority", live->priority},
        {"preemptions", live->preemptions},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_json_key(writer, rows[i].name);
        di_json_integer(writer, rows[i].value);
    }
    di_json_object_end(writer);
}

static void answer_requests(void *app, di_exchange *exchange) {
    const di_operations *operations = app;
    di_engine_progress progress = di_engine_get_progress(operations->engine);
    di_text body = {0};
    di_json_writer writer;
    di_error error = {0};
    di_json_begin(&writer, &body);
    di_json_object_begin(&writer);
    di_json_key(&writer, "object");
    di_json_string(&writer, "list");
    write_progress(&writer, &progress);
    di_json_key(&writer, "data");
    di_json_array_begin(&writer);
    const char *key = di_exchange_tenant(exchange);
    reader who = {&writer, !key || strcmp(key, DI_KEYS_OPERATOR) == 0, key};
    di_status status = di_engine_each_request(operations->engine, write_request, &who, &error);
    di_json_array_end(&writer);
    di_json_object_end(&writer);
    if (status == DI_OK) {
        reply_json(exchange, 200, &body);
        return;
    }
    di_text_free(&body);
    di_exchange_fail_error(exchange, &error);
}

/* ---------------------------------------------------------------- routes */

static const di_route routes[] = {
    {"GET", "/health/live", DI_ACCESS_PROBE, false, NULL, answer_live},
    {"GET", "/health/ready", DI_ACCESS_PROBE, false, NULL, answer_ready},
    {"GET", "/health", DI_ACCESS_PROBE, false, NULL, answer_health},
    {"GET", "/ping", DI_ACCESS_PROBE, false, NULL, answer_health},
    {"POST", "/ping", DI_ACCESS_PROBE, false, NULL, answer_health},
    {"GET", "/version", DI_ACCESS_KEY, false, NULL, answer_version},
    {"GET", "/load", DI_ACCESS_KEY, false, NULL, answer_load},
    {"GET", "/metrics", DI_ACCESS_KEY, false, NULL, answer_metrics},
    {"GET", "/v1/requests", DI_ACCESS_KEY, false, NULL, answer_requests},
};

/* First of the names the model is served under, or its folder's. */
static char *model_name(const di_engine *engine, const di_config *config) {
    const char *names = di_config_text(config, DI_OPT_SERVED_MODEL_NAME);
    if (names[0]) return strndup(names, strcspn(names, ","));
    const char *path = di_engine_info(engine)->path;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    size_t start = length;
    while (start && path[start - 1] != '/') start--;
    return strndup(path + start, length - start);
}

di_status di_operations_open(di_server *server, const di_config *config, di_operations **operations, di_error *error) {
    *operations = calloc(1, sizeof **operations);
    if (!*operations) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    **operations = (di_operations){
        .server = server, .stall_ms = di_config_int(config, DI_OPT_READY_STALL_MS), .opened_ns = di_now_ns()};
    return di_server_add_routes(server, routes, sizeof routes / sizeof *routes, *operations, error);
}

di_status di_operations_start(di_operations *operations, di_engine *engine, const di_config *config, di_error *error) {
    operations->model = model_name(engine, config);
    if (!operations->model) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the server");
    operations->engine = engine;
    return DI_OK;
}

void di_operations_close(di_operations *operations) {
    if (!operations) return;
    free(operations->model);
    free(operations);
}
