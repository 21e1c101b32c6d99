/* SPDX-License-Identifier: MIT */
/* Reading and switching the statistics of a pool's locks, of this process's pools and of others'. */
#include "pool/pool.h"

#include "base/error.h"
#include "os/attach.h"

#include <errno.h>
#include <string.h>

/* Where statistics are, in this process's view or in a look into another's. */
struct source {
	struct hp_lock_shared *shared;
	const struct hp_lock_record *records;
	const char (*points)[HP_POINT_NAME];
};

static uint64_t acquisitions(const struct source *from, unsigned class, unsigned mode)
{
	uint32_t used = atomic_load(&from->shared->slots_used);
	uint64_t sum = 0;

	for (uint32_t s = 0; s < used && s < HP_SLOTS_MAX; s++)
		sum += hp_lock_acquired(&from->records[s], class, mode);
	return sum;
}

static void read_times(hp_lock_times *times, const struct hp_time_sum *sum)
{
	times->count = atomic_load_explicit(&sum->count, memory_order_relaxed);
	times->min = atomic_load_explicit(&sum->min, memory_order_relaxed);
	times->max = atomic_load_explicit(&sum->max, memory_order_relaxed);
	times->total = atomic_load_explicit(&sum->total, memory_order_relaxed);
}

/* The most frequent first. */
static void read_places(const struct source *from, hp_lock_place *places, const struct hp_point_count *counts)
{
	unsigned n = 0;

	for (unsigned i = 0; i < HP_STAT_POINTS; i++) {
		uint32_t point = atomic_load_explicit(&counts[i].point, memory_order_relaxed);
		hp_lock_place place = {.count = atomic_load_explicit(&counts[i].count, memory_order_relaxed)};
		unsigned at = n;

		if (!place.count || !point || point > HP_POINTS_MAX)
			continue;
		memcpy(place.name, from->points[point - 1], sizeof(place.name) - 1);
		for (; at > 0 && places[at - 1].count < place.count; at--)
			places[at] = places[at - 1];
		places[at] = place;
		n++;
	}
}

_Static_assert(HP_STAT_POINTS == HP_LOCK_POINTS && HP_POINT_NAME == HP_LOCK_NAME_SIZE, "see hugepool.h");
_Static_assert(HP_LOCK_CLASSES *HP_LOCK_MODES <= HP_LOCK_STATS_MAX, "see hugepool.h");

static void read_row(const struct source *from, unsigned class, unsigned mode, hp_lock_stat *row)
{
	const struct hp_class_sums *sums = &from->shared->statistics.sums[class][mode];

	*row = (hp_lock_stat){
		.mode = hp_lock_class_is_shared(class) ? (mode == HP_LOCK_WRITE ? 'W' : 'R') : 0,
		.sampled = HP_HOLD_SAMPLE,
		.acquisitions = acquisitions(from, class, mode) -
	                        atomic_load_explicit(&sums->acquired_before, memory_order_relaxed),
		.acq_bounces = atomic_load_explicit(&sums->sampled_bounces, memory_order_relaxed),
		.con_bounces = atomic_load_explicit(&sums->contended_bounces, memory_order_relaxed),
		.deaths = atomic_load_explicit(&sums->deaths, memory_order_relaxed),
	};
	strncpy(row->name, hp_lock_class_name(class), sizeof(row->name) - 1);
	read_times(&row->wait, &sums->wait);
	read_times(&row->hold, &sums->hold);
	row->contentions = row->wait.count;
	read_places(from, row->waiter, sums->waiter);
	read_places(from, row->holder, sums->holder);
}

static int read_rows(const struct source *from, hp_lock_stat *rows, unsigned *count, size_t struct_size)
{
	unsigned room = *count;

	*count = 0;
	if (struct_size != sizeof(*rows))
		return -EINVAL;
	for (unsigned class = 1; class < HP_LOCK_CLASSES; class ++) {
		for (unsigned mode = 0; mode < HP_LOCK_MODES && *count < room; mode++) {
			hp_lock_stat *row = &rows[*count];

			read_row(from, class, mode, row);
			*count += row->acquisitions || row->contentions || row->deaths;
		}
	}
	return 0;
}

