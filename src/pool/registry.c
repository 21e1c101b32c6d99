/* SPDX-License-Identifier: MIT */
/* Handles, the pools of this process, and the threads' part in them. */
#include "pool/pool.h"

#include "base/log.h"
#include "os/sentinel.h"
#include "pool/tenant.h"
#include "pool/workers.h"
#include "sync/rwsem.h"

#include <errno.h>
#include <string.h>

/*
 * An entry is set when the view has its arena, and cleared before it is destroyed: under `pools_lock`, read by all.
 * `pool_generations` and `file_generations` never go back for an index, so that no handle comes twice.
 */
static _Atomic(struct hp_pool_view *) views[HP_POOLS_MAX];
static uint32_t pool_generations[HP_POOLS_MAX], file_generations[HP_POOLS_MAX];
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

/* By pool; of another generation: of a pool that is closed. Small: libraries get little static TLS when opened late. */
static __thread struct {
	struct hp_thread *thread;
	uint32_t generation, forks;
} threads[HP_POOLS_MAX];
static pthread_key_t thread_end_key;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;

static const struct hp_pool_hooks *hooks[4];
static unsigned hook_count;
static bool (*take_over)(void);

bool hp_process_is_known(void)
{
	return hp_sentinel_is_armed() || (take_over && take_over());
}

void hp_process_on_fork(bool (*after)(void))
{
	take_over = after;
}

/* ---- handles ---------------------------------------------------------------------------------------------------- */

struct hp_pool_view *hp_pool_at(uint32_t index)
{
	return index < HP_POOLS_MAX ? atomic_load_explicit(&views[index], memory_order_acquire) : NULL;
}

/* A handle is the index plus 1 in its low 8 bits, and the generation above. */
struct hp_pool_view *hp_pool_find(uint64_t id)
{
	uint32_t index = (uint32_t)(id & 0xff) - 1;
	struct hp_pool_view *view = hp_pool_at(index);

	return view && view->generation == id >> 8 ? view : NULL;
}

void hp_pools_lock(void)
{
	hp_process_is_known(); /* in a fork child the lock is as the parent had it, until the child takes over */
	pthread_mutex_lock(&pools_lock);
}

void hp_pools_reset(void)
{
	pools_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

void hp_pools_unlock(void)
{
	pthread_mutex_unlock(&pools_lock);
}

int hp_pool_register(struct hp_pool_view *view)
{
	int result = -EMFILE;

	hp_pools_lock();
	for (uint32_t i = 0; i < HP_POOLS_MAX && result; i++) {
		if (atomic_load(&views[i]))
			continue;
		view->index = i;
		view->generation = ++pool_generations[i];
		atomic_store(&view->shared->file_generation, file_generations[i]);
		atomic_store(&views[i], view);
		result = 0;
	}
	hp_pools_unlock();
	return result;
}

/* ---- threads ---------------------------------------------------------------------------------------------------- */

/* This thread's part in the pool, or NULL. */
static struct hp_thread *current(const struct hp_pool_view *view)
{
	bool same = threads[view->index].generation == view->generation && threads[view->index].forks == view->forks;

	return same ? threads[view->index].thread : NULL;
}

/* Signals are blocked: no fault of this thread may come between its robust-mutex calls. */
static void leave(struct hp_thread *t)
{
	threads[t->pool->index].thread = NULL;
	hp_slot_release(t->slot);
}

static void on_thread_end(void *unused)
{
	sigset_t saved;

	/* In a child that has not used hugepool yet the slots are the parent's. */
	if (!hp_sentinel_is_armed())
		return;
	hp_signals_block(&saved);
	hp_pools_lock();
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++) {
		struct hp_pool_view *view = hp_pool_at(i);

		if (view && current(view))
			leave(current(view));
	}
	hp_pools_unlock();
	hp_signals_restore(&saved);
}

