/* SPDX-License-Identifier: MIT */
#include "arena/pages.h"

#include "base/bitmap.h"

#include <string.h>

static uint64_t pages_for(uint64_t bytes)
{
	return (bytes + HP_BASE_PAGE_SIZE - 1) / HP_BASE_PAGE_SIZE;
}

void hp_pages_init(struct hp_page_store *store, uint32_t count)
{
	store->pages->count = count;
	store->pages->cursor = 1;
	hp_bitmap_set(store->bitmap, 0, 1);
}

static uint64_t find_run_locked(const struct hp_page_store *store, uint64_t n)
{
	const struct hp_pages *pages = store->pages;
	uint64_t first = hp_bitmap_find_clear_run(store->bitmap, pages->cursor, pages->count, n);

	return first != HP_BITMAP_NONE ? first : hp_bitmap_find_clear_run(store->bitmap, 1, pages->count, n);
}

static void free_run_locked(struct hp_page_store *store, uint32_t first, uint64_t n)
{
	struct hp_pages *pages = store->pages;

	hp_bitmap_clear(store->bitmap, first, n);
	if (first < pages->cursor)
		pages->cursor = first;
	pages->used -= (uint32_t)n;
}

/*
 * Who dies on the way loses a page at most, and nobody gets one twice: a page is in the limbo or free, never both. An
 * entry without a page is nothing.
 */
static void put_in_limbo_locked(struct hp_pages *pages, uint32_t *n, uint64_t stamp, uint32_t page)
{
	pages->limbo[*n].stamp = stamp;
	atomic_signal_fence(memory_order_seq_cst);
	pages->limbo[*n].page = page;
	++*n;
}

/* Frees what no reader can have any more. */
static void drain_limbo_locked(struct hp_page_store *store, const struct hp_locker *who)
{
	struct hp_pages *pages = store->pages;
	uint64_t oldest = hp_section_oldest(who->domain);
	uint32_t kept = 0;

	for (uint32_t i = 0; i < pages->waiting; i++) {
		uint32_t page = pages->limbo[i].page;

		pages->limbo[i].page = 0;
		atomic_signal_fence(memory_order_seq_cst);
		if (page && pages->limbo[i].stamp >= oldest) {
			put_in_limbo_locked(pages, &kept, pages->limbo[i].stamp, page);
		} else if (page) {
			memset(hp_pages_at(store, page), 0, HP_BASE_PAGE_SIZE);
			free_run_locked(store, page, 1);
		}
	}
	pages->waiting = kept;
}

uint32_t hp_pages_take(struct hp_page_store *store, uint64_t bytes, const struct hp_locker *who)
{
	struct hp_pages *pages = store->pages;
	uint64_t n = pages_for(bytes), first;

	hp_mutex_lock(&pages->lock, who, HP_CLASS_PAGES);
	first = find_run_locked(store, n);
	if (first == HP_BITMAP_NONE && pages->waiting) {
		drain_limbo_locked(store, who);
		first = find_run_locked(store, n);
	}
	if (first != HP_BITMAP_NONE) {
		hp_bitmap_set(store->bitmap, first, n);
		pages->cursor = (uint32_t)(first + n);
		pages->used += (uint32_t)n;
	}
	hp_mutex_unlock(&pages->lock, who);
	return first == HP_BITMAP_NONE ? 0 : (uint32_t)first;
}

void hp_pages_give(struct hp_page_store *store, uint32_t page, uint64_t bytes, uint64_t written,
                   const struct hp_locker *who)
{
	uint64_t n = pages_for(bytes);

	if (!page)
		return;
	/* Zeroed on the way back, so that a page that was never used is not touched when it is taken. */
	memset(hp_pages_at(store, page), 0, written);
	hp_mutex_lock(&store->pages->lock, who, HP_CLASS_PAGES);
	free_run_locked(store, page, n);
	hp_mutex_unlock(&store->pages->lock, who);
}

bool hp_pages_unlink(struct hp_page_store *store, _Atomic uint64_t *link, uint32_t page, const struct hp_locker *who)
{
	struct hp_pages *pages = store->pages;
	bool room;

	hp_mutex_lock(&pages->lock, who, HP_CLASS_PAGES);
	if (pages->waiting == HP_PAGES_LIMBO)
		drain_limbo_locked(store, who);
	room = pages->waiting < HP_PAGES_LIMBO;
	if (room) {
		atomic_store(link, 0);
		put_in_limbo_locked(pages, &pages->waiting, hp_section_stamp(who->domain), page);
	}
	hp_mutex_unlock(&pages->lock, who);
	return room;
}

void hp_pages_repair(struct hp_page_store *store)
{
	/* Page 0 is never handed out. */
	store->pages->used = (uint32_t)hp_bitmap_count(store->bitmap, 1, store->pages->count - 1);
}
