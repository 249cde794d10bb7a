/* job.c - requests from JSON lines and results to JSON lines. */
#include "cli/job.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

di_job *di_job_new(uint64_t line) {
    di_job *job = calloc(1, sizeof *job);
    if (!job) return NULL;
    job->arena = di_arena_new(0);
    job->line = line;
    if (job->arena) return job;
    free(job);
    return NULL;
}

void di_job_free(di_job *job) {
    if (!job) return;
    di_request_free(job->request);
    for (int32_t i = 0; job->choices && i < job->sampling.n; i++) {
        di_text_free(&job->choices[i].text);
        di_parser_free(job->choices[i].parser);
        di_answer_free(&job->choices[i].answer);
        di_text_free(&job->choices[i].logprobs);
        di_text_free(&job->choices[i].drafts);
        di_ids_free(&job->choices[i].ids);
    }
    di_text_free(&job->prompt_logprobs);
    di_arena_free(job->arena);
    free(job);
}

/* ---------------------------------------------------------------- in */

void di_job_parse(di_job *job, const di_cli *cli, const char *text, size_t length) {
    if (di_cli_parse_line(cli, job->arena, text, length, &job->object, &job->fault) != DI_OK) job->done = true;
    job->id = di_json_get(job->object, "id");
}

void di_job_parse_flags(di_job *job, const di_cli *cli) {
    di_text line = {0};
    di_json_writer writer;
    di_json_begin(&writer, &line);
    di_json_object_begin(&writer);
    if (di_config_is_set(cli->config, DI_OPT_TOKEN_IDS)) {
        const char *given = di_config_text(cli->config, DI_OPT_TOKEN_IDS);
        int32_t *ids = NULL;
        size_t count = 0;
        di_cli_parse_ids(job->arena, "token-ids", given, strlen(given), &ids, &count, &job->fault);
        di_json_key(&writer, "token_ids");
        di_json_array_begin(&writer);
        for (size_t i = 0; i < count; i++) di_json_integer(&writer, ids[i]);
        di_json_array_end(&writer);
    } else {
        di_json_key(&writer, "prompt");
        di_json_string(&writer, di_config_text(cli->config, DI_OPT_PROMPT));
    }
    di_json_object_end(&writer);
    char *copy = line.failed ? NULL : di_arena_copy(job->arena, line.data, line.length);
    if (!copy) di_fail(&job->fault, DI_ERR_MEMORY, NULL, "out of memory");
    if (job->fault.status == DI_OK) di_job_parse(job, cli, copy, line.length);
    job->done = job->fault.status != DI_OK;
    di_text_free(&line);
}

/* What HTTP refuses by the size of a list or object is refused here too; `value` may be NULL. */
static di_status check_size(const di_cli *cli, const char *param, const di_json *value, di_config_id limit,
                            di_error *error) {
    if (!value || (value->type != DI_JSON_ARRAY && value->type != DI_JSON_OBJECT)) return DI_OK;
    int64_t most = di_config_int(cli->config, limit);
    if (value->count <= most) return DI_OK;
    return di_fail(error, DI_ERR_LIMIT, param, "%s has %zu items; at most %lld are allowed (--%s)", param,
                   (size_t)value->count, (long long)most, di_config_rows()[limit].name);
}

static di_status read_sampling(di_job *job, const di_cli *cli, const di_engine *engine, di_error *error) {
    di_status status = di_cli_sampling(cli, engine, job->arena, &job->sampling, error);
    const di_json *object = di_json_get(job->object, "sampling_params");
    if (status != DI_OK || !object || object->type == DI_JSON_NULL) return status;
    status = check_size(cli, "logit_bias", di_json_get(object, "logit_bias"), DI_OPT_LIMIT_LOGIT_BIAS, error);
    if (status != DI_OK) return status;
    return di_sampling_parse(job->arena, object, &job->sampling, error);
}

/* response_format and calls that have to come as a grammar. */
static di_status bind_answer(di_job *job, const di_recipe *recipe, const di_prompt *prompt, di_error *error) {
    di_so_args args = {.bound_token_id = -1};
    di_status status = di_recipe_bind(recipe, prompt, job->arena, &args, &job->bound, error);
    if (status != DI_OK || !job->bound) return status;
    if (job->sampling.so_args.schema_type)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args",
                       "sampling_params.so_args and response_format, forced calls or strict tools exclude each other");
    job->sampling.so_args = args;
    return DI_OK;
}

