/* bench_load.c - see bench_load.h. */
#include "cli/bench_load.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cli/bench_script.h"

enum { STACK_BYTES = 256 << 10 };

/* Its own thread's, which frees it. */
typedef struct customer {
    di_bench_load *load;
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

static void sleep_ns(int64_t ns) {
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL);
}

/* ---------------------------------------------------------------- one request */

static void record_free(di_bench_record *r) {
    if (!r) return;
    di_text_free(&r->body);
    di_text_free(&r->answer);
    free(r->said);
    free(r->gaps);
    free(r);
}

static void add_gap(di_bench_record *r, double ms) {
    if (r->gap_count == r->gap_room) {
        size_t room = r->gap_room ? 2 * r->gap_room : 64;
        double *gaps = realloc(r->gaps, room * sizeof *gaps);
        if (!gaps) return;
        r->gaps = gaps;
        r->gap_room = room;
    }
    r->gaps[r->gap_count++] = ms;
}

static void set_error(di_bench_record *r, di_bench_fate outcome, const char *text, size_t length) {
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

static void read_usage(di_bench_record *r, const di_json *usage) {
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

static void read_event(di_bench_record *r, reading *in, const char *data, size_t length) {
    const di_json *root, *choice, *delta, *node;
    di_error error = {0};
    if (length == 6 && !memcmp(data, "[DONE]", 6)) {
        in->complete = true;
        return;
    }
    di_arena_reset(in->arena);
    if (di_json_parse(in->arena, data, length, 0, &root, &error) != DI_OK) {
        set_error(r, DI_BENCH_FAILED, error.message, strlen(error.message));
        return;
    }
    if (di_json_get(root, "error")) set_error(r, DI_BENCH_FAILED, data, length);
    read_usage(r, di_json_get(root, "usage"));
    node = di_json_get(root, "system_fingerprint");
    if (node && node->type == DI_JSON_STRING) snprintf(r->fingerprint, sizeof r->fingerprint, "%s", node->text);
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

static void read_line(di_bench_record *r, reading *in) {
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
static void read_stream(di_bench_record *r, reading *in, di_client *c, uint64_t pieces) {
    const char *bytes;
    ssize_t n = 0;
    while (r->outcome == DI_BENCH_GOOD && in->pieces < pieces && (n = di_client_read(c, &bytes)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\n')
                read_line(r, in);
            else
                di_text_putc(&in->line, bytes[i]);
        }
    }
    if (r->outcome != DI_BENCH_GOOD) return;
    if (in->pieces >= pieces)
        r->outcome = DI_BENCH_DROPPED;
    else if (n < 0)
        set_error(r, DI_BENCH_FAILED, c->error, strlen(c->error));
    else if (!in->complete)
        set_error(r, DI_BENCH_FAILED, "the stream ended before [DONE]", 30);
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

static void read_refusal(di_bench_record *r, di_client *c) {
    di_text text = {0};
    r->typed = di_client_read_all(c, &text) && c->retry_after && names_an_error(&text);
    set_error(r, r->status == 429 || r->status == 503 ? DI_BENCH_REFUSED : DI_BENCH_FAILED,
              text.length ? text.data : "no text", text.length ? text.length : 7);
    di_text_free(&text);
}

/* Sends r->body and fills in the rest. pieces: leave after so many; UINT64_MAX = never. */
static void ask(const di_client_target *target, di_client *c, di_bench_record *r, int64_t due_ns, uint64_t pieces) {
    reading in = {.arena = di_arena_new(0), .sent_ns = due_ns ? due_ns : di_now_ns()};
    if (!in.arena || r->body.failed) {
        set_error(r, DI_BENCH_FAILED, "out of memory", 13);
    } else if (!di_client_request(c, target, "/v1/chat/completions", r->body.data, r->body.length,
                                  DI_BENCH_TIMEOUT_S)) {
        set_error(r, DI_BENCH_FAILED, c->error, strlen(c->error));
    } else if ((r->status = c->status) != 200) {
        read_refusal(r, c);
    } else {
        read_stream(r, &in, c, pieces);
    }
    r->total_ms = di_ms(di_now_ns() - in.sent_ns);
    if (r->outcome != DI_BENCH_GOOD) di_client_close(c);
    const di_text *parts[] = {&in.reasoning, &in.content, &in.exact};
    for (int i = 0; i < 3; i++) {
        if (parts[i]->length) di_text_append(&r->answer, parts[i]->data, parts[i]->length);
        di_text_putc(&r->answer, '\n');
    }
    if (r->answer.failed || in.content.failed || in.reasoning.failed || in.exact.failed)
        set_error(r, DI_BENCH_FAILED, "out of memory", 13);
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

static void write_body(const di_bench_load *l, di_bench_record *r, uint64_t number, int turn,
                       di_bench_record *const *before) {
    const di_bench_settings *s = l->s;
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

static bool keep(di_bench_load *l, di_bench_record *r, bool first_turn) {
    pthread_mutex_lock(&l->lock);
    if (l->count == l->room) {
        size_t room = l->room ? 2 * l->room : 256;
        di_bench_record **records = realloc(l->records, room * sizeof *records);
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
static void converse(di_bench_load *l, di_client *c, uint64_t number, int64_t due_ns) {
    di_bench_record *turns[SCRIPT_TURNS];
    for (int turn = 0; turn < l->s->turns; turn++) {
        di_bench_record *r = calloc(1, sizeof *r);
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
        if (r->outcome != DI_BENCH_GOOD) return;
    }
}

static void *run_customer(void *arg) {
    customer *one = arg;
    di_bench_load *l = one->load;
    di_client *c = calloc(1, sizeof *c);
    if (c) {
        c->fd = -1;
        do {
            converse(l, c, one->number, one->due_ns);
            one->number += (uint64_t)l->s->clients; /* numbers stay this customer's own */
        } while (!one->due_ns && di_now_ns() < l->end_ns);
        di_client_close(c);
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
static bool start_customer(di_bench_load *l, uint64_t number, int64_t due_ns) {
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
        fprintf(stderr, "bench serve: no thread for a customer: %s\n", strerror(failed));
        free(one);
    }
    return !failed;
}

bool di_bench_run_load(di_bench_load *l, bool open, double rate) {
    const di_bench_settings *s = l->s;
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
            for (int64_t now; (now = di_now_ns()) < due_ns;) sleep_ns(due_ns - now);
        }
        good = start_customer(l, started + (open ? 1000003 : 0), due_ns);
    }
    pthread_mutex_lock(&l->lock);
    while (l->customers) pthread_cond_wait(&l->left, &l->lock);
    pthread_mutex_unlock(&l->lock);
    l->end_ns = di_now_ns();
    return good;
}

void di_bench_load_open(di_bench_load *l) {
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->left, NULL);
}

void di_bench_load_close(di_bench_load *l) {
    for (size_t i = 0; i < l->count; i++) record_free(l->records[i]);
    free(l->records);
    pthread_cond_destroy(&l->left);
    pthread_mutex_destroy(&l->lock);
}

/* ---------------------------------------------------------------- the same bytes alone */

static void show_difference(const di_bench_record *r, const di_bench_record *again) {
    size_t at = 0;
    while (at < r->answer.length && at < again->answer.length && r->answer.data[at] == again->answer.data[at]) at++;
    fprintf(stderr, "bench serve: bytes differ from byte %zu on:\n  in the crowd  %.60s\n  alone         %.60s\n  %s\n",
            at, r->answer.data + at, again->answer.data + at, r->body.data);
}

static bool same_text(const di_text *a, const di_text *b) {
    return a->length == b->length && !memcmp(a->data, b->data, a->length);
}

di_bench_verdict di_bench_verify(const di_bench_load *l) {
    di_bench_verdict v = {0};
    size_t good = 0, seen = 0;
    for (size_t i = 0; i < l->count; i++) good += l->records[i]->outcome == DI_BENCH_GOOD;
    size_t wanted = l->s->verify < 0 || (size_t)l->s->verify > good ? good : (size_t)l->s->verify;
    di_client *c = calloc(1, sizeof *c);
    if (!c) return v;
    c->fd = -1;
    for (size_t i = 0; i < l->count && v.compared < wanted; i++) {
        const di_bench_record *r = l->records[i];
        if (r->outcome != DI_BENCH_GOOD || seen++ * wanted / good < v.compared) continue;
        di_bench_record *again = calloc(1, sizeof *again);
        if (!again) break;
        di_text_append(&again->body, r->body.data, r->body.length);
        ask(l->target, c, again, 0, UINT64_MAX);
        v.compared++;
        if (again->outcome != DI_BENCH_GOOD) {
            v.failed++;
            fprintf(stderr, "bench serve: alone: %s\n", again->error);
        } else if (!same_text(&r->answer, &again->answer)) {
            if (!v.differing++) show_difference(r, again);
        }
        record_free(again);
    }
    di_client_close(c);
    free(c);
    return v;
}
