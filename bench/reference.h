/* SPDX-License-Identifier: MIT */
/* The reference tables: what their parts share. A part plans its runs, which are measured together, and prints them. */
#ifndef BENCH_REFERENCE_H
#define BENCH_REFERENCE_H

#include "combined.h"
#include "workloads.h"

#define REFERENCE_TEAMS 2 /* numbers of threads in the ordinary rows of the first touch */
#define REFERENCE_TESTS 5 /* runs of workload 1 */
#define REFERENCE_RUNS (REFERENCE_TESTS + 2 * REFERENCE_TEAMS + 2 + 2)

struct reference {
	struct bench_run run[REFERENCE_RUNS];
	unsigned count;
	bool quick;
	unsigned rounds;
	double seconds;                                          /* that a round of workload 1 takes */
	uint64_t faults_size, touch_size, mutex_size, fill_size; /* bytes */
	unsigned threads[REFERENCE_TEAMS];
	struct bench_run *test[REFERENCE_TESTS];                                               /* workload 1 */
	struct bench_run *ready[REFERENCE_TEAMS], *lazy[REFERENCE_TEAMS], *zeroing, *sleeping; /* workload 2 */
	struct bench_run *fill;                                                                /* workload 3 */
	struct bench_run *collapse;                                                            /* workload 4 */
};

struct bench_run *reference_run(struct reference *r, const char *bench, unsigned rounds);

void reference_plan_faults(struct reference *r);
void reference_print_faults(const struct reference *r, FILE *out);
void reference_plan_touch(struct reference *r);
void reference_print_touch(const struct reference *r, FILE *out);
void reference_plan_fill(struct reference *r);
void reference_print_fill(const struct reference *r, FILE *out);
void reference_plan_collapse(struct reference *r);
void reference_print_collapse(const struct reference *r, FILE *out);

#endif
