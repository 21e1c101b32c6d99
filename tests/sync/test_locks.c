/* SPDX-License-Identifier: MIT */
/* Mutex, reader-writer lock and biased lock, each under threads or processes that contend for it. Nobody dies here. */
#include "support/domain.h"
#include "support/random.h"
#include "support/threads.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

enum { THREADS = 4, ROUNDS = 5000 };

static uint64_t plain; /* under the lock that is tested: the thread sanitizer looks on */
static uint64_t seed;
static _Atomic uint32_t readers_inside, writes;

/* Forks a child that runs fn and tells by its exit status whether all was well. */
static pid_t start_child(void (*fn)(void))
{
	pid_t child = fork();

	if (child)
		return child;
	domain_join();
	fn();
	domain_leave();
	_exit(atomic_load(&threads_wrong) != 0);
}

static void end_child(pid_t child)
{
	int status = -1;

	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

/* ---- mutex ------------------------------------------------------------------------------------------------------ */

static void *lock_often(void *argument)
{
	struct hp_mutex *mutex = &shared->mutex[0];

	domain_join();
	for (unsigned i = 0; i < ROUNDS; i++) {
		if (i % 3 || !hp_mutex_trylock(mutex, &me, CLASS_MUTEX))
			hp_mutex_lock(mutex, &me, CLASS_MUTEX);
		thread_must(hp_mutex_is_held_by(mutex, me.owner));
		plain++;
		if (i % 64 == 0)
			sched_yield(); /* while held, so that others fall asleep */
		hp_mutex_unlock(mutex, &me);
	}
	domain_leave();
	return NULL;
}

static void test_mutex(void **state)
{
	struct hp_mutex *mutex = &shared->mutex[0];
	struct hp_locker other = me;

	other.owner++;
	plain = 0;
	threads_run(THREADS, lock_often, NULL, 0);
	assert_int_equal(plain, THREADS * ROUNDS);
	assert_int_equal(atomic_load(&mutex->word), 0);
	assert_true(hp_mutex_trylock(mutex, &me, CLASS_MUTEX));
	assert_false(hp_mutex_trylock(mutex, &other, CLASS_MUTEX));
	assert_true(hp_mutex_is_held_by(mutex, me.owner));
	assert_false(hp_mutex_is_held_by(mutex, other.owner));
	hp_mutex_unlock(mutex, &me);
	assert_int_equal(domain_acquired(CLASS_MUTEX, HP_LOCK_WRITE), THREADS * ROUNDS + 1);
}

/* Adds one to `a` and then to `b` of a lock's data, with a pause between: who else is inside finds them unequal. */
static void write_data(struct domain_data *data, unsigned i)
{
	uint64_t a = atomic_load(&data->a);

	thread_must(atomic_load(&data->b) == a);
	atomic_store(&data->a, a + 1);
	if (i % 64 == 0)
		sched_yield();
	atomic_store(&data->b, a + 1);
}

static void read_data(struct domain_data *data, unsigned i)
{
	uint64_t a = atomic_load(&data->a);

	if (i % 64 == 0)
		sched_yield();
	thread_must(atomic_load(&data->b) == a);
}

static void mutex_in_process(void)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		hp_mutex_lock(&shared->mutex[0], &me, CLASS_MUTEX);
		write_data(&shared->mutex_data[0], i);
		hp_mutex_unlock(&shared->mutex[0], &me);
	}
}

static void test_mutex_across_processes(void **state)
{
	pid_t child = start_child(mutex_in_process);

	mutex_in_process();
	end_child(child);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	assert_int_equal(atomic_load(&shared->mutex_data[0].b), 2 * ROUNDS);
}

/* ---- reader-writer lock ----------------------------------------------------------------------------------------- */

/* This thread, which writes, becomes the upgradeable reader: others may read and nothing else. */
static void upgradeable_again(struct hp_rwsem *sem, const struct hp_locker *other)
{
	hp_rwsem_downgrade_upgradeable(sem, &me);
	assert_int_equal(atomic_load(&sem->state), (uint64_t)me.owner << HP_RWSEM_OWNER_SHIFT | HP_RWSEM_UPGRADEABLE);
	assert_true(hp_record_is_empty(me.record));
	assert_true(hp_rwsem_read_trylock(sem, other, CLASS_SEM));
	assert_int_equal(sem_readers(sem), 1);
	hp_rwsem_read_unlock(sem, other);
	assert_false(hp_rwsem_upgradeable_trylock(sem, other, CLASS_SEM));
	assert_false(hp_rwsem_write_trylock(sem, other, CLASS_SEM));
}

