/* SPDX-License-Identifier: MIT */
/*
 * Parts of mappings where the system refuses something: each call of it fails at each occurrence, and kernel mappings
 * run short. What a failing call did not do has not happened, and everything can be given back.
 */
#include "support/pool.h"

#include "os/inject.h"
#include "support/random.h"

#include <stdlib.h>

#define PAGES 12

static struct hp_os *inject;
static hp_pool pool;
static hp_file file;
static _Atomic unsigned logged;

static void count_errors(hp_log_level level, const char *line, void *context)
{
	atomic_fetch_add(&logged, 1);
}

static void start(uint64_t max_map_count)
{
	sim_behind =
		hp_sim_create(&(struct hp_sim_config){.hugetlb_bytes = 64 * FRAME, .max_map_count = max_map_count});
	assert_non_null(sim_behind);
	inject = os = hp_inject_create(sim_behind);
	assert_non_null(inject);
	pool = pool_make(3 * PAGES, HP_WORKERS_NONE, "fault_window=1");
	file = file_make(pool, PAGES);
}

static void end(void)
{
	file_close(file);
	pool_end(pool);
	assert_int_equal(hp_maps_taken(os), 0);
	hp_inject_destroy(inject);
	assert_int_equal(hp_sim_destroy(sim_behind), 0);
	sim_behind = NULL;
}

static void store_pages(char *address, uint64_t first, uint64_t end_page, uint64_t tag)
{
	for (uint64_t i = first; i < end_page; i++)
		store(address + i * FRAME, tag + i);
}

static void expect_pages(const char *address, uint64_t first, uint64_t end_page, uint64_t tag)
{
	for (uint64_t i = first; i < end_page; i++)
		assert_int_equal(load(address + i * FRAME), tag + i);
}

static bool can_store(char *address)
{
	return touch_store(address, 99) == 0;
}

static int replace(hp_file by, char *address, uint64_t pages, unsigned flags)
{
	void *there = address;
	int result = hp_map(by, 0, pages * FRAME, RW, HP_MAP_REPLACE | flags, &there, &error);

	assert_ptr_equal(there, address);
	return result;
}

/* Whatever is there goes, page by page. */
static void unmap_all(char *address)
{
	for (uint64_t i = 0; i < PAGES; i++)
		hp_unmap(address + i * FRAME, FRAME);
	assert_int_equal(pool_stats(pool).mappings, 0);
}

/* ---- kernel mappings run short ---------------------------------------------------------------------------------- */

static uint64_t take_all_maps(void)
{
	uint64_t left = hp_maps_max(os) - hp_maps_taken(os);

	assert_int_equal(hp_maps_take(os, left), 0);
	return left;
}

/* Pieces may need more than the whole had: then nothing changes. */
static void test_no_kernel_mappings_for_pieces(void **state)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		hp_file other;
		uint64_t before, left;
		char *address;

		start(0);
		other = file_make(pool, 4);
		before = hp_maps_taken(os);
		address = map(file, 0, PAGES, lazy ? HP_MAP_LAZY : 0);
		store_pages(address, 0, PAGES, 1);
		left = take_all_maps();
		assert_int_equal(hp_unmap(address + 4 * FRAME, FRAME), lazy ? 0 : -ENOMEM);
		assert_int_equal(hp_protect(address + 9 * FRAME, FRAME, HP_PROT_READ), -ENOMEM);
		expect_pages(address, 0, 4, 1);
		expect_pages(address, 10, PAGES, 1);
		if (!lazy) {
			expect_pages(address, 0, PAGES, 1);
		}
		assert_true(can_store(address + 9 * FRAME));
		assert_int_equal(replace(other, address, 4, HP_MAP_LAZY), -ENOMEM);
		expect_pages(address, 0, 4, 1);
		pool_check(pool);
		hp_maps_give(os, left);
		assert_int_equal(hp_unmap(address + 2 * FRAME, FRAME), 0);
		assert_int_equal(replace(other, address, 2, HP_MAP_LAZY), 0);
		pool_check(pool);
		unmap_all(address);
		assert_int_equal(hp_maps_taken(os), before);
		file_close(other);
		end();
	}
}

