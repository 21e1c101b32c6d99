/* SPDX-License-Identifier: MIT */
/*
 * Threads and processes that die with locks: by SIGKILL, by exec in another thread, by the end of the thread alone. Each
 * time somebody is asleep, waiting, and must learn of it; HP_TEST_VERBOSE=1 prints how long each took.
 *
 * The locks are this test's own copy, with yield points in, so that a thread can die at any step.
 */
#include "support/domain.h"
#include "support/random.h"
#include "support/threads.h"
#include "sync/yield.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum way { BY_KILL, BY_EXEC, BY_PTHREAD_EXIT, BY_RAW_EXIT, BY_RETURN, WAYS };
enum { STOPPED_STEP, DIE_STEP, BOUND_NS = 2000000000 };

static const char *const way_names[] = {"kill", "exec", "pthread_exit", "raw exit", "return"};
static uint64_t seed;
static int64_t slowest[WAYS];

/* ---- what threads do -------------------------------------------------------------------------------------------- */

#define SEM (&shared->sem[0])
#define MUTEX (&shared->mutex[0])
#define BIASED (&shared->biased[0])

static __thread const char *stop_at;
static __thread enum way dies_by;
static _Atomic int64_t got_ns;

void (*hp_yield_hook)(const char *where);

/* Here the thread dies, when it is told to. */
static void hook(const char *where)
{
	if (!stop_at || strcmp(stop_at, where))
		return;
	step_set(STOPPED_STEP, my_slot->id + 1);
	while (dies_by <= BY_EXEC)
		pause();
	step_wait(DIE_STEP, 1);
	if (dies_by == BY_PTHREAD_EXIT)
		pthread_exit(NULL);
	if (dies_by == BY_RAW_EXIT)
		syscall(SYS_exit, 0);
	stop_at = NULL;
}

static bool returns_here(void)
{
	bool returns = stop_at && dies_by == BY_RETURN;

	hook("inside");
	if (!stop_at)
		atomic_store(&got_ns, hp_now_ns());
	return returns;
}

static void lock_mutex(void)
{
	hp_mutex_lock(MUTEX, &me, CLASS_MUTEX);
	if (!returns_here())
		hp_mutex_unlock(MUTEX, &me);
}

static void read_sem(void)
{
	hp_rwsem_read_lock(SEM, &me, CLASS_SEM);
	if (!returns_here())
		hp_rwsem_read_unlock(SEM, &me);
}

static void write_sem(void)
{
	hp_rwsem_write_lock(SEM, &me, CLASS_SEM);
	if (!returns_here())
		hp_rwsem_write_unlock(SEM, &me);
}

static void upgradeable_sem(void)
{
	hp_rwsem_upgradeable_lock(SEM, &me, CLASS_SEM);
	if (!returns_here())
		hp_rwsem_upgradeable_unlock(SEM, &me);
}

static void upgrade_sem(void)
{
	hp_rwsem_upgradeable_lock(SEM, &me, CLASS_SEM);
	hp_rwsem_upgrade(SEM, &me);
	if (!returns_here())
		hp_rwsem_write_unlock(SEM, &me);
}

static void downgrade_sem(void)
{
	hp_rwsem_write_lock(SEM, &me, CLASS_SEM);
	hp_rwsem_downgrade(SEM, &me);
	if (!returns_here())
		hp_rwsem_read_unlock(SEM, &me);
}

static void return_sem(void)
{
	hp_rwsem_write_lock(SEM, &me, CLASS_SEM);
	hp_rwsem_downgrade_upgradeable(SEM, &me);
	if (!returns_here())
		hp_rwsem_upgradeable_unlock(SEM, &me);
}

/* Upgradeable, writer, upgradeable, writer. */
static void collapse_sem(void)
{
	hp_rwsem_upgradeable_lock(SEM, &me, CLASS_SEM);
	hp_rwsem_upgrade(SEM, &me);
	hp_rwsem_downgrade_upgradeable(SEM, &me);
	hp_rwsem_upgrade(SEM, &me);
	if (!returns_here())
		hp_rwsem_write_unlock(SEM, &me);
}

static void return_biased(void)
{
	hp_biased_write_lock(BIASED, &me, CLASS_BIASED);
	hp_biased_downgrade_upgradeable(BIASED, &me);
	if (!returns_here())
		hp_biased_upgradeable_unlock(BIASED, &me);
}

static void read_biased(void)
{
	hp_biased_read_lock(BIASED, &me, CLASS_BIASED);
	if (!returns_here())
		hp_biased_read_unlock(BIASED, &me);
}

static void write_biased(void)
{
	hp_biased_write_lock(BIASED, &me, CLASS_BIASED);
	if (!returns_here())
		hp_biased_write_unlock(BIASED, &me);
}

