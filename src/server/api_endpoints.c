/* api_endpoints.c - routes, and the endpoints that do not generate; see api_endpoints.h. */
#include "server/api_endpoints.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/api_internal.h"

/* ------------------------------------------------------------------------------------------------ small answers */

static void reply_json(di_call *call, di_exchange *exchange, const di_text *text) {
    if (text->failed) {
        di_exchange_fail(exchange, 503, "memory", NULL, "out of memory for the answer");
        return;
    }
    di_header headers[4];
    size_t count = call ? di_call_headers(call, false, headers) : 0;
    di_exchange_reply(exchange, 200, "application/json", headers, count, text->data, text->length);
}

static void write_ids(di_json_writer *writer, const di_ids *ids) {
    di_json_array_begin(writer);
    for (size_t i = 0; i < ids->count; i++) di_json_integer(writer, ids->data[i]);
    di_json_array_end(writer);
}

static void write_tokens(const di_call *call, di_json_writer *writer) {
    const di_ids *ids = &call->ids[0];
    di_put_unsigned(writer, "count", ids->count);
    di_put_unsigned(writer, "max_model_len", di_engine_info(call->api->engine)->context);
    di_json_key(writer, "tokens");
    write_ids(writer, ids);
    di_json_key(writer, "token_strs");
    if (!call->token_strings) {
        di_json_null(writer);
        return;
    }
    di_json_array_begin(writer);
    for (size_t i = 0; i < ids->count; i++) {
        size_t length = 0;
        const char *bytes = di_tokenizer_bytes(call->api->tokenizer, ids->data[i], &length);
        di_json_string_n(writer, bytes ? bytes : "", length);
    }
    di_json_array_end(writer);
}

/* What needs no engine. */
static void answer_at_once(di_call *call) {
    di_text text = {0}, decoded = {0};
    di_json_writer writer;
    di_json_begin(&writer, &text);
    di_json_object_begin(&writer);
    di_status status = DI_OK;
    if (call->endpoint == DI_ENDPOINT_COUNT_TOKENS) {
        di_put_unsigned(&writer, "input_tokens", call->ids[0].count);
    } else if (call->endpoint == DI_ENDPOINT_TOKENIZE) {
        write_tokens(call, &writer);
    } else {
        status = di_tokenizer_decode(call->api->tokenizer, call->ids[0].data, call->ids[0].count, false, &decoded,
                                     &call->error);
        di_put_text_member(&writer, "prompt", &decoded);
        text.failed |= decoded.failed;
    }
    di_json_object_end(&writer);
    if (status == DI_OK)
        reply_json(call, call->exchange, &text);
    else
        di_call_fail(call, &call->error);
    di_text_free(&decoded);
    di_text_free(&text);
    di_call_free(call);
}

/* ------------------------------------------------------------------------------------------------------- calls */

static void prepare(void *arg) {
    di_call *call = arg;
    if (di_call_prepare(call)) di_error_clear(&call->error);
    di_call_clean_names(&call->unknown);
}

static void prepared(void *arg) {
    di_call *call = arg;
    call->preparing = false;
    if (di_exchange_gone(call->exchange)) {
        di_call_free(call);
    } else if (call->error.status != DI_OK) {
        di_call_fail(call, &call->error);
        di_call_free(call);
    } else if (call->endpoint == DI_ENDPOINT_COUNT_TOKENS || call->endpoint == DI_ENDPOINT_TOKENIZE ||
               call->endpoint == DI_ENDPOINT_DETOKENIZE) {
        answer_at_once(call);
    } else {
        di_call_run(call);
    }
}

/* The client has gone: its requests end with the step that runs. */
static void on_close(di_exchange *exchange, void *user) {
    (void)exchange;
    di_call *call = user;
    if (!call->preparing) di_call_free(call);
}

