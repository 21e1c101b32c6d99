/* SPDX-License-Identifier: MIT */
/* CPUs and the clock. */
#ifndef HP_BASE_MACHINE_H
#define HP_BASE_MACHINE_H

#include <sched.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* CPUs that this process may use; at least 1. */
static inline uint32_t hp_cpu_count(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) == 0)
		return (uint32_t)CPU_COUNT(&set);
	/* More CPUs than the set can hold. */
	return (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

static inline int64_t hp_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000 + now.tv_nsec;
}

#endif
