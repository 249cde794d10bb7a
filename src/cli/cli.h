/* cli.h - what the commands share: context, command table, exit codes, input lines, messages.
 *
 * stdout carries the result and nothing else; everything said to a person goes to stderr through di_cli_note and
 * di_cli_report. One file per command; main.c parses the command line, so a command starts with a complete
 * configuration and returns its exit code. Single-threaded.
 */
#ifndef DI_CLI_CLI_H
#define DI_CLI_CLI_H

#include <sys/stat.h>

#include "base/config.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "deepinfer.h"
#include "recipe/parser.h"
#include "sampling/sampling.h"

enum { DI_EXIT_OK = 0, DI_EXIT_FAILED = 1, DI_EXIT_USAGE = 2, DI_EXIT_INTERRUPTED = 130 };

typedef struct di_cli {
    di_config *config;
    const char *word;  /* "list" of `cache list DIR`, for commands that have such words */
    const char *model; /* positional MODEL, or DIR of `cache`; NULL = not given */
    di_log *log;
    bool quiet;
    int interrupt;  /* descriptor that becomes readable on SIGINT, -1 until di_cli_catch_interrupts */
    bool abandoned; /* a thread that cannot be stopped still works with all this: nothing is freed any more */
} di_cli;

typedef struct di_command {
    const char *name;
    const char *summary;      /* one line for the list of commands */
    const char *usage;        /* what follows the name: "[MODEL] [options]" */
    const char *text;         /* what it does, a few lines */
    const char *example;      /* one or two lines */
    const char *const *words; /* names that may follow the command's own, one of them must; NULL = none */
    const char *groups;       /* groups of options it takes, most important first; "common" and "limits" always are */
    const char *topics;       /* further groups, shown by `deepinfer help GROUP` only; may be NULL */
    int (*run)(di_cli *cli);
} di_command;

extern const di_command di_command_chat, di_command_generate, di_command_score, di_command_tokenize, di_command_inspect,
    di_command_verify, di_command_cache, di_command_serve, di_command_grammar, di_command_bench;

const di_command *const *di_commands(size_t *count);

/* ---- messages.c (stderr, results) */

/* "deepinfer: message"; returns the exit code of its status (usage and configuration 2, everything else 1). */
int di_cli_report(const di_error *error);
/* A line for a person, not with --quiet. */
void di_cli_note(const di_cli *cli, const char *format, ...) DI_PRINTF(2, 3);
/* "29.28 MB", "510.29 GB"; returns out. */
const char *di_cli_size_text(uint64_t bytes, char out[32]);
/* Writes to stdout and flushes; a failed write (full disk) is an error. */
di_status di_cli_write(const char *bytes, size_t length, di_error *error);
/* {"id": id, "line": line, "error": {...}}\n; id may be NULL. */
void di_cli_error_line(di_text *out, const di_json *id, uint64_t line, const di_error *error);
/* "prompt 12 tokens, 345.6/s; answer 60 tokens, 78.9/s; seed 1" on stderr, not with --quiet. */
void di_cli_footer(const di_cli *cli, const di_event *done);

/* ---- main.c */

/* From here on SIGTERM and SIGINT end the process at once, with DI_EXIT_INTERRUPTED: for what cannot be stopped
 * halfway, and for as long as nobody else catches them. */
void di_cli_end_at_signals(void);

/* ---- help.c */
void di_help_main(di_text *out);
void di_help_command(di_text *out, const di_command *command);
/* False if there is no such topic. */
bool di_help_topic(di_text *out, const char *topic);
di_status di_version_text(const di_config *config, di_text *out, di_error *error);

/* ---- arguments.c */

typedef struct di_arguments {
    const di_command *command; /* NULL with help, version or a topic */
    bool help, version;
    const char *topic; /* of `help TOPIC` */
} di_arguments;

/* Reads the command line: flags into cli->config, MODEL into cli->model. */
di_status di_parse_arguments(int count, char **arguments, di_cli *cli, di_arguments *parsed, di_error *error);

/* ---- setup.c: engine, interruption, parameters */