static void start(void *app, di_exchange *exchange, di_endpoint endpoint) {
    di_api *api = app;
    di_error error = {0};
    di_call *call = calloc(1, sizeof *call);
    if (!call) {
        di_exchange_fail(exchange, 503, "memory", NULL, "out of memory for the request");
        return;
    }
    *call = (di_call){.api = api, .exchange = exchange, .endpoint = endpoint, .preparing = true};
    call->arena = di_exchange_arena(exchange);
    api->calls++;
    di_exchange_hold(exchange);
    di_exchange_set_user(exchange, call);
    di_exchange_on_close(exchange, on_close);
    if (di_server_work(api->server, prepare, prepared, call, &error) != DI_OK) {
        di_call_fail(call, &error);
        di_call_free(call);
    }
}

static void post_chat(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_CHAT);
}
static void post_completions(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_COMPLETIONS);
}
static void post_messages(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_MESSAGES);
}
static void post_count_tokens(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_COUNT_TOKENS);
}
static void post_responses(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_RESPONSES);
}
static void post_tokenize(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_TOKENIZE);
}
static void post_detokenize(void *app, di_exchange *exchange) {
    start(app, exchange, DI_ENDPOINT_DETOKENIZE);
}

/* ------------------------------------------------------------------------------------------------------ models */

/* Paths of Anthropic's interface, whether they are there or not, and what both have for who says that it is theirs. */
static bool is_anthropic(const di_exchange *exchange) {
    static const char *const theirs[] = {"/anthropic/", "/v1/messages/"};
    const char *path = di_exchange_path(exchange);
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        if (strncmp(path, theirs[i], strlen(theirs[i])) == 0) return true;
    return di_exchange_header(exchange, "anthropic-version") != NULL;
}

static di_error_shape choose_errors(const di_exchange *exchange) {
    return is_anthropic(exchange) ? di_error_anthropic : di_error_openai;
}

static void write_model(const di_api *api, di_json_writer *writer, const char *name, bool anthropic) {
    di_json_object_begin(writer);
    if (anthropic) {
        char when[32];
        time_t seconds = (time_t)api->started;
        struct tm date;
        when[0] = '\0';
        if (gmtime_r(&seconds, &date)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &date);
        di_put_string(writer, "type", "model");
        di_put_string(writer, "id", name);
        di_put_string(writer, "display_name", name);
        di_put_string(writer, "created_at", when);
        di_put_unsigned(writer, "max_input_tokens", di_engine_info(api->engine)->context);
        di_put_unsigned(writer, "max_tokens", di_engine_info(api->engine)->context);
    } else {
        di_put_string(writer, "id", name);
        di_put_string(writer, "object", "model");
        di_put_unsigned(writer, "created", (uint64_t)api->started);
        di_put_string(writer, "owned_by", "deepinfer");
        di_put_string(writer, "root", api->names[0]);
        di_put_null(writer, "parent");
        di_put_unsigned(writer, "max_model_len", di_engine_info(api->engine)->context);
        di_put_string(writer, "system_fingerprint", di_engine_info(api->engine)->fingerprint);
    }
    di_json_object_end(writer);
}

static void get_models(void *app, di_exchange *exchange) {
    const di_api *api = app;
    bool anthropic = is_anthropic(exchange);
    di_text text = {0};
    di_json_writer writer;
    di_json_begin(&writer, &text);
    di_json_object_begin(&writer);
    if (!anthropic) di_put_string(&writer, "object", "list");
    di_json_key(&writer, "data");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < api->name_count; i++) write_model(api, &writer, api->names[i], anthropic);
    di_json_array_end(&writer);
    if (anthropic) {
        di_put_bool(&writer, "has_more", false);
        di_put_string(&writer, "first_id", api->names[0]);
        di_put_string(&writer, "last_id", api->names[api->name_count - 1]);
    }
    di_json_object_end(&writer);
    reply_json(NULL, exchange, &text);
    di_text_free(&text);
}

