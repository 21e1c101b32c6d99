/* SPDX-License-Identifier: MIT */
/*
 * Free frames: promising, taking, giving back.
 *
 * A caller first commits (a promise that cannot fail later), then takes, then uses. Between take and use the frames are
 * in no map; their state still says free. All functions are signal safe; signals are blocked.
 */
#ifndef HP_POOL_EXTENT_H
#define HP_POOL_EXTENT_H

#include "pool/pool.h"

/* Promises `frames` free frames. -ENOMEM: not as many are uncommitted. */
int hp_commit(struct hp_pool_view *view, uint64_t frames);
void hp_uncommit(struct hp_pool_view *view, uint64_t frames);

struct hp_taken {
	hp_frame_id first;
	uint32_t count;
	uint32_t zeroed; /* of these */
};

/*
 * Takes up to `want` committed frames in a row, from `hint` on if that is free, else from the best place; at least 1.
 */
struct hp_taken hp_take(struct hp_thread *t, hp_frame_id hint, uint32_t want);
/* Takes exactly `want` committed frames in a row, aligned to a region if `want` is a multiple of it
 * and that can be had. False: no such
 * run. */
bool hp_take_run(struct hp_thread *t, uint32_t want, hp_frame_id *first);
/* Takes one dirty frame for a worker. HP_NO_FRAME: none. */
hp_frame_id hp_take_dirty(struct hp_thread *t);

/* Puts free frames (taken and not used) back, whatever their state. Does not uncommit. */
void hp_put(struct hp_thread *t, hp_frame_id first, uint32_t count);
/* Puts a frame back that a dead thread had taken, as dirty. False: it was put back already. */
bool hp_put_lost(struct hp_thread *t, hp_frame_id frame);
/* Gives used frames up: they become dirty and free. Whoever they were promised to uncommits them after. */
void hp_release(struct hp_thread *t, hp_frame_id first, uint32_t count);

/* Takes a whole free region for pages of `file`, `wish` if it is one; the first frame, or HP_NO_FRAME. */
hp_frame_id hp_region_claim(struct hp_thread *t, uint32_t file, hp_frame_id wish);
void hp_region_unclaim(struct hp_thread *t, uint32_t file, hp_frame_id first);

/* Where a run of `want` free frames begins, or the longest there is; `wish` if one begins there. Takes nothing. */
hp_frame_id hp_find_free(struct hp_thread *t, hp_frame_id wish, uint32_t want);

/* The number of the frame after the last one of the segment that holds `frame`. */
uint64_t hp_segment_end(const struct hp_pool_view *view, hp_frame_id frame);

/* Moves the frames of every CPU's cache back to the maps. */
void hp_caches_drain_locked(struct hp_pool_view *view, const struct hp_locker *who);

#endif
