/* generate.c - completes one prompt, or JSON lines of them with many in flight. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/progress.h"
#include "cli/cli.h"
#include "cli/job.h"
#include "engine/engine.h"

enum { WAIT_MS = 20, INTERRUPT_MS = 100 };

/* ---------------------------------------------------------------- results: stdout, or a file that is appended to */

typedef struct results {
    FILE *file;       /* NULL: stdout */
    const char *path; /* of the file; borrowed */
    char **known;     /* [known_count] ids that the file holds, as JSON text, sorted */
    size_t known_count, known_capacity;
} results;

static int compare_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* JSON text of an id: equal for equal ids. */
static char *id_text(const di_json *id) {
    di_text text = {0};
    di_json_writer writer;
    di_json_begin(&writer, &text);
    di_json_value(&writer, id);
    if (text.failed) di_text_free(&text);
    return text.data;
}

static bool is_known(const results *out, const di_json *id) {
    char *text = id && out->known_count ? id_text(id) : NULL;
    bool found = text && bsearch(&text, out->known, out->known_count, sizeof *out->known, compare_text);
    free(text);
    return found;
}

static bool remember(results *out, const di_json *id) {
    if (out->known_count == out->known_capacity) {
        size_t capacity = out->known_capacity * 2 + 64;
        char **known = realloc(out->known, capacity * sizeof *known);
        if (!known) return false;
        out->known = known;
        out->known_capacity = capacity;
    }
    char *text = id_text(id);
    if (text) out->known[out->known_count++] = text;
    return text != NULL;
}

/* Ids of the results in the file, and where its last complete line ends: a run that was killed may have left half a
 * line. Errors are not results: those lines are tried again. */
static di_status read_results(results *out, FILE *file, const char *path, off_t *end, di_error *error) {
    di_arena *arena = di_arena_new(0);
    char *line = NULL;
    size_t capacity = 0;
    di_status status = arena ? DI_OK : di_fail(error, DI_ERR_MEMORY, "output", "out of memory");
    *end = 0;
    for (ssize_t length; status == DI_OK && (length = getline(&line, &capacity, file)) > 0;) {
        if (line[length - 1] != '\n') break;
        const di_json *object = NULL;
        di_arena_reset(arena);
        *end += length;
        if (di_json_parse(arena, line, (size_t)length, 0, &object, NULL) != DI_OK) continue;
        const di_json *id = di_json_get(object, "id");
        if (id && di_json_get(object, "choices") && !remember(out, id))
            status = di_fail(error, DI_ERR_MEMORY, "output", "out of memory for the ids in %s", path);
    }
    if (status == DI_OK && ferror(file))
        status = di_fail_errno(error, DI_ERR_IO, "output", errno, "cannot read %s", path);
    if (out->known_count) qsort(out->known, out->known_count, sizeof *out->known, compare_text);
    free(line);
    di_arena_free(arena);
    return status;
}

static di_status results_open(results *out, const di_cli *cli, bool resume, di_error *error) {
    const char *path = di_config_text(cli->config, DI_OPT_OUTPUT);
    memset(out, 0, sizeof *out);
    out->path = path;
    if (!path[0]) return DI_OK;
    out->file = fopen(path, "a+e");
    if (!out->file) return di_fail_errno(error, DI_ERR_IO, "output", errno, "cannot open %s", path);
    struct stat info;
    off_t end = 0;
    if (!resume || fstat(fileno(out->file), &info) != 0 || !S_ISREG(info.st_mode)) return DI_OK;
    rewind(out->file);
    di_status status = read_results(out, out->file, path, &end, error);
    if (status != DI_OK || end == info.st_size) return status;
    di_cli_note(cli, "%s ended inside a line; that line is dropped", path);
    if (ftruncate(fileno(out->file), end) != 0)
        return di_fail_errno(error, DI_ERR_IO, "output", errno, "cannot shorten %s", path);
    return DI_OK;
}

static di_status results_write(results *out, const char *bytes, size_t length, di_error *error) {
    if (!out->file) return di_cli_write(bytes, length, error);
    if (fwrite(bytes, 1, length, out->file) == length && fflush(out->file) == 0) return DI_OK;
    return di_fail_errno(error, DI_ERR_IO, "output", errno, "cannot write %s", out->path);
}

static di_status results_close(results *out, di_error *error) {
    for (size_t i = 0; i < out->known_count; i++) free(out->known[i]);
    free(out->known);
    if (out->file && fclose(out->file) != 0)
        return di_fail_errno(error, DI_ERR_IO, "output", errno, "cannot write %s", out->path);
    return DI_OK;
}

/* ---------------------------------------------------------------- JSON lines */

typedef struct batch {
    di_cli *cli;
    di_engine *engine;
    di_cli_lines *lines; /* NULL: one job from the flags */
    results out;
    di_job *first, **end; /* in order of input */
    uint32_t in_flight, concurrency;
    bool ended, failed, interrupted, unordered;
    uint64_t skipped;
    di_progress *progress;
    di_text text;
} batch;

static void append(batch *b, di_job *job) {
    *b->end = job;
    b->end = &job->next;
    b->in_flight++;
}

