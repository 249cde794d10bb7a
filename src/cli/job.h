/* job.h - one line of generate --json: from its JSON to a request, and from the request's events to its result.
 *
 * Owner: whoever called di_job_new. A job that failed at any point has a fault and gives an error line.
 */
#ifndef DI_CLI_JOB_H
#define DI_CLI_JOB_H

#include "cli/cli.h"

typedef struct di_job_choice {
    di_text text, logprobs, drafts; /* logprobs, drafts: elements of a JSON array */
    di_ids ids;
    di_finish_reason finish;
    bool has_hash;
    uint64_t hash;
    di_parser *parser; /* chat; NULL otherwise and once it has finished */
    di_answer answer;  /* chat; `text` is empty then */
    di_parser_end end;
} di_job_choice;

typedef struct di_job {
    struct di_job *next;
    di_arena *arena;
    uint64_t line;
    const di_json *object, *id; /* id: NULL if the line has none */
    di_sampling sampling;
    di_request *request;    /* NULL: it was never submitted */
    bool chat, bound, done; /* bound: response_format is enforced by a grammar */
    bool records;           /* the result says what became of drafts */
    di_error fault;
    di_job_choice *choices; /* [sampling.n] */
    di_text prompt_logprobs;
    di_event last; /* DONE */
} di_job;

/* NULL when out of memory. */
di_job *di_job_new(uint64_t line);
void di_job_free(di_job *job); /* cancels what still runs */

/* The line's JSON; afterwards job->id is known, if there is one. */
void di_job_parse(di_job *job, const di_cli *cli, const char *text, size_t length);
/* --prompt or --token-ids in place of a line. */
void di_job_parse_flags(di_job *job, const di_cli *cli);
/* Submits it. DI_ERR_QUEUE_FULL is not a fault: try again later. */
di_status di_job_submit(di_job *job, const di_cli *cli, di_engine *engine);
/* Takes an event of its request. */
void di_job_take(di_job *job, const di_event *event);
/* Its line of output, with \n. */
void di_job_write(const di_job *job, const di_engine *engine, di_text *out);

#endif