static void repair(const struct hp_locker *who, void *lock, hp_owner dead)
{
	hook("repairing");
	atomic_fetch_add(&shared->repairs[0], 1);
	if (lock == BIASED)
		hp_biased_revoke(lock, who);
}

/* ---- those who die ---------------------------------------------------------------------------------------------- */

struct victim {
	pid_t pid;
	uint32_t slot;
};

struct death {
	void (*body)(void);
	const char *where;
	enum way way;
};

static void *run_victim(void *argument)
{
	const struct death *death = argument;

	dies_by = death->way;
	stop_at = death->where;
	domain_join();
	death->body();
	/* Only by return: with what it has. */
	return NULL;
}

/* A process whose second thread stops with a lock. */
static struct victim start_victim(const struct death *death)
{
	char *const arguments[] = {(char[]){"true"}, NULL};
	struct victim victim;
	pthread_t thread;

	step_set(STOPPED_STEP, 0);
	step_set(DIE_STEP, 0);
	victim.pid = fork();
	if (!victim.pid) {
		if (pthread_create(&thread, NULL, run_victim, (void *)(uintptr_t)death))
			_exit(9);
		if (death->way == BY_EXEC) {
			step_wait(DIE_STEP, 1);
			execve("/bin/true", arguments, environ);
			_exit(9);
		}
		for (;;)
			pause();
	}
	assert_true(victim.pid > 0);
	step_wait(STOPPED_STEP, 1);
	victim.slot = atomic_load(&shared->step[STOPPED_STEP]) - 1;
	return victim;
}

static void let_die(struct victim victim, enum way way)
{
	if (way == BY_KILL)
		assert_int_equal(kill(victim.pid, SIGKILL), 0);
	else
		step_set(DIE_STEP, 1);
}

/* The process, where only its thread died. */
static void clean_up(struct victim victim)
{
	kill(victim.pid, SIGKILL);
	assert_int_equal(waitpid(victim.pid, NULL, 0), victim.pid);
}

/* ---- those who wait --------------------------------------------------------------------------------------------- */

static void *run_waiter(void *argument)
{
	const struct death *waiter = argument;

	domain_join();
	waiter->body();
	domain_leave();
	return NULL;
}

/* The dead one's slot can be had again. */
static void expect_claimable(uint32_t wanted)
{
	struct hp_slot *slot[DOMAIN_SLOTS];
	unsigned count = 0;
	bool found = false;
	sigset_t saved;

	assert_true(domain_bury());
	assert_true(hp_record_is_empty(&shared->records[wanted]));
	hp_signals_block(&saved);
	while (!found && count < DOMAIN_SLOTS &&
	       (slot[count] = hp_slot_claim(shared->slots, DOMAIN_SLOTS, DOMAIN_PROCESS, domain_may_reuse, shared)))
		found = slot[count++]->id == wanted;
	while (count > 0)
		hp_slot_release(slot[--count]);
	hp_signals_restore(&saved);
	assert_true(found);
}

struct death_case {
	const char *name;
	struct death before; /* another death first, by SIGKILL */
	void (*body)(void);
	const char *where;
	void (*waiter)(void);
	enum hp_lock_class class;
	unsigned repairs, write_deaths, read_deaths;
	enum { ALONE, BESIDE_READER, BESIDE_BIASED_READER } beside;
};

#define WITH_MUTEX CLASS_MUTEX, 1, 1, 0
#define WITH_WRITER CLASS_SEM, 1, 1, 0
#define WITH_READER CLASS_SEM, 0, 0, 1

