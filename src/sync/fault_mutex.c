/* SPDX-License-Identifier: MIT */
#include "sync/fault_mutex.h"

uint32_t hp_fault_mutexes_for(uint32_t cpus)
{
	uint32_t count = 1;

	while (cpus > 1 && count < cpus * 8 && count < HP_FAULT_MUTEXES_MAX)
		count *= 2;
	return count;
}
