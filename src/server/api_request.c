/* api_request.c - from a body to values and token ids; runs on a worker thread. */
#include "server/api_internal.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------------------------------------ values */

/* The body holds fields of this endpoint only, whose types and ranges the table has checked: reading cannot fail. */
static void read_float(const di_json *body, const char *name, float *value) {
    double number;
    if (di_json_double(di_field_get(body, name), &number)) *value = (float)number;
}

static void read_int(const di_json *body, const char *name, int64_t *value) {
    (void)(di_json_int64(di_field_get(body, name), value));
}

static void read_bool(const di_json *object, const char *name, bool *value) {
    const di_json *field = di_field_get(object, name);
    if (field) *value = di_json_is_true(field);
}

static bool fail(di_call *call, di_status status, const char *param, const char *message) {
    di_fail(&call->error, status, param, "%s", message);
    return false;
}

static bool no_memory(di_call *call) {
    return fail(call, DI_ERR_MEMORY, NULL, "out of memory for the request");
}

/* A string or a list of strings. */
static bool read_stop(di_call *call, const char *name) {
    const di_json *value = di_field_get(call->body, name);
    if (!value) return true;
    bool one = value->type == DI_JSON_STRING;
    size_t count = one ? 1 : value->count, bytes = 0;
    const char **strings = di_arena_array(call->arena, count + 1, sizeof *strings);
    if (!strings) return no_memory(call);
    const di_json *item = one ? value : value->first;
    for (size_t i = 0; i < count; i++, item = item->next) {
        if (item->type != DI_JSON_STRING) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, name, "Invalid '%s[%zu]': it must be a string, not %s", name,
                    i, di_json_type_name(item->type));
            return false;
        }
        if (!item->length || strlen(item->text) != item->length) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, name,
                    item->length ? "Invalid '%s[%zu]': it holds a zero character."
                                 : "Invalid '%s[%zu]': empty string. Expected a string with minimum length 1, but got "
                                   "an empty string instead.",
                    name, i);
            return false;
        }
        strings[i] = item->text;
        bytes += item->length;
    }
    size_t most = (size_t)di_config_int(call->api->config, DI_OPT_LIMIT_STOP_BYTES);
    if (bytes > most) {
        di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, name, "%s has %zu bytes; at most %zu are allowed (--%s)", name,
                bytes, most, di_config_rows()[DI_OPT_LIMIT_STOP_BYTES].name);
        return false;
    }
    call->sampling.stop = count ? strings : NULL;
    call->sampling.stop_count = count;
    return true;
}

/* What the client calls the answer: it becomes part of ids. */
static bool read_own_id(di_call *call) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
    const di_json *id = di_field_get(call->body, "request_id");
    call->own_id = id ? id->text : NULL;
    if (!id || strspn(id->text, allowed) == id->length) return true;
    return fail(call, DI_ERR_INVALID_ARGUMENT, "request_id",
                "request_id may have letters, digits, '-', '_' and '.' only");
}

/* A list of token ids into *ids. */
static bool read_ids(di_call *call, const char *name, const di_json *list, di_ids *ids) {
    size_t i = 0;
    for (const di_json *item = list->first; item; item = item->next, i++) {
        int64_t id;
        if (!di_json_int64(item, &id) || id < 0 || id >= di_engine_info(call->api->engine)->vocabulary) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, name, "%s[%zu] must be a token id in 0 .. %u", name, i,
                    di_engine_info(call->api->engine)->vocabulary - 1);
            return false;
        }
        di_ids_append(ids, (int32_t)id);
    }
    return ids->failed ? no_memory(call) : true;
}

static bool read_stop_ids(di_call *call) {
    const di_json *value = di_field_get(call->body, "stop_token_ids");
    if (!value) return true;
    di_ids ids = {0};
    bool good = read_ids(call, "stop_token_ids", value, &ids);
    if (good && ids.count) {
        call->sampling.stop_token_ids =
            (const int32_t *)(void *)di_arena_copy(call->arena, (const char *)ids.data, ids.count * sizeof *ids.data);
        call->sampling.stop_token_count = ids.count;
        if (!call->sampling.stop_token_ids) good = no_memory(call);
    }
    di_ids_free(&ids);
    return good;
}

