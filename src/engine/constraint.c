/* constraint.c - see constraint.h. */
#include "engine/constraint.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

struct di_bound_grammar {
    di_bound_grammar *next; /* in the list, the one used last first */
    char key[33];
    di_grammar *grammar;
    di_matcher *matcher; /* engine thread; NULL until it is used */
    uint32_t users;      /* requests; nobody frees it while there are some */
    di_constraint_state *samples;
    const char *too_heavy; /* the mask at `failed_at` takes more than this limit; NULL: none did */
    di_grammar_state failed_at;
};

struct di_constraints {
    const di_tokenizer *tokenizer;
    di_metrics *metrics;
    uint32_t rows;
    const int32_t *eos; /* [eos_count] */
    size_t eos_count;
    di_grammar_limits limits;
    uint32_t kept;

    pthread_mutex_t matching; /* matchers and their samples */
    pthread_mutex_t mutex;    /* for what follows */
    di_vocabulary *vocabulary;
    uint64_t *unended; /* [words] every id but EOS */
    di_bound_grammar *list;
    uint32_t count;
    di_constraint_counters counters;
};

/* ---------------------------------------------------------------------------------------------- opening */

di_status di_constraints_new(const di_config *config, const di_tokenizer *tokenizer, uint32_t vocabulary,
                             const int32_t *eos, size_t eos_count, di_metrics *metrics, di_constraints **constraints,
                             di_error *error) {
    *constraints = NULL;
    di_constraints *c = calloc(1, sizeof *c);
    if (!c) return di_fail(error, DI_ERR_MEMORY, NULL, "out of memory for grammars");
    int failed = pthread_mutex_init(&c->mutex, NULL);
    if (!failed && (failed = pthread_mutex_init(&c->matching, NULL)) != 0) pthread_mutex_destroy(&c->mutex);
    if (failed) {
        free(c);
        return di_fail_errno(error, DI_ERR_MEMORY, NULL, failed, "cannot make a mutex");
    }
    c->tokenizer = tokenizer;
    c->metrics = metrics;
    c->rows = vocabulary;
    c->eos = eos;
    c->eos_count = eos_count;
    c->kept = (uint32_t)di_config_int(config, DI_OPT_GRAMMAR_CACHE);
    di_grammar_limits_configured(config, &c->limits);
    *constraints = c;
    return DI_OK;
}

static void free_constraint(di_bound_grammar *grammar) {
    di_matcher_free(grammar->matcher);
    di_grammar_free(grammar->grammar);
    free(grammar);
}

void di_constraints_free(di_constraints *c) {
    if (!c) return;
    for (di_bound_grammar *grammar = c->list, *next; grammar; grammar = next) {
        next = grammar->next;
        free_constraint(grammar);
    }
    di_vocabulary_free(c->vocabulary);
    free(c->unended);
    pthread_mutex_destroy(&c->mutex);
    pthread_mutex_destroy(&c->matching);
    free(c);
}

/* Mutex held. The trie of a large vocabulary takes a while; only who asks for a grammar waits for it. */
static di_status need_vocabulary(di_constraints *c, di_error *error) {
    if (c->vocabulary) return DI_OK;
    di_vocabulary *vocabulary = NULL;
    di_status status = di_vocabulary_of_tokenizer(c->tokenizer, c->rows, c->eos, c->eos_count, &vocabulary, error);
    if (status != DI_OK) return status;
    size_t words = di_vocabulary_words(vocabulary);
    c->unended = malloc(words * sizeof *c->unended);
    if (!c->unended) {
        di_vocabulary_free(vocabulary);
        return di_fail(error, DI_ERR_MEMORY, "so_args", "out of memory for the vocabulary of grammars");
    }
    memset(c->unended, 0xff, words * sizeof *c->unended);
    for (size_t i = 0; i < c->eos_count; i++)
        if ((uint32_t)c->eos[i] < c->rows) c->unended[c->eos[i] / 64] &= ~(1ull << (c->eos[i] % 64));
    c->vocabulary = vocabulary;
    return DI_OK;
}

/* ---------------------------------------------------------------------------------------------- compiling */

