/* SPDX-License-Identifier: MIT */
/*
 * Changing a file's size.
 *
 * Cut: the size is changed first and what lies beyond it taken away after, so that nobody puts anything there
 * meanwhile, and whoever finds the work of a dead thread half done can go on from the size. Grown: what lies between,
 * left by processes that still mapped it when it was cut, is taken away first.
 *
 * Mappings that reach beyond the end are their processes' to change: each is told, and does so at its next call
 * (space/catch_up.c). Until then it finds empty holes there.
 */
#include "file/lock.h"
#include "file/place.h"
#include "file/remove.h"
#include "file/reserve.h"

#include "base/error.h"
#include "pool/hole.h"

#include <errno.h>

/* ---- cut -------------------------------------------------------------------------------------------------------- */

/*
 * -EAGAIN: it has become smaller than that meanwhile. True: what lies beyond is not all taken away; *page: from where
 * on.
 */
static bool cut_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, int *result)
{
	*result = atomic_load(&use.record->pages) < *page ? -EAGAIN : 0;
	if (*result)
		return false;
	atomic_store(&use.record->pages, *page);
	hp_vma_tell_locked(t->pool, use.record, *page);
	hp_vma_wait_locked(t, use.record);
	return hp_file_remove_beyond_locked(t, use, page, result);
}

static int cut(struct hp_thread *t, struct hp_file_use use, uint32_t pages)
{
	sigset_t saved;
	bool more;
	int result;

	hp_intent_begin(t->intents, HP_INTENT_TRUNCATE, use.number, pages, 0);
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	more = cut_locked(t, use, &pages, &result);
	hp_file_modify_unlock(t, use);
	hp_signals_restore(&saved);
	if (more)
		result = hp_file_remove_beyond(t, use, pages);
	hp_intent_end(t->intents);
	return result;
}

/* ---- grow ------------------------------------------------------------------------------------------------------- */

/* What a mapping has between the end and the new one, and is not promised: false if there is none. */
static bool find_unpromised_locked(struct hp_thread *t, struct hp_file_use use, uint32_t pages, uint32_t *first,
                                   uint32_t *end)
{
	uint32_t size = atomic_load(&use.record->pages);

	for (uint32_t number = use.record->vma_head; number; number = hp_vma_at(t->pool, number)->next) {
		const struct hp_vma_record *vma = hp_vma_at(t->pool, number);

		*first = vma->first > size ? vma->first : size;
		*end = (uint32_t)hp_min((uint64_t)vma->first + vma->pages, pages);
		if (*first < *end && !hp_reserve_is_promised(t, use.record, *first, *end - *first))
			return true;
	}
	return false;
}

/* The last GiB that the file had was smaller, and may have got a place that is too small now. */
static void forget_place(struct hp_thread *t, struct hp_file_use use, uint32_t size)
{
	uint32_t chunk = size & ~(HP_REGION_FRAMES - 1);

	if (size > chunk && hp_index_next_page(hp_file_index(t->pool, use.record), chunk, size) == size)
		hp_place_forget(t, use, chunk);
}

/* Leftovers between the end and the new one are taken away, and holes that somebody maps have memory to come. */
static int clear_locked(struct hp_thread *t, struct hp_file_use use, uint32_t pages, hp_error *error)
{
	uint32_t size = atomic_load(&use.record->pages);
	uint64_t uncovered = 0;

	if (hp_index_next_page(hp_file_index(t->pool, use.record), size, pages) == pages)
		return 0;
	if (hp_file_remove_locked(t, use, size, pages, &uncovered))
		return hp_fail(error, -ENOMEM, HP_LIMIT_TABLE,
		               "the index has no room to divide a run of 1 GiB; close files or give the pool a larger "
		               "max_size");
	if (uncovered)
		return hp_fail(
			error, -ENOMEM, HP_LIMIT_KERNEL_POOL,
			"others took the kernel's huge pages: %lu pages that are mapped beyond the end have none; "
			"raise /proc/sys/vm/nr_hugepages",
			uncovered);
	return 0;
}

/*
 * All is promised. What mappings will have again is theirs before it is there, so that nobody takes its promise away.
 */
