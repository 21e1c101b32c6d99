/* SPDX-License-Identifier: MIT */
#include "file/reserve.h"

#include "base/bitmap.h"
#include "base/machine.h"
#include "pool/base.h"
#include "pool/extent.h"
#include "pool/hole.h"
#include "pool/tenant.h"

#include <errno.h>

struct maps {
	uint64_t *promised;
	_Atomic uint64_t *taken;
};

static struct maps maps_of(const struct hp_pool_view *view, const struct hp_file_record *file)
{
	return (struct maps){hp_pages_at(&view->pages, file->promised_run), hp_pages_at(&view->pages, file->taken_run)};
}

uint64_t hp_reserve_bytes(uint32_t pages)
{
	return hp_bitmap_words(pages) * sizeof(uint64_t);
}

/* One for each file, or by tuning one for all. */
static struct hp_mutex *lock_of(struct hp_thread *t, struct hp_file_record *file)
{
	return t->pool->shared->resv_lock == HP_RESV_LOCK_GLOBAL ? &t->pool->shared->resv_lock_of_all
	                                                         : &file->reserve_lock;
}

/* What is committed for a promise, and not yet spent on it. */
struct purse {
	uint64_t frames, base;
};

/*
 * Marks what is not promised yet, and pays for it out of the purse: places for base pages first, and frames, of which
 * it takes more if they are too few. -ENOMEM: nothing is marked, and so many are missing; -EDQUOT: the tenant's limit.
 */
static int promise_locked(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages,
                          struct purse *purse, uint64_t *missing)
{
	struct maps maps = maps_of(t->pool, use.record);
	uint64_t needed = pages - hp_bitmap_count(maps.promised, first, pages), base = hp_min(purse->base, needed);
	int result = hp_tenant_charge(t, use.record->tenant, needed - base, base, &purse->frames, missing);

	if (result)
		*missing = result == -EDQUOT ? needed : *missing;
	if (result || !needed)
		return result;
	purse->base -= base;
	hp_intent_begin(t->intents, HP_INTENT_RESERVE, use.number, first, pages);
	hp_bitmap_set(maps.promised, first, pages);
	atomic_fetch_add(&use.record->base_promised, (uint32_t)base);
	hp_intent_end(t->intents);
	return 0;
}

/* A tenant's limit is reached: what dead processes and homeless holes have of it is given back. */
static int take_back(struct hp_thread *t)
{
	hp_pool_reap(t);
	hp_holes_settle(t);
	return 0;
}

/* Places for base pages in the place of frames that are missing, but for those that there are. */
static int fall_back(struct hp_thread *t, struct purse *purse, uint64_t missing, hp_error *error)
{
	uint64_t frames = hp_min(missing, atomic_load(&t->pool->shared->uncommitted));
	int result;

	while (frames && hp_commit(t->pool, frames)) /* others take them */
		frames = hp_min(frames - 1, atomic_load(&t->pool->shared->uncommitted));
	purse->frames += frames;
	result = missing > frames ? hp_base_commit(t->pool, missing - frames, error) : 0;
	if (!result)
		purse->base += missing - frames;
	return result;
}

/* So many more frames, or what the file may have instead. May wait, and may destroy other files. */
static int get_more(struct hp_thread *t, const struct hp_file_record *file, struct purse *purse, uint64_t missing,
                    int64_t deadline_ns, hp_error *error)
{
	hp_error why = {.code = 0}; /* of a call that may yet succeed */
	int result = hp_pool_promise(t, missing, &why);

	while (result == -ENOMEM && deadline_ns && hp_pool_await_frames(t, deadline_ns))
		result = hp_pool_promise(t, missing, &why);
	if (!result)
		purse->frames += missing;
	else if (file->flags & HP_FILE_FALLBACK)
		result = fall_back(t, purse, missing, &why);
	if (result && error)
		*error = why;
	return result;
}

int hp_reserve_promise(struct hp_thread *t, struct hp_file_use use, uint32_t first, uint32_t pages,
                       const sigset_t *outside, hp_error *error)
{
	int64_t deadline = use.record->wait_ms ? hp_now_ns() + (int64_t)use.record->wait_ms * 1000000 : 0;
	struct purse purse = {0, 0};
	bool looked = false;
	sigset_t blocked;
	int result;

	for (;;) {
		uint64_t missing;

		hp_mutex_lock(lock_of(t, use.record), &t->locker, HP_CLASS_RESERVE);
		result = promise_locked(t, use, first, pages, &purse, &missing);
		hp_mutex_unlock(lock_of(t, use.record), &t->locker);
		if (!result)
			break;
		if (result == -EDQUOT && looked) {
			hp_tenant_explain(t->pool, use.record->tenant, missing, error);
			break;
		}
		looked |= result == -EDQUOT;
		/* The slow way runs without the lock. What it gets is kept. */
		pthread_sigmask(SIG_SETMASK, outside, &blocked);
		result = result == -EDQUOT ? take_back(t) : get_more(t, use.record, &purse, missing, deadline, error);
		hp_signals_restore(&blocked);
		if (result)
			break;
	}
	if (purse.frames)
		hp_pool_unpromise(t->pool, purse.frames);
	if (purse.base)
		hp_base_uncommit(t->pool, purse.base);
	return result;
}

