/* grammar.c - walks texts through the masks of a schema, an expression or a grammar, as generation would. */
#include "grammar/grammar.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli.h"
#include "engine/engine.h"

enum { SHOWN_TOKENS = 24 };

typedef struct checker {
    di_cli *cli;
    di_tokenizer *tokenizer;
    di_vocabulary *vocabulary;
    uint64_t *mask; /* [words] */
    bool list;      /* `mask`: every allowed id */
} checker;

typedef struct verdict {
    bool compiled, accepted, complete;
    di_grammar_fault fault;
    size_t stopped_at; /* byte of the text, if not accepted */
    size_t tokens, masks;
    double compile_us, mask_us, mask_us_max;
    uint32_t allowed; /* tokens in checker.mask */
} verdict;

/* CPU time of this thread in microseconds: what a mask costs whatever else the machine does. */
static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static di_status timed_mask(checker *c, di_matcher *matcher, di_grammar_state state, verdict *v, di_error *error) {
    double start = cpu_us();
    di_status status = di_matcher_mask(matcher, state, c->mask, error);
    double took = cpu_us() - start;
    v->masks++;
    v->mask_us += took;
    if (took > v->mask_us_max) v->mask_us_max = took;
    return status;
}

static bool allowed(const checker *c, uint32_t token) {
    return c->mask[token / 64] >> token % 64 & 1;
}

/* Goes on byte by byte inside a token that is not allowed; leaves the state before the byte that stops. */
static di_status find_byte(checker *c, di_matcher *matcher, di_grammar_state state, const char *text, size_t length,
                           size_t at, verdict *v, di_error *error) {
    di_status status = DI_OK;
    di_grammar_state next;
    for (; at < length; at++, state = next) {
        status = di_matcher_advance_bytes(matcher, state, (const uint8_t *)text + at, 1, &next, error);
        if (status != DI_OK || next == DI_GRAMMAR_REJECT) break;
    }
    v->stopped_at = at;
    return status == DI_OK ? di_matcher_mask(matcher, state, c->mask, error) : status;
}

static di_status walk(checker *c, di_matcher *matcher, const char *text, size_t length, const di_ids *ids, verdict *v,
                      di_error *error) {
    di_grammar_state state = di_matcher_start(matcher), next;
    size_t at = 0;
    for (size_t i = 0;; i++) {
        di_status status = timed_mask(c, matcher, state, v, error);
        if (status != DI_OK) return status;
        if (i == ids->count) break;
        uint32_t token = (uint32_t)ids->data[i];
        status = di_matcher_advance(matcher, state, token, &next, error);
        if (status != DI_OK) return status;
        if (allowed(c, token) != (next != DI_GRAMMAR_REJECT))
            return di_fail(error, DI_ERR_INTERNAL, "text", "mask and matcher disagree about token %u", token);
        if (next == DI_GRAMMAR_REJECT) return find_byte(c, matcher, state, text, length, at, v, error);
        size_t bytes = 0;
        di_tokenizer_bytes(c->tokenizer, ids->data[i], &bytes);
        at += bytes;
        state = next;
        v->tokens++;
    }
    v->accepted = true;
    return di_matcher_complete(matcher, state, &v->complete, error);
}

static di_status check(checker *c, const di_grammar_source *source, const char *text, size_t length, verdict *v,
                       di_error *error) {
    di_grammar *grammar = NULL;
    di_matcher *matcher = NULL;
    di_ids ids = {0};
    *v = (verdict){0};
    di_grammar_limits limits;
    di_grammar_limits_configured(c->cli->config, &limits);
    double start = cpu_us();
    di_status status = di_grammar_compile(source, &limits, &grammar, &v->fault, error);
    if (status == DI_OK) status = di_matcher_new(grammar, c->vocabulary, &matcher, error);
    v->compile_us = cpu_us() - start;
    v->compiled = status == DI_OK;
    if (status == DI_OK) status = di_tokenizer_encode(c->tokenizer, text, length, false, &ids, error);
    if (status == DI_OK && ids.failed) status = di_fail(error, DI_ERR_MEMORY, "text", "out of memory for token ids");
    if (status == DI_OK) status = walk(c, matcher, text, length, &ids, v, error);
    if (status == DI_OK)
        for (size_t i = 0; i < di_vocabulary_words(c->vocabulary); i++)
            v->allowed += (uint32_t)__builtin_popcountll(c->mask[i]);
    if (!v->compiled && v->fault.reason != DI_REASON_NONE) { /* a refusal is a result */
        di_error_clear(error);
        status = DI_OK;
    }
    di_ids_free(&ids);
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    return status;
}

