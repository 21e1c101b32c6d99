/* SPDX-License-Identifier: MIT */
/*
 * Cutting a file. The size is changed first and what lies beyond it taken away after: whoever finds the work of a dead
 * thread half done takes away what lies beyond the size.
 */
#include "file/lock.h"
#include "file/reserve.h"

#include "base/error.h"

#include <errno.h>

/* The file lock is held for writing. False: a mapping reaches beyond the new end. */
static bool resize_locked(struct hp_thread *t, struct hp_file_use use, uint32_t pages)
{
	struct hp_file_record *record = use.record;
	bool covered;

	hp_mutex_lock(&record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	covered = hp_vma_covers_locked(t->pool, record, pages);
	if (!covered)
		atomic_store(&record->pages, pages);
	hp_mutex_unlock(&record->vma_lock, &t->locker);
	if (covered)
		return false;
	hp_file_cut_locked(t, use);
	return true;
}

static bool resize(struct hp_thread *t, struct hp_file_use use, uint32_t pages)
{
	sigset_t saved;
	bool done;

	hp_signals_block(&saved);
	hp_intent_begin(t->intents, HP_INTENT_TRUNCATE, use.number, pages, 0);
	hp_file_write_lock(t, use);
	done = resize_locked(t, use, pages);
	hp_file_write_unlock(t, use);
	hp_intent_end(t->intents);
	hp_signals_restore(&saved);
	return done;
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
	/* The mapping that is in the way may be of a dead process. */
	else if (!resize(t, use, (uint32_t)hp_frames(size)) &&
	         (!hp_pool_reap(t) || !resize(t, use, (uint32_t)hp_frames(size))))
		result = hp_fail(error, -EBUSY, HP_LIMIT_NONE,
		                 "a mapping reaches beyond %lu bytes of the file; unmap it first", size);
	hp_file_put(t, use.number);
	return result;
}
