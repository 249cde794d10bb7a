/* needs: recipe tokenizer base */
/* The output parser: the golden file's outputs whole, byte by byte, at every two-chunk split and with markers' ids;
 * token streams; malformed output row by row; counters, ids, namespaces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "recipe/parser.h"
#include "support/json_lines.h"
#include "support/recipes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GOLDEN DI_TEST_DATA "/recipe-golden.jsonl"
#define D      "｜DSML｜"

static di_tokenizer *tokenizer;
static bool published;
static di_recipe recipe;

static int set_up(void **state) {
    (void)state;
    tokenizer = di_chat_tokenizer(&published);
    recipe = di_recipe_over(tokenizer, DI_RECIPE_V41);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    di_tokenizer_free(tokenizer);
    return 0;
}

/* ---------------------------------------------------------------------------------------------- running */

typedef struct setting {
    di_arena *arena;
    di_conversation conversation;
    di_prompt prompt;
    di_parser_options options;
} setting;

static void prepare_json(setting *s, di_flavour flavour, const di_json *request) {
    di_recipe_options options;
    di_error error = {0};
    di_recipe_options_default(&options);
    if (di_recipe_parse_request(s->arena, flavour, request, &s->conversation, &options, &error) != DI_OK ||
        di_recipe_render(&recipe, &s->conversation, &options, s->arena, &s->prompt, &error) != DI_OK)
        fail_msg("%s", error.message);
}

static void prepare(setting *s, di_flavour flavour, const char *request) {
    const di_json *root;
    di_error error = {0};
    *s = (setting){.arena = di_arena_new(0)};
    if (di_json_parse(s->arena, request, strlen(request), 0, &root, &error) != DI_OK) fail_msg("%s", error.message);
    prepare_json(s, flavour, root);
}

/* An answer, and what must hold of its parts. */
typedef struct run {
    di_answer answer;
    di_parser_end end;
    uint64_t tokens;
    uint32_t begun, ended;
    di_parser *parser;
} run;

static void take(void *arg, const di_part *part) {
    run *r = arg;
    r->tokens += part->tokens;
    if (part->kind == DI_PART_CALL_BEGIN) {
        assert_int_equal(part->call, r->begun);
        assert_int_equal(r->begun, r->ended);
        r->begun++;
    } else if (part->kind == DI_PART_CALL_END) {
        assert_int_equal(part->call, r->ended);
        r->ended++;
    } else {
        assert_true(part->length > 0);
        assert_int_equal(di_utf8_validate(part->text, part->length), part->length);
        if (part->kind == DI_PART_CALL_ARGUMENTS) assert_int_equal(r->begun, r->ended + 1);
    }
    if (part->kind >= DI_PART_CALL_BEGIN) assert_non_null(part->name);
    di_answer_take(&r->answer, part);
}

static void begin(run *r, const setting *s) {
    di_parser_options options = s->options;
    *r = (run){0};
    options.on_part = take;
    options.arg = r;
    r->parser = di_parser_new(&recipe, &s->conversation, &s->prompt, &options);
    assert_non_null(r->parser);
}

static void finish(run *r, di_output_end how) {
    di_error error = {0};
    assert_int_equal(di_parser_finish(r->parser, how, &r->end, &error), DI_OK);
    di_parser_free(r->parser);
    assert_false(r->answer.failed);
    assert_int_equal(r->begun, r->ended);
    assert_int_equal(r->begun, r->end.calls);
    assert_int_equal(r->tokens + r->end.late_tokens, r->end.tokens);
    for (size_t i = 0; i < r->answer.call_count; i++) {
        const di_answer_call *call = &r->answer.calls[i];
        const di_json *root;
        if (!call->complete) continue;
        di_arena *arena = di_arena_new(0);
        if (di_json_parse(arena, call->arguments.data, call->arguments.length, 0, &root, NULL) != DI_OK ||
            root->type != DI_JSON_OBJECT)
            fail_msg("arguments %s", call->arguments.data);
        di_arena_free(arena);
    }
}

static void done(run *r) {
    di_answer_free(&r->answer);
}

static void append_text(di_text *out, const char *label, const di_text *text) {
    di_text_puts(out, label);
    if (text->length) di_text_append(out, text->data, text->length);
}

