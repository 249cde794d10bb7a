/* setup.c - from the configuration to what a command works with. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "cli/cli.h"
#include "engine/engine.h"

di_log_level di_cli_log_level(const di_config *config) {
    for (di_log_level level = DI_LOG_ERROR; level <= DI_LOG_DEBUG; level++)
        if (di_config_is(config, DI_OPT_LOG_LEVEL, di_log_level_name(level))) return level;
    return DI_LOG_WARN;
}

di_status di_cli_open_engine(di_cli *cli, di_engine **engine, di_error *error) {
    di_status status = di_engine_open(cli->model, cli->config, cli->log, engine, error);
    if (status == DI_OK && di_engine_note(*engine)[0]) di_cli_note(cli, "%s", di_engine_note(*engine));
    return status;
}

/* ---------------------------------------------------------------- interruption */

di_status di_cli_catch_interrupts(di_cli *cli, di_error *error) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    if (sigprocmask(SIG_BLOCK, &signals, NULL) == 0)
        cli->interrupt = signalfd(-1, &signals, SFD_NONBLOCK | SFD_CLOEXEC);
    if (cli->interrupt < 0) return di_fail_errno(error, DI_ERR_INTERNAL, NULL, errno, "cannot receive signals");
    return DI_OK;
}

bool di_cli_interrupted(di_cli *cli) {
    struct signalfd_siginfo info;
    return cli->interrupt >= 0 && read(cli->interrupt, &info, sizeof info) == (ssize_t)sizeof info;
}

/* ---------------------------------------------------------------- token ids */

di_status di_cli_parse_ids(di_arena *arena, const char *param, const char *text, size_t length, int32_t **ids,
                           size_t *count, di_error *error) {
    *ids = di_arena_array(arena, length / 2 + 1, sizeof **ids);
    *count = 0;
    if (!*ids) return di_fail(error, DI_ERR_MEMORY, param, "out of memory for token ids");
    size_t comma = SIZE_MAX; /* that no id follows yet */
    for (size_t i = 0; i < length;) {
        if (text[i] == ',' && (*count == 0 || comma != SIZE_MAX))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s: no token id before the comma at byte %zu", param,
                           i);
        if (text[i] == ',') comma = i;
        if (strchr(", \t\r\n", text[i]) && text[i]) {
            i++;
            continue;
        }
        comma = SIZE_MAX;
        bool minus = text[i] == '-';
        size_t start = i;
        int64_t value = 0;
        for (i += minus; i < length && text[i] >= '0' && text[i] <= '9' && value <= INT32_MAX; i++)
            value = value * 10 + (text[i] - '0');
        if (i == start + minus || value > INT32_MAX || (i < length && (!text[i] || !strchr(", \t\r\n", text[i]))))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s: no token id at byte %zu; ids are written 1,2,3",
                           param, start);
        (*ids)[(*count)++] = (int32_t)(minus ? -value : value);
    }
    if (comma != SIZE_MAX)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s: no token id behind the comma at byte %zu", param,
                       comma);
    return DI_OK;
}

di_status di_cli_json_ids(di_arena *arena, const di_json *array, const char *param, int32_t **ids, size_t *count,
                          di_error *error) {
    if (array->type != DI_JSON_ARRAY)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s must be an array of ids, not %s", param,
                       di_json_type_name(array->type));
    *ids = di_arena_array(arena, array->count ? array->count : 1, sizeof **ids);
    *count = 0;
    if (!*ids) return di_fail(error, DI_ERR_MEMORY, param, "out of memory for token ids");
    for (const di_json *item = array->first; item; item = item->next) {
        int64_t value;
        if (!di_json_int64(item, &value) || value < 0 || value > INT32_MAX)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, param, "%s[%zu] is not a token id", param, *count);
        (*ids)[(*count)++] = (int32_t)value;
    }
    return DI_OK;
}

di_status di_cli_prompt_segments(const di_engine *engine, di_arena *arena, const char *text, size_t length,
                                 const di_segment **segments, size_t *count, di_error *error) {
    uint32_t bos = di_engine_info(engine)->bos_token_id;
    di_segment *list = di_arena_zalloc(arena, 2 * sizeof *list);
    int32_t *id = di_arena_alloc(arena, sizeof *id);
    if (!list || !id) return di_fail(error, DI_ERR_MEMORY, "prompt", "out of memory for the prompt");
    *count = 0;
    *id = (int32_t)bos;
    if (bos != UINT32_MAX) list[(*count)++] = (di_segment){.token_ids = id, .token_count = 1};
    list[(*count)++] = (di_segment){.text = text, .text_length = length};
    *segments = list;
    return DI_OK;
}

/* ---------------------------------------------------------------- parameters */

