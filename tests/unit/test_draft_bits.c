/* needs: cache sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Properties of the draft head: the same bits whatever the company, the chunks, the threads and the instruction set;
 * nothing of it reaches the target; missing state costs drafts only. */
#include "backend/sample.h"
#include "support/harness.h"
#include "support/kernel_tables.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <xxhash.h>

#define NANO DI_TEST_DATA "/nano"

enum { BLOCK = 5, SEQUENCES = 6, WINDOW = 16, TOKENS = 400 };

static const uint32_t lengths[SEQUENCES] = {1, 2, 17, 40, 129, 64};
static int32_t ids[1024];

typedef struct drafts {
    int32_t tokens[SEQUENCES][BLOCK];
    float confidences[SEQUENCES][BLOCK];
} drafts;

static di_harness *open_with(const di_cpu_kernels *kernels, int threads, bool draft) {
    return di_harness_open(
        NANO, &(di_harness_options){.kernels = kernels, .threads = threads, .max_rows = 256, .draft = draft});
}

static di_draft *new_draft(di_harness *h, uint32_t blocks) {
    di_draft *draft = NULL;
    di_error error = {0};
    di_must(di_draft_new(h->model, blocks, &draft, &error), &error);
    di_draft_poison(draft);
    return draft;
}

static float temperature_of(uint32_t i) {
    return i % 2 ? 1.0f : 0.0f;
}

static di_draft_entry entry_of(di_state *state, uint32_t i) {
    return (di_draft_entry){
        .state = di_state_get_view(state), .anchor = ids[500 + i], .temperature = temperature_of(i), .key = 77 + i};
}

/* Drafts of the sequences order[0 .. count), put where each sequence's belong. */
static void draft_some(di_harness *h, di_draft *draft, di_state **states, const uint32_t *order, uint32_t count,
                       uint32_t length, drafts *out) {
    di_draft_entry entries[SEQUENCES] = {{0}};
    int32_t tokens[SEQUENCES * BLOCK];
    float confidences[SEQUENCES * BLOCK];
    di_error error = {0};
    for (uint32_t i = 0; i < count; i++) entries[i] = entry_of(states[order[i]], order[i]);
    di_must(di_model_draft(h->model, draft, entries, count, length, tokens, confidences, &error), &error);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(out->tokens[order[i]], tokens + i * length, length * sizeof *tokens);
        memcpy(out->confidences[order[i]], confidences + i * length, length * sizeof *confidences);
    }
}

static void feed_all(di_harness *h, di_state **states, size_t chunk) {
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        states[i] = di_harness_state(h, TOKENS);
        di_harness_feed(h, states[i], ids + 3 * i, lengths[i], chunk, false, NULL);
    }
}

static void free_all(di_state **states) {
    for (uint32_t i = 0; i < SEQUENCES; i++) di_state_free(states[i]);
}

/* All sequences at lengths 5 and 3. */
static void draft_all(di_harness *h, size_t chunk, drafts out[2]) {
    static const uint32_t straight[SEQUENCES] = {0, 1, 2, 3, 4, 5};
    di_state *states[SEQUENCES];
    di_draft *draft = new_draft(h, SEQUENCES);
    feed_all(h, states, chunk);
    draft_some(h, draft, states, straight, SEQUENCES, 5, &out[0]);
    draft_some(h, draft, states, straight, SEQUENCES, 3, &out[1]);
    di_draft_free(draft);
    free_all(states);
}

/* ---------------------------------------------------------------- the same bits */

static void company_and_chunks_change_nothing(void **state) {
    (void)state;
    static const uint32_t orders[][SEQUENCES] = {{0, 1, 2, 3, 4, 5}, {5, 4, 3, 2, 1, 0}, {3, 0, 5, 1, 4, 2}};
    static const size_t chunks[] = {0, 1, 7, 64};
    di_harness *h = open_with(di_harness_best_kernels(), 2, true);
    di_draft *draft = new_draft(h, SEQUENCES);
    for (uint32_t length = 1; length <= BLOCK; length += 2) {
        drafts alone;
        memset(&alone, 0, sizeof alone);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            di_state *states[SEQUENCES];
            feed_all(h, states, chunks[c]);
            for (uint32_t i = 0; c == 0 && i < SEQUENCES; i++) draft_some(h, draft, states, &i, 1, length, &alone);
            for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
                drafts together;
                memset(&together, 0, sizeof together);
                draft_some(h, draft, states, orders[o], SEQUENCES, length, &together);
                assert_memory_equal(&alone, &together, sizeof alone);
            }
            free_all(states);
        }
    }
    di_draft_free(draft);
    di_harness_close(h);
}

