/* score.c - teacher-forced log-probabilities and perplexity. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sample.h"
#include "cli/cli.h"
#include "engine/engine.h"

/* Result of one text. */
typedef struct score_result {
    di_cli *cli;
    const int32_t *ids; /* [count] */
    size_t count;
    uint32_t vocabulary;
    float *logprobs; /* [count], [0] unused */
    int32_t *argmax; /* [count] */
    FILE *npy;       /* NULL = not wanted */
    bool interrupted;
    int write_error; /* errno of the first write that failed, 0 = none */
    uint64_t hash;
} score_result;

static bool take_row(void *arg, size_t row, const float *logits) {
    score_result *result = arg;
    if (di_cli_interrupted(result->cli)) result->interrupted = true;
    bool last = row + 1 == result->count;
    float logprob = 0;
    di_sample_logprobs(logits, result->vocabulary, last ? NULL : &result->ids[row + 1], last ? 0 : 1, &logprob,
                       &result->argmax[row]);
    if (!last) result->logprobs[row + 1] = logprob;
    if (result->npy && fwrite(logits, sizeof *logits, result->vocabulary, result->npy) != result->vocabulary)
        result->write_error = errno;
    return !result->interrupted && !result->write_error;
}

/* Header of a NumPy file, version 1.0: float32, C order, [rows][columns]. */
static bool write_npy_header(FILE *file, size_t rows, size_t columns) {
    char header[128];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    int used = snprintf(header + 10, sizeof header - 10,
                        "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, columns);
    header[10 + used] = ' ';
    header[sizeof header - 1] = '\n';
    return fwrite(header, 1, sizeof header, file) == sizeof header;
}

static di_status evaluate(di_cli *cli, di_engine *engine, di_arena *arena, const int32_t *ids, size_t count,
                          score_result *result, di_error *error) {
    const char *path = di_config_text(cli->config, DI_OPT_LOGITS);
    *result = (score_result){.cli = cli, .ids = ids, .count = count, .vocabulary = di_engine_info(engine)->vocabulary};
    result->logprobs = di_arena_array(arena, count + 1, sizeof *result->logprobs);
    result->argmax = di_arena_array(arena, count + 1, sizeof *result->argmax);
    if (!result->logprobs || !result->argmax) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for results");
    if (path[0]) {
        result->npy = fopen(path, "wbe");
        if (!result->npy) return di_fail_errno(error, DI_ERR_IO, "logits", errno, "cannot write %s", path);
        if (!write_npy_header(result->npy, count, result->vocabulary)) result->write_error = errno;
    }
    di_status status = di_score(engine, ids, count, take_row, result, &result->hash, error);
    if (result->npy && fclose(result->npy) != 0 && !result->write_error) result->write_error = errno;
    if (result->write_error)
        status = di_fail_errno(error, DI_ERR_IO, "logits", result->write_error, "cannot write %s", path);
    return status;
}

static double total_nll(const score_result *result) {
    double nll = 0;
    for (size_t i = 1; i < result->count; i++) nll -= (double)result->logprobs[i];
    return nll;
}

/* exp of the mean over the tokens that have a probability; NaN for a single token. */
static double perplexity(const score_result *result) {
    return result->count > 1 ? exp(total_nll(result) / (double)(result->count - 1)) : (double)NAN;
}

static void write_json(di_text *out, const di_json *id, const score_result *result) {
    di_json_writer writer;
    di_cli_begin_result(&writer, out, id);
    di_json_key(&writer, "tokens");
    di_json_unsigned(&writer, result->count);
    di_json_key(&writer, "nll");
    di_json_number(&writer, total_nll(result));
    di_json_key(&writer, "perplexity");
    di_json_number(&writer, perplexity(result));
    di_json_key(&writer, "token_logprobs");
    di_json_array_begin(&writer);
    di_json_null(&writer);
    for (size_t i = 1; i < result->count; i++) di_json_float(&writer, result->logprobs[i]);
    di_json_array_end(&writer);
    di_json_key(&writer, "argmax");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < result->count; i++) di_json_integer(&writer, result->argmax[i]);
    di_json_array_end(&writer);
    char hash[20];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)result->hash);
    di_json_key(&writer, "logits_hash");
    di_json_string(&writer, hash);
    di_json_object_end(&writer);
    di_text_putc(out, '\n');
}

static di_status score_ids(di_cli *cli, di_engine *engine, di_arena *arena, const di_json *id, const int32_t *ids,
                           size_t count, bool json, di_text *out, di_error *error) {
    score_result result;
    di_status status = evaluate(cli, engine, arena, ids, count, &result, error);
    if (status != DI_OK) return status;
    if (json) {
        write_json(out, id, &result);
    } else {
        di_text_printf(out, "tokens %zu\nnll %.9g\nperplexity %.9g\nlogits_hash %016llx\n", count, total_nll(&result),
                       perplexity(&result), (unsigned long long)result.hash);
    }
    return DI_OK;
}

