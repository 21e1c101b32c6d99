/* SPDX-License-Identifier: MIT */
/* Workloads as parts of a run, for their own commands and for the reference tables. */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include "engine.h"
#include "engine_locks.h"
#include "harness.h"

/* Threads share a region of one file and touch a byte every `skip` bytes, each its contiguous part. */
struct parallel_fault {
	const struct engine *engine;
	struct engine_setup setup;
	uint64_t skip;              /* bytes */
	bool random;                /* each thread touches its part in random order */
	struct engine_locks *locks; /* shared memory; filled when the series is over. NULL: not asked for */
};
enum { PARALLEL_FAULT_RATE, PARALLEL_FAULT_WALL, PARALLEL_FAULT_CPU, PARALLEL_FAULT_FILL, PARALLEL_FAULT_METRICS };
extern const struct bench_metric parallel_fault_metrics[PARALLEL_FAULT_METRICS];
extern const struct bench_job parallel_fault_job;
uint64_t parallel_fault_touches(const struct parallel_fault *params);
/* "383 contentions in 120546 acquisitions, 1381.72 us waited": of a class of mutexes */
void parallel_fault_print_locks(const struct engine_locks *locks, const char *class, FILE *out);

/*
 * Instances are processes that all map one filled file, and do so again and again for the time of a round. One that
 * faults writes a byte in each huge page, then unmaps. One that forks writes to the first few pages only, forks a child
 * that ends at once, waits for it, and unmaps.
 */
enum instance_kind { INSTANCE_FAULTS, INSTANCE_FORKS, INSTANCE_KINDS };

/* What a series leaves for the report, in shared memory. */
struct instances_record {
	struct engine_locks locks;
	/* By round, so that those of several series make pairs. 0: the round does not count. */
	double rate[BENCH_SAMPLES_MAX][INSTANCE_KINDS];
};

struct instances {
	const struct engine *engine;
	struct engine_setup setup;
	unsigned count[INSTANCE_KINDS];  /* all at the same time */
	double seconds;                  /* that a round takes */
	struct instances_record *record; /* NULL: not asked for */
};

extern const struct bench_job instances_job;
/* Adds a series with a copy of `params` to change, and its huge memory. */
struct instances *instances_add(struct bench_run *run, const struct engine *engine, const struct instances *params);
/* The run's metrics, for series with instances of these kinds: first their rates, in the order of the kinds. */
void instances_set_metrics(struct bench_run *run, const struct instances *params);
unsigned instances_rate_metric(const struct instances *params, enum instance_kind kind);

/* A command line for instances; the kinds are those whose count is not 0 beforehand. */
struct instances_asked {
	const char *command;
	struct instances params;
	unsigned rounds;
	bool json;
};
/* An exit status: BENCH_DONE to go on. */
int instances_options(struct instances_asked *asked, int argc, char **argv);
json_t *instances_params_json(const struct instances_asked *asked);

#endif
