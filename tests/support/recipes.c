/* recipes.c - see recipes.h. */
#include "support/recipes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <unistd.h>

#include <cmocka.h>

#define PUBLISHED DI_SOURCE_DIR "/build/real_tokenizer/tokenizer.json"

static di_tokenizer *load(const char *path) {
    di_tokenizer *tokenizer = NULL;
    di_error error = {0};
    if (di_tokenizer_load(path, &tokenizer, &error) != DI_OK) fail_msg("%s", error.message);
    return tokenizer;
}

di_tokenizer *di_embedded_tokenizer(void) {
    return load(DI_SOURCE_DIR "/models/tiny");
}

di_tokenizer *di_chat_tokenizer(bool *published) {
    *published = access(PUBLISHED, R_OK) == 0;
    if (*published) return load(PUBLISHED);
    print_message("[   NOTE   ] no %s: prompts are compared as text, not as ids\n", PUBLISHED);
    return di_embedded_tokenizer();
}

di_recipe di_recipe_over(di_tokenizer *tokenizer, di_recipe_profile profile) {
    di_recipe recipe;
    di_error error = {0};
    di_tokenizer *own = tokenizer ? NULL : di_embedded_tokenizer();
    if (di_recipe_open(own ? own : tokenizer, profile, NULL, &recipe, &error) != DI_OK) fail_msg("%s", error.message);
    di_tokenizer_free(own);
    return recipe;
}

di_flavour di_line_flavour(const di_json *line) {
    const di_json *api = di_json_get(line, "api");
    if (di_json_string_is(api, "chat")) return DI_FLAVOUR_CHAT;
    if (di_json_string_is(api, "messages")) return DI_FLAVOUR_MESSAGES;
    assert_true(di_json_string_is(api, "responses"));
    return DI_FLAVOUR_RESPONSES;
}
