/* needs: recipe engine grammar spec cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* Stop strings act in what the parser takes for the answer, and in nothing else: the engine's matcher with the parser's
 * openings against the parser itself, on texts of pieces of markup. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/stop.h"
#include "recipe/parser.h"
#include "support/recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define D "｜DSML｜"

static di_tokenizer *tokenizer;
static di_recipe recipe;
static di_arena *arena;
static di_conversation conversation;
static di_prompt prompt;

static int set_up(void **state) {
    (void)state;
    static const char request[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"thinking\":false,\"tools\":["
                                  "{\"function\":{\"name\":\"go\"}},{\"function\":{\"name\":\"gone\"}}]}";
    bool published;
    const di_json *root;
    di_recipe_options options;
    tokenizer = di_chat_tokenizer(&published);
    recipe = di_recipe_over(tokenizer, DI_RECIPE_V41);
    arena = di_arena_new(0);
    di_recipe_options_default(&options);
    options.thinking = false;
    return di_json_parse(arena, request, strlen(request), 0, &root, NULL) != DI_OK ||
           di_recipe_parse_request(arena, DI_FLAVOUR_CHAT, root, &conversation, &options, NULL) != DI_OK ||
           di_recipe_render(&recipe, &conversation, &options, arena, &prompt, NULL) != DI_OK;
}

static int tear_down(void **state) {
    (void)state;
    di_arena_free(arena);
    di_tokenizer_free(tokenizer);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- both sides */

/* What the parser takes for the answer. */
static void parse(const char *text, bool lenient, di_answer *answer) {
    di_parser_options options = {.lenient = lenient, .on_part = di_answer_take, .arg = answer};
    di_parser *parser = di_parser_new(&recipe, &conversation, &prompt, &options);
    di_parser_end end;
    assert_non_null(parser);
    di_parser_push(parser, -1, text, strlen(text));
    assert_int_equal(di_parser_finish(parser, DI_END_EOS, &end, NULL), DI_OK);
    di_parser_free(parser);
}

/* The matcher as the engine has it, given the text in pieces of `piece` bytes. */
static int32_t match(const char *text, size_t piece, bool lenient, const char *stop, size_t armed_at, di_text *out) {
    static const char *const *openings[2];
    static size_t counts[2];
    di_error error = {0};
    di_arena *own = di_arena_new(0);
    di_stop_set set;
    di_stop_matcher matcher;
    if (!openings[lenient]) {
        assert_int_equal(
            di_parser_openings(&conversation, &prompt, lenient, arena, &openings[lenient], &counts[lenient], &error),
            DI_OK);
        assert_non_null(openings[lenient]);
    }
    assert_int_equal(di_stop_set_build(&set, own, &stop, 1, &error), DI_OK);
    assert_int_equal(di_stop_set_add_ends(&set, own, openings[lenient], counts[lenient], &error), DI_OK);
    assert_true(di_stop_matcher_init(&matcher, own, &set, !armed_at));
    int32_t result = -1;
    di_text_clear(out);
    for (size_t at = 0, length = strlen(text); at < length && result < 0;) {
        size_t next = at + piece;
        if (at < armed_at && next > armed_at) next = armed_at;
        if (next > length) next = length;
        result = di_stop_push(&matcher, text + at, next - at, out);
        at = next;
        if (at == armed_at) di_stop_arm(&matcher);
    }
    if (result < 0) result = di_stop_finish(&matcher, out);
    if (result < 0) di_stop_flush(&matcher, out);
    di_stop_matcher_free(&matcher);
    di_arena_free(own);
    return result;
}

/* ---------------------------------------------------------------------------------------------- rows */

static void rows(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool lenient, stops;
    } cases[] = {
        {"I write <" D "> and then o", false, true},
        {"I write " D " and then o", false, true},
        {"<" D " calls>\n<" D " invoke name=\"go\">", false, false},
        {"a\n\n<" D "tool_calls>o", false, false},
        {"a <" D "invoke name=\"gone\"", false, false},
        {"a <" D "invoke name=\"gon", false, true},
        {"a <" D "invoke name=\"other\"", false, true},
        {"a <" D "  calls>", false, false},
        {"a <" D " invoke name=\"go\">o", false, false},
        {"a <" D " cal <" D " calls>o", false, false},
        {"a <" D "<" D " calls>o", false, false},
        {"\n<tool_calls>\n<invoke name=\"go\">", true, false},
        {"\n<tool_calls>\n<invoke name=\"go\">", false, true},
        {"a <tool_calls>\n<invoke name=\"go\">", true, true},
        {"<tool_calls>  \n\n <invoke name=\"go\">", true, false},
        {"<|DSML| calls><|DSML| invoke name=\"go\">", true, false},
        {"<tool_calls> are what I know of", true, true},
    };
    di_text out = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece <= strlen(cases[i].text); piece++) {
            int32_t got = match(cases[i].text, piece, cases[i].lenient, "o", 0, &out);
            if ((got >= 0) != cases[i].stops) fail_msg("%s in pieces of %zu: %d", cases[i].text, piece, got);
            if (got < 0) assert_string_equal(out.data, cases[i].text);
        }
    di_text_free(&out);
}

