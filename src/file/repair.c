/* SPDX-License-Identifier: MIT */
/*
 * What becomes of a file when the owner of one of its locks died inside. Reservations need no repair: a page's promise
 * is one bit, and what was committed and not marked is missing from the free frames until the pool's next recovery.
 */
#include "file/lock.h"
#include "file/moving.h"
#include "file/reserve.h"

/* The number of the file that has this lock in its record. */
static struct hp_file_use file_of(const struct hp_pool_view *view, const void *lock)
{
	uint32_t number = (uint32_t)((uint64_t)((const char *)lock - (const char *)view->files) / HP_FILE_RECORD_SIZE);

	return (struct hp_file_use){hp_file_at(view, number), number};
}

/*
 * The dead writer may have been waiting for readers. What it was in the middle of taking away is in its intents, and is
 * taken away again before the file grows; so are the frames of a page that it was moving, whose mappings died with it.
 */
static void repair_file(const struct hp_locker *who, void *lock, hp_owner dead)
{
	struct hp_file_record *file = file_of(hp_thread_of(who)->pool, lock).record;

	(void)dead;
	hp_biased_revoke(&file->lock, who);
	hp_file_end_stale_move(file);
}

static void repair_mappings(const struct hp_locker *who, void *lock, hp_owner dead)
{
	struct hp_thread *t = hp_thread_of(who);

	(void)dead;
	hp_vma_repair_list(t->pool, file_of(t->pool, lock).number);
}

void hp_file_repairs(void)
{
	hp_lock_class_set_repair(HP_CLASS_FILE, repair_file);
	hp_lock_class_set_repair(HP_CLASS_FILE_MAPPINGS, repair_mappings);
}
