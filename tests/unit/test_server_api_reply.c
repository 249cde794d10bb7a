/* needs: server recipe engine grammar cache sampling model backend_cpu tokenizer checkpoint tensor base */
/* Answers in the words of each interface: streams recorded from the reference package, and the invariants of streams
 * for every cut of the text. What we add to the recorded objects (seed, drafts, ...) is allowed, nothing may lack. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/stop.h"
#include "server/api_reply.h"
#include "support/json_lines.h"
#include "support/recipes.h"

static di_tokenizer *tokenizer;
static di_recipe recipe;

static int setup(void **state) {
    (void)state;
    tokenizer = di_embedded_tokenizer();
    recipe = di_recipe_over(tokenizer, DI_RECIPE_V41);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    di_tokenizer_free(tokenizer);
    return 0;
}

/* --------------------------------------------------------------------------------------------- running a row */

typedef struct run {
    di_arena *arena;
    const di_json *row, *request;
    di_reply_kind kind;
    di_conversation conversation;
    di_prompt prompt;
    di_reply reply;
} run;

static void prepare(run *r, bool stream) {
    static const di_reply_kind kinds[] = {[DI_FLAVOUR_CHAT] = DI_REPLY_CHAT,
                                          [DI_FLAVOUR_MESSAGES] = DI_REPLY_MESSAGES,
                                          [DI_FLAVOUR_RESPONSES] = DI_REPLY_RESPONSES};
    di_error error;
    di_recipe_options options;
    di_flavour flavour = di_line_flavour(r->row);
    r->kind = kinds[flavour];
    r->request = di_json_get(r->row, "request");
    di_recipe_options_default(&options);
    if (di_recipe_parse_request(r->arena, flavour, r->request, &r->conversation, &options, &error) != DI_OK)
        fail_msg("%s", error.message);
    if (di_recipe_render(&recipe, &r->conversation, &options, r->arena, &r->prompt, &error) != DI_OK)
        fail_msg("%s", error.message);
    const di_json *stream_options = di_json_get(r->request, "stream_options");
    di_reply_options reply = {.kind = r->kind,
                              .id = "ID0",
                              .tail = "ID0",
                              .model = "DeepSeek-V4.1-Flash",
                              .prompts = 1,
                              .samples = 1,
                              .stream = stream,
                              .include_usage = di_json_is_true(di_json_get(stream_options, "include_usage")),
                              .thinking = options.thinking,
                              .logprobs = -1,
                              .temperature = 1,
                              .top_p = 1,
                              .request = r->request};
    assert_int_equal(di_reply_init(&r->reply, &reply, &error), DI_OK);
}

static void take_part(void *arg, const di_part *part) {
    di_reply_part(arg, 0, part);
}

static uint64_t number_of(const di_json *object, const char *name) {
    uint64_t value = 0;
    assert_true(di_json_uint64(di_json_get(object, name), &value));
    return value;
}

/* The tokens that the reference counted. */
static uint64_t output_tokens(const run *r) {
    const di_json *usage = di_json_get(di_json_get(r->row, "whole"), "usage");
    return number_of(usage, r->kind == DI_REPLY_CHAT ? "completion_tokens" : "output_tokens");
}

/* Feeds the chunks, or the whole text in pieces of `cut` bytes if that is not 0 (characters may be cut: the text goes
 * through a detokeniser's rule of whole characters first, so pieces are extended to a character's end). */