static const struct death_case cases[] = {
	{"mutex", {0}, lock_mutex, "inside", lock_mutex, WITH_MUTEX, ALONE},
	{"writer, found by a writer", {0}, write_sem, "inside", write_sem, WITH_WRITER, ALONE},
	{"writer, found by a reader", {0}, write_sem, "inside", read_sem, WITH_WRITER, ALONE},
	{"writer, found by an upgrader", {0}, write_sem, "inside", upgrade_sem, WITH_WRITER, ALONE},
	{"writer that was an upgrader", {0}, upgrade_sem, "inside", upgradeable_sem, WITH_WRITER, ALONE},
	{"writer that lets go", {0}, write_sem, "rwsem: owner has let go", write_sem, CLASS_SEM, 0, 0, 0, ALONE},
	{"reader", {0}, read_sem, "inside", write_sem, WITH_READER, ALONE},
	{"reader, found by an upgrader", {0}, read_sem, "inside", upgrade_sem, WITH_READER, ALONE},
	{"reader that was a writer", {0}, downgrade_sem, "inside", write_sem, WITH_READER, ALONE},
	{"reader that is pending", {0}, read_sem, "rwsem: reader is pending", write_sem, WITH_READER, ALONE},
	{"reader that is counted", {0}, read_sem, "rwsem: reader is counted", write_sem, WITH_READER, ALONE},
	{"reader that is leaving", {0}, read_sem, "rwsem: reader is leaving", write_sem, WITH_READER, ALONE},
	{"reader that has left", {0}, read_sem, "rwsem: reader has left", write_sem, WITH_READER, ALONE},
	{"upgradeable reader", {0}, upgradeable_sem, "inside", write_sem, WITH_READER, ALONE},
	{"upgradeable reader, found by another", {0}, upgradeable_sem, "inside", upgradeable_sem, WITH_READER, ALONE},
	{"upgradeable reader again", {0}, return_sem, "inside", write_sem, WITH_READER, ALONE},
	{"upgradeable reader again, found by another", {0}, return_sem, "inside", collapse_sem, WITH_READER, ALONE},
	{"writer that is upgradeable now", {0}, return_sem, "rwsem: owner has let go", write_sem, WITH_READER, ALONE},
	{"writer again", {0}, collapse_sem, "inside", return_sem, WITH_WRITER, ALONE},
	{"upgrader", {0}, upgrade_sem, "rwsem: upgrade is about to sleep", read_sem, WITH_READER, BESIDE_READER},
	{"biased reader", {0}, read_biased, "inside", write_biased, CLASS_BIASED, 0, 0, 1, ALONE},
	{"biased upgradeable reader again", {0}, return_biased, "inside", write_biased, CLASS_BIASED, 0, 0, 1, ALONE},
	{"biased writer", {0}, write_biased, "inside", read_biased, CLASS_BIASED, 1, 1, 0, ALONE},
	{"biased writer, revoking",
         {0},
         write_biased,
         "biased: revoking",
         write_biased,
         CLASS_BIASED,
         1,
         1,
         0,
         BESIDE_BIASED_READER},
	{"biased writer, asleep",
         {0},
         write_biased,
         "biased: about to sleep",
         read_biased,
         CLASS_BIASED,
         1,
         1,
         0,
         BESIDE_BIASED_READER},
	{"repairer of a mutex",
         {lock_mutex, "inside", BY_KILL},
         lock_mutex,
         "repairing",
         lock_mutex,
         CLASS_MUTEX,
         1,
         2,
         0,
         ALONE},
	{"repairer of a writer's",
         {write_sem, "inside", BY_KILL},
         write_sem,
         "repairing",
         read_sem,
         CLASS_SEM,
         1,
         2,
         0,
         ALONE},
	{"who counts readers",
         {read_sem, "inside", BY_KILL},
         write_sem,
         "rwsem: readers are counted",
         write_sem,
         WITH_READER,
         ALONE},
	{"who counts readers, found by a reader",
         {read_sem, "inside", BY_KILL},
         upgrade_sem,
         "rwsem: readers are counted",
         read_sem,
         CLASS_SEM,
         0,
         0,
         2,
         ALONE},
};

static void beside(const struct death_case *c, bool enter)
{
	if (c->beside == BESIDE_READER && enter)
		hp_rwsem_read_lock(SEM, &me, CLASS_SEM);
	else if (c->beside == BESIDE_READER)
		hp_rwsem_read_unlock(SEM, &me);
	else if (c->beside == BESIDE_BIASED_READER && enter)
		hp_biased_read_lock(BIASED, &me, CLASS_BIASED);
	else if (c->beside == BESIDE_BIASED_READER)
		hp_biased_read_unlock(BIASED, &me);
}