uint32_t hp_pool_unregister(struct hp_pool_view *view)
{
	uint32_t held;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_pools_lock();
	if (current(view))
		leave(current(view));
	held = view->process
	               ? hp_slots_held_by(view->slots, atomic_load(&view->locks.shared->slots_used), view->process)
	               : 0;
	file_generations[view->index] = atomic_load(&view->shared->file_generation);
	atomic_store(&views[view->index], NULL);
	hp_pools_unlock();
	hp_signals_restore(&saved);
	return held;
}

static void make_thread_end_key(void)
{
	pthread_key_create(&thread_end_key, on_thread_end);
}

/* What a dead thread held or was in the middle of must be repaired before its slot has another one. */
static bool may_reuse(const void *context, uint32_t slot)
{
	const struct hp_pool_view *view = context;

	return hp_record_is_empty(&view->locks.records[slot]) && atomic_load(&view->intents[slot].depth) == 0;
}

/* Makes the calling thread the one that has the slot. */
HP_AFTER_A_DEATH static struct hp_thread *live_in(struct hp_pool_view *view, struct hp_slot *slot)
{
	struct hp_thread *t = &view->threads[slot->id];

	t->pool = view;
	t->slot = slot;
	t->intents = &view->intents[slot->id];
	hp_locker_init(&t->locker, &view->locks, slot);
	threads[view->index].thread = t;
	threads[view->index].generation = view->generation;
	threads[view->index].forks = view->forks;
	return t;
}

static struct hp_slot *claim(struct hp_pool_view *view, bool spare)
{
	return hp_slot_claim(spare ? view->slots : view->slots + 1, spare ? 1 : HP_THREADS_MAX, view->process,
	                     may_reuse, view);
}

int hp_thread_enter_blocked(struct hp_pool_view *view, struct hp_thread **thread)
{
	struct hp_slot *slot;

	if (!hp_process_is_known() || view->process == 0)
		return -ECHILD;
	*thread = current(view);
	if (*thread)
		return 0;
	slot = claim(view, false);
	if (!slot)
		return -EAGAIN;
	*thread = live_in(view, slot);
	return 0;
}

/* All slots are held, but perhaps by threads of dead processes: somebody has to look, and needs one for that. */
static void reap_slotless(struct hp_pool_view *view)
{
	struct hp_slot *slot = claim(view, true);

	if (!slot)
		return;
	hp_pool_reap(live_in(view, slot));
	leave(current(view));
}

int hp_thread_enter(struct hp_pool_view *view, struct hp_thread **thread)
{
	sigset_t saved;
	int result;

	*thread = current(view);
	if (*thread && hp_sentinel_is_armed())
		return 0;
	pthread_once(&thread_end_once, make_thread_end_key);
	pthread_setspecific(thread_end_key, threads);
	hp_signals_block(&saved);
	result = hp_thread_enter_blocked(view, thread);
	if (result == -EAGAIN) {
		reap_slotless(view);
		result = hp_thread_enter_blocked(view, thread);
	}
	hp_signals_restore(&saved);
	return result;
}

/* ---- hooks and dead processes ----------------------------------------------------------------------------------- */

void hp_pool_hooks_add(const struct hp_pool_hooks *added)
{
	HP_ASSERT(hook_count < sizeof(hooks) / sizeof(hooks[0]));
	hooks[hook_count++] = added;
}

int hp_pool_start_layers(struct hp_thread *t, const hp_pool_options *options)
{
	int result = 0;

	for (unsigned i = 0; i < hook_count && !result; i++)
		result = hooks[i]->start ? hooks[i]->start(t, options) : 0;
	return result;
}

void hp_pool_stop_layers(struct hp_pool_view *view)
{
	for (unsigned i = 0; i < hook_count; i++)
		if (hooks[i]->stop)
			hooks[i]->stop(view);
}

bool hp_pool_in_use(struct hp_thread *t)
{
	bool in_use = false;

	for (unsigned i = 0; i < hook_count; i++)
		in_use |= hooks[i]->in_use && hooks[i]->in_use(t);
	return in_use;
}

