/* needs: spec cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Speculation changes nothing: a small engine that drafts, schedules, verifies and commits as docs/draft.md says gives
 * the tokens, log-probabilities and logits hashes of plain decoding, whatever is drafted and however much of it is
 * verified. */
#include "spec/history.h"
#include "spec/lookup.h"
#include "spec/schedule.h"
#include "spec/verify.h"
#include "support/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define NANO DI_TEST_DATA "/nano"

enum { CROWD = 5, TOKENS = 40, MOST = 8, PROMPT = 200, TOP = 3, EOS = 1 };

typedef enum drafter { NONE, HEAD, RANDOM, WRONG, ORACLE, LOOKUP, DRAFTERS } drafter;
static const char *const names[] = {"none", "head", "random", "wrong", "oracle", "lookup"};

typedef struct output {
    int32_t tokens[TOKENS];
    float logprobs[TOKENS];
    di_sample_top top[TOKENS][TOP];
    uint32_t count;
    uint64_t hash;
    di_finish_reason reason;
} output;

typedef struct sequence {
    di_sampling sampling;
    di_sampler *sampler;
    di_state *state;
    di_lookup *lookup;
    di_history history;
    int32_t ids[PROMPT + TOKENS + 1]; /* prompt and output */
    uint32_t count, prompt;
    uint64_t key;
    const output *plain; /* what the oracle knows */
    output out;
    int32_t drafts[MOST];
    float survivals[MOST];
    bool done;
} sequence;

typedef struct engine {
    di_harness *h;
    di_draft *draft;
    di_costs costs;
    sequence crowd[CROWD];
    drafter drafter;
    uint32_t depth; /* drafts at most */
    uint64_t noise;
    uint64_t drafted, accepted, cycles, masked;
} engine;

static int32_t ids[1024];

static void must(di_status status, const di_error *error) {
    if (status) fail_msg("%s: %s", di_status_name(status), error->message);
}

static uint32_t below(engine *e, uint32_t n) {
    e->noise = e->noise * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(e->noise >> 33) % n;
}

/* ---------------------------------------------------------------- requests */

static const di_sampling neutral = {.top_p = 1,
                                    .max_tokens = -1,
                                    .n = 1,
                                    .logprobs = -1,
                                    .prompt_logprobs = -1,
                                    .repetition_penalty = 1,
                                    .so_args = {.bound_token_id = -1}};
static const int32_t stop_ids[] = {77, 300};
static const di_logit_bias biases[] = {{9, 2.0f}, {200, -3.0f}};

/* Greedy, with noise, truncations, penalties, bans by output index, biases, log-probabilities, hashes. */
static di_sampling sampling_of(uint32_t i) {
    di_sampling s = neutral;
    static const float temperatures[CROWD] = {0, 0.6f, 1.0f, 0, 1.0f};
    s.temperature = temperatures[i];
    s.logits_hash = true;
    s.logprobs = TOP;
    s.ignore_eos = i != 4;
    if (i == 2) s.top_p = 0.9f, s.top_k = 40;
    if (i == 1 || i == 3) s.repetition_penalty = 1.3f, s.presence_penalty = 0.4f, s.frequency_penalty = 0.2f;
    if (i == 3) s.logit_bias = biases, s.logit_bias_count = 2;
    if (i == 4) s.stop_token_ids = stop_ids, s.stop_token_count = 2, s.min_tokens = 30, s.first_n_token_no_eos = 35;
    return s;
}

static void start(engine *e, uint32_t i) {
    static const uint32_t prompts[CROWD] = {40, 17, 129, 64, 3};
    static const int32_t eos[] = {EOS};
    sequence *s = &e->crowd[i];
    di_error error = {0};
    *s = (sequence){.sampling = sampling_of(i), .count = prompts[i], .prompt = prompts[i], .plain = s->plain};
    memcpy(s->ids, ids + 7 * i, s->count * sizeof *ids);
    di_sampler_params params = {.sampling = &s->sampling,
                                .seed = 1000 + i,
                                .prompt = s->ids,
                                .prompt_count = s->count,
                                .eos = eos,
                                .eos_count = 1,
                                .vocabulary = e->h->config.vocab_size,
                                .max_tokens = TOKENS};
    must(di_sampler_new(&params, &s->sampler, &error), &error);
    must(di_lookup_new(PROMPT + TOKENS + 1, &s->lookup, &error), &error);
    s->key = di_sampling_key(1000 + i, 0, di_sampling_prompt_hash(s->ids, s->count));
    s->state = di_harness_state(e->h, PROMPT + TOKENS + MOST + 1);
    di_harness_feed(e->h, s->state, s->ids, s->count - 1, 0, false, NULL); /* its last id is the first anchor */
}

