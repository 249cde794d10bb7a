/* deepinfer.h - the only public header of libdeepinfer.
 *
 * Contract
 *   An engine is a loaded model. A request is one prompt and its samples. Requests go in with di_submit; what they
 *   produce is pulled as events with di_request_next, in order, from any one thread a request.
 *   A token's logits depend on the tokens before it, the weights and the numeric profile, and on nothing else
 *   (docs/numerics.md). The seed that was used is always reported, so every answer can be made again.
 *
 * Ownership
 *   The engine outlives its requests. A request handle is valid until di_request_free, which may be called at any time
 *   (it cancels first). Text in an event is borrowed until the next call on the same request.
 *
 * Threads
 *   Every function may be called from any thread; two threads must not use the same request at once, except
 *   di_request_cancel, which may come from anywhere (also from a signal handler).
 *
 * Errors
 *   Functions return di_status and fill the caller's di_error (which may be NULL). Nothing exits or aborts.
 *
 * Strings
 *   UTF-8. Lengths are in bytes; a length of DI_ZSTRING means "up to the terminating zero".
 */
#ifndef DEEPINFER_H
#define DEEPINFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DI_API           __attribute__((visibility("default")))
#define DI_VERSION_MAJOR 0
#define DI_VERSION_MINOR 1
#define DI_VERSION_PATCH 0
#define DI_ZSTRING       SIZE_MAX

/* ---------------------------------------------------------------------------------------------------- errors */

/* Kinds of failure. Name, text and HTTP status of each: src/base/status.c. */
typedef enum di_status {
    DI_OK = 0,
    DI_ERR_INVALID_ARGUMENT, /* a parameter has a wrong type, range or name; `param` names it */
    DI_ERR_USAGE,            /* the command line cannot be understood */
    DI_ERR_CONFIG,           /* a configuration option is unknown or out of range */
    DI_ERR_NOT_FOUND,        /* a file, model or name does not exist */
    DI_ERR_IO,               /* reading or writing failed; the message holds the system's reason */
    DI_ERR_FORMAT,           /* bytes do not follow their format (JSON, UTF-8, safetensors, tokenizer.json, ...) */
    DI_ERR_CHECKPOINT,       /* the checkpoint does not hold what its config implies */
    DI_ERR_UNSUPPORTED,      /* understood, but not available in this build or with this model */
    DI_ERR_CONTEXT_LENGTH,   /* the prompt leaves no room in the context; the message holds both numbers */
    DI_ERR_LIMIT,            /* a named limit of the configuration table was reached */
    DI_ERR_QUEUE_FULL,       /* no room for another request now */
    DI_ERR_CANCELLED,        /* cancelled by the caller */
    DI_ERR_DEADLINE,         /* the request's deadline passed */
    DI_ERR_MEMORY,           /* out of memory */
    DI_ERR_NUMERIC,          /* NaN or infinity where a number is required */
    DI_ERR_INTERNAL,         /* a fault of deepinfer itself */
    DI_STATUS_COUNT
} di_status;

/* What went wrong, where, and what would be right. */
typedef struct di_error {
    di_status status;
    char param[96];    /* the parameter, field, tensor or option at fault; "" if there is none */
    char message[928]; /* one or more lines of plain English */
} di_error;

DI_API const char *di_status_name(di_status status); /* "invalid_argument" */
DI_API const char *di_status_text(di_status status); /* "a parameter is not valid" */
DI_API int di_status_http(di_status status);         /* 400 */

/* Version of the library as a string, for instance "0.1.0". */
DI_API const char *di_version(void);

/* ---------------------------------------------------------------------------------------------------- engine */

typedef struct di_engine di_engine;
typedef struct di_request di_request;

/* Options of an engine: name and value as text, names and ranges as in docs/configuration.md ("threads", "context",
 * "cpu-isa", ...). Options not given come from the environment (DEEPINFER_*) and the defaults. */
typedef struct di_option {
    const char *name;
    const char *value;
} di_option;

/* Names of the options that di_open accepts, by index from 0; NULL behind the last. Static. Some ("seed", "thinking",
 * "effort", "log-level", ...) are defaults of the commands and have no effect in di_open. */
DI_API const char *di_option_name(size_t index);

/* The value that an option has with di_open: from `options`, the environment, the file that the option "config" names,
 * or its default. *value is malloc'ed text as in docs/configuration.md, "" where nothing is chosen. */
