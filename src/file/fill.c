/* SPDX-License-Identifier: MIT */
/* Making whole ranges present: zeroed frames first, then dirty ones, on all CPUs where these are many. */
#include "file/fill.h"

#include "base/error.h"
#include "base/machine.h"
#include "file/reserve.h"
#include "pool/base.h"
#include "pool/hole.h"
#include "sync/futex.h"

#include <errno.h>

/* Dirty frames take 0.1 ms each to zero: locks and tokens are held for no more than so many. */
#define DIRTY_PAGES_AT_ONCE 16u
#define TEAM_PIECE 32u
#define TEAM_MAX 64u

/* What is done at once is at least a page of the kernel's. */
static uint32_t at_least_a_page(const struct hp_pool_view *view, uint32_t frames)
{
	return frames > hp_unit(view) ? frames : hp_unit(view);
}

int hp_file_refill_locked(struct hp_thread *t, struct hp_file_use use, hp_frame_id frame)
{
	int result;

	if (hp_hole_refill(t, frame, &result)) {
		atomic_fetch_sub_explicit(&use.record->holes, 1, memory_order_relaxed);
		atomic_fetch_add_explicit(&use.record->present, 1, memory_order_relaxed);
	}
	return result == -EFAULT ? -ENOMEM : result;
}

/* The memory of one page that is there. *dirty: what costs as much as zeroing a frame is counted down. */
static int complete_locked(struct hp_thread *t, struct hp_file_use use, hp_frame_id frame, enum hp_fill what,
                           uint32_t *dirty)
{
	bool hole = hp_frame_state(hp_frame_load(&t->pool->frames[frame])) == HP_FRAME_HOLE;
	bool base = hp_is_base(t->pool, frame) && what == HP_FILL_MEMORY;
	int result = hole ? hp_file_refill_locked(t, use, frame) : 0;

	*dirty -= hole || base;
	return result || !base ? result : hp_file_populate_base(t, frame);
}

/* Goes on to the next page that is absent. */
static int pass_present_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end,
                               enum hp_fill what, uint32_t *dirty)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	uint32_t run = hp_index_run(index, *page, end - *page), done = 0;
	hp_frame_id frame = hp_index_lookup(index, *page);
	int result = 0;

	if (!atomic_load_explicit(&use.record->holes, memory_order_relaxed) &&
	    (what == HP_FILL_PLACES || !hp_is_base(t->pool, frame + run - 1)))
		done = run;
	for (; done < run && *dirty && !result; done += !result)
		result = complete_locked(t, use, frame + done, what, dirty);
	*page += done;
	return result == -EFAULT ? -ENOMEM : result;
}

/*
 * Fills a promised range, until so many frames had to be zeroed that signals and the file lock have been held for long
 * enough. The file lock is held for reading. *page: where to go on.
 */
static int fill_some_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end,
                            enum hp_fill what)
{
	struct hp_index index = hp_file_index(t->pool, use.record);
	uint32_t dirty = at_least_a_page(t->pool, DIRTY_PAGES_AT_ONCE);
	unsigned tries = 0;

	while (*page < end && dirty) {
		uint32_t in_chunk = HP_REGION_FRAMES - *page % HP_REGION_FRAMES, left = end - *page, tokens, filled = 0;

		if (hp_index_lookup(index, *page) != HP_NO_FRAME) {
			int result = pass_present_locked(t, use, page, end, what, &dirty);

			if (result)
				return result;
			continue;
		}
		hp_intent_begin(t->intents, HP_INTENT_ALLOCATE, use.number, *page, left);
		tokens = hp_reserve_take(t, use.record, *page, left < in_chunk ? left : in_chunk);
		if (tokens)
			filled = hp_file_fill_run(t, use, *page, tokens, &dirty, what);
		hp_intent_end(t->intents);
		if (tokens && !filled)
			return -ENOMEM;
		if (!tokens)
			hp_file_wait_in_transit(tries++);
		*page += filled;
	}
	return 0;
}

/*
 * The file may have been cut while its lock was not held, and may have grown again since: then what was promised is
 * not. -EAGAIN: it has to be promised again; -EINVAL: the range lies beyond the end.
 */
static int fill_part_locked(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end,
                            enum hp_fill what)
{
	uint32_t size = atomic_load(&use.record->pages);

	if (end > size) {
		hp_reserve_drop(t, use.record, size, end - size);
		return -EINVAL;
	}
	if (!hp_reserve_is_promised(t, use.record, *page, end - *page))
		return -EAGAIN;
	return fill_some_locked(t, use, page, end, what);
}

/* One part. */
static int fill_part(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end, enum hp_fill what)
{
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
	result = fill_part_locked(t, use, page, end, what);
	hp_biased_read_unlock(&use.record->lock, &t->locker);
	hp_signals_restore(&saved); /* what has been waiting comes in */
	return result;
}

/* ---- on all CPUs ------------------------------------------------------------------------------------------------ */

/*
 * Where many frames have to be zeroed, threads are made for it that end with the call. The caller waits for their
 * work, not for their ends: an ending thread needs a lock that a fork holds, while it waits for calls like the
 * caller's.
 */