/* Starts a job for what was read. */
static void start(batch *b, di_cli_line got, const char *text, size_t length, const di_error *fault, di_error *error) {
    di_job *job = di_job_new(di_cli_lines_number(b->lines));
    if (!job) {
        di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a line of input");
        return;
    }
    if (got == DI_LINE_OK) {
        di_job_parse(job, b->cli, text, length);
    } else {
        job->fault = *fault;
        job->done = true;
    }
    if (is_known(&b->out, job->id)) {
        b->skipped++;
        di_progress_add(b->progress, 1);
        di_job_free(job);
        return;
    }
    append(b, job);
}

/* Reads as long as there is room in flight and input at hand; waits for input only when nothing else is to do. */
static void read_more(batch *b, di_error *error) {
    while (!b->ended && b->in_flight < b->concurrency && error->status == DI_OK) {
        const char *text = NULL;
        size_t length = 0;
        di_error fault = {0};
        di_cli_line got = di_cli_lines_next(b->lines, b->in_flight ? 0 : -1, &text, &length, &fault);
        if (got == DI_LINE_NONE) return;
        if (got == DI_LINE_ERROR) *error = fault;
        b->interrupted |= got == DI_LINE_INTERRUPTED;
        if (got != DI_LINE_OK && got != DI_LINE_TOO_LONG)
            b->ended = true;
        else if (got == DI_LINE_TOO_LONG || !di_cli_blank(text, length))
            start(b, got, text, length, &fault, error);
    }
}

/* Takes the job's events; waits for the first of them. True if the job is done. */
static bool advance(batch *b, di_job *job, int wait_ms) {
    if (!job->request && !job->done) di_job_submit(job, b->cli, b->engine);
    di_event event;
    while (!job->done && job->request && di_request_next(job->request, wait_ms, &event)) {
        di_job_take(job, &event);
        wait_ms = 0;
    }
    return job->done;
}

static void finish(batch *b, di_job **at, di_error *error) {
    di_job *job = *at;
    b->failed |= job->fault.status != DI_OK;
    di_text_clear(&b->text);
    di_job_write(job, b->engine, &b->text);
    if (b->text.failed)
        di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a line of output");
    else
        results_write(&b->out, b->text.data, b->text.length, error);
    *at = job->next;
    if (!*at) b->end = at;
    b->in_flight--;
    di_progress_add(b->progress, 1);
    di_job_free(job);
}

/* One round: everything in flight is submitted, what is done is written. */
static void turn(batch *b, di_error *error) {
    for (di_job *job = b->first; job; job = job->next)
        if (!job->request && !job->done && di_job_submit(job, b->cli, b->engine) == DI_ERR_QUEUE_FULL) break;
    bool wrote = false;
    for (di_job **at = &b->first; *at && error->status == DI_OK;) {
        if (advance(b, *at, 0)) {
            finish(b, at, error);
            wrote = true;
        } else if (b->unordered) {
            at = &(*at)->next;
        } else {
            break;
        }
    }
    if (!wrote && b->first) advance(b, b->first, WAIT_MS);
    b->interrupted |= di_cli_interrupted(b->cli);
}

static int generate_lines(di_cli *cli, di_engine *engine) {
    di_error error = {0};
    bool one = di_config_is_set(cli->config, DI_OPT_PROMPT) || di_config_is_set(cli->config, DI_OPT_TOKEN_IDS);
    batch b = {.cli = cli, .engine = engine, .ended = one};
    b.end = &b.first;
    b.unordered = di_config_bool(cli->config, DI_OPT_UNORDERED);
    uint32_t queue = di_engine_queue_limit(engine), sequences = di_engine_max_sequences(engine);
    b.concurrency = (uint32_t)di_config_int(cli->config, DI_OPT_CONCURRENCY);
    if (!b.concurrency) b.concurrency = sequences < queue ? sequences : queue;
    if (!one) di_cli_lines_open(cli, &b.lines, &error); /* first: it may turn out to be the output */
    if (error.status == DI_OK) results_open(&b.out, cli, true, &error);
    if (error.status == DI_OK && one) {
        di_job *job = di_job_new(1);
        if (!job)
            di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
        else
            di_job_parse_flags(job, cli);
        if (job) append(&b, job);
    }
    if (b.lines) b.progress = di_progress_new("generate", "prompts", di_cli_lines_total(b.lines), cli->quiet);
    while (error.status == DI_OK && !b.interrupted) {
        if (b.lines) read_more(&b, &error);
        if (!b.first && b.ended) break;
        if (error.status == DI_OK && !b.interrupted) turn(&b, &error);
    }
    while (b.first) {
        di_job *job = b.first;
        b.first = job->next;
        di_job_free(job);
    }
    di_progress_end(b.progress);
    if (b.lines && error.status == DI_OK && !b.interrupted) di_cli_lines_note_empty(b.lines);
    if (b.skipped)
        di_cli_note(cli, "%llu prompts were skipped: %s holds their results", (unsigned long long)b.skipped,
                    di_config_text(cli->config, DI_OPT_OUTPUT));
    di_cli_lines_close(b.lines);
    di_text_free(&b.text);
    results_close(&b.out, error.status == DI_OK ? &error : NULL);
    if (error.status != DI_OK) return di_cli_report(&error);
    return b.interrupted ? DI_EXIT_INTERRUPTED : b.failed ? DI_EXIT_FAILED : DI_EXIT_OK;
}

