/* SPDX-License-Identifier: MIT */
/*
 * A page that is being moved to other memory (src/collapse). One page of a file at a time: its number, plus 1, stands
 * in the file's record from before its bytes are copied until its mappings have been switched. Readers go on; whoever
 * would map the page or store to it waits.
 *
 * The word is set under the file lock for writing, and is looked at under the lock for reading (or what stands for it
 * in a fault: file/lock.h), so that nobody is still mapping the page when its mappings are write-protected.
 *
 *   move                                fault, or hp_file_write
 *                                       lock for reading
 *   lock for writing: waits             the page is not moving: map it, or store to it
 *                                       unlock
 *   moving = the page
 *   upgradeable: readers go on
 *   copy                                lock for reading; it moves: unlock and wait
 *   lock for writing
 *   switch; moving = none               go on with the new memory
 */
#ifndef HP_FILE_MOVING_H
#define HP_FILE_MOVING_H

#include "file/file.h"

/* Under the file lock. */
static inline bool hp_file_is_moving(const struct hp_file_record *file, uint32_t page)
{
	return __builtin_expect(atomic_load_explicit(&file->moving, memory_order_acquire) == page + 1, 0);
}

/* Waits until the page is not being moved, with no lock held. Signal safe. */
void hp_file_await_move(struct hp_thread *t, struct hp_file_use use, uint32_t page);
/* Under the file lock for writing. */
void hp_file_end_move(struct hp_file_record *file);
/*
 * By who holds the file lock upgradeably or for writing, as a move does all the time: one that is still said to be under
 * way is a dead thread's, whose mappings are gone with it.
 */
void hp_file_end_stale_move(struct hp_file_record *file);

#endif