/* Other threads count meanwhile: what falls between the lines is in or out. */
static void reset(const struct source *from)
{
	for (unsigned class = 1; class < HP_LOCK_CLASSES; class ++) {
		for (unsigned mode = 0; mode < HP_LOCK_MODES; mode++) {
			struct hp_class_sums *sums = &from->shared->statistics.sums[class][mode];

			hp_stat_reset(sums, acquisitions(from, class, mode));
		}
	}
}

static int act(const struct source *from, hp_lockstat_action action)
{
	if (action == HP_LOCKSTAT_RESET)
		reset(from);
	else if (action == HP_LOCKSTAT_ON || action == HP_LOCKSTAT_OFF)
		atomic_store(&from->shared->statistics.enabled, action == HP_LOCKSTAT_ON);
	else
		return -EINVAL;
	return 0;
}

static struct source source_of(const struct hp_pool_view *view)
{
	return (struct source){view->locks.shared, view->locks.records,
	                       (const char(*)[HP_POINT_NAME])view->lock_points};
}

/* ---- this process's pools --------------------------------------------------------------------------------------- */

int hp_pool_lockstat(hp_pool pool, hp_lock_stat *rows, unsigned *count, size_t struct_size)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	struct source from;

	if (!view)
		return -EBADF;
	from = source_of(view);
	return read_rows(&from, rows, count, struct_size);
}

int hp_pool_lockstat_set(hp_pool pool, hp_lockstat_action action)
{
	struct hp_pool_view *view = hp_pool_find(pool.id);
	struct source from;

	if (!view)
		return -EBADF;
	from = source_of(view);
	return act(&from, action);
}

/* ---- pools of other processes ----------------------------------------------------------------------------------- */

/* Only what statistics need of the view is set. */
static int attach(int pid, unsigned number, struct hp_pool_view *view, hp_error *error)
{
	uint64_t size;
	void *base;
	int result = hp_attach(pid, number, &base, &size);

	*view = (struct hp_pool_view){.process = 0};
	if (result == -ESRCH)
		return hp_fail(error, result, HP_LIMIT_NONE, "there is no process %d", pid);
	if (result == -ENOENT)
		return hp_fail(error, result, HP_LIMIT_NONE,
		               number ? "process %d has no pool %u" : "process %d has no pool", pid, number);
	if (result && result != -EPROTO)
		return hp_fail(error, result, HP_LIMIT_NONE,
		               "process %d cannot be looked into; it takes the same user, or root", pid);
	if (!result && hp_arena_adopt(&view->arena, base, size, HP_SECTIONS, sizeof(struct hp_pool_shared))) {
		hp_pool_find_sections(view);
		if (!hp_pool_verify_arena(view))
			return 0;
	}
	if (!result)
		hp_detach(base, size);
	return hp_fail(error, -EPROTO, HP_LIMIT_NONE, "the pool of process %d was made by another version of hugepool",
	               pid);
}

int hp_process_lockstat(int pid, unsigned number, hp_lock_stat *rows, unsigned *count, size_t struct_size,
                        hp_error *error)
{
	struct hp_pool_view view;
	struct source from;
	int result = attach(pid, number, &view, error);

	if (result)
		return result;
	from = source_of(&view);
	result = read_rows(&from, rows, count, struct_size);
	hp_detach(view.arena.header, view.arena.size);
	return result;
}

int hp_process_lockstat_set(int pid, unsigned number, hp_lockstat_action action, hp_error *error)
{
	struct hp_pool_view view;
	struct source from;
	int result = attach(pid, number, &view, error);

	if (result)
		return result;
	from = source_of(&view);
	result = act(&from, action);
	hp_detach(view.arena.header, view.arena.size);
	return result;
}
