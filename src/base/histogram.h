/* SPDX-License-Identifier: MIT */
/*
 * A histogram of times that many threads, and processes, add to: relaxed counters in shared memory. Signal safe.
 *
 * Four buckets for each power of two, so that a bucket is an eighth to a quarter wider than the one before.
 */
#ifndef HP_BASE_HISTOGRAM_H
#define HP_BASE_HISTOGRAM_H

#include "hugepool.h"

#include <stdatomic.h>

struct hp_shared_histogram {
	_Atomic uint64_t total, max;
	_Atomic uint64_t bucket[HP_HISTOGRAM_BUCKETS];
};

void hp_histogram_add(struct hp_shared_histogram *histogram, uint64_t ns);
void hp_histogram_read(struct hp_shared_histogram *histogram, hp_histogram *out);

#endif