/* BOS, then the plain text. */
static di_status score_text(di_cli *cli, di_engine *engine, di_arena *arena, const di_json *id, const char *text,
                            size_t length, bool json, di_text *out, di_error *error) {
    uint32_t bos = di_engine_info(engine)->bos_token_id;
    int64_t limit = di_config_int(cli->config, DI_OPT_LIMIT_PROMPT_BYTES);
    if (length > (uint64_t)limit)
        return di_fail(error, DI_ERR_LIMIT, "prompt",
                       "the prompt has more than %lld bytes; --limit-prompt-bytes sets this", (long long)limit);
    if (!di_engine_tokenizer(engine))
        return di_fail(error, DI_ERR_UNSUPPORTED, "prompt", "the model has no tokenizer; only token ids can go in");
    di_ids ids = {0};
    if (bos != UINT32_MAX) di_ids_append(&ids, (int32_t)bos);
    di_status status = di_tokenizer_encode(di_engine_tokenizer(engine), text, length, false, &ids, error);
    if (status == DI_OK && ids.failed) status = di_fail(error, DI_ERR_MEMORY, "prompt", "out of memory for token ids");
    if (status == DI_OK) status = score_ids(cli, engine, arena, id, ids.data, ids.count, json, out, error);
    di_ids_free(&ids);
    return status;
}

static di_status score_object(di_cli *cli, di_engine *engine, di_arena *arena, const di_json *object, di_text *out,
                              di_error *error) {
    static const char *const names[] = {"id", "prompt", "token_ids", NULL};
    di_status status = di_cli_check_members(object, names, error);
    if (status != DI_OK) return status;
    const di_json *id = di_json_get(object, "id"), *prompt = di_json_get(object, "prompt"),
                  *list = di_json_get(object, "token_ids");
    if (!prompt == !list)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prompt", "give either \"prompt\" or \"token_ids\"");
    if (prompt && prompt->type != DI_JSON_STRING)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prompt", "prompt must be a string, not %s",
                       di_json_type_name(prompt->type));
    if (prompt) return score_text(cli, engine, arena, id, prompt->text, prompt->length, true, out, error);
    int32_t *ids = NULL;
    size_t count = 0;
    status = di_cli_json_ids(arena, list, "token_ids", &ids, &count, error);
    return status == DI_OK ? score_ids(cli, engine, arena, id, ids, count, true, out, error) : status;
}

typedef struct scoring {
    di_cli *cli;
    di_engine *engine;
    uint64_t inputs; /* so far */
} scoring;

static void score_line(void *arg, di_arena *arena, const di_json *object, di_text *out, di_error *fault) {
    scoring *s = arg;
    if (s->inputs++ && di_config_is_set(s->cli->config, DI_OPT_LOGITS))
        di_fail(fault, DI_ERR_USAGE, "logits", "--logits takes one input only");
    else
        score_object(s->cli, s->engine, arena, object, out, fault);
}

static int score_one(di_cli *cli, di_engine *engine, di_arena *arena) {
    di_error error = {0};
    di_text out = {0};
    bool json = di_config_bool(cli->config, DI_OPT_JSON);
    const char *given = di_config_text(cli->config, DI_OPT_TOKEN_IDS);
    di_status status;
    if (di_config_is_set(cli->config, DI_OPT_TOKEN_IDS)) {
        int32_t *ids = NULL;
        size_t count = 0;
        status = di_cli_parse_ids(arena, "token-ids", given, strlen(given), &ids, &count, &error);
        if (status == DI_OK) status = score_ids(cli, engine, arena, NULL, ids, count, json, &out, &error);
    } else {
        char *text = NULL;
        size_t length = 0;
        status = di_cli_read_text(cli, false, &text, &length, &error);
        if (status == DI_OK) status = score_text(cli, engine, arena, NULL, text, length, json, &out, &error);
        free(text);
    }
    if (status == DI_OK && out.failed) status = di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = di_cli_write(out.data, out.length, &error);
    di_text_free(&out);
    if (status == DI_ERR_CANCELLED) return DI_EXIT_INTERRUPTED;
    return status == DI_OK ? DI_EXIT_OK : di_cli_report(&error);
}

static int run(di_cli *cli) {
    di_error error = {0};
    di_engine *engine = NULL;
    di_arena *arena = di_arena_new(0);
    di_status status = arena ? DI_OK : di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = di_cli_check_input(cli, &error);
    /* Nothing is drafted here, so the memory of the draft head is saved, whatever was asked for. */
    if (status == DI_OK) status = di_config_set(cli->config, "spec", "off", DI_CONFIG_FLAG, &error);
    if (status == DI_OK) status = di_cli_open_engine(cli, &engine, &error);
    if (status == DI_OK) status = di_cli_catch_interrupts(cli, &error);
    int code;
    scoring lines = {.cli = cli, .engine = engine};
    bool one = di_config_is_set(cli->config, DI_OPT_PROMPT) || di_config_is_set(cli->config, DI_OPT_TOKEN_IDS);
    if (status != DI_OK)
        code = di_cli_report(&error);
    else if (di_config_bool(cli->config, DI_OPT_JSON) && !one)
        code = di_cli_convert_lines(cli, score_line, &lines);
    else
        code = score_one(cli, engine, arena);
    di_close(engine);
    di_arena_free(arena);
    return code;
}

const di_command di_command_score = {
    .name = "score",
    .summary = "log-probabilities and perplexity of given text",
    .usage = "[MODEL] [options]",
    .text = "Evaluates --prompt, --input or standard input (BOS is put before it), or\n"
            "--token-ids as they are: sum of negative log-probabilities, perplexity, hash of\n"
            "all logits. Always runs the whole model (--prefill off).",
    .example = "  deepinfer score --prompt \"The table is booked.\"\n"
               "  deepinfer score --json --input texts.jsonl > scores.jsonl\n",
    .groups = "json input score",
    .run = run,
};
