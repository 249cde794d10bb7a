/* kernel_tables.h - the kernel tables that this machine can run, for tests that compare them. */
#ifndef DI_TESTS_SUPPORT_KERNEL_TABLES_H
#define DI_TESTS_SUPPORT_KERNEL_TABLES_H

#include "backend/cpu/kernels.h"

#include <stdio.h>

#if defined(__x86_64__)
static const di_cpu_kernels *const case_tables[] = {&di_cpu_scalar, &di_cpu_avx2, &di_cpu_avx512, NULL};
#else
static const di_cpu_kernels *const case_tables[] = {&di_cpu_scalar, NULL};
#endif

static inline const di_cpu_kernels *const *first_table(const di_cpu_kernels *const *table) {
    while (*table && !di_cpu_supports(*table)) table++;
    return table;
}

/* Every table that this machine can run, the scalar one first: its results are what the others must give. Cases must
 * not depend on the table. */
#define FOR_EACH_TABLE(k)                                                                                              \
    for (const di_cpu_kernels *const *table_ = first_table(case_tables), *k = *table_; k;                              \
         table_ = first_table(table_ + 1), k = *table_)

static inline void name_skipped_tables(void) {
    for (size_t i = 0; case_tables[i]; i++)
        if (!di_cpu_supports(case_tables[i])) printf("skipped: %s, not on this machine\n", case_tables[i]->name);
}

#endif
