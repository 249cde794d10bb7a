/* Output of a turn: inside a block of calls. */
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "recipe/parser_internal.h"
#include "recipe/recipe_internal.h"

/* ---------------------------------------------------------------------------------------------- tools */

const di_tool *di_find_tool(const di_parser *p, const char *name, size_t length) {
    for (size_t i = 0; i < p->tool_count; i++)
        if (strlen(p->tools[i].name) == length && memcmp(p->tools[i].name, name, length) == 0) return &p->tools[i];
    return NULL;
}

/* PREFIX NN _ and letters and digits that are a function of seed and index. */
static void make_id(di_parser *p, uint32_t index) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint32_t key[2] = {(uint32_t)p->id_seed, (uint32_t)(p->id_seed >> 32)}, words[4] = {0};
    di_text_clear(&p->id);
    if (p->id_prefix.length) di_text_append(&p->id, p->id_prefix.data, p->id_prefix.length);
    di_text_printf(&p->id, "%02u_", index);
    for (uint32_t i = 0; i < DI_CALL_ID; i++) {
        uint32_t counter[4] = {i / 4, index, 0x63616C6C, 0};
        if (i % 4 == 0) di_philox4x32(key, counter, words);
        di_text_putc(&p->id, letters[words[i % 4] % 62]);
    }
}

/* ---------------------------------------------------------------------------------------------- arguments */

static void put(di_parser *p, const char *text, size_t length) {
    di_emit(p, DI_PART_CALL_ARGUMENTS, text, length);
}

static void put_string_byte(di_parser *p, char c) {
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    const char *found = c ? strchr(meanings, c) : NULL;
    if (found) {
        char escape[2] = {'\\', letters[found - meanings]};
        put(p, escape, 2);
    } else if ((unsigned char)c < 0x20) {
        static const char hex[] = "0123456789abcdef";
        char escape[6] = {'\\', 'u', '0', '0', hex[(unsigned char)c >> 4], hex[c & 15]};
        put(p, escape, 6);
    } else {
        put(p, &c, 1);
    }
}

static void put_string(di_parser *p, const di_text *text) {
    for (size_t i = 0; i < text->length; i++) put_string_byte(p, text->data[i]);
}

/* The beginning of a parameter: its separator and as much of its key as there is. */
static void put_key(di_parser *p, bool complete) {
    put(p, p->parameters ? ", " : "{", p->parameters ? 2 : 1);
    put(p, "\"", 1);
    put_string(p, &p->key);
    if (complete) put(p, "\": ", 3);
    p->parameters++;
}

static void note_key(di_parser *p) {
    uint64_t hash = UINT64_C(14695981039346656037);
    for (size_t i = 0; i < p->key.length; i++) hash = (hash ^ (uint8_t)p->key.data[i]) * UINT64_C(1099511628211);
    for (size_t i = 0; i < p->key_count; i++)
        if (p->keys[i] == hash) {
            p->end.repeated_keys++;
            return;
        }
    if (p->key_count < DI_KEYS) p->keys[p->key_count++] = hash;
}

/* The collected value without blanks around it. */
static const char *trimmed(const di_parser *p, size_t *length) {
    const char *text = p->value.data ? p->value.data : "";
    size_t start = 0, end = p->value.length;
    while (start < end && strchr(" \t\r\n", text[start])) start++;
    while (end > start && strchr(" \t\r\n", text[end - 1])) end--;
    *length = end - start;
    return text + start;
}

/* True if the collected value is JSON, and an object if that is asked for. */
static bool is_json(di_parser *p, bool object) {
    size_t length;
    const char *text = trimmed(p, &length);
    const di_json *root = NULL;
    di_arena_reset(p->scratch);
    return length && di_json_parse(p->scratch, text, length, 0, &root, NULL) == DI_OK &&
           (!object || root->type == DI_JSON_OBJECT);
}

