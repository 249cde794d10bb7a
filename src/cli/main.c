/* main.c - the command line: picks the command, owns the exit code. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "engine/engine.h"

const di_command *const *di_commands(size_t *count) {
    static const di_command *const commands[] = {
        &di_command_chat,    &di_command_generate, &di_command_serve, &di_command_score,   &di_command_tokenize,
        &di_command_inspect, &di_command_verify,   &di_command_cache, &di_command_grammar, &di_command_bench};
    *count = sizeof commands / sizeof *commands;
    return commands;
}

static int print(const di_text *text) {
    di_error error = {0};
    if (text->failed)
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    else if (di_cli_write(text->data, text->length, &error) == DI_OK)
        return DI_EXIT_OK;
    return di_cli_report(&error);
}

/* Help, version and topics. */
static int inform(const di_cli *cli, const di_arguments *parsed) {
    di_text out = {0};
    di_error error = {0};
    int code;
    if (parsed->version) {
        code = di_version_text(cli->config, &out, &error) == DI_OK ? print(&out) : di_cli_report(&error);
    } else if (parsed->topic) {
        if (di_help_topic(&out, parsed->topic)) {
            code = print(&out);
        } else {
            fprintf(stderr, "deepinfer: no help on \"%.60s\"; see deepinfer --help\n", parsed->topic);
            code = DI_EXIT_USAGE;
        }
    } else {
        if (parsed->command)
            di_help_command(&out, parsed->command);
        else
            di_help_main(&out);
        code = print(&out);
    }
    di_text_free(&out);
    return code;
}

static int run(di_cli *cli, int count, char **arguments) {
    di_error error = {0};
    di_arguments parsed = {0};
    if (di_parse_arguments(count, arguments, cli, &parsed, &error) != DI_OK) {
        di_cli_report(&error);
        return DI_EXIT_USAGE;
    }
    if (parsed.help || parsed.topic) return inform(cli, &parsed);
    di_text notes = {0};
    di_status status = di_read_configuration(cli->config, &notes, &error);
    if (status == DI_OK) status = di_check_features(cli->config, &error);
    cli->quiet = di_config_bool(cli->config, DI_OPT_QUIET);
    if (status == DI_OK && notes.length) di_cli_note(cli, "%s", notes.data);
    di_text_free(&notes);
    if (status != DI_OK) {
        di_cli_report(&error);
        return DI_EXIT_USAGE;
    }
    if (parsed.version) return inform(cli, &parsed);
    cli->log = di_log_new(di_cli_log_level(cli->config), NULL, NULL);
    int code = parsed.command->run(cli);
    if (!cli->abandoned) di_log_free(cli->log);
    return code;
}

static void end_at_once(int number) {
    (void)number;
    _exit(DI_EXIT_INTERRUPTED);
}

void di_cli_end_at_signals(void) {
    struct sigaction action = {.sa_handler = end_at_once};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
}

/* A descriptor that the caller closed must not become a file of ours, which output would then be written into. Writing
 * to one that is open for reading only fails, as it should. */
static void fill_descriptors(void) {
    int file;
    do {
        file = open("/dev/null", O_RDONLY);
    } while (file >= 0 && file <= STDERR_FILENO);
    if (file >= 0) close(file);
}

int main(int argc, char **argv) {
    fill_descriptors();
    signal(SIGXFSZ, SIG_IGN); /* a file at its limit (ulimit -f) is an error of writing, like a full disk */
    di_cli cli = {.config = di_config_new(), .interrupt = -1};
    if (!cli.config) {
        fputs("deepinfer: out of memory\n", stderr);
        return DI_EXIT_FAILED;
    }
    int code = run(&cli, argc - 1, argv + 1);
    if (cli.abandoned) _exit(code);
    if (cli.interrupt >= 0) close(cli.interrupt);
    di_config_free(cli.config);
    return code;
}
