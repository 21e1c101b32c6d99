/* SPDX-License-Identifier: MIT */
/*
 * Frames and their states.
 *
 *   ABSENT       a place in a segment that has no memory yet
 *   FREE_ZEROED  nobody's, and reads as zeroes through every mapping to come
 *   FREE_DIRTY   nobody's, with what its last owner left in it
 *   ZEROING      in the hands of one thread that writes zeroes; private to it
 *   USED         page `page` of file `owner`, or part of an extent
 *   HOLE         punched while mapped: pool/hole.h
 *
 * Places for base pages are ABSENT, USED or HOLE: pool/base.h.
 *
 * A free frame is in the free map or in a CPU's cache, or on its way between them in the hands of the thread that took
 * it. One word holds state, owner and page, so that a reader sees one whole truth. One function per transition; each
 * rejects what is not in the state that it starts from. The thread that has taken a frame is the only one that changes
 * its word.
 */
#ifndef HP_POOL_FRAME_H
#define HP_POOL_FRAME_H

#include "base/assert.h"
#include "base/units.h"

#include <stdatomic.h>

enum hp_frame_state {
	HP_FRAME_ABSENT = 0,
	HP_FRAME_FREE_ZEROED,
	HP_FRAME_FREE_DIRTY,
	HP_FRAME_ZEROING,
	HP_FRAME_USED,
	HP_FRAME_HOLE,
	HP_FRAME_STATES,
};

/* An owner that is not a file: an extent of hp_alloc. `page` is the extent's length at its first frame, else 0. */
#define HP_OWNER_EXTENT 0xffffffu
/* Holes that no file has any more: plus the tenant that they are still charged to. `page` is who has it in hand. */
#define HP_OWNER_HOMELESS 0x800000u

struct hp_frame {
	_Atomic uint64_t word; /* state: bits 0-7, owner: bits 8-31, page: bits 32-63 */
};

static inline uint64_t hp_frame_word(enum hp_frame_state state, uint32_t owner, uint32_t page)
{
	return (uint64_t)page << 32 | (uint64_t)owner << 8 | state;
}

static inline uint64_t hp_frame_load(const struct hp_frame *frame)
{
	return atomic_load_explicit(&frame->word, memory_order_acquire);
}

static inline enum hp_frame_state hp_frame_state(uint64_t word)
{
	return word & 0xff;
}

static inline uint32_t hp_frame_owner(uint64_t word)
{
	return word >> 8 & 0xffffff;
}

static inline uint32_t hp_frame_page(uint64_t word)
{
	return (uint32_t)(word >> 32);
}

static inline void hp_frame_change(struct hp_frame *frame, enum hp_frame_state from, uint64_t to)
{
	HP_ASSERT(hp_frame_state(atomic_load_explicit(&frame->word, memory_order_relaxed)) == from);
	atomic_store_explicit(&frame->word, to, memory_order_release);
}

static inline void hp_frame_fill(struct hp_frame *frame)
{
	hp_frame_change(frame, HP_FRAME_ABSENT, HP_FRAME_FREE_ZEROED);
}

static inline void hp_frame_start_zeroing(struct hp_frame *frame)
{
	hp_frame_change(frame, HP_FRAME_FREE_DIRTY, HP_FRAME_ZEROING);
}

static inline void hp_frame_finish_zeroing(struct hp_frame *frame)
{
	hp_frame_change(frame, HP_FRAME_ZEROING, HP_FRAME_FREE_ZEROED);
}

static inline void hp_frame_use(struct hp_frame *frame, uint32_t owner, uint32_t page)
{
	hp_frame_change(frame, HP_FRAME_FREE_ZEROED, hp_frame_word(HP_FRAME_USED, owner, page));
}

/* A place for base pages, which has no memory yet: pool/base.h. */
static inline void hp_frame_use_base(struct hp_frame *frame, uint32_t owner, uint32_t page)
{
	hp_frame_change(frame, HP_FRAME_ABSENT, hp_frame_word(HP_FRAME_USED, owner, page));
}

static inline void hp_frame_punch(struct hp_frame *frame)
{
	uint64_t word = hp_frame_load(frame);

	hp_frame_change(frame, HP_FRAME_USED, hp_frame_word(HP_FRAME_HOLE, hp_frame_owner(word), hp_frame_page(word)));
}

static inline void hp_frame_release(struct hp_frame *frame)
{
	hp_frame_change(frame, HP_FRAME_USED, HP_FRAME_FREE_DIRTY);
}

#endif
