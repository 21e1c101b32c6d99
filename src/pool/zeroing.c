/* SPDX-License-Identifier: MIT */
/* Zeroing by callers, who need a frame now. Workers, who keep a stock, are in workers.c. */
#include "pool/pool.h"

uint32_t hp_frames_make_zeroed(struct hp_thread *t, hp_frame_id first, uint32_t count, uint32_t *most)
{
	struct hp_pool_view *view = t->pool;
	uint32_t ready = 0, zeroed = 0;

	for (; ready < count; ready++) {
		struct hp_frame *frame = &view->frames[first + ready];
		void *address;

		if (hp_frame_state(hp_frame_load(frame)) == HP_FRAME_FREE_ZEROED)
			continue;
		address = zeroed < *most ? hp_direct(view, first + ready) : NULL;
		if (!address)
			break;
		hp_frame_start_zeroing(frame);
		view->os->ops->zero(view->os, address, HP_FRAME_SIZE);
		hp_frame_finish_zeroing(frame);
		zeroed++;
	}
	*most -= zeroed;
	if (zeroed)
		atomic_fetch_add_explicit(&view->shared->zeroed_by_caller, zeroed, memory_order_relaxed);
	return ready;
}
