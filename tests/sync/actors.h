/* SPDX-License-Identifier: MIT */
/*
 * Threads that are held at yield points (sync/yield.h) and go on, or end there, when the test says so. The locks are the
 * test's own copy, built with the yield points in; calls of hp_futex_wait() and hp_slot_is_gone() come through here, by
 * the linker's --wrap.
 *
 * Where nobody dies sleepers have no timeout: a lost wake-up is a test that does not end, and is aborted.
 */
#ifndef SYNC_ACTORS_H
#define SYNC_ACTORS_H

#include "support/domain.h"
#include "support/threads.h"
#include "sync/futex.h"
#include "sync/yield.h"

#include <errno.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- actors ----------------------------------------------------------------------------------------------------- */

enum { ACTORS = 6, INSIDE_LONG_NS = 3000000 };

enum gate { OPEN, ARMED, STOPPED, RELEASED, DYING };

static struct actor {
	pthread_t thread;
	void (*body)(void);
	const char *_Atomic where; /* the yield point where it stops next */
	_Atomic enum gate gate;
	_Atomic bool waits; /* in hp_futex_wait() */
	_Atomic pid_t tid;
	_Atomic bool died, ended;
	struct hp_slot *slot;
	hp_owner owner;
} actors[ACTORS];

static __thread struct actor *self;
static _Atomic bool timeouts; /* sleepers have them */

void (*hp_yield_hook)(const char *where);
int __real_hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
int __wrap_hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns);
bool __real_hp_slot_is_gone(struct hp_slot *slot);
bool __wrap_hp_slot_is_gone(struct hp_slot *slot);
static void (*after_is_gone)(struct hp_slot *slot, bool *gone);

static void await(const char *what, bool (*done)(struct actor *a), struct actor *a)
{
	int64_t start = hp_now_ns();

	while (!done(a)) {
		if (hp_now_ns() - start > (int64_t)10 * 1000000000) {
			fprintf(stderr, "waited in vain: actor %d %s (gate %d, yield point %s)\n", (int)(a - actors),
			        what, (int)atomic_load(&a->gate),
			        atomic_load(&a->where) ? atomic_load(&a->where) : "none");
			abort();
		}
		domain_sleep(50000);
	}
}

static bool is_released(struct actor *a)
{
	return atomic_load(&a->gate) >= RELEASED;
}

static void hook(const char *where)
{
	const char *wanted = self ? atomic_load(&self->where) : NULL;

	if (!wanted || strcmp(wanted, where))
		return;
	atomic_store(&self->gate, STOPPED);
	await("to be released", is_released, self);
	if (atomic_load(&self->gate) == DYING) {
		atomic_store(&self->died, true);
		pthread_exit(NULL);
	}
	atomic_store(&self->gate, OPEN);
}

int __wrap_hp_futex_wait(_Atomic uint32_t *word, uint32_t expected, int64_t timeout_ns)
{
	int result;

	if (!self)
		return __real_hp_futex_wait(word, expected, timeout_ns);
	atomic_store(&self->waits, true);
	result = __real_hp_futex_wait(word, expected, atomic_load(&timeouts) ? timeout_ns : HP_FUTEX_FOREVER);
	atomic_store(&self->waits, false);
	return result;
}

bool __wrap_hp_slot_is_gone(struct hp_slot *slot)
{
	bool gone = __real_hp_slot_is_gone(slot);

	if (after_is_gone && self)
		after_is_gone(slot, &gone);
	return gone;
}

static void *act(void *argument)
{
	self = argument;
	atomic_store(&self->tid, (pid_t)syscall(SYS_gettid));
	domain_join();
	self->slot = my_slot;
	self->owner = me.owner;
	hook("joined");
	self->body();
	domain_leave();
	atomic_store(&self->ended, true);
	return NULL;
}

/* Stops there next time. */
static inline void arm(unsigned n, const char *where)
{
	atomic_store(&actors[n].gate, ARMED);
	atomic_store(&actors[n].where, where);
}

static inline bool is_stopped(struct actor *a)
{
	return atomic_load(&a->gate) == STOPPED;
}

static inline void expect_stop(unsigned n)
{
	await("to stop", is_stopped, &actors[n]);
}

/* Starts one, which runs until it stops there; NULL: it is not waited for. */
static inline void start(unsigned n, void (*body)(void), const char *where)
{
	memset(&actors[n], 0, sizeof(actors[n]));
	actors[n].body = body;
	if (where)
		arm(n, where);
	assert_int_equal(pthread_create(&actors[n].thread, NULL, act, &actors[n]), 0);
	if (where)
		expect_stop(n);
}

/* Lets one go on, up to the next stop if there is one. */
static inline void go(unsigned n, const char *where)
{
	atomic_store(&actors[n].where, where);
	atomic_store(&actors[n].gate, RELEASED);
	if (where)
		expect_stop(n);
}

static inline bool is_over(struct actor *a)
{
	return atomic_load(&a->ended) || atomic_load(&a->died);
}

static inline void end(unsigned n)
{
	await("to end", is_over, &actors[n]);
	assert_int_equal(pthread_join(actors[n].thread, NULL), 0);
}

/* Lets one go on to its end. */
static inline void finish(unsigned n)
{
	go(n, NULL);
	end(n);
}

/* Ends the thread where it stands. */
static inline void die(unsigned n)
{
	atomic_store(&actors[n].gate, DYING);
	end(n);
	assert_true(atomic_load(&actors[n].died));
}

