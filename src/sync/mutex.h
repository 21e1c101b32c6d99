/* SPDX-License-Identifier: MIT */
/* A process-shared mutex of one word. Not recursive. Signal safe. All zeroes is an unlocked mutex. */
#ifndef HP_SYNC_MUTEX_H
#define HP_SYNC_MUTEX_H

#include "sync/sync.h"

#include <stdatomic.h>
#include <stdbool.h>

struct hp_mutex {
	_Atomic uint32_t word; /* 0, or the owner, with HP_MUTEX_WAITERS if somebody may be asleep */
};

#define HP_MUTEX_WAITERS 0x80000000u

void hp_mutex_lock_slow(struct hp_mutex *mutex, hp_owner owner);
void hp_mutex_wake(struct hp_mutex *mutex);

static inline bool hp_mutex_trylock(struct hp_mutex *mutex, hp_owner owner)
{
	uint32_t expected = 0;

	return atomic_compare_exchange_strong_explicit(&mutex->word, &expected, owner, memory_order_acquire,
	                                               memory_order_relaxed);
}

static inline void hp_mutex_lock(struct hp_mutex *mutex, hp_owner owner)
{
	if (!hp_mutex_trylock(mutex, owner))
		hp_mutex_lock_slow(mutex, owner);
}

static inline void hp_mutex_unlock(struct hp_mutex *mutex)
{
	if (atomic_exchange_explicit(&mutex->word, 0, memory_order_release) & HP_MUTEX_WAITERS)
		hp_mutex_wake(mutex);
}

static inline bool hp_mutex_is_held_by(const struct hp_mutex *mutex, hp_owner owner)
{
	return (atomic_load_explicit(&mutex->word, memory_order_relaxed) & ~HP_MUTEX_WAITERS) == owner;
}

#endif
