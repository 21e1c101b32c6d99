/* SPDX-License-Identifier: MIT */
/*
 * A process-shared reader-writer lock. Not recursive, for readers neither. Signal safe. All zeroes is unlocked.
 *
 * It is held by any number of readers, or by one writer; and beside readers by one upgradeable reader, who can become
 * the writer without letting go, and the upgradeable reader again: what it has seen stays true.
 *
 *   bits 0-15   number of readers
 *   WRITER      the owner writes
 *   UPGRADEABLE the owner is the upgradeable reader
 *   UPGRADING   it waits for the readers to leave; new ones are held off
 *   ..._WAIT    somebody may be asleep, waiting to read; or to write or read upgradeably
 *   HELD_OFF    a writer has waited long: new readers are held off until one has written
 *   REPAIR      a reader died; nobody enters while the readers that live are counted
 *   bits 32-61  the owner
 *
 * Whoever comes by takes a lock that is free, ahead of those who sleep: the lock never waits for a wake-up to arrive.
 *
 * A reader notes its hold in its record before it counts itself in the state and takes the note away after it has
 * counted itself out (sync/domain.h); when a reader dies, a waiter finds the note, holds all others off and counts
 * again.
 */
#ifndef HP_SYNC_RWSEM_H
#define HP_SYNC_RWSEM_H

#include "sync/domain.h"
#include "sync/order.h"

struct hp_rwsem {
	_Atomic uint64_t state;
	/* Futexes: each grows when one who sleeps on it may go on. */
	_Atomic uint32_t readers_event, writers_event, upgrade_event;
	_Atomic uint32_t point;        /* where the owner took it */
	_Atomic uint32_t reader_point; /* where the last reader did */
	_Atomic uint16_t spins, last_cpu;
	uint64_t since_ns; /* of a sampled hold of the owner, else 0 */
};

#define HP_RWSEM_READERS ((uint64_t)0xffff)
#define HP_RWSEM_WRITER ((uint64_t)1 << 16)
#define HP_RWSEM_UPGRADEABLE ((uint64_t)1 << 17)
#define HP_RWSEM_UPGRADING ((uint64_t)1 << 18)
#define HP_RWSEM_READERS_WAIT ((uint64_t)1 << 19)
#define HP_RWSEM_WRITERS_WAIT ((uint64_t)1 << 20)
#define HP_RWSEM_HELD_OFF ((uint64_t)1 << 21)
#define HP_RWSEM_REPAIR ((uint64_t)1 << 22)
#define HP_RWSEM_OWNER_SHIFT 32
#define HP_RWSEM_OWNER ((uint64_t)HP_OWNER_MASK << HP_RWSEM_OWNER_SHIFT)

void hp_rwsem_read_lock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point);
bool hp_rwsem_read_trylock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point);
void hp_rwsem_read_unlock(struct hp_rwsem *sem, const struct hp_locker *who);

void hp_rwsem_write_lock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point);
bool hp_rwsem_write_trylock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point);
void hp_rwsem_write_unlock(struct hp_rwsem *sem, const struct hp_locker *who);
/* The writer becomes a reader; no other writer comes between. */
void hp_rwsem_downgrade(struct hp_rwsem *sem, const struct hp_locker *who);
/*
 * The writer becomes the upgradeable reader: readers come in, unless they are held off for a writer that has waited
 * long. It dies from here on as one who only reads: its class repairs nothing, not what it wrote before either.
 */
void hp_rwsem_downgrade_upgradeable(struct hp_rwsem *sem, const struct hp_locker *who);

void hp_rwsem_upgradeable_lock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point);
bool hp_rwsem_upgradeable_trylock_at(struct hp_rwsem *sem, const struct hp_locker *who, uint32_t point);
void hp_rwsem_upgradeable_unlock(struct hp_rwsem *sem, const struct hp_locker *who);
/* The upgradeable reader becomes the writer. It never fails: it waits for the readers that there are. */
void hp_rwsem_upgrade(struct hp_rwsem *sem, const struct hp_locker *who);

#define hp_rwsem_read_lock(sem, who, class) hp_rwsem_read_lock_at(sem, who, HP_HERE(class))
#define hp_rwsem_read_trylock(sem, who, class) hp_rwsem_read_trylock_at(sem, who, HP_HERE(class))
#define hp_rwsem_write_lock(sem, who, class) hp_rwsem_write_lock_at(sem, who, HP_HERE(class))
#define hp_rwsem_write_trylock(sem, who, class) hp_rwsem_write_trylock_at(sem, who, HP_HERE(class))
#define hp_rwsem_upgradeable_lock(sem, who, class) hp_rwsem_upgradeable_lock_at(sem, who, HP_HERE(class))
#define hp_rwsem_upgradeable_trylock(sem, who, class) hp_rwsem_upgradeable_trylock_at(sem, who, HP_HERE(class))

static inline bool hp_rwsem_is_written_by(const struct hp_rwsem *sem, hp_owner owner)
{
	uint64_t state = atomic_load_explicit(&sem->state, memory_order_relaxed);

	return (state & HP_RWSEM_WRITER) && state >> HP_RWSEM_OWNER_SHIFT == owner;
}

/*
 * Takes back all that a dead thread holds for reading in the domain, after which its slot can have another thread.
 * False: a lock could not be repaired yet; ask again.
 */
bool hp_record_bury(const struct hp_locker *who, uint32_t slot);

#endif
