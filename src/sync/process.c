/* SPDX-License-Identifier: MIT */
#include "sync/process.h"

#include "base/log.h"
#include "os/life.h"
#include "sync/futex.h"

uint32_t hp_process_claim(struct hp_processes *processes, int32_t pid, void **lock)
{
	for (uint32_t id = 1; id < HP_PROCESSES_MAX; id++) {
		struct hp_process *process = &processes->record[id];
		uint32_t expected = HP_PROCESS_FREE;

		if (!atomic_compare_exchange_strong(&process->state, &expected, HP_PROCESS_CLAIMED))
			continue;
		atomic_fetch_add(&process->generation, 1);
		process->pid = pid;
		atomic_store(&process->behind, 0);
		atomic_store(&process->pauses, 0);
		*lock = hp_life_take(processes->control, processes->identity, id);
		process->has_lock = *lock != NULL;
		if (!*lock && processes->control >= 0)
			hp_log(HP_LOG_WARNING,
			       "no proof of life can be had for %s (/proc, RLIMIT_NOFILE?): when it ends "
			       "what it has of the pool stays taken",
			       pid ? "this process" : "a forked child");
		atomic_store(&process->state, HP_PROCESS_LIVE);
		return id;
	}
	return 0;
}

/* The record is free only when its lock is: the next owner could not take it otherwise, and would count as immortal. */
void hp_process_release(struct hp_processes *processes, uint32_t id, void *lock)
{
	uint32_t live = HP_PROCESS_LIVE;

	atomic_compare_exchange_strong(&processes->record[id].state, &live, HP_PROCESS_CLAIMED);
	hp_life_drop(lock);
	atomic_store(&processes->record[id].state, HP_PROCESS_FREE);
}

bool hp_process_is_live(const struct hp_processes *processes, uint32_t id)
{
	return atomic_load(&processes->record[id].state) == HP_PROCESS_LIVE;
}

bool hp_process_is_buried(const struct hp_processes *processes, uint32_t id)
{
	return atomic_load(&processes->record[id].state) == HP_PROCESS_BURIED;
}

/*
 * Who looks for a free slot, or asks after its thread, holds the mutex of a dead thread's slot for some microseconds:
 * only one that stays held has somebody living in it.
 */
static bool has_threads(const struct hp_processes *processes, uint32_t id)
{
	unsigned tries = 0;

	while (hp_slots_held_by(processes->slots, atomic_load(processes->slots_used), id)) {
		if (++tries == 50)
			return true;
		hp_sleep_ns(200000);
	}
	return false;
}

bool hp_process_bury(struct hp_processes *processes, uint32_t id)
{
	struct hp_process *process = &processes->record[id];
	uint32_t expected = HP_PROCESS_LIVE, generation = atomic_load(&process->generation);

	if (!hp_process_is_live(processes, id) || !process->has_lock ||
	    !hp_life_is_gone(processes->control, processes->identity, id))
		return false;
	if (has_threads(processes, id))
		return false;
	if (!atomic_compare_exchange_strong(&process->state, &expected, HP_PROCESS_BURIED))
		return false;
	if (atomic_load(&process->generation) == generation)
		return true;
	/* Buried and taken anew by others meanwhile: this one lives. */
	atomic_store(&process->state, HP_PROCESS_LIVE);
	return false;
}
