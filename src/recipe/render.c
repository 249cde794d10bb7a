/* Conversations to segments. */
#include "recipe/recipe_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------- segments */

bool di_is_v41(const di_recipe *recipe) {
    return recipe->profile == DI_RECIPE_V41;
}

static di_span *add_span(di_builder *b, int32_t id) {
    if (b->count == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 64;
        di_span *spans = di_arena_array(b->arena, capacity, sizeof *spans);
        if (!spans) {
            b->failed = true;
            return NULL;
        }
        if (b->count) memcpy(spans, b->spans, b->count * sizeof *spans);
        b->spans = spans;
        b->capacity = capacity;
    }
    b->spans[b->count] = (di_span){b->text.length, 0, id};
    return &b->spans[b->count++];
}

void di_put_control(di_builder *b, di_control control) {
    if (b->recipe->ids[control] < 0) {
        if (b->missing < 0) b->missing = (int)control;
        return;
    }
    di_span *s = add_span(b, b->recipe->ids[control]);
    if (!s) return;
    s->length = strlen(di_control_text(control));
    di_text_append(&b->text, di_control_text(control), s->length);
}

/* Plain text between two control tokens is one segment. */
void di_put_text(di_builder *b, const char *text, size_t length) {
    if (!length) return;
    di_span *s = b->count && b->spans[b->count - 1].id < 0 ? &b->spans[b->count - 1] : add_span(b, -1);
    if (!s) return;
    s->length += length;
    di_text_append(&b->text, text, length);
}

/* Text in which the names of the control tokens first .. last stand for them, where the tokenizer has them. */
static void put_marked(di_builder *b, const char *text, size_t length, di_control first, di_control last) {
    if (!length) return;
    size_t plain = 0;
    for (size_t at = 0; at < length;) {
        if (text[at] != '<' && text[at] != DI_DSML[0]) { /* what marks begin with */
            at++;
            continue;
        }
        size_t mark_length = 0;
        int mark = (int)first;
        for (; mark <= (int)last; mark++) {
            const char *name = di_control_text((di_control)mark);
            if (name[0] != text[at] || b->recipe->ids[mark] < 0) continue;
            mark_length = strlen(name);
            if (length - at >= mark_length && memcmp(text + at, name, mark_length) == 0) break;
        }
        if (mark > (int)last) {
            at++;
            continue;
        }
        di_put_text(b, text + plain, at - plain);
        di_put_control(b, (di_control)mark);
        plain = at += mark_length;
    }
    di_put_text(b, text + plain, length - plain);
}

void di_put_template(di_builder *b, const char *text, size_t length) {
    if (b->recipe->ids[DI_CONTROL_DSML] < 0) di_put_control(b, DI_CONTROL_DSML); /* notes that it is missing */
    put_marked(b, text, length, DI_CONTROL_THINK, DI_CONTROL_DSML);
}

/* Text that the model wrote: its grounding marks are control tokens again. */
static void put_model_text(di_builder *b, const char *text, size_t length) {
    put_marked(b, text, length, DI_CONTROL_REF, DI_CONTROL_POLYGON_END);
}

static void put_image(di_builder *b) {
    if (!di_is_v41(b->recipe)) {
        di_put_text(b, "[Unsupported Image]", strlen("[Unsupported Image]"));
        return;
    }
    if (b->image_count == b->image_capacity) {
        size_t capacity = b->image_capacity ? 2 * b->image_capacity : 8;
        size_t *images = di_arena_array(b->arena, capacity, sizeof *images);
        if (!images) {
            b->failed = true;
            return;
        }
        if (b->image_count) memcpy(images, b->images, b->image_count * sizeof *images);
        b->images = images;
        b->image_capacity = capacity;
    }
    b->images[b->image_count++] = b->count;
    di_put_control(b, DI_CONTROL_IMAGE);
}