static int grow_locked(struct hp_thread *t, struct hp_file_use use, uint32_t pages, hp_error *error)
{
	uint32_t size = atomic_load(&use.record->pages);
	int result;

	hp_vma_wait_locked(t, use.record); /* for faults that began before a cut whose thread died */
	hp_vma_extend_locked(t->pool, use.record, pages);
	result = clear_locked(t, use, pages, error);
	if (!result) {
		forget_place(t, use, size);
		atomic_store(&use.record->pages, pages);
	}
	hp_vma_tell_locked(t->pool, use.record, size);
	return result;
}

/* One attempt. -EAGAIN: what is mapped and not promised lies in [*first, *end), or all has changed. */
static int try_grow(struct hp_thread *t, struct hp_file_use use, uint32_t pages, uint32_t *first, uint32_t *end,
                    hp_error *error)
{
	sigset_t saved;
	int result;

	*first = *end = 0;
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	if (pages > atomic_load(&use.record->reach))
		atomic_store(&use.record->reach, pages);
	if (pages < atomic_load(&use.record->pages))
		result = -EAGAIN;
	else if (find_unpromised_locked(t, use, pages, first, end))
		result = -EAGAIN;
	else
		result = grow_locked(t, use, pages, error);
	hp_file_modify_unlock(t, use);
	hp_signals_restore(&saved);
	return result;
}

/*
 * Whoever has mapped what lies beyond the end finds it promised when it is inside again. That is done without the lock,
 * since it may wait, and then looked at again. What was promised in vain is given up.
 */
static int grow(struct hp_thread *t, struct hp_file_use use, uint32_t pages, hp_error *error)
{
	uint32_t first = 0, end = 0;
	int result;

	hp_intent_begin(t->intents, HP_INTENT_TRUNCATE, use.number, pages, 0);
	while ((result = try_grow(t, use, pages, &first, &end, error)) == -EAGAIN && first < end) {
		sigset_t saved;

		hp_signals_block(&saved);
		result = hp_reserve_promise(t, use, first, end - first, &saved, error);
		hp_signals_restore(&saved);
		if (result)
			break;
	}
	if (result && result != -EAGAIN)
		hp_file_remove_beyond(t, use, 0);
	hp_intent_end(t->intents);
	return result;
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

static int resize(struct hp_thread *t, struct hp_file_use use, uint32_t pages, hp_error *error)
{
	int result;

	do
		result = pages > atomic_load(&use.record->pages) ? grow(t, use, pages, error) : cut(t, use, pages);
	while (result == -EAGAIN);
	hp_holes_settle(t);
	hp_pool_catch_up_now(t);
	return result;
}

int hp_file_truncate(hp_file file, uint64_t size, hp_error *error)
{
	struct hp_file_use use;
	struct hp_thread *t;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	if (!hp_is_aligned(t->pool, size))
		result = hp_fail(error, -EINVAL, HP_LIMIT_NONE, "size %lu must be a multiple of %lu MiB", size,
		                 hp_bytes(hp_unit(t->pool)) >> 20);
	else if (hp_frames(size) > use.record->most_pages)
		result = hp_fail(
			error, -EFBIG, HP_LIMIT_TABLE,
			"the file cannot grow beyond %lu bytes, what it was made with or the pool's max_size in whole "
			"GiB; give the pool a larger max_size",
			hp_bytes(use.record->most_pages));
	else
		result = resize(t, use, (uint32_t)hp_frames(size), error);
	hp_file_put(t, use.number);
	return result;
}

void hp_file_recover(struct hp_thread *t, const struct hp_intent *intent)
{
	uint32_t number = intent->object;
	struct hp_file_use use;
	sigset_t saved;

	if (atomic_load(&intent->kind) != HP_INTENT_TRUNCATE || number == 0 || number >= t->pool->shared->files.fresh ||
	    !hp_file_get_live(t->pool, number))
		return;
	use = (struct hp_file_use){hp_file_at(t->pool, number), number};
	/* It may have died before it told anybody. */
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	hp_vma_wait_locked(t, use.record);
	hp_vma_tell_locked(t->pool, use.record, 0);
	hp_file_modify_unlock(t, use);
	hp_signals_restore(&saved);
	hp_file_remove_beyond(t, use, 0);
	hp_file_put(t, number);
}
