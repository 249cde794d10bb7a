/* serve.c - the HTTP server: opens the address, loads the model beside it, says where it listens, closes everything in
 * reverse. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/thread.h"
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

/* The options that are not at their defaults, for whoever reads the log later. Never a key. */
static void log_options(const di_cli *cli) {
    static const char *const from[] = {"default", "file", "environment", "command line"};
    const di_config_row *rows = di_config_rows();
    for (di_config_id id = 0; id < DI_OPT_COUNT; id++) {
        if (!di_config_is_set(cli->config, id)) continue;
        di_log_write(cli->log, DI_LOG_INFO, "serve", "option %s = %.1000s (%s)", rows[id].name,
                     id == DI_OPT_API_KEY ? "(secret)" : di_config_text(cli->config, id),
                     from[di_config_source_of(cli->config, id)]);
    }
    if (di_config_source_of(cli->config, DI_OPT_API_KEY) == DI_CONFIG_FLAG)
        di_log_write(cli->log, DI_LOG_WARN, "serve",
                     "every user of this machine sees the key on the command line; DEEPINFER_API_KEY or --api-key-file "
                     "keep it to themselves");
}

/* SIGHUP: the log level as file and environment say now; one of the command line stays. */
static void reload(void *arg) {
    const di_cli *cli = arg;
    if (di_config_source_of(cli->config, DI_OPT_LOG_LEVEL) == DI_CONFIG_FLAG) return;
    di_error error = {0};
    di_config *fresh = di_config_new();
    di_status status = fresh ? DI_OK : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    const char *file = di_config_text(cli->config, DI_OPT_CONFIG);
    if (status == DI_OK) status = di_config_load_environment(fresh, NULL, &error);
    if (status == DI_OK && file[0]) status = di_config_load_file(fresh, file, true, &error);
    if (status == DI_OK) {
        di_log_set_level(cli->log, di_cli_log_level(fresh));
        di_log_write(cli->log, DI_LOG_INFO, "serve", "log level %s", di_config_text(fresh, DI_OPT_LOG_LEVEL));
    } else {
        di_log_write(cli->log, DI_LOG_ERROR, "serve", "the log level stays as it was: %s", error.message);
    }
    if (fresh) di_config_free(fresh);
}

/* ---------------------------------------------------------------- the model comes while the server answers already */

/* Where the model is on its way from the thread that loads it to the I/O thread. */
typedef struct loading {
    di_cli *cli;
    di_server *server;
    di_operations *operations;
    di_api *api;
    pthread_t thread;
    bool begun, ended; /* ended: the thread has nothing more to do */
    di_engine *engine; /* NULL: not yet, or failed */
    di_status status;
    di_error error;
    di_server_task ready; /* for the I/O thread */
} loading;

/* With --port 0 nobody could know the port otherwise. */
static void say_where(const di_cli *cli, const di_server *server, const di_engine *engine) {
    const di_model_info *info = di_engine_info(engine);
    di_cli here = *cli;
    if (di_config_int(cli->config, DI_OPT_PORT) == 0) here.quiet = false;
    di_cli_note(&here, "serving %s at %s", info->path, di_server_url(server));
}

static void *load(void *arg) {
    loading *l = arg;
    l->status = di_cli_open_engine(l->cli, &l->engine, &l->error);
    di_server_post(l->server, &l->ready);
    return NULL;
}

/* I/O thread: the model is there, or will not come. */
static void loaded(void *arg) {
    loading *l = arg;
    l->ended = true;
    if (l->status == DI_OK) l->status = di_operations_start(l->operations, l->engine, l->cli->config, &l->error);
    if (l->status == DI_OK) l->status = di_api_start(l->api, l->engine, &l->error);
    if (l->status != DI_OK) {
        di_server_stop(l->server);
        return;
    }
    if (di_server_draining(l->server)) return; /* told to stop meanwhile: it serves nothing any more */
    di_server_set_loading(l->server, false);
    say_where(l->cli, l->server, l->engine);
}

static di_status begin_loading(loading *l, di_error *error) {
    l->ready = (di_server_task){.run = loaded, .arg = l};
    di_server_set_loading(l->server, true);
    int failed = di_thread_start(&l->thread, "di-load", load, l);
    if (failed) return di_fail_errno(error, DI_ERR_INTERNAL, NULL, failed, "cannot start a thread to load the model");
    l->begun = true;
    return DI_OK;
}

static di_status serve(loading *l, di_error *error) {
    di_cli *cli = l->cli;
    di_status status = di_server_open(cli->config, cli->log, &l->server, error);
    if (status == DI_OK) status = di_operations_open(l->server, cli->config, &l->operations, error);
    if (status == DI_OK) status = di_api_open(l->server, cli->config, cli->log, &l->api, error);
    if (status == DI_OK) status = di_page_add_routes(l->server, error);
    if (status == DI_OK) status = di_server_listen(l->server, error);
    if (status == DI_OK) status = begin_loading(l, error);
    if (status != DI_OK) return status;
    /* Not as a URL: whoever waits for one waits for the model. */
    di_cli_note(cli, "loading the model; %s answers /health", strstr(di_server_url(l->server), "://") + 3);
    di_server_on_reload(l->server, reload, cli);
    /* While it runs the server takes signals itself; what follows, writing the cache, ends with the next one. */
    di_cli_end_at_signals();
    return di_server_run(l->server, error);
}

static int run(di_cli *cli) {
    di_error error = {0};
    loading *l = calloc(1, sizeof *l);
    if (!l) {
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for the server");
        return di_cli_report(&error);
    }
    l->cli = cli;
    allow_files(cli);
    log_options(cli);
    signal(SIGHUP, SIG_IGN); /* until the server takes it */
    di_status status = serve(l, &error);
    if (status == DI_OK && l->ended && l->status != DI_OK) { /* until it has ended they are the thread's */
        status = l->status;
        error = l->error;
    }
    int code = DI_EXIT_OK;
    if (status == DI_ERR_CANCELLED)
        code = DI_EXIT_INTERRUPTED;
    else if (status != DI_OK)
        code = di_cli_report(&error);
    /* Told to stop at once, or while the model was being loaded. */
    if (status == DI_ERR_CANCELLED || (l->begun && !l->ended)) {
        cli->abandoned = true;
        return code;
    }
    if (l->begun) pthread_join(l->thread, NULL);
    di_server_close(l->server);
    di_api_close(l->api);
    di_operations_close(l->operations);
    di_close(l->engine);
    free(l);
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
