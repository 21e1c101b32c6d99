/* SPDX-License-Identifier: MIT */
/*
 * A process-shared reader-writer lock of two words. Waiting writers hold new readers off. Not recursive, for readers
 * neither. Signal safe. All zeroes is unlocked.
 */
#ifndef HP_SYNC_RWSEM_H
#define HP_SYNC_RWSEM_H

#include "sync/sync.h"

#include <stdatomic.h>
#include <stdbool.h>

struct hp_rwsem {
	_Atomic uint32_t state;  /* number of readers, or HP_RWSEM_WRITER; HP_RWSEM_WAITERS if somebody may be asleep */
	_Atomic uint32_t writer; /* the owner while written, for those who look on */
	_Atomic uint32_t writers_waiting;
};

#define HP_RWSEM_WRITER 0x40000000u
#define HP_RWSEM_WAITERS 0x80000000u

void hp_rwsem_read_lock_slow(struct hp_rwsem *sem);
void hp_rwsem_wake(struct hp_rwsem *sem);
void hp_rwsem_write_lock(struct hp_rwsem *sem, hp_owner owner);
void hp_rwsem_write_unlock(struct hp_rwsem *sem);

static inline bool hp_rwsem_read_trylock(struct hp_rwsem *sem)
{
	uint32_t seen = atomic_load_explicit(&sem->state, memory_order_relaxed);

	while (!(seen & HP_RWSEM_WRITER) && !atomic_load_explicit(&sem->writers_waiting, memory_order_relaxed))
		if (atomic_compare_exchange_weak_explicit(&sem->state, &seen, seen + 1, memory_order_acquire,
		                                          memory_order_relaxed))
			return true;
	return false;
}

static inline void hp_rwsem_read_lock(struct hp_rwsem *sem)
{
	if (!hp_rwsem_read_trylock(sem))
		hp_rwsem_read_lock_slow(sem);
}

static inline void hp_rwsem_read_unlock(struct hp_rwsem *sem)
{
	if (atomic_fetch_sub_explicit(&sem->state, 1, memory_order_release) == (HP_RWSEM_WAITERS | 1))
		hp_rwsem_wake(sem);
}

#endif