static const struct {
    const char *name;
    di_grammar_kind kind;
    bool has_text;
} kinds[] = {{"json", DI_GRAMMAR_JSON_SCHEMA, true}, {"json_object", DI_GRAMMAR_JSON_OBJECT, false},
             {"regex", DI_GRAMMAR_REGEX, true},      {"ebnf", DI_GRAMMAR_GBNF, true},
             {"gbnf", DI_GRAMMAR_GBNF, true},        {"lark", DI_GRAMMAR_LARK, true},
             {"w3c", DI_GRAMMAR_W3C, true},          {"iso", DI_GRAMMAR_ISO, true},
             {"calls", DI_GRAMMAR_CALLS, true}};

static di_status read_arguments(const di_constraints *c, const di_so_args *args, di_grammar_source *source,
                                di_error *error) {
    size_t kind = 0;
    while (kind < sizeof kinds / sizeof *kinds && strcmp(args->schema_type, kinds[kind].name) != 0) kind++;
    if (kind == sizeof kinds / sizeof *kinds)
        return di_fail(
            error, DI_ERR_INVALID_ARGUMENT, "so_args.schema_type",
            "so_args.schema_type is '%.40s'; it must be json, json_object, regex, ebnf, gbnf, lark, w3c or iso",
            args->schema_type);
    if (kinds[kind].has_text && !args->schema)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args.schema", "so_args.schema is missing");
    if (!c->tokenizer)
        return di_fail(error, DI_ERR_UNSUPPORTED, "so_args",
                       "the model has no tokenizer, so there is no text that a grammar could bind");
    if (args->bound_token_id >= 0 && !args->trigger_token_count)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args.bound_token_id",
                       "so_args.bound_token_id forces the ids of trigger_token_ids, and there are none");
    if (args->bound_token_id < -1 || (args->bound_token_id >= 0 && (uint32_t)args->bound_token_id >= c->rows))
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args.bound_token_id",
                       "so_args.bound_token_id is %d; ids of this model are 0 .. %u (-1 = none)", args->bound_token_id,
                       c->rows - 1);
    *source = (di_grammar_source){.kind = kinds[kind].kind,
                                  .text = args->schema ? args->schema : "",
                                  .length = args->schema ? strlen(args->schema) : 0};
    return DI_OK;
}

/* Mutex held. Puts the one with this key in front and counts a user; NULL if there is none. */
static di_bound_grammar *find(di_constraints *c, const char *key) {
    for (di_bound_grammar **link = &c->list, *grammar; (grammar = *link); link = &grammar->next) {
        if (strcmp(grammar->key, key) != 0) continue;
        *link = grammar->next;
        grammar->next = c->list;
        c->list = grammar;
        grammar->users++;
        return grammar;
    }
    return NULL;
}

/* What a grammar that nobody uses may keep of what it computed. */
enum { IDLE_BYTES = 2 << 20 };

/* Mutex held. Frees those without users beyond --grammar-cache, the one used longest ago first. */
static void trim(di_constraints *c) {
    while (c->count > c->kept) {
        di_bound_grammar **last = NULL;
        for (di_bound_grammar **link = &c->list; *link; link = &(*link)->next)
            if (!(*link)->users) last = link;
        if (!last) return;
        di_bound_grammar *grammar = *last;
        *last = grammar->next;
        free_constraint(grammar);
        c->count--;
    }
}

static di_status compile(const di_constraints *c, const di_grammar_source *source, const char *key,
                         di_bound_grammar **out, di_error *error) {
    di_bound_grammar *grammar = calloc(1, sizeof *grammar);
    if (!grammar) return di_fail(error, DI_ERR_MEMORY, "so_args", "out of memory for a grammar");
    memcpy(grammar->key, key, sizeof grammar->key);
    di_grammar_fault fault = {0};
    di_status status = di_grammar_compile(source, &c->limits, &grammar->grammar, &fault, error);
    if (status == DI_OK) {
        *out = grammar;
        return DI_OK;
    }
    free(grammar);
    if (fault.reason == DI_REASON_NONE) return status;
    /* Whatever the reason, it is the client's text that has to change: never a status that asks to try again. */
    return di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args.schema", "so_args.schema is refused (%s) at '%s': %s",
                   di_grammar_reason_name(fault.reason), fault.pointer, fault.message);
}

