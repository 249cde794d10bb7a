/* log.c - see log.h. A line is formatted aside and leaves in one write, so that lines of threads never mix. */
#include "base/log.h"

#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

struct di_log {
    _Atomic int level;
    di_log_sink sink;
    void *arg;
};

di_log *di_log_new(di_log_level level, di_log_sink sink, void *arg) {
    di_log *log = calloc(1, sizeof *log);
    if (!log) return NULL;
    atomic_init(&log->level, (int)level);
    log->sink = sink;
    log->arg = arg;
    return log;
}

void di_log_free(di_log *log) {
    free(log);
}

void di_log_set_level(di_log *log, di_log_level level) {
    if (log) atomic_store_explicit(&log->level, (int)level, memory_order_relaxed);
}

const char *di_log_level_name(di_log_level level) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    return (unsigned)level < sizeof names / sizeof names[0] ? names[level] : "?";
}

static size_t print_prefix(char *line, size_t room, di_log_level level, const char *module) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc = {0};
    gmtime_r(&now.tv_sec, &utc);
    char stamp[32];
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &utc);
    int length = snprintf(line, room, "%s.%03dZ %-5s %s: ", stamp, (int)(now.tv_nsec / 1000000),
                          di_log_level_name(level), module);
    if (length < 0) return 0;
    return (size_t)length < room ? (size_t)length : room - 1;
}

static void write_stderr(const char *line, size_t length) {
    while (length) {
        ssize_t written = write(STDERR_FILENO, line, length);
        if (written < 0) {
            if (errno == EINTR) continue;
            return; /* nowhere left to complain */
        }
        line += written;
        length -= (size_t)written;
    }
}

void di_log_write(di_log *log, di_log_level level, const char *module, const char *format, ...) {
    if (!log || (int)level > atomic_load_explicit(&log->level, memory_order_relaxed)) return;
    int error_number = errno;
    char line[LINE_BYTES];
    size_t room = sizeof line - 1; /* the line end */
    size_t start = print_prefix(line, room, level, module);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + start, room - start, format, arguments);
    va_end(arguments);
    if (length < 0) line[start] = '\0';
    size_t end = start + strlen(line + start);
    if (length >= 0 && (size_t)length >= room - start) {
        /* Cut at a character border. */
        end -= 3;
        while (end > start && ((unsigned char)line[end] & 0xC0) == 0x80) end--;
        memcpy(line + end, "...", 4);
        end += 3;
    }
    /* One event is one line, and a terminal is not steered by what a file name holds. */
    for (size_t i = start; i < end; i++) {
        unsigned char c = (unsigned char)line[i];
        if (c < 0x20 || c == 0x7F) line[i] = ' ';
    }
    if (log->sink) {
        log->sink(log->arg, level, line);
    } else {
        line[end++] = '\n';
        write_stderr(line, end);
    }
    errno = error_number;
}
