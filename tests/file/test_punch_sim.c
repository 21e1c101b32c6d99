/* SPDX-License-Identifier: MIT */
/* Punching where the kernel refuses something, or the index has no room; and whole GiBs, which cost nothing here. */
#include "support/pool.h"

#include "os/inject.h"
#include "support/random.h"

#define PAGES 8

static struct hp_os *inject;
static hp_pool pool;
static hp_file file;

static void start(uint64_t frames, uint64_t pages)
{
	sim_behind = hp_sim_create(&(struct hp_sim_config){.hugetlb_bytes = frames * FRAME});
	assert_non_null(sim_behind);
	inject = os = hp_inject_create(sim_behind);
	assert_non_null(inject);
	pool = pool_make(frames, HP_WORKERS_NONE, NULL);
	file = file_make(pool, pages);
}

static void end(void)
{
	file_close(file);
	assert_int_equal(pool_stats(pool).used, 0);
	assert_int_equal(pool_stats(pool).reserved, 0);
	pool_end(pool);
	hp_inject_destroy(inject);
	assert_int_equal(hp_sim_destroy(sim_behind), 0);
	sim_behind = NULL;
}

static int punch(uint64_t first, uint64_t pages)
{
	return hp_file_punch(file, first * FRAME, pages * FRAME, 0, &error);
}

static hp_file_stat stat_now(void)
{
	hp_file_stat stat = {.struct_size = sizeof(stat)};

	assert_int_equal(hp_file_stat_get(file, &stat), 0);
	return stat;
}

static void expect_stat(uint64_t present, uint64_t holes, uint64_t reserved)
{
	hp_file_stat stat = stat_now();

	assert_int_equal(stat.present, present * FRAME);
	assert_int_equal(stat.holes, holes * FRAME);
	assert_int_equal(stat.reserved, reserved * FRAME);
}

static void store_all(char *address, uint64_t pages)
{
	for (uint64_t i = 0; i < pages; i++)
		store(address + i * FRAME, i + 1);
}

static void expect_all_but(const char *address, uint64_t pages, uint64_t first, uint64_t gone)
{
	for (uint64_t i = 0; i < pages; i++)
		assert_int_equal(load(address + i * FRAME), i - first < gone ? 0 : i + 1);
}

/* ---- the kernel refuses ----------------------------------------------------------------------------------------- */

/* The number of holes without a reservation is told, whichever of the renewals fail; the rest of the promise holds. */
static void test_uncovered_holes_are_counted(void **state)
{
	for (uint64_t failing = 1; failing <= 2 * PAGES; failing++) {
		char *address;
		uint64_t before;
		unsigned long uncovered = 0;
		int result;

		start(PAGES, PAGES);
		address = map(file, 0, PAGES, 0);
		store_all(address, PAGES);
		before = hp_inject_count(inject, HP_CALL_SEGMENT_RENEW);
		hp_inject_fail(inject, HP_CALL_SEGMENT_RENEW, 1, failing - 1, -ENOMEM);
		result = punch(0, PAGES);
		hp_inject_clear(inject);
		if (result) {
			assert_int_equal(result, -ENOSPC);
			assert_int_equal(error.code, -ENOSPC);
			assert_int_equal(error.limit, HP_LIMIT_KERNEL_POOL);
			assert_int_equal(
				sscanf(strstr(error.message, "huge pages and "), "huge pages and %lu", &uncovered), 1);
			assert_in_range(uncovered, 1, PAGES);
		}
		/* Halves until one page alone is refused: 8, 4, 2, 1, 1, 2, 1, 1, 4, ... */
		assert_true(failing < 4 ? uncovered == 0 : uncovered > 0);
		if (failing >= 2 * PAGES - 1)
			assert_int_equal(uncovered, PAGES);
		assert_true(hp_inject_count(inject, HP_CALL_SEGMENT_RENEW) - before <= 2 * PAGES - 1);
		expect_stat(0, PAGES, 0);
		expect_all_but(address, PAGES, 0, PAGES);
		store_all(address, PAGES);
		pool_check(pool);
		unmap(address, PAGES);
		address = map(file, 0, PAGES, 0);
		expect_all_but(address, PAGES, 0, 0);
		unmap(address, PAGES);
		end();
	}
}

