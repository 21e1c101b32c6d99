/* SPDX-License-Identifier: MIT */
/* Orders of steps that seldom come by themselves, between threads that live. */
#include "sync/actors.h"

/* ---- no wake-up is lost between looking and sleeping ------------------------------------------------------------ */

static void unlock_before_sleep(void (*holder)(void), void (*waiter)(void), const char *where)
{
	start(0, holder, "inside");
	start(1, waiter, where);
	finish(0);
	finish(1);
}

static void test_unlock_before_sleep(void **state)
{
	unlock_before_sleep(lock_mutex, lock_mutex, "mutex: about to sleep");
	unlock_before_sleep(read_sem, write_sem, "rwsem: about to sleep");
	unlock_before_sleep(write_sem, write_sem, "rwsem: about to sleep");
	unlock_before_sleep(write_sem, read_sem, "rwsem: about to sleep");
	unlock_before_sleep(write_sem, upgradeable_sem, "rwsem: about to sleep");
	unlock_before_sleep(upgradeable_sem, write_sem, "rwsem: about to sleep");
	unlock_before_sleep(read_sem, upgrade_sem, "rwsem: upgrade is about to sleep");
	unlock_before_sleep(collapse_sem, read_sem, "rwsem: about to sleep");
	unlock_before_sleep(collapse_sem, write_sem, "rwsem: about to sleep");
	unlock_before_sleep(collapse_sem, upgradeable_sem, "rwsem: about to sleep");
	unlock_before_sleep(read_sem, collapse_sem, "rwsem: upgrade is about to sleep");
}

/* The same with a sleeper, and one more that comes by before it wakes up and is asleep when the lock is free again. */
static void barge(void (*holder)(void), void (*waiter)(void), const char *to_sleep)
{
	start(0, holder, "inside");
	start(1, waiter, to_sleep);
	fall_asleep(1);
	start(2, waiter, to_sleep);
	fall_asleep(2);
	start(3, waiter, "joined");
	finish(0);
	finish(3);
	end(1);
	end(2);
}

static void test_barge(void **state)
{
	barge(lock_mutex, lock_mutex, "mutex: about to sleep");
	barge(write_sem, write_sem, "rwsem: about to sleep");
	barge(write_sem, read_sem, "rwsem: about to sleep");
	barge(write_sem, upgrade_sem, "rwsem: about to sleep");
	barge(read_sem, downgrade_sem, "rwsem: about to sleep");
	barge(collapse_sem, read_sem, "rwsem: about to sleep");
	barge(collapse_sem, collapse_sem, "rwsem: about to sleep");
}

/* The waker is held between release and wake: whoever comes by takes the lock, and the wake-up is not lost. */
static void test_late_waker(void **state)
{
	start(0, lock_mutex, "inside");
	start(1, lock_mutex, "mutex: about to sleep");
	fall_asleep(1);
	go(0, "mutex: about to wake");
	start(2, lock_mutex, "inside");
	finish(0);
	finish(2);
	end(1);

	start(0, write_sem, "inside");
	start(1, write_sem, "rwsem: about to sleep");
	fall_asleep(1);
	go(0, "rwsem: about to wake");
	start(2, write_sem, "inside");
	start(3, read_sem, "rwsem: about to sleep");
	fall_asleep(3);
	finish(0);
	finish(2);
	end(1);
	end(3);
}

/*
 * A writer that has waited long holds others off, also an upgradeable reader. One wake-up for both must not end with the
 * one that cannot go on.
 */
static void test_held_off_beside_upgradeable(void **state)
{
	start(0, write_sem, "inside");
	start(1, upgradeable_sem, "rwsem: about to sleep");
	fall_asleep(1);
	atomic_store(&timeouts, true);
	start(2, write_sem, "rwsem: about to sleep");
	go(2, "rwsem: about to sleep"); /* after its first time-out */
	atomic_store(&timeouts, false);
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_HELD_OFF);
	fall_asleep(2);
	/* Were the lock free with both asleep, they would stay so. */
	finish(0);
	end(2);
	end(1);
}

