/* serve.c - a server under load as its clients see it: many customers at once, each with a conversation of several
 * turns.
 *
 * bench_serve [--url http://HOST:PORT] [--api-key-file FILE] [--model NAME] [--clients N] [--rate R] [--seconds S]
 *             [--turns N] [--max-tokens N] [--temperature T] [--thinking on|off] [--seed N] [--drop SHARE]
 *             [--verify all|off|N] [--first-ms MS] [--gap-ms MS] [--plain] [--part closed|open]...
 *
 * Without --url it starts `deepinfer serve` beside itself with the embedded model, on a port of its own, and stops it
 * afterwards. Any server with OpenAI's /v1/chat/completions will do; --plain sends nothing but OpenAI's own fields.
 *
 *   closed   N customers at once; each says the next thing when the answer is there. With --seconds conversations
 *            follow each other for that long, else each customer has one.
 *   open     conversations begin at random moments (Poisson), R a second for S seconds, whatever the server does. The
 *            first turn's times count from the moment it was due. --rate 0: 70 % of what closed has shown.
 *
 * A turn is good when its first token came within --first-ms and no gap was longer than --gap-ms. Afterwards --verify
 * sends requests again, one at a time, and compares the bytes (and ids and hashes, if there are any). --drop: this
 * share of the answers is left in the middle by closing the connection. Exit 1: bytes differ, or a request failed.
 */
#include "http_client.h"
#include "report.h"
#include "serve_script.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { TIMEOUT_S = 300, MAX_CLIENTS = 4096, STACK_BYTES = 256 << 10 };

typedef struct settings {
    const char *url, *model, *thinking, *key_file;
    int clients, turns, max_tokens, verify; /* verify: requests at most; -1 = all */
    double rate, seconds, temperature, drop, first_ms, gap_ms;
    uint64_t seed;
    bool plain, closed, open;
} settings;

typedef enum fate { GOOD, REFUSED, FAILED, DROPPED } fate;

/* One request and what came of it. Texts are the record's. */
typedef struct record {
    di_text body, answer; /* answer: everything that must be the same again */
    char *said;           /* the content alone, for the next turn; in `answer` order */
    fate outcome;
    bool typed; /* REFUSED: with Retry-After and a body that names the error */
    int status;
    char error[200];
    double first_ms, total_ms;
    double *gaps; /* milliseconds [gap_count] */
    size_t gap_count, gap_room;
    int64_t prompt, cached, completion;
} record;

typedef struct load {
    const settings *s;
    const http_target *target;
    char model[128];
    pthread_mutex_t lock;
    pthread_cond_t left;
    size_t customers; /* in progress; lock */
    record **records; /* [count] */
    size_t count, room;
    int64_t start_ns, end_ns; /* closed: customers stop beginning conversations at the end */
    uint64_t conversations;
} load;

/* Its own thread's, which frees it. */
typedef struct customer {
    load *load;
    int64_t due_ns; /* open loop: when the first turn was due; 0 = now */
    uint64_t number;
} customer;

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static double uniform(uint64_t x) {
    return (double)(mix(x) >> 11) * 0x1p-53;
}

/* ---------------------------------------------------------------- one request */

static void record_free(record *r) {
    if (!r) return;
    di_text_free(&r->body);
    di_text_free(&r->answer);
    free(r->said);
    free(r->gaps);
    free(r);
}

static void add_gap(record *r, double ms) {
    if (r->gap_count == r->gap_room) {
        size_t room = r->gap_room ? 2 * r->gap_room : 64;
        double *gaps = realloc(r->gaps, room * sizeof *gaps);
        if (!gaps) return;
        r->gaps = gaps;
        r->gap_room = room;
    }
    r->gaps[r->gap_count++] = ms;
}

static void set_error(record *r, fate outcome, const char *text, size_t length) {
    r->outcome = outcome;
    snprintf(r->error, sizeof r->error, "%.*s", (int)(length < 190 ? length : 190), text);
}

/* The parts of an answer while it arrives. */
typedef struct reading {
    di_arena *arena;
    di_text line, content, reasoning, exact;
    int64_t sent_ns, last_ns;
    uint64_t pieces;
    bool complete;
} reading;