/* Decimal digits; -1 otherwise. */
static int64_t id_of_key(const di_json *item) {
    int64_t id = 0;
    if (!item->key_length || item->key_length > 10) return -1;
    for (size_t i = 0; i < item->key_length; i++) {
        if (item->key[i] < '0' || item->key[i] > '9') return -1;
        id = id * 10 + (item->key[i] - '0');
    }
    return id;
}

static bool read_logit_bias(di_call *call) {
    const di_json *value = di_field_get(call->body, "logit_bias");
    if (!value) return true;
    di_logit_bias *list = di_arena_array(call->arena, (size_t)value->count + 1, sizeof *list);
    if (!list) return no_memory(call);
    size_t count = 0;
    uint32_t vocabulary = di_engine_info(call->api->engine)->vocabulary;
    for (const di_json *item = value->first; item; item = item->next) {
        int64_t id = id_of_key(item);
        double bias;
        if (id < 0 || id >= vocabulary) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, "logit_bias",
                    "logit_bias: the key \"%.40s\" is not a token id in 0 .. %u", item->key, vocabulary - 1);
            return false;
        }
        if (!di_json_double(item, &bias) || !(bias >= -100 && bias <= 100)) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, "logit_bias",
                    "logit_bias of id %lld must be a number in [-100, 100]", (long long)id);
            return false;
        }
        list[count++] = (di_logit_bias){(int32_t)id, (float)bias};
    }
    call->sampling.logit_bias = count ? list : NULL;
    call->sampling.logit_bias_count = count;
    return true;
}

/* Cache namespace: the key's name, which owns it, and what the client says of its user. */
static void read_tenant(di_call *call) {
    const di_json *body = call->body, *user = di_field_get(body, "cache_salt");
    if (!user) user = di_field_get(body, "user_id");
    if (!user) user = di_field_get(body, "user");
    if (call->endpoint == DI_ENDPOINT_MESSAGES) user = di_field_get(di_field_get(body, "metadata"), "user_id");
    call->owner = di_exchange_tenant(call->exchange);
    call->tenant = user && user->length ? user->text : NULL;
}

static bool read_stream(di_call *call) {
    const di_json *options = di_field_get(call->body, "stream_options");
    read_bool(call->body, "stream", &call->stream);
    if (options && !call->stream)
        return fail(call, DI_ERR_INVALID_ARGUMENT, "stream_options",
                    "stream_options should be set along with stream = true");
    read_bool(options, "include_usage", &call->include_usage);
    read_bool(options, "continuous_usage_stats", &call->continuous_usage);
    return true;
}

/* Responses: what else the answer shall have. */
static bool read_include(di_call *call, bool *logprobs) {
    const di_json *include = di_field_get(call->body, "include");
    for (const di_json *item = include ? include->first : NULL; item; item = item->next) {
        if (item->type != DI_JSON_STRING)
            return fail(call, DI_ERR_INVALID_ARGUMENT, "include", "include must be a list of strings");
        *logprobs |= di_json_string_is(item, "message.output_text.logprobs");
    }
    return true;
}

static bool read_logprobs(di_call *call) {
    int64_t best = -1;
    if (call->endpoint == DI_ENDPOINT_COMPLETIONS) {
        read_int(call->body, "logprobs", &best);
    } else if (call->endpoint != DI_ENDPOINT_MESSAGES) {
        bool chat = call->endpoint == DI_ENDPOINT_CHAT, wanted = false;
        int64_t top = 0;
        if (chat) read_bool(call->body, "logprobs", &wanted);
        if (!chat && !read_include(call, &wanted)) return false;
        read_int(call->body, "top_logprobs", &top);
        if (top && !wanted)
            return fail(call, DI_ERR_INVALID_ARGUMENT, "top_logprobs",
                        chat ? "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs "
                               "is used."
                             : "top_logprobs needs \"message.output_text.logprobs\" in include");
        if (wanted) best = top;
    }
    call->sampling.logprobs = (int32_t)best;
    if (best >= 0 && !call->api->tokenizer)
        return fail(call, DI_ERR_UNSUPPORTED, "logprobs", "the model has no tokenizer, so its tokens have no text");
    return true;
}

