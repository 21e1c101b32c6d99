/* SPDX-License-Identifier: MIT */
/* The range map against an array, at random; without memory; and under readers that take no lock. */
#include "support/random.h"
#include "support/threads.h"
#include "sync/epoch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The map is compiled here, with this in malloc's place; the linker prefers it to that in the library. */
static long mallocs_left = -1; /* -1: no limit */

static void *limited_malloc(size_t size)
{
	if (mallocs_left == 0)
		return NULL;
	mallocs_left -= mallocs_left > 0;
	return malloc(size);
}

#define malloc limited_malloc
#include "base/range_map.c"
#undef malloc

/* ---- against a model -------------------------------------------------------------------------------------------- */

enum { CELLS = 4000, CELL = 16, ROUNDS = 20000 };

static struct hp_range_map map;
static struct {
	uintptr_t start; /* 0: none */
	void *value;
} cells[CELLS];

static uintptr_t start_of_cell(uintptr_t cell)
{
	return (cell + 1) * CELL;
}

static uintptr_t cell_of(uintptr_t address)
{
	return address / CELL - 1;
}

static void *new_value(void)
{
	static uintptr_t last;

	return (void *)++last;
}

static bool is_free(uintptr_t first, uintptr_t end)
{
	for (uintptr_t i = first; i < end; i++)
		if (cells[i].start)
			return false;
	return true;
}

static void set_cells(uintptr_t first, uintptr_t end, uintptr_t start, void *value)
{
	for (uintptr_t i = first; i < end; i++) {
		cells[i].start = start;
		cells[i].value = value;
	}
}

static void insert(uintptr_t first, uintptr_t count)
{
	uintptr_t start = start_of_cell(first);
	bool fits = is_free(first, first + count);
	void *value = new_value();

	assert_int_equal(hp_range_map_insert(&map, start, start + count * CELL, value), fits ? 0 : -EEXIST);
	if (fits)
		set_cells(first, first + count, start, value);
}

static void *expected_at(uintptr_t address)
{
	uintptr_t cell = cell_of(address);

	return address < CELL || cell >= CELLS ? NULL : cells[cell].value;
}

static void remove_at(uintptr_t start)
{
	uintptr_t cell = cell_of(start);
	bool there = cells[cell].start == start;
	void *value;

	assert_int_equal(hp_range_map_remove(&map, start, &value), 0);
	assert_ptr_equal(value, there ? cells[cell].value : NULL);
	for (uintptr_t i = cell; there && i < CELLS && cells[i].start == start; i++)
		set_cells(i, i + 1, 0, NULL);
}

/* Makes [*first, *end) larger by the ranges that reach into it. */
static void widen(uintptr_t *first, uintptr_t *end)
{
	while (*first > 0 && cells[*first].start && cells[*first - 1].start == cells[*first].start)
		--*first;
	while (*end < CELLS && cells[*end - 1].start && cells[*end].start == cells[*end - 1].start)
		++*end;
}

/* Pieces of up to `most` cells in the cells [first, end), with gaps or without. */
static uint32_t make_pieces(uint64_t *random, uintptr_t first, uintptr_t end, uintptr_t most, struct hp_range *pieces)
{
	unsigned gaps = (unsigned)random_below(random, 3);
	uint32_t count = 0;

	for (uintptr_t i = first, next; i < end; i = next) {
		next = i + 1 + random_below(random, most);
		next = next < end ? next : end;
		if (random_below(random, 2) >= gaps)
			pieces[count++] = (struct hp_range){start_of_cell(i), start_of_cell(next), new_value()};
	}
	return count;
}

