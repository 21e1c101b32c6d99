/* SPDX-License-Identifier: MIT */
#include "sync/rwsem.h"

#include "base/machine.h"
#include "sync/futex.h"
#include "sync/spin.h"
#include "sync/yield.h"

#include <errno.h>

/* A writer that has slept so long holds new readers off. */
#define PATIENCE_NS 4000000

enum want { WANT_READ, WANT_UPGRADEABLE, WANT_WRITE };

static uint64_t owner_bits(const struct hp_locker *who)
{
	return (uint64_t)who->owner << HP_RWSEM_OWNER_SHIFT;
}

static bool change(struct hp_rwsem *sem, uint64_t *seen, uint64_t next)
{
	/* Release, also when taking: a reader's note must be seen before it is counted. */
	return atomic_compare_exchange_strong_explicit(&sem->state, seen, next, memory_order_acq_rel,
	                                               memory_order_relaxed);
}

/* ---- notes of readers ------------------------------------------------------------------------------------------- */

static void note(const struct hp_locker *who, unsigned k, uint64_t hold)
{
	atomic_store_explicit(&who->record->hold[k], hold, memory_order_release);
}

/* ---- waking ----------------------------------------------------------------------------------------------------- */

static int wake(_Atomic uint32_t *event, int most)
{
	HP_YIELD("rwsem: about to wake");
	atomic_fetch_add_explicit(event, 1, memory_order_release);
	return hp_futex_wake(event, most);
}

static void wake_writer(struct hp_rwsem *sem)
{
	uint64_t before = atomic_fetch_and_explicit(&sem->state, ~HP_RWSEM_WRITERS_WAIT, memory_order_relaxed);

	/* While readers are held off an upgradeable one that is woken cannot go on, and would keep the wake-up to itself. */
	wake(&sem->writers_event, before & HP_RWSEM_HELD_OFF ? INT_MAX : 1);
}

/* All readers go on at the same time. Where none was asleep after all, a writer may be. */
static void wake_readers(struct hp_rwsem *sem)
{
	uint64_t before = atomic_fetch_and_explicit(&sem->state, ~HP_RWSEM_READERS_WAIT, memory_order_relaxed);

	if (!wake(&sem->readers_event, INT_MAX) && before & HP_RWSEM_WRITERS_WAIT)
		wake_writer(sem);
}

/* The lock is in this state and whoever made it so has to wake those who can go on. */
static void wake_next(struct hp_rwsem *sem, uint64_t state)
{
	if (state & HP_RWSEM_UPGRADING) {
		if (!(state & HP_RWSEM_READERS))
			wake(&sem->upgrade_event, 1);
	} else if (state & HP_RWSEM_WRITER) {
		return;
	} else if (state & HP_RWSEM_READERS_WAIT && !(state & HP_RWSEM_HELD_OFF)) {
		wake_readers(sem);
	} else if (state & HP_RWSEM_WRITERS_WAIT && !(state & HP_RWSEM_OWNER)) {
		wake_writer(sem);
	}
}

/* The owner lets go of `bits` and stays as what is `added`, if anything. Wakes those who can go on then. */
static void let_go(struct hp_rwsem *sem, uint64_t bits, uint64_t added)
{
	uint64_t seen = atomic_load_explicit(&sem->state, memory_order_relaxed);

	while (!change(sem, &seen, (seen & ~bits) + added))
		;
	HP_YIELD("rwsem: owner has let go");
	if (seen & (HP_RWSEM_READERS_WAIT | HP_RWSEM_WRITERS_WAIT))
		wake_next(sem, (seen & ~bits) + added);
}

/* ---- taking ----------------------------------------------------------------------------------------------------- */

static bool permits(uint64_t state, enum want want)
{
	if (state & HP_RWSEM_REPAIR)
		return false;
	if (want == WANT_READ)
		return !(state & (HP_RWSEM_WRITER | HP_RWSEM_UPGRADING | HP_RWSEM_HELD_OFF));
	if (want == WANT_UPGRADEABLE)
		return !(state & (HP_RWSEM_OWNER | HP_RWSEM_HELD_OFF));
	return !(state & (HP_RWSEM_OWNER | HP_RWSEM_READERS));
}

