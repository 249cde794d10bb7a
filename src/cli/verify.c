/* verify.c - proves the determinism contract on this machine with this model. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/progress.h"
#include "cli/cli.h"
#include "engine/matrix.h"

/* Without --tokens: cases that would start later than this are skipped. */
enum { LIMIT_MS = 100000 };

typedef struct verification {
    di_cli *cli;
    bool json;
    di_progress *progress;
    uint64_t shown, tokens, failed, skipped;
    di_text out;
    di_error error; /* first failure to write */
} verification;

static void write_out(verification *v) {
    if (v->error.status != DI_OK) return;
    if (v->out.failed)
        di_fail(&v->error, DI_ERR_MEMORY, NULL, "out of memory for a line of output");
    else
        di_cli_write(v->out.data, v->out.length, &v->error);
    di_text_clear(&v->out);
}

static bool stop(void *arg) {
    verification *v = arg;
    return v->error.status != DI_OK || di_cli_interrupted(v->cli);
}

static void show_progress(void *arg, const char *row, const char *name, uint64_t tokens, uint64_t total) {
    verification *v = arg;
    (void)row;
    (void)name;
    if (!v->progress) v->progress = di_progress_new("verify", "tokens", total, v->cli->quiet);
    di_progress_add(v->progress, tokens - v->shown);
    v->shown = tokens;
}

static void hide_progress(verification *v) {
    di_progress_end(v->progress);
    v->progress = NULL;
    v->shown = 0;
}

static void write_json(verification *v, const di_matrix_result *r) {
    di_json_writer w;
    di_json_begin(&w, &v->out);
    di_json_object_begin(&w);
    di_json_key(&w, "row");
    di_json_string(&w, r->row);
    if (r->name[0]) {
        di_json_key(&w, "case");
        di_json_string(&w, r->name);
    }
    if (r->skipped) {
        di_json_key(&w, "skipped");
        di_json_string(&w, r->skipped);
    } else {
        di_json_key(&w, "tokens");
        di_json_unsigned(&w, r->tokens);
        di_json_key(&w, "differing_bytes");
        di_json_unsigned(&w, r->differing_bytes);
    }
    if (r->first_difference) {
        di_json_key(&w, "first_difference");
        di_json_string(&w, r->first_difference);
    }
    di_json_object_end(&w);
    di_text_putc(&v->out, '\n');
}

static void write_line(verification *v, const di_matrix_result *r) {
    di_text_printf(&v->out, "%-4s %-56s ", r->row, r->name);
    if (r->differing_bytes)
        di_text_printf(&v->out, "%8llu  DIFFERS in %llu bytes\n     %s\n", (unsigned long long)r->tokens,
                       (unsigned long long)r->differing_bytes, r->first_difference);
    else if (r->skipped)
        di_text_printf(&v->out, "       -  skipped: %s\n", r->skipped);
    else
        di_text_printf(&v->out, "%8llu  equal\n", (unsigned long long)r->tokens);
}

static void report(void *arg, const di_matrix_result *result) {
    verification *v = arg;
    hide_progress(v);
    v->tokens += result->tokens;
    v->failed += result->differing_bytes > 0;
    v->skipped += result->skipped != NULL;
    if (v->json)
        write_json(v, result);
    else
        write_line(v, result);
    write_out(v);
}

static void write_end(verification *v, bool passed, int64_t elapsed_ns) {
    if (v->json)
        di_text_printf(&v->out, "{\"passed\":%s}\n", passed ? "true" : "false");
    else
        di_text_printf(&v->out, "%s: %llu tokens compared in %.0f s, %llu cases differ, %llu skipped\n",
                       passed ? "passed" : "FAILED", (unsigned long long)v->tokens, (double)elapsed_ns / 1e9,
                       (unsigned long long)v->failed, (unsigned long long)v->skipped);
    write_out(v);
}

/* The options of the command line, for every engine of the matrix; file and environment are read by each of them. */
static size_t given_options(const di_config *config, di_option *options) {
    const di_config_row *rows = di_config_rows();
    size_t count = 0;
    for (size_t i = 0; i < DI_OPT_COUNT; i++) {
        bool engine = strcmp(rows[i].group, "common") == 0 || strcmp(rows[i].group, "limits") == 0;
        if (engine && i != DI_OPT_MODEL && di_config_source_of(config, (di_config_id)i) == DI_CONFIG_FLAG)
            options[count++] = (di_option){rows[i].name, di_config_text(config, (di_config_id)i)};
    }
    return count;
}

static int run(di_cli *cli) {
    di_error error = {0};
    verification v = {.cli = cli, .json = di_config_bool(cli->config, DI_OPT_JSON)};
    di_option options[DI_OPT_COUNT];
    const char *model = cli->model ? cli->model : di_config_text(cli->config, DI_OPT_MODEL);
    const char *folder = di_config_text(cli->config, DI_OPT_CACHE_DIR);
    di_matrix_options matrix = {
        .model = model[0] ? model : NULL,
        .options = options,
        .option_count = given_options(cli->config, options),
        .tokens = (uint64_t)di_config_int(cli->config, DI_OPT_TOKENS),
        .limit_ms = LIMIT_MS,
        .folder = folder[0] ? folder : NULL,
        .rows = di_config_text(cli->config, DI_OPT_ROWS),
        .plant_fault = di_config_bool(cli->config, DI_OPT_PLANT_FAULT),
        .arg = &v,
        .stop = stop,
        .progress = show_progress,
        .report = report,
    };
    bool passed = false;
    int64_t start = di_now_ns();
    di_status status = di_cli_catch_interrupts(cli, &error);
    if (status == DI_OK) status = di_matrix_run(&matrix, &passed, &error);
    hide_progress(&v);
    if (status == DI_OK) write_end(&v, passed, di_now_ns() - start);
    di_text_free(&v.out);
    if (v.error.status != DI_OK) return di_cli_report(&v.error);
    if (status == DI_ERR_CANCELLED) {
        di_cli_note(cli, "verify: interrupted; %llu tokens compared so far, %llu cases differ",
                    (unsigned long long)v.tokens, (unsigned long long)v.failed);
        return DI_EXIT_INTERRUPTED;
    }
    if (status != DI_OK) {
        int code = di_cli_report(&error);
        return strcmp(error.param, "rows") == 0 ? DI_EXIT_USAGE : code;
    }
    return passed ? DI_EXIT_OK : DI_EXIT_FAILED;
}

const di_command di_command_verify = {
    .name = "verify",
    .summary = "proves on this machine that nothing but the tokens changes a bit",
    .usage = "[MODEL] [options]",
    .text = "Runs made-up requests alone and then in every way that may not matter: in\n"
            "crowds, in chunks, from the cache, preempted, with other threads and instruction\n"
            "sets; compares every row of logits by bytes. At most two minutes; with --tokens\n"
            "as long as it takes. Exit code 1 if a byte differs.",
    .example = "  deepinfer verify\n"
               "  deepinfer verify /models/mine --rows T1,T5 --tokens 100000 --json\n",
    .groups = "verify json",
    .run = run,
};
