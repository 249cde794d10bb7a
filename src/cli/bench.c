/* bench.c - `deepinfer bench serve`: a server under load as its clients see it: many customers at once, each with a
 * conversation of several turns. Without --url it starts `deepinfer serve` of this program on a port of its own.
 *
 *   closed   N customers at once; each says the next thing when the answer is there. With --seconds conversations
 *            follow each other for that long, else each customer has one.
 *   open     conversations begin at random moments (Poisson), R a second for S seconds, whatever the server does. The
 *            first turn's times count from the moment it was due. --rate 0: 70 % of what closed has shown.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/bench_load.h"
#include "cli/bench_spec.h"

enum { DEFAULT_TOKENS = 32, START_TRIES = 6000, PAUSE_NS = 100000000, KEY_FILE_BYTES = 1 << 20 };

static const double CALM = 0.7, OPEN_SECONDS = 10; /* of an open loop that is not told otherwise */

/* ---------------------------------------------------------------- settings */

static di_bench_settings read_settings(const di_config *config) {
    bool both = di_config_is(config, DI_OPT_PART, "both");
    int64_t tokens = di_config_int(config, DI_OPT_MAX_TOKENS);
    di_bench_settings s = {
        .url = di_config_text(config, DI_OPT_URL),
        .thinking = di_config_is(config, DI_OPT_THINKING, "model") ? NULL : di_config_text(config, DI_OPT_THINKING),
        .clients = (int)di_config_int(config, DI_OPT_CLIENTS),
        .turns = (int)di_config_int(config, DI_OPT_TURNS),
        .max_tokens = tokens < 0 ? DEFAULT_TOKENS : (int)tokens,
        .verify = di_config_is(config, DI_OPT_VERIFY, "all") ? -1 : (int)di_config_int(config, DI_OPT_VERIFY),
        .rate = di_config_float(config, DI_OPT_RATE),
        .seconds = di_config_float(config, DI_OPT_SECONDS),
        .temperature = di_config_float(config, DI_OPT_TEMPERATURE),
        .drop = di_config_float(config, DI_OPT_DROP),
        .first_ms = di_config_float(config, DI_OPT_FIRST_MS),
        .gap_ms = di_config_float(config, DI_OPT_GAP_MS),
        .seed = 1,
        .plain = di_config_bool(config, DI_OPT_PLAIN),
        .closed = both || di_config_is(config, DI_OPT_PART, "closed"),
        .open = both || di_config_is(config, DI_OPT_PART, "open"),
    };
    di_config_uint64(config, DI_OPT_SEED, &s.seed);
    return s;
}

/* The key of --api-key, or the first of --api-key-file; *key is malloc'ed, NULL if there is none. */
static di_status read_key(const di_config *config, char **key, di_error *error) {
    const char *given = di_config_text(config, DI_OPT_API_KEY), *path = di_config_text(config, DI_OPT_API_KEY_FILE);
    char *data = NULL, *rest = NULL;
    size_t length;
    *key = NULL;
    if (given[0]) {
        *key = strdup(given);
        return *key ? DI_OK : di_fail(error, DI_ERR_MEMORY, "api-key", "out of memory for a key");
    }
    if (!path[0]) return DI_OK;
    di_status status = (di_status)di_read_source(path, KEY_FILE_BYTES, &data, &length, error);
    for (char *line = data ? strtok_r(data, "\r\n", &rest) : NULL; line && !*key;
         line = strtok_r(NULL, "\r\n", &rest)) {
        char *words = NULL, *name = line[0] == '#' ? NULL : strtok_r(line, " \t", &words);
        const char *second = name ? strtok_r(NULL, " \t", &words) : NULL;
        if (name) *key = strdup(second ? second : name);
    }
    free(data);
    if (status == DI_OK && !*key)
        status = di_fail(error, DI_ERR_CONFIG, "api-key-file", "%s holds no key; a line is NAME KEY or KEY", path);
    return status;
}

/* ---------------------------------------------------------------- a server of its own */

static int free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    bool good = fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) &&
                !getsockname(fd, (struct sockaddr *)&address, &length);
    if (fd >= 0) close(fd);
    return good ? ntohs(address.sin_port) : 0;
}