static void feed(run *r, size_t cut) {
    di_error error;
    di_text text = {0};
    const di_json *stop = di_json_get(r->request, r->kind == DI_REPLY_MESSAGES ? "stop_sequences" : "stop");
    const char *stops[1] = {stop ? stop->first->text : NULL};
    di_stop_set set;
    di_stop_matcher matcher;
    assert_int_equal(di_stop_set_build(&set, r->arena, stops, stop ? 1 : 0, &error), DI_OK);
    assert_true(di_stop_matcher_init(&matcher, r->arena, &set, true));
    di_parser_options options = {.id_seed = 1, .on_part = take_part, .arg = &r->reply};
    di_parser *parser = di_parser_new(&recipe, &r->conversation, &r->prompt, &options);
    assert_non_null(parser);
    di_reply_begin(&r->reply);
    r->reply.usage.prompt_tokens = number_of(r->row, "prompt_tokens");
    r->reply.usage.cached_tokens = number_of(r->row, "cached_tokens");
    di_reply_prompt(&r->reply);

    for (const di_json *c = di_json_get(r->row, "chunks")->first; c; c = c->next)
        di_text_append(&text, c->text, c->length);
    const di_json *chunk = di_json_get(r->row, "chunks")->first;
    int32_t hit = -1;
    di_text certain = {0};
    for (size_t at = 0; at < text.length && hit < 0;) {
        size_t length = cut ? cut : chunk->length;
        if (length > text.length - at) length = text.length - at;
        while (at + length < text.length && ((unsigned char)text.data[at + length] & 0xC0) == 0x80) length++;
        di_text_clear(&certain);
        hit = di_stop_push(&matcher, text.data + at, length, &certain);
        di_parser_push(parser, -1, certain.data ? certain.data : "", certain.length);
        at += length;
        if (!cut) chunk = chunk->next;
    }
    if (hit < 0) {
        di_text_clear(&certain);
        di_stop_flush(&matcher, &certain);
        if (certain.length) di_parser_push(parser, -1, certain.data, certain.length);
    }
    di_parser_end end;
    assert_int_equal(di_parser_finish(parser, hit < 0 ? DI_END_EOS : DI_END_STOP_STRING, &end, &error), DI_OK);
    di_event event = {.stop_string = hit < 0 ? NULL : stops[0], .stop_token_id = -1};
    r->reply.usage.completion_tokens = output_tokens(r);
    di_reply_finish(&r->reply, 0, end.finish, &event, 0);
    di_reply_end(&r->reply);
    assert_false(di_reply_failed(&r->reply));
    di_parser_free(parser);
    di_stop_matcher_free(&matcher);
    di_text_free(&certain);
    di_text_free(&text);
}

/* ---------------------------------------------------------------------------------------- events, normalised */

/* One event, or a run of deltas of one kind with their texts joined. */
typedef struct event {
    const char *name; /* "" = none */
    const di_json *data;
    char kind[80]; /* of deltas; "" otherwise */
    di_text text;
} event;

enum { EVENTS_MAX = 1000 };

static void note_delta(event *e, const char *kind, uint64_t index, const di_json *text) {
    snprintf(e->kind, sizeof e->kind, "%s %llu", kind, (unsigned long long)index);
    di_text_append(&e->text, text->text, text->length);
}

static bool has_text(const di_json *value) {
    return value && value->type == DI_JSON_STRING && value->length;
}

static void classify_chat(event *e) {
    const di_json *choices = di_json_get(e->data, "choices");
    const di_json *choice = choices ? choices->first : NULL;
    const di_json *delta = di_json_get(choice, "delta"), *calls = di_json_get(delta, "tool_calls");
    if (!delta || di_json_get(choice, "finish_reason")->type != DI_JSON_NULL) return;
    if (calls && !di_json_get(calls->first, "id")) {
        const di_json *function = di_json_get(calls->first, "function");
        note_delta(e, "arguments", number_of(calls->first, "index"), di_json_get(function, "arguments"));
    } else if (has_text(di_json_get(delta, "content"))) {
        note_delta(e, "content", 0, di_json_get(delta, "content"));
        assert_true(!di_json_get(delta, "reasoning_content") ||
                    di_json_get(delta, "reasoning_content")->type == DI_JSON_NULL);
    } else if (has_text(di_json_get(delta, "reasoning_content"))) {
        note_delta(e, "reasoning", 0, di_json_get(delta, "reasoning_content"));
    }
}

