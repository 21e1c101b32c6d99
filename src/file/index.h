/* SPDX-License-Identifier: MIT */
/*
 * The page-cache index: from a file's page to its frame.
 *
 * A flat table in the arena, one word a page: 0, or the frame's id plus 1. Lookups take no lock. A page is inserted by
 * the one who holds its token (file/reserve.h) and removed under the file lock for writing.
 */
#ifndef HP_FILE_INDEX_H
#define HP_FILE_INDEX_H

#include "base/assert.h"
#include "base/units.h"

#include <stdatomic.h>

struct hp_index { /* one process's view, made for each use */
	_Atomic uint32_t *entry;
	uint32_t pages;
};

static inline uint64_t hp_index_bytes(uint32_t pages)
{
	return (uint64_t)pages * sizeof(uint32_t);
}

static inline hp_frame_id hp_index_lookup(struct hp_index index, uint32_t page)
{
	uint32_t entry = atomic_load_explicit(&index.entry[page], memory_order_acquire);

	return entry ? entry - 1 : HP_NO_FRAME;
}

static inline void hp_index_insert(struct hp_index index, uint32_t page, hp_frame_id frame)
{
	HP_ASSERT(atomic_load_explicit(&index.entry[page], memory_order_relaxed) == 0);
	atomic_store_explicit(&index.entry[page], frame + 1, memory_order_release);
}

static inline void hp_index_remove(struct hp_index index, uint32_t page)
{
	atomic_store_explicit(&index.entry[page], 0, memory_order_release);
}

/*
 * How many of the pages from `page` on, up to `most`, lie in frames that follow each other; 0 if the first is absent.
 */
static inline uint32_t hp_index_run(struct hp_index index, uint32_t page, uint32_t most)
{
	hp_frame_id first = hp_index_lookup(index, page);
	uint32_t n = 0;

	if (first != HP_NO_FRAME)
		while (n < most && hp_index_lookup(index, page + n) == first + n)
			n++;
	return n;
}

#endif
