/* needs: recipe tokenizer base */
/* A request's JSON behind one byte (interface, profile, options): either an error with a message, or a prompt whose
 * segments are its text in order, control segments one known token each, plain ones valid UTF-8 without any. */
#include "recipe/parser.h"

#include <stdlib.h>
#include <string.h>

static void check_prompt(const di_tokenizer *tokenizer, const di_prompt *prompt) {
    size_t at = 0;
    for (size_t i = 0; i < prompt->count; i++) {
        const di_text_segment *s = &prompt->segments[i];
        if (s->text != prompt->text + at || !s->length) abort();
        at += s->length;
        if (s->control != (prompt->control_ids[i] >= 0)) abort();
        if (!s->control && (i == 0 || !prompt->segments[i - 1].control)) abort();
        if (!s->control && di_utf8_validate(s->text, s->length) != s->length) abort();
    }
    if (at != prompt->length || !prompt->count || !prompt->segments[0].control) abort();
    for (size_t i = 0; i < prompt->image_count; i++)
        if (prompt->images[i] >= prompt->count || !prompt->segments[prompt->images[i]].control) abort();
    di_ids ids = {0};
    size_t controls = 0, added = 0;
    if (di_recipe_encode(tokenizer, prompt, &ids, NULL) != DI_OK) abort();
    for (size_t i = 0; i < prompt->count; i++) controls += prompt->segments[i].control;
    for (size_t i = 0; i < ids.count; i++) added += di_tokenizer_is_added(tokenizer, ids.data[i]);
    if (controls != added) abort();
    di_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_tokenizer *tokenizer;
    static di_recipe recipes[3];
    if (!tokenizer) {
        if (di_tokenizer_load(DI_SOURCE_DIR "/models/tiny", &tokenizer, NULL)) abort();
        for (int i = 0; i < 3; i++)
            if (di_recipe_open(tokenizer, (di_recipe_profile)i, NULL, &recipes[i], NULL)) abort();
    }
    if (!size) return 0;
    di_arena *arena = di_arena_new(0);
    const di_json *request;
    if (!arena) abort();
    di_error error = {0};
    di_conversation conversation;
    di_recipe_options options;
    di_prompt prompt;
    di_recipe_options_default(&options);
    options.images = data[0] & 16;
    options.pass_unknown = data[0] & 32;
    options.forced_thought = data[0] & 64;
    if (data[0] & 128) options.history = DI_HISTORY_REFERENCE;
    const di_recipe *recipe = &recipes[data[0] / 4 % 4 % 3];
    di_status status = di_json_parse(arena, (const char *)data + 1, size - 1, 0, &request, &error);
    if (status == DI_OK)
        status =
            di_recipe_parse_request(arena, (di_flavour)(data[0] % 4 % 3), request, &conversation, &options, &error);
    if (status == DI_OK) status = di_recipe_render(recipe, &conversation, &options, arena, &prompt, &error);
    if (status == DI_OK)
        check_prompt(tokenizer, &prompt);
    else if (!error.message[0] || error.status != status)
        abort();
    di_arena_free(arena);
    return 0;
}
