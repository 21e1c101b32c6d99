/* SPDX-License-Identifier: MIT */
/*
 * Base pages, for files that may have them where no frame can be had.
 *
 * They lie in a segment of their own: sparse shared memory, never filled, whose frames are *places* for 512 base pages
 * each. A page of a file gets such a place as it would get a frame, and the kernel puts a base page wherever the place
 * is touched: it does that better than we could. A place has memory for what was touched of it, and none when it is
 * nobody's:
 *
 *   ABSENT -> USED -> ABSENT      taken; given back, and its memory to the kernel
 *   USED -> HOLE -> USED          punched while mapped: as other frames, but nothing is reserved for it
 *
 * Places have numbers as frames have, after theirs. A bit of the free map says that a place is nobody's.
 */
#ifndef HP_POOL_BASE_H
#define HP_POOL_BASE_H

#include "pool/pool.h"

/* The first place; the first number that is no frame's. */
static inline hp_frame_id hp_base_first(const struct hp_pool_view *view)
{
	return view->shared->frame_regions * HP_REGION_FRAMES;
}

static inline bool hp_is_base(const struct hp_pool_view *view, hp_frame_id frame)
{
	return frame >= hp_base_first(view);
}

/* When a pool is made: all places are nobody's. */
void hp_base_init(struct hp_pool_view *view);

/* Promises places. -ENOMEM: there are not as many, or the machine does not have the memory. */
int hp_base_commit(struct hp_pool_view *view, uint64_t places, hp_error *error);
void hp_base_uncommit(struct hp_pool_view *view, uint64_t places);
/* Takes up to `want` committed places in a row, from `hint` on if that is free; at least 1. Signal safe. */
uint32_t hp_base_take(struct hp_thread *t, hp_frame_id hint, uint32_t want, hp_frame_id *first);
/* Whether a place is nobody's. Signals are blocked. */
bool hp_base_is_free(struct hp_thread *t, hp_frame_id place);
/* Gives places and their memory back, whatever their state. Does not uncommit. Signals are blocked. */
void hp_base_give(struct hp_thread *t, hp_frame_id first, uint32_t count);

#define HP_BASE_PAGES (HP_FRAME_SIZE / HP_BASE_PAGE_SIZE)

/* Which base pages of a place are in memory: an estimate, see os.h. */
int hp_base_backed(const struct hp_pool_view *view, hp_frame_id place, unsigned char there[HP_BASE_PAGES]);

/* The kernel has made the memory of shared-memory frames, or places, huge; or that has ended. */
void hp_huge_set(struct hp_pool_view *view, hp_frame_id first, uint32_t count, bool huge);
bool hp_huge_is(const struct hp_pool_view *view, hp_frame_id frame);

#endif