static void run_case(const struct death_case *c, enum way way, uint64_t *random)
{
	struct death waiter = {.body = c->waiter}, death = {c->body, c->where, way};
	struct victim victim, first = {0};
	int64_t died;
	pthread_t thread;

	domain_make();
	if (c->before.body) {
		first = start_victim(&c->before);
		clean_up(first);
	}
	beside(c, true);
	victim = start_victim(&death);
	assert_int_equal(pthread_create(&thread, NULL, run_waiter, &waiter), 0);
	domain_sleep((int64_t)random_below(random, 40000000));
	/* A biased reader keeps the next writer waiting too; the others are not in the waiter's way. */
	if (c->beside == BESIDE_BIASED_READER)
		beside(c, false);
	died = hp_now_ns();
	let_die(victim, way);
	assert_int_equal(pthread_join(thread, NULL), 0);
	died = atomic_load(&got_ns) - died;
	if (c->beside == BESIDE_READER)
		beside(c, false);
	if (getenv("HP_TEST_VERBOSE"))
		printf("%-40s %-13s %7.2f ms\n", c->name, way_names[way], (double)died / 1e6);
	slowest[way] = died > slowest[way] ? died : slowest[way];
	if (died > BOUND_NS)
		fail_msg("%s by %s: learned of after %.0f ms", c->name, way_names[way], (double)died / 1e6);
	clean_up(victim);
	expect_claimable(victim.slot);
	if (first.pid)
		expect_claimable(first.slot);
	if (atomic_load(&shared->repairs[0]) != c->repairs ||
	    atomic_load(&domain_sums(c->class, HP_LOCK_WRITE)->deaths) != c->write_deaths ||
	    atomic_load(&domain_sums(c->class, HP_LOCK_READ)->deaths) != c->read_deaths)
		fail_msg("%s by %s: %lu repairs, %lu and %lu deaths in place of %u, %u and %u", c->name, way_names[way],
		         (unsigned long)atomic_load(&shared->repairs[0]),
		         (unsigned long)atomic_load(&domain_sums(c->class, HP_LOCK_WRITE)->deaths),
		         (unsigned long)atomic_load(&domain_sums(c->class, HP_LOCK_READ)->deaths), c->repairs,
		         c->write_deaths, c->read_deaths);
	assert_int_equal(atomic_load(&MUTEX->word), 0);
	assert_int_equal(sem_held(SEM), 0);
	assert_int_equal(sem_held(&BIASED->sem), 0);
	assert_int_equal(atomic_load(&shared->shared.burial), 0);
	/* It is as good as new. */
	assert_true(hp_mutex_trylock(MUTEX, &me, CLASS_MUTEX));
	hp_mutex_unlock(MUTEX, &me);
	assert_true(hp_rwsem_write_trylock(SEM, &me, CLASS_SEM));
	hp_rwsem_write_unlock(SEM, &me);
	assert_true(hp_biased_write_trylock(BIASED, &me, CLASS_BIASED));
	hp_biased_write_unlock(BIASED, &me);
	domain_end();
}

static void test_deaths(enum way way)
{
	uint64_t random = seed + way;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		/* A thread returns only from where it has the lock. */
		if (way == BY_RETURN && strcmp(cases[i].where, "inside"))
			continue;
		run_case(&cases[i], way, &random);
	}
}

static void test_kill(void **state)
{
	test_deaths(BY_KILL);
}

static void test_exec(void **state)
{
	test_deaths(BY_EXEC);
}

static void test_pthread_exit(void **state)
{
	test_deaths(BY_PTHREAD_EXIT);
}

static void test_raw_exit(void **state)
{
	test_deaths(BY_RAW_EXIT);
}

static void test_return(void **state)
{
	test_deaths(BY_RETURN);
}

/* A hold that was measured when its thread died does not go on in the next thread's statistics. */
static void test_measured_hold(void **state)
{
	static const struct death deaths[] = {
		{upgradeable_sem, "inside", BY_KILL}, {return_sem, "inside", BY_KILL}, {read_sem, "inside", BY_KILL}};

	for (unsigned i = 0; i < sizeof(deaths) / sizeof(deaths[0]); i++) {
		struct victim victim;

		domain_make();
		victim = start_victim(&deaths[i]); /* its first hold is one of the sample */
		clean_up(victim);
		write_sem(); /* so is this */
		expect_claimable(victim.slot);
		domain_sleep(10000000);
		domain_leave();
		domain_join();
		for (unsigned n = 0; n < 4; n++) {
			domain_join(); /* several slots, the dead one's among them */
			read_sem();
			upgradeable_sem();
		}
		assert_in_range(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_READ)->hold.max), 0, 9999999);
		munmap(shared, sizeof(*shared));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kill),     cmocka_unit_test(test_exec),   cmocka_unit_test(test_pthread_exit),
		cmocka_unit_test(test_raw_exit), cmocka_unit_test(test_return), cmocka_unit_test(test_measured_hold),
	};
	const char *only = getenv("HP_TEST_ONLY");
	int result;

#ifdef __SANITIZE_THREAD__
	return 77; /* children of fork that have threads */
#endif
	if (only)
		cmocka_set_test_filter(only);
	seed = random_seed();
	hp_yield_hook = hook;
	hp_lock_class_set_repair(CLASS_SEM, repair);
	hp_lock_class_set_repair(CLASS_MUTEX, repair);
	hp_lock_class_set_repair(CLASS_BIASED, repair);
	result = cmocka_run_group_tests(tests, NULL, NULL);
	for (unsigned i = 0; i < WAYS; i++)
		printf("learned of death by %s within %.1f ms\n", way_names[i], (double)slowest[i] / 1e6);
	return result;
}