static di_status read_chat(di_job *job, const di_cli *cli, const di_engine *engine, di_request_params *params,
                           di_error *error) {
    di_recipe *recipe = di_arena_zalloc(job->arena, sizeof *recipe);
    di_recipe_options options;
    di_conversation *conversation = di_arena_zalloc(job->arena, sizeof *conversation);
    di_prompt *prompt = di_arena_zalloc(job->arena, sizeof *prompt);
    if (!prompt || !conversation || !recipe)
        return di_fail(error, DI_ERR_MEMORY, "messages", "out of memory for the prompt");
    const di_json *messages = di_json_get(job->object, "messages"), *tools = di_json_get(job->object, "tools");
    di_status status = check_size(cli, "messages", messages, DI_OPT_LIMIT_MESSAGES, error);
    if (status == DI_OK) status = check_size(cli, "tools", tools, DI_OPT_LIMIT_TOOLS, error);
    if (status == DI_OK) status = di_cli_recipe(cli, engine, recipe, &options, error);
    options.forced_thought = true;
    if (status == DI_OK)
        status = di_recipe_parse_request(job->arena, DI_FLAVOUR_CHAT, job->object, conversation, &options, error);
    if (status == DI_OK) status = di_recipe_render(recipe, conversation, &options, job->arena, prompt, error);
    if (status == DI_OK) status = bind_answer(job, recipe, prompt, error);
    if (status != DI_OK) return status;
    job->chat = true;
    params->segments = prompt->request;
    params->segment_count = prompt->count;
    params->stop_arm_token_id = prompt->stop_arm_token_id;
    status = di_parser_openings(conversation, prompt, false, job->arena, &params->stop_disarm,
                                &params->stop_disarm_count, error);
    if (status != DI_OK) return status;
    for (int32_t i = 0; i < job->sampling.n; i++) {
        di_job_choice *choice = &job->choices[i];
        const di_parser_options parsing = {.id_seed = job->line << 32 | (uint32_t)i,
                                           .grammar = job->bound,
                                           .on_part = di_answer_take,
                                           .arg = &choice->answer};
        di_parser_free(choice->parser); /* of a try that found the queue full */
        choice->parser = di_parser_new(recipe, conversation, prompt, &parsing);
        if (!choice->parser) return di_fail(error, DI_ERR_MEMORY, "messages", "out of memory for the answer");
    }
    return DI_OK;
}

static di_status read_prompt(di_job *job, const di_cli *cli, di_engine *engine, di_request_params *params,
                             di_error *error) {
    const di_json *prompt = di_json_get(job->object, "prompt"), *ids = di_json_get(job->object, "token_ids"),
                  *messages = di_json_get(job->object, "messages");
    if ((prompt != NULL) + (ids != NULL) + (messages != NULL) != 1)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prompt",
                       "give one of \"prompt\", \"token_ids\" and \"messages\"");
    if (messages) return read_chat(job, cli, engine, params, error);
    static const char *const chat_only[] = {"tools",    "tool_choice",      "parallel_tool_calls", "response_format",
                                            "thinking", "reasoning_effort", "chat_template_kwargs"};
    for (size_t i = 0; i < sizeof chat_only / sizeof *chat_only; i++)
        if (di_json_get(job->object, chat_only[i]))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, chat_only[i], "\"%s\" goes with \"messages\" only",
                           chat_only[i]);
    if (prompt && prompt->type != DI_JSON_STRING)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prompt", "prompt must be a string, not %s",
                       di_json_type_name(prompt->type));
    if (prompt)
        return di_cli_prompt_segments(engine, job->arena, prompt->text, prompt->length, &params->segments,
                                      &params->segment_count, error);
    di_segment *segment = di_arena_zalloc(job->arena, sizeof *segment);
    if (!segment) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for the prompt");
    params->segments = segment;
    params->segment_count = 1;
    int32_t *list = NULL;
    di_status status = di_cli_json_ids(job->arena, ids, "token_ids", &list, &segment->token_count, error);
    segment->token_ids = list;
    return status;
}

