/* Output of a turn: entry points, and the stages of text. */
#include "recipe/parser_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recipe/recipe_internal.h"

/* ---------------------------------------------------------------------------------------------- emitting */

static void flush(di_parser *p) {
    if (!p->run.length) return;
    di_part part = {.kind = p->run_kind, .text = p->run.data, .length = p->run.length};
    if (p->run_kind == DI_PART_CALL_ARGUMENTS) {
        part.call = p->end.calls - 1;
        part.id = p->id.data;
        part.name = p->own_name;
        part.space = p->space;
        part.tool = p->tool;
    }
    part.tokens = p->fresh_tokens;
    p->fresh_tokens = 0;
    if (!p->run.failed && p->on_part) p->on_part(p->arg, &part);
    di_text_clear(&p->run);
}

void di_emit(di_parser *p, di_output_kind kind, const char *text, size_t length) {
    if (!length) return;
    if (p->run.length && p->run_kind != kind) flush(p);
    p->run_kind = kind;
    di_text_append(&p->run, text, length);
}

void di_emit_part(di_parser *p, di_part *part) {
    flush(p);
    part->tokens = p->fresh_tokens;
    p->fresh_tokens = 0;
    if (!p->failed && p->on_part) p->on_part(p->arg, part);
}

void di_refeed(di_parser *p, void (*emit_first)(di_parser *, char)) {
    char rest[DI_HOLD];
    size_t count = p->held - 1;
    memcpy(rest, p->hold + 1, count);
    p->held = 0;
    emit_first(p, p->hold[0]);
    for (size_t i = 0; i < count; i++) di_stage_byte(p, rest[i]);
}

/* ---------------------------------------------------------------------------------------------- text */

static bool is_text(di_stage stage) {
    return stage <= DI_STAGE_JSON_AFTER;
}

/* Text around JSON: one blank for a run of it. */
static void drop_text(di_parser *p) {
    p->end.dropped_bytes++;
    if (!p->gap) di_emit(p, DI_PART_CONTENT, " ", 1);
    p->gap = true;
}

static void put_char(di_parser *p, char c) {
    p->leading = false;
    if (p->stage == DI_STAGE_REASONING)
        di_emit(p, DI_PART_REASONING, &c, 1);
    else if (p->stage == DI_STAGE_JSON_BEFORE || p->stage == DI_STAGE_JSON_AFTER)
        drop_text(p);
    else
        di_emit(p, DI_PART_CONTENT, &c, 1);
    p->started = c != '\n';
}

static void put_newlines(di_parser *p) {
    for (; p->newlines; p->newlines--) put_char(p, '\n');
}

static void put_text_byte(di_parser *p, char c) {
    put_newlines(p);
    put_char(p, c);
}

static void enter(di_parser *p, di_stage stage, bool leading) {
    p->stage = stage;
    p->leading = leading;
    p->started = false;
    p->gap = false;
    p->newlines = 0;
    p->held = 0;
}

/* ---------------------------------------------------------------------------------------------- marks */

typedef enum found { FOUND_NOTHING, FOUND_BEGINNING, FOUND_THINK, FOUND_THINK_END, FOUND_FENCE, FOUND_CALLS } found;

/* -1: `text` is not a beginning of `pattern`; 1: it begins with all of it; 0: it may become it. */
static int compare(const char *text, size_t length, const char *pattern) {
    size_t size = strlen(pattern), common = length < size ? length : size;
    if (memcmp(text, pattern, common) != 0) return -1;
    return length >= size;
}

static const char *const blocks[] = {"tool_calls>", "calls>"};
static const char *const misspelt[] = {"DSML｜", "｜｜DSML｜｜", "‖DSML‖", "|DSML|", "DSML", ""};