/* Everything that must not depend on how the text was cut. */
static char *describe(const run *r) {
    di_text out = {0};
    append_text(&out, "R:", &r->answer.reasoning);
    append_text(&out, "|C:", &r->answer.content);
    for (size_t i = 0; i < r->answer.call_count; i++) {
        const di_answer_call *call = &r->answer.calls[i];
        di_text_printf(&out, "|T:%s%s%s", call->space ? call->space : "", call->space ? "/" : "", call->name);
        append_text(&out, ":", &call->arguments);
        if (!call->complete) di_text_puts(&out, "...");
    }
    di_text_printf(&out, "|%s", di_answer_finish_name(r->end.finish));
    return out.data;
}

/* The text in chunks of at most `step` bytes, the first one of `first`. */
static char *run_chunks(const setting *s, const char *text, size_t length, size_t first, size_t step,
                        di_output_end how) {
    run r;
    begin(&r, s);
    for (size_t at = 0, size = first; at < length; at += size, size = step) {
        if (size > length - at) size = length - at;
        if (size) di_parser_push(r.parser, -1, text + at, size);
        if (!size && step == 0) break;
    }
    finish(&r, how);
    char *result = describe(&r);
    done(&r);
    return result;
}

/* Whole, byte by byte and at every split. */
static char *run_all(const setting *s, const char *text, size_t length, di_output_end how) {
    char *whole = run_chunks(s, text, length, length, length, how);
    char *bytes = run_chunks(s, text, length, 1, 1, how);
    assert_string_equal(bytes, whole);
    free(bytes);
    for (size_t split = 1; split < length; split++) {
        char *two = run_chunks(s, text, length, split, length, how);
        if (strcmp(two, whole) != 0) fail_msg("split at %zu: %s, not %s", split, two, whole);
        free(two);
    }
    return whole;
}

/* ---------------------------------------------------------------------------------------------- golden outputs */

static bool is(const di_json *line, const char *member, const char *text) {
    return di_json_string_is(di_json_get(line, member), text);
}

/* What the golden file says, in the words of describe. */
static char *expected_answer(const di_json *message) {
    di_text out = {0};
    const di_json *reasoning = di_json_get(message, "reasoning_content"), *calls = di_json_get(message, "tool_calls");
    di_text_printf(&out, "R:%s|C:%s", reasoning->text ? reasoning->text : "", di_json_get(message, "content")->text);
    for (const di_json *call = calls->first; call; call = call->next)
        di_text_printf(&out, "|T:%s:%s", di_json_get(call, "name")->text, di_json_get(call, "arguments")->text);
    di_text_printf(&out, "|%s", di_json_get(message, "finish_reason")->text);
    return out.data;
}

/* Where we differ from the golden program on purpose. */
static const struct {
    const char *id, *ours;
} differences[] = {
    /* a second <think> is no content */
    {"parse/think-start-in-answer", "R:a|C:bcd|stop"},
    /* a mark in prose swallows nothing */
    {"parse/marker-in-prose", "R:r|C:I write <" D " in docs then more|stop"},
    /* arguments parse when the model ended its turn */
    {"parse/unterminated-string", "R:|C:|T:clock:{\"a\": \"un\"}|tool_calls"},
    {"parse/raw-value-not-json", "R:|C:|T:clock:{\"z\": \"maybe\"}|tool_calls"},
    {"parse/key-needs-escape", "R:|C:|T:clock:{\"a\\\\b\": \"1\", \"\": null}|tool_calls"},
    /* calls that were cut are marked */
    {"parse/unterminated-string-length", "R:|C:|T:clock:{\"a\": \"un...|length"},
    {"parse/cut-after-name", "R:|C:|T:clock:...|length"},
    {"parse/cut-in-key", "R:|C:|T:clock:{\"zo...|length"},
};

static void check_parse(void *arg, di_arena *arena, const di_json *line) {
    (void)arg;
    /* Stop strings are the engine's; there is no content filter. */
    static const char *const elsewhere[] = {"parse/stop-string", "parse/stop-two-overlapping", "parse/content-filter"};
    const char *id = di_json_get(line, "id")->text;
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++)
        if (strcmp(id, elsewhere[i]) == 0) return;
    setting s = {.arena = arena};
    prepare_json(&s, DI_FLAVOUR_CHAT, di_json_get(line, "request"));
    const di_json *text = di_json_get(line, "text");
    di_output_end how = is(line, "backend_finish", "length") ? DI_END_LENGTH : DI_END_EOS;
    char *ours = run_all(&s, text->text, text->length, how);
    char *expected = expected_answer(di_json_get(line, "message"));
    for (size_t i = 0; i < sizeof differences / sizeof *differences; i++)
        if (strcmp(id, differences[i].id) == 0) {
            free(expected);
            expected = strdup(differences[i].ours);
        }
    if (strcmp(ours, expected) != 0) fail_msg("%s: %s, not %s", id, ours, expected);
    free(ours);
    free(expected);
}