di_status di_constraint_open(di_constraints *c, const di_so_args *args, di_bound_grammar **out, di_error *error) {
    *out = NULL;
    if (!args->schema_type) return DI_OK;
    di_grammar_source source;
    di_status status = read_arguments(c, args, &source, error);
    if (status != DI_OK) return status;
    char key[33];
    di_grammar_key(&source, key);
    pthread_mutex_lock(&c->mutex);
    di_bound_grammar *grammar = find(c, key);
    if (grammar)
        c->counters.reused++;
    else
        status = need_vocabulary(c, error);
    pthread_mutex_unlock(&c->mutex);
    if (grammar || status != DI_OK) {
        *out = grammar;
        return status;
    }
    int64_t start = di_now_ns();
    status = compile(c, &source, key, &grammar, error);
    di_observe(c->metrics, DI_HISTOGRAM_GRAMMAR_TIME, (double)(di_now_ns() - start) / 1e9);
    pthread_mutex_lock(&c->mutex);
    if (status == DI_OK) {
        di_bound_grammar *other = find(c, key); /* somebody was quicker */
        if (other) {
            free_constraint(grammar);
            grammar = other;
        } else {
            grammar->users = 1;
            grammar->next = c->list;
            c->list = grammar;
            c->count++;
        }
        c->counters.compiled++;
        *out = grammar;
        trim(c);
    } else {
        c->counters.refused++;
    }
    pthread_mutex_unlock(&c->mutex);
    return status;
}

void di_constraint_release(di_constraints *c, di_bound_grammar *grammar) {
    if (!grammar) return;
    pthread_mutex_lock(&c->mutex);
    if (!--grammar->users && grammar->matcher && di_matcher_memory(grammar->matcher) > IDLE_BYTES) {
        di_matcher_free(grammar->matcher);
        grammar->matcher = NULL;
        grammar->too_heavy = NULL;
    }
    trim(c);
    pthread_mutex_unlock(&c->mutex);
}

/* ---------------------------------------------------------------------------------------------- a sample */

static di_status start(di_constraints *c, di_bound_grammar *grammar, const di_so_args *args, di_constraint_state *state,
                       di_error *error) {
    if (!grammar->matcher) {
        di_status status = di_matcher_new(grammar->grammar, c->vocabulary, &grammar->matcher, error);
        if (status != DI_OK) return status;
    }
    state->mask = malloc(di_vocabulary_words(c->vocabulary) * sizeof *state->mask);
    if (!state->mask) return di_fail(error, DI_ERR_MEMORY, "so_args", "out of memory for a mask");
    state->grammar = grammar;
    state->args = args;
    state->phase = args->trigger_token_count ? DI_PHASE_FREE : DI_PHASE_BOUND;
    state->at = di_matcher_start(grammar->matcher);
    state->next = grammar->samples;
    state->link = &grammar->samples;
    if (state->next) state->next->link = &state->next;
    grammar->samples = state;
    return DI_OK;
}

di_status di_constraint_start(di_constraints *c, di_bound_grammar *grammar, const di_so_args *args,
                              di_constraint_state *state, di_error *error) {
    *state = (di_constraint_state){0};
    if (!grammar) return DI_OK;
    pthread_mutex_lock(&c->matching);
    di_status status = start(c, grammar, args, state, error);
    pthread_mutex_unlock(&c->matching);
    return status;
}

void di_constraint_leave(di_constraints *c, di_constraint_state *state) {
    if (!state->grammar) return;
    pthread_mutex_lock(&c->matching);
    *state->link = state->next;
    if (state->next) state->next->link = state->link;
    *state = (di_constraint_state){.mask = state->mask};
    pthread_mutex_unlock(&c->matching);
}

void di_constraint_end(di_constraints *c, di_constraint_state *state) {
    di_constraint_leave(c, state);
    free(state->mask);
    *state = (di_constraint_state){0};
}