static void finish(sequence *s) {
    di_sample_item item;
    di_sampler_next(s->sampler, 0, s->count, &item);
    s->out.hash = item.hash_seed;
    di_sampler_free(s->sampler);
    di_lookup_free(s->lookup);
    di_state_free(s->state);
}

/* ---------------------------------------------------------------- drafting */

static uint32_t room_of(const engine *e, const sequence *s) {
    uint32_t left = TOKENS - s->out.count - 1;
    return left < e->depth ? left : e->depth;
}

static void draft_with_head(engine *e, const uint32_t *open, uint32_t count) {
    di_draft_entry entries[CROWD];
    uint32_t block = di_draft_length(e->h->model), length = e->depth < block ? e->depth : block;
    int32_t tokens[CROWD * MOST];
    float confidences[CROWD * MOST];
    di_error error = {0};
    if (!length) return;
    for (uint32_t i = 0; i < count; i++) {
        sequence *s = &e->crowd[open[i]];
        entries[i] = (di_draft_entry){.state = di_state_get_view(s->state),
                                      .anchor = s->ids[s->count - 1],
                                      .temperature = s->sampling.temperature,
                                      .key = s->key};
    }
    must(di_model_draft(e->h->model, e->draft, entries, count, length, tokens, confidences, &error), &error);
    for (uint32_t i = 0; i < count; i++) {
        sequence *s = &e->crowd[open[i]];
        memcpy(s->drafts, tokens + i * length, length * sizeof *tokens);
        di_survivals(confidences + i * length, NULL, length, s->survivals);
    }
}

/* Drafts of one sequence by the other drafters; returns how many there are. */
static uint32_t draft_one(engine *e, sequence *s) {
    uint32_t most = room_of(e, s), v = e->h->config.vocab_size, block = di_draft_length(e->h->model);
    if (e->drafter == NONE) return 0;
    if (e->drafter == HEAD) return most < block ? most : block;
    if (e->drafter == LOOKUP) {
        di_lookup_add(s->lookup, s->ids, s->count);
        most = di_lookup_draft(s->lookup, s->ids, s->count, most, s->drafts, NULL);
    }
    for (uint32_t j = 0; j < most && e->drafter != LOOKUP; j++) {
        int32_t right = s->out.count + j < s->plain->count ? s->plain->tokens[s->out.count + j] : 0;
        s->drafts[j] = e->drafter == ORACLE  ? right
                       : e->drafter == WRONG ? (int32_t)((uint32_t)(right + 1) % v)
                       : below(e, 2)         ? right
                                             : (int32_t)below(e, v);
    }
    di_history_survivals(&s->history, most, s->survivals);
    return most;
}

/* ---------------------------------------------------------------- verification */

/* A mask that depends on what was committed, as a grammar's does. */
static void before(void *arg, const di_verify_sequence *v, uint32_t j, di_sample_item *item) {
    static uint64_t mask[64];
    engine *e = arg;
    const sequence *s = v->owner;
    (void)j;
    if (s != &e->crowd[2]) return;
    for (uint32_t i = 0; i < 64; i++) mask[i] = 0xaaaaaaaaaaaaaaaaull << (s->ids[s->count - 1] & 1);
    item->mask = mask;
    e->masked++;
}

static bool after(void *arg, const di_verify_sequence *v, uint32_t j, const di_sample_result *result,
                  const di_sample_top *top) {
    (void)arg;
    sequence *s = v->owner;
    output *out = &s->out;
    assert_int_equal(s->count, (uint32_t)v->position + j);
    assert_in_range(out->count, 0, TOKENS - 1);
    out->tokens[out->count] = result->token_id;
    out->logprobs[out->count] = result->logprob;
    memcpy(out->top[out->count++], top, TOP * sizeof *top);
    s->ids[s->count++] = result->token_id;
    /* A stop string's part: two ids in a row that are multiples of seven end the first request. */
    bool stops = out->count > 1 && result->token_id % 7 == 0 && out->tokens[out->count - 2] % 7 == 0;
    if (s->sampling.temperature == 0 && s->sampling.ignore_eos && stops) {
        s->done = true;
        out->reason = DI_FINISH_STOP;
        return false;
    }
    return true;
}