/* ----------------------------------------------------------------------------------------------------------- source */

static bool choice(const char *value, const char *const *names, const char *param, int *out, di_error *error) {
    for (int i = 0; names[i]; i++)
        if (strcmp(value, names[i]) == 0) return *out = i, true;
    di_text list = {0};
    for (int i = 0; names[i]; i++) di_text_printf(&list, "%s%s", i ? ", " : "", names[i]);
    di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s must be one of %s, not \"%.40s\"", param,
            list.data ? list.data : "", value);
    di_text_free(&list);
    return false;
}

typedef struct options { /* as text, "" = default */
    const char *dialect, *order, *profile, *whitespace;
} options;

static di_status set_options(di_grammar_source *source, const options *o, bool ebnf, di_error *error) {
    static const char *const dialects[] = {"gbnf", "lark", "w3c", "iso", NULL}, *const orders[] = {"schema", "any",
                                                                                                   NULL};
    static const char *const profiles[] = {"full", "openai", NULL}, *const spaces[] = {"flexible", "compact", NULL};
    int dialect = 0, order = 0, profile = 0, whitespace = 0;
    bool ok = (!o->dialect[0] || choice(o->dialect, dialects, "dialect", &dialect, error)) &&
              (!o->order[0] || choice(o->order, orders, "order", &order, error)) &&
              (!o->profile[0] || choice(o->profile, profiles, "profile", &profile, error)) &&
              (!o->whitespace[0] || choice(o->whitespace, spaces, "whitespace", &whitespace, error));
    if (!ok) return DI_ERR_INVALID_ARGUMENT;
    if (ebnf) source->kind = (di_grammar_kind)(DI_GRAMMAR_GBNF + dialect);
    source->order = order ? DI_ORDER_ANY : DI_ORDER_SCHEMA;
    source->profile = profile ? DI_PROFILE_OPENAI : DI_PROFILE_FULL;
    source->whitespace = whitespace ? DI_WHITESPACE_COMPACT : DI_WHITESPACE_FLEXIBLE;
    return DI_OK;
}

static di_status text_member(const di_json *object, const char *name, const char **out, di_error *error) {
    const di_json *value = di_json_get(object, name);
    *out = "";
    if (value && value->type != DI_JSON_STRING)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, name, "%s must be a string, not %s", name,
                       di_json_type_name(value->type));
    if (value) *out = value->text;
    return DI_OK;
}