/* A mapping cut in any way stays within what was set aside, and the system never has more than its limit. */
static void test_the_budget_holds(void **state)
{
	uint64_t random = random_seed();

	for (unsigned round = 0; round < 60; round++) {
		uint64_t before, kernel_before;
		char *address;

		start(120);
		before = hp_maps_taken(os);
		kernel_before = hp_sim_map_count(sim_behind);
		address = map(file, 0, PAGES, round % 2 ? HP_MAP_LAZY : 0);
		for (unsigned i = 0; i < 60; i++) {
			uint64_t first = random_below(&random, PAGES), pages = 1 + random_below(&random, PAGES - first);
			char *at = address + first * FRAME;
			uint64_t tag;

			switch (random_below(&random, 4)) {
			case 0:
				hp_unmap(at, pages * FRAME);
				break;
			case 1:
				hp_protect(at, pages * FRAME, random_below(&random, 2) ? RW : HP_PROT_READ);
				break;
			case 2:
				replace(file, at, pages, random_below(&random, 2) ? HP_MAP_LAZY : 0);
				break;
			default:
				touch_load(at, &tag);
			}
			assert_true(hp_sim_map_count(sim_behind) - kernel_before <= hp_maps_taken(os) - before);
			pool_check(pool);
		}
		unmap_all(address);
		assert_int_equal(hp_maps_taken(os), before);
		assert_int_equal(hp_sim_map_count(sim_behind), kernel_before);
		end();
	}
}

/* ---- calls that fail -------------------------------------------------------------------------------------------- */

static void test_unmap_that_fails(void **state)
{
	for (unsigned lazy = 0; lazy < 2; lazy++) {
		char *address;

		start(0);
		address = map(file, 0, PAGES, lazy ? HP_MAP_LAZY : 0);
		store_pages(address, 0, PAGES / 2, 1);
		hp_inject_fail(inject, HP_CALL_UNMAP, 1, 0, -ENOMEM);
		assert_int_equal(hp_unmap(address + 3 * FRAME, 2 * FRAME), -ENOMEM);
		expect_pages(address, 0, PAGES / 2, 1);
		store_pages(address, 0, PAGES, 50);
		assert_int_equal(pool_stats(pool).mappings, 3); /* it stays in pieces */
		pool_check(pool);
		unmap(address + 3 * FRAME, 2);
		expect_pages(address, 0, 3, 50);
		expect_pages(address, 5, PAGES, 50);
		unmap_all(address);
		end();
	}
}

/* Mappings before the one that failed are gone, and nothing else has changed. */
static void test_unmap_that_fails_at_the_second(void **state)
{
	char *address;

	start(0);
	address = map(file, 0, PAGES, HP_MAP_LAZY);
	store_pages(address, 0, PAGES, 1);
	assert_int_equal(hp_protect(address + 4 * FRAME, 4 * FRAME, HP_PROT_READ), 0);
	hp_inject_fail(inject, HP_CALL_UNMAP, 2, 0, -ENOMEM);
	assert_int_equal(hp_unmap(address + 2 * FRAME, 8 * FRAME), -ENOMEM);
	hp_inject_clear(inject);
	expect_pages(address, 0, 2, 1);
	assert_int_equal(fault(address + 2 * FRAME, false), HP_FAULT_FOREIGN);
	expect_pages(address, 4, PAGES, 1);
	assert_false(can_store(address + 5 * FRAME));
	assert_int_equal(hp_unmap(address + 2 * FRAME, FRAME), -EINVAL);
	pool_check(pool);
	unmap_all(address);
	end();
}

static void test_protect_that_fails(void **state)
{
	for (uint64_t occurrence = 1; occurrence <= 2; occurrence++)
		for (unsigned lazy = 0; lazy < 2; lazy++) {
			char *address;

			start(0);
			address = map(file, 0, PAGES, lazy ? HP_MAP_LAZY : 0);
			store_pages(address, 2, 4, 1);
			store_pages(address, 5, 7, 1);
			hp_inject_fail(inject, HP_CALL_PROTECT, occurrence, 0, -ENOMEM);
			if (lazy || occurrence == 1)
				assert_int_equal(hp_protect(address + FRAME, 8 * FRAME, HP_PROT_READ), -ENOMEM);
			hp_inject_clear(inject);
			expect_pages(address, 2, 4, 1);
			assert_true(can_store(address + 3 * FRAME));
			assert_true(can_store(address + 5 * FRAME));
			assert_true(can_store(address + 8 * FRAME));
			pool_check(pool);
			unmap_all(address);
			end();
		}
}