DI_API di_status di_option_value(const di_option *options, size_t option_count, const char *name, char **value,
                                 di_error *error);

/* Opens the model in `model` (a folder in the official checkpoint layout; NULL: the embedded model). */
DI_API di_status di_open(const char *model, const di_option *options, size_t option_count, di_engine **engine,
                         di_error *error);

/* Cancels all requests, waits for the engine's thread and frees everything. Request handles still held stay valid
 * for di_request_free and return DI_ERR_CANCELLED otherwise. NULL is allowed. */
DI_API void di_close(di_engine *engine);

typedef struct di_model_info {
    const char *path;
    const char *architecture; /* "deepseek_v41" */
    const char *isa;          /* "scalar", "avx2", "avx512" */
    const char *fingerprint;  /* model, tokenizer, numeric profile, build: 'system_fingerprint' */
    const char *profile;      /* numeric profile, for instance "exact" */
    uint32_t vocabulary;      /* logits per row */
    uint32_t context;         /* positions a sequence may have */
    uint32_t bos_token_id;    /* UINT32_MAX if there is none */
    bool has_tokenizer;
    bool thinking_default; /* the model's own default for --thinking model */
} di_model_info;

/* Borrowed, valid as long as the engine. */
DI_API const di_model_info *di_engine_info(const di_engine *engine);

/* Text to ids. Plain text never yields a control token unless `control` is true. *token_ids is malloc'ed. */
DI_API di_status di_tokenize(di_engine *engine, const char *text, size_t length, bool control, int32_t **token_ids,
                             size_t *count, di_error *error);
/* Ids to bytes (added tokens verbatim). *text is malloc'ed and zero-terminated. */
DI_API di_status di_detokenize(di_engine *engine, const int32_t *token_ids, size_t count, char **text, size_t *length,
                               di_error *error);

/* A conversation as a prompt. */
typedef struct di_chat_prompt {
    int32_t *token_ids; /* [token_count]; malloc'ed */
    size_t token_count;
    bool in_reasoning;              /* what the model writes first is reasoning */
    bool continued;                 /* it goes on with text that the prompt began */
    int32_t reasoning_end_token_id; /* </think>; with in_reasoning, stop strings are armed by it (stop_arm_token_id) */
} di_chat_prompt;

/* A JSON object {"messages": [...], "thinking"?, "reasoning_effort"?, "tools"?, ...} as in `generate --json` and in the
 * chat interface (docs/recipe.md). Client text never yields a control token. Without "thinking" the model's own default
 * holds. A response_format, strict tools and a tool_choice that forces a call shape the prompt only; nothing enforces
 * them until the request's so_args do. A forced call is refused in thinking mode. Errors name the field:
 * "messages[2].content". */
DI_API di_status di_render_chat(di_engine *engine, const char *json, size_t length, di_chat_prompt *prompt,
                                di_error *error);

/* Frees what the library handed out as malloc'ed. */
DI_API void di_free(void *memory);

/* ------------------------------------------------------------------------------------------------- sampling */

typedef struct di_logit_bias {
    int32_t token_id;
    float bias; /* -100 .. 100 */
} di_logit_bias;

/* Structured output: what is produced follows the grammar exactly, and EOS comes only where its text may end. A source
 * that cannot be enforced exactly is refused (docs/grammar.md). A sample cut by max_tokens or a stop string may be
 * incomplete, and its finish reason says so. */
typedef struct di_so_args {
    const char *schema_type; /* "json" (JSON Schema), "json_object" (no schema), "regex", "ebnf" or "gbnf", "lark",
                                "w3c", "iso"; NULL = off */
    const char *schema;
    const int32_t *trigger_token_ids; /* the grammar binds what follows these ids in the output; none = everything */
    size_t trigger_token_count;
    int32_t bound_token_id; /* after this id the ids of the trigger are forced; -1 = none */
    bool trigger_required;  /* false; the output may not end before the trigger */
} di_so_args;