/* At random, and now and then with a piece that is not where it may be. */
static void exchange(uint64_t *random)
{
	static struct hp_range pieces[CELLS];
	uintptr_t first = random_below(random, CELLS);
	uintptr_t length = 1 + random_below(random, random_below(random, 8) ? 6 : 500);
	uintptr_t end = CELLS - first < length ? CELLS : first + length, low = first, high = end;
	bool fits = true;
	uint32_t count;

	widen(&low, &high);
	count = make_pieces(random, low, high, random_below(random, 4) ? 4 : 40, pieces);
	if (count > 0 && low > 0 && random_below(random, 10) == 0) {
		pieces[0].start = start_of_cell(low - 1) + CELL / 2;
		fits = is_free(low - 1, low);
		pieces[0].start = fits ? start_of_cell(low - 1) : pieces[0].start;
	} else if (count > 0 && high < CELLS && random_below(random, 10) == 0) {
		pieces[count - 1].end = start_of_cell(high) + 1;
		fits = is_free(high, high + 1);
		pieces[count - 1].end = fits ? start_of_cell(high + 1) : pieces[count - 1].end;
	}
	assert_int_equal(hp_range_map_exchange(&map, start_of_cell(first), start_of_cell(end), pieces, count),
	                 fits ? 0 : -EEXIST);
	if (!fits)
		return;
	set_cells(low, high, 0, NULL);
	for (uint32_t i = 0; i < count; i++)
		set_cells(cell_of(pieces[i].start), cell_of(pieces[i].end), pieces[i].start, pieces[i].value);
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

/* The first range above any address, by the model. */
static void check_next(void)
{
	uintptr_t end = UINTPTR_MAX;
	struct hp_range range;

	assert_false(hp_range_map_next(&map, UINTPTR_MAX, &range));
	for (uintptr_t i = CELLS; i-- > 0;) {
		if (cells[i].start && (i + 1 == CELLS || cells[i + 1].start != cells[i].start))
			end = start_of_cell(i + 1);
		for (uintptr_t from = start_of_cell(i); from < start_of_cell(i + 1); from += CELL - 1) {
			assert_int_equal(hp_range_map_next(&map, from, &range), end != UINTPTR_MAX);
			if (end != UINTPTR_MAX)
				assert_true(range.end == end && range.value == cells[cell_of(end - 1)].value);
		}
	}
}

static void empty(void)
{
	assert_int_equal(hp_range_map_exchange(&map, 0, UINTPTR_MAX, NULL, 0), 0);
	set_cells(0, CELLS, 0, NULL);
	check_all();
	check_next();
	hp_range_map_free(hp_range_map_take_retired(&map));
	assert_int_equal(map.retired_count, 0);
	assert_null(atomic_load(&map.root));
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
	empty();
}

static void test_random_exchanges(void **state)
{
	uint64_t random = random_seed();

	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t what = random_below(&random, 10);
		uintptr_t first = random_below(&random, CELLS - 4);

		if (what < 2)
			insert(first, 1 + random_below(&random, 4));
		else if (what < 3)
			remove_at(cells[first].start ? cells[first].start : start_of_cell(first));
		else
			exchange(&random);
		if (round % 100 == 0) {
			check_all();
			check_next();
		}
		if (map.retired_count > 50)
			hp_range_map_free(hp_range_map_take_retired(&map));
	}
	check_all();
	empty();
}

/* ---- exchanges by hand ------------------------------------------------------------------------------------------ */

/* In cells. */
struct part {
	uintptr_t first, end;
};

/* Exchanges [first, end), and checks the map, whatever the result is. */
static int try_exchange(uintptr_t first, uintptr_t end, const struct part *parts, uint32_t count)
{
	static struct hp_range pieces[CELLS];
	uintptr_t low = first, high = end;
	int result;

	for (uint32_t i = 0; i < count; i++)
		pieces[i] = (struct hp_range){start_of_cell(parts[i].first), start_of_cell(parts[i].end), new_value()};
	result = hp_range_map_exchange(&map, start_of_cell(first), start_of_cell(end), pieces, count);
	if (!result) {
		if (first < end)
			widen(&low, &high);
		set_cells(low, high, 0, NULL);
		for (uint32_t i = 0; i < count; i++)
			set_cells(parts[i].first, parts[i].end, pieces[i].start, pieces[i].value);
	}
	check_all();
	check_next();
	return result;
}

#define EXCHANGE(first, end, ...)                                    \
	try_exchange(first, end, (const struct part[]){__VA_ARGS__}, \
	             sizeof((struct part[]){__VA_ARGS__}) / sizeof(struct part))

static uint32_t leaves(void)
{
	struct hp_range_root *root = atomic_load(&map.root);

	return root ? root->count : 0;
}

