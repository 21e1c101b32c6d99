/* SPDX-License-Identifier: MIT */
/* Bitmaps against an array of bools, at random. */
#include "base/bitmap.h"

#include "support/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { BITS = 64 * 5, ROUNDS = 20000 };

static bool model[BITS];
static uint64_t map[BITS / 64];

static uint64_t count_in_model(uint64_t first, uint64_t count)
{
	uint64_t n = 0;

	for (uint64_t i = first; i < first + count; i++)
		n += model[i];
	return n;
}

/* The first run of `count` equal bits in [from, end), or `none`. */
static uint64_t find_in_model(uint64_t from, uint64_t end, uint64_t count, bool value, uint64_t none)
{
	uint64_t run = 0;

	for (uint64_t i = from; i < end; i++) {
		run = model[i] == value ? run + 1 : 0;
		if (run == count)
			return i + 1 - count;
	}
	return none;
}

static void compare(uint64_t from, uint64_t end, uint64_t count)
{
	assert_int_equal(hp_bitmap_count(map, from, end - from), count_in_model(from, end - from));
	assert_int_equal(hp_bitmap_next_set(map, from, end), find_in_model(from, end, 1, true, HP_BITMAP_NONE));
	assert_int_equal(hp_bitmap_next_clear(map, from, end), find_in_model(from, end, 1, false, end));
	assert_int_equal(hp_bitmap_find_set_run(map, from, end, count),
	                 find_in_model(from, end, count, true, HP_BITMAP_NONE));
	assert_int_equal(hp_bitmap_find_clear_run(map, from, end, count),
	                 find_in_model(from, end, count, false, HP_BITMAP_NONE));
}

static void test_random(void **state)
{
	uint64_t random = random_seed();

	for (unsigned round = 0; round < ROUNDS; round++) {
		uint64_t first = random_below(&random, BITS), count = random_below(&random, BITS - first + 1);
		bool value = random_below(&random, 2);

		/* Short ranges leave many runs, whole words meet the edges. */
		if (random_below(&random, 2))
			count = count < 6 ? count : 6;
		else
			first &= ~UINT64_C(63);
		(value ? hp_bitmap_set : hp_bitmap_clear)(map, first, count);
		memset(model + first, value, count);
		first = random_below(&random, BITS);
		compare(first, first + random_below(&random, BITS - first + 1), 1 + random_below(&random, 100));
		assert_int_equal(hp_bitmap_test(map, first), model[first]);
	}
}

static void test_edges(void **state)
{
	const uint64_t edges[] = {0, 1, 63, 64, 65, 127, 128, BITS - 1, BITS};

	for (unsigned i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
		for (unsigned j = i; j < sizeof(edges) / sizeof(edges[0]); j++) {
			memset(map, 0, sizeof(map));
			memset(model, 0, sizeof(model));
			hp_bitmap_set(map, edges[i], edges[j] - edges[i]);
			memset(model + edges[i], true, edges[j] - edges[i]);
			compare(0, BITS, edges[j] > edges[i] ? edges[j] - edges[i] : 1);
			compare(edges[i], edges[j], 1);
			hp_bitmap_clear(map, edges[i], edges[j] - edges[i]);
			assert_int_equal(hp_bitmap_count(map, 0, BITS), 0);
		}
	assert_int_equal(hp_bitmap_words(0), 0);
	assert_int_equal(hp_bitmap_words(64), 1);
	assert_int_equal(hp_bitmap_words(65), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random),
		cmocka_unit_test(test_edges),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
