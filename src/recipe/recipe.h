/* recipe.h - prompts of the DeepSeek family: from requests to conversations, from conversations to segments.
 *
 * The road of a request: JSON --di_recipe_parse_request--> di_conversation + di_recipe_options --di_recipe_render-->
 * di_prompt (segments for di_submit, and what the parser of the output must know: parser.h).
 *
 * A prompt is a list of segments: control tokens by id, and plain text. Client text is always plain, so text that
 * spells a control token stays text (the one exception are the grounding marks in assistant messages, which the model
 * itself wrote). Each plain segment is tokenised on its own.
 *
 * Whatever a call makes lives in the caller's arena and borrows from the parsed JSON: keep both for as long as the
 * conversation, the prompt or a parser made from them is used. A recipe is immutable: any thread.
 * Errors name the field as the client wrote it ("messages[2].content", "input[0].output"). Texts that clients of the
 * hosted service match on are the message itself; the path is in di_error.param. docs/recipe.md tells the format.
 */
#ifndef DI_RECIPE_RECIPE_H
#define DI_RECIPE_RECIPE_H

#include "base/arena.h"
#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "tokenizer/tokenizer.h"

/* ---------------------------------------------------------------------------------------------- the format */

typedef enum di_recipe_profile {
    DI_RECIPE_V41,        /* DeepSeek-V4.1 */
    DI_RECIPE_V4_0731,    /* V4 of July 2026 */
    DI_RECIPE_V4_PREVIEW, /* V4 of April 2026 */
} di_recipe_profile;

