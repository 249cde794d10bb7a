/* grammar.c - compilation and masks of JSON Schemas: reads lines {"schema", "tests": [{"data"}, ...]} from standard
 * input, walks every instance, prints one JSON line. With --each a line a case: times of all masks, the ids of the
 * instances and whether they were accepted, for bench/compare_grammar.py; "json_object": true instead of a schema is
 * JSON mode. Times are processor time of the thread in microseconds, less what two readings of the clock take.
 * usage: bench_grammar [--each] TOKENIZER < cases.jsonl */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "grammar/grammar.h"

typedef struct samples {
    double *values;
    size_t count, capacity;
} samples;

/* CPU time of this thread in microseconds. */
static double cpu_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

/* What the two readings around a measurement take. */
static double clock_us(void) {
    enum { READINGS = 2000 };
    double start = cpu_us();
    for (int i = 0; i < READINGS; i++) cpu_us();
    return (cpu_us() - start) / READINGS;
}

static void add(samples *s, double value) {
    if (value < 0) value = 0;
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? s->capacity * 2 : 1024;
        s->values = realloc(s->values, s->capacity * sizeof *s->values);
        if (!s->values) exit(1);
    }
    s->values[s->count++] = value;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void report(di_json_writer *writer, const char *name, samples *s) {
    static const struct {
        const char *name;
        double share;
    } shares[] = {{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1}};
    double sum = 0;
    for (size_t i = 0; i < s->count; i++) sum += s->values[i];
    if (s->count) qsort(s->values, s->count, sizeof *s->values, compare);
    di_json_key(writer, name);
    di_json_object_begin(writer);
    di_json_key(writer, "count");
    di_json_unsigned(writer, s->count);
    di_json_key(writer, "avg");
    di_json_number(writer, s->count ? sum / (double)s->count : 0);
    for (size_t i = 0; i < sizeof shares / sizeof *shares && s->count; i++) {
        size_t at = (size_t)((double)s->count * shares[i].share);
        di_json_key(writer, shares[i].name);
        di_json_number(writer, s->values[at < s->count ? at : s->count - 1]);
    }
    di_json_object_end(writer);
    free(s->values);
}

typedef struct bench {
    di_tokenizer *tokenizer;
    di_vocabulary *vocabulary;
    uint64_t *mask;
    double clock; /* microseconds of a reading */
    samples compile_us, first_us, mask_us, memory_bytes;
    uint64_t refused, failed;
    bool each;
    di_json_writer *line; /* of the case, if `each` */
} bench;

/* Instances so far that were accepted, and their ids. */
static void write_walk(bench *b, const di_ids *ids, bool accepted) {
    if (!b->each) return;
    di_json_object_begin(b->line);
    di_json_key(b->line, "accepted");
    di_json_bool(b->line, accepted);
    di_json_key(b->line, "ids");
    di_json_array_begin(b->line);
    for (size_t i = 0; i < ids->count; i++) di_json_integer(b->line, ids->data[i]);
    di_json_array_end(b->line);
    di_json_object_end(b->line);
}

static bool allowed(const bench *b, int32_t id) {
    return b->mask[id / 64] >> id % 64 & 1;
}

enum { STOP = 1 };

static void walk(bench *b, di_matcher *matcher, const di_json *data) {
    di_text text = {0};
    di_ids ids = {0};
    di_json_writer writer;
    bool accepted = false;
    di_json_begin(&writer, &text);
    di_json_value(&writer, data);
    if (text.failed || di_tokenizer_encode(b->tokenizer, text.data, text.length, false, &ids, NULL) != DI_OK) exit(1);
    di_grammar_state state = matcher ? di_matcher_start(matcher) : DI_GRAMMAR_REJECT;
    for (size_t i = 0; i <= ids.count && state != DI_GRAMMAR_REJECT; i++) {
        double start = cpu_us();
        if (di_matcher_mask(matcher, state, b->mask, NULL) != DI_OK) {
            b->failed++;
            break;
        }
        add(&b->mask_us, cpu_us() - start - b->clock);
        if (i == ids.count) accepted = allowed(b, STOP);
        if (i == ids.count || !allowed(b, ids.data[i])) break;
        if (di_matcher_advance(matcher, state, (uint32_t)ids.data[i], &state, NULL) != DI_OK) break;
    }
    write_walk(b, &ids, accepted);
    di_ids_free(&ids);
    di_text_free(&text);
}

/* Compiles and computes the first mask; NULL if the schema is refused. */
static di_matcher *open_case(bench *b, const di_grammar_source *source, di_grammar **grammar) {
    di_matcher *matcher = NULL;
    double start = cpu_us();
    bool ok = di_grammar_compile(source, NULL, grammar, NULL, NULL) == DI_OK &&
              di_matcher_new(*grammar, b->vocabulary, &matcher, NULL) == DI_OK;
    double compiled = cpu_us();
    ok = ok && di_matcher_mask(matcher, di_matcher_start(matcher), b->mask, NULL) == DI_OK;
    if (ok) {
        add(&b->compile_us, compiled - start - b->clock);
        add(&b->first_us, cpu_us() - start - 2 * b->clock);
        return matcher;
    }
    b->refused++;
    di_matcher_free(matcher);
    return NULL;
}

