/* needs: spec sampling model_deepseek_v41 model backend_cpu tokenizer checkpoint tensor base */
/* Costs, schedule, prompt look-up history and budget: against plain definitions, on random and degenerate input. */
#include "spec/budget.h"
#include "spec/costs.h"
#include "spec/history.h"
#include "spec/lookup.h"
#include "spec/schedule.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t noise = 1;

static uint32_t below(uint32_t n) {
    noise = noise * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(noise >> 33) % n;
}

/* ---------------------------------------------------------------- costs */

static void costs_are_typical_and_never_fall(void **state) {
    (void)state;
    di_costs costs = {0};
    assert_true(di_costs_get(&costs, 5) == 0);
    for (int i = 0; i < DI_COST_SURE; i++) di_costs_add(&costs, 4, 0.004);
    assert_true(fabs(di_costs_get(&costs, 4) - 0.004) < 1e-12);
    assert_true(fabs(di_costs_get(&costs, 1) - 0.004) < 1e-12); /* not less than what is known of more */
    assert_true(fabs(di_costs_get(&costs, 8) - 0.005) < 1e-12); /* hoped to be cheap */
    di_costs_add(&costs, 8, 0.1);                               /* one sample makes nothing dear */
    assert_true(fabs(di_costs_get(&costs, 8) - 0.005) < 1e-12);
    for (int i = 0; i < DI_COST_SURE; i++) di_costs_add(&costs, 8, 0.008);
    assert_true(fabs(di_costs_get(&costs, 8) - 0.008) < 1e-12);
    assert_true(fabs(di_costs_get(&costs, 12) - 0.012) < 1e-12);
    for (int i = 0; i < 20; i++) di_costs_add(&costs, 2, i % 4 ? 0.002 : 1.0); /* every fourth step was disturbed */
    assert_true(fabs(di_costs_get(&costs, 2) - 0.002) < 1e-12);
    assert_true(fabs(di_costs_get(&costs, 3) - 0.003) < 1e-12);
    assert_true(fabs(di_costs_get(&costs, 6) - 0.006) < 1e-12);
    assert_int_equal(di_costs_known(&costs, 2), 20);
    assert_int_equal(di_costs_known(&costs, 3), 0);
    di_costs first = {0};
    di_costs_add(&first, 3, 0.5); /* memory touched for the first time */
    di_costs_add(&first, 3, 0.003);
    assert_true(fabs(di_costs_get(&first, 3) - 0.003) < 1e-12);
    di_costs_add(&costs, 1, 0.5); /* one sample that is more than two rows ever took */
    assert_true(di_costs_get(&costs, 1) <= di_costs_get(&costs, 2));
    di_costs_add(&costs, 0, 1);
    di_costs_add(&costs, 7, 0);
    di_costs_add(&costs, 7, -1);
    di_costs_add(&costs, 7, NAN);
    assert_int_equal(di_costs_known(&costs, 7), 0);
    for (int i = 0; i < 3000; i++) di_costs_add(&costs, 1 + below(5000), 0.001 * (1 + below(100)));
    di_costs_add(&costs, UINT32_MAX, 100);
    for (uint32_t n = 1; n < 6000; n++) {
        double cost = di_costs_get(&costs, n);
        assert_true(cost > 0 && isfinite(cost));
        assert_true(cost <= di_costs_get(&costs, n + 1) * (1 + 1e-12));
    }
}

/* ---------------------------------------------------------------- schedule */

enum { MOST_OFFERS = 12, MOST_DRAFTS = 6 };

typedef struct candidate {
    float survival;
    uint32_t j, r;
} candidate;

static int by_rank(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->survival != y->survival) return x->survival < y->survival ? 1 : -1;
    if (x->j != y->j) return x->j < y->j ? -1 : 1;
    return x->r < y->r ? -1 : x->r > y->r;
}

/* The definition: sort everything, try every B. */
static uint32_t plain_schedule(const di_offer *offers, uint32_t count, const di_step_shape *shape,
                               const di_costs *costs, uint32_t *lengths) {
    candidate all[MOST_OFFERS * MOST_DRAFTS];
    uint32_t n = 0, best = 0;
    for (uint32_t r = 0; r < count; r++) {
        lengths[r] = 0;
        for (uint32_t j = 0; j < offers[r].count; j++) all[n++] = (candidate){offers[r].survivals[j], j, r};
    }
    qsort(all, n, sizeof *all, by_rank);
    double tokens = shape->emitting, most = -1;
    for (uint32_t b = 0; b <= n && (b == 0 || shape->base_rows + b <= shape->most_rows); b++) {
        if (b) tokens += (double)all[b - 1].survival;
        double rate = tokens / (shape->draft_seconds + di_costs_get(costs, shape->base_rows + b));
        if (rate > most) {
            most = rate;
            best = b;
        }
    }
    for (uint32_t b = 0; b < best; b++) lengths[all[b].r]++;
    return best;
}