/* Control tokens of the format. */
typedef enum di_control {
    DI_CONTROL_BOS,
    DI_CONTROL_EOS,
    DI_CONTROL_USER,
    DI_CONTROL_ASSISTANT,
    DI_CONTROL_THINK,                        /* <think> */
    DI_CONTROL_THINK_END,                    /* </think> */
    DI_CONTROL_REQUIRED,                     /* those above must be there; those below may be missing in a tokenizer */
    DI_CONTROL_SYSTEM = DI_CONTROL_REQUIRED, /* required by v4.1 */
    DI_CONTROL_DSML,                         /* the mark of tool calls */
    DI_CONTROL_LATEST_REMINDER,
    DI_CONTROL_IMAGE,
    DI_CONTROL_FIM_BEGIN,
    DI_CONTROL_FIM_HOLE,
    DI_CONTROL_FIM_END,
    DI_CONTROL_ACTION, /* tasks, in the order of di_task */
    DI_CONTROL_QUERY,
    DI_CONTROL_AUTHORITY,
    DI_CONTROL_DOMAIN,
    DI_CONTROL_READ_URL,
    DI_CONTROL_TITLE,
    DI_CONTROL_EXTRACTED_URL,
    DI_CONTROL_REF, /* grounding marks, to the end */
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

const char *di_recipe_profile_name(di_recipe_profile profile); /* "v4.1", "v4-0731", "v4-preview" */

/* The profile of a checkpoint: <｜System｜> among the added tokens means v4.1; else the encoder that lies in
 * FOLDER/encoding tells the two V4 apart. `folder` may be NULL. */
di_recipe_profile di_recipe_detect(const char *folder, const di_tokenizer *tokenizer);

/* Looks the control tokens up. DI_ERR_UNSUPPORTED names every required one that the tokenizer lacks. Ids that differ
 * from the published ones in a vocabulary of the published size are a warning in the log (may be NULL). */
di_status di_recipe_open(const di_tokenizer *tokenizer, di_recipe_profile profile, di_log *log, di_recipe *recipe,
                         di_error *error);

/* ---------------------------------------------------------------------------------------------- a conversation */

typedef enum di_role { DI_ROLE_SYSTEM, DI_ROLE_USER, DI_ROLE_ASSISTANT, DI_ROLE_TOOL, DI_ROLE_LATEST_REMINDER } di_role;

/* One piece of a message's content; pieces are joined by an empty line, but a URL follows its question directly. */
typedef enum di_content_kind { DI_CONTENT_TEXT, DI_CONTENT_IMAGE, DI_CONTENT_EXTRACTED_URL } di_content_kind;
typedef struct di_content {
    di_content_kind kind;
    const char *text; /* text; an image: its URL or data URL as the client sent it */
    size_t length;
} di_content;

/* A call in the history. Either `arguments` (an object) or `raw` (what the client sent instead of one). */
typedef struct di_tool_call {
    const char *id, *name; /* zero-terminated; the name as the model is shown it ("space::name") */
    const di_json *arguments;
    const char *raw;
    size_t raw_length;
} di_tool_call;

/* Quick instructions: short answers for a special purpose, in place of a turn. */
typedef enum di_task {
    DI_TASK_NONE,
    DI_TASK_ACTION,
    DI_TASK_QUERY,
    DI_TASK_AUTHORITY,
    DI_TASK_DOMAIN,
    DI_TASK_READ_URL,
    DI_TASK_TITLE
} di_task;

typedef struct di_message {
    di_role role;
    const di_content *content; /* [content_count] */
    size_t content_count;
    const char *reasoning; /* assistant; NULL = none */
    size_t reasoning_length;
    const di_tool_call *calls; /* assistant; [call_count] */
    size_t call_count;
    const char *call_id; /* tool: the call it answers; NULL = not known */
    di_task task;        /* user; DI_TASK_TITLE: assistant */
    bool prefix;         /* assistant, last message: the turn stays open and is continued */
    bool kept;           /* system: written even if it is empty */
} di_message;

/* A declared tool. */
typedef struct di_tool {
    const char *name;             /* as the model is shown it; zero-terminated */
    const char *own_name, *space; /* as the client declared it; space: NULL = no namespace */
    const char *description;      /* NULL = none */
    const di_json *parameters;    /* JSON Schema, normalised when strict; NULL = none */
    bool strict;
    bool custom; /* Responses: a custom tool, its input is plain text in the argument "input" */
} di_tool;

typedef enum di_tool_choice {
    DI_CHOICE_AUTO,
    DI_CHOICE_NONE,
    DI_CHOICE_REQUIRED, /* at least one call */
    DI_CHOICE_NAMED,    /* a call of conversation.named */
} di_tool_choice;

typedef enum di_format { DI_FORMAT_TEXT, DI_FORMAT_JSON_OBJECT, DI_FORMAT_JSON_SCHEMA, DI_FORMAT_REGEX } di_format;

typedef struct di_conversation {
    const di_message *messages; /* [count] */
    size_t count;
    const di_tool *tools; /* [tool_count] as declared, whatever the choice is */
    size_t tool_count;
    di_tool_choice choice;
    const di_tool *named; /* DI_CHOICE_NAMED */
    bool one_call;        /* parallel_tool_calls: false */
    di_format format;
    const di_json *schema; /* DI_FORMAT_JSON_SCHEMA */
    const char *regex;     /* DI_FORMAT_REGEX, zero-terminated */
} di_conversation;

/* True when calls may come: tools are declared and the choice is not none. */
bool di_conversation_has_tools(const di_conversation *conversation);

/* ---------------------------------------------------------------------------------------------- options */

/* What is kept of the reasoning of earlier turns. */
typedef enum di_recipe_history {
    DI_HISTORY_RECIPE,    /* with tools in force all of it, without none: as the model is served */
    DI_HISTORY_REFERENCE, /* the same, but what follows the last user message is kept, and tool loops are */
    DI_HISTORY_KEEP,      /* all of it */
} di_recipe_history;

typedef enum di_effort {
    DI_EFFORT_MINIMAL,
    DI_EFFORT_LOW,
    DI_EFFORT_MEDIUM,
    DI_EFFORT_HIGH, /* the default */
    DI_EFFORT_XHIGH,
    DI_EFFORT_MAX,
    DI_EFFORT_ULTRA,
    DI_EFFORT_NUMBER
} di_effort;

typedef struct di_recipe_options {
    bool thinking;
    di_effort effort;  /* written into the prompt when thinking */
    int effort_number; /* 1..100 with DI_EFFORT_NUMBER; v4.1 only */
    di_recipe_history history;
    bool no_header;      /* do not begin an answer (add_generation_prompt: false) */
    bool images;         /* images are accepted; else DI_ERR_UNSUPPORTED names the first one */
    bool pass_unknown;   /* members of messages, parts and tools that are not known are passed over, not refused */
    bool forced_thought; /* forced calls are accepted in thinking mode: the caller enforces prompt.constraint */
} di_recipe_options;

void di_recipe_options_default(di_recipe_options *options); /* thinking, effort high, DI_HISTORY_RECIPE */

/* "recipe", "reference" or "keep". The error's param is "reasoning-history". */
di_status di_recipe_history_parse(const char *name, di_recipe_history *history, di_error *error);

/* "none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra" or 1..100. "none" turns thinking off and leaves
 * the effort alone; the others do not touch thinking. The error's param is "reasoning_effort". */
di_status di_recipe_effort_parse(const char *text, di_recipe_options *options, di_error *error);

/* ---------------------------------------------------------------------------------------------- requests */

typedef enum di_flavour {
    DI_FLAVOUR_CHAT,     /* POST /v1/chat/completions */
    DI_FLAVOUR_MESSAGES, /* POST /v1/messages */
    DI_FLAVOUR_RESPONSES /* POST /v1/responses */
} di_flavour;

/* Reads what shapes the prompt; the other members of `request` (an object) are the caller's and not looked at.
 *   chat       messages, tools, tool_choice, parallel_tool_calls, response_format, thinking, reasoning_effort,
 *              chat_template_kwargs, add_generation_prompt, continue_final_message
 *   messages   system, messages, tools, tool_choice, thinking, output_config
 *   responses  instructions, input, tools, tool_choice, parallel_tool_calls, text.format, reasoning.effort
 * Absent and null are the same. *options holds the defaults and is changed by what is given. */
di_status di_recipe_parse_request(di_arena *arena, di_flavour flavour, const di_json *request,
                                  di_conversation *conversation, di_recipe_options *options, di_error *error);

/* ---------------------------------------------------------------------------------------------- a prompt */

/* What the model writes first. */
typedef enum di_answer_start {
    DI_START_REASONING,           /* after <think> */
    DI_START_ANSWER,              /* after </think> */
    DI_START_REASONING_CONTINUED, /* inside a reasoning that the prompt began */
    DI_START_ANSWER_CONTINUED,    /* inside an answer that the prompt began */
    DI_START_CALLS,               /* inside a block of calls that the prompt opened: a forced call */
} di_answer_start;

/* What the output has to be, for whoever can enforce it (grammar/). */
typedef enum di_constraint_kind {
    DI_CONSTRAINT_NONE,
    DI_CONSTRAINT_JSON,  /* the answer is a JSON object, of `schema` if that is set */
    DI_CONSTRAINT_REGEX, /* the answer matches `regex` */
    DI_CONSTRAINT_CALLS, /* calls, where they come, are of `tools` */
    DI_CONSTRAINT_FORCED_CALLS,
} di_constraint_kind;

typedef struct di_constraint {
    di_constraint_kind kind;
    const di_json *schema;
    const char *regex;
    const di_tool *tools; /* [tool_count] that may be called */
    size_t tool_count;
    bool strict;        /* calls: arguments must follow the tools' schemas */
    bool one_call;      /* exactly one, where calls come */
    bool unbound;       /* an answer of a given form was asked for beside calls: not to be had at once */
    bool after_thought; /* begins after </think>; otherwise with the first token */
    const char *opener; /* calls: what begins a block, "\n\n<｜DSML｜ calls>\n"; forced and not after_thought: it is in
                           the prompt already */
    const char *tag_gap; /* calls: " " or "", between ｜DSML｜ and a tag's name */
    const char *block;   /* calls: "calls" or "tool_calls" */
} di_constraint;

typedef struct di_text_segment {
    const char *text;
    size_t length;
    bool control; /* spells one control token of ours */
} di_text_segment;

typedef struct di_prompt {
    const char *text; /* the whole prompt as text, for logs and tests; [length], zero-terminated */
    size_t length;
    const di_text_segment *segments; /* [count]: pieces of `text`; a control segment is exactly one token */
    const int32_t *control_ids;      /* [count]: the token's id, -1 for plain text */
    const di_segment *request;       /* [count]: the same for di_submit */
    size_t count;
    const size_t *images; /* [image_count]: segments that stand for an image, in order of the conversation */
    size_t image_count;
    di_answer_start start;
    bool tools;                /* calls may come: the output parser looks for them */
    bool json;                 /* JSON was asked for: what stands around it is dropped, unless a grammar sees to it */
    int32_t stop_arm_token_id; /* for di_request_params: stop strings act in the answer only; see di_parser_openings */
    di_constraint constraint;
} di_prompt;

/* Builds the prompt in the arena. */
di_status di_recipe_render(const di_recipe *recipe, const di_conversation *conversation,
                           const di_recipe_options *options, di_arena *arena, di_prompt *prompt, di_error *error);

/* A prompt that is no conversation: BOS and the text; with a suffix (not NULL) the model fills what is between. */
di_status di_recipe_render_completion(const di_recipe *recipe, const char *text, size_t length, const char *suffix,
                                      size_t suffix_length, di_arena *arena, di_prompt *prompt, di_error *error);

/* Fills *args so that the engine enforces prompt.constraint: a format's JSON or expression, from </think> on if the
 * answer comes after reasoning; calls that are forced, and with strict tools wherever they come. *bound tells whether
 * there was anything of that kind. */
di_status di_recipe_bind(const di_recipe *recipe, const di_prompt *prompt, di_arena *arena, di_so_args *args,
                         bool *bound, di_error *error);
/* What binds an answer to this prompt begins behind the reasoning, if there is one, and has to come. */
void di_recipe_bind_start(const di_recipe *recipe, const di_prompt *prompt, di_so_args *args);

/* The prompt's token ids, appended to *ids (which the caller frees, also after a failure). */
di_status di_recipe_encode(const di_tokenizer *tokenizer, const di_prompt *prompt, di_ids *ids, di_error *error);

/* Positions that an image of this size in pixels takes in the prompt; 0 if a side is 0. */
uint32_t di_recipe_image_positions(uint32_t width, uint32_t height);

#endif
