/* bench_load.h - customers of a server: conversations at a steady and at a random pace, each request timed, and some of
 * them sent again alone. A customer is a thread; what they share is under `lock`. Times are milliseconds unless the
 * name says otherwise.
 */
#ifndef DI_CLI_BENCH_LOAD_H
#define DI_CLI_BENCH_LOAD_H

#include <pthread.h>

#include "cli/cli.h"
#include "cli/http_client.h"

enum { DI_BENCH_TIMEOUT_S = 300 };

typedef struct di_bench_settings {
    const char *url;                        /* "" = a server of its own */
    const char *thinking;                   /* "on", "off"; NULL = not sent */
    int clients, turns, max_tokens, verify; /* verify: requests at most; -1 = all */
    double rate, seconds, temperature, drop, first_ms, gap_ms;
    uint64_t seed;
    bool plain, closed, open, quiet;
} di_bench_settings;

typedef enum di_bench_fate { DI_BENCH_GOOD, DI_BENCH_REFUSED, DI_BENCH_FAILED, DI_BENCH_DROPPED } di_bench_fate;

/* One request and what came of it. Texts are the record's. */
typedef struct di_bench_record {
    di_text body, answer; /* answer: everything that must be the same again */
    char *said;           /* the content alone, for the next turn; in `answer` order */
    di_bench_fate outcome;
    bool typed; /* REFUSED: with Retry-After and a body that names the error */
    int status;
    char error[200], fingerprint[80]; /* system_fingerprint of the answer, "" = none */
    double first_ms, total_ms;
    double *gaps; /* milliseconds [gap_count] */
    size_t gap_count, gap_room;
    int64_t prompt, cached, completion;
} di_bench_record;

typedef struct di_bench_load {
    const di_bench_settings *s;
    const di_client_target *target;
    char model[128];
    pthread_mutex_t lock;
    pthread_cond_t left;
    size_t customers;          /* in progress; lock */
    di_bench_record **records; /* [count] */
    size_t count, room;
    int64_t start_ns, end_ns; /* closed: customers stop beginning conversations at the end */
    uint64_t conversations;
} di_bench_load;

typedef struct di_bench_verdict {
    size_t compared, differing, failed;
} di_bench_verdict;

void di_bench_load_open(di_bench_load *load);
void di_bench_load_close(di_bench_load *load);
/* Runs it to its end; false when not every customer could be started. open: conversations begin at random moments,
 * `rate` a second; else s->clients follow one another's. */
bool di_bench_run_load(di_bench_load *load, bool open, double rate);
/* Sends good requests again, one at a time: s->verify of them, evenly spread. */
di_bench_verdict di_bench_verify(const di_bench_load *load);

/* bench_report.c: a JSON line on stdout and a row of the table on stderr. False when something was wrong. */
bool di_bench_report_load(const di_bench_load *load, const char *name, double rate, const di_bench_verdict *verdict);
void di_bench_report_environment(const di_cli *cli, const di_bench_load *load);
void di_bench_report_heads(void);
/* For qsort. */
int di_bench_compare_doubles(const void *a, const void *b);

#endif
