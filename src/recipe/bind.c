/* bind.c - a prompt's constraint as arguments of the engine. */
#include "recipe/recipe.h"

static di_status keep(di_arena *arena, di_text *text, di_so_args *args, di_error *error) {
    args->schema = text->failed ? NULL : di_arena_copy(arena, text->data, text->length);
    di_text_free(text);
    return args->schema ? DI_OK : di_fail(error, DI_ERR_MEMORY, "so_args", "out of memory for a grammar");
}

static void write_tools(di_json_writer *w, const di_constraint *constraint) {
    di_json_key(w, "tools");
    di_json_array_begin(w);
    for (size_t i = 0; i < constraint->tool_count; i++) {
        const di_tool *tool = &constraint->tools[i];
        di_json_object_begin(w);
        di_json_key(w, "name");
        di_json_string(w, tool->name);
        di_json_key(w, "strict");
        di_json_bool(w, tool->strict);
        if (tool->parameters) {
            di_json_key(w, "parameters");
            di_json_value(w, tool->parameters);
        }
        di_json_object_end(w);
    }
    di_json_array_end(w);
}

/* Source as in grammar/calls.h. Forced calls begin with the answer, others behind the first mark of the output. */
static di_status bind_calls(const di_recipe *recipe, const di_constraint *constraint, bool forced, di_arena *arena,
                            di_so_args *args, di_error *error) {
    const int32_t *mark = &recipe->ids[DI_CONTROL_DSML];
    di_text text = {0}, opening = {0};
    if (!forced)
        di_text_printf(&opening, "%s%s>\n", constraint->tag_gap, constraint->block);
    else if (constraint->after_thought)
        di_text_puts(&opening, constraint->opener);
    di_json_writer w;
    di_json_begin(&w, &text);
    di_json_object_begin(&w);
    di_json_key(&w, "mark");
    di_json_integer(&w, *mark);
    di_json_key(&w, "gap");
    di_json_string(&w, constraint->tag_gap);
    di_json_key(&w, "block");
    di_json_string(&w, constraint->block);
    di_json_key(&w, "opening");
    di_json_string(&w, opening.data ? opening.data : "");
    di_json_key(&w, "one");
    di_json_bool(&w, constraint->one_call);
    write_tools(&w, constraint);
    di_json_object_end(&w);
    if (opening.failed) text.failed = true;
    di_text_free(&opening);
    args->schema_type = "calls";
    if (!forced) {
        args->trigger_token_ids = mark;
        args->trigger_token_count = 1;
    }
    return keep(arena, &text, args, error);
}

void di_recipe_bind_start(const di_recipe *recipe, const di_prompt *prompt, di_so_args *args) {
    if (!prompt->constraint.after_thought) return;
    args->trigger_token_ids = &recipe->ids[DI_CONTROL_THINK_END];
    args->trigger_token_count = 1;
    args->trigger_required = true;
}

di_status di_recipe_bind(const di_recipe *recipe, const di_prompt *prompt, di_arena *arena, di_so_args *args,
                         bool *bound, di_error *error) {
    const di_constraint *constraint = &prompt->constraint;
    bool forced = constraint->kind == DI_CONSTRAINT_FORCED_CALLS;
    bool calls = constraint->kind == DI_CONSTRAINT_CALLS && constraint->strict;
    bool answer = constraint->kind == DI_CONSTRAINT_JSON || constraint->kind == DI_CONSTRAINT_REGEX;
    *bound = forced || calls || answer;
    di_status status = DI_OK;
    if (constraint->unbound)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "response_format",
                       "an answer of a given form and tools exclude each other: set tool_choice to none, or leave one "
                       "out");
    if (forced || calls) status = bind_calls(recipe, constraint, forced, arena, args, error);
    if (answer) {
        args->schema_type = constraint->regex ? "regex" : constraint->schema ? "json" : "json_object";
        args->schema = constraint->regex;
    }
    if (answer && constraint->schema) {
        di_text text = {0};
        di_json_writer writer;
        di_json_begin(&writer, &text);
        di_json_value(&writer, constraint->schema);
        status = keep(arena, &text, args, error);
    }
    if (forced || answer) di_recipe_bind_start(recipe, prompt, args);
    return status;
}
