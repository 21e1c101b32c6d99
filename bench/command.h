/* SPDX-License-Identifier: MIT */
/* How a workload's command ends: measure, print, exit status. */
#ifndef BENCH_COMMAND_H
#define BENCH_COMMAND_H

#include "harness.h"

#include <jansson.h>
#include <stdio.h>

/* Does the run and prints it as a table or as JSON. `params` is taken over. Returns an exit status. */
int bench_command(struct bench_run *run, bool json, json_t *params);
/*
 * The same for a run that has a table of its own, or more to say than its metrics: `more`, which may be NULL, adds it to
 * the report, or prints it to standard output where report is NULL.
 */
int bench_command_with(struct bench_run *run, bool json, json_t *params,
                       void (*table)(const struct bench_run *run, FILE *out),
                       void (*more)(const struct bench_run *run, json_t *report));

#endif
