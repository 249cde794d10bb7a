/* di_render_chat of the public header. */
#include "recipe/recipe.h"

#include <string.h>

#include "engine/engine.h"

static const char *const members[] = {
    "messages",         "tools",    "tool_choice",          "parallel_tool_calls",   "response_format",
    "reasoning_effort", "thinking", "chat_template_kwargs", "add_generation_prompt", "continue_final_message"};
enum { MEMBERS = sizeof members / sizeof *members };

static di_status check_members(const di_json *request, di_error *error) {
    if (request->type != DI_JSON_OBJECT)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "json", "a conversation is an object with messages, not %s",
                       di_json_type_name(request->type));
    for (const di_json *member = request->first; member; member = member->next) {
        size_t i = 0;
        while (i < MEMBERS && (strlen(members[i]) != member->key_length || strcmp(members[i], member->key) != 0)) i++;
        if (i < MEMBERS) continue;
        const char *nearest = di_nearest_name(member->key, members, MEMBERS);
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, member->key, "a conversation has no member \"%.60s\"%s%s%s",
                       member->key, nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
    }
    return DI_OK;
}

static di_status render(const di_engine *engine, di_arena *arena, const char *json, size_t length,
                        di_chat_prompt *prompt, di_error *error) {
    const di_tokenizer *tokenizer = di_engine_tokenizer(engine);
    if (!tokenizer)
        return di_fail(error, DI_ERR_UNSUPPORTED, "messages", "the model has no tokenizer, so there is no chat format");
    const di_json *request = NULL;
    di_recipe recipe;
    di_recipe_options options;
    di_conversation conversation;
    di_prompt rendered;
    di_recipe_options_default(&options);
    options.thinking = di_engine_info(engine)->thinking_default;
    di_status status = di_json_parse(arena, json, length, 0, &request, error);
    if (status == DI_OK) status = check_members(request, error);
    di_recipe_profile profile = di_recipe_detect(di_engine_info(engine)->path, tokenizer);
    if (status == DI_OK) status = di_recipe_open(tokenizer, profile, NULL, &recipe, error);
    if (status == DI_OK)
        status = di_recipe_parse_request(arena, DI_FLAVOUR_CHAT, request, &conversation, &options, error);
    if (status == DI_OK) status = di_recipe_render(&recipe, &conversation, &options, arena, &rendered, error);
    if (status != DI_OK) return status;
    di_ids ids = {0};
    status = di_recipe_encode(tokenizer, &rendered, &ids, error);
    if (status != DI_OK) {
        di_ids_free(&ids);
        return status;
    }
    *prompt = (di_chat_prompt){
        .token_ids = ids.data,
        .token_count = ids.count,
        .in_reasoning = rendered.start == DI_START_REASONING || rendered.start == DI_START_REASONING_CONTINUED,
        .continued = rendered.start == DI_START_REASONING_CONTINUED || rendered.start == DI_START_ANSWER_CONTINUED,
        .reasoning_end_token_id = recipe.ids[DI_CONTROL_THINK_END],
    };
    return DI_OK;
}

di_status di_render_chat(di_engine *engine, const char *json, size_t length, di_chat_prompt *prompt, di_error *error) {
    if (!prompt) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "prompt", "prompt is NULL");
    memset(prompt, 0, sizeof *prompt);
    if (!engine || !json)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, engine ? "json" : "engine", "%s is NULL",
                       engine ? "json" : "engine");
    di_arena *arena = di_arena_new(0);
    if (!arena) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a conversation");
    di_status status = render(engine, arena, json, length == DI_ZSTRING ? strlen(json) : length, prompt, error);
    di_arena_free(arena);
    return status;
}
