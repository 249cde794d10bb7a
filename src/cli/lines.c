/* lines.c - input by lines, interruptible and with a limit. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

enum { READ_BYTES = 64 * 1024 };

struct di_cli_lines {
    di_cli *cli;
    const char *name; /* for messages; borrowed */
    int file;
    bool owned, ended;
    char *data;
    size_t capacity, start, searched, filled; /* unread bytes: data[start .. filled) */
    bool skipping;                            /* inside a line that is too long */
    size_t limit;
    uint64_t number, total;
};

/* Lines of a regular file from its start, without moving it. */
static uint64_t count_lines(int file) {
    struct stat info;
    if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || info.st_size == 0) return 0;
    char buffer[READ_BYTES];
    uint64_t lines = 0;
    char last = '\n';
    off_t at = 0;
    for (ssize_t got; (got = pread(file, buffer, sizeof buffer, at)) > 0; at += got) {
        for (ssize_t i = 0; i < got; i++) lines += buffer[i] == '\n';
        last = buffer[got - 1];
    }
    return lines + (last != '\n');
}

static bool is_same_file(const struct stat *a, const struct stat *b) {
    return S_ISREG(a->st_mode) && a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

di_status di_cli_check_outputs(const di_cli *cli, const char *name, const struct stat *input, di_error *error) {
    static const di_config_id outputs[] = {DI_OPT_OUTPUT, DI_OPT_LOGITS, DI_OPT_CALIBRATE};
    struct stat info;
    if (fstat(STDOUT_FILENO, &info) == 0 && is_same_file(input, &info))
        return di_fail(error, DI_ERR_USAGE, "input", "%s and standard output are the same file; results need another",
                       name);
    for (size_t i = 0; i < sizeof outputs / sizeof *outputs; i++) {
        const char *path = di_config_text(cli->config, outputs[i]), *option = di_config_rows()[outputs[i]].name;
        if (path[0] && stat(path, &info) == 0 && is_same_file(input, &info))
            return di_fail(error, DI_ERR_USAGE, option, "--%s %s is the input; results need another file", option,
                           path);
    }
    return DI_OK;
}

/* The source as an open file, which is closed if it will not do. */
static di_status open_source(const di_cli *cli, const char *path, const char *name, int *file, di_error *error) {
    if (path) *file = open(path, O_RDONLY | O_CLOEXEC);
    if (*file < 0)
        return di_fail_errno(error, errno == ENOENT ? DI_ERR_NOT_FOUND : DI_ERR_IO, "input", errno, "cannot open %s",
                             name);
    struct stat info;
    if (fstat(*file, &info) != 0) return DI_OK; /* reading will tell */
    di_status status = DI_OK;
    if (path && S_ISDIR(info.st_mode))
        status = di_fail(error, DI_ERR_IO, "input", "%s is a folder; --input takes a file", path);
    else
        status = di_cli_check_outputs(cli, name, &info, error);
    if (status != DI_OK && path) close(*file);
    return status;
}

di_status di_cli_lines_open(di_cli *cli, di_cli_lines **out, di_error *error) {
    const char *path = di_config_text(cli->config, DI_OPT_INPUT);
    bool owned = path[0] && strcmp(path, "-") != 0;
    const char *name = owned ? path : "standard input";
    int file = STDIN_FILENO;
    di_status status = open_source(cli, owned ? path : NULL, name, &file, error);
    if (status != DI_OK) return status;
    di_cli_lines *lines = calloc(1, sizeof *lines);
    if (!lines) {
        if (owned) close(file);
        return di_fail(error, DI_ERR_MEMORY, "input", "out of memory for the input");
    }
    lines->cli = cli;
    lines->name = name;
    lines->file = file;
    lines->owned = owned;
    lines->limit = (size_t)di_config_int(cli->config, DI_OPT_LIMIT_LINE_BYTES);
    lines->total = owned ? count_lines(file) : 0;
    *out = lines;
    return DI_OK;
}

void di_cli_lines_close(di_cli_lines *lines) {
    if (!lines) return;
    if (lines->owned) close(lines->file);
    free(lines->data);
    free(lines);
}

uint64_t di_cli_lines_number(const di_cli_lines *lines) {
    return lines->number;
}
void di_cli_lines_note_empty(const di_cli_lines *lines) {
    if (lines->number == 0) di_cli_note(lines->cli, "%s holds no line, so there is no result", lines->name);
}
uint64_t di_cli_lines_total(const di_cli_lines *lines) {
    return lines->total;
}

/* Room for another read behind the unread bytes, which move to the front. */
static bool make_room(di_cli_lines *lines) {
    if (lines->start) {
        memmove(lines->data, lines->data + lines->start, lines->filled - lines->start);
        lines->filled -= lines->start;
        lines->searched -= lines->start;
        lines->start = 0;
    }
    if (lines->capacity - lines->filled > READ_BYTES) return true;
    size_t capacity = lines->capacity * 2 + 2 * READ_BYTES;
    char *data = realloc(lines->data, capacity);
    if (!data) return false;
    lines->data = data;
    lines->capacity = capacity;
    return true;
}

/* Waits for input or a signal. 1 = input, 0 = time is over, -1 = interrupted. */
static int wait_input(di_cli_lines *lines, int64_t until) {
    struct pollfd files[2] = {{.fd = lines->file, .events = POLLIN}, {.fd = lines->cli->interrupt, .events = POLLIN}};
    for (;;) {
        int64_t left = until == INT64_MAX ? -1 : (until - di_now_ns()) / 1000000;
        if (until != INT64_MAX && left < 0) left = 0;
        int got = poll(files, 2, (int)left);
        if (got < 0 && errno == EINTR) continue;
        if (files[1].revents && di_cli_interrupted(lines->cli)) return -1;
        return got > 0 && files[0].revents ? 1 : 0;
    }
}

/* Reads once. DI_LINE_OK when bytes came or the input ended. */
static di_cli_line fill(di_cli_lines *lines, int64_t until, di_error *error) {
    int ready = wait_input(lines, until);
    if (ready < 0) return DI_LINE_INTERRUPTED;
    if (ready == 0) return DI_LINE_NONE;
    if (!make_room(lines)) {
        di_fail(error, DI_ERR_MEMORY, "input", "out of memory for a line of input");
        return DI_LINE_ERROR;
    }
    ssize_t got = read(lines->file, lines->data + lines->filled, READ_BYTES);
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return DI_LINE_OK;
    if (got < 0) {
        di_fail_errno(error, DI_ERR_IO, "input", errno, "cannot read %s", lines->name);
        return DI_LINE_ERROR;
    }
    if (got == 0) lines->ended = true;
    lines->filled += (size_t)got;
    return DI_LINE_OK;
}

static di_cli_line too_long(di_cli_lines *lines, di_error *error) {
    di_fail(error, DI_ERR_LIMIT, "limit-line-bytes", "line %llu has more than %zu bytes; --limit-line-bytes sets this",
            (unsigned long long)lines->number, lines->limit);
    return DI_LINE_TOO_LONG;
}

di_cli_line di_cli_lines_next(di_cli_lines *lines, int timeout_ms, const char **text, size_t *length, di_error *error) {
    int64_t until = timeout_ms < 0 ? INT64_MAX : di_now_ns() + timeout_ms * (int64_t)1000000;
    for (;;) {
        size_t unread = lines->filled - lines->start;
        char *end = lines->searched < lines->filled
                        ? memchr(lines->data + lines->searched, '\n', lines->filled - lines->searched)
                        : NULL;
        bool last = !end && lines->ended;
        if (end || (last && (unread || lines->skipping))) {
            size_t size = end ? (size_t)(end - lines->data) - lines->start : unread;
            const char *line = lines->data + lines->start;
            lines->start += size + (end != NULL);
            lines->searched = lines->start;
            lines->number++;
            bool skipped = lines->skipping;
            lines->skipping = false;
            if (skipped || size > lines->limit) return too_long(lines, error);
            *text = line;
            *length = size;
            return DI_LINE_OK;
        }
        if (last) return DI_LINE_END;
        lines->searched = lines->filled;
        if (unread > lines->limit) {
            lines->skipping = true;
            lines->start = lines->filled;
        }
        di_cli_line result = fill(lines, until, error);
        if (result != DI_LINE_OK) return result;
    }
}

di_status di_cli_parse_line(const di_cli *cli, di_arena *arena, const char *text, size_t length, const di_json **object,
                            di_error *error) {
    unsigned depth = (unsigned)di_config_int(cli->config, DI_OPT_LIMIT_JSON_DEPTH);
    di_status status = di_json_parse(arena, text, length, depth, object, error);
    if (status != DI_OK && error && strstr(error->message, "levels allowed")) {
        di_error inner = *error; /* the reader knows the number, not whose it is */
        di_fail(error, status, NULL, "%s (--limit-json-depth)", inner.message);
    }
    if (status != DI_OK)
        *object = NULL;
    else if ((*object)->type != DI_JSON_OBJECT)
        status = di_fail(error, DI_ERR_FORMAT, NULL, "a line must hold one JSON object, not %s",
                         di_json_type_name((*object)->type));
    return status;
}

bool di_cli_blank(const char *text, size_t length) {
    for (size_t i = 0; i < length; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r') return false;
    return true;
}

void di_cli_begin_result(di_json_writer *writer, di_text *out, const di_json *id) {
    di_json_begin(writer, out);
    di_json_object_begin(writer);
    if (!id) return;
    di_json_key(writer, "id");
    di_json_value(writer, id);
}

/* One line, its result in `out`. *fault holds why it failed, or that the line is too long already. */
static void convert_line(const di_cli_lines *lines, di_cli_convert *convert, void *arg, di_arena *arena,
                         const char *text, size_t length, di_text *out, di_error *fault) {
    const di_json *object = NULL;
    if (fault->status == DI_OK) di_cli_parse_line(lines->cli, arena, text, length, &object, fault);
    if (fault->status == DI_OK) convert(arg, arena, object, out, fault);
    if (fault->status == DI_OK) return;
    di_text_clear(out);
    di_cli_error_line(out, di_json_get(object, "id"), lines->number, fault);
}

int di_cli_convert_lines(di_cli *cli, di_cli_convert *convert, void *arg) {
    di_error error = {0};
    di_cli_lines *lines = NULL;
    di_text out = {0};
    bool failed = false, interrupted = false;
    di_arena *arena = di_arena_new(0);
    if (arena)
        di_cli_lines_open(cli, &lines, &error);
    else
        di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    while (error.status == DI_OK && lines) {
        const char *text = NULL;
        size_t length = 0;
        di_error fault = {0};
        di_cli_line got = di_cli_lines_next(lines, -1, &text, &length, &fault);
        interrupted = got == DI_LINE_INTERRUPTED;
        if (got == DI_LINE_ERROR) error = fault;
        if (got != DI_LINE_OK && got != DI_LINE_TOO_LONG) break;
        if (got == DI_LINE_OK && di_cli_blank(text, length)) continue;
        di_arena_reset(arena);
        di_text_clear(&out);
        convert_line(lines, convert, arg, arena, text, length, &out, &fault);
        interrupted = fault.status == DI_ERR_CANCELLED;
        if (interrupted) break;
        failed |= fault.status != DI_OK;
        if (out.failed)
            di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory for a line of output");
        else
            di_cli_write(out.data, out.length, &error);
    }
    if (error.status == DI_OK && lines && !interrupted) di_cli_lines_note_empty(lines);
    di_cli_lines_close(lines);
    di_arena_free(arena);
    di_text_free(&out);
    if (error.status != DI_OK) return di_cli_report(&error);
    return interrupted ? DI_EXIT_INTERRUPTED : failed ? DI_EXIT_FAILED : DI_EXIT_OK;
}

di_status di_cli_read_text(di_cli *cli, bool empty_is_right, char **text, size_t *length, di_error *error) {
    const di_config *config = cli->config;
    *text = NULL;
    size_t limit = (size_t)di_config_int(config, DI_OPT_LIMIT_PROMPT_BYTES);
    bool prompt = di_config_is_set(config, DI_OPT_PROMPT), input = di_config_text(config, DI_OPT_INPUT)[0];
    if (prompt) {
        const char *given = di_config_text(config, DI_OPT_PROMPT);
        *length = strlen(given);
        *text = strdup(given);
        return *text ? DI_OK : di_fail(error, DI_ERR_MEMORY, "prompt", "out of memory for the prompt");
    }
    di_cli_lines *lines = NULL;
    di_status status = di_cli_lines_open(cli, &lines, error);
    if (status != DI_OK) return status;
    if (!input && isatty(STDIN_FILENO)) di_cli_note(cli, "reading the prompt from the terminal; Ctrl-D ends it");
    while (status == DI_OK && !lines->ended) {
        di_cli_line got = fill(lines, INT64_MAX, error);
        if (got == DI_LINE_ERROR) status = error ? error->status : DI_ERR_IO;
        if (got == DI_LINE_INTERRUPTED) status = di_fail(error, DI_ERR_CANCELLED, NULL, "interrupted");
        if (lines->filled > limit)
            status = di_fail(error, DI_ERR_LIMIT, "prompt",
                             "the prompt has more than %zu bytes; --limit-prompt-bytes sets this", limit);
    }
    if (status == DI_OK && lines->filled == 0 && !empty_is_right)
        status = di_fail(error, DI_ERR_INVALID_ARGUMENT, "input", "%s is empty; it must hold the text", lines->name);
    if (status == DI_OK) {
        lines->data[lines->filled] = 0; /* make_room leaves more than one read */
        *text = lines->data;
        *length = lines->filled;
        lines->data = NULL;
    }
    di_cli_lines_close(lines);
    return status;
}
