/* fields.c - the field table and the check of a body against it; see fields.h. */
#include "server/fields.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CH = 1 << DI_ENDPOINT_CHAT,
    CO = 1 << DI_ENDPOINT_COMPLETIONS,
    MS = 1 << DI_ENDPOINT_MESSAGES,
    CT = 1 << DI_ENDPOINT_COUNT_TOKENS,
    RS = 1 << DI_ENDPOINT_RESPONSES,
    TK = 1 << DI_ENDPOINT_TOKENIZE,
    DT = 1 << DI_ENDPOINT_DETOKENIZE
};
#define B DI_FIELD_BOOL
#define I DI_FIELD_INTEGER
#define N DI_FIELD_NUMBER
#define S DI_FIELD_STRING
#define A DI_FIELD_ARRAY
#define O DI_FIELD_OBJECT
#define F(endpoints, path, types, low, high, range, values, limit, initial, use, note)                                 \
    {endpoints, path, types, low, high, range, values, limit, initial, DI_FIELD_##use, note},

static const di_field field_table[] = {
#include "server/fields_table.h"
};

#undef F
#undef O
#undef A
#undef S
#undef N
#undef I
#undef B

enum { FIELD_COUNT = sizeof field_table / sizeof *field_table };

static const char *const endpoint_paths[DI_ENDPOINT_COUNT] = {
    [DI_ENDPOINT_CHAT] = "/v1/chat/completions", [DI_ENDPOINT_COMPLETIONS] = "/v1/completions",
    [DI_ENDPOINT_MESSAGES] = "/v1/messages",     [DI_ENDPOINT_COUNT_TOKENS] = "/v1/messages/count_tokens",
    [DI_ENDPOINT_RESPONSES] = "/v1/responses",   [DI_ENDPOINT_TOKENIZE] = "/tokenize",
    [DI_ENDPOINT_DETOKENIZE] = "/detokenize",
};

const di_field *di_fields(size_t *count) {
    *count = FIELD_COUNT;
    return field_table;
}

const char *di_endpoint_path(di_endpoint endpoint) {
    return endpoint_paths[endpoint];
}

const di_json *di_field_get(const di_json *object, const char *name) {
    const di_json *value = di_json_get(object, name);
    return value && value->type != DI_JSON_NULL ? value : NULL;
}

/* ------------------------------------------------------------------------------------------------ one value */

static void type_words(unsigned types, char *out, size_t room) {
    static const struct {
        unsigned type;
        const char *word;
    } words[] = {{DI_FIELD_BOOL, "a boolean"},  {DI_FIELD_INTEGER, "an integer"}, {DI_FIELD_NUMBER, "a number"},
                 {DI_FIELD_STRING, "a string"}, {DI_FIELD_ARRAY, "an array"},     {DI_FIELD_OBJECT, "an object"}};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (types & words[i].type && used < room)
            used += (size_t)snprintf(out + used, room - used, "%s%s", used ? " or " : "", words[i].word);
}

static unsigned type_of(const di_json *value) {
    switch (value->type) {
    case DI_JSON_FALSE:
    case DI_JSON_TRUE:
        return DI_FIELD_BOOL;
    case DI_JSON_NUMBER:
        return DI_FIELD_INTEGER | DI_FIELD_NUMBER;
    case DI_JSON_STRING:
        return DI_FIELD_STRING;
    case DI_JSON_ARRAY:
        return DI_FIELD_ARRAY;
    case DI_JSON_OBJECT:
        return DI_FIELD_OBJECT;
    case DI_JSON_NULL:
        break;
    }
    return 0;
}

static di_status out_of_range(const di_field *field, di_error *error) {
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "Invalid %s value, the valid range of %s is %s",
                   field->path, field->path, field->range);
}

static di_status check_number(const di_field *field, const di_json *value, di_error *error) {
    double number;
    bool bounded = field->range[0] != '\0';
    if (!di_json_double(value, &number)) {
        if (bounded) return out_of_range(field, error);
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s: the number is too large", field->path);
    }
    if (!(field->types & DI_FIELD_NUMBER)) {
        int64_t integer;
        uint64_t natural;
        bool whole = di_json_int64(value, &integer) || di_json_uint64(value, &natural);
        if (!whole && (number != number || number > 1e18 || number < -1e18) && bounded)
            return out_of_range(field, error);
        if (!whole)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s must be an integer, not %.40s", field->path,
                           value->text);
    }
    bool open = field->range[0] == '('; /* the lower bound itself is out */
    bool low = open ? number <= field->minimum : number < field->minimum;
    if (bounded && (low || number > field->maximum)) return out_of_range(field, error);
    return DI_OK;
}