static di_status read_priority(const di_job *job, di_request_params *params, di_error *error) {
    const di_json *priority = di_json_get(job->object, "priority");
    int64_t value = 0;
    if (!priority || priority->type == DI_JSON_NULL) return DI_OK;
    if (!di_json_int64(priority, &value) || value < INT32_MIN || value > INT32_MAX)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "priority", "priority must be an integer in -2^31 .. 2^31 - 1");
    params->priority = (int32_t)value;
    return DI_OK;
}

/* Speculation was asked for, not only left to itself. */
static bool wants_records(const di_cli *cli) {
    return di_config_is_set(cli->config, DI_OPT_SPEC) && strcmp(di_config_text(cli->config, DI_OPT_SPEC), "off") != 0;
}

di_status di_job_submit(di_job *job, const di_cli *cli, di_engine *engine) {
    static const char *const names[] = {"id",
                                        "prompt",
                                        "token_ids",
                                        "messages",
                                        "tools",
                                        "tool_choice",
                                        "thinking",
                                        "reasoning_effort",
                                        "sampling_params",
                                        "response_format",
                                        "parallel_tool_calls",
                                        "priority",
                                        "chat_template_kwargs",
                                        NULL};
    di_error *error = &job->fault;
    di_request_params params;
    di_request_params_default(&params);
    di_status status = di_cli_check_members(job->object, names, error);
    if (status == DI_OK) status = read_sampling(job, cli, engine, error);
    if (status == DI_OK && job->sampling.n < 1)
        status = di_fail(error, DI_ERR_INVALID_ARGUMENT, "n", "n must be at least 1");
    if (status == DI_OK && !job->choices) {
        job->choices = di_arena_zalloc(job->arena, (size_t)job->sampling.n * sizeof *job->choices);
        if (!job->choices) status = di_fail(error, DI_ERR_MEMORY, "n", "out of memory for %d choices", job->sampling.n);
    }
    if (status == DI_OK) status = read_priority(job, &params, error);
    if (status == DI_OK) status = read_prompt(job, cli, engine, &params, error);
    if (status == DI_OK) {
        params.sampling = job->sampling;
        params.draft_records = job->records = wants_records(cli);
        params.id = job->id && job->id->type == DI_JSON_STRING ? job->id->text : NULL;
        status = di_submit(engine, &params, &job->request, error);
        if (job->bound && strncmp(error->param, "so_args", strlen("so_args")) == 0) /* the client calls it otherwise */
            snprintf(error->param, sizeof error->param, "response_format");
    }
    if (status == DI_ERR_QUEUE_FULL)
        memset(error, 0, sizeof *error);
    else if (status != DI_OK)
        job->done = true;
    return status;
}

/* ---------------------------------------------------------------- events */

/* {"token_id", "logprob", "top": [[id, logprob], ...]} */
static void add_logprobs(di_text *list, const di_event *event) {
    if (list->length) di_text_putc(list, ',');
    if (event->kind == DI_EVENT_PROMPT_TOKEN && isnan(event->logprob)) {
        di_text_puts(list, "null");
        return;
    }
    di_json_writer writer;
    di_json_begin(&writer, list);
    di_json_object_begin(&writer);
    di_json_key(&writer, "token_id");
    di_json_integer(&writer, event->token_id);
    di_json_key(&writer, "logprob");
    di_json_float(&writer, event->logprob);
    di_json_key(&writer, "top");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < event->top_count; i++) {
        di_json_array_begin(&writer);
        di_json_integer(&writer, event->top[i].token_id);
        di_json_float(&writer, event->top[i].logprob);
        di_json_array_end(&writer);
    }
    di_json_array_end(&writer);
    di_json_object_end(&writer);
}

