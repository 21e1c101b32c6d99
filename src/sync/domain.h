/* SPDX-License-Identifier: MIT */
/*
 * Who takes locks, and whether those who hold them are alive.
 *
 * A domain is a piece of shared memory with locks in it and a slot for each thread that takes them: a pool. A locker is
 * one thread's part in a domain. Each slot has a record in the domain's memory where its thread notes what it holds for
 * reading: the word of a lock names its writer, but its readers only count.
 *
 * A hold says which lock, as the distance from the domain's base, and how far its thread has got:
 *
 *   free -> PENDING -> COUNTED -> PENDING -> free    PENDING: in the middle of adding to the lock's count, or of
 *                                                    taking from it
 *   free -> VISIBLE -> free                          a reader of a biased lock: the hold is all there is
 *                                                    (sync/biased.h)
 *
 * A process-local domain has no slots: its threads do not die alone.
 */
#ifndef HP_SYNC_DOMAIN_H
#define HP_SYNC_DOMAIN_H

#include "base/assert.h"
#include "sync/slot.h"
#include "sync/statistics.h"

#define HP_HOLDS 4u /* locks that one thread holds for reading */

enum hp_hold_state { HP_HOLD_PENDING = 1, HP_HOLD_COUNTED, HP_HOLD_VISIBLE };
#define HP_HOLD_STATE ((uint64_t)7) /* locks are aligned to 8 bytes */

/* Written by the slot's thread; what a dead one left is cleared by others. The first line is all that writers read. */
struct hp_lock_record {
	_Atomic uint64_t hold[HP_HOLDS];
	_Atomic uint32_t point[HP_HOLDS];
	_Atomic uint64_t section; /* the epoch that a read section began in; 0: none (sync/section.h) */
	uint64_t since_ns[HP_HOLDS] __attribute__((aligned(HP_CACHE_LINE))); /* of a sampled hold; 0 else */
	uint32_t warm_reads;                                                 /* by a warm bias: sync/biased.h */
	/* Acquisitions are the sum of both: `ticks` goes round, every HP_HOLD_SAMPLE of them, and is carried over. */
	_Atomic uint8_t ticks[HP_LOCK_CLASSES][HP_LOCK_MODES];
	_Atomic uint64_t acquired[HP_LOCK_CLASSES][HP_LOCK_MODES];
} __attribute__((aligned(HP_CACHE_LINE)));

struct hp_lock_shared {              /* one for a domain, in its memory */
	_Atomic uint32_t slots_used; /* slots from here on were never taken */
	uint32_t fenced;             /* there are no one-sided barriers (sync/barrier.h); never changes */
	uint32_t cpus;               /* never changes */
	_Atomic uint32_t burial;     /* owner: who repairs the count of a lock (sync/rwsem.c), or 0 */
	_Atomic uint64_t epoch;      /* of read sections (sync/section.h) */
	struct hp_lock_statistics statistics __attribute__((aligned(HP_CACHE_LINE)));
};

struct hp_lock_domain { /* one process's view; never changes while locks are used */
	struct hp_lock_shared *shared;
	struct hp_slot *slots; /* NULL: process-local */
	struct hp_lock_record *records;
	uint32_t slot_count;
	const char *base; /* of the memory that the locks are in */
};

struct hp_locker {
	hp_owner owner;
	struct hp_lock_record *record;
	struct hp_lock_shared *shared;
	const struct hp_lock_domain *domain;
};

/* Makes the shared part, in zeroed memory. */
void hp_locks_init(struct hp_lock_domain *domain);
/* The locker of a thread that has claimed a slot of the domain. */
void hp_locker_init(struct hp_locker *who, const struct hp_lock_domain *domain, const struct hp_slot *slot);

/*
 * True only if it is certain that the thread which had this owner number has ended. Signal safe: at most it takes a
 * robust mutex by trylock, and gives it back.
 */
bool hp_owner_is_gone(const struct hp_lock_domain *domain, hp_owner owner);
/* The thread of a slot has ended, or it never had one. */
bool hp_slot_is_gone(struct hp_slot *slot);

static inline uint64_t hp_lock_id(const struct hp_locker *who, const void *lock)
{
	return (uint64_t)((uintptr_t)lock - (uintptr_t)who->domain->base);
}

/* A slot's holds are empty: it may get another thread. */
static inline bool hp_record_is_empty(const struct hp_lock_record *record)
{
	uint64_t any = 0;

	for (unsigned k = 0; k < HP_HOLDS; k++)
		any |= atomic_load_explicit(&record->hold[k], memory_order_relaxed);
	return any == 0;
}

/* The place of the own hold of a lock; id 0: a free place. */
static inline unsigned hp_hold_of(const struct hp_locker *who, uint64_t id)
{
	unsigned k = 0;

	while ((atomic_load_explicit(&who->record->hold[k], memory_order_relaxed) & ~HP_HOLD_STATE) != id) {
		k++;
		HP_ASSERT(k < HP_HOLDS);
	}
	return k;
}

/* Adds one to a counter that only this thread writes. True: it went round. */
HP_FAST_PATH bool hp_tick(_Atomic uint8_t *ticks)
{
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
	bool carry;

	/* One instruction, so that a handler of this thread which counts as well loses nothing. */
	__asm__ volatile("addb $1, %0" : "+m"(*ticks), "=@ccc"(carry));
	return carry;
#else
	uint8_t n = (uint8_t)(atomic_load_explicit(ticks, memory_order_relaxed) + 1);

	atomic_store_explicit(ticks, n, memory_order_relaxed);
	return n == 0;
#endif
}

/* The own count is carried over. Always true: this hold is one of the sample. */
bool hp_lock_carry(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode);

/* Counts an acquisition. True: this hold is one of the sample. */
HP_FAST_PATH bool hp_lock_count(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode)
{
	return atomic_load_explicit(&who->shared->statistics.enabled, memory_order_relaxed) &&
	       __builtin_expect(hp_tick(&who->record->ticks[class][mode]), 0) && hp_lock_carry(who, class, mode);
}

/* Takes the last one back: it came to nothing. */
void hp_lock_uncount(const struct hp_locker *who, enum hp_lock_class class, enum hp_lock_mode mode);

/* What a thread has acquired, in memory that others may write meanwhile. */
static inline uint64_t hp_lock_acquired(const struct hp_lock_record *record, enum hp_lock_class class,
                                        enum hp_lock_mode mode)
{
	return atomic_load_explicit(&record->acquired[class][mode], memory_order_relaxed) +
	       atomic_load_explicit(&record->ticks[class][mode], memory_order_relaxed);
}

#endif