static void classify(event *e) {
    const di_json *type = di_json_get(e->data, "type");
    if (!type) {
        classify_chat(e);
        return;
    }
    assert_string_equal(type->text, e->name);
    const di_json *delta = di_json_get(e->data, "delta");
    if (strcmp(e->name, "content_block_delta") == 0) {
        const di_json *kind = di_json_get(delta, "type");
        for (const di_json *member = delta->first; member; member = member->next)
            if (member != kind) note_delta(e, kind->text, number_of(e->data, "index"), member);
    } else if (strlen(e->name) > 6 && strcmp(e->name + strlen(e->name) - 6, ".delta") == 0) {
        note_delta(e, e->name, number_of(e->data, "output_index"), delta);
    }
}

static size_t add_event(event *list, size_t count, const char *name, const di_json *data) {
    assert_true(count < EVENTS_MAX);
    event *e = &list[count];
    memset(e, 0, sizeof *e);
    e->name = name;
    e->data = data;
    classify(e);
    if (!e->kind[0] || !count || strcmp(list[count - 1].kind, e->kind) != 0) return count + 1;
    di_text_append(&list[count - 1].text, e->text.data, e->text.length);
    di_text_free(&e->text);
    return count;
}

/* "event: x\ndata: {...}\n\n" ... into events; *done: [DONE] was last. */
static size_t split_stream(di_arena *arena, const di_text *out, event *list, bool *done) {
    size_t count = 0;
    *done = false;
    for (const char *at = out->data; *at;) {
        const char *end = strstr(at, "\n\n");
        assert_non_null(end);
        assert_false(*done);
        const char *name = "";
        if (strncmp(at, "event: ", 7) == 0) {
            const char *line = strchr(at, '\n');
            name = di_arena_copy(arena, at + 7, (size_t)(line - at - 7));
            at = line + 1;
        }
        assert_int_equal(strncmp(at, "data: ", 6), 0);
        at += 6;
        if (strncmp(at, "[DONE]", 6) == 0) {
            *done = true;
        } else {
            const di_json *data;
            di_error error;
            assert_int_equal(di_json_parse(arena, at, (size_t)(end - at), 0, &data, &error), DI_OK);
            count = add_event(list, count, name, data);
        }
        at = end + 2;
    }
    return count;
}

static void free_events(event *list, size_t count) {
    for (size_t i = 0; i < count; i++) di_text_free(&list[i].text);
}

/* ------------------------------------------------------------------------------------------------- comparing */

/* A digest where the reference has the response's id; none while an item begins. */
static bool is_signature(const char *text, size_t length) {
    return length == 0 || (length == 32 && strspn(text, "0123456789abcdef") == 32);
}

/* Ids of calls are random there: "call_00_*". */
static bool same_string(const di_json *wanted, const di_json *got) {
    if (wanted->key && (strcmp(wanted->key, "signature") == 0 || strcmp(wanted->key, "encrypted_content") == 0))
        return is_signature(got->text, got->length) && (wanted->length || !got->length);
    if (strncmp(wanted->text, "call_", 5) == 0 && wanted->text[wanted->length - 1] == '*')
        return strncmp(wanted->text + 5, got->text + 5, 3) == 0 && got->length == 32;
    return wanted->length == got->length && memcmp(wanted->text, got->text, got->length) == 0;
}

/* All that is wanted is there; order of events and items counts, order of members does not. */
static bool contains(const di_json *wanted, const di_json *got, char *where, size_t room) {
    bool same = got && wanted->type == got->type;
    if (same && wanted->type == DI_JSON_STRING) same = same_string(wanted, got);
    if (same && wanted->type == DI_JSON_NUMBER) {
        double a, b;
        same = di_json_double(wanted, &a) && di_json_double(got, &b) && a == b;
    }
    if (same && wanted->type == DI_JSON_ARRAY) {
        same = wanted->count == got->count;
        const di_json *b = got->first;
        for (const di_json *a = wanted->first; same && a; a = a->next, b = b->next) same = contains(a, b, where, room);
    }
    if (same && wanted->type == DI_JSON_OBJECT)
        for (const di_json *a = wanted->first; same && a; a = a->next)
            same = strcmp(a->key, "sequence_number") == 0 || contains(a, di_json_get(got, a->key), where, room);
    if (!same && !*where)
        snprintf(where, room, "%s: wanted %s, got %s", wanted->key ? wanted->key : "?",
                 wanted->text ? wanted->text : di_json_type_name(wanted->type),
                 got ? (got->text ? got->text : di_json_type_name(got->type)) : "nothing");
    return same;
}