/* A text that is long enough to be none is let go. */
static void holds_no_more_than_the_parser(void **state) {
    (void)state;
    char text[2000] = "<tool_calls>";
    memset(text + strlen(text), '\n', 1000);
    strcat(text, "<invoke name=\"go\">");
    di_text out = {0};
    di_answer answer = {0};
    parse(text, true, &answer);
    assert_int_equal(answer.call_count, 0);
    assert_int_equal(match(text, 7, true, "invoke", 0, &out), 0);
    di_answer_free(&answer);
    di_text_free(&out);
}

/* ---------------------------------------------------------------------------------------------- random texts */

static uint32_t roll(uint32_t *random, uint32_t below) {
    *random = *random * 1664525 + 1013904223;
    return (*random >> 8) % below;
}

/* The stop string is in the answer or not; which of the many texts are calls is the parser's word. */
static void stops_where_the_parser_sees_an_answer(void **state) {
    (void)state;
    /* Openings leave the name of a misspelt call out, so there is no undeclared one among the lenient pieces. */
    static const char *const pieces[2][22] = {
        {"a",
         "o",
         " ",
         "\n",
         "<",
         ">",
         "<" D,
         D,
         "DSML",
         "calls>",
         " calls>",
         "tool_calls>",
         "invoke name=\"",
         " invoke name=\"",
         "go",
         "go\"",
         "gone\"",
         "other\"",
         "</" D,
         "<" D " calls>",
         "\n<tool_calls>",
         "<invoke name=\"go\""},
        {"a",
         "o",
         " ",
         "\n",
         "<",
         ">",
         "<" D,
         D,
         "DSML",
         "calls>",
         " calls>",
         "tool_calls>",
         "go",
         "\n<tool_calls>",
         "</" D,
         "\n<|DSML| calls>",
         "<invoke name=\"go\"",
         "<|DSML| invoke name=\"gone\"",
         "<" D " calls>",
         "<|DSML|calls>",
         "<" D "invoke name=\"go\"",
         "tool"},
    };
    enum { PIECES = 22, ROUNDS = 20000 };
    uint32_t random = 7, stopped = 0, calls = 0;
    di_text text = {0}, out = {0};
    for (int round = 0; round < ROUNDS; round++) {
        bool lenient = round & 1;
        di_text_clear(&text);
        for (uint32_t i = 2 + roll(&random, 8); i; i--) di_text_puts(&text, pieces[lenient][roll(&random, PIECES)]);
        if (text.data[text.length - 1] == '\n') di_text_puts(&text, "a");
        di_text_puts(&text, "go\"."); /* a name that is open at the end would be neither */
        di_answer answer = {0};
        parse(text.data, lenient, &answer);
        const char *in_answer = answer.content.data ? strchr(answer.content.data, 'o') : NULL;
        int32_t got = match(text.data, 1 + roll(&random, 9), lenient, "o", 0, &out);
        if ((got >= 0) != (in_answer != NULL))
            fail_msg("%s%s: the matcher says %d, the answer is %s", lenient ? "lenient " : "", text.data, got,
                     answer.content.data ? answer.content.data : "");
        size_t before = got < 0 ? text.length : (size_t)(strchr(text.data, 'o') - text.data);
        assert_int_equal(out.length, before);
        if (before) assert_memory_equal(out.data, text.data, before);
        stopped += got >= 0;
        calls += answer.call_count > 0;
        di_answer_free(&answer);
    }
    print_message("%d texts: %u stopped, %u with calls\n", ROUNDS, stopped, calls);
    assert_true(stopped > ROUNDS / 10 && calls > ROUNDS / 50);
    di_text_free(&text);
    di_text_free(&out);
}

/* ---------------------------------------------------------------------------------------------- reasoning */

/* Not armed, text goes on at once; calls in reasoning end it, and what looks like its end inside them arms nothing. */
static void calls_in_reasoning(void **state) {
    (void)state;
    di_text out = {0};
    static const char thought[] = "go on\n<", calls[] = "o\n<" D " calls>o</think>";
    for (size_t piece = 1; piece < sizeof calls; piece++) {
        assert_int_equal(match("go on\n<o", piece, false, "o", strlen(thought), &out), 0);
        assert_string_equal(out.data, thought);
        char text[64];
        snprintf(text, sizeof text, "%so", calls);
        assert_int_equal(match(text, piece, false, "o", strlen(calls), &out), -1);
        assert_string_equal(out.data, text);
    }
    di_text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows),
        cmocka_unit_test(holds_no_more_than_the_parser),
        cmocka_unit_test(stops_where_the_parser_sees_an_answer),
        cmocka_unit_test(calls_in_reasoning),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
