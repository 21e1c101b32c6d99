/* SPDX-License-Identifier: MIT */
#include "sync/biased.h"

#include "base/machine.h"
#include "sync/barrier.h"
#include "sync/futex.h"
#include "sync/spin.h"
#include "sync/yield.h"

/*
 * Readers in a row until the bias is learned again: a revocation looks at the record of each slot in use, most of which
 * nobody has touched since, and a reader saves some ten times such a look.
 */
#define STREAK_MIN 8u
#define SLOTS_PER_READER 4u

/* A warm bias that lasted so long is turned on: the barrier on all CPUs takes some us. */
#define SETTLED_NS 1000000

/* A revocation looks again by itself after so long: a reader may leave without telling. */
#define LOOK_AGAIN_NS 1000000

void hp_biased_init(struct hp_biased *lock, const struct hp_locker *who, bool may_bias)
{
	lock->may_bias = may_bias;
	atomic_store(&lock->bias, !may_bias ? HP_BIAS_OFF : who->shared->fenced ? HP_BIAS_WARM : HP_BIAS_ON);
}

/* ---- readers ---------------------------------------------------------------------------------------------------- */

void hp_biased_tell_writer(struct hp_biased *lock)
{
	atomic_fetch_add_explicit(&lock->left, 1, memory_order_release);
	hp_futex_wake(&lock->left, 1);
}

void hp_biased_end_sample(const struct hp_locker *who, unsigned k)
{
	struct hp_lock_record *record = who->record;

	hp_stat_held(who, hp_point_class(atomic_load_explicit(&record->point[k], memory_order_relaxed)), HP_LOCK_READ,
	             record->since_ns[k]);
	record->since_ns[k] = 0;
}

/* The rwsem is held for reading, so that nobody writes. */
static void learn(struct hp_biased *lock, const struct hp_locker *who)
{
	uint32_t streak = atomic_load_explicit(&lock->streak, memory_order_relaxed) + 1;
	uint32_t enough = atomic_load_explicit(&who->shared->slots_used, memory_order_relaxed) / SLOTS_PER_READER;
	uint32_t off = HP_BIAS_OFF;

	atomic_store_explicit(&lock->streak, streak, memory_order_relaxed);
	if (streak < (enough > STREAK_MIN ? enough : STREAK_MIN))
		return;
	HP_YIELD("biased: learned");
	/* Others may have learned and settled meanwhile: from ON only a revocation leads back. */
	atomic_compare_exchange_strong(&lock->bias, &off, HP_BIAS_WARM);
}

void hp_biased_settle(struct hp_biased *lock, const struct hp_locker *who)
{
	uint64_t revoked = atomic_load_explicit(&lock->revoked_ns, memory_order_relaxed);
	uint32_t warm = HP_BIAS_WARM;

	if (!who->shared->fenced && (uint64_t)hp_now_ns() - revoked > SETTLED_NS)
		atomic_compare_exchange_strong(&lock->bias, &warm, HP_BIAS_ON);
}

void hp_biased_read_lock_slow(struct hp_biased *lock, const struct hp_locker *who, uint32_t point)
{
	hp_rwsem_read_lock_at(&lock->sem, who, point);
	if (lock->may_bias)
		learn(lock, who);
}

bool hp_biased_read_trylock_at(struct hp_biased *lock, const struct hp_locker *who, uint32_t point)
{
	return hp_rwsem_read_trylock_at(&lock->sem, who, point);
}

/* ---- writers ---------------------------------------------------------------------------------------------------- */

/*
 * Waits until a visible hold of this lock is gone, or its thread is: then it goes too. The revocation began at
 * start_ns: when that is long ago all who are still inside are asked after at once.
 */
static void wait_for_hold(struct hp_biased *lock, const struct hp_locker *who, uint32_t slot, unsigned k,
                          int64_t start_ns)
{
	_Atomic uint64_t *hold = &who->domain->records[slot].hold[k];
	uint64_t id = hp_lock_id(who, lock) | HP_HOLD_VISIBLE;
	int64_t ask = start_ns + HP_LIVENESS_NS;
	uint32_t turn = 0;

	while (turn < HP_SPINS_MAX && who->shared->cpus > 1 && atomic_load_explicit(hold, memory_order_acquire) == id)
		turn = hp_spin_pause(turn);
	while (atomic_load_explicit(hold, memory_order_acquire) == id) {
		uint32_t left = atomic_load_explicit(&lock->left, memory_order_acquire);
		uint64_t seen = id;

		if (hp_now_ns() >= ask) {
			if (who->domain->slots && hp_slot_is_gone(&who->domain->slots[slot]) &&
			    atomic_compare_exchange_strong(hold, &seen, 0))
				hp_stat_death(who, hp_point_class(atomic_load(&lock->sem.point)), HP_LOCK_READ);
			ask = hp_now_ns() + HP_LIVENESS_NS;
			continue;
		}
		atomic_store(&lock->bias, HP_BIAS_ASLEEP);
		HP_YIELD("biased: about to sleep");
		if (atomic_load(hold) == id)
			hp_futex_wait(&lock->left, left, LOOK_AGAIN_NS);
		atomic_store(&lock->bias, HP_BIAS_REVOKING);
	}
}

