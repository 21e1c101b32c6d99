/* SPDX-License-Identifier: MIT */
#include "pool/workers.h"

#include "base/log.h"
#include "base/machine.h"
#include "pool/extent.h"
#include "sync/futex.h"

#include <errno.h>
#include <stdlib.h>

/* A zeroer's word: empty, or the number of its frame plus 1; with DONE when the frame is zeroed. */
#define EMPTY 0u
#define DONE 0x80000000u
#define STOP UINT32_MAX

struct zeroer {
	pthread_t thread;
	struct hp_pool_view *view;
	_Atomic uint32_t word; /* futex */
};

struct hp_workers {
	pthread_t coordinator;
	struct hp_pool_view *view;
	_Atomic uint32_t stop;
	uint32_t count;
	struct zeroer zeroer[];
};

/* ---- zeroers ---------------------------------------------------------------------------------------------------- */

int64_t hp_workers_rest_ns(uint32_t mb_per_s, uint64_t bytes, int64_t spent_ns)
{
	int64_t due = mb_per_s ? (int64_t)(bytes * 1000 / mb_per_s) : 0;

	return due > spent_ns ? due - spent_ns : 0;
}

static void keep_rate(uint32_t mb_per_s, uint64_t bytes, int64_t spent_ns)
{
	int64_t left = hp_workers_rest_ns(mb_per_s, bytes, spent_ns);
	struct timespec rest = {left / 1000000000, left % 1000000000};

	if (left)
		nanosleep(&rest, NULL);
}

static void *zero_frames(void *context)
{
	struct zeroer *zeroer = context;
	struct hp_pool_view *view = zeroer->view;
	struct sched_param param = {0};
	uint32_t word;

	pthread_setschedparam(pthread_self(), SCHED_IDLE, &param);
	while ((word = atomic_load(&zeroer->word)) != STOP) {
		int64_t start = hp_now_ns();

		if (word == EMPTY || word & DONE) {
			hp_futex_wait(&zeroer->word, word, HP_FUTEX_FOREVER);
			continue;
		}
		view->os->ops->zero(view->os, hp_direct(view, word - 1), HP_FRAME_SIZE);
		atomic_store(&zeroer->word, word | DONE);
		hp_workers_notify(view);
		keep_rate(view->shared->zero_mb_per_s, HP_FRAME_SIZE, hp_now_ns() - start);
	}
	return NULL;
}

/* ---- the coordinator -------------------------------------------------------------------------------------------- */

static void announce_clean(struct hp_pool_shared *shared)
{
	atomic_fetch_sub(&shared->zeroing, 1);
	atomic_fetch_add(&shared->clean_event, 1);
	hp_futex_wake(&shared->clean_event, INT_MAX);
}

/* It is counted first and `pause` looked at then; who pauses does it the other way round: one sees the other. */
bool hp_workers_enter(struct hp_pool_view *view)
{
	atomic_store(&view->shared->worker_process, view->process);
	atomic_fetch_add(&view->shared->zeroing, 1);
	if (!atomic_load(&view->shared->pause))
		return true;
	hp_workers_leave(view);
	return false;
}

void hp_workers_leave(struct hp_pool_view *view)
{
	announce_clean(view->shared);
}

/* A dirty frame that nobody was promised, committed and mapped; HP_NO_FRAME: there is none. */
static hp_frame_id take_work(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	hp_frame_id frame;

	if (atomic_load(&view->shared->pause) || hp_commit(view, 1))
		return HP_NO_FRAME;
	frame = hp_take_dirty(t);
	if (frame != HP_NO_FRAME && hp_direct(view, frame))
		return frame;
	if (frame != HP_NO_FRAME)
		hp_put(t, frame, 1);
	hp_uncommit(view, 1);
	return HP_NO_FRAME;
}

/* `zeroing` is counted first and `pause` looked at then; who pauses does it the other way round: one sees the other. */
static bool hand_out(struct hp_thread *t, struct zeroer *zeroer, _Atomic uint32_t *in_hand)
{
	struct hp_pool_shared *shared = t->pool->shared;
	hp_frame_id frame;

	atomic_fetch_add(&shared->zeroing, 1);
	frame = take_work(t);
	if (frame == HP_NO_FRAME) {
		announce_clean(shared);
		return false;
	}
	atomic_store(in_hand, frame + 1);
	hp_frame_start_zeroing(&t->pool->frames[frame]);
	atomic_store(&zeroer->word, frame + 1);
	hp_futex_wake(&zeroer->word, 1);
	return true;
}

static void take_back(struct hp_thread *t, struct zeroer *zeroer, _Atomic uint32_t *in_hand)
{
	hp_frame_id frame = (atomic_load(&zeroer->word) & ~DONE) - 1;

	hp_frame_finish_zeroing(&t->pool->frames[frame]);
	hp_put(t, frame, 1);
	hp_uncommit(t->pool, 1);
	atomic_store(in_hand, 0);
	atomic_fetch_add_explicit(&t->pool->shared->zeroed_by_worker, 1, memory_order_relaxed);
	atomic_store(&zeroer->word, EMPTY);
	announce_clean(t->pool->shared);
}

/* Looks after every zeroer once. True: something was done; *busy: frames are being zeroed. */
static bool look_around(struct hp_thread *t, struct hp_workers *workers, bool *busy)
{
	bool stop = atomic_load(&workers->stop), progress = false;

	*busy = false;
	for (uint32_t i = 0; i < workers->count; i++) {
		struct zeroer *zeroer = &workers->zeroer[i];
		_Atomic uint32_t *in_hand = &t->pool->shared->in_hand[i];
		uint32_t word = atomic_load(&zeroer->word);

		if (word & DONE) {
			take_back(t, zeroer, in_hand);
			progress = true;
		} else if (word == EMPTY && !stop && hand_out(t, zeroer, in_hand)) {
			progress = true;
		}
		*busy |= atomic_load(&zeroer->word) != EMPTY;
	}
	return progress;
}