/* A collected value behind its key: as JSON if it is, else as a string. */
static void put_value(di_parser *p) {
    if (!p->string && is_json(p, false)) {
        size_t length;
        const char *text = trimmed(p, &length);
        put(p, text, length);
        return;
    }
    if (!p->string) p->end.repaired_calls++;
    put(p, "\"", 1);
    put_string(p, &p->value);
    put(p, "\"", 1);
}

static void put_unwrapped(di_parser *p) {
    size_t length;
    const char *text = trimmed(p, &length);
    put(p, text, length);
    p->unwrapped = false;
    p->arguments_done = true;
}

/* One parameter that holds all arguments, in place of the parameters of a tool that has none of that name. */
static bool is_wrapper(const di_parser *p) {
    static const char *const names[] = {"arguments", "input"};
    if (p->parameters || !p->tool || p->key.failed || !p->key.data) return false;
    for (size_t i = 0; i < 2; i++)
        if (strcmp(p->key.data, names[i]) == 0 && strlen(names[i]) == p->key.length)
            return !di_json_get(di_json_get(p->tool->parameters, "properties"), names[i]);
    return false;
}

/* ---------------------------------------------------------------------------------------------- calls */

static void go(di_parser *p, di_stage stage) {
    p->stage = stage;
    p->window_used = 0;
    p->held = 0;
}

void di_calls_enter(di_parser *p, const char *mark) {
    p->mark = mark;
    p->newlines = 0;
    go(p, DI_STAGE_CALLS);
}

void di_call_begin(di_parser *p, const char *name, size_t length) {
    static const char separator[] = "::";
    uint32_t index = p->end.calls++;
    di_text_clear(&p->name);
    di_text_append(&p->name, name, length);
    di_text_putc(&p->name, '\0');
    p->tool = di_find_tool(p, name, length);
    p->own_name = p->tool ? p->tool->own_name : p->name.failed ? "" : p->name.data;
    p->space = p->tool ? p->tool->space : NULL;
    char *border = !p->tool && p->has_spaces && !p->name.failed ? strstr(p->name.data, separator) : NULL;
    if (border) { /* a made-up name, taken apart all the same */
        *border = '\0';
        p->space = p->name.data;
        p->own_name = border + strlen(separator);
    }
    make_id(p, index);
    p->parameters = p->key_count = 0;
    p->unwrapped = p->arguments_done = false;
    p->body_possible = p->in_call = true;
    p->failed |= p->name.failed || p->id.failed;
    di_part part = {.kind = DI_PART_CALL_BEGIN,
                    .call = index,
                    .id = p->id.data,
                    .name = p->own_name,
                    .space = p->space,
                    .tool = p->tool};
    di_emit_part(p, &part);
    go(p, DI_STAGE_ARGUMENTS);
}

static void end_call(di_parser *p, bool complete) {
    if (!p->in_call) return;
    if (complete && p->unwrapped) put_unwrapped(p);
    if (complete && !p->arguments_done) put(p, p->parameters ? "}" : "{}", p->parameters ? 1 : 2);
    p->in_call = false;
    di_part part = {.kind = DI_PART_CALL_END,
                    .call = p->end.calls - 1,
                    .id = p->id.data,
                    .name = p->own_name,
                    .space = p->space,
                    .tool = p->tool,
                    .complete = complete};
    di_emit_part(p, &part);
}

/* ---------------------------------------------------------------------------------------------- values */

static void begin_value(di_parser *p, bool string) {
    p->string = string;
    note_key(p);
    di_text_clear(&p->value);
    p->wrapper = is_wrapper(p);
    if (!p->wrapper) put_key(p, true);
    if (string && !p->wrapper) put(p, "\"", 1);
    go(p, string && !p->wrapper ? DI_STAGE_STRING : DI_STAGE_RAW);
}

static void end_value(di_parser *p) {
    if (p->stage == DI_STAGE_STRING) {
        put(p, "\"", 1);
    } else if (p->stage == DI_STAGE_BODY) {
        if (is_json(p, true)) {
            put_unwrapped(p);
        } else {
            put(p, "{\"arguments\": \"", strlen("{\"arguments\": \""));
            put_string(p, &p->value);
            put(p, "\"}", 2);
            p->end.repaired_calls++;
            p->arguments_done = true;
        }
    } else if (p->wrapper && is_json(p, true)) {
        p->unwrapped = true; /* all arguments, unless another parameter follows */
    } else {
        if (p->wrapper) put_key(p, true);
        put_value(p);
    }
    go(p, DI_STAGE_ARGUMENTS);
}