static void read_usage(record *r, const di_json *usage) {
    if (!usage || usage->type != DI_JSON_OBJECT) return;
    const di_json *details = di_json_get(usage, "prompt_tokens_details");
    di_json_int64(di_json_get(usage, "prompt_tokens"), &r->prompt);
    di_json_int64(di_json_get(usage, "completion_tokens"), &r->completion);
    if (details) di_json_int64(di_json_get(details, "cached_tokens"), &r->cached);
}

static void read_text(di_text *out, const di_json *node, bool *any) {
    if (!node || node->type != DI_JSON_STRING || !node->length) return;
    di_text_append(out, node->text, node->length);
    *any = true;
}

static void read_event(record *r, reading *in, const char *data, size_t length) {
    const di_json *root, *choice, *delta, *node;
    di_error error = {0};
    if (length == 6 && !memcmp(data, "[DONE]", 6)) {
        in->complete = true;
        return;
    }
    di_arena_reset(in->arena);
    if (di_json_parse(in->arena, data, length, 0, &root, &error) != DI_OK) {
        set_error(r, FAILED, error.message, strlen(error.message));
        return;
    }
    if (di_json_get(root, "error")) set_error(r, FAILED, data, length);
    read_usage(r, di_json_get(root, "usage"));
    node = di_json_get(root, "choices");
    choice = node ? node->first : NULL;
    if (!choice) return;
    bool any = false;
    delta = di_json_get(choice, "delta");
    node = delta ? di_json_get(delta, "reasoning_content") : NULL;
    if (delta && !node) node = di_json_get(delta, "reasoning");
    read_text(&in->reasoning, node, &any);
    if (delta) read_text(&in->content, di_json_get(delta, "content"), &any);
    node = di_json_get(choice, "token_ids");
    for (node = node ? node->first : NULL; node; node = node->next)
        di_text_printf(&in->exact, " %.*s", (int)node->length, node->text);
    bool unused;
    read_text(&in->exact, di_json_get(choice, "finish_reason"), &unused);
    read_text(&in->exact, di_json_get(choice, "logits_hash"), &unused);
    if (!any) return;
    int64_t now = di_now_ns();
    if (in->pieces++)
        add_gap(r, di_ms(now - in->last_ns));
    else
        r->first_ms = di_ms(now - in->sent_ns);
    in->last_ns = now;
}

static void read_line(record *r, reading *in) {
    const char *line = in->line.data;
    size_t length = in->line.length;
    if (length && line[length - 1] == '\r') length--;
    if (length > 5 && !memcmp(line, "data:", 5)) {
        size_t from = line[5] == ' ' ? 6 : 5;
        read_event(r, in, line + from, length - from);
    }
    di_text_clear(&in->line);
}

/* Until the end of the stream, or until `pieces` of them have come. */
static void read_stream(record *r, reading *in, http_connection *c, uint64_t pieces) {
    const char *bytes;
    ssize_t n = 0;
    while (r->outcome == GOOD && in->pieces < pieces && (n = http_read(c, &bytes)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\n')
                read_line(r, in);
            else
                di_text_putc(&in->line, bytes[i]);
        }
    }
    if (r->outcome != GOOD) return;
    if (in->pieces >= pieces)
        r->outcome = DROPPED;
    else if (n < 0)
        set_error(r, FAILED, c->error, strlen(c->error));
    else if (!in->complete)
        set_error(r, FAILED, "the stream ended before [DONE]", 30);
}

/* {"error": {"message": "...", ...}} */
static bool names_an_error(const di_text *text) {
    di_arena *arena = di_arena_new(0);
    const di_json *root = NULL, *object = NULL, *message = NULL;
    di_error error = {0};
    if (arena && text->length && di_json_parse(arena, text->data, text->length, 0, &root, &error) == DI_OK)
        object = di_json_get(root, "error");
    if (object && object->type == DI_JSON_OBJECT) message = di_json_get(object, "message");
    bool named = message && message->type == DI_JSON_STRING && message->length;
    di_arena_free(arena);
    return named;
}

static void read_refusal(record *r, http_connection *c) {
    di_text text = {0};
    r->typed = http_read_all(c, &text) && c->retry_after && names_an_error(&text);
    set_error(r, r->status == 429 || r->status == 503 ? REFUSED : FAILED, text.length ? text.data : "no text",
              text.length ? text.length : 7);
    di_text_free(&text);
}