static void *coordinate(void *context)
{
	struct hp_workers *workers = context;
	struct hp_pool_shared *shared = workers->view->shared;
	struct hp_thread *t;
	bool busy = true;

	if (hp_thread_enter(workers->view, &t)) {
		hp_log(HP_LOG_WARNING, "no slot of the pool is left for its workers: callers zero instead");
		atomic_store(&shared->workers, 0);
		return NULL;
	}
	while (busy || !atomic_load(&workers->stop)) {
		uint32_t event = atomic_load(&shared->dirty_event);

		/* `stop` is set before the event that announces it, which may be the one that we have seen. */
		if (!look_around(t, workers, &busy) && (busy || !atomic_load(&workers->stop)))
			hp_futex_wait(&shared->dirty_event, event, HP_FUTEX_FOREVER);
	}
	return NULL;
}

/* ---- starting and stopping -------------------------------------------------------------------------------------- */

static void stop_zeroers(struct hp_workers *workers)
{
	for (uint32_t i = 0; i < workers->count; i++) {
		atomic_store(&workers->zeroer[i].word, STOP);
		hp_futex_wake(&workers->zeroer[i].word, 1);
		pthread_join(workers->zeroer[i].thread, NULL);
	}
}

static int start_threads(struct hp_workers *workers, uint32_t zeroers)
{
	int error = 0;

	for (; workers->count < zeroers && !error; workers->count += !error) {
		struct zeroer *zeroer = &workers->zeroer[workers->count];

		zeroer->view = workers->view;
		error = pthread_create(&zeroer->thread, NULL, zero_frames, zeroer);
		if (!error)
			pthread_setname_np(zeroer->thread, "hp-zero");
	}
	if (!error)
		error = pthread_create(&workers->coordinator, NULL, coordinate, workers);
	if (error)
		stop_zeroers(workers);
	else
		pthread_setname_np(workers->coordinator, "hp-workers");
	return -error;
}

int hp_workers_start(struct hp_thread *t, uint32_t zeroers)
{
	struct hp_pool_view *view = t->pool;
	struct hp_workers *workers;
	sigset_t saved;
	int result;

	zeroers = zeroers < HP_ZEROERS_MAX ? zeroers : HP_ZEROERS_MAX;
	if (!zeroers)
		return 0;
	workers = calloc(1, sizeof(*workers) + zeroers * sizeof(workers->zeroer[0]));
	if (!workers)
		return -ENOMEM;
	workers->view = view;
	atomic_store(&view->shared->worker_process, view->process);
	atomic_store(&view->shared->workers, zeroers);
	hp_signals_block(&saved); /* our threads run no handler of the program */
	result = start_threads(workers, zeroers);
	hp_signals_restore(&saved);
	if (result) {
		atomic_store(&view->shared->workers, 0);
		free(workers);
	} else {
		view->workers = workers;
	}
	return result;
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
	hp_workers_notify(view);
	pthread_join(workers->coordinator, NULL);
	stop_zeroers(workers);
	atomic_store(&view->shared->workers, 0);
	view->workers = NULL;
	free(workers);
}

bool hp_workers_pause(struct hp_thread *t, int64_t timeout_ns)
{
	struct hp_pool_shared *shared = t->pool->shared;
	int64_t end = timeout_ns == HP_FUTEX_FOREVER ? HP_FUTEX_FOREVER : hp_now_ns() + timeout_ns;

	atomic_fetch_add(&shared->pause, 1);
	atomic_fetch_add(&t->pool->processes.record[t->pool->process].pauses, 1);
	for (;;) {
		uint32_t event = atomic_load(&shared->clean_event);
		int64_t left = end == HP_FUTEX_FOREVER ? HP_SLICE_NS : end - hp_now_ns();

		if (atomic_load(&shared->zeroing) == 0)
			return true;
		if (left <= 0)
			return false;
		/* The workers' process may be dead, with frames in hand. */
		if (hp_futex_wait(&shared->clean_event, event, left < HP_SLICE_NS ? left : HP_SLICE_NS) == -ETIMEDOUT)
			hp_pool_reap(t);
	}
}

void hp_workers_resume(struct hp_thread *t)
{
	atomic_fetch_sub(&t->pool->processes.record[t->pool->process].pauses, 1);
	atomic_fetch_sub(&t->pool->shared->pause, 1);
	hp_workers_notify(t->pool);
}

void hp_workers_reap(struct hp_thread *t, const uint64_t *dead)
{
	struct hp_pool_shared *shared = t->pool->shared;

	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++)
		if (hp_is_dead(dead, id))
			atomic_fetch_sub(&shared->pause, atomic_exchange(&t->pool->processes.record[id].pauses, 0));
	if (!hp_is_dead(dead, atomic_load(&shared->worker_process)))
		return;
	atomic_store(&shared->worker_process, 0);
	atomic_store(&shared->workers, 0);
	for (uint32_t i = 0; i < HP_ZEROERS_MAX; i++) {
		uint32_t held = atomic_exchange(&shared->in_hand[i], 0);

		if (held && hp_put_lost(t, held - 1))
			hp_uncommit(t->pool, 1);
	}
	atomic_store(&shared->zeroing, 0);
	atomic_fetch_add(&shared->clean_event, 1);
	hp_futex_wake(&shared->clean_event, INT_MAX);
}
