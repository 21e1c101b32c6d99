/* SPDX-License-Identifier: MIT */
/*
 * Mapping over what is there. The new mapping is made at a scratch address and moved, since a replacement in place
 * that the kernel refuses would leave a hole where live data was. A touch that finds it before it has arrived waits.
 */
#include "space/cut.h"

#include "base/error.h"
#include "base/log.h"

#include <errno.h>

/* The mappings that have some of the range, linked by retired_link, and what is left of the first and the last. */
struct replaced {
	struct hp_mapping *first;
	struct hp_cut left, right;
};

/* The piece that stays of a mapping on one side; nothing if there are no pages. `most` kernel mappings may be its. */
static int keep_side(struct hp_thread *t, struct hp_mapping *old, uint32_t from, uint32_t end, uint64_t most,
                     struct hp_cut *side)
{
	uint64_t share[3];
	int result;

	if (from >= end)
		return 0;
	*side = (struct hp_cut){.old = old};
	result = hp_cut_make_piece(t, side, from, end, old->prot);
	if (!result)
		result = hp_cut_take_maps(side, most, share);
	if (!result)
		hp_cut_share_maps(side, share);
	return result;
}

/* What is left of a mapping outside of [start, end). *t may be of another pool. */
static int keep_rest(struct hp_mapping *old, uintptr_t start, uintptr_t end, struct replaced *replaced)
{
	uintptr_t stop = old->start + old->length;
	uint32_t from = start > old->start ? old->first + (uint32_t)hp_frames(start - old->start) : old->first;
	uint32_t to = end < stop ? old->first + (uint32_t)hp_frames(end - old->start) : hp_mapping_end(old);
	uint64_t most = old->maps;
	struct hp_thread *t;
	int result = hp_thread_enter(old->pool, &t);

	if (!result)
		result = keep_side(t, old, old->first, from, most, &replaced->left);
	if (!result)
		result = keep_side(t, old, to, hp_mapping_end(old), most, &replaced->right);
	return result;
}

/* None of the range is on the way to its place any more. The space lock is held. */
static void wait_locked(uintptr_t start, uintptr_t end)
{
	struct hp_range range;

	for (uintptr_t at = start; at < end && hp_range_map_next(&hp_space.ranges, at, &range) && range.start < end;) {
		bool moving = atomic_load(&((struct hp_mapping *)range.value)->moving);

		if (moving)
			hp_space_wait_locked();
		at = moving ? start : range.end;
	}
}

/* Finds all that will be replaced. The space lock is held. */
static int find_locked(uintptr_t start, uintptr_t end, struct replaced *replaced)
{
	struct hp_range range;
	int result = start < end ? 0 : -EINVAL; /* beyond the last address */

	for (uintptr_t at = start; at < end && !result; at = range.end) {
		struct hp_mapping *m;

		if (!hp_range_map_next(&hp_space.ranges, at, &range) || range.start > at)
			return -EINVAL;
		m = range.value;
		if (!hp_space_may_be_cut(m, start) || !hp_space_may_be_cut(m, end))
			return -EINVAL;
		m->retired_link = replaced->first;
		replaced->first = m;
		result = keep_rest(m, start, end, replaced);
	}
	return result;
}

static int exchange_locked(struct hp_mapping *m, const struct replaced *replaced)
{
	struct hp_mapping *all[] = {replaced->left.pieces ? replaced->left.piece[0] : NULL, m,
	                            replaced->right.pieces ? replaced->right.piece[0] : NULL};
	struct hp_range range[3];
	unsigned count = 0;

	for (unsigned i = 0; i < 3; i++)
		if (all[i])
			range[count++] = (struct hp_range){all[i]->start, all[i]->start + all[i]->length, all[i]};
	return hp_range_map_exchange(&hp_space.ranges, m->start, m->start + m->length, range, count);
}

static void give_pieces_back(struct hp_cut *cut)
{
	struct hp_thread *t;

	if (!cut->pieces)
		return;
	cut->old->maps += cut->piece[0]->maps;
	cut->piece[0]->maps = 0;
	if (!hp_thread_enter(cut->old->pool, &t))
		hp_cut_drop_pieces(t, cut);
}

