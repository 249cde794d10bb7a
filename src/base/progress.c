/* progress.c - see progress.h. */
#include "base/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { REDRAW_NS = 100000000, BAR_CELLS = 24, DEFAULT_COLUMNS = 80 };

struct di_progress {
    char label[48], unit[16];
    uint64_t total, done;
    int64_t start_ns, drawn_ns;
    bool drawn;
};

di_progress *di_progress_new(const char *label, const char *unit, uint64_t total, bool quiet) {
    if (quiet || !isatty(STDERR_FILENO)) return NULL;
    di_progress *progress = calloc(1, sizeof *progress);
    if (!progress) return NULL; /* a missing bar is no reason to stop */
    snprintf(progress->label, sizeof progress->label, "%s", label);
    snprintf(progress->unit, sizeof progress->unit, "%s", unit);
    progress->total = total;
    progress->start_ns = progress->drawn_ns = di_now_ns();
    return progress;
}

/* "1234", "12.3k", "4.56G" */
static void print_amount(char *out, size_t room, double amount) {
    static const char suffixes[] = " kMGT";
    size_t step = 0;
    while (amount >= 10000 && suffixes[step + 1]) {
        amount /= 1000;
        step++;
    }
    if (step == 0) {
        snprintf(out, room, "%.*f", amount < 100 && amount != (double)(int)amount ? 1 : 0, amount);
    } else {
        snprintf(out, room, "%.*f%c", amount < 100 ? 1 : 0, amount, suffixes[step]);
    }
}

static void print_time(char *out, size_t room, double seconds) {
    if (seconds > 359999) {
        snprintf(out, room, "more than 99 h");
    } else if (seconds >= 3600) {
        snprintf(out, room, "%d:%02d:%02d", (int)seconds / 3600, (int)seconds / 60 % 60, (int)seconds % 60);
    } else {
        snprintf(out, room, "%d:%02d", (int)seconds / 60, (int)seconds % 60);
    }
}

static size_t terminal_columns(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return DEFAULT_COLUMNS;
}

static void draw(di_progress *progress, int64_t now) {
    char line[256], done[24], total[24], rate[24], left[24];
    double seconds = (double)(now - progress->start_ns) / 1e9;
    double per_second = seconds > 0 ? (double)progress->done / seconds : 0;
    print_amount(done, sizeof done, (double)progress->done);
    print_amount(rate, sizeof rate, per_second);
    if (progress->total == 0) {
        snprintf(line, sizeof line, "%s  %s %s  %s/s", progress->label, done, progress->unit, rate);
    } else {
        double share = (double)progress->done / (double)progress->total;
        if (share > 1) share = 1;
        char bar[BAR_CELLS + 1];
        int filled = (int)(share * BAR_CELLS);
        for (int i = 0; i < BAR_CELLS; i++) bar[i] = i < filled ? '=' : ' ';
        bar[BAR_CELLS] = '\0';
        print_amount(total, sizeof total, (double)progress->total);
        snprintf(left, sizeof left, "?");
        if (per_second > 0 && progress->done <= progress->total) {
            print_time(left, sizeof left, (double)(progress->total - progress->done) / per_second);
        }
        snprintf(line, sizeof line, "%s [%s] %3d%%  %s/%s %s  %s/s  ETA %s", progress->label, bar, (int)(share * 100),
                 done, total, progress->unit, rate, left);
    }
    /* A line that wraps could not be cleared. */
    size_t columns = terminal_columns();
    fprintf(stderr, "\r%.*s\033[K", (int)(columns > 1 ? columns - 1 : 1), line);
    fflush(stderr);
    progress->drawn = true;
    progress->drawn_ns = now;
}

void di_progress_add(di_progress *progress, uint64_t done) {
    if (!progress) return;
    progress->done += done;
    int64_t now = di_now_ns();
    if (now - progress->drawn_ns >= REDRAW_NS) draw(progress, now);
}

void di_progress_end(di_progress *progress) {
    if (!progress) return;
    if (progress->drawn) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    free(progress);
}