static void put_content(di_builder *b, const di_message *message) {
    for (size_t i = 0; i < message->content_count; i++) {
        const di_content *piece = &message->content[i];
        if (i && piece->kind != DI_CONTENT_EXTRACTED_URL) di_put_text(b, "\n\n", 2);
        if (piece->kind == DI_CONTENT_EXTRACTED_URL) di_put_control(b, DI_CONTROL_EXTRACTED_URL);
        if (piece->kind == DI_CONTENT_IMAGE)
            put_image(b);
        else if (message->role == DI_ROLE_ASSISTANT)
            put_model_text(b, piece->text, piece->length);
        else
            di_put_text(b, piece->text, piece->length);
    }
}

static bool has_content(const di_message *message) {
    for (size_t i = 0; i < message->content_count; i++)
        if (i || message->content[i].length || message->content[i].kind == DI_CONTENT_IMAGE) return true;
    return false;
}

static bool is_dropped(const di_message *message) {
    return message->role == DI_ROLE_SYSTEM && !message->kept && !has_content(message);
}

bool di_conversation_has_tools(const di_conversation *conversation) {
    return conversation->tool_count > 0 && conversation->choice != DI_CHOICE_NONE;
}

/* ---------------------------------------------------------------------------------------------- the beginning */

/* The effort's text, or NULL: none. `number` has room for it. */
static const char *effort_text(di_recipe_profile profile, const di_recipe_options *options, char number[128]) {
    static const int numbers[] = {50, 50, 75, 75, 75, 100, 100};
    if (profile == DI_RECIPE_V41) {
        di_text line = {0};
        int value = options->effort == DI_EFFORT_NUMBER ? options->effort_number : numbers[options->effort];
        di_text_printf(&line, di_effort_number, value);
        size_t length = line.failed || line.length > 127 ? 0 : line.length;
        if (length) memcpy(number, line.data, length);
        number[length] = '\0';
        di_text_free(&line);
        return length ? number : NULL;
    }
    if (profile == DI_RECIPE_V4_PREVIEW) return options->effort >= DI_EFFORT_XHIGH ? di_effort_absolute : NULL;
    if (options->effort <= DI_EFFORT_LOW) return NULL;
    return options->effort >= DI_EFFORT_MAX ? di_effort_beyond : di_effort_absolute;
}

static bool has_system_suffix(const di_conversation *conversation) {
    return di_conversation_has_tools(conversation) || conversation->format == DI_FORMAT_JSON_OBJECT ||
           conversation->format == DI_FORMAT_JSON_SCHEMA;
}

static void put_system_suffix(di_builder *b) {
    if (di_conversation_has_tools(b->conversation)) di_put_tools(b);
    if (b->conversation->format == DI_FORMAT_JSON_OBJECT || b->conversation->format == DI_FORMAT_JSON_SCHEMA)
        di_put_response_format(b);
}

/* BOS, effort, and the system text that carries the tools. V4 has all system messages here, V4.1 only a leading one.
 * Returns the index of the first message that is not yet written. */
static size_t put_beginning(di_builder *b) {
    const di_conversation *c = b->conversation;
    char number[128];
    const char *effort = b->options->thinking ? effort_text(b->recipe->profile, b->options, number) : NULL;
    size_t first = 0;
    while (first < c->count && is_dropped(&c->messages[first])) first++;
    bool leading = first < c->count && c->messages[first].role == DI_ROLE_SYSTEM;
    di_put_control(b, DI_CONTROL_BOS);
    if (di_is_v41(b->recipe) && (leading || effort || has_system_suffix(c))) di_put_control(b, DI_CONTROL_SYSTEM);
    if (effort) di_put_text(b, effort, strlen(effort));
    if (di_is_v41(b->recipe)) {
        if (leading) put_content(b, &c->messages[first++]);
    } else {
        bool any = false;
        for (size_t i = 0; i < c->count; i++) {
            if (c->messages[i].role != DI_ROLE_SYSTEM || !has_content(&c->messages[i])) continue;
            if (any) di_put_text(b, "\n\n", 2);
            put_content(b, &c->messages[i]);
            any = true;
        }
    }
    put_system_suffix(b);
    return first;
}

