/* SPDX-License-Identifier: MIT */
#include "collapse/collapse.h"

#include "base/error.h"
#include "pool/base.h"
#include "pool/extent.h"

#include <errno.h>

const struct hp_pool_hooks hp_collapse_hooks = {
	.recover = hp_move_recover, .start = hp_collapser_start, .stop = hp_collapser_stop};

/* ---- in place --------------------------------------------------------------------------------------------------- */

static bool is_shared_memory(const struct hp_pool_view *view, hp_frame_id frame)
{
	uint64_t offset;

	return view->shared->segment[hp_segment_of(view, frame, &offset)].backing != HP_BACKING_HUGETLB;
}

/* The file lock is held for reading. The kernel wants all base pages to be there. */
static enum hp_move_result collapse_locked(struct hp_thread *t, hp_frame_id frame, int *error)
{
	struct hp_pool_view *view = t->pool;
	void *address = hp_direct(view, frame);

	if (!is_shared_memory(view, frame) || hp_huge_is(view, frame) ||
	    hp_frame_state(hp_frame_load(&view->frames[frame])) != HP_FRAME_USED)
		return HP_MOVE_NOTHING;
	*error = address ? view->os->ops->populate(view->os, address, HP_FRAME_SIZE) : -ENOMEM;
	if (!*error)
		*error = view->os->ops->collapse(view->os, address, HP_FRAME_SIZE);
	if (*error)
		return HP_MOVE_FAILED;
	hp_huge_set(view, frame, 1, true);
	atomic_fetch_add_explicit(&view->shared->collapse.in_place, 1, memory_order_relaxed);
	return HP_MOVED;
}

enum hp_move_result hp_collapse_in_place(struct hp_thread *t, struct hp_file_use use, uint32_t page, int *error)
{
	enum hp_move_result result = HP_MOVE_NOTHING;
	hp_frame_id frame;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
	frame = page < atomic_load(&use.record->pages) ? hp_index_lookup(hp_file_index(t->pool, use.record), page)
	                                               : HP_NO_FRAME;
	if (frame != HP_NO_FRAME)
		result = collapse_locked(t, frame, error);
	hp_biased_read_unlock(&use.record->lock, &t->locker);
	hp_signals_restore(&saved);
	return result;
}

/* ---- hp_collapse and hp_split ----------------------------------------------------------------------------------- */

/* What an address is of; a reference to the file keeps it. */
struct place {
	struct hp_thread *t;
	struct hp_file_use use;
	uint32_t page;
};

/* The page at an address, which is inside the same mapping as `end`, or its last. */
static int find_place(uintptr_t address, uintptr_t end, struct place *place)
{
	struct hp_mapping *m;
	int result = -EINVAL;

	hp_space_enter();
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	m = hp_range_map_find(&hp_space.ranges, address);
	if (m && !m->gone && end <= m->start + m->length)
		result = hp_thread_enter(m->pool, &place->t);
	if (!result) {
		place->use = hp_mapping_file(m);
		place->page = m->first + (uint32_t)hp_frames(address - m->start);
		hp_file_get(m->pool, m->file);
	}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	hp_space_leave();
	return result;
}

static int explain(enum hp_move_result result, int reason, const struct place *place, hp_error *error)
{
	uint32_t page = place->page;

	switch (result) {
	case HP_MOVED:
	case HP_MOVE_NOTHING:
		return 0;
	case HP_MOVE_PINNED:
		return hp_fail(error, -EBUSY, HP_LIMIT_PINNED, "page %u of the file is pinned; hp_unpin() it first",
		               page);
	case HP_MOVE_SHARED:
		return hp_fail(error, -EBUSY, HP_LIMIT_NONE,
		               "page %u of the file is mapped by another process, or is just being mapped or "
		               "unmapped (errno %d of the kernel)",
		               page, -reason);
	case HP_MOVE_GAVE_UP:
		return hp_fail(error, -EAGAIN, HP_LIMIT_NONE, "page %u of the file changed meanwhile; try again", page);
	case HP_MOVE_NO_MEMORY:
		return hp_fail(error, -ENOMEM, HP_LIMIT_POOL,
		               "no frame of the pool is free for page %u of the file, and the kernel does not make its "
		               "memory huge where it is (errno %d)",
		               page, -reason);
	case HP_MOVE_FAILED:
		break;
	}
	return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "the kernel refuses to change page %u of the file (errno %d)",
	               page, -reason);
}