static void compare_events(const run *r, const event *wanted, size_t wanted_count, const event *got, size_t count) {
    const char *id = di_json_get(r->row, "id")->text;
    if (r->reply.options.include_usage) { /* the chunk that the reference leaves out */
        assert_int_equal(di_json_get(got[count - 1].data, "choices")->count, 0);
        count--;
    }
    for (size_t i = 0; i < wanted_count && i < count; i++) {
        char where[300] = "";
        if (strcmp(wanted[i].name, got[i].name) != 0 || strcmp(wanted[i].kind, got[i].kind) != 0)
            fail_msg("%s: event %zu is %s %s, not %s %s", id, i, got[i].name, got[i].kind, wanted[i].name,
                     wanted[i].kind);
        if (strncmp(wanted[i].kind, "signature_delta", strlen("signature_delta")) == 0) {
            assert_true(got[i].text.length == 32 && is_signature(got[i].text.data, 32));
        } else if (wanted[i].kind[0]) {
            if (wanted[i].text.length != got[i].text.length ||
                memcmp(wanted[i].text.data, got[i].text.data, got[i].text.length) != 0)
                fail_msg("%s: %s is \"%s\", not \"%s\"", id, wanted[i].kind, got[i].text.data, wanted[i].text.data);
        } else if (!contains(wanted[i].data, got[i].data, where, sizeof where)) {
            fail_msg("%s: event %zu %s: %s", id, i, wanted[i].name, where);
        }
    }
    if (wanted_count != count) fail_msg("%s: %zu events, not %zu", id, count, wanted_count);
}

static void for_every_stream(void (*check)(void *arg, di_arena *arena, const di_json *row)) {
    di_each_json_line(DI_TEST_DATA "/recipe-golden.jsonl", "stream", check, NULL, 7);
}

static void row_gives_the_recorded_events(void *arg, di_arena *arena, const di_json *row) {
    (void)arg;
    static event wanted[EVENTS_MAX], got[EVENTS_MAX];
    run r = {.arena = arena, .row = row};
    size_t wanted_count = 0;
    bool done;
    prepare(&r, true);
    feed(&r, 0);
    for (const di_json *e = di_json_get(row, "events")->first; e; e = e->next) {
        const di_json *name = di_json_get(e, "event");
        wanted_count =
            add_event(wanted, wanted_count, name->type == DI_JSON_STRING ? name->text : "", di_json_get(e, "data"));
    }
    size_t count = split_stream(r.arena, &r.reply.out, got, &done);
    compare_events(&r, wanted, wanted_count, got, count);
    assert_true(done == (r.kind == DI_REPLY_CHAT));
    free_events(wanted, wanted_count);
    free_events(got, count);
    di_reply_free(&r.reply);
}

static void recorded_streams(void **state) {
    (void)state;
    for_every_stream(row_gives_the_recorded_events);
}

static void row_gives_the_recorded_whole(void *arg, di_arena *arena, const di_json *row) {
    (void)arg;
    run r = {.arena = arena, .row = row};
    char where[300] = "";
    const di_json *got;
    di_error error;
    prepare(&r, false);
    feed(&r, 0);
    assert_int_equal(di_json_parse(r.arena, r.reply.out.data, r.reply.out.length, 0, &got, &error), DI_OK);
    if (!contains(di_json_get(row, "whole"), got, where, sizeof where))
        fail_msg("%s: %s", di_json_get(row, "id")->text, where);
    di_reply_free(&r.reply);
}

static void recorded_whole_answers(void **state) {
    (void)state;
    for_every_stream(row_gives_the_recorded_whole);
}

