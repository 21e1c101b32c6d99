/* SPDX-License-Identifier: MIT */
/*
 * The file lock. Faults and allocations hold it for reading; what takes pages away holds it for writing; a fork holds
 * it while the child's mappings are entered. What it is made of is chosen when the pool is made, so that the schemes
 * can be compared (tuning file_lock=):
 *
 *                 fault          allocate     fork          truncate, punch
 *   biased        file, read     file, read   file, read    file, write   readers share no cache line
 *   invalidate    file, read     file, read   file, read    file, write   a plain rwsem in each file
 *   vma           mapping, read  file, read   file, read    file, write   then waits for each mapping's
 *   rwsem         file, read     file, read   file, write   file, write   the oldest scheme
 *   none          -              file, read   file, read    file, write   unsafe: faults are not ordered
 */
#ifndef HP_FILE_LOCK_H
#define HP_FILE_LOCK_H

#include "file/vma.h"

/*
 * Signals are blocked around all of these. The points are the callers' for the class that is taken. For a fault
 * through a mapping with this record:
 */
static inline void hp_file_fault_lock_at(struct hp_thread *t, struct hp_file_use use, uint32_t vma, uint32_t point,
                                         uint32_t mapping_point)
{
	uint32_t scheme = t->pool->shared->file_lock;

	if (scheme == HP_FILE_LOCK_VMA)
		hp_rwsem_read_lock_at(&hp_vma_at(t->pool, vma)->lock, &t->locker, mapping_point);
	else if (scheme != HP_FILE_LOCK_NONE)
		hp_biased_read_lock_at(&use.record->lock, &t->locker, HP_CLASS_FILE, point);
}

static inline void hp_file_fault_unlock(struct hp_thread *t, struct hp_file_use use, uint32_t vma)
{
	uint32_t scheme = t->pool->shared->file_lock;

	if (scheme == HP_FILE_LOCK_VMA)
		hp_rwsem_read_unlock(&hp_vma_at(t->pool, vma)->lock, &t->locker);
	else if (scheme != HP_FILE_LOCK_NONE)
		hp_biased_read_unlock(&use.record->lock, &t->locker);
}

/* For a fork that enters a child's mapping. */
void hp_file_fork_lock_at(struct hp_thread *t, struct hp_file_use use, uint32_t point);
void hp_file_fork_unlock(struct hp_thread *t, struct hp_file_use use);

/* For who takes pages away, or changes the size: the list of mappings too. */
void hp_file_modify_lock_at(struct hp_thread *t, struct hp_file_use use, uint32_t mappings_point, uint32_t point);
void hp_file_modify_unlock(struct hp_thread *t, struct hp_file_use use);
/* The same, and nobody faults through the mapping with this record (0: none), or cuts it to its file's end. */
void hp_file_mapping_lock(struct hp_thread *t, struct hp_file_use use, uint32_t vma);
void hp_file_mapping_unlock(struct hp_thread *t, struct hp_file_use use, uint32_t vma);

#define hp_file_fault_lock(t, use, vma) \
	hp_file_fault_lock_at(t, use, vma, HP_HERE(HP_CLASS_FILE), HP_HERE(HP_CLASS_MAPPING))
#define hp_file_fork_lock(t, use) hp_file_fork_lock_at(t, use, HP_HERE(HP_CLASS_FILE))
#define hp_file_modify_lock(t, use) \
	hp_file_modify_lock_at(t, use, HP_HERE(HP_CLASS_FILE_MAPPINGS), HP_HERE(HP_CLASS_FILE))

#endif
