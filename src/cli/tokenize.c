/* tokenize.c - text to ids and back. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "engine/engine.h"

/* Ids of one text: {"id"?, "token_ids", "tokens"}; tokens are spelled as in the tokenizer's file. */
static void write_encoded(di_text *out, const di_tokenizer *tokenizer, const di_json *id, const di_ids *ids) {
    di_json_writer writer;
    di_cli_begin_result(&writer, out, id);
    di_json_key(&writer, "token_ids");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < ids->count; i++) di_json_integer(&writer, ids->data[i]);
    di_json_array_end(&writer);
    di_json_key(&writer, "tokens");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < ids->count; i++) di_json_string(&writer, di_tokenizer_spelling(tokenizer, ids->data[i]));
    di_json_array_end(&writer);
    di_json_object_end(&writer);
    di_text_putc(out, '\n');
}

static void write_decoded(di_text *out, const di_json *id, const di_text *text) {
    di_json_writer writer;
    di_cli_begin_result(&writer, out, id);
    di_json_key(&writer, "text");
    di_json_string_n(&writer, text->data ? text->data : "", text->length);
    di_json_object_end(&writer);
    di_text_putc(out, '\n');
}

static di_status encode(const di_cli *cli, const di_tokenizer *tokenizer, const char *text, size_t length, di_ids *ids,
                        di_error *error) {
    bool control = di_config_bool(cli->config, DI_OPT_CONTROL);
    di_status status = di_tokenizer_encode(tokenizer, text, length, control, ids, error);
    if (status == DI_OK && ids->failed) status = di_fail(error, DI_ERR_MEMORY, "text", "out of memory for token ids");
    return status;
}

static di_status convert_object(const di_cli *cli, const di_tokenizer *tokenizer, di_arena *arena,
                                const di_json *object, di_text *out, di_error *error) {
    bool decode = di_config_bool(cli->config, DI_OPT_DECODE);
    static const char *const encode_names[] = {"id", "text", NULL}, *const decode_names[] = {"id", "token_ids", NULL};
    di_status status = di_cli_check_members(object, decode ? decode_names : encode_names, error);
    if (status != DI_OK) return status;
    const di_json *id = di_json_get(object, "id"), *value = di_json_get(object, decode ? "token_ids" : "text");
    if (!value)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, decode ? "token_ids" : "text", "\"%s\" is missing",
                       decode ? "token_ids" : "text");
    if (decode) {
        int32_t *ids = NULL;
        size_t count = 0;
        di_text text = {0};
        status = di_cli_json_ids(arena, value, "token_ids", &ids, &count, error);
        if (status == DI_OK) status = di_tokenizer_decode(tokenizer, ids, count, false, &text, error);
        if (status == DI_OK) write_decoded(out, id, &text);
        di_text_free(&text);
        return status;
    }
    if (value->type != DI_JSON_STRING)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "text", "text must be a string, not %s",
                       di_json_type_name(value->type));
    di_ids ids = {0};
    status = encode(cli, tokenizer, value->text, value->length, &ids, error);
    if (status == DI_OK) write_encoded(out, tokenizer, id, &ids);
    di_ids_free(&ids);
    return status;
}

typedef struct conversion {
    di_cli *cli;
    const di_tokenizer *tokenizer;
} conversion;

static void convert_line(void *arg, di_arena *arena, const di_json *object, di_text *out, di_error *fault) {
    const conversion *c = arg;
    convert_object(c->cli, c->tokenizer, arena, object, out, fault);
}

/* One text from --prompt, --input or standard input: ids on one line, or with --decode ids to exactly their text. */
static di_status convert_text(di_cli *cli, const di_tokenizer *tokenizer, di_text *out, di_error *error) {
    bool json = di_config_bool(cli->config, DI_OPT_JSON);
    char *text = NULL;
    size_t length = 0, count = 0;
    int32_t *list = NULL;
    const char *given = di_config_text(cli->config, DI_OPT_TOKEN_IDS);
    bool ids_given = di_config_is_set(cli->config, DI_OPT_TOKEN_IDS);
    bool decode = di_config_bool(cli->config, DI_OPT_DECODE) || ids_given;
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
    di_status status = ids_given ? DI_OK : di_cli_read_text(cli, true, &text, &length, error);
    if (status == DI_OK && decode) {
        di_text decoded = {0};
        const char *source = text ? text : given;
        status = di_cli_parse_ids(arena, "token-ids", source, text ? length : strlen(given), &list, &count, error);
        if (status == DI_OK) status = di_tokenizer_decode(tokenizer, list, count, false, &decoded, error);
        if (status == DI_OK && json)
            write_decoded(out, NULL, &decoded);
        else if (status == DI_OK)
            di_text_append(out, decoded.data, decoded.length);
        di_text_free(&decoded);
    } else if (status == DI_OK) {
        di_ids ids = {0};
        status = encode(cli, tokenizer, text, length, &ids, error);
        if (status == DI_OK && json) write_encoded(out, tokenizer, NULL, &ids);
        for (size_t i = 0; status == DI_OK && !json && i < ids.count; i++)
            di_text_printf(out, "%s%d", i ? " " : "", ids.data[i]);
        if (status == DI_OK && !json) di_text_putc(out, '\n');
        di_ids_free(&ids);
    }
    free(text);
    di_arena_free(arena);
    return status;
}

static int run(di_cli *cli) {
    di_error error = {0};
    di_text path = {0}, out = {0};
    di_tokenizer *tokenizer = NULL;
    int code = DI_EXIT_OK;
    di_status status = di_cli_check_input(cli, &error);
    if (status == DI_OK) status = di_find_model(cli->config, cli->model, &path, &error);
    if (status == DI_OK) status = di_tokenizer_load(path.data, &tokenizer, &error);
    bool one = di_config_is_set(cli->config, DI_OPT_PROMPT) || di_config_is_set(cli->config, DI_OPT_TOKEN_IDS);
    if (status == DI_OK && di_config_bool(cli->config, DI_OPT_JSON) && !one) {
        conversion lines = {cli, tokenizer};
        code = di_cli_convert_lines(cli, convert_line, &lines);
    } else {
        if (status == DI_OK) status = convert_text(cli, tokenizer, &out, &error);
        if (status == DI_OK && out.failed) status = di_fail(&error, DI_ERR_MEMORY, NULL, "out of memory");
        if (status == DI_OK && out.length) status = di_cli_write(out.data, out.length, &error);
        if (status != DI_OK) code = di_cli_report(&error);
    }
    di_tokenizer_free(tokenizer);
    di_text_free(&path);
    di_text_free(&out);
    return code;
}

const di_command di_command_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids and back",
    .usage = "[MODEL] [options]",
    .text = "Turns --prompt, --input or standard input into ids, byte for byte, without BOS;\n"
            "with --decode ids into text. Text that spells a control token stays plain text\n"
            "unless --control is given. MODEL may be a folder with a tokenizer.json alone.",
    .example = "  deepinfer tokenize --prompt \"Hello there\"\n"
               "  echo '{\"text\": \"Hello\"}' | deepinfer tokenize --json\n",
    .groups = "json input tokenize",
    .run = run,
};
