/* bench_spec.h - `deepinfer bench spec`: what drafts are worth on this machine with this model and this text. */
#ifndef DI_CLI_BENCH_SPEC_H
#define DI_CLI_BENCH_SPEC_H

#include "cli/cli.h"

/* The command; returns its exit code. */
int di_bench_spec(di_cli *cli);

#endif