static uint64_t taken(uint64_t state, enum want want, const struct hp_locker *who)
{
	if (want == WANT_READ)
		return state + 1;
	if (want == WANT_UPGRADEABLE)
		return state | owner_bits(who) | HP_RWSEM_UPGRADEABLE;
	return (state & ~HP_RWSEM_HELD_OFF) | owner_bits(who) | HP_RWSEM_WRITER;
}

/* Takes the lock if that is possible now. `mark` goes into the state with it. */
static bool take(struct hp_rwsem *sem, const struct hp_locker *who, enum want want, uint64_t mark, uint32_t point)
{
	uint64_t seen = atomic_load_explicit(&sem->state, memory_order_relaxed), id = hp_lock_id(who, sem);
	unsigned k = 0;
	bool got;

	if (!permits(seen, want))
		return false;
	if (want == WANT_READ) {
		k = hp_hold_of(who, 0);
		atomic_store_explicit(&who->record->point[k], point, memory_order_relaxed);
		note(who, k, id | HP_HOLD_PENDING);
		HP_YIELD("rwsem: reader is pending");
	}
	got = change(sem, &seen, taken(seen, want, who) | mark);
	if (want == WANT_READ) {
		HP_YIELD("rwsem: reader is counted");
		note(who, k, got ? id | HP_HOLD_COUNTED : 0);
	}
	return got;
}

static bool spin(struct hp_rwsem *sem, const struct hp_locker *who, enum want want, uint32_t point)
{
	uint32_t limit = hp_spin_limit(who, &sem->spins), turn = 0;
	bool got = false;

	while (turn < limit && !(got = take(sem, who, want, 0, point)))
		turn = hp_spin_pause(turn);
	return got;
}

/* ---- the dead --------------------------------------------------------------------------------------------------- */

/* One at a time counts anew, and can be replaced when it dies: REPAIR has no owner of its own. */
static bool begin_burial(const struct hp_locker *who)
{
	uint32_t seen = 0;

	return atomic_compare_exchange_strong(&who->shared->burial, &seen, who->owner) || seen == who->owner ||
	       (hp_owner_is_gone(who->domain, seen) &&
	        atomic_compare_exchange_strong(&who->shared->burial, &seen, who->owner));
}

static void end_burial(const struct hp_locker *who)
{
	atomic_store(&who->shared->burial, 0);
}

/* A note of a reader that is in the lock's count, or on its way in or out. */
static bool is_counted_note(uint64_t hold, uint64_t id)
{
	return hold && (hold & ~HP_HOLD_STATE) == id && (hold & HP_HOLD_STATE) != HP_HOLD_VISIBLE;
}

/* What all notes about a lock say. */
struct notes {
	uint32_t live; /* readers that are alive and counted */
	bool unstable; /* somebody alive is in the middle of counting itself in or out */
	bool dead;
	uint64_t dead_slots[HP_SLOTS_MAX / 64];
};

static struct notes read_notes(const struct hp_lock_domain *domain, uint64_t id)
{
	uint32_t used = atomic_load(&domain->shared->slots_used);
	struct notes notes = {0};

	for (uint32_t s = 0; s < used; s++) {
		for (unsigned k = 0; k < HP_HOLDS; k++) {
			uint64_t hold = atomic_load_explicit(&domain->records[s].hold[k], memory_order_acquire);

			if (!is_counted_note(hold, id))
				continue;
			if (hp_slot_is_gone(&domain->slots[s])) {
				notes.dead = true;
				notes.dead_slots[s / 64] |= (uint64_t)1 << s % 64;
			} else if ((hold & HP_HOLD_STATE) == HP_HOLD_COUNTED) {
				notes.live++;
			} else {
				notes.unstable = true;
			}
		}
	}
	return notes;
}

