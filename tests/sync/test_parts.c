/* SPDX-License-Identifier: MIT */
/* What locks are made of and what stands beside them: fault mutexes, epochs, futexes, slots and owners. */
#include "support/domain.h"
#include "support/threads.h"
#include "sync/epoch.h"
#include "sync/fault_mutex.h"
#include "sync/futex.h"
#include "sync/slot.h"

#include <errno.h>

enum { THREADS = 4 };

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
	/* Two at once, the second by trylock. */
	hp_mutex_lock(&table[0].mutex, &me, HP_CLASS_FAULT);
	assert_true(hp_mutex_trylock(&table[1].mutex, &me, HP_CLASS_FAULT));
	hp_mutex_unlock(&table[0].mutex, &me);
	hp_mutex_unlock(&table[1].mutex, &me);
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
static _Atomic bool reusable;

static bool may_reuse(const void *context, uint32_t id)
{
	thread_must(context == slots && id < SLOTS);
	return atomic_load(&reusable);
}

static struct hp_slot *claim(uint32_t process)
{
	sigset_t saved;
	struct hp_slot *slot;

	hp_signals_block(&saved);
	slot = hp_slot_claim(slots, SLOTS, process, may_reuse, slots);
	hp_signals_restore(&saved);
	return slot;
}

static void *claim_and_release(void *argument)
{
	struct hp_slot *slot = claim(7);

	thread_must(slot != NULL);
	if (slot)
		hp_slot_release(slot);
	return NULL;
}

static void *claim_and_end(void *argument)
{
	thread_must(claim(7) != NULL);
	return NULL;
}

static void test_slots(void **state)
{
	struct hp_slot *held[SLOTS];
	uint32_t generation;

	slots = mmap(NULL, SLOTS * sizeof(slots[0]), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(slots, MAP_FAILED);
	assert_int_equal(hp_slots_init(slots, SLOTS), 0);
	assert_int_equal(hp_slots_held_by(slots, SLOTS, 7), 0);
	for (unsigned i = 0; i < SLOTS; i++) {
		held[i] = claim(5);
		assert_non_null(held[i]);
		assert_false(hp_slot_is_gone(held[i]));
		for (unsigned j = 0; j < i; j++)
			assert_int_not_equal(hp_slot_owner(held[i]), hp_slot_owner(held[j]));
	}
	assert_null(claim(5));
	assert_int_equal(hp_slots_held_by(slots, SLOTS, 5), SLOTS);
	hp_slot_release(held[2]);
	assert_true(hp_slot_is_gone(held[2]));
	generation = atomic_load(&held[2]->generation);
	threads_run(1, claim_and_release, held, 0);
	/* A thread that ends without a word is found out; its slot is had again only when nothing of it is needed. */
	threads_run(1, claim_and_end, held, 0);
	assert_int_equal(atomic_load(&held[2]->process), 7);
	assert_int_equal(hp_slots_held_by(slots, SLOTS, 7), 0);
	assert_true(hp_slot_is_gone(held[2]));
	assert_null(claim(5));
	atomic_store(&reusable, true);
	threads_run(1, claim_and_end, held, 0);
	assert_ptr_equal(claim(5), held[2]);
	assert_int_equal(atomic_load(&held[2]->generation), generation + 4);
	for (unsigned i = 0; i < SLOTS; i++)
		hp_slot_release(held[i]);
	assert_int_equal(hp_slots_held_by(slots, SLOTS, 5), 0);
	munmap(slots, SLOTS * sizeof(slots[0]));
}

static void test_owner_is_gone(void **state)
{
	struct hp_lock_domain local = {.shared = &shared->shared, .base = (const char *)shared};
	hp_owner owner = me.owner;

	assert_false(hp_owner_is_gone(&domain, 0));
	assert_false(hp_owner_is_gone(&domain, owner));
	assert_false(hp_owner_is_gone(&local, owner)); /* its threads do not die alone */
	domain_leave();
	assert_true(hp_owner_is_gone(&domain, owner));
	domain_join();
	/* The slot has a thread again, but not that one. */
	assert_true(hp_owner_is_gone(&domain, owner));
	assert_int_not_equal(me.owner, owner);
	assert_false(hp_owner_is_gone(&domain, me.owner));
}

#define in_domain(test) cmocka_unit_test_setup_teardown(test, domain_setup, domain_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_domain(test_fault_mutexes), cmocka_unit_test(test_epoch),  cmocka_unit_test(test_futex),
		cmocka_unit_test(test_slots),  in_domain(test_owner_is_gone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