static bool read_max_tokens(di_call *call) {
    const di_json *body = call->body;
    int64_t *most = &call->sampling.max_tokens;
    if (call->endpoint == DI_ENDPOINT_COMPLETIONS) *most = 16;
    if (call->endpoint == DI_ENDPOINT_RESPONSES)
        read_int(body, "max_output_tokens", most);
    else
        read_int(body, "max_tokens", most);
    if (call->endpoint == DI_ENDPOINT_CHAT) read_int(body, "max_completion_tokens", most);
    read_int(body, "min_tokens", &call->sampling.min_tokens);
    if (*most == 0 && !di_json_is_true(di_field_get(body, "echo")))
        return fail(call, DI_ERR_INVALID_ARGUMENT, "max_tokens", "max_tokens can be 0 only with echo");
    if (*most >= 0 && call->sampling.min_tokens > *most)
        return fail(call, DI_ERR_INVALID_ARGUMENT, "min_tokens", "min_tokens must not be greater than max_tokens");
    return true;
}

static bool read_count(di_call *call) {
    int64_t n = 1, best_of;
    read_int(call->body, "n", &n);
    best_of = n;
    read_int(call->body, "best_of", &best_of);
    if (best_of != n)
        return fail(call, DI_ERR_UNSUPPORTED, "best_of", "best_of must be n: nothing is generated to be thrown away");
    /* All choices of a prompt begin in one step. */
    int64_t most = di_engine_max_sequences(call->api->engine);
    int64_t rows = di_config_int(call->api->config, DI_OPT_MAX_ROWS);
    di_config_id option = rows < most ? DI_OPT_MAX_ROWS : DI_OPT_MAX_SEQS;
    if (rows < most) most = rows;
    if (n < 1 || n > most) {
        di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, "n", "Invalid n value, the valid range of n is [1, %lld] (--%s)",
                (long long)most, di_config_rows()[option].name);
        return false;
    }
    call->sampling.n = (int32_t)n;
    return true;
}

static bool read_sampling(di_call *call) {
    const di_json *body = call->body;
    di_sampling *sampling = &call->sampling;
    int64_t top_k = sampling->top_k, priority = 0;
    read_float(body, "temperature", &sampling->temperature);
    read_float(body, "top_p", &sampling->top_p);
    read_float(body, "min_p", &sampling->min_p);
    read_float(body, "presence_penalty", &sampling->presence_penalty);
    read_float(body, "frequency_penalty", &sampling->frequency_penalty);
    read_float(body, "repetition_penalty", &sampling->repetition_penalty);
    read_int(body, "top_k", &top_k);
    read_int(body, "priority", &priority);
    sampling->top_k = (int32_t)top_k;
    call->priority = (int32_t)priority;
    read_bool(body, "ignore_eos", &sampling->ignore_eos);
    read_bool(body, "logits_hash", &sampling->logits_hash);
    read_bool(body, "include_stop_str_in_output", &call->stop_in_text);
    read_bool(body, "return_token_ids", &call->token_ids);
    read_bool(body, "draft_records", &call->draft_records);
    const di_json *seed = di_field_get(body, "seed");
    if (seed) {
        if (!di_json_uint64(seed, &sampling->seq_seed))
            return fail(call, DI_ERR_INVALID_ARGUMENT, "seed",
                        "Invalid seed value, the valid range of seed is [0, 2^64)");
        sampling->has_seed = true;
    }
    bool messages = call->endpoint == DI_ENDPOINT_MESSAGES;
    read_tenant(call);
    return read_stream(call) && read_count(call) && read_max_tokens(call) && read_logprobs(call) &&
           read_stop(call, messages ? "stop_sequences" : "stop") && read_stop_ids(call) && read_logit_bias(call) &&
           read_own_id(call);
}

/* What the hosted service makes of the client's values. */
static void apply_service_values(di_call *call) {
    di_sampling *sampling = &call->sampling;
    bool v41 = call->api->recipe.profile == DI_RECIPE_V41;
    if (call->options.thinking) {
        sampling->temperature = 1;
        sampling->presence_penalty = sampling->frequency_penalty = 0;
        if (!v41)
            sampling->top_p = 1;
        else if (sampling->top_p < 0.95F)
            sampling->top_p = 0.95F;
    } else if (v41) {
        sampling->top_p = 1;
    }
}