static void test_rwsem_modes(void **state)
{
	struct hp_rwsem *sem = &shared->sem[0];
	struct hp_locker other = me;

	/* A second part in the domain, for what this thread would not do beside itself. */
	other.owner++;
	other.record = &shared->records[DOMAIN_SLOTS - 1];
	hp_rwsem_read_lock(sem, &me, CLASS_SEM);
	assert_int_equal(domain_holds(me.record), 1);
	assert_true(hp_rwsem_read_trylock(sem, &other, CLASS_SEM));
	assert_int_equal(sem_readers(sem), 2);
	assert_false(hp_rwsem_write_trylock(sem, &other, CLASS_SEM));
	hp_rwsem_read_unlock(sem, &other);
	hp_rwsem_read_unlock(sem, &me);
	assert_int_equal(atomic_load(&sem->state), 0);

	hp_rwsem_write_lock(sem, &me, CLASS_SEM);
	assert_true(hp_rwsem_is_written_by(sem, me.owner));
	assert_false(hp_rwsem_is_written_by(sem, other.owner));
	assert_false(hp_rwsem_read_trylock(sem, &other, CLASS_SEM));
	assert_false(hp_rwsem_upgradeable_trylock(sem, &other, CLASS_SEM));
	hp_rwsem_downgrade(sem, &me);
	assert_false(hp_rwsem_is_written_by(sem, me.owner));
	assert_int_equal(sem_readers(sem), 1);
	assert_int_equal(domain_holds(me.record), 1);
	assert_true(hp_rwsem_upgradeable_trylock(sem, &other, CLASS_SEM));
	hp_rwsem_upgradeable_unlock(sem, &other);
	hp_rwsem_read_unlock(sem, &me);
	assert_int_equal(atomic_load(&sem->state), 0);

	hp_rwsem_upgradeable_lock(sem, &me, CLASS_SEM);
	assert_true(hp_rwsem_read_trylock(sem, &other, CLASS_SEM));
	hp_rwsem_read_unlock(sem, &other);
	assert_false(hp_rwsem_upgradeable_trylock(sem, &other, CLASS_SEM));
	assert_false(hp_rwsem_write_trylock(sem, &other, CLASS_SEM));
	hp_rwsem_upgrade(sem, &me);
	assert_true(hp_rwsem_is_written_by(sem, me.owner));
	assert_false(hp_rwsem_read_trylock(sem, &other, CLASS_SEM));
	/* And back, and again. */
	upgradeable_again(sem, &other);
	hp_rwsem_upgrade(sem, &me);
	assert_true(hp_rwsem_is_written_by(sem, me.owner));
	assert_false(hp_rwsem_read_trylock(sem, &other, CLASS_SEM));
	hp_rwsem_write_unlock(sem, &me);
	assert_int_equal(atomic_load(&sem->state), 0);

	hp_rwsem_write_lock(sem, &me, CLASS_SEM);
	upgradeable_again(sem, &other);
	hp_rwsem_upgradeable_unlock(sem, &me);
	assert_int_equal(atomic_load(&sem->state), 0);
	assert_true(hp_record_is_empty(me.record));
	assert_true(hp_record_is_empty(other.record));
}

/* As many as a thread may hold for reading, released in another order. */
static void test_rwsem_many_holds(void **state)
{
	_Static_assert(DOMAIN_LOCKS == HP_HOLDS, "one lock for each hold");

	for (unsigned i = 0; i < HP_HOLDS; i++)
		assert_true(hp_rwsem_read_trylock(&shared->sem[i], &me, CLASS_SEM));
	assert_int_equal(domain_holds(me.record), HP_HOLDS);
	for (unsigned i = 0; i < HP_HOLDS; i++)
		hp_rwsem_read_unlock(&shared->sem[(i * 3 + 2) % HP_HOLDS], &me);
	assert_true(hp_record_is_empty(me.record));
	for (unsigned i = 0; i < HP_HOLDS; i++)
		assert_int_equal(atomic_load(&shared->sem[i].state), 0);
}

/* With the lock held for writing. */
static void write_plain(void)
{
	thread_must(atomic_load(&readers_inside) == 0);
	plain++;
	atomic_fetch_add(&writes, 1);
}