/* The source of a JSON line; `schema` receives the text of an inline schema. */
static di_status read_source(const di_json *object, di_grammar_source *source, di_text *schema, di_error *error) {
    static const char *const names[] = {"json_schema", "regex", "ebnf"};
    static const di_grammar_kind kinds[] = {DI_GRAMMAR_JSON_SCHEMA, DI_GRAMMAR_REGEX, DI_GRAMMAR_GBNF};
    int given = -1;
    *source = (di_grammar_source){0};
    for (int i = 0; i < 3; i++) {
        if (!di_json_get(object, names[i])) continue;
        if (given >= 0)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, names[i], "%s and %s cannot both be given", names[given],
                           names[i]);
        given = i;
    }
    if (given < 0)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "json_schema", "one of json_schema, regex and ebnf is missing");
    const di_json *value = di_json_get(object, names[given]);
    source->kind = kinds[given];
    if (value->type == DI_JSON_STRING) {
        source->text = value->text;
        source->length = value->length;
    } else if (given == 0) {
        di_json_writer writer;
        di_json_begin(&writer, schema);
        di_json_value(&writer, value);
        if (schema->failed) return di_fail(error, DI_ERR_MEMORY, names[given], "out of memory for the schema");
        source->text = schema->data;
        source->length = schema->length;
    } else {
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, names[given], "%s must be a string, not %s", names[given],
                       di_json_type_name(value->type));
    }
    options o = {0};
    di_status status = text_member(object, "dialect", &o.dialect, error);
    if (status == DI_OK) status = text_member(object, "order", &o.order, error);
    if (status == DI_OK) status = text_member(object, "profile", &o.profile, error);
    if (status == DI_OK) status = text_member(object, "whitespace", &o.whitespace, error);
    return status == DI_OK ? set_options(source, &o, given == 2, error) : status;
}

/* ---------------------------------------------------------------------------------------------------------- results */

static void write_allowed(const checker *c, const verdict *v, di_json_writer *writer) {
    uint32_t shown = 0, rows = di_vocabulary_rows(c->vocabulary);
    di_json_key(writer, "allowed");
    di_json_array_begin(writer);
    for (uint32_t id = 0; id < rows && shown < SHOWN_TOKENS; id++) {
        size_t length = 0;
        if (!allowed(c, id)) continue;
        const char *bytes = di_tokenizer_bytes(c->tokenizer, (int32_t)id, &length);
        if (bytes) di_json_string_n(writer, bytes, length);
        shown += bytes != NULL;
    }
    di_json_array_end(writer);
    di_json_key(writer, "allowed_count");
    di_json_unsigned(writer, v->allowed);
    if (!c->list) return;
    di_json_key(writer, "allowed_ids");
    di_json_array_begin(writer);
    for (uint32_t id = 0; id < rows; id++)
        if (allowed(c, id)) di_json_unsigned(writer, id);
    di_json_array_end(writer);
}

static void write_verdict(const checker *c, const di_json *id, const verdict *v, di_text *out) {
    di_json_writer writer;
    di_json_begin(&writer, out);
    di_json_object_begin(&writer);
    if (id) {
        di_json_key(&writer, "id");
        di_json_value(&writer, id);
    }
    di_json_key(&writer, "compiled");
    di_json_bool(&writer, v->compiled);
    if (!v->compiled) {
        di_json_key(&writer, "code");
        di_json_string(&writer, di_grammar_reason_name(v->fault.reason));
        di_json_key(&writer, "reason");
        di_json_string(&writer, v->fault.message);
        di_json_key(&writer, "pointer");
        di_json_string(&writer, v->fault.pointer);
    }
    di_json_key(&writer, "accepted");
    di_json_bool(&writer, v->accepted);
    di_json_key(&writer, "complete");
    di_json_bool(&writer, v->complete);
    if (v->compiled && !v->accepted) {
        di_json_key(&writer, "stopped_at");
        di_json_unsigned(&writer, v->stopped_at);
    }
    if (v->compiled && (!v->accepted || c->list)) write_allowed(c, v, &writer);
    di_json_key(&writer, "compile_us");
    di_json_number(&writer, v->compile_us);
    di_json_key(&writer, "mask_us_avg");
    di_json_number(&writer, v->masks ? v->mask_us / (double)v->masks : 0);
    di_json_key(&writer, "mask_us_max");
    di_json_number(&writer, v->mask_us_max);
    di_json_key(&writer, "tokens");
    di_json_unsigned(&writer, v->tokens);
    di_json_object_end(&writer);
    di_text_putc(out, '\n');
}