/*
 * Takes away the notes of those who were left out of the count, and of no others: who has died since then, or seemed to
 * live because somebody else was asking after it, was counted and needs its note for the next time.
 */
static void clear_notes(const struct hp_lock_domain *domain, uint64_t id, const struct notes *notes)
{
	for (uint32_t s = 0; s < domain->slot_count; s++) {
		if (!(notes->dead_slots[s / 64] >> s % 64 & 1))
			continue;
		for (unsigned k = 0; k < HP_HOLDS; k++) {
			uint64_t hold = atomic_load(&domain->records[s].hold[k]);

			if (is_counted_note(hold, id))
				atomic_compare_exchange_strong(&domain->records[s].hold[k], &hold, 0);
		}
	}
}

/*
 * Counts the readers that live. While REPAIR is set nobody enters, so that the number only falls: when it has not
 * changed from before the notes were read until after, and none was in between, then it is what the notes say. False:
 * somebody stayed in between for long; the waiters try again.
 */
static bool count_readers(struct hp_rwsem *sem, const struct hp_locker *who)
{
	uint64_t id = hp_lock_id(who, sem);
	struct notes notes;
	bool done = false;

	atomic_fetch_or(&sem->state, HP_RWSEM_REPAIR);
	for (unsigned tries = 0; !done && tries < 1000; tries++) {
		uint64_t state = atomic_load(&sem->state), next;

		notes = read_notes(who->domain, id);

		HP_YIELD("rwsem: readers are counted");
		next = (state & ~(HP_RWSEM_READERS | HP_RWSEM_REPAIR)) | notes.live;
		done = !notes.unstable && change(sem, &state, next);
		if (!done)
			hp_futex_wait(&sem->upgrade_event, atomic_load(&sem->upgrade_event), tries < 10 ? 1 : 1000000);
	}
	if (done)
		clear_notes(who->domain, id, &notes);
	else
		atomic_fetch_and(&sem->state, ~HP_RWSEM_REPAIR);
	return done;
}

/* True: the number of readers is right again, and dead ones are forgotten. */
static bool bury_readers(struct hp_rwsem *sem, const struct hp_locker *who, enum hp_lock_class class)
{
	bool done, repair = atomic_load(&sem->state) & HP_RWSEM_REPAIR;

	if (!repair && !read_notes(who->domain, hp_lock_id(who, sem)).dead)
		return true;
	if (!begin_burial(who))
		return false;
	done = count_readers(sem, who);
	end_burial(who);
	if (done)
		hp_stat_death(who, class, HP_LOCK_READ);
	/* Nobody was let in meanwhile. */
	atomic_fetch_add(&sem->readers_event, 1);
	hp_futex_wake(&sem->readers_event, INT_MAX);
	wake_next(sem, atomic_load(&sem->state));
	return done;
}

bool hp_record_bury(const struct hp_locker *who, uint32_t slot)
{
	struct hp_lock_record *record = &who->domain->records[slot];
	bool done = true;

	for (unsigned k = 0; k < HP_HOLDS; k++) {
		uint64_t hold = atomic_load(&record->hold[k]);
		struct hp_rwsem *sem = (struct hp_rwsem *)(uintptr_t)(who->domain->base + (hold & ~HP_HOLD_STATE));

		if (!hold || !hp_slot_is_gone(&who->domain->slots[slot]))
			continue;
		if ((hold & HP_HOLD_STATE) == HP_HOLD_VISIBLE)
			atomic_compare_exchange_strong(&record->hold[k], &hold, 0);
		else
			done &= bury_readers(sem, who, hp_point_class(atomic_load(&record->point[k])));
	}
	return done && hp_record_is_empty(record);
}

/*
 * A waiter has slept in vain for a while: are those that it waits for alive? True: the lock is ours now, in the mode
 * that we want.
 */