static bool is_movable(const struct place *place)
{
	return place->use.record->flags & HP_FILE_MOVABLE;
}

static int collapse_page(struct place *place, hp_error *error)
{
	enum hp_move_result moved = HP_MOVE_NOTHING, in_place;
	int reason = 0;

	if (is_movable(place))
		moved = hp_move_page(place->t, place->use, place->page, HP_MOVE_COLLAPSE);
	if (moved == HP_MOVE_NO_MEMORY && !hp_pool_promise(place->t, 1, NULL)) {
		/* It was in a worker's hands, or a dead process's. */
		hp_uncommit(place->t->pool, 1);
		moved = hp_move_page(place->t, place->use, place->page, HP_MOVE_COLLAPSE);
	}
	if (moved == HP_MOVED || moved == HP_MOVE_PINNED || moved == HP_MOVE_GAVE_UP)
		return explain(moved, 0, place, error);
	in_place = hp_collapse_in_place(place->t, place->use, place->page, &reason);
	if (in_place == HP_MOVED || moved == HP_MOVE_NOTHING || in_place == HP_MOVE_NOTHING)
		return explain(in_place, reason, place, error);
	return explain(moved, reason, place, error);
}

static int split_page(struct place *place, hp_error *error)
{
	enum hp_move_result result;

	if (!is_movable(place))
		return hp_fail(error, -EPERM, HP_LIMIT_NONE, "the file was not made with HP_FILE_MOVABLE");
	result = hp_move_page(place->t, place->use, place->page, HP_MOVE_SPLIT);
	if (result == HP_MOVE_NO_MEMORY)
		return hp_fail(error, -ENOMEM, HP_LIMIT_TABLE,
		               "no place for base pages is left for page %u of the file, or no memory; give the pool a "
		               "larger max_size",
		               place->page);
	return explain(result, 0, place, error);
}

static int for_each_page(void *address, uint64_t length, int (*change)(struct place *place, hp_error *error),
                         hp_error *error)
{
	uintptr_t start = (uintptr_t)address, end = start + length;
	int result = 0;

	if (!length)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "length is 0");
	if (!hp_is_frame_aligned(start) || !hp_is_frame_aligned(length) || end < start)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "address and length must be multiples of 2 MiB");
	for (uintptr_t at = start; at < end && !result; at += HP_FRAME_SIZE) {
		struct place place;

		result = find_place(at, at == start ? end : at + HP_FRAME_SIZE, &place);
		if (result)
			return hp_fail(error, result, HP_LIMIT_NONE, "0x%lx is not inside one mapping of hugepool", at);
		result = change(&place, error);
		hp_file_put(place.t, place.use.number);
	}
	return result;
}

int hp_collapse(void *address, uint64_t length, hp_error *error)
{
	return for_each_page(address, length, collapse_page, error);
}

int hp_split(void *address, uint64_t length, hp_error *error)
{
	return for_each_page(address, length, split_page, error);
}

/* ---- figures ---------------------------------------------------------------------------------------------------- */

int hp_collapse_stats_get(hp_pool pool, hp_collapse_stats *stats)
{
	struct hp_collapse_books *books;
	struct hp_thread *t;
	int result = hp_pool_enter(pool.id, &t, NULL);

	if (result)
		return result;
	if (stats->struct_size < sizeof(*stats))
		return -EINVAL;
	books = &t->pool->shared->collapse;
	*stats = (hp_collapse_stats){
		.struct_size = sizeof(*stats),
		.relock = t->pool->shared->collapse_relock,
		.collapsed = atomic_load(&books->collapsed),
		.in_place = atomic_load(&books->in_place),
		.split = atomic_load(&books->split),
		.rechecked = atomic_load(&books->rechecked),
		.gave_up = atomic_load(&books->gave_up),
		.busy = atomic_load(&books->busy),
		.no_frame = atomic_load(&books->no_frame),
		.misused = atomic_load(&books->misused),
		.lock_ns = atomic_load(&books->lock_ns),
		.protect_ns = atomic_load(&books->protect_ns),
		.copy_ns = atomic_load(&books->copy_ns),
		.switch_ns = atomic_load(&books->switch_ns),
		.free_ns = atomic_load(&books->free_ns),
	};
	hp_histogram_read(&books->collapse, &stats->collapse);
	hp_histogram_read(&books->pause, &stats->pause);
	return 0;
}