/* ---------------------------------------------------------------------------------------------- turns */

static bool is_user_side(const di_message *message) {
    return message->role == DI_ROLE_USER || message->role == DI_ROLE_TOOL;
}

/* True for messages that leave no trace where they stand. */
static bool is_skipped(const di_builder *b, const di_message *message) {
    return is_dropped(message) || (message->role == DI_ROLE_SYSTEM && !di_is_v41(b->recipe));
}

static void put_task(di_builder *b, di_task task) {
    static const di_control marks[] = {
        [DI_TASK_ACTION] = DI_CONTROL_ACTION,       [DI_TASK_QUERY] = DI_CONTROL_QUERY,
        [DI_TASK_AUTHORITY] = DI_CONTROL_AUTHORITY, [DI_TASK_DOMAIN] = DI_CONTROL_DOMAIN,
        [DI_TASK_READ_URL] = DI_CONTROL_READ_URL,   [DI_TASK_TITLE] = DI_CONTROL_TITLE,
    };
    if (task == DI_TASK_NONE) return;
    if (task == DI_TASK_ACTION) {
        di_put_control(b, DI_CONTROL_ASSISTANT);
        di_put_control(b, b->options->thinking ? DI_CONTROL_THINK : DI_CONTROL_THINK_END);
    }
    di_put_control(b, marks[task]);
}

typedef struct turn_result {
    const di_message *message;
    size_t position, ordinal;
} turn_result;

static int compare_results(const void *a, const void *b) {
    const turn_result *x = a, *y = b;
    if (x->position != y->position) return x->position < y->position ? -1 : 1;
    return (x->ordinal > y->ordinal) - (x->ordinal < y->ordinal);
}

/* Results of one turn stand in the order of its calls, in the places that the client gave to results. */
static const turn_result *order_results(di_builder *b, size_t start, size_t end, const di_message *calls) {
    turn_result *results = di_arena_array(b->arena, end - start + 1, sizeof *results);
    di_id_table table = {0};
    if (!results || (calls && !di_id_table_calls(&table, b->arena, calls->calls, calls->call_count))) {
        b->failed = true;
        return NULL;
    }
    size_t count = 0;
    for (size_t i = start; i < end; i++) {
        const di_message *message = &b->conversation->messages[i];
        if (message->role != DI_ROLE_TOOL) continue;
        size_t position = message->call_id ? di_id_table_find(&table, message->call_id) : SIZE_MAX;
        if (position == SIZE_MAX) position = 0; /* an unknown id counts as the first call */
        results[count] = (turn_result){message, position, count};
        count++;
    }
    qsort(results, count, sizeof *results, compare_results);
    return results;
}

/* A run of user messages and results is one turn. Returns the index behind it. */
static size_t put_user_turn(di_builder *b, size_t start, const di_message *calls) {
    const di_conversation *c = b->conversation;
    size_t end = start;
    while (end < c->count && (is_user_side(&c->messages[end]) || is_skipped(b, &c->messages[end]))) {
        end++;
        if (c->messages[end - 1].task != DI_TASK_NONE) break;
    }
    const turn_result *results = order_results(b, start, end, calls);
    if (!results) return end;
    di_put_control(b, DI_CONTROL_USER);
    di_task task = DI_TASK_NONE;
    bool any = false;
    for (size_t i = start; i < end; i++) {
        const di_message *message = &c->messages[i];
        if (is_skipped(b, message)) continue;
        if (any) di_put_text(b, "\n\n", 2);
        any = true;
        if (message->role == DI_ROLE_TOOL) {
            di_put_text(b, "<tool_result>", strlen("<tool_result>"));
            put_content(b, (results++)->message);
            di_put_text(b, "</tool_result>", strlen("</tool_result>"));
        } else {
            put_content(b, message);
        }
        task = message->task;
    }
    put_task(b, task);
    return end;
}

