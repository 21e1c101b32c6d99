/* SPDX-License-Identifier: MIT */
/* Whether the lock statistics add up: acquisitions, contended ones with their points, sampled holds. */
#include "support/domain.h"
#include "support/threads.h"

static void test_statistics_alone(void **state)
{
	struct hp_rwsem *sem = &shared->sem[0];
	struct hp_class_sums *sums = domain_sums(CLASS_SEM, HP_LOCK_WRITE);
	enum { TIMES = 3 * HP_HOLD_SAMPLE };

	for (unsigned i = 0; i < TIMES; i++) {
		hp_rwsem_write_lock(sem, &me, CLASS_SEM);
		hp_rwsem_downgrade(sem, &me);
		hp_rwsem_read_unlock(sem, &me);
		hp_rwsem_read_lock(sem, &me, CLASS_SEM);
		hp_rwsem_read_unlock(sem, &me);
		hp_rwsem_upgradeable_lock(sem, &me, CLASS_SEM);
		if (i % 2)
			hp_rwsem_upgradeable_unlock(sem, &me);
		else
			hp_rwsem_upgrade(sem, &me), hp_rwsem_write_unlock(sem, &me);
		hp_biased_read_lock(&shared->biased[0], &me, CLASS_BIASED);
		hp_biased_read_unlock(&shared->biased[0], &me);
	}
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_WRITE), TIMES + TIMES / 2);
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_READ), 2 * TIMES);
	assert_int_equal(domain_acquired(CLASS_BIASED, HP_LOCK_READ), TIMES);
	assert_int_equal(domain_acquired(CLASS_BIASED, HP_LOCK_WRITE), 0);
	assert_int_equal(atomic_load(&sums->wait.count), 0);
	/* One of each HP_HOLD_SAMPLE, the first included. */
	assert_int_equal(atomic_load(&sums->hold.count), (TIMES + TIMES / 2 + HP_HOLD_SAMPLE - 1) / HP_HOLD_SAMPLE);
	assert_int_equal(atomic_load(&domain_sums(CLASS_BIASED, HP_LOCK_READ)->hold.count), 3);
	assert_true(atomic_load(&sums->hold.max) >= atomic_load(&sums->hold.min));
	assert_true(atomic_load(&sums->hold.min) > 0);
	/* Switched off, nothing is counted. */
	atomic_store(&shared->shared.statistics.enabled, 0);
	hp_rwsem_write_lock(sem, &me, CLASS_SEM);
	hp_rwsem_write_unlock(sem, &me);
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_WRITE), TIMES + TIMES / 2);
}

/* A writer that is upgradeable again: each mode has its own holds, of which the sample's times add up. */
static void test_statistics_upgradeable_again(void **state)
{
	struct hp_class_sums *write = domain_sums(CLASS_SEM, HP_LOCK_WRITE),
			     *read = domain_sums(CLASS_SEM, HP_LOCK_READ);
	struct hp_rwsem *sem = &shared->sem[0];
	enum { TIMES = 3 * HP_HOLD_SAMPLE };

	for (unsigned i = 0; i < TIMES; i++) {
		hp_rwsem_write_lock(sem, &me, CLASS_SEM);
		hp_rwsem_downgrade_upgradeable(sem, &me);
		hp_rwsem_upgrade(sem, &me);
		hp_rwsem_downgrade_upgradeable(sem, &me);
		/* The first hold for reading was in the sample, and the upgrade ended it. */
		if (i == 0)
			assert_int_equal(atomic_load(&read->hold.count), 1);
		hp_rwsem_upgradeable_unlock(sem, &me);
	}
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_WRITE), 2 * TIMES);
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_READ), 2 * TIMES);
	assert_int_equal(atomic_load(&write->hold.count), 2 * TIMES / HP_HOLD_SAMPLE);
	assert_int_equal(atomic_load(&read->hold.count), 2 * TIMES / HP_HOLD_SAMPLE);
	assert_int_equal(atomic_load(&write->wait.count) + atomic_load(&read->wait.count), 0);
}

/* The time of the mode that ended is not that of the one that began. */
static void test_statistics_hold_ends(void **state)
{
	struct hp_rwsem *sem = &shared->sem[0];

	hp_rwsem_write_lock(sem, &me, CLASS_SEM);
	domain_sleep(5000000);
	hp_rwsem_downgrade_upgradeable(sem, &me);
	assert_in_range(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_WRITE)->hold.total), 5000000, 10000000000);
	domain_sleep(10000000);
	hp_rwsem_upgradeable_unlock(sem, &me);
	assert_int_equal(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_WRITE)->hold.count), 1);
	assert_int_equal(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_READ)->hold.count), 1);
	assert_in_range(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_READ)->hold.total), 10000000, 10000000000);
}