/* The place of the next hold of this lock from `place` on, of all slots in use; or where they end. */
static uint32_t next_hold(const struct hp_biased *lock, const struct hp_locker *who, uint32_t place)
{
	uint64_t mine = hp_lock_id(who, lock) | HP_HOLD_VISIBLE;
	uint32_t end = atomic_load_explicit(&who->shared->slots_used, memory_order_acquire) * HP_HOLDS;

	while (place < end && atomic_load_explicit(&who->domain->records[place / HP_HOLDS].hold[place % HP_HOLDS],
	                                           memory_order_acquire) != mine)
		place++;
	return place < end ? place : UINT32_MAX;
}

/* Readers who come from here on see that the bias is off, or are seen. Returns what it was. */
static uint32_t stop_bias(struct hp_biased *lock)
{
	uint32_t before = atomic_exchange(&lock->bias, HP_BIAS_REVOKING);

	HP_YIELD("biased: revoking");
	if (before == HP_BIAS_WARM)
		atomic_thread_fence(memory_order_seq_cst);
	else
		hp_barrier_all();
	return before;
}

/*
 * The rwsem is held for writing. A writer that was killed in here leaves REVOKING behind, and the next one begins
 * again.
 */
void hp_biased_revoke(struct hp_biased *lock, const struct hp_locker *who)
{
	uint32_t point = atomic_load_explicit(&lock->sem.point, memory_order_relaxed), holder = 0;
	int64_t start = 0;

	atomic_store_explicit(&lock->streak, 0, memory_order_relaxed);
	if (atomic_load_explicit(&lock->bias, memory_order_relaxed) == HP_BIAS_OFF)
		return;
	stop_bias(lock);
	for (uint32_t place = 0; (place = next_hold(lock, who, place)) != UINT32_MAX; place++) {
		struct hp_lock_record *record = &who->domain->records[place / HP_HOLDS];

		if (!start) {
			start = hp_now_ns();
			holder = atomic_load_explicit(&record->point[place % HP_HOLDS], memory_order_relaxed);
		}
		wait_for_hold(lock, who, place / HP_HOLDS, place % HP_HOLDS, start);
	}
	atomic_store_explicit(&lock->revoked_ns, (uint64_t)hp_now_ns(), memory_order_relaxed);
	atomic_store(&lock->bias, HP_BIAS_OFF);
	if (start)
		hp_stat_contended(who, hp_point_class(point), HP_LOCK_WRITE, point, holder, hp_now_ns() - start,
		                  &lock->sem.last_cpu);
}

void hp_biased_write_lock_at(struct hp_biased *lock, const struct hp_locker *who, uint32_t point)
{
	hp_rwsem_write_lock_at(&lock->sem, who, point);
	hp_biased_revoke(lock, who);
}

bool hp_biased_write_trylock_at(struct hp_biased *lock, const struct hp_locker *who, uint32_t point)
{
	uint32_t before = HP_BIAS_OFF;

	if (!hp_rwsem_write_trylock_at(&lock->sem, who, point))
		return false;
	if (atomic_load_explicit(&lock->bias, memory_order_relaxed) != HP_BIAS_OFF)
		before = stop_bias(lock);
	if (before != HP_BIAS_OFF && next_hold(lock, who, 0) != UINT32_MAX) {
		atomic_store(&lock->bias, before);
		hp_rwsem_write_unlock(&lock->sem, who);
		hp_lock_uncount(who, hp_point_class(point), HP_LOCK_WRITE);
		return false;
	}
	hp_biased_revoke(lock, who);
	return true;
}

void hp_biased_upgrade(struct hp_biased *lock, const struct hp_locker *who)
{
	hp_rwsem_upgrade(&lock->sem, who);
	hp_biased_revoke(lock, who);
}