/* {"position", "drafted": [id, ...], "accepted", "confidence": [...]} */
static void add_drafts(di_text *list, const di_draft_record *drafts) {
    if (list->length) di_text_putc(list, ',');
    di_json_writer writer;
    di_json_begin(&writer, list);
    di_json_object_begin(&writer);
    di_json_key(&writer, "position");
    di_json_integer(&writer, drafts->position);
    di_json_key(&writer, "drafted");
    di_json_array_begin(&writer);
    for (size_t i = 0; i < drafts->count; i++) di_json_integer(&writer, drafts->token_ids[i]);
    di_json_array_end(&writer);
    di_json_key(&writer, "accepted");
    di_json_unsigned(&writer, drafts->accepted);
    di_json_key(&writer, "confidence");
    di_json_array_begin(&writer);
    for (size_t i = 0; drafts->confidence && i < drafts->count; i++) di_json_float(&writer, drafts->confidence[i]);
    di_json_array_end(&writer);
    di_json_object_end(&writer);
}

static void finish_chat(di_job *job, di_job_choice *choice, const di_event *event) {
    di_output_end how = di_output_end_of(event->finish_reason, event->stop_string);
    di_parser_push(choice->parser, -1, event->text, event->text_length);
    if (di_parser_finish(choice->parser, how, &choice->end, &job->fault) != DI_OK) job->done = true;
    di_parser_free(choice->parser);
    choice->parser = NULL;
}

void di_job_take(di_job *job, const di_event *event) {
    di_job_choice *choice = &job->choices[event->sample];
    switch (event->kind) {
    case DI_EVENT_PROMPT:
        break;
    case DI_EVENT_PROMPT_TOKEN:
        add_logprobs(&job->prompt_logprobs, event);
        break;
    case DI_EVENT_TOKEN:
        di_ids_append(&choice->ids, event->token_id);
        if (job->chat)
            di_parser_push(choice->parser, event->token_id, event->text, event->text_length);
        else
            di_text_append(&choice->text, event->text, event->text_length);
        if (job->sampling.logprobs >= 0) add_logprobs(&choice->logprobs, event);
        if (event->drafts.count) add_drafts(&choice->drafts, &event->drafts);
        break;
    case DI_EVENT_FINISH:
        if (job->chat)
            finish_chat(job, choice, event);
        else
            di_text_append(&choice->text, event->text, event->text_length);
        choice->finish = event->finish_reason;
        choice->has_hash = event->has_logits_hash;
        choice->hash = event->logits_hash;
        break;
    case DI_EVENT_DONE:
        job->done = true;
        job->last = *event;
        if (event->status != DI_OK) job->fault = event->error;
        break;
    }
    if (choice->ids.failed || choice->text.failed || choice->answer.failed || choice->logprobs.failed ||
        choice->drafts.failed || job->prompt_logprobs.failed) {
        di_fail(&job->fault, DI_ERR_MEMORY, NULL, "out of memory for the result");
        job->done = true;
    }
}

/* ---------------------------------------------------------------- out */

static const char *finish_name(di_finish_reason reason) {
    static const char *const names[] = {"error", "stop", "length", "cancelled", "error"};
    return names[reason];
}

static void write_list(di_json_writer *writer, const char *key, const di_text *elements) {
    di_json_key(writer, key);
    di_text list = {0};
    di_text_putc(&list, '[');
    if (elements->length) di_text_append(&list, elements->data, elements->length);
    di_text_putc(&list, ']');
    if (list.failed)
        di_json_null(writer);
    else
        di_json_raw(writer, list.data, list.length);
    if (list.failed) writer->out->failed = true;
    di_text_free(&list);
}

static void write_text(di_json_writer *writer, const char *key, const di_text *text) {
    di_json_key(writer, key);
    di_json_string_n(writer, text->data ? text->data : "", text->length);
}

/* [{"id", "type": "function", "function": {"name", "arguments"}}, ...] as in the chat API */
static void write_calls(di_json_writer *writer, const di_answer *answer) {
    di_json_key(writer, "tool_calls");
    di_json_array_begin(writer);
    for (size_t i = 0; i < answer->call_count; i++) {
        const di_answer_call *call = &answer->calls[i];
        di_json_object_begin(writer);
        di_json_key(writer, "id");
        di_json_string(writer, call->id);
        di_json_key(writer, "type");
        di_json_string(writer, "function");
        di_json_key(writer, "function");
        di_json_object_begin(writer);
        di_json_key(writer, "name");
        di_json_string(writer, call->name);
        write_text(writer, "arguments", &call->arguments);
        di_json_object_end(writer);
        di_json_object_end(writer);
    }
    di_json_array_end(writer);
}

