/* chat_input.c - lines of a conversation. */
#include <errno.h>
#include <histedit.h>
#include <locale.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <wchar.h>

#include "cli/chat.h"

struct di_chat_input {
    di_cli *cli;
    di_cli_lines *lines; /* pipe or file */
    EditLine *editor;    /* terminal */
    History *history;
    unsigned interrupts; /* Ctrl-C since the last line */
    bool leave;
};

static char *prompt(EditLine *editor) {
    static char text[] = "> "; /* not const: libedit wants char *, and only reads it */
    (void)editor;
    return text;
}

enum { KEY_INTERRUPT = 3, KEY_END = 4, KEY_REDISPLAY = 18, KEY_KILL_LINE = 21 };

/* Ctrl-C clears the line; at an empty line the second time leaves. Returns the key that does it. */
static wchar_t interrupt(EditLine *editor, di_chat_input *input) {
    const LineInfo *line = el_line(editor);
    bool empty = line->lastchar == line->buffer;
    input->interrupts++;
    if (!empty) return KEY_KILL_LINE;
    input->leave = input->interrupts > 1;
    if (input->leave) return KEY_END;
    fputs("(Ctrl-C again leaves, /help helps)\n", stderr);
    return KEY_REDISPLAY;
}

/* Next key, one character of UTF-8. Signals from outside count as Ctrl-C. */
static int read_key(EditLine *editor, wchar_t *key) {
    di_chat_input *input = NULL;
    el_get(editor, EL_CLIENTDATA, &input);
    mbstate_t partial = {0};
    for (;;) {
        struct pollfd files[2] = {{.fd = STDIN_FILENO, .events = POLLIN},
                                  {.fd = input->cli->interrupt, .events = POLLIN}};
        if (poll(files, 2, -1) < 0 && errno != EINTR) return -1;
        bool signalled = files[1].revents && di_cli_interrupted(input->cli);
        char byte = KEY_INTERRUPT;
        if (!signalled) {
            if (!files[0].revents) continue;
            ssize_t got = read(STDIN_FILENO, &byte, 1);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) return (int)got;
        }
        /* A Ctrl-D that came before the terminal was switched to keys arrives as a zero byte. */
        if (!byte) byte = KEY_END;
        if (byte == KEY_INTERRUPT) {
            *key = interrupt(editor, input);
            return 1;
        }
        size_t used = mbrtowc(key, &byte, 1, &partial);
        if (used == (size_t)-1)
            memset(&partial, 0, sizeof partial); /* no UTF-8: the byte is dropped */
        else if (used != (size_t)-2)
            return 1;
    }
}

static di_status open_editor(di_chat_input *input, di_error *error) {
    setlocale(LC_CTYPE, "C.UTF-8");
    /* The prompt goes to stderr: stdout carries answers only. */
    input->editor = el_init("deepinfer", stdin, stderr, stderr);
    input->history = history_init();
    if (!input->editor || !input->history)
        return di_fail(error, DI_ERR_INTERNAL, NULL, "cannot prepare line editing on this terminal");
    HistEvent event;
    history(input->history, &event, H_SETSIZE, 1000);
    el_set(input->editor, EL_CLIENTDATA, input);
    el_set(input->editor, EL_PROMPT, prompt);
    el_set(input->editor, EL_EDITOR, "emacs");
    el_set(input->editor, EL_HIST, history, input->history);
    el_set(input->editor, EL_GETCFN, read_key);
    el_set(input->editor, EL_BIND, "^D", "em-delete-or-list", NULL);
    el_set(input->editor, EL_BIND, "^R", "ed-redisplay", NULL);
    el_set(input->editor, EL_BIND, "^U", "em-kill-line", NULL);
    /* While a line is edited Ctrl-C is a key, not a signal. */
    el_set(input->editor, EL_SETTY, "-d", "-isig", NULL);
    return DI_OK;
}

di_status di_chat_input_open(di_cli *cli, di_chat_input **out, di_error *error) {
    di_chat_input *input = calloc(1, sizeof *input);
    if (!input) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
    input->cli = cli;
    bool terminal = isatty(STDIN_FILENO) && !di_config_text(cli->config, DI_OPT_INPUT)[0];
    di_status status = terminal ? open_editor(input, error) : di_cli_lines_open(cli, &input->lines, error);
    if (status == DI_OK)
        *out = input;
    else
        di_chat_input_close(input);
    return status;
}

void di_chat_input_close(di_chat_input *input) {
    if (!input) return;
    di_cli_lines_close(input->lines);
    if (input->history) history_end(input->history);
    if (input->editor) el_end(input->editor);
    free(input);
}

bool di_chat_input_is_terminal(const di_chat_input *input) {
    return input->editor != NULL;
}

di_cli_line di_chat_input_next(di_chat_input *input, bool stopped, const char **text, size_t *length, di_error *error) {
    if (input->lines) return di_cli_lines_next(input->lines, -1, text, length, error);
    int count = 0;
    input->interrupts = stopped;
    input->leave = false;
    const char *line = el_gets(input->editor, &count);
    if (input->leave) return DI_LINE_INTERRUPTED;
    if (!line || count <= 0) {
        fputc('\n', stderr);
        return DI_LINE_END;
    }
    HistEvent event;
    if (line[0] != '\n') history(input->history, &event, H_ENTER, line);
    *text = line;
    *length = (size_t)count - (line[count - 1] == '\n');
    return DI_LINE_OK;
}