/* What was taken for all arguments is one of several, or the output was cut behind it. */
static void put_back_wrapper(di_parser *p) {
    if (!p->unwrapped) return;
    p->unwrapped = false;
    put_key(p, true);
    put_value(p);
}

static void put_value_byte(di_parser *p, char c) {
    if (p->stage == DI_STAGE_STRING)
        put_string_byte(p, c);
    else
        di_text_putc(&p->value, c);
}

/* A closing tag "</MARK NAME>" in the hold; *possible: more bytes may make it one. */
static di_closer closer_in_hold(const di_parser *p, bool *possible) {
    static const struct {
        const char *name;
        di_closer closer;
    } rows[] = {{"parameter>", DI_CLOSER_PARAMETER},
                {"invoke>", DI_CLOSER_INVOKE},
                {"calls>", DI_CLOSER_BLOCK},
                {"tool_calls>", DI_CLOSER_BLOCK}};
    size_t mark = strlen(p->mark);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int gap = 0; gap < 2; gap++) {
            char tag[DI_WINDOW];
            size_t name = strlen(rows[i].name), size = 2 + mark + (size_t)gap + name;
            memcpy(tag, "</", 2);
            memcpy(tag + 2, p->mark, mark);
            tag[2 + mark] = ' ';
            memcpy(tag + 2 + mark + gap, rows[i].name, name);
            size_t common = p->held < size ? p->held : size;
            if (memcmp(p->hold, tag, common) != 0) continue;
            if (p->held >= size) return rows[i].closer;
            *possible = true;
        }
    return DI_CLOSER_NONE;
}

static void take_closer(di_parser *p, di_closer closer) {
    if (closer == DI_CLOSER_INVOKE || closer == DI_CLOSER_BLOCK) {
        end_call(p, true);
        go(p, closer == DI_CLOSER_BLOCK ? DI_STAGE_FINISHED : DI_STAGE_CALLS);
    }
}

static void value_byte(di_parser *p, char c) {
    if (!p->held && c != '<') {
        put_value_byte(p, c);
        return;
    }
    p->hold[p->held++] = c;
    bool possible = false;
    di_closer closer = closer_in_hold(p, &possible);
    if (closer != DI_CLOSER_NONE) {
        if (closer != DI_CLOSER_PARAMETER && p->stage != DI_STAGE_BODY) p->end.repaired_calls++;
        end_value(p);
        take_closer(p, closer);
    } else if (!possible) {
        di_refeed(p, put_value_byte);
    }
}

/* ---------------------------------------------------------------------------------------------- tags */

static void slide(di_parser *p, char c) {
    if (p->window_used == DI_WINDOW) {
        memmove(p->window, p->window + 1, DI_WINDOW - 1);
        p->window_used--;
    }
    p->window[p->window_used++] = c;
}

static bool window_ends(const di_parser *p, const char *text) {
    size_t length = strlen(text);
    return p->window_used >= length && memcmp(p->window + p->window_used - length, text, length) == 0;
}

static di_closer closer_in_window(const di_parser *p) {
    size_t start = p->window_used;
    while (start > 0 && p->window[start - 1] != '<') start--;
    if (start == 0 || start >= p->window_used || p->window[start] != '/') return DI_CLOSER_NONE;
    if (window_ends(p, "invoke>")) return DI_CLOSER_INVOKE;
    return window_ends(p, "calls>") ? DI_CLOSER_BLOCK : DI_CLOSER_NONE;
}