/* Whether an option of this command line is the server's too. */
static bool is_servers(const di_config *config, di_config_id id) {
    static const di_config_id own[] = {DI_OPT_MODEL, DI_OPT_SEED,     DI_OPT_QUIET,   DI_OPT_HOST,
                                       DI_OPT_PORT,  DI_OPT_THINKING, DI_OPT_API_KEY, DI_OPT_API_KEY_FILE};
    static const char *const groups[] = {"common", "limits", "serve", "http"};
    if (di_config_source_of(config, id) != DI_CONFIG_FLAG) return false;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (own[i] == id) return false;
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (strcmp(di_config_rows()[id].group, groups[i]) == 0) return true;
    return false;
}

/* Starts it; its address comes into url. */
static di_status start_server(const di_cli *cli, di_arena *arena, pid_t *server, char url[64], di_error *error) {
    char *arguments[DI_OPT_COUNT + 8];
    size_t count = 0;
    int port = free_port();
    bool failed = false;
    di_text text = {0};
    snprintf(url, 64, "http://127.0.0.1:%d", port);
    const char *const first[] = {"deepinfer", "serve",
                                 cli->model ? cli->model : di_config_text(cli->config, DI_OPT_MODEL), "--quiet"};
    for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
        if (!first[i][0]) continue;
        arguments[count] = di_arena_copy(arena, first[i], strlen(first[i]));
        failed = failed || !arguments[count++];
    }
    for (di_config_id id = 0; id <= DI_OPT_COUNT; id++) {
        bool last = id == DI_OPT_COUNT;
        if (!last && !is_servers(cli->config, id)) continue;
        di_text_clear(&text);
        if (last)
            di_text_printf(&text, "--port=%d", port);
        else
            di_text_printf(&text, "--%s=%s", di_config_rows()[id].name, di_config_text(cli->config, id));
        arguments[count] = text.failed ? NULL : di_arena_copy(arena, text.data, text.length);
        failed = failed || !arguments[count++];
    }
    di_text_free(&text);
    arguments[count] = NULL;
    if (failed) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a command line");
    sigset_t none; /* signals are blocked here, not there */
    posix_spawnattr_t attributes;
    sigemptyset(&none);
    int reason = posix_spawnattr_init(&attributes);
    if (reason) return di_fail_errno(error, DI_ERR_MEMORY, NULL, reason, "cannot start a server");
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    reason = posix_spawn(server, "/proc/self/exe", NULL, &attributes, arguments, environ);
    posix_spawnattr_destroy(&attributes);
    if (!reason) return DI_OK;
    *server = 0;
    return di_fail_errno(error, DI_ERR_IO, NULL, reason, "cannot start a server");
}

