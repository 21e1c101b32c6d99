/* SPDX-License-Identifier: MIT */
/* Mutex, reader-writer lock, fault mutexes, epochs, futexes and slots, each under threads that contend for it. */
#include "base/machine.h"
#include "support/random.h"
#include "support/threads.h"
#include "sync/epoch.h"
#include "sync/fault_mutex.h"
#include "sync/futex.h"
#include "sync/mutex.h"
#include "sync/rwsem.h"
#include "sync/slot.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 5000 };

static hp_owner owners[THREADS] = {1, 2, 3, 4};
static uint64_t plain; /* under the lock that is tested: the thread sanitizer looks on */

/* ---- mutex ------------------------------------------------------------------------------------------------------ */

static struct hp_mutex mutex;

static void *lock_often(void *argument)
{
	hp_owner owner = *(hp_owner *)argument;

	for (unsigned i = 0; i < ROUNDS; i++) {
		if (i % 3 || !hp_mutex_trylock(&mutex, owner))
			hp_mutex_lock(&mutex, owner);
		thread_must(hp_mutex_is_held_by(&mutex, owner));
		plain++;
		if (i % 64 == 0)
			sched_yield(); /* while held, so that others fall asleep */
		hp_mutex_unlock(&mutex);
	}
	return NULL;
}

static void test_mutex(void **state)
{
	plain = 0;
	threads_run(THREADS, lock_often, owners, sizeof(owners[0]));
	assert_int_equal(plain, THREADS * ROUNDS);
	assert_int_equal(atomic_load(&mutex.word), 0);
	assert_true(hp_mutex_trylock(&mutex, 9));
	assert_false(hp_mutex_trylock(&mutex, 8));
	assert_true(hp_mutex_is_held_by(&mutex, 9));
	assert_false(hp_mutex_is_held_by(&mutex, 8));
	hp_mutex_unlock(&mutex);
}

/* Between processes, as all of these have to work: they are in shared memory. */
static void test_mutex_across_processes(void **state)
{
	struct {
		struct hp_mutex lock;
		_Atomic uint32_t sum;
	} *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	pid_t child;

	assert_ptr_not_equal(shared, MAP_FAILED);
	child = fork();
	for (unsigned i = 0; i < ROUNDS; i++) {
		uint32_t sum;

		hp_mutex_lock(&shared->lock, child ? 1 : 2);
		sum = atomic_load(&shared->sum);
		if (i % 64 == 0)
			sched_yield();
		atomic_store(&shared->sum, sum + 1);
		hp_mutex_unlock(&shared->lock);
	}
	if (!child)
		_exit(0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	assert_int_equal(atomic_load(&shared->sum), 2 * ROUNDS);
	munmap(shared, 4096);
}

/* ---- reader-writer lock ----------------------------------------------------------------------------------------- */

static struct hp_rwsem sem;
static _Atomic uint32_t readers_inside;

static void *read_and_write(void *argument)
{
	hp_owner owner = *(hp_owner *)argument;
	uint64_t random = owner, seen = 0;

	for (unsigned i = 0; i < ROUNDS; i++) {
		if (random_below(&random, 8) == 0) {
			hp_rwsem_write_lock(&sem, owner);
			thread_must(atomic_load(&readers_inside) == 0);
			plain++;
			hp_rwsem_write_unlock(&sem);
			continue;
		}
		if (i % 2 || !hp_rwsem_read_trylock(&sem))
			hp_rwsem_read_lock(&sem);
		atomic_fetch_add(&readers_inside, 1);
		thread_must(plain >= seen);
		seen = plain;
		if (i % 64 == 0)
			sched_yield();
		atomic_fetch_sub(&readers_inside, 1);
		hp_rwsem_read_unlock(&sem);
	}
	return NULL;
}

static void test_rwsem(void **state)
{
	plain = 0;
	threads_run(THREADS, read_and_write, owners, sizeof(owners[0]));
	assert_true(plain > 0);
	assert_int_equal(atomic_load(&sem.state), 0);
	assert_int_equal(atomic_load(&sem.writers_waiting), 0);
	hp_rwsem_read_lock(&sem);
	assert_true(hp_rwsem_read_trylock(&sem));
	hp_rwsem_read_unlock(&sem);
	hp_rwsem_read_unlock(&sem);
	hp_rwsem_write_lock(&sem, 5);
	assert_false(hp_rwsem_read_trylock(&sem));
	hp_rwsem_write_unlock(&sem);
}

/* ---- fault mutexes ---------------------------------------------------------------------------------------------- */

static void test_fault_mutexes(void **state)
{
	static struct hp_fault_mutex table[64];
	unsigned used[64] = {0};

	assert_int_equal(hp_fault_mutexes_for(1), 1);
	assert_int_equal(hp_fault_mutexes_for(2), 16);
	assert_int_equal(hp_fault_mutexes_for(3), 32);
	assert_int_equal(hp_fault_mutexes_for(100000), HP_FAULT_MUTEXES_MAX);
	for (uint64_t file = 1; file <= 4; file++)
		for (uint64_t page = 0; page < 1024; page++) {
			struct hp_mutex *chosen = hp_fault_mutex_for(table, 64, file, page * 512);

			assert_ptr_equal(chosen, hp_fault_mutex_for(table, 64, file, page * 512));
			used[(struct hp_fault_mutex *)chosen - table]++;
		}
	for (unsigned i = 0; i < 64; i++)
		assert_in_range(used[i], 24, 128); /* 64 each, if it were even */
	assert_ptr_equal(hp_fault_mutex_for(table, 1, 77, 88), &table[0].mutex);
}

/* ---- epochs ----------------------------------------------------------------------------------------------------- */

static struct hp_epoch epoch;
static _Atomic(uint64_t *) published;
static _Atomic bool stop;

static void *read_published(void *argument)
{
	while (!atomic_load(&stop)) {
		struct hp_epoch_section section = hp_epoch_enter(&epoch), nested = hp_epoch_enter(&epoch);

		thread_must(*atomic_load(&published) == 42);
		hp_epoch_leave(&epoch, nested);
		thread_must(*atomic_load(&published) == 42);
		hp_epoch_leave(&epoch, section);
	}
	return NULL;
}

static uint64_t *new_value(void)
{
	uint64_t *value = malloc(sizeof(*value));

	assert_non_null(value);
	*value = 42;
	return value;
}

/* What was replaced is poisoned and freed after a synchronization: no reader may see it then. */
static void test_epoch(void **state)
{
	pthread_t threads[THREADS];

	atomic_store(&published, new_value());
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_published, NULL), 0);
	for (unsigned i = 0; i < 1000; i++) {
		uint64_t *old = atomic_exchange(&published, new_value());

		hp_epoch_synchronize(&epoch);
		*old = 13;
		free(old);
	}
	atomic_store(&stop, true);
	for (unsigned i = 0; i < THREADS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	free(atomic_load(&published));
}

