/* recipe.h - chat prompts of the DeepSeek family: from messages to segments, and from output back to parts.
 *
 * A prompt is a list of segments: control tokens by id, and plain text. Client text is always plain, so text that
 * spells a control token stays text (the one exception are the grounding marks in assistant messages, which the model
 * itself wrote). Each plain segment is tokenised on its own.
 *
 * Profile v4.1 with the roles system, user and assistant. What is not available yet (tools, images, response formats,
 * other roles and profiles) is refused by name with DI_ERR_UNSUPPORTED. A recipe is immutable: any thread.
 */
#ifndef DI_RECIPE_RECIPE_H
#define DI_RECIPE_RECIPE_H

#include "base/arena.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "tokenizer/tokenizer.h"

/* ---------------------------------------------------------------------------------------------- the format */

typedef enum di_recipe_profile { DI_RECIPE_V41 } di_recipe_profile;

/* Control tokens of the format. */
typedef enum di_control {
    DI_CONTROL_BOS,
    DI_CONTROL_EOS,
    DI_CONTROL_SYSTEM,
    DI_CONTROL_USER,
    DI_CONTROL_ASSISTANT,
    DI_CONTROL_THINK,     /* <think> */
    DI_CONTROL_THINK_END, /* </think> */
    DI_CONTROL_REQUIRED,  /* those above must be there; those below may be missing in a tokenizer */
    DI_CONTROL_REF = DI_CONTROL_REQUIRED,
    DI_CONTROL_REF_END,
    DI_CONTROL_BOX,
    DI_CONTROL_BOX_END,
    DI_CONTROL_POINT,
    DI_CONTROL_POINT_END,
    DI_CONTROL_POLYGON,
    DI_CONTROL_POLYGON_END,
    DI_CONTROL_COUNT
} di_control;

const char *di_control_text(di_control control); /* "<｜User｜>" */

typedef struct di_recipe {
    di_recipe_profile profile;
    int32_t ids[DI_CONTROL_COUNT]; /* -1 = not in this tokenizer */
} di_recipe;

/* By name: "v4.1". */
di_status di_recipe_profile_parse(const char *name, di_recipe_profile *profile, di_error *error);

/* Looks the control tokens up. DI_ERR_UNSUPPORTED names every required one that the tokenizer lacks. Ids that differ
 * from the published ones in a vocabulary of the published size are a warning in the log (may be NULL). */
di_status di_recipe_open(const di_tokenizer *tokenizer, di_recipe_profile profile, di_log *log, di_recipe *recipe,
                         di_error *error);

/* ---------------------------------------------------------------------------------------------- a conversation */

typedef enum di_role { DI_ROLE_SYSTEM, DI_ROLE_USER, DI_ROLE_ASSISTANT } di_role;

/* One piece of a message's content. */
typedef enum di_content_kind { DI_CONTENT_TEXT } di_content_kind;
typedef struct di_content {
    di_content_kind kind;
    const char *text;
    size_t length;
} di_content;

typedef struct di_message {
    di_role role;
    const di_content *content; /* [content_count]; pieces are joined by an empty line */
    size_t content_count;
    const char *reasoning; /* assistant; NULL = none */
    size_t reasoning_length;
    bool prefix; /* assistant, last message: the turn stays open and is continued */
} di_message;

typedef struct di_conversation {
    const di_message *messages; /* [count] */
    size_t count;
} di_conversation;

enum { DI_EFFORT_DEFAULT = 75 };

typedef struct di_recipe_options {
    bool thinking;
    int effort;          /* 1..100, written into the prompt when thinking */
    bool keep_reasoning; /* keep the reasoning of finished turns; default false: it is dropped, as the model was trained
                            and is served without tools */
} di_recipe_options;

void di_recipe_options_default(di_recipe_options *options); /* thinking, effort 75, earlier reasoning dropped */

/* "none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra" or 1..100. "none" turns thinking off and leaves
 * the effort alone; the others do not touch thinking. The error's param is "reasoning_effort". */
di_status di_recipe_effort_parse(const char *text, di_recipe_options *options, di_error *error);

/* The chat part of a JSON request: messages, thinking, reasoning_effort; tools, tool_choice and response_format only
 * where they ask for nothing. `request` is the whole object; its other members are not looked at. *options holds the
 * defaults and is changed by what is given. Everything lives in the arena and in the parsed JSON. Errors name the
 * field: "messages[2].content". */
di_status di_recipe_parse_request(di_arena *arena, const di_json *request, di_conversation *conversation,
                                  di_recipe_options *options, di_error *error);

/* ---------------------------------------------------------------------------------------------- a prompt */

/* What the model writes first. */
typedef enum di_answer_start {
    DI_START_REASONING,           /* after <think> */
    DI_START_ANSWER,              /* after </think> */
    DI_START_REASONING_CONTINUED, /* inside a reasoning that the prompt began */
    DI_START_ANSWER_CONTINUED,    /* inside an answer that the prompt began */
} di_answer_start;

typedef struct di_prompt {
    const char *text; /* the whole prompt as text, for logs and tests; [length], zero-terminated */
    size_t length;
    const di_text_segment *segments; /* [count]: pieces of `text`; a control segment is exactly one token */
    const int32_t *control_ids;      /* [count]: the token's id, -1 for plain text */
    const di_segment *request;       /* [count]: the same for di_submit */
    size_t count;
    di_answer_start start;
} di_prompt;

/* Builds the prompt in the arena. */
di_status di_recipe_render(const di_recipe *recipe, const di_conversation *conversation,
                           const di_recipe_options *options, di_arena *arena, di_prompt *prompt, di_error *error);

/* The prompt's token ids, appended to *ids (which the caller frees, also after a failure). */
di_status di_recipe_encode(const di_tokenizer *tokenizer, const di_prompt *prompt, di_ids *ids, di_error *error);

/* ---------------------------------------------------------------------------------------------- output */

/* Splits output into reasoning and content at the control id </think>; text that only spells it is text. Line breaks
 * before </think>, and those that begin a part that the prompt did not begin, belong to the mark. Plain data. */
typedef struct di_splitter {
    int32_t think_end;
    bool reasoning;            /* in which part the next token stands */
    bool leading;              /* nothing of this part was seen yet */
    size_t held;               /* line breaks of the reasoning that may yet belong to the mark */
    uint64_t reasoning_tokens; /* up to and including </think> */
} di_splitter;

void di_splitter_init(di_splitter *splitter, const di_recipe *recipe, di_answer_start start);
/* One token: its id and the text that became certain with it. Appends to the part that it belongs to. */
void di_splitter_push(di_splitter *splitter, int32_t token_id, const char *text, size_t length, di_text *reasoning,
                      di_text *content);
/* End of output: gives out what was held back. `text` is what the detokeniser flushed. */
void di_splitter_finish(di_splitter *splitter, const char *text, size_t length, di_text *reasoning, di_text *content);

#endif
