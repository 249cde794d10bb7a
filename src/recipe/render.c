/* Messages to segments, profile v4.1. */
#include "recipe/recipe.h"

#include <string.h>

/* Segments are collected as offsets, since the text still moves while it grows. */
typedef struct span {
    size_t offset, length;
    int32_t id; /* -1 = plain text */
} span;

typedef struct builder {
    const di_recipe *recipe;
    di_text text;
    span *spans; /* [count] */
    size_t count, capacity;
    di_arena *arena;
    bool failed;
} builder;

static span *add_span(builder *b, int32_t id) {
    if (b->count == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 64;
        span *spans = di_arena_array(b->arena, capacity, sizeof *spans);
        if (!spans) {
            b->failed = true;
            return NULL;
        }
        if (b->count) memcpy(spans, b->spans, b->count * sizeof *spans);
        b->spans = spans;
        b->capacity = capacity;
    }
    b->spans[b->count] = (span){b->text.length, 0, id};
    return &b->spans[b->count++];
}

static void put_control(builder *b, di_control control) {
    span *s = add_span(b, b->recipe->ids[control]);
    if (!s) return;
    s->length = strlen(di_control_text(control));
    di_text_append(&b->text, di_control_text(control), s->length);
}

/* Plain text between two control tokens is one segment. */
static void put_text(builder *b, const char *text, size_t length) {
    if (!length) return;
    span *s = b->count && b->spans[b->count - 1].id < 0 ? &b->spans[b->count - 1] : add_span(b, -1);
    if (!s) return;
    s->length += length;
    di_text_append(&b->text, text, length);
}

static void put_content(builder *b, const di_message *message) {
    for (size_t i = 0; i < message->content_count; i++) {
        if (i) put_text(b, "\n\n", 2);
        put_text(b, message->content[i].text, message->content[i].length);
    }
}

/* Text that the model wrote: its grounding marks are control tokens again. */
static void put_model_text(builder *b, const char *text, size_t length) {
    if (!length) return;
    size_t plain = 0;
    for (size_t at = 0; at < length;) {
        size_t mark_length = 0;
        int mark = DI_CONTROL_REF;
        for (; mark < DI_CONTROL_COUNT && text[at] == '<'; mark++) {
            mark_length = strlen(di_control_text((di_control)mark));
            if (b->recipe->ids[mark] >= 0 && length - at >= mark_length &&
                memcmp(text + at, di_control_text((di_control)mark), mark_length) == 0)
                break;
        }
        if (text[at] != '<' || mark == DI_CONTROL_COUNT) {
            at++;
            continue;
        }
        put_text(b, text + plain, at - plain);
        put_control(b, (di_control)mark);
        plain = at += mark_length;
    }
    put_text(b, text + plain, length - plain);
}

static size_t content_length(const di_message *message) {
    size_t length = message->content_count > 1 ? 2 * (message->content_count - 1) : 0;
    for (size_t i = 0; i < message->content_count; i++) length += message->content[i].length;
    return length;
}

static bool is_dropped(const di_message *message) {
    return message->role == DI_ROLE_SYSTEM && content_length(message) == 0;
}

static int effort_of(const di_recipe_options *options) {
    static const int numbers[] = {50, 50, 75, 75, 75, 100, 100};
    return options->effort == DI_EFFORT_NUMBER ? options->effort_number : numbers[options->effort];
}

static void put_effort(builder *b, const di_recipe_options *options) {
    di_text line = {0};
    di_text_printf(&line,
                   "Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n",
                   effort_of(options));
    if (line.failed)
        b->failed = true;
    else
        put_text(b, line.data, line.length);
    di_text_free(&line);
}

static void put_assistant_content(builder *b, const di_message *message) {
    for (size_t i = 0; i < message->content_count; i++) {
        if (i) put_text(b, "\n\n", 2);
        put_model_text(b, message->content[i].text, message->content[i].length);
    }
}

/* The turn that the model goes on with. Reasoning without content leaves the reasoning open. */
static di_answer_start put_open_turn(builder *b, const di_message *message, bool thinking) {
    bool content = content_length(message) > 0, reasoning = thinking && message->reasoning_length > 0;
    put_control(b, DI_CONTROL_ASSISTANT);
    if (thinking) put_control(b, DI_CONTROL_THINK);
    if (reasoning) put_model_text(b, message->reasoning, message->reasoning_length);
    if (!content && thinking) return reasoning ? DI_START_REASONING_CONTINUED : DI_START_REASONING;
    put_control(b, DI_CONTROL_THINK_END);
    put_assistant_content(b, message);
    return content ? DI_START_ANSWER_CONTINUED : DI_START_ANSWER;
}

