/* SPDX-License-Identifier: MIT */
/* A run's results as a table and as JSON. */
#ifndef BENCH_REPORT_H
#define BENCH_REPORT_H

#include "harness.h"

#include <jansson.h>
#include <stdio.h>

/* The median of the series with this engine and the default variant; NaN if there is none. */
double report_default_median(const struct bench_run *run, const char *engine, unsigned metric);

/* null for NaN and what is infinite */
json_t *report_number(double value);

/*
 * {"version", "bench", "params", "env", "rows", "discarded", "ratios"}; params and env are taken over, NULL: left
 * out.
 */
json_t *report_json(const struct bench_run *run, json_t *params, json_t *env);
void report_json_print(json_t *report, FILE *out); /* and frees it */

void report_table(const struct bench_run *run, FILE *out);
/* What was discarded, and why. */
void report_discarded(const struct bench_run *run, FILE *out);

#endif
