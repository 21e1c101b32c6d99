/* SPDX-License-Identifier: MIT */
/* Threads that die at one step or another, beside others that are held at theirs. */
#include "sync/actors.h"

/* ---- owners that die -------------------------------------------------------------------------------------------- */

/* Two waiters find the owner gone. One takes the lock over and repairs, the other waits for it. */
static void two_find_owner_gone(void (*body)(void), void (*first)(void), void (*second)(void), const char *where)
{
	uint64_t before = repairs();

	atomic_store(&timeouts, true);
	start(0, body, "inside");
	die(0);
	start(1, first, where);
	start(2, second, where);
	go(1, "inside");
	assert_int_equal(repairs(), before + 1);
	assert_int_equal(repaired_after[before % 4], actors[0].owner);
	/* Beside a reader another may come in. */
	go(2, NULL);
	finish(1);
	end(2);
	assert_int_equal(repairs(), before + 1);
}

static void test_two_find_owner_gone(void **state)
{
	two_find_owner_gone(lock_mutex, lock_mutex, lock_mutex, "mutex: owner is gone");
	assert_int_equal(domain_deaths(CLASS_MUTEX), 1);
	two_find_owner_gone(write_sem, write_sem, write_sem, "rwsem: owner is gone");
	two_find_owner_gone(write_sem, write_sem, read_sem, "rwsem: owner is gone");
	two_find_owner_gone(write_sem, read_sem, upgradeable_sem, "rwsem: owner is gone");
	two_find_owner_gone(write_sem, upgradeable_sem, read_sem, "rwsem: owner is gone");
	two_find_owner_gone(write_sem, upgrade_sem, write_sem, "rwsem: owner is gone");
	assert_int_equal(domain_deaths(CLASS_SEM), 5);
}

/* The one who found it gone comes too late: another took over, and somebody holds the lock again. */
static void test_take_over_too_late(void **state)
{
	atomic_store(&timeouts, true);
	start(0, lock_mutex, "inside");
	die(0);
	start(1, lock_mutex, "mutex: owner is gone");
	start(2, lock_mutex, "inside");
	assert_int_equal(repairs(), 1);
	finish(2);
	start(3, lock_mutex, "inside");
	go(1, NULL);
	expect_outside(1);
	finish(3);
	end(1);
	assert_int_equal(repairs(), 1);
}

/* Whoever repairs dies of it: the next one begins anew, after another owner. */
static void repairer_dies(void (*body)(void))
{
	uint64_t before = repairs();

	atomic_store(&timeouts, true);
	start(0, body, "inside");
	die(0);
	start(1, body, "repairing");
	die(1);
	start(2, body, "repairing");
	go(2, "inside");
	assert_int_equal(repairs(), before + 1);
	assert_int_equal(repaired_after[before % 4], actors[1].owner);
	finish(2);
	/* Nobody is held off for a writer that has been and gone. */
	assert_true(hp_rwsem_read_trylock(SEM, &me, CLASS_SEM));
	assert_true(hp_biased_read_trylock(BIASED, &me, CLASS_BIASED));
	hp_biased_read_unlock(BIASED, &me);
	hp_rwsem_read_unlock(SEM, &me);
}

static void test_repairer_dies(void **state)
{
	repairer_dies(lock_mutex);
	repairer_dies(write_sem);
	repairer_dies(write_biased);
	assert_int_equal(domain_deaths(CLASS_MUTEX), 2);
	assert_int_equal(domain_deaths(CLASS_SEM), 2);
	assert_int_equal(domain_deaths(CLASS_BIASED), 2);
}

/* The waker dies between release and wake. */
static void waker_dies(void (*holder)(void), void (*waiter)(void), const char *where, const char *to_sleep)
{
	int64_t since;

	atomic_store(&timeouts, true);
	start(0, holder, "inside");
	start(1, waiter, to_sleep);
	go(1, NULL);
	await("to fall asleep", sleeps, &actors[1]);
	go(0, where);
	die(0);
	since = hp_now_ns();
	end(1);
	assert_in_range(hp_now_ns() - since, 0, 2000000000);
}

