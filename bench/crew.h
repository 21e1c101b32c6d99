/* SPDX-License-Identifier: MIT */
/* Threads that do one thing together, each its share of a range of frames, and the clock over it. */
#ifndef BENCH_CREW_H
#define BENCH_CREW_H

#include <stdint.h>

typedef int bench_share_fn(void *context, uint64_t offset, uint64_t length);

/*
 * The caller is the first of the threads; all stand ready before one begins. `elapsed_ns` is from then until the last
 * is done. Returns the first error of a share; a thread that cannot be started ends the process.
 */
int bench_crew(unsigned threads, uint64_t size, bench_share_fn *work, void *context, double *elapsed_ns);

#endif
