/* describe.c - see describe.h. */
#include "cli/describe.h"

#include <string.h>

#include "cli/cli.h"

/* Words that `deepinfer help` takes besides the commands. */
static const char *const help_topics[] = {"common", "sampling", "limits", "http", "json", "environment", "exit-codes"};

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

static bool takes(const di_command *command, const di_config_row *row) {
    return !strcmp(row->group, "common") || !strcmp(row->group, "limits") || has_word(command->groups, row->group) ||
           has_word(command->topics, row->group);
}

/* Is `i` the first row of its group? */
static bool begins_group(size_t i) {
    const di_config_row *rows = di_config_rows();
    for (size_t j = 0; j < i; j++)
        if (!strcmp(rows[j].group, rows[i].group)) return false;
    return true;
}

/* ---------------------------------------------------------------- example configuration */

/* "of generate chat", or "of every command". */
static void write_takers(di_text *out, const di_config_row *row) {
    size_t count;
    const di_command *const *commands = di_commands(&count);
    if (!strcmp(row->group, "common") || !strcmp(row->group, "limits")) {
        di_text_puts(out, "of every command");
        return;
    }
    di_text_puts(out, "of");
    for (size_t c = 0; c < count; c++)
        if (takes(commands[c], row)) di_text_printf(out, " %s", commands[c]->name);
}

static void write_example(di_text *out) {
    const di_config_row *rows = di_config_rows();
    di_text_puts(out,
                 "# Example configuration of deepinfer: every option, at its default.\n"
                 "# Made by `deepinfer help configuration-example`.\n"
                 "#\n"
                 "#   deepinfer serve --config /etc/deepinfer/deepinfer.conf\n"
                 "#\n"
                 "# One \"name = value\" a line; a line that begins with # is a comment. The command line wins over\n"
                 "# DEEPINFER_* variables, these over this file, and the file over the defaults.\n");
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        if (!begins_group(i)) continue;
        di_text_printf(out, "\n# ---------------------------------------- %s: ", rows[i].group);
        write_takers(out, &rows[i]);
        di_text_putc(out, '\n');
        for (size_t j = i; j < DI_OPT_COUNT; j++) {
            const di_config_row *row = &rows[j];
            if (strcmp(row->group, rows[i].group) != 0 || j == DI_OPT_CONFIG) continue;
            di_text_printf(out, "\n# %s\n# (", row->help);
            di_config_write_values(out, row);
            di_text_printf(out, ")\n#%s =%s%s\n", row->name, row->value[0] ? " " : "", row->value);
        }
    }
}

/* ---------------------------------------------------------------- manual page */

/* Text for roff: "-" stays a minus, "\" is itself, and no line begins with a request. */
static void roff(di_text *out, const char *text) {
    bool fresh = out->length && out->data[out->length - 1] == '\n';
    for (; *text; text++) {
        if (fresh && (*text == '.' || *text == '\'')) di_text_puts(out, "\\&");
        fresh = *text == '\n';
        if (*text == '-')
            di_text_puts(out, "\\-");
        else if (*text == '\\')
            di_text_puts(out, "\\e");
        else
            di_text_putc(out, *text);
    }
}

static void roff_example(di_text *out, const char *text) {
    di_text_puts(out, ".PP\n.nf\n.RS\n");
    roff(out, text);
    di_text_puts(out, ".RE\n.fi\n");
}

static void write_manual_commands(di_text *out) {
    size_t count;
    const di_command *const *commands = di_commands(&count);
    di_text_puts(out, ".SH COMMANDS\n");
    for (size_t i = 0; i < count; i++) {
        di_text_puts(out, ".SS \"");
        roff(out, commands[i]->name);
        di_text_putc(out, ' ');
        roff(out, commands[i]->usage);
        di_text_puts(out, "\"\n");
        roff(out, commands[i]->text);
        if (commands[i]->text[0] && commands[i]->text[strlen(commands[i]->text) - 1] != '\n') di_text_putc(out, '\n');
        roff_example(out, commands[i]->example);
    }
}

static void write_manual_options(di_text *out) {
    const di_config_row *rows = di_config_rows();
    di_text_puts(out, ".SH OPTIONS\n");
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        if (!begins_group(i)) continue;
        di_text_printf(out, ".SS %s\n", rows[i].group);
        di_text_puts(out, "Options ");
        write_takers(out, &rows[i]);
        di_text_puts(out, ".\n");
        for (size_t j = i; j < DI_OPT_COUNT; j++) {
            const di_config_row *row = &rows[j];
            if (strcmp(row->group, rows[i].group) != 0) continue;
            di_text_puts(out, ".TP\n\\fB\\-\\-");
            roff(out, row->name);
            di_text_puts(out, "\\fR\n");
            roff(out, row->help);
            di_text_puts(out, " (");
            di_text values = {0};
            di_config_write_values(&values, row);
            roff(out, values.data ? values.data : "");
            out->failed = out->failed || values.failed;
            di_text_free(&values);
            if (row->value[0]) {
                di_text_puts(out, "; default ");
                roff(out, row->value);
            }
            di_text_puts(out, ")\n");
        }
    }
}

