/* speculate.c - see speculate.h. */
#include "engine/speculate.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "engine/engine_internal.h"
#include "spec/budget.h"
#include "spec/calibration.h"
#include "spec/schedule.h"
#include "spec/verify.h"

/* A sequence that rests leaves keys for the draft head again so many tokens before its rest ends. */
enum { WARM_TOKENS = 16, MOST_CALIBRATION_BYTES = 65536 };

/* auto: after so many steps with drafts comes one without, so that what drafts are compared with is as new as they. */
enum { MOST_IN_A_ROW = 15 };

struct di_speculation {
    di_speculation_mode mode;
    uint32_t length, longest; /* drafts of a block, in this step and at most */
    uint32_t max_seqs;
    di_draft *head;                    /* NULL: prompt look-up */
    di_costs step_costs, *draft_costs; /* draft_costs [longest]: by length of the blocks */
    float temperatures[DI_SPEC_MOST];  /* of confidences */
    di_history all;                    /* of every sequence, for new ones */
    di_budget budget;                  /* auto */
    bool pending;                      /* the last step drafted; what it gained is not settled yet */
    double extra, plain;               /* seconds that it took more, and that it would have taken without drafts */
    uint32_t won;                      /* tokens it gave more */
    uint32_t tapped;                   /* its rows that leave keys for the head */
    uint32_t in_a_row;                 /* steps with drafts since the last one without */
    di_draft_watch watch;              /* fixed before the first request */

    /* the step being planned: sequences that decode */
    di_sequence **sequences; /* [max_seqs] */
    uint32_t count;
    di_draft_entry *entries; /* [max_seqs] */
    int32_t *tokens;         /* [max_seqs][length] */
    float *confidences;      /* [max_seqs][length] */
    float *survivals;        /* [max_seqs][length] */
    di_offer *offers;        /* [max_seqs] */
    uint32_t *heap;          /* [max_seqs] */
    double draft_seconds;    /* usual for the drafts of the step */
    uint32_t base_rows;      /* it would have without drafts */

    /* the step that runs */
    di_verify_sequence *verify; /* [max_seqs] */
    uint32_t verify_count, slots;
    di_verify_run run;
    uint64_t top_capacity;
    di_error *errors; /* [max_seqs] of a constraint */
};

/* ---------------------------------------------------------------- opening */

di_speculation_mode di_speculation_wanted(const di_config *config, uint32_t *length) {
    const char *text = di_config_text(config, DI_OPT_SPEC);
    *length = 0;
    if (!di_plan_drafts(config)) return DI_SPEC_OFF;
    if (strcmp(text, "auto") == 0) return DI_SPEC_AUTO;
    *length = (uint32_t)strtoul(text, NULL, 10);
    return DI_SPEC_FIXED;
}

static bool allocate(di_speculation *p, uint32_t max_seqs) {
    size_t block = (size_t)max_seqs * p->length;
    p->sequences = calloc(max_seqs, sizeof(di_sequence *));
    p->entries = calloc(max_seqs, sizeof *p->entries);
    p->tokens = calloc(block, sizeof *p->tokens);
    p->confidences = calloc(block, sizeof *p->confidences);
    p->survivals = calloc(block, sizeof *p->survivals);
    p->offers = calloc(max_seqs, sizeof *p->offers);
    p->heap = calloc(max_seqs, sizeof *p->heap);
    p->verify = calloc(max_seqs, sizeof *p->verify);
    p->errors = calloc(max_seqs, sizeof *p->errors);
    p->draft_costs = calloc(p->longest, sizeof *p->draft_costs);
    p->run.items = calloc(max_seqs, sizeof *p->run.items);
    p->run.results = calloc(max_seqs, sizeof *p->run.results);
    p->run.open = calloc(max_seqs, sizeof *p->run.open);
    return p->sequences && p->entries && p->tokens && p->confidences && p->survivals && p->offers && p->heap &&
           p->verify && p->errors && p->draft_costs && p->run.items && p->run.results && p->run.open;
}