static void read_plain(unsigned i)
{
	uint64_t seen;

	atomic_fetch_add(&readers_inside, 1);
	seen = plain;
	if (i % 64 == 0)
		sched_yield();
	thread_must(plain == seen);
	atomic_fetch_sub(&readers_inside, 1);
}

/* The writer lets readers in, and is sure of what it wrote until it has gone; it may write again before. */
static void return_once(struct hp_rwsem *sem, unsigned i, bool again)
{
	uint64_t seen = plain;

	hp_rwsem_downgrade_upgradeable(sem, &me);
	read_plain(i);
	thread_must(plain == seen);
	if (!again) {
		hp_rwsem_upgradeable_unlock(sem, &me);
		return;
	}
	hp_rwsem_upgrade(sem, &me);
	thread_must(plain == seen);
	write_plain();
	hp_rwsem_write_unlock(sem, &me);
}

static void upgrade_once(struct hp_rwsem *sem, unsigned i, bool upgrade)
{
	uint64_t seen;

	hp_rwsem_upgradeable_lock(sem, &me, CLASS_SEM);
	seen = plain;
	read_plain(i);
	if (upgrade) {
		hp_rwsem_upgrade(sem, &me);
		thread_must(plain == seen); /* what was seen stays true */
		write_plain();
		if (i % 4 == 1)
			hp_rwsem_write_unlock(sem, &me);
		else
			return_once(sem, i, true);
	} else {
		hp_rwsem_upgradeable_unlock(sem, &me);
	}
}

static void *read_and_write(void *argument)
{
	struct hp_rwsem *sem = &shared->sem[0];
	uint64_t random, seen;

	domain_join();
	random = seed + me.owner;
	for (unsigned i = 0; i < ROUNDS; i++) {
		switch (random_below(&random, 14)) {
		case 0:
			if (!hp_rwsem_write_trylock(sem, &me, CLASS_SEM))
				hp_rwsem_write_lock(sem, &me, CLASS_SEM);
			write_plain();
			hp_rwsem_write_unlock(sem, &me);
			break;
		case 1:
			hp_rwsem_write_lock(sem, &me, CLASS_SEM);
			write_plain();
			seen = plain;
			hp_rwsem_downgrade(sem, &me);
			read_plain(i);
			thread_must(plain == seen); /* no other writer came between */
			hp_rwsem_read_unlock(sem, &me);
			break;
		case 2:
		case 3:
			upgrade_once(sem, i, i % 2);
			break;
		case 4:
			hp_rwsem_write_lock(sem, &me, CLASS_SEM);
			write_plain();
			return_once(sem, i, i % 2);
			break;
		default:
			if (i % 2 || !hp_rwsem_read_trylock(sem, &me, CLASS_SEM))
				hp_rwsem_read_lock(sem, &me, CLASS_SEM);
			read_plain(i);
			hp_rwsem_read_unlock(sem, &me);
		}
	}
	thread_must(hp_record_is_empty(me.record));
	domain_leave();
	return NULL;
}

static void test_rwsem(void **state)
{
	plain = 0;
	atomic_store(&writes, 0);
	threads_run(THREADS, read_and_write, NULL, 0);
	assert_true(plain > 0);
	assert_int_equal(plain, atomic_load(&writes));
	assert_int_equal(sem_held(&shared->sem[0]), 0);
}

static void rwsem_in_process(void)
{
	uint64_t random = seed + me.owner;

	for (unsigned i = 0; i < ROUNDS; i++) {
		if (random_below(&random, 3) == 0) {
			hp_rwsem_write_lock(&shared->sem[0], &me, CLASS_SEM);
			write_data(&shared->sem_data[0], i);
			hp_rwsem_write_unlock(&shared->sem[0], &me);
		} else {
			hp_rwsem_read_lock(&shared->sem[0], &me, CLASS_SEM);
			read_data(&shared->sem_data[0], i);
			hp_rwsem_read_unlock(&shared->sem[0], &me);
		}
	}
}

static void test_rwsem_across_processes(void **state)
{
	pid_t children[2] = {start_child(rwsem_in_process), start_child(rwsem_in_process)};

	rwsem_in_process();
	end_child(children[0]);
	end_child(children[1]);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	assert_int_equal(sem_held(&shared->sem[0]), 0);
}

/* ---- biased lock ------------------------------------------------------------------------------------------------ */