/* ------------------------------------------------------------------------------------------ bound answers */

/* A grammar of the engine, from text or from JSON. */
static bool bind(di_call *call, const char *field, const char *type, const di_json *schema, const char *text) {
    di_so_args *args = &call->sampling.so_args;
    call->grammar = field;
    args->schema_type = type;
    args->schema = text;
    if (!schema) return true;
    di_text copy = {0};
    di_json_writer writer;
    di_json_begin(&writer, &copy);
    di_json_value(&writer, schema);
    args->schema = copy.failed ? NULL : di_arena_copy(call->arena, copy.data, copy.length);
    di_text_free(&copy);
    return args->schema ? true : no_memory(call);
}

/* One of several texts, as an expression. */
static bool bind_choice(di_call *call, const char *field, const di_json *list) {
    di_text text = {0};
    for (const di_json *item = list->first; item; item = item->next) {
        if (item->type != DI_JSON_STRING || !item->length || strlen(item->text) != item->length) {
            di_text_free(&text);
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, field, "%s must be a list of texts, none empty", field);
            return false;
        }
        if (text.length) di_text_putc(&text, '|');
        for (const char *c = item->text; *c; c++) {
            if (strchr("\\.+*?()|[]{}^$/", *c)) di_text_putc(&text, '\\');
            di_text_putc(&text, *c);
        }
    }
    char *copy = text.failed ? NULL : di_arena_copy(call->arena, text.data, text.length);
    di_text_free(&text);
    return copy ? bind(call, field, "regex", NULL, copy) : no_memory(call);
}

static bool bind_json(di_call *call, const char *field, const di_json *value) {
    if (value->type == DI_JSON_STRING) return bind(call, field, "json", NULL, value->text);
    return bind(call, field, "json", value, NULL);
}

/* structured_outputs and guided_*: vLLM's names. */
static bool read_structured(di_call *call) {
    const di_json *body = call->body, *object = di_field_get(body, "structured_outputs");
    const struct {
        const char *field, *kind;
        const di_json *value;
    } given[] = {{"structured_outputs.json", "json", di_field_get(object, "json")},
                 {"structured_outputs.regex", "regex", di_field_get(object, "regex")},
                 {"structured_outputs.choice", "choice", di_field_get(object, "choice")},
                 {"structured_outputs.grammar", "gbnf", di_field_get(object, "grammar")},
                 {"structured_outputs.json_object", "json_object", di_field_get(object, "json_object")},
                 {"guided_json", "json", di_field_get(body, "guided_json")},
                 {"guided_regex", "regex", di_field_get(body, "guided_regex")},
                 {"guided_choice", "choice", di_field_get(body, "guided_choice")},
                 {"guided_grammar", "gbnf", di_field_get(body, "guided_grammar")}};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        const di_json *value = given[i].value;
        const char *field = given[i].field, *kind = given[i].kind;
        if (!value || value->type == DI_JSON_FALSE) continue;
        if (call->grammar || call->prompt.tools) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, field, "%s can not be used together with %s", field,
                    call->grammar ? call->grammar : "tools");
            return false;
        }
        bool good = strcmp(kind, "json") == 0     ? bind_json(call, field, value)
                    : strcmp(kind, "choice") == 0 ? bind_choice(call, field, value)
                                                  : bind(call, field, kind, NULL, value->text);
        if (!good) return false;
    }
    return true;
}

/* What response_format and tool_choice ask for, and whatever begins only behind the reasoning. */
static bool bind_answer(di_call *call) {
    static const char *const fields[DI_ENDPOINT_COUNT] = {[DI_ENDPOINT_CHAT] = "response_format",
                                                          [DI_ENDPOINT_MESSAGES] = "output_config.format",
                                                          [DI_ENDPOINT_RESPONSES] = "text.format"};
    const di_constraint *constraint = &call->prompt.constraint;
    const char *field = fields[call->endpoint];
    bool calls = constraint->kind == DI_CONSTRAINT_CALLS, forced = constraint->kind == DI_CONSTRAINT_FORCED_CALLS;
    bool bound;
    if (di_recipe_bind(&call->api->recipe, &call->prompt, call->arena, &call->sampling.so_args, &bound, &call->error) !=
        DI_OK) {
        if (constraint->unbound) snprintf(call->error.param, sizeof call->error.param, "%s", field);
        return false;
    }
    if (bound) call->grammar = calls || forced ? "tools" : field;
    if (call->endpoint == DI_ENDPOINT_CHAT && !read_structured(call)) return false;
    if (call->grammar && !bound) di_recipe_bind_start(&call->api->recipe, &call->prompt, &call->sampling.so_args);
    return true;
}