static int64_t integer(const di_json *node) {
    int64_t value = -1;
    assert_true(di_json_int64(node, &value));
    return value;
}

/* Ids of the published tokenizer, detokenised as the engine does it. */
static void check_tokens(void *arg, di_arena *arena, const di_json *line) {
    (void)arg;
    if (!published) return;
    setting s = {.arena = arena};
    prepare_json(&s, DI_FLAVOUR_CHAT, di_json_get(line, "request"));
    run r;
    di_detokenizer detokenizer;
    di_text text = {0};
    begin(&r, &s);
    di_detokenizer_init(&detokenizer, tokenizer);
    uint64_t count = 0;
    for (const di_json *chunk = di_json_get(line, "token_chunks")->first; chunk; chunk = chunk->next)
        for (const di_json *token = chunk->first; token; token = token->next, count++) {
            int32_t id = (int32_t)integer(token);
            di_text_clear(&text);
            assert_int_equal(di_detokenizer_push(&detokenizer, id, &text, NULL), DI_OK);
            di_parser_push(r.parser, id, text.data ? text.data : "", text.length);
        }
    di_text_clear(&text);
    di_detokenizer_flush(&detokenizer, &text);
    di_parser_push(r.parser, -1, text.data ? text.data : "", text.length);
    finish(&r, DI_END_EOS);
    char *ours = describe(&r), *expected = expected_answer(di_json_get(line, "message"));
    if (is(line, "id", "tokens/tail-incomplete")) { /* an incomplete character at the end is shown as such */
        free(expected);
        expected = strdup("R:|C:A\xEF\xBF\xBD|stop");
    }
    assert_string_equal(ours, expected);
    assert_int_equal(r.end.tokens, count);
    if (is(line, "id", "tokens/think-id")) assert_int_equal(r.end.reasoning_tokens, 2);
    free(ours);
    free(expected);
    done(&r);
    di_text_free(&text);
}

/* The recorded streams: the same chunks give the recorded whole. */
static void check_stream(void *arg, di_arena *arena, const di_json *line) {
    (void)arg;
    setting s = {.arena = arena};
    prepare_json(&s, di_line_flavour(line), di_json_get(line, "request"));
    if (strstr(di_json_get(line, "id")->text, "chat-2") || strstr(di_json_get(line, "id")->text, "messages-4")) {
        return; /* with stop strings */
    }
    run r;
    di_text all = {0};
    begin(&r, &s);
    for (const di_json *chunk = di_json_get(line, "chunks")->first; chunk; chunk = chunk->next) {
        di_text_append(&all, chunk->text, chunk->length);
        di_parser_push(r.parser, -1, chunk->text, chunk->length);
    }
    finish(&r, DI_END_EOS);
    char *ours = describe(&r), *whole = run_all(&s, all.data, all.length, DI_END_EOS);
    assert_string_equal(ours, whole);
    if (r.answer.call_count) {
        assert_string_equal(
            ours, "R:Ask the clock.|C:One moment.|T:clock:{\"zone\": \"Ljouwert \\\"FR\\\"\\né🙂\", \"n\": 3, "
                  "\"o\": {\"a\": [1, null]}}|T:clock:{}|tool_calls");
    } else {
        assert_true(strcmp(ours, "R:|C:Hello 🙂 there|stop") == 0 || strcmp(ours, "R:|C:Hello there|stop") == 0);
    }
    free(ours);
    free(whole);
    done(&r);
    di_text_free(&all);
}

static void test_golden(void **state) {
    (void)state;
    di_each_json_line(GOLDEN, "parse", check_parse, NULL, 53);
    di_each_json_line(GOLDEN, "parse_tokens", check_tokens, NULL, 6);
    di_each_json_line(GOLDEN, "stream", check_stream, NULL, 7);
}

/* ---------------------------------------------------------------------------------------------- malformed output */

#define ASK  "{\"messages\":[{\"role\":\"user\",\"content\":\"json\"}]"
#define CHAT ",\"thinking\":false"
#define TOOLS                                                                                                          \
    ",\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{},\"b\":{}}" \
    "}}},"                                                                                                             \
    "{\"function\":{\"name\":\"g\",\"parameters\":{\"type\":\"object\",\"properties\":{\"input\":{}}}}},{"             \
    "\"function\":{"                                                                                                   \
    "\"name\":\"h\"}}]"
