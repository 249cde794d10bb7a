/* chat.c - a conversation on a terminal or from a pipe. */
#include "cli/chat.h"
#include "cli/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/engine.h"

enum { INTERRUPT_MS = 100, TURN_MESSAGES = 2, FIRST_MESSAGES = 64 };

typedef struct chat {
    di_cli *cli;
    di_engine *engine;
    di_recipe recipe;
    di_recipe_options options;
    di_sampling sampling;
    di_arena *arena;        /* flags */
    di_arena *conversation; /* messages */
    di_arena *turn;         /* the prompt of one answer */
    di_message *messages;   /* [capacity] in `conversation` */
    size_t count, capacity;
    bool terminal, colour; /* a person types; stdout is a terminal */
    bool failed, stopped;  /* an answer failed; the last answer was stopped by Ctrl-C */
    uint64_t last_seed;
    di_session *session; /* NULL: the conversation is not kept */
} chat;

/* ---------------------------------------------------------------- messages */

/* Refuses what would have more messages than are allowed. */
static di_status check_room(const chat *c, size_t more, di_error *error) {
    int64_t most = di_config_int(c->cli->config, DI_OPT_LIMIT_MESSAGES);
    if (c->count + more <= (uint64_t)most) return DI_OK;
    return di_fail(error, DI_ERR_LIMIT, "limit-messages",
                   "the conversation would have %zu messages; at most %lld are allowed (--limit-messages)%s",
                   c->count + more, (long long)most, more == TURN_MESSAGES ? "; /reset begins a new one" : "");
}

/* Room for one more in the list, which moves as it grows; what it leaves behind is less than what it has. */
static bool grow(chat *c) {
    if (c->count < c->capacity) return true;
    size_t capacity = c->capacity ? 2 * c->capacity : FIRST_MESSAGES;
    di_message *messages = di_arena_array(c->conversation, capacity, sizeof *messages);
    if (!messages) return false;
    if (c->count) memcpy(messages, c->messages, c->count * sizeof *messages);
    c->messages = messages;
    c->capacity = capacity;
    return true;
}

static di_status add_message(chat *c, di_role role, const char *text, size_t length, di_error *error) {
    di_status status = check_room(c, 1, error);
    if (status != DI_OK) return status;
    di_content *content = grow(c) ? di_arena_zalloc(c->conversation, sizeof *content) : NULL;
    if (content) content->text = di_arena_copy(c->conversation, text, length);
    if (!content || !content->text) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the conversation");
    content->length = length;
    c->messages[c->count++] = (di_message){.role = role, .content = content, .content_count = 1};
    return DI_OK;
}

static di_status reset(chat *c, di_error *error) {
    di_arena_reset(c->conversation);
    c->messages = NULL;
    c->count = c->capacity = 0;
    const char *system = di_config_text(c->cli->config, DI_OPT_SYSTEM);
    return system[0] ? add_message(c, DI_ROLE_SYSTEM, system, strlen(system), error) : DI_OK;
}

/* ---------------------------------------------------------------- sessions */

static di_status add_kept_message(void *arg, di_role role, const char *text, size_t length, di_error *error) {
    return add_message(arg, role, text, length, error);
}

/* What is lost with a state is only time. */
static void load_state(chat *c) {
    di_error error = {0};
    size_t positions = 0;
    di_status status = di_load_state(c->engine, di_session_state_path(c->session), NULL, &positions, &error);
    if (status != DI_OK && status != DI_ERR_NOT_FOUND)
        di_cli_note(c->cli, "%s; the conversation is computed again", error.message);
}

static di_status resume(chat *c, di_error *error) {
    const char *system = di_config_text(c->cli->config, DI_OPT_SYSTEM);
    const char *name = di_config_text(c->cli->config, DI_OPT_SESSION);
    di_status status = di_session_open(c->cli->config, name, &c->session, error);
    if (status != DI_OK) return status;
    size_t fresh = c->count; /* a system message, perhaps */
    c->count = 0;
    status = di_session_read(c->session, add_kept_message, c, error);
    if (status != DI_OK) return status;
    if (!c->count) {
        c->count = fresh;
        return DI_OK;
    }
    const di_message *first = c->messages;
    if (system[0] && (first->role != DI_ROLE_SYSTEM || strcmp(first->content->text, system) != 0))
        di_cli_note(c->cli, "the session has a system message of its own; --system is not used");
    load_state(c);
    di_cli_note(c->cli, "session %s: %zu messages", name, c->count);
    return DI_OK;
}

