/* SPDX-License-Identifier: MIT */
/*
 * fork.
 *
 * The child has the parent's mappings from its first instruction. What the pool's books need to know of it the parent
 * enters before it forks, where the memory of the books is at hand: for the child each page of them would be a fault,
 * and most children exec or exit soon. The child itself does nothing until it first uses hugepool, or touches lazy
 * memory:
 *
 *   parent                                        child
 *   take the child's record and lock
 *   enter open files and mappings for it,
 *     each mapping under its file's lock
 *   fork
 *   drop its own part of the child's lock         (nothing)
 *                                                 first use: the sentinel was wiped, so take over
 *
 * A fork that fails leaves a record whose lock is gone with the parent's part of it: the next reaping takes it back.
 * Nothing is started in the child. A child without a record (the table is full) keeps its memory, and its engine calls
 * fail; so does the child of a raw clone, for which nothing was prepared.
 */
#include "space/space.h"

#include "base/log.h"
#include "os/life.h"
#include "os/sentinel.h"
#include "sync/barrier.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

/* Of a fork from before it until after it; in the child as the parent left it, until the child has taken over. */
static struct {
	_Atomic uint32_t step; /* enum step */
	struct {
		uint32_t process; /* the child's record; 0: there is none */
		void *lock;
	} child[HP_POOLS_MAX];
} state;

enum step { NOTHING = 0, PREPARED, TAKING_OVER, TAKEN_OVER };

/* ---- in the parent ---------------------------------------------------------------------------------------------- */

/* The child's mapping enters its file's list. */
static void register_mapping(const struct hp_range *range, void *unused)
{
	struct hp_mapping *m = range->value;
	struct hp_vma_record facts = hp_mapping_facts(m, state.child[m->pool->index].process);
	struct hp_thread *t;

	(void)unused;
	m->child_vma = 0;
	if (!m->vma || m->flags & (HP_FORK_WITHOUT | HP_FORK_COPY))
		return;
	if (atomic_load(&facts.process) && !hp_thread_enter(m->pool, &t))
		hp_vma_add_forked(t, m->file, &facts, &m->child_vma);
	if (!m->child_vma)
		hp_file_keep(m->pool, m->file, hp_mapping_end(m));
}

/* Records of mappings are taken while nobody can be reaped: room is made before. */
static void make_room(struct hp_thread *t)
{
	if (atomic_load(&t->pool->shared->vmas.live) > HP_VMAS_MAX / 2)
		hp_pool_reap(t);
}

static void prepare_pool(struct hp_pool_view *view)
{
	struct hp_thread *t;
	void *lock = NULL;
	uint32_t child;

	state.child[view->index].process = 0;
	if (hp_thread_enter(view, &t)) {
		hp_log(HP_LOG_WARNING,
		       "%u threads use the pool already: a forked child of one more keeps its memory but "
		       "cannot use the pool",
		       HP_THREADS_MAX);
		return;
	}
	make_room(t);
	child = hp_process_claim(&view->processes, 0, &lock);
	if (!child) {
		hp_pool_reap(t); /* or somebody else does */
		child = hp_process_claim(&view->processes, 0, &lock);
	}
	if (child) {
		hp_intent_begin(t->intents, HP_INTENT_FORK, child, 0, 0);
		hp_file_inherit(view, child);
	} else {
		hp_log(HP_LOG_WARNING,
		       "the pool has %u processes already: a forked child keeps its memory but cannot use the pool",
		       HP_PROCESSES_MAX - 1);
	}
	state.child[view->index].process = child;
	state.child[view->index].lock = lock;
}

/* What the parent has not heard of yet the child has not either. What comes from now on tells both. */
static void inherit_news(struct hp_pool_view *view)
{
	struct hp_process *record = view->processes.record;

	if (view->process && state.child[view->index].process && atomic_load(&record[view->process].behind))
		atomic_store(&record[state.child[view->index].process].behind, 1);
}

static void prepare(void)
{
	sigset_t saved;

	hp_pools_lock();
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i))
			prepare_pool(hp_pool_at(i));
	hp_rwsem_write_lock(&hp_space.fork_gate, hp_space_locker(), HP_CLASS_FORK);
	hp_signals_block(&saved);
	hp_private_prepare();
	hp_range_map_each(&hp_space.ranges, register_mapping, NULL);
	hp_signals_restore(&saved);
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i))
			inherit_news(hp_pool_at(i));
	atomic_store(&state.step, PREPARED);
}

static void in_parent(void)
{
	hp_private_in_parent();
	atomic_store(&state.step, NOTHING);
	hp_rwsem_write_unlock(&hp_space.fork_gate, hp_space_locker());
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++) {
		struct hp_pool_view *view = hp_pool_at(i);
		struct hp_thread *t;

		if (!view || !state.child[i].process)
			continue;
		hp_life_drop(state.child[i].lock);
		if (!hp_thread_enter(view, &t))
			hp_intent_end(t->intents);
	}
	hp_pools_unlock();
}

/* ---- in the child ----------------------------------------------------------------------------------------------- */

/* The view becomes the child's. */
static void adopt_pool(struct hp_pool_view *view)
{
	/* Where barriers reach this process, all that share the pool count on it. */
	bool member = view->locks.shared->fenced || hp_barrier_join();

	view->process = member ? state.child[view->index].process : 0;
	view->process_lock = state.child[view->index].lock;
	hp_life_keep(view->process_lock);
	view->forks++;
	view->workers = NULL; /* the parent's threads; their records are left where the parent's memory was */
	view->collapser = NULL;
	view->filling = NULL;
	if (view->process)
		view->processes.record[view->process].pid = getpid();
}

static void adopt_mapping(const struct hp_range *range, void *unused)
{
	struct hp_mapping *m = range->value;

	(void)unused;
	m->vma = m->child_vma;
	m->gone = m->gone || m->flags & HP_FORK_WITHOUT;
	if (!m->gone)
		return;
	atomic_store(&m->moving, false);
	atomic_store(&hp_space.some_gone, true);
}

/*
 * What the parent prepared becomes this process's own. Only the forking thread's memory is as it was in the parent;
 * other threads that come in here too have been made since, and wait. Signal safe: the first use may be a fault.
 * False: this is the child of a raw clone.
 */
static bool take_over(void)
{
	uint32_t step = PREPARED;
	sigset_t saved;

	hp_signals_block(&saved);
	if (atomic_compare_exchange_strong(&state.step, &step, TAKING_OVER)) {
		/* Held by the parent's thread, which held all others off. */
		memset(&hp_space.fork_gate, 0, sizeof(hp_space.fork_gate));
		hp_pools_reset();
		hp_epoch_reset(&hp_space.epoch);
		hp_pins_reset();
		for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
			if (hp_pool_at(i))
				adopt_pool(hp_pool_at(i));
		hp_range_map_each(&hp_space.ranges, adopt_mapping, NULL);
		atomic_store(&state.step, TAKEN_OVER);
		hp_sentinel_arm();
	}
	while (step != NOTHING && !hp_sentinel_is_armed())
		sched_yield();
	hp_signals_restore(&saved);
	return hp_sentinel_is_armed();
}

/* What cannot wait for the first use. */
static void in_child(void)
{
	hp_order_pop(&hp_space.fork_gate);
	hp_private_in_child();
	if (!hp_sentinel_wipes())
		take_over();
}

void hp_fork_watch(void)
{
	hp_process_on_fork(take_over);
	pthread_atfork(prepare, in_parent, in_child);
}
