/* api_internal.h - what the files of the api share: the api, and one call of an endpoint.
 *
 * A call begins with an exchange (I/O thread), is prepared on a worker thread (body, values, prompt, token ids), is
 * submitted and run on the I/O thread, and ends with its exchange. Only one thread has it at a time. It holds its
 * exchange, in whose arena everything lies that the request says.
 */
#ifndef DI_SERVER_API_INTERNAL_H
#define DI_SERVER_API_INTERNAL_H

#include "engine/engine.h"
#include "server/api_endpoints.h"
#include "server/api_reply.h"
#include "server/fields.h"

typedef struct di_call di_call;

struct di_api {
    di_server *server;
    di_engine *engine;
    const di_config *config;
    di_log *log;
    const di_tokenizer *tokenizer; /* NULL if the model has none */
    di_recipe recipe;
    di_error no_recipe; /* why there is none; status DI_OK if there is */
    char *name_text;
    const char **names; /* [name_count] of the model; the first is the one that is reported */
    size_t name_count;
    int64_t started; /* seconds since 1970 */
    bool strict, like_service;
    bool has_seed;
    uint64_t seed;      /* --seed */
    di_sampling values; /* where requests start from */
    di_recipe_options options;
    size_t calls; /* in progress */
};

/* One prompt of a call in the engine. */
typedef struct di_call_job {
    di_request *request;
    di_usage usage;
    bool done;
} di_call_job;

/* Text of a prompt, which may hold zero bytes. */
typedef struct di_call_echo {
    const char *text;
    size_t length;
} di_call_echo;

/* One choice. */
typedef struct di_call_choice {
    di_call *call;
    uint32_t index;
    di_parser *parser; /* NULL: completions */
    bool reasoning;    /* in which part the next token stands */
} di_call_choice;

struct di_call {
    di_api *api;
    di_exchange *exchange;
    di_endpoint endpoint;
    di_arena *arena; /* the exchange's */
    bool preparing;  /* a worker has it */

    /* What the request says; made by di_call_prepare. */
    const di_json *body; /* what the endpoint has rows for */
    di_error error;
    di_text unknown;            /* fields that were ignored */
    const char *owner, *tenant; /* NULL = nobody, the common one */
    const char *own_id;         /* what the client calls the answer, NULL = a drawn id */
    di_conversation conversation;
    di_recipe_options options;
    di_prompt prompt;   /* of a conversation, or of a completion with suffix */
    di_ids *ids;        /* [prompt_count] */
    di_call_echo *echo; /* [prompt_count] of a completion that repeats its prompts; else NULL */
    uint32_t prompt_count;
    di_sampling sampling;
    int32_t priority;
    bool stream, include_usage, continuous_usage, hide_reasoning, omit_thinking, stop_in_text, token_ids, draft_records;
    bool token_strings;  /* tokenize */
    const char *grammar; /* the field that binds the answer, NULL = none does */

    /* How it runs. */
    char id[160];
    const char *tail;
    di_reply reply;
    di_call_job *jobs;       /* [prompt_count] */
    di_call_choice *choices; /* [reply.choice_count] */
    uint32_t prompts_known, jobs_done;
    di_server_task task;
    bool begun; /* the stream was begun */
    bool ended; /* the exchange was answered */
};

/* Reads the body, and submits what is to be generated. Worker thread: schemas are compiled and long prompts encoded
 * here. False: call->error says why not. */
bool di_call_prepare(di_call *call);
bool di_call_submit(di_call *call);

/* Begins to answer a call that was submitted; it frees itself in the end. I/O thread. */
void di_call_run(di_call *call);
void di_call_fail(di_call *call, const di_error *error); /* answers with an error */
void di_call_free(di_call *call);

/* Names of ignored fields, as they may stand in a header. */
void di_call_clean_names(di_text *names);
/* Header fields of every answer of a call: at most 4. */
size_t di_call_headers(const di_call *call, bool stream, di_header headers[4]);

#endif