static void biased_read(struct hp_biased *lock)
{
	hp_biased_read_lock(lock, &me, CLASS_BIASED);
	hp_biased_read_unlock(lock, &me);
}

static void test_biased_states(void **state)
{
	struct hp_biased *lock = &shared->biased[0];
	uint32_t first = shared->shared.fenced ? HP_BIAS_WARM : HP_BIAS_ON;
	unsigned reads = 0;

	/* By the bias nobody is counted. */
	assert_int_equal(atomic_load(&lock->bias), first);
	hp_biased_read_lock(lock, &me, CLASS_BIASED);
	assert_int_equal(domain_holds(me.record), 1);
	assert_int_equal(atomic_load(&lock->sem.state), 0);
	hp_biased_read_unlock(lock, &me);
	assert_true(hp_record_is_empty(me.record));
	/* A writer ends the bias. */
	hp_biased_write_lock(lock, &me, CLASS_BIASED);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
	hp_biased_downgrade(lock, &me);
	assert_int_equal(sem_readers(&lock->sem), 1);
	hp_biased_read_unlock(lock, &me);
	/* So many readers in a row begin it again, and a warm one that lasts is turned on. */
	for (; atomic_load(&lock->bias) == HP_BIAS_OFF; reads++) {
		assert_true(reads < 1000);
		hp_biased_read_lock(lock, &me, CLASS_BIASED);
		assert_int_equal(sem_readers(&lock->sem), 1);
		hp_biased_read_unlock(lock, &me);
	}
	assert_true(reads >= 8);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_WARM);
	domain_sleep(2000000);
	for (unsigned i = 0; i < HP_WARM_READS; i++)
		biased_read(lock);
	assert_int_equal(atomic_load(&lock->bias), first);
	/* An upgradeable reader becomes the writer. */
	hp_biased_upgradeable_lock(lock, &me, CLASS_BIASED);
	assert_int_equal(atomic_load(&lock->bias), first);
	hp_biased_upgrade(lock, &me);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
	assert_true(hp_rwsem_is_written_by(&lock->sem, me.owner));
	hp_biased_write_unlock(lock, &me);
	assert_int_equal(sem_held(&lock->sem), 0);
}

static void *read_four_times(void *argument)
{
	domain_join();
	for (unsigned i = 0; i < 4; i++) {
		hp_biased_read_lock(&shared->biased[0], &me, CLASS_BIASED);
		thread_must(sem_readers(&shared->biased[0].sem) == 1);
		hp_biased_read_unlock(&shared->biased[0], &me);
	}
	domain_leave();
	return NULL;
}

/* Beside a writer that is upgradeable again readers take the rwsem, until they have learned the bias again. */
static void test_biased_upgradeable_again(void **state)
{
	struct hp_biased *lock = &shared->biased[0];
	unsigned reads = 0;

	hp_biased_upgradeable_lock(lock, &me, CLASS_BIASED);
	hp_biased_upgrade(lock, &me);
	hp_biased_downgrade_upgradeable(lock, &me);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
	threads_run(1, read_four_times, NULL, 0);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
	/* With the next upgrade they begin to learn anew. */
	hp_biased_upgrade(lock, &me);
	assert_true(hp_rwsem_is_written_by(&lock->sem, me.owner));
	hp_biased_downgrade_upgradeable(lock, &me);
	for (; atomic_load(&lock->bias) == HP_BIAS_OFF; reads += 4) {
		assert_true(reads < 1000);
		threads_run(1, read_four_times, NULL, 0);
	}
	assert_true(reads >= 8);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_WARM);
	hp_biased_upgrade(lock, &me);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
	assert_true(hp_rwsem_is_written_by(&lock->sem, me.owner));
	hp_biased_write_unlock(lock, &me);
	assert_int_equal(sem_held(&lock->sem), 0);
}

/* A trylock fails beside readers who are inside by the bias, and leaves it on. */
static void test_biased_trylock(void **state)
{
	struct hp_biased *lock = &shared->biased[0];
	uint32_t first = atomic_load(&lock->bias);
	struct hp_locker other = me;

	other.owner++;
	other.record = &shared->records[DOMAIN_SLOTS - 1];
	hp_biased_read_lock(lock, &me, CLASS_BIASED);
	assert_false(hp_biased_write_trylock(lock, &other, CLASS_BIASED));
	assert_int_equal(atomic_load(&lock->bias), first);
	assert_int_equal(atomic_load(&lock->sem.state), 0);
	assert_true(hp_biased_read_trylock(lock, &other, CLASS_BIASED));
	hp_biased_read_unlock(lock, &other);
	hp_biased_read_unlock(lock, &me);
	assert_true(hp_biased_write_trylock(lock, &other, CLASS_BIASED));
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
	assert_false(hp_biased_read_trylock(lock, &me, CLASS_BIASED));
	hp_biased_write_unlock(lock, &other);
}

