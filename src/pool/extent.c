/* SPDX-License-Identifier: MIT */
#include "pool/extent.h"

#include "base/bitmap.h"
#include "sync/futex.h"

#include <errno.h>
#include <sched.h>

#define MISSES_MAX 1000000u /* searches in vain that say that the books are wrong */
#define REGIONS_TRIED 8u    /* regions with free frames that are searched before a shorter run is good enough */

/* ---- promises --------------------------------------------------------------------------------------------------- */

int hp_commit(struct hp_pool_view *view, uint64_t frames)
{
	uint64_t have = atomic_load_explicit(&view->shared->uncommitted, memory_order_relaxed);

	do {
		if (have < frames)
			return -ENOMEM;
	} while (!atomic_compare_exchange_weak_explicit(&view->shared->uncommitted, &have, have - frames,
	                                                memory_order_acq_rel, memory_order_relaxed));
	return 0;
}

void hp_uncommit(struct hp_pool_view *view, uint64_t frames)
{
	struct hp_pool_shared *shared = view->shared;

	atomic_fetch_add(&shared->uncommitted, frames);
	if (__builtin_expect(atomic_load(&shared->short_waiters) != 0, 0)) {
		atomic_fetch_add(&shared->short_event, 1);
		hp_futex_wake(&shared->short_event, INT_MAX);
	}
}

/* ---- maps and regions, under the extents lock ------------------------------------------------------------------- */

static struct hp_region *region_of(const struct hp_pool_view *view, hp_frame_id frame)
{
	return &view->regions[frame / HP_REGION_FRAMES];
}

/* How much of [first, first + count) lies in the region of `first`. */
static uint32_t within_region(hp_frame_id first, uint32_t count)
{
	uint32_t left = HP_REGION_FRAMES - first % HP_REGION_FRAMES;

	return count < left ? count : left;
}

/* Returns how many of them are zeroed. */
static uint32_t remove_locked(struct hp_pool_view *view, hp_frame_id first, uint32_t count)
{
	uint32_t all_zeroed = 0;

	while (count) {
		uint32_t part = within_region(first, count);
		uint32_t zeroed = (uint32_t)hp_bitmap_count(view->zeroed_map, first, part);
		struct hp_region *region = region_of(view, first);

		region->free = (uint16_t)(region->free - part);
		region->zeroed = (uint16_t)(region->zeroed - zeroed);
		hp_bitmap_clear(view->free_map, first, part);
		hp_bitmap_clear(view->zeroed_map, first, part);
		all_zeroed += zeroed;
		first += part;
		count -= part;
	}
	return all_zeroed;
}

/* Frames of one kind: all zeroed, or none. */
static void add_locked(struct hp_pool_view *view, hp_frame_id first, uint32_t count, bool zeroed)
{
	while (count) {
		uint32_t part = within_region(first, count);
		struct hp_region *region = region_of(view, first);

		HP_DEBUG_ASSERT(hp_bitmap_count(view->free_map, first, part) == 0);
		region->free = (uint16_t)(region->free + part);
		hp_bitmap_set(view->free_map, first, part);
		if (zeroed) {
			region->zeroed = (uint16_t)(region->zeroed + part);
			hp_bitmap_set(view->zeroed_map, first, part);
		}
		first += part;
		count -= part;
	}
}

uint64_t hp_segment_end(const struct hp_pool_view *view, hp_frame_id frame)
{
	uint32_t frames = hp_segment_frames(view->shared);

	return ((uint64_t)frame / frames + 1) * frames;
}

/* Takes what is free from `first` on, up to `want`. */
static struct hp_taken take_at_locked(struct hp_pool_view *view, hp_frame_id first, uint32_t want)
{
	uint64_t end = hp_min((uint64_t)first + want, hp_segment_end(view, first));
	uint32_t n = (uint32_t)(hp_bitmap_next_clear(view->free_map, first, end) - first);

	return (struct hp_taken){first, n, remove_locked(view, first, n)};
}

struct run {
	hp_frame_id first;
	uint32_t count;
};

/* The first run of `want` in a region, or its longest. */
static struct run run_in_region(const uint64_t *map, uint32_t region, uint32_t want)
{
	uint64_t at = (uint64_t)region * HP_REGION_FRAMES, end = at + HP_REGION_FRAMES;
	struct run best = {HP_NO_FRAME, 0};

