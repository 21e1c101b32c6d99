/* SPDX-License-Identifier: MIT */
/*
 * Collapse in the background.
 *
 * A thread goes through the movable files of the pool, again and again, and makes their pages huge. It works only in
 * idle time, but must not be of the idle class itself: it holds locks that faults want, and would be stopped in the
 * middle by whoever is busy. So a second thread, which is of that class and holds nothing, gives it leave for each page:
 *
 *   worker                              idle thread
 *   ask for leave, sleep
 *                                       runs, when nobody else wants the CPU: leave
 *   move one page
 */
#include "collapse/collapse.h"

#include "base/log.h"
#include "base/machine.h"
#include "pool/base.h"
#include "pool/workers.h"
#include "sync/futex.h"

#include <errno.h>
#include <stdlib.h>

#define HELD_OFF_NS 1000000 /* between two looks whether workers are still held off */

struct hp_collapser {
	struct hp_pool_view *view;
	pthread_t worker, idler;
	_Atomic uint32_t stop;  /* futex */
	_Atomic uint32_t asked; /* futex */
	_Atomic uint32_t leave; /* futex: as many as were asked for, when all are given */
};

/* ---- leave ------------------------------------------------------------------------------------------------------ */

static void *give_leave(void *context)
{
	struct hp_collapser *collapser = context;
	struct sched_param param = {0};

	pthread_setschedparam(pthread_self(), SCHED_IDLE, &param);
	while (!atomic_load(&collapser->stop)) {
		uint32_t asked = atomic_load(&collapser->asked);

		if (atomic_load(&collapser->leave) == asked) {
			hp_futex_wait(&collapser->asked, asked, HP_FUTEX_FOREVER);
			continue;
		}
		atomic_store(&collapser->leave, asked);
		hp_futex_wake(&collapser->leave, 1);
	}
	return NULL;
}

/* False: the collapser is to stop. */
static bool ask_for_leave(struct hp_collapser *collapser)
{
	uint32_t asked = atomic_fetch_add(&collapser->asked, 1) + 1, leave;

	hp_futex_wake(&collapser->asked, 1);
	while (!atomic_load(&collapser->stop) && (leave = atomic_load(&collapser->leave)) != asked)
		hp_futex_wait(&collapser->leave, leave, HP_FUTEX_FOREVER);
	return !atomic_load(&collapser->stop);
}

/* ---- one page --------------------------------------------------------------------------------------------------- */

/* The page lies in base pages, and enough of them are there. */
static bool is_worth_it(struct hp_thread *t, struct hp_file_use use, uint32_t page)
{
	unsigned char there[HP_BASE_PAGES];
	uint64_t section = hp_section_enter(&t->locker);
	hp_frame_id frame = hp_index_lookup(hp_file_index(t->pool, use.record), page);
	uint32_t none = 0;

	hp_section_leave(&t->locker, section);
	if (frame == HP_NO_FRAME || !hp_is_base(t->pool, frame))
		return false;
	if (hp_huge_is(t->pool, frame))
		return atomic_load(&t->pool->shared->uncommitted) > 0;
	if (t->pool->shared->collapse_none == HP_BASE_PAGES - 1)
		return true;
	if (hp_base_backed(t->pool, frame, there))
		return false;
	for (unsigned i = 0; i < HP_BASE_PAGES; i++)
		none += !there[i];
	return none <= t->pool->shared->collapse_none;
}

static void keep_rate(struct hp_collapser *collapser, int64_t spent_ns)
{
	int64_t left = hp_workers_rest_ns(collapser->view->shared->collapse_mb_per_s, HP_FRAME_SIZE, spent_ns);

	if (left)
		hp_futex_wait(&collapser->stop, 0, left);
}

/* True: it is huge now. *in_place: whether the kernel is to be asked; it is not again where it refused. */
static bool collapse(struct hp_thread *t, struct hp_file_use use, uint32_t page, bool *in_place)
{
	enum hp_move_result result = hp_move_page(t, use, page, HP_MOVE_COLLAPSE);
	int error;

	if ((result == HP_MOVE_NO_MEMORY || result == HP_MOVE_SHARED) && *in_place) {
		result = hp_collapse_in_place(t, use, page, &error);
		*in_place = result != HP_MOVE_FAILED || error == -EAGAIN;
	}
	return result == HP_MOVED;
}

/* ---- all files -------------------------------------------------------------------------------------------------- */

/* A file by number and generation, which is not held while we wait: it may go away. */
struct candidate {
	struct hp_file_use use;
	uint32_t generation;
};

enum look { END, NOTHING, WORTH_IT };

static enum look look_at(struct hp_thread *t, const struct candidate *file, uint32_t page, bool in_place)
{
	const struct hp_file_record *record = file->use.record;
	enum look look = END;

	if (!hp_file_get_live(t->pool, file->use.number))
		return END;
	if (atomic_load(&record->generation) == file->generation && record->flags & HP_FILE_MOVABLE &&
	    page < atomic_load(&record->pages) && atomic_load(&record->base) &&
	    (in_place || atomic_load(&t->pool->shared->uncommitted)))
		look = is_worth_it(t, file->use, page) ? WORTH_IT : NOTHING;
	hp_file_put(t, file->use.number);
	return look;
}