/* Sends r->body and fills in the rest. pieces: leave after so many; UINT64_MAX = never. */
static void ask(const http_target *target, http_connection *c, record *r, int64_t due_ns, uint64_t pieces) {
    reading in = {.arena = di_arena_new(0), .sent_ns = due_ns ? due_ns : di_now_ns()};
    if (!in.arena || r->body.failed) {
        set_error(r, FAILED, "out of memory", 13);
    } else if (!http_request(c, target, "/v1/chat/completions", r->body.data, r->body.length, TIMEOUT_S)) {
        set_error(r, FAILED, c->error, strlen(c->error));
    } else if ((r->status = c->status) != 200) {
        read_refusal(r, c);
    } else {
        read_stream(r, &in, c, pieces);
    }
    r->total_ms = di_ms(di_now_ns() - in.sent_ns);
    if (r->outcome != GOOD) http_close(c);
    const di_text *parts[] = {&in.reasoning, &in.content, &in.exact};
    for (int i = 0; i < 3; i++) {
        if (parts[i]->length) di_text_append(&r->answer, parts[i]->data, parts[i]->length);
        di_text_putc(&r->answer, '\n');
    }
    if (r->answer.failed || in.content.failed || in.reasoning.failed || in.exact.failed)
        set_error(r, FAILED, "out of memory", 13);
    else
        r->said = strndup(in.content.length ? in.content.data : "", in.content.length);
    di_text_free(&in.content);
    di_text_free(&in.reasoning);
    di_text_free(&in.exact);
    di_text_free(&in.line);
    di_arena_free(in.arena);
}

/* ---------------------------------------------------------------- customers */

static void write_message(di_json_writer *json, const char *role, const char *content) {
    di_json_object_begin(json);
    di_json_key(json, "role");
    di_json_string(json, role);
    di_json_key(json, "content");
    di_json_string(json, content);
    di_json_object_end(json);
}

/* What this customer says in this turn. */
static void say(char *out, size_t size, uint64_t number, int turn) {
    const char *name = script_names[mix(number) % (sizeof script_names / sizeof *script_names)];
    const char *line = script_lines[number % SCRIPT_TOPICS][turn % SCRIPT_TURNS];
    const char *at = strstr(line, "%s"), *order = strstr(line, "%d");
    if (at && order)
        snprintf(out, size, "%.*s%s%.*s%d%s", (int)(at - line), line, name, (int)(order - at - 2), at + 2,
                 10000 + (int)(number % 89999), order + 2);
    else
        snprintf(out, size, "%s", line);
}

static void write_body(const load *l, record *r, uint64_t number, int turn, record *const *before) {
    const settings *s = l->s;
    di_json_writer json;
    char line[512];
    di_json_begin(&json, &r->body);
    di_json_object_begin(&json);
    di_json_key(&json, "model");
    di_json_string(&json, l->model);
    di_json_key(&json, "messages");
    di_json_array_begin(&json);
    write_message(&json, "system", script_policy);
    for (int i = 0; i <= turn; i++) {
        say(line, sizeof line, number, i);
        write_message(&json, "user", line);
        if (i < turn) write_message(&json, "assistant", before[i]->said);
    }
    di_json_array_end(&json);
    di_json_key(&json, "max_tokens");
    di_json_integer(&json, s->max_tokens);
    di_json_key(&json, "temperature");
    di_json_number(&json, s->temperature);
    di_json_key(&json, "seed");
    di_json_unsigned(&json, mix(s->seed + number * SCRIPT_TURNS + (uint64_t)turn) >> 32);
    di_json_key(&json, "stream");
    di_json_bool(&json, true);
    di_json_key(&json, "stream_options");
    di_json_raw(&json, "{\"include_usage\":true}", 22);
    if (!s->plain) {
        di_json_key(&json, "return_token_ids");
        di_json_bool(&json, true);
        di_json_key(&json, "logits_hash");
        di_json_bool(&json, true);
    }
    if (s->thinking) {
        di_json_key(&json, "thinking");
        di_json_object_begin(&json);
        di_json_key(&json, "type");
        di_json_string(&json, !strcmp(s->thinking, "on") ? "enabled" : "disabled");
        di_json_object_end(&json);
    }
    di_json_object_end(&json);
}