static void run(bench *b, const di_json *schema, const di_json *tests) {
    di_text text = {0};
    di_json_writer writer;
    if (schema) {
        di_json_begin(&writer, &text);
        di_json_value(&writer, schema);
    }
    di_grammar_source source = {.kind = schema ? DI_GRAMMAR_JSON_SCHEMA : DI_GRAMMAR_JSON_OBJECT,
                                .text = text.data,
                                .length = text.length,
                                .order = DI_ORDER_ANY};
    di_grammar *grammar = NULL;
    di_matcher *matcher = open_case(b, &source, &grammar);
    for (const di_json *t = tests ? tests->first : NULL; t && (matcher || b->each); t = t->next)
        if (di_json_get(t, "data")) walk(b, matcher, di_json_get(t, "data"));
    if (matcher) add(&b->memory_bytes, (double)(di_matcher_memory(matcher) + di_grammar_memory(grammar)));
    di_matcher_free(matcher);
    di_grammar_free(grammar);
    di_text_free(&text);
}

static void write_samples(di_json_writer *writer, const char *name, samples *s) {
    di_json_key(writer, name);
    di_json_array_begin(writer);
    for (size_t i = 0; i < s->count; i++) di_json_number(writer, s->values[i]);
    di_json_array_end(writer);
    s->count = 0;
}

/* A line of its own for this case. */
static void run_each(bench *b, const di_json *schema, const di_json *tests) {
    di_text out = {0};
    di_json_writer writer;
    uint64_t refused = b->refused;
    di_json_begin(&writer, &out);
    di_json_object_begin(&writer);
    di_json_key(&writer, "tests");
    di_json_array_begin(&writer);
    b->line = &writer;
    run(b, schema, tests);
    di_json_array_end(&writer);
    di_json_key(&writer, "compiled");
    di_json_bool(&writer, refused == b->refused);
    write_samples(&writer, "compile_us", &b->compile_us);
    write_samples(&writer, "first_us", &b->first_us);
    write_samples(&writer, "mask_us", &b->mask_us);
    write_samples(&writer, "memory", &b->memory_bytes);
    di_json_object_end(&writer);
    if (out.failed) exit(1);
    puts(out.data);
    fflush(stdout);
    di_text_free(&out);
}

static void print_summary(bench *b) {
    di_text out = {0};
    di_json_writer writer;
    di_json_begin(&writer, &out);
    di_json_object_begin(&writer);
    di_json_key(&writer, "rows");
    di_json_unsigned(&writer, di_vocabulary_rows(b->vocabulary));
    di_json_key(&writer, "refused");
    di_json_unsigned(&writer, b->refused);
    di_json_key(&writer, "failed");
    di_json_unsigned(&writer, b->failed);
    report(&writer, "compile_us", &b->compile_us);
    report(&writer, "first_us", &b->first_us);
    report(&writer, "mask_us", &b->mask_us);
    report(&writer, "memory_bytes", &b->memory_bytes);
    di_json_object_end(&writer);
    puts(out.data);
    di_text_free(&out);
}

int main(int count, char **arguments) {
    bench b = {0};
    di_error error = {0};
    const int32_t stop = STOP;
    b.each = count == 3 && strcmp(arguments[1], "--each") == 0;
    if (count != 2 + b.each) {
        fprintf(stderr, "usage: bench_grammar [--each] TOKENIZER < cases.jsonl\n");
        return 2;
    }
    b.clock = clock_us();
    if (di_tokenizer_load(arguments[count - 1], &b.tokenizer, &error) != DI_OK ||
        di_vocabulary_of_tokenizer(b.tokenizer, 0, &stop, 1, &b.vocabulary, &error) != DI_OK) {
        fprintf(stderr, "%s\n", error.message);
        return 1;
    }
    b.mask = calloc(di_vocabulary_words(b.vocabulary), sizeof *b.mask);
    di_arena *arena = di_arena_new(0);
    char *line = NULL;
    size_t capacity = 0;
    if (!b.mask || !arena) return 1;
    for (ssize_t length; (length = getline(&line, &capacity, stdin)) > 0;) {
        const di_json *root;
        di_arena_reset(arena);
        if (di_json_parse(arena, line, (size_t)length, 512, &root, &error) != DI_OK ||
            (!di_json_get(root, "schema") && !di_json_get(root, "json_object"))) {
            fprintf(stderr, "a line is no case: %s\n", error.message);
            return 1;
        }
        (b.each ? run_each : run)(&b, di_json_get(root, "schema"), di_json_get(root, "tests"));
    }
    if (!b.each) print_summary(&b);
    free(line);
    free(b.mask);
    di_arena_free(arena);
    di_vocabulary_free(b.vocabulary);
    di_tokenizer_free(b.tokenizer);
    return 0;
}
