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

/* Dirty frames take 0.1 ms each to zero: locks and tokens are held for no more than so many. */
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
	if (tries < 10)
		sched_yield();
	else
		hp_sleep_ns(50000);
}

/*
 * Fills pages from `page` on whose tokens we hold: as far as their frames lie in a row and are zeroed, or can be with
 * at most `*dirty` more to zero. Tokens and frames that are left over are given back. Returns how many pages were
 * filled; 0: a frame could not be mapped.
 */
static uint32_t fill_run(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t tokens, uint32_t *dirty)
{
	struct hp_taken taken = hp_take(t, hp_place_hint(t, use, page), tokens);
	uint32_t used = taken.count;

	if (taken.zeroed < taken.count)
		used = hp_frames_make_zeroed(t, taken.first, taken.count, dirty);
	insert(t, use, page, taken.first, used);
	if (used < taken.count)
		hp_put(t, taken.first + used, taken.count - used);
	if (used < tokens)
		hp_reserve_untake(t, use.record, page + used, tokens - used);
	return used;
}

/* ---- faults ----------------------------------------------------------------------------------------------------- */

/* One attempt to make an absent page present, with up to `most` - 1 after it. -EAGAIN: its token is another's. */
static int fault_page(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t most)
{
	uint32_t dirty = 1, tokens;
	int result = 0;

	if (t->pool->shared->fault_sleep_us)
		hp_sleep_ns((int64_t)t->pool->shared->fault_sleep_us * 1000);

	hp_intent_begin(t->intents, HP_INTENT_FAULT, use.number, page, most);
	tokens = hp_reserve_take(t, use.record, page, most);
	if (!tokens)
		result = -EAGAIN;
	else if (!fill_run(t, use, page, tokens, &dirty))
		result = -ENOMEM;
	hp_intent_end(t->intents);
	return result;
}

int hp_file_fault_locked(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t window)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	uint32_t most = (uint32_t)hp_min(1 + (uint64_t)window, use.record->most_pages - page);
	uint32_t mutexes = t->pool->shared->fault_mutexes;

	for (unsigned tries = 0; hp_index_lookup(index, page) == HP_NO_FRAME; tries++) {
		struct hp_mutex *mutex =
			mutexes ? hp_fault_mutex_for(t->pool->fault_mutexes, mutexes, use.number, page) : NULL;
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
			wait_in_transit(tries);
		else if (result)
			return result;
	}
	return 0;
}

/* ---- fills ------------------------------------------------------------------------------------------------------ */

/*
 * Fills a promised range, until so many frames had to be zeroed that signals and the file lock have been held for long
 * enough. The file lock is held for reading. *page: where to go on.
 */
static int fill_some_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	uint32_t dirty = DIRTY_PAGES_AT_ONCE;
	unsigned tries = 0;

	while (*page < end && dirty) {
		uint32_t in_chunk = HP_REGION_FRAMES - *page % HP_REGION_FRAMES, left = end - *page, tokens, filled = 0;

		if (hp_index_lookup(index, *page) != HP_NO_FRAME) {
			++*page;
			continue;
		}
		hp_intent_begin(t->intents, HP_INTENT_ALLOCATE, use.number, *page, left);
		tokens = hp_reserve_take(t, use.record, *page, left < in_chunk ? left : in_chunk);
		if (tokens)
			filled = fill_run(t, use, *page, tokens, &dirty);
		hp_intent_end(t->intents);
		if (tokens && !filled)
			return -ENOMEM;
		if (!tokens)
			wait_in_transit(tries++);
		*page += filled;
	}
	return 0;
}

/*
 * The file may have been cut while its lock was not held, and may have grown again since: then what was promised is not.
 * -EAGAIN: it has to be promised again; -EINVAL: the range lies beyond the end.
 */
static int fill_part_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end)
{
	uint32_t size = atomic_load(&use.record->pages);

	if (end > size) {
		hp_reserve_cut(t, use.record, size);
		return -EINVAL;
	}
	if (!hp_reserve_is_promised(t, use.record, *page, end - *page))
		return -EAGAIN;
	return fill_some_locked(t, use, page, end);
}

/* Fills a range in parts, as long as its promise holds. *page: where to go on. */
static int fill_promised(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end, sigset_t *saved)
{
	for (;;) {
		int result;

		hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
		result = fill_part_locked(t, use, page, end);
		hp_biased_read_unlock(&use.record->lock, &t->locker);
		if (result || *page == end)
			return result;
		hp_signals_restore(saved); /* what has been waiting comes in */
		hp_signals_block(saved);
	}
}

int hp_file_fill(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages, hp_error *error)
{
	uint32_t page = first, end = first + pages;
	sigset_t saved;
	int promised, result = 0;

	hp_signals_block(&saved);
	do {
		promised = hp_reserve_promise(t, use, page, end - page, &saved, error);
		if (!promised)
			result = fill_promised(t, use, &page, end, &saved);
	} while (!promised && result == -EAGAIN);
	hp_signals_restore(&saved);
	if (promised)
		return promised;
	if (result == -EINVAL)
		return hp_fail(error, result, HP_LIMIT_NONE, "the file has been cut meanwhile, to %lu bytes",
		               hp_bytes(atomic_load(&use.record->pages)));
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
