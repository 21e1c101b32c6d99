/* SPDX-License-Identifier: MIT */
/* `hugepool bench collapse`: its series, for the command and for the reference tables. */
#ifndef BENCH_COLLAPSE_H
#define BENCH_COLLAPSE_H

#include "harness.h"
#include "pairs.h"

#include <stdio.h>

#define COLLAPSE_COUNT 100 /* collapses in a round */
#define COLLAPSE_COUNT_MAX BENCH_SAMPLES_MAX
#define COLLAPSE_PAIRS 30
#define COLLAPSE_WARM_UP \
	5 /* collapses at the start of a round that are not in its clock: who had the last round is gone then */
#define COLLAPSE_WRITERS_MAX 2

/* Times are in us, of one collapse: means of a round's, but for the pauses. */
enum {
	COLLAPSE_TIME,
	COLLAPSE_MEDIAN, /* of a round's, which single interruptions do not move */
	COLLAPSE_LOCK,   /* its parts, as hugepool counts them */
	COLLAPSE_PROTECT,
	COLLAPSE_COPY,
	COLLAPSE_SWITCH,
	COLLAPSE_FREE,
	COLLAPSE_RECHECKED, /* of a round */
	COLLAPSE_GAVE_UP,
	COLLAPSE_PAUSE, /* the median over a round's collapses, and so on */
	COLLAPSE_PAUSE_95,
	COLLAPSE_PAUSE_MAX,
	COLLAPSE_METRICS
};

/* Of a run with tracing, whose calls are timed as the others are. */
enum { COLLAPSE_TRACE_CALL = COLLAPSE_TIME, COLLAPSE_TRACE_FUNCTION, COLLAPSE_TRACE_METRICS };

/* One way to make the base pages of 2 MiB a huge page. */
struct collapse {
	unsigned count;     /* in a round */
	bool shared;        /* kernel: shared memory, not anonymous */
	const char *tuning; /* hugepool */
	unsigned writers;   /* threads that store to the page all the time */
	bool pinned;        /* the writer to a CPU, the collapse to another */
};

extern const struct bench_job collapse_kernel_job, collapse_hugepool_job, collapse_copy_job, collapse_writers_job;
extern const struct bench_job collapse_trace_job;

/* What a series' process has, of any of these jobs. */
struct collapse_state {
	const struct collapse *params;
	char *why;   /* of what is going on */
	double *all; /* ns of each collapse of a round */
	int mark;    /* kernel: its trace gets a mark there before each call; -1 */
};

/* False: no memory. */
bool collapse_begin(struct collapse_state *state, const void *params, char why[BENCH_WHY]);
/* In us, of a round whose collapses are all noted. */
void collapse_sum_up(const struct collapse_state *state, double *mean, double *median);
/* Says what failed; false. */
bool collapse_failed(struct collapse_state *state, int rc, const char *what, const char *message);
/* A byte is stored to each base page. */
void collapse_touch(char *address);

/* The next thing this process does is the system call. */
void collapse_trace_mark(const struct collapse_state *state);

/* Everything of the workload, or, without writers, what the table of workload 4 needs. */
void collapse_plan(struct bench_run *run, unsigned count, bool writers);

/* The kernel's rows once more, traced. */
void collapse_plan_trace(struct bench_run *run, unsigned count);

/* A pair that says something: how many times as fast the first is as the second. */
struct collapse_pair {
	const char *name; /* "relock to upgrade" */
	const struct bench_series *ours, *theirs;
};
enum { COLLAPSE_PAIR_VARIANT, COLLAPSE_PAIR_AA, COLLAPSE_PAIR_SHMEM, COLLAPSE_PAIR_ANONYMOUS, COLLAPSE_PAIRS_TOTAL };
struct collapse_pair collapse_pair(const struct bench_run *run, unsigned number);

/* `trace` may be NULL: it was not asked for. A run without writers has no table of its own. */
void collapse_print(const struct bench_run *run, const struct bench_run *trace, FILE *out);
void collapse_report(const struct bench_run *run, const struct bench_run *trace, json_t *report);

#endif
