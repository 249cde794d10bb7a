/* needs: recipe tokenizer base */
/* Reasoning and content of an output, for every way of cutting it into tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

enum { THINK_END = 128822, OTHER = 5 };
static const char mark[] = "</think>";

/* `cuts` decides where a token ends; the mark is always the control token. */
static void split(di_splitter *splitter, const char *text, size_t length, uint64_t cuts, di_text *reasoning,
                  di_text *content) {
    for (size_t at = 0, end; at < length; at = end) {
        end = at + 1;
        int32_t id = OTHER;
        if (length - at >= sizeof mark - 1 && memcmp(text + at, mark, sizeof mark - 1) == 0) {
            end = at + sizeof mark - 1;
            id = THINK_END;
        } else {
            while (end < length && !(cuts >> end % 61 & 1) && text[end] != '<') end++;
        }
        di_splitter_push(splitter, id, text + at, end - at, reasoning, content);
    }
    di_splitter_finish(splitter, "", 0, reasoning, content);
}

static void check(const char *text, size_t length, di_answer_start start, const char *reasoning, const char *content) {
    di_recipe recipe = {.ids = {[DI_CONTROL_THINK_END] = THINK_END}};
    for (uint64_t i = 0; i < 200; i++) {
        di_splitter splitter;
        di_text r = {0}, c = {0};
        di_splitter_init(&splitter, &recipe, start);
        split(&splitter, text, length, i == 0 ? UINT64_MAX : i == 1 ? 0 : i * 0x9E3779B97F4A7C15u, &r, &c);
        assert_string_equal(r.data ? r.data : "", reasoning);
        assert_string_equal(c.data ? c.data : "", content);
        di_text_free(&r);
        di_text_free(&c);
    }
}

static void test_golden(void **state) {
    (void)state;
    char *text;
    size_t length;
    unsigned checked = 0;
    assert_int_equal(di_read_file(DI_TEST_DATA "/recipe-golden.jsonl", 1u << 26, &text, &length, NULL), DI_OK);
    di_arena *arena = di_arena_new(0);
    for (char *at = text, *end; at < text + length; at = end + 1) {
        const di_json *line;
        end = memchr(at, '\n', (size_t)(text + length - at));
        assert_non_null(end);
        assert_int_equal(di_json_parse(arena, at, (size_t)(end - at), 0, &line, NULL), DI_OK);
        const di_json *request = di_json_get(line, "request"), *message = di_json_get(line, "message");
        if (di_json_string_is(di_json_get(line, "kind"), "parse") &&
            di_json_string_is(di_json_get(line, "api"), "chat") && !di_json_get(request, "tools") &&
            !di_json_get(request, "response_format") && !di_json_get(request, "stop")) {
            bool thinking = di_json_string_is(di_json_get(line, "start"), "reasoning");
            const di_json *reasoning = di_json_get(message, "reasoning_content");
            const di_json *output = di_json_get(line, "text");
            check(output->text, output->length, thinking ? DI_START_REASONING : DI_START_ANSWER,
                  reasoning->type == DI_JSON_STRING ? reasoning->text : "", di_json_get(message, "content")->text);
            checked++;
        }
        di_arena_reset(arena);
    }
    assert_int_equal(checked, 17);
    di_arena_free(arena);
    free(text);
}

static void test_line_breaks(void **state) {
    (void)state;
#define CHECK(text, start, reasoning, content) check(text, strlen(text), start, reasoning, content)
    CHECK("\n\na\n\nb\n\n</think>\n\nc\n\n", DI_START_REASONING, "a\n\nb", "c\n\n");
    CHECK("\n\na\n</think>x", DI_START_REASONING_CONTINUED, "\n\na", "x");
    CHECK("\n\na", DI_START_ANSWER_CONTINUED, "", "\n\na");
    CHECK("a\n\n", DI_START_REASONING, "a\n\n", "");
    CHECK("\n\n", DI_START_REASONING, "", "");
    CHECK("\n</think>", DI_START_REASONING_CONTINUED, "", "");
    CHECK("</think>\nx", DI_START_ANSWER, "", "\nx");
    CHECK("a</think>\n</think>\nb", DI_START_REASONING, "a", "\nb");
}

/* Text that spells the mark in ordinary tokens is text, and what the detokeniser held back stays in its part. */
static void test_ids_decide(void **state) {
    (void)state;
    di_recipe recipe = {.ids = {[DI_CONTROL_THINK_END] = THINK_END}};
    di_splitter splitter;
    di_text r = {0}, c = {0};
    di_splitter_init(&splitter, &recipe, DI_START_REASONING);
    di_splitter_push(&splitter, OTHER, "a</think>", 9, &r, &c);
    di_splitter_push(&splitter, OTHER, "", 0, &r, &c);
    di_splitter_push(&splitter, THINK_END, "\xEF\xBF\xBD</think>", 11, &r, &c);
    di_splitter_push(&splitter, OTHER, "b", 1, &r, &c);
    di_splitter_finish(&splitter, "\xEF\xBF\xBD", 3, &r, &c);
    assert_string_equal(r.data, "a</think>\xEF\xBF\xBD");
    assert_string_equal(c.data, "b\xEF\xBF\xBD");
    assert_true(splitter.reasoning_tokens == 3);
    di_text_free(&r);
    di_text_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_line_breaks),
        cmocka_unit_test(test_ids_decide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
