/* SPDX-License-Identifier: MIT */
#include "sync/slot.h"

#include "base/assert.h"

#include <errno.h>

int hp_slots_init(struct hp_slot *slots, uint32_t count)
{
	pthread_mutexattr_t attr;
	int error = pthread_mutexattr_init(&attr);

	if (error)
		return -error;
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	for (uint32_t i = 0; i < count && !error; i++) {
		slots[i].id = i;
		error = pthread_mutex_init(&slots[i].life, &attr);
	}
	pthread_mutexattr_destroy(&attr);
	return -error;
}

bool hp_slot_take_life(struct hp_slot *slot)
{
	int result = pthread_mutex_trylock(&slot->life);

	/* The mutex protects nothing: what its owner was in the middle of is in locks, holds and intents. */
	if (result == EOWNERDEAD)
		result = pthread_mutex_consistent(&slot->life);
	return result == 0;
}

struct hp_slot *hp_slot_claim(struct hp_slot *slots, uint32_t count, uint32_t process,
                              bool (*may_reuse)(const void *context, uint32_t id), const void *context)
{
	HP_DEBUG_ASSERT(process != 0);
	for (uint32_t i = 0; i < count; i++) {
		struct hp_slot *slot = &slots[i];

		if (!hp_slot_take_life(slot))
			continue;
		if (atomic_load(&slot->process) && !may_reuse(context, slot->id)) {
			pthread_mutex_unlock(&slot->life);
			continue;
		}
		atomic_fetch_add(&slot->generation, 1);
		atomic_store(&slot->process, process);
		return slot;
	}
	return NULL;
}

void hp_slot_release(struct hp_slot *slot)
{
	atomic_store(&slot->process, 0);
	pthread_mutex_unlock(&slot->life);
}

uint32_t hp_slots_held_by(struct hp_slot *slots, uint32_t count, uint32_t process)
{
	for (uint32_t i = count; i-- > 0;) {
		if (atomic_load(&slots[i].process) != process)
			continue;
		if (!hp_slot_take_life(&slots[i]))
			return i + 1;
		pthread_mutex_unlock(&slots[i].life);
	}
	return 0;
}
