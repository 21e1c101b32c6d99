/* SPDX-License-Identifier: MIT */
#include "space/cut.h"

#include "base/log.h"
#include "file/lock.h"
#include "os/budget.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

#define RETIRED_MAX 64u /* pieces of memory that wait for readers before we do */

/* ---- what nobody may find any more ------------------------------------------------------------------------------ */

void hp_space_reclaim(void *retired)
{
	hp_mutex_lock(&hp_space.grace_lock, hp_space_locker(), HP_CLASS_GRACE);
	hp_epoch_synchronize(&hp_space.epoch);
	hp_mutex_unlock(&hp_space.grace_lock, hp_space_locker());
	hp_range_map_free(retired);
}

/* Frees what has waited when it has become much, but for what others may still look at, who cut mappings too. */
static void retire(struct hp_mapping *m, unsigned cuts_ended)
{
	void *retired = NULL;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	hp_space.cuts -= cuts_ended;
	if (m->touched && --m->touched->pieces == 0)
		hp_range_map_retire(&hp_space.ranges, m->touched);
	hp_range_map_retire(&hp_space.ranges, m);
	if (hp_space.ranges.retired_count >= RETIRED_MAX && !hp_space.cuts)
		retired = hp_range_map_take_retired(&hp_space.ranges);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	if (retired)
		hp_space_reclaim(retired);
}

void hp_space_retire(struct hp_mapping *m)
{
	retire(m, 0);
}

/* ---- addresses that were given back ----------------------------------------------------------------------------- */

/*
 * To be tried first: a program that maps the same file again and again gets an aligned range for the price of one mmap.
 * Under the space lock. That nothing is there now is for the kernel to say.
 */
static struct recent {
	uintptr_t start;
	uint64_t length;
} recent[8];

void hp_space_remember_address(uintptr_t start, uint64_t length)
{
	static unsigned next;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	recent[next++ % 8] = (struct recent){start, length};
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
}

uintptr_t hp_space_recall_address(uint64_t length, uint64_t align, uint64_t skew)
{
	uintptr_t found = 0;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	for (unsigned i = 0; i < 8 && !found; i++)
		if (recent[i].length == length && (recent[i].start & (align - 1)) == skew) {
			found = recent[i].start;
			recent[i].length = 0;
		}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	return found;
}

bool hp_space_may_be_cut(const struct hp_mapping *m, uintptr_t at)
{
	return at <= m->start || at >= m->start + m->length || hp_is_aligned(m->pool, at);
}

bool hp_space_is_ours(uintptr_t start, uintptr_t end)
{
	struct hp_range range;
	bool ours = true;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	for (uintptr_t at = start; at < end && ours; at = range.end)
		ours = hp_range_map_next(&hp_space.ranges, at, &range) && range.start <= at &&
		       hp_space_may_be_cut(range.value, start) && hp_space_may_be_cut(range.value, end);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	return ours;
}

/* ---- the way in ------------------------------------------------------------------------------------------------- */

/* A child's range map is its parent's, with what the child did not get. Others may be mapped there by now. */
static void drop_gone(void)
{
	struct hp_range range;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	for (uintptr_t at = 0; hp_range_map_next(&hp_space.ranges, at, &range); at = range.end) {
		struct hp_mapping *m = range.value;

		if (!m->gone || hp_range_map_exchange(&hp_space.ranges, range.start, range.end, NULL, 0))
			continue;
		hp_maps_give(m->pool->os, m->maps);
		if (m->touched && --m->touched->pieces == 0)
			hp_range_map_retire(&hp_space.ranges, m->touched);
		hp_range_map_retire(&hp_space.ranges, m);
	}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
}

void hp_space_enter(void)
{
	hp_process_is_known(); /* the gate is the parent's until then */
	hp_rwsem_read_lock(&hp_space.fork_gate, hp_space_locker(), HP_CLASS_FORK);
	if (atomic_load_explicit(&hp_space.some_gone, memory_order_relaxed) &&
	    atomic_exchange(&hp_space.some_gone, false))
		drop_gone();
}

void hp_space_leave(void)
{
	hp_rwsem_read_unlock(&hp_space.fork_gate, hp_space_locker());
}

bool hp_space_in_use(struct hp_thread *t)
{
	struct hp_range range;
	bool in_use = false;

	hp_space_enter();
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	for (uintptr_t at = 0; !in_use && hp_range_map_next(&hp_space.ranges, at, &range); at = range.end)
		in_use = ((struct hp_mapping *)range.value)->pool == t->pool;
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	hp_space_leave();
	return in_use;
}

void hp_space_wait_locked(void)
{
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	sched_yield();
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
}

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

/*
 * A piece of pages [from, end) with a record of its own; the range map does not have it yet. *t is NULL in a child
 * that is not a member: there are no books.
 */
