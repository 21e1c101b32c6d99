/* SPDX-License-Identifier: MIT */
/*
 * A reader-biased reader-writer lock: an rwsem whose readers pass it by as long as nobody writes (after D. Dice and
 * A. Kogan, "BRAVO: Biased Locking for Reader-Writer Locks", 2019, with the readers in their threads' own records).
 *
 * While the bias is on a reader only makes its hold VISIBLE in its record, a cache line of its own, and looks at the
 * bias again. A writer takes the rwsem, turns the bias off, and waits until no such hold is left:
 *
 *   reader                           writer
 *   the hold becomes visible         take the rwsem for writing
 *   barrier                          bias = REVOKING
 *   the bias is as before: inside    barrier
 *                                    look at all holds; wait for those of this lock
 *                                    bias = OFF: inside
 *
 * A WARM bias is cheap to revoke: readers pass a barrier of their own. Where it has lasted it becomes ON: readers need
 * none, because the writer that ends it makes every CPU pass one (sync/barrier.h). From then on readers take the rwsem,
 * until so many have come in a row that the next revocation is paid for.
 */
#ifndef HP_SYNC_BIASED_H
#define HP_SYNC_BIASED_H

#include "sync/rwsem.h"

enum hp_bias { HP_BIAS_OFF = 0, HP_BIAS_WARM, HP_BIAS_ON, HP_BIAS_REVOKING, HP_BIAS_ASLEEP };

struct hp_biased {
	struct hp_rwsem sem; /* at first place: holds name both by one address */
	_Atomic uint32_t bias;
	_Atomic uint32_t left;   /* futex: grows when a reader leaves while the one who revokes is ASLEEP */
	_Atomic uint32_t streak; /* about how many readers took the rwsem since the last writer; under sem */
	uint32_t may_bias;       /* never changes; 0: a plain rwsem */
	_Atomic uint64_t revoked_ns;
} __attribute__((aligned(HP_CACHE_LINE)));

#define HP_WARM_READS 1024u /* of a thread, until it looks whether a bias has lasted */

_Static_assert(sizeof(struct hp_biased) == HP_CACHE_LINE, "readers touch one line of it");

/* In zeroed memory. */
void hp_biased_init(struct hp_biased *lock, const struct hp_locker *who, bool may_bias);

void hp_biased_read_lock_slow(struct hp_biased *lock, const struct hp_locker *who, uint32_t point);
void hp_biased_tell_writer(struct hp_biased *lock);
/* The bias has been warm for a while: it may be turned on. */
void hp_biased_settle(struct hp_biased *lock, const struct hp_locker *who);
void hp_biased_end_sample(const struct hp_locker *who, unsigned k);

static inline void hp_biased_leave(struct hp_biased *lock, struct hp_lock_record *record, unsigned k)
{
	atomic_store_explicit(&record->hold[k], 0, memory_order_release);
	/* Without a barrier between the two a writer may be missed: it looks again by itself. */
	if (__builtin_expect(atomic_load_explicit(&lock->bias, memory_order_relaxed) == HP_BIAS_ASLEEP, 0))
		hp_biased_tell_writer(lock);
}

/* Inside by the bias. True: what has been seen holds. */
HP_FAST_PATH bool hp_biased_enter(struct hp_biased *lock, const struct hp_locker *who, unsigned k, uint32_t bias,
                                  uint32_t point)
{
	struct hp_lock_record *record = who->record;

	atomic_store_explicit(&record->point[k], point, memory_order_relaxed);
	atomic_store_explicit(&record->hold[k], hp_lock_id(who, lock) | HP_HOLD_VISIBLE, memory_order_release);
	if (bias == HP_BIAS_ON)
		atomic_signal_fence(memory_order_seq_cst);
	else
		atomic_thread_fence(memory_order_seq_cst);
	if (__builtin_expect(atomic_load_explicit(&lock->bias, memory_order_acquire) == bias, 1))
		return true;
	hp_biased_leave(lock, record, k);
	return false;
}

