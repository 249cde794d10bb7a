/* access_log.c - see access_log.h. A line leaves in one write, so that lines of processes never mix. */
#include "server/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct di_access_log {
    int file;
    char *path; /* NULL = stderr */
    di_text line;
    di_json_writer writer;
};

/* A pipe without a reader is an error: to wait for one would stop a server that opens its log again. */
static di_status open_file(const char *path, int *file, di_error *error) {
    *file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0640);
    if (*file >= 0) {
        fcntl(*file, F_SETFL, O_APPEND); /* that is: without O_NONBLOCK again, so that a line is written whole */
        return DI_OK;
    }
    return di_fail_errno(error, DI_ERR_IO, "access-log", errno, "cannot write the access log %s%s", path,
                         errno == ENXIO ? "; a pipe must have a reader" : "");
}

di_status di_access_log_open(const char *where, di_access_log **log, di_error *error) {
    *log = NULL;
    if (strcmp(where, "off") == 0 || !where[0]) return DI_OK;
    di_access_log *opened = calloc(1, sizeof *opened);
    bool to_stderr = strcmp(where, "stderr") == 0;
    if (opened) opened->file = STDERR_FILENO;
    if (opened && !to_stderr) opened->path = strdup(where);
    di_status status = DI_OK;
    if (!opened || (!to_stderr && !opened->path))
        status = di_fail(error, DI_ERR_MEMORY, "access-log", "out of memory for the access log");
    else if (!to_stderr)
        status = open_file(where, &opened->file, error);
    if (status == DI_OK) {
        *log = opened;
    } else if (opened) {
        free(opened->path);
        free(opened);
    }
    return status;
}

void di_access_log_close(di_access_log *log) {
    if (!log) return;
    if (log->path) close(log->file);
    free(log->path);
    di_text_free(&log->line);
    free(log);
}

di_status di_access_log_reopen(di_access_log *log, di_error *error) {
    int file;
    if (!log || !log->path) return DI_OK;
    di_status status = open_file(log->path, &file, error);
    if (status != DI_OK) return status;
    close(log->file);
    log->file = file;
    return DI_OK;
}

di_json_writer *di_access_log_begin(di_access_log *log) {
    if (!log) return NULL;
    struct timespec now;
    struct tm utc = {0};
    char date[32], stamp[48];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(stamp, sizeof stamp, "%s.%03dZ", date, (int)(now.tv_nsec / 1000000));
    di_text_clear(&log->line);
    di_json_begin(&log->writer, &log->line);
    di_json_object_begin(&log->writer);
    di_json_key(&log->writer, "time");
    di_json_string(&log->writer, stamp);
    return &log->writer;
}

void di_access_log_end(di_access_log *log) {
    if (!log) return;
    di_json_object_end(&log->writer);
    di_text_putc(&log->line, '\n');
    if (log->line.failed) return;
    for (size_t at = 0; at < log->line.length;) {
        ssize_t written = write(log->file, log->line.data + at, log->line.length - at);
        if (written < 0 && errno != EINTR) return; /* a full disk must not stop the server */
        if (written > 0) at += (size_t)written;
    }
}
