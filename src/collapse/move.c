/* SPDX-License-Identifier: MIT */
#include "collapse/move.h"

#include "base/log.h"
#include "base/machine.h"
#include "collapse/mappings.h"
#include "file/lock.h"
#include "file/moving.h"
#include "file/place.h"
#include "pool/base.h"
#include "pool/extent.h"
#include "pool/tenant.h"

#include <string.h>

struct move {
	struct hp_thread *t;
	struct hp_file_use use;
	uint32_t page;
	enum hp_move_kind kind;
	hp_frame_id from, to;
	uint64_t word;     /* of `from`, when it was looked at */
	bool to_is_zeroed; /* before it was copied to */
	bool stays;        /* the old memory is still mapped somewhere */
	uint64_t surplus;  /* frames promised to the tenant that it does not need any more */
	int64_t started, locked, protected, copied, switched;
};

static struct hp_collapse_books *books_of(const struct move *move)
{
	return &move->t->pool->shared->collapse;
}

static void count(_Atomic uint64_t *counter, uint64_t by)
{
	atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

/* ---- looking ---------------------------------------------------------------------------------------------------- */

/* Whether the page can be moved. The file lock is held for reading or better; its memory is noted. */
static enum hp_move_result look(struct move *move)
{
	struct hp_pool_view *view = move->t->pool;
	bool collapse = move->kind == HP_MOVE_COLLAPSE;

	if (move->page >= atomic_load(&move->use.record->pages))
		return HP_MOVE_NOTHING;
	move->from = hp_index_lookup(hp_file_index(view, move->use.record), move->page);
	if (move->from == HP_NO_FRAME || hp_is_base(view, move->from) != collapse)
		return HP_MOVE_NOTHING;
	if (hp_file_refill_locked(move->t, move->use, move->from)) /* a hole, which somebody may have stored to */
		return HP_MOVE_NO_MEMORY;
	move->word = hp_frame_load(&view->frames[move->from]);
	if (hp_page_is_pinned(view, move->use.number, move->page))
		return HP_MOVE_PINNED;
	return hp_mappings_are_ours(view, move->use, move->page) ? HP_MOVED : HP_MOVE_SHARED;
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static bool take_frame(struct move *move)
{
	struct hp_thread *t = move->t;
	struct hp_taken taken;

	if (hp_tenant_to_frame(t, move->use.record->tenant))
		return false;
	taken = hp_take(t, hp_place_hint(t, move->use, move->page), 1);
	move->to = taken.first;
	move->to_is_zeroed = taken.zeroed == 1;
	return true;
}

static bool take_base(struct move *move)
{
	if (hp_base_commit(move->t->pool, 1, NULL))
		return false;
	hp_base_take(move->t, HP_NO_FRAME, 1, &move->to);
	move->to_is_zeroed = true;
	return true;
}

/* A place, which is nobody's any more. */
static void free_base(struct hp_thread *t, hp_frame_id place)
{
	hp_base_give(t, place, 1);
	hp_base_uncommit(t->pool, 1);
}

/* Nothing has been written to it, or it does not matter. */
static void give_back(struct move *move)
{
	if (move->kind == HP_MOVE_SPLIT) {
		free_base(move->t, move->to);
	} else {
		hp_put(move->t, move->to, 1);
		hp_tenant_to_base(move->t, move->use.record->tenant);
	}
}

/* A frame that was taken as zeroed and has been written to is dirty. */
static void spoil(struct move *move)
{
	struct hp_frame *frame = &move->t->pool->frames[move->to];

	if (move->kind == HP_MOVE_COLLAPSE && move->to_is_zeroed)
		hp_frame_change(frame, HP_FRAME_FREE_ZEROED, hp_frame_word(HP_FRAME_FREE_DIRTY, 0, 0));
}

static bool take(struct move *move)
{
	struct hp_pool_view *view = move->t->pool;

	if (!(move->kind == HP_MOVE_COLLAPSE ? take_frame(move) : take_base(move)))
		return false;
	if (hp_direct(view, move->to) && hp_direct(view, move->from))
		return true;
	give_back(move);
	return false;
}

/* ---- locks ------------------------------------------------------------------------------------------------------ */

static void lock_space(void)
{
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
}

static void unlock_space(void)
{
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
}

/* A run of a GiB that has the page is divided: -ENOMEM is no room for that. The file lock is held for writing. */
static bool divide(struct move *move)
{
	struct hp_index index = hp_file_index(move->t->pool, move->use.record);

	return !hp_index_divide(index, hp_pgoff(move->page), &move->t->locker) &&
	       !hp_index_divide(index, hp_pgoff(move->page + 1), &move->t->locker);
}

/* What was seen under the upgradeable lock stays true. */
static enum hp_move_result prepare_upgrade(struct move *move)
{
	struct hp_biased *lock = &move->use.record->lock;
	enum hp_move_result result;

	hp_mutex_lock(&move->use.record->vma_lock, &move->t->locker, HP_CLASS_FILE_MAPPINGS);
	hp_biased_upgradeable_lock(lock, &move->t->locker, HP_CLASS_FILE);
	hp_file_end_stale_move(move->use.record);
	result = look(move);
	if (result == HP_MOVED && !take(move))
		result = HP_MOVE_NO_MEMORY;
	if (result == HP_MOVED) {
		hp_biased_upgrade(lock, &move->t->locker);
		return HP_MOVED;
	}
	hp_biased_upgradeable_unlock(lock, &move->t->locker);
	hp_mutex_unlock(&move->use.record->vma_lock, &move->t->locker);
	return result;
}

/* What was seen under the lock for reading is looked at again under the lock for writing. */
static enum hp_move_result prepare_relock(struct move *move)
{
	struct hp_file_record *file = move->use.record;
	enum hp_move_result result;
	hp_frame_id from;
	uint64_t word;

	hp_mutex_lock(&file->vma_lock, &move->t->locker, HP_CLASS_FILE_MAPPINGS);
	hp_biased_read_lock(&file->lock, &move->t->locker, HP_CLASS_FILE);
	result = look(move);
	hp_biased_read_unlock(&file->lock, &move->t->locker);
	hp_mutex_unlock(&file->vma_lock, &move->t->locker);
	if (result != HP_MOVED)
		return result;
	if (!take(move))
		return HP_MOVE_NO_MEMORY;

	hp_file_modify_lock(move->t, move->use);
	hp_file_end_stale_move(file);
	count(&books_of(move)->rechecked, 1);
	from = move->from;
	word = move->word;
	if (hp_frame_load(&move->t->pool->frames[from]) == word && look(move) == HP_MOVED && move->from == from)
		return HP_MOVED;
	hp_file_modify_unlock(move->t, move->use);
	give_back(move);
	return HP_MOVE_GAVE_UP;
}

/* ---- copying ---------------------------------------------------------------------------------------------------- */

/* What base pages there are; the rest of the frame is zero. */
static int copy_into_frame(struct move *move)
{
	struct hp_pool_view *view = move->t->pool;
	const void *source = hp_mappings_source(view, move->use, move->page);
	uint64_t offset;
	unsigned segment = hp_segment_of(view, move->from, &offset);

	return view->os->ops->gather(view->os, hp_direct(view, move->to), source, view->segment[segment], offset,
	                             HP_FRAME_SIZE);
}

/* What is all zero needs no base page. */
static int copy_into_base(struct move *move)
{
	struct hp_pool_view *view = move->t->pool;
	uint64_t offset;
	unsigned segment = hp_segment_of(view, move->to, &offset);

	return view->os->ops->scatter(view->os, view->segment[segment], offset, hp_direct(view, move->from),
	                              HP_FRAME_SIZE);
}

/* Nobody stores to the old memory but who holds it past hugepool. */
static void verify(struct move *move)
{
	struct hp_pool_view *view = move->t->pool;
	const char *to = hp_direct(view, move->to), *from = hp_direct(view, move->from);
	uint64_t a[HP_BASE_PAGE_SIZE / sizeof(uint64_t)], b[HP_BASE_PAGE_SIZE / sizeof(uint64_t)];

	for (uint64_t at = 0; at < HP_FRAME_SIZE; at += HP_BASE_PAGE_SIZE) {
		view->os->ops->load(view->os, from + at, a, sizeof(a));
		view->os->ops->load(view->os, to + at, b, sizeof(b));
		if (!memcmp(a, b, sizeof(a)))
			continue;
		count(&books_of(move)->misused, 1);
		hp_log(HP_LOG_ERROR,
		       "page %u of a movable file was written while it was moved, by a device or a call that had it "
		       "without hp_pin(): those bytes are lost",
		       move->page);
		return;
	}
}

/* ---- switching -------------------------------------------------------------------------------------------------- */

static void use_frame(struct move *move)
{
	struct hp_frame *frame = &move->t->pool->frames[move->to];

	if (move->kind == HP_MOVE_SPLIT) {
		hp_frame_use_base(frame, move->use.number, move->page);
		return;
	}
	if (!move->to_is_zeroed) { /* all of it has been written */
		hp_frame_start_zeroing(frame);
		hp_frame_finish_zeroing(frame);
	}
	hp_frame_use(frame, move->use.number, move->page);
}

static void switch_page(struct move *move)
{
	struct hp_file_record *file = move->use.record;

	use_frame(move);
	hp_index_replace(hp_file_index(move->t->pool, file), move->page, move->to);
	if (move->kind == HP_MOVE_COLLAPSE)
		atomic_fetch_sub(&file->base, 1);
	else
		atomic_fetch_add(&file->base, 1);
	move->stays = !hp_mappings_switch(move->t->pool, move->use, move->page);
	if (move->stays)
		hp_log(HP_LOG_ERROR,
		       "the kernel does not switch a mapping of page %u of a file, which goes on reading the old "
		       "memory; see vm.max_map_count",
		       move->page);
}

/* The old memory: no file has it, and nobody maps it. */
static void free_old(struct move *move)
{
	if (move->kind == HP_MOVE_COLLAPSE) {
		free_base(move->t, move->from);
	} else {
		hp_release(move->t, move->from, 1);
		hp_tenant_to_base(move->t, move->use.record->tenant);
	}
}

/* The file lock is held for writing, and again in the end. */
static enum hp_move_result move_locked(struct move *move)
{
	struct hp_file_record *file = move->use.record;
	int result;

	if (!divide(move))
		return HP_MOVE_NO_MEMORY;
	atomic_store(&file->moving, move->page + 1);
	hp_vma_wait_locked(move->t, file); /* for faults that are about to map the page */
	move->locked = hp_now_ns();
	result = hp_mappings_protect(move->t->pool, move->use, move->page);
	move->protected = hp_now_ns();
	if (!result) {
		hp_biased_downgrade_upgradeable(&file->lock, &move->t->locker);
		result = move->kind == HP_MOVE_COLLAPSE ? copy_into_frame(move) : copy_into_base(move);
		if (!result)
			result = hp_mappings_stage(move->t->pool, move->use, move->page, move->to);
		move->copied = hp_now_ns();
		hp_biased_upgrade(&file->lock, &move->t->locker);
		if (result)
			hp_mappings_unprotect(move->t->pool, move->use, move->page);
	}
	if (!result && move->kind == HP_MOVE_COLLAPSE && move->t->pool->shared->collapse_verify)
		verify(move);
	if (!result)
		switch_page(move);
	hp_file_end_move(file);
	return result ? HP_MOVE_FAILED : HP_MOVED;
}

/* ---- the dead ---------------------------------------------------------------------------------------------------- */

/*
 * Memory that the file does not have, and that says it is this page's, or that was taken and never used: it is put back.
 * What the file has stays.
 */
static void put_back(struct hp_thread *t, struct hp_file_use use, uint32_t page, hp_frame_id frame, bool fresh)
{
	struct hp_pool_view *view = t->pool;
	uint64_t word = hp_frame_load(&view->frames[frame]);
	bool ours = hp_frame_state(word) == HP_FRAME_USED && hp_frame_owner(word) == use.number &&
	            hp_frame_page(word) == page;

	if (hp_index_lookup(hp_file_index(view, use.record), page) == frame || (!ours && !fresh))
		return;
	if (hp_is_base(view, frame)) {
		if (!ours && hp_base_is_free(t, frame))
			return;
		free_base(t, frame);
	} else if (hp_put_lost(t, frame)) {
		hp_tenant_to_base(t, use.record->tenant);
	}
}

void hp_move_recover(struct hp_thread *t, const struct hp_intent *intent)
{
	uint32_t number = intent->object, page = (uint32_t)intent->first;
	struct hp_file_use use;
	sigset_t saved;

	if (atomic_load(&intent->kind) != HP_INTENT_MOVE || number == 0 || number >= t->pool->shared->files.fresh ||
	    !hp_file_get_live(t->pool, number))
		return;
	use = (struct hp_file_use){hp_file_at(t->pool, number), number};
	hp_signals_block(&saved);
	hp_file_modify_lock(t, use);
	hp_file_end_stale_move(use.record);
	put_back(t, use, page, (hp_frame_id)intent->count, false);
	put_back(t, use, page, (hp_frame_id)(intent->count >> 32), true);
	hp_file_modify_unlock(t, use);
	hp_signals_restore(&saved);
	hp_file_put(t, number);
}

/* ---- all of it -------------------------------------------------------------------------------------------------- */

static enum hp_move_result move_in_space(struct move *move)
{
	enum hp_move_result result =
		move->t->pool->shared->collapse_relock ? prepare_relock(move) : prepare_upgrade(move);

	if (result != HP_MOVED)
		return result;
	hp_intent_begin(move->t->intents, HP_INTENT_MOVE, move->use.number, move->page,
	                (uint64_t)move->to << 32 | move->from);
	result = move_locked(move);
	hp_file_modify_unlock(move->t, move->use);
	move->switched = hp_now_ns();
	if (result == HP_MOVED) {
		if (!move->stays)
			free_old(move);
		hp_intent_end(move->t->intents);
	} else {
		/* The intent first: what it names must not be somebody else's by then. */
		hp_intent_end(move->t->intents);
		spoil(move);
		give_back(move);
	}
	return result;
}

static void note(const struct move *move)
{
	struct hp_collapse_books *books = books_of(move);
	int64_t end = hp_now_ns();

	if (move->kind == HP_MOVE_SPLIT) {
		count(&books->split, 1);
		return;
	}
	count(&books->collapsed, 1);
	count(&books->lock_ns, (uint64_t)(move->locked - move->started));
	count(&books->protect_ns, (uint64_t)(move->protected - move->locked));
	count(&books->copy_ns, (uint64_t)(move->copied - move->protected));
	count(&books->switch_ns, (uint64_t)(move->switched - move->copied));
	count(&books->free_ns, (uint64_t)(end - move->switched));
	hp_histogram_add(&books->collapse, (uint64_t)(end - move->started));
}

enum hp_move_result hp_move_page(struct hp_thread *t, struct hp_file_use use, uint32_t page, enum hp_move_kind kind)
{
	struct move move = {.t = t, .use = use, .page = page, .kind = kind, .started = hp_now_ns()};
	enum hp_move_result result;
	sigset_t saved;

	hp_space_enter();
	hp_signals_block(&saved);
	lock_space();
	result = move_in_space(&move);
	unlock_space();
	hp_signals_restore(&saved);
	hp_space_leave();
	if (result == HP_MOVED)
		note(&move);
	else if (result == HP_MOVE_PINNED || result == HP_MOVE_SHARED)
		count(&books_of(&move)->busy, 1);
	else if (result == HP_MOVE_NO_MEMORY)
		count(&books_of(&move)->no_frame, 1);
	else if (result == HP_MOVE_GAVE_UP)
		count(&books_of(&move)->gave_up, 1);
	return result;
}