static void put_finished_turn(builder *b, const di_message *message, const di_recipe_options *options) {
    put_control(b, DI_CONTROL_ASSISTANT);
    if (options->thinking && options->history == DI_HISTORY_KEEP) {
        put_control(b, DI_CONTROL_THINK);
        put_model_text(b, message->reasoning, message->reasoning_length);
    }
    put_control(b, DI_CONTROL_THINK_END);
    put_assistant_content(b, message);
    put_control(b, DI_CONTROL_EOS);
}

static di_answer_start put_conversation(builder *b, const di_conversation *conversation,
                                        const di_recipe_options *options) {
    bool first = true, after_user = false;
    put_control(b, DI_CONTROL_BOS);
    for (size_t i = 0; i < conversation->count; i++) {
        const di_message *message = &conversation->messages[i];
        if (is_dropped(message)) continue;
        if (message->role == DI_ROLE_SYSTEM || (first && options->thinking)) put_control(b, DI_CONTROL_SYSTEM);
        if (first && options->thinking) put_effort(b, options);
        switch (message->role) {
        case DI_ROLE_SYSTEM:
            put_content(b, message);
            break;
        case DI_ROLE_USER:
            if (after_user)
                put_text(b, "\n\n", 2);
            else
                put_control(b, DI_CONTROL_USER);
            put_content(b, message);
            break;
        case DI_ROLE_TOOL:
        case DI_ROLE_LATEST_REMINDER:
            break;
        case DI_ROLE_ASSISTANT:
            if (message->prefix) return put_open_turn(b, message, options->thinking);
            put_finished_turn(b, message, options);
            break;
        }
        after_user = message->role == DI_ROLE_USER;
        first = false;
    }
    return put_open_turn(b, &(di_message){.role = DI_ROLE_ASSISTANT}, options->thinking);
}

static di_status check(const di_conversation *conversation, const di_recipe_options *options, di_error *error) {
    bool any = false;
    for (size_t i = 0; i < conversation->count; i++) {
        const di_message *message = &conversation->messages[i];
        any |= !is_dropped(message);
        if (message->prefix && (message->role != DI_ROLE_ASSISTANT || i + 1 < conversation->count))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "messages",
                           "messages[%zu].prefix: only the last message can be continued, and only an assistant's", i);
    }
    if (!any) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "messages", "messages is empty");
    if (options->thinking && (effort_of(options) < 1 || effort_of(options) > 100))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "reasoning_effort",
                       "reasoning effort must be in 1 .. 100, not %d", effort_of(options));
    return DI_OK;
}

/* Moves everything to its final place in the arena. */
static di_status finish(builder *b, di_prompt *prompt, di_error *error) {
    const char *text = b->text.failed || b->failed ? NULL : di_arena_copy(b->arena, b->text.data, b->text.length);
    di_text_segment *segments = di_arena_array(b->arena, b->count, sizeof *segments);
    int32_t *ids = di_arena_array(b->arena, b->count, sizeof *ids);
    di_segment *request = di_arena_array(b->arena, b->count, sizeof *request);
    prompt->length = b->text.length;
    di_text_free(&b->text);
    if (!text || !segments || !ids || !request)
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a prompt");
    for (size_t i = 0; i < b->count; i++) {
        const span *s = &b->spans[i];
        ids[i] = s->id;
        segments[i] = (di_text_segment){text + s->offset, s->length, s->id >= 0};
        request[i] = s->id >= 0 ? (di_segment){.token_ids = &ids[i], .token_count = 1}
                                : (di_segment){.text = text + s->offset, .text_length = s->length};
    }
    prompt->text = text;
    prompt->segments = segments;
    prompt->control_ids = ids;
    prompt->request = request;
    prompt->count = b->count;
    return DI_OK;
}

di_status di_recipe_render(const di_recipe *recipe, const di_conversation *conversation,
                           const di_recipe_options *options, di_arena *arena, di_prompt *prompt, di_error *error) {
    di_status status = check(conversation, options, error);
    if (status != DI_OK) return status;
    builder b = {.recipe = recipe, .arena = arena};
    prompt->start = put_conversation(&b, conversation, options);
    return finish(&b, prompt, error);
}