_Static_assert((int)DI_CALIBRATION_MOST <= (int)DI_SPEC_MOST, "every temperature of a file has its place");

/* Temperatures of the confidences, from --draft-calibration or beside the weights. They change how much is verified,
 * never a result, so a file beside the weights that cannot be used is reported and left alone; one that was asked for
 * is an error. */
static di_status read_calibration(const di_engine *engine, const di_config *config, di_speculation *p,
                                  di_error *error) {
    const char *given = di_config_text(config, DI_OPT_DRAFT_CALIBRATION);
    char beside[PATH_MAX], *text = NULL;
    size_t length = 0;
    struct stat info;
    di_calibration c;
    if (strcmp(given, "off") == 0) return DI_OK;
    snprintf(beside, sizeof beside, "%s/draft_calibration.json", engine->path);
    const char *path = given[0] ? given : beside;
    if (!given[0] && lstat(path, &info) != 0) return DI_OK; /* most models have none */
    di_error unused = {0}, *told = error ? error : &unused;
    di_status status = di_read_file(path, MOST_CALIBRATION_BYTES, &text, &length, told);
    if (status == DI_OK) status = di_calibration_read(path, text, length, di_model_digest(engine->model), &c, told);
    free(text);
    if (status == DI_OK) memcpy(p->temperatures, c.temperatures, c.count * sizeof *p->temperatures);
    if (status == DI_OK || given[0]) return status;
    di_log_write(engine->log, DI_LOG_WARN, "spec", "drafts go without calibration: %s", told->message);
    *told = (di_error){0};
    return DI_OK;
}

di_status di_speculation_open(di_engine *engine, const di_config *config, di_error *error) {
    uint32_t wanted, block = di_draft_length(engine->model);
    di_speculation_mode mode = di_speculation_wanted(config, &wanted);
    if (mode == DI_SPEC_OFF) return DI_OK;
    di_speculation *p = calloc(1, sizeof *p);
    if (!p) return di_fail(error, DI_ERR_MEMORY, "spec", "out of memory for drafts");
    engine->speculation = p;
    p->mode = mode;
    p->max_seqs = engine->max_seqs;
    p->length = block ? block : 8;
    if (wanted && wanted < p->length) p->length = wanted;
    if (wanted > p->length)
        di_log_write(engine->log, DI_LOG_WARN, "spec", "--spec %u is cut to the %u drafts of the model's block", wanted,
                     p->length);
    if (p->length > DI_SPEC_MOST) p->length = DI_SPEC_MOST;
    p->longest = p->length;
    for (uint32_t j = 0; j < DI_SPEC_MOST; j++) p->temperatures[j] = 1;
    di_status status = block ? read_calibration(engine, config, p, error) : DI_OK;
    if (status != DI_OK) return status;
    if (!allocate(p, engine->max_seqs)) return di_fail(error, DI_ERR_MEMORY, "spec", "out of memory for drafts");
    return block ? di_draft_new(engine->model, engine->max_seqs, &p->head, error) : DI_OK;
}

bool di_speculation_set(di_speculation *p, const char *spec) {
    bool automatic = strcmp(spec, "auto") == 0;
    unsigned long length = automatic ? p->longest : strtoul(spec, NULL, 10);
    if (!length || length > p->longest) return false;
    p->mode = automatic ? DI_SPEC_AUTO : DI_SPEC_FIXED;
    p->length = (uint32_t)length;
    return true;
}

uint32_t di_speculation_longest(const di_speculation *p) {
    return p->longest;
}

di_draft *di_speculation_head(const di_speculation *p) {
    return p->head;
}

void di_speculation_free(di_speculation *p) {
    if (!p) return;
    di_draft_free(p->head);
    free((void *)p->sequences);
    free(p->entries);
    free(p->tokens);
    free(p->confidences);
    free(p->survivals);
    free(p->offers);
    free(p->heap);
    free(p->verify);
    free(p->errors);
    free(p->draft_costs);
    free(p->run.items);
    free(p->run.results);
    free(p->run.open);
    free(p->run.top);
    free(p);
}

