/* SPDX-License-Identifier: MIT */
#include "sync/mutex.h"

#include "base/assert.h"
#include "sync/futex.h"

/* Critical sections here last some hundred ns: a little spinning saves most sleeps when the owner is running. */
#define SPINS 100

void hp_mutex_lock_slow(struct hp_mutex *mutex, hp_owner owner)
{
	uint32_t mark = 0; /* once we have slept others may sleep too, and whoever owns the mutex must wake one */

	HP_ASSERT(!hp_mutex_is_held_by(mutex, owner));
	for (unsigned spin = 0; spin < SPINS; spin++) {
		if (atomic_load_explicit(&mutex->word, memory_order_relaxed) == 0 && hp_mutex_trylock(mutex, owner))
			return;
		hp_cpu_relax();
	}
	for (;;) {
		uint32_t seen = atomic_load_explicit(&mutex->word, memory_order_relaxed);

		if (seen == 0) {
			if (atomic_compare_exchange_strong_explicit(&mutex->word, &seen, owner | mark,
			                                            memory_order_acquire, memory_order_relaxed))
				return;
			continue;
		}
		if (!(seen & HP_MUTEX_WAITERS) &&
		    !atomic_compare_exchange_strong_explicit(&mutex->word, &seen, seen | HP_MUTEX_WAITERS,
		                                             memory_order_relaxed, memory_order_relaxed))
			continue;
		hp_futex_wait(&mutex->word, seen | HP_MUTEX_WAITERS, HP_FUTEX_FOREVER);
		mark = HP_MUTEX_WAITERS;
	}
}

void hp_mutex_wake(struct hp_mutex *mutex)
{
	hp_futex_wake(&mutex->word, 1);
}