static bool keep(load *l, record *r, bool first_turn) {
    pthread_mutex_lock(&l->lock);
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 256;
        record **records = realloc(l->records, room * sizeof *records);
        if (records) {
            l->records = records;
            l->room = room;
        }
    }
    bool good = l->count < l->room;
    if (good) l->records[l->count++] = r;
    if (first_turn) l->conversations++;
    pthread_mutex_unlock(&l->lock);
    return good;
}

/* One conversation; ends early when an answer is missing. */
static void converse(load *l, http_connection *c, uint64_t number, int64_t due_ns) {
    record *turns[SCRIPT_TURNS];
    for (int turn = 0; turn < l->s->turns; turn++) {
        record *r = calloc(1, sizeof *r);
        if (!r) return;
        uint64_t chance = mix(number * SCRIPT_TURNS + (uint64_t)turn);
        uint64_t pieces = uniform(chance) < l->s->drop ? 1 + mix(chance + 1) % 8 : UINT64_MAX;
        write_body(l, r, number, turn, turns);
        ask(l->target, c, r, turn ? 0 : due_ns, pieces);
        if (!keep(l, r, turn == 0)) {
            record_free(r);
            return;
        }
        turns[turn] = r;
        if (r->outcome != GOOD) return;
    }
}

static void *run_customer(void *arg) {
    customer *one = arg;
    load *l = one->load;
    http_connection *c = calloc(1, sizeof *c);
    if (c) {
        c->fd = -1;
        do {
            converse(l, c, one->number, one->due_ns);
            one->number += (uint64_t)l->s->clients; /* numbers stay this customer's own */
        } while (!one->due_ns && di_now_ns() < l->end_ns);
        http_close(c);
    }
    free(c);
    free(one);
    pthread_mutex_lock(&l->lock);
    l->customers--;
    pthread_cond_signal(&l->left);
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Detached: an open loop has more customers than a process may have threads, one after the other. */
static bool start_customer(load *l, uint64_t number, int64_t due_ns) {
    pthread_t thread;
    pthread_attr_t attributes;
    customer *one = malloc(sizeof *one);
    if (!one || pthread_attr_init(&attributes)) {
        free(one);
        return false;
    }
    *one = (customer){l, due_ns, number};
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_mutex_lock(&l->lock);
    l->customers++;
    int failed = pthread_create(&thread, &attributes, run_customer, one);
    if (failed) l->customers--;
    pthread_mutex_unlock(&l->lock);
    pthread_attr_destroy(&attributes);
    if (failed) {
        fprintf(stderr, "bench_serve: no thread for a customer: %s\n", strerror(failed));
        free(one);
    }
    return !failed;
}

/* Runs a load to its end; false when not every customer could be started. */
static bool run_load(load *l, bool open, double rate) {
    const settings *s = l->s;
    bool good = true;
    l->start_ns = di_now_ns();
    l->end_ns = l->start_ns + (int64_t)(s->seconds * 1e9);
    double at = 0;
    for (uint64_t started = 0; good && (open || started < (uint64_t)s->clients); started++) {
        int64_t due_ns = 0;
        if (open) {
            at -= log(1 - uniform(s->seed + 77777 + started)) / rate;
            if (at > s->seconds && started) break; /* one at least */
            due_ns = l->start_ns + (int64_t)(at * 1e9);
            for (int64_t now; (now = di_now_ns()) < due_ns;) sleep_us((long)((due_ns - now) / 1000) + 1);
        }
        good = start_customer(l, started + (open ? 1000003 : 0), due_ns);
    }
    pthread_mutex_lock(&l->lock);
    while (l->customers) pthread_cond_wait(&l->left, &l->lock);
    pthread_mutex_unlock(&l->lock);
    l->end_ns = di_now_ns();
    return good;
}

static void load_free(load *l) {
    for (size_t i = 0; i < l->count; i++) record_free(l->records[i]);
    free(l->records);
    pthread_cond_destroy(&l->left);
    pthread_mutex_destroy(&l->lock);
}

/* ---------------------------------------------------------------- the same bytes alone */

typedef struct verdict {
    size_t compared, differing, failed;
} verdict;

static void show_difference(const record *r, const record *again) {
    size_t at = 0;
    while (at < r->answer.length && at < again->answer.length && r->answer.data[at] == again->answer.data[at]) at++;
    fprintf(stderr, "bench_serve: bytes differ from byte %zu on:\n  in the crowd  %.60s\n  alone         %.60s\n  %s\n",
            at, r->answer.data + at, again->answer.data + at, r->body.data);
}

static bool same_text(const di_text *a, const di_text *b) {
    return a->length == b->length && !memcmp(a->data, b->data, a->length);
}

/* Evenly spread over the load when not all are asked for. */
static verdict verify(const load *l) {
    verdict v = {0};
    size_t good = 0, seen = 0;
    for (size_t i = 0; i < l->count; i++) good += l->records[i]->outcome == GOOD;
    size_t wanted = l->s->verify < 0 || (size_t)l->s->verify > good ? good : (size_t)l->s->verify;
    http_connection *c = calloc(1, sizeof *c);
    if (!c) return v;
    c->fd = -1;
    for (size_t i = 0; i < l->count && v.compared < wanted; i++) {
        const record *r = l->records[i];
        if (r->outcome != GOOD || seen++ * wanted / good < v.compared) continue;
        record *again = calloc(1, sizeof *again);
        if (!again) break;
        di_text_append(&again->body, r->body.data, r->body.length);
        ask(l->target, c, again, 0, UINT64_MAX);
        v.compared++;
        if (again->outcome != GOOD) {
            v.failed++;
            fprintf(stderr, "bench_serve: alone: %s\n", again->error);
        } else if (!same_text(&r->answer, &again->answer)) {
            if (!v.differing++) show_difference(r, again);
        }
        record_free(again);
    }
    http_close(c);
    free(c);
    return v;
}

/* ---------------------------------------------------------------- figures */

typedef struct sample {
    double *values; /* sorted by percentiles() */
    size_t count;
} sample;

static void add(sample *s, double value) {
    double *values =
        s->count & (s->count - 1) ? s->values : realloc(s->values, (s->count ? 2 * s->count : 1) * sizeof *values);
    if (!values) return;
    s->values = values;
    s->values[s->count++] = value;
}

static double percentile(const sample *s, double share) {
    if (!s->count) return 0;
    size_t at = (size_t)(share * (double)s->count);
    return s->values[at < s->count ? at : s->count - 1];
}

static void report_sample(report *line, const char *key, sample *s) {
    if (s->count) qsort(s->values, s->count, sizeof *s->values, compare_doubles);
    di_json_key(&line->json, key);
    di_json_object_begin(&line->json);
    report_integer(line, "count", (int64_t)s->count);
    report_number(line, "p50", percentile(s, 0.5));
    report_number(line, "p90", percentile(s, 0.9));
    report_number(line, "p95", percentile(s, 0.95));
    report_number(line, "p99", percentile(s, 0.99));
    report_number(line, "max", s->count ? s->values[s->count - 1] : 0);
    di_json_object_end(&line->json);
}

typedef struct totals {
    sample first, gaps, total;
    size_t outcomes[4], typed, on_time;
    int64_t prompt, cached, completion;
} totals;

static totals add_up(const load *l) {
    totals t = {0};
    for (size_t i = 0; i < l->count; i++) {
        const record *r = l->records[i];
        t.outcomes[r->outcome]++;
        t.typed += r->outcome == REFUSED && r->typed;
        if (r->outcome != GOOD) continue;
        bool late = r->first_ms > l->s->first_ms;
        if (r->completion) add(&t.first, r->first_ms);
        add(&t.total, r->total_ms);
        for (size_t g = 0; g < r->gap_count; g++) {
            add(&t.gaps, r->gaps[g]);
            late = late || r->gaps[g] > l->s->gap_ms;
        }
        t.on_time += !late;
        t.prompt += r->prompt;
        t.cached += r->cached;
        t.completion += r->completion;
    }
    return t;
}

static void report_errors(report *line, const load *l) {
    di_json_key(&line->json, "errors");
    di_json_array_begin(&line->json);
    int shown = 0;
    for (size_t i = 0; i < l->count && shown < 3; i++) {
        const record *r = l->records[i];
        if (r->outcome != FAILED) continue;
        di_json_object_begin(&line->json);
        report_integer(line, "status", r->status);
        report_text(line, "text", r->error);
        di_json_object_end(&line->json);
        shown++;
    }
    di_json_array_end(&line->json);
}

static void print_row(const char *name, const totals *t, double seconds, const verdict *v) {
    fprintf(
        stderr,
        "%-7s %5zu %5zu %5zu | %8.1f %7.2f %5.0f%% | %7.0f %7.0f %7.0f | %6.1f %6.1f %6.0f | %5.0f%% | %zu of %zu\n",
        name, t->outcomes[GOOD], t->outcomes[REFUSED], t->outcomes[FAILED], (double)t->completion / seconds,
        (double)t->outcomes[GOOD] / seconds,
        t->outcomes[GOOD] ? 100.0 * (double)t->on_time / (double)t->outcomes[GOOD] : 0, percentile(&t->first, 0.5),
        percentile(&t->first, 0.95), percentile(&t->first, 0.99), percentile(&t->gaps, 0.5), percentile(&t->gaps, 0.99),
        t->gaps.count ? t->gaps.values[t->gaps.count - 1] : 0,
        t->prompt ? 100.0 * (double)t->cached / (double)t->prompt : 0, v->compared - v->differing - v->failed,
        v->compared);
}

static void print_heads(void) {
    fprintf(stderr,
            "\n%-7s %5s %5s %5s | %8s %7s %6s | %23s | %20s | %6s | %s\n%-7s %5s %5s %5s | %8s %7s %6s | %7s %7s %7s | "
            "%6s %6s %6s | %6s | %s\n",
            "", "", "re-", "", "tokens", "answers", "on", "first token ms", "gap ms", "prompt", "same as", "load",
            "good", "fused", "failed", "per s", "per s", "time", "p50", "p95", "p99", "p50", "p99", "max", "cached",
            "alone");
}

static bool report_load(const load *l, const char *name, double rate, const verdict *v) {
    double seconds = di_ms(l->end_ns - l->start_ns) / 1000;
    totals t = add_up(l);
    report line;
    report_begin(&line, "serve", name);
    report_integer(&line, "clients", l->s->clients);
    if (rate > 0) report_number(&line, "conversations_per_s", rate);
    report_integer(&line, "conversations", (int64_t)l->conversations);
    report_number(&line, "seconds", seconds);
    report_integer(&line, "requests", (int64_t)l->count);
    report_integer(&line, "good", (int64_t)t.outcomes[GOOD]);
    report_integer(&line, "refused", (int64_t)t.outcomes[REFUSED]);
    report_integer(&line, "refused_typed", (int64_t)t.typed);
    report_integer(&line, "failed", (int64_t)t.outcomes[FAILED]);
    report_integer(&line, "dropped", (int64_t)t.outcomes[DROPPED]);
    report_integer(&line, "tokens", t.completion);
    report_number(&line, "tokens_per_s", (double)t.completion / seconds);
    report_number(&line, "requests_per_s", (double)t.outcomes[GOOD] / seconds);
    report_sample(&line, "first_token_ms", &t.first);
    report_sample(&line, "gap_ms", &t.gaps);
    report_sample(&line, "total_ms", &t.total);
    report_number(&line, "first_ms_wanted", l->s->first_ms);
    report_number(&line, "gap_ms_wanted", l->s->gap_ms);
    report_number(&line, "goodput_per_s", (double)t.on_time / seconds);
    report_integer(&line, "prompt_tokens", t.prompt);
    report_integer(&line, "cached_tokens", t.cached);
    report_number(&line, "cache_hit_share", t.prompt ? (double)t.cached / (double)t.prompt : 0);
    report_integer(&line, "compared", (int64_t)v->compared);
    report_integer(&line, "differing", (int64_t)v->differing);
    report_errors(&line, l);
    report_number(&line, "load", load_average());
    report_end(&line);
    print_row(name, &t, seconds, v);
    bool good = !t.outcomes[FAILED] && !v->differing && !v->failed && t.outcomes[GOOD] + t.outcomes[DROPPED] > 0;
    free(t.first.values);
    free(t.gaps.values);
    free(t.total.values);
    return good;
}

/* ---------------------------------------------------------------- the server */

static int free_port(void) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    bool good = fd >= 0 && !bind(fd, (struct sockaddr *)&address, length) &&
                !getsockname(fd, (struct sockaddr *)&address, &length);
    if (fd >= 0) close(fd);
    return good ? ntohs(address.sin_port) : 0;
}