static di_status check_words(const di_field *field, const di_json *value, di_error *error) {
    for (const char *at = field->values; *at;) {
        size_t length = strcspn(at, "|");
        if (length == value->length && memcmp(at, value->text, length) == 0) return DI_OK;
        at += length + (at[length] == '|');
    }
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s must be one of %s, not \"%.40s\"", field->path,
                   field->values, value->text);
}

/* What the model reads may hold any character; names and the like may not hold one that would end them. */
static bool is_prompt_text(const di_field *field) {
    static const char *const paths[] = {"prompt", "suffix", "input", "instructions", "system"};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (strcmp(field->path, paths[i]) == 0) return true;
    return false;
}

/* Strings: bytes. Lists and objects: items. */
static di_status check_size(const di_field *field, const di_json *value, const di_config *config, di_error *error) {
    bool string = value->type == DI_JSON_STRING;
    double size = string ? (double)value->length : value->count;
    const char *unit = string ? "bytes" : "items";
    if (string && !is_prompt_text(field) && strlen(value->text) != value->length)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s holds a zero character", field->path);
    if (size < field->minimum && !(field->types & DI_FIELD_INTEGER)) {
        if (strcmp(field->path, "messages") == 0)
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "Empty input messages");
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s is empty; it has at least %.0f %s", field->path,
                       field->minimum, unit);
    }
    double most = field->types & DI_FIELD_INTEGER ? 0 : field->maximum;
    const char *option = "";
    /* The numbers of one prompt are its ids; what is limited is how many prompts there are. */
    bool ids = field->limit == DI_OPT_LIMIT_PROMPTS && value->type == DI_JSON_ARRAY && value->first &&
               value->first->type == DI_JSON_NUMBER;
    if (!string && field->limit >= 0 && !ids) {
        most = (double)di_config_int(config, (di_config_id)field->limit);
        option = di_config_rows()[field->limit].name;
    }
    if (value->type == DI_JSON_ARRAY && field->limit == DI_OPT_LIMIT_STOP_STRINGS && size > most)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path,
                       "Stop string array too long: %.0f; at most %.0f are allowed (--%s)", size, most, option);
    if ((most > 0 || *option) && size > most)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s has %.0f %s; at most %.0f are allowed%s%s%s",
                       field->path, size, unit, most, *option ? " (--" : "", option, *option ? ")" : "");
    return DI_OK;
}

/* The value, written compactly, is the one that the row accepts. */
static bool is_neutral(const di_field *field, const di_json *value) {
    di_text text = {0};
    di_json_writer writer;
    di_json_begin(&writer, &text);
    di_json_value(&writer, value);
    bool same = !text.failed && text.data && strcmp(text.data, field->values) == 0;
    di_text_free(&text);
    return same;
}

static di_status check_value(const di_field *field, const di_json *value, const di_config *config, di_error *error) {
    if (!(type_of(value) & field->types)) {
        char wanted[80];
        type_words(field->types, wanted, sizeof wanted);
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path, "%s must be %s, not %s", field->path, wanted,
                       di_json_type_name(value->type));
    }
    if (field->use == DI_FIELD_REFUSED)
        return di_fail(error, DI_ERR_UNSUPPORTED, field->path, "%s: %s", field->path, field->note);
    if (field->use == DI_FIELD_NEUTRAL) {
        if (is_neutral(field, value)) return DI_OK;
        return di_fail(error, DI_ERR_UNSUPPORTED, field->path, "%s can only be %s: %s", field->path, field->values,
                       field->note);
    }
    if (value->type == DI_JSON_NUMBER) {
        di_status status = check_number(field, value, error);
        double most = field->limit >= 0 ? (double)di_config_int(config, (di_config_id)field->limit) : 0, number;
        if (status != DI_OK || field->limit < 0 || !di_json_double(value, &number)) return status;
        if (number >= field->minimum && number <= most) return DI_OK;
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, field->path,
                       "Invalid %s value, the valid range of %s is [%.0f, %.0f] (--%s)", field->path, field->path,
                       field->minimum, most, di_config_rows()[field->limit].name);
    }
    if (value->type == DI_JSON_STRING && *field->values) return check_words(field, value, error);
    if (value->type == DI_JSON_STRING || value->type == DI_JSON_ARRAY || value->type == DI_JSON_OBJECT)
        return check_size(field, value, config, error);
    return DI_OK;
}

/* -------------------------------------------------------------------------------------------------- objects */

typedef struct check {
    unsigned endpoint; /* bit */
    di_arena *arena;
    const di_config *config;
    bool strict;
    di_text *unknown;
    di_error *error;
} check;

