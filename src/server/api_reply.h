/* api_reply.h - an answer as it grows, in the words of one interface.
 *
 * A reply knows neither HTTP nor the engine: it is told what happened (the prompt is known, a token came, a part of a
 * choice became certain, a choice ended) and appends JSON to `out`: events as they come when it streams, else the
 * whole object at the end. Both are made from the same joined parts, so a stream adds up to the whole answer byte for
 * byte. Events are written whole. One thread; whoever calls di_reply_init frees with di_reply_free.
 */
#ifndef DI_SERVER_API_REPLY_H
#define DI_SERVER_API_REPLY_H

#include "recipe/parser.h"
#include "server/http.h"

typedef enum di_reply_kind { DI_REPLY_CHAT, DI_REPLY_COMPLETION, DI_REPLY_MESSAGES, DI_REPLY_RESPONSES } di_reply_kind;

typedef struct di_reply_options {
    di_reply_kind kind;
    const char *id;         /* "chatcmpl-..."; borrowed, as all here */
    const char *request_id; /* the exchange's; in Anthropic's errors */
    const char *tail;       /* the part of the id behind its prefix: items of a response are named after it */
    const char *model, *fingerprint;
    int64_t created; /* seconds since 1970 */
    uint64_t seed;
    uint32_t prompts, samples; /* choices = prompts * samples; choice = prompt * samples + sample */
    bool stream, include_usage, continuous_usage;
    bool thinking;       /* the answer begins with reasoning, or may have some */
    bool hide_reasoning; /* leave it out of the answer; it is counted all the same */
    bool omit_thinking;  /* Messages: its block stands there without its text */
    bool one_call;       /* give out the first call only */
    bool stop_in_text;   /* a stop string that ended a choice belongs to its text */
    int32_t logprobs;    /* -1 = off, N best */
    bool token_ids, logits_hash, draft_records;
    const di_tokenizer *tokenizer; /* for logprobs */
    int32_t bos;                   /* no text where a prompt begins with it; -1 none */
    const int32_t *eos;            /* [eos_count] never text of an answer */
    size_t eos_count;
    const di_ids *prompt_ids;                                       /* [prompts], with token_ids */
    const di_json *request;                                         /* Responses: fields that the answer repeats */
    double temperature, top_p, presence_penalty, frequency_penalty; /* the same: values that were used */
} di_reply_options;

/* JSON values joined by commas, of which the first `sent` bytes went out with earlier events. */
typedef struct di_reply_list {
    di_text text;
    size_t sent;
} di_reply_list;

typedef enum di_reply_list_id {
    DI_LIST_CONTENT,   /* chat logprobs of the answer */
    DI_LIST_REASONING, /* and of the reasoning */
    DI_LIST_IDS,
    DI_LIST_DRAFTS,
    DI_LIST_TOKENS, /* completions: the four lists of their logprobs */
    DI_LIST_LOGPROBS,
    DI_LIST_TOP,
    DI_LIST_OFFSETS,
    DI_LIST_COUNT
} di_reply_list_id;

typedef enum di_reply_item { DI_ITEM_NONE, DI_ITEM_REASONING, DI_ITEM_TEXT, DI_ITEM_CALL } di_reply_item;

typedef struct di_reply_choice {
    uint32_t index;
    di_answer answer; /* completions: the text is answer.content */
    di_reply_list lists[DI_LIST_COUNT];
    di_detokenizer detokenizer; /* completions with logprobs: says which tokens complete characters of the text */
    size_t text_offset;         /* characters of the text so far */
    uint64_t tokens;            /* so far */
    bool finished;
    di_answer_finish finish;
    char *stop_string; /* the string that ended it, NULL = none */
    int32_t stop_token_id;
    bool has_hash;
    uint64_t hash;
    uint64_t reasoning_tokens;
    di_reply_item open; /* Messages and Responses: block or item that is being written */
    uint32_t opened;    /* how many were begun */
    uint32_t open_call; /* DI_ITEM_CALL: which one */
} di_reply_choice;

typedef struct di_reply di_reply;

