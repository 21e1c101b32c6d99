/* SPDX-License-Identifier: MIT */
/*
 * Cutting a file. The size is changed first and what lies beyond it taken away after: whoever finds the work of a dead
 * thread half done takes away what lies beyond the size.
 */
#include "file/lock.h"
#include "file/reserve.h"

#include "base/error.h"

#include <errno.h>

/* The list of mappings and the file are locked. False: a mapping reaches beyond the new end. */
static bool resize_locked(struct hp_thread *t, struct hp_file_use use, uint32_t pages)
{
	if (hp_vma_covers_locked(t->pool, use.record, pages))
		return false;
	atomic_store(&use.record->pages, pages);
	hp_file_cut_locked(t, use);
	return true;
}

static bool resize(struct hp_thread *t, struct hp_file_use use, uint32_t pages)
{
	sigset_t saved;
	bool done;

	hp_signals_block(&saved);
	hp_intent_begin(t->intents, HP_INTENT_TRUNCATE, use.number, pages, 0);
	hp_mutex_lock(&use.record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	hp_file_write_lock(t, use);
	done = resize_locked(t, use, pages);
	hp_file_write_unlock(t, use);
	hp_mutex_unlock(&use.record->vma_lock, &t->locker);
	hp_intent_end(t->intents);
	hp_signals_restore(&saved);
	return done;
}

/* The mapping that is in the way may be of a dead process. */
static bool resize_again(struct hp_thread *t, struct hp_file_use use, uint32_t pages)
{
	if (resize(t, use, pages))
		return true;
	hp_pool_reap(t);
	return resize(t, use, pages);
}

int hp_file_truncate(hp_file file, uint64_t size, hp_error *error)
{
	struct hp_file_use use;
	struct hp_thread *t;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	if (!hp_is_frame_aligned(size))
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE, "size %lu must be a multiple of 2 MiB", size);
	else if (hp_frames(size) > use.record->most_pages)
		result = hp_fail(error, -EFBIG, HP_LIMIT_TABLE,
		                 "the file was made with %lu bytes and cannot grow beyond that",
		                 hp_bytes(use.record->most_pages));
	else if (!resize_again(t, use, (uint32_t)hp_frames(size)))
		result = hp_fail(error, -EBUSY, HP_LIMIT_NONE,
		                 "a mapping reaches beyond %lu bytes of the file; unmap it first", size);
	hp_file_put(t, use.number);
	return result;
}