/* A trylock that fails beside a biased reader has acquired nothing. */
static void test_statistics_trylock(void **state)
{
	struct hp_locker other = me;

	other.owner++;
	other.record = &shared->records[DOMAIN_SLOTS - 1];
	hp_biased_read_lock(&shared->biased[0], &me, CLASS_BIASED);
	assert_false(hp_biased_write_trylock(&shared->biased[0], &other, CLASS_BIASED));
	hp_biased_read_unlock(&shared->biased[0], &me);
	assert_int_equal(domain_acquired(CLASS_BIASED, HP_LOCK_WRITE), 0);
}

/* Holds the lock that the test waits for. */
static void *hold_for_a_while(void *argument)
{
	domain_join();
	hp_mutex_lock(&shared->mutex[0], &me, CLASS_MUTEX);
	step_set(0, 1);
	domain_sleep(20000000);
	hp_mutex_unlock(&shared->mutex[0], &me);
	hp_rwsem_read_lock(&shared->sem[0], &me, CLASS_SEM);
	step_set(0, 2);
	domain_sleep(20000000);
	hp_rwsem_read_unlock(&shared->sem[0], &me);
	hp_biased_read_lock(&shared->biased[0], &me, CLASS_BIASED);
	step_set(0, 3);
	domain_sleep(20000000);
	hp_biased_read_unlock(&shared->biased[0], &me);
	domain_leave();
	return NULL;
}

static void expect_contended(enum hp_lock_class class, const char *waiter, const char *holder)
{
	struct hp_class_sums *sums = domain_sums(class, HP_LOCK_WRITE);
	char name[HP_POINT_NAME];

	assert_int_equal(atomic_load(&sums->wait.count), 1);
	assert_in_range(atomic_load(&sums->wait.max), 5000000, 2000000000);
	assert_int_equal(atomic_load(&sums->wait.total), atomic_load(&sums->wait.max));
	assert_int_equal(atomic_load(&sums->waiter[0].count), 1);
	assert_int_equal(atomic_load(&sums->holder[0].count), 1);
	hp_point_format(atomic_load(&sums->waiter[0].point), name);
	assert_ptr_equal(strstr(name, waiter), name);
	hp_point_format(atomic_load(&sums->holder[0].point), name);
	assert_ptr_equal(strstr(name, holder), name);
}

static void test_statistics_contended(void **state)
{
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, hold_for_a_while, NULL), 0);
	step_wait(0, 1);
	hp_mutex_lock(&shared->mutex[0], &me, CLASS_MUTEX);
	hp_mutex_unlock(&shared->mutex[0], &me);
	step_wait(0, 2);
	hp_rwsem_write_lock(&shared->sem[0], &me, CLASS_SEM);
	hp_rwsem_write_unlock(&shared->sem[0], &me);
	step_wait(0, 3);
	hp_biased_write_lock(&shared->biased[0], &me, CLASS_BIASED);
	hp_biased_write_unlock(&shared->biased[0], &me);
	assert_int_equal(pthread_join(thread, NULL), 0);
	expect_contended(CLASS_MUTEX, "test_statistics_contended", "hold_for_a_while");
	expect_contended(CLASS_SEM, "test_statistics_contended", "hold_for_a_while");
	expect_contended(CLASS_BIASED, "test_statistics_contended", "hold_for_a_while");
	assert_int_equal(domain_acquired(CLASS_MUTEX, HP_LOCK_WRITE), 2);
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_WRITE), 1);
	assert_int_equal(domain_acquired(CLASS_SEM, HP_LOCK_READ), 1);
	assert_int_equal(domain_deaths(CLASS_MUTEX) + domain_deaths(CLASS_SEM) + domain_deaths(CLASS_BIASED), 0);
}

#define in_domain(test) cmocka_unit_test_setup_teardown(test, domain_setup, domain_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_domain(test_statistics_alone),     in_domain(test_statistics_upgradeable_again),
		in_domain(test_statistics_hold_ends), in_domain(test_statistics_trylock),
		in_domain(test_statistics_contended),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