/* ----------------------------------------------------------------------------------------------------- prompts */

static bool new_prompts(di_call *call, size_t count) {
    call->ids = di_arena_zalloc(call->arena, count * sizeof *call->ids);
    call->prompt_count = (uint32_t)count;
    return call->ids ? true : no_memory(call);
}

/* Before it is cut into tokens, which takes the longer the longer it is. */
static bool check_prompt_bytes(di_call *call, size_t bytes) {
    static const char *const params[DI_ENDPOINT_COUNT] = {
        [DI_ENDPOINT_COMPLETIONS] = "prompt", [DI_ENDPOINT_RESPONSES] = "input", [DI_ENDPOINT_TOKENIZE] = "prompt"};
    size_t most = (size_t)di_config_int(call->api->config, DI_OPT_LIMIT_PROMPT_BYTES);
    if (bytes <= most) return true;
    di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, params[call->endpoint] ? params[call->endpoint] : "messages",
            "the prompt has %zu bytes; at most %zu are allowed (--limit-prompt-bytes)", bytes, most);
    return false;
}

static bool read_conversation(di_call *call) {
    static const di_flavour flavours[DI_ENDPOINT_COUNT] = {
        [DI_ENDPOINT_CHAT] = DI_FLAVOUR_CHAT,
        [DI_ENDPOINT_MESSAGES] = DI_FLAVOUR_MESSAGES,
        [DI_ENDPOINT_COUNT_TOKENS] = DI_FLAVOUR_MESSAGES,
        [DI_ENDPOINT_RESPONSES] = DI_FLAVOUR_RESPONSES,
        [DI_ENDPOINT_TOKENIZE] = DI_FLAVOUR_CHAT,
    };
    di_api *api = call->api;
    if (api->no_recipe.status != DI_OK) {
        call->error = api->no_recipe;
        return false;
    }
    call->options = api->options;
    call->options.forced_thought = true;
    if (di_recipe_parse_request(call->arena, flavours[call->endpoint], call->body, &call->conversation, &call->options,
                                &call->error) != DI_OK)
        return false;
    if (di_recipe_render(&api->recipe, &call->conversation, &call->options, call->arena, &call->prompt, &call->error) !=
        DI_OK)
        return false;
    return check_prompt_bytes(call, call->prompt.length) && new_prompts(call, 1) &&
           di_recipe_encode(api->tokenizer, &call->prompt, &call->ids[0], &call->error) == DI_OK;
}

static bool text_prompt(di_call *call, const char *name, const di_json *text, bool special, di_ids *ids) {
    const di_api *api = call->api;
    const di_json *suffix = call->endpoint == DI_ENDPOINT_COMPLETIONS ? di_field_get(call->body, "suffix") : NULL;
    if (!api->tokenizer)
        return fail(call, DI_ERR_UNSUPPORTED, name, "the model has no tokenizer; only token ids can go in");
    if (!check_prompt_bytes(call, text->length + (suffix ? suffix->length : 0))) return false;
    if (suffix) {
        if (api->no_recipe.status != DI_OK) {
            call->error = api->no_recipe;
            return false;
        }
        return di_recipe_render_completion(&api->recipe, text->text, text->length, suffix->text, suffix->length,
                                           call->arena, &call->prompt, &call->error) == DI_OK &&
               di_recipe_encode(api->tokenizer, &call->prompt, ids, &call->error) == DI_OK;
    }
    uint32_t bos = di_engine_info(api->engine)->bos_token_id;
    if (special && bos != UINT32_MAX) di_ids_append(ids, (int32_t)bos);
    return di_tokenizer_encode(api->tokenizer, text->text, text->length, false, ids, &call->error) == DI_OK;
}