static void write_manual(di_text *out) {
    di_text_printf(
        out,
        ".\\\" Made by `deepinfer help manual-page`.\n"
        ".TH DEEPINFER 1 \"\" \"deepinfer %s\" \"User Commands\"\n"
        ".SH NAME\n"
        "deepinfer \\- inference for DeepSeek\\-V4.1\\-Flash with the same bits every time\n"
        ".SH SYNOPSIS\n"
        ".B deepinfer\n"
        ".I COMMAND\n"
        ".RI [ MODEL ]\n"
        ".RI [ options ]\n"
        ".SH DESCRIPTION\n"
        "MODEL is a folder in the official checkpoint layout; left out, it is the embedded model.\n"
        "A token's logits depend on the tokens before it, the weights and the numeric profile, and on nothing\n"
        "else. Results go to standard output, everything else to standard error.\n",
        di_version());
    write_manual_commands(out);
    write_manual_options(out);
    di_text_puts(
        out,
        ".SH ENVIRONMENT\n"
        "Every option NAME is also read from DEEPINFER_NAME, in upper case with underscores. An unknown variable\n"
        "that begins with DEEPINFER_ is an error.\n"
        ".SH FILES\n"
        ".TP\n"
        ".I /etc/deepinfer/deepinfer.conf\n"
        "Options of the service, one \"name = value\" a line; read because the unit says \\fB\\-\\-config\\fR.\n"
        ".SH SIGNALS\n"
        "Of \\fBserve\\fR:\n"
        ".TP\n"
        ".B SIGTERM, SIGINT\n"
        "Take no more requests, let answers in progress end, at most \\fB\\-\\-drain\\-ms\\fR, and exit with 0. A\n"
        "second one stops at once.\n"
        ".TP\n"
        ".B SIGHUP\n"
        "Read keys, certificate, access log and log level again.\n"
        ".SH EXIT STATUS\n"
        "0 done; 1 the work failed; 2 wrong usage; 130 interrupted.\n");
}

/* ---------------------------------------------------------------- completions */

static void write_choices(di_text *out, const di_config_row *row) {
    if (row->type == DI_CONFIG_TYPE_BOOL) di_text_puts(out, "on off");
    if (row->type != DI_CONFIG_TYPE_CHOICE) return;
    const char *before = "";
    for (const char *choice = row->choices; *choice;) {
        size_t size = strcspn(choice, "|");
        if (!memchr(choice, '.', size)) { /* not a range */
            di_text_puts(out, before);
            di_text_append(out, choice, size);
            before = " ";
        }
        choice += size + (choice[size] == '|');
    }
}

static void write_topics(di_text *out) {
    size_t count;
    const di_command *const *commands = di_commands(&count);
    for (size_t i = 0; i < count; i++) di_text_printf(out, "%s ", commands[i]->name);
    for (size_t i = 0; i < sizeof help_topics / sizeof *help_topics; i++)
        di_text_printf(out, "%s%s", i ? " " : "", help_topics[i]);
}

static void write_bash(di_text *out) {
    const di_config_row *rows = di_config_rows();
    size_t count;
    const di_command *const *commands = di_commands(&count);
    di_text_puts(out, "# bash completion of deepinfer; made by `deepinfer help completions-bash`.\n"
                      "_deepinfer() {\n"
                      "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} "
                      "command=${COMP_WORDS[1]} words=\"\"\n"
                      "    COMPREPLY=()\n"
                      "    case $before in\n");
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        if (rows[i].type != DI_CONFIG_TYPE_CHOICE) continue;
        di_text_printf(out, "    --%s) words=\"", rows[i].name);
        write_choices(out, &rows[i]);
        di_text_puts(out, "\" ;;\n");
    }
    di_text_puts(out, "    esac\n"
                      "    if [ -z \"$words\" ] && [ \"$COMP_CWORD\" -eq 1 ]; then\n"
                      "        words=\"");
    for (size_t i = 0; i < count; i++) di_text_printf(out, "%s ", commands[i]->name);
    di_text_puts(out, "help --help --version\"\n"
                      "    elif [ -z \"$words\" ]; then\n"
                      "        case $command in\n"
                      "        help) words=\"");
    write_topics(out);
    di_text_puts(out, "\" ;;\n");
    for (size_t c = 0; c < count; c++) {
        di_text_printf(out, "        %s) words=\"", commands[c]->name);
        for (const char *const *word = commands[c]->words; word && *word; word++) di_text_printf(out, "%s ", *word);
        for (size_t i = 0; i < DI_OPT_COUNT; i++)
            if (takes(commands[c], &rows[i])) di_text_printf(out, "--%s ", rows[i].name);
        di_text_puts(out, "--help\" ;;\n");
    }
    di_text_puts(out, "        esac\n"
                      "        case $word in\n"
                      "        -*) ;;\n"
                      "        *) COMPREPLY=($(compgen -f -- \"$word\")) ;;\n"
                      "        esac\n"
                      "    fi\n"
                      "    COMPREPLY+=($(compgen -W \"$words\" -- \"$word\"))\n"
                      "}\n"
                      "complete -o filenames -F _deepinfer deepinfer\n");
}