static const di_field *find_row(unsigned endpoint, const char *path) {
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (field_table[i].endpoints & endpoint && strcmp(field_table[i].path, path) == 0) return &field_table[i];
    return NULL;
}

/* Rows of what lies inside an object. */
static bool has_rows_inside(unsigned endpoint, const char *path) {
    size_t length = strlen(path);
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (field_table[i].endpoints & endpoint && strncmp(field_table[i].path, path, length) == 0 &&
            field_table[i].path[length] == '.')
            return true;
    return false;
}

static di_status unknown_field(const check *c, const char *path) {
    if (!c->strict) {
        if (c->unknown->length) di_text_puts(c->unknown, ", ");
        di_text_puts(c->unknown, path);
        return DI_OK;
    }
    const char *names[FIELD_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < FIELD_COUNT; i++)
        if (field_table[i].endpoints & c->endpoint) names[count++] = field_table[i].path;
    const char *nearest = di_nearest_name(path, names, count);
    return di_fail(c->error, DI_ERR_INVALID_ARGUMENT, path, "unknown field \"%.80s\"%s%s%s", path,
                   nearest ? "; did you mean \"" : "", nearest ? nearest : "", nearest ? "\"?" : "");
}

static di_status given_twice(const check *c, const char *path, const di_json *member) {
    char twice[sizeof c->error->param];
    snprintf(twice, sizeof twice, "%s%s%s", path, *path ? "." : "", member->key);
    return di_fail(c->error, DI_ERR_INVALID_ARGUMENT, twice, "%s is given twice", twice);
}

static di_status no_memory(const check *c) {
    return di_fail(c->error, DI_ERR_MEMORY, NULL, "out of memory for the request");
}

static di_status check_unique(const check *c, const char *path, const di_json *object) {
    if (object->count < 2) return DI_OK;
    const di_json **folded = di_json_fold(object); /* NULL where the key was there before */
    if (!folded) return no_memory(c);
    const di_json *member = object->first;
    size_t i = 0;
    for (; member && folded[i]; member = member->next) i++;
    free(folded);
    return member ? given_twice(c, path, member) : DI_OK;
}

enum { MEMBERS_MAX = 256 }; /* of an object that no option bounds: they are few in an honest body */

static di_status check_members(const check *c, const char *path, const di_json *object) {
    if (object->count > MEMBERS_MAX)
        return di_fail(c->error, DI_ERR_INVALID_ARGUMENT, path, "%s has %u members; at most %d are allowed",
                       *path ? path : "the body", object->count, MEMBERS_MAX);
    return check_unique(c, path, object);
}

/* What is only handed on: schemas and arguments of tools, and what the client calls its own. */
static bool is_handed_on(const di_json *member) {
    static const char *const names[] = {"parameters", "input_schema", "schema", "arguments", "input", "metadata"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(member->key, names[i]) == 0 && member->type == DI_JSON_OBJECT) return true;
    return false;
}

/* Objects inside a value that no row looks into: messages, tools. The reader has bounded the depth. */
static di_status check_inside(const check *c, const char *path, const di_json *value) { /* NOLINT(misc-no-recursion) */
    bool object = value->type == DI_JSON_OBJECT;
    di_status status = object ? check_members(c, path, value) : DI_OK;
    size_t index = 0;
    if (!object && value->type != DI_JSON_ARRAY) return DI_OK;
    for (const di_json *item = value->first; item && status == DI_OK; item = item->next, index++) {
        if (item->type != DI_JSON_OBJECT && item->type != DI_JSON_ARRAY) continue;
        if (object && is_handed_on(item)) continue;
        char inner[sizeof c->error->param];
        if (object)
            snprintf(inner, sizeof inner, "%s.%s", path, item->key);
        else
            snprintf(inner, sizeof inner, "%s[%zu]", path, index);
        status = check_inside(c, inner, item);
    }
    return status;
}

/* Fields that are a schema as a whole. */
static bool is_schema(const di_field *field) {
    return strcmp(field->path, "guided_json") == 0 || strcmp(field->path, "structured_outputs.json") == 0;
}

/* What lies in a value that its row accepts, and into which no other row looks. */
static di_status check_content(const check *c, const di_field *field, const di_json *member) {
    if (is_schema(field) || is_handed_on(member)) return DI_OK;
    if (member->type == DI_JSON_OBJECT && field->limit >= 0) return check_unique(c, field->path, member);
    return check_inside(c, field->path, member);
}

static di_status keep_known(const check *c, const char *prefix, di_json *object);