static bool ask_after_owner(struct hp_rwsem *sem, const struct hp_locker *who, enum want want, enum hp_lock_class class)
{
	uint64_t seen = atomic_load_explicit(&sem->state, memory_order_relaxed), rest;
	hp_owner owner = (hp_owner)(seen >> HP_RWSEM_OWNER_SHIFT);

	if (owner && hp_owner_is_gone(who->domain, owner)) {
		HP_YIELD("rwsem: owner is gone");
		rest = seen & ~HP_RWSEM_OWNER;
		if (!(seen & HP_RWSEM_WRITER)) {
			/* It only read. */
			rest &= ~(HP_RWSEM_UPGRADEABLE | HP_RWSEM_UPGRADING);
			if (change(sem, &seen, rest)) {
				hp_stat_death(who, class, HP_LOCK_READ);
				wake_next(sem, rest);
			}
			return false;
		}
		/* The writer for whom readers were held off may be this one. */
		if (want == WANT_WRITE)
			rest &= ~HP_RWSEM_HELD_OFF;
		if (!change(sem, &seen, rest | owner_bits(who)))
			return false;
		sem->since_ns = 0;
		hp_stat_death(who, class, HP_LOCK_WRITE);
		hp_lock_class_repair(class, who, sem, owner);
		/* Neither counts a hold: that is done when the lock has been taken. */
		if (want == WANT_READ)
			hp_rwsem_downgrade(sem, who);
		else if (want == WANT_UPGRADEABLE)
			let_go(sem, HP_RWSEM_WRITER, HP_RWSEM_UPGRADEABLE);
		return true;
	}
	if (seen & (HP_RWSEM_READERS | HP_RWSEM_REPAIR))
		bury_readers(sem, who, class);
	/* The writer for whom readers were held off died, or went another way: it would set this again. */
	if (want != WANT_WRITE && seen & HP_RWSEM_HELD_OFF && !(seen & (HP_RWSEM_OWNER | HP_RWSEM_READERS)))
		atomic_fetch_and(&sem->state, ~HP_RWSEM_HELD_OFF);
	return false;
}

/* ---- sleeping --------------------------------------------------------------------------------------------------- */

static void sleep_until_taken(struct hp_rwsem *sem, const struct hp_locker *who, enum want want, uint32_t point)
{
	enum hp_lock_class class = hp_point_class(point);
	_Atomic uint32_t *futex = want == WANT_READ ? &sem->readers_event : &sem->writers_event;
	uint64_t flag = want == WANT_READ ? HP_RWSEM_READERS_WAIT : HP_RWSEM_WRITERS_WAIT, mark = 0, held_off = 0;
	int64_t slice = PATIENCE_NS;

	for (;;) {
		/* In this order: who lets us in changes the state first and the event after. */
		uint32_t event = atomic_load_explicit(futex, memory_order_acquire);
		uint64_t seen = atomic_load_explicit(&sem->state, memory_order_acquire);

		if (permits(seen, want)) {
			if (take(sem, who, want, mark, point))
				return;
			continue;
		}
		if ((seen & (flag | held_off)) != (flag | held_off) && !change(sem, &seen, seen | flag | held_off))
			continue;
		HP_YIELD("rwsem: about to sleep");
		if (hp_futex_wait(futex, event, slice) == -ETIMEDOUT) {
			held_off = want == WANT_WRITE ? HP_RWSEM_HELD_OFF : 0;
			if (slice == HP_LIVENESS_NS && ask_after_owner(sem, who, want, class))
				return;
			slice = HP_LIVENESS_NS;
		}
		/* We were woken, or have let the flag get lost: others who sleep need it. */
		mark = want == WANT_READ ? 0 : HP_RWSEM_WRITERS_WAIT;
	}
}