static bool one_prompt(di_call *call, const di_json *prompt, bool special, size_t index) {
    if (prompt->type == DI_JSON_STRING) return text_prompt(call, "prompt", prompt, special, &call->ids[index]);
    if (prompt->type != DI_JSON_ARRAY)
        return fail(call, DI_ERR_INVALID_ARGUMENT, "prompt",
                    "prompt must be a string, a list of strings, a list of token ids or a list of such lists");
    if (di_field_get(call->body, "suffix"))
        return fail(call, DI_ERR_INVALID_ARGUMENT, "suffix", "suffix needs a prompt that is text");
    return read_ids(call, "prompt", prompt, &call->ids[index]);
}

/* The text of the prompts, for echo. */
static bool keep_prompt_texts(di_call *call) {
    call->echo = di_arena_array(call->arena, call->prompt_count, sizeof *call->echo);
    if (!call->echo) return no_memory(call);
    int32_t bos = (int32_t)di_engine_info(call->api->engine)->bos_token_id;
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        const di_ids *ids = &call->ids[i];
        size_t skip = ids->count && ids->data[0] == bos;
        di_text text = {0};
        di_status status =
            di_tokenizer_decode(call->api->tokenizer, ids->data + skip, ids->count - skip, false, &text, &call->error);
        const char *copy = di_arena_copy(call->arena, text.data ? text.data : "", text.length);
        call->echo[i] = (di_call_echo){copy, text.length};
        bool failed = text.failed || !copy;
        di_text_free(&text);
        if (status != DI_OK) return false;
        if (failed) return no_memory(call);
    }
    return true;
}

static bool read_completion(di_call *call) {
    const di_json *prompt = di_field_get(call->body, "prompt");
    bool special = true, echo = false;
    read_bool(call->body, "add_special_tokens", &special);
    read_bool(call->body, "echo", &echo);
    bool several = prompt->type == DI_JSON_ARRAY && prompt->first && prompt->first->type != DI_JSON_NUMBER;
    if (prompt->type == DI_JSON_ARRAY && !prompt->first)
        return fail(call, DI_ERR_INVALID_ARGUMENT, "prompt", "prompt is an empty list");
    if (several && prompt->count > 1 && di_field_get(call->body, "suffix"))
        return fail(call, DI_ERR_INVALID_ARGUMENT, "suffix", "suffix needs one prompt, not several");
    if (!several) {
        if (!new_prompts(call, 1) || !one_prompt(call, prompt, special, 0)) return false;
    } else {
        size_t most = (size_t)di_config_int(call->api->config, DI_OPT_LIMIT_PROMPTS), i = 0;
        if (prompt->count > most) {
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, "prompt",
                    "prompt has %u items; at most %zu are allowed (--limit-prompts)", prompt->count, most);
            return false;
        }
        if (!new_prompts(call, prompt->count)) return false;
        for (const di_json *item = prompt->first; item; item = item->next)
            if (!one_prompt(call, item, special, i++)) return false;
    }
    if (!echo) return true;
    if (di_field_get(call->body, "suffix"))
        return fail(call, DI_ERR_UNSUPPORTED, "echo", "echo can not be used with suffix");
    if (!call->api->tokenizer) return fail(call, DI_ERR_UNSUPPORTED, "echo", "the model has no tokenizer");
    call->sampling.prompt_logprobs = call->sampling.logprobs;
    return keep_prompt_texts(call);
}

/* A prompt must leave room for one token. The text is the hosted service's, which agents look for. */
static bool check_room(di_call *call) {
    uint32_t context = di_engine_info(call->api->engine)->context;
    for (uint32_t i = 0; i < call->prompt_count; i++) {
        const di_ids *ids = &call->ids[i];
        if (ids->failed) return no_memory(call);
        if (ids->count < context || (ids->count == context && call->sampling.max_tokens == 0)) continue;
        int64_t wanted = call->sampling.max_tokens > 0 ? call->sampling.max_tokens : 1;
        static const char *const params[DI_ENDPOINT_COUNT] = {
            [DI_ENDPOINT_COMPLETIONS] = "prompt", [DI_ENDPOINT_RESPONSES] = "input"};
        di_fail(&call->error, DI_ERR_CONTEXT_LENGTH, params[call->endpoint] ? params[call->endpoint] : "messages",
                "This model's maximum context length is %u tokens. However, you requested %llu tokens (%zu in the "
                "messages, %lld in the completion). Please reduce the length of the messages or completion.",
                context, (unsigned long long)ids->count + (unsigned long long)wanted, ids->count, (long long)wanted);
        return false;
    }
    return true;
}

