/* SPDX-License-Identifier: MIT */
/*
 * What becomes of the pool's books when the owner of a lock died inside. Each routine makes what the lock protects
 * consistent in itself, from the words that say most: bitmaps before counts, states of frames before bitmaps. Frames
 * and promises that the dead thread had in its hands are not found here: they are in its intents.
 */
#include "pool/extent.h"

#include "base/bitmap.h"

/* Free and zeroed frames of each region are counted again. */
static void repair_extents(const struct hp_locker *who, void *lock, hp_owner dead)
{
	struct hp_pool_view *view = hp_thread_of(who)->pool;

	(void)lock;
	(void)dead;
	for (uint32_t r = 0; r < view->shared->regions; r++) {
		uint64_t first = (uint64_t)r * HP_REGION_FRAMES;

		for (uint64_t w = first / 64; w < (first + HP_REGION_FRAMES) / 64; w++)
			view->zeroed_map[w] &= view->free_map[w];
		view->regions[r].free = (uint16_t)hp_bitmap_count(view->free_map, first, HP_REGION_FRAMES);
		view->regions[r].zeroed = (uint16_t)hp_bitmap_count(view->zeroed_map, first, HP_REGION_FRAMES);
	}
}

/* A frame that was on its way to the maps, or from them, is in the maps. */
static void repair_cache(const struct hp_locker *who, void *lock, hp_owner dead)
{
	struct hp_pool_view *view = hp_thread_of(who)->pool;
	struct hp_cpu_cache *cache = lock;
	uint32_t kept = 0, count = cache->count < HP_CPU_CACHE_FRAMES ? cache->count : HP_CPU_CACHE_FRAMES;

	(void)dead;
	for (uint32_t i = 0; i < count; i++)
		if (!hp_bitmap_test(view->free_map, cache->frame[i]))
			cache->frame[kept++] = cache->frame[i];
	cache->count = kept;
}

/* The chain of free records is right at every step; their number may not be. */
static void repair_table(const struct hp_locker *who, void *lock, hp_owner dead)
{
	struct hp_pool_view *view = hp_thread_of(who)->pool;
	struct hp_table *table = lock;
	bool files = table == &view->shared->files;

	(void)dead;
	hp_table_repair(table, files ? view->files : view->vmas, files ? HP_FILE_RECORD_SIZE : HP_VMA_RECORD_SIZE);
}

static void repair_pages(const struct hp_locker *who, void *lock, hp_owner dead)
{
	(void)lock;
	(void)dead;
	hp_pages_repair(&hp_thread_of(who)->pool->pages);
}

/* Goes on with the burials that the dead thread was in the middle of: only under this lock is a process buried. */
static void repair_reap(const struct hp_locker *who, void *lock, hp_owner dead)
{
	(void)lock;
	(void)dead;
	hp_pool_reap_buried(hp_thread_of(who));
}

void hp_pool_repairs(void)
{
	hp_lock_class_set_repair(HP_CLASS_EXTENTS, repair_extents);
	hp_lock_class_set_repair(HP_CLASS_CPU_CACHE, repair_cache);
	hp_lock_class_set_repair(HP_CLASS_TABLE, repair_table);
	hp_lock_class_set_repair(HP_CLASS_PAGES, repair_pages);
	hp_lock_class_set_repair(HP_CLASS_REAP, repair_reap);
}