static void lock_slow(struct hp_rwsem *sem, const struct hp_locker *who, enum want want, uint32_t point)
{
	uint64_t state = atomic_load_explicit(&sem->state, memory_order_relaxed);
	enum hp_lock_class class = hp_point_class(point);
	bool owned = state & HP_RWSEM_OWNER;
	uint32_t holder = atomic_load_explicit(owned ? &sem->point : &sem->reader_point, memory_order_relaxed);
	/* Others may only have been quicker at the state: that is no contention for the lock. */
	int64_t start = permits(state, want) ? 0 : hp_now_ns();

	HP_ASSERT(state >> HP_RWSEM_OWNER_SHIFT != who->owner);
	if (!spin(sem, who, want, point)) {
		start = start ? start : hp_now_ns();
		sleep_until_taken(sem, who, want, point);
	}
	if (!start)
		return;
	start = hp_now_ns() - start;
	hp_spin_learn(&sem->spins, start);
	hp_stat_contended(who, class, want == WANT_WRITE ? HP_LOCK_WRITE : HP_LOCK_READ, point, holder, start,
	                  &sem->last_cpu);
}

/* ---- readers ---------------------------------------------------------------------------------------------------- */

static void reader_taken(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	enum hp_lock_class class = hp_point_class(point);
	unsigned k = hp_hold_of(who, hp_lock_id(who, sem));

	hp_order_push(sem, point);
	atomic_store_explicit(&sem->reader_point, point, memory_order_relaxed);
	if (hp_lock_count(who, class, HP_LOCK_READ))
		who->record->since_ns[k] = hp_stat_sample(who, class, HP_LOCK_READ, &sem->last_cpu);
}

void hp_rwsem_read_lock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	hp_order_check(sem, point);
	if (!take(sem, who, WANT_READ, 0, point))
		lock_slow(sem, who, WANT_READ, point);
	reader_taken(sem, who, point);
}

bool hp_rwsem_read_trylock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	if (!take(sem, who, WANT_READ, 0, point))
		return false;
	reader_taken(sem, who, point);
	return true;
}

void hp_rwsem_read_unlock(struct hp_rwsem *sem, const struct hp_locker *who)
{
	uint64_t id = hp_lock_id(who, sem), left;
	unsigned k = hp_hold_of(who, id);

	hp_order_pop(sem);
	if (who->record->since_ns[k]) {
		hp_stat_held(who, hp_point_class(who->record->point[k]), HP_LOCK_READ, who->record->since_ns[k]);
		who->record->since_ns[k] = 0;
	}
	note(who, k, id | HP_HOLD_PENDING);
	HP_YIELD("rwsem: reader is leaving");
	left = atomic_fetch_sub_explicit(&sem->state, 1, memory_order_release) - 1;
	HP_YIELD("rwsem: reader has left");
	note(who, k, 0);
	if (!(left & HP_RWSEM_READERS) && left & (HP_RWSEM_UPGRADING | HP_RWSEM_WRITERS_WAIT))
		wake_next(sem, left);
}

/* ---- the owner: writer or upgradeable reader -------------------------------------------------------------------- */

/* The owner has the lock in this mode from now on. last_cpu: NULL if it had the lock before in another. */
static void begin_sample(struct hp_rwsem *sem, const struct hp_locker *who, enum hp_lock_mode mode,
                         _Atomic uint16_t *last_cpu)
{
	enum hp_lock_class class = hp_point_class(atomic_load_explicit(&sem->point, memory_order_relaxed));

	sem->since_ns = hp_lock_count(who, class, mode) ? hp_stat_sample(who, class, mode, last_cpu) : 0;
}

static void end_sample(struct hp_rwsem *sem, const struct hp_locker *who, enum hp_lock_mode mode)
{
	if (sem->since_ns)
		hp_stat_held(who, hp_point_class(atomic_load_explicit(&sem->point, memory_order_relaxed)), mode,
		             sem->since_ns);
	sem->since_ns = 0;
}

static void owner_taken(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point, enum hp_lock_mode mode)
{
	hp_order_push(sem, point);
	atomic_store_explicit(&sem->point, point, memory_order_relaxed);
	begin_sample(sem, who, mode, &sem->last_cpu);
}

void hp_rwsem_write_lock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	hp_order_check(sem, point);
	if (!take(sem, who, WANT_WRITE, 0, point))
		lock_slow(sem, who, WANT_WRITE, point);
	owner_taken(sem, who, point, HP_LOCK_WRITE);
}

