/* SPDX-License-Identifier: MIT */
/* Zeroing by callers, who need a frame now. Workers, who keep a stock, are in workers.c. */
#include "pool/pool.h"

#include <errno.h>

int hp_frames_make_zeroed(struct hp_thread *t, hp_frame_id first, uint32_t count)
{
	struct hp_pool_view *view = t->pool;
	uint32_t zeroed = 0;
	int result = 0;

	for (hp_frame_id frame = first; frame < first + count; frame++) {
		void *address;

		if (hp_frame_state(hp_frame_load(&view->frames[frame])) == HP_FRAME_FREE_ZEROED)
			continue;
		address = hp_direct(view, frame);
		if (!address) {
			result = -ENOMEM;
			break;
		}
		hp_frame_start_zeroing(&view->frames[frame]);
		view->os->ops->zero(view->os, address, HP_FRAME_SIZE);
		hp_frame_finish_zeroing(&view->frames[frame]);
		zeroed++;
	}
	if (zeroed)
		atomic_fetch_add_explicit(&view->shared->zeroed_by_caller, zeroed, memory_order_relaxed);
	return result;
}