/* A tag "<MARK NAME" at text: bytes used, 0 = not (yet); *possible: more bytes may make it one. */
static size_t tag_at(const char *text, size_t length, const char *mark, const char *name, bool *possible) {
    size_t mark_length = strlen(mark), at = 1;
    if (length == 0 || text[0] != '<') {
        *possible |= length == 0;
        return 0;
    }
    int same = compare(text + at, length - at, mark);
    if (same <= 0) {
        *possible |= same == 0;
        return 0;
    }
    at += mark_length;
    for (int gap = 0; gap < 2; gap++) {
        size_t start = at + (size_t)gap;
        if (gap && (length <= at || text[at] != ' ')) break;
        same = compare(text + start, length - start, name);
        if (same > 0) return start + strlen(name);
        *possible |= same == 0;
    }
    *possible |= length == at;
    return 0;
}

/* A call's header "<MARK invoke name="NAME"" whose name must be declared. On success the call has begun. */
static bool header_at(di_parser *p, size_t at, const char *mark, bool *possible) {
    bool more = false;
    size_t used = tag_at(p->hold + at, p->held - at, mark, "invoke name=\"", &more);
    *possible |= more;
    if (!used) return false;
    const char *name = p->hold + at + used;
    size_t length = p->held - at - used;
    const char *quote = length ? memchr(name, '"', length) : NULL;
    if (!quote) {
        *possible |= length <= DI_CALL_NAME;
        return false;
    }
    char copy[DI_CALL_NAME];
    length = (size_t)(quote - name);
    if (length > sizeof copy || !di_find_tool(p, name, length)) return false;
    memcpy(copy, name, length);
    di_calls_enter(p, mark);
    di_call_begin(p, copy, length);
    return true;
}

/* A block of calls, or a call without its block. The name of a lone call and of one in a misspelt block must be
 * declared, or it is text. */
static found find_calls(di_parser *p) {
    bool possible = false;
    for (int i = 0; i < 2; i++)
        if (tag_at(p->hold, p->held, DI_DSML, blocks[i], &possible)) {
            di_calls_enter(p, DI_DSML);
            return FOUND_CALLS;
        }
    if (header_at(p, 0, DI_DSML, &possible)) return FOUND_CALLS;
    bool line_start = p->newlines > 0 || !p->started;
    for (size_t i = 0; p->lenient && line_start && i < sizeof misspelt / sizeof *misspelt; i++) {
        size_t used = tag_at(p->hold, p->held, misspelt[i], blocks[0], &possible);
        if (!used && misspelt[i][0]) used = tag_at(p->hold, p->held, misspelt[i], blocks[1], &possible);
        if (!used) continue;
        while (used < p->held && (p->hold[used] == '\n' || p->hold[used] == ' ')) used++;
        if (header_at(p, used, misspelt[i], &possible)) return FOUND_CALLS;
    }
    return possible && p->held < DI_HOLD ? FOUND_BEGINNING : FOUND_NOTHING;
}

/* What find_calls looks for, as a list of texts. */
typedef struct openings {
    di_arena *arena;
    const char **texts; /* [count]; NULL: they are counted only */
    size_t count;
    bool failed;
} openings;

/* "<MARK NAME" with and without the blank, behind `before` and before `behind`. */
static void add_openings(openings *list, const char *before, const char *mark, const char *name, const char *behind) {
    for (int gap = 0; gap < 2; gap++, list->count++) {
        if (!list->texts) continue;
        di_text text = {0};
        di_text_printf(&text, "%s<%s%s%s%s", before, mark, gap ? " " : "", name, behind);
        const char *copy = text.failed ? NULL : di_arena_copy(list->arena, text.data, text.length);
        list->texts[list->count] = copy;
        list->failed |= !copy;
        di_text_free(&text);
    }
}

/* At the start of a line the block, with and without a blank, and behind any white space the first call. */
static void add_misspelt(openings *list, const char *mark, const char *block) {
    char before[DI_WINDOW];
    for (int gap = 0; gap < 2; gap++) {
        snprintf(before, sizeof before, "\n<%s%s%s\n", mark, gap ? " " : "", block);
        add_openings(list, before, mark, "invoke name=\"", "");
    }
}

