/* needs: recipe tokenizer base */
/* The golden file: what DeepSeek's own package made of the same requests. Prompts byte for byte, ids where the
 * published tokenizer is there, the parser's start, constraints, errors. Where we differ on purpose the row is listed
 * here with the reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/json_lines.h"
#include "support/recipes.h"

#include <stdlib.h>
#include <string.h>

#define GOLDEN DI_TEST_DATA "/recipe-golden.jsonl"

static di_tokenizer *tokenizer;
static bool published;
static di_recipe recipes[3];

static int set_up(void **state) {
    (void)state;
    tokenizer = di_chat_tokenizer(&published);
    for (int profile = 0; profile < 3; profile++)
        recipes[profile] = di_recipe_over(tokenizer, (di_recipe_profile)profile);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    di_tokenizer_free(tokenizer);
    return 0;
}

static bool is(const di_json *line, const char *member, const char *text) {
    return di_json_string_is(di_json_get(line, member), text);
}

static di_status render(di_arena *arena, const di_json *line, di_conversation *conversation, di_prompt *prompt,
                        di_error *error) {
    di_recipe_options options;
    di_recipe_options_default(&options);
    options.images = true;
    options.pass_unknown = true;
    const di_recipe *recipe = &recipes[is(line, "profile", "v4") ? DI_RECIPE_V4_0731 : DI_RECIPE_V41];
    di_status status = di_recipe_parse_request(arena, di_line_flavour(line), di_json_get(line, "request"), conversation,
                                               &options, error);
    return status == DI_OK ? di_recipe_render(recipe, conversation, &options, arena, prompt, error) : status;
}

/* ---------------------------------------------------------------------------------------------- differences */

typedef struct difference {
    const char *id, *theirs, *ours;
} difference;

/* Integers beyond 64 bits stay exact; floats in V4 are written as Python writes them, since that was trained. "any"
 * asks for a call, which the golden program takes for auto. */
static const difference differences[] = {
    {"chat/args-types", ">1.2345678901234568e+29<", ">123456789012345678901234567890<"},
    {"chat/schema-number-spacing", "1.8446744073709552e+19", "18446744073709551616"},
    {"v4/args-types", ">1.2345678901234568e+29<", ">123456789012345678901234567890<"},
    {"v4/args-types", ">1e-7<", ">1e-07<"},
    {"messages/tools-any", "a<｜Assistant｜></think>", "a<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n"},
};

/* The golden prompt with our differences put in. */
static char *expected_prompt(const di_json *line, size_t *length, bool *differs) {
    const di_json *prompt = di_json_get(line, "prompt");
    di_text text = {0};
    di_text_append(&text, prompt->text, prompt->length);
    *differs = false;
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++) {
        if (!is(line, "id", differences[i].id)) continue;
        char *at = strstr(text.data, differences[i].theirs);
        assert_non_null(at);
        di_text changed = {0};
        di_text_append(&changed, text.data, (size_t)(at - text.data));
        di_text_puts(&changed, differences[i].ours);
        di_text_puts(&changed, at + strlen(differences[i].theirs));
        di_text_free(&text);
        text = changed;
        *differs = true;
    }
    *length = text.length;
    return text.data;
}

/* ---------------------------------------------------------------------------------------------- prompts */

static void check_ids(const di_json *line, const di_prompt *prompt) {
    di_ids ids = {0};
    size_t i = 0;
    assert_int_equal(di_recipe_encode(tokenizer, prompt, &ids, NULL), DI_OK);
    const di_json *expected = di_json_get(line, "ids");
    if (ids.count != expected->count)
        fail_msg("%s: %zu ids, not %u", di_json_get(line, "id")->text, ids.count, expected->count);
    for (const di_json *node = expected->first; node; node = node->next, i++) {
        int64_t value;
        assert_true(di_json_int64(node, &value));
        if (ids.data[i] != value) fail_msg("%s: id %zu differs", di_json_get(line, "id")->text, i);
    }
    di_ids_free(&ids);
}

