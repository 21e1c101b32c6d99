/* SPDX-License-Identifier: MIT */
#include "file/lock.h"
#include "file/remove.h"

#include "base/error.h"

#include <errno.h>

static void link_locked(const struct hp_pool_view *view, struct hp_file_record *record, uint32_t number)
{
	struct hp_vma_record *vma = hp_vma_at(view, number);

	vma->listed = 1;
	vma->previous = 0;
	vma->next = record->vma_head;
	if (vma->next)
		hp_vma_at(view, vma->next)->previous = number;
	record->vma_head = number;
	atomic_fetch_add_explicit(&record->vmas, 1, memory_order_relaxed);
}

static void unlink_locked(const struct hp_pool_view *view, struct hp_file_record *record, struct hp_vma_record *vma)
{
	if (vma->next)
		hp_vma_at(view, vma->next)->previous = vma->previous;
	if (vma->previous)
		hp_vma_at(view, vma->previous)->next = vma->next;
	else
		record->vma_head = vma->next;
	atomic_fetch_sub_explicit(&record->vmas, 1, memory_order_relaxed);
	vma->listed = 0;
}

/* A record with its facts; 0: the table is full. */
static uint32_t make_record(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts)
{
	struct hp_pool_view *view = t->pool;
	uint32_t number = hp_table_take(&view->shared->vmas, view->vmas, HP_VMA_RECORD_SIZE, &t->locker);
	struct hp_vma_record *vma = hp_vma_at(view, number);

	if (!number)
		return 0;
	vma->file = file;
	vma->first = facts->first;
	vma->pages = facts->pages;
	vma->reach = facts->reach;
	vma->prot = facts->prot;
	vma->flags = facts->flags;
	vma->address = facts->address;
	return number;
}

/* Has what lies before page `end` again. */
static void extend(struct hp_vma_record *vma, uint32_t end)
{
	uint32_t most = end > vma->first ? (uint32_t)hp_min(end - vma->first, vma->pages) : 0;

	vma->reach = vma->reach > most ? vma->reach : most;
}

/* False: the file has been cut below the mapping's end. One that was there before may be in that state. */
static bool enter_locked(struct hp_pool_view *view, struct hp_file_use use, uint32_t number, uint32_t process,
                         bool is_new)
{
	struct hp_vma_record *vma = hp_vma_at(view, number);

	if (is_new && (uint64_t)vma->first + vma->pages > atomic_load(&use.record->pages))
		return false;
	/* What is inside of the file is the mapping's, also where its process has not heard of it yet. */
	extend(vma, atomic_load(&use.record->pages));
	hp_file_get(view, use.number);
	atomic_store(&vma->process, process);
	link_locked(view, use.record, number);
	return true;
}

enum kind { NEW, PIECE, FORKED };

