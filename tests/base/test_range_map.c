/* SPDX-License-Identifier: MIT */
/* The range map against an array, at random; and under readers that take no lock. */
#include "base/range_map.h"

#include "support/random.h"
#include "support/threads.h"
#include "sync/epoch.h"

#include <errno.h>
#include <stdlib.h>

/* ---- against a model -------------------------------------------------------------------------------------------- */

enum { CELLS = 4000, CELL = 16, ROUNDS = 20000 };

static struct hp_range_map map;
static struct {
	uintptr_t start; /* 0: none */
	char value;      /* its address is the value */
} cells[CELLS];

static bool is_free(uintptr_t first, uintptr_t count)
{
	for (uintptr_t i = first; i < first + count; i++)
		if (cells[i].start)
			return false;
	return true;
}

static void insert(uintptr_t first, uintptr_t count)
{
	uintptr_t start = (first + 1) * CELL;
	bool fits = is_free(first, count);

	assert_int_equal(hp_range_map_insert(&map, start, start + count * CELL, &cells[first].value),
	                 fits ? 0 : -EEXIST);
	for (uintptr_t i = first; fits && i < first + count; i++)
		cells[i].start = start;
}

static void *expected_at(uintptr_t address)
{
	uintptr_t cell = address / CELL - 1;

	return address < CELL || cell >= CELLS || !cells[cell].start ? NULL
	                                                             : &cells[cells[cell].start / CELL - 1].value;
}

static void remove_at(uintptr_t start)
{
	uintptr_t cell = start / CELL - 1;
	bool there = cells[cell].start == start;
	void *value;

	assert_int_equal(hp_range_map_remove(&map, start, &value), 0);
	assert_ptr_equal(value, there ? &cells[cell].value : NULL);
	for (uintptr_t i = cell; there && i < CELLS && cells[i].start == start; i++)
		cells[i].start = 0;
}

static void check_range(const struct hp_range *range, void *context)
{
	uintptr_t *last = context;

	assert_true(range->start >= *last && range->start < range->end);
	assert_ptr_equal(range->value, expected_at(range->start));
	assert_ptr_equal(range->value, expected_at(range->end - 1));
	*last = range->end;
}

static void check_all(void)
{
	uintptr_t last = 0;

	hp_range_map_each(&map, check_range, &last);
	for (uintptr_t address = 0; address < (CELLS + 2) * CELL; address += CELL - 1)
		assert_ptr_equal(hp_range_map_find(&map, address), expected_at(address));
	assert_null(hp_range_map_find(&map, UINTPTR_MAX));
}

static void test_random(void **state)
{
	uint64_t random = random_seed();

	check_all();
	for (unsigned round = 0; round < ROUNDS; round++) {
		/* Times of growth and of decline, so that leaves split and vanish. */
		bool grows = round / 4000 % 2 == 0;
		uintptr_t first = random_below(&random, CELLS), most = CELLS - first < 4 ? CELLS - first : 4;

		if (random_below(&random, 10) < (grows ? 8 : 2))
			insert(first, 1 + random_below(&random, most));
		else
			remove_at(cells[first].start ? cells[first].start : (first + 1) * CELL);
		if (round % 500 == 0)
			check_all();
		if (map.retired_count > 50)
			hp_range_map_free(hp_range_map_take_retired(&map));
	}
	check_all();
	for (uintptr_t i = 0; i < CELLS; i++)
		if (cells[i].start)
			remove_at(cells[i].start);
	check_all();
	hp_range_map_free(hp_range_map_take_retired(&map));
	assert_int_equal(map.retired_count, 0);
}

/* ---- readers ---------------------------------------------------------------------------------------------------- */

/* Even ranges stay; odd ones come and go. A value begins with the link that retiring it needs. */
enum { RANGES = 500, SIZE = 4096, CHANGES = 4000, READERS = 3 };

struct value {
	void *link;
	uintptr_t number;
};

static struct hp_range_map shared;
static struct hp_epoch epoch;
static _Atomic bool stop;

static uintptr_t start_of(uintptr_t number)
{
	return (number + 1) * SIZE;
}

static void *read_often(void *argument)
{
	uint64_t random = *(uint64_t *)argument;

	while (!atomic_load(&stop)) {
		uintptr_t number = random_below(&random, RANGES);
		struct hp_epoch_section section = hp_epoch_enter(&epoch);
		const struct value *value = hp_range_map_find(&shared, start_of(number) + random_below(&random, SIZE));

		thread_must(value ? value->number == number : number % 2);
		hp_epoch_leave(&epoch, section);
	}
	return NULL;
}

static void add(uintptr_t number)
{
	struct value *value = malloc(sizeof(*value));

	assert_non_null(value);
	value->number = number;
	assert_int_equal(hp_range_map_insert(&shared, start_of(number), start_of(number + 1), value), 0);
}

/* False: it was not there. */
static bool take_away(uintptr_t number)
{
	void *value;

	assert_int_equal(hp_range_map_remove(&shared, start_of(number), &value), 0);
	if (value)
		hp_range_map_retire(&shared, value);
	return value;
}

static void change(uint64_t random)
{
	for (unsigned i = 0; i < CHANGES; i++) {
		uintptr_t number = random_below(&random, RANGES) | 1;

		if (!take_away(number))
			add(number);
		if (shared.retired_count > 20) {
			void *retired = hp_range_map_take_retired(&shared);

			hp_epoch_synchronize(&epoch);
			hp_range_map_free(retired);
		}
	}
}

static void test_readers(void **state)
{
	uint64_t random = random_seed(), seeds[READERS];
	pthread_t threads[READERS];

	for (uintptr_t number = 0; number < RANGES; number += 2)
		add(number);
	for (unsigned i = 0; i < READERS; i++) {
		seeds[i] = random + i + 1;
		assert_int_equal(pthread_create(&threads[i], NULL, read_often, &seeds[i]), 0);
	}
	change(random);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	for (uintptr_t number = 0; number < RANGES; number++)
		take_away(number);
	hp_range_map_free(hp_range_map_take_retired(&shared));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_readers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
