/* SPDX-License-Identifier: MIT */
#include "base/bitmap.h"

void hp_bitmap_set(uint64_t *map, uint64_t first, uint64_t count)
{
	for (uint64_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		map[w] |= hp_bitmap_mask(w, first, count);
}

void hp_bitmap_clear(uint64_t *map, uint64_t first, uint64_t count)
{
	for (uint64_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		map[w] &= ~hp_bitmap_mask(w, first, count);
}

uint64_t hp_bitmap_count(const uint64_t *map, uint64_t first, uint64_t count)
{
	uint64_t n = 0;

	for (uint64_t w = first / 64; count && w <= (first + count - 1) / 64; w++)
		n += (uint64_t)__builtin_popcountll(map[w] & hp_bitmap_mask(w, first, count));
	return n;
}

/* `flip` is 0 to look for set bits, all ones to look for clear ones. */
static uint64_t next(const uint64_t *map, uint64_t from, uint64_t end, uint64_t flip)
{
	if (from >= end)
		return HP_BITMAP_NONE;
	for (uint64_t w = from / 64; w * 64 < end; w++) {
		uint64_t bits = (map[w] ^ flip) & hp_bitmap_mask(w, from, end - from);

		if (bits)
			return w * 64 + (uint64_t)__builtin_ctzll(bits);
	}
	return HP_BITMAP_NONE;
}

static uint64_t find_run(const uint64_t *map, uint64_t from, uint64_t end, uint64_t count, uint64_t flip)
{
	while (from < end) {
		uint64_t first = next(map, from, end, flip), stop;

		if (first == HP_BITMAP_NONE)
			break;
		stop = next(map, first, end, ~flip);
		stop = stop == HP_BITMAP_NONE ? end : stop;
		if (stop - first >= count)
			return first;
		from = stop;
	}
	return HP_BITMAP_NONE;
}

uint64_t hp_bitmap_next_set(const uint64_t *map, uint64_t from, uint64_t end)
{
	return next(map, from, end, 0);
}

uint64_t hp_bitmap_next_clear(const uint64_t *map, uint64_t from, uint64_t end)
{
	uint64_t found = next(map, from, end, ~0ull);

	return found == HP_BITMAP_NONE ? end : found;
}

uint64_t hp_bitmap_find_clear_run(const uint64_t *map, uint64_t from, uint64_t end, uint64_t count)
{
	return find_run(map, from, end, count, ~0ull);
}

uint64_t hp_bitmap_find_set_run(const uint64_t *map, uint64_t from, uint64_t end, uint64_t count)
{
	return find_run(map, from, end, count, 0);
}