/* --------------------------------------------------------------------------------------------------- the whole */

static bool check_model(di_call *call) {
    const di_json *model = di_field_get(call->body, "model");
    if (!model || !model->length) return true;
    for (size_t i = 0; i < call->api->name_count; i++)
        if (strcmp(call->api->names[i], model->text) == 0) return true;
    di_fail(&call->error, DI_ERR_NOT_FOUND, "model", "The model `%.100s` does not exist.", model->text);
    return false;
}

static bool prepare_tokenize(di_call *call) {
    const di_json *prompt = di_field_get(call->body, "prompt"), *messages = di_field_get(call->body, "messages");
    read_bool(call->body, "return_token_strs", &call->token_strings);
    if (!prompt == !messages)
        return fail(call, DI_ERR_INVALID_ARGUMENT, prompt ? "messages" : "prompt",
                    "either prompt or messages must be there, and not both");
    if (messages) return read_conversation(call);
    bool special = true;
    read_bool(call->body, "add_special_tokens", &special);
    return new_prompts(call, 1) && text_prompt(call, "prompt", prompt, special, &call->ids[0]);
}

static bool prepare_detokenize(di_call *call) {
    if (!call->api->tokenizer) return fail(call, DI_ERR_UNSUPPORTED, "tokens", "the model has no tokenizer");
    return new_prompts(call, 1) && read_ids(call, "tokens", di_field_get(call->body, "tokens"), &call->ids[0]);
}

static bool prepare_generation(di_call *call) {
    call->sampling = call->api->values;
    if (!read_sampling(call)) return false;
    if (call->endpoint == DI_ENDPOINT_COMPLETIONS) {
        if (!read_completion(call) || !read_structured(call)) return false;
    } else {
        if (!read_conversation(call)) return false;
        bool include = true;
        read_bool(call->body, "include_reasoning", &include);
        call->hide_reasoning = !include;
        call->omit_thinking =
            call->endpoint == DI_ENDPOINT_MESSAGES &&
            di_json_string_is(di_field_get(di_field_get(call->body, "thinking"), "display"), "omitted");
        if (call->api->like_service) apply_service_values(call);
        if (!bind_answer(call)) return false;
    }
    return check_room(call) && di_call_submit(call);
}

bool di_call_prepare(di_call *call) {
    const di_config *config = call->api->config;
    const di_json *body;
    size_t length;
    const char *text = di_exchange_body(call->exchange, &length);
    unsigned depth = (unsigned)di_config_int(config, DI_OPT_LIMIT_JSON_DEPTH);
    if (!call->arena) return no_memory(call);
    if (di_json_parse(call->arena, text, length, depth, &body, &call->error) != DI_OK) {
        di_error inner = call->error; /* the reader knows the number, not whose it is */
        if (strcmp(inner.param, "depth") == 0)
            di_fail(&call->error, DI_ERR_INVALID_ARGUMENT, NULL, "%s (--limit-json-depth)", inner.message);
        else
            di_fail(&call->error, inner.status, NULL, "%s", inner.message);
        return false;
    }
    if (di_fields_check(call->endpoint, call->arena, body, config, call->api->strict, &call->unknown, &call->body,
                        &call->error) != DI_OK)
        return false;
    if (!check_model(call)) return false;
    switch (call->endpoint) {
    case DI_ENDPOINT_COUNT_TOKENS:
        return read_conversation(call);
    case DI_ENDPOINT_TOKENIZE:
        return prepare_tokenize(call);
    case DI_ENDPOINT_DETOKENIZE:
        return prepare_detokenize(call);
    default:
        return prepare_generation(call);
    }
}