/* The option "log-level". */
di_log_level di_cli_log_level(const di_config *config);
/* Opens the engine for cli->model with the configuration and passes its notes on. */
di_status di_cli_open_engine(di_cli *cli, di_engine **engine, di_error *error);
/* From here on SIGINT does not end the process; it makes cli->interrupt readable. */
di_status di_cli_catch_interrupts(di_cli *cli, di_error *error);
/* True if a signal came since the last call. Does not wait. */
bool di_cli_interrupted(di_cli *cli);
/* Refuses more than one of --prompt, --token-ids and --input. */
di_status di_cli_check_input(const di_cli *cli, di_error *error);
/* Refuses an option of the command line that has no meaning here; `why` completes "--name ...". */
di_status di_cli_refuse(const di_cli *cli, di_config_id id, const char *why, di_error *error);
/* Sampling parameters of the flags. "1,2,3" lists live in the arena. */
di_status di_cli_sampling(const di_cli *cli, const di_engine *engine, di_arena *arena, di_sampling *sampling,
                          di_error *error);
/* The chat format of the model and the options that --thinking and --effort ask for. */
di_status di_cli_recipe(const di_cli *cli, const di_engine *engine, di_recipe *recipe, di_recipe_options *options,
                        di_error *error);
/* Ids as text, "1, 2 3": separated by commas and white space. *ids lives in the arena. */
di_status di_cli_parse_ids(di_arena *arena, const char *param, const char *text, size_t length, int32_t **ids,
                           size_t *count, di_error *error);
/* A JSON array of ids. */
di_status di_cli_json_ids(di_arena *arena, const di_json *array, const char *param, int32_t **ids, size_t *count,
                          di_error *error);
/* Refuses members of a JSON line that are not among `names` (NULL-terminated) and members given twice. */
di_status di_cli_check_members(const di_json *object, const char *const *names, di_error *error);
/* A raw prompt: BOS, if the model has one, then plain text. Borrows `text`; segments: [2] in the arena. */
di_status di_cli_prompt_segments(const di_engine *engine, di_arena *arena, const char *text, size_t length,
                                 const di_segment **segments, size_t *count, di_error *error);

/* ---- lines.c: input */

/* Refuses an input, called `name`, that is also where results go: they would be read as input, without end, or take its
 * place. */
di_status di_cli_check_outputs(const di_cli *cli, const char *name, const struct stat *input, di_error *error);

/* Source of input: --input FILE or standard input. Lines end with \n only; the last one may lack it. */
typedef struct di_cli_lines di_cli_lines;
di_status di_cli_lines_open(di_cli *cli, di_cli_lines **lines, di_error *error);
void di_cli_lines_close(di_cli_lines *lines);
typedef enum di_cli_line {
    DI_LINE_OK,
    DI_LINE_TOO_LONG, /* skipped to its end; *error says so */
    DI_LINE_NONE,     /* no complete line came in time */
    DI_LINE_END,
    DI_LINE_INTERRUPTED,
    DI_LINE_ERROR
} di_cli_line;
/* Next line without its \n, borrowed until the next call. timeout_ms < 0 waits for ever. */
di_cli_line di_cli_lines_next(di_cli_lines *lines, int timeout_ms, const char **text, size_t *length, di_error *error);
uint64_t di_cli_lines_number(const di_cli_lines *lines); /* of the line last returned, from 1 */
/* At the end of the input: tells a person if it held not one line. */
void di_cli_lines_note_empty(const di_cli_lines *lines);
/* Number of lines if the input is a file, else 0. */
uint64_t di_cli_lines_total(const di_cli_lines *lines);

/* A line as one JSON object. *object is set also when it has faults that are found later, so that its id is known. */
di_status di_cli_parse_line(const di_cli *cli, di_arena *arena, const char *text, size_t length, const di_json **object,
                            di_error *error);
/* True for a line of white space only: it is passed over. */
bool di_cli_blank(const char *text, size_t length);
/* Begins the object that is a line's result, with the line's id; id may be NULL. */
void di_cli_begin_result(di_json_writer *writer, di_text *out, const di_json *id);
/* For commands that take one line after the other: writes the result of `object` with its \n to out, or sets *fault,
 * which then becomes the result; DI_ERR_CANCELLED ends the command as interrupted. */
typedef void di_cli_convert(void *arg, di_arena *arena, const di_json *object, di_text *out, di_error *fault);
/* Every line of the input through convert to standard output. Returns the exit code. */
int di_cli_convert_lines(di_cli *cli, di_cli_convert *convert, void *arg);

/* The text prompt: --prompt, --input or all of standard input, byte for byte. *text is malloc'ed. An input that holds
 * nothing is refused unless empty_is_right; an empty --prompt is what it says. */
di_status di_cli_read_text(di_cli *cli, bool empty_is_right, char **text, size_t *length, di_error *error);

#endif
