/* SPDX-License-Identifier: MIT */
/* Workloads as parts of a run, for their own commands and for the reference tables. */
#ifndef BENCH_WORKLOADS_H
#define BENCH_WORKLOADS_H

#include "engine.h"
#include "harness.h"

/* Threads share a region of one file and touch a byte every `skip` bytes, each its contiguous part. */
struct parallel_fault {
	const struct engine *engine;
	struct engine_setup setup;
	uint64_t skip; /* bytes */
	bool random;   /* each thread touches its part in random order */
};
enum { PARALLEL_FAULT_RATE, PARALLEL_FAULT_WALL, PARALLEL_FAULT_CPU, PARALLEL_FAULT_FILL, PARALLEL_FAULT_METRICS };
extern const struct bench_metric parallel_fault_metrics[PARALLEL_FAULT_METRICS];
extern const struct bench_job parallel_fault_job;
uint64_t parallel_fault_touches(const struct parallel_fault *params);

/* Processes map a filled file, write a byte in each huge page, unmap, and begin again. */
struct faults {
	const struct engine *engine;
	struct engine_setup setup;
	unsigned instances;
	double seconds; /* that a round takes */
};
enum { FAULTS_RATE, FAULTS_WALL, FAULTS_CPU, FAULTS_FILL, FAULTS_METRICS };
extern const struct bench_metric faults_metrics[FAULTS_METRICS];
extern const struct bench_job faults_job;

#endif
