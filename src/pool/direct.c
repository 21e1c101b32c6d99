/* SPDX-License-Identifier: MIT */
/*
 * The direct map: the pool's own mapping of its memory, where frames are zeroed, read and written by us and extents of
 * hp_alloc live. Each region is mapped in one piece, aligned and with the flags of ready mappings: being
 * populated, it is what the kernel takes the shared page tables from.
 *
 * The process that fills the pool has all of it; a child forked during the fill maps the rest when it comes to it.
 */
#include "pool/pool.h"

#include <errno.h>

unsigned hp_segment_of(const struct hp_pool_view *view, hp_frame_id frame, uint64_t *offset)
{
	uint32_t frames = hp_segment_frames(view->shared);

	*offset = hp_bytes(frame % frames);
	return frame / frames;
}

static char *address_of(const struct hp_pool_view *view, hp_frame_id frame)
{
	return view->direct + hp_bytes(frame);
}

/*
 * A replacement that the kernel refuses leaves a hole, where somebody else's mapping may come, which we would unmap
 * with the pool. So the memory is mapped at a free address, and moved when it is there.
 */
int hp_direct_map(struct hp_pool_view *view, uint32_t region, uint32_t frames)
{
	struct hp_os *os = view->os;
	hp_frame_id first = region * HP_REGION_FRAMES;
	uint64_t offset;
	hp_segment segment = view->segment[hp_segment_of(view, first, &offset)];
	unsigned flags;
	void *scratch;
	int result;

	do {
		result = os->ops->reserve(os, hp_bytes(frames), hp_bytes(hp_unit(view)), 0, &scratch);
		if (result)
			return result;
		/* What could not be unmapped is still ours, and is replaced. */
		flags = os->ops->unmap(os, scratch, hp_bytes(frames)) ? HP_OS_MAP_REPLACE : 0;
		result = os->ops->map(os, scratch, hp_bytes(frames), HP_PROT_READ | HP_PROT_WRITE, segment, offset,
		                      flags);
	} while (result == -EEXIST); /* another thread's mmap was faster */
	if (result)
		return result;
	result = os->ops->move(os, scratch, address_of(view, first), hp_bytes(frames));
	if (result)
		os->ops->unmap(os, scratch, hp_bytes(frames));
	else
		atomic_store_explicit(&view->direct_frames[region], frames, memory_order_release);
	return result;
}

void *hp_direct(struct hp_pool_view *view, hp_frame_id frame)
{
	uint32_t region = frame / HP_REGION_FRAMES, in_region = frame % HP_REGION_FRAMES;

	if (in_region >= atomic_load_explicit(&view->direct_frames[region], memory_order_acquire)) {
		uint64_t offset;
		const struct hp_segment_record *segment = &view->shared->segment[hp_segment_of(view, frame, &offset)];
		uint64_t filled = atomic_load_explicit(&segment->filled, memory_order_acquire);
		uint64_t before = (uint64_t)(region - segment->first_region) * HP_REGION_FRAMES;

		/* Threads may do this at the same time: they put the same memory at the same place. */
		if (filled < before + in_region + 1 ||
		    hp_direct_map(view, region, (uint32_t)hp_min(filled - before, HP_REGION_FRAMES)))
			return NULL;
	}
	return address_of(view, frame);
}

/* ---- page tables that are shared -------------------------------------------------------------------------------- */

void hp_direct_is_spoiled(struct hp_pool_view *view, hp_frame_id first, uint32_t count)
{
	for (uint32_t r = first / HP_REGION_FRAMES; r <= (first + count - 1) / HP_REGION_FRAMES; r++)
		atomic_store(&view->regions[r].spoiled, 1);
}

/* Memory of a hole would come back by that. */
static bool may_be_touched(const struct hp_pool_view *view, hp_frame_id frame)
{
	enum hp_frame_state state = hp_frame_state(hp_frame_load(&view->frames[frame]));

	return state != HP_FRAME_ABSENT && state != HP_FRAME_HOLE;
}

/*
 * The kernel takes the page table that others share from a mapping that has one: after a punch nobody has it, and
 * every new mapping of the region costs a fault for each of its pages until the direct map's is filled again.
 */
static void repair_region(struct hp_pool_view *view, uint32_t region)
{
	hp_frame_id first = region * HP_REGION_FRAMES, end = first + HP_REGION_FRAMES;

	for (hp_frame_id f = first, run; f < end; f += run ? run : 1) {
		for (run = 0; f + run < end && may_be_touched(view, f + run); run++)
			;
		if (run && hp_direct(view, f + run - 1))
			view->os->ops->touch(view->os, address_of(view, f), hp_bytes(run));
	}
}

void hp_direct_repair(struct hp_pool_view *view, hp_frame_id first, uint32_t count)
{
	for (uint32_t r = first / HP_REGION_FRAMES; r <= (first + count - 1) / HP_REGION_FRAMES; r++)
		if (atomic_load_explicit(&view->regions[r].spoiled, memory_order_relaxed) &&
		    atomic_exchange(&view->regions[r].spoiled, 0))
			repair_region(view, r);
}