static void get_model(void *app, di_exchange *exchange) {
    const di_api *api = app;
    const char *name = di_exchange_rest(exchange);
    for (size_t i = 0; i < api->name_count; i++) {
        if (strcmp(api->names[i], name) != 0) continue;
        di_text text = {0};
        di_json_writer writer;
        di_json_begin(&writer, &text);
        write_model(api, &writer, api->names[i], is_anthropic(exchange));
        reply_json(NULL, exchange, &text);
        di_text_free(&text);
        return;
    }
    di_exchange_fail(exchange, 404, "model_not_found", "model", "The model `%.100s` does not exist.", name);
}

static const di_route routes[] = {
    {"POST", "/v1/chat/completions", DI_ACCESS_KEY, true, di_error_openai, post_chat},
    {"POST", "/chat/completions", DI_ACCESS_KEY, true, di_error_openai, post_chat},
    {"POST", "/beta/chat/completions", DI_ACCESS_KEY, true, di_error_openai, post_chat},
    {"POST", "/beta/v1/chat/completions", DI_ACCESS_KEY, true, di_error_openai, post_chat},
    {"POST", "/v1/completions", DI_ACCESS_KEY, true, di_error_openai, post_completions},
    {"POST", "/completions", DI_ACCESS_KEY, true, di_error_openai, post_completions},
    {"POST", "/beta/completions", DI_ACCESS_KEY, true, di_error_openai, post_completions},
    {"POST", "/beta/v1/completions", DI_ACCESS_KEY, true, di_error_openai, post_completions},
    {"POST", "/v1/messages", DI_ACCESS_KEY, true, di_error_anthropic, post_messages},
    {"POST", "/anthropic/v1/messages", DI_ACCESS_KEY, true, di_error_anthropic, post_messages},
    {"POST", "/v1/messages/count_tokens", DI_ACCESS_KEY, true, di_error_anthropic, post_count_tokens},
    {"POST", "/anthropic/v1/messages/count_tokens", DI_ACCESS_KEY, true, di_error_anthropic, post_count_tokens},
    {"POST", "/v1/responses", DI_ACCESS_KEY, true, di_error_openai, post_responses},
    {"POST", "/responses", DI_ACCESS_KEY, true, di_error_openai, post_responses},
    {"GET", "/v1/models", DI_ACCESS_KEY, false, NULL, get_models},
    {"GET", "/models", DI_ACCESS_KEY, false, NULL, get_models},
    {"GET", "/anthropic/v1/models", DI_ACCESS_KEY, false, NULL, get_models},
    {"GET", "/anthropic/v1/models/*", DI_ACCESS_KEY, false, NULL, get_model},
    {"GET", "/v1/models/*", DI_ACCESS_KEY, false, NULL, get_model},
    {"GET", "/models/*", DI_ACCESS_KEY, false, NULL, get_model},
    {"POST", "/tokenize", DI_ACCESS_KEY, true, di_error_openai, post_tokenize},
    {"POST", "/detokenize", DI_ACCESS_KEY, true, di_error_openai, post_detokenize},
};

/* ----------------------------------------------------------------------------------------------------- opening */

/* Names of the model: the option's, or the name of its folder. */
static di_status read_names(di_api *api, di_error *error) {
    const char *given = di_config_text(api->config, DI_OPT_SERVED_MODEL_NAME);
    const char *path = di_engine_info(api->engine)->path;
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    size_t begin = length;
    while (begin > 0 && path[begin - 1] != '/') begin--;
    bool named = given && *given;
    size_t bytes = named ? strlen(given) : length - begin, commas = 0;
    for (size_t i = 0; named && i < bytes; i++) commas += given[i] == ',';
    api->name_text = malloc(bytes + 1);
    api->names = calloc(commas + 1, sizeof *api->names);
    if (!api->name_text || !api->names) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for names");
    memcpy(api->name_text, named ? given : path + begin, bytes);
    api->name_text[bytes] = '\0';
    for (char *at = api->name_text; at;) {
        char *comma = strchr(at, ',');
        if (comma) *comma = '\0';
        if (!*at)
            return di_fail(error, DI_ERR_CONFIG, "served-model-name",
                           "--served-model-name \"%.200s\" has an empty name", given);
        api->names[api->name_count++] = at;
        at = comma ? comma + 1 : NULL;
    }
    return DI_OK;
}