static void test_waker_dies(void **state)
{
	waker_dies(lock_mutex, lock_mutex, "mutex: about to wake", "mutex: about to sleep");
	waker_dies(write_sem, write_sem, "rwsem: owner has let go", "rwsem: about to sleep");
	waker_dies(write_sem, read_sem, "rwsem: about to wake", "rwsem: about to sleep");
	waker_dies(read_sem, write_sem, "rwsem: about to wake", "rwsem: about to sleep");
	waker_dies(read_sem, upgrade_sem, "rwsem: about to wake", "rwsem: upgrade is about to sleep");
	assert_int_equal(repairs(), 0);
}

/* An upgrader that dies asleep lets those go on that it held off. */
static void test_upgrader_dies(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_sem, "inside");
	start(1, upgrade_sem, "rwsem: upgrade is about to sleep");
	die(1);
	start(2, read_sem, "inside");
	assert_int_equal(sem_readers(SEM), 2);
	start(3, upgradeable_sem, "inside");
	finish(2);
	finish(3);
	finish(0);
	assert_int_equal(domain_deaths(CLASS_SEM), 1);
	assert_int_equal(repairs(), 0);
}

/*
 * One that is upgradeable again dies at each step of the way there, with a reader asleep, who comes in. It died as a
 * reader: nothing is repaired, and who wants more than to read finds it gone.
 */
static void test_upgradeable_again_dies(void **state)
{
	static const char *const points[] = {"rwsem: owner has let go", "rwsem: about to wake", "returned"};
	static void (*const finders[])(void) = {write_sem, upgradeable_sem, collapse_sem};
	unsigned deaths = 0;
	int64_t since;

	atomic_store(&timeouts, true);
	for (unsigned i = 0; i < sizeof(points) / sizeof(points[0]); i++)
		for (unsigned f = 0; f < sizeof(finders) / sizeof(finders[0]); f++) {
			start(0, collapse_sem, "inside");
			start(1, read_sem, "rwsem: about to sleep");
			go(1, NULL);
			await("to fall asleep", sleeps, &actors[1]);
			go(0, points[i]);
			die(0);
			since = hp_now_ns();
			end(1);
			assert_in_range(hp_now_ns() - since, 0, 2000000000);
			assert_int_equal(atomic_load(&SEM->state) >> HP_RWSEM_OWNER_SHIFT, actors[0].owner);
			start(2, finders[f], "inside");
			finish(2);
			assert_int_equal(sem_held(SEM), 0);
			assert_int_equal(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_READ)->deaths), ++deaths);
		}
	assert_int_equal(domain_deaths(CLASS_SEM), deaths);
	assert_int_equal(repairs(), 0);
}

/* It dies on its way to write again: as a reader until it does, and as a writer from then on. */
static void test_upgradeable_again_upgrader_dies(void **state)
{
	atomic_store(&timeouts, true);
	start(0, collapse_sem, "returned");
	start(1, read_sem, "inside");
	go(0, "rwsem: upgrade is about to sleep");
	die(0);
	start(2, read_sem, "inside");
	assert_int_equal(sem_readers(SEM), 2);
	finish(2);
	finish(1);
	assert_int_equal(repairs(), 0);
	start(0, collapse_sem, "upgraded again");
	die(0);
	start(1, read_sem, "inside");
	assert_int_equal(repairs(), 1);
	assert_int_equal(repaired_after[0], actors[0].owner);
	finish(1);
	assert_int_equal(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_READ)->deaths), 1);
	assert_int_equal(atomic_load(&domain_sums(CLASS_SEM, HP_LOCK_WRITE)->deaths), 1);
}

/* Beside readers that are held off, and the writer for whom they are: it comes next, and they after it. */
static void test_upgradeable_again_dies_held_off(void **state)
{
	atomic_store(&timeouts, true);
	start(0, collapse_sem, "inside");
	start(1, write_sem, "rwsem: about to sleep");
	go(1, "rwsem: about to sleep"); /* after its first time-out */
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_HELD_OFF);
	go(0, "returned");
	start(2, read_sem, "rwsem: about to sleep");
	die(0);
	go(1, "inside");
	assert_false(atomic_load(&SEM->state) & HP_RWSEM_HELD_OFF);
	finish(1);
	finish(2);
	assert_int_equal(domain_deaths(CLASS_SEM), 1);
	assert_int_equal(repairs(), 0);
}