	while (best.count < want && (at = hp_bitmap_next_set(map, at, end)) != HP_BITMAP_NONE) {
		uint64_t stop = hp_bitmap_next_clear(map, at, end);

		if (stop - at > best.count)
			best = (struct run){(hp_frame_id)at, (uint32_t)(stop - at)};
		at = stop;
	}
	return best;
}

/*
 * The best run for `want` frames, in this order of preference: long enough; outside of what files have claimed; in a
 * region that is broken up already, so that whole ones stay for those who need them.
 */
static struct run find_locked(struct hp_pool_view *view, bool zeroed, bool claimed, uint32_t want)
{
	const uint64_t *map = zeroed ? view->zeroed_map : view->free_map;
	struct run best = {HP_NO_FRAME, 0}, whole = {HP_NO_FRAME, 0};
	uint32_t regions = view->shared->frame_regions, tried = 0;

	for (uint32_t i = 0; i < regions && best.count < want && tried < REGIONS_TRIED; i++) {
		uint32_t r = (view->shared->cursor + i) % regions;
		const struct hp_region *region = &view->regions[r];

		if ((zeroed ? region->zeroed : region->free) == 0 || (region->claim != 0) != claimed)
			continue;
		if (region->free == HP_REGION_FRAMES && want < HP_REGION_FRAMES) {
			if (!whole.count)
				whole = run_in_region(map, r, want);
			continue;
		}
		struct run found = run_in_region(map, r, want);

		if (found.count > best.count)
			best = found;
		tried++;
	}
	return best.count < want && whole.count > best.count ? whole : best;
}

/* Zeroed frames first, claimed regions last: a claim is a wish, broken up when nothing else is left. */
static struct hp_taken take_best_locked(struct hp_pool_view *view, uint32_t want)
{
	struct run run = find_locked(view, true, false, want);

	if (run.count < want) {
		struct run any = find_locked(view, false, false, want);

		if (any.count > run.count)
			run = any;
	}
	if (!run.count)
		run = find_locked(view, false, true, want);
	if (!run.count)
		return (struct hp_taken){HP_NO_FRAME, 0, 0};
	run.count = run.count < want ? run.count : want;
	region_of(view, run.first)->claim = 0;
	view->shared->cursor = run.first / HP_REGION_FRAMES;
	return (struct hp_taken){run.first, run.count, remove_locked(view, run.first, run.count)};
}

/* ---- CPU caches ------------------------------------------------------------------------------------------------- */

static struct hp_cpu_cache *own_cache(struct hp_pool_view *view)
{
	int cpu = sched_getcpu();

	return &view->caches[cpu < 0 ? 0 : (uint32_t)cpu % HP_CPU_CACHES];
}

static bool pop_cache(struct hp_thread *t, struct hp_cpu_cache *cache, hp_frame_id *frame)
{
	bool found;

	hp_mutex_lock(&cache->lock, &t->locker, HP_CLASS_CPU_CACHE);
	found = cache->count > 0;
	if (found)
		*frame = cache->frame[--cache->count];
	hp_mutex_unlock(&cache->lock, &t->locker);
	return found;
}

/* Both locks are held while frames move, so that one who holds the extents lock sees every free frame. */
static void refill_cache_locked(struct hp_thread *t, struct hp_cpu_cache *cache)
{
	struct hp_pool_view *view = t->pool;
	struct run run = find_locked(view, true, false, HP_CPU_CACHE_FRAMES);

	if (!run.count)
		return;
	hp_mutex_lock(&cache->lock, &t->locker, HP_CLASS_CPU_CACHE);
	for (uint32_t i = 0; i < run.count && i < HP_CPU_CACHE_FRAMES && cache->count < HP_CPU_CACHE_FRAMES; i++) {
		remove_locked(view, run.first + i, 1);
		cache->frame[cache->count++] = run.first + i;
	}
	hp_mutex_unlock(&cache->lock, &t->locker);
}