/* ---- upgrade and downgrade -------------------------------------------------------------------------------------- */

static void test_upgrade_waits_for_readers(void **state)
{
	start(0, read_sem, "inside");
	start(1, read_sem, "inside");
	start(2, upgrade_sem, "inside");
	go(2, "rwsem: upgrade is about to sleep");
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_UPGRADING);
	fall_asleep(2);
	/* New readers and writers stay out. */
	assert_false(hp_rwsem_read_trylock(SEM, &me, CLASS_SEM));
	assert_false(hp_rwsem_write_trylock(SEM, &me, CLASS_SEM));
	start(3, read_sem, "rwsem: about to sleep");
	fall_asleep(3);
	arm(2, "upgraded");
	finish(0);
	expect_outside(2);
	finish(1);
	expect_stop(2);
	assert_true(hp_rwsem_is_written_by(SEM, actors[2].owner));
	expect_outside(3);
	finish(2);
	end(3);
}

/* A reader that has noted its hold and not counted itself comes too late. */
static void test_upgrade_beside_pending_reader(void **state)
{
	start(0, read_sem, "rwsem: reader is pending");
	start(1, upgrade_sem, "upgraded");
	assert_int_equal(domain_holds(&shared->records[actors[0].slot->id]), 1);
	go(0, "rwsem: about to sleep");
	assert_int_equal(sem_readers(SEM), 0);
	assert_int_equal(domain_holds(&shared->records[actors[0].slot->id]), 0);
	fall_asleep(0);
	finish(1);
	end(0);
}

/* One that has counted itself and not noted that yet is waited for. */
static void test_upgrade_beside_counted_reader(void **state)
{
	start(0, read_sem, "rwsem: reader is counted");
	start(1, upgrade_sem, "rwsem: upgrade is about to sleep");
	fall_asleep(1);
	go(0, "rwsem: reader has left");
	/* It has left, and will tell. */
	finish(0);
	end(1);
}

static void test_downgrade_beside_waiters(void **state)
{
	start(0, downgrade_sem, "inside");
	start(1, write_sem, "rwsem: about to sleep");
	fall_asleep(1);
	start(2, read_sem, "rwsem: about to sleep");
	fall_asleep(2);
	arm(1, "inside");
	arm(2, "inside");
	go(0, "rwsem: owner has let go");
	/* Before anybody is woken those who come by may read. */
	start(3, read_sem, "inside");
	assert_int_equal(sem_readers(SEM), 2);
	go(0, "downgraded");
	expect_stop(2);
	expect_outside(1);
	assert_int_equal(sem_readers(SEM), 3);
	finish(2);
	finish(0);
	expect_outside(1);
	finish(3);
	expect_stop(1);
	finish(1);
}

/*
 * A writer becomes the upgradeable reader: those who wait to read come in, those who want more wait on, and nobody comes
 * between it and its next upgrade.
 */
static void test_upgradeable_again_beside_waiters(void **state)
{
	start(0, collapse_sem, "inside");
	start(1, write_sem, "rwsem: about to sleep");
	fall_asleep(1);
	start(2, read_sem, "rwsem: about to sleep");
	fall_asleep(2);
	start(3, upgradeable_sem, "rwsem: about to sleep");
	fall_asleep(3);
	arm(1, "inside");
	arm(2, "inside");
	arm(3, "inside");
	go(0, "rwsem: owner has let go");
	assert_int_equal(atomic_load(&SEM->state) >> HP_RWSEM_OWNER_SHIFT, actors[0].owner);
	/* Before anybody is woken those who come by may read. */
	start(4, read_sem, "inside");
	go(0, "returned");
	expect_stop(2);
	assert_int_equal(sem_readers(SEM), 2);
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_WRITERS_WAIT);
	expect_outside(1);
	expect_outside(3);
	/* Again it waits for the readers that there are, and holds off those who come. */
	go(0, "rwsem: upgrade is about to sleep");
	fall_asleep(0);
	assert_false(hp_rwsem_read_trylock(SEM, &me, CLASS_SEM));
	arm(0, "upgraded again");
	finish(2);
	expect_outside(0);
	finish(4);
	expect_stop(0);
	assert_true(hp_rwsem_is_written_by(SEM, actors[0].owner));
	expect_outside(1);
	expect_outside(3);
	/* Either of the two may be the next. */
	atomic_store(&actors[1].where, NULL);
	atomic_store(&actors[3].where, NULL);
	finish(0);
	end(1);
	end(3);
}

