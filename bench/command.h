/* SPDX-License-Identifier: MIT */
/* How a workload's command ends: measure, print, exit status. */
#ifndef BENCH_COMMAND_H
#define BENCH_COMMAND_H

#include "harness.h"

#include <jansson.h>

/* Does the run and prints it as a table or as JSON. `params` is taken over. Returns an exit status. */
int bench_command(struct bench_run *run, bool json, json_t *params);

#endif