HP_FAST_PATH void hp_biased_read_lock_at(struct hp_biased *lock, const struct hp_locker *who, enum hp_lock_class class,
                                         uint32_t point)
{
	uint32_t bias = atomic_load_explicit(&lock->bias, memory_order_relaxed);
	struct hp_lock_record *record = who->record;
	unsigned k = 0;

	hp_order_check(lock, point);
	while (k < HP_HOLDS && atomic_load_explicit(&record->hold[k], memory_order_relaxed))
		k++;
	if (__builtin_expect(k == HP_HOLDS || (bias != HP_BIAS_ON && bias != HP_BIAS_WARM) ||
	                             !hp_biased_enter(lock, who, k, bias, point),
	                     0)) {
		hp_biased_read_lock_slow(lock, who, point);
		return;
	}
	hp_order_push(lock, point);
	if (__builtin_expect(hp_lock_count(who, class, HP_LOCK_READ), 0))
		record->since_ns[k] = hp_stat_sample(who, class, HP_LOCK_READ, NULL);
	if (bias == HP_BIAS_WARM && ++record->warm_reads % HP_WARM_READS == 0)
		hp_biased_settle(lock, who);
}

HP_FAST_PATH void hp_biased_read_unlock(struct hp_biased *lock, const struct hp_locker *who)
{
	struct hp_lock_record *record = who->record;
	uint64_t id = hp_lock_id(who, lock);
	unsigned k = hp_hold_of(who, id);

	if (__builtin_expect(atomic_load_explicit(&record->hold[k], memory_order_relaxed) != (id | HP_HOLD_VISIBLE),
	                     0)) {
		hp_rwsem_read_unlock(&lock->sem, who);
		return;
	}
	hp_order_pop(lock);
	if (__builtin_expect(record->since_ns[k] != 0, 0))
		hp_biased_end_sample(who, k);
	hp_biased_leave(lock, record, k);
}

bool hp_biased_read_trylock_at(struct hp_biased *lock, const struct hp_locker *who, uint32_t point);
void hp_biased_write_lock_at(struct hp_biased *lock, const struct hp_locker *who, uint32_t point);
/* Fails also where readers are inside by the bias, which stays on then. */
bool hp_biased_write_trylock_at(struct hp_biased *lock, const struct hp_locker *who, uint32_t point);
/*
 * By who holds the rwsem for writing: waits until no reader is inside by the bias. The repair routine of a class of
 * biased locks begins with it: the dead writer may have been waiting here itself.
 */
void hp_biased_revoke(struct hp_biased *lock, const struct hp_locker *who);
/* The upgradeable reader becomes the writer. */
void hp_biased_upgrade(struct hp_biased *lock, const struct hp_locker *who);

#define hp_biased_read_lock(lock, who, class) hp_biased_read_lock_at(lock, who, class, HP_HERE(class))
#define hp_biased_read_trylock(lock, who, class) hp_biased_read_trylock_at(lock, who, HP_HERE(class))
#define hp_biased_write_lock(lock, who, class) hp_biased_write_lock_at(lock, who, HP_HERE(class))
#define hp_biased_write_trylock(lock, who, class) hp_biased_write_trylock_at(lock, who, HP_HERE(class))
#define hp_biased_upgradeable_lock(lock, who, class) hp_rwsem_upgradeable_lock(&(lock)->sem, who, class)

static inline void hp_biased_write_unlock(struct hp_biased *lock, const struct hp_locker *who)
{
	hp_rwsem_write_unlock(&lock->sem, who);
}

/* The writer becomes a reader. */
static inline void hp_biased_downgrade(struct hp_biased *lock, const struct hp_locker *who)
{
	hp_rwsem_downgrade(&lock->sem, who);
}

/*
 * The writer becomes the upgradeable reader. The bias stays off: readers take the rwsem, and after so many in a row
 * have learned it again, as at any time; the next upgrade ends it.
 */
static inline void hp_biased_downgrade_upgradeable(struct hp_biased *lock, const struct hp_locker *who)
{
	hp_rwsem_downgrade_upgradeable(&lock->sem, who);
}

static inline void hp_biased_upgradeable_unlock(struct hp_biased *lock, const struct hp_locker *who)
{
	hp_rwsem_upgradeable_unlock(&lock->sem, who);
}

#endif