/* Refused before anything was moved: as it was. A move that is refused is made good. */
static void replace_with_failure(enum hp_os_call call, uint64_t occurrence, unsigned old_flags, unsigned flags)
{
	hp_file other;
	char *address;
	int result;

	start(0);
	other = file_make(pool, 4);
	address = map(file, 0, PAGES, old_flags);
	store_pages(address, 0, PAGES, 1);
	hp_inject_fail(inject, call, occurrence, 0, -ENOMEM);
	result = replace(other, address + 3 * FRAME, 4, flags);
	hp_inject_clear(inject);
	expect_pages(address, 0, 3, 1);
	expect_pages(address, 7, PAGES, 1);
	if (result)
		expect_pages(address, 3, 7, 1);
	else
		for (uint64_t i = 3; i < 7; i++)
			assert_int_equal(load(address + i * FRAME), 0);
	store_pages(address, 0, PAGES, 70);
	expect_pages(address, 0, PAGES, 70);
	pool_check(pool);
	unmap_all(address);
	file_close(other);
	end();
}

static void test_replace_that_fails(void **state)
{
	static const enum hp_os_call calls[] = {HP_CALL_RESERVE, HP_CALL_MAP, HP_CALL_MOVE, HP_CALL_VACATE};

	hp_log_set(count_errors, HP_LOG_ERROR, NULL);
	for (unsigned c = 0; c < 4; c++)
		for (uint64_t occurrence = 1; occurrence <= 2; occurrence++)
			for (unsigned kinds = 0; kinds < 4; kinds++)
				replace_with_failure(calls[c], occurrence, kinds & 1 ? HP_MAP_LAZY : 0,
				                     kinds & 2 ? HP_MAP_LAZY : 0);
	hp_log_set(NULL, HP_LOG_WARNING, NULL);
	assert_int_equal(logged, 0);
}

/* ---- records run short ------------------------------------------------------------------------------------------ */

/* All mappings that the pool can know, in pieces of one page; then nothing can be cut any more, and all goes on. */
static void test_no_records_for_pieces(void **state)
{
	hp_file sparse;
	uint64_t made = 0;
	char *address, **all = calloc(HP_VMAS_MAX, sizeof(*all));

	start(1 << 20);
	sparse = file_make(pool, PAGES);
	address = map(file, 0, PAGES, 0);
	store_pages(address, 0, PAGES, 1);
	while (made < HP_VMAS_MAX && !map_try(sparse, 0, 1, 0, &all[made]))
		made++;
	assert_int_equal(error.limit, HP_LIMIT_TABLE);
	assert_int_equal(hp_unmap(address + 4 * FRAME, FRAME), -ENOMEM);
	assert_int_equal(hp_protect(address + 4 * FRAME, FRAME, HP_PROT_READ), -ENOMEM);
	assert_int_equal(replace(sparse, address + 4 * FRAME, 2, 0), -ENOMEM);
	store_pages(address, 0, PAGES, 2);
	expect_pages(address, 0, PAGES, 2);
	pool_check(pool);
	for (uint64_t i = 0; i < made; i++)
		unmap(all[i], 1);
	assert_int_equal(hp_unmap(address + 4 * FRAME, FRAME), 0);
	unmap_all(address);
	file_close(sparse);
	free(all);
	end();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_kernel_mappings_for_pieces),
		cmocka_unit_test(test_the_budget_holds),
		cmocka_unit_test(test_unmap_that_fails),
		cmocka_unit_test(test_unmap_that_fails_at_the_second),
		cmocka_unit_test(test_protect_that_fails),
		cmocka_unit_test(test_replace_that_fails),
		cmocka_unit_test(test_no_records_for_pieces),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
