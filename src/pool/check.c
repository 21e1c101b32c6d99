/* SPDX-License-Identifier: MIT */
/* The pool's invariants, proved from the frames' own states. */
#include "pool/base.h"
#include "pool/extent.h"
#include "pool/hole.h"
#include "pool/workers.h"
#include "sync/futex.h"

#include "base/bitmap.h"
#include "base/error.h"

#include <errno.h>

static int broken(hp_error *error, const char *what, uint64_t where, uint64_t is, uint64_t should)
{
	return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE, "%s %lu: %lu, and should be %lu", what, where, is, should);
}

static bool is_free(bool base, enum hp_frame_state state)
{
	return base ? state == HP_FRAME_ABSENT : state == HP_FRAME_FREE_ZEROED || state == HP_FRAME_FREE_DIRTY;
}

/* Each frame against the maps, and each extent against its length. Counts frames by state. */
static int check_frames(struct hp_pool_view *view, uint64_t *count, hp_error *error)
{
	uint32_t frames = view->shared->regions * HP_REGION_FRAMES, extent_left = 0;

	for (hp_frame_id f = 0; f < frames; f++) {
		uint64_t word = hp_frame_load(&view->frames[f]), offset;
		enum hp_frame_state state = hp_frame_state(word);
		bool extent = state == HP_FRAME_USED && hp_frame_owner(word) == HP_OWNER_EXTENT;
		bool base = hp_is_base(view, f);
		uint32_t filled = atomic_load(&view->shared->segment[hp_segment_of(view, f, &offset)].filled);

		if (state >= HP_FRAME_STATES)
			return broken(error, "state of frame", f, state, 0);
		if (base && state != HP_FRAME_ABSENT && state != HP_FRAME_USED && state != HP_FRAME_HOLE)
			return broken(error, "state of place for base pages", f, state, HP_FRAME_ABSENT);
		if (base ? state == HP_FRAME_ABSENT : state != HP_FRAME_ABSENT)
			count[state]++;
		if (!base && (state != HP_FRAME_ABSENT) != (hp_frames(offset) < filled))
			return broken(error, "presence of frame", f, state != HP_FRAME_ABSENT,
			              hp_frames(offset) < filled);
		if (hp_bitmap_test(view->free_map, f) != is_free(base, state))
			return broken(error, "free map at frame", f, !is_free(base, state), is_free(base, state));
		if (hp_bitmap_test(view->zeroed_map, f) != (state == HP_FRAME_FREE_ZEROED))
			return broken(error, "zeroed map at frame", f, state != HP_FRAME_FREE_ZEROED,
			              state == HP_FRAME_FREE_ZEROED);
		if (extent != (extent_left > 0 || (extent && hp_frame_page(word) > 0)))
			return broken(error, "extent at frame", f, extent, extent_left > 0);
		extent_left = !extent ? 0 : extent_left ? extent_left - 1 : hp_frame_page(word) - 1;
	}
	return extent_left ? broken(error, "extent at frame", frames, 0, extent_left) : 0;
}

static int check_regions(const struct hp_pool_view *view, hp_error *error)
{
	for (uint32_t r = 0; r < view->shared->frame_regions; r++) {
		const struct hp_region *region = &view->regions[r];
		uint64_t first = (uint64_t)r * HP_REGION_FRAMES;
		uint64_t is_free_now = hp_bitmap_count(view->free_map, first, HP_REGION_FRAMES);
		uint64_t zeroed = hp_bitmap_count(view->zeroed_map, first, HP_REGION_FRAMES);

		if (region->free != is_free_now)
			return broken(error, "free frames of region", r, region->free, is_free_now);
		if (region->zeroed != zeroed)
			return broken(error, "zeroed frames of region", r, region->zeroed, zeroed);
	}
	return 0;
}

/* `count`: of places for base pages only those that are nobody's, as absent; of frames all but the absent. */
static int check_sums(const struct hp_pool_view *view, const uint64_t *count, struct hp_promised promised,
                      hp_error *error)
{
	uint64_t base_uncommitted = atomic_load(&view->shared->base_uncommitted);
	uint64_t uncommitted = atomic_load(&view->shared->uncommitted);
	uint64_t is_free_now = count[HP_FRAME_FREE_ZEROED] + count[HP_FRAME_FREE_DIRTY];

	if (count[HP_FRAME_ZEROING])
		return broken(error, "frames that are being zeroed while nothing runs", 0, count[HP_FRAME_ZEROING], 0);
	if (uncommitted + promised.frames != is_free_now)
		return broken(error, "uncommitted and reserved frames", uncommitted, uncommitted + promised.frames,
		              is_free_now);
	if (base_uncommitted + promised.base != count[HP_FRAME_ABSENT])
		return broken(error, "uncommitted and reserved places for base pages", base_uncommitted,
		              base_uncommitted + promised.base, count[HP_FRAME_ABSENT]);
	return 0;
}

/* Fills an error of ours: the caller's may lie in lazy memory, and signals are blocked. */
static int check_pool(struct hp_thread *t, hp_error *error)
{
	struct hp_pool_view *view = t->pool;
	uint64_t count[HP_FRAME_STATES] = {0};
	struct hp_promised promised = hp_pool_promised(t);
	sigset_t saved;
	int result;

	if (hp_pool_verify_arena(view))
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE, "the header of the pool's control memory is damaged");
	hp_signals_block(&saved);
	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	hp_caches_drain_locked(view, &t->locker);
	result = check_frames(view, count, error);
	if (!result)
		result = check_regions(view, error);
	if (!result)
		result = check_sums(view, count, promised, error);
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
	hp_signals_restore(&saved);
	return result;
}

int hp_pool_check(hp_pool pool, hp_error *error)
{
	hp_error found = {.code = 0};
	struct hp_thread *t;
	int result = hp_pool_enter(pool.id, &t, error);

	if (result)
		return result;
	hp_pool_reap(t);
	hp_holes_settle(t);
	hp_workers_pause(t, HP_FUTEX_FOREVER);
	result = check_pool(t, &found);
	if (!result)
		result = hp_pool_check_layers(t, &found);
	hp_workers_resume(t);
	if (result && error)
		*error = found;
	return result;
}