/* Between calls and between parameters only tags mean something. */
static void tag_byte(di_parser *p, char c) {
    slide(p, c);
    if (c == '"' && window_ends(p, "invoke name=\"")) {
        if (p->in_call) p->end.repaired_calls++;
        end_call(p, true);
        di_text_clear(&p->name);
        go(p, DI_STAGE_NAME);
    } else if (c == '"' && p->in_call && !p->arguments_done && window_ends(p, "parameter name=\"")) {
        p->body_possible = false;
        put_back_wrapper(p);
        di_text_clear(&p->key);
        go(p, DI_STAGE_KEY);
    } else if (c == '>') {
        di_closer closer = closer_in_window(p);
        if (closer == DI_CLOSER_BLOCK && p->in_call) p->end.repaired_calls++;
        if (closer != DI_CLOSER_NONE) take_closer(p, closer);
    } else if (c == '{' && p->in_call && p->body_possible) {
        di_text_clear(&p->value);
        go(p, DI_STAGE_BODY);
        value_byte(p, c);
    } else if (!strchr("> \t\r\n", c)) {
        p->body_possible = false;
    }
}

static void name_byte(di_parser *p, char c) {
    if (c == '"') {
        char copy[DI_CALL_NAME];
        size_t length = p->name.failed ? 0 : p->name.length;
        if (length) memcpy(copy, p->name.data, length);
        di_call_begin(p, copy, length);
    } else if (c == '\n' || p->name.length == DI_CALL_NAME) {
        p->end.dropped_bytes += p->name.length;
        go(p, DI_STAGE_CALLS); /* not a name */
    } else {
        di_text_putc(&p->name, c);
    }
}

static void type_byte(di_parser *p, char c) {
    slide(p, c);
    if (c != '>') return;
    bool raw = window_ends(p, "false\">");
    if (!raw && !window_ends(p, "true\">")) p->end.repaired_calls++; /* no type: text */
    begin_value(p, !raw);
}

void di_call_byte(di_parser *p, char c) {
    switch (p->stage) {
    case DI_STAGE_NAME:
        name_byte(p, c);
        return;
    case DI_STAGE_KEY:
        if (c == '"')
            go(p, DI_STAGE_TYPE);
        else
            di_text_putc(&p->key, c);
        return;
    case DI_STAGE_TYPE:
        type_byte(p, c);
        return;
    case DI_STAGE_STRING:
    case DI_STAGE_RAW:
    case DI_STAGE_BODY:
        value_byte(p, c);
        return;
    default:
        tag_byte(p, c);
        return;
    }
}

/* ---------------------------------------------------------------------------------------------- the end */

/* The beginning of a closing tag: dropped when the output was cut there, or when it cannot be anything else. */
static void release_value(di_parser *p, bool cut) {
    size_t mark = strlen(p->mark) + 2, count = p->held;
    p->held = 0;
    if (cut || count >= mark) return;
    for (size_t i = 0; i < count; i++) put_value_byte(p, p->hold[i]);
}

/* What there is of the arguments, left open. */
static void cut_arguments(di_parser *p) {
    switch (p->stage) {
    case DI_STAGE_ARGUMENTS:
        put_back_wrapper(p);
        return;
    case DI_STAGE_KEY:
    case DI_STAGE_TYPE:
        put_key(p, p->stage == DI_STAGE_TYPE);
        return;
    case DI_STAGE_RAW:
        if (p->wrapper) put_key(p, true);
        if (p->string) put(p, "\"", 1);
        if (p->string)
            put_string(p, &p->value);
        else if (p->value.length)
            put(p, p->value.data, p->value.length);
        return;
    case DI_STAGE_BODY:
        if (p->value.length) put(p, p->value.data, p->value.length);
        return;
    default:
        return;
    }
}

void di_calls_finish(di_parser *p, bool cut) {
    bool value = p->stage == DI_STAGE_STRING || p->stage == DI_STAGE_RAW || p->stage == DI_STAGE_BODY;
    if (!p->in_call) return;
    if (value) release_value(p, cut);
    if (cut) {
        cut_arguments(p);
    } else {
        if (value) end_value(p);
        p->end.repaired_calls++;
    }
    end_call(p, !cut);
}
