/* SPDX-License-Identifier: MIT */
/*
 * Fault injection, before the sim backend: which calls fail, what is counted, what passes through.
 */
#include "os/inject.h"
#include "os/sim.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct hp_os *sim;
static struct hp_os *os;

static int setup(void **state)
{
	const struct hp_sim_config config = {
		.hugetlb_bytes = 64 * HP_FRAME_SIZE, .max_map_count = 1234, .table_sharing = true};

	sim = hp_sim_create(&config);
	os = sim ? hp_inject_create(sim) : NULL;
	return os ? 0 : -1;
}

static int teardown(void **state)
{
	hp_inject_destroy(os);
	return hp_sim_destroy(sim);
}

/* A reservation that leaves nothing behind. */
static int try_reserve(void)
{
	void *address;
	int error = os->ops->reserve(os, HP_FRAME_SIZE, HP_FRAME_SIZE, 0, &address);

	if (!error)
		assert_int_equal(sim->ops->unmap(sim, address, HP_FRAME_SIZE), 0);
	return error;
}

/* Fails where the string has an x. */
static void expect_calls(const char *pattern)
{
	for (; *pattern; pattern++)
		assert_int_equal(try_reserve(), *pattern == 'x' ? -ENOMEM : 0);
}

static void test_first(void **state)
{
	hp_inject_fail(os, HP_CALL_RESERVE, 1, 0, -ENOMEM);
	expect_calls("x....");
}

static void test_second(void **state)
{
	expect_calls("...");
	hp_inject_fail(os, HP_CALL_RESERVE, 2, 0, -ENOMEM);
	expect_calls(".x...");
}

static void test_more(void **state)
{
	hp_inject_fail(os, HP_CALL_RESERVE, 3, 2, -ENOMEM);
	expect_calls("..xxx...");
}

static void test_from_now_on(void **state)
{
	hp_inject_fail(os, HP_CALL_RESERVE, 2, UINT64_MAX, -ENOMEM);
	expect_calls(".xxxxxxxxx");
	hp_inject_clear(os);
	expect_calls("...");
	assert_int_equal(hp_inject_count(os, HP_CALL_RESERVE), 13);
}

/* First count, then fail the last of as many. */
static void test_last(void **state)
{
	expect_calls("....");
	uint64_t calls = hp_inject_count(os, HP_CALL_RESERVE);
	assert_int_equal(calls, 4);
	hp_inject_fail(os, HP_CALL_RESERVE, calls, 0, -ENOMEM);
	expect_calls("...x....");
}

static void test_new_rule_replaces(void **state)
{
	hp_inject_fail(os, HP_CALL_RESERVE, 1, 5, -EINTR);
	hp_inject_fail(os, HP_CALL_RESERVE, 2, 0, -ENOMEM);
	expect_calls(".x..");
	hp_inject_fail(os, HP_CALL_RESERVE, 1, 0, -EAGAIN);
	assert_int_equal(try_reserve(), -EAGAIN);
	expect_calls("..");
}

static void test_rule_of_one_call_only(void **state)
{
	hp_segment segment;

	hp_inject_fail(os, HP_CALL_RESERVE, 1, UINT64_MAX, -ENOMEM);
	assert_int_equal(os->ops->segment_create(os, HP_BACKING_HUGETLB, HP_FRAME_SIZE, &segment), 0);
	assert_int_equal(os->ops->segment_destroy(os, segment), 0);
	expect_calls("xx");
}

