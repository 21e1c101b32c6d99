/* SPDX-License-Identifier: MIT */
/*
 * fork.
 *
 * The child has the parent's mappings from its first instruction, but is known to nobody until it has registered. So
 * the parent prepares: it takes a process record for the child, with a lock that lives in the child's copy of a
 * descriptor, and enters the files that it has open or mapped for the child. They cannot go away then, whatever the
 * parent does:
 *
 *   parent                               child
 *   take the child's record and lock
 *   enter the files for it
 *   fork
 *   close the lock's descriptor          close the parent's lock
 *   (unmap, close: the files stay)       take a slot
 *                                        register each mapping with its file
 *                                        give up what it does not have open
 *
 * A fork that fails leaves a record whose lock is gone with the parent's descriptor: the next reaping takes it back.
 * Nothing is started in the child. A child without a record (the table is full) keeps its memory, and its engine calls
 * fail.
 */
#include "space/space.h"

#include "base/log.h"
#include "file/vma.h"
#include "os/life.h"
#include "os/sentinel.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

static void pin_mapping(const struct hp_range *range, void *context)
{
	struct hp_mapping *m = range->value;

	(void)context;
	if (m->pool->child)
		hp_file_pin(m->pool, m->pool->child, m->file);
	else if (m->vma)
		hp_file_get(m->pool, m->file); /* for ever: nobody could tell when the child is done with it */
}

static void prepare_pool(struct hp_pool_view *view)
{
	struct hp_thread *t;

	if (hp_thread_enter(view, &t))
		return;
	view->child = hp_process_claim(&view->processes, 0, &view->child_lock);
	if (!view->child && hp_pool_reap(t))
		view->child = hp_process_claim(&view->processes, 0, &view->child_lock);
	if (view->child) {
		hp_intent_begin(t->intents, HP_INTENT_FORK, view->child, 0, 0);
		hp_file_pin_open(view, view->child);
	} else {
		hp_log(HP_LOG_WARNING,
		       "the pool has %u processes already: a forked child keeps its memory but cannot use the pool",
		       HP_PROCESSES_MAX - 1);
	}
}

static void prepare(void)
{
	hp_pools_lock();
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i))
			prepare_pool(hp_pool_at(i));
	hp_rwsem_write_lock(&hp_space.fork_gate, hp_space_owner());
	hp_range_map_each(&hp_space.ranges, pin_mapping, NULL);
}

static void in_parent(void)
{
	hp_rwsem_write_unlock(&hp_space.fork_gate);
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++) {
		struct hp_pool_view *view = hp_pool_at(i);
		struct hp_thread *t;

		if (!view || !view->child)
			continue;
		hp_life_drop(view->child_lock);
		view->child = 0;
		view->child_lock = NULL;
		if (!hp_thread_enter(view, &t))
			hp_intent_end(t->intents);
	}
	hp_pools_unlock();
}

/* The view becomes the child's. */
static void adopt_pool(struct hp_pool_view *view)
{
	view->process = view->child;
	view->process_lock = view->child_lock;
	hp_life_keep(view->process_lock);
	view->child = 0;
	view->child_lock = NULL;
	view->workers = NULL; /* the parent's threads; their records are left where the parent's memory was */
	view->filling = NULL;
	if (view->process)
		view->processes.record[view->process].pid = getpid();
}

static void register_mapping(const struct hp_range *range, void *context)
{
	struct hp_mapping *m = range->value;
	struct hp_vma_record facts = {
		.first = m->first, .pages = m->pages, .prot = m->prot, .flags = m->flags, .address = m->start};
	struct hp_thread *t;
	bool *complete = context; /* by pool */

	m->vma = hp_thread_enter(m->pool, &t) ? 0 : hp_vma_add(t, m->file, &facts);
	complete[m->pool->index] &= m->vma != 0;
}

static void in_child(void)
{
	bool complete[HP_POOLS_MAX];
	struct hp_thread *t;

	hp_sentinel_arm();
	hp_threads_forget();
	hp_epoch_reset(&hp_space.epoch);
	hp_rwsem_write_unlock(&hp_space.fork_gate);
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i))
			adopt_pool(hp_pool_at(i));
	memset(complete, true, sizeof(complete));
	hp_range_map_each(&hp_space.ranges, register_mapping, complete);
	/* Where a mapping found no record, the files stay entered as long as this process lives. */
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i) && complete[i] && !hp_thread_enter(hp_pool_at(i), &t))
			hp_file_unpin(t);
	hp_pools_unlock();
}

void hp_fork_watch(void)
{
	pthread_atfork(prepare, in_parent, in_child);
}