/* The state at the end of what the next prompt will begin with. Nothing found: the cache is off or too small. */
static void save_state(chat *c) {
    di_prompt prompt;
    di_ids ids = {0};
    di_error error = {0};
    di_conversation conversation = {.messages = c->messages, .count = c->count};
    di_arena_reset(c->turn);
    di_status status = di_recipe_render(&c->recipe, &conversation, &c->options, c->turn, &prompt, &error);
    if (status == DI_OK) status = di_recipe_encode(di_engine_tokenizer(c->engine), &prompt, &ids, &error);
    if (status == DI_OK)
        status = di_save_state(c->engine, ids.data, ids.count, NULL, di_session_state_path(c->session), NULL, &error);
    if (status != DI_OK && status != DI_ERR_NOT_FOUND) di_cli_note(c->cli, "%s", error.message);
    di_ids_free(&ids);
}

/* A conversation that cannot be kept goes on all the same; the exit code tells. */
static void keep(chat *c) {
    di_error error = {0};
    if (!c->session) return;
    if (di_session_write(c->session, c->messages, c->count, &error) != DI_OK) {
        c->failed = true;
        di_cli_report(&error);
    } else if (c->count) {
        save_state(c);
    } else {
        unlink(di_session_state_path(c->session));
    }
}

/* ---------------------------------------------------------------- answers */

/* An answer while it is written. */
typedef struct answer {
    chat *chat;
    di_parser *parser;
    di_answer parts; /* whole, so far */
    size_t shown_reasoning, shown_content;
    di_event last;
} answer;

/* Shows what was added. Reasoning is dim on a terminal; elsewhere it goes to stderr, apart from the answer. */
static di_status show(answer *a, di_error *error) {
    const chat *c = a->chat;
    size_t more = a->parts.reasoning.length - a->shown_reasoning;
    if (more && c->colour) {
        di_status status = a->shown_reasoning ? DI_OK : di_cli_write("\033[2m", 4, error);
        if (status == DI_OK) status = di_cli_write(a->parts.reasoning.data + a->shown_reasoning, more, error);
        if (status != DI_OK) return status;
    } else if (more && !c->cli->quiet) {
        fwrite(a->parts.reasoning.data + a->shown_reasoning, 1, more, stderr);
    }
    a->shown_reasoning += more;
    more = a->parts.content.length - a->shown_content;
    if (!more) return DI_OK;
    if (!a->shown_content && a->shown_reasoning) {
        di_status status = c->colour ? di_cli_write("\033[0m\n\n", 6, error) : DI_OK;
        if (status != DI_OK) return status;
        if (!c->colour && !c->cli->quiet) fputs("\n\n", stderr);
    }
    di_status status = di_cli_write(a->parts.content.data + a->shown_content, more, error);
    a->shown_content += more;
    return status;
}

static di_status end_show(answer *a, di_error *error) {
    const chat *c = a->chat;
    if (a->shown_reasoning && !a->shown_content) {
        if (c->colour) return di_cli_write("\033[0m\n", 5, error);
        if (!c->cli->quiet) fputc('\n', stderr);
        return DI_OK;
    }
    return di_cli_write("\n", 1, error);
}

static di_status follow(answer *a, di_request *request, di_error *error) {
    chat *c = a->chat;
    di_status status = DI_OK;
    for (;;) {
        if (di_cli_interrupted(c->cli)) {
            c->stopped = true;
            di_request_cancel(request);
        }
        di_event event;
        if (!di_request_next(request, INTERRUPT_MS, &event)) continue;
        if (event.kind == DI_EVENT_TOKEN) di_parser_push(a->parser, event.token_id, event.text, event.text_length);
        if (event.kind == DI_EVENT_FINISH) {
            di_parser_end end;
            di_output_end how = di_output_end_of(event.finish_reason, event.stop_string);
            di_parser_push(a->parser, -1, event.text, event.text_length);
            di_status parsed = di_parser_finish(a->parser, how, &end, status == DI_OK ? error : NULL);
            if (status == DI_OK) status = parsed;
        }
        if (a->parts.failed && status == DI_OK)
            status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the answer");
        if (status == DI_OK) status = show(a, error);
        if (status != DI_OK) di_request_cancel(request);
        if (event.kind != DI_EVENT_DONE) continue;
        a->last = event;
        if (status == DI_OK && event.status != DI_OK && event.status != DI_ERR_CANCELLED) {
            status = event.status;
            *error = event.error;
        }
        return status;
    }
}