/* A writer that has waited long keeps readers off an upgradeable one too, until it has written. */
static void test_upgradeable_again_held_off(void **state)
{
	start(0, collapse_sem, "inside");
	start(1, read_sem, "rwsem: about to sleep");
	fall_asleep(1);
	atomic_store(&timeouts, true);
	start(2, write_sem, "rwsem: about to sleep");
	go(2, "rwsem: about to sleep"); /* after its first time-out */
	atomic_store(&timeouts, false);
	fall_asleep(2);
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_HELD_OFF);
	arm(1, "inside");
	arm(2, "inside");
	go(0, "returned");
	assert_true(atomic_load(&SEM->state) & HP_RWSEM_HELD_OFF);
	assert_false(hp_rwsem_read_trylock(SEM, &me, CLASS_SEM));
	expect_outside(1);
	expect_outside(2);
	/* The owner is not held off: it was there before. */
	go(0, "upgraded again");
	expect_outside(2);
	finish(0);
	expect_stop(2);
	assert_false(atomic_load(&SEM->state) & HP_RWSEM_HELD_OFF);
	expect_outside(1);
	finish(2);
	expect_stop(1);
	finish(1);
}

/* ---- bias ------------------------------------------------------------------------------------------------------- */

static bool entered;

/* What hp_biased_read_lock() does, with a stop between its two halves. */
static void read_biased_in_two(void)
{
	uint32_t before = atomic_load(&BIASED->bias);

	atomic_store(&me.record->hold[0], hp_lock_id(&me, BIASED) | HP_HOLD_VISIBLE);
	hook("visible");
	entered = atomic_load(&BIASED->bias) == before;
	if (entered)
		inside();
	hp_biased_leave(BIASED, me.record, 0);
}

static void test_revoke_beside_visible(void **state)
{
	start(0, read_biased_in_two, "visible");
	start(1, write_biased, "biased: revoking");
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_REVOKING);
	go(1, "biased: about to sleep");
	fall_asleep(1);
	arm(1, "inside");
	finish(0);
	assert_false(entered);
	expect_stop(1);
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
	finish(1);
}

/* A reader that believes in a bias that is over finds out. */
static void enter_too_late(void)
{
	uint32_t before = atomic_load(&BIASED->bias);

	hook("looked");
	entered = hp_biased_enter(BIASED, &me, 0, before, HP_HERE(CLASS_BIASED));
}

static void test_enter_too_late(void **state)
{
	start(0, enter_too_late, "looked");
	start(1, write_biased, "biased: revoking");
	finish(0);
	assert_false(entered);
	finish(1);
}

static void test_revoke_beside_inside(void **state)
{
	start(0, read_biased, "inside");
	start(1, write_biased, "biased: about to sleep");
	start(2, read_biased, "rwsem: about to sleep");
	fall_asleep(2);
	fall_asleep(1);
	arm(1, "inside");
	arm(2, "inside");
	expect_outside(1);
	finish(0);
	expect_stop(1);
	expect_outside(2);
	finish(1);
	expect_stop(2);
	assert_int_equal(sem_readers(&BIASED->sem), 1);
	finish(2);
}

/* The last reader leaves when the one who revokes has looked and does not sleep yet. */
static void test_revoke_sleeps_too_late(void **state)
{
	start(0, read_biased, "inside");
	start(1, write_biased, "biased: about to sleep");
	finish(0);
	finish(1);
}

