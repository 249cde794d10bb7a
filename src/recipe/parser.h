/* parser.h - the output of a turn: from tokens to reasoning, content and tool calls.
 *
 * A machine that is fed bytes as they become certain, with the token that brought them as evidence. Any way to cut the
 * text gives the same parts joined: there is no other way to parse than this one, streaming or not. What it emits is
 * valid UTF-8, cut between characters. It holds back only what may still turn out to be markup (a bounded number of
 * bytes), and values of tool arguments that have to be checked as a whole.
 *
 * </think> and <think> count as marks when their token id says so (text that spells them is text); where no ids are
 * known at all the text alone decides. Tool markup is recognised in the text, since models misspell it with ordinary
 * tokens.
 *
 * Stop strings are the engine's (prompt.stop_arm_token_id). One thread a parser. Owner: whoever called di_parser_new.
 */
#ifndef DI_RECIPE_PARSER_H
#define DI_RECIPE_PARSER_H

#include "recipe/recipe.h"

typedef enum di_output_kind {
    DI_PART_REASONING,
    DI_PART_CONTENT,
    DI_PART_CALL_BEGIN,     /* id, name and space are complete */
    DI_PART_CALL_ARGUMENTS, /* a piece of JSON text */
    DI_PART_CALL_END,       /* complete: the arguments are one JSON object; otherwise the output was cut inside them */
} di_output_kind;

typedef struct di_part {
    di_output_kind kind;
    const char *text; /* borrowed during the call; valid UTF-8 */
    size_t length;
    uint32_t call;       /* index from 0 */
    const char *id;      /* CALL_BEGIN and later parts of the call, zero-terminated */
    const char *name;    /* as the client declared it, zero-terminated */
    const char *space;   /* its namespace, NULL = none */
    const di_tool *tool; /* the declared tool, NULL = the model made the name up */
    bool complete;       /* CALL_END */
    uint32_t tokens;     /* tokens that came since the last part: sums up to all tokens with those of the end */
} di_part;

typedef void (*di_part_function)(void *arg, const di_part *part);

typedef struct di_parser_options {
    const char *id_prefix; /* of call ids, "call_" if NULL: PREFIX 00_ and 24 letters and digits */
    uint64_t id_seed;      /* the ids are a function of it and the call's index */
    bool grammar;          /* a grammar sees to the JSON: nothing is stripped around it */
    bool lenient;          /* also accept blocks of calls whose opening is misspelt, at the start of a line */
    di_part_function on_part;
    void *arg;
} di_parser_options;

/* How the engine ended. */
typedef enum di_output_end {
    DI_END_EOS, /* EOS or a stop id */
    DI_END_STOP_STRING,
    DI_END_LENGTH,
    DI_END_CANCELLED,
    DI_END_ERROR
} di_output_end;

typedef enum di_answer_finish {
    DI_ANSWER_STOP,
    DI_ANSWER_LENGTH,
    DI_ANSWER_TOOL_CALLS,
    DI_ANSWER_CANCELLED,
    DI_ANSWER_ERROR
} di_answer_finish;

const char *di_answer_finish_name(di_answer_finish finish); /* "tool_calls", as in the chat API */

typedef struct di_parser_end {
    di_answer_finish finish;
    uint64_t tokens;           /* all that were pushed */
    uint64_t reasoning_tokens; /* up to and including </think> */
    uint32_t late_tokens;      /* that no part carried */
    uint32_t calls;
    uint32_t stray_marks;    /* <think> and </think> where they have no meaning */
    uint32_t repeated_keys;  /* the last one counts */
    uint32_t repaired_calls; /* closed for the model, or values that were no JSON made strings */
    uint64_t dropped_bytes;  /* text behind calls and around JSON */
} di_parser_end;

typedef struct di_parser di_parser;

/* For an answer to this prompt. The conversation tells the declared tools. NULL when out of memory. */
di_parser *di_parser_new(const di_recipe *recipe, const di_conversation *conversation, const di_prompt *prompt,
                         const di_parser_options *options);
void di_parser_free(di_parser *parser); /* NULL is allowed */

/* Texts that open calls for a parser of answers to this prompt, for di_request_params.stop_disarm: from there on all is
 * markup. Of the misspelt ones (lenient) the name is left out. In the arena; none without tools. */
di_status di_parser_openings(const di_conversation *conversation, const di_prompt *prompt, bool lenient,
                             di_arena *arena, const char *const **texts, size_t *count, di_error *error);

/* One token and the text that became certain with it (possibly none). token_id -1: text that came late, without a token
 * (of the engine's FINISH event). */
void di_parser_push(di_parser *parser, int32_t token_id, const char *text, size_t length);

/* End of output; call once. DI_ERR_MEMORY when memory ran out at any time: what was emitted is incomplete. */
di_status di_parser_finish(di_parser *parser, di_output_end how, di_parser_end *end, di_error *error);

/* The engine's word for it. `stop_string`: event.stop_string. */
di_output_end di_output_end_of(di_finish_reason reason, const char *stop_string);

/* ---------------------------------------------------------------------------------------------- a whole answer */

typedef struct di_answer_call {
    char *id, *name, *space; /* malloc'ed; space may be NULL */
    const di_tool *tool;
    di_text arguments;
    bool complete;
} di_answer_call;

/* The parts joined. Start from {0}. */
typedef struct di_answer {
    di_text reasoning, content;
    di_answer_call *calls; /* [call_count] */
    size_t call_count, call_capacity;
    bool failed; /* out of memory */
} di_answer;

void di_answer_take(void *answer, const di_part *part); /* a di_part_function; `answer` is a di_answer */
void di_answer_free(di_answer *answer);                 /* also resets to {0} */

#endif