/* Renders the conversation and submits it. */
static di_status ask(chat *c, answer *a, di_request **request, di_error *error) {
    di_prompt prompt;
    di_request_params params;
    di_conversation conversation = {.messages = c->messages, .count = c->count};
    di_arena_reset(c->turn);
    di_status status = di_recipe_render(&c->recipe, &conversation, &c->options, c->turn, &prompt, error);
    if (status != DI_OK) return status;
    const di_parser_options parsing = {.on_part = di_answer_take, .arg = &a->parts};
    a->parser = di_parser_new(&c->recipe, &conversation, &prompt, &parsing);
    if (!a->parser) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the answer");
    di_request_params_default(&params);
    params.segments = prompt.request;
    params.segment_count = prompt.count;
    params.sampling = c->sampling;
    params.stop_arm_token_id = prompt.stop_arm_token_id;
    return di_submit(c->engine, &params, request, error);
}

/* One turn. A turn without an answer leaves no trace in the conversation. */
static di_status answer_to(chat *c, const char *text, size_t length, di_error *error) {
    answer a = {.chat = c};
    di_request *request = NULL;
    size_t before = c->count;
    c->stopped = false;
    di_status status = check_room(c, TURN_MESSAGES, error); /* not when the answer has been computed */
    if (status == DI_OK) status = add_message(c, DI_ROLE_USER, text, length, error);
    if (status == DI_OK) status = ask(c, &a, &request, error);
    if (status == DI_OK) {
        status = follow(&a, request, error);
        if (status == DI_OK)
            status = end_show(&a, error);
        else if (status != DI_ERR_IO)
            end_show(&a, NULL);
        c->last_seed = a.last.seed;
        di_cli_footer(c->cli, &a.last);
        if (c->stopped) di_cli_note(c->cli, "(stopped)");
    }
    bool answered = status == DI_OK && a.parts.content.length;
    if (answered) status = add_message(c, DI_ROLE_ASSISTANT, a.parts.content.data, a.parts.content.length, error);
    if (answered && status == DI_OK)
        keep(c);
    else
        c->count = before;
    di_request_free(request);
    di_parser_free(a.parser);
    di_answer_free(&a.parts);
    return status;
}

/* ---------------------------------------------------------------- commands */

static const char commands_text[] =
    "/help              this list\n"
    "/reset             forget the conversation\n"
    "/think on|off      thinking, from the next answer on\n"
    "/seed N            seed of the answers; /seed alone shows the last one, /seed off draws\n"
    "/exit              leave (also Ctrl-D)\n"
    "Ctrl-C stops an answer. A message that begins with / is written with //.";

static void set_seed(chat *c, const char *value) {
    char *end = NULL;
    if (!value[0]) {
        di_cli_note(c->cli, "last seed %llu%s", (unsigned long long)c->last_seed,
                    c->sampling.has_seed ? "" : "; drawn for each answer");
    } else if (strcmp(value, "off") == 0) {
        c->sampling.has_seed = false;
        di_cli_note(c->cli, "a seed is drawn for each answer");
    } else if (strspn(value, "0123456789") == strlen(value) && strlen(value) <= 20) {
        unsigned long long seed = strtoull(value, &end, 10);
        c->sampling.seq_seed = seed;
        c->sampling.has_seed = true;
        di_cli_note(c->cli, "seed %llu", seed);
    } else {
        di_cli_note(c->cli, "/seed takes an integer in 0 .. 18446744073709551615, or off");
    }
}

/* "/name value". Returns false when the conversation ends. */
static bool command(chat *c, const char *line, di_error *error) {
    size_t name = strcspn(line, " \t");
    const char *value = line + name + strspn(line + name, " \t");
    if (strncmp(line, "/exit", name) == 0 && name == 5) return false;
    if (strncmp(line, "/help", name) == 0 && name == 5) {
        di_cli_note(c->cli, "%s", commands_text);
    } else if (strncmp(line, "/reset", name) == 0 && name == 6) {
        if (reset(c, error) == DI_OK) {
            keep(c);
            di_cli_note(c->cli, "the conversation begins anew");
        }
    } else if (strncmp(line, "/seed", name) == 0 && name == 5) {
        set_seed(c, value);
    } else if (strncmp(line, "/think", name) == 0 && name == 6) {
        if (strcmp(value, "on") == 0 || strcmp(value, "off") == 0)
            c->options.thinking = value[1] == 'n';
        else if (value[0])
            di_cli_note(c->cli, "/think takes on or off");
        di_cli_note(c->cli, "thinking is %s", c->options.thinking ? "on" : "off");
    } else {
        di_cli_note(c->cli, "there is no command %.40s; /help lists them", line);
    }
    return error->status == DI_OK;
}

/* ---------------------------------------------------------------- the conversation */

