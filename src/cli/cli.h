/* cli.h - what the commands share: context, command table, exit codes, input lines, messages.
 *
 * stdout carries the result and nothing else; everything said to a person goes to stderr through di_cli_note and
 * di_cli_report. One file per command; main.c parses the command line, so a command starts with a complete
 * configuration. Only main decides about the exit code's delivery; commands return it.
 */
#ifndef DI_CLI_CLI_H
#define DI_CLI_CLI_H

#include "base/config.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "deepinfer.h"

enum { DI_EXIT_OK = 0, DI_EXIT_FAILED = 1, DI_EXIT_USAGE = 2, DI_EXIT_INTERRUPTED = 130 };

typedef struct di_cli {
    di_config *config;
    const char *model; /* positional MODEL; NULL = not given */
    di_log *log;
    bool quiet;
    int interrupt; /* descriptor that becomes readable on SIGINT and SIGTERM, -1 until di_cli_catch_interrupts */
} di_cli;

typedef struct di_command {
    const char *name;
    const char *summary; /* one line for the list of commands */
    const char *usage;   /* "deepinfer generate [MODEL] [options]" */
    const char *text;    /* what it does, up to five lines */
    const char *example; /* one or two lines */
    const char *groups;  /* groups of options it takes, space-separated, most important first; "common" and "limits" are
                            always taken */
    int (*run)(di_cli *cli);
} di_command;

extern const di_command di_command_chat, di_command_generate, di_command_score, di_command_tokenize, di_command_inspect;

const di_command *const *di_commands(size_t *count);

/* ---- messages (stderr) */

/* "deepinfer: message" and what the error names; returns the exit code of its status (usage and configuration 2,
 * everything else 1). */
int di_cli_report(const di_cli *cli, const di_error *error);
/* A line for a person, not with --quiet. */
void di_cli_note(const di_cli *cli, const char *format, ...) DI_PRINTF(2, 3);
/* Writes to stdout; a failed write (closed pipe, full disk) is an error. */
di_status di_cli_write(const char *bytes, size_t length, di_error *error);

/* ---- engine */

/* Opens the engine for cli->model with the configuration and passes its notes on. */
di_status di_cli_open_engine(di_cli *cli, di_engine **engine, di_error *error);

/* ---- interruption */

/* From here on SIGINT and SIGTERM do not end the process; they make cli->interrupt readable. */
di_status di_cli_catch_interrupts(di_cli *cli, di_error *error);
/* True once for every signal that came. Does not wait. */
bool di_cli_interrupted(di_cli *cli);

/* ---- input */

/* Source of input: --input FILE or standard input. Lines end with \n only; the last one may lack it. */
typedef struct di_cli_lines di_cli_lines;
di_status di_cli_lines_open(di_cli *cli, di_cli_lines **lines, di_error *error);
void di_cli_lines_close(di_cli_lines *lines);
typedef enum di_cli_line { DI_LINE_OK, DI_LINE_TOO_LONG, DI_LINE_END, DI_LINE_INTERRUPTED, DI_LINE_ERROR } di_cli_line;
/* Next line without its \n, borrowed until the next call. A line above --limit-line-bytes is skipped to its end. */
di_cli_line di_cli_lines_next(di_cli_lines *lines, const char **text, size_t *length, di_error *error);
uint64_t di_cli_lines_number(const di_cli_lines *lines); /* of the line last returned, from 1 */

/* The text prompt: --prompt, --input or all of standard input, byte for byte. *text is malloc'ed. */
di_status di_cli_read_text(di_cli *cli, char **text, size_t *length, di_error *error);

#endif
