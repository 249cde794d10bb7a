/* matrix_set.c - made-up requests and what they give alone. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/matrix_internal.h"

/* Part of the time limit that recording one set may take. */
enum { SHARE_OF_LIMIT = 60, LEAST_REQUESTS = 4 };

static const uint32_t LENGTHS[] = {17, 1, 64, 5, 129, 2, 65, 40, 16, 127, 300, 31, 128, 3, 63, 90, 200, 15};
static const uint32_t ANSWERS[] = {8, 24, 3, 13, 1, 40, 2, 16, 5};

void matrix_set_clear(matrix_set *set) {
    for (uint32_t r = 0; r < set->count; r++)
        for (int32_t i = 0; i < set->requests[r].sampling.n; i++)
            if (set->requests[r].alone) di_aligned_free(set->requests[r].alone[i].logits);
    di_arena_free(set->arena);
    set->arena = NULL;
    set->count = 0;
    set->rows = 0;
    set->until_ns = 0;
}

void matrix_random_ids(matrix *m, int32_t *ids, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) ids[i] = (int32_t)matrix_below(m, m->vocabulary);
}

/* ---------------------------------------------------------------- parameters */

static int32_t *some_ids(matrix *m, matrix_set *set, uint32_t count) {
    int32_t *ids = di_arena_array(set->arena, count, sizeof *ids);
    if (ids) matrix_random_ids(m, ids, count);
    return ids;
}

static void add_bias(matrix *m, matrix_set *set, di_sampling *s) {
    di_logit_bias *bias = di_arena_array(set->arena, 2, sizeof *bias);
    if (!bias) return;
    bias[0] = (di_logit_bias){.token_id = (int32_t)matrix_below(m, m->vocabulary), .bias = 3.5f};
    bias[1] = (di_logit_bias){.token_id = (bias[0].token_id + 1) % (int32_t)m->vocabulary, .bias = -100};
    s->logit_bias = bias;
    s->logit_bias_count = 2;
}

/* Some ids forced, some chosen. */
static void add_golden(matrix *m, matrix_set *set, di_sampling *s, uint32_t tokens) {
    int32_t *ids = some_ids(m, set, tokens);
    for (uint32_t i = 0; ids && i < tokens; i += 2) ids[i] = -1;
    s->golden_token_ids = ids;
    s->golden_token_count = ids ? tokens : 0;
}

di_sampling matrix_sampling(matrix *m, matrix_set *set, uint32_t index, uint32_t tokens) {
    di_sampling s;
    di_sampling_default(&s);
    s.max_tokens = tokens;
    s.logits_hash = true;
    s.ignore_eos = index % 3 != 0;
    s.has_seed = true;
    s.seq_seed = matrix_next(m);
    switch (index % 8) {
    case 0:
        s.temperature = 0;
        break;
    case 1:
        break;
    case 2:
        s.temperature = 0.7f;
        s.top_p = 0.9f;
        s.logprobs = 3;
        break;
    case 3:
        s.n = 3;
        break;
    case 4:
        s.temperature = 0.8f;
        s.repetition_penalty = 1.2f;
        s.presence_penalty = 0.5f;
        s.frequency_penalty = 0.3f;
        add_bias(m, set, &s);
        break;
    case 5:
        s.temperature = 1.2f;
        s.top_k = 20;
        s.min_p = 0.02f;
        s.min_tokens = tokens < 4 ? tokens : 4;
        s.stop_token_ids = some_ids(m, set, 24);
        s.stop_token_count = s.stop_token_ids ? 24 : 0;
        break;
    case 6:
        s.temperature = 0;
        s.logprobs = 1;
        s.prompt_logprobs = m->compact ? -1 : 2;
        break;
    default:
        s.first_n_token_no_eos = 2;
        add_golden(m, set, &s, tokens);
        break;
    }
    return s;
}

/* ---------------------------------------------------------------- adding */