/* Beside a writer that is upgradeable again readers come by the rwsem, and it waits for them when it writes again. */
static void test_biased_upgradeable_again(void **state)
{
	start(0, collapse_biased, "inside");
	start(1, read_biased, "rwsem: about to sleep");
	fall_asleep(1);
	arm(1, "inside");
	go(0, "returned");
	expect_stop(1);
	start(2, read_biased, "inside");
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
	assert_int_equal(sem_readers(&BIASED->sem), 2);
	go(0, "rwsem: upgrade is about to sleep");
	fall_asleep(0);
	arm(0, "upgraded again");
	finish(1);
	expect_outside(0);
	finish(2);
	expect_stop(0);
	finish(0);
}

static void read_often(void)
{
	for (unsigned i = 0; i < 100; i++)
		read_biased();
}

/* So many that a warm bias is turned on, if it has lasted. */
static void read_very_often(void)
{
	read_often();
	domain_sleep(3000000);
	for (unsigned i = 0; i <= HP_WARM_READS; i++)
		read_biased();
}

/* Who learns the bias holds the lock for reading: the writer comes after, and ends it. */
static void test_learned_beside_writer(void **state)
{
	hp_biased_write_lock(BIASED, &me, CLASS_BIASED);
	hp_biased_write_unlock(BIASED, &me);
	start(0, read_often, "biased: learned");
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
	start(1, write_biased, "rwsem: about to sleep");
	fall_asleep(1);
	arm(1, "inside");
	go(0, "inside");
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_WARM);
	expect_outside(1);
	/* It reads on, by the bias that it has learned, until the writer has come through. */
	go(0, NULL);
	expect_stop(1);
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
	finish(1);
	end(0);
}

/* The same beside one that is upgradeable again: who has learned the bias reads by it, and the next upgrade ends it. */
static void test_learned_beside_upgradeable_again(void **state)
{
	start(0, collapse_biased, "returned");
	start(1, read_often, "biased: learned");
	go(1, "inside"); /* still counted by the rwsem */
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_WARM);
	go(1, "inside"); /* by the bias */
	assert_int_equal(sem_readers(&BIASED->sem), 0);
	go(0, "biased: about to sleep");
	fall_asleep(0);
	arm(0, "upgraded again");
	expect_outside(0);
	go(1, "rwsem: about to sleep");
	expect_stop(0);
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_OFF);
	finish(0);
	finish(1);
}

/*
 * One who learned late does not turn a bias that is on back to warm: the next writer would take it for one whose readers
 * all pass barriers.
 */
static void test_learned_beside_settled(void **state)
{
	if (shared->shared.fenced)
		skip();
	hp_biased_write_lock(BIASED, &me, CLASS_BIASED);
	hp_biased_write_unlock(BIASED, &me);
	start(0, read_often, "biased: learned");
	start(1, read_very_often, "joined");
	finish(1);
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_ON);
	go(0, "inside");
	assert_int_equal(atomic_load(&BIASED->bias), HP_BIAS_ON);
	finish(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_order(test_unlock_before_sleep),
		in_order(test_barge),
		in_order(test_late_waker),
		in_order(test_upgrade_waits_for_readers),
		in_order(test_upgrade_beside_pending_reader),
		in_order(test_upgrade_beside_counted_reader),
		in_order(test_downgrade_beside_waiters),
		in_order(test_upgradeable_again_beside_waiters),
		in_order(test_upgradeable_again_held_off),
		in_order(test_revoke_beside_visible),
		in_order(test_enter_too_late),
		in_order(test_revoke_beside_inside),
		in_order(test_revoke_sleeps_too_late),
		in_order(test_learned_beside_writer),
		in_order(test_biased_upgradeable_again),
		in_order(test_learned_beside_upgradeable_again),
		in_order(test_learned_beside_settled),
		in_order(test_held_off_beside_upgradeable),
	};
	const char *only = getenv("HP_TEST_ONLY");

	if (only)
		cmocka_set_test_filter(only);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