struct team {
	struct hp_pool_view *view;
	struct hp_file_use use;
	uint32_t end;
	enum hp_fill what;
	uint32_t piece;           /* pages that one thread takes at once */
	_Atomic uint64_t next;    /* first page that nobody has begun with; goes on beyond the end */
	_Atomic uint32_t working; /* futex: threads beside the caller */
	_Atomic int result;       /* the first one that is not 0 */
};

static void work(struct team *team, struct hp_thread *t)
{
	int result = 0;

	while (!result && !atomic_load(&team->result)) {
		uint64_t next = atomic_fetch_add(&team->next, team->piece);
		uint32_t page = (uint32_t)next, end;

		if (next >= team->end)
			return;
		end = (uint32_t)hp_min(team->end, next + team->piece);
		while (page < end && !result)
			result = fill_part(t, team->use, &page, end, team->what);
	}
	if (result)
		atomic_store(&team->result, result);
}

static void *help(void *context)
{
	struct team *team = context;
	struct hp_thread *t;

	if (!hp_thread_enter(team->view, &t))
		work(team, t);
	/* With the last one the team's memory goes. */
	if (atomic_fetch_sub(&team->working, 1) == 1)
		hp_futex_wake(&team->working, INT_MAX);
	return NULL;
}

static void call_helpers(struct team *team, uint32_t most)
{
	pthread_attr_t attributes;
	sigset_t saved;

	if (pthread_attr_init(&attributes))
		return;
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	hp_signals_block(&saved); /* our threads run no handler of the program */
	for (uint32_t i = 0; i < most; i++) {
		pthread_t thread;

		atomic_fetch_add(&team->working, 1);
		if (pthread_create(&thread, &attributes, help, team)) {
			atomic_fetch_sub(&team->working, 1);
			break; /* the caller does it alone, or with those that are there */
		}
	}
	hp_signals_restore(&saved);
	pthread_attr_destroy(&attributes);
}

static int fill_together(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t end, enum hp_fill what)
{
	struct team team = {.view = t->pool,
	                    .use = use,
	                    .end = end,
	                    .what = what,
	                    .piece = at_least_a_page(t->pool, TEAM_PIECE),
	                    .next = page};
	uint32_t working;

	call_helpers(&team, (uint32_t)hp_min(hp_min(hp_cpu_count(), TEAM_MAX), (end - page) / team.piece) - 1);
	work(&team, t);
	while ((working = atomic_load(&team.working)))
		hp_futex_wait(&team.working, working, HP_FUTEX_FOREVER);
	return atomic_load(&team.result);
}

/* ---- ranges ----------------------------------------------------------------------------------------------------- */

/* Fills a range in parts, as long as its promise holds. *page: where to go on. */
static int fill_promised(struct hp_thread *t, struct hp_file_use use, uint32_t *page, uint32_t end, enum hp_fill what)
{
	int result = fill_part(t, use, page, end, what);

	/* What a part did not get to has to be zeroed. */
	if (!result && end - *page >= 2 * at_least_a_page(t->pool, TEAM_PIECE))
		return fill_together(t, use, *page, end, what);
	while (!result && *page < end)
		result = fill_part(t, use, page, end, what);
	return result;
}

/* Promises what is not promised. */
static int promise(struct hp_thread *t, struct hp_file_use use, uint32_t page, uint32_t end, hp_error *error)
{
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	result = hp_reserve_promise(t, use, page, end - page, &saved, error);
	hp_signals_restore(&saved);
	return result;
}

int hp_file_fill(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages, enum hp_fill what,
                 hp_error *error)
{
	uint32_t page = first, end = first + pages;
	int result;

	do {
		result = promise(t, use, page, end, error);
		if (result)
			return result;
		result = fill_promised(t, use, &page, end, what);
	} while (result == -EAGAIN);
	if (result == -EINVAL)
		return hp_fail(error, result, HP_LIMIT_NONE, "the file has been cut meanwhile, to %lu bytes",
		               hp_bytes(atomic_load(&use.record->pages)));
	if (result)
		hp_fail(error, result, HP_LIMIT_MEMORY,
		        "frames of the pool could not be mapped to zero them, or there is no room to index them");
	return result;
}

/* Under the file lock for reading, against who removes nodes. */
int hp_file_prepare(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages, hp_error *error)
{
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
	result = hp_index_prepare(hp_file_index(t->pool, use.record), hp_pgoff(first), hp_pgoff(first + pages),
	                          HP_ORDER_FRAME, &t->locker);
	hp_biased_read_unlock(&use.record->lock, &t->locker);
	hp_signals_restore(&saved);
	if (result)
		return hp_fail(error, result, HP_LIMIT_TABLE,
		               "the pool has no room left to index the file; close files or give it a larger max_size");
	return 0;
}

int hp_file_allocate(hp_file file, uint64_t offset, uint64_t length, hp_error *error)
{
	struct hp_file_use use;
	struct hp_thread *t;
	uint32_t first, pages;
	int result = hp_file_enter(file, &t, &use, error);

	if (result)
		return result;
	result = hp_file_range(t->pool, use.record, offset, length, &first, &pages, error);
	if (!result)
		result = hp_file_fill(t, use, first, pages, HP_FILL_MEMORY, error);
	hp_file_put(t, use.number);
	return result;
}
