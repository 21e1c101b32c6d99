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
	uint64_t address; /* in its process */
};

_Static_assert(sizeof(struct hp_vma_record) <= HP_VMA_RECORD_SIZE, "see pool/layout.h");

static inline struct hp_vma_record *hp_vma_at(const struct hp_pool_view *view, uint32_t vma)
{
	return (struct hp_vma_record *)((char *)view->vmas + (size_t)vma * HP_VMA_RECORD_SIZE);
}

/* Enters a mapping of this process; its number, or 0 if the table is full. */
uint32_t hp_vma_add(struct hp_thread *t, uint32_t file, const struct hp_vma_record *facts);
void hp_vma_remove(struct hp_thread *t, uint32_t vma);

extern const struct hp_pool_hooks hp_vma_hooks;

#endif
