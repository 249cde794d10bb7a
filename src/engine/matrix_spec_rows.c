/* matrix_spec_rows.c - the row of the matrix about drafts: from the model's own drafter, any number of them, and from
 * drafters that are always right, always wrong, or know nothing, verified in lengths that change at random. */
#include <stdio.h>
#include <stdlib.h>

#include "engine/matrix_internal.h"

/* ---------------------------------------------------------------- requests */

static const char *const STOPS[] = {"an", "e ", "0"};
enum { ANSWER = 40, LONGEST_PROMPT = 200 };

/* The mixed requests have short answers without grammars; these have long ones with all that looks at what was chosen
 * before. */
static const matrix_set *long_answers(matrix *m, uint64_t round) {
    matrix_set *set = matrix_new_set(m);
    matrix_reseed(m, round, 60);
    di_engine *engine = set ? matrix_open_alone(m, MATRIX_NO_TIES) : NULL;
    if (!engine) return NULL;
    int32_t prompt[LONGEST_PROMPT];
    bool ok = true, grammars = di_engine_info(engine)->has_tokenizer;
    for (uint32_t i = 0; ok && set->rows < m->set_rows; i++) {
        uint32_t most = m->longest - ANSWER < LONGEST_PROMPT ? m->longest - ANSWER : LONGEST_PROMPT;
        uint32_t count = 1 + matrix_below(m, most);
        matrix_random_ids(m, prompt, count);
        di_sampling s = matrix_sampling(m, set, i + (uint32_t)round, ANSWER);
        if (i % 4 == 1) s.temperature = 0.6f;
        if (i % 3 == 2) {
            s.stop = STOPS;
            s.stop_count = MATRIX_COUNT(STOPS);
        }
        if (grammars && i % 5 == 3 && !s.golden_token_count) {
            s.so_args.schema_type = "json_object";
            s.ignore_eos = false;
            s.min_tokens = s.first_n_token_no_eos = 0;
        }
        if (!matrix_add(m, set, prompt, count, &s)) break;
        ok = matrix_record(m, engine, set, set->count - 1);
    }
    di_close(engine);
    return ok && !matrix_stopped(m) && set->count ? set : NULL;
}

/* ---------------------------------------------------------------- drafters */

typedef enum drafter { OWN, ORACLE, WRONG, RANDOM } drafter;

typedef struct test { /* engine thread, while an engine is open */
    const matrix *m;
    drafter drafter;
    uint64_t dice;
} test;

static uint32_t roll(test *t, uint32_t bound) {
    t->dice = t->dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((t->dice >> 33) % bound);
}

static void put_drafts(void *arg, const char *id, int32_t sample, uint32_t index, int32_t *tokens, uint32_t length) {
    test *t = arg;
    const matrix_entry *e = id[0] == 'w' ? &t->m->entries[strtoul(id + 1, NULL, 10)] : NULL;
    const matrix_sample *alone = e && e->request ? &e->request->alone[sample] : NULL;
    for (uint32_t j = 0; j < length; j++) {
        bool known = alone && index + j < alone->id_count;
        if (t->drafter == OWN) return;
        if (t->drafter == RANDOM || !known)
            tokens[j] = (int32_t)roll(t, t->m->vocabulary);
        else if (t->drafter == ORACLE)
            tokens[j] = alone->ids[index + j];
        else
            tokens[j] = (int32_t)(((uint32_t)alone->ids[index + j] + 1) % t->m->vocabulary);
    }
}

static uint32_t any_length(void *arg, uint32_t most) {
    return roll(arg, most + 1);
}

/* ---------------------------------------------------------------- cases */

typedef struct variant {
    const char *name, *spec;
    drafter drafter;
    bool any_length, few; /* few: pages for one request, so that others are preempted */
} variant;

static bool run_variant(matrix *m, const matrix_set *set, const variant *v, uint64_t seed) {
    char context[16], least[24];
    snprintf(context, sizeof context, "%u", m->few_positions);
    snprintf(least, sizeof least, "%llu", (unsigned long long)m->few_bytes);
    di_engine *engine =
        v->few ? matrix_open(m, MATRIX_NO_TIES, false,
                             MATRIX_OVERRIDES("context", context, "kv-ram", least, "cache-ram", "0", "spec", v->spec))
               : matrix_open(m, MATRIX_NO_TIES, false, MATRIX_OVERRIDES("cache-ram", "64M", "spec", v->spec));
    if (!engine) return false;
    test t = {.m = m, .drafter = v->drafter, .dice = seed};
    di_draft_watch watch = {.arg = &t, .drafts = put_drafts, .verify = v->any_length ? any_length : NULL};
    di_engine_watch_drafts(engine, &watch);
    /* The second time prompts are found in the cache. */
    bool ok = (v->few || matrix_run_set(m, engine, set, false)) && matrix_run_set(m, engine, set, true);
    uint64_t drafted = matrix_counter(engine, DI_COUNT_DRAFTED), right = matrix_counter(engine, DI_COUNT_ACCEPTED);
    di_close(engine);
    if (!ok) return false;
    /* How many `auto` takes is its own business. */
    matrix_expect(m, drafted > 0 || v->spec[0] == 'a', "nothing was drafted, so nothing was tested");
    if (v->drafter == ORACLE && drafted) matrix_expect(m, right > drafted / 2, "the oracle was not right");
    if (v->drafter == WRONG) matrix_expect(m, right < drafted / 2, "the wrong drafter was right");
    return true;
}

bool matrix_drafts(matrix *m, uint64_t round) {
    static const variant variants[] = {
        {"--spec 1", "1", OWN, false, false},
        {"--spec 2", "2", OWN, false, false},
        {"--spec 3", "3", OWN, false, false},
        {"--spec 4", "4", OWN, false, false},
        {"--spec 5", "5", OWN, false, false},
        {"--spec 8", "8", OWN, false, false},
        {"--spec auto", "auto", OWN, false, false},
        {"any length, few pages", "8", OWN, true, true},
        {"a drafter that is always right", "8", ORACLE, false, false},
        {"always right, any length, few pages", "8", ORACLE, true, true},
        {"a drafter that is always wrong", "8", WRONG, false, false},
        {"a drafter that knows nothing, any length", "8", RANDOM, true, false},
        {"always right, --spec auto", "auto", ORACLE, false, false},
    };
    const matrix_set *set = NULL;
    bool ok = true;
    for (uint32_t i = 0; ok && i < MATRIX_COUNT(variants); i++) {
        if (matrix_is_small(m) && i < 7 && i % 2 == 0) continue;
        matrix_reseed(m, round, 70 + i);
        if (!matrix_begin(m, "T7", variants[i].name)) continue;
        if (!set) set = long_answers(m, round);
        ok = set && run_variant(m, set, &variants[i], matrix_next(m));
    }
    return ok;
}
