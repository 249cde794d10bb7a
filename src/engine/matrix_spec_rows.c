/* matrix_spec_rows.c - the row of the matrix about drafts: any number of them, from the draft head or by look-up. */
#include <stdio.h>

#include "engine/matrix_internal.h"

static bool run_drafts(matrix *m, uint64_t round, const char *length) {
    const matrix_set *set = matrix_mixed(m, round);
    if (!set) return false;
    di_engine *engine = matrix_open(m, MATRIX_NO_TIES, false, MATRIX_OVERRIDES("cache-ram", "0", "spec", length));
    if (!engine) return false;
    bool ok = matrix_run_set(m, engine, set, false) && matrix_run_set(m, engine, set, true);
    uint64_t drafted = matrix_counter(engine, DI_COUNT_DRAFTED);
    di_close(engine);
    /* How many `auto` takes is its own business. */
    matrix_expect(m, drafted > 0 || length[0] == 'a', "nothing was drafted, so nothing was tested");
    return ok;
}

bool matrix_drafts(matrix *m, uint64_t round) {
    static const char *const lengths[] = {"1", "2", "3", "5", "8", "auto"};
    bool ok = true;
    for (uint32_t i = 0; ok && i < MATRIX_COUNT(lengths); i++) {
        if (matrix_is_small(m) && i % 2 == 0) continue;
        char name[32];
        snprintf(name, sizeof name, "--spec %s", lengths[i]);
        matrix_reseed(m, round, 70 + i);
        if (matrix_begin(m, "T7", name)) ok = run_drafts(m, round, lengths[i]);
    }
    return ok;
}
