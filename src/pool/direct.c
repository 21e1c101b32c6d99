/* SPDX-License-Identifier: MIT */
/*
 * The direct map: the pool's own mapping of its memory, where frames are zeroed, read and written by us and extents of
 * hp_alloc live. Each region is mapped in one piece, aligned and with the flags of ready mappings: being
 * populated, it is what the kernel takes the shared page tables from.
 *
 * The process that fills the pool has all of it; a child forked during the fill maps the rest when it comes to it.
 */
#include "pool/pool.h"

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

static int map_region(struct hp_pool_view *view, uint32_t region, uint32_t frames)
{
	hp_frame_id first = region * HP_REGION_FRAMES;
	uint64_t offset;
	unsigned segment = hp_segment_of(view, first, &offset);
	int result =
		view->os->ops->map(view->os, address_of(view, first), hp_bytes(frames), HP_PROT_READ | HP_PROT_WRITE,
	                           view->segment[segment], offset, HP_OS_MAP_REPLACE);

	if (!result)
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
		    map_region(view, region, (uint32_t)hp_min(filled - before, HP_REGION_FRAMES)))
			return NULL;
	}
	return address_of(view, frame);
}
