/* SPDX-License-Identifier: MIT */
/*
 * How long to spin before sleeping. A lock remembers about how long its waiters waited; those who waited for longer
 * than a sleep is worth, as none. On one CPU nobody spins: the owner cannot be running.
 */
#ifndef HP_SYNC_SPIN_H
#define HP_SYNC_SPIN_H

#include "sync/domain.h"
#include "sync/futex.h"

#define HP_SPINS_MAX 800u /* some ten microseconds */
#define HP_SPIN_NS 20     /* about what a turn takes */

/* Turns to spin at a lock. */
static inline uint32_t hp_spin_limit(const struct hp_locker *who, _Atomic uint16_t *spins)
{
	uint32_t limit = 2u * atomic_load_explicit(spins, memory_order_relaxed) + 10;

	return who->shared->cpus == 1 ? 0 : limit < HP_SPINS_MAX ? limit : HP_SPINS_MAX;
}

/*
 * The second look comes soon, the others after some microseconds: each takes the cache line from the owner, who is
 * slowed down by more than the waiter wins by looking often. Returns the turns spent so far.
 */
static inline uint32_t hp_spin_pause(uint32_t turn)
{
	uint32_t pauses = turn ? 128 : 12;

	for (uint32_t i = 0; i < pauses; i++)
		hp_cpu_relax();
	return turn + pauses;
}

static inline void hp_spin_learn(_Atomic uint16_t *spins, int64_t waited_ns)
{
	int before = atomic_load_explicit(spins, memory_order_relaxed);
	int turns = waited_ns < HP_SPINS_MAX * HP_SPIN_NS ? (int)(waited_ns / HP_SPIN_NS) : 0;

	atomic_store_explicit(spins, (uint16_t)(before + (turns - before) / 8), memory_order_relaxed);
}

#endif