/* Each operation once, on the way through the life of a mapping. `failing` is the one expected to fail. */
static void call_each(enum hp_os_call failing, int error)
{
	const struct hp_os_ops *ops = os->ops;
	const struct hp_os_ops *direct = sim->ops;
	const uint64_t size = 2 * HP_FRAME_SIZE;
	void *control, *address, *target;
	hp_segment handle, segment;
	int result[HP_CALL_COUNT];
	unsigned char present[2];
	void *held;

	/* What an injected failure left undone is done on the sim itself, so that the rest finds its state. */
#define CALL(call, name, ...)                                                \
	do {                                                                 \
		result[call] = ops->name(os, __VA_ARGS__);                   \
		if (result[call])                                            \
			assert_int_equal(direct->name(sim, __VA_ARGS__), 0); \
	} while (0)

	CALL(HP_CALL_CONTROL_CREATE, control_create, 10000, &control, &handle);
	CALL(HP_CALL_SEGMENT_CREATE, segment_create, HP_BACKING_THP, size, &segment);
	CALL(HP_CALL_RESERVE, reserve, size, HP_FRAME_SIZE, 0, &address);
	assert_int_equal(direct->reserve(sim, size, HP_FRAME_SIZE, 0, &target), 0);
	assert_int_equal(direct->unmap(sim, target, size), 0);
	CALL(HP_CALL_RESERVE_AT, reserve_at, target, size);
	/* What sim does not have. */
	result[HP_CALL_ANONYMOUS] = ops->anonymous(os, target, size, HP_PROT_READ, HP_BACKING_THP);
	result[HP_CALL_HOLD] = ops->hold(os, size, HP_BACKING_HUGETLB, &held);
	CALL(HP_CALL_MAP, map, address, size, HP_PROT_READ | HP_PROT_WRITE, segment, 0, HP_OS_MAP_REPLACE);
	CALL(HP_CALL_PROTECT, protect, address, size, HP_PROT_READ | HP_PROT_WRITE);
	CALL(HP_CALL_KEEP_FROM_CHILDREN, keep_from_children, address, size);
	CALL(HP_CALL_POPULATE, populate, address, size);
	CALL(HP_CALL_TOUCH, touch, address, size);
	CALL(HP_CALL_COLLAPSE, collapse, address, size);
	assert_int_equal(hp_sim_store(sim, (char *)address + HP_FRAME_SIZE, 3), 0);
	CALL(HP_CALL_GATHER, gather, address, NULL, segment, HP_FRAME_SIZE, HP_BASE_PAGE_SIZE);
	uint64_t gathered = 0;
	assert_int_equal(hp_sim_load(sim, address, &gathered), 0);
	assert_int_equal(gathered, 3);
	CALL(HP_CALL_BACKED, backed, segment, HP_FRAME_SIZE, sizeof(present) * HP_BASE_PAGE_SIZE, present);
	assert_int_equal(present[0] + present[1], 2);
	CALL(HP_CALL_MOVE, move, address, target, size);
	assert_int_equal(hp_sim_store(sim, target, 5), 0);
	ops->zero(os, target, size);
	uint64_t tag = 1, stored = 9;
	assert_int_equal(hp_sim_load(sim, target, &tag), 0);
	assert_int_equal(tag, 0);
	ops->store(os, target, &stored, sizeof(stored));
	ops->load(os, target, &tag, sizeof(tag));
	assert_int_equal(tag, stored);
	assert_int_equal(direct->segment_punch(sim, segment, HP_FRAME_SIZE, HP_FRAME_SIZE), 0);
	CALL(HP_CALL_SCATTER, scatter, segment, HP_FRAME_SIZE, target, HP_BASE_PAGE_SIZE);
	assert_int_equal(hp_sim_load(sim, (char *)target + HP_FRAME_SIZE, &tag), 0);
	assert_int_equal(tag, stored);
	CALL(HP_CALL_SEGMENT_PUNCH, segment_punch, segment, 0, size);
	CALL(HP_CALL_SEGMENT_RENEW, segment_renew, segment, 0, size);
	CALL(HP_CALL_END, end, target, size, handle, 10000);
	CALL(HP_CALL_VACATE, vacate, target, size);
	CALL(HP_CALL_UNMAP, unmap, target, size);
	CALL(HP_CALL_SEGMENT_DESTROY, segment_destroy, segment);
	CALL(HP_CALL_CONTROL_DESTROY, control_destroy, control, 10000, handle);
#undef CALL

	for (int call = 0; call < HP_CALL_COUNT; call++)
		assert_int_equal(result[call], call == (int)failing                                ? error
		                               : call == HP_CALL_ANONYMOUS || call == HP_CALL_HOLD ? -ENOTSUP
		                                                                                   : 0);
}

static void test_every_call(void **state)
{
	call_each(HP_CALL_COUNT, 0);
	for (enum hp_os_call call = 0; call < HP_CALL_COUNT; call++) {
		assert_int_equal(hp_inject_count(os, call), 1 + call);
		hp_inject_fail(os, call, 1, 0, -ENOSPC);
		call_each(call, -ENOSPC);
	}
}

static void test_passes_through(void **state)
{
	assert_int_equal(os->ops->max_map_count(os), 1234);
	assert_int_equal(os->ops->hugetlb_available(os), 64);
	assert_true(os->ops->shares_page_tables(os));
	/* An error of the inner backend comes back as it is. */
	assert_int_equal(os->ops->segment_destroy(os, 7), -EBADF);
	assert_int_equal(hp_inject_count(os, HP_CALL_SEGMENT_DESTROY), 1);
}

