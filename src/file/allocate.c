/* SPDX-License-Identifier: MIT */
/*
 * Making pages present.
 *
 * Two ways lead here. A fault wants one page and orders itself by the fault mutex of that page. A fill wants a whole
 * range and takes the tokens of many pages at once, without their mutexes. Whoever has a page's token inserts it:
 *
 *   fault                                  fill
 *   lock the page's mutex
 *   look up: absent
 *                                          take the tokens of pages 0 to 511
 *   ask for the token: taken
 *   unlock, wait a moment, begin again     insert
 *   look up: present
 */
#include "file/fill.h"
#include "file/place.h"
#include "file/reserve.h"

#include "base/error.h"
#include "pool/base.h"
#include "pool/extent.h"
#include "pool/hole.h"
#include "sync/futex.h"

#include <errno.h>
#include <sched.h>

/* Gives zeroed frames to pages whose tokens we hold. False: the index has no node for them, and can get none. */
static bool insert(struct hp_thread *t, struct hp_file_use use, uint32_t page, hp_frame_id frame, uint32_t count)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	bool base = hp_is_base(t->pool, frame);

	if (hp_index_insert(index, page, frame, count, &t->locker))
		return false;
	for (uint32_t i = 0; i < count; i++) {
		if (base)
			hp_frame_use_base(&t->pool->frames[frame + i], use.number, page + i);
		else
			hp_frame_use(&t->pool->frames[frame + i], use.number, page + i);
	}
	atomic_fetch_add_explicit(&use.record->present, count, memory_order_relaxed);
	return true;
}

void hp_file_wait_in_transit(unsigned tries)
{
	if (tries < 10)
		sched_yield();
	else
		hp_sleep_ns(50000);
}

/* Up to `count` frames for pages from `page` on; returns how many. */
static uint32_t fill_frames(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t count, uint32_t *dirty)
{
	struct hp_taken taken = hp_take(t, hp_place_hint(t, use, page), count);
	uint32_t used = taken.count;

	if (taken.zeroed < taken.count)
		used = hp_frames_make_zeroed(t, taken.first, taken.count, dirty);
	if (used && !insert(t, use, page, taken.first, used))
		used = 0;
	if (used < taken.count)
		hp_put(t, taken.first + used, taken.count - used);
	return used;
}

int hp_file_populate_base(struct hp_thread *t, hp_frame_id place)
{
	void *address = hp_direct(t->pool, place);

	return address ? t->pool->os->ops->populate(t->pool->os, address, HP_FRAME_SIZE) : -ENOMEM;
}

/* The same with places for base pages. */
static uint32_t fill_base(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t count, uint32_t *dirty,
                          enum hp_fill what)
{
	hp_frame_id before =
		page % HP_REGION_FRAMES ? hp_index_lookup(hp_file_index(t->pool, use.record), page - 1) : HP_NO_FRAME;
	hp_frame_id hint = before != HP_NO_FRAME && hp_is_base(t->pool, before) ? before + 1 : HP_NO_FRAME, first;
	uint32_t taken = hp_base_take(t, hint, count, &first), used = taken;

	if (what == HP_FILL_MEMORY) {
		for (used = 0; used < taken && *dirty && !hp_file_populate_base(t, first + used); used++)
			--*dirty;
	}
	if (used && !insert(t, use, page, first, used))
		used = 0;
	if (used < taken)
		hp_base_give(t, first + used, taken - used);
	atomic_fetch_add_explicit(&use.record->base, used, memory_order_relaxed);
	return used;
}

uint32_t hp_file_fill_run(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t tokens, uint32_t *dirty,
                          enum hp_fill what)
{
	uint32_t base = hp_reserve_take_base(use.record, tokens), used;

	if (base) {
		used = fill_base(t, use, page, base, dirty, what);
		hp_reserve_untake_base(use.record, base - used);
	} else {
		used = fill_frames(t, use, page, tokens, dirty);
	}
	if (used < tokens)
		hp_reserve_untake(t, use.record, page + used, tokens - used);
	return used;
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

/* One attempt to make an absent page present, with up to `most` - 1 after it. -EAGAIN: its token is another's. */
static int fault_page(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t most)
{
	uint32_t dirty = hp_unit(t->pool), tokens;
	int result = 0;

	if (t->pool->shared->fault_sleep_us)
		hp_sleep_ns((int64_t)t->pool->shared->fault_sleep_us * 1000);

	hp_intent_begin(t->intents, HP_INTENT_FAULT, use.number, page, most);
	tokens = hp_reserve_take(t, use.record, page, most);
	if (!tokens)
		result = -EAGAIN;
	else if (!hp_file_fill_run(t, use, page, tokens, &dirty, HP_FILL_PLACES))
		result = -ENOMEM;
	hp_intent_end(t->intents);
	return result;
}

int hp_file_fault_locked(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t window,
                         struct hp_fault_key key)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	uint32_t size = atomic_load(&use.record->pages), most;
	uint32_t mutexes = t->pool->shared->fault_mutexes;

	if (page >= size)
		return -ENXIO;
	/* Pages are inserted node by node. */
	most = (uint32_t)hp_min(hp_min(1 + (uint64_t)window, size - page), HP_REGION_FRAMES - page % HP_REGION_FRAMES);
	for (unsigned tries = 0; hp_index_lookup(index, page) == HP_NO_FRAME; tries++) {
		struct hp_mutex *mutex =
			mutexes ? hp_fault_mutex_for(t->pool->fault_mutexes, mutexes, key.object, key.place) : NULL;
		int result = 0;

		if (mutex)
			hp_mutex_lock(mutex, &t->locker, HP_CLASS_FAULT);
		if (hp_index_lookup(index, page) == HP_NO_FRAME)
			result = fault_page(t, use, page, most);
		if (mutex)
			hp_mutex_unlock(mutex, &t->locker);
		if (result == -EAGAIN && !mutexes)
			return -ENOMEM; /* what the mutexes are for */
		if (result == -EAGAIN)
			hp_file_wait_in_transit(tries);
		else if (result)
			return result;
	}
	return 0;
}
