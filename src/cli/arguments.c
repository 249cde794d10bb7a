/* arguments.c - the command line: COMMAND [MODEL] [options], options anywhere. */
#include <string.h>

#include "cli/cli.h"

static const di_command *find_command(const char *name) {
    size_t count;
    const di_command *const *commands = di_commands(&count);
    for (size_t i = 0; i < count; i++)
        if (strcmp(commands[i]->name, name) == 0) return commands[i];
    return NULL;
}

static di_status unknown_command(const char *name, di_error *error) {
    size_t count;
    const di_command *const *commands = di_commands(&count);
    const char *names[16];
    di_text list = {0};
    for (size_t i = 0; i < count && i < 16; i++) {
        names[i] = commands[i]->name;
        di_text_printf(&list, "%s%s", i ? ", " : "", names[i]);
    }
    const char *near = di_nearest_name(name, names, count);
    di_fail(error, DI_ERR_USAGE, "command", "there is no command \"%.60s\"%s%s%s; there are: %s, help", name,
            near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "", list.data ? list.data : "");
    di_text_free(&list);
    return DI_ERR_USAGE;
}

static bool has_word(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

static bool takes_group(const di_command *command, const char *group) {
    return strcmp(group, "common") == 0 || strcmp(group, "limits") == 0 || !command ||
           has_word(command->groups, group) || (command->topics && has_word(command->topics, group));
}

/* Row of the flag text[0 .. length), or an error that names the nearest flag of this command. */
static di_status find_flag(const di_command *command, const char *text, size_t length, const di_config_row **row,
                           di_error *error) {
    const di_config_row *rows = di_config_rows();
    const char *names[DI_OPT_COUNT + 2];
    size_t known = 0;
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        bool mine = takes_group(command, rows[i].group);
        if (mine) names[known++] = rows[i].name;
        if (strlen(rows[i].name) != length || memcmp(rows[i].name, text, length) != 0) continue;
        if (!mine)
            return di_fail(error, DI_ERR_USAGE, rows[i].name, "%s does not take --%s", command->name, rows[i].name);
        *row = &rows[i];
        return DI_OK;
    }
    names[known++] = "help";
    names[known++] = "version";
    char name[64];
    size_t shown = length < sizeof name ? length : sizeof name - 1;
    memcpy(name, text, shown);
    name[shown] = 0;
    const char *near = di_nearest_name(name, names, known);
    if (near) return di_fail(error, DI_ERR_USAGE, name, "there is no option --%s; did you mean --%s?", name, near);
    return di_fail(error, DI_ERR_USAGE, name, "there is no option --%s; see deepinfer %s%s--help", name,
                   command ? command->name : "", command ? " " : "");
}

/* One flag at arguments[*at]; takes the next argument too where the flag has a value. */
static di_status read_flag(const di_command *command, int count, char **arguments, int *at, di_cli *cli,
                           di_error *error) {
    const char *text = arguments[*at] + 2, *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : strlen(text);
    const di_config_row *row = NULL;
    di_status status = find_flag(command, text, length, &row, error);
    if (status != DI_OK) return status;
    const char *value = equals ? equals + 1 : NULL;
    if (!value && row->type == DI_CONFIG_TYPE_BOOL) value = "on";
    if (!value) {
        if (*at + 1 >= count)
            return di_fail(error, DI_ERR_USAGE, row->name, "--%s needs a value: %s", row->name, row->help);
        value = arguments[++*at];
    }
    return di_config_set(cli->config, row->name, value, DI_CONFIG_FLAG, error);
}

static di_status read_subcommand(const char *word, const di_command *command, di_cli *cli, di_error *error) {
    size_t count = 0;
    di_text list = {0};
    for (; command->words[count]; count++) {
        if (strcmp(command->words[count], word) == 0) cli->word = command->words[count];
        di_text_printf(&list, "%s%s", count ? ", " : "", command->words[count]);
    }
    di_status status = DI_OK;
    const char *near = di_nearest_name(word, command->words, count);
    if (!cli->word)
        status = di_fail(error, DI_ERR_USAGE, "command", "there is no \"%s %.60s\"%s%s%s; there are: %s", command->name,
                         word, near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "",
                         list.data ? list.data : "");
    di_text_free(&list);
    return status;
}

static di_status read_word(const char *word, di_cli *cli, di_arguments *parsed, bool *topic, di_error *error) {
    if (!parsed->command && !*topic) {
        *topic = strcmp(word, "help") == 0;
        if (*topic) return DI_OK;
        parsed->command = find_command(word);
        return parsed->command ? DI_OK : unknown_command(word, error);
    }
    if (*topic && !parsed->topic) {
        parsed->topic = word;
        return DI_OK;
    }
    if (!*topic && parsed->command->words && !cli->word) return read_subcommand(word, parsed->command, cli, error);
    if (!*topic && !cli->model && !word[0])
        return di_fail(error, DI_ERR_USAGE, "model", "a folder of no name was given, \"\"; leave it out, or name one");
    if (!*topic && !cli->model) {
        cli->model = word;
        return DI_OK;
    }
    return di_fail(error, DI_ERR_USAGE, NULL, "\"%.60s\" is one argument too many%s", word,
                   *topic ? "" : "; a prompt is given by --prompt, --input or standard input");
}

di_status di_parse_arguments(int count, char **arguments, di_cli *cli, di_arguments *parsed, di_error *error) {
    bool topic = false, words_only = false;
    /* The command comes first in meaning, wherever it stands, because it decides which flags there are. */
    for (int i = 0; i < count; i++) {
        const char *argument = arguments[i];
        di_status status = DI_OK;
        if (words_only || argument[0] != '-' || !argument[1]) {
            status = read_word(argument, cli, parsed, &topic, error);
        } else if (strcmp(argument, "--") == 0) {
            words_only = true;
        } else if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            parsed->help = true;
        } else if (strcmp(argument, "--version") == 0) {
            parsed->version = true;
        } else if (argument[1] != '-') {
            status = di_fail(error, DI_ERR_USAGE, NULL, "there is no option %.60s; options are spelled out: --prompt",
                             argument);
        } else {
            status = read_flag(parsed->command, count, arguments, &i, cli, error);
        }
        if (status != DI_OK) return status;
    }
    if (topic && !parsed->topic) parsed->help = true;
    if (!parsed->command && !parsed->help && !parsed->topic && !parsed->version)
        return di_fail(error, DI_ERR_USAGE, "command",
                       "which command? chat, generate, serve, score, tokenize, inspect, verify, cache, grammar, bench; "
                       "deepinfer "
                       "--help tells more");
    return DI_OK;
}