/* What differs between the interfaces. All but `whole` are called when streaming only. */
typedef struct di_reply_form {
    void (*begin)(di_reply *reply);
    void (*prompt)(di_reply *reply); /* may be NULL */
    void (*part)(di_reply *reply, di_reply_choice *choice, const di_part *part);
    void (*finish)(di_reply *reply, di_reply_choice *choice); /* the reply's usage is up to date */
    void (*end)(di_reply *reply);
    void (*error)(di_reply *reply, const di_error *error, int http_status);
    void (*whole)(di_reply *reply);
} di_reply_form;

struct di_reply {
    di_reply_options options;
    const di_reply_form *form;
    di_reply_choice *choices; /* [choice_count] */
    uint32_t choice_count, finished;
    di_usage usage;            /* of all prompts together */
    uint64_t reasoning_tokens; /* of the choices that ended */
    uint64_t sequence;         /* Responses: number of the next event */
    int64_t completed;         /* seconds since 1970, when the last choice ended; whoever ends it sets it */
    di_text out;
    di_text scratch;
    bool failed; /* out of memory */
};

di_status di_reply_init(di_reply *reply, const di_reply_options *options, di_error *error);
void di_reply_free(di_reply *reply);

void di_reply_begin(di_reply *reply);  /* once, first */
void di_reply_prompt(di_reply *reply); /* once, when usage.prompt_tokens and cached_tokens are set */
/* A token of a choice, before the parts that came with it: for logprobs and ids. event: TOKEN or PROMPT_TOKEN. */
void di_reply_token(di_reply *reply, uint32_t choice, const di_event *event, bool reasoning);
void di_reply_part(di_reply *reply, uint32_t choice, const di_part *part);
void di_reply_finish(di_reply *reply, uint32_t choice, di_answer_finish finish, const di_event *event,
                     uint64_t reasoning_tokens);
void di_reply_end(di_reply *reply); /* after every choice has ended: what closes a stream, or the whole answer */
/* Instead of all that is still to come, of a stream. */
void di_reply_error(di_reply *reply, const di_error *error, int http_status);
bool di_reply_failed(const di_reply *reply); /* out of memory at any time */

/* ------------------------------------------------------------------------------------------------- for forms */

extern const di_reply_form di_reply_chat, di_reply_completion, di_reply_messages, di_reply_responses;

/* A list as a JSON array: what was not sent yet, or all of it. */
void di_reply_write_list(di_json_writer *writer, di_reply_list *list, bool unsent);
bool di_reply_has_unsent(const di_reply_list *list);
/* {"prompt_tokens", ...}: the usage of chat and completions. */
void di_reply_write_usage(const di_reply *reply, di_json_writer *writer);
/* Begins {"type": TYPE, ... in the reply's scratch, where di_reply_send takes it from. */
void di_reply_event_begin(di_reply *reply, di_json_writer *writer, const char *type);
void di_reply_send(di_reply *reply, const char *event, const di_text *json); /* one event; event NULL = data only */

/* What clients get with reasoning and send back with it: a digest of the reasoning and of the fingerprint, so that the
 * same answer has the same one. Nothing is in it. */
enum { DI_REPLY_SIGNATURE = 33 };
const char *di_reply_signature(const di_reply *reply, const di_reply_choice *choice, char text[DI_REPLY_SIGNATURE]);

static inline void di_put_string(di_json_writer *writer, const char *key, const char *text) {
    di_json_key(writer, key);
    if (text)
        di_json_string(writer, text);
    else
        di_json_null(writer);
}
static inline void di_put_text_member(di_json_writer *writer, const char *key, const di_text *text) {
    di_json_key(writer, key);
    di_json_string_n(writer, text->data ? text->data : "", text->length);
}
static inline void di_put_unsigned(di_json_writer *writer, const char *key, uint64_t value) {
    di_json_key(writer, key);
    di_json_unsigned(writer, value);
}
static inline void di_put_null(di_json_writer *writer, const char *key) {
    di_json_key(writer, key);
    di_json_null(writer);
}
static inline void di_put_bool(di_json_writer *writer, const char *key, bool value) {
    di_json_key(writer, key);
    di_json_bool(writer, value);
}

/* {"message", "type", "param", "code"} of the chat interface, and the words of one status. */
const char *di_api_error_code(di_status status);
void di_error_anthropic(di_text *body, const di_error_parts *parts);
const char *di_anthropic_error_type(int http_status);

#endif
