/* SPDX-License-Identifier: MIT */
/* Making the memory of one page huge by whatever way there is, and the thread that does it in the background. */
#ifndef HP_COLLAPSE_COLLAPSE_H
#define HP_COLLAPSE_COLLAPSE_H

#include "collapse/move.h"

/*
 * The kernel makes the memory of a page huge where it is: shared memory's, for all who map it. HP_MOVE_NOTHING: absent,
 * or huge already; HP_MOVE_FAILED: it refuses; *error says why.
 */
enum hp_move_result hp_collapse_in_place(struct hp_thread *t, struct hp_file_use use, uint32_t page, int *error);

/* -- collapser.c ------------------------------------------------------------------------------------------------- */

int hp_collapser_start(struct hp_thread *t, const hp_pool_options *options);
void hp_collapser_stop(struct hp_pool_view *view);

extern const struct hp_pool_hooks hp_collapse_hooks;

#endif