/* The bias is off, and may be learned beside the dead one. */
static void test_biased_upgradeable_again_dies(void **state)
{
	atomic_store(&timeouts, true);
	start(0, collapse_biased, "returned");
	die(0);
	for (unsigned i = 0; i < 16; i++)
		read_biased();
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_WARM);
	start(1, read_biased, "inside");
	start(2, write_biased, "biased: about to sleep");
	arm(2, "inside");
	atomic_store(&actors[2].gate, RELEASED);
	expect_outside(2);
	finish(1);
	expect_stop(2);
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
	finish(2);
	assert_int_equal(domain_deaths(CLASS_BIASED), 1);
	assert_int_equal(repairs(), 0);
}

/* ---- readers that die ------------------------------------------------------------------------------------------- */

static const char *const reader_points[] = {"rwsem: reader is pending", "rwsem: reader is counted", "inside",
                                            "rwsem: reader is leaving", "rwsem: reader has left"};

static bool count_is_one(struct actor *a)
{
	return sem_readers(SEM) == 1 && hp_record_is_empty(&shared->records[a->slot->id]);
}

/* One reader dies at each of its steps, another lives. A waiting writer counts anew, and waits for the living. */
static void test_reader_dies(void **state)
{
	atomic_store(&timeouts, true);
	for (unsigned i = 0; i < sizeof(reader_points) / sizeof(reader_points[0]); i++) {
		start(0, read_sem, "inside");
		start(1, read_sem, reader_points[i]);
		die(1);
		start(2, write_sem, "rwsem: about to sleep");
		arm(2, "inside");
		atomic_store(&actors[2].gate, RELEASED);
		await("to have the dead reader forgotten", count_is_one, &actors[1]);
		assert_false(is_stopped(&actors[2]));
		finish(0);
		expect_stop(2);
		finish(2);
		assert_int_equal(domain_deaths(CLASS_SEM), i + 1);
	}
	assert_int_equal(repairs(), 0);
}

/* The same, found by who wants the slot and not by one who waits; so early in a thread's life that nothing else is known. */
static void test_reader_dies_unwaited(void **state)
{
	for (unsigned i = 0; i < sizeof(reader_points) / sizeof(reader_points[0]); i++) {
		start(0, read_sem, reader_points[i]);
		die(0);
		assert_true(domain_bury());
		assert_int_equal(sem_held(SEM), 0);
		assert_int_equal(domain_deaths(CLASS_SEM), i + 1);
		assert_true(hp_rwsem_write_trylock(SEM, &me, CLASS_SEM));
		hp_rwsem_write_unlock(SEM, &me);
	}
}

/* A reader that was counted among the living dies before the notes of the dead are taken away: it must not be forgotten. */
static void test_reader_dies_while_counted(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_sem, "inside");
	start(1, read_sem, "inside");
	die(1);
	start(2, write_sem, "rwsem: readers are counted");
	die(0);
	go(2, "inside");
	assert_int_equal(sem_readers(SEM), 0);
	finish(2);
}

/* Somebody else asks after a dead thread at the same moment, so that it seems to live. */
static void seems_alive_once(struct hp_slot *slot, bool *gone)
{
	static _Atomic unsigned asked;

	/* The first question finds it dead, the second, for the count, does not. */
	if (slot == actors[0].slot && atomic_fetch_add(&asked, 1) == 1)
		*gone = false;
}

static void test_reader_seems_alive(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_sem, "inside");
	die(0);
	after_is_gone = seems_alive_once;
	start(1, write_sem, "inside");
	finish(1);
}

/* Who counts the readers dies in the middle: the next waiter does it, although REPAIR has no owner. */
static void test_counter_dies(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_sem, "inside");
	die(0);
	start(1, write_sem, "rwsem: readers are counted");
	die(1);
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_REPAIR);
	assert_int_equal(atomic_load(&shared->shared.burial), actors[1].owner);
	assert_false(hp_rwsem_read_trylock(SEM, &me, CLASS_SEM));
	/* And again, found by a reader. */
	start(2, read_sem, "rwsem: readers are counted");
	die(2);
	start(3, upgradeable_sem, "inside");
	assert_false(atomic_load(&SEM->state) & HP_RWSEM_REPAIR);
	finish(3);
	assert_int_equal(atomic_load(&shared->shared.burial), 0);
}

