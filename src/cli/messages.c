/* messages.c - what goes to a person on stderr, and results on stdout. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

int di_cli_report(const di_error *error) {
    fprintf(stderr, "deepinfer: %s\n", error->message);
    return error->status == DI_ERR_USAGE || error->status == DI_ERR_CONFIG ? DI_EXIT_USAGE : DI_EXIT_FAILED;
}

void di_cli_note(const di_cli *cli, const char *format, ...) {
    if (cli->quiet) return;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    size_t length = strlen(text);
    fprintf(stderr, "%s%s", text, length && text[length - 1] == '\n' ? "" : "\n");
}

const char *di_cli_size_text(uint64_t bytes, char out[32]) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1000 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
    return out;
}

di_status di_cli_write(const char *bytes, size_t length, di_error *error) {
    if (fwrite(bytes, 1, length, stdout) == length && fflush(stdout) == 0) return DI_OK;
    return di_fail_errno(error, DI_ERR_IO, NULL, errno, "cannot write to standard output");
}

void di_cli_error_line(di_text *out, const di_json *id, uint64_t line, const di_error *error) {
    di_json_writer writer;
    di_cli_begin_result(&writer, out, id);
    di_json_key(&writer, "line");
    di_json_unsigned(&writer, line);
    di_json_key(&writer, "error");
    di_json_object_begin(&writer);
    di_json_key(&writer, "code");
    di_json_string(&writer, di_status_name(error->status));
    di_json_key(&writer, "message");
    di_json_string(&writer, error->message);
    di_json_key(&writer, "param");
    if (error->param[0])
        di_json_string(&writer, error->param);
    else
        di_json_null(&writer);
    di_json_object_end(&writer);
    di_json_object_end(&writer);
    di_text_putc(out, '\n');
}

static double rate(uint64_t tokens, double ms) {
    return ms > 0 ? (double)tokens * 1000 / ms : 0;
}

void di_cli_footer(const di_cli *cli, const di_event *done) {
    const di_usage *usage = &done->usage;
    const di_timings *timings = &done->timings;
    double decode_ms = timings->total_ms - timings->queue_ms - timings->prefill_ms;
    /* The first token comes out of the prompt's last step. */
    uint64_t decoded = usage->completion_tokens ? usage->completion_tokens - 1 : 0;
    di_cli_note(cli, "[prompt %llu tokens, %.1f/s; answer %llu tokens, %.1f/s; first after %.0f ms; seed %llu]",
                (unsigned long long)usage->prompt_tokens, rate(usage->prompt_tokens, timings->prefill_ms),
                (unsigned long long)usage->completion_tokens, rate(decoded, decode_ms), timings->first_token_ms,
                (unsigned long long)done->seed);
}