static void schedules_are_the_best_of_all(void **state) {
    (void)state;
    static float survivals[MOST_OFFERS][MOST_DRAFTS];
    for (int round = 0; round < 3000; round++) {
        di_costs costs = {0};
        double cost = 0.001;
        for (uint32_t n = 1; n <= 90; n++) {
            cost += 0.0001 * below(round % 3 ? 10 : 2) * (below(4) == 0 ? 20 : 1); /* staircases too */
            if (below(3)) di_costs_add(&costs, n, cost);
        }
        di_costs_add(&costs, 1, 0.001);
        di_offer offers[MOST_OFFERS];
        uint32_t count = below(MOST_OFFERS + 1), heap[MOST_OFFERS], want[MOST_OFFERS];
        for (uint32_t r = 0; r < count; r++) {
            float s = 1;
            for (int j = 0; j < MOST_DRAFTS; j++) survivals[r][j] = s *= (float)below(5) / 4; /* ties, ones, zeros */
            offers[r] = (di_offer){.survivals = survivals[r], .count = below(MOST_DRAFTS + 1), .length = 99};
        }
        di_step_shape shape = {.emitting = count + below(3),
                               .base_rows = count + below(4),
                               .most_rows = below(90),
                               .draft_seconds = 0.0001 * below(30)};
        double rate;
        uint32_t total = di_schedule(offers, count, &shape, &costs, &rate, heap), sum = 0;
        assert_int_equal(total, plain_schedule(offers, count, &shape, &costs, want));
        for (uint32_t r = 0; r < count; r++) {
            assert_int_equal(offers[r].length, want[r]);
            sum += offers[r].length;
        }
        assert_int_equal(sum, total);
        assert_true(rate >= 0 && isfinite(rate));
    }
}

static void schedules_of_nothing_and_of_no_numbers(void **state) {
    (void)state;
    di_costs costs = {0};
    static const float good[] = {0.9f, 0.8f, 0.1f}, bad[] = {NAN, 0.5f, 2.0f}, rising[] = {0.5f, 0.9f, 0.9f};
    di_offer offers[] = {
        {.survivals = good, .count = 3}, {.survivals = bad, .count = 3}, {.survivals = rising, .count = 3}};
    uint32_t heap[3];
    di_step_shape shape = {.emitting = 3, .base_rows = 3, .most_rows = 100};
    assert_int_equal(di_schedule(offers, 3, &shape, &costs, NULL, heap), 9); /* nothing known: measure */
    shape.most_rows = 5;
    assert_int_equal(di_schedule(offers, 3, &shape, &costs, NULL, heap), 2);
    assert_int_equal(offers[0].length, 2);
    shape.most_rows = 2;
    assert_int_equal(di_schedule(offers, 3, &shape, &costs, NULL, heap), 0);
    shape.most_rows = 100;
    di_costs_add(&costs, 3, 0.001);
    di_costs_add(&costs, 12, 0.001); /* rows for nothing: whatever may be accepted */
    di_schedule(offers, 3, &shape, &costs, NULL, heap);
    assert_int_equal(offers[0].length, 3);
    assert_int_equal(offers[1].length, 0);
    assert_int_equal(offers[2].length, 3);
    assert_int_equal(di_schedule(NULL, 0, &shape, &costs, NULL, heap), 0);
}

static void survivals_are_products(void **state) {
    (void)state;
    static const float z[] = {0, 100, -100, 3}, temperatures[] = {1, 2, 1, 1}, wrong[] = {2, NAN, 2};
    float out[4];
    di_survivals(z, NULL, 4, out);
    assert_true(fabsf(out[0] - 0.5f) < 1e-6f && fabsf(out[1] - 0.5f) < 1e-6f && out[2] < 1e-20f && out[3] <= out[2]);
    di_survivals(z, temperatures, 2, out);
    assert_true(fabsf(out[1] - 0.5f) < 1e-6f);
    di_survivals(wrong, NULL, 3, out);
    assert_true(out[0] > 0.8f && out[1] == 0 && out[2] == 0);
}