/* `deepinfer serve` of the same build, with the embedded model. */
static pid_t start_server(const char *program, char url[64]) {
    char path[4096], port[16];
    const char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*s/../deepinfer", slash ? (int)(slash - program) : 1, slash ? program : ".");
    snprintf(port, sizeof port, "%d", free_port());
    snprintf(url, 64, "http://127.0.0.1:%s", port);
    pid_t parent = getpid(), child = fork();
    if (child != 0) return child;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    execl(path, "deepinfer", "serve", DI_SOURCE_DIR "/models/tiny", "--port", port, "--quiet", (char *)NULL);
    fprintf(stderr, "bench_serve: %s: %s; build it, or give --url\n", path, strerror(errno));
    _exit(127);
}

static bool stop_server(pid_t server) {
    int status = 0;
    kill(server, SIGTERM);
    return waitpid(server, &status, 0) == server && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* Asks for the name of the model until the server answers, and takes it unless one was given. */
static bool find_model(load *l, pid_t server) {
    http_connection *c = calloc(1, sizeof *c);
    di_arena *arena = di_arena_new(0);
    di_text body = {0};
    const di_json *root = NULL, *data, *id;
    bool good = c && arena;
    if (c) c->fd = -1;
    for (int tries = 0; good; tries++) {
        di_text_clear(&body);
        bool answered = http_request(c, l->target, "/v1/models", NULL, 0, TIMEOUT_S) && http_read_all(c, &body);
        if (answered && (c->status != 503 || server <= 0)) break; /* 503: the model is being loaded */
        good = server > 0 && tries < 600 && waitpid(server, NULL, WNOHANG) == 0;
        if (!good) fprintf(stderr, "bench_serve: %s: %s\n", l->target->authority, c->error);
        sleep_us(100000);
    }
    if (good && c->status != 200) {
        fprintf(stderr, "bench_serve: /v1/models: HTTP %d %.200s\n", c->status, body.length ? body.data : "");
        good = false;
    }
    if (good && !l->s->model) {
        di_error error = {0};
        good = di_json_parse(arena, body.data, body.length, 0, &root, &error) == DI_OK;
        data = good ? di_json_get(root, "data") : NULL;
        id = data && data->first ? di_json_get(data->first, "id") : NULL;
        if (id && id->type == DI_JSON_STRING) snprintf(l->model, sizeof l->model, "%s", id->text);
    } else if (good) {
        snprintf(l->model, sizeof l->model, "%s", l->s->model);
    }
    di_text_free(&body);
    di_arena_free(arena);
    if (c) http_close(c);
    free(c);
    return good;
}

/* ---------------------------------------------------------------- the whole */

static bool run_part(const load *form, const char *name, double rate, double *conversations_per_s) {
    load l = *form;
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.left, NULL);
    bool good = run_load(&l, rate > 0, rate);
    double seconds = di_ms(l.end_ns - l.start_ns) / 1000;
    *conversations_per_s = (double)l.count / l.s->turns / seconds;
    verdict v = good ? verify(&l) : (verdict){0};
    good = report_load(&l, name, rate, &v) && good;
    load_free(&l);
    return good;
}