static void threads_and_instructions_change_nothing(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 5};
    drafts first[2], other[2];
    memset(first, 0, sizeof first);
    memset(other, 0, sizeof other);
    name_skipped_tables();
    FOR_EACH_TABLE(kernels) {
        for (size_t t = 0; t < 3; t++) {
            bool is_first = kernels == &di_cpu_scalar && t == 0;
            di_harness *h = open_with(kernels, threads[t], true);
            draft_all(h, 0, is_first ? first : other);
            if (!is_first) assert_memory_equal(first, other, sizeof first);
            di_harness_close(h);
        }
    }
}

static void a_shorter_block_is_another_one(void **state) {
    (void)state;
    di_harness *h = open_with(di_harness_best_kernels(), 1, true);
    drafts blocks[2];
    memset(blocks, 0, sizeof blocks);
    draft_all(h, 0, blocks);
    bool differ = false;
    for (uint32_t i = 0; i < SEQUENCES; i++)
        differ |= memcmp(blocks[0].confidences[i], blocks[1].confidences[i], 3 * sizeof(float)) != 0;
    assert_true(differ);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- rows, commits, missing state */

static void run_rows(di_harness *h, di_state *s, const int32_t *tokens, uint32_t count, uint32_t commit, bool taps) {
    di_error error = {0};
    uint32_t index, first;
    di_must(di_state_reserve(s, (uint32_t)di_state_length(s) + count, &error), &error);
    di_step_entry entry = {.state = *di_state_get_view(s),
                           .tokens = tokens,
                           .count = count,
                           .logits_from = count - 1,
                           .replay_from = -1,
                           .taps = taps};
    di_step_clear(h->step);
    di_step_poison(h->step);
    di_must(di_step_add(h->step, &entry, &index, &first, &error), &error);
    di_harness_run_step(h);
    di_model_commit(h->model, h->step, index, commit, di_state_get_view(s));
}

static drafts one_block(di_harness *h, di_state *s) {
    drafts out;
    memset(&out, 0, sizeof out);
    di_draft *draft = new_draft(h, 1);
    draft_some(h, draft, &s, &(uint32_t){0}, 1, BLOCK, &out);
    di_draft_free(draft);
    return out;
}

static bool same(const drafts *a, const drafts *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

/* Verification rows of which some are rejected leave what plain rows leave, over ring borders. */
static void rejected_rows_never_happened(void **state) {
    (void)state;
    di_harness *h = open_with(di_harness_best_kernels(), 2, true);
    di_state *plain = di_harness_state(h, TOKENS), *spec = di_harness_state(h, TOKENS);
    di_harness_feed(h, plain, ids, 11, 0, false, NULL);
    di_harness_feed(h, spec, ids, 11, 0, false, NULL);
    for (uint32_t at = 11, round = 0; at < 120; round++) {
        uint32_t commit = 1 + round * 7 % 6;
        int32_t rows[6];
        for (uint32_t i = 0; i < 6; i++) rows[i] = i < commit ? ids[at + i] : 3 + (int32_t)((at * 31 + i) % 600);
        run_rows(h, spec, rows, 6, commit, true);
        for (uint32_t i = 0; i < commit; i++) run_rows(h, plain, ids + at + i, 1, 1, true);
        at += commit;
        assert_int_equal(di_harness_state_hash(plain), di_harness_state_hash(spec));
        drafts a = one_block(h, plain), b = one_block(h, spec);
        assert_true(same(&a, &b));
        assert_int_equal(di_harness_state_hash(plain), di_harness_state_hash(spec)); /* drafting writes nothing */
    }
    di_state_free(plain);
    di_state_free(spec);
    di_harness_close(h);
}

static void missing_keys_only_cost_drafts(void **state) {
    (void)state;
    di_harness *h = open_with(di_harness_best_kernels(), 1, true);
    di_state *whole = di_harness_state(h, TOKENS), *holes = di_harness_state(h, TOKENS);
    di_harness_feed(h, whole, ids, 40, 0, false, NULL);
    run_rows(h, holes, ids, 20, 20, true);
    run_rows(h, holes, ids + 20, 20, 20, false); /* overwrites every slot: nothing stale may be seen */
    drafts a = one_block(h, whole), b = one_block(h, holes);
    assert_false(same(&a, &b));
    for (uint32_t j = 0; j < BLOCK; j++) assert_in_range(b.tokens[0][j], 0, h->config.vocab_size - 1);
    di_state *empty = di_harness_state(h, TOKENS);
    run_rows(h, empty, ids, 40, 40, false);
    drafts c = one_block(h, empty);
    assert_true(same(&b, &c)); /* all missing is all missing */
    run_rows(h, whole, ids + 40, WINDOW - 1, WINDOW - 1, true);
    run_rows(h, holes, ids + 40, WINDOW - 1, WINDOW - 1, true);
    assert_int_not_equal(di_harness_state_hash(whole), di_harness_state_hash(holes));
    run_rows(h, whole, ids + 60, 1, 1, true);
    run_rows(h, holes, ids + 60, 1, 1, true);
    assert_int_equal(di_harness_state_hash(whole), di_harness_state_hash(holes));
    a = one_block(h, whole), b = one_block(h, holes);
    assert_true(same(&a, &b));
    di_state_free(whole);
    di_state_free(holes);
    di_state_free(empty);
    di_harness_close(h);
}

/* ---------------------------------------------------------------- with and without */

static void serialise(di_state *s, di_text *out) {
    di_error error = {0};
    di_text_clear(out);
    di_must(di_state_serialise(s, out, &error), &error);
}

static void states_move_between_engines(void **state) {
    (void)state;
    di_harness *off = open_with(di_harness_best_kernels(), 1, false),
               *on = open_with(di_harness_best_kernels(), 1, true);
    size_t v = on->config.vocab_size;
    float *one = calloc(v, sizeof *one), *two = calloc(v, sizeof *two);
    di_text from_off = {0}, from_on = {0}, again = {0}, rest = {0};
    di_error error = {0};
    assert_int_equal(di_state_layout_id(off->model), di_state_layout_id(on->model));
    static const uint32_t counts[] = {1, 15, 40, 64, 129};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        di_state *a = di_harness_state(off, TOKENS), *b = di_harness_state(on, TOKENS);
        di_state *c = di_harness_state(off, TOKENS), *d = di_harness_state(on, TOKENS);
        di_harness_feed(off, a, ids, counts[i], 0, false, one);
        di_harness_feed(on, b, ids, counts[i], 0, false, two);
        assert_memory_equal(one, two, v * sizeof *one);
        serialise(a, &from_off);
        serialise(b, &from_on);
        assert_int_equal(from_off.length, di_state_serialised_bytes(off->model, counts[i]));
        assert_int_equal(from_on.length, di_state_serialised_bytes(on->model, counts[i]));
        /* The same bytes and then the optional parts; the header counts them. */
        assert_memory_equal(from_off.data + 144, from_on.data + 144, from_off.length - 144);
        di_must(di_state_restore(c, from_on.data, from_on.length, &error), &error);
        serialise(c, &again);
        assert_int_equal(again.length, from_off.length);
        assert_memory_equal(again.data, from_off.data, again.length);
        di_must(di_state_restore(d, from_off.data, from_off.length, &error), &error);
        drafts missing = one_block(on, d), whole = one_block(on, b);
        assert_false(same(&missing, &whole));
        for (uint32_t k = 0; k < WINDOW; k++) {
            di_harness_feed(on, b, ids + 300 + k, 1, 0, false, one);
            di_harness_feed(on, d, ids + 300 + k, 1, 0, false, two);
            assert_memory_equal(one, two, v * sizeof *one);
        }
        assert_int_equal(di_harness_state_hash(b), di_harness_state_hash(d));
        /* In pieces, as the disk tier has it. */
        for (int without = 0; without < 2; without++) {
            di_text_clear(&rest);
            di_state *source = without ? a : b;
            uint32_t position = (uint32_t)di_state_length(source);
            di_state_write_rest(source, 0, &rest);
            di_must(di_state_begin(d, position, 0, &error), &error);
            for (uint32_t page = 0; page < position / 64; page++) {
                di_text block = {0};
                di_state_write_block(source, page, &block);
                assert_true(di_state_read_block(d, page, block.data, block.length));
                di_text_free(&block);
            }
            assert_true(di_state_read_rest(d, rest.data, rest.length));
            assert_false(di_state_read_rest(d, rest.data, rest.length - 1));
            assert_true(di_state_read_rest(d, rest.data, rest.length));
            serialise(d, &again);
            if (!without)
                assert_int_equal(di_harness_state_hash(b), di_harness_state_hash(d));
            else
                assert_memory_equal(again.data + 144, from_off.data + 144, from_off.length - 144);
        }
        di_state_free(a);
        di_state_free(b);
        di_state_free(c);
        di_state_free(d);
    }
    di_text_free(&from_off);
    di_text_free(&from_on);
    di_text_free(&again);
    di_text_free(&rest);
    free(one);
    free(two);
    di_harness_close(off);
    di_harness_close(on);
}

/* ---------------------------------------------------------------- choice */

typedef struct seen {
    float *logits; /* [BLOCK][V] */
    size_t count;
} seen;

static void look(void *arg, const char *name, di_buffer data, di_dtype dtype, uint32_t rows, uint32_t width) {
    seen *s = arg;
    (void)dtype;
    if (strcmp(name, "draft.logits") != 0) return;
    s->count = (size_t)rows * width;
    memcpy(s->logits, di_cpu_at(data), s->count * sizeof *s->logits);
}

/* A draft is what the sampler would choose from the head's logits: the request's temperature, the noise of the
 * position. */
static void drafts_are_chosen_with_the_targets_noise(void **state) {
    (void)state;
    di_harness *h = open_with(di_harness_best_kernels(), 1, true);
    uint32_t v = h->config.vocab_size;
    seen s = {.logits = calloc((size_t)BLOCK * v, sizeof(float))};
    di_state *one = di_harness_state(h, TOKENS);
    di_draft *draft = new_draft(h, 1);
    void *scratch = aligned_alloc(64, (di_sample_scratch(v) + 63) / 64 * 64);
    bool varied = false;
    int32_t before[BLOCK] = {0};
    di_harness_feed(h, one, ids, 40, 0, false, NULL);
    di_model_set_trace(h->model, look, &s);
    static const float temperatures[] = {0, 0.6f, 1, 2};
    for (size_t i = 0; i < sizeof temperatures / sizeof *temperatures; i++) {
        di_draft_entry entry = {
            .state = di_state_get_view(one), .anchor = 9, .temperature = temperatures[i], .key = 0x123456789abcdefull};
        int32_t tokens[BLOCK];
        float confidences[BLOCK];
        di_error error = {0};
        di_must(di_model_draft(h->model, draft, &entry, 1, BLOCK, tokens, confidences, &error), &error);
        assert_int_equal(s.count, (size_t)BLOCK * v);
        for (uint32_t j = 0; j < BLOCK; j++) {
            di_sample_item item = {.position = 41 + j,
                                   .key = entry.key,
                                   .temperature = temperatures[i],
                                   .top_p = 1,
                                   .repetition_penalty = 1,
                                   .forced = -1,
                                   .logprobs = -1};
            di_sample_result result;
            di_sample_row(s.logits + (size_t)j * v, v, &item, &result, NULL, scratch);
            assert_int_equal(tokens[j], result.token_id);
        }
        varied |= i && memcmp(before, tokens, sizeof tokens) != 0;
        memcpy(before, tokens, sizeof tokens);
    }
    assert_true(varied);
    di_model_set_trace(h->model, NULL, NULL);
    free(scratch);
    free(s.logits);
    di_draft_free(draft);
    di_state_free(one);
    di_harness_close(h);
}

/* Keys that are no numbers: the rows after them say so, and nothing else is touched. */
static void no_number_gives_no_draft(void **state) {
    (void)state;
    di_harness *h = open_with(di_harness_best_kernels(), 1, true);
    di_state *states[2] = {di_harness_state(h, TOKENS), di_harness_state(h, TOKENS)};
    di_harness_feed(h, states[0], ids, 40, 0, false, NULL);
    di_harness_feed(h, states[1], ids, 40, 0, false, NULL);
    di_draft *draft = new_draft(h, 2);
    static const uint32_t both[] = {0, 1};
    drafts good, bad;
    memset(&good, 0, sizeof good);
    memset(&bad, 0, sizeof bad);
    draft_some(h, draft, states, both, 2, BLOCK, &good);
    const di_state_layout *layout = di_model_layout(h->model);
    const di_state_part *part = &layout->parts[layout->part_count - 1];
    di_buffer ring = di_buffer_at(di_state_get_view(states[1])->rolling, part->offset);
    h->backend->ops->fill(h->backend, ring, 0xff, (uint64_t)part->slots * part->entry_bytes);
    draft_some(h, draft, states, both, 2, BLOCK, &bad);
    assert_memory_equal(good.tokens[0], bad.tokens[0], sizeof good.tokens[0]);
    assert_memory_equal(good.confidences[0], bad.confidences[0], sizeof good.confidences[0]);
    for (uint32_t j = 0; j < BLOCK; j++) assert_int_equal(bad.tokens[1][j], -1);
    di_draft_free(draft);
    di_state_free(states[0]);
    di_state_free(states[1]);
    di_harness_close(h);
}

static void wrong_calls_are_refused(void **state) {
    (void)state;
    di_harness *off = open_with(&di_cpu_scalar, 1, false), *h = open_with(&di_cpu_scalar, 1, true);
    di_draft *draft = NULL;
    di_error error = {0};
    int32_t tokens[2 * BLOCK];
    float confidences[2 * BLOCK];
    assert_int_equal(di_draft_length(off->model), 0);
    assert_int_equal(di_draft_new(off->model, 1, &draft, &error), DI_ERR_INVALID_ARGUMENT);
    assert_null(draft);
    draft = new_draft(h, 1);
    di_state *s = di_harness_state(h, TOKENS);
    di_draft_entry entries[2] = {entry_of(s, 0), entry_of(s, 1)};
    assert_int_equal(di_model_draft(h->model, draft, entries, 1, 0, tokens, confidences, &error),
                     DI_ERR_INVALID_ARGUMENT);
    assert_non_null(strstr(error.message, "1 to 5 rows, not 0"));
    assert_int_equal(di_model_draft(h->model, draft, entries, 1, 6, tokens, confidences, &error),
                     DI_ERR_INVALID_ARGUMENT);
    assert_int_equal(di_model_draft(h->model, draft, entries, 2, 5, tokens, confidences, &error), DI_ERR_LIMIT);
    entries[0].anchor = (int32_t)h->config.vocab_size;
    assert_int_equal(di_model_draft(h->model, draft, entries, 1, 5, tokens, confidences, &error),
                     DI_ERR_INVALID_ARGUMENT);
    entries[0].anchor = -1;
    assert_int_equal(di_model_draft(h->model, draft, entries, 1, 5, tokens, confidences, &error),
                     DI_ERR_INVALID_ARGUMENT);
    entries[0].anchor = 5; /* without anything before it: the block alone */
    di_must(di_model_draft(h->model, draft, entries, 1, 5, tokens, confidences, &error), &error);
    for (int j = 0; j < BLOCK; j++) assert_in_range(tokens[j], 0, h->config.vocab_size - 1);
    di_must(di_model_draft(h->model, draft, entries, 0, 5, tokens, confidences, &error), &error);
    di_model_config headless = h->config;
    headless.draft_stages = headless.draft_block_size = 0;
    di_model *model = NULL;
    di_model_options options = {.context = 64, .draft = true};
    assert_int_equal(di_model_open(NANO, &headless, h->checkpoint, h->tokenizer, h->backend, &options, &model, &error),
                     DI_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "no draft head"));
    di_model_options bare = {.context = 64}, loaded = {.context = 64, .draft = true};
    assert_true(di_step_bytes(&h->config, &bare, 64, 8) < di_step_bytes(&h->config, &loaded, 64, 8));
    assert_true(di_draft_bytes(&h->config, 2) > di_draft_bytes(&h->config, 1));
    di_draft_free(draft);
    di_state_free(s);
    di_harness_close(off);
    di_harness_close(h);
}

int main(void) {
    for (int i = 0; i < 1024; i++) ids[i] = 3 + (i * 37 + i * i % 11) % 600;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(company_and_chunks_change_nothing),
        cmocka_unit_test(threads_and_instructions_change_nothing),
        cmocka_unit_test(a_shorter_block_is_another_one),
        cmocka_unit_test(rejected_rows_never_happened),
        cmocka_unit_test(missing_keys_only_cost_drafts),
        cmocka_unit_test(states_move_between_engines),
        cmocka_unit_test(drafts_are_chosen_with_the_targets_noise),
        cmocka_unit_test(no_number_gives_no_draft),
        cmocka_unit_test(wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
