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
#include "file/place.h"
#include "file/reserve.h"

#include "base/error.h"
#include "pool/extent.h"
#include "sync/futex.h"

#include <errno.h>
#include <sched.h>

/* Dirty frames take 0.1 ms each to zero: tokens of no more than this are held meanwhile. */
#define DIRTY_PAGES_AT_ONCE 16u

/* Gives zeroed frames to pages whose tokens we hold. */
static void insert(struct hp_thread *t, struct hp_file_use use, uint32_t page, hp_frame_id frame, uint32_t count)
{
	struct hp_index index = hp_file_index(t->pool, use.record);

	for (uint32_t i = 0; i < count; i++) {
		hp_frame_use(&t->pool->frames[frame + i], use.number, page + i);
		hp_index_insert(index, page + i, frame + i);
	}
	atomic_fetch_add_explicit(&use.record->present, count, memory_order_relaxed);
}

/* The page's token is another's, who is about to insert it. Sleeping lets an owner of lower priority run. */
static void wait_in_transit(unsigned tries)
{
	static _Atomic uint32_t never;

	if (tries < 10)
		sched_yield();
	else
		hp_futex_wait(&never, 0, 50000);
}

/* How many of these frames are zeroed, from the first on. */
static uint32_t zeroed_prefix(const struct hp_pool_view *view, hp_frame_id frame, uint32_t count)
{
	uint32_t n = 0;

	while (n < count && hp_frame_state(hp_frame_load(&view->frames[frame + n])) == HP_FRAME_FREE_ZEROED)
		n++;
	return n;
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

/*
 * Fills pages whose tokens we hold: the first in any case, the others as far as zeroed frames follow its own. The
 * tokens of the rest are given back.
 */
static int fill_window(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t tokens)
{
	struct hp_pool_view *view = t->pool;
	hp_frame_id frame;
	uint32_t taken = hp_take(t, hp_place_hint(t, use, page), tokens, &frame), used;
	int result = hp_frames_make_zeroed(t, frame, 1);

	used = result ? 0 : zeroed_prefix(view, frame, taken);
	hp_intent_begin(t->intents, HP_INTENT_FAULT, use.number, page, used);
	insert(t, use, page, frame, used);
	if (used < taken)
		hp_put(t, frame + used, taken - used);
	if (used < tokens)
		hp_reserve_untake(t, use.record, page + used, tokens - used);
	hp_intent_end(t->intents);
	return result;
}

int hp_file_fault_locked(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t window)
{
	struct hp_pool_shared *shared = t->pool->shared;
	struct hp_index index = hp_file_index(t->pool, use.record);
	uint32_t most = (uint32_t)hp_min(1 + (uint64_t)window, use.record->pages - page);
	uint32_t mutexes = shared->fault_mutexes;

	for (unsigned tries = 0; hp_index_lookup(index, page) == HP_NO_FRAME; tries++) {
		struct hp_mutex *mutex =
			mutexes ? hp_fault_mutex_for(t->pool->fault_mutexes, mutexes, use.number, page) : NULL;
		bool in_transit = false;
		int result = 0;

		if (mutex)
			hp_mutex_lock(mutex, t->owner);
		if (hp_index_lookup(index, page) == HP_NO_FRAME) {
			uint32_t tokens = hp_reserve_take(t, use.record, page, most);

			in_transit = tokens == 0;
			if (tokens)
				result = fill_window(t, use, page, tokens);
		}
		if (mutex)
			hp_mutex_unlock(mutex);
		if (result)
			return result;
		if (in_transit && !mutexes)
			return -ENOMEM; /* what the mutexes are for */
		if (in_transit)
			wait_in_transit(tries);
	}
	return 0;
}

/* ---- fills ------------------------------------------------------------------------------------------------------ */

/* Fills pages of one chunk whose tokens we hold. On failure the tokens of what is left are given back. */
static int fill_tokens(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t tokens)
{
	hp_intent_begin(t->intents, HP_INTENT_ALLOCATE, use.number, page, tokens);
	while (tokens) {
		hp_frame_id frame;
		uint32_t taken = hp_take(t, hp_place_hint(t, use, page), tokens, &frame);

		if (hp_frames_make_zeroed(t, frame, taken)) {
			hp_put(t, frame, taken);
			hp_reserve_untake(t, use.record, page, tokens);
			hp_intent_end(t->intents);
			return -ENOMEM;
		}
		insert(t, use, page, frame, taken);
		page += taken;
		tokens -= taken;
	}
	hp_intent_end(t->intents);
	return 0;
}

/* How many zeroed frames there are, in a row, where a page and up to `most` after it should come. */
static uint32_t stock_for(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t most)
{
	hp_frame_id hint = hp_place_hint(t, use, page);

	if (hint == HP_NO_FRAME)
		return 0;
	return zeroed_prefix(t->pool, hint, (uint32_t)hp_min(most, hp_segment_end(t->pool, hint) - hint));
}

/*
 * Fills a promised range, until so many frames had to be zeroed that signals and the file lock have been held for long
 * enough. The file lock is held for reading. *page: where to go on.
 */
static int fill_some_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	unsigned tries = 0, dirty = 0;

	while (*page < end && dirty < DIRTY_PAGES_AT_ONCE) {
		uint32_t in_chunk = HP_REGION_FRAMES - *page % HP_REGION_FRAMES, stock, got;

		if (hp_index_lookup(index, *page) != HP_NO_FRAME) {
			++*page;
			continue;
		}
		in_chunk = in_chunk < end - *page ? in_chunk : end - *page;
		stock = stock_for(t, use, *page, in_chunk);
		got = hp_reserve_take(t, use.record, *page,
		                      stock ? stock : (uint32_t)hp_min(in_chunk, DIRTY_PAGES_AT_ONCE));
		if (!got) {
			wait_in_transit(tries++);
			continue;
		}
		if (fill_tokens(t, use, *page, got))
			return -ENOMEM;
		dirty += stock ? 0 : got;
		*page += got;
		tries = 0;
	}
	return 0;
}

int hp_file_fill(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages, hp_error *error)
{
	uint32_t page = first, end = first + pages;
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	result = hp_reserve_promise(t, use, first, pages, &saved, error);
	if (result) {
		hp_signals_restore(&saved);
		return result;
	}
	for (;;) {
		hp_rwsem_read_lock(&use.record->lock);
		result = fill_some_locked(t, use, &page, end);
		hp_rwsem_read_unlock(&use.record->lock);
		if (result || page == end)
			break;
		hp_signals_restore(&saved); /* what has been waiting comes in */
		hp_signals_block(&saved);
	}
	hp_signals_restore(&saved);
	if (result)
		hp_fail(error, result, HP_LIMIT_MEMORY, "frames of the pool could not be mapped to zero them");
	return result;
}

int hp_file_allocate(hp_file file, uint64_t offset, uint64_t length, hp_error *error)
{
	struct hp_file_use use;
	struct hp_thread *t;
	uint32_t first, pages;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	result = hp_file_range(use.record, offset, length, &first, &pages, error);
	if (!result)
		result = hp_file_fill(t, use, first, pages, error);
	hp_file_put(t, use.number);
	return result;
}