static void list_openings(openings *list, const di_conversation *conversation, bool lenient) {
    list->count = 0;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) add_openings(list, "", DI_DSML, blocks[i], "");
    for (size_t i = 0; i < conversation->tool_count; i++) {
        const char *name = conversation->tools[i].name;
        char quoted[DI_CALL_NAME + 2];
        if (snprintf(quoted, sizeof quoted, "%s\"", name) < (int)sizeof quoted)
            add_openings(list, "", DI_DSML, "invoke name=\"", quoted);
    }
    for (size_t i = 0; lenient && i < sizeof misspelt / sizeof *misspelt; i++) {
        add_misspelt(list, misspelt[i], blocks[0]);
        if (misspelt[i][0]) add_misspelt(list, misspelt[i], blocks[1]);
    }
}

di_status di_parser_openings(const di_conversation *conversation, const di_prompt *prompt, bool lenient,
                             di_arena *arena, const char *const **texts, size_t *count, di_error *error) {
    openings list = {.arena = arena};
    *texts = NULL;
    *count = 0;
    if (!prompt->tools) return DI_OK;
    list_openings(&list, conversation, lenient);
    list.texts = di_arena_array(arena, list.count, sizeof *list.texts);
    if (list.texts) list_openings(&list, conversation, lenient);
    if (!list.texts || list.failed) return di_fail(error, DI_ERR_MEMORY, "tools", "out of memory for the request");
    *texts = list.texts;
    *count = list.count;
    return DI_OK;
}

static found find_fence(const di_parser *p) {
    if (p->stage == DI_STAGE_JSON) {
        int closed = compare(p->hold, p->held, "```");
        return closed < 0 ? FOUND_NOTHING : closed ? FOUND_FENCE : FOUND_BEGINNING;
    }
    int plain = compare(p->hold, p->held, "```\n"), named = compare(p->hold, p->held, "```json\n");
    if (plain > 0 || named > 0) return FOUND_FENCE;
    return plain == 0 || named == 0 ? FOUND_BEGINNING : FOUND_NOTHING;
}

/* A mark counts when its id announced it, or when no ids are known; inside JSON only an id counts. */
static bool counts(di_parser *p, uint32_t *expected) {
    if (*expected) {
        --*expected;
        return true;
    }
    return !p->ids_known && p->stage != DI_STAGE_JSON;
}

static found find_mark(di_parser *p) {
    if (p->hold[0] == '`') return find_fence(p);
    int close = compare(p->hold, p->held, "</think>"), open = compare(p->hold, p->held, "<think>");
    if (close > 0) return counts(p, &p->expected_close) ? FOUND_THINK_END : FOUND_NOTHING;
    if (open > 0) return counts(p, &p->expected_think) ? FOUND_THINK : FOUND_NOTHING;
    if (close == 0 || open == 0) {
        if (p->held > 1) return FOUND_BEGINNING;
    }
    found calls = p->tools_on && p->stage != DI_STAGE_JSON ? find_calls(p) : FOUND_NOTHING;
    return calls == FOUND_NOTHING && (close == 0 || open == 0) ? FOUND_BEGINNING : calls;
}

static di_stage answer_stage(const di_parser *p) {
    return p->json ? DI_STAGE_JSON_BEFORE : DI_STAGE_ANSWER;
}

static void take_mark(di_parser *p, found what) {
    switch (what) {
    case FOUND_THINK_END:
        if (p->stage == DI_STAGE_REASONING) {
            enter(p, answer_stage(p), true);
            return;
        }
        p->end.stray_marks++;
        p->leading = false;
        p->held = 0;
        return;
    case FOUND_THINK:
        p->end.stray_marks++;
        p->held = 0;
        return;
    case FOUND_FENCE:
        if (p->stage == DI_STAGE_JSON) {
            for (; p->newlines > 1; p->newlines--) put_char(p, '\n');
            enter(p, DI_STAGE_JSON_AFTER, false);
        } else {
            put_newlines(p);
            enter(p, DI_STAGE_JSON, false);
        }
        return;
    case FOUND_NOTHING:
    case FOUND_BEGINNING:
    case FOUND_CALLS:
        return;
    }
}