/* ---------------------------------------------------------------- prompt look-up */

/* The definition: every place before the end, the longest agreement, the newest of those; at most TRIES places. */
static uint32_t plain_lookup(const int32_t *ids, uint32_t count, uint32_t most, int32_t *drafts) {
    uint32_t best = 0, longest = 0, tries = 0;
    for (uint32_t place = count - 1; place >= DI_LOOKUP_LEAST && tries < DI_LOOKUP_TRIES; place--) {
        uint32_t n = 0;
        while (n < place && n < DI_LOOKUP_REACH && ids[place - 1 - n] == ids[count - 1 - n]) n++;
        if (n < DI_LOOKUP_LEAST) continue;
        tries++;
        if (n > longest) {
            longest = n;
            best = place;
        }
    }
    if (!best) return 0;
    for (uint32_t i = 0; i < most; i++) drafts[i] = best + i < count ? ids[best + i] : drafts[best + i - count];
    return most;
}

static void lookups_find_the_longest_agreement(void **state) {
    (void)state;
    enum { IDS = 300, MOST = 8 };
    int32_t ids[IDS], got[MOST], want[MOST];
    di_error error;
    for (int round = 0; round < 40; round++) {
        di_lookup *lookup;
        assert_int_equal(di_lookup_new(IDS, &lookup, &error), DI_OK);
        uint32_t kinds = 2 + below(6), count = 0, matched, found = 0;
        while (count < IDS) {
            uint32_t more = 1 + below(20);
            for (uint32_t i = 0; i < more && count < IDS; i++) ids[count++] = (int32_t)(below(kinds) * 1000003u % 5000);
            di_lookup_add(lookup, ids, count);
            if (count < DI_LOOKUP_LEAST) continue;
            uint32_t n = di_lookup_draft(lookup, ids, count, MOST, got, &matched);
            assert_int_equal(n, plain_lookup(ids, count, MOST, want));
            assert_memory_equal(got, want, n * sizeof *got);
            assert_true(n ? matched >= DI_LOOKUP_LEAST : !matched);
            found += n != 0;
        }
        assert_true(found > 0);
        di_lookup_free(lookup);
    }
}

static void lookups_of_short_and_repeating_sequences(void **state) {
    (void)state;
    static const int32_t ids[] = {7, 7, 7, 7, 5, 6, 5, 6};
    int32_t drafts[6] = {0};
    uint32_t matched;
    di_lookup *lookup;
    di_error error;
    assert_int_equal(di_lookup_new(8, &lookup, &error), DI_OK);
    for (uint32_t count = 0; count <= 2; count++) {
        di_lookup_add(lookup, ids, count);
        assert_int_equal(di_lookup_draft(lookup, ids, count, 6, drafts, NULL), 0);
    }
    assert_int_equal(di_lookup_draft(lookup, ids, 4, 6, drafts, NULL), 0); /* not added yet */
    di_lookup_add(lookup, ids, 4);
    assert_int_equal(di_lookup_draft(lookup, ids, 4, 6, drafts, &matched), 6);
    for (int i = 0; i < 6; i++) assert_int_equal(drafts[i], 7);
    assert_int_equal(matched, 3);
    di_lookup_add(lookup, ids, 8);
    assert_int_equal(di_lookup_draft(lookup, ids, 8, 6, drafts, NULL), 6);
    static const int32_t alternating[] = {5, 6, 5, 6, 5, 6};
    assert_memory_equal(drafts, alternating, sizeof alternating);
    di_lookup_free(lookup);
    di_lookup_free(NULL);
}

/* ---------------------------------------------------------------- history */

static void history_learns_rates(void **state) {
    (void)state;
    di_history h = {0};
    float survivals[DI_SPEC_MOST + 2];
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[0] > 0.5f && survivals[4] > 0.2f && survivals[4] < survivals[0]);
    for (int i = 0; i < 200; i++) di_history_add(&h, 5, 2, 0);
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[1] > 0.9f && survivals[2] < 0.15f);
    for (int i = 0; i < 200; i++) di_history_add(&h, 5, 5, 0);
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[4] > 0.75f);
    assert_int_equal(h.drafted, 2000);
    assert_int_equal(h.accepted, 1400);
    di_history_add(&h, 1000, 2000, 0); /* cut to what can be */
    di_history_survivals(&h, DI_SPEC_MOST + 2, survivals);
    for (int j = 1; j < DI_SPEC_MOST + 2; j++) assert_true(survivals[j] <= survivals[j - 1] && survivals[j] >= 0);
    assert_true(di_history_wants(&h)); /* costs were never known */
}

