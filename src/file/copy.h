/* SPDX-License-Identifier: MIT */
/*
 * Reading and writing through the pool's own mapping.
 *
 * What is copied passes through a small buffer: the file lock is held for one side of it, so that no frame is taken
 * away meanwhile, and not for the other, the user's memory, which may be lazy, or anything else that faults.
 */
#ifndef HP_FILE_COPY_H
#define HP_FILE_COPY_H

#include "file/file.h"

#define HP_COPY_PIECE 16384u /* bytes: stays in the first cache, and on a small stack */

/* Without a lock: the first page in [page, end) that has a frame now, or `end`. */
uint32_t hp_file_next_present(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t end);
/*
 * Copies bytes of one page into it, or out of it. The buffer is ours. A page that is absent is made present to store
 * to it; loaded, it is zeroes. -ENXIO: the file ends before; -ENOMEM: no memory for the page;
 * -EFAULT: the kernel does not map it.
 */
int hp_file_store(struct hp_thread *t, struct hp_file_use use, uint64_t offset, const void *from, uint64_t length);
int hp_file_load(struct hp_thread *t, struct hp_file_use use, uint64_t offset, void *to, uint64_t length);
/*
 * Zeroes bytes of one page where it is present; whole base pages go back to the kernel where the page has a place for
 * such, unless it is to be kept. Fails as the others do.
 */
int hp_file_clear(struct hp_thread *t, struct hp_file_use use, uint64_t offset, uint64_t length, bool keep);

#endif
