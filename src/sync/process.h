/* SPDX-License-Identifier: MIT */
/*
 * The processes of a pool.
 *
 * A thread's robust mutex proves its own death, but a process may outlive all threads that ever called hugepool. So a
 * process also holds a lock on one byte of the control memory's descriptor (an open-file-description lock, on a
 * description of its own), which the kernel drops when the last descriptor closes: at exit, at exec, at SIGKILL. A
 * process is dead when that lock is gone and no thread of it holds a slot; a program that closes all descriptors is
 * alive by its threads.
 *
 * fork: the parent takes the record and the lock for its child before it forks, and closes its own descriptor of that
 * lock after: the child's inherited copy keeps it. A fork that failed leaves a record without a lock, which is reaped.
 */
#ifndef HP_SYNC_PROCESS_H
#define HP_SYNC_PROCESS_H

#include "sync/slot.h"

#define HP_PROCESSES_MAX 512u /* ids 1 and up; 0 is none */

enum hp_process_state {
	HP_PROCESS_FREE = 0,
	HP_PROCESS_CLAIMED, /* being made or unmade: nobody else looks at it */
	HP_PROCESS_LIVE,
};

struct hp_process {
	_Atomic uint32_t state;
	_Atomic uint32_t generation; /* grows with each owner */
	int32_t pid;                 /* for people; proves nothing */
	uint32_t has_lock;           /* 0: no descriptor lock could be had, so nobody may call it dead */
};

struct hp_processes {
	struct hp_process *record; /* [HP_PROCESSES_MAX], in the arena */
	struct hp_slot *slots;     /* [HP_SLOTS_MAX], in the arena */
	int control;               /* descriptor of the control memory, or -1 where there is none */
};

/* Takes a record and its lock; `*lock` is the descriptor that holds it, or -1. Returns the id, or 0 if all are in use.
 */
uint32_t hp_process_claim(struct hp_processes *processes, int32_t pid, int *lock);
/* Frees a record whose books are empty. */
void hp_process_release(struct hp_processes *processes, uint32_t id);
bool hp_process_is_live(const struct hp_processes *processes, uint32_t id);
/*
 * If the process is proven dead its record becomes CLAIMED by the caller, who takes back what it had and releases it;
 * true then. `lock` is a descriptor of the caller's own lock.
 */
bool hp_process_bury(struct hp_processes *processes, uint32_t id, int lock);

#endif