/* What the kernel does not punch is zeroed where it is. */
static void test_refused_punch_zeroes(void **state)
{
	char *address;

	start(PAGES, PAGES);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	store_all(address, PAGES);
	hp_inject_fail(inject, HP_CALL_SEGMENT_PUNCH, 1, 100, -EINTR);
	expect_ok(punch(2, 3));
	hp_inject_clear(inject);
	expect_all_but(address, PAGES, 2, 3);
	expect_stat(5, 3, 0);
	store(address + 3 * FRAME, 4);
	pool_check(pool);
	unmap(address, PAGES);
	address = map(file, 0, PAGES, 0);
	assert_int_equal(load(address + 3 * FRAME), 4);
	unmap(address, PAGES);
	end();
}

/* No memory for holes when they are mapped again: an error, and nothing is lost. */
static void test_no_memory_for_holes(void **state)
{
	char *address, *again = NULL, byte;

	start(PAGES, PAGES);
	address = map(file, 0, PAGES, 0);
	store_all(address, PAGES);
	expect_ok(punch(2, 3));
	store(address + 4 * FRAME, 5);
	hp_inject_fail(inject, HP_CALL_POPULATE, 2, 100, -EFAULT);
	expect_error(map_try(file, 0, PAGES, 0, &again), -ENOMEM, HP_LIMIT_MEMORY, "");
	assert_int_equal(hp_file_read(file, 4 * FRAME, &byte, 1), -ENOMEM);
	assert_int_equal(hp_file_write(file, 3 * FRAME, "x", 1), -ENOMEM);
	/* A part of what is gone is zero as it is. */
	expect_ok(hp_file_punch(file, 3 * FRAME + 8, 8, 0, &error));
	pool_check(pool);
	hp_inject_clear(inject);
	again = map(file, 0, PAGES, 0);
	assert_int_equal(load(again + 4 * FRAME), 5);
	assert_int_equal(load(again + 3 * FRAME), 0);
	expect_stat(8, 0, 0);
	unmap(again, PAGES);
	unmap(address, PAGES);
	end();
}

/* Holes of a file that has gone wait until their memory is back, and stand in nobody's way. */
static void test_homeless_holes(void **state)
{
	void *extent;
	char *address;

	start(PAGES, PAGES);
	address = map(file, 0, PAGES, 0);
	store_all(address, PAGES);
	expect_ok(punch(0, 5));
	unmap(address, PAGES);
	hp_inject_fail(inject, HP_CALL_POPULATE, 1, 1000, -EFAULT);
	file_close(file);
	assert_int_equal(pool_stats(pool).holes, 5);
	assert_int_equal(pool_stats(pool).dirty, 3);
	pool_check(pool);
	expect_error(hp_alloc(pool, 4 * FRAME, &extent, &error), -ENOMEM, HP_LIMIT_POOL, "");
	hp_inject_clear(inject);
	expect_ok(hp_alloc(pool, PAGES * FRAME, &extent, &error));
	assert_int_equal(pool_stats(pool).holes, 0);
	assert_int_equal(hp_free(pool, extent), 0);
	file = file_make(pool, PAGES);
	end();
}

/* ---- the index -------------------------------------------------------------------------------------------------- */

#define GIB_PAGES 512

static unsigned order_of_entry(uint32_t page)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	unsigned order = 0;

	hp_index_find(hp_file_index(view, hp_file_at(view, file.id >> 8 & 0xffffff)), hp_pgoff(page), &order);
	return order;
}

/* The first GiB of a file of two: one entry of its index. */
static void fill_gib(void)
{
	char *address = map(file, 0, GIB_PAGES, 0);

	store_all(address, GIB_PAGES);
	unmap(address, GIB_PAGES);
	assert_int_equal(order_of_entry(0), HP_ORDER_RUN);
}