void di_engine_watch_drafts(di_engine *engine, const di_draft_watch *watch) {
    if (engine->speculation) engine->speculation->watch = *watch;
}

di_status di_drafts_start(const di_engine *engine, di_sequence *s, di_error *error) {
    const di_speculation *p = engine->speculation;
    if (!p) return DI_OK;
    di_history_start(&s->drafts.history, &p->all);
    if (p->head) return DI_OK;
    return di_lookup_new(s->request->prompt_count + (uint32_t)s->request->max_tokens, &s->drafts.lookup, error);
}

void di_drafts_end(di_drafts *drafts) {
    di_lookup_free(drafts->lookup);
    *drafts = (di_drafts){0};
}

bool di_speculation_widen(di_speculation *p, uint32_t top_stride) {
    if (!p || top_stride <= p->run.top_stride) return true;
    di_sample_top *grown = realloc(p->run.top, (size_t)p->max_seqs * top_stride * sizeof *grown);
    if (!grown) return false;
    p->run.top = grown;
    p->run.top_stride = top_stride;
    return true;
}

/* ---------------------------------------------------------------- drafting */

/* The next token and those that may follow it: a draft that stands behind them could never be committed. */
static uint32_t tokens_left(const di_sequence *s) {
    uint64_t end = s->request->prompt_count + s->request->max_tokens;
    return end > s->ids_count ? (uint32_t)(end - s->ids_count) : 0;
}

/* The sequences that decode in this step, and how many of them want drafts, `most` at most; those come first. */
static uint32_t gather(di_engine *engine, uint32_t most) {
    di_speculation *p = engine->speculation;
    uint32_t wanting = 0;
    p->count = 0;
    for (uint32_t i = 0; i < engine->running.count; i++) {
        di_request *request = engine->running.items[i];
        /* Also of those that may not run now: the reader may catch up before the rows are planned. */
        for (int32_t j = 0; request->sequences && j < request->sampling.n; j++) request->sequences[j].drafts.length = 0;
        if (!di_may_run(engine, request) || !request->prompt_done) continue;
        for (int32_t j = 0; j < request->sampling.n; j++) {
            di_sequence *s = &request->sequences[j];
            if (!di_is_decoding(s)) continue;
            bool rested = p->mode == DI_SPEC_FIXED || di_history_wants(&s->drafts.history);
            if (!rested) di_history_plain(&s->drafts.history);
            p->sequences[p->count++] = s;
            if (!rested || wanting == most || tokens_left(s) <= 1) continue;
            di_sequence *first = p->sequences[wanting];
            p->sequences[wanting++] = s;
            p->sequences[p->count - 1] = first;
        }
    }
    return wanting;
}

static void draft_by_head(di_engine *engine, uint32_t wanting) {
    di_speculation *p = engine->speculation;
    for (uint32_t i = 0; i < wanting; i++) {
        const di_sequence *s = p->sequences[i];
        di_sample_item item;
        di_sampler_next(s->sampler, 0, s->ids_count, &item);
        p->entries[i] = (di_draft_entry){.state = di_state_get_view(s->state),
                                         .anchor = s->ids[s->ids_count - 1],
                                         .temperature = item.temperature,
                                         .key = item.key};
    }
    di_error error = {0};
    if (di_model_draft(engine->model, p->head, p->entries, wanting, p->length, p->tokens, p->confidences, &error) !=
        DI_OK) {
        di_log_write(engine->log, DI_LOG_WARN, "spec", "a draft failed: %s", error.message);
        for (size_t i = 0; i < (size_t)wanting * p->length; i++) p->tokens[i] = -1;
    }
    for (size_t i = 0; i < wanting; i++)
        di_survivals(p->confidences + i * p->length, p->temperatures, p->length, p->survivals + i * p->length);
}