/* The turn that the model goes on with. Reasoning without content leaves the reasoning open. */
static di_answer_start put_open_turn(di_builder *b, const di_message *message) {
    bool thinking = b->options->thinking, content = has_content(message);
    bool reasoning = thinking && message->reasoning_length > 0;
    di_put_control(b, DI_CONTROL_ASSISTANT);
    if (thinking) di_put_control(b, DI_CONTROL_THINK);
    if (reasoning) put_model_text(b, message->reasoning, message->reasoning_length);
    if (!content && thinking) return reasoning ? DI_START_REASONING_CONTINUED : DI_START_REASONING;
    di_put_control(b, DI_CONTROL_THINK_END);
    put_content(b, message);
    return content ? DI_START_ANSWER_CONTINUED : DI_START_ANSWER;
}

/* `after_task`: the header stands there already, or there is none. */
static void put_finished_turn(di_builder *b, const di_message *message, bool keep, bool after_task) {
    if (!after_task) {
        di_put_control(b, DI_CONTROL_ASSISTANT);
        if (b->options->thinking && keep) {
            di_put_control(b, DI_CONTROL_THINK);
            put_model_text(b, message->reasoning, message->reasoning_length);
        }
        di_put_control(b, DI_CONTROL_THINK_END);
    }
    put_content(b, message);
    di_put_calls(b, message->calls, message->call_count);
    di_put_control(b, DI_CONTROL_EOS);
    put_task(b, message->task);
}

/* Index of the first message whose reasoning is kept. */
static size_t first_kept(const di_builder *b) {
    const di_conversation *c = b->conversation;
    if (b->options->history == DI_HISTORY_KEEP || di_conversation_has_tools(c)) return 0;
    if (b->options->history == DI_HISTORY_RECIPE) return SIZE_MAX;
    size_t last = 0;
    bool first = true;
    for (size_t i = 0; i < c->count; i++) {
        const di_message *message = &c->messages[i];
        if (message->call_count || message->role == DI_ROLE_TOOL) return 0;
        if (is_dropped(message)) continue;
        if (message->role == DI_ROLE_USER || (message->role == DI_ROLE_SYSTEM && di_is_v41(b->recipe) && !first))
            last = i;
        first = false;
    }
    return last;
}

static di_answer_start put_header(di_builder *b, di_task task) {
    static const di_message fresh = {.role = DI_ROLE_ASSISTANT};
    const di_conversation *c = b->conversation;
    if (task != DI_TASK_NONE || b->options->no_header) return DI_START_ANSWER;
    di_answer_start start = put_open_turn(b, &fresh);
    bool forced = di_conversation_has_tools(c) && c->choice != DI_CHOICE_AUTO;
    if (!forced || b->options->thinking) return start;
    di_put_block_opener(b);
    return DI_START_CALLS;
}

static di_answer_start put_conversation(di_builder *b) {
    const di_conversation *c = b->conversation;
    const di_message *calls = NULL; /* the last assistant message that has calls */
    size_t kept = first_kept(b);
    di_task task = DI_TASK_NONE; /* of the message before */
    di_role before = DI_ROLE_ASSISTANT;
    for (size_t i = put_beginning(b); i < c->count;) {
        const di_message *message = &c->messages[i];
        if (is_skipped(b, message)) {
            i++;
            continue;
        }
        switch (message->role) {
        case DI_ROLE_SYSTEM:
            di_put_control(b, DI_CONTROL_SYSTEM);
            put_content(b, message);
            break;
        case DI_ROLE_USER:
        case DI_ROLE_TOOL:
            i = put_user_turn(b, i, calls);
            task = c->messages[i - 1].task;
            before = DI_ROLE_USER;
            continue;
        case DI_ROLE_LATEST_REMINDER:
            if (before == DI_ROLE_LATEST_REMINDER && di_is_v41(b->recipe)) break; /* of several the first one counts */
            di_put_control(b, DI_CONTROL_LATEST_REMINDER);
            put_content(b, message);
            break;
        case DI_ROLE_ASSISTANT:
            if (message->prefix) return put_open_turn(b, message);
            if (message->call_count) calls = message;
            put_finished_turn(b, message, i >= kept, task != DI_TASK_NONE);
            break;
        }
        task = message->role == DI_ROLE_ASSISTANT ? message->task : DI_TASK_NONE;
        before = message->role;
        i++;
    }
    return put_header(b, task);
}

