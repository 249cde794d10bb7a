/* status.c - the status table and bounded error messages; see status.h. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

typedef struct status_row {
    di_status status;
    int http;
    const char *name, *text;
} status_row;

static const status_row status_table[] = {
    {DI_OK, 200, "ok", "no error"},
    {DI_ERR_INVALID_ARGUMENT, 400, "invalid_argument", "a parameter is not valid"},
    {DI_ERR_USAGE, 400, "usage", "the command line cannot be understood"},
    {DI_ERR_CONFIG, 500, "config", "a configuration option is unknown or out of range"},
    {DI_ERR_NOT_FOUND, 404, "not_found", "a file, model or name does not exist"},
    {DI_ERR_IO, 500, "io", "reading or writing failed"},
    {DI_ERR_FORMAT, 400, "format", "bytes do not follow their format"},
    {DI_ERR_CHECKPOINT, 500, "checkpoint", "the checkpoint does not hold what its config implies"},
    {DI_ERR_UNSUPPORTED, 400, "unsupported", "not available in this build or with this model"},
    {DI_ERR_CONTEXT_LENGTH, 400, "context_length_exceeded", "the prompt leaves no room in the context"},
    {DI_ERR_LIMIT, 413, "limit", "a configured limit was reached"},
    {DI_ERR_QUEUE_FULL, 429, "queue_full", "no room for another request now"},
    {DI_ERR_CANCELLED, 499, "cancelled", "the request was cancelled"},
    {DI_ERR_DEADLINE, 504, "deadline", "the request's deadline passed"},
    {DI_ERR_MEMORY, 503, "memory", "out of memory"},
    {DI_ERR_NUMERIC, 500, "numeric", "NaN or infinity where a number is required"},
    {DI_ERR_INTERNAL, 500, "internal", "a fault of deepinfer itself"},
};
_Static_assert(sizeof status_table / sizeof status_table[0] == DI_STATUS_COUNT, "one row for every di_status");

/* A row is found by its own code, so the order of the table cannot go wrong. */
static const status_row *status_find(di_status status) {
    for (size_t i = 0; i < DI_STATUS_COUNT; i++) {
        if (status_table[i].status == status) return &status_table[i];
    }
    return &status_table[DI_STATUS_COUNT - 1];
}

const char *di_status_name(di_status status) {
    return status_find(status)->name;
}

const char *di_status_text(di_status status) {
    return status_find(status)->text;
}

int di_status_http(di_status status) {
    return status_find(status)->http;
}

/* Ends the zero-terminated text of which `room` bytes (zero included) were kept, at a character border, with "...". */
static void end_with_dots(char *text, size_t room) {
    if (room < 4) return;
    size_t cut = room - 4;
    while (cut > 0 && ((unsigned char)text[cut] & 0xC0) == 0x80) cut--;
    memcpy(text + cut, "...", 4);
}

/* Like vsnprintf, but a text that does not fit ends in "...". */
static void print_bounded(char *out, size_t room, const char *format, va_list arguments) {
    int length = vsnprintf(out, room, format, arguments);
    if (length < 0) {
        snprintf(out, room, "(message could not be formatted)");
    } else if ((size_t)length >= room) {
        end_with_dots(out, room);
    }
}

static void set_param(di_error *error, const char *param) {
    size_t length = param ? strlen(param) : 0;
    bool cut = length >= sizeof error->param;
    if (cut) length = sizeof error->param - 1;
    if (length) memcpy(error->param, param, length);
    error->param[length] = '\0';
    if (cut) end_with_dots(error->param, sizeof error->param);
}

di_status di_fail(di_error *error, di_status status, const char *param, const char *format, ...) {
    if (!error) return status;
    /* The arguments may point into *error (an error that wraps another), so the text is made aside. */
    char message[sizeof error->message];
    va_list arguments;
    va_start(arguments, format);
    print_bounded(message, sizeof message, format, arguments);
    va_end(arguments);
    if (param != error->param) set_param(error, param);
    error->status = status;
    memcpy(error->message, message, strlen(message) + 1);
    return status;
}

di_status di_fail_errno(di_error *error, di_status status, const char *param, int error_number, const char *format,
                        ...) {
    if (!error) return status;
    char message[sizeof error->message], reason_space[128];
    va_list arguments;
    va_start(arguments, format);
    print_bounded(message, sizeof message, format, arguments);
    va_end(arguments);
    const char *reason = strerror_r(error_number, reason_space, sizeof reason_space);
    /* The reason is kept whole: it is short, and the file's name may be long. */
    size_t reason_length = strlen(reason) + 2;
    if (strlen(message) + reason_length >= sizeof message) end_with_dots(message, sizeof message - reason_length);
    return di_fail(error, status, param, "%s: %s", message, reason);
}

/* Room that is always kept for the line "(and 18446744073709551615 more)". */
enum { MORE_ROOM = 36 };
static const char more_format[] = "(and %llu more)";

void di_error_add_line(di_error *error, const char *format, ...) {
    if (!error) return;
    size_t used = strnlen(error->message, sizeof error->message - 1);
    char *last = strrchr(error->message, '\n');
    unsigned long long left_out = 0;
    int consumed = 0;
    if (last && sscanf(last + 1, "(and %llu more)%n", &left_out, &consumed) == 1 && consumed > 0 &&
        last[1 + consumed] == '\0') {
        used = (size_t)(last - error->message);
    } else {
        left_out = 0;
    }
    char line[sizeof error->message - MORE_ROOM];
    va_list arguments;
    va_start(arguments, format);
    print_bounded(line, sizeof line, format, arguments);
    va_end(arguments);
    size_t length = strlen(line);
    size_t separator = used ? 1 : 0;
    if (left_out == 0 && used + separator + length + MORE_ROOM <= sizeof error->message) {
        if (separator) error->message[used++] = '\n';
        memcpy(error->message + used, line, length + 1);
        return;
    }
    /* A message of di_fail may have filled the space that the last line needs. */
    if (used + MORE_ROOM > sizeof error->message) {
        used = sizeof error->message - MORE_ROOM;
        end_with_dots(error->message, used);
        used = strlen(error->message);
    }
    if (used) error->message[used++] = '\n';
    snprintf(error->message + used, sizeof error->message - used, more_format, left_out + 1);
}

void di_error_clear(di_error *error) {
    if (!error) return;
    error->status = DI_OK;
    error->param[0] = '\0';
    error->message[0] = '\0';
}