static void check_line(void *arg, di_arena *arena, const di_json *object, di_text *out, di_error *fault) {
    static const char *const names[] = {"id",    "json_schema", "regex",      "ebnf", "dialect",
                                        "order", "profile",     "whitespace", "text", NULL};
    checker *c = arg;
    di_grammar_source source;
    di_text schema = {0};
    verdict v;
    (void)arena;
    const di_json *text = di_json_get(object, "text");
    di_status status = di_cli_check_members(object, names, fault);
    if (status == DI_OK) status = read_source(object, &source, &schema, fault);
    if (status == DI_OK && text && text->type != DI_JSON_STRING)
        status = di_fail(fault, DI_ERR_INVALID_ARGUMENT, "text", "text must be a string, not %s",
                         di_json_type_name(text->type));
    if (status == DI_OK) status = check(c, &source, text ? text->text : "", text ? text->length : 0, &v, fault);
    if (status == DI_OK) write_verdict(c, di_json_get(object, "id"), &v, out);
    di_text_free(&schema);
}

/* What a person is told. */
static void describe(const checker *c, const char *text, const verdict *v, di_text *out) {
    if (!v->compiled) {
        di_text_printf(out, "refused (%s)", di_grammar_reason_name(v->fault.reason));
        if (v->fault.pointer[0]) di_text_printf(out, " at %s", v->fault.pointer);
        di_text_printf(out, ": %s\n", v->fault.message);
        return;
    }
    if (v->accepted) {
        di_text_puts(out,
                     v->complete ? "accepted, and the text may end here\n" : "accepted so far; more must follow\n");
    } else {
        size_t from = v->stopped_at > 40 ? v->stopped_at - 40 : 0;
        di_text_printf(out, "stops at byte %zu, behind: ", v->stopped_at);
        di_text_append(out, text + from, v->stopped_at - from);
        di_text_putc(out, '\n');
    }
    if (!v->accepted || c->list) {
        uint32_t shown = 0, rows = di_vocabulary_rows(c->vocabulary);
        di_json_writer writer;
        di_text_printf(out, "allowed there: %u tokens", v->allowed);
        for (uint32_t id = 0; id < rows && shown < SHOWN_TOKENS; id++) {
            size_t length = 0;
            const char *bytes = allowed(c, id) ? di_tokenizer_bytes(c->tokenizer, (int32_t)id, &length) : NULL;
            if (!bytes) continue;
            di_text_puts(out, shown++ ? ", " : ": ");
            di_json_begin(&writer, out);
            di_json_string_n(&writer, bytes, length);
        }
        di_text_puts(out, v->allowed > shown ? ", ...\n" : "\n");
    }
    di_text_printf(out, "%zu tokens; compiled in %.0f us; masks %.1f us on average, %.1f at most\n", v->tokens,
                   v->compile_us, v->masks ? v->mask_us / (double)v->masks : 0, v->mask_us_max);
}

/* One text from --prompt, --input or standard input. */
static int check_one(checker *c, di_error *error) {
    const di_config *config = c->cli->config;
    static const di_config_id ids[] = {DI_OPT_JSON_SCHEMA, DI_OPT_REGEX, DI_OPT_EBNF};
    static const di_grammar_kind kinds[] = {DI_GRAMMAR_JSON_SCHEMA, DI_GRAMMAR_REGEX, DI_GRAMMAR_GBNF};
    di_grammar_source source = {0};
    char *file = NULL, *text = NULL;
    size_t size = 0, length = 0;
    int given = -1;
    di_status status = DI_OK;
    for (int i = 0; i < 3; i++)
        if (di_config_is_set(config, ids[i])) {
            if (given >= 0) status = DI_ERR_USAGE;
            given = i;
        }
    if (given < 0 || status != DI_OK)
        status = di_fail(error, DI_ERR_USAGE, "json-schema", "give one of --json-schema, --regex and --ebnf");
    if (status == DI_OK) {
        source.kind = kinds[given];
        source.text = di_config_text(config, ids[given]);
        source.length = strlen(source.text);
        if (given != 1) {
            status = (di_status)di_read_source(source.text, 64u << 20, &file, &size, error);
            source.text = file;
            source.length = size;
        }
    }
    options o = {di_config_text(config, DI_OPT_DIALECT), di_config_text(config, DI_OPT_KEY_ORDER),
                 di_config_text(config, DI_OPT_SCHEMA_PROFILE), di_config_text(config, DI_OPT_WHITESPACE)};
    if (status == DI_OK) status = set_options(&source, &o, given == 2, error);
    if (status == DI_OK) status = di_cli_read_text(c->cli, true, &text, &length, error);
    verdict v;
    di_text out = {0};
    if (status == DI_OK) status = check(c, &source, text, length, &v, error);
    if (status == DI_OK && di_config_bool(config, DI_OPT_JSON)) write_verdict(c, NULL, &v, &out);
    if (status == DI_OK && !di_config_bool(config, DI_OPT_JSON)) describe(c, text, &v, &out);
    if (status == DI_OK && out.failed) status = di_fail(error, DI_ERR_MEMORY, NULL, "out of memory");
    if (status == DI_OK) status = di_cli_write(out.data, out.length, error);
    free(file);
    free(text);
    di_text_free(&out);
    if (status != DI_OK) return di_cli_report(error);
    return v.compiled && v.accepted ? DI_EXIT_OK : DI_EXIT_FAILED;
}