/* ---------------------------------------------------------------------------------------------- the prompt */

static di_status check_effort(const di_recipe *recipe, const di_recipe_options *options, di_error *error) {
    static const char *const names[] = {"minimal", "low", "medium", "high", "xhigh", "max", "ultra"};
    di_effort effort = options->effort;
    if (!options->thinking) return DI_OK;
    if (effort == DI_EFFORT_NUMBER && di_is_v41(recipe)) {
        if (options->effort_number >= 1 && options->effort_number <= 100) return DI_OK;
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "reasoning_effort",
                       "reasoning effort must be in 1 .. 100, not %d", options->effort_number);
    }
    bool preview = recipe->profile == DI_RECIPE_V4_PREVIEW;
    if (effort == DI_EFFORT_NUMBER)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "reasoning_effort",
                       "this model (%s) has no numeric reasoning effort; it takes %s",
                       di_recipe_profile_name(recipe->profile), preview ? "high and max" : "low, high and max");
    if (preview && effort != DI_EFFORT_HIGH && effort != DI_EFFORT_XHIGH && effort != DI_EFFORT_MAX)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "reasoning_effort",
                       "this model (v4-preview) has no reasoning effort \"%s\"; it takes high and max", names[effort]);
    return DI_OK;
}

static di_status check(const di_recipe *recipe, const di_conversation *c, const di_recipe_options *options,
                       di_error *error) {
    bool any = false;
    for (size_t i = 0; i < c->count; i++) {
        const di_message *message = &c->messages[i];
        any |= !is_dropped(message);
        if (message->prefix && (message->role != DI_ROLE_ASSISTANT || i + 1 < c->count))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "messages",
                           "Invalid completion message: prefix set true with message which is not final message or "
                           "message role is not assistant");
        if (message->prefix && di_conversation_has_tools(c))
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "messages", "Function call should not be used with prefix");
        if (message->prefix && c->format == DI_FORMAT_JSON_OBJECT)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "response_format",
                           "response_format json_object should not be used with prefix");
    }
    if (!any) return di_fail(error, DI_ERR_INVALID_ARGUMENT, "messages", "Empty input messages");
    bool forced = di_conversation_has_tools(c) && c->choice != DI_CHOICE_AUTO;
    if (forced && options->thinking && !options->forced_thought)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "tool_choice",
                       "Thinking mode does not support this tool_choice");
    return check_effort(recipe, options, error);
}