bool hp_rwsem_write_trylock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	if (!take(sem, who, WANT_WRITE, 0, point))
		return false;
	owner_taken(sem, who, point, HP_LOCK_WRITE);
	return true;
}

void hp_rwsem_write_unlock(struct hp_rwsem *sem, const struct hp_locker *who)
{
	hp_order_pop(sem);
	end_sample(sem, who, HP_LOCK_WRITE);
	let_go(sem, HP_RWSEM_OWNER | HP_RWSEM_WRITER, 0);
}

void hp_rwsem_downgrade(struct hp_rwsem *sem, const struct hp_locker *who)
{
	uint64_t id = hp_lock_id(who, sem);
	unsigned k = hp_hold_of(who, 0);

	end_sample(sem, who, HP_LOCK_WRITE);
	atomic_store_explicit(&who->record->point[k], atomic_load(&sem->point), memory_order_relaxed);
	note(who, k, id | HP_HOLD_PENDING);
	let_go(sem, HP_RWSEM_OWNER | HP_RWSEM_WRITER, 1);
	note(who, k, id | HP_HOLD_COUNTED);
}

void hp_rwsem_downgrade_upgradeable(struct hp_rwsem *sem, const struct hp_locker *who)
{
	HP_DEBUG_ASSERT(hp_rwsem_is_written_by(sem, who->owner));
	end_sample(sem, who, HP_LOCK_WRITE);
	let_go(sem, HP_RWSEM_WRITER, HP_RWSEM_UPGRADEABLE);
	begin_sample(sem, who, HP_LOCK_READ, NULL);
}

void hp_rwsem_upgradeable_lock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	hp_order_check(sem, point);
	if (!take(sem, who, WANT_UPGRADEABLE, 0, point))
		lock_slow(sem, who, WANT_UPGRADEABLE, point);
	owner_taken(sem, who, point, HP_LOCK_READ);
}

bool hp_rwsem_upgradeable_trylock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point)
{
	if (!take(sem, who, WANT_UPGRADEABLE, 0, point))
		return false;
	owner_taken(sem, who, point, HP_LOCK_READ);
	return true;
}

void hp_rwsem_upgradeable_unlock(struct hp_rwsem *sem, const struct hp_locker *who)
{
	hp_order_pop(sem);
	end_sample(sem, who, HP_LOCK_READ);
	let_go(sem, HP_RWSEM_OWNER | HP_RWSEM_UPGRADEABLE, 0);
}

void hp_rwsem_upgrade(struct hp_rwsem *sem, const struct hp_locker *who)
{
	enum hp_lock_class class = hp_point_class(atomic_load_explicit(&sem->point, memory_order_relaxed));
	uint32_t holder = atomic_load_explicit(&sem->reader_point, memory_order_relaxed);
	int64_t start = 0;

	end_sample(sem, who, HP_LOCK_READ);
	for (;;) {
		uint32_t event = atomic_load_explicit(&sem->upgrade_event, memory_order_acquire);
		uint64_t seen = atomic_load_explicit(&sem->state, memory_order_acquire);

		if (!(seen & (HP_RWSEM_READERS | HP_RWSEM_REPAIR))) {
			uint64_t next = seen & ~(HP_RWSEM_UPGRADEABLE | HP_RWSEM_UPGRADING);

			if (change(sem, &seen, next | HP_RWSEM_WRITER))
				break;
			continue;
		}
		start = start ? start : hp_now_ns();
		if (!(seen & HP_RWSEM_UPGRADING) && !change(sem, &seen, seen | HP_RWSEM_UPGRADING))
			continue;
		HP_YIELD("rwsem: upgrade is about to sleep");
		if (hp_futex_wait(&sem->upgrade_event, event, HP_LIVENESS_NS) == -ETIMEDOUT)
			bury_readers(sem, who, class);
	}
	if (start)
		hp_stat_contended(who, class, HP_LOCK_WRITE, atomic_load(&sem->point), holder, hp_now_ns() - start,
		                  &sem->last_cpu);
	begin_sample(sem, who, HP_LOCK_WRITE, NULL);
}