/* Always start from di_sampling_default. Arrays and strings are copied by di_submit. */
typedef struct di_sampling {
    float temperature;  /* 1; 0 = greedy; >= 0 */
    float top_p;        /* 1; (0, 1] */
    int32_t top_k;      /* 0 = off; -1 means the same */
    float min_p;        /* 0; [0, 1] */
    int64_t max_tokens; /* -1 = the room left in the context */
    int64_t min_tokens; /* 0 */
    const char *const *stop;
    size_t stop_count;
    const int32_t *stop_token_ids;
    size_t stop_token_count;
    bool ignore_eos;
    int32_t n; /* 1; samples per prompt */
    bool has_seed;
    uint64_t seq_seed;        /* used if has_seed; drawn once per request otherwise and reported */
    int32_t logprobs;         /* -1 = off, 0..1000: log-probability of the token and of the best N */
    int32_t prompt_logprobs;  /* -1 = off, 0..1000 */
    float repetition_penalty; /* 1; > 0 */
    float presence_penalty;   /* 0; [-2, 2] */
    float frequency_penalty;  /* 0; [-2, 2] */
    const di_logit_bias *logit_bias;
    size_t logit_bias_count;
    const int32_t *golden_token_ids; /* forced ids by output index, -1 = sample */
    size_t golden_token_count;
    int64_t first_n_token_no_eos; /* 0 */
    di_so_args so_args;
    bool logits_hash; /* false; roll a 64-bit hash over the logits (docs/numerics.md) */
} di_sampling;

DI_API void di_sampling_default(di_sampling *sampling);

/* ------------------------------------------------------------------------------------------------- requests */

/* A prompt is a list of segments, each of ids or of text: ids are used as they are, text is plain text that cannot
 * become a control token. */
typedef struct di_segment {
    const int32_t *token_ids; /* NULL for text */
    size_t token_count;
    const char *text;
    size_t text_length; /* or DI_ZSTRING */
} di_segment;

typedef struct di_request_params {
    const char *id; /* shown in logs and records; NULL = none */
    const di_segment *segments;
    size_t segment_count;
    di_sampling sampling;
    int32_t priority;   /* 0; higher goes first */
    const char *tenant; /* cache namespace, and share of what its owner gets; NULL = the common one */
    /* Whose tenant that is, an API key for instance: owners share the machine, and equal tenants of different owners
     * have nothing in common. NULL = nobody's; nobody counts as one owner. */
    const char *owner;
    int64_t deadline_ms; /* from now; 0 = none */
    /* Stop strings are matched in text only while armed: behind this id, for instance that of </think>. -1 = from the
     * start. */
    int32_t stop_arm_token_id;
    /* And not from where one of these texts begins, nor in the line breaks before it, until the end: for instance the
     * openings of tool calls. With "\n" before it the text must stand at the start of a line; further on "\n"
     * stands for any number, also none, of line breaks and blanks. Copied by di_submit. */
    const char *const *stop_disarm;
    size_t stop_disarm_count;
    bool draft_records; /* false; TOKEN events say what became of drafts */
    /* For readers of many requests: called from the engine's thread when there is something for di_request_next and
     * there was nothing before. It must only wake the reader, quickly, and call nothing of this library. The request's
     * queue is locked meanwhile: a lock that it takes must not be held by whoever calls di_request_next or
     * di_request_free. Never called after di_request_free. NULL = none. */
    void (*on_ready)(void *arg);
    void *on_ready_arg;
} di_request_params;

DI_API void di_request_params_default(di_request_params *params);

typedef enum di_finish_reason {
    DI_FINISH_NONE = 0,
    DI_FINISH_STOP,   /* EOS, stop id or stop string */
    DI_FINISH_LENGTH, /* max_tokens or the end of the context */
    DI_FINISH_CANCELLED,
    DI_FINISH_ERROR,
} di_finish_reason;

typedef struct di_logprob {
    int32_t token_id;
    float logprob;
} di_logprob;

typedef enum di_event_kind {
    DI_EVENT_PROMPT = 1,   /* the prompt is known: usage.prompt_tokens and seed; prompt_logprobs come one event each */
    DI_EVENT_PROMPT_TOKEN, /* one prompt token with its log-probabilities, only if prompt_logprobs was asked for */
    DI_EVENT_TOKEN,        /* one token of one sample */
    DI_EVENT_FINISH,       /* one sample ended */
    DI_EVENT_DONE,         /* nothing follows; `status` tells whether the request as a whole failed */
} di_event_kind;

typedef struct di_usage {
    uint64_t prompt_tokens, cached_tokens, completion_tokens, draft_tokens, accepted_draft_tokens;
} di_usage;

typedef struct di_timings {
    double queue_ms, prefill_ms, first_token_ms, total_ms;
} di_timings;