/* From here on faults find the new mapping, at its final address. */
static int publish(struct hp_mapping *m, uintptr_t start, struct replaced *replaced)
{
	uintptr_t scratch = m->start;
	int result;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	wait_locked(start, start + m->length);
	result = find_locked(start, start + m->length, replaced);
	m->start = start;
	atomic_store(&m->moving, true);
	if (!result)
		result = exchange_locked(m, replaced);
	if (result) {
		m->start = scratch;
		give_pieces_back(&replaced->left);
		give_pieces_back(&replaced->right);
	} else {
		hp_space.cuts++;
		hp_pins_drop_locked(m->start, m->start + m->length);
		for (unsigned i = 0; i < 2; i++) {
			const struct hp_cut *cut = i ? &replaced->right : &replaced->left;

			if (cut->pieces && cut->old->touched)
				cut->old->touched->pieces++;
		}
	}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	return result;
}

/* One kernel mapping of the new memory goes to its place. */
static void move(struct hp_mapping *m, uintptr_t scratch, uint32_t page, uint32_t pages, hp_frame_id frame)
{
	struct hp_os *os = m->pool->os;
	void *from = (void *)(scratch + hp_bytes(page - m->first)), *to = hp_mapping_at(m, page);
	int result = os->ops->move(os, from, to, hp_bytes(pages));

	if (!result)
		return;
	/* The kernel may have taken away already what was there. */
	result = frame == HP_NO_FRAME ? os->ops->vacate(os, to, hp_bytes(pages))
	                              : hp_mapping_place(m, page, pages, frame, HP_OS_MAP_REPLACE);
	if (result)
		hp_log(HP_LOG_ERROR, "pages %u to %u of a new mapping are not there: the kernel refuses (errno %d)",
		       page, page + pages - 1, -result);
	os->ops->unmap(os, from, hp_bytes(pages));
}

static void move_all(struct hp_thread *t, struct hp_mapping *m, uintptr_t scratch)
{
	if (m->touched) {
		move(m, scratch, m->first, m->pages, HP_NO_FRAME);
		return;
	}
	for (uint32_t page = m->first, run; page < hp_mapping_end(m); page += run) {
		hp_frame_id frame;

		run = hp_mapping_run(t, m, page, &frame);
		if (!run)
			return; /* cut meanwhile: what lies beyond the end is done when we catch up */
		move(m, scratch, page, run, frame);
	}
}

/* Its pages in [start, end) are somebody else's now. */
static void retire(struct hp_mapping *old, uintptr_t start, uintptr_t end)
{
	uintptr_t stop = old->start + old->length, from = start > old->start ? start : old->start;
	uint32_t page = old->first + (uint32_t)hp_frames(from - old->start);
	uint32_t last = old->first + (uint32_t)hp_frames((end < stop ? end : stop) - old->start);
	struct hp_thread *t;

	if (old->touched)
		hp_touched_clear(old->touched, page, last);
	if (!hp_thread_enter(old->pool, &t))
		hp_private_forget(t, old, page, last);
	hp_space_retire(old);
}

int hp_space_replace(struct hp_thread *t, struct hp_mapping *m, uintptr_t start, hp_error *error)
{
	struct replaced replaced = {.first = NULL};
	uintptr_t scratch = m->start, end = start + m->length;
	int result = publish(m, start, &replaced);

	if (result) {
		m->pool->os->ops->unmap(m->pool->os, (void *)scratch, m->length);
		return result == -EINVAL
		               ? hp_fail(error, result, HP_LIMIT_ADDRESS,
		                         "HP_MAP_REPLACE: not all of %lu bytes at 0x%lx is mapped by hugepool",
		                         m->length, start)
		               : hp_fail(error, result, HP_LIMIT_MEMORY,
		                         "no memory or no record to cut the mappings that are there (errno %d)",
		                         -result);
	}
	hp_space_reclaim(NULL);
	if (replaced.left.pieces)
		hp_cut_lower_pieces(&replaced.left);
	if (replaced.right.pieces)
		hp_cut_lower_pieces(&replaced.right);
	move_all(t, m, scratch);
	hp_vma_at(t->pool, m->vma)->address = m->start;
	atomic_store(&m->moving, false); /* from here on others may unmap it */
	for (struct hp_mapping *old = replaced.first, *next; old; old = next) {
		next = old->retired_link;
		retire(old, start, end);
	}
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	hp_space.cuts--;
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	return 0;
}
