/* SPDX-License-Identifier: MIT */
/*
 * Slots: who is alive.
 *
 * Every thread that uses a pool holds one robust mutex, `life`, in a slot of the pool from its first call until it
 * ends. The kernel gives such a mutex up with the mark "owner died" when the thread ends for whatever reason, SIGKILL
 * and exec included; that mark is the only proof of a thread's death that holds across exec and pid namespaces.
 *
 * A slot is taken by pthread_mutex_trylock on one that nobody holds: free, or its thread gone. That is the one function
 * in the fault path that POSIX does not list as signal safe. It is safe here: the mutex is never held by a thread that
 * could be interrupted inside a pthread call on the same mutex, and trylock of a robust mutex is an atomic exchange and
 * an update of the thread's own robust list, which glibc announces to the kernel first (op_pending). What must not
 * happen is that the handler interrupts another robust-mutex call of the same thread half-way through the list;
 * hugepool's own calls block signals around theirs.
 */
#ifndef HP_SYNC_SLOT_H
#define HP_SYNC_SLOT_H

#include "base/units.h"
#include "sync/sync.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define HP_SLOTS_MAX 2048u
#define HP_THREADS_MAX (HP_SLOTS_MAX - 1) /* the first slot is for who finds no other, and looks for dead threads */

/*
 * For who takes over what belongs to a slot: the kernel orders it after the thread that had the slot and ended, which
 * the thread sanitizer does not see.
 */
#define HP_AFTER_A_DEATH __attribute__((no_sanitize("thread")))

struct hp_slot {
	pthread_mutex_t life;        /* held by the slot's thread as long as it lives */
	_Atomic uint32_t process;    /* id of its process, written by the holder; 0 when given up in good order */
	_Atomic uint32_t generation; /* grows with each owner */
	uint32_t id;                 /* never changes */
} __attribute__((aligned(2 * HP_CACHE_LINE)));

/* What the slot's present thread writes into locks. */
static inline hp_owner hp_slot_owner(const struct hp_slot *slot)
{
	return (atomic_load_explicit(&slot->generation, memory_order_acquire) << HP_OWNER_SLOT_BITS | (slot->id + 1)) &
	       HP_OWNER_MASK;
}

/* Makes `count` free slots. */
int hp_slots_init(struct hp_slot *slots, uint32_t count);
/*
 * A slot for the calling thread, or NULL if all are held. Signals must be blocked. A slot whose thread died may still
 * be needed to repair what it left: those for which `may_reuse` says no are left alone.
 */
struct hp_slot *hp_slot_claim(struct hp_slot *slots, uint32_t count, uint32_t process,
                              bool (*may_reuse)(const void *context, uint32_t id), const void *context);
/* Takes the mutex of a slot whose thread is gone or that is free. False: somebody lives there. */
bool hp_slot_take_life(struct hp_slot *slot);
/* By the thread that holds it. Signals must be blocked. */
void hp_slot_release(struct hp_slot *slot);
/*
 * How many slots, from the first on, hold all that live threads of that process have; 0: it has none. Signals are
 * blocked.
 */
uint32_t hp_slots_held_by(struct hp_slot *slots, uint32_t count, uint32_t process);

#endif
