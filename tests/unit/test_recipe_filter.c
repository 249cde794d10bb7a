/* needs: recipe tokenizer base */
/* With --filter: a filter for tests/e2e/test_recipe_package.py. A line {"api", "profile", "request"} gives a line
 * {"prompt", "controls": [[start, end], ...] in bytes, "start", "tools", "json", "constraint"} or {"error", "param"}.
 * Without: the filter's own answer to one line of each kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "recipe/recipe.h"
#include "support/recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const starts[] = {"reasoning", "answer", "reasoning_continued", "answer_continued", "calls"};
static const char *const kinds[] = {"none", "json", "regex", "tool_call", "tool_call_required"};

static void write_prompt(di_json_writer *w, const di_conversation *conversation, const di_prompt *prompt) {
    di_json_key(w, "prompt");
    di_json_string_n(w, prompt->text, prompt->length);
    di_json_key(w, "controls");
    di_json_array_begin(w);
    for (size_t i = 0; i < prompt->count; i++) {
        const di_text_segment *s = &prompt->segments[i];
        if (!s->control) continue;
        di_json_array_begin(w);
        di_json_unsigned(w, (uint64_t)(s->text - prompt->text));
        di_json_unsigned(w, (uint64_t)(s->text - prompt->text) + s->length);
        di_json_array_end(w);
    }
    di_json_array_end(w);
    di_json_key(w, "start");
    di_json_string(w, starts[prompt->start]);
    di_json_key(w, "tools");
    di_json_bool(w, prompt->tools);
    di_json_key(w, "json");
    di_json_bool(w, conversation->format == DI_FORMAT_JSON_OBJECT);
    di_json_key(w, "constraint");
    di_json_string(w, kinds[prompt->constraint.kind]);
}

static void answer(const di_recipe *recipes, const char *text, size_t length, di_text *out) {
    di_arena *arena = di_arena_new(0);
    assert_non_null(arena);
    const di_json *line;
    di_error error = {0};
    di_conversation conversation;
    di_prompt prompt;
    di_recipe_options options;
    di_recipe_options_default(&options);
    options.images = options.pass_unknown = true;
    di_status status = di_json_parse(arena, text, length, 0, &line, &error);
    if (status == DI_OK) {
        const di_json *request = di_json_get(line, "request");
        int profile = DI_RECIPE_V41;
        while (strcmp(di_recipe_profile_name((di_recipe_profile)profile), di_json_get(line, "profile")->text) != 0)
            profile++; /* the lines are ours: it is one of the three */
        status = di_recipe_parse_request(arena, di_line_flavour(line), request, &conversation, &options, &error);
        if (status == DI_OK)
            status = di_recipe_render(&recipes[profile], &conversation, &options, arena, &prompt, &error);
    }
    di_json_writer writer;
    di_json_begin(&writer, out);
    di_json_object_begin(&writer);
    if (status == DI_OK) {
        write_prompt(&writer, &conversation, &prompt);
    } else {
        di_json_key(&writer, "error");
        di_json_string(&writer, error.message);
        di_json_key(&writer, "param");
        di_json_string(&writer, error.param);
    }
    di_json_object_end(&writer);
    di_arena_free(arena);
}

static di_recipe recipes[3];

static int set_up(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) recipes[i] = di_recipe_over(NULL, (di_recipe_profile)i);
    return 0;
}

static void test_lines(void **state) {
    (void)state;
    static const struct {
        const char *line, *answer;
    } rows[] = {
        {"{\"api\":\"chat\",\"profile\":\"v4.1\",\"request\":{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
         "\"thinking\":false}}",
         "{\"prompt\":\"<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></"
         "think>\",\"controls\":[[0,29],[29,41],[42,59],[59,67]],"
         "\"start\":\"answer\",\"tools\":false,\"json\":false,\"constraint\":\"none\"}"},
        {"{\"api\":\"messages\",\"profile\":\"v4-0731\",\"request\":{\"messages\":[]}}",
         "{\"error\":\"messages: at least one message is required\",\"param\":\"messages\"}"},
    };
    for (size_t i = 0; i < 2; i++) {
        di_text out = {0};
        answer(recipes, rows[i].line, strlen(rows[i].line), &out);
        assert_string_equal(out.data, rows[i].answer);
        di_text_free(&out);
    }
}

static int filter(void) {
    char *line = NULL;
    size_t capacity = 0;
    if (set_up(NULL) != 0) return 1;
    for (ssize_t length; (length = getline(&line, &capacity, stdin)) > 0;) {
        di_text out = {0};
        answer(recipes, line, (size_t)length, &out);
        di_text_putc(&out, '\n');
        fwrite(out.data, 1, out.length, stdout);
        di_text_free(&out);
    }
    free(line);
    return 0;
}

int main(int count, char **arguments) {
    if (count > 1 && strcmp(arguments[1], "--filter") == 0) return filter();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lines)};
    return cmocka_run_group_tests(tests, set_up, NULL);
}
