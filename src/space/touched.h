/* SPDX-License-Identifier: MIT */
/*
 * Which pages of a lazy mapping have been mapped: a bit a page, and how many are set in each GiB of the file. Pieces
 * of a mapping that was cut share it, each for its own pages. All but making one is atomic and signal safe.
 */
#ifndef HP_SPACE_TOUCHED_H
#define HP_SPACE_TOUCHED_H

#include "base/units.h"

#include <stdatomic.h>

struct hp_touched {
	void *retired_link;      /* of the range map's retired list */
	uint32_t pieces;         /* mappings that share it; under the space lock */
	uint32_t first, pages;   /* of the file; never change */
	_Atomic uint16_t *chunk; /* in this memory, behind the bits */
	_Atomic uint64_t bits[];
};

/* For one piece; NULL: no memory. */
struct hp_touched *hp_touched_new(uint32_t first, uint32_t pages);

static inline bool hp_touched_test(const struct hp_touched *touched, uint32_t page)
{
	uint32_t bit = page - touched->first;

	return atomic_load_explicit(&touched->bits[bit / 64], memory_order_acquire) >> bit % 64 & 1;
}

/* The pages lie in one GiB of the file; returns how many of it are set now. */
uint32_t hp_touched_set(struct hp_touched *touched, uint32_t page, uint32_t pages);
void hp_touched_clear(struct hp_touched *touched, uint32_t page, uint32_t end);
/* The first run of set pages in [*page, end): false if there is none; else *page and *run say where it is. */
bool hp_touched_next(const struct hp_touched *touched, uint32_t *page, uint32_t end, uint32_t *run);

#endif
