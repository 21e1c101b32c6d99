/* SPDX-License-Identifier: MIT */
/*
 * Read sections across the processes of a domain: epoch-based reclamation after Fraser ("Practical lock-freedom",
 * 2004).
 *
 * A reader writes the epoch that it begins in into its own thread's record, a cache line that nobody else writes. Who
 * takes memory out of a structure stamps it with the epoch of that moment; it may be used again when no reader is left
 * that began in that epoch or before:
 *
 *   reader                          who takes away
 *   section = epoch 7
 *   find the node
 *                                   unlink the node, stamp it 7
 *                                   epoch = 8; the oldest section is 7: it has to wait
 *   section = 0
 *                                   epoch = 9; no section: 7 is over
 *
 * As with the biased lock, the reader needs no fence where the other side can make all CPUs pass one (sync/barrier.h).
 * A reader that is stopped keeps everything that was taken away since: so who takes away must be able to do without
 * (arena/pages.h). One that is dead keeps nothing.
 */
#ifndef HP_SYNC_SECTION_H
#define HP_SYNC_SECTION_H

#include "sync/domain.h"

/* Signal safe; sections nest, also those of a signal handler. Returns what to leave with. */
static inline uint64_t hp_section_enter(const struct hp_locker *who)
{
	uint64_t outer = atomic_load_explicit(&who->record->section, memory_order_relaxed);

	if (outer)
		return outer;
	/* Acquire: what was taken away before this epoch began is not found. */
	atomic_store_explicit(&who->record->section, atomic_load_explicit(&who->shared->epoch, memory_order_acquire),
	                      memory_order_relaxed);
	if (who->shared->fenced)
		atomic_thread_fence(memory_order_seq_cst);
	else
		atomic_signal_fence(memory_order_seq_cst);
	return 0;
}

static inline void hp_section_leave(const struct hp_locker *who, uint64_t outer)
{
	atomic_store_explicit(&who->record->section, outer, memory_order_release);
}

/* What is taken away now is stamped with this, after it cannot be found any more. */
uint64_t hp_section_stamp(const struct hp_lock_domain *domain);
/* Begins a new epoch. What has a lower stamp than the returned one no reader can have any more. Signal safe. */
uint64_t hp_section_oldest(const struct hp_lock_domain *domain);

#endif
