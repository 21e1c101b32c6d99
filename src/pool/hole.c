/* SPDX-License-Identifier: MIT */
#include "pool/hole.h"

#include "pool/base.h"
#include "pool/extent.h"
#include "pool/tenant.h"

#include <errno.h>

static bool is_hole(const struct hp_frame *frame)
{
	return hp_frame_state(hp_frame_load(frame)) == HP_FRAME_HOLE;
}

/* ---- punching --------------------------------------------------------------------------------------------------- */

/* Renews the kernel's reservation of frames in a row; returns how many it did not renew. */
static uint32_t renew(struct hp_pool_view *view, hp_frame_id first, uint32_t count)
{
	uint64_t offset;
	unsigned segment = hp_segment_of(view, first, &offset);

	if (!view->os->ops->segment_renew(view->os, view->segment[segment], offset, hp_bytes(count)))
		return 0;
	return count == 1 ? 1 : renew(view, first, count / 2) + renew(view, first + count / 2, count - count / 2);
}

/* Frames in a row are empty, whoever maps them. */
static void empty(struct hp_pool_view *view, hp_frame_id first, uint32_t count, uint64_t *uncovered)
{
	uint64_t offset;
	unsigned segment = hp_segment_of(view, first, &offset);

	bool base = hp_is_base(view, first);

	if ((base || view->shared->segment[segment].backing == HP_BACKING_HUGETLB) &&
	    !view->os->ops->segment_punch(view->os, view->segment[segment], offset, hp_bytes(count))) {
		if (base) {
			hp_huge_set(view, first, count, false);
			return;
		}
		*uncovered += renew(view, first, count);
		hp_direct_is_spoiled(view, first, count);
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		void *address = hp_direct(view, first + i);

		HP_ASSERT(address); /* frames that were used have been mapped by this pool before */
		view->os->ops->zero(view->os, address, HP_FRAME_SIZE);
	}
}

uint32_t hp_holes_punch(struct hp_thread *t, hp_frame_id first, uint32_t count, uint64_t *uncovered)
{
	struct hp_pool_view *view = t->pool;
	uint32_t made = 0;

	/* They say that they are holes before they are empty: what a hole holds is nobody's. */
	for (uint32_t i = 0; i < count; i++) {
		uint64_t word = hp_frame_load(&view->frames[first + i]);

		if (hp_frame_state(word) != HP_FRAME_USED)
			continue;
		hp_frame_punch(&view->frames[first + i]);
		made++;
	}
	empty(view, first, count, uncovered);
	return made;
}

bool hp_hole_refill(struct hp_thread *t, hp_frame_id frame, int *result)
{
	struct hp_pool_view *view = t->pool;
	uint64_t word = hp_frame_load(&view->frames[frame]);
	void *address;

	*result = 0;
	if (hp_frame_state(word) != HP_FRAME_HOLE)
		return false;
	address = hp_direct(view, frame);
	*result = !address                  ? -ENOMEM
	          : hp_is_base(view, frame) ? 0
	                                    : view->os->ops->populate(view->os, address, HP_FRAME_SIZE);
	return !*result &&
	       atomic_compare_exchange_strong(&view->frames[frame].word, &word,
	                                      hp_frame_word(HP_FRAME_USED, hp_frame_owner(word), hp_frame_page(word)));
}

/* ---- without a file --------------------------------------------------------------------------------------------- */

/* A place for base pages needs no memory to be free. */
static void abandon_base(struct hp_thread *t, hp_frame_id first, uint32_t count, uint32_t tenant)
{
	hp_base_give(t, first, count);
	hp_tenant_uncharge_base(t, tenant, count);
}

void hp_frames_abandon(struct hp_thread *t, hp_frame_id first, uint32_t count, uint32_t tenant)
{
	struct hp_pool_view *view = t->pool;

	if (hp_is_base(view, first)) {
		abandon_base(t, first, count, tenant);
		return;
	}

	for (uint32_t i = 0, run; i < count; i += run) {
		bool hole = is_hole(&view->frames[first + i]);

		for (run = 1; i + run < count && is_hole(&view->frames[first + i + run]) == hole; run++)
			;
		if (!hole) {
			hp_release(t, first + i, run);
			hp_tenant_uncharge(t, tenant, run);
			continue;
		}
		atomic_fetch_add(&view->shared->homeless, run);
		for (uint32_t h = 0; h < run; h++)
			atomic_store(&view->frames[first + i + h].word,
			             hp_frame_word(HP_FRAME_HOLE, HP_OWNER_HOMELESS | tenant, 0));
	}
}

/* One homeless hole, which is nobody's or in the hands of a dead thread, becomes ours. */
static bool claim(struct hp_thread *t, struct hp_frame *frame)
{
	uint64_t word = hp_frame_load(frame);
	uint32_t owner = hp_frame_owner(word);

	if (hp_frame_state(word) != HP_FRAME_HOLE || owner < HP_OWNER_HOMELESS)
		return false;
	if (hp_frame_page(word) && !hp_owner_is_gone(&t->pool->locks, hp_frame_page(word)))
		return false;
	return atomic_compare_exchange_strong(&frame->word, &word,
	                                      hp_frame_word(HP_FRAME_HOLE, owner, t->locker.owner));
}

static void settle(struct hp_thread *t, hp_frame_id frame)
{
	struct hp_pool_view *view = t->pool;
	void *address = hp_direct(view, frame);
	uint32_t owner = hp_frame_owner(hp_frame_load(&view->frames[frame]));

	if (!address || view->os->ops->populate(view->os, address, HP_FRAME_SIZE)) {
		atomic_store(&view->frames[frame].word, hp_frame_word(HP_FRAME_HOLE, owner, 0));
		return;
	}
	hp_frame_change(&view->frames[frame], HP_FRAME_HOLE, hp_frame_word(HP_FRAME_FREE_DIRTY, 0, 0));
	atomic_fetch_sub(&view->shared->homeless, 1);
	hp_put(t, frame, 1);
	hp_tenant_uncharge(t, owner & ~HP_OWNER_HOMELESS, 1);
}

void hp_holes_settle(struct hp_thread *t)
{
	sigset_t saved;

	if (!atomic_load(&t->pool->shared->homeless))
		return;
	hp_signals_block(&saved);
	for (hp_frame_id frame = 0; frame < hp_pool_frames_max(t->pool); frame++)
		if (claim(t, &t->pool->frames[frame]))
			settle(t, frame);
	hp_signals_restore(&saved);
}
