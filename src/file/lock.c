/* SPDX-License-Identifier: MIT */
#include "file/lock.h"

void hp_file_fork_lock_at(struct hp_thread *t, struct hp_file_use use, uint32_t point)
{
	if (t->pool->shared->file_lock == HP_FILE_LOCK_RWSEM)
		hp_biased_write_lock_at(&use.record->lock, &t->locker, point);
	else
		hp_biased_read_lock_at(&use.record->lock, &t->locker, HP_CLASS_FILE, point);
}

void hp_file_fork_unlock(struct hp_thread *t, struct hp_file_use use)
{
	if (t->pool->shared->file_lock == HP_FILE_LOCK_RWSEM)
		hp_biased_write_unlock(&use.record->lock, &t->locker);
	else
		hp_biased_read_unlock(&use.record->lock, &t->locker);
}

void hp_file_modify_lock_at(struct hp_thread *t, struct hp_file_use use, uint32_t mappings_point, uint32_t point)
{
	hp_mutex_lock_at(&use.record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS, mappings_point);
	hp_biased_write_lock_at(&use.record->lock, &t->locker, point);
}

void hp_file_modify_unlock(struct hp_thread *t, struct hp_file_use use)
{
	hp_biased_write_unlock(&use.record->lock, &t->locker);
	hp_mutex_unlock(&use.record->vma_lock, &t->locker);
}

static struct hp_rwsem *own_lock(const struct hp_thread *t, uint32_t vma)
{
	return vma && t->pool->shared->file_lock == HP_FILE_LOCK_VMA ? &hp_vma_at(t->pool, vma)->lock : NULL;
}

void hp_file_mapping_lock(struct hp_thread *t, struct hp_file_use use, uint32_t vma)
{
	hp_file_modify_lock(t, use);
	if (own_lock(t, vma))
		hp_rwsem_write_lock(own_lock(t, vma), &t->locker, HP_CLASS_MAPPING);
}

void hp_file_mapping_unlock(struct hp_thread *t, struct hp_file_use use, uint32_t vma)
{
	if (own_lock(t, vma))
		hp_rwsem_write_unlock(own_lock(t, vma), &t->locker);
	hp_file_modify_unlock(t, use);
}
