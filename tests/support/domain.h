/* SPDX-License-Identifier: MIT */
/*
 * A lock domain in plain shared memory, as a pool has one in its arena: slots, records and a few locks of each kind.
 * Every thread that takes locks joins it first and finds its locker in `me`; children of fork join anew.
 */
#ifndef SUPPORT_DOMAIN_H
#define SUPPORT_DOMAIN_H

#include "base/machine.h"
#include "sync/barrier.h"
#include "sync/biased.h"
#include "sync/mutex.h"
#include "sync/rwsem.h"
#include "sync/signals.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define DOMAIN_SLOTS 64u
#define DOMAIN_LOCKS 4u
#define DOMAIN_PROCESS 1u /* the process id of all slots: nobody here asks whether a process lives */

/* Classes in rank order, one for each kind of lock. */
#define CLASS_SEM HP_CLASS_MAPPING
#define CLASS_MUTEX HP_CLASS_EXTENTS
#define CLASS_BIASED HP_CLASS_BENCH

/* What the lock of the same number protects. */
struct domain_data {
	_Atomic uint64_t a, b; /* equal, but while somebody writes */
	_Atomic uint32_t inside_readers, inside_writers;
};

struct domain_memory {
	char first[64]; /* so that no lock is at the base, where its id would be 0 */
	struct hp_lock_shared shared;
	struct hp_slot slots[DOMAIN_SLOTS];
	struct hp_lock_record records[DOMAIN_SLOTS];
	struct hp_mutex mutex[DOMAIN_LOCKS];
	struct hp_rwsem sem[DOMAIN_LOCKS];
	struct hp_biased biased[DOMAIN_LOCKS];
	struct domain_data mutex_data[DOMAIN_LOCKS], sem_data[DOMAIN_LOCKS], biased_data[DOMAIN_LOCKS];
	_Atomic uint64_t repairs[HP_LOCK_CLASSES]; /* for the repair routines of tests */
	_Atomic uint32_t step[8];                  /* for tests: steps that processes tell each other */
};

static struct domain_memory *shared;
static struct hp_lock_domain domain;
static __thread struct hp_locker me;
static __thread struct hp_slot *my_slot;

static inline void domain_die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	abort();
}

static inline bool domain_may_reuse(const void *context, uint32_t id)
{
	return hp_record_is_empty(&((const struct domain_memory *)context)->records[id]);
}

/* A slot for the calling thread. False: none is free. */
static inline bool domain_try_join(void)
{
	sigset_t saved;

	hp_signals_block(&saved);
	my_slot = hp_slot_claim(shared->slots, DOMAIN_SLOTS, DOMAIN_PROCESS, domain_may_reuse, shared);
	hp_signals_restore(&saved);
	if (!my_slot)
		return false;
	hp_barrier_join();
	hp_locker_init(&me, &domain, my_slot);
	return true;
}

static inline void domain_join(void)
{
	if (!domain_try_join())
		domain_die("no slot is free");
}

static inline void domain_leave(void)
{
	sigset_t saved;

	hp_signals_block(&saved);
	hp_slot_release(my_slot);
	hp_signals_restore(&saved);
	my_slot = NULL;
}

/* Makes the domain; the calling thread joins. */
static inline void domain_make(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared == MAP_FAILED)
		domain_die("no memory for a domain");
	domain = (struct hp_lock_domain){
		.shared = &shared->shared,
		.slots = shared->slots,
		.records = shared->records,
		.slot_count = DOMAIN_SLOTS,
		.base = (const char *)shared,
	};
	hp_locks_init(&domain);
	if (hp_slots_init(shared->slots, DOMAIN_SLOTS))
		domain_die("slots cannot be made");
	domain_join();
	for (unsigned i = 0; i < DOMAIN_LOCKS; i++)
		hp_biased_init(&shared->biased[i], &me, true);
}

static inline void domain_end(void)
{
	domain_leave();
	munmap(shared, sizeof(*shared));
}

/* Each test has a domain of its own: as setup and teardown of the test library. */
static inline int domain_setup(void **state)
{
	domain_make();
	return 0;
}

static inline int domain_teardown(void **state)
{
	domain_end();
	return 0;
}

/* ---- looking on ------------------------------------------------------------------------------------------------- */

/* Threads that have come and gone are counted too. */
static inline uint64_t domain_acquired(enum hp_lock_class class, enum hp_lock_mode mode)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < DOMAIN_SLOTS; i++)
		sum += hp_lock_acquired(&shared->records[i], class, mode);
	return sum;
}

static inline struct hp_class_sums *domain_sums(enum hp_lock_class class, enum hp_lock_mode mode)
{
	return &shared->shared.statistics.sums[class][mode];
}

static inline uint64_t domain_deaths(enum hp_lock_class class)
{
	return atomic_load(&domain_sums(class, HP_LOCK_WRITE)->deaths) +
	       atomic_load(&domain_sums(class, HP_LOCK_READ)->deaths);
}

static inline uint64_t domain_holds(const struct hp_lock_record *record)
{
	uint64_t count = 0;

	for (unsigned k = 0; k < HP_HOLDS; k++)
		count += atomic_load(&record->hold[k]) != 0;
	return count;
}

/* What remains when everybody has left: wait flags may stay behind, for nobody. */
static inline uint64_t sem_held(const struct hp_rwsem *sem)
{
	return atomic_load(&sem->state) & ~(HP_RWSEM_READERS_WAIT | HP_RWSEM_WRITERS_WAIT);
}

static inline unsigned sem_readers(const struct hp_rwsem *sem)
{
	return (unsigned)(atomic_load(&sem->state) & HP_RWSEM_READERS);
}

/* Buries all dead threads. False: some could not be buried yet. */
static inline bool domain_bury(void)
{
	uint32_t used = atomic_load(&shared->shared.slots_used);
	bool done = true;

	for (uint32_t i = 0; i < used; i++)
		if (!hp_record_is_empty(&shared->records[i]) && hp_slot_is_gone(&shared->slots[i]))
			done &= hp_record_bury(&me, i) && hp_record_is_empty(&shared->records[i]);
	return done;
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static inline void domain_sleep(int64_t ns)
{
	struct timespec time = {ns / 1000000000, ns % 1000000000};

	nanosleep(&time, NULL);
}

static inline void step_set(unsigned which, uint32_t value)
{
	atomic_store(&shared->step[which], value);
}

/* Until a step has at least that value. A test that waits for ever is aborted, so that one sees where. */
static inline void step_wait(unsigned which, uint32_t value)
{
	int64_t start = hp_now_ns();

	while (atomic_load(&shared->step[which]) < value) {
		if (hp_now_ns() - start > (int64_t)20 * 1000000000)
			domain_die("a step was not reached in 20 s");
		domain_sleep(100000);
	}
}

#endif
