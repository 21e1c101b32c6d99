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
#include "os/sentinel.h"

#include <pthread.h>
#include <unistd.h>

#define FORKS_OWNER 0x3ffffffeu /* what fork writes into the space's locks */

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
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i))
			prepare_pool(hp_pool_at(i));
	hp_mutex_lock(&hp_space.grace_lock, FORKS_OWNER);
	hp_mutex_lock(&hp_space.lock, FORKS_OWNER);
	hp_range_map_each(&hp_space.ranges, pin_mapping, NULL);
}

static void in_parent(void)
{
	hp_mutex_unlock(&hp_space.lock);
	hp_mutex_unlock(&hp_space.grace_lock);
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++) {
		struct hp_pool_view *view = hp_pool_at(i);
		struct hp_thread *t;

		if (!view || !view->child)
			continue;
		if (view->child_lock >= 0)
			close(view->child_lock);
		view->child = 0;
		view->child_lock = -1;
		if (!hp_thread_enter(view, &t))
			hp_intent_end(t->intents);
	}
}

/* The view becomes the child's. */
static void adopt_pool(struct hp_pool_view *view)
{
	if (view->process_lock >= 0)
		close(view->process_lock);
	view->process = view->child;
	view->process_lock = view->child_lock;
	view->child = 0;
	view->child_lock = -1;
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
	bool *complete = context;

	m->vma = hp_thread_enter(m->pool, &t) ? 0 : hp_vma_add(t, m->file, &facts);
	*complete &= m->vma != 0;
}

static void in_child(void)
{
	bool complete = true;
	struct hp_thread *t;

	hp_sentinel_arm();
	hp_threads_forget();
	hp_epoch_reset(&hp_space.epoch);
	hp_mutex_unlock(&hp_space.lock);
	hp_mutex_unlock(&hp_space.grace_lock);
	for (uint32_t i = 0; i < HP_POOLS_MAX; i++)
		if (hp_pool_at(i))
			adopt_pool(hp_pool_at(i));
	hp_range_map_each(&hp_space.ranges, register_mapping, &complete);
	/* Where a mapping found no record, the files stay entered as long as this process lives. */
	for (uint32_t i = 0; i < HP_POOLS_MAX && complete; i++)
		if (hp_pool_at(i) && !hp_thread_enter(hp_pool_at(i), &t))
			hp_file_unpin(t);
}

void hp_fork_watch(void)
{
	pthread_atfork(prepare, in_parent, in_child);
}