#define OPEN      "<" D " calls>\n"
#define CLOSE     "</" D " calls>"
#define INVOKE(n) "<" D " invoke name=\"" n "\">\n"
#define INVOKED   "</" D " invoke>\n"
#define STR(k, v) "<" D " parameter name=\"" k "\" string=\"true\">" v "</" D " parameter>\n"
#define RAW(k, v) "<" D " parameter name=\"" k "\" string=\"false\">" v "</" D " parameter>\n"

typedef struct row {
    const char *request, *text;
    di_output_end how;
    const char *expected;
    bool lenient;
} row;

static void check_rows(const row *rows, size_t count) {
    for (size_t i = 0; i < count; i++) {
        setting s;
        prepare(&s, DI_FLAVOUR_CHAT, rows[i].request);
        s.options.lenient = rows[i].lenient;
        char *ours = run_all(&s, rows[i].text, strlen(rows[i].text), rows[i].how);
        if (strcmp(ours, rows[i].expected) != 0) fail_msg("row %zu: %s\nnot %s", i, ours, rows[i].expected);
        free(ours);
        di_arena_free(s.arena);
    }
}

static void test_malformed(void **state) {
    (void)state;
    static const char thinking[] = ASK TOOLS "}", chat[] = ASK CHAT TOOLS "}", plain[] = ASK CHAT "}";
    static const row rows[] = {
        /* 1: a block ends reasoning; without one everything is reasoning */
        {thinking, "hm\n\n" OPEN INVOKE("f") INVOKED CLOSE, DI_END_EOS, "R:hm|C:|T:f:{}|tool_calls", false},
        {thinking, "all of it", DI_END_EOS, "R:all of it|C:|stop", false},
        {thinking, "hm\n\n" INVOKE("f") INVOKED, DI_END_EOS, "R:hm|C:|T:f:{}|tool_calls", false},
        /* 2: marks without meaning */
        {chat, "a</think>b<think>c", DI_END_EOS, "R:|C:abc|stop", false},
        {thinking, "<think>a</think>\n</think>\nb", DI_END_EOS, "R:a|C:\nb|stop", false},
        /* 3: no block around the call: only with a declared name */
        {chat, "x\n" INVOKE("f") STR("a", "1") INVOKED, DI_END_EOS, "R:|C:x|T:f:{\"a\": \"1\"}|tool_calls", false},
        {chat, "x\n" INVOKE("q"), DI_END_EOS, "R:|C:x\n" INVOKE("q") "|stop", false},
        {chat, "x <" D "invoke name=\"g\">\n</" D "invoke>", DI_END_EOS, "R:|C:x |T:g:{}|tool_calls", false},
        /* 4: the mark in prose */
        {chat, "I say <" D " and <" D "| and <" D " call>.", DI_END_EOS,
         "R:|C:I say <" D " and <" D "| and <" D " call>.|stop", false},
        {chat, "a\n\n<" D, DI_END_EOS, "R:|C:a|stop", false},
        {chat, "a <" D " ca", DI_END_LENGTH, "R:|C:a |length", false},
        {chat, "a\n\n<", DI_END_EOS, "R:|C:a\n\n<|stop", false},
        {plain, "a\n\n<" D, DI_END_EOS, "R:|C:a\n\n<" D "|stop", false},
        {chat,
         "2 < 3 <b> <"
         "｜"
         "DS",
         DI_END_EOS,
         "R:|C:2 < 3 <b> <"
         "｜"
         "DS|stop",
         false},
        /* 5: misspelt openings, only if lenient, at the start of a line, with a declared name */
        {chat, "x\n<tool_calls>\n<invoke name=\"f\">\n</invoke>\n</tool_calls>", DI_END_EOS,
         "R:|C:x\n<tool_calls>\n<invoke name=\"f\">\n</invoke>\n</tool_calls>|stop", false},
        {chat,
         "x\n<tool_calls>\n<invoke name=\"f\">\n<parameter name=\"a\" string=\"true\">1 < "
         "2</parameter>\n</invoke>\n</tool_calls>",
         DI_END_EOS, "R:|C:x|T:f:{\"a\": \"1 < 2\"}|tool_calls", true},
        {chat, "x\n<tool_calls>\n<invoke name=\"q\">", DI_END_EOS, "R:|C:x\n<tool_calls>\n<invoke name=\"q\">|stop",
         true},
        {chat, "x <tool_calls>\n<invoke name=\"f\">", DI_END_EOS, "R:|C:x <tool_calls>\n<invoke name=\"f\">|stop",
         true},
        {chat, "<｜｜DSML｜｜ calls>\n<｜｜DSML｜｜ invoke name=\"f\">\n</｜｜DSML｜｜ invoke>", DI_END_EOS,
         "R:|C:|T:f:{}|tool_calls", true},
        {chat,
         "<|DSML| calls>\n<|DSML| invoke name=\"f\">\n<|DSML| parameter name=\"b\" string=\"false\">1</|DSML| "
         "parameter>\n</|DSML| invoke>",
         DI_END_EOS, "R:|C:|T:f:{\"b\": 1}|tool_calls", true},
        {chat, "<DSML｜tool_calls><DSML｜invoke name=\"f\">", DI_END_EOS, "R:|C:|T:f:{}|tool_calls", true},
        {chat, "<‖DSML‖ calls>\n<tool_calls", DI_END_EOS, "R:|C:<‖DSML‖ calls>\n<tool_calls|stop", true},
        /* 6: the call is closed by the block, by the next call, by the end */
        {chat, OPEN INVOKE("f") STR("a", "1") CLOSE, DI_END_EOS, "R:|C:|T:f:{\"a\": \"1\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") STR("a", "1") INVOKE("g") CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"1\"}|T:g:{}|tool_calls", false},
        {chat, OPEN INVOKE("f") STR("a", "1"), DI_END_EOS, "R:|C:|T:f:{\"a\": \"1\"}|tool_calls", false},
        {chat, OPEN INVOKE("f"), DI_END_EOS, "R:|C:|T:f:{}|tool_calls", false},
        /* 7: the parameter is not closed */
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">un", DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"un\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">un", DI_END_LENGTH,
         "R:|C:|T:f:{\"a\": \"un...|length", false},
        {chat, OPEN INVOKE("f") STR("a", "1") "<" D " parameter name=\"b\" string=\"false\">[1, 2", DI_END_LENGTH,
         "R:|C:|T:f:{\"a\": \"1\", \"b\": [1, 2...|length", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"b\" string=\"false\">[1, 2", DI_END_EOS,
         "R:|C:|T:f:{\"b\": \"[1, 2\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"b\" str", DI_END_EOS, "R:|C:|T:f:{}|tool_calls", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"b\" str", DI_END_LENGTH, "R:|C:|T:f:{\"b\": ...|length",
         false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">v</" D " inv", DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"v\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">v</" D " inv", DI_END_CANCELLED,
         "R:|C:|T:f:{\"a\": \"v...|cancelled", false},
        {chat, OPEN "<" D " invoke name=\"f", DI_END_LENGTH, "R:|C:|length", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"b\" string=\"false\">4</", DI_END_LENGTH,
         "R:|C:|T:f:{\"b\": 4...|length", false},
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"a\" string=\"true\">4</", DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"4</\"}|tool_calls", false},
        /* 8: what only looks like a closer */
        {chat,
         OPEN INVOKE("f") STR("a", "x</p></"
                                   "｜"
                                   "DS </" D " para</" D " parameter y") INVOKED CLOSE,
         DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"x</p></"
         "｜"
         "DS </" D " para</" D " parameter y\"}|tool_calls",
         false},
        /* 9, 10: values by their type, never by the schema's */
        {chat, OPEN INVOKE("f") RAW("a", "maybe") RAW("b", " 01 ") RAW("c", "{\"x\": 1,}") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"maybe\", \"b\": \" 01 \", \"c\": \"{\\\"x\\\": 1,}\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") STR("a", "5") RAW("b", "\n-1.50e3 ") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"5\", \"b\": -1.50e3}|tool_calls", false},
        {chat, OPEN INVOKE("f") RAW("a", "") INVOKED CLOSE, DI_END_EOS, "R:|C:|T:f:{\"a\": \"\"}|tool_calls", false},
        /* 11: all arguments in one parameter that the tool does not have */
        {chat, OPEN INVOKE("f") RAW("arguments", "{\"a\": 1}") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": 1}|tool_calls", false},
        {chat, OPEN INVOKE("f") STR("input", " {\"a\": \"</b>\"}") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"</b>\"}|tool_calls", false},
        {chat, OPEN INVOKE("g") STR("input", "{\"a\": 1}") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:g:{\"input\": \"{\\\"a\\\": 1}\"}|tool_calls", false},
        {chat, OPEN INVOKE("h") RAW("input", "{\"a\": 1}") INVOKED CLOSE, DI_END_EOS, "R:|C:|T:h:{\"a\": 1}|tool_calls",
         false},
        {chat, OPEN INVOKE("f") RAW("input", "{\"a\": 1}") STR("b", "2") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"input\": {\"a\": 1}, \"b\": \"2\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") STR("arguments", "half past") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"arguments\": \"half past\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") RAW("input", "{\"a\": 1}"), DI_END_LENGTH, "R:|C:|T:f:{\"input\": {\"a\": 1}...|length",
         false},
        {chat, OPEN INVOKE("unknown") RAW("arguments", "{\"a\": 1}") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:unknown:{\"arguments\": {\"a\": 1}}|tool_calls", false},
        /* 12: an object in place of parameters */
        {chat, OPEN INVOKE("f") "{\"a\": \"</b>\", \"b\": [1]}\n" INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"</b>\", \"b\": [1]}|tool_calls", false},
        {chat, OPEN INVOKE("f") "{\"a\": oops}\n" INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"arguments\": \"{\\\"a\\\": oops}\\n\"}|tool_calls", false},
        {chat, OPEN INVOKE("f") "{\"a\": ", DI_END_LENGTH, "R:|C:|T:f:{\"a\": ...|length", false},
        {chat, OPEN INVOKE("f") "{}" STR("a", "1") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"arguments\": \"{}<" D " parameter name=\\\"a\\\" string=\\\"true\\\">1\"}|tool_calls", false},
        /* 14: the same key twice: the last one counts */
        {chat, OPEN INVOKE("f") STR("a", "1") STR("a", "2") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"1\", \"a\": \"2\"}|tool_calls", false},
        /* 15: an unknown name in a block */
        {chat, OPEN INVOKE("who") STR("a", "1") INVOKED CLOSE, DI_END_EOS, "R:|C:|T:who:{\"a\": \"1\"}|tool_calls",
         false},
        /* 16: text behind the block */
        {chat, "c" OPEN INVOKE("f") INVOKED CLOSE "more\n" OPEN INVOKE("g") INVOKED CLOSE, DI_END_EOS,
         "R:|C:c|T:f:{}|tool_calls", false},
        {chat, "c" OPEN "noise " INVOKE("f") "noise" STR("a", "1") "noise" INVOKED "noise" CLOSE, DI_END_EOS,
         "R:|C:c|T:f:{\"a\": \"1\"}|tool_calls", false},
        /* 17: the closer's own text cannot be in a value */
        {chat, OPEN INVOKE("f") STR("a", "x</" D " parameter>y") INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"x\"}|tool_calls", false},
        /* 18: the other spelling, and both mixed */
        {chat,
         "<" D "tool_calls>\n<" D "invoke name=\"f\">\n<" D "parameter name=\"a\" string=\"true\">1</" D
         "parameter>\n</" D " invoke>\n</" D "tool_calls>",
         DI_END_EOS, "R:|C:|T:f:{\"a\": \"1\"}|tool_calls", false},
        /* a parameter without a type is text */
        {chat, OPEN INVOKE("f") "<" D " parameter name=\"a\">5</" D " parameter>\n" INVOKED CLOSE, DI_END_EOS,
         "R:|C:|T:f:{\"a\": \"5\"}|tool_calls", false},
        /* invalid UTF-8 in every place */
        {thinking,
         "a\xFF</think>b\xC3" OPEN "<" D " invoke name=\"f\xE2\x82\">\n" STR("k\xF0\x9F", "v\x80") INVOKED CLOSE,
         DI_END_EOS,
         "R:a\xEF\xBF\xBD|C:b\xEF\xBF\xBD|T:f\xEF\xBF\xBD:{\"k\xEF\xBF\xBD\": \"v\xEF\xBF\xBD\"}|tool_calls", false},
        {chat, "a\xE2\x82", DI_END_EOS, "R:|C:a\xEF\xBF\xBD|stop", false},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

/* The behaviour that the format's description lists. */
static void test_described(void **state) {
    (void)state;
    static const char thinking[] =
        ASK ",\"tools\":[{\"function\":{\"name\":\"get_weather\"}},{\"function\":{\"name\":\"g\"}}]}";
    static const char json[] = ASK CHAT ",\"response_format\":{\"type\":\"json_object\"}}";
    static const char forced[] = ASK CHAT TOOLS ",\"tool_choice\":\"required\"}";
    static const row rows[] = {
        {thinking,
         "Need tool.\n</think>\n\nLet me look.\n\n" OPEN INVOKE("get_weather") STR("location", "Pa\"ri\ns é")
             RAW("days", "3") INVOKED INVOKE("g") "\n" INVOKED CLOSE "tail",
         DI_END_EOS,
         "R:Need tool.|C:Let me look.|T:get_weather:{\"location\": \"Pa\\\"ri\\ns é\", \"days\": "
         "3}|T:g:{}|tool_calls",
         false},
        {thinking, "a</think>b<" D, DI_END_EOS, "R:a|C:b|stop", false},
        {thinking, "x</thi", DI_END_LENGTH, "R:x</thi|C:|length", false},
        {thinking, "no close at all\n\n", DI_END_EOS, "R:no close at all\n\n|C:|stop", false},
        {json, "Sure:\n```json\n{\"a\":1}\n```\nbye", DI_END_EOS, "R:|C: {\"a\":1} |stop", false},
        {json, "````json\n[1]\n``` ``", DI_END_EOS, "R:|C: [1] |stop", false},
        {json, "\n\n{\"a\": \"```\"\n\n}\n", DI_END_EOS, "R:|C:{\"a\": \"```\"\n\n}\n|stop", false},
        {json, "`` `x`", DI_END_EOS, "R:|C: |stop", false},
        {forced, INVOKE("f") STR("a", "v") INVOKED CLOSE, DI_END_EOS, "R:|C:|T:f:{\"a\": \"v\"}|tool_calls", false},
        {forced, "no call", DI_END_EOS, "R:|C:|stop", false},
    };
    check_rows(rows, sizeof rows / sizeof *rows);
}

/* ---------------------------------------------------------------------------------------------- ids and counts */

static void push(run *r, int32_t id, const char *text) {
    di_parser_push(r->parser, id, text, strlen(text));
}

/* Marks count by their id; text that spells them is text. Ids may come before their text does. */
static void test_ids_decide(void **state) {
    (void)state;
    setting s;
    run r;
    int32_t open = recipe.ids[DI_CONTROL_THINK], close = recipe.ids[DI_CONTROL_THINK_END];
    prepare(&s, DI_FLAVOUR_CHAT, ASK "}");
    begin(&r, &s);
    push(&r, 5, "say </");
    push(&r, 6, "think");
    push(&r, 7, "> and");
    push(&r, 8, "");
    push(&r, close, " x</thi");
    push(&r, 9, "nk>\n\nyes <think");
    push(&r, 10, "> no");
    push(&r, open, "<think>");
    push(&r, close, "</think>");
    push(&r, 11, ".");
    finish(&r, DI_END_EOS);
    char *ours = describe(&r);
    assert_string_equal(ours, "R:say </think> and x|C:yes <think> no.|stop");
    assert_int_equal(r.end.tokens, 10);
    assert_int_equal(r.end.reasoning_tokens, 6);
    assert_int_equal(r.end.stray_marks, 2);
    free(ours);
    done(&r);
    di_arena_free(s.arena);
}

static void test_counters(void **state) {
    (void)state;
    setting s;
    run r;
    prepare(&s, DI_FLAVOUR_CHAT, ASK CHAT TOOLS "}");
    s.options.id_prefix = "toolu_";
    s.options.id_seed = UINT64_C(0x123456789abcdef0);
    char *first[2];
    for (int i = 0; i < 2; i++) {
        begin(&r, &s);
        push(&r, 1, "hi" OPEN INVOKE("f") STR("a", "1") STR("a", "2") RAW("b", "x"));
        push(&r, 2, INVOKE("g"));
        push(&r, 3, "");
        push(&r, 4, CLOSE "abc");
        finish(&r, DI_END_EOS);
        assert_int_equal(r.end.repeated_keys, 1);
        assert_int_equal(r.end.repaired_calls, 3);
        assert_int_equal(r.end.dropped_bytes, 3);
        assert_int_equal(r.end.calls, 2);
        assert_int_equal(r.end.tokens, 4);
        assert_int_equal(strlen(r.answer.calls[0].id), strlen("toolu_00_") + 24);
        assert_memory_equal(r.answer.calls[0].id, "toolu_00_", 9);
        assert_memory_equal(r.answer.calls[1].id, "toolu_01_", 9);
        assert_string_not_equal(r.answer.calls[0].id + 9, r.answer.calls[1].id + 9);
        first[i] = strdup(r.answer.calls[1].id);
        done(&r);
    }
    assert_string_equal(first[0], first[1]);
    s.options.id_seed++;
    begin(&r, &s);
    push(&r, 1, OPEN INVOKE("f") INVOKED INVOKE("f"));
    finish(&r, DI_END_ERROR);
    assert_int_equal(r.end.finish, DI_ANSWER_ERROR);
    assert_string_not_equal(r.answer.calls[1].id, first[0]);
    assert_true(r.answer.calls[0].complete);
    assert_false(r.answer.calls[1].complete);
    done(&r);
    free(first[0]);
    free(first[1]);
    di_arena_free(s.arena);
}

/* A call of the history, read back as if the model had written it: the arguments as Python would write them. */
static void test_round_trip(void **state) {
    (void)state;
    static const char *const rows[] = {
        "{}",
        "{\"a\": 1}",
        "{\"a\": \"x < y </b> \\\"q\\\" \\\\ \\n\\t\\u0001 é🙂 ｜DSML｜ <｜User｜>\", \"\": null}",
        "{\"a b\": [1, 2.0, 1e-05, true, {\"k\": {}}], \"é\": {\"x\": \"</｜DSML｜\"}, \"n\": -0.0}",
        "{\"input\": \"text\", \"arguments\": [1]}",
        "{\"s\": \"\", \"t\": \" \", \"u\": \"\\n\\n\", \"v\": \"12\", \"w\": \"{}\", \"x\": \"null\"}",
        "{\"big\": 123456789012345678901234567890, \"deep\": [[[[[[[[]]]]]]]]}",
        "{\"a\": \"</｜DSML｜ parameter\", \"b\": \"<｜DSML｜ invoke name=\\\"z\\\">\"}",
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int profile = 0; profile < 3; profile++) {
            setting s;
            di_text text = {0};
            di_text_puts(&text, ASK ",\"thinking\":false,\"tools\":[{\"function\":{\"name\":\"f\"}}]}");
            prepare(&s, DI_FLAVOUR_CHAT, text.data);
            const di_json *arguments;
            assert_int_equal(di_json_parse(s.arena, rows[i], strlen(rows[i]), 0, &arguments, NULL), DI_OK);
            di_tool_call calls[] = {{.id = "1", .name = "f", .arguments = arguments},
                                    {.id = "2", .name = "g q", .arguments = arguments}};
            const di_content said = {DI_CONTENT_TEXT, "Well.", 5};
            const di_message messages[] = {
                {.role = DI_ROLE_USER},
                {.role = DI_ROLE_ASSISTANT, .content = &said, .content_count = 1, .calls = calls, .call_count = 2}};
            const di_conversation history = {.messages = messages, .count = 2};
            di_recipe other = recipe;
            di_recipe_options options;
            di_prompt prompt;
            other.profile = (di_recipe_profile)profile;
            di_recipe_options_default(&options);
            options.thinking = false;
            options.no_header = true;
            assert_int_equal(di_recipe_render(&other, &history, &options, s.arena, &prompt, NULL), DI_OK);
            const char *written = strstr(prompt.text, "</think>") + strlen("</think>");
            size_t length = strlen(written) - strlen("<｜end▁of▁sentence｜>");
            char *ours = run_all(&s, written, length, DI_END_EOS);
            di_text_clear(&text);
            di_text_printf(&text, "R:|C:Well.|T:f:%s|T:g q:%s|tool_calls", rows[i], rows[i]);
            assert_string_equal(ours, text.data);
            free(ours);
            di_text_free(&text);
            di_arena_free(s.arena);
        }
}

static void test_namespaces(void **state) {
    (void)state;
    setting s;
    prepare(&s, DI_FLAVOUR_RESPONSES,
            "{\"input\":\"x\",\"reasoning\":{\"effort\":\"none\"},\"tools\":[{\"type\":\"namespace\",\"name\":\"p\","
            "\"tools\":[{\"type\":\"function\",\"name\":\"c\"},{\"type\":\"function\",\"name\":\"c\"}]}]}");
    const char *text = OPEN INVOKE("p::c") INVOKED INVOKE("p::c_1") INVOKED INVOKE("q::d::e") INVOKED INVOKE("z") CLOSE;
    char *ours = run_all(&s, text, strlen(text), DI_END_EOS);
    assert_string_equal(ours, "R:|C:|T:p/c:{}|T:p/c:{}|T:q/d::e:{}|T:z:{}|tool_calls");
    free(ours);
    di_arena_free(s.arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),     cmocka_unit_test(test_malformed), cmocka_unit_test(test_described),
        cmocka_unit_test(test_ids_decide), cmocka_unit_test(test_counters),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_namespaces),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
