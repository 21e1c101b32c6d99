/* SPDX-License-Identifier: MIT */
#include "os/budget.h"

#include <errno.h>

uint64_t hp_maps_max(struct hp_os *os)
{
	uint64_t max = atomic_load_explicit(&os->maps_max, memory_order_relaxed);

	if (!max) {
		max = os->ops->max_map_count(os) / 5 * 4;
		atomic_store_explicit(&os->maps_max, max, memory_order_relaxed);
	}
	return max;
}

uint64_t hp_maps_taken(struct hp_os *os)
{
	return atomic_load_explicit(&os->maps_taken, memory_order_relaxed);
}

int hp_maps_take(struct hp_os *os, uint64_t maps)
{
	uint64_t taken = hp_maps_taken(os), max = hp_maps_max(os);

	do {
		if (maps > max || taken > max - maps)
			return -ENOMEM;
	} while (!atomic_compare_exchange_weak_explicit(&os->maps_taken, &taken, taken + maps, memory_order_relaxed,
	                                                memory_order_relaxed));
	return 0;
}

void hp_maps_give(struct hp_os *os, uint64_t maps)
{
	atomic_fetch_sub_explicit(&os->maps_taken, maps, memory_order_relaxed);
}
