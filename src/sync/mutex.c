/* SPDX-License-Identifier: MIT */
#include "sync/mutex.h"

#include "base/machine.h"
#include "sync/spin.h"
#include "sync/yield.h"

#include <errno.h>

static bool spin(struct hp_mutex *mutex, const struct hp_locker *who)
{
	uint32_t limit = hp_spin_limit(who, &mutex->spins), turn = 0;
	bool taken = false;

	while (turn < limit && !taken) {
		taken = atomic_load_explicit(&mutex->word, memory_order_relaxed) == 0 &&
		        hp_mutex_take(mutex, who->owner);
		if (!taken)
			turn = hp_spin_pause(turn);
	}
	return taken;
}

/* The owner in `seen` may be gone: then the mutex becomes ours, and what it protects is repaired. */
static bool take_over(struct hp_mutex *mutex, const struct hp_locker *who, enum hp_lock_class class, uint32_t seen)
{
	hp_owner dead = seen & ~HP_MUTEX_WAITERS;

	if (!hp_owner_is_gone(who->domain, dead))
		return false;
	HP_YIELD("mutex: owner is gone");
	if (!atomic_compare_exchange_strong_explicit(&mutex->word, &seen, who->owner | HP_MUTEX_WAITERS,
	                                             memory_order_acquire, memory_order_relaxed))
		return false;
	mutex->since_ns = 0;
	hp_stat_death(who, class, HP_LOCK_WRITE);
	hp_lock_class_repair(class, who, mutex, dead);
	return true;
}

static void sleep_until_taken(struct hp_mutex *mutex, const struct hp_locker *who, enum hp_lock_class class)
{
	uint32_t mark = 0; /* once we have slept others may sleep too, and whoever owns the mutex must wake one */

	for (;;) {
		uint32_t seen = atomic_load_explicit(&mutex->word, memory_order_relaxed);

		if (seen == 0) {
			if (atomic_compare_exchange_strong_explicit(&mutex->word, &seen, who->owner | mark,
			                                            memory_order_acquire, memory_order_relaxed))
				return;
			continue;
		}
		if (!(seen & HP_MUTEX_WAITERS) &&
		    !atomic_compare_exchange_strong_explicit(&mutex->word, &seen, seen | HP_MUTEX_WAITERS,
		                                             memory_order_relaxed, memory_order_relaxed))
			continue;
		seen |= HP_MUTEX_WAITERS;
		HP_YIELD("mutex: about to sleep");
		mark = HP_MUTEX_WAITERS;
		if (hp_futex_wait(&mutex->word, seen, HP_LIVENESS_NS) == -ETIMEDOUT &&
		    take_over(mutex, who, class, seen))
			return;
	}
}

void hp_mutex_lock_slow(struct hp_mutex *mutex, const struct hp_locker *who, uint32_t point)
{
	enum hp_lock_class class = hp_point_class(point);
	uint32_t holder = atomic_load_explicit(&mutex->point, memory_order_relaxed);
	int64_t start = hp_now_ns();

	HP_ASSERT(!hp_mutex_is_held_by(mutex, who->owner));
	if (!spin(mutex, who))
		sleep_until_taken(mutex, who, class);
	start = hp_now_ns() - start;
	hp_spin_learn(&mutex->spins, start);
	hp_stat_contended(who, class, HP_LOCK_WRITE, point, holder, start, &mutex->last_cpu);
}

void hp_mutex_wake(struct hp_mutex *mutex)
{
	HP_YIELD("mutex: about to wake");
	hp_futex_wake(&mutex->word, 1);
}

void hp_mutex_end_sample(struct hp_mutex *mutex, const struct hp_locker *who)
{
	hp_stat_held(who, hp_point_class(atomic_load_explicit(&mutex->point, memory_order_relaxed)), HP_LOCK_WRITE,
	             mutex->since_ns);
	mutex->since_ns = 0;
}
