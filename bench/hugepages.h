/* SPDX-License-Identifier: MIT */
/*
 * The kernel's pool of huge pages, for as long as a measurement needs it.
 *
 * The number of pages is raised by what is missing and put back by a process of its own, the keeper, as soon as the
 * bench releases it or ends in any way at all: an error, a signal, kill -9. Only one bench or test at a time may
 * change the pool: they agree by a lock on /run/lock/hugepool-hugepages.lock (or the same name in /tmp), which the
 * keeper holds until the old number is back. HUGEPOOL_PAGES_LOCKED=1 says that a caller holds the lock already,
 * HUGEPOOL_PAGES_NONE=1 that nothing is to be raised.
 */
#ifndef BENCH_HUGEPAGES_H
#define BENCH_HUGEPAGES_H

#include "bench.h"

#include <sys/types.h>

struct bench_pages {
	pid_t keeper;            /* 0: nothing was changed, and nothing is locked */
	int hold;                /* as long as this pipe is open, the keeper waits; -1 */
	uint64_t before, during; /* pages in /proc/sys/vm/nr_hugepages */
	char why[BENCH_WHY];     /* why there are not as many as needed; empty if there are */
};

/*
 * Makes `bytes` of huge pages available beside those that are in use, if that is allowed and possible. 0 also when
 * there are too few, which `why` tells; -EINTR when bench_interrupted().
 */
int bench_pages_acquire(struct bench_pages *pages, uint64_t bytes);
/* How much of the machine's memory that would take: what is not there and may be added. */
uint64_t bench_pages_missing(uint64_t bytes);
/* Memory that processes can have, in bytes. */
uint64_t bench_memory_available(void);
/* Puts the number back and waits until it is. */
void bench_pages_release(struct bench_pages *pages);
/* For a process just forked: it must not keep the keeper waiting. */
void bench_pages_forget(struct bench_pages *pages);

#endif