static uint32_t tokens_until_next_try(di_history *h) {
    uint32_t n = 0;
    while (!di_history_wants(h)) {
        di_history_plain(h);
        n++;
        assert_true(n < 10000);
    }
    return n;
}

static void drafts_that_do_not_pay_pause(void **state) {
    (void)state;
    di_history h = {0};
    uint32_t cycles = 0, pause = 0, before;
    while (di_history_wants(&h)) {
        di_history_add(&h, 5, 0, 2.5);
        assert_true(++cycles < 20);
    }
    for (int i = 0; i < 8; i++) { /* every try that fails doubles the pause, up to a limit */
        before = pause;
        pause = tokens_until_next_try(&h);
        assert_true(pause >= before && pause <= 1024);
        while (di_history_wants(&h)) di_history_add(&h, 5, 0, 2.5);
    }
    assert_int_equal(pause, 1024);
    tokens_until_next_try(&h);
    for (int i = 0; i < 10; i++) di_history_add(&h, 5, 4, 2.5); /* and one that pays ends it */
    assert_true(di_history_wants(&h));
    cycles = 0;
    while (di_history_wants(&h)) {
        di_history_add(&h, 5, 0, 2.5);
        assert_true(++cycles < 50);
    }
    assert_true(tokens_until_next_try(&h) < 1024);
    di_history good = {0};
    for (int i = 0; i < 1000; i++) {
        di_history_add(&good, 5, i % 2 ? 0 : 4, 2.5); /* 3 tokens for 2.5 steps, unevenly */
        assert_true(di_history_wants(&good));
    }
}

static void new_sequences_expect_what_others_found(void **state) {
    (void)state;
    di_history all = {0}, h;
    float guess[5], survivals[5];
    di_history_start(&h, &all);
    di_history_survivals(&h, 5, guess);
    for (int i = 0; i < 100; i++) di_history_add(&all, 5, 0, 0);
    di_history_start(&h, &all);
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[0] < guess[0] - 0.3f);
    assert_true(di_history_wants(&h) && h.drafted == 0);
    for (int i = 0; i < 8; i++) di_history_add(&h, 5, 5, 0); /* it may still be another text */
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[0] > 0.7f);
    di_history_decline(&h);
    assert_false(di_history_wants(&h));
    for (int i = 0; i < 100; i++) di_history_add(&h, 5, 0, 0);
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[0] < 0.2f);
    for (int i = 0; i < 20; i++) di_history_decline(&h); /* what is known fades, so that it is tried again */
    di_history_survivals(&h, 5, survivals);
    assert_true(survivals[0] > 0.75f);
    assert_int_equal(tokens_until_next_try(&h), 32); /* nothing was lost, so pauses do not grow */
}

/* ---------------------------------------------------------------- budget */

/* Steps of `streams` sequences, of which those that may draft gain `gain`; the share of time that drafting took more,
 * with 3 % of a step for each step in which rows keep keys for the head. */
static double lost_share(di_budget *b, int steps, uint32_t streams, double gain) {
    double lost = 0;
    for (int i = 0; i < steps; i++) {
        di_budget_phase phase = di_budget_step(b, streams);
        if (phase != DI_BUDGET_REST) {
            lost += 0.03;
            di_budget_keys(b, 1, streams);
        }
        if (phase != DI_BUDGET_DRAFT) continue;
        di_budget_settle(b, gain, streams);
        lost -= gain;
    }
    return lost / steps;
}

static void losses_are_bounded(void **state) {
    (void)state;
    for (double gain = -4; gain < -0.01; gain /= 2) {
        di_budget b = {0};
        assert_true(lost_share(&b, 1000, 1, gain) < 0.02);
        assert_true(lost_share(&b, 20000, 1, gain) < 0.005);
    }
    di_budget b = {0};
    di_budget_settle(&b, -1e300, 1);
    di_budget_settle(&b, NAN, 1); /* no number counts as a loss */
    assert_true(b.accounts[0].lost <= 8.1);
}

