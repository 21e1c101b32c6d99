/* SPDX-License-Identifier: MIT */
#include "sync/section.h"

#include "sync/barrier.h"

uint64_t hp_section_stamp(const struct hp_lock_domain *domain)
{
	return atomic_load(&domain->shared->epoch);
}

/*
 * A reader that has loaded an old epoch and not written it down yet is not seen here. It writes before it reads, and we
 * have passed a barrier on its CPU since what was stamped became unreachable: it does not find that any more.
 */
uint64_t hp_section_oldest(const struct hp_lock_domain *domain)
{
	uint64_t oldest = atomic_fetch_add(&domain->shared->epoch, 1) + 1;
	uint32_t slots = domain->slots ? atomic_load(&domain->shared->slots_used) : 0;

	if (domain->shared->fenced)
		atomic_thread_fence(memory_order_seq_cst);
	else
		hp_barrier_all();
	for (uint32_t i = 0; i < slots; i++) {
		uint64_t began = atomic_load_explicit(&domain->records[i].section, memory_order_acquire);

		if (began && began < oldest && !hp_slot_is_gone(&domain->slots[i]))
			oldest = began;
	}
	return oldest;
}
