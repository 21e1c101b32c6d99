/* SPDX-License-Identifier: MIT */
/* The steps that faults (allocate.c) and fills of ranges (fill.c) have in common. Signals are blocked. Signal safe. */
#ifndef HP_FILE_FILL_H
#define HP_FILE_FILL_H

#include "file/file.h"

/*
 * Fills pages from `page` on whose tokens we hold: as far as their frames lie in a row and are zeroed, or can be with
 * at most `*dirty` more to zero. Tokens and frames that are left over are given back. Returns how many pages were
 * filled; 0: a frame could not be mapped, or the index has no room.
 */
uint32_t hp_file_fill_run(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t tokens, uint32_t *dirty,
                          enum hp_fill what);
/* The page's token is another's, who is about to insert it. Sleeping lets an owner of lower priority run. */
void hp_file_wait_in_transit(unsigned tries);
/* A place for base pages has memory in all of them. -ENOMEM, -EFAULT: there is none. */
int hp_file_populate_base(struct hp_thread *t, hp_frame_id place);

#endif