/* A live reader is between noting and counting itself while the dead are looked for: it is waited for. */
static void test_count_beside_pending(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_sem, "inside");
	die(0);
	start(1, read_sem, "rwsem: reader is pending");
	start(2, write_sem, "rwsem: readers are counted");
	go(1, "rwsem: reader is counted");
	/* The state is not the one that was looked at, or REPAIR keeps the reader out: either way it is not lost. */
	arm(2, "inside");
	atomic_store(&actors[2].gate, RELEASED);
	arm(1, "inside");
	atomic_store(&actors[1].gate, RELEASED);
	for (unsigned i = 0; i < 10000 && !is_stopped(&actors[1]) && !is_stopped(&actors[2]); i++)
		domain_sleep(100000);
	assert_int_equal(is_stopped(&actors[1]) + is_stopped(&actors[2]), 1);
	assert_int_equal(sem_readers(SEM), is_stopped(&actors[1]));
	finish(is_stopped(&actors[1]) ? 1 : 2);
	expect_stop(atomic_load(&actors[1].ended) ? 2 : 1);
	finish(atomic_load(&actors[1].ended) ? 2 : 1);
}

/* ---- biased readers and writers that die ------------------------------------------------------------------------ */

static void test_biased_reader_dies(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_biased, "inside");
	die(0);
	start(1, write_biased, "inside");
	assert_true(hp_record_is_empty(&shared->records[actors[0].slot->id]));
	finish(1);
	assert_int_equal(domain_deaths(CLASS_BIASED), 1);
}

/* While the writer finds the reader gone another takes the hold away. */
static void bury_meanwhile(struct hp_slot *slot, bool *gone)
{
	if (slot == actors[0].slot && *gone)
		atomic_store(&shared->records[slot->id].hold[0], 0);
}

static void test_biased_reader_buried_meanwhile(void **state)
{
	atomic_store(&timeouts, true);
	start(0, read_biased, "inside");
	die(0);
	after_is_gone = bury_meanwhile;
	start(1, write_biased, "inside");
	finish(1);
}

/* Writers die at each step of a revocation, with a reader inside: the next one waits for it. */
static void test_revoker_dies(void **state)
{
	static const char *const points[] = {"biased: revoking", "biased: about to sleep"};

	atomic_store(&timeouts, true);
	for (unsigned i = 0; i < 2; i++) {
		memset(BIASED, 0, sizeof(*BIASED));
		hp_biased_init(BIASED, &me, true);
		start(0, read_biased, "inside");
		start(1, write_biased, points[i]);
		die(1);
		start(2, write_biased, "biased: about to sleep");
		assert_int_equal(repairs(), i + 1);
		arm(2, "inside");
		atomic_store(&actors[2].gate, RELEASED);
		expect_outside(2);
		finish(0);
		expect_stop(2);
		assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
		finish(2);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_order(test_two_find_owner_gone),
		in_order(test_take_over_too_late),
		in_order(test_repairer_dies),
		in_order(test_waker_dies),
		in_order(test_upgrader_dies),
		in_order(test_reader_dies),
		in_order(test_reader_dies_unwaited),
		in_order(test_counter_dies),
		in_order(test_count_beside_pending),
		in_order(test_biased_reader_dies),
		in_order(test_revoker_dies),
		in_order(test_reader_dies_while_counted),
		in_order(test_reader_seems_alive),
		in_order(test_biased_reader_buried_meanwhile),
		in_order(test_upgradeable_again_dies),
		in_order(test_upgradeable_again_upgrader_dies),
		in_order(test_upgradeable_again_dies_held_off),
		in_order(test_biased_upgradeable_again_dies),
	};
	const char *only = getenv("HP_TEST_ONLY");

	if (only)
		cmocka_set_test_filter(only);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