static di_status load(checker *c, di_error *error) {
    di_text path = {0};
    di_status status = di_find_model(c->cli->config, c->cli->model, &path, error);
    if (status == DI_OK) status = di_tokenizer_load(path.data, &c->tokenizer, error);
    di_text_free(&path);
    if (status != DI_OK) return status;
    int32_t stop = di_tokenizer_added_id(c->tokenizer, "<｜end▁of▁sentence｜>");
    status = di_vocabulary_of_tokenizer(c->tokenizer, 0, &stop, stop >= 0, &c->vocabulary, error);
    if (status != DI_OK) return status;
    c->mask = calloc(di_vocabulary_words(c->vocabulary), sizeof *c->mask);
    return c->mask ? DI_OK : di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a mask");
}

static int run(di_cli *cli) {
    di_error error = {0};
    checker c = {.cli = cli};
    int code;
    if (!cli->word) {
        di_fail(&error, DI_ERR_USAGE, "command", "what shall be done? deepinfer grammar check or mask");
        return di_cli_report(&error);
    }
    c.list = strcmp(cli->word, "mask") == 0;
    di_status status = di_cli_check_input(cli, &error);
    if (status == DI_OK) status = load(&c, &error);
    bool one = di_config_is_set(cli->config, DI_OPT_JSON_SCHEMA) || di_config_is_set(cli->config, DI_OPT_REGEX) ||
               di_config_is_set(cli->config, DI_OPT_EBNF);
    if (status != DI_OK)
        code = di_cli_report(&error);
    else if (di_config_bool(cli->config, DI_OPT_JSON) && !one)
        code = di_cli_convert_lines(cli, check_line, &c);
    else
        code = check_one(&c, &error);
    free(c.mask);
    di_vocabulary_free(c.vocabulary);
    di_tokenizer_free(c.tokenizer);
    return code;
}

static const char *const words[] = {"check", "mask", NULL};

const di_command di_command_grammar = {
    .name = "grammar",
    .summary = "checks texts against a schema, expression or grammar",
    .usage = "check|mask [MODEL] [options]",
    .text = "check: walks --prompt, --input or standard input token by token through the\n"
            "masks, as generation would, and tells where it stops and what was allowed\n"
            "there; exit code 1 if it stops or the schema is refused. mask: the tokens\n"
            "allowed behind the text. With --json one case a line: {\"id\", \"json_schema\" or\n"
            "\"regex\" or \"ebnf\", \"text\", ...}. MODEL may hold a tokenizer.json alone.",
    .example = "  deepinfer grammar check --regex '[0-9]{4}-[0-9]{2}' --prompt 2026-1\n"
               "  deepinfer grammar check --json --input cases.jsonl\n",
    .words = words,
    .groups = "grammar json input",
    .run = run,
};
