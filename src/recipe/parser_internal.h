/* parser_internal.h - the machine behind parser.h.
 *
 * parser.c has the entry points, UTF-8, the stages of text and their marks; parser_calls.c everything inside a block of
 * calls. Bytes come one by one through di_stage_byte; what may be the beginning of a mark waits in `hold` (with the run
 * of line breaks before it in `newlines`) and is fed again without its first byte when it turns out to be text.
 */
#ifndef DI_RECIPE_PARSER_INTERNAL_H
#define DI_RECIPE_PARSER_INTERNAL_H

#include "recipe/parser.h"

enum { DI_HOLD = 512, DI_WINDOW = 48, DI_CALL_NAME = 260, DI_KEYS = 256, DI_CALL_ID = 24 };

typedef enum di_stage {
    DI_STAGE_REASONING,
    DI_STAGE_ANSWER,
    DI_STAGE_JSON_BEFORE, /* JSON was asked for: text before it */
    DI_STAGE_JSON,
    DI_STAGE_JSON_AFTER,
    DI_STAGE_CALLS, /* in a block, between calls */
    DI_STAGE_NAME,
    DI_STAGE_ARGUMENTS, /* in a call, between parameters */
    DI_STAGE_KEY,
    DI_STAGE_TYPE,
    DI_STAGE_STRING, /* value of string="true", streamed */
    DI_STAGE_RAW,    /* value of string="false", or one that may be unwrapped: collected */
    DI_STAGE_BODY,   /* a JSON object in place of parameters: collected */
    DI_STAGE_FINISHED
} di_stage;

/* Tags that end something. */
typedef enum di_closer { DI_CLOSER_NONE, DI_CLOSER_PARAMETER, DI_CLOSER_INVOKE, DI_CLOSER_BLOCK } di_closer;

struct di_parser {
    const di_tool *tools; /* [tool_count] */
    size_t tool_count;
    bool has_spaces, tools_on, json, lenient;
    int32_t think, think_end; /* ids of the marks */
    di_part_function on_part;
    void *arg;
    di_text id_prefix;
    uint64_t id_seed;

    di_stage stage;
    bool leading;    /* nothing of this part was seen yet: line breaks are dropped */
    bool started;    /* some of this part was emitted (not at the start of a line) */
    bool gap;        /* a blank already stands for dropped text */
    size_t newlines; /* held: may belong to the mark that follows */
    char hold[DI_HOLD];
    size_t held;
    bool ids_known;                          /* tokens came with their ids */
    uint32_t expected_think, expected_close; /* marks announced by id whose text did not come yet */
    uint8_t utf8[4];                         /* an incomplete character */
    size_t utf8_count;

    const char *mark; /* of the block: ｜DSML｜, or as it was misspelt */
    char window[DI_WINDOW];
    size_t window_used;
    bool body_possible;              /* nothing but the tag's end was seen of the call */
    bool in_call;                    /* CALL_BEGIN was emitted and CALL_END not */
    bool string, wrapper, unwrapped; /* the value is a string; may be all arguments; is, and is held in `value` */
    bool arguments_done;             /* the arguments are complete */
    size_t parameters;
    uint64_t keys[DI_KEYS]; /* hashes of the call's keys */
    size_t key_count;
    di_text name, key, value, id;
    const di_tool *tool;
    const char *own_name, *space;
    di_arena *scratch;

    di_output_kind run_kind;
    di_text run; /* not yet emitted */
    uint32_t fresh_tokens;
    bool failed;
    di_parser_end end;
};

/* --- parser.c */
void di_stage_byte(di_parser *parser, char byte);
void di_emit(di_parser *parser, di_output_kind kind, const char *text, size_t length);
void di_emit_part(di_parser *parser, di_part *part); /* after what is in the run */
/* The hold is text: its first byte as `emit_first` does it, the rest fed again. */
void di_refeed(di_parser *parser, void (*emit_first)(di_parser *parser, char byte));

/* --- parser_calls.c */
const di_tool *di_find_tool(const di_parser *parser, const char *name, size_t length);
void di_calls_enter(di_parser *parser, const char *mark);
void di_call_begin(di_parser *parser, const char *name, size_t length);
void di_call_byte(di_parser *parser, char byte);
/* End of output inside a block. `cut`: by a limit, so that nothing may be made up. */
void di_calls_finish(di_parser *parser, bool cut);

#endif