int hp_pool_check_layers(struct hp_thread *t, hp_error *error)
{
	int result = 0;

	for (unsigned i = 0; i < hook_count && !result; i++)
		result = hooks[i]->check ? hooks[i]->check(t, error) : 0;
	return result;
}

struct hp_promised hp_pool_promised(struct hp_thread *t)
{
	struct hp_promised all = {.frames = hp_tenants_reserved(t->pool)};

	for (unsigned i = 0; i < hook_count; i++)
		if (hooks[i]->promised) {
			struct hp_promised layer = hooks[i]->promised(t);

			all.frames += layer.frames;
			all.base += layer.base;
		}
	return all;
}

void hp_pool_catch_up(struct hp_thread *t)
{
	_Atomic uint32_t *behind = &t->pool->processes.record[t->pool->process].behind;

	if (__builtin_expect(atomic_load_explicit(behind, memory_order_acquire) != 0, 0))
		hp_pool_catch_up_now(t);
}

void hp_pool_catch_up_now(struct hp_thread *t)
{
	for (unsigned i = 0; i < hook_count; i++)
		if (hooks[i]->catch_up)
			hooks[i]->catch_up(t);
}

/* What the thread of a slot was in the middle of. */
static void recover(struct hp_thread *t, const struct hp_intents *intents)
{
	uint32_t depth = atomic_load(&intents->depth);

	for (uint32_t i = 0; i < depth && i < HP_INTENTS_DEEP; i++)
		for (unsigned h = 0; h < hook_count; h++)
			if (hooks[h]->recover)
				hooks[h]->recover(t, &intents->at[i]);
}

/* The slots of dead processes, with what their threads held for reading, and were in the middle of. */
static void reap_slots(struct hp_thread *t, const uint64_t *dead)
{
	struct hp_pool_view *view = t->pool;
	uint32_t used = atomic_load(&view->locks.shared->slots_used);

	for (uint32_t i = 0; i < used; i++) {
		uint32_t process = atomic_load(&view->slots[i].process);

		if (!hp_is_dead(dead, process))
			continue;
		recover(t, &view->intents[i]);
		/* A lock that cannot be repaired yet keeps the slot: its waiters go on trying. */
		if (!hp_record_bury(&t->locker, i) || !hp_slot_take_life(&view->slots[i]))
			continue;
		if (atomic_load(&view->slots[i].process) == process) {
			atomic_store(&view->intents[i].depth, 0);
			atomic_store(&view->slots[i].process, 0);
		}
		pthread_mutex_unlock(&view->slots[i].life);
	}
}

uint32_t hp_pool_reap_buried(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	uint64_t dead[HP_PROCESSES_MAX / 64] = {0};
	uint32_t count = 0;

	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++)
		if (hp_process_is_buried(&view->processes, id)) {
			dead[id / 64] |= 1ull << id % 64;
			count++;
		}
	if (!count)
		return 0;
	for (unsigned i = hook_count; i-- > 0;)
		if (hooks[i]->reap)
			hooks[i]->reap(t, dead);
	hp_workers_reap(t, dead);
	hp_fill_reap(view, dead);
	reap_slots(t, dead);
	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++)
		if (hp_is_dead(dead, id))
			hp_process_release(&view->processes, id, NULL);
	return count;
}

uint32_t hp_pool_reap(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	uint32_t reaped;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_mutex_lock(&view->shared->reap_lock, &t->locker, HP_CLASS_REAP);
	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++)
		if (id != view->process && hp_process_bury(&view->processes, id))
			hp_log(HP_LOG_INFO, "process %d of the pool is gone: taking back what it had",
			       view->processes.record[id].pid);
	reaped = hp_pool_reap_buried(t);
	hp_mutex_unlock(&view->shared->reap_lock, &t->locker);
	hp_signals_restore(&saved);
	return reaped;
}