static di_status read_defaults(di_api *api, di_error *error) {
    const di_config *config = api->config;
    const di_model_config *model = di_engine_model_config(api->engine);
    di_sampling_default(&api->values);
    if (di_config_is(config, DI_OPT_GENERATION_CONFIG, "model")) {
        if (!isnan(model->generation_temperature)) api->values.temperature = model->generation_temperature;
        if (!isnan(model->generation_top_p)) api->values.top_p = model->generation_top_p;
    }
    api->strict = di_config_bool(config, DI_OPT_STRICT_FIELDS);
    api->like_service = di_config_bool(config, DI_OPT_API_LIKE_SAMPLING);
    api->has_seed = di_config_uint64(config, DI_OPT_SEED, &api->seed);
    di_recipe_options_default(&api->options);
    api->options.pass_unknown = !api->strict;
    api->options.thinking = di_config_is(config, DI_OPT_THINKING, "model")
                                ? di_engine_info(api->engine)->thinking_default
                                : di_config_is(config, DI_OPT_THINKING, "on");
    const char *effort = di_config_text(config, DI_OPT_EFFORT);
    di_status status =
        di_recipe_history_parse(di_config_text(config, DI_OPT_REASONING_HISTORY), &api->options.history, error);
    if (status == DI_OK && effort && *effort) status = di_recipe_effort_parse(effort, &api->options, error);
    return status;
}

di_status di_api_start(di_api *api, di_engine *engine, di_error *error) {
    api->engine = engine;
    api->tokenizer = di_engine_tokenizer(engine);
    di_status status = read_names(api, error);
    if (status == DI_OK) status = read_defaults(api, error);
    if (status != DI_OK) return status;
    if (api->tokenizer) {
        di_recipe_open(api->tokenizer, di_recipe_detect(di_engine_info(api->engine)->path, api->tokenizer), api->log,
                       &api->recipe, &api->no_recipe);
        return DI_OK;
    }
    di_fail(&api->no_recipe, DI_ERR_UNSUPPORTED, "messages",
            "the model has no tokenizer; only /v1/completions with token ids is available");
    di_log_write(api->log, DI_LOG_WARN, "server",
                 "%s has no tokenizer.json: /v1/completions takes and gives token ids (return_token_ids); what needs "
                 "text is refused: chat, responses, messages, tokenize, stop strings, structured output",
                 di_engine_info(api->engine)->path);
    return DI_OK;
}

di_status di_api_open(di_server *server, const di_config *config, di_log *log, di_api **out, di_error *error) {
    *out = NULL;
    di_api *api = calloc(1, sizeof *api);
    if (!api) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the api");
    *api = (di_api){.server = server, .config = config, .log = log, .started = (int64_t)time(NULL)};
    di_status status = di_server_add_routes(server, routes, sizeof routes / sizeof *routes, api, error);
    if (status != DI_OK) {
        di_api_close(api);
        return status;
    }
    di_server_set_errors(server, choose_errors);
    *out = api;
    return DI_OK;
}

void di_api_close(di_api *api) {
    if (!api) return;
    free(api->name_text);
    free(api->names);
    free(api);
}

/* ---------------------------------------------------------------------------------------------------- document */

void di_api_write_markdown(di_text *out) {
    di_text_puts(out, "## Routes\n\n| method | path |\n|---|---|\n");
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        di_text_printf(out, "| %s | `%s` |\n", routes[i].method, routes[i].path);
    di_text_puts(out, "\n## Fields\n");
    di_fields_write_markdown(out);
}