/* What fails does nothing; what does not is done by the inner backend, with its arguments and its errors. */
static void test_gather_and_scatter(void **state)
{
	const uint64_t size = 2 * HP_FRAME_SIZE;
	hp_segment segment;
	void *memory;
	char *address;
	uint64_t tag;
	unsigned char there[2];

	assert_int_equal(sim->ops->segment_create(sim, HP_BACKING_BASE, size, &segment), 0);
	assert_int_equal(sim->ops->reserve(sim, size, HP_FRAME_SIZE, 0, &memory), 0);
	assert_int_equal(sim->ops->map(sim, memory, size, HP_PROT_READ | HP_PROT_WRITE, segment, 0, HP_OS_MAP_REPLACE),
	                 0);
	address = memory;
	assert_int_equal(hp_sim_store(sim, address, 4), 0);
	assert_int_equal(hp_sim_store(sim, address + HP_BASE_PAGE_SIZE, 5), 0);

	hp_inject_fail(os, HP_CALL_SCATTER, 1, 0, -EIO);
	assert_int_equal(os->ops->scatter(os, segment, HP_FRAME_SIZE, address, 2 * HP_BASE_PAGE_SIZE), -EIO);
	assert_int_equal(sim->ops->backed(sim, segment, HP_FRAME_SIZE, 2 * HP_BASE_PAGE_SIZE, there), 0);
	assert_int_equal(there[0] + there[1], 0);
	assert_int_equal(os->ops->scatter(os, segment, HP_FRAME_SIZE, address, 2 * HP_BASE_PAGE_SIZE), 0);
	assert_int_equal(hp_sim_load(sim, address + HP_FRAME_SIZE + HP_BASE_PAGE_SIZE, &tag), 0);
	assert_int_equal(tag, 5);

	hp_inject_fail(os, HP_CALL_GATHER, 2, 0, -ENOMEM);
	assert_int_equal(os->ops->gather(os, address, address + HP_BASE_PAGE_SIZE, segment, HP_BASE_PAGE_SIZE,
	                                 HP_BASE_PAGE_SIZE),
	                 0);
	assert_int_equal(hp_sim_load(sim, address, &tag), 0);
	assert_int_equal(tag, 5);
	assert_int_equal(os->ops->gather(os, address, NULL, segment, HP_FRAME_SIZE, HP_BASE_PAGE_SIZE), -ENOMEM);
	assert_int_equal(hp_sim_load(sim, address, &tag), 0);
	assert_int_equal(tag, 5);
	assert_int_equal(os->ops->gather(os, address, NULL, segment, HP_FRAME_SIZE, HP_BASE_PAGE_SIZE), 0);
	assert_int_equal(hp_sim_load(sim, address, &tag), 0);
	assert_int_equal(tag, 4);

	assert_int_equal(os->ops->gather(os, address, NULL, segment + 1, 0, HP_BASE_PAGE_SIZE), -EBADF);
	assert_int_equal(os->ops->scatter(os, segment + 1, 0, address, HP_BASE_PAGE_SIZE), -EBADF);
	assert_int_equal(hp_inject_count(os, HP_CALL_GATHER), 4);
	assert_int_equal(hp_inject_count(os, HP_CALL_SCATTER), 3);
	assert_int_equal(sim->ops->unmap(sim, memory, size), 0);
	assert_int_equal(sim->ops->segment_destroy(sim, segment), 0);
}

static void test_names(void **state)
{
	assert_string_equal(hp_os_call_name(HP_CALL_MAP), "map");
	assert_string_equal(hp_os_call_name(HP_CALL_GATHER), "gather");
	assert_string_equal(hp_os_call_name(HP_CALL_SCATTER), "scatter");
	for (enum hp_os_call call = 0; call < HP_CALL_COUNT; call++)
		assert_string_not_equal(hp_os_call_name(call), "unknown");
	assert_string_equal(hp_os_call_name(HP_CALL_COUNT), "unknown");
}

enum { THREADS = 4, CALLS_PER_THREAD = 2000, FAILURES = 1000 };

/* Asserts of cmocka belong to its own thread, so threads only count. */
static void *reserve_often(void *argument)
{
	int *failures = argument;

	for (int i = 0; i < CALLS_PER_THREAD; i++) {
		void *address;

		if (os->ops->reserve(os, HP_FRAME_SIZE, HP_FRAME_SIZE, 0, &address))
			++*failures;
		else
			sim->ops->unmap(sim, address, HP_FRAME_SIZE);
	}
	return NULL;
}

/* However the threads interleave, as many calls fail as were asked for. */
static void test_threads(void **state)
{
	pthread_t threads[THREADS];
	int failures[THREADS] = {0};
	int sum = 0;

	hp_inject_fail(os, HP_CALL_RESERVE, 100, FAILURES - 1, -ENOMEM);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, reserve_often, &failures[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		sum += failures[i];
	}
	assert_int_equal(sum, FAILURES);
	assert_int_equal(hp_inject_count(os, HP_CALL_RESERVE), THREADS * CALLS_PER_THREAD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(function) cmocka_unit_test_setup_teardown(function, setup, teardown)
		TEST(test_first),
		TEST(test_second),
		TEST(test_more),
		TEST(test_from_now_on),
		TEST(test_last),
		TEST(test_new_rule_replaces),
		TEST(test_rule_of_one_call_only),
		TEST(test_every_call),
		TEST(test_passes_through),
		TEST(test_gather_and_scatter),
		TEST(test_names),
		TEST(test_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