void hp_caches_drain_locked(struct hp_pool_view *view, const struct hp_locker *who)
{
	for (uint32_t i = 0; i < HP_CPU_CACHES; i++) {
		struct hp_cpu_cache *cache = &view->caches[i];

		hp_mutex_lock(&cache->lock, who, HP_CLASS_CPU_CACHE);
		while (cache->count)
			add_locked(view, cache->frame[--cache->count], 1, true);
		hp_mutex_unlock(&cache->lock, who);
	}
}

/* ---- taking and giving back ------------------------------------------------------------------------------------- */

struct hp_taken hp_take(struct hp_thread *t, hp_frame_id hint, uint32_t want)
{
	struct hp_pool_view *view = t->pool;
	bool single = want == 1 && hint == HP_NO_FRAME;

	/*
	 * The caller has committed, so a free frame is there. A search can miss it only because a frame was given back
	 * to a place that it had passed while another taker got the one ahead: each miss is somebody else's success.
	 */
	for (unsigned misses = 0;; misses++) {
		struct hp_cpu_cache *cache = own_cache(view);
		struct hp_taken taken = {HP_NO_FRAME, 0, 0};

		if (single && pop_cache(t, cache, &taken.first))
			return (struct hp_taken){taken.first, 1, 1};
		hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
		if (hint != HP_NO_FRAME)
			taken = take_at_locked(view, hint, want);
		if (!taken.count)
			taken = take_best_locked(view, want);
		if (!taken.count) {
			hp_caches_drain_locked(view, &t->locker);
			taken = take_best_locked(view, want);
		}
		if (taken.count && single)
			refill_cache_locked(t, cache);
		hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
		if (taken.count)
			return taken;
		HP_ASSERT(misses < MISSES_MAX);
		sched_yield();
	}
}

/* The first frame of `want` free ones in a row in one segment, or HP_NO_FRAME. */
static hp_frame_id find_run_locked(const struct hp_pool_view *view, unsigned segment, uint32_t want, bool claimed,
                                   bool aligned)
{
	uint32_t frames = hp_segment_frames(view->shared);
	uint64_t at = (uint64_t)segment * frames, end = at + frames;

	while ((at = hp_bitmap_find_set_run(view->free_map, at, end, want)) != HP_BITMAP_NONE) {
		uint64_t aligned_at = aligned ? hp_align_up(at, HP_REGION_FRAMES) : at, next = aligned_at + 1;

		if (aligned_at + want <= end &&
		    hp_bitmap_next_clear(view->free_map, aligned_at, aligned_at + want) == aligned_at + want) {
			uint64_t r = aligned_at / HP_REGION_FRAMES, last = (aligned_at + want - 1) / HP_REGION_FRAMES;

			while (r <= last && (claimed || !view->regions[r].claim))
				r++;
			if (r > last)
				return (hp_frame_id)aligned_at;
			next = (r + 1) * HP_REGION_FRAMES;
		}
		at = next;
	}
	return HP_NO_FRAME;
}

bool hp_take_run(struct hp_thread *t, uint32_t want, hp_frame_id *first)
{
	struct hp_pool_view *view = t->pool;
	hp_frame_id found = HP_NO_FRAME;

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	/* Of what was asked for in whole GiBs, aligned ones are better; what files have claimed is taken last. */
	for (unsigned pass = 0; pass < 4 && found == HP_NO_FRAME; pass++) {
		bool aligned = pass < 2, claimed = pass % 2;

		if (aligned && want % HP_REGION_FRAMES)
			continue;
		if (claimed)
			hp_caches_drain_locked(view, &t->locker);
		for (unsigned s = 0; s < hp_frame_segments(view->shared) && found == HP_NO_FRAME; s++)
			found = find_run_locked(view, s, want, claimed, aligned);
	}
	if (found != HP_NO_FRAME) {
		for (uint64_t r = found / HP_REGION_FRAMES; r <= (found + want - 1) / HP_REGION_FRAMES; r++)
			view->regions[r].claim = 0;
		remove_locked(view, found, want);
		*first = found;
	}
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	return found != HP_NO_FRAME;
}