static bool stop_server(pid_t server) {
    int status = 0;
    kill(server, SIGTERM);
    return waitpid(server, &status, 0) == server && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Waits until the server answers /v1/models; what it said is in *body. server > 0: ours, which is still starting. */
static di_status ask_models(const di_client_target *target, pid_t server, di_text *body, di_error *error) {
    di_client *c = calloc(1, sizeof *c);
    if (!c) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a connection");
    c->fd = -1;
    di_status status = DI_OK;
    for (int tries = 0;; tries++) {
        di_text_clear(body);
        bool answered =
            di_client_request(c, target, "/v1/models", NULL, 0, DI_BENCH_TIMEOUT_S) && di_client_read_all(c, body);
        if (answered && c->status == 200) break;
        bool starting = server > 0 && (!answered || c->status == 503);
        if (starting && tries < START_TRIES && waitpid(server, NULL, WNOHANG) == 0) {
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
            continue;
        }
        status = answered ? di_fail(error, DI_ERR_IO, "url", "%s/v1/models: HTTP %d %.200s", target->authority,
                                    c->status, body->length ? body->data : "")
                          : di_fail(error, DI_ERR_IO, "url", "%s: %s", target->authority, c->error);
        break;
    }
    di_client_close(c);
    free(c);
    return status;
}

/* The name to send: that of --served-model-name, or the first the server has. */
static di_status find_model(const di_cli *cli, di_bench_load *load, pid_t server, di_arena *arena, di_error *error) {
    const char *given = di_config_text(cli->config, DI_OPT_SERVED_MODEL_NAME);
    const di_json *root = NULL, *data, *id = NULL;
    di_text body = {0};
    di_status status = ask_models(load->target, server, &body, error);
    if (status == DI_OK && given[0]) {
        snprintf(load->model, sizeof load->model, "%.*s", (int)strcspn(given, ","), given);
    } else if (status == DI_OK) {
        status = di_json_parse(arena, body.data, body.length, 0, &root, error);
        data = status == DI_OK ? di_json_get(root, "data") : NULL;
        id = data && data->first ? di_json_get(data->first, "id") : NULL;
        if (id && id->type == DI_JSON_STRING)
            snprintf(load->model, sizeof load->model, "%s", id->text);
        else if (status == DI_OK)
            status = di_fail(error, DI_ERR_FORMAT, "url", "%s/v1/models names no model; --served-model-name can",
                             load->target->authority);
    }
    di_text_free(&body);
    return status;
}

/* ---------------------------------------------------------------- the whole */

static bool run_part(const di_bench_load *form, const char *name, double rate, double *conversations_per_s) {
    di_bench_load l = *form;
    di_bench_load_open(&l);
    bool good = di_bench_run_load(&l, rate > 0, rate);
    double seconds = di_ms(l.end_ns - l.start_ns) / 1000;
    *conversations_per_s = (double)l.count / l.s->turns / seconds;
    di_bench_verdict v = good ? di_bench_verify(&l) : (di_bench_verdict){0};
    good = di_bench_report_load(&l, name, rate, &v) && good;
    di_bench_load_close(&l);
    return good;
}

static bool run_parts(const di_cli *cli, di_bench_settings *s, const di_bench_load *form) {
    double closed_rate = 0, unused;
    bool good = true;
    di_bench_report_environment(cli, form);
    if (!cli->quiet) di_bench_report_heads();
    if (s->closed) good = run_part(form, "closed", 0, &closed_rate);
    if (s->rate <= 0) s->rate = closed_rate > 0 ? CALM * closed_rate : 1;
    if (s->seconds <= 0) s->seconds = OPEN_SECONDS;
    if (s->open && (good || closed_rate > 0)) good = run_part(form, "open", s->rate, &unused) && good;
    return good;
}

/* What the thread that measures works with; it may outlive the command when that is interrupted. */
typedef struct bench_job {
    const di_cli *cli;
    di_arena *arena;
    di_bench_settings s;
    di_client_target target;
    di_bench_load form;
    char url[64], *key;
    pid_t server; /* ours, 0 = none */
    int ended;    /* eventfd: the thread is through */
    bool good;
    di_status status;
    di_error error;
} bench_job;

static void *measure(void *arg) {
    bench_job *j = arg;
    const char *authorities = di_config_text(j->cli->config, DI_OPT_CA_FILE);
    j->status = di_client_open_target(j->s.url, authorities, &j->target, &j->error);
    if (j->status == DI_OK) j->status = find_model(j->cli, &j->form, j->server, j->arena, &j->error);
    if (j->status == DI_OK) j->good = run_parts(j->cli, &j->s, &j->form);
    eventfd_write(j->ended, 1);
    return NULL;
}

/* Measures, and ends the server that was started, also when a signal ends the measurement: DI_ERR_CANCELLED. */
static di_status measure_until_signal(bench_job *j, int signals, di_error *error) {
    pthread_t thread;
    int failed = pthread_create(&thread, NULL, measure, j);
    if (failed) return di_fail_errno(error, DI_ERR_INTERNAL, NULL, failed, "cannot start a thread to measure");
    struct pollfd wait[2] = {{.fd = j->ended, .events = POLLIN}, {.fd = signals, .events = POLLIN}};
    while (!wait[0].revents && !wait[1].revents)
        if (poll(wait, 2, -1) < 0) wait[0].revents = wait[1].revents = 0;
    if (!wait[0].revents) return di_fail(error, DI_ERR_CANCELLED, NULL, "interrupted");
    pthread_join(thread, NULL);
    if (j->status != DI_OK) *error = j->error;
    return j->status;
}

static di_status bench(bench_job *j, di_error *error) {
    const di_cli *cli = j->cli;
    sigset_t ends;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    int signals = pthread_sigmask(SIG_BLOCK, &ends, NULL) ? -1 : signalfd(-1, &ends, SFD_CLOEXEC);
    j->ended = eventfd(0, EFD_CLOEXEC);
    j->s = read_settings(cli->config);
    j->s.quiet = cli->quiet;
    j->form = (di_bench_load){.s = &j->s, .target = &j->target};
    di_status status = signals < 0 || j->ended < 0
                           ? di_fail_errno(error, DI_ERR_INTERNAL, NULL, errno, "cannot receive signals")
                           : read_key(cli->config, &j->key, error);
    j->target.key = j->key;
    if (status == DI_OK && !j->s.url[0]) {
        status = start_server(cli, j->arena, &j->server, j->url, error);
        j->s.url = j->url;
    }
    if (status == DI_OK) status = measure_until_signal(j, signals, error);
    if (status == DI_ERR_CANCELLED && j->server > 0) { /* twice: answers in progress are cut off */
        kill(j->server, SIGTERM);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
    if (j->server > 0 && !stop_server(j->server) && status == DI_OK)
        status = di_fail(error, DI_ERR_INTERNAL, NULL, "the server did not end with 0");
    if (status == DI_ERR_CANCELLED) return status;
    if (signals >= 0) close(signals);
    if (j->ended >= 0) close(j->ended);
    di_client_close_target(&j->target);
    free(j->key);
    return status;
}

/* Prompts come from a file with spec, and are made up with serve. */
static di_status refuse_input(const di_cli *cli, bool spec, di_error *error) {
    static const di_config_id never[] = {DI_OPT_PROMPT, DI_OPT_TOKEN_IDS, DI_OPT_UNORDERED};
    di_status status = spec ? DI_OK : di_cli_refuse(cli, DI_OPT_INPUT, "goes with bench spec", error);
    for (size_t i = 0; status == DI_OK && i < sizeof never / sizeof *never; i++)
        status = di_cli_refuse(cli, never[i], "has no meaning with bench", error);
    return status;
}

static int run(di_cli *cli) {
    di_error error = {0};
    if (!cli->word) {
        di_fail(&error, DI_ERR_USAGE, "command", "bench what? serve or spec; see deepinfer bench --help");
        return di_cli_report(&error);
    }
    bool spec = strcmp(cli->word, "spec") == 0;
    if (refuse_input(cli, spec, &error) != DI_OK) return di_cli_report(&error);
    if (spec) return di_bench_spec(cli);
    signal(SIGPIPE, SIG_IGN);
    di_arena *arena = di_arena_new(0);
    bench_job *j = arena ? di_arena_zalloc(arena, sizeof *j) : NULL;
    if (j) *j = (bench_job){.cli = cli, .arena = arena, .ended = -1};
    di_status status = j ? bench(j, &error) : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_ERR_CANCELLED) { /* customers may still wait for an answer */
        cli->abandoned = true;
        return DI_EXIT_INTERRUPTED;
    }
    bool good = j && j->good;
    di_arena_free(arena);
    if (status != DI_OK) return di_cli_report(&error);
    return good ? DI_EXIT_OK : DI_EXIT_FAILED;
}

static const char *const words[] = {"serve", "spec", NULL};

const di_command di_command_bench = {
    .name = "bench",
    .summary = "a server under load, bytes as alone; what drafts are worth",
    .usage = "serve|spec [MODEL] [options]",
    .text = "serve: customers talk with the server at --url, or with one of its own, which\n"
            "options of serve are passed to; exit code 1 if a request failed or bytes differ\n"
            "from those alone. spec: costs, acceptance and speed of drafts on --input, or on\n"
            "the model's heldout.jsonl, with --clients streams, or 1, 8 and 50; with --spec\n"
            "the speed of that alone. JSON lines.",
    .example = "  deepinfer bench serve --url https://host:8443 --ca-file ca.pem --rate 5\n"
               "  deepinfer bench spec --calibrate draft_calibration.json\n",
    .words = words,
    .groups = "bench",
    .topics = "serve sampling http input",
    .run = run,
};
