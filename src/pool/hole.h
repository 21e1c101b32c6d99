/* SPDX-License-Identifier: MIT */
/*
 * Holes: frames that were punched while somebody maps them.
 *
 * The kernel takes the page of a punched frame out of every process at once, stopped ones included, and gives a zeroed
 * one to whoever touches the place again. So whether a hole has memory is the kernel's to say, and what is in it may
 * be anybody's; its place in the segment stays with its file until no process maps it:
 *
 *   USED -> HOLE          punched: the kernel's page is gone, its reservation is renewed
 *   HOLE -> USED          memory is back: what was stored since the punch is kept
 *   HOLE -> HOLE, no file nobody maps it, and it is in no file: homeless
 *   homeless -> FREE_DIRTY  memory is back
 *
 * Memory of other kinds than hugetlb cannot be reserved, and the kernel may give it to others: it is zeroed where it is
 * instead of being given back. Places for base pages are given back, and need no memory to be used again (pool/base.h).
 */
#ifndef HP_POOL_HOLE_H
#define HP_POOL_HOLE_H

#include "pool/pool.h"

/*
 * Makes used frames in a row holes, and empties those that are holes already. Who else could make them used is kept
 * out by the caller. Returns how many became holes. `*uncovered` grows by the number of holes that have no
 * reservation: a touch of these is SIGBUS if the kernel's pool is empty by then.
 */
uint32_t hp_holes_punch(struct hp_thread *t, hp_frame_id first, uint32_t count, uint64_t *uncovered);
/*
 * Brings the memory of a hole back: true if it is a used frame now and this call made it so. -ENOMEM, -EFAULT in
 * *result.
 */
bool hp_hole_refill(struct hp_thread *t, hp_frame_id frame, int *result);
/*
 * Frames in a row, in one segment, that their file, of this tenant, has no more, and that nobody maps: the used ones become free, and
 * holes homeless.
 */
void hp_frames_abandon(struct hp_thread *t, hp_frame_id first, uint32_t count, uint32_t tenant);
/* Brings the memory of homeless holes back, as far as the kernel has any, and makes them free. */
void hp_holes_settle(struct hp_thread *t);

#endif