static void write_choice(const di_job *job, di_json_writer *writer, int32_t index) {
    const di_job_choice *choice = &job->choices[index];
    di_json_object_begin(writer);
    di_json_key(writer, "index");
    di_json_integer(writer, index);
    write_text(writer, "text", job->chat ? &choice->answer.content : &choice->text);
    di_json_key(writer, "token_ids");
    di_json_array_begin(writer);
    for (size_t i = 0; i < choice->ids.count; i++) di_json_integer(writer, choice->ids.data[i]);
    di_json_array_end(writer);
    di_json_key(writer, "finish_reason");
    di_json_string(writer, job->chat ? di_answer_finish_name(choice->end.finish) : finish_name(choice->finish));
    if (choice->end.reasoning_tokens) write_text(writer, "reasoning", &choice->answer.reasoning);
    if (choice->answer.call_count) write_calls(writer, &choice->answer);
    if (job->sampling.logprobs >= 0) write_list(writer, "logprobs", &choice->logprobs);
    if (job->sampling.prompt_logprobs >= 0) write_list(writer, "prompt_logprobs", &job->prompt_logprobs);
    if (job->records) write_list(writer, "drafts", &choice->drafts);
    if (choice->has_hash) {
        char hash[20];
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)choice->hash);
        di_json_key(writer, "logits_hash");
        di_json_string(writer, hash);
    }
    di_json_object_end(writer);
}

static void write_usage(const di_job *job, di_json_writer *writer) {
    uint64_t reasoning = 0;
    for (int32_t i = 0; job->chat && i < job->sampling.n; i++) reasoning += job->choices[i].end.reasoning_tokens;
    const struct {
        const char *key;
        uint64_t value;
    } rows[] = {
        {"prompt_tokens", job->last.usage.prompt_tokens},
        {"cached_tokens", job->last.usage.cached_tokens},
        {"completion_tokens", job->last.usage.completion_tokens},
        {"reasoning_tokens", reasoning},
        {"draft_tokens", job->last.usage.draft_tokens},
        {"accepted_draft_tokens", job->last.usage.accepted_draft_tokens},
    };
    di_json_key(writer, "usage");
    di_json_object_begin(writer);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_json_key(writer, rows[i].key);
        di_json_unsigned(writer, rows[i].value);
    }
    di_json_object_end(writer);
}

static void write_timings(const di_job *job, di_json_writer *writer) {
    const struct {
        const char *key;
        double value;
    } rows[] = {
        {"queue_ms", job->last.timings.queue_ms},
        {"prefill_ms", job->last.timings.prefill_ms},
        {"first_token_ms", job->last.timings.first_token_ms},
        {"total_ms", job->last.timings.total_ms},
    };
    di_json_key(writer, "timings");
    di_json_object_begin(writer);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        di_json_key(writer, rows[i].key);
        di_json_number(writer, round(rows[i].value * 1000) / 1000);
    }
    di_json_object_end(writer);
}

void di_job_write(const di_job *job, const di_engine *engine, di_text *out) {
    if (job->fault.status != DI_OK) {
        di_cli_error_line(out, job->id, job->line, &job->fault);
        return;
    }
    di_json_writer writer;
    di_json_begin(&writer, out);
    di_json_object_begin(&writer);
    if (job->id) {
        di_json_key(&writer, "id");
        di_json_value(&writer, job->id);
    }
    di_json_key(&writer, "choices");
    di_json_array_begin(&writer);
    for (int32_t i = 0; i < job->sampling.n; i++) write_choice(job, &writer, i);
    di_json_array_end(&writer);
    write_usage(job, &writer);
    di_json_key(&writer, "seed");
    di_json_unsigned(&writer, job->last.seed);
    di_json_key(&writer, "fingerprint");
    di_json_string(&writer, di_engine_info(engine)->fingerprint);
    write_timings(job, &writer);
    di_json_object_end(&writer);
    di_text_putc(out, '\n');
}
