/* SPDX-License-Identifier: MIT */
/*
 * Mappings as files see them: who maps which range of a file, in which process, at which address.
 * A record is in its file's list from before the first page is mapped until after the last one is unmapped, so that who
 * takes pages away finds everybody that may have them. Each record holds a reference to its file.
 */
#ifndef HP_FILE_VMA_H
#define HP_FILE_VMA_H

#include "file/file.h"

struct hp_vma_record {
	uint32_t next_free;       /* of a free record: arena/table.h */
	_Atomic uint32_t process; /* 0: free */
	uint32_t file;
	uint32_t first, pages;   /* of the file */
	uint32_t next, previous; /* in the file's list; under the file's vma_lock */
	uint32_t prot, flags;
	_Atomic uint64_t address; /* in its process */
	uint32_t listed;          /* in the file's list, or about to be; under the file's vma_lock */
	uint32_t reach; /* pages that it may have mapped: no fewer than the file has of them; under vma_lock */
	struct hp_rwsem lock __attribute__((aligned(HP_CACHE_LINE))); /* with file_lock=vma: file/lock.h */
};

_Static_assert(sizeof(struct hp_vma_record) <= HP_VMA_RECORD_SIZE, "see pool/layout.h");

static inline struct hp_vma_record *hp_vma_at(const struct hp_pool_view *view, uint32_t vma)
{
	return (struct hp_vma_record *)((char *)view->vmas + (size_t)vma * HP_VMA_RECORD_SIZE);
}

/*
 * Enters a mapping of the process that the facts name. -ENOMEM: the table is full; -EINVAL: the file has been cut
 * meanwhile.
 */
int hp_vma_add(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, uint32_t *number);
/* The same for a part of a mapping that is in the list: the file may end before it. */
int hp_vma_add_piece(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, uint32_t *number);
/* The same for a child that is about to be forked: under the file lock, as file_lock says. Signals are blocked. */
int hp_vma_add_forked(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts, uint32_t *number);
void hp_vma_remove(struct hp_thread *t, uint32_t vma);

/* -- under the file's vma_lock ----------------------------------------------------------------------------------- */

/* How far from `page` on, up to `end`, all pages are mapped by somebody, or none is: *mapped says which. */
uint32_t hp_vma_span_locked(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t page,
                            uint32_t end, bool *mapped);
/* Processes that map pages from `page` on hear of it at their next call. */
void hp_vma_tell_locked(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t page);
/* Mappings that reach beyond the end have what lies before page `end` again. */
void hp_vma_extend_locked(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t end);
/* Waits until no fault runs any more that began before: with file_lock=vma, where the file lock says nothing of them. */
void hp_vma_wait_locked(struct hp_thread *t, const struct hp_file_record *file);
/* The owner of a file's vma_lock died: makes the list anew from the records. */
void hp_vma_repair_list(struct hp_pool_view *view, uint32_t file);

extern const struct hp_pool_hooks hp_vma_hooks;

#endif