static void check_parser(const di_json *line, const di_conversation *conversation, const di_prompt *prompt) {
    static const char *const starts[] = {"reasoning", "answer", "reasoning_continued", "answer_continued", "calls"};
    static const char *const kinds[] = {"", "json", "regex", "tool_call", "tool_call_required"};
    const di_json *parser = di_json_get(line, "parser"), *constraint = di_json_get(line, "constraint");
    const char *id = di_json_get(line, "id")->text;
    /* The golden program forgets that a chat answer is continued, so it would eat line breaks that belong to it. */
    bool forced = strcmp(id, "messages/tools-any") == 0;
    const char *start = strcmp(id, "chat/prefix-chat") == 0 ? "answer_continued" : di_json_get(parser, "start")->text;
    if (forced) start = "calls";
    assert_string_equal(starts[prompt->start], start);
    assert_int_equal(prompt->tools, di_json_is_true(di_json_get(parser, "tools")));
    bool json = conversation->format == DI_FORMAT_JSON_OBJECT;
    assert_int_equal(json, di_json_is_true(di_json_get(parser, "json")));
    uint64_t images;
    assert_true(di_json_uint64(di_json_get(line, "images"), &images));
    if (!is(line, "profile", "v4")) assert_int_equal(prompt->image_count, images);
    const di_json *kind = di_json_get(constraint, "kind");
    const char *expected = forced ? "tool_call_required" : kind ? kind->text : "";
    assert_string_equal(kinds[prompt->constraint.kind], expected);
    if (kind && prompt->constraint.kind == DI_CONSTRAINT_REGEX)
        assert_string_equal(prompt->constraint.regex, di_json_get(constraint, "schema")->text);
}

static void check_prompt(void *arg, di_arena *arena, const di_json *line) {
    (void)arg;
    const char *id = di_json_get(line, "id")->text;
    di_conversation conversation;
    di_prompt prompt;
    di_error error;
    size_t length;
    bool differs;
    if (render(arena, line, &conversation, &prompt, &error) != DI_OK) fail_msg("%s: %s", id, error.message);
    char *expected = expected_prompt(line, &length, &differs);
    if (prompt.length != length || memcmp(prompt.text, expected, length) != 0)
        fail_msg("%s: %s\nexpected %s", id, prompt.text, expected);
    free(expected);
    for (size_t i = 0; i < prompt.image_count; i++)
        assert_int_equal(prompt.control_ids[prompt.images[i]], recipes[0].ids[DI_CONTROL_IMAGE]);
    check_parser(line, &conversation, &prompt);
    if (published && !differs) check_ids(line, &prompt);
}

/* ---------------------------------------------------------------------------------------------- refusals */

static void check_refusal(void *arg, di_arena *arena, const di_json *line) {
    (void)arg;
    /* Sampling is the server's. */
    static const char *const elsewhere[] = {"chat/n2", "chat/stop-empty"};
    const char *id = di_json_get(line, "id")->text;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(id, elsewhere[i]) == 0) return;
    di_conversation conversation;
    di_prompt prompt;
    di_error error = {0};
    const di_json *body = di_json_get(di_json_get(line, "error"), "error"), *message = di_json_get(body, "message");
    if (render(arena, line, &conversation, &prompt, &error) == DI_OK) fail_msg("%s is not refused", id);
    assert_int_equal(di_status_http(error.status), 400);
    assert_non_null(message);
    assert_string_equal(error.message, message->text);
    assert_true(error.param[0] != '\0');
}

/* ---------------------------------------------------------------------------------------------- the file */

static void test_prompts(void **state) {
    (void)state;
    di_each_json_line(GOLDEN, "render", check_prompt, NULL, 113);
}

static void test_refusals(void **state) {
    (void)state;
    di_each_json_line(GOLDEN, "render_error", check_refusal, NULL, 17);
}

static void check_image(void *arg, di_arena *arena, const di_json *line) {
    (void)arg;
    (void)arena;
    uint64_t width, height, tokens;
    assert_true(di_json_uint64(di_json_get(line, "width"), &width));
    assert_true(di_json_uint64(di_json_get(line, "height"), &height));
    assert_true(di_json_uint64(di_json_get(line, "tokens"), &tokens));
    assert_int_equal(di_recipe_image_positions((uint32_t)width, (uint32_t)height), tokens);
}

static void test_images(void **state) {
    (void)state;
    di_each_json_line(GOLDEN, "image_tokens", check_image, NULL, 15);
    assert_int_equal(di_recipe_image_positions(0, 5), 0);
    assert_int_equal(di_recipe_image_positions(5, 0), 0);
    assert_true(di_recipe_image_positions(1, UINT32_MAX) <= 1024);
    assert_true(di_recipe_image_positions(UINT32_MAX, 1) <= 1024);
    assert_true(di_recipe_image_positions(UINT32_MAX, UINT32_MAX) <= 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_images),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