static bool may_begin_mark(const di_parser *p, char c) {
    if (c == '<') return true;
    return c == '`' && (p->stage == DI_STAGE_JSON_BEFORE || (p->stage == DI_STAGE_JSON && p->newlines));
}

static void text_byte(di_parser *p, char c) {
    if (p->held) {
        p->hold[p->held++] = c;
        found what = find_mark(p);
        if (what == FOUND_NOTHING)
            di_refeed(p, put_text_byte);
        else
            take_mark(p, what);
        return;
    }
    if (may_begin_mark(p, c)) {
        p->hold[p->held++] = c;
    } else if (c == '\n') {
        if (!p->leading) p->newlines++;
    } else if (p->stage == DI_STAGE_JSON_BEFORE && (c == '{' || c == '[')) {
        put_newlines(p);
        enter(p, DI_STAGE_JSON, false);
        put_char(p, c);
    } else {
        put_text_byte(p, c);
    }
}

void di_stage_byte(di_parser *p, char byte) {
    if (is_text(p->stage))
        text_byte(p, byte);
    else if (p->stage == DI_STAGE_FINISHED)
        p->end.dropped_bytes++;
    else
        di_call_byte(p, byte);
}

/* ---------------------------------------------------------------------------------------------- input */

static void feed(di_parser *p, const char *text, size_t length) {
    for (size_t i = 0; i < length; i++) di_stage_byte(p, text[i]);
}

/* Complete characters go on, an incomplete one waits, invalid bytes become U+FFFD. */
static void feed_utf8(di_parser *p, const char *text, size_t length) {
    while (p->utf8_count && length) {
        p->utf8[p->utf8_count++] = (uint8_t)*text++;
        length--;
        const char *pending = (const char *)p->utf8;
        uint32_t codepoint;
        bool incomplete = false;
        size_t size = di_utf8_decode(pending, p->utf8_count, &codepoint);
        if (!size && di_utf8_bad_prefix(pending, p->utf8_count, &incomplete) == p->utf8_count && incomplete) continue;
        if (size) {
            feed(p, pending, size);
        } else { /* the byte that came last does not belong to the bad ones */
            text--;
            length++;
            feed(p, "\xEF\xBF\xBD", 3);
        }
        p->utf8_count = 0;
    }
    for (size_t i = 0; i < length;) {
        uint32_t codepoint;
        bool incomplete = false;
        size_t size = di_utf8_decode(text + i, length - i, &codepoint);
        if (size) {
            feed(p, text + i, size);
            i += size;
            continue;
        }
        size = di_utf8_bad_prefix(text + i, length - i, &incomplete);
        if (incomplete && size == length - i) {
            memcpy(p->utf8, text + i, size);
            p->utf8_count = size;
            return;
        }
        feed(p, "\xEF\xBF\xBD", 3);
        i += size;
    }
}

void di_parser_push(di_parser *p, int32_t token_id, const char *text, size_t length) {
    if (token_id >= 0) {
        p->ids_known = true;
        p->end.tokens++;
        p->fresh_tokens++;
        if (p->stage == DI_STAGE_REASONING) p->end.reasoning_tokens++;
        if (token_id == p->think_end) p->expected_close++;
        if (token_id == p->think) p->expected_think++;
    }
    feed_utf8(p, text, length);
    flush(p);
}

/* ---------------------------------------------------------------------------------------------- the end */

static void release_hold(di_parser *p) {
    if (p->held > strlen("<" DI_DSML) - 1 && compare(p->hold, p->held, "<" DI_DSML) > 0 && p->tools_on) {
        p->end.dropped_bytes += p->held; /* calls that never came */
        p->held = 0;
        p->newlines = 0;
        return;
    }
    put_newlines(p);
    for (size_t i = 0; i < p->held; i++) put_char(p, p->hold[i]);
    p->held = 0;
}

