/* recipe_internal.h - what the files of src/recipe share.
 *
 * request.c reads a request by way of request_chat.c, request_messages.c and request_responses.c (one per flavour),
 * request_tools.c and strict.c (tools, formats); render.c builds prompts, render_tools.c their tool markup; parser.c
 * and parser_calls.c read output. Everything lives in the caller's arena.
 */
#ifndef DI_RECIPE_INTERNAL_H
#define DI_RECIPE_INTERNAL_H

#include "recipe/recipe.h"

#define DI_DSML "｜DSML｜"

/* ---------------------------------------------------------------------------------------------- literals.c */

extern const char di_effort_absolute[]; /* "Reasoning Effort: Absolute maximum ..." */
extern const char di_effort_beyond[];   /* "Reasoning Effort: Beyond maximum ..." */
extern const char di_effort_number[];   /* printf format with one %d */
extern const char di_tools_head_v4[], di_tools_head_v41[], di_tools_tail[];
extern const char di_format_head[]; /* of a response format with a schema */
extern const char di_format_json_v4[];

/* ---------------------------------------------------------------------------------------------- request.c */

typedef struct di_field_path {
    char text[96]; /* "messages[2].content" */
} di_field_path;

di_field_path di_path(const char *format, ...) DI_PRINTF(1, 2);

/* "PATH must be WANTED, not a number"; absent if value is NULL. */
di_status di_bad_type(di_field_path path, const char *wanted, const di_json *value, di_error *error);
bool di_is_absent(const di_json *value); /* not there or null */
bool di_one_of(const di_json *value, const char *const *names, size_t count);

/* A request while it is read. */
typedef struct di_reader {
    di_arena *arena;
    const di_json *request;
    di_flavour flavour;
    di_conversation *conversation;
    di_recipe_options *options;
    di_error *error;
    di_message *messages; /* [count] */
    size_t *origins;      /* [count] index in the client's list; SIZE_MAX: not from the list */
    size_t count, capacity;
} di_reader;

/* The next message, cleared; NULL when out of memory (the error is set). */
di_message *di_reader_add(di_reader *reader, di_role role, size_t origin);
di_status di_reader_memory(di_reader *reader);

/* A string without zero bytes. Absent gives *text = NULL unless required. */
di_status di_read_name(di_reader *reader, const di_json *object, const char *member, di_field_path path, bool required,
                       const char **text);
/* One piece of text. */
di_status di_read_text(di_reader *reader, const char *text, size_t length, const di_content **content, size_t *count);
/* An image part: refused unless options.images. */
di_status di_read_image(di_reader *reader, di_field_path path, const di_json *url, di_content *content);
/* Arguments of a call: an object, or text that may be one. */
di_status di_read_arguments(di_reader *reader, const di_json *value, di_field_path path, di_tool_call *call);
/* Effort as a string or number. */
di_status di_read_effort(di_reader *reader, const di_json *effort, di_field_path path);
/* {"type": "enabled" | "disabled" | "adaptive"} or true, false. */
di_status di_read_thinking(di_reader *reader, const di_json *thinking);

di_status di_request_chat(di_reader *reader);
di_status di_request_messages(di_reader *reader);
di_status di_request_responses(di_reader *reader);

/* ---------------------------------------------------------------------------------------------- request_tools.c */

di_status di_read_tools(di_reader *reader);
di_status di_read_choice(di_reader *reader);
/* `format` at `path`: {"type": ...}; `schema` and `schema_path` of json_schema differ by flavour. */
di_status di_read_format(di_reader *reader, const di_json *format, const char *path);

/* ---------------------------------------------------------------------------------------------- strict.c */

/* The schema with "additionalProperties": false and a full "required" in every object; a copy in the arena. */
di_status di_strict_schema(di_arena *arena, const di_json *schema, di_field_path path, const di_json **strict,
                           di_error *error);

/* ---------------------------------------------------------------------------------------------- ids.c */

/* Positions by id; of an id that is there twice the first. */
typedef struct di_id_entry {
    const char *id;
    size_t position;
} di_id_entry;
typedef struct di_id_table {
    di_id_entry *entries; /* [count], sorted */
    size_t count;
} di_id_table;
/* Ids are zero-terminated. False when out of memory. */
bool di_id_table_build(di_id_table *table, di_arena *arena, const char *const *ids, size_t count);
bool di_id_table_calls(di_id_table *table, di_arena *arena, const di_tool_call *calls, size_t count);
size_t di_id_table_find(const di_id_table *table, const char *id); /* SIZE_MAX: not there */
const char *di_id_table_duplicate(const di_id_table *table);       /* an id that is there twice, or NULL */

typedef struct di_name_set { /* start from {0}; names are borrowed */
    const char **slots;      /* [capacity], a power of two; NULL = free */
    size_t count, capacity;
} di_name_set;
bool di_name_set_has(const di_name_set *set, const char *name);
bool di_name_set_add(di_name_set *set, di_arena *arena, const char *name); /* false when out of memory */

/* ---------------------------------------------------------------------------------------------- render.c */

/* Segments are collected as offsets, since the text still moves while it grows. */
typedef struct di_span {
    size_t offset, length;
    int32_t id; /* -1 = plain text */
} di_span;

typedef struct di_builder {
    const di_recipe *recipe;
    const di_conversation *conversation;
    const di_recipe_options *options;
    di_arena *arena;
    di_text text;
    di_span *spans; /* [count] */
    size_t count, capacity;
    size_t *images; /* [image_count] */
    size_t image_count, image_capacity;
    int missing; /* a control token that was needed and is not in the tokenizer, -1 = none */
    bool failed;
} di_builder;

void di_put_control(di_builder *builder, di_control control);
void di_put_text(di_builder *builder, const char *text, size_t length);
/* Text of our own, in which the names of control tokens stand for them. */
void di_put_template(di_builder *builder, const char *text, size_t length);
bool di_is_v41(const di_recipe *recipe);

/* --- render_tools.c */

void di_put_tools(di_builder *builder);           /* preamble, behind the system text */
void di_put_response_format(di_builder *builder); /* block, behind that */
void di_put_calls(di_builder *builder, const di_tool_call *calls, size_t count);
void di_put_block_opener(di_builder *builder);
/* Block opener as text, "\n\n<｜DSML｜ calls>\n", and its pieces. */
const char *di_block_opener(const di_recipe *recipe);
const char *di_tag_gap(const di_recipe *recipe);
const char *di_block_name(const di_recipe *recipe);

#endif
