/* Formats as grammars of the engine. */
#include "recipe/recipe.h"

di_status di_recipe_bind(const di_recipe *recipe, const di_prompt *prompt, di_arena *arena, di_so_args *args,
                         bool *bound, di_error *error) {
    const di_constraint *constraint = &prompt->constraint;
    *bound = constraint->kind == DI_CONSTRAINT_JSON || constraint->kind == DI_CONSTRAINT_REGEX;
    if (!*bound) return DI_OK;
    args->schema_type = constraint->kind == DI_CONSTRAINT_REGEX ? "regex" : constraint->schema ? "json" : "json_object";
    args->schema = constraint->regex;
    if (constraint->schema) {
        di_text text = {0};
        di_json_writer writer;
        di_json_begin(&writer, &text);
        di_json_value(&writer, constraint->schema);
        args->schema = text.failed ? NULL : di_arena_copy(arena, text.data, text.length);
        di_text_free(&text);
        if (!args->schema) return di_fail(error, DI_ERR_MEMORY, "response_format", "out of memory for a schema");
    }
    if (constraint->after_thought) {
        args->trigger_token_ids = &recipe->ids[DI_CONTROL_THINK_END];
        args->trigger_token_count = 1;
        args->trigger_required = true;
    }
    return DI_OK;
}
