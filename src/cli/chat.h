/* chat.h - reading lines for chat: libedit on a terminal, plain lines from a pipe or file. */
#ifndef DI_CLI_CHAT_H
#define DI_CLI_CHAT_H

#include "cli/cli.h"

typedef struct di_chat_input di_chat_input;

di_status di_chat_input_open(di_cli *cli, di_chat_input **input, di_error *error);
void di_chat_input_close(di_chat_input *input);
/* True when a person types at a terminal. */
bool di_chat_input_is_terminal(const di_chat_input *input);
/* Next line, borrowed until the next call. DI_LINE_INTERRUPTED: Ctrl-C at an empty prompt for the second time since the
 * last line, or a signal while a pipe was read. `stopped`: the answer before was stopped by Ctrl-C, which is the first
 * time. */
di_cli_line di_chat_input_next(di_chat_input *input, bool stopped, const char **text, size_t *length, di_error *error);

#endif