void di_constraint_next(di_constraints *c, const di_constraint_state *state, di_sample_item *item) {
    if (!state->mask) return;
    pthread_mutex_lock(&c->matching);
    if (state->phase == DI_PHASE_BOUND)
        item->mask = state->mask;
    else if (state->phase == DI_PHASE_FREE && state->args->trigger_required)
        item->mask = c->unended;
    else if (state->phase == DI_PHASE_FORCED && item->forced < 0)
        item->forced = state->args->trigger_token_ids[state->forced];
    pthread_mutex_unlock(&c->matching);
}

static const char too_much_memory[] =
    "the grammar of so_args needs more memory here than is allowed (--limit-grammar-memory)";

/* Which limit a matcher met, for the client. */
static const char *limit_met(const di_error *error) {
    if (strcmp(error->param, "limit-mask-work") == 0)
        return "the grammar of so_args takes more steps for one token than are allowed (--limit-mask-work)";
    if (strcmp(error->param, "limit-grammar-memory") == 0) return too_much_memory;
    return "the grammar of so_args has more states here than a matcher holds";
}

/* It met the limit of memory, not that of work. */
static bool is_full(const di_constraints *c, const di_bound_grammar *grammar) {
    return di_matcher_memory(grammar->matcher) > c->limits.memory / 4 * 3;
}

/* Makes room: the matcher keeps what the samples of this grammar stand at. A sample whose text is too heavy for that
 * fails, whoever asked for room. */
static di_status forget(di_constraints *c, di_bound_grammar *grammar, di_error *error) {
    size_t count = 0, i = 0;
    for (const di_constraint_state *s = grammar->samples; s; s = s->next) count += s->phase == DI_PHASE_BOUND;
    di_grammar_state *states = malloc((count + 1) * sizeof *states);
    if (!states) return di_fail(error, DI_ERR_MEMORY, "so_args", "out of memory for the states of a grammar");
    for (const di_constraint_state *s = grammar->samples; s; s = s->next)
        if (s->phase == DI_PHASE_BOUND) states[i++] = s->at;
    di_status status = di_matcher_compact(grammar->matcher, states, count, error);
    i = 0;
    for (di_constraint_state *s = grammar->samples; s && status == DI_OK; s = s->next) {
        s->at = s->phase == DI_PHASE_BOUND ? states[i++] : di_matcher_start(grammar->matcher);
        if (s->at != DI_GRAMMAR_REJECT) continue;
        s->failed = DI_ERR_LIMIT;
        s->too_heavy = too_much_memory;
    }
    free(states);
    if (status != DI_OK) return status;
    grammar->too_heavy = NULL;
    pthread_mutex_lock(&c->mutex);
    c->counters.resets++;
    pthread_mutex_unlock(&c->mutex);
    return DI_OK;
}

/* Its text was too heavy when room was made. */
static bool given_up(const di_constraint_state *state) {
    return state->at == DI_GRAMMAR_REJECT;
}

static di_status make_mask(di_constraints *c, di_constraint_state *state) {
    di_bound_grammar *grammar = state->grammar;
    di_error error = {0};
    if (given_up(state)) return DI_ERR_LIMIT;
    bool known = grammar->too_heavy && grammar->failed_at == state->at;
    di_status status = known ? DI_ERR_LIMIT : di_matcher_mask(grammar->matcher, state->at, state->mask, &error);
    if (status == DI_ERR_LIMIT && is_full(c, grammar) && (status = forget(c, grammar, &error)) == DI_OK) {
        if (given_up(state)) return DI_ERR_LIMIT;
        known = false;
        status = di_matcher_mask(grammar->matcher, state->at, state->mask, &error);
    }
    if (status == DI_ERR_LIMIT) {
        if (!known) grammar->too_heavy = limit_met(&error);
        grammar->failed_at = state->at;
        state->too_heavy = grammar->too_heavy;
    }
    return status;
}

static void fill(di_constraints *c, di_constraint_state *state) {
    if (state->phase != DI_PHASE_BOUND) return;
    di_status status = make_mask(c, state);
    if (status == DI_OK) return;
    state->failed = status;
    memset(state->mask, 0, di_vocabulary_words(c->vocabulary) * sizeof *state->mask);
}

