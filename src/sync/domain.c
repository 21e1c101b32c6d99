/* SPDX-License-Identifier: MIT */
#include "sync/domain.h"

#include "base/machine.h"
#include "sync/barrier.h"
#include "sync/signals.h"

void hp_locks_init(struct hp_lock_domain *domain)
{
	domain->shared->fenced = !hp_barrier_join();
	domain->shared->cpus = hp_cpu_count();
	atomic_store(&domain->shared->epoch, 1);
	atomic_store(&domain->shared->statistics.enabled, 1);
}

HP_AFTER_A_DEATH void hp_locker_init(struct hp_locker *who, const struct hp_lock_domain *domain,
                                     const struct hp_slot *slot)
{
	uint32_t used = atomic_load(&domain->shared->slots_used);

	who->owner = hp_slot_owner(slot);
	who->record = &domain->records[slot->id];
	who->shared = domain->shared;
	who->domain = domain;
	/* The first acquisition of each kind is one of the sample. */
	for (unsigned class = 0; class < HP_LOCK_CLASSES; class ++)
		for (unsigned mode = 0; mode < HP_LOCK_MODES; mode++)
			if (hp_lock_acquired(who->record, class, mode) == 0) {
				atomic_store(&who->record->ticks[class][mode], UINT8_MAX);
				atomic_store(&who->record->acquired[class][mode], (uint64_t)-UINT8_MAX);
			}
	/* What the slot's last thread was reading and measuring when it died. */
	atomic_store(&who->record->section, 0);
	for (unsigned k = 0; k < HP_HOLDS; k++)
		who->record->since_ns[k] = 0;
	while (used <= slot->id && !atomic_compare_exchange_weak(&domain->shared->slots_used, &used, slot->id + 1))
		;
}

/* Whoever finds the mutex free has proof; the mark that its owner died is spent by the first who asks. */
bool hp_slot_is_gone(struct hp_slot *slot)
{
	sigset_t saved;
	bool gone;

	hp_signals_block(&saved);
	gone = hp_slot_take_life(slot);
	if (gone)
		pthread_mutex_unlock(&slot->life);
	hp_signals_restore(&saved);
	return gone;
}

bool hp_owner_is_gone(const struct hp_lock_domain *domain, hp_owner owner)
{
	struct hp_slot *slot;

	if (!domain->slots || !owner)
		return false;
	slot = &domain->slots[(owner & HP_OWNER_SLOT_MASK) - 1];
	if (hp_slot_owner(slot) != owner)
		return true; /* the slot has another thread by now */
	/* A slot that is claimed between these two looks has a new generation, or is still held. */
	return hp_slot_is_gone(slot);
}
