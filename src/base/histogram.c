/* SPDX-License-Identifier: MIT */
#include "base/histogram.h"

#define PARTS_BITS 2u /* buckets of a power of two */
#define PARTS (1u << PARTS_BITS)
#define LOWEST_BITS 6u /* all below 2^6 ns is one bucket */

static unsigned bucket_of(uint64_t ns)
{
	unsigned bits, bucket;

	if (ns >> LOWEST_BITS == 0)
		return 0;
	bits = 63u - (unsigned)__builtin_clzll(ns);
	bucket = 1 + (bits - LOWEST_BITS) * PARTS + (unsigned)(ns >> (bits - PARTS_BITS) & (PARTS - 1));
	return bucket < HP_HISTOGRAM_BUCKETS ? bucket : HP_HISTOGRAM_BUCKETS - 1;
}

uint64_t hp_histogram_bound(unsigned bucket)
{
	unsigned bits;

	if (bucket == 0)
		return 0;
	if (bucket >= HP_HISTOGRAM_BUCKETS)
		return UINT64_MAX;
	bits = LOWEST_BITS + (bucket - 1) / PARTS;
	return (UINT64_C(1) << bits) + ((uint64_t)((bucket - 1) % PARTS) << (bits - PARTS_BITS));
}

void hp_histogram_add(struct hp_shared_histogram *histogram, uint64_t ns)
{
	uint64_t max = atomic_load_explicit(&histogram->max, memory_order_relaxed);

	atomic_fetch_add_explicit(&histogram->bucket[bucket_of(ns)], 1, memory_order_relaxed);
	atomic_fetch_add_explicit(&histogram->total, ns, memory_order_relaxed);
	while (ns > max && !atomic_compare_exchange_weak_explicit(&histogram->max, &max, ns, memory_order_relaxed,
	                                                          memory_order_relaxed))
		;
}

void hp_histogram_read(struct hp_shared_histogram *histogram, hp_histogram *out)
{
	*out = (hp_histogram){
		.total = atomic_load_explicit(&histogram->total, memory_order_relaxed),
		.max = atomic_load_explicit(&histogram->max, memory_order_relaxed),
	};
	for (unsigned b = 0; b < HP_HISTOGRAM_BUCKETS; b++) {
		out->bucket[b] = atomic_load_explicit(&histogram->bucket[b], memory_order_relaxed);
		out->count += out->bucket[b];
	}
}

uint64_t hp_histogram_percentile(const hp_histogram *histogram, double percent)
{
	double wanted = (double)histogram->count * percent / 100, seen = 0;

	for (unsigned b = 0; b < HP_HISTOGRAM_BUCKETS && histogram->count; b++) {
		uint64_t bound = hp_histogram_bound(b + 1);

		seen += (double)histogram->bucket[b];
		if (seen >= wanted && histogram->bucket[b])
			return bound < histogram->max ? bound : histogram->max;
	}
	return histogram->max;
}