/* Really asleep in the kernel, in a futex wait. */
static inline bool sleeps(struct actor *a)
{
	char path[64], line[256] = "", *state;
	FILE *file;

	if (!atomic_load(&a->waits))
		return false;
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&a->tid));
	file = fopen(path, "r");
	if (!file)
		return false;
	if (!fgets(line, sizeof(line), file))
		line[0] = 0;
	fclose(file);
	state = strrchr(line, ')');
	return state && state[1] && state[2] == 'S' && atomic_load(&a->waits);
}

static inline void fall_asleep(unsigned n)
{
	go(n, NULL);
	await("to fall asleep", sleeps, &actors[n]);
}

static inline void expect_outside(unsigned n)
{
	domain_sleep(INSIDE_LONG_NS);
	assert_false(is_stopped(&actors[n]));
	assert_false(is_over(&actors[n]));
}

/* ---- bodies ----------------------------------------------------------------------------------------------------- */

#define SEM (&shared->sem[0])
#define MUTEX (&shared->mutex[0])
#define BIASED (&shared->biased[0])

static inline void inside(void)
{
	hook("inside");
}

static inline void lock_mutex(void)
{
	hp_mutex_lock(MUTEX, &me, CLASS_MUTEX);
	inside();
	hp_mutex_unlock(MUTEX, &me);
}

static inline void read_sem(void)
{
	hp_rwsem_read_lock(SEM, &me, CLASS_SEM);
	inside();
	hp_rwsem_read_unlock(SEM, &me);
}

static inline void write_sem(void)
{
	hp_rwsem_write_lock(SEM, &me, CLASS_SEM);
	inside();
	hp_rwsem_write_unlock(SEM, &me);
}

static inline void downgrade_sem(void)
{
	hp_rwsem_write_lock(SEM, &me, CLASS_SEM);
	inside();
	hp_rwsem_downgrade(SEM, &me);
	hook("downgraded");
	hp_rwsem_read_unlock(SEM, &me);
}

static inline void upgradeable_sem(void)
{
	hp_rwsem_upgradeable_lock(SEM, &me, CLASS_SEM);
	inside();
	hp_rwsem_upgradeable_unlock(SEM, &me);
}

static inline void upgrade_sem(void)
{
	hp_rwsem_upgradeable_lock(SEM, &me, CLASS_SEM);
	inside();
	hp_rwsem_upgrade(SEM, &me);
	hook("upgraded");
	hp_rwsem_write_unlock(SEM, &me);
}

/* Upgradeable, writer, upgradeable, writer. */
static inline void collapse_sem(void)
{
	hp_rwsem_upgradeable_lock(SEM, &me, CLASS_SEM);
	hp_rwsem_upgrade(SEM, &me);
	inside();
	hp_rwsem_downgrade_upgradeable(SEM, &me);
	hook("returned");
	hp_rwsem_upgrade(SEM, &me);
	hook("upgraded again");
	hp_rwsem_write_unlock(SEM, &me);
}

static inline void read_biased(void)
{
	hp_biased_read_lock(BIASED, &me, CLASS_BIASED);
	inside();
	hp_biased_read_unlock(BIASED, &me);
}

static inline void write_biased(void)
{
	hp_biased_write_lock(BIASED, &me, CLASS_BIASED);
	inside();
	hp_biased_write_unlock(BIASED, &me);
}

static inline void collapse_biased(void)
{
	hp_biased_upgradeable_lock(BIASED, &me, CLASS_BIASED);
	hp_biased_upgrade(BIASED, &me);
	inside();
	hp_biased_downgrade_upgradeable(BIASED, &me);
	hook("returned");
	hp_biased_upgrade(BIASED, &me);
	hook("upgraded again");
	hp_biased_write_unlock(BIASED, &me);
}

static hp_owner repaired_after[4];

static void repair(const struct hp_locker *who, void *lock, hp_owner dead)
{
	hook("repairing");
	repaired_after[atomic_fetch_add(&shared->repairs[0], 1) % 4] = dead;
	if (lock == BIASED)
		hp_biased_revoke(lock, who);
}

static inline uint64_t repairs(void)
{
	return atomic_load(&shared->repairs[0]);
}

static inline int setup(void **state)
{
	domain_make();
	atomic_store(&timeouts, false);
	after_is_gone = NULL;
	hp_lock_class_set_repair(CLASS_SEM, repair);
	hp_lock_class_set_repair(CLASS_MUTEX, repair);
	hp_lock_class_set_repair(CLASS_BIASED, repair);
	hp_yield_hook = hook;
	return 0;
}

/* However it went, all is free now, and nothing of the dead is left. */
static inline int teardown(void **state)
{
	bool clean = true;

	clean &= domain_bury();
	for (unsigned i = 0; i < DOMAIN_SLOTS; i++)
		clean &= hp_record_is_empty(&shared->records[i]);
	clean &= sem_held(SEM) == 0 && atomic_load(&MUTEX->word) == 0 && sem_held(&BIASED->sem) == 0;
	clean &= atomic_load(&shared->shared.burial) == 0;
	if (!clean)
		fprintf(stderr, "left behind: state %lx, mutex %x, biased %lx, burial %x\n",
		        (unsigned long)atomic_load(&SEM->state), atomic_load(&MUTEX->word),
		        (unsigned long)atomic_load(&BIASED->sem.state), atomic_load(&shared->shared.burial));
	domain_end();
	return clean ? 0 : -1;
}

#define in_order(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

#endif
