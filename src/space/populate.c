/* SPDX-License-Identifier: MIT */
/* hp_populate: lazy memory that is about to be handed to system calls. */
#include "space/space.h"

#include <errno.h>
#include <sched.h>

/* A part of at most one chunk: signals are not held off, nor those who unmap, for as long as a large range takes. */
static int populate_part(uintptr_t start, uint64_t length, uint64_t *done)
{
	struct hp_epoch_section section;
	struct hp_mapping *m;
	struct hp_thread *t;
	sigset_t saved;
	int result = 0;

	hp_signals_block(&saved);
	section = hp_epoch_enter(&hp_space.epoch);
	m = hp_range_map_find(&hp_space.ranges, start);
	if (!m || m->gone || length > m->length - (start - m->start)) {
		result = -EINVAL;
	} else if (hp_private_is_moving(m)) {
		sched_yield();
		*done = 0;
	} else if (!(m->flags & HP_MAP_LAZY) || atomic_load(&m->frozen)) {
		*done = length;
		if (start - m->start + length > hp_bytes(atomic_load(&m->reach)))
			result = -ENXIO;
	} else {
		uint32_t page = m->first + (uint32_t)hp_frames(start - m->start);
		uint32_t pages = (uint32_t)hp_min(hp_frames(length), HP_REGION_FRAMES - page % HP_REGION_FRAMES);

		*done = hp_bytes(pages);
		result = hp_thread_enter_blocked(m->pool, &t);
		if (!result)
			result = hp_mapping_populate(t, m, page, pages);
	}
	hp_epoch_leave(&hp_space.epoch, section);
	hp_signals_restore(&saved);
	return result;
}

int hp_populate(void *address, uint64_t length)
{
	uintptr_t start = (uintptr_t)address;
	uint64_t done = 0;
	int result = 0;

	if (!hp_is_frame_aligned(start) || !hp_is_frame_aligned(length) || length == 0)
		return -EINVAL;
	hp_process_is_known(); /* the epoch is the parent's until then */
	for (; length && !result; start += done, length -= done)
		result = populate_part(start, length, &done);
	return result;
}
