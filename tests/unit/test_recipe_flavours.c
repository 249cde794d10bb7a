/* needs: recipe tokenizer base */
/* /v1/messages and /v1/responses: prompts that only they have, and refusals with the field as the client wrote it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/recipes.h"

#include <stdlib.h>
#include <string.h>

static di_recipe recipe;

static int set_up(void **state) {
    (void)state;
    recipe = di_recipe_over(NULL, DI_RECIPE_V41);
    return 0;
}

/* A request and what became of it. */
typedef struct asked {
    di_arena *arena;
    di_recipe_options options;
    di_conversation conversation;
    di_prompt prompt;
    di_status status;
    di_error error;
} asked;

static void ask(asked *a, int flavour, const char *text, bool forced_thought) {
    const di_json *request;
    *a = (asked){.arena = di_arena_new(0)};
    di_recipe_options_default(&a->options);
    a->options.forced_thought = forced_thought;
    if (di_json_parse(a->arena, text, strlen(text), 0, &request, &a->error) != DI_OK)
        fail_msg("%s: %s", text, a->error.message);
    a->status =
        di_recipe_parse_request(a->arena, (di_flavour)flavour, request, &a->conversation, &a->options, &a->error);
    if (a->status == DI_OK)
        a->status = di_recipe_render(&recipe, &a->conversation, &a->options, a->arena, &a->prompt, &a->error);
}

static void ask_accepted(asked *a, int flavour, const char *text) {
    ask(a, flavour, text, false);
    if (a->status != DI_OK) fail_msg("%s: %s", text, a->error.message);
}

#define U          "{\"role\":\"user\",\"content\":\"a\"}"
#define OFF        ",\"thinking\":{\"type\":\"disabled\"}"
#define MSG(list)  "{\"messages\":[" list "]" OFF "}"
#define USE        "{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"u1\",\"name\":\"t\",\"input\":{}}]}"
#define RESULT(id) "{\"type\":\"tool_result\",\"tool_use_id\":\"" id "\",\"content\":\"r\"}"
#define NONE       ",\"reasoning\":{\"effort\":\"none\"}"
#define IN(list)   "{\"input\":[" list "]" NONE "}"
#define CALL(id)   "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"t\",\"arguments\":\"{}\"}"
#define OUT(id)    "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"o\"}"
#define BOS        "<｜begin▁of▁sentence｜>"
#define EOS        "<｜end▁of▁sentence｜>"
#define CALLED     "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"t\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" EOS

enum { C = DI_FLAVOUR_CHAT, M = DI_FLAVOUR_MESSAGES, R = DI_FLAVOUR_RESPONSES };