static void test_small_exchanges(void **state)
{
	assert_int_equal(try_exchange(0, 10, NULL, 0), 0);
	assert_int_equal(map.retired_count, 0);
	assert_int_equal(EXCHANGE(0, 10, {2, 4}, {4, 5}), 0); /* into the empty map */
	assert_int_equal(try_exchange(0, 10, NULL, 0), 0);    /* and back to it */
	assert_int_equal(leaves(), 0);

	assert_int_equal(EXCHANGE(10, 20, {10, 20}), 0);
	assert_int_equal(EXCHANGE(13, 15, {10, 13}, {15, 20}), 0);           /* unmaps the middle */
	assert_int_equal(EXCHANGE(18, 20, {15, 18}, {18, 20}), 0);           /* protects an end */
	assert_int_equal(EXCHANGE(12, 16, {10, 12}, {12, 16}, {16, 18}), 0); /* maps over several */
	assert_int_equal(EXCHANGE(5, 8, {5, 8}), 0);                         /* nothing to replace */
	assert_int_equal(EXCHANGE(20, 21, {20, 21}), 0);                     /* beside one that stays */
	assert_int_equal(EXCHANGE(8, 10), 0);                                /* nothing at all */

	/* An empty part replaces nothing, not even what lies around it. */
	assert_int_equal(EXCHANGE(30, 30, {30, 32}), 0);
	assert_int_equal(try_exchange(31, 31, NULL, 0), 0);
	assert_int_equal(EXCHANGE(31, 31, {30, 32}), -EEXIST);

	/* Beyond what is replaced, where ranges are that stay. */
	assert_int_equal(EXCHANGE(12, 16, {11, 16}), -EEXIST);
	assert_int_equal(EXCHANGE(12, 16, {12, 17}), -EEXIST);
	assert_int_equal(EXCHANGE(8, 10, {5, 10}), -EEXIST);
	assert_int_equal(EXCHANGE(8, 10, {8, 11}), -EEXIST);
	assert_int_equal(EXCHANGE(8, 10, {4, 5}, {8, 10}), -EEXIST);
	empty();
}

static void test_ends_of_the_address_space(void **state)
{
	const struct hp_range whole = {0, UINTPTR_MAX, new_value()};
	const struct hp_range halves[] = {{0, CELL, new_value()}, {CELL, UINTPTR_MAX, new_value()}};
	struct hp_range range;
	void *value;

	assert_int_equal(hp_range_map_exchange(&map, 0, UINTPTR_MAX, &whole, 1), 0);
	assert_int_equal(hp_range_map_exchange(&map, 0, 1, halves, 2), 0);
	assert_ptr_equal(hp_range_map_find(&map, 0), halves[0].value);
	assert_ptr_equal(hp_range_map_find(&map, UINTPTR_MAX - 1), halves[1].value);
	assert_true(hp_range_map_next(&map, UINTPTR_MAX - 1, &range));
	assert_ptr_equal(range.value, halves[1].value);
	assert_false(hp_range_map_next(&map, UINTPTR_MAX, &range));
	assert_int_equal(hp_range_map_insert(&map, 0, 1, new_value()), -EEXIST);
	assert_int_equal(hp_range_map_remove(&map, 0, &value), 0);
	assert_ptr_equal(value, halves[0].value);
	assert_null(hp_range_map_find(&map, 0));
	empty();
}

static void fill_with_ranges(uintptr_t first, uintptr_t end, uintptr_t size)
{
	for (uintptr_t i = first; i < end; i += size)
		insert(i, size);
}

