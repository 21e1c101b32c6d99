/* SPDX-License-Identifier: MIT */
/* Extents without a file: contiguous frames in the direct map, known by their first frame. */
#include "pool/extent.h"
#include "pool/workers.h"

#include "base/error.h"

#include <errno.h>

/* Every region of the extent must be in this process's direct map before its address is handed out. */
static bool map_extent(struct hp_pool_view *view, hp_frame_id first, uint32_t frames)
{
	for (hp_frame_id f = first; f < first + frames; f = (f / HP_REGION_FRAMES + 1) * HP_REGION_FRAMES)
		if (!hp_direct(view, f))
			return false;
	return hp_direct(view, first + frames - 1) != NULL;
}

/*
 * Committed frames become an extent. Signals are blocked. -ENOSPC: there are not as many in a row; -ENOMEM: no
 * mapping.
 */
static int take_extent(struct hp_thread *t, uint32_t frames, hp_frame_id *first)
{
	struct hp_pool_view *view = t->pool;
	uint32_t most = frames;

	if (!hp_take_run(t, frames, first))
		return -ENOSPC;
	if (!map_extent(view, *first, frames) || hp_frames_make_zeroed(t, *first, frames, &most) < frames) {
		hp_put(t, *first, frames);
		return -ENOMEM;
	}
	hp_intent_begin(t->intents, HP_INTENT_EXTENT_TAKE, 0, *first, frames);
	for (uint32_t i = 0; i < frames; i++)
		hp_frame_use(&view->frames[*first + i], HP_OWNER_EXTENT, i == 0 ? frames : 0);
	hp_intent_end(t->intents);
	return 0;
}

static int try_extent(struct hp_thread *t, uint32_t frames, hp_frame_id *first)
{
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	result = take_extent(t, frames, first);
	hp_signals_restore(&saved);
	return result;
}

/*
 * What breaks a run may be a frame that a worker has in hand, which comes back when workers pause, or what a dead
 * process had.
 */
static int find_extent(struct hp_thread *t, uint32_t frames, hp_frame_id *first)
{
	int result = try_extent(t, frames, first);

	if (result == -ENOSPC) {
		hp_workers_pause(t, HP_WORKERS_PATIENCE);
		hp_pool_reap(t);
		result = try_extent(t, frames, first);
		hp_workers_resume(t);
	}
	return result;
}

int hp_alloc(hp_pool pool, uint64_t size, void **address, hp_error *error)
{
	uint64_t frames = hp_frames_up(size);
	struct hp_thread *t;
	hp_frame_id first;
	int result = hp_pool_enter(pool.id, &t, error);

	if (result)
		return result;
	frames = hp_align_up(frames, hp_unit(t->pool));
	if (!frames)
		return hp_fail(error, -EINVAL, HP_LIMIT_NONE, "hp_alloc: size is 0");
	result = hp_pool_promise(t, frames, error);
	if (result)
		return result;
	result = find_extent(t, (uint32_t)frames, &first);
	if (!result) {
		*address = hp_direct(t->pool, first);
		return 0;
	}
	hp_pool_unpromise(t->pool, frames);
	if (result == -ENOSPC)
		return hp_fail(error, -ENOMEM, HP_LIMIT_POOL,
		               "enough frames are free, but no %lu of them in a row; ask for smaller extents", frames);
	return hp_fail(error, -ENOMEM, HP_LIMIT_MEMORY, "the kernel refused to map the extent's frames");
}

int hp_free(hp_pool pool, void *address)
{
	struct hp_thread *t;
	struct hp_pool_view *view;
	uint64_t offset, word;
	uint32_t frames;
	sigset_t saved;
	int result = hp_pool_enter(pool.id, &t, NULL);

	if (result)
		return result;
	view = t->pool;
	offset = (uint64_t)((char *)address - view->direct);
	if (!hp_is_frame_aligned(offset) || hp_frames(offset) >= (uint64_t)view->shared->regions * HP_REGION_FRAMES)
		return -EINVAL;
	word = hp_frame_load(&view->frames[hp_frames(offset)]);
	frames = hp_frame_page(word);
	if (hp_frame_state(word) != HP_FRAME_USED || hp_frame_owner(word) != HP_OWNER_EXTENT || !frames)
		return -EINVAL;

	hp_signals_block(&saved);
	hp_intent_begin(t->intents, HP_INTENT_EXTENT_GIVE, 0, hp_frames(offset), frames);
	/* Of two threads that free the same extent, one takes its length away. */
	if (atomic_compare_exchange_strong(&view->frames[hp_frames(offset)].word, &word,
	                                   hp_frame_word(HP_FRAME_USED, HP_OWNER_EXTENT, 0))) {
		hp_release(t, (hp_frame_id)hp_frames(offset), frames);
		hp_pool_unpromise(view, frames);
	} else {
		result = -EINVAL;
	}
	hp_intent_end(t->intents);
	hp_signals_restore(&saved);
	return result;
}