static void test_prompts(void **state) {
    (void)state;
    static const struct {
        int flavour;
        const char *request, *prompt;
    } rows[] = {
        {M,
         MSG(U
             ",{\"role\":\"assistant\",\"content\":[{\"type\":\"redacted_thinking\",\"data\":\"x\"},{\"type\":\"text\","
             "\"text\":\"\"},{\"type\":\"text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"\"}]}," U),
         BOS "<｜User｜>a<｜Assistant｜></think>b\n\n" EOS "<｜User｜>a<｜Assistant｜></think>"},
        {M, MSG(U "," USE ",{\"role\":\"user\",\"content\":[" RESULT("u1") ",{\"type\":\"text\",\"text\":\"more\"}]}"),
         BOS "<｜User｜>a<｜Assistant｜></think>" CALLED
             "<｜User｜><tool_result>r</tool_result>\n\nmore<｜Assistant｜></think>"},
        {M, "{\"system\":\"\",\"messages\":[" U "]" OFF "}", BOS "<｜System｜><｜User｜>a<｜Assistant｜></think>"},
        {M,
         "{\"messages\":[" U "]" OFF ",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":"
         "\"object\"}}}}",
         BOS "<｜System｜>\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to "
             "reply:\n{\"type\": \"object\"}<｜User｜>a<｜Assistant｜></think>"},
        {M, "{\"messages\":[" U "]" OFF ",\"tools\":null,\"tool_choice\":null,\"system\":null,\"output_config\":null}",
         BOS "<｜User｜>a<｜Assistant｜></think>"},
        {C,
         "{\"messages\":[" U "]" OFF ",\"tools\":[{\"type\":null,\"function\":{\"name\":\"t\",\"description\":null,"
         "\"parameters\":null,\"strict\":null}}],\"tool_choice\":\"none\",\"chat_template_kwargs\":{\"thinking\":null}"
         "}",
         BOS "<｜User｜>a<｜Assistant｜></think>"},
        {R, IN(U "," CALL("k") "," OUT("k")),
         BOS "<｜User｜>a<｜Assistant｜></think>" CALLED
             "<｜User｜><tool_result>o</tool_result><｜Assistant｜></think>"},
        {R,
         IN("{\"type\":\"web_search_call\"}," U ",{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":\"assistant\","
            "\"content\":[{\"type\":\"refusal\",\"refusal\":\"no\"}]}"),
         BOS "<｜User｜>a<｜Assistant｜></think>b\n\nno" EOS "<｜Assistant｜></think>"},
        {R, "{\"instructions\":\"I\"" NONE "}", BOS "<｜System｜>I<｜Assistant｜></think>"},
        {R, "{\"instructions\":\"\",\"input\":\"x\"" NONE "}", BOS "<｜User｜>x<｜Assistant｜></think>"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        asked a;
        ask_accepted(&a, rows[i].flavour, rows[i].request);
        assert_string_equal(a.prompt.text, rows[i].prompt);
        di_arena_free(a.arena);
    }
}

static void test_refused(void **state) {
    (void)state;
    static const struct {
        int flavour;
        const char *request, *param, *says;
    } rows[] = {
        {M, "{\"messages\":5}", "messages", "a list"},
        {M, "{\"messages\":[]}", "messages", "at least one message"},
        {M, "[]", "", "an object"},
        {M, MSG("5"), "messages[0]", "an object"},
        {M, MSG("{\"content\":\"a\"}"), "messages[0].role", "absent"},
        {M, MSG("{\"role\":\"developer\",\"content\":\"a\"}"), "messages[0].role", "developer"},
        {M, MSG("{\"role\":\"user\"}"), "messages[0].content", "absent"},
        {M, MSG("{\"role\":\"user\",\"content\":[]}"), "messages[0].content", "non-empty"},
        {M, MSG("{\"role\":\"user\",\"content\":[{}]}"), "messages[0].content[0]", "a type"},
        {M, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}"), "messages[0].content[0].text", "absent"},
        {M, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"search_result\"}]}"), "messages[0].content[0]",
         "search_result"},
        {M, MSG("{\"role\":\"user\",\"content\":[{\"type\":\"image\",\"source\":{\"type\":\"url\",\"url\":\"u\"}}]}"),
         "messages[0].content[0]", "images are not available"},
        {M, MSG(U "," USE "," U), "messages[2]", "messages.2: `tool_use` ids were found"},
        {M, MSG(U "," USE), "messages[2]", "u1"},
        {M, MSG(U "," USE ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}," RESULT("u1") "]}"),
         "messages[2]", "u1"},
        {M, MSG("{\"role\":\"user\",\"content\":[" RESULT("u1") "]}"), "messages[0].content[0]", "unexpected"},
        {M, MSG(U "," USE ",{\"role\":\"user\",\"content\":[" RESULT("u1") "," RESULT("u1") "]}"),
         "messages[2].content[1]", "single result"},
        {M, MSG(U ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"name\":\"t\",\"input\":{}}]}"),
         "messages[1].content[0].id", "absent"},
        {M,
         MSG(U
             ",{\"role\":\"assistant\",\"content\":[{\"type\":\"tool_use\",\"id\":\"u\",\"name\":\"t\",\"input\":5}]}"),
         "messages[1].content[0].input", "a number"},
        {M, "{\"messages\":[" U "],\"thinking\":{\"type\":\"zz\"}}", "thinking", "adaptive"},
        {M, "{\"messages\":[" U "],\"output_config\":{\"effort\":\"zz\"}}", "output_config.effort", "zz"},
        {M, "{\"messages\":[" U "],\"output_config\":{\"format\":{\"type\":\"text\"}}}", "output_config.format.type",
         "text"},
        {M, "{\"messages\":[" U "],\"system\":5}", "system", "a number"},
        {M, "{\"messages\":[" U "],\"tools\":[{\"type\":\"bash_20250124\",\"name\":\"bash\"}]}", "tools[0].type",
         "tools[0]: server tools"},
        {M, "{\"messages\":[" U "],\"tools\":[{\"name\":\"bash\"}]}", "tools[0].input_schema", "absent"},
        {M, "{\"messages\":[" U "],\"tool_choice\":\"auto\"}", "tool_choice", "a type"},
        {M, "{\"messages\":[" U "],\"tool_choice\":{\"type\":\"zz\"}}", "tool_choice.type", "zz"},
        {M, "{\"messages\":[" U "],\"tool_choice\":{\"type\":\"any\"}}", "tool_choice", "no tools"},
        {M,
         "{\"messages\":[" U "],\"tools\":[{\"name\":\"t\",\"input_schema\":{\"type\":\"object\"}}],\"tool_choice\":{"
         "\"type\":\"tool\",\"name\":\"t\"}}",
         "tool_choice", "Thinking mode"},
        {R, "{}", "input", "Either input"},
        {R, "{\"input\":5}", "input", "a number"},
        {R, "{\"input\":[]}", "input", "must not be empty"},
        {R, "{\"input\":\"x\",\"instructions\":5}", "instructions", "a number"},
        {R, IN("5"), "input[0]", "an object"},
        {R, IN("{\"type\":5}"), "input[0].type", "a number"},
        {R, IN("{\"content\":\"x\"}"), "input[0].role", "absent"},
        {R, IN("{\"role\":\"tool\",\"content\":\"x\"}"), "input[0].role", "tool"},
        {R, IN("{\"role\":\"user\",\"content\":[{\"type\":\"input_file\"}]}"), "input[0].content[0]", "input_file"},
        {R, IN("{\"role\":\"user\",\"content\":[{\"type\":\"input_image\",\"image_url\":\"u\"}]}"),
         "input[0].content[0]", "images are not"},
        {R, IN("{\"type\":\"item_reference\",\"id\":\"x\"}"), "input[0].type", "not stored"},
        {R, IN(U "," CALL("k")), "input[1]", "No tool output found for tool call k."},
        {R, IN(U "," OUT("k")), "input[1].call_id", "No tool call found"},
        {R, IN(U "," CALL("k") "," OUT("k") "," OUT("k")), "input[3].call_id", "Duplicate tool output"},
        {R, IN(U "," CALL("k") "," CALL("k") "," OUT("k")), "input[2].call_id", "Duplicate 'call_id': k."},
        {R, IN(U "," CALL("k") "," U "," OUT("k")), "input[1]", "No tool output"},
        {R, IN(U ",{\"type\":\"function_call\",\"call_id\":\"k\",\"arguments\":\"{}\"}"), "input[1].name", "absent"},
        {R, "{\"input\":\"x\",\"tools\":[{\"type\":\"custom\",\"name\":\"zz\"}]}", "tools[0].name", "apply_patch"},
        {R, "{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\",\"name\":\"a b\",\"tools\":[]}]}", "tools[0].name",
         "pattern"},
        {R,
         "{\"input\":\"x\",\"tools\":[{\"type\":\"namespace\",\"name\":\"p\",\"tools\":[{\"type\":\"function\","
         "\"name\":"
         "\"\"}]}]}",
         "tools[0].tools[0].name", "empty string"},
        {R, "{\"input\":\"x\",\"tool_choice\":{\"type\":\"file_search\"}}", "tool_choice.type", "function"},
        {R, "{\"input\":\"x\",\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice.mode", "required"},
        {R, "{\"input\":\"x\",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[]}}",
         "tool_choice.tools", "not empty"},
        {R,
         "{\"input\":\"x\",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":"
         "\"function\",\"name\":\"f\"}]}}",
         "tool_choice.tools[0]", "no function named 'f'"},
        {R, "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_object\"}}}", "text.format", "'json'"},
        {R, "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format.schema", "absent"},
        {R,
         "{\"input\":\"x\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":{\"type\":\"allowed_"
         "tools\","
         "\"mode\":\"auto\",\"tools\":[{\"type\":\"function\",\"name\":\"f\"},{\"type\":\"function\",\"name\":\"f\"}]}"
         "}",
         "tool_choice.tools", "more than there are tools"},
        {R, "{\"input\":\"x\",\"reasoning\":5}", "reasoning", "a number"},
        {R, "{\"input\":\"x\",\"reasoning\":{\"effort\":5.5}}", "reasoning.effort", "5.5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        asked a;
        ask(&a, rows[i].flavour, rows[i].request, false);
        if (a.status == DI_OK || di_status_http(a.status) != 400 || strcmp(a.error.param, rows[i].param) != 0 ||
            !strstr(a.error.message, rows[i].says))
            fail_msg("%s: %d, param \"%s\", \"%s\"", rows[i].request, (int)a.status, a.error.param, a.error.message);
        di_arena_free(a.arena);
    }
}