/* A turn whose failure ends neither the program nor the conversation, but the exit code tells. */
static bool take_line(chat *c, const char *text, size_t length, di_error *error) {
    char *line = di_arena_copy(c->arena, text, length);
    if (!line) {
        di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
        return false;
    }
    if (line[0] == '/' && line[1] != '/') return command(c, line, error);
    size_t skip = line[0] == '/';
    di_error fault = {0};
    if (answer_to(c, line + skip, length - skip, &fault) != DI_OK) {
        c->failed = true;
        di_cli_report(&fault);
        if (fault.status == DI_ERR_IO) *error = fault;
    }
    return error->status == DI_OK;
}

static int converse(chat *c) {
    di_error error = {0};
    di_chat_input *input = NULL;
    bool interrupted = false;
    di_chat_input_open(c->cli, &input, &error);
    if (error.status == DI_OK) c->terminal = di_chat_input_is_terminal(input);
    if (c->terminal)
        di_cli_note(c->cli, "deepinfer %s, %s, thinking %s. /help helps.", di_version(),
                    di_engine_info(c->engine)->path, c->options.thinking ? "on" : "off");
    while (error.status == DI_OK) {
        const char *text = NULL;
        size_t length = 0;
        di_cli_line got = di_chat_input_next(input, c->stopped, &text, &length, &error);
        c->stopped = false;
        interrupted = got == DI_LINE_INTERRUPTED;
        if (got == DI_LINE_TOO_LONG) {
            di_cli_report(&error);
            memset(&error, 0, sizeof error);
            c->failed = true;
            continue;
        }
        if (got != DI_LINE_OK) break;
        if (!di_cli_blank(text, length) && !take_line(c, text, length, &error)) break;
    }
    di_chat_input_close(input);
    if (error.status != DI_OK) return di_cli_report(&error);
    return interrupted ? DI_EXIT_INTERRUPTED : c->failed && !c->terminal ? DI_EXIT_FAILED : DI_EXIT_OK;
}

static int run(di_cli *cli) {
    di_error error = {0};
    chat c = {.cli = cli, .colour = isatty(STDOUT_FILENO)};
    c.arena = di_arena_new(0);
    c.conversation = di_arena_new(0);
    c.turn = di_arena_new(0);
    di_status status =
        c.arena && c.conversation && c.turn ? DI_OK : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = di_cli_check_input(cli, &error);
    if (status == DI_OK) status = di_cli_refuse(cli, DI_OPT_JSON, "belongs to generate, with \"messages\"", &error);
    if (status == DI_OK) status = di_cli_refuse(cli, DI_OPT_TOKEN_IDS, "belongs to generate", &error);
    if (status == DI_OK) status = di_cli_refuse(cli, DI_OPT_LOGPROBS, "needs generate --json to be shown", &error);
    if (status == DI_OK) status = di_cli_open_engine(cli, &c.engine, &error);
    if (status == DI_OK) status = di_cli_catch_interrupts(cli, &error);
    if (status == DI_OK) status = di_cli_recipe(cli, c.engine, &c.recipe, &c.options, &error);
    if (status == DI_OK) status = di_cli_sampling(cli, c.engine, c.arena, &c.sampling, &error);
    if (status == DI_OK) status = reset(&c, &error);
    if (status == DI_OK && di_config_is_set(cli->config, DI_OPT_SESSION)) status = resume(&c, &error);
    int code;
    if (status != DI_OK) {
        code = di_cli_report(&error);
    } else if (di_config_is_set(cli->config, DI_OPT_PROMPT)) {
        const char *prompt = di_config_text(cli->config, DI_OPT_PROMPT);
        status = answer_to(&c, prompt, strlen(prompt), &error);
        code = status != DI_OK ? di_cli_report(&error)
               : c.stopped     ? DI_EXIT_INTERRUPTED
               : c.failed      ? DI_EXIT_FAILED
                               : DI_EXIT_OK;
    } else {
        code = converse(&c);
    }
    di_close(c.engine);
    di_session_close(c.session);
    di_arena_free(c.arena);
    di_arena_free(c.conversation);
    di_arena_free(c.turn);
    return code;
}

const di_command di_command_chat = {
    .name = "chat",
    .summary = "a conversation on a terminal or from a pipe",
    .usage = "[MODEL] [options]",
    .text = "Every line is a message of one conversation; /help lists the commands inside.\n"
            "Ctrl-C stops an answer. --prompt answers once, --session keeps and resumes it.",
    .example = "  deepinfer chat\n"
               "  echo \"I would like to book a table.\" | deepinfer chat --temperature 0\n",
    .groups = "chat json input sampling",
    .run = run,
};
