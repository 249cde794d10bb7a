/* needs: recipe tokenizer base */
/* Output behind three bytes (how the prompt ended, how the output ends, how it is cut): the answer does not depend on
 * the cuts, is valid UTF-8, holds no markup, and the arguments of closed calls are JSON objects. Then the same with
 * token ids, their text at once and byte by byte. */
#include "recipe/parser.h"

#include <stdlib.h>
#include <string.h>

typedef struct setting {
    const di_recipe *recipe;
    di_conversation conversation;
    di_prompt prompt;
    di_parser_options options;
    di_output_end how;
} setting;

typedef struct result {
    di_answer answer;
    di_parser_end end;
} result;

static void take(void *arg, const di_part *part) {
    result *r = arg;
    if (part->length && di_utf8_validate(part->text, part->length) != part->length) abort();
    if (part->kind <= DI_PART_CONTENT && !part->length) abort();
    di_answer_take(&r->answer, part);
}

static di_parser *begin(const setting *s, result *r) {
    di_parser_options options = s->options;
    *r = (result){0};
    options.on_part = take;
    options.arg = r;
    di_parser *parser = di_parser_new(s->recipe, &s->conversation, &s->prompt, &options);
    if (!parser) abort();
    return parser;
}

static void finish(const setting *s, di_parser *parser, result *r) {
    if (di_parser_finish(parser, s->how, &r->end, NULL) != DI_OK || r->answer.failed) abort();
    di_parser_free(parser);
    if (r->end.calls != r->answer.call_count) abort();
}

static bool same_text(const di_text *a, const di_text *b) {
    return a->length == b->length && (!a->length || memcmp(a->data, b->data, a->length) == 0);
}

static void compare(const result *a, const result *b) {
    bool same = same_text(&a->answer.reasoning, &b->answer.reasoning) &&
                same_text(&a->answer.content, &b->answer.content) && a->answer.call_count == b->answer.call_count &&
                a->end.finish == b->end.finish && a->end.stray_marks == b->end.stray_marks &&
                a->end.dropped_bytes == b->end.dropped_bytes && a->end.repaired_calls == b->end.repaired_calls &&
                a->end.repeated_keys == b->end.repeated_keys;
    if (!same) abort();
    for (size_t i = 0; i < a->answer.call_count; i++) {
        const di_answer_call *x = &a->answer.calls[i], *y = &b->answer.calls[i];
        if (strcmp(x->name, y->name) != 0 || strcmp(x->id, y->id) != 0 || x->complete != y->complete ||
            !same_text(&x->arguments, &y->arguments))
            abort();
    }
}

static bool holds(const di_text *text, const char *mark) {
    return text->length && memmem(text->data, text->length, mark, strlen(mark));
}

static void check_marks(const setting *s, const result *r) {
    static const char *const marks[] = {"<think>", "</think>", "<｜DSML｜ calls>", "<｜DSML｜tool_calls>"};
    if (r->end.stray_marks || s->prompt.json) return; /* what stood around a dropped mark may join up to one */
    for (size_t i = 0; i < (s->prompt.tools ? 4 : 2); i++)
        if (holds(&r->answer.reasoning, marks[i]) || holds(&r->answer.content, marks[i])) abort();
}

static void check_calls(const result *r) {
    for (size_t i = 0; i < r->answer.call_count; i++) {
        const di_answer_call *call = &r->answer.calls[i];
        if (!call->complete) continue;
        const di_json *root;
        di_arena *arena = di_arena_new(0);
        if (!arena || !call->arguments.length ||
            di_json_parse(arena, call->arguments.data, call->arguments.length, 0, &root, NULL) != DI_OK ||
            root->type != DI_JSON_OBJECT)
            abort();
        di_arena_free(arena);
    }
}

static void run_pieces(const setting *s, const char *text, size_t length, uint32_t seed, result *r) {
    di_parser *parser = begin(s, r);
    for (size_t at = 0, size; at < length; at += size) {
        seed = seed * 1664525 + 1013904223;
        size = seed >> 24 & 1 ? 1 : 1 + (seed >> 25) % 23;
        if (size > length - at) size = length - at;
        di_parser_push(parser, -1, text + at, size);
    }
    finish(s, parser, r);
}