static bool run(const settings *given, http_target *target, const char *program, int argc, char **argv) {
    char url[64];
    pid_t server = given->url ? 0 : start_server(program, url);
    settings s = *given;
    load form = {.s = &s, .target = target};
    report line;
    if (server < 0 || !http_parse_url(given->url ? given->url : url, target)) {
        fprintf(stderr, "bench_serve: %s: give http://HOST:PORT; TLS is for a proxy\n",
                given->url ? given->url : "no server");
        return false;
    }
    bool good = find_model(&form, server);
    report_environment(&line, "serve", argc, argv);
    report_text(&line, "url", given->url ? given->url : url);
    report_text(&line, "model", form.model);
    report_end(&line);
    double closed_rate = 0, unused;
    if (good) print_heads();
    if (good && s.closed) good = run_part(&form, "closed", 0, &closed_rate);
    if (s.rate <= 0) s.rate = closed_rate > 0 ? 0.7 * closed_rate : 1;
    if (s.seconds <= 0) s.seconds = 10;
    if (s.open && (good || closed_rate > 0)) good = run_part(&form, "open", s.rate, &unused) && good;
    if (server > 0 && !stop_server(server)) {
        fprintf(stderr, "bench_serve: the server did not end with 0\n");
        good = false;
    }
    return good;
}