/* Moves everything to its final place in the arena. */
static di_status finish(di_builder *b, di_prompt *prompt, di_error *error) {
    const char *text = b->text.failed || b->failed ? NULL : di_arena_copy(b->arena, b->text.data, b->text.length);
    di_text_segment *segments = di_arena_array(b->arena, b->count, sizeof *segments);
    int32_t *ids = di_arena_array(b->arena, b->count, sizeof *ids);
    di_segment *request = di_arena_array(b->arena, b->count, sizeof *request);
    prompt->length = b->text.length;
    di_text_free(&b->text);
    if (!text || !segments || !ids || !request)
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for a prompt");
    if (b->missing >= 0)
        return di_fail(error, DI_ERR_UNSUPPORTED, "messages", "this needs the control token %s, which the model lacks",
                       di_control_text((di_control)b->missing));
    for (size_t i = 0; i < b->count; i++) {
        const di_span *s = &b->spans[i];
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
    prompt->images = b->images;
    prompt->image_count = b->image_count;
    return DI_OK;
}

static di_constraint constraint_of(const di_recipe *recipe, const di_conversation *c, bool in_reasoning) {
    di_constraint result = {.kind = DI_CONSTRAINT_NONE, .after_thought = in_reasoning};
    if (di_conversation_has_tools(c)) {
        result.unbound = c->format == DI_FORMAT_JSON_SCHEMA || c->format == DI_FORMAT_REGEX;
        result.kind = c->choice == DI_CHOICE_AUTO ? DI_CONSTRAINT_CALLS : DI_CONSTRAINT_FORCED_CALLS;
        result.tools = c->choice == DI_CHOICE_NAMED ? c->named : c->tools;
        result.tool_count = c->choice == DI_CHOICE_NAMED ? 1 : c->tool_count;
        result.strict = result.tools->strict;
        result.one_call = c->one_call;
        result.opener = di_block_opener(recipe);
        result.tag_gap = di_tag_gap(recipe);
        result.block = di_block_name(recipe);
    } else if (c->format == DI_FORMAT_REGEX) {
        result.kind = DI_CONSTRAINT_REGEX;
        result.regex = c->regex;
    } else if (c->format != DI_FORMAT_TEXT) {
        result.kind = DI_CONSTRAINT_JSON;
        result.schema = c->format == DI_FORMAT_JSON_SCHEMA ? c->schema : NULL;
    }
    return result;
}

di_status di_recipe_render(const di_recipe *recipe, const di_conversation *conversation,
                           const di_recipe_options *options, di_arena *arena, di_prompt *prompt, di_error *error) {
    *prompt = (di_prompt){.stop_arm_token_id = -1};
    di_status status = check(recipe, conversation, options, error);
    if (status != DI_OK) return status;
    di_builder b = {.recipe = recipe, .conversation = conversation, .options = options, .arena = arena, .missing = -1};
    prompt->start = put_conversation(&b);
    bool in_reasoning = prompt->start == DI_START_REASONING || prompt->start == DI_START_REASONING_CONTINUED;
    prompt->tools = di_conversation_has_tools(conversation);
    prompt->json = conversation->format == DI_FORMAT_JSON_OBJECT || conversation->format == DI_FORMAT_JSON_SCHEMA;
    if (prompt->start == DI_START_CALLS) prompt->stop_arm_token_id = recipe->ids[DI_CONTROL_EOS]; /* all is markup */
    if (in_reasoning) prompt->stop_arm_token_id = recipe->ids[DI_CONTROL_THINK_END];
    prompt->constraint = constraint_of(recipe, conversation, in_reasoning);
    return finish(&b, prompt, error);
}

di_status di_recipe_render_completion(const di_recipe *recipe, const char *text, size_t length, const char *suffix,
                                      size_t suffix_length, di_arena *arena, di_prompt *prompt, di_error *error) {
    *prompt = (di_prompt){.start = DI_START_ANSWER_CONTINUED, .stop_arm_token_id = -1};
    di_builder b = {.recipe = recipe, .arena = arena, .missing = -1};
    di_put_control(&b, DI_CONTROL_BOS);
    if (suffix) di_put_control(&b, DI_CONTROL_FIM_BEGIN);
    di_put_text(&b, text, length);
    if (suffix) {
        di_put_control(&b, DI_CONTROL_FIM_HOLE);
        di_put_text(&b, suffix, suffix_length);
        di_put_control(&b, DI_CONTROL_FIM_END);
    }
    return finish(&b, prompt, error);
}

di_status di_recipe_encode(const di_tokenizer *tokenizer, const di_prompt *rendered, di_ids *ids, di_error *error) {
    di_status status = DI_OK;
    for (size_t i = 0; i < rendered->count && status == DI_OK; i++) {
        const di_segment *segment = &rendered->request[i];
        if (segment->token_ids)
            di_ids_append(ids, segment->token_ids[0]); /* a control segment is one token */
        else
            status = di_tokenizer_encode(tokenizer, segment->text, segment->text_length, false, ids, error);
    }
    if (status == DI_OK && ids->failed)
        status = di_fail(error, DI_ERR_MEMORY, "messages", "out of memory for the prompt's token ids");
    return status;
}
