/* SPDX-License-Identifier: MIT */
/*
 * Moving one page of a movable file to other memory: from base pages into a frame (collapse), or back (split).
 *
 *   lock upgradeable       look: is it there, is it ours alone, is it not pinned
 *   take memory            a frame, or a place for base pages
 *   upgrade                nobody else is in the file now, and nobody is mapping the page
 *   mark, write-protect    from here on stores wait: file/moving.h
 *   upgradeable again      readers and other pages go on
 *   copy, stage            the new memory is mapped beside each mapping: what the kernel refuses it refuses now
 *   upgrade                nobody reads through the pool's own mapping
 *   switch                 index, books, mappings
 *   unlock
 *   free                   the old memory
 *
 * The lock of the file is upgraded, so that what was seen stays true. The variant `relock` looks under the lock for
 * reading instead, lets it go, takes it for writing and looks again, and gives up if all is not as before: what is to be
 * had by upgrading is the difference.
 *
 * The space lock and the list of the file's mappings are held all the time: mappings are neither made nor unmade, and no
 * child is forked, for some hundred us.
 */
#ifndef HP_COLLAPSE_MOVE_H
#define HP_COLLAPSE_MOVE_H

#include "space/space.h"

enum hp_move_kind { HP_MOVE_COLLAPSE, HP_MOVE_SPLIT };

enum hp_move_result {
	HP_MOVED,
	HP_MOVE_NOTHING, /* absent, or such memory already */
	HP_MOVE_PINNED,
	HP_MOVE_SHARED, /* another process maps it, or a mapping is being made or unmade */
	HP_MOVE_NO_MEMORY,
	HP_MOVE_GAVE_UP, /* relock: it is not as it was */
	HP_MOVE_FAILED,  /* the kernel refuses to protect or to map */
};

enum hp_move_result hp_move_page(struct hp_thread *t, struct hp_file_use use, uint32_t page, enum hp_move_kind kind);
/* What a dead thread was moving: its memory that no file has goes back. */
void hp_move_recover(struct hp_thread *t, const struct hp_intent *intent);

#endif
