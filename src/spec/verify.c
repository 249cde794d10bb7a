/* verify.c - see verify.h. */
#include "spec/verify.h"

static void choose(const di_verify_run *run, di_verify_sequence *sequences, uint32_t open, uint32_t j) {
    for (uint32_t i = 0; i < open; i++) {
        di_verify_sequence *s = &sequences[run->open[i]];
        di_sampler_next(s->sampler, s->logits_row + j, s->position + j, &run->items[i]);
        if (run->before) run->before(run->arg, s, j, &run->items[i]);
    }
    di_sample_args args = {.logits = run->logits,
                           .vocabulary = run->vocabulary,
                           .count = open,
                           .items = run->items,
                           .results = run->results,
                           .top = run->top,
                           .top_stride = run->top_stride};
    run->backend->ops->sample(run->backend, &args);
    run->backend->ops->synchronise(run->backend);
}

/* Commits a choice; true when the sequence goes on to its next row. */
static bool take(const di_verify_run *run, di_verify_sequence *s, const di_sample_result *result,
                 const di_sample_top *top, uint32_t j) {
    if (result->numeric_fault || result->token_id < 0) {
        s->fault = result->numeric_fault ? DI_VERIFY_NUMERIC : DI_VERIFY_NO_TOKEN;
        return false;
    }
    bool equal = j < s->length && s->drafts[j] == result->token_id; /* the hook may put the choice in its place */
    if (run->allow && !run->allow(run->arg, s, j, result)) {
        s->fault = DI_VERIFY_REFUSED;
        return false;
    }
    s->reason = di_sampler_commit(s->sampler, result, &s->stop_token);
    s->chosen = j + 1;
    s->accepted += equal;
    bool more = !run->after || run->after(run->arg, s, j, result, top);
    return more && equal && s->reason == DI_FINISH_NONE;
}

void di_verify(const di_verify_run *run, di_verify_sequence *sequences, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        sequences[i].chosen = sequences[i].accepted = 0;
        sequences[i].reason = DI_FINISH_NONE;
        sequences[i].stop_token = -1;
        sequences[i].fault = DI_VERIFY_OK;
        run->open[i] = i;
    }
    for (uint32_t j = 0, open = count; open; j++) {
        choose(run, sequences, open, j);
        uint32_t left = 0;
        for (uint32_t i = 0; i < open; i++) {
            uint32_t place = run->open[i];
            const di_sample_top *top = run->top ? run->top + (size_t)i * run->top_stride : NULL;
            if (take(run, &sequences[place], &run->results[i], top, j)) run->open[left++] = place;
        }
        open = left;
    }
}