/* Text inside single quotes of zsh and fish; zsh's _arguments also reads [ ] and :. */
static void quoted(di_text *out, const char *text, bool brackets) {
    for (; *text; text++) {
        if (*text == '\'')
            di_text_puts(out, "'\\''");
        else if (brackets && (*text == '[' || *text == ']' || *text == ':'))
            di_text_printf(out, "\\%c", *text);
        else
            di_text_putc(out, *text);
    }
}

static void write_zsh(di_text *out) {
    const di_config_row *rows = di_config_rows();
    size_t count;
    const di_command *const *commands = di_commands(&count);
    di_text_puts(out, "#compdef deepinfer\n"
                      "# zsh completion of deepinfer; made by `deepinfer help completions-zsh`.\n"
                      "_deepinfer() {\n"
                      "    if (( CURRENT == 2 )); then\n"
                      "        local -a commands=(\n");
    for (size_t c = 0; c < count; c++) {
        di_text_printf(out, "            '%s:", commands[c]->name);
        quoted(out, commands[c]->summary, true);
        di_text_puts(out, "'\n");
    }
    di_text_puts(out, "            'help:help on a topic'\n"
                      "        )\n"
                      "        _describe command commands\n"
                      "        return\n"
                      "    fi\n"
                      "    case $words[2] in\n"
                      "    help) _values topic ");
    write_topics(out);
    di_text_puts(out, " ;;\n");
    for (size_t c = 0; c < count; c++) {
        di_text_printf(out, "    %s)\n        _arguments -S '1: :' '*:file:_files'", commands[c]->name);
        for (size_t i = 0; i < DI_OPT_COUNT; i++) {
            const di_config_row *row = &rows[i];
            if (!takes(commands[c], row)) continue;
            di_text_printf(out, " \\\n            '--%s[", row->name);
            quoted(out, row->help, true);
            di_text_putc(out, ']');
            if (row->type == DI_CONFIG_TYPE_CHOICE) {
                di_text_puts(out, ":value:(");
                write_choices(out, row);
                di_text_putc(out, ')');
            } else if (row->type != DI_CONFIG_TYPE_BOOL) {
                di_text_puts(out, row->type == DI_CONFIG_TYPE_STRING ? ":text:_files" : ":number:");
            }
            di_text_putc(out, '\'');
        }
        di_text_puts(out, "\n        ;;\n");
    }
    di_text_puts(out, "    esac\n"
                      "}\n"
                      "_deepinfer \"$@\"\n");
}

static void write_fish(di_text *out) {
    const di_config_row *rows = di_config_rows();
    size_t count;
    const di_command *const *commands = di_commands(&count);
    di_text_puts(out, "# fish completion of deepinfer; made by `deepinfer help completions-fish`.\n");
    for (size_t c = 0; c < count; c++) {
        di_text_printf(out, "complete -c deepinfer -f -n __fish_use_subcommand -a %s -d '", commands[c]->name);
        quoted(out, commands[c]->summary, false);
        di_text_puts(out, "'\n");
    }
    di_text_puts(out, "complete -c deepinfer -f -n __fish_use_subcommand -a help -d 'help on a topic'\n"
                      "complete -c deepinfer -f -n '__fish_seen_subcommand_from help' -a '");
    write_topics(out);
    di_text_puts(out, "'\n");
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        const di_config_row *row = &rows[i];
        di_text_puts(out, "complete -c deepinfer -n '__fish_seen_subcommand_from");
        for (size_t c = 0; c < count; c++)
            if (takes(commands[c], row)) di_text_printf(out, " %s", commands[c]->name);
        di_text_printf(out, "' -l %s", row->name);
        if (row->type == DI_CONFIG_TYPE_CHOICE) {
            di_text_puts(out, " -x -a '");
            write_choices(out, row);
            di_text_putc(out, '\'');
        } else if (row->type != DI_CONFIG_TYPE_BOOL) {
            di_text_puts(out, row->type == DI_CONFIG_TYPE_STRING ? " -r" : " -x");
        }
        di_text_puts(out, " -d '");
        quoted(out, row->help, false);
        di_text_puts(out, "'\n");
    }
}

bool di_describe(di_text *out, const char *topic) {
    static const struct {
        const char *topic;
        void (*write)(di_text *out);
    } writers[] = {
        {"configuration-example", write_example}, {"manual-page", write_manual},    {"completions-bash", write_bash},
        {"completions-zsh", write_zsh},           {"completions-fish", write_fish},
    };
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        if (strcmp(topic, writers[i].topic) != 0) continue;
        writers[i].write(out);
        return true;
    }
    return false;
}