/* What the three interfaces ask for beyond the prompt. */
static void test_choices(void **state) {
    (void)state;
#define TOOL "\"tools\":[{\"name\":\"t\",\"input_schema\":{\"type\":\"object\"}}]"
    static const struct {
        const char *request;
        di_tool_choice choice;
        bool one_call;
        di_constraint_kind constraint;
    } rows[] = {
        {"{\"messages\":[" U "]" OFF "," TOOL "}", DI_CHOICE_AUTO, false, DI_CONSTRAINT_CALLS},
        {"{\"messages\":[" U "]" OFF "," TOOL ",\"tool_choice\":{\"type\":\"any\"}}", DI_CHOICE_REQUIRED, false,
         DI_CONSTRAINT_FORCED_CALLS},
        {"{\"messages\":[" U "]" OFF "," TOOL ",\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}}",
         DI_CHOICE_REQUIRED, true, DI_CONSTRAINT_FORCED_CALLS},
        {"{\"messages\":[" U "]" OFF "," TOOL
         ",\"tool_choice\":{\"type\":\"auto\",\"disable_parallel_tool_use\":true}}",
         DI_CHOICE_AUTO, true, DI_CONSTRAINT_CALLS},
        {"{\"messages\":[" U "]" OFF "," TOOL ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"t\"}}", DI_CHOICE_NAMED,
         false, DI_CONSTRAINT_FORCED_CALLS},
        {"{\"messages\":[" U "]" OFF "," TOOL ",\"tool_choice\":{\"type\":\"none\"}}", DI_CHOICE_NONE, false,
         DI_CONSTRAINT_NONE},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        asked a;
        ask_accepted(&a, DI_FLAVOUR_MESSAGES, rows[i].request);
        assert_int_equal(a.conversation.choice, rows[i].choice);
        assert_int_equal(a.conversation.one_call, rows[i].one_call);
        assert_int_equal(a.prompt.constraint.kind, rows[i].constraint);
        assert_int_equal(a.prompt.start == DI_START_CALLS, rows[i].constraint == DI_CONSTRAINT_FORCED_CALLS);
        di_arena_free(a.arena);
    }
}