/* ---- futex ------------------------------------------------------------------------------------------------------ */

static void test_futex(void **state)
{
	_Atomic uint32_t word = 1;
	int64_t start = hp_now_ns();

	errno = EDOM;
	assert_int_equal(hp_futex_wait(&word, 2, HP_FUTEX_FOREVER), -EAGAIN);
	assert_int_equal(hp_futex_wait(&word, 1, 20000000), -ETIMEDOUT);
	assert_true(hp_now_ns() - start >= 20000000);
	hp_futex_wake(&word, 1);
	assert_int_equal(errno, EDOM);
}

/* ---- slots ------------------------------------------------------------------------------------------------------ */

enum { SLOTS = 4 };

static struct hp_slot *slots;

static void *claim_and_release(void *argument)
{
	struct hp_slot *slot = hp_slot_claim(slots, SLOTS, 7);

	thread_must(slot != NULL);
	if (slot)
		hp_slot_release(slot);
	return NULL;
}

static void *claim_and_end(void *argument)
{
	thread_must(hp_slot_claim(slots, SLOTS, 7) != NULL);
	return NULL;
}

static void test_slots(void **state)
{
	struct hp_slot *held[SLOTS];
	uint32_t generation;

	slots = mmap(NULL, SLOTS * sizeof(slots[0]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(slots, MAP_FAILED);
	assert_int_equal(hp_slots_init(slots, SLOTS), 0);
	assert_false(hp_slots_held_by(slots, SLOTS, 7));
	for (unsigned i = 0; i < SLOTS; i++) {
		held[i] = hp_slot_claim(slots, SLOTS, 5);
		assert_non_null(held[i]);
		for (unsigned j = 0; j < i; j++)
			assert_int_not_equal(hp_slot_owner(held[i]), hp_slot_owner(held[j]));
	}
	assert_null(hp_slot_claim(slots, SLOTS, 5));
	assert_true(hp_slots_held_by(slots, SLOTS, 5));
	hp_slot_release(held[2]);
	generation = atomic_load(&held[2]->generation);
	threads_run(1, claim_and_release, held, 0);
	/* A thread that ends without a word is found out. */
	threads_run(1, claim_and_end, held, 0);
	assert_int_equal(atomic_load(&held[2]->process), 7);
	assert_false(hp_slots_held_by(slots, SLOTS, 7));
	threads_run(1, claim_and_end, held, 0);
	assert_ptr_equal(hp_slot_claim(slots, SLOTS, 5), held[2]);
	assert_true(atomic_load(&held[2]->generation) >= generation + 4);
	for (unsigned i = 0; i < SLOTS; i++)
		hp_slot_release(held[i]);
	assert_false(hp_slots_held_by(slots, SLOTS, 5));
	munmap(slots, SLOTS * sizeof(slots[0]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mutex), cmocka_unit_test(test_mutex_across_processes),
		cmocka_unit_test(test_rwsem), cmocka_unit_test(test_fault_mutexes),
		cmocka_unit_test(test_epoch), cmocka_unit_test(test_futex),
		cmocka_unit_test(test_slots),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