static int usage(void) {
    fputs("usage: bench_serve [--url http://HOST:PORT] [--api-key-file FILE] [--model NAME] [--clients N] [--rate R]\n"
          "                   [--seconds S] [--turns 1..4] [--max-tokens N] [--temperature T] [--thinking on|off] "
          "[--seed N]\n"
          "                   [--drop SHARE] [--verify all|off|N] [--first-ms MS] [--gap-ms MS] [--plain]\n"
          "                   [--part closed|open]...\n",
          stderr);
    return 2;
}

static bool parse_number(settings *s, const char *name, const char *value) {
    char *end;
    double number = strtod(value, &end);
    if (!*value || *end || !(number >= 0) || number > 1e9) return false;
    if (!strcmp(name, "--clients") && number >= 1 && number <= MAX_CLIENTS) return s->clients = (int)number, true;
    if (!strcmp(name, "--turns") && number >= 1 && number <= SCRIPT_TURNS) return s->turns = (int)number, true;
    if (!strcmp(name, "--max-tokens") && number >= 1) return s->max_tokens = (int)number, true;
    if (!strcmp(name, "--verify")) return s->verify = (int)number, true;
    if (!strcmp(name, "--rate")) return s->rate = number, true;
    if (!strcmp(name, "--seconds")) return s->seconds = number, true;
    if (!strcmp(name, "--temperature")) return s->temperature = number, true;
    if (!strcmp(name, "--drop") && number <= 1) return s->drop = number, true;
    if (!strcmp(name, "--first-ms")) return s->first_ms = number, true;
    if (!strcmp(name, "--gap-ms")) return s->gap_ms = number, true;
    if (!strcmp(name, "--seed")) return s->seed = (uint64_t)number, true;
    return false;
}

