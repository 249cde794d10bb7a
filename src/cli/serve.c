/* serve.c - the HTTP server: opens everything in order, says where it listens, closes everything in reverse. */
#include <signal.h>
#include <sys/resource.h>

#include "cli/cli.h"
#include "engine/engine.h"
#include "server/api_endpoints.h"
#include "server/operations.h"
#include "server/page.h"
#include "server/server.h"

enum { OTHER_FILES = 256 }; /* descriptors beside those of connections */

/* Every connection is a descriptor; the usual soft limit of 1024 is less than --max-connections needs. */
static void allow_files(const di_cli *cli) {
    rlim_t wanted = (rlim_t)di_config_int(cli->config, DI_OPT_MAX_CONNECTIONS) + OTHER_FILES;
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = limit.rlim_max < wanted ? limit.rlim_max : wanted;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < wanted)
        di_log_write(cli->log, DI_LOG_WARN, "serve",
                     "%llu files may be open (ulimit -n); --max-connections %lld needs %llu",
                     (unsigned long long)limit.rlim_cur, (long long)di_config_int(cli->config, DI_OPT_MAX_CONNECTIONS),
                     (unsigned long long)wanted);
}

/* SIGHUP: the log level as file and environment say now; one of the command line stays. */
static void reload(void *arg) {
    const di_cli *cli = arg;
    if (di_config_source_of(cli->config, DI_OPT_LOG_LEVEL) == DI_CONFIG_FLAG) return;
    di_error error = {0};
    di_config *fresh = di_config_new();
    di_status status = fresh ? DI_OK : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    const char *file = di_config_text(cli->config, DI_OPT_CONFIG);
    if (status == DI_OK && file[0]) status = di_config_set(fresh, "config", file, DI_CONFIG_FLAG, &error);
    if (status == DI_OK) status = di_read_configuration(fresh, NULL, &error);
    if (status == DI_OK) {
        di_log_set_level(cli->log, di_cli_log_level(fresh));
        di_log_write(cli->log, DI_LOG_INFO, "serve", "log level %s", di_config_text(fresh, DI_OPT_LOG_LEVEL));
    } else {
        di_log_write(cli->log, DI_LOG_ERROR, "serve", "the log level stays as it was: %s", error.message);
    }
    if (fresh) di_config_free(fresh);
}

/* With --port 0 nobody could know the port otherwise. */
static void say_where(const di_cli *cli, const di_server *server, const di_engine *engine) {
    const di_model_info *info = di_engine_info(engine);
    di_cli here = *cli;
    if (di_config_int(cli->config, DI_OPT_PORT) == 0) here.quiet = false;
    di_cli_note(&here, "serving %s at %s", info->path, di_server_url(server));
}

static int run(di_cli *cli) {
    di_error error = {0};
    di_server *server = NULL;
    di_engine *engine = NULL;
    di_operations *operations = NULL;
    di_api *api = NULL;
    allow_files(cli);
    signal(SIGHUP, SIG_IGN); /* a reload asked for while the model is loaded must not end the program */
    di_status status = di_server_open(cli->config, cli->log, &server, &error);
    if (status == DI_OK) status = di_cli_open_engine(cli, &engine, &error);
    if (status == DI_OK) status = di_operations_open(server, engine, cli->config, &operations, &error);
    if (status == DI_OK) status = di_api_open(server, engine, cli->config, cli->log, &api, &error);
    if (status == DI_OK) status = di_page_add_routes(server, &error);
    if (status == DI_OK) status = di_server_listen(server, &error);
    if (status == DI_OK) {
        di_server_on_reload(server, reload, cli);
        say_where(cli, server, engine);
        status = di_server_run(server, &error);
    }
    int code = DI_EXIT_OK;
    if (status == DI_ERR_CANCELLED)
        code = DI_EXIT_INTERRUPTED;
    else if (status != DI_OK)
        code = di_cli_report(&error);
    di_server_close(server);
    di_api_close(api);
    di_operations_close(operations);
    di_close(engine);
    return code;
}

const di_command di_command_serve = {
    .name = "serve",
    .summary = "HTTP server with OpenAI's and Anthropic's interfaces",
    .usage = "[MODEL] [options]",
    .text = "Answers until SIGTERM, which lets answers in progress end; a second one stops at\n"
            "once. SIGHUP reads keys and log level again. Limits: deepinfer help http.",
    .example = "  deepinfer serve --port 8000\n",
    .groups = "serve",
    .topics = "http",
    .run = run,
};