/* A forced call after reasoning is the caller's to enforce, so he has to say that he can. */
static void test_forced_thought(void **state) {
    (void)state;
    asked a;
    ask(&a, DI_FLAVOUR_CHAT,
        "{\"messages\":[" U "],\"tools\":[{\"function\":{\"name\":\"t\",\"strict\":true}}],"
        "\"tool_choice\":\"required\",\"parallel_tool_calls\":false}",
        true);
    assert_int_equal(a.status, DI_OK);
    assert_int_equal(a.prompt.start, DI_START_REASONING);
    assert_int_equal(a.prompt.constraint.kind, DI_CONSTRAINT_FORCED_CALLS);
    assert_true(a.prompt.constraint.after_thought && a.prompt.constraint.strict && a.prompt.constraint.one_call);
    assert_string_equal(a.prompt.constraint.opener, "\n\n<｜DSML｜ calls>\n");
    assert_int_equal(a.prompt.constraint.tool_count, 1);
    assert_int_equal(a.prompt.stop_arm_token_id, recipe.ids[DI_CONTROL_THINK_END]);
    di_arena_free(a.arena);
}

/* Keys keep their places; what is missing is appended, at every depth. */
static void test_strict(void **state) {
    (void)state;
    static const struct {
        const char *schema, *shown; /* shown: a message if it is refused */
    } rows[] = {
        {"{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"object\",\"properties\":{\"x\":{}}},\"b\":{\"type\":"
         "\"array\","
         "\"items\":{\"type\":\"object\"}}},\"minLength\":1}",
         "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"object\", \"properties\": {\"x\": {}}, "
         "\"additionalProperties\": false, \"required\": [\"x\"]}, \"b\": {\"type\": \"array\", \"items\": {\"type\": "
         "\"object\", \"properties\": {}, \"additionalProperties\": false, \"required\": []}}}, \"minLength\": 1, "
         "\"additionalProperties\": false, \"required\": [\"a\", \"b\"]}"},
        {"{\"required\":[\"b\",\"a\"],\"additionalProperties\":false,\"type\":\"object\",\"properties\":{\"a\":{},"
         "\"b\":{}}}",
         "{\"required\": [\"b\", \"a\"], \"additionalProperties\": false, \"type\": \"object\", \"properties\": "
         "{\"a\": {}, "
         "\"b\": {}}}"},
        {"{\"type\":\"object\",\"properties\":{\"type\":{\"type\":\"string\"},\"c\":{\"anyOf\":[{\"type\":\"object\"},{"
         "}]}},"
         "\"$defs\":{\"t\":{\"type\":\"object\"}}}",
         "\"$defs\": {\"t\": {\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false, \"required\": "
         "[]}}, "
         "\"additionalProperties\": false, \"required\": [\"type\", \"c\"]}"},
        {"null", "{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false, \"required\": []}"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[]}", "Required properties must match"},
        {"{\"type\":\"object\",\"required\":[\"q\"]}", "'q' not found"},
        {"{\"type\":\"object\",\"properties\":{\"a\":{}},\"required\":[\"a\",\"a\"]}",
         "Duplicate required property 'a'"},
        {"{\"type\":\"object\",\"additionalProperties\":true}", "additionalProperties"},
        {"{\"type\":\"object\",\"properties\":[]}", "properties must be an object"},
        {"{\"type\":\"object\",\"required\":5}", "array of property names"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        asked a;
        di_text request = {0};
        di_text_printf(&request,
                       "{\"messages\":[" U "]" OFF ",\"tools\":[{\"function\":{\"name\":\"t\",\"strict\":true,"
                       "\"parameters\":%s}}]}",
                       rows[i].schema);
        bool refused = rows[i].shown[0] != '{' && rows[i].shown[0] != '"';
        ask(&a, DI_FLAVOUR_CHAT, request.data, false);
        if (refused) {
            assert_int_equal(a.status, DI_ERR_INVALID_ARGUMENT);
            assert_string_equal(a.error.param, "tools[0].function.parameters");
            if (!strstr(a.error.message, rows[i].shown)) fail_msg("row %zu: %s", i, a.error.message);
        } else if (a.status != DI_OK || !strstr(a.prompt.text, rows[i].shown)) {
            fail_msg("row %zu: %s", i, a.status == DI_OK ? a.prompt.text : a.error.message);
        }
        di_text_free(&request);
        di_arena_free(a.arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),        cmocka_unit_test(test_refused), cmocka_unit_test(test_choices),
        cmocka_unit_test(test_forced_thought), cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