static void test_exchanges_of_leaves(void **state)
{
	struct part parts[3 * HP_RANGE_LEAF];

	/* A leaf that is full gets one more by splitting. */
	fill_with_ranges(0, 2 * HP_RANGE_LEAF, 2);
	assert_int_equal(leaves(), 1);
	assert_int_equal(EXCHANGE(1, 2, {0, 1}, {1, 2}), 0);
	assert_int_equal(leaves(), 2);
	/* Over the border of two leaves, which fit into one afterwards. */
	assert_int_equal(EXCHANGE(0, 2 * HP_RANGE_LEAF - 1, {0, 1}, {2 * HP_RANGE_LEAF - 1, 2 * HP_RANGE_LEAF}), 0);
	assert_int_equal(leaves(), 1);
	empty();

	/* One range becomes many leaves, and these become one range that starts earlier and ends later. */
	insert(0, 1);
	insert(4, 3 * HP_RANGE_LEAF);
	for (uint32_t i = 0; i < 3 * HP_RANGE_LEAF; i++)
		parts[i] = (struct part){4 + i, 5 + i};
	assert_int_equal(try_exchange(5, 6, parts, 3 * HP_RANGE_LEAF), 0);
	assert_int_equal(leaves(), 4);
	assert_int_equal(EXCHANGE(2, 4 * HP_RANGE_LEAF, {2, 4 * HP_RANGE_LEAF}), 0);
	assert_int_equal(leaves(), 1);
	empty();

	/* A range that begins in one leaf and reaches over the spans of others that are gone. */
	fill_with_ranges(0, 1000, 1);
	assert_int_equal(EXCHANGE(100, 900, {100, 900}), 0);
	assert_int_equal(EXCHANGE(890, 891, {100, 890}, {891, 900}), 0);
	/* Leaves that become empty: in the middle, the first, the last. */
	assert_int_equal(EXCHANGE(0, 100), 0);
	assert_int_equal(EXCHANGE(891, 1000), 0);
	assert_int_equal(leaves(), 1);
	assert_int_equal(EXCHANGE(500, 501), 0);
	assert_int_equal(leaves(), 0);
	empty();
}

/* With ever more memory until it is enough: before that nothing changes. Returns how often it was too little. */
static long fails_cleanly(uintptr_t first, uintptr_t end, const struct part *parts, uint32_t count)
{
	struct hp_range_root *root = atomic_load(&map.root);
	uint32_t retired = map.retired_count;
	int result = -ENOMEM;
	long limit;

	for (limit = 0; result; limit++) {
		mallocs_left = limit;
		result = try_exchange(first, end, parts, count);
		mallocs_left = -1;
		if (result) {
			assert_int_equal(result, -ENOMEM);
			assert_ptr_equal(atomic_load(&map.root), root);
			assert_int_equal(map.retired_count, retired);
		}
	}
	return limit - 1;
}

static void test_no_memory(void **state)
{
	const uint32_t many = 4 * HP_RANGE_LEAF;
	struct part parts[4 * HP_RANGE_LEAF];
	void *value;

	for (uint32_t i = 0; i < many; i++)
		parts[i] = (struct part){i, i + 1};
	assert_int_equal(fails_cleanly(0, 1, parts, 1), 2);     /* a root and a leaf */
	assert_int_equal(fails_cleanly(1, 2, parts + 1, 1), 1); /* a leaf */
	assert_int_equal(fails_cleanly(0, 2, parts, many), 5);
	assert_int_equal(fails_cleanly(1, many, parts + 1, 2 * HP_RANGE_LEAF), 4);

	mallocs_left = 0;
	assert_int_equal(hp_range_map_remove(&map, start_of_cell(0), &value), -ENOMEM);
	assert_null(value);
	assert_int_equal(hp_range_map_insert(&map, start_of_cell(many), start_of_cell(many + 1), new_value()), -ENOMEM);
	assert_int_equal(fails_cleanly(0, many, NULL, 0), 0); /* what is empty needs no memory */
	mallocs_left = -1;
	empty();
}

/* ---- readers ---------------------------------------------------------------------------------------------------- */

/* Even ranges stay; odd ones come and go. A value begins with the link that retiring it needs. */
enum { RANGES = 500, SIZE = 4096, CHANGES = 4000, READERS = 3 };

struct value {
	void *link;
	uintptr_t start, end;
};

static struct hp_range_map shared;
static struct hp_epoch epoch;
static _Atomic bool stop;
static bool all_stay; /* every address always has a value */

static uintptr_t start_of(uintptr_t number)
{
	return (number + 1) * SIZE;
}

static bool may_be_free(uintptr_t number)
{
	return all_stay ? false : number % 2;
}

static void *read_often(void *argument)
{
	uint64_t random = *(uint64_t *)argument;

	while (!atomic_load(&stop)) {
		uintptr_t number = random_below(&random, RANGES);
		uintptr_t address = start_of(number) + random_below(&random, SIZE);
		struct hp_epoch_section section = hp_epoch_enter(&epoch);
		const struct value *value = hp_range_map_find(&shared, address);

		thread_must(value ? value->start <= address && address < value->end : may_be_free(number));
		hp_epoch_leave(&epoch, section);
	}
	return NULL;
}