di_status di_cli_check_members(const di_json *object, const char *const *names, di_error *error) {
    size_t known = 0;
    while (names[known]) known++;
    for (const di_json *item = object->first; item; item = item->next) {
        size_t i = 0;
        while (i < known && strcmp(names[i], item->key) != 0) i++;
        if (i == known) {
            const char *near = di_nearest_name(item->key, names, known);
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, item->key, "there is no member \"%.60s\"%s%s%s", item->key,
                           near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "");
        }
        for (const di_json *other = object->first; other != item; other = other->next)
            if (strcmp(other->key, item->key) == 0)
                return di_fail(error, DI_ERR_INVALID_ARGUMENT, item->key, "\"%s\" is given twice", item->key);
    }
    return DI_OK;
}

di_status di_cli_check_input(const di_cli *cli, di_error *error) {
    static const di_config_id sources[] = {DI_OPT_PROMPT, DI_OPT_TOKEN_IDS, DI_OPT_INPUT};
    const di_config_row *rows = di_config_rows(), *first = NULL;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        if (!di_config_is_set(cli->config, sources[i])) continue;
        if (first)
            return di_fail(error, DI_ERR_USAGE, rows[sources[i]].name, "--%s and --%s exclude each other", first->name,
                           rows[sources[i]].name);
        first = &rows[sources[i]];
    }
    return DI_OK;
}

di_status di_cli_refuse(const di_cli *cli, di_config_id id, const char *why, di_error *error) {
    if (di_config_source_of(cli->config, id) != DI_CONFIG_FLAG) return DI_OK;
    const char *name = di_config_rows()[id].name;
    return di_fail(error, DI_ERR_USAGE, name, "--%s %s", name, why);
}

di_status di_cli_sampling(const di_cli *cli, const di_engine *engine, di_arena *arena, di_sampling *sampling,
                          di_error *error) {
    const di_config *config = cli->config;
    const di_model_config *model = di_engine_model_config(engine);
    di_sampling_default(sampling);
    sampling->temperature = (float)di_config_float(config, DI_OPT_TEMPERATURE);
    sampling->top_p = (float)di_config_float(config, DI_OPT_TOP_P);
    if (di_config_is(config, DI_OPT_GENERATION_CONFIG, "model")) {
        bool temperature = !di_config_is_set(config, DI_OPT_TEMPERATURE) && !isnan(model->generation_temperature);
        bool top_p = !di_config_is_set(config, DI_OPT_TOP_P) && !isnan(model->generation_top_p);
        if (temperature) sampling->temperature = model->generation_temperature;
        if (top_p) sampling->top_p = model->generation_top_p;
    }
    sampling->top_k = (int32_t)di_config_int(config, DI_OPT_TOP_K);
    sampling->min_p = (float)di_config_float(config, DI_OPT_MIN_P);
    sampling->max_tokens = di_config_int(config, DI_OPT_MAX_TOKENS);
    sampling->ignore_eos = di_config_bool(config, DI_OPT_IGNORE_EOS);
    sampling->logprobs = (int32_t)di_config_int(config, DI_OPT_LOGPROBS);
    sampling->logits_hash = di_config_bool(config, DI_OPT_LOGITS_HASH);
    sampling->has_seed = di_config_uint64(config, DI_OPT_SEED, &sampling->seq_seed);
    const char *list = di_config_text(config, DI_OPT_STOP_TOKEN_IDS);
    int32_t *ids = NULL;
    di_status status =
        di_cli_parse_ids(arena, "stop-token-ids", list, strlen(list), &ids, &sampling->stop_token_count, error);
    sampling->stop_token_ids = ids;
    return status;
}

di_status di_cli_recipe(const di_cli *cli, const di_engine *engine, di_recipe *recipe, di_recipe_options *options,
                        di_error *error) {
    if (!di_engine_tokenizer(engine))
        return di_fail(error, DI_ERR_UNSUPPORTED, "messages", "the model has no tokenizer, so there is no chat format");
    const di_tokenizer *tokenizer = di_engine_tokenizer(engine);
    di_recipe_profile profile = di_recipe_detect(di_engine_info(engine)->path, tokenizer);
    di_status status = di_recipe_open(tokenizer, profile, cli->log, recipe, error);
    if (status != DI_OK) return status;
    di_recipe_options_default(options);
    options->thinking = di_config_is(cli->config, DI_OPT_THINKING, "model")
                            ? di_engine_info(engine)->thinking_default
                            : di_config_is(cli->config, DI_OPT_THINKING, "on");
    const char *effort = di_config_text(cli->config, DI_OPT_EFFORT);
    status = di_recipe_history_parse(di_config_text(cli->config, DI_OPT_REASONING_HISTORY), &options->history, error);
    if (status == DI_OK && effort[0]) status = di_recipe_effort_parse(effort, options, error);
    return status;
}
