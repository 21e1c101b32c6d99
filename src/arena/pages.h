/* SPDX-License-Identifier: MIT */
/*
 * Runs of base pages in the arena, for what has no fixed size: a file's reservation map, the nodes of its index.
 * Page 0 is never handed out and means none.
 *
 * A page that is read without a lock is given back in two steps: it is unlinked, and waits in the limbo until all read
 * sections of that time are over. A stopped reader may hold that up for ever, so the limbo is small, and who finds it
 * full leaves the page linked. All functions are signal safe; signals are blocked.
 */
#ifndef HP_ARENA_PAGES_H
#define HP_ARENA_PAGES_H

#include "base/units.h"
#include "sync/mutex.h"
#include "sync/section.h"

#define HP_PAGES_LIMBO 128u

struct hp_pages { /* in the arena */
	struct hp_mutex lock;
	uint32_t count;   /* never changes */
	uint32_t cursor;  /* where the search starts; under lock */
	uint32_t used;    /* under lock */
	uint32_t waiting; /* in the limbo; under lock */
	struct {
		uint64_t stamp; /* sync/section.h */
		uint32_t page;
	} limbo[HP_PAGES_LIMBO]; /* under lock */
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
/* `bytes` as it was taken, of which only the first `written` were ever written; 0 pages is a no-op. */
void hp_pages_give(struct hp_page_store *store, uint32_t page, uint64_t bytes, uint64_t written,
                   const struct hp_locker *who);

/*
 * Gives a page back whose only link this is, in time: the link becomes 0. False: too many wait for readers that do not
 * go on, and nothing has changed.
 */
bool hp_pages_unlink(struct hp_page_store *store, _Atomic uint64_t *link, uint32_t page, const struct hp_locker *who);

/* The lock's owner died inside: counts again. Under the lock. */
void hp_pages_repair(struct hp_page_store *store);

static inline void *hp_pages_at(const struct hp_page_store *store, uint32_t page)
{
	return store->memory + page * HP_BASE_PAGE_SIZE;
}

#endif
