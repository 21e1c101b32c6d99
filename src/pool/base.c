/* SPDX-License-Identifier: MIT */
#include "pool/base.h"

#include "base/bitmap.h"
#include "base/error.h"

#include <errno.h>
#include <sched.h>

void hp_base_init(struct hp_pool_view *view)
{
	hp_frame_id first = hp_base_first(view);
	uint32_t places = hp_pool_frames_max(view) - first;

	if (!places)
		return;
	hp_bitmap_set(view->free_map, first, places);
	view->shared->base_cursor = first;
	atomic_store(&view->shared->base_uncommitted, places);
	atomic_store(&view->shared->segment[view->shared->segments - 1].filled, places);
}

/* ---- promises --------------------------------------------------------------------------------------------------- */

int hp_base_commit(struct hp_pool_view *view, uint64_t places, hp_error *error)
{
	_Atomic uint64_t *uncommitted = &view->shared->base_uncommitted;
	uint64_t have = atomic_load(uncommitted);

	if (!hp_pool_has_room(view->os, places, error))
		return -ENOMEM;
	do {
		if (have < places)
			return hp_fail(error, -ENOMEM, HP_LIMIT_POOL,
			               "%lu places for base pages are needed and the pool has %lu left; give it a "
			               "larger max_size or free something",
			               places, have);
	} while (!atomic_compare_exchange_weak(uncommitted, &have, have - places));
	return 0;
}

void hp_base_uncommit(struct hp_pool_view *view, uint64_t places)
{
	atomic_fetch_add(&view->shared->base_uncommitted, places);
}

/* ---- taking and giving back ------------------------------------------------------------------------------------- */

/* Takes what is free at `at`, up to `want`. */
static uint32_t take_at_locked(struct hp_pool_view *view, hp_frame_id at, uint32_t want)
{
	uint64_t end = hp_min((uint64_t)at + want, hp_pool_frames_max(view));
	uint32_t got = (uint32_t)(hp_bitmap_next_clear(view->free_map, at, end) - at);

	hp_bitmap_clear(view->free_map, at, got);
	view->shared->base_cursor = at + got;
	return got;
}

/* The first place that is free, from where the last one was found on, and then from the start. */
static uint64_t next_free_locked(const struct hp_pool_view *view)
{
	uint64_t end = hp_pool_frames_max(view), cursor = view->shared->base_cursor;
	uint64_t found = hp_bitmap_next_set(view->free_map, cursor, end);

	return found != HP_BITMAP_NONE ? found : hp_bitmap_next_set(view->free_map, hp_base_first(view), cursor);
}

uint32_t hp_base_take(struct hp_thread *t, hp_frame_id hint, uint32_t want, hp_frame_id *first)
{
	struct hp_pool_view *view = t->pool;
	uint32_t got = 0;

	while (!got) {
		uint64_t at = hint;

		hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
		if (hint == HP_NO_FRAME || hint >= hp_pool_frames_max(view) || !hp_bitmap_test(view->free_map, hint))
			at = next_free_locked(view);
		if (at != HP_BITMAP_NONE)
			got = take_at_locked(view, (hp_frame_id)at, want);
		hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
		*first = (hp_frame_id)at;
		if (!got)
			sched_yield(); /* promised, and on the way back from who had it */
	}
	return got;
}

bool hp_base_is_free(struct hp_thread *t, hp_frame_id place)
{
	bool is_free;

	hp_mutex_lock(&t->pool->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	is_free = hp_bitmap_test(t->pool->free_map, place);
	hp_mutex_unlock(&t->pool->shared->extents_lock, &t->locker);
	return is_free;
}

int hp_base_backed(const struct hp_pool_view *view, hp_frame_id place, unsigned char there[HP_BASE_PAGES])
{
	uint64_t offset;
	unsigned segment = hp_segment_of(view, place, &offset);

	return view->os->ops->backed(view->os, view->segment[segment], offset, HP_FRAME_SIZE, there);
}

void hp_base_give(struct hp_thread *t, hp_frame_id first, uint32_t count)
{
	struct hp_pool_view *view = t->pool;
	uint64_t offset;
	unsigned segment = hp_segment_of(view, first, &offset);

	/* What cannot be given back to the kernel must read as zeroes for who has the place next. */
	if (view->os->ops->segment_punch(view->os, view->segment[segment], offset, hp_bytes(count)))
		for (uint32_t i = 0; i < count; i++)
			if (hp_direct(view, first + i))
				view->os->ops->zero(view->os, hp_direct(view, first + i), HP_FRAME_SIZE);
	hp_huge_set(view, first, count, false);
	for (uint32_t i = 0; i < count; i++)
		atomic_store_explicit(&view->frames[first + i].word, hp_frame_word(HP_FRAME_ABSENT, 0, 0),
		                      memory_order_release);
	hp_mutex_lock(&view->shared->extents_lock, &t->locker, HP_CLASS_EXTENTS);
	hp_bitmap_set(view->free_map, first, count);
	hp_mutex_unlock(&view->shared->extents_lock, &t->locker);
}

/* ---- what the kernel has made huge ------------------------------------------------------------------------------ */

static _Atomic uint64_t *huge_word(const struct hp_pool_view *view, hp_frame_id frame)
{
	return &view->huge_map[frame / 64];
}

void hp_huge_set(struct hp_pool_view *view, hp_frame_id first, uint32_t count, bool huge)
{
	for (uint64_t word = first / 64; count && word <= (first + count - 1) / 64; word++) {
		uint64_t mask = hp_bitmap_mask(word, first, count);

		if (huge)
			atomic_fetch_or(&view->huge_map[word], mask);
		else if (atomic_load_explicit(&view->huge_map[word], memory_order_relaxed) & mask)
			atomic_fetch_and(&view->huge_map[word], ~mask);
	}
}

bool hp_huge_is(const struct hp_pool_view *view, hp_frame_id frame)
{
	return atomic_load(huge_word(view, frame)) >> frame % 64 & 1;
}