static void cycle(engine *e, bool random_lengths) {
    di_harness *h = e->h;
    di_error error = {0};
    uint32_t open[CROWD], count = 0, heap[CROWD], index[CROWD], first[CROWD];
    di_offer offers[CROWD];
    di_verify_sequence rows[CROWD];
    int32_t tokens[CROWD][MOST + 1];
    for (uint32_t i = 0; i < CROWD; i++)
        if (!e->crowd[i].done) open[count++] = i;
    if (e->drafter == HEAD) draft_with_head(e, open, count);
    for (uint32_t i = 0; i < count; i++) {
        sequence *s = &e->crowd[open[i]];
        offers[i] = (di_offer){.survivals = s->survivals, .count = draft_one(e, s)};
    }
    di_step_shape shape = {.emitting = count, .base_rows = count, .most_rows = 24};
    di_schedule(offers, count, &shape, &e->costs, NULL, heap);
    di_step_clear(h->step);
    di_step_poison(h->step);
    for (uint32_t i = 0; i < count; i++) {
        sequence *s = &e->crowd[open[i]];
        uint32_t length = random_lengths && offers[i].count ? below(e, offers[i].count + 1) : offers[i].length;
        tokens[i][0] = s->ids[s->count - 1];
        memcpy(tokens[i] + 1, s->drafts, length * sizeof *s->drafts);
        must(di_state_reserve(s->state, s->count + length, &error), &error);
        di_step_entry entry = {.state = *di_state_get_view(s->state),
                               .tokens = tokens[i],
                               .count = length + 1,
                               .replay_from = -1,
                               .taps = true};
        must(di_step_add(h->step, &entry, &index[i], &first[i], &error), &error);
        rows[i] = (di_verify_sequence){.sampler = s->sampler,
                                       .logits_row = first[i],
                                       .position = s->count,
                                       .drafts = s->drafts,
                                       .length = length,
                                       .owner = s};
    }
    di_status status;
    must(di_model_submit(h->model, h->step, &error), &error);
    assert_true(di_model_poll(h->model, h->step, true, &status, &error));
    must(status, &error);
    di_sample_item items[CROWD];
    di_sample_result results[CROWD];
    di_sample_top top[CROWD * TOP];
    di_verify_run run = {.backend = h->backend,
                         .logits = di_step_logits(h->step),
                         .vocabulary = h->config.vocab_size,
                         .items = items,
                         .results = results,
                         .open = heap,
                         .top = top,
                         .top_stride = TOP,
                         .arg = e,
                         .before = before,
                         .after = after};
    di_verify(&run, rows, count);
    for (uint32_t i = 0; i < count; i++) {
        sequence *s = &e->crowd[open[i]];
        assert_int_equal(rows[i].fault, DI_VERIFY_OK);
        assert_in_range(rows[i].chosen, 1, rows[i].length + 1);
        assert_in_range(rows[i].accepted, rows[i].chosen - 1, rows[i].length);
        di_model_commit(h->model, h->step, index[i], rows[i].chosen, di_state_get_view(s->state));
        assert_int_equal(di_state_length(s->state), s->count - 1);
        di_history_add(&s->history, rows[i].length, rows[i].accepted, 0);
        e->drafted += rows[i].length;
        e->accepted += rows[i].accepted;
        if (rows[i].reason != DI_FINISH_NONE) {
            s->done = true;
            s->out.reason = rows[i].reason;
        }
    }
    e->cycles++;
}

static void run_crowd(engine *e, bool random_lengths) {
    bool open = true;
    e->drafted = e->accepted = e->cycles = 0;
    for (uint32_t i = 0; i < CROWD; i++) start(e, i);
    while (open) {
        cycle(e, random_lengths);
        open = false;
        for (uint32_t i = 0; i < CROWD; i++) open |= !e->crowd[i].done;
    }
    for (uint32_t i = 0; i < CROWD; i++) finish(&e->crowd[i]);
}

static void compare(const engine *e, const output *plain, uint32_t depth) {
    for (uint32_t i = 0; i < CROWD; i++) {
        const output *got = &e->crowd[i].out;
        if (got->count != plain[i].count || memcmp(got->tokens, plain[i].tokens, got->count * sizeof(int32_t)) != 0)
            fail_msg("%s, depth %u: other tokens for request %u", names[e->drafter], depth, i);
        assert_memory_equal(got->logprobs, plain[i].logprobs, got->count * sizeof(float));
        assert_memory_equal(got->top, plain[i].top, got->count * sizeof got->top[0]);
        assert_true(got->hash == plain[i].hash && got->hash != 0);
        assert_int_equal(got->reason, plain[i].reason);
    }
}