/* Any way to cut the text gives the same whole answer, the same joined stream, and numbers without a gap. */
static void row_survives_every_cut(void *arg, di_arena *arena, const di_json *row) {
    (void)arg;
    static event first[EVENTS_MAX], got[EVENTS_MAX];
    size_t first_count = 0;
    bool done;
    di_text whole = {0};
    for (size_t cut = 1; cut < 24; cut++) {
        run r = {.arena = di_arena_new(0), .row = row};
        prepare(&r, false);
        feed(&r, cut);
        if (cut == 1) di_text_append(&whole, r.reply.out.data, r.reply.out.length);
        assert_int_equal(whole.length, r.reply.out.length);
        assert_memory_equal(whole.data, r.reply.out.data, whole.length);
        di_reply_free(&r.reply);
        prepare(&r, true);
        feed(&r, cut);
        if (cut == 1) first_count = split_stream(arena, &r.reply.out, first, &done);
        size_t count = split_stream(r.arena, &r.reply.out, got, &done);
        r.reply.options.include_usage = false; /* both have that chunk */
        compare_events(&r, first, first_count, got, count);
        if (r.kind == DI_REPLY_RESPONSES) {
            char last[64];
            snprintf(last, sizeof last, "\"sequence_number\":%llu}", (unsigned long long)r.reply.sequence - 1);
            assert_non_null(strstr(r.reply.out.data, last));
        }
        free_events(got, count);
        di_reply_free(&r.reply);
        di_arena_free(r.arena);
    }
    free_events(first, first_count);
    di_text_free(&whole);
}

static void every_cut_gives_the_same(void **state) {
    (void)state;
    for_every_stream(row_survives_every_cut);
}

/* -------------------------------------------------------------------------------------------- what rows lack */

/* Options of an answer that has no row: to one prompt, one sample. */
static di_reply_options options_of(int kind, bool stream) {
    return (di_reply_options){.kind = (di_reply_kind)kind,
                              .id = "x",
                              .tail = "x",
                              .model = "m",
                              .prompts = 1,
                              .samples = 1,
                              .stream = stream,
                              .logprobs = -1};
}

static size_t count_of(const char *text, const char *mark) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, mark)); at++) count++;
    return count;
}

static void several_choices_end_once_each(void **state) {
    (void)state;
    di_error error;
    di_reply reply;
    di_reply_options options = options_of(DI_REPLY_CHAT, true);
    options.fingerprint = "f";
    options.samples = 3;
    options.include_usage = true;
    di_event ended = {.stop_token_id = -1, .has_logits_hash = true, .logits_hash = 0x0123456789abcdefU};
    assert_int_equal(di_reply_init(&reply, &options, &error), DI_OK);
    di_reply_begin(&reply);
    for (uint32_t i = 0; i < 3; i++)
        di_reply_part(&reply, 2 - i, &(di_part){.kind = DI_PART_CONTENT, .text = "ab", .length = 2});
    for (uint32_t i = 0; i < 3; i++) di_reply_finish(&reply, (i + 1) % 3, DI_ANSWER_LENGTH, &ended, 0);
    di_reply_end(&reply);
    assert_int_equal(count_of(reply.out.data, "\"finish_reason\":\"length\""), 3);
    /* In the last choice's end and in the chunk that was asked for. */
    assert_int_equal(count_of(reply.out.data, "\"usage\":{"), 2);
    assert_non_null(strstr(reply.out.data, "\"logits_hash\":\"0123456789abcdef\""));
    assert_non_null(strstr(reply.out.data, "\"choices\":[],\"usage\""));
    di_reply_free(&reply);
}

