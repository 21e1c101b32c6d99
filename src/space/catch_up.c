/* SPDX-License-Identifier: MIT */
/*
 * When a file is cut or grows, each process that maps what lies there is told (file/truncate.c), and changes its own
 * mappings at its next call. What lies beyond the end is replaced by memory that the kernel answers with SIGBUS for;
 * what is inside again, by what it was.
 */
#include "space/space.h"

#include "base/log.h"
#include "file/lock.h"
#include "file/remove.h"
#include "os/budget.h"

#include <errno.h>

/* How many pages of the mapping are inside the file, which is locked. */
static uint32_t inside_locked(const struct hp_mapping *m)
{
	uint32_t size = atomic_load(&hp_mapping_file(m).record->pages);

	return size <= m->first ? 0 : (uint32_t)hp_min(size - m->first, m->pages);
}

/*
 * Kernel mappings of a ready mapping, of which there are more when it is cut inside of one, and when it comes back in
 * runs of its own: never more than it has pages. Where the budget has none left they come out of what it leaves to the
 * program.
 */
static void count_maps(struct hp_mapping *m, uint64_t maps)
{
	struct hp_os *os = m->pool->os;

	if (maps < m->maps)
		hp_maps_give(os, m->maps - maps);
	if (maps <= m->maps || !hp_maps_take(os, maps - m->maps))
		m->maps = maps;
}

/* How many runs of frames the pages lie in. */
static uint32_t runs_of(struct hp_thread *t, struct hp_mapping *m, uint32_t page, uint32_t end)
{
	uint32_t runs = 0;
	hp_frame_id frame;

	for (uint32_t run; page < end; page += run ? run : 1, runs++)
		run = hp_mapping_run(t, m, page, &frame);
	return runs;
}

/* No fault runs: one that began when the mapping was whole may still put pages where its file ended meanwhile. */
static int restore_lazy_locked(struct hp_thread *t, struct hp_mapping *m)
{
	uint32_t reach = atomic_load(&m->reach), inside = inside_locked(m);
	uint32_t first = m->first + reach, end = m->first + inside;
	struct hp_os *os = m->pool->os;
	int result;

	if (inside <= reach)
		return 0;
	result = hp_index_prepare(hp_file_index(m->pool, hp_mapping_file(m).record), hp_pgoff(first), hp_pgoff(end),
	                          HP_ORDER_FRAME, &t->locker);
	if (!result)
		result = os->ops->vacate(os, hp_mapping_at(m, first), hp_bytes(inside - reach));
	if (result)
		return result;
	hp_touched_clear(m->touched, first, end);
	atomic_store(&m->reach, inside);
	return 0;
}

/* What lies beyond the reach of a lazy mapping is the file's again, and promised: to be touched. */
static int restore_lazy(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_file_use use = hp_mapping_file(m);
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	hp_file_mapping_lock(t, use, m->vma);
	result = restore_lazy_locked(t, m);
	hp_file_mapping_unlock(t, use, m->vma);
	hp_signals_restore(&saved);
	return result;
}

/*
 * The same of a ready one. It may be cut again meanwhile, and hears of that. Its reach is never less than what it may
 * have mapped.
 */
static int restore_ready(struct hp_thread *t, struct hp_mapping *m, uint32_t reach, uint32_t inside)
{
	uint32_t first = m->first + reach, end = m->first + inside;
	int result = hp_file_fill(t, hp_mapping_file(m), first, end - first, HP_FILL_MEMORY, NULL);

	if (!result) {
		count_maps(m, hp_min(m->maps + runs_of(t, m, first, end), m->pages));
		atomic_store(&m->reach, inside);
		result = hp_mapping_place_runs(t, m, first, end);
		if (result)
			hp_mapping_cut(m, first); /* again: a part is there, or the kernel left a gap */
	}
	return result == -EINVAL || result == -ENXIO ? 0 : result;
}

/*
 * Cuts the mapping to what is inside, or gives it back what is inside again. That is the mapping's before it is there,
 * so that nobody takes it away. *had: how much was the mapping's, for others.
 */
static int adjust_locked(struct hp_thread *t, struct hp_mapping *m, uint32_t *had, uint32_t *reach, uint32_t *inside)
{
	struct hp_vma_record *vma = hp_vma_at(t->pool, m->vma);

	*had = vma->reach;
	*reach = atomic_load(&m->reach);
	*inside = inside_locked(m);
	if (*inside < *reach) {
		int result = hp_mapping_cut(m, m->first + *inside);

		if (result)
			return result;
	}
	vma->reach = *inside;
	return 0;
}

/* The fork gate for reading and the space lock are held. */
static int adjust(struct hp_thread *t, struct hp_mapping *m)
{
	struct hp_file_use use = hp_mapping_file(m);
	uint32_t had, reach, inside;
	sigset_t saved;
	int result;

	hp_signals_block(&saved);
	hp_mutex_lock(&use.record->vma_lock, &t->locker, HP_CLASS_FILE_MAPPINGS);
	hp_biased_read_lock(&use.record->lock, &t->locker, HP_CLASS_FILE);
	result = adjust_locked(t, m, &had, &reach, &inside);
	hp_biased_read_unlock(&use.record->lock, &t->locker);
	hp_mutex_unlock(&use.record->vma_lock, &t->locker);
	hp_signals_restore(&saved);

	if (result)
		return result;
	if (inside < had)
		hp_file_reclaim(t, use, m->first + inside, m->first + had);
	if (inside < reach && !m->touched) /* a lazy one has as many as it can need */
		count_maps(m, hp_min(m->maps, inside) + 1);
	if (inside <= reach)
		return 0;
	return m->touched ? restore_lazy(t, m) : restore_ready(t, m, reach, inside);
}

/* What cannot be done now is tried again at the next call. */
static void adjust_all(struct hp_thread *t, _Atomic uint32_t *behind)
{
	struct hp_range range;

	for (uintptr_t at = 0; hp_range_map_next(&hp_space.ranges, at, &range); at = range.end) {
		struct hp_mapping *m = range.value;
		int result;

		/* One on the way to its place is looked at by who has put it there. */
		if (m->pool != t->pool || !m->vma || atomic_load(&m->moving))
			continue;
		result = adjust(t, m);
		if (!result)
			continue;
		atomic_store(behind, 1);
		hp_log(HP_LOG_ERROR,
		       "a mapping at 0x%lx cannot follow its file's end (errno %d): beyond it is empty memory, what is "
		       "inside again is SIGBUS; the next call tries again",
		       m->start, -result);
	}
}

/*
 * The flag stays set until all is done: who calls meanwhile comes here too, waits at the lock, and finds it done. The
 * gate keeps children from being forked with the lock held.
 */
void hp_space_catch_up(struct hp_thread *t)
{
	_Atomic uint32_t *behind = &t->pool->processes.record[t->pool->process].behind;

	hp_space_enter();
	hp_mutex_lock(&hp_space.lock, hp_space_locker(), HP_CLASS_SPACE);
	if (atomic_load(behind)) {
		uint32_t catching_up = 2;

		atomic_store(behind, catching_up);
		adjust_all(t, behind);
		/* Not if we were told again, or are to try again. */
		atomic_compare_exchange_strong(behind, &catching_up, 0);
	}
	hp_mutex_unlock(&hp_space.lock, hp_space_locker());
	hp_space_leave();
}
