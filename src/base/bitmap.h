/* SPDX-License-Identifier: MIT */
/*
 * Bitmaps of 64-bit words, many bits at a time. Plain operations: the caller holds the lock that protects the map.
 * Callers give ranges that lie inside the map.
 */
#ifndef HP_BASE_BITMAP_H
#define HP_BASE_BITMAP_H

#include <stdbool.h>
#include <stdint.h>

#define HP_BITMAP_NONE UINT64_MAX

static inline uint64_t hp_bitmap_words(uint64_t bits)
{
	return (bits + 63) / 64;
}

/* The bits of word `word` that lie in [first, first + count). */
static inline uint64_t hp_bitmap_mask(uint64_t word, uint64_t first, uint64_t count)
{
	uint64_t low = word * 64, from = first > low ? first - low : 0;
	uint64_t end = first + count > low ? first + count - low : 0;

	if (from >= 64 || from >= end)
		return 0;
	return (~0ull << from) & (end >= 64 ? ~0ull : (1ull << end) - 1);
}

static inline bool hp_bitmap_test(const uint64_t *map, uint64_t bit)
{
	return (map[bit / 64] >> (bit % 64)) & 1;
}

void hp_bitmap_set(uint64_t *map, uint64_t first, uint64_t count);
void hp_bitmap_clear(uint64_t *map, uint64_t first, uint64_t count);
uint64_t hp_bitmap_count(const uint64_t *map, uint64_t first, uint64_t count);

/* The first set bit in [from, end), or HP_BITMAP_NONE; the first clear one, or `end`. */
uint64_t hp_bitmap_next_set(const uint64_t *map, uint64_t from, uint64_t end);
uint64_t hp_bitmap_next_clear(const uint64_t *map, uint64_t from, uint64_t end);

/* The first run of `count` clear, or set, bits in [from, end), or HP_BITMAP_NONE. count > 0. */
uint64_t hp_bitmap_find_clear_run(const uint64_t *map, uint64_t from, uint64_t end, uint64_t count);
uint64_t hp_bitmap_find_set_run(const uint64_t *map, uint64_t from, uint64_t end, uint64_t count);

#endif
