/* SPDX-License-Identifier: MIT */
/*
 * Zeroing: by callers who need a frame now, and by workers who keep a stock.
 *
 * A worker commits a frame before it takes it, so what is promised to others never depends on it, and it takes the
 * extents lock in the normal scheduling class: it is of the idle class only while it writes zeroes. So nobody ever
 * waits for an idle-class thread that holds a lock.
 */
#include "pool/extent.h"

#include "base/log.h"
#include "base/machine.h"
#include "sync/futex.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 64u

struct hp_workers {
	uint32_t count;
	_Atomic uint32_t stop;
	pthread_t thread[];
};

int hp_frames_make_zeroed(struct hp_thread *t, hp_frame_id first, uint32_t count)
{
	struct hp_pool_view *view = t->pool;
	uint32_t zeroed = 0;
	int result = 0;

	for (hp_frame_id frame = first; frame < first + count; frame++) {
		void *address;

		if (hp_frame_state(hp_frame_load(&view->frames[frame])) == HP_FRAME_FREE_ZEROED)
			continue;
		address = hp_direct(view, frame);
		if (!address) {
			result = -ENOMEM;
			break;
		}
		hp_frame_start_zeroing(&view->frames[frame]);
		view->os->ops->zero(view->os, address, HP_FRAME_SIZE);
		hp_frame_finish_zeroing(&view->frames[frame]);
		zeroed++;
	}
	if (zeroed)
		atomic_fetch_add_explicit(&view->shared->zeroed_by_caller, zeroed, memory_order_relaxed);
	return result;
}

static void set_class(int policy)
{
	struct sched_param param = {0};

	pthread_setschedparam(pthread_self(), policy, &param);
}

/* Sleeps so long that `bytes` in `spent_ns` keep to the limit. */
static void keep_rate(uint32_t mb_per_s, uint64_t bytes, int64_t spent_ns)
{
	int64_t due = mb_per_s ? (int64_t)(bytes * 1000 / mb_per_s) : 0; /* ns; a MB is 10^6 bytes */

	if (due > spent_ns) {
		struct timespec rest = {(due - spent_ns) / 1000000000, (due - spent_ns) % 1000000000};

		nanosleep(&rest, NULL);
	}
}

/* Zeroes one dirty frame. False: there was none, or none that is not promised. */
static bool zero_one(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	struct hp_pool_shared *shared = view->shared;
	hp_frame_id frame = HP_NO_FRAME;

	/* `zeroing` first, then `pause`; who pauses does it the other way round, so one of the two sees the other. */
	atomic_fetch_add(&shared->zeroing, 1);
	if (atomic_load(&shared->pause) == 0 && hp_commit(view, 1) == 0) {
		frame = hp_take_dirty(t);
		if (frame != HP_NO_FRAME) {
			void *address = hp_direct(view, frame);

			if (address) {
				hp_intent_begin(t->intents, HP_INTENT_ZERO, 0, frame, 1);
				hp_frame_start_zeroing(&view->frames[frame]);
				set_class(SCHED_IDLE);
				view->os->ops->zero(view->os, address, HP_FRAME_SIZE);
				set_class(SCHED_OTHER);
				hp_frame_finish_zeroing(&view->frames[frame]);
				hp_intent_end(t->intents);
				atomic_fetch_add_explicit(&shared->zeroed_by_worker, 1, memory_order_relaxed);
			}
			hp_put(t, frame, 1);
		}
		hp_uncommit(view, 1);
	}
	atomic_fetch_sub(&shared->zeroing, 1);
	atomic_fetch_add(&shared->clean_event, 1);
	hp_futex_wake(&shared->clean_event, INT_MAX);
	return frame != HP_NO_FRAME;
}

static void *work(void *context)
{
	struct hp_pool_view *view = context;
	struct hp_pool_shared *shared = view->shared;
	struct hp_workers *workers;
	struct hp_thread *t;
	sigset_t saved;

	hp_signals_block(&saved);
	if (hp_thread_enter(view, &t)) {
		hp_log(HP_LOG_WARNING, "a zeroing worker found no slot in the pool and ends");
		return NULL;
	}
	workers = view->workers;
	while (!atomic_load(&workers->stop)) {
		uint32_t event = atomic_load(&shared->dirty_event);
		int64_t start = hp_now_ns();

		if (!zero_one(t))
			hp_futex_wait(&shared->dirty_event, event, HP_FUTEX_FOREVER);
		else
			keep_rate(shared->zero_mb_per_s, HP_FRAME_SIZE, hp_now_ns() - start);
	}
	return NULL;
}

int hp_workers_start(struct hp_pool_view *view, uint32_t count)
{
	struct hp_workers *workers;

	count = count < WORKERS_MAX ? count : WORKERS_MAX;
	if (!count)
		return 0;
	workers = calloc(1, sizeof(*workers) + count * sizeof(workers->thread[0]));
	if (!workers)
		return -ENOMEM;
	view->workers = workers;
	for (; workers->count < count; workers->count++) {
		int error = pthread_create(&workers->thread[workers->count], NULL, work, view);

		if (error) {
			hp_workers_stop(view);
			return -error;
		}
		pthread_setname_np(workers->thread[workers->count], "hp-zero");
		atomic_fetch_add(&view->shared->workers, 1);
	}
	return 0;
}

void hp_workers_notify(struct hp_pool_view *view)
{
	atomic_fetch_add(&view->shared->dirty_event, 1);
	if (atomic_load_explicit(&view->shared->workers, memory_order_relaxed))
		hp_futex_wake(&view->shared->dirty_event, INT_MAX);
}

void hp_workers_stop(struct hp_pool_view *view)
{
	struct hp_workers *workers = view->workers;

	if (!workers)
		return;
	atomic_store(&workers->stop, 1);
	atomic_fetch_add(&view->shared->dirty_event, 1);
	hp_futex_wake(&view->shared->dirty_event, INT_MAX);
	for (uint32_t i = 0; i < workers->count; i++)
		pthread_join(workers->thread[i], NULL);
	atomic_fetch_sub(&view->shared->workers, workers->count);
	view->workers = NULL;
	free(workers);
}

void hp_workers_pause(struct hp_pool_view *view)
{
	struct hp_pool_shared *shared = view->shared;

	atomic_fetch_add(&shared->pause, 1);
	for (;;) {
		uint32_t event = atomic_load(&shared->clean_event);

		if (atomic_load(&shared->zeroing) == 0)
			return;
		hp_futex_wait(&shared->clean_event, event, 100000000);
	}
}

void hp_workers_resume(struct hp_pool_view *view)
{
	atomic_fetch_sub(&view->shared->pause, 1);
	hp_workers_notify(view);
}
