/* SPDX-License-Identifier: MIT */
/* `hugepool bench fork-cow`: what one series of it measures. */
#ifndef BENCH_FORK_COW_H
#define BENCH_FORK_COW_H

#include "harness.h"

/* Pages that each process writes after the fork: few, since each is copied. */
#define FORK_COW_WRITES_MAX 64

enum { FORK_COW_FORK, FORK_COW_WRITE, FORK_COW_CHILD_WRITE, FORK_COW_METRICS };

/* Private memory that is there, and a fork of the process that has it. */
struct fork_cow {
	bool kernel;     /* its own private huge pages, not hugepool's */
	unsigned policy; /* hugepool: HP_FORK_WITHOUT, HP_FORK_COPY or 0 */
	uint64_t size;   /* bytes of the memory */
};

/* How many pages each of the two processes writes. */
unsigned fork_cow_writes(uint64_t size);

extern const struct bench_job fork_cow_job;

#endif
