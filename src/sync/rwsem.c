/* SPDX-License-Identifier: MIT */
#include "sync/rwsem.h"

#include "base/assert.h"
#include "sync/futex.h"

/* Sleeps until the state changes, having marked it so that the one who changes it wakes us. */
static void sleep_on(struct hp_rwsem *sem, uint32_t seen)
{
	if (!(seen & HP_RWSEM_WAITERS) &&
	    !atomic_compare_exchange_strong_explicit(&sem->state, &seen, seen | HP_RWSEM_WAITERS, memory_order_relaxed,
	                                             memory_order_relaxed))
		return;
	hp_futex_wait(&sem->state, seen | HP_RWSEM_WAITERS, HP_FUTEX_FOREVER);
}

void hp_rwsem_wake(struct hp_rwsem *sem)
{
	atomic_fetch_and_explicit(&sem->state, ~HP_RWSEM_WAITERS, memory_order_relaxed);
	hp_futex_wake(&sem->state, INT_MAX);
}

void hp_rwsem_read_lock_slow(struct hp_rwsem *sem)
{
	while (!hp_rwsem_read_trylock(sem)) {
		uint32_t seen = atomic_load_explicit(&sem->state, memory_order_relaxed);

		/* A writer that waits for readers to leave holds us off without being in the state: let it run. */
		if (seen & HP_RWSEM_WRITER)
			sleep_on(sem, seen);
		else if (atomic_load_explicit(&sem->writers_waiting, memory_order_relaxed))
			hp_futex_wait(&sem->writers_waiting, atomic_load(&sem->writers_waiting), 1000000);
	}
}

void hp_rwsem_write_lock(struct hp_rwsem *sem, hp_owner owner)
{
	HP_ASSERT(atomic_load_explicit(&sem->writer, memory_order_relaxed) != owner);
	atomic_fetch_add_explicit(&sem->writers_waiting, 1, memory_order_relaxed);
	for (;;) {
		uint32_t seen = atomic_load_explicit(&sem->state, memory_order_relaxed);

		if ((seen & ~HP_RWSEM_WAITERS) != 0)
			sleep_on(sem, seen);
		else if (atomic_compare_exchange_strong_explicit(&sem->state, &seen, seen | HP_RWSEM_WRITER,
		                                                 memory_order_acquire, memory_order_relaxed))
			break;
	}
	atomic_store_explicit(&sem->writer, owner, memory_order_relaxed);
	if (atomic_fetch_sub_explicit(&sem->writers_waiting, 1, memory_order_relaxed) == 1)
		hp_futex_wake(&sem->writers_waiting, INT_MAX);
}

void hp_rwsem_write_unlock(struct hp_rwsem *sem)
{
	atomic_store_explicit(&sem->writer, 0, memory_order_relaxed);
	if (atomic_exchange_explicit(&sem->state, 0, memory_order_release) & HP_RWSEM_WAITERS)
		hp_futex_wake(&sem->state, INT_MAX);
}