hp_frame_id hp_take_dirty(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	hp_frame_id found = HP_NO_FRAME;

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	for (uint32_t r = 0; r < view->shared->frame_regions && found == HP_NO_FRAME; r++) {
		uint64_t first = (uint64_t)r * HP_REGION_FRAMES, words = HP_REGION_FRAMES / 64;

		if (view->regions[r].free == view->regions[r].zeroed)
			continue;
		for (uint64_t w = first / 64; w < first / 64 + words && found == HP_NO_FRAME; w++) {
			uint64_t dirty = view->free_map[w] & ~view->zeroed_map[w];

			if (dirty)
				found = (hp_frame_id)(w * 64 + (uint64_t)__builtin_ctzll(dirty));
		}
	}
	if (found != HP_NO_FRAME)
		remove_locked(view, found, 1);
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	return found;
}

void hp_put(struct hp_thread *t, hp_frame_id first, uint32_t count)
{
	struct hp_pool_view *view = t->pool;

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	while (count) {
		enum hp_frame_state state = hp_frame_state(hp_frame_load(&view->frames[first]));
		uint32_t same = 1;

		HP_ASSERT(state == HP_FRAME_FREE_ZEROED || state == HP_FRAME_FREE_DIRTY);
		while (same < count && hp_frame_state(hp_frame_load(&view->frames[first + same])) == state)
			same++;
		add_locked(view, first, same, state == HP_FRAME_FREE_ZEROED);
		first += same;
		count -= same;
	}
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
}

bool hp_put_lost(struct hp_thread *t, hp_frame_id frame)
{
	struct hp_pool_view *view = t->pool;
	bool lost;

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	lost = !hp_bitmap_test(view->free_map, frame);
	if (lost) {
		atomic_store(&view->frames[frame].word, hp_frame_word(HP_FRAME_FREE_DIRTY, 0, 0));
		add_locked(view, frame, 1, false);
	}
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	return lost;
}

void hp_release(struct hp_thread *t, hp_frame_id first, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++)
		hp_frame_release(&t->pool->frames[first + i]);
	hp_put(t, first, count);
}

/* ---- claims ----------------------------------------------------------------------------------------------------- */

/* The wish if it is a whole free region, else the one with the most zeroed frames; UINT32_MAX if there is none. */
static uint32_t find_whole_locked(const struct hp_pool_view *view, hp_frame_id wish)
{
	uint32_t found = UINT32_MAX, wished = wish == HP_NO_FRAME ? UINT32_MAX : wish / HP_REGION_FRAMES;

	for (uint32_t r = 0; r < view->shared->frame_regions; r++) {
		const struct hp_region *region = &view->regions[r];

		if (region->free < HP_REGION_FRAMES || region->claim)
			continue;
		if (r == wished)
			return r;
		if (found == UINT32_MAX || region->zeroed > view->regions[found].zeroed)
			found = r;
	}
	return found;
}

hp_frame_id hp_region_claim(struct hp_thread *t, uint32_t file, hp_frame_id wish)
{
	struct hp_pool_view *view = t->pool;
	uint32_t found;

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	found = find_whole_locked(view, wish);
	if (found == UINT32_MAX) {
		/* A few frames in a CPU's cache may be all that a region lacks. */
		hp_caches_drain_locked(view, &t->locker);
		found = find_whole_locked(view, wish);
	}
	if (found != UINT32_MAX)
		view->regions[found].claim = file;
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	return found == UINT32_MAX ? HP_NO_FRAME : found * HP_REGION_FRAMES;
}

hp_frame_id hp_find_free(struct hp_thread *t, hp_frame_id wish, uint32_t want)
{
	struct hp_pool_view *view = t->pool;
	struct run run = {HP_NO_FRAME, 0};

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	if (wish != HP_NO_FRAME && wish / HP_REGION_FRAMES < view->shared->frame_regions &&
	    (uint64_t)wish + want <= hp_segment_end(view, wish) &&
	    hp_bitmap_next_clear(view->free_map, wish, (uint64_t)wish + want) == (uint64_t)wish + want)
		run = (struct run){wish, want};
	if (!run.count)
		run = find_locked(view, true, false, want);
	if (run.count < want)
		run = find_locked(view, false, false, want);
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	return run.first;
}

void hp_region_unclaim(struct hp_thread *t, uint32_t file, hp_frame_id first)
{
	struct hp_pool_view *view = t->pool;

	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	if (region_of(view, first)->claim == file)
		region_of(view, first)->claim = 0;
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
}
