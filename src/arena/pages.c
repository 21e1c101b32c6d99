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

uint32_t hp_pages_take(struct hp_page_store *store, uint64_t bytes, const struct hp_locker *who)
{
	struct hp_pages *pages = store->pages;
	uint64_t n = pages_for(bytes), first;

	hp_mutex_lock(&pages->lock, who, HP_CLASS_PAGES);
	first = hp_bitmap_find_clear_run(store->bitmap, pages->cursor, pages->count, n);
	if (first == HP_BITMAP_NONE)
		first = hp_bitmap_find_clear_run(store->bitmap, 1, pages->count, n);
	if (first != HP_BITMAP_NONE) {
		hp_bitmap_set(store->bitmap, first, n);
		pages->cursor = (uint32_t)(first + n);
		pages->used += (uint32_t)n;
	}
	hp_mutex_unlock(&pages->lock, who);
	return first == HP_BITMAP_NONE ? 0 : (uint32_t)first;
}

void hp_pages_give(struct hp_page_store *store, uint32_t page, uint64_t bytes, const struct hp_locker *who)
{
	struct hp_pages *pages = store->pages;
	uint64_t n = pages_for(bytes);

	if (!page)
		return;
	/* Zeroed on the way back, so that a page that was never used is not touched when it is taken. */
	memset(hp_pages_at(store, page), 0, n * HP_BASE_PAGE_SIZE);
	hp_mutex_lock(&pages->lock, who, HP_CLASS_PAGES);
	hp_bitmap_clear(store->bitmap, page, n);
	if (page < pages->cursor)
		pages->cursor = page;
	pages->used -= (uint32_t)n;
	hp_mutex_unlock(&pages->lock, who);
}

void hp_pages_repair(struct hp_page_store *store)
{
	/* Page 0 is never handed out. */
	store->pages->used = (uint32_t)hp_bitmap_count(store->bitmap, 1, store->pages->count - 1);
}
