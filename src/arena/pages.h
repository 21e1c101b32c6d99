/* SPDX-License-Identifier: MIT */
/*
 * Runs of base pages in the arena, for what has no fixed size: a file's index, its reservation map.
 * Page 0 is never handed out and means none.
 */
#ifndef HP_ARENA_PAGES_H
#define HP_ARENA_PAGES_H

#include "base/units.h"
#include "sync/mutex.h"

struct hp_pages { /* in the arena */
	struct hp_mutex lock;
	uint32_t count;  /* never changes */
	uint32_t cursor; /* where the search starts; under lock */
	uint32_t used;   /* under lock */
};

struct hp_page_store { /* one process's view */
	struct hp_pages *pages;
	uint64_t *bitmap; /* used pages; under lock */
	char *memory;
};

static inline uint64_t hp_pages_bitmap_bytes(uint64_t count)
{
	return (count + 63) / 64 * 8;
}

void hp_pages_init(struct hp_page_store *store, uint32_t count);
/* A zeroed run of at least `bytes`; 0 if there is none. */
uint32_t hp_pages_take(struct hp_page_store *store, uint64_t bytes, const struct hp_locker *who);
/* `bytes` as it was taken; 0 pages is a no-op. */
void hp_pages_give(struct hp_page_store *store, uint32_t page, uint64_t bytes, const struct hp_locker *who);

/* The lock's owner died inside: counts again. Under the lock. */
void hp_pages_repair(struct hp_page_store *store);

static inline void *hp_pages_at(const struct hp_page_store *store, uint32_t page)
{
	return store->memory + page * HP_BASE_PAGE_SIZE;
}

#endif
