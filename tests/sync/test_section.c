/* SPDX-License-Identifier: MIT */
/* Read sections: they nest, whom they hold up, and that nobody reads what was taken away before the oldest of them. */
#include "support/domain.h"
#include "support/threads.h"
#include "sync/section.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ENTERED, LEAVE, LEFT };

static uint64_t section_of(const struct hp_locker *who)
{
	return atomic_load(&who->record->section);
}

/* What is taken away now: its stamp. */
static uint64_t take_away(void)
{
	return hp_section_stamp(&domain);
}

static bool is_held_up(uint64_t stamp)
{
	return stamp >= hp_section_oldest(&domain);
}

/* ---- one thread ------------------------------------------------------------------------------------------------- */

static void test_nobody_holds_up_what_was_taken_away(void **state)
{
	uint64_t last = 0;

	for (unsigned i = 0; i < 10; i++) {
		uint64_t stamp = take_away(), oldest;

		assert_true(stamp > 0 && stamp >= last);
		oldest = hp_section_oldest(&domain);
		assert_true(oldest > stamp);
		assert_true(take_away() >= oldest); /* a new epoch has begun */
		last = oldest;
	}
}

static void test_sections_nest(void **state)
{
	uint64_t outer = hp_section_enter(&me), inner, innermost, began = section_of(&me), stamp = take_away();

	assert_int_equal(outer, 0);
	assert_int_not_equal(began, 0);
	assert_int_equal(hp_section_oldest(&domain), began);
	inner = hp_section_enter(&me);
	assert_int_equal(section_of(&me), began); /* the epoch of the outermost counts */
	innermost = hp_section_enter(&me);
	hp_section_leave(&me, innermost);
	assert_int_equal(section_of(&me), began);
	hp_section_leave(&me, inner);
	assert_int_equal(section_of(&me), began);
	assert_true(is_held_up(stamp));
	hp_section_leave(&me, outer);
	assert_int_equal(section_of(&me), 0);
	assert_false(is_held_up(stamp));
}

static void test_a_section_holds_up_nothing_that_went_before(void **state)
{
	uint64_t before = take_away(), outer, during;

	(void)hp_section_oldest(&domain);
	outer = hp_section_enter(&me);
	during = take_away();
	assert_true(is_held_up(during));
	assert_false(is_held_up(before));
	hp_section_leave(&me, outer);
	assert_false(is_held_up(during));
}

static void handle(int signal)
{
	uint64_t outer = hp_section_enter(&me);

	atomic_fetch_add(&shared->step[ENTERED], section_of(&me) != 0);
	hp_section_leave(&me, outer);
}

/* A handler's section inside another leaves it as it is, and one outside leaves none. */
static void test_sections_of_a_signal_handler(void **state)
{
	struct sigaction action = {.sa_handler = handle}, saved;
	uint64_t outer, began;

	assert_int_equal(sigaction(SIGUSR1, &action, &saved), 0);
	assert_int_equal(raise(SIGUSR1), 0);
	assert_int_equal(section_of(&me), 0);
	outer = hp_section_enter(&me);
	began = section_of(&me);
	(void)hp_section_oldest(&domain);
	assert_int_equal(raise(SIGUSR1), 0);
	assert_int_equal(section_of(&me), began);
	hp_section_leave(&me, outer);
	assert_int_equal(atomic_load(&shared->step[ENTERED]), 2);
	assert_int_equal(sigaction(SIGUSR1, &saved, NULL), 0);
}

/* They are in the same record, and know nothing of each other. */
static void test_sections_and_holds(void **state)
{
	uint64_t outer, began;

	hp_rwsem_read_lock(&shared->sem[0], &me, CLASS_SEM);
	outer = hp_section_enter(&me);
	began = section_of(&me);
	hp_biased_read_lock(&shared->biased[0], &me, CLASS_BIASED);
	assert_int_equal(domain_holds(me.record), 2);
	hp_rwsem_read_unlock(&shared->sem[0], &me);
	assert_int_equal(section_of(&me), began);
	hp_section_leave(&me, outer);
	assert_int_equal(domain_holds(me.record), 1);
	hp_biased_read_unlock(&shared->biased[0], &me);
	assert_int_equal(domain_holds(me.record), 0);
}

/* ---- others ----------------------------------------------------------------------------------------------------- */

/* Stays in a section until step LEAVE has the thread's number; 0: ends inside. */
static void *stay(void *argument)
{
	unsigned number = *(const unsigned *)argument;
	uint64_t outer;

	domain_join();
	outer = hp_section_enter(&me);
	atomic_fetch_add(&shared->step[ENTERED], 1);
	if (number == 0)
		return NULL;
	step_wait(LEAVE, number);
	hp_section_leave(&me, outer);
	domain_leave();
	return NULL;
}

static void start(pthread_t *thread, unsigned *number)
{
	uint32_t entered = atomic_load(&shared->step[ENTERED]);

	assert_int_equal(pthread_create(thread, NULL, stay, number), 0);
	step_wait(ENTERED, entered + 1);
}