/* Sequences that rest one by one keep keys now and then, and nobody drafts. */
static void keys_for_nothing_end_too(void **state) {
    (void)state;
    di_budget b = {0};
    uint32_t kept = 0;
    for (int i = 0; i < 20000; i++) {
        if (di_budget_step(&b, 8) != DI_BUDGET_DRAFT) continue;
        di_budget_keys(&b, 0.4, 8);
        kept++;
    }
    assert_in_range(kept, 300, 1500);
    di_budget_keys(&b, NAN, 8);
    di_budget_keys(&b, -1, 8);
    assert_true(b.accounts[3].lost <= 4);
}

static void gains_keep_it_going(void **state) {
    (void)state;
    di_budget b = {0};
    uint64_t dice = 1;
    uint32_t drafted = 0;
    for (int i = 0; i < 20000; i++) { /* half a step a cycle, unevenly */
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        if (di_budget_step(&b, 4) != DI_BUDGET_DRAFT) continue;
        di_budget_settle(&b, (double)(dice >> 61) / 2 - 1.25, 4);
        drafted++;
    }
    assert_true(drafted > 19000);
    for (int i = 0; i < 30; i++) di_budget_settle(&b, 0.5, 4);
    assert_true(di_budget_width(&b) >= 4096);
    int until = 0;
    while (di_budget_now(&b) == DI_BUDGET_DRAFT && until < 1000) { /* what was won is not lost for ever */
        di_budget_settle(&b, -1, 4);
        until++;
    }
    assert_in_range(until, 20, 40);
    assert_int_equal(di_budget_width(&b), 1);
}

/* What was found of fifty sequences says nothing of one, and the other way round. */
static void accounts_are_apart(void **state) {
    (void)state;
    di_budget b = {0};
    while (di_budget_now(&b) != DI_BUDGET_REST) lost_share(&b, 1, 50, -1);
    uint32_t rest = b.accounts[5].rest;
    assert_true(rest > 100);
    for (int i = 0; i < 50; i++) assert_int_equal(di_budget_step(&b, 0), DI_BUDGET_REST); /* nothing decodes */
    assert_int_equal(di_budget_step(&b, 32), DI_BUDGET_REST);
    assert_int_equal(di_budget_step(&b, 31), DI_BUDGET_WARM); /* nobody has left keys */
    int warm = 1;
    while (di_budget_step(&b, 16) == DI_BUDGET_WARM) warm++;
    assert_in_range(warm, 8, 64);
    assert_int_equal(di_budget_now(&b), DI_BUDGET_DRAFT);
    for (int i = 0; i < 100; i++) di_budget_settle(&b, 1, 16);
    assert_int_equal(di_budget_step(&b, 8), DI_BUDGET_DRAFT); /* keys are there */
    assert_int_equal(di_budget_step(&b, 63), DI_BUDGET_REST);
    assert_int_equal(b.accounts[5].rest, rest - 2);
    assert_int_equal(di_budget_step(&b, UINT32_MAX), DI_BUDGET_WARM);
    for (uint32_t i = 0, left = b.accounts[b.now].warm; i < 50;
         i++) { /* nobody decodes: nothing is kept for the head */
        di_budget_step(&b, 0);
        assert_int_equal(b.accounts[b.now].warm, left);
    }
}

/* Now and then half of the sequences are away: the rests grow all the same. */
static void load_that_comes_and_goes_costs_little(void **state) {
    (void)state;
    for (int often = 1; often <= 20; often += 19) {
        di_budget b = {0};
        double lost = 0;
        for (int i = 0; i < 10000 / (often + 1); i++)
            lost += often * lost_share(&b, often, 8, -1) + lost_share(&b, 1, 4, -1);
        assert_true(lost / 10000 < 0.01);
        assert_true(b.accounts[3].pause >= 1024);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_are_typical_and_never_fall),
        cmocka_unit_test(schedules_are_the_best_of_all),
        cmocka_unit_test(schedules_of_nothing_and_of_no_numbers),
        cmocka_unit_test(survivals_are_products),
        cmocka_unit_test(lookups_find_the_longest_agreement),
        cmocka_unit_test(lookups_of_short_and_repeating_sequences),
        cmocka_unit_test(history_learns_rates),
        cmocka_unit_test(drafts_that_do_not_pay_pause),
        cmocka_unit_test(new_sequences_expect_what_others_found),
        cmocka_unit_test(losses_are_bounded),
        cmocka_unit_test(keys_for_nothing_end_too),
        cmocka_unit_test(gains_keep_it_going),
        cmocka_unit_test(accounts_are_apart),
        cmocka_unit_test(load_that_comes_and_goes_costs_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