static void test_a_part_of_one_entry(void **state)
{
	static const uint64_t first[] = {0, 1, 255, 511}, count[] = {1, 3, 100, 1};

	for (unsigned i = 0; i < 4; i++) {
		char *address;

		start(GIB_PAGES + 8, 2 * GIB_PAGES);
		fill_gib();
		expect_ok(punch(first[i], count[i]));
		assert_int_equal(order_of_entry(300), HP_ORDER_FRAME);
		expect_stat(GIB_PAGES - count[i], 0, 0);
		pool_check(pool);
		address = map(file, 0, GIB_PAGES, i % 2 ? HP_MAP_LAZY : 0);
		expect_all_but(address, GIB_PAGES, first[i], count[i]);
		unmap(address, GIB_PAGES);
		end();
	}
}

/* All base pages of the arena that are free. Returns how many. */
static unsigned exhaust_index(struct hp_thread *t, uint32_t *taken, unsigned most)
{
	unsigned count = 0;

	while (count < most && (taken[count] = hp_pages_take(&t->pool->pages, HP_BASE_PAGE_SIZE, &t->locker)))
		count++;
	return count;
}

/* A run that cannot be divided stays as it is; what needs no division is punched, a GiB as a whole too. */
static void test_no_room_in_the_index(void **state)
{
	static uint32_t taken[1 << 20];
	struct hp_thread *t;
	sigset_t saved;
	unsigned count;
	char *address;

	start(GIB_PAGES, 2 * GIB_PAGES);
	fill_gib();
	hp_signals_block(&saved);
	assert_int_equal(hp_thread_enter(hp_pool_find(pool.id), &t), 0);
	count = exhaust_index(t, taken, 1 << 20);
	expect_error(punch(100, 1), -ENOMEM, HP_LIMIT_TABLE, "room");
	expect_stat(GIB_PAGES, 0, 0);
	expect_error(punch(0, 511), -ENOMEM, HP_LIMIT_TABLE, "room");
	while (count)
		hp_pages_give(&t->pool->pages, taken[--count], HP_BASE_PAGE_SIZE, HP_BASE_PAGE_SIZE, &t->locker);
	hp_signals_restore(&saved);
	address = map(file, 0, GIB_PAGES, HP_MAP_LAZY);
	expect_all_but(address, GIB_PAGES, 0, 0);
	unmap(address, GIB_PAGES);
	expect_ok(punch(100, 1));
	expect_stat(GIB_PAGES - 1, 0, 0);
	expect_ok(punch(0, GIB_PAGES));
	expect_stat(0, 0, 0);
	end();
}

/* ---- at random -------------------------------------------------------------------------------------------------- */

#define SLOTS 3

static void check_slot(const char *address, const uint64_t *wanted, uint64_t page)
{
	assert_int_equal(load(address + page * FRAME), wanted[page]);
}

static void test_random_punches(void **state)
{
	uint64_t random = random_seed(), wanted[PAGES] = {0};
	char *slot[SLOTS] = {NULL};

	start(PAGES, PAGES);
	for (unsigned i = 0; i < 4000; i++) {
		unsigned s = (unsigned)random_below(&random, SLOTS);
		uint64_t page = random_below(&random, PAGES), pages = 1 + random_below(&random, PAGES - page);

		switch (random_below(&random, 4)) {
		case 0:
			if (slot[s])
				unmap(slot[s], PAGES);
			slot[s] = slot[s] ? NULL : map(file, 0, PAGES, random_below(&random, 2) ? HP_MAP_LAZY : 0);
			break;
		case 1:
			expect_ok(punch(page, pages));
			for (uint64_t p = page; p < page + pages; p++)
				wanted[p] = 0;
			break;
		default:
			if (!slot[s])
				break;
			check_slot(slot[s], wanted, page);
			store(slot[s] + page * FRAME, wanted[page] = i + 1);
		}
		if (i % 16 == 0)
			pool_check(pool);
	}
	for (unsigned s = 0; s < SLOTS; s++)
		if (slot[s])
			unmap(slot[s], PAGES);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_uncovered_holes_are_counted),
		cmocka_unit_test(test_refused_punch_zeroes),
		cmocka_unit_test(test_no_memory_for_holes),
		cmocka_unit_test(test_homeless_holes),
		cmocka_unit_test(test_a_part_of_one_entry),
		cmocka_unit_test(test_no_room_in_the_index),
		cmocka_unit_test(test_random_punches),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