static void speculation_changes_nothing(void **state) {
    (void)state;
    static engine e;
    static output plain[CROWD];
    di_error error = {0};
    e = (engine){.noise = 1};
    e.h = di_harness_open(
        NANO,
        &(di_harness_options){.kernels = di_harness_best_kernels(), .threads = 2, .max_rows = 256, .draft = true});
    must(di_draft_new(e.h->model, CROWD, &e.draft, &error), &error);
    run_crowd(&e, false);
    for (uint32_t i = 0; i < CROWD; i++) {
        plain[i] = e.crowd[i].out;
        e.crowd[i].plain = &plain[i];
        assert_true(plain[i].count >= (i == 4 ? 31 : 2));
    }
    assert_true(e.masked > 0);
    uint64_t tokens = 0;
    for (e.drafter = HEAD; e.drafter < DRAFTERS; e.drafter++) {
        static const uint32_t depths[] = {0, 1, 5, MOST};
        for (size_t d = 0; d < sizeof depths / sizeof *depths; d++) {
            e.depth = depths[d];
            for (int random_lengths = 0; random_lengths < (e.depth > 1 ? 2 : 1); random_lengths++) {
                run_crowd(&e, random_lengths);
                compare(&e, plain, e.depth);
                for (uint32_t i = 0; i < CROWD; i++) tokens += e.crowd[i].out.count;
                assert_true(e.drafted > 0 || e.depth == 0 || random_lengths);
                if (e.depth == 0) assert_int_equal(e.drafted, 0);
                if (e.drafter == WRONG) assert_int_equal(e.accepted, 0);
                /* What it drafts past the end of a request is not chosen any more. */
                if (e.drafter == ORACLE) assert_true(e.accepted + CROWD * MOST >= e.drafted);
                if (e.drafter == ORACLE && e.depth == MOST && !random_lengths) assert_true(e.cycles < TOKENS / 2);
                if (e.depth == 5 && !random_lengths)
                    print_message("%-6s drafted %llu, accepted %llu, cycles %llu\n", names[e.drafter],
                                  (unsigned long long)e.drafted, (unsigned long long)e.accepted,
                                  (unsigned long long)e.cycles);
            }
        }
    }
    print_message("%llu tokens compared\n", (unsigned long long)tokens);
    di_draft_free(e.draft);
    di_harness_close(e.h);
}

/* ---------------------------------------------------------------- faults */

static void faults_end_one_sequence_only(void **state) {
    (void)state;
    di_harness *h = di_harness_open(NANO, &(di_harness_options){.max_rows = 16});
    uint32_t v = h->config.vocab_size;
    di_error error = {0};
    di_block *block;
    must(h->backend->ops->allocate(h->backend, 6ull * v * sizeof(float), &block, &error), &error);
    di_buffer logits = {block, 0};
    float *rows = di_cpu_at(logits);
    for (uint32_t i = 0; i < 6 * v; i++) rows[i] = i % v == 10 + i / v ? 5.0f : 0.0f; /* row r chooses 10 + r */
    memset(&rows[1 * v + 3], 0xff, sizeof(float));                                    /* NaN in row 1 */
    di_sampler *samplers[3];
    for (int i = 0; i < 3; i++)
        must(di_sampler_new(&(di_sampler_params){.sampling = &neutral, .vocabulary = v, .max_tokens = 9}, &samplers[i],
                            &error),
             &error);
    static const int32_t first[] = {10}, second[] = {12, 13};
    di_verify_sequence sequences[] = {
        {.sampler = samplers[0], .logits_row = 0, .position = 1, .drafts = first, .length = 1},
        {.sampler = samplers[1], .logits_row = 2, .position = 1, .drafts = second, .length = 2},
        {.sampler = samplers[2], .logits_row = 5, .position = 1},
    };
    di_sample_item items[3];
    di_sample_result results[3];
    uint32_t open[3];
    di_verify_run run = {
        .backend = h->backend, .logits = logits, .vocabulary = v, .items = items, .results = results, .open = open};
    di_verify(&run, sequences, 3);
    assert_int_equal(sequences[0].fault, DI_VERIFY_NUMERIC);
    assert_int_equal(sequences[0].chosen, 1);
    assert_int_equal(sequences[0].accepted, 1);
    assert_int_equal(sequences[1].fault, DI_VERIFY_OK);
    assert_int_equal(sequences[1].chosen, 3);
    assert_int_equal(sequences[1].accepted, 2);
    assert_int_equal(sequences[2].chosen, 1);
    assert_int_equal(di_sampler_produced(samplers[0]), 1);
    assert_int_equal(di_sampler_produced(samplers[1]), 3);
    di_verify(&run, sequences, 0);
    for (int i = 0; i < 3; i++) di_sampler_free(samplers[i]);
    h->backend->ops->release(h->backend, block);
    di_harness_close(h);
}

int main(void) {
    for (int i = 0; i < 1024; i++) ids[i] = 3 + (i % 23 * 37 + i % 23 * (i % 23) % 11) % 600; /* with repetitions */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speculation_changes_nothing),
        cmocka_unit_test(faults_end_one_sequence_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