static void logprobs_add_up(void **state) {
    (void)state;
    di_error error;
    di_logprob top[2] = {{65, -0.5F}, {66, -20000.0F}};
    for (int kind = DI_REPLY_CHAT; kind <= DI_REPLY_COMPLETION; kind++)
        for (int stream = 0; stream < 2; stream++) {
            di_reply reply;
            di_reply_options options = options_of(kind, stream);
            options.logprobs = 2;
            options.tokenizer = tokenizer;
            options.token_ids = true;
            options.prompt_ids = &(di_ids){.data = (int32_t[]){7}, .count = 1};
            di_event token = {.kind = DI_EVENT_TOKEN,
                              .token_id = 65,
                              .logprob = -0.5F,
                              .top = top,
                              .top_count = 2,
                              .stop_token_id = -1};
            assert_int_equal(di_reply_init(&reply, &options, &error), DI_OK);
            di_reply_begin(&reply);
            for (int i = 0; i < 3; i++) {
                token.logprob = i ? -0.5F : NAN;
                di_reply_token(&reply, 0, &token, false);
                if (i == 1) di_reply_part(&reply, 0, &(di_part){.kind = DI_PART_CONTENT, .text = "q", .length = 1});
            }
            di_reply_finish(&reply, 0, DI_ANSWER_STOP, &token, 0);
            di_reply_end(&reply);
            const char *mark = kind == DI_REPLY_CHAT ? "\"top_logprobs\":[{" : "-9999";
            assert_int_equal(count_of(reply.out.data, mark), kind == DI_REPLY_CHAT ? 3 : 2);
            assert_non_null(strstr(reply.out.data, "-9999"));
            assert_null(strstr(reply.out.data, "nan"));
            assert_non_null(strstr(reply.out.data, stream ? "\"token_ids\":[65,65]" : "\"token_ids\":[65,65,65]"));
            di_reply_free(&reply);
        }
}

static void a_response_is_completed_when_its_choice_ended(void **state) {
    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        di_error error;
        di_reply reply;
        di_reply_options options = options_of(DI_REPLY_RESPONSES, stream);
        options.created = 1000;
        assert_int_equal(di_reply_init(&reply, &options, &error), DI_OK);
        di_reply_begin(&reply);
        di_reply_part(&reply, 0, &(di_part){.kind = DI_PART_CONTENT, .text = "q", .length = 1});
        reply.completed = 1007;
        di_reply_finish(&reply, 0, DI_ANSWER_STOP, &(di_event){.stop_token_id = -1}, 0);
        di_reply_end(&reply);
        assert_int_equal(count_of(reply.out.data, "\"created_at\":1000"), stream ? 3 : 1);
        assert_int_equal(count_of(reply.out.data, "\"completed_at\":1007"), 1);
        assert_int_equal(count_of(reply.out.data, "\"completed_at\":null"), stream ? 2 : 0);
        di_reply_free(&reply);
    }
}

static void errors_have_the_shape_of_their_interface(void **state) {
    (void)state;
    static const char *const wanted[] = {
        [DI_REPLY_CHAT] = "data: {\"error\":{\"message\":\"m\",\"type\":\"server_error\",\"param\":\"p\",\"code\":"
                          "\"numeric\"}}\n\ndata: [DONE]\n\n",
        [DI_REPLY_MESSAGES] =
            "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\",\"message\":\"p: m\"},"
            "\"request_id\":\"req-1\"}\n\n",
        [DI_REPLY_RESPONSES] = "\"error\":{\"code\":\"numeric\",\"message\":\"m\"}",
    };
    di_error error, ignored;
    di_fail(&error, DI_ERR_NUMERIC, "p", "m");
    for (int kind = 0; kind <= DI_REPLY_RESPONSES; kind++) {
        if (!wanted[kind]) continue;
        di_reply reply;
        di_reply_options options = options_of(kind, true);
        options.request_id = "req-1";
        assert_int_equal(di_reply_init(&reply, &options, &ignored), DI_OK);
        di_reply_error(&reply, &error, 500);
        assert_non_null(strstr(reply.out.data, wanted[kind]));
        di_reply_free(&reply);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_streams),
        cmocka_unit_test(recorded_whole_answers),
        cmocka_unit_test(every_cut_gives_the_same),
        cmocka_unit_test(several_choices_end_once_each),
        cmocka_unit_test(logprobs_add_up),
        cmocka_unit_test(errors_have_the_shape_of_their_interface),
        cmocka_unit_test(a_response_is_completed_when_its_choice_ended),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