int hp_cut_make_piece(struct hp_thread *t, struct hp_cut *cut, uint32_t from, uint32_t end, uint32_t prot)
{
	const struct hp_mapping *old = cut->old;
	uint32_t reach = atomic_load(&old->reach) + old->first;
	struct hp_vma_record facts;
	struct hp_mapping *m;

	if (from >= end)
		return 0;
	m = hp_mapping_new(old->pool, old->file, from, end - from, prot, old->flags);
	if (!m)
		return -ENOMEM;
	m->start = (uintptr_t)hp_mapping_at(old, from);
	m->holder = old->holder ? old->holder + hp_bytes(from - old->first) : 0;
	atomic_store(&m->frozen, atomic_load(&old->frozen));
	atomic_store(&m->reach, reach <= from ? 0 : (uint32_t)hp_min(reach - from, m->pages));
	m->touched = old->touched;
	cut->piece[cut->pieces++] = m;
	facts = hp_mapping_facts(m, m->pool->process);
	return t ? hp_vma_add_piece(t, m->file, &facts, &m->vma) : 0;
}

/* Nobody has found the pieces. */
void hp_cut_drop_pieces(struct hp_thread *t, struct hp_cut *cut)
{
	while (cut->pieces) {
		struct hp_mapping *m = cut->piece[--cut->pieces];

		hp_mapping_forget(t, m);
		free(m);
	}
}

/* Kernel mappings for each piece, set aside by the old one until it has gone: -ENOMEM: there are not as many. */
int hp_cut_take_maps(struct hp_cut *cut, uint64_t most, uint64_t *share)
{
	struct hp_mapping *old = cut->old;
	uint64_t wanted = 0;

	for (unsigned i = 0; i < cut->pieces; i++) {
		share[i] = hp_min(most, (uint64_t)cut->piece[i]->pages + (old->touched != NULL));
		wanted += share[i];
	}
	return wanted > old->maps ? hp_mapping_take_maps(old, wanted - old->maps, NULL) : 0;
}

void hp_cut_share_maps(struct hp_cut *cut, const uint64_t *share)
{
	for (unsigned i = 0; i < cut->pieces; i++) {
		cut->piece[i]->maps = share[i];
		cut->old->maps -= share[i];
	}
}

/* Pieces in the place of `old`, or the other way round. The space lock is held. */
static int exchange_locked(struct hp_mapping *const *pieces, unsigned count, uintptr_t start, uintptr_t end)
{
	struct hp_range range[3];

	for (unsigned i = 0; i < count; i++)
		range[i] = (struct hp_range){pieces[i]->start, pieces[i]->start + pieces[i]->length, pieces[i]};
	return hp_range_map_exchange(&hp_space.ranges, start, end, range, count);
}

/* No fault runs: one that found the piece may have put pages there since the old mapping was cut. */
static void lower(struct hp_thread *t, struct hp_mapping *m, uint32_t end)
{
	struct hp_file_use use = hp_mapping_file(m);
	sigset_t saved;

	hp_signals_block(&saved);
	hp_file_mapping_lock(t, use, m->vma);
	if (end < m->first + atomic_load(&m->reach))
		hp_mapping_cut(m, end);
	hp_file_mapping_unlock(t, use, m->vma);
	hp_signals_restore(&saved);
	/* The end may lie inside of the file again by now. */
	atomic_store(&t->pool->processes.record[t->pool->process].behind, 1);
}

void hp_cut_lower_pieces(const struct hp_cut *cut)
{
	uint32_t end = cut->old->first + atomic_load(&cut->old->reach);
	struct hp_thread *t;

	for (unsigned i = 0; i < cut->pieces; i++)
		if (end < cut->piece[i]->first + atomic_load(&cut->piece[i]->reach) &&
		    !hp_thread_enter(cut->old->pool, &t))
			lower(t, cut->piece[i], end);
}

/* ---- one mapping, a part of it ---------------------------------------------------------------------------------- */

/* The part of a mapping that lies in [start, end); its pieces take its place. `prot`: of the part; NULL: it goes. */
static int begin_locked(struct hp_thread *t, struct hp_mapping *old, uintptr_t start, uintptr_t end,
                        const unsigned *prot, struct hp_cut *cut)
{
	uintptr_t stop = old->start + old->length;
	uint64_t share[3];
	int result;

	*cut = (struct hp_cut){
		.old = old,
		.from = start > old->start ? old->first + (uint32_t)hp_frames(start - old->start) : old->first,
		.end = end < stop ? old->first + (uint32_t)hp_frames(end - old->start) : hp_mapping_end(old),
	};
	result = hp_cut_make_piece(t, cut, old->first, cut->from, old->prot);
	if (!result && prot)
		result = hp_cut_make_piece(t, cut, cut->from, cut->end, *prot);
	if (!result)
		result = hp_cut_make_piece(t, cut, cut->end, hp_mapping_end(old), old->prot);
	if (!result)
		result = hp_cut_take_maps(cut, old->maps, share);
	if (!result)
		result = exchange_locked(cut->piece, cut->pieces, old->start, stop);
	if (result) {
		hp_cut_drop_pieces(t, cut);
		return result;
	}
	hp_cut_share_maps(cut, share);
	if (old->touched)
		old->touched->pieces += cut->pieces;
	hp_space.cuts++;
	if (!prot)
		hp_pins_drop_locked((uintptr_t)hp_mapping_at(old, cut->from),
		                    (uintptr_t)hp_mapping_at(old, cut->from) + hp_bytes(cut->end - cut->from));
	return 0;
}