/* The page is collapsed when nobody holds the workers of the pool off. */
static bool take_turn(struct hp_collapser *collapser, struct hp_thread *t, const struct candidate *file, uint32_t page,
                      bool *in_place)
{
	int64_t start;
	bool done = false;

	while (!hp_workers_enter(collapser->view)) {
		hp_futex_wait(&collapser->stop, 0, HELD_OFF_NS);
		if (atomic_load(&collapser->stop))
			return false;
	}
	start = hp_now_ns();
	if (hp_file_get_live(t->pool, file->use.number)) {
		if (atomic_load(&file->use.record->generation) == file->generation)
			done = collapse(t, file->use, page, in_place);
		hp_file_put(t, file->use.number);
	}
	hp_workers_leave(collapser->view);
	if (done)
		keep_rate(collapser, hp_now_ns() - start);
	return done;
}

/* Returns how many pages became huge. */
static uint32_t scan_file(struct hp_collapser *collapser, struct hp_thread *t, uint32_t number, bool *in_place)
{
	struct hp_file_record *record = hp_file_at(t->pool, number);
	struct candidate file = {{record, number}, atomic_load(&record->generation)};
	enum look look = file.generation ? NOTHING : END;
	uint32_t done = 0;

	for (uint32_t page = 0; look != END; page++) {
		look = look_at(t, &file, page, *in_place);
		if (look == WORTH_IT && !ask_for_leave(collapser))
			break;
		if (look == WORTH_IT)
			done += take_turn(collapser, t, &file, page, in_place);
	}
	return done;
}

static uint32_t scan(struct hp_collapser *collapser, struct hp_thread *t)
{
	struct hp_pool_view *view = collapser->view;
	bool in_place = true;
	uint32_t done = 0;

	for (uint32_t number = 1; number < view->shared->files.fresh && !atomic_load(&collapser->stop); number++)
		done += scan_file(collapser, t, number, &in_place);
	return done;
}

/* More frames, of those that the pool was to have. */
static uint32_t fill_more(struct hp_collapser *collapser, struct hp_thread *t)
{
	uint32_t got;

	if (!collapser->view->shared->late || !hp_workers_enter(collapser->view))
		return 0;
	got = hp_pool_fill_more(t);
	hp_workers_leave(collapser->view);
	return got;
}

static void *work(void *context)
{
	struct hp_collapser *collapser = context;
	struct hp_pool_view *view = collapser->view;
	struct hp_thread *t;

	if (hp_thread_enter(view, &t)) {
		hp_log(HP_LOG_WARNING, "no slot of the pool is left for the thread that collapses in the background");
		return NULL;
	}
	while (!atomic_load(&collapser->stop)) {
		uint32_t done = fill_more(collapser, t);

		done += scan(collapser, t);
		if (!done)
			hp_futex_wait(&collapser->stop, 0, (int64_t)view->shared->collapse_scan_ms * 1000000);
	}
	return NULL;
}

/* ---- starting and stopping -------------------------------------------------------------------------------------- */

static void tell_to_stop(struct hp_collapser *collapser)
{
	atomic_store(&collapser->stop, 1);
	hp_futex_wake(&collapser->stop, INT_MAX);
	atomic_fetch_add(&collapser->asked, 1);
	hp_futex_wake(&collapser->asked, INT_MAX);
	hp_futex_wake(&collapser->leave, INT_MAX);
}

static int start_threads(struct hp_collapser *collapser)
{
	int error = pthread_create(&collapser->idler, NULL, give_leave, collapser);

	if (error)
		return -error;
	error = pthread_create(&collapser->worker, NULL, work, collapser);
	if (error) {
		tell_to_stop(collapser);
		pthread_join(collapser->idler, NULL);
		return -error;
	}
	pthread_setname_np(collapser->idler, "hp-idle");
	pthread_setname_np(collapser->worker, "hp-collapse");
	return 0;
}

int hp_collapser_start(struct hp_thread *t, const hp_pool_options *options)
{
	struct hp_collapser *collapser;
	sigset_t saved;
	int result;

	if (!(options->flags & (HP_POOL_LATE | HP_POOL_COLLAPSE)))
		return 0;
	collapser = calloc(1, sizeof(*collapser));
	if (!collapser)
		return -ENOMEM;
	collapser->view = t->pool;
	hp_signals_block(&saved); /* our threads run no handler of the program */
	result = start_threads(collapser);
	hp_signals_restore(&saved);
	if (result) {
		free(collapser);
		hp_log(HP_LOG_WARNING, "no thread to collapse in the background (errno %d): call hp_collapse()",
		       -result);
		return 0;
	}
	t->pool->collapser = collapser;
	return 0;
}

void hp_collapser_stop(struct hp_pool_view *view)
{
	struct hp_collapser *collapser = view->collapser;

	if (!collapser)
		return;
	tell_to_stop(collapser);
	pthread_join(collapser->worker, NULL);
	pthread_join(collapser->idler, NULL);
	view->collapser = NULL;
	free(collapser);
}