/* ---------------------------------------------------------------- one prompt, text out */

/* Streams the answer. *interrupted = it was stopped by a signal. */
static di_status stream(di_cli *cli, di_request *request, results *out, di_event *last, bool *interrupted,
                        di_error *error) {
    di_status status = DI_OK;
    for (;;) {
        if (di_cli_interrupted(cli)) {
            *interrupted = true;
            di_request_cancel(request);
        }
        di_event event;
        if (!di_request_next(request, INTERRUPT_MS, &event)) continue;
        if (event.text_length && status == DI_OK) status = results_write(out, event.text, event.text_length, error);
        if (status != DI_OK) di_request_cancel(request);
        if (event.kind == DI_EVENT_FINISH && event.has_logits_hash)
            di_cli_note(cli, "[logits_hash %016llx]", (unsigned long long)event.logits_hash);
        if (event.kind != DI_EVENT_DONE) continue;
        *last = event;
        if (status == DI_OK && event.status != DI_OK) {
            status = event.status;
            *error = event.error;
        }
        return status;
    }
}

/* --token-ids, or the text prompt, which stays in *text. */
static di_status read_prompt(di_cli *cli, const di_engine *engine, di_arena *arena, char **text,
                             di_request_params *params, di_error *error) {
    const char *given = di_config_text(cli->config, DI_OPT_TOKEN_IDS);
    if (di_config_is_set(cli->config, DI_OPT_TOKEN_IDS)) {
        int32_t *ids = NULL;
        di_segment *segment = di_arena_zalloc(arena, sizeof *segment);
        if (!segment) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the prompt");
        di_status status =
            di_cli_parse_ids(arena, "token-ids", given, strlen(given), &ids, &segment->token_count, error);
        segment->token_ids = ids;
        params->segments = segment;
        params->segment_count = 1;
        return status;
    }
    size_t length = 0;
    di_status status = di_cli_read_text(cli, false, text, &length, error);
    if (status != DI_OK) return status;
    return di_cli_prompt_segments(engine, arena, *text, length, &params->segments, &params->segment_count, error);
}

static int generate_text(di_cli *cli, di_engine *engine) {
    di_error error = {0};
    results out = {0};
    char *text = NULL;
    di_request_params params;
    di_request *request = NULL;
    di_event last = {0};
    bool interrupted = false;
    di_request_params_default(&params);
    di_arena *arena = di_arena_new(0);
    di_status status = arena ? DI_OK : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = di_cli_sampling(cli, engine, arena, &params.sampling, &error);
    if (status == DI_OK) status = read_prompt(cli, engine, arena, &text, &params, &error);
    if (status == DI_OK) status = results_open(&out, cli, false, &error);
    if (status == DI_OK) status = di_submit(engine, &params, &request, &error);
    if (status == DI_OK) status = stream(cli, request, &out, &last, &interrupted, &error);
    if (request) results_write(&out, "\n", 1, status == DI_OK ? &error : NULL);
    if (request && last.kind == DI_EVENT_DONE) di_cli_footer(cli, &last);
    results_close(&out, status == DI_OK ? &error : NULL);
    di_request_free(request);
    free(text);
    di_arena_free(arena);
    if (interrupted || status == DI_ERR_CANCELLED) return DI_EXIT_INTERRUPTED;
    return error.status == DI_OK ? DI_EXIT_OK : di_cli_report(&error);
}

static int run(di_cli *cli) {
    di_error error = {0};
    di_engine *engine = NULL;
    bool json = di_config_bool(cli->config, DI_OPT_JSON);
    di_status status = di_cli_check_input(cli, &error);
    if (status == DI_OK && !json) status = di_cli_refuse(cli, DI_OPT_LOGPROBS, "needs --json to be shown", &error);
    if (status == DI_OK) status = di_cli_open_engine(cli, &engine, &error);
    if (status == DI_OK) status = di_cli_catch_interrupts(cli, &error);
    int code;
    if (status != DI_OK)
        code = di_cli_report(&error);
    else if (di_config_bool(cli->config, DI_OPT_JSON))
        code = generate_lines(cli, engine);
    else
        code = generate_text(cli, engine);
    di_close(engine);
    return code;
}

const di_command di_command_generate = {
    .name = "generate",
    .summary = "completes prompts, one or a file of them",
    .usage = "[MODEL] [options]",
    .text = "Continues --prompt, --input or standard input, or --token-ids as they are. With\n"
            "--json every line is a request. --output skips ids that the file holds already.",
    .example = "  deepinfer generate --prompt \"I would like\" --temperature 0 --max-tokens 20\n"
               "  deepinfer generate --json --input prompts.jsonl --output results.jsonl\n",
    .groups = "json input generate sampling",
    .run = run,
};
