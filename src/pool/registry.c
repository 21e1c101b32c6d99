/* SPDX-License-Identifier: MIT */
/* Handles, the pools of this process, and the threads' part in them. */
#include "pool/pool.h"

#include "base/log.h"
#include "os/sentinel.h"
#include "pool/workers.h"

#include <errno.h>
#include <string.h>

/*
 * An entry is set when the view has its arena, and cleared before it is destroyed: under `pools_lock`, read by all.
 * `pool_generations` and `file_generations` never go back for an index, so that no handle comes twice.
 */
static _Atomic(struct hp_pool_view *) views[HP_POOLS_MAX];
static uint32_t pool_generations[HP_POOLS_MAX], file_generations[HP_POOLS_MAX];
static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;

static __thread struct hp_thread threads[HP_POOLS_MAX];
static pthread_key_t thread_end_key;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;

static const struct hp_pool_hooks *hooks[4];
static unsigned hook_count;

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
	pthread_mutex_lock(&pools_lock);
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

static bool is_current(const struct hp_thread *t, const struct hp_pool_view *view)
{
	return t->pool == view && t->generation == view->generation && t->slot;
}

/* Signals are blocked: no fault of this thread may come between its robust-mutex calls. */
static void leave(struct hp_thread *t)
{
	hp_slot_release(t->slot);
	memset(t, 0, sizeof(*t));
}

static void on_thread_end(void *unused)
{
	sigset_t saved;

	hp_signals_block(&saved);
	hp_pools_lock();
	/* In a raw clone's child the slots are the parent's. */
	for (uint32_t i = 0; i < HP_POOLS_MAX && hp_sentinel_is_armed(); i++) {
		struct hp_pool_view *view = hp_pool_at(i);

		if (view && is_current(&threads[i], view))
			leave(&threads[i]);
	}
	hp_pools_unlock();
	hp_signals_restore(&saved);
}

uint32_t hp_pool_unregister(struct hp_pool_view *view)
{
	struct hp_thread *t = &threads[view->index];
	uint32_t held;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_pools_lock();
	if (is_current(t, view))
		leave(t);
	held = view->process ? hp_slots_held_by(view->slots, HP_SLOTS_MAX, view->process) : 0;
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

int hp_thread_enter_blocked(struct hp_pool_view *view, struct hp_thread **thread)
{
	struct hp_thread *t = &threads[view->index];

	*thread = t;
	if (view->process == 0 || !hp_sentinel_is_armed())
		return -ECHILD;
	if (is_current(t, view))
		return 0;
	*t = (struct hp_thread){.pool = view, .generation = view->generation};
	t->slot = hp_slot_claim(view->slots, HP_SLOTS_MAX, view->process);
	if (!t->slot)
		return -EAGAIN;
	t->owner = hp_slot_owner(t->slot);
	t->intents = &view->intents[t->slot->id];
	atomic_store(&t->intents->depth, 0);
	return 0;
}

int hp_thread_enter(struct hp_pool_view *view, struct hp_thread **thread)
{
	sigset_t saved;
	int result;

	*thread = &threads[view->index];
	if (is_current(*thread, view) && hp_sentinel_is_armed())
		return 0;
	pthread_once(&thread_end_once, make_thread_end_key);
	pthread_setspecific(thread_end_key, threads);
	hp_signals_block(&saved);
	result = hp_thread_enter_blocked(view, thread);
	hp_signals_restore(&saved);
	return result;
}

void hp_threads_forget(void)
{
	memset(threads, 0, sizeof(threads));
}

/* ---- hooks and dead processes ----------------------------------------------------------------------------------- */

void hp_pool_hooks_add(const struct hp_pool_hooks *added)
{
	HP_ASSERT(hook_count < sizeof(hooks) / sizeof(hooks[0]));
	hooks[hook_count++] = added;
}

bool hp_pool_in_use(struct hp_pool_view *view)
{
	bool in_use = false;

	for (unsigned i = 0; i < hook_count; i++)
		in_use |= hooks[i]->in_use(view);
	return in_use;
}

int hp_pool_check_layers(struct hp_thread *t, hp_error *error)
{
	int result = 0;

	for (unsigned i = 0; i < hook_count && !result; i++)
		result = hooks[i]->check(t, error);
	return result;
}

static void reap_one(struct hp_thread *t, uint32_t process)
{
	hp_intent_begin(t->intents, HP_INTENT_REAP, process, 0, 0);
	for (unsigned i = hook_count; i-- > 0;)
		hooks[i]->reap(t, process);
	hp_workers_reap(t, process);
	hp_fill_reap(t->pool, process);
	hp_process_release(&t->pool->processes, process, NULL);
	hp_intent_end(t->intents);
}

uint32_t hp_pool_reap(struct hp_thread *t)
{
	struct hp_pool_view *view = t->pool;
	uint32_t buried = 0;
	sigset_t saved;

	hp_signals_block(&saved);
	hp_mutex_lock(&view->shared->reap_lock, t->owner);
	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++) {
		if (id == view->process || !hp_process_bury(&view->processes, id))
			continue;
		hp_log(HP_LOG_INFO, "process %d of the pool is gone: taking back what it had",
		       view->processes.record[id].pid);
		reap_one(t, id);
		buried++;
	}
	hp_mutex_unlock(&view->shared->reap_lock);
	hp_signals_restore(&saved);
	return buried;
}