static void draft_by_lookup(di_speculation *p, uint32_t wanting) {
    for (uint32_t i = 0; i < wanting; i++) {
        di_sequence *s = p->sequences[i];
        int32_t *tokens = p->tokens + (size_t)i * p->length;
        di_lookup_add(s->drafts.lookup, s->ids, s->ids_count);
        uint32_t found = di_lookup_draft(s->drafts.lookup, s->ids, s->ids_count, p->length, tokens, NULL);
        for (uint32_t j = found; j < p->length; j++) tokens[j] = -1;
        di_history_survivals(&s->drafts.history, p->length, p->survivals + (size_t)i * p->length);
    }
}

/* Drafts of sequence i that could be committed. */
static uint32_t usable(const di_speculation *p, uint32_t i) {
    uint32_t most = tokens_left(p->sequences[i]) - 1, count = 0;
    if (most > p->length) most = p->length;
    while (count < most && p->tokens[(size_t)i * p->length + count] >= 0) count++;
    return count;
}

/* What drafting blocks of this length takes. One that was never tried is hoped to cost less than a longer one, so that
 * it is; 0 when nothing is known. */
static double draft_cost(const di_speculation *p, uint32_t length, uint32_t wanting) {
    for (uint32_t known = length; known <= p->longest; known++) {
        double seconds = di_costs_get(&p->draft_costs[known - 1], wanting);
        if (seconds > 0) return seconds * (1 + 3 * (double)length / known) / 4;
    }
    return 0;
}

/* The length of blocks that promises most, by how drafts fared and what steps and blocks took; 0 if none promises more
 * than no drafts. */
static uint32_t best_length(di_speculation *p, uint32_t wanting, uint32_t most_rows) {
    double best = p->count / di_costs_get(&p->step_costs, p->count), rate = 0;
    uint32_t length = 0;
    if (!(draft_cost(p, p->longest, wanting) > 0)) return p->longest;
    for (uint32_t i = 0; i < wanting; i++)
        di_history_survivals(&p->sequences[i]->drafts.history, p->longest, p->survivals + (size_t)i * p->longest);
    for (uint32_t k = p->longest; k > 0; k--) {
        for (uint32_t i = 0; i < wanting; i++) {
            uint32_t most = tokens_left(p->sequences[i]) - 1;
            p->offers[i] = (di_offer){.survivals = p->survivals + (size_t)i * p->longest, .count = most < k ? most : k};
        }
        di_step_shape shape = {.emitting = p->count,
                               .base_rows = p->count,
                               .most_rows = most_rows,
                               .draft_seconds = draft_cost(p, k, wanting)};
        if (!di_schedule(p->offers, wanting, &shape, &p->step_costs, &rate, p->heap) || rate <= best) continue;
        best = rate;
        length = k;
    }
    return length;
}

/* Whether drafts promise more than they cost; sets the length of the blocks. Sequences of which they do not rest. */
static bool promising(di_speculation *p, uint32_t wanting, uint32_t most_rows) {
    if (!di_costs_known(&p->step_costs, p->count)) return false; /* a plain step first, to compare with */
    uint32_t length = best_length(p, wanting, most_rows);
    if (length) {
        p->length = length;
        return true;
    }
    for (uint32_t i = 0; i < wanting; i++) di_history_decline(&p->sequences[i]->drafts.history);
    return false;
}

/* Drafts for the first `wanting` sequences; what it takes is learned. */
static void draft(di_engine *engine, uint32_t wanting) {
    di_speculation *p = engine->speculation;
    int64_t start = di_now_ns();
    if (p->head)
        draft_by_head(engine, wanting);
    else
        draft_by_lookup(p, wanting);
    for (uint32_t i = 0; p->watch.drafts && i < wanting; i++) {
        const di_sequence *s = p->sequences[i];
        const di_request *request = s->request;
        p->watch.drafts(p->watch.arg, request->id, (int32_t)(s - request->sequences),
                        s->ids_count - request->prompt_count, p->tokens + (size_t)i * p->length, p->length);
    }
    di_costs *costs = &p->draft_costs[p->length - 1];
    di_costs_add(costs, wanting, (double)(di_now_ns() - start) / 1e9);
    p->draft_seconds = di_costs_measured(costs, wanting); /* usual: this time may have been disturbed */
}