/* *kept: a copy for the body that is read; NULL if the member counts as absent or has no row. */
static di_status check_member(const check *c, const char *prefix, const di_json *member, di_json **kept) {
    char path[sizeof c->error->param];
    int length = snprintf(path, sizeof path, "%s%s%s", prefix, *prefix ? "." : "", member->key);
    bool printable = length < (int)sizeof path && strlen(member->key) == member->key_length;
    const di_field *field = printable ? find_row(c->endpoint, path) : NULL;
    *kept = NULL;
    if (member->type == DI_JSON_NULL) return DI_OK; /* the same as absent, known or not */
    if (!field) return unknown_field(c, path);
    di_status status = check_value(field, member, c->config, c->error);
    if (status != DI_OK) return status;
    di_json *copy = di_arena_zalloc(c->arena, sizeof *copy);
    if (!copy) return no_memory(c);
    *copy = *member;
    copy->next = NULL;
    *kept = copy;
    if (field->use == DI_FIELD_IGNORED) return DI_OK; /* kept: Responses give some of them back */
    if (member->type == DI_JSON_OBJECT && has_rows_inside(c->endpoint, path)) return keep_known(c, path, copy);
    return check_content(c, field, member);
}

/* Checks the members of an object, which is a copy, and leaves in it those that are known. */
static di_status keep_known(const check *c, const char *prefix, di_json *object) {
    di_status status = check_members(c, prefix, object);
    const di_json *member = object->first;
    di_json **end = &object->first;
    object->first = NULL;
    object->count = 0;
    for (; member && status == DI_OK; member = member->next) {
        di_json *kept;
        status = check_member(c, prefix, member, &kept);
        if (status != DI_OK || !kept) continue;
        *end = kept;
        end = &kept->next;
        object->count++;
    }
    return status;
}

di_status di_fields_check(di_endpoint endpoint, di_arena *arena, const di_json *body, const di_config *config,
                          bool strict, di_text *unknown, const di_json **known, di_error *error) {
    *known = NULL;
    if (body->type != DI_JSON_OBJECT)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "", "the body must be a JSON object, not %s",
                       di_json_type_name(body->type));
    check c = {1U << endpoint, arena, config, strict, unknown, error};
    di_json *copy = di_arena_zalloc(arena, sizeof *copy);
    if (!copy) return no_memory(&c);
    *copy = *body;
    di_status status = keep_known(&c, "", copy);
    for (size_t i = 0; status == DI_OK && i < FIELD_COUNT; i++)
        if (field_table[i].use == DI_FIELD_REQUIRED && field_table[i].endpoints & c.endpoint &&
            !di_field_get(copy, field_table[i].path))
            status = di_fail(error, DI_ERR_INVALID_ARGUMENT, field_table[i].path, "%s is missing", field_table[i].path);
    if (status == DI_OK) *known = copy;
    return status;
}

/* ------------------------------------------------------------------------------------------------------ lists */

static void write_row(di_text *out, const di_field *field) {
    static const char *const uses[] = {[DI_FIELD_REQUIRED] = "required",
                                       [DI_FIELD_USED] = "used",
                                       [DI_FIELD_NEUTRAL] = "only",
                                       [DI_FIELD_IGNORED] = "ignored",
                                       [DI_FIELD_REFUSED] = "refused"};
    char types[80];
    type_words(field->types, types, sizeof types);
    di_text_printf(out, "| `%s` | %s", field->path, types);
    if (*field->range) di_text_printf(out, " %s", field->range);
    if (field->limit >= 0) di_text_printf(out, " (`--%s`)", di_config_rows()[field->limit].name);
    di_text_printf(out, " | %s | %s", *field->fallback ? field->fallback : "-", uses[field->use]);
    if (field->use == DI_FIELD_NEUTRAL) di_text_printf(out, " `%s`", field->values);
    di_text_puts(out, " | ");
    if (field->use != DI_FIELD_NEUTRAL && *field->values) {
        for (const char *c = field->values; *c; c++) di_text_puts(out, *c == '|' ? ", " : (char[]){*c, '\0'});
        if (*field->note) di_text_puts(out, "; ");
    }
    di_text_printf(out, "%s |\n", field->note);
}

void di_fields_write_markdown(di_text *out) {
    for (int e = 0; e < DI_ENDPOINT_COUNT; e++) {
        di_text_printf(out,
                       "\n### POST %s\n\n| field | type | default | what becomes of it | |\n|---|---|---|---|---|\n",
                       endpoint_paths[e]);
        for (size_t i = 0; i < FIELD_COUNT; i++)
            if (field_table[i].endpoints & 1U << e) write_row(out, &field_table[i]);
    }
}