bool matrix_add(matrix *m, matrix_set *set, const int32_t *prompt, uint32_t count, const di_sampling *sampling) {
    if (!set->arena) set->arena = di_arena_new(0);
    if (set->count == MATRIX_COUNT(set->requests) || !set->arena) return false;
    if (set->until_ns && set->count >= LEAST_REQUESTS && di_now_ns() > set->until_ns) {
        m->slow = true;
        return false;
    }
    matrix_request *r = &set->requests[set->count];
    uint32_t n = (uint32_t)sampling->n, tokens = (uint32_t)sampling->max_tokens;
    *r = (matrix_request){.prompt_count = count, .sampling = *sampling};
    r->first = sampling->prompt_logprobs >= 0 ? 1 : count;
    r->row_count = count + tokens - r->first;
    r->prompt = di_arena_array(set->arena, count, sizeof *r->prompt);
    r->alone = di_arena_zalloc(set->arena, n * sizeof *r->alone);
    if (!r->prompt || !r->alone) return false;
    memcpy(r->prompt, prompt, count * sizeof *prompt);
    set->count++;
    for (uint32_t i = 0; i < n; i++) {
        r->alone[i].logits = di_aligned_alloc((size_t)r->row_count * m->vocabulary, sizeof(float));
        r->alone[i].seen = di_arena_zalloc(set->arena, r->row_count);
        r->alone[i].ids = di_arena_array(set->arena, tokens, sizeof(int32_t));
        if (!r->alone[i].logits || !r->alone[i].seen || !r->alone[i].ids) {
            di_fail(m->error, DI_ERR_MEMORY, NULL, "out of memory for %u rows of logits", r->row_count);
            return false;
        }
    }
    return true;
}

di_engine *matrix_open_alone(matrix *m, matrix_ties ties) {
    return matrix_open(m, ties, false,
                       MATRIX_OVERRIDES("cache-ram", "0", "kv-ram", "0", "max-seqs", "8", "max-rows", "256", "chunk",
                                        "0", "spec", "off"));
}

bool matrix_record(matrix *m, di_engine *engine, matrix_set *set, uint32_t first) {
    for (uint32_t i = first; i < set->count; i++) {
        matrix_entry *entry = matrix_entries(m, 1);
        if (!entry) return false;
        matrix_enter(entry, &set->requests[i]);
        entry->request = &set->requests[i];
        entry->record = true;
        if (!matrix_run(m, engine, entry, 1)) return false;
        set->rows += entry->tokens;
    }
    return true;
}

/* ---------------------------------------------------------------- the mixed set */

/* Prompt number `index`: often with a beginning that others have too, sometimes of one id alone. */
static uint32_t make_prompt(matrix *m, const int32_t *base, uint32_t index, int32_t *prompt) {
    uint32_t length = LENGTHS[index % MATRIX_COUNT(LENGTHS)];
    if (length > m->longest - 48) length = m->longest - 48;
    if (length > 1 && matrix_below(m, 3) == 0) length -= matrix_below(m, length / 2 + 1);
    uint32_t shared = matrix_below(m, 2) ? matrix_below(m, length + 1) : 0;
    bool same = index % 8 == 5;
    matrix_random_ids(m, prompt, length);
    for (uint32_t i = 0; i < length; i++) {
        if (i < shared) prompt[i] = base[i];
        if (same) prompt[i] = prompt[0];
    }
    return length;
}

static bool open_set(matrix *m, matrix_set *set) {
    matrix_set_clear(set);
    set->arena = di_arena_new(0);
    if (m->options->limit_ms > 0 && !m->options->tokens)
        set->until_ns = di_now_ns() + m->options->limit_ms * 1000000 / SHARE_OF_LIMIT;
    if (!set->arena) di_fail(m->error, DI_ERR_MEMORY, NULL, "out of memory for the matrix");
    return set->arena != NULL;
}

matrix_set *matrix_new_set(matrix *m) {
    return open_set(m, &m->extra) ? &m->extra : NULL;
}

const matrix_set *matrix_mixed(matrix *m, uint64_t round) {
    if (m->mixed.count && m->mixed_round == round) return &m->mixed;
    matrix_set *set = &m->mixed;
    m->mixed_round = round;
    matrix_reseed(m, round, 0);
    if (!open_set(m, set)) return NULL;
    di_engine *engine = matrix_open_alone(m, MATRIX_NO_TIES);
    if (!engine) return NULL;
    int32_t base[300], prompt[300];
    matrix_random_ids(m, base, MATRIX_COUNT(base));
    bool ok = true;
    for (uint32_t i = 0; ok && set->rows < m->set_rows; i++) {
        uint32_t index = i + (uint32_t)round * 5, length = make_prompt(m, base, index, prompt);
        uint32_t tokens = ANSWERS[matrix_below(m, MATRIX_COUNT(ANSWERS))];
        di_sampling sampling = matrix_sampling(m, set, index, tokens);
        if (!matrix_add(m, set, prompt, length, &sampling)) break;
        ok = matrix_record(m, engine, set, set->count - 1);
    }
    di_close(engine);
    return ok && !matrix_stopped(m) ? set : NULL;
}
