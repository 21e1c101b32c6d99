/* SPDX-License-Identifier: MIT */
#include "file/remove.h"

#include "file/lock.h"
#include "file/reserve.h"
#include "pool/base.h"
#include "pool/extent.h"
#include "pool/hole.h"

#include <errno.h>

/* A run of frames in the index that lies in one segment. False: there is none in [*page, end). */
static bool next_run(struct hp_thread *t, const struct hp_file_record *file, uint32_t *page, uint32_t end,
                     hp_frame_id *frame, uint32_t *run)
{
	struct hp_index index = hp_file_index(t->pool, file);

	*page = hp_index_next_page(index, *page, end);
	if (*page == end)
		return false;
	*frame = hp_index_lookup(index, *page);
	*run = (uint32_t)hp_min(hp_index_run(index, *page, end - *page), hp_segment_end(t->pool, *frame) - *frame);
	return true;
}

/* ---- what nobody maps ------------------------------------------------------------------------------------------- */

static void recycle_run(struct hp_thread *t, struct hp_file_record *file, uint32_t page, uint32_t run,
                        hp_frame_id frame)
{
	uint32_t holes = 0;

	for (uint32_t i = 0; i < run; i++)
		holes += hp_frame_state(hp_frame_load(&t->pool->frames[frame + i])) == HP_FRAME_HOLE;
	hp_index_erase(hp_file_index(t->pool, file), hp_pgoff(page), hp_pgoff(page + run));
	atomic_fetch_sub_explicit(&file->present, run - holes, memory_order_relaxed);
	atomic_fetch_sub_explicit(&file->holes, holes, memory_order_relaxed);
	if (hp_is_base(t->pool, frame))
		atomic_fetch_sub_explicit(&file->base, run, memory_order_relaxed);
	hp_reserve_forget(t, file, page, run);
	hp_frames_abandon(t, frame, run, file->tenant);
}

static int recycle(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	hp_frame_id frame;
	uint32_t run;

	if (hp_index_divide(index, hp_pgoff(first), &t->locker) || hp_index_divide(index, hp_pgoff(end), &t->locker))
		return -ENOMEM;
	for (uint32_t page = first; next_run(t, use.record, &page, end, &frame, &run); page += run)
		recycle_run(t, use.record, page, run, frame);
	hp_reserve_drop(t, use.record, first, end - first);
	hp_index_prune(index, hp_pgoff(first), hp_pgoff(end), &t->locker);
	return 0;
}

/* ---- what somebody maps ----------------------------------------------------------------------------------------- */

static void punch(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end, uint64_t *uncovered)
{
	hp_frame_id frame;
	uint32_t run;

	for (uint32_t page = first; next_run(t, use.record, &page, end, &frame, &run); page += run) {
		uint32_t made = hp_holes_punch(t, frame, run, uncovered);

		atomic_fetch_sub_explicit(&use.record->present, made, memory_order_relaxed);
		atomic_fetch_add_explicit(&use.record->holes, made, memory_order_relaxed);
	}
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

int hp_file_remove_locked(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end,
                          uint64_t *uncovered)
{
	int result = 0;

	for (uint32_t page = first, next; page < end && !result; page = next) {
		bool mapped;

		next = hp_vma_span_locked(t->pool, use.record, page, end, &mapped);
		if (mapped)
			punch(t, use, page, next, uncovered);
		else
			result = recycle(t, use, page, next);
	}
	return result;
}

/*
 * A part of [first, end), which ends where a node of the index may, so that the node is found empty; what is empty
 * costs nothing. Returns where to go on.
 */
static uint32_t part_of(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end)
{
	uint32_t part = hp_unit(t->pool) > HP_REMOVE_PART ? hp_unit(t->pool) : HP_REMOVE_PART;

	if (hp_index_next_page(hp_file_index(t->pool, use.record), first, end) == end)
		return end;
	return (uint32_t)hp_min(end, (uint64_t)(first | (part - 1)) + 1);
}

int hp_file_remove(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end, uint64_t *uncovered)
{
	int result = 0;

	while (first < end && !result) {
		sigset_t saved;
		uint32_t part;

		hp_signals_block(&saved);
		hp_file_modify_lock(t, use);
		part = part_of(t, use, first, end);
		result = hp_file_remove_locked(t, use, first, part, uncovered);
		hp_file_modify_unlock(t, use);
		hp_signals_restore(&saved);
		first = part;
	}
	return result;
}

bool hp_file_remove_beyond_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, int *result)
{
	uint32_t size = atomic_load(&use.record->pages), reach = atomic_load(&use.record->reach), part;
	uint64_t uncovered = 0; /* nobody has a right to touch them */

	/* Where the file ends may change between the parts. */
	*page = *page > size ? *page : size;
	*result = 0;
	if (*page >= reach)
		return false;
	part = part_of(t, use, *page, reach);
	*result = hp_file_remove_locked(t, use, *page, part, &uncovered);
	hp_reserve_drop(t, use.record, *page, part - *page);
	*page = part;
	return part < reach && !*result;
}

int hp_file_remove_beyond(struct hp_thread *t, struct hp_file_use use, uint32_t page)
{
	bool more;
	int result;

	do {
		sigset_t saved;

		hp_signals_block(&saved);
		hp_file_modify_lock(t, use);
		more = hp_file_remove_beyond_locked(t, use, &page, &result);
		hp_file_modify_unlock(t, use);
		hp_signals_restore(&saved);
	} while (more);
	return result;
}

/* Those that still map it may be behind: then it is theirs to give. */
void hp_file_reclaim(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t end)
{
	sigset_t saved;
	uint32_t page;

	if (!atomic_load(&use.record->holes) || end <= atomic_load(&use.record->pages))
		return;
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	page = atomic_load(&use.record->pages);
	page = page > first ? page : first;
	for (uint32_t next; page < end; page = next) {
		bool mapped;

		next = hp_vma_span_locked(t->pool, use.record, page, end, &mapped);
		if (!mapped && recycle(t, use, page, next))
			break; /* goes with the next change of size, or the file */
	}
	hp_file_modify_unlock(t, use);
	hp_signals_restore(&saved);
	hp_holes_settle(t);
}

void hp_file_remove_all(struct hp_thread *t, struct hp_file_use use)
{
	recycle(t, use, 0, atomic_load(&use.record->reach)); /* no run is divided: it cannot fail */
}