/* How many drafts of each are verified. */
static void choose_lengths(di_speculation *p, uint32_t wanting, uint32_t most_rows) {
    uint32_t room = most_rows - p->count;
    for (uint32_t i = 0; i < wanting; i++)
        p->offers[i] = (di_offer){.survivals = p->survivals + (size_t)i * p->length, .count = usable(p, i)};
    if (p->mode == DI_SPEC_AUTO) {
        di_step_shape shape = {
            .emitting = p->count, .base_rows = p->count, .most_rows = most_rows, .draft_seconds = p->draft_seconds};
        di_schedule(p->offers, wanting, &shape, &p->step_costs, NULL, p->heap);
        return;
    }
    for (uint32_t i = 0; i < wanting; i++) {
        p->offers[i].length = p->offers[i].count < room ? p->offers[i].count : room;
        if (p->watch.verify) p->offers[i].length = p->watch.verify(p->watch.arg, p->offers[i].length);
        room -= p->offers[i].length;
    }
}

/* What the last step gained goes to the budget, and the budget says for how many sequences this one may draft. */
static uint32_t allowed(di_speculation *p, uint32_t streams) {
    if (p->mode == DI_SPEC_FIXED) return UINT32_MAX;
    if (p->pending && p->plain > 0)
        di_budget_settle(&p->budget, (double)p->won / p->base_rows - p->extra / p->plain, p->base_rows);
    p->pending = false;
    return di_budget_step(&p->budget, streams) == DI_BUDGET_DRAFT ? di_budget_width(&p->budget) : 0;
}

bool di_speculation_taps(di_engine *engine, const di_sequence *s, uint32_t rows) {
    di_speculation *p = engine->speculation;
    if (!p || !p->head) return false;
    if (p->mode == DI_SPEC_FIXED) return true;
    if (di_budget_now(&p->budget) == DI_BUDGET_REST || s->drafts.history.rest > WARM_TOKENS) return false;
    p->tapped += rows;
    return true;
}

void di_speculate(di_engine *engine, uint32_t most_rows) {
    di_speculation *p = engine->speculation;
    p->verify_count = p->slots = 0;
    p->draft_seconds = 0;
    uint32_t wanting = gather(engine, allowed(p, p->count)); /* as many decode as did before, or nearly */
    p->base_rows = p->count;
    p->tapped = 0;
    p->won = 0;
    p->plain = 0;
    uint32_t logits = engine->max_logits;
    if (most_rows > logits) most_rows = logits;
    uint32_t in_a_row = p->in_a_row;
    p->in_a_row = 0;
    if (!wanting || p->count >= most_rows) return;
    if (p->mode == DI_SPEC_AUTO && (in_a_row >= MOST_IN_A_ROW || !promising(p, wanting, most_rows))) return;
    p->in_a_row = in_a_row + 1;
    draft(engine, wanting);
    choose_lengths(p, wanting, most_rows);
    p->pending = true;
    double plain = di_costs_get(&p->step_costs, p->count);
    for (uint32_t i = 0; i < wanting; i++) {
        di_sequence *s = p->sequences[i];
        s->drafts.length = p->offers[i].length;
        s->drafts.place = i;
        memcpy(s->ids + s->ids_count, p->tokens + (size_t)i * p->length, s->drafts.length * sizeof *s->ids);
        if (!s->drafts.length && plain > 0) /* drafted for nothing */
            di_history_add(&s->drafts.history, 0, 0, 1 + p->draft_seconds / plain * p->count / wanting);
    }
}