static int add(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, enum kind kind, uint32_t *number)
{
	struct hp_file_use use = {hp_file_at(t->pool, file), file};
	bool inside;

	*number = make_record(t, file, facts);
	if (!*number)
		return -ENOMEM;
	hp_mutex_lock(&use.record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	if (kind == FORKED)
		hp_file_fork_lock(t, use);
	inside = enter_locked(t->pool, use, *number, atomic_load(&facts->process), kind == NEW);
	if (kind == FORKED)
		hp_file_fork_unlock(t, use);
	hp_mutex_unlock(&use.record->vma_lock, &t->locker);
	if (inside)
		return 0;
	hp_table_give(&t->pool->shared->vmas, t->pool->vmas, HP_VMA_RECORD_SIZE, *number, &t->locker);
	*number = 0;
	return -EINVAL;
}

int hp_vma_add(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, uint32_t *number)
{
	return add(t, file, facts, NEW, number);
}

int hp_vma_add_piece(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, uint32_t *number)
{
	return add(t, file, facts, PIECE, number);
}

int hp_vma_add_forked(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, uint32_t *number)
{
	return add(t, file, facts, FORKED, number);
}

void hp_vma_remove(struct hp_thread *t, uint32_t number)
{
	struct hp_pool_view *view = t->pool;
	struct hp_vma_record *vma = hp_vma_at(view, number);
	uint32_t file = vma->file, first = vma->first, end = first + vma->pages;
	struct hp_file_record *record = hp_file_at(view, file);

	hp_mutex_lock(&record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	if (vma->listed)
		unlink_locked(view, record, vma);
	hp_mutex_unlock(&record->vma_lock, &t->locker);

	atomic_store(&vma->process, 0);
	hp_table_give(&view->shared->vmas, view->vmas, HP_VMA_RECORD_SIZE, number, &t->locker);
	hp_file_reclaim(t, (struct hp_file_use){record, file}, first, end);
	hp_file_put(t, file);
}

uint32_t hp_vma_span_locked(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t page,
                            uint32_t end, bool *mapped)
{
	uint32_t unlisted = atomic_load(&file->unlisted), covered = unlisted > page ? unlisted : page, next = end;

	for (uint32_t number = file->vma_head; number; number = hp_vma_at(view, number)->next) {
		const struct hp_vma_record *vma = hp_vma_at(view, number);

		if (vma->first > page)
			next = vma->first < next ? vma->first : next;
		else if (vma->first + vma->reach > covered)
			covered = vma->first + vma->reach;
	}
	*mapped = covered > page;
	return *mapped && covered < end ? covered : *mapped ? end : next;
}

void hp_vma_tell_locked(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t page)
{
	for (uint32_t number = file->vma_head; number; number = hp_vma_at(view, number)->next) {
		const struct hp_vma_record *vma = hp_vma_at(view, number);

		if (vma->first + vma->pages > page)
			atomic_store(&view->processes.record[atomic_load(&vma->process)].behind, 1);
	}
}

void hp_vma_extend_locked(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t end)
{
	for (uint32_t number = file->vma_head; number; number = hp_vma_at(view, number)->next)
		extend(hp_vma_at(view, number), end);
}

void hp_vma_wait_locked(struct hp_thread *t, const struct hp_file_record *file)
{
	if (t->pool->shared->file_lock != HP_FILE_LOCK_VMA)
		return;
	for (uint32_t number = file->vma_head; number; number = hp_vma_at(t->pool, number)->next) {
		struct hp_rwsem *lock = &hp_vma_at(t->pool, number)->lock;

		hp_rwsem_write_lock(lock, &t->locker, HP_CLASS_MAPPING);
		hp_rwsem_write_unlock(lock, &t->locker);
	}
}

static uint32_t records_used(const struct hp_pool_view *view)
{
	return view->shared->vmas.fresh;
}

/* `listed` is set before a record is linked and cleared after it is unlinked. */
void hp_vma_repair_list(struct hp_pool_view *view, uint32_t file)
{
	struct hp_file_record *record = hp_file_at(view, file);

	record->vma_head = 0;
	atomic_store(&record->vmas, 0);
	for (uint32_t number = 1; number < records_used(view); number++) {
		struct hp_vma_record *vma = hp_vma_at(view, number);

		if (vma->file == file && vma->listed && atomic_load(&vma->process))
			link_locked(view, record, number);
	}
}

static void reap(struct hp_thread *t, const uint64_t *dead)
{
	for (uint32_t number = 1; number < records_used(t->pool); number++)
		if (hp_is_dead(dead, atomic_load(&hp_vma_at(t->pool, number)->process)))
			hp_vma_remove(t, number);
}

static bool in_use(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;

	for (uint32_t number = 1; number < records_used(view); number++)
		if (atomic_load(&hp_vma_at(view, number)->process) == view->process)
			return true;
	return false;
}

/* Every record is in the list of its file, and nothing else is. */
static int check(struct hp_thread *t, hp_error *error)
{
	struct hp_pool_view *view = t->pool;
	uint32_t listed = 0, live = 0;

	for (uint32_t number = 1; number < records_used(view); number++)
		live += atomic_load(&hp_vma_at(view, number)->process) != 0;
	for (uint32_t file = 1; file < view->shared->files.fresh; file++) {
		struct hp_file_record *record = hp_file_at(view, file);
		uint32_t in_list = 0;

		if (!atomic_load(&record->generation))
			continue;
		for (uint32_t number = record->vma_head; number && in_list <= live;
		     number = hp_vma_at(view, number)->next) {
			const struct hp_vma_record *vma = hp_vma_at(view, number);
			uint32_t process = atomic_load(&vma->process);

			if (vma->file != file || !process || !hp_process_is_live(&view->processes, process))
				return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
				               "mapping %u in the list of file %u is of file %u, process %u", number,
				               file, vma->file, process);
			in_list++;
		}
		if (in_list != atomic_load(&record->vmas))
			return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
			               "file %u has %u mappings in its list and says %u", file, in_list,
			               atomic_load(&record->vmas));
		listed += in_list;
	}
	if (listed != live || live != atomic_load(&view->shared->vmas.live))
		return hp_fail(error, -EUCLEAN, HP_LIMIT_NONE,
		               "%u mappings are listed, %u records are live, the table says %u", listed, live,
		               atomic_load(&view->shared->vmas.live));
	return 0;
}

const struct hp_pool_hooks hp_vma_hooks = {.reap = reap, .in_use = in_use, .check = check};