/*
 * The first mapping that has some of [start, end) is cut there. *t: the thread's part in its pool. -ENOENT: there is
 * none left.
 */
int hp_cut_begin(uintptr_t start, uintptr_t end, const unsigned *prot, struct hp_cut *cut, struct hp_thread **t)
{
	struct hp_range range;
	uint32_t reach = 0;
	int result = -ENOENT;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	while (hp_range_map_next(&hp_space.ranges, start, &range) && range.start < end &&
	       atomic_load(&((struct hp_mapping *)range.value)->moving))
		hp_space_wait_locked();
	if (hp_range_map_next(&hp_space.ranges, start, &range) && range.start < end) {
		struct hp_mapping *m = range.value;

		reach = atomic_load(&m->reach);
		result = hp_thread_enter(m->pool, t);
		if (result == -ECHILD)
			*t = NULL;
		if (!result || result == -ECHILD)
			result = begin_locked(*t, m, start, end, prot, cut);
	}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	if (!result && cut->old->touched) {
		hp_space_reclaim(NULL);
		if (atomic_load(&cut->old->reach) < reach)
			hp_cut_lower_pieces(cut);
	}
	return result;
}

/* The old mapping is not any more: its record goes after those of its pieces have come. */
void hp_cut_finish(struct hp_thread *t, struct hp_cut *cut, bool unmapped)
{
	if (unmapped)
		hp_private_forget(t, cut->old, cut->from, cut->end);
	else
		hp_mapping_forget(t, cut->old);
	retire(cut->old, 1);
}

/* A piece of the part that did not go, with what the others have left of the old one's kernel mappings. */
static int keep_part_locked(struct hp_thread *t, struct hp_cut *cut)
{
	struct hp_mapping *old = cut->old, *m;
	int result = hp_cut_make_piece(t, cut, cut->from, cut->end, old->prot);

	if (result)
		return result;
	m = cut->piece[cut->pieces - 1];
	result = hp_range_map_insert(&hp_space.ranges, m->start, m->start + m->length, m);
	if (result)
		return result;
	m->maps = old->maps;
	old->maps = 0;
	if (old->touched)
		old->touched->pieces++;
	if (t) /* who has caught up since the cut did not find it */
		atomic_store(&t->pool->processes.record[t->pool->process].behind, 1);
	return 0;
}

/* Its neighbours are pieces that others may have cut meanwhile: it becomes one more. */
void hp_cut_keep_part(struct hp_thread *t, struct hp_cut *cut)
{
	int result;

	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	result = keep_part_locked(t, cut);
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	if (result)
		hp_log(HP_LOG_ERROR, "the kernel did not unmap 0x%lx, and there is no memory to note that",
		       (uintptr_t)hp_mapping_at(cut->old, cut->from));
	hp_cut_finish(t, cut, false);
}

/*
 * What is left of a GiB that had a shared page table has one of its own, which is empty: filling it at once is cheaper
 * than a fault for each page. Memory of holes would come back by that.
 */
void hp_cut_touch_rest(struct hp_thread *t, const struct hp_cut *cut)
{
	struct hp_os *os = cut->old->pool->os;

	if (hp_mapping_alignment(cut->old) != HP_REGION_SIZE || cut->old->touched ||
	    atomic_load(&hp_mapping_file(cut->old).record->holes))
		return;
	for (unsigned i = 0; i < cut->pieces; i++) {
		const struct hp_mapping *m = cut->piece[i];
		uintptr_t start = m->start, end = m->start + hp_bytes(atomic_load(&m->reach));
		uintptr_t low = (uintptr_t)hp_mapping_at(cut->old, cut->from) & ~(HP_REGION_SIZE - 1);
		uintptr_t high = hp_align_up((uintptr_t)hp_mapping_at(cut->old, cut->end), HP_REGION_SIZE);

		start = start > low ? start : low;
		end = end < high ? end : high;
		if (start < end)
			os->ops->touch(os, (void *)start, end - start);
	}
}
