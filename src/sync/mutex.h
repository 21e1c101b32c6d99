/* SPDX-License-Identifier: MIT */
/*
 * A process-shared mutex. Not recursive. Signal safe. All zeroes is an unlocked mutex.
 *
 * Who finds it taken spins for about as long as spinning has paid off at this mutex before, then sleeps; an unlock
 * wakes one sleeper, which competes with those who come by (after U. Drepper, "Futexes Are Tricky", 2011, and glibc's
 * adaptive mutexes). A sleeper that hears nothing for HP_LIVENESS_NS asks whether the owner is alive; from a dead one
 * it takes the mutex over and runs the repair routine of its class.
 */
#ifndef HP_SYNC_MUTEX_H
#define HP_SYNC_MUTEX_H

#include "sync/domain.h"
#include "sync/order.h"

struct hp_mutex {
	_Atomic uint32_t word;  /* 0, or the owner, with HP_MUTEX_WAITERS if somebody may be asleep */
	_Atomic uint32_t point; /* where it was taken last */
	uint64_t since_ns;      /* of a sampled hold, else 0; the owner's */
	_Atomic uint16_t spins, last_cpu;
};

#define HP_MUTEX_WAITERS 0x80000000u

void hp_mutex_lock_slow(struct hp_mutex *mutex, const struct hp_locker *who, uint32_t point);
void hp_mutex_wake(struct hp_mutex *mutex);

static inline bool hp_mutex_take(struct hp_mutex *mutex, hp_owner owner)
{
	uint32_t expected = 0;

	return atomic_compare_exchange_strong_explicit(&mutex->word, &expected, owner, memory_order_acquire,
	                                               memory_order_relaxed);
}

/* The mutex is ours: notes where, and counts. */
static inline void hp_mutex_taken(struct hp_mutex *mutex, const struct hp_locker *who, enum hp_lock_class class,
                                  uint32_t point)
{
	hp_order_push(mutex, point);
	atomic_store_explicit(&mutex->point, point, memory_order_relaxed);
	if (__builtin_expect(hp_lock_count(who, class, HP_LOCK_WRITE), 0))
		mutex->since_ns = hp_stat_sample(who, class, HP_LOCK_WRITE, &mutex->last_cpu);
}

static inline bool hp_mutex_trylock_at(struct hp_mutex *mutex, const struct hp_locker *who, enum hp_lock_class class,
                                       uint32_t point)
{
	if (!hp_mutex_take(mutex, who->owner))
		return false;
	hp_mutex_taken(mutex, who, class, point);
	return true;
}

HP_FAST_PATH void hp_mutex_lock_at(struct hp_mutex *mutex, const struct hp_locker *who, enum hp_lock_class class,
                                   uint32_t point)
{
	hp_order_check(mutex, point);
	if (__builtin_expect(!hp_mutex_take(mutex, who->owner), 0))
		hp_mutex_lock_slow(mutex, who, point);
	hp_mutex_taken(mutex, who, class, point);
}

#define hp_mutex_lock(mutex, who, class) hp_mutex_lock_at(mutex, who, class, HP_HERE(class))
#define hp_mutex_trylock(mutex, who, class) hp_mutex_trylock_at(mutex, who, class, HP_HERE(class))

void hp_mutex_end_sample(struct hp_mutex *mutex, const struct hp_locker *who);

HP_FAST_PATH void hp_mutex_unlock(struct hp_mutex *mutex, const struct hp_locker *who)
{
	hp_order_pop(mutex);
	if (__builtin_expect(mutex->since_ns != 0, 0))
		hp_mutex_end_sample(mutex, who);
	if (__builtin_expect(atomic_exchange_explicit(&mutex->word, 0, memory_order_release) & HP_MUTEX_WAITERS, 0))
		hp_mutex_wake(mutex);
}

static inline bool hp_mutex_is_held_by(const struct hp_mutex *mutex, hp_owner owner)
{
	return (atomic_load_explicit(&mutex->word, memory_order_relaxed) & ~HP_MUTEX_WAITERS) == owner;
}

#endif