/* ---------------------------------------------------------------- verification */

void di_speculation_add(di_engine *engine, di_sequence *s) {
    di_speculation *p = engine->speculation;
    di_batch *batch = di_current_batch(engine);
    s->drafts.verify = p->verify_count;
    p->slots += s->drafts.length + 1;
    s->drafts.slot = batch->capacity - p->slots;
    p->errors[p->verify_count] = (di_error){0};
    p->verify[p->verify_count++] = (di_verify_sequence){.sampler = s->sampler,
                                                        .logits_row = s->logits_row,
                                                        .position = s->ids_count,
                                                        .drafts = s->ids + s->ids_count,
                                                        .length = s->drafts.length,
                                                        .owner = s};
}

/* Compute thread. The first mask was made while the rows were computed. */
static void before_choice(void *arg, const di_verify_sequence *v, uint32_t j, di_sample_item *item) {
    di_engine *engine = arg;
    di_sequence *s = v->owner;
    if (j) di_constraint_fill(engine->constraints, &s->constraint);
    di_constraint_next(engine->constraints, &s->constraint, item);
    di_watch_row(engine, s, v->logits_row + j, (uint32_t)v->position + j);
}

/* Compute thread: the grammar goes on with the choice. */
static bool allow_choice(void *arg, const di_verify_sequence *v, uint32_t j, const di_sample_result *result) {
    di_engine *engine = arg;
    di_sequence *s = v->owner;
    uint32_t prompt = s->request->prompt_count;
    s->ids[s->ids_count + j] = result->token_id;
    return di_constraint_commit(engine->constraints, &s->constraint, s->ids + prompt, s->ids_count + j + 1 - prompt,
                                &engine->speculation->errors[s->drafts.verify]) == DI_OK;
}

/* Compute thread: keeps what the delivery needs. Stop strings end a sequence when its text is delivered. */
static bool after_choice(void *arg, const di_verify_sequence *v, uint32_t j, const di_sample_result *result,
                         const di_sample_top *top) {
    di_engine *engine = arg;
    di_sequence *s = v->owner;
    di_batch *batch = di_current_batch(engine);
    uint32_t slot = s->drafts.slot + j;
    batch->results[slot] = *result;
    batch->items[slot] = (di_sample_item){.logprobs = s->request->sampling.logprobs};
    if (top && batch->items[slot].logprobs > 0)
        memcpy(batch->top + (size_t)slot * batch->top_stride, top, (size_t)batch->items[slot].logprobs * sizeof *top);
    return true;
}

static void run_verification(void *arg) {
    di_engine *engine = arg;
    di_speculation *p = engine->speculation;
    di_verify(&p->run, p->verify, p->verify_count);
}

void di_speculation_prepare(di_engine *engine) {
    di_speculation *p = engine->speculation;
    if (!p || !p->verify_count) return;
    p->run.backend = engine->backend;
    p->run.logits = di_step_logits(engine->step);
    p->run.vocabulary = engine->info.vocabulary;
    p->run.arg = engine;
    p->run.before = before_choice;
    p->run.allow = allow_choice;
    p->run.after = after_choice;
    engine->job.verify = run_verification;
    engine->job.verify_arg = engine;
}

static di_status fault_of(const di_engine *engine, const di_sequence *s, const di_verify_sequence *v, di_error *error) {
    if (v->fault == DI_VERIFY_NUMERIC) return di_fail_numeric(v->position + v->chosen, error);
    if (v->fault == DI_VERIFY_NO_TOKEN) return di_fail_no_token(s, error);
    *error = engine->speculation->errors[s->drafts.verify];
    return error->status;
}