void di_constraint_fill(di_constraints *c, di_constraint_state *state) {
    if (!state->mask) return;
    int64_t start = di_now_ns();
    pthread_mutex_lock(&c->matching);
    fill(c, state);
    pthread_mutex_unlock(&c->matching);
    di_observe(c->metrics, DI_HISTOGRAM_MASK_TIME, (double)(di_now_ns() - start) / 1e9);
}

/* The output ends with the trigger. */
static bool triggered(const di_so_args *args, const int32_t *output, size_t count) {
    size_t length = args->trigger_token_count;
    return count >= length && memcmp(output + count - length, args->trigger_token_ids, length * sizeof *output) == 0;
}

static di_status advance(di_constraints *c, di_constraint_state *state, int32_t token, di_error *error) {
    di_grammar_state next = DI_GRAMMAR_REJECT;
    di_bound_grammar *grammar = state->grammar;
    di_error met = {0};
    if (given_up(state)) return di_fail(error, DI_ERR_LIMIT, "so_args", "%s", too_much_memory);
    di_status status = di_matcher_advance(grammar->matcher, state->at, (uint32_t)token, &next, &met);
    if (status == DI_ERR_LIMIT && is_full(c, grammar) && (status = forget(c, grammar, &met)) == DI_OK) {
        if (given_up(state)) return di_fail(error, DI_ERR_LIMIT, "so_args", "%s", too_much_memory);
        status = di_matcher_advance(grammar->matcher, state->at, (uint32_t)token, &next, &met);
    }
    if (status == DI_ERR_LIMIT) return di_fail(error, status, "so_args", "%s", limit_met(&met));
    if (status != DI_OK) return di_fail(error, status, "so_args", "%s", met.message);
    if (next == DI_GRAMMAR_REJECT)
        return di_fail(error, DI_ERR_INVALID_ARGUMENT, "golden_token_ids",
                       "the forced id %d does not follow the grammar of so_args", token);
    state->at = next;
    return DI_OK;
}

static di_status commit(di_constraints *c, di_constraint_state *state, const int32_t *output, size_t count,
                        di_error *error) {
    const di_so_args *args = state->args;
    int32_t token = output[count - 1];
    di_status status = DI_OK;
    switch (state->phase) {
    case DI_PHASE_NONE:
        break;
    case DI_PHASE_FORCED:
        if (token != args->trigger_token_ids[state->forced])
            return di_fail(error, DI_ERR_INVALID_ARGUMENT, "golden_token_ids",
                           "the forced id %d is not the next one of so_args.trigger_token_ids", token);
        if (++state->forced == args->trigger_token_count) state->phase = DI_PHASE_BOUND;
        break;
    case DI_PHASE_FREE:
        if (triggered(args, output, count))
            state->phase = DI_PHASE_BOUND;
        else if (token == args->bound_token_id)
            state->phase = DI_PHASE_FORCED;
        break;
    case DI_PHASE_BOUND:
        status = advance(c, state, token, error);
        break;
    }
    return status;
}

di_status di_constraint_commit(di_constraints *c, di_constraint_state *state, const int32_t *output, size_t count,
                               di_error *error) {
    if (!state->mask) return DI_OK;
    pthread_mutex_lock(&c->matching);
    di_status status = commit(c, state, output, count, error);
    pthread_mutex_unlock(&c->matching);
    return status;
}

bool di_constraint_explain(const di_constraint_state *state, di_error *error) {
    if (state->failed != DI_OK) {
        di_fail(error, state->failed, "so_args", "%s",
                state->failed == DI_ERR_LIMIT ? state->too_heavy : "out of memory for the grammar of so_args");
        return true;
    }
    if (state->phase != DI_PHASE_BOUND) return false;
    di_fail(error, DI_ERR_INVALID_ARGUMENT, "so_args",
            "no token follows the grammar of so_args here: min_tokens, first_n_token_no_eos or logit_bias exclude "
            "those that it allows, or the vocabulary cannot spell them");
    return true;
}

void di_constraints_get_counters(di_constraints *c, di_constraint_counters *counters) {
    pthread_mutex_lock(&c->mutex);
    c->counters.grammars = c->count;
    *counters = c->counters;
    pthread_mutex_unlock(&c->mutex);
}