uint32_t hp_reserve_take(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages)
{
	struct maps maps = maps_of(t->pool, file);
	uint32_t got = 0;

	while (got < pages) {
		uint64_t word = (first + got) / 64, mask = hp_bitmap_mask(word, first + got, pages - got);
		uint64_t before = atomic_load_explicit(&maps.taken[word], memory_order_relaxed), mine;

		do {
			/* The bits of the mask below the first one that is taken. */
			uint64_t lost = before & mask;

			mine = lost ? mask & ((lost & -lost) - 1) : mask;
			if (!mine)
				break;
		} while (!atomic_compare_exchange_weak_explicit(&maps.taken[word], &before, before | mine,
		                                                memory_order_acq_rel, memory_order_relaxed));
		got += (uint32_t)__builtin_popcountll(mine);
		if (mine != mask)
			break;
	}
	return got;
}

uint32_t hp_reserve_take_base(struct hp_file_record *file, uint32_t tokens)
{
	uint32_t have = atomic_load_explicit(&file->base_promised, memory_order_relaxed), taken;

	do
		taken = have < tokens ? have : tokens;
	while (taken && !atomic_compare_exchange_weak(&file->base_promised, &have, have - taken));
	return taken;
}

void hp_reserve_untake_base(struct hp_file_record *file, uint32_t places)
{
	if (places)
		atomic_fetch_add(&file->base_promised, places);
}

void hp_reserve_untake(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages)
{
	struct maps maps = maps_of(t->pool, file);

	for (uint64_t word = first / 64; pages && word <= (first + pages - 1) / 64; word++)
		atomic_fetch_and_explicit(&maps.taken[word], ~hp_bitmap_mask(word, first, pages), memory_order_release);
}

uint64_t hp_reserve_count(const struct hp_pool_view *view, const struct hp_file_record *file, uint64_t *unpromised)
{
	struct maps maps = maps_of(view, file);
	uint64_t reserved = 0;

	*unpromised = 0;
	for (uint64_t word = 0; word < hp_bitmap_words(atomic_load(&file->reach)); word++) {
		uint64_t taken = atomic_load_explicit(&maps.taken[word], memory_order_relaxed);

		reserved += (uint64_t)__builtin_popcountll(maps.promised[word] & ~taken);
		*unpromised += (uint64_t)__builtin_popcountll(taken & ~maps.promised[word]);
	}
	return reserved;
}

void hp_reserve_drop(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages)
{
	struct maps maps = maps_of(t->pool, file);
	uint64_t dropped = 0, base, end = hp_min((uint64_t)first + pages, atomic_load(&file->reach));

	if (first >= end)
		return;
	hp_mutex_lock(lock_of(t, file), &t->locker, HP_CLASS_RESERVE);
	for (uint64_t word = first / 64; word < hp_bitmap_words(end); word++) {
		uint64_t inside = hp_bitmap_mask(word, first, end - first);
		uint64_t taken = atomic_load_explicit(&maps.taken[word], memory_order_acquire);

		dropped += (uint64_t)__builtin_popcountll(maps.promised[word] & ~taken & inside);
		maps.promised[word] &= taken | ~inside;
	}
	base = hp_reserve_take_base(file, (uint32_t)dropped);
	hp_mutex_unlock(lock_of(t, file), &t->locker);
	if (base)
		hp_tenant_uncharge_base(t, file->tenant, base);
	if (dropped > base)
		hp_tenant_uncharge(t, file->tenant, dropped - base);
}

void hp_reserve_forget(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages)
{
	hp_mutex_lock(lock_of(t, file), &t->locker, HP_CLASS_RESERVE);
	hp_bitmap_clear(maps_of(t->pool, file).promised, first, pages);
	hp_reserve_untake(t, file, first, pages);
	hp_mutex_unlock(lock_of(t, file), &t->locker);
}

bool hp_reserve_is_promised(struct hp_thread *t, struct hp_file_record *file, uint32_t first, uint32_t pages)
{
	bool all;

	hp_mutex_lock(lock_of(t, file), &t->locker, HP_CLASS_RESERVE);
	all = hp_bitmap_count(maps_of(t->pool, file).promised, first, pages) == pages;
	hp_mutex_unlock(lock_of(t, file), &t->locker);
	return all;
}

bool hp_reserve_is_taken(const struct hp_pool_view *view, const struct hp_file_record *file, uint32_t page)
{
	return atomic_load_explicit(&maps_of(view, file).taken[page / 64], memory_order_acquire) >> page % 64 & 1;
}
