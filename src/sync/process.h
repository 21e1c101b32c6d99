/* SPDX-License-Identifier: MIT */
/*
 * The processes of a pool.
 *
 * A thread's robust mutex proves its own death, but a process may outlive all threads that ever called hugepool. So a
 * process also holds a lock (os/life.h) that the kernel drops at exit, at exec and at SIGKILL. A process is dead when
 * that lock is gone and no thread of it holds a slot.
 *
 * fork: the parent takes the record and the lock for its child before it forks, and drops its own part of that lock
 * after: the child's inherited part keeps it. A fork that failed leaves a record without a lock, which is reaped.
 */
#ifndef HP_SYNC_PROCESS_H
#define HP_SYNC_PROCESS_H

#include "sync/slot.h"

#define HP_PROCESSES_MAX 512u /* ids 1 and up; 0 is none */

enum hp_process_state {
	HP_PROCESS_FREE = 0,
	HP_PROCESS_CLAIMED, /* being made or unmade by itself: nobody else looks at it */
	HP_PROCESS_LIVE,
	HP_PROCESS_BURIED, /* found dead: what it had is being taken back */
};

struct hp_process {
	_Atomic uint32_t state;
	_Atomic uint32_t generation; /* grows with each owner */
	int32_t pid;                 /* for people; proves nothing */
	uint32_t has_lock;           /* 0: no lock could be had, so nobody may call it dead */
	_Atomic uint32_t behind;     /* a file was cut or has grown under a mapping of it: see space/catch_up.c */
	_Atomic uint32_t pauses;     /* how often it holds the pool's workers off */
};

struct hp_processes {
	struct hp_process *record; /* [HP_PROCESSES_MAX], in the arena */
	struct hp_slot *slots;     /* [HP_SLOTS_MAX], in the arena */
	_Atomic uint32_t *slots_used;
	int control;       /* descriptor of the control memory, or -1 where there is none */
	uint64_t identity; /* of the control memory's file */
};

/* Takes a record and its lock, which may be NULL. Returns the id, or 0 if all are in use. */
uint32_t hp_process_claim(struct hp_processes *processes, int32_t pid, void **lock);
/* Frees a record whose books are empty: the caller's own, with its lock, or one that it has buried. */
void hp_process_release(struct hp_processes *processes, uint32_t id, void *lock);
/* Somebody has buried it and not released it: who finds that one dead goes on. */
bool hp_process_is_buried(const struct hp_processes *processes, uint32_t id);
bool hp_process_is_live(const struct hp_processes *processes, uint32_t id);
/*
 * If the process is proven dead its record becomes the caller's, who takes back what it had and releases it; true
 * then.
 */
bool hp_process_bury(struct hp_processes *processes, uint32_t id);

#endif