static di_answer_finish finish_of(di_output_end how, uint32_t calls) {
    switch (how) {
    case DI_END_EOS:
        return calls ? DI_ANSWER_TOOL_CALLS : DI_ANSWER_STOP;
    case DI_END_STOP_STRING:
        return DI_ANSWER_STOP;
    case DI_END_LENGTH:
        return DI_ANSWER_LENGTH;
    case DI_END_CANCELLED:
        return DI_ANSWER_CANCELLED;
    case DI_END_ERROR:
        break;
    }
    return DI_ANSWER_ERROR;
}

di_status di_parser_finish(di_parser *p, di_output_end how, di_parser_end *end, di_error *error) {
    if (p->utf8_count) feed(p, "\xEF\xBF\xBD", 3);
    p->utf8_count = 0;
    if (is_text(p->stage))
        release_hold(p);
    else if (p->stage != DI_STAGE_FINISHED)
        di_calls_finish(p, how != DI_END_EOS && how != DI_END_STOP_STRING);
    flush(p);
    p->end.finish = finish_of(how, p->end.calls);
    p->end.late_tokens = p->fresh_tokens;
    *end = p->end;
    p->stage = DI_STAGE_FINISHED;
    if (p->failed || p->run.failed || p->name.failed || p->key.failed || p->value.failed || p->id.failed ||
        p->id_prefix.failed)
        return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for an answer");
    return DI_OK;
}

di_output_end di_output_end_of(di_finish_reason reason, const char *stop_string) {
    switch (reason) {
    case DI_FINISH_STOP:
        return stop_string ? DI_END_STOP_STRING : DI_END_EOS;
    case DI_FINISH_LENGTH:
        return DI_END_LENGTH;
    case DI_FINISH_CANCELLED:
        return DI_END_CANCELLED;
    case DI_FINISH_NONE:
    case DI_FINISH_ERROR:
        break;
    }
    return DI_END_ERROR;
}

const char *di_answer_finish_name(di_answer_finish finish) {
    static const char *const names[] = {"stop", "length", "tool_calls", "cancelled", "error"};
    return names[finish];
}

/* ---------------------------------------------------------------------------------------------- life */

di_parser *di_parser_new(const di_recipe *recipe, const di_conversation *conversation, const di_prompt *prompt,
                         const di_parser_options *options) {
    di_parser *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->scratch = di_arena_new(0);
    p->tools = conversation->tools;
    p->tool_count = conversation->tool_count;
    for (size_t i = 0; i < p->tool_count; i++) p->has_spaces |= p->tools[i].space != NULL;
    p->tools_on = prompt->tools;
    p->lenient = options->lenient;
    p->think = recipe->ids[DI_CONTROL_THINK];
    p->think_end = recipe->ids[DI_CONTROL_THINK_END];
    p->on_part = options->on_part;
    p->arg = options->arg;
    p->id_seed = options->id_seed;
    p->mark = DI_DSML;
    p->json = prompt->json && !options->grammar;
    di_text_puts(&p->id_prefix, options->id_prefix ? options->id_prefix : "call_");
    switch (prompt->start) {
    case DI_START_REASONING:
    case DI_START_REASONING_CONTINUED:
        enter(p, DI_STAGE_REASONING, prompt->start == DI_START_REASONING);
        break;
    case DI_START_ANSWER:
    case DI_START_ANSWER_CONTINUED:
        enter(p, answer_stage(p), prompt->start == DI_START_ANSWER);
        break;
    case DI_START_CALLS:
        di_calls_enter(p, DI_DSML);
        break;
    }
    if (p->scratch && !p->id_prefix.failed) return p;
    di_parser_free(p);
    return NULL;
}

void di_parser_free(di_parser *p) {
    if (!p) return;
    di_arena_free(p->scratch);
    di_text_free(&p->id_prefix);
    di_text_free(&p->name);
    di_text_free(&p->key);
    di_text_free(&p->value);
    di_text_free(&p->id);
    di_text_free(&p->run);
    free(p);
}