/* Tokens of a few bytes; a mark is one token, and now and then that token's id comes with other text. */
static void run_tokens(const setting *s, const char *text, size_t length, bool bytes, result *r) {
    static const char *const marks[] = {"<think>", "</think>"};
    di_parser *parser = begin(s, r);
    for (size_t at = 0, size; at < length; at += size) {
        int32_t id = 1000 + (uint8_t)text[at];
        size = 1 + (uint8_t)text[at] % 5;
        for (size_t i = 0; i < 2; i++)
            if (length - at >= strlen(marks[i]) && memcmp(text + at, marks[i], strlen(marks[i])) == 0) {
                size = strlen(marks[i]);
                id = s->recipe->ids[i ? DI_CONTROL_THINK_END : DI_CONTROL_THINK];
            }
        if (size > length - at) size = length - at;
        di_parser_push(parser, id, text + at, bytes ? 0 : size);
        for (size_t i = 0; bytes && i < size; i++) di_parser_push(parser, -1, text + at + i, 1);
    }
    finish(s, parser, r);
}

static void prepare(setting *s, di_arena *arena, uint8_t how) {
    static const char *const requests[] = {
        "{\"messages\":[{\"role\":\"user\",\"content\":\"json\"}],\"tools\":[{\"function\":{\"name\":\"f\","
        "\"parameters\":{"
        "\"type\":\"object\",\"properties\":{\"a\":{}}}}},{\"function\":{\"name\":\"g\"}}]",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"json\"}]",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"json\"}],\"response_format\":{\"type\":\"json_object\"}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"json\"}],\"response_format\":{\"type\":\"json_object\"},"
        "\"tools\":["
        "{\"function\":{\"name\":\"f\"}}]"};
    static const char *const ends[] = {"}", ",\"thinking\":false}",
                                       ",\"thinking\":false,\"tool_choice\":\"required\"}"};
    const di_json *root;
    di_recipe_options options;
    di_text text = {0};
    bool tools = how % 4 == 0 || how % 4 == 3;
    di_text_puts(&text, requests[how % 4]);
    di_text_puts(&text, ends[how / 4 % (tools ? 3 : 2)]); /* a call cannot be forced without tools */
    di_recipe_options_default(&options);
    if (di_json_parse(arena, text.data, text.length, 0, &root, NULL) != DI_OK ||
        di_recipe_parse_request(arena, DI_FLAVOUR_CHAT, root, &s->conversation, &options, NULL) != DI_OK ||
        di_recipe_render(s->recipe, &s->conversation, &options, arena, &s->prompt, NULL) != DI_OK)
        abort();
    s->options.lenient = how & 64;
    s->options.grammar = how & 128;
    di_text_free(&text);
}

static void done(result *r) {
    di_answer_free(&r->answer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static di_tokenizer *tokenizer;
    static di_recipe recipe;
    if (!tokenizer) {
        if (di_tokenizer_load(DI_SOURCE_DIR "/models/tiny", &tokenizer, NULL)) abort();
        if (di_recipe_open(tokenizer, DI_RECIPE_V41, NULL, &recipe, NULL)) abort();
    }
    if (size < 3) return 0;
    const char *text = (const char *)data + 3;
    size_t length = size - 3;
    di_arena *arena = di_arena_new(0);
    setting s = {.recipe = &recipe, .how = (di_output_end)(data[1] % 5)};
    result whole, pieces;
    prepare(&s, arena, data[0]);
    di_parser *parser = begin(&s, &whole);
    di_parser_push(parser, -1, text, length);
    finish(&s, parser, &whole);
    check_marks(&s, &whole);
    check_calls(&whole);
    for (uint32_t i = 0; i < 2; i++) {
        run_pieces(&s, text, length, data[2] + 256 * i, &pieces);
        compare(&whole, &pieces);
        done(&pieces);
    }
    done(&whole);
    run_tokens(&s, text, length, false, &whole);
    run_tokens(&s, text, length, true, &pieces);
    compare(&whole, &pieces);
    check_calls(&whole);
    if (whole.end.tokens != pieces.end.tokens || whole.end.reasoning_tokens != pieces.end.reasoning_tokens) abort();
    done(&whole);
    done(&pieces);
    di_arena_free(arena);
    return 0;
}