static bool parse(settings *s, int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(name, "--plain")) {
            s->plain = true;
            continue;
        }
        i++;
        if (!strcmp(name, "--url") && *value)
            s->url = value;
        else if (!strcmp(name, "--model") && *value)
            s->model = value;
        else if (!strcmp(name, "--api-key-file") && *value)
            s->key_file = value;
        else if (!strcmp(name, "--thinking") && (!strcmp(value, "on") || !strcmp(value, "off")))
            s->thinking = value;
        else if (!strcmp(name, "--verify") && (!strcmp(value, "all") || !strcmp(value, "off")))
            s->verify = value[0] == 'a' ? -1 : 0;
        else if (!strcmp(name, "--part") && !strcmp(value, "closed"))
            s->closed = true;
        else if (!strcmp(name, "--part") && !strcmp(value, "open"))
            s->open = true;
        else if (!parse_number(s, name, value))
            return false;
    }
    return true;
}

int main(int argc, char **argv) {
    settings s = {.clients = 50,
                  .turns = 3,
                  .max_tokens = 32,
                  .verify = -1,
                  .temperature = 1,
                  .first_ms = 2000,
                  .gap_ms = 500,
                  .seed = 1};
    http_target target = {0};
    char *key = NULL;
    size_t length;
    di_error error = {0};
    if (!parse(&s, argc, argv)) return usage();
    if (!s.closed && !s.open) s.closed = s.open = true;
    if (s.key_file) {
        if (di_read_file(s.key_file, 1 << 16, &key, &length, &error) != DI_OK) {
            fprintf(stderr, "bench_serve: %s\n", error.message);
            return 1;
        }
        key[strcspn(key, "\r\n")] = 0;
        target.key = key;
    }
    bool good = run(&s, &target, argv[0], argc, argv);
    free(key);
    return good ? 0 : 1;
}
