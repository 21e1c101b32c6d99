/* SPDX-License-Identifier: MIT */
#include "space/touched.h"

#include <stdlib.h>

static _Atomic uint16_t *chunk_of(const struct hp_touched *touched, uint32_t page)
{
	return &touched->chunk[page / HP_REGION_FRAMES - touched->first / HP_REGION_FRAMES];
}

struct hp_touched *hp_touched_new(uint32_t first, uint32_t pages)
{
	uint64_t words = ((uint64_t)pages + 63) / 64;
	uint32_t chunks = (first + pages - 1) / HP_REGION_FRAMES - first / HP_REGION_FRAMES + 1;
	struct hp_touched *touched = calloc(1, sizeof(*touched) + words * sizeof(uint64_t) + chunks * sizeof(uint16_t));

	if (!touched)
		return NULL;
	touched->pieces = 1;
	touched->first = first;
	touched->pages = pages;
	touched->chunk = (_Atomic uint16_t *)&touched->bits[words];
	return touched;
}

uint32_t hp_touched_set(struct hp_touched *touched, uint32_t page, uint32_t pages)
{
	uint32_t fresh = 0;

	for (uint32_t i = 0; i < pages; i++) {
		uint32_t bit = page + i - touched->first;
		uint64_t mask = 1ull << bit % 64;

		fresh += !(atomic_fetch_or_explicit(&touched->bits[bit / 64], mask, memory_order_release) & mask);
	}
	return fresh + atomic_fetch_add_explicit(chunk_of(touched, page), (uint16_t)fresh, memory_order_relaxed);
}

void hp_touched_clear(struct hp_touched *touched, uint32_t page, uint32_t end)
{
	for (; page < end; page++) {
		uint32_t bit = page - touched->first;
		uint64_t mask = 1ull << bit % 64;

		if (atomic_fetch_and_explicit(&touched->bits[bit / 64], ~mask, memory_order_release) & mask)
			atomic_fetch_sub_explicit(chunk_of(touched, page), 1, memory_order_relaxed);
	}
}

bool hp_touched_next(const struct hp_touched *touched, uint32_t *page, uint32_t end, uint32_t *run)
{
	while (*page < end && !hp_touched_test(touched, *page))
		++*page;
	for (*run = 0; *page + *run < end && hp_touched_test(touched, *page + *run); ++*run)
		;
	return *run > 0;
}