/* The drafts are still in the block; those that the sampler did not choose are no more in the sequence's ids. */
static void keep_record(const di_speculation *p, di_sequence *s, const di_verify_sequence *v) {
    size_t at = (size_t)s->drafts.place * p->length;
    s->drafts.record.count = v->length;
    s->drafts.record.accepted = v->accepted;
    s->drafts.record.judged = p->head != NULL;
    memcpy(s->drafts.record.token_ids, p->tokens + at, v->length * sizeof *p->tokens);
    for (uint32_t j = 0; p->head && j < v->length; j++)
        s->drafts.record.confidence[j] = (float)di_chance(p->confidences[at + j], p->temperatures[j]);
}

void di_drafts_tell(const di_sequence *s, di_draft_record *record) {
    *record = (di_draft_record){.position = s->choice.position,
                                .token_ids = s->drafts.record.token_ids,
                                .confidence = s->drafts.record.judged ? s->drafts.record.confidence : NULL,
                                .count = s->drafts.record.count,
                                .accepted = s->drafts.record.accepted};
}

di_status di_speculation_commit(di_engine *engine, di_sequence *s, di_error *error) {
    di_speculation *p = engine->speculation;
    const di_verify_sequence *v = &p->verify[s->drafts.verify];
    di_request *request = s->request;
    di_model_commit(engine->model, engine->step, s->step_index, v->chosen, di_state_get_view(s->state));
    di_count(&engine->metrics, DI_COUNT_COMPUTED_ROWS, v->chosen);
    di_count(&engine->metrics, DI_COUNT_DRAFT_CYCLES, 1);
    di_count(&engine->metrics, DI_COUNT_DRAFTED, v->length);
    di_count(&engine->metrics, DI_COUNT_ACCEPTED, v->accepted);
    request->draft_tokens += v->length;
    request->accepted_draft_tokens += v->accepted;
    p->won += v->chosen ? v->chosen - 1 : 0;
    /* Its share of what the step took more, in tokens. */
    double share = p->plain > 0 ? p->extra / p->plain * p->base_rows * (v->length + 1) / p->slots : -1;
    di_history_add(&s->drafts.history, v->length, v->accepted, p->plain > 0 ? 1 + share : 0);
    di_history_add(&p->all, v->length, v->accepted, 0);
    if (v->chosen) {
        s->choice = (di_choice){.waiting = true,
                                .item = s->drafts.slot,
                                .count = v->chosen,
                                .position = s->ids_count,
                                .drafted = true,
                                .reason = v->reason,
                                .stop_token = v->stop_token};
        if (request->draft_records) keep_record(p, s, v);
        s->done = v->reason != DI_FINISH_NONE;
        s->ids_count += v->chosen;
        s->goal = s->ids_count;
        engine->chosen[engine->chosen_count++] = s;
    }
    /* A fault behind chosen tokens waits: these are told first, and a stop string may end with them. The next step
     * meets it in its first row, as plain decoding does. */
    return v->chosen ? DI_OK : fault_of(engine, s, v, error);
}

void di_speculation_learn(di_engine *engine) {
    di_speculation *p = engine->speculation;
    if (!p || engine->job.status != DI_OK) return;
    /* Waking the threads is part of it: steps with drafts cannot be planned while the one before runs. */
    double seconds = (double)engine->step_ns / 1e9;
    uint32_t rows = engine->load.decode_rows;
    if (!engine->load.prompt_rows) di_costs_add(&p->step_costs, rows, seconds);
    if (p->tapped && p->mode == DI_SPEC_AUTO) {
        uint32_t decoding = p->base_rows ? p->base_rows : 1, all = rows + engine->load.prompt_rows;
        double plain = di_costs_get(&p->step_costs, decoding);
        double steps = plain > 0 ? seconds / plain : 1;
        di_budget_keys(&p->budget, steps * p->tapped / all, decoding);
    }
    if (!p->pending) return;
    double now = di_costs_measured(&p->step_costs, rows);
    p->plain = di_costs_get(&p->step_costs, p->base_rows);
    p->extra = p->draft_seconds + (now > 0 ? now : di_costs_get(&p->step_costs, rows)) - p->plain;
}