static struct hp_range new_range(uintptr_t number, uintptr_t end)
{
	struct value *value = malloc(sizeof(*value));

	assert_non_null(value);
	value->start = start_of(number);
	value->end = start_of(end);
	return (struct hp_range){value->start, value->end, value};
}

static void add(uintptr_t number)
{
	struct hp_range range = new_range(number, number + 1);

	assert_int_equal(hp_range_map_insert(&shared, range.start, range.end, range.value), 0);
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

static void reclaim(void)
{
	void *retired;

	if (shared.retired_count <= 20)
		return;
	retired = hp_range_map_take_retired(&shared);
	hp_epoch_synchronize(&epoch);
	hp_range_map_free(retired);
}

static void come_and_go(uint64_t *random)
{
	uintptr_t number = random_below(random, RANGES) | 1;

	if (!take_away(number))
		add(number);
	reclaim();
}

/* Cuts a part anew, and what reaches into it: now and then so large a part that leaves come and vanish. */
static void cut_anew(uint64_t *random)
{
	uintptr_t first = random_below(random, RANGES), most = random_below(random, 10) ? 4 : RANGES;
	uintptr_t end = first + 1 + random_below(random, RANGES - first < most ? RANGES - first : most);
	uintptr_t low = start_of(first), high = start_of(end), longest = 1 + random_below(random, 3);
	struct hp_range pieces[RANGES], range;
	uint32_t count = 0, old_count = 0;
	void *old[RANGES];

	for (uintptr_t from = low; hp_range_map_next(&shared, from, &range) && range.start < start_of(end);
	     from = range.end) {
		low = range.start < low ? range.start : low;
		high = range.end > high ? range.end : high;
		old[old_count++] = range.value;
	}
	for (uintptr_t i = low / SIZE - 1, next; i < high / SIZE - 1; i = next) {
		next = i + 1 + random_below(random, longest);
		next = next < high / SIZE - 1 ? next : high / SIZE - 1;
		pieces[count++] = new_range(i, next);
	}
	assert_int_equal(hp_range_map_exchange(&shared, start_of(first), start_of(end), pieces, count), 0);
	while (old_count > 0)
		hp_range_map_retire(&shared, old[--old_count]);
	reclaim();
}

/* Changes the map under readers, and empties it. */
static void run_with_readers(void (*change)(uint64_t *random))
{
	uint64_t random = random_seed(), seeds[READERS];
	pthread_t threads[READERS];
	struct hp_range range;

	atomic_store(&stop, false);
	for (unsigned i = 0; i < READERS; i++) {
		seeds[i] = random + i + 1;
		assert_int_equal(pthread_create(&threads[i], NULL, read_often, &seeds[i]), 0);
	}
	for (unsigned i = 0; i < CHANGES; i++)
		change(&random);
	atomic_store(&stop, true);
	for (unsigned i = 0; i < READERS; i++)
		assert_int_equal(pthread_join(threads[i], NULL), 0);
	assert_int_equal(atomic_load(&threads_wrong), 0);
	while (hp_range_map_next(&shared, 0, &range)) {
		void *value;

		assert_int_equal(hp_range_map_remove(&shared, range.start, &value), 0);
		assert_ptr_equal(value, range.value);
		hp_range_map_retire(&shared, value);
	}
	hp_range_map_free(hp_range_map_take_retired(&shared));
}

static void test_readers(void **state)
{
	all_stay = false;
	for (uintptr_t number = 0; number < RANGES; number += 2)
		add(number);
	run_with_readers(come_and_go);
}

static void test_readers_of_exchanges(void **state)
{
	all_stay = true;
	for (uintptr_t number = 0; number < RANGES; number++)
		add(number);
	run_with_readers(cut_anew);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_random_exchanges),
		cmocka_unit_test(test_small_exchanges),
		cmocka_unit_test(test_ends_of_the_address_space),
		cmocka_unit_test(test_exchanges_of_leaves),
		cmocka_unit_test(test_no_memory),
		cmocka_unit_test(test_readers),
		cmocka_unit_test(test_readers_of_exchanges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