/* What became of the drafts of one step: the tokens at `position` and behind were guessed, and the first `accepted` of
 * them were what the sampler chose. None of it changes a token; without drafts the tokens are the same. */
typedef struct di_draft_record {
    int64_t position;         /* of the first draft, absolute */
    const int32_t *token_ids; /* [count] as drafted; NULL if count is 0 */
    const float *confidence;  /* [count] chance of each to be right if those before it are, as the draft head sees it;
                                 NULL when drafts come from prompt look-up */
    size_t count;             /* drafts that went through the model; 0 = there were none */
    size_t accepted;
} di_draft_record;

typedef struct di_event {
    di_event_kind kind;
    int32_t sample;   /* index of the sample, 0 .. n-1 */
    int64_t position; /* absolute position of the token */
    int32_t token_id; /* -1 if none */
    const char *text; /* text that became certain, on TOKEN and on FINISH (what was held back until then);
                         complete UTF-8 characters only; never NULL */
    size_t text_length;
    float logprob;         /* of token_id, if asked for; NaN otherwise and for the first prompt token */
    const di_logprob *top; /* best first, if asked for */
    size_t top_count;
    di_finish_reason finish_reason;
    int32_t stop_token_id;   /* the id that ended the sample, -1 if none */
    const char *stop_string; /* the string that ended the sample, NULL if none */
    bool has_logits_hash;
    uint64_t logits_hash;   /* on FINISH */
    uint64_t seed;          /* the seed that was used */
    di_draft_record drafts; /* on the first TOKEN of a step that had drafts, if draft_records was set */
    di_usage usage;         /* so far */
    di_timings timings;     /* so far */
    di_status status; /* on FINISH with DI_FINISH_ERROR, and on DONE: there that of the lowest sample that failed */
    di_error error;
} di_event;

/* Checks the parameters and queues the request. On failure *request is NULL and `error.param` names the parameter. */
DI_API di_status di_submit(di_engine *engine, const di_request_params *params, di_request **request, di_error *error);

/* Next event. timeout_ms < 0 waits for ever, 0 does not wait. Returns false when none came in time or after DONE. A
 * request with very many unread events is not run further until they are read. */
DI_API bool di_request_next(di_request *request, int64_t timeout_ms, di_event *event);

/* Ends the request at the next step boundary; its remaining events are FINISH (cancelled) and DONE. */
DI_API void di_request_cancel(di_request *request);

/* Cancels if need be and frees the handle. NULL is allowed. */
DI_API void di_request_free(di_request *request);

/* ------------------------------------------------------------------------------------------- states in files */

/* Writes the state of the longest beginning of the ids that the prefix cache holds in memory to a file (by way of
 * PATH.tmp, durably), and its length to *positions. `tenant` as in di_request_params. DI_ERR_NOT_FOUND when nothing of
 * them is cached. Other requests go on meanwhile. */
DI_API di_status di_save_state(di_engine *engine, const int32_t *token_ids, size_t count, const char *tenant,
                               const char *path, size_t *positions, di_error *error);

/* Reads such a file into the prefix cache: a prompt that begins with its ids does not compute them again. Refuses, and
 * names the file, what is damaged or was made with another model or another numeric profile. */
DI_API di_status di_load_state(di_engine *engine, const char *path, const char *tenant, size_t *positions,
                               di_error *error);

/* ---------------------------------------------------------------------------------------------------- scoring */

/* Teacher-forced evaluation of `count` ids. For row i (0-based) `on_row` gets the row's logits (borrowed,
 * [vocabulary] fp32) and returns false to stop early (DI_ERR_CANCELLED). Always runs the full model ("prefill off").
 * *logits_hash (may be NULL) is the rolling hash over all rows. */
typedef bool (*di_score_row)(void *arg, size_t row, const float *logits);
DI_API di_status di_score(di_engine *engine, const int32_t *token_ids, size_t count, di_score_row on_row, void *arg,
                          uint64_t *logits_hash, di_error *error);

/* Log-softmax of a row of raw logits at `count` ids into logprobs [count], and the best id into *argmax (may be NULL):
 * the arithmetic of logprobs and of `deepinfer score`. False, and nothing written, when the row holds NaN or infinity
 * or an id is out of range. */
DI_API bool di_logprobs(const float *logits, uint32_t vocabulary, const int32_t *token_ids, size_t count,
                        float *logprobs, int32_t *argmax);

#ifdef __cplusplus
}
#endif
#endif