static void test_the_oldest_of_several(void **state)
{
	unsigned numbers[3] = {1, 2, 3};
	pthread_t threads[3];
	uint64_t stamp[4];

	for (unsigned i = 0; i < 3; i++) {
		stamp[i] = take_away();
		(void)hp_section_oldest(&domain);
		start(&threads[i], &numbers[i]);
	}
	stamp[3] = take_away();
	for (unsigned i = 0; i <= 3; i++) {
		/* What went before the oldest that is left is free, what went since is not. */
		for (unsigned k = 0; k <= 3; k++)
			assert_int_equal(is_held_up(stamp[k]), k > i && i < 3);
		if (i == 3)
			break;
		step_set(LEAVE, i + 1);
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	}
}

static void test_a_dead_thread_holds_up_nothing(void **state)
{
	unsigned ends = 0;
	pthread_t thread;
	uint64_t stamp;

	start(&thread, &ends);
	assert_int_equal(pthread_join(thread, NULL), 0);
	stamp = take_away();
	assert_false(is_held_up(stamp));
}

static void *join_after_a_death(void *argument)
{
	domain_join();
	thread_must(my_slot->id == *(const uint32_t *)argument && section_of(&me) == 0);
	domain_leave();
	return NULL;
}

/* Who gets a dead thread's slot is in no section. */
static void test_a_dead_threads_slot(void **state)
{
	unsigned ends = 0;
	uint32_t slot = 1;
	pthread_t thread;

	start(&thread, &ends);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_not_equal(atomic_load(&shared->records[slot].section), 0);
	threads_run(1, join_after_a_death, &slot, 0);
	assert_int_equal(atomic_load(&shared->records[slot].section), 0);
}

/* Another process counts as long as it lives. */
static void test_another_process(void **state)
{
	unsigned never = UINT32_MAX;
	pid_t child = fork();
	uint64_t stamp;

	if (!child) {
		stay(&never);
		_exit(9);
	}
	assert_true(child > 0);
	step_wait(ENTERED, 1);
	stamp = take_away();
	for (unsigned i = 0; i < 10; i++)
		assert_true(is_held_up(stamp));
	assert_int_equal(kill(child, SIGKILL), 0);
	assert_int_equal(waitpid(child, NULL, 0), child);
	assert_false(is_held_up(stamp));
}

/* ---- at once ---------------------------------------------------------------------------------------------------- */

enum { READERS = 3, TAKEN = 64, GOOD = 42, BAD = 13, REPLACE_NS = 300000000 };

static _Atomic uint64_t values[TAKEN];
static _Atomic uint32_t published;
static _Atomic bool stop;

static void *read_published(void *argument)
{
	domain_join();
	while (!atomic_load(&stop)) {
		uint64_t outer = hp_section_enter(&me), inner;
		uint32_t which = atomic_load_explicit(&published, memory_order_acquire);

		thread_must(atomic_load_explicit(&values[which], memory_order_relaxed) == GOOD);
		inner = hp_section_enter(&me);
		hp_section_leave(&me, inner);
		thread_must(atomic_load_explicit(&values[which], memory_order_relaxed) == GOOD);
		hp_section_leave(&me, outer);
	}
	domain_leave();
	return NULL;
}

/* A ring of values: one that was replaced turns bad when it is not held up, and good before it is published again. */
static void replace_all(void)
{
	uint64_t stamps[TAKEN];
	uint32_t oldest = 0; /* of those that wait */
	int64_t began = hp_now_ns();

	for (uint32_t n = 1; hp_now_ns() - began < REPLACE_NS; n++) {
		while (n - oldest >= TAKEN) {
			uint64_t bound = hp_section_oldest(&domain);

			for (; oldest < n - 1 && stamps[oldest % TAKEN] < bound; oldest++)
				atomic_store_explicit(&values[oldest % TAKEN], BAD, memory_order_relaxed);
		}
		atomic_store_explicit(&values[n % TAKEN], GOOD, memory_order_relaxed);
		atomic_store(&published, n % TAKEN);
		stamps[(n - 1) % TAKEN] = take_away();
	}
}

static void test_nobody_finds_what_was_taken_away(void **state)
{
	pthread_t threads[READERS];

	atomic_store(&stop, false);
	atomic_store(&published, 0);
	atomic_store(&values[0], GOOD);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_published, NULL), 0);
	replace_all();
	atomic_store(&stop, true);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
}

static void test_nobody_finds_it_with_fences(void **state)
{
	shared->shared.fenced = 1;
	test_nobody_finds_what_was_taken_away(state);
}

#define in_domain(test) cmocka_unit_test_setup_teardown(test, domain_setup, domain_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		in_domain(test_nobody_holds_up_what_was_taken_away),
		in_domain(test_sections_nest),
		in_domain(test_a_section_holds_up_nothing_that_went_before),
		in_domain(test_sections_of_a_signal_handler),
		in_domain(test_sections_and_holds),
		in_domain(test_the_oldest_of_several),
		in_domain(test_a_dead_thread_holds_up_nothing),
		in_domain(test_a_dead_threads_slot),
		in_domain(test_another_process),
		in_domain(test_nobody_finds_what_was_taken_away),
		in_domain(test_nobody_finds_it_with_fences),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