/* One that may have no bias is a plain rwsem. */
static void test_biased_never(void **state)
{
	struct hp_biased *lock = &shared->biased[0];

	memset(lock, 0, sizeof(*lock));
	hp_biased_init(lock, &me, false);
	for (unsigned i = 0; i < 1000; i++)
		biased_read(lock);
	assert_int_equal(atomic_load(&lock->bias), HP_BIAS_OFF);
}

/* Few writers among many readers: the bias comes and goes. */
static void *read_by_bias(void *argument)
{
	struct hp_biased *lock = &shared->biased[0];
	uint64_t random;

	domain_join();
	random = seed + me.owner;
	for (unsigned i = 0; i < 4 * ROUNDS; i++) {
		switch (random_below(&random, 200)) {
		case 0:
			hp_biased_write_lock(lock, &me, CLASS_BIASED);
			write_plain();
			hp_biased_write_unlock(lock, &me);
			break;
		case 1:
			if (hp_biased_write_trylock(lock, &me, CLASS_BIASED)) {
				write_plain();
				hp_biased_downgrade(lock, &me);
				read_plain(i);
				hp_biased_read_unlock(lock, &me);
			}
			break;
		case 2:
			hp_biased_upgradeable_lock(lock, &me, CLASS_BIASED);
			hp_biased_upgrade(lock, &me);
			write_plain();
			if (i % 2) {
				hp_biased_downgrade_upgradeable(lock, &me);
				read_plain(i);
				hp_biased_upgrade(lock, &me);
				write_plain();
			}
			hp_biased_write_unlock(lock, &me);
			break;
		case 3:
			if (hp_biased_read_trylock(lock, &me, CLASS_BIASED)) {
				read_plain(i);
				hp_biased_read_unlock(lock, &me);
			}
			break;
		default:
			hp_biased_read_lock(lock, &me, CLASS_BIASED);
			read_plain(i);
			hp_biased_read_unlock(lock, &me);
		}
	}
	domain_leave();
	return NULL;
}

static void test_biased(void **state)
{
	plain = 0;
	atomic_store(&writes, 0);
	threads_run(THREADS, read_by_bias, NULL, 0);
	assert_true(plain > 0);
	assert_int_equal(plain, atomic_load(&writes));
	assert_int_equal(sem_held(&shared->biased[0].sem), 0);
}

static void biased_in_process(void)
{
	uint64_t random = seed + me.owner;

	for (unsigned i = 0; i < 4 * ROUNDS; i++) {
		if (random_below(&random, 100) == 0) {
			hp_biased_write_lock(&shared->biased[0], &me, CLASS_BIASED);
			write_data(&shared->biased_data[0], i);
			hp_biased_write_unlock(&shared->biased[0], &me);
		} else {
			hp_biased_read_lock(&shared->biased[0], &me, CLASS_BIASED);
			read_data(&shared->biased_data[0], i);
			hp_biased_read_unlock(&shared->biased[0], &me);
		}
	}
}

static void test_biased_across_processes(void **state)
{
	pid_t children[2] = {start_child(biased_in_process), start_child(biased_in_process)};

	biased_in_process();
	end_child(children[0]);
	end_child(children[1]);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	assert_int_equal(sem_held(&shared->biased[0].sem), 0);
}

#define in_domain(test) cmocka_unit_test_setup_teardown(test, domain_setup, domain_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_domain(test_mutex),          in_domain(test_mutex_across_processes),
		in_domain(test_rwsem_modes),    in_domain(test_rwsem_many_holds),
		in_domain(test_rwsem),          in_domain(test_rwsem_across_processes),
		in_domain(test_biased_states),  in_domain(test_biased_upgradeable_again),
		in_domain(test_biased_trylock), in_domain(test_biased_never),
		in_domain(test_biased),         in_domain(test_biased_across_processes),
	};

	seed = random_seed();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
